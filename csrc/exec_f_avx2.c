/* exec_f_avx2.c: scalar floating point by the FP unit of an x86 host with AVX2, F16C and FMA.
 * While a hart runs, MXCSR holds its rounding mode and gathers its flags (fp_env.h), so a body here
 * is the operation and nothing else.  What x86 does differently goes to the body in exec_f.c:
 * rounding modes that MXCSR does not hold, and every NaN result (x86 keeps payloads, and does not
 * flag inf * 0 + NaN).  Flags that x86 has raised by then are among those raised there.
 *
 * Flags and rounding are side effects that C compilers know nothing of: they compute on both sides
 * of a choice, or on lanes that nobody asked for.  So the instructions are written as such, in asm.
 *
 * f16 is computed in f32 and rounded again: right because f32 has more than 2 * 11 + 1 digits (or
 * the mode is directed, both times the same); an inexact first step never gives a value that f16
 * holds, so the flags are right too. */
#include "simd.h"
#include "vloops.h"

#if defined(__x86_64__)
#include <immintrin.h>

/* The attribute makes the compiler's own moves AVX ones. */
#define HOST __attribute__((target("avx2,fma,f16c")))
#define HOST_BODY(name)                                                                            \
    HOST static int host_##name(struct hart *h, const struct op *o,                                \
                                __attribute__((unused)) u64 last)
#define HOST_ROUNDS likely(h->host_rm >> o->rm & 1)

/* ---- instructions -----------------------------------------------------------------------------
 */

#define UNARY(name, T, insn)                                                                       \
    HOST static inline T name(T a)                                                                 \
    {                                                                                              \
        T r;                                                                                       \
        __asm__ volatile(insn " %1, %1, %0" : "=x"(r) : "x"(a));                                   \
        return r;                                                                                  \
    }
#define BINARY(name, T, insn)                                                                      \
    HOST static inline T name(T a, T b)                                                            \
    {                                                                                              \
        T r;                                                                                       \
        __asm__ volatile(insn " %2, %1, %0" : "=x"(r) : "x"(a), "x"(b));                           \
        return r;                                                                                  \
    }
/* +-(a * b) +- c */
#define FUSED(name, T, insn)                                                                       \
    HOST static inline T name(T a, T b, T c)                                                       \
    {                                                                                              \
        __asm__ volatile(insn " %2, %1, %0" : "+x"(a) : "x"(b), "x"(c));                           \
        return a;                                                                                  \
    }
/* the register is cleared first: the instruction keeps its upper part, and would wait for it */
#define FROM_INT(name, T, insn)                                                                    \
    HOST static inline T name(i64 a)                                                               \
    {                                                                                              \
        T r;                                                                                       \
        __asm__ volatile("vxorps %0, %0, %0\n\t" insn " %1, %0, %0" : "=&x"(r) : "r"(a));          \
        return r;                                                                                  \
    }
#define TO_INT(name, I, T, insn)                                                                   \
    HOST static inline I name(T a)                                                                 \
    {                                                                                              \
        I r;                                                                                       \
        __asm__ volatile(insn " %1, %0" : "=r"(r) : "x"(a));                                       \
        return r;                                                                                  \
    }
#define INSTRUCTIONS(fmt, T, s)                                                                    \
    BINARY(add_##fmt, T, "vadd" s)                                                                 \
    BINARY(sub_##fmt, T, "vsub" s)                                                                 \
    BINARY(mul_##fmt, T, "vmul" s)                                                                 \
    BINARY(div_##fmt, T, "vdiv" s)                                                                 \
    UNARY(sqrt_##fmt, T, "vsqrt" s)                                                                \
    FUSED(fmadd_##fmt, T, "vfmadd213" s)                                                           \
    FUSED(fmsub_##fmt, T, "vfmsub213" s)                                                           \
    FUSED(fnmsub_##fmt, T, "vfnmadd213" s) /* the names differ: -(a * b) + c */                    \
    FUSED(fnmadd_##fmt, T, "vfnmsub213" s)                                                         \
    FROM_INT(from_int_##fmt, T, "vcvtsi2" s "q")                                                   \
    TO_INT(to_i32_##fmt, i32, T, "vcvt" s "2si")                                                   \
    TO_INT(to_i64_##fmt, i64, T, "vcvt" s "2si")                                                   \
    TO_INT(truncate_i32_##fmt, i32, T, "vcvtt" s "2si")                                            \
    TO_INT(truncate_i64_##fmt, i64, T, "vcvtt" s "2si")
INSTRUCTIONS(f32, float, "ss")
INSTRUCTIONS(f64, double, "sd")

HOST static inline double f64_of_f32(float a)
{
    double r;
    __asm__ volatile("vcvtss2sd %1, %1, %0" : "=x"(r) : "x"(a));
    return r;
}
HOST static inline float f32_of_f64(double a)
{
    float r;
    __asm__ volatile("vcvtsd2ss %1, %1, %0" : "=x"(r) : "x"(a));
    return r;
}

/* ---- numbers of the three formats as the host has them: f16 as an f32 -------------------------
 */

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
/* Four lanes: the box is three more f16, quiet NaNs, which raise no flags. */
HOST static inline float get_f16(const u64 *r)
{
    float v;
    __asm__ volatile("vcvtph2ps %1, %0" : "=x"(v) : "x"(_mm_loadl_epi64((const void *)r)));
    return v;
}

HOST static inline void put_boxed(u64 *rd, __m128i v, u64 box)
{
    _mm_storel_epi64((void *)rd, _mm_or_si128(v, _mm_set_epi64x(0, (long long)box)));
}
/* Write the rounded result, unless it is a NaN. */
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
/* Four lanes: the other three are made 0. */
HOST static inline bool put_f16(u64 *rd, float v)
{
    if (unlikely(v != v))
        return false;
    __m128i bits;
    __asm__ volatile("vinsertps $0x0e, %1, %1, %0\n\tvcvtps2ph $4, %0, %0" : "=x"(bits) : "x"(v));
    put_boxed(rd, bits, ~fp_mask(&fp_f16));
    return true;
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
    return f32_of_f64(v);
}

/* What f16 does in f32; its fused operations in f64, where the sum is exact unless the product is
 * so small beside c that it only decides to which side of c the result lies. */
#define add_f16 add_f32
#define sub_f16 sub_f32
#define mul_f16 mul_f32
#define div_f16 div_f32
#define sqrt_f16 sqrt_f32
#define from_int_f16 from_int_f32
#define to_i32_f16 to_i32_f32
#define to_i64_f16 to_i64_f32
#define truncate_i32_f16 truncate_i32_f32
#define truncate_i64_f16 truncate_i64_f32
#define FUSED_F16(name)                                                                            \
    HOST static inline float name##_f16(float a, float b, float c)                                 \
    {                                                                                              \
        return odd_f32(name##_f64(f64_of_f32(a), f64_of_f32(b), f64_of_f32(c)));                   \
    }
FUSED_F16(fmadd)
FUSED_F16(fmsub)
FUSED_F16(fnmsub)
FUSED_F16(fnmadd)

/* ---- the bodies -------------------------------------------------------------------------------
 */

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
#define HOST_TO_INT(name, fmt, I, lowest, convert, truncate)                                       \
    HOST_BODY(name)                                                                                \
    {                                                                                              \
        I v = lowest;                                                                              \
        if (o->rm == RTZ && ONE(fmt))                                                              \
            v = truncate(A(fmt));                                                                  \
        else if (HOST_ROUNDS && ONE(fmt))                                                          \
            v = convert(A(fmt));                                                                   \
        if (unlikely(v == lowest))                                                                 \
            return x_##name(h, o, 0);                                                              \
        RD = (u64)(i64)v;                                                                          \
        return NEXT;                                                                               \
    }

#define HOST_BODIES(x, fmt)                                                                        \
    HOST_FP(fadd_##x, fmt, TWO(fmt), add_##fmt(A(fmt), B(fmt)))                                    \
    HOST_FP(fsub_##x, fmt, TWO(fmt), sub_##fmt(A(fmt), B(fmt)))                                    \
    HOST_FP(fmul_##x, fmt, TWO(fmt), mul_##fmt(A(fmt), B(fmt)))                                    \
    HOST_FP(fdiv_##x, fmt, TWO(fmt), div_##fmt(A(fmt), B(fmt)))                                    \
    HOST_FP(fsqrt_##x, fmt, ONE(fmt), sqrt_##fmt(A(fmt)))                                          \
    HOST_FP(fmadd_##x, fmt, THREE(fmt), fmadd_##fmt(A(fmt), B(fmt), C(fmt)))                       \
    HOST_FP(fmsub_##x, fmt, THREE(fmt), fmsub_##fmt(A(fmt), B(fmt), C(fmt)))                       \
    HOST_FP(fnmsub_##x, fmt, THREE(fmt), fnmsub_##fmt(A(fmt), B(fmt), C(fmt)))                     \
    HOST_FP(fnmadd_##x, fmt, THREE(fmt), fnmadd_##fmt(A(fmt), B(fmt), C(fmt)))                     \
    HOST_FP(fcvt_##x##_w, fmt, true, from_int_##fmt((i32)RS1))                                     \
    HOST_FP(fcvt_##x##_wu, fmt, true, from_int_##fmt((u32)RS1))                                    \
    HOST_FP(fcvt_##x##_l, fmt, true, from_int_##fmt((i64)RS1))                                     \
    HOST_TO_INT(fcvt_w_##x, fmt, i32, INT32_MIN, to_i32_##fmt, truncate_i32_##fmt)                 \
    HOST_TO_INT(fcvt_l_##x, fmt, i64, INT64_MIN, to_i64_##fmt, truncate_i64_##fmt)
/* integers to f16 through f32: those that f32 rounds are too large for f16 */
HOST_BODIES(h, f16)
HOST_BODIES(s, f32)
HOST_BODIES(d, f64)

HOST_FP(fcvt_s_h, f32, ONE(f16), A(f16))
HOST_FP(fcvt_h_s, f16, ONE(f32), A(f32))
HOST_FP(fcvt_d_h, f64, ONE(f16), f64_of_f32(A(f16)))
HOST_FP(fcvt_h_d, f16, ONE(f64), odd_f32(A(f64)))
HOST_FP(fcvt_d_s, f64, ONE(f32), f64_of_f32(A(f32)))
HOST_FP(fcvt_s_d, f32, ONE(f64), f32_of_f64(A(f64)))

void f_avx2_replace(op_fn fn[INSN_COUNT])
{
#define ROW(name) {I_##name, host_##name},
#define ROWS(x)                                                                                    \
    ROW(fadd_##x)                                                                                  \
    ROW(fsub_##x)                                                                                  \
    ROW(fmul_##x)                                                                                  \
    ROW(fdiv_##x)                                                                                  \
    ROW(fsqrt_##x)                                                                                 \
    ROW(fmadd_##x)                                                                                 \
    ROW(fmsub_##x)                                                                                 \
    ROW(fnmsub_##x)                                                                                \
    ROW(fnmadd_##x)                                                                                \
    ROW(fcvt_##x##_w)                                                                              \
    ROW(fcvt_##x##_wu)                                                                             \
    ROW(fcvt_##x##_l)                                                                              \
    ROW(fcvt_w_##x)                                                                                \
    ROW(fcvt_l_##x)
    static const struct {
        u16 id;
        op_fn fn;
    } rows[] = {ROWS(h) ROWS(s) ROWS(d) ROW(fcvt_s_h) ROW(fcvt_h_s) ROW(fcvt_d_h) ROW(fcvt_h_d)
                    ROW(fcvt_d_s) ROW(fcvt_s_d)};
    for (unsigned i = 0; i < COUNT_OF(rows); i++)
        fn[rows[i].id] = rows[i].fn;
}
#endif
