"""From an op's functions to a kernel image: IR, optimiser, object, checks, cache.

Owns: the order of the stations and the check of the emitted object.  The functions come from a
front end, loops from kernels, LLVM is llvm's, the ABI is image's.
"""

from __future__ import annotations

import hashlib
import io
import linecache
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import numpy as np

from nicemu import kernels, llvm, scalar
from nicemu._core import Cores, instructions
from nicemu.errors import OpError
from nicemu.image import ABI_VERSION, Formats, KernelImage, cached
from nicemu.lines import with_lines
from nicemu.llvm import installed
from nicemu.scalar import ScalarFunction

__all__ = [
    "Code",
    "FunctionSource",
    "Source",
    "compile_functions",
    "compile_image",
    "decoded",
    "kernels_of",
    "linked",
    "source_lines",
]


@dataclass(frozen=True)
class Code:
    """What an image holds besides its formats: see nicemu.image.KernelImage."""

    code: bytes
    entries: Mapping[str, int]
    statuses: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


class Source(Protocol):
    """Where an op's code comes from."""

    @property
    def finishes(self) -> bool:
        """Is it known to have a finish, before any of it is compiled?"""

    def key(self) -> Hashable:
        """All that its functions depend on, hashable, of a stable repr; imports nothing heavy."""

    def code(self, formats: Formats) -> Code:
        """The code of its image.

        Raises:
            OpError: it cannot be compiled.
        """

    def lines(self, formats: Formats, code: bytes) -> Mapping[int, str]:
        """Offset of an instruction in the image's code -> the line of source it is of."""


class FunctionSource(Source, Protocol):
    """An op that consists of functions over single items."""

    def functions(self, formats: Formats, lines: bool = False) -> Mapping[str, ScalarFunction]:
        """merge, and lift and finish where they are no plain conversions.

        Args:
            formats: what they are made for.
            lines: whether instructions say, as ``!dbg``, which line of source they are of.

        Raises:
            OpError: they cannot be compiled.
        """


#: where in the source something is, for messages: of an offset in the code, or None
Place: TypeAlias = Callable[[int | None], str]


def linked(elf: bytes, place: Place) -> tuple[bytes, dict[str, int]]:
    """Code of an object, and the offsets of its symbols.

    Raises:
        OpError: it is more than code that stands alone.
    """
    from elftools.elf.elffile import ELFFile

    file: Any = ELFFile(io.BytesIO(elf))
    table = file.get_section_by_name(".symtab")
    moved: dict[str, int] = {}
    if relocations := file.get_section_by_name(".rela.text"):
        for row in relocations.iter_relocations():
            moved.setdefault(table.get_symbol(row["r_info_sym"]).name, row["r_offset"])
    for symbol in table.iter_symbols():
        if symbol["st_shndx"] == "SHN_UNDEF" and symbol.name:
            raise OpError(f"{place(moved.get(symbol.name))}: {scalar.missing(symbol.name)}")
    for section in file.iter_sections():
        if section["sh_flags"] & 2 and section["sh_size"] and section.name != ".text":
            raise OpError(f"{place(None)}: it needs a table in memory: compute the values instead")
    if moved:
        name, offset = next(iter(moved.items()))
        raise OpError(f"{place(offset)}: its code needs {name!r} relocated: avoid it")
    index = file.get_section_index(".text")
    offsets = {
        symbol.name: symbol["st_value"]
        for symbol in table.iter_symbols()
        if symbol["st_shndx"] == index and symbol.name and symbol.name[0] not in ".$"
    }
    return file.get_section(index).data(), offsets


def decoded(code: bytes, place: Place) -> list[tuple[int, str]]:
    """Offset and name of every instruction.

    Raises:
        OpError: the cores do not have one.
    """
    cores, at, found = Cores(), 0, []
    words = np.frombuffer(code + bytes(2), "<u2").astype(np.uint32)
    rows = cores.find(words[:-1] | words[1:] << 16)  # at every place where one could begin
    table = instructions()
    while at < len(rows):
        if rows[at] < 0:
            word = int.from_bytes(code[2 * at : 2 * at + 4], "little")
            raise OpError(
                f"{place(2 * at)}: {word:#010x} at {2 * at:#x} is no instruction of the cores: use "
                "one that they have"
            )
        row = table[rows[at]]
        found.append((2 * at, row.name))
        at += row.size // 2
    return found


#: whole registers are stored only where there are too few of them
_SPILLS = {"vs1r.v", "vs2r.v", "vs4r.v", "vs8r.v"}
MOST_HALVINGS = 3  # LMUL 8 to 1


def _spilling(code: bytes, offsets: Mapping[str, int], place: Place) -> set[str]:
    """Functions that keep vectors in memory for want of registers."""
    starts = sorted((at, name) for name, at in offsets.items())
    spills = [at for at, name in decoded(code, place) if name in _SPILLS]
    return {max(s for s in starts if s[0] <= at)[1] for at in spills}


#: the modules of which the code of an image depends
_STATIONS = ("c_ir", "compile", "dtypes", "irmath", "kernels", "llvm", "python_ir", "scalar")


@cache
def _compiler() -> str:
    """A hash of the compiler itself, and the front end's version."""
    digest = hashlib.sha256()
    for station in _STATIONS:
        digest.update(Path(__file__).with_name(f"{station}.py").read_bytes())
    return f"{digest.hexdigest()} numba {installed('numba')}"


def kernels_of(
    name: str, source: FunctionSource, formats: Formats
) -> tuple[scalar.ScalarOp, str, dict[str, str]]:
    """The IR of an op: its functions, the kernels around them, and the symbol of each entry.

    Raises:
        OpError: the op cannot be compiled.
        ImageError: llvmlite or numba is missing.
    """
    op = scalar.scalar_op(name, source.functions(formats), formats)
    return (op, *kernels.kernels(op, formats, {}))


def compile_functions(name: str, source: FunctionSource, formats: Formats) -> Code:
    """The code of an op that consists of functions.

    Raises:
        OpError: the op cannot be compiled.
        ImageError: llvmlite or numba is missing.
    """
    op, text, symbols = kernels_of(name, source, formats)
    code, offsets, _ = _fitted(name, op, text, symbols, formats)
    entries = {entry: offsets[symbol] for entry, symbol in symbols.items()}
    return Code(code, entries, op.statuses, op.notes)


def _fitted(
    name: str, op: scalar.ScalarOp, text: str, symbols: Mapping[str, str], formats: Formats
) -> tuple[bytes, dict[str, int], str]:
    """Code of kernels whose vectors are as long as registers allow, its symbols, and their IR."""
    halvings: dict[str, int] = {}
    while True:
        elf = llvm.emit([op.ir, text], set(symbols.values()), name)
        code, offsets = linked(elf, lambda offset: name)
        spilling = _spilling(code, offsets, lambda offset: name)
        left = {symbol for symbol in spilling if halvings.get(symbol, 0) < MOST_HALVINGS}
        if not left:
            return code, offsets, text
        halvings |= {symbol: halvings.get(symbol, 0) + 1 for symbol in left}
        text, _ = kernels.kernels(op, formats, halvings)


def compile_image(name: str, source: Source, formats: Formats, preset: str) -> KernelImage:
    """The kernel image of an op, from the cache or newly built.

    Args:
        name: of the op.
        source: its code.
        formats: what it is made for.
        preset: what the formats are called.

    Raises:
        OpError: the op cannot be compiled.
        ImageError: a tool that compiles is missing, or its code does not fit.
    """

    def build() -> KernelImage:
        made = source.code(formats)
        return KernelImage(
            op=name,
            preset=preset,
            element=str(formats.element),
            accumulator=str(formats.accumulator),
            partial=str(formats.partial),
            result=str(formats.result),
            code=made.code,
            entries=made.entries,
            statuses=made.statuses,
            notes=made.notes,
        )

    recipe = (ABI_VERSION, _compiler(), llvm.RECIPE, name, preset, str(formats), source.key())
    digest = hashlib.sha256(repr(recipe).encode()).hexdigest()
    return cached(f"{name}-{preset}-{digest[:32]}", build)


def source_lines(
    name: str, source: FunctionSource, formats: Formats, code: bytes
) -> dict[int, str]:
    """Offset of an instruction in an image -> the line of source it is of: ``file.py:7: return x``.

    Args:
        name, source, formats: of the op.
        code: of its image.  An op whose code is another when compiled with locations has none.

    Raises:
        OpError: the op cannot be compiled.
        ImageError: llvmlite or numba is missing.
    """
    given = source.functions(formats)
    op = scalar.scalar_op(name, given, formats)
    text, symbols = kernels.kernels(op, formats, {})
    _, _, text = _fitted(name, op, text, symbols, formats)
    plain = scalar.simplified(name, given, formats)
    located = source.functions(formats, lines=True)
    debug = scalar.simplified(name, located, formats)
    alone = {step: scalar.alone(name, function) for step, function in located.items()}
    functions, loops = with_lines(op.ir, plain, debug, alone, text)
    elf = llvm.emit([loops, functions], set(symbols.values()), name)  # the first has the table
    return _table(elf, code)


def _table(elf: bytes, code: bytes) -> dict[int, str]:
    """The lines of an object, by offset in its code."""
    from elftools.elf.elffile import ELFFile

    file: Any = ELFFile(io.BytesIO(elf))
    if file.get_section_by_name(".text").data() != code:
        return {}
    # relocations: all code is in one section, from 0 on, and the kernels' table is the first
    dwarf = file.get_dwarf_info(relocate_dwarf_sections=False)
    program = dwarf.line_program_for_CU(next(dwarf.iter_CUs()))
    states = [entry.state for entry in program.get_entries() if entry.state is not None]
    rows = [(s.address, "" if s.end_sequence else _said(program, s)) for s in states]
    ends = [*(address for address, _ in rows[1:]), len(code)]
    return {
        at: said
        for (begin, said), end in zip(rows, ends, strict=True)
        for at in range(begin, end, 2)
        if said
    }


def _said(program: Any, state: Any) -> str:
    """A row of the table in words; "" of line 0, which is nobody's."""
    if not state.line:
        return ""
    entry = program["file_entry"][state.file - 1]
    directory = program["include_directory"][entry.dir_index - 1].decode()
    path = f"{directory}/{entry.name.decode()}"
    text = linecache.getline(path, state.line).strip()
    return f"{entry.name.decode()}:{state.line}: {text}".rstrip(": ")
