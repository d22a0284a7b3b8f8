/* simd.c: what this CPU can do, asked once per nicemu_open.  Own cpuid, because
 * __builtin_cpu_supports answers 0 under some compilers' run-time libraries. */
#include "simd.h"
#include "vloops.h"

const struct simd simd_portable = {"portable", &vec_loops_portable, false, NULL};

#if defined(__x86_64__)
#include <cpuid.h>

const struct simd simd_avx2 = {"avx2", &vec_loops_avx2, true, simd_avx2_replace};

static bool cpu_has_avx2(void)
{
    u32 a, b, c, d;
    if (!__get_cpuid(1, &a, &b, &c, &d))
        return false;
    const u32 fma = 1u << 12, osxsave = 1u << 27, f16c = 1u << 29;
    if ((c & (fma | osxsave | f16c)) != (fma | osxsave | f16c))
        return false;
    u32 lo, hi;
    __asm__("xgetbv" : "=a"(lo), "=d"(hi) : "c"(0));
    if ((lo & 6) != 6) /* the OS saves xmm and ymm */
        return false;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d))
        return false;
    const u32 bmi = 1u << 3, avx2 = 1u << 5,
              bmi2 = 1u << 8; /* all that vloops_avx2.c is compiled for */
    return (b & (bmi | avx2 | bmi2)) == (bmi | avx2 | bmi2);
}

const struct simd *simd_choose(u32 request)
{
    bool avx2 = cpu_has_avx2();
    switch (request) {
    case NICEMU_SIMD_AUTO:
        return avx2 ? &simd_avx2 : &simd_portable;
    case NICEMU_SIMD_PORTABLE:
        return &simd_portable;
    case NICEMU_SIMD_AVX2:
        return avx2 ? &simd_avx2 : NULL;
    default:
        return NULL;
    }
}
#else
const struct simd *simd_choose(u32 request)
{
    return request == NICEMU_SIMD_AUTO || request == NICEMU_SIMD_PORTABLE ? &simd_portable : NULL;
}
#endif
