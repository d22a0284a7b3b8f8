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

void trace_close(struct trace *t)
{
    free(t->spans);
    *t = (struct trace){0};
}
