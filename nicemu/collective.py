"""Collectives over all ranks: allreduce, reduce, reduce_scatter, all_gather, broadcast, barrier.

Owns: the records that say what each collective is, the Communicator, its handles and results.  Who
adds what with whom is fabric's (in the network) and algorithms' (by the hosts).  One process stands
for all ranks: a call takes one array per rank and returns one per rank.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from operator import index
from typing import Self, TypeAlias, TypedDict, Unpack

import numpy as np

from nicemu.algorithms import ALGORITHMS, Hosts, Piece, Pieces
from nicemu.builtin import kernel
from nicemu.counters import FabricCounters
from nicemu.dtypes import format_of
from nicemu.errors import (
    ArgumentError,
    CollectiveError,
    FaultError,
    ImageError,
    WorkerLostError,
)
from nicemu.exchange import Exchange, RawPartial
from nicemu.fabric import Fabric, Group, Ticket
from nicemu.image import Context, KernelImage
from nicemu.numerics import Report, report
from nicemu.order import Order, devices, leaves
from nicemu.partials import Partial, Share, gather
from nicemu.tables import Table

__all__ = ["COLLECTIVES", "Collective", "Communicator", "Handle", "Result"]

IN_NETWORK = "in-network"


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


@dataclass(frozen=True)
class Result:
    """A collective that has ended.

    Attributes:
        values: an array per rank; None where a rank gets nothing.
        collective: its name.
        algorithm: "in-network", "ring" or "halving-doubling".
        op: name of the reduce op; "" where nothing is reduced.
        preset: of the numerics; "" likewise.
        shares: for each stretch of the array, who merged whom; none where that was decided by
            arrival, or nothing was reduced.
        partials: device -> its partial sums, where they were asked for.
        payload_bytes: that crossed links, resends and headers apart.
        frames: what the fabric counted from its start to its end, that of other collectives at
            the same time included; None where hosts did it.
        time: virtual seconds from its start to its end; None where hosts did it.
        seconds: host time from its start to its end.
    """

    values: list[np.ndarray | None]
    collective: str
    algorithm: str
    op: str
    preset: str
    shares: tuple[Share, ...]
    partials: dict[str, Partial]
    payload_bytes: int
    frames: FabricCounters | None
    time: float | None
    seconds: float

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
            ArgumentError: partial sums were not asked for, the inputs are others, or there is no
                order.
        """
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

    def _table(self) -> Table:
        reduced = f" of {self.op}, {self.preset}" if self.op else ""
        some = next((v for v in self.values if v is not None), None)
        what = f"{some.size} elements of {some.dtype}" if some is not None else "no elements"
        head = f"{self.collective}{reduced} over {len(self.values)} ranks, {self.algorithm}: {what}"
        if f := self.frames:
            head += f"; frames: {f.sent} sent, {f.lost + f.cut} lost, {f.resent} resent, "
            head += f"{f.duplicated} duplicated"
        columns = ("device", "ranks", "elements", "dtype", "values")
        return Table(head, columns, [p.row() for p in self.partials.values()])

    def __str__(self) -> str:
        """A line, and a row for each partial sum."""
        return str(self._table())

    def _repr_html_(self) -> str:
        """The same for notebooks."""
        return self._table()._repr_html_()


Told: TypeAlias = Callable[[Partial], None] | None


class Handle:
    """A collective that has been started.

    Iterate over it for the partial sums, as they come; :meth:`wait` for the result.  Until then
    its arrays belong to it.
    """

    def __init__(self, steps: Generator[Partial, None, Result]) -> None:
        """Made by :meth:`Communicator.start`."""
        self._steps = steps
        self._result: Result | None = None
        self._error: BaseException | None = None

    @property
    def done(self) -> bool:
        """True when it has ended, with a result or an error."""
        return self._result is not None or self._error is not None

    def __iter__(self) -> Iterator[Partial]:
        """Partial sums that have not been seen yet, until the end.

        Raises:
            NicemuError: the collective ended without a result.
        """
        while not self.done:
            try:
                found = next(self._steps)
            except StopIteration as end:
                self._result = end.value
                return
            except BaseException as error:
                self._error = error
                raise
            yield found

    def wait(self, on_partial: Told = None) -> Result:
        """Drive it to its end.

        Args:
            on_partial: called with each partial sum that has not been seen yet.

        Raises:
            NicemuError: it ended without a result; the same again when called again.
        """
        for found in self:
            if on_partial is not None:
                on_partial(found)
        if self._error is not None:
            raise self._error
        assert self._result is not None
        return self._result


# ---- the communicator ----------------------------------------------------------------------------

Arrays: TypeAlias = Sequence[np.ndarray] | np.ndarray
Op: TypeAlias = str | KernelImage


class Options(TypedDict, total=False):
    """Keywords of :meth:`Communicator.start`."""

    root: int
    out: Sequence[np.ndarray | None] | np.ndarray | None
    preset: str
    algorithm: str | None
    partials: bool
    seed: int


@dataclass(frozen=True)
class _Call:
    """A collective with its arguments, checked and brought into shape.

    Attributes:
        record: which collective.
        image: the op; None where nothing is reduced.
        inputs: per rank, flat and contiguous: the stretch ``gives[rank]`` of the whole array.
        outputs: per rank, likewise: where the stretch ``takes[rank]`` goes.
        context: of the whole array's first element.
        partials: True: partial sums are wanted.
    """

    record: Collective
    image: KernelImage | None
    inputs: list[np.ndarray]
    outputs: list[np.ndarray]
    gives: list[range]
    takes: list[range]
    context: Context
    partials: bool


@dataclass(frozen=True)
class _Outcome:
    """What is left to tell when the outputs are written; see Result."""

    shares: tuple[Share, ...]
    payload_bytes: int
    frames: FabricCounters | None = None
    time: float | None = None


#: yields partial sums as they are made
_Work: TypeAlias = Generator[Partial, None, _Outcome]


class Communicator:
    """Ranks of a fabric, and how they reduce.

    Rank i of the communicator is worker ``ranks[i]`` of the fabric.

    Attributes:
        fabric: the fabric.
        ranks: how many ranks there are.

    Example:
        >>> world = nicemu.Communicator(8)
        >>> result = world.allreduce(gradients, op="avg")
        >>> result.values[0]
    """

    def __init__(
        self,
        fabric: Fabric | int,
        ranks: Sequence[int] | None = None,
        *,
        algorithm: str = "auto",
        window: int = 16,
        job: int = 0,
    ) -> None:
        """Make a communicator of workers of a fabric.

        Args:
            fabric: the fabric; a number makes one of so many workers: 4 cards behind a NIC, 4 NICs
                behind a leaf switch, and a spine.
            ranks: which workers; None: all.  After a worker is lost, the others go on in a
                communicator without it.
            algorithm: of calls that name none: "in-network", "ring", "halving-doubling", or "auto":
                in-network where the fabric has a switch (a device above devices), else ring.
            window: chunks that a rank may have in flight in the network.
            job: 0..65535; jobs share devices and never meet.

        Raises:
            ArgumentError: an argument is out of range.
            CapacityError: a device has no room for these ranks.
        """
        self.fabric = fabric if isinstance(fabric, Fabric) else Fabric(fabric)
        self._workers = range(self.fabric.ranks) if ranks is None else tuple(ranks)
        self._slots = {"window": window, "job": job}
        self._group = self.fabric.group(self._workers, **self._slots)
        self.ranks = len(self._group.ranks)
        self._hosts = Hosts(self.fabric.machine, simd=self.fabric.simd)
        self._algorithm = self._checked_algorithm(algorithm)
        self._seq = 0

    def close(self) -> None:
        """Give back what it has on the devices; what is under way ends with an error."""
        self._group.close()

    def __enter__(self) -> Self:
        """The communicator itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close it."""
        self.close()

    def allreduce(
        self, arrays: Arrays, op: Op = "sum", *, on_partial: Told = None, **options: Unpack[Options]
    ) -> Result:
        """Every rank gets the reduction of all arrays; shapes are equal.

        Here and below, ``options`` are those of :meth:`start`, and ``on_partial`` is called with
        the partial sums of each device as soon as they are complete.
        """
        return self._run("allreduce", arrays, op, on_partial, options)

    def reduce(
        self, arrays: Arrays, op: Op = "sum", *, on_partial: Told = None, **options: Unpack[Options]
    ) -> Result:
        """Rank ``root`` gets the reduction of all arrays; the others get None."""
        return self._run("reduce", arrays, op, on_partial, options)

    def reduce_scatter(
        self, arrays: Arrays, op: Op = "sum", *, on_partial: Told = None, **options: Unpack[Options]
    ) -> Result:
        """Rank r gets part r of the reduction, cut along the first axis into equal parts."""
        return self._run("reduce_scatter", arrays, op, on_partial, options)

    def all_gather(self, arrays: Arrays, **options: Unpack[Options]) -> Result:
        """Every rank gets all arrays, joined along the first axis."""
        return self.start("all_gather", arrays, **options).wait()

    def broadcast(self, array: np.ndarray, **options: Unpack[Options]) -> Result:
        """Every rank gets the array of rank ``root``."""
        return self.start("broadcast", array, **options).wait()

    def barrier(self, **options: Unpack[Options]) -> Result:
        """No rank goes on before all have come; nothing is carried."""
        return self.start("barrier", [], **options).wait()

    def _run(
        self, collective: str, arrays: Arrays, op: Op, on_partial: Told, options: Options
    ) -> Result:
        if on_partial is not None:
            options["partials"] = True
        return self.start(collective, arrays, op, **options).wait(on_partial)

    def start(
        self,
        collective: str,
        arrays: Arrays,
        op: Op = "sum",
        *,
        root: int = 0,
        out: Sequence[np.ndarray | None] | np.ndarray | None = None,
        preset: str = "wide",
        algorithm: str | None = None,
        partials: bool = False,
        seed: int = 0,
    ) -> Handle:
        """Begin a collective; several may be under way.

        Args:
            collective: "allreduce", "reduce", "reduce_scatter", "all_gather", "broadcast" or
                "barrier".
            arrays: one array per rank, all of one shape and dtype, or a 2-D array of rows; for
                broadcast, the root's array.  They need not be contiguous, and may have any number
                of elements, 0 too.  To be reduced they are float16, bfloat16 or float32.
            op: "sum", "avg", "prod", "max", "min", or a kernel image.
            root: of reduce and broadcast.
            out: one array per rank that takes the result, of its shape and dtype, or the rows of
                one array; contiguous or not.  It may be the input (in place) and overlap inputs,
                but not another rank's output.  None makes new arrays.
            preset: numerics of a named op: "wide", "per-hop" or "per-add".
            algorithm: None takes the communicator's.
            partials: True keeps every device's partial sums in the result.
            seed: for stochastic ops.

        Returns:
            Handle; until it is done, inputs and outputs belong to it.

        Raises:
            ArgumentError: an argument does not fit.
            ImageError: the op's image cannot be built.
        """
        begin = time.perf_counter()
        if collective not in COLLECTIVES:
            names = ", ".join(COLLECTIVES)
            raise ArgumentError(f"collective {collective!r} is unknown: use one of {names}")
        record = COLLECTIVES[collective]
        if not 0 <= index(root) < self.ranks:
            raise ArgumentError(f"root {root} is no rank: use 0..{self.ranks - 1}")
        chosen = self._checked_algorithm(algorithm) if algorithm else self._algorithm
        run = self._in_network if chosen == IN_NETWORK else partial(self._by_hosts, chosen)
        given = self._given(record, arrays, root)
        if given[root].dtype.hasobject:
            raise ArgumentError("arrays of Python objects: use numbers, which frames can carry")
        image = _image(op, preset, given[0].dtype) if record.reduces else None
        dtype = format_of(image.result).dtype if image else given[0].dtype
        gives, takes = self._stretches(record, given, root)
        values = self._out(record, out, self._shape(record, given[root].shape), dtype, root)
        inputs = [np.ascontiguousarray(x).reshape(-1) for x in given]
        outputs = _staged(inputs, gives, values, takes)
        context = Context(seq=self._seq & 0xFFFFFFFF, group=self.ranks, seed=seed)
        call = _Call(record, image, inputs, outputs, gives, takes, context, partials)
        self._seq += 1
        return Handle(_finished(call, chosen, run(call), values, begin))

    # ---- arguments -------------------------------------------------------------------------------

    def _checked_algorithm(self, algorithm: str) -> str:
        known = ("auto", IN_NETWORK, *ALGORITHMS)
        if algorithm not in known:
            raise ArgumentError(
                f"algorithm {algorithm!r} is unknown: use one of {', '.join(known)}"
            )
        if algorithm != "auto":
            return algorithm
        return IN_NETWORK if len(self._group.names) > 1 else "ring"

    def _given(self, record: Collective, arrays: Arrays, root: int) -> list[np.ndarray]:
        """An array per rank; empty ones where a rank gives nothing."""
        if record.gives is _nothing:
            return [np.empty(0, np.uint8)] * self.ranks
        if record.gives is _at_root:
            if not isinstance(arrays, np.ndarray):
                raise ArgumentError(
                    f"{record.name} of {type(arrays).__name__}: pass the root's array"
                )
            nothing = np.empty(0, arrays.dtype)
            return [arrays if rank == root else nothing for rank in range(self.ranks)]
        given = list(arrays)
        if len(given) != self.ranks:
            raise ArgumentError(f"{len(given)} arrays for {self.ranks} ranks: pass one per rank")
        for rank, array in enumerate(given):
            if not isinstance(array, np.ndarray):
                raise ArgumentError(f"rank {rank} has {type(array).__name__}: pass a numpy array")
            if (array.shape, array.dtype) != (given[0].shape, given[0].dtype):
                raise ArgumentError(
                    f"rank {rank} has shape {array.shape} and dtype {array.dtype}, rank 0 "
                    f"{given[0].shape} and {given[0].dtype}: all must be equal"
                )
        return given

    def _stretches(
        self, record: Collective, given: list[np.ndarray], root: int
    ) -> tuple[list[range], list[range]]:
        """What each rank gives and takes of the whole array."""
        n, size = self.ranks, int(given[root].size)
        whole = size * n if record.gives is _block else size
        gives = [record.gives(rank, n, root, whole) for rank in range(n)]
        takes = [record.takes(rank, n, root, whole) for rank in range(n)]
        return gives, takes

    def _shape(self, record: Collective, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Of what a rank gets."""
        if _block not in (record.gives, record.takes):
            return shape
        if not shape:
            raise ArgumentError(f"{record.name} of single numbers: use arrays of 1 axis or more")
        if record.gives is _block:
            return (shape[0] * self.ranks, *shape[1:])
        if shape[0] % self.ranks:
            raise ArgumentError(
                f"{record.name} of shape {shape}: the first axis must be a multiple of "
                f"{self.ranks} ranks"
            )
        return (shape[0] // self.ranks, *shape[1:])

    def _out(
        self,
        record: Collective,
        out: Sequence[np.ndarray | None] | np.ndarray | None,
        shape: tuple[int, ...],
        dtype: np.dtype,
        root: int,
    ) -> list[np.ndarray | None]:
        """The array of each rank that takes something."""
        if record.takes is _nothing:
            return [None] * self.ranks
        takers = [root] if record.takes is _at_root else list(range(self.ranks))
        if out is None:
            made = {rank: np.empty(shape, dtype) for rank in takers}
            return [made.get(rank) for rank in range(self.ranks)]
        if len(out) != self.ranks:
            raise ArgumentError(f"out has {len(out)} arrays for {self.ranks} ranks: pass one each")
        for rank in takers:
            array = out[rank]
            if not isinstance(array, np.ndarray):
                raise ArgumentError(f"out of rank {rank} is {type(array).__name__}: pass an array")
            if (array.shape, array.dtype) != (shape, dtype):
                raise ArgumentError(
                    f"out of rank {rank} has shape {array.shape} and dtype {array.dtype}: the "
                    f"result is {shape} of {dtype}"
                )
            if not array.flags.writeable:
                raise ArgumentError(f"out of rank {rank} is not writeable: pass another array")
            for other in takers[: takers.index(rank)]:
                if _overlap(array, out[other]):
                    raise ArgumentError(f"out of ranks {other} and {rank} overlap: pass two arrays")
        return [out[rank] if rank in takers else None for rank in range(self.ranks)]

    # ---- in the network --------------------------------------------------------------------------

    def _in_network(self, call: _Call) -> _Work:
        """Frames are under way when this returns; the rest is for the handle to drive."""
        if self._group.failed:
            self._group.close()
            self._group = self.fabric.group(self._workers, **self._slots)
        before, begin = self.fabric.counters(), self.fabric.now
        exchange = Exchange(
            image=call.image,
            inputs=[x if x.size or call.image else None for x in call.inputs],
            outputs=[x if x.size else None for x in call.outputs],
            offsets=[takes.start for takes in call.takes],
            partials=call.partials and call.image is not None,
            context=call.context,
        )
        ticket = self._group.start(exchange)
        return self._driven(call, self._group, ticket, before, begin)

    def _driven(
        self, call: _Call, group: Group, ticket: Ticket, before: FabricCounters, begin: float
    ) -> _Work:
        try:
            for device in ticket:
                if call.partials:
                    yield from _pieces(group, ticket.partials()[device])
        except CollectiveError as error:
            if not error.missing:
                raise
            raws = ticket.partials().values()
            lost = ", ".join(f"rank{worker}" for worker in error.missing)
            raise WorkerLostError(
                f"{call.record.name}: nothing comes from {lost}: go on in a communicator of the "
                "others, or over links that lose less",
                missing=tuple(group.ranks.index(worker) for worker in error.missing),
                partials=gather(piece for raw in raws for piece in _pieces(group, raw)),
            ) from error
        shares: list[Share] = []
        if call.image and group.order is not None:
            names = {path: name for name, path in group.names.items()}
            shares.append(Share(range(call.inputs[0].size), group.order, names))
        assert ticket.time is not None
        return _Outcome(
            shares=tuple(shares),
            payload_bytes=_crossing(call, group),
            frames=self.fabric.counters() - before,
            time=ticket.time - begin,
        )

    # ---- by the hosts ----------------------------------------------------------------------------

    def _by_hosts(self, algorithm: str, call: _Call) -> _Work:
        sent = 0

        def merge(rank: int, pieces: Sequence[Piece], last: bool) -> Piece:
            nonlocal sent
            sent += sum(piece.values.nbytes for piece in pieces if piece.rank != rank)
            assert call.image is not None
            try:
                return self._hosts.merge(
                    call.image, call.context, self.fabric.mtu, rank, pieces, last
                )
            except (FaultError, ImageError) as error:
                fault = error.fault if isinstance(error, FaultError) else None
                raise CollectiveError(f"rank{rank}: {error}", fault=fault) from error

        if call.image is None:
            pieces = [
                Piece(rank, gives.start, values, rank, {})
                for rank, (gives, values) in enumerate(zip(call.gives, call.inputs, strict=True))
            ]
        else:
            pieces = yield from _told(ALGORITHMS[algorithm](call.inputs, merge), call.partials)
        for piece in pieces:
            has = range(piece.start, piece.stop)
            for rank, (takes, values) in enumerate(zip(call.takes, call.outputs, strict=True)):
                if common := _common(has, takes):
                    values[_inside(common, takes)] = piece.values[_inside(common, has)]
                    sent += len(common) * values.itemsize if rank != piece.rank else 0
        shares = [Share(range(p.start, p.stop), p.order, p.names) for p in pieces if call.image]
        return _Outcome(tuple(shares), sent)


def _pieces(group: Group, raw: RawPartial) -> Iterator[Partial]:
    """What a device has of partial sums, by who is in them, in the order of merging."""
    node = group.order
    for child in group.names[raw.device]:
        node = node[child] if isinstance(node, tuple) else node
    merged = tuple(range(raw.workers)) if node is None else leaves(node)
    for elements, ranks, time_ in raw.pieces():
        among = set(ranks)
        values = raw.values[elements.start : elements.stop]
        contributors = tuple(rank for rank in merged if rank in among)
        yield Partial(raw.device, values, contributors, (elements,), time_)


def _crossing(call: _Call, group: Group) -> int:
    """Payload bytes on all links, each frame once: up to the root, and from there down to all."""
    links = len(call.inputs) + len(group.names) - 1
    depth = dict.fromkeys(range(len(call.inputs)), 1)
    for path, node in devices(group.order if group.order is not None else ()):
        depth |= {child: len(path) + 1 for child in node if isinstance(child, int)}
    if call.image is None:
        given = sum(depth[rank] * x.nbytes for rank, x in enumerate(call.inputs))
        return given + links * sum(x.nbytes for x in call.inputs)
    result = format_of(call.image.result).size
    up = sum(x.nbytes for x in call.inputs)
    partial_ = (len(group.names) - 1) * format_of(call.image.partial).size
    return up + call.inputs[0].size * (partial_ + links * result)


def _told(pieces: Pieces, partials: bool) -> Generator[Partial, None, list[Piece]]:
    """The same as what users see."""
    while True:
        try:
            piece = next(pieces)
        except StopIteration as end:
            finished: list[Piece] = end.value
            return finished
        if partials:
            elements = range(piece.start, piece.stop)
            yield Partial(piece.names[()], piece.values, leaves(piece.order), (elements,))


def _finished(
    call: _Call, algorithm: str, work: _Work, values: list[np.ndarray | None], begin: float
) -> Generator[Partial, None, Result]:
    """Let the work go on to its end; the outputs go to where the caller wants them."""
    kept: list[Partial] = []
    while True:
        try:
            found = next(work)
        except StopIteration as end:
            outcome: _Outcome = end.value
            break
        kept.append(found)
        yield found
    for output, array in zip(call.outputs, values, strict=True):
        if array is not None and not np.may_share_memory(output, array):
            array[...] = output.reshape(array.shape)
    return Result(
        values=values,
        collective=call.record.name,
        algorithm=algorithm,
        op=call.image.op if call.image else "",
        preset=call.image.preset if call.image else "",
        shares=outcome.shares,
        partials=gather(kept),
        payload_bytes=outcome.payload_bytes,
        frames=outcome.frames,
        time=outcome.time,
        seconds=time.perf_counter() - begin,
    )


def _image(op: str | KernelImage, preset: str, dtype: np.dtype) -> KernelImage:
    if not isinstance(op, KernelImage):
        return kernel(op, dtype, preset)
    if format_of(op.element).dtype != dtype:
        raise ArgumentError(f"arrays of {dtype}: the image of {op.op} takes {op.element}")
    return op


def _staged(
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


def _overlap(a: np.ndarray, b: np.ndarray | None) -> bool:
    """Do two arrays share an element?  Exact, also where they interleave."""
    return b is not None and np.may_share_memory(a, b) and np.shares_memory(a, b)


def _common(a: range, b: range) -> range:
    return range(max(a.start, b.start), min(a.stop, b.stop))


def _inside(elements: range, of: range) -> slice:
    return slice(elements.start - of.start, elements.stop - of.start)
