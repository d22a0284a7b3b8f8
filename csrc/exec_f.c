/* exec_f.c: scalar floating point: F, D, Zfh, Zfbfmin, in integer code alone (fp.h).
 * Right on every host and in every rounding mode; exec_f_avx2.c replaces the bodies that the host
 * can do faster and comes back here for what it cannot.  Loads and stores are in exec_mem.c. */
#include "hart.h"

#define GET(fmt, r) fp_unbox(&fp_##fmt, h->f[r])
#define PUT(fmt, v) h->f[o->rd] = fp_box(&fp_##fmt, v)
#define FLAGS &h->fflags
#define RM (o->rm == RM_DYNAMIC ? h->frm : o->rm)

/* frd = expression of a, b, c (frs1, frs2, frs3 in format fmt) */
#define FP_ONE(name, fmt, expr)                                                                    \
    BODY(name)                                                                                     \
    {                                                                                              \
        u64 a = GET(fmt, o->rs1);                                                                  \
        PUT(fmt, expr);                                                                            \
        return NEXT;                                                                               \
    }
#define FP_TWO(name, fmt, expr)                                                                    \
    BODY(name)                                                                                     \
    {                                                                                              \
        u64 a = GET(fmt, o->rs1), b = GET(fmt, o->rs2);                                            \
        PUT(fmt, expr);                                                                            \
        return NEXT;                                                                               \
    }
/* frd = (a or -a) * b + (c or -c): the sign bits are flipped before anything is rounded */
#define FP_FMA(name, fmt, negate_a, negate_c)                                                      \
    BODY(name)                                                                                     \
    {                                                                                              \
        u64 sign = fp_sign_bit(&fp_##fmt);                                                         \
        u64 a = GET(fmt, o->rs1), b = GET(fmt, o->rs2), c = GET(fmt, o->rs3);                      \
        a ^= negate_a ? sign : 0;                                                                  \
        c ^= negate_c ? sign : 0;                                                                  \
        PUT(fmt, fmt##_fma(a, b, c, RM, FLAGS));                                                   \
        return NEXT;                                                                               \
    }
/* rd = expression of a, b */
#define FP_TO_X(name, fmt, expr)                                                                   \
    BODY(name)                                                                                     \
    {                                                                                              \
        u64 a = GET(fmt, o->rs1);                                                                  \
        RD = (expr);                                                                               \
        return NEXT;                                                                               \
    }
#define FP_COMPARE(name, fmt, fn)                                                                  \
    BODY(name)                                                                                     \
    {                                                                                              \
        u64 a = GET(fmt, o->rs1), b = GET(fmt, o->rs2);                                            \
        RD = fn(&fp_##fmt, a, b, FLAGS);                                                           \
        return NEXT;                                                                               \
    }
/* frd = expression of a (rs1) */
#define FP_FROM_X(name, fmt, expr)                                                                 \
    BODY(name)                                                                                     \
    {                                                                                              \
        u64 a = RS1;                                                                               \
        PUT(fmt, expr);                                                                            \
        return NEXT;                                                                               \
    }
#define FP_CONVERT(name, from, to)                                                                 \
    BODY(name)                                                                                     \
    {                                                                                              \
        u64 a = GET(from, o->rs1);                                                                 \
        PUT(to, from##_to_##to(a, RM, FLAGS));                                                     \
        return NEXT;                                                                               \
    }
/* Words, unsigned ones too, are sign-extended in an x register. */
#define WORD(v) (u64)(i64)(i32)(u32)(v)

#define FP_BODIES(x, fmt)                                                                          \
    FP_TWO(fadd_##x, fmt, fmt##_add(a, b, RM, FLAGS))                                              \
    FP_TWO(fsub_##x, fmt, fmt##_sub(a, b, RM, FLAGS))                                              \
    FP_TWO(fmul_##x, fmt, fmt##_mul(a, b, RM, FLAGS))                                              \
    FP_TWO(fdiv_##x, fmt, fmt##_div(a, b, RM, FLAGS))                                              \
    FP_ONE(fsqrt_##x, fmt, fmt##_sqrt(a, RM, FLAGS))                                               \
    FP_FMA(fmadd_##x, fmt, false, false)                                                           \
    FP_FMA(fmsub_##x, fmt, false, true)                                                            \
    FP_FMA(fnmsub_##x, fmt, true, false)                                                           \
    FP_FMA(fnmadd_##x, fmt, true, true)                                                            \
    FP_TWO(fmin_##x, fmt, fp_min(&fp_##fmt, a, b, FLAGS))                                          \
    FP_TWO(fmax_##x, fmt, fp_max(&fp_##fmt, a, b, FLAGS))                                          \
    FP_TWO(fsgnj_##x, fmt, fp_sgnj(&fp_##fmt, a, b))                                               \
    FP_TWO(fsgnjn_##x, fmt, fp_sgnjn(&fp_##fmt, a, b))                                             \
    FP_TWO(fsgnjx_##x, fmt, fp_sgnjx(&fp_##fmt, a, b))                                             \
    FP_COMPARE(feq_##x, fmt, fp_eq)                                                                \
    FP_COMPARE(flt_##x, fmt, fp_lt)                                                                \
    FP_COMPARE(fle_##x, fmt, fp_le)                                                                \
    FP_TO_X(fclass_##x, fmt, fp_class(&fp_##fmt, a))                                               \
    FP_TO_X(fcvt_w_##x, fmt, WORD(fmt##_to_int(a, RM, 32, true, FLAGS)))                           \
    FP_TO_X(fcvt_wu_##x, fmt, WORD(fmt##_to_int(a, RM, 32, false, FLAGS)))                         \
    FP_TO_X(fcvt_l_##x, fmt, fmt##_to_int(a, RM, 64, true, FLAGS))                                 \
    FP_TO_X(fcvt_lu_##x, fmt, fmt##_to_int(a, RM, 64, false, FLAGS))                               \
    FP_FROM_X(fcvt_##x##_w, fmt, fmt##_from_int(WORD(a), true, RM, FLAGS))                         \
    FP_FROM_X(fcvt_##x##_wu, fmt, fmt##_from_int((u32)a, false, RM, FLAGS))                        \
    FP_FROM_X(fcvt_##x##_l, fmt, fmt##_from_int(a, true, RM, FLAGS))                               \
    FP_FROM_X(fcvt_##x##_lu, fmt, fmt##_from_int(a, false, RM, FLAGS))

FP_BODIES(h, f16)
FP_BODIES(s, f32)
FP_BODIES(d, f64)

FP_CONVERT(fcvt_s_h, f16, f32)
FP_CONVERT(fcvt_h_s, f32, f16)
FP_CONVERT(fcvt_d_h, f16, f64)
FP_CONVERT(fcvt_h_d, f64, f16)
FP_CONVERT(fcvt_d_s, f32, f64)
FP_CONVERT(fcvt_s_d, f64, f32)
FP_CONVERT(fcvt_bf16_s, f32, bf16)
FP_CONVERT(fcvt_s_bf16, bf16, f32)

/* Moves carry bits, boxed well or not. */
#define MOVES(to_x, from_x, T, fmt)                                                                \
    BODY(to_x)                                                                                     \
    {                                                                                              \
        RD = (u64)(i64)(T)h->f[o->rs1];                                                            \
        return NEXT;                                                                               \
    }                                                                                              \
    FP_FROM_X(from_x, fmt, a)
MOVES(fmv_x_h, fmv_h_x, i16, f16)
MOVES(fmv_x_w, fmv_w_x, i32, f32)
MOVES(fmv_x_d, fmv_d_x, i64, f64)
