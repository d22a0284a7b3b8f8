/* reduce.c: the yardstick of benches/reduce.py: streams of f16 or bf16 added up by hand-written
 * AVX2 + F16C code, in f32, in stream order, rounded once to nearest even, NaN canonical.
 * Needs 32-byte aligned arrays and element numbers that are multiples of 32. */
#include <immintrin.h>
#include <stddef.h>
#include <stdint.h>

typedef uint16_t u16;

static inline __m256 load_f16(const u16 *p)
{
    return _mm256_cvtph_ps(_mm_load_si128((const void *)p));
}

static inline __m256 load_bf16(const u16 *p)
{
    __m256i wide = _mm256_cvtepu16_epi32(_mm_load_si128((const void *)p));
    return _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
}

/* 16 f32 values as 16-bit elements. */
static inline __m256i narrow_f16(__m256 lo, __m256 hi)
{
    __m256i v = _mm256_set_m128i(_mm256_cvtps_ph(hi, _MM_FROUND_TO_NEAREST_INT),
                                 _mm256_cvtps_ph(lo, _MM_FROUND_TO_NEAREST_INT));
    __m256i magnitude = _mm256_and_si256(v, _mm256_set1_epi16(0x7fff));
    __m256i nan = _mm256_cmpgt_epi16(magnitude, _mm256_set1_epi16(0x7c00));
    return _mm256_blendv_epi8(v, _mm256_set1_epi16(0x7e00), nan);
}

static inline __m256i round_bf16(__m256 f)
{
    __m256i bits = _mm256_castps_si256(f), high = _mm256_srli_epi32(bits, 16);
    __m256i odd = _mm256_and_si256(high, _mm256_set1_epi32(1));
    __m256i half = _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff));
    __m256i rounded = _mm256_srli_epi32(_mm256_add_epi32(bits, half), 16);
    __m256 nan = _mm256_cmp_ps(f, f, _CMP_UNORD_Q);
    return _mm256_blendv_epi8(rounded, _mm256_set1_epi32(0x7fc0), _mm256_castps_si256(nan));
}

static inline __m256i narrow_bf16(__m256 lo, __m256 hi)
{
    __m256i packed = _mm256_packus_epi32(round_bf16(lo), round_bf16(hi));
    return _mm256_permute4x64_epi64(packed, 0xd8);
}

static inline void put(u16 *p, __m256i v, int past_cache)
{
    if (past_cache)
        _mm256_stream_si256((void *)p, v);
    else
        _mm256_store_si256((void *)p, v);
}

/* Reduce elements from..to-1 of all streams; past_cache: the result is too large for the cache. */
#define REDUCE(name, load, narrow)                                                                 \
    static inline __attribute__((always_inline)) void name##_of(                                   \
        u16 *out, const u16 *const *in, int streams, size_t from, size_t to, int past_cache)       \
    {                                                                                              \
        for (size_t i = from; i < to; i += 32) {                                                   \
            const u16 *p = in[0] + i;                                                              \
            __m256 a = load(p), b = load(p + 8), c = load(p + 16), d = load(p + 24);               \
            for (int k = 1; k < streams; k++) {                                                    \
                p = in[k] + i;                                                                     \
                a = _mm256_add_ps(a, load(p));                                                     \
                b = _mm256_add_ps(b, load(p + 8));                                                 \
                c = _mm256_add_ps(c, load(p + 16));                                                \
                d = _mm256_add_ps(d, load(p + 24));                                                \
            }                                                                                      \
            put(out + i, narrow(a, b), past_cache);                                                \
            put(out + i + 16, narrow(c, d), past_cache);                                           \
        }                                                                                          \
        _mm_sfence();                                                                              \
    }                                                                                              \
    void name(u16 *out, const u16 *const *in, int streams, size_t from, size_t to, int past_cache) \
    {                                                                                              \
        switch (streams) { /* a known number of streams is unrolled */                             \
        case 4:                                                                                    \
            name##_of(out, in, 4, from, to, past_cache);                                           \
            break;                                                                                 \
        case 8:                                                                                    \
            name##_of(out, in, 8, from, to, past_cache);                                           \
            break;                                                                                 \
        default:                                                                                   \
            name##_of(out, in, streams, from, to, past_cache);                                     \
        }                                                                                          \
    }
REDUCE(reduce_float16, load_f16, narrow_f16)
REDUCE(reduce_bfloat16, load_bf16, narrow_bf16)
