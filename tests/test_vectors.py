"""Loops over vectors: as good as those of LLVM's vectoriser, as wide as the registers allow."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nicemu
from nicemu.compiler import compile as compiler
from nicemu.compiler.compile import _Compilation
from nicemu.compiler.target import EVERY
from nicemu.ops.builtin import builtin
from nicemu.ops.op import ReduceOp, _AssemblySource


def soft() -> ReduceOp:
    """More values at a time than registers."""

    @nicemu.reduce_op(element="float32")
    def op(a: Any, b: Any) -> Any:
        top = max(a, b)
        return top + math.log(math.exp(a - top) + math.exp(b - top))

    return op


def moments() -> ReduceOp:
    """Fields, constants and divisions of floats."""

    @nicemu.reduce_op(
        element="float32", accumulator=(("n", "float32"), ("m", "float32"), ("s", "float32"))
    )
    def op(a: Any, b: Any) -> Any:
        n, d = a.n + b.n, b.m - a.m
        return n, a.m + d * (b.n / n), a.s + b.s + d * d * (a.n * b.n / n)

    op.lift(lambda x: (1.0, x, 0.0))
    op.finish(lambda a: a.s / a.n)
    return op


def positions() -> ReduceOp:
    """The context: what is the same for all items, and what is not."""

    @nicemu.reduce_op(element="float32")
    def op(a: Any, b: Any) -> Any:
        return a + b

    op.lift(lambda x, ctx: x * np.float32(ctx.element) + np.float32(ctx.rank))
    return op


def integers() -> ReduceOp:
    """Divisions by constants, and absolute values."""

    @nicemu.reduce_op(element="int32")
    def op(a: Any, b: Any) -> Any:
        return a // 3 + abs(b)

    return op


def ratio() -> ReduceOp:
    """A division by items."""

    @nicemu.reduce_op(element="int32")
    def op(a: Any, b: Any) -> Any:
        return a // (b | 1)

    return op


def refusing() -> ReduceOp:
    """An exception."""

    @nicemu.reduce_op(element="float32")
    def op(a: Any, b: Any) -> Any:
        if a > 1000.0:
            raise ValueError("large")
        return a + b

    return op


def compilation(op: ReduceOp, element: str, preset: str = "wide") -> _Compilation:
    assert not isinstance(op._source, _AssemblySource)
    return _Compilation(op.name, op._source, op.formats(element, preset), EVERY)


OURS = [
    ("soft", soft, "float32"),
    ("moments", moments, "float32"),
    ("positions", positions, "float32"),
    ("integers", integers, "int32"),
    *(
        (f"{op}-{element}", lambda op=op, element=element: builtin(op, element), element)
        for op, element in (
            ("sum", "bfloat16"), ("l2norm", "float16"), ("avg", "bfloat16"), ("argmax", "int8"),
            ("maximum", "float16"), ("sat_sum", "int8"), ("sum", "float8_e4m3fn"),
        )
    ),
]  # fmt: skip


@pytest.mark.parametrize(("make", "element"), [row[1:] for row in OURS], ids=[x[0] for x in OURS])
def test_a_core_executes_no_more_than_for_loops_of_llvms(
    make: Any, element: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    calls = {}
    for whose in ("ours", "llvm"):
        if whose == "llvm":
            monkeypatch.setattr(compiler, "vector_loop", lambda *_: None)
        else:
            one = compilation(make(), element)
            assert all(one.loop(symbol, width) for symbol, width in one.kernels.widths.items())
        monkeypatch.setenv("NICEMU_CACHE_DIR", str(tmp_path / whose))
        op = make()
        monkeypatch.setattr(op, "_images", {})
        calls[whose] = op.cost(element=element).entries
    assert calls["ours"].keys() == calls["llvm"].keys()
    for entry, ours in calls["ours"].items():
        assert ours.instructions <= calls["llvm"][entry].instructions, entry


@pytest.mark.parametrize(("make", "element"), [(ratio, "int32"), (refusing, "float32")])
def test_a_merge_that_only_llvm_knows_is_left_to_it(make: Any, element: str) -> None:
    """One divides, maybe by 0 beyond the end of the items; one has a status."""
    one = compilation(make(), element)
    assert one.kernels.widths["acc"]
    assert one.loop("acc", one.kernels.widths["acc"]) is None
    streams = [np.arange(1, 300).astype(element), np.arange(2, 301).astype(element)]
    nic = nicemu.Nic()
    nic.load(make().image())
    acc = nic.handle("acc", [streams[1]], accumulator=streams[0]).accumulator
    np.testing.assert_array_equal(acc, make().reference(streams))


TIGHT = [(soft(), "float32"), (builtin("sum", "int32"), "int32"), (builtin("max", "int8"), "int8")]


@pytest.mark.parametrize(("op", "element"), TIGHT)
def test_vectors_are_as_wide_as_the_registers_allow(op: ReduceOp, element: str) -> None:
    one = compilation(op, element)
    widths, codes = one.fitted()
    for symbol, width in widths.items():
        most = one.kernels.widths[symbol]
        assert width and most
        function = one.compiled({symbol: width})[symbol]
        assert function.code == codes[symbol]  # whatever is compiled with it
        assert not function.spills or width == one.narrowest(symbol)
        assert width == most or one.compiled({symbol: 2 * width})[symbol].spills


@pytest.mark.parametrize("registers", [1, 1000])
@pytest.mark.parametrize(("op", "element"), TIGHT)
def test_where_the_search_for_a_width_begins_changes_no_code(
    op: ReduceOp, element: str, registers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = compilation(op, element).fitted()
    monkeypatch.setattr(compiler, "_REGISTERS", registers)
    assert compilation(op, element).fitted() == usual


def test_lines_of_source_are_those_of_functions_with_halved_vectors_too() -> None:
    """Of the loop of acc, whose vectors are an eighth of the widest."""
    op = soft()
    one = compilation(op, "float32")
    widths, _ = one.fitted()
    assert 8 * (widths["acc"] or 0) == one.kernels.widths["acc"]
    image = op.image()
    lines = op._source.lines(op.formats(), image.code, EVERY)
    begin, end = image.entries["acc"], image.entries["emit"]
    said = [line for at, line in lines.items() if begin <= at < end]
    assert any("math.log" in line for line in said)
    assert any("max(a, b)" in line for line in said)
