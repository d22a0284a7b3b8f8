"""What a reduction must give: by the exact reference where that knows the op, else by the op on the
host.

Owns: which of the two is asked, and with what.  The arithmetic is theirs; what a difference means
is the caller's affair.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from nicemu.collectives.collective import Result
from nicemu.collectives.communicator import Communicator
from nicemu.collectives.partials import Share
from nicemu.device.image import Context, KernelImage
from nicemu.dtypes import GRADIENTS, Format
from nicemu.errors import ArgumentError
from nicemu.ops.builtin import builtin
from nicemu.ops.op import ReduceOp
from nicemu.order import Path
from nicemu.reference.arithmetic import OPS
from nicemu.reference.tree import reduce_tree

__all__ = ["as_bits", "expected", "reference_of"]


def reference_of(op: ReduceOp, fmt: Format) -> str:
    """Who knows what an op gives: "exact", "host", or "nobody".

    The exact reference knows some built-in ops; the host runs all but assembly.
    """
    if op.name in OPS and fmt in GRADIENTS and op is builtin(op.name, fmt):
        return "exact"
    return "host" if op.runs_on_host else "nobody"


def expected(
    op: ReduceOp,
    fmt: Format,
    image: KernelImage,
    world: Communicator,
    result: Result,
    streams: Sequence[np.ndarray],
    *,
    seq: int = 0,
    seed: int = 0,
) -> np.ndarray:
    """The whole array that a reduction must give, shape (count,), as bits.

    Args:
        op: that was reduced with.
        fmt: of the elements.
        image: of the op.
        world: whose collective it was.
        result: of that: it says who merged whom.
        streams: what each rank gave, shape (count,), as it was before.
        seq: which of the communicator's collectives it was.
        seed: of the collective.

    Raises:
        ArgumentError: nothing was reduced in an order; nobody knows the op; or hosts reduced with
            one that asks the context what differs from device to device.
        StatusError: the op raises an exception.
    """
    if not result.shares:
        raise ArgumentError(f"{result.collective}: nothing was reduced, or in order of arrival")
    if (who := reference_of(op, fmt)) == "nobody":
        raise ArgumentError(f"{op.name} is assembly, which only cores run: nothing to compare with")
    parts = []
    for share in result.shares:
        inputs = [x[share.elements.start : share.elements.stop] for x in streams]
        if who == "exact":
            values = reduce_tree(op.name, fmt, share.order, inputs, image.preset).result
        else:
            context = Context(seq=seq, seed=seed, element=share.elements.start)
            how: dict[str, Any] = {"preset": image.preset, "order": share.order, "context": context}
            if where := _devices(world, share):
                chunk = world.chunk(image)
                values = op.reference(inputs, **how, chunk=chunk, devices=where)
            else:
                values = _by_hosts(op, inputs, result.algorithm, how)
        parts.append(as_bits(values))
    return np.concatenate(parts)


def _by_hosts(
    op: ReduceOp, inputs: Sequence[np.ndarray], algorithm: str, how: dict[str, Any]
) -> np.ndarray:
    try:
        return op.reference(inputs, **how)
    except ArgumentError as error:
        raise ArgumentError(
            f"{op.name} by {algorithm}: asks the context what differs from host to host: reduce "
            "in-network, or do not check"
        ) from error


def _devices(world: Communicator, share: Share) -> dict[Path, int] | None:
    """Numbers of the devices in the order; None of hosts, which have none."""
    devices = world.fabric.devices
    if any(name not in devices for name in share.names.values()):
        return None
    return {path: devices[name].number for path, name in share.names.items()}


def as_bits(values: np.ndarray) -> np.ndarray:
    """Items as bytes that can be compared, whatever they are."""
    return values.view(f"V{values.itemsize}")
