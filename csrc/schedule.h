/* schedule.h: the cores, DMA engines and banks of a NIC over virtual time: which of them takes what
 * is handed to them, from when until when. Owns: when each is idle again, and who waits for whom.
 * What is handed to them, and what a call asks, is its callers' affair: device.c's handlers, and
 * relay.c's of a host's own NIC. */
#ifndef NICEMU_SCHEDULE_H
#define NICEMU_SCHEDULE_H

#include "booking.h"
#include "cores.h"
#include "path.h"

/* Clusters are numbered like their DMA engines. */
struct sched {
    nicemu_costs costs;
    u32 cores;
    u64 phase; /* a time at which a cycle begins */
    u64 core_free[MAX_HARTS], dma_free[MAX_HARTS]; /* times from which they are idle */
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

/* The first DMA engine that is idle at that time, or will be; likewise of the cores of a cluster.
 */
u32 sched_engine(const struct sched *s, u64 at);
u32 sched_core(const struct sched *s, u32 cluster, u64 at);

/* Nothing is under way, and a cycle begins `now`: what follows takes the same time whenever it is
 * done. */
void sched_begin(struct sched *s, u64 now);

/* A payload is to be moved to that address of a cluster's scratchpad, from `at` on; it is `now`. */
struct period sched_move_in(struct sched *s, u32 cluster, u64 address, u64 bytes, u64 at, u64 now);
/* What leaves is moved from there, so that it is out when it was ready at `at`. */
void sched_move_out(struct sched *s, u32 cluster, u64 address, u64 bytes, u64 at);

/* Handlers that take so long when they are alone, and ask for those banks then, are handed to a
 * core at `at`: from when until when.  What is more than `alone` of that, they wait for banks. */
struct period sched_run(struct sched *s, u32 core, u64 at, u64 alone, const nicemu_beat *beats,
                        u64 n);

void sched_close(struct sched *s);

#endif
