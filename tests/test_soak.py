"""A few seeds of the soak test; `python -m tests.soak` runs as many as asked for."""

from __future__ import annotations

import os
from collections import Counter

from tests.soak import check

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
