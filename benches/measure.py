"""What the benches share: who is measured, in interleaved rounds, and how rows become a table.

Owns: the description of the host, the timing of a child process, medians and paired ratios.
What is run is each bench's own business.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress

__all__ = ["Child", "Ratio", "child", "console", "host", "interleaved", "ratio", "save", "version"]

console = Console(width=None if sys.stdout.isatty() else 140)


def host() -> dict[str, str]:
    """The machine and the programs that the numbers depend on."""
    model, flags = platform.processor() or platform.machine(), ""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            key, _, value = line.partition(":")
            model = value.strip() if key.strip() == "model name" else model
            flags = value if key.strip() == "flags" else flags
    except OSError:
        pass
    units = [f for f in ("avx2", "f16c", "avx512f", "avx512_fp16", "avx512_bf16") if f in flags]
    return {
        "cpu": f"{model}, {len(os.sched_getaffinity(0))} cores, {' '.join(units)}",
        "system": f"{platform.system()} {platform.machine()}, Python {platform.python_version()}",
    }


def version(command: Sequence[str]) -> str:
    """The first line of what a program says its version is; "" when it does not run."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return (done.stdout or done.stderr).strip().split("\n")[0]


@dataclass(frozen=True)
class Child:
    """A finished child process.

    Attributes:
        cpu: user + system seconds of the process.
        wall: seconds from start to end.
        code: exit code; negative = signal.
        output: stdout and stderr together.
    """

    cpu: float
    wall: float
    code: int
    output: str


def child(command: Sequence[str], *, timeout: float = 120) -> Child:
    """Run a program to its end; one that lasts ``timeout`` seconds is killed (code -9)."""
    with tempfile.TemporaryFile() as output:
        start = time.perf_counter()
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
        )
        while True:
            pid, status, use = os.wait4(process.pid, os.WNOHANG)
            if pid:
                break
            if time.perf_counter() - start > timeout:
                process.kill()
            time.sleep(0.001)
        wall = time.perf_counter() - start
        process.returncode = os.waitstatus_to_exitcode(status)
        output.seek(0)
        text = output.read().decode(errors="replace")
    return Child(use.ru_utime + use.ru_stime, wall, process.returncode, text)


def interleaved(
    jobs: Mapping[str, Callable[[], float]], rounds: int, title: str
) -> dict[str, list[float]]:
    """One sample of every job per round, so that a slow spell of the host hits all of them.

    The order is turned by one each round: nobody always runs after the same neighbour.
    """
    samples: dict[str, list[float]] = {name: [] for name in jobs}
    names = list(jobs)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task(title, total=rounds * len(names))
        for r in range(rounds):
            turn = r % len(names)
            for name in names[turn:] + names[:turn]:
                samples[name].append(jobs[name]())
                progress.advance(task)
    return samples


@dataclass(frozen=True)
class Ratio:
    """How many times as fast as a yardstick.

    Attributes:
        median: of the ratios of the rounds.
        low, high: the smallest and largest ratio within one round.
    """

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        """As ``2.41 (2.35..2.50)``."""
        digits = 2 if self.median < 9.95 else 1 if self.median < 99.5 else 0
        return f"{self.median:.{digits}f} ({self.low:.{digits}f}..{self.high:.{digits}f})"


def ratio(seconds: Sequence[float], yardstick: Sequence[float]) -> Ratio:
    """Ratio of speeds from the seconds of paired rounds."""
    each = [y / s for s, y in zip(seconds, yardstick, strict=True)]
    return Ratio(statistics.median(each), min(each), max(each))


def save(path: Path, results: dict[str, Any]) -> None:
    """Write results as JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(results, indent=1) + "\n")
