"""A short run of the lockstep fuzzer against Spike; `python -m tests.lockstep` makes long ones."""

from __future__ import annotations

import itertools
import json
import os
import time
from collections.abc import Iterator
from fractions import Fraction

import numpy as np
import pytest

from nicemu._core import Insn, extension_names, instructions
from tests.encode import encode, image, limits, vtype
from tests.harts import simd_paths
from tests.lockstep.compare import MODIFIED
from tests.lockstep.generate import ANY
from tests.lockstep.layout import CODE, Batch
from tests.lockstep.oracle import missing
from tests.lockstep.session import SLOTS, Session
from tests.lockstep.shapes import APART, MSTATUS_UNITS, OTHERS
from tests.lockstep.shrink import from_dict, listing, shrink, to_dict
from tests.lockstep.subject import Subject
from tests.lockstep.words import table
from tests.test_vector_memory import access_of
from tests.vector_model import LMULS, SEWS, State, execute, legal_vtype

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


def test_every_card_is_dealt(session: Session) -> None:
    """The deck is what there is to compare: each once, and all of it in a few batches."""
    deck = session.generator.deck
    assert len(np.unique(deck, axis=0)) == len(deck)
    wanted = session.wanted(session.coverage)
    for column, cells in ((1, wanted.cells), (2, wanted.modes)):
        named = deck[deck[:, column] != ANY]
        assert np.array_equal(np.unique(named[:, [0, column]], axis=0), np.argwhere(cells))
    assert set(deck[:, 0]) == set(range(len(table().rows)))


def test_a_few_batches_leave_nothing_open() -> None:
    """Not even of rows whose addresses come out of registers that other rows write."""
    session = Session(SEED, 512, ["portable"], rows=r"^(vloxseg[28]ei64|vfredosum|fsqrt)")
    try:
        assert session.wanted(session.coverage).still_open()
        for number in range(3):
            session.run(number)
        assert session.wanted(session.coverage).still_open() == []
    finally:
        session.close()


def test_vtypes_are_the_manuals(session: Session) -> None:
    """Spike executes a vector row under those vtypes under which the models of V's chapters do, so
    that neither a cell which cannot be compared is waited for nor one left out."""
    t = table()
    wrong = []
    for i in np.flatnonzero(t.vector & ~t.configures):
        row = t.rows[i]
        for sew, lmul in itertools.product(SEWS, LMULS):
            code = vtype(sew, lmul, ta=False, ma=False)
            if legal_vtype(sew, LMULS[lmul]) and modelled(row, sew, LMULS[lmul]) != bool(
                session.shapes.allowed[i, code]
            ):
                wrong.append(f"{row.name} under e{sew},{lmul}")
    assert not wrong


def modelled(row: Insn, sew: int, lmul: Fraction) -> bool:
    """Is the row legal there, by the models, with operands that no rule forbids?"""
    vlen = 128
    if row.cls in ("vload", "vstore"):
        return access_of(row, APART["vd"], APART["vs2"], 1, sew, lmul, 1, vlen).legal
    o = {name: APART.get(name, OTHERS.get(name, 1)) for name in limits(row.format)}
    v, registers = bytes(32 * vlen // 8), (0,) * 32
    state = State(vlen, sew, lmul, 1, 0, 0, 0, v, registers, registers)
    return execute(row.name, row.format, o, state) is not None


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


def test_a_wrong_host_path_is_found() -> None:
    """The second path lacks Zbs here: its programs are told, as ending unlike the first's."""
    session = Session(SEED, 128, ["portable", "portable"], length=24, examine=4)
    extensions = [name for name in extension_names() if name != "zbs"]
    session.subjects[1] = Subject(128, "portable", extensions)
    try:
        session.run(0)
    finally:
        session.close()
    assert 0 < session.tally.alike < SLOTS
    assert session.tally.found and session.tally.unexamined
    assert all("on the first path" in part for f in session.tally.found for part in f.parts)


@pytest.mark.parametrize("fenced", [False, True])
def test_code_written_back_is_free_until_a_fence(session: Session, fenced: bool) -> None:
    """Spike goes on executing what it has decoded; after FENCE.I both see what memory holds."""
    program = Batch(bytearray(Batch.size(1, 128)), 1, 128)
    between = encode("fence.i") if fenced else encode("addi", rd=0, rs1=0)
    code = [
        encode("sw", rs1=5, rs2=7, imm=0),
        encode("addi", rd=10, rs1=10, imm=1),  # what x5 points to
        encode("sw", rs1=5, rs2=6, imm=0),
        between,
        encode("addi", rd=31, rs1=31, imm=-1),
        encode("bne", rs1=31, rs2=0, target=-16),
        encode("jalr", rd=0, rs1=0, imm=0),
    ]
    program.region(CODE, 0)[: 4 * len(code)] = np.frombuffer(image(code), np.uint8)
    program.x[0, [5, 6, 7, 31]] = CODE.base + 4, code[1], encode("addi", rd=10, rs1=10, imm=2), 2
    program.start[0] = CODE.base, 3, MSTATUS_UNITS, 0, 0, 100
    pair = session.pair("portable")
    pair.load(program, 0)
    difference = pair.first_difference()
    assert (difference is None) == fenced
    if difference is not None:
        assert (difference.row, difference.word) == ("addi", code[1])
        assert pair.freedom(difference) == MODIFIED
