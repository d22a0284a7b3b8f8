/* vloops.h: the host loops behind vector instructions, one table per host path.
 * Owns: the names of the loops (rows of vloops.def) and what a loop may assume.
 *
 * A loop computes n elements, number 0 up to n - 1, and knows nothing of masks, registers or traps:
 * that is exec_v.c's matter.  It may assume that d is disjoint from a and b, or the same array
 * (then of the same width), or overlaps it as the V chapter allows for results that are wider or
 * narrower than their sources.  It therefore goes forward and, of what it works on at a time, reads
 * all before it writes any.  It never writes past n elements and never raises flags for others. */
#ifndef NICEMU_VLOOPS_H
#define NICEMU_VLOOPS_H

#include "hart.h"

#define LOOP(family, name, ...) L_##name,
enum vloop {
#include "vloops.def"
    L_COUNT
};
#undef LOOP

/* d = destination, read as well by multiply-add; a = vs2; b = vs1 or a group of copies of the
 * scalar.  FP loops round by h->frm and OR into h->fflags (or into the host's sticky flags). */
typedef void (*vloop_fn)(struct hart *h, void *d, const void *a, const void *b, u64 n);

/* By log2(SEW / 8) of vtype. */
struct vec_loop {
    vloop_fn fn[4]; /* NULL: no such instruction */
    vloop_fn fn_scalar[4]; /* where b is one number for all elements; NULL: fn, with copies of it */
};

struct vec_loops {
    struct vec_loop loop[L_COUNT];
    /* d[i] = bit i of mask ? b[i] : a[i], by log2 of the width in bytes; d may be a or b */
    void (*merge[4])(void *d, const void *a, const void *b, const u8 *mask, u64 n);
    void (*splat[4])(void *d, u64 v, u64 n); /* d[i] = v */
    /* memcpy, in pieces as large as the loops read */
    void (*copy)(void *restrict d, const void *restrict s, u64 n);
    /* bit i of mask = byte i of truth (0 or 1), bits from n on kept */
    void (*pack)(u8 *mask, const u8 *truth, u64 n);
};

extern const struct vec_loops vec_loops_portable;
extern const struct vec_loops vec_loops_avx2;
extern const struct vec_loops vec_loops_avx512;

#endif
