"""Arguments of a kind or range, and what is said of others: one line that names them.

Owns: checks that several modules share.  What an argument means is its function's affair.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import SupportsIndex

from nicemu.errors import ArgumentError

__all__ = ["known", "whole"]


def known(what: str, value: object, names: Iterable[str], rest: str = "") -> str:
    """A value that is one of some names.

    Args:
        what: is passed, for the message.
        value: as it is passed.
        names: of which it must be one.
        rest: what else the message names.

    Raises:
        ArgumentError: it is none of them.
    """
    names = tuple(names)
    if not isinstance(value, str) or value not in names:
        raise ArgumentError(f"{what} {value!r} is unknown: use one of {', '.join(names)}{rest}")
    return value


def whole(what: str, value: object, least: int, most: int) -> int:
    """A value that is a whole number, least..most.

    Raises:
        ArgumentError: it is none, or out of range.
    """
    if not isinstance(value, SupportsIndex):
        raise ArgumentError(f"{what} {value!r} is no whole number: use {least}..{most}")
    number = value.__index__()
    if not least <= number <= most:
        raise ArgumentError(f"{what} {number} is out of range: use {least}..{most}")
    return number
