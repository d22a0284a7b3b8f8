"""Cores that meet in a bank of the scratchpad: from their accesses to the cycles that each waits.

Owns: which banks an access wants in which cycle.  What the cores ask, and when they would if each
were alone, is recorded while they run (``Cores.record_accesses``); who is served first is the C
core's (banks.c).  A core that waits does everything after that as much later.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from nicemu._core import ACCESS, BEAT, bank_waits
from nicemu.device.machine import Machine

__all__ = ["beats", "masks", "waits"]


def beats(accesses: np.ndarray, banks: int, width: int) -> np.ndarray:
    """What a core wants, cycle by cycle.

    Args:
        accesses: shape (n,), dtype ACCESS.
        banks: how many there are, a power of two up to 64; a bank has every so-manieth word.
        width: bytes of a word.

    Returns:
        Shape (m,), dtype BEAT, one for each cycle in which there is something, ascending.
    """
    if not accesses.size:
        return np.empty(0, BEAT)
    address, size = accesses["address"], accesses["bytes"].astype(np.uint64)
    beat = accesses["beat"].astype(np.uint64)
    first = address // beat
    count = ((address + size - np.uint64(1)) // beat - first + np.uint64(1)).astype(np.int64)
    which = np.repeat(np.arange(accesses.size), count)
    turn = (np.arange(which.size) - np.repeat(np.cumsum(count) - count, count)).astype(np.uint64)
    begin = np.maximum((first[which] + turn) * beat[which], address[which])
    end = np.minimum((first[which] + turn + np.uint64(1)) * beat[which], (address + size)[which])
    mask = masks(begin, end, banks, width)
    cycle = accesses["cycle"][which] + turn
    order = np.argsort(cycle, kind="stable")
    held = np.where(accesses["atomic"][which] != 0, mask, np.uint64(0))
    starts = np.flatnonzero(np.diff(cycle[order], prepend=np.uint64(2**64 - 1)) != 0)
    out = np.empty(starts.size, BEAT)
    out["cycle"] = cycle[order][starts]
    out["banks"] = np.bitwise_or.reduceat(mask[order], starts)
    out["held"] = np.bitwise_or.reduceat(held[order], starts)
    return out


def masks(begin: np.ndarray, end: np.ndarray, banks: int, width: int) -> np.ndarray:
    """The banks of bytes begin..end-1, as bits.

    Args:
        begin, end: addresses, shape (n,), dtype uint64.
        banks: how many there are, a power of two up to 64.
        width: bytes of a word.

    Returns:
        Shape (n,), dtype uint64.
    """
    one, many = np.uint64(1), np.uint64(banks)
    first, last = begin // np.uint64(width), (end - one) // np.uint64(width)
    every = np.uint64((1 << banks) - 1)
    words = np.minimum(last - first + one, many)
    low = np.where(words >= np.uint64(64), every, (one << (words % np.uint64(64))) - one) & every
    shift = first % many
    # the words that go round, at the low end; a shift by 64 is none
    back = np.where(shift == 0, np.uint64(0), low >> ((many - shift) % np.uint64(64)))
    rotated: np.ndarray = ((low << shift) | back) & every
    return rotated


def waits(
    accesses: Sequence[np.ndarray], machine: Machine, dma: np.ndarray | None = None
) -> list[int]:
    """Cycles that each core of one cluster waits for banks, when all begin at once.

    Args:
        accesses: of each core, shape (n,), dtype ACCESS.
        machine: whose banks.
        dma: shape (n,), dtype ACCESS, of the DMA engine, whose beats block their banks for a cycle.

    Raises:
        ArgumentError: no core, or more than 64.
    """
    banks, width = machine.banks, machine.bank_bytes
    engine = np.empty(0, ACCESS) if dma is None else dma
    wanted = [beats(each, banks, width) for each in accesses]
    return bank_waits(wanted, beats(engine, banks, width), machine.atomic_hold)
