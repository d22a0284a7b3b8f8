"""The core under test, run on the programs of a batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from nicemu import _core
from nicemu._nicemu import ffi, lib
from tests.lockstep.layout import (
    CSRS,
    END_FIELDS,
    END_STEPS,
    END_TRAP,
    MEMORY,
    REGIONS,
    Batch,
    csr_numbers,
    fetched,
)

__all__ = ["Results", "Subject"]

MSTATUS_MIE, MSTATUS_MPIE, MSTATUS_MPP = 1 << 3, 1 << 7, 3 << 11
MACHINE = 3
#: Instructions + elements that nearly every program ends within, and that all do.
BUDGET = 1 << 16
MOST = 1 << 25


@dataclass
class Results:
    """End states in the shapes of ``Batch``'s arrays of the same names."""

    slots: int
    vlen: int
    memory_out: np.ndarray = field(init=False)
    x_out: np.ndarray = field(init=False)
    f_out: np.ndarray = field(init=False)
    v_out: np.ndarray = field(init=False)
    end: np.ndarray = field(init=False)
    csrs: np.ndarray = field(init=False)

    def __post_init__(self) -> None:
        n = self.slots
        self.memory_out = np.zeros((n, MEMORY), np.uint8)
        self.x_out = np.zeros((n, 32), np.uint64)
        self.f_out = np.zeros((n, 32), np.uint64)
        self.v_out = np.zeros((n, 32, self.vlen // 8), np.uint8)
        self.end = np.zeros((n, len(END_FIELDS)), np.uint64)
        self.csrs = np.zeros((n, len(CSRS)), np.uint64)

    def unlike(self, other: Results) -> np.ndarray:
        """(slots,) bool: is anything different there?"""
        out = np.zeros(self.slots, bool)
        for name in ("memory_out", "x_out", "f_out", "v_out", "end", "csrs"):
            a, b = (getattr(r, name).reshape(self.slots, -1) for r in (self, other))
            out |= np.any(a.view(np.uint64) != b.view(np.uint64), axis=1)
        return out


def pointer(array: np.ndarray) -> Any:
    """C address of a contiguous array."""
    return ffi.cast("void *", array.ctypes.data)


class Subject:
    """One hart with the memory map of ``layout``; traps enter mtvec as on bare metal."""

    def __init__(self, vlen: int, simd: str, extensions: Sequence[str] | None = None) -> None:
        self.vlen = vlen
        self.simd = simd
        self.cores = _core.Cores(1, vlen, simd=simd, trap_to_guest=True, extensions=extensions)
        self._memory = [
            self.cores.map(r.base, r.size, _core.R | _core.W | _core.X) for r in REGIONS
        ]
        handle = self.cores.handle
        self._x, self._f, self._v = (
            get(handle, 0) for get in (lib.nicemu_x, lib.nicemu_f, lib.nicemu_v)
        )
        self._numbers = list(enumerate(csr_numbers()))
        self._set = {
            name: _core.csrs()[name]
            for name in ("mstatus", "mtvec", "mscratch", "minstret", "mcycle")
        }
        self._value = ffi.new("uint64_t *")
        self._stop = ffi.new("nicemu_stop *")

    def load(self, batch: Batch, slot: int) -> None:
        """Put the hart into the state in which a program begins."""
        handle = self.cores.handle
        pc, mode, mstatus, mtvec, mscratch, _ = (int(n) for n in batch.start[slot])
        lib.nicemu_reset(handle, 0, pc)
        at = batch.memory[slot].ctypes.data
        for region in REGIONS:
            lib.nicemu_write(handle, 0, region.base, ffi.cast("void *", at), region.size)
            at += region.size
        ffi.memmove(self._x, pointer(batch.x[slot]), 256)
        ffi.memmove(self._f, pointer(batch.f[slot]), 256)
        ffi.memmove(self._v, pointer(batch.v[slot]), 4 * self.vlen)
        values = (mstatus, mtvec, mscratch, 0, 0)
        for number, value in zip(self._set.values(), values, strict=True):
            lib.nicemu_csr_set(handle, 0, number, value)
        lib.nicemu_set_mode(handle, 0, mode)

    def store(self, out: Results, slot: int, reason: int, retired: int, steps: int) -> None:
        """Put the hart's state, and the trap that ended the run, where Spike's is."""
        handle = self.cores.handle
        at = 0
        for memory in self._memory:
            out.memory_out[slot, at : at + len(memory)] = memory
            at += len(memory)
        ffi.memmove(pointer(out.x_out[slot]), self._x, 256)
        ffi.memmove(pointer(out.f_out[slot]), self._f, 256)
        ffi.memmove(pointer(out.v_out[slot]), self._v, 4 * self.vlen)
        csrs = out.csrs[slot]
        for i, number in self._numbers:
            lib.nicemu_csr_get(handle, 0, number, self._value)
            csrs[i] = self._value[0]
        mode, pc = lib.nicemu_get_mode(handle, 0), lib.nicemu_get_pc(handle, 0)
        if reason == END_TRAP:
            mode, pc = self._unhandled(csrs, mode)
        out.end[slot, :5] = (pc, mode, steps, reason, retired)

    def _unhandled(self, csrs: np.ndarray, mode: int) -> tuple[int, int]:
        """Spike has entered the trap that ended the run; here that is only told to the host."""
        stop = self._stop
        csrs[CSRS.index("mepc")] = stop.pc
        csrs[CSRS.index("mcause")] = stop.cause
        csrs[CSRS.index("mtval")] = stop.addr
        mstatus = int(csrs[CSRS.index("mstatus")])
        mpie = MSTATUS_MPIE if mstatus & MSTATUS_MIE else 0
        mstatus &= ~(MSTATUS_MIE | MSTATUS_MPIE | MSTATUS_MPP)
        csrs[CSRS.index("mstatus")] = mstatus | mpie | mode << 11
        return MACHINE, int(csrs[CSRS.index("mtvec")]) & ~3

    def run(
        self, batch: Batch, out: Results, slot: int, chunk: int | None, budget: int = BUDGET
    ) -> None:
        """Run a program to its end or budget: at once, or `chunk` of it at a time."""
        handle, stop = self.cores.handle, self._stop
        self.load(batch, slot)
        retired = spent = 0
        while spent < budget:
            lib.nicemu_run(handle, 0, chunk or budget, stop)
            retired += stop.instructions
            spent += chunk or budget
            if stop.reason != lib.NICEMU_STOP_BUDGET:
                break
        reason = END_TRAP if stop.reason == lib.NICEMU_STOP_FAULT else END_STEPS
        self.store(out, slot, reason, retired, 0)

    def fetch(self, pc: int) -> bytes:
        """The instruction at pc, as much of it as is mapped."""
        return fetched(self._memory, pc)

    def memory(self) -> list[np.ndarray]:
        """The contents of REGIONS now."""
        return [m.copy() for m in self._memory]

    def step(self) -> bool:
        """One instruction or trap; False when the run has ended."""
        lib.nicemu_run(self.cores.handle, 0, 1, self._stop)
        return bool(self._stop.reason == lib.NICEMU_STOP_BUDGET)

    @property
    def retired(self) -> int:
        """Instructions retired by the last ``step``."""
        return int(self._stop.instructions)
