"""Ops of one's own, wherever a built-in op works: collectives, algorithms, partial sums, loss.

The model is the author's Python, run by numpy on arrays of the accumulator's formats in the order
that a result states.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest

import nicemu
from nicemu import Communicator, Context, Fabric, ReduceOp, reduce_op
from nicemu.collectives.algorithms import ALGORITHMS
from nicemu.compiler.host import HostKernels
from nicemu.order import Order, devices, leaves
from nicemu.order import Path as TreePath

RANKS = 18  # 5 NICs, 2 leaves and a spine
by_algorithm = pytest.mark.parametrize("algorithm", ["in-network", *ALGORITHMS])


class Model(NamedTuple):
    """An op, and its functions as Python; lift takes rank and indices, too."""

    op: ReduceOp
    lift: Callable[..., Any]
    merge: Callable[[Any, Any], Any]
    finish: Callable[[Any], Any]


def _leaky(a: Any, b: Any) -> Any:
    return a * 0.75 + b  # neither commutative nor associative


def _difference(a: Any, b: Any) -> Any:
    return b - a


class Moments(NamedTuple):
    """Of the elements so far."""

    n: Any
    mean: Any
    m2: Any


def _moments(a: Any, b: Any) -> Any:
    n = a.n + b.n
    d = b.mean - a.mean
    return n, a.mean + d * (b.n / n), a.m2 + b.m2 + d * d * (a.n * (b.n / n))


class Path(NamedTuple):
    """Who came first and last, and a sum that depends on the order."""

    first: Any
    last: Any
    trace: Any


def _path(a: Any, b: Any) -> Any:
    return a.first, b.last, a.trace * 31 + b.trace


def _models() -> dict[str, Model]:
    leaky = reduce_op(_leaky, name="leaky", element="float32")  # type: ignore[call-overload]
    half = reduce_op(name="difference", element="float32", accumulator="float32")(_difference)
    half.lift(lambda x: x * 0.5)
    half.finish(lambda a: abs(a))
    moments = reduce_op(
        name="moments", element="float32", result="float32",
        accumulator=[(name, "float32") for name in Moments._fields],
    )(_moments)  # fmt: skip
    moments.lift(lambda x: (1.0, x, 0.0))
    moments.finish(lambda a: a.m2 / a.n)
    path = reduce_op(
        name="path", element="float32",
        accumulator=[("first", "int32"), ("last", "int16"), ("trace", "int64")],
    )(_path)  # fmt: skip
    path.lift(lambda x, ctx: (ctx.rank, ctx.rank, ctx.rank + ctx.element))

    def ranks(x: np.ndarray, rank: int, index: np.ndarray) -> Path:
        whose = np.full(x.size, rank)
        return Path(whose.astype(np.int32), whose.astype(np.int16), rank + index)

    one, zero = np.float32(1), np.float32(0)
    return {
        "leaky": Model(leaky, lambda x, rank, index: x, _leaky, lambda a: a),
        "difference": Model(half, lambda x, rank, index: x * np.float32(0.5), _difference, np.abs),
        "moments": Model(
            moments,
            lambda x, rank, index: Moments(x * zero + one, x, x * zero),
            lambda a, b: Moments(*_moments(a, b)),
            lambda a: a.m2 / a.n,
        ),
        "path": Model(path, ranks, lambda a, b: Path(*_path(a, b)), lambda a: a),
    }


MODELS = _models()
by_model = pytest.mark.parametrize("name", MODELS)


def evaluated(
    model: Model, order: Order, arrays: list[np.ndarray], part: slice
) -> dict[TreePath, Any]:
    """The accumulator of each device of a tree."""
    index = np.arange(part.start, part.stop)
    found: dict[TreePath, Any] = {}
    for path, node in devices(order):
        total = None
        for i, child in enumerate(node):
            is_rank = isinstance(child, int)
            new = model.lift(arrays[child][part], child, index) if is_rank else found[*path, i]
            total = new if total is None else model.merge(total, new)
        found[path] = total
    return found


def same(got: np.ndarray, want: Any) -> bool:
    """To the bit."""
    if got.dtype.names is None:
        return got.tobytes() == np.ascontiguousarray(want).tobytes()
    return all(
        np.array_equal(got[name], getattr(want, name)) and got[name].dtype == field.dtype
        for name, field in zip(got.dtype.names, want, strict=True)
    )


def inputs(ranks: int, count: int) -> list[np.ndarray]:
    rng = np.random.default_rng(count)
    return [rng.normal(size=count).astype(np.float32) for _ in range(ranks)]


@by_algorithm
@by_model
@pytest.mark.parametrize("collective", ["allreduce", "reduce", "reduce_scatter"])
def test_as_the_stated_order_has_it(collective: str, name: str, algorithm: str) -> None:
    """On lossy links, with all partial sums, from cards to the spine."""
    model, arrays = MODELS[name], inputs(RANKS, RANKS * 13)
    fabric = Fabric(RANKS, mtu=512, seed=3, loss=0.02, reorder=0.2, duplicate=0.05)
    world = Communicator(fabric, algorithm=algorithm)
    result = world.start(collective, arrays, model.op, partials=True).wait()
    whole, told = result.whole(), 0
    for share in result.shares:
        part = slice(share.elements.start, share.elements.stop)
        trees = evaluated(model, share.order, arrays, part)
        assert same(whole[part], model.finish(trees[()])), (share.elements, share.order)
        for path, node in devices(share.order):
            if not path and algorithm != "in-network":
                continue
            made = result.partials[share.names[path]]
            (elements,) = made.ranges
            at = slice(part.start - elements.start, part.stop - elements.start)
            assert made.contributors == leaves(node)
            assert same(made.values[at], trees[path]), share.names[path]
            told += 1
    assert told >= len(result.partials) > 0
    if collective == "allreduce":
        assert {np.asarray(x).tobytes() for x in result.values} == {whole.tobytes()}


@by_algorithm
@by_model
def test_the_same_bits_whatever_happens_on_the_way(name: str, algorithm: str) -> None:
    """Packets of other sizes, other delays and losses: merges that depend on the order do not."""
    arrays, seen = inputs(6, 500), set()
    for mtu, loss in ((256, 0.0), (1000, 0.1), (4096, 0.2)):
        fabric = Fabric(6, mtu=mtu, seed=mtu, jitter=2e-5, loss=loss, reorder=0.3)
        result = Communicator(fabric).allreduce(arrays, MODELS[name].op, algorithm=algorithm)
        seen |= {np.asarray(x).tobytes() for x in result.values}
    assert len(seen) == 1


def test_another_order_shows() -> None:
    """The ops above do depend on it: else nothing was tested."""
    arrays = inputs(6, 500)
    for name in MODELS:
        nic = nicemu.Nic(threads=1)
        nic.load(MODELS[name].op.image())
        streams = [nicemu.Stream(x, rank=i) for i, x in enumerate(arrays)]
        assert nic.reduce(streams).values.tobytes() != nic.reduce(streams[::-1]).values.tobytes()


# ---- ops that go wrong while they run ------------------------------------------------------------
def _forever(x: Any) -> Any:
    while x == x:
        x = x + 0.0
    return x


def _outside(x: Any) -> Any:
    return (1.0, 2.0, 3.0)[int(x)]


@by_algorithm
@pytest.mark.parametrize("step", ["lift", "finish"])
def test_an_op_without_end_ends_the_collective(step: str, algorithm: str) -> None:
    """At its budget, with the op's name; the communicator goes on."""
    op = reduce_op(lambda a, b: a + b, name="forever", element="f32")  # type: ignore[call-overload]
    getattr(op, step)(_forever)
    world, arrays = Communicator(5), inputs(5, 40)
    with pytest.raises(nicemu.NicemuError, match="budget") as error:
        world.allreduce(arrays, op, algorithm=algorithm)
    assert "\n" not in str(error.value)
    assert len(world.allreduce(arrays, algorithm=algorithm).values) == 5


def test_an_index_outside_is_an_error() -> None:
    op = reduce_op(lambda a, b: a + b, name="outside", element="f32")  # type: ignore[call-overload]
    op.lift(_outside)
    nic = nicemu.Nic(threads=1)
    nic.load(op.image())
    assert nic.reduce([np.array([0, 2, -1], np.float32)] * 2).values.tolist() == [2, 6, 6]
    for index in (3, -4, 1e30, np.inf):
        with pytest.raises(nicemu.StatusError, match="outside: raised IndexError: tuple index"):
            nic.reduce([np.array([1, index], np.float32)])


def test_floats_divided_by_zero_have_a_value() -> None:
    """Infinity or NaN, as in IEEE 754."""
    divided = reduce_op(lambda a, b: a / b, name="divided", element="f32")  # type: ignore[call-overload]
    assert divided.image().statuses == ()
    nic = nicemu.Nic(threads=1)
    nic.load(divided)
    a, b = np.array([[1, -1, 0, 4], [0, 0, 0, 2]], np.float32)
    np.testing.assert_array_equal(nic.reduce([a, b]).values, [np.inf, -np.inf, np.nan, 2])


def _quotient(a: Any, b: Any) -> Any:
    return a // b


def _rest(a: Any, b: Any) -> Any:
    return a % b


def _in_a_loop(a: Any, b: Any) -> Any:
    total = 0
    for i in range(3):
        total += a % (b - i * 0)
    return total // 3


def _by_a_helper(a: Any, b: Any) -> Any:
    return _rest(a, b) * 2 + 1


DIVIDING: dict[str, Callable[[int, int], int]] = {
    "quotient": _quotient, "rest": _rest, "loop": _in_a_loop, "helper": _by_a_helper,
}  # fmt: skip


@pytest.mark.parametrize("element", ["int8", "uint8", "int32", "int64"])
@pytest.mark.parametrize("name", DIVIDING)
def test_integers_divided_by_zero_end_the_collective(name: str, element: str) -> None:
    divide = DIVIDING[name]
    op = reduce_op(name="divided", element=element)(divide)
    signed = -1 if element != "uint8" else 1
    x = np.array([[7, signed * 7, 0, 100], [2, 3, signed * 5, signed * 9]], element)
    nic = nicemu.Nic(threads=1)
    nic.load(op)
    want = [divide(int(a), int(b)) for a, b in x.T]
    assert nic.reduce(x).values.tolist() == np.array(want).astype(element).tolist()
    line = (_rest if name == "helper" else divide).__code__.co_firstlineno
    line += 3 if name == "loop" else 1
    words = rf"ZeroDivisionError: division by zero in merge \(test_op_everywhere\.py:{line}\)"
    x[1, 2] = 0
    with pytest.raises(nicemu.StatusError, match=f"chunk 0 of divided: raised {words}$"):
        nic.reduce(x)
    with pytest.raises(nicemu.StatusError, match=f"acc of divided raised {words}$"):
        op.reference(x)
    for algorithm in ("in-network", *ALGORITHMS):
        with pytest.raises(nicemu.CollectiveError, match=f"divided.*raised {words}$"):
            Communicator(2).allreduce(x, op, algorithm=algorithm)
    done = nic.handle("acc", [x[1]], accumulator=x[0])
    assert done.status and done.accumulator[[0, 2]].tolist() == [want[0], 0]


def test_the_first_exception_is_told() -> None:
    @reduce_op(element="int32")
    def both(a: Any, b: Any) -> Any:
        total = a // b
        if a == 7:
            raise ValueError("seven")
        return total

    nic = nicemu.Nic(threads=1)
    nic.load(both)
    for a, b, words in ((7, 0, "ZeroDivisionError"), (7, 1, "ValueError: seven"), (1, 0, "ZeroD")):
        with pytest.raises(nicemu.StatusError, match=f"both: raised {words}"):
            nic.reduce(np.array([[a], [b]], np.int32))


def test_true_division_of_integers_by_zero() -> None:
    @reduce_op(element="int32", result="float64")
    def inverse(a: Any, b: Any) -> Any:
        return a + b

    inverse.finish(lambda a: 1 / a)
    nic = nicemu.Nic(threads=1)
    nic.load(inverse)
    assert nic.reduce(np.array([[3], [1]], np.int32)).values.tolist() == [0.25]
    with pytest.raises(nicemu.StatusError, match="ZeroDivisionError: division by zero in finish"):
        nic.reduce(np.array([[3], [-3]], np.int32))


def test_divisors_that_are_not_zero_cost_nothing() -> None:
    """Constants, tested numbers, and contributors in finish: nothing is raised, all is vectors."""
    ops = {
        "constant": reduce_op(lambda a, b: (a + b) // 3 + a % 5, name="one", element="int32"),
        "tested": reduce_op(lambda a, b: a // b if b else 0, name="two", element="int32"),
        "odd": reduce_op(lambda a, b: a // (b | 1), name="three", element="int32"),
        "mean": reduce_op(lambda a, b: a + b, name="four", element="int32"),
    }  # type: ignore[call-overload]
    ops["mean"].finish(lambda a, ctx: a // ctx.contributors)
    for op in ops.values():
        image, classes = op.image(), op.cost().classes
        assert image.statuses == () and "div" not in classes and classes["vload"]
        assert ("vdiv" in classes) == (op.name in ("two", "three"))
    assert "first4_finish" in ops["mean"].image().entries
    nic = nicemu.Nic(threads=1)
    nic.load(ops["mean"])
    assert nic.reduce(np.array([[5], [4], [-30]], np.int32)).values.tolist() == [-7]
    for refused in (
        nic.handle,
        HostKernels("four", ops["mean"]._source, ops["mean"].formats()).call,
    ):
        with pytest.raises(nicemu.ArgumentError, match="contributors 0: finish is of 1 worker"):
            refused("finish", accumulator=np.ones(1, np.int32), context=Context(contributors=0))


def test_divisions_by_items_are_vectors() -> None:
    """They raise when the function returns, and not in a branch."""
    op = reduce_op(_rest, name="rest", element="int32")
    classes = op.cost().classes
    assert classes["vdiv"] and classes.get("div", 0) == 0
