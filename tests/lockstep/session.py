"""A fuzzing session: both machines, the generator, what was found."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from nicemu._core import csrs
from tests.lockstep.compare import Difference, Pair, describe, differing
from tests.lockstep.coverage import Coverage
from tests.lockstep.generate import Generator, nearly
from tests.lockstep.layout import END_STEPS, STEPS, Batch
from tests.lockstep.oracle import Oracle, OracleDied
from tests.lockstep.shapes import learn
from tests.lockstep.shrink import listing
from tests.lockstep.subject import MOST, Results, Subject

__all__ = ["Found", "Session"]

SLOTS = 128
CANDIDATES = 20_000
#: Unprivileged manual, Zifencei: stores become visible to fetches by FENCE.I.
MODIFIED = "code modified without FENCE.I"


@dataclass
class Found:
    """A program that ended differently, cut down.

    Attributes:
        batch, slot: `Generator(seed).fill(batch)` makes it.
        difference: the first step that differs; None: the end states differ, but not when both are
            stepped, so that it is a matter of blocks or budgets.
        parts: how the end states differ.
        program: it alone, with its start state.
    """

    vlen: int
    simd: str
    batch: int
    slot: int
    difference: Difference | None
    parts: list[str]
    program: Batch


@dataclass
class Tally:
    """How the programs of a session ended."""

    unexamined: int = 0  #: differ, but so many did already that nobody looked why
    unfinished: int = 0  #: ran longer than both sides wait: not compared
    freedoms: Counter[str] = field(default_factory=Counter)  #: explained differences
    found: list[Found] = field(default_factory=list)
    died: list[str] = field(default_factory=list)  #: programs that ended Spike, its last words


class Session:
    """Runs batches at one VLEN on one host path."""

    def __init__(
        self,
        seed: int,
        vlen: int,
        simd: str,
        *,
        rows: str | None = None,
        extensions: Sequence[str] | None = None,
        length: int = 80,
        examine: int = 100_000,
    ) -> None:
        """Args:
        seed: of the programs.
        vlen, simd, extensions: of the core.
        rows, length: see ``Generator``.
        examine: differences after which no more of them are looked into.
        """
        self.seed, self.vlen, self.simd = seed, vlen, simd
        self.oracle = Oracle(vlen, SLOTS)
        self._pair: Pair | None = None
        self.subject = Subject(vlen, simd, extensions)
        self.results = Results(SLOTS, vlen)
        self.examine, self.examined = examine, 0
        self.coverage = Coverage()
        self.tally = Tally()
        self.seconds = dict.fromkeys(("generate", "core", "spike", "compare"), 0.0)
        foreign = frozenset(self.oracle.csrs - set(csrs().values()))
        self.illegal, self.not_here = self._illegal_words()
        self.shapes = learn(self.oracle)
        self.generator = Generator(
            seed,
            self.shapes,
            rows=rows,
            length=length,
            illegal=self.illegal,
            foreign_csrs=foreign,
        )

    def close(self) -> None:
        """End the oracles."""
        self.oracle.close()
        if self._pair:
            self._pair.oracle.close()

    def missing(self) -> list[str]:
        """Rows, vtypes and rounding modes that were to be compared and were not."""
        return self.coverage.missing(self.shapes, self.generator.weights > 0)

    # ---- what each machine executes ------------------------------------------------------------

    def _illegal_words(self) -> tuple[np.ndarray, list[str]]:
        """Words without a row here that are illegal in Spike too; the mnemonics of the others."""
        rng = np.random.default_rng([self.seed, 0xBAD])
        words = nearly(CANDIDATES, rng)
        words = words[self.subject.cores.find(words) < 0]
        legal = np.zeros(len(words), bool)
        for vtype in (0xC0, 0xC8, 0xD0, 0xD8):  # SEW 8..64, LMUL 1
            legal |= self.oracle.legal(words, vtype)
        return words[~legal], sorted(set(self.oracle.names(words[legal])))

    # ---- batches -------------------------------------------------------------------------------

    @property
    def pair(self) -> Pair:
        """Both machines for one program at a time."""
        if self._pair is None:
            self._pair = Pair(Oracle(self.vlen, Pair.WIDTH), self.subject)
        return self._pair

    def run_for(self, seconds: float, at_least: int = 1) -> int:
        """Run batches 0, 1, ... until the time is over; returns how many."""
        end = time.monotonic() + seconds
        number = 0
        while number < at_least or time.monotonic() < end:
            self.run(number)
            number += 1
        return number

    def run(self, number: int) -> None:
        """Make batch `number`, run it on both machines, compare."""
        batch, out = self.oracle.batch, self.results
        begin = time.perf_counter()
        placed = self.generator.fill(batch, number)
        self.oracle.begin()
        filled = time.perf_counter()
        rng = np.random.default_rng([self.seed, number, 1])
        chunks = np.where(rng.random(SLOTS) < 0.15, rng.integers(1, 60, SLOTS), 0)
        for slot in range(SLOTS):
            self.subject.run(batch, out, slot, int(chunks[slot]) or None)
        ran = time.perf_counter()
        try:
            self.oracle.finish()
        except OracleDied as death:
            self.tally.died += self._deadly(number, str(death))
            return
        waited = time.perf_counter()
        finished = batch.end[:, 3] != END_STEPS
        for slot in np.flatnonzero(finished & (out.end[:, 3] == END_STEPS)).tolist():
            self.subject.run(batch, out, slot, None, MOST)
        differ = differing(batch, out) & finished
        self.tally.unfinished += int(np.count_nonzero(~finished))
        self.coverage.add(batch, placed, self.subject.cores, finished & ~differ)
        slots = np.flatnonzero(differ).tolist()
        room = max(self.examine - self.examined, 0)
        for slot in slots[:room]:
            self._examine(number, slot)
        self.tally.unexamined += len(slots[room:])
        done = time.perf_counter()
        times = (begin, filled, ran, waited, done)
        for name, a, b in zip(self.seconds, times, times[1:], strict=False):
            self.seconds[name] += b - a

    def _deadly(self, number: int, message: str) -> list[str]:
        """The programs of a batch that end Spike."""
        pair = self.pair
        out = []
        for slot in range(SLOTS):
            pair.load(self.oracle.batch, slot)
            try:
                pair.spike([STEPS])
            except OracleDied as death:
                where = f"vlen {self.vlen} batch {number} slot {slot}"
                out.append(f"Spike died: {where}: {death}\n{listing(pair.oracle.batch, pair)}")
        return out or [f"Spike died: batch {number}, but by no program of it alone: {message}"]

    def _examine(self, number: int, slot: int) -> None:
        self.examined += 1
        self.pair.load(self.oracle.batch, slot)
        difference = self.pair.first_difference()
        name = None
        if self.pair.modified(difference):
            name = MODIFIED
        elif difference is not None:
            name = difference.freedom
        if name:
            self.tally.freedoms[name] += 1
            return
        program = self.oracle.batch.copy([slot])
        parts = describe(self.oracle.batch, self.results, slot)
        found = Found(self.vlen, self.simd, number, slot, difference, parts, program)
        self.tally.found.append(found)
