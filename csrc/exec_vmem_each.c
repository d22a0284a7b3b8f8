/* exec_vmem_each.c: vector loads and stores whose elements do not lie one after the other: strided,
 * indexed, segments; and those that give up quietly, fault-only-first.
 * They go element by element, in order, and within a segment field by field, so that the unordered
 * indexed ones are ordered too.  A fault leaves vstart at the element that met it. */
#include "vwalk.h"

static inline bool is_active(const struct hart *h, const struct op *o, u64 i)
{
    return o->vm || (h->v[i / 8] >> i % 8 & 1);
}

/* May data with EEW = SEW << k be there? */
static bool data_legal(const struct hart *h, const struct op *o, int k, bool load)
{
    if (vec_misaligned(h, o->rd, k) || (load && !o->vm && o->rd == 0))
        return false;
    u32 registers = fields_of(o) * (vec_align(h, k) + 1);
    return registers <= 8 && o->rd + registers <= 32;
}

/* `quiet`: past element 0 a fault only ends the load, and shortens vl */
static int load_each(struct hart *h, const struct op *o, const struct walk *w, bool quiet)
{
    for (u64 i = h->vstart; i < h->vl; i++) {
        if (!is_active(h, o, i))
            continue;
        u64 addr = place(w, i);
        for (u32 f = 0; f < w->fields; f++, addr += w->size) {
            const u8 *p = span_scalar(h->rspan, addr);
            if (unlikely(!p) && !(p = load_slow(h, addr, w->size))) {
                if (quiet && i) {
                    h->vl = i;
                    break;
                }
                h->vstart = i;
                hart_mark_dirty(h, NEED_V);
                return trap(h, o, CAUSE_LOAD, h->trap.tval);
            }
            memcpy(VREG(o->rd + f * w->spread) + i * w->size, p, w->size);
            count_elements(h, 1);
            h->vector_load_bytes += w->size;
        }
    }
    h->vstart = 0;
    return NEXT;
}

static int store_each(struct hart *h, const struct op *o, const struct walk *w)
{
    u64 htif = 0;
    bool hit = false;
    for (u64 i = h->vstart; i < h->vl; i++) {
        if (!is_active(h, o, i))
            continue;
        u64 addr = place(w, i);
        for (u32 f = 0; f < w->fields; f++, addr += w->size) {
            u8 *p = span_scalar(h->wspan, addr);
            if (unlikely(!p) && !(p = store_slow(h, addr, w->size))) {
                h->vstart = i;
                hart_mark_dirty(h, NEED_V);
                return trap(h, o, CAUSE_STORE, h->trap.tval);
            }
            memcpy(p, VREG(o->rd + f * w->spread) + i * w->size, w->size);
            count_elements(h, 1);
            h->vector_store_bytes += w->size;
            if (!hit && store_hit_htif(h, addr)) {
                hit = true;
                htif = addr;
            }
        }
    }
    h->vstart = 0;
    return hit ? stop_htif(h, o, htif) : NEXT;
}

/* ---- unit stride and strided ---------------------------------------------------------------- */

static inline int load_strided(struct hart *h, const struct op *o, bool by_rs2, bool quiet)
{
    int k = (int)eew_of(o) - h->vt.sew;
    if (unlikely(!data_legal(h, o, k, true)))
        return trap_illegal(h, o);
    struct walk w = walk_of(h, o, k);
    w.stride = by_rs2 ? RS2 : w.stride;
    return load_each(h, o, &w, quiet);
}
static inline int store_strided(struct hart *h, const struct op *o, bool by_rs2)
{
    int k = (int)eew_of(o) - h->vt.sew;
    if (unlikely(!data_legal(h, o, k, false)))
        return trap_illegal(h, o);
    struct walk w = walk_of(h, o, k);
    w.stride = by_rs2 ? RS2 : w.stride;
    return store_each(h, o, &w);
}
BODY(vlseg)
{
    return load_strided(h, o, false, false);
}
BODY(vlff)
{
    return load_strided(h, o, false, true);
}
BODY(vls)
{
    return load_strided(h, o, true, false);
}
BODY(vsseg)
{
    return store_strided(h, o, false);
}
BODY(vss)
{
    return store_strided(h, o, true);
}

/* ---- indexed: data of SEW, EEW is the indices' ------------------------------------------------
 */

static bool indexed_legal(const struct hart *h, const struct op *o, bool load)
{
    int k = (int)eew_of(o) - h->vt.sew;
    if (!data_legal(h, o, 0, load) || vec_misaligned(h, o->rs2, k))
        return false;
    if (!load)
        return true;
    if (fields_of(o) == 1)
        return vec_overlap_ok(h, o->rd, 0, o->rs2, k);
    u32 registers = fields_of(o) * (vec_align(h, 0) + 1);
    return o->rd + registers <= o->rs2 || o->rs2 + vec_align(h, k) < o->rd;
}
BODY(vlx)
{
    if (unlikely(!indexed_legal(h, o, true)))
        return trap_illegal(h, o);
    struct walk w = walk_by_index(h, o);
    return load_each(h, o, &w, false);
}
BODY(vsx)
{
    if (unlikely(!indexed_legal(h, o, false)))
        return trap_illegal(h, o);
    struct walk w = walk_by_index(h, o);
    return store_each(h, o, &w);
}
