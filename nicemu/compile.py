"""From an op's functions to a kernel image: IR, optimiser, object, checks, cache.

Owns: the order of the stations and the check of the emitted object.  The functions come from a
front end, loops from kernels, LLVM is llvm's, the ABI is image's.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Hashable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Protocol

from nicemu import kernels, llvm, scalar
from nicemu.errors import ImageError, OpError
from nicemu.image import ABI_VERSION, Formats, KernelImage, cached
from nicemu.llvm import installed
from nicemu.scalar import ScalarFunction

__all__ = ["Source", "compile_image", "kernels_of"]


class Source(Protocol):
    """Where an op's functions come from."""

    def key(self) -> Hashable:
        """All that its functions depend on, hashable, of a stable repr; imports nothing heavy."""

    def functions(self, formats: Formats) -> Mapping[str, ScalarFunction]:
        """merge, and lift and finish where they are no plain conversions.

        Raises:
            OpError: they cannot be compiled.
        """


def _link(elf: bytes, what: str) -> tuple[bytes, dict[str, int]]:
    """Code and symbols of an object; refused when it is more than self-contained code."""
    from elftools.elf.elffile import ELFFile
    from elftools.elf.relocation import RelocationSection

    file: Any = ELFFile(io.BytesIO(elf))
    table = file.get_section_by_name(".symtab")
    missing = [s.name for s in table.iter_symbols() if s["st_shndx"] == "SHN_UNDEF" and s.name]
    if missing:
        raise OpError(f"{what}: {scalar.missing(missing[0])}")
    code = b""
    offsets: dict[str, int] = {}
    for index, section in enumerate(file.iter_sections()):
        if isinstance(section, RelocationSection) and section.num_relocations():
            first = next(section.iter_relocations())
            name = table.get_symbol(first["r_info_sym"]).name
            raise ImageError(f"{what}: its code needs {name or section.name!r} relocated: avoid it")
        if section["sh_flags"] & 2 and section["sh_size"] and section.name != ".text":
            raise OpError(f"{what}: it needs a table in memory: compute the values instead")
        if section.name == ".text":
            code = section.data()
            offsets = {
                s.name: s["st_value"]
                for s in table.iter_symbols()
                if s["st_shndx"] == index and s["st_info"]["type"] == "STT_FUNC"
            }
    return code, offsets


#: the modules of which the code of an image depends
_STATIONS = ("dtypes", "irmath", "kernels", "llvm", "python_ir", "scalar")


@cache
def _compiler() -> str:
    """A hash of the compiler itself, and the front end's version."""
    digest = hashlib.sha256()
    for station in _STATIONS:
        digest.update(Path(__file__).with_name(f"{station}.py").read_bytes())
    return f"{digest.hexdigest()} numba {installed('numba')}"


def kernels_of(
    name: str, source: Source, formats: Formats
) -> tuple[scalar.ScalarOp, str, dict[str, str]]:
    """The IR of an op: its functions, the kernels around them, and the symbol of each entry.

    Raises:
        OpError: the op cannot be compiled.
        ImageError: llvmlite or numba is missing.
    """
    op = scalar.scalar_op(name, source.functions(formats), formats)
    return (op, *kernels.kernels(op, formats))


def compile_image(name: str, source: Source, formats: Formats, preset: str) -> KernelImage:
    """The kernel image of an op, from the cache or newly built.

    Args:
        name: of the op.
        source: its functions.
        formats: what it is made for.
        preset: what the formats are called.

    Raises:
        OpError: the op cannot be compiled.
        ImageError: llvmlite or numba is missing, or LLVM's code is not self-contained.
    """

    def build() -> KernelImage:
        op, text, symbols = kernels_of(name, source, formats)
        code, offsets = _link(llvm.emit([op.ir, text], set(symbols.values()), name), name)
        return KernelImage(
            op=name,
            preset=preset,
            element=str(formats.element),
            accumulator=str(formats.accumulator),
            partial=str(formats.partial),
            result=str(formats.result),
            code=code,
            entries={entry: offsets[symbol] for entry, symbol in symbols.items()},
            statuses=op.statuses,
            notes=op.notes,
        )

    recipe = (ABI_VERSION, _compiler(), llvm.RECIPE, name, preset, str(formats), source.key())
    digest = hashlib.sha256(repr(recipe).encode()).hexdigest()
    return cached(f"{name}-{preset}-{digest[:32]}", build)
