"""A short reference of hosts, slots and trees: which frames each node sends, and what it says to
each frame that comes.

Owns: the protocol, in dictionaries that forget nothing: a slot is never reused here, so that no
frame can be mistaken for an earlier one.  Payloads are tuples of integers, sums are Python's.
Shares nothing with the core.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

Values = tuple[int, ...]
#: (number of the collective in its group, number of the chunk in the collective)
Key = tuple[int, int]
#: A tree of nodes: a leaf is a host's node, else (the device's node, its children).
Tree = int | tuple[int, Sequence["Tree"]]


@dataclass(frozen=True)
class Frame:
    """What a frame says.

    Attributes:
        to: the node it is sent to.
        up: a contribution, else a result.
        turn: lane + window * round.
        child: which child of its device the sender (up) or receiver (down) is.
        contributors: workers in the values.
    """

    to: int
    up: bool
    key: Key
    turn: int
    child: int
    contributors: int
    values: Values


@dataclass
class Host:
    """A worker: sends each turn's contribution in order, at most `window` without a result.

    Attributes:
        turns: the group's chunks, in the order in which they have their turns.
        next: number of the turn that is sent next.
        waiting: turns without a result.
        results: values by chunk.
    """

    node: int
    parent: int
    child: int
    window: int
    turns: list[Key]
    contribution: Callable[[Key], Values]
    next: int = 0
    waiting: set[int] = field(default_factory=set)
    results: dict[Key, Values] = field(default_factory=dict)

    def frame(self, turn: int) -> Frame:
        """The contribution to a turn: the same whenever it is sent."""
        key = self.turns[turn]
        return Frame(self.parent, True, key, turn, self.child, 1, self.contribution(key))

    def send(self) -> list[Frame]:
        """All that the window has room for."""
        sent = []
        while self.next < len(self.turns) and self.next - self.window not in self.waiting:
            self.waiting.add(self.next)
            sent.append(self.frame(self.next))
            self.next += 1
        return sent

    def receive(self, frame: Frame) -> tuple[str, list[Frame]]:
        """A result: the verdict on it, and what is sent then."""
        if frame.turn not in self.waiting:
            return ("stale" if frame.turn < self.next else "unwanted"), []
        if self.turns[frame.turn] != frame.key:
            return "key", []
        self.waiting.remove(frame.turn)
        self.results[frame.key] = frame.values
        return "", self.send()


@dataclass
class Slot:
    key: Key
    arrived: dict[int, Values] = field(default_factory=dict)  # by child
    partial: Values | None = None  # once it is complete
    result: Values | None = None


@dataclass
class Device:
    """A NIC or a switch.

    Attributes:
        nodes: its children's.
        workers: how many are behind each child.
        agreed: turn -> the chunk that has it, or None while no worker has sent it.
        newest: (lane, round mod 2) -> the latest round there.
        slots: by turn.
    """

    node: int
    parent: int | None
    child: int
    window: int
    nodes: list[int]
    workers: list[int]
    agreed: Callable[[int], Key | None]
    newest: dict[tuple[int, int], int] = field(default_factory=dict)
    slots: dict[int, Slot] = field(default_factory=dict)

    def receive(self, frame: Frame) -> tuple[str, list[Frame]]:
        """A contribution or a result: the verdict on it, and what is sent then."""
        return self._receive_up(frame) if frame.up else self._receive_down(frame)

    def _receive_up(self, frame: Frame) -> tuple[str, list[Frame]]:
        turn, (round_, lane) = frame.turn, divmod(frame.turn, self.window)
        if frame.child >= len(self.nodes):
            return "child", []
        newest = self.newest.get((lane, round_ % 2), -1)
        if round_ < newest:
            return "stale", []
        if round_ > newest:
            before = self.slots.get(turn - self.window)
            if round_ and not (before and before.result is not None):
                return "future", []
            if self.agreed(turn) != frame.key:
                return "key", []
            self.newest[lane, round_ % 2] = round_
            self.slots[turn] = Slot(frame.key)
        slot = self.slots[turn]
        if slot.key != frame.key:
            return "key", []
        if frame.child not in slot.arrived:
            slot.arrived[frame.child] = frame.values
            return "", self._complete(turn) if len(slot.arrived) == len(self.nodes) else []
        if slot.result is not None:
            return "", [self._down(turn, frame.child)]
        if slot.partial is not None:
            return "", [self._up(turn)]
        return "duplicate", []

    def _complete(self, turn: int) -> list[Frame]:
        slot = self.slots[turn]
        slot.partial = tuple(map(sum, zip(*slot.arrived.values(), strict=True)))
        if self.parent is not None:
            return [self._up(turn)]
        slot.result = slot.partial
        return [self._down(turn, child) for child in range(len(self.nodes))]

    def _receive_down(self, frame: Frame) -> tuple[str, list[Frame]]:
        if self.parent is None:
            return "kind", []
        round_, lane = divmod(frame.turn, self.window)
        newest = self.newest.get((lane, round_ % 2), -1)
        if round_ < newest:
            return "stale", []
        slot = self.slots.get(frame.turn)
        if slot is None:
            return "future", []
        if slot.key != frame.key:
            return "key", []
        if slot.result is not None:
            return "duplicate", []
        if slot.partial is None:
            return "future", []
        slot.result = frame.values
        return "", [self._down(frame.turn, child) for child in range(len(self.nodes))]

    def _up(self, turn: int) -> Frame:
        slot = self.slots[turn]
        assert self.parent is not None and slot.partial is not None
        return Frame(self.parent, True, slot.key, turn, self.child, sum(self.workers), slot.partial)

    def _down(self, turn: int, child: int) -> Frame:
        slot = self.slots[turn]
        assert slot.result is not None
        return Frame(self.nodes[child], False, slot.key, turn, child, self.ranks, slot.result)

    ranks: int = 0  # of the group


class Network:
    """Hosts and devices of a group; the frames between them are the caller's.

    Args:
        tree: node numbers; hosts are in the order of their ranks.
        window: chunks that a worker may have in flight.
        contribution: (rank, chunk) -> values.
    """

    def __init__(self, tree: Tree, window: int, contribution: Callable[[int, Key], Values]) -> None:
        self.turns: list[Key] = []
        self.window = window
        self.hosts: list[Host] = []
        self.devices: list[Device] = []
        self.contribution = contribution
        self._grow(tree, None, 0)
        for device in self.devices:
            device.ranks = len(self.hosts)
        self.nodes: dict[int, Host | Device] = {host.node: host for host in self.hosts}
        self.nodes |= {device.node: device for device in self.devices}

    def _grow(self, tree: Tree, parent: int | None, child: int) -> int:
        """Add a subtree; how many workers it has."""
        if isinstance(tree, int):
            rank = len(self.hosts)
            assert parent is not None

            def contribution(key: Key) -> Values:
                return self.contribution(rank, key)

            host = Host(tree, parent, child, self.window, self.turns, contribution)
            self.hosts.append(host)
            return 1
        node, children = tree
        nodes = [c if isinstance(c, int) else c[0] for c in children]
        device = Device(node, parent, child, self.window, nodes, [], self._agreed)
        self.devices.append(device)
        device.workers += [self._grow(c, node, i) for i, c in enumerate(children)]
        return sum(device.workers)

    def start(self, keys: Sequence[Key]) -> list[Frame]:
        """A collective of these chunks: what is sent at once."""
        self.turns += keys
        return [frame for host in self.hosts for frame in host.send()]

    def receive(self, frame: Frame) -> tuple[str, list[Frame]]:
        """A frame arrives: the verdict on it ("": accepted), and what is sent then."""
        return self.nodes[frame.to].receive(frame)

    def _agreed(self, turn: int) -> Key | None:
        sent = max(host.next for host in self.hosts)
        return self.turns[turn] if turn < sent else None

    def missing(self, turn: int) -> set[int]:
        """Nodes of hosts whose contribution to a turn has not reached the root."""
        return self._missing(self.devices[0], turn)

    def _missing(self, device: Device, turn: int) -> set[int]:
        """Where a device has not sent its partial sum, those that it waits for; else all below."""
        slot, found = device.slots.get(turn), set[int]()
        for child, node in enumerate(device.nodes):
            if slot and child in slot.arrived:
                continue
            below = self.nodes[node]
            if isinstance(below, Host) or self._complete(below, turn):
                found |= self._behind(below)
            else:
                found |= self._missing(below, turn)
        return found

    def _complete(self, device: Device, turn: int) -> bool:
        slot = device.slots.get(turn)
        return slot is not None and slot.partial is not None

    def _behind(self, node: Host | Device) -> set[int]:
        if isinstance(node, Host):
            return {node.node}
        return {host for child in node.nodes for host in self._behind(self.nodes[child])}

    def survivors(self, device: Device, turn: int) -> tuple[set[int], Values]:
        """What can be had of a turn at a device when nothing more comes: the hosts whose
        contributions are there or below, and their sum.
        """
        slot, hosts, parts = device.slots.get(turn), set[int](), list[Values]()
        for child, node in enumerate(device.nodes):
            below = self.nodes[node]
            if slot and child in slot.arrived:
                hosts |= self._behind(below)
                parts.append(slot.arrived[child])
            elif isinstance(below, Device):
                more, values = self.survivors(below, turn)
                hosts |= more
                parts += [values] if more else []
        return hosts, tuple(map(sum, zip(*parts, strict=True)))
