/* vloops_avx2.c: the table of loops for hosts with AVX2, FMA and F16C, where the host's FP unit
 * computes in the guest's rounding mode and collects the guest's flags (fp_env.h). */
#if defined(__x86_64__)
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma,f16c,bmi,bmi2"))), apply_to = function)
#else
#pragma GCC target("avx2,fma,f16c,bmi,bmi2")
#endif
#include "vloops_int.h"

#define VEC_LOOPS vec_loops_avx2
#include "vloops_table.h"

#if defined(__clang__)
#pragma clang attribute pop
#endif
#endif
