"""What a Python function means, as a value: equal where it would be compiled to the same code.

Owns: the walk over code, constants, closures, globals, and the functions reached from there.  Who
compiles is the front ends' affair.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any, TypeAlias

import numpy as np

__all__ = ["fingerprint"]


def fingerprint(function: FunctionType) -> tuple[Any, ...]:
    """Everything that a function's code depends on, as text and numbers with a stable repr."""
    return _function(function, {})


#: what the walk has come to, in this order: functions, and modules with the code that uses them,
#: as each code is told by the names in it what it may use of a module
_Seen: TypeAlias = dict[tuple[int, ...], int]


def _function(function: FunctionType, seen: _Seen) -> tuple[Any, ...]:
    if (id(function),) in seen:
        return ("again", seen[id(function),])
    seen[id(function),] = len(seen)
    code = function.__code__
    cells = [
        (name, _value(cell.cell_contents, code, seen) if _is_set(cell) else "unset")
        for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True)
    ]
    names = sorted({name for part in _codes(code) for name in part.co_names})
    used = [
        (name, _value(function.__globals__[name], code, seen))
        for name in names
        if name in function.__globals__
    ]
    where = (Path(code.co_filename).name, code.co_firstlineno)
    given = tuple(_value(value, code, seen) for value in function.__defaults__ or ())
    return ("function", where, _code(code), tuple(cells), tuple(used), given)


def _is_set(cell: Any) -> bool:
    try:
        _ = cell.cell_contents
    except ValueError:
        return False
    return True


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def _code(code: CodeType) -> tuple[Any, ...]:
    constants = tuple(_code(x) if isinstance(x, CodeType) else _plain(x) for x in code.co_consts)
    names = (code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars)
    counts = (code.co_argcount, code.co_kwonlyargcount, code.co_flags)
    return (code.co_code, code.co_linetable, constants, names, counts)


def _plain(value: object) -> tuple[str, str]:
    """Of a constant: its value, whatever a class of the user's shows of it, and a NaN's bits."""
    name = type(value).__name__
    if isinstance(value, float | np.number):
        return (name, np.asarray(value).tobytes().hex())
    for kind in (bool, int, str):
        if isinstance(value, kind):
            return (name, kind.__repr__(value))
    return (name, repr(value))


def _value(value: object, code: CodeType, seen: _Seen) -> tuple[Any, ...]:
    value = getattr(value, "py_func", value)  # of numba's dispatchers
    if isinstance(value, FunctionType):
        return _function(value, seen)
    if isinstance(value, bool | int | float | str | np.generic):
        return _plain(value)
    if isinstance(value, tuple):
        return ("tuple", tuple(_value(x, code, seen) for x in value))
    if isinstance(value, ModuleType):
        if (id(value), id(code)) in seen:
            return ("module", value.__name__)
        seen[id(value), id(code)] = len(seen)
        names = sorted({name for part in _codes(code) for name in part.co_names})
        used = [(n, _value(getattr(value, n), code, seen)) for n in names if hasattr(value, n)]
        return ("module", value.__name__, tuple(used))
    kind = type(value)
    return ("object", kind.__module__, kind.__qualname__, getattr(value, "__qualname__", ""))
