"""Collectives by hosts in virtual time: ``ring`` and ``halving-doubling``, frame by frame."""

from __future__ import annotations

from dataclasses import replace
from heapq import heappop, heappush
from typing import Any

import numpy as np
import pytest

import nicemu
from nicemu._core import BEAT, stage_names
from nicemu.collectives.algorithms import ALGORITHMS
from nicemu.collectives.collective import COLLECTIVES
from nicemu.device.banks import Handed, booked
from nicemu.device.machine import MACHINES, Machine, Network
from nicemu.errors import ArgumentError, CollectiveError
from nicemu.network.packet import Kind, Packet, build
from nicemu.network.relay import Merging, Message, Relay
from tests.fabrics import streams, sums_up

CARD = MACHINES["card"]
NETWORK = Network()
by_algorithm = pytest.mark.parametrize("algorithm", list(ALGORITHMS))


def world(ranks: int, topology: str = "star", algorithm: str = "ring", **options: Any) -> Any:
    fabric = nicemu.Fabric(ranks, topology, time="packet", **options)
    return nicemu.Communicator(fabric, algorithm=algorithm)


def spent(result: nicemu.Result) -> dict[str, float]:
    """In nanoseconds; what was nothing is left out.  It adds up to the time."""
    assert result.spent is not None and result.time is not None
    assert tuple(result.spent) == stage_names()
    assert sum(result.spent.values()) == pytest.approx(result.time, abs=1e-15)
    return {name: 1e9 * seconds for name, seconds in result.spent.items() if seconds}


def frame_time(payload: int) -> float:
    """Nanoseconds that a frame takes on a link."""
    kind = {"element": "bf16", "payload": bytes(payload)}
    packet = Packet(kind=Kind.UP, group=1, src=2, dst=1, **kind)  # type: ignore[arg-type]
    return 8e9 * (len(build(packet)) + NETWORK.overhead) / NETWORK.rate


def cycles_of_two(count: int) -> int:
    """Of the calls that make the sum of two payloads of bfloat16."""
    nic = nicemu.Nic("card", cycles=True)
    nic.load(nicemu.kernel("sum", "bfloat16"))
    calls = [nic.handle("first2", streams(2, count)), nic.handle("finish", count=count)]
    return sum(call.cycles.total for call in calls if call.cycles is not None)


# ---- by hand ---------------------------------------------------------------------------------


@by_algorithm
def test_two_ranks_take_what_the_parts_take(algorithm: str) -> None:
    """Each rank sends a half to the other, which adds its own, and sends the sum back: two frames
    one after the other, over two links and a device each.
    """
    count = 1000
    found = spent(world(2, "star", algorithm, mtu=4096).allreduce(streams(2, count)))
    half = count // 2
    assert found == pytest.approx(
        {
            "wire": 4 * frame_time(2 * half),
            "hops": 4 * 1e9 * NETWORK.delay,
            # twice through the device between them; from the wire to the core, and out again
            "device": 2 * (CARD.parse + CARD.egress) + CARD.parse + CARD.dispatch + CARD.egress,
            "DMA": 2 * 2 * half / CARD.dma_bytes,  # the half that comes, and the rank's own
            "core": cycles_of_two(half),
        },
        abs=0.01,
    )


def test_frames_follow_one_another() -> None:
    """Four frames each way: the last one's way begins behind three on the first link; of what
    follows, everything but that link is faster.
    """
    count, frame = 4 * 1024, 512  # elements: two blocks of four frames of 1 KiB
    fast = replace(CARD, name="fast", dma_bytes=4096)
    found = spent(world(2, "star", mtu=2 * frame, machine=fast).allreduce(streams(2, count)))
    assert found["queueing"] == pytest.approx(3 * frame_time(2 * frame), abs=0.01)
    assert found["wire"] == pytest.approx(4 * frame_time(2 * frame), abs=0.01)
    assert found["core"] == cycles_of_two(frame)


def merged(frames: int, cycles: int, asked: np.ndarray, payload: int, m: Machine) -> float:
    """Nanoseconds until the last of some frames is merged, which come one just after the other:
    each is moved in with what the rank has of its own, merged, and moved out.
    """
    each, cores, handed = 2 * payload / m.dma_bytes, [0.0] * m.cores, list[Handed]()
    events = [(max(0.1, each) * i, "moves") for i in range(frames)]
    while events:
        now, what = heappop(events)
        if what == "moves":
            handed.append(Handed(int(now), bytes=2 * payload))
            heappush(events, (now + each, "is there"))
        else:
            idle = [i for i, free in enumerate(cores) if free <= now]
            core = idle[0] if idle else cores.index(min(cores))
            start = max(cores[core], now)
            handed.append(Handed(int(start), cycles, asked))
            cores[core] = start + cycles + booked(handed, m)[-1]
            handed.append(Handed(int(cores[core]), bytes=payload))
    return max(cores)


@pytest.mark.parametrize("cores", [1, 4, 8])
def test_cores_share_the_work(cores: int) -> None:
    """Where nothing else takes time, 16 frames take the cycles of 16 / cores of them, and their
    waits for banks.
    """
    frames, frame = 16, 512
    quick = replace(CARD, name="quick", cores=cores, dma_bytes=4096, parse=0, dispatch=0, egress=0)
    wires = replace(NETWORK, rate=1e14, delay=0.0)
    w = world(2, "star", mtu=2 * frame, machine=quick, network=wires)
    result = w.allreduce(streams(2, 2 * frames * frame))
    nic = nicemu.Nic(quick, cycles=True)
    nic.load(nicemu.kernel("sum", "bfloat16"))
    asked = nic.asked([nicemu.Stream(each) for each in streams(2, frame)])
    cycles = cycles_of_two(frame)
    alone = frames // cores * cycles
    expected = merged(frames, cycles, asked, 2 * frame, quick)
    assert (expected > alone + 5) == (cores > 1)
    assert 1e9 * result.time == pytest.approx(expected, abs=5)
    assert ("conflicts" in spent(result)) == (cores > 1)


@pytest.mark.parametrize("clusters", [1, 2, 8])
def test_clusters_share_the_dma(clusters: int) -> None:
    """Where nothing else takes time, 16 frames pass the engines of so many clusters."""
    frames, frame = 16, 512
    slow = replace(CARD, name="slow", clusters=clusters, dma_bytes=1, parse=0, dispatch=0, egress=0)
    w = world(2, "star", mtu=2 * frame, machine=slow, network=replace(NETWORK, rate=1e14, delay=0))
    found = w.allreduce(streams(2, 2 * frames * frame)).time
    taken = 2 * 2 * frame  # bytes: of the frame, and of what the rank has
    assert 1e9 * found == pytest.approx(frames // clusters * taken + cycles_of_two(frame), abs=10)


def test_one_rank_alone_uses_its_cores() -> None:
    result = world(1, mtu=4096).allreduce(streams(1, 1000))
    assert set(spent(result)) == {"device", "DMA", "core"}


def test_a_barrier_goes_around_twice() -> None:
    """Of two ranks: a frame without payload to the other, and one back."""
    found = spent(world(2).barrier())
    assert found == pytest.approx(
        {
            "wire": 4 * frame_time(0),
            "hops": 4 * 1e9 * NETWORK.delay,
            "device": 3 * (CARD.parse + CARD.egress),
        },
        abs=0.01,
    )


# ---- software --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("algorithm", "posts"),
    [("in-network", 1), ("ring", 2 * (4 - 1)), ("halving-doubling", 2 * 2)],
)
def test_software_is_paid_for_each_message(algorithm: str, posts: int) -> None:
    """For each message on the way, and until the end is known; in the network for the call.

    Messages are of one frame: a second one would be ready later, and wait for less of it.
    """
    software = 1.5e-6
    inputs = streams(4, 2000)
    hardware = world(4, "star", algorithm, mtu=4096).allreduce(inputs)
    slow = replace(NETWORK, software=software)
    both = world(4, "star", algorithm, mtu=4096, network=slow).allreduce(inputs)
    assert both.time == pytest.approx(hardware.time + (posts + 1) * software, abs=1e-12)
    assert spent(both)["software"] == pytest.approx(1e9 * (posts + 1) * software)
    assert "software" not in spent(hardware)
    for a, b in zip(hardware.values, both.values, strict=True):
        assert a is not None and b is not None and a.tobytes() == b.tobytes()


def test_software_of_collectives_one_after_another_and_at_once() -> None:
    """The next begins when the hosts know of the end; what is under way at once does not wait."""
    slow = replace(NETWORK, software=2e-6)
    w = world(4, "star", "in-network", network=slow)
    inputs = streams(4, 2000)
    first, second = w.allreduce(inputs), w.allreduce(inputs)
    assert first.time == pytest.approx(second.time)
    assert spent(first) == pytest.approx(spent(second))
    handles = [w.start("allreduce", inputs) for _ in range(3)]
    times = [handle.wait().time for handle in handles]
    assert times == sorted(times) and times[-1] < 2 * first.time


# ---- what holds for all ----------------------------------------------------------------------


@pytest.mark.parametrize("collective", COLLECTIVES)
@pytest.mark.parametrize(("topology", "ranks"), [("star", 2), ("cards", 7), ("tree(2)", 8)])
@by_algorithm
def test_time_changes_no_bit(algorithm: str, topology: str, ranks: int, collective: str) -> None:
    """The same values and bytes sent with time and without; the same time again."""
    arrays = [x.reshape(-1, 1) for x in streams(ranks, 8 * 7 * 60)]
    given = {"broadcast": arrays[1], "barrier": []}.get(collective, arrays)
    root = 1 if collective in ("broadcast", "reduce") else 0
    results = []
    for time in (None, "packet", "packet"):
        fabric = nicemu.Fabric(ranks, topology, time=time)
        w = nicemu.Communicator(fabric, algorithm=algorithm)
        results.append(w.start(collective, given, root=root).wait())
        sums_up(fabric.counters())
    plain, timed, again = results
    assert plain.time is None and plain.spent is None
    assert timed.time is not None and timed.time > 0
    assert (timed.time, timed.spent) == (again.time, again.spent)
    assert timed.payload_bytes == plain.payload_bytes
    assert ("PCIe" in spent(timed)) == (topology == "cards")
    for a, b in zip(plain.values, timed.values, strict=True):
        assert (a is None) == (b is None)
        assert a is None or b is None or a.tobytes() == b.tobytes()


@by_algorithm
@pytest.mark.parametrize("preset", ["wide", "per-add"])
def test_every_byte_crosses_the_links(algorithm: str, preset: str) -> None:
    """What links have delivered are the frames of the bytes that ranks have sent, over each link.

    In a star there are two links on the way, and with full frames nothing else in a frame.
    """
    ranks, mtu = 4, 1024
    w = world(ranks, "star", algorithm, mtu=mtu)
    result = w.allreduce(streams(ranks, ranks * 4096), preset=preset)
    sent = w.fabric.counters().sent
    assert result.frames is None
    frames = result.payload_bytes / mtu
    if preset == "per-add":
        assert sent == 2 * frames
    else:  # the first frames are of elements, and half full
        assert 2 * frames < sent < 3 * frames


@by_algorithm
def test_collectives_one_after_another(algorithm: str) -> None:
    w = world(4, "cards", algorithm)
    inputs = streams(4, 3000)
    first, second = w.allreduce(inputs), w.allreduce(inputs)
    assert first.time == pytest.approx(second.time)
    assert spent(first) == pytest.approx(spent(second))
    empty = w.allreduce(streams(4, 0))
    assert empty.time == 0 and not spent(empty)


def test_two_at_once_share_links_and_cores() -> None:
    """A ring and a collective in the network: each takes longer than alone."""
    inputs = streams(8, 1 << 15)
    alone = world(8, "cards").allreduce(inputs)
    w = world(8, "cards")
    other = w.start("allreduce", inputs, algorithm="in-network")
    ring = w.allreduce(inputs)
    assert ring.time > alone.time and other.wait().time > 0
    assert ring.values[0].tobytes() == alone.values[0].tobytes()  # type: ignore[union-attr]


@by_algorithm
def test_a_group_of_some_ranks(algorithm: str) -> None:
    """Rank i of the communicator sends from its own worker: here over the leaf switch."""
    fabric = nicemu.Fabric(8, "cards", time="packet")
    near = nicemu.Communicator(fabric, [0, 1], algorithm=algorithm).allreduce(streams(2, 100))
    far = nicemu.Communicator(fabric, [0, 7], algorithm=algorithm).allreduce(streams(2, 100))
    assert "wire" not in spent(near) and spent(far)["wire"] > 0
    assert near.time < far.time  # type: ignore[operator]


def test_two_planes_carry_a_message_together() -> None:
    one, two = (world(2, "star", planes=n, mtu=512).allreduce(streams(2, 1 << 16)) for n in (1, 2))
    assert two.time < one.time


def test_a_link_that_is_down_ends_it() -> None:
    """Before it starts, and under way."""
    for at in (None, 3e-6):
        w = world(4, "cards")
        w.fabric.kill("rank2", at)
        with pytest.raises(CollectiveError, match=r"frames of rank[12] need"):
            w.allreduce(streams(4, 1 << 16))
        w.fabric.run()
        sums_up(w.fabric.counters())
        assert w.fabric.counters().under_way == 0


def test_of_one_that_failed_nothing_is_left() -> None:
    """Where all of its frames are cut at their first link there is no event after that."""
    w = world(2, "star")
    w.fabric.kill("rank0", None)
    with pytest.raises(CollectiveError):
        w.start("broadcast", streams(2, 5000)[0]).wait()
    w.fabric.run()
    assert w.fabric.progress() == (0, 0)


@pytest.mark.parametrize("fault", ["loss", "duplicate", "corrupt"])
def test_links_that_are_not_clean_are_refused(fault: str) -> None:
    fabric = nicemu.Fabric(2, "star", time="packet", **{fault: 0.1})  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="use clean links, or algorithm='in-network'"):
        nicemu.Communicator(fabric, algorithm="ring").allreduce(streams(2, 10))


# ---- the C core's own checks -----------------------------------------------------------------


def test_messages_are_checked() -> None:
    """What a relay says is held against the fabric: else a wrong one would read elsewhere."""
    fabric = nicemu.Fabric(2, "star", time="packet", mtu=1024)
    good, nothing = Message(0, 1, range(10), 4, 2), np.empty(0, BEAT)  # of three frames
    for bad in (
        replace(good, chunk=0),
        replace(good, chunk=5000),
        replace(good, size=1000),
        replace(good, elements=range(0)),
        replace(good, merging=Merging(4, 2, np.zeros(2, np.uint64), (nothing, nothing))),
    ):
        relay = Relay()
        relay.add(bad)
        with pytest.raises(ArgumentError):
            fabric.relay(relay, [0, 1])
    relay = Relay()
    first = relay.add(good)
    relay.add(replace(good, source=0, to=1), [first])  # which ends at rank 1
    with pytest.raises(ArgumentError):
        fabric.relay(relay, [0, 1])
    relay = Relay()
    relay.add(good)
    passage = fabric.relay(relay, [0, 1])
    passage.wait()
    assert passage.done and passage.time is not None and passage.time > 0
    with pytest.raises(ArgumentError, match="pass time='packet'"):
        nicemu.Fabric(2).relay(relay, [0, 1])


def test_what_waits_for_itself_ends_with_an_error() -> None:
    relay = Relay()
    message = Message(0, 1, range(10), 4, 2)
    relay.add(message, there=[1])
    relay.add(replace(message, source=1), before=[0])
    fabric = nicemu.Fabric(2, "star", time="packet")
    with pytest.raises(CollectiveError):
        fabric.relay(relay, [0, 1]).wait()
