"""Elements to try ops on, per format: simple ones, short ones, ordinary ones, and the ends of the
format.

Owns: the lists, and how long numbers are.  What is tried with them is cost's and check's affair.
"""

from __future__ import annotations

from functools import cache

import numpy as np

from nicemu.dtypes import Format

__all__ = ["digits", "edges", "every", "ordinary", "short", "simple"]

SMALL = 100  # the largest ordinary integer
LONGEST = 4096  # more digits than any number has


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


def short(row: Format, count: int, seed: int) -> np.ndarray:
    """Random elements of few binary digits, shape (count,): 1..15 times a power of two, of either
    sign.
    """
    rng = np.random.default_rng([seed, count])
    if row.kind == "bool":
        return rng.integers(0, 2, count).astype(row.dtype)
    numbers, powers = rng.integers(1, 16, count), rng.integers(-4, 4, count)
    signs = rng.choice([1, -1] if row.kind != "uint" else [1], count)
    scaled = np.ldexp(signs * numbers, powers if row.kind == "float" else np.maximum(powers, 0))
    return scaled.astype(row.dtype)


def digits(values: np.ndarray) -> np.ndarray:
    """How long numbers are: binary digits before the point, and twice those behind it; LONGEST for
    what is no finite number.

    Args:
        values: of any dtype that float64 holds.

    Returns:
        Of the same shape, whole numbers.
    """
    with np.errstate(invalid="ignore"):  # signalling NaNs
        wide = values.astype(np.float64)
    finite = np.isfinite(wide)
    fraction, exponent = np.frexp(np.where(finite, np.abs(wide), 0.0))
    units = (fraction * 2.0**53).astype(np.int64)
    behind = 54 - np.frexp((units & -units).astype(np.float64))[1] - exponent
    before = np.maximum(exponent, 1)
    length = before + 2 * np.where(units == 0, 0, np.maximum(behind, 0))
    return np.where(finite, length, LONGEST)


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


@cache
def every(row: Format) -> np.ndarray:
    """All patterns of a format of at most 16 bits, as its dtype, the shortest numbers first; of a
    bool 0 and 1.
    """
    if row.kind == "bool":
        return np.array([False, True])
    patterns = np.arange(1 << (8 * row.size), dtype=row.bits_dtype).view(row.dtype)
    values = patterns[np.argsort(digits(patterns), kind="stable")]
    values.flags.writeable = False
    return values
