/* fp_estimate.h: the seven-bit estimates of 1/x and 1/sqrt(x), as the V chapter tabulates them.
 * Owns the tables; formats, flags and NaNs are fp.h's. */
#ifndef NICEMU_FP_ESTIMATE_H
#define NICEMU_FP_ESTIMATE_H

#include "fp.h"

/* By the mantissa's upper seven bits. */
static const u8 fp_rec7_table[128] = {
    127, 125, 123, 121, 119, 117, 116, 114, 112, 110, 109, 107, 105, 104, 102, 100, 99, 97, 96,
    94,  93,  91,  90,  88,  87,  85,  84,  83,  81,  80,  79,  77,  76,  75,  74,  72, 71, 70,
    69,  68,  66,  65,  64,  63,  62,  61,  60,  59,  58,  57,  56,  55,  54,  53,  52, 51, 50,
    49,  48,  47,  46,  45,  44,  43,  42,  41,  40,  40,  39,  38,  37,  36,  35,  35, 34, 33,
    32,  31,  31,  30,  29,  28,  28,  27,  26,  25,  25,  24,  23,  23,  22,  21,  21, 20, 19,
    19,  18,  17,  17,  16,  15,  15,  14,  14,  13,  12,  12,  11,  11,  10,  9,   9,  8,  8,
    7,   7,   6,   5,   5,   4,   4,   3,   3,   2,   2,   1,   1,   0};
/* By the exponent's lowest bit and the mantissa's upper six. */
static const u8 fp_rsqrt7_table[128] = {
    52,  51,  50,  48,  47,  46, 44, 43,  42,  41,  40,  39,  38,  36,  35,  34,  33,  32,  31,
    30,  30,  29,  28,  27,  26, 25, 24,  23,  23,  22,  21,  20,  19,  19,  18,  17,  16,  16,
    15,  14,  14,  13,  12,  12, 11, 10,  10,  9,   9,   8,   7,   7,   6,   6,   5,   4,   4,
    3,   3,   2,   2,   1,   1,  0,  127, 125, 123, 121, 119, 118, 116, 114, 113, 111, 109, 108,
    106, 105, 103, 102, 100, 99, 97, 96,  95,  93,  92,  91,  90,  88,  87,  86,  85,  84,  83,
    82,  80,  79,  78,  77,  76, 75, 74,  73,  72,  71,  70,  70,  69,  68,  67,  66,  65,  64,
    63,  63,  62,  61,  60,  59, 59, 58,  57,  56,  56,  55,  54,  53};

FP_INLINE u64 fp_rec7(const struct fp_format *f, u64 a, int rm, u32 *flags)
{
    u64 m = fp_magnitude(f, a), sign = a & fp_sign_bit(f);
    if (m > fp_inf(f))
        return fp_nan(f, a, a, flags);
    if (m == fp_inf(f))
        return sign;
    if (!m) {
        *flags |= DZ;
        return sign | fp_inf(f);
    }
    struct fp_parts x = fp_unpack(f, a);
    i32 e = fp_bias(f) - 1 - x.exp; /* of the result, biased */
    if (e > 2 * fp_bias(f)) /* a subnormal number whose reciprocal is out of range */
        return fp_overflow(f, sign != 0, rm, flags);
    u64 digits = 128u | fp_rec7_table[x.sig >> 56 & 127];
    u64 mantissa = digits << (f->mbits - 7);
    if (e > 0)
        return sign | (((u64)(e - 1) << f->mbits) + mantissa);
    return sign | mantissa >> (1 - e); /* subnormal: e is 0 or -1 */
}

FP_INLINE u64 fp_rsqrt7(const struct fp_format *f, u64 a, int rm, u32 *flags)
{
    (void)rm;
    u64 m = fp_magnitude(f, a), sign = a & fp_sign_bit(f);
    if (m > fp_inf(f))
        return fp_nan(f, a, a, flags);
    if (!m) {
        *flags |= DZ;
        return sign | fp_inf(f);
    }
    if (sign)
        return fp_invalid(f, flags);
    if (m == fp_inf(f))
        return 0;
    struct fp_parts x = fp_unpack(f, a);
    u32 odd = (u32)(x.exp + fp_bias(f)) & 1;
    i32 e = (2 * fp_bias(f) - 1 - x.exp) >> 1;
    return ((u64)e << f->mbits) +
           ((u64)fp_rsqrt7_table[odd << 6 | (x.sig >> 57 & 63)] << (f->mbits - 7));
}

#endif
