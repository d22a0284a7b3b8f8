"""Collectives over bad links, seed by seed: ``python -m tests.soak --seeds 1000``.

On every link, 20 % of the frames are lost, 20 % arrive twice, 30 % are held back and 1 % corrupted.
The bits must be those of the reference, on every rank and of every partial sum; every frame must be
accounted for; and every run must end.  A failure names the seed.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter

import numpy as np

from nicemu.fabric import Fabric
from tests.fabrics import FAULTS, allreduce

SHAPES = ((2, "star"), (4, "star"), (9, "star"), (5, "tree(2)"), (9, "cards"), (8, "tree(4)"))


def soak(seed: int) -> Counter[str]:
    """One run; its counters."""
    rng = np.random.default_rng(seed)
    ranks, topology = SHAPES[seed % len(SHAPES)]
    fabric = Fabric(ranks, topology, planes=1 + seed // len(SHAPES) % 2, seed=seed, **FAULTS)
    if fabric.planes == 2 and seed % 4 == 1:  # and a plane that dies and comes back
        links = fabric.links()
        link = links[int(rng.integers(len(links)))]
        link.down(at=float(rng.uniform(0, 100e-6)))
        link.up(at=float(rng.uniform(100e-6, 900e-6)))
    run = allreduce(
        fabric,
        int(rng.integers(0, 12_000)),
        element=("bfloat16", "float16", "float32")[seed % 3],
        preset=("wide", "per-hop", "per-add")[seed // 3 % 3],
        window=int(rng.integers(1, 9)),
        seed=seed,
    )
    c = run.fabric.counters()
    names = ("sent", "lost", "cut", "duplicated", "reordered", "corrupted", "resent", "events")
    found = Counter({name: getattr(c, name) for name in names})
    found["planes left"] = len(fabric.replays())
    found["chunks begun again"] = sum(r.chunks for r in fabric.replays())
    return found


def main() -> int:
    """Run the seeds that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0)
    arguments = parser.parse_args()
    total: Counter[str] = Counter()
    start = time.monotonic()
    for seed in range(arguments.first, arguments.first + arguments.seeds):
        try:
            total += soak(seed)
        except BaseException:
            print(f"seed {seed}:", file=sys.stderr)
            raise
    print(
        f"{arguments.seeds} seeds, all bits as the reference's, {time.monotonic() - start:.0f} s: "
        + ", ".join(f"{name} {n}" for name, n in total.items())
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
