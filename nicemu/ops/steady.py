"""Whether the cycles of an image depend on data or context: then one call tells nothing of another.

Owns: the calls that are tried.  What an entry takes is nic's to count; whether data decide in it,
flow's.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from nicemu._core import LOG_BYTES, LOG_LINE
from nicemu.device.image import Context, Entry, KernelImage
from nicemu.device.machine import Machine
from nicemu.device.nic import Nic
from nicemu.dtypes import Item
from nicemu.errors import ArgumentError, FaultError
from nicemu.ops.flow import deciding

__all__ = ["check_steady"]

COUNT = 65  # items, an odd number of them
PATTERNS = 4  # of random bits, with which everything is tried


def check_steady(image: KernelImage, machine: Machine) -> None:
    """See to it that a call takes as many cycles whatever its data, and whatever ran before.

    Every entry is tried with zeros, ones and random bits, each with another context, and then
    followed instruction by instruction: in none may data or context decide where it goes on, or
    what it asks of memory.

    Raises:
        ArgumentError: it does not; it names the entry.
    """
    nic = Nic(machine, threads=1, cycles=True)
    nic.load(image)
    formats = image.formats
    for entry in sorted(image.entries):  # in one order, however the image came to be
        does = Entry.of(entry)
        if does.payloads > machine.max_fan_in:
            continue
        payload = formats.partial if does.partials else formats.element
        found: set[int] = set()
        for accumulators, payloads, context in zip(
            _patterns(formats.accumulator), _patterns(payload), _contexts(), strict=True
        ):
            try:
                call = nic.handle(
                    entry,
                    [payloads] * does.payloads,
                    accumulator=accumulators,
                    count=COUNT,
                    context=context,
                )
            except FaultError as error:
                raise ArgumentError(
                    f"{entry} of {image.op} traps on some data ({error}): use time='packet'"
                ) from error
            assert call.cycles is not None
            found.add(call.cycles.total)
        if len(found) > 1:
            raise ArgumentError(
                f"{entry} of {image.op} takes {min(found)} to {max(found)} cycles for {COUNT} "
                "items, by their values or by what the core did before: use time='packet'"
            )
    _check_flow(image, nic)


def _check_flow(image: KernelImage, nic: Nic) -> None:
    formats = image.formats
    for entry in sorted(image.entries):
        does = Entry.of(entry)
        if does.payloads > nic.machine.max_fan_in:
            continue
        payload = np.ones(COUNT, (formats.partial if does.partials else formats.element).dtype)
        nic.cores.start_log()
        nic.handle(
            entry,
            [payload] * does.payloads,
            accumulator=np.ones(COUNT, formats.accumulator.dtype),
            count=COUNT,
        )
        log = nic.cores.take_log()
        if LOG_BYTES - len(log) < LOG_LINE:  # it stopped there
            raise ArgumentError(
                f"{entry} of {image.op} is too long to be followed: use time='packet'"
            )
        if (where := deciding(nic.cores, log)) is not None:
            raise ArgumentError(
                f"{entry} of {image.op} goes by values ({where}), and so may what it takes: "
                "use time='packet'"
            )


def _contexts() -> Iterator[Context]:
    """One for each pattern: neighbouring and distant numbers, odd and even."""
    for i in range(2 + PATTERNS):
        yield Context(
            contributors=1 + i, rank=i, device=i, child=i, seq=i, chunk=i, group=1 + i,
            element=i * (COUNT + 2), seed=i,
        )  # fmt: skip


def _patterns(item: Item) -> Iterator[np.ndarray]:
    """Arrays to try, shape (COUNT,), of the item's dtype."""
    yield np.zeros(COUNT, item.dtype)
    yield np.ones(COUNT, item.dtype)
    for seed in range(PATTERNS):
        out = np.zeros(COUNT, item.dtype)
        for name, row in item.fields:
            field = out[name] if name else out
            bits = np.random.default_rng(seed).bytes(COUNT * row.size)
            raw = np.frombuffer(bits, row.dtype if row.kind != "bool" else np.uint8)
            field[...] = raw if row.kind != "bool" else raw % 2
        yield out
