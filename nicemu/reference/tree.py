"""The exact reference of a reduction in a tree of devices.

Owns: the bits of the result, and of the partial sum that leaves each device, for an order (see
order).  One device is the flat tuple ``(0, 1, 2, ...)``.  What one step computes is arithmetic's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from nicemu.dtypes import Format
from nicemu.errors import ArgumentError
from nicemu.order import Order, Path, devices, leaves
from nicemu.reference.arithmetic import Arithmetic, Array, arithmetic, blocks, checked

__all__ = ["TreeBits", "reduce_streams", "reduce_tree"]


@dataclass(frozen=True)
class TreeBits:
    """What a tree of devices must compute.

    Attributes:
        result: bits of the root's result, shape (count,), unsigned of the element's width.
        partials: path of a device -> bits of what `emit` gives for its accumulator, shape (count,),
            unsigned of the partial's width.  A path is the child indices from the root down; the
            root's own is (), and nothing but a record is made of its partial sum.
    """

    result: Array
    partials: dict[Path, Array]


def reduce_tree(
    op: str,
    element: str | np.dtype | Format,
    order: Order,
    streams: Sequence[Array],
    preset: str = "wide",
) -> TreeBits:
    """The bits of a tree's result and of every device's partial sum.

    Args:
        op: one of ``OPS``.  ``max`` and ``min`` are maximumNumber and minimumNumber of IEEE
            754-2019: a NaN loses against a number, and -0 < +0.
        element: format of elements and result: float16, bfloat16 or float32.
        order: who merges whom.
        streams: 1-D arrays of that dtype, all of one length; stream i is rank i.
        preset: ``wide`` accumulates in float32 and rounds once, at the root; ``per-hop`` rounds to
            the element format when a partial sum leaves a device; ``per-add`` rounds to it at every
            step.  ``avg`` divides the root's accumulator by the number of workers and rounds once.

    Returns:
        TreeBits.  Every NaN is the canonical one of its format.

    Raises:
        ArgumentError: an unknown op, preset or dtype, no stream, unequal streams, or an order that
            is no device, has an empty device, or names a rank twice or one that has no stream.
    """
    fmt, bits = checked(op, element, streams)
    device = _checked_order(order, len(bits))
    steps = arithmetic(op, fmt, preset)
    plan = list(devices(device))
    result = np.empty(len(bits[0]), fmt.bits_dtype)
    partials = {path: np.empty(len(result), steps.partial.bits_dtype) for path, _ in plan}
    with np.errstate(all="ignore"):
        for part in blocks(len(result)):
            for path, node in plan:
                total = _merged(steps, node, path, [b[part] for b in bits], partials, part)
                partials[path][part] = steps.emit(total)
            result[part] = steps.finish(total, len(leaves(device)))
    return TreeBits(result, partials)


def reduce_streams(
    op: str, element: str | np.dtype | Format, streams: Sequence[Array], preset: str = "wide"
) -> Array:
    """The bits of one device's result: the streams reduced in the order given.

    Arguments and errors are those of :func:`reduce_tree`.

    Returns:
        1-D array of the unsigned integer dtype of the element's width.
    """
    return reduce_tree(op, element, tuple(range(len(streams))), streams, preset).result


def _checked_order(order: Order, ranks: int) -> tuple[Order, ...]:
    if not isinstance(order, tuple) or any(not node for _, node in devices(order)):
        raise ArgumentError(f"order {order!r}: use nested tuples of ranks, none of them empty")
    found = sorted(leaves(order))
    if found[0] < 0 or found[-1] >= ranks or len(set(found)) < len(found):
        raise ArgumentError(f"order {order!r}: use ranks of 0..{ranks - 1}, each at most once")
    return order


def _merged(
    steps: Arithmetic,
    node: tuple[Order, ...],
    path: Path,
    bits: Sequence[Array],
    partials: Mapping[Path, Array],
    part: slice,
) -> Array:
    """The accumulator of a device when all its children are merged."""
    total: Array | None = None
    for i, child in enumerate(node):
        if isinstance(child, tuple):
            value = steps.load(partials[*path, i][part])
        else:
            value = steps.lift(bits[child])
        total = value if total is None else steps.merge(total, value)
    assert total is not None  # no device is empty
    return total
