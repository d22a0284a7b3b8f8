"""Whether the code of an image keeps to its memory: every entry run where nothing else is mapped.

Owns: a core whose memory is the accumulator, the payloads, the destination, the context, the table
and the stack, each to the byte; and what is said of an access elsewhere.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from nicemu._core import RETURN, Cores, R, Stop, W, X
from nicemu.compiler.target import target_of
from nicemu.device.image import LEAVING, Context, Entry, KernelImage
from nicemu.device.machine import Machine
from nicemu.errors import Fault
from nicemu.ops.samples import ordinary

__all__ = ["Bounds", "bounds"]

COUNTS = (64, 65, 127, 500)  # items; no region is shorter than 64 bytes
CODE = 0x0001_0000
FIRST = 0x1000_0000
STRIDE = 0x0100_0000  # between the regions
FILL = 0xA5  # of a stack that nobody has used


@dataclass(frozen=True)
class Bounds:
    """What was found.

    Attributes:
        faults: of each entry that did not return, what it did.
        stack: most bytes of stack that a call used.
        calls: that were made.
    """

    faults: tuple[str, ...]
    stack: int
    calls: int


@dataclass(frozen=True)
class _Region:
    name: str
    base: int
    memory: np.ndarray


class _Faulted(Exception):
    """An entry did not return."""


def bounds(image: KernelImage, machine: Machine) -> Bounds:
    """Run every entry for several counts of ordinary items.

    Args:
        image: the op.
        machine: whose cores, stack and budget.
    """
    formats = image.formats
    faults: dict[str, str] = {}
    stack = calls = 0
    for count in COUNTS:
        run = _Runner(image, machine, count)
        elements = formats.element.pack(ordinary(formats.element.formats[0], count, count), count)
        payload = elements.view(np.uint8)
        try:
            accumulator, _ = run.call("first", [payload], np.zeros(0, np.uint8))
            _, partial = run.call("emit", [], accumulator)
        except _Faulted:
            accumulator = np.zeros(count * formats.accumulator.size, np.uint8)
            partial = np.zeros(count * formats.partial.size, np.uint8)
        for entry in image.entries:
            does = Entry.of(entry)
            payloads = [partial if does.partials else payload] * does.payloads
            try:
                run.call(entry, payloads, accumulator)
            except _Faulted as fault:
                faults.setdefault(entry, f"{entry} of {count} items: {fault}")
            calls += 1
        stack = max(stack, run.stack)
    return Bounds(tuple(faults.values()), stack, calls)


class _Runner:
    """Calls for one count of items; ``stack`` is the most that one used."""

    def __init__(self, image: KernelImage, machine: Machine, count: int) -> None:
        self.image = image
        self.machine = machine
        self.count = count
        self.stack = 0

    def call(
        self, entry: str, payloads: list[np.ndarray], accumulator: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Accumulator and destination after a call; the latter is empty where nothing leaves."""
        formats = self.image.formats
        does = Entry.of(entry)
        cores = Cores(1, self.machine.vlen, extensions=target_of(self.machine).extensions)
        cores.map(CODE, -(-len(self.image.code) // 64) * 64, X)
        cores.write(CODE, self.image.code)
        regions: list[_Region] = []

        def place(name: str, size: int, permission: int, data: bytes | np.ndarray = b"") -> int:
            base = FIRST + len(regions) * STRIDE
            memory = cores.map(base, max(size, 64), permission)
            raw = np.frombuffer(data, np.uint8) if isinstance(data, bytes) else data
            memory[: raw.size] = raw
            regions.append(_Region(name, base, memory))
            return base

        total = self.count * formats.accumulator.size
        place("accumulator", total, R if does.leaving else R | W, accumulator)
        bases = [place(f"payload {i}", p.size, R, p) for i, p in enumerate(payloads)]
        destination = None
        if does.leaving:
            size = self.count * getattr(formats, LEAVING[does.leaving]).size
            bases.append(place("destination", size, R | W))
            destination = regions[-1].memory
        table = place("table", 8 * len(bases), R, np.array(bases, np.uint64).tobytes())
        context = place(
            "context", 64, R, Context(contributors=max(does.payloads, 1), group=8).pack()
        )
        used = bytes([FILL]) * self.machine.stack
        stack = place("stack", self.machine.stack, R | W, used)
        stop = cores.call(
            CODE + self.image.entries[entry],
            (FIRST, table, self.count, context),
            sp=stack + self.machine.stack,
            budget=self.machine.budget,
        )
        if stop.reason != RETURN:
            raise _Faulted(_told(stop, regions))
        touched = np.flatnonzero(regions[-1].memory != FILL)
        self.stack = max(self.stack, self.machine.stack - int(touched[0]) if touched.size else 0)
        left = np.zeros(0, np.uint8) if destination is None else destination.copy()
        return regions[0].memory[:total].copy(), left


def _told(stop: Stop, regions: list[_Region]) -> str:
    """A fault in words: near which region it was."""
    fault = stop.fault()
    assert isinstance(fault, Fault)  # it did not return
    if fault.cause is None:
        return f"does not end within {fault.instructions:,} instructions"
    place = f"{fault.address:#x}"
    for region in regions:
        behind = fault.address - region.base - region.memory.size
        if 0 <= behind < STRIDE // 2:
            place = f"{behind} bytes behind the {region.name}"
        elif 0 < region.base - fault.address < STRIDE // 2:
            place = f"{region.base - fault.address} bytes before the {region.name}"
        elif region.base <= fault.address < region.base + region.memory.size:
            place = f"in the {region.name}"
    return f"{fault.name}, {place}, at {fault.pc - CODE:#x} of the code"
