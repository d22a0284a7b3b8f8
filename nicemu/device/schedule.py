"""Packets of messages through a device whose handlers run where a core is free, in cycles.

Owns: which cluster and core takes a packet (:class:`Scheduling`, as data), and the waits that
follow from that: for room in a cluster, its DMA engine, a core, a line of the instruction cache, a
bank.  What a handler takes when it is alone is recorded on an emulated core; what stations take is
the machine's.  Slots, and the cores they belong to, are the fabric's.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from heapq import heappop, heappush
from itertools import count
from typing import NamedTuple

import numpy as np

from nicemu.arguments import whole
from nicemu.device.banks import masks
from nicemu.device.machine import Machine

__all__ = ["SCHEDULINGS", "Access", "Fetch", "Handler", "Packet", "Scheduling", "Service", "serve"]


@dataclass(frozen=True)
class Scheduling:
    """Who takes a packet.

    Messages with packets that are ready take turns.  In a cluster, packets are given to cores in
    the order in which their DMA ends, each to the free core of the lowest number.

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
        # Its public RTL: scheduler.sv, cluster_scheduler.sv; pspin_cfg_pkg.sv has 12 packets that
        # wait beside one on each of 8 cores, and 64 KiB.
        Scheduling("pspin", home=True, in_flight=20, buffer=64 * 1024),
    )
}


class Fetch(NamedTuple):
    """A handler that is alone asks for a line of instructions in that cycle of its own."""

    cycle: int
    line: int


class Access(NamedTuple):
    """... or for bytes of the scratchpad; ``packet``: the address counts from the packet's."""

    cycle: int
    address: int
    bytes: int
    packet: bool


@dataclass(frozen=True)
class Handler:
    """What a handler does for one packet, alone and with its code in the cache.

    Attributes:
        terms: its cycles by what they are spent on.
        steps: what it asks for, by ascending cycle.
    """

    terms: dict[str, int]
    steps: tuple[Fetch | Access, ...] = ()


class Packet(NamedTuple):
    """Its last bit is there in that cycle."""

    arrival: int
    message: int
    bytes: int


@dataclass(frozen=True)
class Service:
    """What has become of a packet.

    Attributes:
        packet: which.
        cluster, core: who took it; the core's number in its cluster.
        begin, end: cycles of its handler.
        terms: what its time is spent on, from its arrival until the device says that it is done
            with it; they add up to that.
    """

    packet: Packet
    cluster: int
    core: int
    begin: int
    end: int
    terms: dict[str, int]

    @property
    def latency(self) -> int:
        """Cycles from its arrival until the device is done with it."""
        return sum(self.terms.values())

    @property
    def done(self) -> int:
        """The cycle in which it is."""
        return self.packet.arrival + self.latency


def serve(
    packets: Iterable[Packet], handler: Handler, machine: Machine, scheduling: Scheduling
) -> list[Service]:
    """Let packets arrive at a device and run a handler for each.

    Returns:
        What has become of each, in their order.

    Raises:
        ArgumentError: a packet is larger than a cluster's buffer, or a number is below 0.
    """
    return _Device(handler, machine, scheduling).run(packets)


class _What(IntEnum):
    """Events; those of one cycle are in this order."""

    DONE = 0  # the device is done with a packet
    READY = 1  # a packet may be scheduled
    STEP = 2  # its handler asks for something, or ends
    FREE = 3  # its core is
    MOVED = 4  # its DMA has ended


@dataclass
class _Job:
    """A packet on its way."""

    packet: Packet
    cluster: _Cluster | None = None
    core: int = 0
    place: int = 0  # in the cluster's buffer
    begin: int = 0
    step: int = 0  # of the handler, the next
    waits: dict[str, int] = field(default_factory=lambda: {"fetch": 0, "conflicts": 0})


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

    def __init__(self, handler: Handler, machine: Machine, scheduling: Scheduling) -> None:
        self._handler, self._machine, self._scheduling = handler, machine, scheduling
        self._alone = sum(handler.terms.values())
        cores = list(range(machine.cores // machine.clusters))
        self._clusters = [_Cluster(i, list(cores)) for i in range(machine.clusters)]
        self._ready: dict[int, deque[_Job]] = {}  # message: its packets; whose turn it is, first
        self._events: list[tuple[int, _What, int, _Job]] = []
        self._numbers = count()
        self._served: dict[int, Service] = {}  # by the job's id

    def run(self, packets: Iterable[Packet]) -> list[Service]:
        jobs = [_Job(packet) for packet in packets]
        for job in jobs:
            for name, most in (("arrival", 1 << 62), ("message", 1 << 62)):
                whole(name, getattr(job.packet, name), 0, most)
            whole("bytes", job.packet.bytes, 0, self._scheduling.buffer)
            self._at(job.packet.arrival + self._machine.parse, _What.READY, job)
        while self._events:
            now, what, _, job = heappop(self._events)
            if what is _What.READY:
                self._ready.setdefault(job.packet.message, deque()).append(job)
                self._schedule(now)
                continue
            cluster = job.cluster
            assert cluster is not None  # from its scheduling on
            if what is _What.DONE:
                cluster.packets -= 1
                self._schedule(now)
            elif what is _What.STEP:
                self._step(cluster, job, now)
            else:
                if what is _What.MOVED:
                    cluster.waiting.append(job)
                else:
                    heappush(cluster.free, job.core)
                self._dispatch(cluster, now)
        return [self._served[id(job)] for job in jobs]

    def _at(self, cycle: int, what: _What, job: _Job) -> None:
        heappush(self._events, (cycle, what, next(self._numbers), job))

    def _beats(self, job: _Job) -> int:
        return -(-job.packet.bytes // self._machine.dma_bytes)

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
        m, begin = self._machine, np.array(addresses, np.uint64)
        found: list[int] = masks(begin, begin + np.uint64(size), m.banks, m.bank_bytes).tolist()
        return found

    # ---- on a core -------------------------------------------------------------------------------

    def _dispatch(self, cluster: _Cluster, now: int) -> None:
        while cluster.waiting and cluster.free:
            job = cluster.waiting.popleft()
            job.core = heappop(cluster.free)
            job.begin = now + self._machine.dispatch
            self._next(job)

    def _next(self, job: _Job) -> None:
        """When its handler asks again, or ends."""
        steps = self._handler.steps
        alone = steps[job.step].cycle if job.step < len(steps) else self._alone
        self._at(job.begin + sum(job.waits.values()) + alone, _What.STEP, job)

    def _step(self, cluster: _Cluster, job: _Job, now: int) -> None:
        if job.step == len(self._handler.steps):
            self._end(cluster, job, now)
            return
        step = self._handler.steps[job.step]
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
        m = self._machine
        self._block(cluster, job, max(now, now + m.egress - self._beats(job)))
        self._at(now, _What.FREE, job)
        self._at(now + m.egress, _What.DONE, job)
        waited = job.begin - m.dispatch - self._beats(job) - m.parse - job.packet.arrival
        self._served[id(job)] = Service(
            packet=job.packet,
            cluster=cluster.number,
            core=job.core,
            begin=job.begin,
            end=now,
            terms={
                "parse": m.parse,
                "queueing": waited,
                "DMA": self._beats(job),
                "dispatch": m.dispatch,
                **self._handler.terms,
                **{name: n + self._handler.terms.get(name, 0) for name, n in job.waits.items()},
                "egress": m.egress,
            },
        )
