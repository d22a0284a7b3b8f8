"""A hart with one region of every kind, and a plain account of what it may reach.

For tests of protection: regions that touch, an odd-sized one at an odd address, every permission,
and both ends of the address space.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from nicemu import _core
from nicemu._core import HTIF_REGION, Cores, R, W, X

M64 = (1 << 64) - 1
CODE = 0x1000
RETURN_PAGE = 0xFFFFFFFFFFFFF000


class Region(NamedTuple):
    """What `Cores.map` takes."""

    name: str
    base: int
    size: int
    perm: int


REGIONS = (
    Region("code", CODE, 0x400, R | X),
    Region("lowest", 0, 0x400, R | W),
    Region("plain", 0x20000, 0x1400, R | W),
    Region("left", 0x30000, 0x400, R | W),
    Region("right", 0x30400, 0x400, R | W),  # touches left
    Region("read", 0x40000, 0x400, R),
    Region("after read", 0x40400, 0x400, R | W),
    Region("write", 0x50000, 0x400, W),
    Region("execute", 0x60000, 0x400, X),
    Region("none", 0x68000, 0x400, 0),
    Region("all", 0x70000, 0x400, R | W | X),
    Region("odd", 0x80003, 67, R | W),
    Region("highest", RETURN_PAGE - 0x800, 0x800, R | W),
)
assert not HTIF_REGION & (R | W | X)


class Mapped:
    """Hart 0 of fresh cores with all regions; hart 1 maps `foreign`, which hart 0 does not see."""

    FOREIGN = 0x90000

    def __init__(self, regions: tuple[Region, ...] = REGIONS, simd: str = "auto") -> None:
        self.cores = Cores(2, simd=simd)
        self.regions = regions
        self.memory = {r.name: self.cores.map(r.base, r.size, r.perm, [0]) for r in regions}
        self.foreign = self.cores.map(self.FOREIGN, 0x1000, R | W, [1])

    def fill(self) -> None:
        """Every byte of data known and different from its neighbours."""
        for i, r in enumerate(self.regions):
            if r.name != "code":
                self.memory[r.name][:] = np.arange(r.size) * 7 + 31 * i & 255
        self.foreign[:] = 0xAB

    def snapshot(self) -> bytes:
        """All memory of both harts."""
        return b"".join(m.tobytes() for m in (*self.memory.values(), self.foreign))

    def find(self, address: int) -> Region | None:
        """The region that holds a byte."""
        for r in self.regions:
            if r.base <= address < r.base + r.size:
                return r
        return None

    def first_out_of_reach(self, address: int, size: int, perm: int) -> int | None:
        """None when one region holds all bytes and grants `perm`; else the first bad address."""
        r = self.find(address)
        if r is None or r.perm & perm != perm:
            return address
        return None if address + size <= r.base + r.size else r.base + r.size

    def bytes_at(self, address: int, size: int) -> bytes:
        """Memory inside one region."""
        r = self.find(address)
        assert r is not None
        return self.memory[r.name][address - r.base :][:size].tobytes()

    def edges(self, size: int) -> list[int]:
        """Addresses at which an access of `size` bytes is, or just is not, inside a region."""
        out = {self.FOREIGN, self.FOREIGN + 0x800, RETURN_PAGE, M64, M64 - size + 1, M64 // 2}
        for r in self.regions:
            end = r.base + r.size
            out |= {r.base + d for d in (-size, -size + 1, -1, 0, 1, size)}
            out |= {end + d for d in (-size - 1, -size, -size + 1, -1, 0, 1)}
            out.add(r.base + r.size // 2 | 1)
        return sorted(a & M64 for a in out)


def run_one(cores: Cores, word: int, size: int, at: int = CODE) -> _core.Stop:
    """Run one instruction at `at`, with something behind it that is never reached."""
    cores.write(at, word.to_bytes(size, "little"))
    cores.set_pc(at)
    return cores.run(1)
