"""Captures: files in pcap format, which tcpdump, Wireshark and tshark read.

Owns: the file format (magic numbers, record headers, both byte orders), frames as bytes with their
time.  What is in a frame is packet's; who captures what is fabric's.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, NamedTuple, NoReturn

from nicemu.errors import ArgumentError, FileFormatError
from nicemu.files import WholeFile, refuse

__all__ = ["Capture", "Record", "read"]

# The format: https://www.ietf.org/archive/id/draft-ietf-opsawg-pcap-06.html
HEADER = "IHHiIII"  # magic, version, zone, accuracy, most bytes of a record, link type
RECORD = "IIII"  # seconds, fraction, bytes here, bytes on the wire
VERSION = (2, 4)
ETHERNET = 1
MOST_BYTES = 262144  # of a record: what libpcap accepts
SECOND = 1_000_000_000
NANOSECONDS = 0xA1B23C4D
#: magic number -> nanoseconds of one unit of the fraction
UNITS = {NANOSECONDS: 1, 0xA1B2C3D4: 1000}
PCAPNG = b"\x0a\x0d\x0d\x0a"


class Record(NamedTuple):
    """One captured frame.

    Attributes:
        time: nanoseconds.
        frame: its bytes from the Ethernet header on; fewer than on the wire where whoever
            captured it cut it.
    """

    time: int
    frame: bytes


class Capture(WholeFile):
    """A capture to be written; it appears, whole, when the block ends without an exception::

    with Capture("run.pcap") as capture:
        capture.write(1_000, frame)
    """

    def __init__(self, path: str | Path) -> None:
        """Open a temporary file beside ``path``.

        Raises:
            FileFormatError: the path is a directory or a device, or it cannot be written.
        """
        super().__init__(path)
        head = struct.pack(f"<{HEADER}", NANOSECONDS, *VERSION, 0, 0, MOST_BYTES, ETHERNET)
        try:
            self._file: BinaryIO = self._part.open("wb")
            self._file.write(head)
        except OSError as e:
            super().__exit__()
            self._unwritable(e)

    def write(self, time: int, frame: bytes) -> None:
        """Append one frame.

        Args:
            time: nanoseconds, less than 2**32 seconds.
            frame: its bytes from the Ethernet header on, without the frame check sequence.

        Raises:
            ArgumentError: the time is out of range, or the frame is larger than 262,144 bytes.
            FileFormatError: the file cannot be written.
        """
        if not 0 <= time < SECOND << 32:
            raise ArgumentError(f"time {time} ns: use 0 to 2**32 seconds")
        if len(frame) > MOST_BYTES:
            raise ArgumentError(f"frame of {len(frame)} bytes: use at most {MOST_BYTES}")
        head = struct.pack(f"<{RECORD}", *divmod(time, SECOND), len(frame), len(frame))
        try:
            self._file.write(head + frame)
        except OSError as e:
            self._unwritable(e)

    def append(self, records: bytes) -> None:
        """Append whole records as the C core writes them.

        Raises:
            FileFormatError: the file cannot be written.
        """
        try:
            self._file.write(records)
        except OSError as e:
            self._unwritable(e)

    def close(self) -> None:
        """Put the file in place.

        Raises:
            FileFormatError: the file cannot be written.
        """
        with self.put():
            self._file.close()

    def __exit__(self, *exception: object) -> None:
        """Put the file in place; after an exception, remove it."""
        try:
            if exception[0] is None:
                self.close()
        finally:
            super().__exit__()
            with suppress(OSError):  # what is left in its buffer: the disk may be full
                self._file.close()


def read(path: str | Path) -> Iterator[Record]:
    """The frames of a capture in their order, read one by one as they are asked for.

    Micro- and nanosecond files of both byte orders, link type Ethernet.

    Raises:
        FileFormatError: the file is missing, unreadable, damaged, cut short or of another kind;
            raised where it is found, which may be after some frames.
    """
    path = Path(path)
    try:
        with path.open("rb") as file:
            order, unit = _header(path, file)
            number = 0
            while head := file.read(struct.calcsize(RECORD)):
                number += 1
                yield _record(path, file, number, head, order, unit)
    except FileFormatError:
        raise
    except (OSError, ValueError) as e:  # the latter: a name with a NUL
        why = getattr(e, "strerror", None) or e
        refuse(path, f"cannot be read: {why}", "check the file and its permissions")


def _header(path: Path, file: BinaryIO) -> tuple[str, int]:
    """Byte order and nanoseconds per unit."""
    head = file.read(struct.calcsize(HEADER))
    if head[:4] == PCAPNG:
        refuse(path, "is a pcapng file", "convert it with editcap -F nsecpcap")
    for order in "<>":
        if len(head) == struct.calcsize(HEADER):
            magic, *version, _, _, _, link = struct.unpack(order + HEADER, head)
            if magic in UNITS:
                break
    else:
        refuse(path, "is no pcap file", "give a capture in pcap format")
    if tuple(version) != VERSION:
        refuse(path, f"has pcap version {version[0]}.{version[1]}", "write it as version 2.4")
    if link != ETHERNET:
        refuse(path, f"has link type {link:#x}, not Ethernet (1)", "capture on an Ethernet link")
    return order, UNITS[magic]


def _record(path: Path, file: BinaryIO, number: int, head: bytes, order: str, unit: int) -> Record:
    def damaged(why: str) -> NoReturn:
        refuse(path, f"record {number} {why}", "capture it again")

    if len(head) < struct.calcsize(RECORD):
        damaged("is cut short")
    seconds, fraction, size, length = struct.unpack(order + RECORD, head)
    if fraction * unit >= SECOND:
        damaged(f"has {fraction} units of {unit} ns beside its seconds")
    if size > min(length, MOST_BYTES):
        damaged(f"claims {size} bytes of a frame of {length}")
    frame = file.read(size)
    if len(frame) < size:
        damaged(f"is cut short: {len(frame)} bytes of {size}")
    return Record(seconds * SECOND + fraction * unit, frame)
