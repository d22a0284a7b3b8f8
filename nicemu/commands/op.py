"""`nicemu op check|disasm|cost|trace`: what the author of a reduce op wants to know.

Owns: their arguments, and how the answers are printed.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, TypeVar

import click

from nicemu.commands import options
from nicemu.commands.console import DIFFERENT

if TYPE_CHECKING:  # imported where used: help needs no core
    from nicemu.ops.op import ReduceOp

__all__ = ["op"]

F = TypeVar("F", bound=Callable[..., Any])


def _about(function: F) -> F:
    """The arguments that say which image."""
    for add in (
        click.argument("name", metavar="FILE.py:NAME"),
        click.option("--element", help="Format of the elements; the op's own unless given."),
        options.preset("--preset"),
        options.json_flag,
    ):
        function = add(function)
    return function


def _on(function: F) -> F:
    """The arguments that say on which machine."""
    return options.machine(options.vlen(function))


def _op(name: str, element: str | None) -> ReduceOp:
    from nicemu.ops.opfile import find_op

    return find_op(name)(element or "float32")


@click.group()
def op() -> None:
    """Look into a reduce op: FILE.py:NAME, or the name of a built-in one."""


@op.command()
@_about
@_on
@click.option("--seed", type=int, default=0, show_default=True, help="Of the random elements.")
@click.pass_context
def check(
    ctx: click.Context,
    name: str,
    element: str | None,
    preset: str | None,
    machine: str,
    vlen: int | None,
    seed: int,
    as_json: bool,
) -> None:
    """Find out what can go wrong with an op, by running it on a core.

    The exit status is 1 when the op is not to be used.
    """
    which = options.machine_of(machine, vlen)
    found = _op(name, element).check(which, element=element, preset=preset, seed=seed)
    click.echo(json.dumps(found.record(), indent=2) if as_json else str(found))
    ctx.exit(0 if found.ok else DIFFERENT)


@op.command()
@_about
@_on
@click.option("--payload", type=int, default=1024, show_default=True, help="Bytes of a packet.")
def cost(
    name: str,
    element: str | None,
    preset: str | None,
    machine: str,
    vlen: int | None,
    payload: int,
    as_json: bool,
) -> None:
    """Count the instructions of every entry for full packets."""
    which = options.machine_of(machine, vlen)
    found = _op(name, element).cost(which, payload, element=element, preset=preset)
    click.echo(json.dumps(found.record(), indent=2) if as_json else str(found))


@op.command()
@_about
@_on
def disasm(
    name: str,
    element: str | None,
    preset: str | None,
    machine: str,
    vlen: int | None,
    as_json: bool,
) -> None:
    """Print the code of an op, and the lines of its source beside it."""
    which = options.machine_of(machine, vlen)
    found = _op(name, element).disasm(which, element=element, preset=preset)
    click.echo(json.dumps([asdict(row) for row in found.rows], indent=2) if as_json else str(found))


@op.command()
@_about
@_on
@click.option("--entry", default="acc", show_default=True, help="Of the image.")
def trace(
    name: str,
    element: str | None,
    preset: str | None,
    machine: str,
    vlen: int | None,
    entry: str,
    as_json: bool,
) -> None:
    """Print each instruction of one call on 8 elements, and what it wrote."""
    which = options.machine_of(machine, vlen)
    found = _op(name, element).trace(entry, machine=which, element=element, preset=preset)
    click.echo(json.dumps(found.record(), indent=2) if as_json else str(found))
