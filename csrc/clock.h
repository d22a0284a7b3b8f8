/* clock.h: virtual time: events in the order of their time, and those of one time in the order in
 * which they were added.
 * Owns: the queue of events and what time it is.  What an event means belongs to fabric.c; what
 * takes how long, to who adds it.
 *
 * Most events are added in the order of their times, shifted by one of a few delays.  So an event
 * goes to the end of the first queue that stays in order with it, and to a heap where none does. */
#ifndef NICEMU_CLOCK_H
#define NICEMU_CLOCK_H

#include "base.h"

struct event {
    u64 at; /* picoseconds */
    u64 number; /* of additions before this one */
    void *what;
    u32 kind, which; /* what it means: the owner's business */
};

enum { CLOCK_QUEUES = 6, CLOCK_QUEUE_ROOM = 1024 };

struct clock_queue {
    u32 head, n;
    struct event ring[CLOCK_QUEUE_ROOM];
};

struct clock {
    u64 now;
    u64 added;
    u32 heap_n, heap_room;
    struct event *heap; /* heap_room entries, the owner's */
    struct clock_queue queue[CLOCK_QUEUES];
};

/* Add an event; its time is at least now.  The heap must have room for one more. */
void clock_add(struct clock *c, u64 at, u32 kind, u32 which, void *what);
/* Take the next event and set now to its time; false when there is none up to `until`. */
bool clock_next(struct clock *c, u64 until, struct event *out);
/* Events that wait. */
u64 clock_waiting(const struct clock *c);

#endif
