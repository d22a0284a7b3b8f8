/* fp.h: IEEE 754 arithmetic in integer code, exact to the bit and to the flag on every host.
 * Owns: what the rows of number.def mean, rounding (fp_round, the only place), what a NaN result
 * is (fp_nan, the only place), and the operations.  Knows nothing of harts: the rounding mode and
 * the flags are parameters.  The host's FP unit belongs in exec_f_avx2.c and the vector loops.
 *
 * Two ways to call: fp_add(&fp_f16, ...) is inlined and folds its constant format; f16_add(...)
 * is the same code, once, out of line (fp.c).
 *
 * Numbers are right-aligned bit patterns in a u64; bits above the format's width must be 0.
 * Flags are ORed into *flags.  Tininess is detected after rounding; NaN results are canonical. */
#ifndef NICEMU_FP_H
#define NICEMU_FP_H

#include "base.h"

/* Rounding modes as encoded in rm and frm; ROD (to odd) exists only inside instructions. */
enum rounding { RNE = 0, RTZ = 1, RDN = 2, RUP = 3, RMM = 4, FP_ROD = 6, RM_DYNAMIC = 7 };
/* fflags bits */
enum fflag { NX = 1, UF = 2, OF = 4, DZ = 8, NV = 16 };

/* ---- the formats ------------------------------------------------------------------------ */

struct fp_format {
    u8 width, ebits, mbits; /* bits: all, exponent, stored mantissa */
    u64 nan; /* the canonical NaN */
};

/* Here and not in fp.c, so that the compiler sees the constants. */
#define NUMBER(name, ...) static const struct fp_format fp_##name = {__VA_ARGS__};
#include "number.def"
#undef NUMBER

#define FP_INLINE static inline __attribute__((always_inline))

FP_INLINE u64 fp_mask(const struct fp_format *f)
{
    return ~0ull >> (64 - f->width);
}
FP_INLINE u64 fp_sign_bit(const struct fp_format *f)
{
    return 1ull << (f->width - 1);
}
FP_INLINE u64 fp_inf(const struct fp_format *f)
{
    return ((1ull << f->ebits) - 1) << f->mbits;
}
FP_INLINE u64 fp_magnitude(const struct fp_format *f, u64 a)
{
    return a & (fp_sign_bit(f) - 1);
}
FP_INLINE bool fp_sign(const struct fp_format *f, u64 a)
{
    return a >> (f->width - 1) & 1;
}
FP_INLINE i32 fp_bias(const struct fp_format *f)
{
    return (1 << (f->ebits - 1)) - 1;
}
FP_INLINE bool fp_is_nan(const struct fp_format *f, u64 a)
{
    return fp_magnitude(f, a) > fp_inf(f);
}
FP_INLINE bool fp_is_inf(const struct fp_format *f, u64 a)
{
    return fp_magnitude(f, a) == fp_inf(f);
}
FP_INLINE bool fp_is_zero(const struct fp_format *f, u64 a)
{
    return fp_magnitude(f, a) == 0;
}
/* The quiet bit is the mantissa's highest. */
FP_INLINE bool fp_is_snan(const struct fp_format *f, u64 a)
{
    return fp_is_nan(f, a) && !(a >> (f->mbits - 1) & 1);
}

/* ---- in a 64-bit register: NaN-boxed, all ones above the number ------------------------- */

/* A badly boxed number reads as the canonical NaN. */
FP_INLINE u64 fp_unbox(const struct fp_format *f, u64 r)
{
    return likely(r >= ~fp_mask(f)) ? r & fp_mask(f) : f->nan;
}
FP_INLINE u64 fp_box(const struct fp_format *f, u64 a)
{
    return a | ~fp_mask(f);
}

/* ---- NaN policy ------------------------------------------------------------------------- */

/* Result of an operation with a NaN among a, b (pass the same twice when there is one). */
FP_INLINE u64 fp_nan(const struct fp_format *f, u64 a, u64 b, u32 *flags)
{
    if (fp_is_snan(f, a) || fp_is_snan(f, b))
        *flags |= NV;
    return f->nan;
}
/* Result of an operation that is not defined for its numbers. */
FP_INLINE u64 fp_invalid(const struct fp_format *f, u32 *flags)
{
    *flags |= NV;
    return f->nan;
}

/* ---- unpacking and rounding ------------------------------------------------------------- */

/* A finite number other than 0: sig * 2^(exp - 63), with bit 63 of sig set. */
struct fp_parts {
    u64 sig;
    i32 exp;
    bool sign;
};

FP_INLINE struct fp_parts fp_unpack(const struct fp_format *f, u64 a)
{
    struct fp_parts p;
    u64 m = fp_magnitude(f, a);
    i32 e = (i32)(m >> f->mbits);
    p.sign = fp_sign(f, a);
    if (likely(e)) {
        p.sig = (m | 1ull << f->mbits) << (63 - f->mbits); /* the exponent's bits fall off */
        p.exp = e - fp_bias(f);
    } else {
        int z = __builtin_clzll(m);
        p.sig = m << z;
        p.exp = 1 - fp_bias(f) + (63 - f->mbits) - z;
    }
    return p;
}

/* v >> n, with every bit that falls off kept as a sticky lowest bit. */
FP_INLINE u64 fp_shift64(u64 v, u32 n)
{
    if (n >= 64)
        return v != 0;
    return n ? v >> n | (v << (64 - n) != 0) : v;
}
FP_INLINE u128 fp_shift128(u128 v, u32 n)
{
    if (n >= 128)
        return v != 0;
    return n ? v >> n | (v << (128 - n) != 0) : v;
}

/* Does a magnitude with lowest bit `odd`, the half bit below it and `rest` below that round up? */
FP_INLINE bool fp_round_up(int rm, bool sign, bool odd, bool half, bool rest)
{
    switch (rm) {
    case RNE:
        return half & (rest | odd);
    case RDN:
        return sign && (half | rest);
    case RUP:
        return !sign && (half | rest);
    case RMM:
        return half;
    case FP_ROD:
        return !odd && (half | rest);
    default: /* RTZ */
        return false;
    }
}

FP_INLINE u64 fp_overflow(const struct fp_format *f, bool sign, int rm, u32 *flags)
{
    *flags |= OF | NX;
    bool to_inf = rm == RNE || rm == RMM || rm == (sign ? RDN : RUP);
    return (sign ? fp_sign_bit(f) : 0) | (fp_inf(f) - !to_inf);
}

/* The number sig * 2^(exp - 63) in format f.  Bit 63 of sig is set; its lowest may be sticky. */
FP_INLINE u64 fp_round(const struct fp_format *f, bool sign, i32 exp, u64 sig, int rm, u32 *flags)
{
    const u32 drop = 63 - f->mbits; /* bits below the format's lowest */
    const u64 half = 1ull << (drop - 1);
    i32 e = exp + fp_bias(f);
    if (unlikely(e >= (1 << f->ebits) - 1))
        return fp_overflow(f, sign, rm, flags);
    bool tiny = false;
    if (unlikely(e < 1)) {
        /* not tiny if it would round up to the smallest normal number, had it that one's digits */
        tiny = e < 0 || sig >> drop != (2ull << f->mbits) - 1 ||
               !fp_round_up(rm, sign, true, sig & half, sig & (half - 1));
        sig = fp_shift64(sig, (u32)(1 - e));
        e = 1;
    }
    u64 m = sig >> drop;
    bool inexact = sig & (2 * half - 1);
    m += fp_round_up(rm, sign, m & 1, sig & half, sig & (half - 1));
    /* m still has its hidden bit (unless subnormal), which counts as one exponent step */
    u64 out = ((u64)(e - 1) << f->mbits) + m;
    if (unlikely(out >= fp_inf(f)))
        return fp_overflow(f, sign, rm, flags);
    if (inexact)
        *flags |= tiny ? NX | UF : NX;
    return (sign ? fp_sign_bit(f) : 0) | out;
}

/* The same for any sig that is not 0. */
FP_INLINE u64 fp_normal_round(const struct fp_format *f, bool sign, i32 exp, u64 sig, int rm,
                              u32 *flags)
{
    int z = __builtin_clzll(sig);
    return fp_round(f, sign, exp - z, sig << z, rm, flags);
}
/* The number sig * 2^(exp - 127), sig not 0. */
FP_INLINE u64 fp_normal_round128(const struct fp_format *f, bool sign, i32 exp, u128 sig, int rm,
                                 u32 *flags)
{
    u64 hi = (u64)(sig >> 64), lo = (u64)sig;
    if (!hi)
        return fp_normal_round(f, sign, exp - 64, lo, rm, flags);
    int z = __builtin_clzll(hi);
    sig <<= z;
    return fp_round(f, sign, exp - z, (u64)(sig >> 64) | ((u64)sig != 0), rm, flags);
}

/* The 0 that an exact sum of signed addends makes. */
FP_INLINE u64 fp_sum_zero(const struct fp_format *f, bool sign_a, bool sign_b, int rm)
{
    bool sign = sign_a == sign_b ? sign_a : rm == RDN;
    return sign ? fp_sign_bit(f) : 0;
}

/* ---- arithmetic ------------------------------------------------------------------------- */

FP_INLINE u64 fp_add(const struct fp_format *f, u64 a, u64 b, int rm, u32 *flags)
{
    u64 ma = fp_magnitude(f, a), mb = fp_magnitude(f, b), inf = fp_inf(f);
    if (unlikely(ma >= inf || mb >= inf)) {
        if (ma > inf || mb > inf)
            return fp_nan(f, a, b, flags);
        if (ma == inf && mb == inf && a != b)
            return fp_invalid(f, flags);
        return ma == inf ? a : b;
    }
    if (unlikely(!ma || !mb)) {
        if (!ma && !mb)
            return fp_sum_zero(f, fp_sign(f, a), fp_sign(f, b), rm);
        return ma ? a : b;
    }
    if (ma < mb) { /* the larger one first */
        u64 t = a;
        a = b;
        b = t;
    }
    struct fp_parts x = fp_unpack(f, a), y = fp_unpack(f, b);
    /* one bit of room for the carry; at least ten zeros below, so that the sticky bit decides
     * nothing but which side of a tie the sum is on */
    u64 big = x.sig >> 1, small = fp_shift64(y.sig >> 1, (u32)(x.exp - y.exp));
    u64 sum = x.sign == y.sign ? big + small : big - small;
    if (unlikely(!sum))
        return fp_sum_zero(f, x.sign, y.sign, rm);
    return fp_normal_round(f, x.sign, x.exp + 1, sum, rm, flags);
}

FP_INLINE u64 fp_sub(const struct fp_format *f, u64 a, u64 b, int rm, u32 *flags)
{
    return fp_add(f, a, b ^ fp_sign_bit(f), rm, flags); /* a NaN stays what it is */
}

FP_INLINE u64 fp_mul(const struct fp_format *f, u64 a, u64 b, int rm, u32 *flags)
{
    u64 ma = fp_magnitude(f, a), mb = fp_magnitude(f, b), inf = fp_inf(f);
    u64 sign = (a ^ b) & fp_sign_bit(f);
    if (unlikely(ma >= inf || mb >= inf)) {
        if (ma > inf || mb > inf)
            return fp_nan(f, a, b, flags);
        return ma && mb ? sign | inf : fp_invalid(f, flags);
    }
    if (unlikely(!ma || !mb))
        return sign;
    struct fp_parts x = fp_unpack(f, a), y = fp_unpack(f, b);
    if (f->mbits < 32) {
        u64 product = (x.sig >> 32) * (y.sig >> 32);
        return fp_normal_round(f, sign != 0, x.exp + y.exp + 1, product, rm, flags);
    }
    return fp_normal_round128(f, sign != 0, x.exp + y.exp + 1, (u128)x.sig * y.sig, rm, flags);
}

FP_INLINE u64 fp_div(const struct fp_format *f, u64 a, u64 b, int rm, u32 *flags)
{
    u64 ma = fp_magnitude(f, a), mb = fp_magnitude(f, b), inf = fp_inf(f);
    u64 sign = (a ^ b) & fp_sign_bit(f);
    if (unlikely(ma >= inf || mb >= inf)) {
        if (ma > inf || mb > inf)
            return fp_nan(f, a, b, flags);
        if (ma == mb)
            return fp_invalid(f, flags);
        return ma == inf ? sign | inf : sign;
    }
    if (unlikely(!ma || !mb)) {
        if (ma == mb)
            return fp_invalid(f, flags);
        if (mb)
            return sign;
        *flags |= DZ;
        return sign | inf;
    }
    struct fp_parts x = fp_unpack(f, a), y = fp_unpack(f, b);
    if (f->mbits < 28) {
        /* x.sig/2 over the significant half of y.sig: 31 or 32 bits, then the remainder */
        u64 n = x.sig >> 1, d = y.sig >> 32, q = n / d;
        return fp_normal_round(f, sign != 0, x.exp - y.exp + 31, q << 1 | (q * d != n), rm, flags);
    }
    u128 n = (u128)x.sig << 62;
    u64 q = (u64)(n / y.sig);
    return fp_normal_round(f, sign != 0, x.exp - y.exp + 1, q | ((u128)q * y.sig != n), rm, flags);
}

FP_INLINE u64 fp_sqrt(const struct fp_format *f, u64 a, int rm, u32 *flags)
{
    u64 m = fp_magnitude(f, a);
    if (unlikely(m > fp_inf(f)))
        return fp_nan(f, a, a, flags);
    if (unlikely(!m))
        return a;
    if (unlikely(fp_sign(f, a)))
        return fp_invalid(f, flags);
    if (unlikely(m == fp_inf(f)))
        return a;
    struct fp_parts x = fp_unpack(f, a);
    /* digit by digit; the radicand lies in [1, 4) with two bits before its point */
    u64 rest = x.exp & 1 ? x.sig : x.sig >> 1, root = 0, rem = 0;
    const u32 n = f->mbits + 3u;
    for (u32 i = 0; i < n; i++) {
        rem = rem << 2 | rest >> 62;
        rest <<= 2;
        u64 t = root << 2 | 1;
        root = root << 1 | (rem >= t);
        rem -= rem >= t ? t : 0;
    }
    u64 sig = root << (64 - n) | ((rem | rest) != 0);
    return fp_round(f, false, (x.exp - (x.exp & 1)) / 2, sig, rm, flags);
}

/* a * b + c with one rounding. */
FP_INLINE u64 fp_fma(const struct fp_format *f, u64 a, u64 b, u64 c, int rm, u32 *flags)
{
    u64 ma = fp_magnitude(f, a), mb = fp_magnitude(f, b), mc = fp_magnitude(f, c), inf = fp_inf(f);
    u64 sign = (a ^ b) & fp_sign_bit(f), sign_c = c & fp_sign_bit(f);
    if (unlikely(ma >= inf || mb >= inf || mc >= inf)) {
        bool undefined = (ma == inf && !mb) || (mb == inf && !ma);
        if (undefined) /* whatever c is: the manual asks for NV even with a quiet NaN */
            return fp_invalid(f, flags);
        if (ma > inf || mb > inf || mc > inf) {
            fp_nan(f, a, b, flags);
            return fp_nan(f, c, c, flags);
        }
        if (mc < inf)
            return sign | inf;
        return (ma == inf || mb == inf) && sign != sign_c ? fp_invalid(f, flags) : c;
    }
    if (unlikely(!ma || !mb))
        return mc ? c : fp_sum_zero(f, sign != 0, sign_c != 0, rm);
    struct fp_parts x = fp_unpack(f, a), y = fp_unpack(f, b);
    u128 product = (u128)x.sig * y.sig; /* the lowest 22 bits and more are 0 */
    i32 exp = x.exp + y.exp + 1; /* of bit 127 */
    if (unlikely(!mc))
        return fp_normal_round128(f, sign != 0, exp, product, rm, flags);
    if (product >> 127) {
        product >>= 1; /* room for a carry */
        exp++;
    }
    struct fp_parts z = fp_unpack(f, c);
    u128 addend = (u128)z.sig << 63;
    i32 d = exp - (z.exp + 1);
    if (d >= 0) {
        addend = fp_shift128(addend, (u32)d);
    } else {
        product = fp_shift128(product, (u32)-d);
        exp = z.exp + 1;
    }
    u128 sum;
    bool s = sign != 0;
    if (sign == sign_c) {
        sum = product + addend;
    } else if (product >= addend) {
        sum = product - addend;
    } else {
        sum = addend - product;
        s = !s;
    }
    if (unlikely(!sum))
        return fp_sum_zero(f, sign != 0, sign_c != 0, rm);
    return fp_normal_round128(f, s, exp, sum, rm, flags);
}

/* ---- comparison, selection, sign -------------------------------------------------------- */

/* a < b for numbers that are not NaN; `zeros`: -0 counts as less than +0. */
FP_INLINE bool fp_less(const struct fp_format *f, u64 a, u64 b, bool zeros)
{
    if (!zeros && !fp_magnitude(f, a | b))
        return false;
    bool sa = fp_sign(f, a), sb = fp_sign(f, b);
    return sa != sb ? sa : sa ? b < a : a < b;
}

/* Quiet, as feq is. */
FP_INLINE bool fp_eq(const struct fp_format *f, u64 a, u64 b, u32 *flags)
{
    if (unlikely(fp_is_nan(f, a) || fp_is_nan(f, b))) {
        fp_nan(f, a, b, flags);
        return false;
    }
    return a == b || !fp_magnitude(f, a | b);
}
/* Signalling, as flt and fle are. */
FP_INLINE bool fp_lt(const struct fp_format *f, u64 a, u64 b, u32 *flags)
{
    if (unlikely(fp_is_nan(f, a) || fp_is_nan(f, b))) {
        *flags |= NV;
        return false;
    }
    return fp_less(f, a, b, false);
}
FP_INLINE bool fp_le(const struct fp_format *f, u64 a, u64 b, u32 *flags)
{
    if (unlikely(fp_is_nan(f, a) || fp_is_nan(f, b))) {
        *flags |= NV;
        return false;
    }
    return !fp_less(f, b, a, false);
}

/* minimumNumber, maximumNumber: a NaN yields to a number. */
FP_INLINE u64 fp_minmax(const struct fp_format *f, u64 a, u64 b, bool max, u32 *flags)
{
    bool na = fp_is_nan(f, a), nb = fp_is_nan(f, b);
    if (unlikely(na || nb)) {
        u64 nan = fp_nan(f, a, b, flags);
        return na && nb ? nan : na ? b : a;
    }
    return fp_less(f, a, b, true) != max ? a : b;
}
FP_INLINE u64 fp_min(const struct fp_format *f, u64 a, u64 b, u32 *flags)
{
    return fp_minmax(f, a, b, false, flags);
}
FP_INLINE u64 fp_max(const struct fp_format *f, u64 a, u64 b, u32 *flags)
{
    return fp_minmax(f, a, b, true, flags);
}

FP_INLINE u64 fp_sgnj(const struct fp_format *f, u64 a, u64 b)
{
    return fp_magnitude(f, a) | (b & fp_sign_bit(f));
}
FP_INLINE u64 fp_sgnjn(const struct fp_format *f, u64 a, u64 b)
{
    return fp_magnitude(f, a) | (~b & fp_sign_bit(f));
}
FP_INLINE u64 fp_sgnjx(const struct fp_format *f, u64 a, u64 b)
{
    return a ^ (b & fp_sign_bit(f));
}

/* One bit of ten: -inf, -normal, -subnormal, -0, +0, +subnormal, +normal, +inf, sNaN, qNaN. */
FP_INLINE u64 fp_class(const struct fp_format *f, u64 a)
{
    u64 m = fp_magnitude(f, a), inf = fp_inf(f);
    if (m > inf)
        return fp_is_snan(f, a) ? 1u << 8 : 1u << 9;
    u32 k = m == inf ? 0 : m >> f->mbits ? 1 : m ? 2 : 3;
    return 1u << (fp_sign(f, a) ? k : 7 - k);
}

/* ---- conversion ------------------------------------------------------------------------- */

FP_INLINE u64 fp_cvt(const struct fp_format *from, const struct fp_format *to, u64 a, int rm,
                     u32 *flags)
{
    u64 m = fp_magnitude(from, a), inf = fp_inf(from);
    u64 sign = fp_sign(from, a) ? fp_sign_bit(to) : 0;
    if (unlikely(m >= inf)) {
        if (m == inf)
            return sign | fp_inf(to);
        fp_nan(from, a, a, flags);
        return to->nan;
    }
    if (unlikely(!m))
        return sign;
    struct fp_parts x = fp_unpack(from, a);
    return fp_round(to, x.sign, x.exp, x.sig, rm, flags);
}

/* To an integer of `width` bits (8..64), saturating.  A negative result is a negative 64-bit
 * number; an unsigned one is zero-extended. */
FP_INLINE u64 fp_to_int(const struct fp_format *f, u64 a, int rm, u32 width, bool is_signed,
                        u32 *flags)
{
    u64 m = fp_magnitude(f, a), most = ~0ull >> (64 - width) >> is_signed;
    u64 least = is_signed ? most + 1 : 0; /* magnitude of the lowest result */
    if (unlikely(m >= fp_inf(f))) {
        *flags |= NV;
        return fp_sign(f, a) && m == fp_inf(f) ? -least : most;
    }
    if (unlikely(!m))
        return 0;
    struct fp_parts x = fp_unpack(f, a);
    u64 mag = 0;
    bool half = false, rest = true, too_large = x.exp > 63;
    if (x.exp == 63) {
        mag = x.sig;
        rest = false;
    } else if (x.exp >= -1 && !too_large) {
        u64 fraction = x.sig << (x.exp + 1); /* weight of bit 63: one half */
        mag = x.exp < 0 ? 0 : x.sig >> (63 - x.exp);
        half = fraction >> 63;
        rest = fraction << 1;
    }
    mag += fp_round_up(rm, x.sign, mag & 1, half, rest);
    if (too_large || mag > (x.sign ? least : most)) {
        *flags |= NV;
        return x.sign ? -least : most;
    }
    if (half | rest)
        *flags |= NX;
    return x.sign ? -mag : mag;
}

/* v is a 64-bit number, signed or not. */
FP_INLINE u64 fp_from_int(const struct fp_format *f, u64 v, bool is_signed, int rm, u32 *flags)
{
    bool sign = is_signed && v >> 63;
    if (unlikely(!v))
        return 0;
    return fp_normal_round(f, sign, 63, sign ? -v : v, rm, flags);
}

/* ---- one function per format, out of line ----------------------------------------------- */

#define NUMBER(name, ...)                                                                          \
    u64 name##_add(u64 a, u64 b, int rm, u32 *flags);                                              \
    u64 name##_sub(u64 a, u64 b, int rm, u32 *flags);                                              \
    u64 name##_mul(u64 a, u64 b, int rm, u32 *flags);                                              \
    u64 name##_div(u64 a, u64 b, int rm, u32 *flags);                                              \
    u64 name##_sqrt(u64 a, int rm, u32 *flags);                                                    \
    u64 name##_fma(u64 a, u64 b, u64 c, int rm, u32 *flags);                                       \
    u64 name##_to_f16(u64 a, int rm, u32 *flags);                                                  \
    u64 name##_to_bf16(u64 a, int rm, u32 *flags);                                                 \
    u64 name##_to_f32(u64 a, int rm, u32 *flags);                                                  \
    u64 name##_to_f64(u64 a, int rm, u32 *flags);                                                  \
    u64 name##_to_int(u64 a, int rm, u32 width, bool is_signed, u32 *flags);                       \
    u64 name##_from_int(u64 v, bool is_signed, int rm, u32 *flags);
#include "number.def"
#undef NUMBER

#endif
