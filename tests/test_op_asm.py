"""Reduce ops in assembly: the entries of an image, and what is refused, with its line."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

import nicemu
from nicemu import (
    ArgumentError,
    Communicator,
    FaultError,
    ImageError,
    Nic,
    OpError,
    ReduceOp,
    StatusError,
    kernel,
    reduce_op,
)
from nicemu.compiler import clang

pytest.importorskip("ziglang", reason="pip install 'nicemu[c]'")

LOOP = """
1:  vsetvli t0, a2, e32, m8, ta, ma
    vle32.v v8, (a1)
{}
    sub a2, a2, t0
    sh2add a0, t0, a0
    sh2add a1, t0, a1
    bnez a2, 1b
    li a0, 0
    ret
"""
COPY = "    vse32.v v8, (a0)"
ADD = "    vle32.v v16, (a0)\n    vfadd.vv v8, v16, v8\n    vse32.v v8, (a0)"
LEAVE = "    mv t1, a0\n    mv a0, a1\n    mv a1, t1"
SUM = f"""
first:
load:
    ld a1, 0(a1)
{LOOP.format(COPY)}
acc:
merge:
    ld a1, 0(a1)
{LOOP.format(ADD)}
emit:
finish:
    ld a1, 0(a1)
{LEAVE}
{LOOP.format(COPY)}
"""


def asm(source: str) -> ReduceOp:
    return reduce_op.asm(source, element="float32")


def test_the_bits_are_those_of_the_built_in_sum() -> None:
    x = np.random.default_rng(1).standard_normal((5, 3001)).astype(np.float32)
    got, want = (Communicator(5).allreduce(x, op).whole() for op in (asm(SUM), "sum"))
    assert got.tobytes() == want.tobytes()
    assert asm(SUM).image().code != kernel("sum", "float32").code


@pytest.mark.parametrize("count", [0, 1, 15, 16, 17, 500])
def test_entries(count: int) -> None:
    nic = Nic(threads=1)
    nic.load(asm(SUM).image())
    assert nic.image.fan_ins("acc") == (1,)
    a = np.arange(count, dtype=np.float32)
    assert nic.handle("first", [a]).accumulator.tolist() == a.tolist()
    assert nic.handle("acc", [2 * a]).accumulator.tolist() == (3 * a).tolist()
    output = nic.handle("finish", count=count).output
    assert output is not None and output.tolist() == (3 * a).tolist()


def test_a_fan_in_variant() -> None:
    two = f"{SUM}\nacc2:\n    ld a4, 8(a1)\n    ld a1, 0(a1)\n" + LOOP.format(
        f"    vle32.v v24, (a4)\n    sh2add a4, t0, a4\n{ADD.replace('vse32.v v8, (a0)', '')}"
        "vfadd.vv v8, v8, v24\n    vse32.v v8, (a0)"
    )
    x = np.random.default_rng(2).standard_normal((6, 300)).astype(np.float32)
    assert asm(two).image().fan_ins("acc") == (1, 2)
    results = [Communicator(6).allreduce(x, asm(text)).whole() for text in (two, SUM)]
    assert results[0].tobytes() == results[1].tobytes()


def test_a_status() -> None:
    source = SUM.replace("acc:\n", "acc:\n    li a0, 7\n    ret\n")
    nic = Nic(threads=1)
    nic.load(asm(source).image())
    with pytest.raises(StatusError, match="returned status 7"):
        nic.reduce(np.ones((2, 4), np.float32))


def test_a_file_and_the_formats(tmp_path: Path) -> None:
    path = tmp_path / "total.s"
    path.write_text(SUM)
    op = reduce_op.asm(path, element="float32")
    assert op.name == op.image().op == "total"
    with pytest.raises(ArgumentError, match="op total: is for float32, not float16"):
        op.image("float16")
    with pytest.raises(ArgumentError, match="its assembly is for preset 'wide', not 'per-add'"):
        op.image(preset="per-add")
    with pytest.raises(OpError, match="total: is assembly, which only cores run: compare with"):
        op.reference(np.ones((2, 4), np.float32))
    with pytest.raises(OpError, match="finish belongs into its source text"):
        op.finish(lambda a: a)


def test_check_runs_it_on_cores() -> None:
    """All that it asks of others but for the host's bits."""
    found = asm(SUM).check()
    assert found.ok and found.commutative == "yes" and found.associative == "up to rounding"
    answers = {f.what: (f.found, f.detail) for f in found.findings}
    assert answers["same bits as on the host"] == ("not asked", "assembly runs on cores only")
    assert answers["same bits for every VLEN and fan-in"][0] == "yes"
    assert answers["stack"][0] == "0 bytes"
    of_python = nicemu.reduce_op(name="asm", element="float32")(add).check()
    assert found.laws == of_python.laws
    assert set(answers) == {f.what for f in of_python.findings}


def add(a: float, b: float) -> float:
    return a + b


def test_check_of_halfs_tries_all_patterns() -> None:
    halfs = SUM.replace("e32", "e16").replace("sh2add", "sh1add").replace("vfadd", "vfmax")
    halfs = re.sub(r"v([ls])e32", r"v\1e16", halfs)
    found = reduce_op.asm(halfs, element="float16", preset="per-add").check()
    answers = {f.what: f for f in found.findings}
    assert answers["lift"].found == answers["finish"].found == "65,536 patterns"
    assert found.ok and found.commutative == found.associative == "yes"


def answer(source: str) -> str:
    """Whether the bits depend on how an image is run."""
    found = asm(source).check()
    (same,) = (f for f in found.findings if f.what == "same bits for every VLEN and fan-in")
    assert found.ok == same.good == (same.found == "yes")
    return same.found


def test_check_finds_a_fan_in_that_is_not_the_entry_twice() -> None:
    """acc2 that takes its payloads in turn, and one that begins with the second."""
    add = "    vle32.v v16, (a0)\n    vfadd.vv v16, v16, v8"
    second = "    vle32.v v8, (t1)\n    vfadd.vv v16, v16, v8\n    sh2add t1, t0, t1"
    loop = LOOP.format(f"{add}\n{second}\n    vse32.v v16, (a0)")
    for first, at, found in ((8, 0, "yes"), (0, 8, "no")):
        entry = f"acc2:\n    ld t1, {first}(a1)\n    ld a1, {at}(a1)\n{loop}"
        assert answer(f"{SUM}\n{entry}") == found


@pytest.mark.parametrize("count", [16, 3000])
def test_what_a_handler_leaves_out_is_zero(count: int) -> None:
    """And nothing that was in the host's memory before."""
    nic = Nic(threads=1)
    nic.load(asm(SUM.replace("finish:", "finish:\n    li a0, 0\n    ret")).image())
    for _ in range(3):
        np.full(count, 7, np.float32)  # its memory is free at once
        assert not nic.reduce([np.ones(count, np.float32)]).values.any()


def test_check_finds_code_that_counts_on_a_vlen() -> None:
    """128 elements at a time, as the card's cores can."""
    counted = "1:  li t0, 128\n    minu t0, t0, a2\n    vsetvli zero, t0,"
    assert answer(SUM.replace("1:  vsetvli t0, a2,", counted)) == "no"


def test_disassembly_shows_the_source() -> None:
    op = asm(SUM)
    line = SUM.splitlines().index("    vle32.v v16, (a0)") + 1
    assert f"asm.s:{line}: vle32.v v16, (a0)" in str(op.disasm())
    assert op.cost().instructions_per_packet > 0


REFUSED: dict[str, tuple[str, str]] = {
    **{
        entry: (SUM.replace(f"{entry}:", "    nop"), rf"asm\.s\): there is no entry {entry}: ")
        for entry in ("first", "load", "acc", "merge", "emit", "finish")
    },
    "empty": ("", "there is no entry first"),
    "syntax": (f"    nop\n    vfad v1, v2\n{SUM}", r"asm\.s:2\): unrecognized instruction"),
    "extension": (f"    aes64es a0, a0, a0\n{SUM}", r"asm\.s:1\): instruction requires"),
    "undefined": (f"    nop\n    call malloc\n{SUM}", r"asm\.s:2\): it uses malloc, which a core"),
    "data": (f"{SUM}\n.data\nx: .word 3", "it needs a table in memory"),
    "constants": (f"{SUM}\n.section .rodata\nx: .word 3", "it needs a table in memory"),
    "absolute": (f"    nop\n    lui a3, %hi(first)\n{SUM}", r"asm\.s:2\): its code needs 'first'"),
    "no instruction": (f"{SUM}\n    .word 0xffffffff", r"asm\.s:\d+\): 0xffffffff at .* is no"),
    "only data": ("first: load: acc: merge: emit: finish: .word 0xffffffff", r"\(asm\.s\): 0xffff"),
    "file": (f'{SUM}\n.incbin "/etc/hosts"', r"asm\.s:\d+\): it reads a file"),
    "include": (f'.include "/etc/hosts"\n{SUM}', r"asm\.s:1\): it reads a file"),
    "large": (f"{SUM}\n.zero 1 << 40", "clang gave up"),
    "zero byte": (f"{SUM}\0", "none 0"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case: str) -> None:
    source, message = REFUSED[case]
    with pytest.raises(OpError, match=message) as caught:
        asm(source).image()
    assert "\n" not in str(caught.value) and "/tmp" not in str(caught.value)


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("j .", "out of budget"),
        ("ecall", "environment call"),
        ("csrr t0, cycle", "illegal instruction"),
        ("ld t0, 0(zero)", "load access fault"),
        ("sd t0, 0(a3)", "store/AMO access fault"),
        ("sd t0, 64(sp)", "store/AMO access fault"),
        ("jr zero", "access fault"),
    ],
)
def test_faults(code: str, message: str) -> None:
    nic = Nic(threads=1)
    nic.load(asm(SUM.replace("acc:\n", f"acc:\n    {code}\n")).image())
    with pytest.raises(FaultError, match=message):
        nic.reduce(np.ones((2, 4), np.float32))


def test_a_hit_needs_no_clang(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("NICEMU_CACHE_DIR", str(tmp_path))
    image = asm(SUM).image()
    monkeypatch.setattr(clang, "find_spec", lambda name: None)
    assert asm(SUM).image() == image
    with pytest.raises(ImageError, match=r"need clang: pip install 'nicemu\[c\]'"):
        asm(f"{SUM}\n").image()


def test_the_guide() -> None:
    text = (Path(nicemu.__file__).parent / "guide" / "authoring.md").read_text()
    section = re.search(r"^## In assembly\n(.*?)(?=^## |\Z)", text, re.M | re.S)
    assert section is not None
    names: dict[str, object] = {}
    for block in re.findall(r"```python\n(.*?)```", section[1], re.S):
        exec(block, names)
    op = names["biggest"]
    assert isinstance(op, ReduceOp)
    x = np.array([[1, 5, -3], [2, 4, -1]], np.int32)
    assert Communicator(2).allreduce(x, op).whole().tolist() == [2, 5, -1]
