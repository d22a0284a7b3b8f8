"""Frames of the wire as Python objects: one packet to bytes, and bytes to a packet or a reason.

Owns: nothing but names and types; layout, checks and the ICRC are csrc/packet.c, the byte-exact
description is guide/wire.md.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import IntEnum
from functools import cache
from typing import Any

from nicemu._nicemu import ffi, lib
from nicemu.dtypes import Item
from nicemu.errors import ArgumentError

__all__ = [
    "FRAME_BYTES",
    "Drop",
    "Element",
    "Kind",
    "Packet",
    "build",
    "drops",
    "element_of",
    "elements",
    "parse",
]

#: of a frame beside its payload: headers and ICRC
FRAME_BYTES: int = lib.NICEMU_MAX_FRAME - lib.NICEMU_MAX_PAYLOAD


class Kind(IntEnum):
    """Which way a packet goes."""

    UP = lib.NICEMU_UP  # a contribution, to the parent
    DOWN = lib.NICEMU_DOWN  # a result, to the children


@dataclass(frozen=True)
class Drop:
    """Why a frame is dropped: one row of csrc/drop.def.

    Attributes:
        name: its short name, the key of counters.
        station: where it is found out: "wire", "device" or "host".
        text: the reason in words.
    """

    name: str
    station: str
    text: str


@dataclass(frozen=True)
class Element:
    """What a payload consists of: one row of csrc/number.def, plain bytes, or records.

    Attributes:
        name: "bytes", a number format's alias (``Format.alias``), or "record12": 12 bytes of
            several fields, which lie in the payload as arrays (``nicemu.dtypes.Item``).
        code: its number on the wire.
        size: bytes of one.
    """

    name: str
    code: int
    size: int


def _text(pointer: object) -> str:
    return str(ffi.string(pointer).decode())


@cache
def drops() -> tuple[Drop, ...]:
    """Every reason, in the order of the checks; reason i is the core's verdict i + 1."""
    rows: list[Drop] = []
    station, text = ffi.new("const char **"), ffi.new("const char **")
    while (name := lib.nicemu_drop_name(len(rows) + 1, station, text)) != ffi.NULL:
        rows.append(Drop(_text(name), _text(station[0]), _text(text[0])))
    return tuple(rows)


@cache
def elements() -> dict[str, Element]:
    """Name -> element type, in the order of the codes."""
    rows: dict[str, Element] = {}
    size = ffi.new("uint32_t *")
    while (name := lib.nicemu_element_name(len(rows), size)) != ffi.NULL:
        rows[_text(name)] = Element(_text(name), len(rows), int(size[0]))
    for n in range(1, 256 - lib.NICEMU_RECORD):
        rows[f"record{n}"] = Element(f"record{n}", lib.NICEMU_RECORD + n, n)
    return rows


@cache
def _by_code() -> dict[int, str]:
    return {row.code: name for name, row in elements().items()}


def element_of(item: Item) -> Element:
    """The element type of payloads of such items."""
    return elements()[item.formats[0].alias if item.scalar else f"record{item.size}"]


@dataclass(frozen=True)
class Packet:
    """What one frame says (guide/wire.md has the meaning of the fields).

    Attributes:
        kind: up or down.
        job, group: whose collective; 16 and 32 bits.
        seq: number of the collective in its group, 32 bits.
        chunk: number of the chunk in the collective, 32 bits.
        round, lane: of the slot; 32 and 16 bits.
        child: index of the sender (up) or receiver (down) at the parent, 16 bits.
        contributors: workers whose elements are in the payload, 16 bits.
        element: name of the element type, a key of :func:`elements`.
        partial: the payload is an unfinished accumulator.
        moved: the payload is copied, not added.
        psn: packet sequence number, 24 bits.
        src, dst: node numbers, 24 bits.
        payload: at most 4096 bytes, a multiple of the element's size; little-endian elements.
    """

    kind: Kind
    job: int = 0
    group: int = 0
    seq: int = 0
    chunk: int = 0
    round: int = 0
    lane: int = 0
    child: int = 0
    contributors: int = 1
    element: str = "bytes"
    partial: bool = False
    moved: bool = False
    psn: int = 0
    src: int = 0
    dst: int = 0
    payload: bytes = b""


#: the fields that are numbers under the same name in the core
NUMBERS = tuple(
    f.name for f in fields(Packet) if f.name not in ("element", "partial", "moved", "payload")
)
BITS_24 = ("psn", "src", "dst")


def build(packet: Packet) -> bytes:
    """The frame of a packet, from the Ethernet header to the ICRC.

    Raises:
        ArgumentError: a field does not fit its width, the element type is unknown, or the payload
            is too long or no multiple of the element's size.
    """
    out = ffi.new("nicemu_packet *")
    widths = dict(ffi.typeof("nicemu_packet").fields)
    for name in NUMBERS:
        value = getattr(packet, name)
        bits = 24 if name in BITS_24 else 8 * ffi.sizeof(widths[name].type)
        if not 0 <= value < 1 << bits:
            raise ArgumentError(f"{name} {value}: use 0 to {(1 << bits) - 1}")
        setattr(out, name, value)
    element = elements().get(packet.element)
    if element is None:
        known = [row.name for row in elements().values() if row.code < lib.NICEMU_RECORD]
        raise ArgumentError(
            f"element {packet.element!r} is unknown: use one of {', '.join(known)}, record1..127"
        )
    size = len(packet.payload)
    if size > lib.NICEMU_MAX_PAYLOAD or size % element.size:
        raise ArgumentError(
            f"payload of {size} bytes: use a multiple of {element.size} ({element.name}), "
            f"at most {lib.NICEMU_MAX_PAYLOAD}"
        )
    out.type = element.code
    out.count = size // element.size
    out.flags = (
        lib.NICEMU_PARTIAL * packet.partial
        | lib.NICEMU_MOVED * packet.moved
        | lib.NICEMU_EMPTY * (size == 0)
    )
    frame = ffi.new("uint8_t[]", lib.NICEMU_MAX_FRAME)
    length = lib.nicemu_packet_build(out, packet.payload, size, frame)
    if length < 0:
        raise ArgumentError(f"kind {packet.kind}: use one of {', '.join(Kind.__members__)}")
    return bytes(ffi.buffer(frame, length))


def parse(frame: bytes, *, icrc: bool = True) -> Packet | Drop:
    """What a frame says, or why any receiver drops it.

    Args:
        frame: its bytes from the Ethernet header to the ICRC, without the frame check sequence.
        icrc: False leaves the ICRC unchecked.
    """
    out, size = ffi.new("nicemu_packet *"), ffi.new("uint32_t *")
    verdict = lib.nicemu_packet_parse(frame, len(frame), icrc, out, size)
    if verdict:
        reason: Drop = drops()[verdict - 1]
        return reason
    numbers: dict[str, Any] = {name: getattr(out, name) for name in NUMBERS}
    numbers["kind"] = Kind(out.kind)
    start = lib.NICEMU_HEAD_BYTES
    return Packet(
        **numbers,
        element=_by_code()[out.type],
        partial=bool(out.flags & lib.NICEMU_PARTIAL),
        moved=bool(out.flags & lib.NICEMU_MOVED),
        payload=frame[start : start + size[0]],
    )
