/* vloops_int.h: the families of vloops.def that are integer code, for inclusion by vloops_*.c,
 * which compile it for their host: plain loops that the compiler turns into SIMD. */
#ifndef NICEMU_VLOOPS_INT_H
#define NICEMU_VLOOPS_INT_H

#include "vloops.h"

/* Register groups are bytes; these types may alias them, and each other. */
#define LANE_TYPE(name, type) typedef type __attribute__((may_alias)) name;
LANE_TYPE(lane8, u8)
LANE_TYPE(lane16, u16)
LANE_TYPE(lane32, u32)
LANE_TYPE(lane64, u64)

/* vloops.h: the iterations of a loop do not depend on each other in a way that forbids SIMD.
 * Without AVX2, clang's SIMD shifts by variable amounts go through floating point, and would raise
 * flags: scalar code then. */
#if defined(__clang__) && defined(__x86_64__) && !defined(VLOOPS_VECTORISED)
#define INDEPENDENT _Pragma("clang loop vectorize(disable) unroll(disable)")
#elif defined(__clang__)
#define INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#else
#define INDEPENDENT _Pragma("GCC ivdep")
#endif

/* Names for the types that an expression of vloops.def may use. */
#define TYPES(bits, wbits)                                                                         \
    typedef u##bits U;                                                                             \
    typedef i##bits S;                                                                             \
    typedef u##wbits W;                                                                            \
    typedef i##wbits WS;                                                                           \
    enum { BITS = bits };

#define LOOP_PARAMETERS struct hart *h, void *dv, const void *av, const void *bv, u64 n

/* What rounding by vxrm adds to v >> n, n in 0..63. */
static inline int fixed_round(u64 v, u32 n, u32 vxrm)
{
    u64 cut = v & ((1ull << n) - 1), half = n ? 1ull << (n - 1) : 0;
    bool odd = v >> n & 1;
    switch (vxrm) {
    case 0: /* nearest, ties up */
        return (v & half) != 0;
    case 1: /* nearest, ties to even */
        return (v & half) && (odd || cut != half);
    case 2: /* down */
        return 0;
    default: /* to odd */
        return cut && !odd;
    }
}
#define ROUNDED(v, n) (((v) >> (n)) + fixed_round((u64)(v), n, vxrm))
#define CARRY (h->v[i / 8] >> i % 8 & 1)

/* One loop: name_sew over `dbits`-bit d[i] = expr of a (abits), b (bbits) and d. */
#define LANES(name, sew, wide, dbits, abits, bbits, expr)                                          \
    static void name##_##sew(LOOP_PARAMETERS)                                                      \
    {                                                                                              \
        TYPES(sew, wide)                                                                           \
        lane##dbits *ds = dv;                                                                      \
        const lane##abits *as = av;                                                                \
        const lane##bbits *bs = bv;                                                                \
        const u32 vxrm = h->vxrm;                                                                  \
        (void)vxrm;                                                                                \
        INDEPENDENT                                                                                \
        for (u64 i = 0; i < n; i++) {                                                              \
            u##abits a = as[i];                                                                    \
            u##bbits b = bs[i];                                                                    \
            u##dbits d = ds[i];                                                                    \
            (void)a, (void)b, (void)d, (void)sizeof(S), (void)sizeof(U), (void)sizeof(W);          \
            (void)sizeof(WS);                                                                      \
            ds[i] = (u##dbits)(expr);                                                              \
        }                                                                                          \
    }

/* Loops by SEW: a row of the table. */
#define ROW(at8, at16, at32, at64)                                                                 \
    {                                                                                              \
        .fn = { at8, at16, at32, at64 }                                                            \
    }

#define DEF_INT(name, expr)                                                                        \
    LANES(name, 8, 16, 8, 8, 8, expr)                                                              \
    LANES(name, 16, 32, 16, 16, 16, expr)                                                          \
    LANES(name, 32, 64, 32, 32, 32, expr)                                                          \
    LANES(name, 64, 128, 64, 64, 64, expr)
#define ROW_INT(name) ROW(name##_8, name##_16, name##_32, name##_64)

#define DEF_CMP(name, expr)                                                                        \
    LANES(name, 8, 16, 8, 8, 8, expr)                                                              \
    LANES(name, 16, 32, 8, 16, 16, expr)                                                           \
    LANES(name, 32, 64, 8, 32, 32, expr)                                                           \
    LANES(name, 64, 128, 8, 64, 64, expr)
#define ROW_CMP(name) ROW_INT(name)

#define DEF_WIDE(name, expr)                                                                       \
    LANES(name, 8, 16, 16, 8, 8, expr)                                                             \
    LANES(name, 16, 32, 32, 16, 16, expr)                                                          \
    LANES(name, 32, 64, 64, 32, 32, expr)
#define ROW_WIDE(name) ROW(name##_8, name##_16, name##_32, NULL)

#define DEF_WIDE_A(name, expr)                                                                     \
    LANES(name, 8, 16, 16, 16, 8, expr)                                                            \
    LANES(name, 16, 32, 32, 32, 16, expr)                                                          \
    LANES(name, 32, 64, 64, 64, 32, expr)
#define ROW_WIDE_A(name) ROW_WIDE(name)

#define DEF_NARROW(name, expr)                                                                     \
    LANES(name, 8, 16, 8, 16, 8, expr)                                                             \
    LANES(name, 16, 32, 16, 32, 16, expr)                                                          \
    LANES(name, 32, 64, 32, 64, 32, expr)
#define ROW_NARROW(name) ROW_WIDE(name)

/* d is expr brought into the range of SEW bits, which vxsat remembers. */
#define SATURATING(name, sew, wide, abits, is_signed, expr)                                        \
    static void name##_##sew(LOOP_PARAMETERS)                                                      \
    {                                                                                              \
        TYPES(sew, wide)                                                                           \
        lane##sew *d = dv;                                                                         \
        const lane##abits *as = av;                                                                \
        const lane##sew *bs = bv;                                                                  \
        const u32 vxrm = h->vxrm;                                                                  \
        const i128 most = is_signed ? (U) ~(U)0 >> 1 : (U) ~(U)0,                                  \
                   least = is_signed ? -most - 1 : 0;                                              \
        bool saturated = false;                                                                    \
        (void)vxrm, (void)sizeof(S), (void)sizeof(W), (void)sizeof(WS);                            \
        for (u64 i = 0; i < n; i++) {                                                              \
            u##abits a = as[i];                                                                    \
            U b = bs[i];                                                                           \
            i128 exact = expr;                                                                     \
            d[i] = (U)(exact < least ? least : exact > most ? most : exact);                       \
            saturated |= exact < least || exact > most;                                            \
        }                                                                                          \
        h->vxsat |= saturated;                                                                     \
    }
#define DEF_SAT(name, is_signed, expr)                                                             \
    SATURATING(name, 8, 16, 8, is_signed, expr)                                                    \
    SATURATING(name, 16, 32, 16, is_signed, expr)                                                  \
    SATURATING(name, 32, 64, 32, is_signed, expr)                                                  \
    SATURATING(name, 64, 128, 64, is_signed, expr)
#define ROW_SAT(name) ROW_INT(name)
#define DEF_SAT_N(name, is_signed, expr)                                                           \
    SATURATING(name, 8, 16, 16, is_signed, expr)                                                   \
    SATURATING(name, 16, 32, 32, is_signed, expr)                                                  \
    SATURATING(name, 32, 64, 64, is_signed, expr)
#define ROW_SAT_N(name) ROW_WIDE(name)

/* One d, to which every a is added. */
#define REDUCTION(name, sew, wide, dbits, expr)                                                    \
    static void name##_##sew(LOOP_PARAMETERS)                                                      \
    {                                                                                              \
        TYPES(sew, wide)                                                                           \
        const lane##sew *as = av;                                                                  \
        u##dbits d = *(lane##dbits *)dv;                                                           \
        (void)h, (void)bv, (void)sizeof(S), (void)sizeof(U), (void)sizeof(W), (void)sizeof(WS);    \
        (void)BITS;                                                                                \
        for (u64 i = 0; i < n; i++) {                                                              \
            U a = as[i];                                                                           \
            d = (u##dbits)(expr);                                                                  \
        }                                                                                          \
        *(lane##dbits *)dv = d;                                                                    \
    }
#define DEF_RED(name, expr)                                                                        \
    REDUCTION(name, 8, 16, 8, expr)                                                                \
    REDUCTION(name, 16, 32, 16, expr)                                                              \
    REDUCTION(name, 32, 64, 32, expr)                                                              \
    REDUCTION(name, 64, 128, 64, expr)
#define ROW_RED(name) ROW_INT(name)
#define DEF_RED_W(name, expr)                                                                      \
    REDUCTION(name, 8, 16, 16, expr)                                                               \
    REDUCTION(name, 16, 32, 32, expr)                                                              \
    REDUCTION(name, 32, 64, 64, expr)
#define ROW_RED_W(name) ROW_WIDE(name)

/* Here U and S are the source's types. */
#define EXTEND(name, sbits, dbits, expr)                                                           \
    static void name##_##dbits(LOOP_PARAMETERS)                                                    \
    {                                                                                              \
        typedef u##sbits U;                                                                        \
        typedef i##sbits S;                                                                        \
        lane##dbits *d = dv;                                                                       \
        const lane##sbits *as = av;                                                                \
        (void)h, (void)bv, (void)sizeof(S);                                                        \
        INDEPENDENT                                                                                \
        for (u64 i = 0; i < n; i++) {                                                              \
            U a = as[i];                                                                           \
            d[i] = (u##dbits)(expr);                                                               \
        }                                                                                          \
    }
#define DEF_EXTEND2(name, expr)                                                                    \
    EXTEND(name, 8, 16, expr) EXTEND(name, 16, 32, expr) EXTEND(name, 32, 64, expr)
#define ROW_EXTEND2(name) ROW(NULL, name##_16, name##_32, name##_64)
#define DEF_EXTEND4(name, expr) EXTEND(name, 8, 32, expr) EXTEND(name, 16, 64, expr)
#define ROW_EXTEND4(name) ROW(NULL, NULL, name##_32, name##_64)
#define DEF_EXTEND8(name, expr) EXTEND(name, 8, 64, expr)
#define ROW_EXTEND8(name) ROW(NULL, NULL, NULL, name##_64)

/* ---- floating point by its bits ----------------------------------------------------------- */

#define MAG(x) ((U)((x) & (U)~SIGN))
#define IS_NAN(x) (MAG(x) > INF)
#define IS_SNAN(x) (IS_NAN(x) & !((x)&QUIET))
#define ORDER(x) ((S)(MAG(x) ^ (S)((S)(x) >> (BITS - 1))))

#define FP_BITS(sew, ebits)                                                                        \
    typedef u##sew U;                                                                              \
    typedef i##sew S;                                                                              \
    enum { BITS = sew };                                                                           \
    const U SIGN = (U)1 << (BITS - 1), NORMAL = (U)1 << (BITS - 1 - ebits);                        \
    const U INF = (U)(SIGN - NORMAL), QUIET = NORMAL >> 1, QNAN = INF | QUIET;                     \
    (void)sizeof(S), (void)SIGN, (void)INF, (void)QUIET, (void)QNAN, (void)NORMAL

#define FBITS(name, sew, ebits, expr)                                                              \
    static void name##_##sew(LOOP_PARAMETERS)                                                      \
    {                                                                                              \
        FP_BITS(sew, ebits);                                                                       \
        lane##sew *d = dv;                                                                         \
        const lane##sew *as = av, *bs = bv;                                                        \
        (void)h;                                                                                   \
        INDEPENDENT                                                                                \
        for (u64 i = 0; i < n; i++) {                                                              \
            U a = as[i], b = bs[i];                                                                \
            (void)a, (void)b;                                                                      \
            d[i] = (U)(expr);                                                                      \
        }                                                                                          \
    }
#define DEF_FBITS(name, expr)                                                                      \
    FBITS(name, 16, 5, expr) FBITS(name, 32, 8, expr) FBITS(name, 64, 11, expr)
#define ROW_FBITS(name) ROW(NULL, name##_16, name##_32, name##_64)

/* NaNs are rare: look for one first.  With one, the other operand is chosen. */
#define FSELECT(name, sew, ebits, a_is_chosen)                                                     \
    static void name##_##sew(LOOP_PARAMETERS)                                                      \
    {                                                                                              \
        FP_BITS(sew, ebits);                                                                       \
        lane##sew *d = dv;                                                                         \
        const lane##sew *as = av, *bs = bv;                                                        \
        U nan = 0, signalling = 0;                                                                 \
        INDEPENDENT                                                                                \
        for (u64 i = 0; i < n; i++)                                                                \
            nan |= (U)(IS_NAN(as[i]) | IS_NAN(bs[i]));                                             \
        if (likely(!nan)) {                                                                        \
            INDEPENDENT                                                                            \
            for (u64 i = 0; i < n; i++) {                                                          \
                U a = as[i], b = bs[i];                                                            \
                d[i] = a_is_chosen ? a : b;                                                        \
            }                                                                                      \
            return;                                                                                \
        }                                                                                          \
        for (u64 i = 0; i < n; i++) {                                                              \
            U a = as[i], b = bs[i];                                                                \
            signalling |= (U)(IS_SNAN(a) | IS_SNAN(b));                                            \
            if (IS_NAN(a))                                                                         \
                d[i] = IS_NAN(b) ? QNAN : b;                                                       \
            else                                                                                   \
                d[i] = IS_NAN(b) || a_is_chosen ? a : b;                                           \
        }                                                                                          \
        h->fflags |= signalling ? NV : 0;                                                          \
    }
#define DEF_FSELECT(name, expr)                                                                    \
    FSELECT(name, 16, 5, expr) FSELECT(name, 32, 8, expr) FSELECT(name, 64, 11, expr)
#define ROW_FSELECT(name) ROW_FBITS(name)

/* ---- masks -------------------------------------------------------------------------------- */

#define SPLAT(bits)                                                                                \
    static void splat_##bits(void *dv, u64 v, u64 n)                                               \
    {                                                                                              \
        lane##bits *d = dv;                                                                        \
        for (u64 i = 0; i < n; i++)                                                                \
            d[i] = (u##bits)v;                                                                     \
    }
SPLAT(8)
SPLAT(16)
SPLAT(32)
SPLAT(64)

/* Eight at a time: the bytes of a product fall into the bits of its highest byte. */
static inline void pack_bytes(u8 *mask, const u8 *truth, u64 n)
{
    u64 i = 0;
    for (; i + 8 <= n; i += 8) {
        u64 t;
        memcpy(&t, truth + i, 8);
        mask[i / 8] = (u8)(t * 0x0102040810204080 >> 56);
    }
    if (i < n) {
        u64 t = 0;
        memcpy(&t, truth + i, n - i);
        u8 keep = (u8)(0xff << (n - i));
        mask[i / 8] = (u8)((mask[i / 8] & keep) | (t * 0x0102040810204080 >> 56));
    }
}

#endif
