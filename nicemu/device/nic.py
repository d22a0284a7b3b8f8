"""The NIC: eight RISC-V cores, their scratchpad, and the image they run.

Owns: the memory map of the device, loading of images, handing packets to cores, and the results of
whole streams.  Slots and links are fabric's; the arithmetic is the image's alone.

Every core sees only its own memory, each region with its own permissions:

=============  =====================================  ===========
address        what                                   handlers may
=============  =====================================  ===========
0x0001_0000    image code, shared                     execute
0x1000_0000    scratchpad, one slice per core         read, write
0x3000_0000    context block and payload table        read
0x5000_0000    stack, one per core                    read, write
=============  =====================================  ===========
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import cache, wraps
from threading import RLock
from typing import Any, Concatenate, ParamSpec, TypeVar

import numpy as np

from nicemu import _core
from nicemu._core import Cores, Counters, Cycles, Stop
from nicemu._nicemu import ffi, lib
from nicemu.arguments import flag, function, instance, known, whole
from nicemu.compiler.target import target_of
from nicemu.device.banks import beats, waits
from nicemu.device.image import (
    ALIGNMENT,
    CONTEXT_SIZE,
    FAN_INS,
    LEAVING,
    MAX_CODE,
    REQUIRED,
    Context,
    Entry,
    Imaged,
    KernelImage,
)
from nicemu.device.machine import Machine
from nicemu.device.machine import machine as machine_of
from nicemu.dtypes import Format, Item, item_of
from nicemu.errors import ArgumentError, FaultError, ImageError, StatusError
from nicemu.tables import Table, Tabled

__all__ = ["CoreUse", "Handled", "Nic", "ReduceResult", "Stream"]

CODE = 0x0001_0000
SCRATCHPAD = 0x1000_0000
ARGUMENTS = 0x3000_0000
STACK = 0x5000_0000
PAGE = 4096
MOST_THREADS = 1 << 16
RECORD = 1 << 22  # accesses of a core in one reduction
LINE = 64  # alignment of what lies in a scratchpad slice
# most input between two calls of a progress callback, or looks at Ctrl-C
BATCH = 8 << 20  # bytes
PACKETS = 8192


@dataclass(frozen=True)
class Handled:
    """One handler call that returned.

    Attributes:
        status: what it returned in a0: 0, or a status that the op defines.
        accumulator: the accumulator afterwards, shape (count,), accumulator dtype.
        output: what `emit` or `finish` wrote, shape (count,); None for other entries.
        instructions: retired.
        elements: active vector elements.
        cycles: of this call; None when the device counts none.
    """

    status: int
    accumulator: np.ndarray
    output: np.ndarray | None
    instructions: int
    elements: int
    cycles: Cycles | None = None


@dataclass(frozen=True)
class CoreUse:
    """What one core did in a reduction.

    Attributes:
        core: its index.
        packets: payloads it merged.
        instructions: retired.
        elements: active vector elements.
        cycles: of its handler calls, one after the other; None when the device counts none.
    """

    core: int
    packets: int
    instructions: int
    elements: int
    cycles: Cycles | None = None


@dataclass(frozen=True)
class Stream:
    """What one child of a device sends: a worker's elements, or the partial sums of a device.

    Attributes:
        values: shape (count,), of the image's element dtype, or of its partial dtype.
        rank: of the worker; of partial sums, of the first worker in them.
        contributors: workers in the values.
        partial: True for partial sums, which are merged as they are; elements are lifted first.
    """

    values: np.ndarray
    rank: int = 0
    contributors: int = 1
    partial: bool = False


@dataclass(frozen=True, repr=False)
class ReduceResult(Tabled):
    """A reduction of streams into one.

    Attributes:
        values: shape (count,), the image's result dtype; its partial dtype when `emit` wrote them.
        packets: payloads merged by all cores.
        bytes_in: bytes of all input streams.
        seconds: host time of the reduction, not emulated time.
        cores: what each core did.
        chunk: elements of a full packet.
        packet_cycles: of the handlers of the packets at each position; None when the device counts
            none.
    """

    values: np.ndarray
    packets: int
    bytes_in: int
    seconds: float
    cores: tuple[CoreUse, ...]
    chunk: int
    packet_cycles: np.ndarray | None

    def tables(self) -> tuple[Table, ...]:
        """For people: a row per core."""
        head = (
            f"{self.values.size:,} elements of {self.values.dtype} from {self.packets:,} packets, "
            f"{self.bytes_in:,} bytes in {self.seconds:.3f} s"
        )
        columns = ["core", "packets", "instructions", "elements"]
        rows = [[c.core, c.packets, c.instructions, c.elements] for c in self.cores]
        if self.cores[0].cycles is not None:
            columns += ["cycles", *self.cores[0].cycles.terms]
            for row, core in zip(rows, self.cores, strict=True):
                if core.cycles is not None:
                    row += [core.cycles.total, *core.cycles.terms.values()]
        return (Table(head, columns, rows),)


@dataclass(frozen=True)
class _Layout:
    """Offsets in a scratchpad slice; the accumulator is at 0."""

    payloads: int
    destination: int
    room: int


def kinds_of(image: KernelImage, entries: dict[str, list[int]]) -> list[dict[str, Any]]:
    """The two nicemu_kind of the core: elements and partial sums, which entries take them.

    Args:
        image: the op.
        entries: what :meth:`Nic.place` says of it.
    """
    return [
        {
            "fresh": entries[fresh],
            "more": entries[more],
            "whole": [entries[f"{fresh}_{leaving}"] for leaving in LEAVING],
            "bytes": item_of(name).size,
        }
        for fresh, more, name in (("first", "acc", image.element), ("load", "merge", image.partial))
    ]


@cache
def _variants(name: str) -> tuple[tuple[int, str], ...]:
    """Fan-ins, and what the variant of an entry is called that has it."""
    return tuple((k, str(replace(Entry.of(name), payloads=k))) for k in (1, *FAN_INS))


def _array(values: object, what: str) -> np.ndarray:
    if not isinstance(values, np.ndarray):
        raise ArgumentError(f"{what} is of type {type(values).__name__}: pass a numpy array")
    return values


def _checked_context(context: Context | None) -> Context:
    """What handlers may know; by default one contributor."""
    if context is None:
        return Context()
    instance("context", context, Context, "pass a nicemu.Context").pack()  # its fields
    return context


_P = ParamSpec("_P")
_R = TypeVar("_R")


def _one_at_a_time(
    method: Callable[Concatenate[Nic, _P], _R],
) -> Callable[Concatenate[Nic, _P], _R]:
    """A method that waits until no other thread is inside one: the C core trusts in that."""

    @wraps(method)
    def locked(self: Nic, /, *args: _P.args, **kwargs: _P.kwargs) -> _R:
        with self._lock:
            return method(self, *args, **kwargs)

    return locked


def _host_threads() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class Nic:
    """A device whose cores run one kernel image.

    Threads may share it; their calls follow one another.

    Example:
        >>> nic = nicemu.Nic()
        >>> nic.load(nicemu.kernel("sum", "bfloat16"))
        >>> nic.reduce([worker0, worker1]).values
    """

    def __init__(
        self,
        machine: str | Machine = "card",
        *,
        threads: int | None = None,
        simd: str = "auto",
        cycles: bool = False,
        conflicts: bool = False,
    ) -> None:
        """Make a device with empty memory.

        Args:
            machine: preset name or :class:`nicemu.Machine`.
            threads: host threads for independent cores; None = one per host CPU.  Results do not
                depend on it.
            simd: host path: "auto", "portable", "avx2" or "avx512".  Results do not depend on it.
            cycles: count cycles by the machine's timing.  No other result changes, but host time.
            conflicts: count cycles, and those that cores of a cluster wait for each other at the
                banks of their scratchpad.  Each access is recorded, which takes host time and
                memory: for reductions of up to some millions of accesses.

        Raises:
            ArgumentError: an argument is out of range.
        """
        self.machine = machine_of(machine)
        wanted = _host_threads() if threads is None else whole("threads", threads, 1, MOST_THREADS)
        self.threads = min(wanted, self.machine.cores)
        m = self.machine
        self._target = target_of(m)
        self._cores = Cores(m.cores, m.vlen, simd=simd, extensions=self._target.extensions)
        self._conflicts = flag("conflicts", conflicts)
        self._counting = flag("cycles", cycles) or self._conflicts
        if self._counting:
            self._cores.start_clock(**asdict(m.timing))
        self._lock = RLock()  # a progress callback may look at the device
        self._telling = False  # inside such a callback
        self._image: KernelImage | None = None
        self._placed: dict[bytes, int] = {}  # code -> its address
        self._code_end = CODE
        self._cores.map(CODE, MAX_CODE, _core.R | _core.X)
        self._strides = (m.scratchpad, PAGE, m.stack + PAGE)
        self._private: list[np.ndarray] = []  # scratchpads and stacks
        for core in range(m.cores):
            scratch, arguments, stack = self._bases(core)
            self._private.append(self._cores.map(scratch, m.scratchpad, _core.R | _core.W, [core]))
            self._cores.map(arguments, PAGE, _core.R, [core])
            self._private.append(self._cores.map(stack, m.stack, _core.R | _core.W, [core]))

    def _bases(self, core: int) -> tuple[int, int, int]:
        scratch, arguments, stack = self._strides
        return SCRATCHPAD + core * scratch, ARGUMENTS + core * arguments, STACK + core * stack

    @property
    def image(self) -> KernelImage:
        """The loaded image.

        Raises:
            ImageError: none is loaded.
        """
        if self._image is None:
            raise ImageError("no image is loaded: call Nic.load(nicemu.kernel(op, element)) first")
        return self._image

    @_one_at_a_time
    def load(
        self,
        image: KernelImage | Imaged,
        *,
        element: str | Format | None = None,
        preset: str | None = None,
    ) -> None:
        """Put an image into the code memory of all cores, in place of the one before.

        Registers, scratchpads and stacks are cleared: an image cannot see what another left.

        Args:
            image: a kernel image, or a :class:`nicemu.ReduceOp`, whose image for this machine is
                taken.
            element, preset: of the op's image; None: the op's own.

        Raises:
            ArgumentError: it is neither, or what :meth:`nicemu.ReduceOp.image` says of element and
                preset.
            ImageError: the cores lack an extension that the image needs.
            OpError: the op cannot be compiled for these cores.
        """
        self._check_idle()
        if not isinstance(image, KernelImage) and isinstance(image, Imaged):
            image = image.image(element, preset, self.machine)
        self._check_image(image)
        if self._placed:
            self._cores.write(CODE, bytes(self._code_end - CODE))
            self._placed.clear()
            self._code_end = CODE
            for memory in self._private:
                memory.fill(0)
            for core in range(self.machine.cores):
                self._cores.reset(0, core)
        self.place(image)
        self._image = image

    @_one_at_a_time
    def place(self, image: KernelImage) -> dict[str, list[int]]:
        """Put an image into code memory beside those that are there; the same code only once.

        Returns:
            The addresses of its entries: name without fan-in ("acc", "first_finish") -> list by
            fan-in, 0..8 payloads; 0 where there is no such variant, or the machine takes fewer
            payloads at once.

        Raises:
            ArgumentError: it is no image.
            ImageError: code memory is full, or the cores lack an extension that the image needs.
        """
        self._check_image(image)
        if image.code not in self._placed:
            at = -(-self._code_end // ALIGNMENT) * ALIGNMENT
            end = at + len(image.code)
            if end > CODE + MAX_CODE:
                raise ImageError(
                    f"image of {image.op} has {len(image.code)} bytes: {CODE + MAX_CODE - at} of "
                    f"{MAX_CODE} bytes of code memory are free: load it, which removes the others"
                )
            self._cores.write(at, image.code)
            self._placed[image.code] = at
            self._code_end = end
        whole = (f"{fresh}_{leaving}" for fresh in ("first", "load") for leaving in LEAVING)
        return {name: self._entries(image, name) for name in (*REQUIRED, *whole)}

    @property
    def cores(self) -> Cores:
        """The harts and their memory, for the fabric, which runs handlers from C."""
        return self._cores

    def description(self) -> dict[str, Any]:
        """The cores and their memory, as fields that C structs of a device have in common."""
        _, arguments, stack = self._bases(0)
        return {
            "scratch_stride": self._strides[0],
            "arguments": arguments,
            "arguments_stride": self._strides[1],
            "stack_top": stack + self.machine.stack,
            "stack_stride": self._strides[2],
            "budget": self.machine.budget,
        }

    @_one_at_a_time
    def read(self, address: int, size: int, core: int = 0) -> bytes:
        """Memory as core ``core`` addresses it.

        Raises:
            ArgumentError: not all inside one region of that core.
        """
        return self._cores.read(address, size, self._checked(core))

    @_one_at_a_time
    def write(
        self, address: int, data: bytes | bytearray | memoryview | np.ndarray, core: int = 0
    ) -> None:
        """Write memory as core ``core`` addresses it, whatever the handler's permissions.

        Of an array, its bytes in C order.

        Raises:
            ArgumentError: not all inside one region of that core.
        """
        self._check_idle()
        self._cores.write(address, data, self._checked(core))

    @_one_at_a_time
    def counters(self, core: int) -> Counters:
        """What a core has done since the device was made or :meth:`clear_counters` was called."""
        return self._cores.counters(self._checked(core))

    @_one_at_a_time
    def clear_counters(self) -> None:
        """Start counting from zero on every core."""
        self._check_idle()
        for core in range(self.machine.cores):
            self._cores.clear_counters(core)

    def _check_image(self, image: object) -> None:
        """It is one, and for cores like these."""
        self._target.check(
            instance("image", image, KernelImage, "pass a nicemu.KernelImage or ReduceOp")
        )

    def _check_idle(self) -> None:
        """The rest of a reduction would go on with what a callback has changed."""
        if self._telling:
            raise ArgumentError("the device is at work: do this after Nic.reduce has returned")

    def _checked(self, core: int) -> int:
        return whole("core", core, 0, self.machine.cores - 1)

    # ---- one handler call ------------------------------------------------------------------------

    @_one_at_a_time
    def handle(
        self,
        entry: str,
        payloads: Sequence[np.ndarray] = (),
        *,
        accumulator: np.ndarray | None = None,
        count: int | None = None,
        core: int = 0,
        context: Context | None = None,
    ) -> Handled:
        """Run one entry of the image on one core, as a packet's arrival would.

        Args:
            entry: name of an entry, e.g. "first", "acc4", "finish".
            payloads: 1-D arrays of equal length, in child order (none for emit and finish).
            accumulator: written before the call; None leaves what the last call left.
            count: elements; default: the length of the payloads or of the accumulator.
            core: which core.
            context: what the handler may know; default: one contributor.

        Raises:
            ArgumentError: no such entry, core or fan-in, or arrays that do not fit.
            FaultError: the handler trapped or used up its budget.
        """
        self._check_idle()
        image = self.image
        known("entry", entry, image.entries)
        formats = image.formats
        does = Entry.of(entry)
        wanted = does.payloads
        instance("payloads", payloads, (Sequence, np.ndarray), "list the arrays")
        if len(payloads) != wanted:
            raise ArgumentError(f"entry {entry!r} with {len(payloads)} payloads: it takes {wanted}")
        if count is None:
            first = payloads[0] if wanted else accumulator
            if first is None:
                raise ArgumentError("count is not given: pass count, payloads or accumulator")
            count = _array(first, "a payload or accumulator").size
        count = whole("count", count, 0, self.machine.scratchpad)
        core, context = self._checked(core), _checked_context(context)
        context.check(does)
        scratch, arguments, stack = self._bases(core)
        payload = formats.partial if does.partials else formats.element
        layout = self._layout(count, image, wanted, payload)
        if accumulator is not None:
            self._put(scratch, accumulator, formats.accumulator, count, core)
        pointers = [scratch + layout.payloads + i * layout.room for i in range(wanted)]
        for pointer, values in zip(pointers, payloads, strict=True):
            self._put(pointer, values, payload, count, core)
        if does.leaving:
            pointers.append(scratch + layout.destination)
        table = b"".join(p.to_bytes(8, "little") for p in pointers)
        self._cores.write(arguments, context.pack() + table, core)
        before = self._cycles(core)
        stop = self._cores.call(
            self._placed[image.code] + image.entries[entry],
            (scratch, arguments + CONTEXT_SIZE, count, arguments),
            sp=stack + self.machine.stack,
            budget=self.machine.budget,
            hart=core,
        )
        self._raise_fault(stop, f"entry {entry!r} of {image.op}")
        output = None
        if does.leaving:
            output = self._get(pointers[-1], getattr(formats, LEAVING[does.leaving]), count, core)
        return Handled(
            status=int(self._cores.x(core)[10]),
            accumulator=self._get(scratch, formats.accumulator, count, core),
            output=output,
            instructions=stop.instructions,
            elements=stop.elements,
            cycles=before and self._spent(core, before),
        )

    def _cycles(self, core: int) -> Cycles | None:
        """What a core's clock has counted; None: it has none."""
        return self._cores.cycles(core) if self._counting else None

    def _spent(self, core: int, before: Cycles) -> Cycles:
        """What it has counted since it said `before`."""
        return self._cores.cycles(core) - before

    def _begin_record(self) -> list[np.ndarray]:
        """Of what each core asks of memory, from now on; none where nobody wants to know."""
        if not self._conflicts:
            return []
        rooms = [np.empty(RECORD, _core.ACCESS) for _ in range(self.machine.cores)]
        for core, room in enumerate(rooms):
            self._cores.record_accesses(room, core)
        return rooms

    def _end_record(self, rooms: list[np.ndarray]) -> list[int]:
        """Cycles that each core has waited at the banks."""
        m = self.machine
        if not rooms:
            return [0] * m.cores
        counts = [self._cores.accesses(core) for core in range(m.cores)]
        for core in range(m.cores):
            self._cores.record_accesses(None, core)
        if max(counts) > RECORD:
            raise ArgumentError(
                f"a core made {max(counts):,} accesses to memory, of which {RECORD:,} can be "
                "recorded: reduce less at a time, or without conflicts=True"
            )
        size = m.cores // m.clusters
        asked = [room[:count] for room, count in zip(rooms, counts, strict=True)]
        return [w for i in range(0, m.cores, size) for w in waits(asked[i : i + size], m)]

    @_one_at_a_time
    def asked(
        self,
        streams: Sequence[np.ndarray | Stream],
        *,
        payload: int = 1024,
        leave: str = "finish",
        context: Context | None = None,
    ) -> np.ndarray:
        """What the handlers ask of the banks that reduce one packet of each stream, when they are
        alone and their code is fetched.

        Args:
            streams: as for :meth:`reduce`, not longer than a packet.
            payload, leave, context: as for :meth:`reduce`.

        Returns:
            Shape (n,), dtype nicemu._core.BEAT, by ascending cycle from the first handler's begin.

        Raises:
            ArgumentError: the device counts no cycles, or a stream is longer than a packet.
            And what :meth:`reduce` raises.
        """
        if not self._counting:
            raise ArgumentError("this device counts no cycles: make a Nic with cycles=True")

        def reduced() -> ReduceResult:
            return self.reduce(streams, payload=payload, leave=leave, context=context)

        room, conflicts = np.empty(RECORD, _core.ACCESS), self._conflicts
        try:
            self._conflicts = False  # it would have a record of its own
            first = reduced()  # fetches the code
            if first.values.size > first.chunk:
                raise ArgumentError(
                    f"streams of {first.values.size:,} elements: pass one packet of each, at most "
                    f"{first.chunk:,}"
                )
            self._cores.record_accesses(room)
            reduced()
            count = min(self._cores.accesses(), RECORD)
        finally:
            self._cores.record_accesses(None)
            self._conflicts = conflicts
        return beats(room[:count], self.machine)

    def _put(self, address: int, values: np.ndarray, item: Item, count: int, core: int) -> None:
        values = _array(values, "a payload or accumulator")
        if values.dtype != item.dtype or values.shape != (count,):
            raise ArgumentError(
                f"array of shape {values.shape} and dtype {values.dtype}: this entry takes "
                f"({count},) of {item}"
            )
        packed = item.pack(np.ascontiguousarray(values), max(count, 1))
        self._cores.write(address, packed.tobytes(), core)

    def _get(self, address: int, item: Item, count: int, core: int) -> np.ndarray:
        data = self._cores.read(address, count * item.size, core)
        stored = np.frombuffer(data, item.stored).copy()
        return item.unpack(stored, max(count, 1))

    def _raise_fault(self, stop: Stop, context: str) -> None:
        fault = stop.fault()
        if fault is not None:
            raise FaultError(fault, context)

    # ---- whole streams ---------------------------------------------------------------------------

    def _layout(self, count: int, image: KernelImage, payloads: int, payload: Item) -> _Layout:
        """Where accumulator, payloads and destination of a chunk lie in a scratchpad slice."""
        m = self.machine
        room = max(-(-count * payload.size // LINE) * LINE, LINE)
        formats = image.formats
        accumulator = -(-count * formats.accumulator.size // LINE) * LINE
        slots = max(payloads, 1)
        destination = accumulator + slots * room
        leaving = max(formats.partial.size, formats.result.size)
        total = destination + count * leaving
        if slots > m.max_fan_in:
            raise ArgumentError(f"{payloads} payloads: this machine takes {m.max_fan_in} at once")
        if count < 0 or total > m.scratchpad:
            raise ArgumentError(
                f"chunk of {count} elements needs {total} bytes of scratchpad: a core has "
                f"{m.scratchpad}"
            )
        return _Layout(accumulator, destination, room)

    @_one_at_a_time
    def reduce(
        self,
        streams: Iterable[np.ndarray | Stream],
        *,
        payload: int = 1024,
        out: np.ndarray | None = None,
        leave: str = "finish",
        context: Context | None = None,
        statuses: np.ndarray | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> ReduceResult:
        """Reduce streams into one, element by element, in the order of the list.

        The streams are cut into packets of ``payload`` bytes; chunk c (the packets at one position)
        is reduced by core c mod cores, so the result does not depend on host threads.

        Args:
            streams: 1-D arrays of equal length and of the image's element dtype, one per worker;
                or the rows of a 2-D array; or :class:`Stream`, which may hold partial sums.
            payload: bytes of a full packet's payload, at most the machine's ``max_payload``; the
                widest of what comes in and goes out is counted.
            out: where to put the result: 1-D, contiguous, of the result's dtype.  It may be
                one of the streams; an exception leaves it partly written.  None makes a new array
                of zeros, whose untouched pages cost the host about as much time as the rest.
            leave: the entry that writes the result: "finish", or "emit" for partial sums.
            context: what handlers may know; ``child`` and ``element`` are those of the first
                stream's first element and are counted on from there, as is ``rank`` over plain
                arrays; ``chunk`` and ``contributors`` are counted here, ``group`` is at least the
                number of workers in the streams.
            statuses: one uint64 for each packet's position, filled with the status that a handler
                returned there, else 0.  The rest goes on; elements of such a packet are not
                written.  None: the first status ends the reduction.
            progress: called now and then with the number of elements done so far.

        Returns:
            ReduceResult; ``values`` has the image's result dtype, or its partial dtype.

        Raises:
            ArgumentError: no stream, or arrays, ``out`` or payload that do not fit.
            FaultError: a handler trapped or used up its budget (of several: the first chunk).
            ImageError: no image is loaded.
            StatusError: the op's code raised an exception, or a handler returned a status, and
                ``statuses`` is None.
        """
        self._check_idle()
        image = self.image
        known("leave", leave, LEAVING)
        leaving = getattr(image.formats, LEAVING[leave])
        function("progress", progress)
        context = _checked_context(context)
        inputs = self._inputs(streams, context)
        widest = max(
            image.formats.row_bytes(partials=False),
            leaving.size,
            *(s.values.itemsize for s in inputs),
        )
        payload = whole("payload", payload, widest, self.machine.max_payload, " bytes")
        count, chunk = int(inputs[0].values.size), payload // widest
        # zeros: a handler need not write all of its destination, and sees what is there
        values = np.zeros(count, leaving.dtype) if out is None else out
        self._check_result(values, inputs, leaving)
        raw = values if leaving.scalar else np.zeros(count * leaving.size, np.uint8)
        workers = sum(s.contributors for s in inputs)
        context = replace(context, group=max(context.group, workers))
        job, keep = self._job(inputs, raw, leaving, chunk, list(LEAVING).index(leave), context)
        chunks = -(-count // chunk)
        if statuses is not None:
            self._take_statuses(job, statuses, chunks)
        cycles = np.zeros(chunks, np.uint64) if self._counting else None
        if cycles is not None:
            job.cycles = ffi.cast("uint64_t *", cycles.ctypes.data)
        before = [(self._cores.work(i), self._cycles(i)) for i in range(self.machine.cores)]
        rooms = self._begin_record()
        batch = max(self.machine.cores, min(BATCH // payload, PACKETS) // len(inputs))
        start = time.perf_counter()
        with self._spread() as spread:
            for begin in range(0, chunks, batch):
                end = min(begin + batch, chunks)
                self._run_batch(spread, job, (keep, raw, cycles), begin, end)
                if progress is not None:
                    self._telling = True
                    try:
                        progress(min(end * chunk, count))
                    finally:
                        self._telling = False
        if raw is not values:
            values[...] = leaving.unpack(raw, chunk)
        seconds = time.perf_counter() - start
        lost = self._end_record(rooms)
        return ReduceResult(
            values=values,
            packets=chunks * len(inputs),
            bytes_in=sum(s.values.nbytes for s in inputs),
            seconds=seconds,
            cores=tuple(
                CoreUse(
                    core=i,
                    packets=len(range(i, chunks, self.machine.cores)) * len(inputs),
                    instructions=instructions - was[0],
                    elements=elements - was[1],
                    cycles=clock and self._spent(i, clock).waiting(lost[i]),
                )
                for i, (was, clock) in enumerate(before)
                for instructions, elements in [self._cores.work(i)]
            ),
            chunk=chunk,
            packet_cycles=cycles,
        )

    def _inputs(self, given: Iterable[np.ndarray | Stream], context: Context) -> list[Stream]:
        image = self.image
        instance("streams", given, Iterable, "list one array per worker")
        streams = [
            s if isinstance(s, Stream) else Stream(_array(s, f"stream {i}"), context.rank + i)
            for i, s in enumerate(given)
        ]
        if not streams:
            raise ArgumentError("no streams: pass one array per worker")
        for i, stream in enumerate(streams):
            values = _array(stream.values, f"stream {i}")
            flag(f"stream {i}: partial", stream.partial)
            item = item_of(image.partial if stream.partial else image.element)
            if (
                values.ndim != 1
                or values.dtype != item.dtype
                or values.size != streams[0].values.size
            ):
                what = "partial sums" if stream.partial else "elements"
                raise ArgumentError(
                    f"stream {i} has shape {values.shape} and dtype {values.dtype}: the image "
                    f"takes 1-D arrays of {item} as {what}, all of {streams[0].values.size}"
                )
            for name in ("rank", "contributors"):
                whole(f"stream {i}: {name}", getattr(stream, name), 0, 2**32 - 1)
        return [replace(s, values=np.ascontiguousarray(s.values)) for s in streams]

    @staticmethod
    def _take_statuses(job: Any, statuses: np.ndarray, chunks: int) -> None:
        """Have the core write them."""
        _array(statuses, "statuses")
        if statuses.dtype != np.uint64 or statuses.shape != (chunks,):
            raise ArgumentError(
                f"statuses has shape {statuses.shape} and dtype {statuses.dtype}: there are "
                f"({chunks},) packets of each stream, of uint64"
            )
        if not (statuses.flags.c_contiguous and statuses.flags.writeable):
            raise ArgumentError("statuses is not contiguous or not writeable: pass a plain array")
        statuses.fill(0)
        job.statuses = ffi.cast("uint64_t *", statuses.ctypes.data)

    def _check_result(self, out: np.ndarray, inputs: list[Stream], leaving: Item) -> None:
        _array(out, "out")
        count = inputs[0].values.size
        if out.shape != (count,) or out.dtype != leaving.dtype:
            raise ArgumentError(
                f"out has shape {out.shape} and dtype {out.dtype}: the result is "
                f"({count},) of {leaving}"
            )
        if not (out.flags.c_contiguous and out.flags.writeable):
            raise ArgumentError("out is not contiguous or not writeable: pass a plain array")
        for i, stream in enumerate(inputs):
            values = stream.values
            same = out.ctypes.data == values.ctypes.data and out.itemsize == values.itemsize
            if not same and np.may_share_memory(out, values):
                raise ArgumentError(
                    f"out overlaps stream {i} in part: pass the same array, or another"
                )

    def _entries(self, image: KernelImage, name: str) -> list[int]:
        """Addresses of the entry and its fan-in variants, by fan-in; 0 = there is none."""
        entries, table = image.entries, [0] * 9
        for k, entry in _variants(name):
            if entry in entries and k <= self.machine.max_fan_in:
                table[k] = self._placed[image.code] + entries[entry]
        return table

    def _job(
        self,
        inputs: list[Stream],
        raw: np.ndarray,
        leaving: Item,
        chunk: int,
        leave: int,
        context: Context,
    ) -> tuple[Any, list[object]]:
        """The C description of a reduction, and what must outlive it."""
        image = self.image
        items = [item_of(image.partial if s.partial else image.element) for s in inputs]
        widest = max(items, key=lambda item: item.size)
        data = [item.pack(s.values, chunk) for item, s in zip(items, inputs, strict=True)]
        layout = self._layout(chunk, image, min(len(inputs), self.machine.max_fan_in), widest)
        scratch, _, _ = self._bases(0)
        rows = ffi.new(
            "nicemu_input[]",
            [
                {
                    "data": ffi.cast("void *", values.ctypes.data),
                    "kind": lib.NICEMU_PARTIALS if s.partial else lib.NICEMU_ELEMENTS,
                    "rank": s.rank,
                    "contributors": s.contributors,
                }
                for s, values in zip(inputs, data, strict=True)
            ],
        )
        entries = self.place(image)
        job = ffi.new(
            "nicemu_reduction *",
            {
                "kinds": kinds_of(image, entries),
                "leave": [entries[name][1] for name in LEAVING],
                "leaving": leave,
                "accumulator": scratch,
                "payloads": scratch + layout.payloads,
                "destination": scratch + layout.destination,
                "payload_room": layout.room,
                **self.description(),
                "context": list(context.pack()),
                "leaving_bytes": leaving.size,
                "streams": len(inputs),
                "count": inputs[0].values.size,
                "chunk": chunk,
                "inputs": rows,
                "output": ffi.cast("void *", raw.ctypes.data),
            },
        )
        return job, [rows, data]

    @contextmanager
    def _spread(self) -> Iterator[Callable[..., Iterable[Any]]]:
        """A `map` over the host threads; one needs no other than the caller's."""
        if self.threads == 1:
            yield map
            return
        with ThreadPoolExecutor(self.threads) as pool:
            yield pool.map

    def _run_batch(
        self,
        spread: Callable[..., Iterable[Any]],
        job: Any,
        keep: object,
        begin: int,
        end: int,
    ) -> None:
        # `keep`: held by the thread, which Ctrl-C may leave running behind the caller's back
        def run(thread: int, keep: object = keep) -> Any:
            mask = sum(1 << i for i in range(thread, self.machine.cores, self.threads))
            out = ffi.new("nicemu_reduction_end *")
            code = lib.nicemu_reduce(self._cores.handle, job, mask, begin, end, out)
            if code < 0:
                raise ArgumentError(f"reduction of chunks {begin}..{end - 1}: C core error {code}")
            return out

        ends = list(spread(run, range(self.threads)))
        failed = [e for e in ends if e.stop.reason != _core.RETURN or e.status]
        if not failed:
            return
        worst = min(failed, key=lambda e: e.chunk)
        what = f"chunk {worst.chunk} of {self.image.op}"
        self._raise_fault(_core.stop_of(worst.chunk % self.machine.cores, worst.stop), what)
        raise StatusError(f"{what}: {self.image.status_text(worst.status)}", worst.status)
