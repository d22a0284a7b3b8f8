"""The way back from the core's own text to the word: ``assemble("fadd.h fa0, fa1, fa2, rtz")``.

Reads exactly what the disassembler writes, by the operand patterns of csrc/format.def; where the
operands go is in ``encode``.  No assembler of programs: no labels, no aliases.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache

from nicemu._core import Insn, csrs
from tests.encode import encode, rows, vtype

X = ["zero", "ra", "sp", "gp", "tp", "t0", "t1", "t2", "s0", "s1"]
X += [f"a{i}" for i in range(8)] + [f"s{i}" for i in range(2, 12)] + [f"t{i}" for i in range(3, 7)]
F = [f"ft{i}" for i in range(8)] + ["fs0", "fs1"] + [f"fa{i}" for i in range(8)]
F += [f"fs{i}" for i in range(2, 12)] + [f"ft{i}" for i in range(8, 12)]
MODES = ["rne", "rtz", "rdn", "rup", "rmm"]
#: The words of an operand pattern; "rm" and "vm" follow another operand without a separator.
OPERAND = re.compile(r"(?<=\w)[rv]m\b|[a-z][a-z0-9]*?(?=[rv]m\b)|[a-z][a-z0-9]*")
ORDERS = {"": (0, 0), ".aq": (1, 0), ".rl": (0, 1), ".aqrl": (1, 1)}

#: operand -> how it is written
SYNTAX = {
    **dict.fromkeys(("rd", "rs1", "rs2"), "|".join(X)),
    **dict.fromkeys(("frd", "frs1", "frs2", "frs3"), "|".join(F)),
    **dict.fromkeys(("vd", "vs1", "vs2", "vs3"), r"v\d+"),
    **dict.fromkeys(("imm", "uimm", "shamt"), r"-?\d+"),
    **dict.fromkeys(("hi20", "target"), "0x[0-9a-f]+"),
    "csr": "[a-z]\\w+|0x[0-9a-f]+",
    "rm": f"(?:, (?:{'|'.join(MODES)}))?",
    "vm": r"(?:, v0\.t)?",
    "vtype": r"e\d+,mf?\d,t[au],m[au]|\d+",
    "fence": "[iorw]*, [iorw]*",
}


def assemble(text: str, pc: int = 0) -> int:
    """The word that stands at pc when the core disassembles it as `text`.

    Raises:
        ValueError: it is no such text.
    """
    mnemonic, _, operands = text.partition(" ")
    row, values = _mnemonic(mnemonic)
    match = re.fullmatch(_pattern(row), operands)
    if match is None:
        raise ValueError(f"{text!r} is not of the form {row.name} {row.operands}")
    for name, written in match.groupdict().items():
        values.update(_values(name, written, pc))
    return encode(row.name, **values)


def _mnemonic(mnemonic: str) -> tuple[Insn, dict[str, int]]:
    if mnemonic in rows():
        row = rows()[mnemonic]
        return row, {"aq": 0, "rl": 0} if row.cls == "amo" else {}
    name, dot, order = mnemonic.rpartition(".")
    if name not in rows() or rows()[name].cls != "amo" or dot + order not in ORDERS:
        raise ValueError(f"no mnemonic {mnemonic!r}")
    aq, rl = ORDERS[dot + order]
    return rows()[name], {"aq": aq, "rl": rl}


@cache
def _pattern(row: Insn) -> str:
    """The row's operand pattern as a regular expression with a group per operand."""
    out, at = "", 0
    for word in OPERAND.finditer(row.operands):
        out += re.escape(row.operands[at : word.start()])
        syntax = SYNTAX.get(word[0])
        out += f"(?P<{word[0]}>{syntax})" if syntax else re.escape(word[0])  # sp, v0
        at = word.end()
    return out + re.escape(row.operands[at:])


def _values(name: str, written: str, pc: int) -> dict[str, int]:
    """The operands of ``encode`` that one operand of the text stands for."""
    numbers: dict[str, Callable[[str], int]] = {
        "hi20": lambda s: int(s, 16),
        "csr": lambda s: int(s, 16) if s.startswith("0x") else csrs()[s],
        "rm": lambda s: MODES.index(s[2:]) if s else 7,
        "vm": lambda s: int(not s),
        "target": lambda s: _signed(int(s, 16) - pc),
        "vtype": _vtype,
    }
    if name == "fence":
        pred, succ = written.split(", ")
        return {"pred": _letters(pred), "succ": _letters(succ)}
    if name in numbers:
        return {name: numbers[name](written)}
    if name.startswith("f"):
        return {name[1:]: F.index(written)}
    if name.startswith("v"):
        return {name: int(written[1:])}
    return {name: X.index(written) if written in X else int(written)}


def _signed(value: int) -> int:
    value &= (1 << 64) - 1
    return value - (1 << 64) if value >> 63 else value


def _letters(written: str) -> int:
    return sum(8 >> "iorw".index(c) for c in written)


def _vtype(written: str) -> int:
    if written.isdigit():
        return int(written)
    sew, lmul, tail, mask = written.split(",")
    return vtype(int(sew[1:]), lmul, ta=tail == "ta", ma=mask == "ma")
