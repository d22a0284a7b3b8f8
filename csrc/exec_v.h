/* exec_v.h: the vocabulary that the bodies of vector instructions share.
 * Owns: which register numbers an operand may have, which elements are active,
 * what a scalar operand is. */
#ifndef NICEMU_EXEC_V_H
#define NICEMU_EXEC_V_H

#include "vloops.h"

#define VREG(r) (h->vreg[r])

enum { ILLEGAL_OPERAND = 0x80 };

/* Bits that must be 0 in the register number of an operand with EEW = SEW << k, k in -3..3;
 * ILLEGAL_OPERAND when vtype allows no such operand. */
static inline u32 vec_align(const struct hart *h, int k)
{
    return h->vt.align[3 + k];
}
static inline bool vec_misaligned(const struct hart *h, u32 r, int k)
{
    return (r | ILLEGAL_OPERAND) & vec_align(h, k);
}

/* May vd and a source group share registers? */
static inline bool vec_overlap_ok(const struct hart *h, u32 vd, int kd, u32 vs, int ks)
{
    u32 md = vec_align(h, kd), ms = vec_align(h, ks);
    if (kd > ks) { /* only as the upper end of vd, and not with LMUL < 1 */
        bool upper = h->vt.lmul + ks >= 0 && (vs & md) == md - ms;
        return (vs & ~md) != vd || upper;
    }
    if (kd < ks) /* only at the lower end of the source */
        return (vd & ~ms) != vs || vd == vs;
    return true;
}

/* Is anything but "all elements below vl" to be computed? */
static inline bool vec_partial(const struct hart *h, const struct op *o)
{
    return !o->vm || h->vstart;
}

/* Bit i of active: element i of n is to be computed.  Returns how many are. */
u64 vec_active(const struct hart *h, bool unmasked, u64 n, u8 active[MAX_VLENB]);

/* Has the row's loop (o->arg) a meaning at SEW?  For f16 that takes Zvfh. */
bool vec_loop_exists(const struct hart *h, const struct op *o);

/* The scalar of an f register as SEW bits: not boxed is the canonical NaN. */
static inline u64 unbox(const struct hart *h, u32 r, bool bf16)
{
    u64 v = h->f[r];
    if (h->vt.sew == 1)
        return v >= 0xffffffffffff0000 ? (u16)v : bf16 ? 0x7fc0 : 0x7e00;
    if (h->vt.sew == 2)
        return v >= 0xffffffff00000000 ? (u32)v : 0x7fc00000;
    return v;
}

#endif
