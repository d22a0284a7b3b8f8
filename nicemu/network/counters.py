"""What a fabric counts, and what became of planes that died.

Owns: the rows that users read.  Who counts is csrc's; :class:`nicemu.Fabric` fills them in.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

__all__ = ["FabricCounters", "LinkCounters", "Replay"]


@dataclass(frozen=True)
class LinkCounters:
    """What has happened to the frames of one direction of a link.

    ``sent + duplicated == delivered + lost + cut`` and what is under way.

    Attributes:
        sent: frames offered to it.
        duplicated: second copies that it has made.
        lost: frames that it has lost by chance.
        cut: copies that were lost because it was, or went, down.
        delivered: copies that reached the other end.
        reordered: copies that were held back.
        corrupted: copies in which it has flipped a bit.
    """

    sent: int
    duplicated: int
    lost: int
    cut: int
    delivered: int
    reordered: int
    corrupted: int


@dataclass(frozen=True)
class FabricCounters:
    """What has happened on all links and at all nodes since the fabric was made.

    Always ``sent + duplicated == delivered + lost + cut + under_way`` and
    ``delivered + injected == accepted + sum(drops.values())``.

    Attributes:
        sent: frames that workers and devices have sent.
        duplicated: second copies that links have made.
        lost: frames that links have lost by chance.
        cut: copies that were lost because a link was down.
        delivered: copies that reached the other end.
        under_way: copies that have not.
        reordered: copies that were held back.
        corrupted: copies in which a link has flipped a bit.
        damaged: of the accepted, those with a flipped bit in a place that nothing depends on.
        injected: frames passed to :meth:`Fabric.receive`.
        accepted: frames that passed all checks.
        drops: reason (row of drop.def) -> frames dropped, without zeros.
        resent: frames that workers have sent again by timer.
        repeated: frames that devices have sent again on a duplicate.
        calls: handler calls.
        merged: payloads that core 0, 1, ... of the devices have merged.
        events: events of the virtual time.
    """

    sent: int
    duplicated: int
    lost: int
    cut: int
    delivered: int
    under_way: int
    reordered: int
    corrupted: int
    damaged: int
    injected: int
    accepted: int
    drops: dict[str, int]
    resent: int
    repeated: int
    calls: int
    merged: tuple[int, ...]
    events: int

    def __sub__(self, before: FabricCounters) -> FabricCounters:
        """What has happened since then."""
        numbers = {
            row.name: getattr(self, row.name) - getattr(before, row.name)
            for row in fields(self)
            if row.name not in ("drops", "merged")
        }
        merged = tuple(n - m for n, m in zip(self.merged, before.merged, strict=True))
        drops = {name: n - before.drops.get(name, 0) for name, n in self.drops.items()}
        drops = {name: n for name, n in drops.items() if n}
        return FabricCounters(**numbers, merged=merged, drops=drops)


@dataclass(frozen=True)
class Replay:
    """A plane that died, and what was done about it; seconds of virtual time.

    Attributes:
        plane: which.
        chunks: that were begun again on the other plane.
        down: when its link went down; None where it did not, and its silence was found out.
        detected: when that was seen.
        replayed: when the last of the chunks was done; None: not yet.
    """

    plane: int
    chunks: int
    down: float | None
    detected: float
    replayed: float | None

    @property
    def detection_time(self) -> float | None:
        """From the link's end to its being seen."""
        return None if self.down is None else self.detected - self.down

    @property
    def replay_time(self) -> float | None:
        """From there until nothing was left of it."""
        return None if self.replayed is None else self.replayed - self.detected
