"""One call of an entry, instruction by instruction: the author's line, and what was written.

Owns: which call is traced, and how its lines are shown.  What an instruction commits is told by the
core's own log.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from nicemu._core import LOG_BYTES, LOG_LINE, Logged, logged
from nicemu.arguments import known, whole
from nicemu.device.image import Context, Entry, KernelImage
from nicemu.device.machine import Machine
from nicemu.device.nic import CODE, Nic
from nicemu.errors import ArgumentError
from nicemu.ops.about import AboutImage
from nicemu.ops.samples import ordinary
from nicemu.tables import Table

__all__ = ["Step", "Trace", "trace"]

MOST_COUNT = 4096


@dataclass(frozen=True)
class Step:
    """An instruction that was executed.

    Attributes:
        at: its offset in the image's code.
        text: mnemonic and operands.
        source: the author's line that it is of; "" where it is nobody's.
        writes: register -> its new value; of a group, each register; ``vl``; address -> what was
            stored, as ``[0x10000000]``.  All hexadecimal, without leading zeros.
    """

    at: int
    text: str
    source: str
    writes: Mapping[str, str]


@dataclass(frozen=True, repr=False)
class Trace(AboutImage):
    """A call of an entry.

    Attributes:
        entry: its name.
        count: items of the chunk.
        status: that it returned, in words; "" for none.
        steps: in the order of execution.
    """

    entry: str
    count: int
    status: str
    steps: tuple[Step, ...]

    def record(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)

    def tables(self) -> tuple[Table, ...]:
        """For people: a row per instruction."""
        status = self.status and f"; {self.status}"
        head = f"{self.entry} of {self.title}: {self.count} items{status}"
        rows = [
            (f"{step.at:x}", step.text, _short(step.writes), step.source) for step in self.steps
        ]
        columns = ("at", "instruction", "writes", "line")
        return (Table(head, columns, rows, columns),)


MOST_SHOWN = 40  # characters of what an instruction writes


def _short(writes: Mapping[str, str]) -> str:
    text = ", ".join(f"{name} {value}" for name, value in writes.items())
    return text if len(text) <= MOST_SHOWN else f"{text[: MOST_SHOWN - 3]}..."


def trace(
    image: KernelImage,
    machine: str | Machine,
    entry: str,
    streams: Sequence[np.ndarray] | None,
    lines: Mapping[int, str],
) -> Trace:
    """Run one call of an entry and tell of each instruction.

    Args:
        image: the op.
        machine: preset name or :class:`nicemu.Machine`.
        entry: name of an entry.
        streams: elements of workers, one array each: the first begins the accumulator, where the
            entry does not, the others are its payloads.  None: 8 ordinary elements of each.
        lines: offset in the code -> the author's line.

    Raises:
        ArgumentError: no such entry; streams that do not fit, or of which the trace is too long.
        FaultError: the call traps or does not end.
        ImageError: the image is for other cores.
    """
    known("entry", entry, image.entries)
    does = Entry.of(entry)
    wanted = does.payloads + (not does.fresh)
    if streams is None:
        row = image.formats.element.formats[0]
        streams = [ordinary(row, 8, seed) for seed in range(wanted)]
    if len(streams) != wanted:
        raise ArgumentError(f"{len(streams)} streams: {entry} takes those of {wanted} workers")
    nic = Nic(machine, threads=1)
    nic.load(image)
    count = whole("count", np.size(streams[0]), 1, MOST_COUNT, " elements")
    payloads = list(streams[-does.payloads :]) if does.payloads else []
    if does.partials:
        payloads = [_partial(nic, elements) for elements in payloads]
    if not does.fresh:
        nic.handle("first", streams[:1])
    workers = Context(contributors=len(streams), group=len(streams))
    nic.cores.start_log()
    done = nic.handle(entry, payloads, count=count, context=workers)
    log = nic.cores.take_log()
    if LOG_BYTES - len(log) < LOG_LINE:  # it stopped there
        raise ArgumentError(f"a trace of {count} elements is too long: use fewer")
    return Trace(
        op=image.op,
        preset=image.preset,
        element=image.element,
        machine=nic.machine,
        entry=entry,
        count=count,
        status=image.status_text(done.status) if done.status else "",
        steps=tuple(_step(nic, each, lines) for each in logged(log)),
    )


def _partial(nic: Nic, elements: np.ndarray) -> np.ndarray:
    """What a device sends that has one worker's elements."""
    nic.handle("first", [elements])
    output = nic.handle("emit", count=elements.size).output
    assert output is not None  # emit gives it
    return output


def _step(nic: Nic, logged: Logged, lines: Mapping[int, str]) -> Step:
    writes = {}
    for name, value, stored in logged.written:
        if name == "mem" and stored:
            writes[f"[{int(value, 16):#x}]"] = f"{int(stored, 16):#x}"
        elif name == "c3104_vl" or name[0] in "xfv":
            writes[name.removeprefix("c3104_")] = f"{int(value, 16):#x}"
    at = logged.pc - CODE
    text, _ = nic.cores.disasm(logged.word, at)
    return Step(at, text, lines.get(at, ""), writes)
