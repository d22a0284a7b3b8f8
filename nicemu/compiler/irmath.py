"""Functions as LLVM IR that front ends and conversions call by name, the same on every target.

Owns: exp, exp2, log, log2 and tanh of float32 (errors below 1.3 ulp, no branches, no tables), what
LLVM leaves to the target (division, shifts, NaN's sign), and floats that are held as
integers in and out of float32.

Names are ``nicemu.name.type``.  exp: x = n ln 2 + r, e^r = 1 + r + r^2 p(r), scaled by 2^n in two
steps, of which the second rounds.  log: x = 2^e (1 + f), f in [-1/3, 1/3], log(1 + f) = f - f^2/2 +
f^3 q(f).  exp2: x = n + r, 2^r = 1 + r p(r), scaled as exp.  log2: (1 / ln 2) log(1 + f), of which
f / ln 2 and its sum with e are kept in two numbers; of a power of two it is exact.  tanh: an odd
polynomial up to 0.8, then 1 - 2/(e^2x + 1).  The coefficients are minimax fits (Lawson's weights)
of this project.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Sequence

from nicemu.dtypes import Format, format_of

__all__ = ["defined", "functions"]

_CALLED = re.compile(r'@"?(nicemu\.(\w+)\.([\w.]+))"?(?=\()')
_BITS = {"f32": ("float", 32), "f64": ("double", 64)}


def _constant(x: float) -> str:
    """A float32 as LLVM writes it: as the bits of the double."""
    (single,) = struct.unpack("<f", struct.pack("<f", x))
    return f"0x{struct.unpack('<Q', struct.pack('<d', single))[0]:016X}"


def _horner(x: str, coefficients: Sequence[float], name: str) -> str:
    """Lines that end in %name: coefficients[0] + coefficients[1] x + ..."""
    lines, value = [], _constant(coefficients[-1])
    for i, c in enumerate(reversed(coefficients[:-1])):
        out = f"%{name}" if i == len(coefficients) - 2 else f"%{name}.{i}"
        lines.append(
            f"{out} = call float @llvm.fma.f32(float {value}, float {x}, float {_constant(c)})"
        )
        value = out
    return "\n  ".join(lines)


_EXP = (0.5, float.fromhex("0x1.555486p-3"), float.fromhex("0x1.555454p-5"),
        float.fromhex("0x1.12414ap-7"), float.fromhex("0x1.6dbc5ap-10"))  # fmt: skip
_LOG = tuple(map(float.fromhex, (
    "0x1.55555cp-2", "-0x1.fffeb2p-3", "0x1.99949ep-3", "-0x1.55a84ap-3", "0x1.253f14p-3",
    "-0x1.f1f7c0p-4", "0x1.b2798cp-4", "-0x1.0a58d6p-3", "0x1.00b6e2p-3",
)))  # fmt: skip
_EXP2 = tuple(map(float.fromhex, (
    "0x1.62e430p-1", "0x1.ebfbdcp-3", "0x1.c6af7ap-5", "0x1.3b2dd2p-7", "0x1.5f0948p-10",
    "0x1.417a9ap-13",
)))  # fmt: skip
_TANH = tuple(map(float.fromhex, (
    "-0x1.555554p-2", "0x1.111074p-3", "-0x1.b9fa30p-5", "0x1.649990p-6", "-0x1.163784p-7",
    "0x1.72d74ep-9", "-0x1.25e224p-11",
)))  # fmt: skip
_LN2_HIGH, _LN2_LOW = 0.693145751953125, 1.42860682030941723212e-6  # the first has 15 bits
_LOG2E = 1 / math.log(2)
_LOG2E_HIGH = float.fromhex("0x1.715476p0")  # to 24 bits
_MAGIC = 1.5 * 2.0**23  # adding it leaves a whole number in the last bits

# {y} 2^{i}, in two steps: each factor is a normal number
_SCALED = """
  %i1 = ashr i32 %i, 1
  %i2 = sub i32 %i, %i1
  %b1 = add i32 %i1, 127
  %b2 = add i32 %i2, 127
  %s1 = shl i32 %b1, 23
  %s2 = shl i32 %b2, 23
  %f1 = bitcast i32 %s1 to float
  %f2 = bitcast i32 %s2 to float
  %y1 = fmul float %y, %f1
  %y2 = fmul float %y1, %f2
  ret float %y2"""
# x = 2^(e + k) (1 + f), of positive numbers: %whole is e, %k -23 where x was scaled up
_SPLIT = f"""
  %small = fcmp olt float %x, {_constant(2.0**-126)}
  %scaled = fmul float %x, {_constant(2.0**23)}
  %s = select i1 %small, float %scaled, float %x
  %k = select i1 %small, float -23.0, float 0.0
  %u = bitcast float %s to i32
  %v = add i32 %u, {0x3F800000 - 0x3F2AAAAB}
  %field = ashr i32 %v, 23
  %e = sub i32 %field, 127
  %fraction = and i32 %v, {0x7FFFFF}
  %mantissa = add i32 %fraction, {0x3F2AAAAB}
  %m = bitcast i32 %mantissa to float
  %f = fsub float %m, 1.0
  %whole = sitofp i32 %e to float
  %n = fadd float %whole, %k"""
# of what is no positive number: %y is the logarithm of others
_SPECIAL = """
  %infinite = fcmp oeq float %x, 0x7FF0000000000000
  %y0 = select i1 %infinite, float %x, float %y
  %zero = fcmp oeq float %x, 0.0
  %y1 = select i1 %zero, float 0xFFF0000000000000, float %y0
  %negative = fcmp olt float %x, 0.0
  %nan = fcmp uno float %x, %x
  %none = or i1 %negative, %nan
  %y2 = select i1 %none, float 0x7FF8000000000000, float %y1
  ret float %y2"""


def _clamped(high: float, low: float) -> str:
    """%c: %x, at most and at least that; outside, results are infinite or 0 anyway."""
    return f"""%high = fcmp ogt float %x, {_constant(high)}
  %low = fcmp olt float %x, {_constant(low)}
  %c.0 = select i1 %high, float {_constant(high)}, float %x
  %c = select i1 %low, float {_constant(low)}, float %c.0"""


_SINGLE = {
    "exp": f"""
define float @nicemu.exp.f32(float %x) alwaysinline {{
  {_clamped(89.0, -104.0)}
  %z = call float @llvm.fma.f32(float %c, float {_constant(1.4426950408889634)},
                                float {_constant(_MAGIC)})
  %n = fsub float %z, {_constant(_MAGIC)}
  %bits = bitcast float %z to i32
  %i = sub i32 %bits, {0x4B400000}
  %r.0 = call float @llvm.fma.f32(float %n, float {_constant(-_LN2_HIGH)}, float %c)
  %r = call float @llvm.fma.f32(float %n, float {_constant(-_LN2_LOW)}, float %r.0)
  {_horner("%r", _EXP, "p")}
  %rr = fmul float %r, %r
  %e = call float @llvm.fma.f32(float %rr, float %p, float %r)
  %y = fadd float %e, 1.0{_SCALED}
}}
""",
    "exp2": f"""
define float @nicemu.exp2.f32(float %x) alwaysinline {{
  {_clamped(129.0, -152.0)}
  %z = fadd float %c, {_constant(_MAGIC)}
  %n = fsub float %z, {_constant(_MAGIC)}
  %bits = bitcast float %z to i32
  %i = sub i32 %bits, {0x4B400000}
  %r = fsub float %c, %n
  {_horner("%r", _EXP2, "p")}
  %y = call float @llvm.fma.f32(float %r, float %p, float 1.0){_SCALED}
}}
""",
    "log": f"""
define float @nicemu.log.f32(float %x) alwaysinline {{{_SPLIT}
  {_horner("%f", _LOG, "q")}
  %ff = fmul float %f, %f
  %fff = fmul float %ff, %f
  %low = fmul float %n, {_constant(_LN2_LOW)}
  %t0 = call float @llvm.fma.f32(float %fff, float %q, float %low)
  %t1 = call float @llvm.fma.f32(float %ff, float -0.5, float %t0)
  %t2 = fadd float %t1, %f
  %y = call float @llvm.fma.f32(float %n, float {_constant(_LN2_HIGH)}, float %t2){_SPECIAL}
}}
""",
    "log2": f"""
define float @nicemu.log2.f32(float %x) alwaysinline {{{_SPLIT}
  {_horner("%f", tuple(c * _LOG2E for c in (-0.5, *_LOG)), "q")}
  %ff = fmul float %f, %f
  %t = fmul float %f, {_constant(_LOG2E_HIGH)}
  %minus = fneg float %t
  %lost = call float @llvm.fma.f32(float %f, float {_constant(_LOG2E_HIGH)}, float %minus)
  %sum = fadd float %n, %t
  %back = fsub float %sum, %n
  %lost1 = fsub float %t, %back
  %low0 = fadd float %lost, %lost1
  %low1 = call float @llvm.fma.f32(float %f, float {_constant(_LOG2E - _LOG2E_HIGH)}, float %low0)
  %low2 = call float @llvm.fma.f32(float %ff, float %q, float %low1)
  %y = fadd float %sum, %low2{_SPECIAL}
}}
""",
    "tanh": f"""
define float @nicemu.tanh.f32(float %x) alwaysinline {{
  %a = call float @llvm.fabs.f32(float %x)
  %a2 = fadd float %a, %a
  %e = call float @nicemu.exp.f32(float %a2)
  %e1 = fadd float %e, 1.0
  %d = fdiv float 2.0, %e1
  %big = fsub float 1.0, %d
  %signed = call float @llvm.copysign.f32(float %big, float %x)
  %z = fmul float %x, %x
  {_horner("%z", _TANH, "p")}
  %xz = fmul float %x, %z
  %near = call float @llvm.fma.f32(float %xz, float %p, float %x)
  %small = fcmp olt float %a, {_constant(0.8)}
  %y = select i1 %small, float %near, float %signed
  ret float %y
}}
""",
}
# {F}: the float type, {t}: its suffix, {I}: the integer of its bits, {nan}: the canonical NaN's
_REAL = {
    # as Python's: the first, unless the second is greater
    "max": ("{F}", "{F} %a, {F} %b", """
  %c = fcmp ogt {F} %b, %a
  %r = select i1 %c, {F} %b, {F} %a"""),
    "min": ("{F}", "{F} %a, {F} %b", """
  %c = fcmp olt {F} %b, %a
  %r = select i1 %c, {F} %b, {F} %a"""),
    # of a NaN the sign is +: which one a computed NaN has differs from target to target
    "copysign": ("{F}", "{F} %a, {F} %b", """
  %nan = fcmp uno {F} %b, %b
  %s = select i1 %nan, {F} 0.0, {F} %b
  %r = call {F} @llvm.copysign.{t}({F} %a, {F} %s)"""),
    "sign": ("{F}", "{F} %a", """
  %one = call {F} @llvm.copysign.{t}({F} 1.0, {F} %a)
  %some = fcmp one {F} %a, 0.0
  %zero = fadd {F} %a, 0.0
  %r = select i1 %some, {F} %one, {F} %zero"""),
    # of a NaN those of the canonical one: a computed NaN's differ from target to target
    "bits": ("{I}", "{F} %a", """
  %bits = bitcast {F} %a to {I}
  %nan = fcmp uno {F} %a, %a
  %r = select i1 %nan, {I} {nan}, {I} %bits"""),
    "isnan": ("i1", "{F} %a", "%r = fcmp uno {F} %a, %a"),
    "isinf": ("i1", "{F} %a", """
  %m = call {F} @llvm.fabs.{t}({F} %a)
  %r = fcmp oeq {F} %m, 0x7FF0000000000000"""),
    "isfinite": ("i1", "{F} %a", """
  %m = call {F} @llvm.fabs.{t}({F} %a)
  %r = fcmp olt {F} %m, 0x7FF0000000000000"""),
    "signbit": ("i1", "{F} %a", """
  %bits = bitcast {F} %a to {I}
  %minus = icmp slt {I} %bits, 0
  %number = fcmp ord {F} %a, %a
  %r = and i1 %minus, %number"""),
}  # fmt: skip
# {I}: the integer type, {most}: its width - 1
_WHOLE = {
    "same": ("{I} %a", "%r = add {I} %a, 0"),
    "sabs": ("{I} %a", "%r = call {I} @llvm.abs.{I}({I} %a, i1 false)"),
    "uabs": ("{I} %a", "%r = add {I} %a, 0"),
    "ssign": ("{I} %a", """
  %s = call {I} @llvm.smin.{I}({I} %a, {I} 1)
  %r = call {I} @llvm.smax.{I}({I} %s, {I} -1)"""),
    "usign": ("{I} %a", "%r = call {I} @llvm.umin.{I}({I} %a, {I} 1)"),
    # a / 0 = 0, a / -1 = -a modulo 2^width
    "sdiv": ("{I} %a, {I} %b", """
  %zero = icmp eq {I} %b, 0
  %minus = icmp eq {I} %b, -1
  %odd = or i1 %zero, %minus
  %d = select i1 %odd, {I} 1, {I} %b
  %q = sdiv {I} %a, %d
  %n = sub {I} 0, %a
  %q1 = select i1 %minus, {I} %n, {I} %q
  %r = select i1 %zero, {I} 0, {I} %q1"""),
    "srem": ("{I} %a, {I} %b", """
  %zero = icmp eq {I} %b, 0
  %minus = icmp eq {I} %b, -1
  %odd = or i1 %zero, %minus
  %d = select i1 %odd, {I} 1, {I} %b
  %r = srem {I} %a, %d"""),
    "udiv": ("{I} %a, {I} %b", """
  %zero = icmp eq {I} %b, 0
  %d = select i1 %zero, {I} 1, {I} %b
  %q = udiv {I} %a, %d
  %r = select i1 %zero, {I} 0, {I} %q"""),
    "urem": ("{I} %a, {I} %b", """
  %zero = icmp eq {I} %b, 0
  %d = select i1 %zero, {I} 1, {I} %b
  %r = urem {I} %a, %d"""),
    **{verb: ("{I} %a, {I} %b", f"""
  %n = and {{I}} %b, {{most}}
  %r = {verb} {{I}} %a, %n""") for verb in ("shl", "lshr", "ashr")},
}  # fmt: skip

# the value rounded to odd: what is rounded to fewer bits afterwards is rounded once
_ODD = """
define float @nicemu.odd.f64.f32(double %x) alwaysinline {
  %y = fptrunc double %x to float
  %back = fpext float %y to double
  %exact = fcmp ueq double %back, %x
  %a = call double @llvm.fabs.f64(double %x)
  %b = call double @llvm.fabs.f64(double %back)
  %above = fcmp ogt double %b, %a
  %bits = bitcast float %y to i32
  %step = sext i1 %above to i32
  %down = add i32 %bits, %step
  %odd = or i32 %down, 1
  %chosen = select i1 %exact, i32 %bits, i32 %odd
  %r = bitcast i32 %chosen to float
  ret float %r
}
"""


def _widen(row: Format) -> str:
    """To float32: the fields at their place, the exponent put right by a product."""
    i, sign = f"i{8 * row.size}", 1 << (8 * row.size - 1)
    scale = 2.0 ** (127 - ((1 << (row.exponent_bits - 1)) - 1))
    special = (
        ""
        if row.infinity & ((1 << row.fraction_bits) - 1) or row.exponent_bits == 8
        else f"""
  %infinite = icmp eq i32 %m, {row.infinity}
  %v1 = select i1 %infinite, i32 {0x7F800000}, i32 %v0"""
    )
    last = "%v1" if special else "%v0"
    return f"""
define float @nicemu.widen.{row.alias}({i} %x) alwaysinline {{
  %w = zext {i} %x to i32
  %m = and i32 %w, {sign - 1}
  %shifted = shl i32 %m, {23 - row.fraction_bits}
  %small = bitcast i32 %shifted to float
  %value = fmul float %small, {_constant(scale)}
  %v0 = bitcast float %value to i32{special}
  %nan = icmp ugt i32 %m, {row.infinity}
  %v2 = select i1 %nan, i32 {0x7FC00000}, i32 {last}
  %s = and i32 %w, {sign}
  %sign = shl i32 %s, {32 - 8 * row.size}
  %sign1 = select i1 %nan, i32 0, i32 %sign
  %bits = or i32 %v2, %sign1
  %r = bitcast i32 %bits to float
  ret float %r
}}
"""


def _narrow(row: Format) -> str:
    """From float32, to nearest, ties to even; too large: infinity, or where there is none NaN.

    Normal results: round on the bits.  Subnormal ones: adding a power of two that has the smallest
    subnormal as its last place rounds, and leaves the bits at the end.
    """
    i, width = f"i{8 * row.size}", 8 * row.size
    bias = (1 << (row.exponent_bits - 1)) - 1
    cut = 23 - row.fraction_bits
    smallest = (127 - bias + 1) << 23  # bits of the smallest normal number
    unit = 2.0 ** (1 - bias - row.fraction_bits + 23)
    beyond = row.infinity + (1 if row.infinity & ((1 << row.fraction_bits) - 1) else 0)
    return f"""
define {i} @nicemu.narrow.{row.alias}(float %x) alwaysinline {{
  %bits = bitcast float %x to i32
  %m = and i32 %bits, {0x7FFFFFFF}
  %last = lshr i32 %m, {cut}
  %tie = and i32 %last, 1
  %half = add i32 %tie, {(1 << (cut - 1)) - 1}
  %up = add i32 %m, %half
  %kept = lshr i32 %up, {cut}
  %normal = sub i32 %kept, {(127 - bias) << row.fraction_bits}
  %a = bitcast i32 %m to float
  %moved = fadd float %a, {_constant(unit)}
  %movedbits = bitcast float %moved to i32
  %subnormal = sub i32 %movedbits, {struct.unpack("<I", struct.pack("<f", unit))[0]}
  %issub = icmp ult i32 %m, {smallest}
  %v0 = select i1 %issub, i32 %subnormal, i32 %normal
  %over = icmp ugt i32 %v0, {beyond - 1}
  %v1 = select i1 %over, i32 {beyond}, i32 %v0
  %s = lshr i32 %bits, {32 - width}
  %sign = and i32 %s, {1 << (width - 1)}
  %v2 = or i32 %v1, %sign
  %nan = icmp ugt i32 %m, {0x7F800000}
  %toobig = icmp ugt i32 %v1, {row.infinity}
  %none = or i1 %nan, %toobig
  %v3 = select i1 %none, i32 {row.canonical_nan}, i32 %v2
  %r = trunc i32 %v3 to {i}
  ret {i} %r
}}
"""


def _definition(name: str, ty: str) -> str:
    """Of nicemu.name.ty; "" where there is none, which the caller's check finds."""
    if ty == "f32" and name in _SINGLE:
        return _SINGLE[name]
    if ty in _BITS and name in _REAL:
        result, arguments, body = _REAL[name]
        real, width = _BITS[ty]
        text = f"define {result} @nicemu.{name}.{ty}({arguments}) alwaysinline {{{{\n"
        text += f"  {body.strip()}\n  ret {result} %r\n}}}}\n"
        return text.format(F=real, t=ty, I=f"i{width}", nan=format_of(ty).canonical_nan)
    if name in _WHOLE and ty.startswith("i"):
        arguments, body = _WHOLE[name]
        text = f"define {{I}} @nicemu.{name}.{ty}({arguments}) alwaysinline {{{{\n"
        text += f"  {body.strip()}\n  ret {{I}} %r\n}}}}\n"
        return text.format(I=ty, most=int(ty[1:]) - 1)
    if (name, ty) == ("odd", "f64.f32"):
        return _ODD
    if name in ("widen", "narrow"):
        return (_widen if name == "widen" else _narrow)(format_of(ty))
    return ""


def functions(text: str) -> str:
    """Definitions of all nicemu.* functions that an IR text calls, and of those that these call."""
    done: dict[str, str] = {}
    left = set(_CALLED.findall(text))
    while left:
        name, verb, ty = left.pop()
        if name not in done:
            done[name] = _definition(verb, ty)
            left |= set(_CALLED.findall(done[name]))
    return "".join(done.values())


def defined(text: str) -> str:
    """A front end's IR without a target, and with a defined result where LLVM leaves it open.

    Floats out of an integer's range become its nearest end and NaN 0, amounts of shifts count
    modulo the width, division by zero gives 0.
    """
    declared: set[str] = set()

    def saturated(match: re.Match[str]) -> str:
        sign, src, value, dst = match.groups()
        name = f"llvm.fpto{sign}i.sat.{dst}.{'f32' if src == 'float' else 'f64'}"
        declared.add(f"declare {dst} @{name}({src})")
        return f"call {dst} @{name}({src} {value})"

    def called(match: re.Match[str]) -> str:
        verb, ty, a, b = match.groups()
        declared.add(f"declare {ty} @nicemu.{verb}.{ty}({ty}, {ty})")
        return f"call {ty} @nicemu.{verb}.{ty}({ty} {a}, {ty} {b})"

    text = re.sub(r"^target .*$", "", text, flags=re.M)
    text = re.sub(r"fpto([su])i (float|double) (\S+) to (i\d+)", saturated, text)
    operation = r"(?<== )(shl|[la]shr|[su]div|[su]rem)(?: nuw| nsw| exact)* (i\d+) "
    text = re.sub(operation + r"(\S+), ([^\s,]+)", called, text)  # a line's number may follow
    return "\n".join([text, *sorted(declared)])
