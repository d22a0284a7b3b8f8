"""The wire once more, from guide/wire.md: numpy and zlib, nothing of csrc/packet.c.

Owns: what is wrong with a frame, for many frames at a time, and how to seal one that was changed
(lengths, checksums).  Frames are rows of a uint8 array of shape (frames, width), zeros behind their
ends; `n` holds their lengths.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator

import numpy as np

Array = np.ndarray

HEAD, ICRC, MOST = 86, 4, 4096
LEAST_FRAME = HEAD + ICRC
MOST_FRAME = HEAD + MOST + ICRC
#: bytes of an element by its code: bytes, f16, bf16, f32, f64, two of 8 bits, i8, i16, i32, i64,
#: two of 8 bits; none up to 128, then records of so many bytes; 0: there is no such type
SIZES = np.array([1, 2, 2, 4, 8, 1, 1, 1, 2, 4, 8, 1, 1, *[0] * 116, *range(1, 128)])
#: field -> (first byte, bytes): of the reduction header
HEADER = {
    "version": (54, 1),
    "kind": (55, 1),
    "job": (56, 2),
    "group": (58, 4),
    "seq": (62, 4),
    "chunk": (66, 4),
    "round": (70, 4),
    "lane": (74, 2),
    "child": (76, 2),
    "contributors": (78, 2),
    "count": (80, 2),
    "type": (82, 1),
    "flags": (83, 1),
    "reserved": (84, 2),
}
#: and before it
OUTER = {
    "mac_dst": (0, 6),
    "mac_src": (6, 6),
    "ethertype": (12, 2),
    "ip_version": (14, 1),
    "tos": (15, 1),
    "ip_length": (16, 2),
    "ip_id": (18, 2),
    "fragment": (20, 2),
    "ttl": (22, 1),
    "protocol": (23, 1),
    "checksum": (24, 2),
    "ip_src": (26, 4),
    "ip_dst": (30, 4),
    "udp_src": (34, 2),
    "udp_dst": (36, 2),
    "udp_length": (38, 2),
    "udp_checksum": (40, 2),
    "opcode": (42, 1),
    "bth_flags": (43, 1),
    "pkey": (44, 2),
    "congestion": (46, 1),
    "qp": (47, 3),
    "ack": (50, 1),
    "psn": (51, 3),
}
FIELDS = OUTER | HEADER


def icrc(frame: bytes) -> bytes:
    """The four bytes that end a frame, from all before them."""
    covered = bytearray(frame[14:-ICRC])
    covered[1] = covered[8] = covered[32] = 0xFF  # ToS, TTL, FECN and BECN
    covered[10:12] = covered[26:28] = b"\xff\xff"  # checksums of IP and UDP
    return struct.pack("<I", zlib.crc32(b"\xff" * 8 + covered))


def value(frames: Array, field: str) -> Array:
    """A field of every frame as int64."""
    at, size = FIELDS[field]
    weights = 256 ** np.arange(size - 1, -1, -1)
    found: Array = (frames[:, at : at + size] * weights).sum(1)
    return found


def put(frames: Array, field: str, values: Array | int) -> None:
    """Write a field of every frame."""
    at, size = FIELDS[field]
    shifts = 8 * np.arange(size - 1, -1, -1)
    frames[:, at : at + size] = np.asarray(values)[..., None] >> shifts & 255


def ip_sum(frames: Array) -> Array:
    """Sum of the IP header's 16-bit words, modulo 65535."""
    words: Array = frames[:, 14:34].reshape(len(frames), 10, 2) @ np.array([256, 1])
    found: Array = words.sum(1) % 65535
    return found


def seal(frames: Array, n: Array) -> None:
    """Give the frames, LEAST_FRAME bytes at least, the lengths, IP checksum and ICRC that fit."""
    put(frames, "ip_length", n - 14 & 0xFFFF)
    put(frames, "udp_length", n - 34 & 0xFFFF)
    seal_checksums(frames, n)


def seal_checksums(frames: Array, n: Array) -> None:
    """The same without the lengths."""
    put(frames, "checksum", 0)
    put(frames, "checksum", 65535 - ip_sum(frames))
    for row, size in zip(frames, n.tolist(), strict=True):
        row[size - ICRC : size] = np.frombuffer(icrc(row[:size].tobytes()), np.uint8)


def address_wrong(frames: Array, end: str) -> Array:
    ip, mac = value(frames, f"ip_{end}"), value(frames, f"mac_{end}")
    wrong: Array = (ip >> 24 != 10) | (mac != (0x0200 << 32 | ip))
    return wrong


def pad_wrong(frames: Array, n: Array) -> Array:
    pad, padded = value(frames, "bth_flags") >> 4 & 3, n - LEAST_FRAME
    wrong: Array = (padded % 4 != 0) | (pad > padded)
    rows = np.arange(len(frames))
    for i in range(3):
        wrong |= (i < pad) & (frames[rows, np.clip(n - ICRC - 1 - i, 0, None)] != 0)
    return wrong


def icrc_wrong(frames: Array, n: Array) -> Array:
    wrong = [
        icrc(frame) != frame[-ICRC:]
        for frame in (row[:size].tobytes() for row, size in zip(frames, n.tolist(), strict=True))
    ]
    return np.array(wrong, bool)


def conditions(frames: Array, n: Array) -> Iterator[tuple[str, Array | None]]:
    """Reason -> which frames it holds of, in the order of the checks; the ICRC is left to do."""
    get = {name: value(frames, name) for name in FIELDS}
    size = SIZES[get["type"]]
    known = size != 0
    payload = n - LEAST_FRAME - (get["bth_flags"] >> 4 & 3)
    yield "short", n < LEAST_FRAME
    yield "long", n > MOST_FRAME
    yield "ethertype", get["ethertype"] != 0x0800
    yield "ip", get["ip_version"] != 0x45
    yield "protocol", get["protocol"] != 17
    yield "fragment", get["fragment"] & 0xBFFF != 0
    yield "port", get["udp_dst"] != 4791
    yield "opcode", get["opcode"] != 0x24
    yield "length", (get["ip_length"] != n - 14) | (get["udp_length"] != n - 34)
    yield "checksum", ip_sum(frames) != 0
    yield "address", address_wrong(frames, "dst") | address_wrong(frames, "src")
    yield "bth", (get["bth_flags"] & 0xCF != 0x40) | (get["ack"] != 0)
    yield "pkey", get["pkey"] != 0xFFFF
    yield "pad", pad_wrong(frames, n)
    yield "icrc", None
    yield "version", get["version"] != 1
    yield "kind", (get["kind"] != 1) & (get["kind"] != 2)
    yield "qp", get["qp"] != (get["job"] << 8 | 2)
    yield "flags", get["flags"] > 7
    yield "reserved", get["reserved"] != 0
    yield "type", ~known
    yield "count", known & (get["count"] * size != payload)
    yield "empty", (get["count"] == 0) != (get["flags"] >> 1 & 1)


def verdicts(frames: Array, n: Array) -> Array:
    """The name of the first reason that holds of each frame, or "accepted"."""
    found = np.full(len(frames), "accepted", "U16")
    for name, holds in conditions(frames, n):
        left = found == "accepted"
        if holds is None:
            holds = np.zeros(len(frames), bool)
            holds[left] = icrc_wrong(frames[left], n[left])
        found[left & holds] = name
    return found


def as_rows(*frames: bytes | bytearray) -> tuple[Array, Array]:
    """Frames as an array, at least LEAST_FRAME wide, and their lengths."""
    n = np.array([len(f) for f in frames])
    rows = np.zeros((len(frames), max(LEAST_FRAME, *n)), np.uint8)
    for row, frame in zip(rows, frames, strict=True):
        row[: len(frame)] = np.frombuffer(frame, np.uint8)
    return rows, n


def reasons(frame: bytes) -> set[str]:
    """Everything that is wrong with one frame of LEAST_FRAME bytes or more."""
    rows, n = as_rows(frame)
    return {
        name
        for name, holds in conditions(rows, n)
        if (icrc_wrong(rows, n) if holds is None else holds)[0]
    }
