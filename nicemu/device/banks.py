"""Cores that meet in a bank of the scratchpad: from their accesses to the cycles that each waits.

Owns: what banks are, and the two ways in which cores wait for them: in turns, when all begin at
once (banks.c), and in the order in which handlers and payloads are handed out, as in a fabric
(booking.c).  What the cores ask, and when they would if each were alone, is recorded while they run
(``Cores.record_accesses``).  A core that waits does everything after that as much later.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from nicemu._core import ACCESS, Handed, bank_beats, bank_bookings, bank_masks, bank_waits
from nicemu.arguments import whole
from nicemu.device.machine import Machine

__all__ = ["MOST", "Handed", "beats", "booked", "masks", "shape", "waits"]

MOST = 1 << 62  # of a cycle or an address: what is added to that still fits into 64 bits


def shape(machine: Machine) -> dict[str, int]:
    """The scratchpad of a cluster: a nicemu_bank_shape."""
    return {
        "banks": machine.banks,
        "bytes": machine.bank_bytes,
        "hold": machine.atomic_hold,
        "dma": machine.dma_bytes,
    }


def beats(accesses: np.ndarray, machine: Machine) -> np.ndarray:
    """What a core wants, cycle by cycle.

    Args:
        accesses: shape (n,), dtype ACCESS.
        machine: whose banks.

    Returns:
        Shape (m,), dtype BEAT, one for each cycle in which there is something, ascending.

    Raises:
        ArgumentError: an access of no bytes.
    """
    return bank_beats(accesses, shape(machine))


def masks(begins: np.ndarray, ends: np.ndarray, machine: Machine) -> np.ndarray:
    """The banks of the bytes begins[i]..ends[i]-1, as bits.

    Args:
        begins, ends: addresses, shape (n,), dtype uint64.
        machine: whose banks.

    Returns:
        Shape (n,), dtype uint64.

    Raises:
        ArgumentError: a range has no bytes, or the shapes differ.
    """
    return bank_masks(begins, ends, shape(machine))


def waits(
    accesses: Sequence[np.ndarray], machine: Machine, dma: np.ndarray | None = None
) -> list[int]:
    """Cycles that each core of one cluster waits for banks, when all begin at once.

    Args:
        accesses: of each core, shape (n,), dtype ACCESS.
        machine: whose banks.
        dma: shape (n,), dtype ACCESS, of the DMA engine, whose beats block their banks for a cycle.

    Raises:
        ArgumentError: no core, or more than 64; or an access of no bytes.
    """
    engine = np.empty(0, ACCESS) if dma is None else dma
    wanted = [beats(each, machine) for each in accesses]
    return bank_waits(wanted, beats(engine, machine), machine.atomic_hold)


def booked(handed: Sequence[Handed], machine: Machine) -> list[int]:
    """Cycles that each call waits for banks, in the order in which they are handed out.

    A call takes each bank in the first cycle in which it is free.  The DMA engine never waits:
    where it takes a bank in a cycle that a call has, the bank's next free cycle is taken, too.

    Args:
        handed: calls and payloads.
        machine: whose banks.

    Returns:
        One for each; of payloads, 0.

    Raises:
        ArgumentError: a number is below 0, or too large.
    """
    for each in handed:
        for name in ("start", "cycles", "address", "bytes"):
            whole(name, getattr(each, name), 0, MOST)
    return bank_bookings(handed, shape(machine))
