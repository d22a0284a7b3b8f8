"""The assembly front end: the entries of an image, as their author writes them -> machine code.

Owns: which labels there must be, and where in the source something is wrong.  The assembler is
clang's affair, what an image's code may consist of compile's, the entries and their ABI image's.
"""

from __future__ import annotations

import io
import re
from typing import Any

from nicemu.compiler import clang
from nicemu.compiler.compile import Code, decoded, linked
from nicemu.compiler.lines import shown
from nicemu.compiler.target import Target
from nicemu.device.image import ENTRIES, REQUIRED
from nicemu.errors import OpError

__all__ = ["assemble", "lines"]


def _lines(elf: bytes) -> list[tuple[int, int]]:
    """Offset in the code and line of the source, by offset."""
    from elftools.elf.elffile import ELFFile

    # one unit, in one section that begins at 0: there is nothing to relocate
    dwarf: Any = ELFFile(io.BytesIO(elf)).get_dwarf_info(relocate_dwarf_sections=False)
    return sorted(
        (entry.state.address, entry.state.line)
        for unit in dwarf.iter_CUs()
        for entry in dwarf.line_program_for_CU(unit).get_entries()
        if entry.state is not None and not entry.state.end_sequence
    )


def assemble(source: str, file: str, name: str, target: Target) -> Code:
    """Machine code of a source in which the entries are labels.

    Args:
        source: RISC-V assembly as clang reads it.
        file: what it is called in messages.
        name: of the op.
        target: the cores that are to run it; what they lack is not replaced.

    Raises:
        OpError: it is not assembly, has an instruction that the cores do not, lacks an entry, or is
            no code that stands alone.
        ImageError: ziglang is not installed.
    """
    if reads := re.search(r"\.(?:incbin|include)\b", source):
        line = source.count("\n", 0, reads.start()) + 1
        raise OpError(f"{name} ({file}:{line}): it reads a file: write what it needs here")
    elf, said = clang.assemble(source, name)
    for diagnostic in said:
        if diagnostic.kind == "error":
            raise OpError(f"{name} ({file}:{diagnostic.line}): {diagnostic.text}: mend the source")

    def place(offset: int | None) -> str:
        before = [] if offset is None else [line for at, line in _lines(elf) if at <= offset]
        return f"{name} ({file}:{before[-1]})" if before else f"{name} ({file})"

    code, labels = linked(elf, place)
    if missing := [entry for entry in REQUIRED if entry not in labels]:
        raise OpError(
            f"{place(None)}: there is no entry {missing[0]}: write code behind each of the labels "
            f"{', '.join(REQUIRED)}"
        )
    decoded(code, place, target)
    return Code(code, {entry: labels[entry] for entry in ENTRIES if entry in labels})


def lines(source: str, file: str, name: str) -> dict[int, str]:
    """Offset of an instruction -> its line: ``sum.s:7: vfadd.vv v8, v16, v8``.

    Raises:
        OpError, ImageError: see :func:`assemble`.
    """
    elf, _ = clang.assemble(source, name)
    texts = source.split("\n")  # as clang counts them
    return {at: shown(file, line, texts[line - 1].strip()) for at, line in _lines(elf)}
