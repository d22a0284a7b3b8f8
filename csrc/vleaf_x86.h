/* vleaf_x86.h: the FP vector instructions that sums are made of, as small leaf functions around the
 * loops of vloops_x86.h.  For inclusion by vloops_avx2.c and vloops_avx512.c, after their tables.
 * They do the plain case, as exec_vmem_x86.c does for loads and stores: operands that exec_v.c has
 * found legal under the same vtype, no mask, no vstart, a rounding mode that the table is for.
 * Everything else is exec_v.c's. */
#ifndef NICEMU_VLEAF_X86_H
#define NICEMU_VLEAF_X86_H

#include "exec_v.h"

enum { LOG2_SIZE_16 = 1, LOG2_SIZE_32 = 2 };

static inline bool plain(const struct hart *h, const struct op *o, u32 sew)
{
    return o->proved == h->vt.key && h->vt.sew == sew && !h->vstart && o->vm &&
           h->loops == &VEC_LOOPS;
}

/* An instruction: the body of its other cases; the SEW of this one, its loop, and what b is. */
#define LEAF(insn, sew, body, loop, b)                                                             \
    static int leaf_##insn##_##sew(struct hart *h, const struct op *o, u64 last)                   \
    {                                                                                              \
        if (unlikely(!plain(h, o, LOG2_SIZE_##sew)))                                               \
            return body(h, o, last);                                                               \
        count_elements(h, h->vl);                                                                  \
        loop(h, VREG(o->rd), VREG(o->rs2), b, h->vl);                                              \
        return NEXT;                                                                               \
    }
#define NUMBER_BF16 (&(u64){unbox(h, o->rs1, true)})
LEAF(vfadd_vv, 32, x_vf_vv, vfadd_32, VREG(o->rs1))
LEAF(vfadd_vv, 16, leaf_vfadd_vv_32, vfadd_16, VREG(o->rs1))
LEAF(vfwadd_vv, 16, x_vf_w_vv, vfwadd_16, VREG(o->rs1))
LEAF(vfwadd_wv, 16, x_vf_w_wv, vfwadd_w_16, VREG(o->rs1))
LEAF(vfncvt_f_f_w, 16, x_vf_n_w, vfncvt_f_f_16, VREG(o->rs2))
LEAF(vfwcvtbf16_f_f_v, 16, x_vf_w_v, vfwcvtbf16_f_f_16, VREG(o->rs2))
LEAF(vfncvtbf16_f_f_w, 16, x_vf_n_w, vfncvtbf16_f_f_16, VREG(o->rs2))
LEAF(vfwmaccbf16_vv, 16, x_vf_wa_vv, vfwmaccbf16_16, VREG(o->rs1))
LEAF(vfwmaccbf16_vf, 16, x_vf_wa_vbf, vfwmaccbf16_16_scalar, NUMBER_BF16)

static void leaves_replace(op_fn fn[INSN_COUNT])
{
    fn[I_vfadd_vv] = leaf_vfadd_vv_16;
    fn[I_vfwadd_vv] = leaf_vfwadd_vv_16;
    fn[I_vfwadd_wv] = leaf_vfwadd_wv_16;
    fn[I_vfncvt_f_f_w] = leaf_vfncvt_f_f_w_16;
    fn[I_vfwcvtbf16_f_f_v] = leaf_vfwcvtbf16_f_f_v_16;
    fn[I_vfncvtbf16_f_f_w] = leaf_vfncvtbf16_f_f_w_16;
    fn[I_vfwmaccbf16_vv] = leaf_vfwmaccbf16_vv_16;
    fn[I_vfwmaccbf16_vf] = leaf_vfwmaccbf16_vf_16;
}

#endif
