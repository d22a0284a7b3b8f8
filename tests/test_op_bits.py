"""Entries of the built-in ops: cores, host and exact reference give the same bits (op_bits.py)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nicemu
from nicemu.compiler.host import canonical
from nicemu.device.image import PRESETS
from nicemu.device.nic import Stream
from nicemu.dtypes import FORMATS, Format, format_of
from nicemu.errors import NicemuError
from nicemu.ops.builtin import builtin, kernel, premul_sum
from tests import cost_table, op_bits
from tests.op_bits import OPS, VLENS, Case, Hart

COVERING = op_bits.covering()


def test_the_covering_set_has_everything_in_it() -> None:
    cases = [case for case, _ in COVERING]
    harts = [hart for _, both in COVERING for hart in both]
    assert {case.op for case in cases} == set(OPS)
    assert {case.element for case in cases} == set(FORMATS)
    assert {(case.element.size, case.preset) for case in cases if case.element.kind == "float"} > {
        (size, preset) for size in (2,) for preset in PRESETS
    }
    assert {hart.vlen for hart in harts} == set(VLENS)
    assert set(harts) == set(op_bits.HARTS)


@pytest.mark.parametrize(("case", "harts"), COVERING, ids=lambda x: str(x) if x else "")
def test_same_bits(case: Case, harts: list[Hart]) -> None:
    compared = 0
    for count, _, text in op_bits.differences(case, harts, most_turns=1):
        assert not text, text
        compared += count
    assert compared > 5000


@pytest.mark.parametrize(
    ("op", "row"),
    [(op, row) for op in OPS for row in FORMATS if row not in op_bits.elements(op)],
    ids=lambda x: getattr(x, "alias", x),
)
def test_elements_that_an_op_is_not_for_are_refused(op: str, row: Format) -> None:
    with pytest.raises(NicemuError, match=op) as error:
        Case(op, row, "wide").made_by.image(row, "wide")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("element", ["float16", "bfloat16", "float32"])
def test_logsumexp_is_within_its_errors(element: str) -> None:
    """Of exp and log below 1.3 ulp each; rounded to the element's format at the end."""
    rng = np.random.default_rng(3)
    row = format_of(element)
    streams = [(20 * rng.normal(size=4000)).astype(np.float32).astype(row.dtype) for _ in range(7)]
    nic = nicemu.Nic(threads=1)
    nic.load(kernel("logsumexp", element))
    got = nic.reduce(streams).values.astype(np.float64)
    exact = np.logaddexp.reduce([x.astype(np.float64) for x in streams])
    step = 2.0 ** -(row.fraction_bits + 1) * np.maximum(np.abs(exact), 2.0**-14)
    few = 20 * 2.0**-24 * np.maximum(np.abs(exact), 1)
    assert np.all(np.abs(got - exact) <= step + few)


def test_the_guide_s_table_of_costs() -> None:
    """Every op has its row, with what a core counts now."""
    guide = (Path(nicemu.__file__).parent / "guide" / "numerics.md").read_text()
    section = guide.split("## What the ops cost")[1].split("## ")[0]
    shown = [line for line in section.splitlines() if line.startswith("|")]
    assert shown == [*cost_table.head(), *map(cost_table.row, cost_table.OPS)]


def test_a_stochastic_sum_is_right_on_average() -> None:
    """1 + 2^-10 in bfloat16, whose neighbours are 1 and 1 + 2^-7: up once in 8."""
    nic = nicemu.Nic(threads=1)
    nic.load(kernel("stochastic_sum", "bfloat16"))
    count = 1 << 16
    one, little = (np.full(count, x).astype(nicemu.bfloat16) for x in (1, 2.0**-10))
    seen = set()
    for seed in (1, 2**40):
        context = nicemu.Context(seed=seed)
        got = nic.reduce([one, little], context=context, payload=1000).values
        up = got != one
        assert np.all(got[up].astype(np.float32) == 1 + 2.0**-7)
        assert abs(up.mean() - 1 / 8) < 5 * (7 / 64 / count) ** 0.5
        seen.add(got.tobytes())
    assert len(seen) == 2


def test_payloads_of_nans_never_come_out() -> None:
    """From a single worker, through emit and finish, of all 65,536 patterns."""
    for row in (row for row in FORMATS if row.kind == "float" and row.size == 2):
        values = op_bits.patterns(row)
        nic = nicemu.Nic(threads=1)
        for op in ("sum", "max", "maximum", "argmax"):
            image = kernel(op, row, "per-add")
            nic.load(image)
            for leave in ("finish", "emit"):
                item = getattr(image.formats, nicemu.device.image.LEAVING[leave])
                out = nic.reduce([Stream(values)], leave=leave).values
                assert out.tobytes() == canonical(out, item).tobytes(), (op, row.name, leave)


# ---- the table of the guide ----------------------------------------------------------------------
_GUIDE = (Path(nicemu.__file__).parent / "guide" / "numerics.md").read_text()
_ROWS = [
    [cell.strip() for cell in line.split("|")[1:-1]]
    for line in _GUIDE.split("## Ops")[1].split("## ")[0].splitlines()
    if line.startswith("| `")
]
by_row = pytest.mark.parametrize("row", _ROWS, ids=lambda row: row[0].strip("`"))


def reduced(op: str, element: str, values: Sequence[float], order: Sequence[int] = ()) -> Any:
    """The result of one element from each worker; order: of the ranks, as merged."""
    made = premul_sum(0.5) if op == "premul_sum" else builtin(op, element)
    nic = nicemu.Nic(threads=1)
    nic.load(made.image(element, "wide"))
    dtype = format_of(element).dtype
    ranks = order or range(len(values))
    return nic.reduce([Stream(np.array([values[r]]).astype(dtype), rank=r) for r in ranks]).values


def shown(result: np.ndarray) -> str:
    """As the guide has it: of a record, the value alone."""
    value = result["value"][0] if result.dtype.names else result[0]
    return f"{float(value):.8g}" if result.dtype.kind in "iu" else str(float(f"{value:.8g}"))


def test_the_guide_has_a_row_of_each_op() -> None:
    assert sorted(row[0].strip("`") for row in _ROWS) == sorted(OPS)


@by_row
def test_values_of_the_guide(row: list[str]) -> None:
    op = row[0].strip("`")
    name, given, result = re.fullmatch(r"(\w+) (.*) = (.*)", row[7]).groups()  # type: ignore[union-attr]
    got = reduced(op, name, [float(x) for x in given.split(",")])
    record = [float(x) for x in result.strip("()").split(",")]
    assert [float(x) for x in np.atleast_1d(got[0].tolist()).ravel()] == pytest.approx(record, 1e-7)
    floats = "float" in row[2]
    element, greatest = ("float16", 65504.0) if floats else ("int8", 127.0)
    values = [reduced(op, element, [greatest, greatest])]
    assert [float(row[4])] == [float(shown(x)) for x in values]
    if not floats:
        assert row[5] == row[6] == ""
        return
    for pair in ([np.nan, 1.0], [1.0, np.nan]):
        assert shown(reduced(op, element, pair)) == row[5]
    zeros = [reduced(op, element, [-0.0])]
    zeros += [reduced(op, element, pair) for pair in ([-0.0, 0.0],)]
    assert [float(shown(z)) for z in zeros] == pytest.approx(
        [float(x) for x in row[6].split("; ")], 1e-3
    )
    assert [np.signbit(float(shown(z))) for z in zeros] == [x[0] == "-" for x in row[6].split("; ")]


@by_row
def test_elements_of_the_guide(row: list[str]) -> None:
    rows = op_bits.elements(row[0].strip("`"))
    names = {"float": "float", "int": "int", "uint": "int", "bool": "bool"}
    if row[0] == "`stochastic_sum`":
        assert row[2] == ", ".join(x.name for x in rows)
    else:
        assert row[2] == ", ".join(dict.fromkeys(names[x.kind] for x in rows))


@by_row
def test_order_as_the_guide_says(row: list[str]) -> None:
    """Three workers' elements, structured and random, in all orders."""
    op = row[0].strip("`")
    names = [x.name for x in op_bits.elements(op)]
    fmt = format_of(next(x for x in ("float32", "float16", "int8") if x in names))
    made = premul_sum(0.5) if op == "premul_sum" else builtin(op, fmt)
    nic = nicemu.Nic(threads=1)
    nic.load(made.image(fmt))
    rng = np.random.default_rng(1)
    pool = np.concatenate([op_bits.pool(fmt), rng.normal(scale=9, size=200).astype(fmt.dtype)])
    streams = [pool[x] for x in rng.integers(0, len(pool), (3, 4000))]
    seen = {
        nic.reduce([Stream(streams[r], rank=r) for r in order]).values.tobytes()
        for order in permutations(range(3))
    }
    assert (len(seen) > 1) == (row[3] == "yes")
    assert row[3] in ("yes", "no")
