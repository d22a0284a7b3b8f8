"""Instruction words as arrays: the table, and operands put in and taken out."""

from __future__ import annotations

import re
from functools import cache

import numpy as np

from nicemu._core import instructions
from tests.encode import fields, limits

__all__ = ["MODES", "Table", "get", "operands", "put", "simple", "table"]

#: Rounding modes that are not reserved.
MODES = 5


class Table:
    """The instruction table as arrays, one entry per row.

    Attributes:
        rows: the rows themselves.
        match, mask, size: as there.
        formats: names of the formats; format: number of each row's.
        vector, memory, jump: what kind of row it is.
    """

    def __init__(self) -> None:
        self.rows = instructions()
        self.match = np.array([r.match for r in self.rows], np.uint32)
        self.mask = np.array([r.mask for r in self.rows], np.uint32)
        self.size = np.array([r.size for r in self.rows], np.uint8)
        self.formats = sorted({r.format for r in self.rows})
        self.format = np.array([self.formats.index(r.format) for r in self.rows], np.int16)
        self.vector = np.array([r.cls.startswith("v") for r in self.rows])
        self.configures = self._of("vset")
        self.memory = self._of("load", "store", "amo", "vload", "vstore")
        self.jump = self._of("jump", "branch")
        self.rounds = np.array(
            [any(f.operand == "rm" for f in fields(r.format)) for r in self.rows]
        ) | self._of("vfadd", "vfmul", "vfma", "vfdiv", "vfsqrt", "vfcvt", "vfred")

    def _of(self, *classes: str) -> np.ndarray:
        return np.array([r.cls in classes for r in self.rows])

    def weights(self, select: re.Pattern[str] | None) -> np.ndarray:
        """How often each row is wanted."""
        shares = {"system": 0.1, "jump": 0.6, "branch": 0.6, "csr": 2.5, "fence": 0.3}
        out = np.array([shares.get(r.cls, 1.0) for r in self.rows])
        if select is not None:
            out[[select.search(r.name) is None for r in self.rows]] = 0
        return out

    def number(self, form: str) -> int:
        """Number of a format; -1 when no row has it."""
        return self.formats.index(form) if form in self.formats else -1


@cache
def table() -> Table:
    """The one Table."""
    return Table()


def put(words: np.ndarray, where: np.ndarray, form: str, operand: str, values: np.ndarray) -> None:
    """Write an operand (its own value, as for ``encode``) into words[where] of one format."""
    values = np.asarray(values, np.int64)
    for f in fields(form):
        if f.operand != operand:
            continue
        ones = (1 << f.hi - f.lo + 1) - 1
        piece = (values - 8 if f.prime else values) >> f.lo & ones
        keep = np.uint32(~(ones << f.position) & 0xFFFFFFFF)
        words[where] = words[where] & keep | (piece << f.position).astype(np.uint32)


def get(words: np.ndarray, form: str, operand: str) -> np.ndarray:
    """Read a register operand from words of one format."""
    f = next(f for f in fields(form) if f.operand == operand)
    value = words >> np.uint32(f.position) & np.uint32((1 << f.hi - f.lo + 1) - 1)
    return (value + 8 if f.prime else value).astype(np.int64)


@cache
def operands(form: str) -> dict[str, range]:
    """``limits`` of a format, looked up once: the values that each operand can have."""
    return limits(form)


@cache
def _row(name: str) -> tuple[int, str]:
    return next((r.match, r.format) for r in instructions() if r.name == name)


def simple(name: str, **operands: np.ndarray | int) -> np.ndarray:
    """Words of one mnemonic from arrays of operands."""
    match, form = _row(name)
    n = max(np.size(v) for v in operands.values())
    words = np.full(n, match, np.uint32)
    for operand, values in operands.items():
        put(words, np.arange(n), form, operand, np.broadcast_to(values, n))
    return words
