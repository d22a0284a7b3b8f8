/* trace.h: what happens when, in virtual time, put down one after the other while it happens.
 * Owns: the memory of the records.  What each says is nicemu.h's; who does something puts it down.
 */
#ifndef NICEMU_TRACE_H
#define NICEMU_TRACE_H

#include "nicemu.h"
#include "path.h"

struct trace {
    bool on;
    bool cut; /* the host had no memory for a record: none is put down after it */
    u64 frame; /* number of the record of the frame that is being received; 0: there is none */
    nicemu_span *spans;
    u64 n, room;
};

/* Put a record down: its number, from 1 on, or 0 where there was no memory. */
u64 trace_add(struct trace *t, const nicemu_span *span);
/* A record with these fields, which nobody works out where the trace is off: then 0. */
#define TRACE(t, ...) (unlikely((t)->on) ? trace_add(t, &(nicemu_span){__VA_ARGS__}) : 0)
/* A record of a step on a way. */
u64 trace_step(struct trace *t, struct path *way, nicemu_span *span);
#define TRACE_STEP(t, way, ...)                                                                    \
    (unlikely((t)->on) ? trace_step(t, way, &(nicemu_span){__VA_ARGS__}) : 0)
void trace_close(struct trace *t);

#endif
