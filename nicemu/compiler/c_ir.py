"""The C front end: scalar functions lift, merge and finish in C -> LLVM IR, through clang.

Owns: the declarations that every source sees, which functions and constructs a core has, the
adapters between C's calling convention and ScalarFunction, and what the author is told.  How clang
is run is clang's affair, what becomes of the functions scalar's.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod

from nicemu.compiler.clang import Diagnostic, compile_c, included
from nicemu.compiler.irmath import defined, functions
from nicemu.compiler.lines import branches_marked
from nicemu.compiler.llvm import optimise
from nicemu.compiler.scalar import CONTEXT, DOUBLE, Number, ScalarFunction, computed
from nicemu.device.image import Formats
from nicemu.dtypes import Format, Item
from nicemu.errors import OpError

__all__ = ["compile_source", "line_of"]

#: step -> its arguments, what they are, and what it gives
_STEPS: dict[str, tuple[str, str, str]] = {
    "lift": ("x", "element", "accumulator"),
    "merge": ("ab", "accumulator", "accumulator"),
    "finish": ("a", "accumulator", "result"),
}
#: functions of math.h, each also with an f: arguments, and what it is for f32 and f64
_MATH = {
    "sqrt": (1, "llvm.sqrt.{}"), "fabs": (1, "llvm.fabs.{}"), "floor": (1, "llvm.floor.{}"),
    "ceil": (1, "llvm.ceil.{}"), "trunc": (1, "llvm.trunc.{}"), "rint": (1, "llvm.roundeven.{}"),
    "roundeven": (1, "llvm.roundeven.{}"), "fma": (3, "llvm.fma.{}"),
    "copysign": (2, "nicemu.copysign.{}"), "fmax": (2, "llvm.maximumnum.{}"),
    "fmin": (2, "llvm.minimumnum.{}"), "fmaximum": (2, "llvm.maximum.{}"),
    "fminimum": (2, "llvm.minimum.{}"),
}  # fmt: skip
#: with an f only
_SINGLE = {name: (1, f"nicemu.{name}.{{}}") for name in ("exp", "exp2", "log", "log2", "tanh")}
#: name in C -> C type, arguments, name in IR
_CALLS = {
    f"{name}f": ("float", arity, ir.format("f32"))
    for name, (arity, ir) in (_MATH | _SINGLE).items()
} | {name: ("double", arity, ir.format("f64")) for name, (arity, ir) in _MATH.items()}
#: LLVM's intrinsics that C's operators and builtins may become
_INTRINSICS = re.compile(
    r"llvm\.(mem(cpy|set|move)|fpto[su]i\.sat|[su](max|min)|abs|ct(pop|lz|tz)|bswap|bitreverse|"
    r"fsh[lr]|[su](add|sub|mul)\.(with\.overflow|sat)|expect|is\.fpclass|(ubsan)?trap)\b"
)
_REMEDY = (
    f"use arithmetic and of math.h {', '.join(_MATH)}, these with an f, "
    f"{', '.join(f'{name}f' for name in _SINGLE)}"
)
_MISTYPED = "nicemu: another type"  # in clang's message


# ---- what the source sees, and what is put around it --------------------------------------------


def _c(number: Number) -> str:
    """A number's type in C; a bool is a byte that is 0 or 1."""
    if number.kind == "float":
        return {32: "float", 64: "double"}[number.bits]
    return "uint8_t" if number.kind == "bool" else f"{number.kind}{number.bits}_t"


def _shown(row: Format) -> str:
    """What authors write for a format."""
    return "bool" if row.kind == "bool" else _c(_own(row))


def _own(row: Format) -> Number:
    """What C holds a format's values in: its own width, floats at least float32."""
    return computed(row) if row.kind == "float" else Number(row.kind, 8 * row.size)


def _type(item: Item, name: str) -> str:
    return _shown(item.formats[0]) if item.scalar else f"{name}_t"


def _typedef(item: Item, name: str) -> str:
    if item.scalar:
        return f"typedef {_shown(item.formats[0])} {name}_t;\n"
    fields = " ".join(f"{_shown(row)} {field};" for field, row in item.fields)
    return f"typedef struct {{ {fields} }} {name}_t;\n"


#: what no field of a struct can be called: words of C17, and macros of the prelude
_RESERVED = {
    "INFINITY", "NAN", "asm", "auto", "bool", "break", "case", "char", "const", "continue",
    "default", "do", "double", "else", "enum", "extern", "false", "float", "for", "goto", "if",
    "inline", "int", "long", "register", "restrict", "return", "short", "signed", "sizeof",
    "static", "struct", "switch", "true", "typedef", "typeof", "union", "unsigned", "void",
    "volatile", "while",
}  # fmt: skip
_WORDS = {8: "char", 16: "short", 32: "int", 64: "long"}
_ALWAYS = (
    "".join(
        f"typedef signed {word} int{bits}_t;\ntypedef unsigned {word} uint{bits}_t;\n"
        for bits, word in _WORDS.items()
    )
    + "".join(
        f"{kind} {name}({', '.join([kind] * arity)});\n"
        for name, (kind, arity, _) in _CALLS.items()
    )
    + f"typedef struct {{ {' '.join(f'int64_t {field};' for field in CONTEXT)} }} context_t;\n"
    + """\
#define bool _Bool
#define true 1
#define false 0
#define INFINITY __builtin_inff()
#define NAN __builtin_nanf("")
#define isnan(x) __builtin_isnan(x)
#define isinf(x) __builtin_isinf(x)
#define isfinite(x) __builtin_isfinite(x)
"""
)


def _prelude(formats: Formats) -> str:
    """What is declared before the source."""
    result = (
        "typedef accumulator_t result_t;\n"
        if formats.result == formats.accumulator
        else _typedef(formats.result, "result")
    )
    own = _typedef(formats.element, "element") + _typedef(formats.accumulator, "accumulator")
    return _ALWAYS + own + result


# ---- the adapters --------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Step:
    """One of the functions of a source: what is around it, in C and as ScalarFunction.

    Attributes:
        name: lift, merge or finish.
        takes, gives: items of each argument, and of what it returns.
        line: where it begins.
        context: whether it takes the context.
        double: whether it returns a double, where the format is a float's.
    """

    name: str
    takes: Item
    gives: Item
    line: int = 0
    context: bool = False
    double: bool = False

    @property
    def symbol(self) -> str:
        return f"nicemu_{self.name}"

    @property
    def results(self) -> tuple[Number, ...]:
        return (DOUBLE,) if self.double else tuple(map(_own, self.gives.formats))

    @property
    def wanted(self) -> str:
        """How the source should declare it."""
        letters, takes, gives = _STEPS[self.name]
        arguments = ", ".join(f"{_type(self.takes, takes)} {letter}" for letter in letters)
        return (
            f"write {_type(self.gives, gives)} {self.name}({arguments}), or with context_t ctx as "
            "the last argument"
        )

    def adapter(self) -> str:
        """C; where the function has another type, an error at the function's line."""
        letters, takes, gives = _STEPS[self.name]
        kinds = ", ".join([f"{takes}_t"] * len(letters) + ["context_t"] * self.context)
        returned = "double" if self.double else f"{gives}_t"
        fields = [(f"_{field}", row) for field, row in self.takes.fields]
        given = [f"{_c(computed(row))} {x}{field}" for x in letters for field, row in fields]
        given += [f"int64_t {field}" for field in CONTEXT if self.context]
        values = [", ".join(f"{x}{field}" for field, _ in fields) for x in letters]
        passed = [x if self.takes.scalar else f"({takes}_t){{{x}}}" for x in values]
        passed += [f"(context_t){{{', '.join(CONTEXT)}}}"] * self.context
        made = [("value", "made")] if self.gives.scalar else [
            (field, f"made.{field}") for field, _ in self.gives.fields
        ]  # fmt: skip
        members = zip(made, self.results, strict=True)
        mean = self.name == "finish" and self.context  # divides by what is not 0
        known = "__builtin_assume(contributors > 0);" if mean else ""
        out = " ".join(f"{_c(number)} {field};" for (field, _), number in members)
        stores = " ".join(f"out->{field} = {value};" for field, value in made)
        return f"""\
#line {self.line} "{_FILE}"
_Static_assert(_Generic(&{self.name}, {returned} (*)({kinds}): 1, default: 0), "{_MISTYPED}");
#line 1 "{_ADAPTERS}"
typedef struct {{ {out} }} {self.symbol}_out;
int {self.symbol}({", ".join([f"{self.symbol}_out *out", *given])}) {{
    {known}
    {returned} made = {self.name}({", ".join(passed)});
    {stores}
    return 0;
}}
"""

    def function(self, modules: tuple[str, ...], what: str, statuses: Sequence[str],
                 notes: Sequence[str]) -> ScalarFunction:  # fmt: skip
        kinds = [number.llvm for number in self.results]
        return ScalarFunction(
            modules=modules,
            symbol=self.symbol,
            out=f"{{{', '.join(kinds)}}}",
            results=self.results,
            context=self.context,
            where=what,
            statuses=tuple(statuses),
            notes=tuple(notes),
        )


def _steps(formats: Formats) -> Iterator[_Step]:
    for name, (_, takes, gives) in _STEPS.items():
        yield _Step(name, getattr(formats, takes), getattr(formats, gives))


# ---- what clang's IR says ------------------------------------------------------------------------


def _found(pattern: str, text: str) -> str:
    """The first group, or "" where the pattern does not occur."""
    found = re.search(pattern, text)
    return found[1] if found else ""


class _Module:
    """IR with lines, as clang writes it."""

    def __init__(self, text: str) -> None:
        self.text = text

    @cached_property
    def functions(self) -> dict[str, str]:
        """Name -> head and body of each function that is defined."""
        return dict(re.findall(r"^define [^@]*@([\w.$]+)(\(.*?)^}", self.text, re.M | re.S))

    @cached_property
    def _nodes(self) -> dict[str, str]:
        return dict(re.findall(r"^(!\d+) = (.*)$", self.text, re.M))

    def _node(self, key: str, text: str) -> str:
        """What a node refers to."""
        return self._nodes.get(_found(rf"\b{key}:? (!\d+)", text), "")

    def line(self, ir: str) -> int:
        """The source line of a line of IR; 0: none."""
        node = self._node("dbg", ir)
        while node:
            node = self._node("var", node) or node  # a global's
            if line := int(_found(r"\bline: (\d+)", node) or 0):
                return line
            node = self._node("inlinedAt", node)
        return 0

    def head(self, name: str) -> str:
        """The first line of a function."""
        return self.functions[name].split("{\n", 1)[0]

    def arguments(self, name: str) -> int:
        """How many arguments the source gives a function."""
        kind = self._node("type", self._node("dbg", self.head(name)))
        return self._node("types", kind).count(",")

    def globals(self) -> Iterator[tuple[str, str, int]]:
        """Name, kind and line of the variables outside functions, but string constants."""
        pattern = r"^@([A-Za-z_][\w.$]*) = (.*?\b(?:global|constant)) .*$"
        for found in re.finditer(pattern, self.text, re.M):
            yield found[1].split(".")[-1], found[2], self.line(found[0])

    def first(self, pattern: str) -> int | None:
        """The source line of the first line of a function with a pattern; None: there is none."""
        for body in self.functions.values():
            for line in body.splitlines():
                if re.search(pattern, line):
                    return self.line(line)
        return None

    def circle(self) -> str | None:
        """A function that calls itself, at once or through others."""
        calls = {
            name: set(re.findall(r"\bcall [^@]*@([\w.$]+)\(", body)) & self.functions.keys()
            for name, body in self.functions.items()
        }
        while leaves := {name for name, called in calls.items() if not called}:
            calls = {name: calls[name] - leaves for name in calls.keys() - leaves}
        return min(calls, default=None)

    def cleaned(self, lines: bool) -> str:
        """Without target and attributes, with C's functions by their names in IR.

        Args:
            lines: whether instructions keep their lines.
        """
        text = re.sub(r"^(?:target|source_filename|\s*#dbg_).*\n", "", self.text, flags=re.M)
        if lines:
            text = re.sub(r", !(?!dbg\b)[\w.]+ !\d+", "", text)
            text = re.sub(r"^!llvm\.(?!dbg\.).*\n", "", text, flags=re.M)
            version = next(x for x, row in self._nodes.items() if '"Debug Info Version"' in row)
            text += f"\n!llvm.module.flags = !{{{version}}}\n"
        else:
            text = re.sub(r"^!.*\n", "", text, flags=re.M)
            text = re.sub(r"(?:, ![\w.]+ !\d+)+$", "", text, flags=re.M)
            text = re.sub(r" !dbg !\d+ \{$", " {", text, flags=re.M)
        text = re.sub(r"\b(?:noundef|dso_local) ", "", text)
        text = re.sub(r"^(attributes #\d+ =).*$", rf"\1 {_ATTRIBUTES}", text, flags=re.M)
        for name in _CALLS.keys() - self.functions.keys():
            text = re.sub(rf"@{name}(?=\()", f"@{_CALLS[name][2]}", text)
        declaration = r"(?m)^declare [^@]*@([^(]+)\(.*$"
        left = set(re.findall(declaration, text))

        def once(found: re.Match[str]) -> str:
            if found[1] not in left:  # rint and roundeven are one in IR
                return ""
            left.remove(found[1])
            return found[0]

        return defined(re.sub(declaration, once, text))


#: null is an address like others; there is no memcpy to be called; tables would be data
_ATTRIBUTES = '{ nounwind null_pointer_is_valid "no-builtins" "no-jump-tables"="true" }'
_RELAXED = r"\b(?:fast|nnan|ninf|nsz|arcp|contract|afn|reassoc) |@llvm\.(?:fmuladd|experimental)\."
_MOST_LINES = 5000  # of IR, of a function
_MOST_ARRAY = 64  # elements; all of a function are on the stack
#: in a line of a function -> what the author is told
_REFUSED = (
    (r"\basm\b", "it has assembly in it: write C, or use reduce_op.asm"),
    (r"alloca [^,]+, i\d+ %", "it allocates memory: use arrays of a constant size"),
    (_RELAXED, "a #pragma lets the compiler round otherwise: leave it out"),
    (r"\b(?:atomic\w*|cmpxchg|fence)\b", "it has atomics: leave them out, a call is alone"),
    (r"\bi128\b", "it uses __int128, which a core does not have: use int64_t"),
    (r"\b(?:load|store) volatile\b", "it uses volatile: leave it out, memory is the call's own"),
    (
        r"\bi(?!(?:1|8|16|32|64)\b)\d+\b",
        "it uses integers of a width that a core does not have (_BitInt, bit-fields): use int32_t",
    ),
    (r"<\d+ x ", "it uses vector types: write numbers, loops over items become vectors"),
    (r"\bfp128\b", "it uses long double, which a core does not have: use double"),
    (
        r"\bcall [^@(]*(?:%\d+|inttoptr[^@]*)\(",
        "it calls through a pointer: call a function by its name",
    ),
)


def _refused(module: _Module) -> tuple[int, str] | None:
    """Line and reason of something that an op cannot have."""
    if "\nmodule asm" in module.text:
        return 0, _REFUSED[0][1]
    for name, kind, line in module.globals():
        if "external" in kind:
            return line or module.first(rf"@{name}\b") or 0, f"{name} is not defined: define it"
        if name in ("global_ctors", "global_dtors", "used"):
            return 0, f"an __attribute__ needs llvm.{name}: leave it out"
        if "global" in kind:
            return line, f"{name} keeps its value between calls: make it const, or an argument"
    for body in module.functions.values():
        lines = body.splitlines()
        if len(lines) > _MOST_LINES:
            return module.line(lines[0]), f"it has {len(lines)} operations: use loops"
        for text in lines:
            if "alloca [" in text and prod(map(int, re.findall(r"\[(\d+) x", text))) > _MOST_ARRAY:
                return module.line(text), f"an array has over {_MOST_ARRAY} elements: use fewer"
    for pattern, why in _REFUSED:
        line_ = module.first(pattern)
        if line_ is not None:
            return line_, why
    if looping := module.circle():
        return module.line(module.head(looping)), f"{looping} calls itself: use a loop"
    known = {ir for _, _, ir in _CALLS.values()}
    for name in re.findall(r"^declare [^@]*@([\w.$]+)\(", module.text, re.M):
        if name not in _CALLS and name not in known and not _INTRINSICS.match(name):
            line_ = module.first(rf"@{re.escape(name)}\b")
            return line_ or 0, f"it uses {name}, which a core does not have: {_REMEDY}"
    return None


# ---- what the author is told ---------------------------------------------------------------------
#: a part of clang's message -> what it means here; the groups are filled in
_MEANINGS = (
    (r"call to undeclared (?:library )?function '(\w+)'",
     "it calls {0}, which a core does not have: " + _REMEDY),
    (r"'([^']+)' file not found",
     "there are no headers: leave #include {0} out; stdint.h's types and functions of math.h are "
     "there without"),
    (r"use of undeclared identifier '(\w+)'", "there is no {0}: declare it"),
    (r"variable length array", "it allocates memory: use arrays of a constant size"),
)  # fmt: skip


def _explained(text: str) -> str:
    for pattern, meaning in _MEANINGS:
        if found := re.search(pattern, text):
            return meaning.format(*found.groups())
    plain = re.sub(r" *\[-W.*", "", text)
    return f"{plain}: mend the source"


@dataclass(frozen=True)
class _Place:
    """What is compiled, for messages."""

    name: str
    file: str

    def at(self, line: int, step: str = "") -> str:
        of = f"{step} of {self.name}" if step else self.name
        return f"{of} ({self.file}:{line})" if line else f"{of} ({self.file})"


# ---- the door ------------------------------------------------------------------------------------
_FILE = "op.c"
_ADAPTERS = "adapters.c"


def line_of(source: str, path: str, line: int) -> str | None:
    """The text of a line of an op's source.

    Args:
        source: the op's.
        path, line: a place as functions compiled with lines have it.

    Returns:
        None: the place is not in the source, or the source numbers its lines itself.
    """
    if path.rpartition("/")[2] != _FILE or _RENUMBERED.search(_SPLICE.sub("", source)):
        return None
    return re.split(r"\r\n?|\n", source)[line - 1].strip()


_SPLICE = re.compile(r"(?:\\|\?\?/)[ \t\f\v]*\r?\n")
_BLANK = r"(?:[ \t\f\v]|/\*.*?\*/)*"
#: "#line 7", however it is spelled
_RENUMBERED = re.compile(rf"^{_BLANK}(?:#|%:|\?\?=){_BLANK}(?:line\b|\d)", re.M | re.S)


def _compiled(files: Mapping[str, str], main: str, place: _Place, steps: Sequence[_Step]
              ) -> tuple[_Module, list[Diagnostic]]:  # fmt: skip
    text, said = compile_c(files, main, place.name)
    for diagnostic in said:
        if diagnostic.kind == "error":
            if _MISTYPED in diagnostic.text:
                step = next(step for step in steps if step.line == diagnostic.line)
                raise OpError(f"{place.at(step.line, step.name)}: has another type: {step.wanted}")
            if "/" in diagnostic.file:
                raise OpError(included(place.name, diagnostic.file))
            line = diagnostic.line if diagnostic.file == _FILE else 0
            raise OpError(f"{place.at(line)}: {_explained(diagnostic.text)}")
    return _Module(text), said


def _there(module: _Module, formats: Formats, place: _Place) -> list[_Step]:
    """The steps that a source defines."""
    out = []
    for step in _steps(formats):
        if step.name not in module.functions:
            if step.name == "merge":
                raise OpError(f"{place.at(0)}: there is no merge that is not static: {step.wanted}")
            continue
        line, given = module.line(module.head(step.name)), module.arguments(step.name)
        letters = _STEPS[step.name][0]
        if given not in (len(letters), len(letters) + 1):
            raise OpError(f"{place.at(line, step.name)}: takes {given} arguments: {step.wanted}")
        returns = _found(rf"(?m)^define (?:\w+ )*?(double) @{step.name}\(", module.text)
        real = step.gives.scalar and step.gives.formats[0].kind == "float"
        out.append(
            replace(step, line=line, context=given > len(letters), double=bool(returns) and real)
        )
    return out


_TRAP = re.compile(r"call void @llvm\.(?:trap\(\)|ubsantrap\(i8 (\d+)\))(.*)")
_TRAPS = {
    "1": "__builtin_unreachable() is reached",
    "3": "division by zero",
    "18": "index outside of an array",
}  # clang's numbers
_STOPPED = re.compile(r"(?:tail )?call void @llvm\.ubsantrap\(i8 (\d+)\).*\n +unreachable")


def _numbered(module: _Module, place: _Place) -> tuple[_Module, list[str]]:
    """Every trap with a number of its own; and what each of them means."""
    meanings: list[str] = []

    def number(found: re.Match[str]) -> str:
        kind, rest = found.groups()
        what = _TRAPS.get(kind, "__builtin_trap()") if kind else "__builtin_trap()"
        text = f"{what} ({place.file}:{module.line(rest)})"
        if text not in meanings:
            meanings.append(text)
        return f"call void @llvm.ubsantrap(i8 {min(meanings.index(text), 255)}){rest}"

    text = re.sub(r"(?m)^declare void @llvm\.(?:ubsan)?trap\(.*$", "", module.text)
    text = _TRAP.sub(number, text)
    return _Module(f"{text}\ndeclare void @llvm.ubsantrap(i8 immarg)\n"), meanings


def compile_source(source: str, file: str, formats: Formats, name: str, lines: bool
                   ) -> dict[str, ScalarFunction]:  # fmt: skip
    """The functions of a C source.

    Args:
        source: C that defines merge, and lift and finish where they are no plain conversions.
        file: what it is called in messages.
        formats: what the functions take and give.
        name: of the op.
        lines: whether instructions say which line they are of, as :func:`line_of` takes it.

    Raises:
        OpError: it cannot be compiled for a core; the message says where, why and what to do.
        ImageError: ziglang is not installed.
    """
    for item in (formats.accumulator, formats.result):
        if words := [field for field, _ in item.fields if field in _RESERVED]:
            raise OpError(f"{name}: field {words[0]!r} is a word of C: use another name")
    place = _Place(name, file)
    files = {_FILE: source, "prelude.h": _prelude(formats)}
    module, said = _compiled(files, _FILE, place, ())
    steps = _there(module, formats, place)
    if refused := _refused(module):
        line, why = refused
        raise OpError(f"{place.at(line)}: {why}")
    files[_ADAPTERS] = f'#include "{_FILE}"\n' + "".join(step.adapter() for step in steps)
    module, _ = _compiled(files, _ADAPTERS, place, steps)
    statuses: dict[str, list[str]] = {}
    if _TRAP.search(module.text):
        module, meanings = _numbered(module, place)
        (text,) = branches_marked([module.cleaned(lines)])
        text = optimise([text, functions(text)], [step.symbol for step in steps], name)
        text, statuses = _returning(text, meanings)
    else:
        text = module.cleaned(lines)
    notes = sorted(
        {
            f"{place.at(d.line)}: computed in float64: write constants of float32, such as 0.5f"
            for d in said
            if "to 'double' [-Wdouble-promotion]" in d.text
        }
    )
    return {
        step.name: step.function(
            (text,) if step.name == "merge" else (),
            place.at(step.line, step.name),
            statuses.get(step.symbol, ()),
            notes if step.name == "merge" else (),
        )
        for step in steps
    }


def _returning(text: str, meanings: Sequence[str]) -> tuple[str, dict[str, list[str]]]:
    """Where a function stopped at a trap, it returns a status; what each function's mean."""
    statuses: dict[str, list[str]] = {}

    def function(found: re.Match[str]) -> str:
        own = statuses[found[1]] = sorted({meanings[int(x)] for x in _STOPPED.findall(found[0])})
        return _STOPPED.sub(lambda x: f"ret i32 {own.index(meanings[int(x[1])]) + 1}", found[0])

    return re.sub(r"(?ms)^define [^@]*@([\w.$]+)\(.*?^}", function, text), statuses
