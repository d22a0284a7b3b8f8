"""The text of every row against an independent disassembler, Capstone (extra ``oracle``).

It is asked for real instructions, not aliases.  What is left between two ways of writing the same
thing is evened out by ``plain``; ``operands`` leaves out words that it rightly reads otherwise.
"""

from __future__ import annotations

import importlib.util
import random
import re

import pytest

from nicemu._core import Cores, Insn, instructions
from tests.encode import encode, limits
from tests.test_encode import some_operands

if importlib.util.find_spec("capstone") is None:
    pytest.skip("Capstone is not installed: pip install 'nicemu[oracle]'", allow_module_level=True)

import capstone

PC = 0x4000
SAMPLES = 40
MODES = (
    "RISCV64",
    *("RISCVC", "RISCV_C", "RISCV_A", "RISCV_FD", "RISCV_V", "RISCV_ZBA", "RISCV_ZBB", "RISCV_ZBS"),
)
#: Conversions that are always exact: the rounding mode is encoded and means nothing.  We write
#: what is encoded, Capstone leaves rne out, which is what assemblers encode there.
EXACT = {"fcvt.d.w", "fcvt.d.wu", "fcvt.d.s", "fcvt.s.h", "fcvt.d.h", "fcvt.s.bf16"}


@pytest.fixture(scope="module")
def other() -> capstone.Cs:
    mode = 0
    for name in MODES:
        mode |= getattr(capstone, f"CS_MODE_{name}")
    made = capstone.Cs(capstone.CS_ARCH_RISCV, mode)
    made.option(capstone.CS_OPT_SYNTAX, capstone.CS_OPT_SYNTAX_REAL)
    return made


def plain(text: str) -> str:
    """Numbers in decimal, no spaces, no dynamic rounding mode (assemblers' default)."""
    # "e" before a number: it writes the e16 of vsetivli as e0x10
    text = re.sub(r"(-?|\be)0x([0-9a-f]+)", lambda m: f"{m[1]}{int(m[2], 16)}", text)
    mnemonic, _, operands = text.strip().partition(" ")
    operands = operands.removesuffix(", dyn")
    if mnemonic in EXACT:
        operands = re.sub(r", (rne|rtz|rdn|rup|rmm)$", "", operands)
    return f"{mnemonic} {operands.replace(' ', '')}"


def operands(row: Insn, rng: random.Random) -> dict[str, int]:
    """As for the round trip, without what other extensions or the state of the hart decide."""
    values = some_operands(row, rng)
    # whole-register rows: a group of n registers that begins at no multiple of n is reserved
    whole = re.fullmatch(r"v(?:l|s|mv)(\d)r(?:e\d+)?\.v", row.name)
    for name in ("vd", "vs3", "vs2") if whole else ():
        if name in limits(row.format):
            values[name] -= values[name] % int(whole[1])
    if row.name == "ori" and values["rd"] == 0:  # hints, of which Zicbop (not here) names some
        values["imm"] |= 4
    return values


@pytest.mark.parametrize("row", instructions(), ids=lambda row: row.name)
def test_another_disassembler_agrees(row: Insn, other: capstone.Cs) -> None:
    cores = Cores()
    rng = random.Random(f"another {row.name}")
    for _ in range(SAMPLES):
        word = encode(row.name, **operands(row, rng))
        found = list(other.disasm(word.to_bytes(row.size, "little"), PC))
        text = [plain(f"{i.mnemonic} {i.op_str}") for i in found]
        assert text == [plain(cores.disasm(word, PC)[0])], hex(word)
