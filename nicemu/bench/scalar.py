"""The sum by a scalar loop: what cores without vectors make of the wire.

Owns: the image ``scalar_sum``, written by hand: one element after the other, the bits of ``sum``.
"""

from __future__ import annotations

from nicemu.compiler.compile import extensions
from nicemu.device.image import KernelImage, preset_formats
from nicemu.device.words import code, word
from nicemu.dtypes import Format, format_of
from nicemu.errors import ArgumentError

__all__ = ["SCALAR_SUM", "scalar_sum"]

SCALAR_SUM = "scalar_sum"
PRESET = "wide"
#: format -> its load, its store, conversion to float32 and back
_ACCESS = {
    "float16": ("flh", "fsh", "fcvt.s.h", "fcvt.h.s"),
    "bfloat16": ("flh", "fsh", "fcvt.s.bf16", "fcvt.bf16.s"),
    "float32": ("flw", "fsw", "", ""),
}
ZERO, RA, PAYLOAD = 0, 1, 6
ACCUMULATOR, TABLE, COUNT = 10, 11, 12  # arguments
KEPT, TAKEN = 0, 1  # FP registers


def scalar_sum(element: str | Format, preset: str | None = None) -> KernelImage:
    """The image for elements of a format.

    Raises:
        ArgumentError: the format is none of float16, bfloat16 and float32, or the preset not wide.
    """
    if preset not in (None, PRESET):
        raise ArgumentError(f"{SCALAR_SUM}: preset {preset!r}: its code is for {PRESET!r}")
    row = format_of(element)
    if row.name not in _ACCESS:
        raise ArgumentError(f"{SCALAR_SUM} of {row.name}: use one of {', '.join(_ACCESS)}")
    formats = preset_formats(row, PRESET)
    keep = word("fsw", TAKEN, 0, ACCUMULATOR)
    keep_sum = [
        word("flw", KEPT, 0, ACCUMULATOR),
        word("fadd.s", KEPT, KEPT, TAKEN),
        word("fsw", KEPT, 0, ACCUMULATOR),
    ]
    kept = word("flw", TAKEN, 0, ACCUMULATOR)
    single = format_of("float32")
    entries, words = {}, list[int]()
    for name, payload, body in (
        ("first", row, [*_load(row), keep]),
        ("load", single, [*_load(single), keep]),
        ("acc", row, [*_load(row), *keep_sum]),
        ("merge", single, [*_load(single), *keep_sum]),
        ("emit", single, [kept, *_store(single)]),
        ("finish", row, [kept, *_store(row)]),
    ):
        entries[name] = 4 * len(words)
        words += _loop(body, payload.size)
    text = code(words)
    return KernelImage.made_for(
        formats,
        op=SCALAR_SUM,
        preset=PRESET,
        code=text,
        entries=entries,
        extensions=extensions(text, SCALAR_SUM),
    )


def _load(row: Format) -> list[int]:
    """An element of the payload, as float32."""
    load, _, widen, _ = _ACCESS[row.name]
    return [word(load, TAKEN, 0, PAYLOAD), *([word(widen, TAKEN, TAKEN)] if widen else [])]


def _store(row: Format) -> list[int]:
    """A float32 as an element of the destination."""
    _, store, _, narrow = _ACCESS[row.name]
    return [*([word(narrow, TAKEN, TAKEN)] if narrow else []), word(store, TAKEN, 0, PAYLOAD)]


def _loop(body: list[int], size: int) -> list[int]:
    """An entry: the body for each element, of so many bytes in the payload."""
    turn = [
        *body,
        word("addi", ACCUMULATOR, ACCUMULATOR, 4),
        word("addi", PAYLOAD, PAYLOAD, size),
        word("addi", COUNT, COUNT, -1),
    ]
    turn.append(word("bne", COUNT, ZERO, -4 * len(turn)))
    return [
        word("ld", PAYLOAD, 0, TABLE),
        word("beq", COUNT, ZERO, 4 * (1 + len(turn))),
        *turn,
        word("addi", ACCUMULATOR, ZERO, 0),  # status 0
        word("jalr", ZERO, 0, RA),
    ]
