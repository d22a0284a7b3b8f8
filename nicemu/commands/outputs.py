"""Where the answers of `nicemu bench` go: to people, or as JSON, CSV or a picture to files.

Owns: the options that say so, and the files.  What is in them is their makers' matter.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TypeVar

import click

from nicemu.errors import ArgumentError
from nicemu.files import WholeFile

__all__ = ["Outputs", "answers"]

F = TypeVar("F", bound=Callable[..., Any])
STDOUT = "-"


def answers(function: F) -> F:
    """Where the answer goes."""
    for add in (
        click.option("--csv", "as_csv", type=click.Path(), help="Rows to a file; - is stdout."),
        click.option("--json", "as_json", type=click.Path(), help="All to a file; - is stdout."),
    ):
        function = add(function)
    return function


class Outputs:
    """Files that are opened before a measurement and written after it."""

    def __init__(self, stack: ExitStack, paths: Mapping[str, str | None]) -> None:
        """Reserve them: kind -> path, or None where it is not asked for."""
        asked = {kind: path for kind, path in paths.items() if path is not None}
        where = [path if path == STDOUT else str(Path(path).resolve()) for path in asked.values()]
        twice = [path for path, file in zip(asked.values(), where, strict=True)
                 if where.count(file) > 1]  # fmt: skip
        if twice:
            raise ArgumentError(f"--{' and --'.join(asked)} {twice[0]!r}: name two files")
        if "plot" in asked:
            from nicemu.bench.plot import picture_format

            self._format = picture_format(asked["plot"])
        self._files = {
            kind: None if path == STDOUT else stack.enter_context(WholeFile(path))
            for kind, path in asked.items()
        }

    def _write(self, kind: str, data: bytes) -> None:
        """What was made of one kind, if it was asked for."""
        if kind not in self._files:
            return
        file = self._files[kind]
        if file is None:
            click.echo(data, nl=False)
        else:
            with file.put() as part:
                part.write_bytes(data)

    def show(
        self,
        found: object,
        record: Any,
        rows: Sequence[Mapping[str, Any]],
        draw: Callable[[str], bytes] | None = None,
    ) -> None:
        """What was found in each form that is asked for; for people, unless - is.

        Args:
            found: for people.
            record: for JSON.
            rows: for CSV.
            draw: makes a picture in a format.
        """
        if draw is not None and "plot" in self._files:
            self._write("plot", draw(self._format))
        self._write("json", f"{json.dumps(record, indent=2)}\n".encode())
        lines = io.StringIO(newline="")
        table = csv.DictWriter(lines, rows[0], lineterminator="\n")
        table.writeheader()
        table.writerows(rows)
        self._write("csv", lines.getvalue().encode())
        if None not in self._files.values():
            click.echo(str(found))
