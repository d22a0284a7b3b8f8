/* exec_f_avx2.c: scalar floating point by the FP unit of an x86 host with AVX2, F16C and FMA.
 * While a hart runs, MXCSR holds its rounding mode and gathers its flags (fp_env.h), so a body here
 * is the operation and nothing else.  What x86 does differently goes to the body in exec_f.c:
 * rounding modes that MXCSR does not hold, and every NaN result (x86 keeps payloads, and does not
 * flag inf * 0 + NaN).  Flags that x86 has raised by then are among those raised there.
 *
 * f16 is computed in f32 and rounded again: right because f32 has more than 2 * 11 + 1 digits (or
 * the mode is directed, both times the same); an inexact first step never gives a value that f16
 * holds, so the flags are right too. */
#include "simd.h"
#include "vloops.h"

#if defined(__x86_64__)
#include <immintrin.h>

#define HOST __attribute__((target("avx2,fma,f16c")))
#define HOST_BODY(name)                                                                            \
    HOST static int host_##name(struct hart *h, const struct op *o,                                \
                                __attribute__((unused)) u64 last)
#define HOST_ROUNDS likely(h->host_rm >> o->rm & 1)

/* ---- numbers of the three formats as the host has them: f16 as an f32
 * ------------------------------ */

/* Registers are read as the number alone once all of them are known to be boxed. */
#define F(rs) h->f[o->rs]
#define BOXED(fmt, all) likely((all) >= ~fp_mask(&fp_##fmt))
#define ONE(fmt) BOXED(fmt, F(rs1))
#define TWO(fmt) BOXED(fmt, F(rs1) & F(rs2))
#define THREE(fmt) BOXED(fmt, F(rs1) & F(rs2) & F(rs3))

HOST static inline float get_f32(const u64 *r)
{
    float v;
    memcpy(&v, r, sizeof v);
    return v;
}
HOST static inline double get_f64(const u64 *r)
{
    double v;
    memcpy(&v, r, sizeof v);
    return v;
}
/* The box is three more f16: quiet NaNs, which raise no flags. */
HOST static inline float get_f16(const u64 *r)
{
    return _mm_cvtss_f32(_mm_cvtph_ps(_mm_loadl_epi64((const void *)r)));
}

/* Write the rounded result, unless it is a NaN. */
HOST static inline void put_boxed(u64 *rd, __m128i v, u64 box)
{
    _mm_storel_epi64((void *)rd, _mm_or_si128(v, _mm_set_epi64x(0, (long long)box)));
}
HOST static inline bool put_f32(u64 *rd, float v)
{
    if (unlikely(v != v))
        return false;
    put_boxed(rd, _mm_castps_si128(_mm_set_ss(v)), ~fp_mask(&fp_f32));
    return true;
}
HOST static inline bool put_f64(u64 *rd, double v)
{
    if (unlikely(v != v))
        return false;
    memcpy(rd, &v, sizeof v);
    return true;
}
HOST static inline bool put_f16(u64 *rd, float v)
{
    if (unlikely(v != v))
        return false;
    __m128i bits = _mm_cvtps_ph(_mm_set_ss(v), _MM_FROUND_CUR_DIRECTION);
    put_boxed(rd, bits, ~fp_mask(&fp_f16));
    return true;
}

HOST static inline float sqrt_f32(float a)
{
    return _mm_cvtss_f32(_mm_sqrt_ss(_mm_set_ss(a)));
}
HOST static inline double sqrt_f64(double a)
{
    return _mm_cvtsd_f64(_mm_sqrt_pd(_mm_set_sd(a)));
}
/* v with the digits that an f32 has no room for folded into its last one (round to odd).  The f16
 * rounded from that is the one rounded from v. */
HOST static inline float odd_f32(double v)
{
    const u64 spare = (1ull << (52 - 23)) - 1;
    u64 bits;
    memcpy(&bits, &v, sizeof v);
    bits = (bits & ~spare) | (bits & spare ? spare + 1 : 0);
    memcpy(&v, &bits, sizeof v);
    return (float)v;
}
HOST static inline float fma_f32(float a, float b, float c)
{
    return __builtin_fmaf(a, b, c);
}
HOST static inline double fma_f64(double a, double b, double c)
{
    return __builtin_fma(a, b, c);
}
/* In f64 the sum is exact unless the product is so small beside c that it only decides to which
 * side of c the result lies. */
HOST static inline float fma_f16(float a, float b, float c)
{
    return odd_f32(__builtin_fma((double)a, (double)b, (double)c));
}

/* ---- the bodies ------------------------------------------------------------------------------ */

#define A(fmt) get_##fmt(&F(rs1))
#define B(fmt) get_##fmt(&F(rs2))
#define C(fmt) get_##fmt(&F(rs3))

/* frd = expression in format fmt, of operands that are good */
#define HOST_FP(name, fmt, good, expr)                                                             \
    HOST_BODY(name)                                                                                \
    {                                                                                              \
        if (HOST_ROUNDS && good && put_##fmt(&F(rd), expr))                                        \
            return NEXT;                                                                           \
        return x_##name(h, o, 0);                                                                  \
    }
/* rd = a signed integer; x86 answers the lowest one to everything out of range */
#define HOST_TO_INT(name, from, I, lowest, wrap, current, truncate)                                \
    HOST_BODY(name)                                                                                \
    {                                                                                              \
        if ((o->rm == RTZ || HOST_ROUNDS) && ONE(from)) {                                          \
            I v = o->rm == RTZ ? truncate(wrap(A(from))) : current(wrap(A(from)));                 \
            if (likely(v != lowest)) {                                                             \
                RD = (u64)(i64)v;                                                                  \
                return NEXT;                                                                       \
            }                                                                                      \
        }                                                                                          \
        return x_##name(h, o, 0);                                                                  \
    }
#define HOST_TO_INTS(x, from, wrap, p)                                                             \
    HOST_TO_INT(fcvt_w_##x, from, i32, INT32_MIN, wrap, _mm_cvt##p##_si32, _mm_cvtt##p##_si32)     \
    HOST_TO_INT(fcvt_l_##x, from, i64, INT64_MIN, wrap, _mm_cvt##p##_si64, _mm_cvtt##p##_si64)

#define HOST_BODIES(x, fmt, T)                                                                     \
    HOST_FP(fadd_##x, fmt, TWO(fmt), A(fmt) + B(fmt))                                              \
    HOST_FP(fsub_##x, fmt, TWO(fmt), A(fmt) - B(fmt))                                              \
    HOST_FP(fmul_##x, fmt, TWO(fmt), A(fmt) * B(fmt))                                              \
    HOST_FP(fdiv_##x, fmt, TWO(fmt), A(fmt) / B(fmt))                                              \
    HOST_FP(fmadd_##x, fmt, THREE(fmt), fma_##fmt(A(fmt), B(fmt), C(fmt)))                         \
    HOST_FP(fmsub_##x, fmt, THREE(fmt), fma_##fmt(A(fmt), B(fmt), -C(fmt)))                        \
    HOST_FP(fnmsub_##x, fmt, THREE(fmt), fma_##fmt(-A(fmt), B(fmt), C(fmt)))                       \
    HOST_FP(fnmadd_##x, fmt, THREE(fmt), fma_##fmt(-A(fmt), B(fmt), -C(fmt)))                      \
    HOST_FP(fcvt_##x##_w, fmt, true, (T)(i32)RS1)                                                  \
    HOST_FP(fcvt_##x##_wu, fmt, true, (T)(i64)(u32)RS1)
/* fcvt.h.w through f32: what f32 cannot hold, f16 cannot either */
HOST_BODIES(h, f16, float)
HOST_BODIES(s, f32, float)
HOST_BODIES(d, f64, double)

HOST_FP(fsqrt_h, f16, ONE(f16), sqrt_f32(A(f16)))
HOST_FP(fsqrt_s, f32, ONE(f32), sqrt_f32(A(f32)))
HOST_FP(fsqrt_d, f64, ONE(f64), sqrt_f64(A(f64)))

HOST_FP(fcvt_s_l, f32, true, (float)(i64)RS1)
HOST_FP(fcvt_d_l, f64, true, (double)(i64)RS1)

HOST_FP(fcvt_s_h, f32, ONE(f16), A(f16))
HOST_FP(fcvt_h_s, f16, ONE(f32), A(f32))
HOST_FP(fcvt_d_h, f64, ONE(f16), (double)A(f16))
HOST_FP(fcvt_h_d, f16, ONE(f64), odd_f32(A(f64)))
HOST_FP(fcvt_d_s, f64, ONE(f32), (double)A(f32))
HOST_FP(fcvt_s_d, f32, ONE(f64), (float)A(f64))

HOST_TO_INTS(h, f16, _mm_set_ss, ss)
HOST_TO_INTS(s, f32, _mm_set_ss, ss)
HOST_TO_INTS(d, f64, _mm_set_sd, sd)

void simd_avx2_replace(op_fn fn[INSN_COUNT])
{
#define ROW(name)                                                                                  \
    {                                                                                              \
        I_##name, host_##name                                                                      \
    }
#define ROWS(x)                                                                                    \
    ROW(fadd_##x), ROW(fsub_##x), ROW(fmul_##x), ROW(fdiv_##x), ROW(fsqrt_##x), ROW(fmadd_##x),    \
        ROW(fmsub_##x), ROW(fnmsub_##x), ROW(fnmadd_##x), ROW(fcvt_##x##_w), ROW(fcvt_##x##_wu),   \
        ROW(fcvt_w_##x), ROW(fcvt_l_##x)
    static const struct {
        u16 id;
        op_fn fn;
    } rows[] = {
        ROWS(h),       ROWS(s),       ROWS(d),       ROW(fcvt_s_l), ROW(fcvt_d_l), ROW(fcvt_s_h),
        ROW(fcvt_h_s), ROW(fcvt_d_h), ROW(fcvt_h_d), ROW(fcvt_d_s), ROW(fcvt_s_d),
    };
    for (unsigned i = 0; i < COUNT_OF(rows); i++)
        fn[rows[i].id] = rows[i].fn;
}
#endif
