"""The scalar integer instructions once more: one lambda per mnemonic, in Python's own integers.

Written from the manual's text.  Shares nothing with the core but mnemonics and operand names.
"""

from __future__ import annotations

from collections.abc import Callable

M64 = (1 << 64) - 1
M32 = (1 << 32) - 1


def signed(v: int, bits: int = 64) -> int:
    """The low bits as a two's complement number."""
    v &= (1 << bits) - 1
    return v - (1 << bits) if v >> (bits - 1) else v


def word(v: int) -> int:
    """The low word, sign-extended."""
    return signed(v, 32)


def quotient(a: int, b: int, all_ones: int) -> int:
    """Rounded towards zero; division by zero gives all ones."""
    if b == 0:
        return all_ones
    q = abs(a) // abs(b)
    return -q if (a < 0) != (b < 0) else q


def remainder(a: int, b: int) -> int:
    """Sign of the dividend; division by zero gives the dividend."""
    return a if b == 0 else a - b * quotient(a, b, 0)


def rotate_right(v: int, n: int, bits: int) -> int:
    """Rotation within the low bits."""
    v &= (1 << bits) - 1
    n %= bits
    return v >> n | v << (bits - n)


def leading_zeros(v: int, bits: int) -> int:
    """Zeros above the highest one."""
    return bits - (v & (1 << bits) - 1).bit_length()


def trailing_zeros(v: int, bits: int) -> int:
    """Zeros below the lowest one."""
    v &= (1 << bits) - 1
    return (v & -v).bit_length() - 1 if v else bits


def each_byte(v: int, f: Callable[[int], int]) -> int:
    """f of every byte."""
    return int.from_bytes(bytes(f(b) for b in v.to_bytes(8, "little")), "little")


#: mnemonic -> value of (a, b): a = rs1, b = rs2 or the immediate, both as 0..2**64-1
VALUE: dict[str, Callable[[int, int], int]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "sll": lambda a, b: a << (b & 63),
    "slt": lambda a, b: int(signed(a) < signed(b)),
    "sltu": lambda a, b: int(a < b),
    "xor": lambda a, b: a ^ b,
    "srl": lambda a, b: a >> (b & 63),
    "sra": lambda a, b: signed(a) >> (b & 63),
    "or": lambda a, b: a | b,
    "and": lambda a, b: a & b,
    "addw": lambda a, b: word(a + b),
    "subw": lambda a, b: word(a - b),
    "sllw": lambda a, b: word(a << (b & 31)),
    "srlw": lambda a, b: word((a & M32) >> (b & 31)),
    "sraw": lambda a, b: word(a) >> (b & 31),
    "mul": lambda a, b: a * b,
    "mulh": lambda a, b: signed(a) * signed(b) >> 64,
    "mulhsu": lambda a, b: signed(a) * b >> 64,
    "mulhu": lambda a, b: a * b >> 64,
    "mulw": lambda a, b: word(a * b),
    "div": lambda a, b: quotient(signed(a), signed(b), M64),
    "divu": lambda a, b: quotient(a, b, M64),
    "rem": lambda a, b: remainder(signed(a), signed(b)),
    "remu": lambda a, b: remainder(a, b),
    "divw": lambda a, b: word(quotient(word(a), word(b), M64)),
    "divuw": lambda a, b: word(quotient(a & M32, b & M32, M32)),
    "remw": lambda a, b: word(remainder(word(a), word(b))),
    "remuw": lambda a, b: word(remainder(a & M32, b & M32)),
    "sh1add": lambda a, b: 2 * a + b,
    "sh2add": lambda a, b: 4 * a + b,
    "sh3add": lambda a, b: 8 * a + b,
    "add.uw": lambda a, b: (a & M32) + b,
    "sh1add.uw": lambda a, b: 2 * (a & M32) + b,
    "sh2add.uw": lambda a, b: 4 * (a & M32) + b,
    "sh3add.uw": lambda a, b: 8 * (a & M32) + b,
    "slli.uw": lambda a, b: (a & M32) << b,
    "andn": lambda a, b: a & ~b,
    "orn": lambda a, b: a | ~b,
    "xnor": lambda a, b: ~(a ^ b),
    "clz": lambda a, _: leading_zeros(a, 64),
    "ctz": lambda a, _: trailing_zeros(a, 64),
    "cpop": lambda a, _: a.bit_count(),
    "clzw": lambda a, _: leading_zeros(a, 32),
    "ctzw": lambda a, _: trailing_zeros(a, 32),
    "cpopw": lambda a, _: (a & M32).bit_count(),
    "max": lambda a, b: max(signed(a), signed(b)),
    "maxu": lambda a, b: max(a, b),
    "min": lambda a, b: min(signed(a), signed(b)),
    "minu": lambda a, b: min(a, b),
    "sext.b": lambda a, _: signed(a, 8),
    "sext.h": lambda a, _: signed(a, 16),
    "zext.h": lambda a, _: a & 0xFFFF,
    "rol": lambda a, b: rotate_right(a, -b, 64),
    "ror": lambda a, b: rotate_right(a, b, 64),
    "rolw": lambda a, b: word(rotate_right(a, -b, 32)),
    "rorw": lambda a, b: word(rotate_right(a, b, 32)),
    "orc.b": lambda a, _: each_byte(a, lambda x: 255 if x else 0),
    "rev8": lambda a, _: int.from_bytes(a.to_bytes(8, "little"), "big"),
    "bclr": lambda a, b: a & ~(1 << (b & 63)),
    "bext": lambda a, b: a >> (b & 63) & 1,
    "binv": lambda a, b: a ^ 1 << (b & 63),
    "bset": lambda a, b: a | 1 << (b & 63),
    "czero.eqz": lambda a, b: a if b else 0,
    "czero.nez": lambda a, b: 0 if b else a,
}
# the immediate forms: the same value
VALUE |= {
    "addi": VALUE["add"],
    "slti": VALUE["slt"],
    "sltiu": VALUE["sltu"],
    "xori": VALUE["xor"],
    "ori": VALUE["or"],
    "andi": VALUE["and"],
    "slli": VALUE["sll"],
    "srli": VALUE["srl"],
    "srai": VALUE["sra"],
    "addiw": VALUE["addw"],
    "slliw": VALUE["sllw"],
    "srliw": VALUE["srlw"],
    "sraiw": VALUE["sraw"],
    "rori": VALUE["ror"],
    "roriw": VALUE["rorw"],
    "bclri": VALUE["bclr"],
    "bexti": VALUE["bext"],
    "binvi": VALUE["binv"],
    "bseti": VALUE["bset"],
}

TAKEN: dict[str, Callable[[int, int], bool]] = {
    "beq": lambda a, b: a == b,
    "bne": lambda a, b: a != b,
    "blt": lambda a, b: signed(a) < signed(b),
    "bge": lambda a, b: signed(a) >= signed(b),
    "bltu": lambda a, b: a < b,
    "bgeu": lambda a, b: a >= b,
}

#: compressed mnemonic -> (the one it stands for, its operands from those of the compressed one)
EXPANDED: dict[str, tuple[str, Callable[[dict[str, int]], dict[str, int]]]] = {
    "c.addi4spn": ("addi", lambda o: {"rd": o["rd"], "rs1": 2, "imm": o["uimm"]}),
    "c.nop": ("addi", lambda o: {"rd": 0, "rs1": 0, "imm": 0}),
    "c.addi": ("addi", lambda o: {"rd": o["rd"], "rs1": o["rd"], "imm": o["imm"]}),
    "c.addiw": ("addiw", lambda o: {"rd": o["rd"], "rs1": o["rd"], "imm": o["imm"]}),
    "c.li": ("addi", lambda o: {"rd": o["rd"], "rs1": 0, "imm": o["imm"]}),
    "c.addi16sp": ("addi", lambda o: {"rd": 2, "rs1": 2, "imm": o["imm"]}),
    "c.lui": ("lui", lambda o: {"rd": o["rd"], "hi20": o["hi20"]}),
    "c.slli": ("slli", lambda o: {"rd": o["rd"], "rs1": o["rd"], "shamt": o["shamt"]}),
    "c.srli": ("srli", lambda o: {"rd": o["rd"], "rs1": o["rd"], "shamt": o["shamt"]}),
    "c.srai": ("srai", lambda o: {"rd": o["rd"], "rs1": o["rd"], "shamt": o["shamt"]}),
    "c.andi": ("andi", lambda o: {"rd": o["rd"], "rs1": o["rd"], "imm": o["imm"]}),
    "c.mv": ("add", lambda o: {"rd": o["rd"], "rs1": 0, "rs2": o["rs2"]}),
    "c.j": ("jal", lambda o: {"rd": 0, "target": o["target"]}),
    "c.beqz": ("beq", lambda o: {"rs1": o["rs1"], "rs2": 0, "target": o["target"]}),
    "c.bnez": ("bne", lambda o: {"rs1": o["rs1"], "rs2": 0, "target": o["target"]}),
    "c.jr": ("jalr", lambda o: {"rd": 0, "rs1": o["rs1"], "imm": 0}),
    "c.jalr": ("jalr", lambda o: {"rd": 1, "rs1": o["rs1"], "imm": 0}),
} | {
    f"c.{name}": (name, lambda o: {"rd": o["rd"], "rs1": o["rd"], "rs2": o["rs2"]})
    for name in ("add", "sub", "xor", "or", "and", "subw", "addw")
}


def execute(name: str, operands: dict[str, int], x: list[int], pc: int, size: int) -> int:
    """Do one instruction on the registers; returns the next pc."""
    if name in EXPANDED:
        name, translate = EXPANDED[name]
        operands = translate(operands)
    next_pc = pc + size
    a = x[operands.get("rs1", 0)]
    if name in TAKEN:
        return pc + operands["target"] & M64 if TAKEN[name](a, x[operands["rs2"]]) else next_pc
    if name == "lui":
        value = word(operands["hi20"] << 12)
    elif name == "auipc":
        value = pc + word(operands["hi20"] << 12)
    elif name == "jal":
        value, next_pc = next_pc, pc + operands["target"]
    elif name == "jalr":
        value, next_pc = next_pc, a + operands["imm"] & ~1
    else:
        b = (
            x[operands["rs2"]]
            if "rs2" in operands
            else operands.get("imm", operands.get("shamt", 0))
        )
        value = VALUE[name](a, b & M64)
    if operands["rd"]:
        x[operands["rd"]] = value & M64
    return next_pc & M64


#: every row that execute() knows
MODELLED = {*VALUE, *TAKEN, *EXPANDED, "lui", "auipc", "jal", "jalr"}
