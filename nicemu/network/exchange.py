"""An exchange: one collective of a group, as arrays, and as the C core has it.

Owns: the check of its arrays, its C description and the memory that this points to, records of
partial sums chunk by chunk.  What starts it and lets it end is fabric's.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from operator import index
from typing import Any

import numpy as np

from nicemu._nicemu import ffi
from nicemu.device.image import LEAVING, Context, KernelImage
from nicemu.device.nic import kinds_of
from nicemu.dtypes import Item
from nicemu.errors import ArgumentError
from nicemu.network.packet import element_of

__all__ = ["Exchange", "Job", "RawPartial", "rows"]


@dataclass
class Exchange:
    """One collective of a group, as the fabric runs it.  Until it ends, the arrays belong to it.

    Attributes:
        image: the op; None: payloads are moved and not added.
        inputs: per worker a 1-D contiguous array.  Reduced: all of one shape (count,), of the
            image's element dtype.  Moved: what the worker has of the whole, any dtype, or None for
            nothing; the whole are all of them, one after another.
        outputs: per worker where its part of the result goes, 1-D contiguous, or None.  It may be
            that worker's input, or the same elements of it, and lies over no other array.
        offsets: per worker the index in the whole of its output's first element; None: all 0.
        partials: True: keep the partial sums of every device.  The survivors' of chunks whose
            result was not made when an exchange fails are there anyway.
        context: of the whole's first element: its ``element`` and ``seed`` count.
    """

    image: KernelImage | None
    inputs: Sequence[np.ndarray | None]
    outputs: Sequence[np.ndarray | None]
    offsets: Sequence[int] | None = None
    partials: bool = False
    context: Context = field(default_factory=Context)

    @property
    def whole(self) -> int:
        """Elements of the whole array."""
        sizes = [x.size for x in self.inputs if x is not None]
        return sizes[0] if self.image else sum(sizes)

    def check(self, workers: int) -> None:
        """See to it that the arrays fit the op, each other and the number of workers.

        Raises:
            ArgumentError: they do not; it names the array.
        """
        if self.image is not None and not isinstance(self.image, KernelImage):
            raise ArgumentError(
                f"image is {type(self.image).__name__}: pass a KernelImage, or None"
            )
        formats = self.image.formats if self.image else None
        _check(self.inputs, workers, formats.element if formats else None, "input")
        _check(self.outputs, workers, formats.result if formats else None, "output")
        if self.image:
            sizes = {None if x is None else x.size for x in self.inputs}
            if len(sizes) > 1 or None in sizes:
                raise ArgumentError("inputs differ in shape, or one is None: pass one per worker")
        else:
            items = {x.itemsize for x in (*self.inputs, *self.outputs) if x is not None}
            if len(items) > 1:
                raise ArgumentError(f"arrays of items of {sorted(items)} bytes: use one dtype")
        if self.offsets is not None and len(self.offsets) != workers:
            raise ArgumentError(f"{len(self.offsets)} offsets for {workers} workers: one each")
        whole = self.whole
        if any(start < 0 or stop > max(whole, start) for start, stop in self.stretches()):
            raise ArgumentError(
                f"an output's offset and size go beyond the {whole} elements of the result"
            )

    def stretches(self) -> list[tuple[int, int]]:
        """Per worker the first element of its output in the whole, and the one behind its last."""
        offsets = [0] * len(self.outputs) if self.offsets is None else map(index, self.offsets)
        return [
            (start, start + (0 if out is None else out.size))
            for start, out in zip(offsets, self.outputs, strict=True)
        ]

    def reduction(
        self,
        image: KernelImage,
        entries: dict[str, list[int]],
        chunk: int,
        devices: Mapping[str, int],
    ) -> Job:
        """The C description of a reduction; the exchange is checked.

        Args:
            image: the op.
            entries: where it is in the devices' code memory, as :meth:`nicemu.Nic.place` says.
            chunk: elements of a full chunk.
            devices: name -> number of those that take part.
        """
        formats = image.formats
        parts = [
            _Part.of(formats.result, output, stretch, chunk, self.whole)
            for output, stretch in zip(self.outputs, self.stretches(), strict=True)
        ]
        records = self.records(image, chunk, devices) if self.partials else {}
        described = {
            "kinds": kinds_of(image, entries),
            "leave": [entries[name][1] for name in LEAVING],
            "types": [element_of(item).code for item in (formats.element, formats.partial)],
            "result_type": element_of(formats.result).code,
            "accumulator_bytes": formats.accumulator.size,
            "result_bytes": formats.result.size,
            "chunk": chunk,
            "count": self.whole,
        }
        return self._job(described, parts, records, devices)

    def movement(self, chunk: int) -> Job:
        """The C description of a movement, counted in bytes; the exchange is checked.

        Args:
            chunk: bytes of a full chunk.
        """
        item = next((x.itemsize for x in (*self.inputs, *self.outputs) if x is not None), 1)
        sizes = [0 if x is None else x.nbytes for x in self.inputs]
        blocks = ffi.new("uint64_t[]", [0, *accumulate(sizes)])
        described = {
            "kinds": [{"bytes": 1}, {}],
            "result_bytes": 1,
            "moved": 1,
            "chunk": chunk,
            "count": sum(sizes),
            # nothing to move: one empty chunk, for which all wait
            "blocks": blocks if sum(sizes) else ffi.NULL,
        }
        parts = [
            _Part(None, output, output, range(begin * item, end * item))
            for output, (begin, end) in zip(self.outputs, self.stretches(), strict=True)
        ]
        return self._job(described, parts, {}, {})

    def records(
        self, image: KernelImage, chunk: int, devices: Iterable[str]
    ) -> dict[str, RawPartial]:
        """Room for the partial sums of devices, in full chunks of so many elements."""
        workers, whole, item = len(self.inputs), self.whole, image.formats.partial
        chunks = -(-whole // chunk)
        return {
            name: RawPartial(
                device=name,
                item=item,
                stored=np.zeros(whole * item.size // item.stored.itemsize, item.stored),
                chunk=chunk,
                times=np.zeros(chunks, np.uint64),
                words=np.zeros((chunks, -(-workers // 64)), np.uint64),
                workers=workers,
            )
            for name in devices
        }

    def _job(
        self,
        described: dict[str, Any],
        parts: list[_Part],
        records: dict[str, RawPartial],
        devices: Mapping[str, int],
    ) -> Job:
        """The rest of the description."""
        pointers = {
            "inputs": _addresses(self.inputs),
            "outputs": _addresses([part.stored for part in parts]),
            "from": ffi.new("uint64_t[]", [part.span.start for part in parts]),
            "to": ffi.new("uint64_t[]", [part.span.stop for part in parts]),
            "records": rows(records, devices),
        }
        rest = {"workers": len(self.inputs), "context": list(self.context.pack())}
        handle = ffi.new("nicemu_exchange *", {**described, **pointers, **rest})
        return Job(handle, (described, pointers, list(self.inputs)), parts, records)


@dataclass(frozen=True)
class RawPartial:
    """The partial sums of one device, chunk by chunk.

    Attributes:
        device: its name.
        item: what partial sums consist of.
        stored: as devices have them: of one number shape (count,), else bytes; what no chunk says
            is there is 0.
        chunk: elements of a full chunk.
        times: per chunk, when it was there, in picoseconds; 0: it is not there.
        words: shape (chunks, words): who is in each chunk, bit w of a row = worker w of the group.
        workers: of the group.
    """

    device: str
    item: Item
    stored: np.ndarray = field(repr=False)
    chunk: int
    times: np.ndarray = field(repr=False)
    words: np.ndarray = field(repr=False)
    workers: int

    @property
    def values(self) -> np.ndarray:
        """Shape (count,), of the image's partial dtype."""
        return self.item.unpack(self.stored, self.chunk)

    @property
    def members(self) -> np.ndarray:
        """Shape (chunks, workers), bool: who is in each chunk."""
        bits = np.unpackbits(self.words.view(np.uint8), axis=1, bitorder="little")
        return bits[:, : self.workers].astype(bool)

    def pieces(self) -> Iterator[tuple[range, tuple[int, ...], int]]:
        """Stretches of elements that are there: which, of which ranks, and when the last was, in
        virtual picoseconds.
        """
        there, words = self.times != 0, self.words
        differ = (there[1:] != there[:-1]) | (words[1:] != words[:-1]).any(axis=1)
        edges = [0, *(1 + np.flatnonzero(differ)).tolist(), there.size]
        members, count = self.members, self.stored.nbytes // self.item.size
        for begin, end in pairwise(edges):
            if there[begin:end].any():
                elements = range(begin * self.chunk, min(end * self.chunk, count))
                ranks = tuple(np.flatnonzero(members[begin]).tolist())
                yield elements, ranks, int(self.times[begin:end].max())


@dataclass(frozen=True)
class _Part:
    """What a worker gets of the result: as the C core writes it, and as the caller has it.

    The core writes numbers, and bytes that are moved, straight into the caller's array; records
    are unpacked from whole chunks at the end.

    Attributes:
        item: of records what they consist of; else None.
        output: the caller's array, or None.
        stored: what the core writes to.
        span: which elements of the whole go there.
        begin: of records the index in ``stored`` of the output's first.
        chunk: elements of a full chunk.
    """

    item: Item | None
    output: np.ndarray | None
    stored: np.ndarray | None
    span: range
    begin: int = 0
    chunk: int = 1

    @classmethod
    def of(
        cls, item: Item, output: np.ndarray | None, stretch: tuple[int, int], chunk: int, whole: int
    ) -> _Part:
        """Of a result of items, a stretch of a whole that comes in chunks."""
        first, behind = stretch
        if output is None or item.scalar:
            return cls(None, output, output, range(first, behind))
        span = range(first // chunk * chunk, min(-(-behind // chunk) * chunk, whole))
        stored = np.zeros(len(span) * item.size, np.uint8)
        return cls(item, output, stored, span, first - span.start, chunk)

    def unpack(self) -> None:
        """Fill the caller's array with records."""
        if self.item is not None and self.output is not None and self.stored is not None:
            items = self.item.unpack(self.stored, self.chunk)
            self.output[...] = items[self.begin : self.begin + self.output.size]


@dataclass(frozen=True)
class Job:
    """An exchange as the C core has it.

    Attributes:
        handle: the ``nicemu_exchange *``.
        keep: memory that it points to.
        parts: where each worker's part of the result goes.
        records: device -> its partial sums, which the core writes; none where not asked for.
    """

    handle: Any
    keep: tuple[object, ...]
    parts: list[_Part]
    records: dict[str, RawPartial]

    def unpack(self) -> None:
        """The result is there: fill the callers' arrays."""
        for part in self.parts:
            part.unpack()


def rows(records: Mapping[str, RawPartial], devices: Mapping[str, int]) -> Any:
    """The C description of records, which must outlive it.

    Args:
        records: device -> its record.
        devices: name -> number, of these devices at least.
    """
    if not records:
        return ffi.NULL
    out = ffi.new("nicemu_record[]", 1 + max(devices.values()))
    for name, record in records.items():
        row = out[devices[name]]
        row.values = ffi.cast("void *", record.stored.ctypes.data)
        row.times = ffi.cast("uint64_t *", record.times.ctypes.data)
        row.members = ffi.cast("uint64_t *", record.words.ctypes.data)
    return out


def _check(arrays: Sequence[np.ndarray | None], workers: int, item: Item | None, what: str) -> None:
    if len(arrays) != workers:
        raise ArgumentError(f"{len(arrays)} {what}s for {workers} workers: one each")
    for i, array in enumerate(arrays):
        if array is None:
            continue
        good = isinstance(array, np.ndarray) and array.ndim == 1 and array.flags.c_contiguous
        if not good or array.dtype.hasobject or (item is not None and array.dtype != item.dtype):
            raise ArgumentError(
                f"{what} {i} is {getattr(array, 'dtype', type(array).__name__)} of shape "
                f"{getattr(array, 'shape', None)}: use a contiguous 1-D array"
                + f" of {item or 'what frames can carry'}"
            )
        if what == "output" and not array.flags.writeable:
            raise ArgumentError(f"output {i} is not writeable: pass another array")


def _addresses(arrays: Sequence[np.ndarray | None]) -> Any:
    return ffi.new(
        "void *[]",
        [ffi.NULL if a is None else ffi.cast("void *", a.ctypes.data) for a in arrays],
    )
