"""Hostile frames for devices and workers: ``python -m tests.hostile --frames 10000000``.

Frames are noise, or good ones that are cut, lengthened and changed in some bytes; half of them get
a right ICRC afterwards, so that the checks behind it are reached.  They arrive where slots are in
every state.  What is dropped may change nothing but its counter: a digest of all slots, lanes and
scratchpads says so.  What is accepted without a change was a duplicate; the only arrivals that may
change anything are those that are still missing.
"""

from __future__ import annotations

import argparse
import sys
import time
import zlib
from collections import Counter
from collections.abc import Iterator

import numpy as np

from nicemu.network.packet import Kind, build, parse
from tests.fabrics import Wire, sums_up

BATCH = 500
HEAD = 86
#: bytes that the ICRC takes as ff: ToS, TTL, both checksums, FECN and BECN
MASKED = (15, 22, 24, 25, 40, 41, 46)


def with_icrc(frame: bytearray) -> bytes:
    """The frame with the ICRC that its bytes ask for."""
    body = bytearray(frame[14:-4])
    for i in MASKED:
        body[i - 14] = 0xFF
    return bytes(frame[:-4]) + zlib.crc32(body, zlib.crc32(b"\xff" * 8)).to_bytes(4, "little")


class Target:
    """A device with a complete chunk, one that lacks a worker, and one that nobody has begun."""

    def __init__(self, topology: str) -> None:
        """Bring it there."""
        self.wire = wire = Wire(4, 64 * 8, window=3, topology=topology)
        self.children = len(wire.fabric.devices["nic0"].ranks)
        self.missing = self.children - 1
        for chunk, children in ((0, self.children), (1, self.missing)):
            for child in range(children):
                assert wire.receive(wire.up(child, chunk)) == "accepted"
        result = np.ones(64, np.float32)
        ups = [wire.up(child, chunk) for child in range(self.children) for chunk in range(4)]
        downs = [wire.down(0, chunk, result) for chunk in range(4)]
        device = wire.fabric.devices
        above = device["leaf0"].node if "leaf0" in device else 1
        through = [
            wire.down(0, chunk, result, src=above, dst=device["nic0"].node) for chunk in (1, 2)
        ]
        #: (node, good frame): what the hostile ones are made from
        self.near = [("nic0", build(p)) for p in ups + through]
        self.near += [("rank0", build(p)) for p in downs]

    def is_missing(self, node: str, frame: bytes) -> bool:
        """May this frame change something?"""
        packet = parse(frame)
        if not hasattr(packet, "kind"):
            return False
        if node == "rank0":
            return packet.kind is Kind.DOWN and packet.chunk < 3
        if packet.kind is Kind.DOWN:  # the result of what is complete
            return packet.chunk == 0
        return packet.chunk == 2 or (packet.chunk, packet.child) == (1, self.missing)


def frames(target: Target, rng: np.random.Generator, n: int) -> Iterator[tuple[str, bytes]]:
    """Frames for a target's nodes."""
    for kind, which, cuts, changes in rng.integers(0, 1 << 31, (n, 4)).tolist():
        node, frame = target.near[which % len(target.near)]
        if kind % 16 == 0:
            yield node, rng.bytes(cuts % 4400)
            continue
        body = bytearray(frame)
        if kind % 16 == 1:
            body = body[: cuts % len(body)] if cuts % 2 else body + bytes(cuts % 5000)
        for change in rng.integers(0, 1 << 31, 1 + changes % 3).tolist():
            # mostly the reduction header, else anywhere
            at = 54 + change % 32 if change % 4 else change // 4 % max(len(body), 1)
            if at < len(body):
                body[at] = change >> 16 & 0xFF if change % 3 else body[at] ^ 1 << (change >> 8) % 8
        whole = kind % 32 >= 16 and len(body) > HEAD
        yield node, with_icrc(body) if whole else bytes(body)


def run(n: int, seed: int) -> Counter[str]:
    """Send frames; verdict -> how often.

    Raises:
        AssertionError: a frame that may not has changed something.
    """
    rng = np.random.default_rng(seed)
    verdicts: Counter[str] = Counter()
    targets = [Target("star"), Target("tree(2)")]
    while sum(verdicts.values()) < n:
        i = int(rng.integers(len(targets)))
        fabric = targets[i].wire.fabric
        before, done = fabric.digest(), []
        for node, frame in frames(targets[i], rng, BATCH):
            verdict = fabric.receive(node, frame)
            done.append((node, frame, verdict))
            verdicts[verdict] += 1
        if fabric.digest() != before:
            assert any(
                verdict == "accepted" and targets[i].is_missing(node, frame)
                for node, frame, verdict in done
            ), [frame.hex() for _, frame, _ in done]
            targets[i] = Target(("star", "tree(2)")[i])
        sums_up(fabric.counters())
    return verdicts


def main() -> int:
    """Run as many as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--frames", type=int, default=10_000_000)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    start = time.monotonic()
    verdicts = run(arguments.frames, arguments.seed)
    print(f"{sum(verdicts.values())} frames in {time.monotonic() - start:.0f} s:")
    for name, count in verdicts.most_common():
        print(f"{name:>12} {count}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
