"""The reduce ops that come with nicemu, as rows.

Owns: their scalar functions, in LLVM IR.  How a row becomes an image is compile's task.
"""

from __future__ import annotations

from functools import cache

import numpy as np

from nicemu.compile import Op, compile_op
from nicemu.dtypes import Format, format_of
from nicemu.errors import ArgumentError
from nicemu.image import KernelImage

__all__ = ["OPS", "kernel"]

_ADD = "%r = fadd {T} %a, %b"

# max and min are IEEE 754-2019 maximumNumber and minimumNumber, as the cores' vfmax and vfmin:
# one NaN gives the other operand, -0 is below +0.
OPS: dict[str, Op] = {
    row.name: row
    for row in (
        Op("sum", merge=_ADD, adds=True),
        Op("prod", merge="%r = fmul {T} %a, %b"),
        Op("max", merge="%r = call {T} @llvm.maximumnum.{t}({T} %a, {T} %b)"),
        Op("min", merge="%r = call {T} @llvm.minimumnum.{t}({T} %a, {T} %b)"),
        Op("avg", merge=_ADD, finish="%r = call float @quotient(float %a, float %n)", adds=True),
    )
}


def kernel(op: str, element: str | np.dtype | type | Format, preset: str = "wide") -> KernelImage:
    """The kernel image of a built-in op, built when first asked for and kept in the cache.

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
    row = element if isinstance(element, Format) else format_of(element)
    return _image(op, row, preset)


@cache
def _image(op: str, element: Format, preset: str) -> KernelImage:
    return compile_op(OPS[op], element, preset)
