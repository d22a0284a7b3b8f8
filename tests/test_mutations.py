"""The table of mutations is about this tree: `python -m tests.mutations` applies them, which takes
minutes."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.mutations import MUTATIONS, ROOT, Mutation


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda m: m.what)
def test_mutation_fits_the_tree(mutation: Mutation) -> None:
    assert (ROOT / mutation.file).read_text().count(mutation.before) == 1
    assert mutation.before != mutation.after
    file, _, name = mutation.test.partition("::")
    tree = ast.parse((ROOT / file).read_text())
    assert name in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def test_every_invariant_has_a_mutation_and_a_test() -> None:
    numbers = {m.invariant for m in MUTATIONS} - {0}
    assert numbers == set(range(1, 9))
    for m in MUTATIONS:
        if m.invariant:
            assert f"::test_invariant_{m.invariant}_" in m.test


def test_mutations_have_names_of_their_own() -> None:
    assert len({m.what for m in MUTATIONS}) == len(MUTATIONS)
    assert all(Path(m.file).parts[0] in ("csrc", "nicemu") for m in MUTATIONS)
