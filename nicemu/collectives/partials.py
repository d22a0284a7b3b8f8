"""Partial sums: what each device has made of what it got, and of whom.

Owns: the record that users see, its collection from chunks, and the plan (who merges whom, by which
name) that they belong to.  How good they are is numerics' question.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from nicemu.order import Order, Path

__all__ = ["Partial", "Share", "gather", "ranks_text"]


@dataclass(frozen=True)
class Share:
    """A stretch of the array and the devices that reduce it.

    Attributes:
        elements: the stretch.
        order: nested tuple of ranks: who merges whom, from left to right.
        names: path of each device in ``order`` -> its name; the root is at ().
    """

    elements: range
    order: Order
    names: dict[Path, str]


@dataclass(frozen=True)
class Partial:
    """Partial sums of one device: unfinished, of the elements of its workers.

    Attributes:
        device: its name: ``nic0``, ``leaf0``, ``spine0``; ``rank3/2`` where a host made it.
        values: of all ``ranges``, one after another; of the preset's partial dtype.
        contributors: ranks in them, in the order in which they were merged.
        ranges: which elements of the array these are, ascending.
        time: virtual seconds from the collective's start until the last was complete; None where no
            clock runs.
    """

    device: str
    values: np.ndarray = field(repr=False)
    contributors: tuple[int, ...]
    ranges: tuple[range, ...]
    time: float | None = None

    @property
    def dtype(self) -> np.dtype:
        """Of the values."""
        return self.values.dtype

    def row(self) -> tuple[str, str, int, str, str]:
        """Device, ranks, elements, dtype and the first values, for tables."""
        shown = " ".join(f"{x}" if self.dtype.names else f"{float(x):.4g}" for x in self.values[:2])
        more = " ..." if self.values.size > 2 else ""
        ranks = ranks_text(self.contributors)
        return self.device, ranks, self.values.size, f"{self.dtype}", shown + more


def ranks_text(ranks: Sequence[int]) -> str:
    """``0..3, 6``: runs are drawn together."""
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and rank == runs[-1][-1] + 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    return ", ".join(f"{r[0]}..{r[-1]}" if len(r) > 1 else f"{r[0]}" for r in runs)


def gather(pieces: Iterable[Partial]) -> dict[str, Partial]:
    """One Partial per device, its chunks in the order of the array.

    Chunks of a device that are not of the same workers (when one of them was lost on the way) stay
    apart, under ``nic0 of 0..2`` and the like.
    """
    found: dict[tuple[str, tuple[int, ...]], list[Partial]] = {}
    for piece in pieces:
        found.setdefault((piece.device, piece.contributors), []).append(piece)
    devices = [device for device, _ in found]
    out = {}
    for (device, ranks), parts in found.items():
        name = device if devices.count(device) == 1 else f"{device} of {ranks_text(ranks)}"
        out[name] = _joined(parts)
    return out


def _joined(parts: list[Partial]) -> Partial:
    stretches = sorted(
        (
            (elements, values)
            for part in parts
            for elements, values in zip(part.ranges, _cut(part), strict=True)
        ),
        key=lambda stretch: stretch[0].start,
    )
    ranges: list[range] = []
    for elements, _ in stretches:
        if ranges and ranges[-1].stop == elements.start:
            ranges[-1] = range(ranges[-1].start, elements.stop)
        else:
            ranges.append(elements)
    times = [part.time for part in parts if part.time is not None]
    return Partial(
        device=parts[0].device,
        values=np.concatenate([values for _, values in stretches]),
        contributors=parts[0].contributors,
        ranges=tuple(ranges),
        time=max(times, default=None),
    )


def _cut(part: Partial) -> list[np.ndarray]:
    """The values of each range."""
    edges = np.cumsum([len(elements) for elements in part.ranges])[:-1]
    return np.split(part.values, edges)
