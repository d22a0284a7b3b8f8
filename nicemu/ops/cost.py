"""What the entries of an op cost: instructions of each call, by class, counted on an emulated core.

Owns: the calls that are counted and how the counts are shown.  Nothing is estimated.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from nicemu._core import class_names
from nicemu.arguments import whole
from nicemu.device.image import LEAVING, REDUCING, Entry, Formats, KernelImage
from nicemu.device.machine import Machine
from nicemu.device.nic import Nic
from nicemu.errors import OpError
from nicemu.ops.about import AboutImage
from nicemu.ops.samples import ordinary
from nicemu.tables import Table

__all__ = ["Cost", "EntryCost", "cost"]


@dataclass(frozen=True)
class EntryCost:
    """One call of an entry.

    Attributes:
        entry: its name.
        payloads: that it took.
        count: items of each.
        instructions: retired.
        elements: active vector elements, of all instructions together.
        load_bytes, store_bytes: that it loaded and stored, scalar and vector.
        classes: instructions per unit/latency class (nicemu._core.class_names), without zeros.
    """

    entry: str
    payloads: int
    count: int
    instructions: int
    elements: int
    load_bytes: int
    store_bytes: int
    classes: Mapping[str, int]

    @property
    def per_element(self) -> float:
        """Instructions per item of a payload."""
        return self.instructions / (self.count * self.payloads)


@dataclass(frozen=True, repr=False)
class Cost(AboutImage):
    """What each entry of an image costs on a machine, for full packets.

    Attributes:
        payload: bytes of a full packet.
        entries: name -> what one call cost; fan-in variants that the machine has no use for are
            not there.
    """

    payload: int
    entries: Mapping[str, EntryCost]

    @property
    def instructions_per_packet(self) -> int:
        """Of one ``acc`` call, which merges a packet of a worker into the accumulator."""
        return self.entries["acc"].instructions

    @property
    def instructions_per_element(self) -> float:
        """The same per element of the packet."""
        return self.entries["acc"].per_element

    @property
    def classes(self) -> Mapping[str, int]:
        """Instructions of the same call per unit/latency class."""
        return self.entries["acc"].classes

    def record(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "op": self.op,
            "preset": self.preset,
            "element": self.element,
            "machine": asdict(self.machine),
            "payload": self.payload,
            "instructions_per_packet": self.instructions_per_packet,
            "instructions_per_element": self.instructions_per_element,
            "entries": {name: asdict(row) for name, row in self.entries.items()},
        }

    def tables(self) -> tuple[Table, ...]:
        """For people: a row per entry."""
        head = (
            f"{self.title}: "
            f"{self.instructions_per_packet:,} instructions per packet of {self.payload:,} bytes, "
            f"{self.instructions_per_element:.3g} per element"
        )
        every = list(self.entries.values())
        classes = [name for name in class_names() if any(name in row.classes for row in every)]
        columns = ("entry", "items", "instructions", "per item", *classes)
        rows = [
            (
                row.entry,
                f"{row.payloads} x {row.count:,}",
                row.instructions,
                f"{row.per_element:.3f}",
                *(row.classes.get(name, 0) for name in classes),
            )
            for row in every
        ]
        return (Table(head, columns, rows),)


def cost(image: KernelImage, machine: str | Machine, payload: int) -> Cost:
    """Run every entry of an image once on a core and count.

    A packet holds ``payload`` bytes of what the entry takes: elements, or partial sums; of emit and
    finish, of what they give.  Elements are ordinary ones, always the same.

    Args:
        image: the op.
        machine: preset name or :class:`nicemu.Machine`.
        payload: bytes of a full packet.

    Raises:
        ArgumentError: a payload that is shorter than one item or longer than the machine's, or
            needs more scratchpad than a core has.
        FaultError: an entry traps or runs longer than the machine's budget.
        OpError: an entry raises an exception.
    """
    nic = Nic(machine, threads=1)
    nic.load(image)
    formats = image.formats
    least = max(item.size for item in (formats.element, formats.partial, formats.result))
    size = whole("payload", payload, least, nic.machine.max_payload)
    entries = [Entry.of(name) for name in image.entries]
    order = [*REDUCING, *LEAVING]
    entries.sort(key=lambda e: (bool(e.leaving), order.index(e.reducing or e.leaving), e.payloads))
    return Cost(
        op=image.op,
        preset=image.preset,
        element=image.element,
        machine=nic.machine,
        payload=size,
        entries={
            str(entry): _counted(nic, entry, size)
            for entry in entries
            if entry.payloads <= nic.machine.max_fan_in
        },
    )


def _counted(nic: Nic, entry: Entry, payload: int) -> EntryCost:
    """One call of an entry on a full packet."""
    formats = nic.image.formats
    takes = formats.partial if entry.partials else formats.element
    if not entry.reducing:
        takes = getattr(formats, LEAVING[entry.leaving])
    count = payload // takes.size
    given = [_packet(nic, formats, entry.partials, count)] * entry.payloads
    if not entry.fresh:
        _handled(nic, "first", [_elements(formats, count)])
    nic.clear_counters()
    _handled(nic, str(entry), given, count)
    found = nic.counters(0)
    return EntryCost(
        entry=str(entry),
        payloads=max(entry.payloads, 1),  # what leaves counts as one
        count=count,
        instructions=found.instructions,
        elements=found.elements,
        load_bytes=found.load_bytes + found.vector_load_bytes,
        store_bytes=found.store_bytes + found.vector_store_bytes,
        classes=found.classes,
    )


def _elements(formats: Formats, count: int) -> np.ndarray:
    return ordinary(formats.element.formats[0], count, 0)


def _packet(nic: Nic, formats: Formats, partials: bool, count: int) -> np.ndarray:
    """What a worker or a device sends."""
    elements = _elements(formats, count)
    if not partials:
        return elements
    _handled(nic, "first", [elements])
    output = _handled(nic, "emit", [], count)
    assert output is not None  # emit gives it
    return output


def _handled(
    nic: Nic, entry: str, payloads: list[np.ndarray], count: int | None = None
) -> np.ndarray | None:
    done = nic.handle(entry, payloads, count=count)
    if done.status:
        image = nic.image
        raise OpError(f"{entry} of {image.op} {image.status_text(done.status)} on ordinary numbers")
    return done.output
