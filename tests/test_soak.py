"""A few seeds of the soak test; `python -m tests.soak` runs as many as asked for."""

from __future__ import annotations

import os
from collections import Counter

import pytest

from nicemu.network.exchange import Exchange
from nicemu.network.fabric import Fabric
from tests.soak import WIRE, check, main

SEEDS = int(os.environ.get("NICEMU_SOAK_SEEDS", "20"))


def test_bad_links_change_no_bit() -> None:
    total = Counter[str]()
    for seed in range(SEEDS):
        total.update(check(seed))
    for what in (
        "lost",
        "duplicated",
        "reordered",
        "corrupted",
        "resent",
        "repeated",
        "begun again",
    ):
        assert total[what] > 0, what


def test_copies_of_a_frame_are_corrupted_apart() -> None:
    """Frames of 90 bytes, each sent twice: a bit flipped in one's ICRC is not in the other's."""
    fabric = Fabric(2, "star", duplicate=1.0, corrupt=0.3)
    with fabric.group(window=1) as group:
        for _ in range(200):
            group.start(Exchange(None, [None, None], [None, None])).wait()
        fabric.run()
    c = fabric.counters()
    assert c.corrupted > 400
    assert sum(n for name, n in c.drops.items() if name in WIRE) + c.damaged <= c.corrupted


def test_the_command_ends_with_its_sums(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seeds", "2"]) == 0
    *sums, last = capsys.readouterr().out.splitlines()
    assert last.startswith("2 seeds, 0 fail")
    assert {"sent", "merged"} <= {line.split()[0] for line in sums}
