"""The kernels of an image as LLVM IR: loops over the items of payloads around an op's functions.

Owns: which entry calls which of the op's functions, how fields and the context are addressed, what
the vectoriser is told, and where NaNs are made canonical.  The functions are scalar's, the ABI is
image's.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from nicemu.compiler.scalar import CONTEXT, ScalarOp
from nicemu.device.image import CONTEXT_FIELDS, ENTRIES, FAN_INS, LEAVING, Entry, Formats
from nicemu.dtypes import Format, Item

__all__ = ["Kernels", "kernels"]


# ---- what is read off the simplified functions ---------------------------------------------------
_OPCODE = re.compile(r"^(?:%[\w.]+ = )?(?:tail )?(\w+)")
#: what gives the canonical NaN on a core; a call does where it is of such an instruction
_ARITHMETIC = {"fadd", "fsub", "fmul", "fdiv", "fptrunc", "fpext", "sitofp", "uitofp"}
_ARITHMETIC_CALLS = re.compile(r"@llvm\.(sqrt|fma|maximumnum|minimumnum)\.")
#: bytes of LLVM's types in vectors
_BYTES = {"double": 8, "i64": 8, "float": 4, "i32": 4, "half": 2, "bfloat": 2, "i16": 2, "i8": 1}
_TYPE = re.compile(r"\b(" + "|".join(_BYTES) + r")\b")


def _opcode(line: str) -> str:
    found = _OPCODE.match(line)
    return found[1] if found else ""


def _work(body: Sequence[str]) -> list[str]:
    """Lines that compute: without the struct that is returned."""
    return [line for line in body if _opcode(line) not in ("insertvalue", "ret")]


def _returned(body: Sequence[str], field: int) -> str | None:
    """The value that a function returns as that field; None: a constant."""
    value = None
    for line in body:
        if found := re.search(rf"insertvalue .*, \w+ (%[\w.]+), {field}$", line):
            value = found[1]
    return value


def _canonical(body: Sequence[str], field: int) -> bool:
    """Is that field of what a function returns arithmetic's, so that its NaN is canonical?"""
    value = _returned(body, field)
    for line in body:
        if value and line.startswith(f"{value} = "):
            return _opcode(line) in _ARITHMETIC or bool(_ARITHMETIC_CALLS.search(line))
    return False


def _folds(op: ScalarOp, accumulator: Item) -> bool:
    """May arithmetic that finish or emit ends with be gone where it stands behind lift and merge?

    LLVM drops a conversion and its inverse, and x * 1.0: a NaN passes as it came.  It cannot where
    merge ends with arithmetic on every float, and nothing that lift gives is a constant.
    """
    return any(
        _returned(op.bodies["lift"], i) is None
        or (row.kind == "float" and not _canonical(op.bodies["merge"], i))
        for i, row in enumerate(accumulator.formats)
    )


def _branches(op: ScalarOp) -> bool:
    """Is there a loop in it?"""
    return any(_opcode(line) in ("br", "switch") for body in op.bodies.values() for line in body)


_ADD = re.compile(r"%[\w.]+ = fadd (?:float|bfloat) %a0, %b0")
_WIDEN = re.compile(r"(%[\w.]+) = fpext bfloat %[xp]0 to float|")


def _adds(op: ScalarOp, step: str, source: Item, accumulator: Item) -> bool:
    """Is merge with a payload that lift or load makes of bfloats plainly a sum?"""
    bfloat = source.scalar and accumulator.scalar and source.formats[0].name == "bfloat16"
    plain = _WIDEN.fullmatch(";".join(_work(op.bodies[step])))
    return bfloat and bool(plain) and bool(_ADD.fullmatch(";".join(_work(op.bodies["merge"]))))


def _widest(body: Sequence[str]) -> int:
    """Bytes of the widest value in a function that differs from item to item."""
    same = {f"%ctx.{name}" for name in CONTEXT if name != "element"}
    widest = 1
    for line in body:
        name, _, text = line.rpartition(" = ")
        operands = set(re.findall(r"%[\w.]+", text))
        if operands and operands <= same:
            same.add(name)
        elif name and _opcode(line) != "insertvalue":
            kinds = [_BYTES[kind] for kind in _TYPE.findall(text)]
            kinds += [4] if "bfloat" in text else []  # LLVM computes with it in float
            widest = max([widest, *kinds])
    return widest


# ---- a loop --------------------------------------------------------------------------------------
_METADATA = """
!0 = !{!"llvm.loop.vectorize.enable", i1 true}
!1 = !{!"llvm.loop.vectorize.scalable.enable", i1 true}
!2 = !{!"llvm.loop.interleave.count", i32 1}
"""
_LOOP_END = "br i1 %more, label %loop, label %done"  # a hint may follow
_FIRST_LOOP = 100
_VSCALE_BYTES = 8  # of a vector register, times vscale
_LMUL = 8  # where there are registers enough; compile halves it where there are not
_ONE = 0x3F80  # bfloat 1.0, through an empty asm: LLVM would fold a multiplication by 1


class _Loop:
    """The loop body of one entry, line by line; values are named as they come."""

    def __init__(self, op: ScalarOp, item: Item) -> None:
        self.op = op
        self.accumulator = item
        self.before: list[str] = []  # lines before the loop
        self.lines: list[str] = []
        self.status = ""  # the greatest status so far of this item
        self.names = 0

    def let(self, text: str) -> str:
        self.names += 1
        self.lines.append(f"%v{self.names} = {text}")
        return f"%v{self.names}"

    def _places(self, base: str, item: Item) -> list[str]:
        """Addresses of the fields of item %i."""
        places = []
        for i, (row, offset) in enumerate(zip(item.formats, item.offsets, strict=True)):
            field = base
            if offset:
                field = f"{base}.{i}"
                lines = (
                    f"{field}.at = mul i64 %n, {offset}",
                    f"{field} = getelementptr inbounds i8, ptr {base}, i64 {field}.at",
                )
                self.before += [line for line in lines if line not in self.before]
            places.append(self.let(f"getelementptr inbounds {row.llvm}, ptr {field}, i64 %i"))
        return places

    def load(self, base: str, item: Item) -> list[str]:
        places = self._places(base, item)
        return [
            self.let(f"load {row.llvm}, ptr {place}, align {row.size}{_scope(base, i)}")
            for i, (row, place) in enumerate(zip(item.formats, places, strict=True))
        ]

    def store(self, values: Sequence[str], base: str, item: Item) -> None:
        places = self._places(base, item)
        for i, (value, row) in enumerate(zip(values, item.formats, strict=True)):
            self.lines.append(
                f"store {row.llvm} {value}, ptr {places[i]}, align {row.size}{_scope(base, i)}"
            )

    def call(self, step: str, given: Sequence[tuple[str, Format]], gives: Item, payload: int
             ) -> list[str]:  # fmt: skip
        """One of the op's functions on fields; payload: which of the call's payloads it is for."""
        arguments = [f"{row.llvm} {value}" for value, row in given]
        child = f"%child.{payload}"
        line = f"{child} = add i64 %ctx.child, {payload}"
        if payload and self.op.context and line not in self.before:
            self.before.append(line)
        context = {"element": "%element", "child": child if payload else "%ctx.child"}
        arguments += [f"i64 {context.get(name, f'%ctx.{name}')}" for name in self.op.context]
        returned = f"{{{', '.join([*(row.llvm for row in gives.formats), 'i32'])}}}"
        out = self.let(f"call {returned} @op.{step}({', '.join(arguments)})")
        if self.op.statuses:
            status = self.let(f"extractvalue {returned} {out}, {len(gives.formats)}")
            self.status = (
                self.let(f"call i32 @llvm.umax.i32(i32 {self.status}, i32 {status})")
                if self.status
                else status
            )
        return [self.let(f"extractvalue {returned} {out}, {i}") for i in range(len(gives.formats))]

    def keep(self, old: Sequence[str], new: Sequence[str], item: Item) -> list[str]:
        """The old fields where a function has raised."""
        if not self.op.statuses:
            return list(new)
        good = self.let(f"icmp eq i32 {self.status}, 0")
        return [
            self.let(f"select i1 {good}, {row.llvm} {n}, {row.llvm} {o}")
            for o, n, row in zip(old, new, item.formats, strict=True)
        ]

    def canonical(self, value: str, row: Format) -> str:
        """Any NaN becomes the canonical one, on the bits."""
        i = f"i{8 * row.size}"
        bits = value if row.llvm == i else self.let(f"bitcast {row.llvm} {value} to {i}")
        magnitude = self.let(f"and {i} {bits}, {(1 << (8 * row.size - 1)) - 1}")
        is_nan = self.let(f"icmp ugt {i} {magnitude}, {row.infinity}")
        chosen = self.let(f"select i1 {is_nan}, {i} {row.canonical_nan}, {i} {bits}")
        return chosen if row.llvm == i else self.let(f"bitcast {i} {chosen} to {row.llvm}")

    def kernel(self, entry: Entry) -> str:
        """Arguments and body of the function; %p0, %p1, ..., %out are the table's pointers."""
        pointers = [f"%p{j}" for j in range(entry.payloads)] + ["%out"] * bool(entry.leaving)
        table = [
            line
            for j, pointer in enumerate(pointers)
            for line in (
                f"%t{j} = getelementptr inbounds ptr, ptr %table, i64 {j}",
                f"{pointer} = load ptr, ptr %t{j}, align 8",
            )
        ]
        for name in self.op.context:
            offset, size = CONTEXT_FIELDS[name]
            place, whole = f"%at.{name}", f"%ctx.{name}" if size == 8 else f"%raw.{name}"
            table.append(f"{place} = getelementptr inbounds i8, ptr %ctx, i64 {offset}")
            table.append(f"{whole} = load i{8 * size}, ptr {place}, align {size}")
            if size != 8:
                table.append(f"%ctx.{name} = zext i{8 * size} {whole} to i64")
        begin = "\n  ".join(table + self.before)
        counted, left = [], "ret i64 0"
        if self.status:
            counted = ["%worst = phi i32 [0, %begin], [%worse, %loop]"]
            self.lines.append(f"%worse = call i32 @llvm.umax.i32(i32 %worst, i32 {self.status})")
            left = (
                "%status = phi i32 [0, %entry], [%worse, %loop]\n"
                "  %returned = zext i32 %status to i64\n  ret i64 %returned"
            )
        element = ["%element = add i64 %ctx.element, %i"] if self.op.context else []
        loop = "\n  ".join([*counted, *element, *self.lines])
        # noalias: payloads and destination are not the accumulator, so the loop needs no checks;
        # those two are told apart by _scope.  "no-builtins": a copying loop must not become a call
        # of memcpy; an image has no data, so a switch becomes no table
        return f"""(ptr noalias %acc, ptr noalias %table, i64 %n, ptr noalias %ctx)
    nounwind "no-builtins" "no-jump-tables"="true" {{
entry:
  %none = icmp eq i64 %n, 0
  br i1 %none, label %done, label %begin
begin:
  {begin}
  br label %loop
loop:
  %i = phi i64 [0, %begin], [%next, %loop]
  {loop}
  %next = add nuw i64 %i, 1
  %more = icmp ult i64 %next, %n
  {_LOOP_END}
done:
  {left}
}}
"""


# Fields of one array of records do not overlap, nor do payloads and the destination; pointers say
# nothing of that.  Scope 0 is all payloads, scope i + 1 field i of accumulator and destination.
_FIRST_SCOPE = 1000


def _scope(base: str, field: int) -> str:
    own = _FIRST_SCOPE + 2 * (field + 1 if base in ("%acc", "%out") else 0)
    return f", !alias.scope !{own}, !noalias !{own + 1}"


def _scopes(fields: int) -> str:
    """Scope i alone is metadata 2 i, and all others are 2 i + 1, from _FIRST_SCOPE."""
    domain = _FIRST_SCOPE - 1
    lines = [f"!{domain} = distinct !{{!{domain}}}"]
    scopes = [_FIRST_SCOPE + 2 * (fields + 1) + i for i in range(fields + 1)]
    for i, scope in enumerate(scopes):
        others = ", ".join(f"!{other}" for other in scopes if other != scope)
        lines += [
            f"!{scope} = distinct !{{!{scope}, !{domain}}}",
            f"!{_FIRST_SCOPE + 2 * i} = !{{!{scope}}}",
            f"!{_FIRST_SCOPE + 2 * i + 1} = !{{{others}}}",
        ]
    return "\n".join(lines) + "\n"


# ---- the entries ---------------------------------------------------------------------------------


def _fields(values: Sequence[str], item: Item) -> list[tuple[str, Format]]:
    return list(zip(values, item.formats, strict=True))


def _entry(op: ScalarOp, formats: Formats, entry: Entry, fuses: bool) -> tuple[str, int | None]:
    """The function: what the payloads give, to the accumulator or to the destination; its width."""
    acc = formats.accumulator
    loop = _Loop(op, acc)
    step, source = _loading(op, formats) if entry.partials else ("lift", formats.element)
    fused = fuses and _adds(op, step, source, acc)
    total = _merged(loop, entry, step, source, fused)
    steps, items = ([step], [source, acc]) if entry.reducing else ([], [acc])
    if entry.reducing and (entry.payloads > 1 or not entry.fresh):
        steps.append("merge")
    if entry.leaving:
        target = getattr(formats, LEAVING[entry.leaving])
        folds = bool(entry.reducing) and _folds(op, acc)
        loop.store(_converted(loop, entry.leaving, total, target, folds), "%out", target)
        steps.append(entry.leaving)
        items.append(target)
    else:
        loop.store(total, "%acc", acc)
    return loop.kernel(entry), _width(op, steps, items)


def _merged(loop: _Loop, entry: Entry, step: str, source: Item, fused: bool) -> list[str]:
    """The accumulator with the payloads in it, in child order; step: what takes them."""
    acc = loop.accumulator
    total = None if entry.fresh else loop.load("%acc", acc)
    for j in range(entry.payloads):
        given = _fields(loop.load(f"%p{j}", source), source)
        if total is not None and fused:
            total = [_fused(loop, total[0], given[0][0], acc.formats[0])]
            continue
        new = loop.call(step, given, acc, j)
        if total is not None:
            pair = [*_fields(total, acc), *_fields(new, acc)]
            new = loop.keep(total, loop.call("merge", pair, acc, j), acc)
        total = new
    assert total is not None  # a fresh one has a payload
    return total


def _loading(op: ScalarOp, formats: Formats) -> tuple[str, Item]:
    """What takes partial sums; lift, where that does the same, so that entries share code."""
    load = [line.replace("%p", "%x") for line in op.bodies["load"]]
    same = formats.partial == formats.element and load == list(op.bodies["lift"])
    return ("lift" if same else "load"), formats.partial


def _fused(loop: _Loop, total: str, x: str, acc: Format) -> str:
    """total + x by the widening multiply-add with 1: one instruction, the same bits."""
    if "%one = fpext bfloat %one.bfloat to float" not in loop.before:
        loop.before += [
            f'%one.bits = call i16 asm "", "=r,0"(i16 {_ONE})',
            "%one.bfloat = bitcast i16 %one.bits to bfloat",
            "%one = fpext bfloat %one.bfloat to float",
        ]
    narrow = acc.name == "bfloat16"
    a = loop.let(f"fpext bfloat {total} to float") if narrow else total
    b = loop.let(f"fpext bfloat {x} to float")
    wide = loop.let(f"call float @llvm.fma.f32(float {b}, float %one, float {a})")
    return loop.let(f"fptrunc float {wide} to bfloat") if narrow else wide


def _converted(
    loop: _Loop, step: str, total: Sequence[str], target: Item, folds: bool
) -> list[str]:
    """emit and finish: the accumulator as it leaves; folds: their arithmetic may be dropped."""
    values = loop.call(step, _fields(total, loop.accumulator), target, 0)
    for i, row in enumerate(target.formats):
        if row.kind == "float" and (folds or not _canonical(loop.op.bodies[step], i)):
            values[i] = loop.canonical(values[i], row)
    return values


#: what a fan-in variant cannot be told of each of its payloads
_ONE_EACH = {"rank", "contributors"}
#: what differs between a call with payloads and one that only leaves
_OF_PAYLOADS = {"rank", "child"}
MOST_WORK = 8  # of lift and merge: with more, registers do not do, and passes do not matter
#: what is several instructions, with masks
_LONG = re.compile(r"@llvm\.(maximum|minimum)\.")


def _entries(op: ScalarOp) -> list[Entry]:
    """Those that an op has: single ones always, those of several payloads where they pay."""
    fan_ins = (0, 1, *_fan_ins(op))
    every = [Entry.of(name) for name in ENTRIES]
    # one that raises needs the accumulator
    whole = () if op.statuses else [step for step in LEAVING if not _reads(op, step, _OF_PAYLOADS)]
    return [
        entry
        for entry in every
        if entry.payloads in fan_ins
        and (not entry.reducing or not entry.leaving or entry.leaving in whole)
    ]


def _reads(op: ScalarOp, step: str, names: Collection[str]) -> bool:
    """Does that function read one of these fields of the context?"""
    return any(f"%ctx.{name}" in line for name in names for line in op.bodies[step])


def _fan_ins(op: ScalarOp) -> tuple[int, ...]:
    lines = _work(op.bodies["lift"]) + _work(op.bodies["merge"])
    work = sum(MOST_WORK if _LONG.search(line) else 1 for line in lines)
    reads = any(_reads(op, step, op.reads & _ONE_EACH) for step in ("lift", "merge"))
    return () if reads or work > MOST_WORK or _branches(op) else FAN_INS


def _width(op: ScalarOp, steps: Sequence[str], items: Sequence[Item]) -> int | None:
    """Items that a vector of LMUL 8 holds, by vscale; None where there is a loop in the op."""
    if _branches(op):
        return None
    widest = max(
        *(_widest(op.bodies[step]) for step in steps),
        *(row.size for item in items for row in item.formats),
    )
    return _LMUL * _VSCALE_BYTES // widest


def _declarations(op: ScalarOp, formats: Formats) -> str:
    """Of the op's functions."""
    acc = formats.accumulator
    context = ["i64"] * len(op.context)
    return "".join(
        f"declare {{{', '.join([*(row.llvm for row in gives.formats), 'i32'])}}} @op.{step}("
        f"{', '.join([row.llvm for item in takes for row in item.formats] + context)})\n"
        for step, takes, gives in (
            ("lift", [formats.element], acc), ("load", [formats.partial], acc),
            ("merge", [acc, acc], acc), ("emit", [acc], formats.partial),
            ("finish", [acc], formats.result),
        )
    )  # fmt: skip


@dataclass(frozen=True)
class Kernels:
    """The IR of an image's kernels.

    Attributes:
        declarations: of the op's functions.
        functions: symbol -> definition of a function.
        widths: symbol -> the items, by vscale, of a vector of LMUL 8; None: not to be vectorised.
        metadata: that the functions refer to.
        symbols: entry -> the function behind it.
    """

    declarations: str
    functions: Mapping[str, str]
    widths: Mapping[str, int | None]
    metadata: str
    symbols: Mapping[str, str]

    def module(self, widths: Mapping[str, int | None]) -> str:
        """Some of the functions, loops over single items, and what they need.

        Args:
            widths: symbol of a function that is wanted -> what LLVM's vectoriser is told; None: it
                is to leave the loop alone.
        """
        bodies = loops = ""
        for name, width in widths.items():
            hint = f", !llvm.loop !{_FIRST_LOOP + 2 * width}" if width else ""
            bodies += self.functions[name].replace(_LOOP_END, _LOOP_END + hint)
        for width in sorted({width for width in widths.values() if width}):
            at = _FIRST_LOOP + 2 * width
            loops += f"!{at} = distinct !{{!{at}, !0, !1, !2, !{at + 1}}}\n"
            loops += f'!{at + 1} = !{{!"llvm.loop.vectorize.width", i32 {width}}}\n'
        return self.declarations + bodies + _METADATA + loops + self.metadata


def kernels(op: ScalarOp, formats: Formats, fuses: bool = True) -> Kernels:
    """The kernels of an image: a loop for every entry.

    Entries with the same body share one function; fan-in variants may be missing.

    Args:
        op: the functions.
        formats: what they work on.
        fuses: whether a sum of bfloat16 in float32 is to be a multiply-add: the same bits.
    """
    made = {str(entry): _entry(op, formats, entry, fuses) for entry in _entries(op)}
    owner: dict[tuple[str, int | None], str] = {}
    symbols = {name: owner.setdefault(row, name) for name, row in made.items()}
    fields = max(
        len(item.fields) for item in (formats.accumulator, formats.partial, formats.result)
    )
    return Kernels(
        declarations=_declarations(op, formats),
        functions={name: f"define i64 @{name}{text}" for (text, _), name in owner.items()},
        widths={name: width for (_, width), name in owner.items()},
        metadata=_scopes(fields),
        symbols=symbols,
    )
