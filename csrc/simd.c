/* simd.c: what this CPU can do, asked once per nicemu_open.  Own cpuid, because
 * __builtin_cpu_supports answers 0 under some compilers' run-time libraries. */
#include "simd.h"
#include "vloops.h"

const struct simd simd_portable = {"portable", &vec_loops_portable, false, NULL};

#if defined(__x86_64__)
#include <cpuid.h>

static void replace_avx2(op_fn fn[INSN_COUNT])
{
    f_avx2_replace(fn);
    vmem_avx2_replace(fn);
    vloops_avx2_replace(fn);
}
static void replace_avx512(op_fn fn[INSN_COUNT])
{
    f_avx2_replace(fn);
    vmem_avx512_replace(fn);
    vloops_avx512_replace(fn);
}
const struct simd simd_avx2 = {"avx2", &vec_loops_avx2, true, replace_avx2};
const struct simd simd_avx512 = {"avx512", &vec_loops_avx512, true, replace_avx512};

/* Does the CPU have all of this, in ecx of leaf 1 and ebx of leaf 7, and does the OS save the
 * registers of xcr0? */
static bool cpu_has(u32 leaf1, u32 leaf7, u32 xcr0)
{
    u32 a, b, c, d, lo, hi;
    if (!__get_cpuid(1, &a, &b, &c, &d) || (c & leaf1) != leaf1)
        return false;
    __asm__("xgetbv" : "=a"(lo), "=d"(hi) : "c"(0)); /* leaf1 has OSXSAVE */
    return (lo & xcr0) == xcr0 && __get_cpuid_count(7, 0, &a, &b, &c, &d) && (b & leaf7) == leaf7;
}

/* What vloops_avx2.c and vloops_avx512.c are compiled for. */
enum {
    FMA_OSXSAVE_F16C = 1 << 12 | 1 << 27 | 1 << 29,
    BMI_AVX2_BMI2 = 1 << 3 | 1 << 5 | 1 << 8,
    F_DQ_BW = 1 << 16 | 1 << 17 | 1 << 30,
    XMM_YMM = 0x06,
    MASKS_ZMM = 0xe0
};
static const u32 VL = 1u << 31;

static bool cpu_has_avx2(void)
{
    return cpu_has(FMA_OSXSAVE_F16C, BMI_AVX2_BMI2, XMM_YMM);
}
static bool cpu_has_avx512(void)
{
    return cpu_has(FMA_OSXSAVE_F16C, BMI_AVX2_BMI2 | F_DQ_BW | VL, XMM_YMM | MASKS_ZMM);
}

const struct simd *simd_choose(u32 request)
{
    switch (request) {
    case NICEMU_SIMD_AUTO:
        return cpu_has_avx512() ? &simd_avx512 : cpu_has_avx2() ? &simd_avx2 : &simd_portable;
    case NICEMU_SIMD_PORTABLE:
        return &simd_portable;
    case NICEMU_SIMD_AVX2:
        return cpu_has_avx2() ? &simd_avx2 : NULL;
    case NICEMU_SIMD_AVX512:
        return cpu_has_avx512() ? &simd_avx512 : NULL;
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
