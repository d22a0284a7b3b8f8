"""CSRs, privilege and traps, by the privileged manual."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import pytest

from nicemu import _core
from nicemu._core import BUDGET, FAULT, RETURN, Cores, R, W, X, csrs
from nicemu.errors import ArgumentError
from tests.encode import encode, image, rows, vtype

CODE, HANDLER, DATA = 0x1000, 0x2000, 0x8000
U, M = 0, 3
M64 = (1 << 64) - 1
MIE, MPIE, MPP, MPRV, TW, SD = 1 << 3, 1 << 7, 3 << 11, 1 << 17, 1 << 21, 1 << 63
FS, VS, UXL = 3 << 13, 3 << 9, 2 << 32
ILLEGAL, BREAKPOINT, LOAD, ECALL_U, ECALL_M, FETCH = 2, 3, 5, 8, 11, 1
VLEN = 256

#: every CSR of this machine, by number, written down once more from the manual's listing
NUMBERS = {
    *(0x001, 0x002, 0x003),  # fflags, frm, fcsr
    *(0x008, 0x009, 0x00A, 0x00F, 0xC20, 0xC21, 0xC22),  # vector
    *range(0xC00, 0xC20),  # cycle, time, instret, hpmcounter3..31
    *range(0xF11, 0xF16),  # mvendorid .. mconfigptr
    *(0x300, 0x301, 0x304, 0x305, 0x306, 0x30A),
    *range(0x340, 0x345),
    *(0xB00, 0xB02, *range(0xB03, 0xB20)),  # mcycle, minstret, mhpmcounter3..31
    *(0x320, *range(0x323, 0x340)),  # mcountinhibit, mhpmevent3..31
}

Program = Sequence[int]


def make(program: Program = (), handler: Program = (), guest: bool = False) -> Cores:
    cores = Cores(vlen=VLEN, trap_to_guest=guest)
    cores.map(CODE, 0x2000, R | X)
    cores.map(DATA, 0x1000, R | W)
    cores.write(CODE, image([*program, 0]))
    cores.write(HANDLER, image([*handler, 0]))
    cores.reset(CODE)
    return cores


def step(cores: Cores, word: int) -> _core.Stop:
    cores.write(CODE, word.to_bytes(4, "little"))
    cores.set_pc(CODE)
    return cores.run(1)


# ---- who may touch what ----------------------------------------------------------------------


def test_list_of_csrs() -> None:
    assert set(csrs().values()) == NUMBERS


def accesses() -> list[tuple[str, dict[str, int], bool]]:
    """(instruction, operands, whether it writes)"""
    return [
        ("csrrw", {"rs1": 0}, True),
        ("csrrw", {"rs1": 5}, True),
        ("csrrs", {"rs1": 0}, False),
        ("csrrs", {"rs1": 5}, True),
        ("csrrc", {"rs1": 0}, False),
        ("csrrc", {"rs1": 5}, True),
        ("csrrwi", {"uimm": 0}, True),
        ("csrrsi", {"uimm": 0}, False),
        ("csrrsi", {"uimm": 1}, True),
        ("csrrci", {"uimm": 0}, False),
        ("csrrci", {"uimm": 1}, True),
    ]


@pytest.mark.parametrize("mode", [U, M])
def test_unknown_numbers_trap(mode: int) -> None:
    cores = make()
    for number in sorted(set(range(4096)) - NUMBERS):
        for name, operands, _ in accesses()[number % 3 :: 3]:
            word = encode(name, rd=6, csr=number, **operands)
            cores.set_mode(mode)
            stop = step(cores, word)
            assert (stop.reason, stop.cause, stop.address) == (FAULT, ILLEGAL, word), hex(number)
            assert stop.instructions == 0
        with pytest.raises(ArgumentError):
            cores.csr(number)


@pytest.mark.parametrize("units", [FS | VS, VS, FS])
@pytest.mark.parametrize("mode", [U, M])
def test_access(mode: int, units: int) -> None:
    """Privilege and read-only bits of the number, units switched off, counters not opened."""
    cores = make()
    for number in sorted(NUMBERS):
        for name, operands, writes in accesses():
            for counteren in (0, 7):
                cores.reset(CODE)
                cores.set_csr("mstatus", units)
                cores.set_csr("mcounteren", counteren)
                cores.set_mode(mode)
                cores.x()[6] = 77
                allowed = mode >= number >> 8 & 3 and not (writes and number >> 10 == 3)
                if number in (1, 2, 3):
                    allowed &= bool(units & FS)
                elif number in (0x8, 0x9, 0xA, 0xF, 0xC20, 0xC21, 0xC22):
                    allowed &= bool(units & VS)
                elif number >> 8 == 0xC and mode == U:
                    allowed &= bool(counteren >> (number & 31) & 1)
                word = encode(name, rd=6, csr=number, **operands)
                stop = step(cores, word)
                if allowed:
                    assert (stop.reason, stop.instructions) == (BUDGET, 1), (hex(number), name)
                else:
                    assert (stop.cause, stop.address) == (ILLEGAL, word), (hex(number), name)
                    assert int(cores.x()[6]) == 77


def test_zero_rows_read_zero() -> None:
    cores = make()
    for name, number in csrs().items():
        if "hpm" in name or number in (0xF11, 0xF12, 0xF13, 0xF15, 0x320, 0x344):
            cores.set_csr(number, M64)
            assert cores.csr(number) == 0, name


# ---- what they hold --------------------------------------------------------------------------


def kept(mask: int) -> Callable[[int], int]:
    return lambda v: v & mask


def mstatus_of(v: int) -> int:
    mpp = MPP if v & MPP == MPP else 0  # S and H do not exist: a write of them reads as U
    value = v & (MIE | MPIE | MPRV | TW | FS | VS) | mpp | UXL
    return value | (SD if value & FS == FS or value & VS == VS else 0)


MISA = 2 << 62 | sum(1 << (ord(c) - ord("a")) for c in "imafdcvub")
#: name -> what reads back after v was written to it
WRITTEN: dict[str, Callable[[int], int]] = {
    "mscratch": kept(M64),
    "mepc": kept(M64 - 1),
    "mtvec": kept(M64 - 2),
    "mcause": kept(M64),
    "mtval": kept(M64),
    "mie": kept(0x888),
    "mcounteren": kept(7),
    "menvcfg": kept(1),
    "mstatus": mstatus_of,
    "misa": lambda v: MISA,
    "fflags": kept(31),
    "frm": kept(7),
    "fcsr": kept(255),
    "vstart": kept(VLEN - 1),
    "vxsat": kept(1),
    "vxrm": kept(3),
    "vcsr": kept(7),
}


@pytest.mark.parametrize("name", WRITTEN)
def test_fields(name: str) -> None:
    """Written by each instruction and by the host; rd is the old value."""
    rng = random.Random(name)
    cores = make()
    for value in (0, M64, MPP, 1 << 11, 2 << 11, *(rng.getrandbits(64) for _ in range(20))):
        old_written, operand = rng.getrandbits(64), value
        for op, combine in (
            ("csrrw", lambda a, b: b),
            ("csrrs", lambda a, b: a | b),
            ("csrrc", lambda a, b: a & ~b),
        ):
            for rd in (6, 5, 0):
                cores.reset(CODE)
                cores.set_csr("mstatus", FS | VS)
                cores.set_csr(name, old_written)
                old = cores.csr(name)
                if name != "mstatus":
                    assert old == WRITTEN[name](old_written)
                cores.set_csr("mstatus", FS | VS) if name != "mstatus" else None
                old = cores.csr(name)
                cores.x()[5] = operand
                assert step(cores, encode(op, rd=rd, csr=name, rs1=5)).instructions == 1
                assert cores.csr(name) == WRITTEN[name](combine(old, operand) & M64), (op, value)
                assert rd == 0 or int(cores.x()[rd]) == old


def test_immediate_forms() -> None:
    cores = make()
    for op, combine in (
        ("csrrwi", lambda a, b: b),
        ("csrrsi", lambda a, b: a | b),
        ("csrrci", lambda a, b: a & ~b),
    ):
        for uimm in range(32):
            cores.set_csr("mscratch", 0xFFFFFFFF_0000_5555)
            step(cores, encode(op, rd=6, csr="mscratch", uimm=uimm))
            assert int(cores.x()[6]) == 0xFFFFFFFF_0000_5555
            assert cores.csr("mscratch") == combine(0xFFFFFFFF_0000_5555, uimm) & M64


def test_aliases() -> None:
    cores = make()
    cores.set_csr("fcsr", 0b101_10110)
    assert (cores.csr("frm"), cores.csr("fflags")) == (0b101, 0b10110)
    cores.set_csr("frm", 2)
    cores.set_csr("fflags", 9)
    assert cores.csr("fcsr") == 2 << 5 | 9
    cores.set_csr("vcsr", 0b110)
    assert (cores.csr("vxrm"), cores.csr("vxsat")) == (3, 0)
    cores.set_csr("vxsat", 1)
    assert cores.csr("vcsr") == 0b111


def test_constants() -> None:
    cores = Cores(3, VLEN)
    for hart in range(3):
        assert cores.csr("mhartid", hart) == hart
        assert cores.csr("vlenb", hart) == VLEN // 8
        assert cores.csr("vtype", hart) == 1 << 63  # vill, until a vset
    assert Cores(extensions=["i", "m", "zicsr"]).csr("misa") == 2 << 62 | 1 << 8 | 1 << 12 | 1 << 20


def test_fields_of_absent_units() -> None:
    cores = Cores(extensions=["i", "zicsr"])
    cores.set_csr("mstatus", M64)
    assert not cores.csr("mstatus") & (FS | VS | SD)


# ---- dirty state -----------------------------------------------------------------------------

FADD = encode("fadd.s", rd=1, rs1=2, rs2=3)
VSET = encode("vsetivli", rd=0, uimm=4, vtype=vtype(32))
#: instruction -> the fields it makes dirty when it retires
DIRTIES = [
    (FADD, FS),
    (encode("flw", rd=1, rs1=8, imm=0), FS),
    (encode("fmv.w.x", rd=1, rs1=8), FS),
    (encode("csrrwi", rd=0, csr="fflags", uimm=1), FS),
    (encode("csrrsi", rd=0, csr="frm", uimm=1), FS),
    (encode("csrrsi", rd=0, csr="fcsr", uimm=0), 0),
    (encode("csrrs", rd=5, csr="fcsr", rs1=0), 0),
    (encode("fsw", rs1=8, rs2=1, imm=0), 0),
    (encode("csrrwi", rd=0, csr="vstart", uimm=0), VS),
    (encode("csrrwi", rd=0, csr="vxrm", uimm=0), VS),
    (encode("csrrs", rd=5, csr="vl", rs1=0), 0),
    (encode("addi", rd=5, rs1=5, imm=1), 0),
    (VSET, VS),
    (encode("vle32.v", vd=8, rs1=8), VS),
    (encode("vse32.v", vs3=8, rs1=8), 0),
    (encode("vadd.vv", vd=8, vs2=16, vs1=24), VS),
]


@pytest.mark.parametrize(("word", "fields"), DIRTIES)
@pytest.mark.parametrize("state", [1, 2, 3], ids=["initial", "clean", "dirty"])
@pytest.mark.parametrize("budget", [1, 1000], ids=["stepped", "in a block"])
def test_dirty(word: int, fields: int, state: int, budget: int) -> None:
    cores = make([word])
    cores.x()[8] = DATA
    cores.run(0)
    cores.write(CODE, image([VSET]))
    cores.set_csr("mstatus", FS | VS)
    cores.set_pc(CODE)
    cores.run(1)
    cores.write(CODE, image([word, 0]))
    before = FS // 3 * state | VS // 3 * state
    cores.set_csr("mstatus", before)
    cores.set_pc(CODE)
    stop = cores.run(budget)
    assert stop.instructions == 1
    now = cores.csr("mstatus")
    assert now & (FS | VS) == before | fields
    assert bool(now & SD) == (state == 3 or fields != 0)


@pytest.mark.parametrize(
    "word",
    [
        encode("flw", rd=1, rs1=9, imm=0),  # faults
        FADD & ~(7 << 12) | 5 << 12,  # reserved rounding mode
        encode("vle32.v", vd=8, rs1=9),  # faults at element 0: only vstart, and it stays 0
    ],
)
def test_a_trap_leaves_units_clean(word: int) -> None:
    cores = make()
    cores.set_csr("mstatus", FS | VS)
    step(cores, VSET)
    clean = FS // 3 * 2 | VS // 3 * 2
    cores.set_csr("mstatus", clean)
    stop = step(cores, word)
    assert stop.reason == FAULT
    assert cores.csr("mstatus") & FS == clean & FS
    if word & 0x7F == 0x07 and rows()["vle32.v"].mask & word == rows()["vle32.v"].match:
        return  # VS may be dirty here: the manual allows to be imprecise in that direction
    assert cores.csr("mstatus") & VS == clean & VS


def test_units_may_be_switched_inside_a_program() -> None:
    """The block decoded while a unit was on is not trusted when it is off."""
    cores = make()
    body = [
        encode("csrrc", rd=0, csr="mstatus", rs1=7),
        encode("csrrs", rd=0, csr="mstatus", rs1=6),
        FADD,
        FADD,
        encode("addi", rd=5, rs1=5, imm=1),
        encode("jal", rd=0, target=-20),
    ]
    cores.write(CODE, image(body))
    cores.set_pc(CODE)
    cores.x()[6], cores.x()[7] = FS, FS
    assert cores.run(6 * 50).reason == BUDGET and int(cores.x()[5]) == 50
    cores.x()[6] = 0
    stop = cores.run(1000)
    assert (stop.cause, stop.pc, stop.instructions) == (ILLEGAL, CODE + 8, 2)


# ---- traps -----------------------------------------------------------------------------------

#: program -> (mcause in U-mode, in M-mode, mtval, offset of the trapping instruction)
ADD = encode("addi", rd=5, rs1=5, imm=1)
CAUSES = {
    "ecall": ([ADD, encode("ecall")], ECALL_U, ECALL_M, 0, 4),
    "ebreak": ([ADD, encode("ebreak")], BREAKPOINT, BREAKPOINT, CODE + 4, 4),
    "c.ebreak": ([encode("c.ebreak")], BREAKPOINT, BREAKPOINT, CODE, 0),
    "illegal": ([ADD, ADD, 0xFFFFFFFF], ILLEGAL, ILLEGAL, 0xFFFFFFFF, 8),
    "compressed illegal": ([ADD, 0x8000], ILLEGAL, ILLEGAL, 0x8000, 4),
    "load": ([encode("lw", rd=5, rs1=0, imm=-4)], LOAD, LOAD, M64 - 3, 0),
    "jump": ([encode("jalr", rd=0, rs1=0, imm=0x7F0)], FETCH, FETCH, 0x7F0, 0x7F0 - CODE),
}


@pytest.mark.parametrize("mode", [U, M])
@pytest.mark.parametrize("case", CAUSES)
def test_trap_ends_the_run(case: str, mode: int) -> None:
    program, cause_u, cause_m, tval, offset = CAUSES[case]
    cores = make(program)
    cores.set_mode(mode)
    cores.set_csr("mtvec", HANDLER)  # there, but this machine gives traps to the host
    stop = cores.run(100)
    assert (stop.reason, stop.cause) == (FAULT, cause_m if mode else cause_u)
    assert (stop.address, stop.pc) == (tval, CODE + offset)
    assert stop.instructions == len(program) - (case != "jump")
    assert (cores.mode(), cores.csr("mcause"), cores.csr("mepc")) == (mode, 0, 0)
    fault = stop.fault()
    assert fault is not None and "\n" not in str(fault)
    assert f"{tval:#x}" in str(fault) and f"{CODE + offset:#x}" in str(fault)


@pytest.mark.parametrize("mie", [0, MIE])
@pytest.mark.parametrize("mode", [U, M])
@pytest.mark.parametrize("case", CAUSES)
@pytest.mark.parametrize("vectored", [0, 1])
def test_trap_enters_the_handler(case: str, mode: int, mie: int, vectored: int) -> None:
    program, cause_u, cause_m, tval, offset = CAUSES[case]
    handler = [ADD, encode("csrrs", rd=7, csr="minstret", rs1=0)]
    cores = make(program, handler, guest=True)
    cores.set_csr("mtvec", HANDLER | vectored)  # synchronous traps enter at the base either way
    cores.set_csr("mstatus", mie)
    cores.set_mode(mode)
    retired = len(program) - (case != "jump")
    start = cores.csr("minstret")
    stop = cores.run(retired + 1 + 2)
    assert (stop.reason, stop.pc, stop.instructions) == (BUDGET, HANDLER + 8, retired + 2)
    assert cores.csr("mcause") == (cause_m if mode else cause_u)
    assert (cores.csr("mtval"), cores.csr("mepc")) == (tval, CODE + offset & M64)
    assert cores.mode() == M
    status = cores.csr("mstatus")
    assert status & MPP == (MPP if mode else 0)
    assert (bool(status & MIE), bool(status & MPIE)) == (False, bool(mie))
    assert int(cores.x()[7]) - start == retired + 1  # the trapping one did not retire


def test_handler_returns_behind_the_ecall() -> None:
    """ecall from U-mode, handled, back to U-mode, fifty times."""
    handler = [
        encode("csrrs", rd=10, csr="mepc", rs1=0),
        encode("addi", rd=10, rs1=10, imm=4),
        encode("csrrw", rd=0, csr="mepc", rs1=10),
        encode("mret"),
    ]
    program = [encode("ecall"), ADD, encode("jal", rd=0, target=-8)]
    cores = make(program, handler, guest=True)
    cores.set_csr("mtvec", HANDLER)
    cores.set_mode(U)
    stop = cores.run(50 * 7)  # ecall costs one of the budget too
    assert (stop.reason, stop.instructions, stop.pc) == (BUDGET, 50 * 6, CODE)
    assert (int(cores.x()[5]), cores.mode()) == (50, U)
    assert sum(cores.counters().classes.values()) == cores.counters().instructions == 300


@pytest.mark.parametrize("mpie", [0, MPIE])
@pytest.mark.parametrize("mprv", [0, MPRV])
@pytest.mark.parametrize("mpp", [0, 1, 2, 3])
def test_mret(mpp: int, mprv: int, mpie: int) -> None:
    cores = make()
    cores.set_csr("mepc", CODE + 0x102)
    cores.set_csr("mstatus", mpp << 11 | mpie | mprv)
    stop = step(cores, encode("mret"))
    assert (stop.instructions, stop.pc) == (1, CODE + 0x102)
    assert cores.mode() == (M if mpp == 3 else U)
    status = cores.csr("mstatus")
    assert status & MPP == 0 and status & MPIE  # MPP: the least privileged mode there is
    assert bool(status & MIE) == bool(mpie)
    assert bool(status & MPRV) == (mprv and mpp == 3)


def test_privileged_instructions_in_user_mode() -> None:
    cores = make()
    for word, status, legal in (
        (encode("mret"), 0, False),
        (encode("wfi"), 0, True),
        (encode("wfi"), TW, False),
    ):
        for mode in (U, M):
            cores.set_csr("mstatus", status)
            cores.set_mode(mode)
            stop = step(cores, word)
            assert (stop.instructions == 1) == (legal or mode == M)
            assert legal or mode == M or (stop.cause, stop.address) == (ILLEGAL, word)
    for word in (0x10200073, 0x12000073, 0x00200073, 0x7B200073):  # sret, sfence.vma, uret, dret
        assert cores.decode(word) is None


def test_no_interrupt_ever_comes() -> None:
    cores = make([ADD, encode("wfi"), encode("jal", rd=0, target=-8)], guest=True)
    cores.set_csr("mtvec", HANDLER)
    cores.set_csr("mie", M64)
    cores.set_csr("mip", M64)
    cores.set_csr("mstatus", MIE)
    assert cores.run(3000).instructions == 3000 and int(cores.x()[5]) == 1000


def test_trap_loop_ends_by_budget() -> None:
    """A handler that traps at once costs budget though nothing retires."""
    for handler in ([0], [encode("ecall")], [encode("ebreak")]):
        cores = make([encode("ecall")], handler, guest=True)
        cores.set_csr("mtvec", HANDLER)
        stop = cores.run(1000)
        assert (stop.reason, stop.instructions, stop.pc) == (BUDGET, 0, HANDLER)
        assert cores.counters().instructions == 0


@pytest.mark.parametrize("mtvec", [0, DATA, 0x5000, M64 - 3])
def test_handler_that_cannot_be_fetched(mtvec: int) -> None:
    """The run ends with the trap itself, not with a second one about the handler."""
    cores = make([ADD, encode("ecall")], guest=True)
    cores.set_csr("mtvec", mtvec)
    cores.set_mode(U)
    stop = cores.run(100)
    assert (stop.reason, stop.cause, stop.pc) == (FAULT, ECALL_U, CODE + 4)
    assert (cores.mode(), cores.csr("mcause"), cores.csr("mepc")) == (U, 0, 0)


# ---- counters --------------------------------------------------------------------------------


def read(csr: str, rd: int) -> int:
    return encode("csrrs", rd=rd, csr=csr, rs1=0)


@pytest.mark.parametrize("quantum", [1, 100])
def test_instret(quantum: int) -> None:
    """A read counts what retired before it; a write is what the next instruction reads."""
    program = [
        ADD,
        read("minstret", 10),
        read("instret", 11),
        ADD,
        read("mcycle", 12),
        encode("csrrw", rd=13, csr="minstret", rs1=14),
        read("minstret", 15),
        ADD,
        read("instret", 16),
        encode("csrrw", rd=0, csr="mcycle", rs1=14),
        read("cycle", 17),
        read("mcycle", 18),
        read("time", 19),
    ]
    cores = make(program)
    cores.x()[14] = 5000
    while cores.run(quantum).reason == BUDGET:
        pass
    x = [int(v) for v in cores.x()]
    assert (x[10], x[11], x[12], x[13]) == (1, 2, 4, 5)
    assert (x[15], x[16]) == (5000, 5002)
    assert (x[17], x[18]) == (5000, 5001)
    assert x[19] == 12


def test_clearing_counters_leaves_the_csrs() -> None:
    cores = make([ADD] * 10)
    cores.run(10)
    cores.clear_counters()
    assert cores.counters().instructions == 0 and cores.csr("minstret") == 10


def test_counters_wrap() -> None:
    cores = make([ADD, ADD])
    cores.set_csr("minstret", M64)
    cores.run(2)
    assert cores.csr("minstret") == 1


# ---- called handlers -------------------------------------------------------------------------


def call(word: int) -> tuple[_core.Stop, Cores]:
    cores = make([word, encode("jalr", rd=0, rs1=1)])
    # what an earlier program could have left behind
    cores.set_csr("mcounteren", 7)
    cores.set_csr("fcsr", 0xFF)
    cores.set_csr("vcsr", 7)
    cores.set_csr("mstatus", FS | VS)
    step(cores, VSET)
    cores.set_csr("mstatus", 0)
    cores.write(CODE, image([word]))
    return cores.call(CODE, [1, 2, 3, 4], sp=DATA + 0x800, budget=100), cores


@pytest.mark.parametrize("name", sorted(csrs()))
def test_handlers_see_no_clock(name: str) -> None:
    """In a call only the FP and vector CSRs exist, with their values at power-on."""
    stop, cores = call(encode("csrrs", rd=10, csr=name, rs1=0))
    number = csrs()[name]
    if number >> 8 & 3 == 0 and not 0xC00 <= number < 0xC20:
        assert stop.reason == RETURN
        initial = {"vtype": 1 << 63, "vlenb": VLEN // 8}
        assert int(cores.x()[10]) == initial.get(name, 0)
    else:
        assert (stop.reason, stop.cause, stop.pc, stop.instructions) == (FAULT, ILLEGAL, CODE, 0)


def test_call_starts_from_known_registers() -> None:
    cores = make([encode("jalr", rd=0, rs1=1)])
    cores.x()[1:] = 99
    cores.f()[:] = 99
    stop = cores.call(CODE, [5, -1], sp=DATA, budget=10)
    assert (stop.reason, stop.instructions) == (RETURN, 1)
    x = [int(v) for v in cores.x()]
    assert x[2] == DATA and x[10:14] == [5, M64, 0, 0]
    assert sum(map(bool, x)) == 4 and not cores.f().any()
    assert cores.mode() == U


@pytest.mark.parametrize(
    ("word", "cause"), [(encode("ecall"), ECALL_U), (encode("mret"), ILLEGAL), (0, ILLEGAL)]
)
def test_call_that_traps(word: int, cause: int) -> None:
    stop, cores = call(word)
    assert (stop.reason, stop.cause, stop.pc) == (FAULT, cause, CODE)
    # and the core can be used again
    cores.write(CODE, image([encode("jalr", rd=0, rs1=1)]))
    assert cores.call(CODE, sp=DATA, budget=10).reason == RETURN


# ---- arguments -------------------------------------------------------------------------------


def test_bad_arguments() -> None:
    cores = make()
    for bad in (
        lambda: cores.set_mode(1),
        lambda: cores.set_mode(2),
        lambda: cores.set_mode(M, 1),
        lambda: cores.set_pc(CODE + 1),
        lambda: cores.set_pc(CODE, 1),
        lambda: cores.reset(CODE + 1),
        lambda: cores.reset(CODE, 7),
        lambda: cores.run(1, 1),
        lambda: cores.call(CODE + 1, sp=0, budget=1),
        lambda: cores.call(CODE, sp=0, budget=1, hart=9),
        lambda: cores.counters(1),
        lambda: cores.clear_counters(1),
        lambda: cores.csr("no such"),
        lambda: cores.csr(-1),
        lambda: cores.set_csr(0x100, 0),
        lambda: cores.csr("mscratch", 3),
        lambda: cores.x(1),
        lambda: cores.f(1),
        lambda: cores.v(1),
        lambda: cores.run_round_robin(0, 10),
        lambda: Cores(0),
        lambda: Cores(65),
        lambda: Cores(vlen=100),
        lambda: Cores(vlen=2048),
        lambda: Cores(simd="sse"),
        lambda: Cores(extensions=["q"]),
    ):
        with pytest.raises(ArgumentError) as error:
            bad()
        assert "\n" not in str(error.value)
