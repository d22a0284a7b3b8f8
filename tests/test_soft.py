"""Floating point in integers: on cores without F the bits are those of cores with F and D.

Held against the cores' own instructions, which test_fp_scalar and test_vector_fp hold against MPFR.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import nicemu
from nicemu import Nic, OpError, ReduceOp
from nicemu.compiler.llvm import undefined
from nicemu.compiler.soft import SYMBOLS, library
from nicemu.compiler.target import target_of
from nicemu.dtypes import format_of
from nicemu.ops.samples import edges


@pytest.fixture(autouse=True, scope="module")
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NICEMU_CACHE_DIR", str(tmp_path_factory.mktemp("images")))
        yield


def operands(element: str, ranks: int) -> list[np.ndarray]:
    """All groups of ends of the format and of some numbers, exponents near each other, patterns."""
    row, rng = format_of(element), np.random.default_rng(11)
    with np.errstate(all="ignore"):
        some = np.array([0, 1, -1, 1.5, 3, 0.5, 2.5, -2.5, 1 / 3, 1e30, 7e-46], row.dtype)
        ends = np.concatenate([edges(row), some, some * np.finfo(row.dtype).smallest_subnormal])
    groups = [x.ravel() for x in np.meshgrid(*[ends] * min(ranks, 2))]
    groups += [rng.permutation(groups[0])] * (ranks - len(groups))
    patterns = rng.integers(0, 1 << 8 * row.size, (ranks, 1500), np.uint64)
    near = rng.standard_normal((ranks, 1500)).astype(row.dtype)
    random = patterns.astype(row.bits_dtype).view(row.dtype)
    return [np.concatenate(parts) for parts in zip(groups, random, near, strict=True)]


def op_of(element: str, merge: Callable[..., Any], lift: Callable[..., Any] | None = None,
          result: str | None = None) -> ReduceOp:  # fmt: skip
    op = nicemu.reduce_op(name="soft", element=element, result=result)(merge)
    if lift is not None:
        op.lift(lift)
    return op


def reduced(op: ReduceOp, streams: list[np.ndarray], machine: str) -> bytes:
    nic = Nic(machine, threads=1)
    nic.load(op)
    return nic.reduce(streams, payload=128).values.tobytes()


BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "add": lambda a, b: a + b, "sub": lambda a, b: a - b, "mul": lambda a, b: a * b,
    "div": lambda a, b: a / b, "fmax": lambda a, b: np.fmax(a, b),
    "fmin": lambda a, b: np.fmin(a, b), "maximum": lambda a, b: np.maximum(a, b),
    "minimum": lambda a, b: np.minimum(a, b),
    "less": lambda a, b: 1.0 if a < b else 2.0, "at most": lambda a, b: 1.0 if a <= b else 2.0,
    "more": lambda a, b: 1.0 if a > b else 2.0, "at least": lambda a, b: 1.0 if a >= b else 2.0,
    "equal": lambda a, b: 1.0 if a == b else 2.0, "other": lambda a, b: 1.0 if a != b else 2.0,
    "nearest first": lambda a, b: a if abs(a) < abs(b) else -b,
}  # fmt: skip
UNARY: dict[str, Callable[[Any], Any]] = {
    "sqrt": lambda x: math.sqrt(x), "floor": lambda x: math.floor(x), "ceil": lambda x: np.ceil(x),
    "trunc": lambda x: math.trunc(x), "rint": lambda x: np.rint(x), "int": lambda x: int(x) + 1,
    "int32": lambda x: np.int32(x), "uint32": lambda x: np.uint32(x),
    "uint64": lambda x: np.uint64(x), "exact": lambda x: np.float64(x) * 0.1,
    "isfinite": lambda x: 1.0 if math.isfinite(x) else 0.0, "sign": lambda x: np.sign(x),
}  # fmt: skip


@pytest.mark.parametrize("element", ["float32", "float64"])
@pytest.mark.parametrize("name", BINARY)
def test_of_two_numbers(name: str, element: str) -> None:
    op, x = op_of(element, BINARY[name]), operands(element, 2)
    assert reduced(op, x, "pspin") == reduced(op, x, "card")


@pytest.mark.parametrize("element", ["float32", "float64"])
@pytest.mark.parametrize("name", UNARY)
def test_of_one_number(name: str, element: str) -> None:
    op, x = op_of(element, lambda a, b: a, UNARY[name]), operands(element, 1)
    assert reduced(op, x, "pspin") == reduced(op, x, "card")


@pytest.mark.parametrize("result", ["float16", "bfloat16", "float32", "float8_e4m3fn"])
def test_rounding_to_other_formats(result: str) -> None:
    """A float64 is rounded once."""
    op, x = op_of("float64", lambda a, b: a, None, result), operands("float64", 1)
    assert reduced(op, x, "pspin") == reduced(op, x, "card") == reduced(op, x, "cv32e40p")


@pytest.mark.parametrize("name", ["exp", "exp2", "log", "log2", "tanh"])
def test_functions_of_fused_products(name: str) -> None:
    function = getattr(np, name)
    op, x = op_of("float32", lambda a, b: a, lambda x: function(x)), operands("float32", 1)
    assert reduced(op, x, "pspin") == reduced(op, x, "card")


@pytest.mark.parametrize("element", ["int32", "int64"])
def test_of_integers(element: str) -> None:
    op = nicemu.reduce_op(name="half", element=element, result="float64")(lambda a, b: a)
    op.finish(lambda a: a / 3)
    ends = np.iinfo(element)
    rng = np.random.default_rng(2)
    x = np.concatenate([rng.integers(ends.min, ends.max, 2000), [0, 1, -1, ends.min, ends.max]])
    single = nicemu.reduce_op(name="single", element=element, result="float32")(lambda a, b: a)
    single.finish(lambda a: np.float32(a))
    for row in (op, single):
        streams = [x.astype(element)]
        assert reduced(row, streams, "pspin") == reduced(row, streams, "card")


def test_what_is_left_out_is_refused() -> None:
    pytest.importorskip("ziglang", reason="pip install 'nicemu[c]'")
    op = nicemu.reduce_op.c("double merge(double a, double b) { return fma(a, b, a); }",
                            element="float64", name="fused")  # fmt: skip
    with pytest.raises(
        OpError, match=r"^fused: it uses fma of float64, and cores of pspin have no d"
    ):
        op.image(machine="pspin")
    assert op.image().code


def test_each_symbol_stands_alone() -> None:
    """Its code calls nothing, and it is integers throughout."""
    from nicemu.compiler.llvm import emit

    pspin = target_of("pspin")
    for symbol in SYMBOLS:
        elf = emit(library([symbol]), [symbol], symbol, pspin)
        assert undefined(elf) == [], symbol
