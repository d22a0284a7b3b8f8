"""Ops as authors write them from the guide alone: each is right, or refused with what to do.

RIGHT are held against their definition in numpy: at one NIC, in the network and in a ring, whose
order each result states.  REFUSED say in a line where it is and what to write instead; ENDED are
compiled, and end what runs them.  What test_op, test_op_c and test_op_asm refuse is not repeated.
"""

from __future__ import annotations

import enum
import math
import random
import re
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from typing import Any, TypeAlias

import ml_dtypes
import numpy as np
import pytest

import nicemu
from nicemu import Communicator, Nic, OpError, ReduceOp, reduce_op
from nicemu.ops.opmath import bits, from_bits
from tests.test_op import reduced

Values: TypeAlias = Any  # an array, or a tuple of one per field
WORKERS = 8
COUNT = 320
FILE = r"test_authors\.py:\d+"
needs_clang = pytest.mark.skipif(find_spec("ziglang") is None, reason="pip install 'nicemu[c]'")


def cases(names: Iterable[str]) -> list[Any]:
    """Parameters of a test; those in C need clang."""
    return [pytest.param(x, marks=needs_clang if x.startswith("C: ") else ()) for x in names]


def inputs(dtype: Any, special: bool = True) -> np.ndarray:
    """(WORKERS, COUNT): half small or even, so that operands meet; special: the ends, and NaN."""
    row = np.dtype(dtype)
    rng = np.random.default_rng(row.num % 97)
    shape = (WORKERS, COUNT)
    if row == np.bool_:
        return rng.integers(0, 2, shape).astype(bool)
    if row.kind in "iu":
        info = np.iinfo(row)
        wide = rng.integers(info.min, info.max, shape, row, endpoint=True)
        near = rng.integers(max(info.min, -9), 10, shape).astype(row)
        ends = rng.choice(np.array([info.min, info.max, 0, 1], row), shape)
        return np.choose(rng.integers(0, 5, shape), [wide, wide, near, near, ends])
    limits: Any = ml_dtypes.finfo(row)  # type: ignore[no-untyped-call]
    most, least = float(limits.max), float(limits.smallest_subnormal)
    odd = [0.0, -0.0, 1, -1, most, -most, least, -least, np.inf, -np.inf, np.nan]
    x = rng.standard_normal(shape) * np.exp2(rng.integers(-6, 7, shape))
    x[:, : COUNT // 4] = rng.integers(-3, 4, (WORKERS, COUNT // 4))
    chosen = rng.random(shape) < 0.3
    chosen[:, : COUNT // 2] = False
    return np.where(chosen & special, rng.choice(np.array(odd, float), shape), x).astype(row)


@dataclass
class Right:
    """An op and what it is.

    Attributes:
        op: whose element says what the workers have.
        merge: of numpy, of arrays or tuples of them.
        lift: of an array of elements, the rank and the indices of the elements; None: float32 of
            floats, else the element.
        finish: of arrays.
        given: the workers' elements; None: inputs of the op's element.
        tolerance: relative; 0: the same bits, NaNs aside.
        laws: what check finds of ab = ba and (ab)c = a(bc); None: it is not asked.
    """

    op: ReduceOp
    merge: Callable[[Values, Values], Values]
    lift: Callable[[Any, int, Any], Values] | None = None
    finish: Callable[[Values], Values] = lambda a: a
    given: np.ndarray | None = None
    tolerance: float = 0.0
    laws: tuple[str, str] | None = None


def single(x: Any) -> Any:
    return np.asarray(x).astype(np.float32)


def plain(x: Any, rank: int, at: Any) -> Values:
    floats = x.dtype.kind == "f" or x.dtype == ml_dtypes.bfloat16
    return single(x) if floats and x.dtype.itemsize < 4 else x


def each(function: Callable[..., int], bits_: int) -> Callable[..., Any]:
    """Element by element in Python's integers, wrapped to int{bits_}."""

    def wrapped(*arrays: Any) -> Any:
        half = 1 << (bits_ - 1)
        rows = zip(*(a.tolist() for a in arrays), strict=True)
        whole = [(function(*row) + half) % (2 * half) - half for row in rows]
        return np.array(whole, f"int{bits_}")

    return wrapped


def op_of(merge: Any, element: str, lift: Any = None, finish: Any = None, **types: Any) -> ReduceOp:
    decorate: Any = reduce_op(element=element, **{"name": "mine"} | types)
    op: ReduceOp = decorate(merge)
    if lift:
        op.lift(lift)
    if finish:
        op.finish(finish)
    return op


def c(source: str, element: str = "float32", **types: Any) -> ReduceOp:
    return reduce_op.c(source, name="mine", element=element, **types)


# ---- ops in Python -------------------------------------------------------------------------------
WEIGHTS = (0.5, 0.25, 1.5, -2.0, 0.1, 3.0, 7.0, 0.3)
COEFFICIENTS = (0.25, -1.5, 0.125, 2.0)
LOW, HIGH = -1.5, 2.25
TENTH = np.float32(0.1)


def weighted_by(weights: tuple[float, ...]) -> ReduceOp:
    return op_of(lambda a, b: a + b, "bfloat16", lambda x, ctx: x * weights[ctx.rank])


def clip(x: Any) -> Any:
    if x < LOW:
        return LOW
    if x > HIGH:
        return HIGH
    return x


def histogram(x: Any) -> Any:
    if x != x:
        return 0, 0, 0, 1
    if x < -1:
        return 1, 0, 0, 0
    elif x < 1:
        return 0, 1, 0, 0
    else:
        return 0, 0, 1, 0


def odd_bits(a: Any) -> Any:
    n = 0
    while a:
        n += a & 1
        a >>= 1
    return n & 1


def ones(x: Any) -> Any:
    n = 0
    for i in range(16):
        n += (x >> i) & 1
    return n


def larger(a: Any, b: Any) -> Any:
    """As Python's max: the first of -0 and 0."""
    return np.where(b > a, b, a)


def top_two(a: Any, b: Any) -> Any:
    if a.first >= b.first:
        return a.first, max(a.second, b.first)
    return b.first, max(a.first, b.second)


def top_two_model(a: Values, b: Values) -> Values:
    first = a[0] >= b[0]
    rest = np.where(first, larger(a[1], b[0]), larger(a[0], b[1]))
    return np.where(first, a[0], b[0]), rest


def denominator(a: Any, b: Any) -> Any:
    top = max(a.top, b.top)
    return top, a.sum * math.exp(a.top - top) + b.sum * math.exp(b.top - top)


def denominator_model(a: Values, b: Values) -> Values:
    top = np.maximum(a[0], b[0])
    return top, a[1] * np.exp(a[0] - top) + b[1] * np.exp(b[0] - top)


def welford(a: Any, b: Any) -> Any:
    n = a.n + b.n
    apart = b.mean - a.mean
    return n, a.mean + apart * b.n / n, a.squares + b.squares + apart * apart * a.n * b.n / n


def welford_model(a: Values, b: Values) -> Values:
    n, apart = a[0] + b[0], b[1] - a[1]
    return n, a[1] + apart * b[0] / n, a[2] + b[2] + apart * apart * a[0] * b[0] / n


def skewness(a: Any, ctx: Any) -> Any:
    n = ctx.contributors
    mean = a[0] / n
    variance = a[1] / n - mean * mean
    if variance <= 0:
        return 0.0
    third = a[2] / n - 3 * mean * variance - mean * mean * mean
    return third / (variance * math.sqrt(variance))


def skewness_model(a: Values) -> Values:
    mean = a[0] / 8
    variance = a[1] / 8 - mean * mean
    third = a[2] / 8 - 3 * mean * variance - mean**3
    return np.where(variance <= 0, 0, third / (variance * np.sqrt(variance)))


def powers(x: Any) -> Any:
    wide = np.float64(x)
    return wide, wide**2, wide**3


def neumaier(a: Any, b: Any) -> Any:
    total = a.sum + b.sum
    if abs(a.sum) >= abs(b.sum):  # noqa: SIM108  (as authors write it)
        lost = (a.sum - total) + b.sum
    else:
        lost = (b.sum - total) + a.sum
    return total, a.lost + b.lost + lost


def neumaier_model(a: Values, b: Values) -> Values:
    total = a[0] + b[0]
    first = abs(a[0]) >= abs(b[0])
    lost = np.where(first, (a[0] - total) + b[0], (b[0] - total) + a[0])
    return total, a[1] + b[1] + lost


def gcd(a: Any, b: Any) -> Any:
    while b:
        a, b = b, a % b
    return abs(a)


def saturated(a: Any, b: Any) -> Any:
    total = a + b
    return total if total < 256 else 255


def polynomial(x: Any) -> Any:
    total = 0.0
    for coefficient in COEFFICIENTS:
        total = total * x + coefficient
    return total


def polynomial_model(x: Any, rank: int, at: Any) -> Values:
    total = np.zeros(x.shape, np.float32)
    for coefficient in COEFFICIENTS:
        total = total * single(x) + np.float32(coefficient)
    return total


def halved(x: Any) -> Any:
    return 0.5 * x


def mixed_by(x: Any, y: Any = 2.0, z: Any = 3) -> Any:
    return halved(x) + halved(y) * z


def named_twice(a: Any, b: Any) -> Any:
    if a > b:
        f = abs
        c = a
    else:
        f = abs
        c = b
    return f(c) + f(b if c == a else a)


def by_match(a: Any, b: Any) -> Any:
    match a % 4:
        case 0:
            return a + b
        case 1 | 2:
            return a - b
        case _:
            return a


def by_match_model(a: int, b: int) -> int:
    return [a + b, a - b, a - b, a][a % 4]


def nested(a: Any, b: Any) -> Any:
    if a > 0:
        if b > 0:
            if a > b:
                return a
            else:
                chosen = b
        else:
            chosen = a - b
    elif a == b:
        chosen = 7.0
    else:
        chosen = -a if b != b else b / 2
    return chosen


def stepping(a: Any, b: Any) -> Any:
    total = a
    for i in range(10, 0, -3):
        if i == 4:
            continue
        if total > 1000:
            break
        total += b * i
    else:
        total -= 1
    return total


def quotients(a: int, b: int) -> int:
    return 0 if b == 0 else (a // b) * 3 + a % b  # by 0 it would raise


def rounds(a: Any, b: Any) -> Any:
    return round(a) + math.floor(b) + math.ceil(a) + math.trunc(b)


def by_key(a: Any, b: Any) -> Any:
    return a if (a.value, a.rank) < (b.value, b.rank) else b


def by_key_model(a: Values, b: Values) -> Values:
    first = (a[0] < b[0]) | ((a[0] == b[0]) & (a[1] < b[1]))
    return tuple(np.where(first, x, y) for x, y in zip(a, b, strict=True))


def pairs(f: Callable[[Any, Any], Any]) -> Callable[[Values, Values], Values]:
    """f on every field."""
    return lambda a, b: tuple(f(x, y) for x, y in zip(a, b, strict=True))


def whole(x: Any, rank: int, at: Any) -> Values:
    return x.astype(np.int64)


ordinary = partial(inputs, special=False)
finite = np.where(np.isnan(inputs("float32")), np.float32(2), inputs("float32"))
to_hundredths = each(lambda a: max(-(2**63), min(2**63 - 1, a)), 32)


def hundredths_model(x: Any, rank: int, at: Any) -> Values:
    scaled = (x * np.float32(100)).tolist()
    ends = {math.inf: 2**63 - 1, -math.inf: -(2**63)}
    cut = [0 if v != v else ends[v] if v in ends else int(v) for v in scaled]
    return to_hundredths(np.array(cut, object))


RIGHT: dict[str, Right] = {
    # floats, one number
    "geometric mean, by log and exp": Right(
        op_of(lambda a, b: a + b, "float32", lambda x: math.log(x),
              lambda a, ctx: math.exp(a / np.float32(ctx.contributors))),
        np.add, lambda x, r, at: np.log(x), lambda a: np.exp(a / 8),
        abs(ordinary("float32")) + np.float32(0.01), 1e-5),
    "weighted sum: a closure's tuple at ctx.rank": Right(
        weighted_by(WEIGHTS), np.add, lambda x, r, at: single(x) * np.float32(WEIGHTS[r])),
    "clipped sum: early returns, global constants": Right(
        op_of(lambda a, b: a + b, "float16", clip), np.add,
        lambda x, r, at: np.where(single(x) < LOW, np.float32(LOW),
                                  np.where(single(x) > HIGH, np.float32(HIGH), single(x)))),
    "the smallest magnitude, with its sign": Right(
        op_of(lambda a, b: b if abs(b) < abs(a) else a, "bfloat16"),
        lambda a, b: np.where(abs(b) < abs(a), b, a), laws=("no", "yes")),
    "count of NaN": Right(
        op_of(lambda a, b: a + b, "float16", lambda x: math.isnan(x), accumulator="int32",
              result="int32"), np.add, lambda x, r, at: np.isnan(x).astype(np.int32)),
    "product of signs": Right(
        op_of(lambda a, b: a * b, "bfloat16", lambda x: -1 if x < 0 else (1 if x > 0 else 0),
              accumulator="int8", result="int8"), np.multiply,
        lambda x, r, at: np.nan_to_num(np.sign(single(x))).astype(np.int8), laws=("yes", "yes")),
    "polynomial of each, by a loop over a tuple": Right(
        op_of(lambda a, b: a + b, "float16", polynomial), np.add, polynomial_model),
    "helpers of helpers, defaults, arguments by name": Right(
        op_of(lambda a, b: mixed_by(a) + mixed_by(b, 3.0) + mixed_by(a, z=4), "bfloat16"),
        lambda a, b: (a / 2 + 3) + (b / 2 + np.float32(4.5)) + (a / 2 + 4)),
    "a numpy scalar and pi": Right(
        op_of(lambda a, b: a * TENTH + b * math.pi, "float32"),
        lambda a, b: a * TENTH + b * np.float32(math.pi)),
    "an integer variable makes float64": Right(
        op_of(lambda a, b, ctx: a + b / ctx.group, "float32"),
        lambda a, b: (a.astype(np.float64) + b.astype(np.float64) / 8).astype(np.float32)),
    "nested ifs": Right(
        op_of(nested, "float32"),
        lambda a, b: np.where(
            a > 0, np.where(b > 0, np.where(a > b, a, b), a - b),
            np.where(a == b, np.float32(7), np.where(b != b, -a, b / np.float32(2))))),
    "chained comparisons, and, or, not": Right(
        op_of(lambda a, b: a if -1.0 < a <= b < 5 and not (a == 0 or b == 1) else b, "float32"),
        lambda a, b: np.where((a > -1) & (a <= b) & (b < 5) & (a != 0) & (b != 1), a, b)),
    "the middle of two and 1": Right(
        op_of(lambda a, b: max(min(a, b), min(max(a, b), 1.0)), "float32", name="middle"),
        lambda a, b: np.clip(np.float32(1), np.minimum(a, b), np.maximum(a, b)), given=finite),
    "round, floor, ceil, trunc": Right(
        op_of(rounds, "float32"), lambda a, b: np.rint(a) + np.floor(b) + np.ceil(a) + np.trunc(b)),
    "float64: sqrt, sign, copysign": Right(
        op_of(lambda a, b: math.sqrt(abs(a)) + np.sign(b) * math.copysign(1.0, a), "float64"),
        lambda a, b: np.sqrt(abs(a)) + np.sign(b) * np.copysign(1.0, a)),
    "np.sign of -0 is +0": Right(
        op_of(lambda a, b: np.sign(a) if b < 1 else np.sign(b), "float32"),
        lambda a, b: np.where(b < 1, np.sign(a), np.sign(b))),
    "float64 accumulator of float32": Right(
        op_of(lambda a, b: a + b, "float32", accumulator="float64"), np.add,
        lambda x, r, at: x.astype(np.float64)),
    "bits: the upper half of a float32": Right(
        op_of(lambda a, b: from_bits(bits(a) & np.uint32(0xFFFF0000)) + b, "float32"),
        lambda a, b: np.where(np.isnan(a), a, (a.view("u4") & 0xFFFF0000).view("f4")) + b),
    "float8_e4m3fn, half of the second": Right(
        op_of(lambda a, b: a + b * 0.5, "float8_e4m3fn"), lambda a, b: a + b / 2,
        lambda x, r, at: single(x)),
    "float8_e5m2, rounded at each step": Right(
        op_of(lambda a, b: a + b * 0.5, "float8_e5m2", preset="per-add"),
        lambda a, b: single((a + b / 2).astype(ml_dtypes.float8_e5m2)),
        lambda x, r, at: single(x)),
    # order-dependent
    "the first": Right(op_of(lambda a, b: a, "float16"), lambda a, b: a, laws=("no", "yes")),
    "the last": Right(op_of(lambda a, b: b, "bfloat16"), lambda a, b: b, laws=("no", "yes")),
    "the first that is not 0": Right(
        op_of(lambda a, b: a if a != 0 else b, "float16"), lambda a, b: np.where(a != 0, a, b),
        laws=("no", "yes")),
    "signed zeros": Right(
        op_of(lambda a, b: -(a - b) if a == b else -a, "bfloat16"),
        lambda a, b: np.where(a == b, -(a - b), -a), laws=("no", "no")),
    "difference": Right(op_of(lambda a, b: a - b, "bfloat16"), np.subtract, laws=("no", "no")),
    "quotient, rounded to float16 at each step": Right(
        op_of(lambda a, b: a / b, "float16", preset="per-add"),
        lambda a, b: single((a / b).astype(np.float16)), laws=("no", "no")),
    "middle of the last and all before": Right(
        op_of(lambda a, b: (a + b) / 2, "bfloat16"), lambda a, b: (a + b) / 2, laws=("yes", "no")),
    "rolling hash of int64": Right(
        op_of(lambda a, b: a * 31 + b, "int64"), lambda a, b: a * 31 + b, laws=("no", "no")),
    # integers and bool
    "parity: a while loop in finish": Right(
        op_of(lambda a, b: a ^ b, "uint8", None, odd_bits), np.bitwise_xor, None,
        lambda a: np.unpackbits(a[:, None], axis=1).sum(1) & 1),
    "count of ones: a for loop in lift": Right(
        op_of(lambda a, b: a + b, "int16", ones, accumulator="int32", result="int32"), np.add,
        lambda x, r, at: np.unpackbits(x.view("u1").reshape(-1, 2), axis=1).sum(1, np.int32)),
    "greatest common divisor": Right(
        op_of(gcd, "int32"), each(math.gcd, 32), laws=("yes", "yes")),
    "saturating uint8": Right(
        op_of(saturated, "uint8"), lambda a, b: np.minimum(a + b, 255), whole),
    "rounded mean of uint8": Right(
        op_of(lambda a, b: (a + b + 1) >> 1, "uint8"), lambda a, b: (a + b + 1) >> 1, whole),
    "int8 with an accumulator of int32": Right(
        op_of(lambda a, b: a + b, "int8", None, lambda a: max(-128, min(127, a)),
              accumulator="int32"), np.add, whole, lambda a: a.clip(-128, 127)),
    "product of int16 wraps": Right(op_of(lambda a, b: a * b, "int16"), np.multiply),
    "abs of the least int8": Right(
        op_of(lambda a, b: a + b, "int8", lambda x: abs(x), accumulator="int32", result="int32"),
        np.add, lambda x, r, at: abs(x.astype(np.int32))),
    "- of the least int16, compared": Right(
        op_of(lambda a, b: a + b, "int16", lambda x: -x if -x > x else x + 0 * ~x,
              accumulator="int64", result="int64"),
        np.add, lambda x, r, at: abs(x.astype(np.int64))),
    "- of uint8 and bool, compared": Right(
        op_of(lambda a, b: a + b, "uint8", lambda x: 1 if -x < -(x > 5) else 0,
              accumulator="int32", result="int32"),
        np.add, lambda x, r, at: (-x.astype(np.int32) < -(x > 5).astype(np.int32)).astype("i4")),
    "abs of the least constant, an int64": Right(
        op_of(lambda a, b: a + abs(-32768) * b, "float32"),
        lambda a, b: (a.astype(np.float64) + 32768 * b.astype(np.float64)).astype(np.float32)),
    "helpers with defaults, their arguments chosen": Right(
        op_of(lambda a, b: mixed_by(a if a > b else b) + mixed_by(a and b, z=4), "float32"),
        lambda a, b: (np.where(a > b, a, b) / 2 + 3) + (np.where(a == 0, a, b) / 2 + 4)),
    "a name for one function, set on two ways": Right(
        op_of(named_twice, "float32"), lambda a, b: abs(a) + abs(b)),
    "// and % of negatives": Right(op_of(quotients, "int32"), each(quotients, 32)),
    "// of the least int64 by -1 wraps": Right(
        op_of(lambda a, b: (a // b if b else 0) ^ (a // -1), "int64"),
        each(lambda a, b: (a // b if b else 0) ^ -a, 64)),
    "shifts beyond the width": Right(
        op_of(lambda a, b: (a << b) ^ (a >> b), "int32"),
        each(lambda a, b: (a << (b & 63)) ^ (a >> (b & 63)), 32)),
    "match": Right(op_of(by_match, "int32"), each(by_match_model, 32)),
    "for, continue, break, else": Right(op_of(stepping, "int32"), each(stepping, 32)),
    "int(x): cut, the nearest end, NaN 0": Right(
        op_of(lambda a, b: a ^ b, "float32", lambda x: int(x * 100), accumulator="int32",
              result="int32"), np.bitwise_xor, hundredths_model),
    "bool: any": Right(op_of(lambda a, b: a or b, "bool"), np.logical_or),
    "bool: odd number": Right(op_of(lambda a, b: a != b, "bool"), np.logical_xor),
    "bool: majority": Right(
        op_of(lambda a, b: a + b, "bool", None, lambda a, ctx: 2 * a > ctx.contributors,
              accumulator="int32"), np.add, whole, lambda a: 2 * a > WORKERS),
    "context: rank and element": Right(
        op_of(lambda a, b: a * 3 + b, "float32", lambda x, ctx: ctx.rank * 1000 + ctx.element,
              lambda a, ctx: a * ctx.contributors + ctx.group, accumulator="int64",
              result="int64"), lambda a, b: a * 3 + b,
        lambda x, r, at: r * 1000 + at, lambda a: a * 8 + 8),
    # several fields
    "histogram: four counts": Right(
        op_of(lambda a, b: (a.a + b.a, a.b + b.b, a.c + b.c, a.nan + b.nan), "float32", histogram,
              accumulator=[(name, "int32") for name in ("a", "b", "c", "nan")]),
        pairs(np.add),
        lambda x, r, at: tuple(
            np.asarray(y, np.int32) for y in (x < -1, (x >= -1) & (x < 1), x >= 1, np.isnan(x)))),
    "the two greatest": Right(
        op_of(top_two, "float32", lambda x: (x, -math.inf),
              accumulator=[("first", "element"), ("second", "element")]),
        top_two_model, lambda x, r, at: (x, np.full_like(x, -np.inf)), given=finite),
    "range: least and greatest": Right(
        op_of(lambda a, b: (np.minimum(a.low, b.low), np.maximum(a.high, b.high)), "bfloat16",
              lambda x: (x, x), lambda a: a.high - a.low, result="element",
              accumulator=[("low", "element"), ("high", "element")]),
        lambda a, b: (np.minimum(a[0], b[0]), np.maximum(a[1], b[1])),
        lambda x, r, at: (single(x), single(x)), lambda a: a[1] - a[0]),
    "logsumexp: a maximum and a sum": Right(
        op_of(denominator, "bfloat16", lambda x: (x, 1.0), lambda a: a.top + math.log(a.sum),
              accumulator=[("top", "float32"), ("sum", "float32")], result="float32"),
        denominator_model, lambda x, r, at: (single(x), np.ones(x.shape, np.float32)),
        lambda a: a[0] + np.log(a[1]), ordinary("bfloat16"), 1e-5),
    "variance by Welford, int64 and float64": Right(
        op_of(welford, "float32", lambda x: (1, x, 0.0), lambda a: a.squares / a.n,
              accumulator=[("n", "int64"), ("mean", "float64"), ("squares", "float64")],
              result="float64"),
        welford_model, lambda x, r, at: (np.ones(x.shape), np.float64(x), np.zeros(x.shape)),
        lambda a: a[2] / a[0], laws=("up to rounding", "up to rounding")),
    "skewness: three sums, ctx in finish": Right(
        op_of(lambda a, b: (a[0] + b[0], a[1] + b[1], a[2] + b[2]), "float32", powers, skewness,
              accumulator=("float64", "float64", "float64"), result="float32"),
        pairs(np.add), lambda x, r, at: tuple(np.float64(x) ** n for n in (1, 2, 3)),
        skewness_model, ordinary("float32"), 1e-5),
    "compensated sum by Neumaier": Right(
        op_of(neumaier, "float32", lambda x: (x, 0), lambda a: a.sum + a.lost,
              accumulator=[("sum", "float32"), ("lost", "float32")], result="float32"),
        neumaier_model, lambda x, r, at: (x, np.zeros_like(x)), lambda a: a[0] + a[1]),
    "complex product": Right(
        op_of(lambda a, b: (a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re), "bfloat16",
              lambda x, ctx: (x, 0.5 * ctx.rank), accumulator=[("re", "f32"), ("im", "f32")]),
        lambda a, b: (a[0] * b[0] - a[1] * b[1], a[0] * b[1] + a[1] * b[0]),
        lambda x, r, at: (single(x), np.full(x.shape, 0.5 * r, np.float32))),
    "the least by value, then by rank: tuples compared": Right(
        op_of(by_key, "float32", lambda x, ctx: (x, ctx.rank),
              accumulator=[("value", "float32"), ("rank", "int32")]),
        by_key_model, lambda x, r, at: (x, np.full(x.shape, r, np.int32)), given=finite),
    "a pair whose factor is always 1": Right(
        op_of(lambda a, b: (a.s, a.w), "float16", lambda x: (x, 1.0), lambda a: a.s * a.w,
              accumulator=[("s", "float32"), ("w", "float32")], result="float32"),
        lambda a, b: a, lambda x, r, at: single(x)),
    # in C
    "C: a union's bits": Right(
        c("float merge(float a, float b) { union { float f; uint32_t u; } v = {a};"
          " v.u &= 0xffff0000u; return v.f + b; }"),
        lambda a, b: np.where(np.isnan(a), a, (a.view("u4") & 0xFFFF0000).view("f4")) + b),
    "C: a table that folds away, a macro, a helper": Right(
        c("#define N 3\nstatic const float T[N] = {1, -2, 0.5f};\n"
          "static float dot(float x) { float s = 0; for (int i = 0; i < N; i++) s += T[i] * x;"
          " return s; }\nfloat merge(float a, float b) { return a + dot(b); }"),
        lambda a, b: a + (((np.float32(0) + b) + -2 * b) + b / 2)),
    "C: switch": Right(
        c("int32_t merge(int32_t a, int32_t b) { switch (b & 3) { case 0: return a;"
          " case 1: return a + 7; case 2: return a * b; default: return a ^ b; } }", "int32"),
        each(lambda a, b: [a, a + 7, a * b, a ^ b][b & 3], 32)),
    "C: / and % of negatives, shifts beyond the width, overflow": Right(
        c("int32_t merge(int32_t a, int32_t b) { return (b ? a / b + a % b : 0) + (a << b); }",
          "int32"),
        each(lambda a, b: (0 if b == 0 else int(math.copysign(1, a) * math.copysign(1, b))
                           * (abs(a) // abs(b)) + int(math.copysign(1, a)) * (abs(a) % abs(b)))
             + (a << (b & 31)), 32)),
    "C: a struct's range, by goto": Right(
        c("accumulator_t lift(float x) { return (accumulator_t){x, x}; }\n"
          "accumulator_t merge(accumulator_t a, accumulator_t b) {"
          " if (b.low >= a.low) goto high; a.low = b.low;"
          " high: if (b.high > a.high) a.high = b.high; return a; }",
          accumulator=[("low", "float32"), ("high", "float32")]),
        lambda a, b: (np.minimum(a[0], b[0]), np.maximum(a[1], b[1])),
        lambda x, r, at: (x, x), given=finite),
}  # fmt: skip


def folded(right: Right, x: np.ndarray, order: Any, at: range) -> Values:
    def of(node: Any) -> Values:
        if isinstance(node, tuple):
            total = of(node[0])
            for child in node[1:]:
                total = right.merge(total, of(child))
            return total
        return (right.lift or plain)(
            x[node, at.start : at.stop], node, np.arange(at.start, at.stop)
        )

    return right.finish(of(order))


def assert_equal(got: np.ndarray, wanted: Values, tolerance: float) -> None:
    if got.dtype.names:
        for name, field in zip(got.dtype.names, wanted, strict=True):
            assert_equal(got[name], field, tolerance)
        return
    exact = np.asarray(wanted).astype(got.dtype)
    if exact.dtype.kind in "iub" and exact.dtype.num < 24:
        np.testing.assert_array_equal(got, exact)
        return
    floats, known = got.astype(np.float64), exact.astype(np.float64)
    np.testing.assert_allclose(floats, known, rtol=tolerance)
    numbers = ~np.isnan(known)
    np.testing.assert_array_equal(np.signbit(floats)[numbers], np.signbit(known)[numbers])


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("name", cases(RIGHT))
def test_ops_that_are_right(name: str) -> None:
    right = RIGHT[name]
    assert right.op.element is not None
    x = inputs(right.op.element.dtype) if right.given is None else right.given
    values = reduced(right.op.image(), x)
    assert_equal(values, folded(right, x, tuple(range(WORKERS)), range(COUNT)), right.tolerance)
    world = Communicator(WORKERS)
    for algorithm in ("in-network", "ring"):
        result = world.allreduce(x, right.op, algorithm=algorithm)
        for share in result.shares:
            part = result.whole()[share.elements.start : share.elements.stop]
            assert_equal(part, folded(right, x, share.order, share.elements), right.tolerance)


@pytest.mark.parametrize("name", cases(n for n, right in RIGHT.items() if right.laws))
def test_check_tells_which_laws_hold(name: str) -> None:
    """With numbers, and an example where one does not; the op may be used either way."""
    right = RIGHT[name]
    checked = right.op.check()
    assert checked.ok and (checked.commutative, checked.associative) == right.laws
    for law in checked.laws:
        assert law.cases > 0 and bool(law.example) == bool(law.differ)


@pytest.mark.parametrize("element", ["float16", "bfloat16"])
@pytest.mark.parametrize("preset", ["wide", "per-hop", "per-add"])
def test_no_payload_of_a_nan_comes_through(element: str, preset: str) -> None:
    """Of an op that only hands on, for every number of payloads that an entry takes at once."""
    op = op_of(lambda a, b: a, element)
    patterns = np.arange(1 << 16, dtype=np.uint16).view(np.dtype(op.formats().element.dtype))
    zeros = np.zeros(1 << 16, np.uint16).view(patterns.dtype)
    canonical = np.where(np.isnan(patterns), patterns.dtype.type(np.nan), patterns).view(np.uint16)
    image = op.image(preset=preset)
    for workers in (1, 2, 4, 8):
        got = reduced(image, [patterns] + [zeros] * (workers - 1)).view(np.uint16)
        np.testing.assert_array_equal(got, canonical)


# ---- refused -------------------------------------------------------------------------------------
class Kind(enum.IntEnum):
    FIRST = 3


class Scaled:
    scale = 2.0

    def merge(self, a: Any, b: Any) -> Any:
        return a + b * self.scale


calls = 0
table = np.zeros(3, np.float32)
listed = [1.0, 2.0]
named = {"scale": 2.0}
PAIR = (1.0, 2)
NOTHING = 0


def counted(a: Any, b: Any) -> Any:
    global calls
    calls += 1
    return a + b


def outer() -> Any:
    n = 0

    def merge(a: Any, b: Any) -> Any:
        nonlocal n
        n += 1
        return a + b + n

    return merge


def forever(a: Any, b: Any) -> Any:
    while True:
        a += b


def sometimes(a: Any, b: Any) -> Any:
    if a > b:
        return a


def within(a: Any, b: Any) -> Any:
    with np.errstate(all="ignore"):
        return a / b


def finally_(a: Any, b: Any) -> Any:
    try:
        c = a / b
    finally:
        pass
    return c


def explained(a: Any, b: Any) -> Any:
    if a > b:
        raise ValueError(f"{a} is larger")
    return b


def listed_sum(a: Any, b: Any) -> Any:
    numbers = [x + 1 for x in (a, b)]
    return numbers[0]


def opened(a: Any, b: Any) -> Any:
    open("x")  # noqa: PTH123, SIM115
    return a + b


def inside(a: Any, b: Any) -> Any:
    def twice(x: Any) -> Any:
        return x + x

    return twice(a) + b


def summed(a: Any, b: Any) -> Any:
    a.x += b.x
    return a


def starred(x: Any, *more: Any) -> Any:
    return x


def even(n: Any) -> Any:
    return True if n == 0 else odd(n - 1)


def odd(n: Any) -> Any:
    return False if n == 0 else even(n - 1)


def exponent(a: Any, b: Any) -> Any:
    n = 2
    if a > 0:
        n = 3
    return a**n + b


def counted_exponent(a: Any, b: Any) -> Any:
    n = 2
    n += 1
    return a**n + b


def chosen(a: Any, b: Any) -> Any:
    f: Any = clip
    if a > 0:
        f = mixed_by
    return f(b)


def doubled(x: Any) -> Any:
    return x + x


def either(a: Any, b: Any) -> Any:
    return (doubled if a > b else clip)(b)


def module(a: Any, b: Any) -> Any:
    m: Any = math
    if a > 0:
        m = np
    return m.floor(a) + b


def again(a: Any, b: Any) -> Any:
    if a > b:
        raise
    return b


def chained(a: Any, b: Any) -> Any:
    if a > b:
        raise ValueError("larger") from KeyError("a")
    return b


def raised_text(a: Any, b: Any) -> Any:
    if a > b:
        raise "larger"  # type: ignore[misc]  # noqa: B016
    return b


def leaving(a: Any, b: Any) -> Any:
    if a > b:
        raise SystemExit(3)
    return b


def raising(a: Any, b: Any) -> Any:
    raise ValueError("always")


def starred_left(a: Any, b: Any) -> Any:
    x, *y = (a, b, 1.0)
    return x + y[0]


def too_few(a: Any, b: Any) -> Any:
    c, d, e = (a, b)  # type: ignore[misc]
    return c + d + e


def by_pattern(a: Any, b: Any) -> Any:
    match (a, b):
        case (x, y):
            return x + y
    return b


def by_class(a: Any, b: Any) -> Any:
    match a:
        case float():
            return b
    return a


def by_singleton(a: Any, b: Any) -> Any:
    match a > b:
        case True:
            return a
    return b


def so_often(a: Any, b: Any) -> Any:
    for _ in range(b):
        a += 1
    return a


def over_fields(a: Any, b: Any) -> Any:
    total = 0.0
    for x in a:
        total += x
    return total, b.n


def over_a_number(a: Any, b: Any) -> Any:
    for x in b:
        a += x
    return a


def number_or_pair(a: Any, b: Any) -> Any:
    c: Any = 1
    if a > 0:
        c = (1, 2)
    return c


two = {"accumulator": [("x", "float32"), ("n", "int32")], "lift": lambda x: (x, 1)}
REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "one field of two": (lambda: op_of(lambda a, b: a.x + b.x, "f32", **two),
                         "the accumulator is x:float32 n:int32: return 2 numbers"),
    "a pair of one": (lambda: op_of(lambda a, b: (a, b), "f32"), "float32: return a number$"),
    "fields without a lift": (
        lambda: op_of(lambda a, b: a, "f32", accumulator=two["accumulator"]), "write lift"),
    "a field that there is not": (lambda: op_of(lambda a, b: (a.x, a.m), "f32", **two), "has no m"),
    "a float for int32": (lambda: op_of(lambda a, b: a / b, "int32"), r"use // or int\(x\)"),
    "nothing on some way": (lambda: op_of(sometimes, "f32"), "a number on every one"),
    "a list comprehension": (lambda: op_of(listed_sum, "f32"),
                             "has a comprehension: write a for loop|uses a list"),
    "a generator expression": (lambda: op_of(lambda a, b: sum(x for x in (a, b)), "f32"),
                               "has a generator: write a for loop"),
    "sum of a tuple": (lambda: op_of(lambda a, b: sum((a, b)), "f32"), r"uses sum .*write a \+ b"),
    "strings joined": (lambda: op_of(lambda a, b: str(a) + str(b), "f32"), "uses str"),
    "a text of numbers": (lambda: op_of(explained, "f32"), "text of raise is a constant"),
    "with": (lambda: op_of(within, "f32"), "uses with: leave it out"),
    "try and finally": (lambda: op_of(finally_, "f32"), "uses try: test with if before"),
    "is": (lambda: op_of(lambda a, b: a if a is b else b, "f32"), "write == or !="),
    "in": (lambda: op_of(lambda a, b: a if b in (1.0, 2.0) else b, "f32"), "uses in: write x =="),
    "a function inside": (lambda: op_of(inside, "f32"), "defines twice inside: define it outside"),
    "a lambda inside": (lambda: op_of(lambda a, b: (lambda x: x + a)(b), "f32"), "has a lambda"),
    "global counted": (lambda: op_of(counted, "f32"), "changes calls, .* into the accumulator"),
    "nonlocal counted": (lambda: op_of(outer(), "f32"), "changes n, .* into the accumulator"),
    "an array of numpy's": (lambda: op_of(lambda a, b: a + table[0], "f32"), "uses table"),
    "a list outside": (lambda: op_of(lambda a, b: a + listed[0], "f32"), "uses listed"),
    "a dict outside": (lambda: op_of(lambda a, b: a + named["scale"], "f32"), "uses named"),
    "an enum": (lambda: op_of(lambda a, b: a + Kind.FIRST, "f32"), "uses Kind"),
    "random": (lambda: op_of(lambda a, b: a + random.random(), "f32"), "ctx.seed and ctx.element"),
    "time": (lambda: op_of(lambda a, b: a + time.time(), "f32"), "uses time.time"),
    "open": (lambda: op_of(opened, "f32"), "uses open .*leave it out"),
    "np.where": (lambda: op_of(lambda a, b: np.where(a > b, a, b), "f32"), "if condition else"),
    "np.add": (lambda: op_of(lambda a, b: np.add(a, b), "f32"), "uses numpy.add"),
    "an attribute set": (lambda: op_of(summed, "f32", **two), "changes an object"),
    "a loop that cannot end": (lambda: op_of(forever, "f32"), "never returns: end its loop"),
    "helpers that call each other": (
        lambda: op_of(lambda a, b: a if even(b) else b, "int32"), "even calls itself"),
    "a helper with a star": (lambda: op_of(lambda a, b: starred(a, b), "f32"), "write them out"),
    "a helper called short": (lambda: op_of(lambda a, b: clip() + a, "f32"),  # type: ignore[call-arg]
                              r"clip\(x.*missing a required argument: 'x': pass"),
    "an index of a mixed tuple": (lambda: op_of(lambda a, b: a + PAIR[int(b)], "f32"),
                                  "numbers of several types: make them of one"),
    "exp of float64": (lambda: op_of(lambda a, b: a + b, "f32", None,
                                     lambda a, ctx: math.exp(a / ctx.contributors)),
                       "exp is there for float32 only: convert with np.float32"),
    "ctx has no size": (lambda: op_of(lambda a, b, ctx: a * ctx.size, "f32"), "ctx has no size"),
    "a third number": (lambda: op_of(lambda a, b, c: a + b + c, "f32"), "for float32, ctx"),
    "an exponent of two values": (lambda: op_of(exponent, "f32"), "is for whole constants"),
    "an exponent that changes": (lambda: op_of(counted_exponent, "f32"), "is for whole constants"),
    "a name of two functions": (lambda: op_of(chosen, "f32"), "f is set to several functions"),
    "a name of two modules": (lambda: op_of(module, "f32"), "m is set to several functions"),
    "one of two functions": (lambda: op_of(either, "f32"),
                             "(doubled|clip) on one way and (doubled|clip) on another: call"),
    "raise alone": (lambda: op_of(again, "f32"), "raises nothing: name an exception"),
    "raise from": (lambda: op_of(chained, "f32"), "from another: leave out from"),
    "raise of a text": (lambda: op_of(raised_text, "f32"), "raises a text: raise an exception"),
    "raise SystemExit": (lambda: op_of(leaving, "f32"), "raises SystemExit, which is no Exception"),
    "nothing but raise": (lambda: op_of(raising, "f32"), "or return a number where it does not"),
    "a star on the left": (lambda: op_of(starred_left, "f32"), r"unpacks with \*: give each"),
    "three names, two values": (lambda: op_of(too_few, "f32"),
                                "unpacks 2 numbers into 3 names: use as many"),
    "case of a tuple": (lambda: op_of(by_pattern, "f32"), "a case is no number: match numbers"),
    "case of a class": (lambda: op_of(by_class, "f32"), "a case is no number: match numbers"),
    "case True": (lambda: op_of(by_singleton, "f32"), "as case True does: write == or !="),
    "range of a float": (lambda: op_of(so_often, "f32"), r"write range\(int\(x\)\)"),
    "a loop over fields": (lambda: op_of(over_fields, "f32", **two),
                           "loops over fields: loop over a range, or over a tuple"),
    "a loop over a number": (lambda: op_of(over_a_number, "f32"), "loops over float32: loop"),
    "a number or a pair": (lambda: op_of(number_or_pair, "f32"),
                           r"c is (1|a tuple) on one way and (1|a tuple) on another: give it one"),
    "an index that is a bool": (lambda: op_of(lambda a, b: (a, b)[a > b], "f32"),
                                r"an index is bool: write int\(x\)"),
    "an index that is a float": (lambda: op_of(lambda a, b: (a, b)[b], "f32"),
                                 r"an index is float32: write int\(x\)"),
    "an index of a number": (lambda: op_of(lambda a, b: a[0] + b, "f32"),
                             "into float32, which is one number: leave it out"),
    "a number called": (lambda: op_of(lambda a, b: a(b), "f32"), r"calls float32, .*: use \*"),
    "fields added": (lambda: op_of(lambda a, b: a + b, "f32", **two),
                     r"\+ is not defined for fields, fields: write it for each number"),
    "None compared": (lambda: op_of(lambda a, b: a if a == None else b, "f32"),  # noqa: E711
                      "cannot do this with float32, None: use numbers"),
    "a text compared": (lambda: op_of(lambda a, b: a if a == "x" else b, "f32"),
                        "cannot do this with float32, a text: use numbers"),
    "a text converted": (lambda: op_of(lambda a, b: a + float("inf"), "f32"),
                         "float is called with a text: pass what it takes, numbers"),
    "max of one": (lambda: op_of(lambda a, b: max(a), "f32"), "two numbers or more$"),
    "round to places": (lambda: op_of(lambda a, b: round(a, 2), "f32"), "takes, one number$"),
    "arguments by **": (lambda: op_of(lambda a, b: clip(**{"x": a}), "f32"),
                        r"passes arguments by \*\*: write them out"),
    "a method of a class": (lambda: op_of(Scaled.merge, "f32"), "float32 has no scale"),
}  # fmt: skip


@pytest.mark.parametrize("name", cases(REFUSED))
def test_ops_that_are_refused(name: str) -> None:
    """In a line, with the step, the place and what to write."""
    make, message = REFUSED[name]
    with pytest.raises(OpError, match=message) as error:
        make().image()
    text = str(error.value)
    assert "\n" not in text and ": " in text
    place = rf"^(merge|lift|finish) of mine \({FILE}\): "
    assert re.match(place, text) or name == "fields without a lift"


DEFINED: dict[str, tuple[Callable[[], Any], str]] = {
    "a bound method": (lambda: op_of(Scaled().merge, "f32"), "is method: use a Python function"),
    "a class": (lambda: op_of(Scaled, "f32"), "is type: use"),
    "a partial": (lambda: op_of(partial(mixed_by, z=1), "f32"), "is partial: use"),
    "a ufunc": (lambda: op_of(np.maximum, "f32"), "is ufunc: use"),
    "a default": (lambda: op_of(lambda a, b, ctx=3: a, "f32"), r"write merge\(a, b\)"),
    "an element": (lambda: op_of(forever, "flaot32"), "flaot32 is not supported: use one of"),
    "uint32": (lambda: op_of(forever, "uint32"), "uint32 is not supported: use one of float16"),
    "a preset": (lambda: op_of(forever, "f32", preset="wdie"), "'wdie' is unknown: use one of"),
    "a name with a space": (lambda: op_of(forever, "f32", name="my op"), "'my op' .*pass name="),
    "a long name": (lambda: op_of(forever, "f32", name="x" * 33), "pass name=, 1..32 letters"),
    "no fields": (lambda: op_of(forever, "f32", accumulator=[]), "use one or more"),
    "a field twice": (lambda: op_of(forever, "f32", accumulator=[("x", "f32")] * 2), "different"),
    "a field named for": (lambda: op_of(forever, "f32", accumulator=[("for", "f32")]),
                          "field 'for': is a word of Python"),
    "a field named int, in C": (
        lambda: c("float merge(float a, float b) { return a; }",
                  accumulator=[("int", "f32"), ("y", "f32")]).image(),
        "field 'int' is a word of C: use another name"),
    "C: double for float": (
        lambda: c("double merge(double a, double b) { return a + b; }").image(),
        r"mine\.c:1\): has another type: write float merge\(float a, float b\)"),
    "C: division by a constant 0": (
        lambda: c("int32_t merge(int32_t a, int32_t b) { return a / 0; }", "int32").image(),
        r"mine\.c:1\): division by zero is undefined"),
    "C: a function that is nowhere": (
        lambda: c("float h(float);\nfloat merge(float a, float b) { return h(a) + b; }").image(),
        r"mine\.c:2\): it uses h, which a core does not have"),
    "C: a template": (
        lambda: c("template <class T> T merge(T a, T b) { return a + b; }").image(),
        r"mine\.c:1\): unknown type name 'template'"),
}  # fmt: skip


@pytest.mark.parametrize("name", cases(DEFINED))
def test_definitions_that_are_refused(name: str) -> None:
    make, message = DEFINED[name]
    with pytest.raises((OpError, nicemu.ArgumentError), match=message) as error:
        make()
    assert "\n" not in str(error.value)


# ---- ended ---------------------------------------------------------------------------------------
def halving(a: Any, b: Any) -> Any:
    while a != 0:
        a = a / 2 + b
    return a


def looked_up(a: Any, b: Any) -> Any:
    return a + COEFFICIENTS[int(b)]


def two_lines(a: Any, b: Any) -> Any:
    if b > 3:
        raise ValueError("too\nlarge\u2028")
    return a + b


def by_nothing(a: Any, b: Any) -> Any:
    for i in range(0, 10, NOTHING):
        a += i
    return a + b


def share(n: Any) -> Any:
    return int(7 / (n - 5))


#: as text, for pytest writes asserts anew
ASSERTING = """
def checked_sum(a, b):
    assert b < 3, "too large"
    return a + b
"""


def asserting() -> ReduceOp:
    found: dict[str, Any] = {}
    exec(compile(ASSERTING, "asserting.py", "exec"), found)
    return op_of(found["checked_sum"], "float32")


ENDED: dict[str, tuple[ReduceOp, str]] = {
    "a text of several lines": (
        op_of(two_lines, "float32"),
        r"raised ValueError: too\\nlarge\\u2028 \(test_authors\.py:\d+\)"),
    "range by 0": (
        op_of(by_nothing, "float32"), r"raised ValueError: range\(\) arg 3 must not be zero"),
    "// by 0, of bool": (
        op_of(lambda a, b: a + b, "float32", lambda x: (x > 0) // (x < 0), lambda a: 1.0,
              accumulator="int32"), "raised ZeroDivisionError: division by zero in lift"),
    "% by a constant 0, in finish": (
        op_of(lambda a, b: a + b, "float32", lambda x: int(x), lambda a: 1.0 * (a % NOTHING),
              accumulator="int64"), "raised ZeroDivisionError: division by zero in finish"),
    "/ by 0, in a helper's helper": (
        op_of(lambda a, b: a + share(share(int(b))), "float32"),
        "raised ZeroDivisionError: division by zero in merge"),
    "a loop that does not end": (op_of(halving, "float32"), "out of budget .*1000000 instr"),
    "range(10 ** 12)": (
        op_of(lambda a, b: a + endless_sum(b), "float32"), "out of budget"),
    "an index outside": (op_of(looked_up, "float32"), "raised IndexError"),
    "// by 0": (
        op_of(lambda a, b: a // (b - 5), "float32", lambda x: int(x), lambda a: 1.0,
              accumulator="int32"),
        r"raised ZeroDivisionError: division by zero in merge \(test_authors\.py:\d+\)"),
    "C: / by 0": (
        c("float lift(float x, context_t ctx) { return 3 / (ctx.rank - 7); }\n"
          "float merge(float a, float b) { return a; }"),
        r"raised division by zero \(mine\.c:1\)"),
    "assert": (asserting(), r"raised AssertionError: too large \(asserting\.py:3\)"),
    "C: a loop that does not end": (
        c("float merge(float a, float b) { while (a == a) b += 1; return b; }"), "out of budget"),
    "C: an index outside": (
        c("float merge(float a, float b) { float t[2] = {a, b}; return t[(int)b]; }"),
        r"raised index outside of an array \(mine\.c:1\)"),
    "C: a wild pointer": (
        c("float merge(float a, float b) { return a + *(float *)(int64_t)(16 * b); }"),
        r"load access fault at pc \w+, address 0x\w+"),
}  # fmt: skip


def endless_sum(b: Any) -> Any:
    total = b
    for _ in range(10**12):
        total = total * 0.5 + b
    return total


@pytest.mark.parametrize("name", cases(ENDED))
def test_ops_that_end_what_runs_them(name: str) -> None:
    op, message = ENDED[name]
    x = np.full((WORKERS, 20), 5, np.float32)
    nic = Nic(threads=1)
    nic.load(op.image())
    with pytest.raises((nicemu.FaultError, nicemu.StatusError), match=message) as error:
        nic.reduce(x)
    assert "\n" not in str(error.value)
    with pytest.raises(nicemu.CollectiveError, match=message):
        Communicator(WORKERS).allreduce(x, op)


# ---- in assembly ---------------------------------------------------------------------------------
SUM = """
    first: load:
        ld      a1, 0(a1)
    1:  vsetvli t0, a2, e32, m8, ta, ma
        vle32.v v8, (a1)
        j       3f
    acc: merge:
        ld      a1, 0(a1)
    2:  vsetvli t0, a2, e32, m8, ta, ma
        vle32.v v8, (a1)
        vle32.v v16, (a0)
        vadd.vv v8, v16, v8             # the sum
        vse32.v v8, (a0)
        sub     a2, a2, t0
        sh2add  a0, t0, a0
        sh2add  a1, t0, a1
        bnez    a2, 2b
        li      a0, 0
        ret
    emit: finish:
        mv      t1, a0
        ld      a0, 0(a1)
        mv      a1, t1
        j       1b
    3:  vse32.v v8, (a0)
        sub     a2, a2, t0
        sh2add  a0, t0, a0
        sh2add  a1, t0, a1
        bnez    a2, 1b
        li      a0, 0
        ret
"""


def asm(*instead: str) -> ReduceOp:
    """SUM with other instructions in place of the addition."""
    text = SUM.replace("vadd.vv v8, v16, v8", "\n".join(instead))
    return reduce_op.asm(text, element="int32", name="mine")


@needs_clang
@pytest.mark.parametrize(
    ("instead", "model"),
    [
        ("vadd.vv v8, v16, v8", np.add),
        ("vsub.vv v8, v16, v8", np.subtract),
        ("vmin.vv v8, v16, v8", np.minimum),
    ],
)
def test_assembly_that_is_right(instead: str, model: Callable[[Any, Any], Any]) -> None:
    right = Right(asm(instead), model)
    x = inputs(np.int32)
    assert_equal(reduced(right.op.image(), x), folded(right, x, tuple(range(8)), range(COUNT)), 0)
    result = Communicator(WORKERS).allreduce(x, right.op)
    (share,) = result.shares
    assert_equal(result.whole(), folded(right, x, share.order, range(COUNT)), 0)


ASSEMBLY: dict[str, tuple[tuple[str, ...], str]] = {
    "a loop": (("9: j 9b",), "out of budget"),
    "ecall": (("ecall",), "environment call"),
    "a breakpoint": (("ebreak",), "breakpoint"),
    "a null pointer": (("lw t3, 0(zero)",), "load access fault .*address 0x0"),
    "code is not writable": (("auipc t3, 0", "sw zero, (t3)"), "store/AMO access fault"),
    "an atomic off its size": (("addi t3, a0, 1", "amoadd.w t4, zero, (t3)"), "misaligned"),
    "a register group off its size": (("vadd.vv v9, v16, v8",), "illegal instruction"),
    "the cycle counter": (("rdcycle t3",), "illegal instruction"),
    "a machine's own register": (("csrw mstatus, zero",), "illegal instruction"),
    "the stack's end": (("li t3, -20000", "add t3, sp, t3", "sd t3, (t3)"), "store/AMO access"),
    "a status": (("li a0, 7", "ret"), "returned status 7"),
}


@needs_clang
@pytest.mark.parametrize("name", ASSEMBLY)
def test_assembly_that_ends_what_runs_it(name: str) -> None:
    instead, message = ASSEMBLY[name]
    with pytest.raises((nicemu.FaultError, nicemu.StatusError), match=message):
        reduced(asm(*instead).image(), inputs(np.int32))


@needs_clang
@pytest.mark.parametrize(
    "instead",
    [
        ("csrr t3, vlenb", "vadd.vx v8, v8, t3"),
        ("addi s1, s1, 1", "vadd.vx v8, v8, s1"),
        ("vadd.vv v8, v16, v8", "sh2add t3, a2, a0", "sw zero, (t3)"),
    ],
    ids=["the vectors' length", "what the last call left", "behind the accumulator"],
)
def test_check_finds_what_no_run_shows(instead: tuple[str, ...]) -> None:
    assert not asm(*instead).check().ok
