/* vloops_avx2.c: the table of loops for hosts with AVX2, FMA and F16C, where the host's FP unit
 * computes in the guest's rounding mode and collects the guest's flags (fp_env.h).
 *
 * Eight lanes at a time, as f32.  f16 results are exact through f32: a sum, difference, product,
 * quotient or root of f16 numbers, rounded to f32's 24 bits and then to f16's 11, is rounded right
 * because 24 >= 2 * 11 + 2, and in the directed modes because both steps use the mode.  The flags
 * are right too: only the second step can overflow or underflow (a subnormal sum is exact, and a
 * quotient or product next to a subnormal is further from it than f32's half ulp).
 * NaN results are canonical here and positive, on x86 they are neither. */
#if defined(__x86_64__)
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma,f16c,bmi,bmi2"))), apply_to = function)
#else
#pragma GCC target("avx2,fma,f16c,bmi,bmi2")
#endif
#define VLOOPS_AVX2
#include "vloops_fp.h"

#include <immintrin.h>

#define ALWAYS_INLINE static inline __attribute__((always_inline))

/* ---- instructions
 * -------------------------------------------------------------------------------- */

/* Flags and rounding are side effects that C compilers know nothing of: they replace one comparison
 * by another, or compute what nobody asked for.  So what rounds or raises is written as such, in
 * asm. */
#define ONE(name, R, T, insn)                                                                      \
    ALWAYS_INLINE R name(T a)                                                                      \
    {                                                                                              \
        R r;                                                                                       \
        __asm__ volatile(insn " %1, %0" : "=x"(r) : "x"(a));                                       \
        return r;                                                                                  \
    }
#define TWO(name, T, insn)                                                                         \
    ALWAYS_INLINE T name(T a, T b)                                                                 \
    {                                                                                              \
        T r;                                                                                       \
        __asm__ volatile(insn " %2, %1, %0" : "=x"(r) : "x"(a), "x"(b));                           \
        return r;                                                                                  \
    }
TWO(add_f32, __m256, "vaddps")
TWO(sub_f32, __m256, "vsubps")
TWO(mul_f32, __m256, "vmulps")
TWO(div_f32, __m256, "vdivps")
TWO(add_f64, __m256d, "vaddpd")
/* comparisons give lanes of ones or zeros; the first three raise NV for signalling NaNs only */
TWO(unordered, __m256, "vcmpunordps")
TWO(equal_f32, __m256, "vcmpeqps")
TWO(unequal_f32, __m256, "vcmpneqps")
TWO(less_f32, __m256, "vcmpltps")
TWO(at_most_f32, __m256, "vcmpleps")
ONE(sqrt_f32, __m256, __m256, "vsqrtps")
ONE(widen_f32, __m256d, __m128, "vcvtps2pd")
ONE(narrow_f16, __m128i, __m256, "vcvtps2ph $4,") /* 4: in the current rounding mode */
ONE(narrow_f64, __m128, __m256d, "vcvtpd2ps")
ONE(from_i32, __m256, __m256i, "vcvtdq2ps")
ONE(to_i32, __m256i, __m256, "vcvtps2dq")
ONE(to_i32_rtz, __m256i, __m256, "vcvttps2dq")
/* a * b + c */
ALWAYS_INLINE __m256 fused_f32(__m256 a, __m256 b, __m256 c)
{
    __asm__ volatile("vfmadd213ps %2, %1, %0" : "+x"(a) : "x"(b), "x"(c));
    return a;
}

/* ---- eight lanes in and out of memory ----------------------------------------------------- */

ALWAYS_INLINE __m256 load_f16(const u8 *p)
{
    __m256 r; /* a signalling NaN raises NV */
    __asm__ volatile("vcvtph2ps %1, %0" : "=x"(r) : "m"(*(const u8(*)[16])p));
    return r;
}
ALWAYS_INLINE __m256 load_bf16(const u8 *p)
{
    __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p));
    return _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
}
ALWAYS_INLINE __m256 load_f32(const u8 *p)
{
    return _mm256_loadu_ps((const float *)p);
}
ALWAYS_INLINE void store_f16(u8 *p, __m256 v)
{
    _mm_storeu_si128((__m128i *)p, narrow_f16(v));
}
ALWAYS_INLINE void store_f32(u8 *p, __m256 v)
{
    _mm256_storeu_ps((float *)p, v);
}

/* ---- the drivers ------------------------------------------------------------------------------
 */

enum { SIZE_f16 = 2, SIZE_bf16 = 2, SIZE_f32 = 4 };

/* Eight elements of `size` bytes for the end of a loop: n of p, then ones, which raise no flag. */
ALWAYS_INLINE void pad(u8 out[32], const u8 *p, u64 n, u32 size)
{
    const u16 half = 0x3c00;
    const u32 single = 0x3f800000;
    for (u32 i = 0; i < 8; i++)
        memcpy(out + i * size, size == 4 ? (const u8 *)&single : (const u8 *)&half, size);
    memcpy(out, p, n * size);
}

/* Sources of a loop as it goes; sd, sa, sb: bytes of an element of d, a, b, sb = 0 without b. */
struct lanes {
    u8 *d;
    const u8 *a, *b;
    u32 sd, sa, sb;
    bool reads_d;
};
ALWAYS_INLINE struct lanes advance(struct lanes l, u32 n)
{
    l.d += n * l.sd;
    l.a += n * l.sa;
    l.b += n * l.sb;
    return l;
}
/* The last n elements, padded to eight; results go to t.d. */
struct tail {
    _Alignas(32) u8 d[32], a[32], b[32];
};
ALWAYS_INLINE struct lanes tail_of(struct lanes l, u64 n, struct tail *t)
{
    pad(t->a, l.a, n, l.sa);
    if (l.sb)
        pad(t->b, l.b, n, l.sb);
    if (l.reads_d)
        pad(t->d, l.d, n, l.sd);
    return (struct lanes){t->d, t->a, t->b, l.sd, l.sa, l.sb, l.reads_d};
}

/* The low halves, or the low bytes, of eight lanes; or all of them. */
ALWAYS_INLINE void store_ints(u8 *p, __m256i v, u32 bits)
{
    if (bits == 32) {
        _mm256_storeu_si256((__m256i *)p, v);
        return;
    }
    const __m256i pick = bits == 16 ? _mm256_set1_epi64x(0x0d0c090805040100)
                                    : _mm256_set1_epi64x(0x808080800c080400);
    v = _mm256_shuffle_epi8(v, pick);
    if (bits == 16) {
        v = _mm256_permute4x64_epi64(v, 0x08);
        _mm_storeu_si128((__m128i *)p, _mm256_castsi256_si128(v));
    } else {
        v = _mm256_permutevar8x32_epi32(v, _mm256_setr_epi32(0, 4, 0, 0, 0, 0, 0, 0));
        _mm_storel_epi64((__m128i *)p, _mm256_castsi256_si128(v));
    }
}

/* Steps that store their eight results themselves. */
typedef void (*step_fn)(struct hart *h, u8 *d, const u8 *a, const u8 *b);
ALWAYS_INLINE void by_eights(struct hart *h, struct lanes l, u64 n, step_fn step)
{
    for (; n >= 8; n -= 8, l = advance(l, 8))
        step(h, l.d, l.a, l.b);
    if (n) {
        struct tail t;
        struct lanes last = tail_of(l, n, &t);
        step(h, last.d, last.a, last.b);
        memcpy(l.d, t.d, n * l.sd);
    }
}

static __attribute__((noinline)) void canonical_f16(u8 *p, u64 n)
{
    lane16 *d = (lane16 *)p;
    for (u64 i = 0; i < n; i++)
        d[i] = (d[i] & 0x7fff) > 0x7c00 ? 0x7e00 : d[i];
}
static __attribute__((noinline)) void canonical_f32(u8 *p, u64 n)
{
    lane32 *d = (lane32 *)p;
    for (u64 i = 0; i < n; i++)
        d[i] = (d[i] & 0x7fffffff) > 0x7f800000 ? 0x7fc00000 : d[i];
}
ALWAYS_INLINE void store(u8 *p, __m256 v, u32 size)
{
    if (size == SIZE_f16)
        store_f16(p, v);
    else
        store_f32(p, v);
}
/* Sixteen.  Register groups are written 32 bytes at a time, because a later load of as many would
 * otherwise wait for two stores to reach the cache. */
ALWAYS_INLINE void store_two(u8 *p, __m256 x, __m256 y, u32 size)
{
    if (size == SIZE_f16) {
        __m128i low = narrow_f16(x);
        __m128i high = narrow_f16(y);
        _mm256_storeu_si256((__m256i *)p, _mm256_set_m128i(high, low));
    } else {
        store_f32(p, x);
        store_f32(p + 32, y);
    }
}

/* Steps whose eight results are stored here as f16 or f32; NaNs, being rare, are made canonical
 * afterwards.  The comparison raises NV for a signalling NaN, which only a conversion passes on. */
typedef __m256 (*fp_step_fn)(struct hart *h, const u8 *d, const u8 *a, const u8 *b);
/* Sixteen results; the lanes in which a NaN came up. */
ALWAYS_INLINE __m256 sixteen(struct hart *h, struct lanes l, fp_step_fn step)
{
    struct lanes m = advance(l, 8);
    __m256 x = step(h, l.d, l.a, l.b), y = step(h, m.d, m.a, m.b);
    store_two(l.d, x, y, l.sd);
    return unordered(x, y);
}

ALWAYS_INLINE void fp_by_eights(struct hart *h, struct lanes l, u64 n, fp_step_fn step)
{
    const struct lanes all = l;
    const u64 total = n;
    __m256 nan = _mm256_setzero_ps();
    for (; n >= 32; n -= 32, l = advance(l, 32)) {
        nan = _mm256_or_ps(nan, sixteen(h, l, step));
        nan = _mm256_or_ps(nan, sixteen(h, advance(l, 16), step));
    }
    if (n >= 16) {
        nan = _mm256_or_ps(nan, sixteen(h, l, step));
        n -= 16;
        l = advance(l, 16);
    }
    if (n >= 8) {
        __m256 x = step(h, l.d, l.a, l.b);
        nan = _mm256_or_ps(nan, unordered(x, x));
        store(l.d, x, l.sd);
        n -= 8;
        l = advance(l, 8);
    }
    if (n) {
        struct tail t;
        struct lanes last = tail_of(l, n, &t);
        __m256 x = step(h, last.d, last.a, last.b);
        nan = _mm256_or_ps(nan, unordered(x, x));
        store(t.d, x, l.sd);
        memcpy(l.d, t.d, n * l.sd);
    }
    if (unlikely(_mm256_movemask_ps(nan))) {
        if (l.sd == SIZE_f16)
            canonical_f16(all.d, total);
        else
            canonical_f32(all.d, total);
    }
}
#define LANES_OF(sd, sa, sb, reads_d)                                                              \
    (struct lanes)                                                                                 \
    {                                                                                              \
        dv, av, bv, sd, sa, sb, reads_d                                                            \
    }

/* ---- arithmetic --------------------------------------------------------------------------- */

ALWAYS_INLINE __m256 negated(__m256 v)
{
    return _mm256_xor_ps(v, _mm256_set1_ps(-0.0f));
}

/* x86 keeps quiet about infinity * 0 + NaN. */
static __attribute__((noinline)) void undefined_product(struct hart *h, __m256 x, __m256 y)
{
    const __m256 zero = _mm256_setzero_ps(), sign = _mm256_set1_ps(-0.0f);
    const __m256 inf = _mm256_castsi256_ps(_mm256_set1_epi32(0x7f800000));
    __m256 x_inf = _mm256_cmp_ps(_mm256_andnot_ps(sign, x), inf, _CMP_EQ_OQ);
    __m256 y_inf = _mm256_cmp_ps(_mm256_andnot_ps(sign, y), inf, _CMP_EQ_OQ);
    __m256 x_zero = _mm256_cmp_ps(x, zero, _CMP_EQ_OQ), y_zero = _mm256_cmp_ps(y, zero, _CMP_EQ_OQ);
    __m256 bad = _mm256_or_ps(_mm256_and_ps(x_inf, y_zero), _mm256_and_ps(x_zero, y_inf));
    if (_mm256_movemask_ps(bad))
        h->fflags |= NV;
}

/* Four f64 as f32, rounded to odd: what is cut off leaves its mark in the lowest bit. */
ALWAYS_INLINE __m128 to_odd(__m256d v)
{
    const __m256i cut = _mm256_set1_epi64x((1 << 29) - 1);
    __m256i bits = _mm256_castpd_si256(v);
    __m256i carry = _mm256_add_epi64(_mm256_and_si256(bits, cut), cut);
    bits = _mm256_andnot_si256(cut, _mm256_or_si256(bits, carry));
    return narrow_f64(_mm256_castsi256_pd(bits));
}
ALWAYS_INLINE __m256d low_half(__m256 v)
{
    return widen_f32(_mm256_castps256_ps128(v));
}
ALWAYS_INLINE __m256d high_half(__m256 v)
{
    return widen_f32(_mm256_extractf128_ps(v, 1));
}

/* x * y + z of f16 numbers, such that rounding it to f16 is the only rounding: the product is exact
 * in f32; the sum in f64 is exact unless its terms are so far apart that the smaller one only
 * decides between two neighbours of the larger, which has 11 bits or overflows; then to odd. */
ALWAYS_INLINE __m256 fma_f16(__m256 x, __m256 y, __m256 z)
{
    __m256 product = mul_f32(x, y);
    __m128 low = to_odd(add_f64(low_half(product), low_half(z)));
    __m128 high = to_odd(add_f64(high_half(product), high_half(z)));
    return _mm256_set_m128(high, low);
}
ALWAYS_INLINE __m256 fma_f32(struct hart *h, __m256 x, __m256 y, __m256 z)
{
    __m256 r = fused_f32(x, y, z);
    if (unlikely(_mm256_movemask_ps(unordered(r, r))))
        undefined_product(h, x, y);
    return r;
}

enum { HALF_f16 = true, HALF_f32 = false };

#define FP_LANES(name, sew, C, D, A, B, reads_b, reads_d, expr)                                    \
    ALWAYS_INLINE __m256 name##_##sew##_eight(struct hart *h, const u8 *dp, const u8 *ap,          \
                                              const u8 *bp)                                        \
    {                                                                                              \
        enum { HALF = HALF_##C };                                                                  \
        __m256 a = load_##A(ap);                                                                   \
        __m256 b = reads_b ? load_##B(bp) : a, d = reads_d ? load_##D(dp) : a;                     \
        (void)b, (void)d, (void)h;                                                                 \
        return expr;                                                                               \
    }                                                                                              \
    static void name##_##sew(LOOP_PARAMETERS)                                                      \
    {                                                                                              \
        struct lanes l = LANES_OF(SIZE_##D, SIZE_##A, reads_b ? SIZE_##B : 0, reads_d);            \
        fp_by_eights(h, l, n, name##_##sew##_eight);                                               \
    }
#define SOFT_LANES(name, sew, ...) void soft_##name##_##sew(LOOP_PARAMETERS);
#define SOFT_TRUTHS(name, sew, ...) SOFT_LANES(name, sew)
#define ADD(x, y) add_f32(x, y)
#define SUB(x, y) sub_f32(x, y)
#define MUL(x, y) mul_f32(x, y)
#define DIV(x, y) div_f32(x, y)
#define SQRT(x) sqrt_f32(x)
#define FMA(x, y, z) (HALF ? fma_f16(x, y, z) : fma_f32(h, x, y, z))
#define NEG(x) negated(x)

#define FP_TRUTHS(name, sew, F, expr)                                                              \
    ALWAYS_INLINE void name##_##sew##_eight(struct hart *h, u8 *dp, const u8 *ap, const u8 *bp)    \
    {                                                                                              \
        __m256 a = load_##F(ap), b = load_##F(bp);                                                 \
        (void)h;                                                                                   \
        store_ints(dp, _mm256_srli_epi32(_mm256_castps_si256(expr), 31), 8);                       \
    }                                                                                              \
    static void name##_##sew(LOOP_PARAMETERS)                                                      \
    {                                                                                              \
        by_eights(h, LANES_OF(1, SIZE_##F, SIZE_##F, false), n, name##_##sew##_eight);             \
    }
#define EQ(x, y) equal_f32(x, y)
#define NE(x, y) unequal_f32(x, y)
#define LT(x, y) less_f32(x, y)
#define LE(x, y) at_most_f32(x, y)

/* ---- f32 to bf16 -------------------------------------------------------------------------- */

/* f32 bits, rounded to bf16 and still in the upper half. */
ALWAYS_INLINE __m256i bf16_round(__m256i bits, int rm)
{
    const __m256i all = _mm256_set1_epi32(0xffff), one = _mm256_set1_epi32(1);
    __m256i negative = _mm256_srai_epi32(bits, 31);
    switch (rm) {
    case RNE:
        bits = _mm256_add_epi32(bits, _mm256_and_si256(_mm256_srli_epi32(bits, 16), one));
        return _mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff));
    case RDN:
        return _mm256_add_epi32(bits, _mm256_and_si256(negative, all));
    case RUP:
        return _mm256_add_epi32(bits, _mm256_andnot_si256(negative, all));
    default: /* RTZ */
        return bits;
    }
}

/* NaN, infinity, what may overflow, and subnormal numbers: lanes that are all ones. */
ALWAYS_INLINE __m256i bf16_rare(__m256i bits)
{
    __m256i magnitude = _mm256_and_si256(bits, _mm256_set1_epi32(0x7fffffff));
    __m256i large = _mm256_cmpgt_epi32(magnitude, _mm256_set1_epi32(0x7f7effff));
    __m256i zero = _mm256_cmpeq_epi32(magnitude, _mm256_setzero_si256());
    __m256i small = _mm256_cmpgt_epi32(_mm256_set1_epi32(0x00800000), magnitude);
    return _mm256_or_si256(large, _mm256_andnot_si256(zero, small));
}

/* Sixteen numbers by integer code; with a rare one among them they are left to the exact loop,
 * which knows its flags. */
ALWAYS_INLINE void narrow_bf16(LOOP_PARAMETERS, int rm)
{
    const vloop_fn exactly = vec_loops_portable.fn[L_vfncvtbf16_f_f][1];
    const __m256i cut = _mm256_set1_epi32(0xffff);
    u8 *d = dv;
    const u8 *a = av;
    bool inexact = false;
    for (; n >= 16; n -= 16, a += 64, d += 32) {
        __m256i x = _mm256_loadu_si256((const __m256i *)a);
        __m256i y = _mm256_loadu_si256((const __m256i *)(a + 32));
        __m256i rare = _mm256_or_si256(bf16_rare(x), bf16_rare(y));
        if (unlikely(!_mm256_testz_si256(rare, rare))) {
            exactly(h, d, a, bv, 16);
            continue;
        }
        inexact |= !_mm256_testz_si256(_mm256_or_si256(x, y), cut);
        x = _mm256_srli_epi32(bf16_round(x, rm), 16);
        y = _mm256_srli_epi32(bf16_round(y, rm), 16);
        x = _mm256_permute4x64_epi64(_mm256_packus_epi32(x, y), 0xd8);
        _mm256_storeu_si256((__m256i *)d, x);
    }
    h->fflags |= inexact ? NX : 0;
    if (n)
        exactly(h, d, a, bv, n);
}
#define DEF_BF1_N(name, expr)                                                                      \
    static void name##_16(LOOP_PARAMETERS)                                                         \
    {                                                                                              \
        switch (h->frm) {                                                                          \
        case RNE:                                                                                  \
            narrow_bf16(h, dv, av, bv, n, RNE);                                                    \
            return;                                                                                \
        case RDN:                                                                                  \
            narrow_bf16(h, dv, av, bv, n, RDN);                                                    \
            return;                                                                                \
        case RUP:                                                                                  \
            narrow_bf16(h, dv, av, bv, n, RUP);                                                    \
            return;                                                                                \
        default:                                                                                   \
            narrow_bf16(h, dv, av, bv, n, RTZ);                                                    \
        }                                                                                          \
    }

/* ---- integers to FP ----------------------------------------------------------------------- */

/* Eight integers as f32: all of 8 and 16 bits are exact, those of 32 bits are rounded once. */
ALWAYS_INLINE __m256 from_ints(const u8 *p, u32 bits, bool is_signed)
{
    __m128i v =
        bits == 8 ? _mm_loadl_epi64((const __m128i *)p) : _mm_loadu_si128((const __m128i *)p);
    if (bits == 8)
        return from_i32(is_signed ? _mm256_cvtepi8_epi32(v) : _mm256_cvtepu8_epi32(v));
    if (bits == 16)
        return from_i32(is_signed ? _mm256_cvtepi16_epi32(v) : _mm256_cvtepu16_epi32(v));
    __m256i w = _mm256_loadu_si256((const __m256i *)p);
    if (is_signed)
        return from_i32(w);
    __m256 high = from_i32(_mm256_srli_epi32(w, 16));
    __m256 low = from_i32(_mm256_and_si256(w, _mm256_set1_epi32(0xffff)));
    return add_f32(mul_f32(high, _mm256_set1_ps(65536)), low);
}

#define INT_TO_FP(name, sew, D, abits, is_signed)                                                  \
    ALWAYS_INLINE void name##_##sew##_eight(struct hart *h, u8 *dp, const u8 *ap, const u8 *bp)    \
    {                                                                                              \
        (void)h, (void)bp;                                                                         \
        store_##D(dp, from_ints(ap, abits, is_signed));                                            \
    }                                                                                              \
    static void name##_##sew(LOOP_PARAMETERS)                                                      \
    {                                                                                              \
        by_eights(h, LANES_OF(SIZE_##D, abits / 8, 0, false), n, name##_##sew##_eight);            \
    }
#define DEF_INT_TO_FP(name, is_signed)                                                             \
    INT_TO_FP(name, 16, f16, 16, is_signed)                                                        \
    INT_TO_FP(name, 32, f32, 32, is_signed)                                                        \
    INT_TO_FP_EXACTLY(name, 64, f64, 64, 64, is_signed)
#define DEF_INT_TO_FP_W(name, is_signed)                                                           \
    INT_TO_FP(name, 8, f16, 8, is_signed)                                                          \
    INT_TO_FP(name, 16, f32, 16, is_signed)                                                        \
    INT_TO_FP_EXACTLY(name, 32, f64, 64, 32, is_signed)
#define DEF_INT_TO_FP_N(name, is_signed)                                                           \
    INT_TO_FP_EXACTLY(name, 16, f16, 16, 32, is_signed)                                            \
    INT_TO_FP_EXACTLY(name, 32, f32, 32, 64, is_signed)

/* ---- FP to integers ----------------------------------------------------------------------- */

/* Numbers from lo to hi are in the range of the integers however they are rounded. */
struct range {
    float lo, hi;
};
ALWAYS_INLINE struct range int_range(u32 bits, bool is_signed)
{
    if (bits == 32) /* the largest f32 below 2^31: host conversions are signed */
        return (struct range){is_signed ? -0x1p31f : 0, 0x1.fffffep30f};
    float half = (float)(1u << (bits - 1));
    return is_signed ? (struct range){-half, half - 1} : (struct range){0, 2 * half - 1};
}
#define FP_TO_INT(name, sew, dbits, A, is_signed, mode)                                            \
    ALWAYS_INLINE void name##_##sew##_eight(struct hart *h, u8 *dp, const u8 *ap, const u8 *bp)    \
    {                                                                                              \
        const struct range r = int_range(dbits, is_signed);                                        \
        __m256 a = load_##A(ap);                                                                   \
        __m256 in = _mm256_and_ps(_mm256_cmp_ps(a, _mm256_set1_ps(r.lo), _CMP_GE_OQ),              \
                                  _mm256_cmp_ps(a, _mm256_set1_ps(r.hi), _CMP_LE_OQ));             \
        if (unlikely(_mm256_movemask_ps(in) != 0xff)) {                                            \
            vec_loops_portable.fn[L_##name][sew / 16](h, dp, ap, bp, 8);                           \
            return;                                                                                \
        }                                                                                          \
        store_ints(dp, (mode) == RTZ ? to_i32_rtz(a) : to_i32(a), dbits);                          \
    }                                                                                              \
    static void name##_##sew(LOOP_PARAMETERS)                                                      \
    {                                                                                              \
        by_eights(h, LANES_OF(dbits / 8, SIZE_##A, 0, false), n, name##_##sew##_eight);            \
    }
#define DEF_FP_TO_INT(name, is_signed, mode)                                                       \
    FP_TO_INT(name, 16, 16, f16, is_signed, mode)                                                  \
    FP_TO_INT(name, 32, 32, f32, is_signed, mode)                                                  \
    FP_TO_INT_EXACTLY(name, 64, 64, f64, 64, is_signed, mode)
#define DEF_FP_TO_INT_W(name, is_signed, mode)                                                     \
    FP_TO_INT(name, 16, 32, f16, is_signed, mode)                                                  \
    FP_TO_INT_EXACTLY(name, 32, 64, f32, 32, is_signed, mode)
#define DEF_FP_TO_INT_N(name, is_signed, mode)                                                     \
    FP_TO_INT(name, 8, 8, f16, is_signed, mode)                                                    \
    FP_TO_INT(name, 16, 16, f32, is_signed, mode)                                                  \
    FP_TO_INT_EXACTLY(name, 32, 32, f64, 64, is_signed, mode)

/* ---- masks ----------------------------------------------------------------------------------- */

/* Lanes that are all ones where the mask bit is set: every lane sees the bits of all, and picks. */
ALWAYS_INLINE __m256i lanes_of_mask(const u8 *mask, u64 i, u32 bits)
{
    const __m256i bytes = _mm256_set1_epi64x((i64)0x8040201008040201);
    const __m256i halves = _mm256_setr_epi16(1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048,
                                             4096, 8192, 16384, -32768);
    const __m256i words = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
    const __m256i doubles = _mm256_setr_epi64x(1, 2, 4, 8);
    const __m256i spread =
        _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303);
    u32 m = 0;
    if (bits == 8) {
        memcpy(&m, mask + i / 8, 4);
        __m256i v = _mm256_shuffle_epi8(_mm256_set1_epi32((int)m), spread);
        return _mm256_cmpeq_epi8(_mm256_and_si256(v, bytes), bytes);
    }
    if (bits == 16) {
        memcpy(&m, mask + i / 8, 2);
        __m256i v = _mm256_set1_epi16((i16)m);
        return _mm256_cmpeq_epi16(_mm256_and_si256(v, halves), halves);
    }
    m = mask[i / 8] >> i % 8;
    if (bits == 32)
        return _mm256_cmpeq_epi32(_mm256_and_si256(_mm256_set1_epi32((int)m), words), words);
    return _mm256_cmpeq_epi64(_mm256_and_si256(_mm256_set1_epi64x(m), doubles), doubles);
}

#define MERGE(bits)                                                                                \
    static void merge_##bits(void *dv, const void *av, const void *bv, const u8 *mask, u64 n)      \
    {                                                                                              \
        enum { STEP = 256 / bits };                                                                \
        lane##bits *d = dv;                                                                        \
        const lane##bits *a = av, *b = bv;                                                         \
        u64 i = 0;                                                                                 \
        for (; i + STEP <= n; i += STEP) {                                                         \
            __m256i x = _mm256_loadu_si256((const __m256i *)(a + i));                              \
            __m256i y = _mm256_loadu_si256((const __m256i *)(b + i));                              \
            x = _mm256_blendv_epi8(x, y, lanes_of_mask(mask, i, bits));                            \
            _mm256_storeu_si256((__m256i *)(d + i), x);                                            \
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
    for (; n >= 32; n -= 32, truth += 32, mask += 4) {
        __m256i v = _mm256_loadu_si256((const __m256i *)truth);
        u32 m = (u32)_mm256_movemask_epi8(_mm256_slli_epi16(v, 7));
        memcpy(mask, &m, 4);
    }
    pack_bytes(mask, truth, n);
}

static void copy(void *restrict dv, const void *restrict sv, u64 n)
{
    u8 *d = dv;
    const u8 *s = sv;
    for (; n >= 64; n -= 64, d += 64, s += 64) {
        __m256i x = _mm256_loadu_si256((const __m256i *)s);
        __m256i y = _mm256_loadu_si256((const __m256i *)(s + 32));
        _mm256_storeu_si256((__m256i *)d, x);
        _mm256_storeu_si256((__m256i *)(d + 32), y);
    }
    if (n)
        memcpy(d, s, n);
}

#define VEC_LOOPS vec_loops_avx2
#include "vloops_table.h"

#if defined(__clang__)
#pragma clang attribute pop
#endif
#endif
