"""The ops of guide/examples.md: what the page says of them, and their bits by their definitions.

The models compute an element at a time, from the definition and not as the op does: in Python's
integers and fractions, or in numpy's float32 where the definition itself rounds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import pytest

import nicemu
from nicemu import Communicator, Fabric, Nic, ReduceOp, Stream, reduce_op
from nicemu.collectives.algorithms import ALGORITHMS
from nicemu.dtypes import Format, format_of
from nicemu.order import Order
from nicemu.reference.scalar import round_value
from tests import page
from tests.op_bits import pool

TEXT = page.path("examples").read_text()
LIMIT = Fraction(1, 16)
RANKS = 8


class Session(NamedTuple):
    """The page's ops by their names; per program what is shown and what it printed."""

    ops: dict[str, ReduceOp]
    printed: list[tuple[str, str]]


@cache
def session() -> Session:
    names: dict[str, Any] = {}
    printed = [(found["shown"] or "", lines) for found, lines in page.run(TEXT, names)]
    return Session({x.name: x for x in names.values() if isinstance(x, ReduceOp)}, printed)


def op(name: str) -> ReduceOp:
    return session().ops[name]


def test_what_the_page_prints() -> None:
    """All of its programs print something; each line is as shown."""
    printed = session().printed
    assert len(printed) == 8 and all(shown for shown, _ in printed)
    for shown, lines in printed:
        assert lines == shown


def test_every_op_of_the_page_has_a_model() -> None:
    assert {*session().ops} == {*MODELS, "textbook"}  # the last is there to be wrong


# ---- by definition -------------------------------------------------------------------------------
class Model(NamedTuple):
    """lift of a Python float that is the element, merge, and finish to bytes of a result."""

    lift: Callable[[float], Any]
    merge: Callable[[Any, Any], Any]
    finish: Callable[[Any, Format], bytes]
    elements: Sequence[str] = ("bfloat16", "float16", "float32")


def rounded(value: Fraction | float, row: Format) -> bytes:
    """The bytes of a number in a format; every NaN is the canonical one."""
    if isinstance(value, Fraction):
        bits = round_value(row, value).bits
    elif math.isnan(value):
        bits = row.canonical_nan
    else:
        sign = (math.copysign(1, value) < 0) << (8 * row.size - 1)
        bits = row.infinity if math.isinf(value) else round_value(row, abs(Fraction(value))).bits
        bits |= sign
    return bits.to_bytes(row.size, "little")


def clipped(x: float) -> float:
    return x if math.isnan(x) or abs(x) <= LIMIT else math.copysign(LIMIT, x)


def add(a: float, b: float) -> float:
    """In float32."""
    return float(np.float32(a) + np.float32(b))


def compensated(a: tuple[float, float], b: tuple[float, float]) -> tuple[float, float]:
    """The second of the pair: of the exact sum, what the rounded one is not."""
    total = add(a[0], b[0])
    if not math.isfinite(total):
        return total, math.nan
    lost = Fraction(a[0]) + Fraction(b[0]) - Fraction(total)
    assert float(np.float32(float(lost))) == lost  # a float32 can say it
    return total, add(add(a[1], b[1]), float(lost))


def moments(a: Any, b: Any) -> Any:
    """Chan, Golub and LeVeque's update, in float32."""
    n = a[0] + b[0]
    d = b[1] - a[1]
    return n, a[1] + d * (b[0] / n), a[2] + b[2] + d * d * (a[0] * b[0] / n)


def fixed(x: float) -> int:
    """A million times x, a float32, as the nearest int32."""
    if math.isnan(x):
        return 0
    product = float(np.float32(x) * np.float32(1e6))
    if math.isinf(product):
        return 2**31 - 1 if product > 0 else -(2**31)
    return max(-(2**31), min(2**31 - 1, round(Fraction(product))))


def wrapped(a: int, bits: int) -> int:
    half = 1 << (bits - 1)
    return (a + half) % (2 * half) - half


def block(x: float) -> tuple[int, int]:
    """Significand and exponent field of a bfloat16: x = m 2^(e - 134)."""
    if not math.isfinite(x):
        return (192 if math.isnan(x) else int(math.copysign(128, x))), 255
    exponent = max(math.frexp(x)[1] + 126, 1) if x else 1
    mantissa = Fraction(x) / Fraction(2) ** (exponent - 134)
    assert mantissa.denominator == 1
    return int(mantissa), exponent


def block_merge(a: tuple[int, int], b: tuple[int, int]) -> tuple[int, int]:
    top = max(a[1], b[1])
    units = (math.floor(Fraction(m, 2 ** (top - e))) for m, e in (a, b))
    return wrapped(sum(units), 16), top


def block_value(a: tuple[int, int]) -> Fraction | float:
    mantissa, exponent = a
    if exponent == 255:
        return math.copysign(math.inf, mantissa) if mantissa else math.nan
    return mantissa * Fraction(2) ** (exponent - 134)


MODELS = {
    "sign_vote": Model(
        lambda x: (x > 0) - (x < 0),
        lambda a, b: wrapped(a + b, 16),
        lambda a, row: np.int8((a > 0) - (a < 0)).tobytes(),
    ),
    "sum_of_clipped": Model(clipped, add, rounded),
    "clipped_sum": Model(lambda x: x, add, lambda a, row: rounded(clipped(a), row)),
    "compensated": Model(
        lambda x: (x, 0.0),
        compensated,
        lambda a, row: rounded(add(*a) if math.isfinite(a[1]) else a[0], row),
    ),
    "moments": Model(
        lambda x: (np.float32(1), np.float32(x), np.float32(0)),
        moments,
        lambda a, row: b"".join(
            rounded(float(x), format_of("float32")) for x in (a[1], a[2] / a[0])
        ),
    ),
    "fixed_point": Model(
        fixed,
        lambda a, b: wrapped(a + b, 32),
        lambda a, row: rounded(Fraction(a, 10**6), row),
    ),
    "block_sum": Model(
        block, block_merge, lambda a, row: rounded(block_value(a), row), ["bfloat16"]
    ),
}
by_op = pytest.mark.parametrize(
    ("name", "element"), [(name, e) for name, model in MODELS.items() for e in model.elements]
)


def folded(model: Model, node: Order, column: Sequence[float]) -> Any:
    """The accumulator of a tree of devices."""
    if isinstance(node, int):
        return model.lift(column[node])
    total = folded(model, node[0], column)
    for child in node[1:]:
        total = model.merge(total, folded(model, child, column))
    return total


def streams(row: Format, ranks: int) -> list[np.ndarray]:
    """Ends of the format beside each other, random patterns, numbers of one size, of several, and
    about the smallest normal one."""
    rng = np.random.default_rng(ranks + row.size)
    size = (ranks, 50)
    ends = rng.choice(pool(row), size)
    any_kind = rng.integers(0, 256, (ranks, 50 * row.size), np.uint8).view(row.dtype)
    normal = rng.normal(size=size).astype(row.dtype)
    spread = (rng.normal(size=size) * 10.0 ** rng.integers(-7, 4, size)).astype(row.dtype)
    tiny = rng.integers(0, 2 << row.fraction_bits, size).astype(row.bits_dtype).view(row.dtype)
    tiny *= rng.choice([-1, 1], size).astype(row.dtype)
    return list(np.concatenate([ends, any_kind, normal, spread, tiny], axis=1))


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy's, of infinities
@pytest.mark.parametrize("algorithm", ["in-network", *ALGORITHMS])
@by_op
def test_bits_by_definition(name: str, element: str, algorithm: str) -> None:
    """In the stated order."""
    model, row = MODELS[name], format_of(element)
    arrays = streams(row, RANKS)
    result = Communicator(RANKS).allreduce(arrays, op(name), algorithm=algorithm)
    whole = result.whole()
    columns = np.array(arrays).astype(np.float64).T.tolist()
    for share in result.shares:
        part = slice(share.elements.start, share.elements.stop)
        want = [model.finish(folded(model, share.order, x), row) for x in columns[part]]
        got = [x.tobytes() for x in whole[part]]
        wrong = [i for i, (g, w) in enumerate(zip(got, want, strict=True)) if g != w]
        assert not wrong, (columns[part][wrong[0]], whole[part][wrong[0]], want[wrong[0]])


@by_op
def test_the_reference_gives_the_same(name: str, element: str) -> None:
    arrays = streams(format_of(element), RANKS)
    result = Communicator(RANKS).allreduce(arrays, op(name), algorithm="halving-doubling")
    host = op(name).reference(arrays, order=result.order)
    assert host.tobytes() == result.whole().tobytes()


@pytest.mark.parametrize("name", ["sign_vote", "fixed_point"])
def test_whole_numbers_know_no_order(name: str) -> None:
    """Trees, algorithms and orders of workers."""
    arrays = streams(format_of("bfloat16"), 18)
    seen = {
        Communicator(Fabric(18, topology)).allreduce(x, op(name), algorithm=a).whole().tobytes()
        for topology in ("tree(2)", "tree(4)")
        for a in ("in-network", *ALGORITHMS)
        for x in (arrays, arrays[::-1])
    }
    assert len(seen) == 1


@pytest.mark.parametrize("name", ["compensated", "moments", "block_sum"])
def test_others_do(name: str) -> None:
    """Else the orders above tell nothing."""
    arrays = streams(format_of("float32" if name == "compensated" else "bfloat16"), 18)
    seen = {
        Communicator(18).allreduce(x, op(name), algorithm=a).whole().tobytes()
        for a in ("in-network", *ALGORITHMS)
        for x in (arrays, arrays[::-1])
    }
    assert len(seen) > 2


# ---- what the page says --------------------------------------------------------------------------
def reduced(which: ReduceOp, given: Sequence[Any], element: str = "bfloat16") -> np.ndarray:
    """One device; given: one number per worker, or streams."""
    nic = Nic(threads=1)
    nic.load(which.image(element))
    rows = [np.array([x]).astype(element) if np.isscalar(x) else x for x in given]
    return nic.reduce(rows).values


@pytest.mark.parametrize("ranks", [2, 8, 18])
def test_what_compensation_leaves(ranks: int) -> None:
    """The last rounding, and n^2 2^-48 of the magnitudes; of two workers the pair is exact."""
    rng = np.random.default_rng(ranks)
    size = (ranks, 4000)
    x = (rng.normal(size=size) * 10.0 ** rng.integers(-6, 7, size)).astype(np.float32)
    x[-1] = -x[:-1].sum(axis=0, dtype=np.float64)
    result = Communicator(ranks).allreduce(list(x), op("compensated"), partials=True)
    plain = Communicator(ranks).allreduce(list(x)).whole()
    worse = 0
    for got, sum_, column in zip(result.whole(), plain, x.astype(np.float64).T, strict=True):
        exact = sum(map(Fraction, column), Fraction())
        magnitudes = sum((abs(Fraction(v)) for v in column), Fraction())
        bound = abs(exact) * Fraction(1, 2**24) + magnitudes * Fraction(ranks**2, 2**48)
        assert abs(Fraction(float(got)) - exact) <= bound
        worse += abs(Fraction(float(sum_)) - exact) > bound
    assert worse > (2000 if ranks > 2 else -1)
    if ranks == 2:
        (pair,) = {p.values.tobytes(): p.values for p in result.partials.values()}.values()
        for t, e, column in zip(pair["total"], pair["error"], x.astype(np.float64).T, strict=True):
            assert Fraction(float(t)) + Fraction(float(e)) == sum(map(Fraction, column))


@pytest.mark.parametrize("ranks", [2, 8, 18])
@pytest.mark.parametrize("around", [0.0, 1000.0])
def test_moments_against_exact_ones(ranks: int, around: float) -> None:
    """Within n units of float32, times the condition of the variance: (1 + mean^2 / variance)."""
    rng = np.random.default_rng(ranks)
    x = (around + rng.normal(size=(ranks, 1000))).astype(np.float32)
    got = Communicator(ranks).allreduce(list(x), op("moments")).whole()
    for (mean, variance), column in zip(got.tolist(), x.astype(np.float64).T, strict=True):
        numbers = list(map(Fraction, column))
        right = sum(numbers, Fraction()) / ranks
        spread = sum(((v - right) ** 2 for v in numbers), Fraction()) / ranks
        unit = ranks * 2.0**-24
        assert abs(mean - right) <= unit * max(map(abs, numbers))
        condition = math.sqrt(1 + right**2 / spread)
        assert abs(variance - spread) <= 4 * unit * condition * spread
    np.testing.assert_allclose(got["variance"], x.astype(np.float64).var(axis=0), rtol=2e-3)


def test_ends_of_moments() -> None:
    assert reduced(op("moments"), [5]).tolist() == [(5, 0)]
    (square,) = reduced(op("moments"), [3e20, -3e20]).tolist()
    assert square == (0, math.inf)
    for odd in (math.inf, -math.inf, math.nan):
        for at in range(3):
            given = [1.0, 2.0]
            given.insert(at, odd)
            (found,) = reduced(op("moments"), given).tolist()
            assert not any(map(math.isfinite, found))
            assert math.isinf(odd) or all(map(math.isnan, found))


def test_votes_that_wrap() -> None:
    most = Stream(np.array([32767], np.int16), 0, 32767, True)
    for vote, sign in ((-1, 1), (0, 1), (1, -1)):
        assert reduced(op("sign_vote"), [most, vote]).tolist() == [sign]


def test_nans_and_limits() -> None:
    """Other ways to write clip make the limit of a NaN."""
    limit = float(LIMIT)

    def made(lift: Callable[[Any], Any]) -> float:
        own = reduce_op(lambda a, b: a + b, name="made")  # type: ignore[call-overload]
        own.lift(lift)
        return float(reduced(own, [math.nan])[0])

    assert math.isnan(made(lambda x: min(x, limit)))
    assert made(lambda x: min(limit, x)) == made(lambda x: np.fmin(x, limit)) == limit
    assert float(np.float32(0.01).astype(nicemu.bfloat16)) == 0.010009765625


def test_saturating_fixed_point() -> None:
    """As the page has it: it stays at the end, and order matters."""
    low, high, scale = -(2**31), 2**31 - 1, np.float32(1e6)
    merge = lambda a, b: min(max(a + b, -(2**31)), 2**31 - 1)  # noqa: E731
    assert "return min(max(a + b, -(2**31)), 2**31 - 1)" in TEXT
    own = reduce_op(name="saturating", accumulator="int32", result="int32")(merge)
    own.lift(lambda x: np.int32(round(x * scale)))
    assert reduced(own, [2000, 2000, -2000]).tolist() == [high - 2_000_000_000]
    assert reduced(own, [2000, -2000, 2000]).tolist() == [2_000_000_000]
    assert reduced(own, [-3e38, -1]).tolist() == [low]
    laws = own.check(element="bfloat16").laws
    assert [law.verdict for law in laws if law.name == "associative"][-1] == "no"
    assert op("fixed_point").check(element="bfloat16").associative == "yes"


def test_carries_of_blocks() -> None:
    """128 workers with all bits set fit, one more wraps to the other sign."""
    top = 255 / 128
    assert reduced(op("block_sum"), [top] * 128).astype(float).tolist() == [255.0]
    assert float(reduced(op("block_sum"), [top] * 129)[0]) < 0


@by_op
def test_every_op_may_be_used(name: str, element: str) -> None:
    """All patterns, on a core and on the host; memory; no note of the compiler's."""
    found = op(name).check(element=element)
    assert found.ok, found
    assert not found.notes
