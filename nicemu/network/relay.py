"""A collective by hosts as virtual time sees it: messages, and what waits for what.

Owns: the list of messages, and the arrays that describe it to the C core.  Which messages there
are is algorithms' question; what frames cost, and the bytes that they stand for, csrc's and nic's.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from nicemu._core import BEAT

__all__ = ["Merging", "Message", "Relay"]

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
class Merging:
    """What the NIC at the end of a message does with its frames, when it merges them.

    Attributes:
        taken: bytes, for each element, that it takes in to merge.
        given: bytes, for each element, that merging gives.
        cycles: of the handlers of each frame, shape (frames,), dtype uint64.
        asked: what the handlers of a full frame ask of the banks, and those of the last one; dtype
            BEAT, by ascending cycle.  Messages may share it.
    """

    taken: int
    given: int
    cycles: np.ndarray = field(repr=False)
    asked: tuple[np.ndarray, np.ndarray] = field(repr=False)


@dataclass(frozen=True)
class Message:
    """Elements that one rank sends to another, which merges or stores them.

    Attributes:
        source, to: ranks; the same: nothing travels.
        elements: which of the whole array; at least one.
        chunk: elements of a full frame.
        size: bytes of an element in a frame.
        merging: by the NIC of ``to``; None: frames are stored.
    """

    source: int
    to: int
    elements: range
    chunk: int
    size: int
    merging: Merging | None = None


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
        places: dict[int, int] = {}  # id of what is asked -> where it is in `asked`
        first, rows = 0, []
        for m in self.messages:
            merging = (0, 0, 0, 0)
            if (how := m.merging) is not None:
                place = places.setdefault(id(how.asked), len(asked))
                if place == len(asked):
                    asked += how.asked
                merging = (how.taken, how.given, place, first)
                cycles.append(how.cycles)
                first += how.cycles.size
            source, to = nodes[m.source], nodes[m.to]
            rows.append((source, to, m.elements.start, len(m.elements), m.chunk, m.size, *merging))
        return {
            "messages": np.array(rows, MESSAGE),
            "waits": np.array(self._waits, WAIT),
            "cycles": np.concatenate([np.empty(0, np.uint64), *cycles]).astype(np.uint64),
            "asked": np.cumsum([each.size for each in asked], dtype=np.uint64),
            "beats": np.concatenate([np.empty(0, BEAT), *asked]),
        }
