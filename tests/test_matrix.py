"""Every pair of ranks, count, op, format, preset, collective, way and place (see matrix.py)."""

from __future__ import annotations

import itertools

import pytest

from tests.matrix import FACTORS, Case, pairwise, problems

ROWS = [Case(*row) for row in sorted(pairwise(FACTORS), key=repr)]  # type: ignore[arg-type]


@pytest.mark.parametrize("case", ROWS, ids=str)
def test_case(case: Case) -> None:
    assert not list(itertools.islice(problems(case), 5))


def test_every_pair_is_there() -> None:
    for (i, a), (j, b) in itertools.combinations(enumerate(FACTORS.values()), 2):
        assert {(row[i], row[j]) for row in ROWS} == set(itertools.product(a, b))
