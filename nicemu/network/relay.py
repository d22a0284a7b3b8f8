"""A collective by hosts as virtual time sees it: messages, and what waits for what.

Owns: the list of messages, and the arrays that describe it to the C core.  Which messages there
are is algorithms' question; what frames cost, and the bytes that they stand for, csrc's and nic's.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from nicemu._core import BEAT

__all__ = ["Message", "Relay"]

#: nicemu_relayed, nicemu_wait
MESSAGE = np.dtype(
    [
        ("from", np.uint32),
        ("to", np.uint32),
        ("element", np.uint64),
        ("count", np.uint64),
        ("chunk", np.uint32),
        ("bytes", np.uint32),
        ("taken", np.uint32),
        ("given", np.uint32),
        ("asked", np.uint32),
        ("cycles", np.uint64),
    ],
    align=True,
)
WAIT = np.dtype([("before", np.uint32), ("after", np.uint32), ("there", np.uint32)])


@dataclass(frozen=True)
class Message:
    """Elements that one rank sends to another, which merges or stores them.

    Attributes:
        source, to: ranks; the same: nothing travels.
        elements: which of the whole array; at least one.
        chunk: elements of a full frame.
        size: bytes of an element in a frame.
        taken: bytes, for each element, that the NIC of ``to`` takes in to merge; 0: stored.
        given: bytes, for each element, that merging gives.
        cycles: of the handlers that merge each frame, shape (frames,); None: stored.
        asked: what those of a full frame ask of the banks, and those of the last one; dtype BEAT.
    """

    source: int
    to: int
    elements: range
    chunk: int
    size: int
    taken: int = 0
    given: int = 0
    cycles: np.ndarray | None = field(default=None, repr=False)
    asked: tuple[np.ndarray, np.ndarray] | None = field(default=None, repr=False)


class Relay:
    """Messages, numbered in the order in which they are added."""

    def __init__(self) -> None:
        """Without messages."""
        self.messages: list[Message] = []
        self._waits: list[tuple[int, int, int]] = []

    def add(
        self,
        message: Message,
        before: Iterable[int | None] = (),
        there: Iterable[int | None] = (),
    ) -> int:
        """Add a message: its number.

        Args:
            message: not an empty one.
            before: messages to its source, frames of which bring what its frames carry; None: that
                was there from the start.
            there: likewise messages to ``to``, which bring what its frames are merged with.
        """
        number = len(self.messages)
        self.messages.append(message)
        self._waits += [(other, number, 0) for other in before if other is not None]
        self._waits += [(other, number, 1) for other in there if other is not None]
        return number

    def arrays(self, nodes: Sequence[int]) -> dict[str, np.ndarray]:
        """The fields of a nicemu_relay; ``nodes``: of each rank."""
        cycles: list[np.ndarray] = []
        asked: list[np.ndarray] = []
        kinds: dict[int, int] = {}  # id of what is asked -> its place
        first, rows = 0, []
        for m in self.messages:
            kind = 0
            if m.asked is not None:
                kind = kinds.setdefault(id(m.asked), len(asked))
                if kind == len(asked):
                    asked += m.asked
            source, to = nodes[m.source], nodes[m.to]
            what = (m.elements.start, len(m.elements), m.chunk, m.size, m.taken, m.given)
            rows.append((source, to, *what, kind, first))
            if m.cycles is not None:
                cycles.append(m.cycles)
                first += m.cycles.size
        return {
            "messages": np.array(rows, MESSAGE),
            "waits": np.array(self._waits, WAIT),
            "cycles": np.concatenate([np.empty(0, np.uint64), *cycles]).astype(np.uint64),
            "asked": np.cumsum([each.size for each in asked], dtype=np.uint64),
            "beats": np.concatenate([np.empty(0, BEAT), *asked]),
        }
