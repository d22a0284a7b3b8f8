"""``python -m tests.lockstep``: fuzz the core against Spike.

Every program runs in Spike and in the core on each host path that this machine has.  The time, or
the number of instructions, is shared among the VLENs.  A long run:

    python -m tests.lockstep --instructions 100000000 --seed 7 --report long.json

The programs follow from the seed alone, so that two runs to the same number of instructions compare
the same.  An instruction counts as compared when it was retired by a program, not by its trap
handler, and the program's end state was the same in Spike and on every host path; once, however
many host paths there are.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from nicemu._core import CAUSES
from tests.harts import simd_paths
from tests.lockstep.compare import Pair
from tests.lockstep.coverage import Coverage, Wanted
from tests.lockstep.oracle import Oracle, missing
from tests.lockstep.session import Found, Session, Tally
from tests.lockstep.shrink import from_dict, listing, shrink, to_dict
from tests.lockstep.subject import Subject
from tests.lockstep.words import table

VLENS = (128, 256, 512, 1024)
#: Shares of a run: the small ones give most instructions, the large ones most elements.
SHARES = {128: 0.3, 256: 0.2, 512: 0.3, 1024: 0.2}
#: Differences of one row after which the rest of them are only counted.
SHOWN = 2
#: Seconds between lines of progress.
PROGRESS = 20


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns 0; 1 when something differs or is missing here; 2 when nothing was compared."""
    head = (__doc__ or "").partition("\n")[0]
    parser = argparse.ArgumentParser("python -m tests.lockstep", description=head)
    length = parser.add_mutually_exclusive_group()
    length.add_argument(
        "--seconds", type=float, default=60, help="how long to run, all VLENs together"
    )
    length.add_argument("--instructions", type=int, help="run until so many have been compared")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--rows", help="only the rows whose mnemonics match this regular expression"
    )
    parser.add_argument("--vlen", type=int, nargs="+", choices=VLENS, default=list(VLENS))
    parser.add_argument(
        "--report", type=Path, help="write counts, coverage and differences as JSON"
    )
    parser.add_argument("--replay", type=Path, help="run the differences of a report again")
    options = parser.parse_args(arguments)
    if options.rows and not table().weights(re.compile(options.rows)).any():
        parser.error(f"--rows {options.rows}: no mnemonic matches")
    if reason := missing():
        print(reason, file=sys.stderr)
        return 2
    if options.replay:
        return replay(options.replay)
    return fuzz(options)


def goal(options: argparse.Namespace, share: float) -> Callable[[Session], bool]:
    """Whether a session that has this share of a run goes on; it prints progress now and then."""
    begin = told = time.monotonic()
    most: float = (options.instructions or 0) * share

    def goes_on(session: Session) -> bool:
        nonlocal told
        now = time.monotonic()
        done = session.coverage.instructions
        if now - told > PROGRESS:
            told = now
            of = f" of {most / 1e6:.1f}" if most else ""
            count = f"{done / 1e6:.1f}{of} M instructions, {len(session.tally.found)} differences"
            print(
                f"vlen {session.vlen:4} {now - begin:6.0f} s: {count}", file=sys.stderr, flush=True
            )
        return done < most if most else now - begin < options.seconds * share

    return goes_on


def fuzz(options: argparse.Namespace) -> int:
    """Share the run among VLENs; print what happened."""
    paths = simd_paths()
    coverage, tally = Coverage(), Tally()
    not_here: set[str] = set()
    still_open: dict[int, list[str]] = {}
    for vlen in options.vlen:
        session = Session(options.seed, vlen, paths, rows=options.rows)
        share = SHARES[vlen] / sum(SHARES[v] for v in options.vlen)
        batches = session.run_while(goal(options, share))
        c = session.coverage
        still_open[vlen] = session.wanted(c).still_open()
        print(
            f"vlen {vlen:4} seed {options.seed} batches 0..{batches - 1}: {c.instructions} "
            f"instructions compared, {c.traps.sum()} traps, {len(still_open[vlen])} open",
            flush=True,
        )
        coverage.merge(c)
        tally.add(session.tally)
        not_here |= set(session.not_here)
        for text in session.tally.died + show(session):
            print(text, flush=True)
        wanted = session.wanted(coverage)
        session.close()
    unlike = len([f for f in tally.found if f.simd != paths[0]])
    print_counts(coverage, tally)
    print(
        f"host paths {', '.join(paths)}: the same end state of {tally.alike} programs, "
        f"another of {unlike}"
    )
    print_coverage(wanted)
    print(f"in Spike, not in our table: {' '.join(sorted(not_here)) or 'nothing'}")
    print(f"differences: {len(tally.found)}, and {tally.unexamined} not looked into")
    if options.report:
        report = {
            "seed": options.seed,
            "vlens": options.vlen,
            "instructions": coverage.instructions,
            "handler": coverage.handler,
            "traps": coverage.traps.tolist(),
            "programs": coverage.programs,
            "host paths": paths,
            "alike": tally.alike,
            "unlike": unlike,
            "unfinished": tally.unfinished,
            "died": tally.died,
            "explained": dict(tally.freedoms),
            "open": still_open,
            "not here": sorted(not_here),
            "rows": coverage.as_dict(),
            "differences": as_dicts(tally.found),
        }
        options.report.write_text(json.dumps(report, indent=1))
    if tally.found or tally.died or tally.unexamined or not_here:
        return 1
    return 0 if coverage.instructions else 2


def print_counts(coverage: Coverage, tally: Tally) -> None:
    """How much was compared, and what was not or ended differently with a reason."""
    print(
        f"compared: {coverage.instructions} instructions of {coverage.programs} programs "
        f"(and {coverage.handler} of the trap handler), {coverage.traps.sum()} traps"
    )
    for cause in np.flatnonzero(coverage.traps).tolist():
        print(f"  {coverage.traps[cause]} by {CAUSES[cause]}")
    print(
        f"not compared: {tally.unfinished} programs that did not end; "
        f"{len(tally.died)} in which Spike died"
    )
    for name, count in tally.freedoms.most_common():
        print(f"explained: {count} programs: {name}")


def print_coverage(wanted: Wanted) -> None:
    """How often the rows were compared, and what is still open of all VLENs together."""
    print("rows, how often each was compared, and under which vtypes and rounding modes:")
    for line in wanted.by_class():
        print(f"  {line}")
    still_open = wanted.still_open()
    print(f"open: {len(still_open)}")
    for text in still_open[:20]:
        print(f"  {text}")


def show(session: Session) -> list[str]:
    """The differences of a session, the first of each row cut down."""
    out = []
    seen = Counter[str | None]()
    for f in session.tally.found:
        row = f.difference.row if f.difference else "as a whole"
        seen[row] += 1
        if seen[row] > SHOWN:
            continue
        where = f"vlen {f.vlen} {f.simd} seed {session.seed} batch {f.batch} slot {f.slot}"
        what = str(f.difference) if f.difference else "\n  ".join(["only as a whole", *f.parts])
        pair = session.pair(f.simd)
        f.program = shrink(f.program, pair, row, f.difference is None)
        out.append(f"DIFFERENCE {where}\n{what}\n  cut down to\n{listing(f.program, pair)}")
    return out + [f"{n} differences at {row}" for row, n in seen.items() if n > SHOWN]


def as_dicts(found: list[Found]) -> list[dict[str, Any]]:
    """For the report."""
    return [
        {
            "row": f.difference.row if f.difference else None,
            "simd": f.simd,
            "batch": f.batch,
            "slot": f.slot,
            "text": str(f.difference),
            "program": to_dict(f.program),
        }
        for f in found
    ]


def replay(path: Path) -> int:
    """Run the differences of a report again; returns 1 when one of them is still there."""
    status = 0
    for entry in json.loads(path.read_text())["differences"]:
        program = from_dict(entry["program"])
        oracle = Oracle(program.vlen, Pair.WIDTH)
        pair = Pair(oracle, Subject(program.vlen, entry["simd"]))
        pair.load(program, 0)
        d = pair.first_difference()
        if d is None and not pair.differs_whole():
            print(f"{entry['row']}: the same now")
        elif name := pair.freedom(d):
            print(f"{entry['row']}: explained: {name}")
        else:
            print(d or "differs as a whole")
            status = 1
        oracle.close()
    return status


if __name__ == "__main__":
    sys.exit(main())
