"""The Python front end: a function over numbers -> LLVM IR, through numba.

Owns: which Python an op may use, how literals and the functions of math and numpy are taken, and
what the author is told where something cannot be compiled.  It is a numba target of its own: it
shares no compiled code and no settings with the user's numba, and no code of it runs on the host.
The only module that imports numba.  Private parts of numba are used: pyproject.toml pins its minor
version.
"""

from __future__ import annotations

import dis
import inspect
import math
import operator
import re
from collections import namedtuple
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import llvmlite.binding as llvm
import llvmlite.ir as llvm_ir
import numpy as np
from numba.core import (
    callconv,
    cgutils,
    compiler,
    ir,
    lowering,
    typed_passes,
    types,
    typing,
    untyped_passes,
)
from numba.core.base import BaseContext
from numba.core.compiler_lock import global_compiler_lock
from numba.core.compiler_machinery import (
    FunctionPass,
    PassManager,
    register_pass,
)
from numba.core.dispatcher import Dispatcher
from numba.core.imputils import Registry as LoweringRegistry
from numba.core.typing.templates import (
    AbstractTemplate,
    signature,
)
from numba.core.typing.templates import (
    Registry as TypingRegistry,
)

from nicemu.compiler.irmath import defined
from nicemu.compiler.scalar import CONTEXT, Number, ScalarFunction, computed, missing
from nicemu.dtypes import Item
from nicemu.errors import OpError
from nicemu.ops.opmath import bits, from_bits

__all__ = ["compile_function"]

# ---- what ops may call ---------------------------------------------------------------------------


@dataclass(frozen=True, eq=False, repr=False)
class Callee:
    """What ops may call.

    Attributes:
        python: the callables by which authors name it.
    """

    python: tuple[Callable[..., Any], ...]

    def __repr__(self) -> str:
        """For messages of numba's."""
        return self.python[0].__name__


@dataclass(frozen=True, eq=False, repr=False)
class Call(Callee):
    """A function.

    Attributes:
        arity: how many arguments; None: two or more, taken from left to right.
        real: what it is on floats: an LLVM or irmath function, {} standing for f32 or f64.
        whole: the same on integers, {} standing for the width, {u} for s or u; "" turns them into
            floats first.
        test: True: it gives a bool.
        single: True: it is there for float32 only.
        wide: True: of narrower integers it is of 64 bits, as a sum is.
    """

    arity: int | None
    real: str
    whole: str = ""
    test: bool = False
    single: bool = False
    wide: bool = False


CALLS: tuple[Call, ...] = (
    Call((abs, math.fabs, np.abs, np.fabs), 1, "llvm.fabs.{}", "nicemu.{u}abs.i{}", wide=True),
    Call((math.sqrt, np.sqrt), 1, "llvm.sqrt.{}"),
    # Python's math.floor and the like give int; here they give the number's own type, exactly
    Call((math.floor, np.floor), 1, "llvm.floor.{}", "nicemu.same.i{}"),
    Call((math.ceil, np.ceil), 1, "llvm.ceil.{}", "nicemu.same.i{}"),
    Call((math.trunc, np.trunc), 1, "llvm.trunc.{}", "nicemu.same.i{}"),
    Call((round, np.rint, np.round), 1, "llvm.roundeven.{}", "nicemu.same.i{}"),
    Call((math.exp, np.exp), 1, "nicemu.exp.{}", single=True),
    Call((np.exp2,), 1, "nicemu.exp2.{}", single=True),
    Call((math.log, np.log), 1, "nicemu.log.{}", single=True),
    Call((math.log2, np.log2), 1, "nicemu.log2.{}", single=True),
    Call((math.tanh, np.tanh), 1, "nicemu.tanh.{}", single=True),
    Call((math.copysign, np.copysign), 2, "nicemu.copysign.{}"),
    Call((np.sign,), 1, "nicemu.sign.{}", "nicemu.{u}sign.i{}"),
    Call((max,), None, "nicemu.max.{}", "llvm.{u}max.i{}"),
    Call((min,), None, "nicemu.min.{}", "llvm.{u}min.i{}"),
    # IEEE 754-2019 maximumNumber and minimumNumber: one NaN gives the other operand, -0 < +0
    Call((np.fmax,), 2, "llvm.maximumnum.{}", "llvm.{u}max.i{}"),
    Call((np.fmin,), 2, "llvm.minimumnum.{}", "llvm.{u}min.i{}"),
    # maximum and minimum: NaN propagates
    Call((np.maximum,), 2, "llvm.maximum.{}", "llvm.{u}max.i{}"),
    Call((np.minimum,), 2, "llvm.minimum.{}", "llvm.{u}min.i{}"),
    Call((math.isnan, np.isnan), 1, "nicemu.isnan.{}", test=True),
    Call((math.isinf, np.isinf), 1, "nicemu.isinf.{}", test=True),
    Call((math.isfinite, np.isfinite), 1, "nicemu.isfinite.{}", test=True),
    Call((np.signbit,), 1, "nicemu.signbit.{}", test=True),
)


@dataclass(frozen=True, eq=False, repr=False)
class Conversion(Callee):
    """A type called as a function; ``to`` None: the number that the op computes in."""

    to: Any


@dataclass(frozen=True, eq=False, repr=False)
class Reinterpretation(Callee):
    """A float's bits as an unsigned integer; or back: of 32 bits to a float32, of any other integer
    to the float that the op computes in."""

    back: bool


CONVERSIONS = (
    Conversion((int,), types.int64),
    Conversion((float,), None),
    Conversion((bool, np.bool_), types.boolean),
    *(
        Conversion((getattr(np, name),), getattr(types, name))
        for name in ("float32", "float64", "int8", "int16", "int32", "int64", "uint8", "uint16",
                     "uint32", "uint64")
    ),
)  # fmt: skip
REINTERPRETATIONS = (
    Reinterpretation((bits,), back=False),
    Reinterpretation((from_bits,), back=True),
)
_ROWS: tuple[Callee, ...] = (*CALLS, *CONVERSIONS, *REINTERPRETATIONS)
_KNOWN: dict[Any, Any] = {python: row for row in _ROWS for python in row.python}


class _Plain:
    """A named tuple as a tuple, so that a function may return both."""


_PLAIN = _Plain()


class _Negated:
    """-x, of narrower integers with 64 bits: numba keeps the width, in which the least wraps."""

    def __repr__(self) -> str:
        """For messages of numba's."""
        return "neg"


_NEGATED = _Negated()

_typing = TypingRegistry()
_lowering = LoweringRegistry("nicemu")


def _declare(key: object, generic: Callable[..., Any], lower: Callable[..., Any]) -> None:
    """Tell numba of a function: generic(context, argument types) -> result type, or None."""

    class Template(AbstractTemplate):  # type: ignore[misc]
        def generic(self, args: Sequence[Any], kws: Mapping[str, Any]) -> Any:
            return None if kws else generic(self.context, args)

    Template.key = key
    _typing.register_global(key, types.Function(Template))
    _lowering.lower(key, types.VarArg(types.Any))(lower)


def _suffix(ty: Any) -> str:
    return f"f{ty.bitwidth}"


def _declare_call(row: Call) -> None:
    def generic(context: Any, args: Sequence[Any]) -> Any:
        if len(args) != row.arity if row.arity else len(args) < 2:
            return None
        ty = context.unify_types(*args)
        if isinstance(ty, types.Integer | types.Boolean) and not row.whole:
            ty = context.unit.real
        if not isinstance(ty, types.Integer | types.Float | types.Boolean):
            return None
        if row.wide and isinstance(ty, types.Integer) and ty.signed:
            ty = types.int64
        return signature(types.boolean if row.test else ty, *[ty] * len(args))

    def lower(context: Any, builder: Any, sig: Any, args: Sequence[Any]) -> Any:
        ty = sig.args[0]
        if isinstance(ty, types.Float):
            name = row.real.format(_suffix(ty))
        else:
            signed = isinstance(ty, types.Integer) and ty.signed
            width = ty.bitwidth if isinstance(ty, types.Integer) else 1
            name = row.whole.format(width, u="s" if signed else "u")
        out = llvm_ir.IntType(1) if row.test else args[0].type
        given = args[: row.arity or 2]
        fnty = llvm_ir.FunctionType(out, [arg.type for arg in given])
        function = cgutils.get_or_insert_function(builder.module, fnty, name)
        value = builder.call(function, given)
        for arg in args[len(given) :]:
            value = builder.call(function, [value, arg])
        return value

    _declare(row, generic, lower)


def _declare_conversion(row: Conversion) -> None:
    def generic(context: Any, args: Sequence[Any]) -> Any:
        if len(args) != 1 or not isinstance(args[0], types.Number | types.Boolean):
            return None
        to = row.to or (context.unit.real)
        return signature(to, args[0])

    def lower(context: Any, builder: Any, sig: Any, args: Sequence[Any]) -> Any:
        return context.cast(builder, args[0], sig.args[0], sig.return_type)

    _declare(row, generic, lower)


def _declare_reinterpretation(row: Reinterpretation) -> None:
    def generic(context: Any, args: Sequence[Any]) -> Any:
        if len(args) != 1:
            return None
        if row.back and isinstance(args[0], types.Integer):
            real = types.float32 if args[0].bitwidth == 32 else context.unit.real
            return signature(real, getattr(types, f"uint{real.bitwidth}"))
        if not row.back and isinstance(args[0], types.Float):
            return signature(getattr(types, f"uint{args[0].bitwidth}"), args[0])
        return None

    def lower(context: Any, builder: Any, sig: Any, args: Sequence[Any]) -> Any:
        out = context.get_value_type(sig.return_type)
        if row.back:
            return builder.bitcast(args[0], out)
        fnty = llvm_ir.FunctionType(out, [args[0].type])
        name = f"nicemu.bits.{_suffix(sig.args[0])}"
        return builder.call(cgutils.get_or_insert_function(builder.module, fnty, name), args)

    _declare(row, generic, lower)


def _declare_plain() -> None:
    def generic(context: Any, args: Sequence[Any]) -> Any:
        ty = args[0]
        if isinstance(ty, types.NamedUniTuple):
            ty = types.UniTuple(ty.dtype, ty.count)
        elif isinstance(ty, types.NamedTuple):
            ty = types.Tuple(ty.types)
        return signature(ty, args[0])

    _declare(_PLAIN, generic, lambda context, builder, sig, args: args[0])


def _declare_negated() -> None:
    def generic(context: Any, args: Sequence[Any]) -> Any:
        ty = types.unliteral(args[0])
        if isinstance(ty, types.Boolean) or (isinstance(ty, types.Integer) and ty.bitwidth < 64):
            ty = types.int64
        return signature(ty, ty) if isinstance(ty, types.Integer | types.Float) else None

    def lower(context: Any, builder: Any, sig: Any, args: Sequence[Any]) -> Any:
        return (builder.fneg if isinstance(sig.return_type, types.Float) else builder.neg)(args[0])

    _declare(_NEGATED, generic, lower)


_WHOLE = (types.int64, types.uint64)  # what numba divides integers in


def _whole(context: Any, builder: Any, sig: Any, args: Sequence[Any], to: Any) -> list[Any]:
    """Dividend and divisor of integers, as one type."""
    pairs = zip(args, sig.args, strict=True)
    return [context.cast(builder, value, ty, to) for value, ty in pairs]


def _refuse_zero(context: Any, builder: Any, divisor: Any) -> None:
    """Raise as Python does: at once where there are loops, else when the function returns, so that
    a vector of items needs no branch.
    """
    unit = context.unit
    zero = cgutils.is_scalar_zero(builder, divisor)
    what = (ZeroDivisionError, (f"division by zero in {unit.step}",))
    if unit.loops:
        with builder.if_then(zero):
            context.call_conv.return_user_exc(builder, *what)
    else:
        status = callconv._const_int(context.call_conv.new_status(*what))
        place = unit.pending.setdefault(
            builder.function.name, cgutils.alloca_once(builder, status.type, name="pending")
        )
        builder.store(builder.select(zero, _first(builder, place, status), builder.load(place)),
                      place)  # fmt: skip


def _first(builder: Any, place: Any, status: Any) -> Any:
    """The status in a place, or where it is 0 another."""
    pending = builder.load(place)
    good = builder.icmp_signed("==", pending, pending.type(0))
    return builder.select(good, status, pending)


def _floor_divided(context: Any, builder: Any, sig: Any, args: Sequence[Any]) -> Any:
    """a // b; numba's gives 0 for the least number // -1, which is to wrap."""
    a, b = _whole(context, builder, sig, args, sig.return_type)
    if sig.return_type.signed:
        rest = builder.srem(a, b)
        quotient = builder.sub(builder.sdiv(a, b), builder.zext(_apart(builder, rest, b), a.type))
    else:
        quotient = builder.udiv(a, b)
    _refuse_zero(context, builder, b)
    return quotient


def _modulo(context: Any, builder: Any, sig: Any, args: Sequence[Any]) -> Any:
    """a % b, which has the sign of b."""
    a, b = _whole(context, builder, sig, args, sig.return_type)
    if sig.return_type.signed:
        rest = builder.srem(a, b)
        moved = builder.select(_apart(builder, rest, b), b, a.type(0))
        rest = builder.add(rest, moved)
    else:
        rest = builder.urem(a, b)
    _refuse_zero(context, builder, b)
    return rest


def _apart(builder: Any, rest: Any, divisor: Any) -> Any:
    """Is there a rest of another sign than the divisor's?"""
    zero = rest.type(0)
    other = builder.icmp_signed("<", builder.xor(rest, divisor), zero)
    return builder.and_(builder.icmp_signed("!=", rest, zero), other)


def _divided(context: Any, builder: Any, sig: Any, args: Sequence[Any]) -> Any:
    """a / b of integers, in float64."""
    a, b = _whole(context, builder, sig, args, sig.return_type)
    quotient = builder.fdiv(a, b)
    _refuse_zero(context, builder, args[1])
    return quotient


for _verbs, _lower in (
    ((operator.floordiv, operator.ifloordiv), _floor_divided),
    ((operator.mod, operator.imod), _modulo),
    ((operator.truediv, operator.itruediv), _divided),
):
    for _verb, _left, _right in product(_verbs, _WHOLE, _WHOLE):
        _lowering.lower(_verb, _left, _right)(_lower)
for _call in CALLS:
    _declare_call(_call)
for _conversion in CONVERSIONS:
    _declare_conversion(_conversion)
for _reinterpretation in REINTERPRETATIONS:
    _declare_reinterpretation(_reinterpretation)
_declare_plain()
_declare_negated()


# ---- the target ----------------------------------------------------------------------------------
class _Statuses(callconv._MinimalCallHelper):  # type: ignore[misc]
    """The exceptions that a function and its helpers may raise; the status is the number."""

    def texts(self) -> tuple[str, ...]:
        return tuple(_exception_text(*row) for row in self.exceptions.values())


def _exception_text(kind: type, arguments: tuple[Any, ...] | None, where: Any) -> str:
    text = kind.__name__
    if arguments:
        text += f": {', '.join(map(str, arguments))}"
    text = "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)  # in one line
    return f"{text} ({Path(where[1]).name}:{where[2]})" if where else text


class _CallConvention(callconv.MinimalCallConv):  # type: ignore[misc]
    """Status in the return value, no Python objects."""

    def new_status(self, kind: Any, arguments: Any, loc: Any = None) -> int:
        """Of an exception at a place; None: where the statement is that is being lowered."""
        unit = self.context.unit
        loc = loc or unit.loc
        where = (unit.step, loc.filename, loc.line)
        return int(unit.statuses._add_exception(kind, arguments, where))

    def return_user_exc(
        self, builder: Any, exc: Any, exc_args: Any = None, loc: Any = None, func_name: Any = None
    ) -> None:
        self._return_errcode_raw(builder, self.new_status(exc, exc_args, loc))

    def _return_errcode_raw(self, builder: Any, code: Any) -> None:
        code = callconv._const_int(code) if isinstance(code, int) else code
        if place := self.context.unit.pending.get(builder.function.name):
            code = _first(builder, place, code)
        builder.ret(code)

    def _make_call_helper(self, builder: Any) -> Any:
        return self.context.unit.statuses


class _Typing(typing.BaseContext):  # type: ignore[misc]
    """Numbers, tuples and the rows above.

    Attributes:
        unit: what is being compiled.
    """

    unit: Any = None

    def load_additional_registries(self) -> None:
        self.install_registry(_typing)


class _Target(BaseContext):  # type: ignore[misc]
    """Functions that return a status and know no Python objects.

    Attributes:
        unit: what is being compiled.
    """

    unit: Any = None

    def __init__(self, context: _Typing) -> None:
        super().__init__(context, "cpu")

    def init(self) -> None:
        layout = "e-m:e-p:64:64-i64:64-i128:128-n32:64-S128"
        self._data = llvm.create_target_data(layout)

    def load_additional_registries(self) -> None:
        from numba.cpython import builtins, numbers, rangeobj, tupleobj  # noqa: F401

        self.install_registry(_lowering)

    @property
    def target_data(self) -> Any:
        return self._data

    @property
    def call_conv(self) -> Any:
        return _CallConvention(self)

    def codegen(self) -> None:
        return None

    def create_module(self, name: str) -> Any:
        return llvm_ir.Module(name)


@cache
def _contexts() -> tuple[_Typing, _Target]:
    typing_context = _Typing()
    return typing_context, _Target(typing_context)


class _Library:
    """Where numba puts the modules of a function."""

    def __init__(self) -> None:
        self.modules: list[str] = []
        self._reload_init: set[Any] = set()
        self.recorded_timings: list[Any] = []

    def create_ir_module(self, name: str) -> Any:
        return llvm_ir.Module(name)

    def add_ir_module(self, module: Any) -> None:
        self.modules.append(str(module))

    def finalize(self) -> None:
        pass


# ---- numba's own representation, before types ----------------------------------------------------
_BINARY = ("binop", "static_binop", "inplace_binop")
#: expressions of numba's that ops may have; of what else there is, the author is told in words
_EXPRESSIONS = {
    "binop", "inplace_binop", "unary", "call", "getattr", "getitem", "static_getitem",
    "build_tuple", "exhaust_iter", "getiter", "iternext", "pair_first", "pair_second", "cast",
    "phi", "null", "undef",
}  # fmt: skip
_WORDS = {
    "build_list": "a list", "build_map": "a dict", "build_set": "a set", "yield": "yield",
    "make_function": "a function inside it", "build_string": "a string",
    "typed_getitem": "a subscript",
}  # fmt: skip
_REMEDY = "use numbers, tuples, if, for, while, and functions of math and numpy"
#: what an author may have meant -> what to write
_INSTEAD = {
    "numpy.where": "write x if condition else y", "numpy.clip": "write min(max(x, low), high)",
    "sum": "write a + b", "len": "write the number", "sorted": "use min and max",
    "enumerate": "write for i in range(n)", "zip": "write for i in range(n)",
    "pow": "write x ** n", "math.pow": "write x ** n", "divmod": "write // and %",
    "print": "leave it out, or raise an exception", "open": "leave it out",
    "isinstance": "leave it out, the op says what types there are",
    "random.random": "mix ctx.seed and ctx.element, and return the same for the same",
    "numpy.random.random": "mix ctx.seed and ctx.element, and return the same for the same",
}  # fmt: skip
MOST_POWER = 64


class _Refused(Exception):
    """Why, and where."""

    def __init__(self, text: str, loc: Any) -> None:
        super().__init__(text)
        self.loc = loc


#: opcodes -> what the author wrote, and what to write instead; {} is the name that it is about
_OPCODES = {
    "STORE_GLOBAL": "it changes {}, which outlasts the call: put it into the accumulator",
    "DELETE_GLOBAL": "it deletes {}, which outlasts the call: leave it out",
    "IMPORT_NAME": "it imports {}: import it outside of the function",
    "LOAD_BUILD_CLASS": "it defines a class: " + _REMEDY,
    "BEFORE_WITH": "it uses with: leave it out",
    "PUSH_EXC_INFO": "it uses try: test with if before",
    "IS_OP": "it uses is, which is of objects, as case True does: write == or !=",
    "DICT_MERGE": "it passes arguments by **: write them out",
    "UNPACK_EX": "it unpacks with *: give each value a name",
    **dict.fromkeys(
        ("MATCH_CLASS", "MATCH_KEYS", "MATCH_MAPPING", "MATCH_SEQUENCE"),
        "a case is no number: match numbers, or test with if",
    ),
    "CONTAINS_OP": "it uses in: write x == y or x == z",
    "FORMAT_VALUE": "it makes a text of a number: the text of raise is a constant",
    "FORMAT_SIMPLE": "it makes a text of a number: the text of raise is a constant",
    "FORMAT_WITH_SPEC": "it makes a text of a number: the text of raise is a constant",
}
#: what stands behind raise, by how many values there are
_RAISED = {
    0: "it raises nothing: name an exception, such as ValueError",
    2: "it raises an exception from another: leave out from",
}
_INNER = {
    "<lambda>": "it has a lambda inside: define a function outside",
    "<listcomp>": "it has a comprehension: write a for loop",
    "<setcomp>": "it has a comprehension: write a for loop",
    "<dictcomp>": "it has a comprehension: write a for loop",
    "<genexpr>": "it has a generator: write a for loop",
}


def _read(function: FunctionType) -> None:
    """Refuse what numba would take otherwise than Python does, or could not name.

    Raises:
        _Refused: byte code that ops do not have.
    """
    code = function.__code__
    inner = ""
    returns = False
    for step in dis.get_instructions(code):
        text = _OPCODES.get(step.opname)
        if step.opname in ("STORE_DEREF", "DELETE_DEREF") and step.argval in code.co_freevars:
            text = _OPCODES["STORE_GLOBAL"]
        if step.opname == "RAISE_VARARGS":
            text = _RAISED.get(step.arg or 0)
        if step.opname == "MAKE_FUNCTION":
            text = _INNER.get(inner, f"it defines {inner} inside: define it outside")
        if text:
            line = step.positions.lineno if step.positions else None
            loc = ir.Loc(code.co_filename, line or code.co_firstlineno)
            raise _Refused(text.format(step.argval), loc)
        inner = getattr(step.argval, "co_name", inner)
        returns |= step.opname.startswith("RETURN_")
    if not returns:
        loc = ir.Loc(code.co_filename, code.co_firstlineno)
        raise _Refused(
            "it never returns: end its loop, or return a number where it does not raise", loc
        )


class _Unit:
    """A function and the helpers that it calls, while they are compiled."""

    def __init__(self, number: Any, step: str, lines: bool) -> None:
        self.step = step
        self.lines = lines
        # of the function that is being lowered: of its statement, whether it has loops, and where
        # the status of an exception is kept until it returns
        self.loc: Any = None
        self.loops = False
        self.pending: dict[str, Any] = {}
        self.number = number  # numba's type of what the op computes in
        self.real = number if isinstance(number, types.Float) else types.float64
        self.library = _Library()
        self.statuses = _Statuses()
        self.notes: list[str] = []
        self._helpers: dict[FunctionType, Any] = {}
        self._open: list[FunctionType] = []

    def constant(self, value: Any, loc: Any) -> Any:
        """A float as the op's number."""
        if self.number != types.float32:
            return float(value)
        with np.errstate(over="ignore"):
            single = np.float32(value)
        if np.isfinite(value) and not np.isfinite(single):
            text = f"{value} is too large for float32: use math.inf, or accumulator float64"
            raise _Refused(text, loc)
        return single

    def helper(self, function: FunctionType, loc: Any) -> object:
        """What stands for a helper function in numba."""
        if function in self._open:
            raise _Refused(f"{function.__name__} calls itself: write a loop", loc)
        if function not in self._helpers:
            _read(function)
            self._helpers[function] = _Helper(self, function)
        return self._helpers[function]

    def compile(self, function: FunctionType, arguments: Sequence[Any]) -> Any:
        typing_context, target = _contexts()
        typing_context.unit = target.unit = self
        flags = compiler.Flags()
        flags.enable_pyobject = flags.force_pyobject = flags.enable_looplift = False
        flags.no_compile = flags.no_cpython_wrapper = flags.no_cfunc_wrapper = True
        flags.nrt = flags.boundscheck = False
        flags.error_model = "numpy"
        flags.debuginfo = flags.dbg_directives_only = self.lines
        self._open.append(function)
        try:
            return compiler.compile_extra(
                typing_context, target, function, tuple(arguments), None, flags, {},
                library=self.library, pipeline_class=_Pipeline,
            )  # fmt: skip
        finally:
            self._open.pop()


class _Helper:
    """A Python function that an op calls: compiled for the types that it is called with."""

    def __init__(self, unit: _Unit, function: FunctionType) -> None:
        typing_context, target = _contexts()
        helper = self

        class Template(AbstractTemplate):  # type: ignore[misc]
            key = helper

            def generic(self, args: Sequence[Any], kws: Mapping[str, Any]) -> Any:
                if kws:
                    return None
                if args not in helper.signatures:
                    done = unit.compile(function, args)
                    target.insert_user_function(helper, done.fndesc)
                    helper.signatures[args] = done.signature
                return helper.signatures[args]

        self.name = function.__name__
        self.signatures: dict[Any, Any] = {}
        typing_context.insert_global(self, types.Function(Template))

    def __repr__(self) -> str:
        """For messages of numba's."""
        return self.name


@register_pass(mutates_CFG=False, analysis_only=False)
class _Resolve(FunctionPass):  # type: ignore[misc]
    """Constants become the op's numbers, callables the rows above; what is neither is refused."""

    _name = "nicemu_resolve"

    def __init__(self) -> None:
        FunctionPass.__init__(self)

    def run_pass(self, state: Any) -> bool:
        self.unit: _Unit = state.typingctx.unit
        self.values: dict[str, list[Any]] = {}  # variable -> all that it is set to
        for block in state.func_ir.blocks.values():
            for statement in block.find_insts(ir.Assign):
                self.values.setdefault(statement.target.name, []).append(statement.value)
        for block in state.func_ir.blocks.values():
            body: list[Any] = []
            small = self._small(block)
            for statement in block.body:
                if isinstance(statement, ir.Assign):
                    self._assign(statement, small, block, body)
                elif isinstance(statement, ir.Return):
                    statement.value = self._call(_PLAIN, statement.value, block, body)
                elif isinstance(statement, ir.DynamicRaise | ir.DynamicTryRaise | ir.TryRaise):
                    text = "it raises what is computed: use a constant text"
                    raise _Refused(text, statement.loc)
                elif isinstance(statement, ir.SetItem | ir.StaticSetItem | ir.SetAttr | ir.Print):
                    raise _Refused(f"it changes an object: {_REMEDY}", statement.loc)
                body.append(statement)
            block.body = body
        return True

    @staticmethod
    def _call(row: object, argument: Any, block: Any, body: list[Any]) -> Any:
        function = ir.Var(block.scope, f"$nicemu.f{len(body)}.{argument.name}", argument.loc)
        result = ir.Var(block.scope, f"$nicemu.r{len(body)}.{argument.name}", argument.loc)
        body.append(ir.Assign(ir.Global("plain", row, argument.loc), function, argument.loc))
        call = ir.Expr.call(function, [argument], (), argument.loc)
        body.append(ir.Assign(call, result, argument.loc))
        return result

    def _small(self, block: Any) -> set[str]:
        """Variables that are only operands: integer constants there take the other's type."""
        operands: set[str] = set()
        others: set[str] = set()
        for statement in block.body:
            value = getattr(statement, "value", None)
            if isinstance(value, ir.Expr) and value.op in _BINARY:
                operands |= {value.lhs.name, value.rhs.name}
                others |= {value.rhs.name} if value.fn in (operator.pow, operator.ipow) else set()
            elif isinstance(value, ir.Expr) and value.op == "call":
                operands |= {arg.name for arg in (*value.args, *dict(value.kws).values())}
            elif isinstance(statement, ir.Assign) and isinstance(value, ir.Var):
                others.add(value.name)
            elif hasattr(statement, "list_vars"):
                target = {statement.target.name} if isinstance(statement, ir.Assign) else set()
                others |= {v.name for v in statement.list_vars()} - target
        return operands - others

    def _assign(self, statement: Any, small: set[str], block: Any, body: list[Any]) -> None:
        value, target = statement.value, statement.target.name
        if isinstance(value, ir.Const | ir.Global | ir.FreeVar):
            statement.value = self._constant(value.value, target in small, value)
            self._check_one(target, value.value, value.loc)
        elif isinstance(value, ir.Expr):
            if value.op not in _EXPRESSIONS:
                text = _WORDS.get(value.op, value.op.replace("_", " "))
                raise _Refused(f"it uses {text}: {_REMEDY}", value.loc)
            module = self._known(value.value.name) if value.op == "getattr" else None
            if isinstance(module, ModuleType):
                if not hasattr(module, value.attr):
                    text = f"{module.__name__} has no {value.attr}: {_REMEDY}"
                    raise _Refused(text, value.loc)
                found = getattr(module, value.attr)
                self._check_one(target, found, value.loc)
                name = f"{module.__name__}.{value.attr}"
                statement.value = self._constant(
                    found, target in small, ir.Global(name, found, value.loc)
                )
            elif value.op in _BINARY and value.fn in (
                operator.pow,
                operator.ipow,
            ):
                statement.value = self._power(value, block, body)
            elif value.op == "unary" and value.fn is operator.neg:
                statement.value = self._call(_NEGATED, value.value, block, body)
            elif value.op == "call" and value.vararg is None:
                callee = self._known(value.func.name)
                callee = callee.py_func if isinstance(callee, Dispatcher) else callee
                if isinstance(callee, FunctionType) and callee not in _KNOWN:
                    statement.value = self._bound(callee, value, block, body)

    def _known(self, variable: str, seen: tuple[str, ...] = ()) -> Any:
        """The Python object that a variable is on every way; ir.UNDEFINED: there is none."""
        found = ir.UNDEFINED
        for value in self.values.get(variable, ()):
            one = ir.UNDEFINED
            if isinstance(value, ir.Const | ir.Global | ir.FreeVar):
                one = value.value
            elif isinstance(value, ir.Var):
                if value.name in seen:
                    continue
                one = self._known(value.name, (*seen, variable))
            elif isinstance(value, ir.Expr) and value.op == "getattr":
                module = self._known(value.value.name, (*seen, variable))
                if isinstance(module, ModuleType):
                    one = getattr(module, value.attr, ir.UNDEFINED)
            if one is ir.UNDEFINED or (found is not ir.UNDEFINED and found is not one):
                return ir.UNDEFINED
            found = one
        return found

    def _check_one(self, variable: str, value: Any, loc: Any) -> None:
        """A function or module that a variable is set to is the only one."""
        several = self._known(variable) is ir.UNDEFINED and value is not ir.UNDEFINED
        if several and (isinstance(value, ModuleType) or callable(value)):
            raise _Refused(f"{variable} is set to several functions: use a name for each", loc)

    def _bound(self, callee: FunctionType, call: Any, block: Any, body: list[Any]) -> Any:
        """The call of a helper with all arguments in order, the defaults too."""
        takes = inspect.signature(callee)
        name = callee.__name__
        if any(x.kind not in (x.POSITIONAL_ONLY, x.POSITIONAL_OR_KEYWORD)
               for x in takes.parameters.values()):  # fmt: skip
            text = f"{name}{takes} takes arguments by * or only by name: write them out"
            raise _Refused(text, call.loc)
        try:
            bound = takes.bind(*call.args, **dict(call.kws))
        except TypeError as error:
            raise _Refused(f"{name}{takes}: {error}: pass what it takes", call.loc) from None
        given = dict(bound.arguments)
        bound.apply_defaults()
        arguments = []
        for parameter, value in bound.arguments.items():
            variable = value
            if parameter not in given:
                label = f"$nicemu.d{len(body)}.{parameter}"
                variable = ir.Var(block.scope, label, call.loc)
                constant = self._constant(value, True, ir.Const(value, call.loc))
                body.append(ir.Assign(constant, variable, call.loc))
            arguments.append(variable)
        return ir.Expr.call(call.func, arguments, (), call.loc)

    def _constant(self, value: object, small: bool, node: Any) -> Any:
        """What stands for a constant, global or closure variable."""
        real = isinstance(self.unit.number, types.Float)
        name = getattr(node, "name", "")
        if isinstance(value, bool | np.bool_ | type(None) | ModuleType) or value is range:
            return node
        if isinstance(value, str) and isinstance(node, ir.Const):
            return node  # a text of an exception
        if isinstance(value, float | np.float64 | np.float16):
            return ir.Const(self.unit.constant(value, node.loc), node.loc)
        if isinstance(value, np.number):
            return ir.Const(value, node.loc)
        if isinstance(value, int):
            if not -(2**63) <= value < 2**64:
                raise _Refused(f"{value} has more than 64 bits: use np.uint64 and shifts", node.loc)
            return ir.Const(np.int16(value) if real and small and -(2**15) <= value < 2**15
                            else value, node.loc)  # fmt: skip
        if isinstance(value, tuple) and all(isinstance(x, int | float | np.number) for x in value):
            constants = [
                self.unit.constant(x, node.loc) if isinstance(x, float) else x for x in value
            ]
            return ir.Const(tuple(constants), node.loc)
        if isinstance(value, Dispatcher):  # of @numba.njit
            value = value.py_func
        if isinstance(value, FunctionType) and value not in _KNOWN:
            return ir.Global(value.__name__, self.unit.helper(value, node.loc), node.loc)
        try:
            row = _KNOWN.get(value)
        except TypeError:  # not hashable
            row = None
        if row is not None:
            return ir.Global(name, row, node.loc)
        if isinstance(value, type) and issubclass(value, BaseException):
            return node
        if value is ir.UNDEFINED:
            raise _Refused(f"{name} is not defined: define it", node.loc)
        kind = type(value).__name__
        shown = f"{name} ({kind})" if name and name != kind else kind
        raise _Refused(f"it uses {shown}: {_INSTEAD.get(name, _REMEDY)}", node.loc)

    def _power(self, value: Any, block: Any, body: list[Any]) -> Any:
        """x ** n as products, for a whole constant n; always the same ones in the same order."""
        exponent = self._known(value.rhs.name)
        if not isinstance(exponent, int) or not 0 <= exponent <= MOST_POWER:
            text = f"x ** y is for whole constants of 0 to {MOST_POWER}: use a product, math.sqrt, "
            raise _Refused(text + "or math.exp(y * math.log(x))", value.loc)
        loc = value.loc

        def product(a: Any, b: Any) -> Any:
            return ir.Expr.binop(operator.mul, a, b, loc)

        def named(expression: Any) -> Any:
            out = ir.Var(block.scope, f"$nicemu.p{len(body)}.{value.lhs.name}", loc)
            body.append(ir.Assign(expression, out, loc))
            return out

        if exponent == 0:
            return ir.Const(np.int16(1), loc)
        total, square = None, value.lhs
        while exponent:
            if exponent & 1:
                total = square if total is None else named(product(total, square))
            exponent >>= 1
            if exponent:
                square = named(product(square, square))
        return total


@register_pass(mutates_CFG=False, analysis_only=True)
class _Report(FunctionPass):  # type: ignore[misc]
    """What the author should know: a float32 op that computes in float64."""

    _name = "nicemu_report"

    def __init__(self) -> None:
        FunctionPass.__init__(self)

    def run_pass(self, state: Any) -> bool:
        unit: _Unit = state.typingctx.unit
        lines = [
            statement.loc.line
            for block in state.func_ir.blocks.values()
            for statement in block.find_insts(ir.Assign)
            if state.typemap.get(statement.target.name) == types.float64
        ]
        for block in state.func_ir.blocks.values():
            for statement in block.find_insts(ir.Assign):
                value = statement.value
                if isinstance(value, ir.Expr) and value.op == "call":
                    row = getattr(state.typemap[value.func.name], "typing_key", None)
                    wide = types.float64 in state.calltypes[value].args
                    if row is range and any(
                        isinstance(state.typemap[arg.name], types.Float) for arg in value.args
                    ):
                        raise _Refused("range is of integers: write range(int(x))", value.loc)
                    if isinstance(row, Call) and wide and row.single:
                        name = row.real.format("f64")
                        raise _Refused(missing(name), value.loc)
                phi = isinstance(value, ir.Expr) and value.op == "phi"
                if phi and ir.UNDEFINED in value.incoming_values:
                    name = statement.target.unversioned_name
                    raise _Refused(f"{name} has no value on some way: set it before", value.loc)
        if lines and unit.number == types.float32:
            where = f"{Path(state.func_ir.loc.filename).name}:{min(lines)}"
            unit.notes.append(f"{where}: computed in float64")
        return False


class _Lower(lowering.Lower):  # type: ignore[misc]
    """numba's, which lets exceptions know what statement they are of."""

    def lower_function_body(self) -> Any:
        self.context.unit.loops = any(
            target <= label
            for label, block in self.blocks.items()
            for target in block.terminator.get_targets()
        )
        return super().lower_function_body()

    def lower_inst(self, inst: Any) -> None:
        self.context.unit.loc = self.loc
        super().lower_inst(inst)


@register_pass(mutates_CFG=True, analysis_only=False)
class _Lowering(typed_passes.BaseNativeLowering):  # type: ignore[misc]
    """numba's pass, with the above."""

    _name = "nicemu_lowering"

    @property
    def lowering_class(self) -> type:
        return _Lower


class _Pipeline(compiler.CompilerBase):  # type: ignore[misc]
    """numba's passes from byte code to LLVM, without those that inline, lift or vectorise."""

    def define_pipelines(self) -> list[Any]:
        passes = PassManager("nicemu")
        for step in (
            untyped_passes.TranslateByteCode,
            untyped_passes.FixupArgs,
            untyped_passes.IRProcessing,
            untyped_passes.GenericRewrites,
            _Resolve,
            untyped_passes.DeadBranchPrune,
            untyped_passes.ReconstructSSA,
            typed_passes.NopythonTypeInference,
            _Report,
            typed_passes.PreLowerStripPhis,
            typed_passes.NoPythonSupportedFeatureValidation,
            typed_passes.IRLegalization,
            typed_passes.AnnotateTypes,
            _Lowering,
            typed_passes.NoPythonBackend,
        ):
            passes.add_pass(step, step.__name__)
        passes.finalize()
        return [passes]


# ---- what the author is told ---------------------------------------------------------------------
#: a part of numba's message -> what it means here; the groups are filled in
_MEANINGS: tuple[tuple[str, str], ...] = (
    (r"constraint encountered: raise", "it raises what is computed: use a constant text"),
    (r"Directly raising a string", "it raises a text: raise an exception, such as ValueError"),
    (r"exception constant <class '(\w+)'>", "it raises {0}, which is no Exception: use another"),
    (r"lowering <built-in function floor>",
     "% and // are for integers: use math.floor(a / b), or a - b * math.floor(a / b)"),
    (r"Illegal IR, del", "it uses del: leave it out"),
    (r"Type of variable '\$\w+\.\d+' cannot be determined",
     "a value is lost to it: write := as a line of its own"),
    (r"NameError: name '(\w+)' is not defined", "there is no {0}: define or import it"),
    (r"Untyped global name '(\w+)'", "it uses {0}, which a core does not have: " + _REMEDY),
    (r"Unknown attribute '(\w+)' of type (.+)", "{1} has no {0}: " + _REMEDY),
    (r"Invalid use of getiter with parameters \((.*)\)",
     "it loops over {0}: loop over a range, or over a tuple of numbers of one type"),
    (r"expected (\d+), got (\d+)", "it unpacks {1} numbers into {0} names: use as many"),
    (r"Invalid use of (\w+\d|bool) with parameters", "it calls {0}, which is a number: use *"),
    (r"built-in function getitem>\) found for signature:\s*>>> \w+\((\w+\d|bool), ",
     "an index is into {0}, which is one number: leave it out"),
    (r"built-in function getitem>\) found for signature:\s*>>> \w+\(.*, (bool|float\d+)\)",
     "an index is {0}: write int(x)"),
    (r"built-in function getitem>\) found for signature:\s*>>> \w+\((.*Tuple\(.*)\)",
     "a variable index is into numbers of several types: make them of one"),
    (r"tuple index out of range", "an index is outside of its tuple: use 0 to its length - 1"),
    (r"built-in function (\w+)>\) found for signature:\s*>>> \w+\((.*(?:Fields|Tuple)\(.*)\)",
     "{0} is not defined for {1}: write it for each number"),
    (r"built-in function (i?(?:and|or)_?|i?xor|i?[lr]shift|invert)>\) found for signature:\s*"
     r">>> \w+\((.*)\)", "{0} is of integers, not {1}: use int(x), or nicemu.ops.opmath.bits(x)"),
    (r"built-in function (\w+)>\) found for signature:\s*>>> \w+\((.*)\)",
     "{0} is not defined for {1}: " + _REMEDY),
    (r"No implementation of function Function\((\w+)\) found for signature:\s*>>> [^(]*\((.*)\)",
     "{0} is called with {1}: pass what it takes, {takes}"),
    (r"Cannot unify Function\((\w+)\) and Function\((\w+)\)",
     "a function is {0} on one way and {1} on another: call each on its way"),
    (r"Cannot unify (.+) and (.+) for '([$\w.]+)'",
     "{2} is {0} on one way and {1} on another: give it one type"),
    (r"[Cc]an't unify return type from the following types: (.+)",
     "it returns {0} on different ways: return one type"),
    (r"variable '(\w+)' referenced before assignment|Variable '(\w+)' referenced before",
     "{0} has no value on some way: set it before"),
    (r"[Uu]nsupported opcode.*?\(?([A-Z_]{4,})", "it uses what byte code calls {0}: " + _REMEDY),
    (r"(?:Use of unsupported|unsupported) (.*)", "it uses {0}: " + _REMEDY),
    (r"No definition for lowering <built-in method.*?>\((.*)\) -> ",
     "a core cannot do this with {0}: " + _REMEDY),
    (r"No definition for lowering (.*)", "a core cannot do {0}: " + _REMEDY),
)  # fmt: skip


#: operators as numba names them -> as authors write them
_SYMBOLS = {
    "and_": "&", "or_": "|", "xor": "^", "lshift": "<<", "rshift": ">>", "invert": "~",
    "iand": "&=", "ior": "|=", "ixor": "^=", "ilshift": "<<=", "irshift": ">>=", "add": "+",
    "iadd": "+=", "sub": "-", "isub": "-=", "mul": "*", "imul": "*=", "truediv": "/",
    "itruediv": "/=", "floordiv": "//", "ifloordiv": "//=", "mod": "%", "imod": "%=",
    "matmul": "@", "imatmul": "@=", "neg": "-", "pos": "+", "lt": "<", "le": "<=", "gt": ">",
    "ge": ">=", "eq": "==", "ne": "!=", "getitem": "[]",
}  # fmt: skip
#: numba's names of types -> an author's
_TYPES = (
    (r"\x1b\[[0-9;]*m", ""),
    (r"_Context\(int64 x \d+\)", "ctx"),
    (r"Literal\[str\]\([^)]*\)|unicode_type", "a text"),
    (r"Literal\[\w+\]\(([^)]*)\)", r"\1"),
    (r"\bnone\b", "None"),
    (r"\$[$\w.]+", "a value"),  # without a name
    (r"\b([^\W\d]\w*)\.\d+\b", r"\1"),  # a variable's value, by number
    (r"Fields\([^()]*\)", "fields"),
    (r"(?:Uni)?Tuple\([^()]*\)", "a tuple"),
    (r"(?:Uni)?Tuple\([^()]*\)", "a tuple"),  # of tuples
    (r"\s+", " "),
)


def _named(text: str) -> str:
    """numba's words for types and operators as an author's."""
    for pattern, name in _TYPES:
        text = re.sub(pattern, name, text)
    return _SYMBOLS.get(text.strip(), text.strip())


def _takes(name: str) -> str:
    """How many numbers a function of the above takes."""
    rows = (row for row in CALLS if repr(row) == name)
    counts = {1: "one number", 2: "two numbers", None: "two numbers or more"}
    return next((counts[row.arity] for row in rows), "numbers")


def _explained(error: BaseException) -> str:
    text = re.sub(r"\x1b\[[0-9;]*m", "", str(error))
    for pattern, meaning in _MEANINGS:
        if found := re.search(pattern, text):
            groups = found.groups("")
            takes = _takes(groups[0]) if groups else ""
            return meaning.format(*map(_named, groups), takes=takes)
    lines = [x.strip() for x in text.splitlines() if x.strip() and not x.startswith("Failed in")]
    return f"{lines[0] if lines else type(error).__name__}: {_REMEDY}"


def _located(function: FunctionType, loc: Any = None) -> str:
    """File and line, also of a helper in another file; without a place, where the function is."""
    code = function.__code__
    file, line = (loc.filename, loc.line) if loc else (code.co_filename, code.co_firstlineno)
    return f"{Path(file).name}:{line}"


# ---- the door ------------------------------------------------------------------------------------
_Context = namedtuple("_Context", CONTEXT)  # type: ignore[misc]


def _numba_type(number: Number) -> Any:
    return types.boolean if number.kind == "bool" else getattr(types, str(number))


@cache
def _record(names: tuple[str, ...]) -> type:
    """One class for the same names: numba takes others for other types."""
    return namedtuple("Fields", names)


def _argument(item: Item) -> Any:
    numbers = [_numba_type(computed(row)) for row in item.formats]
    if item.scalar:
        return numbers[0]
    names = _record(tuple(name for name, _ in item.fields))
    if len(set(numbers)) == 1:
        return types.NamedUniTuple(numbers[0], len(numbers), names)
    return types.NamedTuple(numbers, names)


def _computing(accumulator: Item) -> Number:
    """What the constants of an op are: float32 or float64, or the first field's integers."""
    numbers = [computed(row) for row in accumulator.formats]
    floats = [number for number in numbers if number.kind == "float"]
    return max(floats) if floats else numbers[0]


def _number(ty: Any) -> Number | None:
    """None: it is no number."""
    if isinstance(ty, types.Boolean):
        return Number("bool", 8)
    if isinstance(ty, types.Integer):
        return Number("int" if ty.signed else "uint", ty.bitwidth)
    return Number("float", ty.bitwidth) if ty in (types.float32, types.float64) else None


def compile_function(
    function: FunctionType,
    arguments: Sequence[Item],
    accumulator: Item,
    context: bool,
    what: str,
    lines: bool = False,
) -> ScalarFunction:
    """The IR of a function.

    Args:
        function: pure Python.
        arguments: what it is called with: numbers, or named tuples of them.
        accumulator: of the op: float constants are of the number that its widest float is computed
            in, or float64 where it has none.
        context: whether the context comes after the arguments.
        what: it is, for messages.
        lines: whether instructions say which line of source they are of.

    Raises:
        OpError: it cannot be compiled for a core; the message says where, why and what to do.
    """
    given = [_argument(item) for item in arguments]
    if context:
        given.append(types.NamedUniTuple(types.int64, len(CONTEXT), _Context))
    unit = _Unit(_numba_type(_computing(accumulator)), what.partition(" of ")[0], lines)
    with global_compiler_lock:
        try:
            _read(function)
            done = unit.compile(function, given)
        except _Refused as error:
            raise OpError(f"{what} ({_located(function, error.loc)}): {error}") from None
        except Exception as error:  # numba's own errors, and what it trips over
            loc = getattr(error, "loc", None)
            raise OpError(f"{what} ({_located(function, loc)}): {_explained(error)}") from None
    returned = done.signature.return_type
    parts = list(returned) if isinstance(returned, types.BaseTuple) else [returned]
    numbers = [_number(ty) for ty in parts]
    if None in numbers or not numbers:
        text = f"{_named(str(returned))}: return a number, or a tuple of numbers"
        if returned == types.none:
            text = "nothing: return a number, or a tuple of numbers"
        elif isinstance(returned, types.Optional):
            text = "nothing on some way: return a number on every one"
        raise OpError(f"{what} ({_located(function)}): it returns {text}")
    convention = _CallConvention(_contexts()[1])
    return ScalarFunction(
        modules=tuple(map(defined, unit.library.modules)),
        symbol=done.fndesc.llvm_func_name,
        out=str(convention.get_return_type(returned).pointee),
        results=tuple(x for x in numbers if x is not None),
        context=context,
        where=f"{what} ({_located(function)})",
        statuses=unit.statuses.texts(),
        notes=tuple(f"{what}, {note}" for note in unit.notes),
    )
