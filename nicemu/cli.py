"""The command `nicemu`: allreduce, run, disasm, guide.

Owns: arguments, progress, tables, JSON, exit codes (guide/errors.md).  Everything it prints is
computed below.  The only module that imports click and rich.
"""

from __future__ import annotations

import errno
import json
import math
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import asdict, dataclass
from importlib import resources
from io import FileIO
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click
from rich.console import Console
from rich.table import Table

from nicemu import __version__
from nicemu.errors import ArgumentError, FileFormatError, ImageError, NicemuError
from nicemu.image import PRESETS, KernelImage
from nicemu.machine import MACHINES
from nicemu.reference.arithmetic import OPS

if TYPE_CHECKING:  # imported where used: help and guide need neither the core nor a reader
    from nicemu._core import Cores
    from nicemu.bare import Outcome
    from nicemu.collective import Result
    from nicemu.communicator import Communicator
    from nicemu.gradients import Gradients
    from nicemu.numerics import Report
    from nicemu.partials import Partial

__all__ = ["main"]

DIFFERENT, UNUSABLE, INTERRUPTED = 1, 2, 130  # exit codes
MOST_EXIT = 125  # of a guest: what shells leave to programs
TRUE_VALUE = {"sum": "sum", "avg": "mean", "max": "maximum", "min": "minimum", "prod": "product"}
SIZES = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


class _Group(click.Group):
    """Commands whose errors are one line on stderr and an exit code."""

    def make_context(self, *args: Any, **kwargs: Any) -> click.Context:
        for name in ("stdout", "stderr"):
            if getattr(sys, name) is None:  # it is closed, and its number free for any other file
                nowhere = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115
                setattr(sys, name, nowhere)
        with _one_line():  # --help and --version print here
            return super().make_context(*args, **kwargs)

    def invoke(self, ctx: click.Context) -> Any:
        with _one_line():
            return super().invoke(ctx)


@contextmanager
def _one_line() -> Iterator[None]:
    try:
        yield
    except NicemuError as e:
        _fail(str(e), UNUSABLE)
    except OSError as e:
        if e.errno == errno.EPIPE:  # `| head`: click ends it quietly
            raise
        _fail(f"{e.strerror or e}: {e.filename or 'standard output'}", UNUSABLE)
    except MemoryError as e:
        _fail(f"the host has no memory left ({e}): use smaller inputs", UNUSABLE)
    except KeyboardInterrupt:
        _fail("interrupted", INTERRUPTED)


def _fail(message: str, code: int) -> NoReturn:
    click.echo(f"nicemu: {' '.join(message.split())}", err=True)
    raise click.exceptions.Exit(code)


def _bytes(text: str) -> int:
    """A size: bytes, or K, M or G for powers of 1024."""
    digits = text.rstrip("KMG")
    unit = SIZES.get(text[len(digits) :])
    if unit is None or not (digits.isascii() and digits.isdigit()):
        raise ArgumentError(f"memory {text!r} is no size: use e.g. 65536, 64K, 256M or 1G")
    return int(digits) * unit


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, message="nicemu %(version)s")
def main() -> None:
    """Emulate a SmartNIC whose eight RISC-V cores reduce FP16/BF16 gradients, to the bit."""


def _console() -> Console:
    """Standard output; 80 columns when it is no terminal.  Tables fold what does not fit."""
    return Console(highlight=False, markup=False)


# ---- allreduce -------------------------------------------------------------------------------


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
    largest_error_ulp: float
    difference: _Difference | None
    output: str | None

    @property
    def frames(self) -> dict[str, int]:
        """What is told of the frames."""
        found = self.result.frames
        assert found is not None
        return {
            "sent": found.sent,
            "lost": found.lost,
            "resent": found.resent,
            "duplicate": found.repeated + found.drops.get("duplicate", 0),
        }

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
            "order": self.result.order,
            **{k: getattr(self, k) for k in ("dtype", "files", "arrays", "elements")},
            "bytes": self.bytes_in,
            "frames": self.frames,
            "virtual_seconds": self.result.time,
            "host_seconds": self.result.seconds,
            "host_gb_per_s": self.gb_per_s,
            "devices": [asdict(d) for d in self.devices],
            "packets": self.packets,
            "cores": [asdict(c) for c in self.cores],
            "partials": [_partial_record(p) for p in self.result.partials.values()],
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


def _number(x: float) -> float | str:
    """JSON has no infinity."""
    return x if math.isfinite(x) else "inf"


@main.command()
@click.argument("files", nargs=-1, type=click.Path())
@click.option("--op", type=click.Choice(list(OPS)), default="sum", show_default=True)
@click.option(
    "--preset", type=click.Choice(list(PRESETS)), default="wide", show_default=True,
    help="Where it rounds: once, at every hop, or at every addition.",
)  # fmt: skip
@click.option(
    "--topology", default="cards", show_default=True,
    help="Devices between the workers: star, cards, or tree(N) with N children each.",
)  # fmt: skip
@click.option(
    "--loss", type=float, default=0.0, show_default=True,
    help="Part of the frames that links lose, 0..1.",
)  # fmt: skip
@click.option("--seed", type=int, default=0, show_default=True, help="Of which frames are lost.")
@click.option("--partials", is_flag=True, help="Show every device's partial sums.")
@click.option("--pcap", type=click.Path(), help="Write all frames to a capture file.")
@click.option("-o", "--output", type=click.Path(), help="Result: .safetensors, .npz or .npy.")
@click.option("--dtype", help="Format of the elements; numpy stores bfloat16 without its name.")
@click.option(
    "--mtu", type=int, default=1024, show_default=True, help="Most payload bytes of a frame."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.pass_context
def allreduce(
    ctx: click.Context,
    files: tuple[str, ...],
    op: str,
    preset: str,
    topology: str,
    loss: float,
    seed: int,
    partials: bool,
    pcap: str | None,
    output: str | None,
    dtype: str | None,
    mtu: int,
    as_json: bool,
) -> None:
    """Reduce one gradient file per worker in a network of NICs and switches.

    FILES are .safetensors, .npz or .npy, or one directory of them; their order is the order of
    the workers. Without FILES it reduces the real gradients of eight workers that come with the
    package, in bfloat16 and then in float16. The result of every worker is compared, bit for bit,
    with an exact reference that shares no code with the cores.
    """
    from nicemu.communicator import Communicator
    from nicemu.fabric import Fabric
    from nicemu.files import spare
    from nicemu.gradients import worker_files

    if files:
        groups = [worker_files(files)]
    else:
        shipped = resources.files("nicemu") / "data" / "gradients"
        groups = [worker_files([str(shipped / name)]) for name in ("bf16", "f16")]
        if output is not None:
            raise ArgumentError(f"-o {output}: needs FILES; without them nothing is written")
    if pcap is not None:
        spare(chain(*groups), Path(pcap))
    done = []
    with (
        Fabric(len(groups[0]), topology, mtu=mtu, seed=seed, loss=loss, capture=pcap) as fabric,
        Communicator(fabric, algorithm="in-network") as world,
    ):
        for group in groups:
            reduction = _reduce(
                world, group, op, preset, topology, partials=partials, output=output, dtype=dtype
            )
            done.append(reduction)
            if not as_json:
                _show(reduction)
    equal = all(r.difference is None for r in done)
    if as_json:
        record = {"bits_equal": equal, "runs": [r.record() for r in done]}
        click.echo(json.dumps(record, indent=2))
    else:
        click.echo(f"bits equal to reference: {'yes' if equal else 'no'}")
    ctx.exit(0 if equal else DIFFERENT)


def _reduce(
    world: Communicator,
    paths: Sequence[Path],
    op: str,
    preset: str,
    topology: str,
    *,
    partials: bool,
    output: str | None,
    dtype: str | None,
) -> _Reduction:
    """Read, reduce, check, write."""
    from nicemu.builtin import kernel
    from nicemu.gradients import Output, read_group
    from nicemu.reference.error import true_error_ulp
    from nicemu.reference.tree import reduce_tree

    group = read_group(paths, dtype)
    fmt = group[0].format
    streams = [worker.stream for worker in group]
    with nullcontext() if output is None else Output(output, group) as target:
        before = _work(world)
        with _progress(f"reducing {fmt.name}") as advance:
            world.fabric.watch = lambda: advance(*world.fabric.progress())
            image = kernel(op, fmt.dtype, preset)  # before the clock runs: it may take a second
            result = world.allreduce(streams, image, partials=partials)
            world.fabric.watch = None
        with _progress("checking"):
            tree = reduce_tree(op, fmt, result.order, streams, preset)
            values = [v.view(fmt.bits_dtype) for v in result.values if v is not None]
            differences = (_difference(group[0], bits, tree.result) for bits in values)
            difference = next((d for d in differences if d is not None), None)
            error = max(true_error_ulp(op, fmt, streams, bits) for bits in _distinct(values))
            report = result.numerics(streams) if partials else None
        if target is not None and difference is None:
            kept = {"op": op, "preset": preset, "workers": str(len(group))}
            target.write(values[0].view(fmt.dtype), kept)
    work = {
        name: [
            (now[0] - was[0], now[1] - was[1]) for was, now in zip(before[name], cores, strict=True)
        ]
        for name, cores in _work(world).items()
    }
    assert result.frames is not None
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
        ],
        cores=[
            _CoreUse(core, packets, *_sums([cores[core] for cores in work.values()]))
            for core, packets in enumerate(result.frames.merged)
        ],
        report=report,
        largest_error_ulp=error,
        difference=difference,
        output=output if difference is None else None,
    )


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


@contextmanager
def _progress(what: str) -> Iterator[Callable[[int, int], None]]:
    """A bar on stderr, when that is a terminal; it moves, or shows how much is done when told."""
    from rich.progress import Progress

    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(what, total=None)

        def advance(done: int, total: int) -> None:
            if total:  # else nothing is in flight any more
                bar.update(task, completed=done, total=total)

        yield advance


def _difference(layout: Gradients, bits: Any, reference: Any) -> _Difference | None:
    """Where the device and the reference part."""
    import numpy as np

    wrong = np.flatnonzero(bits != reference)
    if not wrong.size:
        return None
    first = at = int(wrong[0])
    digits = 2 + 2 * bits.itemsize
    for key, shape in layout.shapes.items():
        if at < math.prod(shape):
            return _Difference(
                array=key,
                index=[int(i) for i in np.unravel_index(at, shape)] if shape else [],
                device=f"{int(bits[first]):#0{digits}x}",
                reference=f"{int(reference[first]):#0{digits}x}",
                elements=int(wrong.size),
            )
        at -= math.prod(shape)
    raise AssertionError("the shapes add up to the stream")


def _show(reduction: _Reduction) -> None:
    r, result = reduction, reduction.result
    click.echo(
        f"{result.op} of {_count(len(r.files), 'worker')}, {r.dtype}, {result.preset}: "
        f"{_count(r.elements, 'element')} in {_count(r.arrays, 'array')}"
    )
    _show_rows([f"frames {name}" for name in r.frames], [r.frames.values()])
    if r.report is not None:
        columns = ["device", "workers", "elements", "dtype", "first values", "at"]
        _show_rows(columns, [(*p.row(), f"{p.time:.3g} s") for p in result.partials.values()])
        _show_levels(r.report)
    click.echo(f"cores of {_count(len(r.devices), 'device')}:")
    _show_cores(
        ["packets", "instructions", "elements"],
        [(c.packets, c.instructions, c.elements) for c in r.cores],
    )
    click.echo(f"packets: {r.packets:,}")
    click.echo(f"bytes: {r.bytes_in:,}")
    click.echo(f"host: {result.seconds:.3f} s, {r.gb_per_s:.3g} GB/s")
    true = TRUE_VALUE.get(result.op, result.op)
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
    _show_rows(columns, rows)


def _count(n: int, noun: str) -> str:
    return f"{n:,} {noun}" if n == 1 else f"{n:,} {noun}s"


def _show_rows(columns: Sequence[str], rows: Iterable[Iterable[object]]) -> None:
    table = Table()
    for name in columns:
        table.add_column(name, justify="right", overflow="fold")
    for row in rows:
        table.add_row(*(f"{cell:,}" if isinstance(cell, int) else str(cell) for cell in row))
    _console().print(table)


def _show_cores(columns: Sequence[str], rows: Sequence[Sequence[int]]) -> None:
    """One line per core, and their total."""
    table = Table(show_footer=len(rows) > 1)
    table.add_column("core", footer="all", justify="right", overflow="fold")
    for name, cells in zip(columns, zip(*rows, strict=True), strict=True):
        table.add_column(name, footer=f"{sum(cells):,}", justify="right", overflow="fold")
    for core, row in enumerate(rows):
        table.add_row(str(core), *(f"{n:,}" for n in row))
    _console().print(table)


# ---- run -------------------------------------------------------------------------------------


@main.command()
@click.argument("file", type=click.Path())
@click.option("--cores", type=int, default=1, show_default=True, help="1..64.")
@click.option("--vlen", type=int, help="128, 256, 512 or 1024; 512 unless a machine has others.")
@click.option("--memory", default="256M", show_default=True, help="Bytes of RAM.")
@click.option("--isa", help="Extensions that are on, e.g. rv64imac_zicsr; all unless given.")
@click.option("--machine", type=click.Choice(list(MACHINES)), help="Count cycles, as on its cores.")
@click.option(
    "--budget", type=int, default=10**10, show_default=True,
    help="Most instructions + vector elements of each core.",
)  # fmt: skip
@click.option("--log", type=click.Path(), help="What each instruction commits; - is stdout.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.pass_context
def run(
    ctx: click.Context,
    file: str,
    cores: int,
    vlen: int | None,
    memory: str,
    isa: str | None,
    machine: str | None,
    budget: int,
    log: str | None,
    as_json: bool,
) -> None:
    """Run a bare-metal RV64 program until it exits through tohost.

    All cores start at the entry in M-mode. The exit status is the program's, at most 125.
    """
    from nicemu import bare
    from nicemu.elf import load_elf

    printed = bytearray()  # for --json everything, else the last byte
    out = sys.stdout.buffer

    def write(data: bytes) -> None:
        if not as_json:
            out.write(data)
            if data == b"\n":
                out.flush()
            printed.clear()
        printed.extend(data)

    if log == "-" and as_json:
        raise ArgumentError("log '-' and --json both write to standard output: name a file")
    elf = load_elf(file)
    try:
        with _log(log, file) as lines:
            outcome = bare.run(
                elf,
                write,
                cores=cores,
                vlen=vlen,
                memory=_bytes(memory),
                budget=budget,
                isa=isa,
                log=lines,
                machine=MACHINES[machine] if machine else None,
            )
    finally:
        out.flush()
    if as_json:
        record = {
            "exit_code": outcome.exit_code,
            "host_seconds": outcome.seconds,
            "output": printed.decode("utf-8", "backslashreplace"),
            "cores": [asdict(c) for c in outcome.counters],
        }
        if outcome.cycles is not None:
            record["cycles"] = [asdict(c) for c in outcome.cycles]
        click.echo(json.dumps(record, indent=2))
    else:
        if printed and printed[-1] != ord("\n"):
            click.echo()
        _show_outcome(outcome)
    ctx.exit(min(outcome.exit_code, MOST_EXIT))


@contextmanager
def _log(path: str | None, program: str) -> Iterator[Callable[[bytes], object] | None]:
    """What takes the lines of a log: a file, `-` for standard output, None for nobody.

    The file is opened when there is something to write, after all arguments have been checked.
    """
    if path is None:
        yield None
        return
    if path == "-":
        yield sys.stdout.buffer.write
        return
    if Path(path).exists() and Path(path).samefile(program):
        raise ArgumentError(f"log {path!r} is the program itself: name another file")
    with ExitStack() as stack:
        opened: list[FileIO] = []

        def write(lines: bytes) -> None:
            try:
                if not opened:
                    opened.append(stack.enter_context(Path(path).open("wb", buffering=0)))
                rest = memoryview(lines)  # the lines come by the thousand
                while rest:
                    rest = rest[opened[0].write(rest) :]
            except OSError as e:
                raise FileFormatError(
                    f"{path}: the log cannot be written: {e.strerror}: name a writable place"
                ) from e

        yield write
        write(b"")  # of a run without a line


def _show_outcome(outcome: Outcome) -> None:
    _show_cores(
        ["instructions", "elements", "bytes loaded", "bytes stored"],
        [
            [
                c.instructions,
                c.elements,
                c.load_bytes + c.vector_load_bytes,
                c.store_bytes + c.vector_store_bytes,
            ]
            for c in outcome.counters
        ],
    )
    if outcome.cycles is not None:
        rows = [[c.total, *c.terms.values()] for c in outcome.cycles]
        _show_cores(["cycles", *outcome.cycles[0].terms], rows)
    rate = sum(c.instructions for c in outcome.counters) / max(outcome.seconds, 1e-9) / 1e6
    click.echo(f"host: {outcome.seconds:.3f} s, {rate:.1f} million instructions/s")
    click.echo(f"exit status: {outcome.exit_code}")


# ---- disasm ----------------------------------------------------------------------------------


@main.command()
@click.argument("file", type=click.Path())
def disasm(file: str) -> None:
    """Print the code of an ELF executable or a kernel image as instructions."""
    from nicemu._core import Cores

    code, labels = _code_of(Path(file))
    cores = Cores()
    for address, data in code:
        for line in _lines(cores, address, data, labels):
            click.echo(line)


def _code_of(path: Path) -> tuple[list[tuple[int, bytes]], dict[int, list[str]]]:
    """Stretches of code by address, and names of addresses."""
    from nicemu.elf import is_elf, parse_elf, read_file

    data = read_file(path)
    labels: dict[int, list[str]] = {}
    if is_elf(data):
        elf = parse_elf(data, str(path))
        for name, address in elf.symbols.items():
            if not name.startswith((".L", "$")):  # the assembler's own
                labels.setdefault(address, []).append(name)
        return [(address, bytes(code)) for address, code in elf.code], labels
    try:
        image = KernelImage.from_bytes(data)
    except ImageError as e:
        raise FileFormatError(f"{path}: is no ELF file, and no kernel image either: {e}") from e
    for name, offset in image.entries.items():
        labels.setdefault(offset, []).append(name)
    return [(0, image.code)], labels


def _lines(cores: Cores, address: int, data: bytes, labels: dict[int, list[str]]) -> Iterator[str]:
    at = 0
    while at < len(data):
        pc = address + at
        for name in labels.get(pc, ()):
            yield f"{name}:"
        word = int.from_bytes(data[at : at + 4], "little")
        text, size = cores.disasm(word, pc)
        if at + size > len(data):  # half an instruction at the end
            size = len(data) - at
            text = f".byte {', '.join(f'{b:#04x}' for b in data[at:])}"
        encoding = f"{word & ((1 << 8 * size) - 1):0{2 * size}x}"
        yield f"{pc:>12x}:  {encoding:<8}  {text}"
        at += size


# ---- guide -----------------------------------------------------------------------------------


@main.command()
@click.argument("topic", default="index")
def guide(topic: str) -> None:
    """Show the documentation of a TOPIC; without one, what topics there are."""
    folder = resources.files("nicemu") / "guide"
    topics = sorted(p.name[:-3] for p in folder.iterdir() if p.name.endswith(".md"))
    if topic not in topics:
        raise ArgumentError(f"topic {topic!r} is unknown: use one of {', '.join(topics)}")
    text = (folder / f"{topic}.md").read_text(encoding="utf-8")
    if not sys.stdout.isatty():
        click.echo(text.rstrip("\n"))
        return
    from rich.markdown import Markdown

    Console().print(Markdown(text))
