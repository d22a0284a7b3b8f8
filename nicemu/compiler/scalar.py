"""An op's functions over single items as one small LLVM module: lift, load, merge, emit, finish.

Owns: what front ends hand over (ScalarFunction), the numbers they compute with, the conversions
between these and the formats in memory, and what is known of the functions once simplified.
Loops over payloads are kernels'; how a front end makes IR is its own affair.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from nicemu.compiler.irmath import functions
from nicemu.compiler.llvm import optimise
from nicemu.device.image import CONTEXT_FIELDS, Formats
from nicemu.dtypes import Format, Item
from nicemu.errors import OpError

__all__ = [
    "CONTEXT",
    "DOUBLE",
    "Number",
    "ScalarFunction",
    "ScalarOp",
    "alone",
    "computed",
    "missing",
    "scalar_op",
    "simplified",
]

#: what an op may read of its call, in the order of arguments
CONTEXT: tuple[str, ...] = tuple(name for name in CONTEXT_FIELDS if name != "abi")


class Number(NamedTuple):
    """What functions compute with: a kind of Format.kind, and bits."""

    kind: str
    bits: int

    @property
    def llvm(self) -> str:
        """Its type in LLVM IR."""
        if self.kind == "float":
            return {32: "float", 64: "double"}[self.bits]
        return f"i{self.bits}"

    def __str__(self) -> str:
        """As numpy names it."""
        return "bool" if self.kind == "bool" else f"{self.kind}{self.bits}"


FLOAT = Number("float", 32)
DOUBLE = Number("float", 64)


def computed(row: Format) -> Number:
    """What a format's values are computed in.

    Floats of less than 32 bits in float32; uint8 in int16, since numba takes an unsigned and a
    signed integer together for float64.
    """
    if row.kind == "uint":
        return Number("int", 16 * row.size)
    return Number(row.kind, max(8 * row.size, 32) if row.kind == "float" else 8 * row.size)


@dataclass(frozen=True)
class ScalarFunction:
    """A function of the author, as a front end hands it over.

    It is ``i32 symbol(ptr out, numbers...)``: each argument's fields in order, then, where it takes
    the context, the i64 of CONTEXT.  It writes ``out`` and returns 0, or a status from 1.

    Attributes:
        modules: LLVM modules that define it, without a target.
        symbol: its name there.
        out: LLVM type of what it writes; a struct or array of ``results``, or that of the only one.
        results: what its fields are.
        context: whether it takes the context.
        where: it is, for messages.
        statuses: what status 1, 2, ... means, in the author's words.
        notes: what the author should know of it.
    """

    modules: tuple[str, ...]
    symbol: str
    out: str
    results: tuple[Number, ...]
    context: bool
    where: str
    statuses: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class ScalarOp:
    """The functions of an op over single items, simplified.

    lift, load, merge, emit and finish are each ``{fields of what it gives, i32 status} @op.step(
    fields of what it takes..., i64 of context)``, fields in their formats in memory.

    Attributes:
        ir: the module.
        statuses: meaning of status 1, 2, ...; none: the status is always 0.
        notes: what the author should know.
        context: fields of the context that the functions take: CONTEXT, or none.
        reads: fields of the context that lift, merge or finish use.
        arguments: step -> the names that its function takes.
        bodies: step -> the lines of its function.
    """

    ir: str
    statuses: tuple[str, ...]
    notes: tuple[str, ...]
    context: tuple[str, ...]
    reads: frozenset[str]
    arguments: Mapping[str, tuple[str, ...]]
    bodies: Mapping[str, tuple[str, ...]]


# ---- conversions -----------------------------------------------------------------------------


class _Lines:
    """Lines of a function; values are named as they come."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def let(self, text: str) -> str:
        name = f"%v{len(self.lines)}"
        self.lines.append(f"{name} = {text}")
        return name

    def widen(self, value: str, row: Format) -> str:
        """A value in memory as the number it is computed in."""
        if row.kind == "bool":  # any byte but 0 is true
            return self.let(f"zext i1 {self.let(f'icmp ne i8 {value}, 0')} to i8")
        if _is_held(row):
            return self.let(f"call float @nicemu.widen.{row.alias}({row.llvm} {value})")
        if row.kind == "float" and row.size == 2:
            return self.let(f"fpext {row.llvm} {value} to float")
        if row.kind == "uint":
            return self.let(f"zext {row.llvm} {value} to {computed(row).llvm}")
        return value

    def narrow(self, value: str, src: Number, row: Format) -> str:
        """A number as a value in memory; one rounding, but of integers above 2**53 two."""
        if row.kind == "float":
            if src.kind != "float":
                verb = "sitofp" if src.kind == "int" else "uitofp"
                src, value = DOUBLE, self.let(f"{verb} {src.llvm} {value} to double")
            if _is_held(row):
                if src == DOUBLE:
                    value = self.let(f"call float @nicemu.odd.f64.f32(double {value})")
                return self.let(f"call {row.llvm} @nicemu.narrow.{row.alias}(float {value})")
            if 8 * row.size == src.bits:
                return value
            verb = "fptrunc" if 8 * row.size < src.bits else "fpext"
            return self.let(f"{verb} {src.llvm} {value} to {row.llvm}")
        if 8 * row.size == src.bits:
            return value
        verb = "trunc" if 8 * row.size < src.bits else "sext" if src.kind == "int" else "zext"
        return self.let(f"{verb} {src.llvm} {value} to {row.llvm}")


def _is_held(row: Format) -> bool:
    """Is it a float whose bits are an integer in memory, as cores do not compute with it?"""
    return row.kind == "float" and row.llvm[0] == "i"


def _convert(lines: _Lines, value: str, src: Format, dst: Format) -> str:
    """Memory to memory; of bools, whatever is true becomes 1."""
    same = src == dst and src.kind != "bool"
    return value if same else lines.narrow(lines.widen(value, src), computed(src), dst)


# ---- the module ------------------------------------------------------------------------------


def _returned(item: Item) -> str:
    return f"{{{', '.join([*(row.llvm for row in item.formats), 'i32'])}}}"


def _step(
    name: str,
    takes: Sequence[tuple[str, Item]],
    gives: Item,
    function: ScalarFunction | None,
    context: Sequence[str],
    before: int,
) -> str:
    """One of STEPS: a call of the author's function, or a conversion of the only argument.

    Args:
        context: fields of the context that it takes.
        before: statuses of other functions; its own follow them.
    """
    lines = _Lines()
    arguments = [
        (f"%{letter}{i}", row) for letter, item in takes for i, row in enumerate(item.formats)
    ]
    head = [f"{row.llvm} {value}" for value, row in arguments]
    head += [f"i64 {_range(name, field)}%ctx.{field}" for field in context]
    returned = f"{{{', '.join([*(row.llvm for row in gives.formats), 'i32'])}}}"
    text = ""
    if function is None:
        status = "0"
        pairs = zip(arguments, gives.formats, strict=True)
        values = [_convert(lines, value, src, dst) for (value, src), dst in pairs]
    else:
        passed = [(computed(row).llvm, lines.widen(value, row)) for value, row in arguments]
        passed += [("i64", f"%ctx.{field}") for field in CONTEXT if function.context]
        kinds = ", ".join(["ptr", *(kind for kind, _ in passed)])
        given = ", ".join(["ptr %out", *(f"{kind} {value}" for kind, value in passed)])
        text = f"declare i32 @{function.symbol}({kinds})\n"
        status = lines.let(f"call i32 @{function.symbol}({given})")
        if function.statuses and before:
            moved = lines.let(f"add i32 {status}, {before}")
            good = lines.let(f"icmp eq i32 {status}, 0")
            status = lines.let(f"select i1 {good}, i32 0, i32 {moved}")
        values = []
        for i, (src, row) in enumerate(zip(function.results, gives.formats, strict=True)):
            place = "%out"
            if len(function.results) > 1 or function.out != src.llvm:
                place = lines.let(f"getelementptr {function.out}, ptr %out, i32 0, i32 {i}")
            values.append(lines.narrow(lines.let(f"load {src.llvm}, ptr {place}"), src, row))
    result = "poison"
    for i, (value, row) in enumerate(zip(values, gives.formats, strict=True)):
        result = lines.let(f"insertvalue {returned} {result}, {row.llvm} {value}, {i}")
    result = lines.let(f"insertvalue {returned} {result}, i32 {status}, {len(values)}")
    body = [*([f"%out = alloca {function.out}"] if function else []), *lines.lines]
    # an image has no data, so a switch becomes no table
    signature = f'{returned} @op.{name}({", ".join(head)}) "no-jump-tables"="true"'
    return f"{text}define {signature} {{\n  " + "\n  ".join(
        [*body, f"ret {returned} {result}\n}}\n"]
    )


def _range(step: str, field: str) -> str:
    """What LLVM may know of a field of the context: a mean does not divide by 0."""
    known = (step, field) == ("finish", "contributors")
    return f"range(i64 1, {1 << 32}) " if known else ""


def _steps(formats: Formats) -> tuple[tuple[str, list[tuple[str, Item]], Item], ...]:
    """Each function, what it takes by letters, and what it gives."""
    acc = formats.accumulator
    return (
        ("lift", [("x", formats.element)], acc),
        ("load", [("p", formats.partial)], acc),
        ("merge", [("a", acc), ("b", acc)], acc),
        ("emit", [("a", acc)], formats.partial),
        ("finish", [("a", acc)], formats.result),
    )


def _context(given: Mapping[str, ScalarFunction]) -> tuple[str, ...]:
    return CONTEXT if any(function.context for function in given.values()) else ()


def simplified(what: str, given: Mapping[str, ScalarFunction], formats: Formats) -> str:
    """The module of an op's functions as LLVM leaves it; arguments and errors as scalar_op."""
    statuses = 0
    modules: list[str] = []
    wrappers = ""
    for name, takes, gives in _steps(formats):
        function = given.get(name)
        _check_returned(name, function, takes, gives)
        wrappers += _step(name, takes, gives, function, _context(given), statuses)
        if function is not None:
            statuses += len(function.statuses)
            modules += function.modules
    wrappers += functions("\n".join([*modules, wrappers]))
    return optimise([*modules, wrappers], [f"op.{name}" for name, *_ in _steps(formats)], what)


def alone(what: str, given: Mapping[str, ScalarFunction]) -> dict[str, str]:
    """Step -> the module of the author's function, simplified without what is put around it."""
    modules = [module for function in given.values() for module in function.modules]
    texts = [*modules, functions("\n".join(modules))]
    return {step: optimise(texts, [f.symbol], what) for step, f in given.items()}


def scalar_op(
    what: str,
    given: Mapping[str, ScalarFunction],
    formats: Formats,
) -> ScalarOp:
    """Put an op's functions together.

    Args:
        what: is compiled, for messages.
        given: "merge", and "lift" and "finish" where they are no plain conversions.
        formats: what the steps take and give.

    Raises:
        OpError: they call what no core has, or do not return what they should.
        ImageError: a module is not valid IR.
    """
    module = _selected_in_half(simplified(what, given, formats))
    _check_calls(module, what)
    names = [name for name, *_ in _steps(formats)]
    bodies = {name: _body(module, name) for name in names}
    return ScalarOp(
        ir=module,
        statuses=tuple(text for n in names if n in given for text in given[n].statuses)
        if any(map(_raises, bodies.values()))
        else (),
        notes=tuple(note for function in given.values() for note in function.notes),
        context=_context(given),
        reads=frozenset(
            field
            for field in _context(given)
            for name in ("lift", "merge", "finish")
            if any(re.search(rf"%ctx\.{field}\b", line) for line in bodies[name])
        ),
        arguments={name: _arguments(module, name) for name in names},
        bodies=bodies,
    )


_GOOD = re.compile(r"(?:.*insertvalue .*, i32 0, \d+|.*\bi32 0 \}|ret .* zeroinitializer)$")


def _raises(body: Sequence[str]) -> bool:
    """May a function return a status?"""
    *_, before, last = ("", "", *body)
    plain = sum(line.startswith("ret ") for line in body) == 1
    return not (plain and (_GOOD.match(last) or _GOOD.match(before)))


_SELECTION = re.compile(
    r"(%[\w.]+) = (?:tail )?call float @llvm\.((?:max|min)imum(?:num)?)\.f32\(float (%[\w.]+), "
    r"float (%[\w.]+)\)"
)
_WIDENED = re.compile(r"^ *(%[\w.]+) = fpext half (%[\w.]+) to float$", re.M)


def _selected_in_half(module: str) -> str:
    """The greater of two halfs is found in half and not in float: LLVM narrows only sums."""
    out = []
    for function in re.split(r"(?m)^(?=define )", module):
        halves = dict(_WIDENED.findall(function))
        for wide, verb, a, b in _SELECTION.findall(function):
            narrowed = re.search(rf"(%[\w.]+) = fptrunc float {re.escape(wide)} to half", function)
            if narrowed and a in halves and b in halves:
                call = f"call half @llvm.{verb}.f16(half {halves[a]}, half {halves[b]})"
                function = function.replace(narrowed[0], f"{narrowed[1]} = {call}")
        out.append(_without_unused(function))
    return "".join(out)


def _without_unused(function: str) -> str:
    """Without the conversions and selections whose values nobody takes."""
    lines = function.splitlines(keepends=True)
    while True:
        text = "".join(lines)
        kept = [
            line
            for line in lines
            if not (_WIDENED.match(line.rstrip()) or _SELECTION.search(line))
            or len(re.findall(rf"{re.escape(line.split(' = ')[0].strip())}(?![\w.])", text)) > 1
        ]
        if len(kept) == len(lines):
            return text
        lines = kept


def _check_returned(
    step: str, function: ScalarFunction | None, takes: Sequence[tuple[str, Item]], gives: Item
) -> None:
    """A step gives what it should: merge is closed on the accumulator, nothing is cut off."""
    what = "the result" if step == "finish" else "the accumulator"
    if function is None:
        if [len(item.fields) for _, item in takes] != [len(gives.fields)]:
            raise OpError(
                f"{step}: there is none, and {takes[0][1]} does not become {gives} by itself: "
                f"write {step}"
            )
        return
    if len(function.results) != len(gives.fields):
        raise OpError(
            f"{function.where}: it returns {_listed(function.results)}, and {what} is {gives}: "
            f"return {'a number' if gives.scalar else f'{len(gives.fields)} numbers'}"
        )
    for number, row in zip(function.results, gives.formats, strict=True):
        wrong = (
            number.kind != "bool"
            if row.kind == "bool"
            else (
                (number.kind == "float" and row.kind != "float")
                or (number.kind == "bool" and step == "merge")
            )
        )
        if wrong:
            remedy = (
                "compare"
                if row.kind == "bool"
                else ("use 1 and 0" if number.kind == "bool" else "use // or int(x)")
            )
            raise OpError(
                f"{function.where}: it returns {_listed(function.results)}, and {what} is {gives}:"
                f" {remedy}"
            )


def _listed(numbers: Sequence[Number]) -> str:
    return ", ".join(map(str, numbers))


#: what LLVM calls by these names a core does not have
_MISSING = {
    "fmodf": "% or // of floats", "fmod": "% or // of floats", "powf": "x ** y", "pow": "x ** y",
}  # fmt: skip


def _check_calls(module: str, what: str) -> None:
    """After inlining, nothing is left to call but LLVM's intrinsics."""
    for name in re.findall(r"^declare [^@]*@\"?([^\s\"(]+)", module, flags=re.M):
        if not name.startswith("llvm."):
            raise OpError(f"{what}: {missing(name)}")


def missing(name: str) -> str:
    """What the author is told of a function that no core has."""
    if single := re.fullmatch(r"nicemu\.(\w+)\.f64", name):
        return f"{single[1]} is there for float32 only: convert with np.float32(x)"
    return f"it uses {_MISSING.get(name, name)}, which a core does not have: write it out"


def _arguments(module: str, step: str) -> tuple[str, ...]:
    """The names of a function's arguments."""
    start = module.index(f" @op.{step}(")
    return tuple(re.findall(r"(%[\w.]+)[,)]", module[start : module.index("\n", start)]))


def _body(module: str, step: str) -> tuple[str, ...]:
    """The lines between the braces of a function."""
    start = module.index(f" @op.{step}(")
    text = module[module.index("\n", start) + 1 : module.index("\n}", start)]
    return tuple(line.strip() for line in text.splitlines() if line.strip())
