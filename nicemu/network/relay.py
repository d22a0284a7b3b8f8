"""A collective by hosts as virtual time sees it: messages, and what waits for what.

Owns: the list of messages, and the arrays that describe it to the C core.  Which messages there
are is algorithms' question; what frames cost, and the bytes that they stand for, csrc's and nic's.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

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
        cycles: of the handlers that merge each frame, shape (frames,); None: stored.
    """

    source: int
    to: int
    elements: range
    chunk: int
    size: int
    taken: int = 0
    cycles: np.ndarray | None = field(default=None, repr=False)


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

    def arrays(self, nodes: Sequence[int]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Messages, waits and cycles for the C core; ``nodes``: of each rank."""
        cycles = [m.cycles for m in self.messages if m.cycles is not None]
        first, rows = 0, []
        for m in self.messages:
            source, to = nodes[m.source], nodes[m.to]
            start, count = m.elements.start, len(m.elements)
            rows.append((source, to, start, count, m.chunk, m.size, m.taken, first))
            first += 0 if m.cycles is None else m.cycles.size
        return (
            np.array(rows, MESSAGE),
            np.array(self._waits, WAIT),
            np.concatenate(cycles).astype(np.uint64) if cycles else np.zeros(0, np.uint64),
        )
