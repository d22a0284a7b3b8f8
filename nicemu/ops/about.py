"""What the answers to an op's author have in common: which image, on which machine.

Owns: these fields, and how they head a table.
"""

from __future__ import annotations

from dataclasses import dataclass

from nicemu.device.machine import Machine
from nicemu.tables import Tabled

__all__ = ["AboutImage"]


@dataclass(frozen=True, repr=False)
class AboutImage(Tabled):
    """An answer about an image.

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
        """These in words."""
        m = self.machine
        return f"{self.op} of {self.element}, {self.preset}, on {m.name} (VLEN {m.vlen})"
