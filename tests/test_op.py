"""Reduce ops of one's own: what the decorator takes, what is refused and how, records, statuses."""

from __future__ import annotations

import math
import re
from collections import namedtuple
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import nicemu
from nicemu import Communicator, Nic, OpError, ReduceOp, StatusError, reduce_op
from nicemu._core import Cores
from nicemu.device.image import PRESETS, Context, KernelImage
from nicemu.dtypes import FORMATS, GRADIENTS, Format, format_of, item_of
from nicemu.ops.builtin import BUILTINS, builtin, kernel, premul_sum
from nicemu.ops.opmath import bits, from_bits


def reduced(image: KernelImage, streams: Any, **options: Any) -> np.ndarray:
    nic = Nic(threads=1)
    nic.load(image)
    return nic.reduce(streams, **options).values


def lifted(function: Callable[[Any], Any], element: str, accumulator: str) -> ReduceOp:
    """An op whose result is what lift makes of the only worker's element."""
    op = reduce_op(name="lifted", element=element, accumulator=accumulator, result=accumulator)(
        lambda a, b: a
    )
    op.lift(function)
    return op


# ---- definition ----------------------------------------------------------------------------------
def test_the_decorator_in_all_its_forms() -> None:
    @reduce_op
    def plain(a: Any, b: Any) -> Any:
        return a + b

    @reduce_op(name="other", element="f16", accumulator="float32", partial="bf16", result="f64")
    def named(a: Any, b: Any) -> Any:
        return a + b

    assert (plain.name, plain.element, plain.preset) == ("plain", None, "wide")
    formats = named.formats()
    assert [str(item) for item in vars(formats).values()] == [
        "float16", "float32", "bfloat16", "float64",
    ]  # fmt: skip
    image = named.image()
    assert (image.op, image.element, image.result) == ("other", "float16", "float64")
    assert plain.image("bf16") is plain.image(np.dtype(ml_dtypes.bfloat16))
    assert "other" in repr(named) and "float32" in repr(named)


@pytest.mark.parametrize("preset", ["wide", "per-hop", "per-add"])
@pytest.mark.parametrize("element", FORMATS, ids=lambda row: row.name)
def test_presets_keep_what_elements_hold(element: Format, preset: str) -> None:
    formats = reduce_op(lambda a, b: a, name="first").formats(element, preset)
    narrow = element.kind == "float" and element.size < 4
    wide = "float32" if narrow else element.name
    accumulator = element.name if preset == "per-add" else wide
    partial = wide if preset == "wide" else element.name
    assert [str(item) for item in vars(formats).values()] == [
        element.name, accumulator, partial, element.name,
    ]  # fmt: skip


DEFINITIONS: dict[str, tuple[Callable[[], Any], str]] = {
    "no function": (lambda: reduce_op(3), "merge: is int"),  # type: ignore[call-overload]
    "builtin": (lambda: reduce_op(max), "is builtin_function"),
    "one argument": (lambda: reduce_op(lambda a: a), r"merge\(a, b\)"),
    "four": (lambda: reduce_op(lambda a, b, c, d: a), r"merge\(a, b, ctx\)"),
    "star": (lambda: reduce_op(lambda *a: a), r"merge\(a, b\)"),
    "default": (lambda: reduce_op(lambda a, b=1: a), r"merge\(a, b\)"),
    "lift of two": (lambda: reduce_op(lambda a, b: a).lift(lambda a, b, c: a), r"lift\(x, ctx\)"),
    "twice": (
        lambda: [op := reduce_op(lambda a, b: a), op.lift(abs_), op.lift(abs_)],
        "has a lift already",
    ),
    "too late": (
        lambda: [op := reduce_op(lambda a, b: a + b, name="late"), op.image("f32"), op.lift(abs_)],
        "late: it has been used",
    ),
}


def abs_(x: Any) -> Any:
    return abs(x)


@pytest.mark.parametrize("name", DEFINITIONS)
def test_definitions_that_are_refused(name: str) -> None:
    define, message = DEFINITIONS[name]
    with pytest.raises(OpError, match=message) as error:
        define()
    assert "\n" not in str(error.value)


def test_generators_are_refused() -> None:
    def merge(a: Any, b: Any) -> Any:
        yield a

    with pytest.raises(OpError, match="generator"):
        reduce_op(merge)


@pytest.mark.parametrize(
    "make",
    [
        lambda name: reduce_op(abs2, name=name),
        lambda name: reduce_op.c("", name=name),
        lambda name: reduce_op.asm("", name=name, element="float32"),
    ],
)
def test_names_that_are_refused(make: Callable[[str], ReduceOp]) -> None:
    for name in ("", " ", "a b"):
        with pytest.raises(nicemu.ArgumentError, match=f"name '{name}' of a reduce op: pass name="):
            make(name)


def test_formats_that_are_refused() -> None:
    op = reduce_op(lambda a, b: a, name="mine")
    with pytest.raises(nicemu.ArgumentError, match="mine: element is open"):
        op.image()
    with pytest.raises(nicemu.ArgumentError, match="is for float16, not float32"):
        reduce_op(element="f16")(abs2).image("f32")
    for spec in ("f17", ("f32", "f17"), [("a", "f32"), ("a", "f32")], [("1", "f32")], ()):
        with pytest.raises(nicemu.ArgumentError):
            reduce_op(accumulator=spec)(abs2)


def abs2(a: Any, b: Any) -> Any:
    return abs(a) + abs(b)


# ---- what a core cannot do -----------------------------------------------------------------------
FACTOR = 3.0


def twice(x: Any) -> Any:
    return x * 2.0


def endless(x: Any) -> Any:
    return endless(x - 1.0) if x > 0 else x


def _print(a: Any, b: Any) -> Any:
    print(a)
    return a + b


def _missing(a: Any, b: Any) -> Any:
    return a + there_is_none  # type: ignore[name-defined]  # noqa: F821


def _object(a: Any, b: Any) -> Any:
    a[0] = b
    return a


def _dynamic_raise(a: Any, b: Any) -> Any:
    if a > b:
        raise ValueError(a)
    return b


def _unset(a: Any, b: Any) -> Any:
    if a > 0:
        c = a
    return c + b


def _import(a: Any, b: Any) -> Any:
    import math as m

    return m.sqrt(a) + b


def _try(a: Any, b: Any) -> Any:
    try:
        return a + b
    except ValueError:
        return a


def _nothing(a: Any, b: Any) -> None:
    return None


REFUSED: dict[str, tuple[Callable[[Any, Any], Any], str]] = {
    "print": (_print, "it uses print"),
    "list": (lambda a, b: [a, b][0], "uses a list"),
    "dict": (lambda a, b: {1: a}[1], "uses a dict"),
    "undefined": (_missing, "there_is_none is not defined: define it"),
    "recursion": (lambda a, b: endless(a + b), "endless calls itself: write a loop"),
    "index": (lambda a, b: (a, b)[2], "outside of its tuple: use 0 to"),
    "memory": (lambda a, b: np.zeros(3)[0] + a, "uses numpy.zeros"),
    "text": (lambda a, b: "x", "returns a text: return a number"),
    "nothing": (_nothing, "returns nothing: return a number"),
    "tuple": (lambda a, b: (a, b), "returns float32, float32, and the accumulator is float32"),
    "bool": (lambda a, b: a > b, "returns bool, and the accumulator is float32: use 1 and 0"),
    "modulo": (lambda a, b: a % b, r"use math.floor\(a / b\), or a - b \* math.floor"),
    "power": (lambda a, b: a**b, "whole constants of 0 to 64"),
    "function": (lambda a, b: math.gamma(a) + b, "uses math.gamma"),
    "no such": (lambda a, b: math.cube(a), "math has no cube"),  # type: ignore[attr-defined]
    "attribute": (lambda a, b: a.real_part + b, "float32 has no real_part"),
    "complex": (lambda a, b: a + 1j, "uses complex"),
    "shift": (lambda a, b: a << b, r"<< is of integers, not float32, float32: use int\(x\)"),
    "keyword": (lambda a, b: max(a, b, key=abs), "max is called with float32, float32, key"),
    "store": (_object, "changes an object"),
    "raise": (_dynamic_raise, "raises what is computed: use a constant text"),
    "unset": (_unset, "c has no value on some way: set it before"),
    "import": (_import, "it imports math: import it outside"),
    "try": (_try, "it uses try: test with if before"),
    "huge": (lambda a, b: a * 1e300, "1e\\+300 is too large for float32: use math.inf, or acc"),
    "walrus": (lambda a, b: (c := a + b) * c, "write := as a line of its own"),
    "double": (lambda a, b: math.exp(np.float64(a)) + b, "exp is there for float32 only"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_functions_that_are_refused(name: str) -> None:
    """The message names the op, file and line, and what to do."""
    function, message = REFUSED[name]
    with pytest.raises(OpError, match=message) as error:
        reduce_op(function, name="mine").image("f32")  # type: ignore[call-overload]
    text = str(error.value)
    assert "\n" not in text and "mine" in text
    assert name == "double" or "test_op.py:" in text


def test_merge_is_closed_on_the_accumulator() -> None:
    with pytest.raises(OpError, match="returns float64, and the accumulator is int32"):
        reduce_op(lambda a, b: a / b, name="mine").image("i32")
    with pytest.raises(OpError, match="returns int64, and the accumulator is bool: compare"):
        reduce_op(lambda a, b: a + b, name="mine").image("bool")
    with pytest.raises(OpError, match="lift: there is none"):
        reduce_op(lambda a, b: a, name="mine", accumulator=("f32", "f32")).image("f32")


# ---- what a core can do --------------------------------------------------------------------------
def _loop(a: Any, b: Any) -> Any:
    total = a
    for i in range(5):
        if total > 100.0:
            break
        total = total + b * i
    return total


def _newton(a: Any, b: Any) -> Any:
    y = abs(b) + 1.0
    z = y
    while abs(z * z - y) > 0.001:
        z = 0.5 * (z + y / z)
    return a + z


def _tuple(a: Any, b: Any) -> Any:
    total = 0.0
    for x in (a, b, 1.0):
        total += x
    return total


def _choice(a: Any, b: Any) -> Any:
    return a if abs(a) > abs(b) else b


def _chain(a: Any, b: Any) -> Any:
    return a if -1.0 < a < b else b


def _sign(a: Any, b: Any) -> Any:
    return np.sign(a) + math.copysign(2.0, b)


COMPUTED: dict[str, tuple[Callable[[Any, Any], Any], Callable[[Any, Any], Any]]] = {
    "global": (lambda a, b: a * FACTOR + b, lambda a, b: a * np.float32(3) + b),
    "helper": (lambda a, b: twice(a) + b, lambda a, b: a + a + b),
    "powers": (lambda a, b: a**2 + b**3, lambda a, b: a * a + b * (b * b)),
    "python max": (lambda a, b: max(a, b), lambda a, b: np.where(b > a, b, a)),
    "choice": (_choice, np.vectorize(_choice)),
    "chain": (_chain, np.vectorize(_chain)),
    "round": (lambda a, b: a + round(b * 16) * 0.0625, lambda a, b: a + np.rint(b * 16) / 16),
    "loop": (_loop, np.vectorize(_loop)),
    "newton": (_newton, np.vectorize(_newton)),
    "tuple": (_tuple, lambda a, b: a + b + 1),
    "integers": (lambda a, b: 1 if a > b else -1, lambda a, b: np.where(a > b, 1, -1)),
    "sign": (_sign, np.vectorize(_sign)),
}


@pytest.mark.parametrize("name", COMPUTED)
def test_functions_that_are_computed(name: str) -> None:
    """To the bit: the same operations of float32 in numpy."""
    function, model = COMPUTED[name]
    rng = np.random.default_rng(len(name))
    a, b = rng.standard_normal((2, 333)).astype(np.float32)
    if name == "loop":
        a, b = (
            np.rint(a * 4),
            np.rint(b * 4),
        )  # exact, so that the order of Python's sums is no matter
    image = reduce_op(function, name="mine").image("f32")  # type: ignore[call-overload]
    tolerance = 1e-5 if name == "newton" else 0
    np.testing.assert_allclose(reduced(image, [a, b]), model(a, b), rtol=tolerance)


def test_float64_is_told() -> None:
    op = reduce_op(lambda a, b: a + np.float64(b), name="mine")
    (note,) = op.image("f32").notes
    assert "mine" in note and "test_op.py:" in note and "computed in float64" in note
    assert not op.image("f64").notes


def test_an_op_may_be_for_several_elements() -> None:
    op = reduce_op(name="two", element=["f16", "bfloat16"])(lambda a, b: a + b)
    assert op.element is None and [row.alias for row in op.elements] == ["f16", "bf16"]
    assert op.image("bf16").element == "bfloat16" and "float16, bfloat16" in repr(op)
    with pytest.raises(nicemu.ArgumentError, match=r"^op two: is for float16, bfloat16, not int8$"):
        op.image("int8")
    with pytest.raises(nicemu.ArgumentError, match="op two: element is open: name it"):
        op.image()


@pytest.mark.parametrize(
    ("name", "element", "words"),
    [
        ("sum", "bool", "^op sum: is for float16, .*uint8, not bool$"),
        ("avg", "int8", "^op avg: is for float16, .*float8_e5m2, not int8$"),
        ("band", "float16", "^op band: is for int8, .*bool, not float16$"),
    ],
)
def test_callers_of_built_in_ops_are_told_what_they_are_for(
    name: str, element: str, words: str
) -> None:
    x = np.ones((2, 3), element)
    with pytest.raises(nicemu.ArgumentError, match=words):
        Communicator(2).allreduce(x, name)


def test_numpys_names_by_bytes_are_told_apart() -> None:
    """i8 is int8 here and int64 there."""
    for fields in ([("a", "f4")], ["int8", "f4"]):
        with pytest.raises(nicemu.ArgumentError, match=r"^dtype f4 .*; numpy's f4 is float32$"):
            reduce_op(name="pair", accumulator=fields)(lambda a, b: a)
    with pytest.raises(nicemu.ArgumentError, match=r"^dtype u4 .*: use one of float16 \(f16\)"):
        reduce_op(name="one", element="u4")(lambda a, b: a)


def test_integers_out_of_range_are_defined() -> None:
    x = np.array([1e30, -1e30, np.nan, 7.9, -7.9], np.float32)
    found = reduced(lifted(lambda x: int(x), "f32", "i64").image(), [x])
    assert found.tolist() == [2**63 - 1, -(2**63), 0, 7, -7]
    op = reduce_op(lambda a, b: (a // b if b else 0) + (a << b), name="mine", element="i64")
    low = -(2**63)
    a, b = np.array([low, 5, 5], np.int64), np.array([-1, 0, 2], np.int64)
    assert reduced(op.image(), [a, b]).tolist() == [low, 0 + 5, 2 + 20]  # 2^63 wraps


@pytest.mark.parametrize("row", [f for f in FORMATS if f.size <= 2], ids=lambda f: f.name)
def test_all_values_of_narrow_formats_to_float64_and_back(row: Format) -> None:
    patterns = np.arange(1 << (8 * row.size), dtype=row.bits_dtype)
    if row.kind == "bool":
        patterns = patterns[:2]
    values = patterns.view(row.dtype)
    out = "int64" if row.kind != "float" else "float64"
    wide = reduced(lifted(lambda x: x, row.name, out).image(), [values])
    np.testing.assert_array_equal(wide, values.astype(out))
    back = reduce_op(lambda a, b: a, name="back", element=out, result=row.name).image()
    if row.kind != "bool":
        again = reduced(back, [wide]).view(row.bits_dtype)
        nan = values != values
        np.testing.assert_array_equal(again[~nan], patterns[~nan])
        assert (again[nan] == row.canonical_nan).all()


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("name", ["float8_e4m3fn", "float8_e5m2"])
@pytest.mark.parametrize("source", ["float32", "float64"])
def test_narrowing_to_float8_rounds_once(name: str, source: str) -> None:
    row = format_of(name)
    finite = np.arange(row.infinity + (name == "float8_e4m3fn"), dtype=np.uint8).view(row.dtype)
    steps = finite.astype(np.float64)
    middles = (steps[1:] + steps[:-1]) / 2
    near = np.concatenate([steps, middles, middles * (1 + 2**-20), middles * (1 - 2**-20), [1e30]])
    values = np.concatenate([near, -near]).astype(source)
    image = reduce_op(lambda a, b: a, name="narrow", element=source, result=name).image()
    want = values.astype(np.float32).astype(row.dtype)  # exact in float32: rounded once
    np.testing.assert_array_equal(
        reduced(image, [values]).view(np.uint8)[want == want], want.view(np.uint8)[want == want]
    )
    assert (reduced(image, [values]).view(np.uint8)[want != want] == row.canonical_nan).all()
    if source == "float64":  # would be a tie if rounded to float32 before
        tie = middles[8:12] * (1 + 2.0**-50)
        assert (reduced(image, [tie]) == steps[9:13].astype(row.dtype)).all()


FUNCTIONS = {
    "exp": (lambda x: math.exp(x), np.exp, (-110.0, 95.0)),
    "exp2": (lambda x: np.exp2(x), np.exp2, (-160.0, 135.0)),
    "log": (lambda x: math.log(x), np.log, (1e-40, 4.0)),
    "log2": (lambda x: math.log2(x), np.log2, (1e-40, 4.0)),
    "tanh": (lambda x: math.tanh(x), np.tanh, (-12.0, 12.0)),
}


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("name", FUNCTIONS)
def test_errors_of_functions_are_below_1_3_ulp(name: str) -> None:
    function, exact, (low, high) = FUNCTIONS[name]
    every = np.arange(0, 1 << 32, 9973, dtype=np.uint64).astype(np.uint32).view(np.float32)
    x = np.concatenate(
        [every, np.random.default_rng(1).uniform(low, high, 300_000).astype(np.float32)]
    )
    image = lifted(function, "f32", "f32").image()
    found = reduced(image, [x]).astype(np.longdouble)
    true = exact(x.astype(np.longdouble))
    finite = np.isfinite(true) & (abs(true) < np.finfo(np.float32).max)
    exponent = np.maximum(np.frexp(true[finite].astype(np.float64))[1] - 1, -126)
    ulp = np.exp2(exponent - 23.0)
    assert (abs(found[finite] - true[finite]) / ulp).max() < 1.3
    special = np.array([np.inf, -np.inf, np.nan, 0.0, -0.0], np.float32)
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(reduced(image, [special]), exact(special))


def test_powers_of_two_are_exact() -> None:
    n = np.arange(-149, 128)
    x = np.ldexp(np.float32(1), n)
    found = reduced(lifted(lambda x: np.exp2(x), "f32", "f32").image(), [n.astype(np.float32)])
    assert found.tolist() == x.tolist()
    assert reduced(lifted(lambda x: np.log2(x), "f32", "f32").image(), [x]).tolist() == n.tolist()


def test_functions_of_float32_are_refused_of_float64() -> None:
    def calling(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
        return lambda x: function(x)

    for function in (np.exp, np.exp2, np.log, np.log2, np.tanh):
        name = function.__name__
        with pytest.raises(OpError, match=rf"{name} is there for float32 only: convert with np\.f"):
            lifted(calling(function), "f64", "f64").image()


def test_bits() -> None:
    flip = lifted(lambda x: from_bits(bits(x) ^ np.uint32(1 << 31)), "f32", "f32").image()
    x = np.array([1.5, -0.0, np.inf], np.float32)
    assert reduced(flip, [x]).tobytes() == (-x).tobytes()
    nans = np.array([0xFFC00001, 0x7F800001], np.uint32).view(np.float32)
    seen = lifted(lambda x: bits(x), "f32", "i64").image()
    assert reduced(seen, [nans]).tolist() == [0x7FC00000] * 2
    assert from_bits(bits(x[0])) == x[0]
    # 32 bits are a float32, whatever the op computes in: constants beside integers are float64
    power = lifted(lambda x: from_bits(np.uint32((x + 127) << 23)) * 0.5, "i32", "f64")
    assert reduced(power.image(), [np.arange(3, dtype=np.int32)]).tolist() == [0.5, 1, 2]


# ---- the context ---------------------------------------------------------------------------------
def test_the_context_is_what_the_collective_says() -> None:
    @reduce_op(accumulator=tuple(("int64",) * 4), element="f32")
    def told(a: Any, b: Any, ctx: Any) -> Any:
        return a.f0 + b.f0, a.f1 * 10 + b.f1, a.f2 + b.f2, a.f3 + ctx.child

    @told.lift
    def _(x: Any, ctx: Any) -> Any:
        return ctx.rank, ctx.child, ctx.element, 0

    world = Communicator(8)
    x = [np.zeros(300, np.float32)] * 8
    for algorithm in ("in-network", "ring", "halving-doubling"):
        whole = world.allreduce(x, told, algorithm=algorithm).whole()
        assert (whole["f0"] == sum(range(8))).all(), algorithm
        assert (whole["f2"] == 8 * np.arange(300)).all(), algorithm
    assert told.image().fan_ins() == (1,)  # rank is one payload's


def test_fan_in_is_there_where_all_payloads_are_told_apart() -> None:
    @reduce_op(element="f32")
    def weighted(a: Any, b: Any) -> Any:
        return a + b

    @weighted.lift
    def _(x: Any, ctx: Any) -> Any:
        return x * ctx.child

    assert weighted.image().fan_ins() == (1, 2, 4, 8)
    x = np.arange(16, dtype=np.float32).reshape(8, 2)
    assert reduced(weighted.image(), x).tolist() == (x * np.arange(8)[:, None]).sum(0).tolist()


# ---- records -------------------------------------------------------------------------------------
@pytest.mark.parametrize("count", [1, 7, 130])
@pytest.mark.parametrize("algorithm", ["in-network", "ring", "halving-doubling"])
@pytest.mark.parametrize("collective", ["allreduce", "reduce", "reduce_scatter"])
def test_records_in_every_collective(collective: str, algorithm: str, count: int) -> None:
    rng = np.random.default_rng(count)
    count *= 8 if collective == "reduce_scatter" else 1
    x = rng.integers(-9, 9, (8, count)).astype(np.float32)
    world = Communicator(nicemu.Fabric(8, loss=0.02, seed=count))
    run = getattr(world, collective)
    result = run(x, builtin("argmax", "f32"), algorithm=algorithm, partials=True)
    whole = result.whole()
    assert whole.dtype.names == ("value", "rank", "index")
    np.testing.assert_array_equal(whole["value"], x.max(0))
    np.testing.assert_array_equal(x[whole["rank"], np.arange(count)], x.max(0))
    np.testing.assert_array_equal(whole["index"], np.arange(count))
    for part in result.partials.values():
        inside = np.concatenate([np.array(r, int) for r in part.ranges])
        np.testing.assert_array_equal(
            part.values["value"], x[list(part.contributors)].max(0)[inside]
        )
        assert set(part.values["rank"].tolist()) <= set(part.contributors)
    assert "value" in str(result)


def test_records_over_links_that_lose() -> None:
    """A worker that resends when another has the result sends elements, which have another size."""
    x = np.arange(8 * 1040, dtype=np.float32).reshape(8, 1040)
    world = Communicator(nicemu.Fabric(8, loss=0.02, seed=7))
    result = world.reduce_scatter(x, builtin("argmax", "f32"), algorithm="in-network")
    assert result.frames is not None and result.frames.resent
    np.testing.assert_array_equal(result.whole()["value"], x[7])


@pytest.mark.parametrize("chunk", [1, 3, 64])
@pytest.mark.parametrize("count", [0, 1, 3, 64, 130])
def test_records_are_packed_as_arrays(count: int, chunk: int) -> None:
    item = item_of("a:uint8 b:float64 c:int16 d:float64")
    assert item.size == 19 and item.offsets == (18, 0, 16, 8)
    values = np.zeros(count, item.dtype)
    for i, name in enumerate("abcd"):
        values[name] = np.arange(count) + 50 * i
    packed = item.pack(values, chunk)
    np.testing.assert_array_equal(item.unpack(packed, chunk), values)
    first = min(chunk, count)
    assert packed[: 8 * first].view(np.float64).tolist() == values["b"][:first].tolist()


def test_named_tuples_and_plain_ones_mix() -> None:
    Pair = namedtuple("Pair", "low high")

    @reduce_op(accumulator=(("low", "element"), ("high", "element")))
    def bounds(a: Any, b: Any) -> Any:
        if a.low <= b.low and a.high >= b.high:
            return a
        return min(a[0], b[0]), max(a.high, b.high)

    bounds.lift(lambda x: (x, x))
    x = np.random.default_rng(1).integers(-99, 99, (5, 77)).astype(np.int16)
    found = reduced(bounds.image("i16"), x)
    assert [Pair(*row) for row in found.tolist()] == [
        Pair(*row) for row in zip(x.min(0).tolist(), x.max(0).tolist(), strict=True)
    ]


# ---- statuses ------------------------------------------------------------------------------------
@reduce_op(element="f32")
def strict(a: Any, b: Any) -> Any:
    if b < 0:
        raise ValueError("negative")
    if b > 100:
        raise OverflowError
    return a + b


def test_an_index_outside_is_told_with_its_line() -> None:
    @reduce_op(element="f32")
    def picked(a: Any, b: Any) -> Any:
        table = (1.0, 2.0, 3.0)
        return a + table[int(b)]

    nic = Nic(threads=1)
    nic.load(picked.image())
    line = picked._source.functions_["merge"].__code__.co_firstlineno + 3  # type: ignore[union-attr]
    with pytest.raises(StatusError, match=rf"IndexError: .* \(test_op\.py:{line}\)$"):
        nic.reduce(np.full((2, 5), 7, np.float32))


def test_an_exception_ends_the_run_and_is_named() -> None:
    nic = Nic(threads=1)
    nic.load(strict.image())
    x = np.ones((3, 600), np.float32)
    assert nic.reduce(x).values.tolist() == [3.0] * 600
    for value, name in ((-1, "ValueError: negative"), (101, "OverflowError")):
        x[2, 555] = value
        with pytest.raises(
            StatusError, match=rf"strict: raised {name} \(test_op.py:\d+\)"
        ) as error:
            nic.reduce(x, payload=1024)
        assert "chunk 2 " in str(error.value) and error.value.status in (1, 2)
    done = nic.handle("acc", [x[2]], accumulator=x[0])
    assert done.status and done.accumulator[555] == 1 and (done.accumulator[:555] == 2).all()


@pytest.mark.parametrize("algorithm", ["in-network", "ring"])
def test_an_exception_ends_a_collective(algorithm: str) -> None:
    world = Communicator(8)
    x = np.ones((8, 600), np.float32)
    x[5, 3] = -1
    with pytest.raises(nicemu.CollectiveError, match=r"strict.* raised ValueError: negative"):
        world.allreduce(x, strict, algorithm=algorithm)
    assert world.allreduce(np.ones((8, 9), np.float32), strict).whole().tolist() == [8.0] * 9


def test_a_loop_without_end_runs_out_of_budget() -> None:
    @reduce_op(element="f32")
    def forever(a: Any, b: Any) -> Any:
        while a == a:
            a = a + b
        return a

    with pytest.raises(nicemu.FaultError, match="out of budget"):
        reduced(forever.image(), np.ones((2, 3), np.float32))


# ---- the code ------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("op", "element", "preset", "most"),
    [("l2norm", "bf16", "wide", 80), ("sum", "f16", "per-add", 40), ("sum", "bf16", "wide", 60)],
)
def test_instructions_of_512_elements(op: str, element: str, preset: str, most: int) -> None:
    """At VLEN 512; the count is the promise of the product's description."""
    image = kernel(op, element, preset)
    nic = Nic(threads=1)
    nic.load(image)
    x = [np.ones(512, image.formats.element.dtype)]
    for entry in ("first", "acc"):
        assert nic.handle(entry, x).instructions <= most


SPILLS = ("vs1r", "vs2r", "vs4r", "vs8r")


@pytest.mark.parametrize("op", BUILTINS)
@pytest.mark.parametrize("element", ["float16", "bfloat16", "float8_e4m3fn", "int32"])
def test_vectors_stay_in_registers(op: str, element: str) -> None:
    try:
        code = kernel(op, element).code + bytes(2)
    except (OpError, nicemu.ArgumentError):
        return  # it is not for that format
    cores, at = Cores(), 0
    while at < len(code) - 2:
        text, size = cores.disasm(int.from_bytes(code[at : at + 4], "little"), at)
        assert not text.startswith(SPILLS), (at, text)
        at += size


# ---- the cache -----------------------------------------------------------------------------------
SCALE = 2.0


def test_what_a_function_reads_is_read_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    step = 1.0

    @reduce_op(element="f32")
    def scaled(a: Any, b: Any) -> Any:
        return a * SCALE + twice(b) + step

    x = np.ones((2, 4), np.float32)
    assert reduced(scaled.image(), x)[0] == 5
    assert scaled.image() is scaled.image()
    monkeypatch.setitem(globals(), "SCALE", 10.0)
    assert reduced(scaled.image(), x)[0] == 13
    monkeypatch.setitem(globals(), "twice", lambda x: x * 4.0)
    assert reduced(scaled.image(), x)[0] == 15
    step = 2.0
    assert reduced(scaled.image(), x)[0] == 16


class Shy(float):
    """A number that does not show its value."""

    def __repr__(self) -> str:
        return "shy"


NUMBERS = ModuleType("numbers_of_a_user")
NUMBERS.near, NUMBERS.far = 1.0, Shy(2)  # type: ignore[attr-defined]


def far(x: Any) -> Any:
    return x * NUMBERS.far


def test_what_functions_read_of_a_module_is_read_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of them something else; and a number whose repr stays the same."""

    @reduce_op(element="f32")
    def both(a: Any, b: Any) -> Any:
        return a * NUMBERS.near + far(b)

    x = np.ones((2, 4), np.float32)
    assert reduced(both.image(), x)[0] == 3
    monkeypatch.setattr(NUMBERS, "far", Shy(4))
    assert reduced(both.image(), x)[0] == 5
    monkeypatch.setattr(NUMBERS, "near", 3.0)
    assert reduced(both.image(), x)[0] == 7


def test_disasm_of_shifts_and_divisions() -> None:
    """Functions take their place; the line stays beside."""

    def merge(a: Any, b: Any) -> Any:
        return (a << 3) // (b >> 1)

    op = reduce_op(merge, element="i32")  # type: ignore[call-overload]
    line = merge.__code__.co_firstlineno + 1
    assert re.search(rf"vdiv\S* .* ; test_op.py:{line}: return", str(op.disasm()))


@pytest.mark.parametrize("element", ["f16", "bf16", "f32", "i32"])
@pytest.mark.parametrize("preset", list(PRESETS))
@pytest.mark.parametrize("verb", ["prod", "max", "maximum", "argmax"])
def test_disasm_shows_lines(verb: str, preset: str, element: str) -> None:
    """Where vectors are shortened for want of registers, in 16 bits, and with fields."""
    op = builtin(verb, element)
    rows = op.disasm(element=element, preset=preset).rows
    line = op._source.functions_["merge"].__code__.co_firstlineno  # type: ignore[union-attr]
    lines = {int(x.split(":")[1]) for x in (row.source for row in rows) if x}
    assert lines and min(lines) > line and max(lines) < line + 5
    assert b"".join(bytes.fromhex(row.encoding)[::-1] for row in rows) == (
        op.image(element, preset).code
    )


def test_disasm_of_branches() -> None:
    """Both sides are computed before it, by LLVM's account in its line; here, only the first is."""

    def one(a: Any, b: Any) -> Any:
        return a * b if b > a or a > 3.0 else a - b

    def more(a: Any, b: Any) -> Any:
        if b > a:
            return a * b
        return a - b

    def lines(function: Any) -> dict[str, str]:
        rows = reduce_op(function, element="f32").disasm().rows  # type: ignore[call-overload]
        return {row.text.split()[0]: row.source for row in rows}

    first = one.__code__.co_firstlineno + 1
    found = lines(one)
    assert all(f"test_op.py:{first}: return" in found[x] for x in ("vmfgt.vf", "vfmul.vv"))
    first = more.__code__.co_firstlineno + 1
    found = lines(more)
    assert f"test_op.py:{first}: if b > a:" in found["vmflt.vv"]
    assert not any(f":{first}:" in found[x] for x in ("vfmul.vv", "vfsub.vv"))


def test_disasm_has_no_line_where_it_could_be_another() -> None:
    """In 16 bits a place is lost: it is found again where all such operations are of one line."""

    def own(a: Any, b: Any) -> Any:
        c = a + b
        d = c * 0.5
        return d + a

    def merge(a: Any, b: Any) -> Any:
        c = a - b
        return c / 3

    first = merge.__code__.co_firstlineno
    text = str(reduce_op(merge, element="f16", preset="per-add").disasm())  # type: ignore[call-overload]
    for verb, line in (("vfsub", first + 1), ("vfdiv", first + 2)):
        found = {int(x) for x in re.findall(rf" {verb}\S* .*; test_op.py:(\d+):", text)}
        assert found <= {line}, verb
    first = own.__code__.co_firstlineno
    text = str(reduce_op(own, element="f16", preset="per-add").disasm())  # type: ignore[call-overload]
    found = {int(x) for x in re.findall(r" vfmul\S* .*; test_op.py:(\d+):", text)}
    assert found == {first + 2}
    added = {int(x) for x in re.findall(r" vfadd\S* .*; test_op.py:(\d+):", text)}
    assert added <= {first + 1, first + 3}


# ---- the built-in ops ----------------------------------------------------------------------------
def test_ops_with_a_parameter() -> None:
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    assert reduced(premul_sum(0.25).image("f32"), x).tolist() == (x.sum(0) / 4).tolist()


@pytest.mark.parametrize("op", BUILTINS)
@pytest.mark.parametrize("row", FORMATS, ids=lambda f: f.name)
def test_every_built_in_op_is_there_or_says_why_not(op: str, row: Format) -> None:
    try:
        image = kernel(op, row)
    except (OpError, nicemu.ArgumentError) as error:
        assert "\n" not in str(error) and op in str(error)
        assert row not in GRADIENTS or op in ("band", "bor", "bxor", "sat_sum", "stochastic_sum")
        return
    values = np.ones((4, 33), row.dtype)
    want = {"sum": 4, "sat_sum": 4, "l2norm": 2, "logsumexp": 1 + math.log(4), "bxor": 0}
    found = reduced(image, values, context=Context(seed=1))
    if op == "argmax":
        assert found["value"].tolist() == [1] * 33 and found["rank"].tolist() == [0] * 33
    elif op == "stochastic_sum":
        assert found.astype(float).tolist() == [4] * 33
    else:
        exact = np.full(33, want.get(op, 1)).astype(row.dtype)
        np.testing.assert_allclose(found.astype(float), exact.astype(float), rtol=1e-6)


@pytest.mark.parametrize("element", ["float16", "bfloat16"])
def test_stochastic_sums_are_right_on_average(element: str) -> None:
    row = format_of(element)
    n, step = 40_000, 2.0 ** (-row.fraction_bits)
    one = np.ones(n, row.dtype)
    small = np.full(n, step / 4, row.dtype)
    image = kernel("stochastic_sum", element)
    found = reduced(image, [one, small], context=Context(seed=5)).astype(float)
    assert set(found.tolist()) == {1.0, 1.0 + step}
    up = (found > 1).mean()
    assert abs(up - 0.25) < 5 * math.sqrt(0.25 * 0.75 / n)
    again = reduced(image, [one, small], context=Context(seed=6)).astype(float)
    both = ((found > 1) & (again > 1)).mean()
    assert abs(both - up * (again > 1).mean()) < 5 * math.sqrt(0.06 / n)


def test_the_programs_of_the_guide() -> None:
    guide = (Path(nicemu.__file__).parent / "guide" / "authoring.md").read_text()
    section = guide.split("## In Python")[1].split("\n## ")[0]
    names: dict[str, Any] = {}
    for block in re.findall(r"```python\n(.*?)```", section, re.S):
        exec(block, names)
    assert names["norm"].tolist() == [13]
    assert names["where"].tolist() == [(12, 3)]
