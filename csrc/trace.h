/* trace.h: what happens when, in virtual time, put down one after the other while it happens.
 * Owns: the memory of the records.  What each says is nicemu.h's; who does something puts it down.
 */
#ifndef NICEMU_TRACE_H
#define NICEMU_TRACE_H

#include "base.h"
#include "nicemu.h"

struct trace {
    bool on;
    bool cut; /* the host had no memory for a record: none is put down after it */
    u64 frame; /* number of the record of the frame that is being received; 0: there is none */
    nicemu_span *spans;
    u64 n, room;
};

u64 trace_add(struct trace *t, const nicemu_span *span);
/* Put a record down, where the trace is on; its number, from 1 on, or 0. */
static inline u64 trace_put(struct trace *t, const nicemu_span *span)
{
    return t->on ? trace_add(t, span) : 0;
}
void trace_close(struct trace *t);

#endif
