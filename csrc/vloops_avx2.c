/* vloops_avx2.c: the table of loops for hosts with AVX2, FMA and F16C: eight lanes.
 * Owns: the vocabulary of vloops_x86.h in AVX2.  A truth is a vector of ones and zeros. */
#if defined(__x86_64__)
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma,f16c,bmi,bmi2"))), apply_to = function)
#else
#pragma GCC target("avx2,fma,f16c,bmi,bmi2")
#endif
#define VLOOPS_VECTORISED
#include "simd.h"
#include "vloops_fp.h"

#include <immintrin.h>

#define ALWAYS_INLINE static inline __attribute__((always_inline))

enum { L = 8 };
typedef __m256 fvec;
typedef __m256i ivec;
typedef __m256d dvec;
typedef __m128 half_fvec;
typedef __m128i half_ivec;
typedef __m256 truth;
#define TRUTH_REGISTER "=x"

/* ---- lanes ---------------------------------------------------------------------------------- */

ALWAYS_INLINE fvec splat_f32(float v)
{
    return _mm256_set1_ps(v);
}
ALWAYS_INLINE half_fvec lower(fvec v)
{
    return _mm256_castps256_ps128(v);
}
ALWAYS_INLINE half_fvec upper(fvec v)
{
    return _mm256_extractf128_ps(v, 1);
}
ALWAYS_INLINE fvec join_f32(half_fvec low, half_fvec high)
{
    return _mm256_set_m128(high, low);
}
ALWAYS_INLINE ivec join_i16(half_ivec low, half_ivec high)
{
    return _mm256_set_m128i(high, low);
}
/* Numbers below 2^16 in half the width, in quarters: of x, y, x, y; and these in the order x, y. */
ALWAYS_INLINE ivec pack_u16(ivec x, ivec y)
{
    return _mm256_packus_epi32(x, y);
}
ALWAYS_INLINE ivec unpacked(ivec v)
{
    return _mm256_permute4x64_epi64(v, 0xd8);
}
ALWAYS_INLINE ivec mean_u16(ivec x, ivec y) /* rounded up */
{
    return _mm256_avg_epu16(x, y);
}
ALWAYS_INLINE ivec max_u16(ivec x, ivec y)
{
    return _mm256_max_epu16(x, y);
}
ALWAYS_INLINE ivec min_u16(ivec x, ivec y)
{
    return _mm256_min_epu16(x, y);
}
ALWAYS_INLINE ivec excess_u16(ivec x, ivec y) /* x - y, or 0 */
{
    return _mm256_subs_epu16(x, y);
}
ALWAYS_INLINE bool any_bit(ivec v)
{
    return !_mm256_testz_si256(v, v);
}
ALWAYS_INLINE void store_ints(u8 *p, ivec v, u32 bits)
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
/* The first n < L elements of `size` bytes, in the place of the first of `rest`. */
ALWAYS_INLINE ivec load_first(ivec rest, const u8 *p, u64 n, u32 size)
{
    memcpy(&rest, p, n * size);
    return rest;
}
ALWAYS_INLINE void store_first(u8 *d, const u8 *from, u64 n, u32 size)
{
    memcpy(d, from, n * size);
}

/* ---- truths --------------------------------------------------------------------------------- */

ALWAYS_INLINE truth either(truth x, truth y)
{
    return _mm256_or_ps(x, y);
}
ALWAYS_INLINE truth both(truth x, truth y)
{
    return _mm256_and_ps(x, y);
}
ALWAYS_INLINE bool any(truth v)
{
    return _mm256_movemask_ps(v);
}
ALWAYS_INLINE bool all(truth v)
{
    return _mm256_movemask_ps(v) == 0xff;
}
ALWAYS_INLINE truth above_i32(ivec x, ivec y)
{
    return _mm256_castsi256_ps(_mm256_cmpgt_epi32(x, y));
}
ALWAYS_INLINE void store_truths(u8 *p, truth v)
{
    store_ints(p, _mm256_srli_epi32(_mm256_castps_si256(v), 31), 8);
}

/* ---- masks ---------------------------------------------------------------------------------- */

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
ALWAYS_INLINE ivec choose(ivec x, ivec y, const u8 *mask, u64 i, u32 bits)
{
    return _mm256_blendv_epi8(x, y, lanes_of_mask(mask, i, bits));
}
ALWAYS_INLINE void pack_piece(u8 *mask, ivec truths)
{
    u32 m = (u32)_mm256_movemask_epi8(_mm256_slli_epi16(truths, 7));
    memcpy(mask, &m, sizeof m);
}

#include "vloops_x86.h"

#define VEC_LOOPS vec_loops_avx2
#include "vloops_table.h"

#include "vleaf_x86.h"

void vloops_avx2_replace(op_fn fn[INSN_COUNT])
{
    leaves_replace(fn);
}

#if defined(__clang__)
#pragma clang attribute pop
#endif
#endif
