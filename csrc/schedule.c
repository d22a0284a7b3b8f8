/* schedule.c: see schedule.h. */
#include "schedule.h"

/* Which of n takes something at that time: the first one that is idle, or will be. */
static u32 first_free(const u64 *free_at, u32 n, u64 at)
{
    u32 best = 0;
    for (u32 i = 1; i < n; i++)
        if (free_at[best] > at && free_at[i] < free_at[best])
            best = i;
    return best;
}

u32 sched_engine(const struct sched *s, u64 at)
{
    return first_free(s->dma_free, sched_cluster(s, s->cores - 1) + 1, at);
}

u32 sched_core(const struct sched *s, u32 cluster, u64 at)
{
    u32 n = s->costs.cluster ? s->costs.cluster : s->cores, first = cluster * n;
    return first + first_free(s->core_free + first, n, at);
}

/* The cycle of that time; 0 where no clock runs, and nobody asks for banks. */
static u64 cycle_of(const struct sched *s, u64 at)
{
    return s->costs.cycle ? (at - s->phase) / s->costs.cycle : 0;
}

void sched_begin(struct sched *s, u64 now)
{
    s->phase = s->costs.cycle ? now % s->costs.cycle : 0;
}

struct period sched_move_in(struct sched *s, u32 cluster, u64 address, u64 bytes, u64 at, u64 now)
{
    struct booking *banks = &s->banks[cluster];
    u64 *idle = &s->dma_free[cluster], start = later(*idle, at);
    *idle = start + bytes * s->costs.dma_byte / FEMTOSECONDS;
    if (s->costs.banks.banks) {
        booking_forget(banks, cycle_of(s, now));
        booking_move(banks, &s->costs.banks, cycle_of(s, start), address, bytes);
        s->starved |= banks->starved;
    }
    return (struct period){start, *idle};
}

void sched_move_out(struct sched *s, u32 cluster, u64 address, u64 bytes, u64 at)
{
    const nicemu_costs *c = &s->costs;
    u64 takes = bytes * c->dma_byte / FEMTOSECONDS, before = later(c->egress, takes) - takes;
    if (c->banks.banks)
        booking_move(&s->banks[cluster], &c->banks, cycle_of(s, at + before), address, bytes);
    s->starved |= s->banks[cluster].starved;
}

struct period sched_run(struct sched *s, u32 core, u64 at, u64 alone, const nicemu_beat *beats,
                        u64 n)
{
    struct booking *banks = &s->banks[sched_cluster(s, core)];
    u64 *idle = &s->core_free[core], start = later(*idle, at), waits = 0;
    if (s->costs.banks.banks)
        waits = booking_run(banks, &s->costs.banks, cycle_of(s, start), alone / s->costs.cycle,
                            beats, n);
    s->starved |= banks->starved;
    *idle = start + alone + waits * s->costs.cycle;
    return (struct period){start, *idle};
}

void sched_close(struct sched *s)
{
    for (u32 i = 0; i < MAX_HARTS; i++)
        booking_close(&s->banks[i]);
}
