"""`nicemu cache info|clear`: the images that are kept.

Owns: what is printed.  The cache is image's.
"""

from __future__ import annotations

import json
from contextlib import suppress

import click

from nicemu.commands import options
from nicemu.commands.console import count
from nicemu.device.image import cache_dir, cached_files

__all__ = ["cache"]


@click.group()
def cache() -> None:
    """The cache of kernel images."""


@cache.command()
@options.json_flag
def info(as_json: bool) -> None:
    """Where it is, and how much is in it."""
    sizes = []
    for path in cached_files():
        with suppress(FileNotFoundError):  # others write and clear at the same time
            sizes.append(path.stat().st_size)
    if as_json:
        where = cache_dir()
        record = {"directory": where and str(where), "images": len(sizes), "bytes": sum(sizes)}
        click.echo(json.dumps(record, indent=2))
        return
    click.echo(f"directory: {cache_dir() or 'none: there is no home directory'}")
    click.echo(f"{count(len(sizes), 'image')}, {sum(sizes):,} bytes")


@cache.command()
def clear() -> None:
    """Remove the images; what is not nicemu's stays."""
    files = cached_files()
    for path in files:
        path.unlink(missing_ok=True)
    click.echo(f"{count(len(files), 'image')} removed")
