"""The vector floating-point rows as cases for MPFR, and how a hart runs them over many operands.

A case is a row at a SEW.  It is compared one element at a time, so that no element hides the flags
of another, and many at a time, as the loops of the core have bodies for many.  What is computed is
said by vector_model; which elements take part is test_vector.py's.
"""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from nicemu._core import Insn, instructions
from tests import vector_model as model
from tests.encode import encode, limits, vtype
from tests.fp_operands import integers, tuples
from tests.harts import DATA, Hart, simd_paths
from tests.mpfr_oracle import BF16, F16, MODES, Bits, Flags, Format
from tests.vector_model import FpRow

PATHS = simd_paths()
VLEN = 1024
VD, VS2, VS1, FS1 = 8, 16, 24, 10
ROWS = tuple(row for row in instructions() if row.cls.startswith("vf"))
#: Elements that one scalar operand meets, in turn.
RUN = 40
#: Elements of a reduction.
CHAIN = 7
#: Elements that the guest takes at once; its planes are so far apart.
CAPACITY = 1 << 16
PLANE = 8 * CAPACITY


def vlmax(sew: int) -> int:
    """At LMUL 4, the largest with which operands of 2 * SEW are legal."""
    return 4 * VLEN // sew


@dataclass(frozen=True)
class Case:
    """A row at a SEW at which it means something."""

    row: Insn
    sew: int
    fp: FpRow

    @property
    def name(self) -> str:
        """The mnemonic."""
        return self.row.name

    @property
    def label(self) -> str:
        return f"{self.name} e{self.sew}"

    @property
    def operation(self) -> str:
        """What the table of tests/mpfr.py calls it."""
        return self.name

    @property
    def column(self) -> str:
        """The format computed in: that of the result, or of the operands."""
        f = self.fp.d if isinstance(self.fp.d, Format) else self.fp.a
        assert isinstance(f, Format)
        return f.name

    @property
    def scalar(self) -> bool:
        """Is vs1 an f register?"""
        return self.row.format in ("VF", "VFA", "VF0", "VFM")

    @property
    def unary_16_bit(self) -> bool:
        """All operands can be tried."""
        return self.fp.b is None and self.fp.a in (F16, BF16)

    def operands(self, n: int, seed: int = 0) -> list[Bits]:
        """n values each of vs2, vs1 and vd in the formats of the row; 0 where it has no such."""
        fp = self.fp
        seed += zlib.crc32(self.name.encode()) + self.sew
        kinds = [fp.a, fp.b, fp.d if fp.reads_d else None]
        formats = [k for k in kinds if isinstance(k, Format)]
        related = len(set(formats)) == 1
        out = []
        for i, kind in enumerate(kinds):
            if isinstance(kind, int):
                out.append(integers(n, seed)[:n] & np.uint64((1 << kind) - 1))
            elif kind is None:
                out.append(np.zeros(n, np.uint64))
            else:
                arity = len(formats) if related else 1
                column = tuples(kind, arity, n, seed if related else seed + i)
                out.append(column[min(i, arity - 1)][:n])
        if self.scalar:
            out[1] = np.repeat(out[1][::RUN], RUN)[:n]
        return out

    def differences(self, operands: Sequence[Bits], modes: Sequence[int] = MODES) -> list[str]:
        """Compare in these rounding modes; a line for each result that is not the oracle's."""
        out: list[str] = []
        step = CAPACITY // RUN * RUN
        for at, rm in itertools.product(range(0, len(operands[0]), step), modes):
            part = [a[at : at + step] for a in operands]
            bits, flags = self.fp.lanes(rm, *part)
            out += self.compare(rm, part, 1, bits, flags)
            if self.fp.over == "each":
                out += self._in_vectors(rm, part, bits, flags)
            if self.fp.over == "fold" and len(bits) >= CHAIN:
                whole = len(bits) // CHAIN * CHAIN
                chains = [a[:whole] for a in part]
                out += self.compare(rm, chains, CHAIN, *self._chains(rm, chains))
        return out

    def _chains(self, rm: int, operands: Sequence[Bits]) -> tuple[Bits, Flags]:
        """Results and flags of chains of CHAIN elements."""
        a, b, d = (o.reshape(-1, CHAIN) for o in operands)
        result, flags = b[:, 0], np.zeros(len(b), np.uint8)
        for i in range(CHAIN):
            result, more = self.fp.lanes(rm, a[:, i], result, d[:, i])
            flags |= more
        return result, flags

    def _in_vectors(self, rm: int, operands: Sequence[Bits], bits: Bits, flags: Flags) -> list[str]:
        """Whole vectors: as many elements as share a scalar or fit the group, then the rest."""
        n, length = len(bits), RUN if self.scalar else vlmax(self.sew)
        whole = n // length * length
        out = []
        for part, vl in ((slice(0, whole), length), (slice(whole, n), n - whole)):
            if vl and part.start < part.stop:
                raised = np.bitwise_or.reduce(flags[part].reshape(-1, vl), axis=1)
                out += self.compare(rm, [a[part] for a in operands], vl, bits[part], raised)
        return out

    def compare(
        self, rm: int, operands: Sequence[Bits], vl: int, bits: Bits, flags: Flags
    ) -> list[str]:
        """One instruction per vl elements; flags are those of each instruction."""
        bits = bits & np.uint64((1 << model.width_of(self.fp.d)) - 1)
        out = []
        for path in PATHS:
            got, raised = execute(path, self, rm, vl, operands)
            wrong = got.reshape(len(flags), -1) != bits.reshape(len(flags), -1)
            each = wrong.shape[1]  # results per instruction
            for i in np.flatnonzero(wrong.any(axis=1) | (raised != flags)):
                j = int(np.argmax(wrong[i]))
                at, result = i * vl + j, i * each + j
                of = " ".join(f"{a[at]:#x}" for a in operands)
                right = f"{bits[result]:#x} flags {flags[i]}"
                what = f"{got[result]:#x} flags {raised[i]}, right is {right}"
                out.append(f"{self.label} rm={rm} vl={vl} {path} of {of}: {what}")
        return out


CASES = tuple(
    Case(row, sew, fp)
    for row in ROWS
    for sew in model.SEWS
    if (fp := model.fp_row(row.name, sew)) is not None
)

# ---- the guest ----------------------------------------


@cache
def hart(path: str) -> Hart:
    return Hart(simd=path, vlen=VLEN, data_size=5 * PLANE + 4096)


def operand_fields(row: Insn) -> dict[str, int]:
    """Operands of the encoded instruction, unmasked."""
    given = {"vd": VD, "rd": FS1, "vs2": VS2, "vs1": VS1, "rs1": FS1, "vm": 1}
    return {k: v for k, v in given.items() if k in limits(row.format)}


def guest(case: Case, vl: int) -> list[int]:
    """A loop over planes of vs2, vs1, vd, results and flags from a0 on, a1 rounds, frm = a2."""
    fp, row = case.fp, case.row
    planes = range(14, 19)
    code = [encode("addi", rd=planes[0], rs1=10, imm=0), encode("lui", rd=5, hi20=PLANE >> 12)]
    code += [encode("add", rd=p, rs1=p - 1, rs2=5) for p in planes[1:]]
    code += [
        encode("csrrw", rd=0, rs1=12, csr="frm"),
        encode("addi", rd=6, rs1=0, imm=vl),
        encode("vsetvli", rd=0, rs1=6, vtype=vtype(case.sew, "m4")),
        encode("vmxnor.mm", vd=0, vs2=0, vs1=0),
    ]
    loop = len(code)

    def access(name: str, plane: int, step: int, **operands: int) -> None:
        code.append(encode(name, rs1=planes[plane], **operands))
        code.append(encode("addi", rd=planes[plane], rs1=planes[plane], imm=step))

    sources = [
        (fp.a, VS2),
        (None if case.scalar else fp.b, VS1),
        (fp.d if fp.reads_d else None, VD),
    ]
    for plane, (kind, register) in enumerate(sources):
        if kind is not None:
            width = model.width_of(kind)
            access(f"vle{width}.v", plane, vl * width // 8, vd=register, vm=1)
    if case.scalar:
        access("fld", 1, 8, rd=FS1, imm=0)
    code.append(encode("csrrw", rd=0, rs1=0, csr="fflags"))
    code.append(encode(row.name, **operand_fields(row)))
    if row.format == "FVN":
        access("fsd", 3, 8, rs2=FS1, imm=0)
    elif fp.d == 1:
        access("vsm.v", 3, -(-vl // 8), vs3=VD)
    else:
        width = model.width_of(fp.d)
        access(f"vse{width}.v", 3, vl * width // 8, vs3=VD, vm=1)
    code.append(encode("csrrs", rd=9, rs1=0, csr="fflags"))
    access("sd", 4, 8, rs2=9, imm=0)
    code.append(encode("addi", rd=11, rs1=11, imm=-1))
    code.append(encode("bne", rs1=11, rs2=0, target=4 * (loop - len(code))))
    code.append(encode("jalr", rd=0, rs1=1))
    return code


def execute(
    path: str, case: Case, rm: int, vl: int, operands: Sequence[Bits]
) -> tuple[Bits, Flags]:
    """Results of all elements (of a reduction: of all vectors), and flags of each instruction."""
    h, fp, n = hart(path), case.fp, len(operands[0])
    assert n % vl == 0
    rounds = n // vl
    for plane, (kind, values) in enumerate(zip((fp.a, fp.b, fp.d), operands, strict=True)):
        if plane == 1 and case.scalar:
            assert isinstance(kind, Format)
            box = np.uint64((1 << 64) - (1 << kind.width))
            raw = (values[::vl] | box).view(np.uint8)
        elif kind is None:
            continue
        else:
            raw = values.astype(f"<u{max(model.width_of(kind), 8) // 8}").view(np.uint8)
        h.data[plane * PLANE :][: len(raw)] = raw
    h.load(guest(case, vl))
    h.call(DATA, rounds, rm)
    flags = h.array(4 * PLANE, rounds, np.uint64).astype(np.uint8)
    if fp.d == 1:
        row = -(-vl // 8)
        packed = h.array(3 * PLANE, rounds * row, np.uint8).reshape(rounds, row)
        bits = np.unpackbits(packed, axis=1, bitorder="little")[:, :vl]
        return bits.reshape(-1).astype(np.uint64), flags
    width = 64 if case.row.format == "FVN" else model.width_of(fp.d)
    kept = h.data[3 * PLANE :][: n * width // 8].view(f"<u{width // 8}").astype(np.uint64)
    if fp.over == "fold":
        kept = kept[::vl]
    if case.row.format == "FVN":  # without its box, which must be there
        assert isinstance(fp.d, Format)
        assert np.all(kept | np.uint64(fp.d.mask) == np.uint64((1 << 64) - 1))
        kept = kept & np.uint64(fp.d.mask)
    return kept, flags
