"""Elements to try ops on, per format: simple ones, ordinary ones, and the ends of the format.

Owns: the lists.  What is tried with them is cost's and check's affair.
"""

from __future__ import annotations

import numpy as np

from nicemu.dtypes import Format

__all__ = ["edges", "every", "ordinary", "simple"]

SMALL = 100  # the largest ordinary integer


def ordinary(row: Format, count: int, seed: int) -> np.ndarray:
    """Random elements, shape (count,): floats of a normal distribution around 0 of deviation 1,
    integers of -100..100 but 0, by which an op may divide, or 1..100, bools.
    """
    rng = np.random.default_rng([seed, count])
    if row.kind == "float":
        return rng.standard_normal(count).astype(row.dtype)
    lowest = -SMALL if row.kind == "int" else 0
    numbers = rng.integers(lowest, 2 if row.kind == "bool" else SMALL + 1, count)
    if row.kind != "bool":
        numbers[numbers == 0] = 1
    return numbers.astype(row.dtype)


def simple(row: Format, fraction_bits: int) -> np.ndarray:
    """Elements that are easy to calculate with, the simplest first.

    Args:
        row: their format.
        fraction_bits: of the accumulator: half an ulp of its 1 is among them, where the format has
            it, and the number of which 1 is half an ulp.
    """
    if row.kind == "bool":
        return np.array([False, True])
    numbers = [0, 1, 2, 3, 5, 10, 100]
    if row.kind == "uint":
        return np.array(numbers, row.dtype)
    signed = [sign * n for n in numbers for sign in (1, -1) if n or sign > 0]
    if row.kind == "int":
        return np.array(signed, row.dtype)
    half_ulp = 2.0 ** -(fraction_bits + 1)
    with np.errstate(over="ignore", under="ignore"):
        values = np.array([*signed, 0.5, -0.5, 0.1, half_ulp, 1 / half_ulp], row.dtype)
    return values[np.isfinite(values.astype(np.float64))]


def edges(row: Format) -> np.ndarray:
    """Where formats end: zeros, the largest and smallest numbers, infinities, a NaN."""
    if row.kind == "bool":
        return np.array([], row.dtype)
    if row.kind != "float":
        info = np.iinfo(row.dtype)
        return np.array([info.max, info.min, info.max - 1], row.dtype)
    sign = 1 << (8 * row.size - 1)
    infinite = row.infinity & ((1 << row.fraction_bits) - 1) == 0
    largest = row.infinity - 1 if infinite else row.infinity
    magnitudes = [0, largest, row.infinity, 1 << row.fraction_bits, 1]
    patterns = [m | s for m in dict.fromkeys(magnitudes) for s in (0, sign)] + [row.canonical_nan]
    return np.array(patterns[1:], row.bits_dtype).view(row.dtype)  # +0 is simple


def every(row: Format) -> np.ndarray:
    """All patterns of a format of at most 16 bits, as its dtype; of a bool 0 and 1."""
    if row.kind == "bool":
        return np.array([False, True])
    return np.arange(1 << (8 * row.size), dtype=row.bits_dtype).view(row.dtype)
