"""Floating point in integers: what LLVM calls where cores have no instruction, without F or D.

Owns: the arithmetic, on bits, and the names that LLVM knows it by.  It rounds to nearest, ties to
even, and a computed NaN is the canonical one, as the cores' own.  These are functions of Python as
ops may have them; the front end makes code of them.  A number is a sign, an exponent and a
significand, an integer of up to 62 bits, of which the last stands for all that is below it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from types import FunctionType
from typing import Any

from nicemu.compiler.irmath import functions
from nicemu.compiler.python_ir import compile_function
from nicemu.dtypes import Format, format_of, item_of

__all__ = ["SYMBOLS", "library"]

ROOM = 62  # bits of a significand
_WHOLE = item_of("int64")


# ---- integers ------------------------------------------------------------------------------------
def _length(m: Any) -> Any:
    """Digits of m, without a loop."""
    wide = 32 if m >> 32 else 0
    m >>= wide
    more = 16 if m >> 16 else 0
    m >>= more
    wide += more
    more = 8 if m >> 8 else 0
    m >>= more
    wide += more
    more = 4 if m >> 4 else 0
    m >>= more
    wide += more
    more = 2 if m >> 2 else 0
    m >>= more
    return wide + more + (2 if m == 3 else m)


def _down(m: Any, by: Any) -> Any:
    """m / 2^by; the last bit stands for what is lost."""
    if by <= 0:
        return m
    if by > ROOM:
        return 1 if m else 0
    return (m >> by) | (1 if m & ((1 << by) - 1) else 0)


# ---- formats -------------------------------------------------------------------------------------
def _operations(row: Format) -> dict[str, Callable[..., Any]]:
    """Of a format, on its bits as int64."""
    fraction, top = row.fraction_bits, 8 * row.size - 1
    bias = (1 << (row.exponent_bits - 1)) - 1
    hidden, infinity, none = 1 << fraction, row.infinity, row.canonical_nan
    magnitude = infinity | (hidden - 1)
    last = 1 - bias - fraction  # exponent of the last digit of a subnormal number
    split = (fraction + 2) // 2  # bits of a lower half of a significand
    digits = fraction + 4  # of quotients and roots, one before the point

    def negative(a: Any) -> Any:
        return (a >> top) & 1

    def with_sign(sign: Any, bits: Any) -> Any:
        return bits | (sign << top)

    def opposite(a: Any) -> Any:
        return with_sign(1 - negative(a), a & magnitude)

    def exponent(a: Any) -> Any:
        return max((a & infinity) >> fraction, 1) - 1 + last

    def significand(a: Any) -> Any:
        m = a & (hidden - 1)
        return m | hidden if a & infinity else m

    def is_nan(a: Any) -> Any:
        return (a & magnitude) > infinity

    def is_infinite(a: Any) -> Any:
        return (a & magnitude) == infinity

    def rounded(sign: Any, e: Any, m: Any) -> Any:
        """m 2^e, once."""
        if m == 0:
            return with_sign(sign, 0)
        up = ROOM - _length(m)
        m, e = m << up, e - up
        low = max(e + ROOM - 1 - fraction, last)  # exponent of the last digit kept
        if low > bias - fraction:
            return with_sign(sign, infinity)
        short = _down(m, low - e - 2)
        kept = (short >> 2) + ((short >> 1) & (short | (short >> 2)) & 1)
        return with_sign(sign, min(((low - last) << fraction) + kept, infinity))

    def summed(sa: Any, ea: Any, ma: Any, sb: Any, eb: Any, mb: Any) -> Any:
        if ma == 0 and mb == 0:
            return with_sign(sa & sb, 0)
        if ma == 0:
            return rounded(sb, eb, mb)
        if mb == 0:
            return rounded(sa, ea, ma)
        up = ROOM - 2 - _length(ma)
        ma, ea = ma << up, ea - up
        up = ROOM - 2 - _length(mb)
        mb, eb = mb << up, eb - up
        if ea < eb or (ea == eb and ma < mb):
            sa, ea, ma, sb, eb, mb = sb, eb, mb, sa, ea, ma
        mb = _down(mb, ea - eb)
        m = ma + mb if sa == sb else ma - mb
        return rounded(sa if m else 0, ea, m)

    def add(a: Any, b: Any) -> Any:
        if is_nan(a) or is_nan(b) or (is_infinite(a) and is_infinite(b) and a != b):
            return none
        if is_infinite(a) or is_infinite(b):
            return a if is_infinite(a) else b
        return summed(negative(a), exponent(a), significand(a),
                      negative(b), exponent(b), significand(b))  # fmt: skip

    def sub(a: Any, b: Any) -> Any:
        return add(a, opposite(b))

    def product(ma: Any, mb: Any) -> Any:
        """Divided by 2^lost."""
        mask = (1 << split) - 1
        ah, al, bh, bl = ma >> split, ma & mask, mb >> split, mb & mask
        middle = ah * bl + al * bh
        low = al * bl + ((middle & mask) << split)
        high = ah * bh + (middle >> split) + (low >> (2 * split))
        low &= (1 << (2 * split)) - 1
        return (high << (2 * split - lost)) | _down(low, lost)

    lost = max(2 * fraction + 2 - (ROOM - 1), 0)

    def mul(a: Any, b: Any) -> Any:
        sign = negative(a) ^ negative(b)
        if is_nan(a) or is_nan(b):
            return none
        if is_infinite(a) or is_infinite(b):
            zero = (a & magnitude) == 0 or (b & magnitude) == 0
            return none if zero else with_sign(sign, infinity)
        ma, mb, e = significand(a), significand(b), exponent(a) + exponent(b) + lost
        up = fraction + 1 - _length(ma)
        ma, e = ma << up, e - up
        up = fraction + 1 - _length(mb)
        return rounded(sign, e - up, product(ma, mb << up))

    def fma(a: Any, b: Any, c: Any) -> Any:
        """For formats whose products fit."""
        sign = negative(a) ^ negative(b)
        if is_nan(a) or is_nan(b) or is_nan(c):
            return none
        if is_infinite(a) or is_infinite(b):
            zero = (a & magnitude) == 0 or (b & magnitude) == 0
            other = is_infinite(c) and negative(c) != sign
            return none if zero or other else with_sign(sign, infinity)
        if is_infinite(c):
            return c
        return summed(sign, exponent(a) + exponent(b), significand(a) * significand(b),
                      negative(c), exponent(c), significand(c))  # fmt: skip

    def div(a: Any, b: Any) -> Any:
        sign = negative(a) ^ negative(b)
        if is_nan(a) or is_nan(b) or (is_infinite(a) and is_infinite(b)):
            return none
        ma, mb, ea, eb = significand(a), significand(b), exponent(a), exponent(b)
        if mb == 0 and ma == 0:
            return none
        if mb == 0 or is_infinite(a):
            return with_sign(sign, infinity)
        if ma == 0 or is_infinite(b):
            return with_sign(sign, 0)
        up = fraction + 1 - _length(ma)
        ma, ea = ma << up, ea - up
        up = fraction + 1 - _length(mb)
        mb, eb = mb << up, eb - up
        quotient = 0
        i = 0
        while i < digits:
            quotient <<= 1
            if ma >= mb:
                ma -= mb
                quotient |= 1
            ma <<= 1
            i += 1
        return rounded(sign, ea - eb - digits, (quotient << 1) | (1 if ma else 0))

    def sqrt(a: Any) -> Any:
        m, e = significand(a), exponent(a)
        if is_nan(a) or (negative(a) and m):
            return none
        if m == 0 or is_infinite(a):
            return a
        up = fraction + 1 - _length(m)
        m, e = m << up, e - up
        if e & 1:
            m, e = m << 1, e - 1
        pairs = (fraction + 3) // 2
        root = rest = 0
        i = 0
        while i < digits:
            shift = 2 * (pairs - 1 - i)
            rest = (rest << 2) | ((m >> shift) & 3 if shift >= 0 else 0)
            root <<= 1
            if rest >= 2 * root + 1:
                rest -= 2 * root + 1
                root |= 1
            i += 1
        return rounded(0, (e >> 1) - (digits - pairs) - 1, (root << 1) | (1 if rest else 0))

    def key(a: Any) -> Any:
        """In the order of numbers, -0 before 0."""
        return -1 - (a & magnitude) if negative(a) else a & magnitude

    def order(a: Any, b: Any) -> Any:
        if (a | b) & magnitude == 0:
            return 0
        return (key(a) > key(b)) - (key(a) < key(b))

    def unordered(a: Any, b: Any) -> Any:
        return 1 if is_nan(a) or is_nan(b) else 0

    def below(a: Any, b: Any) -> Any:
        """For questions whether it is 0 or less: of a NaN it is neither."""
        return 1 if unordered(a, b) else order(a, b)

    def above(a: Any, b: Any) -> Any:
        """For questions whether it is 0 or more."""
        return -1 if unordered(a, b) else order(a, b)

    def maximumnum(a: Any, b: Any) -> Any:
        if is_nan(a) or is_nan(b):
            return b if not is_nan(b) else (none if is_nan(a) else a)
        return a if key(a) > key(b) else b

    def minimumnum(a: Any, b: Any) -> Any:
        if is_nan(a) or is_nan(b):
            return b if not is_nan(b) else (none if is_nan(a) else a)
        return a if key(a) < key(b) else b

    def maximum(a: Any, b: Any) -> Any:
        return none if unordered(a, b) else maximumnum(a, b)

    def minimum(a: Any, b: Any) -> Any:
        return none if unordered(a, b) else minimumnum(a, b)

    def whole(a: Any, up: Any, down: Any) -> Any:
        """A whole number: with a rest the next one up, or down; with neither the nearest."""
        cut = -exponent(a)
        if is_nan(a):
            return none
        if cut <= 0:
            return a
        short = _down(significand(a) << 2, cut)
        kept, rest = short >> 2, short & 3
        if up or down:
            kept += 1 if rest and (down if negative(a) else up) else 0
        else:
            kept += (short >> 1) & (short | kept) & 1
        return rounded(negative(a), 0, kept)

    def floor(a: Any) -> Any:
        return whole(a, 0, 1)

    def ceil(a: Any) -> Any:
        return whole(a, 1, 0)

    def roundeven(a: Any) -> Any:
        return whole(a, 0, 0)

    def trunc(a: Any) -> Any:
        return floor(a) if not negative(a) else ceil(a)

    def to_whole(a: Any) -> Any:
        """Towards 0; of what is out of range nobody asks."""
        e, m = exponent(a), significand(a)
        m = m << min(e, 63) if e >= 0 else m >> min(-e, 63)
        return -m if negative(a) else m

    def of_unsigned(x: Any) -> Any:
        if x >= 0 and x < 1 << (ROOM - 1):
            return rounded(0, 0, x)
        return rounded(0, 2, ((x >> 2) & ((1 << ROOM) - 1)) | (1 if x & 3 else 0))

    def of_signed(x: Any) -> Any:
        return with_sign(1, of_unsigned(-x)) if x < 0 else of_unsigned(x)

    return {
        name: function for name, function in locals().items() if isinstance(function, FunctionType)
    }


def _conversion(src: dict[str, Any], row: Format, dst: dict[str, Any]) -> Callable[[Any], Any]:
    """From one format to another, of that row."""
    is_nan, is_infinite = src["is_nan"], src["is_infinite"]
    negative, exponent, significand = src["negative"], src["exponent"], src["significand"]
    rounded, with_sign = dst["rounded"], dst["with_sign"]
    infinity, none = row.infinity, row.canonical_nan

    def convert(a: Any) -> Any:
        if is_nan(a):
            return none
        if is_infinite(a):
            return with_sign(negative(a), infinity)
        return rounded(negative(a), exponent(a), significand(a))

    return convert


# ---- what LLVM calls -----------------------------------------------------------------------------
@dataclass(frozen=True)
class _Symbol:
    """A function of LLVM's.

    Attributes:
        operation: a key of :func:`_operations`.
        row: the format that it computes in.
        takes, gives: LLVM types; those of integers besides "i64" may be "u32", without a sign.
    """

    operation: str
    row: Format
    takes: tuple[str, ...]
    gives: str


def _symbols() -> dict[str, _Symbol]:
    out = {}
    for row, suffix, end in ((format_of("float32"), "sf", "f"), (format_of("float64"), "df", "")):
        real = row.llvm

        def add(name: str, operation: str, arity: int = 2, *, row: Format = row) -> None:
            out[name] = _Symbol(operation, row, (row.llvm,) * arity, row.llvm)

        for verb in ("add", "sub", "mul", "div"):
            add(f"__{verb}{suffix}3", verb)
        for verb in ("sqrt", "floor", "ceil", "trunc", "roundeven"):
            add(f"{verb}{end}", verb, 1)
        for verb in ("maximum", "minimum"):
            add(f"f{verb}_num{end}", f"{verb}num")
            add(f"f{verb}{end}", verb)
        for verbs, operation in (
            ("eq ne lt le", "below"),
            ("gt ge", "above"),
            ("unord", "unordered"),
        ):
            for verb in verbs.split():
                out[f"__{verb}{suffix}2"] = _Symbol(operation, row, (real, real), "i32")
        for kind, size in (("i32", "si"), ("i64", "di")):
            for signed in (True, False):
                un = "" if signed else "un"
                given = kind if signed or kind == "i64" else "u32"
                of = "of_signed" if signed or kind == "i32" else "of_unsigned"
                out[f"__float{un}{size}{suffix}"] = _Symbol(of, row, (given,), real)
                un = "" if signed else "uns"
                out[f"__fix{un}{suffix}{size}"] = _Symbol("to_whole", row, (real,), kind)
        if row.size == 4:
            add("fmaf", "fma", 3)
    single, double = format_of("float32"), format_of("float64")
    out["__extendsfdf2"] = _Symbol("from_float32", double, ("float",), "double")
    out["__truncdfsf2"] = _Symbol("from_float64", single, ("double",), "float")
    return out


SYMBOLS: dict[str, _Symbol] = _symbols()


@cache
def _operation(name: str, row: Format) -> FunctionType:
    own = _operations(row)
    if name.startswith("from_"):
        other = _operations(format_of(name.removeprefix("from_")))
        function = _conversion(other, row, own)
    else:
        function = own[name]
    assert isinstance(function, FunctionType)
    return function


def _to_bits(kind: str, value: str, at: int) -> list[str]:
    """Lines that end in %b{at}: an argument as int64."""
    if kind == "double":
        return [f"%b{at} = bitcast double {value} to i64"]
    if kind == "float":
        return [f"%c{at} = bitcast float {value} to i32", f"%b{at} = zext i32 %c{at} to i64"]
    if kind == "i64":
        return [f"%b{at} = add i64 {value}, 0"]
    return [f"%b{at} = {'sext' if kind == 'i32' else 'zext'} i32 {value} to i64"]


_FROM_BITS = {
    "double": "%r = bitcast i64 %bits to double",
    "float": "%low = trunc i64 %bits to i32\n  %r = bitcast i32 %low to float",
    "i32": "%r = trunc i64 %bits to i32",
    "i64": "%r = add i64 %bits, 0",
}


@cache
def _defined(symbol: str) -> tuple[str, ...]:
    """Modules that define a symbol, but for functions of irmath's."""
    row = SYMBOLS[symbol]
    function = _operation(row.operation, row.row)
    made = compile_function(function, [_WHOLE] * len(row.takes), _WHOLE, False, symbol)
    kinds = ["i32" if kind == "u32" else kind for kind in row.takes]
    head = ", ".join(f"{kind} %a{i}" for i, kind in enumerate(kinds))
    bits = [line for i, kind in enumerate(row.takes) for line in _to_bits(kind, f"%a{i}", i)]
    given = "".join(f", i64 %b{i}" for i in range(len(kinds)))
    lines = "\n  ".join(bits)
    signed = "signext " if row.gives == "i32" else ""
    text = f"""
declare i32 @{made.symbol}(ptr{", i64" * len(kinds)})
define {signed}{row.gives} @{symbol}({head}) nounwind "no-builtins" "no-jump-tables"="true" {{
  %out = alloca i64
  {lines}
  %status = call i32 @{made.symbol}(ptr %out{given})
  %bits = load i64, ptr %out
  {_FROM_BITS[row.gives]}
  ret {row.gives} %r
}}
"""
    return (*made.modules, text)


def library(symbols: Iterable[str]) -> list[str]:
    """LLVM modules that define some of SYMBOLS, without a target; none of none."""
    modules = [module for symbol in symbols for module in _defined(symbol)]
    return [*modules, functions("\n".join(modules))] if modules else []
