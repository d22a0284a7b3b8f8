/* station.c: see station.h. */
#include "station.h"

static u8 *reach(const struct hart *h, u64 addr, u64 n)
{
    u64 bad;
    return map_bytes(&h->map, addr, n, NICEMU_R, &bad);
}

bool station_open(struct station *s, u64 payloads, u64 leaving)
{
    s->hart->watched = false; /* cores share no memory that one of them may write */
    s->host_payloads = reach(s->hart, s->payloads, s->room * payloads);
    s->host_destination = reach(s->hart, s->destination, leaving);
    s->host_arguments = reach(s->hart, s->arguments, ARGUMENT_BYTES);
    return s->host_payloads && s->host_destination && s->host_arguments;
}

u32 widest(const u64 entries[NICEMU_MAX_FAN_IN + 1], u32 payloads)
{
    u32 k = payloads < NICEMU_MAX_FAN_IN ? payloads : NICEMU_MAX_FAN_IN;
    while (!entries[k])
        k--;
    return k;
}

bool station_call(const struct station *s, u64 pc, u32 i, u32 k, u64 count, u64 budget,
                  struct call_end *end)
{
    u8 *table = s->host_arguments + CONTEXT_BYTES;
    for (u32 j = 0; j < k; j++)
        put64(table + 8 * j, s->payloads + (i + j) * s->room);
    if (!k)
        put64(table + 0, s->destination);
    u64 args[4] = {s->accumulator, s->arguments + CONTEXT_BYTES, count, s->arguments};
    hart_call(s->hart, pc, s->stack_top, args, budget, &end->stop);
    if (end->stop.reason != NICEMU_STOP_RETURN)
        return false;
    end->status = s->hart->x[10];
    return end->status == 0;
}
