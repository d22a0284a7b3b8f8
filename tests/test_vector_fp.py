"""The arithmetic of every vector FP row, in five rounding modes, against MPFR, flags included.

test_vector.py is about which elements; this is about what is computed: many operand tuples (the
cases of fp_vector.py), all 65,536 values where one f16 or bf16 number is converted, and the two
host paths against each other on far more than the oracle has time for.  NICEMU_FP_COUNT sets the
tuples per row, SEW and mode (default 400), NICEMU_VECTOR_ROUNDS the rounds of the comparison of
paths.
"""

from __future__ import annotations

import itertools
import os
import zlib

import numpy as np
import pytest

from nicemu._core import instructions
from tests import mpfr_oracle as oracle
from tests.encode import encode, vtype
from tests.fp_operands import tuples
from tests.fp_vector import (
    CAPACITY,
    CASES,
    PATHS,
    RUN,
    VD,
    Case,
    execute,
    hart,
    operand_fields,
    vlmax,
)
from tests.mpfr_oracle import BF16, F16, F32, MODES, RNE, Bits, Flags

COUNT = int(os.environ.get("NICEMU_FP_COUNT", "400"))
ROUNDS = int(os.environ.get("NICEMU_VECTOR_ROUNDS", "1"))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.label)
def test_against_mpfr(case: Case) -> None:
    assert not case.differences(case.operands(COUNT if case.sew > 8 else 256))


ALL16 = np.arange(1 << 16, dtype=np.uint64)
UNARY = [case for case in CASES if case.unary_16_bit]


@pytest.mark.parametrize("case", UNARY, ids=lambda case: case.label)
def test_all_values(case: Case) -> None:
    """Every f16 or bf16 number, one mode (the others are in test_against_mpfr)."""
    zero = np.zeros(1 << 16, np.uint64)
    mode = zlib.crc32(case.label.encode()) % 5
    assert not case.differences([ALL16, zero, zero], [mode])


OF_ONE = [
    case
    for case in CASES
    if case.fp.b is None and isinstance(case.fp.a, oracle.Format) and case.fp.over == "each"
]


@pytest.mark.parametrize("case", OF_ONE, ids=lambda case: case.label)
def test_a_signalling_nan_after_a_quiet_one(case: Case) -> None:
    """A loop that has met a NaN goes on in another way, which must raise the same flags."""
    assert isinstance(case.fp.a, oracle.Format)
    a = np.zeros(vlmax(case.sew), np.uint64)
    a[0], a[-1] = case.fp.a.nan, case.fp.a.inf | 1
    zero = np.zeros(len(a), np.uint64)
    assert not case.differences([a, zero, zero], [RNE])


@pytest.mark.parametrize("rm", MODES)
def test_all_values_back_to_bf16(rm: int) -> None:
    """Every bf16 number, as f32 and with something below its last place, rounded to bf16."""
    case = next(c for c in CASES if c.name == "vfncvtbf16.f.f.w")
    below = np.array([0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF], np.uint64)
    a = (ALL16[:: 1 if rm == RNE else 7, None] << np.uint64(16) | below).reshape(-1)
    a = a[: len(a) // vlmax(16) * vlmax(16)]
    zero = np.zeros(len(a), np.uint64)
    want, flags = narrow_bf16(a, rm)
    raised = np.bitwise_or.reduce(flags.reshape(-1, vlmax(16)), axis=1)
    for part in (slice(i, i + CAPACITY) for i in range(0, len(a), CAPACITY)):
        vectors = slice(part.start // vlmax(16), part.stop // vlmax(16))
        columns = [a[part], zero[part], zero[part]]
        assert not case.compare(rm, columns, vlmax(16), want[part], raised[vectors])


def narrow_bf16(a: Bits, rm: int) -> tuple[Bits, Flags]:
    """f32 to bf16 on integers: the neighbours below and above in magnitude, and which is meant.

    Written for this format, because MPFR is too slow for all of them; test_against_mpfr holds the
    two against each other.
    """
    magnitude, negative = a & np.uint64(0x7FFFFFFF), a >> np.uint64(31) == 1
    down, rest = magnitude >> np.uint64(16), magnitude & np.uint64(0xFFFF)
    half, odd = np.uint64(0x8000), down & np.uint64(1) == 1
    up = {
        0: (rest > half) | ((rest == half) & odd),
        1: np.zeros(len(a), bool),
        2: (rest > 0) & negative,
        3: (rest > 0) & ~negative,
        4: rest >= half,
    }[rm]
    bits = down + up
    inexact = rest > 0
    nan, finite = magnitude > 0x7F800000, magnitude < 0x7F800000
    overflow = finite & (bits >= 0x7F80)
    # below the smallest normal number, rounded with one more place there: 2^-134 steps
    fine, fine_rest = magnitude >> np.uint64(15), magnitude & np.uint64(0x7FFF)
    fine_half, fine_odd = np.uint64(0x4000), fine & np.uint64(1) == 1
    fine_up = {
        0: (fine_rest > fine_half) | ((fine_rest == fine_half) & fine_odd),
        1: np.zeros(len(a), bool),
        2: (fine_rest > 0) & negative,
        3: (fine_rest > 0) & ~negative,
        4: fine_rest >= fine_half,
    }[rm]
    tiny = inexact & (fine + fine_up < 0x0100)
    flags = np.where(inexact & finite, oracle.NX, 0) | np.where(overflow, oracle.OF, 0)
    flags |= np.where(tiny, oracle.UF, 0) | np.where(oracle.is_snan(F32, a), oracle.NV, 0)
    out = np.where(nan, np.uint64(0x7FC0), bits | negative.astype(np.uint64) << np.uint64(15))
    return out, flags.astype(np.uint8)


def test_narrow_bf16_is_mpfr() -> None:
    for rm in MODES:
        a = tuples(F32, 1, 3000, rm)[0]
        small = np.arange(0x007F0000, 0x00810000, 97, dtype=np.uint64)
        a = np.concatenate([a, small, small | np.uint64(0x80000000)])
        bits, flags = narrow_bf16(a, rm)
        want, raised = oracle.convert(F32, BF16, rm, a)
        assert np.array_equal(bits, want) and np.array_equal(flags, raised), rm


@pytest.mark.skipif(len(PATHS) < 2, reason="this machine has one host path")
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.label)
def test_paths_agree(case: Case) -> None:
    """Every host path, more operands than the oracle has time for: the same bits and flags."""
    # not a whole number of steps of a host path's loop
    vl = 1 if case.fp.over == "first" else RUN if case.scalar else vlmax(case.sew) - 3
    for rm, i in itertools.product(MODES, range(ROUNDS)):
        operands = case.operands(5 * RUN if vl == 1 else 5 * vl, 1 + rm + 5 * i)
        portable, *hosts = (execute(path, case, rm, vl, operands) for path in PATHS)
        for host in hosts:
            np.testing.assert_array_equal(portable[0], host[0])
            np.testing.assert_array_equal(portable[1], host[1])


@pytest.mark.parametrize("path", PATHS)
def test_scalars_must_be_boxed(path: str) -> None:
    """A badly boxed scalar is the canonical NaN of the format that is read."""
    one, box = 0x3F80, 0xFFFFFFFF00000000
    cases = (
        ("vfadd.vf", 16, F16),
        ("vfadd.vf", 32, F32),
        ("vfmv.v.f", 16, F16),
        ("vfmv.s.f", 16, F16),
        ("vfmerge.vfm", 32, F32),
        ("vfwmaccbf16.vf", 16, F32),
    )
    h = hart(path)
    for name, sew, kind in cases:
        row = next(r for r in instructions() if r.name == name)
        boxed = box | one if sew == 32 else box | 0xFFFF0000 | one
        for f, good in (
            (boxed, True),
            (one, False),
            (1 << 32 | one, False),
            (box >> 1 | one, False),
        ):
            h.set_csr("mstatus", 0x6600)
            h.set_csr("frm", 0)
            h.load(
                [
                    encode("vsetivli", rd=0, uimm=1, vtype=vtype(sew, "m1")),
                    encode(row.name, **operand_fields(row)),
                ]
            )
            h.v[:] = 0
            h.v[0] = 255
            h.f[10] = f
            h.step(3)
            got = int.from_bytes(h.v[VD, : kind.width // 8].tobytes(), "little")
            assert (got != kind.nan) == good, (name, hex(f), hex(got))
