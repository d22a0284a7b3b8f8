"""Which core of a device takes a handler call, and how long it waits there for the banks."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import nicemu
from nicemu._nicemu import lib
from nicemu.device.banks import Handed, booked
from nicemu.device.machine import MACHINES, Machine, Network
from nicemu.errors import ArgumentError
from tests.fabrics import streams

CARD = MACHINES["card"]
#: whose stations take no time; a payload of 4096 bytes is there in a cycle
QUICK = replace(CARD, name="quick", parse=0, dispatch=0, egress=0, dma_bytes=4096)
WIRES = Network(rate=1e14, delay=0.0)
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
                waited = begin == idle[core]  # else it was idle when the payload was there
                assert core in mates
                assert all(idle[mate] >= begin for mate in mates if mate < core) or waited
                if waited and begin != slots.get(slot):
                    assert idle[core] == min(idle[mate] for mate in mates)
            idle[core] = slots[slot] = end


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
