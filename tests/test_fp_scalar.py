"""Every scalar floating-point instruction, run by a hart from machine code, against MPFR.

Each of ROWS runs in five rounding modes, by frm and by its own rm field, on every host path;
results, boxes and flags must all be those of the oracle.  NICEMU_FP_COUNT sets the operand tuples
per row and mode (default 2,500).
"""

from __future__ import annotations

import ctypes
import ctypes.util
import os
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache
from typing import NamedTuple

import numpy as np
import pytest

from nicemu import _core
from tests import mpfr_oracle as oracle
from tests.encode import encode
from tests.fp_operands import integers, structured, tuples
from tests.harts import DATA, Hart, simd_paths
from tests.mpfr_oracle import BF16, F16, F32, F64, MODES, RNE, Bits, Flags, Format

COUNT = int(os.environ.get("NICEMU_FP_COUNT", "2500"))
PATHS = simd_paths()
SCALAR = (F16, F32, F64)
DYNAMIC = 7
CAPACITY = max(1 << 16, COUNT)
#: operand tuples checked, by (mnemonic, rounding mode or "any")
CHECKED: Counter[tuple[str, int | str]] = Counter()

Oracle = Callable[..., tuple[Bits, Flags]]


class Row(NamedTuple):
    """One instruction: how its operands are made, how its result is read, what it must be."""

    name: str
    sources: tuple[Format | None, ...]  # None: an x register
    target: Format | None
    rounds: bool  # has an rm field
    expect: Oracle  # (rm, *operands) -> bits as in the target, flags
    exact: bool = False  # the same in every rounding mode


def checked() -> dict[str, int]:
    """Operand tuples checked so far by mnemonic: all modes together, whatever the path."""
    total: Counter[str] = Counter()
    for (name, _), n in CHECKED.items():
        total[name] += n
    return dict(total)


# ---- the rows ----------------------------------------


def _no_flags(bits: Bits) -> tuple[Bits, Flags]:
    return bits, np.zeros(len(bits), np.uint8)


def _negated(f: Format, a: Bits) -> Bits:
    return a ^ np.uint64(f.sign)


def _sign_extended(width: int, a: Bits) -> Bits:
    shift = np.uint64(64 - width)
    return ((a << shift).view(np.int64) >> shift.view(np.int64)).view(np.uint64)


def _arithmetic_rows(f: Format) -> list[Row]:
    s = f.suffix

    def fma(sign_a: bool, sign_c: bool) -> Oracle:
        def expect(rm: int, a: Bits, b: Bits, c: Bits) -> tuple[Bits, Flags]:
            a = _negated(f, a) if sign_a else a
            c = _negated(f, c) if sign_c else c
            return oracle.arithmetic("fma", f, rm, a, b, c)

        return expect

    def plain(op: str) -> Oracle:
        return lambda rm, *operands: oracle.arithmetic(op, f, rm, *operands)

    rows = [Row(f"f{op}.{s}", (f, f), f, True, plain(op)) for op in ("add", "sub", "mul", "div")]
    rows += [
        Row(f"fsqrt.{s}", (f,), f, True, plain("sqrt")),
        Row(f"fmadd.{s}", (f, f, f), f, True, fma(False, False)),
        Row(f"fmsub.{s}", (f, f, f), f, True, fma(False, True)),
        Row(f"fnmsub.{s}", (f, f, f), f, True, fma(True, False)),
        Row(f"fnmadd.{s}", (f, f, f), f, True, fma(True, True)),
    ]
    return rows


def _quiet_rows(f: Format) -> list[Row]:
    s = f.suffix

    def two(fn: Callable[..., tuple[Bits, Flags]], op: str) -> Oracle:
        return lambda rm, a, b: fn(op, f, a, b)

    rows = [Row(f"f{op}.{s}", (f, f), f, False, two(oracle.select, op)) for op in ("min", "max")]
    rows += [
        Row(f"f{op}.{s}", (f, f), None, False, two(oracle.compare, op)) for op in ("eq", "lt", "le")
    ]

    def inject(op: str) -> Oracle:
        return lambda rm, a, b: _no_flags(oracle.inject_sign(op, f, a, b))

    rows += [Row(f"f{op}.{s}", (f, f), f, False, inject(op)) for op in ("sgnj", "sgnjn", "sgnjx")]
    rows.append(
        Row(f"fclass.{s}", (f,), None, False, lambda rm, a: _no_flags(oracle.classify(f, a)))
    )
    return rows


#: suffix of the integer type: bits, signed
INTEGERS = {"w": (32, True), "wu": (32, False), "l": (64, True), "lu": (64, False)}


@cache
def _to_ints(f: Format, rm: int, raw: bytes) -> list[tuple[Bits, Flags]]:
    return oracle.to_ints(f, rm, np.frombuffer(raw, np.uint64), INTEGERS.values())


def _integer_rows(f: Format) -> list[Row]:
    def to_int(kind: str) -> Oracle:
        def expect(rm: int, a: Bits) -> tuple[Bits, Flags]:
            bits, flags = _to_ints(f, rm, a.tobytes())[list(INTEGERS).index(kind)]
            width = INTEGERS[kind][0]
            return _sign_extended(width, bits), flags  # words are sign-extended, unsigned ones too

        return expect

    def from_int(kind: str) -> Oracle:
        def expect(rm: int, a: Bits) -> tuple[Bits, Flags]:
            width, signed = INTEGERS[kind]
            low = a & np.uint64((1 << width) - 1)
            values = _sign_extended(width, a).view(np.int64) if signed else low
            return oracle.from_int(f, rm, values.tolist())

        return expect

    rows = []
    for kind in INTEGERS:
        rows.append(Row(f"fcvt.{kind}.{f.suffix}", (f,), None, True, to_int(kind)))
        rows.append(Row(f"fcvt.{f.suffix}.{kind}", (None,), f, True, from_int(kind)))
    return rows


def _conversion_rows() -> list[Row]:
    def convert(source: Format, target: Format) -> Row:
        name = f"fcvt.{target.suffix}.{source.suffix}"
        widens = source.mbits < target.mbits and source.ebits <= target.ebits

        def expect(rm: int, a: Bits) -> tuple[Bits, Flags]:
            return oracle.convert(source, target, rm, a)

        return Row(name, (source,), target, True, expect, exact=widens)

    pairs = [(a, b) for a in SCALAR for b in SCALAR if a is not b] + [(F32, BF16), (BF16, F32)]
    return [convert(a, b) for a, b in pairs]


def _move_rows() -> list[Row]:
    rows = []
    for f, s in ((F16, "h"), (F32, "w"), (F64, "d")):
        width = f.width

        def out(rm: int, a: Bits, width: int = width) -> tuple[Bits, Flags]:
            return _no_flags(_sign_extended(width, a))

        def into(rm: int, a: Bits, mask: int = f.mask) -> tuple[Bits, Flags]:
            return _no_flags(a & np.uint64(mask))

        rows.append(Row(f"fmv.x.{s}", (f,), None, False, out))
        rows.append(Row(f"fmv.{s}.x", (None,), f, False, into))
    return rows


ROWS = [row for f in SCALAR for row in _arithmetic_rows(f) + _quiet_rows(f) + _integer_rows(f)]
ROWS += _conversion_rows() + _move_rows()


# ---- the guest ----------------------------------------

RECORD = 5  # u64 words: three operands, the result, the flags


@cache
def hart(path: str) -> Hart:
    return Hart(simd=path, data_size=CAPACITY * RECORD * 8 + 4096)


def guest(row: Row, rm: int) -> list[int]:
    """A loop over records at a0, a1 of them, with frm = a2."""
    code = [encode("csrrw", rd=0, rs1=12, csr="frm")]
    operands: dict[str, int] = {}
    loop = len(code)
    for i, source in enumerate(row.sources):
        load = "ld" if source is None else "fld"
        code.append(encode(load, rd=5 + i, rs1=10, imm=8 * i))
        operands[f"rs{i + 1}"] = 5 + i
    if row.rounds:
        operands["rm"] = rm
    code.append(encode(row.name, rd=8, **operands))
    code.append(encode("sd" if row.target is None else "fsd", rs2=8, rs1=10, imm=24))
    code.append(encode("csrrw", rd=9, rs1=0, csr="fflags"))
    code.append(encode("sd", rs2=9, rs1=10, imm=32))
    code.append(encode("addi", rd=10, rs1=10, imm=8 * RECORD))
    code.append(encode("addi", rd=11, rs1=11, imm=-1))
    code.append(encode("bne", rs1=11, rs2=0, target=4 * (loop - len(code))))
    code.append(encode("jalr", rd=0, rs1=1))
    return code


def box(f: Format | None, a: Bits) -> Bits:
    return a | np.uint64((1 << 64) - 1 & ~f.mask) if f else a


def execute(
    path: str, row: Row, rm: int, frm: int, registers: Sequence[Bits]
) -> tuple[Bits, Flags]:
    """Results and flags of the instruction on register contents, by the hart."""
    h = hart(path)
    n = len(registers[0])
    records = h.array(0, n * RECORD, np.uint64).reshape(n, RECORD)
    for i, column in enumerate(registers):
        records[:, i] = column
    h.load(guest(row, rm))
    h.call(DATA, n, frm)
    return records[:, 3].copy(), records[:, 4].astype(np.uint8)


def environments(row: Row, mode: int) -> list[tuple[int, int]]:
    """(rm, frm) pairs that mean this rounding mode."""
    if not row.rounds:
        return [(DYNAMIC, mode)]
    return [(DYNAMIC, mode), (mode, mode), (mode, (mode + 1) % 5), (mode, DYNAMIC)]


def check(row: Row, mode: int, operands: Sequence[Bits], expected: tuple[Bits, Flags]) -> None:
    """Every path and every way to name the mode give these bits and flags."""
    registers = [box(f, a) for f, a in zip(row.sources, operands, strict=True)]
    bits = box(row.target, expected[0])
    for path in PATHS:
        for rm, frm in environments(row, mode):
            got, flags = execute(path, row, rm, frm, registers)
            wrong = np.flatnonzero((got != bits) | (flags != expected[1]))
            if len(wrong):
                i = wrong[0]
                pytest.fail(
                    f"{row.name} rm={rm} frm={frm} {path}: {len(wrong)} of {len(bits)} differ; "
                    f"of {[hex(int(a[i])) for a in operands]}: {int(got[i]):#x} flags {flags[i]}, "
                    f"right is {int(bits[i]):#x} flags {expected[1][i]}"
                )
    CHECKED[row.name, mode if row.rounds else "any"] += len(bits)


def operands_of(row: Row, n: int) -> list[Bits]:
    seed = sum(map(ord, row.name))
    if row.sources[0] is None:
        return [integers(n, seed)]
    return tuples(row.sources[0], len(row.sources), n, seed)


def modes_of(row: Row) -> tuple[int, ...]:
    return MODES if row.rounds else (RNE,)


def check_all_modes(row: Row, operands: Sequence[Bits]) -> None:
    expected = None
    for mode in modes_of(row):
        if expected is None or not row.exact:
            expected = row.expect(mode, *operands)
        check(row, mode, operands, expected)


# ---- the tests ----------------------------------------


def test_every_row_is_here() -> None:
    fp = {"f", "d", "zfh", "zfbfmin", "h16"}
    table = {r.name for r in _core.instructions() if r.extension in fp}
    memory = {"flh", "flw", "fld", "fsh", "fsw", "fsd"}
    assert table - memory == {row.name for row in ROWS}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_against_mpfr(row: Row) -> None:
    check_all_modes(row, operands_of(row, COUNT))


UNARY_16 = [row for row in ROWS if row.sources in ((F16,), (BF16,)) and "fmv" not in row.name]


@pytest.mark.parametrize("row", UNARY_16, ids=lambda row: row.name)
def test_all_values_of_unary_16_bit_operations(row: Row) -> None:
    check_all_modes(row, [np.arange(1 << 16, dtype=np.uint64)])


def test_bf16_narrowing_of_every_upper_half() -> None:
    row = next(r for r in ROWS if r.name == "fcvt.bf16.s")
    low = np.random.default_rng(16).choice([0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF], 1 << 16)
    check_all_modes(
        row, [np.arange(1 << 16, dtype=np.uint64) << np.uint64(16) | low.astype(np.uint64)]
    )


F16_ROWS = [row for row in ROWS if row.rounds and F16 in row.sources and row.target is F16]


@pytest.mark.skipif(len(PATHS) < 2, reason="this host has one path only")
@pytest.mark.parametrize("row", F16_ROWS, ids=lambda row: row.name)
def test_host_path_of_f16_equals_integer_path(row: Row) -> None:
    """The double step through f32 or f64, on many more operands than MPFR has time for."""
    rng = np.random.default_rng(len(row.name))
    for mode in MODES:
        operands = tuples(F16, len(row.sources), CAPACITY, int(rng.integers(1 << 30)))
        registers = [box(F16, a) for a in operands]
        portable, host = (execute(p, row, DYNAMIC, mode, registers) for p in PATHS)
        np.testing.assert_array_equal(portable[0], host[0])
        np.testing.assert_array_equal(portable[1], host[1])


NARROW = [row for row in ROWS if "fmv" not in row.name and row.sources[0] not in (None, F64)]


@pytest.mark.parametrize("row", NARROW, ids=lambda row: row.name)
def test_badly_boxed_operands_read_as_canonical_nan(row: Row) -> None:
    """Upper bits that are not all ones; moves and 64-bit operands do not look at them."""
    n = 64
    operands = [a[:n] for a in operands_of(row, n)]
    for bad in range(len(row.sources)):
        f = row.sources[bad]
        assert f is not None
        upper = np.uint64(1) << (f.width + np.arange(n, dtype=np.uint64) % (64 - f.width))
        registers = [box(g, a) for g, a in zip(row.sources, operands, strict=True)]
        registers[bad] = registers[bad] ^ upper
        seen = list(operands)
        seen[bad] = np.full(n, f.nan, np.uint64)
        bits, flags = row.expect(RNE, *seen)
        for path in PATHS:
            got = execute(path, row, RNE, RNE, registers)
            np.testing.assert_array_equal(got[0], box(row.target, bits), err_msg=row.name)
            np.testing.assert_array_equal(got[1], flags, err_msg=row.name)


@pytest.mark.parametrize("path", PATHS)
def test_moves_to_x_ignore_the_box(path: str) -> None:
    raw = np.array([0x1234_5678_9ABC_DEF0, 0xFFFF_FFFF_7FFF_8001], np.uint64)
    for row in _move_rows()[::2]:
        width = row.sources[0].width if row.sources[0] else 64
        got, _ = execute(path, row, RNE, RNE, [raw])
        np.testing.assert_array_equal(got, _sign_extended(width, raw))


@pytest.mark.parametrize("path", PATHS)
def test_flags_are_sticky(path: str) -> None:
    one, big, zero = 0x3C00, 0x7BFF, 0
    h = Hart(
        [
            encode("fdiv.h", rd=3, rs1=0, rs2=2),  # DZ
            encode("fadd.h", rd=4, rs1=1, rs2=1),  # OF, NX
            encode("fadd.h", rd=5, rs1=0, rs2=0),  # none
            encode("feq.h", rd=5, rs1=3, rs2=3),
            encode("csrrs", rd=6, rs1=0, csr="fcsr"),
            encode("jalr", rd=0, rs1=1),
        ],
        simd=path,
    )
    h.cores.set_csr("mstatus", 3 << 13)
    h.x[1] = 0x1000 + 20
    for register, value in enumerate((one, big, zero)):
        h.f[register] = 0xFFFF_FFFF_FFFF_0000 | value
    h.step(5)
    assert int(h.x[6]) == h.csr("fflags") == 8 | 4 | 1
    h.set_csr("fflags", 16)
    h.step(3)
    assert h.csr("fflags") == 16 | 8 | 4 | 1


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_invalid_rounding_modes_trap(row: Row, path: str) -> None:
    h = Hart(guest(row, DYNAMIC), simd=path)
    h.cores.set_csr("mstatus", 3 << 13)
    for frm in (5, 6, 7):
        h.x[10], h.x[11], h.x[12] = DATA, 1, frm
        stop = h.run(2 + len(row.sources))
        if row.rounds:
            assert (stop.reason, stop.cause) == (_core.FAULT, 2), row.name
        else:
            assert stop.reason == _core.BUDGET, row.name
    if row.rounds:
        for rm in (5, 6):
            operands = {f"rs{i + 1}": 1 for i in range(len(row.sources))}
            assert h.cores.decode(encode(row.name, rd=1, rm=rm, **operands)) is None


class FpEnv(ctypes.Structure):
    """glibc's fenv_t of x86-64."""

    _fields_ = (("x87", ctypes.c_uint32 * 7), ("mxcsr", ctypes.c_uint32))


def _libm() -> ctypes.CDLL | None:
    name = ctypes.util.find_library("m")
    return ctypes.CDLL(name) if name else None


@pytest.mark.skipif(
    os.uname().machine != "x86_64" or _libm() is None, reason="needs x86-64's fenv_t"
)
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("control", [0x0000, 0x2000, 0x4000, 0x6000, 0x8040, 0xE040])
def test_host_environment_does_not_matter_and_is_kept(path: str, control: int) -> None:
    """The caller's rounding mode, FTZ and DAZ change no bit, and stay as they were."""
    libm = _libm()
    assert libm is not None
    cases = []
    for f in SCALAR:
        row = next(r for r in ROWS if r.name == f"fmul.{f.suffix}")
        edges = structured(f)
        rng = np.random.default_rng(1)
        operands = [rng.permutation(edges), rng.permutation(edges)]
        for mode in MODES:
            cases.append((row, mode, operands, row.expect(mode, *operands)))
    saved, ours, after = FpEnv(), FpEnv(), FpEnv()
    for row, mode, operands, (bits, flags) in cases:
        registers = [box(f, a) for f, a in zip(row.sources, operands, strict=True)]
        h = hart(path)
        n = len(bits)
        records = h.array(0, n * RECORD, np.uint64).reshape(n, RECORD)
        for i, column in enumerate(registers):
            records[:, i] = column
        h.load(guest(row, DYNAMIC))
        libm.fegetenv(ctypes.byref(saved))
        ctypes.memmove(ctypes.byref(ours), ctypes.byref(saved), ctypes.sizeof(FpEnv))
        ours.mxcsr = 0x1F80 | control | 0x10  # with one sticky flag of its own
        libm.fesetenv(ctypes.byref(ours))
        try:
            h.call(DATA, n, mode)
        finally:
            libm.fegetenv(ctypes.byref(after))
            libm.fesetenv(ctypes.byref(saved))
        assert after.mxcsr == ours.mxcsr
        np.testing.assert_array_equal(records[:, 3], box(row.target, bits))
        np.testing.assert_array_equal(records[:, 4], flags)


def test_counts() -> None:
    """Every row was compared with MPFR, in each mode it has."""
    for row in ROWS:
        for mode in modes_of(row):
            operands = operands_of(row, 8)
            key = (row.name, mode if row.rounds else "any")
            if not CHECKED[key]:  # this test runs alone
                check(row, mode, operands, row.expect(mode, *operands))
    assert set(checked()) == {row.name for row in ROWS}
    assert min(checked().values()) > 0
