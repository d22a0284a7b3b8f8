"""Every scalar floating-point instruction, run by a hart from machine code, against MPFR.

The rows, and how they are compared, are in fp_scalar.py.  NICEMU_FP_COUNT sets the operand tuples
per row and mode (default 2,500).
"""

from __future__ import annotations

import ctypes
import ctypes.util
import os

import numpy as np
import pytest

from nicemu import _core
from tests.encode import encode
from tests.fp_operands import structured, tuples
from tests.fp_scalar import (
    CAPACITY,
    DYNAMIC,
    PATHS,
    RECORD,
    ROWS,
    SCALAR,
    Row,
    box,
    execute,
    guest,
    hart,
    sign_extended,
)
from tests.harts import DATA, Hart
from tests.mpfr_oracle import F16, F64, MODES, RNE

COUNT = int(os.environ.get("NICEMU_FP_COUNT", "2500"))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_against_mpfr(row: Row) -> None:
    assert not row.differences(row.operands(COUNT))


UNARY_16 = [row for row in ROWS if row.unary_16_bit and "fmv" not in row.name]


@pytest.mark.parametrize("row", UNARY_16, ids=lambda row: row.name)
def test_all_values_of_unary_16_bit_operations(row: Row) -> None:
    assert not row.differences([np.arange(1 << 16, dtype=np.uint64)])


def test_bf16_narrowing_of_every_upper_half() -> None:
    row = next(r for r in ROWS if r.name == "fcvt.bf16.s")
    low = np.random.default_rng(16).choice([0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF], 1 << 16)
    every = np.arange(1 << 16, dtype=np.uint64) << np.uint64(16)
    assert not row.differences([every | low.astype(np.uint64)])


F16_ROWS = [row for row in ROWS if row.rounds and F16 in row.sources and row.target is F16]


@pytest.mark.skipif(len(PATHS) < 2, reason="this host has one path only")
@pytest.mark.parametrize("row", F16_ROWS, ids=lambda row: row.name)
def test_host_path_of_f16_equals_integer_path(row: Row) -> None:
    """The double step through f32 or f64, on many more operands than MPFR has time for."""
    rng = np.random.default_rng(len(row.name))
    for mode in MODES:
        operands = tuples(F16, len(row.sources), CAPACITY, int(rng.integers(1 << 30)))
        registers = [box(F16, a) for a in operands]
        portable, *hosts = (execute(p, row, DYNAMIC, mode, registers) for p in PATHS)
        for host in hosts:
            np.testing.assert_array_equal(portable[0], host[0])
            np.testing.assert_array_equal(portable[1], host[1])


NARROW = [row for row in ROWS if "fmv" not in row.name and row.sources[0] not in (None, F64)]


@pytest.mark.parametrize("row", NARROW, ids=lambda row: row.name)
def test_badly_boxed_operands_read_as_canonical_nan(row: Row) -> None:
    """Upper bits that are not all ones; moves and 64-bit operands do not look at them."""
    n = 64
    operands = [a[:n] for a in row.operands(n)]
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
    for row in (row for row in ROWS if row.name.startswith("fmv.x")):
        width = row.sources[0].width if row.sources[0] else 64
        got, _ = execute(path, row, RNE, RNE, [raw])
        np.testing.assert_array_equal(got, sign_extended(width, raw))


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
