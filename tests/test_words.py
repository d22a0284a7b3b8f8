"""Instruction words, against the assembler of the tests and the core's own disassembler."""

from __future__ import annotations

import pytest

from nicemu import ArgumentError
from nicemu._core import instructions
from nicemu.device.words import code, operands, vtype, word
from tests.assemble import assemble
from tests.encode import rows

WORDS = {
    "add t0, t1, a2": ("add", 5, 6, 12),
    "addi a0, a0, -1": ("addi", 10, 10, -1),
    "srai t0, t1, 63": ("srai", 5, 6, 63),
    "ld t0, -8(a1)": ("ld", 5, -8, 11),
    "sd t0, -2048(a1)": ("sd", 5, -2048, 11),
    "fsw ft1, 100(a1)": ("fsw", 1, 100, 11),
    "fmadd.h ft0, ft1, ft2, ft3": ("fmadd.h", 0, 1, 2, 3),
    "fcvt.s.bf16 ft0, ft1": ("fcvt.s.bf16", 0, 1),
    "fmin.s ft0, ft1, ft2": ("fmin.s", 0, 1, 2),
    "csrrs t0, mcycle, zero": ("csrrs", 5, "mcycle", 0),
    "amoadd.d t0, t1, (a1)": ("amoadd.d", 5, 6, 11),
    "vsetvli a3, zero, e32,m4,ta,ma": ("vsetvli", 13, 0, vtype(32, 4)),
    "vle16.v v8, (a1)": ("vle16.v", 8, 11),
    "vlse16.v v8, (a1), t0": ("vlse16.v", 8, 11, 5),
    "vfwadd.wv v8, v16, v24": ("vfwadd.wv", 8, 16, 24),
    "vfmacc.vv v8, v16, v24": ("vfmacc.vv", 8, 16, 24),
    "vslidedown.vi v8, v16, 31": ("vslidedown.vi", 8, 16, 31),
    "vfsqrt.v v8, v16": ("vfsqrt.v", 8, 16),
    "vmand.mm v8, v16, v24": ("vmand.mm", 8, 16, 24),
    "vmv.v.v v8, v16": ("vmv.v.v", 8, 16),
}


@pytest.mark.parametrize("text", WORDS)
def test_words(text: str) -> None:
    name, *values = WORDS[text]
    assert word(str(name), *values) == assemble(text)


@pytest.mark.parametrize("offset", [-4096, -4, 4, 2048, 4094])
def test_offsets_of_branches(offset: int) -> None:
    at = 1 << 20
    assert word("bne", 10, 0, offset) == assemble(f"bne a0, zero, {at + offset:#x}", at)


@pytest.mark.parametrize("offset", [-(1 << 20), -4, 4, 2048, 4096, (1 << 20) - 2])
def test_offsets_of_jumps(offset: int) -> None:
    at = 1 << 20
    assert word("jal", 1, offset) == assemble(f"jal ra, {at + offset:#x}", at)


def test_code() -> None:
    assert code([0x00100073, 1]).hex() == "7300100001000000"


def test_operands_are_of_the_row() -> None:
    assert operands(rows()["fmadd.s"]) == ["frd", "frs1", "frs2", "frs3"]
    assert operands(rows()["vse32.v"]) == ["vs3", "rs1"]
    assert operands(rows()["fence"]) == operands(rows()["ebreak"]) == []
    assert all("vm" not in operands(row) for row in instructions())


def test_what_is_no_instruction() -> None:
    for name, values, said in (
        ("c.nop", (), "'c.nop' is unknown"),
        ("ad", (1, 2, 3), "'ad' is unknown"),
        ("add", (1, 2), "add with 2 operands: use add rd, rs1, rs2"),
    ):
        with pytest.raises(ArgumentError, match=said):
            word(name, *values)
