"""The device: streams and single handlers against numpy, any thread count and host path, hostile
images, arguments.  What formats and ops do bit by bit is in test_bits."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
import pytest

import nicemu
from nicemu import (
    ArgumentError,
    FaultError,
    ImageError,
    KernelImage,
    Machine,
    Nic,
    StatusError,
    kernel,
)
from nicemu.device.image import ENTRIES, REQUIRED, Context, Entry
from nicemu.device.nic import ARGUMENTS, CODE, SCRATCHPAD, STACK, Stream
from nicemu.dtypes import format_of
from tests.encode import encode, image, load_constant, vtype
from tests.harts import simd_paths

ELEMENTS = ("float16", "bfloat16", "float32")
PRESETS = ("wide", "per-hop", "per-add")
OPS = ("sum", "prod", "max", "min", "avg")
Array = np.ndarray


def streams(n: int, count: int, element: str, seed: int = 1) -> list[Array]:
    """Finite values of mixed size, signed zeros among them."""
    rng = np.random.default_rng(seed)
    out = []
    for _ in range(n):
        values = rng.normal(size=count) * rng.choice([0.0, -0.0, 0.5, 1, 1, 8], size=count)
        out.append(values.astype(np.float32).astype(format_of(element).dtype))
    return out


def expected(op: str, preset: str, inputs: Sequence[Array]) -> Array:
    """In stream order, in the preset's accumulator; each numpy operation here rounds once."""
    element = inputs[0].dtype
    accumulator = element if preset == "per-add" else np.dtype(np.float32)
    wide = [x.astype(np.float32) for x in inputs]
    total = wide[0]
    for x in wide[1:]:
        if op in ("sum", "avg"):
            total = total + x
        elif op == "prod":
            total = total * x
        elif op == "max":  # -0 is below +0
            total = np.where((total > x) | ((total == x) & ~np.signbit(total)), total, x)
        else:
            total = np.where((total < x) | ((total == x) & np.signbit(total)), total, x)
        total = total.astype(accumulator).astype(np.float32)
    if op == "avg":
        total = total / np.float32(len(inputs))
    return total.astype(element)


def same_bits(a: Array, b: Array) -> None:
    assert (a.dtype, a.shape) == (b.dtype, b.shape)
    assert a.tobytes() == b.tobytes()


def device(image: KernelImage, **options: object) -> Nic:
    nic = Nic(**options)  # type: ignore[arg-type]
    nic.load(image)
    return nic


# ---- streams ---------------------------------------------------------------------------------


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("element", ELEMENTS)
@pytest.mark.parametrize("op", OPS)
def test_reduce(op: str, element: str, preset: str) -> None:
    nic = device(kernel(op, element, preset))
    for n, count in ((1, 100), (2, 1000), (7, 1025)):
        inputs = streams(n, count, element, seed=count)
        result = nic.reduce(inputs, payload=256)
        same_bits(result.values, expected(op, preset, inputs))


@pytest.mark.parametrize("count", [0, 1, 2, 7, 8, 9, 31, 33, 127, 511, 512, 513, 1023, 1025, 10007])
def test_counts(count: int) -> None:
    nic = device(kernel("sum", "bfloat16"))
    for payload in (1024, 1000, 64):
        inputs = streams(3, count, "bfloat16")
        result = nic.reduce(inputs, payload=payload)
        same_bits(result.values, expected("sum", "wide", inputs))
        assert result.packets == 3 * -(-count // (payload // 2))
        assert result.bytes_in == 3 * 2 * count
        assert sum(c.packets for c in result.cores) == result.packets
        assert result.seconds >= 0 and "packets" in str(result)
        assert f"<p>{count:,} elements" in result._repr_html_()


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 7, 8, 9, 12, 16, 17, 33])
def test_fan_in(n: int) -> None:
    """However the packets are grouped, the order of additions is that of the list."""
    for preset in PRESETS:
        inputs = streams(n, 300, "float16", seed=n)
        result = device(kernel("sum", "float16", preset)).reduce(inputs, payload=128)
        same_bits(result.values, expected("sum", preset, inputs))


@pytest.mark.parametrize("payload", [2, 3, 6, 63, 64, 65, 1024, 4095, 4096])
def test_payload_sizes(payload: int) -> None:
    inputs = streams(2, 2100, "float16")
    result = device(kernel("sum", "float16")).reduce(inputs, payload=payload)
    same_bits(result.values, expected("sum", "wide", inputs))


def counters(nic: Nic) -> list[object]:
    return [nic.counters(core) for core in range(nic.machine.cores)]


def test_any_thread_count_gives_the_same() -> None:
    inputs = streams(5, 20_001, "bfloat16")
    image = kernel("sum", "bfloat16")
    seen = []
    for threads in (1, 2, 3, 8, 50):
        nic = device(image, threads=threads)
        result = nic.reduce(inputs)
        seen.append((result.values.tobytes(), result.cores, counters(nic)))
    assert all(s == seen[0] for s in seen)
    assert len({c.instructions for c in seen[0][1]}) > 1  # cores have different loads
    assert min(c.instructions for c in seen[0][1]) > 0


def test_threads_may_share_a_device() -> None:
    """Calls of several Python threads follow one another: a core's state is never two calls'."""
    nic = device(kernel("sum", "float32"), threads=1)
    inputs = [streams(3, 60_000, "float32", seed) for seed in range(4)]
    with ThreadPoolExecutor(4) as pool:
        results = pool.map(lambda given: nic.reduce(given, payload=4), inputs)
        for given, result in zip(inputs, results, strict=True):
            same_bits(result.values, expected("sum", "wide", given))


@pytest.mark.parametrize("element", ELEMENTS)
@pytest.mark.parametrize("op", OPS)
def test_any_host_path_gives_the_same(op: str, element: str) -> None:
    inputs = streams(9, 3000, element)
    inputs[3][::7] = np.inf
    inputs[4][::5] = np.nan
    image = kernel(op, element)
    seen = []
    for simd in simd_paths():
        nic = device(image, simd=simd)
        seen.append((nic.reduce(inputs).values.tobytes(), counters(nic)))
    assert all(s == seen[0] for s in seen)


@pytest.mark.parametrize("vlen", [128, 256, 512, 1024])
def test_any_vlen_gives_the_same_bits(vlen: int) -> None:
    inputs = streams(5, 3001, "bfloat16")
    nic = device(kernel("sum", "bfloat16"), machine=Machine("wide", vlen=vlen))
    same_bits(nic.reduce(inputs).values, expected("sum", "wide", inputs))


@pytest.mark.parametrize("cores", [1, 3, 64])
def test_any_number_of_cores(cores: int) -> None:
    inputs = streams(3, 5000, "float16")
    nic = device(kernel("sum", "float16"), machine=Machine("some", cores=cores))
    result = nic.reduce(inputs)
    same_bits(result.values, expected("sum", "wide", inputs))
    assert len(result.cores) == cores


def test_the_smallest_scratchpad() -> None:
    """A machine that takes one payload at a time has no room for more, and needs none."""
    tiny = Machine("tiny", cores=2, scratchpad=24576, max_fan_in=1)
    inputs = streams(4, 5000, "float16")
    result = device(kernel("sum", "float16"), machine=tiny).reduce(inputs, payload=4096)
    same_bits(result.values, expected("sum", "wide", inputs))


def test_again_and_again() -> None:
    """A device keeps no trace of what it reduced before."""
    nic = device(kernel("sum", "float16"))
    inputs = streams(3, 999, "float16")
    first = nic.reduce(inputs)
    nic.reduce(streams(4, 5000, "float16", seed=3), payload=4096)
    again = nic.reduce(inputs)
    same_bits(first.values, again.values)
    assert again.cores == first.cores
    nic.load(kernel("max", "bfloat16"))
    other = streams(2, 100, "bfloat16")
    same_bits(nic.reduce(other).values, expected("max", "wide", other))
    nic.load(kernel("sum", "float16"))
    same_bits(first.values, nic.reduce(inputs).values)


def test_counters_are_kept_and_cleared() -> None:
    nic = device(kernel("sum", "float16"))
    result = nic.reduce(streams(3, 9000, "float16"))
    used = [nic.counters(c.core) for c in result.cores]
    assert [u.instructions for u in used] == [c.instructions for c in result.cores]
    assert [u.elements for u in used] == [c.elements for c in result.cores]
    assert all(sum(u.classes.values()) == u.instructions for u in used)
    nic.clear_counters()
    assert all(nic.counters(c).instructions == 0 for c in range(8))


def test_inputs_are_only_read() -> None:
    """Views with any strides are taken; nobody's array is changed."""
    base = np.concatenate(streams(1, 6000, "float32"))
    inputs = [base[::2], base[::-2], base[3000:0:-1], np.broadcast_to(base[:1], 3000)]
    before = base.copy()
    for a in inputs:
        a.flags.writeable = False
    result = device(kernel("sum", "float32")).reduce(inputs)
    same_bits(result.values, expected("sum", "wide", inputs))
    same_bits(base, before)


def test_rows_of_an_array_are_streams() -> None:
    rows = np.stack(streams(3, 100, "float32"))
    result = device(kernel("sum", "float32")).reduce(rows)  # type: ignore[arg-type]
    same_bits(result.values, expected("sum", "wide", list(rows)))


@pytest.mark.parametrize("workers", [4, 8, 9])
@pytest.mark.parametrize("into", [None, 0, 3, -1])
def test_result_into_an_array(into: int | None, workers: int) -> None:
    """A given one, or a stream in place; by one handler call, or by several."""
    inputs = streams(workers, 4000, "bfloat16")
    want = expected("sum", "wide", inputs)
    out = np.empty_like(want) if into is None else inputs[into]
    result = device(kernel("sum", "bfloat16")).reduce(inputs, out=out)
    assert result.values is out
    same_bits(out, want)


def test_progress() -> None:
    nic = device(kernel("sum", "float16"))
    seen: list[int] = []
    nic.reduce(streams(2, 5_000_000 // 2, "float16"), payload=4096, progress=seen.append)
    assert seen == sorted(seen) and seen[-1] == 2_500_000 and len(seen) > 1
    seen.clear()
    nic.reduce(streams(2, 0, "float16"), progress=seen.append)
    assert seen == []


# ---- one handler -----------------------------------------------------------------------------


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("entry", ENTRIES)
def test_handle(entry: str, preset: str) -> None:
    image = kernel("sum", "bfloat16", preset)
    nic = device(image)
    does = Entry.of(entry)
    accumulator = format_of(image.accumulator).dtype
    source = image.partial if does.partials else image.element
    for core, count in ((0, 1), (3, 100), (7, 1000)):
        old = streams(1, count, image.accumulator, seed=9)[0]
        payloads = streams(does.payloads, count, source, seed=count)
        done = nic.handle(entry, payloads, accumulator=old, core=core)
        total = None if does.fresh else old
        for p in payloads:
            wide = p.astype(np.float32)
            total = wide if total is None else total.astype(np.float32) + wide
            total = total.astype(accumulator)
        assert total is not None
        if does.leaving:
            to = format_of(image.partial if does.leaving == "emit" else image.result).dtype
            assert done.output is not None
            same_bits(done.output, total.astype(np.float32).astype(to))
            same_bits(done.accumulator, old)
        else:
            assert done.output is None
            same_bits(done.accumulator, total)
        assert (done.status, done.accumulator.dtype) == (0, accumulator)
        assert done.instructions > 0 and done.elements >= count


def test_handle_keeps_the_accumulator_between_calls() -> None:
    nic = device(kernel("sum", "float16"))
    a, b, c = streams(3, 64, "float16")
    nic.handle("first", [a], core=2)
    nic.handle("acc2", [b, c], core=2)
    done = nic.handle("finish", count=64, core=2)
    assert done.output is not None
    same_bits(done.output, expected("sum", "wide", [a, b, c]))


def test_handle_takes_a_context() -> None:
    nic = device(kernel("avg", "float16"))
    total = np.full(10, 30, np.float32)
    for n in (1, 3, 7, 1 << 20):
        done = nic.handle("finish", accumulator=total, context=Context(contributors=n))
        assert done.output is not None
        same_bits(done.output, (total / np.float32(n)).astype(np.float16))


# ---- hand-made images ------------------------------------------------------------------------

A0, A1, A2, A3, T0, T1, RA, SP = 10, 11, 12, 13, 5, 6, 1, 2
RET = encode("c.jr", rs1=RA)
OK = [encode("c.li", rd=A0, imm=0), RET]


def made(element: str = "float32", **code: Sequence[int]) -> KernelImage:
    """An image of the given entries; the others return 0."""
    blob = image(OK)
    entries = dict.fromkeys(REQUIRED, 0)
    for entry, words in code.items():
        entries[entry] = len(blob)
        blob += image(words)
    return KernelImage(
        op="made",
        preset="wide",
        element=element,
        accumulator="float32",
        partial="float32",
        result="float32",
        code=blob + bytes(len(blob) % 2),
        entries=entries,
    )


FINISH = [  # what first left in the accumulator, as the result
    encode("lw", rd=T0, rs1=A0, imm=0),
    encode("ld", rd=T1, rs1=A1, imm=0),
    encode("sw", rs1=T1, rs2=T0, imm=0),
    *OK,
]


#: offset -> what the handlers of one chunk read there: `first` and `acc` with the number of streams
#: that went before, `finish` (its payload is all of them)
FIELDS: dict[int, tuple[Callable[[int, int], int], Callable[[int], int]]] = {
    0: (lambda chunk, before: 1, lambda chunk: 1),  # ABI version
    4: (lambda chunk, before: before + 1, lambda chunk: 3),  # contributors
    8: (lambda chunk, before: 6 + before, lambda chunk: 6),  # rank: of the payload's worker
    12: (lambda chunk, before: 7, lambda chunk: 7),
    16: (lambda chunk, before: 8 + before, lambda chunk: 8),  # child
    20: (lambda chunk, before: 9, lambda chunk: 9),
    24: (lambda chunk, before: chunk, lambda chunk: chunk),
    28: (lambda chunk, before: 3, lambda chunk: 3),  # group: streams
    32: (lambda chunk, before: 100 + chunk, lambda chunk: 100 + chunk),  # of the caller's array
    40: (lambda chunk, before: 11, lambda chunk: 11),
    48: (lambda chunk, before: 0, lambda chunk: 0),
    60: (lambda chunk, before: 0, lambda chunk: 0),
}


@pytest.mark.parametrize("offset", FIELDS)
def test_context_of_each_call(offset: int) -> None:
    """What handlers read at each offset, chunk by chunk of one element."""
    reducing, finishing = FIELDS[offset]
    keep = [encode("lw", rd=T0, rs1=A3, imm=offset), encode("sw", rs1=A0, rs2=T0, imm=0), *OK]
    tell = [encode("lw", rd=T0, rs1=A3, imm=offset), *FINISH[1:]]
    inputs = [np.zeros(20, np.float32)] * 3
    context = Context(rank=6, device=7, child=8, seq=9, element=100, seed=11)
    for code, value in (
        ({"first": keep, "finish": FINISH}, lambda chunk: reducing(chunk, 0)),
        ({"acc": keep, "finish": FINISH}, lambda chunk: reducing(chunk, 2)),
        ({"finish": tell}, finishing),
    ):
        result = device(made(**code)).reduce(inputs, payload=4, context=context)
        assert result.values.view(np.uint32).tolist() == [value(chunk) for chunk in range(20)]


def test_context_of_a_fan_in() -> None:
    """Rank and child are the first payload's; all of them have contributed afterwards."""
    for offset, expected_ in ((4, 5), (8, 3), (16, 3)):
        keep = [encode("lw", rd=T0, rs1=A3, imm=offset), encode("sw", rs1=A0, rs2=T0, imm=0), *OK]
        nic = device(made(acc2=keep, finish=FINISH))
        result = nic.reduce([np.zeros(4, np.float32)] * 5, payload=4)
        assert result.values.view(np.uint32).tolist() == [expected_] * 4


def test_context_of_partial_sums() -> None:
    """Rank is the payload's own, contributors are those of all streams so far."""
    inputs = [
        Stream(np.zeros(4, np.float32), rank=20, contributors=5, partial=True),
        Stream(np.zeros(4, np.float32), rank=7),
    ]
    for offset, loading, accumulating, finishing in (
        (4, 5, 6, 6),  # contributors
        (8, 20, 7, 20),  # rank
        (16, 2, 3, 2),  # child
        (28, 9, 9, 9),  # group
    ):
        keep = [encode("lw", rd=T0, rs1=A3, imm=offset), encode("sw", rs1=A0, rs2=T0, imm=0), *OK]
        tell = [encode("lw", rd=T0, rs1=A3, imm=offset), *FINISH[1:]]
        for code, value in (
            ({"load": keep, "finish": FINISH}, loading),
            ({"acc": keep, "finish": FINISH}, accumulating),
            ({"finish": tell}, finishing),
        ):
            context = Context(child=2, group=9)
            result = device(made(**code)).reduce(inputs, payload=4, context=context)
            assert result.values.view(np.uint32).tolist() == [value] * 4


@pytest.mark.parametrize("register", [A0, A1, A3, SP, T1])
def test_alignment(register: int) -> None:
    """Accumulator, payloads, context and stack lie on 64 bytes (the table on 8)."""
    first = [
        encode("ld", rd=T1, rs1=A1, imm=0),
        encode("andi", rd=T0, rs1=register, imm=63),
        encode("sw", rs1=A0, rs2=T0, imm=0),
        *OK,
    ]
    nic = device(made(first=first, finish=FINISH))
    result = nic.reduce([np.zeros(30, np.float32)], payload=12)
    assert not result.values.view(np.uint32)[::3].any()


def test_stack_and_scratchpad_may_be_used_to_their_last_byte() -> None:
    machine = Machine("card")
    first = [
        encode("sd", rs1=SP, rs2=RA, imm=-8),
        *load_constant(T0, machine.stack),
        encode("sub", rd=T0, rs1=SP, rs2=T0),
        encode("sd", rs1=T0, rs2=RA, imm=0),
        *load_constant(T0, machine.scratchpad),
        encode("add", rd=T0, rs1=A0, rs2=T0),
        encode("sd", rs1=T0, rs2=RA, imm=-8),
        *OK,
    ]
    nic = device(made(first=first))
    for core in range(8):
        assert nic.handle("first", [np.zeros(1, np.float32)], core=core).status == 0


class Hostile(NamedTuple):
    """Code and the fault it must end in; addresses are core 5's."""

    code: list[int]
    cause: int | None
    address: int
    at: int  # instructions retired before the fault
    elements: int = 0


CORE = 5
BUDGET = 5000
M = dataclasses.replace(Machine("card"), budget=BUDGET)
HOME = SCRATCHPAD + CORE * M.scratchpad  # a0 of core 5
END = HOME + M.scratchpad
TOP = STACK + CORE * (M.stack + 4096) + M.stack
CONTEXT = ARGUMENTS + CORE * 4096
START = CODE + len(image(OK))
M64 = (1 << 64) - 1


def load(address: int, op: str = "ld") -> list[int]:
    return [*load_constant(T0, address), encode(op, rd=T1, rs1=T0, imm=0)]


def store(address: int, op: str = "sd") -> list[int]:
    return [*load_constant(T0, address), encode(op, rs1=T0, rs2=T1, imm=0)]


def n(address: int) -> int:
    return len(load_constant(T0, address))


def illegal(word: int) -> Hostile:
    return Hostile([word], 2, word, 0)


VSET8 = encode("vsetvli", rd=T1, rs1=0, vtype=vtype(8, "m8"))
HOSTILE = {
    "endless loop": Hostile([encode("c.j", target=0)], None, 0, BUDGET),
    "load from 0": Hostile(load(0), 5, 0, 1),
    "load outside": Hostile(load(0x7000_0000), 5, 0x7000_0000, n(0x7000_0000)),
    "load of the host": Hostile(load(0x7FFF_FFFF_F000), 5, 0x7FFF_FFFF_F000, n(0x7FFF_FFFF_F000)),
    "load that wraps": Hostile(load(M64 - 3), 5, M64 - 3, 1),
    "load across the end": Hostile(load(END - 4), 5, END, n(END - 4)),
    "load of a neighbour": Hostile(load(HOME - 8), 5, HOME - 8, n(HOME - 8)),
    "store to a neighbour": Hostile(store(END), 7, END, n(END)),
    "store to core 0": Hostile(store(SCRATCHPAD), 7, SCRATCHPAD, n(SCRATCHPAD)),
    "store to code": Hostile(store(START), 7, START, n(START)),
    "store to the context": Hostile(store(CONTEXT), 7, CONTEXT, n(CONTEXT)),
    "store above the stack": Hostile([encode("sd", rs1=SP, rs2=RA, imm=0)], 7, TOP, 0),
    "stack overflow": Hostile(
        [
            encode("addi", rd=SP, rs1=SP, imm=-512),
            encode("sd", rs1=SP, rs2=RA, imm=0),
            encode("jal", rd=0, target=-8),
        ],
        7,
        TOP - M.stack - 512,
        M.stack // 512 * 3 + 1,
    ),
    "jump into data": Hostile([encode("jalr", rd=0, rs1=A0)], 1, HOME, 1),
    "jump to the stack": Hostile([encode("jalr", rd=0, rs1=SP, imm=-64)], 1, TOP - 64, 1),
    "run off the code": Hostile([encode("c.nop")], 2, 0, 1),
    "amo on code": Hostile(
        [*load_constant(T0, CODE), encode("amoadd.w", rd=0, rs1=T0, rs2=T1)], 7, CODE, n(CODE)
    ),
    "misaligned amo": Hostile(
        [encode("addi", rd=T0, rs1=A0, imm=2), encode("amoadd.w", rd=0, rs1=T0, rs2=T1)],
        6,
        HOME + 2,
        1,
    ),
    "ecall": Hostile([encode("ecall")], 8, 0, 0),
    "ebreak": Hostile([encode("ebreak")], 3, START, 0),
    "mret": illegal(encode("mret")),
    "clock": illegal(encode("csrrs", rd=A0, csr="cycle", rs1=0)),
    "machine CSR": illegal(encode("csrrw", rd=A0, csr="mtvec", rs1=0)),
    "vector without vsetvli": illegal(encode("vadd.vv", vd=8, vs2=8, vs1=8)),
    "vector store past the end": Hostile(
        [*load_constant(T0, END - 10), VSET8, encode("vse8.v", vs3=8, rs1=T0)],
        7,
        END,
        n(END - 10) + 1,
        10,
    ),
    "vector load of a neighbour": Hostile(
        [*load_constant(T0, END), VSET8, encode("vle8.v", vd=8, rs1=T0)], 5, END, n(END) + 1
    ),
    "vector load that wraps": Hostile(
        [*load_constant(T0, M64 - 99), VSET8, encode("vle8.v", vd=8, rs1=T0)], 5, M64 - 99, 2
    ),
}


def check_fault(fault: nicemu.Fault, case: Hostile) -> None:
    assert (fault.cause, fault.address, fault.core) == (case.cause, case.address, CORE), fault
    assert (fault.instructions, fault.elements) == (case.at, case.elements)
    text = str(fault)
    assert "\n" not in text
    for part in (
        f"core {CORE}",
        f"{fault.pc:#x}",
        f"{fault.address:#x}" if case.cause is not None else "out of budget",
        f"{case.at} instructions",
    ):
        assert part in text


def good_still_works(nic: Nic) -> None:
    image = kernel("sum", "bfloat16")
    nic.load(image)
    inputs = streams(3, 5000, "bfloat16")
    result = nic.reduce(inputs)
    same_bits(result.values, expected("sum", "wide", inputs))
    fresh = device(image, machine=M).reduce(inputs)
    assert result.cores == fresh.cores


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_handler(name: str) -> None:
    case = HOSTILE[name]
    nic = device(made(first=case.code), machine=M)
    for core in range(8):
        nic.write(SCRATCHPAD + core * M.scratchpad, bytes([core + 1]) * M.scratchpad, core)
    with pytest.raises(FaultError) as error:
        nic.handle("first", [np.zeros(8, np.float32)], core=CORE)
    check_fault(error.value.fault, case)
    assert "\n" not in str(error.value) and "'first' of made" in str(error.value)
    for core in set(range(8)) - {CORE}:  # the others' memory is untouched
        memory = nic.read(SCRATCHPAD + core * M.scratchpad, M.scratchpad, core)
        assert memory == bytes([core + 1]) * M.scratchpad
    good_still_works(nic)


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_stream(name: str) -> None:
    """Chunk 5 is core 5's first; those before it are innocent, those after it never matter."""
    case = HOSTILE[name]
    guard = [
        encode("lw", rd=T0, rs1=A3, imm=24),  # chunk
        encode("addi", rd=T1, rs1=0, imm=CORE),
        encode("bge", rs1=T0, rs2=T1, target=8),
        encode("jal", rd=0, target=-12 - len(image(OK))),  # to the entries that return 0
    ]
    shift = len(image(guard))
    address = case.address + (shift if name in ("store to code", "ebreak") else 0)
    code = [*guard, *(case.code if name != "store to code" else store(START + shift))]
    at = BUDGET if name == "endless loop" else case.at + 3
    for threads in (1, 3, 8):
        nic = device(made(first=code), machine=M, threads=threads)
        with pytest.raises(FaultError, match="chunk 5 of made") as error:
            nic.reduce([np.zeros(100, np.float32)] * 2, payload=4)
        check_fault(error.value.fault, case._replace(address=address, at=at))
    good_still_works(nic)


def test_a_failure_stops_its_core_alone() -> None:
    """Whatever the number of threads: each core goes on to its own first failure."""
    guard = [  # chunks 5 and 6 fail, and 13, which core 5 never begins
        encode("lw", rd=T0, rs1=A3, imm=24),
        encode("andi", rd=T0, rs1=T0, imm=7),
        encode("addi", rd=T0, rs1=T0, imm=-5),
        encode("sltiu", rd=T0, rs1=T0, imm=2),
        encode("beq", rs1=T0, rs2=0, target=8),
        encode("ecall"),
        *OK,
    ]
    seen = []
    for threads in (1, 2, 3, 8):
        nic = device(made(first=guard), machine=M, threads=threads)
        with pytest.raises(FaultError, match="chunk 5 of made"):
            nic.reduce([np.zeros(100, np.float32)] * 2, payload=4)
        seen.append(counters(nic))
    assert all(s == seen[0] for s in seen)
    used = [nic.counters(core).instructions for core in range(8)]
    assert used[5] == used[6] == 5
    assert min(used[:5] + used[7:]) > 100


def test_status() -> None:
    """A nonzero a0 is the op's own word: handle() reports it, reduce() stops at it."""
    for status in (1, -1):
        nic = device(made(acc=[encode("c.li", rd=A0, imm=status), RET]))
        one = [np.zeros(8, np.float32)]
        assert nic.handle("first", one).status == 0
        assert nic.handle("acc", one).status == status & M64
        nic.reduce(one * 1)
        with pytest.raises(StatusError, match=f"chunk 0 of made.*{status & M64}"):
            nic.reduce(one * 2)


@pytest.mark.parametrize("threads", [1, 2])
def test_statuses_of_every_packet(threads: int) -> None:
    """Asked for, they end nothing: what raises is left out, the rest is reduced."""

    @nicemu.reduce_op(element="float32")
    def strict(a: Any, b: Any) -> Any:
        if b < 0:
            raise ValueError("negative")
        return a + b

    nic = device(strict.image(), threads=threads)
    one = np.arange(1000, dtype=np.float32)
    two = np.where(one % 7 == 0, -1, 1).astype(np.float32)
    out = np.full(1000, 99, np.float32)
    statuses = np.full(1000, 5, np.uint64)
    nic.reduce([one, two], payload=4, out=out, statuses=statuses)
    same_bits(statuses, (two < 0).astype(np.uint64))
    same_bits(out, np.where(two < 0, 99, one + 1).astype(np.float32))
    short = np.zeros(4, np.uint64)
    nic.reduce([one, two], payload=1024, statuses=short)
    assert short.tolist() == [1, 1, 1, 1]
    for bad, said in (
        (np.zeros(3, np.uint64), "4,"), (np.zeros(4, np.int64), "uint64"), ([0] * 4, "list"),
        (np.zeros(8, np.uint64)[::2], "contiguous"),
    ):  # fmt: skip
        with pytest.raises(ArgumentError, match=said):
            nic.reduce([one, two], payload=1024, statuses=bad)  # type: ignore[arg-type]


def test_shorter_code_leaves_nothing_behind() -> None:
    """What an earlier image had beyond the end of this one is gone."""
    nic = device(made(first=[*OK * 50]))
    tail = CODE + len(image(OK))
    assert any(nic.read(tail, 300))
    nic.load(made())
    assert not any(nic.read(tail, 300))


def test_largest_image() -> None:
    """Code up to the last byte of the code region, its last entry at the end."""
    words = made()
    room = nicemu.device.image.MAX_CODE
    code = words.code + bytes(room - len(words.code) - len(image(OK))) + image(OK)
    entries = dict(words.entries) | {"first": room - len(image(OK))}
    nic = device(dataclasses.replace(words, code=code, entries=entries))
    assert nic.handle("first", [np.zeros(1, np.float32)]).status == 0


# ---- arguments -------------------------------------------------------------------------------


def test_no_image() -> None:
    nic = Nic()
    for use in (
        lambda: nic.image,
        lambda: nic.reduce([np.zeros(1, np.float16)]),
        lambda: nic.handle("first", [np.zeros(1, np.float16)]),
    ):
        with pytest.raises(ImageError, match="no image") as error:
            use()
        assert "\n" not in str(error.value)


F16 = np.zeros(10, np.float16)
BAD_USES: dict[str, Callable[[Nic], object]] = {
    "no streams": lambda nic: nic.reduce([]),
    "lists": lambda nic: nic.reduce([[1, 2], [3, 4]]),  # type: ignore[list-item]
    "list as payload": lambda nic: nic.handle("first", [[1.0]]),  # type: ignore[list-item]
    "no image": lambda nic: nic.load(b""),  # type: ignore[arg-type]
    "unequal": lambda nic: nic.reduce([F16, F16[:9]]),
    "wrong dtype": lambda nic: nic.reduce([F16, np.zeros(10, np.float32)]),
    "byte order": lambda nic: nic.reduce([F16.astype(">f2")]),
    "integers": lambda nic: nic.reduce([np.zeros(10, np.uint16)]),
    "two dimensions": lambda nic: nic.reduce([F16.reshape(2, 5)]),
    "no dimension": lambda nic: nic.reduce([np.float16(1).reshape(())]),
    "payload 0": lambda nic: nic.reduce([F16], payload=0),
    "payload below an element": lambda nic: nic.reduce([F16], payload=1),
    "payload negative": lambda nic: nic.reduce([F16], payload=-2),
    "payload too large": lambda nic: nic.reduce([F16], payload=4097),
    "out too small": lambda nic: nic.reduce([F16], out=np.zeros(9, np.float16)),
    "out of another dtype": lambda nic: nic.reduce([F16], out=np.zeros(10, np.float32)),
    "out not contiguous": lambda nic: nic.reduce([F16], out=np.zeros(20, np.float16)[::2]),
    "out not writeable": lambda nic: nic.reduce([F16], out=np.broadcast_to(F16[:1], 10)),
    "out read-only": lambda nic: nic.reduce([F16], out=np.frombuffer(bytes(20), np.float16)),
    "out overlaps": lambda nic: nic.reduce([F16[:5], F16[5:]], out=F16[1:6]),
    "leave": lambda nic: nic.reduce([F16], leave="acc"),
    "elements as partial sums": lambda nic: nic.reduce([Stream(F16, partial=True)]),
    "payload below a partial sum": lambda nic: nic.reduce([F16], payload=2, leave="emit"),
    "out of partial sums": lambda nic: nic.reduce([F16], out=F16.copy(), leave="emit"),
    "stream's rank": lambda nic: nic.reduce([Stream(F16, rank=-1)]),
    "stream's contributors": lambda nic: nic.reduce([Stream(F16, contributors=1 << 32)]),
    "unknown entry": lambda nic: nic.handle("add", [F16]),
    "absent fan-in": lambda nic: nic.handle("acc3", [F16] * 3),
    "no count": lambda nic: nic.handle("finish"),
    "core 8": lambda nic: nic.handle("first", [F16], core=8),
    "core -1": lambda nic: nic.handle("first", [F16], core=-1),
    "payloads unequal": lambda nic: nic.handle("first2", [F16, F16[:3]]),
    "payload dtype": lambda nic: nic.handle("first", [F16.astype(np.float32)]),
    "partial dtype": lambda nic: nic.handle("merge", [F16]),
    "accumulator dtype": lambda nic: nic.handle("acc", [F16], accumulator=F16),
    "accumulator size": lambda nic: nic.handle("acc", [F16], accumulator=np.zeros(9, np.float32)),
    "count and payload": lambda nic: nic.handle("first", [F16], count=9),
    "count negative": lambda nic: nic.handle("finish", count=-1),
    "chunk too large": lambda nic: nic.handle("first", [np.zeros(30_000, np.float16)]),
    "too many payloads": lambda nic: nic.handle("acc8", [F16] * 9),
    "too few payloads": lambda nic: nic.handle("acc8", [F16] * 7),
    "payloads of finish": lambda nic: nic.handle("finish", [F16], count=10),
    "counters": lambda nic: nic.counters(8),
    "read elsewhere": lambda nic: nic.read(0, 4),
    "read too much": lambda nic: nic.read(SCRATCHPAD, M.scratchpad + 1),
    "read another core's": lambda nic: nic.read(SCRATCHPAD, 4, core=1),
    "read below 0": lambda nic: nic.read(-1, 4),
    "read less than nothing": lambda nic: nic.read(SCRATCHPAD, -1),
    "read more than there is": lambda nic: nic.read(SCRATCHPAD, 1 << 62),
    "write above all": lambda nic: nic.write(1 << 64, b"abc"),
    "write elsewhere": lambda nic: nic.write(0, b"abc"),
    "context": lambda nic: nic.reduce([F16], context=Context(seq=1 << 32)),
    "machine": lambda nic: Nic("no such"),
    "threads": lambda nic: Nic(threads=0),
    "host path": lambda nic: Nic(simd="neon9"),
    "vlen": lambda nic: Machine("x", vlen=100),
    "cores": lambda nic: Machine("x", cores=0),
    "scratchpad": lambda nic: Machine("x", scratchpad=4096),
    "scratchpad page": lambda nic: Machine("x", scratchpad=(128 << 10) + 1),
    "stack": lambda nic: Machine("x", stack=0),
    "budget": lambda nic: Machine("x", budget=0),
    "budget too large": lambda nic: Machine("x", budget=1 << 64),
    "no fan-in": lambda nic: Machine("x", max_fan_in=0),
    "fan-in": lambda nic: Machine("x", max_fan_in=9),
    "negative payload": lambda nic: Machine("x", max_payload=-4),
    "all scratchpads": lambda nic: Machine("x", cores=64, scratchpad=64 << 20),
    "format": lambda nic: kernel("sum", object()),  # type: ignore[arg-type]
}


@pytest.fixture(scope="module")
def nic() -> Nic:
    return device(kernel("sum", "float16"))


@pytest.mark.parametrize("name", BAD_USES)
def test_argument_errors(name: str, nic: Nic) -> None:
    with pytest.raises(ArgumentError) as error:
        BAD_USES[name](nic)
    message = str(error.value)
    assert message and "\n" not in message and "C core error" not in message
    assert isinstance(error.value, ValueError)


def test_an_image_cannot_see_what_another_left() -> None:
    nic = Nic()
    nic.load(kernel("sum", "float32"))
    nic.handle("first", [np.full(64, 7, np.float32)], core=3)
    scratch, _, stack = nic._bases(3)
    nic.write(stack, b"left", core=3)
    assert any(nic.read(scratch, 256, core=3)) and nic._cores.v(3).any() and nic._cores.x(3).any()
    nic.load(kernel("max", "float32"))
    assert not any(nic.read(scratch, nic.machine.scratchpad, core=3))
    assert not any(nic.read(stack, nic.machine.stack, core=3))
    assert not nic._cores.v(3).any() and not nic._cores.x(3).any()
