"""Topologies: trees of devices with the workers at their leaves.

Owns: the presets, each a function that returns a tree, the reading of networkx graphs, walks over a
tree.  What runs on it is fabric's.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any

from nicemu.errors import ArgumentError
from nicemu.order import Order, Path

__all__ = ["TOPOLOGIES", "Tree", "topology"]

LEVELS = ("nic", "leaf", "spine")
CARDS = 4  # of a node
NODES = 4  # behind a leaf


@dataclass(frozen=True)
class Tree:
    """Who is whose parent.

    Attributes:
        root: name of the uppermost device.
        children: device -> its children from left to right: names of devices, and worker numbers.
    """

    root: str
    children: Mapping[str, tuple[str | int, ...]]

    def devices(self) -> list[str]:
        """Every device, parents first."""
        out = [self.root]
        for name in out:
            out += [child for child in self.children[name] if isinstance(child, str)]
        return out

    def workers(self) -> dict[str, tuple[int, ...]]:
        """Device -> the workers behind it, from left to right."""
        behind: dict[str, tuple[int, ...]] = {}
        for name in reversed(self.devices()):
            behind[name] = tuple(
                worker
                for child in self.children[name]
                for worker in ((child,) if isinstance(child, int) else behind[child])
            )
        return behind

    def order(self, ranks: Sequence[int]) -> tuple[Order, dict[str, Path]]:
        """Who merges whom when only these workers take part; ``ranks[i]`` is number i in it.

        Returns:
            The order, and where in it each device is that has some of them behind it.
        """
        parts: dict[str | int, Order] = {rank: i for i, rank in enumerate(ranks)}
        for name in reversed(self.devices()):
            if below := tuple(parts[child] for child in self.children[name] if child in parts):
                parts[name] = below
        paths: dict[str, Path] = {}
        left: list[tuple[str, Path]] = [(self.root, ())]
        while left:
            name, path = left.pop()
            paths[name] = path
            taking = [child for child in self.children[name] if child in parts]
            left += [
                (child, (*path, i))
                for i, child in reversed(list(enumerate(taking)))
                if isinstance(child, str)
            ]
        return parts[self.root], paths


def star(ranks: int) -> Tree:
    """One device."""
    return Tree("nic0", {"nic0": tuple(range(ranks))})


def grouped(ranks: int, sizes: tuple[int, ...], levels: int) -> Tree:
    """Levels of devices with so many children each (the last size again and again), the uppermost
    with all that are left; so many levels at least.
    """
    children: dict[str, tuple[str | int, ...]] = {}
    below: list[str | int] = list(range(ranks))
    level = 0
    while level < levels or len(below) > 1:
        size = len(below) if level == levels - 1 else sizes[min(level, len(sizes) - 1)]
        name = LEVELS[level] if level < len(LEVELS) else f"level{level}-"
        here: list[str | int] = []
        for i in range(0, len(below), size):
            here.append(f"{name}{i // size}")
            children[f"{name}{i // size}"] = tuple(below[i : i + size])
        below = here
        level += 1
    return Tree(str(below[0]), children)


def cards(ranks: int) -> Tree:
    """4 cards behind a node's NIC, 4 nodes behind a leaf switch, one spine: always three levels."""
    return grouped(ranks, (CARDS, NODES), 3)


def fanout(ranks: int, children: int) -> Tree:
    """As many levels as it takes, with so many children each."""
    if children < 2:
        raise ArgumentError(f"topology tree({children}): use at least tree(2)")
    return grouped(ranks, (children,), 0 if ranks > 1 else 1)


TOPOLOGIES: dict[str, Callable[..., Tree]] = {"star": star, "cards": cards, "tree": fanout}
_PRESET = re.compile(r"(\w+)(?:\((\d+)\))?")


def topology(which: Any, ranks: int) -> Tree:
    """A tree by preset, ``"star"``, ``"cards"`` or ``"tree(4)"``, or from a networkx graph.

    A DiGraph's edges go from parents to children; of a Graph the attribute ``root``
    (``graph.graph["root"]``) names the uppermost device.  Workers are the integers 0..ranks-1, or
    the names ``"rank0"``...; all other nodes are devices.  Children are in the order of the edges.

    Raises:
        ArgumentError: no such preset, or the graph is no such tree.
    """
    if isinstance(which, str):
        found = _PRESET.fullmatch(which)
        preset = TOPOLOGIES.get(found[1]) if found else None
        if found is None or preset is None or (found[2] is not None) != (preset is fanout):
            raise ArgumentError(f"topology {which!r} is unknown: use star, cards or tree(N)")
        return preset(ranks, int(found[2])) if found[2] else preset(ranks)
    if isinstance(which, type) or not hasattr(which, "adj") or not hasattr(which, "is_directed"):
        raise ArgumentError(
            f"topology is a {type(which).__name__}: pass a preset's name or a networkx graph"
        )
    return _from_graph(which, ranks)


def _worker(node: Any) -> int | None:
    if isinstance(node, Integral):
        return int(node)
    found = re.fullmatch(r"rank(\d+)", str(node))
    return int(found[1]) if found else None


def _from_graph(graph: Any, ranks: int) -> Tree:
    if graph.is_directed():
        roots = [node for node in graph if not graph.pred[node]]
        if len(roots) != 1:
            raise ArgumentError(f"topology has {len(roots)} nodes without a parent: a tree has one")
        root = roots[0]
    elif graph.graph.get("root") in graph:
        root = graph.graph["root"]
    else:
        raise ArgumentError("topology is not directed: name its root in graph.graph['root']")
    children: dict[str, tuple[str | int, ...]] = {}
    workers: list[int] = []
    todo: list[tuple[Any, Any]] = [(root, None)]
    seen = set()
    edges = graph.number_of_edges()
    if edges != len(graph) - 1:
        raise ArgumentError(
            f"topology is no tree: {len(graph)} nodes have {edges} edges: use {len(graph) - 1}"
        )
    for node, parent in todo:
        if node in seen:
            raise ArgumentError(f"topology is no tree: there are two ways to {node}")
        seen.add(node)
        below = [n for n in graph.adj[node] if n != parent]
        worker = _worker(node)
        if worker is not None:
            if below:
                raise ArgumentError(f"topology: worker {node} has children: only devices may")
            workers.append(worker)
            continue
        name = str(node)
        if not name or not name.isprintable() or "@" in name or name in children:
            raise ArgumentError(
                f"topology: device {name!r}: use different names, printable and without an @"
            )
        if not below:
            raise ArgumentError(f"topology: device {node} has no children: leave it out")
        children[name] = tuple(
            w if (w := _worker(child)) is not None else str(child) for child in below
        )
        todo += [(child, node) for child in below]
    if sorted(workers) != list(range(ranks)) or len(seen) != len(graph):
        raise ArgumentError(
            f"topology has the workers {sorted(workers)}: for {ranks} ranks use 0..{ranks - 1}, "
            "all of them behind one root"
        )
    if not children:
        raise ArgumentError(f"topology is worker {root} alone: put a device above it")
    return Tree(str(root), children)
