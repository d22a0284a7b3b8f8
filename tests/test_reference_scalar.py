"""The exact reference (nicemu.reference.scalar) against MPFR: every operation, format and mode.

Neither was made from the other: the reference rounds fractions, the oracle is MPFR.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest

from nicemu.errors import ArgumentError
from nicemu.reference import scalar
from nicemu.reference.scalar import Flag, Result, Rounding
from tests import mpfr_oracle as oracle
from tests.fp_operands import integers, structured, tuples
from tests.mpfr_oracle import Bits, Flags, Format

N = 250
PAIRS = [(next(g for g in scalar.FORMATS if g.name == f.name), f) for f in oracle.FORMATS]
BY_FORMAT = pytest.mark.parametrize("f, mf", PAIRS, ids=[f.name for _, f in PAIRS])
BY_MODE = pytest.mark.parametrize("mode", Rounding, ids=lambda m: m.name)

ARITHMETIC: dict[str, tuple[int, Callable[..., Result]]] = {
    "add": (2, scalar.add),
    "sub": (2, scalar.sub),
    "mul": (2, scalar.mul),
    "div": (2, scalar.div),
    "sqrt": (1, scalar.sqrt),
    "fma": (3, scalar.fma),
}
SELECTION = {"min": scalar.minimum_number, "max": scalar.maximum_number}
COMPARISON = {"eq": scalar.eq, "lt": scalar.lt, "le": scalar.le}


def agree(got: list[Result], expected: tuple[Bits, Flags], *operands: Bits) -> None:
    for i, (result, bits, flags) in enumerate(zip(got, *expected, strict=True)):
        right = (int(bits), int(flags))
        where = [hex(int(a[i])) for a in operands]
        assert (result.bits & (1 << 64) - 1, int(result.flags)) == right, where


def test_formats_are_the_same() -> None:
    assert len(PAIRS) == len(scalar.FORMATS)
    for f, mf in PAIRS:
        row = (f.exponent_bits, f.fraction_bits, f.canonical_nan, 8 * f.size)
        assert row == (mf.ebits, mf.mbits, mf.nan, mf.width)


@BY_FORMAT
@BY_MODE
@pytest.mark.parametrize("name", ARITHMETIC)
def test_arithmetic(name: str, mode: Rounding, f: scalar.Format, mf: Format) -> None:
    arity, fn = ARITHMETIC[name]
    operands = tuples(mf, arity, N if arity > 1 else 2 * N, mode)
    got = [fn(f, *args, mode) for args in zip(*(a.tolist() for a in operands), strict=True)]
    agree(got, oracle.arithmetic(name, mf, mode, *operands), *operands)


@BY_FORMAT
def test_selection_comparison_sign_and_class(f: scalar.Format, mf: Format) -> None:
    a, b = tuples(mf, 2, 4 * N, 9)
    edges = structured(mf)
    a, b = np.concatenate([a, edges]), np.concatenate([b, edges[::-1]])
    rows = list(zip(a.tolist(), b.tolist(), strict=True))
    for name, select in SELECTION.items():
        agree([select(f, x, y) for x, y in rows], oracle.select(name, mf, a, b), a, b)
    for name, compare in COMPARISON.items():
        agree([compare(f, x, y) for x, y in rows], oracle.compare(name, mf, a, b), a, b)
    for name in ("sgnj", "sgnjn", "sgnjx"):
        fn = getattr(scalar, name)
        assert [fn(f, x, y) for x, y in rows] == oracle.inject_sign(name, mf, a, b).tolist()
    assert [scalar.classify(f, x) for x in a.tolist()] == oracle.classify(mf, a).tolist()


@BY_FORMAT
@BY_MODE
def test_conversion_to_every_format(mode: Rounding, f: scalar.Format, mf: Format) -> None:
    (a,) = tuples(mf, 1, 2 * N, 20 + mode)
    for target, mtarget in PAIRS:
        got = [scalar.convert(f, target, x, mode) for x in a.tolist()]
        agree(got, oracle.convert(mf, mtarget, mode, a), a)


@BY_FORMAT
@BY_MODE
def test_integers(mode: Rounding, f: scalar.Format, mf: Format) -> None:
    (a,) = tuples(mf, 1, 2 * N, 40 + mode)
    kinds = [(width, signed) for width in (8, 16, 32, 64) for signed in (False, True)]
    for (width, signed), expected in zip(kinds, oracle.to_ints(mf, mode, a, kinds), strict=True):
        agree([scalar.to_int(f, x, width, signed, mode) for x in a.tolist()], expected, a)
    raw = integers(2 * N, 60 + mode)
    for values in (raw.tolist(), raw.view(np.int64).tolist()):
        got = [scalar.from_int(f, n, mode) for n in values]
        agree(got, oracle.from_int(mf, mode, values), raw)


@pytest.mark.parametrize("name", ["float16", "bfloat16"])
def test_16_bit_values_keep_themselves(name: str) -> None:
    f = next(g for g in scalar.FORMATS if g.name == name)
    for a in range(0, 1 << 16, 3):
        if scalar.classify(f, a) & 0x7E:  # finite
            v = scalar.value_of(f, a)
            bits = scalar.round_value(f, v).bits
            assert bits == a or (v == 0 and bits == 0)


def test_known_answers() -> None:
    """Worked by hand from the F chapter."""
    f16, bf16 = scalar.FLOAT16, scalar.BFLOAT16
    inf, qnan, snan = 0x7C00, 0x7E01, 0x7C01
    assert scalar.fma(f16, inf, 0, qnan) == (0x7E00, Flag.NV)
    assert scalar.add(f16, 0x8000, 0x0000) == (0x0000, 0)
    assert scalar.add(f16, 0x8000, 0x0000, Rounding.RDN) == (0x8000, 0)
    assert scalar.minimum_number(f16, 0x0000, 0x8000).bits == 0x8000
    assert scalar.maximum_number(f16, snan, 0x3C00) == (0x3C00, Flag.NV)
    assert scalar.to_int(f16, qnan, 32, True) == (2**31 - 1, Flag.NV)
    assert scalar.to_int(f16, 0xB800, 32, False) == (0, Flag.NX)  # -0.5 towards zero
    assert scalar.to_int(f16, 0xB800, 32, False, Rounding.RDN) == (0, Flag.NV)
    largest = 0x7F7FFFFF
    assert scalar.convert(scalar.FLOAT32, bf16, largest) == (0x7F80, Flag.OF | Flag.NX)
    # just below the smallest normal number: it rounds up to it, so it is not tiny
    smallest = Fraction(1, 2**14)
    assert scalar.round_value(f16, smallest * (1 - Fraction(1, 2**20))) == (0x0400, Flag.NX)
    below = smallest * (1 - Fraction(1, 2**12) - Fraction(1, 2**20))
    assert scalar.round_value(f16, below) == (0x0400, Flag.NX | Flag.UF)


def test_refusals() -> None:
    with pytest.raises(ArgumentError):
        scalar.value_of(scalar.FLOAT16, 0x7C00)
    with pytest.raises(ArgumentError):
        scalar.add(scalar.FLOAT16, 0x10000, 0)
