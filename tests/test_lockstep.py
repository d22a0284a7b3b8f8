"""A short run of the lockstep fuzzer against Spike; `python -m tests.lockstep` makes long ones."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator

import numpy as np
import pytest

from nicemu._core import extension_names, instructions
from tests.harts import simd_paths
from tests.lockstep.oracle import missing
from tests.lockstep.session import SLOTS, Session
from tests.lockstep.shrink import from_dict, listing, shrink, to_dict
from tests.lockstep.words import table

SECONDS = float(os.environ.get("NICEMU_LOCKSTEP_SECONDS", "0"))
SEED = int(os.environ.get("NICEMU_LOCKSTEP_SEED", "1"))

if reason := missing():
    pytest.skip(reason, allow_module_level=True)


@pytest.mark.parametrize("vlen", [128, 512])
def test_lockstep(vlen: int, capsys: pytest.CaptureFixture[str]) -> None:
    """The same end states in Spike and on every host path, and enough of them compared."""
    session = Session(SEED, vlen, simd_paths())
    end = time.monotonic() + SECONDS / 2
    try:
        session.run_while(lambda s: time.monotonic() < end or s.tally.alike <= SLOTS)
    finally:
        session.close()
    c = session.coverage
    with capsys.disabled():
        print(f"\nlockstep vlen={vlen}: {c.instructions} instructions, {c.traps.sum()} traps")
    assert not session.tally.died and not session.tally.unexamined
    assert not session.not_here
    assert not session.tally.found, "\n".join(map(str, session.tally.found))
    assert c.instructions > 10_000
    assert c.traps[[1, 2, 3, 5, 6, 7]].all()
    assert np.count_nonzero(c.cells.sum(axis=(1, 2))) > len(table().rows) * 3 // 4
    explained = session.tally.freedoms.total() + session.tally.unfinished
    assert explained < c.programs / 10


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    session = Session(SEED, 128, ["portable"])
    yield session
    session.close()


def test_batches_repeat(session: Session) -> None:
    """The same seed and number give the same programs; another number gives others."""
    batch = session.oracle.batch
    session.generator.fill(batch, 7)
    first = batch.copy(range(SLOTS))
    session.generator.fill(batch, 8)
    assert not np.array_equal(first.memory, batch.memory)
    session.generator.fill(batch, 7)
    for name in ("memory", "x", "f", "v", "start"):
        assert np.array_equal(getattr(first, name), getattr(batch, name))


def test_a_wrong_core_is_found() -> None:
    """Without Zbs, which Spike has: every difference names one of its rows, cut down to it."""
    extensions = [name for name in extension_names() if name != "zbs"]
    session = Session(SEED, 128, ["portable"], extensions=extensions, length=24, examine=4)
    try:
        session.run(0)
        assert session.tally.found
        zbs = [row for row in instructions() if row.extension == "zbs"]
        for found in session.tally.found:
            assert found.difference is not None
            word = found.difference.word
            assert word is not None and any(word & r.mask == r.match for r in zbs)
        first = session.tally.found[0]
        pair = session.pair("portable")
        small = shrink(first.program, pair, None, whole=False)
        assert listing(small, pair).count("illegal") == 1
        assert len(listing(small, pair).splitlines()) <= 4
        again = from_dict(json.loads(json.dumps(to_dict(small))))
        pair.load(again, 0)
        difference = pair.first_difference()
        assert difference is not None and difference.word is not None
        assert any(difference.word & r.mask == r.match for r in zbs)
    finally:
        session.close()
