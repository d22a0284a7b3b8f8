/* base.h: the fixed-width names and compiler hints that every C file of nicemu uses.
 * Owns: integer aliases, likely/unlikely, sign extension.  Nothing about RISC-V belongs here. */
#ifndef NICEMU_BASE_H
#define NICEMU_BASE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

typedef uint8_t u8;
typedef uint16_t u16;
typedef uint32_t u32;
typedef uint64_t u64;
typedef int8_t i8;
typedef int16_t i16;
typedef int32_t i32;
typedef int64_t i64;
__extension__ typedef unsigned __int128 u128;
__extension__ typedef __int128 i128;

#define likely(x) __builtin_expect(!!(x), 1)
#define unlikely(x) __builtin_expect(!!(x), 0)
#define COUNT_OF(a) (sizeof(a) / sizeof((a)[0]))

/* The low `bits` bits of v (1..64) as a signed number. */
static inline i64 sign_extend(u64 v, unsigned bits)
{
    return (i64)(v << (64 - bits)) >> (64 - bits);
}

/* Bits hi..lo of w. */
static inline u32 bits(u32 w, unsigned hi, unsigned lo)
{
    return (w >> lo) & (u32)((1ull << (hi - lo + 1)) - 1);
}

#endif
