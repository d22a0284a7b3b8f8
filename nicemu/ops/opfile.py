"""Reduce ops by name on the command line: FILE.py:NAME, or a built-in one.

Owns: running the user's file, and what is said when it does not give an op.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

from nicemu.dtypes import Format
from nicemu.errors import ArgumentError, FileFormatError, NicemuError
from nicemu.ops.builtin import BUILTINS, PREMUL_SUM, builtin
from nicemu.ops.op import ReduceOp

__all__ = ["find_op"]


def find_op(name: str) -> Callable[[str | Format], ReduceOp]:
    """What gives the op of that name for a format of elements.

    Args:
        name: of a built-in op, as :func:`nicemu.ops.builtin.builtin` takes it, or ``FILE.py:NAME``.
            The file is run, as ``python FILE.py`` would, but for ``__name__``, which is not
            ``"__main__"``.

    Raises:
        ArgumentError: there is no such op.
        FileFormatError: the file cannot be read or run.
    """
    path, colon, attribute = name.rpartition(":")
    if name.partition(":")[0] == "premul_sum":
        summed = builtin(name, "float32")  # of any element, and its factor is looked at now
        return lambda _: summed
    if name in BUILTINS:
        return lambda element: builtin(name, element)
    if not (path if colon else name).endswith(".py"):
        names = ", ".join((*BUILTINS, PREMUL_SUM))
        raise ArgumentError(f"op {name!r} is unknown: use FILE.py:NAME or one of {names}")
    module = _run(Path(path if colon else name))
    found = getattr(module, attribute, None) if colon else None
    if isinstance(found, ReduceOp):
        return lambda _: found
    ops = [key for key, value in vars(module).items() if isinstance(value, ReduceOp)]
    remedy = "define one with @nicemu.reduce_op"
    if ops:
        remedy = f"use {', '.join(f'{path or name}:{key}' for key in ops)}"
    what = f"is {type(found).__name__} and no reduce op" if found is not None else "is no reduce op"
    raise ArgumentError(f"op {name!r} {what}: {remedy}")


def _run(path: Path) -> ModuleType:
    """The module of a file."""
    if not path.is_file():
        raise FileFormatError(f"{path}: there is no such file: name a Python file with an op")
    spec = spec_from_file_location(f"nicemu_op_{path.stem}", path)
    assert spec is not None and spec.loader is not None  # it ends in .py
    module = module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look there
    sys.path.insert(0, str(path.resolve().parent))  # the file may import its neighbours
    try:
        spec.loader.exec_module(module)
    except (NicemuError, OSError) as error:
        raise FileFormatError(f"{path}{_line(error, path)}: {error}") from error
    except (Exception, SystemExit) as error:
        text = f"{type(error).__name__}: {error}".rstrip(": ")
        raise FileFormatError(f"{path}{_line(error, path)}: {text}: mend the file") from error
    finally:
        sys.path.remove(str(path.resolve().parent))
    return module


def _line(error: BaseException, path: Path) -> str:
    """Where in the file it happened."""
    if isinstance(error, SyntaxError):
        return f":{error.lineno}"
    frames = traceback.extract_tb(error.__traceback__)
    lines = [f.lineno for f in frames if f.filename == str(path)]
    return f":{lines[-1]}" if lines else ""
