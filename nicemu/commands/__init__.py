"""The commands of `nicemu`, a module each.  Only these import click and rich."""
