/* vloops_avx512.c: the table of loops for hosts with AVX-512 (F, BW, DQ, VL): sixteen lanes.
 * Owns: the vocabulary of vloops_x86.h in AVX-512.  A truth is a mask register.
 * Of AVX512-BF16 and -FP16 nothing is used: vcvtneps2bf16 knows one rounding mode, no subnormals
 * and no flags, and f16 by way of f32 is what vloops_x86.h has anyway. */
#if defined(__x86_64__)
#if defined(__clang__)
#pragma clang attribute push(                                                                      \
    __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c,bmi,bmi2"))),          \
    apply_to = function)
#else
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c,bmi,bmi2")
#endif
#define VLOOPS_VECTORISED
#include "simd.h"
#include "vloops_fp.h"

#include <immintrin.h>

#define ALWAYS_INLINE static inline __attribute__((always_inline))

enum { L = 16 };
typedef __m512 fvec;
typedef __m512i ivec;
typedef __m512d dvec;
typedef __m256 half_fvec;
typedef __m256i half_ivec;
typedef __mmask16 truth;
#define TRUTH_REGISTER "=k"

/* ---- lanes ---------------------------------------------------------------------------------- */

ALWAYS_INLINE fvec splat_f32(float v)
{
    return _mm512_set1_ps(v);
}
ALWAYS_INLINE half_fvec lower(fvec v)
{
    return _mm512_castps512_ps256(v);
}
ALWAYS_INLINE half_fvec upper(fvec v)
{
    return _mm512_extractf32x8_ps(v, 1);
}
ALWAYS_INLINE fvec join_f32(half_fvec low, half_fvec high)
{
    return _mm512_insertf32x8(_mm512_castps256_ps512(low), high, 1);
}
ALWAYS_INLINE ivec join_i16(half_ivec low, half_ivec high)
{
    return _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
}
/* Numbers below 2^16 in half the width, in eighths: of x, y, x, ...; and these in the order x, y.
 */
ALWAYS_INLINE ivec pack_u16(ivec x, ivec y)
{
    return _mm512_packus_epi32(x, y);
}
ALWAYS_INLINE ivec unpacked(ivec v)
{
    return _mm512_permutexvar_epi64(_mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7), v);
}
ALWAYS_INLINE ivec mean_u16(ivec x, ivec y) /* rounded up */
{
    return _mm512_avg_epu16(x, y);
}
ALWAYS_INLINE ivec max_u16(ivec x, ivec y)
{
    return _mm512_max_epu16(x, y);
}
ALWAYS_INLINE ivec min_u16(ivec x, ivec y)
{
    return _mm512_min_epu16(x, y);
}
ALWAYS_INLINE ivec excess_u16(ivec x, ivec y) /* x - y, or 0 */
{
    return _mm512_subs_epu16(x, y);
}
ALWAYS_INLINE bool any_bit(ivec v)
{
    return _mm512_test_epi32_mask(v, v);
}
ALWAYS_INLINE void store_ints(u8 *p, ivec v, u32 bits)
{
    if (bits == 32)
        _mm512_storeu_si512(p, v);
    else if (bits == 16)
        _mm256_storeu_si256((__m256i *)p, _mm512_cvtepi32_epi16(v));
    else
        _mm_storeu_si128((__m128i *)p, _mm512_cvtepi32_epi8(v));
}
/* The first n < L elements of `size` bytes, in the place of the first of `rest`.  The accesses are
 * as wide as those of the loops (see store_two). */
ALWAYS_INLINE ivec load_first(ivec rest, const u8 *p, u64 n, u32 size)
{
    __mmask16 first = (__mmask16)((1u << n) - 1);
    if (size == 4)
        return _mm512_mask_loadu_epi32(rest, first, p);
    __m256i low = _mm512_castsi512_si256(rest);
    if (size == 2)
        low = _mm256_mask_loadu_epi16(low, first, p);
    else
        low = _mm256_castsi128_si256(_mm_mask_loadu_epi8(_mm256_castsi256_si128(low), first, p));
    return _mm512_castsi256_si512(low);
}
ALWAYS_INLINE void store_first(u8 *d, const u8 *from, u64 n, u32 size)
{
    __mmask16 first = (__mmask16)((1u << n) - 1);
    if (size == 4)
        _mm512_mask_storeu_epi32(d, first, _mm512_loadu_si512(from));
    else if (size == 2)
        _mm256_mask_storeu_epi16(d, first, _mm256_loadu_si256((const __m256i *)from));
    else
        _mm_mask_storeu_epi8(d, first, _mm_loadu_si128((const __m128i *)from));
}

/* ---- truths --------------------------------------------------------------------------------- */

ALWAYS_INLINE truth either(truth x, truth y)
{
    return x | y;
}
ALWAYS_INLINE truth both(truth x, truth y)
{
    return x & y;
}
ALWAYS_INLINE bool any(truth v)
{
    return v;
}
ALWAYS_INLINE bool all(truth v)
{
    return v == 0xffff;
}
ALWAYS_INLINE truth above_i32(ivec x, ivec y)
{
    return _mm512_cmpgt_epi32_mask(x, y);
}
ALWAYS_INLINE void store_truths(u8 *p, truth v)
{
    _mm_storeu_si128((__m128i *)p, _mm_maskz_set1_epi8(v, 1));
}

/* ---- masks ---------------------------------------------------------------------------------- */

ALWAYS_INLINE ivec choose(ivec x, ivec y, const u8 *mask, u64 i, u32 bits)
{
    u64 m = 0;
    memcpy(&m, mask + i / 8, 64 / bits);
    switch (bits) {
    case 8:
        return _mm512_mask_mov_epi8(x, m, y);
    case 16:
        return _mm512_mask_mov_epi16(x, (__mmask32)m, y);
    case 32:
        return _mm512_mask_mov_epi32(x, (__mmask16)m, y);
    default:
        return _mm512_mask_mov_epi64(x, (__mmask8)m, y);
    }
}
ALWAYS_INLINE void pack_piece(u8 *mask, ivec truths)
{
    u64 m = _mm512_test_epi8_mask(truths, truths);
    memcpy(mask, &m, sizeof m);
}

#include "vloops_x86.h"

#define VEC_LOOPS vec_loops_avx512
#include "vloops_table.h"

#include "vleaf_x86.h"

void vloops_avx512_replace(op_fn fn[INSN_COUNT])
{
    leaves_replace(fn);
}

#if defined(__clang__)
#pragma clang attribute pop
#endif
#endif
