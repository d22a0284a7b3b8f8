"""``python -m tests.mpfr``: every floating-point row against MPFR, as often as asked for.

Scalar and vector rows in all five rounding modes, results and flags, on every host path; all
65,536 values of rows with one 16-bit operand.  The rows and what they must do are those of the
tests (fp_scalar.py, fp_vector.py); this is the command and its table: per operation and format the
operand tuples compared in each mode, and after a ! how many comparisons failed.  An operation in a
format may be several cases: the SEWs, and the ways in which a conversion ends in it.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np

from tests import fp_scalar, fp_vector
from tests.mpfr_oracle import FORMATS, MODES, Bits

Case = fp_scalar.Row | fp_vector.Case
CASES: tuple[Case, ...] = (*fp_scalar.ROWS, *fp_vector.CASES)
#: Differences of one case that are printed.
SHOWN = 3


def operands(case: Case, pairs: int, seed: int) -> list[Bits]:
    """`pairs` tuples, or all there are."""
    if case.unary_16_bit:
        every = np.arange(1 << 16, dtype=np.uint64)
        rest = [np.zeros(len(every), np.uint64)] * (len(case.operands(1)) - 1)
        return [every, *rest]
    return case.operands(pairs, seed)


def lines(compared: Counter[tuple[str, str]], wrong: Counter[tuple[str, str]]) -> Iterator[str]:
    """The table: a line per operation, a column per format."""
    names = [f.name for f in FORMATS]
    yield f"{'operation':22}" + "".join(f"{name:>14}" for name in names)
    for operation in dict.fromkeys(operation for operation, _ in compared):
        cells = []
        for name in names:
            n, bad = compared[operation, name], wrong[operation, name]
            cells.append((f"{n} !{bad}" if bad else str(n)) if n else "-")
        yield f"{operation:22}" + "".join(f"{cell:>14}" for cell in cells)


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns 0; 1 when a result differs."""
    parser = argparse.ArgumentParser("python -m tests.mpfr", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--pairs", type=int, default=2000, help="operand tuples per case")
    options = parser.parse_args(arguments)
    if options.pairs < 1:
        parser.error(f"--pairs {options.pairs}: use 1 or more")
    compared, wrong = Counter[tuple[str, str]](), Counter[tuple[str, str]]()
    start = time.monotonic()
    for case in CASES:
        chosen = operands(case, options.pairs, options.seed)
        differences = case.differences(chosen)
        key = case.operation, case.column
        compared[key] += len(chosen[0])
        wrong[key] += len(differences)
        for text in differences[:SHOWN]:
            print(text, flush=True)
    print("\n".join(lines(compared, wrong)))
    n, bad, paths = compared.total(), wrong.total(), " and ".join(fp_scalar.PATHS)
    print(
        f"seed {options.seed}, {paths}: {n} operand tuples of {len(CASES)} cases in {len(MODES)} "
        f"modes: {n * len(MODES)} compared with MPFR, {bad} differences, "
        f"{time.monotonic() - start:.0f} s"
    )
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
