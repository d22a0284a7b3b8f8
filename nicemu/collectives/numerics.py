"""Where precision goes: each level of a reduction against the exact sums.

Owns: the report and its rows.  The true values and the counting are reference.error's, which shares
nothing with the cores.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from nicemu.collectives.partials import Partial, Share
from nicemu.dtypes import format_of
from nicemu.errors import ArgumentError
from nicemu.order import Order, Path, devices, leaves
from nicemu.reference.arithmetic import OPS
from nicemu.reference.error import Errors, errors
from nicemu.tables import Table, Tabled

__all__ = ["Level", "Report", "report"]


@dataclass(frozen=True)
class Level:
    """All devices at one distance from the root.  One ulp is that of the result's format.

    Attributes:
        name: of the devices, without their numbers; ``result`` for what `finish` made of the root.
        devices: how many of them.
        made: against the exact sum of what each device got: what was lost here.
        total: against the exact sum of the workers' elements: what has been lost so far.
    """

    name: str
    devices: int
    made: Errors
    total: Errors


@dataclass(frozen=True, repr=False)
class Report(Tabled):
    """The levels of a reduction, from the workers to the result."""

    levels: tuple[Level, ...]

    def shares(self) -> tuple[float, ...]:
        """Part of all error that each level made, 0..1: its mean error times its elements."""
        made = [level.made.mean_ulp * level.made.measured for level in self.levels]
        return tuple(x / sum(made) if sum(made) else 0.0 for x in made)

    def tables(self) -> tuple[Table, ...]:
        """For people: a row per level."""
        rows = []
        for level, share in zip(self.levels, self.shares(), strict=True):
            made, total = level.made, level.total
            rows.append(
                (level.name, level.devices, f"{made.largest_ulp:.4g}", f"{made.mean_ulp:.4g}",
                 f"{share:.0%}", f"{total.largest_ulp:.4g}", f"{total.mean_ulp:.4g}",
                 total.overflows, total.nans, total.nans_made, total.subnormals)
            )  # fmt: skip
        columns = ("level", "devices", "made here: largest", "mean", "share", "so far: largest",
                   "mean", "infinite", "NaN", "of no NaN", "subnormal")  # fmt: skip
        return (Table("errors in ulp of the result's format", columns, rows),)


def report(
    op: str,
    shares: Sequence[Share],
    partials: Mapping[str, Partial],
    inputs: Sequence[np.ndarray],
    result: np.ndarray,
) -> Report:
    """Compare every partial sum, and the result, with the exact values.

    Args:
        op: name of the op.
        shares: who merged whom, and by which names.
        partials: device -> its partial sums.
        inputs: one array per rank.
        result: the whole reduced array, flat.

    Raises:
        ArgumentError: an op of which no exact value is known; a partial sum or an input is not
            there.
    """
    if op not in OPS:
        raise ArgumentError(
            f"op {op!r} has no exact value to compare with: there is one of {', '.join(OPS)}"
        )
    names: dict[int, set[str]] = {}  # by distance from the root
    found: dict[int, tuple[Errors, Errors]] = {}

    def add(depth: int, name: str, made: Errors, total: Errors) -> None:
        names.setdefault(depth, set()).add(name)
        was_made, was_total = found.get(depth, (Errors(), Errors()))
        found[depth] = was_made + made, was_total + total

    for share in shares:
        ranks = leaves(share.order)
        if len(inputs) <= max(ranks) or any(np.size(x) != result.size for x in inputs):
            raise ArgumentError(
                f"{len(inputs)} inputs: pass the array of each of the {max(ranks) + 1} ranks, of "
                f"{result.size} elements"
            )
        part = slice(share.elements.start, share.elements.stop)
        elements = [np.ascontiguousarray(x).reshape(-1)[part] for x in inputs]
        values = _values(share, partials)
        finished = result[part]
        fmt = format_of(finished.dtype)
        step = "sum" if op == "avg" else op
        divisor = len(ranks) if op == "avg" else 1
        for path, node in devices(share.order):
            got = [_child(child, (*path, i), elements, values) for i, child in enumerate(node)]
            of_workers = [elements[rank] for rank in leaves(node)]
            if path:
                made = errors(step, got, values[path], ulp_of=fmt)
                total = errors(step, of_workers, values[path], ulp_of=fmt)
                add(len(path), share.names[path], made, total)
            else:
                made = errors(op, got, finished, divisor)
                total = errors(op, of_workers, finished, divisor)
                add(0, share.names[path], made, total)
    return Report(
        tuple(
            Level(_stem(min(names[depth])) if depth else "result", len(names[depth]), *found[depth])
            for depth in sorted(found, reverse=True)
        )
    )


def _stem(name: str) -> str:
    return re.sub(r"^([a-z]+)\d+", r"\1", name)


def _child(
    child: Order, path: Path, elements: Sequence[np.ndarray], values: Mapping[Path, np.ndarray]
) -> np.ndarray:
    return values[path] if isinstance(child, tuple) else elements[child]


def _values(share: Share, partials: Mapping[str, Partial]) -> dict[Path, np.ndarray]:
    """The partial sums of each device below the root, over the whole stretch."""
    out = {}
    for path, name in share.names.items():
        if not path:
            continue
        parts = [p for p in partials.values() if p.device.partition("@")[0] == name]
        if not parts:
            raise ArgumentError(f"no partial sums of {name}: call with partials=True")
        values = np.zeros(len(share.elements), parts[0].dtype)
        missing = np.ones(len(values), bool)
        for part in parts:
            at = 0
            for found in part.ranges:
                start = max(found.start, share.elements.start)
                stop = min(found.stop, share.elements.stop)
                if start < stop:
                    inside = slice(start - share.elements.start, stop - share.elements.start)
                    from_ = at + start - found.start
                    values[inside] = part.values[from_ : from_ + stop - start]
                    missing[inside] = False
                at += len(found)
        if missing.any():
            raise ArgumentError(f"partial sums of {name} are not complete: their collective failed")
        out[path] = values
    return out
