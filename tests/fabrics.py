"""What tests of the fabric have in common: streams, runs against the reference, frames by hand."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import HealthCheck, settings

from nicemu import kernel
from nicemu.dtypes import format_of
from nicemu.network.counters import FabricCounters
from nicemu.network.exchange import Exchange
from nicemu.network.fabric import Fabric, Group, Ticket
from nicemu.network.packet import Kind, Packet, build
from nicemu.reference.tree import reduce_tree

Array = np.ndarray

#: every fault at once
FAULTS: dict[str, Any] = {"loss": 0.2, "duplicate": 0.2, "reorder": 0.3, "corrupt": 0.01}
SENTINEL = 0x5A


def machine_settings(examples: int, steps: int) -> settings:
    """Of a state machine: repeatable, and told of the first failure; more by the environment."""
    return settings(
        max_examples=int(os.environ.get("NICEMU_MACHINE_EXAMPLES", examples)),
        stateful_step_count=steps,
        deadline=None,
        derandomize=True,
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
    )


def streams(n: int, count: int, element: str = "bfloat16", seed: int = 1) -> list[Array]:
    """Finite values of mixed size; a sum in another order has other bits."""
    rng = np.random.default_rng(seed)
    dtype = format_of(element).dtype
    return [
        (rng.normal(size=count) * rng.choice([0.01, 1, 300], size=count))
        .astype(np.float32)
        .astype(dtype)
        for _ in range(n)
    ]


def guarded(count: int, dtype: np.dtype) -> tuple[Array, Array]:
    """An array to be written, and the bytes behind its end, which may not be."""
    raw = np.full(count * dtype.itemsize + 64, SENTINEL, np.uint8)
    return raw[: count * dtype.itemsize].view(dtype), raw[count * dtype.itemsize :]


def sums_up(counters: FabricCounters) -> None:
    """Every frame is accounted for, once."""
    c = counters
    assert c.sent + c.duplicated == c.delivered + c.lost + c.cut + c.under_way
    assert c.delivered + c.injected == c.accepted + sum(c.drops.values())
    assert c.corrupted >= c.damaged


@dataclass(frozen=True)
class Run:
    """An allreduce that has ended well."""

    fabric: Fabric
    group: Group
    ticket: Ticket
    inputs: list[Array]
    result: Array


def allreduce(
    fabric: Fabric,
    count: int,
    *,
    op: str = "sum",
    element: str = "bfloat16",
    preset: str = "wide",
    window: int = 16,
    partials: bool = True,
    ranks: Sequence[int] | None = None,
    seed: int = 1,
) -> Run:
    """Run one and hold it against the reference: all ranks, every partial sum, all counters."""
    image = kernel(op, element, preset)
    n = fabric.ranks if ranks is None else len(ranks)
    inputs = streams(n, count, element, seed)
    before = [x.copy() for x in inputs]
    outputs, ends = zip(
        *(guarded(count, format_of(image.result).dtype) for _ in range(n)), strict=True
    )
    with fabric.group(ranks, window=window) as group:
        ticket = group.start(Exchange(image, inputs, outputs, partials=partials))
        ticket.wait()
        fabric.run()
    for output, end in zip(outputs, ends, strict=True):
        assert output.tobytes() == outputs[0].tobytes()
        assert (end == SENTINEL).all()
    assert all(x.tobytes() == y.tobytes() for x, y in zip(inputs, before, strict=True))
    sums_up(fabric.counters())
    if group.order is not None:
        want = reduce_tree(op, element, group.order, inputs, preset)
        assert outputs[0].tobytes() == want.result.tobytes()
        found = ticket.partials()
        assert set(found) == (set(group.names) if partials else set())
        for name in found:
            assert found[name].values.tobytes() == want.partials[group.names[name]].tobytes()
            assert (found[name].times > 0).all()
    return Run(fabric, group, ticket, inputs, outputs[0])


# ---- frames by hand ------------------------------------------------------------------------------


class Wire:
    """A fabric whose links carry nothing: what a device gets, it gets from the test."""

    def __init__(
        self,
        workers: int = 2,
        count: int = 64,
        *,
        window: int = 2,
        topology: Any = "star",
        node: str = "nic0",
        **options: Any,
    ) -> None:
        """Start an allreduce of float32 in chunks of 64 elements, and cut every link."""
        self.fabric = Fabric(workers, topology, mtu=256, **options)
        for link in self.fabric.links():
            link.down()
        self.fabric.run()
        self.node = node
        self.inputs = streams(workers, count, "float32")
        self.outputs = [np.zeros(count, np.float32) for _ in range(workers)]
        self.group = self.fabric.group(window=window)
        self.image = kernel("sum", "float32")
        self.ticket = self.group.start(
            Exchange(self.image, self.inputs, self.outputs, partials=True)
        )

    def up(self, child: int, chunk: int, **fields: Any) -> Packet:
        """The contribution of a worker to a chunk."""
        window = self.group.window
        payload = self.inputs[child][64 * chunk : 64 * (chunk + 1)].tobytes()
        packet = {
            "kind": Kind.UP,
            "group": self.group.number,
            "chunk": chunk,
            "round": chunk // window,
            "lane": chunk % window,
            "child": child,
            "element": "f32",
            "src": 1 + child,
            "dst": self.fabric.devices[self.node].node,
            "payload": payload,
        }
        return Packet(**{**packet, **fields})

    def down(self, worker: int, chunk: int, values: Array, **fields: Any) -> Packet:
        """The result of a chunk, for a worker."""
        packet = self.up(worker, chunk)
        changed = {
            **{
                name: getattr(packet, name) for name in ("group", "chunk", "round", "lane", "child")
            },
            "kind": Kind.DOWN,
            "contributors": len(self.inputs),
            "element": "f32",
            "src": self.fabric.devices[self.node].node,
            "dst": 1 + worker,
            "payload": values.tobytes(),
        }
        return Packet(**{**changed, **fields})

    def receive(self, packet: Packet | bytes, node: str | None = None) -> str:
        """Let a frame arrive; "accepted", or why not.  What is refused has changed nothing."""
        before = self.fabric.digest()
        frame = packet if isinstance(packet, bytes) else build(packet)
        verdict = self.fabric.receive(node or self.node, frame)
        assert verdict == "accepted" or self.fabric.digest() == before
        return verdict

    def calls(self) -> int:
        """Handler calls so far."""
        return self.fabric.counters().calls
