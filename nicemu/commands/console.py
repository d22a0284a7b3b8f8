"""What all commands share: how errors end, and how tables and sizes look.

Owns: exit codes (guide/errors.md), one line per error, tables on standard output.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

import click
from rich.console import Console
from rich.table import Table

from nicemu.errors import ArgumentError, NicemuError

__all__ = [
    "DIFFERENT",
    "Group",
    "console",
    "count",
    "progress",
    "show_cores",
    "show_rows",
    "size_of",
]

DIFFERENT, UNUSABLE, INTERRUPTED = 1, 2, 130  # exit codes
SIZES = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


class Group(click.Group):
    """Commands whose errors are one line on stderr and an exit code."""

    def make_context(self, *args: Any, **kwargs: Any) -> click.Context:
        """As click's, for standard streams that are closed."""
        for name in ("stdout", "stderr"):
            if getattr(sys, name) is None:  # it is closed, and its number free for any other file
                nowhere = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115
                setattr(sys, name, nowhere)
        with one_line():  # --help and --version print here
            return super().make_context(*args, **kwargs)

    def invoke(self, ctx: click.Context) -> Any:
        """As click's."""
        with one_line():
            return super().invoke(ctx)


@contextmanager
def one_line() -> Iterator[None]:
    try:
        yield
    except NicemuError as e:
        fail(str(e), UNUSABLE)
    except click.exceptions.NoArgsIsHelpError:
        raise  # it shows the help
    except click.UsageError as e:
        fail(wrong_usage(e), UNUSABLE)
    except OSError as e:
        if e.errno == errno.EPIPE:  # `| head`: click ends it quietly
            raise
        drop_output()
        fail(f"{e.strerror or e}: {e.filename or 'standard output'}", UNUSABLE)
    except MemoryError as e:
        fail(f"the host has no memory left ({e}): use smaller inputs", UNUSABLE)
    except KeyboardInterrupt:
        fail("interrupted", INTERRUPTED)


def wrong_usage(error: click.UsageError) -> str:
    """What click says of the arguments, and where to read on; it knows of no command where an
    option lacks its value, or has one that it does not take.
    """
    said = error.format_message().rstrip(".")
    see = f": see {error.ctx.command_path} --help" if error.ctx else ""
    return f"{said[0].lower()}{said[1:]}{see}"


def drop_output() -> None:
    """What standard output cannot take goes nowhere: the end of the process would fail of it."""
    try:
        sys.stdout.flush()
    except OSError:
        with Path(os.devnull).open("w", encoding="utf-8") as nowhere:
            os.dup2(nowhere.fileno(), sys.stdout.fileno())


def fail(message: str, code: int) -> NoReturn:
    click.echo(f"nicemu: {' '.join(message.split())}", err=True)
    raise click.exceptions.Exit(code)


def size_of(text: str, what: str = "memory") -> int:
    """A size: bytes, or K, M or G for powers of 1024."""
    digits = text.rstrip("KMG")
    unit = SIZES.get(text[len(digits) :])
    if unit is None or not (digits.isascii() and digits.isdigit()):
        raise ArgumentError(f"{what} {text!r} is no size: use e.g. 65536, 64K, 256M or 1G")
    return int(digits) * unit


def console() -> Console:
    """Standard output; 80 columns when it is no terminal.  Tables fold what does not fit."""
    return Console(highlight=False, markup=False)


def count(n: int, noun: str) -> str:
    """So many of them, in words."""
    return f"{n:,} {noun}" if n == 1 else f"{n:,} {noun}s"


@contextmanager
def progress(what: str) -> Iterator[Callable[[int, int], None]]:
    """A bar on stderr, when that is a terminal; it moves, or shows how much is done when told."""
    from rich.progress import Progress

    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(what, total=None)

        def advance(done: int, total: int) -> None:
            if total:  # else nothing is in flight any more
                bar.update(task, completed=done, total=total)

        yield advance


def show_rows(columns: Sequence[str], rows: Iterable[Iterable[object]]) -> None:
    """A table, its columns to the right."""
    table = Table()
    for name in columns:
        table.add_column(name, justify="right", overflow="fold")
    for row in rows:
        table.add_row(*(f"{cell:,}" if isinstance(cell, int) else str(cell) for cell in row))
    console().print(table)


def show_cores(columns: Sequence[str], rows: Sequence[Sequence[int]]) -> None:
    """One line per core, and their total."""
    table = Table(show_footer=len(rows) > 1)
    table.add_column("core", footer="all", justify="right", overflow="fold")
    for name, cells in zip(columns, zip(*rows, strict=True), strict=True):
        table.add_column(name, footer=f"{sum(cells):,}", justify="right", overflow="fold")
    for core, row in enumerate(rows):
        table.add_row(str(core), *(f"{n:,}" for n in row))
    console().print(table)
