"""LR/SC and AMOs: what they compute, and that they are atomic between harts."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from nicemu import _core
from nicemu._core import BUDGET, FAULT, HTIF, HTIF_REGION, Cores, R, W, X, instructions
from tests.encode import encode, image, vtype

CODE, SHARED, PRIVATE = 0x1000, 0x10000, 0x20000
M64 = (1 << 64) - 1
A0, A1, A2, A3, T0, T1 = 10, 11, 12, 13, 5, 6

AMOS: dict[str, Callable[[int, int], int]] = {
    "amoswap": lambda a, b: b,
    "amoadd": lambda a, b: a + b,
    "amoxor": lambda a, b: a ^ b,
    "amoand": lambda a, b: a & b,
    "amoor": lambda a, b: a | b,
    "amomin": min,
    "amomax": max,
    "amominu": min,
    "amomaxu": max,
}


def make(programs: Sequence[Sequence[int]]) -> tuple[Cores, np.ndarray]:
    """A hart per program, each at its own page of shared code, and the shared data as bytes."""
    cores = Cores(len(programs))
    cores.map(CODE, 0x1000 * len(programs), R | X)
    shared = cores.map(SHARED, 0x1000, R | W)
    for hart, program in enumerate(programs):
        cores.map(PRIVATE, 0x1000, R | W, [hart])
        cores.write(CODE + 0x1000 * hart, image([*program, 0]))
        cores.reset(CODE + 0x1000 * hart, hart)
        cores.x(hart)[A0] = SHARED
    return cores, shared


def step(cores: Cores, word: int, hart: int = 0) -> _core.Stop:
    """One instruction on one hart."""
    cores.write(CODE + 0x1000 * hart, word.to_bytes(4, "little"))
    cores.set_pc(CODE + 0x1000 * hart, hart)
    return cores.run(1, hart)


# ---- one hart --------------------------------------------------------------------------------

WIDTHS = {"w": 32, "d": 64}


def as_signed(v: int, bits: int) -> int:
    v &= (1 << bits) - 1
    return v - (1 << bits) if v >> (bits - 1) else v


def test_amos_cover_the_table() -> None:
    names = {row.name for row in instructions() if row.cls == "amo"}
    assert names == {f"{n}.{w}" for n in (*AMOS, "lr", "sc") for w in WIDTHS}


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", AMOS)
def test_amo_values(name: str, width: str) -> None:
    rng = random.Random(name + width)
    bits = WIDTHS[width]
    cores, shared = make([[]])
    edges = [0, 1, M64, 1 << 31, 1 << 63, (1 << 31) - 1, (1 << 63) - 1, 0xFFFFFFFF]
    edges += [rng.getrandbits(64) for _ in range(8)]
    for a in edges:
        for b in edges:
            for rd, rs2 in ((T0, T1), (T1, T1), (0, T1)):
                around = rng.randbytes(32)
                shared[:32] = np.frombuffer(around, np.uint8)
                shared[8:16] = np.frombuffer(a.to_bytes(8, "little"), np.uint8)
                cores.x()[A0], cores.x()[T1] = SHARED + 8, b
                order = {"aq": rng.randrange(2), "rl": rng.randrange(2)}
                stop = step(cores, encode(f"{name}.{width}", rd=rd, rs1=A0, rs2=rs2, **order))
                assert stop.instructions == 1
                unsigned = not name.endswith(("min", "max"))
                sees = (
                    (lambda v: v & (1 << bits) - 1) if unsigned else (lambda v: as_signed(v, bits))
                )
                result = AMOS[name](sees(a), sees(b)) & (1 << bits) - 1
                stored = shared[8:16].tobytes()
                assert int.from_bytes(stored[: bits // 8], "little") == result
                assert stored[bits // 8 :] == a.to_bytes(8, "little")[bits // 8 :]
                rest = shared[:8].tobytes() + shared[16:32].tobytes()
                assert rest == around[:8] + around[16:]
                if rd:
                    assert int(cores.x()[rd]) == as_signed(a, bits) & M64


@pytest.mark.parametrize("width", WIDTHS)
def test_lr_sc_alone(width: str) -> None:
    size = WIDTHS[width] // 8
    cores, shared = make([[]])
    shared[:] = 0xF0
    lr = encode(f"lr.{width}", rd=T0, rs1=A0)
    sc = encode(f"sc.{width}", rd=T0, rs1=A1, rs2=T1)
    sign = as_signed(int.from_bytes(b"\xf0" * size, "little"), 8 * size) & M64
    x = cores.x()
    x[T1] = 0x1122334455667788
    for offset, succeeds in ((0, True), (8, True), (56, True), (64, False), (128, False)):
        shared[:] = 0xF0
        x[A1] = SHARED + offset
        step(cores, lr)
        assert int(x[T0]) == sign
        assert step(cores, sc).instructions == 1
        assert int(x[T0]) == (0 if succeeds else 1)  # within 64 bytes of the reservation
        written = shared[offset : offset + size].tobytes()
        assert (written == int(x[T1]).to_bytes(8, "little")[:size]) == succeeds
        assert step(cores, sc).instructions == 1 and int(x[T0]) == 1  # it was used up
    for between in (  # by the hart itself: these leave the reservation alone
        encode("sd", rs1=A0, rs2=T1, imm=0),
        encode("amoadd.d", rd=T0, rs1=A0, rs2=T1),
        encode("ld", rd=T0, rs1=A0, imm=0),
    ):
        x[A1] = SHARED
        step(cores, lr)
        step(cores, between)
        step(cores, sc)
        assert int(x[T0]) == 0


# ---- between harts ---------------------------------------------------------------------------

ROUNDS = 100
#: loop: lr; addi; sc; bnez loop; addi count; bnez loop
RETRY = [
    encode("lr.d", rd=T0, rs1=A0),
    encode("addi", rd=T0, rs1=T0, imm=1),
    encode("sc.d", rd=T1, rs1=A0, rs2=T0),
    encode("bne", rs1=T1, rs2=0, target=-12),
    encode("addi", rd=A2, rs1=A2, imm=-1),
    encode("bne", rs1=A2, rs2=0, target=-20),
    encode("jal", rd=0, target=0),
]
ADD = [
    encode("amoadd.d", rd=0, rs1=A0, rs2=A3),
    encode("addi", rd=A2, rs1=A2, imm=-1),
    encode("bne", rs1=A2, rs2=0, target=-8),
    encode("jal", rd=0, target=0),
]
#: no lock, no atomics: what must go wrong
RACE = [
    encode("ld", rd=T0, rs1=A0, imm=0),
    encode("addi", rd=T0, rs1=T0, imm=1),
    encode("sd", rs1=A0, rs2=T0, imm=0),
    encode("addi", rd=A2, rs1=A2, imm=-1),
    encode("bne", rs1=A2, rs2=0, target=-16),
    encode("jal", rd=0, target=0),
]


def count_together(
    program: Sequence[int], harts: int, quantum: int, budget: int
) -> tuple[int, tuple[object, ...]]:
    """The counter when all harts are through, and everything else that one can see."""
    cores, shared = make([program] * harts)
    for hart in range(harts):
        cores.x(hart)[A2], cores.x(hart)[A3] = ROUNDS, 1
    stop = cores.run_round_robin(quantum, budget)
    assert stop.reason == BUDGET
    assert all(int(cores.x(h)[A2]) == 0 for h in range(harts)), "they starve"
    seen = tuple((cores.x(h).tobytes(), cores.counters(h)) for h in range(harts))
    return int(shared[:8].view(np.uint64)[0]), (shared.tobytes(), seen)


QUANTA = [1, 2, 3, 4, 5, 6, 7, 8, 11, 13, 64, 1000]


@pytest.mark.parametrize("harts", [2, 3, 8])
@pytest.mark.parametrize("quantum", QUANTA)
@pytest.mark.parametrize("program", [RETRY, ADD], ids=["lr/sc", "amoadd"])
def test_counter(program: Sequence[int], quantum: int, harts: int) -> None:
    """No increment is lost whatever the interleaving, and the run repeats exactly."""
    budget = ROUNDS * 6 * (harts + 2) + 1000
    first = count_together(program, harts, quantum, budget)
    assert first[0] == harts * ROUNDS
    assert count_together(program, harts, quantum, budget) == first


def test_a_race_is_a_race() -> None:
    """The same without atomics loses increments at small quanta, so the test above can fail."""
    lost = [2 * ROUNDS - count_together(RACE, 2, q, ROUNDS * 10)[0] for q in (1, 2, 3, 7)]
    assert min(lost) > 0


LR = encode("lr.d", rd=T0, rs1=A0)
SC = encode("sc.d", rd=T0, rs1=A0, rs2=T1)
#: what hart 1 does between hart 0's lr and sc; a1 points into or beside hart 0's granule
STORES = {
    "sd": encode("sd", rs1=A1, rs2=T0, imm=0),
    "sb": encode("sb", rs1=A1, rs2=T0, imm=7),
    "c.sd": encode("c.sd", rs1=11, rs2=8, imm=0),
    "fsd": encode("fsd", rs1=A1, rs2=T0, imm=0),
    "amoor.w": encode("amoor.w", rd=0, rs1=A1, rs2=0),
    "vse8.v": encode("vse8.v", vs3=8, rs1=A1),
    "vs1r.v": encode("vs1r.v", vs3=8, rs1=A1),
    "vsm.v": encode("vsm.v", vs3=8, rs1=A1),
}


def interleave(word: int, offset: int, warm: bool, robin: bool = False) -> bool:
    """Does hart 0's sc succeed after hart 1 ran `word` at SHARED + offset?"""
    spin = encode("jal", rd=0, target=0)
    cores, _ = make([[LR, SC, spin], []])
    cores.x(1)[A1] = SHARED + offset
    cores.set_csr("mstatus", 3 << 13 | 3 << 9, 1)
    assert step(cores, encode("vsetivli", rd=0, uimm=8, vtype=vtype(8)), 1).instructions == 1
    if warm:  # hart 1 has stored there before: the fast path knows the region
        step(cores, word, 1)
    cores.write(CODE + 0x1000, image([word, spin]))
    cores.set_pc(CODE + 0x1000, 1)
    if robin:
        assert cores.run_round_robin(1, 2).reason == BUDGET
    else:
        for hart in (0, 1, 0):
            assert cores.run(1, hart).instructions == 1
    return int(cores.x(0)[T0]) == 0


@pytest.mark.parametrize("warm", [False, True], ids=["cold", "warm"])
@pytest.mark.parametrize("robin", [False, True], ids=["run", "round robin"])
@pytest.mark.parametrize("name", STORES)
def test_a_store_by_another_hart_breaks_the_reservation(name: str, robin: bool, warm: bool) -> None:
    """Even of the value that is there; anywhere in the 64 bytes, not beside them."""
    assert not interleave(STORES[name], 0, warm, robin)
    assert not interleave(STORES[name], 48, warm, robin)
    assert interleave(STORES[name], 64, warm, robin)


def test_loads_and_other_memory_leave_the_reservation() -> None:
    for word, offset in (
        (encode("ld", rd=T0, rs1=A1, imm=0), 0),
        (encode("vle8.v", vd=8, rs1=A1), 0),
        (STORES["sd"], PRIVATE - SHARED),
        (STORES["vse8.v"], 0x800),
    ):
        assert interleave(word, offset, warm=True)


def test_a_failing_sc_breaks_nobody() -> None:
    """Two harts that take turns would else starve each other for ever."""
    cores, _ = make([[LR, SC], [SC]])
    for hart in (0, 1, 0):
        assert cores.run(1, hart).instructions == 1
    assert (int(cores.x(0)[T0]), int(cores.x(1)[T0])) == (0, 1)


def test_the_host_breaks_reservations_too() -> None:
    for address, succeeds in ((SHARED + 63, False), (SHARED + 64, True), (PRIVATE, True)):
        cores, _ = make([[LR, SC]])
        cores.run(1)
        cores.write(address, b"\0")
        cores.run(1)
        assert (int(cores.x()[T0]) == 0) == succeeds


def test_a_call_starts_without_a_reservation() -> None:
    cores, _ = make([[LR, encode("sc.d", rd=A0, rs1=A0, rs2=T1), encode("jalr", rd=0, rs1=1)]])
    cores.run(1)
    stop = cores.call(CODE + 4, [SHARED], sp=0, budget=10)
    assert stop.reason == _core.RETURN and int(cores.x()[A0]) == 1


# ---- turns -----------------------------------------------------------------------------------


def test_round_robin_names_the_hart_that_stops() -> None:
    spin = [encode("jal", rd=0, target=0)]
    fault = [encode("addi", rd=5, rs1=5, imm=1)] * 9 + [encode("ecall")]
    cores, _ = make([spin, fault, spin])
    stop = cores.run_round_robin(4, 1000)
    assert (stop.reason, stop.hart, stop.cause) == (FAULT, 1, 11)
    assert stop.instructions == 1  # in its third turn
    assert [cores.counters(h).instructions for h in range(3)] == [12, 9, 8]


def test_round_robin_takes_only_the_harts_named() -> None:
    spin = [encode("jal", rd=0, target=0)]
    cores, _ = make([spin] * 4)
    assert cores.run_round_robin(7, 100, [1, 3]).reason == BUDGET
    assert [cores.counters(h).instructions for h in range(4)] == [0, 100, 0, 100]


@pytest.mark.parametrize("name", ["sc.w", "amoswap.w", "sw", "c.sw", "fsw", "vse32.v"])
def test_stores_to_the_host(name: str) -> None:
    """A completed store to an HTIF region ends the run behind the instruction; each time."""
    cores = Cores()
    cores.map(CODE, 0x1000, R | X)
    cores.map(SHARED, 64, R | W | HTIF_REGION)
    cores.set_csr("mstatus", 3 << 13 | 3 << 9)
    step(cores, encode("vsetivli", rd=0, uimm=1, vtype=vtype(32)))
    cores.x()[A0] = SHARED
    store = {
        "sc.w": SC & ~(1 << 12),
        "amoswap.w": encode("amoswap.w", rd=0, rs1=A0, rs2=A1),
        "sw": encode("sw", rs1=A0, rs2=A1, imm=0),
        "c.sw": encode("c.sw", rs1=A0, rs2=A1, imm=0),
        "fsw": encode("fsw", rs1=A0, rs2=A1, imm=0),
        "vse32.v": encode("vse32.v", vs3=8, rs1=A0),
    }[name]
    lr = encode("lr.w", rd=T0, rs1=A0)
    for _ in range(3):
        cores.write(CODE, image([lr, store, encode("addi", rd=5, rs1=5, imm=1)]))
        cores.set_pc(CODE)
        stop = cores.run(100)
        size = 2 if store & 3 != 3 else 4
        assert (stop.reason, stop.address, stop.pc) == (HTIF, SHARED, CODE + 4 + size)
        assert stop.instructions == 2
