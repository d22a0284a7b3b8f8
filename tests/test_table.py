"""The instruction table as a whole: overlaps, reach, coverage, extensions, units, classes.

What single instructions compute is in the other modules; here every row is run at least once.
"""

from __future__ import annotations

import random
from itertools import combinations

import pytest

from nicemu import _core
from nicemu._core import Cores, Insn, Stop, class_names, extension_names, instructions
from tests import words
from tests.encode import encode, fields, image, vtype
from tests.test_encode import some_operands

ROWS = instructions()
CODE, DATA, ROOM = 0x1000, 0x100000, 1 << 16
FS, VS = 3 << 13, 3 << 9
#: rows that end in a trap by definition: the cause
TRAPS = {"ecall": 11, "ebreak": 3, "c.ebreak": 3}
VECTOR = {name for name in class_names() if name.startswith("v")}
FP_EXTENSIONS = {"f", "d", "zfh", "zfbfmin", "h16", "cd"}
#: extension -> those that bring its rows; "i" and "priv" are always there
PARENTS = {"h16": ("zfh", "zfbfmin"), "cd": ("c",)}


def test_overlaps_are_nested() -> None:
    """Where two rows share a word, one is the strict special case of the other."""
    for a, b in combinations(ROWS, 2):
        if a.size != b.size or (a.match ^ b.match) & a.mask & b.mask:
            continue
        common = a.mask & b.mask
        assert a.mask != b.mask and common in (a.mask, b.mask), (a.name, b.name)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_row_is_consistent(row: Insn) -> None:
    assert row.match & ~row.mask == 0
    assert row.size == (4 if row.match & 3 == 3 else 2)
    assert row.mask & 3 == 3 and row.mask < 1 << 8 * row.size
    assert row.extension in extension_names() and row.cls in class_names()
    for f in fields(row.format):  # operands lie where the mask leaves room, or in part of a hint
        place = ((1 << (f.hi - f.lo + 1)) - 1) << f.position
        assert not place & row.mask or row.name in ("c.nop", "c.addi16sp"), (row.name, f)


def test_every_class_is_used() -> None:
    assert {row.cls for row in ROWS} == set(class_names())


def test_every_extension_with_rows_is_used() -> None:
    """zicntr is CSRs only, zvfh is SEW 16 in the FP rows of V."""
    assert set(extension_names()) - {row.extension for row in ROWS} == {"zicntr", "zvfh"}


# ---- every row runs --------------------------------------------------------------------------


class Bench:
    """One hart in M-mode, units on and dirty, every address register in the middle of the data."""

    def __init__(self, extensions: list[str] | None = None) -> None:
        self.cores = Cores(extensions=extensions)
        self.cores.map(CODE, ROOM, _core.R | _core.X)
        self.cores.map(DATA, ROOM, _core.R | _core.W)

    def prepare(self, units: int = FS | VS) -> None:
        self.cores.reset(CODE)
        self.cores.x()[1:] = DATA + ROOM // 2
        self.cores.set_csr("mstatus", units)
        self.cores.set_csr("mepc", CODE + 64)

    def configure(self, sew: int) -> None:
        """Vector length 4 of SEW bits by a vsetivli of its own."""
        word = encode("vsetivli", rd=0, uimm=4, vtype=vtype(sew))
        self.cores.write(CODE, image([word]))
        stop = self.cores.run(1)
        assert stop.instructions == 1, stop

    def step(self, word: int, size: int) -> Stop:
        self.cores.write(CODE, word.to_bytes(size, "little") + bytes(4))
        self.cores.set_pc(CODE)
        self.cores.clear_counters()
        return self.cores.run(1)


@pytest.fixture(scope="module")
def bench() -> Bench:
    return Bench()


def plain_word(row: Insn, rng: random.Random) -> int:
    """The row with operands that no rule forbids: jumps stay in the code, vector registers do not
    overlap, rounding is dynamic."""
    values = some_operands(row, rng)
    fixed = {"vd": 8, "vs3": 8, "vs2": 16, "vs1": 24, "vm": 1, "rm": 7, "target": 16}
    fixed |= {"vtype": vtype(16), "csr": 0x340, "imm": 8 if row.cls in ("load", "store") else 0}
    for name in values:
        if name in fixed:
            values[name] = fixed[name]
        elif name in ("rs1", "rs2", "rs3", "rd"):
            values[name] = rng.randrange(8, 16)
    if row.format in ("VLS", "VSS"):  # a stride of 0
        values["rs2"] = 0
    if row.format in ("CI16", "CIW", "CLUI", "CLI", "CI", "CIW0", "CANDI"):
        for name in ("imm", "uimm", "hi20"):
            if name in values:
                values[name] = 16
    return encode(row.name, **values)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_every_row_runs(row: Insn, bench: Bench) -> None:
    """It retires and is counted in its class, or takes its documented trap."""
    word = plain_word(row, random.Random(row.name))
    stops = []
    for sew in (16, 32, 64, 8) if row.cls in VECTOR else (0,):
        bench.prepare()
        if sew:
            bench.configure(sew)
        stop = bench.step(word, row.size)
        stops.append(stop)
        if row.name in TRAPS:
            assert (stop.reason, stop.cause, stop.pc) == (_core.FAULT, TRAPS[row.name], CODE)
            assert stop.instructions == 0 and bench.cores.counters().classes == {}
            return
        if stop.reason == _core.BUDGET:
            assert stop.instructions == 1
            assert bench.cores.counters().classes == {row.cls: 1}
            if row.cls not in ("jump", "branch") and row.name != "mret":
                assert stop.pc == CODE + row.size
            return
    pytest.fail(f"{row.name} {word:#x} never retired: {stops}")


# ---- what is off traps -----------------------------------------------------------------------


def without(extension: str) -> Cores:
    off = {extension, *PARENTS.get(extension, ())}
    return Cores(extensions=[e for e in extension_names() if e not in off])


@pytest.mark.parametrize("extension", [e for e in extension_names() if e not in ("i", "priv")])
def test_extension_off(extension: str) -> None:
    cores = without(extension)
    rng = random.Random(extension)
    for row in ROWS:
        found = cores.decode(plain_word(row, rng))
        if row.extension == extension:
            assert found is None, f"{row.name} is still there without {extension}"
        elif row.extension not in {"h16", "cd"} | set(PARENTS.get(extension, ())):
            assert found is row, f"{row.name} went with {extension}"


@pytest.mark.parametrize(
    ("on", "rows"),
    [
        (("zfh",), {"flh": True, "c.fld": False}),
        (("zfbfmin",), {"flh": True, "fadd.h": False}),
        (("f", "d"), {"flh": False, "c.fld": False}),
        (("f", "d", "c"), {"flh": False, "c.fld": True}),
        (("c",), {"c.fld": False, "c.lw": True}),
    ],
)
def test_derived_extensions(on: tuple[str, ...], rows: dict[str, bool]) -> None:
    cores = Cores(extensions=["i", *on])
    words = {row.name: plain_word(row, random.Random(1)) for row in ROWS if row.name in rows}
    assert {name: cores.decode(word) is not None for name, word in words.items()} == rows


@pytest.mark.parametrize("extension", ["f", "v", "zicntr"])
def test_csrs_go_with_their_extension(extension: str) -> None:
    cores = without(extension)
    mine = {"f": "fcsr", "v": "vl", "zicntr": "cycle"}
    for owner, name in mine.items():
        if owner == extension:
            with pytest.raises(_core.ArgumentError):
                cores.csr(name)
        else:
            cores.csr(name)


def unit_of(row: Insn) -> int:
    """mstatus fields that must not be 0 for the row to be legal."""
    vector_fp = row.cls.startswith("vf")
    return (FS if row.extension in FP_EXTENSIONS or vector_fp else 0) | (
        VS if row.cls in VECTOR else 0
    )


@pytest.mark.parametrize("row", [r for r in ROWS if unit_of(r)], ids=lambda row: row.name)
def test_unit_off(row: Insn, bench: Bench) -> None:
    """Each needed unit that is off makes it illegal; mtval is the encoding, nothing is counted."""
    word = plain_word(row, random.Random(row.name))
    for field in (FS, VS):
        if not unit_of(row) & field:
            continue
        bench.prepare((FS | VS) & ~field)
        stop = bench.step(word, row.size)
        assert (stop.reason, stop.cause, stop.address) == (_core.FAULT, 2, word)
        assert stop.instructions == 0 and bench.cores.counters().instructions == 0


@pytest.mark.parametrize("row", [r for r in ROWS if unit_of(r)], ids=lambda row: row.name)
def test_invalid_frm(row: Insn, bench: Bench) -> None:
    """frm 5..7: dynamic rounding and vector FP computation are illegal, a static mode is not."""
    rounds = any(f.operand == "rm" for f in fields(row.format))
    if not rounds and not row.cls.startswith("vf"):
        return
    word = plain_word(row, random.Random(row.name))
    for frm in (5, 6, 7):
        for rm in (7, 0) if rounds else (7,):
            bench.prepare()
            if row.cls in VECTOR:
                bench.configure(32)
            bench.cores.set_csr("frm", frm)
            stop = bench.step(word & ~(7 << 12) | rm << 12 if rounds else word, row.size)
            assert (stop.reason == _core.FAULT) == (rm == 7), (row.name, frm, rm)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_reserved_rounding_modes(row: Insn, bench: Bench) -> None:
    if any(f.operand == "rm" for f in fields(row.format)):
        word = plain_word(row, random.Random(row.name)) & ~(7 << 12)
        legal = [rm for rm in range(8) if bench.cores.decode(word | rm << 12) is row]
        assert legal == [0, 1, 2, 3, 4, 7]


# ---- compressed words, by the manual's own listing -------------------------------------------


def rvc_legal(h: int) -> bool:
    """RVC instruction listings for RV64 with C and D: False for reserved and illegal words.

    Hints are legal.  Written from the manual's three quadrant tables, without the table under test.
    """
    funct3, rd, rs2 = h >> 13, h >> 7 & 31, h >> 2 & 31
    imm6 = (h >> 12 & 1) << 5 | rs2
    quadrant = h & 3
    if quadrant == 0:
        if funct3 == 0:  # addi4spn: nzuimm
            return h >> 5 & 0xFF != 0
        return funct3 != 4
    if quadrant == 1:
        if funct3 == 1:  # addiw: rd != 0
            return rd != 0
        if funct3 == 3:  # lui, addi16sp: nzimm
            return imm6 != 0
        if funct3 == 4 and h >> 10 & 3 == 3 and h >> 12 & 1:  # subw, addw; two reserved
            return h >> 5 & 3 in (0, 1)
        return True
    if funct3 in (2, 3):  # lwsp, ldsp: rd != 0
        return rd != 0
    if funct3 == 4 and not h >> 12 & 1 and rs2 == 0:  # jr: rs1 != 0
        return rd != 0
    return True


def test_every_halfword(bench: Bench) -> None:
    wrong = []
    for h in range(1 << 16):
        if h & 3 == 3:
            continue
        row = bench.cores.decode(h)
        text, size = bench.cores.disasm(h)
        right = size == 2 and (row is not None) == rvc_legal(h)
        right &= text.startswith(".half") == (row is None)
        # what follows in memory is no part of a 16-bit instruction
        right &= bool(h % 7) or bench.cores.decode(0xDEAD0000 | h) is row
        if not right:
            wrong.append(hex(h))
    assert not wrong


@pytest.mark.parametrize("part", [0, 21])
def test_words(part: int, bench: Bench) -> None:
    """Every row has the words that its mask says; `python -m tests.words` walks all of them."""
    *counts, illegal = words.walk(bench.cores, part)
    wanted = words.expected(part)
    assert counts == wanted
    assert illegal == (1 << 25) - sum(wanted)
    assert words.texts(bench.cores, part) > 500


def test_all_zeros_and_all_ones_are_illegal(bench: Bench) -> None:
    for word, size in ((0, 2), (0xFFFFFFFF, 4)):
        assert bench.cores.decode(word) is None
        bench.prepare()
        stop = bench.step(word, size)
        assert (stop.reason, stop.cause, stop.address, stop.pc) == (_core.FAULT, 2, word, CODE)


def test_longer_encodings_are_illegal(bench: Bench) -> None:
    """48-bit and longer: low five bits set.  None exists here."""
    rng = random.Random(3)
    for _ in range(2000):
        assert bench.cores.decode(rng.getrandbits(32) | 0x1F) is None
