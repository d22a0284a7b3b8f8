/* vloops_portable.c: the table of loops for any host: integer code only, every rounding mode. */
#include "vloops_fp.h"

typedef lane16 lane_f16, lane_bf16;
typedef lane32 lane_f32;
typedef lane64 lane_f64;

/* The bits of a lane in format `to`. */
FP_INLINE u64 in_format(const struct fp_format *from, const struct fp_format *to, u64 a, int rm,
                        u32 *flags)
{
    return from == to ? a : fp_cvt(from, to, a, rm, flags);
}

#define LANES_OF(name_sew, C, D, A, B, reads_b, reads_d, expr)                                     \
    void name_sew(LOOP_PARAMETERS)                                                                 \
    {                                                                                              \
        const struct fp_format *const f = &fp_##C;                                                 \
        lane_##D *ds = dv;                                                                         \
        const lane_##A *as = av;                                                                   \
        const lane_##B *bs = bv;                                                                   \
        const int rm = h->frm;                                                                     \
        u32 flags = 0;                                                                             \
        (void)f, (void)bs;                                                                         \
        for (u64 i = 0; i < n; i++) {                                                              \
            u64 a = in_format(&fp_##A, &fp_##C, as[i], rm, &flags);                                \
            u64 b = reads_b ? in_format(&fp_##B, &fp_##C, bs[i], rm, &flags) : 0;                  \
            u64 d = reads_d ? ds[i] : 0;                                                           \
            (void)b, (void)d;                                                                      \
            u64 r = expr;                                                                          \
            ds[i] = (lane_##D)in_format(&fp_##C, &fp_##D, r, rm, &flags);                          \
        }                                                                                          \
        h->fflags |= flags;                                                                        \
    }
#define FP_LANES(name, sew, ...) static LANES_OF(name##_##sew, __VA_ARGS__)
#define WITH_SCALAR(name_sew) NULL
#define SOFT_LANES(name, sew, ...)                                                                 \
    void soft_##name##_##sew(LOOP_PARAMETERS);                                                     \
    LANES_OF(soft_##name##_##sew, __VA_ARGS__)
#define ADD(x, y) fp_add(f, x, y, rm, &flags)
#define SUB(x, y) fp_sub(f, x, y, rm, &flags)
#define MUL(x, y) fp_mul(f, x, y, rm, &flags)
#define DIV(x, y) fp_div(f, x, y, rm, &flags)
#define SQRT(x) fp_sqrt(f, x, rm, &flags)
#define FMA(x, y, z) fp_fma(f, x, y, z, rm, &flags)
#define NEG(x) ((x) ^ fp_sign_bit(f))

#define TRUTHS_OF(name_sew, F, expr)                                                               \
    void name_sew(LOOP_PARAMETERS)                                                                 \
    {                                                                                              \
        const struct fp_format *const f = &fp_##F;                                                 \
        lane8 *ds = dv;                                                                            \
        const lane_##F *as = av, *bs = bv;                                                         \
        u32 flags = 0;                                                                             \
        for (u64 i = 0; i < n; i++) {                                                              \
            u64 a = as[i], b = bs[i];                                                              \
            ds[i] = expr;                                                                          \
        }                                                                                          \
        h->fflags |= flags;                                                                        \
    }
#define FP_TRUTHS(name, sew, ...) static TRUTHS_OF(name##_##sew, __VA_ARGS__)
#define SOFT_TRUTHS(name, sew, ...)                                                                \
    void soft_##name##_##sew(LOOP_PARAMETERS);                                                     \
    TRUTHS_OF(soft_##name##_##sew, __VA_ARGS__)
#define EQ(x, y) fp_eq(f, x, y, &flags)
#define NE(x, y) !fp_eq(f, x, y, &flags)
#define LT(x, y) fp_lt(f, x, y, &flags)
#define LE(x, y) fp_le(f, x, y, &flags)

#define DEF_BF1_N(name, expr) FP_LANES(name, 16, f32, bf16, f32, bf16, false, false, expr)

#define DEF_INT_TO_FP(name, is_signed)                                                             \
    INT_TO_FP_EXACTLY(name, 16, f16, 16, 16, is_signed)                                            \
    INT_TO_FP_EXACTLY(name, 32, f32, 32, 32, is_signed)                                            \
    INT_TO_FP_EXACTLY(name, 64, f64, 64, 64, is_signed)
#define DEF_INT_TO_FP_W(name, is_signed)                                                           \
    INT_TO_FP_EXACTLY(name, 8, f16, 16, 8, is_signed)                                              \
    INT_TO_FP_EXACTLY(name, 16, f32, 32, 16, is_signed)                                            \
    INT_TO_FP_EXACTLY(name, 32, f64, 64, 32, is_signed)
#define DEF_INT_TO_FP_N(name, is_signed)                                                           \
    INT_TO_FP_EXACTLY(name, 16, f16, 16, 32, is_signed)                                            \
    INT_TO_FP_EXACTLY(name, 32, f32, 32, 64, is_signed)
#define DEF_FP_TO_INT(name, is_signed, mode)                                                       \
    FP_TO_INT_EXACTLY(name, 16, 16, f16, 16, is_signed, mode)                                      \
    FP_TO_INT_EXACTLY(name, 32, 32, f32, 32, is_signed, mode)                                      \
    FP_TO_INT_EXACTLY(name, 64, 64, f64, 64, is_signed, mode)
#define DEF_FP_TO_INT_W(name, is_signed, mode)                                                     \
    FP_TO_INT_EXACTLY(name, 16, 32, f16, 16, is_signed, mode)                                      \
    FP_TO_INT_EXACTLY(name, 32, 64, f32, 32, is_signed, mode)
#define DEF_FP_TO_INT_N(name, is_signed, mode)                                                     \
    FP_TO_INT_EXACTLY(name, 8, 8, f16, 16, is_signed, mode)                                        \
    FP_TO_INT_EXACTLY(name, 16, 16, f32, 32, is_signed, mode)                                      \
    FP_TO_INT_EXACTLY(name, 32, 32, f64, 64, is_signed, mode)

/* ---- masks ----------------------------------------------------------------------------------- */

#define MERGE(bits)                                                                                \
    static void merge_##bits(void *dv, const void *av, const void *bv, const u8 *mask, u64 n)      \
    {                                                                                              \
        lane##bits *d = dv;                                                                        \
        const lane##bits *a = av, *b = bv;                                                         \
        u64 i = 0;                                                                                 \
        for (; i + 8 <= n; i += 8) {                                                               \
            u##bits m = mask[i / 8];                                                               \
            u##bits t[8];                                                                          \
            for (unsigned k = 0; k < 8; k++) {                                                     \
                u##bits on = (u##bits) - (m >> k & 1);                                             \
                t[k] = (u##bits)((on & b[i + k]) | (~on & a[i + k]));                              \
            }                                                                                      \
            for (unsigned k = 0; k < 8; k++)                                                       \
                d[i + k] = t[k];                                                                   \
        }                                                                                          \
        for (; i < n; i++)                                                                         \
            d[i] = mask[i / 8] >> i % 8 & 1 ? b[i] : a[i];                                         \
    }
MERGE(8)
MERGE(16)
MERGE(32)
MERGE(64)

static void pack(u8 *mask, const u8 *truth, u64 n)
{
    pack_bytes(mask, truth, n);
}

static void copy(void *restrict d, const void *restrict s, u64 n)
{
    memcpy(d, s, n);
}

#define VEC_LOOPS vec_loops_portable
#include "vloops_table.h"
