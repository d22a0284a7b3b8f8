"""The main job: N streams of bf16 or f16 reduced into one, beside torch and hand-written host code.

What: ``Nic.reduce`` with the built-in sum (f32 accumulator, one rounding) on one host thread and on
all; the whole path, from hosts over links through frames and slots to the cores of one device and
back (``Communicator.reduce``, MTU 4096, clean links, one thread), without and with ICRC; the same
by hand in AVX2 (``benches/reduce.c``) and in plain numpy; and torch ``add_`` into the first
stream's copy, which rounds at every step and is what frameworks do on a host.

How: GB/s = bytes of all input streams / time, into an array that exists already.  Time is CPU time
for one thread and wall time for several, medians of interleaved rounds; a sample is the fastest of
three runs, as what else the host does only ever slows one down.  A ratio is the median of the
rounds' own ratios to torch ``add_`` on one thread, with the lowest and highest in parentheses.
Before timing, every bit that claims to be rounded once is compared with ``nicemu.reference``.

    python benches/reduce.py                                      # 4 x 64 MiB of bf16
    python benches/reduce.py --streams 8 --mib 16 --dtype f16 --json reduce.json
"""

from __future__ import annotations

import argparse
import ctypes
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from measure import console, host, interleaved, ratio, save, version
from rich.table import Table

import nicemu
from nicemu.dtypes import Format, format_of
from nicemu.reference.tree import reduce_streams

SOURCE = Path(__file__).with_suffix(".c")
PAST_CACHE = 4 << 20  # bytes of result from which hand-written stores bypass the cache
BLOCK = 32768  # elements: plain numpy works in pieces that stay in the cache
YARDSTICK = "torch add_ 1T"
TRIES = 3  # of a sample, the fastest of which counts

Array = np.ndarray


@dataclass(frozen=True)
class Job:
    """A way to reduce the streams.

    Attributes:
        go: reduces once and returns the result.
        threads: that it uses.
        once: does it round once, so that its bits must be the reference's?
        events: how many events of virtual time there have been.
    """

    go: Callable[[], Array]
    threads: int
    once: bool = True
    events: Callable[[], int] | None = None


def make_streams(streams: int, count: int, row: Format, seed: int = 1) -> list[Array]:
    """Gaussian values of one element format, 64-byte aligned, shape (count,) each."""
    base = np.random.default_rng(seed).standard_normal(min(count, 1 << 20), np.float32)
    out = []
    for i in range(streams):
        stream = aligned(count, row)
        stream[:] = np.resize(np.roll(base, 17 * i).astype(row.dtype), count)
        out.append(stream)
    return out


def aligned(count: int, row: Format) -> Array:
    """An array of shape (count,) at a 64-byte boundary, its pages touched."""
    raw = np.zeros(count * row.size + 64, np.uint8)
    raw[:] = 0
    start = -raw.ctypes.data % 64
    values: Array = raw[start : start + count * row.size].view(row.dtype)
    return values


# ---- the ways --------------------------------------------------------------------------------


def device_jobs(streams: list[Array], row: Format, threads: list[int]) -> dict[str, Job]:
    """The emulated device."""

    def one(n: int) -> Job:
        nic = nicemu.Nic(threads=n)
        nic.load(nicemu.kernel("sum", row))
        result = aligned(streams[0].size, row)
        return Job(lambda: nic.reduce(streams, out=result).values, n)

    return {f"nicemu {n}T": one(n) for n in threads}


def network_jobs(streams: list[Array], row: Format) -> dict[str, Job]:
    """The streams are those of hosts behind one device, and worker 0 gets the result."""

    def one(icrc: bool) -> Job:
        fabric = nicemu.Fabric(len(streams), "star", mtu=4096, icrc=icrc)
        world = nicemu.Communicator(fabric, algorithm="in-network")
        out = [aligned(streams[0].size, row)] * len(streams)

        def go() -> Array:
            world.reduce(streams, root=0, out=out)
            return out[0]

        return Job(go, 1, events=lambda: fabric.counters().events)

    return {"whole path 1T": one(icrc=False), "whole path, ICRC 1T": one(icrc=True)}


def torch_jobs(streams: list[Array], row: Format, threads: list[int]) -> dict[str, Job]:
    """torch ``add_``, in the element's own precision."""
    try:
        import torch
    except ImportError:
        console.print("torch is not installed: no ratios to torch add_ ('pip install torch')")
        return {}
    kind = getattr(torch, row.name)
    tensors = [torch.from_numpy(s.view(np.int16)).view(kind) for s in streams]
    result = aligned(streams[0].size, row)
    out = torch.from_numpy(result.view(np.int16)).view(kind)

    def go(n: int) -> Array:
        torch.set_num_threads(n)
        out.copy_(tensors[0])
        for t in tensors[1:]:
            out.add_(t)
        return result

    return {f"torch add_ {n}T": Job(partial(go, n), n, once=False) for n in threads}


def hand_jobs(
    streams: list[Array], row: Format, threads: list[int], folder: Path
) -> dict[str, Job]:
    """The loop of reduce.c, compiled here."""
    compiler = shutil.which("cc")
    library = folder / "reduce.so"
    flags = ["-O3", "-mavx2", "-mf16c", "-mfma", "-shared", "-fPIC"]
    if (
        not compiler
        or subprocess.run(
            [compiler, *flags, str(SOURCE), "-o", str(library)], capture_output=True
        ).returncode
    ):
        console.print("no C compiler (cc) with AVX2 intrinsics: no hand-written loop")
        return {}
    function = getattr(ctypes.CDLL(str(library)), f"reduce_{row.name}")
    result = aligned(streams[0].size, row)
    inputs = (ctypes.c_void_p * len(streams))(*[s.ctypes.data for s in streams])
    past_cache = int(result.nbytes >= PAST_CACHE)

    def part(start: int, end: int) -> None:
        function(
            ctypes.c_void_p(result.ctypes.data),
            inputs,
            len(streams),
            ctypes.c_size_t(start),
            ctypes.c_size_t(end),
            past_cache,
        )

    def one(n: int) -> Job:
        pool = ThreadPoolExecutor(n)  # ctypes lets go of the interpreter lock
        edges = [result.size // 32 * i // n * 32 for i in range(n + 1)]

        def go() -> Array:
            list(pool.map(part, edges, edges[1:]))
            return result

        return Job(go, n)

    return {f"hand-written AVX2 {n}T": one(n) for n in threads}


def numpy_job(streams: list[Array], row: Format) -> Job:
    """f32 accumulation in blocks, with ml_dtypes' conversions for bf16."""
    result = aligned(streams[0].size, row)

    def go() -> Array:
        for start in range(0, result.size, BLOCK):
            part = slice(start, start + BLOCK)
            total = streams[0][part].astype(np.float32)
            for stream in streams[1:]:
                total += stream[part].astype(np.float32)
            result[part] = total
        return result

    return Job(go, 1)


# ---- measuring -------------------------------------------------------------------------------


def timed(job: Job) -> float:
    """Seconds of the fastest of some runs: CPU time of one thread, wall time of several."""
    clock = time.process_time if job.threads == 1 else time.perf_counter

    def once() -> float:
        start = clock()
        job.go()
        return clock() - start

    return min(once() for _ in range(TRIES))


@dataclass(frozen=True)
class Row:
    """What one way reached; ``differs`` counts elements that are not the reference's bits."""

    name: str
    gb_per_s: float
    ratios: list[float]
    differs: int
    million_events_per_s: float | None


def main() -> int:
    """Check, measure, print; 0 when all bits that must be right are."""
    parser = argparse.ArgumentParser(description="N streams into one: GB/s of input")
    parser.add_argument("--streams", type=int, default=4)
    parser.add_argument("--mib", type=float, default=64, help="MiB of each stream")
    parser.add_argument("--dtype", choices=["bf16", "f16"], default="bf16")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", type=Path, help="write the results to this file as well")
    args = parser.parse_args()
    row = format_of(args.dtype)
    count = int(args.mib * (1 << 20)) // row.size // 32 * 32
    if args.streams < 1 or count < 32 or args.rounds < 1:
        parser.error("use at least one stream, 64 bytes and one round")
    threads = sorted({1, len(os.sched_getaffinity(0))})
    streams = make_streams(args.streams, count, row)
    wanted = reduce_streams("sum", row, streams)

    with tempfile.TemporaryDirectory(prefix="nicemu-reduce-") as folder:
        jobs = device_jobs(streams, row, threads)
        jobs |= network_jobs(streams, row)
        jobs |= torch_jobs(streams, row, threads)
        jobs |= hand_jobs(streams, row, threads, Path(folder))
        jobs["numpy, ml_dtypes 1T"] = numpy_job(streams, row)
        differs = {
            name: int((job.go().view(row.bits_dtype) != wanted).sum()) for name, job in jobs.items()
        }
        events = {name: job.events() for name, job in jobs.items() if job.events}
        samples = interleaved(
            {name: partial(timed, job) for name, job in jobs.items()}, args.rounds, "reduce"
        )

    size = args.streams * count * row.size
    title = f"{args.streams} x {args.mib:g} MiB of {row.name} into one; {args.rounds} rounds"
    table = Table(title=title)
    table.add_column("way")
    for column in ("GB/s of input", f"ratio to {YARDSTICK}", "bits", "M events/s"):
        table.add_column(column, justify="right")
    rows = []
    for name, seconds in samples.items():
        speed = size / median(seconds) / 1e9
        to_torch = ratio(seconds, samples[YARDSTICK]) if YARDSTICK in samples else None
        bits = "exact" if not differs[name] else f"{differs[name] / count:.1%} differ"
        if differs[name] and not jobs[name].once:
            bits += " (rounds every step)"
        pace = events[name] / median(seconds) / 1e6 if name in events else None
        shown = "-" if pace is None else f"{pace:.2f}"
        table.add_row(name, f"{speed:.2f}", str(to_torch or "-"), bits, shown)
        ratios = list(asdict(to_torch).values()) if to_torch else []
        rows.append(Row(name, speed, ratios, differs[name], pace))
    about: dict[str, Any] = {**host(), "compiler": version(["cc", "--version"])}
    console.print(table)
    for key, value in about.items():
        console.print(f"{key}: {value}", highlight=False)
    if args.json:
        save(args.json, {"host": about, "title": title, "rows": [asdict(r) for r in rows]})
    wrong = [name for name, job in jobs.items() if job.once and differs[name]]
    for name in wrong:
        console.print(f"{name}: {differs[name]} elements are wrong", highlight=False)
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
