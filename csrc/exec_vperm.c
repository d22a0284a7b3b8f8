/* exec_vperm.c: vector instructions that move elements between positions or number them: slides,
 * gathers, compress, iota, and masks made of where the first bit is.
 * Where a source may be the destination, the result is made in vtmp and its active elements are
 * copied. */
#include "exec_v.h"

/* Element i of a group, zero-extended. */
static inline u64 element(const struct hart *h, const u8 *group, u64 i)
{
    u64 v = 0;
    switch (h->vt.sew) {
    case 0:
        return group[i];
    case 1:
        memcpy(&v, group + 2 * i, 2);
        return v;
    case 2:
        memcpy(&v, group + 4 * i, 4);
        return v;
    default:
        memcpy(&v, group + 8 * i, 8);
        return v;
    }
}
static inline void put_element(const struct hart *h, u8 *group, u64 i, u64 v)
{
    memcpy(group + (i << h->vt.sew), &v, 1u << h->vt.sew);
}
static inline bool bit_of(const u8 *mask, u64 i)
{
    return mask[i / 8] >> i % 8 & 1;
}

/* Do the groups of EEW = SEW << k at registers r share none? */
static bool apart(const struct hart *h, u32 d, int kd, u32 s, int ks)
{
    return d + vec_align(h, kd) < s || s + vec_align(h, ks) < d;
}
/* The same with the one register of a mask. */
static bool apart_from_mask(const struct hart *h, u32 d, u32 mask)
{
    return mask < d || d + vec_align(h, 0) < mask;
}

/* vd and vs2 of SEW; `over`: vd must not be vs2. */
static bool legal(const struct hart *h, const struct op *o, bool over)
{
    return !vec_misaligned(h, o->rd, 0) && !vec_misaligned(h, o->rs2, 0) && (o->vm || o->rd != 0) &&
           !(over && o->rd == o->rs2);
}

/* The active elements of vtmp[2] to vd. */
static int deliver(struct hart *h, const struct op *o)
{
    u8 active[MAX_VLENB], *d = VREG(o->rd);
    count_elements(h, vec_active(h, o->vm, h->vl, active));
    h->loops->merge[h->vt.sew](d, d, h->vtmp[2], active, h->vl);
    h->vstart = 0;
    return NEXT;
}

/* ---- slides ------------------------------------------------------------------------------- */

/* vd[i + offset] = vs2[i]; what is below offset stays */
static int slide_up(struct hart *h, const struct op *o, u64 offset)
{
    if (unlikely(!legal(h, o, true)))
        return trap_illegal(h, o);
    u64 n = h->vl, kept = offset < n ? offset : n, sew = h->vt.sew;
    memcpy(h->vtmp[2], VREG(o->rd), kept << sew);
    memcpy(h->vtmp[2] + (kept << sew), VREG(o->rs2), (n - kept) << sew);
    return deliver(h, o);
}
BODY(vslideup_vx)
{
    return slide_up(h, o, RS1);
}
BODY(vslideup_vi)
{
    return slide_up(h, o, IMM);
}

/* vd[i] = vs2[i + offset], 0 from VLMAX on */
static int slide_down(struct hart *h, const struct op *o, u64 offset)
{
    if (unlikely(!legal(h, o, false)))
        return trap_illegal(h, o);
    u64 n = h->vl, sew = h->vt.sew, left = offset < h->vt.vlmax ? h->vt.vlmax - offset : 0;
    u64 moved = left < n ? left : n;
    if (moved)
        memcpy(h->vtmp[2], VREG(o->rs2) + (offset << sew), moved << sew);
    memset(h->vtmp[2] + (moved << sew), 0, (n - moved) << sew);
    return deliver(h, o);
}
BODY(vslidedown_vx)
{
    return slide_down(h, o, RS1);
}
BODY(vslidedown_vi)
{
    return slide_down(h, o, IMM);
}

/* By one, with a scalar in the place that becomes free. */
static int slide_one(struct hart *h, const struct op *o, bool up, u64 scalar)
{
    if (unlikely(!legal(h, o, up)))
        return trap_illegal(h, o);
    u64 n = h->vl, size = 1u << h->vt.sew;
    if (n) {
        const u8 *a = VREG(o->rs2);
        memcpy(h->vtmp[2] + (up ? size : 0), a + (up ? 0 : size), (n - 1) * size);
        put_element(h, h->vtmp[2], up ? 0 : n - 1, scalar);
    }
    return deliver(h, o);
}
BODY(vslide1up_vx)
{
    return slide_one(h, o, true, RS1);
}
BODY(vslide1down_vx)
{
    return slide_one(h, o, false, RS1);
}
BODY(vfslide1up_vf)
{
    if (unlikely(!vec_loop_exists(h, o)))
        return trap_illegal(h, o);
    return slide_one(h, o, true, unbox(h, o->rs1, false));
}
BODY(vfslide1down_vf)
{
    if (unlikely(!vec_loop_exists(h, o)))
        return trap_illegal(h, o);
    return slide_one(h, o, false, unbox(h, o->rs1, false));
}

/* ---- gathers ------------------------------------------------------------------------------ */

static inline u64 gathered(const struct hart *h, const struct op *o, u64 index)
{
    return index < h->vt.vlmax ? element(h, VREG(o->rs2), index) : 0;
}
BODY(vrgather_vv)
{
    if (unlikely(!legal(h, o, true) || vec_misaligned(h, o->rs1, 0) || o->rd == o->rs1))
        return trap_illegal(h, o);
    for (u64 i = 0; i < h->vl; i++)
        put_element(h, h->vtmp[2], i, gathered(h, o, element(h, VREG(o->rs1), i)));
    return deliver(h, o);
}
/* Indices of 16 bits, whatever SEW */
BODY(vrgatherei16_vv)
{
    int k = 1 - h->vt.sew;
    if (unlikely(!legal(h, o, true) || vec_misaligned(h, o->rs1, k) ||
                 !apart(h, o->rd, 0, o->rs1, k)))
        return trap_illegal(h, o);
    for (u64 i = 0; i < h->vl; i++) {
        u16 index;
        memcpy(&index, VREG(o->rs1) + 2 * i, 2);
        put_element(h, h->vtmp[2], i, gathered(h, o, index));
    }
    return deliver(h, o);
}
static int gather_one(struct hart *h, const struct op *o, u64 index)
{
    if (unlikely(!legal(h, o, true)))
        return trap_illegal(h, o);
    h->loops->splat[h->vt.sew](h->vtmp[2], gathered(h, o, index), h->vl);
    return deliver(h, o);
}
BODY(vrgather_vx)
{
    return gather_one(h, o, RS1);
}
BODY(vrgather_vi)
{
    return gather_one(h, o, IMM);
}

/* The elements of vs2 whose bit in vs1 is set, one after the other. */
BODY(vcompress_vm)
{
    if (unlikely(!legal(h, o, true) || h->vstart || !apart_from_mask(h, o->rd, o->rs1)))
        return trap_illegal(h, o);
    u64 k = 0;
    for (u64 i = 0; i < h->vl; i++)
        if (bit_of(VREG(o->rs1), i))
            put_element(h, VREG(o->rd), k++, element(h, VREG(o->rs2), i));
    count_elements(h, h->vl);
    return NEXT;
}

/* ---- what the bits of a mask are preceded by ------------------------------------------------ */

/* vd[i] = active bits of vs2 below i */
BODY(viota_m)
{
    if (unlikely(vec_misaligned(h, o->rd, 0) || h->vstart || (!o->vm && o->rd == 0) ||
                 !apart_from_mask(h, o->rd, o->rs2)))
        return trap_illegal(h, o);
    u8 active[MAX_VLENB];
    u64 before = 0;
    count_elements(h, vec_active(h, o->vm, h->vl, active));
    for (u64 i = 0; i < h->vl; i++) {
        if (!bit_of(active, i))
            continue;
        put_element(h, VREG(o->rd), i, before);
        before += bit_of(VREG(o->rs2), i);
    }
    return NEXT;
}

/* vmsbf, vmsif, vmsof.  arg: bit 0 what is written before the first set bit of vs2, bit 1 at it */
BODY(v_first)
{
    if (unlikely(h->vt.ill || h->vstart || o->rd == o->rs2 || (!o->vm && o->rd == 0)))
        return trap_illegal(h, o);
    u8 active[MAX_VLENB], *d = VREG(o->rd);
    bool found = false;
    count_elements(h, vec_active(h, o->vm, h->vl, active));
    for (u64 i = 0; i < h->vl; i++) {
        if (!bit_of(active, i))
            continue;
        bool first = !found && bit_of(VREG(o->rs2), i);
        u32 value = found ? 0 : first ? o->arg >> 1 & 1 : o->arg & 1;
        d[i / 8] = (u8)((d[i / 8] & ~(1u << i % 8)) | value << i % 8);
        found |= first;
    }
    return NEXT;
}
