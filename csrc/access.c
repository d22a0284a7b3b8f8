/* access.c: see access.h. */
#include "access.h"

#include "vwalk.h"

static void add(struct record *r, nicemu_access access)
{
    u64 at = r->used + r->pending++;
    if (at < r->size)
        r->room[at] = access;
}

static void add_elements(struct record *r, const struct hart *h, const struct op *o,
                         const nicemu_timing *m)
{
    const struct insn_row *row = &insn_rows[o->id];
    bool indexed = row->format == FORMAT_VLX || row->format == FORMAT_VSX;
    struct walk w = indexed ? walk_by_index(h, o) : walk_of(h, o, (int)eew_of(o) - (int)h->vt.sew);
    if (row->format == FORMAT_VLS || row->format == FORMAT_VSS)
        w.stride = h->x[o->rs2];
    for (u64 i = 0, n = 0; i < h->vl; i++)
        for (u32 f = 0; f < w.fields; f++, n++)
            add(r, (nicemu_access){.cycle = n / m->strided,
                                   .address = place(&w, i) + f * w.size,
                                   .bytes = w.size,
                                   .beat = (uint16_t)m->port});
}

void access_begin(struct record *r, const struct hart *h, const struct op *o,
                  const nicemu_timing *m)
{
    const struct insn_row *row = &insn_rows[o->id];
    enum insn_class cls = row->cls;
    bool vector = cls == CLASS_VLOAD || cls == CLASS_VSTORE;
    r->pending = 0;
    r->spread = vector && !unit_stride(row);
    if (r->spread)
        add_elements(r, h, o, m);
    else if (vector || cls == CLASS_LOAD || cls == CLASS_STORE || cls == CLASS_AMO)
        add(r, (nicemu_access){.address =
                                   h->x[o->rs1] + (vector || cls == CLASS_AMO ? 0 : (u64)o->imm),
                               .beat = (uint16_t)(vector ? m->word / 8 : m->port),
                               .atomic = cls == CLASS_AMO});
}

void access_end(struct record *r, const nicemu_timing *m, const struct asked *asked, u64 start)
{
    u64 end = r->used + r->pending;
    for (u64 i = r->used; i < end && i < r->size; i++) {
        nicemu_access *a = &r->room[i];
        a->cycle += start + asked->at;
        if (r->spread)
            continue;
        a->bytes = asked->bytes;
        /* the cost has every word of the port that a scalar access touches before it is done */
        if (asked->scalar)
            a->cycle -= (a->address % m->port + a->bytes - 1) / m->port * m->crossing;
    }
    if (r->spread || asked->bytes) /* 0: vl is */
        r->used = end;
    r->pending = 0;
}
