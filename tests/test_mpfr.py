"""That no floating-point row escapes the comparison with MPFR, and that what is wrong is seen."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from nicemu._core import instructions
from tests import fp_scalar, fp_vector, mpfr
from tests.mpfr_oracle import NX, RUP, Bits, Flags

MEMORY = {"load", "store", "vload", "vstore"}
UNITS = {"fadd", "fmul", "fma", "fdiv", "fsqrt", "fcvt", "fmisc"}


def test_every_row_is_compared() -> None:
    """Floating point by name or by the unit that executes it: a new row needs an oracle."""
    fp_name = re.compile(r"(f|vf|vmf)(?!ence|irst)")
    table = {
        row.name
        for row in instructions()
        if row.cls not in MEMORY
        and (fp_name.match(row.name) or row.cls in UNITS or row.cls.startswith("vf"))
    }
    assert table == {case.name for case in mpfr.CASES}


def seen(case: mpfr.Case, columns: list[Bits], bit: int, flag: int) -> int:
    """Differences of a case when its oracle is wrong about the last tuple, rounding up only."""

    def wrong(right: tuple[Bits, Flags], rm: int) -> tuple[Bits, Flags]:
        bits, flags = right[0].copy(), right[1].copy()
        bits[-1] ^= np.uint64(bit * (rm == RUP))
        flags[-1] ^= flag * (rm == RUP)
        return bits, flags

    if isinstance(case, fp_scalar.Row):
        expect = case.expect
        case = case._replace(expect=lambda rm, *a: wrong(expect(rm, *a), rm))
    else:
        lanes = case.fp.lanes
        fp = case.fp._replace(lanes=lambda rm, *a: wrong(lanes(rm, *a), rm))
        case = replace(case, fp=fp)
    return len(case.differences(columns))


@pytest.mark.parametrize("name", ["fadd.s", "fcvt.w.h", "vfmul.vv", "vfmacc.vf", "vfredosum.vs"])
def test_a_wrong_bit_or_flag_is_seen(name: str) -> None:
    case = next(c for c in mpfr.CASES if c.name == name)
    columns = case.operands(3 * fp_vector.RUN)
    assert seen(case, columns, 0, 0) == 0
    assert seen(case, columns, 1, 0) > 0
    assert seen(case, columns, 0, NX) > 0


def test_the_command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A table of what was compared, 1 when something differs."""
    case = next(c for c in fp_scalar.ROWS if c.name == "fadd.s")
    monkeypatch.setattr(mpfr, "CASES", (case,))
    assert mpfr.main(["--seed", "3", "--pairs", "20"]) == 0
    assert re.search(r"^fadd.f +- +- +20 +-$", capsys.readouterr().out, re.MULTILINE)
    sub = next(c for c in fp_scalar.ROWS if c.name == "fsub.s")
    monkeypatch.setattr(mpfr, "CASES", (case._replace(expect=sub.expect),))
    assert mpfr.main(["--seed", "3", "--pairs", "20"]) == 1
    assert re.search(r"^fadd.f +- +- +20 !\d+ +-$", capsys.readouterr().out, re.MULTILINE)
