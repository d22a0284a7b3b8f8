"""Every pair of ranks, count, op, format, preset, collective, way and place (see matrix.py), and
several of them at once."""

from __future__ import annotations

import itertools
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.matrix import FACTORS, Case, pairwise, problems, started

ROWS = [Case(*row) for row in sorted(pairwise(FACTORS), key=repr)]  # type: ignore[arg-type]


@pytest.mark.parametrize("case", ROWS, ids=str)
def test_case(case: Case) -> None:
    assert not list(itertools.islice(problems(case), 5))


def test_every_pair_is_there() -> None:
    for (i, a), (j, b) in itertools.combinations(enumerate(FACTORS.values()), 2):
        assert {(row[i], row[j]) for row in ROWS} == set(itertools.product(a, b))


ONE = st.tuples(
    *(st.sampled_from(FACTORS[name]) for name in ("op", "element", "preset", "collective")),
    st.sampled_from(FACTORS["place"]),
)


@settings(max_examples=30, deadline=None)
@given(
    ranks=st.integers(1, 9),
    way=st.sampled_from(FACTORS["way"]),
    begun=st.lists(st.tuples(st.sampled_from(["0", "1", "slot+1", "prime"]), ONE), max_size=6),
    turns=st.randoms(use_true_random=False),
)
def test_several_under_way(
    ranks: int, way: str, begun: list[tuple[str, tuple[str, ...]]], turns: Random
) -> None:
    """Of one communicator, with faults; they are waited for in any order."""
    ends = []
    for count, one in begun:
        case = Case(ranks, count, *one[:4], way, one[4])
        ends.append((case, started(case)))
    turns.shuffle(ends)
    for case, end in ends:
        assert not list(itertools.islice(end(), 5)), case
