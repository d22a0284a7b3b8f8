"""The least time of a collective: its formulas by hand, and that no run is faster."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import nicemu
from nicemu.collectives import communicator
from nicemu.collectives.algorithms import ALGORITHMS
from nicemu.collectives.collective import COLLECTIVES, Collective
from nicemu.collectives.least import Bound
from nicemu.device.machine import Network
from nicemu.errors import TimingError
from tests.fabrics import streams

NETWORK = Network()
EVERY = ("in-network", *ALGORITHMS)
FRAME = 86 + 4 + NETWORK.overhead  # bytes beside a payload


def run(
    algorithm: str, ranks: int, topology: str, count: int, preset: str = "wide", **options: Any
) -> nicemu.Result:
    fabric = nicemu.Fabric(ranks, topology, time="packet", mtu=4096, **options)
    world = nicemu.Communicator(fabric, algorithm=algorithm, window=64)
    return world.allreduce(streams(ranks, count), preset=preset)


@pytest.mark.parametrize("algorithm", EVERY)
@pytest.mark.parametrize("software", [0.0, 1e-6])
def test_of_one_frame_it_lacks_what_is_no_link(algorithm: str, software: float) -> None:
    """Two ranks, 4 bytes: the time but for DMA, cores and queues, to the nanosecond."""
    result = run(algorithm, 2, "star", 2, network=replace(NETWORK, software=software))
    assert result.spent is not None and result.time is not None
    rest = sum(result.spent[name] for name in ("DMA", "core", "queueing"))
    assert result.bound == pytest.approx(result.time - rest, abs=1e-9)


@pytest.mark.parametrize(
    ("algorithm", "ranks", "topology", "payload"),
    [
        # 16 cards, 4 behind each NIC, whose link to the leaf is the slowest
        ("ring", 16, "cards", 2 * 15 / 16),  # one neighbour is behind it: each half 15/16
        ("halving-doubling", 16, "cards", 2 * 3 / 4),  # 4 ranks' 1/8 and 1/16, each half
        ("in-network", 16, "cards", 1),  # each element goes up once
        ("ring", 4, "star", 2 * 3 / 4),
        ("halving-doubling", 4, "star", 2 * 3 / 4),
        ("in-network", 4, "star", 1),
    ],
)
def test_of_a_large_array_it_is_the_busiest_links(
    algorithm: str, ranks: int, topology: str, payload: float
) -> None:
    """So many times the array's bytes, in frames, where partial sums are no wider than elements."""
    size = 1 << 20
    result = run(algorithm, ranks, topology, size // 2, "per-add")
    links = 8 * payload * size * (1 + FRAME / 4096) / NETWORK.rate
    assert result.bound is not None and result.time is not None
    assert links < result.bound < 1.12 * links
    assert result.bound < result.time


def test_wide_partial_sums_take_twice_the_uplinks() -> None:
    wide, narrow = (run("in-network", 16, "cards", 1 << 19, p).bound for p in ("wide", "per-hop"))
    assert wide is not None and narrow is not None
    assert wide == pytest.approx(2 * narrow, rel=0.1)


def crossing(fabric: nicemu.Fabric, record: Collective, root: int, size: int) -> float:
    """Seconds that the slowest link needs for what ranks on one side of it give and those on the
    other side take, whoever adds what with whom.

    Args:
        fabric: a timed one.
        record: the collective.
        root: of reduce and broadcast.
        size: bytes of the whole array.
    """
    ranks = set(range(fabric.ranks))
    slowest = 0.0
    for link in fabric.links():
        device = fabric.devices.get(link.child)
        below = set(device.ranks) if device else {int(link.child.removeprefix("rank"))}
        for here, there in ((below, ranks - below), (ranks - below, below)):
            given, taken = (  # the whole: an element for each rank
                {one for rank in side for one in stretch(rank, len(ranks), root, len(ranks))}
                for side, stretch in ((here, record.gives), (there, record.takes))
            )
            if part := len(given & taken) / len(ranks):
                assert link.rate is not None
                bits = 8 * size * part / fabric.planes
                slowest = max(slowest, link.delay + bits / link.rate)
    return slowest


@pytest.mark.parametrize("topology", ["star", "cards", "tree(2)"])
@pytest.mark.parametrize("algorithm", EVERY)
@pytest.mark.parametrize("ranks", [2, 3, 5, 8])
def test_it_is_no_less_than_what_has_to_cross_a_link(
    algorithm: str, topology: str, ranks: int
) -> None:
    """Of any collective, for any root."""
    fabric = nicemu.Fabric(ranks, topology, time="only", mtu=4096)
    world = nicemu.Communicator(fabric, algorithm=algorithm)
    array = np.broadcast_to(np.zeros((), np.float32), 30_000 * ranks)
    for name, record in COLLECTIVES.items():
        if not record.carries:
            continue
        size = array.nbytes * (ranks if name == "all_gather" else 1)
        for root in range(ranks) if record.rooted else (0,):
            given: Any = array if name == "broadcast" else [array] * ranks
            result = world.start(name, given, root=root).wait()
            assert result.bound is not None
            assert 0 < crossing(fabric, record, root, size) < result.bound, (name, root)


@pytest.mark.parametrize("topology", ["star", "cards", "tree(2)"])
@pytest.mark.parametrize("ranks", [1, 2, 3, 5, 7, 16])
@pytest.mark.parametrize("algorithm", EVERY)
def test_no_run_is_faster(algorithm: str, ranks: int, topology: str) -> None:
    """Of any collective, from one element on; and in small arrays it is not far off."""
    slow = replace(NETWORK, software=5e-7)
    fabric = nicemu.Fabric(ranks, topology, time="packet", planes=1 + ranks % 2, network=slow)
    world = nicemu.Communicator(fabric, algorithm=algorithm)
    for count in (1, 2 * ranks, 1500 * ranks):
        arrays = streams(ranks, count)
        for name, record in COLLECTIVES.items():
            if record.parted and count % ranks:
                continue
            given: Any = {"broadcast": arrays[-1], "barrier": []}.get(name, arrays)
            for root in (0, ranks // 2, ranks - 1) if record.rooted else (0,):
                result = world.start(name, given, root=root).wait()
                assert result.time is not None and result.bound is not None
                assert 0 <= result.bound <= result.time + 1e-12
                if count < 3 * ranks and name in ("allreduce", "barrier"):
                    assert result.bound > 0.6 * result.time


@pytest.mark.parametrize("topology", ["star", "tree(2)"])
@pytest.mark.parametrize("algorithm", EVERY)
@pytest.mark.parametrize("planes", [1, 2])
def test_no_run_is_faster_over_slow_links(planes: int, algorithm: str, topology: str) -> None:
    """Which take longer than DMA and cores; of frames that planes share evenly, and others."""
    ranks, mtu = 4, 256
    slow = replace(NETWORK, rate=1e9)
    fabric = nicemu.Fabric(ranks, topology, time="only", planes=planes, mtu=mtu, network=slow)
    world = nicemu.Communicator(fabric, algorithm=algorithm)
    for frames in (1, 2, 3, 4, 16):
        for count in (mtu * frames, mtu * (frames - 1) + ranks):  # the last is full, or small
            array = np.broadcast_to(np.zeros((), np.int8), count)
            for name in COLLECTIVES:
                given: Any = {"broadcast": array, "barrier": []}.get(name, [array] * ranks)
                result = world.start(name, given).wait()
                assert result.time is not None and result.bound is not None
                assert result.bound <= result.time + 1e-12
                if algorithm == "in-network" and name == "allreduce" and count == mtu * frames:
                    assert result.bound > 0.6 * result.time


def test_a_time_below_it_is_no_result(monkeypatch: pytest.MonkeyPatch) -> None:
    right = communicator.bound_of
    result = run("ring", 2, "star", 100)
    assert result.bound is not None and result.bound > 1e-6 / 2

    def twice(*args: Any) -> Bound:
        found = right(*args)
        return Bound(2 * found.latency, 2 * found.bandwidth)

    monkeypatch.setattr(communicator, "bound_of", twice)
    for algorithm in EVERY:
        with pytest.raises(
            TimingError, match=f"allreduce by {algorithm} of 2 ranks in .* us: it takes"
        ):
            run(algorithm, 2, "star", 100)


def test_nothing_to_bound() -> None:
    assert run("ring", 4, "star", 0).bound == 0
    world = nicemu.Communicator(nicemu.Fabric(2, "star"), algorithm="ring")
    assert world.allreduce([np.ones(3, np.float32)] * 2).bound is None


@pytest.mark.parametrize(
    ("element", "presets"),
    [
        ("bfloat16", ("wide", "per-hop")),
        ("float8_e4m3fn", ("per-hop", "per-add")),  # only their accumulators differ in size
    ],
)
def test_of_collectives_one_after_another(element: str, presets: tuple[str, str]) -> None:
    """What a communicator keeps of one is not taken for that of another."""
    fabric = nicemu.Fabric(5, "cards", time="packet", mtu=256)
    inputs = {count: streams(5, count, element) for count in (10, 700)}
    calls = [
        (name, algorithm, count, root, preset)
        for name in ("allreduce", "reduce", "broadcast")
        for algorithm in EVERY
        for count in inputs
        for root in ((0, 4) if COLLECTIVES[name].rooted else (0,))
        for preset in presets
    ]
    found: list[list[float | None]] = [[], []]
    kept = nicemu.Communicator(fabric, window=4)
    for name, algorithm, count, root, preset in calls:
        how: dict[str, Any] = {"algorithm": algorithm}
        how |= {"root": root} if COLLECTIVES[name].rooted else {}
        how |= {} if name == "broadcast" else {"preset": preset}
        given = inputs[count][root] if name == "broadcast" else inputs[count]
        found[0].append(getattr(kept, name)(given, **how).bound)
        with nicemu.Communicator(fabric, window=4) as new:
            found[1].append(getattr(new, name)(given, **how).bound)
    assert found[0] == found[1] and len(set(found[0])) > 10
