"""A fuzzing session: Spike, the core on each host path, the generator, what was found.

The first host path is held against Spike; the others against the first, bit by bit, freedoms or
not: a host path must not show.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields

import numpy as np

from nicemu._core import Cores, csrs
from tests.lockstep.compare import Difference, Pair, describe, differing
from tests.lockstep.coverage import Coverage, Wanted
from tests.lockstep.generate import Generator, nearly
from tests.lockstep.layout import END_STEPS, STEPS, Batch
from tests.lockstep.oracle import Oracle, OracleDied
from tests.lockstep.shapes import learn
from tests.lockstep.shrink import listing
from tests.lockstep.subject import MOST, Results, Subject

__all__ = ["Found", "Session", "Tally"]

SLOTS = 128
CANDIDATES = 20_000


@dataclass
class Found:
    """A program that ended differently, cut down.

    Attributes:
        batch, slot: `Generator(seed).fill(batch)` makes it.
        simd: the host path that differs.
        difference: the first step that differs from Spike; None: the end states differ, but not
            when both are stepped, so that it is a matter of blocks or budgets.
        parts: how the end states differ: from Spike's, or where that path is not the first, from
            the first path's.
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
    alike: int = 0  #: ended in the same state on all host paths

    def add(self, other: Tally) -> None:
        """Take over another's."""
        for f in fields(Tally):
            setattr(self, f.name, getattr(self, f.name) + getattr(other, f.name))


class Session:
    """Runs batches at one VLEN on all host paths that are named."""

    def __init__(
        self,
        seed: int,
        vlen: int,
        paths: Sequence[str],
        *,
        rows: str | None = None,
        extensions: Sequence[str] | None = None,
        length: int = 80,
        examine: int = 100_000,
    ) -> None:
        """Args:
        seed: of the programs.
        vlen, extensions: of the core.
        paths: the host paths it runs on.
        rows, length: see ``Generator``.
        examine: differences after which no more of them are looked into.
        """
        self.seed, self.vlen = seed, vlen
        self.oracle = Oracle(vlen, SLOTS)
        self._stepped: Oracle | None = None
        self.subjects = [Subject(vlen, path, extensions) for path in paths]
        self.results = [Results(SLOTS, vlen) for _ in paths]
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
        if self._stepped:
            self._stepped.close()

    def wanted(self, coverage: Coverage) -> Wanted:
        """Rows, vtypes and rounding modes that are to be compared, and which of them are open."""
        return coverage.wanted(self.shapes, self.generator.weights > 0)

    # ---- what each machine executes ------------------------------------------------------------

    def _illegal_words(self) -> tuple[np.ndarray, list[str]]:
        """Words without a row here that are illegal in Spike too; the mnemonics of the others."""
        rng = np.random.default_rng([self.seed, 0xBAD])
        words = nearly(CANDIDATES, rng)
        words = words[self._cores.find(words) < 0]
        legal = np.zeros(len(words), bool)
        for vtype in (0xC0, 0xC8, 0xD0, 0xD8):  # SEW 8..64, LMUL 1
            legal |= self.oracle.legal(words, vtype)
        return words[~legal], sorted(set(self.oracle.names(words[legal])))

    # ---- batches -------------------------------------------------------------------------------

    @property
    def _cores(self) -> Cores:
        return self.subjects[0].cores

    def pair(self, simd: str) -> Pair:
        """Spike and the core on one host path, for one program at a time."""
        if self._stepped is None:
            self._stepped = Oracle(self.vlen, Pair.WIDTH)
        return Pair(self._stepped, next(s for s in self.subjects if s.simd == simd))

    def run_while(self, goes_on: Callable[[Session], bool]) -> int:
        """Run batches 0, 1, ... for as long as that is true, at least one; returns how many."""
        number = 0
        while not number or goes_on(self):
            self.run(number)
            number += 1
        return number

    def run(self, number: int) -> None:
        """Make batch `number`, run it on all machines, compare."""
        batch = self.oracle.batch
        begin = time.perf_counter()
        placed = self.generator.fill(batch, number)
        self.oracle.begin()
        filled = time.perf_counter()
        rng = np.random.default_rng([self.seed, number, 1])
        chunks = np.where(rng.random(SLOTS) < 0.15, rng.integers(1, 60, SLOTS), 0)
        for subject, out in zip(self.subjects, self.results, strict=True):
            for slot in range(SLOTS):
                subject.run(batch, out, slot, int(chunks[slot]) or None)
        ran = time.perf_counter()
        try:
            self.oracle.finish()
        except OracleDied as death:
            self.tally.died += self._deadly(number, str(death))
            return
        waited = time.perf_counter()
        finished = batch.end[:, 3] != END_STEPS
        for subject, out in zip(self.subjects, self.results, strict=True):
            for slot in np.flatnonzero(finished & (out.end[:, 3] == END_STEPS)).tolist():
                subject.run(batch, out, slot, None, MOST)
        differ = differing(batch, self.results[0]) & finished
        unlike = [self.results[0].unlike(out) for out in self.results]
        same = ~np.any(unlike, axis=0)
        self.tally.unfinished += int(np.count_nonzero(~finished))
        self.tally.alike += int(np.count_nonzero(same))
        self.coverage.add(batch, placed, self._cores, finished & ~differ & same)
        self._look_into(number, 0, differ)
        for path in range(1, len(unlike)):
            self._look_into(number, path, unlike[path])
        done = time.perf_counter()
        times = (begin, filled, ran, waited, done)
        for name, a, b in zip(self.seconds, times, times[1:], strict=False):
            self.seconds[name] += b - a

    def _deadly(self, number: int, message: str) -> list[str]:
        """The programs of a batch that end Spike."""
        pair = self.pair(self.subjects[0].simd)
        out = []
        for slot in range(SLOTS):
            pair.load(self.oracle.batch, slot)
            try:
                pair.spike([STEPS])
            except OracleDied as death:
                where = f"vlen {self.vlen} batch {number} slot {slot}"
                out.append(f"Spike died: {where}: {death}\n{listing(pair.oracle.batch, pair)}")
        return out or [f"Spike died: batch {number}, but by no program of it alone: {message}"]

    def _look_into(self, number: int, path: int, slots: np.ndarray) -> None:
        """Examine the slots (a bool each) that end differently on a host path, up to a number."""
        for slot in np.flatnonzero(slots).tolist():
            if self.examined == self.examine:
                self.tally.unexamined += 1
                continue
            self.examined += 1
            self._examine(number, path, slot)

    def _examine(self, number: int, path: int, slot: int) -> None:
        simd = self.subjects[path].simd
        pair = self.pair(simd)
        pair.load(self.oracle.batch, slot)
        difference = pair.first_difference()
        ours = self.results[path]
        if path:  # the manual's freedoms are for Spike and us
            parts = describe(self.results[0], ours, slot, "on the first path")
        elif name := pair.freedom(difference):
            self.tally.freedoms[name] += 1
            return
        else:
            parts = describe(self.oracle.batch, ours, slot)
        program = self.oracle.batch.copy([slot])
        self.tally.found.append(Found(self.vlen, simd, number, slot, difference, parts, program))
