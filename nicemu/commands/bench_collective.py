"""`nicemu bench allreduce` and its family: a command for each row of nicemu.collectives.collective.

Owns: their arguments: nccl-tests', and those that say where.  What is measured is
nicemu.bench.collective's.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from itertools import product
from typing import TYPE_CHECKING, Any

import click

from nicemu.collectives.collective import COLLECTIVES, Collective
from nicemu.commands import options
from nicemu.commands.console import DIFFERENT, progress, size_of
from nicemu.commands.outputs import Outputs, answers

if TYPE_CHECKING:  # imported where used: help needs no core
    from nicemu.dtypes import Format
    from nicemu.ops.op import ReduceOp

__all__ = ["collectives"]

Option = Callable[[Callable[..., None]], Callable[..., None]]
LARGEST = 1 << 20  # bytes, where nobody says how many
EVERY = "all"
FLOAT = "float32"  # where an op leaves it open

# ---- arguments -----------------------------------------------------------------------------------

#: of collectives that carry arrays
SIZES: tuple[Option, ...] = (
    click.option(
        "-b", "--minbytes", default="8", show_default=True,
        help="Of the whole array: bytes, or K, M, G.",
    ),
    click.option("-e", "--maxbytes", help="The largest.  [default: 1M, or minbytes if more]"),
    click.option(
        "-f", "--stepfactor", type=int, default=2, show_default=True, help="From size to size."
    ),
    click.option("-i", "--stepbytes", help="From size to size, in place of a factor."),
    click.option(
        "-d", "--datatype",
        help="By its name here or in nccl-tests, or all.  [default: float, or the op's own]",
    ),
    click.option(
        "-c", "--check", type=int, default=1, show_default=True,
        help="Iterations before all others, each of other numbers, whose bits are compared with "
        "the reference; 0: none.",
    ),
    options.plot,
)  # fmt: skip
#: of those that reduce
OPS: tuple[Option, ...] = (
    click.option(
        "-o", "--op", "op", default="sum", show_default=True,
        help="A built-in op, FILE.py:NAME, or all: sum, prod, min, max, avg.",
    ),
    options.preset("--preset"),
)  # fmt: skip
#: of those with a root
ROOT: tuple[Option, ...] = (
    click.option("-r", "--root", type=int, default=0, show_default=True, help="Its rank."),
)
#: of all
WHERE: tuple[Option, ...] = (
    click.option(
        "-n", "--iters", type=int, default=5, show_default=True,
        help="Iterations that are timed. Each begins when the one before has ended, on an idle "
        "fabric; emulated times are equal where the window is a multiple of a device's cores, and "
        "more iterations make host times steadier.",
    ),
    click.option(
        "-w", "--warmup_iters", type=int, default=1, show_default=True,
        help="Before these: they fill caches of the host, and instruction caches of the machine.",
    ),
    click.option("--ranks", type=int, default=8, show_default=True, help="1..1024."),
    click.option("--topology", default="cards", show_default=True, help="star, cards, or tree(N)."),
    click.option(
        "--algorithm", default="auto", show_default=True,
        help="in-network, ring or halving-doubling.",
    ),
    click.option(
        "--window", type=int, default=16, show_default=True, help="Chunks in flight of a rank."
    ),
    click.option(
        "--mtu", type=int, default=1024, show_default=True, help="Most payload bytes of a frame."
    ),
    click.option(
        "--software", type=click.FloatRange(0, 1e6), default=0, show_default=True,
        help="Of a host, to send a message, microseconds.",
    ),
    click.option("--seed", type=int, default=0, show_default=True, help="Of the numbers."),
    options.machine,
    answers,
)  # fmt: skip


def collectives() -> list[click.Command]:
    """A command for each collective."""
    return [_command(record) for record in COLLECTIVES.values()]


def _command(record: Collective) -> click.Command:
    @click.pass_context
    def run(ctx: click.Context, /, **arguments: Any) -> None:
        ctx.exit(_run(record, **arguments))

    asked = [
        *(SIZES if record.carries else ()),
        *(OPS if record.reduces else ()),
        *(ROOT if record.rooted else ()),
        *WHERE,
    ]
    for option in reversed(asked):
        run = option(run)
    text = f"""Measure {record.name} as nccl-tests does.

    Times are emulated, of a fabric whose links, devices and cores take time; what the host took is
    beside them (`nicemu guide bench`). The exit code is 1 when a result is wrong.
    """
    return click.command(record.name, help=text)(run)


# ---- what they do --------------------------------------------------------------------------------


def _run(
    record: Collective,
    *,
    iters: int,
    warmup_iters: int,
    ranks: int,
    topology: str,
    algorithm: str,
    machine: str,
    window: int,
    mtu: int,
    software: float,
    seed: int,
    as_json: str | None,
    as_csv: str | None,
    plot: str | None = None,
    minbytes: str = "8",
    maxbytes: str | None = None,
    stepfactor: int = 2,
    stepbytes: str | None = None,
    datatype: str | None = None,
    op: str | None = None,
    preset: str | None = None,
    root: int = 0,
    check: int = 0,
) -> int:
    """Measure, show, and the exit code."""
    from nicemu.bench.collective import MICRO, Repeats, Where, collective_times, sizes
    from nicemu.bench.plot import bandwidths

    least = size_of(minbytes, "minbytes")
    most = max(LARGEST, least) if maxbytes is None else size_of(maxbytes, "maxbytes")
    step = None if stepbytes is None else size_of(stepbytes, "stepbytes")
    repeats = Repeats(iters, warmup_iters, check)
    where = Where(ranks, topology, algorithm, machine, window, mtu, software / MICRO)
    with ExitStack() as stack:
        outputs = Outputs(stack, {"json": as_json, "csv": as_csv, "plot": plot})
        cases = _cases(datatype, op)
        with progress(f"timing {record.name}") as advance:
            found = collective_times(
                record.name, where, cases,
                sizes(least, most, stepfactor, step) if record.carries else [0], repeats,
                root=root, preset=preset, seed=seed, leave_out=EVERY in (datatype, op),
                advance=advance,
            )  # fmt: skip
        outputs.show(found, found.record(), found.flat(), partial(bandwidths, found))
    return DIFFERENT if found.wrong else 0


def _cases(datatype: str | None, op: str | None) -> list[tuple[Format, ReduceOp | None]]:
    """Formats and ops that are asked for."""
    from nicemu.bench.collective import ALL_OPS, ALL_TYPES, type_of
    from nicemu.ops.opfile import find_op

    finds = [find_op(name) for name in (ALL_OPS if op == EVERY else (op,)) if name is not None]
    if datatype is None:
        own = finds[0](FLOAT).element if len(finds) == 1 else None
        datatype = FLOAT if own is None else own.name
    types = ALL_TYPES if datatype == EVERY else (type_of(datatype),)
    if not finds:
        return [(fmt, None) for fmt in types]
    return [(fmt, find(fmt)) for fmt, find in product(types, finds)]
