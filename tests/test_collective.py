"""The Communicator: reductions people got wrong elsewhere, each collective, places, handles,
partial sums, the numerics report, arguments.  The grid of all combinations is matrix.py's."""

from __future__ import annotations

import dataclasses
import re
import signal
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.lib.stride_tricks import as_strided

import nicemu
from nicemu import ArgumentError, Communicator, Fabric, Partial, ReduceOp, WorkerLostError
from nicemu.collectives.algorithms import ALGORITHMS
from nicemu.collectives.collective import COLLECTIVES
from nicemu.collectives.partials import Share
from nicemu.dtypes import format_of
from nicemu.order import Path as TreePath
from nicemu.order import devices, leaves
from nicemu.reference.error import Errors, errors
from nicemu.reference.tree import reduce_tree
from tests.encode import image
from tests.test_reference_streams import ROWS

by_algorithm = pytest.mark.parametrize("algorithm", ["in-network", *ALGORITHMS])
Array = np.ndarray


def normal(ranks: int, shape: int | tuple[int, ...], element: str = "bfloat16") -> list[Array]:
    rng = np.random.default_rng(ranks)
    dtype = format_of(element).dtype
    return [rng.normal(size=shape).astype(np.float32).astype(dtype) for _ in range(ranks)]


def same_on_all(values: list[Array | None]) -> Array:
    """The one array that all ranks have."""
    first = values[0]
    assert first is not None
    for value in values[1:]:
        assert value is not None and value.dtype == first.dtype and value.shape == first.shape
        assert value.tobytes() == first.tobytes()
    return first


# ---- reductions people got wrong elsewhere ---------------------------------------------------


@pytest.mark.parametrize(
    ("op", "name", "preset", "inputs", "want", "algorithm"),
    [
        (*row, algorithm)
        for row in ROWS
        for algorithm in ("in-network", *ALGORITHMS)
        if len(row[3]) < 100 or algorithm == "in-network"  # 512 Nics take a while to make
    ],
)
def test_known_reductions(
    op: str, name: str, preset: str, inputs: list[float], want: float, algorithm: str
) -> None:
    """By the order that is stated, the same bits on every rank; where no order matters, the right
    value of numerics."""
    dtype = format_of(name).dtype
    arrays = [np.full(3, x, np.float64).astype(dtype) for x in inputs]
    result = Communicator(len(inputs)).allreduce(arrays, op, preset=preset, algorithm=algorithm)
    got = same_on_all(result.values)
    for share in result.shares:
        part = slice(share.elements.start, share.elements.stop)
        tree = reduce_tree(op, name, share.order, [x[part] for x in arrays], preset)
        assert got[part].tobytes() == tree.result.tobytes()
    exact = min(inputs) >= 0 and not (preset == "per-add" and len(inputs) > 8)
    if exact or op in ("max", "min"):  # then in any order
        assert got.tolist() == pytest.approx(np.full(3, want).astype(dtype).tolist())


@by_algorithm
@pytest.mark.parametrize("op", ["max", "min"])
def test_a_nan_loses_wherever_it_is(op: str, algorithm: str) -> None:
    world, seen = Communicator(5), set()
    for rank in range(5):
        arrays = normal(5, 7)
        arrays[0], arrays[rank] = arrays[rank], np.full(7, np.nan).astype(arrays[0].dtype)
        clean = [x.astype(np.float32) for r, x in enumerate(arrays) if r != rank]
        got = same_on_all(world.allreduce(arrays, op, algorithm=algorithm).values)
        assert got.astype(np.float32).tolist() == getattr(np, op)(clean, axis=0).tolist()
        seen.add(len(got))
    assert seen == {7}


@by_algorithm
def test_repeats_bit_by_bit_whatever_the_packets(algorithm: str) -> None:
    """1e4, 1, -1e4, 1e-3 in float32: any other order would show.  Delays are random, too."""
    arrays = [np.full(100, x, np.float32) for x in (1e4, 1, -1e4, 1e-3)]
    seen = set()
    for mtu in (256, 500, 1000, 2048, 4096):
        fabric = Fabric(4, mtu=mtu, seed=mtu, jitter=2e-5, loss=0.1, reorder=0.3)
        world = Communicator(fabric)
        for _ in range(10):
            seen.add(same_on_all(world.allreduce(arrays, algorithm=algorithm).values).tobytes())
    assert len(seen) == 1


@by_algorithm
@pytest.mark.parametrize("count", [0, 1, 7, 8, 9, 31, 33, 1023, 1025, 10007])
def test_counts_and_a_start_one_element_in(count: int, algorithm: str) -> None:
    """Sums that are exact in any order; nothing is written beside the outputs."""
    ranks = 3
    memory = [np.full(count + 4, -7, np.float16) for _ in range(ranks)]
    outs = [m[1 : 1 + count] for m in memory]
    arrays = [(np.arange(count) % 50 + rank).astype(np.float16) for rank in range(ranks)]
    Communicator(ranks).allreduce(arrays, algorithm=algorithm, out=outs)
    for out, m in zip(outs, memory, strict=True):
        assert np.array_equal(out, 3 * (np.arange(count) % 50) + 3)
        assert np.all(m[[0, -1, -2, -3]] == -7)


@by_algorithm
def test_a_premultiplied_sum_of_bfloat16_is_not_zero(algorithm: str) -> None:
    """Factors that are powers of two, applied before: 2^-8 of 1.0 from each of 8 ranks."""
    arrays = [(np.ones(5) * 2.0**-8).astype(nicemu.bfloat16)] * 8
    got = same_on_all(Communicator(8).allreduce(arrays, algorithm=algorithm).values)
    assert got.astype(np.float64).tolist() == [2.0**-5] * 5


# ---- what each collective is -----------------------------------------------------------------


def test_bus_bandwidth_as_nccl_tests_defines_it() -> None:
    """Its PERFORMANCE.md, for 8 ranks."""
    factors = {name: row.bus(8) for name, row in COLLECTIVES.items()}
    assert factors == {
        "allreduce": 14 / 8,
        "reduce": 1,
        "reduce_scatter": 7 / 8,
        "all_gather": 7 / 8,
        "broadcast": 1,
        "barrier": 0,
    }


@pytest.mark.parametrize(
    ("algorithm", "ranks"),
    [*(("ring", n) for n in (1, 2, 5, 8)), *(("halving-doubling", n) for n in (1, 2, 8))],
)
def test_bytes_sent_are_the_least_there_can_be(algorithm: str, ranks: int) -> None:
    """Of an array that divides evenly, all ranks together; per-add, where partial sums are no
    wider than elements, and no rank is folded."""
    world = Communicator(ranks, algorithm=algorithm)
    arrays = normal(ranks, 40 * ranks)
    whole = arrays[0].nbytes
    for name in ("allreduce", "reduce_scatter"):
        sent = world.start(name, arrays, preset="per-add").wait().payload_bytes
        least = round(COLLECTIVES[name].bus(ranks) * whole * ranks)
        assert sent >= least
        assert sent == least or (name, algorithm) == ("reduce_scatter", "halving-doubling")


@by_algorithm
def test_shapes(algorithm: str) -> None:
    world = Communicator(3, algorithm=algorithm)
    arrays = normal(3, (6, 5), "float32")
    total = arrays[0] + arrays[1] + arrays[2]
    assert same_on_all(world.allreduce(arrays).values).shape == (6, 5)
    reduced = world.reduce(arrays, root=1).values
    assert reduced[0] is None and reduced[2] is None and reduced[1] is not None
    assert np.allclose(reduced[1], total, rtol=1e-5, atol=1e-6)
    parts = world.reduce_scatter(arrays).values
    assert [p is not None and p.shape for p in parts] == [(2, 5)] * 3
    assert np.allclose(np.concatenate([p for p in parts if p is not None]), total, 1e-5, 1e-6)
    gathered = same_on_all(world.all_gather(arrays).values)
    assert np.array_equal(gathered, np.concatenate(arrays))
    assert np.array_equal(same_on_all(world.broadcast(arrays[2], root=2).values), arrays[2])
    assert world.barrier().values == [None] * 3
    single = same_on_all(world.allreduce([np.array(2, np.float32)] * 3).values)
    assert single.shape == () and single == 6


def test_rows_of_a_2d_array_and_any_dtype_that_is_only_moved() -> None:
    world = Communicator(4)
    rows = np.arange(20).reshape(4, 5)
    assert same_on_all(world.all_gather(rows).values).tolist() == list(range(20))
    text = np.array(["a", "bc"])
    assert same_on_all(world.broadcast(text).values).tolist() == ["a", "bc"]
    assert np.all(same_on_all(world.allreduce(np.ones((4, 3), np.float16)).values) == 4)
    out = np.zeros((4, 3), np.float16)
    world.allreduce(np.ones((4, 3), np.float16), out=out)
    assert np.all(out == 4)


def test_an_op_of_ones_own() -> None:
    """A kernel image in place of a name: here one whose handlers all return 1."""
    sum_ = nicemu.kernel("sum", "float32")
    world = Communicator(2)
    arrays = [np.ones(4, np.float32)] * 2
    assert np.all(same_on_all(world.allreduce(arrays, sum_).values) == 2)
    with pytest.raises(ArgumentError, match="the image of sum takes float32"):
        world.allreduce([x.astype(np.float16) for x in arrays], sum_)
    fails = failing("float32")
    for algorithm in ("in-network", "ring"):
        handle = world.start("allreduce", arrays, fails, algorithm=algorithm)
        for _ in range(2):
            with pytest.raises(nicemu.CollectiveError, match="returned status 1"):
                handle.wait()
        assert handle.done
        got = world.allreduce(arrays, sum_, algorithm=algorithm)  # others go on
        assert np.all(same_on_all(got.values) == 2)


@by_algorithm
def test_a_handler_that_traps(algorithm: str) -> None:
    """Its core, its cause and its pc come with the error."""
    traps = dataclasses.replace(failing("float16"), code=image([0x00100073]))  # ebreak
    with pytest.raises(nicemu.CollectiveError, match="breakpoint") as error:
        Communicator(3).allreduce(normal(3, 9, "float16"), traps, algorithm=algorithm)
    assert error.value.fault is not None and error.value.fault.cause == 3


def test_two_jobs_on_the_same_devices() -> None:
    """Their frames mix; their sums do not."""
    fabric = Fabric(6, loss=0.1, reorder=0.2)
    jobs = [Communicator(fabric, job=job, window=4) for job in (1, 2)]
    arrays = [[x * np.float16(job + 1) for x in normal(6, 900, "float16")] for job in range(2)]
    handles = [job.start("allreduce", given) for job, given in zip(jobs, arrays, strict=True)]
    for handle, given in zip(reversed(handles), reversed(arrays), strict=True):
        result = handle.wait()
        tree = reduce_tree("sum", "float16", result.order, given)
        assert np.array_equal(same_on_all(result.values).view(np.uint16), tree.result)


def failing(element: str) -> nicemu.KernelImage:
    """Each of its handlers returns 1."""
    return nicemu.KernelImage(
        op="fails", preset="wide", element=element, accumulator="float32", partial="float32",
        result=element, code=image([0x00100513, 0x00008067]),  # li a0, 1; ret
        entries=dict.fromkeys(nicemu.device.image.REQUIRED, 0),
    )  # fmt: skip


@by_algorithm
def test_every_addition_is_the_image_s(algorithm: str) -> None:
    """Under the name of sum, an image that multiplies: nobody adds behind its back."""
    image_ = dataclasses.replace(nicemu.kernel("prod", "float32"), op="sum")
    arrays = [np.full(50, x, np.float32) for x in (3, 5, 7, 11, 13)]
    result = Communicator(5).allreduce(arrays, image_, algorithm=algorithm)
    assert np.all(same_on_all(result.values) == 3 * 5 * 7 * 11 * 13)


# ---- places ----------------------------------------------------------------------------------


@by_algorithm
@pytest.mark.parametrize("name", ["allreduce", "reduce_scatter", "all_gather"])
def test_outputs_that_lie_over_inputs(name: str, algorithm: str) -> None:
    """In place as MPI and NCCL have it, and shifted: the result is right in the caller's array."""
    world = Communicator(3, algorithm=algorithm)
    for shift in (0, 1, 5):
        memory = [np.arange(40, dtype=np.float32) * (rank + 1) for rank in range(3)]
        if name == "all_gather":
            outs = [m[shift : shift + 27] for m in memory]
            arrays = [m[9 * rank : 9 * rank + 9] for rank, m in enumerate(memory)]
        else:
            arrays = [m[:27] for m in memory]
            part = 9 if name == "reduce_scatter" else 27
            outs = [
                m[shift + (part * rank if part == 9 else 0) :][:part]
                for rank, m in enumerate(memory)
            ]
        want = world.start(name, [x.copy() for x in arrays]).wait().values
        got = world.start(name, arrays, out=outs).wait().values
        for out, value, right in zip(outs, got, want, strict=True):
            assert value is out and right is not None
            assert out.tolist() == right.tolist()


def test_strided_and_transposed_arrays() -> None:
    world = Communicator(2)
    base = [np.zeros((6, 8), np.float16), np.ones((6, 8), np.float16)]
    views: list[Callable[[Array], Array]] = [
        lambda a: a.T, lambda a: a[::-1, ::3], lambda a: a[:, 1:4], lambda a: a[2:2]
    ]  # fmt: skip
    for view in views:
        outs = [np.full((6, 8), 9, np.float16) for _ in base]
        world.allreduce([view(b) for b in base], out=[view(o) for o in outs])
        for out in outs:
            assert np.all(view(out) == 1)
            view(out)[...] = 9
            assert np.all(out == 9)


@by_algorithm
@pytest.mark.filterwarnings("ignore:the matrix subclass")
def test_arrays_of_other_classes(algorithm: str) -> None:
    """Their elements count, and not what the class makes of shapes."""
    world = Communicator(3, algorithm=algorithm)
    arrays = [np.matrix([[1, 2, 3], [4, 5, 6]], np.float32) for _ in range(3)]
    outs = [np.matrix(np.zeros((2, 3), np.float32)) for _ in range(3)]
    world.allreduce(arrays, out=outs)
    assert all(out.tolist() == [[3, 6, 9], [12, 15, 18]] for out in outs)
    world.allreduce(arrays, out=arrays)
    assert all(x.tolist() == outs[0].tolist() for x in arrays)


def test_in_place_leaves_the_other_ranks_of_a_reduce_alone() -> None:
    arrays = [np.full(5, r, np.float32) for r in range(3)]
    result = Communicator(3).reduce(arrays, root=1, out=arrays)
    assert result.values[1] is arrays[1]
    assert [x.tolist() for x in arrays] == [[0] * 5, [3] * 5, [2] * 5]


# ---- handles, partial sums, reports ----------------------------------------------------------


def test_several_under_way() -> None:
    world = Communicator(4)
    arrays = [normal(4, 300 + i) for i in range(3)]
    handles = [world.start("allreduce", a, partials=True) for a in arrays]
    assert not any(h.done for h in handles)
    for many in zip(*handles, strict=True):  # in turns
        assert all(p.values.size == 300 + i for i, p in enumerate(many))
    for handle, given in zip(handles, arrays, strict=True):
        assert handle.done
        want = same_on_all(world.allreduce(given).values)
        assert same_on_all(handle.wait().values).tobytes() == want.tobytes()
        assert list(handle) == []


def test_a_callback_is_told_as_levels_are_complete() -> None:
    told: list[str] = []
    result = Communicator(8).allreduce(normal(8, 5000), on_partial=lambda p: told.append(p.device))
    assert sorted(told[:2]) == ["nic0", "nic1"] and told[2:] == ["leaf0", "spine0"]
    assert set(result.partials) == set(told)


def test_partial_sums_are_in_the_order_of_the_tree() -> None:
    """... in the result, whichever device was the first to have its own."""
    told: list[str] = []
    world = Communicator(Fabric(20, loss=0.2, seed=9))
    result = world.allreduce(normal(20, 3000), on_partial=lambda p: told.append(p.device))
    want = ["nic0", "nic1", "nic2", "nic3", "nic4", "leaf0", "leaf1", "spine0"]
    assert list(result.partials) == want and sorted(told) == sorted(want) and told != want


def test_times_count_from_the_start_of_the_collective() -> None:
    """A second one on the same fabric takes as long as the first, though the clock goes on."""
    world = Communicator(8)
    first, second = (world.allreduce(normal(8, 5000), partials=True) for _ in range(2))
    for result in (first, second):
        when = {name: partial.time for name, partial in result.partials.items()}
        nic, leaf, spine, end = when["nic0"], when["leaf0"], when["spine0"], result.time
        assert nic and leaf and spine and end and 0 < nic < leaf < spine < end
    assert second.time == pytest.approx(first.time)


@by_algorithm
@pytest.mark.parametrize("ranks", [2, 3, 6, 8])
@pytest.mark.parametrize("preset", ["wide", "per-hop", "per-add"])
def test_partial_sums_are_the_reference_s(ranks: int, algorithm: str, preset: str) -> None:
    """Each of them, by name, and told as soon as its children's are there."""
    arrays = normal(ranks, 101, "float16")
    told: list[Partial] = []
    handle = Communicator(ranks, algorithm=algorithm).start(
        "allreduce", arrays, preset=preset, partials=True
    )
    result = handle.wait(told.append)
    assert set(result.partials) == {p.device for p in told}
    when = {p.device: i for i, p in enumerate(told)}
    unseen = set(result.partials)
    in_network = algorithm == "in-network"
    for share in result.shares:
        part = slice(share.elements.start, share.elements.stop)
        tree = reduce_tree("sum", "float16", share.order, [x[part] for x in arrays], preset)
        for path, node in devices(share.order):
            if path or in_network:  # of the root, what it would send
                made = result.partials[share.names[path]]
                assert made.contributors == leaves(node)
                (elements,) = made.ranges
                at = slice(part.start - elements.start, part.stop - elements.start)
                assert made.values[at].tobytes() == tree.partials[path].tobytes()
                unseen.discard(made.device)
                if path:
                    parent = share.names[path[:-1]]
                    assert when[made.device] < when.get(parent, len(told))
    assert not unseen
    assert in_network or not any(s.names[()] in result.partials for s in result.shares)


@by_algorithm
def test_partial_sums_of_no_elements(algorithm: str) -> None:
    arrays = [np.zeros(0, np.float16)] * 6
    told: list[str] = []
    world = Communicator(6, algorithm=algorithm)
    result = world.allreduce(arrays, on_partial=lambda p: told.append(p.device))
    assert sorted(told) == sorted(result.partials)
    for share in result.shares:
        for path, node in devices(share.order):
            if path:
                partial = result.partials[share.names[path]]
                assert partial.contributors == leaves(node)
                assert (partial.values.size, partial.ranges) == (0, (range(0),))
    assert all(level.made.elements == 0 for level in result.numerics(arrays).levels)


def test_no_partial_sums_unless_asked_for() -> None:
    told: list[Partial] = []
    for algorithm in ("in-network", *ALGORITHMS):
        handle = Communicator(4).start("allreduce", normal(4, 10), algorithm=algorithm)
        assert not handle.wait(told.append).partials and not told


@pytest.mark.parametrize("preset", ["wide", "per-hop", "per-add"])
def test_report_says_where_precision_went(preset: str) -> None:
    arrays = normal(8, 500)
    world = Communicator(8, algorithm="halving-doubling")
    result = world.allreduce(arrays, preset=preset, partials=True)
    report = result.numerics(arrays)
    assert [level.name for level in report.levels] == ["rank/1", "rank/2", "result"]
    assert [level.devices for level in report.levels] == [8, 8, 8]
    last = report.levels[-1].total
    got = same_on_all(result.values)
    assert last.largest_ulp == errors("sum", arrays, got).largest_ulp
    assert last.mean_ulp == pytest.approx(errors("sum", arrays, got).mean_ulp)
    made = [level.made.mean_ulp for level in report.levels]
    if preset == "wide":  # once, in finish
        assert max(made[:-1]) < 1e-3 < made[-1]
    else:
        assert min(made) > 0.05
    assert "made here" in str(report) and "<table>" in report._repr_html_()


@by_algorithm
@pytest.mark.parametrize("op", ["sum", "avg", "prod", "max"])
def test_report_by_hand(op: str, algorithm: str) -> None:
    """Level by level: what devices got and what they made of it, by the names in the result."""
    arrays = normal(6, 90)
    result = Communicator(6).allreduce(
        arrays, op, preset="per-hop", partials=True, algorithm=algorithm
    )
    report = result.numerics(arrays)
    step, divisor = ("sum", 6) if op == "avg" else (op, 1)
    depths = {len(path) for share in result.shares for path in share.names}
    for level, depth in zip(report.levels, sorted(depths, reverse=True), strict=True):
        made, total = Errors(), Errors()
        for share in result.shares:
            part = slice(share.elements.start, share.elements.stop)

            def values(path: TreePath, share: Share = share, part: slice = part) -> Array:
                if not path:
                    return same_on_all(result.values)[part]
                held = result.partials[share.names[path]]
                start = held.ranges[0].start
                return held.values[part.start - start : part.stop - start]

            for path, node in devices(share.order):
                if len(path) == depth:
                    got = [
                        arrays[child][part] if isinstance(child, int) else values((*path, i))
                        for i, child in enumerate(node)
                    ]
                    workers = [arrays[rank][part] for rank in leaves(node)]
                    how = (op, divisor) if not path else (step, 1)
                    made += errors(how[0], got, values(path), how[1])
                    total += errors(how[0], workers, values(path), how[1])
        assert level.made.mean_ulp == pytest.approx(made.mean_ulp)
        assert level.total.mean_ulp == pytest.approx(total.mean_ulp)
        assert (level.made.largest_ulp, level.total.largest_ulp) == (
            made.largest_ulp, total.largest_ulp
        )  # fmt: skip
        assert level.made.elements == level.total.elements == made.elements > 0


def test_report_counts_what_is_no_number() -> None:
    arrays = [np.full(4, x, np.float16) for x in (40000, 40000, -40000, -40000)]
    arrays[0][3] = np.nan
    world = Communicator(4, algorithm="halving-doubling")
    report = world.allreduce(arrays, preset="per-hop", partials=True).numerics(arrays)
    first, last = report.levels
    assert (first.total.overflows, first.total.nans) == (2 * 3 + 1, 1)
    assert (last.total.nans, last.total.nans_made) == (4, 3)


def test_report_needs_what_it_compares() -> None:
    arrays = normal(4, 10)
    world = Communicator(4, algorithm="halving-doubling")
    with pytest.raises(ArgumentError, match="partials=True"):
        world.allreduce(arrays).numerics(arrays)
    result = world.allreduce(arrays, op="l2norm", partials=True)
    with pytest.raises(ArgumentError, match="op 'l2norm' has no exact value to compare with"):
        result.numerics(arrays)

    @nicemu.reduce_op(name="sum")
    def product(a: Any, b: Any) -> Any:
        return a * b

    result = world.allreduce(arrays, op=product, partials=True)
    with pytest.raises(ArgumentError, match="op 'sum' does not come with nicemu"):
        result.numerics(arrays)
    result = world.allreduce(arrays, partials=True)
    with pytest.raises(ArgumentError, match="3 inputs"):
        result.numerics(arrays[:3])
    for size in (9, 11):
        with pytest.raises(ArgumentError, match="each of the 4 ranks, of 10 elements"):
            result.numerics(normal(4, size))
    with pytest.raises(ArgumentError, match="nothing was reduced"):
        world.barrier().numerics(arrays)
    with pytest.raises(ArgumentError, match="no rank has an array"):
        world.barrier().whole()


def test_a_report_alone_asks_for_the_built_in_op(monkeypatch: pytest.MonkeyPatch) -> None:
    arrays = normal(4, 10)
    loaded = nicemu.kernel("sum", "bfloat16")
    asked = []
    make = ReduceOp.image

    def made(op: ReduceOp, *args: Any) -> nicemu.KernelImage:
        asked.append(op.name)
        return make(op, *args)

    monkeypatch.setattr(ReduceOp, "image", made)
    result = Communicator(4).allreduce(arrays, op=loaded, partials=True)
    assert (result.op, result.preset, asked) == ("sum", "wide", [])
    assert result.numerics(arrays).levels and set(asked) == {"sum"}


@pytest.mark.parametrize("time", ["packet", "only"])
def test_how_a_timed_result_looks(time: str) -> None:
    world = Communicator(Fabric(4, "star", time=time))
    result = world.allreduce(normal(4, 10))
    head, took, names, spent = str(result).splitlines()
    assert head.split(": ")[1].startswith("10 elements" if time == "packet" else "no values")
    assert result.time is not None and result.bound is not None and result.spent is not None
    assert took == f"{1e6 * result.time:.2f} us, at least {1e6 * result.bound:.2f}; spent on:"
    parts = {name: f"{1e6 * t:.2f}" for name, t in result.spent.items() if t}
    assert dict(zip(names.split(), spent.split(), strict=True)) == parts
    assert result._repr_html_().count("<td>") == len(parts)
    alone = Communicator(Fabric(1, "star", time=time), algorithm="ring").barrier()
    assert str(alone).splitlines()[0].endswith("ring: no elements")
    assert str(alone).splitlines()[1:] == ["0.00 us, at least 0.00"]


def test_how_a_result_looks() -> None:
    world = Communicator(4)
    result = world.allreduce(normal(4, 10), "avg", algorithm="ring", partials=True)
    assert str(result).startswith("allreduce of avg, wide over 4 ranks, ring: 10 elements of bfl")
    assert "rank2/1" in str(result) and "1..2" in str(result)
    assert repr(result) == str(result)  # an array of every rank would fill the screen
    assert not any("array" in repr(partial) for partial in result.partials.values())
    assert result._repr_html_().count("<tr>") == 1 + len(result.partials)
    with pytest.raises(ArgumentError, match="4 orders"):
        _ = result.order
    tree = world.allreduce(normal(4, 10), algorithm="halving-doubling")
    assert tree.order == ((0, 1), (2, 3))
    network = world.allreduce(normal(4, 10), partials=True)
    assert network.algorithm == "in-network" and "; frames: " in str(network)
    rows = str(network).splitlines()[2:]
    assert [row.split()[0] for row in rows] == ["nic0", "leaf0", "spine0"]


def test_the_program_of_the_readme(capsys: pytest.CaptureFixture[str]) -> None:
    """At most 12 lines, and it shows partial sums."""
    text = (Path(__file__).parent.parent / "README.md").read_text()
    found = re.search(r"```python\n(.*?)```", text, re.S)
    assert found is not None and len(found[1].splitlines()) <= 12
    exec(found[1], {})
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines if "float32" in line] == [
        "nic0", "nic1", "leaf0", "spine0"
    ]  # fmt: skip


@pytest.mark.parametrize("page", ["collectives", "fabric", "partials", "wire"])
def test_the_programs_of_the_guide(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    text = (Path(nicemu.__file__).parent / "guide" / f"{page}.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", text, re.S)
    used: list[Partial] = []
    names: dict[str, Any] = {
        "nicemu": nicemu,
        "gradients": normal(8, 60),
        "parts": normal(8, 3),
        "use": used.append,
    }
    for block in blocks:
        exec(block, names)
    assert len(blocks) > 1 and bool(used) == (page == "partials")
    if page == "wire":
        captured, replayed = names["result"].partials["nic0"], names["again"]
        assert captured.device == replayed.device
        assert captured.values.tobytes() == replayed.values.tobytes()


# ---- in the network --------------------------------------------------------------------------


def test_auto_is_in_network_where_there_is_a_switch() -> None:
    arrays = normal(3, 5)
    for topology, chosen in (("cards", "in-network"), ("tree(2)", "in-network"), ("star", "ring")):
        assert Communicator(Fabric(3, topology)).allreduce(arrays).algorithm == chosen


def test_frames_and_time_of_one_collective() -> None:
    """Counters are those of the collective alone, and add up; faults change no bit."""
    arrays = normal(6, 3000)
    clean = Communicator(Fabric(6)).allreduce(arrays)
    faults = Fabric(6, loss=0.2, duplicate=0.2, reorder=0.2, corrupt=0.01, seed=5)
    world = Communicator(faults)
    sent = 0
    for _ in range(3):
        result = world.allreduce(arrays)
        assert same_on_all(result.values).tobytes() == same_on_all(clean.values).tobytes()
        f = result.frames
        assert f is not None and f.lost and f.resent and f.duplicated and f.corrupted
        assert result.time is not None and clean.time is not None and result.time > clean.time > 0
        sent += f.sent
    total = faults.counters()
    assert total.sent == sent
    assert total.delivered == total.accepted + sum(total.drops.values())
    links = [one.counters(up) for one in faults.links() for up in (True, False)]
    for name in ("sent", "lost", "duplicated", "reordered", "corrupted", "delivered"):
        assert getattr(total, name) == sum(getattr(one, name) for one in links)
    assert clean.frames is not None and clean.frames.lost == clean.frames.resent == 0


@pytest.mark.parametrize("name", COLLECTIVES)
def test_payload_bytes_are_those_of_the_frames(name: str) -> None:
    """In frames that are full: as many bytes as frames times MTU."""
    world = Communicator(Fabric(6, "tree(2)", mtu=256), algorithm="in-network")
    count = 6 * 64 * 2
    arrays: list[Array] = normal(6, count // 6 if name == "all_gather" else count, "float32")
    result = world.start(name, arrays[0] if name == "broadcast" else arrays).wait()
    assert result.frames is not None
    full = result.frames.sent * 256
    if name in ("all_gather", "broadcast"):  # arrivals without data are sent beside them
        links, chunks = 6 + 3 + 2, count * 4 // 256
        full -= 256 * chunks * (links - 3)  # the owner's go up three links
    assert result.payload_bytes == (0 if name == "barrier" else full)


def test_a_lost_worker_is_named_and_the_others_sums_are_there() -> None:
    arrays = normal(6, 2000)
    fabric = Fabric(6, max_resends=3)
    fabric.link("rank5", "nic1").down()
    world = Communicator(fabric, window=4)
    for preset, asked in (("wide", True), ("per-hop", False)):  # for partial sums
        with pytest.raises(WorkerLostError, match="rank5") as lost:
            world.allreduce(arrays, preset=preset, partials=asked)
        assert lost.value.missing == (5,)
        tree = reduce_tree("sum", "bf16", (((0, 1, 2, 3), (4,)),), arrays, preset)
        found = lost.value.partials
        assert {p.contributors for p in found.values()} >= {(0, 1, 2, 3), (4,)}
        for part, path in (("nic0", (0, 0)), ("nic1", (0, 1))):
            made, bits = found[part], tree.partials[path]
            at = made.ranges[0]
            assert at.start == 0 and len(at) > 0 and made.time is not None
            assert np.array_equal(made.values.view(bits.dtype), bits[at.start : at.stop])
    some = Communicator(fabric, ranks=[5, 2], window=4)  # ranks are those of the communicator
    with pytest.raises(WorkerLostError, match="rank5") as lost:
        some.allreduce(arrays[:2])
    assert lost.value.missing == (0,)
    rest = [0, 1, 2, 3, 4]
    others = Communicator(fabric, ranks=rest)
    result = others.allreduce([arrays[r] for r in rest])
    want = reduce_tree("sum", "bf16", result.order, arrays[:5]).result
    assert np.array_equal(same_on_all(result.values).view(np.uint16), want)


@pytest.mark.parametrize("microseconds", [0, 1, 2, 3, 5, 8, 13, 21])
def test_a_worker_may_die_at_any_time(microseconds: int) -> None:
    """Before it has sent, before it has heard of a result, between: it is named, and all sums are
    those of who is said to be in them."""
    arrays = [np.full(50_000, 2.0**rank, np.float32) for rank in range(6)]
    fabric = Fabric(6, max_resends=3)
    fabric.kill("rank2", at=microseconds * 1e-6)
    with pytest.raises(WorkerLostError, match="rank2:") as lost:
        Communicator(fabric).allreduce(arrays)
    assert lost.value.missing == (2,)
    found = lost.value.partials.values()
    assert any(2 not in partial.contributors for partial in found)
    for partial in found:
        assert (partial.values == sum(2.0**rank for rank in partial.contributors)).all()


def test_a_link_that_dies_and_another_plane() -> None:
    """Nothing is lost, nothing added twice."""
    arrays = normal(8, 20_000)
    fabric = Fabric(8, planes=2)
    fabric.link("nic1", "leaf0").down(at=3e-6)
    result = Communicator(fabric).allreduce(arrays, partials=True)
    tree = reduce_tree("sum", "bf16", result.order, arrays)
    assert np.array_equal(same_on_all(result.values).view(np.uint16), tree.result)
    for path, name in result.shares[0].names.items():
        assert np.array_equal(result.partials[name].values.view(np.uint32), tree.partials[path])
    assert [r.plane for r in fabric.replays()] == [0]


def test_order_of_arrival_is_said_in_the_result() -> None:
    arrays = [np.full(3000, 2.0**rank, np.float32) for rank in range(6)]  # exact in any order
    result = Communicator(Fabric(6, order="arrival", jitter=1e-5)).allreduce(arrays, partials=True)
    assert np.all(same_on_all(result.values) == 63)
    assert "6 ranks, in-network, in order of arrival: 3,000" in str(result)
    assert result.shares == () and set(result.partials) >= {"nic0", "nic1", "leaf0", "spine0"}
    with pytest.raises(ArgumentError, match="order of arrival"):
        _ = result.order


def test_some_ranks_and_closing() -> None:
    fabric = Fabric(8)
    arrays = normal(3, 100)
    with Communicator(fabric, ranks=[6, 1, 3]) as some:
        result = some.allreduce(arrays)
        assert some.ranks == 3 and sorted(leaves(result.order)) == [0, 1, 2]
        want = reduce_tree("sum", "bf16", result.order, arrays).result
        assert np.array_equal(same_on_all(result.values).view(np.uint16), want)
        for algorithm in ALGORITHMS:
            assert some.allreduce(arrays, algorithm=algorithm).shares
        under_way = some.start("barrier", [])
    with pytest.raises(nicemu.CollectiveError, match="closed"):
        under_way.wait()
    for algorithm in ("in-network", *ALGORITHMS):
        with pytest.raises(ArgumentError, match="communicator is closed: make another"):
            some.allreduce(arrays, algorithm=algorithm)


def test_a_communicator_that_failed_and_was_closed_stays_closed() -> None:
    """A failed one takes new slots when it is used again; a closed one takes none."""
    fabric = Fabric(2, "star", max_resends=2)
    fabric.kill("rank1")
    world = Communicator(fabric, algorithm="in-network", window=1024)
    for _ in range(2):
        with pytest.raises(WorkerLostError):
            world.allreduce(normal(2, 10))
    world.close()
    with pytest.raises(ArgumentError, match="closed"):
        world.allreduce(normal(2, 10))
    assert Communicator(fabric, window=1024)._group.window == world._group.window


# ---- threads and interrupts ------------------------------------------------------------------


@by_algorithm
def test_threads_share_a_communicator(algorithm: str) -> None:
    """Each with an op of its own, on the same cores."""
    world = Communicator(4, algorithm=algorithm)
    arrays = [np.full(3000, x, np.float32) for x in (3, 5, 7, 11)]
    wants = {"sum": 26, "prod": 1155, "max": 11, "min": 3}

    def work(op: str) -> set[float]:
        return {x for _ in range(8) for x in same_on_all(world.allreduce(arrays, op).values)}

    with ThreadPoolExecutor(len(wants)) as pool:
        assert list(pool.map(work, wants)) == [{want} for want in wants.values()]


def test_threads_count_collectives(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each has a number of its own, which stochastic ops draw by."""
    numbers: list[int] = []

    def slow(**fields: Any) -> nicemu.Context:
        numbers.append(fields["seq"])
        time.sleep(0.01)
        return nicemu.Context(**fields)

    monkeypatch.setattr("nicemu.collectives.communicator.Context", slow)
    world = Communicator(2, algorithm="in-network")
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: world.allreduce(normal(2, 8)), range(8)))
    assert sorted(numbers) == list(range(8))


@by_algorithm
def test_threads_share_a_handle(algorithm: str) -> None:
    """All get the result, and each partial sum is told once."""
    world = Communicator(4, algorithm=algorithm)
    arrays = normal(4, 100_000)
    alone = world.allreduce(arrays, partials=True)
    handle = world.start("allreduce", arrays, partials=True)
    told: list[Partial] = []
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda _: handle.wait(told.append), range(4)))
    assert all(result is results[0] for result in results)
    assert same_on_all(results[0].values).tobytes() == same_on_all(alone.values).tobytes()
    assert sorted(p.device for p in told) == sorted(alone.partials)


@by_algorithm
@pytest.mark.parametrize("in_place", [False, True])
def test_an_interrupt_does_not_end_a_collective(algorithm: str, in_place: bool) -> None:
    """It is heard at any moment; what is done stays done, and is told once."""
    world = Communicator(4, algorithm=algorithm)
    arrays = normal(4, 4_000_000)
    alone = world.allreduce(arrays, partials=True)
    handle = world.start("allreduce", arrays, partials=True, out=arrays if in_place else None)
    told: list[Partial] = []
    interrupts = 0

    def interrupt(signum: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        while not handle.done:
            try:
                signal.setitimer(signal.ITIMER_REAL, 0.002 * 2**interrupts)
                handle.wait(told.append)
            except KeyboardInterrupt:
                interrupts += 1
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
    finally:
        signal.signal(signal.SIGALRM, before)
    result = handle.wait()
    assert interrupts and result.payload_bytes == alone.payload_bytes
    assert same_on_all(result.values).tobytes() == same_on_all(alone.values).tobytes()
    assert sorted(p.device for p in told) == sorted(alone.partials) == sorted(result.partials)


# ---- arguments -------------------------------------------------------------------------------

F = [np.zeros(6, np.float16)] * 3
READ_ONLY = np.broadcast_to(np.zeros(1, np.float16), 6)
SHARED = np.zeros(9, np.float16)


def every(stride: int) -> Array:
    """An array whose elements are so many bytes apart."""
    return as_strided(np.zeros(6, np.float16), (6,), (stride,))


BAD: dict[str, tuple[Callable[[Communicator], object], str]] = {
    "ranks": (lambda w: Communicator(0), "fabric 0"),
    "algorithm": (lambda w: Communicator(2, algorithm="tree"), "algorithm 'tree'"),
    "algorithm of a call": (lambda w: w.allreduce(F, algorithm="x"), "algorithm 'x'"),
    "no algorithm": (lambda w: w.allreduce(F, algorithm=""), "algorithm ''"),
    "collective": (lambda w: w.start("scan", F), "collective 'scan'"),
    "op": (lambda w: w.allreduce(F, "mean"), "op 'mean'"),
    "preset": (lambda w: w.allreduce(F, preset="narrow"), "preset 'narrow'"),
    "dtype": (lambda w: w.allreduce([np.zeros(6, complex)] * 3), "dtype complex128"),
    "too few": (lambda w: w.allreduce(F[:2]), "2 arrays for 3 ranks"),
    "no arrays": (lambda w: w.allreduce(None), "pass one array per rank"),  # type: ignore[arg-type]
    "one number": (lambda w: w.allreduce(np.float32(1)), "pass one array per rank"),  # type: ignore[arg-type]
    "masked": (lambda w: w.allreduce([np.ma.array(x) for x in F]), "MaskedArray"),
    "masked broadcast": (lambda w: w.broadcast(np.ma.array(F[0])), "MaskedArray"),
    "no array": (lambda w: w.allreduce([[1.0]] * 3), "rank 0 has list"),  # type: ignore[list-item]
    "shapes": (lambda w: w.allreduce([*F[:2], np.zeros(7, np.float16)]), "rank 2 has shape"),
    "dtypes": (lambda w: w.allreduce([*F[:2], np.zeros(6, np.float32)]), "rank 2 has shape"),
    "objects": (lambda w: w.all_gather([np.array([None])] * 3), "Python objects"),
    "objects broadcast": (lambda w: w.broadcast(np.array([None])), "Python objects"),
    "root": (lambda w: w.reduce(F, root=3), "root 3"),
    "broadcast of a list": (lambda w: w.broadcast(F), "pass the root's array"),  # type: ignore[arg-type]
    "parts": (lambda w: w.reduce_scatter([np.zeros(7, np.float16)] * 3), "multiple of 3"),
    "single": (lambda w: w.all_gather([np.zeros((), np.float16)] * 3), "single numbers"),
    "out too few": (lambda w: w.allreduce(F, out=F[:2]), "out has 2 arrays"),
    "out a number": (lambda w: w.allreduce(F, out=5), "pass one array per rank"),  # type: ignore[arg-type]
    "out masked": (lambda w: w.allreduce(F, out=[np.ma.array(x) for x in F]), "MaskedArray"),
    "out on itself": (lambda w: w.allreduce(F, out=[every(0) for _ in F]), "overlaps itself"),
    "out on its half": (lambda w: w.allreduce(F, out=[every(1) for _ in F]), "overlaps itself"),
    "out missing": (lambda w: w.allreduce(F, out=[None] * 3), "out of rank 0 has NoneType"),
    "out shape": (lambda w: w.allreduce(F, out=[np.zeros((2, 3), np.float16)] * 3), "shape (2, 3)"),
    "out dtype": (lambda w: w.allreduce(F, out=[np.zeros(6, np.int16)] * 3), "int16"),
    "out read-only": (lambda w: w.allreduce(F, out=[READ_ONLY] * 3), "not writeable"),
    "out twice": (lambda w: w.allreduce(F, out=[SHARED[i : i + 6] for i in (0, 3, 1)]), "overlap"),
    "seed": (lambda w: w.allreduce(F, seed=-1), "seed -1"),
}


@pytest.mark.parametrize("name", BAD)
def test_argument_errors(name: str) -> None:
    use, text = BAD[name]
    with pytest.raises(ArgumentError) as error:
        use(Communicator(3))
    assert text in str(error.value) and "\n" not in str(error.value)
