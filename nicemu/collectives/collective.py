"""What each collective is: allreduce, reduce, reduce_scatter, all_gather, broadcast, barrier.

Owns: the rows that say who gives and who takes which stretch of the array, the check of a caller's
arrays, where results are written, the result.  Who adds what with whom, and what drives it to its
end, is communicator's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.lib.array_utils import byte_bounds

from nicemu.collectives.numerics import Report, report
from nicemu.collectives.partials import Partial, Share
from nicemu.device.image import KernelImage
from nicemu.device.machine import Machine
from nicemu.errors import ArgumentError
from nicemu.network.counters import FabricCounters
from nicemu.network.records import Step
from nicemu.ops.builtin import is_builtin
from nicemu.order import Order
from nicemu.tables import Table, Tabled

__all__ = ["COLLECTIVES", "Arrays", "Collective", "Out", "Result", "staged"]

#: an array per rank, or their rows in one
Arrays: TypeAlias = Sequence[np.ndarray] | np.ndarray
#: where the result of each rank goes; None: to new arrays
Out: TypeAlias = Sequence[np.ndarray | None] | np.ndarray | None


# ---- what each collective is ---------------------------------------------------------------------

#: stretch(rank, ranks, root, whole): the elements of the whole array that a rank gives or takes
Stretch: TypeAlias = Callable[[int, int, int, int], range]


def _whole(rank: int, ranks: int, root: int, whole: int) -> range:
    return range(whole)


def _block(rank: int, ranks: int, root: int, whole: int) -> range:
    return range(whole * rank // ranks, whole * (rank + 1) // ranks)


def _at_root(rank: int, ranks: int, root: int, whole: int) -> range:
    return range(whole if rank == root else 0)


def _nothing(rank: int, ranks: int, root: int, whole: int) -> range:
    return range(0)


@dataclass(frozen=True)
class Collective:
    """What a collective is.  ``whole`` is the array that all ranks together speak of.

    Attributes:
        name: as nccl-tests and MPI have it.
        gives: the stretch of the whole array that a rank brings.
        takes: the stretch that it gets.
        reduces: True: what the ranks give lies on top of each other and is reduced; False: side by
            side, and is moved.
        bus: bus bandwidth over algorithm bandwidth (bytes of the whole array per second), by the
            number of ranks, as nccl-tests defines it: times the bytes of the whole array, it is
            what each rank has to send at least.
    """

    name: str
    gives: Stretch
    takes: Stretch
    reduces: bool
    bus: Callable[[int], float]

    @property
    def carries(self) -> bool:
        """Whether there is an array at all."""
        return self.gives is not _nothing

    @property
    def rooted(self) -> bool:
        """Whether one rank is the root."""
        return _at_root in (self.gives, self.takes)

    @property
    def everywhere(self) -> bool:
        """Whether every rank takes the whole array."""
        return self.takes is _whole

    @property
    def parted(self) -> bool:
        """Whether the whole array is cut into equal parts, one for each rank."""
        return _block in (self.gives, self.takes)

    def given(self, arrays: Arrays, ranks: int, root: int) -> list[np.ndarray]:
        """An array per rank; empty ones where a rank gives nothing.

        Args:
            arrays: what a caller passes: an array per rank; of broadcast the root's.
            ranks: how many there are.
            root: of reduce and broadcast.

        Raises:
            ArgumentError: there is another number of them, or they differ in shape or dtype.
        """
        if not self.carries:
            return [np.empty(0, np.uint8)] * ranks
        if self.gives is _at_root:
            if not isinstance(arrays, np.ndarray):
                raise ArgumentError(
                    f"{self.name} of {type(arrays).__name__}: pass the root's array"
                )
            array = _plain(arrays, f"rank {root}")
            nothing = np.empty(0, array.dtype)
            return [array if rank == root else nothing for rank in range(ranks)]
        given = [_plain(array, f"rank {i}") for i, array in enumerate(_listed(arrays, "arrays"))]
        if len(given) != ranks:
            raise ArgumentError(f"{len(given)} arrays for {ranks} ranks: pass one per rank")
        for rank, array in enumerate(given):
            if (array.shape, array.dtype) != (given[0].shape, given[0].dtype):
                raise ArgumentError(
                    f"rank {rank} has shape {array.shape} and dtype {array.dtype}, rank 0 "
                    f"{given[0].shape} and {given[0].dtype}: all must be equal"
                )
        return given

    def stretches(self, ranks: int, root: int, size: int) -> tuple[list[range], list[range]]:
        """What each rank gives and takes of the whole array; ``size``: elements of the root's."""
        whole = size * ranks if self.gives is _block else size
        gives = [self.gives(rank, ranks, root, whole) for rank in range(ranks)]
        takes = [self.takes(rank, ranks, root, whole) for rank in range(ranks)]
        return gives, takes

    def shape(self, shape: tuple[int, ...], ranks: int) -> tuple[int, ...]:
        """Of what a rank gets, by the shape of what the root gives.

        Raises:
            ArgumentError: it cannot be cut into a part for each rank.
        """
        if not self.parted:
            return shape
        if not shape:
            raise ArgumentError(f"{self.name} of single numbers: use arrays of 1 axis or more")
        if self.gives is _block:
            return (shape[0] * ranks, *shape[1:])
        if shape[0] % ranks:
            raise ArgumentError(
                f"{self.name} of shape {shape}: the first axis must be a multiple of {ranks} ranks"
            )
        return (shape[0] // ranks, *shape[1:])

    def targets(
        self,
        out: Out,
        shape: tuple[int, ...],
        dtype: np.dtype,
        ranks: int,
        root: int,
    ) -> list[np.ndarray | None]:
        """The array of each rank that takes something, of that shape and dtype.

        Args:
            out: what a caller passes; None: new arrays.
            shape: of one rank's.
            dtype: of the result.
            ranks: how many there are.
            root: of reduce and broadcast.

        Raises:
            ArgumentError: one does not fit, cannot be written, or overlaps another.
        """
        if self.takes is _nothing:
            return [None] * ranks
        takers = [root] if self.takes is _at_root else list(range(ranks))
        if out is None:
            made = {rank: np.empty(shape, dtype) for rank in takers}
            return [made.get(rank) for rank in range(ranks)]
        given = _listed(out, "out")
        if len(given) != ranks:
            raise ArgumentError(f"out has {len(given)} arrays for {ranks} ranks: pass one each")
        targets: list[np.ndarray | None] = [None] * ranks
        for rank in takers:
            array = targets[rank] = _plain(given[rank], f"out of rank {rank}")
            if (array.shape, array.dtype) != (shape, dtype):
                raise ArgumentError(
                    f"out of rank {rank} has shape {array.shape} and dtype {array.dtype}: the "
                    f"result is {shape} of {dtype}"
                )
            if not array.flags.writeable:
                raise ArgumentError(f"out of rank {rank} is not writeable: pass another array")
            if _overlaps_itself(array):
                raise ArgumentError(f"out of rank {rank} overlaps itself: pass another array")
        if pair := _overlap(
            {rank: array for rank, array in enumerate(targets) if array is not None}
        ):
            raise ArgumentError(f"out of ranks {pair[0]} and {pair[1]} overlap: pass two arrays")
        return targets


COLLECTIVES: dict[str, Collective] = {
    row.name: row
    for row in (
        Collective("allreduce", _whole, _whole, True, lambda n: 2 * (n - 1) / n),
        Collective("reduce", _whole, _at_root, True, lambda n: 1.0),
        Collective("reduce_scatter", _whole, _block, True, lambda n: (n - 1) / n),
        Collective("all_gather", _block, _whole, False, lambda n: (n - 1) / n),
        Collective("broadcast", _at_root, _whole, False, lambda n: 1.0),
        Collective("barrier", _nothing, _nothing, False, lambda n: 0.0),
    )
}


# ---- what comes out ------------------------------------------------------------------------------


@dataclass(frozen=True, repr=False)
class Result(Tabled):
    """A collective that has ended.

    Attributes:
        values: an array per rank; None where a rank gets nothing, or with time="only".
        collective: its name.
        algorithm: "in-network", "ring" or "halving-doubling".
        image: of the reduce op; None where nothing is reduced.
        machine: of the devices.
        shares: for each stretch of the array, who merged whom; none where that was decided by
            arrival, or nothing was reduced.
        partials: device -> its partial sums, where they were asked for; lowest level first, from
            left to right.
        payload_bytes: that crossed links, resends and headers apart.
        frames: what the fabric counted from its start to its end, that of other collectives at
            the same time included; None where hosts did it.
        time: virtual seconds from its start to its end; None where hosts did it in a fabric that
            is not timed.  What hosts do begins when its handle is driven, once bits are merged.
        spent: what these were spent on, on the longest way to its end, where the fabric is timed:
            "wire", "PCIe", "hops", "DMA", "core", "conflicts", "queueing", "device", "timers",
            "software".  While others of the group fill the window, it is queueing.
        path: the steps of that way, the critical path, where the fabric records: with
            ``Fabric(trace=)``, or after :meth:`nicemu.Fabric.record`.
        bound: the least time that it could take, see
            :func:`nicemu.collectives.least.bound_of`, where the fabric is timed.
        seconds: host time from its start to its end.
    """

    values: list[np.ndarray | None]
    collective: str
    algorithm: str
    image: KernelImage | None
    machine: Machine
    shares: tuple[Share, ...]
    partials: dict[str, Partial]
    payload_bytes: int
    frames: FabricCounters | None
    time: float | None
    spent: dict[str, float] | None
    path: tuple[Step, ...] | None
    bound: float | None
    seconds: float

    @property
    def op(self) -> str:
        """Name of the reduce op; "" where nothing is reduced."""
        return self.image.op if self.image else ""

    @property
    def preset(self) -> str:
        """Of the numerics; "" where nothing is reduced."""
        return self.image.preset if self.image else ""

    @property
    def order(self) -> Order:
        """Who merged whom, as a nested tuple of ranks: ``((0, 1, 2, 3), (4, 5, 6, 7))``.

        Raises:
            ArgumentError: it differs from stretch to stretch (``ring``), was decided by arrival, or
                nothing was reduced.
        """
        orders = {share.order for share in self._ordered()}
        if len(orders) > 1:
            raise ArgumentError(f"{len(orders)} orders: read shares, one per stretch of the array")
        return orders.pop()

    def _ordered(self) -> tuple[Share, ...]:
        if not self.shares:
            raise ArgumentError(f"{self.collective}: nothing was reduced, or in order of arrival")
        return self.shares

    def numerics(self, inputs: Sequence[np.ndarray]) -> Report:
        """Where precision went, level by level.

        Args:
            inputs: the arrays that were reduced, one per rank, as they were before the call.

        Raises:
            ArgumentError: partial sums were not asked for, the inputs are others, there is no
                order, or the op is one of your own.
            ImageError: the op of its name that comes with nicemu cannot be built.
        """
        if self.image and not is_builtin(self.image, self.machine):
            raise ArgumentError(
                f"op {self.op!r} does not come with nicemu: what it gives exactly, its author knows"
            )
        return report(self.op, self._ordered(), self.partials, inputs, self.whole())

    def whole(self) -> np.ndarray:
        """The whole array that was reduced or moved, flat, put together from what ranks have.

        Raises:
            ArgumentError: no rank has anything.
        """
        have = [v.reshape(-1) for v in self.values if v is not None]
        if not have:
            raise ArgumentError(f"{self.collective}: no rank has an array")
        parts = COLLECTIVES[self.collective].takes is _block
        return np.concatenate(have) if parts else have[0]

    def tables(self) -> tuple[Table, ...]:
        """For people: a line, a row for each partial sum, and what its time was spent on."""
        reduced = f" of {self.op}, {self.preset}" if self.op else ""
        some = next((v for v in self.values if v is not None), None)
        nothing = "no elements" if COLLECTIVES[self.collective].takes is _nothing else "no values"
        what = f"{some.size:,} elements of {some.dtype}" if some is not None else nothing
        arrival = ", in order of arrival" if self.op and not self.shares else ""
        who = f"{len(self.values)} ranks, {self.algorithm}{arrival}"
        head = f"{self.collective}{reduced} over {who}: {what}"
        if f := self.frames:
            head += f"; frames: {f.sent} sent, {f.lost + f.cut} lost, {f.resent} resent, "
            head += f"{f.duplicated} duplicated"
        columns = ("device", "ranks", "elements", "dtype", "values")
        found = (Table(head, columns, [p.row() for p in self.partials.values()]),)
        if self.time is None or self.spent is None or self.bound is None:
            return found
        spent = {name: f"{1e6 * t:.2f}" for name, t in self.spent.items() if t}
        took = f"{1e6 * self.time:.2f} us, at least {1e6 * self.bound:.2f}"
        if not spent:
            return *found, Table(took, (), ())
        return *found, Table(f"{took}; spent on:", tuple(spent), [tuple(spent.values())])


# ---- where results are written -------------------------------------------------------------------


def staged(
    inputs: Sequence[np.ndarray],
    gives: Sequence[range],
    values: Sequence[np.ndarray | None],
    takes: Sequence[range],
) -> list[np.ndarray]:
    """Where results are written to: the caller's arrays, flat, where that can be done.

    It cannot where an array is not contiguous, or lies over inputs other than element by element.
    """
    outputs = []
    starts = np.array([x.ctypes.data for x in inputs])
    stops = starts + np.array([x.nbytes for x in inputs])
    for rank, (array, stretch) in enumerate(zip(values, takes, strict=True)):
        if array is None:
            outputs.append(np.empty(0, np.uint8))
            continue
        flat = array.reshape(-1) if array.flags.c_contiguous else None
        if flat is not None:
            own = inputs[rank]
            at = own.ctypes.data + (stretch.start - gives[rank].start) * own.itemsize
            in_place = flat.ctypes.data == at and flat.itemsize == own.itemsize
            begin = flat.ctypes.data
            lies_over = np.flatnonzero((starts < begin + flat.nbytes) & (begin < stops))
            if lies_over.tolist() not in ([], [rank] if in_place else []):
                flat = None
        outputs.append(np.empty(array.size, array.dtype) if flat is None else flat)
    return outputs


def _listed(given: Any, what: str) -> list[Any]:
    try:
        return list(given)
    except TypeError as error:
        raise ArgumentError(f"{what}: {error}: pass one array per rank") from error


def _plain(array: Any, what: str) -> np.ndarray:
    """An array without what its class makes of it; a mask would be lost."""
    if not isinstance(array, np.ndarray) or isinstance(array, np.ma.MaskedArray):
        raise ArgumentError(f"{what} has {type(array).__name__}: pass a plain numpy array")
    return np.asarray(array)


def _overlaps_itself(array: np.ndarray) -> bool:
    """May two elements share a byte?  Not where each axis steps over all of the smaller ones."""
    reach = array.itemsize
    for stride, size in sorted(
        (abs(s), n) for s, n in zip(array.strides, array.shape, strict=True)
    ):
        if size > 1 and stride < reach:
            return array.size > 0
        reach += stride * (size - 1)
    return False


def _overlap(arrays: dict[int, np.ndarray]) -> tuple[int, int] | None:
    """The numbers of two arrays that share an element, if any do.  Exact, also where they
    interleave; fast where they do not.
    """
    places = sorted((*byte_bounds(array), i) for i, array in arrays.items() if array.size)
    reaching: list[tuple[int, int]] = []  # ends and numbers of those before that go on here
    for begin, end, i in places:
        reaching = [(stop, j) for stop, j in reaching if stop > begin]
        for _, j in reaching:
            if np.shares_memory(arrays[i], arrays[j]):
                return min(i, j), max(i, j)
        reaching.append((end, i))
    return None
