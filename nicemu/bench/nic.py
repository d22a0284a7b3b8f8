"""One device under load: what it takes in, how long packets stay, and what keeps it busy.

Owns: the load (a star of workers that send as fast as links and slots let them), and what follows
from the records of what happened when.  Those are the fabric's (Fabric.record), line rates and
shares are bench.op's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from nicemu.arguments import whole
from nicemu.bench.op import GIGA, LineRate, percents
from nicemu.device.image import KernelImage
from nicemu.device.machine import SECOND, Machine, Network
from nicemu.errors import ArgumentError, TimingError
from nicemu.network.exchange import Exchange
from nicemu.network.fabric import MAX_CHILDREN, MAX_WINDOW, MTUS, Fabric
from nicemu.network.records import What
from nicemu.ops.samples import ordinary
from nicemu.tables import Table, Tabled

__all__ = ["Latency", "Load", "NicRate", "NicRates", "nic_rates"]

MEGA = 1e6
NANO = 1000  # picoseconds


# ---- results -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Latency:
    """From a packet's last bit to the end of the handler that takes it, picoseconds."""

    least: int
    mean: float
    most: int


@dataclass(frozen=True)
class Load:
    """What is asked of a device.

    Attributes:
        line: its ports and their rate.
        mtu: most payload bytes of a packet.
        packets: that each port gets.
        window: chunks that a worker may have in flight; the device grants no more than it has
            slots for.
        scheduling: which core takes a packet: see :class:`nicemu.Fabric`.
    """

    line: LineRate
    mtu: int = 1024
    packets: int = 1000
    window: int = MAX_WINDOW
    scheduling: str = "slot"

    def __post_init__(self) -> None:
        """Check the ranges.

        Raises:
            ArgumentError: one is out of range.
        """
        whole("ports", self.line.ports, 1, MAX_CHILDREN)
        whole("payload", self.mtu, MTUS.start, MTUS.stop - 1, " bytes")
        whole("packets", self.packets, 1, 1_000_000)

    @property
    def bytes(self) -> int:
        """Of all packets, at most."""
        return self.line.ports * self.packets * self.mtu


@dataclass(frozen=True)
class NicRate:
    """A device that reduces what its ports get, one packet of each into one.

    Attributes:
        op, preset, element: of the image.
        machine: whose cores ran it.
        load: what was asked; ``window`` is what the device granted.
        payload: bytes of a packet.
        picoseconds: from the first bit at a port to the end of the last handler.
        cycles: of all cores.
        latency: of all packets.
        alone: of a packet of each port, when nothing else is under way.
        wire: part of the time in which a port gets bits, frames' own and those around them; of the
            port with most.
        dma, cores: part of the time in which the DMA engine of a cluster, and a core, is busy.

    Raises:
        TimingError: on construction: the device could not have done so in that time.
    """

    op: str
    preset: str
    element: str
    machine: Machine
    load: Load
    payload: int
    picoseconds: int
    cycles: int
    latency: Latency
    alone: Latency
    wire: float
    dma: float
    cores: float

    def __post_init__(self) -> None:
        """Hold the time against ports, DMA engines and cores."""
        m, line = self.machine, self.load.line
        packets = self.load.packets * line.ports
        dma = self.payload * m.dma_byte // 1000
        least = {
            f"{line} Gb/s": 8 * self.payload * packets * SECOND / line.total,
            f"DMA of {m.clusters * m.dma_bytes} bytes a cycle": dma * packets / m.clusters,
            f"{m.cores} cores for {self.cycles:,} cycles": self.cycles * m.cycle / m.cores,
        }
        for what, took in least.items():
            if took > self.picoseconds:
                raise TimingError(
                    f"{packets:,} packets of {self.payload} bytes in {self.picoseconds / NANO:g} "
                    f"ns: {what}: {took / NANO:g} ns at least: no rate follows from that"
                )
        shortest = (m.parse + m.dispatch + 1) * m.cycle + dma
        for stay in (self.latency.least, self.alone.least):
            if stay < shortest:
                raise TimingError(
                    f"a packet of {self.payload} bytes stays {stay / NANO:g} ns on {m.name}: its "
                    f"first instruction ends after {shortest / NANO:g} ns"
                )

    @property
    def seconds(self) -> float:
        """From the first bit at a port to the end of the last handler."""
        return self.picoseconds / SECOND

    @property
    def packet_rate(self) -> float:
        """Packets a second, of all ports."""
        return self.load.packets * self.load.line.ports / self.seconds

    @property
    def rate(self) -> float:
        """Payload, bit/s."""
        return 8 * self.payload * self.packet_rate

    @property
    def share(self) -> float:
        """Of the line rate."""
        return self.rate / self.load.line.total

    @property
    def margin(self) -> float:
        """What is over, of the line rate; below 0: what is missing."""
        return self.share - 1

    @property
    def busy(self) -> dict[str, float]:
        """Part of the time in which each of what a packet needs is busy."""
        return {"wire": self.wire, "DMA": self.dma, "cores": self.cores}

    @property
    def bottleneck(self) -> str:
        """What is busy most."""
        return max(self.busy, key=lambda name: self.busy[name])

    def record(self) -> dict[str, Any]:
        """For JSON and CSV."""
        m, line = self.machine, self.load.line
        same = ("op", "preset", "element", "payload", "seconds", "cycles")
        told = {
            **{name: getattr(self, name) for name in same},
            "machine": m.name,
            "cores": m.cores,
            "frequency": m.frequency,
            "vlen": m.vlen,
            **asdict(line),
            "packets": self.load.packets,
            "window": self.load.window,
            "scheduling": self.load.scheduling,
            "bits_per_second": self.rate,
            "packets_per_second": self.packet_rate,
            "line_rate": line.total,
            "share": self.share,
            "margin": self.margin,
        }
        for name, latency in (("latency", self.latency), ("alone", self.alone)):
            told |= {f"{name}_{key}_ns": t / NANO for key, t in asdict(latency).items()}
        return told | {f"busy_{name}": part for name, part in self.busy.items()} | {
            "bottleneck": self.bottleneck
        }  # fmt: skip


@dataclass(frozen=True, repr=False)
class NicRates(Tabled):
    """Loads of devices of one kind, a row each."""

    rows: tuple[NicRate, ...]

    def record(self) -> dict[str, Any]:
        """For JSON."""
        return {"rows": self.flat()}

    def flat(self) -> list[dict[str, Any]]:
        """For CSV."""
        return [row.record() for row in self.rows]

    @property
    def what(self) -> str:
        """The machine, the op and the packets of the first row."""
        row = self.rows[0]
        m = row.machine
        return f"{m.name} at {m.frequency / GIGA:g} GHz: {row.op}, {row.element}, {row.preset}"

    def tables(self) -> tuple[Table, ...]:
        """For people: throughput beside the line rate, and latency and what is busy."""
        names = ("cores", "line rate", "bytes")
        cells = [
            (row.machine.cores, f"{row.load.line} = {row.load.line.total / GIGA:g}", row.payload)
            for row in self.rows
        ]
        rates = Table(
            f"{self.what}, {self.rows[0].load.packets:,} packets a port, cores by "
            f"{self.rows[0].load.scheduling}\n"
            "Gb/s of payload that the device takes in; line rate, its aggregate ingress: ports x\n"
            "Gb/s of a port; busy: part of the time",
            (*names, "Gb/s", "share", "margin", "M packets/s", "busy: wire", "DMA", "cores",
             "bottleneck"),
            [
                (*cell, f"{row.rate / GIGA:.1f}", *percents(row.share),
                 f"{row.packet_rate / MEGA:.2f}",
                 *(percents(part)[0] for part in row.busy.values()), row.bottleneck)
                for cell, row in zip(cells, self.rows, strict=True)
            ],
            {"line rate", "bottleneck"},
        )  # fmt: skip
        latencies = Table(
            "ns from a packet's last bit to the end of the handler that takes it; alone, with no\n"
            "other under way (avg), and under that load, with the window's chunks in flight",
            (*names, "alone", "window", "min", "avg", "max"),
            [
                (*cell, _nanoseconds(row.alone.mean), row.load.window,
                 *map(_nanoseconds, (row.latency.least, row.latency.mean, row.latency.most)))
                for cell, row in zip(cells, self.rows, strict=True)
            ],
            {"line rate"},
        )  # fmt: skip
        return rates, latencies


def _nanoseconds(picoseconds: float) -> str:
    return f"{picoseconds / NANO:,.1f}"


# ---- how they are measured -----------------------------------------------------------------------


def nic_rates(
    cases: Sequence[tuple[KernelImage, Machine, Load]],
    advance: Callable[[int, int], None] = lambda done, total: None,
) -> NicRates:
    """Put devices under load.

    Args:
        cases: images, machines, and what is asked.
        advance: is told how many of how many bytes of packets are done.

    Raises:
        ArgumentError: no case, or one is out of range.
        CollectiveError: a handler did not return.
        TimingError: a device was faster than it can be.
    """
    rows = []
    sizes = [load.bytes for _, _, load in cases]
    for i, (image, machine, load) in enumerate(cases):

        def tell(part: float, i: int = i) -> None:
            advance(sum(sizes[:i]) + int(part * sizes[i]), sum(sizes))

        tell(0)
        rows.append(_rate(image, machine, load, tell))
    if not rows:
        raise ArgumentError("no payload, ports or cores: name one of each at least")
    return NicRates(tuple(rows))


def _rate(
    image: KernelImage, machine: Machine, load: Load, tell: Callable[[float], None]
) -> NicRate:
    alone = _Run(image, machine, replace(load, packets=1, window=1))
    run = _Run(image, machine, load, tell)
    return NicRate(
        op=image.op,
        preset=image.preset,
        element=image.element,
        machine=machine,
        load=replace(load, window=run.window),
        payload=run.payload,
        picoseconds=run.picoseconds,
        cycles=int(run.calls["cycles"].sum()),
        latency=run.latency(),
        alone=alone.latency(),
        wire=run.wire() / run.picoseconds,
        dma=run.busy(What.DMA) / machine.clusters / run.picoseconds,
        cores=run.busy(What.CORE) / machine.cores / run.picoseconds,
    )


class _Run:
    """A load, and what was put down of it: a reduction for rank 0 of a star."""

    def __init__(
        self,
        image: KernelImage,
        machine: Machine,
        load: Load,
        tell: Callable[[float], None] = lambda part: None,
    ) -> None:
        """Run it; ``tell`` is called now and then with the part that is done."""
        element, ports = image.formats.element, load.line.ports
        network, scheduling = Network(rate=load.line.rate), load.scheduling
        with Fabric(
            ports, "star", machine=machine, mtu=load.mtu, network=network, time="packet",
            scheduling=scheduling,
        ) as fabric:  # fmt: skip
            fabric.record()

            def watch() -> None:
                done, total = fabric.progress()
                if total:  # else nothing is in flight
                    tell(done / total)

            fabric.watch = watch
            with fabric.group(window=load.window) as group:
                chunk = group.chunk(image)
                count = chunk * load.packets
                inputs = [ordinary(element.formats[0], count, port) for port in range(ports)]
                outputs: list[np.ndarray | None] = [np.empty(count, image.formats.result.dtype)]
                outputs += [None] * (ports - 1)
                group.start(Exchange(image, inputs, outputs)).wait()
                self.window = group.window
            self.spans = fabric.spans()
        self.payload = chunk * element.size
        self.delay = round(network.delay * SECOND)
        up = (self.spans["kind"] == What.LINK) & (self.spans["where"] % 2 == 0)
        self.links = self.spans[up]
        self.calls = self.spans[self.spans["kind"] == What.CORE]
        begin = int(self.links["begin"].min()) + self.delay
        self.picoseconds = int(self.calls["end"].max()) - begin

    def latency(self) -> Latency:
        """Of all packets."""
        taken = self.spans[self.spans["kind"] == What.TAKEN]
        arrived = self.spans["end"][taken["source"] - 1] + self.delay  # numbers are from 1 on
        stay = self.spans["end"][taken["by"] - 1] - arrived
        return Latency(int(stay.min()), int(stay.sum()) / stay.size, int(stay.max()))

    def busy(self, kind: What) -> int:
        """Picoseconds of all that is of a kind."""
        spans = self.spans[self.spans["kind"] == kind]
        return int((spans["end"] - spans["begin"]).sum())

    def wire(self) -> int:
        """Picoseconds of bits of the port with most."""
        took = self.links["end"] - self.links["begin"]
        return max(
            int(took[self.links["where"] == link].sum()) for link in set(self.links["where"])
        )
