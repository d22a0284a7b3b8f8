"""Two end states against each other; the first instruction that differs; the manual's freedoms.

Where the manual leaves a choice and both machines make the same one, it is compared like anything
else, so that the choice is held here.  In V, by its chapters:

- 3.4.3: agnostic elements, those behind vl in masks included, stay undisturbed.
- 3.7: an instruction goes on from any vstart but where the manual makes it illegal, and an access
  that faults leaves vstart at its element; the elements, and the fields of a segment, before the
  fault are done (7.8: those fields may be).
- 5.2: one register read with two EEWs is reserved; it is executed, each operand sees its own EEW.
- 6.3: vl = min(AVL, VLMAX), also between VLMAX and 2 * VLMAX.
- 7.6: unordered indexed accesses go in element order.
- 7.7: fault-only-first shortens vl where an element faults, and nowhere else.
- 14.3: an unordered sum is added in element order, as the ordered one.

Elsewhere: mtval of an illegal instruction is its encoding, of ebreak its pc, of an access the first
byte out of reach; misaligned accesses work, misaligned atomics trap as misaligned (spike.cc asks
Spike for both); WFI completes at once, and traps at once under TW; reserved rounding modes are
illegal; cycle counts instructions.

Where they choose differently, our choice and its reason are with FREEDOMS, MODIFIED,
``relaxed_mstatus`` or ``generate.EXCLUDED_CSRS``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from tests.encode import rows, size
from tests.lockstep.layout import (
    CSRS,
    END_FIELDS,
    END_STEPS,
    END_TRAP,
    REGIONS,
    STEPS,
    Batch,
    fetched,
)
from tests.lockstep.oracle import Oracle
from tests.lockstep.subject import Results, Subject

__all__ = ["FREEDOMS", "MODIFIED", "Difference", "Pair", "State", "differing"]

MSTATUS = CSRS.index("mstatus")
UNITS = (3 << 9, 3 << 13)  # VS, FS
SD = 1 << 63


def relaxed_mstatus(ours: np.ndarray, spike: np.ndarray) -> np.ndarray:
    """Spike's mstatus, with our FS and VS where those are a legal answer.

    Privileged manual, 3.1.6.6: FS and VS may be set to Dirty without a change of state.  nicemu
    marks a unit dirty by every instruction that needs it and is no store, which costs one test a
    block and not one an instruction; Spike by writes of a register or of a flag.  What Spike calls
    dirty must be dirty here.
    """
    out: np.ndarray = spike.copy()
    for field in UNITS:
        dirty = (ours & field == field) & (spike & field != 0)
        out[dirty] |= np.uint64(field)
    dirty = np.any([out & field == field for field in UNITS], axis=0)
    out[dirty] |= np.uint64(SD)
    return out


def differing(spike: Batch, ours: Results) -> np.ndarray:
    """For each slot: do the end states differ?"""
    bad: np.ndarray = np.zeros(spike.slots, bool)
    for name in ("memory_out", "x_out", "f_out", "v_out"):
        a = getattr(spike, name).reshape(spike.slots, -1).view(np.uint64)
        bad |= np.any(a != getattr(ours, name).reshape(spike.slots, -1).view(np.uint64), axis=1)
    csrs = spike.csrs.copy()
    csrs[:, MSTATUS] = relaxed_mstatus(ours.csrs[:, MSTATUS], csrs[:, MSTATUS])
    bad |= np.any(csrs != ours.csrs, axis=1)
    keep = [0, 1, 3, 4]  # steps are Spike's alone
    bad |= np.any(spike.end[:, keep] != ours.end[:, keep], axis=1)
    return bad


def describe(theirs: Batch | Results, ours: Results, slot: int, whose: str = "spike") -> list[str]:
    """Every part of the state that differs: `name: their value ours our value`."""
    out = []
    for letter in "xf":
        a, b = getattr(theirs, f"{letter}_out")[slot], getattr(ours, f"{letter}_out")[slot]
        out += [
            f"{letter}{i}: {whose} {a[i]:#018x} ours {b[i]:#018x}" for i in np.flatnonzero(a != b)
        ]
    a, b = theirs.v_out[slot], ours.v_out[slot]
    for i in np.flatnonzero(np.any(a != b, axis=1)):
        out.append(
            f"v{i}: {whose} {a[i][::-1].tobytes().hex()}\n       ours {b[i][::-1].tobytes().hex()}"
        )
    csrs = theirs.csrs[slot : slot + 1].copy()
    if isinstance(theirs, Batch):
        csrs[:, MSTATUS] = relaxed_mstatus(ours.csrs[slot : slot + 1, MSTATUS], csrs[:, MSTATUS])
    for i in np.flatnonzero(csrs[0] != ours.csrs[slot]):
        out.append(f"{CSRS[i]}: {whose} {csrs[0, i]:#x} ours {ours.csrs[slot, i]:#x}")
    ends = zip(END_FIELDS, theirs.end[slot].tolist(), ours.end[slot].tolist(), strict=True)
    for name, left, right in ends:
        if name in ("pc", "mode", "reason", "retired") and left != right:
            out.append(f"{name}: {whose} {left:#x} ours {right:#x}")
    a, b = theirs.memory_out[slot], ours.memory_out[slot]
    for r in REGIONS:
        at = slice(r.offset, r.offset + r.size)
        part = np.flatnonzero(a[at] != b[at]).tolist()
        if part:
            first = r.offset + part[0]
            text = f"{len(part)} bytes from {r.base + part[0]:#x}"
            values = [m[first : first + 8].tobytes().hex() for m in (a, b)]
            out.append(f"memory: {text}: {whose} {values[0]} ours {values[1]}")
    return out


@dataclass
class State:
    """One architectural state, as numbers."""

    pc: int
    mode: int
    x: np.ndarray
    f: np.ndarray
    v: np.ndarray
    csrs: dict[str, int]
    memory: np.ndarray

    @classmethod
    def at_start(cls, programs: Batch, slot: int) -> State:
        """The state in which a program begins; CSRs are left out."""
        start = programs.start[slot].tolist()
        registers = (programs.x[slot], programs.f[slot], programs.v[slot])
        return cls(start[0], start[1], *registers, {}, programs.memory[slot])

    def fetch(self, pc: int) -> bytes:
        """The instruction at pc, as much of it as is mapped."""
        return fetched([self.memory[r.offset : r.offset + r.size] for r in REGIONS], pc)

    def word(self, pc: int | None = None) -> int | None:
        """The instruction at pc, or None where it is not mapped."""
        raw = self.fetch(self.pc if pc is None else pc)
        return int.from_bytes(raw, "little") if raw and len(raw) == size(raw[0]) else None


def state_of(results: Batch | Results, slot: int = 0) -> State:
    """The end state of a slot."""
    csrs = {name: int(v) for name, v in zip(CSRS, results.csrs[slot], strict=True)}
    end = results.end[slot]
    arrays = (results.x_out, results.f_out, results.v_out)
    x, f, v = (a[slot].copy() for a in arrays)
    return State(int(end[0]), int(end[1]), x, f, v, csrs, results.memory_out[slot].copy())


@dataclass
class Difference:
    """The first step after which two runs of one program differ.

    Attributes:
        step: how many steps went before it.
        before: the common state before it.
        spike, ours: the states after it.
        word: the instruction; None: it could not be fetched.
        row: its row here, None: no instruction of the table.
        text: disassembly.
        parts: what differs.
        freedom: name of the freedom of the manual that explains it.
    """

    step: int
    before: State
    spike: State
    ours: State
    word: int | None
    row: str | None
    text: str
    parts: list[str]
    freedom: str | None = None

    def __str__(self) -> str:
        b = self.before
        vtype = f"vtype={b.csrs['vtype']:#x} vl={b.csrs['vl']} vstart={b.csrs['vstart']}"
        where = f"step {self.step}, pc {b.pc:#x}, mode {b.mode}, frm={b.csrs['frm']}, {vtype}"
        code = "no instruction" if self.word is None else f"{self.word:#010x}  {self.text}"
        return "\n".join([code, f"  {where}", *(f"  {p}" for p in self.parts)])


# ---- freedoms ------------------------------------------------------------------------------------


def long_word(d: Difference) -> bool:
    """Unprivileged manual, 1.5: encodings of more than 32 bits are not frozen.

    Where a region ends inside of one Spike reports the fetch that fails; nicemu takes it for 32
    bits and illegal, because no bits behind those could make it legal.
    """
    ends = [r.base + r.size for r in REGIONS]
    long = d.word is not None and d.word & 0x1F == 0x1F
    illegal = d.ours.csrs["mcause"] == 2
    return long and illegal and d.spike.csrs["mcause"] == 1 and d.spike.csrs["mtval"] in ends


def sc_granule(d: Difference) -> bool:
    """Unprivileged manual, "A": an SC may succeed when its bytes are within the reservation set.

    nicemu's set is the 64-byte granule of the LR, as in cores that reserve a cache line; Spike's is
    the LR's address alone.
    """
    if d.row not in ("sc.w", "sc.d") or d.word is None:
        return False
    rd = d.word >> 7 & 31
    result = [] if rd == 0 else [f"x{rd}"]
    succeeded = rd == 0 or (int(d.spike.x[rd]), int(d.ours.x[rd])) == (1, 0)
    return succeeded and {p.split(":")[0] for p in d.parts} <= {"memory", *result}


def cut_store(d: Difference) -> bool:
    """Unprivileged manual, 2.6: a misaligned store may be done in parts.

    At the end of a region Spike stores the part that fits before it traps on the rest; nicemu
    stores nothing of that element, so that what faulted can be done again.
    """
    ends = [r.base + r.size for r in REGIONS]
    tval = d.ours.csrs["mtval"]
    where = REGIONS[ends.index(tval)] if tval in ends else REGIONS[0]
    offset = where.offset + where.size if tval in ends else 0
    changed = np.flatnonzero(d.spike.memory != d.ours.memory)
    trapped = d.ours.csrs["mcause"] == 7 and d.ours.csrs["mepc"] == d.before.pc
    only = trapped and len(d.parts) == 1
    return only and bool(np.all((changed < offset) & (changed >= offset - 7)))


def kept_vl(d: Difference) -> bool:
    """V, 6.2: vset{i}vl x0, x0 under a new VLMAX is reserved; implementations may set vill.

    Spike does; nicemu takes min(vl, VLMAX), as for an AVL of vl.
    """
    unnamed = d.word is not None and d.word >> 7 & 31 == 0 and d.word >> 15 & 31 == 0
    vill = d.spike.csrs["vtype"] >> 63 and not d.ours.csrs["vtype"] >> 63
    return d.row in ("vsetvl", "vsetvli") and unnamed and bool(vill)


FREEDOMS: dict[str, Callable[[Difference], bool]] = {
    "more than 32 bits, cut by the end of a region": long_word,
    "misaligned store cut by the end of a region": cut_store,
    "vset x0, x0 under another VLMAX": kept_vl,
    "SC within the reservation's granule": sc_granule,
}
#: Unprivileged manual, Zifencei: stores become visible to fetches by FENCE.I; see Pair.modified.
MODIFIED = "code modified without FENCE.I"


# ---- replay --------------------------------------------------------------------------------------


class Pair:
    """Both machines, for programs that are looked at one at a time.

    The oracle's slots all hold the same program, to be stopped after different numbers of steps.
    """

    WIDTH = 16

    def __init__(self, oracle: Oracle, subject: Subject) -> None:
        """Args:
        oracle: with WIDTH slots.
        subject: of the same VLEN.
        """
        self.oracle = oracle
        self.subject = subject
        self.ours = Results(self.WIDTH, oracle.vlen)

    def load(self, programs: Batch, slot: int) -> None:
        """Take a program."""
        for name in ("memory", "x", "f", "v", "start"):
            getattr(self.oracle.batch, name)[:] = getattr(programs, name)[slot]

    def spike(self, steps: Sequence[int]) -> None:
        """Run the program in Spike, in slot i for at most steps[i]."""
        self.oracle.batch.start[: len(steps), 5] = steps
        self.oracle.begin(len(steps))
        self.oracle.finish()

    def differ(self, steps: Sequence[int]) -> list[bool]:
        """Are the states after so many steps different?  Rising numbers, WIDTH at most."""
        self.spike(steps)
        subject = self.subject
        subject.load(self.oracle.batch, 0)
        made = retired = ended = 0
        for slot, until in enumerate(steps):
            while made < until and not ended:
                ended = 0 if subject.step() else END_TRAP
                retired += subject.retired
                made += 1
            subject.store(self.ours, slot, ended, retired, made)
        return list(map(bool, differing(self.oracle.batch, self.ours)[: len(steps)]))

    def differs_whole(self) -> bool:
        """Does the program end differently when it is run at once?"""
        self.spike([STEPS])
        if self.oracle.batch.end[0, 3] == END_STEPS:
            return False
        for chunk in (None, 7):
            self.subject.run(self.oracle.batch, self.ours, 0, chunk, 1 << 20)
            if differing(self.oracle.batch, self.ours)[0]:
                return True
        return False

    def freedom(self, difference: Difference | None) -> str | None:
        """Name of the freedom that explains how the program differs; None: it is unexplained.

        Args:
            difference: the first; None: the end states differ, but not when both are stepped.
        """
        if difference is not None and difference.freedom is not None:
            return difference.freedom
        return MODIFIED if self.modified(difference) else None

    def modified(self, difference: Difference | None) -> bool:
        """Has the instruction that differs been written to, at any time since the last FENCE.I?

        Unprivileged manual, Zifencei: what is fetched then is free, also where it has been written
        back.  nicemu sees every store at once; Spike keeps what it has decoded.  When the stepped
        runs show no difference, it is asked of each instruction when it is executed.
        """
        subject, fence = self.subject, rows()["fence.i"]
        subject.load(self.oracle.batch, 0)
        steps = STEPS if difference is None else difference.step
        seen, written = subject.memory(), False
        for step in range(steps + 1):
            pc = subject.cores.pc()
            watched = pc if difference is None else difference.before.pc
            written |= subject.fetch(watched) != fetched(seen, watched)
            if step == steps or (written and difference is None):
                break
            fenced = int.from_bytes(subject.fetch(pc), "little") & fence.mask == fence.match
            if not subject.step():
                break
            if fenced:
                seen, written = subject.memory(), False
        return written

    def _bracket(self, guess: int | None) -> tuple[int, int] | None:
        """Numbers of steps after which the states are the same and are not, one apart."""
        if guess is not None and self.differ([guess, guess + 1]) == [False, True]:
            return guess, guess + 1
        self.spike([STEPS])
        low, high = 0, int(self.oracle.batch.end[0, 2])
        if not self.differ([high])[0]:
            return None
        while high - low > 1:
            inner = np.unique(np.linspace(low, high, self.WIDTH + 2).astype(int))[1:-1].tolist()
            first = [*self.differ(inner), True].index(True)
            low, high = ([low, *inner][first], [*inner, high][first])
        return low, high

    def first_difference(self, guess: int | None = None) -> Difference | None:
        """Of the program; None when it ends the same when stepped.

        Args:
            guess: the step at which it may be.
        """
        found = self._bracket(guess)
        if found is None:
            return None
        self.differ(found)
        before, ours = state_of(self.ours, 0), state_of(self.ours, 1)
        word, cores = before.word(), self.subject.cores
        row = cores.decode(word) if word is not None else None
        d = Difference(
            step=found[0],
            before=before,
            spike=state_of(self.oracle.batch, 1),
            ours=ours,
            word=word,
            row=row.name if row else None,
            text=cores.disasm(word, before.pc)[0] if row and word is not None else "illegal",
            parts=describe(self.oracle.batch, self.ours, 1),
        )
        d.freedom = next((name for name, covers in FREEDOMS.items() if covers(d)), None)
        return d
