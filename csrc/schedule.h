/* schedule.h: the cores, DMA engines and banks of a NIC over virtual time: which of them takes what
 * is handed to them, from when until when. Owns: when each is idle again, and who waits for whom.
 * What is handed to them, and what a call asks, is its callers' affair: payloads are device.c's,
 * handlers and what these leave chunk.c's, and all of a host's own NIC relay.c's. */
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
    u32 engines; /* DMA engines of a queue: a device's clusters have one each, with a queue of its
                    own; a host's own NIC has one queue for all of them */
    u64 phase; /* time at which cycle 0 begins */
    u64 core_free[MAX_HARTS], dma_free[MAX_HARTS]; /* times from which they are idle */
    struct inbound_queue inbound[MAX_HARTS];
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

/* The core of a cluster that takes something at that time: the first that is idle, or will be. */
u32 sched_core(const struct sched *s, u32 cluster, u64 at);

#define NO_ENGINE (~0u)
#define NEVER (~0ull)

/* The engine that moves at once what is parsed at that time; NO_ENGINE: it waits, since the engines
 * of that queue are busy then, or others are ready. */
u32 sched_engine(const struct sched *s, u32 queue, u64 at);
/* When somebody is to ask whether sched_awake, and will not already; NEVER: there is no need. */
u64 sched_wake(struct sched *s, u32 queue, u64 now);
/* Is it that time, and an engine idle: which?  It moves at once whose turn it is. */
bool sched_awake(struct sched *s, u32 queue, u64 now, u32 *engine);

/* Nothing is under way: cycles begin `now`, so that what follows takes the same time whenever it is
 * begun. */
void sched_begin(struct sched *s, u64 now);

/* A payload is moved to that address of a cluster's scratchpad from `start` on, when its engine is
 * idle; it is `now`: from when until when. */
struct period sched_move_in(struct sched *s, u32 cluster, u64 address, u64 bytes, u64 start,
                            u64 now);
/* What was ready at `at` is moved from there in the last cycles of the way out: that takes banks,
 * and no time of the engine. */
void sched_move_out(struct sched *s, u32 cluster, u64 address, u64 bytes, u64 at);

/* A handler that takes the time `alone` when nobody is in its way, and asks for those banks then,
 * is handed to a core at `at`: from when until when it runs.  What of that is more than `alone`, it
 * waits for banks. */
struct period sched_run(struct sched *s, u32 core, u64 at, u64 alone, const nicemu_beat *beats,
                        u64 n);

void sched_close(struct sched *s);

#endif
