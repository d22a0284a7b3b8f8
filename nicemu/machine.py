"""Machines as data: what a NIC is made of.

Owns: the record and its presets, each number with its source.  Nothing here runs.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from nicemu.errors import ArgumentError

__all__ = ["MACHINES", "Machine", "machine"]

KIB = 1024
LINE = 64  # alignment of what lies in a scratchpad
LARGEST = {"cores": 64, "max_payload": 1 << 20, "max_fan_in": 8, "budget": (1 << 63) - 1}
ALL_SCRATCHPADS = 512 * KIB * KIB  # bytes: what the device's address map (nic) has room for


@dataclass(frozen=True)
class Machine:
    """A NIC: cores, their vector width and their memories.

    Attributes:
        name: preset name.
        cores: number of RISC-V cores (harts), 1..64.
        vlen: bits of a vector register: 128, 256, 512 or 1024.
        scratchpad: bytes of scratchpad each core may use for accumulators and payloads.
        stack: bytes of stack per core.
        budget: most instructions + active vector elements of one handler call.
        max_payload: most bytes of one packet's payload.
        max_fan_in: most payloads that one handler call takes, 1..8.
    """

    name: str
    cores: int = 8
    vlen: int = 512
    scratchpad: int = 128 * KIB
    stack: int = 16 * KIB
    budget: int = 1_000_000
    max_payload: int = 4096
    max_fan_in: int = 8

    def __post_init__(self) -> None:
        """Check the ranges.

        Raises:
            ArgumentError: a field is outside its range.
        """
        for row in fields(self):
            value = getattr(self, row.name)
            if row.name != "name" and not hasattr(value, "__index__"):
                raise ArgumentError(f"{row.name} {value!r} is no whole number")
        for name, most in LARGEST.items():
            if not 1 <= getattr(self, name) <= most:
                raise ArgumentError(f"{name} {getattr(self, name)} is out of range: use 1..{most}")
        if self.vlen not in (128, 256, 512, 1024):
            raise ArgumentError(f"vlen {self.vlen} is not supported: use 128, 256, 512 or 1024")
        # the accumulator and the destination may be of twice the payload's width
        need = -(-self.max_payload // LINE) * LINE * (self.max_fan_in + 2 * 2)
        if self.scratchpad < need:
            raise ArgumentError(
                f"scratchpad {self.scratchpad} is too small: {self.max_fan_in} payloads of "
                f"{self.max_payload} bytes and an accumulator need {need}"
            )
        for name in ("scratchpad", "stack"):
            value = getattr(self, name)
            if value < 4096 or value % 4096 or value > 64 * 1024 * KIB:
                raise ArgumentError(f"{name} {value} must be a multiple of 4096 up to 64 MiB")
        if self.cores * self.scratchpad > ALL_SCRATCHPADS:
            raise ArgumentError(
                f"{self.cores} scratchpads of {self.scratchpad} bytes: "
                f"use at most {ALL_SCRATCHPADS >> 20} MiB in all"
            )


MACHINES: dict[str, Machine] = {
    # Eight cores and VLEN 512: the product's own default.  Scratchpad: 1 MiB for eight cores, as a
    # PsPIN cluster has (its public RTL); payloads up to the largest MTU of the wire format.
    "card": Machine("card"),
}


def machine(which: str | Machine) -> Machine:
    """A machine by preset name, or the machine itself.

    Raises:
        ArgumentError: there is no such preset.
    """
    if isinstance(which, Machine):
        return which
    if which not in MACHINES:
        raise ArgumentError(f"machine {which!r} is unknown: use one of {', '.join(MACHINES)}")
    return MACHINES[which]
