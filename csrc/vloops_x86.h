/* vloops_x86.h: the FP loops of x86 hosts, where the host's FP unit computes in the guest's
 * rounding mode and collects the guest's flags (fp_env.h), and what else pays there.  For
 * inclusion by vloops_avx2.c and vloops_avx512.c, which define their vectors:
 *   L                     lanes of 32 bits: 8 or 16
 *   fvec, ivec, dvec      L f32, L integers, L / 2 f64
 *   half_fvec, half_ivec  half of the first two
 *   truth                 L times yes or no, in a TRUTH_REGISTER (constraint of an asm operand)
 *   and the functions that stand above their #include of this file.
 *
 * f16 results are exact through f32: a sum, difference, product, quotient or root of f16 numbers,
 * rounded to f32's 24 bits and then to f16's 11, is rounded right because 24 >= 2 * 11 + 2, and in
 * the directed modes because both steps use the mode.  The flags are right too: only the second
 * step can overflow or underflow (a subnormal sum is exact, and a quotient or product next to a
 * subnormal is further from it than f32's half ulp).
 * NaN results are canonical here and positive, on x86 they are neither. */
#ifndef NICEMU_VLOOPS_X86_H
#define NICEMU_VLOOPS_X86_H

#include "vloops_fp.h"

/* Integer arithmetic on vectors is the compiler's. */
typedef u32 uvec __attribute__((vector_size(4 * L)));
typedef i32 svec __attribute__((vector_size(4 * L)));
typedef u64 uvec64 __attribute__((vector_size(4 * L)));
#define ZEROS ((uvec){0})

/* ---- instructions ------------------------------------------------------------------------- */

/* Flags and rounding are side effects that C compilers know nothing of: they replace one comparison
 * by another, or compute what nobody asked for.  So what rounds or raises is written as such, in
 * asm. */
#define ONE(name, R, T, insn)                                                                      \
    ALWAYS_INLINE R name(T a)                                                                      \
    {                                                                                              \
        R r;                                                                                       \
        __asm__ volatile(insn " %1, %0" : "=v"(r) : "v"(a));                                       \
        return r;                                                                                  \
    }
#define TWO(name, R, reg, T, insn)                                                                 \
    ALWAYS_INLINE R name(T a, T b)                                                                 \
    {                                                                                              \
        R r;                                                                                       \
        __asm__ volatile(insn " %2, %1, %0" : reg(r) : "v"(a), "v"(b));                            \
        return r;                                                                                  \
    }
/* L numbers of `bits` bits, made wider */
#define LOAD(name, R, bits, insn)                                                                  \
    ALWAYS_INLINE R name(const u8 *p)                                                              \
    {                                                                                              \
        R r;                                                                                       \
        __asm__ volatile(insn " %1, %0" : "=v"(r) : "m"(*(const u8(*)[bits / 8 * L]) p));          \
        return r;                                                                                  \
    }
TWO(add_f32, fvec, "=v", fvec, "vaddps")
TWO(sub_f32, fvec, "=v", fvec, "vsubps")
TWO(mul_f32, fvec, "=v", fvec, "vmulps")
TWO(div_f32, fvec, "=v", fvec, "vdivps")
TWO(add_f64, dvec, "=v", dvec, "vaddpd")
/* the first three raise NV for signalling NaNs only */
TWO(unordered, truth, TRUTH_REGISTER, fvec, "vcmpunordps")
TWO(equal_f32, truth, TRUTH_REGISTER, fvec, "vcmpeqps")
TWO(unequal_f32, truth, TRUTH_REGISTER, fvec, "vcmpneqps")
TWO(less_f32, truth, TRUTH_REGISTER, fvec, "vcmpltps")
TWO(at_most_f32, truth, TRUTH_REGISTER, fvec, "vcmpleps")
ONE(sqrt_f32, fvec, fvec, "vsqrtps")
ONE(widen_f32, dvec, half_fvec, "vcvtps2pd")
ONE(narrow_f64, half_fvec, dvec, "vcvtpd2ps")
ONE(narrow_f16, half_ivec, fvec, "vcvtps2ph $4,") /* 4: in the current rounding mode */
ONE(from_i32, fvec, ivec, "vcvtdq2ps")
ONE(to_i32, ivec, fvec, "vcvtps2dq")
ONE(to_i32_rtz, ivec, fvec, "vcvttps2dq")
LOAD(load_f16, fvec, 16, "vcvtph2ps") /* a signalling NaN raises NV */
LOAD(load_u8, ivec, 8, "vpmovzxbd")
LOAD(load_i8, ivec, 8, "vpmovsxbd")
LOAD(load_u16, ivec, 16, "vpmovzxwd")
LOAD(load_i16, ivec, 16, "vpmovsxwd")
/* a * b + c */
ALWAYS_INLINE fvec fused_f32(fvec a, fvec b, fvec c)
{
    __asm__ volatile("vfmadd213ps %2, %1, %0" : "+v"(a) : "v"(b), "v"(c));
    return a;
}

/* ---- lanes in and out of memory ----------------------------------------------------------- */

ALWAYS_INLINE ivec load_i32(const u8 *p)
{
    ivec r;
    memcpy(&r, p, sizeof r);
    return r;
}
ALWAYS_INLINE fvec load_f32(const u8 *p)
{
    return (fvec)load_i32(p);
}
ALWAYS_INLINE fvec load_bf16(const u8 *p)
{
    return (fvec)((uvec)load_u16(p) << 16);
}
ALWAYS_INLINE void store_i32(u8 *p, ivec v)
{
    memcpy(p, &v, sizeof v);
}
ALWAYS_INLINE void store_f32(u8 *p, fvec v)
{
    store_i32(p, (ivec)v);
}
ALWAYS_INLINE void store_f16(u8 *p, fvec v)
{
    half_ivec narrow = narrow_f16(v);
    memcpy(p, &narrow, sizeof narrow);
}

/* ---- the drivers -------------------------------------------------------------------------- */

enum { SIZE_f16 = 2, SIZE_bf16 = 2, SIZE_f32 = 4, VECTOR = 4 * L /* bytes */ };

/* Sources of a loop as it goes; sd, sa, sb: bytes of an element of d, a, b, sb = 0 without b. */
struct lanes {
    u8 *d;
    const u8 *a, *b;
    u32 sd, sa, sb;
    bool reads_d, copies; /* b: L copies of one number */
};
#define LANES_OF(sd, sa, sb, reads_d)                                                              \
    (struct lanes)                                                                                 \
    {                                                                                              \
        dv, av, bv, sd, sa, sb, reads_d, false                                                     \
    }
ALWAYS_INLINE struct lanes advance(struct lanes l, u32 n)
{
    l.d += n * l.sd;
    l.a += n * l.sa;
    l.b += l.copies ? 0 : n * l.sb;
    return l;
}

/* L copies of the number of `size` bytes at p */
ALWAYS_INLINE const u8 *splat(u8 out[VECTOR], const void *p, u32 size)
{
    u32 v = size == 4 ? *(const lane32 *)p : 0x10001u * *(const lane16 *)p;
    store_i32(out, (ivec)(ZEROS + v));
    return out;
}

/* The last n elements, padded to L with ones, which raise no flag; results go to t.d. */
struct tail {
    _Alignas(VECTOR) u8 d[VECTOR], a[VECTOR], b[VECTOR];
};
ALWAYS_INLINE void pad(u8 out[VECTOR], const u8 *p, u64 n, u32 size)
{
    store_i32(out, load_first((ivec)(ZEROS + (size == 4 ? 0x3f800000 : 0x3c003c00)), p, n, size));
}
ALWAYS_INLINE struct lanes tail_of(struct lanes l, u64 n, struct tail *t)
{
    pad(t->a, l.a, n, l.sa);
    if (l.sb)
        pad(t->b, l.b, n, l.sb);
    if (l.reads_d)
        pad(t->d, l.d, n, l.sd);
    l.d = t->d, l.a = t->a, l.b = t->b;
    return l;
}

/* Steps that store their L results themselves. */
typedef void (*step_fn)(struct hart *h, u8 *d, const u8 *a, const u8 *b);
ALWAYS_INLINE void by_vectors(struct hart *h, struct lanes l, u64 n, step_fn step)
{
    for (; n >= L; n -= L, l = advance(l, L))
        step(h, l.d, l.a, l.b);
    if (n) {
        struct tail t;
        struct lanes last = tail_of(l, n, &t);
        step(h, last.d, last.a, last.b);
        store_first(l.d, t.d, n, l.sd);
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
ALWAYS_INLINE void store(u8 *p, fvec v, u32 size)
{
    if (size == SIZE_f16)
        store_f16(p, v);
    else
        store_f32(p, v);
}
/* 2 * L.  Register groups are written a vector at a time, because a later load of as many bytes
 * would otherwise wait for two stores to reach the cache. */
ALWAYS_INLINE void store_two(u8 *p, fvec x, fvec y, u32 size)
{
    if (size == SIZE_f16) {
        half_ivec low = narrow_f16(x);
        half_ivec high = narrow_f16(y);
        store_i32(p, join_i16(low, high));
    } else {
        store_f32(p, x);
        store_f32(p + VECTOR, y);
    }
}

/* Steps whose L results are stored here as f16 or f32; NaNs, being rare, are made canonical
 * afterwards.  The comparison raises NV for a signalling NaN, which only a conversion passes on. */
typedef fvec (*fp_step_fn)(struct hart *h, const u8 *d, const u8 *a, const u8 *b);
/* 2 * L results; did a NaN come up among them? */
ALWAYS_INLINE truth two_vectors(struct hart *h, struct lanes l, fp_step_fn step)
{
    struct lanes m = advance(l, L);
    fvec x = step(h, l.d, l.a, l.b), y = step(h, m.d, m.a, m.b);
    store_two(l.d, x, y, l.sd);
    return unordered(x, y);
}

ALWAYS_INLINE void fp_by_vectors(struct hart *h, struct lanes l, u64 n, fp_step_fn step)
{
    const struct lanes whole = l;
    const u64 total = n;
    truth nan = {0};
    for (; n >= 4 * L; n -= 4 * L, l = advance(l, 4 * L)) {
        nan = either(nan, two_vectors(h, l, step));
        nan = either(nan, two_vectors(h, advance(l, 2 * L), step));
    }
    if (n >= 2 * L) {
        nan = either(nan, two_vectors(h, l, step));
        n -= 2 * L;
        l = advance(l, 2 * L);
    }
    if (n >= L) {
        fvec x = step(h, l.d, l.a, l.b);
        nan = either(nan, unordered(x, x));
        store(l.d, x, l.sd);
        n -= L;
        l = advance(l, L);
    }
    if (n) {
        struct tail t;
        struct lanes last = tail_of(l, n, &t);
        fvec x = step(h, last.d, last.a, last.b);
        nan = either(nan, unordered(x, x));
        store(t.d, x, l.sd);
        store_first(l.d, t.d, n, l.sd);
    }
    if (unlikely(any(nan))) {
        if (l.sd == SIZE_f16)
            canonical_f16(whole.d, total);
        else
            canonical_f32(whole.d, total);
    }
}

/* ---- arithmetic --------------------------------------------------------------------------- */

ALWAYS_INLINE fvec negated(fvec v)
{
    return (fvec)((uvec)v ^ 0x80000000);
}

/* x86 keeps quiet about infinity * 0 + NaN. */
static __attribute__((noinline)) void undefined_product(struct hart *h, fvec x, fvec y)
{
    uvec a = (uvec)x << 1, b = (uvec)y << 1; /* without their signs */
    const u32 inf = 0xff000000;
    for (u32 i = 0; i < L; i++)
        if ((a[i] == inf && !b[i]) || (!a[i] && b[i] == inf))
            h->fflags |= NV;
}

/* f64 as f32, rounded to odd: what is cut off leaves its mark in the lowest bit. */
ALWAYS_INLINE half_fvec to_odd(dvec v)
{
    const u64 cut = (1 << 29) - 1;
    uvec64 bits = (uvec64)v;
    bits = (bits | ((bits & cut) + cut)) & ~cut;
    return narrow_f64((dvec)bits);
}

/* x * y + z of f16 numbers, such that rounding it to f16 is the only rounding: the product is exact
 * in f32; the sum in f64 is exact unless its terms are so far apart that the smaller one only
 * decides between two neighbours of the larger, which has 11 bits or overflows; then to odd. */
ALWAYS_INLINE fvec fma_f16(fvec x, fvec y, fvec z)
{
    fvec product = mul_f32(x, y);
    half_fvec low = to_odd(add_f64(widen_f32(lower(product)), widen_f32(lower(z))));
    half_fvec high = to_odd(add_f64(widen_f32(upper(product)), widen_f32(upper(z))));
    return join_f32(low, high);
}
ALWAYS_INLINE fvec fma_f32(struct hart *h, fvec x, fvec y, fvec z)
{
    fvec r = fused_f32(x, y, z);
    if (unlikely(any(unordered(r, r))))
        undefined_product(h, x, y);
    return r;
}

enum { HALF_f16 = true, HALF_f32 = false };

#define FP_LANES(name, sew, C, D, A, B, reads_b, reads_d, expr)                                    \
    ALWAYS_INLINE fvec name##_##sew##_step(struct hart *h, const u8 *dp, const u8 *ap,             \
                                           const u8 *bp)                                           \
    {                                                                                              \
        enum { HALF = HALF_##C };                                                                  \
        fvec a = load_##A(ap);                                                                     \
        fvec b = reads_b ? load_##B(bp) : a, d = reads_d ? load_##D(dp) : a;                       \
        (void)b, (void)d, (void)h;                                                                 \
        return expr;                                                                               \
    }                                                                                              \
    static void name##_##sew(LOOP_PARAMETERS)                                                      \
    {                                                                                              \
        struct lanes l = LANES_OF(SIZE_##D, SIZE_##A, reads_b ? SIZE_##B : 0, reads_d);            \
        fp_by_vectors(h, l, n, name##_##sew##_step);                                               \
    }                                                                                              \
    static __attribute__((unused)) void name##_##sew##_scalar(LOOP_PARAMETERS)                     \
    {                                                                                              \
        struct lanes l = LANES_OF(SIZE_##D, SIZE_##A, SIZE_##B, reads_d);                          \
        _Alignas(VECTOR) u8 copies[VECTOR];                                                        \
        l.b = splat(copies, bv, SIZE_##B);                                                         \
        l.copies = true;                                                                           \
        fp_by_vectors(h, l, n, name##_##sew##_step);                                               \
    }
#define WITH_SCALAR(name_sew) name_sew##_scalar
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
    ALWAYS_INLINE void name##_##sew##_step(struct hart *h, u8 *dp, const u8 *ap, const u8 *bp)     \
    {                                                                                              \
        fvec a = load_##F(ap), b = load_##F(bp);                                                   \
        (void)h;                                                                                   \
        store_truths(dp, expr);                                                                    \
    }                                                                                              \
    static void name##_##sew(LOOP_PARAMETERS)                                                      \
    {                                                                                              \
        by_vectors(h, LANES_OF(1, SIZE_##F, SIZE_##F, false), n, name##_##sew##_step);             \
    }
#define EQ(x, y) equal_f32(x, y)
#define NE(x, y) unequal_f32(x, y)
#define LT(x, y) less_f32(x, y)
#define LE(x, y) at_most_f32(x, y)

/* ---- f32 to bf16 -------------------------------------------------------------------------- */

/* f32 bits, rounded to bf16 and still in the upper half. */
ALWAYS_INLINE uvec bf16_round(uvec bits, int rm)
{
    uvec negative = (uvec)((svec)bits >> 31);
    switch (rm) {
    case RNE:
        return bits + 0x7fff + (bits >> 16 & 1);
    case RDN:
        return bits + (negative & 0xffff);
    case RUP:
        return bits + (~negative & 0xffff);
    default: /* RTZ */
        return bits;
    }
}

/* Is there a NaN, an infinity, what may overflow, or a subnormal number? */
ALWAYS_INLINE bool bf16_rare(uvec x, uvec y)
{
    uvec a = x & 0x7fffffff, b = y & 0x7fffffff; /* signed numbers in the order of magnitudes */
    truth large = above_i32(max_i32((ivec)a, (ivec)b), (ivec)(ZEROS + 0x7f7effff));
    a += 0x7fffffff, b += 0x7fffffff; /* the same, but zero is the greatest */
    truth small = above_i32((ivec)(ZEROS + 0x807fffff), min_i32((ivec)a, (ivec)b));
    return any(either(large, small));
}

/* Two vectors at a time by integer code; with a rare number among them they are left to the exact
 * loop, which knows its flags. */
ALWAYS_INLINE void narrow_bf16(LOOP_PARAMETERS, int rm)
{
    const vloop_fn exactly = vec_loops_portable.loop[L_vfncvtbf16_f_f].fn[1];
    u8 *d = dv;
    const u8 *a = av;
    uvec seen = ZEROS;
    for (; n >= 2 * L; n -= 2 * L, a += 2 * VECTOR, d += VECTOR) {
        uvec x = (uvec)load_i32(a), y = (uvec)load_i32(a + VECTOR);
        if (unlikely(bf16_rare(x, y))) {
            exactly(h, d, a, bv, 2 * L);
            continue;
        }
        seen |= x | y;
        store_i32(d, upper_halves((ivec)bf16_round(x, rm), (ivec)bf16_round(y, rm)));
    }
    for (u64 part; n; n -= part, a += 4 * part, d += 2 * part) {
        part = n < L ? n : L;
        uvec x = (uvec)(part < L ? load_first((ivec)ZEROS, a, part, 4) : load_i32(a));
        if (unlikely(bf16_rare(x, x))) {
            exactly(h, d, a, bv, part);
            continue;
        }
        seen |= x;
        ivec result = upper_halves((ivec)bf16_round(x, rm), (ivec)ZEROS);
        if (part < L)
            store_first(d, (const u8 *)&result, part, 2);
        else
            memcpy(d, &result, 2 * L);
    }
    if (any(above_i32((ivec)(seen & 0xffff), (ivec)ZEROS)))
        h->fflags |= NX;
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

/* L integers as f32: all of 8 and 16 bits are exact, those of 32 bits are rounded once. */
ALWAYS_INLINE fvec from_ints(const u8 *p, u32 bits, bool is_signed)
{
    if (bits == 8)
        return from_i32(is_signed ? load_i8(p) : load_u8(p));
    if (bits == 16)
        return from_i32(is_signed ? load_i16(p) : load_u16(p));
    if (is_signed)
        return from_i32(load_i32(p));
    uvec v = (uvec)load_i32(p);
    fvec high = from_i32((ivec)(v >> 16)), low = from_i32((ivec)(v & 0xffff));
    return add_f32(mul_f32(high, splat_f32(65536)), low);
}

#define INT_TO_FP(name, sew, D, abits, is_signed)                                                  \
    ALWAYS_INLINE void name##_##sew##_step(struct hart *h, u8 *dp, const u8 *ap, const u8 *bp)     \
    {                                                                                              \
        (void)h, (void)bp;                                                                         \
        store_##D(dp, from_ints(ap, abits, is_signed));                                            \
    }                                                                                              \
    static void name##_##sew(LOOP_PARAMETERS)                                                      \
    {                                                                                              \
        by_vectors(h, LANES_OF(SIZE_##D, abits / 8, 0, false), n, name##_##sew##_step);            \
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
    ALWAYS_INLINE void name##_##sew##_step(struct hart *h, u8 *dp, const u8 *ap, const u8 *bp)     \
    {                                                                                              \
        const struct range r = int_range(dbits, is_signed);                                        \
        fvec a = load_##A(ap);                                                                     \
        truth least = at_most_f32(splat_f32(r.lo), a), most = at_most_f32(a, splat_f32(r.hi));     \
        if (unlikely(!all(both(least, most)))) { /* a NaN has raised NV, as it does there */       \
            vec_loops_portable.loop[L_##name].fn[sew / 16](h, dp, ap, bp, L);                      \
            return;                                                                                \
        }                                                                                          \
        store_ints(dp, (mode) == RTZ ? to_i32_rtz(a) : to_i32(a), dbits);                          \
    }                                                                                              \
    static void name##_##sew(LOOP_PARAMETERS)                                                      \
    {                                                                                              \
        by_vectors(h, LANES_OF(dbits / 8, SIZE_##A, 0, false), n, name##_##sew##_step);            \
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

/* ---- masks -------------------------------------------------------------------------------- */

#define MERGE(bits)                                                                                \
    static void merge_##bits(void *dv, const void *av, const void *bv, const u8 *mask, u64 n)      \
    {                                                                                              \
        enum { STEP = 8 * VECTOR / bits };                                                         \
        u8 *d = dv;                                                                                \
        const u8 *a = av, *b = bv;                                                                 \
        u64 i = 0;                                                                                 \
        for (; i + STEP <= n; i += STEP, d += VECTOR, a += VECTOR, b += VECTOR)                    \
            store_i32(d, choose(load_i32(a), load_i32(b), mask, i, bits));                         \
        for (; i < n; i++, d += bits / 8, a += bits / 8, b += bits / 8)                            \
            *(lane##bits *)d = *(const lane##bits *)(mask[i / 8] >> i % 8 & 1 ? b : a);            \
    }
MERGE(8)
MERGE(16)
MERGE(32)
MERGE(64)

static void pack(u8 *mask, const u8 *truth, u64 n)
{
    for (; n >= VECTOR; n -= VECTOR, truth += VECTOR, mask += VECTOR / 8)
        pack_piece(mask, load_i32(truth));
    pack_bytes(mask, truth, n);
}

static void copy(void *restrict dv, const void *restrict sv, u64 n)
{
    u8 *d = dv;
    const u8 *s = sv;
    for (; n >= 64; n -= 64, d += 64, s += 64)
        for (u32 i = 0; i < 64; i += VECTOR)
            store_i32(d + i, load_i32(s + i));
    if (n)
        memcpy(d, s, n);
}

#endif
