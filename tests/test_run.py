"""The run loop: budgets, whole blocks against single steps, counters, decoded code, calls."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from nicemu import _core
from nicemu._core import BUDGET, FAULT, RETURN, Cores, Insn, R, X
from tests.encode import encode, image
from tests.harts import simd_paths
from tests.programs import CODE, SEWS, Machine, State, program_rows, random_program
from tests.test_memory import LOADS, STORES, plain_name

RETURN_PC = 0xFFFFFFFFFFFFF000
RET = encode("jalr", rd=0, rs1=1)
INCREMENT = encode("addi", rd=5, rs1=5, imm=1)


@pytest.fixture(scope="module", params=simd_paths())
def machine(request: pytest.FixtureRequest) -> Machine:
    return Machine(simd=request.param)


def steps(machine: Machine, seed: int) -> list[tuple[int, State]]:
    """(budget used so far, state) after every single step, the start included, up to the fault."""
    machine.start(seed)
    out = [(0, machine.state())]
    used = 0
    while True:
        stop = machine.cores.run(1)
        if stop.reason != BUDGET:
            assert stop.cause == 2 and stop.instructions == 0
            return out
        used += stop.instructions + stop.elements
        out.append((used, machine.state()))


PROGRAMS = range(12)


@pytest.mark.parametrize("seed", PROGRAMS)
def test_every_budget(seed: int, machine: Machine) -> None:
    """An instruction begins only while less than the budget is used, wherever blocks begin and end;
    state, elements and counters are those of as many single steps."""
    rng = random.Random(seed)
    machine.load(random_program(rng, rng.randrange(5, 30), sew=SEWS[seed % 4]))
    reference = steps(machine, seed)
    total = reference[-1][0]
    budgets = range(total + 3) if total < 120 else sorted(rng.sample(range(total + 3), 120))
    at = 0
    for budget in budgets:
        while at < len(reference) - 1 and reference[at][0] < budget:
            at += 1
        machine.start(seed)
        stop = machine.cores.run(budget)
        used, expected = reference[at]
        assert machine.state() == expected, budget
        assert stop.instructions + stop.elements == used
        assert stop.reason == (BUDGET if used >= budget else FAULT)


@pytest.mark.parametrize("quantum", [1, 2, 3, 7, 16, 61, 1 << 40])
def test_every_quantum(quantum: int, machine: Machine) -> None:
    for seed in range(100, 106):
        machine.load(random_program(random.Random(seed), 60, sew=SEWS[seed % 4]))
        _, expected = steps(machine, seed)[-1]
        machine.start(seed)
        while machine.cores.run(quantum).reason == BUDGET:
            pass
        assert machine.state() == expected


@pytest.mark.parametrize(
    "row",
    program_rows(),
    ids=lambda r: r.name,
)
def test_every_row_in_a_block(row: Insn, machine: Machine) -> None:
    rng = random.Random(row.name)
    ran = 0
    for sew in SEWS if row.cls.startswith("v") else SEWS[:1]:
        program = random_program(rng, 4, [row], sew)
        machine.load(program)
        _, expected = steps(machine, sew)[-1]
        machine.start(sew)
        stop = machine.cores.run(10**6)
        assert (stop.reason, stop.cause) == (FAULT, 2)
        assert machine.state() == expected
        ran += machine.cores.counters().classes.get(row.cls, 0)
    assert ran >= 8


def test_zero_budget(machine: Machine) -> None:
    machine.load([INCREMENT])
    machine.start(1)
    before = machine.state()
    stop = machine.cores.run(0)
    assert (stop.reason, stop.pc, stop.instructions) == (BUDGET, CODE, 0)
    assert machine.state() == before


def test_largest_budget(machine: Machine) -> None:
    """A budget of 2**64 - 1 is no overflow, however much was used before."""
    machine.load([INCREMENT] * 10)
    for _ in range(3):
        machine.start(1)
        stop = machine.cores.run((1 << 64) - 1)
        assert (stop.reason, stop.instructions) == (FAULT, 10)


def test_endless_loops_end(machine: Machine) -> None:
    for loop in (
        [encode("jal", rd=0, target=0)],
        [encode("c.j", target=0)],
        [encode("beq", rs1=0, rs2=0, target=0)],
        [INCREMENT, encode("c.j", target=-4)],
        [encode("auipc", rd=5, hi20=0), encode("jalr", rd=0, rs1=5)],
        [encode("fence.i"), encode("c.j", target=-4)],
        [encode("csrrwi", rd=0, csr="mscratch", uimm=1), encode("c.j", target=-4)],
        [
            encode("vsetvli", rd=5, rs1=0, vtype=3),
            encode("vadd.vi", vd=8, vs2=8, imm=1),
            encode("c.j", target=-8),
        ],
    ):
        machine.load(loop)
        machine.start(1)
        stop = machine.cores.run(100_000)
        assert stop.reason == BUDGET
        assert 100_000 <= stop.instructions + stop.elements <= 100_000 + 128


# ---- counters --------------------------------------------------------------------------------


def expected_counters(machine: Machine, seed: int) -> tuple[Counter[str], Counter[str]]:
    """(per class, scalar accesses) by decoding at the pc before each single step."""
    classes: Counter[str] = Counter()
    scalar: Counter[str] = Counter()
    machine.start(seed)
    while True:
        row = machine.cores.decode(
            int.from_bytes(machine.cores.read(machine.cores.pc(), 4), "little")
        )
        if machine.cores.run(1).reason != BUDGET:
            return classes, scalar
        assert row is not None
        classes[row.cls] += 1
        if row.cls == "load":
            scalar["loads"] += 1
            scalar["load_bytes"] += LOADS[plain_name(row)][0]
        elif row.cls == "store":
            scalar["stores"] += 1
            scalar["store_bytes"] += STORES[plain_name(row)]
        elif row.cls == "amo":
            size = 8 if row.name.endswith("d") else 4
            scalar["atomics"] += 1
            scalar["load_bytes"] += size if not row.name.startswith("sc") else 0
            scalar["store_bytes"] += size if not row.name.startswith("lr") else 0


@pytest.mark.parametrize("seed", range(20, 26))
def test_counters(seed: int, machine: Machine) -> None:
    machine.load(random_program(random.Random(seed), 60, sew=SEWS[seed % 4]))
    classes, scalar = expected_counters(machine, seed)
    machine.start(seed)
    stop = machine.cores.run(10**6)
    c = machine.cores.counters()
    assert c.classes == classes
    assert sum(c.classes.values()) == c.instructions == c.cost == stop.instructions
    assert c.elements == stop.elements
    for name in ("loads", "stores", "atomics", "load_bytes", "store_bytes"):
        assert getattr(c, name) == scalar[name], name


def test_vector_bytes(machine: Machine) -> None:
    """Bytes of active elements: vl of them, or those of the mask; whole registers whatever vl."""
    words = [
        encode("vle16.v", vd=8, rs1=8),
        encode("vse16.v", vs3=8, rs1=8),
        encode("vle8.v", vd=8, rs1=8, vm=0),
        encode("vl2re8.v", vd=8, rs1=8),
        encode("vs1r.v", vs3=8, rs1=8),
    ]
    machine.load(words)
    machine.start(1)
    machine.cores.v()[0] = 0b10110
    machine.cores.write(CODE, image([encode("vsetivli", rd=0, uimm=5, vtype=0xC8), *words, 0]))
    stop = machine.cores.run(10**6)
    c = machine.cores.counters()
    assert (c.vector_load_bytes, c.vector_store_bytes) == (10 + 3 + 32, 10 + 16)
    assert (c.loads, c.stores, c.load_bytes, c.store_bytes) == (0, 0, 0, 0)
    assert stop.elements == 5 + 5 + 3 + 32 + 16


def test_faults_are_not_counted(machine: Machine) -> None:
    """A block that traps in its middle is charged for what retired."""
    body = [INCREMENT] * 5 + [encode("ld", rd=6, rs1=0, imm=-8)] + [INCREMENT] * 5
    for entry in range(6):
        machine.load(body)
        machine.start(1, skip=4 * entry)
        for again in range(1, 4):
            stop = machine.cores.run(1000)
            assert (stop.cause, stop.pc, stop.instructions) == (5, CODE + 20, 5 - entry)
            c = machine.cores.counters()
            assert c.classes.get("alu", 0) == c.instructions == again * (5 - entry)
            machine.cores.set_pc(CODE + 4 * entry)


# ---- decoded code ----------------------------------------------------------------------------


def scattered(rng: random.Random, blocks: int, body: int) -> tuple[bytes, list[int], int]:
    """Blocks in a random order in memory, each hashing its own constants into x5 and jumping to
    the next.  Returns code, constants in execution order, offset of the first block."""
    size = 4 * (3 * body + 1)
    places = list(range(blocks))
    rng.shuffle(places)
    code = bytearray(blocks * size + 8)
    constants = []
    for n, place in enumerate(places):
        words = []
        for _ in range(body):
            constants.append(rng.randrange(-2048, 2048))
            words += [
                encode("slli", rd=6, rs1=5, shamt=7),
                encode("xor", rd=5, rs1=5, rs2=6),
                encode("addi", rd=5, rs1=5, imm=constants[-1]),
            ]
        at = place * size
        to = places[n + 1] * size if n + 1 < blocks else blocks * size
        words.append(encode("jal", rd=0, target=to - (at + size - 4)))
        code[at : at + size] = image(words)
    back = places[0] * size - (blocks * size + 4)
    code[blocks * size :] = image(
        [encode("addi", rd=7, rs1=7, imm=-1), encode("bne", rs1=7, rs2=0, target=back)]
        if abs(back) < 4096
        else [encode("addi", rd=7, rs1=7, imm=-1), encode("jal", rd=0, target=back)]
    )
    return bytes(code), constants, places[0] * size


def test_more_code_than_fits_decoded() -> None:
    """1.5 MiB of decoded code, three times: forgotten, decoded again, links and counts right."""
    body, blocks = 15, 1000
    code, constants, first = scattered(random.Random(4), blocks, body)
    cores = Cores()
    cores.map(CODE, len(code) + 64, R | X)
    cores.write(CODE, code)
    rounds, per_round = 3, blocks * (3 * body + 1) + 2
    expected = 1
    for _ in range(rounds):
        for constant in constants:
            expected = (expected ^ expected << 7 & (1 << 64) - 1) + constant & (1 << 64) - 1
    for quantum in (10**9, 999):
        cores.x()[5], cores.x()[7] = 1, 0
        cores.set_pc(CODE + first)
        cores.clear_counters()
        left = rounds * per_round
        while left:
            left -= cores.run(min(left, quantum)).instructions
        assert int(cores.x()[5]) == expected
        c = cores.counters()
        assert c.instructions == sum(c.classes.values()) == rounds * per_round
        assert c.classes["jump"] == rounds * (blocks + 1)


def test_harts_do_not_share_counts() -> None:
    cores = Cores(2)
    cores.map(CODE, 0x1000, R | X)
    cores.write(CODE, image([INCREMENT] * 20 + [0]))
    cores.set_pc(CODE, 0)
    cores.set_pc(CODE + 40, 1)
    for hart in (0, 1):
        cores.run(100, hart)
    assert [cores.counters(h).instructions for h in (0, 1)] == [20, 10]
    cores.clear_counters(0)
    assert [cores.counters(h).instructions for h in (0, 1)] == [0, 10]


# ---- calls -----------------------------------------------------------------------------------


def test_call_needs_budget_for_its_return(machine: Machine) -> None:
    """Enough for every instruction is enough; one less is not."""
    for n in (0, 1, 5, 63, 64, 65, 200):
        machine.load([INCREMENT] * n + [RET])
        for budget, reason in ((n + 1, RETURN), (n, BUDGET), (n + 2, RETURN), (10**6, RETURN)):
            stop = machine.cores.call(CODE, sp=0, budget=budget)
            assert (stop.reason, stop.instructions) == (reason, min(n + 1, budget))
            assert int(machine.cores.x()[5]) == n
            fault = stop.fault()
            assert (fault is None) == (reason == RETURN)
            if fault is not None:
                assert (fault.cause, fault.name) == (None, "out of budget")
                assert (fault.pc, fault.instructions) == (CODE + 4 * n, n)


@pytest.mark.parametrize(
    "ret",
    [
        [RET],
        [encode("c.jr", rs1=1)],
        [encode("jalr", rd=1, rs1=1, imm=1)],  # bit 0 is cleared
        [encode("addi", rd=6, rs1=1, imm=-100), encode("jalr", rd=0, rs1=6, imm=100)],
    ],
)
def test_ways_to_return(ret: list[int], machine: Machine) -> None:
    machine.load(ret)
    stop = machine.cores.call(CODE, [3], sp=0, budget=100)
    assert (stop.reason, stop.pc, stop.instructions) == (RETURN, RETURN_PC, len(ret))
    assert int(machine.cores.x()[10]) == 3


def test_only_the_return_address_returns(machine: Machine) -> None:
    for offset in (2, 4, 0x7FE, -2, -2048):
        machine.load([encode("jalr", rd=0, rs1=1, imm=offset)])
        stop = machine.cores.call(CODE, sp=0, budget=100)
        target = RETURN_PC + offset
        assert (stop.reason, stop.cause, stop.address) == (FAULT, 1, target)


def test_the_return_address_is_no_place_to_run(machine: Machine) -> None:
    machine.load([RET])
    machine.start(1)
    machine.cores.x()[1] = RETURN_PC
    stop = machine.cores.run(100)
    assert (stop.reason, stop.cause, stop.address, stop.instructions) == (FAULT, 1, RETURN_PC, 1)


def test_result_of_a_call_is_the_same_each_time(machine: Machine) -> None:
    machine.load([*random_program(random.Random(77), 40)[1:-2], RET])
    results = set()
    for _ in range(3):
        machine.memory[:] = 5
        machine.cores.v()[:] = 0
        stop = machine.cores.call(CODE, [1, 2], sp=0x100800, budget=1000)
        results.add((stop, machine.cores.x().tobytes(), machine.memory.tobytes()))
    assert len(results) == 1


def test_names_of_the_reasons() -> None:
    assert len({_core.BUDGET, _core.RETURN, _core.FAULT, _core.HTIF}) == 4
