/* exec_vred.c: reductions: vd[0] = vs1[0] and every active element of vs2, first to last, which is
 * an order that the unordered sums may have too.  What one step is, is in vloops.def (RED, FRED).
 */
#include "exec_v.h"

/* The active elements of a group, one after the other in `packed`; returns how many. */
static u64 pack_active(const struct hart *h, u8 *packed, const u8 *group)
{
    u32 size = 1u << h->vt.sew;
    u64 n = 0;
    for (u64 i = 0; i < h->vl; i++)
        if (h->v[i / 8] >> i % 8 & 1)
            memcpy(packed + n++ * size, group + i * size, size);
    return n;
}

/* The scalar operands are of SEW << wide; they and vs2 may share registers. */
static inline int reduce(struct hart *h, const struct op *o, int wide)
{
    if (unlikely(vec_misaligned(h, o->rs2, 0) || h->vstart || !vec_loop_exists(h, o)))
        return trap_illegal(h, o);
    if (unlikely(!h->vl))
        return NEXT;
    const u8 *a = VREG(o->rs2);
    u64 result, n = h->vl;
    if (!o->vm) {
        n = pack_active(h, h->vtmp[0], a);
        a = h->vtmp[0];
    }
    memcpy(&result, VREG(o->rs1), sizeof result);
    h->loops->loop[o->arg].fn[h->vt.sew](h, &result, a, NULL, n);
    memcpy(VREG(o->rd), &result, 1u << (h->vt.sew + wide));
    count_elements(h, n);
    return NEXT;
}
BODY(v_red)
{
    return reduce(h, o, 0);
}
BODY(v_wred)
{
    return reduce(h, o, 1);
}
