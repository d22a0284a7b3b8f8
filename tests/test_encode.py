"""Every row of the instruction table: encode, decode, disassemble and assemble agree."""

from __future__ import annotations

import random

import pytest

from nicemu._core import Cores, Insn, csrs, instructions
from tests.assemble import MODES, OPERAND, ORDERS, F, X, assemble
from tests.encode import encode, limits, load_constant, rows
from tests.harts import Hart

PC = 0x4000
#: rm 5 and 6 are reserved; the compressed forms with register or immediate 0 mean something else.
LEGAL_RM = (0, 1, 2, 3, 4, 7)


def some_operands(row: Insn, rng: random.Random) -> dict[str, int]:
    """Values that mean this row and no other that shares its bits."""
    out = {}
    for name, legal in limits(row.format).items():
        choices = [v for v in (legal[0], legal[-1], rng.choice(legal)) if row.size == 4 or v]
        if row.size == 2 and name in ("rd", "rs1", "rs2"):
            choices = [v for v in choices if v != 2] or [9]
        if name == "rm":
            choices = list(LEGAL_RM)
        if name == "csr":
            choices = list(csrs().values())
        if row.format == "FENCE":
            choices = [rng.choice(range(1, 15))]
        out[name] = rng.choice(choices)
    return out


def vtype_text(value: int) -> str:
    sew, lmul = value >> 3 & 7, value & 7
    if value >> 8 or sew > 3 or lmul == 4:
        return str(value)
    return ",".join(
        (
            f"e{8 << sew}",
            ("m1", "m2", "m4", "m8", "", "mf8", "mf4", "mf2")[lmul],
            "ta" if value & 0x40 else "tu",
            "ma" if value & 0x80 else "mu",
        )
    )


def operand_text(row: Insn, name: str, values: dict[str, int]) -> str:
    if name == "rm":
        return f", {MODES[values['rm']]}" if values["rm"] < 5 else ""
    if name == "vm":
        return "" if values["vm"] else ", v0.t"
    if name == "csr":
        return next(n for n, number in csrs().items() if number == values["csr"])
    if name == "vtype":
        return vtype_text(values["vtype"])
    if name == "hi20":
        return hex(values["hi20"] & 0xFFFFF)
    if name == "target":
        return hex(PC + values["target"] & (1 << 64) - 1)
    if name == "fence":
        return ", ".join(
            "".join(c for i, c in enumerate("iorw") if values[k] >> (3 - i) & 1)
            for k in ("pred", "succ")
        )
    if name in ("imm", "uimm", "shamt"):
        return str(values[name])
    if name in ("vd", "vs1", "vs2", "vs3"):
        return f"v{values[name]}"
    if name in ("frd", "frs1", "frs2", "frs3"):
        return F[values[name[1:]]]
    if name in values:
        return X[values[name]]
    return name  # sp, v0: written out in the pattern


def expected_text(row: Insn, values: dict[str, int]) -> str:
    operands = OPERAND.sub(lambda m: operand_text(row, m[0], values), row.operands)
    order = {bits: suffix for suffix, bits in ORDERS.items()}
    suffix = order[values["aq"], values["rl"]] if "aq" in values else ""
    return f"{row.name}{suffix} {operands}".strip()


@pytest.fixture(scope="module")
def cores() -> Cores:
    return Cores()


@pytest.mark.parametrize("row", instructions(), ids=lambda row: row.name)
def test_round_trip(row: Insn, cores: Cores) -> None:
    rng = random.Random(row.name)
    for _ in range(40):
        values = some_operands(row, rng)
        word = encode(row.name, **values)
        assert word & row.mask == row.match
        found = cores.decode(word)
        assert found is not None and found.name == row.name, (hex(word), values)
        text, size = cores.disasm(word, PC)
        assert (text, size) == (expected_text(row, values), row.size), hex(word)
        assert assemble(text, PC) == word, text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "fly",
        "add a0, a1",
        "addi a0, a1, 2048",
        "add.aq a0, a1, a2",
        "fadd.s fa0, fa1, fa2, dyn",
    ],
)
def test_what_is_no_text(text: str) -> None:
    with pytest.raises(ValueError):
        assemble(text)


def test_refusals() -> None:
    for operands in ({}, {"rd": 32, "rs1": 0}, {"rd": 1, "rs1": 0, "rs2": 1}):
        with pytest.raises(ValueError):
            encode("addi", **operands)
    with pytest.raises(ValueError):
        encode("beq", rs1=0, rs2=0, target=3)
    with pytest.raises(KeyError):
        encode("no.such")


def test_names_are_unique() -> None:
    assert len(rows()) == len(instructions())


def test_load_constant() -> None:
    rng = random.Random(5)
    edges = [(1 << k) + d for k in range(64) for d in (-1, 0, 1)]
    edges += [-e for e in edges] + [rng.getrandbits(64) for _ in range(200)] + [0x7FFFF800]
    back = encode("jalr", rd=0, rs1=1)
    hart = Hart()
    for value in edges:
        hart.load([*load_constant(5, value), back])
        hart.call()
        assert int(hart.x[5]) == value % (1 << 64), hex(value)
