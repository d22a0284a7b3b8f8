"""Random programs from the core's own instruction table, a batch at a time.

A program is a row of *positions*, each an instruction of a random row of the table with up to four
instructions before it that make it meaningful most of the time: a vtype, a base address, a stride,
a jump's target.  Everything is done with arrays over all positions of a batch; where operands go is
read from ``tests.encode``, and which registers a vector row takes from ``shapes``, so that a new
row of the table is generated without a change here.

Of some programs the rows are drawn, so that long stretches run under one vtype; the others are
*dealt*: batch after batch they go through a shuffled deck of cards, one for each row under each
vtype and rounding mode that it has, so that none of them waits for luck.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np

from nicemu._core import csrs
from tests.encode import encode
from tests.lockstep import layout
from tests.lockstep.layout import CODE, DATA, HANDLER, LOG, OUTSIDE, Batch
from tests.lockstep.operands import fp_pool, index_pool, lane_pool, x_pool
from tests.lockstep.shapes import MSTATUS_UNITS, VECTORS, Shapes, legal_vtypes
from tests.lockstep.words import MODES, get, operands, put, simple, table

__all__ = ["ANY", "EXCLUDED_CSRS", "Generator", "nearly"]

#: CSRs that programs leave alone, and why.
EXCLUDED_CSRS: dict[str, str] = {
    "time": "no platform timer: nicemu ticks once an instruction, Spike's stands still",
    "marchid": "names the implementation",
    "misa": "WARL; nicemu's is fixed, Spike can switch extensions off",
    "mcountinhibit": "WARL; nicemu has nothing to inhibit",
    "menvcfg": "FIOM is WARL; nicemu keeps it, Spike does not where there is no S-mode",
    **{f"hpmcounter{i}": "nicemu has Zihpm with counters that stay 0" for i in range(3, 32)},
    **{f"mhpmcounter{i}": "WARL; nicemu counts no events" for i in range(3, 32)},
    **{f"mhpmevent{i}": "WARL; nicemu counts no events" for i in range(3, 32)},
}
#: CSRs that a program with the trap handler must not change.
HANDLER_CSRS = ("mtvec", "mscratch")
FAVOURITE_CSRS = [
    "fflags",
    "frm",
    "fcsr",
    "vstart",
    "vxsat",
    "vxrm",
    "vcsr",
    "vl",
    "vtype",
    "vlenb",
    "instret",
    "cycle",
    "mstatus",
    "mepc",
]

#: Share of the programs that are dealt.
DEALT = 3 / 8
#: What a card leaves open.
ANY = -1

#: Instructions before each one: vtype, base, offset, stride, or what else its row wants.
SETUPS = 4
VTYPE, FIRST, SECOND, THIRD = range(SETUPS)
#: Formats whose rs2 is prepared.
PREPARED_RS2 = ("VLS", "VSS", "VSETVL")
#: The last halfword of CODE begins an instruction that is not all there: of 32 bits, or of more,
#: which is a freedom (see compare.long_word) and costs a replay.
CUTS = (0x0013, 0xFFFF)
#: First of the vector registers that hold indices, and what those in reach stay below: from a base
#: near the middle of the data they lead to its inside.
INDICES, REACH = 24, 2048
#: Bytes of data that a program may run through.
DATA_CODE = 64
#: Operands of lui and addi: FS and VS at 0 or 3, MPP at 0 or 3, MIE, MPIE, MPRV, TW.
MSTATUS_VALUES = np.array(
    [
        *[(6, 0x600)] * 16,
        *((6, 0), (0, 0x600), (0, 0), (8, -0x200), (2, -0x200), (8, -0x800)),
        *((0x26, 0x688), (0x206, 0x600)),
    ]
)
#: Of rm and frm: RNE, RTZ, RDN, RUP, RMM, two reserved ones, dynamic (reserved in frm).
RM = np.array([0.12, 0.1, 0.1, 0.1, 0.1, 0.005, 0.005, 0.47])
FRM = np.array([0.24, 0.18, 0.18, 0.18, 0.18, 0.015, 0.015, 0.01])


@dataclass
class Positions:
    """The positions of a batch, flat: program = index // length.

    Attributes:
        words: (n, SETUPS + 1) uint32, the last is the instruction itself.
        sizes: (n, SETUPS + 1) bytes, 0 = nothing there.
        row: (n,) row of the table; -1: a word that is no instruction.
        vtype: (n,) its low eight bits, as far as straight-line code tells.
        mode: (n,) the rounding mode that a card asks for; ANY.
        tame: (n,) bool: of a program whose last eight vector registers hold indices in reach.
    """

    words: np.ndarray
    sizes: np.ndarray
    row: np.ndarray
    vtype: np.ndarray
    mode: np.ndarray
    tame: np.ndarray

    def add(
        self,
        slot: int,
        where: np.ndarray,
        chosen: np.ndarray,
        name: str,
        **operands: np.ndarray | int,
    ) -> None:
        """Put an instruction into a setup slot of where[chosen]; operands are arrays over where."""
        at = where[chosen]
        if len(at):
            picked = {k: v[chosen] if isinstance(v, np.ndarray) else v for k, v in operands.items()}
            self.words[at, slot] = simple(name, **picked)
            self.sizes[at, slot] = 4


class Generator:
    """Makes batches.  Batch number `b` of seed `s` is always the same for one instruction table."""

    def __init__(
        self,
        seed: int,
        shapes: Shapes,
        *,
        rows: str | None = None,
        length: int = 80,
        illegal: np.ndarray | None = None,
        foreign_csrs: frozenset[int] = frozenset(),
    ) -> None:
        """Args:
        seed: of everything random.
        shapes: what the vector rows are like.
        rows: regular expression; only matching rows (and what prepares them) are generated.
        length: positions of a program.
        illegal: words that neither machine executes, to be strewn in.
        foreign_csrs: numbers that only Spike knows; left alone.
        """
        self.seed = seed
        self.shapes = shapes
        self.length = length
        self.illegal = illegal if illegal is not None else np.zeros(0, np.uint32)
        self.weights = table().weights(re.compile(rows) if rows else None)
        known = [n for name, n in csrs().items() if name not in EXCLUDED_CSRS]
        handled = [csrs()[name] for name in HANDLER_CSRS]
        self._csrs = np.array(known)
        self._safe_csrs = np.array([n for n in known if n not in handled])
        taken = set(csrs().values()) | foreign_csrs
        self._no_csrs = np.array([n for n in range(4096) if n not in taken])
        self._favourites = np.array([csrs()[n] for n in FAVOURITE_CSRS])

    @cached_property
    def _kinds(self) -> list[np.ndarray]:
        """Row probabilities of the kinds of program: scalar, vector, both."""
        vector = table().vector
        kinds = [self.weights * ~vector, self.weights * vector, self.weights]
        return [k / k.sum() for k in kinds if k.sum()]

    @cached_property
    def deck(self) -> np.ndarray:
        """(n, 3) int64: row, low six bits of vtype, rounding mode; ANY where it does not matter."""
        t = table()
        under = self.shapes.allowed & (t.vector & ~t.configures)[:, None]
        cards = []
        for row in np.flatnonzero(self.weights > 0).tolist():
            vtypes = np.flatnonzero(under[row]).tolist() or [ANY]
            modes = range(MODES) if t.rounds[row] else [ANY]
            cards += [(row, vtype, mode) for vtype in vtypes for mode in modes]
        return np.array(cards)

    def _deal(self, first: int, count: int) -> np.ndarray:
        """Cards first..first + count - 1 of all: each time through the deck it is shuffled anew."""
        size = len(self.deck)
        out = []
        for turn in range(first // size, (first + count - 1) // size + 1):
            order = np.random.default_rng([self.seed, turn, 0xCA4D]).permutation(size)
            out.append(order[max(first - turn * size, 0) : first + count - turn * size])
        cards: np.ndarray = self.deck[np.concatenate(out)]
        return cards

    @cached_property
    def _under(self) -> dict[int, np.ndarray]:
        """Vector rows that are executed under a vtype, by its low six bits."""
        good = self.shapes.allowed & (self.weights > 0)[:, None]
        return {kind: np.flatnonzero(good[:, kind]) for kind in legal_vtypes()}

    def fill(self, batch: Batch, number: int) -> np.ndarray:
        """Write the programs of batch `number`, with their start states.

        Returns:
            (slots, CODE.size / 2) uint32: the instruction that begins at each halfword, else 0.
        """
        rng = np.random.default_rng([self.seed, number])
        n = batch.slots
        tame = rng.random(n) < 0.85
        self._state(batch, rng, tame)
        handled = rng.random(n) < 0.9
        clean = rng.random(n) < 0.02
        batch.start[:, 0] = CODE.base
        batch.start[:, 1] = np.where(rng.random(n) < 0.3, 0, 3)
        off = rng.choice([0, 3 << 9, 3 << 13], n)
        unmarked = rng.choice([1 << 9 | 1 << 13, 2 << 9 | 2 << 13], n)
        batch.start[:, 2] = np.where(rng.random(n) < 0.015, off, MSTATUS_UNITS)
        batch.start[clean, 2] = unmarked[clean]
        batch.start[:, 3] = np.where(handled, HANDLER, 0)
        batch.start[:, 4] = np.where(handled, LOG.base, 0)
        batch.start[:, 5] = layout.STEPS
        loops = rng.random(n) < 0.7
        batch.x[loops, 31] = rng.integers(1, 8, np.count_nonzero(loops))
        positions = self._positions(rng, number, handled, clean, loops, tame)
        self._jumps(rng, positions, n)
        return self._place(rng, batch, positions, loops, self._exits(rng, n))

    def _state(self, batch: Batch, rng: np.random.Generator, tame: np.ndarray) -> None:
        n, lanes = batch.slots, batch.vlen // 64

        def draw(pool: np.ndarray, *shape: int) -> np.ndarray:
            out: np.ndarray = pool[rng.integers(0, len(pool), shape, np.int16)]
            return out

        batch.x[:] = draw(x_pool(), n, 32)
        batch.x[:, 0] = 0
        batch.f[:] = draw(fp_pool(), n, 32)
        v = batch.v.reshape(n, -1).view(np.uint64).reshape(n, 32, lanes)
        v[:] = draw(lane_pool(), n, 32, lanes)
        v[:, INDICES:] = draw(index_pool(), n, 8, lanes)
        v[tame, INDICES:] = rng.integers(0, REACH, (np.count_nonzero(tame), 8, lanes))
        batch.memory[:] = 0
        whole = lane_pool().view(np.uint8)
        for slot, first in enumerate(rng.integers(0, (len(whole) - DATA.size) // 8, n)):
            batch.region(DATA, slot)[:] = whole[8 * first : 8 * first + DATA.size]

    # ---- positions ---------------------------------------------------------------------------

    def _positions(
        self,
        rng: np.random.Generator,
        number: int,
        handled: np.ndarray,
        clean: np.ndarray,
        loops: np.ndarray,
        tame: np.ndarray,
    ) -> Positions:
        t = table()
        row, vtype, mode = self._cards(rng, number, len(handled)).T
        count = len(row)
        words = np.zeros((count, SETUPS + 1), np.uint32)
        sizes = np.zeros((count, SETUPS + 1), np.uint8)
        p = Positions(words, sizes, row, vtype, mode, np.repeat(tame, self.length))
        self._vtypes(rng, p)
        self._suit(rng, p)
        row = p.row
        sizes[:, SETUPS] = t.size[row]
        noise = rng.integers(0, 1 << 32, count, np.uint32)
        main = t.match[row] | noise & ~t.mask[row]
        main = np.where(t.size[row] == 2, main & np.uint32(0xFFFF), main)
        handled_at = np.repeat(handled, self.length)
        clean_at = np.repeat(clean, self.length)
        order = np.argsort(t.format[row], kind="stable")
        bounds = np.searchsorted(t.format[row][order], np.arange(len(t.formats) + 1))
        groups = [order[a:b] for a, b in pairwise(bounds.tolist())]
        for form, where in zip(t.formats, groups, strict=True):
            if len(where):
                self._operands(rng, form, p, main, where, handled_at, clean_at)
        self._spare_counter(row, main, np.repeat(loops, self.length))
        for form, where in zip(t.formats, groups, strict=True):
            where = where[~t.jump[row[where]]]
            if len(where):
                self._prepare(rng, form, p, main, where)
        if len(self.illegal):
            bad = np.flatnonzero(rng.random(count) < 0.01)
            main[bad] = rng.choice(self.illegal, len(bad))
            sizes[bad, SETUPS] = np.where(main[bad] & 3 == 3, 4, 2)
            row[bad] = -1
        words[:, SETUPS] = main
        return p

    def _cards(self, rng: np.random.Generator, number: int, n: int) -> np.ndarray:
        """(n * length, 3): of the programs that are dealt their cards, of the others rows alone."""
        kinds = self._kinds
        out = np.full((n, self.length, 3), ANY)
        dealt = int(n * DEALT)
        order = rng.permutation(n)
        cards = self._deal(number * dealt * self.length, dealt * self.length)
        out[order[:dealt]] = cards.reshape(dealt, self.length, 3)
        shares = (0.4, 0.45, 0.15) if len(kinds) == 3 else [1 / len(kinds)] * len(kinds)
        kind = rng.choice(len(kinds), n - dealt, p=shares)
        for k, weights in enumerate(kinds):
            mine = order[dealt:][kind == k]
            out[mine, :, 0] = rng.choice(len(weights), (len(mine), self.length), p=weights)
        return out.reshape(-1, 3)

    def _vtypes(self, rng: np.random.Generator, p: Positions) -> None:
        """A vset at the start of a program, before the rows that are dealt, before some others."""
        t = table()
        count = len(p.row)
        first = np.arange(count) % self.length == 0
        dealt = p.vtype != ANY
        unknown = np.roll(t.configures[p.row], 1) & (rng.random(count) < 0.8)
        change = first | dealt | unknown | (t.vector[p.row] & (rng.random(count) < 0.15))
        where = np.flatnonzero(change)
        n = len(where)
        kind = np.where(dealt[where], p.vtype[where], rng.choice(np.array(legal_vtypes()), n))
        kind |= rng.integers(0, 4, n) << 6  # vta, vma
        rd = rng.integers(1, 31, n)
        immediate = simple("vsetivli", rd=rd, uimm=rng.integers(0, 32, n), vtype=kind)
        maximum = simple("vsetvli", rd=rd, rs1=0, vtype=kind)
        register = simple("vsetvli", rd=rd, rs1=rng.integers(1, 31, n), vtype=kind)
        how = rng.choice(3, n, p=(0.4, 0.4, 0.2))
        p.words[where, VTYPE] = np.choose(how, [immediate, maximum, register])
        p.sizes[where, VTYPE] = 4
        last = np.maximum.accumulate(np.where(change, np.arange(count), 0))
        everywhere = np.zeros(count, np.int64)
        everywhere[where] = kind
        p.vtype[:] = everywhere[last]

    def _suit(self, rng: np.random.Generator, p: Positions) -> None:
        """Replace most vector rows that are not executed under the vtype they meet."""
        t = table()
        kind = p.vtype & 63
        wrong = t.vector[p.row] & ~t.configures[p.row]
        wrong &= ~self.shapes.allowed[p.row, kind] & (rng.random(len(kind)) < 0.95)
        for k, rows in self._under.items():
            where = np.flatnonzero(wrong & (kind == k))
            if len(where) and len(rows):
                p.row[where] = rng.choice(rows, len(where))

    def _operands(
        self,
        rng: np.random.Generator,
        form: str,
        p: Positions,
        words: np.ndarray,
        where: np.ndarray,
        handled: np.ndarray,
        clean: np.ndarray,
    ) -> None:
        """Legal-biased operands, where noise would mostly be illegal or dull."""
        n = len(where)
        allowed = operands(form)
        if "rm" in allowed:
            mode = p.mode[where]
            put(words, where, form, "rm", np.where(mode == ANY, rng.choice(8, n, p=RM), mode))
        if "vtype" in allowed:
            kind = rng.choice(np.array(legal_vtypes()), n) | rng.integers(0, 4, n) << 6
            noise = rng.integers(0, len(allowed["vtype"]), n)
            put(words, where, form, "vtype", np.where(rng.random(n) < 0.97, kind, noise))
        if "csr" in allowed:
            known = np.where(
                handled[where], rng.choice(self._safe_csrs, n), rng.choice(self._csrs, n)
            )
            favourite = rng.choice(self._favourites, n)
            which = rng.choice(3, n, p=(0.6, 0.36, 0.04))
            choices = [favourite, known, rng.choice(self._no_csrs, n)]
            csr = np.choose(which, choices)
            # where FS and VS begin as Initial or Clean, nobody looks (see compare.relaxed_mstatus)
            csr = np.where(clean[where] & (csr == csrs()["mstatus"]), csrs()["mepc"], csr)
            put(words, where, form, "csr", csr)
            if form == "CSR":  # csrrs, csrrc with x0 only read
                rs1 = np.where(rng.random(n) < 0.4, 0, get(words[where], form, "rs1"))
                put(words, where, form, "rs1", rs1)
        if "vm" in allowed:
            put(words, where, form, "vm", (rng.random(n) < 0.7).astype(np.int64))
        vectors = [v for v in VECTORS if v in allowed]
        if vectors:
            self._vector_registers(rng, form, vectors, p, words, where)

    def _vector_registers(
        self,
        rng: np.random.Generator,
        form: str,
        vectors: list[str],
        p: Positions,
        words: np.ndarray,
        where: np.ndarray,
    ) -> None:
        """Aligned as the row needs under the vtype, mostly; apart from each other, often."""
        n = len(where)
        zones = rng.permuted(np.tile(np.arange(0, 32, 8), (n, 1)), axis=1)
        apart = rng.random(n) < 0.65
        careless = rng.random(n) < 0.02
        masked = words[where] >> np.uint32(25) & np.uint32(1) == 0
        tame = p.tame[where]
        last = np.flatnonzero(tame & (zones[:, 0] == INDICES))
        zones[last, 0], zones[last, 3] = zones[last, 3], INDICES
        for k, operand in enumerate(vectors):
            at = p.row[where], p.vtype[where] & 63, VECTORS.index(operand)
            align = np.where(careless, 1, self.shapes.align[at])
            span = np.where(careless, 1, self.shapes.span[at])
            inside = rng.integers(0, (8 - span) // align + 1) * align
            anywhere = rng.integers(0, (32 - span) // align + 1) * align
            register = np.where(apart, zones[:, k] + inside, anywhere)
            if operand == "vs2" and form in ("VLX", "VSX"):
                often = rng.random(n) < np.where(tame, 0.9, 0.6)
                register = np.where(often, INDICES + inside, register)
            if operand == "vd":  # a masked destination is rarely v0, and indices in reach last
                hit = (register == 0) & masked & (rng.random(n) < 0.95)
                register = np.where(hit, align % 32, register)
                ruins = tame & (register + span > INDICES) & (rng.random(n) < 0.97)
                register = np.where(ruins, 8 + inside, register)
            put(words, where, form, operand, register)

    def _spare_counter(self, row: np.ndarray, words: np.ndarray, loops: np.ndarray) -> None:
        """In programs that loop no register field that is written to says x31."""
        t = table()
        prepared = np.isin(t.format[row], [t.number(form) for form in PREPARED_RS2])
        for position, chosen in (
            (7, loops),
            (15, loops & (t.size[row] == 4)),
            (20, loops & prepared),
        ):
            full = chosen & (words >> np.uint32(position) & np.uint32(31) == 31)
            words[full] &= np.uint32(~(1 << position) & 0xFFFFFFFF)

    # ---- what makes a position meaningful ----------------------------------------------------

    def _prepare(
        self,
        rng: np.random.Generator,
        form: str,
        p: Positions,
        words: np.ndarray,
        where: np.ndarray,
    ) -> None:
        n = len(where)
        t = table()
        row = p.row[where]
        if t.memory[row[0]]:
            self._prepare_address(rng, form, p, words, where)
        elif form == "VSETVL":
            rs2 = get(words[where], form, "rs2")
            kind = rng.choice(np.array(legal_vtypes()), n) | rng.integers(0, 4, n) << 6
            p.add(
                FIRST, where, (rs2 != 0) & (rng.random(n) < 0.95), "addi", rd=rs2, rs1=0, imm=kind
            )
        elif form == "CSR":
            self._prepare_csr(rng, p, words, where)
        else:
            asked = t.vector[row] & (p.mode[where] != ANY)
            rounds = asked | (t.rounds[row] & (rng.random(n) < 0.06))
            mode = np.where(asked, p.mode[where], rng.choice(8, n, p=FRM))
            p.add(FIRST, where, rounds, "csrrwi", rd=0, uimm=mode, csr=csrs()["frm"])
            if t.vector[row[0]] and not t.configures[row[0]]:
                late, other = rng.random(n) < 0.015, rng.random(n) < 0.02
                vstart, vcsr = rng.integers(0, 24, n), rng.integers(0, 8, n)
                p.add(SECOND, where, late, "csrrwi", rd=0, uimm=vstart, csr=csrs()["vstart"])
                p.add(THIRD, where, other, "csrrwi", rd=0, uimm=vcsr, csr=csrs()["vcsr"])

    def _prepare_address(
        self,
        rng: np.random.Generator,
        form: str,
        p: Positions,
        words: np.ndarray,
        where: np.ndarray,
    ) -> None:
        """Addresses all over the data region, at its ends and at page ends."""
        n = len(where)
        names = operands(form)
        base = get(words[where], form, "rs1") if "rs1" in names else np.full(n, 2)
        chosen = (base != 0) & (rng.random(n) < 0.95)
        end = (DATA.base + DATA.size) >> 12
        page = rng.choice([end - 2, end - 1, end], n, p=(0.16, 0.8, 0.04))
        step = rng.choice([1, 8, 64], n, p=(0.12, 0.58, 0.3))
        offset = rng.integers(-256, 256, n) * step % 2048
        near = -(offset % np.where(rng.random(n) < 0.5, 64, 2048))  # before the end
        offset = np.where(page == end, near, offset)
        p.add(FIRST, where, chosen, "lui", rd=base, hi20=page)
        moved = chosen & ((page == end) | (rng.random(n) < 0.6))
        p.add(SECOND, where, moved, "addi", rd=base, rs1=base, imm=offset)
        if form in ("VLS", "VSS"):
            stride = get(words[where], form, "rs2")
            length = rng.choice([0, 1, 2, 4, 8, 16, 24, 3, -8, -1, 128], n)
            mine = (stride != 0) & (stride != base) & (rng.random(n) < 0.9)
            p.add(THIRD, where, mine, "addi", rd=stride, rs1=0, imm=length)

    def _prepare_csr(
        self, rng: np.random.Generator, p: Positions, words: np.ndarray, where: np.ndarray
    ) -> None:
        """Values that are mostly legal.  mstatus: FS and VS stay Off or Dirty, because which of the
        other two they are is a freedom (see compare.relaxed_mstatus)."""
        n = len(where)
        number = words[where] >> np.uint32(20)
        mstatus = number == csrs()["mstatus"]
        rs1 = get(words[where], "CSR", "rs1")
        rs1 = np.where(mstatus & (rs1 == 0), 1, rs1)
        put(words, where, "CSR", "rs1", rs1)
        high, low = MSTATUS_VALUES[rng.integers(0, len(MSTATUS_VALUES), n)].T
        p.add(FIRST, where, mstatus, "lui", rd=rs1, hi20=high)
        p.add(SECOND, where, mstatus, "addi", rd=rs1, rs1=rs1, imm=low)
        often = (rs1 != 0) & (rng.random(n) < 0.9)
        vstart = np.where(rng.random(n) < 0.7, 24, 2048)  # more than there are elements, too
        for name, top in (("frm", 5), ("fcsr", 5 << 5), ("vstart", vstart)):
            mine = often & (number == csrs()[name])
            p.add(FIRST, where, mine, "addi", rd=rs1, rs1=0, imm=rng.integers(0, top, n))

    # ---- layout ------------------------------------------------------------------------------

    def _jumps(self, rng: np.random.Generator, p: Positions, n: int) -> None:
        """Forward targets, a few positions ahead; jumps by register get it computed."""
        t = table()
        count = len(p.row)
        main = p.words[:, SETUPS]
        real = p.row >= 0
        form = np.where(real, t.format[p.row], -1)
        jump = real & t.jump[p.row]
        mret = np.flatnonzero(main == encode("mret"))
        by_register = [
            (f, np.flatnonzero(jump & (form == t.number(f)))) for f in ("LD", "CJR", "CJALR")
        ]
        for name, at in by_register:
            p.sizes[at, FIRST] = 4
            if name != "LD":
                p.sizes[at, SECOND] = 4
        p.sizes[mret, FIRST : THIRD + 1] = 4
        sizes = p.sizes.reshape(n, -1).astype(np.int64)
        start = np.cumsum(sizes, axis=1) - sizes
        ends = start[:, -1] + sizes[:, -1]
        begin = start.reshape(n, self.length, SETUPS + 1)
        program, position = np.divmod(np.arange(count), self.length)
        ahead = rng.choice([1, 2, 3, 5], count, p=(0.5, 0.25, 0.15, 0.1))
        inside = position + ahead < self.length
        there = begin[program, np.minimum(position + ahead, self.length - 1), 0]
        there = np.where(inside, there, ends[program])
        there = there + np.where(rng.random(count) < 0.01, 2, 0)  # in the middle of one
        offset = np.clip(there - begin[program, position, SETUPS], 0, 254)
        for name in ("B", "J", "CJ", "CB"):
            at = np.flatnonzero(jump & (form == t.number(name)))
            put(main, at, name, "target", offset[at])
        offset = there - begin[program, position, FIRST]
        for name, at in by_register:
            if not len(at):
                continue
            base = np.maximum(get(main[at], name, "rs1"), 1)
            put(main, at, name, "rs1", base)
            p.words[at, FIRST] = simple("auipc", rd=base, hi20=0)
            if name == "LD":
                put(main, at, name, "imm", offset[at])
            else:
                p.words[at, SECOND] = simple("addi", rd=base, rs1=base, imm=offset[at])
        if len(mret):
            p.words[mret, FIRST] = simple("auipc", rd=7, hi20=0)
            p.words[mret, SECOND] = simple("addi", rd=7, rs1=7, imm=offset[mret])
            p.words[mret, THIRD] = simple("csrrw", rd=0, rs1=7, csr=csrs()["mepc"])

    def _exits(self, rng: np.random.Generator, n: int) -> np.ndarray:
        """(n, 16) uint32: what follows each program, the same way out over and over.

        A jump to where nothing is, to an instruction cut by the end of its region, or to the last
        bytes of the data, which are executed as what they are.
        """
        kind = rng.choice(3, n, p=(0.9, 0.08, 0.02))
        place = -2 * rng.integers(1, DATA_CODE // 2, n)
        end = np.where(kind == 2, DATA.base + DATA.size, OUTSIDE)
        leave = simple("jalr", rd=0, rs1=31, imm=np.choose(kind, [0, -2, place]))
        pair = np.stack([simple("lui", rd=31, hi20=end >> 12), leave], axis=1)
        return np.tile(pair, 8)

    def _place(
        self,
        rng: np.random.Generator,
        batch: Batch,
        p: Positions,
        loops: np.ndarray,
        exits: np.ndarray,
    ) -> np.ndarray:
        n = batch.slots
        sizes = p.sizes.reshape(n, -1).astype(np.int64)
        begin = np.cumsum(sizes, axis=1) - sizes
        ends = begin[:, -1] + sizes[:, -1]
        words = p.words.reshape(n, -1)
        placed = np.zeros((n, CODE.size // 2), np.uint32)
        code = np.zeros((n, CODE.size // 2), np.uint16)
        slot, index = np.nonzero(sizes)
        at, word = begin[slot, index] >> 1, words[slot, index]
        placed[slot, at] = word
        code[slot, at] = word & np.uint32(0xFFFF)
        long = sizes[slot, index] == 4
        code[slot[long], at[long] + 1] = word[long] >> np.uint32(16)
        trap = np.array(layout.handler(), "<u4").view("<u2")
        code[:, (HANDLER - CODE.base) // 2 :][:, : len(trap)] = trap
        code[:, -1] = rng.choice(CUTS, n, p=(0.95, 0.05))
        count = np.uint32(encode("addi", rd=31, rs1=31, imm=-1))
        back = simple("bne", rs1=31, rs2=0, target=-ends - 4)
        repeat = np.stack([np.broadcast_to(count, n), back], axis=1)
        tails = np.concatenate([repeat, exits], axis=1).astype("<u4").view("<u2")
        for i, end in enumerate((ends // 2).tolist()):
            tail = tails[i] if loops[i] else tails[i, 4:]
            code[i, end : end + len(tail)] = tail
        first = batch.memory.reshape(n, -1)[:, : CODE.size]
        first[:] = code.view(np.uint8)
        return placed


def nearly(count: int, rng: np.random.Generator) -> np.ndarray:
    """Candidates for words that are no instruction: noise, and rows with one bit wrong."""
    t = table()
    row = rng.integers(0, len(t.rows), count)
    near = t.match[row] | rng.integers(0, 1 << 32, count, np.uint32) & ~t.mask[row]
    near ^= np.uint32(1) << rng.integers(0, 32, count, np.uint32)
    noise = rng.integers(0, 1 << 32, count, np.uint32)
    return np.where(rng.random(count) < 0.6, near, noise)
