"""Random programs of every row that retires, and all that one can see of a hart that runs them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

import numpy as np

from nicemu import _core
from nicemu._core import Cores, Counters, Insn, R, W, X, instructions
from tests.encode import encode, limits, vtype
from tests.test_encode import some_operands

CODE, DATA, ROOM = 0x1000, 0x100000, 0x1000
UNITS = 3 << 13 | 3 << 9
VL = 5
#: registers with a purpose: data pointers (x8 for compressed code, x2 for sp forms), loop counter
POINTERS, COUNTER = (2, 8), 30
#: rows that leave the program or move a pointer; test_integer and test_privileged run these
APART = {"ecall", "ebreak", "c.ebreak", "mret", "jalr", "c.jr", "c.jalr", "c.addi16sp"}
#: formats whose addresses come from registers that other instructions of a program may change;
#: tests/test_vector_memory.py runs these
SCATTERED = {"VLS", "VSS", "VLX", "VSX"}
SEWS = (16, 32, 8, 64)


class State(NamedTuple):
    """Everything architectural, and the counters."""

    pc: int
    x: bytes
    f: bytes
    v: bytes
    csrs: tuple[int, ...]
    memory: bytes
    counters: Counters


#: CSRs that a program can change
SEEN = ("fcsr", "vcsr", "vl", "vtype", "vstart", "mstatus", "mscratch", "minstret", "mcycle")


class Machine:
    """One hart with code and data, brought into the same state by each `start`."""

    def __init__(self, simd: str = "auto", vlen: int = 128) -> None:
        self.cores = Cores(1, vlen, simd=simd)
        self.cores.map(CODE, 0x4000, R | X)
        self.memory = self.cores.map(DATA, ROOM, R | W)

    def load(self, words: Sequence[int]) -> None:
        """The program, ended by an illegal instruction."""
        sizes = [4 if w & 3 == 3 else 2 for w in words]
        code = b"".join(w.to_bytes(n, "little") for w, n in zip(words, sizes, strict=True))
        self.cores.write(CODE, code + bytes(4))

    def start(self, seed: int, skip: int = 0) -> None:
        """Registers and memory from the seed, pc `skip` bytes behind CODE."""
        rng = np.random.default_rng(seed)
        c = self.cores
        c.reset(CODE)
        c.x()[1:] = rng.integers(0, 1 << 64, 31, np.uint64)
        c.x()[list(POINTERS)] = DATA + ROOM // 2
        c.x()[COUNTER] = 2
        c.f()[:] = rng.integers(0, 1 << 64, 32, np.uint64)
        c.f()[::2] |= np.uint64(0xFFFFFFFF00000000)
        c.v()[:] = rng.integers(0, 256, c.v().shape, np.uint8)
        self.memory[:] = rng.integers(0, 256, ROOM, np.uint8)
        c.set_csr("mstatus", UNITS)
        c.set_csr("minstret", 0)
        c.set_csr("mcycle", 0)
        c.set_pc(CODE + skip)
        c.clear_counters()

    def state(self) -> State:
        """As it is now."""
        c = self.cores
        return State(
            c.pc(),
            c.x().tobytes(),
            c.f().tobytes(),
            c.v().tobytes(),
            tuple(c.csr(name) for name in SEEN),
            self.memory.tobytes(),
            c.counters(),
        )


def random_word(row: Insn, rng: random.Random) -> int:
    """The row with random registers that keep pointers and counter, and addresses in the data."""
    values = some_operands(row, rng)
    legal = limits(row.format)
    memory = row.cls in ("load", "store", "amo", "vload", "vstore")
    for name, value in values.items():
        if name == "rs1" and memory:
            values[name] = 8
        elif name == "rd" and (value in POINTERS or value == COUNTER):
            values[name] = 9
        elif name in ("imm", "uimm") and memory:
            values[name] = rng.choice([v for v in legal[name] if abs(v) < ROOM // 4])
        elif name in ("vd", "vs1", "vs2", "vs3"):
            values[name] = rng.randrange(1, 32)
        elif name == "target":
            values[name] = row.size  # to the next one: ends the block, that is all
        elif name == "csr":
            values[name] = rng.choice((0x340, 0xB02, 0x003, 0x001, 0xC20, 0xC02))
    return encode(row.name, **values)


@cache
def _filter() -> Machine:
    return Machine()


def setup(sew: int) -> int:
    """The first instruction of a program: VL elements of `sew` bits."""
    return encode("vsetivli", rd=0, uimm=VL, vtype=vtype(sew))


def retires(word: int, sew: int) -> bool:
    """Does it run behind setup(sew), and leave the pointers?"""
    machine = _filter()
    machine.load([setup(sew), word])
    machine.start(1)
    stop = machine.cores.run(1)
    assert stop.instructions == 1
    stop = machine.cores.run(1)
    pointers = machine.cores.x()[list(POINTERS)]
    return stop.reason == _core.BUDGET and bool((pointers == DATA + ROOM // 2).all())


def program_rows() -> list[Insn]:
    """The rows of random programs."""
    apart = [r for r in instructions() if r.name not in APART and r.cls != "vset"]
    return [r for r in apart if r.format not in SCATTERED]


def random_program(
    rng: random.Random, length: int, rows: Sequence[Insn] = (), sew: int = 16
) -> list[int]:
    """setup(sew), then `length` random instructions that retire, run twice, then an illegal one.

    Shorter when the rows have no legal operands at this width.
    """
    choices = rows or program_rows()
    words: list[int] = []
    for _ in range(length * 20):
        word = random_word(rng.choice(choices), rng)
        if retires(word, sew):
            words.append(word)
        if len(words) == length:
            break
    size = sum(4 if w & 3 == 3 else 2 for w in words)
    end = [
        encode("addi", rd=COUNTER, rs1=COUNTER, imm=-1),
        encode("bne", rs1=COUNTER, rs2=0, target=-size - 4),
    ]
    return [setup(sew), *words, *end]
