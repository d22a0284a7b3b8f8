/* inbound.c: see inbound.h. */
#include "inbound.h"

/* A message waits for its turn, behind those that are ready no later. */
static void line_up(struct inbounds *q, struct inbound *first)
{
    struct inbound **at = &q->first;
    if (q->first && q->last->ready <= first->ready)
        at = &q->last->after;
    while (*at && (*at)->ready <= first->ready)
        at = &(*at)->after;
    first->after = *at;
    *at = first;
    if (!first->after)
        q->last = first;
}

void inbound_add(struct inbounds *q, struct inbound *i)
{
    struct inbound *first = q->first;
    while (first && (first->sender != i->sender || first->message != i->message))
        first = first->after;
    i->behind = NULL;
    i->last = i;
    if (!first) {
        line_up(q, i);
        return;
    }
    first->last->behind = i;
    first->last = i;
}

struct inbound *inbound_next(struct inbounds *q, u64 now)
{
    struct inbound *i = q->first;
    if (!i || i->ready > now)
        return NULL;
    q->first = i->after;
    if (i->behind) {
        i->behind->last = i->last;
        i->behind->ready = i->behind->ready > now ? i->behind->ready : now;
        line_up(q, i->behind);
    }
    return i;
}

struct inbound *inbound_withdraw(struct inbounds *q,
                                 bool (*fits)(const struct inbound *i, const void *what),
                                 const void *what)
{
    struct inbound *out = NULL, **end = &out, *first = q->first;
    q->first = NULL;
    while (first) {
        struct inbound *next = first->after;
        for (struct inbound *i = first, *behind; i; i = behind) {
            behind = i->behind;
            if (!fits(i, what)) {
                inbound_add(q, i);
                continue;
            }
            i->behind = NULL;
            *end = i;
            end = &i->behind;
        }
        first = next;
    }
    return out;
}
