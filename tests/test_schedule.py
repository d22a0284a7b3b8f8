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
        "parse": PSPIN.parse, "order": 0, "queueing": 0, "DMA": 16, "dispatch": PSPIN.dispatch,
        "issue": 100, "fetch": 0, "conflicts": 0, "egress": PSPIN.egress,
    }  # fmt: skip
    assert one.handler == "payload" and one.since == 5


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


def test_the_lowest_of_cores_that_are_free_in_the_same_cycle() -> None:
    """Core 1 began its handler first; the packet that waits goes to core 0."""
    packets = [Packet(0, 0, 64), Packet(63, 1, 64), Packet(160, 2, 64)]
    machine = replace(PSPIN, cores=2, clusters=1)
    alone = Handler({"issue": 100})
    runs = serve(packets, Handler({"issue": 20}), machine, SCHEDULING, header=alone)
    _, payload, other, *_ = runs
    waited = runs[4]
    assert other.begin < payload.begin and other.end == payload.end
    assert (payload.core, other.core) == (0, 1)
    assert waited.begin == payload.end + PSPIN.dispatch and waited.core == 0


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
    # by whichever handler
    first = Handler({"issue": 40}, (Fetch(0, 1), Fetch(10, 3)))
    three = serve([Packet(0, 0, 64)], handler, PSPIN, SCHEDULING, header=first, completion=handler)
    assert [service.terms["fetch"] for service in three] == [2 * miss, miss, 0]


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


# ---- header and completion -----------------------------------------------------------------------


PAYLOAD, HEADER, COMPLETION = (Handler({"issue": cycles}) for cycles in (100, 40, 60))
ON_THE_WAY = 1 + PSPIN.dispatch  # of 64 bytes, to the handler


def by_handler(services: list[Service], message: int) -> dict[str, list[Service]]:
    """Of a message, in the order in which its packets arrive."""
    found: dict[str, list[Service]] = {"header": [], "payload": [], "completion": []}
    for one in sorted(services, key=lambda one: one.packet.arrival):
        if one.packet.message == message:
            found[one.handler].append(one)
    return found


def test_one_packet_has_all_three_handlers() -> None:
    """Each when the device is done with the one before; the packet is moved and parsed once."""
    services = serve([Packet(5, 2, 64)], PAYLOAD, PSPIN, SCHEDULING, HEADER, COMPLETION)
    assert [one.handler for one in services] == ["header", "payload", "completion"]
    assert [one.terms["issue"] for one in services] == [40, 100, 60]
    assert [one.terms["parse"] for one in services] == [PSPIN.parse, 0, 0]
    since = 5
    for one in services:
        assert one.since == since and one.terms["order"] == one.terms["queueing"] == 0
        assert one.begin == since + one.terms["parse"] + ON_THE_WAY
        assert one.done == one.end + PSPIN.egress
        assert one.cluster == 2 and one.core == 0
        since = one.done
    assert since == 5 + PSPIN.parse + 3 * (ON_THE_WAY + PSPIN.egress) + 200


def test_a_message_waits_for_its_header_handler() -> None:
    """The first to arrive has it, and is the first of those that wait; others go on meanwhile."""
    packets = [Packet(30, 0, 64), Packet(0, 0, 64), Packet(20, 0, 64), Packet(21, 1, 64)]
    last, header, first, middle, other, others = serve(
        packets, PAYLOAD, PSPIN, SCHEDULING, header=HEADER
    )
    assert header.packet == first.packet == packets[1]
    assert (header.handler, other.handler) == ("header", "header")
    for position, one in enumerate((first, middle, last)):
        assert one.handler == "payload"
        assert one.begin == header.done + ON_THE_WAY + position and one.core == position
    assert middle.terms["order"] == header.done - 20 - PSPIN.parse
    assert (first.since, first.terms["order"], first.terms["queueing"]) == (header.done, 0, 0)
    assert other.begin == 21 + PSPIN.parse + ON_THE_WAY < header.done
    assert others.begin == other.done + ON_THE_WAY


def test_completion_after_all_feedback() -> None:
    """For the last to arrive, also where others take longer, and also where all others are done."""
    packets = [Packet(0, 0, 64), Packet(1, 0, 64), Packet(0, 1, 64)]
    *_, last, completion, alone, its_completion = serve(
        packets, PAYLOAD, PSPIN, SCHEDULING, completion=COMPLETION
    )
    assert (completion.handler, its_completion.handler) == ("completion", "completion")
    assert completion.packet == packets[1] and completion.begin == last.done + ON_THE_WAY
    assert its_completion.begin == alone.done + ON_THE_WAY
    # the last to arrive overtakes a large one: its completion handler waits for that
    large, small, completion = serve(
        [Packet(0, 0, 4096), Packet(1, 0, 64)],
        PAYLOAD, PSPIN, replace(SCHEDULING, home=False), completion=COMPLETION,
    )  # fmt: skip
    assert small.done < large.done and completion.packet == small.packet
    assert completion.since == small.done
    assert completion.terms["order"] == large.done - small.done
    assert completion.begin == large.done + ON_THE_WAY
    # a packet that comes late is the last, however long the others have been done
    early, late, completion = serve(
        [Packet(0, 0, 64), Packet(5000, 0, 64)], PAYLOAD, PSPIN, SCHEDULING, completion=COMPLETION
    )
    assert early.done < late.begin and completion.begin == late.done + ON_THE_WAY


def test_handlers_of_other_messages_take_turns_with_them() -> None:
    """One core that has room for one packet: a header handler waits for its turn as any."""
    machine = replace(PSPIN, cores=1, clusters=1)
    packets = [Packet(0, message, 64) for message in (0, 1, 2) for _ in range(2)]
    scheduling = replace(SCHEDULING, in_flight=1)
    services = serve(packets, PAYLOAD, machine, scheduling, HEADER, COMPLETION)
    order = sorted(services, key=lambda one: one.begin)
    assert [one.packet.message for one in order] == [0, 1, 2] * 4
    handlers = ["header", "payload", "payload", "completion"]
    assert [one.handler for one in order] == [name for name in handlers for _ in range(3)]


def test_a_full_home_sends_them_elsewhere() -> None:
    """As any packet: home is full of message 0 when the handlers of message 4 are to run."""
    packets = [Packet(0, 0, 64)] * 21 + [Packet(200, 4, 64)]
    scheduling = replace(SCHEDULING, in_flight=8)
    services = serve(packets, Handler({"issue": 500}), PSPIN, scheduling, HEADER, COMPLETION)
    mine = by_handler(services, 0)
    assert [one.cluster for one in mine["payload"]] == [0] * 8 + [1, 2, 3] * 4 + [1]
    *_, header, payload, completion = services
    assert (header.cluster, payload.cluster) == (2, 2)  # the first of those with four packets
    assert completion.cluster == 0 and completion.begin > mine["payload"][0].done  # there is room


def test_a_core_is_free_where_a_packet_was() -> None:
    """With no egress a packet goes on to another cluster in the cycle in which its core is free."""
    machine = replace(PSPIN, clusters=2, cores=2, egress=0)
    packets = [Packet(at, message, 64) for at, message in ((60, 0), (10, 0), (60, 3), (60, 2))]
    scheduling, header = replace(SCHEDULING, in_flight=2), Handler({"issue": 10})
    services = serve(packets, Handler({"issue": 50}), machine, scheduling, header)
    runs = {
        kind: [one for one in services if one.handler == kind] for kind in ("header", "payload")
    }
    assert [(one.begin, one.cluster) for one in runs["header"]] == [(36, 0), (86, 1), (109, 1)]
    begins = [(123, 0), (60, 0), (132, 1), (186, 0)]
    assert [(one.begin, one.cluster) for one in runs["payload"]] == begins


#: arrival, message, bytes: close together and far apart
ROWS = st.lists(
    st.tuples(
        st.integers(0, 20) | st.integers(0, 300),
        st.integers(0, 6),
        st.sampled_from([0, 64, 1000, 8000]),
    ),
    max_size=60,
)


def some(cycles: int) -> Handler:
    """A handler that waits for lines and banks, too."""
    steps = Fetch(0, cycles), Access(cycles // 2, 8, 4, packet=True), Fetch(cycles, 4)
    return Handler({"issue": cycles}, steps)


OPTIONAL = st.none() | st.integers(1, 400).map(some)


@settings(deadline=None, max_examples=150, derandomize=True)
@given(
    ROWS,
    st.integers(1, 200).map(some),
    OPTIONAL,
    OPTIONAL,
    st.booleans(),
    st.integers(1, 20),
    st.sampled_from([(4, 32), (2, 4), (1, 2), (1, 1)]),
    st.sampled_from([PSPIN.egress, 0]),
)
def test_any_packets(
    rows: list[tuple[int, int, int]],
    payload: Handler,
    header: Handler | None,
    completion: Handler | None,
    home: bool,
    in_flight: int,
    size: tuple[int, int],
    egress: int,
) -> None:
    """Every rule but turns, whatever the messages, their handlers and the device."""
    clusters, cores = size
    machine = replace(PSPIN, clusters=clusters, cores=cores, egress=egress)
    packets = [Packet(*row) for row in rows]
    scheduling = replace(SCHEDULING, home=home, in_flight=in_flight)
    services = serve(packets, payload, machine, scheduling, header, completion)
    assert services == serve(packets, payload, machine, scheduling, header, completion)
    handlers = {"header": header, "payload": payload, "completion": completion}
    terms_add_up(services, packets, handlers, egress)
    messages_keep_the_order_of_handlers(services)
    cores_are_the_lowest_that_are_free(services, cores // clusters)
    for cluster in range(clusters):
        there = [(moved(one), one.done) for one in services if one.cluster == cluster]
        for at, _ in there:
            assert sum(since <= at < until for since, until in there) <= in_flight


def moved(one: Service) -> int:
    """By then at the latest it is in its cluster: its DMA cannot begin later."""
    return one.begin - one.terms["dispatch"] - one.terms["DMA"]


def kinds(packets: list[Packet], handlers: dict[str, Handler | None]) -> list[list[str]]:
    """The handlers that each packet goes to."""
    found = []
    for number, packet in enumerate(packets):
        message = [(p.arrival, i) for i, p in enumerate(packets) if p.message == packet.message]
        at = (packet.arrival, number)
        goes_to = {"header": at == min(message), "payload": True, "completion": at == max(message)}
        found.append([kind for kind, it in handlers.items() if it is not None and goes_to[kind]])
    return found


def terms_add_up(
    services: list[Service],
    packets: list[Packet],
    handlers: dict[str, Handler | None],
    egress: int,
) -> None:
    """From a packet's arrival through all its handlers, and within each."""
    rest = iter(services)
    for packet, goes_to in zip(packets, kinds(packets, handlers), strict=True):
        since, parse = packet.arrival, PSPIN.parse
        for kind in goes_to:
            one, handler = next(rest), handlers[kind]
            assert handler is not None
            assert (one.packet, one.handler, one.since) == (packet, kind, since)
            assert min(one.terms.values()) >= 0 and one.terms["parse"] == parse
            way = sum(one.terms[name] for name in ("order", "queueing", "DMA", "dispatch"))
            ran = handler.terms["issue"] + one.terms["fetch"] + one.terms["conflicts"]
            assert (one.begin, one.end) == (since + parse + way, since + parse + way + ran)
            assert one.done == one.end + egress == since + one.latency
            since, parse = one.done, 0
    assert not list(rest)


def messages_keep_the_order_of_handlers(services: list[Service]) -> None:
    for message in {one.packet.message for one in services}:
        mine = by_handler(services, message)
        for header in mine["header"]:
            for one in mine["payload"]:
                assert header.done + one.terms["DMA"] + PSPIN.dispatch <= one.begin
        done = max(one.done for one in mine["payload"])
        for completion in mine["completion"]:
            assert done + completion.terms["DMA"] + PSPIN.dispatch <= completion.begin
        # a cluster moves its packets as they arrive, and gives them to cores as it has moved them
        for cluster in range(PSPIN.clusters):
            begins = [one.begin for one in mine["payload"] if one.cluster == cluster]
            assert begins == sorted(begins)


def cores_are_the_lowest_that_are_free(services: list[Service], cores: int) -> None:
    busy: dict[tuple[int, int], list[Service]] = {}
    for one in services:
        assert 0 <= one.core < cores
        busy.setdefault((one.cluster, one.core), []).append(one)
    for ones in busy.values():
        ones.sort(key=lambda one: one.begin)
        for before, after in pairwise(ones):
            assert before.end + PSPIN.dispatch <= after.begin
    for one in services:
        given = one.begin - PSPIN.dispatch
        for core in range(one.core):
            others = busy.get((one.cluster, core), [])
            assert any(s.begin - PSPIN.dispatch <= given < s.end for s in others)


@settings(deadline=None, max_examples=150, derandomize=True)
@given(ROWS, st.integers(1, 200).map(some), OPTIONAL, OPTIONAL, st.booleans(), st.integers(1, 4))
def test_any_messages_take_turns(
    rows: list[tuple[int, int, int]],
    payload: Handler,
    header: Handler | None,
    completion: Handler | None,
    home: bool,
    clusters: int,
) -> None:
    """A message that waits has its turn before another has a second one.

    With room for one packet in a cluster, a packet waits for that only, and is moved when it has
    its turn.
    """
    machine = replace(PSPIN, clusters=clusters, cores=clusters)
    scheduling = replace(SCHEDULING, home=home, in_flight=1)
    packets = [Packet(*row) for row in rows]
    turns: dict[int, list[tuple[int, int]]] = {}  # message: from when on it waited, when taken
    for one in serve(packets, payload, machine, scheduling, header, completion):
        turn = moved(one) - one.terms["queueing"], moved(one)
        turns.setdefault(one.packet.message, []).append(turn)
    for message, mine in turns.items():
        mine.sort(key=lambda turn: turn[1])
        for (_, before), (_, after) in pairwise(mine):
            for other in turns.keys() - {message}:
                if any(ready < before and after < taken for ready, taken in turns[other]):
                    assert any(before <= taken <= after for _, taken in turns[other])


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


@pytest.mark.parametrize(
    ("terms", "step", "message"),
    [
        ({"issue": -1}, Fetch(0, 0), "issue -1"),
        ({}, Fetch(-1, 0), "cycle -1"),
        ({}, Access(0, -4, 4, packet=False), "address -4"),
        ({}, Access(0, 0, 0, packet=True), "bytes 0"),
    ],
)
def test_handlers_are_checked(terms: dict[str, int], step: Fetch | Access, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        Handler(terms, (step,))


def test_presets() -> None:
    assert Scheduling("pspin", home=True, in_flight=20, buffer=65536) == SCHEDULINGS["pspin"]
    assert all(row.name == name for name, row in SCHEDULINGS.items())
