"""`python -m nicemu` is the command `nicemu`."""

from nicemu.cli import main

main()
