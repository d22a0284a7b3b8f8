/* simd.h: how the host computes: one row per instruction set of the host that is worth a path.
 * Owns: the choice at run time.  The loops themselves are in vloops_*.c. */
#ifndef NICEMU_SIMD_H
#define NICEMU_SIMD_H

#include "hart.h"

struct simd {
    const char *name;
    const struct vec_loops *loops; /* every loop, valid for RNE, RTZ, RDN, RUP */
    bool host_fp; /* IEEE arithmetic of the host's FP unit may be used (else: integer code only) */
    void (*replace)(op_fn fn[INSN_COUNT]); /* bodies that this host does faster; or NULL */
};

extern const struct simd simd_portable;
extern const struct simd simd_avx2; /* rows only where the compiler can make them */
extern const struct simd simd_avx512;

void f_avx2_replace(op_fn fn[INSN_COUNT]); /* exec_f_avx2.c */
void vmem_avx2_replace(op_fn fn[INSN_COUNT]); /* exec_vmem_x86.c */
void vmem_avx512_replace(op_fn fn[INSN_COUNT]);
void vloops_avx2_replace(op_fn fn[INSN_COUNT]); /* vleaf_x86.h */
void vloops_avx512_replace(op_fn fn[INSN_COUNT]);

/* The path for a NICEMU_SIMD_* request, or NULL when this host cannot run it. */
const struct simd *simd_choose(u32 request);

#endif
