"""The command `nicemu`: the list of its commands.

Owns: the group.  Each command is a module of nicemu.commands.
"""

from __future__ import annotations

import click

from nicemu import __version__
from nicemu.commands.allreduce import allreduce
from nicemu.commands.bench import bench
from nicemu.commands.cache import cache
from nicemu.commands.console import Group
from nicemu.commands.disasm import disasm
from nicemu.commands.guide import guide
from nicemu.commands.op import op
from nicemu.commands.run import run

__all__ = ["main"]


@click.group("nicemu", cls=Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, message="nicemu %(version)s")
def main() -> None:
    """Emulate a SmartNIC whose eight RISC-V cores reduce FP16/BF16 gradients, to the bit."""


for command in (allreduce, op, bench, run, disasm, cache, guide):
    main.add_command(command)
