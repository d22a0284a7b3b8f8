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
typedef u16 uvec16 __attribute__((vector_size(4 * L)));
typedef u64 uvec64 __attribute__((vector_size(4 * L)));
#define ZEROS ((uvec){0})
#define ZEROS16 ((uvec16){0})

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
ONE(widen_f16, fvec, half_ivec, "vcvtph2ps") /* a signalling NaN raises NV */
ONE(narrow_f16, half_ivec, fvec, "vcvtps2ph $4,") /* 4: in the current rounding mode */
ONE(from_i32, fvec, ivec, "vcvtdq2ps")
ONE(to_i32, ivec, fvec, "vcvtps2dq")
ONE(to_i32_rtz, ivec, fvec, "vcvttps2dq")
LOAD(load_f16, fvec, 16, "vcvtph2ps") /* as widen_f16 */
LOAD(load_u8, ivec, 8, "vpmovzxbd")
LOAD(load_i8, ivec, 8, "vpmovsxbd")
LOAD(load_u16, ivec, 16, "vpmovzxwd")
LOAD(load_i16, ivec, 16, "vpmovsxwd")
/* a * b + c */
ALWAYS_INLINE fvec fused_f32(fvec a, fvec b, fvec c)
{
    __asm__ volatile("vfmadd231ps %2, %1, %0" : "+v"(c) : "v"(a), "v"(b));
    return c;
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

/* What a loop works on; sd, sa, sb: bytes of an element of d, a, b, sb = 0 without b. */
struct form {
    u32 sd, sa, sb;
    bool reads_d;
    bool one_b; /* b is one number for all elements */
    vloop_fn vv; /* the same with as many b as elements */
};
struct lanes {
    u8 *d;
    const u8 *a, *b;
};
ALWAYS_INLINE struct lanes advance(struct lanes l, const struct form *f, u32 n)
{
    l.d += n * f->sd;
    l.a += n * f->sa;
    if (!f->sb)
        l.b = NULL;
    else if (!f->one_b)
        l.b += n * f->sb;
    return l;
}

/* L copies of a number; the same as f32 */
ALWAYS_INLINE ivec splat(const void *p, u32 size)
{
    return (ivec)(ZEROS + (size == 4 ? *(const lane32 *)p : 0x10001u * *(const lane16 *)p));
}
ALWAYS_INLINE fvec number_f32(const void *p)
{
    return (fvec)splat(p, 4);
}
ALWAYS_INLINE fvec number_bf16(const void *p)
{
    return (fvec)((uvec)splat(p, 2) << 16);
}
ALWAYS_INLINE fvec number_f16(const void *p)
{
    ivec copies = splat(p, 2);
    half_ivec half;
    memcpy(&half, &copies, sizeof half);
    return widen_f16(half);
}

/* The first n of L elements, and ones, which raise no flag, in the place of the others. */
ALWAYS_INLINE void pad(u8 out[VECTOR], const u8 *p, u64 n, u32 size)
{
    store_i32(out, load_first((ivec)(ZEROS + (size == 4 ? 0x3f800000 : 0x3c003c00)), p, n, size));
}
/* The last n < L elements of a loop. */
static __attribute__((noinline)) void last_lanes(LOOP_PARAMETERS, const struct form *f)
{
    u8 d[VECTOR], a[VECTOR], b[VECTOR];
    pad(a, av, n, f->sa);
    if (f->one_b)
        store_i32(b, splat(bv, f->sb));
    if (f->sb)
        pad(b, f->one_b ? b : bv, n, f->sb);
    if (f->reads_d)
        pad(d, dv, n, f->sd);
    f->vv(h, d, a, b, L);
    store_first(dv, d, n, f->sd);
}

/* Steps that store their L results themselves. */
typedef void (*step_fn)(struct hart *h, u8 *d, const u8 *a, const u8 *b);
ALWAYS_INLINE void by_vectors(LOOP_PARAMETERS, const struct form *f, step_fn step)
{
    struct lanes l = {dv, av, bv};
    for (; n >= L; n -= L, l = advance(l, f, L))
        step(h, l.d, l.a, l.b);
    if (n)
        last_lanes(h, l.d, l.a, l.b, n, f);
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

/* Steps whose L results are stored here as f16 or f32.  number: L copies of the one b.  nan: raise
 * the flags too that the host does not raise where the result is a NaN. */
typedef fvec (*fp_step_fn)(struct hart *h, struct lanes l, fvec number, bool nan);

/* 1 or 2 vectors; where there are NaNs.  The comparison raises NV for signalling NaNs, which only a
 * conversion passes on. */
ALWAYS_INLINE truth fp_vectors(struct hart *h, struct lanes l, fvec number, const u32 vectors,
                               const struct form *f, fp_step_fn step)
{
    fvec x = step(h, l, number, false), y = x;
    if (vectors == 2) {
        y = step(h, advance(l, f, L), number, false);
        store_two(l.d, x, y, f->sd);
    } else {
        store(l.d, x, f->sd);
    }
    return unordered(x, y);
}

/* 1 or 4 vectors of f32; false, with nothing stored, when a NaN has come up. */
ALWAYS_INLINE bool fp_vectors_unless_nan(struct hart *h, struct lanes l, fvec number,
                                         const u32 vectors, const struct form *f, fp_step_fn step)
{
    fvec r[4];
    for (u32 i = 0; i < vectors; i++)
        r[i] = step(h, advance(l, f, i * L), number, false);
    truth nan = unordered(r[0], r[vectors - 1]);
    if (vectors == 4)
        nan = either(nan, unordered(r[1], r[2]));
    if (unlikely(any(nan)))
        return false;
    for (u32 i = 0; i < vectors; i++)
        store_f32(l.d + i * VECTOR, r[i]);
    return true;
}

/* The end of a loop of n elements that stands after its last whole vector: the NaNs up to there are
 * made canonical. */
static __attribute__((noinline)) void end_with_nans(LOOP_PARAMETERS, const struct form *f)
{
    u64 last = n % L, whole = n - last;
    u8 *d = (u8 *)dv - whole * f->sd;
    lane16 *d16 = (lane16 *)d;
    lane32 *d32 = (lane32 *)d;
    for (u64 i = 0; i < whole; i++)
        if (f->sd == SIZE_f16)
            d16[i] = (d16[i] & 0x7fff) > 0x7c00 ? 0x7e00 : d16[i];
        else
            d32[i] = (d32[i] & 0x7fffffff) > 0x7f800000 ? 0x7fc00000 : d32[i];
    if (last)
        last_lanes(h, dv, av, bv, last, f);
}

/* NaNs, being rare, are made canonical afterwards. */
ALWAYS_INLINE void fp_by_vectors(LOOP_PARAMETERS, fvec number, const struct form *f,
                                 fp_step_fn step)
{
    struct lanes l = {dv, av, bv};
    const u64 total = n;
    truth nan = {0};
    for (; n >= 4 * L; n -= 4 * L, l = advance(l, f, 4 * L)) {
        nan = either(nan, fp_vectors(h, l, number, 2, f, step));
        nan = either(nan, fp_vectors(h, advance(l, f, 2 * L), number, 2, f, step));
    }
    if (n >= 2 * L) {
        nan = either(nan, fp_vectors(h, l, number, 2, f, step));
        n -= 2 * L;
        l = advance(l, f, 2 * L);
    }
    if (n >= L) {
        nan = either(nan, fp_vectors(h, l, number, 1, f, step));
        n -= L;
        l = advance(l, f, L);
    }
    if (unlikely(any(nan)))
        end_with_nans(h, l.d, l.a, l.b, total, f);
    else if (n)
        last_lanes(h, l.d, l.a, l.b, n, f);
}

/* The same with results of f32, for steps to be done again where a NaN has come up: the first one
 * leaves all that follows to `again`. */
ALWAYS_INLINE void fp_unless_nan(LOOP_PARAMETERS, fvec number, const struct form *f,
                                 fp_step_fn step, vloop_fn again)
{
    struct lanes l = {dv, av, bv};
    for (; n >= 4 * L && fp_vectors_unless_nan(h, l, number, 4, f, step); n -= 4 * L)
        l = advance(l, f, 4 * L);
    for (; n >= L && n < 4 * L && fp_vectors_unless_nan(h, l, number, 1, f, step); n -= L)
        l = advance(l, f, L);
    if (unlikely(n >= L))
        again(h, l.d, l.a, l.b, n);
    else if (n)
        last_lanes(h, l.d, l.a, l.b, n, f);
}

ALWAYS_INLINE fvec canonical(fvec v)
{
    uvec nan = (uvec)((svec)((uvec)v & 0x7fffffff) > 0x7f800000);
    return (fvec)(((uvec)v & ~nan) | (nan & 0x7fc00000));
}
ALWAYS_INLINE void fp_again(LOOP_PARAMETERS, fvec number, const struct form *f, fp_step_fn step)
{
    struct lanes l = {dv, av, bv};
    for (; n >= L; n -= L, l = advance(l, f, L))
        store_f32(l.d, canonical(step(h, l, number, true)));
    if (n)
        last_lanes(h, l.d, l.a, l.b, n, f);
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
ALWAYS_INLINE fvec fma_f32(struct hart *h, fvec x, fvec y, fvec z, bool nan)
{
    if (nan)
        undefined_product(h, x, y);
    return fused_f32(x, y, z);
}

enum { HALF_f16 = true, HALF_f32 = false };

/* Only fma_f32 must be done again for NaNs. */
#define FP_LOOP(loop, step, number, C, reads_d, ...)                                               \
    static const struct form loop##_form = {__VA_ARGS__};                                          \
    static __attribute__((noinline, unused)) void loop##_again(LOOP_PARAMETERS)                    \
    {                                                                                              \
        fp_again(h, dv, av, bv, n, number, &loop##_form, step);                                    \
    }                                                                                              \
    static __attribute__((unused)) void loop(LOOP_PARAMETERS)                                      \
    {                                                                                              \
        if (HALF_##C == HALF_f32 && reads_d)                                                       \
            fp_unless_nan(h, dv, av, bv, n, number, &loop##_form, step, loop##_again);             \
        else                                                                                       \
            fp_by_vectors(h, dv, av, bv, n, number, &loop##_form, step);                           \
    }
#define FP_LANES(name, sew, C, D, A, B, reads_b, reads_d, expr)                                    \
    ALWAYS_INLINE fvec name##_##sew##_step_of(struct hart *h, struct lanes l, fvec b, bool nan)    \
    {                                                                                              \
        enum { HALF = HALF_##C };                                                                  \
        fvec a = load_##A(l.a);                                                                    \
        fvec d = reads_d ? load_##D(l.d) : a;                                                      \
        (void)b, (void)d, (void)h, (void)nan;                                                      \
        return expr;                                                                               \
    }                                                                                              \
    ALWAYS_INLINE fvec name##_##sew##_step(struct hart *h, struct lanes l, fvec none, bool nan)    \
    {                                                                                              \
        return name##_##sew##_step_of(h, l, reads_b ? load_##B(l.b) : none, nan);                  \
    }                                                                                              \
    static void name##_##sew(LOOP_PARAMETERS);                                                     \
    FP_LOOP(name##_##sew, name##_##sew##_step, (fvec)ZEROS, C, reads_d, SIZE_##D, SIZE_##A,        \
            reads_b ? SIZE_##B : 0, reads_d, false, name##_##sew)                                  \
    FP_LOOP(name##_##sew##_scalar, name##_##sew##_step_of, NUMBER(B), C, reads_d, SIZE_##D,        \
            SIZE_##A, SIZE_##B, reads_d, true, name##_##sew)
/* Without elements nothing may raise a flag, not even the number's conversion. */
#define NUMBER(B) (n ? number_##B(bv) : (fvec)ZEROS)
#define WITH_SCALAR(name_sew) name_sew##_scalar
#define SOFT_LANES(name, sew, ...) void soft_##name##_##sew(LOOP_PARAMETERS);
#define SOFT_TRUTHS(name, sew, ...) SOFT_LANES(name, sew)
#define ADD(x, y) add_f32(x, y)
#define SUB(x, y) sub_f32(x, y)
#define MUL(x, y) mul_f32(x, y)
#define DIV(x, y) div_f32(x, y)
#define SQRT(x) sqrt_f32(x)
#define FMA(x, y, z) (HALF ? fma_f16(x, y, z) : fma_f32(h, x, y, z, nan))
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
        static const struct form form = {1, SIZE_##F, SIZE_##F, false, false, name##_##sew};       \
        by_vectors(h, dv, av, bv, n, &form, name##_##sew##_step);                                  \
    }
#define EQ(x, y) equal_f32(x, y)
#define NE(x, y) unequal_f32(x, y)
#define LT(x, y) less_f32(x, y)
#define LE(x, y) at_most_f32(x, y)

/* ---- f32 to bf16 -------------------------------------------------------------------------- */

/* 2 * L numbers of f32 as halves of their bits, in the order of pack_u16. */
struct halves {
    uvec16 upper, lower;
};
ALWAYS_INLINE struct halves load_halves(const u8 *p)
{
    uvec x = (uvec)load_i32(p), y = (uvec)load_i32(p + VECTOR);
    return (struct halves){(uvec16)pack_u16((ivec)(x >> 16), (ivec)(y >> 16)),
                           (uvec16)pack_u16((ivec)(x & 0xffff), (ivec)(y & 0xffff))};
}

/* carry of x + y + 1 */
ALWAYS_INLINE uvec16 carry(uvec16 x, uvec16 y)
{
    return (uvec16)mean_u16((ivec)x, (ivec)y) >> 15;
}
ALWAYS_INLINE uvec16 bf16_round(struct halves v, int rm)
{
    uvec16 negative = v.upper >> 15;
    switch (rm) {
    case RNE:
        return v.upper + carry(v.lower, (v.upper & 1) | 0x7ffe);
    case RDN:
        return v.upper + (carry(v.lower, ZEROS16 + 0xfffe) & negative);
    case RUP:
        return v.upper + (carry(v.lower, ZEROS16 + 0xfffe) & ~negative);
    default: /* RTZ */
        return v.upper;
    }
}

/* Is there a NaN, an infinity, what may overflow, or a subnormal number? */
static __attribute__((noinline)) bool bf16_rare(struct halves v, struct halves w)
{
    uvec16 a = v.upper << 1, b = w.upper << 1; /* without their signs */
    ivec most = max_u16((ivec)a, (ivec)b);
    a += (uvec16)(v.lower == 0), b += (uvec16)(w.lower == 0); /* zero becomes the greatest */
    ivec least = min_u16((ivec)a, (ivec)b);
    ivec large = excess_u16(most, (ivec)(ZEROS16 + 2 * 0x7f7e));
    ivec small = excess_u16((ivec)(ZEROS16 + 0xff), least);
    return any_bit(large | small);
}
/* The same in fewer steps, and yes for zeros too: may there be one?  Exponents are 1..253 where
 * there is none. */
ALWAYS_INLINE bool bf16_maybe_rare(struct halves v, struct halves w)
{
    uvec16 a = (v.upper << 1) - 0x100, b = (w.upper << 1) - 0x100;
    return any_bit(excess_u16(max_u16((ivec)a, (ivec)b), (ivec)(ZEROS16 + 0xfcff)));
}

/* 2 * L numbers or twice as many by integer code; with a rare one among them they are left to the
 * exact loop, which knows its flags.  Returns lower halves seen. */
ALWAYS_INLINE uvec16 narrow_pairs(LOOP_PARAMETERS, const u32 pairs, int rm)
{
    u8 *d = dv;
    const u8 *a = av;
    struct halves v = load_halves(a), w = pairs == 2 ? load_halves(a + 2 * VECTOR) : v;
    if (unlikely(bf16_maybe_rare(v, w)) && bf16_rare(v, w)) {
        vec_loops_portable.loop[L_vfncvtbf16_f_f].fn[1](h, d, a, bv, n);
        return ZEROS16;
    }
    store_i32(d, unpacked((ivec)bf16_round(v, rm)));
    if (pairs == 2)
        store_i32(d + VECTOR, unpacked((ivec)bf16_round(w, rm)));
    return v.lower | w.lower;
}
/* The last n < 2 * L numbers, with zeros, which raise no flag, after them. */
static __attribute__((noinline)) void narrow_last(LOOP_PARAMETERS, vloop_fn loop)
{
    u8 a[2 * VECTOR] = {0}, d[VECTOR];
    memcpy(a, av, 4 * n);
    loop(h, d, a, bv, 2 * L);
    memcpy(dv, d, 2 * n);
}
ALWAYS_INLINE void narrow_bf16(LOOP_PARAMETERS, int rm, vloop_fn loop)
{
    u8 *d = dv;
    const u8 *a = av;
    uvec16 seen = ZEROS16;
    for (; n >= 4 * L; n -= 4 * L, a += 4 * VECTOR, d += 2 * VECTOR)
        seen |= narrow_pairs(h, d, a, bv, 4 * L, 2, rm);
    if (n >= 2 * L) {
        seen |= narrow_pairs(h, d, a, bv, 2 * L, 1, rm);
        n -= 2 * L, a += 2 * VECTOR, d += VECTOR;
    }
    if (any_bit((ivec)seen))
        h->fflags |= NX;
    if (n)
        narrow_last(h, d, a, bv, n, loop);
}
#define DEF_BF1_N(name, expr)                                                                      \
    static void name##_16(LOOP_PARAMETERS)                                                         \
    {                                                                                              \
        switch (h->frm) {                                                                          \
        case RNE:                                                                                  \
            narrow_bf16(h, dv, av, bv, n, RNE, name##_16);                                         \
            return;                                                                                \
        case RDN:                                                                                  \
            narrow_bf16(h, dv, av, bv, n, RDN, name##_16);                                         \
            return;                                                                                \
        case RUP:                                                                                  \
            narrow_bf16(h, dv, av, bv, n, RUP, name##_16);                                         \
            return;                                                                                \
        default:                                                                                   \
            narrow_bf16(h, dv, av, bv, n, RTZ, name##_16);                                         \
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
        static const struct form form = {SIZE_##D, abits / 8, 0, false, false, name##_##sew};      \
        by_vectors(h, dv, av, bv, n, &form, name##_##sew##_step);                                  \
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
        static const struct form form = {dbits / 8, SIZE_##A, 0, false, false, name##_##sew};      \
        by_vectors(h, dv, av, bv, n, &form, name##_##sew##_step);                                  \
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
