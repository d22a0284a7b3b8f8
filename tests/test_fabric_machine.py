"""Slots, devices and workers against a short reference (fabric_model.py), step by step.

The fabric's links lose everything: the network is hypothesis, which delivers frames that were sent,
in any order, once, more than once, damaged, changed or never, and lets timers run out.  After every
step both must have sent the same frames, given the same verdict and stored the same elements.
"""

from __future__ import annotations

from collections import Counter
from copy import deepcopy
from dataclasses import replace
from itertools import count
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

import nicemu
from nicemu import _core
from nicemu._nicemu import ffi, lib
from nicemu.dtypes import GRADIENTS, format_of
from nicemu.network.exchange import Exchange
from nicemu.network.fabric import Fabric, Ticket
from nicemu.network.packet import Kind, Packet, build, parse
from nicemu.network.topology import topology
from tests.fabric_model import Frame, Host, Key, Network, Tree, Values
from tests.fabrics import allreduce, machine_settings

PCAP_RECORD = 16  # bytes of a record's head
#: bytes that routers may change, without which the ICRC is computed: a bit there hurts nobody
HARMLESS = {40, 41, 46}
MOST_RESENDS = 8
FOREVER = 2**64 - 1  # picoseconds
DTYPES = {row.alias: row.dtype for row in GRADIENTS}


class ByHand:
    """A fabric whose links lose every frame, and the same in the reference.

    What the fabric sends is compared with what the reference sends, and kept in `air`.
    """

    def __init__(
        self, ranks: int, tree: str, window: int, element: str, preset: str, order: str = "fixed"
    ) -> None:
        self.fabric = Fabric(ranks, tree, mtu=256, loss=1.0, max_resends=MOST_RESENDS, order=order)
        lib.nicemu_fabric_capture(self.fabric._fabric, 1)
        self.group = self.fabric.group(window=window)
        assert self.group.window == window
        self.image = nicemu.kernel("sum", element, preset)
        self.chunk = self.group.chunk(self.image)
        names = {f"rank{rank}": node for rank, node in enumerate(self.fabric._hosts)}
        names |= {name: device.node for name, device in self.fabric.devices.items()}
        self.name = {node: name for name, node in names.items()}
        self.model = Network(self._tree(tree, ranks, names), window, self._contribution)
        self.tickets: list[Ticket] = []
        self.air: list[bytes] = []
        self.resends = Counter[tuple[int, int]]()  # by host's node and turn
        #: those that need not count, since a device may have been at work on the turn
        self.excused = Counter[tuple[int, int]]()
        self.taken_at: dict[int, float] = {}  # turn: when a frame of it was taken last
        self.done: set[int] = set()
        self.failed = False
        self.seen = Counter[str]()  # what has happened

    def _tree(self, preset: str, ranks: int, names: dict[str, int]) -> Tree:
        shape = topology(preset, ranks)

        def grow(name: str | int) -> Tree:
            if isinstance(name, int):
                return names[f"rank{name}"]
            return names[name], [grow(child) for child in shape.children[name]]

        return grow(shape.root)

    def _piece(self, key: Key) -> slice:
        return slice(key[1] * self.chunk, (key[1] + 1) * self.chunk)

    def _contribution(self, rank: int, key: Key) -> Values:
        values = self.tickets[key[0]].exchange.inputs[rank]
        assert values is not None
        return tuple(int(x) for x in values[self._piece(key)])

    # ---- frames --------------------------------------------------------------------------------

    def said(self, packet: Packet) -> Frame:
        """What a packet says, in the reference's terms."""
        values = np.frombuffer(packet.payload, DTYPES[packet.element])
        turn = packet.round * self.group.window + packet.lane
        return Frame(
            packet.dst,
            packet.kind == Kind.UP,
            (packet.seq, packet.chunk),
            turn,
            packet.child,
            packet.contributors,
            tuple(int(x) for x in values),
        )

    def sent(self) -> list[bytes]:
        """What the fabric has sent since the last call."""
        size = ffi.new("size_t *")
        data = lib.nicemu_fabric_captured(self.fabric._fabric, size)
        records, out = bytes(ffi.buffer(data, size[0])) if size[0] else b"", []
        while records:
            end = PCAP_RECORD + int.from_bytes(records[8:12], "little")
            out.append(records[PCAP_RECORD:end])
            records = records[end:]
        return out

    def compare(self, expected: list[Frame]) -> None:
        """The fabric has sent these frames, and no others."""
        frames = self.sent()
        packets = [parse(frame) for frame in frames]
        assert all(isinstance(packet, Packet) for packet in packets), packets
        found = [self.said(packet) for packet in packets if isinstance(packet, Packet)]
        assert Counter(found) == Counter(expected)
        self.air += frames

    def deliver(self, frame: bytes) -> str:
        """A frame arrives, here and in the reference."""
        packet = parse(frame)
        assert isinstance(packet, Packet)
        verdict, expected = self.model.receive(self.said(packet))
        assert self.receive(packet.dst, frame) == (verdict or "accepted")
        self.compare(expected)
        if not verdict:
            self.taken_at[self.said(packet).turn] = self.fabric.now
        return verdict

    def receive(self, node: int, frame: bytes) -> str:
        """A frame arrives here only; what is dropped has changed nothing."""
        before = self.fabric.digest()
        verdict = self.fabric.receive(self.name[node], frame)
        self.seen[verdict] += 1
        assert verdict == "accepted" or self.fabric.digest() == before
        return verdict

    # ---- collectives ---------------------------------------------------------------------------

    def start(self, count: int, seed: int) -> None:
        """A collective of whole numbers, whose sums every format holds."""
        rng = np.random.default_rng(seed)
        row = format_of(self.image.element)
        workers = range(self.fabric.ranks)
        inputs = [rng.integers(-9, 10, count).astype(row.dtype) for _ in workers]
        outputs = [np.full(count, 99, row.dtype) for _ in workers]
        ticket = self.group.start(Exchange(self.image, inputs, outputs, partials=True))
        self.tickets.append(ticket)
        chunks = -(-count // self.chunk)
        self.compare(self.model.start([(ticket.seq, chunk) for chunk in range(chunks)]))

    def event(self) -> None:
        """One event of the virtual time, a worker's timer, and all news."""
        waiting = {host.node: set(host.waiting) for host in self.model.hosts}
        news = ffi.new("nicemu_event *")
        _core.call("event", lib.nicemu_fabric_run, self.fabric._fabric, 1, FOREVER, news)
        while news.kind not in (lib.NICEMU_SLICE, lib.NICEMU_IDLE):
            if news.kind == lib.NICEMU_DONE:
                self.check_done(news.seq)
            elif news.kind == lib.NICEMU_FAILED and not self.failed:
                self.check_failure(news)
            _core.call("news", lib.nicemu_fabric_run, self.fabric._fabric, 0, FOREVER, news)
        self.check_resends(waiting)

    def check_resends(self, waiting: dict[int, set[int]]) -> None:
        """A single worker has sent, and nothing but what it waits for."""
        frames = self.sent()
        senders = set()
        for frame in frames:
            packet = parse(frame)
            assert isinstance(packet, Packet)
            host = self.model.nodes[packet.src]
            said = self.said(packet)
            assert isinstance(host, Host)
            assert said.turn in waiting[host.node] and said == host.frame(said.turn)
            which = host.node, said.turn
            self.resends[which] += 1
            self.excused[which] += self.taken_at.get(said.turn) == self.fabric.now
            assert self.resends[which] - self.excused[which] <= MOST_RESENDS
            senders.add(host.node)
        assert len(senders) <= 1
        self.air += frames

    def check_done(self, seq: int) -> None:
        """All workers have all results of a collective."""
        self.done.add(seq)
        self.seen["done"] += 1
        keys = [key for key in self.model.turns if key[0] == seq]
        assert all(key in host.results for host in self.model.hosts for key in keys)

    def check_failure(self, news: Any) -> None:
        """The group has failed because a worker has waited too long; the error says for whom."""
        self.failed = True
        model = self.model
        assert any(map(self.is_last, self.resends))
        turn = model.turns.index((self._of_chunk(news.chunk), news.chunk))
        missing = model.missing(turn)
        waiting = {host.node for host in model.hosts if turn in host.waiting}
        named = {
            host.node
            for rank, host in enumerate(model.hosts)
            if int(news.workers[rank // 64]) >> rank % 64 & 1
        }
        assert named == (missing or waiting)
        assert news.missing == len(missing)
        self.seen["missing" if missing else "waiting"] += 1
        for ticket in self.tickets:
            if ticket.seq not in self.done:
                self.fabric._salvage(ticket)
        for turn in range(max(host.next for host in model.hosts)):
            if any(turn in host.waiting or turn >= host.next for host in model.hosts):
                self.check_survivors(turn)

    def is_last(self, which: tuple[int, int]) -> bool:
        """May a host have sent its frame of a turn as often as it may?"""
        n = self.resends[which]
        return n - self.excused[which] <= MOST_RESENDS <= n

    def check_survivors(self, turn: int) -> None:
        """The partial sums of a turn without an end are those of all who can be had."""
        seq, chunk = self.model.turns[turn]
        for device in self.model.devices:
            nodes, values = self.model.survivors(device, turn)
            record = self.tickets[seq].partials()[self.name[device.node]]
            ranks = np.flatnonzero(record.members[chunk])
            assert {self.model.hosts[rank].node for rank in ranks} == nodes
            assert bool(record.times[chunk]) == bool(nodes)
            if nodes:
                assert tuple(int(x) for x in record.values[self._piece((seq, chunk))]) == values

    def _of_chunk(self, chunk: int) -> int:
        """The collective whose chunk somebody has waited for longest."""
        for node, turn in self.resends:
            host, key = self.model.nodes[node], self.model.turns[turn]
            assert isinstance(host, Host)
            if self.is_last((node, turn)) and turn in host.waiting and key[1] == chunk:
                return key[0]
        raise AssertionError(f"nobody has waited for chunk {chunk}")

    def check(self) -> None:
        """All that workers have stored, and all partial sums, are the reference's."""
        for rank, host in enumerate(self.model.hosts):
            for ticket in self.tickets:
                output = ticket.exchange.outputs[rank]
                assert output is not None
                want = np.full_like(output, 99)
                for key, values in host.results.items():
                    if key[0] == ticket.seq:
                        want[self._piece(key)] = values
                assert output.tobytes() == want.tobytes()
        for device in self.model.devices:
            for slot in device.slots.values():
                record = self.tickets[slot.key[0]].partials()[self.name[device.node]]
                there = slot.partial is not None
                assert bool(record.times[slot.key[1]]) == there
                if there:
                    piece = record.values[self._piece(slot.key)]
                    assert tuple(int(x) for x in piece) == slot.partial
                    members = np.flatnonzero(record.members[slot.key[1]])
                    assert len(members) == sum(device.workers)


class FabricMachine(RuleBasedStateMachine):
    """What hypothesis may do."""

    seen: ClassVar[Counter[str]] = Counter()  # in all runs

    @initialize(
        ranks=st.integers(1, 6),
        tree=st.sampled_from(("star", "tree(2)", "tree(3)", "cards")),
        window=st.integers(1, 3),
        numerics=st.sampled_from((("f32", "wide"), ("bf16", "wide"), ("f16", "per-hop"))),
        order=st.sampled_from(("fixed", "arrival")),
    )
    def build(
        self, ranks: int, tree: str, window: int, numerics: tuple[str, str], order: str
    ) -> None:
        self.hand = ByHand(ranks, tree, window, *numerics, order)
        self.hand.seen = self.seen
        self.old: list[bytes] = []

    def taken(self, i: int) -> bytes:
        frame = self.hand.air.pop(i % len(self.hand.air))
        self.old.append(frame)
        return frame

    def running(self) -> bool:
        return not self.hand.failed

    def flying(self) -> bool:
        return bool(self.hand.air) and not self.hand.failed

    def landed(self) -> bool:
        return bool(self.old) and not self.hand.failed

    @precondition(running)
    @rule(chunks=st.integers(0, 5), short=st.integers(0, 3), seed=st.integers(0, 9))
    def start(self, chunks: int, short: int, seed: int) -> None:
        if len(self.hand.tickets) - len(self.hand.done) < 4:
            self.hand.start(max(chunks * self.hand.chunk - short, 0), seed)

    @precondition(flying)
    @rule(n=st.integers(1, 12))
    def deliver_in_order(self, n: int) -> None:
        for _ in range(min(n, len(self.hand.air))):
            self.hand.deliver(self.taken(0))

    @precondition(flying)
    @rule(i=st.integers(0, 99))
    def deliver_any(self, i: int) -> None:
        self.hand.deliver(self.taken(i))

    @precondition(flying)
    @rule(i=st.integers(0, 99))
    def lose(self, i: int) -> None:
        self.taken(i)

    @precondition(flying)
    @rule(i=st.integers(0, 99))
    def duplicate(self, i: int) -> None:
        frame = self.taken(i)
        self.hand.deliver(frame)
        self.hand.deliver(frame)

    @precondition(landed)
    @rule(i=st.integers(0, 999))
    def deliver_again(self, i: int) -> None:
        self.hand.deliver(self.old[i % len(self.old)])

    @precondition(landed)
    @rule(i=st.integers(0, 999), bit=st.integers(0, 8 * 400))
    def corrupt(self, i: int, bit: int) -> None:
        frame = bytearray(self.old[i % len(self.old)])
        packet = parse(bytes(frame))
        assert isinstance(packet, Packet)
        bit %= 8 * len(frame)
        frame[bit // 8] ^= 1 << bit % 8
        if bit // 8 not in HARMLESS:
            assert self.hand.receive(packet.dst, bytes(frame)) != "accepted"
            self.hand.compare([])

    @precondition(landed)
    @rule(
        i=st.integers(0, 999),
        field=st.sampled_from(("round", "lane", "chunk", "seq", "child")),
        by=st.sampled_from((-2, -1, 1, 2, 3)),
    )
    def forge(self, i: int, field: str, by: int) -> None:
        """A sound frame that nobody sent: refused, unless what it says is what one would send."""
        packet = parse(self.old[i % len(self.old)])
        assert isinstance(packet, Packet)
        value = getattr(packet, field) + by
        if value < 0:
            return
        forged = replace(packet, **{field: value})
        if field == "child":  # over the link of another, or for another
            assert self.hand.receive(packet.dst, build(forged)) != "accepted"
            self.hand.compare([])
            return
        expected = "lane"
        if field != "lane" or value < self.hand.group.window:
            model = deepcopy(self.hand.model, {id(self.hand): self.hand})
            expected, _ = model.receive(self.hand.said(forged))
        if expected:
            assert self.hand.receive(packet.dst, build(forged)) == expected
            self.hand.compare([])

    @precondition(running)
    @rule(n=st.integers(1, 8))
    def pass_time(self, n: int) -> None:
        for _ in range(n):
            if not self.hand.failed:
                self.hand.event()

    @precondition(lambda self: self.hand.failed)
    @rule(i=st.integers(0, 99))
    def too_late(self, i: int) -> None:
        frame = (self.hand.air + self.old)[i % (len(self.hand.air) + len(self.old))]
        packet = parse(frame)
        assert isinstance(packet, Packet)
        assert self.hand.receive(packet.dst, frame) == "failed"
        self.hand.compare([])

    @invariant()
    def same(self) -> None:
        if not self.hand.failed:
            self.hand.check()


SETTINGS = machine_settings(examples=80, steps=80)
#: what must have been met; how collectives fail is the matter of a test of its own
MET = {"done", "accepted", "duplicate", "stale", "future", "key", "lane", "child", "icrc"}


def test_slots_and_trees_do_what_the_reference_does() -> None:
    FabricMachine.seen.clear()
    run_state_machine_as_test(FabricMachine, settings=SETTINGS)
    assert set(FabricMachine.seen) >= MET


@pytest.mark.parametrize("tree", ["star", "tree(2)"])
@pytest.mark.parametrize(("kind", "end"), [(Kind.UP, "missing"), (Kind.DOWN, "waiting")])
def test_a_worker_that_is_cut_off_ends_the_group(kind: Kind, end: str, tree: str) -> None:
    """Its frames are lost in one direction, until it has waited too long; then all is refused."""
    hand = ByHand(3, tree, 1, "f32", "wide")
    hand.start(hand.chunk, 1)
    worker = hand.model.hosts[2].node
    lost: list[tuple[int, bytes]] = []
    while not hand.failed:
        if not hand.air:
            hand.event()
            continue
        frame = hand.air.pop(0)
        packet = parse(frame)
        assert isinstance(packet, Packet)
        if packet.kind == kind and worker in (packet.src, packet.dst):
            lost.append((packet.dst, frame))
        else:
            hand.deliver(frame)
    assert hand.seen[end] == 1
    assert {hand.receive(node, frame) for node, frame in lost} == {"failed"}


def finish(hand: ByHand, lost: int) -> bool:
    """Deliver in order all but one frame, and let timers run out where nothing is in the air; was
    that frame sent at all?"""
    n = 0
    while not all(host.results.keys() == set(hand.model.turns) for host in hand.model.hosts):
        for _ in range(4 * len(hand.model.hosts)):
            if not hand.air:
                hand.event()
        frame = hand.air.pop(0)
        if n != lost:
            hand.deliver(frame)
        n += 1
    hand.check()
    assert not hand.failed
    return n > lost


@pytest.mark.parametrize("tree", ["star", "tree(2)"])
def test_invariant_8_the_loss_of_any_one_frame_is_made_good(tree: str) -> None:
    for lost in count():
        hand = ByHand(3, tree, 1, "f32", "wide")
        hand.start(2 * hand.chunk, 1)
        if not finish(hand, lost):
            break
    assert lost >= 2 * 2 * 3  # chunks, directions, workers


@pytest.mark.parametrize("seed", range(3))
def test_invariant_7_wide_devices_merge_in_child_order(seed: int) -> None:
    """More children than one call takes: they are merged before all are there, but in order."""
    run = allreduce(Fabric(20, "star", seed=seed, jitter=20e-6), 5000, preset="per-add")
    assert run.fabric.counters().calls > 0
