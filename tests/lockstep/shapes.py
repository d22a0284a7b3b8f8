"""Where a vector row is legal and which registers it takes, learned by asking Spike.

So that a new row of the table needs nothing here.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np

from nicemu._core import instructions
from tests.encode import limits, vtype
from tests.lockstep.oracle import Oracle
from tests.lockstep.words import put, table

__all__ = ["MSTATUS_UNITS", "VECTORS", "VTYPES", "Shapes", "learn", "legal_vtypes"]

VTYPES = 64  #: SEW and LMUL are the low six bits of vtype
LMULS = ("mf8", "mf4", "mf2", "m1", "m2", "m4", "m8")
VECTORS = ("vd", "vs3", "vs2", "vs1")
#: Groups of eight registers that do not overlap.
APART = {"vd": 8, "vs3": 8, "vs2": 16, "vs1": 24}
OTHERS = {"vm": 1, "rd": 5, "rs1": 10, "rs2": 11}
MSTATUS_UNITS = 3 << 9 | 3 << 13


@cache
def legal_vtypes() -> tuple[int, ...]:
    """(SEW, LMUL) as the low six bits of vtype: those that ELEN = 64 allows."""
    out = []
    for sew in (8, 16, 32, 64):
        for i, name in enumerate(LMULS):
            if sew <= 64 * 2.0 ** (i - 3):
                out.append(vtype(sew, name, ta=False, ma=False))
    return tuple(out)


def words_of(rows: list[int], changed: dict[str, int]) -> np.ndarray:
    """Words of these rows, with operands that no rule forbids but for those that are changed."""
    words = np.empty(len(rows), np.uint32)
    for k, i in enumerate(rows):
        row = instructions()[i]
        words[k] = row.match
        for name in limits(row.format):
            value = changed.get(name, APART.get(name, OTHERS.get(name, 1)))
            put(words, np.array([k]), row.format, name, np.array([value]))
    return words


def _ask(oracle: Oracle, rows: list[int], changed: dict[str, int]) -> np.ndarray:
    """(rows, legal vtypes) bool: does Spike execute them?"""
    kinds = np.array(legal_vtypes())
    words = np.repeat(words_of(rows, changed), len(kinds))
    return oracle.legal(words, np.tile(kinds, len(rows))).reshape(len(rows), len(kinds))


@dataclass(frozen=True)
class Shapes:
    """What the vector rows are like.

    Attributes:
        allowed: (rows, VTYPES) bool: the row is executed, with operands that no rule forbids.
        align: (rows, VTYPES, len(VECTORS)) int: alignment of the operand's register number.
        span: the same shape: how many registers the operand takes, as its highest number tells.
    """

    allowed: np.ndarray
    align: np.ndarray
    span: np.ndarray


_learned: list[Shapes] = []


def learn(oracle: Oracle) -> Shapes:
    """Ask Spike, once: the answers are the same for every VLEN."""
    if _learned:
        return _learned[0]
    rows = [int(i) for i in np.flatnonzero(table().vector)]
    kinds = legal_vtypes()
    shape = len(table().rows), VTYPES
    allowed = np.zeros(shape, bool)
    align = np.ones((*shape, len(VECTORS)), np.int64)
    allowed[np.ix_(rows, kinds)] = _ask(oracle, rows, {})
    for k, operand in enumerate(VECTORS):
        having = [i for i in rows if operand in limits(instructions()[i].format)]
        where = np.ix_(having, kinds, [k])
        for offset in (4, 2, 1):  # where APART + offset is legal, no more is asked for
            legal = _ask(oracle, having, {operand: APART[operand] + offset})[:, :, None]
            align[where] = np.where(legal, offset, np.maximum(align[where], 2 * offset))
    span = align.copy()
    apart = {name: number - 8 for name, number in APART.items()}  # clear of the last eight
    for operand in ("vd", "vs3"):  # segments: more registers than one group
        having = [
            i for i in rows if table().memory[i] and operand in limits(instructions()[i].format)
        ]
        where = np.ix_(having, kinds, [VECTORS.index(operand)])
        for taken in range(8, 0, -1):
            legal = _ask(oracle, having, {**apart, operand: 32 - taken})[:, :, None]
            span[where] = np.where(legal, taken, span[where])
    align[~allowed] = span[~allowed] = 1
    _learned.append(Shapes(allowed, align, span))
    return _learned[0]
