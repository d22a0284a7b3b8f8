"""``python -m tests.soak --seeds 1000``: collectives over bad links beside ones over clean links.

Each seed is a small fabric of its own: topology, window, MTU, ops, dtypes, several collectives in
flight, in place or not.  It runs twice, with clean links and with links that lose and repeat 20 %
of the frames, hold back some, flip a bit in 1 %, and where there are two planes go down and up.
All bits must be the same, and the reference's, of results and of every partial sum; every
collective must end; and the counters must add up.

Owns: the cases and the comparison; test_soak.py runs a few.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, NamedTuple

import networkx
import numpy as np

import nicemu
from nicemu.dtypes import GRADIENTS, format_of
from nicemu.network.counters import FabricCounters
from nicemu.network.exchange import Exchange
from nicemu.network.fabric import Fabric, Group
from nicemu.network.packet import drops
from nicemu.reference.arithmetic import OPS
from nicemu.reference.tree import reduce_tree
from tests.fabrics import FAULTS, sums_up

PRESETS = ("wide", "per-hop", "per-add")
#: Virtual seconds after which a case counts as one without end: they take less than one.
LONGEST = 60.0
WIRE = {drop.name for drop in drops() if drop.station == "wire"}


class Plan(NamedTuple):
    """One exchange."""

    op: str  # or "move"
    element: str
    preset: str
    size: int  # elements; moved: of each worker
    in_place: bool


class Case(NamedTuple):
    """What a seed stands for."""

    seed: int
    ranks: int
    topology: str | networkx.DiGraph
    planes: int
    mtu: int
    jitter: float
    reorder: float
    groups: tuple[tuple[tuple[int, ...], int], ...]  # ranks, window
    plans: tuple[tuple[int, Plan], ...]  # group, exchange; in the order in which they start


def tree(ranks: int, rng: np.random.Generator) -> networkx.DiGraph:
    """A random tree: nodes without a parent are taken together until one is left."""
    graph = networkx.DiGraph()
    loose: list[int | str] = list(range(ranks))
    while len(loose) > 1 or not graph:
        n = int(rng.integers(1, min(len(loose), 5) + 1))
        parent = f"device{len(graph)}"
        for _ in range(n):
            child = loose.pop(int(rng.integers(len(loose))))
            graph.add_edge(parent, child)
        loose.append(parent)
    return graph


def case_of(seed: int) -> Case:
    """The case of a seed."""
    rng = np.random.default_rng(seed)

    def one_of(*values: Any) -> Any:
        return values[int(rng.integers(len(values)))]

    ranks = int(rng.integers(1, 10))
    topology = one_of("star", "cards", "tree(2)", "tree(3)", tree(ranks, rng), tree(ranks, rng))
    groups = [(tuple(range(ranks)), one_of(1, 2, 3, 8))]
    if ranks > 1 and rng.random() < 0.4:
        some = rng.permutation(ranks)[: rng.integers(1, ranks + 1)]
        groups.append((tuple(int(rank) for rank in some), one_of(1, 2, 5)))
    plans = []
    for _ in range(int(rng.integers(1, 4))):
        plan = Plan(
            one_of(*OPS, *OPS, "move"),
            one_of(*(f.alias for f in GRADIENTS)),
            one_of(*PRESETS),
            one_of(0, 1, int(rng.integers(2, 200)), int(rng.integers(200, 3000))),
            one_of(True, False),
        )
        plans.append((int(rng.integers(len(groups))), plan))
    return Case(
        seed,
        ranks,
        topology,
        one_of(1, 1, 2),
        one_of(256, 300, 1024),
        one_of(0.0, 3e-6),
        one_of(0.02, 0.1, 0.5),
        tuple(groups),
        tuple(plans),
    )


def exchange_of(plan: Plan, workers: int, rng: np.random.Generator) -> Exchange:
    """Its inputs: of any size and sign, with some NaNs, infinities and zeros among them."""
    row = format_of(plan.element)
    inputs = []
    for _ in range(workers):
        values = rng.standard_normal(plan.size) * 2.0 ** rng.integers(-20, 15, plan.size)
        rare = rng.random(plan.size) < 0.01
        values[rare] = rng.choice([np.nan, np.inf, -np.inf, 0.0, -0.0], rare.sum())
        with np.errstate(over="ignore"):
            inputs.append(values.astype(row.dtype))
    if plan.op == "move":
        whole = plan.size * workers
        return Exchange(None, inputs, [np.zeros(whole, row.dtype) for _ in range(workers)])
    outputs = inputs if plan.in_place else [np.zeros_like(x) for x in inputs]
    return Exchange(nicemu.kernel(plan.op, row, plan.preset), inputs, outputs, partials=True)


def break_links(fabric: Fabric, case: Case, rng: np.random.Generator) -> None:
    """Where there are two planes: some links go down for a while, of one plane or of both."""
    links = fabric.links()
    for _ in range(int(rng.integers(0, 4)) if case.planes == 2 else 0):
        link = links[int(rng.integers(len(links)))]
        begin = float(rng.uniform(0, 2e-3))
        link.down(at=begin)
        link.up(at=begin + float(rng.uniform(1e-6, 2e-3)))


class Outcome(NamedTuple):
    """Bits of a run by what they are of, and counters."""

    bits: dict[str, bytes]
    counters: FabricCounters
    first_sends: int
    begun_again: int  # chunks of a dead plane


def first_sends(fabric: Fabric, group: Group, plan: Plan, workers: int) -> int:
    """Frames of an exchange when nothing is sent twice: one up and one down every link of a chunk's
    tree."""
    image = None if plan.op == "move" else nicemu.kernel(plan.op, plan.element, plan.preset)
    chunk = group.chunk(image)
    if plan.op == "move":
        size = plan.size * format_of(plan.element).size
        chunks = workers * -(-size // chunk) or 1
    else:
        chunks = -(-plan.size // chunk)
    return chunks * 2 * (workers + len(group.names) - 1)


def wanted_of(plan: Plan, group: Group, exchange: Exchange) -> dict[str, bytes]:
    """Bits that the reference gives: of each worker's result, and of each device's partial sums."""
    inputs = [np.asarray(x) for x in exchange.inputs]
    workers = [f"worker {i}" for i in range(len(inputs))]
    if plan.op == "move":
        return dict.fromkeys(workers, np.concatenate(inputs).tobytes())
    assert group.order is not None
    tree = reduce_tree(plan.op, plan.element, group.order, inputs, plan.preset)
    partials = {name: tree.partials[path].tobytes() for name, path in group.names.items()}
    return {**dict.fromkeys(workers, tree.result.tobytes()), **partials}


def run(case: Case, faulty: bool) -> Outcome:
    """Run a case to its end.

    Raises:
        AssertionError: a collective does not end, or has other bits than the reference.
        NicemuError: it ends without a result.
    """
    rng = np.random.default_rng([case.seed, 1])
    faults = {**FAULTS, "reorder": case.reorder, "jitter": case.jitter} if faulty else {}
    bits: dict[str, bytes] = {}
    with Fabric(
        case.ranks,
        case.topology,
        planes=case.planes,
        mtu=case.mtu,
        seed=case.seed,
        **faults,
    ) as fabric:
        groups = [fabric.group(ranks, window=window) for ranks, window in case.groups]
        sends, tickets, wanted = 0, [], list[dict[str, bytes]]()
        for of, plan in case.plans:
            group = groups[of]
            exchange = exchange_of(plan, len(group.ranks), rng)
            sends += first_sends(fabric, group, plan, len(group.ranks))
            wanted.append(wanted_of(plan, group, exchange))
            tickets.append(group.start(exchange))
        if faulty:
            break_links(fabric, case, rng)
        fabric.run(until=LONGEST)
        for i, ticket in enumerate(tickets):
            assert ticket.done, f"exchange {i} does not end"
            ticket.wait()
            found = {name: partial.values for name, partial in ticket.partials().items()}
            for worker, output in enumerate(ticket.exchange.outputs):
                assert output is not None
                found[f"worker {worker}"] = output
            for what, values in found.items():
                bits[f"exchange {i}, {what}"] = values.tobytes()
                assert values.tobytes() == wanted[i].pop(what), f"exchange {i}, {what}: bits"
            assert not wanted[i]
            for name, partial in ticket.partials().items():
                assert (partial.times != 0).all() and partial.members.sum(axis=1).all()
                bits[f"exchange {i}, {name}: who"] = partial.words.tobytes()
        again = sum(replay.chunks for replay in fabric.replays())
        return Outcome(bits, fabric.counters(), sends, again)


def add_up(outcome: Outcome) -> None:
    """Where every frame comes from, and what became of it, when nothing is under way."""
    c = outcome.counters
    if outcome.begun_again == 0:
        assert c.sent == outcome.first_sends + c.resent + c.repeated
    assert c.under_way == c.injected == 0
    sums_up(c)
    on_the_wire = sum(n for name, n in c.drops.items() if name in WIRE)
    assert on_the_wire <= c.corrupted and c.damaged <= c.corrupted - on_the_wire


def check(seed: int) -> Counter[str]:
    """Hold a seed's two runs against each other; what has happened in the faulty one.

    Raises:
        AssertionError: they differ, or something is wrong in one of them.
    """
    case = case_of(seed)
    clean, faulty = run(case, False), run(case, True)
    different = [what for what, bits in clean.bits.items() if faulty.bits[what] != bits]
    assert not different, f"bits differ: {', '.join(different)}"
    for outcome in (clean, faulty):
        add_up(outcome)
    assert clean.counters.sent == clean.first_sends and not clean.counters.drops
    happened = asdict(faulty.counters)
    happened["merged"] = sum(happened["merged"])  # on all cores
    drops = {f"dropped: {name}": n for name, n in happened.pop("drops").items()}
    return Counter({**happened, "begun again": faulty.begun_again, **drops})


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns 0; 1 when a seed fails."""
    parser = argparse.ArgumentParser("python -m tests.soak", description=__doc__)
    parser.add_argument("--seeds", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    options = parser.parse_args(arguments)
    if options.seeds < 1:
        parser.error(f"--seeds {options.seeds}: use 1 or more")
    start, total, failed = time.monotonic(), Counter[str](), 0
    for seed in range(options.first, options.first + options.seeds):
        try:
            total.update(check(seed))
        except (AssertionError, nicemu.NicemuError) as e:
            failed += 1
            print(f"seed {seed}: {type(e).__name__}: {e}\n  {case_of(seed)}", flush=True)
    for name, n in total.items():
        if n:
            print(f"{name:20} {n:12}")
    print(f"{options.seeds} seeds, {failed} fail, {time.monotonic() - start:.0f} s")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
