"""`nicemu guide`: the pages of the documentation.

Owns: how they are shown.  They are nicemu/guide/*.md.
"""

from __future__ import annotations

import sys
from importlib import resources

import click
from rich.console import Console

from nicemu.errors import ArgumentError

__all__ = ["guide"]


@click.command()
@click.argument("topic", default="index")
def guide(topic: str) -> None:
    """Show the documentation of a TOPIC; without one, what topics there are."""
    folder = resources.files("nicemu") / "guide"
    topics = sorted(p.name[:-3] for p in folder.iterdir() if p.name.endswith(".md"))
    if topic not in topics:
        raise ArgumentError(f"topic {topic!r} is unknown: use one of {', '.join(topics)}")
    text = (folder / f"{topic}.md").read_text(encoding="utf-8")
    if not sys.stdout.isatty():
        click.echo(text.rstrip("\n"))
        return
    from rich.markdown import Markdown

    Console().print(Markdown(text))
