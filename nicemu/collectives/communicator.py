"""The Communicator: ranks of a fabric, what they call, and the handles of what is under way.

Owns: driving a collective to its end, in the network or by the hosts.  What a collective is, and
its result, is collective's; who adds what with whom is fabric's (in the network) and algorithms'
(by the hosts).  One process stands for all ranks: a call takes one array per rank and returns one
per rank.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from threading import Lock, RLock
from typing import Self, TypeAlias, TypedDict, Unpack

import numpy as np

from nicemu.arguments import flag, function, instance, known, whole, wholes
from nicemu.collectives.algorithms import (
    ALGORITHMS,
    Counted,
    Hosts,
    Piece,
    Pieces,
    Reduction,
    nothing_merged,
)
from nicemu.collectives.collective import COLLECTIVES, Arrays, Collective, Out, Result, staged
from nicemu.collectives.least import Bound, Job, bound_of
from nicemu.collectives.partials import Partial, Share, gather
from nicemu.compiler.target import target_of
from nicemu.device.image import Context, KernelImage
from nicemu.device.machine import SECOND, Machine
from nicemu.dtypes import item_of
from nicemu.errors import (
    ArgumentError,
    CollectiveError,
    FaultError,
    ImageError,
    NicemuError,
    StatusError,
    WorkerLostError,
)
from nicemu.network.counters import FabricCounters
from nicemu.network.exchange import Exchange, RawPartial
from nicemu.network.fabric import MAX_RANKS, Fabric, Group, Passage, Ticket
from nicemu.network.records import Step
from nicemu.network.relay import Message, Relay
from nicemu.ops.builtin import kernel
from nicemu.ops.op import ReduceOp
from nicemu.ops.steady import check_steady
from nicemu.order import devices, leaves

__all__ = ["Communicator", "Handle"]

IN_NETWORK = "in-network"
BOUNDS = 1024  # least times that are kept
TOKEN = range(1)  # what a barrier passes on: one element of no bytes
_ALGORITHMS = ("auto", IN_NETWORK, *ALGORITHMS)

Told: TypeAlias = Callable[[Partial], None] | None


class Handle:
    """A collective that has been started.

    Iterate over it for the partial sums, as they come; :meth:`wait` for the result.  Until then
    its arrays belong to it.  Threads may share it.  What is no error of the collective, such as
    Ctrl-C, does not end it: it goes on when it is asked again.
    """

    def __init__(self, steps: Callable[[], Generator[Partial, None, Result]]) -> None:
        """Made by :meth:`Communicator.start`.

        Args:
            steps: drives the collective from where it is; when begun again, it tells of the
                partial sums from the first one on, or of none.
        """
        self._begin = steps
        self._steps = steps()
        self._found = 0  # partial sums that these steps have told of
        self._seen: list[Partial] = []
        self._told = 0  # of these, how many somebody has been given
        self._lock = RLock()
        self._result: Result | None = None
        self._error: NicemuError | None = None

    @property
    def done(self) -> bool:
        """True when it has ended, with a result or an error."""
        return self._result is not None or self._error is not None

    def __iter__(self) -> Iterator[Partial]:
        """Partial sums that have not been seen yet, until the end.

        Raises:
            NicemuError: the collective ended without a result.
        """
        while self._more():
            try:
                # nothing is called in between: no signal is heard, and no other thread runs, until
                # who asks has it
                found, self._told = self._seen[self._told], self._told + 1
            except IndexError:  # another thread has it
                continue
            yield found

    def _more(self) -> bool:
        """Is there a partial sum that nobody has been given?  Else the collective has ended."""
        with self._lock:
            try:
                while self._told == len(self._seen) and not self.done:
                    self._step()
            except NicemuError as error:
                self._error = error
                raise
            except BaseException:
                self._steps, self._found = self._begin(), 0
                raise
            return self._told < len(self._seen)

    def _step(self) -> None:
        """Drive it to the next partial sum, or to its result."""
        try:
            found = next(self._steps)
        except StopIteration as end:
            self._result = _with_partials(end.value, self._seen)
            return
        self._found += 1
        if self._found > len(self._seen):
            self._seen.append(found)

    def wait(self, on_partial: Told = None) -> Result:
        """Drive it to its end.

        Args:
            on_partial: called with each partial sum that has not been seen yet.

        Raises:
            NicemuError: it ended without a result; the same again when called again.
        """
        function("on_partial", on_partial)
        for found in self:
            if on_partial is not None:
                on_partial(found)
        if self._error is not None:
            raise self._error
        assert self._result is not None
        return self._result


# ---- the communicator ----------------------------------------------------------------------------

Op: TypeAlias = str | ReduceOp | KernelImage


class Options(TypedDict, total=False):
    """Keywords of :meth:`Communicator.start`."""

    root: int
    out: Out
    preset: str | None
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
        root: of reduce and broadcast.
        partials: True: partial sums are wanted.
    """

    record: Collective
    image: KernelImage | None
    inputs: list[np.ndarray]
    outputs: list[np.ndarray]
    gives: list[range]
    takes: list[range]
    context: Context
    root: int
    partials: bool


@dataclass(frozen=True)
class _Outcome:
    """What is left to tell when the outputs are written; see Result."""

    shares: tuple[Share, ...]
    payload_bytes: int
    frames: FabricCounters | None = None
    time: float | None = None
    spent: dict[str, float] | None = None
    path: tuple[Step, ...] | None = None
    bound: float | None = None


@dataclass
class _Merged:
    """What hosts have merged, when outputs are being written.

    Attributes:
        pieces: of the result, where they are.
        sent: bytes that ranks have sent each other for it.
        relay: the messages to that end; None where nobody keeps time.
        passage: of the messages, and those that spread the result, once they have left.
    """

    pieces: list[Piece]
    sent: int
    relay: Relay | None
    passage: Passage | None = None


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
        known("algorithm", algorithm, _ALGORITHMS)  # before slots are taken
        if isinstance(fabric, Fabric):
            self.fabric = fabric
        else:
            self.fabric = Fabric(whole("fabric", fabric, 1, MAX_RANKS, " workers, or a Fabric"))
        most = self.fabric.ranks - 1
        self._workers = range(most + 1) if ranks is None else wholes("ranks", ranks, 0, most)
        self._bounds: dict[tuple[str, Job], Bound] = {}
        self._slots = {"window": window, "job": job}
        self._group = self.fabric.group(self._workers, **self._slots)
        self._lock = Lock()  # of the group, which is another after a failure, and of the count
        self._open = True
        self.ranks = len(self._group.ranks)
        timed, machine = self.fabric.network is not None, self.fabric.machine
        self._hosts: Hosts | Counted = (
            Counted(machine)
            if self.fabric.timing_only
            else Hosts(machine, simd=self.fabric.simd, cycles=timed)
        )
        self._steady: set[KernelImage] = set()  # whose cycles are known not to depend on data
        self._algorithm = self._checked_algorithm(algorithm)
        self._seq = 0

    def close(self) -> None:
        """Give back what it has on the devices; what is under way there ends with an error."""
        with self._lock:
            self._open = False
            self._group.close()

    def __enter__(self) -> Self:
        """The communicator itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close it."""
        self.close()

    def chunk(self, image: KernelImage) -> int:
        """Elements of a full chunk of that op in the network; ops that read ``chunk`` count these.

        Raises:
            ArgumentError: it is no image.
        """
        return self._group.chunk(instance("image", image, KernelImage, "pass a KernelImage"))

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
        function("on_partial", on_partial)
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
        out: Out = None,
        preset: str | None = None,
        algorithm: str | None = None,
        partials: bool = False,
        seed: int = 0,
    ) -> Handle:
        """Begin a collective; several may be under way.

        Args:
            collective: "allreduce", "reduce", "reduce_scatter", "all_gather", "broadcast" or
                "barrier".
            arrays: one array per rank, all of one shape and dtype (with time="only" nothing else is
                looked at: an ``np.broadcast_to`` will do), or a 2-D array of rows; for
                broadcast, the root's array.  They need not be contiguous, and may have any number
                of elements, 0 too.  To be reduced they are of a format that the op takes.
            op: name of a built-in op, a :class:`nicemu.ReduceOp`, or a kernel image.
            root: of reduce and broadcast.
            out: one array per rank that takes the result, of its shape and dtype, or the rows of
                one array; contiguous or not.  It may be the input (in place) and overlap inputs,
                but not another rank's output.  None makes new arrays.
            preset: numerics: "wide", "per-hop" or "per-add"; None: the op's own, or "wide".
            algorithm: None takes the communicator's.
            partials: True keeps every device's partial sums in the result.
            seed: for stochastic ops.

        Returns:
            Handle; until it is done, inputs and outputs belong to it.

        Raises:
            ArgumentError: an argument does not fit, or the communicator is closed.
            ImageError: the op's image cannot be built.
        """
        begin = time.perf_counter()
        if not self._open:
            raise ArgumentError("the communicator is closed: make another")
        record = COLLECTIVES[known("collective", collective, COLLECTIVES)]
        root = whole("root", root, 0, self.ranks - 1)
        flag("partials", partials)
        seed = whole("seed", seed, 0, 2**64 - 1)
        chosen = self._algorithm if algorithm is None else self._checked_algorithm(algorithm)
        run = self._in_network if chosen == IN_NETWORK else partial(self._at_hosts, chosen)
        given = record.given(arrays, self.ranks, root)
        if given[root].dtype.hasobject:
            raise ArgumentError("arrays of Python objects: use numbers, which frames can carry")
        image = self._image(op, preset, given[0].dtype) if record.reduces else None
        dtype = image.formats.result.dtype if image else given[0].dtype
        gives, takes = record.stretches(self.ranks, root, given[root].size)
        shape = record.shape(given[root].shape, self.ranks)
        if self.fabric.timing_only:
            self._check_timing_only(image, out, partials)
            sizes = {x.size for x in given}
            zeros = {size: np.zeros(size, given[root].dtype) for size in sizes}
            inputs = [zeros[x.size] for x in given]
            values: list[np.ndarray | None] = [None] * self.ranks
            outputs = [np.empty(0, dtype)] * self.ranks
        else:
            values = record.targets(out, shape, dtype, self.ranks, root)
            inputs = [np.ascontiguousarray(x).reshape(-1) for x in given]
            outputs = staged(inputs, gives, values, takes)
        with self._lock:
            seq, self._seq = self._seq, self._seq + 1
        context = Context(seq=seq & 0xFFFFFFFF, group=self.ranks, seed=seed)
        call = _Call(record, image, inputs, outputs, gives, takes, context, root, partials)
        machine = self.fabric.machine
        return Handle(partial(_finished, call, machine, chosen, run(call), values, begin))

    # ---- arguments -------------------------------------------------------------------------------

    def _check_timing_only(self, image: KernelImage | None, out: Out, partials: bool) -> None:
        if out is not None or partials:
            raise ArgumentError(
                f"{'partials' if partials else 'out'} with time='only', where nothing has values: "
                "use time='packet'"
            )
        if image is not None and image not in self._steady:
            check_steady(image, self.fabric.machine)
            self._steady.add(image)

    def _checked_algorithm(self, algorithm: str) -> str:
        known("algorithm", algorithm, _ALGORITHMS)
        if algorithm != "auto":
            return algorithm
        return IN_NETWORK if len(self._group.names) > 1 else "ring"

    def _image(self, op: Op, preset: str | None, dtype: np.dtype) -> KernelImage:
        """One that the devices can run; of an op, the one that is made for them."""
        if isinstance(op, str):
            return kernel(op, dtype, preset, self.fabric.machine)
        if isinstance(op, ReduceOp):
            return op.image(dtype, preset, self.fabric.machine)
        instance("op", op, KernelImage, "name one, or pass a ReduceOp or a KernelImage")
        if item_of(op.element).dtype != dtype:
            raise ArgumentError(f"arrays of {dtype}: the image of {op.op} takes {op.element}")
        target_of(self.fabric.machine).check(op)
        return op

    # ---- in the network --------------------------------------------------------------------------

    def _in_network(self, call: _Call) -> Callable[[], _Work]:
        """Frames are under way when this returns; the rest is for the handle to drive."""
        with self._lock:
            if self._group.failed and self._open:
                self._group.settle()
                self._group.close()
                self._group = self.fabric.group(self._workers, **self._slots)
            group = self._group
        before = self.fabric.counters()
        exchange = Exchange(
            image=call.image,
            inputs=[x if x.size or call.image else None for x in call.inputs],
            outputs=[x if x.size else None for x in call.outputs],
            offsets=[takes.start for takes in call.takes],
            partials=call.partials and call.image is not None,
            context=call.context,
        )
        ticket = group.start(exchange)
        return partial(self._driven, call, group, ticket, before)

    def _driven(self, call: _Call, group: Group, ticket: Ticket, before: FabricCounters) -> _Work:
        try:
            for device in ticket:
                if call.partials:
                    yield from _pieces(group, ticket.partials()[device], ticket.began)
            if not ticket.exchange.whole:  # there is no chunk whose end could be told of
                yield from (_empty(group, raw) for raw in ticket.partials().values())
        except CollectiveError as error:
            lost = error.missing or error.waiting
            if not lost:
                raise
            raws = ticket.partials().values()
            who = ", ".join(f"rank{worker}" for worker in lost)
            what = "nothing comes from" if error.missing else "the result does not reach"
            others = len(lost) < len(group.ranks)
            remedy = "go on in a communicator of the others, or" if others else "go on"
            raise WorkerLostError(
                f"{call.record.name}: {what} {who}: {remedy} over links that lose less",
                missing=tuple(group.ranks.index(worker) for worker in lost),
                partials=gather(p for raw in raws for p in _pieces(group, raw, ticket.began)),
            ) from error
        shares: list[Share] = []
        if call.image and group.order is not None:
            names = {path: name for name, path in group.names.items()}
            shares.append(Share(range(call.inputs[0].size), group.order, names))
        assert ticket.lasted is not None
        return _Outcome(
            shares=tuple(shares),
            payload_bytes=_crossing(call, group),
            frames=self.fabric.counters() - before,
            time=ticket.lasted,
            spent=ticket.spent,
            path=ticket.path,
            bound=self._bound(IN_NETWORK, call, ticket.lasted),
        )

    def _bound(self, algorithm: str, call: _Call, time: float) -> float | None:
        """The least time that it could take, which the time that it took is held against."""
        if self.fabric.network is None:
            return None
        gives = tuple(x.nbytes for x in call.inputs)
        count = call.inputs[0].size if call.image else sum(gives)
        formats = call.image.formats if call.image else None
        job = Job(call.record, formats, gives, count, self.fabric.mtu, call.root)
        key = algorithm, job
        if (bound := self._bounds.get(key)) is None:  # of many ranks it takes a while
            if len(self._bounds) == BOUNDS:
                self._bounds.clear()
            bound = self._bounds[key] = bound_of(self.fabric, self._workers, algorithm, job)
        bound.check(time, f"{call.record.name} by {algorithm} of {self.ranks} ranks")
        return bound.time

    # ---- by the hosts ----------------------------------------------------------------------------

    def _at_hosts(self, algorithm: str, call: _Call) -> Callable[[], _Work]:
        if self.fabric.network is not None:
            self.fabric.check_relays()
        return partial(self._by_hosts, algorithm, call, [])

    def _by_hosts(self, algorithm: str, call: _Call, kept: list[_Merged]) -> _Work:
        """``kept``: what has been merged, when outputs are being written: that is not merged again,
        as they may lie over the inputs.
        """
        if not kept:
            kept.append((yield from self._merged(algorithm, call)))
        pieces, sent = kept[0].pieces, kept[0].sent
        for piece in pieces:
            has = range(piece.start, piece.stop)
            for rank, (takes, values) in enumerate(zip(call.takes, call.outputs, strict=True)):
                if common := _common(has, takes):
                    if values.size:  # else nothing has values
                        values[_inside(common, takes)] = piece.values[_inside(common, has)]
                    sent += len(common) * values.itemsize if rank != piece.rank else 0
        shares = [Share(range(p.start, p.stop), p.order, p.names) for p in pieces if call.image]
        passage = self._passed(algorithm, call, kept[0])
        if passage is None:
            return _Outcome(tuple(shares), sent)
        assert passage.lasted is not None
        time = passage.lasted
        bound = self._bound(algorithm, call, time)
        spent, path = passage.spent, passage.path
        return _Outcome(tuple(shares), sent, time=time, spent=spent, path=path, bound=bound)

    def _passed(self, algorithm: str, call: _Call, merged: _Merged) -> Passage | None:
        """Let virtual time pass until all messages are there; None where nobody keeps time."""
        relay = merged.relay
        if relay is None:
            return None
        if merged.passage is None:
            self._spread(algorithm, call, merged.pieces, relay)
            merged.passage = self.fabric.relay(relay, self._workers)
        merged.passage.wait()
        return merged.passage

    def _spread(self, algorithm: str, call: _Call, pieces: Sequence[Piece], relay: Relay) -> None:
        """Add the messages that bring pieces to all who take them."""
        takes = call.takes
        size, unit = 0, 1  # bytes of an element in a frame; elements there, of one of the array
        if not call.record.carries:
            takes = [TOKEN] * self.ranks
        elif call.image is not None:
            size = call.image.formats.result.size
        else:
            size, unit = 1, call.inputs[0].itemsize

        def give(source: int, to: int, start: int, stop: int, before: Sequence[int | None]) -> int:
            chunk = self.fabric.mtu // max(size, 1)
            elements = range(start * unit, stop * unit)
            return relay.add(Message(source, to, elements, chunk, size), before)

        ALGORITHMS[algorithm].spread(pieces, takes, give)

    def _merged(self, algorithm: str, call: _Call) -> Generator[Partial, None, _Merged]:
        """The finished pieces, where they are."""
        sent = 0
        relay = Relay() if self.fabric.network is not None else None
        how = ALGORITHMS[algorithm]
        if not call.record.carries:
            pieces = []
            if relay is not None:
                tokens = [np.zeros(len(TOKEN), np.uint8)] * self.ranks
                pieces = yield from _told(how.reduce(tokens, nothing_merged(relay)), False)
        elif call.image is None:
            pieces = [
                Piece(rank, gives.start, values, rank, {})
                for rank, (gives, values) in enumerate(zip(call.gives, call.inputs, strict=True))
            ]
        else:
            reduction = Reduction(call.image, call.context, self.fabric.mtu, relay)

            def merge(rank: int, pieces: Sequence[Piece], last: bool) -> Piece:
                nonlocal sent
                sent += sum(piece.values.nbytes for piece in pieces if piece.rank != rank)
                try:
                    return self._hosts.merge(reduction, rank, pieces, last)
                except (FaultError, ImageError, StatusError) as error:
                    fault = error.fault if isinstance(error, FaultError) else None
                    raise CollectiveError(f"rank{rank}: {error}", fault=fault) from error

            pieces = yield from _told(how.reduce(call.inputs, merge), call.partials)
        return _Merged(pieces, sent, relay)


def _pieces(group: Group, raw: RawPartial, begin: int) -> Iterator[Partial]:
    """What a device has of partial sums, by who is in them, in the order of merging."""
    node = group.order
    for child in group.names[raw.device]:
        node = node[child] if isinstance(node, tuple) else node
    merged = tuple(range(raw.workers)) if node is None else leaves(node)
    for elements, ranks, end in raw.pieces():
        among = set(ranks)
        values = raw.values[elements.start : elements.stop]
        contributors = tuple(rank for rank in merged if rank in among)
        yield Partial(raw.device, values, contributors, (elements,), (end - begin) / SECOND)


def _empty(group: Group, raw: RawPartial) -> Partial:
    """What a device has where there are no elements: the sum of all workers behind it."""
    behind = group.fabric.devices[raw.device].ranks
    workers = tuple(i for i, rank in enumerate(group.ranks) if rank in behind)
    return Partial(raw.device, raw.values, workers, (range(0),), 0.0)


def _crossing(call: _Call, group: Group) -> int:
    """Payload bytes on all links, each frame once: up to the root, and from there down to all."""
    links = len(call.inputs) + len(group.names) - 1
    depth = dict.fromkeys(range(len(call.inputs)), 1)
    for path, node in devices(group.order if group.order is not None else ()):
        depth |= {child: len(path) + 1 for child in node if isinstance(child, int)}
    if call.image is None:
        given = sum(depth[rank] * x.nbytes for rank, x in enumerate(call.inputs))
        return given + links * sum(x.nbytes for x in call.inputs)
    result = call.image.formats.result.size
    up = sum(x.nbytes for x in call.inputs)
    partial_ = (len(group.names) - 1) * call.image.formats.partial.size
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
    call: _Call,
    machine: Machine,
    algorithm: str,
    work: Callable[[], _Work],
    values: list[np.ndarray | None],
    begin: float,
) -> Generator[Partial, None, Result]:
    """Let the work go on to its end; the outputs go to where the caller wants them.  The partial
    sums are its handle's to keep.
    """
    outcome = yield from work()
    for output, array in zip(call.outputs, values, strict=True):
        if array is not None and not np.may_share_memory(output, array):
            array[...] = output.reshape(array.shape)
    return Result(
        values=values,
        collective=call.record.name,
        algorithm=algorithm,
        image=call.image,
        machine=machine,
        shares=outcome.shares,
        partials={},
        payload_bytes=outcome.payload_bytes,
        frames=outcome.frames,
        time=outcome.time,
        spent=outcome.spent,
        path=outcome.path,
        bound=outcome.bound,
        seconds=time.perf_counter() - begin,
    )


def _with_partials(result: Result, found: Sequence[Partial]) -> Result:
    """The result and its partial sums: in the order of the tree, where there is one."""
    places = {
        name: (-len(path), path) for share in result.shares for path, name in share.names.items()
    }
    if places:  # else the order was that of arrival
        found = sorted(found, key=lambda piece: places[piece.device])
    return replace(result, partials=gather(found))


def _common(a: range, b: range) -> range:
    return range(max(a.start, b.start), min(a.stop, b.stop))


def _inside(elements: range, of: range) -> slice:
    return slice(elements.start - of.start, elements.stop - of.start)
