"""The stream reference against rational arithmetic, one element at a time."""

from __future__ import annotations

from fractions import Fraction
from functools import cache

import numpy as np
import pytest

from nicemu.dtypes import GRADIENTS, Format, format_of
from nicemu.errors import ArgumentError
from nicemu.reference.arithmetic import BLOCK, OPS, PRESETS
from nicemu.reference.error import true_error_ulp
from nicemu.reference.tree import reduce_streams

F32 = format_of("float32")
SIXTEEN = [f for f in GRADIENTS if f.size == 2]
by_format = pytest.mark.parametrize("fmt", GRADIENTS, ids=lambda f: f.name)
by_op = pytest.mark.parametrize("op", OPS)


# ---- a slow oracle: values are Fractions, "inf", "-inf", "nan"; zeros are (0, sign) ----------


def inf_bits(fmt: Format) -> int:
    return ((1 << fmt.exponent_bits) - 1) << fmt.fraction_bits


def sign_bit(fmt: Format) -> int:
    return 1 << (8 * fmt.size - 1)


@cache
def magnitude(bits: int, fmt: Format) -> Fraction:
    """Value of finite bits without the sign, or what infinity would be were it finite."""
    mag = bits & (sign_bit(fmt) - 1)
    field, frac = mag >> fmt.fraction_bits, mag & ((1 << fmt.fraction_bits) - 1)
    bias = (1 << (fmt.exponent_bits - 1)) - 1
    hidden = (1 << fmt.fraction_bits) if field else 0
    power = max(field, 1) - bias - fmt.fraction_bits
    if power < 0:
        return Fraction(frac + hidden, 1 << -power)
    return Fraction((frac + hidden) << power)


def is_nan(bits: int, fmt: Format) -> bool:
    return bits & (sign_bit(fmt) - 1) > inf_bits(fmt)


def is_inf(bits: int, fmt: Format) -> bool:
    return bits & (sign_bit(fmt) - 1) == inf_bits(fmt)


def value(bits: int, fmt: Format) -> Fraction:
    return -magnitude(bits, fmt) if bits & sign_bit(fmt) else magnitude(bits, fmt)


def rounded(x: Fraction, fmt: Format, zero_sign: int = 0) -> int:
    """Nearest, ties to even, by bisection over the bit patterns: nothing about shifts in it."""
    if x == 0:
        return sign_bit(fmt) if zero_sign else 0
    sign, target = (sign_bit(fmt), -x) if x < 0 else (0, x)
    low, high = 0, inf_bits(fmt)
    if target >= magnitude(high, fmt):
        return sign | high
    while high - low > 1:
        mid = (low + high) // 2
        low, high = (mid, high) if magnitude(mid, fmt) <= target else (low, mid)
    below, above = target - magnitude(low, fmt), magnitude(high, fmt) - target
    if below != above:
        return sign | (low if below < above else high)
    return sign | (high if low & 1 else low)


def negative(bits: int, fmt: Format) -> bool:
    return bool(bits & sign_bit(fmt))


def convert(bits: int, source: Format, target: Format, divisor: int = 1) -> int:
    if is_nan(bits, source):
        return target.canonical_nan
    sign = sign_bit(target) if negative(bits, source) else 0
    if is_inf(bits, source):
        return sign | inf_bits(target)
    return rounded(value(bits, source) / divisor, target, zero_sign=sign)


def add(a: int, b: int, fmt: Format) -> int:
    if is_nan(a, fmt) or is_nan(b, fmt):
        return fmt.canonical_nan
    if is_inf(a, fmt) or is_inf(b, fmt):
        if is_inf(a, fmt) and is_inf(b, fmt) and a != b:
            return fmt.canonical_nan
        return a if is_inf(a, fmt) else b
    both_negative = negative(a, fmt) and negative(b, fmt)
    return rounded(value(a, fmt) + value(b, fmt), fmt, zero_sign=both_negative)


def multiply(a: int, b: int, fmt: Format) -> int:
    if is_nan(a, fmt) or is_nan(b, fmt):
        return fmt.canonical_nan
    minus = negative(a, fmt) != negative(b, fmt)
    if is_inf(a, fmt) or is_inf(b, fmt):
        other = b if is_inf(a, fmt) else a
        if not is_inf(other, fmt) and value(other, fmt) == 0:
            return fmt.canonical_nan
        return (sign_bit(fmt) if minus else 0) | inf_bits(fmt)
    return rounded(value(a, fmt) * value(b, fmt), fmt, zero_sign=minus)


def order_key(bits: int, fmt: Format) -> tuple[int, Fraction, int]:
    """Total order of non-NaN bits with -0 < +0."""
    rank = 0 if not is_inf(bits, fmt) else (-1 if negative(bits, fmt) else 1)
    return rank, value(bits, fmt) if rank == 0 else Fraction(0), 0 if negative(bits, fmt) else 1


def oracle(op: str, fmt: Format, column: list[int], preset: str) -> int:
    if op in ("max", "min"):
        numbers = [b for b in column if not is_nan(b, fmt)]
        choose = max if op == "max" else min
        return choose(numbers, key=lambda b: order_key(b, fmt)) if numbers else fmt.canonical_nan
    acc_fmt = fmt if preset == "per-add" else F32
    step = multiply if op == "prod" else add
    acc = convert(column[0], fmt, acc_fmt)
    for b in column[1:]:
        acc = step(acc, convert(b, fmt, acc_fmt), acc_fmt)
    return convert(acc, acc_fmt, fmt, len(column) if op == "avg" else 1)


# ---- operands --------------------------------------------------------------------------------


def structured(fmt: Format) -> list[int]:
    """Exponent edges x significand patterns x signs, infinities, NaNs with payloads."""
    top = (1 << fmt.exponent_bits) - 1
    bias = top >> 1
    f = fmt.fraction_bits
    fields = [0, 1, 2, bias - f - 1, bias - 1, bias, bias + 1, bias + f, top - 2, top - 1]
    fractions = [0, 1, (1 << f) - 1, 1 << (f - 1), (1 << (f - 1)) + 1]
    mags = [field << f | frac for field in fields for frac in fractions]
    mags += [top << f, top << f | 1, top << f | 1 << (f - 1), top << f | (1 << f) - 1]
    return [m | s for m in mags for s in (0, sign_bit(fmt))]


def columns(fmt: Format, workers: int, n: int, seed: int) -> list[np.ndarray]:
    """Structured and random bits, and for the second worker often the first one's negation."""
    rng = np.random.default_rng([seed, workers, fmt.size, fmt.exponent_bits])
    pool = np.array(structured(fmt), dtype=fmt.bits_dtype)
    out = []
    for _ in range(workers):
        bits = rng.integers(0, 1 << (8 * fmt.size), n, dtype=np.uint64).astype(fmt.bits_dtype)
        pick = rng.random(n) < 0.6
        bits[pick] = rng.choice(pool, int(pick.sum()))
        out.append(bits)
    if workers > 1:
        near = rng.random(n) < 0.2
        step = rng.integers(0, 3, n).astype(fmt.bits_dtype)
        out[1][near] = (out[0] ^ fmt.bits_dtype.type(sign_bit(fmt)) ^ step)[near]
    return out


def as_values(columns: list[np.ndarray], fmt: Format) -> list[np.ndarray]:
    return [c.view(fmt.dtype) for c in columns]


def same_bits(fmt: Format, op: str, preset: str, cols: list[np.ndarray]) -> None:
    got = reduce_streams(op, fmt, as_values(cols, fmt), preset)
    assert got.dtype == fmt.bits_dtype
    for i, column in enumerate(zip(*(c.tolist() for c in cols), strict=True)):
        want = oracle(op, fmt, list(column), preset)
        assert got[i] == want, (
            f"{op} {fmt.name} {preset} of {[hex(b) for b in column]}: {got[i]:#x}, not {want:#x}"
        )


@by_format
@by_op
@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("workers", [1, 2, 3, 7])
def test_bits_match_rational_arithmetic(fmt: Format, op: str, preset: str, workers: int) -> None:
    same_bits(fmt, op, preset, columns(fmt, workers, 80, seed=1))


@by_op
@pytest.mark.parametrize("fmt", SIXTEEN, ids=lambda f: f.name)
def test_structured_pairs_rounded_at_every_step(fmt: Format, op: str) -> None:
    rng = np.random.default_rng(2)
    pool = structured(fmt)
    pairs = np.array([(a, b) for a in pool for b in pool], dtype=fmt.bits_dtype)
    pairs = pairs[rng.permutation(len(pairs))[:900]]
    same_bits(fmt, op, "per-add", [pairs[:, 0].copy(), pairs[:, 1].copy()])


@pytest.mark.parametrize("fmt", SIXTEEN, ids=lambda f: f.name)
@pytest.mark.parametrize("op", ["sum", "avg", "prod"])
def test_every_16_bit_value_alone(fmt: Format, op: str) -> None:
    bits = np.arange(1 << 16, dtype=np.uint16)
    want = bits.copy()
    want[(bits & 0x7FFF) > inf_bits(fmt)] = fmt.canonical_nan
    for preset in PRESETS:
        assert np.array_equal(reduce_streams(op, fmt, [bits.view(fmt.dtype)], preset), want)


@pytest.mark.parametrize("n", [3, 7, 8219, 12289])
def test_average_beside_a_midpoint(n: int) -> None:
    """The f32 accumulators nearest to n * m, for midpoints m of float16.

    Where n * m needs more than 24 bits, the quotient lies so near to m that one in float32 would
    be m, and would then round the wrong way for half of them.
    """
    fmt = format_of("f16")
    midpoints = [(Fraction(2 * k + 1, 1 << 11)) for k in range(1 << 10, 1 << 11, 37)]
    accumulators = [
        value(rounded(n * m, F32) + step, F32) for m in midpoints for step in (-1, 0, 1)
    ]
    pieces = []  # three float16 values that add up exactly; all other workers have zeros
    rest = list(accumulators)
    for _ in range(3):
        piece = [rounded(r, fmt) for r in rest]
        rest = [r - value(p, fmt) for r, p in zip(rest, piece, strict=True)]
        pieces.append(np.array(piece, dtype=np.uint16).view(np.float16))
    assert not any(rest)
    zeros = np.zeros(len(rest), np.float16)
    got = reduce_streams("avg", fmt, pieces + [zeros] * (n - 3))
    want = [rounded(a / n, fmt) for a in accumulators]
    assert got.tolist() == want
    in_float32 = [np.float16(np.float32(a) / np.float32(n)).view(np.uint16) for a in accumulators]
    assert (in_float32 != want) == (n > 1 << 13)


# ---- reductions people got wrong elsewhere, with the right value -----------------------------

ROWS = [
    ("avg", "float16", "wide", [40000.0] * 4, 40000.0),
    ("avg", "float16", "per-add", [40000.0] * 4, np.inf),
    ("avg", "float16", "wide", [65504.0] * 10, 65504.0),
    ("sum", "bfloat16", "wide", [256.0] + [1.0] * 63, 320.0),
    ("sum", "bfloat16", "per-add", [256.0] + [1.0] * 63, 256.0),
    ("sum", "bfloat16", "wide", [1.0] * 512, 512.0),
    ("sum", "bfloat16", "wide", [3.3e38, 3.3e38, -3.3e38, -3.3e38], np.inf),
    ("sum", "bfloat16", "wide", [3.3e38, -3.3e38, 3.3e38, -3.3e38], 0.0),
    ("sum", "float32", "wide", [1e4, 1.0, -1e4, 1e-3], 1.001),
    ("sum", "float16", "wide", [-0.0] * 3, -0.0),
    ("sum", "bfloat16", "per-add", [-0.0], -0.0),
    ("sum", "bfloat16", "wide", [-0.0, 0.0], 0.0),
    ("max", "bfloat16", "wide", [-0.0, 0.0, -0.0], 0.0),
    ("min", "bfloat16", "wide", [0.0, -0.0, 0.0], -0.0),
]


@pytest.mark.parametrize(("op", "name", "preset", "inputs", "want"), ROWS)
def test_known_reductions(
    op: str, name: str, preset: str, inputs: list[float], want: float
) -> None:
    fmt = format_of(name)
    streams = [np.array([x], dtype=np.float64).astype(fmt.dtype) for x in inputs]
    got = reduce_streams(op, fmt, streams, preset).view(fmt.dtype)
    if name == "float32":  # in order: 10001, 1, then 1.001 rounded to nearest
        assert got[0] == np.float32(1) + np.float32(1e-3)
    else:
        assert got[0] == np.array(want, dtype=fmt.dtype)
    assert np.signbit(got[0].astype(np.float32)) == np.signbit(np.float32(want))


@by_format
@pytest.mark.parametrize("op", ["max", "min"])
@pytest.mark.parametrize("payload", ["quiet", "signalling", "negative"])
def test_a_nan_on_any_rank_loses(fmt: Format, op: str, payload: str) -> None:
    quiet = inf_bits(fmt) | 1 << (fmt.fraction_bits - 1) | 1
    nan = {"quiet": quiet, "signalling": inf_bits(fmt) | 1, "negative": quiet | sign_bit(fmt)}
    numbers = np.array([1.5, -2.0, 3.0], dtype=np.float32).astype(fmt.dtype)
    answers = set()
    for rank in range(4):
        column = list(numbers.view(fmt.bits_dtype).tolist())
        column.insert(rank, nan[payload])
        streams = [np.array([b], dtype=fmt.bits_dtype).view(fmt.dtype) for b in column]
        answers.add(int(reduce_streams(op, fmt, streams)[0]))
    want = numbers.max() if op == "max" else numbers.min()
    assert answers == {int(want.view(fmt.bits_dtype))}


@by_format
@by_op
def test_only_nans_give_the_canonical_nan(fmt: Format, op: str) -> None:
    nan = np.array([inf_bits(fmt) | 1 | sign_bit(fmt)] * 2, dtype=fmt.bits_dtype).view(fmt.dtype)
    for workers in (1, 3):
        assert set(reduce_streams(op, fmt, [nan] * workers).tolist()) == {fmt.canonical_nan}


@pytest.mark.parametrize("n", [0, 1, 7, 8, 9, 31, 33, 1023, 1025, 10007, BLOCK, BLOCK + 1])
def test_counts_and_offsets(n: int) -> None:
    """Sums of small integers are exact in any order; streams may start one element late."""
    fmt = format_of("bf16")
    base = [((np.arange(n + 1) * (w + 3)) % 61).astype(fmt.dtype) for w in range(4)]
    streams = [b[1:] for b in base]
    got = reduce_streams("sum", fmt, streams).view(fmt.dtype)
    want = sum(b[1:].astype(np.int64) for b in base)
    assert np.array_equal(got.astype(np.int64), want)


# ---- the error against the true value --------------------------------------------------------


def exact_error(op: str, fmt: Format, column: list[int], got: int) -> Fraction:
    values = [value(b, fmt) for b in column]
    true = {"sum": sum(values), "avg": sum(values) / len(values), "max": max(values),
            "min": min(values)}.get(op)  # fmt: skip
    if true is None:
        true = Fraction(1)
        for v in values:
            true *= v
    ulp = Fraction(2) ** (1 - ((1 << (fmt.exponent_bits - 1)) - 1) - fmt.fraction_bits)
    while ulp * (1 << (fmt.fraction_bits + 1)) <= abs(true):
        ulp *= 2
    return abs(value(got, fmt) - true) / ulp


@by_format
@by_op
@pytest.mark.parametrize("preset", PRESETS)
def test_error_matches_rational_arithmetic(fmt: Format, op: str, preset: str) -> None:
    rng = np.random.default_rng(3)
    low = (1 << (fmt.exponent_bits - 1)) - 4 << fmt.fraction_bits  # exponents -3 .. 0
    span = 4 << fmt.fraction_bits
    for workers in (1, 2, 5):
        cols = [(low + rng.integers(0, span, 50)).astype(fmt.bits_dtype) for _ in range(workers)]
        streams = as_values(cols, fmt)
        result = reduce_streams(op, fmt, streams, preset)
        want = max(
            exact_error(op, fmt, list(column), got)
            for column, got in zip(
                zip(*(c.tolist() for c in cols), strict=True), result.tolist(), strict=True
            )
        )
        assert true_error_ulp(op, fmt, streams, result) == pytest.approx(float(want), abs=1e-5)


def test_error_under_cancellation_beyond_two_words() -> None:
    fmt = format_of("bf16")
    inputs = [2.0**127, 2.0**60, 2.0**-10, -(2.0**60), -(2.0**127)]
    streams = [np.array([x]).astype(fmt.dtype) for x in inputs]
    right = np.array([2.0**-10]).astype(fmt.dtype)
    assert true_error_ulp("sum", fmt, streams, right) == 0.0
    ulp = 2.0 ** (-10 - fmt.fraction_bits)
    off = np.array([2.0**-10 + ulp]).astype(fmt.dtype)
    assert true_error_ulp("sum", fmt, streams, off) == pytest.approx(1.0)


@by_format
def test_error_of_one_wrong_bit_is_one_ulp_off(fmt: Format) -> None:
    ones = np.ones(10).astype(fmt.dtype)
    result = reduce_streams("sum", fmt, [ones, ones])
    assert true_error_ulp("sum", fmt, [ones, ones], result) == 0.0
    result[7] ^= 1
    assert true_error_ulp("sum", fmt, [ones, ones], result) == 1.0


def test_error_with_infinities_and_nans() -> None:
    fmt = format_of("f16")

    def error(inputs: list[float], result: float) -> float:
        streams = [np.array([x], dtype=np.float16) for x in inputs]
        return true_error_ulp("sum", fmt, streams, np.array([result], dtype=np.float16))

    assert error([60000.0, 60000.0], np.inf) == 0.0  # the true sum rounds to inf
    assert error([60000.0, 60000.0], -np.inf) == np.inf
    assert error([1.0, 1.0], np.inf) == np.inf
    assert error([1.0, 1.0], np.nan) == np.inf
    assert error([np.inf, 1.0], 3.0) == 0.0  # no finite inputs, no error
    assert error([np.nan, 1.0], np.nan) == 0.0


# ---- arguments -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("op", "element", "streams", "preset", "message"),
    [
        ("mean", "f16", [np.zeros(1, np.float16)], "wide", "op 'mean' is unknown"),
        ("sum", "f16", [np.zeros(1, np.float16)], "narrow", "preset 'narrow' is unknown"),
        ("sum", "f64", [np.zeros(1)], "wide", "dtype f64 is not supported"),
        ("sum", "f16", [], "wide", "0 streams"),
        ("sum", "f16", [np.zeros(1, np.float16), np.zeros(2, np.float16)], "wide", "stream 1"),
        ("sum", "f16", [np.zeros((2, 2), np.float16)], "wide", "stream 0"),
        ("sum", "f16", [np.zeros(1, np.float32)], "wide", "stream 0 is float32"),
    ],
)
def test_bad_arguments(
    op: str, element: str, streams: list[np.ndarray], preset: str, message: str
) -> None:
    with pytest.raises(ArgumentError, match=message):
        reduce_streams(op, element, streams, preset)


def test_result_of_another_shape_is_refused() -> None:
    ones = np.ones(3, np.float16)
    for result in (ones[:2], ones.astype(np.float32)):
        with pytest.raises(ArgumentError, match="result is"):
            true_error_ulp("sum", "f16", [ones], result)
