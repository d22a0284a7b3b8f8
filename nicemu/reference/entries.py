"""The entries of the built-in ops' images in plain numpy, for every element format and preset.

Owns: lift, merge and finish of each op, on the fields of items, and which of them an entry applies
to what.  The formats' bits are arithmetic's, whole trees of devices are tree's.  ``logsumexp`` is
not here: its exp and log are the op's own.

A step takes numbers (floats of less than 32 bits as float32) and what it gives is rounded once to
the accumulator's or result's format.  Where that has at most 16 bits, sums and products are made in
float64, which holds the products exactly, and of which a sum may be rounded again (see arithmetic).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np

from nicemu.dtypes import Format, Item, bfloat16
from nicemu.errors import ArgumentError
from nicemu.reference.arithmetic import Array, narrow, widen

__all__ = ["EXACT", "Call", "Entries"]

#: numbers of the fields of items, an array for each
Fields: TypeAlias = tuple[Array, ...]


@dataclass(frozen=True)
class Call:
    """What a call is told, as guide/images.md has it."""

    contributors: int = 1
    rank: int = 0
    device: int = 0
    child: int = 0
    seq: int = 0
    chunk: int = 0
    element: int = 0
    seed: int = 0


@dataclass(frozen=True)
class Entries:
    """An op's entries.

    Attributes:
        op: one of EXACT.
        element, accumulator, partial, result: what items are.
        factor: of ``premul_sum``.
    """

    op: str
    element: Item
    accumulator: Item
    partial: Item
    result: Item
    factor: float = 1.0

    def __post_init__(self) -> None:
        """Check the op's name."""
        if self.op not in EXACT:
            raise ArgumentError(f"op {self.op!r} is unknown: use one of {', '.join(EXACT)}")

    def call(
        self, entry: str, payloads: Sequence[Array], accumulator: Array, call: Call
    ) -> tuple[Array, Array | None]:
        """The accumulator after an entry, and what ``emit`` and ``finish`` write, else None.

        Args:
            entry: name, with its fan-in.
            payloads: shape (count,), elements or partial sums; none for emit and finish.
            accumulator: shape (count,), before the call.
            call: what it is told.

        Returns:
            Arrays of shape (count,); every NaN is the canonical one of its format.
        """
        with np.errstate(all="ignore"):
            own = _numbers(accumulator, self.accumulator)
            front, _, leaving = entry.rpartition("_")
            if leaving in ("emit", "finish"):
                total = self._total(front, payloads, own, call) if front else own
                return _stored(own, self.accumulator), self._left(leaving, total, call)
            return _stored(self._total(entry, payloads, own, call), self.accumulator), None

    def _left(self, leaving: str, total: Fields, call: Call) -> Array:
        """What emit or finish writes."""
        if leaving == "emit":
            return _stored(total, self.partial)
        result = _FINISH[self.op](total, call) if self.op in _FINISH else total
        return _stored(result, self.result)

    def _total(self, entry: str, payloads: Sequence[Array], own: Fields, call: Call) -> Fields:
        """The accumulator with the payloads in it."""
        stem = entry.rstrip("0123456789")
        total = None if stem in ("first", "load") else own
        for j, payload in enumerate(payloads):
            now = replace(call, child=call.child + j)
            lifts = stem in ("first", "acc")
            new = self._lifted(payload, now) if lifts else _numbers(payload, self.partial)
            new = self._kept(new)
            total = new if total is None else self._kept(self._merged(total, new, now))
        assert total is not None
        return total

    def _kept(self, fields: Fields) -> Fields:
        """Rounded to the accumulator's formats."""
        return _numbers(_stored(fields, self.accumulator), self.accumulator)

    def _lifted(self, payload: Array, call: Call) -> Fields:
        (x,) = _numbers(payload, self.element)
        if self.op == "argmax":
            index = call.element + np.arange(len(x))
            return x, np.full(len(x), call.rank), index
        if self.op == "l2norm":
            return (self._wide(x) * self._wide(x),)
        if self.op == "premul_sum":
            return (x * x.dtype.type(self.factor),)
        return (x,)

    def _merged(self, a: Fields, b: Fields, call: Call) -> Fields:
        if self.op == "argmax":
            chosen = (b[0] > a[0]) | (a[0] != a[0])
            return tuple(np.where(chosen, y, x) for x, y in zip(a, b, strict=True))
        if self.op == "stochastic_sum":
            return (_stochastic(a[0] + b[0], self.element.formats[0], call),)
        steps = _FLOAT if self.accumulator.formats[0].kind == "float" else _WHOLE
        return (steps[self.op](self._wide(a[0]), self._wide(b[0])),)

    def _wide(self, x: Array) -> Array:
        """For one sum or product, to be rounded to the accumulator's format."""
        row = self.accumulator.formats[0]
        return x.astype(np.float64) if row.kind == "float" and row.size <= 2 else x


# ---- numbers -------------------------------------------------------------------------------------


def _numbers(values: Array, item: Item) -> Fields:
    """What steps compute with."""
    return tuple(_number(values[name] if name else values, row) for name, row in item.fields)


def _number(values: Array, row: Format) -> Array:
    if row.kind == "bool":
        true: Array = values.view(np.uint8) != 0
        return true
    if row.kind != "float" or row.size == 8:
        return values
    if row.size == 1:
        return values.astype(np.float32)
    return widen(np.ascontiguousarray(values).view(row.bits_dtype), row, np.float32)


def _stored(fields: Fields, item: Item) -> Array:
    """Items of such numbers, rounded."""
    arrays = [_bits(x, row) for x, row in zip(fields, item.formats, strict=True)]
    if item.scalar:
        return arrays[0]
    out = np.empty(len(arrays[0]), item.dtype)
    for (name, _), values in zip(item.fields, arrays, strict=True):
        out[name] = values
    return out


def _bits(x: Array, row: Format) -> Array:
    if row.kind != "float":
        return x.astype(row.dtype)
    if x.dtype.kind != "f" and x.dtype != bfloat16:
        x = x.astype(np.float64)
    return narrow(np.ascontiguousarray(x), row).view(row.dtype)


# ---- the ops -------------------------------------------------------------------------------------


def _number_extreme(greater: bool) -> Callable[[Array, Array], Array]:
    """maximumNumber or minimumNumber: a NaN loses, -0 is below +0."""

    def choose(a: Array, b: Array) -> Array:
        above = (a > b) | ((a == b) & np.signbit(b))
        below = (a < b) | ((a == b) & np.signbit(a))
        return np.where((above if greater else below) | np.isnan(b), a, b)

    return choose


def _extreme(greater: bool) -> Callable[[Array, Array], Array]:
    """Maximum or minimum: a NaN wins."""
    number = _number_extreme(greater)
    return lambda a, b: np.where(np.isnan(a) | np.isnan(b), np.nan, number(a, b))


def _saturated(a: Array, b: Array) -> Array:
    """In Python's integers."""
    ends = np.iinfo(a.dtype)
    exact = a.astype(object) + b.astype(object)
    kept: Array = np.clip(exact, ends.min, ends.max).astype(a.dtype)
    return kept


_FLOAT: Mapping[str, Callable[[Array, Array], Array]] = {
    **dict.fromkeys(("sum", "avg", "premul_sum", "l2norm"), np.add),
    "prod": np.multiply,
    "max": _number_extreme(True),
    "min": _number_extreme(False),
    "maximum": _extreme(True),
    "minimum": _extreme(False),
}
_WHOLE: Mapping[str, Callable[[Array, Array], Array]] = {
    "sum": np.add,
    "prod": np.multiply,
    **dict.fromkeys(("max", "maximum"), np.maximum),
    **dict.fromkeys(("min", "minimum"), np.minimum),
    "band": np.bitwise_and,
    "bor": np.bitwise_or,
    "bxor": np.bitwise_xor,
    "sat_sum": _saturated,
}
_FINISH: Mapping[str, Callable[[Fields, Call], Fields]] = {
    "avg": lambda a, call: (a[0].astype(np.float64) / call.contributors,),
    "l2norm": lambda a, call: (np.sqrt(a[0]),),
}
#: the ops that are here
EXACT: tuple[str, ...] = (*dict.fromkeys([*_FLOAT, *_WHOLE]), "argmax", "stochastic_sum")


def _hashed(call: Call, count: int) -> Array:
    """32 bits for each element: of the words of the call, one after another."""
    most = np.uint64(0xFFFFFFFF)
    word: Any
    index: Array = np.uint64(call.element) + np.arange(count, dtype=np.uint64)
    words = (call.seed >> 32, call.seq, call.chunk, call.device, call.child)
    h: Array = np.full(count, call.seed & 0xFFFFFFFF, np.uint64)
    for word in [*map(np.uint64, words), index, index >> np.uint64(32)]:
        h = (h ^ (word & most)) * np.uint64(0x9E3779B1) & most
        h = (h ^ h >> np.uint64(15)) * np.uint64(0x85EBCA6B) & most
        h ^= h >> np.uint64(13)
    return h


def _stochastic(total: Array, row: Format, call: Call) -> Array:
    """A float32 goes to its neighbour of larger magnitude where chance + the part of the way to it
    reach 1; chance has as many bits as float32 has more than the format."""
    digits = 23 - row.fraction_bits
    chance = (_hashed(call, len(total)) >> np.uint64(32 - digits)) / 2.0**digits
    exact = total.astype(np.float64)
    size = np.abs(exact)
    _, exponent = np.frexp(size)
    smallest = 2 - (1 << (row.exponent_bits - 1)) - row.fraction_bits
    unit = np.ldexp(1.0, np.maximum(exponent - 1 - row.fraction_bits, smallest))
    steps = size / unit
    whole = np.floor(steps + chance)
    chosen = np.copysign(whole * unit, exact)
    return np.where(np.isfinite(total), chosen, exact)
