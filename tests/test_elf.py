"""ELF files and the bare-metal machine: what runs, and how everything else is refused."""

from __future__ import annotations

import re
import struct
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nicemu.device import bare
from nicemu.device.bare import QUANTUM, Outcome
from nicemu.device.elf import load_elf, parse_elf
from nicemu.errors import ArgumentError, FaultError, FileFormatError
from tests.elfs import A0, BASE, CHARACTER, T0, T1, TOHOST, Image, build, endless, printing
from tests.elfs import store_tohost as to_host
from tests.encode import encode, load_constant
from tests.encode import image as code_bytes


def run(code: bytes, **options: int) -> tuple[Outcome, bytes]:
    printed = bytearray()
    outcome = bare.run(parse_elf(build(Image(code))), printed.extend, **options)
    return outcome, bytes(printed)


# ---- reading ---------------------------------------------------------------------------------


def test_what_a_file_says() -> None:
    code = printing(b"", 0)
    elf = parse_elf(
        build(Image(code, extra=[(BASE + 0x2000, b"abc", 100)], symbols={"tohost": 8, "x": 9}))
    )
    assert elf.entry == BASE
    assert [(s.address, bytes(s.data), s.size, s.executable) for s in elf.segments] == [
        (BASE, code, len(code), True),
        (BASE + 0x2000, b"abc", 100, False),
    ]
    assert [(at, bytes(data)) for at, data in elf.code] == [(BASE, code)]
    assert elf.symbols == {"tohost": 8, "x": 9}


def test_without_sections_the_segments_are_the_code() -> None:
    elf = parse_elf(build(Image(endless(), sections=False)))
    assert [(at, bytes(data)) for at, data in elf.code] == [(BASE, endless())]
    assert elf.symbols == {}


def test_the_entry_may_be_in_a_segment_without_flags() -> None:
    """As linker scripts write them that name their segments; the sections say what is code."""
    elf = parse_elf(build(Image(endless(), flags=0)))
    assert elf.entry == BASE
    assert [(at, bytes(data)) for at, data in elf.code] == [(BASE, endless())]


CODE = endless()
REFUSED = [
    (build(Image(CODE, machine=62)), r"machine 62 \(x86-64\) is not RISC-V"),
    (build(Image(CODE, machine=0xFFFF)), r"machine 65535 \(unknown\)"),
    (build(Image(CODE, elf_class=1)), "only 64-bit"),
    (build(Image(CODE, data=2)), "little-endian"),
    (build(Image(CODE, kind=1)), r"type 1 \(an unlinked object\)"),
    (build(Image(CODE, kind=3)), r"type 3 \(position-independent\)"),
    (build(Image(CODE, entry=BASE + 1)), "entry 0x80000001"),
    (build(Image(CODE, entry=BASE + 4)), "entry 0x80000004"),
    (build(Image(CODE, extra=[(BASE + 2, b"ab", 2)])), "overlap"),
    (build(Image(CODE, extra=[(BASE + 99, b"ab", 1)])), "does not fit"),
    (build(Image(CODE, extra=[((1 << 64) - 1, b"ab", 2)])), "does not fit"),
    (b"", "begins with b''"),
    (b"\x7fELF", "ELF header at 0x0..0x10 lies outside"),
    (b"MZ" + bytes(100), "begins with b'MZ"),
]


@pytest.mark.parametrize(("data", "message"), REFUSED, ids=[m for _, m in REFUSED])
def test_refused_files(data: bytes, message: str) -> None:
    with pytest.raises(FileFormatError, match=f"^k.elf: .*{message}"):
        parse_elf(data, "k.elf")


def test_every_truncation_is_refused() -> None:
    whole = build(Image(printing(b"x", 0)))
    for n in range(len(whole)):
        with pytest.raises(FileFormatError):
            parse_elf(whole[:n])


def header_fields() -> list[tuple[int, int]]:
    """(offset, size) of every field of the headers and tables of the smallest file."""
    layouts = [(16, "HHIQQQIHHHHHH"), (64, "IIQQQQQQ")]
    shoff = struct.unpack_from("<Q", SMALL, 40)[0]
    layouts += [(shoff + 64 * i, "IIQQQQIIQQ") for i in range(4)]
    symtab = struct.unpack_from("<Q", SMALL, shoff + 2 * 64 + 24)[0]
    layouts.append((symtab + 24, "IBBHQQ"))
    fields = []
    for at, layout in layouts:
        for code in layout:
            size = struct.calcsize(code)
            fields.append((at, size))
            at += size
    return fields


SMALL = build(Image(printing(b"x", 0)))
EDGES = st.sampled_from([0, 1, 2, 0x7F, 0xFF, 0xFFFF, 0xFFFFFFFF, (1 << 63) - 1, (1 << 64) - 1])


@settings(max_examples=600, deadline=None)
@given(
    changes=st.lists(
        st.tuples(st.sampled_from(header_fields()), EDGES | st.integers(0, (1 << 64) - 1)),
        min_size=1,
        max_size=3,
    )
)
def test_damaged_fields_raise_one_type_only(changes: list[tuple[tuple[int, int], int]]) -> None:
    data = bytearray(SMALL)
    for (at, size), value in changes:
        data[at : at + size] = (value % (1 << 8 * size)).to_bytes(size, "little")
    run_or_refuse(bytes(data))


def test_two_symbol_tables() -> None:
    """The gABI allows one; with tens of thousands that share their bytes, reading would not end."""
    data = bytearray(SMALL)
    sections = int.from_bytes(data[40:48], "little")
    data[sections + 64 + 4] = 2  # the code section becomes a SHT_SYMTAB
    with pytest.raises(FileFormatError, match="more than one symbol table"):
        parse_elf(bytes(data))


def test_a_code_section_past_the_end_of_memory() -> None:
    data = bytearray(SMALL)
    section = int.from_bytes(data[40:48], "little") + 64
    data[section + 16 : section + 24] = ((1 << 64) - 2).to_bytes(8, "little")  # sh_addr
    with pytest.raises(FileFormatError, match="passes the end of memory: the file is damaged"):
        parse_elf(bytes(data))


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=300) | st.binary(max_size=300).map(lambda b: SMALL[:64] + b))
def test_random_bytes_raise_one_type_only(data: bytes) -> None:
    run_or_refuse(data)


def run_or_refuse(data: bytes) -> None:
    """What is believed must also run, or end as a typed error."""
    try:
        elf = parse_elf(data)
        bare.run(elf, lambda _: None, memory=1 << 20, budget=2000)
    except (FileFormatError, FaultError):
        pass


def test_paths_that_cannot_be_read(tmp_path: Path) -> None:
    for path in (tmp_path / "none.elf", tmp_path):
        with pytest.raises(FileFormatError, match=re.escape(str(path))):
            load_elf(path)
    good = tmp_path / "k.elf"
    good.write_bytes(SMALL)
    assert load_elf(good).name == str(good)


# ---- running ---------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [0, 1, 2, 77, 1 << 40])
def test_prints_and_exits(code: int) -> None:
    outcome, printed = run(printing(b"hi\n", code))
    assert (outcome.exit_code, printed) == (code, b"hi\n")
    assert outcome.counters[0].stores == 4


def test_odd_characters_print() -> None:
    """The lowest bit means "exit" only where device and command are zero."""
    text = bytes([0x69, 0, 1, 0xFF, 0x80])
    assert run(printing(text, 0))[1] == text


def hart_program() -> bytes:
    """Core 0 sums what the others post; each core i posts i + 1 and waits for ever."""
    slots = BASE + 0x2000
    hart = [
        encode("csrrs", rd=A0, rs1=0, csr=0xF14),
        *load_constant(T0, slots),
        encode("slli", rd=T1, rs1=A0, shamt=3),
        encode("add", rd=T0, rs1=T0, rs2=T1),
        encode("addi", rd=T1, rs1=A0, imm=1),
        encode("sd", rs2=T1, rs1=T0, imm=0),
        encode("beq", rs1=A0, rs2=0, target=8),
        encode("jal", rd=0, target=0),
        *load_constant(T0, slots),
    ]
    for i in range(1, 4):  # core 0: wait for each of the others
        hart += [
            encode("ld", rd=11, rs1=T0, imm=8 * i),
            encode("beq", rs1=11, rs2=0, target=-4),
            encode("add", rd=12, rs1=12, rs2=11),
        ]
    hart += [
        encode("slli", rd=12, rs1=12, shamt=1),
        encode("addi", rd=12, rs1=12, imm=1),
        *load_constant(T0, TOHOST),
        encode("sd", rs2=12, rs1=T0, imm=0),
        encode("jal", rd=0, target=0),
    ]
    return code_bytes(hart)


def test_cores_share_memory_and_take_turns() -> None:
    outcome, _ = run(hart_program(), cores=4)
    assert outcome.exit_code == 2 + 3 + 4
    assert [run(hart_program(), cores=4)[0].counters for _ in range(2)] == [outcome.counters] * 2
    assert all(c.instructions <= 2 * QUANTUM for c in outcome.counters)


def test_printing_takes_no_ones_turn() -> None:
    """Core 0 prints for ever; core 1 counts to 5000 and exits: it must get there."""
    loop = to_host(CHARACTER | ord("."))
    program = [
        encode("csrrs", rd=A0, rs1=0, csr=0xF14),
        encode("bne", rs1=A0, rs2=0, target=4 * (len(loop) + 2)),
        *loop,
        encode("jal", rd=0, target=-4 * len(loop)),
        *load_constant(A0, 5000),
        encode("addi", rd=A0, rs1=A0, imm=-1),
        encode("bne", rs1=A0, rs2=0, target=-4),
        *to_host(1),
    ]
    outcome, printed = run(code_bytes(program), cores=2, budget=100_000)
    assert outcome.exit_code == 0
    assert set(printed) == {ord(".")}
    turns = -(-outcome.counters[1].instructions // QUANTUM)
    assert (turns - 1) * QUANTUM <= outcome.counters[0].instructions <= turns * QUANTUM


def test_zero_memory_beyond_the_file() -> None:
    code = code_bytes(
        [
            *load_constant(T0, BASE + 0x2000),
            encode("lbu", rd=A0, rs1=T0, imm=2),
            encode("lbu", rd=11, rs1=T0, imm=3),
            encode("add", rd=A0, rs1=A0, rs2=11),
            encode("slli", rd=A0, rs1=A0, shamt=1),
            encode("addi", rd=A0, rs1=A0, imm=1),
            *load_constant(T0, TOHOST),
            encode("sd", rs2=A0, rs1=T0, imm=0),
            encode("jal", rd=0, target=0),
        ]
    )
    elf = parse_elf(build(Image(code, extra=[(BASE + 0x2000, b"\1\2\3", 8)])))
    assert bare.run(elf, lambda _: None).exit_code == 3


def test_a_trap_goes_to_the_guest() -> None:
    handler = [*to_host(9 << 1 | 1)]
    start = [
        encode("auipc", rd=T0, hi20=0),
        encode("addi", rd=T0, rs1=T0, imm=4 * 4),
        encode("csrrw", rd=0, rs1=T0, csr=0x305),  # mtvec
        0xFFFFFFFF,
    ]
    assert run(code_bytes(start + handler))[0].exit_code == 9


def test_programs_below_the_usual_address() -> None:
    low = 0x10_0000
    code = code_bytes(
        [
            *load_constant(T0, low + 0x1000),
            encode("addi", rd=T1, rs1=0, imm=7),
            encode("sd", rs2=T1, rs1=T0, imm=0),
            encode("jal", rd=0, target=0),
        ]
    )
    elf = parse_elf(build(Image(code, base=low, symbols={"tohost": low + 0x1000})))
    assert bare.run(elf, lambda _: None, memory=1 << 20).exit_code == 3


@pytest.mark.parametrize(
    ("code", "options", "message"),
    [
        (bytes(4), {}, r"core 0: illegal instruction at pc 0x80000000, address 0x0, after 0 "),
        (code_bytes([encode("ld", rd=1, rs1=0, imm=0)]), {}, "load access fault .* address 0x0"),
        (endless(), {"budget": 5000}, r"give more with --budget.*after 5000 instructions"),
        (endless(), {"budget": 5000, "cores": 3}, "after 5000 instructions"),
        (code_bytes(to_host(2)), {}, "stored 0x2 to tohost: use"),
        (code_bytes(to_host(3 << 56)), {}, "stored 0x300000000000000 to tohost"),
    ],
)
def test_programs_that_fail(code: bytes, options: dict[str, int], message: str) -> None:
    with pytest.raises((FaultError, FileFormatError), match=message):
        run(code, **options)


@pytest.mark.parametrize(
    ("image", "message"),
    [
        (Image(CODE, symbols={}), "no symbol 'tohost'"),
        (Image(CODE, symbols={"tohost": BASE + 4}), "not 8-byte aligned"),
        (Image(CODE, symbols={"tohost": 0x1000}), "inside the memory"),
        (Image(CODE, extra=[(BASE + (1 << 40), b"a", 1)]), "--memory"),
    ],
)
def test_programs_that_do_not_fit(image: Image, message: str) -> None:
    with pytest.raises(FileFormatError, match=message):
        bare.run(parse_elf(build(image)), lambda _: None)


@pytest.mark.parametrize(
    "options",
    [{"cores": 0}, {"cores": 65}, {"vlen": 64}, {"memory": 0}, {"memory": 1 << 50}, {"budget": 0}],
)
def test_arguments_out_of_range(options: dict[str, int]) -> None:
    with pytest.raises(ArgumentError, match=r"0|64|65|1125899906842624"):
        run(endless(), **options)
