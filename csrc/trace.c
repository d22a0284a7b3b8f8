/* trace.c: see trace.h. */
#include "trace.h"

#include <stdlib.h>

enum { FIRST_ROOM = 1024 };

u64 trace_add(struct trace *t, const nicemu_span *span)
{
    if (t->cut)
        return 0;
    if (t->n == t->room) {
        u64 room = t->room ? 2 * t->room : FIRST_ROOM;
        nicemu_span *p = realloc(t->spans, room * sizeof *p);
        if (!p) {
            t->cut = true;
            return 0;
        }
        t->spans = p;
        t->room = room;
    }
    t->spans[t->n++] = *span;
    return t->n;
}

u64 trace_step(struct trace *t, struct path *way, nicemu_span *span)
{
    span->via = way->via;
    u64 number = trace_add(t, span);
    if (number)
        way->via = number;
    return number;
}

void trace_close(struct trace *t)
{
    free(t->spans);
    *t = (struct trace){0};
}
