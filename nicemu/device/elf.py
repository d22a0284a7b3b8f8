"""Bare-metal ELF files: from bytes to segments, symbols and an entry, strictly checked.

Owns: what a file says and whether to believe it; every damaged or hostile file ends as a
FileFormatError.  Running the program is bare's task.  Source of the layout: the System V gABI
(chapters 4 and 5) and the RISC-V ELF psABI (e_machine 243).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from nicemu.errors import FileFormatError

__all__ = ["Elf", "Segment", "is_elf", "load_elf", "parse_elf", "read_file"]

MAGIC = b"\x7fELF"
EM_RISCV = 243
MACHINES = {3: "x86", 8: "MIPS", 20: "PowerPC", 21: "PowerPC64", 40: "Arm", 62: "x86-64"}
MACHINES |= {183: "AArch64", 258: "LoongArch"}
ET_EXEC = 2
KINDS = {1: "an unlinked object", 3: "position-independent", 4: "a core dump"}
PT_LOAD = 1
SHT_PROGBITS, SHT_SYMTAB, SHT_STRTAB = 1, 2, 3
SHF_EXECINSTR = 4
STT_SECTION, STT_FILE = 3, 4
SHN_UNDEF = 0

# e_type .. e_shstrndx; p_type ..; sh_name ..; st_name ..: the 64-bit layouts, little-endian
HEADER = struct.Struct("<HHIQQQIHHHHHH")
PROGRAM = struct.Struct("<IIQQQQQQ")
SECTION = struct.Struct("<IIQQQQIIQQ")
SYMBOL = struct.Struct("<IBBHQQ")
IDENT = 16

MOST_BYTES = 1 << 30
MOST_SYMBOLS = 1 << 20
MOST_NAME = 512  # bytes of a symbol's name


@dataclass(frozen=True)
class Segment:
    """A stretch of memory that the file fills.

    Attributes:
        address: of its first byte: the physical address, where a bare-metal loader puts it.
        data: bytes from the file.
        size: bytes in memory; those beyond ``data`` are zero.
        executable: does the file mark it as code?
    """

    address: int
    data: memoryview
    size: int
    executable: bool


@dataclass(frozen=True)
class Elf:
    """An executable for RV64.

    Attributes:
        name: where it came from, for messages.
        entry: address of the first instruction.
        segments: by address; they do not overlap.
        code: (address, bytes) of executable sections, or of executable segments when the file has
            no sections.
        symbols: name -> address; of equal names the last, without section and file names.
    """

    name: str
    entry: int
    segments: tuple[Segment, ...]
    code: tuple[tuple[int, memoryview], ...]
    symbols: dict[str, int]


def is_elf(data: bytes) -> bool:
    """Does the file begin as an ELF file does?"""
    return data[:4] == MAGIC


def read_file(path: str | Path) -> bytes:
    """The bytes of a regular file.

    Raises:
        FileFormatError: missing, unreadable, too large, or not a regular file.
    """
    path = Path(path)
    try:
        if not path.is_file():
            what = "is not a regular file" if path.exists() else "does not exist"
            raise FileFormatError(f"{path}: {what}: give the path of a file")
        size = path.stat().st_size
        if size > MOST_BYTES:
            raise FileFormatError(f"{path}: {size} bytes: use a file of at most {MOST_BYTES}")
        return path.read_bytes()
    except OSError as e:
        raise FileFormatError(f"{path}: cannot be read: {e.strerror}: check its permissions") from e


def load_elf(path: str | Path) -> Elf:
    """Read an executable.

    Raises:
        FileFormatError: as :func:`read_file` and :func:`parse_elf`.
    """
    return parse_elf(read_file(path), str(path))


def parse_elf(data: bytes, name: str = "ELF file") -> Elf:
    """Check and take apart the bytes of an executable.

    Args:
        data: the whole file.
        name: begins every message.

    Raises:
        FileFormatError: damaged, not ELF64 little-endian, for another machine, or not linked to
            fixed addresses.
    """
    return _Parser(data, name).elf()


class _Parser:
    def __init__(self, data: bytes, name: str) -> None:
        self.data = memoryview(data)
        self.name = name

    def bad(self, what: str) -> FileFormatError:
        return FileFormatError(f"{self.name}: {what}")

    def at(self, offset: int, size: int, what: str) -> memoryview:
        """Bytes of the file, or an error that says what they would have been."""
        if offset + size > len(self.data):
            raise self.bad(
                f"{what} at {offset:#x}..{offset + size:#x} lies outside the file of "
                f"{len(self.data)} bytes: the file is truncated or damaged, build it again"
            )
        return self.data[offset : offset + size]

    def rows(
        self, layout: struct.Struct, offset: int, count: int, size: int, what: str
    ) -> list[tuple[int, ...]]:
        if count and size != layout.size:
            raise self.bad(f"{what} entries of {size} bytes: ELF64 has {layout.size}")
        return list(layout.iter_unpack(self.at(offset, count * size, f"{what} table")))

    def elf(self) -> Elf:
        if not is_elf(self.data[:4].tobytes()):
            raise self.bad(
                f"begins with {self.data[:4].tobytes()!r} and not {MAGIC!r}: "
                "give an ELF executable for RV64"
            )
        ident = self.at(0, IDENT, "ELF header")
        if ident[4] != 2 or ident[5] != 1:
            raise self.bad(
                f"ELF class {ident[4]}, data {ident[5]}: only 64-bit (2) little-endian (1) runs: "
                "build it for riscv64"
            )
        (
            kind, machine, _version, entry, phoff, shoff, _flags, _ehsize,
            phentsize, phnum, shentsize, shnum, _shstrndx,
        ) = HEADER.unpack(self.at(IDENT, HEADER.size, "ELF header"))  # fmt: skip
        if machine != EM_RISCV:
            raise self.bad(
                f"machine {machine} ({MACHINES.get(machine, 'unknown')}) is not RISC-V "
                f"({EM_RISCV}): build it for riscv64"
            )
        if kind != ET_EXEC:
            raise self.bad(
                f"ELF type {kind} ({KINDS.get(kind, 'unknown')}) is not an executable (2): "
                "link it to fixed addresses (-static -no-pie)"
            )
        segments = self.segments(self.rows(PROGRAM, phoff, phnum, phentsize, "program header"))
        # whether that segment is marked executable does not matter: RAM is executable, and linker
        # scripts in use leave the flags of all their segments at 0
        if entry % 2 or not any(s.address <= entry < s.address + len(s.data) for s in segments):
            raise self.bad(f"entry {entry:#x} is odd or in no segment of the file")
        sections = self.rows(SECTION, shoff, shnum, shentsize, "section header")
        code = self.code(sections) or [(s.address, s.data) for s in segments if s.executable]
        return Elf(self.name, entry, tuple(segments), tuple(sorted(code)), self.symbols(sections))

    def segments(self, headers: list[tuple[int, ...]]) -> list[Segment]:
        found = []
        for kind, flags, offset, _vaddr, paddr, filesz, memsz, _align in headers:
            if kind != PT_LOAD or not memsz:
                continue
            if filesz > memsz or paddr + memsz > 1 << 64:
                raise self.bad(
                    f"segment at {paddr:#x} with {filesz} bytes of file and {memsz} of memory "
                    "does not fit: the file is damaged, build it again"
                )
            data = self.at(offset, filesz, f"segment for {paddr:#x}")
            found.append(Segment(paddr, data, memsz, bool(flags & 1)))
        found.sort(key=lambda s: s.address)
        for low, high in pairwise(found):
            if low.address + low.size > high.address:
                raise self.bad(
                    f"segments at {low.address:#x} and {high.address:#x} overlap: "
                    "the file is damaged, build it again"
                )
        return found

    def code(self, sections: list[tuple[int, ...]]) -> list[tuple[int, memoryview]]:
        found = []
        for _name, kind, flags, address, offset, size, *_rest in sections:
            if kind == SHT_PROGBITS and flags & SHF_EXECINSTR and size:
                if address + size > 1 << 64:
                    raise self.bad(
                        f"code section of {size} bytes at {address:#x} passes the end of memory: "
                        "the file is damaged, build it again"
                    )
                found.append((address, self.at(offset, size, f"code section for {address:#x}")))
        total = sum(len(code) for _, code in found)
        if total > len(self.data):
            raise self.bad(
                f"code sections of {total} bytes in a file of {len(self.data)}: they overlap, "
                "build it again"
            )
        return found

    def symbols(self, sections: list[tuple[int, ...]]) -> dict[str, int]:
        found: dict[str, int] = {}
        if sum(kind == SHT_SYMTAB for _name, kind, *_rest in sections) > 1:  # as the gABI has it
            raise self.bad("more than one symbol table: the file is damaged, build it again")
        for _name, kind, _flags, _address, offset, size, link, _info, _align, each in sections:
            if kind != SHT_SYMTAB:
                continue
            count = size // SYMBOL.size
            if count > MOST_SYMBOLS:
                raise self.bad(f"{count} symbols: use at most {MOST_SYMBOLS}, or strip the file")
            if link >= len(sections) or sections[link][1] != SHT_STRTAB:
                raise self.bad(
                    f"symbol table names section {link} for its strings, which is no string "
                    "table: the file is damaged, build it again"
                )
            strings = self.at(sections[link][4], sections[link][5], "string table").tobytes()
            for st_name, info, _other, index, value, _size in self.rows(
                SYMBOL, offset, count, each, "symbol"
            ):
                end = strings.find(b"\0", st_name, st_name + MOST_NAME)
                if info & 15 in (STT_SECTION, STT_FILE) or index == SHN_UNDEF or end <= st_name:
                    continue
                found[_printable(strings[st_name:end])] = value
        return found


def _printable(name: bytes) -> str:
    """A name as text that no terminal takes for a command."""
    text = name.decode("utf-8", "backslashreplace")
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)
