"""Options that several commands have.

Owns: their names, their help, and the machine that two of them name together.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import click

from nicemu.device.image import PRESETS
from nicemu.device.machine import MACHINES, Machine

__all__ = ["json_flag", "machine", "machine_of", "plot", "preset", "vlen"]

json_flag = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
machine = click.option(
    "--machine", type=click.Choice(list(MACHINES)), default="card", show_default=True
)
vlen = click.option("--vlen", type=int, help="Bits of a vector register, else the machine's.")
plot = click.option("--plot", type=click.Path(), help="A picture: .png, .svg or .pdf (extra viz).")
#: preset("--preset"): the option; with the argument's name and multiple=True, several of them
preset = partial(
    click.option,
    type=click.Choice(list(PRESETS)),
    help="Where it rounds: once (wide), at every hop, or at every addition.  [default: the op's]",
)


def machine_of(name: str, vlen: int | None) -> Machine:
    """The machine that ``machine`` and ``vlen`` name.

    Raises:
        ArgumentError: a VLEN that no machine has.
    """
    return MACHINES[name] if vlen is None else replace(MACHINES[name], vlen=vlen)
