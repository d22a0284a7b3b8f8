"""The reduce ops that come with nicemu, written as anybody's are.

Owns: their functions.  How they become images is op's and compile's task.  What each gives for NaN,
-0, infinity and integers is in guide/numerics.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from nicemu.arguments import known
from nicemu.device.image import KernelImage
from nicemu.device.machine import Machine
from nicemu.dtypes import FORMATS, Format, format_of
from nicemu.errors import ArgumentError, OpError
from nicemu.ops.op import ReduceOp, reduce_op
from nicemu.ops.opmath import bits, from_bits

__all__ = [
    "BUILTINS",
    "builtin",
    "is_builtin",
    "kernel",
    "premul_sum",
    "sat_sum",
    "stochastic_sum",
]


FLOATS = [row for row in FORMATS if row.kind == "float"]
WHOLES = [row for row in FORMATS if row.kind in ("int", "uint")]
BOOL = [format_of("bool")]


# ---- sums ----------------------------------------------------------------------------------------
@reduce_op(name="sum", element=[*FLOATS, *WHOLES])
def _sum(a: Any, b: Any) -> Any:
    return a + b


@reduce_op(name="avg", element=FLOATS)
def _avg(a: Any, b: Any) -> Any:
    return a + b


@_avg.finish
def _(a: Any, ctx: Any) -> Any:
    return np.float64(a) / ctx.contributors  # rounded once to the result's format


@reduce_op(name="prod", element=[*FLOATS, *WHOLES])
def _prod(a: Any, b: Any) -> Any:
    return a * b


def premul_sum(factor: float | str) -> ReduceOp:
    """The sum of the elements, each multiplied by a factor first, in the accumulator's format.

    Raises:
        ArgumentError: the factor is no number.
    """
    try:
        scale = float(factor)
    except (TypeError, ValueError):
        raise ArgumentError(f"premul_sum of factor {factor!r}: use a number") from None

    @reduce_op(name="premul_sum", element=FLOATS)
    def merge(a: Any, b: Any) -> Any:
        return a + b

    @merge.lift
    def _(x: Any) -> Any:
        return x * scale

    return merge


def sat_sum(element: str | np.dtype | type | Format) -> ReduceOp:
    """The sum of integers that stays at the ends of their range, at every addition.

    Raises:
        ArgumentError: an unknown format, or the element is no integer.
    """
    return _sat_sum(format_of(element))


@cache
def _sat_sum(element: Format) -> ReduceOp:
    """One op for the same format."""
    if element.kind not in ("int", "uint"):
        raise ArgumentError(f"sat_sum of {element.name}: use integers")
    low, high = (int(x) for x in (np.iinfo(element.dtype).min, np.iinfo(element.dtype).max))

    def narrow(a: Any, b: Any) -> Any:
        return min(max(a + b, low), high)  # computed in int64

    def wide(a: Any, b: Any) -> Any:
        total = a + b
        if ((a ^ total) & (b ^ total)) < 0:  # the sign of both is not that of the sum
            return high if a >= 0 else low
        return total

    merge = wide if element.size == 8 else narrow
    return reduce_op(name="sat_sum", element=element.name)(merge)


# ---- extremes ------------------------------------------------------------------------------------
# IEEE 754-2019 maximumNumber and minimumNumber, as the cores' vfmax and vfmin: one NaN gives the
# other operand, -0 is below +0
@reduce_op(name="max")
def _max(a: Any, b: Any) -> Any:
    return np.fmax(a, b)


@reduce_op(name="min")
def _min(a: Any, b: Any) -> Any:
    return np.fmin(a, b)


# maximum and minimum: a NaN is the result, -0 is below +0
@reduce_op(name="maximum")
def _maximum(a: Any, b: Any) -> Any:
    return np.maximum(a, b)


@reduce_op(name="minimum")
def _minimum(a: Any, b: Any) -> Any:
    return np.minimum(a, b)


@reduce_op(name="argmax", accumulator=(("value", "element"), ("rank", "int32"), ("index", "int64")))
def _argmax(a: Any, b: Any) -> Any:
    """The greatest element, the rank that has it and its place; of equal ones the first merged."""
    return b if b.value > a.value or a.value != a.value else a


@_argmax.lift
def _(x: Any, ctx: Any) -> Any:
    return x, ctx.rank, ctx.element


# ---- norms ---------------------------------------------------------------------------------------
@reduce_op(name="l2norm", element=FLOATS)
def _l2norm(a: Any, b: Any) -> Any:
    return a + b


@_l2norm.lift
def _(x: Any) -> Any:
    return x * x


@_l2norm.finish
def _(a: Any) -> Any:
    return math.sqrt(a)


def _scaled(total: Any, own: Any, top: Any) -> Any:
    return total * math.exp(own - top) if own < top else total


@reduce_op(name="logsumexp", element=FLOATS, accumulator=(("top", "float32"), ("total", "float32")))
def _logsumexp(a: Any, b: Any) -> Any:
    """The greatest exponent, and the sum of exp(x - top): nothing overflows."""
    top = np.maximum(a.top, b.top)
    return top, _scaled(a.total, a.top, top) + _scaled(b.total, b.top, top)


@_logsumexp.lift
def _(x: Any) -> Any:
    return x, 1.0


@_logsumexp.finish
def _(a: Any) -> Any:
    return a.top + math.log(a.total)


# ---- bits ----------------------------------------------------------------------------------------
@reduce_op(name="band", element=[*WHOLES, *BOOL])
def _band(a: Any, b: Any) -> Any:
    return a & b


@reduce_op(name="bor", element=[*WHOLES, *BOOL])
def _bor(a: Any, b: Any) -> Any:
    return a | b


@reduce_op(name="bxor", element=[*WHOLES, *BOOL])
def _bxor(a: Any, b: Any) -> Any:
    return a ^ b


# ---- stochastic rounding -------------------------------------------------------------------------
def _mixed(h: Any, word: Any) -> Any:
    """32 bits that depend on all bits of both."""
    h = np.uint32((h ^ np.uint32(word)) * np.uint32(0x9E3779B1))
    h = np.uint32((h ^ (h >> np.uint32(15))) * np.uint32(0x85EBCA6B))
    return h ^ (h >> np.uint32(13))


def _random(ctx: Any) -> Any:
    """32 bits for this addition: of what it is, not of what was before it."""
    h = _mixed(np.uint32(ctx.seed), ctx.seed >> 32)
    h = _mixed(h, ctx.seq)
    h = _mixed(h, ctx.chunk)
    h = _mixed(h, ctx.device)
    h = _mixed(h, ctx.child)
    return _mixed(_mixed(h, ctx.element), ctx.element >> 32)


def stochastic_sum(element: str | np.dtype | type | Format) -> ReduceOp:
    """The sum in the element's own format, rounded up as often as the exact sum lies above.

    Each addition is computed in float32 and rounded to one of its two neighbours, with the
    probability of its distance from the other.  The random bits are a hash of the seed, the
    collective, chunk, device, child and element: the same whatever happens on the way.

    Raises:
        ArgumentError: an unknown format, or the element is neither float16 nor bfloat16.
    """
    return _stochastic_sum(format_of(element))


@cache
def _stochastic_sum(element: Format) -> ReduceOp:
    """One op for the same format."""
    if element.name not in ("float16", "bfloat16"):
        raise ArgumentError(f"stochastic_sum of {element.name}: use float16 or bfloat16")
    cut = 23 - element.fraction_bits
    below = (1 << cut) - 1  # the digits of a float32 that the element does not have
    bias = (1 << (element.exponent_bits - 1)) - 1
    unit = 2.0**-cut
    # subnormal numbers have less digits; those of bfloat16 are cut off a float32 as all others are
    normal = 0.0 if element.exponent_bits == 8 else 2.0 ** (1 - bias)
    smallest = 2.0 ** (1 - bias - element.fraction_bits)

    @reduce_op(name="stochastic_sum", element=element.name, preset="per-add")
    def merge(a: Any, b: Any, ctx: Any) -> Any:
        total = a + b
        chance = _random(ctx) >> np.uint32(32 - cut)
        if abs(total) < normal:
            return math.floor(total / smallest + np.float32(chance) * unit) * smallest
        if math.isfinite(total):
            return from_bits(np.uint32((bits(total) + chance) & np.uint32(0xFFFFFFFF - below)))
        return total

    return merge


# ---- by name -------------------------------------------------------------------------------------
_OPS: dict[str, ReduceOp] = {
    op.name: op
    for op in (
        _sum, _avg, _prod, _max, _min, _maximum, _minimum, _argmax, _l2norm, _logsumexp, _band,
        _bor, _bxor,
    )
}  # fmt: skip
#: ops that are made for one element format each
_FAMILIES: dict[str, Callable[[Format], ReduceOp]] = {
    "sat_sum": sat_sum,
    "stochastic_sum": stochastic_sum,
}
#: how premul_sum is named, which needs its factor
PREMUL_SUM = "premul_sum:FACTOR"
#: the names of all others
BUILTINS: tuple[str, ...] = (*_OPS, *_FAMILIES)


@cache
def _premul_sum(factor: str) -> ReduceOp:
    """One op for the same text."""
    return premul_sum(factor)


def builtin(op: str, element: str | np.dtype | type | Format) -> ReduceOp:
    """A built-in op for elements of a format.

    Args:
        op: one of BUILTINS, or "premul_sum:0.5" with the factor behind.
        element: the format.

    Raises:
        ArgumentError: unknown op or format, or the op is not for that format.
    """
    name, colon, factor = op.partition(":") if isinstance(op, str) else (op, "", "")
    if isinstance(op, str) and name == "premul_sum":
        if not colon:
            raise ArgumentError("op 'premul_sum' has no factor: write it behind, 'premul_sum:0.5'")
        return _premul_sum(factor)
    known("op", op, BUILTINS, f" or {PREMUL_SUM}")
    row = format_of(element)
    return _OPS[op] if op in _OPS else _FAMILIES[op](row)


def kernel(
    op: str,
    element: str | np.dtype | type | Format,
    preset: str | None = None,
    machine: str | Machine | None = None,
) -> KernelImage:
    """The kernel image of a built-in op, made when first asked for and kept in the cache.

    Args:
        op: "sum", "avg", "prod", "max", "min", "maximum", "minimum", "argmax", "l2norm",
            "logsumexp", "band", "bor", "bxor", "sat_sum", "stochastic_sum", or "premul_sum:0.5"
            with the factor behind.
        element: format of the workers' elements and of the result: a name ("bfloat16", "f16",
            ...), a dtype, or a row of nicemu.dtypes.
        preset: numerics: "wide" (float32 accumulator and partial sums), "per-hop" (float32
            accumulator, partial sums rounded) or "per-add" (rounded at every addition); None: the
            op's own, "wide" as a rule.
        machine: whose cores run it, preset name or :class:`nicemu.Machine`; None: cores that have
            everything.

    Raises:
        ArgumentError: unknown op, format, preset or machine.
        OpError: the op is not for that format, or not for these cores.
        ImageError: the image cannot be built.
    """
    return builtin(op, element).image(element, preset, machine)


def is_builtin(image: KernelImage, machine: Machine) -> bool:
    """Is its code that of the op of its name which comes with nicemu?

    Args:
        image: of any op.
        machine: it is for the cores of this one, or for those that have everything.
    """
    try:
        op = builtin(image.op, image.element)
        images = (op.image(image.element, image.preset, m) for m in (machine, None))
        return any(own.code == image.code for own in images)
    except (ArgumentError, OpError):  # there is none of that name, for that element
        return False
