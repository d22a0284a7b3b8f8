"""Some hostile frames in each run of the suite; ``python -m tests.hostile`` sends ten million."""

from __future__ import annotations

from nicemu.network.packet import drops
from tests.hostile import run


def test_hostile_frames_change_nothing_but_their_counter() -> None:
    verdicts = run(30_000, seed=1)
    assert sum(verdicts.values()) >= 30_000
    # rare here, and tested by themselves in test_slot, test_fabric and test_packet
    rare = {"failed", "node", "protocol", "ip"}
    assert set(verdicts) >= {drop.name for drop in drops()} - rare
