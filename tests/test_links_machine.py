"""Whole fabrics over bad links, whatever happens to them: hypothesis starts collectives, lets time
pass, takes links down and up, kills workers, opens and closes groups.

At every step all frames must be accounted for.  In the end every collective has ended, with the
exact sums on all ranks, or with an error that names only ranks to whom something has happened; and
every partial sum is the sum of exactly those who are said to be in it.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from nicemu import MACHINES, CollectiveError, kernel
from nicemu._nicemu import lib
from nicemu.network.exchange import Exchange
from nicemu.network.fabric import Fabric, Group, Link, Ticket
from tests.fabrics import FAULTS, machine_settings, sums_up

#: Virtual seconds in which everything must have ended.
LONGEST = 60.0
#: Payloads wait for the DMA engine: while they do, links go down and groups end.
SLOW: dict[str, Any] = {
    "time": "packet",
    "machine": replace(MACHINES["card"], name="slow", dma_bytes=1, frequency=10**8),
}
WAY = 2_000_000  # picoseconds: more than from the end of a link to the DMA engine, with jitter
MOST_GROUPS = 3
MOST_IN_FLIGHT = 3  # of a group


class BadLinks(RuleBasedStateMachine):
    """What hypothesis may do."""

    seen: ClassVar[Counter[str]] = Counter()  # what has happened in all runs

    @initialize(
        ranks=st.integers(1, 7),
        tree=st.sampled_from(("star", "tree(2)", "tree(3)", "cards")),
        planes=st.sampled_from((1, 2, 2)),
        order=st.sampled_from(("fixed", "arrival")),
        bad=st.booleans(),
        slow=st.booleans(),
        seed=st.integers(0, 99),
    )
    def build(
        self, ranks: int, tree: str, planes: int, order: str, bad: bool, slow: bool, seed: int
    ) -> None:
        self.fabric = Fabric(
            ranks,
            tree,
            planes=planes,
            mtu=256,
            seed=seed,
            order=order,
            max_resends=30,
            **(FAULTS if bad else {}),
            **(SLOW if slow else {}),
        )
        self.slow = slow
        if slow:
            self.fabric.record()
        self.groups: list[Group] = []
        self.tickets: dict[Ticket, Group] = {}
        self.dead: set[int] = set()  # killed ranks
        self.hurt: set[int] = set()  # ranks behind a link that has ever been down
        self.open_group(ranks=set(range(ranks)), window=2)

    def behind(self, node: str) -> set[int]:
        """Ranks behind the upper end of a link."""
        if node in self.fabric.devices:
            return set(self.fabric.devices[node].ranks)
        return {int(node.removeprefix("rank"))}

    def links(self) -> list[Link]:
        return self.fabric.links()

    def in_flight(self, group: Group) -> int:
        return sum(not t.done for t, g in self.tickets.items() if g is group)

    # ---- what may happen -------------------------------------------------------------------------

    @precondition(lambda self: len(self.groups) < MOST_GROUPS)
    @rule(ranks=st.sets(st.integers(0, 6), min_size=1), window=st.integers(1, 5))
    def open_group(self, ranks: set[int], window: int) -> None:
        chosen = sorted(rank for rank in ranks if rank < self.fabric.ranks)
        if chosen:
            self.groups.append(self.fabric.group(chosen, window=window))

    @precondition(lambda self: self.groups)
    @rule(i=st.integers(0, 9))
    def close_group(self, i: int) -> None:
        group = self.groups.pop(i % len(self.groups))
        group.close()
        assert not self.in_flight(group)

    @precondition(lambda self: self.groups)
    @rule(
        i=st.integers(0, 9),
        count=st.integers(0, 700),
        moved=st.booleans(),
        asked=st.booleans(),  # for partial sums
        seed=st.integers(0, 9),
    )
    def start(self, i: int, count: int, moved: bool, asked: bool, seed: int) -> None:
        group = self.groups[i % len(self.groups)]
        if group.failed or self.in_flight(group) >= MOST_IN_FLIGHT:
            return
        rng = np.random.default_rng(seed)
        inputs = [rng.integers(-9, 10, count).astype(np.float32) for _ in group.ranks]
        whole = count * len(group.ranks) if moved else count
        outputs = [np.full(whole, 99, np.float32) for _ in group.ranks]
        image = None if moved else kernel("sum", "float32")
        exchange = Exchange(image, inputs, outputs, partials=asked and not moved)
        self.tickets[group.start(exchange)] = group

    @rule(microseconds=st.sampled_from((1, 3, 10, 50, 300, 2000)))
    def pass_time(self, microseconds: int) -> None:
        self.fabric.run(until=self.fabric.now + microseconds * 1e-6)

    @rule(i=st.integers(0, 99))
    def link_down(self, i: int) -> None:
        link = self.links()[i % len(self.links())]
        link.down()
        self.hurt |= self.behind(link.child)
        self.seen["down"] += 1

    @precondition(lambda self: self.groups)
    @rule(i=st.integers(0, 9), link=st.integers(0, 99))
    def cut_at_work(self, i: int, link: int) -> None:
        """A link goes down as chunks set out."""
        self.start(i, 700, moved=False, asked=False, seed=0)
        self.link_down(link)

    @rule(i=st.integers(0, 99))
    def link_up(self, i: int) -> None:
        link = self.links()[i % len(self.links())]
        if not (link.child.startswith("rank") and self.behind(link.child) <= self.dead):
            link.up()

    @precondition(lambda self: not self.dead)
    @rule(rank=st.integers(0, 6))
    def kill(self, rank: int) -> None:
        self.dead.add(rank % self.fabric.ranks)
        self.hurt |= self.dead
        for link in self.links():
            if link.child.startswith("rank") and self.behind(link.child) <= self.dead:
                link.down()

    # ---- what must be true -----------------------------------------------------------------------

    @invariant()
    def frames_are_accounted_for(self) -> None:
        sums_up(self.fabric.counters())

    def teardown(self) -> None:
        """Mend all that can be mended; then everything ends."""
        if not hasattr(self, "fabric"):
            return
        for i in range(len(self.links())):
            self.link_up(i)
        self.fabric.run(until=self.fabric.now + LONGEST)
        assert self.fabric.counters().under_way == 0
        for ticket, group in self.tickets.items():
            self.check(ticket, group)
        for replay in self.fabric.replays():
            self.seen["begun again"] += replay.chunks
        if self.slow:
            spans = self.fabric.spans()
            moved = spans[spans["kind"] == lib.NICEMU_SPAN_DMA]
            came = spans["end"][moved["source"] - 1] + WAY
            self.seen["waited for DMA"] += int((moved["begin"] > came).sum())
        self.fabric.close()

    def check(self, ticket: Ticket, group: Group) -> None:
        assert ticket.done
        inputs = np.array(ticket.exchange.inputs).reshape(len(group.ranks), -1)
        for record in ticket.partials().values():
            for chunk, members in enumerate(record.members):
                piece = slice(chunk * record.chunk, (chunk + 1) * record.chunk)
                assert bool(record.times[chunk]) == bool(members.any())
                assert (record.values[piece] == inputs[members, piece].sum(axis=0)).all()
        if ticket.error is None:
            moved = ticket.exchange.image is None
            self.seen["moved" if moved else "added"] += 1
            for output in ticket.exchange.outputs:
                want = inputs.reshape(-1) if moved else inputs.sum(axis=0)
                assert (np.asarray(output) == want).all()
            return
        error = ticket.error
        assert isinstance(error, CollectiveError)
        salvaged = any(record.times.any() for record in ticket.partials().values())
        self.seen["salvaged"] += salvaged and not ticket.exchange.partials
        if group in self.groups:
            named = {*error.missing, *error.waiting}
            assert named and named <= self.hurt
            self.seen["missing" if error.missing else "waiting"] += 1
        else:
            self.seen["closed or failed"] += 1


SETTINGS = machine_settings(examples=150, steps=40)


def test_whatever_happens_to_links_every_collective_ends() -> None:
    BadLinks.seen.clear()
    run_state_machine_as_test(BadLinks, settings=SETTINGS)
    what = {"added", "moved", "missing", "closed or failed", "down", "begun again"}
    what |= {"salvaged", "waited for DMA"}
    assert what <= set(+BadLinks.seen)
