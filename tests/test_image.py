"""Kernel images: the file, the cache, the code's shape, and every entry run on a hart."""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nicemu
from nicemu._core import RETURN, Cores, R, W, X, instructions
from nicemu.compiler.compile import compile_image
from nicemu.device import image as abi
from nicemu.device.image import (
    ENTRIES,
    FAN_INS,
    PRESETS,
    REQUIRED,
    Context,
    Entry,
    KernelImage,
    cached,
)
from nicemu.dtypes import FORMATS, GRADIENTS, Format, format_of
from nicemu.errors import ArgumentError, ImageError
from nicemu.ops.builtin import BUILTINS, builtin, kernel
from nicemu.reference.arithmetic import OPS

HARTS = ((128, "auto"), (512, "auto"), (1024, "portable"))  # VLEN, host path
COUNTS = (0, 1, 7, 8, 9, 31, 33, 511, 512, 513, 1023)
IMAGES = [(op, f.name, preset) for op in OPS for f in GRADIENTS for preset in PRESETS]
each_image = pytest.mark.parametrize(("op", "element", "preset"), IMAGES)


@pytest.fixture(autouse=True, scope="module")
def cache_directory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """An image cache of this module's own."""
    with pytest.MonkeyPatch.context() as patch:
        path = tmp_path_factory.mktemp("images")
        patch.setenv("NICEMU_CACHE_DIR", str(path))
        yield path


# ---- the model: the ops in numpy, an array at a time ---------------------------------------------
def canonical(x: np.ndarray) -> np.ndarray:
    """Values whose NaNs are replaced by their format's canonical one."""
    f = format_of(x.dtype)
    bits = x.view(f.bits_dtype)
    return np.where(np.isnan(x), f.bits_dtype.type(f.canonical_nan), bits).view(x.dtype)


@cache
def grid(f: Format) -> np.ndarray:
    """A 16-bit format's non-negative values as float64, by bit pattern; infinity's place holds
    the number at which rounding overflows to it."""
    infinity = ((1 << f.exponent_bits) - 1) << f.fraction_bits
    values = np.arange(infinity, dtype=f.bits_dtype).view(f.dtype).astype(np.float64)
    return np.append(values, 2.0 ** (1 << (f.exponent_bits - 1)))


def nearest(x: np.ndarray, f: Format) -> np.ndarray:
    """float64 to a format, to nearest, ties to even.  (ml_dtypes rounds float64 -> bfloat16
    twice.)  NaN becomes the canonical one."""
    if f.size == 4:
        return canonical(x.astype(np.float32))
    middle = (grid(f)[:-1] + grid(f)[1:]) / 2
    size = np.abs(x)
    bits = np.searchsorted(middle, size, side="left")
    tie = (bits < middle.size) & (middle[np.minimum(bits, middle.size - 1)] == size)
    bits += tie & (bits % 2 == 1)
    bits |= np.signbit(x).astype(bits.dtype) << 15
    bits = np.where(np.isnan(x), f.canonical_nan, bits)
    return bits.astype(np.uint16).view(f.dtype)


def convert(x: np.ndarray, f: Format) -> np.ndarray:
    """A copy within one format (bits kept), else a rounding or exact conversion."""
    return x if x.dtype == f.dtype else nearest(x.astype(np.float64), f)


def extreme(a: np.ndarray, b: np.ndarray, sign: int) -> np.ndarray:
    """maximumNumber (sign=1) or minimumNumber (-1)."""
    wide_a, wide_b = sign * a.astype(np.float64), sign * b.astype(np.float64)
    zero_order = (wide_a == wide_b) & np.signbit(wide_b)
    take_a = np.isnan(b) | (wide_a > wide_b) | zero_order
    return canonical(np.where(take_a, a, b))


def merge(op: str, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """One merge, rounded to the accumulator's format."""
    f = format_of(a.dtype)
    if op in ("max", "min"):
        return extreme(a, b, 1 if op == "max" else -1)
    # float64 holds a 16-bit product, and enough of a 16-bit sum, to be rounded again
    wide = np.float32 if f.size == 4 else np.float64
    x, y = a.astype(wide), b.astype(wide)
    return nearest((x * y if op == "prod" else x + y).astype(np.float64), f)


def finish(op: str, a: np.ndarray, contributors: int, f: Format) -> np.ndarray:
    """The result of an accumulator."""
    if op != "avg":
        return canonical(convert(a, f))
    # unless it is a tie, a float32 over n < 2**24 is no nearer to one than 2**-36, relatively
    return nearest(a.astype(np.float64) / contributors, f)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_the_model_rounds() -> None:
    half = format_of("f16")
    x = np.array([1 + 2.0**-11, 1 + 3 * 2.0**-11, 65519, 65520, 2.0**-25, -0.0, 3 * 2.0**-25])
    assert nearest(x, half).view(np.uint16).tolist() == [
        0x3C00, 0x3C02, 0x7BFF, 0x7C00, 0, 0x8000, 2
    ]  # fmt: skip
    values = np.arange(1 << 16, dtype=np.uint16).view(half.dtype)
    assert np.array_equal(
        nearest(values.astype(np.float64), half).view(np.uint16), canonical(values).view(np.uint16)
    )
    with np.errstate(over="ignore"):
        floats = np.random.default_rng(0).integers(0, 1 << 32, 1 << 16, np.uint32).view(np.float32)
        assert np.array_equal(
            nearest(floats.astype(np.float64), half).view(np.uint16),
            canonical(floats.astype(np.float16)).view(np.uint16),
        )


# ---- cases: memory before and after a call -------------------------------------------------------
GUARD = 0xA5


def values(f: Format, n: int, seed: int) -> np.ndarray:
    """Special values, then random bits, then values of one magnitude, mixed."""
    rng = np.random.default_rng(seed)
    bits = 8 * f.size
    infinity = ((1 << f.exponent_bits) - 1) << f.fraction_bits
    one = ((1 << (f.exponent_bits - 1)) - 1) << f.fraction_bits
    edges = [0, 1, infinity - 1, infinity, infinity + 1, f.canonical_nan, one]
    edges += [f.canonical_nan | 1, 1 << f.fraction_bits, (1 << f.fraction_bits) - 1]
    edges += [e | 1 << (bits - 1) for e in edges]
    random = rng.integers(0, 1 << bits, n, np.uint64)
    some = rng.choice(np.array(edges, np.uint64), n)
    near = one + (rng.integers(-(2 << f.fraction_bits), 2 << f.fraction_bits, n)).astype(np.uint64)
    near |= rng.integers(0, 2, n).astype(np.uint64) << np.uint64(bits - 1)
    kind = rng.integers(0, 3, n)
    picked = np.select([kind == 0, kind == 1], [some, random], near)
    return picked.astype(f.bits_dtype).view(f.dtype)


@dataclass(frozen=True)
class Case:
    """One call: an entry, its arguments, and memory from ``base`` on, before and after it."""

    entry: str
    args: tuple[int, int, int, int]
    before: bytes
    after: bytes


def cases(built: KernelImage, base: int, counts: tuple[int, ...] = COUNTS) -> Iterator[Case]:
    """Every entry at every count.  Everything but the destination's elements must stay as it is."""
    n = max(counts)
    formats = {k: format_of(getattr(built, k)) for k in ("element", "accumulator", "partial")}
    accumulator = formats["accumulator"]
    for i, entry in enumerate(ENTRIES):
        does = Entry.of(entry)
        contributors = does.payloads + 2
        acc = values(accumulator, n, 100 + i)
        source = formats["partial" if does.partials else "element"]
        inputs = [values(source, n, 200 + 10 * i + j) for j in range(does.payloads)]
        parts = [convert(x, accumulator) for x in inputs]
        result = parts.pop(0) if does.fresh else acc
        for part in parts:
            result = merge(built.op, result, part)
        if does.leaving:
            target = format_of(built.partial if does.leaving == "emit" else built.result)
            inputs.append(values(target, n, 300 + i))
            result = (
                canonical(convert(result, target))
                if does.leaving == "emit"
                else finish(built.op, result, contributors, target)
            )
        for count in counts:
            yield _case(entry, count, base, acc, inputs, result, contributors)


def _case(
    entry: str,
    count: int,
    base: int,
    acc: np.ndarray,
    inputs: list[np.ndarray],
    result: np.ndarray,
    contributors: int,
) -> Case:
    memory = bytearray()

    def place(data: bytes) -> int:
        """Its address: 64-byte aligned, with guards before it and after it."""
        memory.extend(bytes([GUARD]) * (64 + -len(memory) % 64))
        memory.extend(data)
        return base + len(memory) - len(data)

    context = place(Context(contributors=contributors).pack())
    places = [place(x[:count].tobytes()) for x in (acc, *inputs)]
    table = place(struct.pack(f"<{len(inputs)}Q", *places[1:]))
    memory.extend(bytes([GUARD]) * 64)
    after = memory.copy()
    destination = places[-1 if Entry.of(entry).leaving else 0] - base
    new = result[:count].tobytes()
    after[destination : destination + len(new)] = new
    return Case(entry, (places[0], table, count, context), bytes(memory), bytes(after))


# ---- every entry on a hart -----------------------------------------------------------------------
CODE, DATA, STACK = 0x10000, 0x100000, 0x200000
MEMORY = 1 << 16


@dataclass(frozen=True)
class Bench:
    """A hart of some VLEN, its memory as arrays."""

    cores: Cores
    code: np.ndarray
    data: np.ndarray

    def load(self, built: KernelImage) -> None:
        self.cores.write(CODE, built.code + bytes(8))

    def call(self, built: KernelImage, case: Case) -> int:
        """Instructions retired."""
        self.data[: len(case.before)] = np.frombuffer(case.before, np.uint8)
        pc = CODE + built.entries[case.entry]
        stop = self.cores.call(pc, case.args, sp=STACK, budget=10**6)
        assert stop.reason == RETURN, (case.entry, case.args, stop.fault())
        assert self.cores.x()[10] == 0
        return stop.instructions


@pytest.fixture(scope="module", params=HARTS, ids=str)
def bench(request: pytest.FixtureRequest) -> Bench:
    vlen, simd = request.param
    cores = Cores(1, vlen, simd=simd)
    code = cores.map(CODE, MEMORY, R | X)
    data = cores.map(DATA, MEMORY, R | W)
    return Bench(cores, code, data)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@each_image
def test_every_entry_computes_the_model(bench: Bench, op: str, element: str, preset: str) -> None:
    """Also that fan-in entries give the bits of single ones: the model knows only those."""
    built = kernel(op, element, preset)
    assert set(built.entries) == set(ENTRIES)
    bench.load(built)
    for case in cases(built, DATA):
        bench.call(built, case)
        after = np.frombuffer(case.after, np.uint8)
        wrong = np.flatnonzero(bench.data[: after.size] != after)
        assert not wrong.size, (case.entry, case.args[2], wrong[:8])


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("element", ["float16", "bfloat16"])
def test_avg_rounds_once(bench: Bench, element: str) -> None:
    """Quotients so near to a tie that rounding to float32 first would make them one."""
    f = format_of(element)
    contributors = 1000003
    odd = 2 * np.arange(1 << f.fraction_bits, 2 << f.fraction_bits) + 1
    a = (odd * (contributors / 1024)).astype(np.float32)
    a = np.concatenate([a, -a, np.nextafter(a, np.float32(0))])[:2000]
    exact = finish("avg", a, contributors, f)
    twice = nearest((a / np.float32(contributors)).astype(np.float64), f)
    assert np.any(exact.view(np.uint16) != twice.view(np.uint16))
    built = kernel("avg", element)
    bench.load(built)
    case = _case("finish", a.size, DATA, a, [np.zeros(a.size, f.dtype)], exact, contributors)
    bench.call(built, case)
    assert bytes(bench.data[: len(case.after)]) == case.after


def test_ops_of_ones_own(bench: Bench) -> None:
    """lift applies to elements and not to partial sums."""

    @nicemu.reduce_op
    def norm(a: Any, b: Any) -> Any:
        return a + b

    norm.lift(lambda x: x * x)
    norm.finish(lambda a: math.sqrt(a))
    built = norm.image("f32")
    bench.load(built)
    x, y = (np.arange(k, k + 33, dtype=np.float32) for k in (1, 50))
    for entry, inputs, after in (
        ("first", [y], y * y),
        ("load", [y], y),
        ("acc", [y], x + y * y),
        ("merge", [y], x + y),
        ("first2", [x, y], x * x + y * y),
    ):
        case = _case(entry, 33, DATA, x, inputs, after, 2)
        bench.call(built, case)
        assert bytes(bench.data[: len(case.after)]) == case.after, entry
    case = _case("finish", 33, DATA, x, [y], np.sqrt(x), 2)
    bench.call(built, case)
    assert bytes(bench.data[: len(case.after)]) == case.after


# ---- the code ------------------------------------------------------------------------------------
def disassembled(built: KernelImage) -> dict[int, str]:
    """Offset -> mnemonic, from 0 to the end of the code without a gap."""
    cores = Cores()
    code = built.code + bytes(2)
    found = {}
    at = 0
    while at < len(built.code):
        word = int.from_bytes(code[at : at + 4], "little")
        row = cores.decode(word)
        assert row is not None, f"{word:#010x} at {at} of {built}"
        found[at] = row.name
        at += row.size
    assert at == len(built.code)
    return found


@each_image
def test_code_is_made_of_the_cores_instructions(op: str, element: str, preset: str) -> None:
    built = kernel(op, element, preset)
    names = disassembled(built)
    assert set(built.entries.values()) <= set(names)
    cls = {row.name: row.cls for row in instructions()}
    classes = {cls[name] for name in names.values()}
    assert not classes & {"amo", "csr", "system", "fence"}
    returns = [at for at, name in names.items() if name == "c.jr"]
    assert len(returns) == len(set(built.entries.values()))
    # a function is: skip if there is nothing, one loop, return; no calls, checks or remainders
    kinds = [cls[name] for name in names.values()]
    assert kinds.count("jump") == len(returns)
    assert kinds.count("branch") == 2 * len(returns)


def test_presets_that_share_formats_share_code() -> None:
    for op in OPS:
        assert len({kernel(op, "f32", preset).code for preset in PRESETS}) == 1
        per_add = kernel(op, "f16", "per-add").entries
        assert per_add["load"] == per_add["first"] and per_add["merge8"] == per_add["acc8"]
        wide = kernel(op, "f16", "wide").entries
        assert wide["load"] != wide["first"]


# ---- arguments -----------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("arguments", "choices"),
    [
        (("mean", "f16"), BUILTINS),
        (("sum", "f8"), [f.name for f in FORMATS]),
        (("sum", "f16", "narrow"), PRESETS),
    ],
)
def test_unknown_arguments_name_the_choices(arguments: tuple[str, ...], choices: list[str]) -> None:
    with pytest.raises(ArgumentError) as error:
        kernel(*arguments)
    message = str(error.value)
    assert arguments[-1] in message or arguments[0] in message
    assert all(choice in message for choice in choices) and "\n" not in message


def test_a_factor_stands_behind_premul_sum() -> None:
    assert kernel("premul_sum:0.5", "bf16") == nicemu.premul_sum(0.5).image("bf16")
    assert kernel("premul_sum:-0", "bf16").code != kernel("premul_sum:0", "bf16").code
    assert builtin("premul_sum:0.5", "f32") is builtin("premul_sum:0.5", "f16")
    for name, text in {
        "premul_sum": "op 'premul_sum' has no factor: write it behind, 'premul_sum:0.5'",
        "premul_sum:": "premul_sum of factor '': use a number",
        "premul_sum:x": "premul_sum of factor 'x': use a number",
        "sum:2": "op 'sum:2' is unknown: use one of sum, ",
    }.items():
        with pytest.raises(ArgumentError, match=re.escape(text)):
            kernel(name, "f32")


def test_element_names_aliases_dtypes_and_rows_are_one() -> None:
    f = format_of("bfloat16")
    assert {kernel("sum", e) for e in ("bfloat16", "bf16", f.dtype, f)} == {kernel("sum", "bf16")}


def test_context_block_is_as_documented() -> None:
    guide = (Path(nicemu.__file__).parent / "guide" / "images.md").read_text()
    section = guide.split("## Context block")[1].split("## ")[0]
    rows = re.findall(r"^\| (\d+) \| (\d+) \| (\w*) \|", section, re.M)
    documented = {name: (int(at), int(size)) for at, size, name in rows if name}
    assert documented == abi.CONTEXT_FIELDS
    fields = {name: 3 + i for i, name in enumerate(abi.CONTEXT_FIELDS) if name != "abi"}
    block = Context(**fields).pack()
    assert len(block) == abi.CONTEXT_SIZE == 64 and not any(block[48:])
    assert struct.unpack_from("<8I2Q", block) == (abi.ABI_VERSION, *fields.values())
    for name, (_, size) in abi.CONTEXT_FIELDS.items():
        for value in (-1, 1 << 8 * size):
            if name != "abi":
                with pytest.raises(ArgumentError, match=name):
                    Context(**{name: value}).pack()


def test_the_guide_lists_every_entry_and_preset() -> None:
    guide = (Path(nicemu.__file__).parent / "guide" / "images.md").read_text()
    for name in (*REQUIRED, *PRESETS, *BUILTINS):
        assert f"| `{name}` |" in guide, name


# ---- the file ------------------------------------------------------------------------------------
def signed(body: bytes) -> bytes:
    """A file whose digest is right, whatever is in it."""
    return body + hashlib.sha256(body).digest()


def test_file_round_trip() -> None:
    for op, element, preset in IMAGES:
        built = kernel(op, element, preset)
        data = built.to_bytes()
        again = KernelImage.from_bytes(data)
        assert again == built and again.to_bytes() == data


def test_file_layout_is_as_documented() -> None:
    built = kernel("sum", "bf16")
    data = built.to_bytes()
    c = len(built.code)
    t = len(data) - 24 - c - 32
    assert struct.unpack_from("<8sHHIII", data) == (b"nicemu-k", 3, 1, len(data), t, c)
    assert json.loads(data[24 : 24 + t]) == {
        "abi": 1,
        "accumulator": "float32",
        "element": "bfloat16",
        "entries": dict(built.entries),
        "extensions": list(built.extensions),
        "notes": [],
        "op": "sum",
        "partial": "float32",
        "preset": "wide",
        "result": "bfloat16",
        "statuses": [],
    }
    assert data[24 + t :][:c] == built.code


def test_damaged_files_are_refused() -> None:
    data = kernel("max", "f16", "per-add").to_bytes()
    for size in range(len(data)):
        with pytest.raises(ImageError):
            KernelImage.from_bytes(data[:size])
    for at in range(len(data)):
        with pytest.raises(ImageError):
            KernelImage.from_bytes(data[:at] + bytes([data[at] ^ 1 << at % 8]) + data[at + 1 :])
    with pytest.raises(ImageError):
        KernelImage.from_bytes(data + b"\0")


def test_hostile_files_are_refused_or_valid() -> None:
    """With the digest put right, every byte of the header and the description in turn."""
    data = kernel("max", "f16", "per-add").to_bytes()
    body = bytearray(data[:-32])
    rng = np.random.default_rng(5)
    refused = 0
    header = len(body) - len(KernelImage.from_bytes(data).code)
    for at in range(header):
        for value in {0, 0xFF, int(rng.integers(256)), body[at] ^ 1} - {body[at]}:
            changed = signed(bytes(body[:at]) + bytes([value]) + bytes(body[at + 1 :]))
            try:
                built = KernelImage.from_bytes(changed)
            except ImageError as error:
                assert "\n" not in str(error)
                refused += 1
            else:
                assert built.to_bytes() == changed
                assert all(0 <= at < len(built.code) for at in built.entries.values())
    assert refused > 1000


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"abi": 2}, "ABI version 2"),
        ({"op": "1st"}, "'1st'"),
        ({"element": "float8"}, "float8"),
        ({"partial": "f32"}, "full names"),
        ({"result": "value:float32 value:int8"}, "different names"),
        ({"statuses": ("two\nlines",)}, "one line"),
        ({"extensions": ("V 1",)}, "'V 1': use names as in an ISA string"),
        ({"code": b"\x82"}, "1 bytes"),
        ({"code": b""}, "0 bytes"),
        ({"entries": {"first": 0}}, "no entry 'load'"),
        ({"entries": dict.fromkeys((*REQUIRED, "acc3"), 0)}, "'acc3' is unknown"),
        ({"entries": dict.fromkeys(REQUIRED, 1)}, "even offset"),
        ({"entries": dict.fromkeys(REQUIRED, 1 << 20)}, "inside the code"),
    ],
)
def test_images_are_checked_when_made(change: dict[str, object], message: str) -> None:
    with pytest.raises(ImageError, match=message):
        replace(kernel("sum", "f16"), **change)


def test_fan_ins() -> None:
    built = kernel("sum", "f16")
    assert built.fan_ins() == built.fan_ins("load") == (1, *FAN_INS)
    plain = replace(built, entries={name: built.entries[name] for name in (*REQUIRED, "acc4")})
    assert plain.fan_ins() == (1, 4) and plain.fan_ins("first") == (1,)


# ---- the cache -----------------------------------------------------------------------------------
BUILD = """
import hashlib, sys
from nicemu.ops.builtin import kernel
print(hashlib.sha256(kernel("avg", "bf16").to_bytes()).hexdigest(), "llvmlite" in sys.modules)
"""


def build_apart(directory: Path) -> list[str]:
    """Digest of an image that another process built, and whether that process imported llvmlite."""
    environment = dict(os.environ, NICEMU_CACHE_DIR=str(directory))
    root = str(Path(nicemu.__file__).parent.parent)
    environment["PYTHONPATH"] = os.pathsep.join([root, environment.get("PYTHONPATH", "")])
    out = subprocess.run(
        [sys.executable, "-c", BUILD], env=environment, capture_output=True, text=True, check=True
    )
    return out.stdout.split()


def test_a_hit_needs_no_llvm(tmp_path: Path) -> None:
    digest, imported = build_apart(tmp_path)
    assert imported == "True"
    assert build_apart(tmp_path) == [digest, "False"]


def compiled(op: str, element: str, preset: str = "wide") -> KernelImage:
    """From the directory or newly built, whatever the op has in memory."""
    row = builtin(op, element)
    return compile_image(op, row._source, row.formats(element, preset), preset)


def test_building_twice_gives_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    once = [kernel(*which) for which in IMAGES]
    monkeypatch.setenv("NICEMU_CACHE_DIR", str(tmp_path))
    for built, (op, element, preset) in zip(once, IMAGES, strict=True):
        assert compiled(op, element, preset).to_bytes() == built.to_bytes()
    assert len(list(tmp_path.iterdir())) == len(IMAGES)


@pytest.mark.parametrize("damage", [lambda b: b[:100], lambda b: b"", lambda b: b[::-1]])
def test_a_damaged_entry_is_built_again(
    damage: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NICEMU_CACHE_DIR", str(tmp_path))
    built = compiled("sum", "f16")
    (path,) = tmp_path.iterdir()
    good = path.read_bytes()
    path.write_bytes(damage(good))  # type: ignore[operator]
    assert compiled("sum", "f16") == built
    assert path.read_bytes() == good


def test_processes_may_race(tmp_path: Path) -> None:
    with ThreadPoolExecutor(4) as pool:
        digests = {build_apart(path)[0] for path in pool.map(lambda _: tmp_path, range(4))}
        digests |= {d[0] for d in pool.map(build_apart, [tmp_path] * 4)}
    assert len(digests) == 1
    assert [p.suffix for p in tmp_path.iterdir()] == [".image"]


#: puts the image of a file into the cache under the same key, again and again
STORE = """
import sys
from pathlib import Path
from nicemu.device.image import KernelImage, cache_dir, cached
image = KernelImage.from_bytes(Path(sys.argv[1]).read_bytes())
print("ready", flush=True)
while True:
    (cache_dir() / "key.image").unlink(missing_ok=True)
    cached("key", lambda: image)
"""


def test_processes_may_be_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While they store: what is in the cache afterwards is whole, or not there."""
    built = kernel("sum", "f16")
    source = tmp_path / "source"
    source.write_bytes(built.to_bytes())
    directory = tmp_path / "cache"
    monkeypatch.setenv("NICEMU_CACHE_DIR", str(directory))
    monkeypatch.setenv("PYTHONPATH", str(Path(nicemu.__file__).parent.parent))
    left: set[str] = set()
    for turn in range(12):
        command = [sys.executable, "-c", STORE, str(source)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None and process.stdout.readline() == "ready\n"
            time.sleep(0.003 * turn)
            process.kill()
        for path in directory.glob("*"):
            left.add(path.suffix)
            if path.suffix == ".image":
                assert path.read_bytes() == built.to_bytes()
    assert left <= {".image", ".part"}
    assert cached("key", lambda: built) == built


def test_without_a_cache_directory_images_are_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    good = compiled("sum", "f16")
    file = tmp_path / "file"
    file.touch()
    monkeypatch.setenv("NICEMU_CACHE_DIR", str(file / "below"))
    assert compiled("sum", "f16") == good


def test_cache_directory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("NICEMU_CACHE_DIR")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", "relative/is/ignored")
    assert abi.cache_dir() == tmp_path / ".cache" / "nicemu"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "x"))
    assert abi.cache_dir() == tmp_path / "x" / "nicemu"
    monkeypatch.setenv("NICEMU_CACHE_DIR", str(tmp_path / "own"))
    assert abi.cache_dir() == tmp_path / "own"
