"""Partial sums put together from chunks; tables."""

from __future__ import annotations

import numpy as np

from nicemu.collectives.partials import Partial, gather, ranks_text
from nicemu.tables import Table


def piece(device: str, start: int, stop: int, ranks: tuple[int, ...], time: float = 1.0) -> Partial:
    return Partial(
        device, np.arange(start, stop, dtype=np.float32), ranks, (range(start, stop),), time
    )


def test_chunks_are_joined_in_the_order_of_the_array() -> None:
    found = gather(
        [
            piece("nic0", 20, 30, (0, 1), 5.0),
            piece("leaf0", 0, 30, (0, 1, 2)),
            piece("nic0", 0, 10, (0, 1), 2.0),
            piece("nic0", 10, 20, (0, 1), 7.0),
            piece("nic0", 40, 45, (0, 1)),
        ]
    )
    assert list(found) == ["nic0", "leaf0"]
    nic = found["nic0"]
    assert nic.ranges == (range(30), range(40, 45)) and nic.contributors == (0, 1)
    assert nic.values.tolist() == [*range(30), *range(40, 45)]
    assert (nic.time, nic.dtype) == (7.0, np.float32)
    again = gather([nic, piece("nic0", 30, 40, (0, 1))])["nic0"]
    assert again.ranges == (range(45),) and again.values.tolist() == list(range(45))


def test_chunks_of_other_workers_stay_apart() -> None:
    found = gather([piece("nic0", 0, 4, (0, 1, 2)), piece("nic0", 4, 9, (0, 2))])
    assert {name: p.values.size for name, p in found.items()} == {
        "nic0 of 0..2": 4, "nic0 of 0, 2": 5
    }  # fmt: skip
    assert gather([]) == {}


def test_runs_of_ranks() -> None:
    assert ranks_text((0, 1, 2, 5, 7, 8, 3)) == "0..2, 5, 7..8, 3"
    assert ranks_text(()) == ""


def test_a_table_as_text_and_html() -> None:
    table = Table("a < b", ("name", "n"), [("x", 1), ("long", 2000)])
    assert str(table).splitlines() == ["a < b", "name      n", "x         1", "long  2,000"]
    html = table._repr_html_()
    assert "<p>a &lt; b</p>" in html and "<tr><td>x</td><td>1</td></tr>" in html
    empty = Table("nothing", ("name",), [])
    assert str(empty) == "nothing" and "table" not in empty._repr_html_()
