"""Timelines: what links, devices and cores did when, in the trace event format, which
https://ui.perfetto.dev and chrome://tracing show.

Owns: the file format, and which track, slice and arrow a record of the C core becomes.  What a
record says is records.py's; who asks for a timeline, fabric's.

Every track belongs to the process of a node: its links to its parents, DMA engines and cores
of its NIC, and a device's slots, or the lanes of a worker, in which a chunk waits for its result.
A copy of a frame is a flow: from what made it, over the link, into what took its payload.  A
process of its own has the critical path of each collective.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from nicemu.files import WholeFile
from nicemu.network.records import STEPS, Place, Scene, Span, Step, What, sent_of

__all__ = ["Timeline"]

# The format: the document "Trace Event Format" of the Chromium project.

NANOSECOND = 1000  # picoseconds: as fine as viewers are
MICROSECOND = 1000  # nanoseconds: the unit of the file
CRITICAL = 1  # number of the process of critical paths: nodes have others


@dataclass(frozen=True)
class Track:
    """A row of the picture.

    Attributes:
        process, thread: numbers; no two of all are equal.
        rank: tracks of a process are in this order.
        name: of the row.
    """

    process: int
    thread: int
    rank: tuple[int, ...]
    name: str

    @property
    def where(self) -> dict[str, int]:
        """Of an event."""
        return {"pid": self.process, "tid": self.thread}


class Slice(NamedTuple):
    """Something on a track; times are nanoseconds."""

    track: Track
    begin: int
    end: int
    name: str
    about: dict[str, Any]

    def at(self, time: int) -> Point:
        """A point in it, as near to a time as can be; at its end it is over."""
        return Point(self.track, max(self.begin, min(time, self.end - 1)))


class Point(NamedTuple):
    """Where and when a flow passes."""

    track: Track
    time: int


class Timeline(WholeFile):
    """A timeline to be written."""

    def write(
        self,
        spans: np.ndarray,
        scene: Scene,
        paths: Mapping[str, Sequence[Step]],
    ) -> None:
        """Put the file in place.

        Args:
            spans: shape (n,), dtype SPAN: what was recorded.
            scene: whom that speaks of.
            paths: critical paths by the name of their track.

        Raises:
            FileFormatError: the file cannot be written.
        """
        picture = _Picture([Span._make(row) for row in spans.tolist()], scene, paths)
        with self.put() as part, part.open("w", encoding="ascii") as file:
            file.write('{"displayTimeUnit": "ns", "traceEvents": [')
            for i, event in enumerate(picture.events()):
                file.write(f"{',' if i else ''}\n{json.dumps(event)}")
            file.write("\n]}\n")


class _Picture:
    """Records as tracks, slices and flows."""

    def __init__(
        self, spans: list[Span], scene: Scene, paths: Mapping[str, Sequence[Step]]
    ) -> None:
        self._spans, self._scene, self._nodes = spans, scene, scene.nodes
        self._process = {node: i for i, node in enumerate(scene.nodes, CRITICAL + 1)}
        self._tracks: dict[tuple[int, tuple[int, ...]], Track] = {}  # by process and rank
        self._several = len({s.group for s in spans if s.kind == What.OPEN}) > 1
        self._slices: dict[int, Slice] = {}  # by the number of the record
        self._closed: dict[int, int] = {}  # CLOSE -> OPEN
        self._ends = self._turns()
        for number, span in enumerate(spans, 1):
            if one := self._slice(number, span):
                self._slices[number] = one
        self._critical = list(self._steps(paths))

    def events(self) -> Iterator[dict[str, Any]]:
        """Of a file: names, slices, then what refers to these, which must come after them."""
        lost = list(self._lost())
        yield from self._names()
        for track, begin, end, name, about in (*self._slices.values(), *self._critical):
            yield _event("X", track, begin, name, dur=_file_time(end - begin), args=about)
        yield from lost
        for number, points in self._flows():
            for i, (track, time) in enumerate(points):
                last = i == len(points) - 1
                bound = {"bp": "e"} if last else {}
                yield _event(
                    "f" if last else "t" if i else "s", track, time, "packet", id=number, **bound
                )

    # ---- tracks ----------------------------------------------------------------------------------

    def _track(self, place: Place, process: int | None = None) -> Track:
        process = self._process[place.node] if process is None else process
        key = (process, place.rank)
        if key not in self._tracks:
            thread = CRITICAL + len(self._process) + len(self._tracks) + 1
            self._tracks[key] = Track(process, thread, place.rank, place.name)
        return self._tracks[key]

    def _lane(self, span: Span) -> Track:
        name = f"{self._nodes[span.where].lanes} {span.lane}"
        name += f" of plane {span.plane}" if span.plane else ""
        name += f" of group {span.group}" if self._several else ""
        return self._track(Place(span.where, (3, span.group, span.plane, span.lane), name))

    def _names(self) -> Iterator[dict[str, Any]]:
        names = {CRITICAL: "critical paths"} if self._critical else {}
        names |= {process: self._nodes[node].name for node, process in self._process.items()}
        for process, name in names.items():
            where = {"pid": process}
            yield _name("process_name", where, name=name)
            yield _name("process_sort_index", where, sort_index=process)
        for i, track in enumerate(sorted(self._tracks.values(), key=lambda t: (t.process, t.rank))):
            yield _name("thread_name", track.where, name=track.name)
            yield _name("thread_sort_index", track.where, sort_index=i)

    # ---- slices ----------------------------------------------------------------------------------

    def _turns(self) -> dict[int, tuple[int, bool]]:
        """OPEN -> picoseconds of its end, and whether it has a result.

        A turn without one ends when another begins in its lane, or all is over.
        """
        ends: dict[int, tuple[int, bool]] = {}
        open_turns: dict[tuple[int, ...], int] = {}
        for number, span in enumerate(self._spans, 1):
            lane = (span.where, span.plane, span.group, span.lane)
            before = open_turns.get(lane)
            if span.kind == What.OPEN:
                if before is not None:
                    ends[before] = span.begin, False
                open_turns[lane] = number
            elif span.kind == What.CLOSE and before and self._spans[before - 1].round == span.round:
                ends[open_turns.pop(lane)] = span.end, True
                self._closed[number] = before
        last = max((span.end for span in self._spans), default=0)
        return ends | dict.fromkeys(open_turns.values(), (last, False))

    def _slice(self, number: int, span: Span) -> Slice | None:
        end = span.end
        if span.kind in STEPS:
            sent = sent_of(span, lambda number: self._spans[number - 1])
            place, name = self._scene.step(span, sent)
            track, about = self._track(place), _about(span, name, sent)
        elif span.kind == What.OPEN:
            track, name = self._lane(span), f"chunk {span.chunk}"
            end, result = self._ends[number]
            about = {"seq": span.seq, "chunk": span.chunk, "round": span.round, "result": result}
        else:
            return None
        return Slice(track, _viewed(span.begin), _viewed(end), name, about)

    def _steps(self, paths: Mapping[str, Sequence[Step]]) -> Iterator[Slice]:
        """What is on critical paths, once more on a track of each."""
        for i, (name, steps) in enumerate(paths.items()):
            track = self._track(Place(0, (i,), name), CRITICAL)
            for step in steps:
                own = self._slices[step.record]
                yield own._replace(track=track, name=f"{step.where}: {step.what}")

    def _lost(self) -> Iterator[dict[str, Any]]:
        for span in self._spans:
            if span.kind == What.SENT and not span.copies:
                track, time = self._track(self._scene.link(span.where)), _viewed(span.begin)
                about = _about_frame(span)
                yield _event("i", track, time, f"lost: {span.name}", s="t", args=about)

    # ---- flows -----------------------------------------------------------------------------------

    def _flows(self) -> Iterator[tuple[int, list[Point]]]:
        """Of each copy of a frame: the number of its LINK, and where it passes."""
        after: dict[int, list[Point]] = {}  # LINK -> what has become of it
        for number, span in enumerate(self._spans, 1):
            where = {What.DMA: number, What.TAKEN: span.by, What.CLOSE: self._closed.get(number, 0)}
            into = self._slices.get(where.get(What(span.kind), 0))
            if span.source and into:
                after.setdefault(span.source, []).append(into.at(_viewed(span.begin)))
        for number, span in enumerate(self._spans, 1):
            if span.kind == What.LINK:
                sent, over = self._spans[span.source - 1], self._slices[number]
                made_by = self._slices.get(sent.source)
                points = [made_by.at(_viewed(sent.begin))] if made_by else []
                points += [over.at(over.begin), *after.get(number, ())]
                if len(points) > 1:
                    yield number, points


def _about(span: Span, name: str, sent: Span | None) -> dict[str, Any]:
    """What is said of a slice of a step of that name."""
    if span.kind == What.CORE:
        about = span.about("instructions", "payloads")
        about |= {"entry": name, "cycles": span.cycles, "conflicts": span.conflicts}
        return about | ({"child": span.child} if span.payloads else {})
    if span.kind == What.DMA:
        return {**(sent.about("child") if sent else {}), "bytes": span.bytes}
    assert sent is not None  # a frame on a link was sent
    return _about_frame(sent)


def _about_frame(sent: Span) -> dict[str, Any]:
    return {**sent.about("group", "lane", "child"), "bytes": sent.bytes}


def _viewed(picoseconds: int) -> int:
    """Nanoseconds: viewers know nothing finer, and take what is rounded apart for an overlap."""
    return (picoseconds + NANOSECOND // 2) // NANOSECOND


def _file_time(nanoseconds: int) -> float:
    """Microseconds of which a viewer that multiplies, and cuts off, makes the same nanoseconds."""
    time = nanoseconds / MICROSECOND
    return time if time * MICROSECOND >= nanoseconds else math.nextafter(time, math.inf)


def _event(kind: str, track: Track, time: int, name: str, **more: Any) -> dict[str, Any]:
    category = "packet" if name == "packet" else "nicemu"
    return {
        "ph": kind, **track.where, "ts": _file_time(time), "cat": category, "name": name, **more,
    }  # fmt: skip


def _name(what: str, where: dict[str, int], **value: Any) -> dict[str, Any]:
    return {"ph": "M", **where, "name": what, "args": value}
