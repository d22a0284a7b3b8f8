"""Reduce ops as their authors write them: Python functions over numbers.

Owns: the decorator, the op's object, its types, and what is checked when it is defined.  Nothing is
compiled before an image is asked for; how that is done is compile's, the front ends' and kernel's
affair.
"""

from __future__ import annotations

import inspect
import linecache
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FunctionType
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, Self, TypeAlias, overload

import numpy as np

from nicemu.arguments import whole
from nicemu.compiler.compile import (
    Code,
    FunctionSource,
    compile_functions,
    compile_image,
    source_lines,
)
from nicemu.compiler.fingerprint import fingerprint
from nicemu.compiler.lines import shown
from nicemu.compiler.target import EVERY, Target, target_of
from nicemu.device.image import NAME, NAMES, Formats, KernelImage, preset_formats
from nicemu.dtypes import Format, Item, ItemSpec, format_of, item_of
from nicemu.errors import ArgumentError, ImageError, OpError
from nicemu.files import refuse

if TYPE_CHECKING:
    from nicemu.compiler.host import HostKernels
    from nicemu.compiler.scalar import ScalarFunction
    from nicemu.device.image import Context
    from nicemu.device.listing import Listing
    from nicemu.device.machine import Machine
    from nicemu.ops.check import Check
    from nicemu.ops.cost import Cost
    from nicemu.ops.trace import Trace
    from nicemu.order import Order

__all__ = ["ReduceOp", "reduce_op"]

#: what an op is for: one format, or several among which it is open
Elements: TypeAlias = "str | np.dtype | type | Format | Sequence[str | np.dtype | type | Format]"

#: step -> names of its arguments; the context may follow
STEPS: dict[str, tuple[str, ...]] = {"lift": ("x",), "merge": ("a", "b"), "finish": ("a",)}


# ---- the functions -------------------------------------------------------------------------------


def _checked(step: str, function: object) -> FunctionType:
    """The function of a step, if it can be one.

    Raises:
        OpError: it is no plain Python function of the right arguments.
    """
    function = getattr(function, "py_func", function)  # of @numba.njit
    if not isinstance(function, FunctionType):
        raise OpError(f"{step}: is {type(function).__name__}: use a Python function")
    where = f"{step} {function.__name__}"
    code = function.__code__
    takes = ", ".join(STEPS[step])
    odd = inspect.CO_VARARGS | inspect.CO_VARKEYWORDS
    extra = code.co_argcount - len(STEPS[step])
    if (
        code.co_flags & odd
        or code.co_kwonlyargcount
        or function.__defaults__
        or extra not in (0, 1)
    ):
        names = ", ".join(inspect.signature(function).parameters)
        raise OpError(f"{where}({names}): write {step}({takes}) or {step}({takes}, ctx)")
    if code.co_flags & (inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR):
        raise OpError(f"{where}: is a generator or coroutine: use return, and no yield or await")
    return function


class _Named(FunctionSource, Protocol):
    name: str


class _Functions:
    """What sources of functions share: from functions to code it is the same way."""

    def code(self: _Named, formats: Formats, target: Target) -> Code:
        """See compile.Source."""
        return compile_functions(self.name, self, formats, target)

    def lines(self: _Named, formats: Formats, code: bytes, target: Target) -> Mapping[int, str]:
        """See compile.Source."""
        return source_lines(self.name, self, formats, code, target)


@dataclass
class _PythonSource(_Functions):
    """The functions of an op in Python."""

    name: str
    functions_: dict[str, FunctionType]

    @property
    def finishes(self) -> bool:
        """See compile.Source."""
        return "finish" in self.functions_

    def key(self) -> Hashable:
        """See compile.Source."""
        functions = sorted(self.functions_.items())
        return ("python", tuple((step, fingerprint(function)) for step, function in functions))

    def functions(self, formats: Formats, lines: bool = False) -> Mapping[str, ScalarFunction]:
        """See compile.Source."""
        try:
            from nicemu.compiler.python_ir import compile_function
        except ImportError as error:
            raise ImageError(f"numba cannot be imported ({error}): pip install numba") from error
        takes: dict[str, list[Item]] = {
            "lift": [formats.element],
            "merge": [formats.accumulator, formats.accumulator],
            "finish": [formats.accumulator],
        }
        return {
            step: compile_function(
                function,
                takes[step],
                formats.accumulator,
                function.__code__.co_argcount > len(takes[step]),
                f"{step} of {self.name}",
                lines,
            )
            for step, function in self.functions_.items()
        }

    def line(self, path: str, line: int) -> str:
        """See compile.FunctionSource."""
        return shown(Path(path).name, line, linecache.getline(path, line).strip())


@dataclass(frozen=True)
class _Text:
    """A source that is a text, and the name of its op and of its file."""

    language: ClassVar[str]
    suffix: ClassVar[str]
    name: str
    text: str
    file: str
    finishes: bool = False

    @classmethod
    def read(cls, source: str | Path, name: str | None) -> Self:
        """See :meth:`_Maker.c`, also for what it raises."""
        text, file = _read(source)
        if name is None:
            name = Path(file).stem if file else cls.language
        return cls(name, text, file or f"{name}{cls.suffix}")

    def key(self) -> Hashable:
        """See compile.Source."""
        from nicemu.compiler.clang import RECIPE

        return (self.language, RECIPE, self.text, self.file)


class _CSource(_Text, _Functions):
    """A text in C."""

    language = "c"
    suffix = ".c"

    def functions(self, formats: Formats, lines: bool = False) -> Mapping[str, ScalarFunction]:
        """See compile.Source."""
        from nicemu.compiler.c_ir import compile_source

        return compile_source(self.text, self.file, formats, self.name, lines)

    def line(self, path: str, line: int) -> str:
        """See compile.FunctionSource."""
        from nicemu.compiler.c_ir import line_of

        text = line_of(self.text, path, line)
        return "" if text is None else shown(self.file, line, text)


class _AssemblySource(_Text):
    """A text in assembly, for formats that do not change."""

    language = "asm"
    suffix = ".s"

    def code(self, formats: Formats, target: Target) -> Code:
        """See compile.Source."""
        from nicemu.compiler.assembly import assemble

        return assemble(self.text, self.file, self.name, target)

    def lines(self, formats: Formats, code: bytes, target: Target) -> Mapping[int, str]:
        """See compile.Source."""
        from nicemu.compiler.assembly import lines

        return lines(self.text, self.file, self.name)


# ---- the op --------------------------------------------------------------------------------------


def _resolved(spec: Any, element: Format) -> Item:
    """An item of which formats may be "element"."""
    if isinstance(spec, str) and spec == "element":
        return item_of(element)
    if isinstance(spec, list | tuple):
        return item_of([_with_element(part, element) for part in spec])
    return item_of(spec)


def _with_element(part: Any, element: Format) -> Any:
    if isinstance(part, list | tuple):
        return [*part[:-1], _with_element(part[-1], element)]
    return element if isinstance(part, str) and part == "element" else part


class ReduceOp:
    """A reduce op: lift, merge and finish, and the types they work on.

    Made by :func:`reduce_op`.  Attributes:

        name: of the op.
        elements: formats of the workers' elements that it is for; empty: any.
        element: the only one of them; None: there are several.
        preset: of the numerics, where a call names none.
    """

    def __init__(
        self,
        name: str,
        source: FunctionSource | _AssemblySource,
        *,
        element: Elements | None = None,
        accumulator: ItemSpec | None = None,
        partial: ItemSpec | None = None,
        result: ItemSpec | None = None,
        preset: str = "wide",
    ) -> None:
        """See :func:`reduce_op`; ``source`` is where its functions come from."""
        if not (isinstance(name, str) and NAME.fullmatch(name)):
            raise ArgumentError(f"name {name!r} of a reduce op: pass name=, {NAMES}")
        self.name = name
        listed: Sequence[Any] = element if isinstance(element, list | tuple) else [element]
        self.elements = tuple(format_of(row) for row in listed if element is not None)
        self.element = self.elements[0] if len(self.elements) == 1 else None
        self.preset = preset
        self._source: FunctionSource | _AssemblySource = source
        self._types = {"accumulator": accumulator, "partial": partial, "result": result}
        self._images: dict[object, KernelImage] = {}
        for spec in self._types.values():
            if spec is not None:
                _resolved(spec, self.elements[0] if self.elements else format_of("float32"))
        preset_formats("float32", preset)

    def __repr__(self) -> str:
        """Its name and what is said of its types."""
        said = {"element": self._for or None, **self._types, "preset": self.preset}
        given = ", ".join(f"{name}={value!r}" for name, value in said.items() if value is not None)
        return f"<reduce op {self.name}: {given}>"

    @property
    def _for(self) -> str:
        """The elements that it is for."""
        return ", ".join(row.name for row in self.elements)

    # ---- its functions -----------------------------------------------------------------------

    def lift(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Decorator: what a worker's element becomes; without it, it is converted.

        Raises:
            OpError: there is one already, or the function cannot be one.
        """
        return self._add("lift", function)

    def finish(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Decorator: what the accumulator of all workers becomes; without it, it is converted.

        Raises:
            OpError: there is one already, or the function cannot be one.
        """
        return self._add("finish", function)

    def _add(self, step: str, function: Callable[..., Any]) -> Callable[..., Any]:
        if not isinstance(self._source, _PythonSource):
            raise OpError(f"{self.name}: {step} belongs into its source text")
        if self._images:
            raise OpError(f"{self.name}: it has been used: define {step} before")
        if step in self._source.functions_:
            raise OpError(f"{self.name}: has a {step} already: define one")
        self._source.functions_[step] = _checked(step, function)
        return function

    # ---- its images --------------------------------------------------------------------------

    def formats(
        self, element: str | np.dtype | type | Format | None = None, preset: str | None = None
    ) -> Formats:
        """What payloads, accumulators and results consist of.

        Raises:
            ArgumentError: no element is named, another than the op is for, or an unknown preset.
        """
        row = self.element if element is None else format_of(element)
        if row is None:
            raise ArgumentError(f"op {self.name}: element is open: name it, such as 'bfloat16'")
        if self.elements and row not in self.elements:
            raise ArgumentError(f"op {self.name}: is for {self._for}, not {row.name}")
        if self._functions is None and preset not in (None, self.preset):
            raise ArgumentError(
                f"op {self.name}: its assembly is for preset {self.preset!r}, not {preset!r}"
            )
        usual = preset_formats(row, self.preset if preset is None else preset)
        said = {
            name: None if spec is None else _resolved(spec, row)
            for name, spec in self._types.items()
        }
        accumulator = said["accumulator"] or usual.accumulator
        narrow = accumulator.scalar and usual.partial == usual.element != usual.accumulator
        return Formats(
            element=usual.element,
            accumulator=accumulator,
            partial=said["partial"] or (usual.partial if narrow else accumulator),
            result=said["result"]
            or (usual.result if accumulator.scalar or self._source.finishes else accumulator),
        )

    def image(
        self,
        element: str | np.dtype | type | Format | None = None,
        preset: str | None = None,
        machine: str | Machine | None = None,
    ) -> KernelImage:
        """The kernel image for an element format, a preset and a machine, from the cache or new.

        Its bits are the same on every machine; its code is of what the machine's cores have.

        Args:
            element: name, dtype or row of nicemu.dtypes; None: the op's own.
            preset: "wide", "per-hop" or "per-add"; None: the op's own.
            machine: preset name or :class:`nicemu.Machine`; None: one that has everything.

        Raises:
            ArgumentError: see :meth:`formats`; an unknown machine.
            OpError: the op cannot be compiled for these cores; the message says where and why.
            ImageError: numba or llvmlite is missing.
        """
        return self._image(self.formats(element, preset), preset, target_of(machine))

    def _image(self, formats: Formats, preset: str | None, target: Target) -> KernelImage:
        chosen = preset or self.preset
        key = (formats, chosen, target, self._source.key())  # globals may have changed
        if key not in self._images:
            made = compile_image(self.name, self._source, formats, chosen, target)
            self._images[key] = made
        return self._images[key]

    @property
    def _functions(self) -> FunctionSource | None:
        """The source, where it is of functions; None of assembly."""
        return None if isinstance(self._source, _AssemblySource) else self._source

    def _on_host(
        self, element: str | np.dtype | type | Format | None, preset: str | None
    ) -> HostKernels | None:
        """The same IR as code of the host; None: there is none of assembly."""
        from nicemu.compiler.host import HostKernels

        functions = self._functions
        if functions is None:
            return None
        return HostKernels(self.name, functions, self.formats(element, preset))

    # ---- what its author wants to know -------------------------------------------------------

    def reference(
        self,
        streams: Sequence[np.ndarray],
        *,
        preset: str | None = None,
        order: Order | None = None,
        context: Context | None = None,
        chunk: int | None = None,
        devices: Mapping[tuple[int, ...], int] | None = None,
    ) -> np.ndarray:
        """What the op gives on the host: the IR that cores run, compiled for this machine.

        Args:
            streams: 1-D arrays, all of one length and of the element's dtype, or the rows of a 2-D
                array; stream i is rank i.
            preset: "wide", "per-hop" or "per-add"; None: the op's own.
            order: nested tuples of ranks, as in Result.order; None: one device merges them in turn.
            context: what the functions may know; rank, child and contributors are counted, and
                element from the one that is given.
            chunk: elements of a chunk, for ops that read its number; None: all are one.
            devices: path of each device in the order -> its number, for ops that read that.

        Returns:
            Shape (count,), of the result's dtype.

        Raises:
            ArgumentError: streams that do not fit, or see :meth:`formats`.
            OpError: the op is assembly, which has no IR; or see :meth:`image`.
            ImageError: see :meth:`image`.
            StatusError: the op raises an exception.
        """
        from nicemu.compiler.host import arrays

        given = arrays(streams)
        host = self._on_host(given[0].dtype, preset)
        if host is None:
            raise OpError(
                f"{self.name}: is assembly, which only cores run: compare with the reference of "
                "the same op in Python or C"
            )
        return host.reduce(given, order=order, context=context, chunk=chunk, devices=devices)

    @property
    def runs_on_host(self) -> bool:
        """Whether :meth:`reference` can be asked: False of assembly, which only cores run."""
        return self._functions is not None

    def check(
        self,
        machine: str | Machine = "card",
        *,
        element: str | np.dtype | type | Format | None = None,
        preset: str | None = None,
        seed: int = 0,
    ) -> Check:
        """Find out what can go wrong: by running the image on a core, with its memory fenced.

        Asked are: is every instruction one of the machine's; does every entry keep to its memory;
        how much stack does it use; what becomes of each element (all 65,536 patterns of 16 bits);
        are the bits those of the host (not of assembly, which has no IR); are they the same for
        every length of vectors and every fan-in; is merge commutative and associative, and if not,
        by how many ulp, with the simplest example.

        Args:
            machine: preset name or :class:`nicemu.Machine`.
            element, preset: see :meth:`image`.
            seed: of the random elements.

        Raises:
            ArgumentError, OpError, ImageError: see :meth:`image`.
        """
        from nicemu.ops.check import check

        number = whole("seed", seed, 0, 2**64 - 1)
        host = self._on_host(element, preset)
        if host is not None:
            return check(self.image(element, preset, machine), host, machine, number)
        image = self.image(element, preset)  # assembly is what it is, whatever the cores have
        lines = self._source.lines(self.formats(element, preset), image.code, EVERY)
        return check(image, None, machine, number, lines)

    def disasm(
        self,
        machine: str | Machine | None = None,
        *,
        element: str | np.dtype | type | Format | None = None,
        preset: str | None = None,
    ) -> Listing:
        """The instructions of the image, and the author's line of each that has one.

        Args:
            element, preset, machine: see :meth:`image`.

        Raises:
            ArgumentError, OpError, ImageError: see :meth:`image`.
        """
        from nicemu.device.listing import listing

        image = self.image(element, preset, machine)
        formats = self.formats(element, preset)
        lines = self._source.lines(formats, image.code, target_of(machine))
        return listing(image.code, image.labels, sources=lines)

    def cost(
        self,
        machine: str | Machine = "card",
        payload: int = 1024,
        *,
        element: str | np.dtype | type | Format | None = None,
        preset: str | None = None,
    ) -> Cost:
        """Instructions of every entry for full packets, counted on an emulated core.

        Args:
            machine: preset name or :class:`nicemu.Machine`.
            payload: bytes of a full packet.
            element, preset: see :meth:`image`.

        Raises:
            ArgumentError, OpError, ImageError: see :meth:`image`; a payload out of range.
            FaultError: the op's code traps or does not end.
        """
        from nicemu.ops.cost import cost

        return cost(self.image(element, preset, machine), machine, payload)

    def trace(
        self,
        entry: str = "acc",
        streams: Sequence[np.ndarray] | None = None,
        machine: str | Machine = "card",
        *,
        element: str | np.dtype | type | Format | None = None,
        preset: str | None = None,
    ) -> Trace:
        """One call of an entry, instruction by instruction: your line, and what was written.

        Args:
            entry: such as "first", "acc" or "finish".
            streams: elements of workers, one array each: the first begins the accumulator, where
                the entry does not, the others are its payloads.  None: 8 ordinary elements of each.
            machine: preset name or :class:`nicemu.Machine`.
            element, preset: see :meth:`image`.

        Raises:
            ArgumentError, OpError, ImageError: see :meth:`image`; no such entry; streams that do
                not fit, or of which the trace is too long.
            FaultError: the call traps or does not end.
        """
        from nicemu.ops.trace import trace

        image = self.image(element, preset, machine)
        formats = self.formats(element, preset)
        lines = self._source.lines(formats, image.code, target_of(machine))
        return trace(image, machine, entry, streams, lines)


def _read(source: str | Path) -> tuple[str, str | None]:
    """A source's text, and the name of its file, where it is one.

    Raises:
        ArgumentError: it is neither a text nor a path.
        FileFormatError: the file cannot be read.
    """
    if isinstance(source, str):
        return source, None
    if not isinstance(source, Path):
        raise ArgumentError(f"source is {type(source).__name__}: use text or a pathlib.Path")
    try:
        return source.read_text("utf-8"), source.name
    except (OSError, ValueError) as error:
        refuse(source, f"cannot be read ({error})", "name a file of UTF-8 text")


class _Maker:
    """Decorator that makes a reduce op of ``merge(a, b)``: how two accumulators become one.

    It is applied in the order of children, and neither assumed to be commutative nor associative.
    The functions of an op may take the context as a last argument: see :class:`nicemu.Context`.
    Ops in C and assembly are made by :meth:`c` and :meth:`asm`.

    Args:
        merge: the function, where the decorator is used without arguments.
        name: of the op; None: the function's, or "lambda".
        element: format of the workers' elements, or a list of formats: an image is made for each;
            None: open.
        accumulator: what is kept: a format, a tuple of them, or a structured dtype; "element"
            stands for the element's format.  None: the preset's.
        partial: what devices send each other; None: the preset's, or the accumulator.
        result: what workers get; None: the element's format, or where there is no finish and the
            accumulator has fields, the accumulator.
        preset: numerics where a call names none: "wide", "per-hop" or "per-add".

    Returns:
        :class:`ReduceOp`.

    Raises:
        OpError: merge cannot be one.
        ArgumentError: an unknown format or preset.

    Example:
        >>> @nicemu.reduce_op(element="bfloat16", accumulator="float32")
        ... def l2norm(a, b):
        ...     return a + b
        >>> @l2norm.lift
        ... def _(x):
        ...     return x * x
        >>> @l2norm.finish
        ... def _(a):
        ...     return math.sqrt(a)
    """

    @overload
    def __call__(self, merge: Callable[..., Any], /) -> ReduceOp: ...

    @overload
    def __call__(
        self,
        merge: None = None,
        *,
        name: str | None = ...,
        element: Elements | None = ...,
        accumulator: ItemSpec | None = ...,
        partial: ItemSpec | None = ...,
        result: ItemSpec | None = ...,
        preset: str = ...,
    ) -> Callable[[Callable[..., Any]], ReduceOp]: ...

    def __call__(
        self,
        merge: Callable[..., Any] | None = None,
        *,
        name: str | None = None,
        element: Elements | None = None,
        accumulator: ItemSpec | None = None,
        partial: ItemSpec | None = None,
        result: ItemSpec | None = None,
        preset: str = "wide",
    ) -> ReduceOp | Callable[[Callable[..., Any]], ReduceOp]:
        """See the class."""

        def decorate(function: Callable[..., Any]) -> ReduceOp:
            checked = _checked("merge", function)
            called = checked.__name__.strip("<>") if name is None else name
            return ReduceOp(
                called,
                _PythonSource(called, {"merge": checked}),
                element=element,
                accumulator=accumulator,
                partial=partial,
                result=result,
                preset=preset,
            )

        return decorate if merge is None else decorate(merge)

    def c(
        self,
        source: str | Path,
        *,
        name: str | None = None,
        element: Elements | None = None,
        accumulator: ItemSpec | None = None,
        partial: ItemSpec | None = None,
        result: ItemSpec | None = None,
        preset: str = "wide",
    ) -> ReduceOp:
        """An op whose merge, and lift and finish where it has them, are functions in C.

        Args:
            source: C, or the path of a file of it: guide/authoring.md says what it may contain.
            name: of the op; None: the file's without its suffix, or "c".
            element, accumulator, partial, preset: as for Python.
            result: what workers get; None: the element's format, or where the accumulator has
                fields, the accumulator.

        Raises:
            ArgumentError: an unknown format or preset.
            FileFormatError: the file cannot be read.
        """
        made = _CSource.read(source, name)
        return ReduceOp(
            made.name,
            made,
            element=element,
            accumulator=accumulator,
            partial=partial,
            result=result,
            preset=preset,
        )

    def asm(
        self,
        source: str | Path,
        *,
        element: str | np.dtype | type | Format,
        name: str | None = None,
        accumulator: ItemSpec | None = None,
        partial: ItemSpec | None = None,
        result: ItemSpec | None = None,
        preset: str = "wide",
    ) -> ReduceOp:
        """An op whose image consists of entries in assembly.

        Args:
            source: RISC-V assembly with the entries' labels, or the path of a file of it:
                guide/images.md says what each entry is called with.
            element: format of the workers' elements.
            name: of the op; None: the file's without its suffix, or "asm".
            accumulator, partial, result, preset: as for C; the code is for these formats only.

        Raises:
            ArgumentError: an unknown format or preset.
            FileFormatError: the file cannot be read.
        """
        made = _AssemblySource.read(source, name)
        return ReduceOp(
            made.name,
            made,
            element=element,
            accumulator=accumulator,
            partial=partial,
            result=result,
            preset=preset,
        )


reduce_op = _Maker()
