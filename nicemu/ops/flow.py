"""Whether a handler decides by its data: where it goes on, which addresses it asks for, how many
elements it takes.

Owns: how data flow from payloads, accumulator and context through registers and stack, from one
instruction to the next, as the log of a call tells them.  A call in which no data decide goes the
same way, and asks for the same memory, whatever they are.  Running calls, and what follows for
their cycles, is steady's.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from nicemu._core import Cores, Insn, logged
from nicemu.device.image import CONTEXT_SIZE
from nicemu.device.nic import ARGUMENTS, CODE, SCRATCHPAD, STACK

__all__ = ["deciding"]

_ROLE = re.compile(r"\(?(?:frs[123]|rs[123]|frd|rd|vs[123]|vd|sp|v0)")
_NAME = re.compile(r"\b(?:zero|ra|sp|gp|tp|[ast]\d+|f[ast]\d+|v\d+)\b")
_ABI = ["zero", "ra", "sp", "gp", "tp", "t0", "t1", "t2", "s0", "s1"]
_ABI += [f"a{i}" for i in range(8)] + [f"s{i}" for i in range(2, 12)]
_ABI += [f"t{i}" for i in range(3, 7)]
_FLOAT = [f"ft{i}" for i in range(8)] + ["fs0", "fs1"] + [f"fa{i}" for i in range(8)]
_FLOAT += [f"fs{i}" for i in range(2, 12)] + [f"ft{i}" for i in range(8, 12)]
_NUMBERS = {name: f"x{i}" for i, name in enumerate(_ABI)}
_NUMBERS |= {name: f"f{i}" for i, name in enumerate(_FLOAT)}

VECTOR = "v"  # all vector registers, of which one that has data is never without again
FLAGS = ("fflags", "fcsr", "vxsat", "vcsr")  # CSRs that operations on data write
#: formats whose destination is a source, too
_BOTH = ("CI", "CI16", "CA", "CADD", "CANDI", "CSH", "CSHP")
_DIVISORS = ("div", "rem")  # classes of names: cycles by the divisor's leading zeros
_PARTS = 8  # bytes of the stack that have data, or have not


@dataclass(frozen=True)
class _Use:
    """What an instruction does with registers.

    Attributes:
        text: it, as assembly.
        sources: registers that what it writes comes from.
        decides: registers that decide where it goes, what it asks for, or how long it takes.
        flags: whether it reads what operations on data have left.
        whole: whether it stores all 8 bytes of a part of the stack.
    """

    text: str
    sources: frozenset[str]
    decides: frozenset[str]
    flags: bool
    whole: bool


def _registers(insn: Insn, text: str) -> list[tuple[str, str]]:
    """Role and register of each operand: x5, f3, or VECTOR."""
    wanted = insn.operands.split(", ") if insn.operands else []
    given = text.partition(" ")[2].split(", ")
    found: list[tuple[str, str]] = []
    for role, operand in zip(wanted, given, strict=False):
        names = _NAME.findall(operand)
        found += zip(_ROLE.findall(role), (_NUMBERS.get(n, VECTOR) for n in names), strict=False)
    return found + [("v0", VECTOR)] * ("v0.t" in given)


def _use(cores: Cores, insn: Insn, word: int) -> _Use:
    text, _ = cores.disasm(word, 0)
    roles = _registers(insn, text)
    both = insn.format in _BOTH
    sources = {name for role, name in roles if both or role not in ("rd", "frd")}
    decides = {name for role, name in roles if role[0] == "("}  # addresses
    if insn.cls in ("branch", "jump", "vset"):
        decides |= {name for role, name in roles if role in ("rs1", "rs2")}
    if insn.format in ("VLS", "VSS"):
        decides |= {name for role, name in roles if role == "rs2"}
    if insn.format in ("VLX", "VSX"):
        decides.add(VECTOR)
    if insn.name.startswith(_DIVISORS):
        decides |= {name for role, name in roles if role == "rs2"}
    return _Use(
        text,
        frozenset(sources - {"x0"}),
        frozenset(decides - {"x0"}),
        any(flag in text for flag in FLAGS),
        insn.name.removeprefix("c.") in ("sd", "sdsp", "fsd", "fsdsp"),
    )


class _Flow:
    """Registers and memory that have data, in the course of a call."""

    def __init__(self) -> None:
        self._has: set[str] = set()
        self._stack: set[int] = set()

    def _read(self, address: int) -> bool:
        if address >= STACK:
            return address // _PARTS in self._stack
        if address >= ARGUMENTS:
            return address % 4096 < CONTEXT_SIZE
        return address >= SCRATCHPAD

    def step(self, use: _Use, written: list[tuple[str, str, str]]) -> bool:
        """After an instruction that wrote these; True: data decided."""
        if use.decides & self._has:
            return True
        memory = [(int(value, 16), stored) for name, value, stored in written if name == "mem"]
        data = use.flags or bool(use.sources & self._has)
        data |= any(self._read(address) for address, stored in memory if not stored)
        for address, stored in memory:
            if stored and address >= STACK:
                if data:
                    self._stack.add(address // _PARTS)
                elif use.whole and address % _PARTS == 0:
                    self._stack.discard(address // _PARTS)
        for name in {VECTOR if name[0] == VECTOR else name for name, *_ in written} - {"mem"}:
            if data:
                self._has.add(name)
            elif name != VECTOR:
                self._has.discard(name)
        return False


def deciding(cores: Cores, log: bytes) -> str | None:
    """The first instruction of a call whose way depends on data; None: there is none.

    Args:
        cores: that ran it, as a Nic has them.
        log: of all its instructions: ``Cores.take_log``.

    Returns:
        Offset in code memory and text, as "0x1c: beqz a0, 0x8".
    """
    uses, flow = dict[int, _Use](), _Flow()
    for pc, word, _, written in logged(log):
        if pc not in uses:
            insn = cores.decode(word)
            assert insn is not None  # it has been executed
            uses[pc] = _use(cores, insn, word)
        if flow.step(uses[pc], written):
            return f"{pc - CODE:#x}: {uses[pc].text}"
    return None
