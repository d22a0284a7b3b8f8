"""Scalar integer instructions against a model in Python: alone, and inside blocks.

Alone each runs unfused.  In blocks the core picks fused and forwarded forms: random programs of
all register choices, branches and loops are held against the model and against single steps.
"""

from __future__ import annotations

import random
from typing import NamedTuple

import numpy as np
import pytest

from nicemu import _core
from nicemu._core import Cores, instructions
from tests.encode import encode, limits, rows, size
from tests.integer_model import EXPANDED, M64, MODELLED, TAKEN, VALUE, execute

CODE, ROOM = 0x10000, 1 << 16
#: More than any program here needs: a block of code runs whole only when the budget covers it, so a
#: program ends at the illegal instruction behind it.
ENOUGH = 1 << 20
JUMPS = {"jal", "jalr", "c.j", "c.jr", "c.jalr", *TAKEN, "c.beqz", "c.bnez"}
STRAIGHT = sorted(MODELLED - JUMPS)
EDGES = sorted(
    {(1 << k) + d & M64 for k in (0, 1, 7, 8, 15, 16, 31, 32, 33, 62, 63) for d in (-1, 0, 1)}
    | {-(1 << k) & M64 for k in (1, 8, 16, 31, 32)}
    | {0x0102030405060708, 0x00FF00FF0000FF00, 0xAAAAAAAAAAAAAAAA, M64}
)


class Insn(NamedTuple):
    """One instruction of a program."""

    name: str
    operands: dict[str, int]
    word: int
    size: int


def insn(name: str, **operands: int) -> Insn:
    word = encode(name, **operands)
    return Insn(name, operands, word, size(word))


def make_cores() -> Cores:
    cores = Cores()
    cores.map(CODE, ROOM, _core.R | _core.X)
    return cores


@pytest.fixture(scope="module")
def cores() -> Cores:
    return make_cores()


def load(cores: Cores, program: list[Insn]) -> None:
    cores.write(CODE, b"".join(i.word.to_bytes(i.size, "little") for i in program) + bytes(4))


def set_registers(cores: Cores, x: list[int]) -> None:
    cores.x()[:] = np.array(x, np.uint64)


def registers(cores: Cores) -> list[int]:
    return [int(v) for v in cores.x()]


def test_every_integer_row_is_modelled() -> None:
    integer = {
        row.name
        for row in instructions()
        if row.cls in ("alu", "mul", "mulh", "div", "branch", "jump")
    }
    assert integer == MODELLED


def operand_values(
    rng: random.Random, name: str, registers_from: range = range(32)
) -> dict[str, int]:
    """Random operands; immediates at their ends half of the time."""
    row = rows()[name]
    out = {}
    for operand, legal in limits(row.format).items():
        if operand in ("rd", "rs1", "rs2"):
            out[operand] = rng.choice([r for r in legal if r in registers_from] or list(legal))
        else:
            out[operand] = rng.choice((legal[0], legal[-1], legal[1], rng.choice(legal)))
    if row.size == 2:  # the values that mean another row, or none
        for operand, other in (("imm", 16), ("uimm", 16), ("hi20", 1), ("rs2", 9)):
            if operand in out and not out[operand]:
                out[operand] = other
        if row.name in ("c.addi", "c.addiw", "c.lui", "c.jr", "c.jalr", "c.add", "c.mv"):
            key = "rd" if "rd" in out else "rs1"
            if out[key] == 0 or (row.name == "c.lui" and out[key] == 2):
                out[key] = 9
    return out


@pytest.mark.parametrize("name", sorted(MODELLED))
def test_alone(name: str, cores: Cores) -> None:
    """Edges x edges, then random operands and registers, one instruction at a time."""
    rng = random.Random(name)
    two = "rs2" in limits(rows()[name].format) or name in EXPANDED
    pairs = [(a, b) for a in EDGES for b in (EDGES[:: 1 if two else 5])][:: 1 if two else 2]
    pairs += [(rng.getrandbits(64), rng.getrandbits(64)) for _ in range(200)]
    budget_per_word = 40  # operand pairs tried with one encoding
    for at in range(0, len(pairs), budget_per_word):
        one = insn(name, **operand_values(rng, name))
        load(cores, [one])
        for a, b in pairs[at : at + budget_per_word]:
            x = [0] + [rng.choice((a, b)) for _ in range(31)]
            first = one.operands.get("rs1", one.operands.get("rd", 0))
            if first:
                x[first] = a
            if one.operands.get("rs2", 0):
                x[one.operands["rs2"]] = b
            set_registers(cores, x)
            cores.set_pc(CODE)
            stop = cores.run(1)
            pc = execute(name, one.operands, x, CODE, one.size)
            assert stop.instructions == 1 and (stop.pc, registers(cores)) == (pc, x), (one, a, b)


def test_immediates(cores: Cores) -> None:
    """Every 12-bit immediate and every shift amount once."""
    rng = random.Random(7)
    for name in sorted(VALUE):
        for operand in limits(rows()[name].format).keys() & {"imm", "shamt"}:
            for value in limits(rows()[name].format)[operand]:
                if operand == "imm" and name != "addi" and value % 7:
                    continue
                one = insn(name, rd=5, rs1=6, **{operand: value})
                x = [0] + [rng.getrandbits(64) for _ in range(31)]
                set_registers(cores, x)
                load(cores, [one])
                cores.set_pc(CODE)
                cores.run(1)
                execute(name, one.operands, x, CODE, one.size)
                assert registers(cores) == x, one


# ---- blocks ------------------------------------------------------------------------------------


class Ran(NamedTuple):
    """Where a program ended and what it had done."""

    pc: int
    x: list[int]
    instructions: int
    classes: dict[str, int]
    instret: int


def run_core(cores: Cores, x: list[int], budget: int, quantum: int) -> Ran:
    """From CODE with these registers, `quantum` instructions a run."""
    set_registers(cores, x)
    cores.set_pc(CODE)
    cores.clear_counters()
    cores.set_csr("minstret", 0)
    done = 0
    while done < budget:
        stop = cores.run(min(quantum, budget - done))
        done += stop.instructions
        if stop.reason != _core.BUDGET:
            break
    counters = cores.counters()
    return Ran(cores.pc(), registers(cores), done, counters.classes, cores.csr("minstret"))


def run_model(program: list[Insn], x: list[int], budget: int) -> Ran:
    """The same by the model; a pc outside the program ends it."""
    at, pc, where = 0, CODE, {}
    for i in program:
        where[CODE + at] = i
        at += i.size
    x, done, classes = list(x), 0, {}
    while done < budget and pc in where:
        i = where[pc]
        pc = execute(i.name, i.operands, x, pc, i.size)
        cls = rows()[i.name].cls
        classes[cls] = classes.get(cls, 0) + 1
        done += 1
    return Ran(pc, x, done, classes, done)


def check(cores: Cores, program: list[Insn], x: list[int], budget: int, text: object = "") -> Ran:
    """Model, whole blocks, odd slices and single steps agree in everything."""
    load(cores, program)
    expected = run_model(program, x, budget)
    for quantum in (budget, 13, 1):
        assert run_core(cores, x, budget, quantum) == expected, (text, quantum, program)
    return expected


#: favoured because the core fuses or forwards them
FUSED = ["addi", "add", "slli", "srli", "xor", "or", "and", "c.addi", "c.add", "c.slli", "c.mv"]
FUSED += ["c.li", "c.xor", "c.and", "lui", "auipc"]


def straight_line(rng: random.Random, n: int, few: bool) -> list[Insn]:
    pool = range(0, 4) if few else range(32)
    out = []
    for _ in range(n):
        name = rng.choice(FUSED) if rng.random() < 0.5 else rng.choice(STRAIGHT)
        out.append(insn(name, **operand_values(rng, name, pool)))
    return out


def some_registers(rng: random.Random) -> list[int]:
    return [0] + [rng.choice((rng.choice(EDGES), rng.getrandbits(64))) for _ in range(31)]


def test_every_pair(cores: Cores) -> None:
    """Every ordered pair of the fused and forwarded rows, over all sharings of three registers."""
    rng = random.Random(11)
    names = [n for n in STRAIGHT if not n.startswith("c.")]
    for first in names:
        for second in names:
            program = []
            for name in (first, second):
                program.append(insn(name, **operand_values(rng, name, range(3))))
            # what comes before decides whether `first` takes an operand from its predecessor
            program.insert(0, insn("addi", rd=rng.randrange(3), rs1=1, imm=rng.randrange(-9, 9)))
            load(cores, program)
            x = some_registers(rng)
            expected = run_model(program, x, ENOUGH)
            assert run_core(cores, x, ENOUGH, ENOUGH) == expected, program


FIRST = ("addi", "add", "slli", "srli")
SECOND = ("xor", "add", "or", "and", "addi", "sub", "sltu", "sh1add", "czero.eqz", "ror")


@pytest.mark.parametrize("first", FIRST)
def test_pairs_in_all_register_patterns(first: str, cores: Cores) -> None:
    """Operands from {x0, x1, x2} in every combination, behind a producer of each."""
    rng = random.Random(first)
    three = range(3)
    for second in SECOND:
        for producer in three:
            x = some_registers(rng)
            for code in range(3**5):
                r = [code // 3**k % 3 for k in range(5)]
                one: dict[str, int] = {"rd": r[0], "rs1": r[1]}
                one |= {"rs2": r[4]} if first == "add" else {}
                key = "shamt" if first in ("slli", "srli") else "imm"
                one |= {key: rng.randrange(64)} if first != "add" else {}
                two: dict[str, int] = {"rd": r[2], "rs1": r[3]}
                two |= {"imm": 5} if second == "addi" else {"rs2": r[4]}
                program = [
                    insn("xori", rd=producer, rs1=producer, imm=77),
                    insn(first, **one),
                    insn(second, **two),
                    insn("add", rd=3, rs1=r[2], rs2=r[0]),
                ]
                load(cores, program)
                expected = run_model(program, x, ENOUGH)
                assert run_core(cores, x, ENOUGH, ENOUGH) == expected, program


@pytest.mark.parametrize("few", [True, False], ids=["few registers", "all registers"])
@pytest.mark.parametrize("length", [2, 3, 7, 63, 64, 65, 150])
def test_straight_line(length: int, few: bool, cores: Cores) -> None:
    rng = random.Random(f"{length} {few}")
    for _ in range(max(3, 200 // length)):
        check(cores, straight_line(rng, length, few), some_registers(rng), ENOUGH)


def branchy(rng: random.Random, blocks: int) -> list[Insn]:
    """Short blocks that end in branches and jumps to any block, forward and back."""
    bodies = [straight_line(rng, rng.randrange(0, 5), rng.random() < 0.7) for _ in range(blocks)]
    ends = [
        rng.choice([*TAKEN, "bne", "beq", "bltu", "jal", "c.j", "c.beqz", "c.bnez"]) for _ in bodies
    ]
    starts, at = [], 0
    for body, end in zip(bodies, ends, strict=True):
        starts.append(at)
        at += sum(i.size for i in body) + rows()[end].size
    out = []
    for n, (body, end) in enumerate(zip(bodies, ends, strict=True)):
        here = starts[n] + sum(i.size for i in body)
        near = [s - here for s in starts if abs(s - here) < 250]
        operands = operand_values(rng, end, range(4))
        operands["target"] = rng.choice(near)
        out += [*body, insn(end, **operands)]
    return out


def test_branches_and_loops(cores: Cores) -> None:
    rng = random.Random(13)
    endless = 0
    for _ in range(120):
        program = branchy(rng, rng.randrange(2, 12))
        ran = check(cores, program, some_registers(rng), 300)
        endless += ran.instructions == 300
    assert 20 < endless < 120  # both kinds occur


@pytest.mark.parametrize("branch", sorted(TAKEN))
@pytest.mark.parametrize("step", ["addi", "add"])
def test_counted_loop(step: str, branch: str, cores: Cores) -> None:
    """The loop shapes that compilers make, the step fused with its branch; and their exits."""
    operand = {"imm": -1} if step == "addi" else {"rs2": 4}
    for start in (1, 2, 1000, 5000, M64, 1 << 63):
        for rs1, rs2 in ((5, 0), (0, 5), (5, 6), (5, 5)):
            program = [
                insn("add", rd=7, rs1=7, rs2=5),
                insn(step, rd=5, rs1=5, **operand),
                insn(branch, rs1=rs1, rs2=rs2, target=-8),
                insn("addi", rd=8, rs1=8, imm=1),
            ]
            x = [0, 0, 0, 0, M64, start, 3, 0, 0, *[0] * 23]
            load(cores, program)
            expected = run_model(program, x, 3000)
            assert run_core(cores, x, 3000, 3000) == expected
            assert run_core(cores, x, 3000, 7) == expected


def test_jalr_and_links(cores: Cores) -> None:
    """Links, odd targets, rd == rs1, and calls into the middle of a block."""
    for rd in (0, 1, 5, 6):
        for imm in (0, 1, -3, 8):
            program = [
                insn("auipc", rd=5, hi20=0),
                insn("addi", rd=5, rs1=5, imm=16),
                insn("jalr", rd=rd, rs1=5, imm=imm),
                insn("addi", rd=7, rs1=7, imm=1),
                insn("addi", rd=8, rs1=8, imm=1),
                insn("c.jalr", rs1=5),
                insn("addi", rd=9, rs1=9, imm=1),
                insn("addi", rd=10, rs1=10, imm=1),
            ]
            if imm == -3:  # 16 - 3 -> 12: an even address after the bit is cleared
                assert execute("jalr", {"rd": 0, "rs1": 1, "imm": -3}, [0, 16], 0, 4) == 12
            check(cores, program, [0] * 32, 30)


def test_x0_stays_zero(cores: Cores) -> None:
    rng = random.Random(17)
    for name in sorted(MODELLED - JUMPS):
        if "rd" in limits(rows()[name].format) and 0 in limits(rows()[name].format)["rd"]:
            operands = operand_values(rng, name)
            if rows()[name].size == 4:
                operands["rd"] = 0
            one = insn(name, **operands)
            check(cores, [one, insn("add", rd=5, rs1=0, rs2=0), one], some_registers(rng), ENOUGH)
