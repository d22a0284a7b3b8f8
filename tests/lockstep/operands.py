"""Register and memory contents: pools of structured values from which programs take their state."""

from __future__ import annotations

from functools import cache

import numpy as np

from tests.lockstep.layout import DATA

__all__ = ["fp_pool", "lane_pool", "x_pool"]

#: name -> (exponent bits, mantissa bits)
FORMATS = {"f16": (5, 10), "bf16": (8, 7), "f32": (8, 23), "f64": (11, 52)}
POOL = 1 << 12


def fp_values(name: str, count: int, rng: np.random.Generator) -> np.ndarray:
    """`count` encodings of a format: exponents at their edges x patterned mantissas, both signs."""
    exponent_bits, mantissa_bits = FORMATS[name]
    top, bias = (1 << exponent_bits) - 1, (1 << exponent_bits - 1) - 1
    near = [bias + d for d in (-mantissa_bits - 1, -mantissa_bits, -2, -1, 0, 1, 2, mantissa_bits)]
    exponents = np.array([0, 0, 1, 2, top - 1, top, *near, *near], np.uint64)
    full = (1 << mantissa_bits) - 1
    half = 1 << mantissa_bits - 1
    mantissas = np.array([0, 0, 1, full, half, half + 1, half - 1, full - 1], np.uint64)
    e = rng.choice(exponents, count)
    anywhere = rng.integers(0, top + 1, count, np.uint64)
    e = np.where(rng.random(count) < 0.2, anywhere, e)
    m = rng.choice(mantissas, count)
    m = np.where(rng.random(count) < 0.4, rng.integers(0, full + 1, count, np.uint64), m)
    sign = rng.integers(0, 2, count, np.uint64)
    shift = np.uint64(mantissa_bits)
    out: np.ndarray = sign << np.uint64(exponent_bits + mantissa_bits) | e << shift | m
    return out


def _packed(name: str, count: int, rng: np.random.Generator) -> np.ndarray:
    width = 1 + sum(FORMATS[name])
    parts = fp_values(name, count * 64 // width, rng).astype(f"u{width // 8}")
    return parts.view(np.uint64)


def _edges(count: int, rng: np.random.Generator) -> np.ndarray:
    """Numbers at and around powers of two, both signs."""
    power = np.uint64(1) << rng.integers(0, 64, count, np.uint64)
    value = power + rng.integers(-1, 2, count).astype(np.uint64)
    return np.where(rng.random(count) < 0.5, value, ~value + np.uint64(1))


def _pick(kinds: list[np.ndarray], count: int, rng: np.random.Generator) -> np.ndarray:
    return np.choose(rng.integers(0, len(kinds), count), kinds)


@cache
def lane_pool() -> np.ndarray:
    """64-bit pieces of vector registers and memory: packed FP numbers, edges, bytes, noise."""
    rng = np.random.default_rng(1)
    noise = rng.integers(0, 1 << 64, POOL, np.uint64)
    small = rng.integers(-3, 4, POOL * 8, np.int8).view(np.uint64)
    short = rng.integers(-9, 9, POOL * 2, np.int32).view(np.uint64)
    kinds = [_packed(name, POOL, rng) for name in FORMATS]
    kinds += [_edges(POOL, rng), noise, small, short]
    return _pick(kinds, POOL, rng)


@cache
def index_pool() -> np.ndarray:
    """Pieces of index registers: in every element width a number that is often in range."""
    rng = np.random.default_rng(2)
    wide = rng.integers(0, DATA.size, POOL, np.uint64)
    half = rng.integers(0, 2048, POOL * 2, np.uint32).view(np.uint64)
    quarter = rng.integers(0, 512, POOL * 4, np.uint16).view(np.uint64)
    return _pick([wide, half, quarter], POOL, rng)


@cache
def x_pool() -> np.ndarray:
    """Integer registers: addresses in the data region, small numbers, edges, noise."""
    rng = np.random.default_rng(3)
    address = DATA.base + rng.integers(0, DATA.size, POOL, np.uint64)
    aligned = address & ~np.uint64(7)
    small = rng.integers(-40, 41, POOL).astype(np.uint64)
    word = rng.integers(-(1 << 31), 1 << 31, POOL).astype(np.uint64)
    noise = rng.integers(0, 1 << 64, POOL, np.uint64)
    return _pick([address, aligned, small, small, _edges(POOL, rng), word, noise], POOL, rng)


@cache
def fp_pool() -> np.ndarray:
    """FP registers: each format, boxed; some not boxed."""
    rng = np.random.default_rng(4)
    kinds = []
    for name in FORMATS:
        width = 1 + sum(FORMATS[name])
        box = np.uint64((1 << 64) - (1 << width) & (1 << 64) - 1)
        kinds.append(fp_values(name, POOL, rng) | box)
    values = _pick(kinds, POOL, rng)
    unboxed = _packed("f32", POOL, rng)
    return np.where(rng.random(POOL) < 0.08, unboxed, values)
