"""The one door to the C core: opaque handles become objects, error codes become exceptions.

Owns: the cffi module and the translation of its results.  What is mapped where, and what a NIC
is, is decided above (nic, cli).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from nicemu._nicemu import ffi, lib
from nicemu.arguments import known, whole
from nicemu.errors import ArgumentError, Fault, NicemuError

__all__ = [
    "ACCESS",
    "BEAT",
    "BUDGET",
    "FAULT",
    "HTIF",
    "HTIF_REGION",
    "LOG",
    "RETURN",
    "Cores",
    "Counters",
    "Cycles",
    "Handed",
    "Insn",
    "Logged",
    "R",
    "Stop",
    "W",
    "X",
    "bank_beats",
    "bank_bookings",
    "bank_masks",
    "bank_waits",
    "call",
    "class_names",
    "csrs",
    "extension_names",
    "instructions",
    "logged",
    "stage_names",
    "stop_of",
    "term_names",
]

R: int = lib.NICEMU_R
W: int = lib.NICEMU_W
X: int = lib.NICEMU_X
HTIF_REGION: int = lib.NICEMU_HTIF

BUDGET: int = lib.NICEMU_STOP_BUDGET
RETURN: int = lib.NICEMU_STOP_RETURN
FAULT: int = lib.NICEMU_STOP_FAULT
HTIF: int = lib.NICEMU_STOP_HTIF
LOG: int = lib.NICEMU_STOP_LOG

SIMD: dict[str, int] = {
    "auto": lib.NICEMU_SIMD_AUTO,
    "portable": lib.NICEMU_SIMD_PORTABLE,
    "avx2": lib.NICEMU_SIMD_AVX2,
    "avx512": lib.NICEMU_SIMD_AVX512,
}

MOST_HARTS = 64
VLENS = (128, 256, 512, 1024)
LOG_LINE: int = lib.NICEMU_LOG_LINE  # bytes that a line of a log may have
LOG_BYTES = 16 * LOG_LINE  # logged before a run stops
LAST = 2**64 - 1  # address
MOST_BYTES = 1 << 62  # of one region or read: more than any host has

# Exception codes of the RISC-V privileged manual, table of mcause values.
CAUSES: dict[int, str] = {
    0: "instruction address misaligned",
    1: "instruction access fault",
    2: "illegal instruction",
    3: "breakpoint",
    4: "load address misaligned",
    5: "load access fault",
    6: "store/AMO address misaligned",
    7: "store/AMO access fault",
    8: "environment call from U-mode",
    11: "environment call from M-mode",
}


@dataclass(frozen=True)
class Insn:
    """One row of the instruction table (csrc/insn.def).

    Attributes:
        name: mnemonic.
        format: operand layout (csrc/format.def).
        operands: the layout's pattern.
        extension: ISA-string name of the extension it belongs to.
        cls: unit/latency class.
        exec: the body that executes it.
        match, mask: a word w is this instruction when ``w & mask == match``.
        size: bytes of its encoding, 2 or 4.
    """

    name: str
    format: str
    operands: str
    extension: str
    cls: str
    exec: str
    match: int
    mask: int
    size: int


def _text(pointer: Any) -> str:
    return str(ffi.string(pointer).decode())


@cache
def instructions() -> tuple[Insn, ...]:
    """Every implemented instruction, in table order."""
    rows = []
    row = ffi.new("nicemu_insn *")
    for i in range(lib.nicemu_insn_count()):
        call(f"instruction row {i}", lib.nicemu_insn_row, i, row)
        rows.append(
            Insn(
                name=_text(row.name).replace("_", "."),
                format=_text(row.format),
                operands=_text(row.operands),
                extension=_text(row.extension),
                cls=_text(row.cls),
                exec=_text(row.exec),
                match=row.match,
                mask=row.mask,
                size=row.bytes,
            )
        )
    return tuple(rows)


def _names(get: Any) -> Iterator[str]:
    i = 0
    while (name := get(i)) != ffi.NULL:
        yield _text(name)
        i += 1


@cache
def extension_names() -> tuple[str, ...]:
    """Names of the extensions, in the order of the bits of ``Cores(extensions=)``."""
    return tuple(_names(lib.nicemu_extension_name))


@cache
def class_names() -> tuple[str, ...]:
    """Names of the unit/latency classes, in the order of ``Counters.classes``."""
    return tuple(_names(lib.nicemu_class_name))


@cache
def term_names() -> tuple[str, ...]:
    """Names of the terms of a cycle count, in their order."""
    return tuple(_names(lib.nicemu_term_name))


@cache
def csrs() -> dict[str, int]:
    """Name -> number of every CSR that exists."""
    found: dict[str, int] = {}
    name = ffi.new("const char **")
    while (number := lib.nicemu_csr_row(len(found), name)) >= 0:
        found[_text(name[0])] = number
    return found


_ERRORS: dict[int, type[Exception]] = {
    lib.NICEMU_ENOMEM: MemoryError,
    lib.NICEMU_EINVAL: ArgumentError,
    lib.NICEMU_EFAULT: ArgumentError,
    lib.NICEMU_EOVERLAP: ArgumentError,
    lib.NICEMU_ENOCSR: ArgumentError,
}
_WORDS: dict[int, str] = {
    lib.NICEMU_ENOMEM: "the host has no memory left for it: use fewer or smaller regions",
    lib.NICEMU_EINVAL: "outside the documented range",
    lib.NICEMU_EFAULT: "not mapped for this hart: map a region that holds all of it",
    lib.NICEMU_EOVERLAP: "overlaps a region that is mapped already",
    lib.NICEMU_ENOCSR: "no such CSR: see nicemu._core.csrs()",
}


def call(what: str, function: Callable[..., int], *arguments: Any) -> int:
    """A non-negative code of a C function; a negative one, or a number that does not fit its C
    type, becomes an exception.
    """
    try:
        code = function(*arguments)
    except OverflowError as e:
        raise ArgumentError(f"{what}: {_WORDS[lib.NICEMU_EINVAL]} ({e})") from e
    if code < 0:
        raise _ERRORS.get(code, NicemuError)(f"{what}: {_WORDS.get(code, f'error {code}')}")
    return code


@dataclass(frozen=True)
class Stop:
    """Why and where a run ended.

    Attributes:
        reason: BUDGET, RETURN, FAULT, HTIF or LOG.
        hart: which hart.
        cause: exception code, for FAULT.
        address: what mtval would hold (FAULT), or the address stored to (HTIF).
        pc: the faulting instruction, or the next one.
        instructions: retired in this run.
        elements: active vector elements in this run.
    """

    reason: int
    hart: int
    cause: int
    address: int
    pc: int
    instructions: int
    elements: int

    def fault(self) -> Fault | None:
        """The typed fault of a run that ended by trap or budget; None of any other."""
        if self.reason not in (FAULT, BUDGET):
            return None
        trapped = self.reason == FAULT
        return Fault(
            cause=self.cause if trapped else None,
            name=CAUSES.get(self.cause, f"exception {self.cause}") if trapped else "out of budget",
            address=self.address,
            pc=self.pc,
            core=self.hart,
            instructions=self.instructions,
            elements=self.elements,
        )


@dataclass(frozen=True)
class Counters:
    """What one hart has done since its counters were cleared.

    Attributes:
        instructions: retired.
        elements: active vector elements.
        cost: sum of static class costs, in cycles (1 each until a timing model is set).
        loads, stores, atomics: scalar memory instructions.
        load_bytes, store_bytes: bytes of those.
        vector_load_bytes, vector_store_bytes: bytes of vector memory instructions.
        classes: retired instructions per unit/latency class, without zeros.
    """

    instructions: int
    elements: int
    cost: int
    loads: int
    stores: int
    atomics: int
    load_bytes: int
    store_bytes: int
    vector_load_bytes: int
    vector_store_bytes: int
    classes: dict[str, int]


#: what an instruction asks of memory: see nicemu_access
ACCESS = np.dtype(
    [
        ("cycle", np.uint64),
        ("address", np.uint64),
        ("bytes", np.uint32),
        ("beat", np.uint16),
        ("atomic", np.uint16),
    ]
)
#: banks that are wanted in a cycle: see nicemu_beat
BEAT = np.dtype([("cycle", np.uint64), ("banks", np.uint64), ("held", np.uint64)])


@cache
def stage_names() -> tuple[str, ...]:
    """What the time of a collective is spent on."""
    names = (lib.nicemu_stage_name(i) for i in range(lib.NICEMU_STAGES))
    return tuple(ffi.string(name).decode() for name in names)


def bank_beats(accesses: np.ndarray, shape: dict[str, int]) -> np.ndarray:
    """What a hart wants of the banks, cycle by cycle: nicemu_beats.

    Args:
        accesses: shape (n,), dtype ACCESS.
        shape: a nicemu_bank_shape.

    Returns:
        Shape (m,), dtype BEAT, ascending in cycle.

    Raises:
        ArgumentError: banks that are none, or an access of no bytes.
    """
    given = np.ascontiguousarray(accesses, ACCESS)
    start = ffi.cast("nicemu_access *", given.ctypes.data)
    row, count = ffi.new("nicemu_bank_shape *", shape), ffi.new("uint64_t *")
    call("accesses", lib.nicemu_beats, row, start, given.size, ffi.NULL, count)
    out = np.empty(count[0], BEAT)
    room = ffi.cast("nicemu_beat *", out.ctypes.data)
    call("accesses", lib.nicemu_beats, row, start, given.size, room, count)
    return out[: count[0]]


def bank_masks(begins: np.ndarray, ends: np.ndarray, shape: dict[str, int]) -> np.ndarray:
    """The banks of the bytes begins[i]..ends[i]-1, as bits: nicemu_bank_masks.

    Args:
        begins, ends: addresses, shape (n,), dtype uint64.
        shape: a nicemu_bank_shape.

    Returns:
        Shape (n,), dtype uint64.

    Raises:
        ArgumentError: banks that are none, a range of no bytes, or shapes that differ.
    """
    if begins.size != ends.size:
        raise ArgumentError(f"{begins.size} begins and {ends.size} ends: pass one of each")
    out = np.empty(begins.size, np.uint64)
    arrays = [np.ascontiguousarray(each, np.uint64) for each in (begins, ends)]
    pointers = [ffi.cast("uint64_t *", each.ctypes.data) for each in (*arrays, out)]
    row = ffi.new("nicemu_bank_shape *", shape)
    call("banks", lib.nicemu_bank_masks, row, *pointers[:2], out.size, pointers[2])
    return out


def bank_waits(beats: Sequence[np.ndarray], dma: np.ndarray, hold: int) -> list[int]:
    """Cycles that each hart waits for banks: nicemu_banks.

    Args:
        beats: of each hart, of dtype BEAT, ascending in cycle.
        dma: of the DMA engine.
        hold: cycles for which an atomic keeps a bank beyond its own.

    Raises:
        ArgumentError: no hart, or more than 64.
    """
    arrays = [np.ascontiguousarray(each, BEAT) for each in (*beats, dma)]
    pointers = [ffi.cast("nicemu_beat *", each.ctypes.data) for each in arrays]
    waits = ffi.new("uint64_t[]", max(len(beats), 1))
    counts = [each.size for each in arrays[:-1]]
    call(
        f"{len(beats)} harts at the banks (1..64)",
        lib.nicemu_banks,
        *(ffi.new("nicemu_beat *[]", pointers[:-1]), ffi.new("uint64_t[]", counts), len(beats)),
        *(pointers[-1], arrays[-1].size, hold, waits),
    )
    return [int(waits[i]) for i in range(len(beats))]


#: a line of a log: where, which word, and what follows (csrc/log.c)
_LOGGED = re.compile(r"core +\d+: \d 0x(\w+) \(0x(\w+)\)(.*)")
#: a register or CSR with its value, or a place in memory with what was stored there, if anything
_WRITTEN = re.compile(r"\b(mem|[xfv]\d+|c\d+_\w+) +0x(\w+)(?: 0x(\w+))?")


#: of a vector instruction: SEW and vl
_VECTOR = re.compile(r"\be(\d+) m\w+ l(\d+)\b")


class Logged(NamedTuple):
    """An instruction in a log.

    Attributes:
        pc: its address.
        word: it.
        bits: of a vector instruction, vl x SEW; else 0.
        written: name, value and "" of each register or CSR, as "x5", "v8", "c3104_vl"; "mem",
            address and what was stored there, which is "" where it was read.  In hexadecimal.
    """

    pc: int
    word: int
    bits: int
    written: list[tuple[str, str, str]]


def logged(log: bytes) -> Iterator[Logged]:
    """The instructions of a log (:meth:`Cores.take_log`), in the order of their execution."""
    for line in log.decode().splitlines():
        found = _LOGGED.fullmatch(line)
        assert found is not None  # as csrc/log.c writes it
        vector = _VECTOR.search(found[3])
        bits = int(vector[1]) * int(vector[2]) if vector else 0
        yield Logged(int(found[1], 16), int(found[2], 16), bits, _WRITTEN.findall(found[3]))


class Handed(NamedTuple):
    """What is handed to a cluster: a call, or a payload for its DMA engine.

    Attributes:
        start: cycle from which it has its core, or the engine.
        cycles: of the call, when it is alone.
        beats: of the call, dtype BEAT, which count from ``start``.
        address, bytes: that the engine moves; of a call, 0.
    """

    start: int
    cycles: int = 0
    beats: np.ndarray = np.empty(0, BEAT)
    address: int = 0
    bytes: int = 0


def bank_bookings(handed: Sequence[Handed], shape: dict[str, int]) -> list[int]:
    """Cycles that each waits for banks which those before it have: nicemu_booked.

    Args:
        handed: in the order in which they are handed out.
        shape: a nicemu_bank_shape.

    Returns:
        One for each; of a payload, 0.

    Raises:
        ArgumentError: banks that are none.
    """
    arrays = [np.ascontiguousarray(each.beats, BEAT) for each in handed]
    rows = [
        {
            **{name: getattr(each, name) for name in ("start", "cycles", "address", "bytes")},
            "beats": ffi.cast("nicemu_beat *", array.ctypes.data),
            "n_beats": array.size,
        }
        for each, array in zip(handed, arrays, strict=True)
    ]
    waits, row = ffi.new("uint64_t[]", len(rows) + 1), ffi.new("nicemu_bank_shape *", shape)
    call("banks", lib.nicemu_booked, row, ffi.new("nicemu_handed[]", rows), len(rows), waits)
    return [int(waits[i]) for i in range(len(rows))]


@dataclass(frozen=True)
class Cycles:
    """What the clock of one hart says.

    Attributes:
        total: cycles since the clock started, or the counters were cleared.
        terms: what they were spent on, by :func:`term_names`; their sum is ``total``.
    """

    total: int
    terms: dict[str, int]

    def __sub__(self, earlier: Cycles) -> Cycles:
        """What has been counted since."""
        terms = {name: n - earlier.terms[name] for name, n in self.terms.items()}
        return Cycles(self.total - earlier.total, terms)

    def waiting(self, cycles: int) -> Cycles:
        """With so many cycles more, of conflicts with other cores."""
        terms = {**self.terms, "conflicts": self.terms["conflicts"] + cycles}
        return Cycles(self.total + cycles, terms)


class Cores:
    """A set of harts and the memory they share.

    Not for several threads at a time: the harts look at each other's reservations, and a hart's
    decoded code is changed while it runs.
    """

    def __init__(
        self,
        harts: int = 1,
        vlen: int = 512,
        *,
        simd: str = "auto",
        trap_to_guest: bool = False,
        extensions: Sequence[str] | None = None,
    ) -> None:
        """Create harts in M-mode with all registers 0.

        Args:
            harts: 1..64.
            vlen: bits of a vector register: 128, 256, 512 or 1024.
            simd: host path: "auto", "portable", "avx2" or "avx512" (same bits on each).
            trap_to_guest: True: a trap enters mtvec as on bare metal; False: it ends the run.
            extensions: names as in :func:`extension_names`; None = all.

        Raises:
            ArgumentError: an argument is out of range, or the host lacks the SIMD path.
        """
        known("simd", simd, SIMD)
        names = extension_names()
        bits = 0 if extensions is None else 1  # 0 = all; "i" is always there
        for name in extensions or ():
            if name not in names:
                raise ArgumentError(f"extension {name!r} is unknown: use {', '.join(names)}")
            bits |= 1 << names.index(name)
        whole("cores", harts, 1, MOST_HARTS)
        if vlen not in VLENS:
            raise ArgumentError(f"vlen {vlen} is not supported: use 128, 256, 512 or 1024")
        config = ffi.new(
            "nicemu_config *",
            {
                "harts": harts,
                "vlen": vlen,
                "simd": SIMD[simd],
                "trap_to_guest": trap_to_guest,
                "extensions": bits,
            },
        )
        out = ffi.new("nicemu_cores **")
        what = f"cores with harts={harts}, vlen={vlen}, simd={simd!r}"
        call(what, lib.nicemu_open, config, out)
        self._cores = ffi.gc(out[0], lib.nicemu_close)
        self._kept: list[object] = []
        self._mapped = 0  # bytes of all regions
        self._log = np.empty(0, np.uint8)
        self.harts = harts
        self.vlen = vlen

    @property
    def handle(self) -> Any:
        """The C object, for the C functions that take one."""
        return self._cores

    @property
    def simd(self) -> str:
        """Name of the host path in use."""
        return _text(lib.nicemu_simd_name(self._cores))

    def _hart(self, hart: int) -> int:
        if not 0 <= hart < self.harts:
            raise ArgumentError(f"no such hart {hart}: use 0..{self.harts - 1}")
        return hart

    def _mask(self, harts: Sequence[int] | None) -> int:
        mask = 0
        for hart in range(self.harts) if harts is None else harts:
            mask |= 1 << self._hart(hart)
        return mask

    def map(
        self, base: int, size: int, perm: int, harts: Sequence[int] | None = None
    ) -> np.ndarray:
        """Map zeroed memory for some harts (None = all); returns it as a uint8 array.

        Raises:
            ArgumentError: out of range (64 bytes at least), or overlapping what a hart has.
        """
        what = f"region of {size} bytes at {base:#x}"
        if not 0 <= size <= MOST_BYTES:
            raise ArgumentError(f"{what}: {_WORDS[lib.NICEMU_EINVAL]}")
        raw = np.zeros(size + 64, np.uint8)
        memory = raw[(-raw.ctypes.data) % 64 :][:size]
        pointer = ffi.cast("void *", memory.ctypes.data)
        call(what, lib.nicemu_map, self._cores, self._mask(harts), base, size, perm, pointer)
        self._kept.append(raw)
        self._mapped += size
        return memory

    def read(self, address: int, size: int, hart: int = 0) -> bytes:
        """Memory as the host sees it, whatever the permissions.

        Raises:
            ArgumentError: not mapped for that hart, all of it in one region.
        """
        size, address = whole("size", size, 0, MOST_BYTES), whole("address", address, 0, LAST)
        what = f"read of {size} bytes at {address:#x}"
        if not 0 <= size <= self._mapped:
            raise ArgumentError(f"{what}: {_WORDS[lib.NICEMU_EFAULT]}")
        buffer = ffi.new("uint8_t[]", size)
        call(what, lib.nicemu_read, self._cores, hart, address, buffer, size)
        return bytes(ffi.buffer(buffer, size))

    def write(
        self, address: int, data: bytes | bytearray | memoryview | np.ndarray, hart: int = 0
    ) -> None:
        """Write memory as the host, whatever the permissions; all or nothing.

        Args:
            address: of the first byte.
            data: bytes, or a buffer of items of any size, such as an array: all its bytes.
            hart: through whose map.

        Raises:
            ArgumentError: not mapped for that hart, all of it in one region.
        """
        address = whole("address", address, 0, LAST)
        try:
            raw = data.tobytes() if isinstance(data, np.ndarray) else memoryview(data).tobytes()
        except TypeError:
            kind = type(data).__name__
            raise ArgumentError(f"data is of type {kind}: pass bytes or an array") from None
        what = f"write of {len(raw)} bytes at {address:#x}"
        call(what, lib.nicemu_write, self._cores, hart, address, ffi.from_buffer(raw), len(raw))

    def x(self, hart: int = 0) -> np.ndarray:
        """The 32 integer registers as a writable uint64 view (leave x[0] alone)."""
        return self._view(lib.nicemu_x(self._cores, self._hart(hart)), 256).view(np.uint64)

    def f(self, hart: int = 0) -> np.ndarray:
        """The 32 FP registers, NaN-boxed, as a writable uint64 view."""
        return self._view(lib.nicemu_f(self._cores, self._hart(hart)), 256).view(np.uint64)

    def v(self, hart: int = 0) -> np.ndarray:
        """The vector registers as a writable uint8 view of shape (32, vlen/8)."""
        pointer = lib.nicemu_v(self._cores, self._hart(hart))
        return self._view(pointer, 32 * self.vlen // 8).reshape(32, self.vlen // 8)

    def _view(self, pointer: Any, size: int) -> np.ndarray:
        cores = self._cores  # the view keeps the C object alive
        held = ffi.gc(pointer, lambda _, cores=cores: None)
        view: np.ndarray = np.frombuffer(ffi.buffer(held, size), np.uint8)
        return view

    def pc(self, hart: int = 0) -> int:
        """Address of the next instruction."""
        return int(lib.nicemu_get_pc(self._cores, self._hart(hart)))

    def set_pc(self, pc: int, hart: int = 0) -> None:
        """Set the pc (even)."""
        call(f"pc {pc:#x}", lib.nicemu_set_pc, self._cores, hart, pc)

    def csr(self, csr: str | int, hart: int = 0) -> int:
        """Value of a CSR by name or number, with M-mode rights.

        Raises:
            ArgumentError: there is no such CSR.
        """
        value = ffi.new("uint64_t *")
        number = csrs().get(csr, -1) if isinstance(csr, str) else csr
        call(f"CSR {csr}", lib.nicemu_csr_get, self._cores, hart, number & 0xFFFFFFFF, value)
        return int(value[0])

    def set_csr(self, csr: str | int, value: int, hart: int = 0) -> None:
        """Write a CSR by name or number, with M-mode rights.

        Raises:
            ArgumentError: there is no such CSR.
        """
        number = csrs().get(csr, -1) if isinstance(csr, str) else csr
        call(f"CSR {csr}", lib.nicemu_csr_set, self._cores, hart, number & 0xFFFFFFFF, value)

    def mode(self, hart: int = 0) -> int:
        """Privilege mode: 0 = U, 3 = M."""
        return int(lib.nicemu_get_mode(self._cores, self._hart(hart)))

    def set_mode(self, mode: int, hart: int = 0) -> None:
        """Set the privilege mode: 0 = U, 3 = M."""
        call(f"mode {mode}", lib.nicemu_set_mode, self._cores, hart, mode)

    def reset(self, pc: int, hart: int = 0) -> None:
        """Power-on state: registers 0, M-mode, FP and vector units off, next instruction at pc."""
        call(f"pc {pc:#x}", lib.nicemu_reset, self._cores, hart, pc)

    def run(self, budget: int, hart: int = 0) -> Stop:
        """Run one hart while instructions + active vector elements are below ``budget``."""
        out = ffi.new("nicemu_stop *")
        call(f"hart {hart}", lib.nicemu_run, self._cores, hart, budget, out)
        return stop_of(hart, out)

    def run_round_robin(
        self, quantum: int, budget: int, harts: Sequence[int] | None = None
    ) -> Stop:
        """Run harts in turn, ``quantum`` each, until one stops or each has used ``budget``."""
        out = ffi.new("nicemu_stop *")
        which = ffi.new("uint32_t *")
        what = f"turns of {quantum} in a budget of {budget}"
        mask = self._mask(harts)
        call(what, lib.nicemu_run_round_robin, self._cores, mask, quantum, budget, which, out)
        return stop_of(which[0], out)

    def call(
        self, pc: int, args: Sequence[int] = (), *, sp: int, budget: int, hart: int = 0
    ) -> Stop:
        """Call a function in U-mode with up to four arguments; its result is ``x(hart)[10]``."""
        if len(args) > 4:
            raise ArgumentError(f"{len(args)} arguments: use at most 4")
        values = ffi.new("uint64_t[4]", [a & (2**64 - 1) for a in args])
        out = ffi.new("nicemu_stop *")
        call(f"pc {pc:#x}", lib.nicemu_call, self._cores, hart, pc, sp, values, budget, out)
        return stop_of(hart, out)

    def start_log(self) -> None:
        """Log what every instruction commits, in the form of Spike's ``--log-commits``.

        From now on a run may stop with LOG: then :meth:`take_log` and go on.
        """
        text = np.empty(LOG_BYTES, np.uint8)
        call("log", lib.nicemu_log, self._cores, ffi.cast("char *", text.ctypes.data), LOG_BYTES)
        self._log = text

    def take_log(self) -> bytes:
        """The lines since the last call; nothing without :meth:`start_log`."""
        return self._log[: lib.nicemu_log_take(self._cores)].tobytes()

    def counters(self, hart: int = 0) -> Counters:
        """What the hart has done since the counters were cleared."""
        c = ffi.new("nicemu_counters *")
        call(f"hart {hart}", lib.nicemu_counters_get, self._cores, hart, c)
        classes = {n: c.classes[i] for i, n in enumerate(class_names()) if c.classes[i]}
        plain = {
            name: int(getattr(c, name))
            for name in Counters.__dataclass_fields__
            if name != "classes"
        }
        return Counters(**plain, classes=classes)

    def start_clock(self, **timing: int) -> None:
        """Count cycles from now on, as on a machine with these costs; what runs stays the same.

        Args:
            timing: the fields of :class:`nicemu.device.machine.Timing`.

        Raises:
            ArgumentError: a cost is out of range, or there is no vector unit for harts with V.
        """
        costs = ffi.new("nicemu_timing *", timing)
        call("costs of the machine (word: 0 only without V)", lib.nicemu_time, self._cores, costs)

    def cycles(self, hart: int = 0) -> Cycles:
        """What the hart's clock says; zeros without :meth:`start_clock`."""
        c = ffi.new("nicemu_cycles *")
        call(f"hart {hart}", lib.nicemu_cycles_get, self._cores, hart, c)
        return Cycles(int(c.cycles), dict(zip(term_names(), map(int, c.terms), strict=True)))

    def record_accesses(self, room: np.ndarray | None, hart: int = 0) -> None:
        """Record what a hart asks of memory; it runs instruction by instruction then.

        Args:
            room: for so many, of dtype ACCESS; None: no more.  It must outlive the record.
            hart: whose clock runs.

        Raises:
            ArgumentError: it has none.
        """
        at = ffi.NULL if room is None else ffi.cast("nicemu_access *", room.ctypes.data)
        size = 0 if room is None else room.size
        call(f"hart {hart} without a clock", lib.nicemu_accesses, self._cores, hart, at, size)

    def accesses(self, hart: int = 0) -> int:
        """How many accesses there have been since; those beyond the room are lost."""
        count = ffi.new("uint64_t *")
        call(f"hart {hart} without a clock", lib.nicemu_accesses_count, self._cores, hart, count)
        return int(count[0])

    def work(self, hart: int = 0) -> tuple[int, int]:
        """Instructions and active vector elements, of :meth:`counters`."""
        c = ffi.new("nicemu_counters *")
        call(f"hart {hart}", lib.nicemu_counters_get, self._cores, hart, c)
        return int(c.instructions), int(c.elements)

    def clear_counters(self, hart: int = 0) -> None:
        """Start counting from zero."""
        call(f"hart {hart}", lib.nicemu_counters_clear, self._cores, hart)

    def decode(self, word: int) -> Insn | None:
        """The row of an instruction word, or None when it is illegal."""
        i = int(self.find(np.array([word & 0xFFFFFFFF], np.uint32))[0])
        return instructions()[i] if i >= 0 else None

    def find(self, words: np.ndarray) -> np.ndarray:
        """The row number of each uint32 word, as int16; -1 where it is illegal."""
        words = np.ascontiguousarray(words, np.uint32)
        rows = np.empty(words.shape, np.int16)
        lib.nicemu_decode(
            self._cores,
            ffi.from_buffer("uint32_t[]", words),
            words.size,
            ffi.from_buffer("int16_t[]", rows, require_writable=True),
        )
        return rows

    def disasm(self, word: int, pc: int = 0) -> tuple[str, int]:
        """Text of the instruction in ``word`` at ``pc``, and its length in bytes."""
        text = ffi.new("char[128]")
        what = f"word {word:#x} at {pc:#x}"
        size = call(what, lib.nicemu_disasm, self._cores, word & 0xFFFFFFFF, pc, text, 128)
        return _text(text), size


def stop_of(hart: int, out: Any) -> Stop:
    """A C nicemu_stop of one hart as a Stop."""
    return Stop(
        reason=out.reason,
        hart=int(hart),
        cause=out.cause,
        address=out.addr,
        pc=out.pc,
        instructions=out.instructions,
        elements=out.elements,
    )
