"""The scalar floating-point rows as cases for MPFR: operands, what must come out, how they run.

Each of ROWS runs in five rounding modes, by frm and by its own rm field, on every host path;
results, boxes and flags must all be those of the oracle.  Who compares: test_fp_scalar.py, and
tests/mpfr.py with as many operands as are asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import NamedTuple

import numpy as np

from tests import mpfr_oracle as oracle
from tests.encode import encode
from tests.fp_operands import integers, tuples
from tests.harts import DATA, Hart, simd_paths
from tests.mpfr_oracle import BF16, F16, F32, F64, MODES, Bits, Flags, Format

PATHS = simd_paths()
SCALAR = (F16, F32, F64)
DYNAMIC = 7
#: Operand tuples that the guest takes at once.
CAPACITY = 1 << 16

Oracle = Callable[..., tuple[Bits, Flags]]


class Row(NamedTuple):
    """One instruction: how its operands are made, how its result is read, what it must be."""

    name: str
    sources: tuple[Format | None, ...]  # None: an x register
    target: Format | None
    rounds: bool  # has an rm field
    expect: Oracle  # (rm, *operands) -> bits as in the target, flags
    exact: bool = False  # a conversion that never rounds

    @property
    def operation(self) -> str:
        """The mnemonic with f for the format of `column`: fadd.f, fcvt.w.f."""
        return ".".join("f" if p == self._format.suffix else p for p in self.name.split("."))

    @property
    def column(self) -> str:
        """The format computed in: that of the result, or of the operands."""
        return self._format.name

    @property
    def _format(self) -> Format:
        f = self.target or self.sources[0]
        assert f is not None
        return f

    def operands(self, n: int, seed: int = 0) -> list[Bits]:
        """n tuples as columns."""
        seed += sum(map(ord, self.name))
        if self.sources[0] is None:
            return [integers(n, seed)[:n]]
        return tuples(self.sources[0], len(self.sources), n, seed)

    @property
    def unary_16_bit(self) -> bool:
        """All operands can be tried."""
        return self.sources in ((F16,), (BF16,))

    def differences(self, operands: Sequence[Bits]) -> list[str]:
        """Compare in every rounding mode; a line for each result that is not the oracle's."""
        out: list[str] = []
        for at in range(0, len(operands[0]), CAPACITY):
            part = [a[at : at + CAPACITY] for a in operands]
            expected = None
            for mode in MODES:
                if expected is None or (self.rounds and not self.exact):
                    expected = self.expect(mode, *part)
                out += differences(self, mode, part, expected)
        return out


# ---- the rows ----------------------------------------


def _no_flags(bits: Bits) -> tuple[Bits, Flags]:
    return bits, np.zeros(len(bits), np.uint8)


def _negated(f: Format, a: Bits) -> Bits:
    return a ^ np.uint64(f.sign)


def sign_extended(width: int, a: Bits) -> Bits:
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
            return sign_extended(width, bits), flags  # words are sign-extended, unsigned ones too

        return expect

    def from_int(kind: str) -> Oracle:
        def expect(rm: int, a: Bits) -> tuple[Bits, Flags]:
            width, signed = INTEGERS[kind]
            low = a & np.uint64((1 << width) - 1)
            values = sign_extended(width, a).view(np.int64) if signed else low
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
            return _no_flags(sign_extended(width, a))

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


def differences(
    row: Row, mode: int, operands: Sequence[Bits], expected: tuple[Bits, Flags]
) -> list[str]:
    """What is not as expected, on every path and by every way to name the mode."""
    registers = [box(f, a) for f, a in zip(row.sources, operands, strict=True)]
    bits = box(row.target, expected[0])
    out = []
    for path in PATHS:
        for rm, frm in environments(row, mode):
            got, flags = execute(path, row, rm, frm, registers)
            for i in np.flatnonzero((got != bits) | (flags != expected[1])):
                of = " ".join(f"{a[i]:#x}" for a in operands)
                right = f"{bits[i]:#x} flags {expected[1][i]}"
                what = f"{got[i]:#x} flags {flags[i]}, right is {right}"
                out.append(f"{row.name} rm={rm} frm={frm} {path} of {of}: {what}")
    return out
