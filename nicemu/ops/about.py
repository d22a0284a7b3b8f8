"""What check, cost and trace of an op have in common: which image they tell of, on which machine.

Owns: these fields, and the words for them that head a table.
"""

from __future__ import annotations

from dataclasses import dataclass

from nicemu.device.machine import Machine
from nicemu.tables import Tabled

__all__ = ["AboutImage"]


@dataclass(frozen=True, repr=False)
class AboutImage(Tabled):
    """An answer about the image of an op.

    Attributes:
        op, preset: of the image.
        element: format of a worker's elements.
        machine: that ran it.
    """

    op: str
    preset: str
    element: str
    machine: Machine

    @property
    def title(self) -> str:
        """Which image, and which machine: ``sum of bfloat16, wide, on card (VLEN 512)``."""
        m = self.machine
        return f"{self.op} of {self.element}, {self.preset}, on {m.name} (VLEN {m.vlen})"
