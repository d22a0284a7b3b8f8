"""Whose payload is moved into a scratchpad, which core takes a handler call, and how long that
waits for the banks.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from heapq import heappop, heappush
from itertools import count
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import nicemu
from nicemu._nicemu import lib
from nicemu.device.banks import Handed, booked
from nicemu.device.machine import MACHINES, Machine, Network
from nicemu.errors import ArgumentError
from nicemu.network.exchange import Exchange
from tests.fabrics import streams

CARD = MACHINES["card"]
#: whose stations take no time; a payload of 4096 bytes is there in a cycle
QUICK = replace(CARD, name="quick", parse=0, dispatch=0, egress=0, dma_bytes=4096)
SLOW = replace(CARD, name="slow", dma_bytes=1)
WIRES = Network(rate=1e14, delay=0.0)
by_order = pytest.mark.parametrize("order", ["fixed", "arrival"])
by_scheduling = pytest.mark.parametrize("scheduling", ["slot", "free"])


def fabric_of(ranks: int, topology: Any = "star", **options: Any) -> nicemu.Fabric:
    return nicemu.Fabric(ranks, topology, time="packet", **options)


def allreduce(fabric: nicemu.Fabric, count: int, **options: Any) -> nicemu.Result:
    world = nicemu.Communicator(fabric, algorithm="in-network", **options)
    return world.allreduce(streams(fabric.ranks, count))


# ---- which core ----------------------------------------------------------------------------------


def two_groups(scheduling: str) -> float:
    """Nanoseconds of a chunk each of two groups, both of which have it in their lane 0."""
    fabric = fabric_of(4, scheduling=scheduling, machine=QUICK, network=WIRES)
    worlds = [nicemu.Communicator(fabric, algorithm="in-network") for _ in range(2)]
    begun = [world.start("allreduce", streams(4, 512)) for world in worlds]
    return max(1e9 * work.wait().time for work in begun)


def test_a_slot_waits_for_its_core_while_others_are_idle() -> None:
    fabric = fabric_of(4, machine=QUICK, network=WIRES)
    alone = 1e9 * allreduce(fabric, 512).time
    assert two_groups("free") == pytest.approx(alone, abs=10)
    assert two_groups("slot") == pytest.approx(2 * alone, abs=10)


def test_bits_are_the_same() -> None:
    found = {
        scheduling: allreduce(fabric_of(16, "cards", scheduling=scheduling), 20_000)
        for scheduling in ("slot", "free")
    }
    bits = {result.values[0].tobytes() for result in found.values()}  # type: ignore[union-attr]
    assert len(bits) == 1
    for result in found.values():
        assert result.spent is not None
        assert sum(result.spent.values()) == pytest.approx(result.time, abs=1e-15)


def calls_of(fabric: nicemu.Fabric) -> dict[int, list[np.void]]:
    """Node -> its handler calls, in the order in which they were handed out."""
    out: dict[int, list[np.void]] = {}
    for span in fabric.spans():
        if span["kind"] == lib.NICEMU_SPAN_CORE:
            out.setdefault(int(span["where"]), []).append(span)
    return out


@settings(max_examples=30, deadline=None)
@given(
    st.sampled_from(["slot", "free"]), st.sampled_from(["star", "cards", "tree(3)"]),
    st.sampled_from([(1, 1), (3, 1), (8, 1), (8, 2), (6, 3)]),
    st.sampled_from(["fixed", "arrival"]), st.integers(1, 6000), st.integers(1, 40),
)  # fmt: skip
def test_calls_go_to_the_core_that_the_rule_says(
    scheduling: str, topology: str, cores: tuple[int, int], order: str, count: int, window: int
) -> None:
    """One call at a time on a core and in a slot; a lane's core, or the first that is idle."""
    many, clusters = cores
    machine = replace(CARD, name="some", cores=many, clusters=clusters)
    fabric = fabric_of(8, topology, machine=machine, scheduling=scheduling, order=order)
    fabric.record()
    with nicemu.Communicator(fabric, algorithm="in-network", window=window) as world:
        for _ in range(2):
            world.allreduce(streams(8, count))
    per, calls = many // clusters, calls_of(fabric)
    assert calls
    for handed in calls.values():
        idle, slots = [0] * many, dict[tuple[int, ...], int]()
        for call in handed:
            core, begin, end = (int(call[name]) for name in ("core", "begin", "end"))
            lane = int(call["lane"])
            slot = int(call["group"]), lane
            assert begin >= idle[core] and begin >= slots.get(slot, 0) and end > begin
            own = lane % many
            first = own // per * per
            mates = range(first, first + per)
            if scheduling == "slot":
                assert core == own
            else:
                first_idle = all(idle[mate] > begin for mate in mates if mate < core)
                soonest = begin == idle[core] == min(idle[mate] for mate in mates)
                goes_on = begin == idle[core] == slots.get(slot)
                assert core in mates and (first_idle or soonest or goes_on)
            idle[core] = slots[slot] = end


# ---- whose payload is moved ----------------------------------------------------------------------


class Moved(NamedTuple):
    """A payload that a DMA engine has moved; times in picoseconds."""

    ready: int
    link: int  # number in the trace of its last link: of one time, who left first is there first
    message: tuple[int, ...]
    takes: int
    begin: int
    place: tuple[int, ...]  # in the scratchpad
    until: int  # the place is its own until then


def turns(payloads: Sequence[Moved], engines: int, parse: int) -> list[int]:
    """When each is moved if messages take turns in the order in which they become ready: when their
    next payload is parsed, its place is free, and they had their last turn.
    """
    coming, waiting = deque(range(len(payloads))), dict[Any, deque[int]]()
    line, numbers = list[tuple[int, int, Any]](), count()  # a heap: when messages are ready
    free, begins, now, places = [0] * engines, [0] * len(payloads), 0, dict[Any, int]()
    while coming or line:
        turn = max(now, min(free), line[0][0]) if line else 0
        if coming and (not line or payloads[coming[0]].ready - parse <= turn):
            one = payloads[coming[0]]
            if one.message not in waiting:
                heappush(line, (one.ready, next(numbers), one.message))
            waiting.setdefault(one.message, deque()).append(coming.popleft())
            continue
        now, (_, _, message) = turn, heappop(line)
        mine = waiting[message]
        one = payloads[mine[0]]
        if places.get(one.place, 0) > now:
            heappush(line, (places[one.place], next(numbers), message))
            continue
        begins[mine.popleft()] = now
        places[one.place] = one.until
        free[next(k for k, until in enumerate(free) if until <= now)] = now + one.takes
        if mine:
            heappush(line, (max(now, payloads[mine[0]].ready), next(numbers), message))
        else:
            del waiting[message]
    return begins


Key: TypeAlias = Callable[[np.void, np.void], tuple[int, ...]]


def check_turns(fabric: nicemu.Fabric, queue: Key, message: Key, engines: int) -> int:
    """Every DMA engine has moved what it should when it should; how many payloads waited.

    ``queue`` and ``message`` say of the records of a DMA and of its frame's sending who waits with
    whom, and behind whom.
    """
    machine, network, spans = fabric.machine, fabric.network, fabric.spans()
    assert machine is not None and network is not None
    hop = round(1e12 * network.delay) + 1000 * machine.parse
    taken = {int(s["source"]): int(s["by"]) for s in spans if s["kind"] == lib.NICEMU_SPAN_TAKEN}
    queues = dict[tuple[int, ...], list[Moved]]()
    for dma in spans[spans["kind"] == lib.NICEMU_SPAN_DMA]:
        link = spans[dma["source"] - 1]
        sent = spans[link["source"] - 1]
        begin, end, number = int(dma["begin"]), int(dma["end"]), int(dma["source"])
        places = ("group", "plane", "lane", *(() if fabric.arrival else ("child",)))
        place = tuple(int(sent[name]) for name in places)
        until = int(spans["end"][taken[number] - 1]) if fabric.arrival else 0
        one = Moved(
            int(link["end"]) + hop, number, message(dma, sent), end - begin, begin, place, until
        )
        queues.setdefault(queue(dma, sent), []).append(one)
    assert queues
    waited = 0
    for payloads in queues.values():
        payloads.sort()
        begins = turns(payloads, engines, 1000 * machine.parse)
        assert begins == [each.begin for each in payloads]
        waited += sum(each.begin > each.ready for each in payloads)
    return waited


def check_devices(fabric: nicemu.Fabric) -> int:
    """Each cluster has a queue; a message is what a child sends of a collective."""
    machine = fabric.machine

    def queue(dma: np.void, sent: np.void) -> tuple[int, ...]:
        cluster = int(sent["lane"]) % machine.cores // (machine.cores // machine.clusters)
        assert dma["core"] == cluster
        return int(dma["where"]), cluster

    def message(_: np.void, sent: np.void) -> tuple[int, ...]:
        return tuple(int(sent[name]) for name in ("group", "seq", "child"))

    return check_turns(fabric, queue, message, engines=1)


def check_hosts(fabric: nicemu.Fabric) -> int:
    """All clusters have one queue; a message is what a rank sends another in a step."""

    def queue(dma: np.void, _: np.void) -> tuple[int, ...]:
        return (int(dma["where"]),)

    def message(_: np.void, sent: np.void) -> tuple[int, ...]:
        return tuple(int(sent[name]) for name in ("seq", "lane"))

    return check_turns(fabric, queue, message, engines=fabric.machine.clusters)


@by_order
def test_messages_take_turns(order: str) -> None:
    """Two groups, each with some collectives in flight; bits are those of a fabric without time."""
    waited = 0

    @settings(max_examples=20, deadline=None)
    @given(
        st.sampled_from(["star", "tree(3)"]), st.sampled_from([(8, 1), (8, 2), (3, 3)]),
        st.sampled_from([2, 8, 64]),
        st.lists(st.tuples(st.integers(1, 3000), st.integers(1, 3000)), min_size=1, max_size=4),
        st.integers(1, 40),
    )  # fmt: skip
    def run(
        topology: str, cores: tuple[int, int], dma: int, counts: list[tuple[int, int]], window: int
    ) -> None:
        nonlocal waited
        machine = replace(CARD, name="some", cores=cores[0], clusters=cores[1], dma_bytes=dma)
        found = []
        for options in ({}, {"time": "packet", "machine": machine}):
            fabric = nicemu.Fabric(8, topology, order=order, mtu=512, **options)
            if options:
                fabric.record()
            begun = []
            for ranks, place in ((None, 0), (range(5), 1)):
                world = nicemu.Communicator(fabric, ranks, algorithm="in-network", window=window)
                for each in counts:
                    begun.append(world.start("allreduce", streams(world.ranks, each[place])))
            found.append([work.wait().values[0].tobytes() for work in begun])
        waited += check_devices(fabric)
        assert order == "arrival" or found[0] == found[1]

    run()
    assert waited > 100


@pytest.mark.parametrize("algorithm", ["ring", "halving-doubling"])
@pytest.mark.parametrize("cores", [(8, 1), (4, 4)])
def test_messages_take_turns_at_a_host(algorithm: str, cores: tuple[int, int]) -> None:
    machine = replace(CARD, name="some", cores=cores[0], clusters=cores[1], dma_bytes=2)
    fabric = fabric_of(8, machine=machine, mtu=512)
    fabric.record()
    world = nicemu.Communicator(fabric, algorithm=algorithm)
    begun = [world.start("allreduce", streams(8, count)) for count in (9000, 2000)]
    for work in begun:
        work.wait()
    assert check_hosts(fabric) > 100


def test_a_short_message_does_not_wait_for_long_ones() -> None:
    """A chunk that comes when a slow DMA engine has a window of others' to move, has its turn."""
    times = []
    for others in (False, True):
        fabric = fabric_of(4, machine=SLOW, mtu=512)
        long, short = (
            nicemu.Communicator(fabric, ranks, algorithm="in-network", window=32)
            for ranks in ([0, 1], [2, 3])
        )
        if others:
            long.start("allreduce", streams(2, 100_000))
            fabric.run(until=10e-6)
        times.append(short.allreduce(streams(2, 256)).time)
    alone, beside = (1e9 * time for time in times)
    moving = 512  # nanoseconds of a payload
    # each of the two may wait for the one that is being moved, and for one of each long message
    assert 0 < beside - alone < 2 * 3 * moving + 10


@nicemu.reduce_op(element="float32", name="refuses")
def refuses(a: Any, b: Any) -> Any:
    if b > 1000:
        raise ValueError("too large")
    return a + b


@by_order
def test_what_waits_counts_when_a_handler_fails(order: str) -> None:
    """The survivors' partial sums have what has come, be it in the scratchpad or not yet."""
    fabric = fabric_of(4, machine=SLOW, mtu=512, order=order)
    fabric.record()
    inputs = np.array([np.full(4096, 1 << rank, np.float32) for rank in range(4)])
    inputs[3, 0] = 1001
    with fabric.group(window=32) as group:
        ticket = group.start(Exchange(refuses.image(), list(inputs), [None] * 4))
        with pytest.raises(nicemu.CollectiveError, match="raised ValueError: too large"):
            ticket.wait()
        record = ticket.partials()["nic0"]
    kinds = fabric.spans()["kind"]
    # more than were moved; of chunk 0, whose handler failed, nothing is there
    assert record.members.sum() > (kinds == lib.NICEMU_SPAN_DMA).sum() - 4
    assert record.members[1:].any(axis=1).sum() > 2
    for chunk, members in enumerate(record.members):
        piece = slice(chunk * record.chunk, (chunk + 1) * record.chunk)
        assert bool(record.times[chunk]) == members.any()
        assert (record.values[piece] == inputs[members, piece].sum(axis=0)).all()


def test_nothing_is_sent_again_for_what_waits() -> None:
    """A payload that waits for the DMA engine is at work: timers do not count against it."""
    slow = replace(CARD, name="slow", dma_bytes=1, frequency=10**7, scratchpad=1 << 20)
    fabric = fabric_of(8, machine=slow, mtu=4096, max_resends=2)
    allreduce(fabric, 2048 * 64, window=64)
    assert fabric.counters().resent > 0  # for nothing


@by_order
def test_a_group_is_closed_while_its_payloads_wait(order: str) -> None:
    fabric = fabric_of(4, machine=SLOW, mtu=512, order=order)
    alone = allreduce(fabric_of(4, machine=SLOW, mtu=512, order=order), 1000, window=32).time
    for _ in range(20):
        with nicemu.Communicator(fabric, algorithm="in-network", window=32) as world:
            work = world.start("allreduce", streams(4, 100_000))
            fabric.run(until=fabric.now + 3e-6)
        with pytest.raises(nicemu.CollectiveError, match="closed"):
            work.wait()
    fabric.run()
    assert allreduce(fabric, 1000, window=32).time == alone


def test_a_group_that_has_failed_goes_on_with_nothing() -> None:
    """A handler fails while bytes that are to be moved on wait: their memory is no longer there."""
    fabric = fabric_of(4, machine=SLOW, mtu=512)
    inputs = [np.full(4096, 1 << rank, np.float32) for rank in range(4)]
    inputs[3][0] = 1001
    outputs = [np.zeros(4 * 4096, np.float32) for _ in range(4)]
    with fabric.group(window=64) as group:
        failing = group.start(Exchange(refuses.image(), inputs, [None] * 4))
        moving = group.start(Exchange(None, inputs, outputs))
        for ticket in (failing, moving):
            with pytest.raises(nicemu.CollectiveError, match="raised ValueError: too large"):
                ticket.wait()
        sent = fabric.counters().sent
        fabric.run()
        assert fabric.counters().sent == sent


def test_a_group_that_has_failed_is_no_work() -> None:
    """While it is open, too, what others do takes the same time whenever it is begun."""
    fabric = fabric_of(8, "cards", max_resends=2)
    failing, world = (
        nicemu.Communicator(fabric, ranks=ranks, algorithm="in-network")
        for ranks in (range(4), range(4, 8))
    )
    fabric.link("rank0", "nic0").down()
    with pytest.raises(nicemu.CollectiveError, match="rank0"):
        failing.allreduce(streams(4, 2560))
    assert fabric.progress() == (0, 0)
    fabric.run()
    assert len({world.allreduce(streams(4, 8000)).time for _ in range(12)}) == 1


@pytest.mark.parametrize("collective", ["broadcast", "all_gather"])
def test_what_is_passed_on_leaves_when_it_has_been_moved(collective: str) -> None:
    """Though copies of it, and of what others send, ask for it before."""
    times = []
    for duplicate in (0.0, 1.0):
        fabric = fabric_of(4, "tree(2)", machine=SLOW, mtu=4096, duplicate=duplicate)
        with nicemu.Communicator(fabric, algorithm="in-network") as world:
            arrays: Any = streams(4, 2048)
            work = world.start(collective, arrays[0] if collective == "broadcast" else arrays)
            times.append(work.wait().time)
    assert times[1] >= times[0] > 4.096e-6  # of a payload


# ---- the same again ------------------------------------------------------------------------------


@by_scheduling
def test_the_same_twice(scheduling: str) -> None:
    found = [
        allreduce(fabric_of(16, "cards", scheduling=scheduling, simd=simd), 30_000)
        for simd in ("auto", "auto", "portable")
    ]
    assert len({result.time for result in found}) == 1
    assert all(result.spent == found[0].spent for result in found)


def test_argument_errors() -> None:
    with pytest.raises(ArgumentError, match="scheduling"):
        fabric_of(2, scheduling="fifo")


# ---- banks ---------------------------------------------------------------------------------------


def handed_out(chunks: int, cycles: int, asked: np.ndarray, payload: int, m: Machine) -> float:
    """Nanoseconds until the last of some chunks has been reduced, each by a core of its own: its
    payloads of four workers come at once and are moved in, the result is moved out.
    """
    dma, last, handed = 0.0, 0.0, list[Handed]()
    for _ in range(chunks):
        for child in range(4):
            handed.append(Handed(int(dma), address=child * payload, bytes=payload))
            dma += payload / m.dma_bytes
        handed.append(Handed(int(dma), cycles, asked))
        end = dma + cycles + booked(handed, m)[-1]
        last = max(last, end)
        handed.append(Handed(int(end), bytes=payload))
    return last


@by_scheduling
@pytest.mark.parametrize("machine", [QUICK, replace(QUICK, banks=16), replace(QUICK, bank_bytes=8)])
def test_handlers_wait_for_banks(machine: Machine, scheduling: str) -> None:
    """Eight chunks of four workers at once on eight cores: what bookings say, to the cycle."""
    count, chunks = 512, 8
    fabric = fabric_of(4, machine=machine, network=WIRES, scheduling=scheduling)
    result = allreduce(fabric, chunks * count, window=chunks)
    nic = nicemu.Nic(machine, cycles=True)
    nic.load(nicemu.kernel("sum", "bfloat16"))
    payloads = streams(4, count)
    asked = nic.asked([nicemu.Stream(each) for each in payloads])
    cycles = nic.handle("first4_finish", payloads).cycles
    assert cycles is not None
    expected = handed_out(chunks, cycles.total, asked, 2 * count, machine)
    assert expected > cycles.total + 5
    assert 1e9 * result.time == pytest.approx(expected, abs=0.5)  # of a cycle: the wires
    assert result.spent is not None and result.spent["conflicts"] > 0


def test_more_banks_are_faster() -> None:
    times = [
        allreduce(fabric_of(16, "cards", machine=replace(CARD, banks=banks)), 1 << 15).time
        for banks in (8, 16, 32, 64)
    ]
    assert times == sorted(times, reverse=True) and times[0] > 1.2 * times[-1]


def test_one_core_waits_for_the_dma_engine_alone() -> None:
    alone = replace(CARD, name="alone", cores=1)
    one = allreduce(fabric_of(4, machine=alone), 512)
    assert one.spent is not None and one.spent["conflicts"] == 0
    more = allreduce(fabric_of(4, machine=alone), 1 << 14)
    assert more.spent is not None and more.spent["conflicts"] > 0


@pytest.mark.parametrize("algorithm", ["ring", "halving-doubling", "in-network"])
def test_times_alone_are_the_same(algorithm: str) -> None:
    """``time="only"`` takes what calls ask of banks from those that have run, as it does cycles."""
    count = 40_000
    found = []
    for time in ("packet", "only"):
        fabric = nicemu.Fabric(8, "cards", time=time)
        world = nicemu.Communicator(fabric, algorithm=algorithm)
        found.append(world.allreduce(streams(8, count)))
    assert found[0].time == found[1].time and found[0].spent == found[1].spent
    assert found[0].spent is not None and found[0].spent["conflicts"] > 0


def test_more_kinds_of_calls_than_are_kept() -> None:
    """Of a thousand sizes, the first ones take the same time again."""
    few, counts = [1, 3, 700, 2000], range(2, 2002, 2)
    fabric = nicemu.Fabric(3, "star", time="only")
    with nicemu.Communicator(fabric, algorithm="in-network") as world:
        first = [world.allreduce(streams(3, count)).time for count in few]
        for count in counts:
            world.allreduce(streams(3, count))
        assert [world.allreduce(streams(3, count)).time for count in few] == first


@by_scheduling
@pytest.mark.parametrize("mtu", [300, 320, 576])
def test_what_ran_before_changes_no_time(mtu: int, scheduling: str) -> None:
    """A group of other size has its results elsewhere in the scratchpad, in other banks."""
    machine = replace(CARD, scratchpad=1 << 20)
    times = []
    for before in ([], [0, 1, 2], [4, 1, 2, 0]):
        fabric = fabric_of(5, mtu=mtu, machine=machine, scheduling=scheduling)
        if before:
            with nicemu.Communicator(fabric, before, algorithm="in-network", window=32) as world:
                world.allreduce(streams(len(before), 8000))
        times.append(allreduce(fabric, 8000, window=32).time)
    assert len(set(times)) == 1
