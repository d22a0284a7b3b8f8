"""Exact arithmetic of 16- and 32-bit formats in plain numpy: one step of a reduction.

Owns: formats as bits, conversions, and the functions of an op (lift, load, merge, emit, finish) for
each preset.  In which order they are applied is tree's.  Shares
no code with the C core or the op compiler: a disagreement means that one is wrong.

Why the bits are exact:

* A sum or product step in float32 is one IEEE operation of numpy on the host: to nearest, ties to
  even, subnormals kept.
* A 16-bit step (``per-add``) is computed in float64 and narrowed.  A product of two 16-bit values
  has at most 22 significant bits and is exact in float64.  A sum that is not exact in float64 is
  rounded twice, which is harmless: 53 >= 2p + 2 for p = 11 and p = 8 (Figueroa 1995).
* An average is acc / n in float64, then narrowed.  Let m be a midpoint of the result format: it has
  at most 25 significant bits, acc at most 24, and n < 2**27.  If acc / n != m, then they differ by
  at least m * 2**-52 or by acc * 2**-25, so that float64 never rounds a quotient *onto* a midpoint.
* Narrowing is integer arithmetic on the bits: one rounding, to nearest with ties to even.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from nicemu.dtypes import GRADIENTS, Format, format_of
from nicemu.errors import ArgumentError

__all__ = [
    "BLOCK",
    "MOST_STREAMS",
    "OPS",
    "PRESETS",
    "Arithmetic",
    "Array",
    "arithmetic",
    "bias",
    "blocks",
    "checked",
    "infinity",
    "narrow",
    "sign",
    "widen",
]

OPS = ("sum", "avg", "max", "min", "prod")
#: preset: formats of the accumulator and of a partial sum between devices; None = the element's
PRESETS: dict[str, tuple[str | None, str | None]] = {
    "wide": ("float32", "float32"),
    "per-hop": ("float32", None),
    "per-add": (None, None),
}

Array = npt.NDArray[Any]

BLOCK = 1 << 15  # elements worked on at once: temporaries stay in the cache and memory bounded
MOST_STREAMS = 1 << 20  # far below the 2**27 of the proof above

# fraction bits and exponent bias of the formats a value is narrowed from
SOURCES = {4: (23, 127), 8: (52, 1023)}


def checked(
    op: str, element: str | np.dtype | Format, streams: Sequence[Array]
) -> tuple[Format, list[Array]]:
    """The format and the streams as bits.

    Raises:
        ArgumentError: an unknown op or dtype, no stream, or unequal streams.
    """
    fmt = element if isinstance(element, Format) else format_of(element, GRADIENTS)
    if op not in OPS:
        raise ArgumentError(f"op {op!r} is unknown: use one of {', '.join(OPS)}")
    if not 1 <= len(streams) <= MOST_STREAMS:
        raise ArgumentError(f"{len(streams)} streams are given: use 1..{MOST_STREAMS}")
    for i, s in enumerate(streams):
        if s.dtype != fmt.dtype or s.ndim != 1 or len(s) != len(streams[0]):
            raise ArgumentError(
                f"stream {i} is {s.dtype} of shape {s.shape}: "
                f"all must be {fmt.name} of shape ({len(streams[0])},)"
            )
    return fmt, [s.view(fmt.bits_dtype) for s in streams]


def blocks(n: int) -> Iterator[slice]:
    """0..n in slices of at most BLOCK elements."""
    for start in range(0, n, BLOCK):
        yield slice(start, min(start + BLOCK, n))


# ---- formats as bits ------------------------------------------------------------------------


def sign(fmt: Format) -> int:
    """The sign bit."""
    return int(1 << (8 * fmt.size - 1))


def infinity(fmt: Format) -> int:
    """Bits of +infinity."""
    return ((1 << fmt.exponent_bits) - 1) << fmt.fraction_bits


def bias(fmt: Format) -> int:
    """What is added to exponents before they are stored."""
    return (1 << (fmt.exponent_bits - 1)) - 1


def widen(bits: Array, fmt: Format, to: type[np.floating[Any]]) -> Array:
    """The values, exactly, as float32 or float64; always a new array."""
    if fmt.name == "bfloat16":  # the upper half of a float32
        wide = (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)
        return wide if to is np.float32 else wide.astype(to)
    return bits.view(fmt.dtype).astype(to)


def narrow(values: Array, fmt: Format) -> Array:
    """Bits of float32 or float64 values in a format no wider: RNE, one rounding, canonical NaN."""
    fraction, excess = SOURCES[values.itemsize]
    u = np.dtype(f"u{values.itemsize}").type
    bits = values.view(u)
    mag = bits & u((1 << (8 * values.itemsize - 1)) - 1)
    nan = values != values
    out: Array
    if fraction == fmt.fraction_bits:  # float32 to float32
        out = bits.copy()
    else:
        field = mag >> u(fraction)
        smallest = u(excess - bias(fmt) + 1)  # exponent field of the target's smallest normal
        exponent = np.maximum(field, smallest)
        significand = (mag & u((1 << fraction) - 1)) | ((field != 0).astype(u) << u(fraction))
        # below the smallest normal, more bits go; past fraction + 2 of them nothing is left
        shift = exponent - np.maximum(field, u(1)) + u(fraction - fmt.fraction_bits)
        shift = np.minimum(shift, u(fraction + 2))
        half = (u(1) << (shift - u(1))) - u(1)
        kept = (significand + half + ((significand >> shift) & u(1))) >> shift
        # `kept` carries the hidden bit, which adds the last 1 to the exponent field
        out = ((exponent - smallest) << u(fmt.fraction_bits)) + kept
        if fmt.infinity != infinity(fmt):  # the largest number is in infinity's place
            nan |= out > u(fmt.infinity)
        out = np.minimum(out, u(fmt.infinity))
        out |= (bits >> u(8 * values.itemsize - 1)) << u(8 * fmt.size - 1)
    out[nan] = fmt.canonical_nan
    narrow: Array = out.astype(fmt.bits_dtype, copy=False)
    return narrow


# ---- an op at a device ----------------------------------------------------------------------


@dataclass(frozen=True)
class Arithmetic:
    """The functions of one op, element format and preset, over whole arrays.

    Attributes:
        partial: format of a partial sum.
        lift: element bits -> accumulator.
        load: partial bits -> accumulator.
        merge: two accumulators -> accumulator.
        emit: accumulator -> partial bits.
        finish: accumulator, contributors -> result bits, of the element format.
    """

    partial: Format
    lift: Callable[[Array], Array]
    load: Callable[[Array], Array]
    merge: Callable[[Array, Array], Array]
    emit: Callable[[Array], Array]
    finish: Callable[[Array, int], Array]


def arithmetic(op: str, element: Format, preset: str) -> Arithmetic:
    """The functions of an op.

    Raises:
        ArgumentError: an unknown preset.
    """
    if preset not in PRESETS:
        raise ArgumentError(f"preset {preset!r} is unknown: use one of {', '.join(PRESETS)}")
    accumulator, partial = (format_of(name or element.name) for name in PRESETS[preset])
    make = _extremes if op in ("max", "min") else _sums
    return make(op, element, accumulator, partial)


def _sums(op: str, element: Format, accumulator: Format, partial: Format) -> Arithmetic:
    """sum, avg and prod: an accumulator is an array of float values, wide enough for one step."""
    step = np.multiply if op == "prod" else np.add
    steps_in = np.float64 if accumulator.size == 2 else np.float32

    def merge(a: Array, b: Array) -> Array:
        exact: Array = step(a, b)
        return (
            exact
            if accumulator.size == 4
            else widen(narrow(exact, accumulator), accumulator, steps_in)
        )

    def finish(acc: Array, contributors: int) -> Array:
        return narrow(acc.astype(np.float64) / contributors if op == "avg" else acc, element)

    return Arithmetic(
        partial=partial,
        lift=lambda bits: widen(bits, element, steps_in),
        load=lambda bits: widen(bits, partial, steps_in),
        merge=merge,
        emit=lambda acc: narrow(acc, partial),
        finish=finish,
    )


def _extremes(op: str, element: Format, accumulator: Format, partial: Format) -> Arithmetic:
    """maximumNumber and minimumNumber: an accumulator is integer keys in the order of the values.

    The keys of NaNs lie outside those of all numbers, so the losing end serves as "no number yet".
    """
    u = accumulator.bits_dtype.type
    minus = u(sign(accumulator))
    choose, none = (np.maximum, u(0)) if op == "max" else (np.minimum, ~u(0))

    def keys(bits: Array, source: Format) -> Array:
        b = _convert(bits, source, accumulator)
        key: Array = np.where(b & minus, ~b, b | minus)
        key[(b & ~minus) > u(infinity(accumulator))] = none
        return key

    def bits(key: Array, target: Format) -> Array:
        found: Array = np.where(key & minus, key ^ minus, ~key)
        found[key == none] = accumulator.canonical_nan
        return _convert(found, accumulator, target)

    return Arithmetic(
        partial=partial,
        lift=lambda given: keys(given, element),
        load=lambda given: keys(given, partial),
        merge=lambda a, b: choose(a, b),
        emit=lambda key: bits(key, partial),
        finish=lambda key, contributors: bits(key, element),
    )


def _convert(bits: Array, source: Format, target: Format) -> Array:
    return bits if source == target else narrow(widen(bits, source, np.float32), target)
