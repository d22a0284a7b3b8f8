"""ISA strings, such as ``rv64gc_zba``: which extensions they name.

Owns: how the manual's chapter "ISA Extension Naming Conventions" writes them, and which extension
needs which other.  What exists is in csrc/ext.def.
"""

from __future__ import annotations

import re

from nicemu._core import extension_names
from nicemu.errors import ArgumentError

__all__ = ["extensions", "known"]

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
