"""Lines of source in IR, as debug information: from an op's functions to the kernels around them.

Owns: the metadata that LLVM turns into a table of lines, and how a line is shown.  It changes no
code; what is compiled is compile's, and the table is read there.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TypeAlias

__all__ = ["Places", "branches_marked", "known_places", "shown", "with_lines"]

_LOCATION = re.compile(
    r"^!(\d+) = !DILocation\(line: (\d+),(?: column: (\d+),)? scope: !(\d+)", re.M
)
_NODE = re.compile(r"^!(\d+) = (?:distinct )?!(\w+)\((.*)\)$", re.M)
_INSTRUCTION = re.compile(r"\s+(%\S+ = |store |br |ret |(tail )?call |switch |unreachable)")
_DEFINE = re.compile(r"^define [^@]*@([\w.]+)\(", re.M)
_VERSIONS = {"Debug Info Version": 3, "Dwarf Version": 4}
_FIRST = 100_000  # number of the first node of metadata; the kernels' own are below


_BRANCH = 65535  # column of a branch's location
_LEAVES = re.compile(r"^(?P<rest>\s+(?:(?:br|ret|switch)\b.*|\])), !dbg !(?P<number>\d+)$", re.M)
_COMPUTES = re.compile(r"^\s+%.* = .*, !dbg !(\d+)$", re.M)


def branches_marked(modules: Sequence[str]) -> tuple[str, ...]:
    """The modules of a function, with locations of their own for branches.

    LLVM gives a branch's location to all that it computes before it instead of behind it.  That
    may be another line than the author's: :func:`known_places` leaves it out.  A single module in
    which all that computes is of one line stays as it is.
    """
    if len(modules) == 1 and len(set(_COMPUTES.findall(modules[0]))) == 1:
        return tuple(modules)
    return tuple(map(_marked, modules))


def _marked(module: str) -> str:
    nodes: dict[str, str] = dict(re.findall(r"^!(\d+) = (!DILocation\(.*\))$", module, re.M))
    added: dict[str, str] = {}

    def marked(found: re.Match[str]) -> str:
        number = found["number"]
        added[number] = re.sub(r"column: \d+", f"column: {_BRANCH}", nodes[number])
        return f"{found['rest']}, !dbg !{_FIRST + int(number)}"

    text = _LEAVES.sub(marked, module)
    return "\n".join([text, *(f"!{_FIRST + int(n)} = {node}" for n, node in added.items()), ""])


def _places(debug: str, branches: bool = False) -> dict[str, tuple[str, int]]:
    """Number of a location in a module -> file and line; branches: of these, too."""
    nodes = {number: text for number, _, text in _NODE.findall(debug)}

    def named(number: str, key: str) -> str:
        found = re.search(rf"\b{key}: (?:!(\d+)|\"([^\"]*)\")", nodes[number])
        return (found[1] or found[2]) if found else ""

    out = {}
    for number, line, column, scope in _LOCATION.findall(debug):
        if int(column or 0) == _BRANCH and not branches:
            continue
        file = named(scope, "file")
        out[number] = (f"{named(file, 'directory')}/{named(file, 'filename')}", int(line))
    return out


def _functions(module: str) -> dict[str, list[str]]:
    """Name -> its lines, from define to the brace that ends it."""
    out = {}
    for found in _DEFINE.finditer(module):
        end = module.index("\n}", found.start())
        out[found[1]] = module[found.start() : end].splitlines()
    return out


def _key(line: str) -> str:
    """An instruction's result, which its function names once; else its text."""
    text = re.sub(r", !dbg !\d+", "", line).strip()
    if not text.startswith("%"):
        return text
    name = text.split(" = ")[0]
    return name if "/" in name else name.replace('"', "")


def _instructions(lines: Sequence[str]) -> list[str]:
    """Those of a function, without what only debuggers read."""
    return [x for x in lines[1:] if x.strip() and not x.lstrip().startswith("#dbg_")]


def _alike(a: Sequence[str], b: Sequence[str]) -> bool:
    """Are two lists of instructions the same, but for locations and the names of values?"""

    def plain(lines: Sequence[str]) -> str:
        names: dict[str, str] = {}
        text = re.sub(r", !\w+ !\d+", "", "\n".join(lines))  # metadata has other numbers
        return re.sub(
            r'%(?:"[^"]*"|[\w.$-]+)|^(?:"[^"]*"|[\w.$-]+)(?=:)',
            lambda x: names.setdefault(x[0].lstrip("%"), f"%{len(names)}"),
            text,
            flags=re.M,
        )

    return plain(a) == plain(b)


_NARROWED = re.compile(
    r"%\S+ = (?:tail )?(?:(f(?:add|sub|mul|div|neg)) (?:half|bfloat)\b|"
    r"call (?:half|bfloat) @(llvm\.\w+)\.b?f16\()"
)
_WIDE = re.compile(
    r"%\S+ = (?:tail )?(?:(f(?:add|sub|mul|div|neg)) float\b|call float @(llvm\.\w+)\.f32\()"
)


def _narrowed(
    line: str, alone: Sequence[str], places: Mapping[str, tuple[str, int]]
) -> tuple[str, int] | None:
    """Of an operation that LLVM computes in 16 bits, since what it gives is rounded to that.

    It loses the place on the way.  All that computes in 16 bits was the author's: where each such
    operation of his, in float32, is of one line, that is its place.
    """
    found = _NARROWED.match(line.strip())
    if not found:
        return None
    wide = {
        places.get(_number(x))
        for x in alone
        if (other := _WIDE.match(x.strip())) and other.groups() == found.groups()
    }
    return wide.pop() if len(wide) == 1 else None


def _number(line: str) -> str:
    """Of a line's location; "" where it has none."""
    found = re.search(r", !dbg !(\d+)", line)
    return found[1] if found else ""


class _Metadata:
    """Nodes that are added to a module."""

    def __init__(self) -> None:
        self.nodes: list[str] = []
        self._known: dict[str, str] = {}

    def add(self, text: str) -> str:
        """The node of that text, for all who ask."""
        if text not in self._known:
            self._known[text] = f"!{_FIRST + len(self.nodes)}"
            self.nodes.append(f"{self._known[text]} = {text}")
        return self._known[text]

    def file(self, path: str) -> str:
        directory, _, name = path.rpartition("/")
        return self.add(f'!DIFile(filename: "{name}", directory: "{directory}")')

    def function(self, name: str) -> str:
        """What a function's lines are in."""
        file = self.file("/kernels")
        unit = self.add(
            f"distinct !DICompileUnit(language: DW_LANG_C, file: {file}, "
            "emissionKind: LineTablesOnly)"
        )
        kind = self.add(f"!DISubroutineType(types: {self.add('!{}')})")
        return self.add(
            f'distinct !DISubprogram(name: "{name}", scope: {file}, file: {file}, unit: {unit}, '
            f"type: {kind}, spFlags: DISPFlagDefinition)"
        )

    def location(self, scope: str, place: tuple[str, int] | None) -> str:
        if place is None:
            return self.add(f"!DILocation(line: 0, scope: {scope})")
        path, line = place
        file = self.file(path)
        block = self.add(f"!DILexicalBlockFile(scope: {scope}, file: {file}, discriminator: 0)")
        return self.add(f"!DILocation(line: {line}, scope: {block})")

    def text(self) -> str:
        unit = next(node.split(" = ")[0] for node in self.nodes if "DICompileUnit" in node)
        # DWARF 4 keeps the names of files in the table itself, not in a string section
        flags = [self.add(f'!{{i32 2, !"{name}", i32 {n}}}') for name, n in _VERSIONS.items()]
        named = f"!llvm.dbg.cu = !{{{unit}}}\n!llvm.module.flags = !{{{', '.join(flags)}}}\n"
        return "\n".join(["", *self.nodes, named])


def shown(file: str, line: int, text: str) -> str:
    """A line of source beside an instruction: ``sum.py:7: return a + b``."""
    return f"{file}:{line}: {text}" if text else f"{file}:{line}"


#: instructions that branches become
_CHOOSES = re.compile(r"\s+(?:%\S+ = (?:select|phi) |br |switch )")
#: function -> its instruction, as _key says -> file and line
Places: TypeAlias = Mapping[str, Mapping[str, tuple[str, int]]]


def known_places(ir: str, plain: str, debug: str, alone: Mapping[str, str]) -> Places:
    """Of which of the author's lines the instructions of an op's functions are.

    A function that LLVM compiles to other instructions with locations than without has none, nor
    has what is computed before a branch instead of behind it.

    Args:
        ir: the op's functions.
        plain: the same as LLVM left them; values have the same names.
        debug: these, compiled with locations, as ``!dbg`` of instructions, branches marked.
        alone: step -> the author's function with locations, without conversions around it.
    """
    places, all_places = _places(debug), _places(debug, branches=True)
    located = _functions(debug)
    known: dict[str, dict[str, tuple[str, int]]] = {}
    for name, lines in _functions(plain).items():
        instructions, others = _instructions(lines), _instructions(located[name])
        if _alike(instructions, others):
            pairs = zip(instructions, others, strict=True)
            found = (
                (_key(a), (all_places if _CHOOSES.match(a) else places).get(_number(b)))
                for a, b in pairs
            )
            known[name] = {key: place for key, place in found if place is not None}
    for step, module in alone.items():
        (own,) = _functions(module).values()
        for line in _functions(ir)[f"op.{step}"]:
            place = _narrowed(line, own, _places(module))
            if place is not None:
                known.setdefault(f"op.{step}", {}).setdefault(_key(line), place)
    return known


#: an instruction of one of the op's functions within a kernel
_INLINED = re.compile(r'%"[^/"]+/(op\.\w+)/([^"]+)"')


def with_lines(module: str, known: Places) -> str:
    """A module with a scope for each function and a place for each instruction.

    Args:
        module: the op's functions, or kernels; instructions of functions in a kernel are named
            ``%"call/op.step/name"``.
        known: places; what is not there is of line 0, nobody's.
    """
    metadata = _Metadata()
    out: list[str] = []
    inside = scope = ""
    for line in module.splitlines():
        if found := _DEFINE.match(line):
            inside = found[1]
            scope = metadata.function(inside)
        if inside and line.endswith("{"):
            line = f"{line[:-1]}!dbg {scope} {{"
        elif line.startswith("}"):
            inside = ""
        elif inside and _INSTRUCTION.match(line) and not line.endswith("["):  # a switch's first
            key = _key(line)
            function = inside
            if inlined := _INLINED.fullmatch(key):
                function, key = inlined[1], f"%{inlined[2]}"
            place = known.get(function, {}).get(key)
            line += f", !dbg {metadata.location(scope, place)}"
        out.append(line)
    return "\n".join([*out, metadata.text()])
