"""Tables for people: the same rows as text and as HTML.

Owns: how results look in a terminal and in a notebook.  What is in them is their makers' matter.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from html import escape
from itertools import zip_longest

__all__ = ["Table", "Tabled"]


@dataclass(frozen=True)
class Table:
    """A line of text and rows under names.

    Attributes:
        head: the line.
        columns: their names; of several lines, if need be.
        rows: a cell per column; integers get thousands separators.
        texts: columns that are put to the left, as the first is.
    """

    head: str
    columns: Sequence[str]
    rows: Sequence[Sequence[object]]
    texts: Collection[str] = ()

    def __str__(self) -> str:
        """Columns to the right, the first and those of text to the left."""
        heads = zip_longest(*(name.split("\n") for name in self.columns), fillvalue="")
        lines = [[_text(cell) for cell in line] for line in (*heads, *self.rows)]
        left = [not i or name in self.texts for i, name in enumerate(self.columns)]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        texts = [
            "  ".join(
                cell.ljust(width) if text else cell.rjust(width)
                for cell, width, text in zip(line, widths, left, strict=True)
            ).rstrip()
            for line in lines
        ]
        return "\n".join([self.head, *texts] if self.rows else [self.head])

    def _repr_html_(self) -> str:
        """The same for notebooks."""

        def line(tag: str, cells: Sequence[object]) -> str:
            texts = (escape(_text(cell)).replace("\n", "<br>") for cell in cells)
            inner = "".join(f"<{tag}>{text}</{tag}>" for text in texts)
            return f"<tr>{inner}</tr>"

        body = line("th", self.columns) + "".join(line("td", row) for row in self.rows)
        table = f"<table>{body}</table>" if self.rows else ""
        return f"<p>{escape(self.head)}</p>{table}"


class Tabled(ABC):
    """A result that shows itself as tables.  Of a dataclass: ``@dataclass(repr=False)``."""

    @abstractmethod
    def tables(self) -> tuple[Table, ...]:
        """What it shows."""

    def __repr__(self) -> str:
        """The tables, one below the other."""
        return "\n".join(map(str, self.tables()))

    def _repr_html_(self) -> str:
        """The same for notebooks."""
        return "".join(table._repr_html_() for table in self.tables())


def _text(cell: object) -> str:
    return f"{cell:,}" if isinstance(cell, int) else str(cell)
