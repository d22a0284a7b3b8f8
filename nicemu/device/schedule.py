"""Packets of messages through a device whose handlers run where a core is free, in cycles.

Owns: which cluster and core takes a packet (:class:`Scheduling`, as data), in which order the
handlers of a message run, and the waits that follow from that: for those handlers, room in a
cluster, its DMA engine, a core, a line of the instruction cache, a bank.  What a handler takes when
it is alone is recorded on an emulated core; what stations take is the machine's.  Slots, and the
cores they belong to, are the fabric's.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from heapq import heappop, heappush
from itertools import count
from typing import NamedTuple

import numpy as np

from nicemu.arguments import whole
from nicemu.device.banks import MOST, masks
from nicemu.device.machine import Machine

__all__ = ["SCHEDULINGS", "Access", "Fetch", "Handler", "Packet", "Scheduling", "Service", "serve"]


@dataclass(frozen=True)
class Scheduling:
    """Who takes a packet.

    Messages with packets that are ready take turns, whichever handler is next.  In a cluster,
    packets are given to cores in the order in which their DMA ends, each to the free core of the
    lowest number.

    Attributes:
        name: preset name.
        home: a message has a home cluster, its number modulo the clusters, which takes its packets
            while it has room; else the cluster with the fewest does, of several the first.
        in_flight: packets that a cluster has room for, waiting or at work.
        buffer: bytes of each cluster's packets in its scratchpad, used one after the other: where
            packets lie.  What bounds how many are there is ``in_flight``.
    """

    name: str
    home: bool
    in_flight: int
    buffer: int


SCHEDULINGS: dict[str, Scheduling] = {
    row.name: row
    for row in (
        # Its public RTL: mpq_engine.sv (turns), scheduler.sv (clusters), cluster_scheduler.sv
        # (cores); pspin_cfg_pkg.sv has 12 packets that wait beside one on each of 8 cores, and
        # 64 KiB.
        Scheduling("pspin", home=True, in_flight=20, buffer=64 * 1024),
    )
}


class Fetch(NamedTuple):
    """A step of a handler: it asks for a line of instructions in that cycle, counted from its begin
    as if it were alone.
    """

    cycle: int
    line: int


class Access(NamedTuple):
    """Likewise, for bytes of the scratchpad; ``packet``: the address counts from the packet's."""

    cycle: int
    address: int
    bytes: int
    packet: bool


@dataclass(frozen=True)
class Handler:
    """What a handler does for one packet, alone and with its code in the cache.

    Attributes:
        terms: what its cycles are spent on; it takes their sum.
        steps: what it asks for, by ascending cycle.
    """

    terms: dict[str, int]
    steps: tuple[Fetch | Access, ...] = ()

    def __post_init__(self) -> None:
        """Check the ranges.

        Raises:
            ArgumentError: a number is below 0, or an access has no bytes.
        """
        for term, cycles in self.terms.items():
            whole(term, cycles, 0, MOST)
        for step in self.steps:
            whole("cycle", step.cycle, 0, MOST)
            if isinstance(step, Access):
                whole("address", step.address, 0, MOST)
                whole("bytes", step.bytes, 1, MOST)


class Packet(NamedTuple):
    """A packet of a message.

    Attributes:
        arrival: cycle in which its last bit is there.
        message: number of its message, from 0 on.
        bytes: that are moved into the scratchpad for each of its handlers.
    """

    arrival: int
    message: int
    bytes: int


@dataclass(frozen=True)
class Service:
    """A handler that has run for a packet.

    Attributes:
        packet: which.
        handler: "header", "payload" or "completion".
        since: the packet's arrival, or the cycle in which the device is done with the handler
            before.
        cluster, core: who took it; the core's number in its cluster.
        begin, end: cycles of its handler.
        terms: what its time is spent on, from ``since`` until the device is done with it; they add
            up to that.
    """

    packet: Packet
    handler: str
    since: int
    cluster: int
    core: int
    begin: int
    end: int
    terms: dict[str, int]

    @property
    def latency(self) -> int:
        """Cycles from ``since`` until the device is done with the handler; those of all handlers of
        a packet add up to the packet's latency.
        """
        return sum(self.terms.values())

    @property
    def done(self) -> int:
        """The cycle in which the device is done with the handler, and what waits for that in the
        message may go on: PsPIN's feedback.
        """
        return self.since + self.latency


def serve(
    packets: Iterable[Packet],
    handler: Handler,
    machine: Machine,
    scheduling: Scheduling,
    header: Handler | None = None,
    completion: Handler | None = None,
) -> list[Service]:
    """Let packets arrive at a device and run a handler for each.

    The packets of one number are a message.  As PsPIN has it (mpq_engine.sv):

    - The first one to arrive goes to the header handler, while the others wait.  Then all of them
      go to the payload handler.
    - When the device is done with all payload handlers of the message, the last one to arrive goes
      to the completion handler.
    - For each handler the packet is moved into a cluster anew; cluster and core may be others.

    Args:
        packets: in any order.
        handler: of each packet: the payload handler.
        machine: has the cores and stations.
        scheduling: who takes a packet.
        header, completion: of each message; None: there is none, and nobody waits for it.

    Returns:
        What has become of each packet, in their order; of one with several handlers, one after the
        other.

    Raises:
        ArgumentError: a packet is larger than a cluster's buffer, or a number is below 0.
    """
    return _Device((header, handler, completion), machine, scheduling).run(packets)


#: In the order in which a message has them; a stage is a place in it.
_HANDLERS = ("header", "payload", "completion")
_HEADER, _PAYLOAD, _COMPLETION = range(3)


class _What(IntEnum):
    """Events; those of one cycle are in this order."""

    DONE = 0  # the device is done with a handler's packet
    READY = 1  # a packet has arrived and is parsed
    STEP = 2  # its handler asks for something, or ends
    FREE = 3  # its core is: those that come free in one cycle are free before the first packet
    MOVED = 4  # its DMA has ended


@dataclass
class _Job:
    """A packet on its way, from handler to handler."""

    packet: Packet
    since: int  # its arrival, or the end of the stage before
    stage: int = _PAYLOAD
    until: int = _PAYLOAD  # its last stage
    ready: int = 0  # from when on it may be scheduled
    cluster: _Cluster | None = None
    core: int = 0
    place: int = 0  # in the cluster's buffer
    begin: int = 0
    step: int = 0  # of the handler, the next
    waits: dict[str, int] = field(default_factory=dict)
    services: list[Service] = field(default_factory=list)


@dataclass
class _Message:
    """How far its handlers are."""

    left: list[int] = field(default_factory=lambda: [0] * len(_HANDLERS))  # packets of each stage
    held: deque[_Job] = field(default_factory=deque)  # until stages before theirs are over


@dataclass
class _Cluster:
    """What the packets of a cluster share."""

    number: int
    free: list[int]  # cores, a heap
    packets: int = 0
    used: int = 0  # bytes of the buffer, ever
    dma_free: int = 0
    waiting: deque[_Job] = field(default_factory=deque)  # for a core
    lines: dict[int, int] = field(default_factory=dict)  # line: cycle from which it is there
    taken: dict[int, int] = field(default_factory=dict)  # cycle: banks, as bits


class _Device:
    """Events in the order of their cycles."""

    def __init__(
        self, handlers: Sequence[Handler | None], machine: Machine, scheduling: Scheduling
    ) -> None:
        self._handlers = {stage: it for stage, it in enumerate(handlers) if it is not None}
        self._alone = {stage: sum(it.terms.values()) for stage, it in self._handlers.items()}
        self._machine, self._scheduling = machine, scheduling
        cores = list(range(machine.cores // machine.clusters))
        self._clusters = [_Cluster(i, list(cores)) for i in range(machine.clusters)]
        self._messages: defaultdict[int, _Message] = defaultdict(_Message)
        self._ready: dict[int, deque[_Job]] = {}  # message: its packets; whose turn it is, first
        self._events: list[tuple[int, _What, int, _Job, _Cluster | None]] = []
        self._numbers = count()

    def run(self, packets: Iterable[Packet]) -> list[Service]:
        jobs = [_Job(packet, since=packet.arrival) for packet in packets]
        for job in jobs:
            for name in ("arrival", "message"):
                whole(name, getattr(job.packet, name), 0, MOST)
            whole("bytes", job.packet.bytes, 0, self._scheduling.buffer)
            self._at(job.packet.arrival + self._machine.parse, _What.READY, job)
        self._plan(jobs)
        while self._events:
            now, what, _, job, cluster = heappop(self._events)
            if what is _What.READY:
                self._offer(job, now)
                self._schedule(now)
                continue
            assert cluster is not None  # from its scheduling on
            if what is _What.DONE:
                cluster.packets -= 1
                self._advance(job, now)
                self._schedule(now)
            elif what is _What.STEP:
                self._step(cluster, job, now)
            else:
                if what is _What.MOVED:
                    cluster.waiting.append(job)
                self._dispatch(cluster, now)
        return [service for job in jobs for service in job.services]

    def _at(self, cycle: int, what: _What, job: _Job) -> None:
        heappush(self._events, (cycle, what, next(self._numbers), job, job.cluster))

    def _beats(self, job: _Job) -> int:
        return -(-job.packet.bytes // self._machine.dma_bytes)

    # ---- the handlers of a message ---------------------------------------------------------------

    def _plan(self, jobs: Sequence[_Job]) -> None:
        """Which packets have more than the payload handler."""
        last: dict[int, _Job] = {}
        for job in sorted(jobs, key=lambda job: job.packet.arrival):
            if job.packet.message not in last and _HEADER in self._handlers:
                job.stage = _HEADER
            last[job.packet.message] = job
        if _COMPLETION in self._handlers:
            for job in last.values():
                job.until = _COMPLETION
        for job in jobs:
            for stage in range(job.stage, job.until + 1):
                self._messages[job.packet.message].left[stage] += 1

    def _offer(self, job: _Job, now: int) -> None:
        """It may be scheduled, or is held by packets at the stages before its own."""
        message = self._messages[job.packet.message]
        if any(message.left[: job.stage]):
            message.held.append(job)
        else:
            job.ready = now
            self._ready.setdefault(job.packet.message, deque()).append(job)

    def _advance(self, job: _Job, now: int) -> None:
        """A stage of the packet is over: whoever that held may be scheduled, or not yet."""
        message, stage = self._messages[job.packet.message], job.stage
        message.left[stage] -= 1
        if stage < job.until:
            job.stage, job.since = stage + 1, now
            message.held.appendleft(job)  # of those that the header handler holds it was the first
        held, message.held = message.held, deque()
        for each in held:
            self._offer(each, now)

    # ---- from the messages to a cluster ----------------------------------------------------------

    def _schedule(self, now: int) -> None:
        """Packets that find room, a message after the other."""
        while self._ready:
            message, jobs = next(iter(self._ready.items()))
            cluster = self._cluster(message)
            if cluster is None:
                return
            del self._ready[message]
            job = jobs.popleft()
            if jobs:
                self._ready[message] = jobs  # behind the others
            self._move(cluster, job, now)

    def _cluster(self, message: int) -> _Cluster | None:
        """Who takes a packet; None: nobody has room."""
        home = self._clusters[message % len(self._clusters)]
        if self._scheduling.home and home.packets < self._scheduling.in_flight:
            return home
        least = min(self._clusters, key=lambda cluster: cluster.packets)
        return least if least.packets < self._scheduling.in_flight else None

    def _move(self, cluster: _Cluster, job: _Job, now: int) -> None:
        """Into the scratchpad, behind what the DMA engine moves already."""
        job.cluster, job.place = cluster, cluster.used % self._scheduling.buffer
        cluster.packets += 1
        cluster.used += self._beats(job) * self._machine.dma_bytes
        start = max(now, cluster.dma_free)
        cluster.dma_free = start + self._beats(job)
        self._block(cluster, job, start)
        self._at(cluster.dma_free, _What.MOVED, job)

    def _block(self, cluster: _Cluster, job: _Job, start: int) -> None:
        """A packet's bytes pass the banks, which nobody else has meanwhile."""
        width = self._machine.dma_bytes
        beats = [job.place + beat * width for beat in range(self._beats(job))]
        for cycle, banks in enumerate(self._banks(beats, width), start):
            cluster.taken[cycle] = cluster.taken.get(cycle, 0) | banks

    def _banks(self, addresses: Sequence[int], size: int) -> list[int]:
        """Of so many bytes at each address."""
        begins = np.array(addresses, np.uint64)
        found: list[int] = masks(begins, begins + np.uint64(size), self._machine).tolist()
        return found

    # ---- on a core -------------------------------------------------------------------------------

    def _dispatch(self, cluster: _Cluster, now: int) -> None:
        """Of the packets that wait and the cores that are free one more may have come."""
        if cluster.waiting and cluster.free:
            job = cluster.waiting.popleft()
            job.core = heappop(cluster.free)
            job.begin = now + self._machine.dispatch
            job.step, job.waits = 0, {"fetch": 0, "conflicts": 0}
            self._next(job)

    def _next(self, job: _Job) -> None:
        """When its handler asks again, or ends."""
        steps = self._handlers[job.stage].steps
        alone = steps[job.step].cycle if job.step < len(steps) else self._alone[job.stage]
        self._at(job.begin + sum(job.waits.values()) + alone, _What.STEP, job)

    def _step(self, cluster: _Cluster, job: _Job, now: int) -> None:
        steps = self._handlers[job.stage].steps
        if job.step == len(steps):
            self._end(cluster, job, now)
            return
        step = steps[job.step]
        if isinstance(step, Fetch):
            there = cluster.lines.setdefault(step.line, now + self._machine.timing.miss)
            job.waits["fetch"] += max(0, there - now)
        else:
            (banks,) = self._banks([step.address + job.place * step.packet], step.bytes)
            if cluster.taken.get(now, 0) & banks:
                job.waits["conflicts"] += 1
                self._at(now + 1, _What.STEP, job)
                return
            cluster.taken[now] = cluster.taken.get(now, 0) | banks
        job.step += 1
        self._next(job)

    def _end(self, cluster: _Cluster, job: _Job, now: int) -> None:
        """The core is free; the packet leaves, and the device is done with it."""
        m, alone = self._machine, self._handlers[job.stage].terms
        self._block(cluster, job, max(now, now + m.egress - self._beats(job)))
        heappush(cluster.free, job.core)
        self._at(now, _What.FREE, job)
        self._at(now + m.egress, _What.DONE, job)
        parse = 0 if job.services else m.parse  # once for a packet
        service = Service(
            packet=job.packet,
            handler=_HANDLERS[job.stage],
            since=job.since,
            cluster=cluster.number,
            core=job.core,
            begin=job.begin,
            end=now,
            terms={
                "parse": parse,
                "order": job.ready - parse - job.since,
                "queueing": job.begin - m.dispatch - self._beats(job) - job.ready,
                "DMA": self._beats(job),
                "dispatch": m.dispatch,
                **alone,
                **{name: n + alone.get(name, 0) for name, n in job.waits.items()},
                "egress": m.egress,
            },
        )
        job.services.append(service)
