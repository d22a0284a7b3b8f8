"""From an op's scalar functions to a kernel image: LLVM IR -> RISC-V code through llvmlite.

Owns: the Op row, the kernel template, the optimiser's settings, the check of the emitted object.
The only module that imports llvmlite, and only when an image is really built.  The ABI is
image's; which ops there are is builtin's.
"""

from __future__ import annotations

import hashlib
import io
import threading
from dataclasses import dataclass
from importlib import metadata
from typing import Any

from nicemu.dtypes import Format, format_of
from nicemu.errors import ImageError
from nicemu.image import (
    ABI_VERSION,
    CONTEXT_FIELDS,
    ENTRIES,
    FAN_INS,
    KernelImage,
    cached,
    preset_formats,
)

__all__ = ["Op", "compile_op", "kernel_ir"]

TRIPLE = "riscv64-unknown-elf"
FEATURES = "+m,+a,+f,+d,+c,+v,+zfh,+zvfh,+zfbfmin,+zvfbfmin,+zvfbfwma,+zba,+zbb,+zbs,+zicond"
TARGET = {
    "cpu": "generic-rv64",
    "features": FEATURES,
    "opt": 3,
    "reloc": "static",
    "codemodel": "medium",
}
PIPELINE = {"loop_vectorization": True, "slp_vectorization": False, "loop_unrolling": False}


@dataclass(frozen=True)
class Op:
    """A reduce op: scalar functions as LLVM IR that computes ``%r``.

    Attributes:
        name: as users write it; 1..32 of a-z 0-9 _ -.
        merge: ``%r`` from accumulators ``%a``, ``%b`` of type ``{T}`` (``{t}`` in intrinsic names);
            applied in child order.
        lift: ``%r`` from ``%x``, the element converted to ``{T}``; None = ``%x`` itself.
        finish: float ``%r`` from ``%a``, the accumulator as float, and ``%n``, the contributors
            as float; None = ``%a`` itself.  ``%r`` is converted to the result format.  It may call
            ``@quotient``, a division whose converted result is rounded once.
        adds: True when merge is ``a + b``: bfloat16 payloads are then added in float by the
            widening multiply-add with 1: one instruction, the same bits.
    """

    name: str
    merge: str
    lift: str | None = None
    finish: str | None = None
    adds: bool = False


_FLOAT = format_of("float32")


# ---- the op as functions -------------------------------------------------------------------------
# a/n, rounded to odd when the result is narrower than float: a 24-bit significand whose last bit
# keeps "inexact" rounds to 11 or 8 bits as the exact quotient would.  The remainder fma(-q, n, a)
# is exact: a multiple of ulp(q) of at most n/2 of them, n <= 2^24, also where q is subnormal or 0.
# It is NaN, and q kept, where a is not finite.
_QUOTIENT = """
define internal float @quotient(float %a, float %n) alwaysinline {
  %q = fdiv float %a, %n
  ret float %q
}
"""
_QUOTIENT_TO_ODD = """
define internal float @quotient(float %a, float %n) alwaysinline {
  %q = fdiv float %a, %n
  %m = fneg float %q
  %r = call float @llvm.fma.f32(float %m, float %n, float %a)
  %inexact = fcmp one float %r, 0.0
  %qi = bitcast float %q to i32
  %ri = bitcast float %r to i32
  %x = xor i32 %qi, %ri
  %below = ashr i32 %x, 31 ; -1: the exact quotient is nearer to 0 than q
  %down = add i32 %qi, %below
  %odd = or i32 %down, 1
  %i = select i1 %inexact, i32 %odd, i32 %qi
  %f = bitcast i32 %i to float
  ret float %f
}
declare float @llvm.fma.f32(float, float, float)
"""


def _functions(op: Op, accumulator: Format, result: Format) -> str:
    t, suffix = accumulator.llvm, accumulator.alias

    def function(name: str, type_: str, arguments: str, text: str | None, default: str) -> str:
        line = text.replace("{T}", t).replace("{t}", suffix) if text else ""
        return f"""
define internal {type_} @{name}({arguments}) alwaysinline {{
  {line}
  ret {type_} {"%r" if text else default}
}}
"""

    return (
        (_QUOTIENT if result == _FLOAT else _QUOTIENT_TO_ODD)
        + function("op.lift", t, f"{t} %x", op.lift, "%x")
        + function("op.merge", t, f"{t} %a, {t} %b", op.merge, "%a")
        + function("op.finish", "float", "float %a, float %n", op.finish, "%a")
    )


# ---- the kernel template -------------------------------------------------------------------------
_METADATA = """
!0 = !{!"llvm.loop.vectorize.enable", i1 true}
!1 = !{!"llvm.loop.vectorize.scalable.enable", i1 true}
!2 = !{!"llvm.loop.interleave.count", i32 1}
"""
# LMUL 8 for the widest value: 8 registers of 64 bits x vscale.  LLVM then strip-mines with vsetvli
# over the element count (EVL tail folding): no remainder loop.
_REGISTERS, _VSCALE_BITS = 8, 64
_ONE = 0x3F80  # bfloat 1.0, through an empty asm: LLVM would fold a multiplication by 1


class _Loop:
    """The loop body of one entry, line by line; values are named as they come."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.widest = 2  # bytes of the widest value computed with

    def let(self, text: str, computed: Format) -> str:
        self.widest = max(self.widest, computed.size)
        name = f"%v{len(self.lines)}"
        self.lines.append(f"{name} = {text}")
        return name

    def _address(self, base: str, f: Format) -> str:
        return self.let(f"getelementptr inbounds {f.llvm}, ptr {base}, i64 %i", f)

    def load(self, base: str, f: Format) -> str:
        return self.let(f"load {f.llvm}, ptr {self._address(base, f)}, align {f.size}", f)

    def store(self, value: str, base: str, f: Format) -> None:
        address = self._address(base, f)
        self.lines.append(f"store {f.llvm} {value}, ptr {address}, align {f.size}")

    def convert(self, value: str, src: Format, dst: Format) -> str:
        if src == dst:
            return value
        verb = "fpext" if src.size < dst.size else "fptrunc"
        return self.let(f"{verb} {src.llvm} {value} to {dst.llvm}", max(src, dst, key=_size))

    def call(self, function: str, arguments: str, f: Format, computed: Format) -> str:
        return self.let(f"call {f.llvm} @{function}({arguments})", computed)

    def canonical(self, value: str, f: Format) -> str:
        """Any NaN becomes the canonical one, on the bits: LLVM may drop a conversion's."""
        i = f"i{8 * f.size}"
        infinity = ((1 << f.exponent_bits) - 1) << f.fraction_bits
        bits = self.let(f"bitcast {f.llvm} {value} to {i}", f)
        magnitude = self.let(f"and {i} {bits}, {(1 << (8 * f.size - 1)) - 1}", f)
        is_nan = self.let(f"icmp ugt {i} {magnitude}, {infinity}", f)
        chosen = self.let(f"select i1 {is_nan}, {i} {f.canonical_nan}, {i} {bits}", f)
        return self.let(f"bitcast {i} {chosen} to {f.llvm}", f)

    def kernel(self, payloads: int) -> str:
        """Arguments and body of the function; %p0, %p1, ... are the table's pointers."""
        table = "\n  ".join(
            f"%t{j} = getelementptr inbounds ptr, ptr %table, i64 {j}\n"
            f"  %p{j} = load ptr, ptr %t{j}, align 8"
            for j in range(payloads)
        )
        body = "\n  ".join(self.lines)
        width = _REGISTERS * _VSCALE_BITS // (8 * self.widest)
        # noalias: payloads and destination are not the accumulator, so the loop needs no checks;
        # "no-builtins": a copying loop must not become a call of memcpy
        return f"""(ptr noalias %acc, ptr noalias %table, i64 %n, ptr noalias %ctx)
    nounwind "no-builtins" {{
entry:
  %none = icmp eq i64 %n, 0
  br i1 %none, label %done, label %begin
begin:
  {table}
  %c = getelementptr inbounds i8, ptr %ctx, i64 {CONTEXT_FIELDS["contributors"][0]}
  %contributors = load i32, ptr %c, align 4
  %float_n = uitofp i32 %contributors to float
  %one_bits = call i16 asm "", "=r,0"(i16 {_ONE})
  %one_bfloat = bitcast i16 %one_bits to bfloat
  %one = fpext bfloat %one_bfloat to float
  br label %loop
loop:
  %i = phi i64 [0, %begin], [%next, %loop]
  {body}
  %next = add nuw i64 %i, 1
  %more = icmp ult i64 %next, %n
  br i1 %more, label %loop, label %done, !llvm.loop !{width}
done:
  ret i64 0
}}
"""


def _size(f: Format) -> int:
    return f.size


def _reducing(
    op: Op, fresh: bool, elements: bool, payloads: int, source: Format, accumulator: Format
) -> str:
    """first, load, acc and merge: payloads, in child order, into the accumulator."""
    lifts = elements and op.lift is not None
    fused = op.adds and not lifts and source.name == "bfloat16"
    t = accumulator.llvm
    # LLVM computes in bfloat as float, then rounds
    computed = _FLOAT if accumulator.name == "bfloat16" else accumulator
    loop = _Loop()
    total = None if fresh else loop.load("%acc", accumulator)
    for j in range(payloads):
        x = loop.convert(loop.load(f"%p{j}", source), source, accumulator)
        if lifts:
            x = loop.call("op.lift", f"{t} {x}", accumulator, computed)
        if total is not None and fused:
            a, b = (loop.convert(v, accumulator, _FLOAT) for v in (total, x))
            wide = loop.call("llvm.fma.f32", f"float {b}, float %one, float {a}", _FLOAT, _FLOAT)
            x = loop.convert(wide, _FLOAT, accumulator)
        elif total is not None:
            x = loop.call("op.merge", f"{t} {total}, {t} {x}", accumulator, computed)
        total = x
    loop.store(str(total), "%acc", accumulator)
    return loop.kernel(payloads)


def _leaving(finishes: bool, accumulator: Format, target: Format) -> str:
    """emit and finish: the accumulator, converted, to where the table points."""
    loop = _Loop()
    value, last = loop.load("%acc", accumulator), accumulator
    if finishes:
        value = loop.convert(value, accumulator, _FLOAT)
        value = loop.call("op.finish", f"float {value}, float %float_n", _FLOAT, _FLOAT)
        last = _FLOAT
    value = loop.convert(value, last, target)
    if last == target:  # a conversion would have made its NaNs canonical
        value = loop.canonical(value, target)
    loop.store(value, "%p0", target)
    return loop.kernel(1)


def kernel_ir(op: Op, element: Format, preset: str) -> tuple[str, dict[str, str]]:
    """The IR module of an image, and the name of the function behind each entry.

    Entries with the same body share one function.
    """
    element, accumulator, partial, result = preset_formats(element, preset)
    bodies = {
        "emit": _leaving(False, accumulator, partial),
        "finish": _leaving(op.finish is not None, accumulator, result),
    }
    for k in (1, *FAN_INS):
        suffix = "" if k == 1 else str(k)
        bodies[f"first{suffix}"] = _reducing(op, True, True, k, element, accumulator)
        bodies[f"load{suffix}"] = _reducing(op, True, False, k, partial, accumulator)
        bodies[f"acc{suffix}"] = _reducing(op, False, True, k, element, accumulator)
        bodies[f"merge{suffix}"] = _reducing(op, False, False, k, partial, accumulator)
    owner: dict[str, str] = {}
    symbols = {entry: owner.setdefault(bodies[entry], entry) for entry in ENTRIES}
    kernels = "".join(f"define i64 @{entry}{body}" for body, entry in owner.items())
    widths = "".join(
        f"!{w} = distinct !{{!{w}, !0, !1, !2, !{w + 1}}}\n"
        f'!{w + 1} = !{{!"llvm.loop.vectorize.width", i32 {w}}}\n'
        for w in (16, 32)
    )
    return _functions(op, accumulator, result) + kernels + _METADATA + widths, symbols


# ---- from IR to an image -------------------------------------------------------------------------
_LLVM_LOCK = threading.Lock()  # llvmlite parses into one context that all threads share


def _emit(ir: str, what: str) -> bytes:
    """A RISC-V ELF object."""
    try:
        import llvmlite.binding as llvm  # type: ignore[import-untyped]
    except ImportError as error:
        raise ImageError(f"llvmlite cannot be imported ({error}): pip install llvmlite") from error
    with _LLVM_LOCK:
        llvm.initialize_all_targets()
        llvm.initialize_all_asmprinters()
        machine = llvm.Target.from_triple(TRIPLE).create_target_machine(**TARGET)
        try:
            module = llvm.parse_assembly(ir)
            module.verify()
        except RuntimeError as error:
            line = " ".join(str(error).split())
            raise ImageError(f"{what}: its IR is not valid: {line}") from error
        module.triple = machine.triple
        module.data_layout = str(machine.target_data)
        options = llvm.create_pipeline_tuning_options(speed_level=3)
        for name, value in PIPELINE.items():
            setattr(options, name, value)
        builder = llvm.create_pass_builder(machine, options)
        builder.getModulePassManager().run(module, builder)
        return bytes(machine.emit_object(module))


def _link(elf: bytes, what: str) -> tuple[bytes, dict[str, int]]:
    """Code and symbols of an object; refused when it is more than self-contained code."""
    from elftools.elf.elffile import ELFFile
    from elftools.elf.relocation import RelocationSection

    file: Any = ELFFile(io.BytesIO(elf))
    table = file.get_section_by_name(".symtab")
    missing = [s.name for s in table.iter_symbols() if s["st_shndx"] == "SHN_UNDEF" and s.name]
    if missing:
        raise ImageError(f"{what}: its code calls {', '.join(missing)}: no such function on a core")
    code = b""
    offsets: dict[str, int] = {}
    for index, section in enumerate(file.iter_sections()):
        if isinstance(section, RelocationSection) and section.num_relocations():
            first = next(section.iter_relocations())
            name = table.get_symbol(first["r_info_sym"]).name
            raise ImageError(f"{what}: its code needs {name or section.name!r} relocated: avoid it")
        if section["sh_flags"] & 2 and section["sh_size"] and section.name != ".text":
            raise ImageError(f"{what}: it needs {section.name}: avoid tables and variables")
        if section.name == ".text":
            code = section.data()
            offsets = {
                s.name: s["st_value"]
                for s in table.iter_symbols()
                if s["st_shndx"] == index and s["st_info"]["type"] == "STT_FUNC"
            }
    return code, offsets


def _llvmlite_version() -> str:
    try:
        return metadata.version("llvmlite")
    except metadata.PackageNotFoundError:
        return "none"


def compile_op(op: Op, element: str | Format, preset: str = "wide") -> KernelImage:
    """The kernel image of an op, from the cache or newly built.

    Args:
        op: the scalar functions.
        element: format of the workers' elements, and of the result.
        preset: numerics preset: "wide", "per-hop" or "per-add".

    Raises:
        ArgumentError: unknown format or preset.
        ImageError: LLVM's code is not self-contained, or llvmlite is missing.
    """
    source, accumulator, partial, result = preset_formats(element, preset)
    ir, symbols = kernel_ir(op, source, preset)
    what = f"image {op.name} {source.name} {preset}"

    def build() -> KernelImage:
        code, offsets = _link(_emit(ir, what), what)
        return KernelImage(
            op=op.name,
            preset=preset,
            element=source.name,
            accumulator=accumulator.name,
            partial=partial.name,
            result=result.name,
            code=code,
            entries={entry: offsets[symbol] for entry, symbol in symbols.items()},
        )

    recipe = (ABI_VERSION, TRIPLE, TARGET, PIPELINE, _llvmlite_version(), symbols, ir)
    digest = hashlib.sha256(repr(recipe).encode()).hexdigest()
    return cached(f"{op.name}-{source.alias}-{preset}-{digest[:32]}", build)
