"""Floating point by MPFR (gmpy2): what the tests of the arithmetic compare with.

Only the rounding of numbers is MPFR's; NaN operands, and the operations that round nothing, follow
rules written here.  Everything works on arrays: uint64 bit patterns in, (bits, fflags) out.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import gmpy2
import numpy as np
from numpy.typing import NDArray

Bits = NDArray[np.uint64]
Flags = NDArray[np.uint8]

NX, UF, OF, DZ, NV = 1, 2, 4, 8, 16
RNE, RTZ, RDN, RUP, RMM = range(5)
MODES = (RNE, RTZ, RDN, RUP, RMM)
#: MPFR has no ties-away mode: see _rounded.
MPFR_MODE = {
    RNE: gmpy2.RoundToNearest,
    RTZ: gmpy2.RoundToZero,
    RDN: gmpy2.RoundDown,
    RUP: gmpy2.RoundUp,
}


class Format(NamedTuple):
    """An IEEE interchange format: total, exponent and stored mantissa bits."""

    name: str
    suffix: str  # in mnemonics
    width: int
    ebits: int
    mbits: int

    @property
    def precision(self) -> int:
        return self.mbits + 1

    @property
    def emax(self) -> int:
        return (1 << (self.ebits - 1)) - 1

    @property
    def emin(self) -> int:
        """Exponent of the smallest normal number."""
        return 1 - self.emax

    @property
    def sign(self) -> int:
        return 1 << (self.width - 1)

    @property
    def inf(self) -> int:
        return ((1 << self.ebits) - 1) << self.mbits

    @property
    def nan(self) -> int:
        """The canonical NaN."""
        return self.inf | 1 << (self.mbits - 1)

    @property
    def mask(self) -> int:
        return (1 << self.width) - 1

    def context(self, extra: int = 0, mode: int = gmpy2.RoundToNearest) -> gmpy2.context:
        """Rounds to this format, with `extra` more bits below its last place."""
        # MPFR's significands are in [1/2, 1), so its exponents are one higher
        return gmpy2.context(
            precision=self.precision + extra,
            emin=self.emin - self.mbits - extra + 1,
            emax=self.emax + 1,
            subnormalize=True,
            round=mode,
        )

    def unbounded(self, mode: int) -> gmpy2.context:
        """The same precision with (practically) no bounds on the exponent."""
        return gmpy2.context(precision=self.precision, round=mode)


F16 = Format("float16", "h", 16, 5, 10)
BF16 = Format("bfloat16", "bf16", 16, 8, 7)
F32 = Format("float32", "s", 32, 8, 23)
F64 = Format("float64", "d", 64, 11, 52)
FORMATS = (F16, BF16, F32, F64)


def is_nan(f: Format, a: Bits) -> NDArray[np.bool_]:
    return (a & np.uint64(f.sign - 1)) > np.uint64(f.inf)


def is_snan(f: Format, a: Bits) -> NDArray[np.bool_]:
    return is_nan(f, a) & ((a >> np.uint64(f.mbits - 1)) & np.uint64(1) == 0)


def to_float(f: Format, a: Bits) -> NDArray[np.float64]:
    """The values, all of which a float64 holds."""
    with np.errstate(invalid="ignore"):
        if f is F16:
            return a.astype(np.uint16).view(np.float16).astype(np.float64)
        if f is BF16:
            return (a << np.uint64(16)).astype(np.uint32).view(np.float32).astype(np.float64)
        if f is F32:
            return a.astype(np.uint32).view(np.float32).astype(np.float64)
    return a.view(np.float64)


def from_float(f: Format, v: NDArray[np.float64]) -> Bits:
    """The bits of values that are exact in f; any NaN is canonical."""
    with np.errstate(invalid="ignore"):
        if f is F16:
            out = v.astype(np.float16).view(np.uint16).astype(np.uint64)
        elif f is BF16:
            out = (v.astype(np.float32).view(np.uint32) >> 16).astype(np.uint64)
        elif f is F32:
            out = v.astype(np.float32).view(np.uint32).astype(np.uint64)
        else:
            out = v.view(np.uint64).copy()
    out[np.isnan(v)] = f.nan
    return out


def to_mpfr(f: Format, a: Bits) -> list[gmpy2.mpfr]:
    with gmpy2.context(precision=53):
        return [gmpy2.mpfr(x) for x in to_float(f, a).tolist()]


def _rounded(
    f: Format, rm: int, fn: Callable[..., gmpy2.mpfr], operands: Iterable[Sequence[gmpy2.mpfr]]
) -> tuple[Bits, Flags]:
    """fn of every operand tuple, rounded once to f.  No operand is a NaN."""
    near = rm in (RNE, RMM)
    mode = MPFR_MODE[RNE if near else rm]
    smallest = gmpy2.exp2(f.emin)
    values, flags = [], []
    with f.context(0, mode) as c:
        for args in operands:
            c.clear_flags()
            v = fn(*args)
            flag = 0
            if c.invalid:
                flag = NV
            elif c.divzero:
                flag = DZ
            elif c.inexact:
                flag = NX
                # a tie is what one more bit holds exactly
                if rm == RMM:
                    with f.context(1, mode) as c2:
                        c2.clear_flags()
                        fn(*args)
                        tie = not c2.inexact
                    if tie:
                        with f.context(0, gmpy2.RoundAwayZero) as c2:
                            c2.clear_flags()
                            v = fn(*args)
                            c.overflow = c2.overflow
                if c.overflow:
                    flag |= OF
                elif -smallest <= v <= smallest and _tiny(f, rm, fn, args, smallest):
                    flag |= UF
            values.append(float(v))
            flags.append(flag)
    return from_float(f, np.array(values, np.float64)), np.array(flags, np.uint8)


def _tiny(
    f: Format,
    rm: int,
    fn: Callable[..., gmpy2.mpfr],
    args: Sequence[gmpy2.mpfr],
    smallest: gmpy2.mpfr,
) -> bool:
    """Tininess after rounding: below the normal numbers, had the exponent no bounds."""
    mode = MPFR_MODE[RNE if rm == RMM else rm]
    if rm == RMM:
        with gmpy2.context(precision=f.precision + 1) as c:
            c.clear_flags()
            fn(*args)
            if not c.inexact:  # at most a tie
                mode = gmpy2.RoundAwayZero
    with f.unbounded(mode):
        return bool(abs(fn(*args)) < smallest)  # within this context, or abs() would round again


FUNCTIONS: dict[str, Callable[..., gmpy2.mpfr]] = {
    "add": gmpy2.add,
    "sub": gmpy2.sub,
    "mul": gmpy2.mul,
    "div": gmpy2.div,
    "sqrt": gmpy2.sqrt,
    "fma": gmpy2.fma,
    "cvt": operator.pos,
}


def arithmetic(name: str, f: Format, rm: int, *operands: Bits) -> tuple[Bits, Flags]:
    """add, sub, mul, div, sqrt or fma (a * b + c) in format f."""
    nan = np.zeros(len(operands[0]), bool)
    flags = np.zeros(len(operands[0]), np.uint8)
    for a in operands:
        nan |= is_nan(f, a)
        flags[is_snan(f, a)] = NV
    if name == "fma":  # F chapter: inf * 0 is invalid even if the addend is a quiet NaN
        a, b = operands[0] & np.uint64(f.sign - 1), operands[1] & np.uint64(f.sign - 1)
        inf = np.uint64(f.inf)
        flags[((a == inf) & (b == 0)) | ((b == inf) & (a == 0))] = NV
    bits = np.full(len(nan), f.nan, np.uint64)
    live = ~nan
    columns = [to_mpfr(f, a[live]) for a in operands]
    bits[live], flags[live] = _rounded(f, rm, FUNCTIONS[name], zip(*columns, strict=True))
    return bits, flags


def convert(source: Format, target: Format, rm: int, a: Bits) -> tuple[Bits, Flags]:
    """From one format to another."""
    nan = is_nan(source, a)
    flags = np.where(is_snan(source, a), NV, 0).astype(np.uint8)
    bits = np.full(len(a), target.nan, np.uint64)
    live = ~nan
    bits[live], flags[live] = _rounded(
        target, rm, operator.pos, [(x,) for x in to_mpfr(source, a[live])]
    )
    return bits, flags


def from_int(f: Format, rm: int, a: Iterable[int]) -> tuple[Bits, Flags]:
    """From Python integers of at most 64 bits."""
    with gmpy2.context(precision=64):
        operands = [(gmpy2.mpfr(v),) for v in a]
    return _rounded(f, rm, operator.pos, operands)


def to_ints(
    f: Format, rm: int, a: Bits, kinds: Iterable[tuple[int, bool]]
) -> list[tuple[Bits, Flags]]:
    """To integers of several kinds (bits, signed), saturating; each as 64-bit numbers."""
    rint = {
        RNE: gmpy2.rint,
        RTZ: gmpy2.rint_trunc,
        RDN: gmpy2.rint_floor,
        RUP: gmpy2.rint_ceil,
        RMM: gmpy2.rint_round,
    }[rm]
    with gmpy2.context(precision=53):  # a NaN counts as too large
        rounded = [
            int(rint(x)) if gmpy2.is_finite(x) else -np.inf if x < 0 else np.inf
            for x in to_mpfr(f, a)
        ]
    with np.errstate(invalid="ignore"):
        inexact = np.where(to_float(f, a) == np.array(rounded, np.float64), 0, NX)
    out = []
    for width, signed in kinds:
        most = (1 << (width - signed)) - 1
        least = -most - 1 if signed else 0
        fixed = [most if r > most else least if r < least else r for r in rounded]
        valid = np.array([r == v for r, v in zip(rounded, fixed, strict=True)])
        bits = np.array([int(v) & (1 << 64) - 1 for v in fixed], np.uint64)
        out.append((bits, np.where(valid, inexact, NV).astype(np.uint8)))
    return out


def to_int(f: Format, rm: int, a: Bits, width: int, signed: bool) -> tuple[Bits, Flags]:
    """To one kind of integer."""
    return to_ints(f, rm, a, [(width, signed)])[0]


def select(name: str, f: Format, a: Bits, b: Bits) -> tuple[Bits, Flags]:
    """min and max: minimumNumber and maximumNumber of IEEE 754-2019."""
    x, y = to_float(f, a), to_float(f, b)
    na, nb = is_nan(f, a), is_nan(f, b)
    flags = np.where(is_snan(f, a) | is_snan(f, b), NV, 0).astype(np.uint8)
    negative = a >> np.uint64(f.width - 1) == 1
    with np.errstate(invalid="ignore"):
        a_first = (x < y) | ((x == y) & negative)  # -0 before +0
    out = np.where(a_first == (name == "min"), a, b)
    out = np.where(na, b, np.where(nb, a, out))
    return np.where(na & nb, np.uint64(f.nan), out), flags


def compare(name: str, f: Format, a: Bits, b: Bits) -> tuple[Bits, Flags]:
    """eq is quiet; lt and le signal for every NaN."""
    x, y = to_float(f, a), to_float(f, b)
    with np.errstate(invalid="ignore"):
        out = {"eq": x == y, "lt": x < y, "le": x <= y}[name]
    invalid = is_snan(f, a) | is_snan(f, b) if name == "eq" else is_nan(f, a) | is_nan(f, b)
    return out.astype(np.uint64), np.where(invalid, NV, 0).astype(np.uint8)


def classify(f: Format, a: Bits) -> Bits:
    """The ten-bit mask of fclass."""
    x = to_float(f, a)
    negative = a >> np.uint64(f.width - 1) == 1
    kind = np.select(
        [np.isinf(x), x == 0, np.abs(x) < 2.0**f.emin],
        [np.uint64(0), np.uint64(3), np.uint64(2)],
        np.uint64(1),
    )
    kind = np.where(negative, kind, 7 - kind)
    kind = np.where(is_nan(f, a), np.where(is_snan(f, a), 8, 9), kind).astype(np.uint64)
    return np.uint64(1) << kind


def inject_sign(name: str, f: Format, a: Bits, b: Bits) -> Bits:
    """sgnj, sgnjn, sgnjx."""
    s = np.uint64(f.sign)
    sign = {"sgnj": b, "sgnjn": ~b, "sgnjx": a ^ b}[name] & s
    return (a & ~s) | sign
