"""The exact reference of a reduction at one device, over whole streams, in plain numpy.

Owns: the bits that ``nicemu allreduce`` must produce, and the error of a result against the true
value.  Shares no code with the C core or the op compiler: a disagreement means that one is wrong.

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

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from nicemu.dtypes import Format, format_of
from nicemu.errors import ArgumentError

__all__ = ["OPS", "PRESETS", "reduce_streams", "true_error_ulp"]

OPS = ("sum", "avg", "max", "min", "prod")
PRESETS = ("wide", "per-hop", "per-add")

Array = npt.NDArray[Any]

BLOCK = 1 << 15  # elements worked on at once: temporaries stay in the cache and memory bounded
MOST_STREAMS = 1 << 20  # far below the 2**27 of the proof above

# fraction bits and exponent bias of the formats a value is narrowed from
SOURCES = {4: (23, 127), 8: (52, 1023)}


def reduce_streams(
    op: str, element: str | np.dtype | Format, streams: Sequence[Array], preset: str = "wide"
) -> Array:
    """The bits of one device's result: the streams reduced in the order given.

    Args:
        op: one of ``OPS``.  ``max`` and ``min`` are maximumNumber and minimumNumber of IEEE
            754-2019: a NaN loses against a number, and -0 < +0.
        element: format of elements and result: float16, bfloat16 or float32.
        streams: 1-D arrays of that dtype, all of one length; stream i is child i.
        preset: ``wide`` accumulates in float32 and rounds once, ``per-hop`` is the same at a single
            device, ``per-add`` rounds to the element format at every step.  ``avg`` divides the
            accumulator by the number of streams and rounds once.

    Returns:
        1-D array of the unsigned integer dtype of the element's width.  Every NaN is the canonical
        one of the format.

    Raises:
        ArgumentError: an unknown op, preset or dtype, no stream, or unequal streams.
    """
    if preset not in PRESETS:
        raise ArgumentError(f"preset {preset!r} is unknown: use one of {', '.join(PRESETS)}")
    fmt, bits = _checked(op, element, streams)
    out = np.empty(len(bits[0]), fmt.bits_dtype)
    with np.errstate(all="ignore"):
        for part in _blocks(len(out)):
            out[part] = _reduce(op, fmt, [b[part] for b in bits], preset)
    return out


def true_error_ulp(
    op: str, element: str | np.dtype | Format, streams: Sequence[Array], result: Array
) -> float:
    """The largest error of a result against the true value, in ulp of the result format.

    The true value is the exact sum, mean, maximum or minimum: sums are kept in two float64 words by
    error-free additions, and the few elements for which two words may not do go through
    ``math.fsum``.  Products are float64 products with a separate exponent, off by at most
    n * 2**-53 relative.  One ulp is the spacing of the format at the true value.

    Elements with a NaN or an infinity among their inputs have no error and are left out.  A result
    that is infinite counts as right when the true value rounds to it, and as infinitely wrong when
    it does not; a NaN out of finite inputs is infinitely wrong.

    Args:
        op: as in :func:`reduce_streams`.
        element: as there.
        streams: as there.
        result: 1-D, the values in the element dtype or their bits.

    Returns:
        The largest absolute error in ulp; 0.0 when no element has one.

    Raises:
        ArgumentError: as :func:`reduce_streams`, or a result of another length or width.
    """
    fmt, bits = _checked(op, element, streams)
    if result.dtype not in (fmt.dtype, fmt.bits_dtype) or result.shape != bits[0].shape:
        raise ArgumentError(
            f"result is {result.dtype} of shape {result.shape}: "
            f"it must be {fmt.name} of shape {bits[0].shape}"
        )
    got = result.view(fmt.bits_dtype)
    worst = 0.0
    with np.errstate(all="ignore"):
        for part in _blocks(len(got)):
            worst = max(worst, _error(op, fmt, [b[part] for b in bits], got[part]))
    return worst


def _checked(
    op: str, element: str | np.dtype | Format, streams: Sequence[Array]
) -> tuple[Format, list[Array]]:
    """The format and the streams as bits."""
    fmt = element if isinstance(element, Format) else format_of(element)
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


def _blocks(n: int) -> Iterator[slice]:
    for start in range(0, n, BLOCK):
        yield slice(start, min(start + BLOCK, n))


# ---- the reduction --------------------------------------------------------------------------


def _reduce(op: str, fmt: Format, bits: list[Array], preset: str) -> Array:
    if op in ("max", "min"):
        return _extreme(op, fmt, bits)
    step = np.multiply if op == "prod" else np.add
    if preset == "per-add" and fmt.size == 2:
        acc = _widen(bits[0], fmt, np.float64)
        for b in bits[1:]:
            rounded = _narrow(step(acc, _widen(b, fmt, np.float64)), fmt)
            acc = _widen(rounded, fmt, np.float64)
    else:
        acc = _widen(bits[0], fmt, np.float32)
        for b in bits[1:]:
            acc = step(acc, _widen(b, fmt, np.float32))
    if op == "avg":
        acc = acc.astype(np.float64) / len(bits)
    return _narrow(acc, fmt)


def _extreme(op: str, fmt: Format, bits: list[Array]) -> Array:
    """maximumNumber or minimumNumber, by integer keys in the order of the values.

    The keys of NaNs lie outside those of all numbers, so the losing end serves as "no number yet".
    """
    sign, infinity = _sign(fmt), _infinity(fmt)
    choose, none = (np.maximum, 0) if op == "max" else (np.minimum, 2 * sign - 1)
    u = fmt.bits_dtype.type
    best = np.full(len(bits[0]), none, fmt.bits_dtype)
    for b in bits:
        key = np.where(b & u(sign), ~b, b | u(sign))
        key[(b & u(sign - 1)) > u(infinity)] = none
        best = choose(best, key)
    found: Array = np.where(best & u(sign), best ^ u(sign), ~best)
    found[best == u(none)] = fmt.canonical_nan
    return found


def _sign(fmt: Format) -> int:
    return int(1 << (8 * fmt.size - 1))


def _infinity(fmt: Format) -> int:
    return ((1 << fmt.exponent_bits) - 1) << fmt.fraction_bits


def _bias(fmt: Format) -> int:
    return (1 << (fmt.exponent_bits - 1)) - 1


def _widen(bits: Array, fmt: Format, to: type[np.floating[Any]]) -> Array:
    """The values, exactly, as float32 or float64; always a new array."""
    if fmt.name == "bfloat16":  # the upper half of a float32
        wide = (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)
        return wide if to is np.float32 else wide.astype(to)
    return bits.view(fmt.dtype).astype(to)


def _narrow(values: Array, fmt: Format) -> Array:
    """Bits of float32 or float64 values in a format no wider: RNE, one rounding, canonical NaN."""
    fraction, bias = SOURCES[values.itemsize]
    u = np.dtype(f"u{values.itemsize}").type
    bits = values.view(u)
    mag = bits & u((1 << (8 * values.itemsize - 1)) - 1)
    nan = values != values
    out: Array
    if fraction == fmt.fraction_bits:  # float32 to float32
        out = bits.copy()
    else:
        field = mag >> u(fraction)
        smallest = u(bias - _bias(fmt) + 1)  # exponent field of the target's smallest normal
        exponent = np.maximum(field, smallest)
        significand = (mag & u((1 << fraction) - 1)) | ((field != 0).astype(u) << u(fraction))
        # below the smallest normal, more bits go; past fraction + 2 of them nothing is left
        shift = exponent - np.maximum(field, u(1)) + u(fraction - fmt.fraction_bits)
        shift = np.minimum(shift, u(fraction + 2))
        half = (u(1) << (shift - u(1))) - u(1)
        kept = (significand + half + ((significand >> shift) & u(1))) >> shift
        # `kept` carries the hidden bit, which adds the last 1 to the exponent field
        out = ((exponent - smallest) << u(fmt.fraction_bits)) + kept
        out = np.minimum(out, u(_infinity(fmt)))
        out |= (bits >> u(8 * values.itemsize - 1)) << u(8 * fmt.size - 1)
    out[nan] = fmt.canonical_nan
    narrow: Array = out.astype(fmt.bits_dtype, copy=False)
    return narrow


# ---- the true value -------------------------------------------------------------------------


def _error(op: str, fmt: Format, bits: list[Array], got: Array) -> float:
    """Largest error of one block in ulp."""
    values = [_widen(b, fmt, np.float64) for b in bits]
    counted = np.logical_and.reduce([np.isfinite(v) for v in values])
    result = _widen(got, fmt, np.float64)
    n = 1
    if op == "prod":
        hi, lo = _true_product(values)
    elif op in ("max", "min"):
        choose = np.maximum if op == "max" else np.minimum
        hi = choose.reduce(values)
        lo = np.zeros_like(hi)
    else:
        n = len(values) if op == "avg" else 1
        hi, lo, lost = _true_sum(values)
        # the error may be off by 2**-20 ulp; the exact way is for the elements that need it
        poor = counted & (lost > 2.0**-20 * _ulp(fmt, (hi + lo) / n))
        for i in np.flatnonzero(poor):
            column = [float(v[i]) for v in values]
            hi[i] = math.fsum(column)
            lo[i] = math.fsum([*column, -hi[i]])
    true = (hi + lo) / n
    # n * result is exact; hi - n * result loses nothing that matters, lo is below one ulp of hi
    error = np.abs((n * result - hi) - lo) / n / _ulp(fmt, true)
    infinite = ~np.isfinite(result)
    error[infinite] = np.where(_narrow(true[infinite], fmt) == got[infinite], 0.0, np.inf)
    return float(error[counted].max(initial=0.0))


def _true_sum(values: list[Array]) -> tuple[Array, Array, Array]:
    """hi + lo = the sum, short of at most `lost`.  Knuth's TwoSum, twice."""
    hi = values[0].copy()
    lo = np.zeros_like(hi)
    lost = np.zeros_like(hi)
    for v in values[1:]:
        hi, e = _two_sum(hi, v)
        lo, e = _two_sum(lo, e)
        lost += np.abs(e)
    return hi, lo, lost


def _two_sum(a: Array, b: Array) -> tuple[Array, Array]:
    s = a + b
    t = s - a
    return s, (a - (s - t)) + (b - t)


def _true_product(values: list[Array]) -> tuple[Array, Array]:
    """The product as float64; mantissa and exponent are kept apart so that no step overflows."""
    mantissa, exponent = np.frexp(values[0])
    exponent = exponent.astype(np.int64)
    for v in values[1:]:
        m, e = np.frexp(v)
        mantissa, e2 = np.frexp(mantissa * m)
        exponent += e
        exponent += e2
    product = np.ldexp(mantissa, np.clip(exponent, -2000, 2000).astype(np.int32))
    return product, np.zeros_like(product)


def _ulp(fmt: Format, at: Array) -> Array:
    """Spacing of the format at a value of float64."""
    _, exponent = np.frexp(at)  # 0.5 <= |mantissa| < 1
    lowest, highest = 1 - _bias(fmt), _bias(fmt)
    exponent = np.clip(exponent - 1, lowest, highest) - fmt.fraction_bits
    spacing: Array = np.ldexp(1.0, exponent)
    return spacing
