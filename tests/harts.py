"""One hart with a code and a data region: what most tests of instructions need."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from nicemu import _core
from nicemu.errors import ArgumentError
from tests.encode import image

CODE = 0x1000
DATA = 0x100000
STACK_ROOM = 256


def simd_paths() -> list[str]:
    """The host paths that this machine has."""
    out = []
    for path in [name for name in _core.SIMD if name != "auto"]:
        try:
            _core.Cores(simd=path)
        except ArgumentError:
            continue
        out.append(path)
    return out


class Hart:
    """Hart 0 of a fresh set of cores; ``code`` and ``data`` are its memory as uint8 arrays."""

    def __init__(
        self,
        words: Iterable[int] = (),
        *,
        simd: str = "auto",
        vlen: int = 512,
        data_size: int = 1 << 20,
        extensions: Sequence[str] | None = None,
    ) -> None:
        self.cores = _core.Cores(1, vlen, simd=simd, extensions=extensions)
        self.cores.map(CODE, 1 << 16, _core.R | _core.X)
        self.data = self.cores.map(DATA, data_size, _core.R | _core.W)
        self.load(words)
        self.x = self.cores.x()
        self.f = self.cores.f()
        self.v = self.cores.v()

    def load(self, words: Iterable[int]) -> None:
        """Put a program at CODE; what follows it is no instruction."""
        code = image(words)
        self.cores.write(CODE, code + bytes(8))

    def csr(self, name: str) -> int:
        return self.cores.csr(name)

    def set_csr(self, name: str, value: int) -> None:
        self.cores.set_csr(name, value)

    def step(self, n: int = 1) -> _core.Stop:
        """Run n instructions from CODE, registers as they are."""
        self.cores.set_pc(CODE)
        return self.cores.run(n)

    def run(self, budget: int = 10**9) -> _core.Stop:
        """Run from CODE, registers as they are, until something stops it."""
        self.cores.set_pc(CODE)
        return self.cores.run(budget)

    def call(self, *args: int, budget: int = 10**9) -> _core.Stop:
        """Call CODE as a handler: in U-mode, from known registers, with arguments in a0..a3.

        Raises:
            AssertionError: it did not return.
        """
        sp = DATA + len(self.data) - STACK_ROOM
        stop = self.cores.call(CODE, args, sp=sp, budget=budget)
        assert stop.reason == _core.RETURN, stop
        return stop

    def array(self, offset: int, count: int, dtype: type[np.generic]) -> np.ndarray:
        """A typed view of the data region, `offset` bytes from its start."""
        nbytes = count * np.dtype(dtype).itemsize
        return self.data[offset : offset + nbytes].view(dtype)
