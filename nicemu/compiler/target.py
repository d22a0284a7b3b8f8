"""What compilers are told of a machine's cores: the extensions that code may use.

Owns: which of them matter to LLVM, which formats cores compute with and which they only hold, and
what an author is told where cores lack something.  How code is made is compile's affair.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace

from nicemu._core import extension_names
from nicemu.device.image import Formats, KernelImage
from nicemu.device.isa import provided
from nicemu.device.machine import MACHINES, Machine
from nicemu.device.machine import machine as machine_of
from nicemu.dtypes import Format, Item
from nicemu.errors import ImageError

__all__ = ["EVERY", "Target", "target_of"]

#: extensions whose instructions compilers choose
_CHOSEN = (
    "m", "a", "f", "d", "c", "v", "zfh", "zvfh", "zfbfmin", "zvfbfmin", "zvfbfwma", "zba", "zbb",
    "zbs", "zicond",
)  # fmt: skip
#: format -> what it takes to compute with it; in scalars alone, LLVM does not know how to narrow
#: some operations to bfloat16
_COMPUTED = {
    False: {"float16": {"zfh"}, "bfloat16": {"v"}},
    True: {"float16": {"zvfh"}, "bfloat16": {"zfbfmin", "zvfbfmin"}},
}
#: LLVM's names of what cores without M do not have
_PRODUCT = re.compile(r"__(mul|u?div|u?mod)[dt]i\d")


@dataclass(frozen=True)
class Target:
    """The cores of a machine, as compilers see them.  Equal where code is the same.

    Attributes:
        machine: its name, for messages.
        extensions: what its cores have, as nicemu.device.isa.provided names it.
    """

    machine: str = field(compare=False)
    extensions: tuple[str, ...]

    @property
    def features(self) -> str:
        """LLVM's features."""
        return ",".join(f"+{name}" for name in _CHOSEN if name in self.extensions)

    @property
    def vectors(self) -> bool:
        """Are there vectors?  Where not, loops take one item after the other."""
        return "v" in self.extensions

    @property
    def reals(self) -> bool:
        """Do they compute with float32 and float64?  Where not, integers do it."""
        return {"f", "d"} <= set(self.extensions)

    @property
    def fuses(self) -> bool:
        """Is a sum of bfloat16 in float32 one instruction?"""
        return {"zfbfmin", "zvfbfmin", "zvfbfwma"} <= set(self.extensions)

    def _computes(self, row: Format) -> bool:
        return _COMPUTED[self.vectors].get(row.name, set()) <= set(self.extensions)

    def _held(self, row: Format) -> Format:
        return row if self._computes(row) else replace(row, llvm=f"i{8 * row.size}")

    def formats(self, formats: Formats) -> Formats:
        """The same, those that cores do not compute with as integers of their bits."""

        def held(item: Item) -> Item:
            return Item(tuple((name, self._held(row)) for name, row in item.fields))

        return Formats(
            element=held(formats.element),
            accumulator=held(formats.accumulator),
            partial=held(formats.partial),
            result=held(formats.result),
        )

    def missing(self, symbol: str) -> str:
        """Why cores cannot do what LLVM would call a function for; "" where they have all."""
        if _PRODUCT.fullmatch(symbol):
            extension, what = "m", "multiplies or divides integers"
        else:
            extension, what = "d", f"uses {symbol} of float64"
        return "" if extension in self.extensions else f"it {what}, {self.without(extension)}"

    def check(self, image: KernelImage) -> None:
        """Cores have what an image needs.

        Raises:
            ImageError: they lack some of it.
        """
        if lacks := [said(x) for x in image.extensions if x not in self.extensions]:
            preset = self.machine in MACHINES and target_of(self.machine) == self
            by = repr(self.machine) if preset else "that Machine"
            raise ImageError(
                f"image of {image.op} needs {', '.join(lacks)}, which cores of {self.machine} lack:"
                f" make it for them, by machine={by}"
            )

    def without(self, extension: str) -> str:
        """``and cores of pspin have no f``."""
        return f"and cores of {self.machine} have no {said(extension)}"


def said(extension: str) -> str:
    """An extension as ISA strings name it."""
    return {"h16": "zfh or zfbfmin", "cd": "c with d"}.get(extension, extension)


#: cores that have everything
EVERY = Target("every machine", extension_names())


def target_of(machine: str | Machine | None) -> Target:
    """The cores of a machine; None: such that have everything.

    Raises:
        ArgumentError: there is no such preset, or its ISA string is none.
    """
    if machine is None:
        return EVERY
    row = machine_of(machine)
    return Target(row.name, provided(row.isa, row.vlen))
