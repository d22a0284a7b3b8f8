"""ISA strings, and what is off: it traps, misa says so, and jumps without C are to words."""

from __future__ import annotations

import pytest

from nicemu._core import FAULT, Cores, R, X, extension_names
from nicemu.device.isa import SHORT, extensions, known
from nicemu.errors import ArgumentError
from tests.encode import encode, image
from tests.harts import simd_paths

CODE = 0x1000
G = {"i", "m", "a", "f", "d", "zicsr", "zifencei"}


@pytest.mark.parametrize(
    ("text", "on"),
    [
        ("rv64i", {"i"}),
        ("rv64imac_zicsr", {"i", "m", "a", "c", "zicsr"}),
        ("RV64IMAC_Zicsr", {"i", "m", "a", "c", "zicsr"}),
        ("rv64g", G),
        ("rv64gc", G | {"c"}),
        ("rv64ib", {"i", "zba", "zbb", "zbs"}),
        ("rv64i_b_c_m", {"i", "zba", "zbb", "zbs", "c", "m"}),
        ("rv64izicond_zba", {"i", "zicond", "zba"}),
        ("rv64i_zicond_zba", {"i", "zicond", "zba"}),
        ("rv64if", {"i", "f", "zicsr"}),
        ("rv64id", {"i", "f", "d", "zicsr"}),
        ("rv64iv", {"i", "f", "d", "v", "zicsr"}),
        ("rv64i_zicntr", {"i", "zicsr", "zicntr"}),
        ("rv64i_zfh", {"i", "f", "zfh", "zicsr"}),
        ("rv64i_zfbfmin", {"i", "f", "zfbfmin", "zicsr"}),
        ("rv64i_zvfh", {"i", "f", "d", "v", "zfh", "zvfh", "zicsr"}),
        ("rv64i_zvfbfmin", {"i", "f", "d", "v", "zvfbfmin", "zicsr"}),
        ("rv64i_zvfbfwma", {"i", "f", "d", "v", "zfbfmin", "zvfbfmin", "zvfbfwma", "zicsr"}),
        ("rv64gcv_zvl256b", G | {"c", "v"}),
    ],
)
def test_what_a_string_switches_on(text: str, on: set[str]) -> None:
    names = extensions(text, 256)
    assert set(names) == on
    assert list(names) == [e for e in extension_names() if e in on]


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("", "no ISA string"),
        ("rv64", "no ISA string"),
        ("rv32imac", "no ISA string"),
        ("rv64e", "no ISA string"),
        ("rv64i2p1", "no ISA string"),
        ("rv64gc_", "no ISA string"),
        ("rv64gc zba", "no ISA string"),
        ("rv64gh", "'h'"),
        ("rv64gc_zfoo", "'zfoo'"),
        ("rv64gc_priv", "'priv'"),
        ("rv64gc_cd", "'cd'"),
        ("rv64gcv_zvl512b", "zvl512b"),
        ("rv64gcv_zvl300b", "'zvl300b'"),
    ],
)
def test_what_is_refused(text: str, part: str) -> None:
    """One line with the whole string, the part, and what there is instead."""
    with pytest.raises(ArgumentError) as caught:
        extensions(text, 256)
    message = str(caught.value)
    assert repr(text) in message and part in message and "\n" not in message
    if "unknown" in message:
        assert message.endswith(", ".join(known()))


def test_every_row_has_a_string() -> None:
    """Alone it is switched on, and so is whatever it needs."""
    for name in known():
        text = f"rv64{name}" if name in ("i", "g") else f"rv64i_{name}"
        assert {name} <= set(extensions(text, 128)) | set(SHORT)
    everything = extensions("rv64i" + "".join(f"_{n}" for n in known() if n not in "i"), 128)
    assert set(everything) | {"priv", "h16", "cd"} == set(extension_names())


@pytest.mark.parametrize(
    ("text", "letters"),
    [
        ("rv64imac_zicsr", "imacu"),
        ("rv64gcv", "imafdcvu"),
        ("rv64imb", "imbu"),
        ("rv64i_zba_zbb", "iu"),
    ],
)
def test_misa(text: str, letters: str) -> None:
    misa = Cores(extensions=extensions(text, 512)).csr("misa")
    assert misa == 2 << 62 | sum(1 << ord(c) - ord("a") for c in letters)


OFF: dict[str, dict[str, int]] = {
    "mul": {"rd": 5, "rs1": 6, "rs2": 7},
    "amoadd.w": {"rd": 5, "rs1": 6, "rs2": 7},
    "csrrw": {"rd": 5, "rs1": 6, "csr": 0x340},
    "sh1add": {"rd": 5, "rs1": 6, "rs2": 7},
    "fadd.h": {"rd": 5, "rs1": 6, "rs2": 7},
    "vadd.vv": {"vd": 8, "vs1": 16, "vs2": 24},
}


@pytest.mark.parametrize("name", OFF)
def test_what_is_off_traps(name: str) -> None:
    cores = Cores(extensions=extensions("rv64ic", 512))
    cores.map(CODE, 4096, R | X)
    word = encode(name, **OFF[name])
    cores.write(CODE, image([word]))
    cores.reset(CODE)
    stop = cores.run(1)
    assert (stop.reason, stop.cause, stop.address) == (FAULT, 2, word)


# ---- IALIGN ----------------------------------------------------------------------------------

#: a taken and an untaken pair of rs1, rs2 (x5 = 1, x6 = -1) for every branch
TAKEN = {
    "beq": ((5, 5), (5, 6)),
    "bne": ((5, 6), (5, 5)),
    "blt": ((6, 5), (5, 6)),
    "bge": ((5, 6), (6, 5)),
    "bltu": ((5, 6), (6, 5)),
    "bgeu": ((6, 5), (5, 6)),
}


class Words:
    """A hart without C, and code at CODE."""

    def __init__(self, text: str, simd: str = "auto") -> None:
        self.cores = Cores(extensions=extensions(text, 512), simd=simd)
        self.cores.map(CODE, 4096, R | X)

    def run(self, words: list[int], budget: int = 1) -> tuple[int, int, int, int]:
        """reason, cause, address, pc after so many instructions from CODE."""
        self.cores.write(CODE, image([*words, 0]))
        self.cores.reset(CODE)
        self.cores.x()[5:7] = 1, (1 << 64) - 1
        stop = self.cores.run(budget)
        return stop.reason, stop.cause, stop.address, stop.pc


@pytest.fixture(scope="module", params=simd_paths())
def words(request: pytest.FixtureRequest) -> Words:
    return Words("rv64ima_zicsr", request.param)


@pytest.mark.parametrize("name", TAKEN)
def test_a_branch_to_half_a_word(name: str, words: Words) -> None:
    """It traps when taken, with the target in mtval; not taken it goes on."""
    (a, b), (c, d) = TAKEN[name]
    for offset in (6, -2, 4094):
        taken = encode(name, rs1=a, rs2=b, target=offset)
        assert words.run([taken]) == (FAULT, 0, CODE + offset, CODE)
        # after another instruction, which could be executed together with it
        add = encode("addi", rd=7, rs1=7, imm=1)
        assert words.run([add, taken], 2) == (FAULT, 0, CODE + 4 + offset, CODE + 4)
        assert words.cores.x()[7] == 1
        assert words.run([encode(name, rs1=c, rs2=d, target=offset)])[3] == CODE + 4
    assert words.run([encode(name, rs1=a, rs2=b, target=8)])[3] == CODE + 8


def test_a_jump_to_half_a_word(words: Words) -> None:
    """It traps before it links."""
    assert words.run([encode("jal", rd=5, target=10)]) == (FAULT, 0, CODE + 10, CODE)
    assert words.cores.x()[5] == 1
    assert words.run([encode("jal", rd=5, target=12)])[3] == CODE + 12
    for imm, target in ((2, 2), (1, 2), (5, 6)):  # bit 0 of the sum is dropped
        assert words.run([encode("jalr", rd=5, rs1=5, imm=imm)]) == (FAULT, 0, target, CODE)
        assert words.cores.x()[5] == 1
    assert words.run([encode("jalr", rd=5, rs1=0, imm=CODE - 4096 + 9)])[3] == 8
    assert words.cores.x()[5] == CODE + 4


def test_with_c_there_is_no_such_trap() -> None:
    both = Words("rv64imac")
    assert both.run([encode("jal", rd=5, target=10)])[3] == CODE + 10
    assert both.run([encode("jalr", rd=5, rs1=5, imm=1)])[3] == 2
    assert both.run([encode("beq", rs1=0, rs2=0, target=6)])[3] == CODE + 6


def test_mepc_and_the_host(words: Words) -> None:
    words.cores.set_csr("mepc", 0x1237)
    assert words.cores.csr("mepc") == 0x1234
    for call in (words.cores.set_pc, words.cores.reset):
        with pytest.raises(ArgumentError):
            call(CODE + 2)
