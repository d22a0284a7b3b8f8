"""Times alone: ``Fabric(time="only")``, where calls take cycles that were counted before."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import nicemu
from nicemu.collectives.algorithms import ALGORITHMS
from nicemu.collectives.collective import COLLECTIVES
from nicemu.device.machine import MACHINES
from nicemu.errors import ArgumentError
from nicemu.ops.steady import check_steady
from tests.fabrics import streams

EVERY = ("in-network", *ALGORITHMS)


@pytest.mark.parametrize("collective", COLLECTIVES)
@pytest.mark.parametrize(("topology", "ranks"), [("star", 5), ("cards", 7), ("tree(2)", 8)])
@pytest.mark.parametrize("algorithm", EVERY)
def test_the_same_times(algorithm: str, topology: str, ranks: int, collective: str) -> None:
    """To the picosecond, and what they were spent on; the second time, too, when all is known."""
    arrays = [x.reshape(-1, 1) for x in streams(ranks, 8 * 7 * 5 * 12)]
    given: Any = {"broadcast": arrays[1], "barrier": []}.get(collective, arrays)
    root = 1 if COLLECTIVES[collective].rooted else 0
    results = []
    for how in ("packet", "only"):
        fabric = nicemu.Fabric(ranks, topology, time=how)
        world = nicemu.Communicator(fabric, algorithm=algorithm)
        found = [world.start(collective, given, root=root).wait() for _ in range(2)]
        results.append((found, fabric.counters()))
    (right, counted), (alone, again) = results
    for a, b in zip(right, alone, strict=True):
        assert (a.time, a.spent, a.bound) == (b.time, b.spent, b.bound)
        assert a.payload_bytes == b.payload_bytes
        assert b.values == [None] * ranks
    assert counted == again


@pytest.mark.parametrize("algorithm", EVERY)
def test_every_count_and_preset_has_cycles_of_its_own(algorithm: str) -> None:
    """One fabric, where the cycles of the one must not be taken for those of the other."""
    fabrics = [nicemu.Fabric(4, "cards", time=how) for how in ("packet", "only")]
    worlds = [nicemu.Communicator(fabric, algorithm=algorithm) for fabric in fabrics]
    for preset in ("wide", "per-hop", "per-add", "wide"):
        for count in (1, 100, 700, 2000):
            for op in ("sum", "max"):
                packet, only = (
                    world.allreduce(streams(4, count), op, preset=preset) for world in worlds
                )
                assert (packet.time, packet.spent) == (only.time, only.spent)


def test_64_nodes_of_4_cards() -> None:
    """1 MiB each, which nobody has to have."""
    shape = np.broadcast_to(np.zeros(1, nicemu.bfloat16), (1 << 19,))
    times = {}
    for algorithm in EVERY:
        fabric = nicemu.Fabric(256, "cards", time="only", mtu=4096)
        result = nicemu.Communicator(fabric, algorithm=algorithm).allreduce([shape] * 256)
        assert result.time is not None and result.bound is not None
        times[algorithm] = result.time
        assert result.bound < result.time < 0.01
    assert times["halving-doubling"] < times["ring"]


def halved(a: float, b: float) -> float:
    """As often as it takes."""
    total = a + b
    while total > 1.0:
        total = total * 0.5
    return total


def test_an_op_whose_cycles_depend_on_data_is_refused() -> None:
    op = nicemu.reduce_op(halved, name="halved")
    for algorithm in EVERY:
        fabric = nicemu.Fabric(2, "star", time="only")
        world = nicemu.Communicator(fabric, algorithm=algorithm)
        with pytest.raises(ArgumentError, match=r"of halved takes .* cycles for 65 items, by"):
            world.allreduce([np.ones(10, np.float32)] * 2, op)
        assert world.allreduce([np.ones(10, np.float32)] * 2).time is not None  # others go on


def test_an_op_whose_cycles_depend_on_the_rank_is_refused() -> None:
    def once_for_each_rank_before(x: int, ctx: nicemu.Context) -> int:
        for _ in range(ctx.rank):
            x = (x * 3) ^ 5
        return x

    op = nicemu.reduce_op(lambda a, b: a + b, name="odd", element="int32")
    op.lift(once_for_each_rank_before)
    scalar = MACHINES["cv32e40p"]
    with pytest.raises(ArgumentError, match="acc of odd takes"):
        check_steady(op.image(machine=scalar), scalar)


def test_a_machine_with_an_instruction_cache_is_refused() -> None:
    machine = MACHINES["pspin"]
    with pytest.raises(ArgumentError, match="or by what the core did before"):
        check_steady(nicemu.kernel("sum", "int32", None, machine), machine)


@pytest.mark.parametrize("options", [{"partials": True}, {"out": [np.ones(4, np.float32)] * 2}])
def test_what_needs_values_is_refused(options: dict[str, Any]) -> None:
    world = nicemu.Communicator(nicemu.Fabric(2, "star", time="only"))
    with pytest.raises(ArgumentError, match="with time='only', where nothing has values"):
        world.allreduce([np.ones(4, np.float32)] * 2, **options)
