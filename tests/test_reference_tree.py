"""The tree reference by hand and against rational arithmetic, and what becomes of the numbers."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from nicemu.dtypes import Format, format_of
from nicemu.errors import ArgumentError
from nicemu.order import Order, Path, devices, leaves
from nicemu.reference.arithmetic import OPS, PRESETS
from nicemu.reference.error import Errors, errors
from nicemu.reference.tree import reduce_streams, reduce_tree
from tests.test_reference_streams import (
    F32,
    add,
    as_values,
    by_format,
    by_op,
    columns,
    convert,
    is_nan,
    multiply,
    order_key,
)

by_preset = pytest.mark.parametrize("preset", PRESETS)
ORDERS: dict[str, Order] = {
    "flat": (0, 1, 2, 3, 4),
    "two levels": ((0, 1), (2, 3, 4)),
    "three levels": (((0, 1), (2,)), ((3, 4),)),
    "ring": ((((0, 1), 2), 3), 4),
    "mixed, not in order": (3, (1, 0), 4, ((2,),)),
    "survivors": ((1,), (4, 2)),
}


def oracle(op: str, fmt: Format, preset: str, order: Order, column: list[int]) -> dict[Path, int]:
    """Bits of each device's partial sum, and under the path (-1,) the result."""
    accumulator = fmt if preset == "per-add" else F32
    partial = F32 if preset == "wide" else fmt
    out: dict[Path, int] = {}

    def merge(a: int, b: int) -> int:
        if op not in ("max", "min"):
            return (multiply if op == "prod" else add)(a, b, accumulator)
        numbers = [x for x in (a, b) if not is_nan(x, accumulator)]
        choose = max if op == "max" else min
        if not numbers:
            return accumulator.canonical_nan
        return choose(numbers, key=lambda x: order_key(x, accumulator))

    def device(node: tuple[Order, ...], path: Path) -> int:
        total = None
        for i, child in enumerate(node):
            if isinstance(child, tuple):
                device(child, (*path, i))
                arrived = convert(out[(*path, i)], partial, accumulator)
            else:
                arrived = convert(column[child], fmt, accumulator)
            total = arrived if total is None else merge(total, arrived)
        assert total is not None
        out[path] = convert(total, accumulator, partial)
        return total

    assert isinstance(order, tuple)
    total = device(order, ())
    out[-1,] = convert(total, accumulator, fmt, len(leaves(order)) if op == "avg" else 1)
    return out


@by_format
@by_op
@by_preset
@pytest.mark.parametrize("name", ORDERS)
def test_bits_match_rational_arithmetic(fmt: Format, op: str, preset: str, name: str) -> None:
    cols = columns(fmt, 5, 40, seed=9)
    got = reduce_tree(op, fmt, ORDERS[name], as_values(cols, fmt), preset)
    assert got.result.dtype == fmt.bits_dtype
    for i, column in enumerate(zip(*(c.tolist() for c in cols), strict=True)):
        want = oracle(op, fmt, preset, ORDERS[name], list(column))
        assert got.result[i] == want.pop((-1,)), column
        assert {path: int(bits[i]) for path, bits in got.partials.items()} == want, column


@by_format
@by_op
def test_one_device_is_the_flat_order(fmt: Format, op: str) -> None:
    """... at which per-hop rounds no more often than wide."""
    streams = as_values(columns(fmt, 6, 5000, seed=3), fmt)
    flat = reduce_tree(op, fmt, tuple(range(6)), streams, "per-hop")
    assert np.array_equal(flat.result, reduce_streams(op, fmt, streams))
    assert list(flat.partials) == [()]


def of(name: str, *values: float) -> list[np.ndarray]:
    return [np.array([x], np.float64).astype(format_of(name).dtype) for x in values]


def test_by_hand_where_each_preset_rounds() -> None:
    """bfloat16 has 8 bits: 256 + 1 lies between 256 and 258, and its tie goes to 256."""
    order: Order = ((0, 1), (2, 3))
    streams = of("bfloat16", 256, 1, 1, 1)
    seen = {}
    for preset in PRESETS:
        tree = reduce_tree("sum", "bf16", order, streams, preset)
        dtype = np.float32 if preset == "wide" else format_of("bf16").dtype
        partials = {path: float(bits.view(dtype)[0]) for path, bits in tree.partials.items()}
        seen[preset] = partials, float(tree.result.view(format_of("bf16").dtype)[0])
    assert seen["wide"] == ({(0,): 257, (1,): 2, (): 259}, 260)  # a tie: 258 is odd
    assert seen["per-hop"] == ({(0,): 256, (1,): 2, (): 258}, 258)
    assert seen["per-add"] == ({(0,): 256, (1,): 2, (): 258}, 258)
    flat = reduce_tree("sum", "bf16", (0, 1, 2, 3), streams, "per-add")
    assert flat.result.view(format_of("bf16").dtype)[0] == 256


def test_by_hand_an_average_divides_once_by_all() -> None:
    streams = of("float16", 40000, 40000, 40000, 40000, 40000)
    order: Order = ((0, 1), (2, 3), 4)
    wide = reduce_tree("avg", "f16", order, streams)
    assert wide.result.view(np.float16)[0] == 40000
    assert wide.partials[0,].view(np.float32)[0] == 80000
    hop = reduce_tree("avg", "f16", order, streams, "per-hop")
    assert hop.partials[0,].view(np.float16)[0] == np.inf
    assert hop.result.view(np.float16)[0] == np.inf


def test_by_hand_zeros_and_nans_on_the_way() -> None:
    order: Order = ((0,), (1,))
    minus = reduce_tree("sum", "bf16", order, of("bfloat16", -0.0, -0.0))
    assert minus.result[0] == 0x8000 and minus.partials[0,][0] == 0x80000000
    payload = np.array([0xFFC1], np.uint16).view(format_of("bf16").dtype)
    for op in OPS:
        hop = reduce_tree(op, "bf16", order, [payload, payload], "per-hop")
        assert hop.partials[0,][0] == hop.result[0] == 0x7FC0


def test_devices_and_leaves() -> None:
    order: Order = ((0, (3,)), 1)
    assert leaves(order) == (0, 3, 1)
    assert dict(devices(order)) == {(0, 1): (3,), (0,): (0, (3,)), (): order}
    assert [path for path, _ in devices(order)] == [(0, 1), (0,), ()]


@pytest.mark.parametrize("order", [0, (), (0, ()), (0, 0), (0, (1, 0)), (0, 5), (-1, 0)])
def test_bad_orders(order: Order) -> None:
    with pytest.raises(ArgumentError, match="order"):
        reduce_tree("sum", "f16", order, of("float16", 1, 2, 3, 4, 5))


# ---- what became of the numbers ---------------------------------------------------------------


@by_format
def test_errors_of_a_partial_sum(fmt: Format) -> None:
    """Inputs may be of several formats; the mean is that of rational arithmetic."""
    rng = np.random.default_rng(5)
    elements = rng.normal(size=200).astype(fmt.dtype)
    partial = rng.normal(size=200).astype(np.float32)
    result = (elements.astype(np.float64) + partial).astype(np.float32).astype(fmt.dtype)
    got = errors("sum", [partial, elements], result)
    off = []
    for p, e, r in zip(partial, elements, result, strict=True):
        true = Fraction(float(p)) + Fraction(float(e))
        exponent = np.frexp(float(true))[1] - 1
        lowest = 2 - (1 << (fmt.exponent_bits - 1))
        ulp = Fraction(2) ** (max(int(exponent), lowest) - fmt.fraction_bits)
        off.append(abs(Fraction(float(r)) - true) / ulp)
    assert got.largest_ulp == pytest.approx(float(max(off)), abs=1e-5)
    assert got.mean_ulp == pytest.approx(float(sum(off) / len(off)), abs=1e-5)
    assert (got.elements, got.measured, got.overflows, got.nans) == (200, 200, 0, 0)


def test_errors_count_what_is_no_number() -> None:
    def count(inputs: list[float], result: float) -> Errors:
        return errors("sum", of("float16", *inputs), of("float16", result)[0])

    assert count([60000, 60000], np.inf).overflows == 1
    assert count([60000, 60000], np.inf).largest_ulp == 0  # the true sum rounds to it
    assert count([60000, 1], np.inf).largest_ulp == np.inf
    assert count([np.inf, 1], np.inf) == Errors(elements=1)
    made = count([np.inf, -np.inf], np.nan)
    assert (made.nans, made.nans_made, made.overflows) == (1, 1, 0)
    assert count([np.nan, 1], np.nan).nans_made == 0
    assert count([2.0**-24, 0], 2.0**-24).subnormals == 1
    assert count([0, 0], 0).subnormals == 0 == count([2.0**-14, 0], 2.0**-14).subnormals


def test_errors_add_up() -> None:
    rng = np.random.default_rng(6)
    a, b = rng.normal(size=(2, 3000)).astype(np.float16)
    a[5], b[7] = np.nan, np.inf
    result = a + b
    whole = errors("sum", [a, b], result)
    halves = [
        errors("sum", [a[part], b[part]], result[part]) for part in (slice(999), slice(999, None))
    ]
    both = halves[0] + halves[1]
    assert both.mean_ulp == pytest.approx(whole.mean_ulp)
    assert both.measured == whole.measured == 2998
    assert both.largest_ulp == whole.largest_ulp


def test_errors_of_bad_arguments() -> None:
    one = of("float16", 1)[0]
    for op, inputs, message in (
        ("mean", [one], "op 'mean'"),
        ("sum", [], "inputs of shape nothing"),
        ("sum", [one, np.zeros(2, np.float16)], "inputs of shape"),
        ("sum", [np.zeros(1)], "dtype float64"),
    ):
        with pytest.raises(ArgumentError, match=message):
            errors(op, inputs, one)
