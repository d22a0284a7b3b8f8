"""Virtual time where links, devices and cores take theirs: ``Fabric(time="packet")``."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nicemu
from nicemu._core import stage_names
from nicemu.device.machine import MACHINES, Network
from nicemu.errors import ArgumentError, CollectiveError
from nicemu.network.fabric import MAX_IN_FLIGHT
from nicemu.network.packet import Kind, Packet, build, parse
from nicemu.network.pcap import read
from tests import page

CARD = MACHINES["card"]
CYCLE = 1e-9
NETWORK = Network()


def gradients(ranks: int, count: int) -> list[np.ndarray]:
    rng = np.random.default_rng(3)
    return [rng.standard_normal(count).astype(nicemu.bfloat16) for _ in range(ranks)]


def allreduce(ranks: int, topology: Any, count: int, **options: Any) -> nicemu.Result:
    how = {name: options.pop(name) for name in ("preset", "window") if name in options}
    window = {"window": how.pop("window")} if "window" in how else {}
    fabric = nicemu.Fabric(ranks, topology, time="packet", **options)
    world = nicemu.Communicator(fabric, algorithm="in-network", **window)
    return world.allreduce(gradients(ranks, count), **how)


def spent(result: nicemu.Result) -> dict[str, float]:
    """In nanoseconds; what was nothing is left out."""
    assert result.spent is not None and result.time is not None
    assert tuple(result.spent) == stage_names()
    assert sum(result.spent.values()) == pytest.approx(result.time, abs=1e-15)
    return {name: 1e9 * seconds for name, seconds in result.spent.items() if seconds}


def on_the_wire(payload: int) -> int:
    """Bytes that a frame takes on a link."""
    packet = Packet(kind=Kind.UP, group=1, element="bf16", src=2, dst=1, payload=bytes(payload))
    return len(build(packet)) + NETWORK.overhead


def test_one_frame_takes_what_its_parts_take() -> None:
    """One worker, one chunk: nothing waits, and every part of the way is known."""
    count = 1000
    found = spent(allreduce(1, "star", count, mtu=4096))
    nic = nicemu.Nic("card", cycles=True)
    nic.load(nicemu.kernel("sum", "bfloat16"))
    calls = [
        nic.handle("first", gradients(1, count)),
        nic.handle("finish", count=count),
    ]
    cycles = sum(call.cycles.total for call in calls if call.cycles is not None)
    assert found == pytest.approx(
        {
            "wire": 2 * 8 * on_the_wire(2 * count) / NETWORK.rate * 1e9,
            "hops": 2 * NETWORK.delay * 1e9,
            "device": CARD.parse + CARD.dispatch + CARD.egress,
            "DMA": 2 * count / CARD.dma_bytes,
            "core": cycles,
        },
        abs=0.01,
    )


def test_what_waits_is_queueing() -> None:
    """Two workers: the second's payload waits for the DMA engine, which moves the first's."""
    count = 2048
    found = spent(allreduce(2, "star", count, mtu=4096))
    assert found["queueing"] == pytest.approx(2 * count / CARD.dma_bytes, abs=0.01)


@pytest.mark.parametrize("clusters", [1, 2, 8])
def test_each_cluster_has_a_dma_engine(clusters: int) -> None:
    """A chunk for each of eight cores: their payloads wait for those of their cluster."""
    frame = 512
    slow = replace(CARD, name="slow", clusters=clusters, dma_bytes=1)
    wires = replace(NETWORK, rate=1e14)
    found = spent(
        allreduce(
            1, "star", 8 * frame, machine=slow, network=wires, mtu=2 * frame, preset="per-hop"
        )
    )
    assert found["DMA"] == 2 * frame
    assert found["queueing"] == pytest.approx((8 // clusters - 1) * 2 * frame, abs=1)


@pytest.mark.parametrize("preset", ["wide", "per-hop", "per-add"])
@pytest.mark.parametrize("topology", ["star", "cards", "tree(2)"])
def test_time_changes_no_bit(topology: str, preset: str) -> None:
    inputs = gradients(7, 5000)
    worlds = [
        nicemu.Communicator(nicemu.Fabric(7, topology, time=time), algorithm="in-network")
        for time in (None, "packet", "packet")
    ]
    plain, timed, again = (w.allreduce(inputs, preset=preset, partials=True) for w in worlds)
    assert plain.spent is None
    assert (timed.time, timed.spent) == (again.time, again.spent)
    for name, partial in plain.partials.items():
        assert partial.values.tobytes() == timed.partials[name].values.tobytes()
    for a, b in zip(plain.values, timed.values, strict=True):
        assert a is not None and b is not None and a.tobytes() == b.tobytes()
    assert ("PCIe" in spent(timed)) == (topology == "cards")


def test_no_link_is_faster_than_its_rate() -> None:
    """At least the time of the busiest link, and near it where cores are not in the way."""
    count, mtu = 1 << 18, 4096
    payload = 2 * count
    chunks = payload // mtu
    least = chunks * on_the_wire(mtu) * 8 / NETWORK.rate
    fast = replace(CARD, cores=64, name="fast")
    result = allreduce(2, "star", count, mtu=mtu, window=256, machine=fast)
    assert result.time is not None
    assert least < result.time < 1.2 * least
    slow = allreduce(
        2, "star", count, mtu=mtu, window=256, machine=fast, network=replace(NETWORK, rate=50e9)
    )
    assert slow.time is not None
    assert 4 * least < slow.time < 4.4 * least


def test_a_larger_window_hides_the_way() -> None:
    times = [allreduce(16, "cards", 1 << 16, window=window).time for window in (1, 4, 16, 64)]
    assert times == sorted(times, reverse=True) and times[0] > 4 * times[-1]  # type: ignore[operator]


def test_lost_frames_cost_time() -> None:
    clean = allreduce(4, "star", 20_000)
    lossy = allreduce(4, "star", 20_000, loss=0.2, seed=5)
    assert lossy.time is not None and clean.time is not None and lossy.time > clean.time
    assert spent(lossy)["timers"] > 0 and "timers" not in spent(clean)
    for a, b in zip(clean.values, lossy.values, strict=True):
        assert a is not None and b is not None and a.tobytes() == b.tobytes()


def test_a_frame_that_is_sent_again_goes_back_to_its_own_collective() -> None:
    """Of two that overlap the second ends first: the wait for its third try is over sooner."""
    fabric = nicemu.Fabric(2, "star", time="packet")
    world = nicemu.Communicator(fabric, algorithm="in-network")
    link = fabric.link("rank0", "nic0")
    link.down()
    first = world.start("allreduce", gradients(2, 100))
    link.up(at=40e-6)  # for nothing, but that makes it 50 us
    link.down(at=50e-6)
    fabric.run(until=50e-6)
    second = world.start("allreduce", gradients(2, 100))
    link.up(at=470e-6)
    late = second.wait()
    assert not first.done
    timers = spent(late)["timers"]
    assert 300e3 < timers < 1e9 * late.time  # type: ignore[operator]
    assert spent(first.wait())["timers"] > 2 * timers


@pytest.mark.parametrize("cut", [100.1e-6, 102e-6])
def test_what_is_begun_again_goes_back_to_its_own_collective(cut: float) -> None:
    """A group's chunks, when a plane is left, while another group is at work."""
    detection = 10e-6
    fabric = nicemu.Fabric(8, "cards", time="packet", planes=2, detection=detection)
    other, world = (
        nicemu.Communicator(fabric, ranks=ranks, algorithm="in-network")
        for ranks in (range(4), range(4, 8))
    )
    busy = other.start("allreduce", gradients(4, 500_000))
    fabric.run(until=100e-6)
    start = fabric.now
    work = world.start("allreduce", gradients(4, 4000))
    fabric.link("rank4", "nic1").down(at=cut)
    found = spent(work.wait())
    assert found["timers"] == pytest.approx(1e9 * (cut + detection - start))
    assert "software" not in found and not busy.done
    assert "timers" not in spent(busy.wait())


def test_what_a_plane_that_is_back_takes_goes_back_to_its_own_collective() -> None:
    """Both planes are down when the second of two chunks has no place in the window."""
    fabric = nicemu.Fabric(8, "cards", time="packet", planes=2, detection=10e-6)
    first, second = (fabric.link("rank4", device) for device in ("nic1", "nic1@1"))
    first.down()
    fabric.run()
    other, world = (
        nicemu.Communicator(fabric, ranks=ranks, algorithm="in-network", window=window)
        for ranks, window in ((range(4), 64), (range(4, 8), 1))
    )
    busy = other.start("allreduce", gradients(4, 500_000))
    fabric.run(until=fabric.now + 100e-6)
    second.down()
    first.up()
    work = world.start("allreduce", gradients(4, 1000))
    found = spent(work.wait())
    assert 10e3 <= found["timers"] < 11e3 and not busy.done
    busy.wait()


def test_nothing_is_sent_twice_on_clean_links() -> None:
    """However long the queues are, no timer runs out."""
    result = allreduce(64, "cards", 1 << 17, window=64, network=replace(NETWORK, rate=1e9))
    assert result.frames is not None and result.frames.resent == 0


def told(algorithm: str, simd: str = "auto") -> dict[str, Any]:
    """All that the clock says of a collective, over links that lose frames where that is allowed:
    to the picosecond and the cycle.
    """
    loss = {"loss": 0.02, "seed": 3} if algorithm == "in-network" else {}
    fabric = nicemu.Fabric(8, "cards", time="packet", simd=simd, **loss)
    fabric.record()
    world = nicemu.Communicator(fabric, algorithm=algorithm)
    result = world.allreduce(gradients(8, 20_000), partials=True)
    return {
        "time": result.time,
        "spent": result.spent,
        "partials": {name: partial.time for name, partial in result.partials.items()},
        "frames": result.frames,
        "cycles": [
            device.nic.cores.cycles(core)
            for device in fabric.devices.values()
            for core in range(device.nic.machine.cores)
        ],
        "spans": fabric.spans().tobytes(),
    }


@pytest.mark.parametrize("algorithm", ["in-network", "ring", "halving-doubling"])
def test_the_same_input_takes_the_same_time(algorithm: str) -> None:
    """Again, by portable code, and while another thread does the same."""
    first = told(algorithm)
    assert first == told(algorithm) == told(algorithm, "portable")
    assert algorithm != "in-network" or sum(cycles.total for cycles in first["cycles"]) > 0
    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(told, [algorithm] * 2)) == [first] * 2


def test_collectives_one_after_another() -> None:
    fabric = nicemu.Fabric(4, "star", time="packet")
    world = nicemu.Communicator(fabric, algorithm="in-network")
    inputs = gradients(4, 3000)
    first, second = world.allreduce(inputs), world.allreduce(inputs)
    assert first.time == pytest.approx(second.time)
    assert spent(first) == pytest.approx(spent(second))
    empty = world.allreduce(gradients(4, 0))
    assert empty.time == 0 and not spent(empty)


def test_the_guide(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What its programs print; ``python -m tests.page time`` writes it anew."""
    monkeypatch.chdir(tmp_path)
    shown = [
        (found["shown"], lines) for found, lines in page.run(page.path("time").read_text(), {})
    ]
    assert shown and all(told == lines for told, lines in shown)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"time": "cycles"}, "time 'cycles' is unknown"),
        ({"network": NETWORK}, "network without time"),
    ],
)
def test_argument_errors(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        nicemu.Fabric(2, **options)


@pytest.mark.parametrize(
    "change",
    [
        *({"rate": rate} for rate in (0.0, 0.99e6, float("nan"), "fast")),
        *({"overhead": overhead} for overhead in (-1, 1.5, 65536)),
        {"pcie_rate": 1e15},
        {"delay": -1.0},
    ],
)
def test_networks_are_checked(change: dict[str, Any]) -> None:
    with pytest.raises(ArgumentError, match=next(iter(change))):
        replace(NETWORK, **change)


@pytest.mark.parametrize("frequency", [0, -1, 999_999, 10**12, 1.5e9, "1"])
def test_frequencies_are_checked(frequency: Any) -> None:
    with pytest.raises(ArgumentError, match=f"^frequency .*{frequency}.*: use |no whole number"):
        replace(CARD, frequency=frequency)


def test_the_ends_of_what_is_allowed() -> None:
    """The slowest and the fastest links and cores; with many ranks timers are at their longest."""
    rates = {"rate": 1e6, "pcie_rate": 1e6, "delay": 1.0, "pcie_delay": 1.0, "overhead": 65535}
    slow = replace(NETWORK, **rates)
    cores = replace(CARD, frequency=10**6, dma_bytes=1, parse=4095, dispatch=4095, egress=4095)
    result = allreduce(4, "cards", 100, machine=cores, network=slow)
    assert result.time is not None and result.time > 8
    assert sum((result.spent or {}).values()) == pytest.approx(result.time, rel=1e-12)
    fast = replace(NETWORK, rate=1e14, pcie_rate=1e14, delay=0.0, pcie_delay=0.0)
    result = allreduce(4, "cards", 100, machine=replace(CARD, frequency=10**11), network=fast)
    assert result.time is not None and result.time < 1e-7
    nicemu.Fabric(1024, "tree(2)", mtu=4096, time="packet", network=slow, machine=cores)


# ---- when things happen --------------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", ["in-network", "ring", "halving-doubling"])
def test_times_do_not_depend_on_when(algorithm: str) -> None:
    """Not on a clock of which a float has no picoseconds, either."""
    took = []
    for begin in (0.0, 1.0, 1e5, 9e5):
        fabric = nicemu.Fabric(2, "star", time="packet")
        fabric.links()[0].up(at=begin)
        fabric.run()
        world = nicemu.Communicator(fabric, algorithm=algorithm)
        took += [world.barrier().time, world.allreduce(gradients(2, 8), partials=True).time]
    assert took == 4 * took[:2]


def test_a_link_cuts_no_frame_that_has_not_left() -> None:
    """The host's software has a millisecond to go when the link is back."""
    times = []
    for down in (False, True):
        network = Network(software=1e-3)
        fabric = nicemu.Fabric(2, "star", time="packet", network=network)
        link = fabric.links()[0]
        if down:
            link.down(at=0.0)
            link.up(at=5e-4)
            fabric.run(until=1e-4)
        result = nicemu.Communicator(fabric, algorithm="in-network").allreduce(gradients(2, 64))
        assert result.frames.cut == 0
        times.append(result.time)
    assert times[0] == times[1]


def test_a_link_counts_frames_as_they_leave(tmp_path: Path) -> None:
    path = tmp_path / "run.pcap"
    with nicemu.Fabric(8, "cards", time="packet", capture=path) as fabric:
        world = nicemu.Communicator(fabric, algorithm="in-network")
        world.allreduce(gradients(8, 20_000))
    times, numbers = [], dict[tuple[int, int], list[int]]()
    for time, frame in read(path):
        packet = parse(frame)
        times.append(time)
        numbers.setdefault((packet.src, packet.dst), []).append(packet.psn)
    assert times == sorted(times)
    assert len(numbers) == 2 * len(fabric.links())
    assert all(psn == list(range(len(psn))) for psn in numbers.values())


def test_what_has_its_results_ends_well() -> None:
    """Its host is about to return when another collective of the group fails; then a third one is
    begun, for which a group takes the place of that one.
    """
    machine, network = replace(CARD, budget=300), Network(software=1e-3)
    fabric = nicemu.Fabric(4, "star", machine=machine, time="packet", network=network)
    world = nicemu.Communicator(fabric, algorithm="in-network")
    few, many = gradients(4, 4), gradients(4, 2560)
    done = world.start("allreduce", few)
    fabric.links()[0].up(at=5e-4)
    fabric.run(until=5e-4)
    fails = world.start("allreduce", many)
    with pytest.raises(CollectiveError, match="out of budget"):
        fails.wait()
    assert not done.done
    again = world.start("allreduce", few)
    assert np.array_equal(done.wait().whole(), again.wait().whole())


def test_a_time_begins_when_a_collective_does() -> None:
    """Of many that are begun at once all but the first wait for the window, and the last ones for
    others to end before they are begun.
    """
    fabric = nicemu.Fabric(4, "star", time="packet")
    world = nicemu.Communicator(fabric, algorithm="in-network", window=8)
    handles = [world.start("allreduce", gradients(4, 700)) for _ in range(MAX_IN_FLIGHT + 8)]
    times = set()
    for handle in handles:
        result = handle.wait()
        assert result.time is not None
        assert sum(spent(result).values()) == pytest.approx(1e9 * result.time, abs=1e-3)
        times.add(result.time)
    assert len(times) > MAX_IN_FLIGHT / 2
