"""The slot protocol, frame by frame at one device, and the invariants that concern a single slot.

The frames are made by hand: every link is cut, so nothing else reaches a device or a worker.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from nicemu.network.packet import Packet, build
from tests.fabrics import Array, Wire


def total(wire: Wire, chunk: int) -> Array:
    """What the device must make of a chunk: float32 sums in child order."""
    part = slice(64 * chunk, 64 * (chunk + 1))
    out = wire.inputs[0][part]
    for x in wire.inputs[1:]:
        out = out + x[part]
    return out


def emitted(wire: Wire, chunk: int = 0) -> bytes:
    """The device's partial sum of a chunk."""
    return wire.ticket.partials()["nic0"].values[64 * chunk : 64 * (chunk + 1)].tobytes()


def finish(wire: Wire, chunk: int) -> None:
    """All contributions of a chunk, and its result for all workers."""
    workers = range(len(wire.inputs))
    assert {wire.receive(wire.up(w, chunk)) for w in workers} == {"accepted"}
    assert {wire.receive(wire.down(w, chunk, total(wire, chunk)), f"rank{w}") for w in workers} == {
        "accepted"
    }


# ---- the invariants ------------------------------------------------------------------------------


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0)])
def test_invariant_1_each_contribution_is_added_exactly_once(order: tuple[int, ...]) -> None:
    wire = Wire(3)
    for child in order:
        if child == order[-1]:
            assert emitted(wire) == bytes(256)
        assert wire.receive(wire.up(child, 0)) == "accepted"
        if child != order[-1]:
            assert wire.receive(wire.up(child, 0)) == "duplicate"
    calls = wire.calls()
    assert emitted(wire) == total(wire, 0).tobytes()
    for child in order:
        assert wire.receive(wire.up(child, 0)) == "accepted"  # answered with the result
    assert wire.calls() == calls
    assert emitted(wire) == total(wire, 0).tobytes()


def test_invariant_2_a_result_leaves_only_when_all_have_contributed() -> None:
    wire = Wire(3)
    sent = wire.fabric.counters().sent
    for child in (0, 2):
        wire.receive(wire.up(child, 0))
        assert wire.fabric.counters().sent == sent
    wire.receive(wire.up(1, 0))
    assert wire.fabric.counters().sent == sent + 3


def test_invariant_2_one_pass_over_the_payloads_needs_them_all() -> None:
    """An entry that begins and leaves is called once, when the last child has sent."""
    for seed in range(5):
        wire = Wire(8, topology="tree(4)")
        sent = wire.fabric.counters().sent
        *others, last = (int(child) for child in np.random.default_rng(seed).permutation(4))
        for child in others:
            assert wire.receive(wire.up(child, 0)) == "accepted"
            assert wire.receive(wire.up(child, 0)) == "duplicate"
        assert (wire.calls(), wire.fabric.counters().sent) == (0, sent)
        assert wire.receive(wire.up(last, 0)) == "accepted"
        assert (wire.calls(), wire.fabric.counters().sent) == (1, sent + 1)
        wire.inputs = wire.inputs[:4]
        assert emitted(wire) == total(wire, 0).tobytes()


def test_invariant_2_a_result_never_changes() -> None:
    """Late duplicates, of other payloads too, are answered with the result as it was."""
    wire = Wire(2)
    for child in (0, 1):
        wire.receive(wire.up(child, 0))
    state, sent = wire.fabric.digest(), wire.fabric.counters().sent
    for child in (0, 1, 0):
        assert wire.receive(wire.up(child, 0, payload=bytes(256))) == "accepted"
        assert wire.fabric.digest() == state
    assert wire.fabric.counters().sent == sent + 3
    assert wire.fabric.counters().repeated == 3


def test_invariant_3_a_version_is_reused_only_when_all_have_its_result() -> None:
    """A window of one: chunks 0, 1, 2 in the rounds 0, 1, 2 of lane 0; 0 and 2 share a version."""
    wire = Wire(2, 64 * 3, window=1)

    def results(chunk: int) -> None:
        for w in (0, 1):
            wire.receive(wire.down(w, chunk, total(wire, chunk)), f"rank{w}")

    wire.receive(wire.up(0, 0))
    assert wire.receive(wire.up(0, 1)) == "future"  # round 0 has no result
    assert wire.receive(wire.up(0, 2)) == "future"  # its version is at work
    wire.receive(wire.up(1, 0))
    assert wire.receive(wire.up(0, 2)) == "future"  # nobody has been in round 1
    results(0)
    wire.receive(wire.up(0, 1))
    assert wire.receive(wire.up(0, 2)) == "future"  # worker 1 may lack the result of round 0 ...
    assert wire.receive(wire.up(1, 0)) == "accepted"  # ... and can still have it
    assert wire.fabric.counters().repeated == 1
    wire.receive(wire.up(1, 1))
    results(1)
    assert wire.receive(wire.up(0, 2)) == "accepted"
    assert wire.receive(wire.up(1, 0)) == "stale"


def test_invariant_5_a_stale_packet_changes_no_state() -> None:
    wire = Wire(2, 64 * 3, window=1)
    for chunk in (0, 1):
        finish(wire, chunk)
    wire.receive(wire.up(0, 2))
    for child in (0, 1):
        assert wire.receive(wire.up(child, 0)) == "stale"
        assert wire.receive(wire.down(child, 0, total(wire, 0)), f"rank{child}") == "stale"


MALFORMED: dict[str, Callable[[Packet], dict[str, Any]]] = {
    "node": lambda p: {"dst": 9},
    "group": lambda p: {"group": p.group + 1},
    "lane": lambda p: {"lane": 2},
    "child": lambda p: {"child": 2},
    "key": lambda p: {"chunk": 1},
    "future": lambda p: {"round": 1},
    "shape": lambda p: {"payload": p.payload[4:]},
}
#: more ways to a reason
MORE: list[tuple[str, dict[str, Any]]] = [
    ("group", {"job": 1}),
    ("child", {"child": 1}),  # over the link of another
    ("child", {"child": 65535}),
    ("child", {"src": 2}),
    ("future", {"round": 2**32 - 1}),
    ("key", {"seq": 1}),
    ("shape", {"element": "bf16"}),
    ("shape", {"element": "bytes"}),
    ("shape", {"partial": True}),
    ("shape", {"moved": True}),
    ("shape", {"contributors": 2}),
    ("shape", {"contributors": 0}),
    ("shape", {"payload": b""}),
]


@pytest.mark.parametrize("reason", MALFORMED)
def test_invariant_6_a_malformed_packet_changes_only_its_counter(reason: str) -> None:
    wire = Wire(2, 128)
    packet = wire.up(0, 0)
    check_refused(wire, reason, replace(packet, **MALFORMED[reason](packet)))


@pytest.mark.parametrize(("reason", "fields"), MORE)
def test_invariant_6_in_other_ways(reason: str, fields: dict[str, Any]) -> None:
    wire = Wire(2, 128)
    check_refused(wire, reason, replace(wire.up(0, 0), **fields))


def check_refused(wire: Wire, reason: str, packet: Packet) -> None:
    before = wire.fabric.counters()
    assert wire.receive(packet) == reason
    drops = {**before.drops, reason: before.drops.get(reason, 0) + 1}
    assert wire.fabric.counters() == replace(before, injected=before.injected + 1, drops=drops)
    assert wire.receive(wire.up(0, 0)) == "accepted"


def test_invariant_6_in_every_byte() -> None:
    """A bit flipped anywhere in a frame, or a frame cut short anywhere: nothing but a counter."""
    wire = Wire(2)
    frame = build(wire.up(0, 0))
    state = wire.fabric.digest()
    for i in range(len(frame)):
        assert wire.receive(frame[:i]) in ("short", "length", "pad")
        for bit in range(8):
            hit = bytearray(frame)
            hit[i] ^= 1 << bit
            harmless = i in (15, 22) or i in (40, 41) or i == 46  # routers may change them: no ICRC
            if not harmless:
                assert wire.receive(bytes(hit)) != "accepted", (i, bit)
    assert wire.fabric.digest() == state
    assert wire.receive(frame) == "accepted"


# ---- the rest of the protocol --------------------------------------------------------------------


@pytest.mark.parametrize("workers", [1, 2, 5, 9, 17])
def test_children_are_merged_in_order_whatever_arrives_first(workers: int) -> None:
    """... and consecutive children, as many as an entry takes, by one call."""
    for seed in range(5):
        wire = Wire(workers)
        for child in np.random.default_rng(seed).permutation(workers):
            assert wire.receive(wire.up(int(child), 0)) == "accepted"
        assert emitted(wire) == total(wire, 0).tobytes()


def test_full_fans_are_merged_before_the_others_are_there() -> None:
    wire = Wire(17)
    for child in range(7):
        wire.receive(wire.up(child, 0))
    assert wire.calls() == 0
    wire.receive(wire.up(7, 0))
    assert wire.calls() == 1  # first8
    for child in (9, 10, 11, 12, 13, 14, 15, 16):
        wire.receive(wire.up(child, 0))
    assert wire.calls() == 1
    wire.receive(wire.up(8, 0))
    assert wire.calls() == 5  # acc8, acc, emit for the record, finish


def test_a_device_below_the_root_sends_its_partial_sum_again() -> None:
    wire = Wire(4, topology="tree(2)")
    sent = wire.fabric.counters().sent
    for child in (0, 1):
        assert wire.receive(wire.up(child, 0)) == "accepted"
    assert wire.fabric.counters().sent == sent + 1
    state = wire.fabric.digest()
    assert wire.receive(wire.up(0, 0)) == "accepted"
    assert wire.fabric.counters().sent == sent + 2
    assert wire.fabric.counters().repeated == 1
    assert wire.fabric.digest() == state


def test_a_result_is_passed_on_and_kept() -> None:
    wire = Wire(4, topology="tree(2)")
    parent = wire.fabric.devices["leaf0"].node
    down = wire.down(0, 0, total(wire, 0), src=parent, dst=wire.fabric.devices["nic0"].node)
    assert wire.receive(down) == "future"  # its own partial sum is not there
    for child in (0, 1):
        wire.receive(wire.up(child, 0))
    assert wire.receive(replace(down, chunk=1)) == "key"
    assert wire.receive(replace(down, payload=down.payload[4:])) == "shape"
    assert wire.receive(replace(down, contributors=2)) == "shape"
    assert wire.receive(replace(down, src=9)) == "node"
    sent = wire.fabric.counters().sent
    assert wire.receive(down) == "accepted"
    assert wire.fabric.counters().sent == sent + 2
    assert wire.receive(down) == "duplicate"
    assert wire.receive(wire.up(1, 0)) == "accepted"
    assert wire.fabric.counters().sent == sent + 3


def test_a_root_takes_no_results() -> None:
    wire = Wire(2)
    down = wire.down(0, 0, total(wire, 0), dst=wire.fabric.devices["nic0"].node, src=1)
    assert wire.receive(down) == "kind"


def test_what_a_worker_takes() -> None:
    wire = Wire(2, 64 * 4)
    result = wire.down(0, 0, total(wire, 0))
    for reason, fields in (
        ("node", {"dst": 2}),
        ("node", {"src": 2}),
        ("group", {"group": 1}),
        ("group", {"job": 3}),
        ("lane", {"lane": 2}),
        ("child", {"child": 1}),
        ("unwanted", {"round": 1}),
        ("key", {"chunk": 1}),
        ("key", {"seq": 1}),
        ("shape", {"contributors": 1}),
        ("shape", {"element": "bf16"}),
        ("shape", {"payload": result.payload[4:]}),
        ("shape", {"moved": True}),
    ):
        assert wire.receive(replace(result, **fields), "rank0") == reason
    assert not wire.outputs[0].any()
    assert wire.receive(wire.up(0, 0, src=result.src, dst=1), "rank0") == "kind"
    assert wire.receive(result, "rank0") == "accepted"
    assert wire.outputs[0][:64].tobytes() == result.payload
    assert wire.receive(result, "rank0") == "stale"


def test_two_jobs_on_a_device_do_not_meet() -> None:
    """Frames that name the other job's group, or come from its workers, are refused."""
    wire = Wire(2)
    with wire.fabric.group(job=7) as other:
        mine = wire.up(0, 0)
        for fields in ({"job": 7}, {"group": other.number}):
            assert wire.receive(replace(mine, **fields)) == "group"
        # nothing has been started in it: there is no such turn
        assert wire.receive(replace(mine, job=7, group=other.number)) == "key"
    assert wire.receive(replace(mine, job=7, group=other.number)) == "group"
    assert wire.receive(mine) == "accepted"
