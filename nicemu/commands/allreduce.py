"""`nicemu allreduce`: reduce gradient files and check every bit.

Owns: its arguments, what it prints and writes.  What is computed is the communicator's affair.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from importlib import resources
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from nicemu.commands import options
from nicemu.commands.console import DIFFERENT, count, progress, show_cores, show_rows
from nicemu.errors import ArgumentError

if TYPE_CHECKING:  # imported where used: help needs neither the core nor a reader
    from nicemu.collectives.collective import Result
    from nicemu.collectives.communicator import Communicator
    from nicemu.collectives.numerics import Report
    from nicemu.collectives.partials import Partial
    from nicemu.dtypes import Format
    from nicemu.gradients import Gradients
    from nicemu.ops.op import ReduceOp
    from nicemu.order import Order

__all__ = ["allreduce"]

TRUE_VALUE = {"sum": "sum", "avg": "mean", "max": "maximum", "min": "minimum", "prod": "product"}


@dataclass(frozen=True)
class _Difference:
    """The first element whose bits differ from the reference, and how many do."""

    array: str
    index: list[int]
    device: str
    reference: str
    elements: int


@dataclass(frozen=True)
class _Reduction:
    """One group of files, reduced and checked."""

    topology: str
    dtype: str
    files: list[str]
    arrays: int
    elements: int
    bytes_in: int
    result: Result
    devices: list[_DeviceUse]
    cores: list[_CoreUse]
    report: Report | None
    reference: str
    largest_error_ulp: float | None
    difference: _Difference | None
    output: str | None

    @property
    def frames(self) -> dict[str, int] | None:
        """What is told of the frames; None of hosts, whose frames carry no bytes here."""
        found = self.result.frames
        if found is None:
            return None
        return {
            "sent": found.sent,
            "lost": found.lost,
            "resent": found.resent,
            "duplicate": found.repeated + found.drops.get("duplicate", 0),
        }

    @property
    def order(self) -> Order | None:
        """Who merged whom; None where that differs from stretch to stretch, by ring."""
        orders = {share.order for share in self.result.shares}
        return orders.pop() if len(orders) == 1 else None

    @property
    def packets(self) -> int:
        """Payloads that the cores have merged, of workers and of devices."""
        return sum(c.packets for c in self.cores)

    @property
    def gb_per_s(self) -> float:
        """Input over host time."""
        return self.bytes_in / max(self.result.seconds, 1e-9) / 1e9

    def record(self) -> dict[str, Any]:
        """For --json."""
        return {
            "op": self.result.op,
            "preset": self.result.preset,
            "topology": self.topology,
            "algorithm": self.result.algorithm,
            "order": self.order,
            **{k: getattr(self, k) for k in ("dtype", "files", "arrays", "elements")},
            "bytes": self.bytes_in,
            "frames": self.frames,
            "virtual_seconds": self.result.time,
            "spent_seconds": self.result.spent,
            "least_seconds": self.result.bound,
            "host_seconds": self.result.seconds,
            "host_gb_per_s": self.gb_per_s,
            "devices": [asdict(d) for d in self.devices],
            "packets": self.packets if self.cores else None,
            "cores": [asdict(c) for c in self.cores],
            "partials": [_partial_record(p) for p in self.result.partials.values()],
            "reference": self.reference,
            "largest_error_ulp": _number(self.largest_error_ulp),
            "difference": asdict(self.difference) if self.difference else None,
            "output": self.output,
            "bits_equal": self.difference is None,
        }


@dataclass(frozen=True)
class _DeviceUse:
    """What the cores of a device did."""

    device: str
    workers: int
    instructions: int
    elements: int


@dataclass(frozen=True)
class _CoreUse:
    """What the cores of one number did, on all devices."""

    core: int
    packets: int
    instructions: int
    elements: int


def _partial_record(partial: Partial) -> dict[str, Any]:
    return {
        "device": partial.device,
        "workers": list(partial.contributors),
        "dtype": str(partial.dtype),
        "elements": int(partial.values.size),
        "virtual_seconds": partial.time,
    }


def _number(x: float | None) -> float | str | None:
    """JSON has no infinity."""
    return x if x is None or math.isfinite(x) else "inf"


@click.command()
@click.argument("files", nargs=-1, type=click.Path())
@click.option(
    "--op", default="sum", show_default=True, help="A built-in op, or FILE.py:NAME, one of yours."
)
@options.preset("--preset")
@click.option(
    "--topology", default="cards", show_default=True,
    help="Devices between the workers: star, cards, or tree(N) with N children each.",
)  # fmt: skip
@click.option(
    "--algorithm", default="in-network", show_default=True,
    help="Who adds: in-network the devices; ring or halving-doubling the workers' own NICs.",
)  # fmt: skip
@click.option(
    "--loss", type=float, default=0.0, show_default=True,
    help="Part of the frames that links lose, 0..1.",
)  # fmt: skip
@click.option("--seed", type=int, default=0, show_default=True, help="Of which frames are lost.")
@click.option("--partials", is_flag=True, help="Show every device's partial sums.")
@click.option("--time", "timed", is_flag=True, help="Links, devices and cores take their time.")
@click.option("--pcap", type=click.Path(), help="Write all frames to a capture file.")
@click.option(
    "--trace", type=click.Path(), help="Write a timeline for ui.perfetto.dev; with --time."
)
@click.option("-o", "--output", type=click.Path(), help="Result: .safetensors, .npz or .npy.")
@click.option("--dtype", help="Format of the elements; numpy stores bfloat16 without its name.")
@click.option(
    "--mtu", type=int, default=1024, show_default=True, help="Most payload bytes of a frame."
)
@options.json_flag
@click.pass_context
def allreduce(
    ctx: click.Context,
    files: tuple[str, ...],
    op: str,
    preset: str | None,
    topology: str,
    algorithm: str,
    loss: float,
    seed: int,
    partials: bool,
    timed: bool,
    pcap: str | None,
    trace: str | None,
    output: str | None,
    dtype: str | None,
    mtu: int,
    as_json: bool,
) -> None:
    """Reduce one gradient file per worker in a network of NICs and switches.

    FILES are .safetensors, .npz or .npy, or one directory of them; their order is the order of
    the workers. Without FILES it reduces the real gradients of eight workers that come with the
    package, in bfloat16 and then in float16. The result of every worker is compared, bit for bit,
    with an exact reference that shares no code with the cores; that of an op of yours with the same
    op run on the host, and of one in assembly with that of the first worker.
    """
    from nicemu.collectives.communicator import Communicator
    from nicemu.files import spare
    from nicemu.gradients import worker_files
    from nicemu.network.fabric import Fabric
    from nicemu.ops.opfile import find_op

    find = find_op(op)
    if files:
        groups = [worker_files(files)]
    else:
        shipped = resources.files("nicemu") / "data" / "gradients"
        groups = [worker_files([str(shipped / name)]) for name in ("bf16", "f16")]
        if output is not None:
            raise ArgumentError(f"-o {output}: needs FILES; without them nothing is written")
    if pcap is not None and algorithm != "in-network":
        raise ArgumentError(f"--pcap with {algorithm}: frames of hosts carry nothing: leave it out")
    for flag, written in (("--pcap", pcap), ("--trace", trace)):
        if written == "-":
            raise ArgumentError(f"{flag} '-': it goes to a file, not to standard output: name one")
        if written is not None:
            spare(chain(*groups), Path(written))
    if pcap is not None and trace is not None and Path(pcap).resolve() == Path(trace).resolve():
        raise ArgumentError(f"--pcap and --trace {trace!r}: name two files")
    done: list[_Reduction] = []
    with (
        Fabric(
            len(groups[0]),
            topology,
            mtu=mtu,
            seed=seed,
            loss=loss,
            capture=pcap,
            trace=trace,
            time="packet" if timed or trace is not None else None,
        ) as fabric,
        Communicator(fabric, algorithm=algorithm) as world,
    ):
        for group in groups:
            reduction = _reduce(
                world,
                group,
                find,
                preset,
                topology,
                seq=len(done),
                partials=partials,
                output=output,
                dtype=dtype,
            )
            done.append(reduction)
            if not as_json:
                _show(reduction)
    equal = all(r.difference is None for r in done)
    if as_json:
        record = {"bits_equal": equal, "runs": [r.record() for r in done]}
        click.echo(json.dumps(record, indent=2))
    else:
        against = {
            "exact": "reference",
            "host": f"those of {done[0].result.op} run on the host",
            "worker 0": f"those of worker 0 ({done[0].result.op} is assembly: only cores run it)",
        }[done[0].reference]
        click.echo(f"bits equal to {against}: {'yes' if equal else 'no'}")
    ctx.exit(0 if equal else DIFFERENT)


def _reduce(
    world: Communicator,
    paths: Sequence[Path],
    find: Callable[[Format], ReduceOp],
    preset: str | None,
    topology: str,
    *,
    seq: int,
    partials: bool,
    output: str | None,
    dtype: str | None,
) -> _Reduction:
    """Read, reduce, check, write."""
    from nicemu.collectives.expected import as_bits, expected, reference_of
    from nicemu.gradients import Output, read_group

    group = read_group(paths, dtype)
    fmt = group[0].format
    streams = [worker.stream for worker in group]
    op = find(fmt)
    gives = op.formats(fmt, preset).result
    if output is not None and gives.dtype != fmt.dtype:
        raise ArgumentError(f"-o {output}: {op.name} gives {gives}: only {fmt.name} can be written")
    with nullcontext() if output is None else Output(output, group) as target:
        before = _work(world)
        with progress(f"reducing {fmt.name}") as advance:
            world.fabric.watch = lambda: advance(*world.fabric.progress())
            # before the clock runs: it may take a second
            image = op.image(fmt, preset, world.fabric.machine)
            result = world.allreduce(streams, image, partials=partials)
            world.fabric.watch = None
        with progress("checking"):
            reference = reference_of(op, fmt)
            exact = reference == "exact"
            values = [as_bits(v) for v in result.values if v is not None]
            if reference == "nobody":
                reference, right = "worker 0", values[0]
            else:
                right = expected(op, fmt, image, world, result, streams, seq=seq)
            differences = (_difference(group[0], bits, right) for bits in values)
            difference = next((d for d in differences if d is not None), None)
            error = _error(op.name, fmt, streams, _distinct(values)) if exact else None
            report = result.numerics(streams) if partials and exact else None
        if target is not None and difference is None:
            kept = {"op": op.name, "preset": image.preset, "workers": str(len(group))}
            target.write(values[0].view(fmt.dtype), kept)
    work = {
        name: [
            (now[0] - was[0], now[1] - was[1]) for was, now in zip(before[name], cores, strict=True)
        ]
        for name, cores in _work(world).items()
    }
    merged = result.frames.merged if result.frames else ()
    return _Reduction(
        topology=topology,
        dtype=fmt.name,
        files=[str(worker.path) for worker in group],
        arrays=len(group[0].shapes),
        elements=streams[0].size,
        bytes_in=sum(stream.nbytes for stream in streams),
        result=result,
        devices=[
            _DeviceUse(name, len(world.fabric.devices[name].ranks), *_sums(cores))
            for name, cores in work.items()
            if merged
        ],
        cores=[
            _CoreUse(core, packets, *_sums([cores[core] for cores in work.values()]))
            for core, packets in enumerate(merged)
        ],
        report=report,
        reference=reference,
        largest_error_ulp=error,
        difference=difference,
        output=output if difference is None else None,
    )


def _error(op: str, fmt: Format, streams: Sequence[Any], results: Sequence[Any]) -> float:
    """The largest of several results, in ulp."""
    from nicemu.reference.error import true_error_ulp

    return max(true_error_ulp(op, fmt, streams, bits.view(fmt.bits_dtype)) for bits in results)


def _work(world: Communicator) -> dict[str, list[tuple[int, int]]]:
    """Device -> instructions and vector elements of each core until now."""
    return {
        name: [
            (counters.instructions, counters.elements)
            for counters in map(device.counters, range(device.nic.machine.cores))
        ]
        for name, device in world.fabric.devices.items()
    }


def _sums(work: Iterable[tuple[int, int]]) -> tuple[int, int]:
    """Instructions and elements in all."""
    instructions, elements = zip(*work, strict=True)
    return sum(instructions), sum(elements)


def _distinct(arrays: Sequence[Any]) -> list[Any]:
    """One of each: the ranks' results should all be equal."""
    import numpy as np

    found: list[Any] = []
    for array in arrays:
        if not any(np.array_equal(array, other) for other in found):
            found.append(array)
    return found


def _difference(layout: Gradients, bits: Any, reference: Any) -> _Difference | None:
    """Where the device and the reference part."""
    import numpy as np

    wrong = np.flatnonzero(bits != reference)
    if not wrong.size:
        return None
    first = at = int(wrong[0])
    for key, shape in layout.shapes.items():
        if at < math.prod(shape):
            return _Difference(
                array=key,
                index=[int(i) for i in np.unravel_index(at, shape)] if shape else [],
                device=f"0x{bits[first].tobytes()[::-1].hex()}",
                reference=f"0x{reference[first].tobytes()[::-1].hex()}",
                elements=int(wrong.size),
            )
        at -= math.prod(shape)
    raise AssertionError("the shapes add up to the stream")


def _show(reduction: _Reduction) -> None:
    r, result = reduction, reduction.result
    click.echo(
        f"{result.op} of {count(len(r.files), 'worker')}, {r.dtype}, {result.preset}: "
        f"{count(r.elements, 'element')} in {count(r.arrays, 'array')}"
    )
    if frames := r.frames:
        show_rows([f"frames {name}" for name in frames], [frames.values()])
    if result.partials:
        columns = ["device", "workers", "elements", "dtype", "first values", "at"]
        found = result.partials.values()
        at = ["-" if p.time is None else f"{p.time:.3g} s" for p in found]
        show_rows(columns, [(*p.row(), when) for p, when in zip(found, at, strict=True)])
    if r.report is not None:
        _show_levels(r.report)
    if result.spent is not None and result.time is not None:
        spent = {name: t for name, t in result.spent.items() if t}
        least = f" (least: {1e6 * result.bound:.2f} us)" if result.bound is not None else ""
        click.echo(f"time: {1e6 * result.time:.2f} us{least}, of which, in us:")
        show_rows(list(spent), [[f"{1e6 * t:.2f}" for t in spent.values()]])
    if r.devices:
        click.echo(f"cores of {count(len(r.devices), 'device')}:")
        show_cores(
            ["packets", "instructions", "elements"],
            [(c.packets, c.instructions, c.elements) for c in r.cores],
        )
        click.echo(f"packets: {r.packets:,}")
    click.echo(f"bytes: {r.bytes_in:,}")
    click.echo(f"host: {result.seconds:.3f} s, {r.gb_per_s:.3g} GB/s")
    if r.largest_error_ulp is not None:
        true = TRUE_VALUE[result.op]
        click.echo(f"largest error against the true {true}: {r.largest_error_ulp:.4g} ulp")
    if r.output is not None:
        click.echo(f"written: {r.output}")
    if d := r.difference:
        where = f"{d.array}{d.index}" if d.array else f"{d.index}"
        click.echo(
            f"first difference at {where}: device {d.device}, reference {d.reference}; "
            f"{d.elements:,} of {r.elements:,} elements differ, nothing is written"
        )


def _show_levels(report: Report) -> None:
    """Where precision went; errors in ulp of the result's format."""
    columns = ["level", "lost here", "share", "error", "largest", "inf", "NaN", "subnormal"]
    rows = []
    for level, share in zip(report.levels, report.shares(), strict=True):
        total = level.total
        rows.append(
            (level.name, f"{level.made.mean_ulp:.3g}", f"{share:.0%}", f"{total.mean_ulp:.3g}",
             f"{total.largest_ulp:.3g}", total.overflows, total.nans, total.subnormals)
        )  # fmt: skip
    show_rows(columns, rows)
