"""The arithmetic of every vector FP row, in five rounding modes, against MPFR, flags included.

test_vector.py is about which elements; this is about what is computed: many operand tuples, all
65,536 values where one f16 or bf16 number is converted, and the two host paths against each other
on far more than the oracle has time for.  NICEMU_FP_COUNT sets the tuples per row, SEW and mode
(default 400), NICEMU_VECTOR_ROUNDS the rounds of the comparison of paths.
"""

from __future__ import annotations

import itertools
import os
import zlib
from collections.abc import Iterator
from functools import cache

import numpy as np
import pytest

from nicemu import _core
from nicemu._core import Insn, instructions
from tests import mpfr_oracle as oracle
from tests import vector_model as model
from tests.encode import encode, limits, vtype
from tests.fp_operands import integers, tuples
from tests.harts import Hart, simd_paths
from tests.mpfr_oracle import BF16, F16, F32, MODES, RNE, Bits, Flags, Format

COUNT = int(os.environ.get("NICEMU_FP_COUNT", "400"))
ROUNDS = int(os.environ.get("NICEMU_VECTOR_ROUNDS", "1"))
PATHS = simd_paths()
VLEN = 1024
VD, VS2, VS1 = 8, 16, 24
ROWS = tuple(row for row in instructions() if model.is_fp(row.name))
CASES = [(row, sew) for row in ROWS for sew in model.SEWS if model.fp_row(row.name, sew)]


@cache
def hart(path: str) -> Hart:
    return Hart(simd=path, vlen=VLEN)


def operands_of(row: Insn) -> dict[str, int]:
    given = {"vd": VD, "vs2": VS2, "vs1": VS1, "rs1": 10, "vm": 1}
    return {k: v for k, v in given.items() if k in limits(row.format)}


def put(h: Hart, reg: int, kind: Format | int, values: Bits) -> None:
    raw = values.astype(f"<u{model.width_of(kind) // 8}").view(np.uint8)
    h.v.reshape(-1)[reg * VLEN // 8 :][: len(raw)] = raw


def get(h: Hart, kind: Format | int, n: int) -> Bits:
    if kind == 1:
        bits = np.unpackbits(h.v[VD : VD + 8].reshape(-1), bitorder="little")
        return bits[:n].astype(np.uint64)
    width = model.width_of(kind) // 8
    raw = h.v.reshape(-1)[VD * VLEN // 8 :][: n * width]
    return raw.view(f"<u{width}").astype(np.uint64)


def run(path: str, row: Insn, sew: int, rm: int, a: Bits, b: Bits, d: Bits) -> tuple[Bits, int]:
    """One instruction over at most VLMAX elements (LMUL 4): results and the flags they raised."""
    h, fp, n = hart(path), model.fp_row(row.name, sew), len(a)
    assert fp is not None
    h.set_csr("mstatus", 0x6600)
    h.set_csr("frm", rm)
    h.load(
        [
            encode("vsetvli", rd=5, rs1=6, vtype=vtype(sew, "m4")),
            encode(row.name, **operands_of(row)),
        ]
    )
    h.x[6] = n
    if fp.a is not None:
        put(h, VS2, fp.a, a)
    if fp.b is not None:
        put(h, VS1, fp.b, b)
        h.f[10] = int(b[0]) | (1 << 64) - (1 << fp.b.width)
    if fp.reads_d:
        put(h, VD, fp.d, d)
    h.set_csr("fflags", 0)
    stop = h.step(n + 1)
    assert stop.reason == _core.BUDGET and stop.elements == n, stop
    return get(h, fp.d, n), h.csr("fflags")


def vlmax(sew: int) -> int:
    return 4 * VLEN // sew


def columns(row: Insn, sew: int, n: int, seed: int) -> list[Bits]:
    """n values each of vs2, vs1 and vd in the formats of the row."""
    fp = model.fp_row(row.name, sew)
    assert fp is not None
    kinds = [fp.a, fp.b, fp.d if fp.reads_d else None]
    out = []
    for i, kind in enumerate(kinds):
        if isinstance(kind, int):
            out.append(integers(n, seed)[:n] & np.uint64((1 << kind) - 1))
        elif kind is None:
            out.append(np.zeros(n, np.uint64))
        else:
            same = [k for k in kinds if isinstance(k, Format)]
            related = len(set(same)) == 1
            arity = len(same) if related else 1
            column = tuples(kind, arity, n, seed if related else seed + i)
            out.append(column[min(i, arity - 1)][:n])
    if row.format in ("VF", "VFA", "VF0"):  # one scalar for many elements
        out[1] = np.repeat(out[1][:: vlmax(sew)], vlmax(sew))[:n]
    return out


def chunks(sew: int, n: int) -> Iterator[slice]:
    for at in range(0, n, vlmax(sew)):
        yield slice(at, min(at + vlmax(sew), n))


def compare(row: Insn, sew: int, rm: int, a: Bits, b: Bits, d: Bits) -> None:
    """Results against the oracle's; flags are those of a whole vector, then of single elements."""
    fp = model.fp_row(row.name, sew)
    assert fp is not None
    bits, flags = fp.lanes(rm, a, b, d)
    mask = (1 << model.width_of(fp.d)) - 1
    bits = bits & np.uint64(mask)
    for path, part in itertools.product(PATHS, list(chunks(sew, len(a)))):
        got, raised = run(path, row, sew, rm, a[part], b[part], d[part])
        wrong = np.flatnonzero(got != bits[part])
        where = f"{row.name} e{sew} rm {rm} {path}"
        if len(wrong):
            i = part.start + int(wrong[0])
            text = f"{a[i]:#x} {b[i]:#x} {d[i]:#x}: {got[wrong[0]]:#x}, not {bits[i]:#x}"
            pytest.fail(f"{where}: {text}")
        assert raised == int(np.bitwise_or.reduce(flags[part])), where


def compare_flags(row: Insn, sew: int, rm: int, a: Bits, b: Bits, d: Bits) -> None:
    """Elements sorted by the flags they raise, so that no other element hides a flag."""
    fp = model.fp_row(row.name, sew)
    assert fp is not None
    _, flags = fp.lanes(rm, a, b, d)
    scalar = row.format in ("VF", "VFA", "VF0")
    for value in np.unique(flags):
        chosen = np.flatnonzero(flags == value)
        if scalar:  # those of one scalar
            chosen = chosen[b[chosen] == b[chosen[0]]]
        chosen = chosen[: vlmax(sew)]
        for path in PATHS:
            _, raised = run(path, row, sew, rm, a[chosen], b[chosen], d[chosen])
            assert raised == value, f"{row.name} e{sew} rm {rm} {path}: {raised}, not {value}"


@pytest.mark.parametrize(("row", "sew"), CASES, ids=lambda p: getattr(p, "name", f"e{p}"))
def test_against_mpfr(row: Insn, sew: int) -> None:
    seed = zlib.crc32(row.name.encode()) + sew
    rounds = not row.cls.endswith("misc")
    n = COUNT if sew > 8 else 256
    for rm in MODES if rounds else (RNE,):
        a, b, d = columns(row, sew, n, seed + rm)
        compare(row, sew, rm, a, b, d)
        compare_flags(row, sew, rm, a, b, d)


ALL16 = np.arange(1 << 16, dtype=np.uint64)
UNARY = [
    (row, sew)
    for row, sew in CASES
    if (fp := model.fp_row(row.name, sew)) and fp.b is None and fp.a in (F16, BF16)
]


@pytest.mark.parametrize(("row", "sew"), UNARY, ids=lambda p: getattr(p, "name", f"e{p}"))
def test_all_values(row: Insn, sew: int) -> None:
    """Every f16 or bf16 number, one mode (the others are in test_against_mpfr)."""
    rm = zlib.crc32(row.name.encode()) % 5 if ROUNDS == 1 else RNE
    zero = np.zeros(1 << 16, np.uint64)
    compare(row, sew, rm, ALL16, zero, zero)


@pytest.mark.parametrize("rm", MODES)
def test_all_values_back_to_bf16(rm: int) -> None:
    """Every bf16 number, as f32 and with something below its last place, rounded to bf16."""
    row = next(r for r in ROWS if r.name == "vfncvtbf16.f.f.w")
    below = np.array([0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF], np.uint64)
    a = (ALL16[:: 1 if rm == RNE else 7, None] << np.uint64(16) | below).reshape(-1)
    want, flags = narrow_bf16(a, rm)
    zero = np.zeros(vlmax(16), np.uint64)
    for path, part in itertools.product(PATHS, list(chunks(16, len(a)))):
        got, raised = run(path, row, 16, rm, a[part], zero[: len(a[part])], zero[: len(a[part])])
        assert np.array_equal(got, want[part]), (path, rm, hex(int(a[part][got != want[part]][0])))
        assert raised == int(np.bitwise_or.reduce(flags[part])), (path, rm)


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


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_paths_agree(row: Insn) -> None:
    """Both host paths, more operands than the oracle has time for: the same bits and flags."""
    if len(PATHS) < 2:
        pytest.skip("this machine has one host path")
    for sew, rm in itertools.product(model.SEWS, (0, 1, 2, 3)):
        if model.fp_row(row.name, sew) is None:
            continue
        for i in range(ROUNDS):
            seed = zlib.crc32(row.name.encode()) + 8 * sew + rm + 1000 * (i + 1)
            a, b, d = columns(row, sew, 5 * vlmax(sew) - 3, seed)
            for part in chunks(sew, len(a)):
                first, second = (run(p, row, sew, rm, a[part], b[part], d[part]) for p in PATHS)
                assert np.array_equal(first[0], second[0]) and first[1] == second[1], (sew, rm)


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
                    encode(row.name, **operands_of(row)),
                ]
            )
            h.v[:] = 0
            h.v[0] = 255
            h.f[10] = f
            h.step(3)
            got = int(get(h, kind, 1)[0])
            assert (got != kind.nan) == good, (name, hex(f), hex(got))
