"""Kernels' loops over vectors: the form in which LLVM's vectoriser would leave them.

Owns: which instructions a vector does item by item, and the loop around them, which takes as many
items as the core grants.  What is not known here is left to LLVM's vectoriser, which takes longer
than all the rest of a compilation.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from nicemu.compiler.scalar import ScalarOp

__all__ = ["VectorLoop", "vector_loop", "vector_module"]


@dataclass(frozen=True)
class VectorLoop:
    """A kernel whose loop is over vectors, with the op's functions in it.

    Attributes:
        text: its definition.
        declarations: of the intrinsics that it calls.
        registers: about how many of the 32 vector registers it needs.
    """

    text: str
    declarations: frozenset[str]
    registers: int


# ---- instructions --------------------------------------------------------------------------------
_BITS = {"double": 64, "float": 32, "bfloat": 16, "half": 16}
_TYPE = rf"(?:{'|'.join(_BITS)}|i\d+)"
_KIND = re.compile(_TYPE)
_NAME = r"%(?:[\w.$-]+|\"[^\"]+\")"
_FLAGS = r"(?:(?:nuw|nsw|exact|disjoint|nneg|samesign) )*"
_DIVISIONS = ("sdiv", "udiv", "srem", "urem")
_VERBS = "add|sub|mul|and|or|xor|shl|lshr|ashr|fadd|fsub|fmul|fdiv|fneg|freeze"
_SAME = re.compile(  # operands of one type
    rf"(?P<verb>(?:{_VERBS}|{'|'.join(_DIVISIONS)}) {_FLAGS}|icmp {_FLAGS}\w+ |fcmp \w+ )"
    rf"(?P<kind>{_TYPE}) (?P<operands>.+)"
)
_CAST = re.compile(
    r"(?P<verb>(?:fpext|fptrunc|sitofp|uitofp|fptosi|fptoui|zext|sext|trunc|bitcast) "
    rf"{_FLAGS})(?P<kind>{_TYPE}) (?P<operand>\S+) to (?P<to>{_TYPE})"
)
_SELECT = re.compile(
    rf"select i1 (?P<test>[^,]+), (?P<kind>{_TYPE}) (?P<yes>[^,]+), {_TYPE} (?P<no>[^,]+)"
)
_CALL = re.compile(
    rf"(?:tail )?call (?:range\([^()]*\) )?(?P<to>{_TYPE}) @llvm\.(?P<verb>[a-z.]+)"
    r"(?P<suffix>(?:\.(?:i|f|bf)\d+)+)\((?P<arguments>.*)\)"
)
_ITEMWISE = {
    "fabs", "sqrt", "fma", "floor", "ceil", "trunc", "roundeven", "copysign", "maximum", "minimum",
    "maximumnum", "minimumnum", "smax", "smin", "umax", "umin", "sadd.sat", "uadd.sat", "ssub.sat",
    "usub.sat", "fptosi.sat", "fptoui.sat", "fshl", "fshr", "abs", "ctlz", "cttz", "is.fpclass",
}  # fmt: skip
_CONSTANT_LAST = {"abs", "ctlz", "cttz", "is.fpclass"}  # not an item's
_STRUCT = rf"(?P<kinds>\{{[^{{}}]*\}}) (?P<struct>{_NAME}|\w+|\{{[^{{}}]*\}})"
_INSERT = re.compile(rf"insertvalue {_STRUCT}, {_TYPE} (?P<value>\S+), (?P<at>\d+)")
_EXTRACT = re.compile(rf"extractvalue {_STRUCT}, (?P<at>\d+)")
_RETURN = re.compile(rf"ret {_STRUCT}")
_STEP = re.compile(r"call \{.*?\} @op\.(\w+)\((.*)\)")
_PLACE = re.compile(rf"getelementptr inbounds {_TYPE}, ptr {_NAME}, i64 %i")
_MEMORY = rf", ptr (?P<place>{_NAME}), (?P<align>align \d+)(?P<scopes>.*)"
_LOAD = re.compile(rf"load (?P<kind>{_TYPE}){_MEMORY}")
_STORE = re.compile(rf"store (?P<kind>{_TYPE}) (?P<value>\S+){_MEMORY}")
_ELEMENT = "%element = add i64 %ctx.element, %i"


class _Unknown(Exception):
    """An instruction that is not known here."""


@dataclass(frozen=True)
class _Value:
    """An operand: the same for all items, or a vector of them."""

    text: str
    vector: bool = False


@dataclass
class _Scope:
    """The names of a kernel, or of one of the op's functions where it is called.

    Attributes:
        prefix: of the names that its own get.
        values: name -> what stands for it.
        fields: name of a struct -> its fields.
    """

    prefix: str = ""
    values: dict[str, _Value] = field(default_factory=dict)
    fields: dict[str, list[_Value]] = field(default_factory=dict)

    def value(self, text: str) -> _Value:
        return self.values.get(text, _Value(text))

    def struct(self, found: re.Match[str]) -> list[_Value]:
        text = found["struct"]
        if text.startswith("{"):
            return [_Value(part.rpartition(" ")[2]) for part in text[1:-1].strip().split(", ")]
        if not text.startswith("%"):  # poison, or zeros
            return [_Value(text)] * (found["kinds"].count(",") + 1)
        return list(self.fields[text])

    def renamed(self, name: str) -> str:
        return f'%"{self.prefix}{name[1:].strip(chr(34))}"' if self.prefix else name


class _Loop:
    """The loop of a kernel, line by line."""

    def __init__(self, op: ScalarOp, lanes: int, before: Sequence[str]) -> None:
        self.op = op
        self.lanes = lanes
        self.before = list(before)  # what is the same for all items
        self.lines: list[str] = []
        self.declarations: set[str] = set()
        self.registers: dict[str, int] = {}  # of each vector
        self._splats: dict[tuple[str, str], str] = {}

    def kind(self, scalar: str) -> str:
        return f"<vscale x {self.lanes} x {scalar}>"

    def mangled(self, scalar: str) -> str:
        short = {"bfloat": "bf16"}.get(scalar, f"f{_BITS[scalar]}") if scalar in _BITS else scalar
        return f"nxv{self.lanes}{short}"

    def splat(self, text: str, kind: str) -> tuple[str, ...]:
        """The lines that make a vector of one number, the last of which gives it."""
        vector = self.kind(kind)
        return (
            f"insertelement {vector} poison, {kind} {text}, i64 0",
            f"shufflevector {vector} {{}}, {vector} poison, {self.kind('i32')} zeroinitializer",
        )

    def operand(self, value: _Value, kind: str) -> str:
        """What it is called where a vector is wanted, without its type."""
        if value.vector or value.text in ("poison", "zeroinitializer"):
            return value.text
        if not value.text.startswith("%"):
            return f"splat ({kind} {value.text})"
        if (value.text, kind) not in self._splats:
            name = f"%splat.{len(self._splats)}"
            self._splats[value.text, kind] = name
            one, all_ = self.splat(value.text, kind)
            self.before += [f"{name}.one = {one}", f"{name} = {all_.format(name + '.one')}"]
        return self._splats[value.text, kind]

    def call(self, to: str, name: str, given: Sequence[tuple[str, str]]) -> str:
        """A call of an intrinsic with arguments of these types."""
        kinds = ", ".join(
            kind.partition(" ")[0] if kind[:3] == "ptr" else kind for kind, _ in given
        )
        self.declarations.add(f"declare {to} @{name}({kinds})")
        return f"call {to} @{name}({', '.join(f'{kind} {value}' for kind, value in given)})"

    def add(self, scope: _Scope, name: str, kind: str, one: str, vector: str) -> None:
        """A line that computes: on vectors, if there is one, or before the loop."""
        new = scope.renamed(name)
        (self.lines if vector else self.before).append(f"{new} = {vector or one}")
        scope.values[name] = _Value(new, bool(vector))
        if vector:
            bits = _BITS.get(kind) or int(kind[1:])
            self.registers[new] = max(self.lanes * bits // 64, 1)

    def line(self, line: str, scope: _Scope) -> None:
        """One line of the loop, or of a function that it calls."""
        name, _, text = line.rpartition(" = ") if line.startswith("%") else ("", "", line)
        if found := _INSERT.fullmatch(text):
            row = scope.struct(found)
            row[int(found["at"])] = scope.value(found["value"])
            scope.fields[name] = row
        elif found := _EXTRACT.fullmatch(text):
            scope.values[name] = scope.struct(found)[int(found["at"])]
        elif found := _STEP.fullmatch(text):
            arguments = [argument.rpartition(" ")[2] for argument in found[2].split(", ")]
            given = [scope.value(argument) for argument in arguments]
            scope.fields[name] = self.step(f"{name[1:]}/op.{found[1]}/", found[1], given)
        elif line == _ELEMENT:
            scope.values[name] = _Value(name, vector=True)
        elif _PLACE.fullmatch(text):
            self.lines.append(line)
        elif (found := _LOAD.fullmatch(text)) or (found := _STORE.fullmatch(text)):
            self.memory(found, name, scope)
        elif not name or not self.computed(text, name, scope):
            raise _Unknown(line)

    def memory(self, found: re.Match[str], name: str, scope: _Scope) -> None:
        """A load or a store of the items that there are."""
        kind = found["kind"]
        row = self.kind(kind)
        where = [
            (f"ptr {found['align']}", found["place"]),
            (self.kind("i1"), "splat (i1 true)"),
            ("i32", "%vl"),
        ]
        if name:
            call = self.call(row, f"llvm.vp.load.{self.mangled(kind)}.p0", where)
            self.add(scope, name, kind, "", call + found["scopes"])
        else:
            value = self.operand(scope.value(found["value"]), kind)
            where.insert(0, (row, value))
            call = self.call("void", f"llvm.vp.store.{self.mangled(kind)}.p0", where)
            self.lines.append(call + found["scopes"])

    def computed(self, text: str, name: str, scope: _Scope) -> bool:
        """An instruction that computes; False: it is none that is known."""
        if found := _SAME.fullmatch(text):
            kind, verb = found["kind"], found["verb"]
            given = [scope.value(x) for x in found["operands"].split(", ")]
            if verb.startswith(_DIVISIONS) and not re.fullmatch(r"[2-9]|\d\d+", given[1].text):
                return False  # what the lanes beyond the end hold may be 0
            vectors = ", ".join(self.operands(given, [kind] * len(given)))
            one = f"{verb}{kind} {', '.join(x.text for x in given)}"
            to = "i1" if verb[1:4] == "cmp" else kind
            self.add(scope, name, to, one, vectors and f"{verb}{self.kind(kind)} {vectors}")
        elif found := _CAST.fullmatch(text):
            kind, verb, to = found["kind"], found["verb"], found["to"]
            value = scope.value(found["operand"])
            vectors = ", ".join(self.operands([value], [kind]))
            one = f"{verb}{kind} {value.text} to {to}"
            vector = f"{verb}{self.kind(kind)} {vectors} to {self.kind(to)}"
            self.add(scope, name, to, one, vectors and vector)
        elif found := _SELECT.fullmatch(text):
            kind, test = found["kind"], scope.value(found["test"])
            yes, no = scope.value(found["yes"]), scope.value(found["no"])
            one = f"select i1 {test.text}, {kind} {yes.text}, {kind} {no.text}"
            vector = ""
            if test.vector or yes.vector or no.vector:
                head = f"select {self.kind('i1') if test.vector else 'i1'} {test.text}"
                rows = [f"{self.kind(kind)} {self.operand(value, kind)}" for value in (yes, no)]
                vector = ", ".join([head, *rows])
            self.add(scope, name, kind, one, vector)
        elif (found := _CALL.fullmatch(text)) and found["verb"] in _ITEMWISE:
            to, verb, suffix = found["to"], f"llvm.{found['verb']}", found["suffix"]
            pairs = [argument.rpartition(" ") for argument in found["arguments"].split(", ")]
            fixed = [(pairs[-1][0], pairs.pop()[2])] if found["verb"] in _CONSTANT_LAST else []
            kinds = [kind for kind, _, _ in pairs]
            if not all(map(_KIND.fullmatch, kinds)):  # it says more of an argument
                return False
            given = [scope.value(value) for _, _, value in pairs]
            if rows := self.operands(given, kinds):
                verb += suffix.replace(".", f".nxv{self.lanes}")
                many = [*zip(map(self.kind, kinds), rows, strict=True), *fixed]
                self.add(scope, name, to, "", self.call(self.kind(to), verb, many))
            else:
                many = [*zip(kinds, (value.text for value in given), strict=True), *fixed]
                self.add(scope, name, to, self.call(to, verb + suffix, many), "")
        else:
            return False
        return True

    def operands(self, given: Sequence[_Value], kinds: Sequence[str]) -> list[str]:
        """All as vectors; none where none is one."""
        if not any(value.vector for value in given):
            return []
        return [self.operand(value, kind) for value, kind in zip(given, kinds, strict=True)]

    def step(self, prefix: str, step: str, given: Sequence[_Value]) -> list[_Value]:
        """One of the op's functions where it is called; what it returns, field by field."""
        *lines, last = self.op.bodies[step]
        arguments = self.op.arguments[step]
        own = _Scope(prefix, dict(zip(arguments, given, strict=True)))
        for line in lines:
            self.line(line, own)
        if (found := _RETURN.fullmatch(last)) is None:
            raise _Unknown(last)
        return own.struct(found)


_ANY_NAME = re.compile(_NAME)
_ADDEND = re.compile(r"@llvm\.fma\..*(splat \([^()]*\))\)$")


def _needed(loop: _Loop) -> int:
    """Registers: of what is live at a time in the order of lines, and of constants to be added."""
    uses = [[x for x in _ANY_NAME.findall(line) if x in loop.registers] for line in loop.lines]
    last = {name: at for at, names in enumerate(uses) for name in names}
    live = most = 0
    for at, names in enumerate(uses):
        live += loop.registers[names[0]] if " = " in loop.lines[at] and names else 0
        most = max(most, live)
        live -= sum(loop.registers[name] for name in set(names) if last[name] == at)
    addends = {found[1] for line in loop.lines if (found := _ADDEND.search(line))}
    return most + len(addends) * max(loop.lanes * _BITS["float"] // 64, 1)


# ---- kernels -------------------------------------------------------------------------------------
_KERNEL = re.compile(
    r"(?P<head>define .*?\nbegin:\n)(?P<before>.*?)  br label %loop\nloop:\n"
    r"  %i = phi i64 \[0, %begin\], \[%next, %loop\]\n(?P<lines>.*?)"
    r"  %next = add nuw i64 %i, 1\n  %more = [^\n]*\n  br i1 %more, [^\n]*\n"
    r"(?P<tail>done:\n  ret i64 0\n\}\n)",
    re.S,
)


def vector_loop(op: ScalarOp, kernel: str, lanes: int) -> VectorLoop | None:
    """A kernel with its loop over vectors.

    Args:
        op: the functions that it calls.
        kernel: its definition, with a loop over single items.
        lanes: items of a vector, by vscale.

    Returns:
        None: something in it is known to LLVM's vectoriser only.
    """
    found = _KERNEL.fullmatch(kernel)
    if found is None:
        return None
    loop = _Loop(op, lanes, [line.strip() for line in found["before"].splitlines()])
    scope = _Scope()
    try:
        for line in found["lines"].splitlines():
            loop.line(line.strip(), scope)
    except _Unknown:
        return None
    text = found["head"] + _written(loop) + found["tail"]
    return VectorLoop(text, frozenset(loop.declarations), _needed(loop))


def _written(loop: _Loop) -> str:
    """From before the loop to its end: it takes of the items that are left until none is."""
    given = [("i64", "%left"), ("i32", str(loop.lanes)), ("i1", "true")]
    granted = loop.call("i32", "llvm.experimental.get.vector.length.i64", given)
    head: list[str] = []
    places: list[str] = []
    after: list[str] = []
    if any("%element" in line for line in loop.lines):
        kind = loop.kind("i64")
        first = loop.operand(_Value("%ctx.element"), "i64")
        one, all_ = loop.splat("%step", "i64")
        loop.before.append(
            f"%places = {loop.call(kind, f'llvm.stepvector.nxv{loop.lanes}i64', [])}"
        )
        head = [f"%items = phi {kind} [%places, %begin], [%items.next, %loop]"]
        places = [f"%element = add {kind} {first}, %items"]
        after = [
            f"%step.one = {one}",
            f"%step.all = {all_.format('%step.one')}",
            f"%items.next = add {kind} %items, %step.all",
        ]
    lines = [
        *loop.before,
        "br label %loop\nloop:",
        "%i = phi i64 [0, %begin], [%next, %loop]",
        "%left = phi i64 [%n, %begin], [%less, %loop]",
        *head,
        f"%vl = {granted}",
        *places,
        *loop.lines,
        "%step = zext i32 %vl to i64",
        "%next = add i64 %step, %i",
        "%less = sub nuw i64 %left, %step",
        *after,
        "%all = icmp eq i64 %less, 0",
        "br i1 %all, label %done, label %loop\n",
    ]
    return "  " + "\n  ".join(lines)


def vector_module(loops: Iterable[VectorLoop], metadata: str) -> str:
    """A module of kernels that stands alone; metadata: that they refer to."""
    rows = list(loops)
    declarations = sorted(set[str]().union(*(loop.declarations for loop in rows)))
    return "\n".join([*declarations, *(loop.text for loop in rows), metadata])
