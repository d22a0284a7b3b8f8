/* vloops.h: the host loops behind vector instructions, one table per host path. */
#ifndef NICEMU_VLOOPS_H
#define NICEMU_VLOOPS_H

#include "hart.h"

struct vec_loops {
    int unused;
};

extern const struct vec_loops vec_loops_portable;
extern const struct vec_loops vec_loops_avx2;
void simd_avx2_replace(op_fn fn[INSN_COUNT]);

#endif
