"""Arguments of a kind or range, and what is said of others: one line that names them.

Owns: checks that several modules share.  What an argument means is its function's affair.
"""

from __future__ import annotations

from collections.abc import Iterable
from numbers import Real
from operator import index
from typing import Any

import numpy as np

from nicemu.errors import ArgumentError

__all__ = ["flag", "function", "instance", "known", "real", "whole", "wholes"]

_MOST_SHOWN = 80  # characters of a value


def _shown(value: object) -> str:
    """A value in one line."""
    text = " ".join(repr(value).split())
    return text if len(text) <= _MOST_SHOWN else f"{text[: _MOST_SHOWN - 3]}..."


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
        raise ArgumentError(
            f"{what} {_shown(value)} is unknown: use one of {', '.join(names)}{rest}"
        )
    return value


def whole(what: str, value: object, least: int, most: int, unit: str = "") -> int:
    """A value that is a whole number, least..most; True and False are none.

    Raises:
        ArgumentError: it is none, or out of range.
    """
    use = f"use {least}..{most}{unit}"
    try:
        number = None if isinstance(value, bool) else index(value)  # type: ignore[arg-type]
    except TypeError:
        number = None
    if number is None:
        raise ArgumentError(f"{what} {_shown(value)} is no whole number: {use}")
    if not least <= number <= most:
        raise ArgumentError(f"{what} {number} is out of range: {use}")
    return number


def wholes(what: str, values: object, least: int, most: int) -> tuple[int, ...]:
    """Values that are whole numbers, least..most.

    Args:
        what: one of them is, for the message.
        values: as they are passed.
        least, most: of each.

    Raises:
        ArgumentError: they cannot be listed, or see :func:`whole`.
    """
    if not isinstance(values, Iterable) or isinstance(values, str | bytes):
        raise ArgumentError(f"{what} {_shown(values)} is no list: list numbers of {least}..{most}")
    try:
        listed = tuple(values)
    except TypeError:  # an array without axes
        listed = (values,)
    return tuple(whole(what, value, least, most) for value in listed)


def real(what: str, value: object, least: float, most: float, unit: str = "") -> float:
    """A value that is a number, least..most; True, False and NaN are none.

    Raises:
        ArgumentError: it is none, or out of range.
    """
    use = f"use {least:g}..{most:g}{unit}"
    if not isinstance(value, Real) or isinstance(value, bool):
        raise ArgumentError(f"{what} {_shown(value)} is no number: {use}")
    number: Any = value
    if not least <= number <= most:
        raise ArgumentError(f"{what} {_shown(value)} is out of range: {use}")
    return float(number)


def flag(what: str, value: object) -> bool:
    """A value that is True or False.

    Raises:
        ArgumentError: it is neither.
    """
    if not isinstance(value, bool | np.bool_):
        raise ArgumentError(f"{what} {_shown(value)} is neither: use True or False")
    return bool(value)


def instance(what: str, value: object, kinds: type | tuple[type, ...], use: str) -> Any:
    """A value that is of one of some types.

    Args:
        what: is passed, for the message.
        value: as it is passed.
        kinds: of which it must be one.
        use: what to pass instead, for the message.

    Raises:
        ArgumentError: it is of another.
    """
    if not isinstance(value, kinds):
        raise ArgumentError(f"{what} is of type {type(value).__name__}: {use}")
    return value


def function(what: str, value: object) -> None:
    """See to it that a value can be called, or is None.

    Raises:
        ArgumentError: it cannot.
    """
    if value is not None and not callable(value):
        raise ArgumentError(f"{what} {_shown(value)} cannot be called: pass a function or None")
