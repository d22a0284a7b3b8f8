"""Every vector instruction but loads and stores, from machine code, against vector_model.

Each row runs at every SEW and LMUL, legal or not: masked and unmasked, vl of 0, 1, an odd number
and VLMAX, vstart 0 and not, register numbers that are legal and any; on every host path, at one of
the four VLENs per case.  NICEMU_VECTOR_ROUNDS repeats it with other operands.
"""

from __future__ import annotations

import itertools
import os
import re
import zlib
from fractions import Fraction
from functools import cache

import numpy as np
import pytest

from nicemu import _core
from nicemu._core import Insn, instructions
from tests import vector_model as model
from tests.encode import encode, limits, vtype
from tests.fp_operands import integers, structured
from tests.harts import CODE, Hart, simd_paths
from tests.mpfr_oracle import BF16, F16, Bits, Format
from tests.vector_model import LMULS, SEWS, Group, State

ROUNDS = int(os.environ.get("NICEMU_VECTOR_ROUNDS", "1"))
PATHS = simd_paths()
VLENS = (128, 256, 512, 1024)
UNITS_ON = 0x6600  # mstatus.FS and VS dirty
VECTOR = tuple(row for row in instructions() if row.extension in ("v", "zvfbfmin", "zvfbfwma"))
COMPUTING = tuple(row for row in VECTOR if row.cls not in ("vset", "vload", "vstore"))


@cache
def hart(path: str, vlen: int) -> Hart:
    return Hart(simd=path, vlen=vlen)


@cache
def pool(kind: Format | int) -> Bits:
    """Numbers worth computing with, structured ones and random ones in random order."""
    rng = np.random.default_rng(zlib.crc32(str(kind).encode()))
    if isinstance(kind, int):
        edges = integers(400, kind) & np.uint64((1 << max(kind, 8)) - 1)
    else:
        edges = structured(kind)
    width = max(model.width_of(kind), 8)
    noise = rng.integers(0, (1 << width) - 1, len(edges), np.uint64, endpoint=True)
    return rng.permutation(np.concatenate([edges, edges, noise]))


def source_kinds(row: Insn, sew: int) -> dict[str, Format | int]:
    """What the registers of a row hold."""
    name, base = row.name, row.name.partition(".")[0]
    if model.is_reduction(name):
        wide = min(64, 2 * sew if base.startswith(("vw", "vfw")) else sew)
        if base.startswith("vf") and sew in model.FORMATS:
            return {"vs2": model.FORMATS[sew], "vs1": model.FORMATS[wide]}
        return {"vs2": sew, "vs1": wide}
    if model.is_fp(name):
        fp = model.fp_row(name, sew)
        if fp is None:
            return {}
        kinds = {"vs2": fp.a, "vs1": fp.b, "vd": fp.d if fp.reads_d else None}
        return {k: v for k, v in kinds.items() if v is not None}
    wide = base in model.NARROW or row.name.partition(".")[2].startswith("w")
    return {"vs1": sew, "vs2": min(64, 2 * sew if wide else sew)}


def group_sizes(row: Insn, sew: int, lmul: Fraction) -> dict[str, int]:
    """Registers that each vector operand takes; 1 where the row is illegal anyway."""
    name, (base, _, form) = row.name, row.name.partition(".")
    width = {"vd": sew, "vs2": sew, "vs1": sew}
    if model.is_fp(name):
        fp = model.fp_row(name, sew)
        if fp is not None:
            width["vd"] = model.width_of(fp.d)
            width["vs2"] = model.width_of(fp.a) if fp.a is not None else sew
    elif base in model.WIDEN:
        width["vd"] = 2 * sew
        width["vs2"] = 2 * sew if form.startswith("w") else sew
    elif base in model.NARROW or base.startswith("vnclip"):
        width["vs2"] = 2 * sew
    elif base == "vrgatherei16":
        width["vs1"] = 16
    elif model.is_reduction(name) or base in ("vcompress", "viota"):
        width["vs1"] = 1
        width["vd" if model.is_reduction(name) else "vs2" if base == "viota" else "vs1"] = 1
    elif base in ("vmsbf", "vmsif", "vmsof"):
        width = dict.fromkeys(width, 1)
    if whole := re.match(r"v(?:mv|l|s)(\d)r", name):
        return dict.fromkeys([*width, "vs3"], int(whole[1]))
    if form == "mm" or row.cls in ("vload", "vstore") or row.format in ("XV", "XVN", "FVN"):
        return dict.fromkeys([*width, "vs3"], 8 if row.cls in ("vload", "vstore") else 1)
    return {k: 1 if w == 1 else min(8, max(1, int(lmul * w / sew))) for k, w in width.items()}


def choose(
    row: Insn, sew: int, lmul: Fraction, wild: bool, rng: np.random.Generator
) -> dict[str, int]:
    """Operands: any (wild), or register groups that are aligned and apart."""
    out: dict[str, int] = {}
    sizes = group_sizes(row, sew, lmul)
    taken: set[int] = set()
    for name, legal in limits(row.format).items():
        if name.startswith("v") and name != "vm" and not wild:
            free = [
                r
                for r in range(sizes[name], 32, sizes[name])
                if not taken & set(range(r, r + sizes[name]))
            ]
            out[name] = int(rng.choice(free))
            taken |= set(range(out[name], out[name] + sizes[name]))
        elif name in ("rd", "rs1"):
            out[name] = int(rng.integers(1, 32))
        else:
            out[name] = int(rng.choice(legal))
    return out


def word_of(row: Insn, sew: int, rng: np.random.Generator) -> int:
    """An encoding that is legal at LMUL 1 and this SEW, if any is."""
    if row.cls == "vset":
        return row.match
    operands = choose(row, sew, Fraction(1), False, rng)
    return encode(row.name, **operands)


def state_of(h: Hart, vlen: int, sew: int, lmul: Fraction) -> State:
    return State(
        vlen=vlen,
        sew=sew,
        lmul=lmul,
        vl=h.csr("vl"),
        vstart=h.csr("vstart"),
        frm=h.csr("frm"),
        fflags=h.csr("fflags"),
        vxrm=h.csr("vxrm"),
        vxsat=h.csr("vxsat"),
        v=h.v.tobytes(),
        x=tuple(h.x.tolist()),
        f=tuple(h.f.tolist()),
    )


def differences(got: State, want: State) -> str:
    out = [
        k
        for k in ("vl", "vstart", "fflags", "vxsat", "elements", "x", "f")
        if getattr(got, k) != getattr(want, k)
    ]
    a, b = np.frombuffer(got.v, np.uint8), np.frombuffer(want.v, np.uint8)
    if (a != b).any():
        at = int(np.argmax(a != b))
        vlenb = want.vlen // 8
        out.append(f"v{at // vlenb} byte {at % vlenb}: {a[at]:#x}, not {b[at]:#x}")
    return ", ".join(out)


def check(row: Insn, sew: int, lmul: str, case: int, rng: np.random.Generator) -> None:
    """One instruction at one vtype: cases 0.. are VLMAX unmasked, odd masked, anything."""
    vlen = VLENS[int(rng.integers(4))]
    group = LMULS[lmul]
    legal = model.legal_vtype(sew, group)
    vlmax = int(group * vlen / sew) if legal else 0
    if case == 0:
        vl, vstart, vm, wild = vlmax, 0, 1, False
    elif case == 1:
        vl, vstart, vm, wild = int(rng.integers(0, vlmax + 1)) | 1, 0, 0, False
    else:
        vl = int(rng.choice([0, 1, vlmax, int(rng.integers(0, vlmax + 1))]))
        vstart = int(rng.choice([0, 1, int(rng.integers(0, vlmax + 1))]))
        vm, wild = int(rng.integers(2)), bool(rng.integers(2))
    operands = choose(row, sew, group, wild, rng)
    if "vm" in operands:
        operands["vm"] = vm
    word = encode(row.name, **operands)
    v = rng.integers(0, 256, (32, vlen // 8), np.uint8)
    for name, kind in source_kinds(row, sew).items():
        if name in operands:
            model.fill(v, operands[name], kind, rng.permutation(pool(kind)))
    if row.name.startswith("vrgather") and "vs1" in operands:
        width = 16 if "ei16" in row.name else sew
        indices = rng.integers(0, min(2 * vlmax + 2, 1 << width), 400, np.uint64)
        model.fill(v, operands["vs1"], width, indices)
    v[0] = rng.integers(0, 256, vlen // 8, np.uint8)
    x = rng.choice(integers(200, 1), 32)
    x[0] = 0
    scalars = model.FORMATS.get(sew, F16)
    f = rng.choice(pool(scalars), 32) | np.uint64((1 << 64) - (1 << scalars.width))
    if rng.integers(4) == 0:
        f = rng.integers(0, 1 << 63, 32, np.uint64)  # not boxed
    frm = int(rng.integers(5)) if case or rng.integers(2) else 0
    vcsr = int(rng.integers(8)) & (7 if rng.integers(4) == 0 else 6)
    want: State | None = None
    for path in PATHS:
        h = hart(path, vlen)
        h.set_csr("mstatus", UNITS_ON)
        h.load([encode("vsetvli", rd=0, rs1=5, vtype=vtype(sew, lmul)), word])
        h.x[5] = vl
        h.step(1)
        h.v[:], h.x[:], h.f[:] = v, x, f
        h.set_csr("vstart", vstart)
        h.set_csr("frm", frm)
        h.set_csr("fflags", case)
        h.set_csr("vcsr", vcsr)
        before = state_of(h, vlen, sew if legal else 0, group)
        if path == PATHS[0]:
            want = model.execute(row.name, row.format, operands, before)
        stop = h.cores.run(1)
        after = state_of(h, vlen, sew if legal else 0, group)
        what = f"{path} vlen {vlen} e{sew} {lmul} vl {before.vl} vstart {before.vstart} frm {frm}"
        what += f" vcsr {vcsr}"
        what = f"{row.name} {operands} {what}"
        if want is None:
            assert (stop.reason, stop.cause, stop.address) == (_core.FAULT, 2, word), what
            assert not differences(after, before), what
        else:
            assert stop.reason == _core.BUDGET and stop.pc == CODE + 8, f"{what}: {stop}"
            after = State(**{**after.__dict__, "elements": stop.elements})
            assert not (text := differences(after, want)), f"{what}: {text}"


@pytest.mark.parametrize("row", COMPUTING, ids=lambda row: row.name)
def test_rows(row: Insn) -> None:
    rng = np.random.default_rng(zlib.crc32(row.name.encode()))
    for _ in range(ROUNDS):
        for sew, lmul in itertools.product(SEWS, LMULS):
            for case in range(3):
                check(row, sew, lmul, case, rng)


def test_every_register_overlap() -> None:
    """Widening, narrowing, extending and comparing: each pair of register numbers, legal or not."""
    rng = np.random.default_rng(7)
    by_name = {row.name: row for row in COMPUTING}
    for name, sew, lmul in (
        ("vwaddu.vv", 16, "m2"),
        ("vwaddu.wv", 8, "mf2"),
        ("vnsrl.wv", 16, "m2"),
        ("vzext.vf4", 32, "m4"),
        ("vmseq.vv", 16, "m4"),
        ("vfwcvt.f.f.v", 16, "m1"),
        ("vfncvt.f.f.w", 16, "m1"),
        ("vfwmacc.vv", 16, "mf2"),
    ):
        row = by_name[name]
        for vd, vs2 in itertools.product(range(8, 18), range(8, 18)):
            vlen = 128
            operands = {"vd": vd, "vs2": vs2, "vs1": 24, "vm": 1}
            operands = {k: v for k, v in operands.items() if k in limits(row.format)}
            h = hart(PATHS[-1], vlen)
            h.set_csr("mstatus", UNITS_ON)
            word = encode(name, **operands)
            h.load([encode("vsetvli", rd=0, rs1=5, vtype=vtype(sew, lmul)), word])
            h.x[5] = 1000
            h.step(1)
            h.v[:] = rng.integers(0, 256, h.v.shape, np.uint8)
            h.set_csr("fflags", 0)
            before = state_of(h, vlen, sew, LMULS[lmul])
            want = model.execute(name, row.format, operands, before)
            stop = h.cores.run(1)
            assert (stop.reason == _core.FAULT) == (want is None), (name, operands)
            if want is not None:
                after = state_of(h, vlen, sew, LMULS[lmul])
                after = State(**{**after.__dict__, "elements": stop.elements})
                assert not (text := differences(after, want)), (name, operands, text)


# ---- configuration ---------------------------------------------------------------------


@pytest.mark.parametrize("vlen", VLENS)
def test_vset(vlen: int) -> None:
    """Every vtype of eight bits, and more: vl, vtype, rd; by all three instructions."""
    h = hart(PATHS[0], vlen)
    h.set_csr("mstatus", UNITS_ON)
    avls = (0, 1, 3, vlen // 8, vlen // 8 + 1, 31, 1 << 40, (1 << 64) - 1)
    names = {0: "m1", 1: "m2", 2: "m4", 3: "m8", 5: "mf8", 6: "mf4", 7: "mf2"}
    for code in [*range(256), 256, 1 << 10, 0x7FF]:
        sew, lmul = 8 << (code >> 3 & 7), LMULS.get(names.get(code & 7, ""))
        legal = lmul is not None and code < 256 and sew <= 64 and model.legal_vtype(sew, lmul)
        vlmax = int(lmul * vlen / sew) if legal and lmul is not None else 0
        for avl in avls:
            words = [
                encode("vsetvl", rd=7, rs1=5, rs2=6),
                encode("vsetvli", rd=7, rs1=5, vtype=code),
            ]
            if avl < 32 and code < 1 << 10:
                words.append(encode("vsetivli", rd=7, uimm=avl, vtype=code))
            for word in words:
                h.load([word])
                h.x[5], h.x[6], h.x[7] = avl, code, 99
                h.set_csr("vstart", 1)
                assert h.step(1).reason == _core.BUDGET
                assert h.csr("vl") == h.x[7] == min(avl, vlmax), (code, avl, hex(word))
                assert h.csr("vtype") == (code if legal else 1 << 63), (code, avl)
                assert h.csr("vstart") == 0


def test_vset_with_x0() -> None:
    """rs1 = x0: VLMAX with another rd, the same vl with rd = x0."""
    h = hart(PATHS[0], 512)
    h.set_csr("mstatus", UNITS_ON)
    h.x[5] = 5
    code = vtype(16, "m2")
    h.load(
        [
            encode("vsetvli", rd=7, rs1=0, vtype=code),
            encode("vsetvli", rd=8, rs1=5, vtype=code),
            encode("vsetvli", rd=0, rs1=0, vtype=vtype(32, "m4")),
            encode("vsetvl", rd=0, rs1=0, rs2=6),
        ]
    )
    h.x[6] = vtype(8, "m1") | 1 << 62
    h.step(3)
    assert (int(h.x[7]), int(h.x[8]), h.csr("vl"), int(h.x[0])) == (64, 5, 5, 0)
    assert h.csr("vtype") == vtype(32, "m4")
    h.cores.run(1)
    assert (h.csr("vl"), h.csr("vtype")) == (0, 1 << 63)


# ---- what must trap --------------------------------------------------------------------


def illegal(h: Hart, word: int) -> bool:
    h.load([word])
    stop = h.step(1)
    return (stop.reason, stop.cause, stop.address) == (_core.FAULT, 2, word)


@pytest.mark.parametrize("row", VECTOR, ids=lambda row: row.name)
def test_units_off(row: Insn) -> None:
    """With mstatus.VS off every row traps; with FS off or frm invalid the FP rows do."""
    h = Hart()
    rng = np.random.default_rng(1)
    width = re.search(r"ei?(\d+)(ff)?\.v$", row.name)
    sew = int(width[1]) if width else 64 if row.name.startswith(("vzext", "vsext")) else 16
    word = word_of(row, sew, rng)
    h.set_csr("mstatus", 0x6000)
    assert illegal(h, word)
    fp = row.cls.startswith("vf")
    setup = [encode("vsetivli", rd=0, uimm=4, vtype=vtype(sew, "m1")), word]
    for fs, frm in ((0, 0), (1, 5), (1, 6), (1, 7)):
        h.set_csr("mstatus", 0x600 | fs << 13)
        h.set_csr("frm", frm)
        h.set_csr("mstatus", 0x600 | fs << 13)
        h.load(setup)
        h.step(1)
        h.x[:] = 0x100000
        h.x[0] = 0
        stop = h.cores.run(1)
        assert (stop.reason == _core.FAULT and stop.cause == 2) == fp, (row.name, fs, frm)


def test_what_is_not_there() -> None:
    """Words of the vector opcodes that the table does not know trap."""
    h = Hart()
    h.set_csr("mstatus", UNITS_ON)
    h.load([encode("vsetvli", rd=5, rs1=0, vtype=vtype(16, "m1"))])
    h.step(1)
    h.x[1:] = 0x100000
    rng = np.random.default_rng(11)
    unknown = 0
    for _ in range(4000):
        opcode, width = [(0x57, None), (0x07, (0, 5, 6, 7)), (0x27, (0, 5, 6, 7))][rng.integers(3)]
        word = int(rng.integers(1 << 32)) & ~0x7F | opcode
        if width:
            word = word & ~0x7000 | int(rng.choice(width)) << 12
        if h.cores.decode(word) is None:
            unknown += 1
            assert illegal(h, word), hex(word)
    assert unknown > 1000


@pytest.mark.parametrize("path", PATHS)
def test_without_extensions(path: str) -> None:
    """f16 arithmetic needs Zvfh, bf16 Zvfbfmin and Zvfbfwma; f32, f64 and integers do not."""
    base = [e for e in _core.extension_names() if e not in ("zvfh", "zvfbfmin", "zvfbfwma")]
    h = Hart(simd=path, extensions=base)
    h.set_csr("mstatus", UNITS_ON)
    for row in COMPUTING:
        if not row.cls.startswith("vf"):
            continue
        for sew in SEWS:
            word = word_of(row, sew, np.random.default_rng(3))
            h.load([encode("vsetivli", rd=0, uimm=1, vtype=vtype(sew, "m1")), word])
            h.step(1)
            stop = h.cores.run(1)
            if model.is_fp(row.name):
                fp = model.fp_row(row.name, sew)
                kinds = [] if fp is None else [k for k in (fp.d, fp.a, fp.b) if k]
            elif model.is_reduction(row.name):
                wide = 2 * sew if row.name.startswith("vfw") else sew
                kinds = [model.FORMATS[k] for k in (sew, wide) if {sew, wide} <= {16, 32, 64}]
            else:
                kinds = [k for k in model.FORMATS.values() if k.width == sew]
            expected = bool(kinds) and F16 not in kinds and BF16 not in kinds
            assert (stop.reason == _core.BUDGET) == expected, (row.name, sew, stop)


def test_groups() -> None:
    """The model itself, on cases spelled out in the V chapter."""
    s = State(128, 16, Fraction(2), 4, 0, 0, 0, bytes(512), (), ())
    assert model.overlap_legal(s, Group(8, 32), Group(10, 16))
    assert not model.overlap_legal(s, Group(8, 32), Group(8, 16))
    assert model.overlap_legal(s, Group(8, 16), Group(8, 32))
    assert not model.overlap_legal(s, Group(10, 16), Group(8, 32))
    assert model.overlap_legal(s, Group(8, 1), Group(8, 16))
    assert not model.overlap_legal(s, Group(9, 1), Group(8, 16))
