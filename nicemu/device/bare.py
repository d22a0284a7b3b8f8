"""A bare-metal machine for `nicemu run`: RAM, cores, and a host on the other end of tohost.

Owns: where RAM lies, the order in which cores take turns, and HTIF as riscv-tests and Spike use
it: a store to ``tohost`` of (1 << 56 | 1 << 48 | c) prints the character c, an odd value exits with
value >> 1, and the host clears ``tohost`` after each.  Reading the file is elf's task.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace

import numpy as np

from nicemu import _core
from nicemu._core import BUDGET, FAULT, LOG, Cores, Counters, Cycles, Stop
from nicemu.device.elf import Elf
from nicemu.device.isa import extensions
from nicemu.device.machine import Machine
from nicemu.errors import ArgumentError, Fault, FaultError, FileFormatError

__all__ = ["MEMORY", "QUANTUM", "RAM", "Outcome", "run"]

RAM = 0x8000_0000  # where RISC-V boards and Spike have theirs
MEMORY = 256 << 20  # bytes, when nothing else is asked for
MOST_MEMORY = 64 << 30
VLEN = 512  # bits, when nothing else is asked for
PAGE = 4096
LINE = 64  # bytes around tohost with a permission of their own: the smallest region

# Instructions + vector elements of one core's turn.  Part of what a program with shared memory
# sees, so a constant and no option: the same file gives the same run everywhere.
QUANTUM = 1000
# The most that one call into the core does, so that Ctrl-C is heard; a multiple of QUANTUM.
SLICE = 20_000_000

PUT_CHARACTER = 0x0101  # device 1, command 1


@dataclass(frozen=True)
class Outcome:
    """How a program ended.

    Attributes:
        exit_code: the value it stored to tohost, shifted right by one.
        counters: of each core.
        seconds: host time of the run.
        cycles: of each core; None without a machine.
    """

    exit_code: int
    counters: list[Counters]
    seconds: float
    cycles: list[Cycles] | None = None


def run(
    elf: Elf,
    write: Callable[[bytes], object],
    *,
    cores: int = 1,
    vlen: int | None = None,
    memory: int = MEMORY,
    budget: int = 10**10,
    isa: str | None = None,
    log: Callable[[bytes], object] | None = None,
    machine: Machine | None = None,
) -> Outcome:
    """Run an executable until one of its cores exits through tohost.

    All cores start at the entry in M-mode, told apart by ``mhartid``, and share one RAM of
    ``memory`` bytes that may be read, written and executed.  It begins at 0x80000000, or at the
    page of the lowest segment when the program does not fit there.  Traps go to ``mtvec``.

    Cores take turns in order, ``QUANTUM`` instructions and vector elements each, so that a
    program's run depends on nothing but the file and these arguments.

    Args:
        elf: the program; it needs the symbol ``tohost``.
        write: gets the bytes it prints, one at a time.
        cores: 1..64.
        vlen: bits of a vector register: 128, 256, 512 or 1024; None: those of the machine, or 512.
        memory: bytes of RAM, rounded up to whole pages of 4096; untouched ones cost nothing.
        budget: most instructions + vector elements of each core.
        isa: an ISA string such as "rv64imac_zicsr": what it does not name, or need, is off and
            traps.  None: what the machine has, or everything.
        log: gets what every instruction commits, some lines at a time, in the form of Spike's
            ``--log-commits``; the run is the same, but slower.
        machine: count cycles as they pass on its cores; the run is the same.

    Raises:
        ArgumentError: an argument is out of range.
        FileFormatError: the program has no tohost, or does not fit the memory.
        FaultError: a trap without a handler, or the budget is used up.
    """
    if not PAGE <= memory <= MOST_MEMORY:
        raise ArgumentError(f"memory of {memory} bytes: use {PAGE}..{MOST_MEMORY}")
    if budget < 1:
        raise ArgumentError(f"budget {budget}: use 1 or more")
    if machine is not None and isa is None:
        isa = machine.isa
    if vlen is None:
        vlen = VLEN if machine is None else machine.vlen
    on = None if isa is None else extensions(isa, vlen)
    harts = Cores(cores, vlen, trap_to_guest=True, extensions=on)
    tohost = _place(harts, elf, memory + -memory % PAGE)
    for i in range(cores):
        harts.reset(elf.entry, i)
    if log is not None:
        harts.start_log()
    if machine is not None:
        harts.start_clock(**asdict(machine.timing))
    start = time.perf_counter()
    for stop in _stops(harts, budget):
        if log is not None:
            log(harts.take_log())
        if stop.reason == LOG:
            continue
        if stop.reason == FAULT:
            raise FaultError(_total(harts, stop), elf.name)
        request = int(tohost[0])
        tohost[0] = 0
        if request >> 48 == PUT_CHARACTER:
            write(bytes([request & 255]))
        elif request >> 48 == 0 and request & 1:
            seconds = time.perf_counter() - start
            return Outcome(
                request >> 1,
                [harts.counters(i) for i in range(cores)],
                seconds,
                None if machine is None else [harts.cycles(i) for i in range(cores)],
            )
        elif request:
            raise FileFormatError(
                f"{elf.name}: core {stop.hart} stored {request:#x} to tohost: use device 1 "
                "command 1 (print a character) or an odd value (exit)"
            )
    if log is not None:
        log(harts.take_log())
    # budget 0: a run that ends at once, for where core 0 stands
    raise FaultError(_total(harts, harts.run(0)), f"{elf.name} (give more with --budget)")


def _place(harts: Cores, elf: Elf, memory: int) -> np.ndarray:
    """Map RAM and load the segments; returns the word of tohost as a view of shape (1,)."""
    tohost = elf.symbols.get("tohost")
    if tohost is None:
        raise FileFormatError(
            f"{elf.name}: has no symbol 'tohost', so it could neither print nor exit: "
            "define it, and do not strip the file"
        )
    low = elf.segments[0].address
    high = max(s.address + s.size for s in elf.segments)
    base = RAM if low >= RAM and high <= RAM + memory else low - low % PAGE
    if high > base + memory or base + memory > 1 << 64:
        raise FileFormatError(
            f"{elf.name}: segments reach from {low:#x} to {high:#x}, more than the {memory} bytes "
            "of memory: give more with --memory"
        )
    line = tohost - tohost % LINE
    if tohost % 8 or not (base <= line and line + LINE <= base + memory):
        raise FileFormatError(
            f"{elf.name}: tohost at {tohost:#x} is not 8-byte aligned inside the memory "
            f"{base:#x}..{base + memory:#x}: place it in a section of its own"
        )
    access = _core.R | _core.W | _core.X
    ram = [
        (at, harts.map(at, end - at, access | extra))
        for at, end, extra in (
            (base, line, 0),
            (line, line + LINE, _core.HTIF_REGION),
            (line + LINE, base + memory, 0),
        )
        if end > at
    ]
    for segment in elf.segments:
        data = np.frombuffer(segment.data, np.uint8)
        for at, bytes_ in ram:
            start = max(at, segment.address)
            end = min(at + len(bytes_), segment.address + len(data))
            if start < end:
                source = data[start - segment.address : end - segment.address]
                bytes_[start - at : end - at] = source
    lines = dict(ram)[line]
    return lines[tohost - line :][:8].view("<u8")


def _stops(harts: Cores, budget: int) -> Iterator[Stop]:
    """What ends a turn other than its length, in the order of the turns, until the budget ends."""
    n = harts.harts
    quantum = QUANTUM if n > 1 else SLICE
    spent = 0  # by each core
    while spent < budget:
        most = min(max(quantum, SLICE // n // quantum * quantum), budget - spent)
        stop = harts.run_round_robin(quantum, most)
        if stop.reason == BUDGET:
            spent += most
            continue
        yield stop
        counters = harts.counters(stop.hart)
        spent = max(spent, counters.instructions + counters.elements)
        # the rest of the round that was cut short, so that printing changes nobody's turn
        left = quantum - stop.instructions - stop.elements
        for hart in range(stop.hart, n if n > 1 else 0):
            while left > 0:
                part = harts.run_round_robin(left, left, [hart])
                if part.reason == BUDGET:
                    break
                yield part
                left -= part.instructions + part.elements
            left = quantum


def _total(harts: Cores, stop: Stop) -> Fault:
    """The fault of a stop, with what its core had done since the start."""
    fault = stop.fault()
    assert fault is not None
    counters = harts.counters(stop.hart)
    return replace(fault, instructions=counters.instructions, elements=counters.elements)
