"""Protection: what each access may reach, what a fault says, and that it changes nothing else."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pytest

from nicemu import _core
from nicemu._core import BUDGET, FAULT, Cores, Insn, R, W, X, instructions
from nicemu.errors import ArgumentError
from tests.address_map import CODE, M64, Mapped, run_one
from tests.encode import encode, image, limits, rows, vtype
from tests.harts import simd_paths

FETCH, LOAD, STORE, LOAD_MISALIGNED, STORE_MISALIGNED = 1, 5, 7, 4, 6
UNITS = 3 << 13 | 3 << 9
BASE = 9  # register that holds the address; x2 where the encoding says so
VALUE = 10  # register loaded or stored, integer or FP
STORED = 0x1122334455667788

#: scalar row -> (bytes, result from the little-endian bytes); compressed rows: those they stand for
LOADS = {
    "lb": (1, lambda b: int.from_bytes(b, "little", signed=True)),
    "lh": (2, lambda b: int.from_bytes(b, "little", signed=True)),
    "lw": (4, lambda b: int.from_bytes(b, "little", signed=True)),
    "ld": (8, lambda b: int.from_bytes(b, "little")),
    "lbu": (1, lambda b: int.from_bytes(b, "little")),
    "lhu": (2, lambda b: int.from_bytes(b, "little")),
    "lwu": (4, lambda b: int.from_bytes(b, "little")),
    "flh": (2, lambda b: int.from_bytes(b + b"\xff" * 6, "little")),
    "flw": (4, lambda b: int.from_bytes(b + b"\xff" * 4, "little")),
    "fld": (8, lambda b: int.from_bytes(b, "little")),
}
STORES = {"sb": 1, "sh": 2, "sw": 4, "sd": 8, "fsh": 2, "fsw": 4, "fsd": 8}


def plain_name(row: Insn) -> str:
    """c.fldsp -> fld"""
    return row.name.removeprefix("c.").removesuffix("sp")


SCALAR = [row for row in instructions() if row.cls in ("load", "store")]
ATOMIC = [row for row in instructions() if row.cls == "amo"]
# bodies whose elements follow one another in memory; the others: tests/test_vector_memory.py
CONTIGUOUS = {"vle", "vse", "vlm_v", "vsm_v", "vlr", "vsr"}
VECTOR = [
    row for row in instructions() if row.cls in ("vload", "vstore") and row.exec in CONTIGUOUS
]


@pytest.fixture(scope="module")
def mapped() -> Mapped:
    return Mapped()


@pytest.fixture(scope="module", params=simd_paths())
def on_each_path(request: pytest.FixtureRequest) -> Mapped:
    return Mapped(simd=request.param)


def prepare(mapped: Mapped) -> None:
    cores = mapped.cores
    cores.reset(CODE)
    cores.set_csr("mstatus", UNITS)
    cores.x()[1:] = np.arange(1, 32, dtype=np.uint64) << np.uint64(32)
    cores.f()[:] = np.arange(32, dtype=np.uint64) << np.uint64(33)
    cores.x()[VALUE] = cores.f()[VALUE] = STORED


class State(NamedTuple):
    """All that a fault must leave alone."""

    x: bytes
    f: bytes
    v: bytes
    memory: bytes


def state(mapped: Mapped) -> State:
    c = mapped.cores
    return State(c.x().tobytes(), c.f().tobytes(), c.v().tobytes(), mapped.snapshot())


def set_address(row: Insn, mapped: Mapped, address: int, rng: random.Random) -> int:
    """Point the base register so that base + immediate = address; returns the word."""
    operands: dict[str, int] = {}
    legal = limits(row.format)
    base = BASE if "rs1" in legal else 2
    for name, values in legal.items():
        if name == "imm":
            operands[name] = rng.choice((0, values[0], values[-1], rng.choice(values)))
        elif name == "rs1":
            operands[name] = base
        elif name in ("aq", "rl"):
            operands[name] = rng.choice(values)
        else:
            operands[name] = VALUE
    mapped.cores.x()[base] = address - operands.get("imm", 0) & M64
    return encode(row.name, **operands)


def expect_fault(mapped: Mapped, stop: _core.Stop, cause: int, address: int, before: State) -> None:
    """The typed fault of an instruction at CODE that did nothing."""
    assert (stop.reason, stop.cause) == (FAULT, cause), stop
    assert stop.address == address, (hex(stop.address), hex(address))
    assert (stop.pc, stop.instructions, stop.elements) == (CODE, 0, 0)
    assert state(mapped) == before


def test_tables_cover_every_row() -> None:
    assert {plain_name(row) for row in SCALAR} == {*LOADS, *STORES}
    assert {row.format for row in ATOMIC} == {"LR", "AMO"}


@pytest.mark.parametrize("row", SCALAR, ids=lambda row: row.name)
def test_scalar(row: Insn, mapped: Mapped) -> None:
    """Every edge of every region; cold caches of the fast path and warm ones."""
    rng = random.Random(row.name)
    name = plain_name(row)
    load = name in LOADS
    size = LOADS[name][0] if load else STORES[name]
    perm, cause = (R, LOAD) if load else (W, STORE)
    addresses = mapped.edges(size)
    reached = 0
    for address in [*addresses, *rng.sample(addresses, len(addresses))]:
        prepare(mapped)
        mapped.fill()
        word = set_address(row, mapped, address, rng)
        mapped.cores.write(CODE, word.to_bytes(row.size, "little"))
        before = state(mapped)
        stop = run_one(mapped.cores, word, row.size)
        bad = mapped.first_out_of_reach(address, size, perm)
        if bad is not None:
            expect_fault(mapped, stop, cause, bad, before)
            continue
        reached += 1
        assert (stop.reason, stop.instructions, stop.pc) == (BUDGET, 1, CODE + row.size), stop
        if load:
            register = mapped.cores.f() if name.startswith("f") else mapped.cores.x()
            value = LOADS[name][1](mapped.bytes_at(address, size)) & M64
            assert int(register[VALUE]) == value
            assert mapped.snapshot() == before.memory
        else:
            assert mapped.bytes_at(address, size) == STORED.to_bytes(8, "little")[:size]
            after = np.frombuffer(mapped.snapshot(), np.uint8)
            assert np.count_nonzero(after != np.frombuffer(before.memory, np.uint8)) <= size
    assert reached > 20  # misaligned ones among them


@pytest.mark.parametrize("row", ATOMIC, ids=lambda row: row.name)
def test_atomic(row: Insn, mapped: Mapped) -> None:
    rng = random.Random(row.name)
    size = 8 if row.name.endswith("d") else 4
    reads = row.name.startswith("lr")
    perm = R if reads else W if row.name.startswith("sc") else R | W
    reached = 0
    for address in mapped.edges(size):
        prepare(mapped)
        mapped.fill()
        word = set_address(row, mapped, address, rng)
        mapped.cores.write(CODE, word.to_bytes(row.size, "little"))
        before = state(mapped)
        stop = run_one(mapped.cores, word, row.size)
        bad = mapped.first_out_of_reach(address, size, perm)
        if address % size:  # the manual allows a trap; which comes first is ours to say
            cause = LOAD_MISALIGNED if reads else STORE_MISALIGNED
            expect_fault(mapped, stop, cause, address, before)
        elif bad is not None:
            expect_fault(mapped, stop, LOAD if reads else STORE, bad, before)
        else:
            reached += 1
            assert (stop.reason, stop.instructions) == (BUDGET, 1)
    assert reached > 10


def test_another_harts_memory_is_not_there(mapped: Mapped) -> None:
    """Hart 1 stores to its own region, hart 0 cannot even read it, and the reverse."""
    prepare(mapped)
    mapped.fill()
    x = mapped.cores.x()
    x[BASE] = Mapped.FOREIGN
    stop = run_one(mapped.cores, encode("ld", rd=5, rs1=BASE), 4)
    assert (stop.cause, stop.address) == (LOAD, Mapped.FOREIGN)
    stop = mapped.cores.run(1, hart=1)
    assert (stop.reason, stop.cause, stop.hart) == (FAULT, FETCH, 1)


# ---- fetch -----------------------------------------------------------------------------------

NOP, C_NOP = encode("addi", rd=0, rs1=0, imm=0), encode("c.nop")


def fetch_from(mapped: Mapped, pc: int, budget: int = 100) -> _core.Stop:
    mapped.cores.reset(pc)
    return mapped.cores.run(budget)


def test_fetch_needs_execute(mapped: Mapped) -> None:
    for r in mapped.regions:
        mapped.memory[r.name][:] = 0
        mapped.cores.write(r.base + (r.base & 1), C_NOP.to_bytes(2, "little") * 4 + bytes(2))
        start = r.base + (r.base & 1)
        stop = fetch_from(mapped, start)
        if r.perm & X:
            assert (stop.cause, stop.pc, stop.instructions) == (2, start + 8, 4), r
        else:
            assert (stop.cause, stop.pc, stop.address, stop.instructions) == (1, start, start, 0)


@pytest.mark.parametrize("before", [0, 1, 3, 40, 100])
@pytest.mark.parametrize("straddles", [False, True])
def test_running_off_the_end(mapped: Mapped, before: int, straddles: bool) -> None:
    """Code that ends with its region: the fault is at the first byte that is not there."""
    region = next(r for r in mapped.regions if r.name == "execute")
    end = region.base + region.size
    code = C_NOP.to_bytes(2, "little") * before
    if straddles:  # the last instruction's second half is outside
        code += NOP.to_bytes(4, "little")[:2]
    mapped.cores.write(end - len(code), code) if code else None
    stop = fetch_from(mapped, end - len(code), 10**6)
    assert (stop.reason, stop.cause, stop.address) == (FAULT, FETCH, end)
    assert (stop.pc, stop.instructions) == (end - 2 * straddles, before)


def test_fetch_across_two_regions() -> None:
    """Instructions may lie across regions that touch, where both can be executed."""
    cores = Cores()
    for base, perm in ((0x1000, X), (0x2000, X), (0x3000, R | W)):
        cores.map(base, 0x1000, perm)
    add = encode("addi", rd=5, rs1=5, imm=1).to_bytes(4, "little")
    cores.write(0x1FFE, add[:2])
    cores.write(0x2000, add[2:] + add + bytes(2))
    cores.set_pc(0x1FFE)
    stop = cores.run(100)
    assert (stop.cause, stop.pc, stop.instructions, int(cores.x()[5])) == (2, 0x2006, 2, 2)
    cores.write(0x2FFE, add[:2])
    cores.set_pc(0x2FFE)
    stop = cores.run(100)
    assert (stop.cause, stop.pc, stop.address) == (FETCH, 0x2FFE, 0x3000)


@pytest.mark.parametrize(
    "target", [0x9998, Mapped.FOREIGN, 0x40000, M64 - 1, M64 & ~0xFFF, 0x68000]
)
@pytest.mark.parametrize("odd", [0, 1])
def test_jump_out(mapped: Mapped, target: int, odd: int) -> None:
    """jalr retires, bit 0 of its target cleared; the fetch at the target faults."""
    prepare(mapped)
    mapped.cores.x()[BASE] = target + odd
    mapped.cores.write(CODE, image([encode("jalr", rd=1, rs1=BASE)]))
    stop = mapped.cores.run(10)
    assert (stop.reason, stop.cause, stop.address, stop.pc) == (FAULT, FETCH, target, target)
    assert stop.instructions == 1 and int(mapped.cores.x()[1]) == CODE + 4


def test_branch_out(mapped: Mapped) -> None:
    for name in ("beq", "jal", "c.j", "c.beqz"):
        prepare(mapped)
        offset = -0x800 if rows()[name].size == 4 else -256
        operands = {"rs1": 8, "rs2": 8} if name == "beq" else {"rs1": 8} if name == "c.beqz" else {}
        operands |= {"rd": 1} if name == "jal" else {}
        mapped.cores.x()[8] = 0
        word = encode(name, **operands, target=offset)
        mapped.cores.write(CODE, image([word]))
        stop = mapped.cores.run(10)
        assert (stop.cause, stop.pc, stop.instructions) == (FETCH, CODE + offset, 1), name


# ---- code that changes -----------------------------------------------------------------------


def test_self_modifying_code() -> None:
    """After fence.i the hart runs what it stored."""
    cores = Cores()
    cores.map(CODE, 0x1000, R | W | X)
    new = encode("addi", rd=5, rs1=0, imm=2)
    program = [
        encode("auipc", rd=6, hi20=0),
        encode("sw", rs1=6, rs2=7, imm=16),
        encode("fence.i"),
        encode("addi", rd=8, rs1=8, imm=1),
        encode("addi", rd=5, rs1=0, imm=1),  # at 16: becomes `new`
        encode("bne", rs1=9, rs2=0, target=-8),
        0,
    ]
    for warm in (False, True):  # decoded before it is changed, or not
        cores.write(CODE, image(program))
        cores.reset(CODE + 12 if warm else CODE)
        if warm:
            cores.run(100)
            assert int(cores.x()[5]) == 1
            cores.set_pc(CODE)
        cores.x()[7] = new
        stop = cores.run(100)
        assert (stop.cause, int(cores.x()[5])) == (2, 2)


def test_host_writes_to_code_are_seen() -> None:
    """By every hart that shares the bytes, without a fence.i."""
    cores = Cores(2)
    cores.map(CODE, 0x1000, R | X)
    for value in (1, 2, 3):
        word = encode("addi", rd=5, rs1=0, imm=value)
        cores.write(CODE, image([word, 0]), hart=value % 2)
        for hart in (0, 1):
            cores.set_pc(CODE, hart)
            cores.run(10, hart)
            assert int(cores.x(hart)[5]) == value


def test_mapping_after_running_is_seen() -> None:
    cores = Cores()
    cores.map(CODE, 0x1000, R | X)
    cores.write(CODE, image([encode("ld", rd=5, rs1=BASE), 0]))
    cores.x()[BASE] = 0x8000
    cores.set_pc(CODE)
    assert cores.run(5).cause == LOAD
    memory = cores.map(0x8000, 0x1000, R)
    memory[0] = 7
    stop = cores.run(5)
    assert (stop.cause, stop.instructions, int(cores.x()[5])) == (2, 1, 7)


# ---- vectors ---------------------------------------------------------------------------------

EEW = {"8": 1, "16": 2, "32": 4, "64": 8}


class Access(NamedTuple):
    """A vector access: `n` elements of `size` bytes."""

    word: int
    n: int
    size: int


def vector_access(row: Insn, mapped: Mapped, vl: int, sew: int, masked: bool) -> Access:
    """Prepare vtype and vl; v8 is the operand, v0 the mask."""
    register = "vd" if row.cls == "vload" else "vs3"
    operands = {register: 8, "rs1": BASE}
    cores = mapped.cores
    cores.x()[11] = vl
    setup = encode("vsetvli", rd=12, rs1=11, vtype=vtype(sew))
    assert run_one(cores, setup, 4).instructions == 1
    granted = int(cores.x()[12])
    digits = "".join(c for c in row.name.split(".")[0] if c.isdigit())
    if row.format in ("VL", "VS"):
        operands["vm"] = int(not masked)
        return Access(encode(row.name, **operands), granted, EEW[digits])
    if row.name in ("vlm.v", "vsm.v"):
        return Access(encode(row.name, **operands), (granted + 7) // 8, 1)
    # vl4re32.v, vs4r.v: whole registers
    size = EEW[row.name[5:].removesuffix(".v")] if row.cls == "vload" else 1
    return Access(encode(row.name, **operands), int(row.name[2]) * cores.v().shape[1] // size, size)


def test_vector_formats() -> None:
    assert {row.exec for row in VECTOR} == CONTIGUOUS
    assert {row.format for row in VECTOR} == {"VL", "VS", "VLN", "VSN"}


def vector_cases(mapped: Mapped, access: Access) -> Iterator[int]:
    total = access.n * access.size
    yield from mapped.edges(max(total, 1))
    for r in mapped.regions:  # the region ends inside the vector, between elements and inside one
        end = r.base + r.size
        for k in (1, access.n // 2, access.n - 1):
            yield end - k * access.size & M64
            yield end - k * access.size - access.size // 2 & M64


@pytest.mark.parametrize("masked", [False, True], ids=["all", "masked"])
@pytest.mark.parametrize("row", VECTOR, ids=lambda row: row.name)
def test_vector(row: Insn, masked: bool, on_each_path: Mapped) -> None:
    """Elements before the fault are done and counted, vstart names the one that met it."""
    mapped = on_each_path
    if masked and row.format not in ("VL", "VS"):
        return
    rng = random.Random(f"{row.name} {masked}")
    load = row.cls == "vload"
    perm, cause = (R, LOAD) if load else (W, STORE)
    for vl in (1, 5, 200):
        prepare(mapped)
        access = vector_access(row, mapped, vl, 16 if "16" in row.name else 8, masked)
        addresses = sorted(set(vector_cases(mapped, access)))
        for address in rng.sample(addresses, min(len(addresses), 60)):
            prepare(mapped)
            access = vector_access(row, mapped, vl, 16 if "16" in row.name else 8, masked)
            mapped.fill()
            mapped.memory["code"][:] = 0
            v = mapped.cores.v()
            v[:] = np.frombuffer(rng.randbytes(v.size), np.uint8).reshape(v.shape)
            mapped.cores.x()[BASE] = address
            mapped.cores.set_csr("mstatus", UNITS & ~(1 << 9))  # clean, to see what dirties it
            mapped.cores.write(CODE, access.word.to_bytes(4, "little"))
            mask = np.unpackbits(v[0], bitorder="little")
            before = state(mapped)
            expected_v = bytearray(before.v)
            expected_memory = {r.name: bytearray(mapped.memory[r.name]) for r in mapped.regions}
            fault, done = None, 0
            for i in range(access.n):
                if masked and not mask[i]:
                    continue
                at = address + i * access.size & M64
                bad = mapped.first_out_of_reach(at, access.size, perm)
                if bad is not None:
                    fault = (i, bad)
                    break
                where = 8 * v.shape[1] + i * access.size
                if load:
                    expected_v[where : where + access.size] = mapped.bytes_at(at, access.size)
                else:
                    r = mapped.find(at)
                    assert r is not None
                    o = at - r.base
                    data = before.v[where : where + access.size]
                    expected_memory[r.name][o : o + access.size] = data
                done += 1
            stop = run_one(mapped.cores, access.word, 4)
            after = state(mapped)
            assert after.v == bytes(expected_v), (hex(address), vl)
            wanted = b"".join(bytes(m) for m in expected_memory.values()) + mapped.foreign.tobytes()
            assert after.memory == wanted
            assert (after.x, after.f, stop.elements) == (before.x, before.f, done)
            vstart = mapped.cores.csr("vstart")
            dirty = mapped.cores.csr("mstatus") >> 9 & 3
            if fault is None:
                assert (stop.reason, stop.instructions, vstart) == (BUDGET, 1, 0), stop
                assert dirty == (3 if load else 2)
            else:
                assert (stop.reason, stop.cause, stop.address) == (FAULT, cause, fault[1]), stop
                assert (stop.pc, stop.instructions, vstart) == (CODE, 0, fault[0])


@pytest.mark.parametrize(
    "row", [r for r in VECTOR if r.format in ("VL", "VS")], ids=lambda r: r.name
)
def test_vector_goes_on_at_vstart(row: Insn, mapped: Mapped) -> None:
    """What a handler would do: repair the fault, return, and the rest is done, and only that."""
    prepare(mapped)
    mapped.fill()
    access = vector_access(row, mapped, 8, 8, False)
    address = next(r.base for r in mapped.regions if r.name == "plain")
    mapped.cores.x()[BASE] = address
    mapped.cores.v()[:] = 0
    mapped.cores.set_csr("vstart", 3)
    memory = mapped.bytes_at(address, 64)
    stop = run_one(mapped.cores, access.word, 4)
    k = 3 * access.size
    assert (stop.elements, mapped.cores.csr("vstart")) == (access.n - 3, 0)
    source = memory[k : access.n * access.size]
    if row.cls == "vload":
        v = mapped.cores.v()[8].tobytes() + mapped.cores.v()[9].tobytes()
        assert v[:k] == bytes(k) and v[k : access.n * access.size] == source
    else:
        now = mapped.bytes_at(address, 64)
        assert now[:k] == memory[:k] and now[k : access.n * access.size] == bytes(len(source))


# ---- the host's side -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("base", "size"),
    [
        (0x20000, 0x1000),
        (0x20FFF, 0x1000),
        (0x1FFFF, 64),
        (0x20800, 64),
        (0x1F000, 0x10000),
        (0x100000, 63),
        (0x100000, 0),
        (0xFFFFFFFFFFFFF000, 0x1000),
        (0xFFFFFFFFFFFFEFC1, 64),
        (0xFFFFFFFFFFFFFFC0, 64),
    ],
)
def test_bad_regions(base: int, size: int) -> None:
    cores = Cores(2)
    cores.map(0x20000, 0x1000, R | W, [1])
    with pytest.raises(ArgumentError, match="region"):
        cores.map(base, size, R | W)
    if base < 1 << 60 and size >= 64:
        cores.map(base, size, R | W, [0])  # the other hart has room there
        with pytest.raises(ArgumentError):
            cores.map(base, size, R | W, [0])


def test_bad_permissions_and_harts() -> None:
    cores = Cores(2)
    for perm, harts in ((16, [0]), (R, []), (R, [2]), (R, [0, 5])):
        with pytest.raises(ArgumentError):
            cores.map(0x20000, 0x1000, perm, harts)


def test_too_many_regions() -> None:
    cores = Cores()
    for i in range(16):
        cores.map(i << 16, 64, R | W)
    with pytest.raises(MemoryError):
        cores.map(16 << 16, 64, R | W)
    cores.write(15 << 16, bytes(64))


def test_host_access_is_all_or_nothing(mapped: Mapped) -> None:
    mapped.fill()
    before = mapped.snapshot()
    for size in (1, 8, 64, 4000):
        for address in mapped.edges(size):
            if mapped.first_out_of_reach(address, size, 0) is None:
                assert mapped.cores.read(address, size) == mapped.bytes_at(address, size)
                continue
            with pytest.raises(ArgumentError):
                mapped.cores.read(address, size)
            with pytest.raises(ArgumentError):
                mapped.cores.write(address, bytes(size))
    assert mapped.snapshot() == before
    for hart in (2, 64, 1 << 31):
        with pytest.raises(ArgumentError):
            mapped.cores.read(0, 1, hart)
