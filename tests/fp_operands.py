"""Operands for tests of arithmetic: structured first, then random; the same for every format."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tests.mpfr_oracle import Bits, Format, from_float, to_float


def structured(f: Format) -> Bits:
    """Exponent edges x mantissa patterns x signs: zeros, subnormals, infinities, NaNs included."""
    bias, top, m = f.emax, (1 << f.ebits) - 1, f.mbits
    exponents = {0, 1, 2, m, m + 1, bias - m - 1, bias - m, bias - 2, bias - 1, bias, bias + 1}
    exponents |= {bias + m, bias + m + 1, top - m - 1, top - 2, top - 1, top}
    ones, half = (1 << m) - 1, 1 << (m - 1)
    mantissas = {0, 1, 2, half - 1, half, half + 1, half | 1 << (m - 2), ones // 3, ones - 1, ones}
    return np.array(
        [
            s << (f.width - 1) | e << m | p
            for s in (0, 1)
            for e in sorted(exponents)
            if 0 <= e <= top
            for p in sorted(mantissas)
        ],
        np.uint64,
    )


def _random(f: Format, n: int, rng: np.random.Generator) -> Bits:
    return (
        rng.integers(0, 1 << f.width, n, np.uint64, endpoint=False)
        if f.width < 64
        else (rng.integers(0, (1 << 64) - 1, n, np.uint64, endpoint=True))
    )


def _near(f: Format, a: Bits, rng: np.random.Generator) -> Bits:
    """Numbers with exponents within a mantissa's length of those of a, and few or many bits set."""
    n = len(a)
    m, top = f.mbits, (1 << f.ebits) - 1
    exponent = (a >> np.uint64(m)).astype(np.int64) & top
    exponent = np.clip(exponent + rng.integers(-m - 3, m + 4, n), 0, top - 1).astype(np.uint64)
    one = np.uint64(1) << rng.integers(0, m, n).astype(np.uint64)
    ones = np.uint64((1 << m) - 1)
    mantissa = np.choose(
        rng.integers(0, 4, n),
        [one, ones ^ (one - np.uint64(1)), one - np.uint64(1), _random(f, n, rng) & ones],
    )
    sign = rng.integers(0, 2, n).astype(np.uint64) << np.uint64(f.width - 1)
    return sign | exponent << np.uint64(m) | mantissa


def _beside(f: Format, v: NDArray[np.float64], rng: np.random.Generator) -> Bits:
    """Numbers of f at most a few units away from v."""
    with np.errstate(all="ignore"):
        if f.name == "bfloat16":
            bits = (v.astype(np.float32).view(np.uint32) >> 16).astype(np.uint64)
        else:
            bits = from_float(f, v)
    return bits + rng.integers(-2, 3, len(v)).astype(np.uint64) & np.uint64(f.mask)


def _partners(f: Format, a: Bits, rng: np.random.Generator) -> Bits:
    """Numbers whose product or quotient with a is at an edge: smallest normal, or overflow."""
    x, n = to_float(f, a), len(a)
    edges = [2.0**f.emin, 2.0**f.emin / 2, (2 - 2.0**-f.mbits) * 2.0**f.emax]
    with np.errstate(all="ignore"):
        target = rng.choice(edges, n) * rng.choice([-1, 1], n)
        return _beside(f, np.where(rng.random(n) < 0.5, target / x, x / target), rng)


def tuples(f: Format, arity: int, n: int, seed: int) -> list[Bits]:
    """n operand tuples as `arity` columns.

    Half are drawn from `structured`; the others lie near each other's exponents, or where products
    and quotients meet the edges of the format, or are random bits.  Of three operands, a third of
    the last are minus the product of the first two, or a few units beside it.
    """
    rng = np.random.default_rng([seed, f.width, f.ebits, arity])
    edges = structured(f)
    if arity == 1 and n > len(edges):
        return [np.concatenate([edges, _random(f, n - len(edges), rng)])]
    first = np.where(rng.random(n) < 0.6, rng.choice(edges, n), _random(f, n, rng))
    columns = [first]
    for _ in range(arity - 1):
        kinds = [rng.choice(edges, n), _near(f, first, rng), _partners(f, first, rng)]
        kind = rng.choice(4, n, p=[0.45, 0.2, 0.15, 0.2])
        columns.append(np.choose(kind, [*kinds, _random(f, n, rng)]))
    if arity == 3:
        with np.errstate(all="ignore"):
            product = -(to_float(f, columns[0]) * to_float(f, columns[1]))
        columns[2] = np.where(rng.random(n) < 0.35, _beside(f, product, rng), columns[2])
    return columns


def integers(n: int, seed: int) -> Bits:
    """64-bit patterns: every power of two and its neighbours, then random ones of any length."""
    rng = np.random.default_rng([seed, 64])
    powers = np.uint64(1) << np.arange(64, dtype=np.uint64)
    edges = np.concatenate([powers - np.uint64(1), powers, powers + np.uint64(1)])
    edges = np.concatenate([edges, np.uint64(0) - edges])
    rest = rng.integers(0, (1 << 64) - 1, max(n - len(edges), 0), np.uint64, endpoint=True)
    rest >>= rng.integers(0, 64, len(rest)).astype(np.uint64)
    rest = np.where(rng.random(len(rest)) < 0.5, rest, np.uint64(0) - rest)
    return np.concatenate([edges, rest])
