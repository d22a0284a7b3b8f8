/* station.c: see station.h. */
#include "station.h"

bool station_open(struct station *s, u64 slots, u64 leaving)
{
    struct hart *h = s->hart;
    u64 bad;
    cores_show(h, 0, NULL, 0);
    h->watched = false; /* cores share no memory that one of them may write */
    s->host_arguments = map_bytes(&h->map, s->arguments, ARGUMENT_BYTES, NICEMU_R, &bad);
    const struct region *r = map_find(&h->map, s->accumulator, NICEMU_R | NICEMU_W);
    if (!r || !s->host_arguments)
        return false;
    u64 begin = s->accumulator - r->base, payloads = s->payloads - r->base;
    u64 destination = s->destination - r->base, end = s->end - r->base;
    if (begin > payloads || payloads > destination || destination > end || end > r->size ||
        slots * s->room > destination - payloads || leaving > end - destination)
        return false;
    u64 above = destination + leaving;
    s->scratch = (u32)(r - h->map.r);
    s->below = (struct region){s->accumulator, payloads - begin, r->host + begin, r->perm};
    s->above = (struct region){r->base + above, end - above, r->host + above, r->perm};
    return true;
}

void station_close(const struct station *s)
{
    cores_show(s->hart, s->scratch, NULL, 0);
}

u32 widest(const u64 entries[NICEMU_MAX_FAN_IN + 1], u32 payloads)
{
    u32 k = payloads < NICEMU_MAX_FAN_IN ? payloads : NICEMU_MAX_FAN_IN;
    while (!entries[k])
        k--;
    return k;
}

bool station_call(const struct station *s, const struct call *call, struct call_end *end)
{
    struct region windows[MAX_WINDOWS];
    u8 *table = s->host_arguments + CONTEXT_BYTES;
    u32 n = 0;
    for (; n < call->k; n++) {
        const struct payload *p = &call->payloads[n];
        u64 slot = s->payloads + (call->slot + n) * s->room;
        windows[n] = (struct region){slot, p->n, (u8 *)p->bytes, NICEMU_R};
    }
    if (call->destination.bytes)
        windows[n++] = (struct region){s->destination, call->destination.n, call->destination.bytes,
                                       NICEMU_R | NICEMU_W};
    for (u32 i = 0; i < n; i++)
        put64(table + 8 * i, windows[i].base);
    windows[n++] = s->below;
    windows[n++] = s->above;
    cores_show(s->hart, s->scratch, windows, n);
    u64 args[4] = {s->accumulator, s->arguments + CONTEXT_BYTES, call->count, s->arguments};
    hart_call(s->hart, call->pc, s->stack_top, args, call->budget, &end->stop);
    if (end->stop.reason != NICEMU_STOP_RETURN)
        return false;
    end->status = s->hart->x[10];
    return end->status == 0;
}
