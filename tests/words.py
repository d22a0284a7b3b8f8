"""``python -m tests.words``: decode every 32-bit word that could be an instruction.

How many words each row must have follows from the masks alone (``expected``); how many the decoder
gives it is counted.  Of some words also the text: it says whether they are legal, and assembled
again it stays the same.  The 2**30 words are walked in ``SLICES`` by their rd field, so that each
slice meets every opcode.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Sequence

import numpy as np

from nicemu._core import Cores, Insn, instructions
from tests.assemble import assemble
from tests.encode import fields

SLICES = 32
RD = 0xF80
CHUNK = 1 << 20
TEXTS = 9973  # one text in so many words; prime, so that all fields vary
PC = 0x4000


def words(part: int) -> Iterator[np.ndarray]:
    """The 2**25 uint32 words of 32-bit encodings whose rd field is `part`, in chunks."""
    for first in range(0, 1 << 25, CHUNK):
        i = np.arange(first, first + CHUNK, dtype=np.uint32)
        yield i >> 5 << 12 | np.uint32(part << 7) | (i & 31) << 2 | 3


def expected(part: int) -> list[int]:
    """How many words of the slice each row has, by mask and match alone."""
    rows = [row for row in instructions() if row.size == 4]
    own: dict[str, int] = {}
    for row in rows:
        count = _matches(row, part)
        inner = [r for r in rows if _inside(r, row)]
        for r in inner:
            if not any(_inside(r, other) for other in inner):
                count -= _matches(r, part)
        if any(f.operand == "rm" for f in fields(row.format)):  # 5 and 6 are reserved
            count = count * 6 // 8
        own[row.name] = count
    return [own.get(row.name, 0) for row in instructions()]


def _matches(row: Insn, part: int) -> int:
    fixed = part << 7 | 3
    if (row.match ^ fixed) & row.mask & (RD | 3):
        return 0
    return int(1 << 32 - (row.mask | RD | 3).bit_count())


def _inside(a: Insn, b: Insn) -> bool:
    """Is every word of row a also matched by row b, another one?"""
    return a is not b and a.mask & b.mask == b.mask and a.match & b.mask == b.match


def walk(cores: Cores, part: int) -> list[int]:
    """How many words of the slice each row gets; the last number is of illegal ones."""
    counts = np.zeros(len(instructions()) + 1, np.int64)
    for chunk in words(part):
        counts += np.bincount(cores.find(chunk).astype(np.int64) + 1, minlength=len(counts))
    return [*counts[1:].tolist(), int(counts[0])]


def texts(cores: Cores, part: int, every: int = TEXTS) -> int:
    """Check the text of one in `every` words of the slice; returns how many were legal.

    Raises:
        AssertionError: a text is wrong.
    """
    legal = 0
    for n, chunk in enumerate(words(part)):
        some = chunk[-n * CHUNK % every :: every]
        for word, row in zip(some.tolist(), cores.find(some).tolist(), strict=True):
            text, size = cores.disasm(word, PC)
            assert size == 4
            if row < 0:
                assert text == f".word {word:#x}"
                continue
            legal += 1
            assert text.startswith(instructions()[row].name), (hex(word), text)
            assert cores.disasm(assemble(text, PC), PC)[0] == text, hex(word)
    return legal


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns 0, or 1 when a count differs."""
    parser = argparse.ArgumentParser("python -m tests.words", description=__doc__)
    parser.add_argument(
        "--texts", type=int, default=TEXTS, help="check the text of one in so many words"
    )
    options = parser.parse_args(arguments)
    cores = Cores()
    start = time.perf_counter()
    total, shown, wrong = 0, 0, 0
    for part in range(SLICES):
        *counts, illegal = walk(cores, part)
        for row, got, want in zip(instructions(), counts, expected(part), strict=True):
            if got != want:
                print(f"rd {part}: {row.name} has {got} words, not {want}")
                wrong += 1
        total += sum(counts)
        shown += texts(cores, part, options.texts)
        seconds = time.perf_counter() - start
        print(
            f"rd {part:2}: {sum(counts)} legal, {illegal} illegal words; {seconds:.1f} s",
            flush=True,
        )
    print(
        f"{SLICES << 25} words: {total} legal, the counts of {wrong} rows differ; "
        f"the text of {shown} legal words was assembled again"
    )
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
