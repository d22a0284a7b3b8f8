"""The device against the stream reference: every built-in op, format and preset."""

from __future__ import annotations

import numpy as np
import pytest

import nicemu
from nicemu.device.image import PRESETS
from nicemu.device.nic import Stream
from nicemu.dtypes import GRADIENTS, Format, format_of
from nicemu.reference.arithmetic import OPS
from nicemu.reference.tree import reduce_streams, reduce_tree
from tests.harts import simd_paths
from tests.test_reference_streams import ROWS, as_values, columns


def reduce(
    op: str, fmt: Format, preset: str, streams: list[np.ndarray], simd: str = "auto"
) -> np.ndarray:
    nic = nicemu.Nic(simd=simd)
    nic.load(nicemu.kernel(op, fmt, preset))
    bits: np.ndarray = nic.reduce(streams).values.view(fmt.bits_dtype)
    return bits


@pytest.mark.parametrize("simd", simd_paths())
@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("fmt", GRADIENTS, ids=lambda f: f.name)
def test_same_bits(fmt: Format, op: str, preset: str, simd: str) -> None:
    """Structured and random bits, NaNs with payloads among them; each fan-in takes part."""
    for workers in (1, 2, 3, 5, 15):
        streams = as_values(columns(fmt, workers, 1333, seed=4), fmt)
        got = reduce(op, fmt, preset, streams, simd)
        want = reduce_streams(op, fmt, streams, preset)
        wrong = np.flatnonzero(got != want)
        assert not wrong.size, (
            f"{workers} workers, element {wrong[0]}: "
            f"{[hex(s.view(fmt.bits_dtype)[wrong[0]]) for s in streams]} "
            f"gave {got[wrong[0]]:#x}, not {want[wrong[0]]:#x}"
        )


@pytest.mark.parametrize(("op", "name", "preset", "inputs", "want"), ROWS)
def test_known_reductions(
    op: str, name: str, preset: str, inputs: list[float], want: float
) -> None:
    """Their right values are checked in test_reference_streams."""
    fmt = format_of(name)
    streams = [np.full(33, x).astype(fmt.dtype) for x in inputs]
    got = reduce(op, fmt, preset, streams)
    assert np.array_equal(got, reduce_streams(op, fmt, streams, preset))
    assert got.view(fmt.dtype)[0] == pytest.approx(want)


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("fmt", GRADIENTS, ids=lambda f: f.name)
def test_partial_sums_between_devices(fmt: Format, op: str, preset: str) -> None:
    """A device of workers and devices, mixed: `load`, `merge`, `emit` and the fan-in variants."""
    order = ((0, 1), 2, 3, 4, (5,), (6, 7), (8, 9), 10)
    streams = as_values(columns(fmt, 11, 700, seed=5), fmt)
    want = reduce_tree(op, fmt, order, streams, preset)
    nic = nicemu.Nic()
    nic.load(nicemu.kernel(op, fmt, preset))
    children = []
    for i, child in enumerate(order):
        if isinstance(child, int):
            children.append(Stream(streams[child], rank=child))
            continue
        below = nic.reduce([Stream(streams[r], rank=r) for r in child], leave="emit").values
        bits = want.partials[i,]
        assert np.array_equal(below.view(bits.dtype), bits)
        children.append(Stream(below, child[0], len(child), partial=True))
    for leave, bits in (("finish", want.result), ("emit", want.partials[()])):
        got = nic.reduce(children, leave=leave).values.view(bits.dtype)
        wrong = np.flatnonzero(got != bits)
        assert not wrong.size, (
            f"{leave}, element {wrong[0]}: {got[wrong[0]]:#x}, not {bits[wrong[0]]:#x}"
        )
