"""What instructions cost on a machine, by class: measured on an emulated core whose clock runs.

Owns: the loops that are run, one instruction over and over, and how their cycles are shown.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from nicemu._core import Cores, Insn, R, W, X, instructions
from nicemu.arguments import known
from nicemu.device.isa import extensions
from nicemu.device.machine import Machine
from nicemu.device.words import code, operands, vtype, word
from nicemu.errors import TimingError
from nicemu.tables import Table, Tabled

__all__ = ["LMULS", "SEWS", "InsnCost", "InsnCosts", "insn_costs"]

SEWS = (8, 16, 32, 64)
LMULS = (1, 2, 4, 8)

# ---- results -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class InsnCost:
    """What one instruction costs; cycles each, in a long sequence of them.

    Attributes:
        cls: its unit/latency class (nicemu._core.class_names).
        instruction: its mnemonic, and an operand where cycles depend on it.
        sew, lmul: bits of an element and registers of a group; None of scalar instructions.
        latency: cycles each where every one needs the result of the one before; None: there is no
            such sequence of it alone.
        cycles: each where none needs another's.
        elements: of its vectors; None of instructions that have none.
    """

    cls: str
    instruction: str
    sew: int | None
    lmul: int | None
    latency: float | None
    cycles: float
    elements: int | None

    @property
    def per_cycle(self) -> float | None:
        """Elements a cycle where no instruction needs another's result."""
        return None if self.elements is None else self.elements / self.cycles

    def record(self) -> dict[str, Any]:
        """For JSON and CSV."""
        return {**asdict(self), "elements_per_cycle": self.per_cycle}


@dataclass(frozen=True, repr=False)
class InsnCosts(Tabled):
    """What instructions cost on a machine, a row for each that was measured."""

    machine: Machine
    rows: tuple[InsnCost, ...]

    def record(self) -> dict[str, Any]:
        """For JSON."""
        return {"machine": asdict(self.machine), "rows": [row.record() for row in self.rows]}

    def tables(self) -> tuple[Table, ...]:
        """For people: scalar instructions, and those of vectors where the machine has them."""
        m = self.machine
        head = f"cycles of instructions on {m.name}"
        costs = ("latency", "cycles each")
        scalar = Table(
            f"{head}: latency where each needs the one before, and each where none does",
            ("class", "instruction", *costs),
            [
                (row.cls, row.instruction, _text(row.latency), _text(row.cycles))
                for row in self.rows
                if row.sew is None
            ],
            {"instruction"},
        )
        vector = Table(
            f"{head}, vectors of VLEN {m.vlen}",
            ("class", "instruction", "SEW", "LMUL", *costs, "elements", "per cycle"),
            [
                (row.cls, row.instruction, row.sew, row.lmul, _text(row.latency),
                 _text(row.cycles), row.elements or "-", _text(row.per_cycle))
                for row in self.rows
                if row.sew is not None
            ],
            {"instruction"},
        )  # fmt: skip
        return (scalar, vector) if vector.rows else (scalar,)


def _text(cycles: float | None) -> str:
    return "-" if cycles is None else f"{cycles:,.3f}".rstrip("0").rstrip(".")


# ---- which instructions --------------------------------------------------------------------------


@dataclass(frozen=True)
class _Case:
    """An instruction to be measured.

    Attributes:
        name: its mnemonic; {w}: SEW.
        chain: the operand that takes the result of the one before; "": the one that is written is
            read anyway; None: there is none.
        operands: of other operands than registers.
        value: of the integer registers that it reads, if any.
        sews: of vectors: at which it is measured.
        wide: registers of the largest group, in LMUL.
    """

    name: str
    chain: str | None = None
    operands: tuple[int | str, ...] = ()
    value: int = 3
    sews: tuple[int, ...] = SEWS
    wide: int = 1


FLOAT_SEWS = (16, 32, 64)
NEXT = (4,)  # the target of a transfer: what follows anyway
#: at least one of each class but `system`, which ends what runs
SCALAR: tuple[_Case, ...] = (
    _Case("add", "rs1"),
    _Case("mul", "rs1"),
    _Case("mulh", "rs1"),
    _Case("div", "rs1", value=3),
    _Case("div", "rs1", value=1 << 30),
    _Case("ld", "rs1", (0,)),
    _Case("lw", None, (0,)),
    _Case("flw", None, (0,)),
    _Case("sd", None, (0,)),
    _Case("amoadd.d", "rs2"),
    _Case("bne", None, NEXT),
    _Case("beq", None, NEXT),
    _Case("jal", None, NEXT),
    _Case("csrrs", None, ("mcycle",)),
    _Case("fence"),
    *(
        _Case(f"{name}.{fmt}", "frs1")
        for name in ("fadd", "fmul", "fmadd", "fdiv", "fsqrt", "fmin")
        for fmt in ("h", "s")
    ),
    _Case("fcvt.s.h", "frs1"),
    _Case("fcvt.s.bf16", "frs1"),
)
VECTOR: tuple[_Case, ...] = (
    _Case("vsetvli"),
    _Case("vle{w}.v"),
    _Case("vse{w}.v"),
    _Case("vlse{w}.v", value=16),
    _Case("vluxei{w}.v", "vs2"),
    _Case("vadd.vv", "vs2"),
    _Case("vmul.vv", "vs2"),
    _Case("vdiv.vv", "vs2"),
    _Case("vfadd.vv", "vs2", sews=FLOAT_SEWS),
    _Case("vfwadd.wv", "vs2", sews=(16, 32), wide=2),
    _Case("vfmul.vv", "vs2", sews=FLOAT_SEWS),
    _Case("vfmacc.vv", "", sews=FLOAT_SEWS),
    _Case("vfwmaccbf16.vv", "", sews=(16,), wide=2),
    _Case("vfdiv.vv", "vs2", sews=FLOAT_SEWS),
    _Case("vfsqrt.v", "vs2", sews=FLOAT_SEWS),
    _Case("vfwcvt.f.f.v", sews=(16, 32), wide=2),
    _Case("vfncvt.f.f.w", sews=(16, 32), wide=2),
    _Case("vfmin.vv", "vs2", sews=FLOAT_SEWS),
    _Case("vfredusum.vs", "vs1", sews=FLOAT_SEWS),
    _Case("vredsum.vs", "vs1"),
    _Case("vslidedown.vi", "vs2", (1,)),
    _Case("vrgather.vv"),
    _Case("vmand.mm", "vs2"),
    _Case("vmv.v.v", "vs1"),
)

# ---- how they are measured -----------------------------------------------------------------------
CODE, DATA = 0x10000, 0x100000
SIZE = 1 << 16  # bytes of each; the largest vectors have 1 KiB
BREAKPOINT = 3  # mcause of what ends a loop
UNITS_ON = 3 << 13 | 3 << 9  # mstatus.FS, VS
ZERO, TIMES, BASE, VALUE = 0, 10, 11, 12  # x0; iterations; where loads and stores go; a source
TAKEN = 13  # elements that vset grants
CHAINED = {"rd": 5, "frd": 5, "vd": 8}  # what a chain goes through
#: what is written in turn where there is none; vector registers by the largest group
INTEGERS = (5, 6, 7, 28, 29, 30, 31)
FLOATS = (5, 6, 7, 28, 29, 30, 31)
VECTORS = range(8, 24)
SOURCES = {"frs1": 0, "frs2": 1, "frs3": 2, "vs1": 24, "vs2": 0, "vs3": 0}
SHORT, LONG = 16, 32  # instructions of a loop
ITERATIONS = 4


def insn_costs(
    machine: Machine,
    sews: Sequence[int] = (16, 32),
    lmuls: Sequence[int] = (1, 4),
    advance: Callable[[int, int], None] = lambda done, total: None,
) -> InsnCosts:
    """Measure instructions of every class that the machine has.

    A loop of 32 of them and one of 16 are run, after a first run that fills the instruction cache;
    the difference of their cycles is that of 16 instructions, without the loop's own.

    Args:
        machine: whose core and vector unit.
        sews, lmuls: of vector instructions; what an instruction does not have is left out.
        advance: is told how many of how many instructions are done.

    Raises:
        ArgumentError: sews or lmuls that there are not.
    """
    for what, values, among in (("sew", sews, SEWS), ("lmul", lmuls, LMULS)):
        for value in values:
            known(what, str(value), map(str, among))
    on = None if machine.isa is None else set(extensions(machine.isa, machine.vlen))
    rows = {row.name: row for row in instructions()}
    todo: list[tuple[Insn, _Case, int, int]] = []
    for case in SCALAR:
        todo.append((rows[case.name], case, 0, 0))
    for case in VECTOR if machine.timing.word else ():
        for sew in sews:
            for lmul in lmuls:
                if sew in case.sews and lmul * case.wide <= 8:
                    todo.append((rows[case.name.format(w=sew)], case, sew, lmul))
    todo = [one for one in todo if on is None or one[0].extension in on]
    found = []
    for i, (row, case, sew, lmul) in enumerate(todo):
        advance(i, len(todo))
        chain = None if case.chain is None else _each(machine, row, case, sew, lmul, chained=True)
        name = f"{row.name} by {case.value:#x}" if row.cls == "div" else row.name
        if row.cls == "branch":
            name += ", taken" if row.name == "beq" else ", not taken"
        cost = InsnCost(
            cls=row.cls,
            instruction=name,
            sew=sew or None,
            lmul=lmul or None,
            latency=chain,
            cycles=_each(machine, row, case, sew, lmul, chained=False),
            elements=machine.vlen * lmul // sew if sew and row.cls != "vset" else None,
        )
        _check(cost, machine)
        found.append(cost)
    return InsnCosts(machine, tuple(found))


def _check(cost: InsnCost, machine: Machine) -> None:
    """A core issues one instruction in a cycle; its vector unit reads one word of a group.

    Raises:
        TimingError: the cycles are less.
    """
    least = 1.0
    if cost.elements and cost.sew and cost.cls != "vmask":  # of bits
        least = max(least, cost.elements * cost.sew / machine.timing.word)
    if min(cost.cycles, cost.latency or least) < least:
        raise TimingError(
            f"{cost.instruction} on {machine.name} takes {cost.cycles:g} cycles: its operands "
            f"alone take {least:g}: mend the machine's timing"
        )


def _each(machine: Machine, row: Insn, case: _Case, sew: int, lmul: int, *, chained: bool) -> float:
    """Cycles of each instruction of a long sequence."""
    totals = []
    for copies in (SHORT, LONG):
        body = [_instruction(row, case, i, sew, lmul, chained) for i in range(copies)]
        head = [word("vsetvli", TAKEN, ZERO, vtype(sew, lmul))] if sew else []
        loop = [*body, word("addi", TIMES, TIMES, -1)]
        loop += [word("bne", TIMES, ZERO, -4 * len(loop))]
        totals.append(_cycles(machine, code([*head, *loop, word("ebreak")]), case.value))
    return (totals[1] - totals[0]) / ((LONG - SHORT) * ITERATIONS)


def _instruction(row: Insn, case: _Case, i: int, sew: int, lmul: int, chained: bool) -> int:
    """The i-th of a sequence."""
    pools = {"rd": INTEGERS, "frd": FLOATS, "vd": VECTORS[:: max(lmul * case.wide, 1)]}
    names = operands(row)
    written = next((name for name in names if name in CHAINED), "")
    rest = iter(case.operands)
    values: list[int | str] = []
    for name in names:
        if name == written or (chained and name == case.chain):
            values.append(CHAINED[written] if chained else pools[name][i % len(pools[name])])
        elif name in SOURCES:
            values.append(SOURCES[name])
        elif name == "rs1" and row.cls in ("load", "store", "amo", "vload", "vstore"):
            values.append(BASE)
        elif name == "rs1" and row.cls in ("csr", "vset"):
            values.append(ZERO)
        elif name in ("rs1", "rs2"):
            values.append(VALUE)
        elif name == "vtype":
            values.append(vtype(sew, lmul))
        else:
            values.append(next(rest))
    return word(row.name, *values)


def _cycles(machine: Machine, program: bytes, value: int) -> int:
    """Of a loop whose code has been fetched before."""
    on = None if machine.isa is None else extensions(machine.isa, machine.vlen)
    cores = Cores(1, machine.vlen, extensions=on)
    cores.map(CODE, SIZE, R | X)
    cores.map(DATA, SIZE, R | W)
    cores.write(CODE, program)
    cores.write(DATA, DATA.to_bytes(8, "little"))  # a pointer to itself, for chains of loads
    cores.set_csr("mstatus", UNITS_ON)
    cores.start_clock(**asdict(machine.timing))
    for _ in range(2):
        cores.clear_counters()
        cores.set_pc(CODE)
        x = cores.x()
        x[CHAINED["rd"]], x[TIMES], x[BASE], x[VALUE] = DATA, ITERATIONS, DATA + SIZE // 2, value
        stop = cores.run(1 << 30)
        fault = stop.fault()
        if fault is None or fault.cause != BREAKPOINT:
            raise AssertionError(f"a loop of one instruction ended with {fault}")
    return cores.cycles().total
