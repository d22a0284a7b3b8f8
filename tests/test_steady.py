"""Times alone: ``Fabric(time="only")``, where calls take cycles that were counted before."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import nicemu
from nicemu._core import RETURN, Cores, R, W, X
from nicemu.collectives.algorithms import ALGORITHMS
from nicemu.collectives.collective import COLLECTIVES
from nicemu.device.image import CONTEXT_SIZE, REQUIRED
from nicemu.device.machine import MACHINES
from nicemu.device.nic import ARGUMENTS, CODE, SCRATCHPAD, STACK
from nicemu.errors import ArgumentError
from nicemu.ops.flow import deciding
from nicemu.ops.steady import check_steady
from tests.assemble import assemble
from tests.encode import image
from tests.fabrics import streams

EVERY = ("in-network", *ALGORITHMS)


@pytest.mark.parametrize("collective", COLLECTIVES)
@pytest.mark.parametrize(("topology", "ranks"), [("star", 5), ("cards", 7), ("tree(2)", 8)])
@pytest.mark.parametrize("algorithm", EVERY)
def test_the_same_times(algorithm: str, topology: str, ranks: int, collective: str) -> None:
    """To the picosecond, and what they were spent on; the second time, too, when all is known."""
    arrays = [x.reshape(-1, 1) for x in streams(ranks, 8 * 7 * 5 * 12)]
    given: Any = {"broadcast": arrays[1], "barrier": []}.get(collective, arrays)
    root = 1 if COLLECTIVES[collective].rooted else 0
    results = []
    for how in ("packet", "only"):
        fabric = nicemu.Fabric(ranks, topology, time=how)
        world = nicemu.Communicator(fabric, algorithm=algorithm)
        found = [world.start(collective, given, root=root).wait() for _ in range(2)]
        results.append((found, fabric.counters()))
    (right, counted), (alone, again) = results
    for a, b in zip(right, alone, strict=True):
        assert (a.time, a.spent, a.bound) == (b.time, b.spent, b.bound)
        assert a.payload_bytes == b.payload_bytes
        assert b.values == [None] * ranks
    assert counted == again


@pytest.mark.parametrize("algorithm", EVERY)
def test_every_count_and_preset_has_cycles_of_its_own(algorithm: str) -> None:
    """One fabric, where the cycles of the one must not be taken for those of the other."""
    fabrics = [nicemu.Fabric(4, "cards", time=how) for how in ("packet", "only")]
    worlds = [nicemu.Communicator(fabric, algorithm=algorithm) for fabric in fabrics]
    for preset in ("wide", "per-hop", "per-add", "wide"):
        for count in (1, 100, 700, 2000):
            for op in ("sum", "max"):
                packet, only = (
                    world.allreduce(streams(4, count), op, preset=preset) for world in worlds
                )
                assert (packet.time, packet.spent) == (only.time, only.spent)


@pytest.mark.parametrize("time", ["packet", "only"])
@pytest.mark.parametrize("algorithm", EVERY)
def test_images_of_the_same_code_are_kept_apart(algorithm: str, time: str) -> None:
    """What merges take, and ask of banks, goes by the image's entries."""
    image = nicemu.kernel("sum", "uint8")
    fewer = replace(image, entries={name: image.entries[name] for name in REQUIRED})
    kept: list[float | None] = []
    fresh: list[float | None] = []
    world = nicemu.Communicator(nicemu.Fabric(4, "star", time=time), algorithm=algorithm)
    for one in (image, fewer):
        new = nicemu.Communicator(nicemu.Fabric(4, "star", time=time), algorithm=algorithm)
        for where, times in ((world, kept), (new, fresh)):
            times.append(where.allreduce([np.zeros(40_000, np.uint8)] * 4, one).time)
    assert kept == fresh and kept[0] != kept[1]


def test_what_merges_give_is_of_the_images_formats() -> None:
    """int8 and uint8 have the same code; the first merge of the ring is of as much as a half's."""
    world = nicemu.Communicator(nicemu.Fabric(4, "star", time="only"))
    world.allreduce([np.zeros(64, np.int8)] * 4, algorithm="halving-doubling")
    assert world.allreduce([np.zeros(128, np.uint8)] * 4, algorithm="ring").time is not None


def test_64_nodes_of_4_cards() -> None:
    """1 MiB each, which nobody has to have."""
    shape = np.broadcast_to(np.zeros(1, nicemu.bfloat16), (1 << 19,))
    times = {}
    for algorithm in EVERY:
        fabric = nicemu.Fabric(256, "cards", time="only", mtu=4096)
        result = nicemu.Communicator(fabric, algorithm=algorithm).allreduce([shape] * 256)
        assert result.time is not None and result.bound is not None
        times[algorithm] = result.time
        assert result.bound < result.time < 0.01
    assert times["halving-doubling"] < times["ring"]


def halved(a: float, b: float) -> float:
    """As often as it takes."""
    total = a + b
    while total > 1.0:
        total = total * 0.5
    return total


def test_an_op_whose_cycles_depend_on_data_is_refused() -> None:
    op = nicemu.reduce_op(halved, name="halved")
    for algorithm in EVERY:
        fabric = nicemu.Fabric(2, "star", time="only")
        world = nicemu.Communicator(fabric, algorithm=algorithm)
        with pytest.raises(ArgumentError, match=r"of halved takes .* cycles for 65 items, by"):
            world.allreduce([np.ones(10, np.float32)] * 2, op)
        assert world.allreduce([np.ones(10, np.float32)] * 2).time is not None  # others go on


def rarely(a: float, b: float) -> float:
    """Long for a single value."""
    total = a + b
    if a == 3.0:
        while total > 1.0:
            total = total * 0.5
    return total


def test_an_op_that_takes_longer_for_one_value_is_refused() -> None:
    """No trial has that value: the branch says it."""
    op = nicemu.reduce_op(rarely, name="rarely")
    world = nicemu.Communicator(nicemu.Fabric(2, "star", time="only"))
    with pytest.raises(ArgumentError, match=r"of rarely goes by values \(0x\w+: .*b\w+ "):
        world.allreduce([np.ones(10, np.float32)] * 2, op)


#: a1 points to the table of pointers, a3 to the context, a0 and the first pointer to data of 0
DECIDES = {
    "a branch": ["lw t0, 0(a0)", "beq t0, zero, 0x4"],
    "a copy of it": ["lw t0, 0(a0)", "addi t1, t0, 3", "bne zero, t1, 0x4"],
    "an address": ["lw t0, 0(a0)", "add t1, a0, t0", "lw t2, 0(t1)"],
    "the context": ["lw t0, 8(a3)", "bge t0, zero, 0x4"],
    "a payload": ["ld t0, 0(a1)", "lw t1, 0(t0)", "beq t1, zero, 0x4"],
    "a comparison": ["flw fa0, 0(a0)", "feq.s t0, fa0, fa0", "beq t0, zero, 0x4"],
    "the stack": ["lw t0, 0(a0)", "sd t0, -8(sp)", "ld t1, -8(sp)", "beq t1, zero, 0x4"],
    "part of a word on the stack": ["lw t0, 0(a0)", "sd t0, -8(sp)", "sw a2, -8(sp)",
                                    "lw t1, -4(sp)", "beq t1, zero, 0x4"],
    "an element": ["vsetivli zero, 4, e32,m1,ta,ma", "vle32.v v8, (a0)", "vmv.x.s t0, v8",
                   "beq t0, zero, 0x4"],
    "a mask": ["vsetivli zero, 4, e32,m1,ta,ma", "vle32.v v8, (a0)", "vmseq.vi v0, v8, 1",
               "vcpop.m t0, v0", "beq t0, zero, 0x4"],
    "vl": ["lw t0, 0(a0)", "vsetvli t1, t0, e32,m1,ta,ma"],
    "a stride": ["lw t0, 0(a0)", "vsetivli zero, 4, e32,m1,ta,ma", "vlse32.v v8, (a0), t0"],
    "indices": ["vsetivli zero, 4, e32,m1,ta,ma", "vle32.v v8, (a0)", "vluxei32.v v12, (a0), v8"],
    "a divisor": ["lw t0, 0(a0)", "addi t1, zero, 7", "divw t2, t1, t0"],
    "flags": ["flw fa0, 0(a0)", "fadd.s fa1, fa0, fa0", "csrrs t0, fflags, zero",
              "beq t0, zero, 0x4"],
    "an atomic": ["amoadd.w t0, a2, (a0)", "beq t0, zero, 0x4"],
}  # fmt: skip
DOES_NOT = {
    "the count": ["beq a2, zero, 0x4", "vsetvli t1, a2, e32,m1,ta,ma"],
    "a pointer": ["ld t0, 0(a1)", "lw t1, 0(t0)", "sw t1, 4(a0)"],
    "what is overwritten": ["lw t0, 0(a0)", "addi t0, zero, 0", "beq t0, zero, 0x4"],
    "a place on the stack that is overwritten": [
        "lw t0, 0(a0)", "sd t0, -8(sp)", "sd a2, -8(sp)", "ld t1, -8(sp)", "beq t1, zero, 0x4",
    ],
    "a dividend": ["lw t0, 0(a0)", "addi t1, zero, 7", "divw t2, t0, t1"],
    "a mask of additions": [
        "vsetivli zero, 4, e32,m1,ta,ma", "vle32.v v8, (a0)", "vmseq.vi v0, v8, 1",
        "vadd.vv v12, v8, v8, v0.t", "vse32.v v12, (a0)",
    ],
    "another register": [
        "lw t0, 0(a0)", "flw ft0, 0(a0)", "beq t1, zero, 0x4", "beq s0, zero, 0x4",
    ],
}  # fmt: skip


def first_deciding(lines: list[str]) -> str | None:
    cores = Cores(1, 512)
    code = image([assemble(line) for line in [*lines, "jalr zero, 0(ra)"]])
    cores.map(CODE, 4096, X)
    cores.write(CODE, code)
    for base, permission in ((SCRATCHPAD, R | W), (ARGUMENTS, R), (STACK, R | W)):
        cores.map(base, 4096, permission)
    cores.write(ARGUMENTS + CONTEXT_SIZE, SCRATCHPAD.to_bytes(8, "little"))
    cores.start_log()
    stop = cores.call(
        CODE, (SCRATCHPAD, ARGUMENTS + CONTEXT_SIZE, 65, ARGUMENTS), sp=STACK + 4096, budget=1000
    )
    assert stop.reason == RETURN
    return deciding(cores, cores.take_log())


@pytest.mark.parametrize("what", DECIDES)
def test_data_that_decide(what: str) -> None:
    found = first_deciding(DECIDES[what])
    assert found is not None
    name = found.partition(": ")[2].split()[0]
    assert name == DECIDES[what][-1].split()[0]  # and nothing before it


@pytest.mark.parametrize("what", DOES_NOT)
def test_data_that_do_not_decide(what: str) -> None:
    assert first_deciding(DOES_NOT[what]) is None


def test_an_op_whose_cycles_depend_on_the_rank_is_refused() -> None:
    def once_for_each_rank_before(x: int, ctx: nicemu.Context) -> int:
        for _ in range(ctx.rank):
            x = (x * 3) ^ 5
        return x

    op = nicemu.reduce_op(lambda a, b: a + b, name="odd", element="int32")
    op.lift(once_for_each_rank_before)
    scalar = MACHINES["cv32e40p"]
    with pytest.raises(ArgumentError, match="acc of odd takes"):
        check_steady(op.image(machine=scalar), scalar)


def test_what_is_known_of_an_image_says_nothing_of_another() -> None:
    """The code is the same; the entries are those that do next to nothing."""

    def halved(a: float, b: float) -> float:
        total = a + b
        while total > 1.0:
            total = total * 0.5
        return total

    refused = nicemu.reduce_op(halved).image("float32", None, MACHINES["card"])
    steady = replace(refused, entries=dict.fromkeys(REQUIRED, refused.entries["emit"]))
    world = nicemu.Communicator(nicemu.Fabric(2, "star", time="only"))
    check_steady(steady, MACHINES["card"])
    world._check_timing_only(steady, None, False)
    with pytest.raises(ArgumentError, match="acc of halved takes"):
        world.allreduce([np.ones(10, np.float32)] * 2, refused)


def test_a_machine_with_an_instruction_cache_is_refused() -> None:
    machine = MACHINES["pspin"]
    with pytest.raises(ArgumentError, match="or by what the core did before"):
        check_steady(nicemu.kernel("sum", "int32", None, machine), machine)


@pytest.mark.parametrize("options", [{"partials": True}, {"out": [np.ones(4, np.float32)] * 2}])
def test_what_needs_values_is_refused(options: dict[str, Any]) -> None:
    world = nicemu.Communicator(nicemu.Fabric(2, "star", time="only"))
    with pytest.raises(ArgumentError, match="with time='only', where nothing has values"):
        world.allreduce([np.ones(4, np.float32)] * 2, **options)
