"""``python -m tests.matrix``: every combination of ranks, counts, ops, formats, presets,
collectives and ways, against the tree reference.

The tests run a set of these in which every pair of values occurs (test_matrix.py); this is the
command for all of them.  A case is right when the bits are the reference's, the same on every rank,
and nothing is written beside the outputs.
"""

from __future__ import annotations

import argparse
import itertools
import random
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from nicemu import Communicator, Fabric, Result
from nicemu.collectives.collective import COLLECTIVES
from nicemu.device.image import preset_formats
from nicemu.dtypes import GRADIENTS, Format, format_of
from nicemu.reference.arithmetic import OPS, PRESETS
from nicemu.reference.tree import reduce_tree
from tests.test_reference_streams import as_values, columns

PAYLOAD = 256  # bytes of a packet, so that few elements are many packets
#: how many elements of the whole array, by the elements of a packet
COUNTS: dict[str, Callable[[int], int]] = {
    "0": lambda slot: 0,
    "1": lambda slot: 1,
    "slot-1": lambda slot: slot - 1,
    "slot": lambda slot: slot,
    "slot+1": lambda slot: slot + 1,
    "prime": lambda slot: 1009,
    "large": lambda slot: 20_000,
}


def hosts(algorithm: str) -> Callable[[int], Communicator]:
    return lambda n: Communicator(Fabric(n, mtu=PAYLOAD), algorithm=algorithm)


def network(topology: str, **options: Any) -> Callable[[int], Communicator]:
    def make(n: int) -> Communicator:
        fabric = Fabric(n, topology, mtu=PAYLOAD, seed=n, **options)
        return Communicator(fabric, algorithm="in-network")

    return make


FAULTS = {"loss": 0.1, "duplicate": 0.1, "reorder": 0.2, "corrupt": 0.01}
#: who reduces, in which tree
WAYS: dict[str, Callable[[int], Communicator]] = {
    "ring": hosts("ring"),
    "halving-doubling": hosts("halving-doubling"),
    "star": network("star"),
    "cards": network("cards"),
    "tree(2)": network("tree(2)"),
    "tree(3), faults": network("tree(3)", **FAULTS),
    "cards, two planes, faults": network("cards", planes=2, **FAULTS),
}
PLACES = ("new", "out", "in place", "strided")
SENTINEL = 0xA5


class Case(NamedTuple):
    """One combination."""

    ranks: int
    count: str
    op: str
    element: str
    preset: str
    collective: str
    way: str
    place: str

    def __str__(self) -> str:
        return "-".join(map(str, self)).replace(" ", "_")


FACTORS: dict[str, Sequence[object]] = {
    "ranks": (1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 64),
    "count": tuple(COUNTS),
    "op": OPS,
    "element": tuple(f.name for f in GRADIENTS),
    "preset": tuple(PRESETS),
    "collective": tuple(COLLECTIVES),
    "way": tuple(WAYS),
    "place": PLACES,
}


def pairwise(factors: Mapping[str, Sequence[object]], seed: int = 1) -> list[tuple[object, ...]]:
    """Rows in which every two values of two factors occur together; each row covers greedily."""
    rng = random.Random(seed)
    values = list(factors.values())
    columns_ = range(len(values))
    missing = {
        (i, a, j, b)
        for i, j in itertools.combinations(columns_, 2)
        for a in values[i]
        for b in values[j]
    }
    rows = []
    while missing:
        i, a, j, b = min(missing, key=repr)
        row: dict[int, object] = {i: a, j: b}
        for column in rng.sample(columns_, len(values)):
            if column not in row:
                row[column] = max(
                    rng.sample(values[column], len(values[column])),
                    key=lambda value: sum(pair in missing for pair in _pairs(row, column, value)),
                )
        chosen = tuple(row[column] for column in columns_)
        missing -= {(i, chosen[i], j, chosen[j]) for i, j in itertools.combinations(columns_, 2)}
        rows.append(chosen)
    return rows


def _pairs(
    row: Mapping[int, object], column: int, value: object
) -> Iterator[tuple[int, object, int, object]]:
    for other, there in row.items():
        yield (other, there, column, value) if other < column else (column, value, other, there)


@lru_cache(maxsize=4)
def communicator(way: str, ranks: int) -> Communicator:
    return WAYS[way](ranks)


# ---- one case --------------------------------------------------------------------------------


class Guarded:
    """An array, with room around it and between its elements that must stay as it is."""

    def __init__(self, values: np.ndarray, step: int) -> None:
        self.memory = np.full((values.size * step + 9) * values.itemsize, SENTINEL, np.uint8)
        self.array = self.memory.view(values.dtype)[5 : 5 + values.size * step : step]
        self.array[...] = values

    def untouched(self) -> bool:
        """Is there nothing but the sentinel outside of the array?"""
        self.array.view(self.array.dtype.str.replace("f", "u").replace("V", "u"))[...] = 0
        bits = np.dtype(f"u{self.array.itemsize}")
        expected = np.full(self.memory.size, SENTINEL, np.uint8).view(bits)
        at = slice(5, len(expected) - 4, self.array.strides[0] // self.array.itemsize)
        expected[at] = 0
        return bool((expected == self.memory.view(bits)).all())


def problems(case: Case) -> Iterator[str]:
    """What is wrong with a case; nothing when it is right."""
    return started(case)()


def started(case: Case) -> Callable[[], Iterator[str]]:
    """Begin a case: a function that waits for its end and yields what is wrong."""
    fmt = format_of(case.element)
    record = COLLECTIVES[case.collective]
    formats = preset_formats(fmt, case.preset)
    widest = formats.row_bytes(partials=case.way != "star")
    whole = COUNTS[case.count](PAYLOAD // widest)
    ranks, root = case.ranks, case.ranks // 2
    parts = case.collective in ("reduce_scatter", "all_gather")
    if parts:
        whole = -(-whole // ranks) * ranks
    given = whole // ranks if case.collective == "all_gather" else whole
    taken = whole // ranks if case.collective == "reduce_scatter" else whole
    streams = as_values(columns(fmt, ranks, given, seed=len(str(case))), fmt)
    wanted = expected(case, fmt, streams)
    step = 3 if case.place == "strided" else 1
    inputs = [Guarded(x, step) for x in streams]
    outs = inputs
    if case.place != "in place" or given != taken:
        outs = [Guarded(np.zeros(taken, fmt.dtype), step) for _ in streams]
    world = communicator(case.way, ranks)
    arrays = [x.array for x in inputs]
    handle = world.start(
        case.collective,
        arrays[root] if case.collective == "broadcast" else arrays,
        case.op,
        root=root,
        out=None if case.place == "new" else [x.array for x in outs],
        preset=case.preset,
    )

    def ended() -> Iterator[str]:
        result = handle.wait()
        yield from compared(case, fmt, result, wanted(result), root)
        for rank, values in enumerate(result.values):
            if values is not None and case.place != "new" and values is not outs[rank].array:
                yield f"rank {rank}: the result is in another array than out"
        for i, guarded in enumerate([*inputs, *outs]):
            if not guarded.untouched():
                yield f"rank {i % ranks}: something is written beside its array"
        if record.reduces and result.op != case.op:
            yield f"op {result.op}"

    return ended


def expected(case: Case, fmt: Format, streams: list[np.ndarray]) -> Callable[[Result], np.ndarray]:
    """Bits of the whole array, by the orders that the result states."""
    kept = [x.view(fmt.bits_dtype).copy() for x in streams]

    def bits(result: Result) -> np.ndarray:
        if case.collective == "all_gather":
            return np.concatenate(kept)
        if not COLLECTIVES[case.collective].reduces:
            return kept[case.ranks // 2]
        out = [
            reduce_tree(
                case.op,
                fmt,
                share.order,
                [x[share.elements.start : share.elements.stop].view(fmt.dtype) for x in kept],
                case.preset,
            ).result
            for share in result.shares
        ]
        return np.concatenate([np.empty(0, fmt.bits_dtype), *out])

    return bits


def compared(
    case: Case, fmt: Format, result: Result, wanted: np.ndarray, root: int
) -> Iterator[str]:
    for rank, values in enumerate(result.values):
        want = wanted
        if case.collective == "reduce_scatter":
            part = len(wanted) // case.ranks
            want = wanted[rank * part : (rank + 1) * part]
        nothing = case.collective == "barrier" or (case.collective == "reduce" and rank != root)
        if nothing or values is None:
            if not nothing or values is not None:
                yield f"rank {rank}: {'nothing' if values is None else 'something'} came out"
            continue
        got = np.ascontiguousarray(values).view(fmt.bits_dtype)
        if got.shape != want.shape:
            yield f"rank {rank}: shape {got.shape}, not {want.shape}"
        elif (wrong := np.flatnonzero(got != want)).size:
            at = wrong[0]
            yield f"rank {rank}, element {at}: {got[at]:#x}, not {want[at]:#x}; {wrong.size} differ"


# ---- all of them -----------------------------------------------------------------------------


def every_case() -> Iterator[Case]:
    """All combinations; places take turns; where nothing is reduced, one op and preset stand for
    all."""
    factors = {name: values for name, values in FACTORS.items() if name != "place"}
    places = itertools.cycle(PLACES)
    for row in itertools.product(*factors.values()):
        case = Case(*row, next(places))  # type: ignore[arg-type]
        moved = not COLLECTIVES[case.collective].reduces
        if not (moved and (case.op, case.preset) != (OPS[0], next(iter(PRESETS)))):
            yield case


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns 0; 1 when a case is wrong."""
    parser = argparse.ArgumentParser("python -m tests.matrix", description=__doc__)
    parser.add_argument("--part", default="1/1", help="i/n: every n-th case, from the i-th on")
    parser.add_argument("--way", choices=WAYS, help="only this one")
    parser.add_argument("--pairwise", action="store_true", help="only the set that the tests run")
    options = parser.parse_args(arguments)
    first, _, step = options.part.partition("/")
    if not (first.isdigit() and step.isdigit() and 1 <= int(first) <= int(step)):
        parser.error(f"--part {options.part}: use i/n with 1 <= i <= n")
    cases = (
        [Case(*row) for row in pairwise(FACTORS)]  # type: ignore[arg-type]
        if options.pairwise
        else list(every_case())
    )
    cases = [case for case in cases if options.way in (None, case.way)]
    cases = sorted(cases[int(first) - 1 :: int(step)], key=lambda c: (c.way, c.ranks))
    wrong, start = 0, time.monotonic()
    for done, case in enumerate(cases, 1):
        for text in itertools.islice(problems(case), 3):
            wrong += 1
            print(f"{case}: {text}", flush=True)
        if done % 1000 == 0:
            print(f"{done} of {len(cases)} cases, {time.monotonic() - start:.0f} s", flush=True)
    print(f"{len(cases)} cases, {wrong} problems, {time.monotonic() - start:.0f} s")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
