"""What was compared: per row, at which SEW and LMUL, in which rounding mode, how often.

A step of Spike's trace is one number: bits 0..12 the halfword of CODE it stood on (0x1fff:
elsewhere), 13..18 the low bits of vtype, 19 vill, 20..22 frm, 23 it trapped, 24 M-mode, 25 vstart
was not 0, 26 it was below vl.

What there is to compare: each vector row under each vtype under which it is executed, the ``vset``
rows apart; each row that rounds, in each of the five modes.  A vector step without an element
to work on, vl being 0 or vstart not below it, is no comparison of a cell.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from nicemu._core import Cores
from tests.lockstep.layout import CAUSES, TRACE, Batch
from tests.lockstep.shapes import VTYPES, Shapes, legal_vtypes
from tests.lockstep.words import MODES, table

__all__ = ["Coverage", "Wanted"]

ELSEWHERE = 0x1FFF
DYNAMIC = 7
#: How a step can end; IDLE: retired, but there was no element.
OUTCOMES = ("retired", "trapped", "idle")
RETIRED, TRAPPED, IDLE = range(3)


def vtype_text(code: int) -> str:
    """`e16,m2` of the low six bits of vtype."""
    return f"e{8 << (code >> 3)}," + ("m1", "m2", "m4", "m8", "", "mf8", "mf4", "mf2")[code & 7]


class Coverage:
    """Counts of compared steps.

    Attributes:
        instructions: retired instructions of programs whose end states were compared, without those
            of the trap handler.
        handler: the trap handler's.
        traps: (CAUSES,) traps taken in those programs, by exception code.
        cells: (rows, 128, len(OUTCOMES)): [row, vtype with vill, outcome].
        modes: (rows, 8, len(OUTCOMES)): [row, rounding mode, outcome].
    """

    def __init__(self) -> None:
        n = len(table().rows)
        self.instructions = self.handler = self.programs = 0
        self.traps = np.zeros(CAUSES, np.int64)
        self.cells = np.zeros((n, 128, len(OUTCOMES)), np.int64)
        self.modes = np.zeros((n, 8, len(OUTCOMES)), np.int64)

    def add(self, batch: Batch, placed: np.ndarray, cores: Cores, compared: np.ndarray) -> None:
        """Count the steps of the compared programs (a bool per slot)."""
        t = table()
        rows = np.full(placed.shape, -1, np.int16)
        words, which = np.unique(placed[placed != 0], return_inverse=True)
        rows[placed != 0] = cores.find(words)[which]
        traced = batch.end[:, 5].astype(np.int64)
        made = (np.arange(TRACE) < traced[:, None]) & compared[:, None]
        trace = batch.trace[made]
        slot = np.repeat(np.arange(batch.slots), np.where(compared, traced, 0))
        trapped = (trace >> 23 & 1).astype(np.int64)
        own = int(np.count_nonzero(trapped == 0))
        self.programs += int(np.count_nonzero(compared))
        self.instructions += own
        self.handler += int(batch.end[compared, 4].sum()) - own
        self.traps += batch.causes[compared].sum(axis=0, dtype=np.int64)
        where = (trace & ELSEWHERE).astype(np.int64)
        where = np.where(
            where < placed.shape[1], where, placed.shape[1] - 1
        )  # nothing begins there
        row = rows[slot, where].astype(np.int64)
        word = placed[slot, where]
        known = row >= 0
        row, word, trace, trapped = row[known], word[known], trace[known], trapped[known]
        vtype = (trace >> 13 & 127).astype(np.int64)
        idle = t.vector[row] & ~t.configures[row] & (trace >> 26 & 1 == 0)
        outcome = np.where(trapped, TRAPPED, np.where(idle, IDLE, RETIRED))
        cell = (row * 128 + vtype) * len(OUTCOMES) + outcome
        self.cells += np.bincount(cell, minlength=self.cells.size).reshape(self.cells.shape)
        rm = (word >> 12 & 7).astype(np.int64)
        rm = np.where(t.vector[row] | (rm == DYNAMIC), trace >> 20 & 7, rm)
        mode = (row * 8 + rm) * len(OUTCOMES) + outcome
        self.modes += np.bincount(mode, minlength=self.modes.size).reshape(self.modes.shape)

    def merge(self, other: Coverage) -> None:
        """Add another's counts."""
        for name in ("instructions", "handler", "traps", "programs", "cells", "modes"):
            setattr(self, name, getattr(self, name) + getattr(other, name))

    # ---- questions ---------------------------------------------------------------------------

    def wanted(self, shapes: Shapes, chosen: np.ndarray) -> Wanted:
        """What there is to compare, and what was.

        Args:
            shapes: where Spike executes the vector rows.
            chosen: (rows,) bool: the rows that were wanted.
        """
        t = table()
        cells = shapes.allowed & (chosen & t.vector & ~t.configures)[:, None]
        modes = np.repeat((chosen & t.rounds)[:, None], MODES, axis=1)
        return Wanted(
            rows=chosen,
            cells=cells,
            modes=modes,
            compared=self.cells[:, :, [RETIRED, TRAPPED]].sum(axis=(1, 2)),
            open_cells=cells & (self.cells[:, :VTYPES, RETIRED] == 0),
            open_modes=modes & (self.modes[:, :MODES, RETIRED] == 0),
        )

    def as_dict(self) -> dict[str, Any]:
        """Per row: its counts by OUTCOMES, in all, and per vtype and rounding mode."""
        out: dict[str, Any] = {}
        for i, row in enumerate(table().rows):
            counts = self.cells[i].sum(axis=0).tolist()
            entry: dict[str, Any] = dict(zip(OUTCOMES, counts, strict=True))
            if table().vector[i]:
                entry["vtypes"] = {vtype_text(c): self.cells[i, c].tolist() for c in legal_vtypes()}
            if table().rounds[i]:
                entry["modes"] = {str(m): self.modes[i, m].tolist() for m in range(8)}
            out[row.name] = entry
        return out


@dataclass(frozen=True)
class Wanted:
    """What a run was to compare.

    Attributes:
        rows: (rows,) bool.
        cells, open_cells: (rows, VTYPES) bool: all, and those that were not compared.
        modes, open_modes: (rows, MODES) bool, likewise.
        compared: (rows,) int: how often each row was, retired or trapped.
    """

    rows: np.ndarray
    cells: np.ndarray
    modes: np.ndarray
    compared: np.ndarray
    open_cells: np.ndarray
    open_modes: np.ndarray

    def still_open(self) -> list[str]:
        """The open ones by name."""
        names = [row.name for row in table().rows]
        never = self.rows & (self.compared == 0)
        out = [names[i] for i in np.flatnonzero(never)]
        out += [f"{names[i]} under {vtype_text(int(c))}" for i, c in np.argwhere(self.open_cells)]
        out += [f"{names[i]} in mode {m}" for i, m in np.argwhere(self.open_modes)]
        return out

    def by_class(self) -> list[str]:
        """A table: for each class of rows, how often they were compared, which cells and modes."""
        classes = [row.cls for row in table().rows]
        text = "{:<12}{:>6}{:>12}{:>12}{:>16}{:>12}"
        head = ("class", "rows", "least", "median", "vtypes", "modes")
        out = [text.format(*head)]
        for name in [*dict.fromkeys(classes), "all"]:
            mine = self.rows & np.array([name in (c, "all") for c in classes])
            if not mine.any():
                continue
            counts = self.compared[mine]
            done = [
                f"{np.count_nonzero(whole[mine] & ~left[mine])}/{np.count_nonzero(whole[mine])}"
                for whole, left in ((self.cells, self.open_cells), (self.modes, self.open_modes))
            ]
            shown = ["" if d == "0/0" else d for d in done]
            numbers = (len(counts), counts.min(), int(np.median(counts)))
            out.append(text.format(name, *numbers, *shown))
        return out
