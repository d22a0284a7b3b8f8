"""Hostile code, data and images.  Seeds are fixed; NICEMU_FUZZ_SECONDS asks for so many seconds of
further seeds per test."""

from __future__ import annotations

import hashlib
import os
import random
import time
from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

import numpy as np
import pytest

from nicemu import FaultError, ImageError, KernelImage, Nic, StatusError, kernel
from nicemu._core import (
    BUDGET,
    FAULT,
    HTIF,
    HTIF_REGION,
    RETURN,
    Cores,
    R,
    Stop,
    W,
    X,
    instructions,
)
from nicemu._nicemu import ffi, lib
from tests.encode import encode, limits
from tests.harts import simd_paths

SECONDS = float(os.environ.get("NICEMU_FUZZ_SECONDS", "0"))
ROWS = instructions()
UNITS = 3 << 13 | 3 << 9


def seeds(fixed: int) -> Iterator[int]:
    """0..fixed-1, then more until the time is over."""
    yield from range(fixed)
    end = time.monotonic() + SECONDS
    seed = fixed
    while time.monotonic() < end:
        yield seed
        seed += 1


# ---- code and data ---------------------------------------------------------------------------

CODE, DATA, ALL, TOHOST = 0x1000, 0x20000, 0x30000, 0x40000
SIZES = {CODE: 0x400, DATA: 0x800, ALL: 0x400, TOHOST: 64}
GUARD = 256  # bytes before and behind each region's memory that nobody may touch
PATTERN = 0xA5


class Arena:
    """Harts whose memory lies between guard bytes in arrays of the test."""

    def __init__(self, simd: str, vlen: int, guest: bool, harts: int = 2) -> None:
        self.cores = Cores(harts, vlen, simd=simd, trap_to_guest=guest)
        self.raw: list[np.ndarray] = []
        self.memory: dict[tuple[int, int], np.ndarray] = {}
        for base, size in SIZES.items():
            perm = {CODE: R | X, DATA: R | W, ALL: R | W | X, TOHOST: R | W | HTIF_REGION}[base]
            if base == DATA:  # one each
                for hart in range(harts):
                    self.memory[base, hart] = self._map(base, size, perm, 1 << hart)
            else:
                self.memory[base, 0] = self._map(base, size, perm, (1 << harts) - 1)

    def _map(self, base: int, size: int, perm: int, mask: int) -> np.ndarray:
        raw = np.full(size + 2 * GUARD, PATTERN, np.uint8)
        memory = raw[GUARD : GUARD + size]
        pointer = ffi.cast("void *", memory.ctypes.data)
        assert lib.nicemu_map(self.cores.handle, mask, base, size, perm, pointer) == 0
        self.raw.append(raw)
        return memory

    def check_guards(self) -> None:
        for raw in self.raw:
            assert (raw[:GUARD] == PATTERN).all() and (raw[-GUARD:] == PATTERN).all()

    def state(self) -> list[object]:
        """All that a program can have changed."""
        out: list[object] = [m.tobytes() for m in self.memory.values()]
        for hart in range(self.cores.harts):
            c = self.cores
            out += [c.x(hart).tobytes(), c.f(hart).tobytes(), c.v(hart).tobytes(), c.pc(hart)]
            out += [c.counters(hart), c.mode(hart)]
            out += [c.csr(n, hart) for n in ("fcsr", "vcsr", "vl", "vtype", "vstart", "mstatus")]
            out += [c.csr(n, hart) for n in ("mepc", "mcause", "mtval", "minstret")]
        return out


def random_insn(rng: random.Random) -> int:
    """A row with any operands at all: addresses near the data, jumps near the code."""
    row = rng.choice(ROWS)
    operands = {}
    for name, legal in limits(row.format).items():
        value = rng.choice(legal)
        if name == "rs1" and row.cls in ("load", "store", "amo", "vload", "vstore", "jump"):
            value = rng.choice((8, 9, 10, rng.choice(legal)))
        elif name == "target":
            value = rng.choice([v for v in (-64, -16, -4, 2, 4, 6, 8, 32) if v in legal])
        elif name == "vtype":
            value = rng.choice((0, 8, 16, 24, 0x0F, 0xC8, 0xD1, 0xC3, value))
        elif name in ("vd", "vs1", "vs2", "vs3"):
            value &= ~rng.choice((0, 0, 1, 3, 7))
        operands[name] = value
    return encode(row.name, **operands)


@cache
def pool(number: int) -> list[bytes]:
    """Many random instructions, to draw programs from."""
    rng = random.Random(number)
    words = [random_insn(rng) for _ in range(4000)]
    return [w.to_bytes(4 if w & 3 == 3 else 2, "little") for w in words]


def random_code(rng: random.Random, size: int, number: int) -> bytes:
    """Rows, raw words and raw halfwords, in a mixture of its own."""
    rows, words = rng.choice(((1.0, 1.0), (0.95, 0.98), (0.5, 0.9), (0.0, 0.0)))
    kinds = rng.choices("iwh", (rows, words - rows, 1 - words), k=size)
    parts = [
        rng.choice(pool(number))
        if kind == "i"
        else (rng.getrandbits(32) | 3).to_bytes(4, "little")
        if kind == "w"
        else rng.randbytes(2)
        for kind in kinds[: size // 2]
    ]
    return b"".join(parts)[:size]


INTERESTING = [
    *(b + d for b, n in SIZES.items() for d in (0, 1, 8, 64, n - 16, n - 4, n - 1, n, n // 2)),
    *(0, 1, (1 << 64) - 1, (1 << 64) - 64, 1 << 63, 0xFFFFFFFFFFFFF000, 0x7FFFFFFF, 5, 200),
]


class Start(NamedTuple):
    """The state to begin from: memory, then what each hart has."""

    memory: list[bytes]
    x: list[list[int]]
    f: list[list[int]]
    v: bytes
    csrs: list[dict[str, int]]
    modes: list[int]
    pcs: list[int]


def start_of(seed: int, harts: int) -> Start:
    """Code, data and registers from a seed."""
    rng = random.Random(seed)
    number = seed // 64
    memory = [
        random_code(rng, SIZES[base], number) if base in (CODE, ALL) else rng.randbytes(SIZES[base])
        for base in (CODE, *[DATA] * harts, ALL, TOHOST)
    ]
    x = [
        [rng.choice((rng.choice(INTERESTING), rng.getrandbits(64))) for _ in range(31)]
        for _ in range(harts)
    ]
    for registers in x:
        registers[7:10] = (DATA + 0x400, ALL + 0x200, DATA + 0x7F0)  # x8, x9, x10
    boxed = 0xFFFFFFFF << 32
    return Start(
        memory=memory,
        x=x,
        f=[[rng.getrandbits(64) | rng.choice((0, boxed)) for _ in range(32)] for _ in x],
        v=rng.randbytes(harts * 32 * 128),
        csrs=[
            {
                "mstatus": rng.choice((UNITS, UNITS, rng.getrandbits(64))),
                "mtvec": rng.choice((CODE, ALL, 0, CODE + 0x100)),
                "mepc": CODE + 2 * rng.randrange(64),
                "frm": rng.choice((0, 0, 1, 2, 3, 4, 5, 7)),
                "fflags": 0,
                "minstret": 0,
                "mcycle": 0,
            }
            for _ in x
        ],
        modes=[rng.choice((0, 3)) for _ in x],
        pcs=[CODE + 2 * rng.randrange(64) for _ in x],
    )


def prepare(arena: Arena, start: Start) -> None:
    c = arena.cores
    for memory, content in zip(arena.memory.values(), start.memory, strict=True):
        memory[:] = np.frombuffer(content, np.uint8)
    for base in (CODE, ALL):  # the host says that it changed code
        assert lib.nicemu_write(c.handle, 0, base, start.memory[0 if base == CODE else -2], 2) == 0
    size = 32 * c.vlen // 8
    for hart in range(c.harts):
        c.reset(start.pcs[hart], hart)
        c.clear_counters(hart)
        c.x(hart)[1:] = start.x[hart]
        c.f(hart)[:] = start.f[hart]
        v = np.frombuffer(start.v[hart * size :][:size], np.uint8)
        c.v(hart)[:] = v.reshape(32, -1)
        for name, value in start.csrs[hart].items():
            c.set_csr(name, value, hart)
        c.set_mode(start.modes[hart], hart)


def execute(arena: Arena, rng: random.Random) -> list[Stop]:
    """Run in one of three ways, and on behind each fault; the stops must repeat too."""
    c = arena.cores
    how = rng.choice(("run", "robin", "call"))
    stops = []
    for _ in range(12):
        budget = rng.choice((1, 17, 300, 1000))
        if how == "run":
            stop = c.run(budget, rng.randrange(c.harts))
        elif how == "robin":
            stop = c.run_round_robin(rng.choice((1, 3, 50)), budget // 2)
        else:
            args = [rng.choice(INTERESTING) for _ in range(4)]
            pc = CODE + 2 * rng.randrange(100)
            stop = c.call(pc, args, sp=DATA + 0x800, budget=budget, hart=rng.randrange(c.harts))
        assert stop.reason in (BUDGET, FAULT, HTIF, RETURN)
        # one instruction may go beyond the budget by its elements
        assert stop.instructions + stop.elements <= budget + c.vlen
        if stop.reason == FAULT:
            inside = any(base <= stop.pc < base + SIZES[base] - 4 for base in (CODE, ALL))
            pc = stop.pc + rng.choice((2, 4)) if inside else CODE + 2 * rng.randrange(100)
            c.set_pc(pc, stop.hart)
        stops.append(stop)
    return stops


@pytest.mark.parametrize("vlen", [128, 1024])
@pytest.mark.parametrize("guest", [False, True], ids=["host traps", "guest traps"])
def test_code_and_data(guest: bool, vlen: int) -> None:
    """Any code: ends, stays inside its regions, and does the same again, on every host path."""
    arenas = [Arena(simd, vlen, guest) for simd in (*simd_paths(), "portable")]
    reasons = set()
    for seed in seeds(300):
        start = start_of(seed, 2)
        results = []
        for arena in arenas:
            prepare(arena, start)
            stops = execute(arena, random.Random(-seed - 1))
            arena.check_guards()
            assert arena.memory[CODE, 0].tobytes() == start.memory[0]  # no hart may write it
            assert all(int(arena.cores.x(h)[0]) == 0 for h in range(arena.cores.harts))
            results.append((stops, arena.state()))
            reasons.update(stop.reason for stop in stops)
        assert all(r == results[0] for r in results), f"seed {seed}"
    assert {BUDGET, FAULT} <= reasons


def test_a_fresh_machine_does_the_same_as_a_used_one() -> None:
    """No trace of earlier programs: registers, decoded code, caches."""
    used = Arena("auto", 256, True)
    for seed in seeds(40):
        start = start_of(seed, 2)
        results = []
        for arena in (used, Arena("auto", 256, True)):
            prepare(arena, start)
            results.append((execute(arena, random.Random(seed)), arena.state()))
        assert results[0] == results[1], f"seed {seed}"


def test_any_split_of_the_budget_gives_the_same() -> None:
    """Whole blocks, slices and single steps agree on hostile code too, up to its first fault."""
    arena = Arena("auto", 128, False, harts=1)
    compared = 0
    for seed in seeds(150):
        start = start_of(seed, 1)
        results = []
        for quantum in (600, 37, 1):
            prepare(arena, start)
            left = 600
            while left > 0:
                stop = arena.cores.run(min(quantum, left))
                left -= stop.instructions + stop.elements
                if stop.reason != BUDGET:
                    results.append(((stop.reason, stop.cause, stop.address), arena.state()))
                    break
        if len(results) == 3:  # else it was still running
            compared += 1
            assert results[0] == results[1] == results[2], f"seed {seed}"
    assert compared > 100


# ---- words -----------------------------------------------------------------------------------


def test_decode_and_disassemble_anything() -> None:
    cores = Cores()
    for seed in seeds(4):
        rng = random.Random(seed)
        for _ in range(20_000):
            word = rng.getrandbits(32)
            if rng.random() < 0.7:  # near a row
                row = rng.choice(ROWS)
                word = row.match | word & ~row.mask
                word ^= 1 << rng.randrange(32) if rng.random() < 0.3 else 0
            text, size = cores.disasm(word, rng.getrandbits(64))
            row_found = cores.decode(word)
            assert text.isascii() and text.isprintable() and len(text) < 80
            assert size == (4 if word & 3 == 3 else 2)
            if row_found is None:
                assert text.startswith((".half 0x", ".word 0x"))
            else:
                assert text.startswith(row_found.name) and word & row_found.mask == row_found.match


@pytest.mark.parametrize("room", [1, 2, 3, 5, 10, 40])
def test_disassembly_never_writes_past_its_room(room: int) -> None:
    cores = Cores()
    rng = random.Random(room)
    for _ in range(2000):
        row = rng.choice(ROWS)
        buffer = ffi.new("char[]", b"\xee" * 127)
        word = row.match | rng.getrandbits(32) & ~row.mask & 0xFFFFFFFF
        lib.nicemu_disasm(cores.handle, word, 0, buffer, room)
        raw = bytes(ffi.buffer(buffer))
        assert 0 in raw[:room] and set(raw[room:127]) == {0xEE}
    assert lib.nicemu_disasm(cores.handle, 0x13, 0, buffer, 0) < 0


# ---- images ----------------------------------------------------------------------------------


def mutated(data: bytes, rng: random.Random) -> bytes:
    """Bits, bytes, cuts, insertions, repeats."""
    out = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 5))):
        at = rng.randrange(len(out) + 1)
        kind = rng.randrange(6)
        if kind == 0 and at < len(out):
            out[at] ^= 1 << rng.randrange(8)
        elif kind == 1:
            out[at : at + rng.randrange(1, 9)] = rng.randbytes(rng.randrange(9))
        elif kind == 2:
            del out[at:]
        elif kind == 3:
            out += rng.randbytes(rng.randrange(1, 64))
        elif kind == 4:
            head = rng.randrange(min(300, len(out) or 1))
            out[head : head + 4] = rng.choice((0, 1, 2**31, 2**32 - 1)).to_bytes(4, "little")
        else:
            out[at:at] = out[: rng.randrange(40)]
    return bytes(out)


def resealed(data: bytes) -> bytes:
    """With a digest that fits, so that what lies behind it is reached."""
    body = data[:-32]
    return body + hashlib.sha256(body).digest()


def test_mutated_images() -> None:
    """Refused with one line, or accepted as what they say; nothing else is raised."""
    original = kernel("sum", "bfloat16").to_bytes()
    refused = accepted = 0
    for seed in seeds(3000):
        rng = random.Random(seed)
        data = mutated(original, rng)
        if seed % 2:
            data = resealed(data)
        try:
            image = KernelImage.from_bytes(data)
        except ImageError as error:
            assert "\n" not in str(error)
            refused += 1
        else:
            assert image.to_bytes() == data or seed % 2 == 0
            accepted += data != original
    assert refused > 1000 and accepted > 10


def test_noise_is_no_image() -> None:
    for seed in seeds(300):
        rng = random.Random(seed)
        data = rng.randbytes(rng.choice((0, 1, 8, 23, 24, 100, 1000)))
        for candidate in (data, b"nicemu-k" + data, resealed(b"nicemu-k" + data)):
            with pytest.raises(ImageError):
                KernelImage.from_bytes(candidate)


def test_mutated_code_on_the_device() -> None:
    """An image with damaged code does something or faults; the others' memory is untouched."""
    good = kernel("sum", "float16")
    nic = Nic(threads=1)
    stream = [np.arange(64, dtype=np.float16)] * 3
    nic.load(good)
    expected = nic.reduce(stream).values.tobytes()
    faults = 0
    for seed in seeds(150):
        rng = random.Random(seed)
        code = bytearray(good.code)
        for _ in range(rng.randrange(1, 24)):
            code[rng.randrange(len(code))] ^= 1 << rng.randrange(8)
        damaged = KernelImage(
            good.op,
            good.preset,
            good.element,
            good.accumulator,
            good.partial,
            good.result,
            bytes(code),
            dict(good.entries),
        )
        nic.load(damaged)
        try:
            nic.reduce(stream, payload=32)
        except (FaultError, StatusError) as error:
            assert "\n" not in str(error)
            faults += 1
        nic.load(good)
        assert nic.reduce(stream).values.tobytes() == expected, f"seed {seed}"
    assert faults > 20
