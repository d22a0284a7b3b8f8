"""Timelines: the file by the rules of its format, and what is in it by what the fabric says."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nicemu
from nicemu._nicemu import ffi, lib
from nicemu.device.machine import MACHINES, Network
from nicemu.errors import ArgumentError, CollectiveError, FileFormatError
from nicemu.network.fabric import Fabric
from nicemu.network.records import SPAN, Span
from nicemu.network.timeline import _file_time
from tests.fabrics import FAULTS, allreduce, streams, sums_up

Event = dict[str, Any]
FORMAT = "cat", "name", "ph", "pid", "tid", "ts"
#: keys of an event by its kind
KEYS: dict[str, set[str]] = {
    "X": {*FORMAT, "dur", "args"},
    "i": {*FORMAT, "s", "args"},
    "s": {*FORMAT, "id"},
    "t": {*FORMAT, "id"},
    "f": {*FORMAT, "id", "bp"},
}


@dataclass
class Shown:
    """What a viewer makes of a file.

    Attributes:
        slices: (process, thread) by name -> begin, end in ns and the event, by begin.
        flows: their points: process, thread, the slice's event.
        instants: those of what has happened at once.
    """

    slices: dict[tuple[str, str], list[tuple[int, int, Event]]] = field(default_factory=dict)
    flows: list[list[tuple[str, str, Event]]] = field(default_factory=list)
    instants: list[Event] = field(default_factory=list)

    def of(self, thread: str) -> dict[str, list[tuple[int, int, Event]]]:
        """Process -> slices of its threads whose name begins like that."""
        found: dict[str, list[tuple[int, int, Event]]] = defaultdict(list)
        for (process, name), slices in self.slices.items():
            if name.startswith(thread):
                found[process] += slices
        return found


def nanoseconds(event: Event, key: str = "ts") -> int:
    """As viewers read it: whole ones, the rest cut off."""
    assert isinstance(event[key], float) and event[key] >= 0
    return int(event[key] * 1000)


def read(path: Path) -> Shown:
    """The file; every rule of the format on the way."""
    file = json.loads(path.read_text())
    assert set(file) == {"displayTimeUnit", "traceEvents"} and file["displayTimeUnit"] == "ns"
    events: list[Event] = file["traceEvents"]
    processes, threads = names_of(events)
    shown = Shown({thread: [] for thread in threads.values()})
    open_flows: dict[int, list[tuple[int, int, Event]]] = {}  # time, place in the file
    for place, event in enumerate(events):
        kind = event["ph"]
        if kind == "M":
            continue
        assert set(event) == KEYS[kind], event
        thread = threads[event["pid"], event["tid"]]
        if kind == "X":
            assert not open_flows, "slices come before what refers to them"
            begin = nanoseconds(event)
            shown.slices[thread].append((begin, begin + nanoseconds(event, "dur"), event))
        elif kind == "i":
            assert event["s"] == "t"
            shown.instants.append(event)
        else:
            open_flows.setdefault(event["id"], []).append((nanoseconds(event), place, event))
    for slices in shown.slices.values():
        slices.sort(key=lambda s: s[:2])
        for (_, end, _), (begin, _, _) in pairwise(slices):
            assert end <= begin, "slices of a track overlap"
    for points in open_flows.values():
        assert points == sorted(points, key=lambda p: p[:2]), "a flow goes back in time"
        kinds = "".join(event["ph"] for _, _, event in points)
        assert kinds == "s" + "t" * (len(points) - 2) + "f"
        assert points[-1][2]["bp"] == "e"
        way = []
        for time, _, event in points:
            thread = threads[event["pid"], event["tid"]]
            begin, end, inside = [s for s in shown.slices[thread] if s[0] <= time][-1]
            assert time < max(end, begin + 1), "a flow passes where nothing is"
            way.append((*thread, inside))
        shown.flows.append(way)
    assert {p for p, _ in threads.values()} <= set(processes.values())
    return shown


def names_of(events: list[Event]) -> tuple[dict[int, str], dict[tuple[int, int], tuple[str, str]]]:
    """Processes and threads; all have one name and one place."""
    said: Counter[tuple[Any, ...]] = Counter()
    processes: dict[int, str] = {}
    threads: dict[tuple[int, int], tuple[str, str]] = {}
    for event in events:
        if event["ph"] != "M":
            continue
        name, where = event["name"], (event["pid"], event.get("tid", 0))
        said[name, *where] += 1
        if name == "process_name":
            processes[event["pid"]] = event["args"]["name"]
        elif name == "thread_name":
            threads[where] = (processes[event["pid"]], event["args"]["name"])
        else:
            assert name in ("process_sort_index", "thread_sort_index")
            assert isinstance(event["args"]["sort_index"], int)
    assert set(said.values()) == {1}
    assert len(said) == 2 * (len(processes) + len(threads))
    assert len(set(threads.values())) == len(threads)
    numbers = [*processes, *(tid for _, tid in threads)]
    assert len(set(numbers)) == len(numbers)
    return processes, threads


def timed(path: Path, ranks: int, topology: Any = "cards", **options: Any) -> Fabric:
    return Fabric(ranks, topology, time="packet", trace=path, **options)


def same_work(shown: Shown, fabric: Fabric) -> None:
    """The cores' slices are what the devices have counted, and every frame is in the picture."""
    cycle = 1e9 / fabric.machine.frequency
    for name, device in fabric.devices.items():
        for core in range(fabric.machine.cores):
            slices = shown.slices.get((name, f"core {core}"), [])
            counted = device.nic.cores.cycles(core).total
            assert sum(s["args"]["cycles"] for *_, s in slices) == counted
            waited = sum(s["args"]["conflicts"] for *_, s in slices)
            assert sum(end - begin for begin, end, _ in slices) == pytest.approx(
                (counted + waited) * cycle, abs=len(slices)
            )
            assert sum(s["args"]["instructions"] for *_, s in slices) == (
                device.counters(core).instructions
            )
    counters = fabric.counters()
    sums_up(counters)
    on_links = sum(map(len, shown.of("link").values()))
    assert on_links == len(shown.flows)
    assert on_links + len(shown.instants) == counters.sent + counters.duplicated
    assert sum(s["args"]["payloads"] for each in shown.of("core").values() for *_, s in each) == (
        sum(counters.merged)
    )
    assert counters.lost <= len(shown.instants) <= counters.lost + counters.cut


def way(flow: list[tuple[str, str, Event]]) -> tuple[str, ...]:
    """Kinds of its tracks; of one packet, all along."""
    links = [s for _, name, s in flow if name.startswith("link")]
    packet = links[-1]
    for _, name, s in flow:
        assert {k: s["args"][k] for k in ("seq", "chunk")} == {
            k: packet["args"][k] for k in ("seq", "chunk")
        }, name
    return tuple(name.split()[0] for _, name, _ in flow)


@pytest.mark.parametrize("topology", ["star", "cards", "tree(2)"])
def test_an_allreduce(tmp_path: Path, topology: str) -> None:
    ranks, count = 6, 5000
    inputs = streams(ranks, count)
    plain = nicemu.Communicator(Fabric(ranks, topology, time="packet"), algorithm="in-network")
    expected = plain.allreduce(inputs)
    with timed(tmp_path / "x.json", ranks, topology) as fabric:
        world = nicemu.Communicator(fabric, algorithm="in-network")
        result = world.allreduce(inputs)
        assert not (tmp_path / "x.json").exists()
    assert result.time == expected.time and result.spent == expected.spent
    for got, without in zip(result.values, expected.values, strict=True):
        assert got is not None and without is not None and got.tobytes() == without.tobytes()
    shown = read(tmp_path / "x.json")
    same_work(shown, fabric)
    lanes = shown.of("lane")
    assert set(lanes) == {f"rank{r}" for r in range(ranks)}
    ends = [end for each in lanes.values() for _, end, _ in each]
    assert result.time is not None and max(ends) == round(result.time * 1e9)
    chunks = {s["args"]["chunk"] for each in lanes.values() for *_, s in each}
    for each in [*lanes.values(), *shown.of("slot").values()]:
        assert {s["args"]["chunk"] for *_, s in each} == chunks and len(each) == len(chunks)
        assert all(s["args"]["result"] for *_, s in each)
    devices, top = len(fabric.devices), len(fabric._tree.children[fabric._levels[0]])
    ways: dict[tuple[str, ...], int] = {("lane", "link", "DMA", "core"): ranks}  # elements
    if topology == "star":
        ways |= {("core", "link", "lane"): ranks}
    else:
        ways |= {
            ("core", "link", "DMA", "core"): devices - 1,  # partial sums
            ("core", "link", "slot"): top,  # results
            ("link", "link", "slot"): devices - 1 - top,
            ("link", "link", "lane"): ranks,
        }
    assert Counter(map(way, shown.flows)) == {key: n * len(chunks) for key, n in ways.items() if n}


def test_what_is_said_of_slices(tmp_path: Path) -> None:
    """One worker and one chunk: the way of one packet, with all its numbers."""
    count = 400
    with timed(tmp_path / "x.json", 1, "star") as fabric:
        run = allreduce(fabric, count)
    shown = read(tmp_path / "x.json")
    m, net = fabric.machine, fabric.network
    assert net is not None and run.ticket.time is not None
    begins = {
        key: [(b, e, s["name"], s["args"]) for b, e, s in v] for key, v in shown.slices.items()
    }
    frame = 86 + 2 * count + 4
    wire = 8 * (frame + net.overhead) / net.rate * 1e9
    ((begin, end, name, args),) = begins["rank0", "link up to nic0"]
    assert (begin, end, name) == (0, round(wire), "elements 0")
    about = {"seq": 0, "chunk": 0, "round": 0}
    assert args == {**about, "group": run.group.number, "lane": 0, "child": 0, "bytes": frame}
    arrival = wire + net.delay * 1e9
    ((begin, end, name, args),) = begins["nic0", "DMA"]
    assert begin == round(arrival + m.parse) and name == "elements 0"
    assert end == round(arrival + m.parse + 2 * count / m.dma_bytes)
    assert args == {**about, "child": 0, "bytes": 2 * count}
    first, emit, finish = begins["nic0", "core 0"]
    assert first[0] == round(arrival + m.parse + 2 * count / m.dma_bytes + m.dispatch)
    assert (first[2], emit[2], finish[2]) == ("first", "emit", "finish")
    assert first[1] == emit[0] and emit[1] == finish[0]
    assert first[3]["payloads"] == 1 and finish[3]["payloads"] == 0 and "child" not in finish[3]
    ((begin, end, name, args),) = begins["nic0", "slot 0"]
    assert (begin, end, name) == (round(arrival), finish[1] + m.egress, "chunk 0")
    ((begin, _, name, _),) = begins["rank0", "link down from nic0"]
    assert (begin, name) == (end, "result 0")
    ((begin, end, _, _),) = begins["rank0", "lane 0"]
    assert (begin, end) == (0, round(run.ticket.time * 1e9))


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("order", ["fixed", "arrival"])
def test_lossy_links(tmp_path: Path, seed: int, order: str) -> None:
    path = tmp_path / "x.json"
    with timed(path, 4, "tree(2)", order=order, seed=seed, jitter=1e-6, **FAULTS) as fabric:
        allreduce(fabric, 20_000)
        fabric.run()
    shown = read(path)
    same_work(shown, fabric)
    assert len(shown.instants) > 10
    merged = [f for f in shown.flows if f[-1][1].startswith("core")]
    assert len(merged) == sum(fabric.counters().merged)
    for each in [*shown.of("lane").values(), *shown.of("slot").values()]:
        assert all(s["args"]["result"] for *_, s in each)


def test_a_plane_that_dies(tmp_path: Path) -> None:
    """Turns that were open on it have no result; they begin again on the other."""
    path = tmp_path / "x.json"
    with timed(path, 4, "cards", planes=2) as fabric:
        fabric.link("nic0", "leaf0").down(at=1.5e-6)
        allreduce(fabric, 20_000)
        fabric.run()
    shown = read(path)
    same_work(shown, fabric)
    names = {name for process, name in shown.slices if process == "rank0"}
    assert {"link up to nic0", "link up to nic0@1", "lane 0", "lane 0 of plane 1"} <= names
    results = Counter(s["args"]["result"] for v in shown.of("lane").values() for *_, s in v)
    (replay,) = fabric.replays()
    assert results[False] == 4 * replay.chunks > 0


def test_what_is_copied_and_two_groups(tmp_path: Path) -> None:
    with timed(tmp_path / "x.json", 4, "star") as fabric:
        a = nicemu.Communicator(fabric, algorithm="in-network")
        b = nicemu.Communicator(fabric, algorithm="in-network")
        a.broadcast(np.arange(3000, dtype=np.float32), algorithm="in-network")
        b.barrier()
        a.allreduce([np.ones(3000, np.float32)] * 4)
    shown = read(tmp_path / "x.json")
    same_work(shown, fabric)
    assert all("of group" in name for _, name in shown.slices if name.startswith(("slot", "lane")))
    kinds = {s["name"].split()[0] for v in shown.of("link").values() for *_, s in v}
    assert kinds == {"elements", "arrival", "result"}
    assert {("lane", "link", "DMA", "slot"), ("lane", "link", "slot"), ("slot", "link", "lane")} < {
        way(flow) for flow in shown.flows
    }


@pytest.mark.parametrize("algorithm", ["ring", "halving-doubling"])
def test_collectives_by_hosts(tmp_path: Path, algorithm: str) -> None:
    """Two ranks, each of which merges a half, by its own NIC, and sends the sum back."""
    count = 1000
    with timed(tmp_path / "x.json", 2, "star", mtu=4096) as fabric:
        world = nicemu.Communicator(fabric, algorithm=algorithm)
        result = world.allreduce(streams(2, count))
        world.barrier()
    shown = read(tmp_path / "x.json")
    nic = nicemu.Nic("card", cycles=True)
    nic.load(nicemu.kernel("sum", "bfloat16"))
    calls = [nic.handle("first2", streams(2, count // 2)), nic.handle("finish", count=count // 2)]
    cycles = sum(call.cycles.total for call in calls if call.cycles is not None)
    cores = shown.of("core")
    assert set(cores) == {"rank0", "rank1"} == set(shown.of("DMA"))
    for each in cores.values():
        ((begin, end, merge),) = each
        assert end - begin == merge["args"]["cycles"] == cycles and merge["name"] == "merge"
    links = shown.of("link")
    assert sum(map(len, links.values())) == fabric.counters().sent
    last = max(end for each in links.values() for _, end, s in each if s["args"]["seq"] == 0)
    assert result.time is not None and fabric.network is not None
    assert last == pytest.approx(1e9 * (result.time - fabric.network.delay), abs=1)
    assert Counter(
        tuple(name.split()[0] for _, name, _ in flow)
        for flow in shown.flows
        if flow[0][2]["args"]["seq"] == 0
    ) == {("link", "link", "DMA", "core"): 2, ("core", "link"): 2, ("link", "link"): 2}


@pytest.mark.parametrize("algorithm", ["in-network", "ring"])
def test_clusters(tmp_path: Path, algorithm: str) -> None:
    """Each has an engine, which moves what its own cores take."""
    machine = replace(MACHINES["card"], clusters=4)
    with timed(tmp_path / "x.json", 2, "star", machine=machine) as fabric:
        world = nicemu.Communicator(fabric, algorithm=algorithm)
        world.allreduce(streams(2, 20_000))
    shown = read(tmp_path / "x.json")
    moved = [flow for flow in shown.flows if flow[-1][1].startswith("core")]
    clusters = [(int(dma[1].split()[1]), int(core[1].split()[1]) // 2) for *_, dma, core in moved]
    assert all(engine == cluster for engine, cluster in clusters)
    assert {engine for engine, _ in clusters} >= {0, 1}


@pytest.mark.parametrize(
    ("machine", "network"),
    [
        ({"frequency": 10**11}, {"rate": 1e14, "delay": 0.0, "pcie_rate": 1e13}),
        ({"frequency": 333_000_000}, {"rate": 1e6, "delay": 1.0, "pcie_rate": 1e14}),
        ({"parse": 0, "dispatch": 0, "egress": 0}, {"rate": 123_456_789.0, "delay": 1e-12}),
    ],
)
def test_any_rates(tmp_path: Path, machine: dict[str, Any], network: dict[str, Any]) -> None:
    """However times are rounded, slices do not overlap; the same run gives the same file."""
    options = {
        "machine": replace(MACHINES["card"], **machine),
        "network": replace(Network(), **network),
    }
    for name in ("x.json", "y.json"):
        with timed(tmp_path / name, 3, "cards", **options) as fabric:
            allreduce(fabric, 3000)
    assert (tmp_path / "x.json").read_bytes() == (tmp_path / "y.json").read_bytes()
    if machine.get("frequency", 0) < 10**10:  # else handlers end in the nanosecond they begin in
        same_work(read(tmp_path / "x.json"), fabric)


def test_times_are_read_as_they_are_meant() -> None:
    rng = np.random.default_rng(1)
    for n in [*range(100_000), *rng.integers(0, 1 << 48, 100_000).tolist()]:
        assert int(_file_time(n) * 1000) == n == round(_file_time(n) * 1000)


def test_nothing_is_recorded_unless_asked_for() -> None:
    fabric = Fabric(2, "star", time="packet")
    allreduce(fabric, 3000)
    spans, n = ffi.new("nicemu_span **"), ffi.new("uint64_t *")
    assert lib.nicemu_fabric_traced(fabric._fabric, spans, n) == 0 and n[0] == 0
    assert lib.nicemu_fabric_trace(fabric._fabric, 1) == lib.NICEMU_EINVAL  # too late
    assert lib.nicemu_fabric_trace(Fabric(2, "star")._fabric, 1) == lib.NICEMU_EINVAL


def test_records_are_as_c_has_them() -> None:
    row = ffi.typeof("nicemu_span")
    assert ffi.sizeof(row) == SPAN.itemsize
    fields = dict(row.fields)
    fields["source"] = fields.pop("from")
    assert SPAN.names == Span._fields
    assert SPAN.fields is not None
    for name, (dtype, offset) in SPAN.fields.items():
        assert (dtype.itemsize, offset) == (ffi.sizeof(fields[name].type), fields[name].offset)


def test_a_collective_that_fails(tmp_path: Path) -> None:
    """With its error caught, the timeline shows how far it came; else there is none."""
    path = tmp_path / "x.json"
    with timed(path, 2, "star", max_resends=2) as fabric:
        fabric.kill("rank1")
        with pytest.raises(CollectiveError, match="nothing comes from rank1"):
            allreduce(fabric, 100)
    shown = read(path)
    for track in ("lane", "slot"):
        assert not any(s["args"]["result"] for v in shown.of(track).values() for *_, s in v)
    path.unlink()
    with pytest.raises(CollectiveError), timed(path, 2, "star", max_resends=2) as fabric:
        fabric.kill("rank1")
        allreduce(fabric, 100)
    assert list(tmp_path.iterdir()) == []


def test_a_timeline_of_nothing(tmp_path: Path) -> None:
    timed(tmp_path / "x.json", 2).close()
    assert not read(tmp_path / "x.json").slices


def test_files_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(FileFormatError, match=r"none/x\.json: cannot be written"):
        timed(tmp_path / "none" / "x.json", 2)
    with pytest.raises(FileFormatError, match="exists and cannot be replaced"):
        timed(tmp_path, 2)
    with pytest.raises(FileFormatError, match="cannot be written"):
        timed(tmp_path / "x", 2, capture=tmp_path / "x")
    assert list(tmp_path.iterdir()) == []
    fabric = timed(tmp_path / "x.json", 2, "star")
    allreduce(fabric, 3000)
    assert fabric._timeline is not None
    fabric._timeline._part.unlink()
    fabric._timeline._part.symlink_to("/dev/full")
    with pytest.raises(FileFormatError, match=r"x\.json: cannot be written: No space left"):
        fabric.close()
    assert list(tmp_path.iterdir()) == []
    fabric.close()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"trace": "x.json"}, "trace without time: pass time='packet' as well"),
        ({"trace": 3, "time": "packet"}, "trace is of type int: name a file"),
    ],
)
def test_argument_errors(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        Fabric(2, **options)
