"""Instruction words from mnemonics: the assembler of the tests.

Matches come from the core's own table; where the operands go is written here a second time, so
that the decoder is tested by it.  ``encode("fadd.h", rd=1, rs1=2, rs2=3, rm=0)``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from typing import NamedTuple

from nicemu._core import Insn, csrs, instructions

#: format of csrc/format.def -> placements ``operand[hi:lo]@position``: bits hi..lo of the operand
#: go to `position` and up.  Without brackets: a register, 5 bits; with ': x8..x15 in 3 bits.
#: Integer and FP registers: rd, rs1, rs2, rs3; vector registers: vd, vs1, vs2, vs3.
#: target: a pc-relative offset.  A leading - marks a signed operand.
PLACEMENTS: dict[str, str] = {
    "N": "",
    "R": "rd@7 rs1@15 rs2@20",
    "R1": "rd@7 rs1@15",
    "I": "rd@7 rs1@15 -imm[11:0]@20",
    "SH6": "rd@7 rs1@15 shamt[5:0]@20",
    "SH5": "rd@7 rs1@15 shamt[4:0]@20",
    "LD": "rd@7 rs1@15 -imm[11:0]@20",
    "ST": "rs2@20 rs1@15 -imm[11:5]@25 -imm[4:0]@7",
    "B": "rs1@15 rs2@20 -target[12:12]@31 -target[10:5]@25 -target[4:1]@8 -target[11:11]@7",
    "U": "rd@7 hi20[19:0]@12",
    "UPC": "rd@7 hi20[19:0]@12",
    "J": "rd@7 -target[20:20]@31 -target[10:1]@21 -target[11:11]@20 -target[19:12]@12",
    "FENCE": "pred[3:0]@24 succ[3:0]@20",
    "CSR": "rd@7 rs1@15 csr[11:0]@20",
    "CSRI": "rd@7 uimm[4:0]@15 csr[11:0]@20",
    "LR": "rd@7 rs1@15 aq[0:0]@26 rl[0:0]@25",
    "AMO": "rd@7 rs1@15 rs2@20 aq[0:0]@26 rl[0:0]@25",
    "FLD": "rd@7 rs1@15 -imm[11:0]@20",
    "FST": "rs2@20 rs1@15 -imm[11:5]@25 -imm[4:0]@7",
    "FR": "rd@7 rs1@15 rs2@20 rm[2:0]@12",
    "FRN": "rd@7 rs1@15 rs2@20",
    "F1": "rd@7 rs1@15 rm[2:0]@12",
    "F4": "rd@7 rs1@15 rs2@20 rs3@27 rm[2:0]@12",
    "FCMP": "rd@7 rs1@15 rs2@20",
    "FX": "rd@7 rs1@15 rm[2:0]@12",
    "FXN": "rd@7 rs1@15",
    "XF": "rd@7 rs1@15 rm[2:0]@12",
    "XFN": "rd@7 rs1@15",
    "CN": "",
    "CNOP": "",
    "CIW": "rd'@2 uimm[5:4]@11 uimm[9:6]@7 uimm[2:2]@6 uimm[3:3]@5",
    "CLW": "rd'@2 rs1'@7 imm[5:3]@10 imm[2:2]@6 imm[6:6]@5",
    "CLD": "rd'@2 rs1'@7 imm[5:3]@10 imm[7:6]@5",
    "CSW": "rs2'@2 rs1'@7 imm[5:3]@10 imm[2:2]@6 imm[6:6]@5",
    "CSD": "rs2'@2 rs1'@7 imm[5:3]@10 imm[7:6]@5",
    "CFLD": "rd'@2 rs1'@7 imm[5:3]@10 imm[7:6]@5",
    "CFSD": "rs2'@2 rs1'@7 imm[5:3]@10 imm[7:6]@5",
    "CI": "rd@7 -imm[5:5]@12 -imm[4:0]@2",
    "CIW0": "rd@7 -imm[5:5]@12 -imm[4:0]@2",
    "CLI": "rd@7 -imm[5:5]@12 -imm[4:0]@2",
    "CI16": "-imm[9:9]@12 -imm[4:4]@6 -imm[6:6]@5 -imm[8:7]@3 -imm[5:5]@2",
    "CLUI": "rd@7 -hi20[5:5]@12 -hi20[4:0]@2",
    "CSH": "rd@7 shamt[5:5]@12 shamt[4:0]@2",
    "CSHP": "rd'@7 shamt[5:5]@12 shamt[4:0]@2",
    "CANDI": "rd'@7 -imm[5:5]@12 -imm[4:0]@2",
    "CA": "rd'@7 rs2'@2",
    "CJ": "-target[11:11]@12 -target[4:4]@11 -target[9:8]@9 -target[10:10]@8 -target[6:6]@7"
    " -target[7:7]@6 -target[3:1]@3 -target[5:5]@2",
    "CB": "rs1'@7 -target[8:8]@12 -target[4:3]@10 -target[7:6]@5 -target[2:1]@3 -target[5:5]@2",
    "CLWSP": "rd@7 imm[5:5]@12 imm[4:2]@4 imm[7:6]@2",
    "CLDSP": "rd@7 imm[5:5]@12 imm[4:3]@5 imm[8:6]@2",
    "CSWSP": "rs2@2 imm[5:2]@9 imm[7:6]@7",
    "CSDSP": "rs2@2 imm[5:3]@10 imm[8:6]@7",
    "CFLDSP": "rd@7 imm[5:5]@12 imm[4:3]@5 imm[8:6]@2",
    "CFSDSP": "rs2@2 imm[5:3]@10 imm[8:6]@7",
    "CJR": "rs1@7",
    "CJALR": "rs1@7",
    "CMV": "rd@7 rs2@2",
    "CADD": "rd@7 rs2@2",
    "VSETVLI": "rd@7 rs1@15 vtype[10:0]@20",
    "VSETIVLI": "rd@7 uimm[4:0]@15 vtype[9:0]@20",
    "VSETVL": "rd@7 rs1@15 rs2@20",
    "VL": "vd@7 rs1@15 vm[0:0]@25",
    "VS": "vs3@7 rs1@15 vm[0:0]@25",
    "VV": "vd@7 vs1@15 vs2@20 vm[0:0]@25",
    "VX": "vd@7 rs1@15 vs2@20 vm[0:0]@25",
    "VI": "vd@7 -imm[4:0]@15 vs2@20 vm[0:0]@25",
    "VU": "vd@7 uimm[4:0]@15 vs2@20 vm[0:0]@25",
    "VF": "vd@7 rs1@15 vs2@20 vm[0:0]@25",
    "VVM": "vd@7 vs1@15 vs2@20",
    "VXM": "vd@7 rs1@15 vs2@20",
    "VIM": "vd@7 -imm[4:0]@15 vs2@20",
    "VFM": "vd@7 rs1@15 vs2@20",
    "VVA": "vd@7 vs1@15 vs2@20 vm[0:0]@25",
    "VXA": "vd@7 rs1@15 vs2@20 vm[0:0]@25",
    "VFA": "vd@7 rs1@15 vs2@20 vm[0:0]@25",
    "V2": "vd@7 vs2@20 vm[0:0]@25",
    "V2N": "vd@7 vs2@20",
    "VV0": "vd@7 vs1@15",
    "VX0": "vd@7 rs1@15",
    "VI0": "vd@7 -imm[4:0]@15",
    "VF0": "vd@7 rs1@15",
    "VMM": "vd@7 vs1@15 vs2@20",
    "VXN": "vd@7 rs1@15 vs2@20",
    "VIN": "vd@7 -imm[4:0]@15 vs2@20",
    "VD": "vd@7 vm[0:0]@25",
    "XV": "rd@7 vs2@20 vm[0:0]@25",
    "XVN": "rd@7 vs2@20",
    "FVN": "rd@7 vs2@20",
    # strided and indexed memory, which name a second register
    "VLS": "vd@7 rs1@15 rs2@20 vm[0:0]@25",
    "VSS": "vs3@7 rs1@15 rs2@20 vm[0:0]@25",
    "VLX": "vd@7 rs1@15 vs2@20 vm[0:0]@25",
    "VSX": "vs3@7 rs1@15 vs2@20 vm[0:0]@25",
    "VLN": "vd@7 rs1@15",
    "VSN": "vs3@7 rs1@15",
}
#: What an operand is when the caller does not say; others must be given.
DEFAULTS = {"rm": 7, "vm": 1, "aq": 0, "rl": 0, "pred": 15, "succ": 15, "imm": 0}

_PLACEMENT = re.compile(r"(-?)([a-z0-9]+)('?)(?:\[(\d+):(\d+)\])?@(\d+)")


class Field(NamedTuple):
    """Bits hi..lo of an operand at `position` of the word."""

    operand: str
    signed: bool
    prime: bool
    hi: int
    lo: int
    position: int


@cache
def fields(format_name: str) -> tuple[Field, ...]:
    """Where the operands of a format go."""
    out = []
    for text in PLACEMENTS[format_name].split():
        match = _PLACEMENT.fullmatch(text)
        assert match, text
        sign, name, prime, hi, lo, position = match.groups()
        width = 2 if prime else 4
        high, low = (int(hi), int(lo)) if hi else (width, 0)
        out.append(Field(name, bool(sign), bool(prime), high, low, int(position)))
    return tuple(out)


def limits(format_name: str) -> dict[str, range]:
    """The values that each operand of a format can have."""
    out: dict[str, range] = {}
    for name in dict.fromkeys(f.operand for f in fields(format_name)):  # in a fixed order
        parts = [f for f in fields(format_name) if f.operand == name]
        top = max(f.hi for f in parts)
        step = 1 << min(f.lo for f in parts)
        if parts[0].prime:
            out[name] = range(8, 16)
        elif parts[0].signed:
            out[name] = range(-(1 << top), 1 << top, step)
        else:
            out[name] = range(0, 2 << top, step)
    return out


@cache
def rows() -> dict[str, Insn]:
    """The instruction table by mnemonic."""
    return {row.name: row for row in instructions()}


def encode(name: str, **operands: int | str) -> int:
    """The word of one instruction (2 or 4 bytes: ``size``).

    Raises:
        KeyError: no such mnemonic.
        ValueError: an operand is missing, unknown or does not fit.
    """
    row = rows()[name]
    word = row.match
    allowed = limits(row.format)
    unknown = operands.keys() - allowed.keys()
    if unknown:
        raise ValueError(f"{name} has no operand {', '.join(sorted(unknown))}")
    values: dict[str, int] = {}
    for operand, legal in allowed.items():
        value = operands.get(operand, DEFAULTS.get(operand))
        if value is None:
            raise ValueError(f"{name} needs operand {operand}")
        if isinstance(value, str):
            value = csrs()[value]
        if row.format == "CLUI" and operand == "hi20" and value >= 0xFFFE0:
            value -= 1 << 20
        if value not in legal:
            raise ValueError(f"{name}: {operand}={value} does not fit, it is one of {legal}")
        values[operand] = value - 8 if legal == range(8, 16) else value
    for f in fields(row.format):
        piece = values[f.operand] >> f.lo & (1 << (f.hi - f.lo + 1)) - 1
        word |= piece << f.position
    return word


def size(word: int) -> int:
    """Bytes of the instruction that starts with this word."""
    return 4 if word & 3 == 3 else 2


def image(words: Iterable[int]) -> bytes:
    """Words as they lie in memory."""
    return b"".join(w.to_bytes(size(w), "little") for w in words)


def vtype(sew: int, lmul: str = "m1", *, ta: bool = True, ma: bool = True) -> int:
    """The vtype immediate, e.g. ``vtype(16, "mf2")``."""
    code = {"m1": 0, "m2": 1, "m4": 2, "m8": 3, "mf8": 5, "mf4": 6, "mf2": 7}[lmul]
    return ma << 7 | ta << 6 | (sew.bit_length() - 4) << 3 | code


def load_constant(rd: int, value: int) -> list[int]:
    """Instructions that put any 64-bit number into x[rd]."""
    value &= (1 << 64) - 1
    signed = value - (1 << 64) if value >> 63 else value
    if -2048 <= signed < 2048:
        return [encode("addi", rd=rd, rs1=0, imm=signed)]
    low = (value & 0xFFF) - (value << 1 & 0x1000)
    if -(1 << 31) <= signed < (1 << 31) - 2048:
        out = [encode("lui", rd=rd, hi20=(signed - low >> 12) & 0xFFFFF)]
        return [*out, encode("addiw", rd=rd, rs1=rd, imm=low)] if low else out
    out = [*load_constant(rd, (signed - low) >> 12), encode("slli", rd=rd, rs1=rd, shamt=12)]
    return [*out, encode("addi", rd=rd, rs1=rd, imm=low)] if low else out
