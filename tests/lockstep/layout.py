"""What both machines are given: the memory map, the trap handler, and the arrays of a batch.

The arrays lie in one shared file, in the order in which spike.cc takes them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from nicemu._core import csrs
from tests.encode import encode, size

__all__ = ["CODE", "CSRS", "DATA", "END_TRAP", "HANDLER", "LOG", "REGIONS", "Batch", "handler"]


class Region(NamedTuple):
    """RAM at `base`, at `offset` in a program's memory array; what is not in a region is an access
    fault on both machines."""

    base: int
    size: int
    offset: int


#: `lui rd, page` reaches every page: the bases are below 2 GiB.
CODE = Region(0x10000, 0x2000, 0)
DATA = Region(0x20000, 0x2000, 0x2000)
LOG = Region(0x40000, 0x1000, 0x4000)
REGIONS = (CODE, DATA, LOG)
MEMORY = sum(r.size for r in REGIONS)
#: Where the trap handler lies.
HANDLER = CODE.base + 0x1C00
#: A jump here ends a program: nothing is mapped.
OUTSIDE = CODE.base + CODE.size

#: What is compared at the end of a program, besides x, f, v and memory.
CSRS = [
    "fflags",
    "frm",
    "vstart",
    "vxsat",
    "vxrm",
    "vl",
    "vtype",
    "mstatus",
    "mtvec",
    "mepc",
    "mcause",
    "mtval",
    "mscratch",
    "mie",
    "mcounteren",
    "menvcfg",
    "minstret",
    "mcycle",
]

#: Steps after which a program counts as one that does not end, and how many of them are traced.
STEPS = 16384
TRACE = 2048

START_FIELDS = ("pc", "mode", "mstatus", "mtvec", "mscratch", "steps")
END_FIELDS = ("pc", "mode", "steps", "reason", "retired", "traced")
#: Exception codes that are told apart.
CAUSES = 16
END_STEPS, END_TRAP = 0, 1


def handler() -> list[int]:
    """The guest's trap handler.

    It mixes mcause, mepc and mtval into a word of LOG, so that every trap is compared, and
    goes on after the instruction that trapped.  A fetch fault ends the run: mtvec = 0 and ebreak.
    x29..x31 are saved; mscratch points to LOG.
    """
    mix = [encode("ld", rd=29, rs1=31, imm=16)]
    for csr in ("mcause", "mepc", "mtval"):
        mix += [
            encode("csrrs", rd=30, rs1=0, csr=csr),
            encode("rori", rd=29, rs1=29, shamt=13),
            encode("xor", rd=29, rs1=29, rs2=30),
        ]
    mix.append(encode("sd", rs2=29, rs1=31, imm=16))
    restore = [
        encode("ld", rd=30, rs1=31, imm=0),
        encode("ld", rd=29, rs1=31, imm=8),
        encode("csrrw", rd=31, rs1=31, csr="mscratch"),
    ]
    # bytes of the instruction at mepc: 4 when its two lowest bits are set, else 2
    skip = [
        encode("csrrs", rd=30, rs1=0, csr="mepc"),
        encode("lhu", rd=29, rs1=30, imm=0),
        encode("andi", rd=29, rs1=29, imm=3),
        encode("addi", rd=29, rs1=29, imm=1),
        encode("srli", rd=29, rs1=29, shamt=2),
        encode("slli", rd=29, rs1=29, shamt=1),
        encode("add", rd=30, rs1=30, rs2=29),
        encode("addi", rd=30, rs1=30, imm=2),
        encode("csrrw", rd=0, rs1=30, csr="mepc"),
        *restore,
        encode("mret"),
    ]
    return [
        encode("csrrw", rd=31, rs1=31, csr="mscratch"),
        encode("sd", rs2=30, rs1=31, imm=0),
        encode("sd", rs2=29, rs1=31, imm=8),
        *mix,
        encode("csrrs", rd=30, rs1=0, csr="mcause"),
        encode("addi", rd=30, rs1=30, imm=-1),
        encode("beq", rs1=30, rs2=0, target=4 * (len(skip) + 1)),
        *skip,
        *restore,
        encode("csrrw", rd=0, rs1=0, csr="mtvec"),
        encode("ebreak"),
    ]


def fetched(memories: Sequence[np.ndarray], pc: int) -> bytes:
    """The instruction at pc, as much of it as is mapped, from the contents of REGIONS."""
    for region, memory in zip(REGIONS, memories, strict=True):
        at = pc - region.base
        if 0 <= at < region.size:
            return bytes(memory[at : at + size(int(memory[at]))].tobytes())
    return b""


class Batch:
    """The arrays of `slots` programs, views of one buffer.

    Attributes (n = slots):
        memory, memory_out: (n, MEMORY) uint8, the regions one after the other.
        x, x_out, f, f_out: (n, 32) uint64.
        v, v_out: (n, 32, vlen/8) uint8.
        start: (n, len(START_FIELDS)) uint64; how each program begins.
        end: (n, len(END_FIELDS)) uint64; how it ended in Spike.
        csrs: (n, len(CSRS)) uint64; Spike's values at the end.
        causes: (n, CAUSES) uint32: traps Spike took, by exception code.
        trace: (n, TRACE) uint32; the steps Spike made, but those of the handler: see ``coverage``.
    """

    def __init__(self, buffer: memoryview | bytearray, slots: int, vlen: int) -> None:
        self.slots = slots
        self.vlen = vlen
        self._buffer = buffer
        self._next = 0
        self.memory = self._take(np.uint8, MEMORY)
        self.memory_out = self._take(np.uint8, MEMORY)
        self.x = self._take(np.uint64, 32)
        self.x_out = self._take(np.uint64, 32)
        self.f = self._take(np.uint64, 32)
        self.f_out = self._take(np.uint64, 32)
        self.v = self._take(np.uint8, 32, vlen // 8)
        self.v_out = self._take(np.uint8, 32, vlen // 8)
        self.start = self._take(np.uint64, len(START_FIELDS))
        self.end = self._take(np.uint64, len(END_FIELDS))
        self.csrs = self._take(np.uint64, len(CSRS))
        self.causes = self._take(np.uint32, CAUSES)
        self.trace = self._take(np.uint32, TRACE)

    def _take(self, dtype: type[np.generic], *shape: int) -> np.ndarray:
        count = self.slots * int(np.prod(shape))
        array = np.frombuffer(self._buffer, dtype, count, self._next)
        self._next += array.nbytes
        return array.reshape(self.slots, *shape)

    @staticmethod
    def size(slots: int, vlen: int) -> int:
        """Bytes of the buffer."""
        words = len(START_FIELDS) + len(END_FIELDS) + len(CSRS)
        return slots * (2 * MEMORY + 4 * 256 + 64 * vlen // 8 + 8 * words + 4 * (CAUSES + TRACE))

    def region(self, region: Region, slot: int) -> np.ndarray:
        """The bytes of a region as the program `slot` finds them."""
        return self.memory[slot, region.offset : region.offset + region.size]

    def copy(self, slots: Sequence[int]) -> Batch:
        """The programs in these slots, in a batch of their own."""
        out = Batch(bytearray(Batch.size(len(slots), self.vlen)), len(slots), self.vlen)
        for name in ("memory", "x", "f", "v", "start"):
            getattr(out, name)[:] = getattr(self, name)[list(slots)]
        return out


def csr_numbers() -> list[int]:
    """The numbers of CSRS."""
    return [csrs()[name] for name in CSRS]
