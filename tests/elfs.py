"""Tiny ELF executables, made byte by byte: what the tests of `nicemu run` and `disasm` feed it."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tests.encode import encode, load_constant
from tests.encode import image as code_bytes

BASE = 0x8000_0000
TOHOST = BASE + 0x1000
CHARACTER = 0x0101 << 48
A0, T0, T1, T2 = 10, 5, 6, 7


@dataclass
class Image:
    """What build() writes; each header field that a test may want to break is here."""

    code: bytes
    base: int = BASE
    entry: int | None = None
    extra: Sequence[tuple[int, bytes, int]] = ()  # (address, data, memory size), writable
    symbols: Mapping[str, int] = field(default_factory=lambda: {"tohost": TOHOST})
    machine: int = 243
    kind: int = 2
    elf_class: int = 2
    data: int = 1
    sections: bool = True
    flags: int = 5  # of the code's segment


def build(image: Image) -> bytes:
    segments = [(image.base, image.code, len(image.code), image.flags)]
    segments += [(at, data, size, 6) for at, data, size in image.extra]
    strings, symbols = b"\0", bytes(24)
    for name, value in image.symbols.items():
        symbols += struct.pack("<IBBHQQ", len(strings), 0x10, 0, 0xFFF1, value, 0)
        strings += name.encode() + b"\0"
    names = [len(strings), len(strings) + 8]  # of the last two sections: Spike looks for them
    strings += b".symtab\0.strtab\0"
    at = 64 + 56 * len(segments)
    program, body = b"", b""
    for address, data, size, flags in segments:
        program += struct.pack("<IIQQQQQQ", 1, flags, at, address, address, len(data), size, 1)
        body += data
        at += len(data)
    first = 64 + len(program)
    rows = [
        (0,) * 10,
        (0, 1, 6, image.base, first, len(image.code), 0, 0, 2, 0),
        (names[0], 2, 0, 0, at, len(symbols), 3, 0, 8, 24),
        (names[1], 3, 0, 0, at + len(symbols), len(strings), 0, 0, 1, 0),
    ]
    body += symbols + strings
    section_at = 64 + len(program) + len(body) if image.sections else 0
    table = b"".join(struct.pack("<IIQQQQIIQQ", *row) for row in rows)
    ident = b"\x7fELF" + bytes([image.elf_class, image.data, 1]) + bytes(9)
    entry = image.base if image.entry is None else image.entry
    count = len(rows) if image.sections else 0
    header = struct.pack(
        "<HHIQQQIHHHHHH", image.kind, image.machine, 1, entry, 64, section_at, 0, 64,
        56, len(segments), 64, count, 3 if count else 0,
    )  # fmt: skip
    return ident + header + program + body + (table if image.sections else b"")


# ---- programs --------------------------------------------------------------------------------


def store_tohost(value: int) -> list[int]:
    """Store `value` to tohost and wait until the host has taken it."""
    return [
        *load_constant(T0, TOHOST),
        *load_constant(T1, value),
        encode("sd", rs2=T1, rs1=T0, imm=0),
        encode("ld", rd=T2, rs1=T0, imm=0),
        encode("bne", rs1=T2, rs2=0, target=-4),
    ]


def printing(text: bytes, exit_code: int) -> bytes:
    """A program that prints and exits."""
    words: list[int] = []
    for c in text:
        words += store_tohost(CHARACTER | c)
    words += store_tohost(exit_code << 1 | 1)
    return code_bytes(words)


def endless() -> bytes:
    return code_bytes([encode("jal", rd=0, target=0)])
