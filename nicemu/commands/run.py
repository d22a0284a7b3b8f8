"""`nicemu run`: a bare-metal program on emulated cores.

Owns: its arguments, the log's file, what it prints, the exit status.  Running is bare's affair.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from io import FileIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from nicemu.commands import options
from nicemu.commands.console import show_cores, size_of
from nicemu.device.machine import MACHINES
from nicemu.errors import ArgumentError, FileFormatError

if TYPE_CHECKING:  # imported where used: help needs no core
    from nicemu.device.bare import Outcome
    from nicemu.device.perf import Perf

__all__ = ["run"]

MOST_EXIT = 125  # of a guest: what shells leave to programs


@click.command()
@click.argument("file", type=click.Path())
@click.option("--cores", type=int, default=1, show_default=True, help="1..64.")
@click.option("--vlen", type=int, help="128, 256, 512 or 1024; 512 unless a machine has others.")
@click.option("--memory", default="256M", show_default=True, help="Bytes of RAM.")
@click.option("--isa", help="Extensions that are on, e.g. rv64imac_zicsr; all unless given.")
@click.option("--machine", type=click.Choice(list(MACHINES)), help="Count cycles, as on its cores.")
@click.option(
    "--budget", type=int, default=10**10, show_default=True,
    help="Most instructions + vector elements of each core.",
)  # fmt: skip
@click.option("--log", type=click.Path(), help="What each instruction commits; - is stdout.")
@options.json_flag
@click.pass_context
def run(
    ctx: click.Context,
    file: str,
    cores: int,
    vlen: int | None,
    memory: str,
    isa: str | None,
    machine: str | None,
    budget: int,
    log: str | None,
    as_json: bool,
) -> None:
    """Run a bare-metal RV64 program until it exits through tohost.

    All cores start at the entry in M-mode. The exit status is the program's, at most 125.
    """
    from nicemu.device import bare
    from nicemu.device.elf import load_elf
    from nicemu.device.perf import Perf

    printed = bytearray()  # for --json everything, else the last byte
    out = sys.stdout.buffer

    def write(data: bytes) -> None:
        if not as_json:
            out.write(data)
            if data == b"\n":
                out.flush()
            printed.clear()
        printed.extend(data)

    if log == "-" and as_json:
        raise ArgumentError("log '-' and --json both write to standard output: name a file")
    elf = load_elf(file)
    try:
        with _log(log, file) as lines:
            outcome = bare.run(
                elf,
                write,
                cores=cores,
                vlen=vlen,
                memory=size_of(memory),
                budget=budget,
                isa=isa,
                log=lines,
                machine=MACHINES[machine] if machine else None,
            )
    finally:
        out.flush()
    perf = None
    if machine and outcome.cycles is not None:
        perf = Perf(MACHINES[machine], outcome.counters, outcome.cycles)
    if as_json:
        record: dict[str, Any] = {
            "exit_code": outcome.exit_code,
            "host_seconds": outcome.seconds,
            "output": printed.decode("utf-8", "backslashreplace"),
            "cores": [asdict(c) for c in outcome.counters],
        }
        if outcome.cycles is not None:
            record["cycles"] = [asdict(c) for c in outcome.cycles]
        if perf is not None:
            record["perf"] = perf.record()
        click.echo(json.dumps(record, indent=2))
    else:
        if printed and printed[-1] != ord("\n"):
            click.echo()
        _show_outcome(outcome, perf)
    ctx.exit(min(outcome.exit_code, MOST_EXIT))


@contextmanager
def _log(path: str | None, program: str) -> Iterator[Callable[[bytes], object] | None]:
    """What takes the lines of a log: a file, `-` for standard output, None for nobody.

    The file is opened when there is something to write, after all arguments have been checked.
    """
    if path is None:
        yield None
        return
    if path == "-":
        yield sys.stdout.buffer.write
        return
    if Path(path).exists() and Path(path).samefile(program):
        raise ArgumentError(f"log {path!r} is the program itself: name another file")
    with ExitStack() as stack:
        opened: list[FileIO] = []

        def write(lines: bytes) -> None:
            try:
                if not opened:
                    opened.append(stack.enter_context(Path(path).open("wb", buffering=0)))
                rest = memoryview(lines)  # the lines come by the thousand
                while rest:
                    rest = rest[opened[0].write(rest) :]
            except OSError as e:
                raise FileFormatError(
                    f"{path}: the log cannot be written: {e.strerror}: name a writable place"
                ) from e

        yield write
        write(b"")  # of a run without a line


def _show_outcome(outcome: Outcome, perf: Perf | None) -> None:
    show_cores(
        ["instructions", "elements", "bytes loaded", "bytes stored"],
        [
            [
                c.instructions,
                c.elements,
                c.load_bytes + c.vector_load_bytes,
                c.store_bytes + c.vector_store_bytes,
            ]
            for c in outcome.counters
        ],
    )
    if perf is not None:
        if len(perf.cycles) > 1:
            rows = [[c.total, *(c.terms[name] for name in perf.terms)] for c in perf.cycles]
            show_cores(["cycles", *perf.terms], rows)
        click.echo(str(perf))
    rate = sum(c.instructions for c in outcome.counters) / max(outcome.seconds, 1e-9) / 1e6
    click.echo(f"host: {outcome.seconds:.3f} s, {rate:.1f} million instructions/s")
    click.echo(f"exit status: {outcome.exit_code}")
