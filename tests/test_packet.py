"""Frames: there and back, each check on its own, the ICRC against other computations, and noise."""

from __future__ import annotations

import os
import random
import re
import struct
import time
import zlib
from collections.abc import Callable
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import nicemu
from nicemu import ArgumentError
from nicemu._nicemu import ffi, lib
from nicemu.dtypes import FORMATS
from nicemu.network.packet import Drop, Kind, Packet, build, drops, elements, parse
from nicemu.network.pcap import Capture
from tests import frames, wire_model
from tests.wireshark import wireshark

SECONDS = float(os.environ.get("NICEMU_FUZZ_SECONDS", "0"))
WIRE = [drop.name for drop in drops() if drop.station == "wire"]
GUIDE = (Path(nicemu.__file__).parent / "guide" / "wire.md").read_text()
#: one packet whose fields all differ, with one pad byte
PACKET = Packet(
    Kind.UP,
    job=0x1122,
    group=0x33445566,
    seq=0x778899AA,
    chunk=0xBBCCDDEE,
    round=0xFF102030,
    lane=0x4050,
    child=0x6070,
    contributors=0x8090,
    element="bytes",
    moved=True,
    psn=0xA1B2C3,
    src=0xD4E5F6,
    dst=0x010203,
    payload=bytes(range(1, 8)),
)


@st.composite
def packets(draw: st.DrawFn) -> Packet:
    def number(bits: int) -> int:
        return draw(st.integers(0, 2**bits - 1))

    element = draw(st.sampled_from(list(elements().values())))
    most = 4096 // element.size
    count = draw(st.integers(0, draw(st.sampled_from((3, min(40, most), most)))))
    return Packet(
        draw(st.sampled_from(Kind)),
        job=number(16),
        group=number(32),
        seq=number(32),
        chunk=number(32),
        round=number(32),
        lane=number(16),
        child=number(16),
        contributors=number(16),
        element=element.name,
        partial=draw(st.booleans()),
        moved=draw(st.booleans()),
        psn=number(24),
        src=number(24),
        dst=number(24),
        payload=random.Random(number(16)).randbytes(count * element.size),
    )


# ---- there and back --------------------------------------------------------------------------


@given(packets())
@settings(deadline=None)
def test_round_trip(packet: Packet) -> None:
    frame = build(packet)
    assert len(frame) == 90 + -(-len(packet.payload) // 4) * 4
    assert parse(frame) == packet
    assert wire_model.reasons(frame) == set()
    assert frame[-4:] == wire_model.icrc(frame)


@pytest.mark.parametrize(
    "size", [*range(70), 79, 80, 127, 128, 129, 255, 256, 257, 1023, 1024, 1025, 4095, 4096]
)
def test_every_length_of_payload(size: int) -> None:
    packet = Packet(Kind.DOWN, payload=os.urandom(size))
    frame = build(packet)
    assert parse(frame) == packet
    assert frame[-4:] == wire_model.icrc(frame)


def test_what_does_not_fit_is_refused() -> None:
    widths = {"job": 16, "group": 32, "seq": 32, "chunk": 32, "round": 32, "lane": 16, "child": 16}
    for name, bits in {**widths, "contributors": 16, "psn": 24, "src": 24, "dst": 24}.items():
        largest: dict[str, Any] = {name: 2**bits - 1}
        packet = parse(build(replace(PACKET, **largest)))
        assert isinstance(packet, Packet) and getattr(packet, name) == 2**bits - 1
        for value in (-1, 2**bits, 2**70):
            unfit: dict[str, Any] = {name: value}
            with pytest.raises(ArgumentError, match=rf"^{name} {value}: use 0 to {2**bits - 1}$"):
                build(replace(PACKET, **unfit))
    with pytest.raises(ArgumentError, match=r"payload of 4097 bytes: .*at most 4096"):
        build(Packet(Kind.UP, payload=bytes(4097)))
    with pytest.raises(ArgumentError, match=r"payload of 7 bytes: use a multiple of 4 \(f32\)"):
        build(Packet(Kind.UP, element="f32", payload=bytes(7)))
    with pytest.raises(ArgumentError, match="element 'f8' is unknown: use one of bytes, f16, bf16"):
        build(Packet(Kind.UP, element="f8"))
    with pytest.raises(ArgumentError, match="kind 3: use one of UP, DOWN"):
        build(Packet(3))  # type: ignore[arg-type]


def test_elements_are_the_formats() -> None:
    """The codes are positions, then record sizes; every format of dtypes has one."""
    codes = [e.code for e in elements().values()]
    assert codes == np.flatnonzero(wire_model.SIZES).tolist()
    assert [e.size for e in elements().values()] == wire_model.SIZES[codes].tolist()
    for row in FORMATS:
        assert elements()[row.alias].size == row.size


# ---- each check ------------------------------------------------------------------------------

Change = Callable[[bytearray], None]


def setting(field: str, value: int) -> Change:
    at, size = wire_model.FIELDS[field]

    def change(frame: bytearray) -> None:
        frame[at : at + size] = value.to_bytes(size, "big")

    return change


def flipping(at: int, mask: int) -> Change:
    def change(frame: bytearray) -> None:
        frame[at] ^= mask

    return change


def cut_to(size: int) -> Change:
    def change(frame: bytearray) -> None:
        del frame[size:]

    return change


def with_payload(size: int) -> Change:
    """Zeros for payload and pad, of the given length."""

    def change(frame: bytearray) -> None:
        frame[86:-4] = bytes(size)

    return change


def without_data(frame: bytearray) -> None:
    """No payload and a count of 0, but not the flag."""
    frame[86:-4] = b""
    for field, value in (("count", 0), ("bth_flags", 0x40)):
        setting(field, value)(frame)


#: reason -> what brings it about, and nothing else, once the frame is sealed again
VIOLATIONS: dict[str, list[Change]] = {
    "short": [cut_to(89), cut_to(42), cut_to(1), cut_to(0)],
    "long": [with_payload(4097), with_payload(4100), with_payload(9000), with_payload(70000)],
    "ethertype": [setting("ethertype", 0x86DD), setting("ethertype", 0x0801)],
    "ip": [setting("ip_version", 0x46), setting("ip_version", 0x65)],
    "protocol": [setting("protocol", 6)],
    "fragment": [setting("fragment", 0x2000), setting("fragment", 1), setting("fragment", 0x8000)],
    "port": [setting("udp_dst", 4790), setting("udp_dst", 0)],
    "opcode": [setting("opcode", 0x04), setting("opcode", 0x25), setting("opcode", 0x64)],
    "length": [setting("ip_length", 83), setting("udp_length", 65), setting("ip_length", 0)],
    "checksum": [flipping(24, 1), flipping(25, 0x80)],
    "address": [
        setting("ip_src", 0x0B000001),
        setting("ip_dst", 0x0A010204),
        setting("mac_src", 0x02000AD4E5F7),
        setting("mac_dst", 0xFFFFFFFFFFFF),
        setting("mac_dst", 0x03000A010203),
    ],
    "bth": [flipping(43, 0x80), flipping(43, 0x40), flipping(43, 1), flipping(50, 0x80)],
    "pkey": [setting("pkey", 0x7FFF)],
    "pad": [flipping(93, 1), with_payload(6), with_payload(0)],
    "icrc": [flipping(-1, 1), flipping(-4, 0x80)],
    "version": [setting("version", 0), setting("version", 2)],
    "kind": [setting("kind", 0), setting("kind", 3)],
    "qp": [setting("qp", 0x112201), setting("qp", 0x112302), setting("job", 0)],
    "flags": [flipping(83, 8), flipping(83, 0x80)],
    "reserved": [setting("reserved", 1), setting("reserved", 0x8000)],
    "type": [setting("type", 13), setting("type", 128)],
    "count": [setting("count", 6), setting("count", 8), setting("type", 1)],
    "empty": [flipping(83, 2), without_data],
}
#: what a frame of another length cannot help
ENTAILED = {"long": {"length", "pad", "count"}, "pad": {"count"}}
#: changes of what the seal would mend, or of a frame too short for one
UNSEALED = {"short", "length", "checksum", "icrc"}
CASES = [(name, change) for name, changes in VIOLATIONS.items() for change in changes]


def sealed(frame: bytes | bytearray, *, lengths: bool = True) -> bytes:
    rows, n = wire_model.as_rows(frame)
    (wire_model.seal if lengths else wire_model.seal_checksums)(rows, n)
    return rows.tobytes()


def violating(name: str, change: Change) -> bytes:
    """A frame with one violation; all else is as it should be."""
    frame = bytearray(build(PACKET))
    change(frame)
    if name == "length":
        return sealed(frame, lengths=False)
    return bytes(frame) if name in UNSEALED else sealed(frame)


def test_every_reason_of_the_wire_has_a_violation() -> None:
    assert list(VIOLATIONS) == WIRE


@pytest.mark.parametrize(("name", "change"), CASES)
def test_each_check(name: str, change: Change) -> None:
    """One violation, one reason; the model finds no other."""
    frame = violating(name, change)
    dropped = parse(frame)
    assert isinstance(dropped, Drop) and dropped.name == name
    if name == "short":
        assert len(frame) < 90
    else:
        found = wire_model.reasons(frame)
        assert name in found and found - {name} <= ENTAILED.get(name, set())


@pytest.mark.parametrize(("first", "second"), list(combinations(WIRE[2:], 2)))
def test_the_first_reason_counts(first: str, second: str) -> None:
    """Two violations that do not depend on the length: the one that is earlier in the table."""
    frame = bytearray(build(PACKET))
    both = [VIOLATIONS[second][0], VIOLATIONS[first][0]]
    unsealed = [c for n, c in zip((second, first), both, strict=True) if n in UNSEALED]
    for change in both:
        change(frame)
    frame = bytearray(sealed(frame))
    for change in unsealed:
        change(frame)
    if "length" in (first, second) and "checksum" not in (first, second):
        frame = bytearray(sealed(frame, lengths=False))
        if second == "icrc":
            VIOLATIONS["icrc"][0](frame)
    dropped = parse(bytes(frame))
    assert isinstance(dropped, Drop) and dropped.name == first


@pytest.mark.parametrize("field", ["tos", "ttl", "udp_checksum", "congestion", "ip_id", "udp_src"])
def test_fields_that_are_not_looked_at(field: str) -> None:
    """What routers may change, behind which the ICRC stays right, and what says nothing here."""
    frame = build(PACKET)
    for value in (0, 1, 0xFF):
        changed = bytearray(frame)
        setting(field, value)(changed)
        resealed = sealed(changed)
        assert parse(resealed) == PACKET
        changes_icrc = field in ("ip_id", "udp_src") and resealed[:-4] != frame[:-4]
        assert (resealed[-4:] != frame[-4:]) == changes_icrc


def test_the_icrc_can_be_left_unchecked() -> None:
    frame = violating("icrc", VIOLATIONS["icrc"][0])
    assert parse(frame, icrc=False) == PACKET
    damaged = bytearray(frame)
    damaged[88] ^= 1
    assert parse(bytes(damaged), icrc=False) != PACKET
    assert isinstance(parse(bytes(damaged)), Drop)


def test_any_flipped_bit_is_seen() -> None:
    """Dropped, or in a field that routers may change: the packet is the same."""
    frame = build(PACKET)
    ignored = set()
    for bit in range(8 * len(frame)):
        changed = bytearray(frame)
        changed[bit // 8] ^= 1 << bit % 8
        seen = parse(bytes(changed))
        if isinstance(seen, Packet):
            assert seen == PACKET
            ignored.add(bit // 8)
    assert ignored == {40, 41, 46}  # UDP checksum, congestion; ToS and TTL are in the IP checksum


def test_a_dropped_frame_leaves_no_trace() -> None:
    out, size = ffi.new("nicemu_packet *"), ffi.new("uint32_t *", 77)
    ffi.memmove(out, b"\xa5" * ffi.sizeof("nicemu_packet"), ffi.sizeof("nicemu_packet"))
    before = bytes(ffi.buffer(out))
    for name, change in CASES:
        frame = violating(name, change)
        assert lib.nicemu_packet_parse(frame, len(frame), 1, out, size) == WIRE.index(name) + 1
        assert bytes(ffi.buffer(out)) == before and size[0] == 77


# ---- the ICRC --------------------------------------------------------------------------------


def test_icrc_of_hardware() -> None:
    """A congestion notification as a ConnectX-4 Lx sent it, with its ICRC: the model computes it.

    Its fields, as published with Scapy (test/contrib/roce.uts), from MAC to BTH.
    """
    ip = struct.pack(
        ">BBHHHBBHII", 0x45, 0xC2, 60, 0x718C, 0x4000, 64, 17, 0x9161, 0x0A001101, 0x0A001201
    )
    udp = struct.pack(">HHHH", 0, 4791, 40, 0)
    bth = struct.pack(">BBHBxHI", 0x81, 0, 0xFFFF, 0x40, 0x0118, 0)
    frame = bytes(14) + ip + udp + bth + bytes(16)
    assert len(ip + udp + bth) == 40
    assert wire_model.icrc(frame + bytes(4)) == bytes.fromhex("82fd002a")


def test_icrc_begins_behind_eight_ff() -> None:
    """The constant in packet.c, which Linux's driver has too, and what it stands for."""
    assert zlib.crc32(b"\xff" * 8) ^ 0xFFFFFFFF == 0xDEBB20E3


def test_icrc_of_scapy() -> None:
    roce = pytest.importorskip("scapy.contrib.roce", reason="scapy is not installed")
    l2 = pytest.importorskip("scapy.layers.l2")
    for frame in frames.good_frames(np.random.default_rng(6), 300):
        packet = parse(frame)
        assert isinstance(packet, Packet)
        dissected = l2.Ether(frame)
        bth = dissected[roce.BTH]
        assert bth.opcode == roce.opcode("UC", "SEND_ONLY")[0]
        assert (bth.psn, bth.pkey, bth.dqpn) == (packet.psn, 0xFFFF, packet.job << 8 | 2)
        assert bth.padcount == -len(packet.payload) % 4
        assert bth.icrc == int.from_bytes(frame[-4:], "big")
        del bth.icrc
        del dissected["IP"].chksum
        assert bytes(dissected) == frame  # with both computed again


# ---- other readers ---------------------------------------------------------------------------


def test_tshark_reads_rocev2(tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    sent = frames.good_frames(rng, 512)
    with Capture(tmp_path / "x.pcap") as capture:
        for i, frame in enumerate(sent):
            capture.write(1_000_000_000 * i + 7 * i, frame)
    names = (
        "frame.protocols",
        "frame.time_epoch",
        "ip.checksum.status",
        "infiniband.bth.opcode",
        "infiniband.bth.padcnt",
        "infiniband.bth.destqp",
        "infiniband.bth.psn",
        "infiniband.invariant.crc",
        "_ws.expert.message",
    )
    columns = [word for name in names for word in ("-e", name)]
    capture_file = "-r", tmp_path / "x.pcap", "-o", "ip.check_checksum:TRUE"
    lines = wireshark("tshark", *capture_file, "-T", "fields", *columns).splitlines()
    assert len(lines) == len(sent)
    for i, (line, frame) in enumerate(zip(lines, sent, strict=True)):
        packet = parse(frame)
        assert isinstance(packet, Packet)
        read = dict(zip(names, line.split("\t"), strict=True))
        assert read["frame.protocols"].startswith("eth:ethertype:ip:udp:infiniband")
        assert read["frame.time_epoch"] == f"{i}.{7 * i:09}"
        assert read["ip.checksum.status"] == "1"  # good
        assert int(read["infiniband.bth.opcode"]) == 36  # UC SEND Only
        assert int(read["infiniband.bth.padcnt"]) == -len(packet.payload) % 4
        assert int(read["infiniband.bth.destqp"], 16) == packet.job << 8 | 2
        assert int(read["infiniband.bth.psn"]) == packet.psn
        # tshark 4.0 shows the ICRC; whether it is right, it does not say
        assert int(read["infiniband.invariant.crc"], 16) == int.from_bytes(frame[-4:], "big")
        assert read["_ws.expert.message"] == ""


# ---- the guide -------------------------------------------------------------------------------


def rows(heading: str) -> list[list[str]]:
    """The cells of the table under a heading of the guide."""
    text = GUIDE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    lines = [line for line in text.splitlines() if line.startswith("|")][2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_the_guide_lists_the_reasons() -> None:
    assert rows("Drop reasons") == [[f"`{d.name}`", d.station, d.text] for d in drops()]


def test_the_guide_lists_the_elements() -> None:
    listed = rows("Element types")
    assert [[row[0], row[1].strip("`"), row[2]] for row in listed] == [
        [str(e.code), e.name, str(e.size)] for e in elements().values() if e.code < 128
    ]


def test_the_guide_has_every_byte_of_the_head() -> None:
    """Offsets follow each other without a gap; the model has the same fields, frames the values."""
    frame = build(PACKET)
    at = 0
    fields = {}
    for offset, size, name, content in rows("Frame"):
        if name in ("payload", "pad", "ICRC"):
            continue
        assert int(offset) == at, name
        at += int(size)
        fields[name] = int(offset), int(size)
        if match := re.match(r"`([0-9a-f]+)`", content):  # what every frame has there
            assert frame[int(offset) : at].hex() == match[1], name
    assert at == 86
    assert fields == wire_model.FIELDS
    for name in ("job", "group", "seq", "chunk", "round", "lane", "child", "contributors", "psn"):
        assert wire_model.value(wire_model.as_rows(frame)[0], name)[0] == getattr(PACKET, name)


def test_the_guides_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    program = re.search(r"```python\n(.*?)```", GUIDE, re.DOTALL)
    assert program
    monkeypatch.chdir(tmp_path)
    exec(program[1], {})
    assert capsys.readouterr().out.startswith("0 Packet(kind=<Kind.UP: 1>")


# ---- noise -----------------------------------------------------------------------------------


def test_hostile_frames() -> None:
    """A slice of ``python -m tests.frames``: each verdict is the model's, and all come up."""
    seen: set[str] = set()
    end = time.monotonic() + SECONDS
    seed = 0
    while seed < 1 or time.monotonic() < end:
        for batch, core, expected in frames.run(60_000, seed):
            for i in np.flatnonzero(core != expected)[:1]:
                frame = batch.frames[i, : batch.n[i]].tobytes()
                pytest.fail(f"{core[i]}, not {expected[i]}: {frame.hex()}")
            seen |= set(core.tolist())
        seed += 1
    assert seen == {"accepted", *WIRE}


def test_the_command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Counts per verdict; 1 when the model differs."""
    assert frames.main(["--frames", "4000", "--seed", "9"]) == 0
    shown = capsys.readouterr().out
    assert re.search(r"^accepted +\d+$", shown, re.MULTILINE)
    assert re.search(r"^seed 9: 4096 frames, 0 judged differently", shown, re.MULTILINE)
    monkeypatch.setattr(wire_model, "SIZES", np.roll(wire_model.SIZES, 1))
    assert frames.main(["--frames", "4000", "--seed", "9"]) == 1
    assert re.search(r"^accepted, not count: 02000a", capsys.readouterr().out, re.MULTILINE)
