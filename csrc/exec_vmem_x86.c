/* exec_vmem_x86.c: unit-stride vector loads and stores as small leaf functions, for hosts with AVX2
 * and, in wider moves, for those with AVX-512.  They do the plain case: operands that exec_vmem.c
 * has found legal under the same vtype, no mask, no vstart, whole 64-byte pieces inside one region.
 * Everything else is exec_vmem.c's. */
#include "exec_v.h"
#include "simd.h"

#if defined(__x86_64__)
#include <immintrin.h>

/* n, a multiple of 64, in moves as wide as those of the loops (vloops_x86.h: store_two); register
 * groups and host memory never overlap. */
__attribute__((target("avx2"))) static inline void copy_avx2(u8 *restrict d, const u8 *restrict s,
                                                             u64 n)
{
    for (u64 i = 0; i < n; i += 64) {
        __m256i x = _mm256_loadu_si256((const __m256i *)(s + i));
        __m256i y = _mm256_loadu_si256((const __m256i *)(s + i + 32));
        _mm256_storeu_si256((__m256i *)(d + i), x);
        _mm256_storeu_si256((__m256i *)(d + i + 32), y);
    }
}
__attribute__((target("avx512f"))) static inline void copy_avx512(u8 *restrict d,
                                                                  const u8 *restrict s, u64 n)
{
    for (u64 i = 0; i < n; i += 64)
        _mm512_storeu_si512(d + i, _mm512_loadu_si512(s + i));
}

/* A stream's next payload usually lies behind this one: have it on its way while this one is worked
 * on.  A wrong guess costs nothing that the guest sees. */
enum { AHEAD = 2048 };
static inline void ahead(const u8 *p, u64 bytes)
{
    for (u64 i = 0; i < bytes; i += 64)
        __builtin_prefetch(p + AHEAD + i);
}

static inline bool plain(const struct hart *h, const struct op *o, u64 bytes)
{
    return o->proved == h->vt.key && !h->vstart && bytes % 64 == 0;
}

#define LEAVES(host, isa)                                                                          \
    __attribute__((target(isa))) static int host##_vle(struct hart *h, const struct op *o,         \
                                                       u64 last)                                   \
    {                                                                                              \
        u64 bytes = h->vl << o->arg;                                                               \
        const u8 *p = span_bytes(h->rspan, RS1, bytes);                                            \
        if (unlikely(!p || !plain(h, o, bytes)))                                                   \
            return x_vle(h, o, last);                                                              \
        count_elements(h, h->vl);                                                                  \
        h->vector_load_bytes += bytes;                                                             \
        ahead(p, bytes);                                                                           \
        copy_##host(VREG(o->rd), p, bytes);                                                        \
        return NEXT;                                                                               \
    }                                                                                              \
    __attribute__((target(isa))) static int host##_vse(struct hart *h, const struct op *o,         \
                                                       u64 last)                                   \
    {                                                                                              \
        u64 bytes = h->vl << o->arg;                                                               \
        u8 *p = span_bytes(h->wspan, RS1, bytes);                                                  \
        if (unlikely(!p || !plain(h, o, bytes)))                                                   \
            return x_vse(h, o, last);                                                              \
        count_elements(h, h->vl);                                                                  \
        h->vector_store_bytes += bytes;                                                            \
        copy_##host(p, VREG(o->rd), bytes);                                                        \
        return NEXT;                                                                               \
    }                                                                                              \
    void vmem_##host##_replace(op_fn fn[INSN_COUNT])                                               \
    {                                                                                              \
        fn[I_vle8_v] = fn[I_vle16_v] = fn[I_vle32_v] = fn[I_vle64_v] = host##_vle;                 \
        fn[I_vse8_v] = fn[I_vse16_v] = fn[I_vse32_v] = fn[I_vse64_v] = host##_vse;                 \
    }
LEAVES(avx2, "avx2")
LEAVES(avx512, "avx512f")
#endif
