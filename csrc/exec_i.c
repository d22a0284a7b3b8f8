/* exec_i.c: integer computation and control flow: RV64I, M, Zba, Zbb, Zbs, Zicond.
 * Memory is in exec_mem.c, CSRs and traps in exec_sys.c. */
#include "hart.h"

/* rd = expression of a (rs1) and b (rs2 or the immediate) */
#define ALU_REG(name, expr)                                                                        \
    BODY(name)                                                                                     \
    {                                                                                              \
        u64 a = RS1, b = RS2;                                                                      \
        RD = (u64)(expr);                                                                          \
        return NEXT;                                                                               \
    }
#define ALU_IMM(name, expr)                                                                        \
    BODY(name)                                                                                     \
    {                                                                                              \
        u64 a = RS1, b = IMM;                                                                      \
        RD = (u64)(expr);                                                                          \
        return NEXT;                                                                               \
    }
#define ALU_ONE(name, expr)                                                                        \
    BODY(name)                                                                                     \
    {                                                                                              \
        u64 a = RS1;                                                                               \
        RD = (u64)(expr);                                                                          \
        return NEXT;                                                                               \
    }

/* The low word of an expression, sign-extended as all W instructions do. */
#define WORD(expr) ((i64)(i32)(u32)(expr))

BODY(li)
{
    RD = IMM;
    return NEXT;
}

ALU_IMM(addi, a + b)
ALU_IMM(slti, (i64)a < (i64)b)
ALU_IMM(sltiu, a < b)
ALU_IMM(xori, a ^ b)
ALU_IMM(ori, a | b)
ALU_IMM(andi, a & b)
ALU_IMM(slli, a << b)
ALU_IMM(srli, a >> b)
ALU_IMM(srai, (i64)a >> b)
ALU_IMM(addiw, WORD(a + b))
ALU_IMM(slliw, WORD(a << b))
ALU_IMM(srliw, WORD((u32)a >> b))
ALU_IMM(sraiw, WORD((i32)a >> b))

ALU_REG(add, a + b)
ALU_REG(sub, a - b)
ALU_REG(sll, a << (b & 63))
ALU_REG(slt, (i64)a < (i64)b)
ALU_REG(sltu, a < b)
ALU_REG(xor, a ^ b)
ALU_REG(srl, a >> (b & 63))
ALU_REG(sra, (i64)a >> (b & 63))
ALU_REG(or, a | b)
ALU_REG(and, a & b)
ALU_REG(addw, WORD(a + b))
ALU_REG(subw, WORD(a - b))
ALU_REG(sllw, WORD((u32)a << (b & 31)))
ALU_REG(srlw, WORD((u32)a >> (b & 31)))
ALU_REG(sraw, WORD((i32)a >> (b & 31)))

/* ---- control flow: targets are absolute, computed when decoded ------------------------------------ */

#define BRANCH(name, cond)                                                                         \
    BODY(name)                                                                                     \
    {                                                                                              \
        u64 a = RS1, b = RS2;                                                                      \
        return (cond) ? NX_TAKEN : NX_FALL;                                                        \
    }
BRANCH(beq, a == b)
BRANCH(bne, a != b)
BRANCH(blt, (i64)a < (i64)b)
BRANCH(bge, (i64)a >= (i64)b)
BRANCH(bltu, a < b)
BRANCH(bgeu, a >= b)

BODY(jal)
{
    RD = op_next_pc(h, o);
    return NX_TAKEN;
}

BODY(jalr)
{
    u64 target = (RS1 + IMM) & ~1ull;
    RD = op_next_pc(h, o);
    h->pc = target;
    return NX_JUMP;
}

/* ---- M ---------------------------------------------------------------------------------------------- */

ALU_REG(mul, a *b)
ALU_REG(mulh, (i128)(i64)a *(i64)b >> 64)
ALU_REG(mulhsu, (i128)(i64)a *(i128)b >> 64)
ALU_REG(mulhu, (u128)a *b >> 64)
ALU_REG(mulw, WORD(a *b))

/* Division by zero gives all ones and the dividend; overflow gives the dividend and 0. */
static i64 div64(i64 a, i64 b)
{
    return b == 0 ? -1 : b == -1 ? (i64)-(u64)a : a / b;
}
static i64 rem64(i64 a, i64 b)
{
    return b == 0 ? a : b == -1 ? 0 : a % b;
}
ALU_REG(div, div64((i64)a, (i64)b))
ALU_REG(divu, b ? a / b : UINT64_MAX)
ALU_REG(rem, rem64((i64)a, (i64)b))
ALU_REG(remu, b ? a % b : a)
ALU_REG(divw, WORD(div64((i32)a, (i32)b)))
ALU_REG(divuw, WORD((u32)b ? (u32)a / (u32)b : UINT32_MAX))
ALU_REG(remw, WORD(rem64((i32)a, (i32)b)))
ALU_REG(remuw, WORD((u32)b ? (u32)a % (u32)b : (u32)a))

/* ---- Zba ---------------------------------------------------------------------------------------------- */

ALU_REG(sh1add, (a << 1) + b)
ALU_REG(sh2add, (a << 2) + b)
ALU_REG(sh3add, (a << 3) + b)
ALU_REG(add_uw, (u64)(u32)a + b)
ALU_REG(sh1add_uw, ((u64)(u32)a << 1) + b)
ALU_REG(sh2add_uw, ((u64)(u32)a << 2) + b)
ALU_REG(sh3add_uw, ((u64)(u32)a << 3) + b)
ALU_IMM(slli_uw, (u64)(u32)a << b)

/* ---- Zbb ---------------------------------------------------------------------------------------------- */

static u64 rotr64(u64 a, unsigned n)
{
    return a >> (n & 63) | a << (-n & 63);
}
static u32 rotr32(u32 a, unsigned n)
{
    return a >> (n & 31) | a << (-n & 31);
}
/* 0xff in every byte of a that is not zero */
static u64 or_combine(u64 a)
{
    u64 r = 0;
    for (unsigned i = 0; i < 64; i += 8)
        r |= a >> i & 0xff ? 0xffull << i : 0;
    return r;
}
ALU_REG(andn, a & ~b)
ALU_REG(orn, a | ~b)
ALU_REG(xnor, ~(a ^ b))
ALU_ONE(clz, a ? __builtin_clzll(a) : 64)
ALU_ONE(ctz, a ? __builtin_ctzll(a) : 64)
ALU_ONE(cpop, __builtin_popcountll(a))
ALU_ONE(clzw, (u32)a ? __builtin_clz((u32)a) : 32)
ALU_ONE(ctzw, (u32)a ? __builtin_ctz((u32)a) : 32)
ALU_ONE(cpopw, __builtin_popcount((u32)a))
ALU_REG(max, (i64)a > (i64)b ? a : b)
ALU_REG(maxu, a > b ? a : b)
ALU_REG(min, (i64)a < (i64)b ? a : b)
ALU_REG(minu, a < b ? a : b)
ALU_ONE(sext_b, (i64)(i8)a)
ALU_ONE(sext_h, (i64)(i16)a)
ALU_ONE(zext_h, (u16)a)
ALU_REG(rol, rotr64(a, -(unsigned)b))
ALU_REG(ror, rotr64(a, (unsigned)b))
ALU_IMM(rori, rotr64(a, (unsigned)b))
ALU_REG(rolw, WORD(rotr32((u32)a, -(unsigned)b)))
ALU_REG(rorw, WORD(rotr32((u32)a, (unsigned)b)))
ALU_IMM(roriw, WORD(rotr32((u32)a, (unsigned)b)))
ALU_ONE(orc_b, or_combine(a))
ALU_ONE(rev8, __builtin_bswap64(a))

/* ---- Zbs, Zicond ------------------------------------------------------------------------------------------ */

#define ONE_BIT(b) (1ull << ((b) & 63))
ALU_REG(bclr, a & ~ONE_BIT(b))
ALU_REG(bext, a >> (b & 63) & 1)
ALU_REG(binv, a ^ ONE_BIT(b))
ALU_REG(bset, a | ONE_BIT(b))
ALU_IMM(bclri, a & ~ONE_BIT(b))
ALU_IMM(bexti, a >> b & 1)
ALU_IMM(binvi, a ^ ONE_BIT(b))
ALU_IMM(bseti, a | ONE_BIT(b))
ALU_REG(czero_eqz, b ? a : 0)
ALU_REG(czero_nez, b ? 0 : a)
