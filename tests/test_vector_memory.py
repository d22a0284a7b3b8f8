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
from tests.vector_model import (
    LMULS,
    SEWS,
    Group,
    State,
    fill,
    legal_vtype,
    overlap_legal,
)

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


#: v, l or s, how elements are placed, fields of a segment, e or ei, EEW, fault-only-first
NAME = re.compile(r"v([ls])(s|ux|ox|)(?:seg(\d))?ei?(\d+)(ff)?\.v")


@dataclass
class Access:
    """What a row is at one vtype; nothing where it is not `legal`.

    Attributes:
        evl, eew: elements and their width.
        fields, spread: of a segment, and registers from one field to the next.
        index_eew: width of the indices; 0 without.
        strided: rs2 says how far elements are apart.
        quiet: fault-only-first.
    """

    legal: bool
    evl: int
    eew: int
    masked: bool
    fields: int = 1
    spread: int = 1
    index_eew: int = 0
    strided: bool = False
    quiet: bool = False


def access_of(
    row: Insn, reg: int, index: int, vm: int, sew: int, lmul: Fraction, vl: int, vlen: int
) -> Access:
    """What the manual says; sew 0 is vill."""
    if whole := re.match(r"v[ls](\d)r(?:e(\d+))?\.v", row.name):
        n, eew = int(whole[1]), int(whole[2] or 8)
        return Access(reg % n == 0, n * vlen // eew, eew, False)
    if row.name in ("vlm.v", "vsm.v"):
        return Access(sew != 0, (vl + 7) // 8, 8, False)
    match = NAME.fullmatch(row.name)
    assert match, row.name
    load, how, fields = match[1] == "l", match[2], int(match[3] or 1)
    if not sew:
        return Access(False, 0, int(match[4]), False)
    indexed = "x" in how
    eew = sew if indexed else int(match[4])
    emul = lmul * eew / sew
    size = max(1, int(emul))
    legal = Fraction(1, 8) <= emul <= 8 and reg % size == 0
    legal = legal and fields * size <= 8 and reg + fields * size <= 32
    legal = legal and not (load and vm == 0 and reg == 0)
    if indexed:
        data, indices = Group(reg, sew), Group(index, int(match[4]))
        s = State(vlen, sew, lmul, vl, 0, 0, 0, b"", (), ())
        legal = legal and indices.legal(s)
        if load and legal and fields == 1:
            legal = overlap_legal(s, data, indices)
        elif load and legal:
            legal = reg + fields * size <= index or index + indices.size(s) <= reg
    return Access(
        legal,
        vl,
        eew,
        vm == 0,
        fields,
        size,
        int(match[4]) if indexed else 0,
        how == "s",
        bool(match[5]),
    )


def check(
    machine: Machine, row: Insn, sew: int, lmul: str, rng: np.random.Generator, wild: bool
) -> None:
    cores, vlen = machine.cores, machine.vlen
    group, store = LMULS[lmul], row.cls == "vstore"
    legal = legal_vtype(sew, group)
    vlmax = int(group * vlen / sew) if legal else 0
    vl = int(rng.choice([0, 1, vlmax, int(rng.integers(0, vlmax + 1))]))
    vstart = int(rng.integers(0, vlmax + 1)) % vlen if rng.integers(3) == 0 else 0
    vm = int(rng.integers(4) != 0)
    reg = int(rng.integers(32)) if wild else int(rng.choice([8, 16]))
    index_reg = int(rng.integers(32)) if wild else 24
    names = limits(row.format)
    given = {"vd": reg, "vs3": reg, "rs1": 10, "rs2": 11, "vs2": index_reg, "vm": vm}
    operands = {k: v for k, v in given.items() if k in names}
    word = encode(row.name, **operands)
    near = rng.choice([A, B, B + SIZE, C, C + SIZE])
    address = int(near + rng.integers(-1100, 1100)) if wild else int(A + rng.integers(0, 2000))
    stride = int(rng.choice([0, 1, 2, 8, 3, 40, -8, -1]))

    cores.set_csr("mstatus", UNITS_ON)
    setup = encode("vsetvli", rd=0, rs1=5, vtype=vtype(sew, lmul))
    cores.write(CODE, setup.to_bytes(4, "little") + word.to_bytes(4, "little"))
    cores.set_pc(CODE)
    cores.x()[5], cores.x()[10], cores.x()[11] = vl, address, stride & (1 << 64) - 1
    cores.run(1)
    v = rng.integers(0, 256, (32, vlen // 8), np.uint8)
    a = access_of(
        row,
        reg,
        index_reg,
        operands.get("vm", 1),
        sew if legal else 0,
        group,
        vl if legal else 0,
        vlen,
    )
    if a.index_eew:
        indices = rng.integers(0, min(1 << a.index_eew, 1500), 256, np.uint64)
        fill(v, index_reg, a.index_eew, indices)
    cores.v()[:] = v
    memory = {base: rng.integers(0, 256, SIZE, np.uint8) for base in machine.regions}
    for base, region in machine.regions.items():
        region[:] = memory[base]
    cores.set_csr("vstart", vstart)

    size, done, fault, new_vl = a.eew // 8, 0, None, vl
    registers = v.reshape(-1)
    mask = np.unpackbits(v[0], bitorder="little").astype(bool)
    for i, f in itertools.product(range(vstart, a.evl) if a.legal else (), range(a.fields)):
        if a.masked and not mask[i]:
            continue
        if a.index_eew:
            at_index = index_reg * vlen // 8 + i * a.index_eew // 8
            offset = int.from_bytes(registers[at_index:][: a.index_eew // 8].tobytes(), "little")
        else:
            offset = i * (stride if a.strided else size * a.fields)
        at = address + offset + f * size
        bad = first_bad(at, size, store)
        if bad is not None:
            if a.quiet and i:
                new_vl = i
            else:
                fault = (i, bad)
            break
        base = next(b for b in memory if b <= at < b + SIZE)
        there = memory[base][at - base : at - base + size]
        at_register = (reg + f * a.spread) * vlen // 8 + i * size
        here = registers[at_register : at_register + size]
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
    assert cores.csr("vl") == (new_vl if legal else 0), what
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


@pytest.mark.parametrize("path", PATHS)
def test_fault_only_first(path: str) -> None:
    """Elements past the first that cannot be read shorten vl; the first one traps."""
    cores = _core.Cores(1, 512, simd=path)
    cores.map(CODE, 4096, _core.R | _core.X)
    low = cores.map(A, SIZE, _core.R)
    low[:] = np.arange(SIZE) % 251
    words = [
        encode("vsetivli", rd=0, uimm=16, vtype=vtype(32, "m1")),
        encode("vlseg2e32ff.v", vd=8, rs1=10),
        encode("vlseg2e32ff.v", vd=12, rs1=11),
    ]
    cores.write(CODE, b"".join(w.to_bytes(4, "little") for w in words))
    cores.set_csr("mstatus", UNITS_ON)
    cores.x()[10], cores.x()[11] = A + SIZE - 44, A + SIZE
    cores.set_pc(CODE)
    stop = cores.run(1000)
    assert (stop.cause, stop.address, stop.pc) == (5, A + SIZE, CODE + 8)
    assert (cores.csr("vl"), cores.csr("vstart")) == (5, 0)
    want = low[SIZE - 44 : SIZE].view("<u4")
    assert np.array_equal(cores.v()[8].view("<u4")[:6], want[0::2])  # the sixth segment is cut
    assert np.array_equal(cores.v()[9].view("<u4")[:6], [*want[1::2], 0])


@pytest.mark.parametrize("path", PATHS)
def test_indexed_stores_in_order(path: str) -> None:
    """Where two elements go to one place the later one stays."""
    cores = _core.Cores(1, 128, simd=path)
    cores.map(CODE, 4096, _core.R | _core.X)
    box = cores.map(A, SIZE, _core.R | _core.W)
    words = [
        encode("vsetivli", rd=0, uimm=16, vtype=vtype(8, "m1")),
        encode("vid.v", vd=8),
        encode("vsoxei8.v", vs3=8, rs1=10, vs2=9),
    ]
    cores.write(CODE, b"".join(w.to_bytes(4, "little") for w in words))
    cores.set_csr("mstatus", UNITS_ON)
    cores.x()[10] = A
    cores.v()[9] = np.arange(16) % 4
    cores.set_pc(CODE)
    cores.run(3 + 2 * 16)
    assert box[:5].tolist() == [12, 13, 14, 15, 0]
