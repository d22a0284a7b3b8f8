"""Making a program that shows a difference small, and writing it down."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from tests.encode import encode, size
from tests.lockstep.compare import Pair
from tests.lockstep.layout import CODE, DATA, HANDLER, START_FIELDS, Batch

__all__ = ["from_dict", "listing", "shrink", "to_dict"]

NOP4 = encode("addi", rd=0, rs1=0).to_bytes(4, "little")
NOP2 = encode("c.nop").to_bytes(2, "little")


def instructions_of(program: Batch) -> Iterator[tuple[int, int]]:
    """Offset in CODE and size of each instruction up to the handler, one after the other."""
    code = program.region(CODE, 0)
    at, last = 0, max(int(np.flatnonzero(code[: HANDLER - CODE.base])[-1]), 1)
    while at < last:
        n = size(int(code[at]))
        yield at, n
        at += n


def shrink(program: Batch, pair: Pair, row: str | None, whole: bool) -> Batch:
    """A smaller program that still differs first at an instruction of this row.

    Args:
        program: one slot; left as it is.
        pair: the machines.
        row: of the first difference.
        whole: the difference shows only when the program is run at once.
    """
    small = program.copy([0])

    step: int | None = None

    def still() -> bool:
        nonlocal step
        pair.load(small, 0)
        if not pair.differs_whole():
            return False
        if whole:
            return pair.freedom(None) is None
        d = pair.first_difference(step)
        if d is None or d.row != row or pair.freedom(d):
            return False
        step = d.step
        return True

    def attempt(change: Callable[[], None]) -> None:
        saved = [getattr(small, name).copy() for name in ("memory", "x", "f", "v", "start")]
        change()
        if not still():
            for name, value in zip(("memory", "x", "f", "v", "start"), saved, strict=True):
                getattr(small, name)[:] = value

    places = list(instructions_of(small))
    code = small.region(CODE, 0)
    width = len(places)
    while width:
        for first in range(0, len(places), width):

            def blank(part: list[tuple[int, int]] = places[first : first + width]) -> None:
                for at, n in part:
                    code[at : at + n] = np.frombuffer(NOP4 if n == 4 else NOP2, np.uint8)

            attempt(blank)
        width //= 2
    for array in (small.v[0], small.f[0], small.x[0], small.region(DATA, 0).reshape(64, -1)):
        attempt(lambda array=array: array.fill(0))  # type: ignore[misc]
        for i in range(len(array)):
            if np.any(array[i]):
                attempt(lambda array=array, i=i: array.__setitem__(i, 0))  # type: ignore[misc]
    return small


def to_dict(program: Batch) -> dict[str, Any]:
    """A program as data that JSON can hold: what is 0 is left out."""
    out: dict[str, Any] = {"vlen": program.vlen}
    out["start"] = dict(zip(START_FIELDS, map(int, program.start[0]), strict=True))
    for name in ("x", "f"):
        values = getattr(program, name)[0]
        out[name] = {int(i): hex(values[i]) for i in np.flatnonzero(values)}
    rows = np.flatnonzero(program.v[0].any(axis=1))
    out["v"] = {int(i): program.v[0, i].tobytes().hex() for i in rows}
    lines = program.memory[0].reshape(-1, 16)
    out["memory"] = {int(i): lines[i].tobytes().hex() for i in np.flatnonzero(lines.any(axis=1))}
    return out


def from_dict(data: dict[str, Any]) -> Batch:
    """The inverse of ``to_dict``."""
    vlen = data["vlen"]
    program = Batch(bytearray(Batch.size(1, vlen)), 1, vlen)
    program.start[0] = [data["start"][name] for name in START_FIELDS]
    for name in ("x", "f"):
        for i, value in data[name].items():
            getattr(program, name)[0, int(i)] = int(value, 16)
    for i, text in data["v"].items():
        program.v[0, int(i)] = np.frombuffer(bytes.fromhex(text), np.uint8)
    for i, text in data["memory"].items():
        program.memory[0].reshape(-1, 16)[int(i)] = np.frombuffer(bytes.fromhex(text), np.uint8)
    return program


def listing(program: Batch, pair: Pair) -> str:
    """The instructions that are no nop, and the registers that are not 0."""
    code = program.region(CODE, 0)
    cores = pair.subject.cores
    lines = []
    for at, n in instructions_of(program):
        raw = code[at : at + n].tobytes()
        word = int.from_bytes(raw, "little")
        if raw not in (NOP4, NOP2):
            text = cores.disasm(word, CODE.base + at)[0] if cores.decode(word) else "illegal"
            lines.append(f"    {CODE.base + at:#x}: {word:0{2 * n}x}  {text}")
    start = zip(START_FIELDS, program.start[0], strict=True)
    lines.append("    start: " + " ".join(f"{name}={int(v):#x}" for name, v in start))
    for letter in "xf":
        values = getattr(program, letter)[0]
        some = [f"{letter}{i}={values[i]:#x}" for i in np.flatnonzero(values)]
        lines += ["    " + " ".join(some)] if some else []
    for i in np.flatnonzero(program.v[0].any(axis=1)):
        lines.append(f"    v{i}={program.v[0, i][::-1].tobytes().hex()}")
    return "\n".join(lines)
