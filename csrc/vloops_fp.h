/* vloops_fp.h: the families of vloops.def that are FP arithmetic, in terms of what the includer
 * (vloops_*.c) defines for its host:
 *   FP_LANES(name, sew, C, D, A, B, reads_b, reads_d, expr)
 *            name_sew: expr computed in format C, of sources in formats A and B, stored in format D
 *   FP_TRUTHS(name, sew, F, expr)
 *            name_sew: bytes of truth, of sources in format F
 *   and the operations ADD SUB MUL DIV SQRT FMA NEG EQ NE LT LE of the expressions.
 *   WITH_SCALAR(name_sew)
 *            what FP_LANES defines for a b that is one number, or NULL
 *   SOFT_LANES, SOFT_TRUTHS
 *            the same as functions soft_name_sew in integer code, which vloops_portable.c defines
 * and the others share: all that computes in f64 Also conversions, reductions and estimates in
 * integer code, which serve every host where it has nothing faster. */
#ifndef NICEMU_VLOOPS_FP_H
#define NICEMU_VLOOPS_FP_H

#include "fp_estimate.h"
#include "vloops_int.h"

/* Loops by SEW, none at 8, and those for 16 and 32 where b is one number. */
#define ROW_WITH_SCALAR(at16, at32, at64, scalar16, scalar32)                                      \
    {                                                                                              \
        {NULL, at16, at32, at64},                                                                  \
        {                                                                                          \
            NULL, scalar16, scalar32, NULL                                                         \
        }                                                                                          \
    }

#define FP_SAME(name, reads_b, reads_d, expr)                                                      \
    FP_LANES(name, 16, f16, f16, f16, f16, reads_b, reads_d, expr)                                 \
    FP_LANES(name, 32, f32, f32, f32, f32, reads_b, reads_d, expr)                                 \
    SOFT_LANES(name, 64, f64, f64, f64, f64, reads_b, reads_d, expr)
#define DEF_FP1(name, expr) FP_SAME(name, false, false, expr)
#define DEF_FP2(name, expr) FP_SAME(name, true, false, expr)
#define DEF_FP3(name, expr) FP_SAME(name, true, true, expr)
#define ROW_FP1(name) ROW(NULL, name##_16, name##_32, soft_##name##_64)
#define ROW_FP2(name)                                                                              \
    ROW_WITH_SCALAR(name##_16, name##_32, soft_##name##_64, WITH_SCALAR(name##_16),                \
                    WITH_SCALAR(name##_32))
#define ROW_FP3(name) ROW_FP2(name)

#define DEF_FCMP(name, expr)                                                                       \
    FP_TRUTHS(name, 16, f16, expr)                                                                 \
    FP_TRUTHS(name, 32, f32, expr)                                                                 \
    SOFT_TRUTHS(name, 64, f64, expr)
#define ROW_FCMP(name) ROW_FP1(name)

#define DEF_FP1_W(name, expr)                                                                      \
    FP_LANES(name, 16, f32, f32, f16, f16, false, false, expr)                                     \
    SOFT_LANES(name, 32, f64, f64, f32, f32, false, false, expr)
#define DEF_FP2_W(name, expr)                                                                      \
    FP_LANES(name, 16, f32, f32, f16, f16, true, false, expr)                                      \
    SOFT_LANES(name, 32, f64, f64, f32, f32, true, false, expr)
#define DEF_FP3_W(name, expr)                                                                      \
    FP_LANES(name, 16, f32, f32, f16, f16, true, true, expr)                                       \
    SOFT_LANES(name, 32, f64, f64, f32, f32, true, true, expr)
#define DEF_FP2_WA(name, expr)                                                                     \
    FP_LANES(name, 16, f32, f32, f32, f16, true, false, expr)                                      \
    SOFT_LANES(name, 32, f64, f64, f64, f32, true, false, expr)
#define DEF_FP1_N(name, expr)                                                                      \
    FP_LANES(name, 16, f32, f16, f32, f16, false, false, expr)                                     \
    SOFT_LANES(name, 32, f64, f32, f64, f32, false, false, expr)
#define ROW_16_SOFT_32(name) ROW(NULL, name##_16, soft_##name##_32, NULL)
#define ROW_FP1_W(name) ROW_16_SOFT_32(name)
#define ROW_FP2_W(name)                                                                            \
    ROW_WITH_SCALAR(name##_16, soft_##name##_32, NULL, WITH_SCALAR(name##_16), NULL)
#define ROW_FP3_W(name) ROW_FP2_W(name)
#define ROW_FP2_WA(name) ROW_FP2_W(name)
#define ROW_FP1_N(name) ROW_16_SOFT_32(name)

#define DEF_BF1_W(name, expr) FP_LANES(name, 16, f32, f32, bf16, bf16, false, false, expr)
#define DEF_BF3_W(name, expr) FP_LANES(name, 16, f32, f32, bf16, bf16, true, true, expr)
#define ROW_ONLY_16(name) ROW(NULL, name##_16, NULL, NULL)
#define ROW_BF1_W(name) ROW_ONLY_16(name)
#define ROW_BF1_N(name) ROW_ONLY_16(name)
#define ROW_BF3_W(name) ROW_WITH_SCALAR(name##_16, NULL, NULL, WITH_SCALAR(name##_16), NULL)

#define ROW_FROM_16(name) ROW(NULL, name##_16, name##_32, name##_64)
#define ROW_FROM_8(name) ROW(name##_8, name##_16, name##_32, NULL)
#define ROW_INT_TO_FP(name) ROW_FROM_16(name)
#define ROW_INT_TO_FP_W(name) ROW_FROM_8(name)
#define ROW_INT_TO_FP_N(name) ROW(NULL, name##_16, name##_32, NULL)
#define ROW_FP_TO_INT(name) ROW_FROM_16(name)
#define ROW_FP_TO_INT_W(name) ROW(NULL, name##_16, name##_32, NULL)
#define ROW_FP_TO_INT_N(name) ROW_FROM_8(name)

/* One d in format C, to which every a in format A is added: in integer code, one after the other.
 */
#define FP_REDUCTION(name, sew, dbits, C, A, alone_is_operand, expr)                               \
    static void name##_##sew(LOOP_PARAMETERS)                                                      \
    {                                                                                              \
        const struct fp_format *const f = &fp_##C;                                                 \
        const lane##sew *as = av;                                                                  \
        const int rm = h->frm;                                                                     \
        u64 d = *(lane##dbits *)dv;                                                                \
        u32 flags = 0;                                                                             \
        (void)bv, (void)rm;                                                                        \
        if (!n && alone_is_operand && fp_is_nan(f, d))                                             \
            d = fp_nan(f, d, d, &flags);                                                           \
        for (u64 i = 0; i < n; i++) {                                                              \
            u64 a = &fp_##A == f ? as[i] : fp_cvt(&fp_##A, f, as[i], rm, &flags);                  \
            d = expr;                                                                              \
        }                                                                                          \
        *(lane##dbits *)dv = (u##dbits)d;                                                          \
        h->fflags |= flags;                                                                        \
    }
#define DEF_FRED(name, alone_is_operand, expr)                                                     \
    FP_REDUCTION(name, 16, 16, f16, f16, alone_is_operand, expr)                                   \
    FP_REDUCTION(name, 32, 32, f32, f32, alone_is_operand, expr)                                   \
    FP_REDUCTION(name, 64, 64, f64, f64, alone_is_operand, expr)
#define ROW_FRED(name) ROW_FROM_16(name)
#define DEF_FRED_W(name, alone_is_operand, expr)                                                   \
    FP_REDUCTION(name, 16, 32, f32, f16, alone_is_operand, expr)                                   \
    FP_REDUCTION(name, 32, 64, f64, f32, alone_is_operand, expr)
#define ROW_FRED_W(name) ROW(NULL, name##_16, name##_32, NULL)

/* name_sew: a of abits -> d of dbits, by an expression with the lane a, rm and flags */
#define CONVERT_EXACTLY(name, sew, dbits, abits, mode, expr)                                       \
    static void name##_##sew(LOOP_PARAMETERS)                                                      \
    {                                                                                              \
        lane##dbits *d = dv;                                                                       \
        const lane##abits *as = av;                                                                \
        const int rm = mode;                                                                       \
        u32 flags = 0;                                                                             \
        (void)bv;                                                                                  \
        for (u64 i = 0; i < n; i++) {                                                              \
            u64 a = as[i];                                                                         \
            d[i] = (u##dbits)(expr);                                                               \
        }                                                                                          \
        h->fflags |= flags;                                                                        \
    }
#define INT_TO_FP_EXACTLY(name, sew, D, dbits, abits, is_signed)                                   \
    CONVERT_EXACTLY(name, sew, dbits, abits, h->frm,                                               \
                    D##_from_int(is_signed ? (u64)(i64)(i##abits)a : a, is_signed, rm, &flags))
#define FP_TO_INT_EXACTLY(name, sew, dbits, A, abits, is_signed, mode)                             \
    CONVERT_EXACTLY(name, sew, dbits, abits, mode, A##_to_int(a, rm, dbits, is_signed, &flags))

#define DEF_FP_ROUND_N(name, mode)                                                                 \
    CONVERT_EXACTLY(name, 16, 16, 32, mode, f32_to_f16(a, rm, &flags))                             \
    CONVERT_EXACTLY(name, 32, 32, 64, mode, f64_to_f32(a, rm, &flags))
#define ROW_FP_ROUND_N(name) ROW(NULL, name##_16, name##_32, NULL)

#define DEF_ESTIMATE(name, fn)                                                                     \
    CONVERT_EXACTLY(name, 16, 16, 16, h->frm, fn(&fp_f16, a, rm, &flags))                          \
    CONVERT_EXACTLY(name, 32, 32, 32, h->frm, fn(&fp_f32, a, rm, &flags))                          \
    CONVERT_EXACTLY(name, 64, 64, 64, h->frm, fn(&fp_f64, a, rm, &flags))
#define ROW_ESTIMATE(name) ROW_FROM_16(name)

#endif
