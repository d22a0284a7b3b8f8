"""The reduce ops that come with nicemu, written as anybody's are.

Owns: their functions.  How they become images is op's and compile's task.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from nicemu.dtypes import Format
from nicemu.errors import ArgumentError
from nicemu.image import KernelImage
from nicemu.op import ReduceOp, reduce_op

__all__ = ["OPS", "kernel"]


@reduce_op(name="sum")
def _sum(a: Any, b: Any) -> Any:
    return a + b


@reduce_op(name="avg")
def _avg(a: Any, b: Any) -> Any:
    return a + b


@_avg.finish
def _(a: Any, ctx: Any) -> Any:
    return np.float64(a) / ctx.contributors  # rounded once to the result's format


@reduce_op(name="prod")
def _prod(a: Any, b: Any) -> Any:
    return a * b


# IEEE 754-2019 maximumNumber and minimumNumber, as the cores' vfmax and vfmin: one NaN gives the
# other operand, -0 is below +0
@reduce_op(name="max")
def _max(a: Any, b: Any) -> Any:
    return np.fmax(a, b)


@reduce_op(name="min")
def _min(a: Any, b: Any) -> Any:
    return np.fmin(a, b)


OPS: dict[str, ReduceOp] = {op.name: op for op in (_sum, _avg, _prod, _max, _min)}


def kernel(op: str, element: str | np.dtype | type | Format, preset: str = "wide") -> KernelImage:
    """The kernel image of a built-in op, made when first asked for and kept in the cache.

    Args:
        op: "sum", "prod", "max", "min" or "avg".
        element: format of the workers' elements and of the result: a name ("bfloat16", "f16",
            ...), a dtype, or a row of nicemu.dtypes.
        preset: numerics: "wide" (float32 accumulator and partial sums), "per-hop" (float32
            accumulator, partial sums rounded) or "per-add" (rounded at every addition).

    Raises:
        ArgumentError: unknown op, format or preset.
        ImageError: the image cannot be built.
    """
    if op not in OPS:
        raise ArgumentError(f"op {op!r} is unknown: use one of {', '.join(OPS)}")
    return OPS[op].image(element, preset)
