"""Vector loads and stores from machine code: what moves, what is left alone, what a fault leaves.

A slow model moves one element at a time over a small address space with a hole, a read-only region
and two regions that touch; every row runs at every SEW, LMUL and host path, at addresses all over.
"""

from __future__ import annotations

import itertools
import re
import zlib
from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np
import pytest

from nicemu import _core
from nicemu._core import Insn, instructions
from tests.encode import encode, limits, vtype
from tests.harts import simd_paths
from tests.vector_model import LMULS, SEWS, legal_vtype

UNITS_ON = 0x6600
CODE = 0x1000
A = 0x10000  # readable and writable; B follows without a gap
B = A + 4096
C = 0x20000  # read only
SIZE = 4096
PATHS = simd_paths()
VLENS = (128, 256, 512, 1024)
MEMORY = tuple(row for row in instructions() if row.cls in ("vload", "vstore"))


@dataclass
class Machine:
    """One hart and its four regions."""

    path: str
    vlen: int
    cores: _core.Cores = field(init=False)
    regions: dict[int, np.ndarray] = field(init=False)

    def __post_init__(self) -> None:
        self.cores = _core.Cores(1, self.vlen, simd=self.path)
        self.cores.map(CODE, 4096, _core.R | _core.X)
        self.regions = {
            base: self.cores.map(base, SIZE, perm)
            for base, perm in ((A, _core.R | _core.W), (B, _core.R | _core.W), (C, _core.R))
        }


@pytest.fixture(scope="module")
def machines() -> dict[tuple[str, int], Machine]:
    return {(p, n): Machine(p, n) for p, n in itertools.product(PATHS, VLENS)}


def first_bad(address: int, size: int, store: bool) -> int | None:
    """The first byte that an access cannot reach; it must lie in one region."""
    for base in (A, B) if store else (A, B, C):
        if base <= address < base + SIZE:
            return None if address + size <= base + SIZE else base + SIZE
    return address


@dataclass
class Access:
    """What a row is at one vtype; nothing where it is not `legal`."""

    legal: bool
    evl: int
    eew: int
    masked: bool


def access_of(row: Insn, reg: int, vm: int, sew: int, lmul: Fraction, vl: int, vlen: int) -> Access:
    """What the manual says; sew 0 is vill."""
    if whole := re.match(r"v[ls](\d)r(?:e(\d+))?\.v", row.name):
        n, eew = int(whole[1]), int(whole[2] or 8)
        return Access(reg % n == 0, n * vlen // eew, eew, False)
    if row.name in ("vlm.v", "vsm.v"):
        return Access(sew != 0, (vl + 7) // 8, 8, False)
    eew = int(row.name[3:].split(".")[0])
    if not sew:
        return Access(False, 0, eew, False)
    emul = lmul * eew / sew
    legal = Fraction(1, 8) <= emul <= 8 and reg % max(1, int(emul)) == 0
    legal = legal and not (row.cls == "vload" and vm == 0 and reg == 0)
    return Access(legal, vl, eew, vm == 0)


def check(
    machine: Machine, row: Insn, sew: int, lmul: str, rng: np.random.Generator, wild: bool
) -> None:
    cores, vlen = machine.cores, machine.vlen
    group, store = LMULS[lmul], row.cls == "vstore"
    legal = legal_vtype(sew, group)
    vlmax = int(group * vlen / sew) if legal else 0
    vl = int(rng.choice([0, 1, vlmax, int(rng.integers(0, vlmax + 1))]))
    vstart = int(rng.integers(0, vlmax + 1)) if rng.integers(3) == 0 else 0
    vm = int(rng.integers(4) != 0)
    reg = int(rng.integers(32)) if wild else int(rng.choice([8, 16, 24]))
    names = limits(row.format)
    operands = {"vd" if "vd" in names else "vs3": reg, "rs1": 10}
    if "vm" in names:
        operands["vm"] = vm
    word = encode(row.name, **operands)
    near = rng.choice([A, B, B + SIZE, C, C + SIZE])
    address = int(near + rng.integers(-1100, 1100)) if wild else int(A + rng.integers(0, 2000))

    cores.set_csr("mstatus", UNITS_ON)
    setup = encode("vsetvli", rd=0, rs1=5, vtype=vtype(sew, lmul))
    cores.write(CODE, setup.to_bytes(4, "little") + word.to_bytes(4, "little"))
    cores.set_pc(CODE)
    cores.x()[5], cores.x()[10] = vl, address
    cores.run(1)
    v = rng.integers(0, 256, (32, vlen // 8), np.uint8)
    cores.v()[:] = v
    memory = {base: rng.integers(0, 256, SIZE, np.uint8) for base in machine.regions}
    for base, region in machine.regions.items():
        region[:] = memory[base]
    cores.set_csr("vstart", vstart)

    a = access_of(
        row, reg, operands.get("vm", 1), sew if legal else 0, group, vl if legal else 0, vlen
    )
    size, done, fault = a.eew // 8, 0, None
    registers = v.reshape(-1)
    mask = np.unpackbits(v[0], bitorder="little").astype(bool)
    base_byte = reg * vlen // 8
    for i in range(vstart, a.evl) if a.legal else ():
        if a.masked and not mask[i]:
            continue
        at = address + i * size
        bad = first_bad(at, size, store)
        if bad is not None:
            fault = (i, bad)
            break
        base = next(b for b in memory if b <= at < b + SIZE)
        there = memory[base][at - base : at - base + size]
        here = registers[base_byte + i * size : base_byte + (i + 1) * size]
        if store:
            there[:] = here
        else:
            here[:] = there
        done += 1

    before = cores.counters()
    stop = cores.run(1)
    after = cores.counters()
    what = f"{row.name} {operands} {machine.path} vlen {vlen} e{sew} {lmul} vl {vl} vstart {vstart}"
    what += f" at {address:#x}"
    if not a.legal:
        assert (stop.reason, stop.cause, stop.address) == (_core.FAULT, 2, word), what
        assert cores.csr("vstart") == vstart
    elif fault:
        cause = 7 if store else 5
        assert (stop.reason, stop.cause, stop.address) == (_core.FAULT, cause, fault[1]), what
        assert (stop.pc, cores.csr("vstart")) == (CODE + 4, fault[0]), what
    else:
        assert (stop.reason, stop.pc) == (_core.BUDGET, CODE + 8), what
        assert cores.csr("vstart") == 0
    assert np.array_equal(cores.v(), v), what
    for base, region in machine.regions.items():
        assert np.array_equal(region, memory[base]), what
    moved = (
        after.vector_load_bytes - before.vector_load_bytes,
        after.vector_store_bytes - before.vector_store_bytes,
    )
    assert stop.elements == done, what
    assert moved == ((0, done * size) if store else (done * size, 0)), what


@pytest.mark.parametrize("row", MEMORY, ids=lambda row: row.name)
def test_rows(row: Insn, machines: dict[tuple[str, int], Machine]) -> None:
    rng = np.random.default_rng(zlib.crc32(row.name.encode()))
    for sew, lmul, path in itertools.product(SEWS, LMULS, PATHS):
        for wild in (False, True, True):
            check(machines[path, int(rng.choice(VLENS))], row, sew, lmul, rng, wild)


@pytest.mark.parametrize("path", PATHS)
def test_resume_after_fault(path: str) -> None:
    """A load that meets unmapped memory goes on where it stopped once the memory is there."""
    cores = _core.Cores(1, 512, simd=path)
    cores.map(CODE, 4096, _core.R | _core.X)
    low = cores.map(A, SIZE, _core.R)
    low[:] = np.arange(SIZE) % 251
    code = [
        encode("vsetvli", rd=6, rs1=0, vtype=vtype(32, "m8")),
        encode("vle32.v", vd=8, rs1=10),
    ]
    cores.write(CODE, b"".join(w.to_bytes(4, "little") for w in code))
    cores.set_csr("mstatus", UNITS_ON)
    cores.x()[10] = A + SIZE - 101  # 25 elements fit, the 26th straddles the end
    cores.set_pc(CODE)
    stop = cores.run(100)
    assert (stop.cause, stop.address, stop.pc) == (5, A + SIZE, CODE + 4)
    assert cores.csr("vstart") == 25
    cores.x()[10] = A
    stop = cores.run(1)
    assert stop.elements == 128 - 25
    loaded = cores.v()[8:16].reshape(-1)
    assert np.array_equal(loaded[:100], low[SIZE - 101 : SIZE - 1])
    assert np.array_equal(loaded[100:], low[100:512])


@pytest.mark.parametrize("path", PATHS)
def test_htif_store(path: str) -> None:
    """A vector store to the host's mailbox retires and stops the run."""
    cores = _core.Cores(1, 512, simd=path)
    cores.map(CODE, 4096, _core.R | _core.X)
    cores.map(A, SIZE, _core.R | _core.W)
    box = cores.map(B, 64, _core.R | _core.W | _core.HTIF_REGION)
    words = [
        encode("vsetivli", rd=0, uimm=4, vtype=vtype(16, "m1")),
        encode("vid.v", vd=8),
        encode("vse16.v", vs3=8, rs1=10),
        encode("vid.v", vd=9),
    ]
    cores.write(CODE, b"".join(w.to_bytes(4, "little") for w in words))
    for address, bytes_in_box in ((B + 8, 8), (B - 4, 4)):
        box[:] = 0
        cores.set_csr("mstatus", UNITS_ON)
        cores.x()[10] = address
        cores.set_pc(CODE)
        stop = cores.run(1000)
        assert (stop.reason, stop.address, stop.pc) == (_core.HTIF, max(address, B), CODE + 12)
        assert stop.instructions == 3
        at = max(address, B) - B
        assert bytes(box[at : at + bytes_in_box]) == bytes([0, 0, 1, 0, 2, 0, 3, 0][-bytes_in_box:])
        assert cores.csr("vstart") == 0


def test_store_breaks_reservation() -> None:
    """sc fails after another hart's vector store to the reserved granule, and only then."""
    for offset, succeeds in ((0, False), (60, False), (64, True)):
        cores = _core.Cores(2, 512)
        cores.map(CODE, 4096, _core.R | _core.X)
        cores.map(A, SIZE, _core.R | _core.W)
        reserve = [
            encode("lr.w", rd=6, rs1=10),
            *[encode("addi", rd=0, rs1=0)] * 14,
            encode("sc.w", rd=7, rs1=10, rs2=6),
            encode("jal", rd=0, target=0),
        ]
        store = [
            encode("vsetivli", rd=0, uimm=8, vtype=vtype(16, "m1")),
            encode("vse16.v", vs3=8, rs1=11),
            encode("jal", rd=0, target=0),
        ]
        code = reserve + store
        cores.write(CODE, b"".join(w.to_bytes(4, "little") for w in code))
        for i, start in enumerate((CODE, CODE + 4 * len(reserve))):
            cores.set_csr("mstatus", UNITS_ON, hart=i)
            cores.set_pc(start, hart=i)
            cores.x(i)[10], cores.x(i)[11] = A, A + offset
        cores.run_round_robin(8, 64)
        assert (int(cores.x(0)[7]) == 0) == succeeds, offset
