"""The V extension a second time: slow, one Python integer per element, written from the manual.

`execute` takes the state before one instruction and returns the state after it, or None where the
manual makes it an illegal instruction.  Floating-point lanes are the MPFR oracle's.  Shares nothing
with the core but mnemonics.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tests import mpfr_oracle as oracle
from tests.mpfr_oracle import BF16, F16, F32, F64, RTZ, Bits, Flags, Format

LMULS = {
    "mf8": Fraction(1, 8),
    "mf4": Fraction(1, 4),
    "mf2": Fraction(1, 2),
    "m1": Fraction(1),
    "m2": Fraction(2),
    "m4": Fraction(4),
    "m8": Fraction(8),
}
SEWS = (8, 16, 32, 64)
ROD = 6  # rounding to odd, which only vfncvt.rod names


@dataclass(frozen=True)
class State:
    """What one vector instruction reads and writes; `sew` 0 stands for vill."""

    vlen: int
    sew: int
    lmul: Fraction
    vl: int
    vstart: int
    frm: int
    fflags: int
    v: bytes
    x: tuple[int, ...]
    f: tuple[int, ...]
    elements: int = 0  # active body elements processed
    vxrm: int = 0
    vxsat: int = 0

    @property
    def vlmax(self) -> int:
        return int(self.lmul * self.vlen / self.sew)

    def read(self, reg: int, eew: int, n: int) -> list[int]:
        """Elements 0..n-1 of the group at `reg`, unsigned."""
        at, size = reg * self.vlen // 8, eew // 8
        return [int.from_bytes(self.v[at + i * size :][:size], "little") for i in range(n)]

    def bit(self, reg: int, i: int) -> bool:
        return bool(self.v[reg * self.vlen // 8 + i // 8] >> i % 8 & 1)


def legal_vtype(sew: int, lmul: Fraction) -> bool:
    """ELEN = 64: SEW <= LMUL * ELEN."""
    return sew <= lmul * 64


def signed(a: int, width: int) -> int:
    return a - (1 << width) if a >> (width - 1) & 1 else a


def _quotient(a: int, b: int) -> int:
    """Towards zero; -1 by zero."""
    if b == 0:
        return -1
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


# ---- integer lanes: (a = vs2, b = vs1 or scalar, SEW) -> any integer -------------------

Lane = Callable[[int, int, int], int]

SAME: dict[str, Lane] = {
    "vadd": lambda a, b, w: a + b,
    "vsub": lambda a, b, w: a - b,
    "vrsub": lambda a, b, w: b - a,
    "vand": lambda a, b, w: a & b,
    "vor": lambda a, b, w: a | b,
    "vxor": lambda a, b, w: a ^ b,
    "vsll": lambda a, b, w: a << b % w,
    "vsrl": lambda a, b, w: a >> b % w,
    "vsra": lambda a, b, w: signed(a, w) >> b % w,
    "vminu": lambda a, b, w: min(a, b),
    "vmin": lambda a, b, w: min(signed(a, w), signed(b, w)),
    "vmaxu": lambda a, b, w: max(a, b),
    "vmax": lambda a, b, w: max(signed(a, w), signed(b, w)),
    "vmul": lambda a, b, w: a * b,
    "vmulhu": lambda a, b, w: a * b >> w,
    "vmulh": lambda a, b, w: signed(a, w) * signed(b, w) >> w,
    "vmulhsu": lambda a, b, w: signed(a, w) * b >> w,
    "vdivu": lambda a, b, w: a // b if b else -1,
    "vdiv": lambda a, b, w: _quotient(signed(a, w), signed(b, w)),
    "vremu": lambda a, b, w: a % b if b else a,
    "vrem": lambda a, b, w: signed(a, w) - signed(b, w) * _quotient(signed(a, w), signed(b, w)),
    "vmv.v": lambda a, b, w: b,
}
COMPARE: dict[str, Lane] = {
    "vmseq": lambda a, b, w: a == b,
    "vmsne": lambda a, b, w: a != b,
    "vmsltu": lambda a, b, w: a < b,
    "vmslt": lambda a, b, w: signed(a, w) < signed(b, w),
    "vmsleu": lambda a, b, w: a <= b,
    "vmsle": lambda a, b, w: signed(a, w) <= signed(b, w),
    "vmsgtu": lambda a, b, w: a > b,
    "vmsgt": lambda a, b, w: signed(a, w) > signed(b, w),
}
#: vd of 2 * SEW; in the .w forms a has that width
WIDEN: dict[str, Callable[[int, int], int]] = {
    "vwaddu": lambda a, b: a + b,
    "vwadd": lambda a, b: a + b,
    "vwsubu": lambda a, b: a - b,
    "vwsub": lambda a, b: a - b,
    "vwmulu": lambda a, b: a * b,
    "vwmul": lambda a, b: a * b,
    "vwmulsu": lambda a, b: a * b,
    "vwmaccu": lambda a, b: a * b,
    "vwmacc": lambda a, b: a * b,
    "vwmaccsu": lambda a, b: a * b,
    "vwmaccus": lambda a, b: a * b,
}
#: where vs2 and vs1 are not of the same kind: are they signed?
MIXED = {"vwmulsu": (True, False), "vwmaccsu": (False, True), "vwmaccus": (True, False)}
#: (a = vs2, b = vs1, d = vd)
ACCUMULATE: dict[str, Callable[[int, int, int], int]] = {
    "vmacc": lambda a, b, d: d + a * b,
    "vnmsac": lambda a, b, d: d - a * b,
    "vmadd": lambda a, b, d: a + d * b,
    "vnmsub": lambda a, b, d: a - d * b,
}
#: (a, b, carry, SEW); the last two give a bit
CARRY: dict[str, Callable[[int, int, int, int], int]] = {
    "vadc": lambda a, b, c, w: a + b + c,
    "vsbc": lambda a, b, c, w: a - b - c,
    "vmadc": lambda a, b, c, w: a + b + c >> w,
    "vmsbc": lambda a, b, c, w: a - b - c < 0,
}
NARROW: dict[str, Lane] = {
    "vnsrl": lambda a, b, w: a >> b % (2 * w),
    "vnsra": lambda a, b, w: signed(a, 2 * w) >> b % (2 * w),
}


def rounded(v: int, n: int, vxrm: int) -> int:
    """v / 2^n as a number of that many bits, rounded to nearest up, nearest even, down, odd."""
    low, down = v % (1 << n), v >> n
    half = 1 << n >> 1
    if vxrm == 0:
        return down + (low >= half > 0)
    if vxrm == 1:
        return down + (low > half or (low == half > 0 and down % 2))
    return down if vxrm == 2 or low == 0 else down | 1


#: (a, b, SEW, vxrm) -> exact result, with a and b as the name says: signed unless it ends in u
FIXED: dict[str, Callable[[int, int, int, int], int]] = {
    "vsadd": lambda a, b, w, rm: a + b,
    "vssub": lambda a, b, w, rm: a - b,
    "vaadd": lambda a, b, w, rm: rounded(a + b, 1, rm),
    "vasub": lambda a, b, w, rm: rounded(a - b, 1, rm),
    "vsmul": lambda a, b, w, rm: rounded(a * b, w - 1, rm),
    "vssrl": lambda a, b, w, rm: rounded(a % (1 << w), b % w, rm),
    "vssra": lambda a, b, w, rm: rounded(a, b % w, rm),
    "vnclip": lambda a, b, w, rm: rounded(a, b % (2 * w), rm),
}
SATURATING = ("vsadd", "vssub", "vsmul", "vnclip")
MASK: dict[str, Callable[[int, int], int]] = {
    "vmand": lambda a, b: a & b,
    "vmnand": lambda a, b: ~(a & b),
    "vmandn": lambda a, b: a & ~b,
    "vmxor": lambda a, b: a ^ b,
    "vmor": lambda a, b: a | b,
    "vmnor": lambda a, b: ~(a | b),
    "vmorn": lambda a, b: a | ~b,
    "vmxnor": lambda a, b: ~(a ^ b),
}

REDUCE: dict[str, Callable[[list[int]], int]] = {
    "sum": sum,
    "and": lambda xs: functools.reduce(operator.and_, xs),
    "or": lambda xs: functools.reduce(operator.or_, xs),
    "xor": lambda xs: functools.reduce(operator.xor, xs),
    "min": min,
    "max": max,
}

# ---- floating-point lanes: arrays (rm, a, b, d) -> (bits, flags) -----------------------

FORMATS = {16: F16, 32: F32, 64: F64}
FpLanes = Callable[[int, Bits, Bits, Bits], tuple[Bits, Flags]]


class FpRow(NamedTuple):
    """Formats (or integer widths) of the operands at one SEW, and what is computed."""

    d: Format | int  # 1: a mask
    a: Format | int | None
    b: Format | None
    lanes: FpLanes
    reads_d: bool = False
    #: "each": of every element; "first": of element 0 alone; "fold": of the elements of vs2 one
    #: after another, b being what came of those before
    over: str = "each"


def neg(f: Format, a: Bits) -> Bits:
    return a ^ np.uint64(f.sign)


def widened(source: Format, target: Format, a: Bits) -> tuple[Bits, Flags]:
    """Exact, but for NaNs."""
    if source is target:
        return a, np.zeros(len(a), np.uint8)
    bits = oracle.from_float(target, oracle.to_float(source, a))
    flags = np.where(oracle.is_snan(source, a), oracle.NV, 0).astype(np.uint8)
    return bits, flags


def _two(op: str, f: Format, fa: Format, fb: Format, swap: bool) -> FpLanes:
    def lanes(rm: int, a: Bits, b: Bits, d: Bits) -> tuple[Bits, Flags]:
        (x, nx), (y, ny) = widened(fa, f, a), widened(fb, f, b)
        bits, flags = oracle.arithmetic(op, f, rm, *((y, x) if swap else (x, y)))
        return bits, flags | nx | ny

    return lanes


def _fma(f: Format, narrow: Format, sign: bool, minus: bool, overwrites: bool) -> FpLanes:
    """±(b * a) ± d, or with the roles of a and d exchanged."""

    def lanes(rm: int, a: Bits, b: Bits, d: Bits) -> tuple[Bits, Flags]:
        (x, nx), (y, ny) = widened(narrow, f, b), widened(narrow, f, a)
        z = d
        if overwrites:
            y, z = z, y
        x = neg(f, x) if sign else x
        z = neg(f, z) if minus else z
        bits, flags = oracle.arithmetic("fma", f, rm, x, y, z)
        return bits, flags | nx | ny

    return lanes


FMA = {  # product's sign, addend's sign, does the product overwrite the addend's place
    "macc": (False, False, False),
    "nmacc": (True, True, False),
    "msac": (False, True, False),
    "nmsac": (True, False, False),
    "madd": (False, False, True),
    "nmadd": (True, True, True),
    "msub": (False, True, True),
    "nmsub": (True, False, True),
}
ARITHMETIC = {
    "add": ("add", False),
    "sub": ("sub", False),
    "rsub": ("sub", True),
    "mul": ("mul", False),
    "div": ("div", False),
    "rdiv": ("div", True),
}


def _compare(name: str, f: Format) -> FpLanes:
    def lanes(rm: int, a: Bits, b: Bits, d: Bits) -> tuple[Bits, Flags]:
        if name == "ne":
            bits, flags = oracle.compare("eq", f, a, b)
            return bits ^ np.uint64(1), flags
        if name in ("gt", "ge"):
            return oracle.compare({"gt": "lt", "ge": "le"}[name], f, b, a)
        return oracle.compare(name, f, a, b)

    return lanes


def _exact(fn: Callable[[Bits, Bits], Bits]) -> FpLanes:
    return lambda rm, a, b, d: (fn(a, b), np.zeros(len(a), np.uint8))


def _to_odd(f: Format, g: Format) -> FpLanes:
    """f to g: towards zero, then the lowest bit set where that was inexact."""

    def lanes(rm: int, a: Bits, b: Bits, d: Bits) -> tuple[Bits, Flags]:
        bits, flags = oracle.convert(f, g, RTZ, a)
        inexact = flags & oracle.NX != 0
        # tininess after rounding to odd: that rounding never reaches the smallest normal number
        normal = oracle.from_float(f, np.array([2.0**g.emin]))[0]
        tiny = inexact & ((a & np.uint64(f.sign - 1)) < normal)
        flags = flags | np.where(tiny, oracle.UF, 0).astype(np.uint8)
        return bits | inexact.astype(np.uint64), flags

    return lanes


def _estimate(name: str, f: Format) -> FpLanes:
    """Seven bits of 1 / sqrt(x) or 1 / x: right in the middle of what has the same leading bits."""

    def lanes(rm: int, a: Bits, b: Bits, d: Bits) -> tuple[Bits, Flags]:
        results = [_estimate_one(name, f, rm, int(x)) for x in a]
        bits, flags = zip(*results, strict=True) if results else ((), ())
        return np.array(bits, np.uint64), np.array(flags, np.uint8)

    return lanes


def _estimate_one(name: str, f: Format, rm: int, a: int) -> tuple[int, int]:
    sign, magnitude = a & f.sign, a & f.sign - 1
    if magnitude > f.inf:
        return f.nan, 0 if a >> f.mbits - 1 & 1 else oracle.NV
    if magnitude == 0:
        return sign | f.inf, oracle.DZ
    if name == "rsqrt7" and sign:
        return f.nan, oracle.NV
    if magnitude == f.inf:
        return sign, 0
    exponent, fraction = magnitude >> f.mbits, magnitude & (1 << f.mbits) - 1
    if exponent == 0:
        exponent = fraction.bit_length() - f.mbits
        fraction = fraction << 1 - exponent & (1 << f.mbits) - 1
    exponent -= f.emax  # now x = 2^exponent * (1 + fraction / 2^mbits)
    if name == "rsqrt7":
        leading = (fraction >> f.mbits - 6) + 0.5
        scale = -(exponent // 2) - 1
        estimate = (2 / (1 + leading / 64)) ** 0.5 * 2**0.5
        estimate /= 2**0.5 if exponent % 2 else 1
    else:
        leading = (fraction >> f.mbits - 7) + 0.5
        scale, estimate = -exponent - 1, 2 / (1 + leading / 128)
    digits = round(estimate * 128)  # 128 .. 255
    biased = scale + f.emax
    if biased > 2 * f.emax:
        away = rm in (0, 4) or rm == (2 if sign else 3)
        return sign | f.inf - (not away), oracle.OF | oracle.NX
    significand = digits << f.mbits - 7
    if biased < 1:
        return sign | significand >> 1 - biased, 0
    return sign | (biased - 1 << f.mbits) + significand, 0


def _to_int(f: Format, rm: int | None, width: int, is_signed: bool) -> FpLanes:
    return lambda frm, a, b, d: oracle.to_int(f, frm if rm is None else rm, a, width, is_signed)


def _from_int(f: Format, width: int, is_signed: bool) -> FpLanes:
    def lanes(rm: int, a: Bits, b: Bits, d: Bits) -> tuple[Bits, Flags]:
        values = [signed(int(v), width) if is_signed else int(v) for v in a]
        return oracle.from_int(f, rm, values)

    return lanes


def _convert(source: Format, target: Format) -> FpLanes:
    return lambda rm, a, b, d: oracle.convert(source, target, rm, a)


def fp_row(name: str, sew: int) -> FpRow | None:
    """What an FP row means at a SEW; None when it means nothing there.

    Raises:
        KeyError: no row of that name is known here.
    """
    f, wide = FORMATS.get(sew), FORMATS.get(2 * sew)
    base, _, form = name.partition(".")
    op = base[2:]
    if base in ("vfncvtbf16", "vfwcvtbf16", "vfwmaccbf16"):
        if sew != 16:
            return None
        if base == "vfwcvtbf16":
            return FpRow(F32, BF16, None, _convert(BF16, F32))
        if base == "vfncvtbf16":
            return FpRow(BF16, F32, None, _convert(F32, BF16))
        return FpRow(F32, BF16, BF16, _fma(F32, BF16, False, False, False), True)
    if is_reduction(base):
        return _fp_reduction(base, f, wide)
    if base in ("vfcvt", "vfwcvt", "vfncvt"):
        return _conversion(base, form.split("."), sew)
    if base.startswith("vmf"):
        return None if f is None else FpRow(1, f, f, _compare(base[3:], f))
    if base in ("vfwadd", "vfwsub", "vfwmul"):
        if wide is None or f is None:
            return None
        fa = wide if form.startswith("w") else f
        return FpRow(wide, fa, f, _two(base[3:], wide, fa, f, False))
    if base.startswith("vfw") and base[3:] in FMA:
        if wide is None or f is None:
            return None
        return FpRow(wide, f, f, _fma(wide, f, *FMA[base[3:]]), True)
    if f is None:
        return None
    if op in ARITHMETIC:
        fn, swap = ARITHMETIC[op]
        return FpRow(f, f, f, _two(fn, f, f, f, swap))
    if op in FMA:
        return FpRow(f, f, f, _fma(f, f, *FMA[op]), True)
    if op == "sqrt":
        return FpRow(f, f, None, lambda rm, a, b, d: oracle.arithmetic("sqrt", f, rm, a))
    if op in ("rsqrt7", "rec7"):
        return FpRow(f, f, None, _estimate(op, f))
    if op in ("min", "max"):
        return FpRow(f, f, f, lambda rm, a, b, d: oracle.select(op, f, a, b))
    if op in ("sgnj", "sgnjn", "sgnjx"):
        return FpRow(f, f, f, _exact(lambda a, b: oracle.inject_sign(op, f, a, b)))
    if op == "class":
        return FpRow(f, f, None, _exact(lambda a, b: oracle.classify(f, a)))
    if name == "vfmv.v.f":
        return FpRow(f, None, f, _exact(lambda a, b: b))
    if name == "vfmv.f.s":
        return FpRow(f, f, None, _exact(lambda a, b: a), over="first")
    if name in MOVES:
        return FpRow(f, f, f, _exact(lambda a, b: b), over="first")
    raise KeyError(name)


def _fp_reduction(base: str, f: Format | None, wide: Format | None) -> FpRow | None:
    """One step: the next element (a) joins the result so far (b)."""
    kind, d = base.split("red")[1], wide if base.startswith("vfw") else f
    if f is None or d is None:
        return None
    if kind in ("min", "max"):
        return FpRow(f, f, f, lambda rm, a, b, d: oracle.select(kind, f, b, a), over="fold")
    return FpRow(d, f, d, _two("add", d, f, d, swap=True), over="fold")


def _conversion(base: str, form: Sequence[str], sew: int) -> FpRow | None:
    source_bits = 2 * sew if base == "vfncvt" else sew
    target_bits = 2 * sew if base == "vfwcvt" else sew
    rm = RTZ if form[0] == "rtz" else ROD if form[0] == "rod" else None
    if rm is not None:
        form = form[1:]
    to, source = form[0], form[1]
    if to in ("x", "xu"):
        f = FORMATS.get(source_bits)
        if f is None or target_bits > 64:
            return None
        return FpRow(target_bits, f, None, _to_int(f, rm, target_bits, to == "x"))
    f = FORMATS.get(target_bits)
    if f is None or source_bits > 64:
        return None
    if source in ("x", "xu"):
        return FpRow(f, source_bits, None, _from_int(f, source_bits, source == "x"))
    g = FORMATS.get(source_bits)
    if g is None:
        return None
    if rm == ROD:
        return FpRow(f, g, None, _to_odd(g, f))
    return FpRow(f, g, None, _convert(g, f))


#: What they do besides putting the scalar into element 0 (with all mask bits set) is _move's,
#: _merge's and _move_element's.
MOVES = ("vfmv.s.f", "vfmerge.vfm", "vfslide1up.vf", "vfslide1down.vf")


def is_fp(name: str) -> bool:
    """Does `fp_row` say all about it?"""
    if is_reduction(name) or name in (*MOVES, "vfmv.f.s", "vfirst.m"):
        return False
    return name.startswith(("vf", "vmf"))


def is_reduction(name: str) -> bool:
    return name.startswith(("vred", "vwred", "vfred", "vfwred"))


def width_of(kind: Format | int) -> int:
    return kind if isinstance(kind, int) else kind.width


# ---- legality --------------------------------------------------------------------------


class Group(NamedTuple):
    """A register group that is an operand: its first register and EEW; 1 is a mask."""

    reg: int
    eew: int

    def emul(self, s: State) -> Fraction:
        return s.lmul * self.eew / s.sew

    def size(self, s: State) -> int:
        return 1 if self.eew == 1 else max(1, int(self.emul(s)))

    def legal(self, s: State) -> bool:
        if self.eew == 1:
            return True
        return (
            8 <= self.eew <= 64
            and Fraction(1, 8) <= self.emul(s) <= 8
            and self.reg % self.size(s) == 0
        )


def overlap_legal(s: State, d: Group, source: Group) -> bool:
    """The three cases of section 5.2 of the V chapter."""
    nd, ns = d.size(s), source.size(s)
    apart = d.reg + nd <= source.reg or source.reg + ns <= d.reg
    if apart or d.eew == source.eew:
        return True
    if d.eew < source.eew:
        return d.reg == source.reg
    return source.emul(s) >= 1 and source.reg + ns == d.reg + nd


def operands_legal(
    s: State, d: Group | None, sources: Sequence[Group | None], masked: bool = False
) -> bool:
    if s.sew == 0:
        return False
    groups = [g for g in sources if g is not None]
    if not all(g.legal(s) for g in groups):
        return False
    if d is None:
        return True
    if masked and d.reg == 0 and d.eew != 1:
        return False
    return d.legal(s) and all(overlap_legal(s, d, g) for g in groups)


# ---- execution -------------------------------------------------------------------------

Operands = dict[str, int]


def unboxed(f: Format, value: int) -> int:
    """The scalar of an f register in format f."""
    boxed = value >> f.width == (1 << 64 - f.width) - 1  # nothing above f64
    return value & f.mask if boxed else f.nan


def scalar_of(s: State, fmt: str, o: Operands, width: int) -> int:
    if fmt.startswith("VX"):
        return s.x[o["rs1"]] & (1 << width) - 1
    if "uimm" in o:
        return o["uimm"]
    return o["imm"] & (1 << width) - 1


def _store(s: State, d: Group, values: dict[int, int]) -> bytes:
    """The register file with some elements of d replaced."""
    v = bytearray(s.v)
    base = d.reg * s.vlen // 8
    for i, value in values.items():
        if d.eew == 1:
            at = base + i // 8
            v[at] = v[at] & ~(1 << i % 8) | (value & 1) << i % 8
        else:
            size = d.eew // 8
            v[base + i * size : base + (i + 1) * size] = (value & (1 << d.eew) - 1).to_bytes(
                size, "little"
            )
    return bytes(v)


def body(s: State, vm: int) -> list[int]:
    """The active body elements."""
    return [i for i in range(s.vstart, s.vl) if vm or s.bit(0, i)]


def _done(s: State, active: int, **changes: object) -> State:
    return replace(s, vstart=0, elements=active, **changes)  # type: ignore[arg-type]


def execute(name: str, fmt: str, o: Operands, s: State) -> State | None:
    """One instruction other than vset, loads and stores."""
    base, _, form = name.partition(".")
    vm = o.get("vm", 1)
    if base.startswith("vmv") and base.endswith("r"):
        return _move_registers(int(base[3]), o, s)
    if name in ("vmv.x.s", "vmv.s.x", "vfmv.f.s", "vfmv.s.f"):
        return _move_element(name, o, s)
    if base in ("vmerge", "vfmerge"):
        return _merge(name, fmt, o, s)
    if name in ("vcpop.m", "vfirst.m"):
        return _count(name, o, s)
    if "slide" in base or base.startswith("vrgather"):
        return _move(name, fmt, o, s)
    if base in ("vcompress", "viota", "vmsbf", "vmsif", "vmsof"):
        return _by_bits(base, o, s)
    if is_reduction(base):
        return _reduce(base, o, s)
    if base.startswith(("vf", "vmf")):
        return _fp(name, fmt, o, s)
    if form == "mm":
        return _masks(base, o, s)
    if name == "vid.v":
        d = Group(o["vd"], s.sew)
        if not operands_legal(s, d, [], not vm):
            return None
        active = body(s, vm)
        return _done(s, len(active), v=_store(s, d, {i: i for i in active}))
    return _integer(name, fmt, o, s)


def _integer(name: str, fmt: str, o: Operands, s: State) -> State | None:
    base, _, form = name.partition(".")
    w, vm = s.sew, o.get("vm", 1)
    if w == 0:
        return None
    key = "vmv.v" if name.startswith("vmv.v") else base
    fixed = base.removesuffix("u") in FIXED
    d_eew, a_eew = w, w
    if base in ("vzext", "vsext"):
        a_eew = w // int(form[2])
        if a_eew < 8:
            return None
    elif base in WIDEN:
        d_eew, a_eew = 2 * w, 2 * w if form.startswith("w") else w
    elif base in NARROW or base.startswith("vnclip"):
        a_eew = 2 * w
    elif base in COMPARE or base in ("vmadc", "vmsbc"):
        d_eew = 1
    d = Group(o["vd"], d_eew)
    a = Group(o["vs2"], a_eew) if "vs2" in o else None
    b = Group(o["vs1"], w) if "vs1" in o else None
    reads_v0 = not vm or (base in CARRY and form.endswith("m"))
    if not operands_legal(s, d, [a, b], reads_v0):
        return None
    xs = s.read(a.reg, a.eew, s.vl) if a else [0] * s.vl
    if b:
        ys = s.read(b.reg, w, s.vl)
    elif base in ("vzext", "vsext"):
        ys = [0] * s.vl
    else:
        ys = [scalar_of(s, fmt, o, w)] * s.vl
    zs = s.read(d.reg, d_eew, s.vl) if d_eew > 1 and d_eew * s.vl <= 8 * s.vlen else [0] * s.vl
    out, vxsat = {}, s.vxsat
    active = body(s, 1 if base in CARRY else vm)
    for i in active:
        x, y = xs[i], ys[i]
        if base in ("vzext", "vsext"):
            out[i] = signed(x, a_eew) if base == "vsext" else x
        elif base in WIDEN:
            sx, sy = MIXED.get(base, (not base.endswith("u"),) * 2)
            x, y = signed(x, a_eew) if sx else x, signed(y, w) if sy else y
            out[i] = WIDEN[base](x, y) + (zs[i] if "acc" in base else 0)
        elif base in ACCUMULATE:
            out[i] = ACCUMULATE[base](x, y, zs[i])
        elif base in CARRY:
            carry = form.endswith("m") and s.bit(0, i)
            out[i] = int(CARRY[base](x, y, carry, w))
        elif fixed:
            out[i], saturated = _fixed(base, x, y, w, a_eew, s.vxrm)
            vxsat |= saturated
        else:
            table = COMPARE if base in COMPARE else NARROW if base in NARROW else SAME
            out[i] = int(table[key](x, y, w))
    return _done(s, len(active), v=_store(s, d, out), vxsat=vxsat)


def _fixed(base: str, x: int, y: int, w: int, a_eew: int, vxrm: int) -> tuple[int, bool]:
    """The result of one lane, and whether it was saturated."""
    is_signed, key = not base.endswith("u"), base.removesuffix("u")
    if is_signed:
        x = signed(x, a_eew)
        y = y if key in ("vssrl", "vssra", "vnclip") else signed(y, w)
    exact = FIXED[key](x, y, w, vxrm)
    if key not in SATURATING:
        return exact, False
    least = -(1 << w - 1) if is_signed else 0
    result = min(max(exact, least), least + (1 << w) - 1)
    return result, result != exact


def _fp(name: str, fmt: str, o: Operands, s: State) -> State | None:
    vm = o.get("vm", 1)
    row = fp_row(name, s.sew) if s.sew else None
    if row is None or s.frm > 4:
        return None
    d = Group(o["vd"], width_of(row.d))
    a = Group(o["vs2"], width_of(row.a)) if row.a is not None else None
    b = Group(o["vs1"], width_of(row.b)) if "vs1" in o and row.b else None
    if not operands_legal(s, d, [a, b], not vm):
        return None
    active = body(s, vm)

    def lanes(group: Group | None) -> Bits:
        values = s.read(group.reg, group.eew, s.vl) if group else [0] * s.vl
        return np.array([values[i] for i in active], np.uint64)

    y = lanes(b)
    if b is None and row.b is not None:
        y = np.full(len(active), unboxed(row.b, s.f[o["rs1"]]), np.uint64)
    z = lanes(d if row.reads_d else None)
    if not active:
        return _done(s, 0)
    bits, flags = row.lanes(s.frm, lanes(a), y, z)
    out = {i: int(bit) for i, bit in zip(active, bits, strict=True)}
    raised = int(np.bitwise_or.reduce(flags))
    return _done(s, len(active), v=_store(s, d, out), fflags=s.fflags | raised)


def _masks(base: str, o: Operands, s: State) -> State | None:
    if s.sew == 0:
        return None
    active = body(s, 1)
    out = {i: MASK[base](s.bit(o["vs2"], i), s.bit(o["vs1"], i)) for i in active}
    return _done(s, len(active), v=_store(s, Group(o["vd"], 1), out))


def _count(name: str, o: Operands, s: State) -> State | None:
    if s.sew == 0 or s.vstart:
        return None
    active = body(s, o["vm"])
    found = [i for i in active if s.bit(o["vs2"], i)]
    value = len(found) if name == "vcpop.m" else found[0] if found else (1 << 64) - 1
    return _done(s, len(active), x=_set(s.x, o["rd"], value))


def _set(registers: tuple[int, ...], rd: int, value: int) -> tuple[int, ...]:
    return (*registers[:rd], value, *registers[rd + 1 :])


def _merge(name: str, fmt: str, o: Operands, s: State) -> State | None:
    if s.sew == 0:
        return None
    w = s.sew
    d, a = Group(o["vd"], w), Group(o["vs2"], w)
    b = Group(o["vs1"], w) if "vs1" in o else None
    fp = name.startswith("vf")
    if not operands_legal(s, d, [a, b], True) or (fp and (w not in FORMATS or s.frm > 4)):
        return None
    xs = s.read(a.reg, w, s.vl)
    if b:
        ys = s.read(b.reg, w, s.vl)
    elif fp:
        ys = [unboxed(FORMATS[w], s.f[o["rs1"]])] * s.vl
    else:
        ys = [scalar_of(s, fmt, o, w)] * s.vl
    active = body(s, 1)
    out = {i: ys[i] if s.bit(0, i) else xs[i] for i in active}
    return _done(s, len(active), v=_store(s, d, out))


def _move_element(name: str, o: Operands, s: State) -> State | None:
    if s.sew == 0:
        return None
    w = s.sew
    fp = "f" in name
    if fp and (w not in FORMATS or s.frm > 4):
        return None
    if name == "vmv.x.s":
        value = signed(s.read(o["vs2"], w, 1)[0], w) & (1 << 64) - 1
        return _done(s, 1, x=_set(s.x, o["rd"], value))
    if name == "vfmv.f.s":
        box = (1 << 64) - (1 << w)
        return _done(s, 1, f=_set(s.f, o["rd"], box | s.read(o["vs2"], w, 1)[0]))
    if s.vstart >= s.vl:
        return _done(s, 0)
    value = unboxed(FORMATS[w], s.f[o["rs1"]]) if fp else s.x[o["rs1"]]
    return _done(s, 1, v=_store(s, Group(o["vd"], w), {0: value}))


def _move_registers(n: int, o: Operands, s: State) -> State | None:
    if s.sew == 0 or o["vd"] % n or o["vs2"] % n:
        return None
    total = n * s.vlen // s.sew
    values = s.read(o["vs2"], s.sew, total)
    todo = range(s.vstart, total)
    out = {i: values[i] for i in todo}
    return _done(s, len(todo), v=_store(s, Group(o["vd"], s.sew), out))


def _apart(s: State, d: Group, source: Group) -> bool:
    return d.reg + d.size(s) <= source.reg or source.reg + source.size(s) <= d.reg


def _move(name: str, fmt: str, o: Operands, s: State) -> State | None:
    """Slides and gathers: every active element is one of vs2, a scalar, 0, or what it was."""
    base = name.partition(".")[0]
    w, vm = s.sew, o["vm"]
    fp = base.startswith("vf")
    if w == 0 or (fp and (w not in FORMATS or s.frm > 4)):
        return None
    d, a = Group(o["vd"], w), Group(o["vs2"], w)
    index = Group(o["vs1"], 16 if base.endswith("ei16") else w) if "vs1" in o else None
    if not operands_legal(s, d, [a, index], not vm):
        return None
    if not base.endswith("down") and not all(_apart(s, d, g) for g in (a, index) if g):
        return None
    xs, active, n = s.read(a.reg, w, s.vlmax), body(s, vm), s.vl
    scalar = 0 if index else unboxed(FORMATS[w], s.f[o["rs1"]]) if fp else scalar_of(s, fmt, o, 64)
    out: dict[int, int] = {}
    for i in active:
        if "slide1" in base:
            at = i - 1 if base.endswith("up") else i + 1
            out[i] = xs[at] if 0 <= at < n else scalar
            continue
        if base == "vslideup" and i < scalar:
            continue
        indices = s.read(index.reg, index.eew, n) if index else [scalar] * n
        at = {"vslideup": i - scalar, "vslidedown": i + scalar}.get(base, indices[i])
        out[i] = xs[at] if at < s.vlmax else 0
    return _done(s, len(active), v=_store(s, d, out))


def _by_bits(base: str, o: Operands, s: State) -> State | None:
    """vcompress, viota, and what is before, up to and at the first bit."""
    vm = o.get("vm", 1)
    if s.sew == 0 or s.vstart:
        return None
    mask = Group(o["vs1"] if base == "vcompress" else o["vs2"], 1)
    d = Group(o["vd"], 1 if base.startswith("vms") else s.sew)
    sources = [mask, Group(o["vs2"], s.sew)] if base == "vcompress" else [mask]
    if not d.legal(s) or not all(g.legal(s) and _apart(s, d, g) for g in sources):
        return None
    if not vm and d.reg == 0:
        return None
    active, out, seen = body(s, vm), {}, 0
    for i in active:
        bit = s.bit(mask.reg, i)
        if base == "vcompress" and bit:
            out[seen] = s.read(o["vs2"], s.sew, i + 1)[i]
        elif base == "viota":
            out[i] = seen
        elif base.startswith("vms"):
            first = bit and not seen
            out[i] = int({"b": not seen and not bit, "i": not seen, "o": first}[base[3]])
        seen += bit
    return _done(s, len(active), v=_store(s, d, out))


def _reduce(base: str, o: Operands, s: State) -> State | None:
    """From the first element to the last."""
    w, fp, kind = s.sew, base.startswith("vf"), base.split("red")[1]
    dw = 2 * w if base.startswith(("vw", "vfw")) else w
    if w == 0 or s.vstart or dw > 64 or not Group(o["vs2"], w).legal(s):
        return None
    if fp and (w not in FORMATS or s.frm > 4):
        return None
    if s.vl == 0:
        return _done(s, 0)
    active, fflags = body(s, o["vm"]), s.fflags
    values = s.read(o["vs2"], w, s.vl)
    value = s.read(o["vs1"], dw, 1)[0]
    if fp:
        f = FORMATS[dw]
        if not active and kind == "usum":  # the sum of one number: a NaN becomes the canonical one
            alone = np.array([value], np.uint64)
            if oracle.is_nan(f, alone)[0]:
                value, fflags = f.nan, fflags | (oracle.NV if oracle.is_snan(f, alone)[0] else 0)
        row = fp_row(base, w)
        assert row is not None
        for i in active:
            x, y = np.array([values[i]], np.uint64), np.array([value], np.uint64)
            bits, flags = row.lanes(s.frm, x, y, y)
            value, fflags = int(bits[0]), fflags | int(flags[0])
    else:
        unsigned = kind.endswith("u") or kind in ("and", "or", "xor")
        xs = [values[i] if unsigned else signed(values[i], w) for i in active]
        total = [value if unsigned else signed(value, dw), *xs]
        value = REDUCE[kind.removesuffix("u")](total)
    out = _store(s, Group(o["vd"], dw), {0: value})
    return _done(s, len(active), v=out, fflags=fflags)


# ---- operands --------------------------------------------------------------------------


def fill(v: NDArray[np.uint8], reg: int, kind: Format | int, pool: Bits) -> None:
    """Put numbers of `kind` into up to eight registers from `reg` on."""
    width = width_of(kind)
    room = v[reg : reg + 8].reshape(-1)
    lanes = pool.astype(np.dtype(f"<u{width // 8}")).view(np.uint8)
    room[:] = np.resize(lanes, room.size)
