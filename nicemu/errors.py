"""Every exception that nicemu raises on purpose.

Owns the types; who raises which is documented there.  At the command line each of them becomes
one line on stderr and exit code 2.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

__all__ = [
    "ArgumentError",
    "CapacityError",
    "CollectiveError",
    "Fault",
    "FaultError",
    "FileFormatError",
    "ImageError",
    "NicemuError",
    "OpError",
    "StatusError",
    "TimingError",
    "WorkerLostError",
]


class NicemuError(Exception):
    """Base class: a message of one line that names what, its value and the remedy."""


class ArgumentError(NicemuError, ValueError):
    """An argument is outside its documented range."""


class FileFormatError(NicemuError, ValueError):
    """A file is missing, unreadable, damaged or of the wrong kind."""


class ImageError(NicemuError):
    """A kernel image cannot be built or loaded."""


class OpError(NicemuError):
    """A reduce op cannot be used as it is written; the message says where, why and what to do."""


class StatusError(NicemuError):
    """The code of a reduce op raised an exception, or returned a status other than 0, on a core.

    Attributes:
        status: what it returned.
    """

    def __init__(self, message: str, status: int) -> None:
        """Remember the status."""
        super().__init__(message)
        self.status = status


class TimingError(NicemuError):
    """Cycles or times that arithmetic forbids were counted: they are not shown as reached."""


@dataclass(frozen=True)
class Fault:
    """How a handler ended when it did not return.

    Attributes:
        cause: exception code of the RISC-V privileged manual (mcause), or None when the budget
            of instructions and elements was used up.
        name: the cause in words, e.g. ``"load access fault"``.
        address: what mtval would hold: the first byte out of reach, or the illegal encoding.
        pc: address of the instruction that did not complete.
        core: index of the core.
        instructions: instructions retired in the call.
        elements: active vector elements processed in the call.
    """

    cause: int | None
    name: str
    address: int
    pc: int
    core: int
    instructions: int
    elements: int

    def __str__(self) -> str:
        """One line with every field that says something."""
        address = "" if self.cause is None else f" address {self.address:#x},"
        return (
            f"core {self.core}: {self.name} at pc {self.pc:#x},{address} "
            f"after {self.instructions} instructions and {self.elements} elements"
        )


class FaultError(NicemuError):
    """A handler trapped or overran its budget; ``fault`` says how."""

    def __init__(self, fault: Fault, context: str = "") -> None:
        """Remember the fault; ``context`` says what was being run."""
        super().__init__(f"{context}: {fault}" if context else str(fault))
        self.fault = fault


class CapacityError(NicemuError):
    """A device has no room for a group."""


class CollectiveError(NicemuError):
    """A collective ended without a result.

    Attributes:
        missing: ranks whose elements did not reach the root.
        waiting: where none is missing, ranks that the result did not reach.
        fault: how a handler ended, where one did not return; None otherwise.
    """

    def __init__(
        self,
        message: str,
        *,
        missing: tuple[int, ...] = (),
        waiting: tuple[int, ...] = (),
        fault: Fault | None = None,
    ) -> None:
        """Remember who and what."""
        super().__init__(message)
        self.missing = missing
        self.waiting = waiting
        self.fault = fault


class WorkerLostError(CollectiveError):
    """Workers are gone, and a collective has no result.

    Attributes:
        missing: ranks of the communicator from which nothing comes, or which a result does not
            reach.
        partials: device -> :class:`nicemu.Partial`: what the others' sums are, and of whom.
    """

    def __init__(
        self, message: str, *, missing: tuple[int, ...], partials: Mapping[str, Any]
    ) -> None:
        """Remember who is missing and what is there."""
        super().__init__(message, missing=missing)
        self.partials = dict(partials)
