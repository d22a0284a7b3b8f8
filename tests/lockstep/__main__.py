"""``python -m tests.lockstep``: fuzz the core against Spike."""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from nicemu._core import CAUSES
from tests.harts import simd_paths
from tests.lockstep.compare import Pair
from tests.lockstep.coverage import Coverage
from tests.lockstep.oracle import Oracle, missing
from tests.lockstep.session import Found, Session
from tests.lockstep.shrink import from_dict, listing, shrink, to_dict
from tests.lockstep.subject import Subject
from tests.lockstep.words import table

VLENS = (128, 256, 512, 1024)
#: Shares of the time: the small ones give most instructions, the large ones most elements.
SHARES = {128: 0.4, 256: 0.3, 512: 0.2, 1024: 0.1}
#: Differences of one row after which the rest of them are only counted.
SHOWN = 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns 0; 1 when something differs or is missing here; 2 when nothing was compared."""
    parser = argparse.ArgumentParser("python -m tests.lockstep", description=__doc__)
    parser.add_argument(
        "--seconds", type=float, default=60, help="how long to run, all VLENs together"
    )
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
    if reason := missing():
        print(reason, file=sys.stderr)
        return 2
    if options.replay:
        return replay(options.replay)
    return fuzz(options)


def fuzz(options: argparse.Namespace) -> int:
    """Share the time among VLENs and host paths; print what happened."""
    paths = simd_paths()
    whole = sum(SHARES[v] for v in options.vlen)
    coverage = Coverage()
    found: list[Found] = []
    texts: list[str] = []
    freedoms, gaps, not_here = Counter[str](), list[set[str]](), set[str]()
    unfinished, unexamined, died = 0, 0, list[str]()
    for vlen in options.vlen:
        for simd in paths:
            seconds = options.seconds * SHARES[vlen] / whole / len(paths)
            session = Session(options.seed, vlen, simd, rows=options.rows)
            batches = session.run_for(seconds)
            c = session.coverage
            print(
                f"vlen {vlen:4} {simd:8} seed {options.seed} batches 0..{batches - 1}: "
                f"{c.instructions} instructions compared, {c.traps.sum()} traps",
                flush=True,
            )
            coverage.merge(c)
            gaps.append(set(session.missing()))
            freedoms += session.tally.freedoms
            unfinished += session.tally.unfinished
            unexamined += session.tally.unexamined
            died += session.tally.died
            not_here |= set(session.not_here)
            texts += show(session)
            found += session.tally.found
            session.close()
    missed = set.intersection(*gaps)
    print(
        f"compared: {coverage.instructions} instructions of {coverage.programs} programs "
        f"(and {coverage.handler} of the trap handler), {coverage.traps.sum()} traps"
    )
    for cause in np.flatnonzero(coverage.traps).tolist():
        print(f"  {coverage.traps[cause]} by {CAUSES[cause]}")
    print(f"not compared: {unfinished} programs that did not end; {len(died)} in which Spike died")
    for name, count in freedoms.most_common():
        print(f"explained: {count} programs: {name}")
    print(f"rows: {covered(coverage)}; never retired: {len(missed)} cells")
    for text in sorted(missed)[:20]:
        print(f"  {text}")
    print(f"in Spike, not in our table: {' '.join(sorted(not_here)) or 'nothing'}")
    for text in died + texts:
        print(text)
    print(f"differences: {len(found)}, and {unexamined} not looked into")
    if options.report:
        report = {
            "seed": options.seed,
            "seconds": options.seconds,
            "instructions": coverage.instructions,
            "handler": coverage.handler,
            "traps": coverage.traps.tolist(),
            "programs": coverage.programs,
            "unfinished": unfinished,
            "died": died,
            "explained": dict(freedoms),
            "missing": sorted(missed),
            "not here": sorted(not_here),
            "rows": coverage.as_dict(),
            "differences": as_dicts(found),
        }
        options.report.write_text(json.dumps(report, indent=1))
    if found or died or unexamined or not_here:
        return 1
    return 0 if coverage.instructions else 2


def covered(coverage: Coverage) -> str:
    """How many rows were executed."""
    retired = coverage.cells[:, :, 0].sum(axis=1) > 0
    return f"{np.count_nonzero(retired)} of {len(table().rows)} retired"


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
        f.program = shrink(f.program, session.pair, row, f.difference is None)
        out.append(f"DIFFERENCE {where}\n{what}\n  cut down to\n{listing(f.program, session.pair)}")
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
        whole = d is None and pair.differs_whole()
        print(d if d else "differs as a whole" if whole else f"{entry['row']}: the same now")
        status |= d is not None or whole
        oracle.close()
    return int(status)


if __name__ == "__main__":
    sys.exit(main())
