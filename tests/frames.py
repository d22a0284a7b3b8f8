"""``python -m tests.frames``: as many hostile frames as asked for, each judged twice.

Batches of good frames are changed in numpy (bits, fields, lengths, cuts, noise, splices), half of
them sealed afterwards so that the later checks are reached; the core's verdict on each is compared
with that of wire_model.  Each frame ends where readable memory ends: reading past it is a crash,
with or without sanitizers.
"""

from __future__ import annotations

import argparse
import ctypes
import mmap
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from nicemu._nicemu import ffi, lib
from nicemu.network.packet import Kind, Packet, build, drops, elements
from tests import wire_model as model

Array = np.ndarray
BATCH = 4096
POOL = 64  # good frames that a batch starts from
#: largest payload of a batch's good frames, and bytes by which a frame may grow
SIZES = ((0, 8), *[(8, 8)] * 2, *[(64, 16)] * 4, *[(256, 64)] * 2, (1024, 64), (4096, 300))
EDGES = np.array([0, 1, 2, 0x7F, 0x80, 0xFF, 0x7FFF, 0xFFFF, 0xFFFFFF, 0x7FFFFFFF, 0xFFFFFFFF])
NAMES = ("accepted", *(drop.name for drop in drops()))
#: Differences that are printed.
SHOWN = 5


class Batch(NamedTuple):
    """Frames as wire_model has them."""

    frames: Array
    n: Array


def good_frames(rng: np.random.Generator, most: int) -> list[bytes]:
    """Frames that any receiver accepts."""
    chosen = []
    for element in rng.choice(list(elements()), POOL):
        size = elements()[element].size * int(rng.integers(most // elements()[element].size + 1))
        numbers = rng.integers(1 << 32, size=4).tolist()
        chosen.append(
            build(
                Packet(
                    Kind(int(rng.integers(1, 3))),
                    job=int(rng.integers(1 << 16)),
                    **dict(zip(("group", "seq", "chunk", "round"), numbers, strict=True)),
                    lane=int(rng.integers(64)),
                    child=int(rng.integers(64)),
                    contributors=int(rng.integers(1 << 16)),
                    element=str(element),
                    partial=bool(rng.integers(2)),
                    moved=bool(rng.integers(2)),
                    psn=int(rng.choice([0, 1, 0x7FFFFF, 0xFFFFFE, 0xFFFFFF])),
                    src=int(rng.integers(1 << 24)),
                    dst=int(rng.integers(1 << 24)),
                    payload=rng.bytes(size),
                )
            )
        )
    return chosen


# ---- what is done to them: each changes the rows in place ------------------------------------


def keep(rng: np.random.Generator, b: Batch) -> None:
    pass


def flip_bits(rng: np.random.Generator, b: Batch) -> None:
    """One to three bits anywhere."""
    for _ in range(rng.integers(1, 4)):
        at = rng.integers(b.n)
        b.frames[np.arange(len(b.n)), at] ^= np.uint8(1) << rng.integers(
            8, size=len(b.n), dtype="u1"
        )


def change_head(rng: np.random.Generator, b: Batch) -> None:
    """One byte of the headers, to anything."""
    at = rng.integers(12, model.HEAD, size=len(b.n))
    b.frames[np.arange(len(b.n)), at] = rng.integers(256, size=len(b.n))


def edge_field(rng: np.random.Generator, b: Batch) -> None:
    """One field to a value at the edge of something."""
    fields = list(model.FIELDS)
    which = rng.integers(len(fields), size=len(b.n))
    for i, name in enumerate(fields):
        rows = b.frames[which == i]
        model.put(rows, name, rng.choice(EDGES, len(rows)))
        b.frames[which == i] = rows


def cut(rng: np.random.Generator, b: Batch) -> None:
    """Fewer bytes."""
    b.n[:] = rng.integers(b.n + 1)


def cut_little(rng: np.random.Generator, b: Batch) -> None:
    b.n[:] -= rng.integers(1, 9, size=len(b.n))


def grow(rng: np.random.Generator, b: Batch) -> None:
    """More bytes, or many more; zeros."""
    room = b.frames.shape[1] - b.n
    b.n[:] += np.where(rng.integers(2, size=len(b.n)), rng.integers(room + 1), rng.integers(1, 9))


def noise(rng: np.random.Generator, b: Batch) -> None:
    """Random bytes of random length."""
    b.frames[:] = rng.integers(256, size=b.frames.shape, dtype=np.uint8)
    b.n[:] = rng.integers(b.frames.shape[1] + 1, size=len(b.n))


def splice(rng: np.random.Generator, b: Batch) -> None:
    """The head of one frame before the rest of another."""
    b.frames[:, : model.HEAD] = rng.permutation(b.frames[:, : model.HEAD])


CHANGES = (keep, flip_bits, change_head, change_head, edge_field, edge_field, cut, cut_little, grow)
RARE = (noise, splice)


def batch(rng: np.random.Generator) -> Batch:
    """Changed frames, half of them sealed again."""
    most, growth = SIZES[rng.integers(len(SIZES))]
    pool, pool_n = model.as_rows(*good_frames(rng, most))
    which = rng.integers(POOL, size=BATCH)
    frames = np.zeros((BATCH, model.HEAD + most + 3 + model.ICRC + growth), np.uint8)
    frames[:, : pool.shape[1]] = pool[which]
    n = pool_n[which]
    changes = (*CHANGES, RARE[rng.integers(len(RARE))])
    kind = rng.integers(len(changes), size=BATCH)
    for i, change in enumerate(changes):
        part = Batch(frames[kind == i], n[kind == i])
        change(rng, part)
        frames[kind == i], n[kind == i] = part
    frames[np.arange(frames.shape[1]) >= n[:, None]] = 0
    whole = n >= model.LEAST_FRAME
    for seal, share in ((model.seal, 0.25), (model.seal_checksums, 0.5)):
        chosen = whole & (rng.random(BATCH) < share) & (kind != changes.index(keep))
        rows = frames[chosen]
        seal(rows, n[chosen])
        frames[chosen] = rows
    return Batch(frames, n)


# ---- the core's verdicts ---------------------------------------------------------------------


class Edge:
    """Memory whose last byte is the last that may be read."""

    PAGES = 4

    def __init__(self) -> None:
        page = mmap.PAGESIZE
        self._memory = mmap.mmap(-1, (self.PAGES + 1) * page)
        start = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        size = self.PAGES * page
        if ctypes.CDLL(None, use_errno=True).mprotect(ctypes.c_void_p(start + size), page, 0):
            raise OSError(ctypes.get_errno(), "mprotect")
        self.end = ffi.cast("uint8_t *", start + size)


def core_verdicts(edge: Edge, b: Batch) -> Array:
    """The core's verdict on each frame, as positions in NAMES."""
    packet, size = ffi.new("nicemu_packet *"), ffi.new("uint32_t *")
    rows, width = ffi.from_buffer("uint8_t[]", b.frames), b.frames.shape[1]
    parse, move, end = lib.nicemu_packet_parse, ffi.memmove, edge.end
    found = np.empty(len(b.n), np.int64)
    for i, n in enumerate(b.n.tolist()):
        at = end - n
        move(at, rows + i * width, n)
        found[i] = parse(at, n, 1, packet, size)
    return found


def run(frames: int, seed: int) -> Iterator[tuple[Batch, Array, Array]]:
    """Batches, the core's verdicts and the model's, by name."""
    edge, names = Edge(), np.array(NAMES)
    for number in range(-(-frames // BATCH)):
        b = batch(np.random.default_rng((seed, number)))
        yield b, names[core_verdicts(edge, b)], model.verdicts(*b)


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns 0; 1 when the two verdicts on a frame differ."""
    parser = argparse.ArgumentParser("python -m tests.frames", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--frames", type=int, default=1_000_000)
    options = parser.parse_args(arguments)
    if options.frames < 1:
        parser.error(f"--frames {options.frames}: use 1 or more")
    counts: Counter[str] = Counter()
    wrong, start = 0, time.monotonic()
    for b, core, expected in run(options.frames, options.seed):
        counts.update(core.tolist())
        for i in np.flatnonzero(core != expected).tolist():
            wrong += 1
            if wrong <= SHOWN:
                frame = b.frames[i, : b.n[i]].tobytes()
                print(f"{core[i]}, not {expected[i]}: {frame.hex()}", flush=True)
    for name in NAMES:
        if counts[name]:
            print(f"{name:10}{counts[name]:>12}")
    print(
        f"seed {options.seed}: {counts.total()} frames, {wrong} judged differently by the model, "
        f"{time.monotonic() - start:.0f} s"
    )
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
