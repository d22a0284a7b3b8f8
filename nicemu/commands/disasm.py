"""`nicemu disasm`: the code of a file as instructions.

Owns: what kinds of file there are.  The lines are listing's.
"""

from __future__ import annotations

from pathlib import Path

import click

from nicemu.device.image import KernelImage
from nicemu.errors import FileFormatError, ImageError

__all__ = ["disasm"]


@click.command()
@click.argument("file", type=click.Path())
def disasm(file: str) -> None:
    """Print the code of an ELF executable or a kernel image as instructions."""
    from nicemu.device.listing import listing

    code, labels = _code_of(Path(file))
    for address, data in code:
        click.echo(str(listing(data, labels, address)))


def _code_of(path: Path) -> tuple[list[tuple[int, bytes]], dict[int, list[str]]]:
    """Stretches of code by address, and names of addresses."""
    from nicemu.device.elf import is_elf, parse_elf, read_file

    data = read_file(path)
    labels: dict[int, list[str]] = {}
    if is_elf(data):
        elf = parse_elf(data, str(path))
        for name, address in elf.symbols.items():
            if not name.startswith((".L", "$")):  # the assembler's own
                labels.setdefault(address, []).append(name)
        return [(address, bytes(code)) for address, code in elf.code], labels
    try:
        image = KernelImage.from_bytes(data)
    except ImageError as e:
        raise FileFormatError(f"{path}: is no ELF file, and no kernel image either: {e}") from e
    return [(0, image.code)], image.labels
