"""Instruction words from mnemonics and operands, by the rows of the instruction table.

Owns: where in a word the operands are.  There is no text to parse, and no labels: those are an
assembler's (clang).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache

import numpy as np

from nicemu._core import Insn, csrs, instructions
from nicemu.errors import ArgumentError

__all__ = ["code", "operands", "vtype", "word"]

#: registers -> their lowest bit in a word
_REGISTERS = {
    **dict.fromkeys(("rd", "frd", "vd", "vs3"), 7),
    **dict.fromkeys(("rs1", "frs1", "vs1"), 15),
    **dict.fromkeys(("rs2", "frs2", "vs2"), 20),
    "frs3": 27,
}
#: format, or operand where all formats have it alike -> parts of a number: from its bit, bits, to
_IMMEDIATES: dict[str, tuple[tuple[int, int, int], ...]] = {
    "ST": ((0, 5, 7), (5, 7, 25)),
    "FST": ((0, 5, 7), (5, 7, 25)),
    "B": ((11, 1, 7), (1, 4, 8), (5, 6, 25), (12, 1, 31)),
    "J": ((12, 8, 12), (11, 1, 20), (1, 10, 21), (20, 1, 31)),
    "imm": ((0, 12, 20),),
    "shamt": ((0, 6, 20),),
    "vtype": ((0, 11, 20),),
    "uimm": ((0, 5, 15),),
}
_DYNAMIC = 7 << 12  # rounding mode: that of frm
_UNMASKED = 1 << 25
#: the words of an operand pattern; "rm" and "vm" follow another operand without a separator
_OPERAND = re.compile(r"(?<=\w)[rv]m\b|[a-z][a-z0-9]*?(?=[rv]m\b)|[a-z][a-z0-9]*|(?<=\))[rv]m\b")


@cache
def _rows() -> dict[str, Insn]:
    return {row.name: row for row in instructions()}


def operands(row: Insn) -> list[str]:
    """What :func:`word` takes of a row of the table, by name, in its order."""
    names = _OPERAND.findall(row.operands) if row.format != "FENCE" else []
    return [name for name in names if name not in ("rm", "vm")]


def word(name: str, *values: int | str) -> int:
    """One instruction of 4 bytes.

    Args:
        name: mnemonic.
        values: of its operands, in the order of assembly: numbers of registers, immediates,
            offsets of targets from the instruction, names of CSRs.  Rounding is dynamic, and
            nothing is masked.

    Raises:
        ArgumentError: no such instruction, or not its operands.
    """
    row = _rows().get(name)
    if row is None or row.size != 4:
        raise ArgumentError(f"instruction {name!r} is unknown: use one of 4 bytes in insn.def")
    names = operands(row)
    if len(values) != len(names):
        raise ArgumentError(f"{name} with {len(values)} operands: use {name} {row.operands}")
    bits = row.match
    if row.operands.endswith("rm"):
        bits |= _DYNAMIC
    if row.operands.endswith("vm"):
        bits |= _UNMASKED
    for operand, value in zip(names, values, strict=True):
        if operand == "csr":
            bits |= csrs()[str(value)] << 20
        elif operand in _REGISTERS:
            bits |= int(value) << _REGISTERS[operand]
        else:
            for low, size, at in _IMMEDIATES.get(row.format) or _IMMEDIATES[operand]:
                bits |= (int(value) >> low & ((1 << size) - 1)) << at
    return bits


def vtype(sew: int, lmul: int) -> int:
    """The operand of vset for elements of ``sew`` bits in groups of ``lmul`` registers, ta, ma."""
    return 3 << 6 | (sew.bit_length() - 4) << 3 | (lmul.bit_length() - 1)


def code(words: Iterable[int]) -> bytes:
    """The words in memory."""
    return np.fromiter(words, np.uint32).astype("<u4").tobytes()
