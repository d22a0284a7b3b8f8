"""What was compared: per row, at which SEW and LMUL, in which rounding mode, how often.

A step of Spike's trace is one number: bits 0..12 the halfword of CODE it stood on (0x1fff:
elsewhere), 13..18 the low bits of vtype, 19 vill, 20..22 frm, 23 it trapped, 24 M-mode, 25 vstart
was not 0.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from nicemu._core import Cores
from tests.lockstep.layout import CAUSES, TRACE, Batch
from tests.lockstep.shapes import VTYPES, Shapes, legal_vtypes
from tests.lockstep.words import table

__all__ = ["Coverage"]

ELSEWHERE = 0x1FFF
TRAPPED = 1 << 23
DYNAMIC = 7


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
        cells: (rows, 128, 2): [row, vtype with vill, retired or trapped].
        modes: (rows, 8, 2): [row, rounding mode, retired or trapped].
    """

    def __init__(self) -> None:
        n = len(table().rows)
        self.instructions = self.handler = self.programs = 0
        self.traps = np.zeros(CAUSES, np.int64)
        self.cells = np.zeros((n, 128, 2), np.int64)
        self.modes = np.zeros((n, 8, 2), np.int64)

    def add(self, batch: Batch, placed: np.ndarray, cores: Cores, compared: np.ndarray) -> None:
        """Count the steps of the compared programs (a bool per slot)."""
        t = table()
        n = len(t.rows)
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
        cell = (row * 128 + vtype) * 2 + trapped
        self.cells += np.bincount(cell, minlength=n * 256).reshape(n, 128, 2)
        rm = (word >> 12 & 7).astype(np.int64)
        rm = np.where(t.vector[row] | (rm == DYNAMIC), trace >> 20 & 7, rm)
        mode = (row * 8 + rm) * 2 + trapped
        self.modes += np.bincount(mode, minlength=n * 16).reshape(n, 8, 2)

    def merge(self, other: Coverage) -> None:
        """Add another's counts."""
        for name in ("instructions", "handler", "traps", "programs", "cells", "modes"):
            setattr(self, name, getattr(self, name) + getattr(other, name))

    # ---- questions ---------------------------------------------------------------------------

    def missing(self, shapes: Shapes, chosen: np.ndarray) -> list[str]:
        """What was never compared: rows; vector rows under a vtype; rounding modes.

        Args:
            shapes: where Spike executes the vector rows.
            chosen: (rows,) bool: the rows that were wanted.
        """
        t = table()
        out = []
        retired = self.cells[:, :, 0]
        for i in np.flatnonzero(chosen):
            name = t.rows[i].name
            if self.cells[i].sum() == 0:
                out.append(name)
                continue
            if not t.configures[i]:
                where = np.flatnonzero(shapes.allowed[i] & (retired[i, :VTYPES] == 0))
                out += [f"{name} under {vtype_text(int(code))}" for code in where]
            if t.rounds[i]:
                out += [f"{name} in mode {m}" for m in range(5) if self.modes[i, m, 0] == 0]
        return out

    def as_dict(self) -> dict[str, Any]:
        """Per row: retired, trapped, and the counts per vtype and rounding mode."""
        out: dict[str, Any] = {}
        for i, row in enumerate(table().rows):
            entry: dict[str, Any] = {
                "retired": int(self.cells[i, :, 0].sum()),
                "trapped": int(self.cells[i, :, 1].sum()),
            }
            if table().vector[i]:
                entry["vtypes"] = {vtype_text(c): self.cells[i, c].tolist() for c in legal_vtypes()}
            if table().rounds[i]:
                entry["modes"] = {str(m): self.modes[i, m].tolist() for m in range(8)}
            out[row.name] = entry
        return out
