/* alu.h: the value functions alu_<name>(a, b) of the rows of alu.def. */
#ifndef NICEMU_ALU_H
#define NICEMU_ALU_H

#include "base.h"

/* The low word of an expression, sign-extended as all W instructions do. */
#define WORD(expr) ((i64)(i32)(u32)(expr))
#define ONE_BIT(b) (1ull << ((b)&63))

/* Division by zero gives all ones and the dividend; overflow gives the dividend and 0. */
static inline i64 div64(i64 a, i64 b)
{
    return b == 0 ? -1 : b == -1 ? (i64) - (u64)a : a / b;
}
static inline i64 rem64(i64 a, i64 b)
{
    return b == 0 ? a : b == -1 ? 0 : a % b;
}
static inline u64 rotr64(u64 a, unsigned n)
{
    return a >> (n & 63) | a << (-n & 63);
}
static inline u32 rotr32(u32 a, unsigned n)
{
    return a >> (n & 31) | a << (-n & 31);
}
/* 0xff in every byte of a that is not zero */
static inline u64 or_combine(u64 a)
{
    u64 r = 0;
    for (unsigned i = 0; i < 64; i += 8)
        r |= a >> i & 0xff ? 0xffull << i : 0;
    return r;
}

#define ALU(name, operands, value)                                                                 \
    static inline u64 alu_##name(u64 a, __attribute__((unused)) u64 b)                             \
    {                                                                                              \
        return (u64)(value);                                                                       \
    }
#include "alu.def"
#undef ALU

/* Where b comes from. */
#define ALU_B_REG RS2
#define ALU_B_IMM IMM
#define ALU_B_ONE 0

#endif
