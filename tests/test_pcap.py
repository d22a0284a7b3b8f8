"""Captures: written, read in every dialect, refused when damaged, whole or not there."""

from __future__ import annotations

import random
import struct
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nicemu import ArgumentError, FileFormatError
from nicemu.network.pcap import MOST_BYTES, Capture, Record, read
from tests.wireshark import wireshark

MICRO, NANO = 0xA1B2C3D4, 0xA1B23C4D
#: times that microseconds can say
RECORDS = [Record(1_000, b"abc"), Record(7_000_001_000, b""), Record(7_999_999_000, bytes(100))]


def file_bytes(
    records: list[Record] = RECORDS,
    *,
    order: str = "<",
    magic: int = NANO,
    version: tuple[int, int] = (2, 4),
    link: int = 1,
) -> bytes:
    """A capture by the format's description."""
    out = struct.pack(f"{order}IHHiIII", magic, *version, 0, 0, 65535, link)
    for time, frame in records:
        seconds, rest = divmod(time, 10**9)
        fraction = rest // (1000 if magic == MICRO else 1)
        out += struct.pack(f"{order}IIII", seconds, fraction, len(frame), len(frame)) + frame
    return out


def refused(path: Path, *words: str) -> None:
    """One line, after any number of good records."""
    with pytest.raises(FileFormatError) as error:
        list(read(path))
    text = str(error.value)
    assert "\n" not in text and text.startswith(f"{path}: ")
    for word in words:
        assert word in text


times = st.integers(0, 2**32 * 10**9 - 1)


@given(st.lists(st.tuples(times, st.binary(max_size=300))))
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_round_trip(tmp_path: Path, records: list[tuple[int, bytes]]) -> None:
    with Capture(tmp_path / "x.pcap") as capture:
        for time, frame in records:
            capture.write(time, frame)
    assert list(read(tmp_path / "x.pcap")) == records
    assert (tmp_path / "x.pcap").read_bytes() == file_bytes([Record(*r) for r in records]).replace(
        struct.pack("<I", 65535), struct.pack("<I", MOST_BYTES), 1
    )


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("magic", [MICRO, NANO])
def test_every_dialect(tmp_path: Path, order: str, magic: int) -> None:
    path = tmp_path / "x.pcap"
    path.write_bytes(file_bytes(order=order, magic=magic))
    assert list(read(path)) == RECORDS


def test_a_cut_frame_is_passed_on(tmp_path: Path) -> None:
    """What the capturing program has left out is missing; to judge that is packet's task."""
    path = tmp_path / "x.pcap"
    path.write_bytes(file_bytes([]) + struct.pack("<IIII", 0, 5, 3, 90) + b"abc")
    assert list(read(path)) == [(5, b"abc")]


def test_a_file_cut_anywhere(tmp_path: Path) -> None:
    """Its whole records, and an error where one is cut."""
    path = tmp_path / "x.pcap"
    data = file_bytes()
    whole = {len(file_bytes(RECORDS[:n])): n for n in range(len(RECORDS) + 1)}
    for size in range(len(data)):
        path.write_bytes(data[:size])
        if size in whole:
            assert list(read(path)) == RECORDS[: whole[size]]
        else:
            refused(path, "is cut short" if size >= 24 else "is no pcap file")


def test_damaged_files(tmp_path: Path) -> None:
    path = tmp_path / "x.pcap"

    def record(*numbers: int) -> bytes:
        return file_bytes(RECORDS[:1]) + struct.pack("<IIII", *numbers) + bytes(100)

    for data, *words in (
        (b"", "is no pcap file"),
        (bytes(24), "is no pcap file"),
        (b"\x0a\x0d\x0d\x0a" + bytes(100), "pcapng", "editcap"),
        (file_bytes(version=(2, 3)), "version 2.3"),
        (file_bytes(link=113), "link type 0x71", "Ethernet"),
        (file_bytes(link=0x14000001), "link type 0x14000001"),  # frames with their check sequence
        (record(0, 10**9, 0, 0), "record 2 has 1000000000 units"),
        (record(0, 0, 5, 4), "record 2 claims 5 bytes of a frame of 4"),
        (record(0, 0, 2**32 - 1, 2**32 - 1), "record 2 claims 4294967295 bytes"),
        (record(0, 0, 101, 101), "record 2 is cut short: 100 bytes of 101"),
        (file_bytes(magic=MICRO) + struct.pack("<IIII", 0, 10**6, 0, 0), "record 4 has 1000000"),
    ):
        path.write_bytes(data)
        refused(path, *words)


def test_mutated_files(tmp_path: Path) -> None:
    """Read, or refused with one line; nothing else is raised."""
    path = tmp_path / "x.pcap"
    outcomes = {"read": 0, "refused": 0}
    for seed in range(2000):
        rng = random.Random(seed)
        data = bytearray(file_bytes(order=rng.choice("<>"), magic=rng.choice((MICRO, NANO))))
        for _ in range(rng.randrange(1, 4)):
            at = rng.randrange(len(data))
            size = rng.randrange(5)
            data[at : at + size] = rng.randbytes(size if seed % 2 else rng.randrange(5))
        path.write_bytes(data)
        try:
            list(read(path))
            outcomes["read"] += 1
        except FileFormatError as error:
            assert "\n" not in str(error)
            outcomes["refused"] += 1
    assert min(outcomes.values()) > 300


def test_what_cannot_be_read(tmp_path: Path) -> None:
    refused(tmp_path / "none.pcap", "cannot be read: No such file")
    refused(tmp_path, "cannot be read: Is a directory")
    with pytest.raises(FileFormatError, match="cannot be read: embedded null byte"):
        list(read("a\0b"))


# ---- whole, or not there ---------------------------------------------------------------------


def test_nothing_is_left_after_an_error(tmp_path: Path) -> None:
    path = tmp_path / "x.pcap"
    path.write_bytes(b"before")
    with pytest.raises(KeyboardInterrupt), Capture(path) as capture:
        capture.write(0, bytes(100_000))
        assert len(list(tmp_path.iterdir())) == 2
        raise KeyboardInterrupt
    assert path.read_bytes() == b"before" and list(tmp_path.iterdir()) == [path]


def test_it_can_be_put_in_place_early(tmp_path: Path) -> None:
    """Where what was captured is wanted although the run has failed."""
    path = tmp_path / "x.pcap"
    with pytest.raises(ZeroDivisionError), Capture(path) as capture:
        capture.write(5, b"abc")
        capture.close()
        raise ZeroDivisionError
    assert list(read(path)) == [(5, b"abc")]


def test_what_cannot_be_written(tmp_path: Path) -> None:
    for path, words in (
        (tmp_path / "none" / "x.pcap", "cannot be written: No such file"),
        (tmp_path, "exists and cannot be replaced"),
        (Path("/dev/null"), "exists and cannot be replaced"),
    ):
        with pytest.raises(FileFormatError, match=f"^{path}: {words}"):
            Capture(path)
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk(tmp_path: Path) -> None:
    """When a frame is written, and when the last of them are."""
    for size in (10, 100_000):
        capture = Capture(tmp_path / "x.pcap")
        capture._file = open("/dev/full", "wb")  # noqa: PTH123, SIM115
        with pytest.raises(FileFormatError, match=r"x\.pcap: cannot be written: No space"), capture:
            capture.write(0, bytes(size))
        assert list(tmp_path.iterdir()) == []


def test_what_no_record_can_hold(tmp_path: Path) -> None:
    with Capture(tmp_path / "x.pcap") as capture:
        for time in (-1, 2**32 * 10**9):
            with pytest.raises(ArgumentError, match=f"time {time} ns: use"):
                capture.write(time, b"")
        with pytest.raises(ArgumentError, match="frame of 262145 bytes: use at most 262144"):
            capture.write(0, bytes(MOST_BYTES + 1))
        capture.write(0, bytes(MOST_BYTES))
    assert list(read(tmp_path / "x.pcap")) == [(0, bytes(MOST_BYTES))]


@pytest.mark.parametrize("form", ["pcap", "nsecpcap"])
def test_what_wireshark_writes(tmp_path: Path, form: str) -> None:
    """Its own copies of our file, with micro- and with nanoseconds."""
    path, copy = tmp_path / "x.pcap", tmp_path / "copy.pcap"
    path.write_bytes(file_bytes())
    wireshark("editcap", "-F", form, path, copy)
    assert list(read(copy)) == RECORDS
