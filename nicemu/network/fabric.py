"""The fabric: workers, devices and links in a tree, and the virtual time in which frames travel.

Owns: building a tree in the C core, groups, tickets of exchanges and of relays, the loop that lets
virtual time pass, the files of capture and timeline.  An exchange's arrays are exchange's; what a
collective is, and what users see of it, collective's and communicator's; how frames, slots and
links behave is csrc's.

Times are seconds of virtual time; they have nothing to do with how long the host takes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from threading import RLock
from types import TracebackType
from typing import Any, Self

import numpy as np

from nicemu import _core
from nicemu._core import Counters
from nicemu._nicemu import ffi, lib
from nicemu.arguments import flag, instance, known, real, whole, wholes
from nicemu.device.banks import shape
from nicemu.device.image import Entry, KernelImage
from nicemu.device.machine import SECOND, Machine, Network
from nicemu.device.machine import machine as machine_of
from nicemu.device.nic import SCRATCHPAD, Nic
from nicemu.errors import (
    ArgumentError,
    CapacityError,
    CollectiveError,
    NicemuError,
)
from nicemu.network.counters import FabricCounters, LinkCounters, Replay
from nicemu.network.exchange import Exchange, Job, RawPartial, rows
from nicemu.network.packet import drops
from nicemu.network.pcap import Capture
from nicemu.network.records import SPAN, Node, Scene, Step, critical_path
from nicemu.network.relay import Relay
from nicemu.network.timeline import Timeline
from nicemu.network.topology import Tree
from nicemu.network.topology import topology as tree_of
from nicemu.order import Order

__all__ = [
    "Device",
    "Fabric",
    "Group",
    "Link",
    "Passage",
    "Ticket",
]

DELAY = 1e-6  # of a link
FEMTOSECONDS = 10**15  # of a second
INSTRUCTION = 1000  # picoseconds of virtual time for each retired instruction
END = 2**63  # picoseconds: the end of virtual time, so far from 2**64 that no delay leads beyond
SLICE = 50_000  # events between two looks at Ctrl-C
ONE = 1 << 32  # a probability of 1
MAX_RESENDS = 64
PLACED = 256  # images whose addresses are kept
RELAYS = 0  # in place of a group's number, which is never 0
MAX_TIMEOUT = 1 << 52  # picoseconds: more than an hour
NODE_COUNTERS = ("accepted", "damaged", "resent", "repeated", "calls")
MAX_RANKS = 1 << 16  # far from what the wire has numbers for
MAX_LEVELS = 32  # of devices; with the longest delays, a worker's timer is then within bounds
MAX_CHILDREN: int = lib.NICEMU_MAX_CHILDREN  # of a device
MAX_WORKERS: int = lib.NICEMU_MAX_WORKERS  # of a group
MAX_IN_FLIGHT: int = lib.NICEMU_MAX_EXCHANGES  # of a group
MAX_GROUPS: int = lib.NICEMU_MAX_GROUPS
MAX_WINDOW: int = lib.NICEMU_MAX_WINDOW
MTUS = range(lib.NICEMU_MIN_MTU, lib.NICEMU_MAX_PAYLOAD + 1)


# ---- parts of a fabric ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Device:
    """A NIC or switch of a fabric.

    Attributes:
        name: such as "nic0" or "spine0"; on the second plane "nic0@1".
        plane: 0 or 1.
        number: the same on both planes; handlers read it as ``device``.
        node: its number on the wire.
        ranks: workers behind it.
        nic: its cores.  Its memory is the fabric's.
    """

    name: str
    plane: int
    number: int
    node: int
    ranks: tuple[int, ...]
    nic: Nic = field(repr=False)

    def counters(self, core: int) -> Counters:
        """What a core has done."""
        return self.nic.counters(core)


@dataclass(frozen=True)
class Link:
    """A link between a child and its parent.

    Attributes:
        fabric: whose.
        child, parent: names of its ends: of devices, or "rank0"...
        number: 0, 1, ... in the order of :meth:`Fabric.links`.
        delay: that it takes at least, seconds.
        rate: in each direction, bit/s; None where the fabric is not timed.
        overhead: bytes that a frame takes beyond its own.
    """

    fabric: Fabric = field(repr=False)
    child: str
    parent: str
    number: int
    delay: float
    rate: float | None
    overhead: int

    def down(self, at: float | None = None) -> None:
        """Cut it, at a virtual time (None: now): what is under way on it is lost.

        Raises:
            ArgumentError: the time is past.
        """
        self.fabric._schedule(self, at, down=True)

    def up(self, at: float | None = None) -> None:
        """Mend it, at a virtual time (None: now).

        Raises:
            ArgumentError: the time is past.
        """
        self.fabric._schedule(self, at, down=False)

    def counters(self, up: bool = True) -> LinkCounters:
        """What has happened to the frames of one direction, towards the parent or from it.

        Raises:
            ArgumentError: ``up`` is neither True nor False.
        """
        down, row = not flag("up", up), ffi.new("nicemu_link_counters *")
        with self.fabric._lock:
            what = f"link of {self.child} to {self.parent}"
            fabric = self.fabric._fabric
            _core.call(what, lib.nicemu_link_counters_get, fabric, self.number, down, row)
        return LinkCounters(**{f.name: int(getattr(row, f.name)) for f in fields(LinkCounters)})


class Passage:
    """What has been started and ends in virtual time: messages between hosts, or an exchange.

    Attributes:
        seq: its number in its group, or among relays.
        done: True when it has ended, well or not.
        error: why it has no result; None when it has one, or has not ended.
        began, ended: virtual picoseconds at which it did.
        time: virtual seconds at which it ended.
        lasted: seconds from its beginning to its end.
        spent: what they were spent on, on the longest way to its end, with a timed fabric; None
            before that, or without.
        path: the steps of that way, where the fabric records; see :meth:`Fabric.record`.
    """

    def __init__(self, fabric: Fabric, seq: int) -> None:
        """Made by :meth:`Fabric.relay`."""
        self.seq = seq
        self.done = False
        self.error: NicemuError | None = None
        self.began = fabric.ticks
        self.ended: int | None = None
        self.spent: dict[str, float] | None = None
        self.path: tuple[Step, ...] | None = None
        self._fabric = fabric

    @property
    def key(self) -> tuple[int, int]:
        """Numbers of its group and in it."""
        return RELAYS, self.seq

    @property
    def time(self) -> float | None:
        """Virtual seconds at which it ended; None before that."""
        return None if self.ended is None else self.ended / SECOND

    @property
    def lasted(self) -> float | None:
        """Seconds from its beginning to its end; None before that."""
        return None if self.ended is None else (self.ended - self.began) / SECOND

    def _end(self, error: NicemuError | None) -> None:
        self.error = error
        self.ended = self._fabric.ticks
        self.done = True  # last: other threads look at it

    def wait(self) -> None:
        """Let virtual time pass until it has ended.

        Raises:
            CollectiveError: it ended without a result.
        """
        while not self.done:
            self._fabric._step()
        if self.error is not None:
            raise self.error


class Ticket(Passage):
    """An exchange that has been started.

    Attributes:
        exchange: what was started.
        levels: devices that have all their partial sums, in the order in which they had them.
    """

    def __init__(self, group: Group, exchange: Exchange, seq: int, job: Job) -> None:
        """Made by :meth:`Group.start`."""
        super().__init__(group.fabric, seq)
        self.exchange = exchange
        self.levels: list[str] = []
        self._group = group
        self._records = job.records
        self._job: Job | None = job  # what the C core points to

    @property
    def key(self) -> tuple[int, int]:
        """Numbers of its group and in it."""
        return self._group.number, self.seq

    def _end(self, error: NicemuError | None) -> None:
        if error is None and self._job is not None:
            self._job.unpack()
        super()._end(error)
        self._job = None

    def partials(self) -> dict[str, RawPartial]:
        """Device -> what it has of partial sums now; empty where nobody asked and all is well."""
        return dict(self._records)

    def __iter__(self) -> Iterator[str]:
        """Let virtual time pass until the exchange has ended.

        Yields:
            The name of each device that has all its partial sums, as soon as it has.

        Raises:
            CollectiveError: it ended without a result.
        """
        seen = 0
        while True:
            while seen < len(self.levels):
                seen += 1
                yield self.levels[seen - 1]
            if self.done:
                break
            self._fabric._step()
        if self.error is not None:
            raise self.error


class Group:
    """Workers that have slots on every device between them.

    Attributes:
        fabric: whose.
        ranks: its workers' ranks in the fabric; worker i of the group is ``ranks[i]``.
        number: on the wire.
        window: chunks that a worker may have in flight on a plane.
        order: who merges whom, a nested tuple of worker numbers of the group; None when that is
            decided by arrival.
        names: device -> its place in ``order``: the child indices from the root down.
    """

    def __init__(self, fabric: Fabric, ranks: tuple[int, ...], number: int, window: int) -> None:
        """Made by :meth:`Fabric.group`."""
        self.fabric = fabric
        self.ranks = ranks
        self.window = window
        order, self.names = fabric._tree.order(ranks)
        self.order: Order | None = None if fabric.arrival else order
        self.number = number
        self._open = True
        self._failed: str | None = None

    @property
    def failed(self) -> bool:
        """True when one of its exchanges has failed: it takes no other, and is to be closed."""
        return self._failed is not None

    def chunk(self, image: KernelImage | None) -> int:
        """Elements of a full chunk of that op; bytes, where payloads are moved."""
        if image is None:
            return self.fabric.mtu
        instance("image", image, KernelImage, "pass a KernelImage, or None")
        return self.fabric.mtu // image.formats.row_bytes(partials=len(self.names) > 1)

    def start(self, exchange: Exchange) -> Ticket:
        """Begin an exchange; several may be in flight, and end in any order.

        Raises:
            ArgumentError: arrays that do not fit, or the group is closed.
            CollectiveError: an exchange of this group has failed: open another group.
            ImageError: a device's code memory is full.
        """
        instance("exchange", exchange, Exchange, "pass an Exchange")
        with self.fabric._lock:
            return self.fabric._start(self, exchange)

    def settle(self) -> None:
        """Let virtual time pass until its exchanges have ended: where one has failed, those that
        had all their results before, and whose hosts are about to return.
        """
        for ticket in self.fabric._tickets_of(self):
            while not ticket.done:
                self.fabric._step()

    def close(self) -> None:
        """Give the slots back.  What is in flight ends with an error."""
        with self.fabric._lock:
            if self._open:
                self._open = False
                self.fabric._close_group(self)

    def __enter__(self) -> Self:
        """The group itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close it."""
        self.close()


# ---- the fabric ----------------------------------------------------------------------------------


def _picoseconds(seconds: float, what: str, most: float = 1e6) -> int:
    return round(real(what, seconds, 0, most, " seconds") * SECOND)


def _byte_time(rate: float) -> int:
    """Femtoseconds of a byte at so many bit/s."""
    return round(8 * FEMTOSECONDS / rate)


def _costs(m: Machine) -> dict[str, int | dict[str, int]]:
    """What frames cost in a NIC: a nicemu_costs."""
    own = {name: getattr(m, name) * m.cycle for name in ("parse", "dispatch", "egress")}
    engines = {"dma_byte": m.dma_byte, "cluster": m.cores // m.clusters}
    return {"cycle": m.cycle, **own, **engines, "banks": shape(m)}


def _probability(p: float, what: str) -> int:
    return round(real(what, p, 0, 1) * ONE)


def _check_size(tree: Tree, levels: int) -> None:
    """Raises ArgumentError where a tree is wider or deeper than devices and timers allow."""
    for name, children in tree.children.items():
        if len(children) > MAX_CHILDREN:
            raise ArgumentError(
                f"topology: device {name} has {len(children)} children: use at most "
                f"{MAX_CHILDREN}, with more levels such as tree({MAX_CHILDREN})"
            )
    if levels > MAX_LEVELS:
        raise ArgumentError(f"topology has {levels} levels of devices: use at most {MAX_LEVELS}")


def _on_plane(device: str, plane: int) -> str:
    return f"{device}@{plane}" if plane else device


class Fabric:
    """Workers and devices in a tree.

    Example:
        >>> fabric = nicemu.Fabric(8)
        >>> with fabric.group() as group:
        ...     ticket = group.start(Exchange(nicemu.kernel("sum", "f32"), inputs, outputs))
        ...     ticket.wait()

    Attributes:
        ranks: number of workers; their nodes are named "rank0"....
        order: who merges whom when all take part, a nested tuple of ranks.
        devices: name -> device.
        mtu: most payload bytes of a frame.
        planes: 1 or 2.
        arrival: True: devices merge in the order of arrival, and bits depend on timing.
        scheduling: "slot" or "free": whose time a handler call takes.
        machine: what devices are made of.
        simd: host path of the cores.
        timing_only: True: nothing has values.
        watch: called every some ten thousand events, when set: for a progress bar, say.
    """

    watch: Callable[[], None] | None = None

    def __init__(
        self,
        ranks: int,
        topology: Any = "cards",
        *,
        machine: str | Machine = "card",
        planes: int = 1,
        mtu: int = 1024,
        seed: int = 0,
        loss: float = 0.0,
        duplicate: float = 0.0,
        reorder: float = 0.0,
        corrupt: float = 0.0,
        delay: float | None = None,
        jitter: float = 0.0,
        time: str | None = None,
        network: Network | None = None,
        detection: float = 10e-6,
        max_resends: int = MAX_RESENDS,
        icrc: bool = False,
        order: str = "fixed",
        scheduling: str = "slot",
        simd: str = "auto",
        capture: str | Path | None = None,
        trace: str | Path | None = None,
    ) -> None:
        """Build the tree.

        Args:
            ranks: number of workers, at most 65536, of which a group takes at most 1024.
            topology: "star", "cards", "tree(N)" or a networkx tree: see
                :func:`nicemu.network.topology.topology`.
            machine: what devices are made of.
            planes: 2: every device, and every link, exists twice; chunks alternate.
            mtu: most payload bytes of a frame, 256..4096.
            seed: of everything that links do by chance; 0..2**64-1.
            loss, duplicate, reorder, corrupt: probabilities of each frame on each link: to be lost;
                to arrive twice; to be held back behind later ones; to arrive with a flipped bit.
            delay, jitter: seconds that a link takes, and most that it takes more; up to 1.  None:
                1 us, or by ``time``.
            time: None: an instruction takes 1 ns, and nothing but it and the links' delay takes
                time.  "packet": frames take their time on links, in devices and on cores whose
                cycles are counted, those between hosts too; results say what their time was spent
                on.  Bits are the same.  "only": the same times of collectives that compute nothing:
                a handler call takes the cycles of the first one of its entry, its count and its
                place in the scratchpad.
            network: with a ``time``, the links; in the topology "cards", those of workers are
                PCIe.
            detection: seconds from a link's going down to its ends' knowing.
            max_resends: of a chunk by a worker, before its collective ends with an error: 2 or
                more.
            icrc: True: compute and check every frame's ICRC; where links corrupt, that is done
                anyway.
            order: "fixed": devices merge child 0, 1, 2, ...; "arrival": as frames arrive, which
                needs less space, and gives other bits from run to run of a changed fabric.
            scheduling: whose time a handler call takes.  "slot": its slot's core's; "free": the
                first idle core's of that core's cluster.  Bits are the same.
            simd: host path of the cores.
            capture: file to which all frames that are sent are written; it appears on
                :meth:`close`.
            trace: with a ``time``, file for a timeline of links, devices and cores, which
                ui.perfetto.dev shows; it appears on :meth:`close`.

        Raises:
            ArgumentError: an argument is out of range.
            FileFormatError: the capture or the timeline cannot be written.
        """
        self.ranks = whole("ranks", ranks, 1, MAX_RANKS)
        self.mtu = whole("mtu", mtu, MTUS.start, MTUS.stop - 1)
        self.planes = whole("planes", planes, 1, 2)
        self.arrival = known("order", order, ("fixed", "arrival")) == "arrival"
        self.scheduling = known("scheduling", scheduling, ("slot", "free"))
        if capture is not None:
            instance("capture", capture, (str, Path), "name a file")
        if trace is not None:
            instance("trace", trace, (str, Path), "name a file")
            if time is None:
                raise ArgumentError("trace without time: pass time='packet' as well")
        if time is not None:
            known("time", time, ("packet", "only"))
        if network is not None:
            instance("network", network, Network, "pass a nicemu.Network")
            if time is None:
                raise ArgumentError("network without time: pass time='packet' as well")
        self.network = (network or Network()) if time else None
        self.timing_only = time == "only"
        self.machine = machine_of(machine)
        self.simd = simd
        self._tree = tree_of(topology, self.ranks)
        self.order, paths = self._tree.order(range(self.ranks))
        levels = 1 + max(map(len, paths.values()))
        _check_size(self._tree, levels)
        self._lock = RLock()
        self._tickets: dict[tuple[int, int], Passage] = {}
        self._groups: dict[int, Group] = {}
        self._injected = 0
        self._news = ffi.new("nicemu_event *", {"kind": lib.NICEMU_SLICE})  # what happened last
        own = self.network.delay if self.network else DELAY
        link = {
            "delay": _picoseconds(own if delay is None else delay, "delay", 1.0),
            "jitter": _picoseconds(jitter, "jitter", 1.0),
            "loss": _probability(loss, "loss"),
            "duplicate": _probability(duplicate, "duplicate"),
            "reorder": _probability(reorder, "reorder"),
            "corrupt": _probability(corrupt, "corrupt"),
        }
        hop = link["delay"] + link["jitter"]
        link["span"] = 4 * hop + 1
        # there and back, over as many links as there are levels, or one more
        longest = (hop + (link["span"] if reorder else 0)) * 2 * (levels + 1)
        self._faithful = not any(link[name] for name in ("loss", "duplicate", "corrupt"))
        pcie, software = link, 0
        if net := self.network:
            software = _picoseconds(net.software, "software", 1.0)
            link |= {"byte_time": _byte_time(net.rate), "overhead": net.overhead}
            pcie = {**link, "byte_time": _byte_time(net.pcie_rate), "overhead": 0, "pcie": 1}
            pcie["delay"] = _picoseconds(net.pcie_delay, "pcie_delay", 1.0)
            # ... behind a window of everybody's frames
            slowest = max(link["byte_time"], pcie["byte_time"]) // 1000
            longest += (
                2 * pcie["delay"] + software + 64 * self.ranks * (levels + 1) * self.mtu * slowest
            )
        config = {
            "seed": whole("seed", seed, 0, 2**64 - 1),
            "planes": self.planes,
            "mtu": self.mtu,
            "icrc": flag("icrc", icrc),
            "max_resends": whole("max_resends", max_resends, 2, 2**32 - 1),
            "timeout": min(4 * longest + SECOND // 10_000, MAX_TIMEOUT),
            "detection": _picoseconds(detection, "detection"),
            "timed": self.network is not None,
            "software": software,
            "hosts": _costs(self.machine),
            "host_cores": self.machine.cores,
            "reuse": self.timing_only,
        }
        out = ffi.new("nicemu_fabric **")
        _core.call("fabric", lib.nicemu_fabric_open, ffi.new("nicemu_fabric_config *", config), out)
        self._fabric = ffi.gc(out[0], lib.nicemu_fabric_close)
        self._hosts = [
            _core.call("a worker", lib.nicemu_fabric_add_host, self._fabric)
            for _ in range(self.ranks)
        ]
        self.devices: dict[str, Device] = {}
        self._links: dict[tuple[str, str], Link] = {}
        self._levels = self._tree.devices()
        for plane in range(self.planes):
            self._add_devices(plane)
            self._connect(plane, link, pcie if topology == "cards" else link)
        self._placed: dict[int, tuple[KernelImage, dict[str, list[int]]]] = {}  # by id
        self._entries: dict[int, str] = {}  # of records, by address
        self._recording = False
        self._paths: dict[str, tuple[Step, ...]] = {}  # critical ones of what has ended
        with ExitStack() as reserved:  # neither file stays behind where the other is refused
            self._capture = None if capture is None else reserved.enter_context(Capture(capture))
            self._timeline = None if trace is None else reserved.enter_context(Timeline(trace))
            reserved.pop_all()
        lib.nicemu_fabric_capture(self._fabric, self._capture is not None)
        if self._timeline is not None:
            self.record()

    # ---- building --------------------------------------------------------------------------------

    def _add_devices(self, plane: int) -> None:
        workers = self._tree.workers()
        for number, name in enumerate(self._levels):
            m = self.machine
            nic = Nic(m, threads=1, simd=self.simd, cycles=self.network is not None)
            config = {
                **nic.description(),
                "cores": nic.cores.handle,
                "plane": plane,
                "record": number,
                "max_fan_in": self.machine.max_fan_in,
                "scratch": SCRATCHPAD,
                "scratch_bytes": self.machine.scratchpad,
                "stack_bytes": self.machine.stack,
                "instruction_time": INSTRUCTION,
                "costs": _costs(m) if self.network else {},
                "any_core": self.scheduling == "free",
            }
            node = _core.call(
                f"device {name}",
                lib.nicemu_fabric_add_device,
                self._fabric,
                ffi.new("nicemu_device_config *", config),
            )
            full = _on_plane(name, plane)
            self.devices[full] = Device(full, plane, number, node, workers[name], nic)

    def _connect(self, plane: int, link: dict[str, int], own: dict[str, int]) -> None:
        """Links between devices, and ``own`` ones of workers."""
        configs = [ffi.new("nicemu_link_config *", each) for each in (link, own)]
        for name in self._levels:
            above = _on_plane(name, plane)
            for child in self._tree.children[name]:
                below = f"rank{child}" if isinstance(child, int) else _on_plane(child, plane)
                config = configs[isinstance(child, int)]
                number = _core.call(
                    f"link of {below} to {above}",
                    lib.nicemu_fabric_connect,
                    self._fabric,
                    self._hosts[child] if isinstance(child, int) else self.devices[below].node,
                    self.devices[above].node,
                    config,
                )
                rate = 8 * FEMTOSECONDS / config.byte_time if config.byte_time else None
                delay = config.delay / SECOND
                self._links[below, above] = Link(
                    self, below, above, number, delay, rate, config.overhead
                )

    # ---- groups and exchanges --------------------------------------------------------------------

    def group(self, ranks: Sequence[int] | None = None, *, window: int = 16, job: int = 0) -> Group:
        """Open a group: take slots for it on every device between its workers and the root.

        Args:
            ranks: its workers, all different; None: all.
            window: most chunks that a worker has in flight on a plane; devices may grant less.
            job: 0..65535; groups of different jobs never meet.

        Raises:
            ArgumentError: no such ranks.
            CapacityError: a device has no room for a single chunk more.
        """
        every = range(self.ranks)
        chosen = tuple(every) if ranks is None else wholes("ranks", ranks, 0, self.ranks - 1)
        if len(set(chosen)) != len(chosen):
            raise ArgumentError(f"ranks {list(chosen)}: use different ones of 0..{self.ranks - 1}")
        if not 1 <= len(chosen) <= MAX_WORKERS:
            raise ArgumentError(f"{len(chosen)} ranks: use 1..{MAX_WORKERS} in a group")
        window, job = whole("window", window, 1, MAX_WINDOW), whole("job", job, 0, 65535)
        hosts = ffi.new("uint32_t[]", [self._hosts[rank] for rank in chosen])
        granted = ffi.new("uint32_t *", window)
        device = ffi.new("uint32_t *")
        needed, free = ffi.new("uint64_t *"), ffi.new("uint64_t *")
        with self._lock:
            code = lib.nicemu_group_open(
                self._fabric, job, hosts, len(chosen), self.arrival, granted, device, needed, free
            )
            if device[0]:
                raise CapacityError(
                    f"{self._name_of(device[0])} has {free[0]} bytes free in each scratchpad: a "
                    f"slot of this group takes {needed[0]}: close a group, use a smaller MTU or "
                    "fewer children"
                )
            if code == lib.NICEMU_ENOMEM and len(self._groups) == MAX_GROUPS:
                raise CapacityError(f"{len(self._groups)} groups are open: close one")
            number = _core.call(f"group of {len(chosen)} ranks", int, code)
            group = self._groups[number] = Group(self, chosen, number, granted[0])
            return group

    def _name_of(self, node: int) -> str:
        return next(d.name for d in self.devices.values() if d.node == node)

    def _close_group(self, group: Group) -> None:
        _core.call("group", lib.nicemu_group_close, self._fabric, group.number)
        del self._groups[group.number]
        for ticket in self._tickets_of(group):
            self._end(ticket, CollectiveError("the group was closed"))

    def _tickets_of(self, group: Group) -> list[Passage]:
        tickets = list(self._tickets.items())
        return [ticket for (number, _), ticket in tickets if number == group.number]

    def _end(self, ticket: Passage, error: NicemuError | None) -> None:
        ticket._end(error)
        self._tickets.pop(ticket.key, None)

    def _start(self, group: Group, exchange: Exchange) -> Ticket:
        if not group._open:
            raise ArgumentError("the group is closed: open another")
        while len(self._tickets_of(group)) >= MAX_IN_FLIGHT:
            self._step()
        if group._failed is not None:
            raise CollectiveError(f"the group has failed ({group._failed}): open another")
        exchange.check(len(group.ranks))
        image, chunk = exchange.image, group.chunk(exchange.image)
        if image is None:
            job = exchange.movement(chunk)
        else:
            entries = self._place(image)
            job = exchange.reduction(image, entries, chunk, self._numbers(group))
        start = lib.nicemu_exchange_start
        try:
            seq = _core.call("exchange", start, self._fabric, group.number, job.handle)
            ticket = Ticket(group, exchange, seq, job)
            self._tickets[ticket.key] = ticket
        except (NicemuError, MemoryError):
            raise
        except BaseException:  # Ctrl-C: it may have begun, and nobody would keep its memory
            group._failed = "the start of an exchange was interrupted"
            group.close()
            raise
        return ticket

    def _place(self, image: KernelImage) -> dict[str, list[int]]:
        """Put an image into all devices: the addresses of its entries, the same in each."""
        known = self._placed.get(id(image))
        if known is None or known[0] is not image:
            for device in self.devices.values():
                entries = device.nic.place(image)
            if len(self._placed) == PLACED:
                self._placed.clear()
            known = self._placed[id(image)] = image, entries
            self._entries |= {
                address: str(replace(Entry.of(name), payloads=k))
                for name, table in entries.items()
                for k, address in enumerate(table)
                if address
            }
        return known[1]

    def check_relays(self) -> None:
        """See to it that messages between hosts can have a time here: see :meth:`relay`.

        Raises:
            ArgumentError: they cannot.
        """
        if self.network is None:
            raise ArgumentError("messages between hosts without time: pass time='packet'")
        if not self._faithful:
            raise ArgumentError(
                "links lose, duplicate or corrupt, and hosts send nothing again: for a time of "
                "theirs use clean links, or algorithm='in-network'"
            )

    def relay(self, relay: Relay, workers: Sequence[int]) -> Passage:
        """Let messages between hosts leave: for the time that they take.

        Args:
            relay: the messages; rank i of them is worker ``workers[i]``.
            workers: of the fabric.

        Raises:
            ArgumentError: nothing here takes time, or links lose, repeat or change frames.
        """
        self.check_relays()
        arrays = relay.arrays([self._hosts[rank] for rank in workers])
        types = {
            "messages": "nicemu_relayed[]",
            "waits": "nicemu_wait[]",
            "cycles": "uint64_t[]",
            "asked": "uint64_t[]",
            "beats": "nicemu_beat[]",
        }
        described = {name: ffi.from_buffer(types[name], array) for name, array in arrays.items()}
        described |= {f"n_{name}": array.size for name, array in arrays.items()}
        what = ffi.new("nicemu_relay *", described)
        with self._lock:
            seq = _core.call("messages", lib.nicemu_relay_start, self._fabric, what)
            ticket = self._tickets[RELAYS, seq] = Passage(self, seq)
            return ticket

    def _numbers(self, group: Group) -> dict[str, int]:
        return {name: self.devices[name].number for name in group.names}

    def _salvage(self, ticket: Ticket) -> None:
        """Put the survivors' partial sums of a reduction that has failed into its records."""
        group, exchange, image = ticket._group, ticket.exchange, ticket.exchange.image
        if image is None:
            return
        numbers = self._numbers(group)
        if not ticket._records:
            ticket._records = exchange.records(image, group.chunk(image), numbers)
        found, fabric, number = rows(ticket._records, numbers), self._fabric, group.number
        _core.call("survivors", lib.nicemu_exchange_salvage, fabric, number, ticket.seq, found)

    # ---- time ------------------------------------------------------------------------------------

    @property
    def ticks(self) -> int:
        """Virtual picoseconds since the fabric was made: differences of them are exact."""
        return int(lib.nicemu_fabric_now(self._fabric))

    @property
    def now(self) -> float:
        """The same in seconds."""
        return self.ticks / SECOND

    def run(self, until: float | None = None) -> None:
        """Let virtual time pass until nothing is under way, and nothing waits.

        Args:
            until: a virtual time after which nothing happens yet.
        """
        while self._step(until):
            pass

    def progress(self) -> tuple[int, int]:
        """Of all collectives in flight: chunks whose result all workers have, and all chunks;
        by the hosts, frames of messages that have been taken, and all of them."""
        chunks, left = ffi.new("uint64_t *"), ffi.new("uint64_t *")
        with self._lock:
            lib.nicemu_fabric_progress(self._fabric, chunks, left)
        return int(chunks[0] - left[0]), int(chunks[0])

    def _step(self, until: float | None = None) -> bool:
        """A slice of events; False when nothing waits."""
        more = self._slice(until)
        if self.watch is not None:
            self.watch()
        return more

    def _slice(self, until: float | None) -> bool:
        """Some events, and what is to be reported of them; False when nothing waits."""
        last = END if until is None else _picoseconds(until, "time")
        news = self._news
        with self._lock:
            if news.kind in (
                lib.NICEMU_SLICE,
                lib.NICEMU_IDLE,
            ):  # else Ctrl-C came before it was read
                _core.call("events", lib.nicemu_fabric_run, self._fabric, SLICE, last, news)
            if news.kind == lib.NICEMU_IDLE:
                if until is None:
                    self._end_of_time()
                return False
            if news.kind == lib.NICEMU_CAPTURED:
                self._save_captured()
            elif (ticket := self._tickets.get((news.group, news.seq))) is not None:
                self._tell(ticket, news)  # closed groups have none
            news.kind = lib.NICEMU_SLICE
            return True

    def _tell(self, ticket: Passage, news: Any) -> None:
        """What has become of it; no harm in being told twice."""
        if news.kind == lib.NICEMU_LEVEL and isinstance(ticket, Ticket):
            if (name := self._levels[news.record]) not in ticket.levels:
                ticket.levels.append(name)
        elif news.kind == lib.NICEMU_DONE:
            if self.network:
                ticket.spent = {
                    name: int(ticks) / SECOND
                    for name, ticks in zip(_core.stage_names(), news.spent, strict=True)
                }
            if self._recording:
                ticket.path = self._path(news.via)
            if self._timeline is not None:
                group = f"group {news.group}" if news.group else "by the hosts"
                self._paths[f"{group}, collective {news.seq}"] = ticket.path or ()
            self._end(ticket, None)
        elif news.kind == lib.NICEMU_FAILED and isinstance(ticket, Ticket):
            error = self._failure(ticket, news)
            ticket._group._failed = str(error)
            self._salvage(ticket)  # first: who waits for its end looks at what is there
            self._end(ticket, error)
        elif news.kind == lib.NICEMU_FAILED:
            source = f"rank{self._hosts.index(news.node)}"
            self._end(
                ticket,
                CollectiveError(
                    f"a link is down that frames of {source} need: mend it, or leave out"
                    " the ranks behind it"
                ),
            )

    def _end_of_time(self) -> None:
        """Workers have timers: where nothing happens any more, and something is in flight, virtual
        time has ended.
        """
        for ticket in list(self._tickets.values()):
            error = CollectiveError(
                f"virtual time ends after {END // SECOND} seconds: make another fabric"
            )
            self._end(ticket, error)
            if isinstance(ticket, Ticket):
                ticket._group._failed = str(error)
                ticket._group.close()

    def _failure(self, ticket: Ticket, news: Any) -> NicemuError:
        if news.node:
            where = f"{self._name_of(news.node)}, chunk {news.chunk}"
            fault = _core.stop_of(news.core, news.stop).fault()  # which names the core
            if fault is not None:
                return CollectiveError(f"{where}: {fault}", fault=fault)
            cause = self._tickets.get((news.group, news.cause))
            if cause is None:  # it has been told
                return CollectiveError(str(ticket._group._failed))
            assert isinstance(cause, Ticket) and cause.exchange.image is not None
            image = cause.exchange.image
            text = f"core {news.core}: {image.op} {image.status_text(news.status)}"
            return CollectiveError(f"{where}: {text}")
        ranks = tuple(
            rank
            for i, rank in enumerate(ticket._group.ranks)
            if int(news.workers[i // 64]) >> i % 64 & 1
        )
        names = ", ".join(f"rank{rank}" for rank in ranks)
        if news.missing:
            return CollectiveError(
                f"nothing comes from {names} (chunk {news.chunk}): close the group and open one "
                "without",
                missing=ranks,
            )
        return CollectiveError(
            f"the result of chunk {news.chunk} does not reach {names}: close the group and open "
            "one without",
            waiting=ranks,
        )

    # ---- links -----------------------------------------------------------------------------------

    def link(self, child: str, parent: str) -> Link:
        """The link between two nodes, in either order of their names.

        Raises:
            ArgumentError: there is none.
        """
        for node in (child, parent):
            instance("node", node, str, "name it, such as 'rank0'")
        found = self._links.get((child, parent)) or self._links.get((parent, child))
        if found is None:
            raise ArgumentError(f"there is no link between {child!r} and {parent!r}")
        return found

    def links(self) -> list[Link]:
        """All links."""
        return list(self._links.values())

    def kill(self, node: str, at: float | None = None) -> None:
        """Cut all links of a worker or device, at a virtual time (None: now), for good.

        Raises:
            ArgumentError: there is no such node, or the time is past.
        """
        self._node(node)
        for ends, link in self._links.items():
            if node in ends:
                link.down(at)

    def _schedule(self, link: Link, at: float | None, *, down: bool) -> None:
        with self._lock:
            now = self.ticks
            when = now if at is None else _picoseconds(at, "time")
            if when < now and at != self.now:  # which is as near as a float comes
                raise ArgumentError(f"time {at} is past: it is {self.now}")
            when = max(when, now)
            what = f"link of {link.child} to {link.parent}"
            _core.call(what, lib.nicemu_fabric_schedule, self._fabric, link.number, down, when)

    def receive(self, node: str, frame: bytes) -> str:
        """Let a frame's bytes arrive at a device or worker; why it is dropped, or "accepted".

        A frame that is dropped changes nothing but its counter.

        Raises:
            ArgumentError: there is no such node.
        """
        what = f"frame for {node}"
        with self._lock:
            number = self._node(node)
            frame = bytes(instance("frame", frame, (bytes, bytearray, memoryview), "pass bytes"))
            code = _core.call(
                what, lib.nicemu_fabric_receive, self._fabric, number, frame, len(frame)
            )
            self._injected += 1
        return drops()[code - 1].name if code else "accepted"

    def _node(self, name: str) -> int:
        instance("node", name, str, "name it, such as 'rank0'")
        if name in self.devices:
            return self.devices[name].node
        for rank, node in enumerate(self._hosts):
            if name == f"rank{rank}":
                return node
        raise ArgumentError(f"there is no node {name!r}: use a device's name, or rank0..")

    # ---- looking on ------------------------------------------------------------------------------

    def counters(self) -> FabricCounters:
        """What has happened until now."""
        node, link = ffi.new("nicemu_node_counters *"), ffi.new("nicemu_link_counters *")
        with self._lock:
            lib.nicemu_fabric_totals(self._fabric, node, link)
            return FabricCounters(
                **{row.name: int(getattr(link, row.name)) for row in fields(LinkCounters)},
                **{name: int(getattr(node, name)) for name in NODE_COUNTERS},
                drops={
                    drop.name: n for i, drop in enumerate(drops(), 1) if (n := int(node.drops[i]))
                },
                merged=tuple(node.merged[0 : self.machine.cores]),
                under_way=int(lib.nicemu_fabric_under_way(self._fabric)),
                injected=self._injected,
                events=int(lib.nicemu_fabric_events(self._fabric)),
            )

    def replays(self) -> list[Replay]:
        """Planes that died, in order."""
        out: list[Replay] = []
        row = ffi.new("nicemu_replay *")
        with self._lock:
            while lib.nicemu_replay_get(self._fabric, len(out), row) >= 0:
                out.append(
                    Replay(
                        plane=row.plane,
                        chunks=row.chunks,
                        down=row.down / SECOND if row.down else None,
                        detected=row.detected / SECOND,
                        replayed=row.replayed / SECOND if row.replayed else None,
                    )
                )
        return out

    def digest(self) -> int:
        """A hash of all slots, lanes and scratchpads: equal where nothing has changed."""
        with self._lock:
            return int(lib.nicemu_fabric_digest(self._fabric))

    # ---- the end ---------------------------------------------------------------------------------

    def _save_captured(self) -> None:
        if self._capture is None:
            return
        size = ffi.new("size_t *")
        try:
            data = lib.nicemu_fabric_captured(self._fabric, size)
            self._capture.append(bytes(ffi.buffer(data, size[0])))
        except BaseException as error:  # records are missing: there is no capture
            self._end_capture(error)
            raise

    def _end_capture(self, error: BaseException | None) -> None:
        """Put the capture in place; after an error, remove it."""
        if self._capture is not None:
            lib.nicemu_fabric_capture(self._fabric, 0)
            capture, self._capture = self._capture, None
            capture.__exit__(error)

    def record(self) -> None:
        """Put down from now on what links, devices and cores do: see :meth:`spans`.

        Raises:
            ArgumentError: the fabric is not timed, or has had a group already.
        """
        if self.network is None:
            raise ArgumentError("record: the fabric is not timed: make one with time='packet'")
        with self._lock:
            if lib.nicemu_fabric_trace(self._fabric, 1):
                raise ArgumentError("record: the fabric has had a group: record before")
            self._recording = True

    def spans(self) -> np.ndarray:
        """What has been put down until now: shape (n,), dtype nicemu.network.records.SPAN.

        Raises:
            MemoryError: the host had no memory for all of it.
        """
        with self._lock:
            return self._recorded().copy()

    def _recorded(self) -> np.ndarray:
        """The records where they are, until the next call of the core; likewise."""
        start, size = ffi.new("nicemu_span **"), ffi.new("uint64_t *")
        _core.call("trace", lib.nicemu_fabric_traced, self._fabric, start, size)
        if not size[0]:
            return np.empty(0, SPAN)
        return np.frombuffer(ffi.buffer(start[0], size[0] * SPAN.itemsize), SPAN)

    def _path(self, last: int) -> tuple[Step, ...] | None:
        """Of a collective that has just ended; None where the host had no memory for records."""
        try:
            return critical_path(self._recorded(), last, self._scene)
        except MemoryError:
            return None

    @cached_property
    def _scene(self) -> Scene:
        """Whom the records speak of."""
        nodes = {d.node: Node(d.name, "slot") for d in self.devices.values()}
        nodes |= {node: Node(f"rank{rank}", "lane") for rank, node in enumerate(self._hosts)}
        numbers = {node.name: number for number, node in nodes.items()}
        links = [(numbers[link.child], numbers[link.parent]) for link in self.links()]
        return Scene(nodes, links, self._entries, engines=self.machine.clusters > 1)

    def _save_timeline(self) -> None:
        if self._timeline is not None:
            self._timeline.write(self._recorded(), self._scene, self._paths)

    def _end_timeline(self) -> None:
        """Remove what has not been put in place."""
        if self._timeline is not None:
            timeline, self._timeline = self._timeline, None
            timeline.__exit__()
            _core.call("trace", lib.nicemu_fabric_trace, self._fabric, 0)
            self._recording = False

    def close(self) -> None:
        """Close all groups, and put the capture and the timeline in place.

        Raises:
            FileFormatError: one of them cannot be written.
            MemoryError: the host had no memory for all of the timeline.
        """
        self._close(None)

    def _close(self, error: BaseException | None) -> None:
        for group in list(self._groups.values()):
            group.close()
        with self._lock:
            try:
                self._save_captured()
                self._end_capture(error)
                if error is None:
                    self._save_timeline()
            finally:
                self._end_timeline()

    def __enter__(self) -> Self:
        """The fabric itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close it; after an exception, without a capture or a timeline."""
        self._close(error)
