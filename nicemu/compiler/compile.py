"""From an op's functions to a kernel image: IR, optimiser, object, checks, cache.

Owns: the order of the stations, how wide each loop's vectors are, and the check of the emitted
objects.  The functions come from a front end, loops from kernels, their vectors from vectors or
LLVM, LLVM is llvm's, the ABI is image's.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from itertools import accumulate
from pathlib import Path
from typing import Any, Protocol, TypeAlias

from nicemu._core import extension_names
from nicemu.compiler import kernels, llvm, scalar
from nicemu.compiler.lines import branches_marked, known_places, with_lines
from nicemu.compiler.llvm import installed
from nicemu.compiler.scalar import ScalarFunction
from nicemu.compiler.target import EVERY, Target, said
from nicemu.compiler.vectors import VectorLoop, vector_loop, vector_module
from nicemu.device.image import ABI_VERSION, Formats, KernelImage, cached
from nicemu.device.isa import Use, uses
from nicemu.errors import OpError

__all__ = [
    "Code",
    "FunctionSource",
    "Source",
    "compile_functions",
    "compile_image",
    "decoded",
    "extensions",
    "kernels_of",
    "linked",
    "source_lines",
]


@dataclass(frozen=True)
class Code:
    """What an image holds besides its formats: see nicemu.device.image.KernelImage."""

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

    def code(self, formats: Formats, target: Target) -> Code:
        """The code of its image for the cores of a machine.

        Raises:
            OpError: it cannot be compiled.
        """

    def lines(self, formats: Formats, code: bytes, target: Target) -> Mapping[int, str]:
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

    def line(self, path: str, line: int) -> str:
        """What is shown of a line: ``file.py:7: return x``; "" where it is none of the author's.

        Args:
            path: of the file, as its functions with lines name it.
            line: its number there, from 1.
        """


#: where in the source something is, for messages: of an offset in the code, or None
Place: TypeAlias = Callable[[int | None], str]


def linked(elf: bytes, place: Place, target: Target = EVERY) -> tuple[bytes, dict[str, int]]:
    """Code of an object for the cores of a machine, and the offsets of its symbols.

    Raises:
        OpError: it is more than code that stands alone.
    """
    from elftools.elf.elffile import ELFFile

    file: Any = ELFFile(io.BytesIO(elf))
    table = file.get_section_by_name(".symtab")
    index = file.get_section_index(".text")
    code = bytearray(file.get_section(index).data())
    moved: dict[str, int] = {}
    if relocations := file.get_section_by_name(".rela.text"):
        for row in relocations.iter_relocations():
            symbol, at = table.get_symbol(row["r_info_sym"]), row["r_offset"]
            if row["r_info_type"] == _CALL and symbol["st_shndx"] == index:
                _call(code, at, symbol["st_value"] + row["r_addend"])
            else:
                moved.setdefault(symbol.name, at)
    for symbol in table.iter_symbols():
        if symbol["st_shndx"] == "SHN_UNDEF" and symbol.name:
            why = target.missing(symbol.name)
            why = f"{why}: use another machine" if why else scalar.missing(symbol.name)
            raise OpError(f"{place(moved.get(symbol.name))}: {why}")
    for section in file.iter_sections():
        if section["sh_flags"] & 2 and section["sh_size"] and section.name != ".text":
            raise OpError(f"{place(None)}: it needs a table in memory: compute the values instead")
    if moved:
        name, offset = next(iter(moved.items()))
        raise OpError(f"{place(offset)}: its code needs {name!r} relocated: avoid it")
    offsets = {
        symbol.name: symbol["st_value"]
        for symbol in table.iter_symbols()
        if symbol["st_shndx"] == index and symbol.name and symbol.name[0] not in ".$"
    }
    return bytes(code), offsets


_CALL = 19  # R_RISCV_CALL_PLT: auipc and jalr


def _call(code: bytearray, at: int, to: int) -> None:
    """Let the call at an offset of the code go to another."""
    for place, bits in ((at, (to - at + 0x800) & 0xFFFFF000), (at + 4, (to - at) << 20)):
        word = int.from_bytes(code[place : place + 4], "little") | (bits & 0xFFFFFFFF)
        code[place : place + 4] = word.to_bytes(4, "little")


def decoded(code: bytes, place: Place, target: Target) -> list[Use]:
    """Every instruction.

    Raises:
        OpError: the cores of the machine do not have one.
    """
    found, unknown = uses(code)
    if unknown is not None:
        word = int.from_bytes(code[unknown : unknown + 4], "little")
        raise OpError(
            f"{place(unknown)}: {word:#010x} at {unknown:#x} is no instruction of the cores: use "
            "one that they have"
        )
    for use in found:
        if use.extension not in target.extensions:
            raise OpError(
                f"{place(use.at)}: {use.row.name} is of {said(use.extension)}, "
                f"{target.without(use.extension)}: use what they have, or another machine"
            )
    return found


def extensions(code: bytes, name: str) -> tuple[str, ...]:
    """The extensions that an op's code needs, as KernelImage.extensions.

    Raises:
        OpError: no cores have one of its instructions.
    """
    used = {use.extension for use in decoded(code, lambda at: name, EVERY)}
    used |= {"v"} if "zvfh" in used else set()
    return tuple(row for row in extension_names() if row in used)


#: whole registers are stored only where there are too few of them
_SPILLS = {"vs1r.v", "vs2r.v", "vs4r.v", "vs8r.v"}
MOST_HALVINGS = 3  # LMUL 8 to 1
_REGISTERS = 40  # a loop that seems to need more than these 32 and some will hardly do with 32


@cache
def _compiler() -> str:
    """A hash of the compiler itself, and the front end's version."""
    digest = hashlib.sha256()
    here = Path(__file__).parent
    for station in (*sorted(here.glob("*.py")), here.with_name("dtypes.py")):
        digest.update(station.read_bytes())
    return f"{digest.hexdigest()} numba {installed('numba')}"


def kernels_of(
    name: str, source: FunctionSource, formats: Formats, target: Target = EVERY
) -> tuple[scalar.ScalarOp, kernels.Kernels]:
    """The IR of an op for the cores of a machine: its functions, and the kernels around them.

    Raises:
        OpError: the op cannot be compiled.
        ImageError: llvmlite or numba is missing.
    """
    formats = target.formats(formats)
    op = scalar.scalar_op(name, source.functions(formats), formats)
    made = kernels.kernels(op, formats, target.fuses)
    if not target.vectors:
        made = replace(made, widths=dict.fromkeys(made.widths))
    return op, made


def _soft(symbols: list[str]) -> list[str]:
    """See soft.library."""
    if not symbols:
        return []
    from nicemu.compiler.soft import library  # which needs numba

    return library(symbols)


def _soft_symbols(elf: bytes) -> list[str]:
    """What an object calls of soft.SYMBOLS."""
    missing = set(llvm.undefined(elf))
    if not missing:
        return []
    from nicemu.compiler.soft import SYMBOLS

    return sorted(missing & SYMBOLS.keys())


@dataclass(frozen=True)
class _Function:
    """A kernel as it is compiled: its code, and whether it keeps vectors in memory."""

    code: bytes
    spills: bool


#: modules to be linked, the kernels' first, and what makes an object of them
_Module: TypeAlias = tuple[list[str], Callable[[list[str]], bytes]]


class _Compilation:
    """The kernels of an op on their way to code, each for itself: none depends on another."""

    def __init__(self, name: str, source: FunctionSource, formats: Formats, target: Target) -> None:
        self.name = name
        self.target = target
        self.op, self.kernels = kernels_of(name, source, formats, target)
        self._loops: dict[tuple[str, int], VectorLoop | None] = {}

    def loop(self, symbol: str, width: int | None) -> VectorLoop | None:
        """A kernel over vectors; None: it is LLVM's to make one of it, or to leave it."""
        if width is None:
            return None
        if (symbol, width) not in self._loops:
            made = vector_loop(self.op, self.kernels.functions[symbol], width)
            self._loops[symbol, width] = made
        return self._loops[symbol, width]

    def modules(self, widths: Mapping[str, int | None]) -> list[_Module]:
        """IR of some kernels, with vectors of so many items by vscale."""
        loops = {symbol: self.loop(symbol, width) for symbol, width in widths.items()}
        known = [loop for loop in loops.values() if loop is not None]
        others = {symbol: widths[symbol] for symbol, loop in loops.items() if loop is None}
        out: list[_Module] = []
        if known:
            text = vector_module(known, self.kernels.metadata)
            out.append(([text], lambda texts: llvm.emit_vectors(texts[0], self.name, self.target)))
        if others:
            both = [self.kernels.module(others), self.op.ir]
            out.append((both, lambda texts: self._emitted(texts, others)))
        return out

    def _emitted(self, texts: list[str], keep: Iterable[str]) -> bytes:
        """An object with what it calls of floating point in integers."""
        called: list[str] = []
        while True:
            added = _soft(called)
            elf = llvm.emit([*texts, *added], [*keep, *called], self.name, self.target)
            if self.target.reals or not (more := _soft_symbols(elf)):
                return elf
            called += more

    def compiled(self, widths: Mapping[str, int | None]) -> dict[str, _Function]:
        """The same kernels' code."""
        out: dict[str, _Function] = {}
        for texts, emit in self.modules(widths):
            code, offsets = linked(emit(texts), self._place, self.target)
            rows = decoded(code, self._place, self.target)
            spills = [use.at for use in rows if use.row.name in _SPILLS]
            for symbol, begin, end in _pieces(code, offsets):
                spilling = any(begin <= at < end for at in spills)
                out[symbol] = _Function(code[begin:end], spilling)
        return out

    def _place(self, offset: int | None) -> str:
        return self.name

    def narrowest(self, symbol: str) -> int:
        """Items by vscale below which it makes no sense to halve."""
        return max((self.kernels.widths[symbol] or 1) >> MOST_HALVINGS, 1)

    def _guess(self, symbol: str) -> int | None:
        """A width for which the registers may do."""
        width = self.kernels.widths[symbol]
        while width is not None and width > self.narrowest(symbol):
            loop = self.loop(symbol, width)
            if loop is None or loop.registers <= _REGISTERS:
                break
            width //= 2
        return width

    def _next(self, symbol: str, tried: Mapping[int | None, _Function]) -> int | None:
        """What is to be tried after those; None: nothing more."""
        most = self.kernels.widths[symbol]
        widths = [width for width in tried if width is not None]
        if most is None or not widths:
            return None
        fits = [width for width in widths if not tried[width].spills]
        wanted = 2 * max(fits) if fits else min(widths) // 2
        good = self.narrowest(symbol) <= wanted <= most and wanted not in tried
        return wanted if good else None

    def fitted(self) -> tuple[dict[str, int | None], dict[str, bytes]]:
        """Every kernel's width, the greatest for which its registers do, and its code."""
        if not self.target.vectors:  # there is but one way, and functions may call each other
            made = self.compiled(self.kernels.widths)
            return dict(self.kernels.widths), {s: function.code for s, function in made.items()}
        tried: dict[str, dict[int | None, _Function]] = {s: {} for s in self.kernels.functions}
        wanted = {symbol: self._guess(symbol) for symbol in tried}
        while wanted:
            for symbol, function in self.compiled(wanted).items():
                tried[symbol][wanted[symbol]] = function
            following = {symbol: self._next(symbol, rows) for symbol, rows in tried.items()}
            wanted = {symbol: width for symbol, width in following.items() if width}
        widths = {symbol: _widest(rows) for symbol, rows in tried.items()}
        return widths, {symbol: tried[symbol][width].code for symbol, width in widths.items()}


def _widest(tried: Mapping[int | None, _Function]) -> int | None:
    """The greatest width for which the registers do; the least where they do for none."""
    widths = [width for width in tried if width is not None]
    fits = [width for width in widths if not tried[width].spills]
    return max(fits) if fits else min(widths, default=None)


def _pieces(code: bytes, offsets: Mapping[str, int]) -> list[tuple[str, int, int]]:
    """Functions of an object, and where they begin and end."""
    starts = sorted((at, symbol) for symbol, at in offsets.items())
    ends = [*(at for at, _ in starts[1:]), len(code)]
    return [(symbol, at, end) for (at, symbol), end in zip(starts, ends, strict=True)]


def _placed(codes: Mapping[str, bytes]) -> dict[str, int]:
    """Where in an image each function begins."""
    ends = accumulate((len(code) for code in codes.values()), initial=0)
    return dict(zip(codes, ends, strict=False))


def compile_functions(name: str, source: FunctionSource, formats: Formats, target: Target) -> Code:
    """The code of an op that consists of functions, for the cores of a machine.

    Raises:
        OpError: the op cannot be compiled.
        ImageError: llvmlite or numba is missing.
    """
    compilation = _Compilation(name, source, formats, target)
    _, codes = compilation.fitted()
    offsets, op = _placed(codes), compilation.op
    entries = {entry: offsets[symbol] for entry, symbol in compilation.kernels.symbols.items()}
    return Code(b"".join(codes.values()), entries, op.statuses, op.notes)


def compile_image(
    name: str, source: Source, formats: Formats, preset: str, target: Target = EVERY
) -> KernelImage:
    """The kernel image of an op, from the cache or newly built.

    Args:
        name: of the op.
        source: its code.
        formats: what it is made for.
        preset: what the formats are called.
        target: the cores that are to run it.

    Raises:
        OpError: the op cannot be compiled for them.
        ImageError: a tool that compiles is missing, or its code does not fit.
    """

    def build() -> KernelImage:
        made = source.code(formats, target)
        return KernelImage.made_for(
            formats,
            op=name,
            preset=preset,
            code=made.code,
            entries=made.entries,
            extensions=extensions(made.code, name),
            statuses=made.statuses,
            notes=made.notes,
        )

    tools = (ABI_VERSION, _compiler(), llvm.RECIPE, target.extensions)
    recipe = (*tools, name, preset, str(formats), source.key())
    digest = hashlib.sha256(repr(recipe).encode()).hexdigest()
    return cached(f"{name}-{preset}-{digest[:32]}", build)


def source_lines(
    name: str, source: FunctionSource, formats: Formats, code: bytes, target: Target
) -> dict[int, str]:
    """Offset of an instruction in an image -> the line of source it is of: ``file.py:7: return x``.

    Args:
        name, source, formats: of the op.
        code: of its image.  An op whose code is another when compiled with locations has none.
        target: the cores that it is for.

    Raises:
        OpError: the op cannot be compiled.
        ImageError: llvmlite or numba is missing.
    """
    compilation = _Compilation(name, source, formats, target)
    formats = target.formats(formats)
    widths, codes = compilation.fitted()
    if b"".join(codes.values()) != code:
        return {}
    plain = scalar.simplified(name, source.functions(formats), formats)
    located = {
        step: replace(function, modules=branches_marked(function.modules))
        for step, function in source.functions(formats, lines=True).items()
    }
    debug = scalar.simplified(name, located, formats)
    known = known_places(compilation.op.ir, plain, debug, scalar.alone(name, located))
    offsets = _placed(codes)
    out: dict[int, str] = {}
    for texts, emit in compilation.modules(widths):
        elf = emit([with_lines(text, known) for text in texts])
        out |= _table(elf, codes, offsets, source.line)
    return out


def _table(
    elf: bytes,
    codes: Mapping[str, bytes],
    offsets: Mapping[str, int],
    line: Callable[[str, int], str],
) -> dict[int, str]:
    """The lines of an object's functions, by offset in an image.

    Args:
        elf: the object.
        codes: symbol -> the function's code without locations; with another there are no lines.
        offsets: symbol -> where it is in the image.
        line: FunctionSource.line.
    """
    from elftools.elf.elffile import ELFFile

    # relocations: all code is in one section, from 0 on, and the kernels' table is the first
    dwarf: Any = ELFFile(io.BytesIO(elf)).get_dwarf_info(relocate_dwarf_sections=False)
    program = dwarf.line_program_for_CU(next(dwarf.iter_CUs()))
    states = [entry.state for entry in program.get_entries() if entry.state is not None]
    text, symbols = linked(elf, str)
    rows = [(s.address, line(*_place(program, s)) if _owned(s) else "") for s in states]
    ends = [*(address for address, _ in rows[1:]), len(text)]
    said = {
        at: text
        for (begin, text), end in zip(rows, ends, strict=True)
        for at in range(begin, end, 2)
        if text
    }
    return {
        at - begin + offsets[symbol]: said[at]
        for symbol, begin, end in _pieces(text, symbols)
        if text[begin:end] == codes[symbol]
        for at in range(begin, end, 2)
        if at in said
    }


def _owned(state: Any) -> bool:
    """Is a row of the table of a line?  Line 0 is nobody's."""
    return bool(state.line) and not state.end_sequence


def _place(program: Any, state: Any) -> tuple[str, int]:
    """The file and line of a row of the table."""
    entry = program["file_entry"][state.file - 1]
    directory = program["include_directory"][entry.dir_index - 1].decode()
    return f"{directory}/{entry.name.decode()}", state.line
