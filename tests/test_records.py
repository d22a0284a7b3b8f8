"""The critical path of a collective: the steps of the longest way to its end."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import nicemu
from nicemu.device.machine import MACHINES, Network
from nicemu.network.records import Span, What
from tests.fabrics import FAULTS, streams

NETWORK = Network()
SLOW = replace(MACHINES["card"], name="slow", dma_bytes=4)


def run(
    ranks: int, topology: Any, count: int, algorithm: str = "in-network", **options: Any
) -> tuple[nicemu.Fabric, nicemu.Result]:
    fabric = nicemu.Fabric(ranks, topology, time="packet", **options)
    fabric.record()
    world = nicemu.Communicator(fabric, algorithm=algorithm)
    return fabric, world.allreduce(streams(ranks, count))


def check(fabric: nicemu.Fabric, result: nicemu.Result, cards: bool) -> None:
    """Steps follow one another, and take what the time was spent on but for what is between."""
    path, spent, machine = result.path, result.spent, fabric.machine
    assert path and spent is not None and result.time is not None
    assert all(a.end <= b.begin for a, b in pairwise(path))
    assert path[-1].end - path[0].begin < result.time + 1e-15
    took = dict.fromkeys(("wire", "PCIe", "DMA", "core", "conflicts"), 0.0)
    spans = fabric.spans()
    for step in path:
        span = Span._make(spans[step.record - 1].tolist())
        lasts = step.end - step.begin
        assert span.kind in (What.LINK, What.DMA, What.CORE) and lasts > 0
        if span.kind == What.LINK:
            link = fabric.links()[span.where // 2]
            pcie = cards and link.child.startswith("rank")
            took["PCIe" if pcie else "wire"] += lasts + NETWORK.pcie_delay * pcie
        elif span.kind == What.DMA:
            took["DMA"] += lasts
        else:
            took["conflicts"] += span.conflicts * 1e-9
            took["core"] += lasts - span.conflicts * 1e-9
    assert machine is not None
    for name, seconds in took.items():
        assert seconds == pytest.approx(spent[name], abs=1e-14), name


@settings(max_examples=40, deadline=None)
@given(
    st.integers(1, 9), st.sampled_from(["star", "tree(2)", "cards"]),
    st.sampled_from(["in-network", "ring", "halving-doubling"]),
    st.sampled_from([MACHINES["card"], SLOW]), st.integers(1, 5000),
    st.sampled_from(["slot", "free"]),
)  # fmt: skip
def test_steps_take_what_the_time_was_spent_on(
    ranks: int, topology: str, algorithm: str, machine: nicemu.Machine, count: int, scheduling: str
) -> None:
    if ranks == 1 and algorithm != "in-network":
        return
    options = {"machine": machine, "scheduling": scheduling, "mtu": 512}
    check(*run(ranks, topology, count, algorithm, **options), topology == "cards")


def named(result: nicemu.Result) -> list[tuple[str, str]]:
    assert result.path is not None
    return [(step.where, step.what) for step in result.path]


def test_one_chunk() -> None:
    """Of two that send at once the second's payload is moved second; both get the result then."""
    _, result = run(2, "star", 256)
    assert named(result) == [
        ("rank1, link up to nic0", "elements 0"),
        ("nic0, DMA", "elements 0"),
        ("nic0, core 0", "first2"),
        ("nic0, core 0", "finish"),
        ("rank1, link down from nic0", "result 0"),
    ]


def test_by_hosts_of_several_clusters() -> None:
    """Two steps of a ring of two: a half is merged, and passed on."""
    machine = replace(MACHINES["card"], name="two", clusters=2)
    _, result = run(2, "star", 256, "ring", machine=machine)
    assert named(result) == [
        ("rank0, link up to nic0", "message 1, frame 0"),
        ("rank1, link down from nic0", "message 1, frame 0"),
        ("rank1, DMA 0", "message 1, frame 0"),
        ("rank1, core 0", "merge"),
        ("rank1, link up to nic0", "message 3, frame 0"),
        ("rank0, link down from nic0", "message 3, frame 0"),
    ]


def test_after_a_loss_it_begins_with_the_frame_that_was_sent_again() -> None:
    _, result = run(3, "star", 100, seed=4, **FAULTS | {"loss": 0.6})
    assert result.path is not None and result.spent is not None and result.time is not None
    assert result.spent["timers"] > 0
    assert result.path[0].begin == pytest.approx(result.spent["timers"], abs=1e-12)


def test_nothing_is_recorded_unless_asked_for() -> None:
    fabric = nicemu.Fabric(2, "star", time="packet")
    assert nicemu.Communicator(fabric).allreduce(streams(2, 10)).path is None
    assert nicemu.Communicator(2).allreduce(streams(2, 10)).path is None


def test_nothing_takes_no_steps() -> None:
    assert run(2, "star", 0)[1].path == ()


def test_the_timeline_has_it_once_more(tmp_path: Path) -> None:
    with nicemu.Fabric(4, "cards", time="packet", trace=tmp_path / "out.json") as fabric:
        result = nicemu.Communicator(fabric, algorithm="in-network").allreduce(streams(4, 3000))
        other = nicemu.Communicator(fabric, algorithm="ring").allreduce(streams(4, 3000))
    events = json.loads((tmp_path / "out.json").read_text())["traceEvents"]
    (process,) = {
        event["pid"] for event in events
        if event["name"] == "process_name" and event["args"]["name"] == "critical paths"
    }  # fmt: skip
    tracks = {
        event["args"]["name"]: event["tid"] for event in events
        if event["name"] == "thread_name" and event["pid"] == process
    }  # fmt: skip
    assert list(tracks) == ["group 256, collective 0", "by the hosts, collective 0"]
    for (name, thread), found in zip(tracks.items(), (result, other), strict=True):
        slices = [e for e in events if (e["ph"], e["pid"], e.get("tid")) == ("X", process, thread)]
        assert found.path is not None, name
        assert [e["name"] for e in slices] == [f"{step.where}: {step.what}" for step in found.path]
        for event, step in zip(slices, found.path, strict=True):
            assert event["ts"] == pytest.approx(1e6 * step.begin, abs=0.001)
            assert event["dur"] == pytest.approx(1e6 * (step.end - step.begin), abs=0.0021)
