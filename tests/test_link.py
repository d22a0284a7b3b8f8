"""Links: how often they do what, and that each frame's fate is its own."""

from __future__ import annotations

import numpy as np
import pytest

from nicemu import kernel
from nicemu.network.counters import FabricCounters, LinkCounters
from nicemu.network.exchange import Exchange
from nicemu.network.fabric import Fabric
from tests.fabrics import allreduce, streams, sums_up


def counters(**faults: float) -> FabricCounters:
    """Of some 8,000 frames over clean links but for the faults."""
    fabric = Fabric(2, "star", mtu=256, seed=7, **faults)  # type: ignore[arg-type]
    with fabric.group(window=64) as group:
        inputs = [np.ones(250_000, np.float16)] * 2
        group.start(Exchange(kernel("sum", "float16"), inputs, [None, None])).wait()
        fabric.run()
    sums_up(fabric.counters())
    return fabric.counters()


@pytest.mark.parametrize("p", [0.0, 0.01, 0.2, 0.5])
@pytest.mark.parametrize(
    ("fault", "count"),
    [
        ("loss", "lost"),
        ("duplicate", "duplicated"),
        ("reorder", "reordered"),
        ("corrupt", "corrupted"),
    ],
)
def test_probabilities(fault: str, count: str, p: float) -> None:
    c = counters(**{fault: p})
    others = {"lost", "duplicated", "reordered", "corrupted"} - {count}
    assert not any(getattr(c, other) for other in others)
    sigma = (c.sent * p * (1 - p)) ** 0.5
    assert abs(getattr(c, count) - p * c.sent) <= 4 * sigma
    assert c.sent > 7800


def test_certain_events() -> None:
    c = counters(duplicate=1.0, reorder=1.0)
    assert c.duplicated == c.sent and c.reordered == 2 * c.sent == c.delivered


def test_a_corrupted_copy_does_not_spoil_the_other() -> None:
    """With every frame duplicated and three of ten copies corrupted, resends are rare."""
    c = counters(duplicate=1.0, corrupt=0.3)
    assert c.resent < 0.25 * c.sent


def test_delay() -> None:
    """Two links up, two down; jitter adds to each."""

    def time(**options: float) -> float:
        fabric = Fabric(2, "tree(2)", delay=100e-6, **options)  # type: ignore[arg-type]
        run = allreduce(fabric, 1)
        assert run.ticket.time is not None
        return run.ticket.time

    clean = time()
    assert 200e-6 < clean < 201e-6
    assert clean < time(jitter=20e-6) < clean + 40e-6
    assert time(reorder=1.0) > clean


def test_a_fate_depends_on_nothing_but_seed_link_and_number() -> None:
    """What happens to the frames of a link is not altered by frames on other links."""

    def counters(ranks: list[int], seed: int = 5) -> LinkCounters:
        fabric = Fabric(4, "tree(2)", seed=seed, duplicate=0.1, reorder=0.1, corrupt=0.1)
        groups = [fabric.group([rank]) for rank in ranks]
        inputs = streams(1, 50_000, "float32")
        for group in groups:
            group.start(Exchange(kernel("sum", "float32"), inputs, [None]))
        fabric.run(1.5e-6)
        return fabric.link("rank0", "nic0").counters()

    alone = counters([0])
    assert alone == counters([0]) == counters([2, 0, 3, 1])
    assert len({counters([0], seed) for seed in range(8)}) > 4


def test_a_link_that_goes_down_loses_what_is_under_way() -> None:
    fabric = Fabric(1, "star", delay=10e-6)
    with fabric.group(window=4) as group:
        inputs = streams(1, 5000)
        ticket = group.start(Exchange(kernel("sum", "bfloat16"), inputs, [None]))
        link = fabric.link("nic0", "rank0")
        link.down(at=5e-6)
        link.up(at=6e-6)  # up again when they would have arrived
        fabric.run(until=9.9e-6)
        assert fabric.counters().under_way == 4
        fabric.run(until=11e-6)
        assert (fabric.counters().under_way, fabric.counters().cut) == (0, 4)
        ticket.wait()
    assert fabric.counters().resent == 4
    sums_up(fabric.counters())
