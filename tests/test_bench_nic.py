"""The bench of one device under load: what the wire, the DMA engine or the cores allow, how long
packets stay, and what may never be reported."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

import nicemu
from nicemu import ArgumentError, Communicator, Fabric, Network, Nic, TimingError
from nicemu._nicemu import lib
from nicemu.bench import nic as bench_nic
from nicemu.bench.nic import Latency, Load, NicRate, nic_rates
from nicemu.bench.op import LineRate
from nicemu.cli import main
from nicemu.device.machine import MACHINES, Machine
from nicemu.network.records import What
from nicemu.ops.samples import ordinary
from tests.test_cli import refused

CARD = MACHINES["card"]
SUM = nicemu.kernel("sum", "float16")


def loaded(
    ports: int = 1, mtu: int = 1024, machine: Machine = CARD, image: Any = SUM, **options: Any
) -> NicRate:
    (row,) = nic_rates([(image, machine, Load(LineRate(ports), mtu, **options))]).rows
    return row


def bench(*arguments: object) -> Result:
    result = CliRunner().invoke(main, ["bench", "nic", *map(str, arguments)])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


# ---- what limits a device ------------------------------------------------------------------------


@pytest.mark.parametrize("mtu", [256, 1024, 4096])
def test_one_port_is_limited_by_its_wire(mtu: int) -> None:
    """Frames have a head, an ICRC and what Ethernet puts around them.  Of packets of 4096 bytes
    cores come close to it, and conflicts for banks of 4 bytes take them beyond.
    """
    row = loaded(mtu=mtu, machine=replace(CARD, bank_bytes=16))
    around = lib.NICEMU_HEAD_BYTES + 4 + Network().overhead
    assert row.payload == mtu and row.bottleneck == "wire"
    assert row.rate == pytest.approx(200e9 * mtu / (mtu + around), rel=0.01)
    assert row.share == row.rate / 200e9 and 0.98 < row.wire <= 1
    assert row.rate == row.packet_rate * 8 * mtu


@pytest.mark.parametrize("mtu", [256, 4096])
def test_four_ports_are_limited_by_the_dma_engine(mtu: int) -> None:
    row = loaded(ports=4, mtu=mtu)
    assert row.bottleneck == "DMA" and 0.98 < row.dma <= 1
    assert row.rate == pytest.approx(8 * 64 * 1e9, rel=0.02)
    wide = loaded(ports=4, mtu=mtu, machine=replace(CARD, dma_bytes=128, cores=16))
    assert wide.bottleneck == "wire" and wide.rate > row.rate
    two = loaded(ports=4, mtu=mtu, machine=replace(CARD, clusters=2, cores=16))
    assert two.bottleneck == "wire" and two.rate > row.rate and 0.5 < two.dma < 1


@pytest.mark.parametrize(("cores", "ports"), [(1, 1), (2, 4)])
def test_few_cores_are_the_limit(cores: int, ports: int) -> None:
    """All of them are busy, with cycles that handlers take."""
    row = loaded(ports=ports, machine=replace(CARD, cores=cores), packets=200)
    assert row.bottleneck == "cores" and 0.98 < row.cores <= 1
    nic = Nic(CARD, cycles=True)
    nic.load(SUM)
    packets = [ordinary(nicemu.dtypes.format_of("float16"), 512, port) for port in range(ports)]
    accumulator = np.zeros(512, np.float32)
    entries = {1: ("first", "finish"), 4: ("first4_finish",)}[ports]
    cycles = 0
    for entry in entries:
        done = nic.handle(entry, packets if entry != "finish" else [], accumulator=accumulator)
        assert done.cycles is not None
        cycles += done.cycles.total
    assert row.cycles == cycles * 200
    assert row.packet_rate == pytest.approx(cores * ports * 1e9 / cycles, rel=0.02)


def test_a_packet_alone() -> None:
    """Parsed, moved by DMA, dispatched, handled."""
    row = loaded(packets=20)
    nic = Nic(CARD, cycles=True)
    nic.load(SUM)
    first = nic.handle("first", [np.ones(512, np.float16)]).cycles
    assert first is not None
    cycles = CARD.parse + 1024 // CARD.dma_bytes + CARD.dispatch + first.total
    assert row.alone == Latency(1000 * cycles, 1000 * cycles, 1000 * cycles)
    assert row.latency.least == row.alone.least  # the wire is slower than the rest: none waits, ...
    assert row.latency.mean == pytest.approx(row.alone.mean, rel=0.1)
    assert row.latency.most > row.alone.most  # ... but for banks


def test_packets_that_have_to_wait() -> None:
    """No more than the window's are on the device, and those of one chunk wait for each other."""
    for window in (1, 8, 64):
        row = loaded(ports=4, machine=replace(CARD, cores=2), window=window)
        assert row.load.window == min(window, 32)
        assert row.latency.least <= row.latency.mean <= row.latency.most
        assert row.latency.mean / 1e12 * row.packet_rate <= 4 * row.load.window
    few, many = (loaded(ports=4, window=window) for window in (2, 32))
    assert few.alone == many.alone and few.rate < many.rate
    assert few.latency.mean < many.latency.mean


def test_the_same_twice() -> None:
    assert loaded(ports=3) == loaded(ports=3)


def test_progress_is_told_within_a_load() -> None:
    """Of all bytes: a load may take half a minute."""
    told: list[tuple[int, int]] = []
    loads = [Load(LineRate(4), 256, packets) for packets in (1, 8000)]
    nic_rates([(SUM, CARD, load) for load in loads], lambda *now: told.append(now))
    first, both = 4 * 256, 4 * 256 * 8001
    assert told[:2] == [(0, both), (first, both)] and told == sorted(told)
    assert len(told) > 2 and all(first < done < both == total for done, total in told[2:])


def test_an_image_whose_chunks_are_smaller_than_a_packet() -> None:
    """Accumulators of many bytes: the payload is what is said, and the rate is of that."""
    row = loaded(image=nicemu.kernel("argmax", "float16"), packets=50)
    assert row.payload < 1024 and row.payload % 2 == 0 and row.bottleneck == "cores"


# ---- what is no result ---------------------------------------------------------------------------


def rate(**changed: Any) -> NicRate:
    """1000 packets of 1024 bytes at each of 4 ports in 64.0 us: as fast as the DMA engine is."""
    stay = Latency(42_000, 60_000, 80_000)
    fields: dict[str, Any] = {
        "op": "sum", "preset": "wide", "element": "float16", "machine": CARD,
        "load": Load(LineRate(4)), "payload": 1024, "picoseconds": 64_000_000, "cycles": 8 * 64_000,
        "latency": stay, "alone": stay, "wire": 0.64, "dma": 1.0, "cores": 0.9,
    }  # fmt: skip
    return NicRate(**{**fields, **changed})


def test_rates() -> None:
    row = rate()
    assert row.rate == pytest.approx(512e9) and row.share == pytest.approx(0.64)
    assert row.packet_rate == pytest.approx(62.5e6)
    told = row.record()
    assert (told["ports"], told["rate"], told["line_rate"]) == (4, 200e9, 800e9)
    assert told["margin"] == row.share - 1 and told["bottleneck"] == "DMA"
    assert told["latency_mean_ns"] == pytest.approx(60)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"picoseconds": 63_999_999}, "DMA of 64 bytes a cycle: 64000 ns at least"),
        ({"cycles": 8 * 64_001}, "8 cores for 512,008 cycles: 64001 ns at least"),
        (
            {"picoseconds": 40_000_000, "machine": replace(CARD, dma_bytes=128), "cycles": 8},
            "4x200 Gb/s: 40960 ns at least",
        ),
        ({"latency": Latency(41_999, 1e6, 10**6)}, "stays 41.999 ns on card: .* after 42 ns"),
        ({"alone": Latency(41_999, 1e6, 10**6)}, "stays 41.999 ns on card"),
    ],
)
def test_what_the_arithmetic_forbids_is_no_result(changed: dict[str, Any], said: str) -> None:
    with pytest.raises(TimingError, match=said):
        rate(**changed)


def test_a_clock_that_is_too_fast_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    right = bench_nic._Run.__init__

    def fast(self: Any, *args: Any) -> None:
        right(self, *args)
        self.picoseconds //= 2

    monkeypatch.setattr(bench_nic._Run, "__init__", fast)
    with pytest.raises(TimingError, match="1x200 Gb/s"):
        loaded(mtu=4096)
    with pytest.raises(TimingError, match="DMA of 32 bytes"):
        loaded(machine=replace(CARD, dma_bytes=32), ports=4)
    with pytest.raises(TimingError, match="1 cores for"):
        loaded(machine=replace(CARD, cores=1))


# ---- what is put down ----------------------------------------------------------------------------


def test_spans_of_a_fabric() -> None:
    fabric = Fabric(4, "star", time="packet")
    fabric.record()
    world = Communicator(fabric, algorithm="in-network")
    before = fabric.spans()
    world.allreduce(np.ones((4, 1024), np.float32))
    after = fabric.spans()
    assert before.size == 0 < after.size
    kinds = after["kind"]
    assert np.count_nonzero(kinds == What.TAKEN) == 4 * 4 == np.count_nonzero(kinds == What.DMA)
    assert fabric.spans().tobytes() == after.tobytes()
    with pytest.raises(ArgumentError, match="record: the fabric has had a group"):
        fabric.record()
    with pytest.raises(ArgumentError, match="record: the fabric is not timed"):
        Fabric(2).record()
    assert Fabric(2).spans().size == 0


# ---- the command ---------------------------------------------------------------------------------


def test_bench_nic(tmp_path: Path) -> None:
    out = tmp_path / "nic.json"
    asked = ("--payload", 256, "--payload", 1024, "--ports", 1, "--ports", 2, "--cores", 1)
    shown = bench(*asked, "--cores", 8, "--rate", 100, "--packets", 100, "--json", out)
    assert shown.exit_code == 0, shown.stderr
    rows = json.loads(out.read_text())["rows"]
    assert [(row["cores"], row["ports"], row["payload"]) for row in rows] == [
        (cores, ports, payload) for cores in (1, 8) for ports in (1, 2) for payload in (256, 1024)
    ]
    for row in rows:
        assert row["line_rate"] == row["ports"] * 100e9
        assert row["share"] == row["bits_per_second"] / row["line_rate"] < 1
        assert row["margin"] == row["share"] - 1
        assert row["alone_least_ns"] <= row["latency_mean_ns"] <= row["latency_most_ns"]
    assert {row["bottleneck"] for row in rows} == {"cores", "wire"}
    text = shown.stdout
    assert "its aggregate ingress" in text and "2x100 = 200" in text and "margin" in text
    assert max(map(len, text.splitlines())) <= 120
    flat = list(csv.DictReader(io.StringIO(bench(*asked, "--packets", 20, "--csv", "-").stdout)))
    assert {row["bottleneck"] for row in flat} <= {"wire", "DMA", "cores"} and len(flat) == 4


def test_bench_nic_of_other_ops() -> None:
    few = ("--packets", 20, "--payload", 512, "--ports", 1)
    assert "card at 1 GHz: max, bfloat16, per-add, 20" in bench(
        "--op", "max", "--dtype", "bf16", "--preset", "per-add", *few
    ).stdout  # fmt: skip
    assert "scalar_sum, float16, wide" in bench("--op", "scalar_sum", *few).stdout
    assert (
        "pspin at 1 GHz: sum, int32" in bench("--machine", "pspin", "--dtype", "int32", *few).stdout
    )


def test_bench_nic_refuses(tmp_path: Path) -> None:
    out = tmp_path / "x"
    for arguments, said in (
        (("--payload", 255), "payload 255"),
        (("--payload", 4097), "payload 4097"),
        (("--ports", 0), "ports 0"),
        (("--ports", 65), "ports 65"),
        (("--cores", 0), "cores 0"),
        (("--machine", "pspin", "--cores", 3), "3 cores in 4 clusters"),
        (("--rate", "nan"), "rate nan"),
        (("--rate", 1e-6), "rate"),
        (("--packets", 0), "packets 0"),
        (("--window", 0), "window 0"),
        (("--op", "mean"), "'mean'"),
        (("--dtype", "f17"), "f17"),
        (("--plot", "a.gif"), ".png, .svg, .pdf"),
        (("--json", out, "--csv", out), "name two files"),
    ):
        refused(bench(*arguments), said)
    assert not out.exists()


def test_a_picture(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="pip install 'nicemu[viz]'")
    path = tmp_path / "a.svg"
    few = ("--packets", 20, "--payload", 256, "--payload", 1024, "--cores", 1, "--cores", 8)
    assert bench(*few, "--plot", path).exit_code == 0
    text = path.read_text()
    for said in (
        "4x200 Gb/s, 1 cores", "1x200 Gb/s, 8 cores", "cores: busy most", "wire: busy most",
        "payload of a packet, bytes", "sum, float16, wide, 20 packets a port",
    ):  # fmt: skip
        assert said in text
