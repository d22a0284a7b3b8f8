/* fp.c: the arithmetic of fp.h, compiled once for each format.
 * Owns nothing else; no host floating point here. */
#include "fp.h"

#define NUMBER(name, ...)                                                                          \
    u64 name##_add(u64 a, u64 b, int rm, u32 *flags)                                               \
    {                                                                                              \
        return fp_add(&fp_##name, a, b, rm, flags);                                                \
    }                                                                                              \
    u64 name##_sub(u64 a, u64 b, int rm, u32 *flags)                                               \
    {                                                                                              \
        return fp_sub(&fp_##name, a, b, rm, flags);                                                \
    }                                                                                              \
    u64 name##_mul(u64 a, u64 b, int rm, u32 *flags)                                               \
    {                                                                                              \
        return fp_mul(&fp_##name, a, b, rm, flags);                                                \
    }                                                                                              \
    u64 name##_div(u64 a, u64 b, int rm, u32 *flags)                                               \
    {                                                                                              \
        return fp_div(&fp_##name, a, b, rm, flags);                                                \
    }                                                                                              \
    u64 name##_sqrt(u64 a, int rm, u32 *flags)                                                     \
    {                                                                                              \
        return fp_sqrt(&fp_##name, a, rm, flags);                                                  \
    }                                                                                              \
    u64 name##_fma(u64 a, u64 b, u64 c, int rm, u32 *flags)                                        \
    {                                                                                              \
        return fp_fma(&fp_##name, a, b, c, rm, flags);                                             \
    }                                                                                              \
    u64 name##_to_f16(u64 a, int rm, u32 *flags)                                                   \
    {                                                                                              \
        return fp_cvt(&fp_##name, &fp_f16, a, rm, flags);                                          \
    }                                                                                              \
    u64 name##_to_bf16(u64 a, int rm, u32 *flags)                                                  \
    {                                                                                              \
        return fp_cvt(&fp_##name, &fp_bf16, a, rm, flags);                                         \
    }                                                                                              \
    u64 name##_to_f32(u64 a, int rm, u32 *flags)                                                   \
    {                                                                                              \
        return fp_cvt(&fp_##name, &fp_f32, a, rm, flags);                                          \
    }                                                                                              \
    u64 name##_to_f64(u64 a, int rm, u32 *flags)                                                   \
    {                                                                                              \
        return fp_cvt(&fp_##name, &fp_f64, a, rm, flags);                                          \
    }                                                                                              \
    u64 name##_to_int(u64 a, int rm, u32 width, bool is_signed, u32 *flags)                        \
    {                                                                                              \
        return fp_to_int(&fp_##name, a, rm, width, is_signed, flags);                              \
    }                                                                                              \
    u64 name##_from_int(u64 v, bool is_signed, int rm, u32 *flags)                                 \
    {                                                                                              \
        return fp_from_int(&fp_##name, v, is_signed, rm, flags);                                   \
    }

#include "number.def"
