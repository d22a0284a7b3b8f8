/* schedule.h: the cores, DMA engines and banks of a NIC over virtual time: which of them takes what
 * is handed to them, from when until when. Owns: when each is idle again, and who waits for whom.
 * What is handed to them, and what a call asks, is its callers' affair: device.c's handlers, and
 * relay.c's of a host's own NIC. */
#ifndef NICEMU_SCHEDULE_H
#define NICEMU_SCHEDULE_H

#include "booking.h"
#include "cores.h"
#include "inbound.h"
#include "path.h"

/* Clusters are numbered like their DMA engines. */
struct sched {
    nicemu_costs costs;
    u32 cores;
    u64 phase; /* time at which cycle 0 begins */
    u64 core_free[MAX_HARTS], dma_free[MAX_HARTS]; /* times from which they are idle */
    struct inbounds inbound[MAX_HARTS]; /* what waits for a DMA engine; a host's own NIC has one
                                           queue for all of them */
    struct booking banks[MAX_HARTS]; /* of each cluster */
    bool starved; /* the host had no memory for what has been handed out */
};

/* When something is done: what begins at `start` is over at `end`. */
struct period {
    u64 start, end;
};

static inline u32 sched_cluster(const struct sched *s, u32 core)
{
    return s->costs.cluster ? core / s->costs.cluster : 0;
}

/* May what is parsed at that time be moved at once: is the cluster's DMA engine idle then, and does
 * nobody wait for it? */
static inline bool sched_idle(const struct sched *s, u32 cluster, u64 at)
{
    return !s->inbound[cluster].first && s->dma_free[cluster] <= at;
}

/* The first DMA engine that is idle at that time, or will be; likewise of the cores of a cluster.
 */
u32 sched_engine(const struct sched *s, u64 at);
u32 sched_core(const struct sched *s, u32 cluster, u64 at);

/* Nothing is under way: cycles begin `now`, so that what follows takes the same time whenever it is
 * begun. */
void sched_begin(struct sched *s, u64 now);

/* A payload is to be moved to that address of a cluster's scratchpad, not before `at`; it is `now`:
 * from when until when it is. */
struct period sched_move_in(struct sched *s, u32 cluster, u64 address, u64 bytes, u64 at, u64 now);
/* What was ready at `at` is moved from there in the last cycles of the way out. */
void sched_move_out(struct sched *s, u32 cluster, u64 address, u64 bytes, u64 at);

/* A handler that takes the time `alone` when nobody is in its way, and asks for those banks then,
 * is handed to a core at `at`: from when until when it runs.  What of that is more than `alone`, it
 * waits for banks. */
struct period sched_run(struct sched *s, u32 core, u64 at, u64 alone, const nicemu_beat *beats,
                        u64 n);

void sched_close(struct sched *s);

#endif
