"""How far a result is from the true value, and what became infinite, NaN or subnormal in it.

Owns: the true value of a sum, mean, product, maximum or minimum, and the comparison in ulp.  Which
bits are right is tree's question; this one is how good they are.

The true sum is kept in two float64 words by error-free additions, and the few elements for which
two words may not do go through ``math.fsum``.  Products are float64 products with a separate
exponent, off by at most n * 2**-53 relative.  One ulp is the spacing of the result's format at the
true value.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from nicemu.dtypes import GRADIENTS, Format, format_of
from nicemu.errors import ArgumentError
from nicemu.reference.arithmetic import (
    OPS,
    Array,
    bias,
    blocks,
    checked,
    infinity,
    narrow,
    widen,
)

__all__ = ["Errors", "errors", "true_error_ulp"]


@dataclass(frozen=True)
class Errors:
    """What is wrong with the elements of a result.

    Attributes:
        elements: of the result.
        largest_ulp: the largest error of elements whose inputs are all finite; infinite where the
            result is not finite and the true value does not round to it.
        mean_ulp: the mean of the errors that are finite.
        measured: how many errors that are.
        overflows: infinite elements whose inputs are all finite.
        nans: NaN elements.
        nans_made: NaN elements without a NaN among their inputs.
        subnormals: elements below the smallest normal number, zeros apart.
    """

    elements: int = 0
    largest_ulp: float = 0.0
    mean_ulp: float = 0.0
    measured: int = 0
    overflows: int = 0
    nans: int = 0
    nans_made: int = 0
    subnormals: int = 0

    def __add__(self, other: Errors) -> Errors:
        """Of two results together."""
        measured = self.measured + other.measured
        total = self.mean_ulp * self.measured + other.mean_ulp * other.measured
        return Errors(
            elements=self.elements + other.elements,
            largest_ulp=max(self.largest_ulp, other.largest_ulp),
            mean_ulp=total / max(measured, 1),
            measured=measured,
            overflows=self.overflows + other.overflows,
            nans=self.nans + other.nans,
            nans_made=self.nans_made + other.nans_made,
            subnormals=self.subnormals + other.subnormals,
        )


def errors(
    op: str,
    inputs: Sequence[Array],
    result: Array,
    divisor: int = 1,
    ulp_of: Format | None = None,
) -> Errors:
    """Compare a result with the true sum (``avg`` too), product, maximum or minimum of the inputs.

    Args:
        op: one of ``OPS``.
        inputs: 1-D arrays of one length, each of a dtype of nicemu.dtypes.
        result: the same length, of such a dtype.
        divisor: of the true value: the number of workers in a finished average.
        ulp_of: format whose spacing at the true value is one ulp; None = the result's.

    Raises:
        ArgumentError: an unknown op or dtype, no input, or unequal lengths.
    """
    if op not in OPS:
        raise ArgumentError(f"op {op!r} is unknown: use one of {', '.join(OPS)}")
    if not inputs or any(x.shape != result.shape or x.ndim != 1 for x in inputs):
        shapes = ", ".join(str(x.shape) for x in inputs) or "nothing"
        raise ArgumentError(
            f"inputs of shape {shapes}: use 1-D arrays, as the result {result.shape}"
        )
    rows = [(format_of(x.dtype, GRADIENTS), x) for x in inputs]
    fmt = format_of(result.dtype, GRADIENTS)
    found = Errors()
    with np.errstate(all="ignore"):
        for part in blocks(len(result)):
            values = [widen(x[part].view(row.bits_dtype), row, np.float64) for row, x in rows]
            found += _block(
                op, fmt, values, result[part].view(fmt.bits_dtype), divisor, ulp_of or fmt
            )
    return found


def true_error_ulp(
    op: str, element: str | np.dtype | Format, streams: Sequence[Array], result: Array
) -> float:
    """The largest error of a finished result against the true value, in ulp of its format.

    Elements with a NaN or an infinity among their inputs have no error and are left out.  A result
    that is infinite counts as right when the true value rounds to it, and as infinitely wrong when
    it does not; a NaN out of finite inputs is infinitely wrong.

    Args:
        op: one of ``OPS``.
        element: format of elements and result.
        streams: 1-D arrays of that dtype, all of one length.
        result: 1-D, the values in the element dtype or their bits.

    Returns:
        The largest absolute error in ulp; 0.0 when no element has one.

    Raises:
        ArgumentError: as :func:`errors`, or a result of another length or width.
    """
    fmt, bits = checked(op, element, streams)
    if result.dtype not in (fmt.dtype, fmt.bits_dtype) or result.shape != bits[0].shape:
        raise ArgumentError(
            f"result is {result.dtype} of shape {result.shape}: "
            f"it must be {fmt.name} of shape {bits[0].shape}"
        )
    divisor = len(streams) if op == "avg" else 1
    return errors(op, streams, result.view(fmt.dtype), divisor).largest_ulp


def _block(op: str, fmt: Format, values: list[Array], got: Array, n: int, ulp_of: Format) -> Errors:
    counted = np.logical_and.reduce([np.isfinite(v) for v in values])
    result = widen(got, fmt, np.float64)
    if op == "prod":
        hi, lo = _true_product(values)
    elif op in ("max", "min"):
        choose = np.maximum if op == "max" else np.minimum
        hi = choose.reduce(values)
        lo = np.zeros_like(hi)
    else:
        hi, lo, lost = _true_sum(values)
        # the error may be off by 2**-20 ulp; the exact way is for the elements that need it
        poor = counted & (lost > 2.0**-20 * _ulp(fmt, (hi + lo) / n))
        for i in np.flatnonzero(poor):
            column = [float(v[i]) for v in values]
            hi[i] = math.fsum(column)
            lo[i] = math.fsum([*column, -hi[i]])
    true = (hi + lo) / n
    # n * result is exact; hi - n * result loses nothing that matters, lo is below one ulp of hi
    error = np.abs((n * result - hi) - lo) / n / _ulp(ulp_of, true)
    infinite = ~np.isfinite(result)
    error[infinite] = np.where(narrow(true[infinite], fmt) == got[infinite], 0.0, np.inf)
    measured = error[counted & np.isfinite(error)]
    magnitude = got & fmt.bits_dtype.type(infinity(fmt) | ((1 << fmt.fraction_bits) - 1))
    nan = np.isnan(result)
    given = np.logical_or.reduce([np.isnan(v) for v in values])
    return Errors(
        elements=len(got),
        largest_ulp=float(error[counted].max(initial=0.0)),
        mean_ulp=float(measured.mean()) if len(measured) else 0.0,
        measured=len(measured),
        overflows=int((counted & np.isinf(result)).sum()),
        nans=int(nan.sum()),
        nans_made=int((nan & ~given).sum()),
        subnormals=int(((magnitude > 0) & (magnitude < 1 << fmt.fraction_bits)).sum()),
    )


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
    lowest, highest = 1 - bias(fmt), bias(fmt)
    exponent = np.clip(exponent - 1, lowest, highest) - fmt.fraction_bits
    spacing: Array = np.ldexp(1.0, exponent)
    return spacing
