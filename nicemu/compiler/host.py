"""An op's kernels on the host: the IR of its image, for another processor.

Owns: calling them on arrays, and the conversions that LLVM expects of a host's run-time library.
A second answer for checks and for authors; nothing in here takes part in a reduction.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeGuard

import numpy as np

from nicemu.arguments import known, whole
from nicemu.compiler.compile import FunctionSource, kernels_of
from nicemu.compiler.llvm import on_host
from nicemu.device.image import LEAVING, Context, Entry, Formats
from nicemu.dtypes import Format, Item, format_of
from nicemu.errors import ArgumentError, StatusError
from nicemu.order import Order, Path, leaves

__all__ = ["HostCall", "HostKernels", "arrays", "canonical"]


#: fields of the context that only devices know
_OF_DEVICES = {"seq", "chunk", "device"}
MOST_ITEMS = 1 << 40  # of a call


@dataclass(frozen=True)
class HostCall:
    """A call that returned.  NaNs are canonical: which one is computed differs between processors.

    Attributes:
        status: 0, or a status that the op defines.
        accumulator: the accumulator afterwards, shape (count,), accumulator dtype.
        output: what `emit` or `finish` wrote, shape (count,); None for other entries.
    """

    status: int
    accumulator: np.ndarray
    output: np.ndarray | None


class HostKernels:
    """The entries of an op's image, of the same IR, as functions of the host.

    Attributes:
        name: of the op.
        formats: what they take and give.
        entries: their names.
        statuses: what it means when one returns 1, 2, ...
        reads: fields of the context that they use.
    """

    def __init__(self, name: str, source: FunctionSource, formats: Formats) -> None:
        """Compile them.

        Args:
            name: of the op.
            source: its functions.
            formats: what they are made for.

        Raises:
            OpError: the op cannot be compiled.
            ImageError: llvmlite or numba is missing.
        """
        op, kernels = kernels_of(name, source, formats)
        symbols = kernels.symbols
        text = kernels.module(dict.fromkeys(kernels.functions))  # vectors are the cores'
        library = "".join(_narrowing(*row) for row in _NARROWING) + _WIDENING
        kept = {*symbols.values(), *(row[0] for row in _NARROWING), "__extendhfsf2"}
        self._engine, addresses = on_host([op.ir, text, library], kept, name)
        pointer, count = ctypes.c_void_p, ctypes.c_int64
        prototype = ctypes.CFUNCTYPE(ctypes.c_int64, pointer, pointer, count, pointer)
        self._functions = {entry: prototype(addresses[s]) for entry, s in symbols.items()}
        self.name = name
        self.formats = formats
        self.entries = tuple(symbols)
        self.statuses = op.statuses
        self.reads = op.reads

    def call(
        self,
        entry: str,
        payloads: Sequence[np.ndarray] = (),
        *,
        accumulator: np.ndarray | None = None,
        count: int | None = None,
        context: Context | None = None,
    ) -> HostCall:
        """Run one entry; arguments as :meth:`nicemu.Nic.handle`'s.

        ``accumulator`` None is one of zeros.  An op that loops forever does so here, too.

        Raises:
            ArgumentError: no such entry, or arrays that do not fit.
        """
        known("entry", entry, self.entries)
        _check_context(context)
        payloads = _listed(payloads, "payloads")
        formats = self.formats
        does = Entry.of(entry)
        context = context or Context()
        context.check(does)
        if len(payloads) != does.payloads:
            raise ArgumentError(
                f"entry {entry!r} with {len(payloads)} payloads: it takes {does.payloads}"
            )
        if count is None:
            given = [*([] if accumulator is None else [accumulator]), *payloads]
            if not given:
                raise ArgumentError("count is not given: pass count, payloads or accumulator")
            count = np.size(given[0])
        count = whole("count", count, 0, MOST_ITEMS)
        payload = formats.partial if does.partials else formats.element
        if accumulator is None:
            accumulator = np.zeros(count, formats.accumulator.dtype)
        acc = _packed(accumulator, formats.accumulator, count)
        places = [_packed(values, payload, count) for values in payloads]
        leaving = getattr(formats, LEAVING[does.leaving]) if does.leaving else None
        if leaving is not None:
            places.append(np.zeros(count * leaving.size, np.uint8))
        table = np.array([place.ctypes.data for place in places], np.uint64)
        block = np.frombuffer(context.pack(), np.uint8)
        status = self._functions[entry](
            acc.ctypes.data, table.ctypes.data, count, block.ctypes.data
        )
        return HostCall(
            status=status,
            accumulator=_unpacked(acc, formats.accumulator, count),
            output=_unpacked(places[-1], leaving, count) if leaving is not None else None,
        )

    def reduce(
        self,
        streams: Sequence[np.ndarray],
        *,
        order: Order | None = None,
        context: Context | None = None,
        leave: str = "finish",
        chunk: int | None = None,
        devices: Mapping[Path, int] | None = None,
    ) -> np.ndarray:
        """Streams of elements reduced into one, as the devices of a tree would.

        Args:
            streams: 1-D arrays of the element's dtype, all of one length, or the rows of a 2-D
                array; stream i is rank i.
            order: who merges whom (nested tuples of ranks, as Result.order); None: one device, in
                the order of the list.
            context: what the functions may know; rank, child and contributors are counted here, as
                devices count them, and group is the number of streams.
            leave: the entry that writes the result: "finish", or "emit" for partial sums.
            chunk: elements of a chunk, for ops that read its number; None: all are one.
            devices: path of each device in the order -> its number, for ops that read that.

        Returns:
            Shape (count,), of the result's dtype, or of the partial sums'.

        Raises:
            ArgumentError: no stream, streams that do not fit, an order that is none, a rank in it
                that has no stream or comes twice, or another ``leave``.
            StatusError: the op raises an exception.
        """
        given = arrays(streams)
        item = self.formats.element
        for i, values in enumerate(given):
            if (values.shape, values.dtype) != (given[0].shape[:1], item.dtype):
                raise ArgumentError(
                    f"streams[{i}] has shape {values.shape} and dtype {values.dtype}: use 1-D "
                    f"arrays of {item}, all of one length"
                )
        known("leave", leave, LEAVING)
        _check_context(context)
        order = tuple(range(len(given))) if order is None else order
        if not _is_order(order, len(given)):
            raise ArgumentError(
                f"order {order!r}: use nested tuples of 0..{len(given) - 1}, each once at most"
            )
        unknown = self.reads & _OF_DEVICES
        if unknown and devices is None and any(isinstance(part, tuple) for part in order):
            raise ArgumentError(
                f"op {self.name} reads {', '.join(sorted(unknown))}, of which a tree has several: "
                "pass devices and chunk"
            )
        context = replace(context or Context(), group=len(given))
        count = given[0].size
        step = max(count, 1) if chunk is None else whole("chunk", chunk, 1, MOST_ITEMS)
        parts = [
            self._leaving(
                leave,
                [values[start : start + step] for values in given],
                order,
                replace(context, chunk=context.chunk + i, element=context.element + start),
                devices or {},
            )
            for i, start in enumerate(range(0, max(count, 1), step))
        ]
        return np.concatenate(parts)

    def _leaving(
        self,
        leave: str,
        streams: Sequence[np.ndarray],
        node: Sequence[Order],
        context: Context,
        devices: Mapping[Path, int],
        path: Path = (),
    ) -> np.ndarray:
        """What leaves a device when all its children are merged."""
        context = replace(context, device=devices.get(path, context.device))
        total: np.ndarray | None = None
        merged = 0
        for child, part in enumerate(node):
            ranks = leaves(part)
            merged += len(ranks)
            if isinstance(part, int):
                payload, entries = streams[part], ("first", "acc")
            else:
                payload = self._leaving("emit", streams, part, context, devices, (*path, child))
                entries = ("load", "merge")
            told = replace(context, rank=ranks[0], child=child, contributors=merged)
            entry = entries[total is not None]
            total = self._checked(entry, [payload], total, told).accumulator
        done = self._checked(leave, [], total, replace(context, contributors=merged))
        assert done.output is not None  # emit and finish give it
        return done.output

    def _checked(
        self,
        entry: str,
        payloads: Sequence[np.ndarray],
        accumulator: np.ndarray | None,
        context: Context,
    ) -> HostCall:
        done = self.call(entry, payloads, accumulator=accumulator, context=context)
        if done.status:
            text = self.statuses[done.status - 1]
            raise StatusError(f"{entry} of {self.name} raised {text}", done.status)
        return done


def arrays(streams: object) -> list[np.ndarray]:
    """Streams as a list; of a 2-D array, its rows.

    Raises:
        ArgumentError: there is none, or something else than a plain numpy array among them.
    """
    given = _listed(streams, "streams")
    if not given:
        raise ArgumentError("streams is empty: pass one array per rank")
    for i, values in enumerate(given):
        if not isinstance(values, np.ndarray) or isinstance(values, np.ma.MaskedArray):
            raise ArgumentError(f"streams[{i}] is {type(values).__name__}: pass a numpy array")
    return given


def _listed(given: object, what: str) -> list[Any]:
    """What holds arrays, as a list."""
    if not isinstance(given, Iterable) or (isinstance(given, np.ndarray) and given.ndim < 2):
        raise ArgumentError(f"{what} is {type(given).__name__}: pass a list of 1-D arrays")
    return list(given)


def _check_context(context: object) -> None:
    if context is not None and not isinstance(context, Context):
        raise ArgumentError(f"context is {type(context).__name__}: use nicemu.Context")


def _is_order(order: object, ranks: int) -> TypeGuard[tuple[Order, ...]]:
    """Is it nested tuples, none empty, of different numbers below ranks?"""

    def whole(node: object) -> bool:
        if isinstance(node, tuple):
            return bool(node) and all(map(whole, node))
        return type(node) is int and 0 <= node < ranks

    if not isinstance(order, tuple) or not whole(order):
        return False
    found = leaves(order)
    return len(set(found)) == len(found)


def _packed(values: object, item: Item, count: int) -> np.ndarray:
    """A copy of its bytes, as a core has them."""
    if not isinstance(values, np.ndarray):
        raise ArgumentError(f"a payload or accumulator is {type(values).__name__}: pass an array")
    if values.dtype != item.dtype or values.shape != (count,):
        raise ArgumentError(
            f"array of shape {values.shape} and dtype {values.dtype}: this entry takes "
            f"({count},) of {item}"
        )
    return item.pack(np.ascontiguousarray(values), max(count, 1)).view(np.uint8).copy()


def _unpacked(data: np.ndarray, item: Item, count: int) -> np.ndarray:
    return canonical(item.unpack(data.view(item.stored), max(count, 1)), item)


def canonical(values: np.ndarray, item: Item) -> np.ndarray:
    """A copy in which every NaN is the canonical one of its format."""
    out = values.copy()
    for name, row in item.fields:
        if row.kind == "float":
            bits = (out[name] if name else out).view(row.bits_dtype)
            most = row.bits_dtype.type((1 << (8 * row.size - 1)) - 1)
            bits[(bits & most) > row.infinity] = row.canonical_nan
    return out


# ---- the host's run-time library -----------------------------------------------------------------
# LLVM calls these where the host has no instruction, and numba's LLVM has no library of its own.
_NARROWING = (
    ("__truncsfhf2", format_of("float32"), format_of("float16")),
    ("__truncdfhf2", format_of("float64"), format_of("float16")),
    ("__truncsfbf2", format_of("float32"), format_of("bfloat16")),
    ("__truncdfbf2", format_of("float64"), format_of("bfloat16")),
)


def _narrowing(name: str, src: Format, dst: Format) -> str:
    """To nearest, ties to even, in integers: the significand loses bits, more below normal."""
    width = 8 * src.size
    i = f"i{width}"
    fraction, lost = src.fraction_bits, src.fraction_bits - dst.fraction_bits
    # the exponent field of the smallest number that is normal in dst
    smallest = (1 << (src.exponent_bits - 1)) - (1 << (dst.exponent_bits - 1)) + 1
    return f"""
define {dst.llvm} @{name}({src.llvm} %x) {{
  %bits = bitcast {src.llvm} %x to {i}
  %m = and {i} %bits, {(1 << (width - 1)) - 1}
  %field = lshr {i} %m, {fraction}
  %digits = and {i} %m, {(1 << fraction) - 1}
  %normal = icmp ne {i} %field, 0
  %hidden = select i1 %normal, {i} {1 << fraction}, {i} 0
  %significand = or {i} %digits, %hidden
  %own = call {i} @llvm.umax.{i}({i} %field, {i} 1)
  %exponent = call {i} @llvm.umax.{i}({i} %field, {i} {smallest})
  %below = sub {i} %exponent, %own
  %cut = add {i} %below, {lost}
  %shift = call {i} @llvm.umin.{i}({i} %cut, {i} {fraction + 2})
  %shift1 = sub {i} %shift, 1
  %middle = shl {i} 1, %shift1
  %half = sub {i} %middle, 1
  %down = lshr {i} %significand, %shift
  %odd = and {i} %down, 1
  %up = add {i} %half, %odd
  %moved = add {i} %significand, %up
  %kept = lshr {i} %moved, %shift
  %field1 = sub {i} %exponent, {smallest}
  %field2 = shl {i} %field1, {dst.fraction_bits}
  %value = add {i} %field2, %kept
  %finite = call {i} @llvm.umin.{i}({i} %value, {i} {dst.infinity})
  %nan = icmp ugt {i} %m, {src.infinity}
  %magnitude = select i1 %nan, {i} {dst.canonical_nan}, {i} %finite
  %sign = lshr {i} %bits, {width - 16}
  %sign1 = and {i} %sign, 32768
  %out = or {i} %magnitude, %sign1
  %short = trunc {i} %out to i16
  %r = bitcast i16 %short to {dst.llvm}
  ret {dst.llvm} %r
}}
"""


_WIDENING = """
define float @__extendhfsf2(half %x) {
  %bits = bitcast half %x to i16
  %w = zext i16 %bits to i32
  %m = and i32 %w, 32767
  %digits = uitofp i32 %m to float
  %small = fmul float %digits, 0x3E70000000000000
  %smallbits = bitcast float %small to i32
  %moved = shl i32 %m, 13
  %normal = add i32 %moved, 939524096
  %special = or i32 %moved, 2139095040
  %issmall = icmp ult i32 %m, 1024
  %isspecial = icmp uge i32 %m, 31744
  %v0 = select i1 %issmall, i32 %smallbits, i32 %normal
  %v1 = select i1 %isspecial, i32 %special, i32 %v0
  %s = and i32 %w, 32768
  %sign = shl i32 %s, 16
  %out = or i32 %v1, %sign
  %r = bitcast i32 %out to float
  ret float %r
}
"""
