"""What the C core puts down of links, devices and cores in virtual time, and what that says.

Owns: a record's fields (nicemu_span in csrc/nicemu.h has their meaning), the names of what does
something and of what is done, the critical path of a collective.  Who records what is csrc's; the
picture of all records is timeline's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np

from nicemu._nicemu import lib
from nicemu.device.machine import SECOND
from nicemu.network.packet import Kind

__all__ = ["SPAN", "STEPS", "Node", "Place", "Scene", "Span", "Step", "What", "critical_path"]

#: a record: see nicemu_span
SPAN = np.dtype(
    [
        (name, np.uint64)
        for name in (
            "begin", "end", "source", "by", "via", "pc", "cycles", "conflicts", "instructions",
        )
    ]
    + [
        (name, np.uint32)
        for name in (
            "kind", "where", "core", "plane", "group", "lane", "round", "seq", "chunk", "child",
            "bytes", "payloads", "frame", "copies",
        )
    ]
)  # fmt: skip


class What(IntEnum):
    """Kinds of records."""

    SENT = lib.NICEMU_SPAN_SENT
    LINK = lib.NICEMU_SPAN_LINK
    DMA = lib.NICEMU_SPAN_DMA
    CORE = lib.NICEMU_SPAN_CORE
    TAKEN = lib.NICEMU_SPAN_TAKEN
    OPEN = lib.NICEMU_SPAN_OPEN
    CLOSE = lib.NICEMU_SPAN_CLOSE


#: those that take time
STEPS = (What.LINK, What.DMA, What.CORE)


class Span(NamedTuple):
    """A row of an array of SPAN; ``source`` is the field ``from``."""

    begin: int
    end: int
    source: int
    by: int
    via: int
    pc: int
    cycles: int
    conflicts: int
    instructions: int
    kind: int
    where: int
    core: int
    plane: int
    group: int
    lane: int
    round: int
    seq: int
    chunk: int
    child: int
    bytes: int
    payloads: int
    frame: int
    copies: int

    @property
    def relayed(self) -> bool:
        """Of a SENT or a CORE: is it of a collective by hosts?"""
        return not (self.frame or self.pc)

    @property
    def name(self) -> str:
        """Of a SENT: what is in it, and its chunk."""
        kind, flags = self.frame & 0xFF, self.frame >> 8
        if self.relayed:
            return f"message {self.lane}, frame {self.chunk}"
        if kind == Kind.DOWN:
            what = "result"
        elif flags & lib.NICEMU_PARTIAL:
            what = "partial sum"
        else:
            what = "arrival" if flags & lib.NICEMU_EMPTY else "elements"
        return f"{what} {self.chunk}"

    def about(self, *more: str) -> dict[str, Any]:
        """What is said of a slice of it, and more where there is more."""
        if self.relayed:
            return {"seq": self.seq, "message": self.lane, "frame": self.chunk}
        return {name: getattr(self, name) for name in ("seq", "chunk", "round", *more)}


class Node(NamedTuple):
    """Whose process a track belongs to.

    Attributes:
        name: of the node.
        lanes: what its lanes are called.
    """

    name: str
    lanes: str


class Place(NamedTuple):
    """What does something.

    Attributes:
        node: whose it is.
        rank: those of a node are in this order.
        name: of it.
    """

    node: int
    rank: tuple[int, ...]
    name: str


class Scene(NamedTuple):
    """Whom the records speak of.

    Attributes:
        nodes: by number, in the order in which they are shown.
        links: child and parent of each.
        entries: their names by address.
        engines: has a NIC more than one DMA engine?
    """

    nodes: Mapping[int, Node]
    links: Sequence[tuple[int, int]]
    entries: Mapping[int, str]
    engines: bool

    def link(self, direction: int) -> Place:
        """Of twice a link's number, and 1 more where it goes down."""
        child, parent = self.links[direction // 2]
        way = "down from" if direction % 2 else "up to"
        return Place(child, (0, direction), f"link {way} {self.nodes[parent].name}")

    def step(self, span: Span, sent: Span | None) -> tuple[Place, str]:
        """Where a LINK, DMA or CORE was, and what was done.

        Args:
            span: the record.
            sent: see :func:`sent_of`.
        """
        if span.kind == What.CORE:
            place = Place(span.where, (2, span.core), f"core {span.core}")
            return place, "merge" if span.relayed else self.entries[span.pc]
        if span.kind == What.LINK:
            place = self.link(span.where)
        else:
            engine = f"DMA {span.core}" if self.engines else "DMA"
            place = Place(span.where, (1, span.core), engine)
        return place, sent.name if sent else "a frame"


def sent_of(span: Span, record: Callable[[int], Span]) -> Span | None:
    """The SENT of the frame of a LINK or DMA; None where it came over no link, or of others.

    Args:
        span: a record.
        record: that of a number.
    """
    if span.kind == What.DMA and span.source:
        span = record(span.source)
    return record(span.source) if span.kind == What.LINK else None


class Step(NamedTuple):
    """Something on a critical path.

    Attributes:
        where: node, and what of it: "nic0, core 3".
        what: that was done: "elements 5" on a link or by a DMA engine, else the entry's name.
        begin, end: virtual seconds.
        record: number of its record, from 1 on.
    """

    where: str
    what: str
    begin: float
    end: float
    record: int


def critical_path(spans: np.ndarray, last: int, scene: Scene) -> tuple[Step, ...]:
    """The steps of the longest way to a collective's end, first things first.

    Args:
        spans: shape (n,), dtype SPAN.
        last: number of the record of the last step; 0: there is none.
        scene: whom the records speak of.
    """

    def record(number: int) -> Span:
        return Span._make(spans[number - 1].tolist())

    steps = []
    while last:
        span = record(last)
        place, what = scene.step(span, sent_of(span, record))
        where = f"{scene.nodes[place.node].name}, {place.name}"
        steps.append(Step(where, what, span.begin / SECOND, span.end / SECOND, last))
        last = span.via
    return tuple(reversed(steps))
