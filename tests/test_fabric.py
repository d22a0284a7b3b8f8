"""Whole fabrics: trees against the reference, faults, groups, planes, failures, capture."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import networkx
import numpy as np
import pytest

from nicemu import ArgumentError, KernelImage, Machine, _core, kernel
from nicemu.errors import CapacityError, CollectiveError, FileFormatError
from nicemu.network.exchange import Exchange
from nicemu.network.fabric import Fabric
from nicemu.network.pcap import read
from nicemu.network.topology import topology
from nicemu.reference.tree import reduce_tree
from tests.encode import encode, load_constant, vtype
from tests.fabrics import FAULTS, allreduce, guarded, streams, sums_up
from tests.test_nic import A0, A1, OK, OPS, PRESETS, SP, T0, T1, made

SLOT = 512  # bfloat16 elements of a full chunk, in a star with the default MTU


# ---- clean links ---------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [0, 1, SLOT - 1, SLOT, SLOT + 1, 10_007])
@pytest.mark.parametrize("ranks", [1, 2, 4, 9])
def test_star(ranks: int, count: int) -> None:
    run = allreduce(Fabric(ranks, "star"), count)
    counters = run.fabric.counters()
    assert counters.sent == 2 * ranks * -(-count // SLOT)
    assert (counters.resent, counters.repeated, counters.drops) == (0, 0, {})


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize(
    ("ranks", "topology"),
    [(3, "cards"), (9, "cards"), (20, "cards"), (8, "tree(2)"), (7, "tree(3)"), (64, "star")],
)
def test_trees(ranks: int, topology: str, preset: str) -> None:
    allreduce(Fabric(ranks, topology), 1500, preset=preset)


@pytest.mark.parametrize("element", ["float16", "float32"])
@pytest.mark.parametrize("op", OPS)
def test_ops(op: str, element: str) -> None:
    allreduce(Fabric(6, "tree(2)"), 700, op=op, element=element)


@pytest.mark.parametrize("mtu", [256, 257, 1023, 4096])
def test_payload_sizes(mtu: int) -> None:
    allreduce(Fabric(5, "tree(3)", mtu=mtu), 3000)


@pytest.mark.parametrize("window", [1, 2, 3, 100])
def test_any_window_gives_the_same(window: int) -> None:
    allreduce(Fabric(5, "tree(2)"), 20_000, window=window)


@pytest.mark.parametrize("machine", [{"cores": 1}, {"cores": 3}, {"max_fan_in": 1}, {"vlen": 128}])
def test_any_machine_gives_the_same(machine: dict[str, int]) -> None:
    allreduce(Fabric(10, "star", machine=Machine("some", **machine)), 3000)


def test_orders_of_the_presets() -> None:
    assert Fabric(3, "star").order == (0, 1, 2)
    assert Fabric(3).order == (((0, 1, 2),),)  # always three levels
    assert Fabric(18).order == (
        ((0, 1, 2, 3), (4, 5, 6, 7), (8, 9, 10, 11), (12, 13, 14, 15)),
        ((16, 17),),
    )
    assert Fabric(4, "tree(2)").order == ((0, 1), (2, 3))
    assert list(Fabric(8).devices) == ["spine0", "leaf0", "nic0", "nic1"]


def test_a_networkx_tree() -> None:
    tree = networkx.DiGraph([("top", 2), ("top", "side"), ("side", "rank1"), ("side", "rank0")])
    run = allreduce(Fabric(3, tree), 1000)
    assert run.group.order == (2, (1, 0))
    plain = networkx.Graph(tree.edges, root="top")
    assert allreduce(Fabric(3, plain), 1000).result.tobytes() == run.result.tobytes()
    for bad, words in (
        (networkx.Graph(tree.edges), "root"),
        (networkx.DiGraph([("a", 0), ("b", 0)]), "without a parent"),
        (networkx.DiGraph([("a", 0), ("a", "b")]), "no children"),
        (networkx.DiGraph([("a", 0), (0, 1)]), "only devices"),
        (networkx.DiGraph([("a", "b"), ("a", "c"), ("b", 0), ("c", 0)]), "no tree"),
        (networkx.DiGraph([("a", 0), ("a", 2)]), "ranks"),
        (networkx.DiGraph([("a", "b"), ("b", "c"), ("c", "b"), ("c", 0), ("c", 1)]), "no tree"),
        (networkx.MultiGraph([("a", 0), ("a", 0), ("a", 1)], root="a"), "no tree"),
        (networkx.DiGraph([("a", 1.5), ("a", "1.5"), (1.5, 0), ("1.5", 1)]), "'1.5': use diff"),
        (networkx.DiGraph([("a", "a@1"), ("a@1", 0), ("a@1", 1)]), "without an @"),
        (networkx.DiGraph([("a\nb", 0), ("a\nb", 1)]), "printable"),
        (networkx.DiGraph, "is a type"),
    ):
        with pytest.raises(ArgumentError, match=words):
            Fabric(2, bad)
    alone = networkx.Graph(root=0)
    alone.add_node(0)
    with pytest.raises(ArgumentError, match="worker 0 alone: put a device above"):
        Fabric(1, alone)
    numbers = networkx.DiGraph([("top", rank) for rank in np.arange(3)])
    assert Fabric(3, numbers).order == (0, 1, 2)


def test_the_order_of_some_workers() -> None:
    """Devices that nobody is behind are left out; however many are above one another."""
    tree = topology("cards", 18)
    order, paths = tree.order([17, 5, 6])
    assert order == (((1, 2),), ((0,),))
    assert paths == {
        "spine0": (), "leaf0": (0,), "nic1": (0, 0), "leaf1": (1,), "nic4": (1, 0)
    }  # fmt: skip
    high = 2000  # more than Python's recursion goes
    chain = networkx.DiGraph([*((f"d{i}", f"d{i + 1}") for i in range(high)), (f"d{high}", 0)])
    tree = topology(chain, 1)
    assert max(map(len, tree.order([0])[1].values())) == high
    assert set(tree.workers().values()) == {(0,)}


def test_in_place() -> None:
    fabric = Fabric(4, "star", seed=3, **FAULTS)
    inputs = streams(4, 9000)
    want = reduce_tree("sum", "bfloat16", (0, 1, 2, 3), inputs)
    with fabric.group(window=4) as group:
        group.start(Exchange(kernel("sum", "bfloat16"), inputs, inputs)).wait()
    assert all(x.tobytes() == want.result.tobytes() for x in inputs)


def test_parts_of_the_result() -> None:
    """Each worker keeps its own stretch, or nothing."""
    inputs = streams(3, 4000, "float32")
    whole = reduce_tree("sum", "float32", (0, 1, 2), inputs).result.view(np.float32)
    stretches = [(0, 100), (100, 3999), (4000, 4000)]
    pairs = [guarded(stop - start, whole.dtype) for start, stop in stretches]
    outputs = [a for a, _ in pairs]
    fabric = Fabric(3, "star")
    with fabric.group() as group:
        exchange = Exchange(
            kernel("sum", "float32"),
            inputs,
            [outputs[0], outputs[1], None],
            offsets=[start for start, _ in stretches],
        )
        group.start(exchange).wait()
    for (start, stop), (out, end) in list(zip(stretches, pairs, strict=True))[:2]:
        assert out.tobytes() == whole[start:stop].tobytes()
        assert (end == end[0]).all()


def test_what_handlers_know() -> None:
    """Contributors, element index and seed, through the ops that use them."""
    run = allreduce(Fabric(6, "tree(2)"), 5000, op="avg")
    assert run.result.size == 5000


# ---- moved payloads ------------------------------------------------------------------------------


@pytest.mark.parametrize("faults", [{}, FAULTS])
@pytest.mark.parametrize("topology", ["star", "tree(2)"])
def test_all_gather(topology: str, faults: dict[str, Any]) -> None:
    sizes = [700, 0, 1, 3000, 5]
    inputs = [np.arange(n, dtype=np.int16) + 100 * i for i, n in enumerate(sizes)]
    pairs = [guarded(sum(sizes), np.dtype(np.int16)) for _ in sizes]
    fabric = Fabric(5, topology, seed=5, **faults)
    with fabric.group() as group:
        group.start(Exchange(None, inputs, [out for out, _ in pairs])).wait()
    for out, end in pairs:
        assert out.tobytes() == np.concatenate(inputs).tobytes()
        assert (end == end[0]).all()
    assert fabric.counters().calls == 0
    sums_up(fabric.counters())


@pytest.mark.parametrize("root", [0, 4])
def test_broadcast(root: int) -> None:
    data = np.random.default_rng(1).integers(0, 256, 10_000, np.uint8)
    inputs = [data if i == root else None for i in range(5)]
    outputs = [np.zeros_like(data) for _ in range(5)]
    fabric = Fabric(5, "cards")
    with fabric.group() as group:
        group.start(Exchange(None, inputs, outputs)).wait()
    assert all(out.tobytes() == data.tobytes() for out in outputs)


def test_barrier() -> None:
    fabric = Fabric(5, "cards")
    with fabric.group() as group:
        ticket = group.start(Exchange(None, [None] * 5, [None] * 5))
        ticket.wait()
    assert ticket.time is not None and ticket.time >= 6e-6  # three links up, three down
    assert fabric.counters().calls == 0


# ---- faults --------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(12))
def test_invariant_7_faults_do_not_change_the_bits(seed: int) -> None:
    """Loss, duplication, reordering, corruption: the bits are the clean run's (the reference's)."""
    run = allreduce(Fabric(9, "cards", seed=seed, **FAULTS), 3000, window=3)
    counters = run.fabric.counters()
    assert counters.lost and counters.duplicated and counters.reordered and counters.resent


def test_invariant_7_arrival_order_does_not_change_the_bits() -> None:
    """Links of very uneven delay: every order of arrival."""
    results = {
        allreduce(Fabric(12, "tree(4)", seed=s, jitter=50e-6), 3000).result.tobytes()
        for s in range(5)
    }
    assert len(results) == 1


def test_corrupted_frames_are_all_found() -> None:
    """Every copy with a flipped bit that arrives is dropped, or the bit is where none matters."""
    run = allreduce(Fabric(4, "star", seed=2, corrupt=0.3), 60_000)
    counters = run.fabric.counters()
    assert counters.corrupted > 500
    assert counters.corrupted == sum(counters.drops.values()) - late(counters.drops) + (
        counters.damaged
    )


def late(drops: dict[str, int]) -> int:
    """Frames that were dropped because resends made them superfluous."""
    return sum(drops.get(name, 0) for name in ("stale", "duplicate", "unwanted", "future"))


@pytest.mark.parametrize("seed", range(3))
def test_invariant_4_all_ranks_get_identical_bytes(seed: int) -> None:
    """... in the order of arrival too, where the bits themselves depend on timing."""
    fabric = Fabric(8, "tree(4)", order="arrival", seed=seed, jitter=5e-6, **FAULTS)
    run = allreduce(fabric, 20_000, window=4)
    exact = np.sum([x.astype(np.float64) for x in run.inputs], axis=0)
    assert np.allclose(run.result.astype(np.float64), exact, rtol=0.02, atol=0.5)
    assert run.group.order is None


def test_arrival_order_needs_less_space_and_has_other_bits() -> None:
    def run(order: str) -> tuple[bytes, int]:
        fabric = Fabric(8, "star", order=order, jitter=5e-6, mtu=4096)
        done = allreduce(fabric, 20_000, preset="per-add", window=1000)
        return done.result.tobytes(), done.group.window

    (fixed, few), (arrival, many) = run("fixed"), run("arrival")
    assert fixed != arrival and many > 2 * few


def test_the_same_seed_is_the_same_run() -> None:
    def run(seed: int) -> tuple[object, float]:
        fabric = Fabric(9, "cards", seed=seed, **FAULTS)
        allreduce(fabric, 3000)
        return fabric.counters(), fabric.now

    assert run(1) == run(1) != run(2)


def test_invariant_8_without_any_link_there_is_an_error() -> None:
    fabric = Fabric(3, "star", loss=1.0)
    outputs = [np.zeros(100, np.float32)] * 3
    with fabric.group() as group:
        ticket = group.start(
            Exchange(kernel("sum", "float32"), streams(3, 100, "float32"), outputs)
        )
        with pytest.raises(CollectiveError) as caught:
            ticket.wait()
        assert caught.value.missing == (0, 1, 2)
        with pytest.raises(CollectiveError, match="failed"):
            group.start(ticket.exchange)
    sums_up(fabric.counters())


# ---- groups --------------------------------------------------------------------------------------


def test_groups_of_some_ranks() -> None:
    fabric = Fabric(12, "cards")
    assert allreduce(fabric, 2000, ranks=[1, 5, 6, 11]).group.order == (((0,), (1, 2), (3,)),)
    assert allreduce(fabric, 2000, ranks=[3]).group.order == (((0,),),)
    # numbers follow the list, places the tree
    assert allreduce(fabric, 2000, ranks=[5, 1, 0]).group.order == (((2, 1), (0,)),)


@pytest.mark.parametrize("faults", [{}, FAULTS])
def test_several_in_flight_in_several_groups(faults: dict[str, Any]) -> None:
    fabric = Fabric(8, "tree(4)", seed=1, **faults)
    groups = [fabric.group(job=j, window=3) for j in (0, 1, 1)]
    started = []
    for seed in range(6):
        for group, op, element in zip(
            groups, ("sum", "max", "avg"), ("bfloat16", "float16", "float32"), strict=True
        ):
            inputs = streams(8, 1000 * seed, element, seed)
            outputs = [np.zeros_like(x) for x in inputs]
            started.append(
                (op, element, group.start(Exchange(kernel(op, element), inputs, outputs)))
            )
    for op, element, ticket in reversed(started):
        ticket.wait()
        want = reduce_tree(op, element, fabric.order, ticket.exchange.inputs).result.tobytes()
        assert all(out.tobytes() == want for out in ticket.exchange.outputs)
    sums_up(fabric.counters())


def test_more_in_flight_than_a_group_holds() -> None:
    fabric = Fabric(2, "star")
    inputs = streams(2, 10)
    with fabric.group() as group:
        tickets = [
            group.start(Exchange(kernel("sum", "bfloat16"), inputs, [None, None]))
            for _ in range(200)
        ]
        for ticket in tickets:
            ticket.wait()
    assert [t.seq for t in tickets] == list(range(200))


def test_a_group_that_fails_while_one_more_waits_for_room() -> None:
    fabric = Fabric(2, "star", max_resends=4)
    fabric.kill("rank1")
    inputs = streams(2, 10)
    with fabric.group() as group:
        exchange = Exchange(kernel("sum", "bfloat16"), inputs, [None, None])
        tickets = [group.start(exchange) for _ in range(64)]
        with pytest.raises(CollectiveError, match=r"has failed .*rank1"):
            group.start(exchange)
        fabric.run()
        for ticket in tickets:
            with pytest.raises(CollectiveError, match="rank1"):
                ticket.wait()


def test_no_room() -> None:
    """Groups share what is free; closing gives it back."""
    fabric = Fabric(8, "star", mtu=4096)
    first = fabric.group(window=8)
    second = fabric.group(window=1000)
    assert (first.window, second.window) == (8, 8)
    with pytest.raises(CapacityError, match=r"nic0 has \d+ bytes free .* takes 49152"):
        fabric.group(window=1)
    first.close()
    with fabric.group(window=1000) as third:
        assert third.window == 8
        inputs = streams(8, 100_000)
        ticket = third.start(Exchange(kernel("sum", "bfloat16"), inputs, inputs))
        ticket.wait()  # more chunks than slots wait at the workers
    second.close()
    assert fabric.group(window=1000).window == 16


def test_a_handler_sees_no_lane_but_its_own() -> None:
    """Each loads a word of its lane, or before or behind it, where another job's chunks are."""
    fabric = Fabric(1, "star", mtu=256)
    room = 256
    payload, lane = 2 * room, 5 * room
    quiet = fabric.group(job=1, window=64)
    inputs = streams(1, 64, "float32")
    seen = (0, payload - 4, payload + room - 4)  # accumulator and payload
    hidden = (-4, payload + room, lane - 4, lane)  # behind the payload: the destination of others
    for distance, fault in [(d, False) for d in seen] + [(d, True) for d in hidden]:
        peek = made(
            first=[
                *load_constant(T1, distance & (2**64 - 1)),
                encode("add", rd=T1, rs1=T1, rs2=A0),
                encode("lw", rd=T0, rs1=T1, imm=0),
                *OK,
            ]
        )
        with fabric.group(job=2, window=64) as group:
            ticket = group.start(Exchange(peek, inputs, [None]))
            if fault:
                with pytest.raises(CollectiveError, match="load access fault"):
                    ticket.wait()
            else:
                ticket.wait()
    quiet.close()


def test_a_job_finds_nothing_that_another_has_left() -> None:
    """In registers, on the stack and in a lane that it gets after another job."""
    fabric = Fabric(1, "star", mtu=256, machine=Machine("one", cores=1))
    ones = [np.full(64, 1.5, np.float32)]
    leave = [  # a pattern into vector registers, the stack and the accumulator's end
        *load_constant(T0, 0x5A5A5A5A),
        encode("vsetvli", rd=T1, rs1=0, vtype=vtype(32, "m8")),
        *(encode("vmv.v.x", vd=v, rs1=T0) for v in (0, 8, 16, 24)),
        encode("sw", rs1=SP, rs2=T0, imm=-64),
        encode("sw", rs1=A0, rs2=T0, imm=508),
        *OK,
    ]
    look = [  # the sum of what is there
        encode("vsetvli", rd=T1, rs1=0, vtype=vtype(32, "m8")),
        encode("vmv.x.s", rd=T0, vs2=8),
        encode("lw", rd=T1, rs1=SP, imm=-64),
        encode("or", rd=T0, rs1=T0, rs2=T1),
        encode("lw", rd=T1, rs1=A0, imm=508),
        encode("or", rd=T0, rs1=T0, rs2=T1),
        encode("ld", rd=T1, rs1=A1, imm=0),
        encode("sw", rs1=T1, rs2=T0, imm=0),
        *OK,
    ]
    seen = {}
    for job in (1, 2):
        found = [np.ones(64, np.float32)]
        with fabric.group(job=1, window=1) as group:
            group.start(Exchange(made(first=leave), ones, [None])).wait()
        with fabric.group(job=job, window=1) as group:
            group.start(Exchange(made(finish=look), ones, found)).wait()
        seen[job] = int(found[0].view(np.uint32)[0])
    assert seen[2] == 0
    assert seen[1] == 0x5A5A5A5A  # of its own job, as a device keeps what it has no reason to clear


def test_a_failing_handler_ends_its_group_and_no_other() -> None:
    fabric = Fabric(3, "star")
    good, bad = fabric.group(job=1), fabric.group(job=2)
    inputs = streams(3, 5000, "float32")
    outputs = [np.zeros_like(x) for x in inputs]
    trap = made(acc=[0x0000])  # the illegal instruction
    fine = good.start(Exchange(kernel("sum", "float32"), inputs, outputs))
    faulty = bad.start(Exchange(trap, inputs, [None] * 3))
    with pytest.raises(CollectiveError, match="nic0, chunk 0: core 0: illegal") as caught:
        faulty.wait()
    assert caught.value.fault is not None and caught.value.fault.cause == 2
    fine.wait()
    want = reduce_tree("sum", "float32", (0, 1, 2), inputs).result.tobytes()
    assert all(out.tobytes() == want for out in outputs)
    status = made(finish=[0x4505, 0x8082])  # li a0, 1; ret
    with pytest.raises(CollectiveError, match="status 1"), fabric.group() as third:
        third.start(Exchange(status, inputs, [None] * 3)).wait()


@pytest.mark.parametrize("failing", [0, 1, 2])
def test_all_collectives_of_a_group_end_with_the_handler_that_failed(failing: int) -> None:
    """Be it before or behind them in the group, and though bytes that are moved have no handler."""
    fabric = Fabric(3, "star")
    inputs = streams(3, 50, "float32")
    status = made(finish=[0x4505, 0x8082])  # li a0, 1; ret
    exchanges = [
        Exchange(None, inputs, [np.zeros(150, np.float32) for _ in range(3)]),
        Exchange(kernel("max", "float32"), inputs, [None] * 3),
    ]
    exchanges.insert(failing, Exchange(status, inputs, [None] * 3))
    with fabric.group(window=1) as group:
        tickets = [group.start(exchange) for exchange in exchanges]
        for ticket in tickets[failing:]:
            with pytest.raises(CollectiveError, match=f"core 0: {status.op} returned status 1"):
                ticket.wait()
        for ticket in tickets[:failing]:  # all had a turn before it
            ticket.wait()


# ---- the death of a worker -----------------------------------------------------------------------


def test_invariant_8_what_is_sent_again_is_the_contribution() -> None:
    """Also when another worker has the result already, which may be of another size."""
    wider = made(element="float16")  # results are float32
    fabric = Fabric(2, "star", loss=0.3, seed=1)
    with fabric.group() as group:
        group.start(Exchange(wider, streams(2, 20_000, "float16"), [None, None])).wait()
    fabric.run()
    counters = fabric.counters()
    assert counters.resent > 20 and "count" not in counters.drops
    sums_up(counters)


def slow_image() -> KernelImage:
    """Each call takes 0.8 ms of virtual time: longer than a worker resends in vain."""
    wait = [
        *load_constant(T0, 400_000),
        encode("addi", rd=T0, rs1=T0, imm=-1),
        encode("bne", rs1=T0, rs2=0, target=-4),
        *OK,
    ]
    return made(first=wait, acc=wait, finish=wait)


@pytest.mark.parametrize("planes", [1, 2])
def test_invariant_8_a_slow_handler_is_no_dead_worker(planes: int) -> None:
    fabric = Fabric(2, "star", planes=planes, max_resends=2)
    with fabric.group() as group:
        group.start(Exchange(slow_image(), streams(2, 300, "float32"), [None, None])).wait()
    assert fabric.counters().resent > 2 and not fabric.replays()


def test_invariant_8_resends_to_a_slow_handler_are_not_in_vain() -> None:
    """A result that is lost afterwards is asked for as often as any other."""
    fabric = Fabric(2, "star", max_resends=2)
    link = fabric.link("rank0", "nic0")
    link.down(at=2.3e-3)  # three calls are over at 2.4 ms
    link.up(at=2.5e-3)
    with fabric.group() as group:
        group.start(Exchange(slow_image(), streams(2, 100, "float32"), [None, None])).wait()
    assert link.counters(up=False).cut > 0


def test_invariant_8_virtual_time_ends_before_its_numbers_do() -> None:
    """As slow as links may be, and more resends than there is time for."""
    slowest: dict[str, Any] = {"delay": 1.0, "jitter": 1.0, "reorder": 0.1, "loss": 1.0}
    fabric = Fabric(2, "star", max_resends=2**32 - 1, **slowest)
    inputs = streams(2, 10)
    for _ in range(2):
        with fabric.group() as group:
            ticket = group.start(Exchange(kernel("sum", "bfloat16"), inputs, [None, None]))
            with pytest.raises(CollectiveError, match=r"virtual time ends .* another fabric"):
                ticket.wait()
            assert group.failed and 9e6 < fabric.now < 2**63 / 1e12


asked = pytest.mark.parametrize("asked", [True, False])  # for partial sums


@asked
@pytest.mark.parametrize("planes", [1, 2])
@pytest.mark.parametrize("preset", PRESETS)
def test_invariant_8_a_dead_worker_is_named_and_the_survivors_sums_are_there(
    preset: str, planes: int, asked: bool
) -> None:
    fabric = Fabric(8, "tree(2)", planes=planes, max_resends=8)
    inputs = streams(8, 1200)
    outputs = [np.zeros_like(x) for x in inputs]
    fabric.kill("rank5")
    group = fabric.group()
    ticket = group.start(
        Exchange(kernel("sum", "bfloat16", preset), inputs, outputs, partials=asked)
    )
    assert bool(ticket.partials()) == asked
    with pytest.raises(CollectiveError, match="rank5") as caught:
        ticket.wait()
    assert caught.value.missing == (5,)
    assert not any(out.any() for out in outputs)
    # who is dead is left out of the order, at every level
    survivors = (((0, 1), (2, 3)), ((4,), (6, 7)))
    want = reduce_tree("sum", "bfloat16", survivors, inputs, preset).partials
    behind = {"spine0": 7, "leaf0": 4, "leaf1": 3, "nic0": 2, "nic1": 2, "nic2": 1, "nic3": 2}
    for name, partial in ticket.partials().items():
        assert partial.values.tobytes() == want[group.names[name]].tobytes(), name
        ((elements, ranks, time),) = partial.pieces()
        assert elements == range(1200) and time > 0
        assert 5 not in ranks and len(ranks) == behind[name]
    sums_up(fabric.counters())


def test_survivors_sums_go_up_through_many_devices() -> None:
    """Each keeps one of every chunk in flight: more than a frame's arrival ever brings about."""
    high, count = 31, 128 * 16
    chain = networkx.DiGraph([*((f"d{i}", f"d{i + 1}") for i in range(high)), (f"d{high}", 0)])
    chain.add_edge(f"d{high}", 1)
    fabric = Fabric(2, chain, mtu=256, max_resends=2)
    inputs = [np.full(count, rank + 1, np.float16) for rank in range(2)]
    fabric.kill("rank1")
    with fabric.group() as group:
        ticket = group.start(
            Exchange(kernel("sum", "float16", "per-hop"), inputs, [None] * 2, partials=True)
        )
        with pytest.raises(CollectiveError, match="rank1"):
            ticket.wait()
    assert group.window == 16
    assert len(ticket.partials()) == high + 1
    for partial in ticket.partials().values():
        ((elements, ranks, _),) = partial.pieces()
        assert (elements, ranks) == (range(count), (0,))
        assert (partial.values == 1).all()


@asked
def test_workers_behind_a_dead_link(asked: bool) -> None:
    fabric = Fabric(6, "tree(2)", max_resends=8)
    inputs = streams(6, 100)
    fabric.link("nic1", "leaf0").down()
    with fabric.group() as group:
        exchange = Exchange(kernel("sum", "bfloat16"), inputs, [None] * 6, partials=asked)
        ticket = group.start(exchange)
        with pytest.raises(CollectiveError, match="rank2, rank3 ") as caught:
            ticket.wait()
    assert caught.value.missing == (2, 3)
    found = {name: [r for _, r, _ in p.pieces()] for name, p in ticket.partials().items()}
    assert found["nic1"] == [(2, 3)]  # which it could not send
    assert found["leaf0"] == [(0, 1)]
    assert found["spine0"] == [(0, 1, 4, 5)]


def test_survivors_of_many_exchanges_in_a_deep_tree() -> None:
    """Far more partial sums at once than one event makes; levels are not told of after the end."""
    fabric = Fabric(64, "tree(2)", mtu=256, max_resends=2)
    for rank in range(1, 64, 2):
        fabric.kill(f"rank{rank}")
    inputs = [np.full(4, rank, np.float32) for rank in range(64)]
    with fabric.group(window=64) as group:
        exchange = Exchange(kernel("sum", "float32"), inputs, [None] * 64, partials=True)
        tickets = [group.start(exchange) for _ in range(60)]
        for ticket in tickets:
            with pytest.raises(CollectiveError, match="rank63"):
                ticket.wait()
    for ticket in tickets:
        assert not ticket.levels and len(ticket.partials()) == 63
        for name, partial in ticket.partials().items():
            ranks = [rank for rank in fabric.devices[name].ranks if rank % 2 == 0]
            assert [r for _, r, _ in partial.pieces()] == [tuple(ranks)]
            assert (partial.values == sum(ranks)).all()


def test_a_worker_dies_half_way() -> None:
    """Some chunks are done, some in flight, most not begun; other groups go on."""
    fabric = Fabric(4, "star", max_resends=8)
    inputs = streams(4, 100_000)
    outputs = [np.zeros_like(x) for x in inputs]
    want = reduce_tree("sum", "bfloat16", (0, 1, 2, 3), inputs)
    without = reduce_tree("sum", "bfloat16", (0, 1, 3), inputs)
    fabric.kill("rank2", at=15e-6)
    with fabric.group([0, 1, 3]) as other, fabric.group(window=4) as group:
        ticket = group.start(Exchange(kernel("sum", "bfloat16"), inputs, outputs, partials=True))
        with pytest.raises(CollectiveError, match="rank2"):
            ticket.wait()
        others = [inputs[0], inputs[1], inputs[3]]
        results = [np.zeros_like(x) for x in others]
        other.start(Exchange(kernel("sum", "bfloat16"), others, results)).wait()
    assert results[0].tobytes() == without.result.tobytes()
    done = ticket.partials()["nic0"]
    pieces = {ranks: elements for elements, ranks, _ in done.pieces()}
    assert set(pieces) == {(0, 1, 2, 3), (0, 1, 3)}
    whole, rest = pieces[0, 1, 2, 3], pieces[0, 1, 3]
    assert 0 < whole.stop == rest.start and len(rest) == 4 * SLOT < 100_000 - rest.stop
    assert outputs[0][: whole.stop].tobytes() == want.result[: whole.stop].tobytes()
    bits = done.values.view(np.uint32)
    assert (bits[: whole.stop] == want.partials[()][: whole.stop]).all()
    assert (bits[rest.start : rest.stop] == without.partials[()][rest.start : rest.stop]).all()


def test_a_result_that_cannot_be_delivered() -> None:
    """All have contributed, and one does not hear of it: the others' links stay as they are."""
    fabric = Fabric(2, "star", max_resends=4)
    inputs = streams(2, 10)
    fabric.link("rank1", "nic0").down(at=1.5e-6)
    with fabric.group() as group:
        ticket = group.start(Exchange(kernel("sum", "bfloat16"), inputs, [None] * 2))
        with pytest.raises(CollectiveError, match="does not reach rank0, rank1") as caught:
            fabric.link("rank0", "nic0").down(at=1.5e-6)
            ticket.wait()
    assert (caught.value.missing, caught.value.waiting) == ((), (0, 1))


# ---- two planes ----------------------------------------------------------------------------------


@pytest.mark.parametrize("order", ["fixed", "arrival"])
@pytest.mark.parametrize("faults", [{}, FAULTS])
@pytest.mark.parametrize(
    "ends", [("rank3", "nic0"), ("nic1", "leaf0"), ("nic0@1", "leaf0@1"), ("leaf0", "spine0")]
)
def test_a_plane_dies_and_comes_back(
    ends: tuple[str, str], faults: dict[str, Any], order: str
) -> None:
    """In place, so that workers that have a result cannot contribute again."""
    fabric = Fabric(9, "cards", planes=2, seed=1, order=order, jitter=1e-6, **faults)
    inputs = streams(9, 100_000)
    want = reduce_tree("sum", "bfloat16", fabric.order, inputs)
    close = np.sum([x.astype(np.float64) for x in inputs], axis=0)
    down, up = 30e-6, 200e-6
    fabric.link(*ends).down(at=down)
    fabric.link(*ends).up(at=up)
    plane = 1 if "@" in ends[1] else 0
    device = f"nic0@{plane}" if plane else "nic0"

    def merged() -> int:
        nic = fabric.devices[device].nic
        return sum(nic.counters(core).instructions for core in range(8))

    with fabric.group(window=4) as group:
        ticket = group.start(Exchange(kernel("sum", "bfloat16"), inputs, inputs, partials=True))
        fabric.run(until=up)
        before = merged()
        ticket.wait()
        fabric.run()
    assert merged() > before  # the plane is used again
    (replay,) = fabric.replays()
    assert (replay.plane, replay.down) == (plane, down) and replay.chunks > 0
    assert replay.detection_time == pytest.approx(10e-6)
    assert replay.replay_time is not None and replay.replay_time > 0
    if order == "fixed":
        assert all(x.tobytes() == want.result.tobytes() for x in inputs)
    else:
        assert all(x.tobytes() == inputs[0].tobytes() for x in inputs)
        assert np.allclose(inputs[0].astype(np.float64), close, rtol=0.02, atol=8)
    sums_up(fabric.counters())


def test_both_planes_die_in_turn() -> None:
    fabric = Fabric(4, "star", planes=2)
    first, second = fabric.link("rank0", "nic0"), fabric.link("rank0", "nic0@1")
    first.down(at=20e-6)
    second.down(at=100e-6)  # nothing is left
    first.up(at=300e-6)
    run = allreduce(fabric, 200_000, window=4)
    assert [r.plane for r in run.fabric.replays()] == [0, 1]


def test_a_silent_plane_is_left() -> None:
    """A link that loses everything and does not say so: resends find out."""
    fabric = Fabric(4, "star", planes=2)
    fabric.link("rank1", "nic0").down()
    fabric.run()
    group = fabric.group()  # knows of it: nothing goes over plane 0
    inputs = streams(4, 5000)
    group.start(Exchange(kernel("sum", "bfloat16"), inputs, inputs)).wait()
    assert fabric.counters().cut == 0 and fabric.replays() == []
    quiet = Fabric(4, "star", planes=2, detection=100.0)
    quiet.link("rank1", "nic0").down(at=5e-6)
    run = allreduce(quiet, 100_000, window=4)
    (replay,) = run.fabric.replays()
    assert replay.down is None and replay.chunks > 0


def test_planes_that_were_suspected_at_once_are_left_again() -> None:
    """The links of both are cut for a while: nobody says so, resends find out, one is left.  When
    that is back, and the other's is cut again, the other is left as soon.
    """
    fabric = Fabric(4, "star", planes=2, detection=1.0, max_resends=8)
    links = [fabric.link("rank0", device) for device in ("nic0", "nic0@1")]
    for link in links:
        link.down(at=1e-6)
        link.up(at=2.8e-3)
    inputs = streams(4, 20_000)
    with fabric.group() as group:
        took = []
        for plane in (0, 1):
            start = fabric.now
            ticket = group.start(Exchange(kernel("sum", "bfloat16"), inputs, [None] * 4))
            links[plane].down()
            ticket.wait()
            took.append(fabric.replays()[-1].detected - start)
            fabric.run(until=fabric.now + 2)  # what has become of the links is seen
    assert [replay.plane for replay in fabric.replays()] == [0, 1]
    assert took[0] == pytest.approx(took[1])


def test_an_interrupt_is_heard_and_the_fabric_goes_on() -> None:
    fabric = Fabric(4, "star")
    inputs = streams(4, 3_000_000, "float32")
    outputs = [np.zeros_like(x) for x in inputs]

    def interrupt(signum: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        with fabric.group() as group:
            ticket = group.start(Exchange(kernel("sum", "float32"), inputs, outputs))
            signal.setitimer(signal.ITIMER_REAL, 0.001)
            with pytest.raises(KeyboardInterrupt):
                ticket.wait()
            assert not ticket.done
            ticket.wait()
    finally:
        signal.signal(signal.SIGALRM, before)
    want = reduce_tree("sum", "float32", (0, 1, 2, 3), inputs).result.tobytes()
    assert all(out.tobytes() == want for out in outputs)


def test_what_is_reported_survives_interrupts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C after each call of the core, before anybody has read what it reports."""
    real, interrupt = _core.call, ""

    def interrupted(what: str, function: Any, *arguments: Any) -> Any:
        result = real(what, function, *arguments)
        if what == interrupt:
            raise KeyboardInterrupt
        return result

    fabric = Fabric(8)
    inputs = streams(8, 5000)
    outputs = [np.zeros_like(x) for x in inputs]
    exchange = Exchange(kernel("sum", "bfloat16"), inputs, outputs, partials=True)
    monkeypatch.setattr(_core, "call", interrupted)
    with fabric.group() as group:
        ticket = group.start(exchange)
        interrupt, interrupts = "events", 0
        while not ticket.done:
            try:
                ticket.wait()
            except KeyboardInterrupt:
                interrupts += 1
        ticket.wait()
        assert sorted(ticket.levels) == ["leaf0", "nic0", "nic1", "spine0"] and interrupts >= 5
        want = reduce_tree("sum", "bfloat16", fabric.order, inputs).result.tobytes()
        assert all(out.tobytes() == want for out in outputs)
        interrupt = ""
        other = group.start(exchange)
        interrupt = "exchange"
        with pytest.raises(KeyboardInterrupt):  # nobody has its ticket, and keeps its arrays
            group.start(exchange)
        interrupt = ""
        with pytest.raises(CollectiveError, match="the group was closed"):
            other.wait()
        assert group.failed
    with fabric.group() as group:
        group.start(exchange).wait()


@pytest.mark.parametrize("interrupt", ["", "survivors"])
def test_survivors_are_there_when_a_collective_has_ended(
    monkeypatch: pytest.MonkeyPatch, interrupt: str
) -> None:
    """Also after Ctrl-C between the two; and they are entered once."""
    real = _core.call

    def interrupted(what: str, function: Any, *arguments: Any) -> Any:
        nonlocal interrupt
        if what == "survivors":
            assert not ticket.done
        result = real(what, function, *arguments)
        if what == interrupt:
            interrupt = ""
            raise KeyboardInterrupt
        return result

    fabric = Fabric(8, "tree(2)", max_resends=4)
    fabric.kill("rank5")
    monkeypatch.setattr(_core, "call", interrupted)
    with fabric.group() as group:
        inputs = streams(8, 300)
        ticket = group.start(Exchange(kernel("sum", "bfloat16"), inputs, [None] * 8))
        if interrupt:
            with pytest.raises(KeyboardInterrupt):
                ticket.wait()
        with pytest.raises(CollectiveError, match="nothing comes from rank5"):
            ticket.wait()
        root = next(name for name, path in group.names.items() if not path)
        ((_, ranks, _),) = ticket.partials()[root].pieces()
        assert ranks == (0, 1, 2, 3, 4, 6, 7)


def test_now_is_no_time_that_is_past() -> None:
    """As a float it may be a little before."""
    fabric = Fabric(2, "star")
    link = fabric.links()[0]
    for i in range(40):
        link.up(at=1e5 + i * 1.234567e-3)
        fabric.run()
        link.up(at=fabric.now)
    with pytest.raises(ArgumentError, match="is past"):
        link.up(at=fabric.now - 1e-6)


# ---- capture -------------------------------------------------------------------------------------


def test_capture(tmp_path: Path) -> None:
    path = tmp_path / "run.pcap"
    with Fabric(4, "star", capture=path) as fabric:
        run = allreduce(fabric, 5000)
        assert not path.exists()
    records = list(read(path))
    assert len(records) == run.fabric.counters().sent
    # a device that gets the captured frames makes the same of them
    again = Fabric(4, "star")
    with again.group() as group:
        outputs = [np.zeros_like(run.result) for _ in range(4)]
        for link in again.links():
            link.down()
        again.run()
        ticket = group.start(
            Exchange(kernel("sum", "bfloat16"), run.inputs, outputs, partials=True)
        )
        for record in records:
            node = {again.devices["nic0"].node: "nic0"} | {i + 1: f"rank{i}" for i in range(4)}
            to = node[int.from_bytes(record.frame[31:34], "big")]
            assert again.receive(to, record.frame) == "accepted"
        ticket.wait()
    assert all(out.tobytes() == run.result.tobytes() for out in outputs)


def test_a_capture_that_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    """The disk is full while frames are sent, or at the end; what follows is not captured."""
    for count in (100, 3_000_000):
        fabric = Fabric(2, "star", capture=tmp_path / "x.pcap")
        assert fabric._capture is not None
        fabric._capture._file = open("/dev/full", "wb")  # noqa: PTH123, SIM115
        with pytest.raises(FileFormatError, match="No space left"):
            allreduce(fabric, count)
            fabric.close()
        assert list(tmp_path.iterdir()) == []
        allreduce(fabric, 100)
        fabric.close()
        assert list(tmp_path.iterdir()) == []


# ---- arguments -----------------------------------------------------------------------------------

#: 33 devices above one another
HIGH = networkx.DiGraph(
    [*((f"d{i}", f"d{i + 1}") for i in range(32)), *(("d32", r) for r in range(4))]
)


@pytest.mark.parametrize(
    "options",
    [
        {"ranks": 0}, {"mtu": 255}, {"mtu": 4097}, {"planes": 3}, {"loss": 1.1}, {"loss": -0.1},
        {"delay": -1.0}, {"delay": 2.0}, {"jitter": float("nan")},
        {"order": "random"}, {"topology": "ring"}, {"topology": "tree"},
        {"topology": "star(3)"}, {"topology": "tree(1)"}, {"topology": 3},
        {"ranks": 65, "topology": "star"}, {"ranks": 65, "topology": "tree(65)"}, {"ranks": 1025},
        {"ranks": 1 << 40}, {"machine": "no"}, {"max_resends": 1}, {"max_resends": -1},
        {"max_resends": 1 << 32}, {"seed": -1}, {"seed": 1 << 64}, {"topology": HIGH},
    ],
)  # fmt: skip
def test_refused_fabrics(options: dict[str, Any]) -> None:
    """Before anything is built; the message says what is possible."""
    with pytest.raises(ArgumentError, match=r"use|pass"):
        Fabric(**{"ranks": 4, **options})


def test_refused_exchanges() -> None:
    fabric = Fabric(2, "star")
    image = kernel("sum", "float32")
    good = [np.zeros(4, np.float32) for _ in range(2)]
    frozen = np.zeros(4, np.float32)
    frozen.flags.writeable = False
    with fabric.group() as group:
        for inputs, outputs, offsets, words in (
            (good[:1], good, None, "1 inputs for 2 workers"),
            (good, good[:1], None, "1 outputs for 2 workers"),
            ([good[0], None], good, None, "one is None"),
            ([None, None], good, None, "one is None"),
            ([good[0], good[0][:3]], good, None, "inputs differ in shape"),
            ([good[0], good[0].astype(np.float64)], good, None, "input 1 is float64"),
            ([good[0], np.zeros(8, np.float32)[::2]], good, None, "input 1 .* contiguous"),
            (good, [good[0], good[0].astype(np.float16)], None, "output 1 is float16"),
            (good, [good[0], np.broadcast_to(good[0][:1], 4)], None, "output 1 .* contiguous"),
            (good, [good[0], frozen], None, "output 1 is not writeable"),
            (good, good, [0], "1 offsets for 2 workers"),
            (good, good, [0, 1], "beyond the 4 elements"),
            (good, good, [0, -1], "beyond the 4 elements"),
        ):
            with pytest.raises(ArgumentError, match=words):
                group.start(Exchange(image, inputs, outputs, offsets))
        with pytest.raises(ArgumentError, match=r"items of \[4, 8\] bytes"):
            group.start(Exchange(None, [good[0], None], [None, np.zeros(4)]))
        with pytest.raises(ArgumentError, match="beyond the 4 elements"):
            group.start(Exchange(None, [good[0], None], [None, good[1]], [0, 1]))
    with pytest.raises(ArgumentError, match="closed"):
        group.start(Exchange(image, good, good))
    for ranks in ([], [0, 0], [2], [-1]):
        with pytest.raises(ArgumentError):
            fabric.group(ranks)
    for window in (0, 5000):
        with pytest.raises(ArgumentError):
            fabric.group(window=window)
    with pytest.raises(ArgumentError):
        fabric.group(job=1 << 16)
    with pytest.raises(ArgumentError):
        fabric.link("rank0", "rank1")
    with pytest.raises(ArgumentError):
        fabric.receive("nic7", b"")
    sums_up(fabric.counters())
    many = Fabric(1025, "tree(64)")
    with pytest.raises(ArgumentError, match=r"1025 ranks: use 1\.\.1024"):
        many.group()


def test_progress_is_watched() -> None:
    """Chunks done never go back, all are told of, and an idle fabric has none."""
    fabric = Fabric(4, "star", mtu=256)
    count = 128 * 30_000  # chunks, each of 8 frames: several slices of events
    inputs = [np.full(count, rank, np.float16) for rank in range(4)]
    outputs = [np.empty(count, np.float16) for _ in range(4)]
    told: list[tuple[int, int]] = []
    fabric.watch = lambda: told.append(fabric.progress())
    with fabric.group() as group:
        ticket = group.start(Exchange(kernel("sum", "float16"), inputs, outputs))
        assert fabric.progress() == (0, 30_000)
        ticket.wait()
    assert told[-1] == (0, 0) == fabric.progress()
    done = [done for done, total in told if total]
    assert {total for _, total in told} == {30_000, 0}
    assert done == sorted(done) and 0 < done[0] < done[-1] < 30_000
    assert all((out == 6).all() for out in outputs)
