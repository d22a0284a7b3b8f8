"""`nicemu bench`: what things cost, in units that people know.

Owns: the group, and the arguments of insn, op and nic.  Those of collectives are
bench_collective's; what is measured is nicemu.bench.op's and its neighbours'.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from itertools import product
from typing import TYPE_CHECKING

import click

from nicemu.commands import options
from nicemu.commands.bench_collective import collectives
from nicemu.commands.console import progress
from nicemu.commands.outputs import Outputs, answers
from nicemu.device.machine import MACHINES, Machine

if TYPE_CHECKING:  # imported where used: help needs no core
    from nicemu.device.image import KernelImage

__all__ = ["bench"]

DEFAULT = ("sum", "scalar_sum")
ELEMENTS = ("float16", "bfloat16")  # where an op leaves it open


@click.group()
def bench() -> None:
    """Measure what things cost: instructions, ops, a device under load, collectives by size."""


for command in collectives():
    bench.add_command(command)

# ---- the commands --------------------------------------------------------------------------------


_rate = click.option(
    "--rate", type=click.FloatRange(0, min_open=True), default=200, show_default=True,
    help="Of a port, Gb/s.",
)  # fmt: skip


@bench.command()
@options.vlen
@click.option(
    "--sew", type=int, multiple=True, default=(16, 32), show_default=True, help="8, 16, 32, 64."
)
@click.option(
    "--lmul", type=int, multiple=True, default=(1, 4), show_default=True, help="1, 2, 4, 8."
)
@options.machine
@answers
def insn(
    vlen: int | None,
    sew: tuple[int, ...],
    lmul: tuple[int, ...],
    machine: str,
    as_json: str | None,
    as_csv: str | None,
) -> None:
    """Measure instructions of every class, by loops of one instruction."""
    from nicemu.bench.insn import insn_costs

    with ExitStack() as stack:
        outputs = Outputs(stack, {"json": as_json, "csv": as_csv})
        with progress("measuring instructions") as advance:
            found = insn_costs(options.machine_of(machine, vlen), sew, lmul, advance)
        outputs.show(found, found.record(), [row.record() for row in found.rows])


@bench.command()
@click.argument("ops", nargs=-1, metavar="[OP]...")
@click.option(
    "--dtype", "dtypes", multiple=True, help="Formats of elements.  [default: float16, bfloat16]"
)
@options.preset("--preset", "presets", multiple=True)
@click.option(
    "--payload", "payloads", type=int, multiple=True, default=(1024,), show_default=True,
    help="Bytes of a packet.",
)  # fmt: skip
@click.option("--vlen", "vlens", type=int, multiple=True, help="Of the cores, else the machine's.")
@click.option(
    "--ports", type=int, multiple=True, default=(1, 4), show_default=True, help="Of the device."
)
@_rate
@click.option("--by-vlen", is_flag=True, help="Print which VLEN keeps up, and no terms.")
@options.plot
@options.machine
@answers
def op(
    ops: tuple[str, ...],
    dtypes: tuple[str, ...],
    presets: tuple[str, ...],
    payloads: tuple[int, ...],
    vlens: tuple[int, ...],
    ports: tuple[int, ...],
    rate: float,
    by_vlen: bool,
    plot: str | None,
    machine: str,
    as_json: str | None,
    as_csv: str | None,
) -> None:
    """Measure whether ops keep up with the line rate of a device.

    OP is FILE.py:NAME, the name of a built-in op, or scalar_sum: the sum without vectors, by a loop
    over single elements. Without OP: sum, and where cores have vectors scalar_sum. Options may be
    given several times.
    """
    from nicemu.bench.op import GIGA, LineRate, op_rates
    from nicemu.bench.plot import rooflines
    from nicemu.compiler.target import target_of

    which = MACHINES[machine]
    machines = [replace(which, vlen=vlen) for vlen in vlens or (which.vlen,)]
    lines = [LineRate(count, rate * GIGA) for count in ports]
    with ExitStack() as stack:
        outputs = Outputs(stack, {"json": as_json, "csv": as_csv, "plot": plot})
        names = ops or (DEFAULT if target_of(which).vectors else DEFAULT[:1])
        with progress("timing ops") as advance:
            images = [image for name in names for image in _images(name, dtypes, presets, which)]
            found = op_rates(list(product(images, machines, payloads)), lines, advance)
        outputs.show(
            found.by_vlen() if by_vlen else found,
            found.record(),
            found.flat(),
            partial(rooflines, found),
        )


@bench.command()
@click.option("--op", default="sum", show_default=True, help="As OP of `nicemu bench op`.")
@click.option("--dtype", help="Format of elements.  [default: float16, or the op's own]")
@options.preset("--preset")
@click.option(
    "--payload", "payloads", type=int, multiple=True, default=(256, 512, 1024, 2048, 4096),
    show_default=True, help="Most bytes of a packet.",
)  # fmt: skip
@click.option(
    "--ports", type=int, multiple=True, default=(1, 4), show_default=True, help="Of the device."
)
@click.option("--cores", type=int, multiple=True, help="Of the device, else the machine's.")
@_rate
@click.option("--packets", type=int, default=1000, show_default=True, help="That each port gets.")
@click.option("--window", type=int, help="Chunks in flight.  [default: as many as there are slots]")
@click.option(
    "--scheduling", type=click.Choice(["slot", "free"]), default="slot", show_default=True,
    help="A packet goes to its slot's core, or to the first free one.",
)  # fmt: skip
@options.plot
@options.machine
@answers
def nic(
    op: str,
    dtype: str | None,
    preset: str | None,
    payloads: tuple[int, ...],
    ports: tuple[int, ...],
    cores: tuple[int, ...],
    rate: float,
    packets: int,
    window: int | None,
    scheduling: str,
    plot: str | None,
    machine: str,
    as_json: str | None,
    as_csv: str | None,
) -> None:
    """Measure a device under load: throughput and latency by packet size, ports and cores.

    Every port gets packets as fast as its link has them, or the device's slots are free; one of
    each port is reduced into one. Options of numbers may be given several times.
    """
    from nicemu.bench.nic import Load, nic_rates
    from nicemu.bench.op import GIGA, LineRate
    from nicemu.bench.plot import throughputs
    from nicemu.network.fabric import MAX_WINDOW

    which = MACHINES[machine]
    machines = [replace(which, cores=n) for n in cores or (which.cores,)]
    loads = [
        Load(
            LineRate(n, rate * GIGA), payload, packets,
            MAX_WINDOW if window is None else window, scheduling,
        )
        for n, payload in product(ports, payloads)
    ]  # fmt: skip
    with ExitStack() as stack:
        outputs = Outputs(stack, {"json": as_json, "csv": as_csv, "plot": plot})
        dtypes, presets = ([x] if x is not None else [] for x in (dtype, preset))
        with progress("loading devices") as advance:
            image = _images(op, dtypes, presets, which)[0]
            found = nic_rates([(image, *case) for case in product(machines, loads)], advance)
        outputs.show(found, found.record(), found.flat(), partial(throughputs, found))


def _images(
    name: str, dtypes: Sequence[str], presets: Sequence[str], machine: Machine
) -> list[KernelImage]:
    """The images of an op that are asked for."""
    from nicemu.bench.scalar import SCALAR_SUM, scalar_sum
    from nicemu.ops.opfile import find_op

    if name == SCALAR_SUM:
        return [scalar_sum(*case) for case in product(dtypes or ELEMENTS, presets or (None,))]
    find = find_op(name)
    if not dtypes:
        own = find(ELEMENTS[0]).element
        dtypes = ELEMENTS if own is None else (own.name,)
    return [
        find(dtype).image(dtype, preset, machine)
        for dtype, preset in product(dtypes, presets or (None,))
    ]
