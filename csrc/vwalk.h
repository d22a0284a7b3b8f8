/* vwalk.h: where the elements of a vector access lie that are not one after the other: strided,
 * indexed, segments.  Owns: their addresses.  Which of them are active, and what happens there, is
 * not here. */
#ifndef NICEMU_VWALK_H
#define NICEMU_VWALK_H

#include "exec_v.h"

/* Element i, field f is at base + place(i) + f * size. */
struct walk {
    u64 base, stride; /* place(i) = i * stride */
    const u8 *index; /* unless NULL: element i of it, of index_size bytes */
    u32 index_size;
    u32 size; /* bytes of an element */
    u32 fields, spread; /* fields of a segment, register numbers from one to the next */
};

static inline u64 place(const struct walk *w, u64 i)
{
    u64 v = 0;
    if (!w->index)
        return w->base + i * w->stride;
    memcpy(&v, w->index + i * w->index_size, w->index_size);
    return w->base + v;
}

/* arg of the rows: log2 of the bytes of EEW | fields - 1 << 4 */
static inline u32 eew_of(const struct op *o)
{
    return o->arg & 15;
}
static inline u32 fields_of(const struct op *o)
{
    return 1 + (o->arg >> 4);
}

/* Data of EEW = SEW << k; segments one after the other. */
static inline struct walk walk_of(const struct hart *h, const struct op *o, int k)
{
    u32 size = 1u << (h->vt.sew + k);
    return (struct walk){.base = h->x[o->rs1],
                         .stride = (u64)size * fields_of(o),
                         .size = size,
                         .fields = fields_of(o),
                         .spread = vec_align(h, k) + 1};
}

/* Data of SEW, EEW is the indices'. */
static inline struct walk walk_by_index(const struct hart *h, const struct op *o)
{
    struct walk w = walk_of(h, o, 0);
    w.index = VREG(o->rs2);
    w.index_size = 1u << eew_of(o);
    return w;
}

#endif
