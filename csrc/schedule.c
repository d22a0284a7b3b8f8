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

/* The first DMA engine of a queue that is idle at that time, or will be. */
static u32 engine_of(const struct sched *s, u32 queue, u64 at)
{
    u32 first = queue * s->engines;
    return first + first_free(s->dma_free + first, s->engines, at);
}

u32 sched_engine(const struct sched *s, u32 queue, u64 at)
{
    const struct inbound *first = s->inbound[queue].first;
    u32 engine = engine_of(s, queue, at);
    return s->dma_free[engine] > at || (first && first->ready <= at) ? NO_ENGINE : engine;
}

u64 sched_wake(struct sched *s, u32 queue, u64 now)
{
    struct inbound_queue *q = &s->inbound[queue];
    if (!q->first)
        return NEVER;
    u64 idle = later(s->dma_free[engine_of(s, queue, now)], now);
    u64 at = later(idle, q->first->ready);
    if (q->wake && q->wake <= at)
        return NEVER;
    return q->wake = at;
}

bool sched_awake(struct sched *s, u32 queue, u64 now, u32 *engine)
{
    struct inbound_queue *q = &s->inbound[queue];
    if (q->wake != now) /* there was reason to look earlier */
        return false;
    q->wake = 0;
    *engine = engine_of(s, queue, now);
    return s->dma_free[*engine] <= now;
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

struct period sched_move_in(struct sched *s, u32 cluster, u64 address, u64 bytes, u64 start,
                            u64 now)
{
    struct booking *banks = &s->banks[cluster];
    u64 end = start + bytes * s->costs.dma_byte / FEMTOSECONDS;
    s->dma_free[cluster] = end;
    if (s->costs.banks.banks) {
        booking_forget(banks, cycle_of(s, now));
        booking_move(banks, &s->costs.banks, cycle_of(s, start), address, bytes);
        s->starved |= banks->starved;
    }
    return (struct period){start, end};
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
