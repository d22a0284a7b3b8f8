"""ISA strings, such as ``rv64gc_zba``: which extensions they name.

Owns: how the manual's chapter "ISA Extension Naming Conventions" writes them, which extension needs
which other, and which code needs.  What exists is in csrc/ext.def.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from nicemu._core import Cores, Insn, extension_names, instructions
from nicemu.errors import ArgumentError

__all__ = ["Use", "extensions", "known", "provided", "uses"]

#: Names that stand for several.
SHORT = {"g": ("i", "m", "a", "f", "d", "zicsr", "zifencei"), "b": ("zba", "zbb", "zbs")}
#: What an extension needs, by the unprivileged manual.  Zvfh needs Zve32f and Zfhmin: of these the
#: cores have V and Zfh.
NEEDS = {
    "d": ("f",),
    "f": ("zicsr",),
    "v": ("d",),
    "zicntr": ("zicsr",),
    "zfh": ("f",),
    "zfbfmin": ("f",),
    "zvfh": ("v", "zfh"),
    "zvfbfmin": ("v",),
    "zvfbfwma": ("zvfbfmin", "zfbfmin"),
}
#: Rows of ext.def that no string names: there without being asked for.
IMPLICIT = {"priv", "h16", "cd"}


def known() -> tuple[str, ...]:
    """What may stand in an ISA string after rv64, in the order of ext.def, shorthands last."""
    return (*(name for name in extension_names() if name not in IMPLICIT), *SHORT)


def extensions(text: str, vlen: int) -> tuple[str, ...]:
    """The extensions that an ISA string switches on, those that they need included.

    After ``rv64`` come letters, ``i`` or ``g`` first, then names of several letters, each behind an
    underscore; upper and lower case are the same, and the order of the rest does not matter.
    ``zvl512b`` switches nothing: it asks for vector registers of so many bits at least.

    Args:
        text: the string.
        vlen: bits of a vector register.

    Returns:
        Names for ``Cores(extensions=)``, in the order of ext.def.

    Raises:
        ArgumentError: the string names something unknown or larger than vlen, or is no RV64
            string.
    """
    match = re.fullmatch(r"rv64([ig][a-y]*)((?:_?z[a-z0-9]+)?)((?:_[a-z0-9]+)*)", text.lower())
    if match is None:
        raise ArgumentError(f"isa {text!r} is no ISA string of RV64: use e.g. rv64imac_zicsr")
    letters, first, rest = match.groups()  # `first` may lack its underscore
    names = [*letters, *(name for name in f"{first}{rest}".split("_") if name)]
    on: set[str] = set()
    while names:
        name = names.pop()
        if length := re.fullmatch(r"zvl(32|64|128|256|512|1024)b", name):
            if int(length[1]) > vlen:
                raise ArgumentError(f"isa {text!r}: {name} is more than the {vlen} bits of --vlen")
            continue
        if name not in known():
            raise ArgumentError(
                f"isa {text!r}: extension {name!r} is unknown: use {', '.join(known())}"
            )
        if name not in on:
            names += SHORT.get(name, ()) + NEEDS.get(name, ())
            on.add(name)
    return tuple(name for name in extension_names() if name in on)


def provided(text: str | None, vlen: int) -> tuple[str, ...]:
    """What cores with an ISA string have, what is there without being named included.

    Args:
        text: the string; None: everything.
        vlen: bits of a vector register.

    Returns:
        Names as instructions have them (``Insn.extension``), in the order of ext.def.

    Raises:
        ArgumentError: see :func:`extensions`.
    """
    if text is None:
        return extension_names()
    on = {*extensions(text, vlen), "priv"}
    on |= {"h16"} if on & {"zfh", "zfbfmin"} else set()
    on |= {"cd"} if {"c", "d"} <= on else set()
    return tuple(name for name in extension_names() if name in on)


@dataclass(frozen=True)
class Use:
    """An instruction in code.

    Attributes:
        at: its offset.
        row: of the table.
        extension: that it needs, as :func:`provided` names it.
    """

    at: int
    row: Insn
    extension: str


_REAL = re.compile(r"vm?f(?!irst)")  # vector floating point
#: at 16 bits these have integers and float32, and only at 8 bits float16
_BY_INTEGERS = re.compile(r"vfwcvt\.f\.xu?\.v|vfncvt\.(rtz\.)?xu?\.f\.w")
_SET = {"vsetvli": 0x7FF, "vsetivli": 0x3FF}  # -> the bits of its vtype, from bit 20


def uses(code: bytes) -> tuple[list[Use], int | None]:
    """The instructions of code, one after the other from its beginning.

    Vector floating point that has float16 among its operands needs Zvfh; the width of elements is
    taken to be that of the vsetvli or vsetivli before them in the code.

    Returns:
        They, and the offset at which there is none that any cores have; None: there are no others.
    """
    words = np.frombuffer(code + bytes(2 + len(code) % 2), "<u2").astype(np.uint32)
    pairs = words[:-1] | words[1:] << 16
    rows = Cores().find(pairs)  # at every place where one could begin
    table, at, width = instructions(), 0, 64
    found: list[Use] = []
    while at < len(rows):
        if rows[at] < 0 or 2 * at + table[rows[at]].size > len(code):
            return found, 2 * at
        row = table[rows[at]]
        if bits := _SET.get(row.name):
            width = 8 << ((int(pairs[at]) >> 20 & bits) >> 3 & 7)
        half = (
            width <= (8 if _BY_INTEGERS.fullmatch(row.name) else 16)
            and row.extension == "v"
            and _REAL.match(row.name)
        )
        found.append(Use(2 * at, row, "zvfh" if half else row.extension))
        at += row.size // 2
    return found, None
