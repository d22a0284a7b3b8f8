"""Do cores keep up with the wire: cycles of an op's entries beside the line rate of a device.

Owns: which calls are timed, what follows from their cycles, and what may not follow: a rate that
the machine's arithmetic forbids is an error.  Cycles are those of emulated cores (timing) that all
run the same entry, waits for each other at the banks of their scratchpad (banks) included; waits
for packets, DMA and links are not among them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from nicemu._core import ACCESS, logged
from nicemu.arguments import whole
from nicemu.device.banks import waits
from nicemu.device.image import Entry, KernelImage
from nicemu.device.machine import Machine
from nicemu.device.nic import Nic
from nicemu.errors import ArgumentError, OpError, TimingError
from nicemu.ops.samples import ordinary
from nicemu.tables import Table, Tabled

__all__ = ["LINES", "LineRate", "OpRate", "OpRates", "op_rates", "percents", "streamed"]

GIGA = 1e9
#: entries that begin and leave in one pass, of the four cards behind a NIC
WHOLE = "first4_finish"
#: class of vector arithmetic -> 0: floating point, 1: integers
UNITS = dict.fromkeys(
    ("vfadd", "vfmul", "vfma", "vfdiv", "vfsqrt", "vfcvt", "vfmisc", "vfred"), 0
) | dict.fromkeys(("valu", "vmul", "vdiv", "vred"), 1)
#: calls whose accesses are recorded: cores that begin at once are apart after the first
CALLS = 2


# ---- line rate -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class LineRate:
    """The aggregate ingress of a device: all bits of all ports are payload.

    Attributes:
        ports: that receive.
        rate: of each, bit/s.

    Raises:
        ArgumentError: on construction: no port, or no rate.
    """

    ports: int
    rate: float = 200 * GIGA

    def __post_init__(self) -> None:
        """Check the ranges."""
        whole("ports", self.ports, 1, 1 << 16)
        if not (math.isfinite(self.rate) and self.rate > 0):
            raise ArgumentError(f"rate {self.rate} bit/s: use more than 0, finite")

    @property
    def total(self) -> float:
        """Of all ports, bit/s."""
        return self.ports * self.rate

    def __str__(self) -> str:
        """Ports and their rate in Gb/s."""
        return f"{self.ports}x{self.rate / GIGA:g}"


#: one and four ports of 200 Gb/s
LINES = (LineRate(1), LineRate(4))


# ---- results -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class OpRate:
    """One entry of an op on all cores, for full packets, with its code fetched before.

    Attributes:
        op, preset: of the image.
        element: format of a worker's elements.
        accumulator: what is kept of each, as text.
        machine: whose cores ran it.
        entry: its name.
        payloads: that a call takes.
        count: elements of each.
        payload: bytes of each.
        terms: what the cycles of a call were spent on; those of conflicts are the mean of the
            cores of a cluster.
        instructions: retired in a call.
        scalar_bytes, vector_bytes: that a call loads and stores.
        float_bits, integer_bits: operands of its vector arithmetic, of the wider where they differ.

    Raises:
        TimingError: on construction: so few cycles are impossible on that machine.
    """

    op: str
    preset: str
    element: str
    accumulator: str
    machine: Machine
    entry: str
    payloads: int
    count: int
    payload: int
    terms: dict[str, float]
    instructions: int
    scalar_bytes: int
    vector_bytes: int
    float_bits: int = 0
    integer_bits: int = 0

    def __post_init__(self) -> None:
        """Hold the cycles against what cores can issue, load, store and compute."""
        m = self.machine
        vector = m.timing.word // 8
        lanes = m.timing.word // max(m.timing.vint, 1)
        moved = (self.scalar_bytes + self.vector_bytes) * (m.cores // m.clusters)
        for who, what, amount, width in (
            ("a core", "instructions", self.instructions, 1),
            ("a core", "bytes of scalar loads and stores", self.scalar_bytes, m.timing.port),
            ("a core", "bytes of vector loads and stores", self.vector_bytes, vector),
            ("a core", "bits of vector floating point", self.float_bits, m.timing.word),
            ("a core", "bits of vector integers", self.integer_bits, lanes),
            ("a core", "bytes of payload", self.payload * self.payloads, m.timing.port + vector),
            ("a cluster", "bytes of its banks", moved, m.banks * m.bank_bytes),
        ):
            if amount > self.cycles * width:
                raise TimingError(
                    f"{self.entry} of {self.op}: {amount} {what} in {self.cycles:g} cycles: {who} "
                    f"of {m.name} has {width} a cycle: no rate follows from that"
                )

    @property
    def cycles(self) -> float:
        """Of a call."""
        return sum(self.terms.values())

    @property
    def packet_cycles(self) -> float:
        """Of one packet."""
        return self.cycles / self.payloads

    @property
    def element_cycles(self) -> float:
        """Of one element of a packet."""
        return self.packet_cycles / self.count

    @property
    def packet_terms(self) -> dict[str, float]:
        """What a packet's cycles are spent on."""
        return {name: cycles / self.payloads for name, cycles in self.terms.items()}

    @property
    def bottleneck(self) -> str:
        """The term with the most cycles."""
        return max(self.terms, key=lambda name: self.terms[name])

    @property
    def core_rate(self) -> float:
        """Payload that one core takes in, bit/s."""
        return 8 * self.payload * self.machine.frequency / self.packet_cycles

    @property
    def rate(self) -> float:
        """Payload that all cores of the device take in, bit/s."""
        return self.machine.cores * self.core_rate

    def share(self, line: LineRate) -> float:
        """Of a line rate: 1 and more keeps up."""
        return self.rate / line.total

    def margin(self, line: LineRate) -> float:
        """What is over, of a line rate; below 0: what is missing."""
        return self.share(line) - 1

    def cores_needed(self, line: LineRate) -> int:
        """Cores of this kind that keep up with a line rate."""
        return math.ceil(line.total / self.core_rate)  # more cores: in more clusters

    def record(self, lines: Sequence[LineRate] = LINES) -> dict[str, Any]:
        """For JSON."""
        same = (
            "op", "preset", "element", "accumulator", "entry", "payloads", "count", "payload",
        )  # fmt: skip
        return {
            **{name: getattr(self, name) for name in same},
            "machine": self.machine.name,
            "cores": self.machine.cores,
            "frequency": self.machine.frequency,
            "vlen": self.machine.vlen,
            "instructions": self.instructions,
            "scalar_bytes": self.scalar_bytes,
            "vector_bytes": self.vector_bytes,
            "float_bits": self.float_bits,
            "integer_bits": self.integer_bits,
            "cycles": self.cycles,
            "terms": self.terms,
            "cycles_per_packet": self.packet_cycles,
            "cycles_per_element": self.element_cycles,
            "bottleneck": self.bottleneck,
            "bits_per_second": self.rate,
            "line_rates": [
                {
                    **asdict(line),
                    "share": self.share(line),
                    "margin": self.margin(line),
                    "cores_needed": self.cores_needed(line),
                }
                for line in lines
            ],
        }


@dataclass(frozen=True, repr=False)
class OpRates(Tabled):
    """Entries of ops on machines of one kind, a row each.

    Attributes:
        rows: in the order in which they were asked for.
        lines: the line rates they are held against.
    """

    rows: tuple[OpRate, ...]
    lines: tuple[LineRate, ...] = LINES

    def record(self) -> dict[str, Any]:
        """For JSON."""
        return {"rows": [row.record(self.lines) for row in self.rows]}

    def flat(self) -> list[dict[str, Any]]:
        """For CSV: the same without nesting."""
        out = []
        for row in self.rows:
            told = row.record(self.lines)
            terms, lines = told.pop("terms"), told.pop("line_rates")
            told |= {f"cycles_{name}": cycles for name, cycles in terms.items()}
            for line in lines:
                name = f"{line.pop('ports')}x{line.pop('rate') / GIGA:g}G"
                told |= {f"{name}_{key}": value for key, value in line.items()}
            out.append(told)
        return out

    def tables(self) -> tuple[Table, ...]:
        """For people: rates, and what a packet's cycles are spent on."""
        said, names, cells = _apart([_what(row) for row in self.rows])
        rates = Table(
            f"{self.device}{said}\n"
            "Gb/s of payload that the cores take in; line rate, the aggregate ingress of the\n"
            f"device: {self._lines()}; cores: that would keep up with it",
            (*names, "Gb/s",
             *(name for line in self.lines for name in (str(line), "margin", "cores"))),
            [
                (*cell, f"{row.rate / GIGA:.1f}",
                 *(text for line in self.lines for text in (
                     *percents(row.share(line)), row.cores_needed(line))))
                for cell, row in zip(cells, self.rows, strict=True)
            ],
            names,
        )  # fmt: skip
        terms = [t for t in self.rows[0].terms if any(row.terms[t] for row in self.rows)]
        spent = Table(
            "cycles of a core for an element, for a packet, and what those are spent on",
            (*names, "element", "packet", *terms, "bound by"),
            [
                (*cell, f"{row.element_cycles:.3f}", f"{row.packet_cycles:.1f}",
                 *(f"{row.packet_terms[t]:.1f}" for t in terms), row.bottleneck)
                for cell, row in zip(cells, self.rows, strict=True)
            ],
            {*names, "bound by"},
        )  # fmt: skip
        return rates, spent

    def by_vlen(self) -> Table:
        """For people: rates by VLEN, and the least VLEN that keeps up with each line rate; if none
        does, the fastest one's margin says by how much.
        """
        vlens = sorted({row.machine.vlen for row in self.rows})
        found: dict[tuple[str, ...], dict[int, OpRate]] = {}
        for row in self.rows:
            key = (row.op, row.element, row.preset, str(row.payload), row.entry)
            found.setdefault(key, {})[row.machine.vlen] = row
        some = [next(iter(rows.values())) for rows in found.values()]
        said, names, cells = _apart([_what(row, vlen=False) for row in some])

        def least(rows: dict[int, OpRate], line: LineRate) -> tuple[str, str]:
            enough = [vlen for vlen, row in rows.items() if row.share(line) >= 1]
            told = rows[min(enough)] if enough else max(rows.values(), key=lambda row: row.rate)
            return str(min(enough)) if enough else "none", percents(told.share(line))[1]

        return Table(
            f"{self.device}{said}\n"
            "Gb/s of payload that the cores take in, by VLEN, and the least that keeps up with\n"
            f"the line rate, the device's aggregate ingress: {self._lines()};\n"
            "margin: at that VLEN, or where none keeps up at the fastest",
            (*names, *map(str, vlens),
             *(name for line in self.lines for name in (str(line), "margin"))),
            [
                (*cell, *(f"{rows[v].rate / GIGA:.1f}" if v in rows else "-" for v in vlens),
                 *(text for line in self.lines for text in least(rows, line)))
                for cell, rows in zip(cells, found.values(), strict=True)
            ],
            names,
        )  # fmt: skip

    @property
    def device(self) -> str:
        """The machine of the first row, its cores and their frequency."""
        m = self.rows[0].machine
        cores = f"{m.cores} cores" if m.cores > 1 else "1 core"
        return f"{m.name}: {cores} of {m.frequency / GIGA:g} GHz"

    def _lines(self) -> str:
        return ", ".join(f"{line} = {line.total / GIGA:g} Gb/s" for line in self.lines)


def _what(row: OpRate, vlen: bool = True) -> dict[str, tuple[str, str]]:
    """What a row is about: name -> its value, and how that is said of all rows."""
    bits = row.machine.vlen
    about = {
        "op": (row.op, row.op),
        "element": (row.element, row.element),
        "preset": (row.preset, row.preset),
        "VLEN": (str(bits), f"VLEN {bits}") if row.machine.timing.word else ("-", "no V"),
        "bytes": (str(row.payload), f"packets of {row.payload} bytes"),
        "entry": (row.entry, ""),
    }
    if not vlen:
        del about["VLEN"]
    return about


def _apart(
    rows: Sequence[dict[str, tuple[str, str]]],
) -> tuple[str, list[str], list[list[str]]]:
    """What all rows have in common, in words, and names and columns of what they do not."""
    said, names = "", []
    for name, (_, text) in rows[0].items():
        if text and len({row[name] for row in rows}) == 1:
            said += f", {text}"
        else:
            names.append(name)
    return said, names, [[row[name][0] for name in names] for row in rows]


def percents(share: float) -> tuple[str, str]:
    """A share and its margin, never more than there is."""
    digits = 1 if share < 0.1 else 0
    percent = math.floor(share * 100 * 10**digits) / 10**digits
    return f"{percent:.{digits}f}%", f"{percent - 100:+.{digits}f}%"


# ---- how they are measured -----------------------------------------------------------------------


def streamed(image: KernelImage, machine: Machine) -> list[Entry]:
    """The entries that a stream of workers' packets uses: one packet at a time, as many as the
    machine takes at once, and those of four cards in one pass, where the image has them.
    """
    most = max(k for k in image.fan_ins("acc") if k <= machine.max_fan_in)
    names = dict.fromkeys(("acc", str(Entry("acc", most, ""))))
    if WHOLE in image.entries and Entry.of(WHOLE).payloads <= machine.max_fan_in:
        names[WHOLE] = None
    return [Entry.of(name) for name in names]


def op_rates(
    cases: Sequence[tuple[KernelImage, Machine, int]],
    lines: Sequence[LineRate] = LINES,
    advance: Callable[[int, int], None] = lambda done, total: None,
) -> OpRates:
    """Time the entries of images that a stream of packets uses.

    Args:
        cases: images, machines, and bytes of a full packet.
        lines: the line rates they are held against.
        advance: is told how many of how many cases are done.

    Raises:
        ArgumentError: no case; a packet shorter than an element or longer than the machine's.
        FaultError: an entry traps or runs longer than the machine's budget.
        OpError: an entry raises an exception.
        TimingError: an entry takes fewer cycles than are possible.
    """
    rows: list[OpRate] = []
    for i, (image, machine, payload) in enumerate(cases):
        advance(i, len(cases))
        nic = Nic(machine, threads=1, cycles=True)
        nic.load(image)
        whole("payload", payload, image.formats.element.size, machine.max_payload)
        rows += (_rate(nic, entry, payload) for entry in streamed(image, machine))
    if not rows:
        raise ArgumentError("no op, element or payload: name one of each at least")
    return OpRates(tuple(rows), tuple(lines))


def _operands(
    image: KernelImage, machine: Machine, entry: Entry, packets: list[np.ndarray]
) -> tuple[int, int]:
    """Bits of operands of a call's vector arithmetic: of floating point, and of integers."""
    if not machine.timing.word:
        return 0, 0
    nic = Nic(machine, threads=1)  # of its own: what follows would be logged as well
    nic.load(image)
    if not entry.fresh:
        nic.handle("first", packets[:1])
    nic.cores.start_log()
    nic.handle(str(entry), packets)
    log, bits, rows = nic.cores.take_log(), [0, 0], dict[int, tuple[int, int] | None]()
    for one in logged(log):
        if one.bits and one.word not in rows:
            insn = nic.cores.decode(one.word)
            assert insn is not None  # it has been executed
            unit = UNITS.get(insn.cls)
            moves = insn.name.startswith(("vfmv", "vmv")) or not insn.operands.startswith("vd")
            widens = insn.name.startswith(("vfw", "vw"))
            narrows = insn.name.rsplit(".")[-1].startswith("w")  # vnsrl.wi, vfncvt.f.f.w
            wide = 2 if widens or narrows else 1
            rows[one.word] = None if unit is None or moves else (unit, wide)
        if one.bits and (row := rows[one.word]) is not None:
            bits[row[0]] += row[1] * one.bits
    return bits[0], bits[1]


def _rate(nic: Nic, entry: Entry, payload: int) -> OpRate:
    """An entry on all cores of a cluster, for packets of ordinary elements."""
    image, m = nic.image, nic.machine
    element = image.formats.element
    count = payload // element.size
    packets = [ordinary(element.formats[0], count, seed) for seed in range(entry.payloads)]
    cores = range(m.cores // m.clusters)
    for core in cores:  # the first call fetches the code
        if not entry.fresh:
            nic.handle("first", packets[:1], core=core)
        done = nic.handle(str(entry), packets, core=core)
    if done.status:
        text = image.status_text(done.status)
        raise OpError(f"{entry} of {image.op} {text} on ordinary numbers")
    nic.clear_counters()
    # an instruction asks memory once, or once for each element
    rooms = [np.empty(CALLS * (done.instructions + done.elements), ACCESS) for _ in cores]
    asked: list[list[np.ndarray]] = [[] for _ in range(CALLS)]  # until the end of each call
    for core, room in zip(cores, rooms, strict=True):
        nic.cores.record_accesses(room, core)
        for call in range(CALLS):
            done = nic.handle(str(entry), packets, core=core)
            asked[call].append(room[: nic.cores.accesses(core)])
        nic.cores.record_accesses(None, core)
    before, after = (sum(waits(each, m)) / len(cores) for each in asked)
    assert done.cycles is not None  # the device counts them
    used = nic.counters(0)
    floats, integers = _operands(image, m, entry, packets)
    return OpRate(
        op=image.op,
        preset=image.preset,
        element=image.element,
        accumulator=image.accumulator,
        machine=m,
        entry=str(entry),
        payloads=entry.payloads,
        count=count,
        payload=count * element.size,
        terms={**done.cycles.terms, "conflicts": after - before},
        instructions=done.instructions,
        scalar_bytes=(used.load_bytes + used.store_bytes) // CALLS,
        vector_bytes=(used.vector_load_bytes + used.vector_store_bytes) // CALLS,
        float_bits=floats,
        integer_bits=integers,
    )
