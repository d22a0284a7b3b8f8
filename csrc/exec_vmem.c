/* exec_vmem.c: vector loads and stores of elements that lie one after the other.
 * Fast path: every element below vl, all inside one region: one copy.  Otherwise element by
 * element, so that a fault leaves vstart at the element that met it and all before it done. */
#include "exec_v.h"

/* A unit-stride access of n elements of 1 << eew bytes each at addr. */
struct access {
    u64 addr, n;
    u32 eew;
    bool unmasked;
};

static inline bool is_active(const struct hart *h, struct access m, u64 i)
{
    return m.unmasked || h->v[i / 8] >> i % 8 & 1;
}

/* ---- loads -------------------------------------------------------------------------------- */

static inline int loaded(struct hart *h, const struct op *o, struct access m, const u8 *p)
{
    u64 bytes = m.n << m.eew;
    count_elements(h, m.n); /* before the copy, after which little need be kept */
    h->vector_load_bytes += bytes;
    h->loops->copy(VREG(o->rd), p, bytes);
    return NEXT;
}

static __attribute__((noinline)) int load_slowly(struct hart *h, const struct op *o,
                                                 struct access m)
{
    u8 *d = VREG(o->rd), active[MAX_VLENB];
    u64 size = 1ull << m.eew;
    const u8 *all = m.n ? load_slow(h, m.addr, m.n << m.eew) : NULL;
    if (all && m.unmasked && !h->vstart)
        return loaded(h, o, m, all);
    if (all) { /* some of them, and none can fault */
        u64 count = vec_active(h, m.unmasked, m.n, active);
        h->loops->copy(h->vtmp[0], all, m.n << m.eew);
        h->loops->merge[m.eew](d, d, h->vtmp[0], active, m.n);
        count_elements(h, count);
        h->vector_load_bytes += count << m.eew;
        h->vstart = 0;
        return NEXT;
    }
    for (u64 i = h->vstart; i < m.n; i++) {
        if (!is_active(h, m, i))
            continue;
        const u8 *p = load_slow(h, m.addr + i * size, size);
        if (!p) {
            h->vstart = i;
            hart_mark_dirty(h, NEED_V);
            return trap(h, o, CAUSE_LOAD, h->trap.tval);
        }
        memcpy(d + i * size, p, size);
        count_elements(h, 1);
        h->vector_load_bytes += size;
    }
    h->vstart = 0;
    return NEXT;
}

static inline int load(struct hart *h, const struct op *o, struct access m)
{
    const u8 *p = span_bytes(h->rspan, m.addr, m.n << m.eew);
    if (unlikely(!p || h->vstart || !m.unmasked))
        return load_slowly(h, o, m);
    return loaded(h, o, m, p);
}

/* ---- stores ------------------------------------------------------------------------------- */

static inline void stored(struct hart *h, const struct op *o, struct access m, u8 *p)
{
    u64 bytes = m.n << m.eew;
    count_elements(h, m.n);
    h->vector_store_bytes += bytes;
    h->loops->copy(p, VREG(o->rd), bytes);
}

static __attribute__((noinline)) int store_slowly(struct hart *h, const struct op *o,
                                                  struct access m)
{
    const u8 *s = VREG(o->rd);
    u8 active[MAX_VLENB], *group = h->vtmp[0];
    u64 size = 1ull << m.eew, htif = 0;
    bool hit = false;
    /* masked, in memory that only this hart watches: what stays is written back */
    u8 *p = m.unmasked ? NULL : span_bytes(h->wspan, m.addr, m.n << m.eew);
    if (p) {
        u64 count = vec_active(h, false, m.n, active);
        h->loops->copy(group, p, m.n << m.eew);
        h->loops->merge[m.eew](group, group, s, active, m.n);
        h->loops->copy(p, group, m.n << m.eew);
        count_elements(h, count);
        h->vector_store_bytes += count << m.eew;
        h->vstart = 0;
        return NEXT;
    }
    if (m.unmasked && !h->vstart && m.n) {
        u8 *all = store_slow(h, m.addr, m.n << m.eew);
        if (all) {
            stored(h, o, m, all);
            return store_hit_htif(h, m.addr) ? stop_htif(h, o, m.addr) : NEXT;
        }
    }
    for (u64 i = h->vstart; i < m.n; i++) {
        if (!is_active(h, m, i))
            continue;
        u64 addr = m.addr + i * size;
        p = store_slow(h, addr, size);
        if (!p) {
            h->vstart = i;
            hart_mark_dirty(h, NEED_V);
            return trap(h, o, CAUSE_STORE, h->trap.tval);
        }
        memcpy(p, s + i * size, size);
        count_elements(h, 1);
        h->vector_store_bytes += size;
        if (!hit && store_hit_htif(h, addr)) {
            hit = true;
            htif = addr;
        }
    }
    h->vstart = 0;
    return hit ? stop_htif(h, o, htif) : NEXT;
}

static inline int store(struct hart *h, const struct op *o, struct access m)
{
    u8 *p = span_bytes(h->wspan, m.addr, m.n << m.eew);
    if (unlikely(!p || h->vstart || !m.unmasked))
        return store_slowly(h, o, m);
    stored(h, o, m, p);
    return NEXT;
}

/* ---- the bodies --------------------------------------------------------------------------- */

/* For exec_vmem_x86.c: legal under this vtype, and not masked. */
static inline void note_plain(const struct hart *h, const struct op *o)
{
    if (o->vm)
        ((struct op *)o)->proved = h->vt.key;
}

/* Unit stride: arg = log2 of an element's bytes */
BODY(vle)
{
    if (unlikely(vec_misaligned(h, o->rd, o->arg - h->vt.sew) || (!o->vm && o->rd == 0)))
        return trap_illegal(h, o);
    note_plain(h, o);
    return load(h, o, (struct access){RS1, h->vl, o->arg, o->vm});
}
BODY(vse)
{
    if (unlikely(vec_misaligned(h, o->rd, o->arg - h->vt.sew)))
        return trap_illegal(h, o);
    note_plain(h, o);
    return store(h, o, (struct access){RS1, h->vl, o->arg, o->vm});
}

/* Mask registers: as many bytes as vl bits need, whatever SEW and LMUL */
BODY(vlm_v)
{
    if (unlikely(h->vt.ill))
        return trap_illegal(h, o);
    return load(h, o, (struct access){RS1, (h->vl + 7) / 8, 0, true});
}
BODY(vsm_v)
{
    if (unlikely(h->vt.ill))
        return trap_illegal(h, o);
    return store(h, o, (struct access){RS1, (h->vl + 7) / 8, 0, true});
}

/* Whole registers, whatever vtype and vl: arg = registers << 4 | log2 of an element's bytes, which
 * only vstart and the count of elements see */
static inline struct access whole(const struct hart *h, const struct op *o)
{
    u32 eew = o->arg & 15;
    return (struct access){RS1, (u64)(o->arg >> 4) * h->vlenb >> eew, eew, true};
}
BODY(vlr)
{
    if (unlikely(o->rd & ((o->arg >> 4) - 1)))
        return trap_illegal(h, o);
    return load(h, o, whole(h, o));
}
BODY(vsr)
{
    if (unlikely(o->rd & ((o->arg >> 4) - 1)))
        return trap_illegal(h, o);
    return store(h, o, whole(h, o));
}
