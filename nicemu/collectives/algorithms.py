"""Collectives by the hosts: ring and halving-doubling, with one Nic per rank.

Owns: which rank merges what with what, and in which order; the messages that spread a result.
Every addition is a handler call on the cores of the Nic of the rank that makes it: what arrives
from another is a partial sum, what a rank has of its own are elements.  Where only times are asked
for nothing is added, and one Nic tells how long each kind of merge takes.  Who needs the result is
collective's question, how long messages take the fabric's.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace
from threading import Lock
from typing import TypeAlias

import numpy as np

from nicemu.device.image import Context, KernelImage
from nicemu.device.machine import Machine
from nicemu.device.nic import Nic, ReduceResult, Stream
from nicemu.network.relay import Merging, Message, Relay
from nicemu.order import Order, Path, leaves

__all__ = [
    "ALGORITHMS",
    "Algorithm",
    "Counted",
    "Hosts",
    "Piece",
    "Pieces",
    "Reduction",
    "around",
    "doubling",
    "halving_doubling",
    "nothing_merged",
    "ring",
]


@dataclass(frozen=True)
class Piece:
    """A stretch of the array, reduced over some of the ranks, and where it is.

    Attributes:
        rank: that holds it.
        start: index of its first element in the array.
        values: shape (stop - start,): a worker's elements, partial sums, or the result.
        order: who is in it and who merged whom; a plain rank while it is a worker's elements.
        names: path of each device in ``order`` -> its name: ``rank3/2`` is what rank 3 made at
            level 2 of the order, counted from the elements up.
        made: the message of the relay whose frames were merged into it; None: a worker's elements,
            or nobody keeps time.
    """

    rank: int
    start: int
    values: np.ndarray
    order: Order
    names: dict[Path, str]
    made: int | None = None

    @property
    def stop(self) -> int:
        """Index behind its last element."""
        return self.start + int(self.values.size)

    def part(self, start: int, stop: int) -> Piece:
        """Its elements from ``start`` to before ``stop``, as indices in the array."""
        values = self.values[start - self.start : stop - self.start]
        return replace(self, start=start, values=values)

    @property
    def level(self) -> int:
        """Devices on the longest way from an element to here."""
        return 1 + max(map(len, self.names), default=-1)

    @property
    def partial(self) -> bool:
        """Is it of partial sums?"""
        return isinstance(self.order, tuple)

    def stream(self) -> Stream:
        """What a device merges of it."""
        ranks = leaves(self.order)
        return Stream(self.values, ranks[0], len(ranks), partial=self.partial)


#: yields partial sums as they are made; returns the finished pieces, which cover the array in order
Pieces: TypeAlias = Generator[Piece, None, list[Piece]]
#: merge(rank, pieces, last): the pieces, all of one stretch, from left to right, by the cores of a
#: rank; `last` = these are all ranks, so finish
Merge: TypeAlias = Callable[[int, Sequence[Piece], bool], Piece]
#: give(source, to, start, stop, before): a message that stores elements at a rank, and its number;
#: before: the messages that brought them to the source
Give: TypeAlias = Callable[[int, int, int, int, Sequence[int | None]], int]


@dataclass(frozen=True)
class Algorithm:
    """How hosts reduce, and how what they have gets to all who take it.

    Attributes:
        reduce: reduces inputs, one per rank.
        spread: gives pieces to ranks; takes: what each rank wants of the whole array.
    """

    reduce: Callable[[Sequence[np.ndarray], Merge], Pieces]
    spread: Callable[[Sequence[Piece], Sequence[range], Give], None]


@dataclass(frozen=True)
class Reduction:
    """What all merges of a collective have in common.

    Attributes:
        image: the op.
        context: of handlers, for the array's first element.
        payload: bytes of a full frame's payload.
        relay: where a message is added for each, with counted cycles; None: nobody keeps time.
    """

    image: KernelImage
    context: Context
    payload: int
    relay: Relay | None


class _Loaded:
    """A Nic, and the image that it has."""

    def __init__(self, nic: Nic) -> None:
        self._nic = nic
        self._image: KernelImage | None = None

    def having(self, image: KernelImage) -> Nic:
        """The Nic; the image is loaded where it has another."""
        if self._image is not image:
            self._nic.load(image)
            self._image = image
        return self._nic


class _Asked:
    """What the handlers that merge a frame ask of the banks, by the kind of merge: recorded once.

    Threads may not share it.
    """

    def __init__(self, machine: str | Machine) -> None:
        """Remember whose cores."""
        self._machine = machine
        self._nic: _Loaded | None = None  # made when it is first needed
        self._known: dict[tuple[object, ...], tuple[np.ndarray, np.ndarray]] = {}

    def frames(
        self, of: Reduction, streams: Sequence[Stream], chunk: int, last: bool
    ) -> tuple[np.ndarray, np.ndarray]:
        """Beats of a full frame, and of the last one, dtype BEAT; of merges alike, the same object.

        Args:
            of: the reduction.
            streams: what is merged; not empty.
            chunk: elements of a full frame.
            last: whether these are all ranks.
        """
        count = int(streams[0].values.size)
        sizes = min(count, chunk), count - (count - 1) // chunk * chunk
        kind = (of.image, tuple(stream.partial for stream in streams), of.payload, last)
        if (found := self._known.get((kind, sizes))) is None:
            full, end = (self._recorded(of, streams, size, last) for size in sizes)
            found = self._known[kind, sizes] = full, end
        return found

    def _recorded(
        self, of: Reduction, streams: Sequence[Stream], count: int, last: bool
    ) -> np.ndarray:
        if self._nic is None:
            self._nic = _Loaded(Nic(self._machine, threads=1, cycles=True))
        return self._nic.having(of.image).asked(
            [replace(stream, values=stream.values[:count]) for stream in streams],
            payload=of.payload,
            leave="finish" if last else "emit",
            context=of.context,
        )


class Hosts:
    """The Nics of the ranks; each is made when it first adds.

    Threads may share them; their merges follow one another.
    """

    def __init__(
        self, machine: str | Machine = "card", *, simd: str = "auto", cycles: bool = False
    ) -> None:
        """Remember what the Nics are to be; cycles: they count them."""
        self._machine = machine
        self._simd = simd
        self._cycles = cycles
        self._nics: dict[int, _Loaded] = {}
        self._asked = _Asked(machine)
        self._lock = Lock()  # a Nic keeps its image from load to reduce

    def merge(self, of: Reduction, rank: int, pieces: Sequence[Piece], last: bool) -> Piece:
        """A :data:`Merge` of a reduction."""
        start, streams = pieces[0].start, [piece.stream() for piece in pieces]
        with self._lock:
            if rank not in self._nics:
                self._nics[rank] = _Loaded(self._nic())
            done = (
                self._nics[rank]
                .having(of.image)
                .reduce(
                    streams,
                    payload=of.payload,
                    leave="finish" if last else "emit",
                    context=replace(of.context, device=rank, element=of.context.element + start),
                )
            )
            made = _made(of, rank, pieces, done, last, self._asked)
        names = {(i, *path): name for i, p in enumerate(pieces) for path, name in p.names.items()}
        names[()] = f"rank{rank}/{1 + max(piece.level for piece in pieces)}"
        return Piece(rank, start, done.values, tuple(p.order for p in pieces), names, made)

    def _nic(self) -> Nic:
        return Nic(self._machine, threads=1, simd=self._simd, cycles=self._cycles)


class Counted:
    """In place of :class:`Hosts`: merges that compute nothing, and take the cycles of the first one
    of their kind.  Their pieces have no values, and no names of who merged.
    """

    def __init__(self, machine: str | Machine = "card") -> None:
        """Make the Nic that counts."""
        self._nic = _Loaded(Nic(machine, threads=1, cycles=True))
        self._known: dict[tuple[object, ...], ReduceResult] = {}
        self._asked = _Asked(machine)
        self._lock = Lock()

    def merge(self, of: Reduction, rank: int, pieces: Sequence[Piece], last: bool) -> Piece:
        """As :meth:`Hosts.merge`."""
        partials = tuple(piece.partial for piece in pieces)
        key = (of.image, partials, of.payload, last, pieces[0].values.size)
        with self._lock:
            done = self._known.get(key)
            if done is None:
                done = self._known[key] = self._nic.having(of.image).reduce(
                    [Stream(np.zeros_like(p.values), partial=p.partial) for p in pieces],
                    payload=of.payload,
                    leave="finish" if last else "emit",
                    context=of.context,
                )
            made = _made(of, rank, pieces, done, last, self._asked)
        order = tuple(piece.order for piece in pieces)
        values = np.broadcast_to(np.zeros((), done.values.dtype), done.values.shape)
        return Piece(rank, pieces[0].start, values, order, {}, made)


def nothing_merged(relay: Relay) -> Merge:
    """A :data:`Merge` of nothing, which takes place when what it waits for is there."""

    def merge(rank: int, pieces: Sequence[Piece], last: bool) -> Piece:
        made = None
        if pieces[0].values.size:
            made = _added(relay, rank, pieces, [0] * len(pieces), 1, None)
        return replace(pieces[0], rank=rank, names={(): f"rank{rank}"}, made=made)

    return merge


def _made(
    of: Reduction,
    rank: int,
    pieces: Sequence[Piece],
    done: ReduceResult,
    last: bool,
    asked: _Asked,
) -> int | None:
    """The message of a merge that a Nic has done; None where there is nothing, or no time."""
    if of.relay is None or not done.values.size:
        return None
    assert done.packet_cycles is not None  # whoever keeps time counts them
    formats = of.image.formats
    sizes = [(formats.partial if piece.partial else formats.element).size for piece in pieces]
    streams = [Stream(piece.values, partial=piece.partial) for piece in pieces]
    merging = Merging(
        taken=sum(sizes),
        given=(formats.result if last else formats.partial).size,
        cycles=done.packet_cycles,
        asked=asked.frames(of, streams, done.chunk, last),
    )
    return _added(of.relay, rank, pieces, sizes, done.chunk, merging)


def _added(
    relay: Relay,
    rank: int,
    pieces: Sequence[Piece],
    sizes: Sequence[int],
    chunk: int,
    merging: Merging | None,
) -> int:
    """The message of a merge: of the pieces, at most one comes from elsewhere.

    Args:
        relay: where it is added.
        rank: that merges.
        pieces: what is merged.
        sizes: bytes of an element of each.
        chunk: elements of a full frame.
        merging: by handlers; None: there are none.
    """
    comes = next((i for i, piece in enumerate(pieces) if piece.rank != rank), 0)
    piece = pieces[comes]
    message = Message(
        source=piece.rank,
        to=rank,
        elements=range(piece.start, piece.stop),
        chunk=chunk,
        size=sizes[comes],
        merging=merging,
    )
    others = [other.made for i, other in enumerate(pieces) if i != comes]
    return relay.add(message, [piece.made], others)


def ring(inputs: Sequence[np.ndarray], merge: Merge) -> Pieces:
    """Block b begins at rank b + 1, goes once around and ends at rank b.

    The order of block b of n is ``(((b+1, b+2), b+3), ... b)``, modulo n: it differs from block to
    block.  Blocks are of equal size when n divides the count, or else differ by one; empty ones are
    left out.
    """
    n, count = len(inputs), int(inputs[0].size)
    bounds = [count * b // n for b in range(n + 1)]
    blocks = [b for b in range(n) if bounds[b] < bounds[b + 1]] or [0]

    def own(rank: int, block: int) -> Piece:
        start, stop = bounds[block], bounds[block + 1]
        return Piece(rank, start, inputs[rank][start:stop], rank, {})

    if n == 1:
        return [merge(0, [own(0, 0)], True)]
    running = {block: own((block + 1) % n, block) for block in blocks}
    for step in range(2, n + 1):
        for block in blocks:
            rank = (block + step) % n
            running[block] = merge(rank, [running[block], own(rank, block)], step == n)
            if step < n:
                yield running[block]
    return list(running.values())


def halving_doubling(inputs: Sequence[np.ndarray], merge: Merge) -> Pieces:
    """Pairs at distance 1, 2, 4, ... exchange halves, each time of half as much.

    Where the number of ranks is no power of two, the first ranks are folded in pairs beforehand,
    the odd one into the even one.  The order is a balanced tree, lower ranks to the left, the same
    for all blocks: ``((0, 1), (2, 3))``.
    """
    n = len(inputs)
    size = 1 << (n.bit_length() - 1)
    folded = n - size  # pairs
    whole = [Piece(rank, 0, values, rank, {}) for rank, values in enumerate(inputs)]
    if n == 1:
        return [merge(0, whole, True)]
    held = []
    for even in range(0, 2 * folded, 2):
        held.append(merge(even, whole[even : even + 2], False))
        yield held[-1]
    held += whole[2 * folded :]
    distance = 1
    while distance < size:
        before, last = held, 2 * distance == size
        held = []
        for i, mine in enumerate(before):
            low, high = before[i & ~distance], before[i | distance]
            middle = (mine.start + mine.stop) // 2
            half = (middle, mine.stop) if i & distance else (mine.start, middle)
            held.append(merge(mine.rank, [low.part(*half), high.part(*half)], last))
            if not last:
                yield held[-1]
        distance *= 2
    return sorted(held, key=lambda piece: piece.start)


# ---- spreading -----------------------------------------------------------------------------------


def _common(piece: Piece, takes: range) -> range:
    """Which of its elements are wanted."""
    return range(max(piece.start, takes.start), min(piece.stop, takes.stop))


def _straight(pieces: Sequence[Piece], takes: Sequence[range], give: Give) -> None:
    """Each piece to each rank that takes some of it."""
    for piece in pieces:
        for rank, wanted in enumerate(takes):
            if rank != piece.rank and (elements := _common(piece, wanted)):
                give(piece.rank, rank, elements.start, elements.stop, [piece.made])


def _everywhere(pieces: Sequence[Piece], takes: Sequence[range]) -> bool:
    """Does every rank take all pieces?"""
    return all(len(_common(p, t)) == p.stop - p.start for p in pieces for t in takes)


def around(pieces: Sequence[Piece], takes: Sequence[range], give: Give) -> None:
    """What all take goes once around, from rank to rank; else straight to who takes it."""
    if not _everywhere(pieces, takes):
        return _straight(pieces, takes, give)
    for piece in pieces:
        at, made = piece.rank, piece.made
        for _ in range(len(takes) - 1 if piece.values.size else 0):
            to = (at + 1) % len(takes)
            at, made = to, give(at, to, piece.start, piece.stop, [made])
    return None


@dataclass(frozen=True)
class _Held:
    """A stretch that a rank has, and the message that brought or made it."""

    start: int
    stop: int
    made: int | None


def doubling(pieces: Sequence[Piece], takes: Sequence[range], give: Give) -> None:
    """What all take is exchanged by pairs, each time twice as much; else it goes straight.

    Pairs are as in :func:`halving_doubling`; those at the distance at which the first two pieces
    lie go first, so that what a rank has is one stretch.
    """
    n = len(takes)
    if not _everywhere(pieces, takes):
        return _straight(pieces, takes, give)
    held: list[list[_Held]] = [[] for _ in takes]
    for piece in pieces:
        if piece.values.size:
            held[piece.rank].append(_Held(piece.start, piece.stop, piece.made))
    size = 1 << (n.bit_length() - 1)
    folded = n - size
    pairs = [(even, even + 1) for even in range(0, 2 * folded, 2)]
    core = [even for even, _ in pairs] + list(range(2 * folded, n))
    _exchange(held, [(odd, even) for even, odd in pairs], give)
    first = [core.index(piece.rank) for piece in pieces[:2] if piece.rank in core]
    distances = [1 << i for i in range(size.bit_length() - 1)]
    if len(first) == 2 and first[0] ^ first[1] != 1:
        distances.reverse()
    for distance in distances:
        _exchange(held, [(rank, core[i ^ distance]) for i, rank in enumerate(core)], give)
    return _exchange(held, pairs, give)


def _exchange(held: list[list[_Held]], ways: Sequence[tuple[int, int]], give: Give) -> None:
    """At the same time, all that sources have and the others lack; neighbours in one message."""
    sent: list[tuple[int, _Held]] = []
    for source, to in ways:
        has = {stretch.start for stretch in held[to]}
        runs: list[list[_Held]] = []
        for stretch in held[source]:
            if stretch.start in has:
                continue
            if runs and runs[-1][-1].stop == stretch.start:
                runs[-1].append(stretch)
            else:
                runs.append([stretch])
        for run in runs:
            start, stop = run[0].start, run[-1].stop
            made = give(source, to, start, stop, [stretch.made for stretch in run])
            sent += [(to, replace(stretch, made=made)) for stretch in run]
    for to, stretch in sent:
        held[to].append(stretch)
        held[to].sort(key=lambda stretch: stretch.start)


ALGORITHMS: dict[str, Algorithm] = {
    "ring": Algorithm(ring, around),
    "halving-doubling": Algorithm(halving_doubling, doubling),
}
