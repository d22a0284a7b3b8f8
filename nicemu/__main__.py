"""The command `nicemu`, also as `python -m nicemu`.

Imports almost nothing itself, so that an early Ctrl-C, too, ends in one line.
"""

from __future__ import annotations

import sys

__all__ = ["main"]


def main() -> None:
    """Run the command of the process's arguments and exit."""
    try:
        from nicemu.cli import main as command

        command(prog_name="nicemu")
    except KeyboardInterrupt:  # while that was being imported
        print("nicemu: interrupted", file=sys.stderr)
        sys.exit(130)


if __name__ == "__main__":
    main()
