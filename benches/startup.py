"""What it costs to have nicemu: the time of its import, and of a second ``nicemu allreduce``.

What: ``import nicemu`` with a ``Nic`` and a kernel image at hand, beside ``import numpy`` alone;
which heavy modules that has loaded (there should be none of them); and the command line, first with
an empty kernel cache, then again, when nothing is compiled any more.

How: fresh processes, wall time, interleaved; the added time is the median over rounds of the
difference to numpy in the same round.

    python benches/startup.py
    python benches/startup.py --rounds 20 --json startup.json
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from statistics import median

from measure import console, host, interleaved, save
from rich.table import Table

import nicemu

HEAVY = ("llvmlite", "numba", "torch", "rich", "click", "safetensors", "elftools")
ADDED_LIMIT, AGAIN_LIMIT = 0.15, 3.0  # seconds that the project promises to stay below

IMPORTS = {
    "python": "pass",
    "import numpy": "import numpy",
    "import nicemu": "import nicemu",
    "import nicemu, Nic()": "import nicemu; nicemu.Nic()",
}


def seconds(command: list[str], environment: dict[str, str] | None = None) -> float:
    """Wall seconds of a process that must succeed."""
    start = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    spent = time.perf_counter() - start
    if done.returncode:
        raise SystemExit(f"startup: {' '.join(command)} failed:\n{done.stderr}")
    return spent


def loaded() -> list[str]:
    """Heavy modules that are loaded once a device with a cached image is there."""
    nicemu.kernel("sum", "bfloat16")  # so that it is in the cache
    code = (
        "import sys, nicemu; nic = nicemu.Nic(); nic.load(nicemu.kernel('sum', 'bfloat16'));"
        f"print(*[m for m in {HEAVY!r} if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.split()


def allreduce(rounds: int) -> tuple[float, list[float]]:
    """Seconds of ``nicemu allreduce`` with an empty kernel cache, then of each run after it.

    Without arguments it reduces the gradients that come with the package, in bf16 and in f16.
    """
    command = [sys.executable, "-c", "from nicemu.cli import main; main()", "allreduce"]
    with tempfile.TemporaryDirectory(prefix="nicemu-startup-") as cache:
        environment = {**os.environ, "NICEMU_CACHE_DIR": cache}
        first = seconds(command, environment)
        return first, [seconds(command, environment) for _ in range(rounds)]


def main() -> int:
    """Measure and print; 0 when the limits are kept."""
    parser = argparse.ArgumentParser(description="cost of importing and starting nicemu")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", type=Path, help="write the results to this file as well")
    args = parser.parse_args()
    if args.rounds < 1:
        parser.error(f"--rounds {args.rounds}: use 1 or more")

    commands = {name: [sys.executable, "-c", code] for name, code in IMPORTS.items()}
    for command in commands.values():  # bytecode and page caches are warm in every round
        seconds(command)
    samples = interleaved(
        {name: partial(seconds, command) for name, command in commands.items()},
        args.rounds,
        "imports",
    )
    added = {
        name: median(a - b for a, b in zip(spent, samples["import numpy"], strict=True))
        for name, spent in samples.items()
    }
    heavy = loaded()
    first, again = allreduce(max(3, args.rounds // 3))

    table = Table(title=f"fresh processes, wall seconds, medians of {args.rounds} rounds")
    table.add_column("process")
    table.add_column("seconds", justify="right")
    table.add_column("over import numpy", justify="right")
    for name, spent in samples.items():
        table.add_row(name, f"{median(spent):.3f}", f"{added[name]:+.3f}")
    table.add_row("nicemu allreduce, kernels compiled", f"{first:.3f}", "")
    table.add_row("nicemu allreduce again", f"{median(again):.3f}", "")
    console.print(table)
    console.print(f"heavy modules loaded by a Nic with a cached kernel: {heavy or 'none'}")
    for key, value in host().items():
        console.print(f"{key}: {value}", highlight=False)
    kept = {
        f"import adds under {ADDED_LIMIT} s": added["import nicemu"] < ADDED_LIMIT,
        f"second allreduce under {AGAIN_LIMIT} s": median(again) < AGAIN_LIMIT,
        "no compiler loaded": not {"llvmlite", "numba", "torch"} & set(heavy),
    }
    for what, holds in kept.items():
        console.print(f"{what}: {'yes' if holds else 'NO'}", highlight=False)
    if args.json:
        medians = {name: median(spent) for name, spent in samples.items()}
        runs = {"allreduce first": first, "allreduce again": median(again)}
        save(args.json, {"host": host(), "seconds": medians | runs, "heavy": heavy, "kept": kept})
    return int(not all(kept.values()))


if __name__ == "__main__":
    sys.exit(main())
