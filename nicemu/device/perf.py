"""What a program's run spent on the cores of a machine, as ``perf stat`` would tell it.

Owns: the summary of counters and clocks.  Who runs the program is bare's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from nicemu._core import Counters, Cycles
from nicemu.device.machine import Machine
from nicemu.tables import Table, Tabled

__all__ = ["Perf"]


@dataclass(frozen=True, repr=False)
class Perf(Tabled):
    """The counters and clocks of all cores that ran.

    Attributes:
        machine: whose cores they were.
        counters, cycles: of each.
    """

    machine: Machine
    counters: Sequence[Counters]
    cycles: Sequence[Cycles]

    @property
    def core_cycles(self) -> int:
        """Of all cores together."""
        return sum(core.total for core in self.cycles)

    @property
    def terms(self) -> dict[str, int]:
        """What they were spent on, without zeros; the sum is ``core_cycles``."""
        names = self.cycles[0].terms
        sums = {name: sum(core.terms[name] for core in self.cycles) for name in names}
        return {name: n for name, n in sums.items() if n}

    @property
    def events(self) -> dict[str, int]:
        """What the cores have done in them."""
        every = self.counters
        return {
            "instructions": sum(c.instructions for c in every),
            "bytes loaded": sum(c.load_bytes + c.vector_load_bytes for c in every),
            "bytes stored": sum(c.store_bytes + c.vector_store_bytes for c in every),
            "vector elements": sum(c.elements for c in every),
        }

    @property
    def seconds(self) -> float:
        """Emulated time of the core that took longest."""
        return max(core.total for core in self.cycles) / self.machine.frequency

    def per_cycle(self, events: int) -> float:
        """Events in a cycle of a core, 0 where none has passed."""
        return events / self.core_cycles if self.core_cycles else 0.0

    def record(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "machine": self.machine.name,
            "frequency": self.machine.frequency,
            "seconds": self.seconds,
            "cycles": self.core_cycles,
            "terms": self.terms,
            "share": {name: self.per_cycle(n) for name, n in self.terms.items()},
            "events": self.events,
            "per_cycle": {name: self.per_cycle(n) for name, n in self.events.items()},
        }

    def tables(self) -> tuple[Table, ...]:
        """For people: an event each row."""
        m = self.machine
        cores = f"{len(self.cycles)} cores" if len(self.cycles) > 1 else "a core"
        head = f"{self.seconds * 1e6:,.3f} us on {cores} of {m.name} at {m.frequency / 1e9:g} GHz"
        rows: list[tuple[object, ...]] = [("cycles", self.core_cycles, "")]
        rows += [(f"  {name}", n, f"{self.per_cycle(n):.1%}") for name, n in self.terms.items()]
        rows += [(name, n, f"{self.per_cycle(n):.2f} a cycle") for name, n in self.events.items()]
        return (Table(head, ("", "count", ""), rows),)
