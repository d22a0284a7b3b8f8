"""The time of collectives by size, in the columns of nccl-tests.

Owns: which sizes and arrays, out of place and in place; what an iteration is.
Times are those of the fabric's virtual time, and host time is beside them.  Columns as nccl-tests
has them (its doc/PERFORMANCE.md): algbw is bytes of the whole array over time, busbw that times
``Collective.bus``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import mean
from typing import Any

import numpy as np

from nicemu.arguments import whole
from nicemu.collectives.collective import COLLECTIVES, Collective, Result
from nicemu.collectives.communicator import Communicator
from nicemu.collectives.expected import as_bits, expected, reference_of
from nicemu.device.image import KernelImage
from nicemu.device.machine import Network
from nicemu.dtypes import FORMATS, Format, format_of
from nicemu.errors import ArgumentError, OpError
from nicemu.network.fabric import Fabric
from nicemu.ops.op import ReduceOp
from nicemu.ops.samples import ordinary
from nicemu.tables import Table, Tabled

__all__ = [
    "ALL_OPS",
    "ALL_TYPES",
    "CollectiveTime",
    "CollectiveTimes",
    "Repeats",
    "Timed",
    "Where",
    "collective_times",
    "sizes",
    "type_of",
]

GIGA = 1e9
MICRO = 1e6  # in a second
MOST = 1 << 40  # bytes
MOST_SIZES = 10_000  # of one run
#: nccl-tests' names of formats that have another here
TYPES = {
    "half": "float16",
    "float": "float32",
    "double": "float64",
    "fp8_e4m3": "float8_e4m3fn",
    "fp8_e5m2": "float8_e5m2",
}
NAMES = {name: theirs for theirs, name in TYPES.items()}
#: of `all`: nccl-tests' ops, and the formats that it has too
ALL_OPS = ("sum", "prod", "min", "max", "avg")
ALL_TYPES: tuple[Format, ...] = tuple(f for f in FORMATS if f.name not in ("int16", "bool"))


def type_of(name: str) -> Format:
    """The format of a name: nccl-tests' or one of nicemu's.

    Raises:
        ArgumentError: there is no such format.
    """
    return format_of(TYPES.get(name, name))


def sizes(least: int, most: int, factor: int = 2, step: int | None = None) -> list[int]:
    """Bytes from ``least`` to ``most``, times ``factor`` each time, or ``step`` more.

    Raises:
        ArgumentError: one is out of range, or there is no size, or too many.
    """
    whole("minbytes", least, 1, MOST)
    if whole("maxbytes", most, 1, MOST) < least:
        raise ArgumentError(f"maxbytes {most} is less than minbytes {least}: use more")
    if step is not None:
        steps = range(least, most + 1, whole("stepbytes", step, 1, MOST))
        if len(steps) > MOST_SIZES:
            raise ArgumentError(
                f"stepbytes {step} makes {len(steps):,} sizes: use a greater one, for at most "
                f"{MOST_SIZES:,}"
            )
        return list(steps)
    found = [least]
    whole("stepfactor", factor, 2, MOST)
    while found[-1] * factor <= most:
        found.append(found[-1] * factor)
    return found


# ---- results -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Timed:
    """Iterations of a collective of one size.

    Attributes:
        times: emulated seconds of each.
        hosts: seconds that the host took for each.
        least: emulated seconds that it takes at least, ``Result.bound``.
        wrong: elements that differ from the reference, of all ranks and checked iterations; None:
            nothing was checked.
    """

    times: tuple[float, ...]
    hosts: tuple[float, ...]
    least: float
    wrong: int | None

    @property
    def time(self) -> float:
        """Emulated seconds, the mean of the iterations."""
        return mean(self.times)

    @property
    def spread(self) -> float:
        """Emulated seconds between the shortest and the longest."""
        return max(self.times) - min(self.times)

    @property
    def host(self) -> float:
        """Seconds of the host, the mean of the iterations."""
        return mean(self.hosts)


@dataclass(frozen=True)
class CollectiveTime:
    """A collective of one size.

    Attributes:
        collective: its name.
        element: format of the elements; "" where nothing is carried.
        op, preset: of what is reduced; "" where nothing is.
        root: its rank; None where there is none.
        size: bytes of the whole array that all ranks speak of.
        count: elements of it; where it is cut into parts, of one.
        bus: bus bandwidth over algorithm bandwidth.
        out_of_place: results go to other arrays than inputs.
        in_place: they go over the inputs; None where they are of another format, or there are
            none.
    """

    collective: str
    element: str
    op: str
    preset: str
    root: int | None
    size: int
    count: int
    bus: float
    out_of_place: Timed
    in_place: Timed | None

    def algbw(self, timed: Timed) -> float:
        """Bytes of the whole array a second."""
        return self.size / timed.time if self.size else 0.0

    def busbw(self, timed: Timed) -> float:
        """Bytes a second that each rank would send if hosts did it, as nccl-tests defines it."""
        return self.algbw(timed) * self.bus

    @property
    def runs(self) -> dict[str, Timed]:
        """Out of place, and in place where there is that."""
        both = {"out_of_place": self.out_of_place, "in_place": self.in_place}
        return {name: timed for name, timed in both.items() if timed is not None}

    @property
    def host(self) -> float:
        """Seconds of the host for an iteration, the mean of all."""
        return mean([seconds for timed in self.runs.values() for seconds in timed.hosts])

    def record(self) -> dict[str, Any]:
        """For JSON."""
        same = ("size", "count", "element", "op", "preset", "root")
        return {
            **{name: getattr(self, name) for name in same},
            "least_us": MICRO * self.out_of_place.least,
            **{name: self._told(timed) for name, timed in self.runs.items()},
        }

    def _told(self, timed: Timed) -> dict[str, Any]:
        return {
            "time_us": MICRO * timed.time,
            "algbw_gb_per_s": self.algbw(timed) / GIGA,
            "busbw_gb_per_s": self.busbw(timed) / GIGA,
            "wrong": timed.wrong,
            "host_us": MICRO * timed.host,
            "times_us": [MICRO * t for t in timed.times],
            "hosts_us": [MICRO * t for t in timed.hosts],
        }


@dataclass(frozen=True)
class Where:
    """Who does it.  See :class:`nicemu.Fabric` and :class:`nicemu.Communicator`.

    Attributes:
        ranks: workers.
        topology: of the devices between them.
        algorithm: "auto", "in-network", "ring" or "halving-doubling".
        machine: preset of what devices are made of.
        window: chunks that a rank may have in flight.
        mtu: most payload bytes of a frame.
        software: seconds that a host takes to send a message.
    """

    ranks: int = 8
    topology: str = "cards"
    algorithm: str = "auto"
    machine: str = "card"
    window: int = 16
    mtu: int = 1024
    software: float = 0.0


@dataclass(frozen=True, repr=False)
class CollectiveTimes(Tabled):
    """Sizes of one collective, a row each.

    Attributes:
        collective: its name.
        where: who did it; ``algorithm`` is the one that was chosen.
        rates: of the links, bit/s.
        rows: for each format, for each op, by size.
        skipped: why there are no rows of an op and a format of `all`.
    """

    collective: str
    where: Where
    rates: tuple[float, ...]
    rows: tuple[CollectiveTime, ...]
    skipped: tuple[str, ...] = ()

    @property
    def average(self) -> float:
        """Bus bandwidth, bytes a second: the mean of all rows, out of place and in place."""
        return mean([row.busbw(timed) for row in self.rows for timed in row.runs.values()])

    @property
    def wrong(self) -> int | None:
        """Elements that differ from the reference; None: nothing was checked."""
        found = [t.wrong for row in self.rows for t in row.runs.values() if t.wrong is not None]
        return sum(found) if found else None

    @property
    def spread(self) -> float:
        """Most emulated seconds between iterations of a row: they begin at different slots."""
        return max(timed.spread for row in self.rows for timed in row.runs.values())

    def record(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "collective": self.collective,
            **asdict(self.where),
            "link_bits_per_second": list(self.rates),
            "rows": [row.record() for row in self.rows],
            "skipped": list(self.skipped),
            "wrong": self.wrong,
            "average_busbw_gb_per_s": self.average / GIGA,
        }

    def flat(self) -> list[dict[str, Any]]:
        """For CSV: the same without nesting, and without single iterations."""
        out = []
        for row in self.rows:
            told = {"collective": self.collective, **asdict(self.where), **row.record()}
            columns = told["out_of_place"]
            for name in ("out_of_place", "in_place"):
                one = told.pop(name, {})
                told |= {f"{name}_{key}": one.get(key) for key in columns}
            out.append({key: value for key, value in told.items() if not isinstance(value, list)})
        return out

    def tables(self) -> tuple[Table, ...]:
        """For people, and for what reads nccl-tests' tables: as it prints them, rows alone without
        ``#``, numbers without separators; host time in a column of its own.
        """
        w = self.where
        links = ", ".join(f"{rate / GIGA:g}" for rate in self.rates)
        presets = ", ".join(dict.fromkeys(row.preset for row in self.rows if row.preset))
        head = (
            f"# {self.collective}: {w.ranks} ranks, {w.topology}, {w.algorithm}"
            f"{f', {presets}' if presets else ''}, {w.machine}; links of {links} Gb/s, frames of "
            f"{w.mtu} bytes, window {w.window}\n"
            "# time, algbw, busbw: emulated; host: what the emulation of one took"
        )
        bandwidths = ("\nalgbw\n(GB/s)", "\nbusbw\n(GB/s)", "\n#wrong")
        columns = (
            "#\n# size\n# (B)", "\ncount\n(elements)", "\ntype", "\nredop", "\nroot",
            "out-of-place\ntime\n(us)", *bandwidths, "in-place\ntime\n(us)", *bandwidths,
            "\nhost\n(ms)",
        )  # fmt: skip
        lines = [
            (str(row.size), str(row.count),
             NAMES.get(row.element, row.element) or "none", row.op or "none",
             -1 if row.root is None else row.root,
             *(text for timed in (row.out_of_place, row.in_place) for text in _cells(row, timed)),
             f"{1e3 * row.host:.3f}")
            for row in self.rows
        ]  # fmt: skip
        wrong = "N/A" if self.wrong is None else f"{self.wrong} {'FAILED' if self.wrong else 'OK'}"
        end = [
            *(f"# not measured: {why}" for why in self.skipped),
            *([f"# times are means: of iterations, they differ by {MICRO * self.spread:.2g} us"]
              if self.spread else []),
            f"# Out of bounds values : {wrong}",
            f"# Avg bus bandwidth    : {self.average / GIGA:g}",
        ]  # fmt: skip
        return (Table(head, columns, lines), *(Table(line, (), ()) for line in end))


def _cells(row: CollectiveTime, timed: Timed | None) -> tuple[str, ...]:
    """Time, algbw, busbw, #wrong."""
    if timed is None:
        return "-", "-", "-", "-"
    wrong = "N/A" if timed.wrong is None else str(timed.wrong)
    bandwidths = (f"{rate / GIGA:.2f}" for rate in (row.algbw(timed), row.busbw(timed)))
    return f"{MICRO * timed.time:.2f}", *bandwidths, wrong


# ---- how they are measured -----------------------------------------------------------------------


@dataclass(frozen=True)
class Repeats:
    """How often a collective of one size is run, out of place and again in place.

    Attributes:
        iterations: that are timed.
        warmups: before them, not timed.
        checks: before these, each of other numbers, compared with the reference; 0: none.
    """

    iterations: int = 5
    warmups: int = 1
    checks: int = 1

    def __post_init__(self) -> None:
        """Check the ranges.

        Raises:
            ArgumentError: one is out of range.
        """
        whole("iters", self.iterations, 1, 1_000_000)
        whole("warmup_iters", self.warmups, 0, 1_000_000)
        whole("check", self.checks, 0, 1_000_000)


def collective_times(
    collective: str,
    where: Where,
    cases: Sequence[tuple[Format, ReduceOp | None]],
    bytes_: Sequence[int],
    repeats: Repeats,
    *,
    root: int = 0,
    preset: str | None = None,
    seed: int = 0,
    leave_out: bool = False,
    advance: Callable[[int, int], None] = lambda done, total: None,
) -> CollectiveTimes:
    """Time a collective.

    Args:
        collective: its name.
        where: who does it.
        cases: formats and ops; the op is None where nothing is reduced.
        bytes_: sizes of the whole array; each is rounded down to whole elements, and to equal parts
            where it is cut.
        repeats: how often.
        root: of those that have one.
        preset: of the numerics; None: the op's own.
        seed: of the numbers, and for stochastic ops.
        leave_out: True: pairs of an op and a format that do not go together are left out.
        advance: is told how many of how many rows are done.

    Raises:
        ArgumentError: an argument is out of range.
        CollectiveError: one ended without a result.
        OpError: an op is not for that format.
        TimingError: one took less time than it can.
    """
    rows: list[CollectiveTime] = []
    skipped: list[str] = []
    rates: set[float] = set()
    for i, (fmt, op) in enumerate(cases):
        try:
            image = op.image(fmt, preset, where.machine) if op else None
        except (ArgumentError, OpError) as error:
            if not leave_out:
                raise
            skipped.append(f"{fmt.name}: {error}")
            continue
        with Fabric(
            where.ranks, where.topology, machine=where.machine, mtu=where.mtu, seed=seed,
            time="packet", network=Network(software=where.software),
        ) as fabric:  # fmt: skip
            job = _Job(COLLECTIVES[collective], fmt, op, image, root, seed)
            bench = _Bench(fabric, where, job, repeats)
            for j, size in enumerate(bytes_):
                advance(i * len(bytes_) + j, len(cases) * len(bytes_))
                rows.append(bench.row(size))
            where = replace(where, algorithm=bench.algorithm)
            rates |= {link.rate for link in fabric.links() if link.rate}
    if not rows:
        raise ArgumentError(f"{collective}: no op goes with these types: {'; '.join(skipped)}")
    return CollectiveTimes(collective, where, tuple(sorted(rates)), tuple(rows), tuple(skipped))


@dataclass(frozen=True)
class _Job:
    """What is done: a collective of elements of a format, reduced with an image of an op."""

    record: Collective
    format: Format
    op: ReduceOp | None
    image: KernelImage | None
    root: int
    seed: int


@dataclass(frozen=True)
class _Arrays:
    """What each rank gives and gets; those that give or get nothing have empty ones."""

    inputs: list[np.ndarray]
    gives: list[range]
    outputs: list[np.ndarray]
    takes: list[range]


class _Bench:
    """A job on a fabric of its own, by size."""

    def __init__(self, fabric: Fabric, where: Where, job: _Job, repeats: Repeats) -> None:
        self.world = Communicator(fabric, algorithm=where.algorithm, window=where.window)
        self.algorithm = where.algorithm  # then that which was chosen
        self.job = job
        self.repeats = repeats
        self.root = whole("root", job.root, 0, self.world.ranks - 1) if job.record.rooted else 0
        self.started = 0
        unknown = job.op is not None and reference_of(job.op, job.format) == "nobody"
        self.checks = 0 if unknown or not job.record.carries else repeats.checks

    def row(self, size: int) -> CollectiveTime:
        """Of so many bytes of the whole array, or a few less."""
        job, record, ranks = self.job, self.job.record, self.world.ranks
        parts = ranks if record.parted else 1
        count = size // job.format.size // parts if record.carries else 0
        same = job.image is None or job.image.formats.result == job.image.formats.element
        return CollectiveTime(
            collective=record.name,
            element=job.format.name if record.carries else "",
            op=job.image.op if job.image else "",
            preset=job.image.preset if job.image else "",
            root=self.root if record.rooted else None,
            size=count * parts * job.format.size,
            count=count,
            bus=record.bus(ranks),
            out_of_place=self._timed(self._arrays(count * parts, in_place=False)),
            in_place=self._timed(self._arrays(count * parts, in_place=True))
            if record.carries and same
            else None,
        )

    def _arrays(self, count: int, in_place: bool) -> _Arrays:
        """In place: each rank has one array of the whole, of which it gives and takes stretches."""
        job, ranks = self.job, self.world.ranks
        gives, takes = (
            [stretch(rank, ranks, self.root, count) for rank in range(ranks)]
            for stretch in (job.record.gives, job.record.takes)
        )
        element = job.format.dtype
        result = job.image.formats.result.dtype if job.image else element
        if in_place:
            memory = [np.empty(count, element) for _ in range(ranks)]
            inputs = [one[part.start : part.stop] for one, part in zip(memory, gives, strict=True)]
            outputs = [one[part.start : part.stop] for one, part in zip(memory, takes, strict=True)]
        else:
            inputs = [np.empty(len(part), element) for part in gives]
            outputs = [np.empty(len(part), result) for part in takes]
        return _Arrays(inputs, gives, outputs, takes)

    def _timed(self, arrays: _Arrays) -> Timed:
        """All iterations with these arrays."""
        repeats, seed = self.repeats, self.job.seed
        wrong = 0
        for check in range(self.checks):
            numbers = self._numbers(arrays, seed + check)
            wrong += self._wrong(arrays, numbers, self._run(arrays, numbers))
        numbers = self._numbers(arrays, seed)
        for _ in range(repeats.warmups):
            self._run(arrays, numbers)
        results = [self._run(arrays, numbers) for _ in range(repeats.iterations)]
        return Timed(
            times=tuple(_known(result.time) for result in results),
            hosts=tuple(result.seconds for result in results),
            least=_known(results[0].bound),
            wrong=wrong if self.checks else None,
        )

    def _numbers(self, arrays: _Arrays, seed: int) -> list[np.ndarray]:
        """What the ranks give, each of a seed of its own."""
        row, ranks = self.job.format, self.world.ranks
        return [
            ordinary(row, len(part), seed * ranks + rank) for rank, part in enumerate(arrays.gives)
        ]

    def _run(self, arrays: _Arrays, numbers: Sequence[np.ndarray]) -> Result:
        """One iteration, on an idle fabric."""
        job, record = self.job, self.job.record
        for target, values in zip(arrays.inputs, numbers, strict=True):
            target[...] = values  # in place they are overwritten each time
        roots_alone = record.rooted and not record.reduces
        handle = self.world.start(
            record.name,
            arrays.inputs[self.root] if roots_alone else arrays.inputs,
            job.image or "",
            root=self.root,
            out=arrays.outputs if record.carries else None,
            seed=job.seed,
        )
        result = handle.wait()
        self.algorithm = result.algorithm
        self.started += 1
        return result

    def _wrong(self, arrays: _Arrays, numbers: Sequence[np.ndarray], result: Result) -> int:
        """Elements of all ranks whose bits differ from the reference."""
        job = self.job
        if job.op and job.image:
            right = expected(job.op, job.format, job.image, self.world, result, numbers,
                             seq=self.started - 1, seed=job.seed)  # fmt: skip
        else:
            right = as_bits(np.concatenate(numbers))  # side by side
        return sum(
            int(np.count_nonzero(as_bits(values) != right[part.start : part.stop]))
            for values, part in zip(arrays.outputs, arrays.takes, strict=True)
        )


def _known(seconds: float | None) -> float:
    """Emulated seconds; the fabric is timed."""
    assert seconds is not None
    return seconds
