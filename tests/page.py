"""``python -m tests.page examples``: run the programs and commands of a page of the guide, programs
in one namespace, and write what each prints below it.

A block of ``text`` right after a block of ``python`` is what that program prints; after one of
``sh``, what its command, one of nicemu's, prints.
"""

from __future__ import annotations

import io
import re
import shlex
import sys
from collections.abc import Iterator
from contextlib import chdir, redirect_stdout
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from click.testing import CliRunner

import nicemu
from nicemu.cli import main as cli

_PROGRAM = re.compile(
    r"```(?P<kind>python|sh)\n(?P<code>.*?)```\n(?:```text\n(?P<shown>.*?)```\n)?", re.S
)


def path(page: str) -> Path:
    """Of a page's file."""
    return Path(nicemu.__file__).parent / "guide" / f"{page}.md"


def run(text: str, names: dict[str, Any]) -> Iterator[tuple[re.Match[str], str]]:
    """Each program of a page and what it prints; names: its namespace."""
    for found in _PROGRAM.finditer(text):
        if found["kind"] == "sh":
            yield found, _command(found["code"])
            continue
        printed = io.StringIO()
        with redirect_stdout(printed):
            exec(found["code"], names)
        yield found, printed.getvalue()


def _command(text: str) -> str:
    """What a command prints."""
    program, *arguments = shlex.split(text)
    assert program == "nicemu", text
    result = CliRunner().invoke(cli, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.stderr
    return result.stdout


def main() -> None:
    for page in sys.argv[1:]:
        text = path(page).read_text()
        with TemporaryDirectory() as folder, chdir(folder):  # for what programs write
            printed = iter([lines for _, lines in run(text, {})])

        def rewritten(found: re.Match[str], printed: Iterator[str] = printed) -> str:
            lines = next(printed)
            shown = f"```text\n{lines}```\n" if lines else ""
            return f"```{found['kind']}\n{found['code']}```\n{shown}"

        path(page).write_text(_PROGRAM.sub(rewritten, text))


if __name__ == "__main__":
    main()
