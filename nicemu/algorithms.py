"""Reductions by the hosts: ring and halving-doubling, with one Nic per rank.

Owns: which rank merges what with what, and in which order.  Every addition is a handler call on the
cores of the Nic of the rank that makes it: what arrives from another is a partial sum, what a rank
has of its own are elements.  Who needs the result is collective's question.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace
from threading import Lock
from typing import TypeAlias

import numpy as np

from nicemu.image import Context, KernelImage
from nicemu.machine import Machine
from nicemu.nic import Nic, Stream
from nicemu.order import Order, Path, leaves

__all__ = ["ALGORITHMS", "Algorithm", "Hosts", "Piece", "Pieces", "halving_doubling", "ring"]


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
    """

    rank: int
    start: int
    values: np.ndarray
    order: Order
    names: dict[Path, str]

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

    def stream(self) -> Stream:
        """What a device merges of it."""
        ranks = leaves(self.order)
        return Stream(self.values, ranks[0], len(ranks), partial=isinstance(self.order, tuple))


#: yields partial sums as they are made; returns the finished pieces, which cover the array in order
Pieces: TypeAlias = Generator[Piece, None, list[Piece]]
#: merge(rank, pieces, last): the pieces, all of one stretch, from left to right, by the cores of a
#: rank; `last` = these are all ranks, so finish
Merge: TypeAlias = Callable[[int, Sequence[Piece], bool], Piece]
Algorithm: TypeAlias = Callable[[Sequence[np.ndarray], Merge], Pieces]


class Hosts:
    """The Nics of the ranks; each is made when it first adds.

    Threads may share them; their merges follow one another.
    """

    def __init__(self, machine: str | Machine = "card", *, simd: str = "auto") -> None:
        """Remember what the Nics are to be."""
        self._machine = machine
        self._simd = simd
        self._nics: dict[int, tuple[Nic, KernelImage]] = {}
        self._lock = Lock()  # a Nic keeps its image from load to reduce

    def merge(
        self,
        image: KernelImage,
        context: Context,
        payload: int,
        rank: int,
        pieces: Sequence[Piece],
        last: bool,
    ) -> Piece:
        """A :data:`Merge` of an op: the context is that of the array's first element."""
        start = pieces[0].start
        with self._lock:
            nic, loaded = self._nics.get(rank) or (self._nic(), None)
            if loaded is not image:
                nic.load(image)
                self._nics[rank] = nic, image
            done = nic.reduce(
                [piece.stream() for piece in pieces],
                payload=payload,
                leave="finish" if last else "emit",
                context=replace(context, device=rank, element=context.element + start),
            )
        names = {(i, *path): name for i, p in enumerate(pieces) for path, name in p.names.items()}
        names[()] = f"rank{rank}/{1 + max(piece.level for piece in pieces)}"
        return Piece(rank, start, done.values, tuple(p.order for p in pieces), names)

    def _nic(self) -> Nic:
        return Nic(self._machine, threads=1, simd=self._simd)


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


ALGORITHMS: dict[str, Algorithm] = {"ring": ring, "halving-doubling": halving_doubling}
