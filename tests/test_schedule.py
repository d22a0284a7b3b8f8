"""Packets of messages through a device: who takes them, and what they wait for."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nicemu.device.machine import MACHINES
from nicemu.device.schedule import (
    SCHEDULINGS,
    Access,
    Fetch,
    Handler,
    Packet,
    Scheduling,
    Service,
    serve,
)
from nicemu.errors import ArgumentError

PSPIN = MACHINES["pspin"]
SCHEDULING = SCHEDULINGS["pspin"]
ALONE = PSPIN.parse + PSPIN.dispatch + PSPIN.egress


def served(packets: list[Packet], cycles: int = 100, **changes: object) -> list[Service]:
    scheduling = replace(SCHEDULING, **changes)  # type: ignore[arg-type]
    return serve(packets, Handler({"issue": cycles}), PSPIN, scheduling)


def test_one_packet() -> None:
    (one,) = served([Packet(5, 2, 1000)])
    assert one.cluster == 2 and one.core == 0
    assert one.begin == 5 + PSPIN.parse + 16 + PSPIN.dispatch and one.end == one.begin + 100
    assert one.done == one.end + PSPIN.egress and one.latency == ALONE + 16 + 100
    assert one.terms == {
        "parse": PSPIN.parse, "queueing": 0, "DMA": 16, "dispatch": PSPIN.dispatch, "issue": 100,
        "fetch": 0, "conflicts": 0, "egress": PSPIN.egress,
    }  # fmt: skip


def test_the_lowest_free_core_in_the_order_of_dma() -> None:
    """Nine at once: the ninth waits for the first core that is free, which is the first."""
    all_nine = served([Packet(0, 0, 64) for _ in range(9)])
    assert [one.core for one in all_nine] == [*range(8), 0]
    assert [one.begin for one in all_nine[:8]] == [all_nine[0].begin + i for i in range(8)]
    last = all_nine[8]
    assert last.begin == all_nine[0].end + PSPIN.dispatch
    assert last.terms["queueing"] == last.begin - PSPIN.dispatch - 1 - PSPIN.parse
    # those that wait keep their order
    twelve = served([Packet(0, 0, 64) for _ in range(12)])
    assert [one.begin for one in twelve] == sorted(one.begin for one in twelve)
    # later ones take the lowest of those that are free again
    late = served([*(Packet(0, 0, 64) for _ in range(3)), Packet(110, 0, 64), Packet(114, 0, 64)])
    assert [one.core for one in late] == [0, 1, 2, 3, 0]


def test_dma_moves_one_packet_after_the_other_in_each_cluster() -> None:
    same = served([Packet(0, 0, 1024), Packet(0, 4, 1024)])
    assert [one.terms["queueing"] for one in same] == [0, 16]
    other = served([Packet(0, 0, 1024), Packet(0, 1, 1024)])
    assert [one.terms["queueing"] for one in other] == [0, 0]


def test_home_and_away() -> None:
    """A message stays at home while there is room, then goes where there is most."""
    packets = [Packet(0, 1, 64) for _ in range(23)]
    clusters = [one.cluster for one in served(packets)]
    assert clusters == [1] * SCHEDULING.in_flight + [0, 2, 3]
    assert [one.cluster for one in served(packets[:5], home=False)] == [0, 1, 2, 3, 0]


def test_messages_take_turns_for_room() -> None:
    """One place in each cluster: the packets behind them wait, and messages take turns."""
    packets = [Packet(0, 0, 64)] * 4 + [Packet(1, 0, 64)] * 4 + [Packet(1, 4, 64)] * 4
    all_of_them = served(packets, in_flight=1)
    assert {one.cluster for one in all_of_them[:4]} == {0, 1, 2, 3}
    waiting = sorted(all_of_them[4:], key=lambda one: one.begin)
    for four in (waiting[:4], waiting[4:]):
        assert Counter(one.packet.message for one in four) == {0: 2, 4: 2}
    assert waiting[0].begin == min(one.done for one in all_of_them[:4]) + 1 + PSPIN.dispatch


def test_a_line_is_fetched_once_in_a_cluster() -> None:
    """The next to want it waits until it is there; those after that find it."""
    handler = Handler({"issue": 40}, (Fetch(0, 1), Fetch(20, 2)))
    miss = PSPIN.timing.miss
    packets = [Packet(at, message, 64) for at, message in ((0, 0), (3, 0), (500, 0), (500, 1))]
    one, behind, later, elsewhere = serve(packets, handler, PSPIN, SCHEDULING)
    waits = [service.terms["fetch"] for service in (one, behind, later, elsewhere)]
    assert waits == [2 * miss, 2 * miss - 3, 0, 2 * miss]
    assert one.end == behind.end


def test_accesses_wait_for_dma_and_for_other_cores() -> None:
    """A beat takes a quarter of the banks, and goes on to the next quarter in the next cycle."""
    begin = PSPIN.parse + 1 + PSPIN.dispatch
    word = Access(0, 0, 4, packet=False)
    handler = Handler({"issue": 10}, (word,))
    # a second packet's beats are in the banks 0..15 when the first's handler asks for bank 0
    arrival = begin - PSPIN.parse
    first, _ = serve([Packet(0, 0, 64), Packet(arrival, 0, 4096)], handler, PSPIN, SCHEDULING)
    assert first.terms["conflicts"] == 0  # they begin at bank 16: behind the first packet
    shifted = Handler({"issue": 10}, (word._replace(address=64),))
    first, _ = serve([Packet(0, 0, 64), Packet(arrival, 0, 4096)], shifted, PSPIN, SCHEDULING)
    assert first.terms["conflicts"] == 1
    # two handlers that begin at once, in one bank and in two
    at_once = [Packet(0, 0, 0), Packet(0, 0, 0)]
    assert [s.terms["conflicts"] for s in serve(at_once, handler, PSPIN, SCHEDULING)] == [0, 1]
    own = Handler({"issue": 10}, (word._replace(packet=True),))
    both = serve([Packet(0, 0, 0), Packet(1, 0, 0)], own, PSPIN, SCHEDULING)
    assert [s.terms["conflicts"] for s in both] == [0, 0]


@settings(deadline=None, max_examples=60, derandomize=True)
@given(
    st.lists(st.tuples(st.integers(0, 300), st.integers(0, 6), st.integers(0, 2000)), max_size=60),
    st.integers(1, 200),
    st.booleans(),
    st.integers(1, 20),
)
def test_any_packets(
    rows: list[tuple[int, int, int]], cycles: int, home: bool, in_flight: int
) -> None:
    """Terms add up, no core has two handlers at once, no cluster more packets than it has room."""
    handler = Handler(
        {"issue": cycles}, (Fetch(0, 3), Access(cycles // 2, 8, 4, packet=True), Fetch(cycles, 4))
    )
    packets = [Packet(*row) for row in rows]
    scheduling = replace(SCHEDULING, home=home, in_flight=in_flight)
    services = serve(packets, handler, PSPIN, scheduling)
    assert [one.packet for one in services] == packets
    busy: dict[tuple[int, int], list[Service]] = {}
    for one in services:
        assert min(one.terms.values()) >= 0
        assert one.latency == one.end + PSPIN.egress - one.packet.arrival
        assert one.end - one.begin == cycles + one.terms["fetch"] + one.terms["conflicts"]
        busy.setdefault((one.cluster, one.core), []).append(one)
    for ones in busy.values():
        ones.sort(key=lambda one: one.begin)
        for before, after in pairwise(ones):
            assert before.end + PSPIN.dispatch <= after.begin
    for cluster in range(PSPIN.clusters):
        mine = [one for one in services if one.cluster == cluster]
        for one in mine:
            there = [s for s in mine if s.begin <= one.begin < s.done]
            assert len(there) <= in_flight


@pytest.mark.parametrize(
    ("packet", "message"),
    [
        (Packet(-1, 0, 64), "arrival -1"),
        (Packet(0, -1, 64), "message -1"),
        (Packet(0, 0, 65537), "bytes 65537 is out of range: use 0..65536"),
    ],
)
def test_argument_errors(packet: Packet, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        served([packet])


def test_presets() -> None:
    assert Scheduling("pspin", home=True, in_flight=20, buffer=65536) == SCHEDULINGS["pspin"]
    assert all(row.name == name for name, row in SCHEDULINGS.items())
