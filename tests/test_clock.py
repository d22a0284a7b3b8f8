"""Virtual time, seen event by event from outside."""

from __future__ import annotations

import pytest

from nicemu import ArgumentError, Communicator, kernel
from nicemu.network import fabric as module
from nicemu.network.exchange import Exchange
from nicemu.network.fabric import Fabric
from tests.fabrics import FAULTS, allreduce, streams


@pytest.mark.parametrize("faults", [{}, {**FAULTS, "jitter": 3e-6}])
def test_time_never_goes_back(faults: dict[str, float], monkeypatch: pytest.MonkeyPatch) -> None:
    """... with more frames under way, in no order, than the queues hold."""
    monkeypatch.setattr(module, "SLICE", 1)
    fabric = Fabric(40, "star", mtu=256, seed=3, **faults)  # type: ignore[arg-type]
    with fabric.group(window=60) as group:
        inputs = streams(40, 30_000, "float16")
        ticket = group.start(Exchange(kernel("sum", "float16"), inputs, [None] * 40))
        assert fabric.counters().under_way > 1000
        now, steps = 0.0, 0
        while not ticket.done:
            fabric._step()
            assert fabric.now >= now
            now, steps = fabric.now, steps + 1
    assert steps >= 2 * 40 * 235


def test_run_until() -> None:
    fabric = Fabric(2, "star")
    with fabric.group() as group:
        ticket = group.start(Exchange(kernel("sum", "bfloat16"), streams(2, 10), [None] * 2))
        for until in (0.0, 0.5e-6, 0.999e-6):
            fabric.run(until)
            assert fabric.counters().delivered == 0
        fabric.run(1e-6)
        assert fabric.counters().delivered == 2
        assert not ticket.done
        fabric.run()
        assert ticket.done
        assert fabric.now == pytest.approx(
            100e-6, rel=0.2
        )  # the workers' timers, which find nothing
        with pytest.raises(ArgumentError, match="past"):
            fabric.link("rank0", "nic0").down(at=1e-6)


def test_results_do_not_depend_on_the_size_of_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    for size in (1, 7, 100_000):
        monkeypatch.setattr(module, "SLICE", size)
        run = allreduce(Fabric(5, "tree(2)", seed=2, **FAULTS), 3000)
        seen.append((run.fabric.counters(), run.fabric.now, run.ticket.time))
    assert seen[0] == seen[1] == seen[2]


def test_slices_end_where_handlers_do_much() -> None:
    """Ctrl-C and progress are looked at then: floating point in integers, few events."""
    fabric, seen = Fabric(2, "star", machine="pspin", mtu=4096), list[tuple[int, int]]()
    fabric.watch = lambda: seen.append(fabric.progress())
    with Communicator(fabric, algorithm="in-network") as world:
        world.allreduce(streams(2, 1 << 18, "float32"))
    work = sum(fabric.devices["nic0"].counters(core).instructions for core in range(32))
    assert fabric.counters().events < module.SLICE
    assert len(seen) > work >> 24 > 1
