"""Exact IEEE 754 scalar arithmetic in Python integers and fractions, with flags.

Owns: what one floating-point operation of the RISC-V manual (chapters F, D, Zfh, bf16) must return,
in all five rounding modes.  Slow and plain: every operation computes the true value as a
``Fraction`` and rounds it once.  Shares no code with the C core.

Numbers are bit patterns (non-negative ``int``) of a format; operations return a :class:`Result`.
A result that is a NaN is the format's canonical NaN, except where said otherwise.
"""

from __future__ import annotations

import math
from enum import IntEnum, IntFlag
from fractions import Fraction
from typing import NamedTuple

from nicemu import dtypes
from nicemu.dtypes import Format
from nicemu.errors import ArgumentError

__all__ = [
    "BFLOAT16",
    "FLOAT16",
    "FLOAT32",
    "FLOAT64",
    "FORMATS",
    "Flag",
    "Result",
    "Rounding",
    "add",
    "classify",
    "convert",
    "div",
    "eq",
    "fma",
    "from_int",
    "le",
    "lt",
    "maximum_number",
    "minimum_number",
    "mul",
    "round_value",
    "sgnj",
    "sgnjn",
    "sgnjx",
    "sqrt",
    "sub",
    "to_int",
    "value_of",
]

FLOAT16 = dtypes.format_of("float16")
BFLOAT16 = dtypes.format_of("bfloat16")
FLOAT32 = dtypes.format_of("float32")
FLOAT64 = dtypes.format_of("float64")
#: what the cores compute in
FORMATS: tuple[Format, ...] = (*dtypes.GRADIENTS, FLOAT64)


class Rounding(IntEnum):
    """Rounding modes, numbered as in the rm field and in frm."""

    RNE = 0  # to nearest, ties to even
    RTZ = 1  # towards zero
    RDN = 2  # down
    RUP = 3  # up
    RMM = 4  # to nearest, ties away from zero


class Flag(IntFlag):
    """Exception flags, as in fflags."""

    NX = 1  # inexact
    UF = 2  # underflow
    OF = 4  # overflow
    DZ = 8  # division by zero
    NV = 16  # invalid


class Result(NamedTuple):
    """Bits of the result (for comparisons 0 or 1; for integers the number itself), and flags."""

    bits: int
    flags: Flag


NONE = Flag(0)


# ---- formats ------------------------------------------------------------------------------------


def _width(f: Format) -> int:
    return 1 + f.exponent_bits + f.fraction_bits


def _sign_bit(f: Format) -> int:
    return 1 << (_width(f) - 1)


def _infinity(f: Format) -> int:
    return ((1 << f.exponent_bits) - 1) << f.fraction_bits


def _bias(f: Format) -> int:
    return (1 << (f.exponent_bits - 1)) - 1


def _least_normal_exponent(f: Format) -> int:
    return 1 - _bias(f)


def _magnitude(f: Format, a: int) -> int:
    if not 0 <= a < 2 * _sign_bit(f):
        raise ArgumentError(f"{a:#x} is no {f.name} pattern: use {_width(f)} bits")
    return a & (_sign_bit(f) - 1)


def _negative(f: Format, a: int) -> bool:
    return a >= _sign_bit(f)


def _is_nan(f: Format, a: int) -> bool:
    return _magnitude(f, a) > _infinity(f)


def _is_signalling(f: Format, a: int) -> bool:
    return _is_nan(f, a) and not a >> (f.fraction_bits - 1) & 1


def _is_infinite(f: Format, a: int) -> bool:
    return _magnitude(f, a) == _infinity(f)


def _negated(f: Format, a: int) -> int:
    return a ^ _sign_bit(f)


def _with_sign(f: Format, negative: bool, magnitude: int) -> int:
    return _sign_bit(f) | magnitude if negative else magnitude


def value_of(f: Format, a: int) -> Fraction:
    """The number that finite bits stand for; both zeros give 0.

    Raises:
        ArgumentError: the bits are an infinity or a NaN, or too many.
    """
    m = _magnitude(f, a)
    if m >= _infinity(f):
        raise ArgumentError(f"{a:#x} is no finite {f.name}: its value cannot be a fraction")
    exponent, fraction = m >> f.fraction_bits, m & ((1 << f.fraction_bits) - 1)
    if exponent:
        fraction |= 1 << f.fraction_bits
    power = max(exponent, 1) - _bias(f) - f.fraction_bits
    value = fraction * Fraction(2) ** power
    return -value if _negative(f, a) else value


# ---- rounding: the only place -------------------------------------------------------------------


def _floor_log2(v: Fraction) -> int:
    """The e with 2**e <= v < 2**(e + 1), for v > 0."""
    e = v.numerator.bit_length() - v.denominator.bit_length()
    return e if Fraction(2) ** e <= v else e - 1


def _rounded_units(v: Fraction, negative: bool, mode: Rounding) -> tuple[int, bool]:
    """v >= 0 as a whole number, and whether it was one."""
    whole = v.numerator // v.denominator
    rest = v - whole
    half = Fraction(1, 2)
    up = {
        Rounding.RNE: rest > half or (rest == half and whole % 2 == 1),
        Rounding.RTZ: False,
        Rounding.RDN: negative and rest > 0,
        Rounding.RUP: not negative and rest > 0,
        Rounding.RMM: rest >= half,
    }[mode]
    return whole + up, rest == 0


def round_value(f: Format, v: Fraction, mode: Rounding = Rounding.RNE) -> Result:
    """A number rounded to a format: 0 becomes +0.

    Tininess is detected after rounding (F chapter); underflow needs an inexact result too.
    """
    if v == 0:
        return Result(0, NONE)
    negative, v = v < 0, abs(v)
    least = _least_normal_exponent(f)
    exponent = max(_floor_log2(v), least)
    units, exact = _rounded_units(v / Fraction(2) ** (exponent - f.fraction_bits), negative, mode)
    if units >> (f.fraction_bits + 1):
        units >>= 1
        exponent += 1
    if exponent > _bias(f):
        away = mode in (Rounding.RNE, Rounding.RMM) or mode == (
            Rounding.RDN if negative else Rounding.RUP
        )
        magnitude = _infinity(f) - (not away)
        return Result(_with_sign(f, negative, magnitude), Flag.OF | Flag.NX)
    hidden = units >> f.fraction_bits  # 0 when subnormal
    biased = exponent + _bias(f) if hidden else 0
    magnitude = biased << f.fraction_bits | units & ((1 << f.fraction_bits) - 1)
    if exact:
        return Result(_with_sign(f, negative, magnitude), NONE)
    # as if the exponent had no lower bound
    ulp = Fraction(2) ** (_floor_log2(v) - f.fraction_bits)
    free = _rounded_units(v / ulp, negative, mode)[0] * ulp
    flags = Flag.NX | (Flag.UF if free < Fraction(2) ** least else NONE)
    return Result(_with_sign(f, negative, magnitude), flags)


def _nan(f: Format, *operands: int) -> Result:
    """What an operation with a NaN operand returns."""
    signalling = any(_is_signalling(f, a) for a in operands)
    return Result(f.canonical_nan, Flag.NV if signalling else NONE)


def _invalid(f: Format) -> Result:
    return Result(f.canonical_nan, Flag.NV)


# ---- arithmetic ---------------------------------------------------------------------------------


def _exact_sum(
    f: Format, v: Fraction, negative_a: bool, negative_b: bool, mode: Rounding
) -> Result:
    """A sum of two addends with these signs; an exact 0 takes its sign from them, or the mode."""
    if v:
        return round_value(f, v, mode)
    negative = negative_a if negative_a == negative_b else mode == Rounding.RDN
    return Result(_with_sign(f, negative, 0), NONE)


def add(f: Format, a: int, b: int, mode: Rounding = Rounding.RNE) -> Result:
    """The sum a + b."""
    if _is_nan(f, a) or _is_nan(f, b):
        return _nan(f, a, b)
    if _is_infinite(f, a) or _is_infinite(f, b):
        if _is_infinite(f, a) and _is_infinite(f, b) and a != b:
            return _invalid(f)
        return Result(a if _is_infinite(f, a) else b, NONE)
    total = value_of(f, a) + value_of(f, b)
    return _exact_sum(f, total, _negative(f, a), _negative(f, b), mode)


def sub(f: Format, a: int, b: int, mode: Rounding = Rounding.RNE) -> Result:
    """The difference a - b."""
    return add(f, a, _negated(f, b), mode)


def _signed(f: Format, negative: bool, result: Result) -> Result:
    """Give a zero the sign that its operands demand."""
    zero = _magnitude(f, result.bits) == 0
    return Result(_with_sign(f, negative, 0), result.flags) if zero else result


def mul(f: Format, a: int, b: int, mode: Rounding = Rounding.RNE) -> Result:
    """The product a * b."""
    if _is_nan(f, a) or _is_nan(f, b):
        return _nan(f, a, b)
    negative = _negative(f, a) != _negative(f, b)
    if _is_infinite(f, a) or _is_infinite(f, b):
        if _magnitude(f, a) == 0 or _magnitude(f, b) == 0:
            return _invalid(f)
        return Result(_with_sign(f, negative, _infinity(f)), NONE)
    return _signed(f, negative, round_value(f, value_of(f, a) * value_of(f, b), mode))


def div(f: Format, a: int, b: int, mode: Rounding = Rounding.RNE) -> Result:
    """The quotient a / b."""
    if _is_nan(f, a) or _is_nan(f, b):
        return _nan(f, a, b)
    negative = _negative(f, a) != _negative(f, b)
    if _is_infinite(f, a):
        return (
            _invalid(f)
            if _is_infinite(f, b)
            else Result(_with_sign(f, negative, _infinity(f)), NONE)
        )
    if _is_infinite(f, b):
        return Result(_with_sign(f, negative, 0), NONE)
    if _magnitude(f, b) == 0:
        if _magnitude(f, a) == 0:
            return _invalid(f)
        return Result(_with_sign(f, negative, _infinity(f)), Flag.DZ)
    return _signed(f, negative, round_value(f, value_of(f, a) / value_of(f, b), mode))


def sqrt(f: Format, a: int, mode: Rounding = Rounding.RNE) -> Result:
    """Square root; of -0 it is -0."""
    if _is_nan(f, a):
        return _nan(f, a)
    if _magnitude(f, a) == 0:
        return Result(a, NONE)
    if _negative(f, a):
        return _invalid(f)
    if _is_infinite(f, a):
        return Result(a, NONE)
    v = value_of(f, a)
    # sqrt(v) = root / 2**k up to less than 2**-k, where the root has far more bits than the format
    k = f.fraction_bits + 8 - (_floor_log2(v) // 2)
    scaled = v * Fraction(4) ** k
    assert scaled.denominator == 1
    root = math.isqrt(scaled.numerator)
    if root * root == scaled.numerator:
        return round_value(f, Fraction(root) / Fraction(2) ** k, mode)
    # irrational: any number strictly between the neighbours rounds as the true root does
    return round_value(f, Fraction(2 * root + 1) / Fraction(2) ** (k + 1), mode)


def fma(f: Format, a: int, b: int, c: int, mode: Rounding = Rounding.RNE) -> Result:
    """The sum a * b + c, rounded once; inf * 0 is invalid even beside a quiet NaN (F chapter)."""
    infinite = _is_infinite(f, a) or _is_infinite(f, b)
    if infinite and (_magnitude(f, a) == 0 or _magnitude(f, b) == 0):
        return _invalid(f)
    if _is_nan(f, a) or _is_nan(f, b) or _is_nan(f, c):
        return _nan(f, a, b, c)
    negative = _negative(f, a) != _negative(f, b)
    if infinite:
        if _is_infinite(f, c) and _negative(f, c) != negative:
            return _invalid(f)
        return Result(_with_sign(f, negative, _infinity(f)), NONE)
    if _is_infinite(f, c):
        return Result(c, NONE)
    total = value_of(f, a) * value_of(f, b) + value_of(f, c)
    return _exact_sum(f, total, negative, _negative(f, c), mode)


# ---- comparison and selection -------------------------------------------------------------------


def _key(f: Format, a: int) -> int:
    """Orders numbers as their bits do, with -0 just below +0."""
    m = _magnitude(f, a)
    return -m - 1 if _negative(f, a) else m


def _select(f: Format, a: int, b: int, largest: bool) -> Result:
    flags = Flag.NV if _is_signalling(f, a) or _is_signalling(f, b) else NONE
    numbers = [x for x in (a, b) if not _is_nan(f, x)]
    if not numbers:
        return Result(f.canonical_nan, flags)
    best = max if largest else min
    return Result(best(numbers, key=lambda x: _key(f, x)), flags)


def minimum_number(f: Format, a: int, b: int) -> Result:
    """fmin: the smaller one, -0 below +0; a number wins against a NaN."""
    return _select(f, a, b, False)


def maximum_number(f: Format, a: int, b: int) -> Result:
    """fmax: the larger one, +0 above -0; a number wins against a NaN."""
    return _select(f, a, b, True)


def _compare_value(f: Format, a: int) -> Fraction | float:
    if _is_infinite(f, a):
        return -math.inf if _negative(f, a) else math.inf
    return value_of(f, a)


def eq(f: Format, a: int, b: int) -> Result:
    """Equality as feq has it: quiet, only a signalling NaN is invalid."""
    if _is_nan(f, a) or _is_nan(f, b):
        return Result(0, _nan(f, a, b).flags)
    return Result(int(_compare_value(f, a) == _compare_value(f, b)), NONE)


def lt(f: Format, a: int, b: int) -> Result:
    """Less-than as flt has it: any NaN is invalid."""
    if _is_nan(f, a) or _is_nan(f, b):
        return Result(0, Flag.NV)
    return Result(int(_compare_value(f, a) < _compare_value(f, b)), NONE)


def le(f: Format, a: int, b: int) -> Result:
    """Less-or-equal as fle has it: any NaN is invalid."""
    if _is_nan(f, a) or _is_nan(f, b):
        return Result(0, Flag.NV)
    return Result(int(_compare_value(f, a) <= _compare_value(f, b)), NONE)


def classify(f: Format, a: int) -> int:
    """The mask of fclass: bit 0 -inf, -normal, -subnormal, -0, +0, ... +inf, sNaN, bit 9 qNaN."""
    if _is_nan(f, a):
        return 1 << (8 if _is_signalling(f, a) else 9)
    m = _magnitude(f, a)
    if m == 0:
        kind = 3
    elif m >> f.fraction_bits == 0:
        kind = 2
    else:
        kind = 0 if _is_infinite(f, a) else 1
    return 1 << (kind if _negative(f, a) else 7 - kind)


def sgnj(f: Format, a: int, b: int) -> int:
    """The magnitude of a with the sign of b; NaN payloads stay."""
    return _with_sign(f, _negative(f, b), _magnitude(f, a))


def sgnjn(f: Format, a: int, b: int) -> int:
    """The magnitude of a with the opposite of b's sign."""
    return _with_sign(f, not _negative(f, b), _magnitude(f, a))


def sgnjx(f: Format, a: int, b: int) -> int:
    """The operand a with its sign changed if b is negative."""
    return _with_sign(f, _negative(f, a) != _negative(f, b), _magnitude(f, a))


# ---- conversion ---------------------------------------------------------------------------------


def convert(source: Format, target: Format, a: int, mode: Rounding = Rounding.RNE) -> Result:
    """A number of one format in another, rounded once."""
    if _is_nan(source, a):
        return Result(target.canonical_nan, _nan(source, a).flags)
    negative = _negative(source, a)
    if _is_infinite(source, a):
        return Result(_with_sign(target, negative, _infinity(target)), NONE)
    return _signed(target, negative, round_value(target, value_of(source, a), mode))


def to_int(f: Format, a: int, bits: int, signed: bool, mode: Rounding = Rounding.RTZ) -> Result:
    """An integer of `bits` bits; out of range (after rounding) it saturates, with NV and no NX.

    ``Result.bits`` is the number itself, negative ones included.  NaN counts as too large.
    """
    most = (1 << (bits - signed)) - 1
    least = -most - 1 if signed else 0
    if _is_nan(f, a):
        return Result(most, Flag.NV)
    if _is_infinite(f, a):
        return Result(least if _negative(f, a) else most, Flag.NV)
    negative = _negative(f, a)
    units, exact = _rounded_units(abs(value_of(f, a)), negative, mode)
    n = -units if negative else units
    if not least <= n <= most:
        return Result(min(max(n, least), most), Flag.NV)
    return Result(n, NONE if exact else Flag.NX)


def from_int(f: Format, n: int, mode: Rounding = Rounding.RNE) -> Result:
    """An integer as a number of f; 0 becomes +0."""
    return round_value(f, Fraction(n), mode)
