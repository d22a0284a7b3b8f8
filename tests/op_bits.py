"""``python -m tests.op_bits``: every built-in op, element and preset, entry by entry, bit by bit.

What the emulated core leaves in memory must be what the same IR does on the host, and what the
exact reference says, where there is one.  All patterns of elements of 8 and 16 bits meet every
structured accumulator; wider ones are structured.  Every VLEN, host path and fan-in takes part: the
first accumulators on all harts, the others on one after another.
The test runs COVERING, a part in which each op, element, preset, VLEN and path occurs; the command
runs all, and prints a table: per op and element the items compared, and after a ! how many differ.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cache

import numpy as np

from nicemu import Machine, Nic, ReduceOp
from nicemu.compiler.host import HostKernels, canonical
from nicemu.device.image import LEAVING, PRESETS, Context, Entry, KernelImage
from nicemu.dtypes import FORMATS, Format, Item, format_of
from nicemu.ops.builtin import BUILTINS, builtin, premul_sum
from nicemu.reference.entries import EXACT, Call, Entries
from tests.harts import simd_paths

VLENS = (128, 256, 512, 1024)
FACTOR = 0.3  # of premul_sum: no power of two
OPS = (*BUILTINS, "premul_sum")
#: kinds of elements that an op is for; stochastic_sum: of these, those of 16 bits
_FLOAT, _WHOLE = ("float",), ("int", "uint")
KINDS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("avg", "l2norm", "logsumexp", "premul_sum", "stochastic_sum"), _FLOAT),
    **dict.fromkeys(("sum", "prod"), _FLOAT + _WHOLE),
    **dict.fromkeys(("max", "min", "maximum", "minimum", "argmax"), (*_FLOAT, *_WHOLE, "bool")),
    **dict.fromkeys(("band", "bor", "bxor"), (*_WHOLE, "bool")),
    "sat_sum": _WHOLE,
}
CONTEXT = Context(contributors=5, rank=3, device=7, child=1, seq=9, chunk=2, group=8,
                  element=2**33 - 7, seed=0x1234_5678_9ABC)  # fmt: skip
SHOWN = 3


@dataclass(frozen=True)
class Case:
    """An image."""

    op: str
    element: Format
    preset: str

    def __str__(self) -> str:
        return f"{self.op} {self.element.alias} {self.preset}"

    @property
    def made_by(self) -> ReduceOp:
        return premul_sum(FACTOR) if self.op == "premul_sum" else builtin(self.op, self.element)


def elements(op: str) -> list[Format]:
    """Those that an op is for."""
    return [
        row
        for row in FORMATS
        if row.kind in KINDS[op] and (op != "stochastic_sum" or row.name in ("float16", "bfloat16"))
    ]


@dataclass(frozen=True)
class Hart:
    """What an image runs on."""

    vlen: int
    simd: str

    def __str__(self) -> str:
        return f"VLEN {self.vlen} {self.simd}"


CASES = [Case(op, row, preset) for op in OPS for row in elements(op) for preset in PRESETS]
HARTS = [Hart(vlen, simd) for vlen in VLENS for simd in simd_paths()]


def covering() -> list[tuple[Case, list[Hart]]]:
    """Each op with its 16-bit floats and two other elements; presets and harts in turn."""
    out = []
    for i, op in enumerate(OPS):
        rows = elements(op)
        halfs = [row for row in rows if row.kind == "float" and row.size == 2]
        others = [row for row in rows if row not in halfs]
        chosen = halfs + [others[(i + j) % len(others)] for j in range(min(2, len(others)))]
        for j, row in enumerate(chosen):
            at = len(out)
            preset = list(PRESETS)[(i + j) % len(PRESETS)]
            harts = [HARTS[at % len(HARTS)], HARTS[(at + len(HARTS) // 2) % len(HARTS)]]
            out.append((Case(op, row, preset), harts))
    return out


# ---- operands ------------------------------------------------------------------------------------


@cache
def pool(row: Format) -> np.ndarray:
    """Structured values: zeros, ends of the subnormal and normal ranges, neighbours of 1, ties of
    16-bit formats, infinities, NaNs with and without payload, quiet and signalling."""
    if row.kind == "bool":
        return np.array([0, 1], np.uint8).view(row.dtype)
    if row.kind != "float":
        ends = np.iinfo(row.dtype)
        values = {0, 1, 2, 3, 85, ends.min, ends.min + 1, ends.max, ends.max - 1, ends.max // 2}
        within = {-v for v in values if ends.min <= -v <= ends.max}
        return np.array(sorted(values | within), row.dtype)
    one = ((1 << (row.exponent_bits - 1)) - 1) << row.fraction_bits
    unit, half = 1 << row.fraction_bits, 1 << (row.fraction_bits - 1)
    bits = {0, 1, unit - 1, unit, unit + half, one - 1, one, one + 1, one + half, one + 8 * unit}
    bits |= {row.infinity - 1, row.infinity, row.infinity + 1, row.infinity + half}
    bits |= {row.canonical_nan, (1 << (8 * row.size - 1)) - 1}
    if row.size >= 4:  # where a rounding to 16 bits has a tie, or is almost one
        for lost in (13, 16) if row.size == 4 else (42, 45):
            middle = 1 << (lost - 1)
            bits |= {one + middle, one + middle - 1, one + 3 * middle, one + middle + 1}
        with np.errstate(over="ignore"):
            large = np.array([65504, 65519.996, 65520, 3.39e38, 2.0**-24, 2.0**-25, 2.0**-133])
            bits |= set(map(int, large.astype(row.dtype).view(row.bits_dtype)))
    signed = sorted(bits | {b | 1 << (8 * row.size - 1) for b in bits})
    return np.array(signed, row.bits_dtype).view(row.dtype)


@cache
def patterns(row: Format) -> np.ndarray:
    """All values of up to 16 bits; of wider ones those of `pool`, and random ones."""
    if row.size <= 2:
        return np.arange(1 << 8 * row.size, dtype=row.bits_dtype).view(row.dtype)
    random = np.random.default_rng(row.size).integers(0, 256, 4096 * row.size, np.uint8)
    return np.concatenate([pool(row), random.view(row.dtype)])


def payloads(item: Item, number: int, count: int) -> np.ndarray:
    """Of a call's payload of that number: all patterns, in another order for each."""
    return _items(item, count, lambda row, i: patterns(row)[
        (np.arange(count) * (2 * number + 1) + 7919 * (number + i)) % len(patterns(row))
    ])  # fmt: skip


def accumulators(item: Item, turn: int, count: int) -> np.ndarray:
    """In turn 0, 1, ... an item meets each value of `pool`."""
    return _items(item, count, lambda row, i: pool(row)[
        (np.arange(count) + (turn if i == 0 else 3 * turn + 5 * i)) % len(pool(row))
    ])  # fmt: skip


def _items(item: Item, count: int, values: object) -> np.ndarray:
    assert callable(values)
    if item.scalar:
        out: np.ndarray = values(item.formats[0], 0)
        return out
    out = np.empty(count, item.dtype)
    for i, (name, row) in enumerate(item.fields):
        out[name] = values(row, i)
    return out


def turns(image: KernelImage) -> int:
    """How many it takes for each payload to meet each accumulator."""
    return max(len(pool(row)) for row in image.formats.accumulator.formats)


# ---- comparison ----------------------------------------------------------------------------------


@cache
def nic(hart: Hart) -> Nic:
    """A core with room for all patterns."""
    machine = Machine("wide", cores=1, vlen=hart.vlen, scratchpad=1 << 24, budget=10**9)
    return Nic(machine, simd=hart.simd)


def reference(case: Case, image: KernelImage) -> Entries | None:
    if case.op not in EXACT:
        return None
    return Entries(case.op, **vars(image.formats), factor=FACTOR)


def differences(
    case: Case, harts: Sequence[Hart], most_turns: int
) -> Iterator[tuple[int, int, str]]:
    """Per entry and turn: items compared, items that differ, and what the first one is."""
    op = case.made_by
    image = op.image(case.element, case.preset)
    formats = image.formats
    host = HostKernels(case.op, op._source, formats)
    exact = reference(case, image)
    told = {name: value for name, value in asdict(CONTEXT).items() if name != "group"}
    assert set(host.entries) == set(image.entries)
    for entry in image.entries:
        does = Entry.of(entry)
        source = formats.partial if does.partials else formats.element
        count = max(len(patterns(row)) for row in source.formats + formats.accumulator.formats)
        given = [payloads(source, j, count) for j in range(does.payloads)]
        for turn in range(1 if does.fresh else min(most_turns, turns(image))):
            before = accumulators(formats.accumulator, turn, count)
            if not does.reducing and turn == 0:
                before = payloads(formats.accumulator, 0, count)
            done = host.call(entry, given, accumulator=before, context=CONTEXT)
            expected = [("host", done.accumulator, done.output)]
            if exact is not None:
                after, output = exact.call(entry, given, before, Call(**told))
                expected.append(("reference", after, output))
            for hart in harts if turn == 0 else [harts[turn % len(harts)]]:
                device = nic(hart)
                device.load(image)
                got = device.handle(entry, given, accumulator=before, context=CONTEXT)
                assert got.status == 0
                if does.leaving:
                    assert got.accumulator.tobytes() == before.tobytes()
                for who, after, output in expected:
                    item = formats.accumulator
                    mine, theirs = canonical(got.accumulator, item), after
                    if does.leaving:
                        item = getattr(formats, LEAVING[does.leaving])
                        assert got.output is not None and output is not None
                        mine, theirs = got.output, output
                    yield (
                        count,
                        *_compared(
                            f"{case}, {entry}, {hart}", who, item, mine, theirs, [*given, before]
                        ),
                    )


def _compared(
    where: str, who: str, item: Item, mine: np.ndarray, theirs: np.ndarray,
    operands: Sequence[np.ndarray],
) -> tuple[int, str]:  # fmt: skip
    assert mine.dtype == theirs.dtype and mine.shape == theirs.shape
    size = item.size
    wrong = np.flatnonzero(
        np.any(
            mine.view(np.uint8).reshape(-1, size) != theirs.view(np.uint8).reshape(-1, size), axis=1
        )
    )
    if not wrong.size:
        return 0, ""
    i = wrong[0]
    given = ", ".join(f"{x[i]} ({x[i].tobytes()[::-1].hex()})" for x in operands)
    return wrong.size, (
        f"{where}: item {i} of {given}: core {mine[i]} ({mine[i].tobytes()[::-1].hex()}), {who} "
        f"{theirs[i]} ({theirs[i].tobytes()[::-1].hex()}); {wrong.size} of {len(mine)} differ"
    )


# ---- the command ---------------------------------------------------------------------------------


def lines(compared: Counter[tuple[str, str]], wrong: Counter[tuple[str, str]]) -> Iterator[str]:
    """The table: a line per op, a column per element; in thousands."""
    yield f"{'items / 1000':16}" + "".join(f"{row.alias:>10}" for row in FORMATS)
    for op in OPS:
        cells = []
        for row in FORMATS:
            n, bad = compared[op, row.alias], wrong[op, row.alias]
            cells.append((f"{n // 1000} !{bad}" if bad else str(n // 1000)) if n else "-")
        if any(cell != "-" for cell in cells):
            yield f"{op:16}" + "".join(f"{cell:>10}" for cell in cells)


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns 0; 1 when a bit differs."""
    parser = argparse.ArgumentParser("python -m tests.op_bits", description=__doc__)
    parser.add_argument("--op", choices=OPS, action="append", help="only these")
    parser.add_argument("--element", action="append", help="only these")
    parser.add_argument("--turns", type=int, default=1000, help="accumulators per payload, at most")
    options = parser.parse_args(arguments)
    rows = [format_of(name) for name in options.element or [row.name for row in FORMATS]]
    cases = [c for c in CASES if c.op in (options.op or OPS) and c.element in rows]
    compared, wrong = Counter[tuple[str, str]](), Counter[tuple[str, str]]()
    start = time.monotonic()
    for case in cases:
        shown = 0
        for count, bad, text in differences(case, HARTS, options.turns):
            compared[case.op, case.element.alias] += count
            wrong[case.op, case.element.alias] += bad
            if text and shown < SHOWN:
                print(text, flush=True)
                shown += 1
    print("\n".join(lines(compared, wrong)))
    print(
        f"{len(cases)} images on {len(HARTS)} harts: {compared.total()} items compared, "
        f"{wrong.total()} differ, {time.monotonic() - start:.0f} s"
    )
    return int(wrong.total() > 0)


if __name__ == "__main__":
    sys.exit(main())
