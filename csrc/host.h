/* host.h: the worker's end: chunks go up, at most a window of them at a time; results come down.
 * Owns: which lanes wait for what, resends by timer, storing of results.  Which chunk has which
 * turn is group.c's; what happens when resends do not help, failure.c's. */
#ifndef NICEMU_HOST_H
#define NICEMU_HOST_H

#include "outlet.h"

struct host {
    u32 node;
    u32 parent[PLANES]; /* nodes */
    u32 up[PLANES]; /* directions */
    struct worker *worker[MAX_GROUPS];
    nicemu_node_counters counters;
};

/* A lane whose chunk has been sent. */
struct wait {
    bool busy;
    u32 resends; /* while no device was at work on it */
    struct place place; /* of the turn */
    u64 record; /* number in the trace of the turn's beginning */
    u64 deadline, patience; /* virtual time of the next resend, and from there to the one after */
};

/* A host in a group. */
struct worker {
    struct host *host;
    struct group *group;
    struct outlet *outlet;
    struct buffers *buffers;
    u32 index; /* in the group */
    u32 as_child[PLANES]; /* which child of its device it is */
    struct place next[PLANES]; /* of the next turn to send */
    struct wait *wait[PLANES]; /* window of them */
    u64 timeout; /* picoseconds from the first sending to the first resend */
    bool copies; /* frames take a copy of the input: it may change while they are under way */
    u32 waiting; /* lanes that are busy */
    bool timed; /* a timer is running */
};

enum { LONGEST_PATIENCE = 8 }; /* times the timeout */

/* Send what the window has room for, of its own accord: a result that makes room is host_receive's
 * affair. */
void worker_send(struct worker *w, u64 now);
/* Resend what is overdue; the time of the next look, or 0 when nothing waits. */
u64 worker_tick(struct worker *w, u64 now);
/* Stop waiting for anything on a plane, and go on there with that turn. */
void worker_leave_plane(struct worker *w, u32 plane, struct place next);
/* A frame that has passed the wire's checks: what was done with it. */
enum verdict host_receive(struct host *h, const struct packet *p, const struct frame *f, u64 now);

#endif
