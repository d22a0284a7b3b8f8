"""The least time that a collective can take on a timed fabric, in closed form.

Owns: the formulas, for each algorithm, from bytes, ranks, links and the machine; and the guard that
a time is no shorter.  They know of links and of the fixed costs of a frame, not of DMA, cores and
queues: a time that is close to its bound is one that links decide.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from nicemu.collectives.collective import Collective
from nicemu.device.image import Formats
from nicemu.errors import TimingError
from nicemu.network.fabric import Fabric, Link
from nicemu.network.packet import FRAME_BYTES

__all__ = ["Bound", "Job", "bound_of"]

PICO = 1e-12


@dataclass(frozen=True)
class Bound:
    """A time that no run can beat: the sum of its two parts.

    Attributes:
        latency: seconds of software, links' delay and the fixed costs of frames on the longest way,
            with a frame's bits on each of its links.
        bandwidth: seconds of the bits that the busiest link has to carry beyond that.
    """

    latency: float
    bandwidth: float

    @property
    def time(self) -> float:
        """Both."""
        return self.latency + self.bandwidth

    def check(self, time: float, what: str) -> None:
        """See to it that a time is possible.

        Raises:
            TimingError: it is shorter.
        """
        if time < self.time - PICO:
            raise TimingError(
                f"{what} in {1e6 * time:.6f} us: it takes {1e6 * self.time:.6f} us at least, by "
                "links and software alone: no rate follows from that"
            )


@dataclass(frozen=True)
class Job:
    """What is asked for; of a fabric's workers and an algorithm, all that a bound depends on.

    Attributes:
        record: the collective.
        formats: of the op's image; None: payloads are moved.
        gives: bytes that each rank brings.
        count: elements of the whole array; of what is moved, bytes.
        frame: most bytes of a frame's payload.
        root: of reduce and broadcast.
    """

    record: Collective
    formats: Formats | None
    gives: tuple[int, ...]
    count: int
    frame: int
    root: int

    def chunk(self, partials: bool) -> int:
        """Elements of a full frame; bytes, where payloads are moved.

        Args:
            partials: whether partial sums cross a link.
        """
        rows = self.formats.row_bytes(partials) if self.formats else 1
        return self.frame // rows

    def sizes(self) -> tuple[int, int, int]:
        """Bytes of an element, of its partial sum and of its result."""
        if self.formats is None:
            return 1, 1, 1
        return self.formats.element.size, self.formats.partial.size, self.formats.result.size


class _Ways:
    """The links of some workers' ways up to the root, and what frames take on them, in ticks."""

    def __init__(self, fabric: Fabric, workers: Sequence[int]) -> None:
        self.planes = fabric.planes
        above = {link.child: link for link in fabric.links() if "@" not in link.parent}
        self.up: list[list[Link]] = []
        for worker in workers:
            way = [above[f"rank{worker}"]]
            while way[-1].parent in above:
                way.append(above[way[-1].parent])
            self.up.append(way)
        m = fabric.machine
        assert fabric.network is not None
        self.software = round(fabric.network.software / PICO)
        self.passed = (m.parse + m.egress) * m.cycle  # by a device
        self.merged = (m.parse + m.dispatch + m.egress) * m.cycle

    @staticmethod
    def bits(link: Link, payload: int, frames: int = 1) -> int:
        """Ticks of so many bytes in that many frames, each rounded down."""
        assert link.rate is not None
        return round(
            8 * ((payload + frames * (FRAME_BYTES + link.overhead)) / link.rate / PICO)
        ) - (frames)

    def hop(self, link: Link, payload: int) -> int:
        """Ticks of a frame over a link."""
        return round(link.delay / PICO) + self.bits(link, payload)

    def between(self, source: int, to: int) -> list[Link]:
        """The links from rank to rank: up to where the ways meet, and down."""
        a, b = self.up[source], self.up[to]
        common = {link.number for link in a} & {link.number for link in b}
        return [link for link in (*a, *reversed(b)) if link.number not in common]

    def step(self, source: int, to: int, payload: int) -> int:
        """Ticks of a frame from rank to rank, over the devices between them."""
        links = self.between(source, to)
        return sum(self.hop(link, payload) for link in links) + (len(links) - 1) * self.passed


def bound_of(fabric: Fabric, workers: Sequence[int], algorithm: str, job: Job) -> Bound:
    """The least time of a collective.

    In the network, with C chunks and the frames f of the smallest chunk, a time T is at least::

        T >= 2 software + sum over the links of the longest way (delay + f / rate)
             + (parse + dispatch + egress) for each device up, (parse + egress) for each down
             + max over the links of that way ((bits of all C frames / planes - f) / rate)

    What is moved, and not merged, takes parse + egress up, too.  However frames are dealt out, a
    plane carries at least its share of the bits; f of them are on the longest way.

    By hosts, steps follow one another, and links carry what is sent in all of them::

        T >= software (steps + 1) + sum over the steps (way of the smallest frame, and what it
             costs there: parse + dispatch + egress where it is merged, parse + egress elsewhere)
        T >= 2 software + delay + bits of all frames of a link / planes / rate

    A step of ``ring`` is from a rank to the next: n - 1 of a reduce-scatter, an all-gather or a
    broadcast, 2 (n - 1) of an allreduce, in each of which 1/n of the array leaves a rank (of a
    broadcast, all of it).  Of ``halving-doubling`` there are log2 n or 2 log2 n, in which 1/2, 1/4,
    ... of the array leaves a rank, and one or two more where n is no power of two.  What reduce and
    reduce_scatter have merged goes straight to those that take it.

    Args:
        fabric: a timed one.
        workers: of the fabric, in the order of ranks.
        algorithm: "in-network", "ring" or "halving-doubling".
        job: what is asked for.
    """
    if not job.count and job.record.carries:
        return Bound(0.0, 0.0)
    ways = _Ways(fabric, workers)
    if algorithm == "in-network":
        latency, bandwidth = _in_network(ways, job)
    else:
        latency, bandwidth = _by_hosts(ways, job, _PLANS[algorithm](len(workers), job))
    return Bound(PICO * latency, PICO * bandwidth)


# ---- in the network ------------------------------------------------------------------------------


def _in_network(ways: _Ways, job: Job) -> tuple[int, int]:
    """Every chunk goes up from all ranks, and down to all."""
    element, partial, result = job.sizes()
    moved = job.formats is None
    if moved:
        frames = sum(-(-size // job.frame) for size in job.gives) or 1
        least = 0  # of a frame's payload: a rank that gives nothing of a chunk sends an empty one
    else:
        chunk = job.chunk(partials=any(len(way) > 1 for way in ways.up))
        frames = -(-job.count // chunk)
        least = job.count - (frames - 1) * chunk
    sizes = [[element] + [partial] * (len(way) - 1) for way in ways.up]  # of an item, up each link
    loads: dict[int, int] = {}  # number of a link -> bytes of payload up
    for gives, way, items in zip(job.gives, ways.up, sizes, strict=True):
        for link, size in zip(way, items, strict=True):
            loads[link.number] = loads.get(link.number, 0) + gives if moved else job.count * size
    at = ways.passed if moved else ways.merged
    up = [
        sum(ways.hop(link, least * size) + at for link, size in zip(way, items, strict=True))
        for way, items in zip(ways.up, sizes, strict=True)
    ]
    down = [
        sum(ways.hop(link, least * result) for link in way) + (len(way) - 1) * ways.passed
        for way in ways.up
    ]
    longest_up, longest_down = max(up), max(down)
    best = (0, 0)
    for rank, way in enumerate(ways.up):
        for link, size in zip(way, sizes[rank], strict=True):
            for latency, payload, smallest in (
                (up[rank] + longest_down, loads[link.number], least * size),
                (longest_up + down[rank], job.count * result, least * result),
            ):
                share = ways.bits(link, payload, frames) // ways.planes
                more = max(share - ways.bits(link, smallest), 0)
                best = max(best, (latency, more), key=sum)
    return best[0] + 2 * ways.software, best[1]


# ---- by hosts ------------------------------------------------------------------------------------

#: from which rank to which
Way: TypeAlias = tuple[int, int]


@dataclass(frozen=True)
class _Step:
    """Ranks that send at the same time.

    Attributes:
        pairs: of ranks.
        merges: at its end; else it is stored.
        times: that it is done, one after another.
    """

    pairs: list[Way]
    merges: bool
    times: int = 1


@dataclass(frozen=True)
class _Sent:
    """What goes from one rank to another, at least: so many items of ``size`` bytes, at most
    ``chunk`` in a frame, and that so many ``times``.
    """

    source: int
    to: int
    count: int
    size: int
    chunk: int
    times: int = 1


@dataclass(frozen=True)
class _Plan:
    """What an algorithm does.

    Attributes:
        steps: that some item takes one after another.
        once: True: the times of a step take a way from each rank but one; False: the shortest.
        sent: by all.
    """

    steps: list[_Step]
    once: bool
    sent: list[_Sent]


def _halves(job: Job) -> Iterator[bool]:
    """Does it bring what ranks have together (True), and then what there is to all (False)?"""
    if job.record.reduces or not job.record.carries:
        yield True
    if job.record.everywhere or not job.record.carries:
        yield False


def _straight(held: Iterable[tuple[int, range]], n: int, job: Job) -> list[_Sent]:
    """Of what is reduced, and not for all: from ranks that have a stretch to those that take it."""
    if not job.record.reduces or job.record.everywhere:
        return []
    result, part = job.sizes()[2], job.count // n
    sent = []
    for rank, has in held:
        if not has:
            continue
        blocks = range(has.start // part, (has.stop - 1) // part + 1) if job.record.parted else ()
        for to in blocks or (job.root,):
            takes = job.record.takes(to, n, job.root, job.count)
            count = min(has.stop, takes.stop) - max(has.start, takes.start)
            if to != rank:
                sent.append(_Sent(rank, to, count, result, job.frame // result))
    return sent


def _ring(n: int, job: Job) -> _Plan:
    element, partial, result = job.sizes()
    edges = [(rank, (rank + 1) % n) for rank in range(n)]
    steps = [_Step(edges, merges, n - 1) for merges in _halves(job) if n > 1]
    block, chunk, results = job.count // n, job.chunk(n > 2), job.frame // result
    sent: list[_Sent] = []
    for merges in _halves(job) if job.record.carries else ():
        for source, to in edges:
            if merges:
                sent.append(_Sent(source, to, block, element, chunk))
                sent.append(_Sent(source, to, block, partial, chunk, n - 2))
            elif not job.record.rooted:
                sent.append(_Sent(source, to, block, result, results, n - 1))
            elif to != job.root:
                sent.append(_Sent(source, to, job.count, result, results))
    held = ((rank, range(job.count * rank // n, job.count * (rank + 1) // n)) for rank in range(n))
    return _Plan(steps, True, sent + _straight(held, n, job))


def _halving_doubling(n: int, job: Job) -> _Plan:
    size = 1 << (n.bit_length() - 1)
    folds = [(odd, odd - 1) for odd in range(1, 2 * (n - size), 2)]
    core = [even for _, even in folds] + list(range(2 * (n - size), n))
    distances = [1 << i for i in range(size.bit_length() - 1)]
    pairs = {d: [(rank, core[at ^ d]) for at, rank in enumerate(core)] for d in distances}
    steps: list[_Step] = []
    sent: list[_Sent] = []
    for merges in _halves(job):
        if merges and folds:
            steps.append(_Step(folds, True))
        steps += [_Step(pairs[d], merges) for d in distances]
        # what one rank alone has may be at the even one of a pair from the start
        alone = job.record.carries and (job.record.rooted or job.count < n)
        if not merges and folds and not alone:
            steps.append(_Step([(even, odd) for odd, even in folds], False))
        sent += _halving(folds, pairs, job) if merges else _doubling(n, folds, pairs, job)
    held = []
    for at, rank in enumerate(core):
        start, stop = 0, job.count
        for d in distances:
            middle = (start + stop) // 2
            start, stop = (middle, stop) if at & d else (start, middle)
        held.append((rank, range(start, stop)))
    sent += _straight(held, n, job)
    return _Plan(steps, False, sent if job.record.carries else [])


def _halving(folds: Sequence[Way], pairs: Mapping[int, Sequence[Way]], job: Job) -> Iterator[_Sent]:
    """At each distance half of what a rank still has."""
    element, partial, _ = job.sizes()
    chunk = job.chunk(bool(folds) or len(pairs) > 1)
    for way in folds:
        yield _Sent(*way, job.count, element, chunk)
    for i, ways in enumerate(pairs.values()):
        size = partial if i else min(element, partial) if folds else element
        for way in ways:
            yield _Sent(*way, job.count >> i + 1, size, chunk)


def _doubling(
    n: int, folds: Sequence[Way], pairs: Mapping[int, Sequence[Way]], job: Job
) -> Iterator[_Sent]:
    """At each distance all that a rank has."""
    result = job.sizes()[2]
    chunk = job.frame // result
    folded = len(folds)
    # place among those that exchange: the root's, or of the one that it is folded into
    root = job.root // 2 if job.root < 2 * folded else job.root - folded
    for i, (d, ways) in enumerate(pairs.items()):
        for at, way in enumerate(ways):
            if job.record.rooted:
                has = job.count if at ^ root < d else 0
            elif job.record.reduces:
                has = job.count >> i + 1
            else:  # of d ranks, and of those that are folded into them
                has = job.count // n * (d + min(max(folded - (at & -d), 0), d))
            if has:
                yield _Sent(*way, has, result, chunk)
    for odd, even in folds:
        way = (odd, even) if job.record.rooted and odd == job.root else (even, odd)
        has = job.count - (0 if job.record.rooted else job.count // n)
        yield _Sent(*way, has, result, chunk)


_PLANS: dict[str, Callable[[int, Job], _Plan]] = {
    "ring": _ring,
    "halving-doubling": _halving_doubling,
}


def _by_hosts(ways: _Ways, job: Job, plan: _Plan) -> tuple[int, int]:
    """The longer of the chain of steps and of the busiest link."""
    return max((_chain(ways, job, plan), 0), _busiest(ways, plan), key=sum)


def _chain(ways: _Ways, job: Job, plan: _Plan) -> int:
    if not plan.steps:
        return 2 * ways.software * (True in _halves(job))  # a rank alone uses its NIC, or nothing
    least = min(job.sizes()) if job.record.carries else 0
    chain = ways.software
    for step in plan.steps:
        spans = [ways.step(*pair, least) for pair in step.pairs]
        # once: all ways but one, the longest at most
        span = (sum(spans) - max(spans)) // (len(spans) - 1) if plan.once else min(spans)
        end = ways.merged if step.merges and job.record.reduces else ways.passed
        chain += step.times * (span + ways.software + end)
    return chain - ways.passed  # at the end nothing leaves


def _busiest(ways: _Ways, plan: _Plan) -> tuple[int, int]:
    loads: dict[tuple[int, bool], int] = {}
    links: dict[int, Link] = {}
    for sent in plan.sent:
        frames = -(-sent.count // sent.chunk)
        up = {link.number for link in ways.up[sent.source]}
        for link in ways.between(sent.source, sent.to):
            way = link.number, link.number in up
            links[link.number] = link
            bits = ways.bits(link, sent.count * sent.size, frames)
            loads[way] = loads.get(way, 0) + sent.times * bits
    return max(
        (
            (2 * ways.software + round(links[number].delay / PICO), load // ways.planes)
            for (number, _), load in loads.items()
        ),
        key=sum,
        default=(0, 0),
    )
