"""The clock: cycles counted on open RTL, on kernels of our own; and what a clock may never do.

`python -m tests.rtl FOLDER` compares all kernels of a folder of measurements.
"""

from __future__ import annotations

import random
from dataclasses import asdict, fields, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import nicemu
from nicemu import _core
from nicemu._core import Cores
from nicemu._nicemu import ffi
from nicemu.device.machine import MACHINES, Timing
from nicemu.errors import ArgumentError, ImageError
from tests import rtl
from tests.assemble import assemble
from tests.encode import image
from tests.programs import Machine, random_program

#: the loop around every body: addi, and a taken branch of 3 cycles
LOOP = 4
ONES = "addi t0, zero, -1"


def code(lines: list[str], at: int = rtl.CODE) -> bytes:
    """Machine code at an address; {next} and {past} are 4 and 6 bytes on."""
    out = b""
    for line in lines:
        pc = at + len(out)
        out += image([assemble(line.format(next=hex(pc + 4), past=hex(pc + 6)), pc)])
    return out


def per_iteration(
    machine: nicemu.Machine, body: list[str], before: list[str] | None = None
) -> float:
    """Cycles of one turn of a loop over `body`, without the loop's own."""
    head = code(before or [])
    at = rtl.CODE + len(head)
    loop = code([*body, "addi a0, a0, -1"], at)
    loop += code([f"bne a0, zero, {at:#x}"], at + len(loop))
    totals = []
    for n in (3, 5):
        cores = rtl.hart(machine, head + loop + image([rtl.EBREAK]))
        cores.x()[10:14] = n, rtl.DATA, rtl.DATA + rtl.PAGE, rtl.DATA + 2 * rtl.PAGE
        totals.append(rtl.finish(cores)[0])
    return (totals[1] - totals[0]) / 2 - LOOP


#: body -> cycles on the RTL of CV32E40P: eight instructions or pairs a body, as the last one's
#: stall is hidden by the loop where it is one of a register
SCALAR: dict[str, tuple[list[str], int]] = {
    "dependent adds": (["add t0, t0, t1"] * 8, 8),
    "product, then used": (["mul t2, t0, t1", "add t3, t2, t1"] * 8, 16),
    "upper product": (["mulhu t2, t0, t1", "add t3, t2, t1"] * 8, 48),
    "load, then used": (["lw t2, 0(a1)", "add t3, t2, t1"] * 8, 24),
    "load, used one later": (["lw t2, 0(a1)", "add t4, t1, t1", "add t3, t2, t1"] * 8, 24),
    "load, then stored": (["lw t2, 0(a1)", "sw t2, 0(a3)"] * 8, 24),
    "load, then stored at 2 mod 4": (["lw t2, 0(a1)", "sw t2, 2(a3)"] * 8, 32),
    "word at 2 mod 4, then used": (["lw t2, 2(a1)", "add t3, t2, t1"] * 8, 32),
    "store, then loaded": (["sw t0, 0(a3)", "lw t2, 0(a3)"] * 8, 16),
    "word at 2 mod 4": (["lw t2, 2(a1)"] * 8, 16),
    "halfword inside a word": (["lh t2, 1(a1)"] * 8, 8),
    "branch not taken": (["bne t0, t0, {next}"] * 8, 8),
    "counter": (["csrrs t2, mcycle, zero"] * 8, 32),
    "hart number": (["csrrs t2, mhartid, zero"] * 8, 8),
    "fence": (["fence iorw, iorw"] * 4, 16),
    "address, then jumped to": (["auipc t2, 0x0", "addi t2, t2, 12", "jalr zero, 0(t2)"] * 4, 20),
}
#: divisor -> cycles of one division
DIVISORS = {3: 33, 0: 35, -(1 << 31): 3, 5: 32, 256: 26, -1: 34}
#: body -> cycles at FPU latencies 0, 1 and 2
FP: dict[str, tuple[list[str], tuple[int, int, int]]] = {
    "dependent sums": (["fadd.s ft0, ft0, ft1"] * 8, (8, 15, 22)),
    "sums": (["fmin.s ft2, ft0, ft1", "fsgnj.s ft3, ft0, ft1"] * 4, (8, 8, 22)),
    "sum, then stored": (["fadd.s ft2, ft0, ft1", "fsw ft2, 0(a3)"] * 8, (16, 24, 32)),
    "load, then added": (["flw ft2, 0(a3)", "fadd.s ft3, ft2, ft1"] * 8, (24, 24, 24)),
    "comparison, then a branch": (["feq.s t1, ft0, ft1", "bne t1, zero, {next}"] * 4, (8, 12, 16)),
    "sum, two integer sums": (
        ["fadd.s ft2, ft0, ft1", "add t1, t0, t0", "add t2, t0, t0", "fadd.s ft3, ft2, ft1"] * 8,
        (32, 32, 54),
    ),
    "quotient, then added": (["fdiv.s ft2, ft0, ft1", "fadd.s ft3, ft2, ft1"] * 2, (40, 41, 42)),
}
FP_HEAD = ["addi t0, zero, 3", "fcvt.s.w ft0, t0", "addi t0, zero, 5", "fcvt.s.w ft1, t0"]


@pytest.mark.parametrize("name", SCALAR)
def test_scalar_code_takes_the_cycles_of_rtl(name: str) -> None:
    body, cycles = SCALAR[name]
    assert per_iteration(MACHINES["cv32e40p"], body) == cycles


@pytest.mark.parametrize("divisor", DIVISORS)
@pytest.mark.parametrize("name", ["div", "rem", "divw", "remw"])
def test_division_takes_a_cycle_for_each_leading_zero(name: str, divisor: int) -> None:
    head = [f"lui t1, {divisor >> 12 & 0xFFFFF:#x}"] if abs(divisor) > 2047 else []
    head = head or [f"addi t1, zero, {divisor}"]
    body = [f"{name} t2, t0, t1", "add t3, t0, t1"] * 4
    got = per_iteration(MACHINES["cv32e40p"], body, head)
    assert got == 4 * (DIVISORS[divisor] + 1)


@pytest.mark.parametrize("latency", [0, 1, 2])
@pytest.mark.parametrize("name", FP)
def test_fp_code_takes_the_cycles_of_rtl(name: str, latency: int) -> None:
    body, cycles = FP[name]
    machine = rtl.core_of(f"cv32e40p-fpu-lat{latency}")
    assert per_iteration(machine, body, FP_HEAD) == cycles[latency]


@pytest.mark.parametrize(
    ("body", "cycles"),
    [
        (["beq zero, zero, {next}"], 3),
        (["jal zero, {next}"], 2),
        (["jal zero, {past}", "c.nop", "c.nop"], 3),
    ],
)
def test_transfers(body: list[str], cycles: int) -> None:
    """A taken branch, a jump, a jump to a compressed instruction at 2 mod 4."""
    assert per_iteration(MACHINES["cv32e40p"], body) == cycles


def test_a_target_at_2_mod_4_of_four_bytes_costs_a_fetch() -> None:
    """c.nop first: the loop's head is then misaligned."""
    aligned = per_iteration(MACHINES["cv32e40p"], ["add t0, t0, t1"], ["c.nop", "c.nop"])
    assert aligned == 1
    assert per_iteration(MACHINES["cv32e40p"], ["add t0, t0, t1"], ["c.nop"]) == 2
    assert per_iteration(MACHINES["cv32e40p"], ["c.nop", "add t0, t0, t1"], ["c.nop"]) == 2


#: sequence -> cycles a turn on the RTL of Spatz, at W words of 256 bits and memory latency m
VECTOR: dict[str, Any] = {
    "vfadd_indep": lambda w, m: 2 * w,
    "vfadd_dep": lambda w, m: max(w, 4),
    "vadd_indep": lambda w, m: 8 * w,
    "vle": lambda w, m: 2 * (w + 1),
    "vse": lambda w, m: 2 * (w + 4),
    "vlse16": lambda w, m: 4 * w + 1,
    "vslidedown": lambda w, m: w + 2,
    "fp_int_alt": lambda w, m: 5 * w + 7,
    "vfmacc_dep": lambda w, m: max(w, 4),
}
#: ... of four instructions: load, load, add, store, by W
MEASURED_LOOP = {2: 19, 8: 34}


@pytest.mark.parametrize("lmul", [1, 2, 4])
@pytest.mark.parametrize("memory", [1, 3])
@pytest.mark.parametrize("name", VECTOR)
def test_vector_code_takes_the_cycles_of_rtl(name: str, memory: int, lmul: int) -> None:
    machine = MACHINES["spatz"]
    machine = replace(machine, timing=replace(machine.timing, memory_latency=memory))
    body, vtype = rtl.sequence(name, 16, lmul), f"e16,m{lmul},ta,ma"
    a, b = (rtl.repeated(machine, body, vtype, n) for n in (16, 32))
    assert (b - a) / 16 == VECTOR[name](2 * lmul, memory)


@pytest.mark.parametrize("memory", [1, 3])
@pytest.mark.parametrize("words", MEASURED_LOOP)
def test_a_loop_is_bound_by_the_one_load_store_unit(words: int, memory: int) -> None:
    machine = MACHINES["spatz"]
    machine = replace(machine, timing=replace(machine.timing, memory_latency=memory))
    body = rtl.sequence("vfadd_loop", 16, words // 2)
    a, b = (rtl.repeated(machine, body, f"e16,m{words // 2},ta,ma", n) for n in (16, 32))
    assert (b - a) / 16 == MEASURED_LOOP[words] + memory - 1


# ---- what a clock may never do ---------------------------------------------------------------


def test_timing_is_the_c_struct() -> None:
    names = [name for name, _ in ffi.typeof("nicemu_timing").fields]
    assert names == [f.name for f in fields(Timing)]


def test_rejected_costs() -> None:
    good = asdict(MACHINES["card"].timing)
    for bad in ({"port": 2}, {"line": 3}, {"in_flight": 5}, {"word": 100}, {"jump": 4096}):
        with pytest.raises(ArgumentError, match="costs of the machine"):
            Cores().start_clock(**{**good, **bad})
    with pytest.raises(ArgumentError, match="costs of the machine"):  # V without a vector unit
        Cores().start_clock(**asdict(MACHINES["cv32e40p"].timing))


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 1 << 32), st.integers(1, 40))
@example(11463587, 1)  # what writes the register of an FPU result that is there already
def test_bits_do_not_change_and_cycles_do_not_depend_on_the_cut(seed: int, turn: int) -> None:
    for line in (0, 16):  # without and with an instruction cache
        check_cut(replace(MACHINES["card"].timing, line=line, miss=line // 2), seed, turn)


def check_cut(timing: Timing, seed: int, turn: int) -> None:
    """Random code, in whole blocks and cut into turns of so many instructions."""
    words = random_program(random.Random(seed), 24)
    plain, timed, cut = Machine(), Machine(), Machine()
    for machine in (timed, cut):
        machine.cores.start_clock(**asdict(timing))
    for machine, most in ((plain, 1 << 20), (timed, 1 << 20), (cut, turn)):
        machine.load(words)
        machine.start(seed)
        while machine.cores.run(most).reason == _core.BUDGET:
            pass
    assert timed.state() == cut.state() == plain.state()
    cycles = timed.cores.cycles()
    assert cycles == cut.cores.cycles()
    assert sum(cycles.terms.values()) == cycles.total
    assert cycles.terms["issue"] == plain.state().counters.instructions


#: loops whose turns are not all alike: their bodies, and what comes before them
LOOPS: dict[str, tuple[list[str], list[str]]] = {
    "the last strip is shorter": (
        ["vsetvli a5, a4, e16,m2,ta,ma", "vle16.v v8, (a1)", "vfadd.vv v8, v8, v8",
         "vse16.v v8, (a2)", "sub a4, a4, a5", "addi a1, a1, 2"],
        ["lui a4, 0x3"],
    ),
    "vtype alone is set between": (
        ["vsetvli a5, a4, e16,m1,ta,ma", "vle16.v v8, (a1)", "vsetvli zero, zero, e32,m2,ta,ma",
         "vfadd.vv v10, v10, v10", "vsetvli zero, zero, e16,m1,ta,ma", "vfadd.vv v8, v8, v8",
         "sub a4, a4, a5"],
        ["addi a4, zero, 300"],
    ),
    "vtype alone is set, and cuts vl": (
        ["vsetvli a5, a4, e8,m8,ta,ma", "vadd.vv v8, v8, v8", "vsetvli zero, zero, e32,m1,ta,ma",
         "vadd.vv v8, v8, v8", "vsetvli zero, zero, e8,m8,ta,ma", "vadd.vv v8, v8, v8",
         "addi a4, a4, -3"],
        ["addi a4, zero, 120"],
    ),
    "vl comes from a register": (
        ["vsetvl a5, a4, a3", "vadd.vv v8, v8, v8", "vsetvli zero, zero, e16,m4,ta,ma",
         "vadd.vv v8, v8, v8", "addi a4, a4, -7"],
        ["addi a4, zero, 100", "addi a3, zero, 10"],
    ),
    "vl is not set in it": (
        ["vadd.vv v8, v8, v8", "vle16.v v12, (a1)"], ["vsetivli zero, 9, e16,m1,ta,ma"],
    ),
    "an access crosses words now and then": (
        ["lw t0, 0(a1)", "add t1, t0, t0", "addi a1, a1, 6"], [],
    ),
    "divisors differ": (["div t0, a1, a0", "add t1, t0, t0"], []),
    "two blocks": (["beq t0, t1, {next}", "addi t0, t0, 1"], []),
}  # fmt: skip


@pytest.mark.parametrize("name", LOOPS)
def test_loops_whose_turns_differ(name: str) -> None:
    """By whole blocks, and by as few instructions at a time as the run is cut into."""
    body, before = LOOPS[name]
    at = rtl.CODE + 4 * len(before)
    loop = code([*body, "addi a0, a0, -1"], at)
    loop += code([f"bne a0, zero, {at:#x}"], at + len(loop))
    program = code(before) + loop + image([rtl.EBREAK])
    counted = []
    for most in (1 << 40, 1, 7, 3000):
        cores = rtl.hart(MACHINES["card"], program)
        cores.x()[10:13] = 600, rtl.DATA, rtl.DATA + rtl.PAGE
        while cores.run(most).reason == _core.BUDGET:
            pass
        counted.append((cores.cycles(), cores.counters()))
    assert all(each == counted[0] for each in counted[1:])
    assert counted[0][0].total > counted[0][1].instructions


def test_a_load_that_gives_up_cuts_vl() -> None:
    """vle16ff.v at the end of its region, in a loop: then fewer elements, and fewer cycles."""
    lines = ["vsetvli a5, zero, e16,m1,ta,ma", "vle16ff.v v8, (a1)", "vadd.vv v8, v8, v8"]
    loop = code([*lines, "addi a1, a1, 6", "addi a0, a0, -1"])
    loop += code([f"bne a0, zero, {rtl.CODE:#x}"], rtl.CODE + len(loop)) + image([rtl.EBREAK])
    counted = []
    for most in (1 << 40, 1):
        cores = rtl.hart(MACHINES["card"], loop)
        cores.x()[10:12] = 20, rtl.DATA + 4 * rtl.PAGE - 128
        while cores.run(most).reason == _core.BUDGET:
            pass
        counted.append((cores.cycles(), cores.counters()))
    assert counted[0] == counted[1]
    assert counted[0][1].elements < 20 * 64


@pytest.mark.parametrize("machine", ["card", "spatz"])
def test_cycles_do_not_depend_on_threads(machine: str) -> None:
    rng = np.random.default_rng(7)
    data = [rng.standard_normal(40_000).astype(nicemu.bfloat16) for _ in range(3)]
    got = []
    for threads in (1, 2):
        nic = nicemu.Nic(machine, threads=threads, cycles=True)
        nic.load(nicemu.kernel("sum", "bfloat16"))
        nic.reduce(data)
        got.append([c.cycles for c in nic.reduce(data).cores])
    assert got[0] == got[1]
    assert all(c is not None and c.total > c.terms["issue"] > 0 for c in got[0])


def test_a_device_without_a_clock_says_nothing() -> None:
    nic = nicemu.Nic()
    nic.load(nicemu.kernel("sum", "float32"))
    result = nic.reduce([np.ones(64, np.float32)] * 2)
    assert all(c.cycles is None for c in result.cores)
    assert "cycles" not in str(result)


def test_a_core_without_a_vector_unit_takes_no_vector_code() -> None:
    nic = nicemu.Nic("pspin", cycles=True)
    with pytest.raises(ImageError, match="image of sum needs v, zba, which cores of pspin lack"):
        nic.load(nicemu.kernel("sum", "float32"))


def test_a_line_of_code_is_fetched_once() -> None:
    """PsPIN: 28 instructions of 4 bytes are 7 lines of 16, and warm afterwards."""
    machine = MACHINES["pspin"]
    cores = rtl.hart(machine, image([assemble(ONES)] * 28 + [rtl.EBREAK]))
    rtl.finish(cores)
    assert cores.cycles().terms["fetch"] == 7 * 7
    cores.set_pc(rtl.CODE)
    before = cores.cycles()
    rtl.finish(cores)
    assert (cores.cycles() - before).terms["fetch"] == 0


@pytest.mark.parametrize("most", [1 << 40, 1])
def test_a_fetch_passes_before_its_instruction(most: int) -> None:
    """PsPIN: what is loaded at the end of a line is there when the next line is."""
    load = ["addi t2, t2, 1"] * 3 + ["lw t0, 0(a1)"]
    cores = rtl.hart(MACHINES["pspin"], code([*load, "add t1, t0, t0"]) + image([rtl.EBREAK]))
    cores.x()[11] = rtl.DATA
    while cores.run(most).reason == _core.BUDGET:
        pass
    terms = cores.cycles().terms
    assert (terms["fetch"], terms["hazards"]) == (2 * 7, 0)
