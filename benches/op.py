"""How long a reduce op of one's own takes from a Python function to an image that cores run.

Owns: the two promises on an author's time: a new op, where numba has compiled before in the
process; and one that is in the cache, in a fresh process, with neither numba nor llvmlite.
"""

from __future__ import annotations

import argparse
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from measure import console, host, save
from rich.table import Table

import nicemu

NEW_LIMIT, CACHED_LIMIT = 0.15, 0.01  # seconds that the project promises to stay below


def sums(scale: float) -> nicemu.ReduceOp:
    """A sum of elements times a factor."""

    @nicemu.reduce_op(element="bfloat16", accumulator="float32")
    def op(a: Any, b: Any) -> Any:
        return a + b

    op.lift(lambda x: x * scale)
    return op


def norm(scale: float) -> nicemu.ReduceOp:
    """A Euclidean norm."""

    @nicemu.reduce_op(element="bfloat16", accumulator="float32")
    def op(a: Any, b: Any) -> Any:
        return a + b

    op.lift(lambda x: x * x * scale)
    op.finish(lambda a: math.sqrt(a))
    return op


def soft(scale: float) -> nicemu.ReduceOp:
    """A maximum with exp and log."""

    @nicemu.reduce_op(element="float32")
    def op(a: Any, b: Any) -> Any:
        top = max(a, b) * scale
        return top + math.log(math.exp(a - top) + math.exp(b - top))

    return op


OPS: dict[str, Callable[[float], nicemu.ReduceOp]] = {"sum": sums, "norm": norm, "soft": soft}
CACHED = """
import sys, time, nicemu, op
nic, made = nicemu.Nic(), getattr(op, sys.argv[1])(1.25)
start = time.perf_counter()
nic.load(made.image())
print(time.perf_counter() - start, *{"numba", "llvmlite"} & set(sys.modules))
"""


def new(make: Callable[[float], nicemu.ReduceOp], scale: float, nic: nicemu.Nic) -> float:
    """Seconds from the function to the loaded image of an op that was not there before."""
    start = time.perf_counter()
    nic.load(make(scale).image())
    return time.perf_counter() - start


def cached(name: str) -> tuple[float, list[str]]:
    """The same for an op in the cache, in a fresh process, and the compilers loaded by it."""
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path]),
    }
    done = subprocess.run(
        [sys.executable, "-c", CACHED, OPS[name].__name__],
        capture_output=True, text=True, check=True, env=environment,
    )  # fmt: skip
    seconds, *compilers = done.stdout.split()
    return float(seconds), compilers


def main() -> int:
    """Measure and print; 0 when the promises are kept."""
    parser = argparse.ArgumentParser(description="from a Python function to a loaded image")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json", type=Path, help="write the results to this file as well")
    args = parser.parse_args()
    if args.rounds < 1:
        parser.error(f"--rounds {args.rounds}: use 1 or more")
    nic = nicemu.Nic()
    table = Table(
        title=f"from a function to a loaded image, wall milliseconds of {args.rounds} rounds"
    )
    for column in ("op", "new: median", "least", "cached: median", "least", "compilers loaded"):
        table.add_column(column, justify="left" if column == "op" else "right")
    results: dict[str, Any] = {}
    kept = True
    with tempfile.TemporaryDirectory(prefix="nicemu-op-") as cache:
        os.environ["NICEMU_CACHE_DIR"] = cache
        for name, make in OPS.items():
            new(make, 1.25, nic)  # numba is warm, and this one in the cache
            fresh = [new(make, 2.0 + i, nic) for i in range(args.rounds)]
            again = [cached(name) for _ in range(args.rounds)]
            times = [seconds for seconds, _ in again]
            compilers = sorted({module for _, found in again for module in found})
            kept &= median(fresh) < NEW_LIMIT and median(times) < CACHED_LIMIT and not compilers
            cells = (median(fresh), min(fresh), median(times), min(times))
            table.add_row(name, *(f"{1e3 * x:.1f}" for x in cells), ", ".join(compilers) or "none")
            results[name] = {"new": fresh, "cached": times, "compilers": compilers}
    console.print(table)
    for key, value in host().items():
        console.print(f"{key}: {value}", highlight=False)
    promise = f"new under {NEW_LIMIT} s, cached under {CACHED_LIMIT} s without compilers"
    console.print(f"{promise}: {'yes' if kept else 'NO'}", highlight=False)
    if args.json:
        save(args.json, {"host": host(), "ops": results, "kept": kept})
    return int(not kept)


if __name__ == "__main__":
    sys.exit(main())
