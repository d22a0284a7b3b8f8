"""Events of the virtual time that the host gets through in a second, and what their number costs.

What: an allreduce in the network (sum of bfloat16, frames of 1024 bytes of payload) over a fabric
whose links, devices and cores take time (``Fabric(time="packet")``): by the number of workers, of
packets and of chunks in flight; and a broadcast, where no core does anything.  An event is that a
frame is there to be sent, or has come over a link; handlers run within one.

How: CPU seconds of one thread, medians of interleaved rounds; a sample is the mean of as many runs,
one after the other, as have 50,000 events, so that a short one does not measure the caches that
another row has left.  A ratio is the median of the rounds' own ratios of host time to the row "all
the same", with the lowest and highest in parentheses.  The same fabric without time says what time
costs.

    python benches/events.py
    python benches/events.py --plot events.png --json events.json      # matplotlib: nicemu[viz]
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from measure import console, host, interleaved, ratio, save
from rich.table import Table

import nicemu

ENOUGH = 1e6  # events a second that the project promises
PAYLOAD = 1024
SAMPLE = 50_000  # events of a sample, at least


@dataclass(frozen=True)
class Case:
    """A collective: who, how much, how.

    Attributes:
        workers: behind NICs, leaves and a spine.
        packets: of each worker.
        window: chunks in flight.
        collective: "allreduce" or "broadcast".
        timed: whether links, devices and cores take time.
    """

    workers: int = 16
    packets: int = 1024
    window: int = 32
    collective: str = "allreduce"
    timed: bool = True


BASE = Case()
#: what varies, by the name of its column
SWEEPS: dict[str, list[Case]] = {
    "workers": [replace(BASE, workers=n) for n in (4, 64, 256)],
    "packets": [replace(BASE, packets=n) for n in (64, 256, 4096)],
    "window": [replace(BASE, window=n) for n in (1, 8, 128)],
}
OTHERS = [replace(BASE, collective="broadcast"), replace(BASE, timed=False)]


class Job:
    """A case with its fabric and arrays, to be run again and again."""

    def __init__(self, case: Case) -> None:
        """Set it up, and run it once."""
        self.case = case
        count = case.packets * PAYLOAD // 4  # partial sums of float32 are what fills a frame
        self._fabric = nicemu.Fabric(
            case.workers, "cards", mtu=PAYLOAD, time="packet" if case.timed else None
        )
        self._world = nicemu.Communicator(self._fabric, algorithm="in-network", window=case.window)
        self._given = np.ones(count, nicemu.bfloat16)
        self._out = [np.empty(count, nicemu.bfloat16) for _ in range(case.workers)]
        before = self._fabric.counters()
        self._run()
        done = self._fabric.counters() - before
        self.events, self.frames = done.events, done.sent
        self.repeats = -(-SAMPLE // self.events)

    def run(self) -> float:
        """CPU seconds of one."""
        start = time.process_time()
        for _ in range(self.repeats):
            self._run()
        return (time.process_time() - start) / self.repeats

    def _run(self) -> None:
        if self.case.collective == "broadcast":
            self._world.broadcast(self._given, out=self._out)
        else:
            self._world.allreduce([self._given] * self.case.workers, out=self._out)


# ---- what is told --------------------------------------------------------------------------------


def row(name: str, job: Job, seconds: list[float], base: list[float]) -> dict[str, Any]:
    """All numbers of a case."""
    rate = job.events / median(seconds)
    return {
        "row": name,
        **asdict(job.case),
        "events": job.events,
        "frames": job.frames,
        "seconds": median(seconds),
        "million_events_per_s": rate / 1e6,
        "lowest": job.events / max(seconds) / 1e6,
        "highest": job.events / min(seconds) / 1e6,
        "ns_per_event": 1e9 / rate,
        "ratio": asdict(ratio(base, seconds)),
    }


def table(rows: list[dict[str, Any]], title: str) -> Table:
    """For people."""
    shown = Table(title=title)
    for column in ("", "workers", "packets each", "window", "events", "host ms", "to the same",
                   "M events/s", "ns an event"):  # fmt: skip
        shown.add_column(column, justify="right" if column else "left")
    for r in rows:
        q = r["ratio"]
        shown.add_row(
            r["row"], f"{r['workers']:,}", f"{r['packets']:,}", f"{r['window']:,}",
            f"{r['events']:,}", f"{1e3 * r['seconds']:.1f}",
            f"{q['median']:.2f} ({q['low']:.2f}..{q['high']:.2f})",
            f"{r['million_events_per_s']:.2f} ({r['lowest']:.2f}..{r['highest']:.2f})",
            f"{r['ns_per_event']:.0f}",
        )  # fmt: skip
    return shown


def picture(rows: list[dict[str, Any]], path: Path) -> None:
    """Host time, and of an event, over what varies."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(13, 4.2), layout="constrained")
    for axes, what in zip(figure.subplots(1, len(SWEEPS)), SWEEPS, strict=True):
        varied = (BASE, *SWEEPS[what])
        points = sorted(
            (r for r in rows if Case(**{k: r[k] for k in asdict(BASE)}) in varied),
            key=lambda r: r[what],
        )
        xs = [r[what] for r in points]
        axes.plot(xs, [1e3 * r["seconds"] for r in points], "o-", label="host, ms")
        axes.plot(xs, [r["ns_per_event"] for r in points], "s--", label="host, ns an event")
        axes.plot(
            xs, [1e9 / ENOUGH] * len(xs), ":", color="tab:red", label="1 M events/s, ns an event"
        )
        name = {"packets": "packets of a worker", "window": "chunks in flight"}.get(what, what)
        axes.set(xscale="log", yscale="log", xlabel=name, title=f"by {name}")
        axes.set_xticks(xs, [f"{x:,}" for x in xs])
        axes.minorticks_off()
        axes.grid(alpha=0.3, linewidth=0.4)
    axes.legend(fontsize="small")
    figure.savefig(path, dpi=150)


def main() -> int:
    """Measure, print; 0 when all timed cases are fast enough."""
    parser = argparse.ArgumentParser(description="events of the virtual time per second")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--plot", type=Path, help="draw the results into this file as well")
    parser.add_argument("--json", type=Path, help="write the results to this file as well")
    args = parser.parse_args()
    if args.rounds < 1:
        parser.error("use at least one round")
    names = {BASE: "all the same"}
    names |= {case: what for what, cases in SWEEPS.items() for case in cases}
    names |= dict(zip(OTHERS, ("broadcast", "without time"), strict=True))
    jobs = {case: Job(case) for case in names}
    samples = interleaved({str(case): job.run for case, job in jobs.items()}, args.rounds, "events")
    rows = [
        row(names[case], job, samples[str(case)], samples[str(BASE)]) for case, job in jobs.items()
    ]
    title = f"allreduce, sum of bfloat16, frames of {PAYLOAD} bytes; {args.rounds} rounds"
    console.print(table(rows, title))
    slowest = min((r for r in rows if r["timed"]), key=lambda r: r["million_events_per_s"])
    enough = slowest["million_events_per_s"] * 1e6 >= ENOUGH
    console.print(
        f"at least 1 M packet events/s: {'yes' if enough else 'no'} "
        f"(the slowest row has {slowest['million_events_per_s']:.2f})", highlight=False
    )  # fmt: skip
    about = host()
    for key, value in about.items():
        console.print(f"{key}: {value}", highlight=False)
    if args.json:
        save(args.json, {"host": about, "title": title, "rows": rows})
    if args.plot:
        picture(rows, args.plot)
    return 0 if enough else 1


if __name__ == "__main__":
    sys.exit(main())
