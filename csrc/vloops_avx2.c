#include "vloops.h"
const struct vec_loops vec_loops_avx2;
void simd_avx2_replace(op_fn fn[INSN_COUNT])
{
    (void)fn;
}
