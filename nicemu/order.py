"""Who merges whom: an order, a nested tuple of ranks such as ``((0, 1, 2, 3), (4, 5, 6, 7))``.

Owns: its types and the walks over it.  A tuple is a device, a number a worker's rank; a device
merges its children from left to right.  Who decides on an order is topology's and algorithms'.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

__all__ = ["Order", "Path", "devices", "leaves"]

Order: TypeAlias = int | tuple["Order", ...]
#: of a device in an order: child indices from the root down; the root's own is ()
Path: TypeAlias = tuple[int, ...]


def leaves(order: Order) -> tuple[int, ...]:
    """The ranks in an order, from left to right."""
    found, left = [], [order]
    while left:
        node = left.pop()
        if isinstance(node, tuple):
            left += reversed(node)
        else:
            found.append(node)
    return tuple(found)


def devices(order: Order) -> Iterator[tuple[Path, tuple[Order, ...]]]:
    """Path and order of every device, children before their parent."""
    found: list[tuple[Path, tuple[Order, ...]]] = []
    left: list[tuple[Path, Order]] = [((), order)]
    while left:
        path, node = left.pop()
        if isinstance(node, tuple):
            found.append((path, node))
            left += [((*path, i), child) for i, child in enumerate(node)]
    return reversed(found)
