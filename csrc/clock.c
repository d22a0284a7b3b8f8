/* clock.c: see clock.h. */
#include "clock.h"

static bool before(const struct event *a, const struct event *b)
{
    return a->at != b->at ? a->at < b->at : a->number < b->number;
}

static struct event *queue_head(struct clock_queue *q)
{
    return &q->ring[q->head];
}

static void heap_add(struct clock *c, const struct event *e)
{
    u32 i = c->heap_n++;
    for (u32 up; i && before(e, &c->heap[up = (i - 1) / 2]); i = up)
        c->heap[i] = c->heap[up];
    c->heap[i] = *e;
}

static void heap_take(struct clock *c, struct event *out)
{
    *out = c->heap[0];
    struct event last = c->heap[--c->heap_n];
    u32 i = 0;
    for (u32 down; (down = 2 * i + 1) < c->heap_n; i = down) {
        if (down + 1 < c->heap_n && before(&c->heap[down + 1], &c->heap[down]))
            down++;
        if (!before(&c->heap[down], &last))
            break;
        c->heap[i] = c->heap[down];
    }
    c->heap[i] = last;
}

void clock_add(struct clock *c, u64 at, u32 kind, u32 which, void *what)
{
    struct event e = {at, c->added++, what, kind, which};
    for (u32 i = 0; i < CLOCK_QUEUES; i++) {
        struct clock_queue *q = &c->queue[i];
        u32 end = (q->head + q->n) % CLOCK_QUEUE_ROOM;
        if (q->n == CLOCK_QUEUE_ROOM || (q->n && q->ring[(end - 1) % CLOCK_QUEUE_ROOM].at > at))
            continue;
        q->ring[end] = e;
        q->n++;
        return;
    }
    heap_add(c, &e);
}

bool clock_next(struct clock *c, u64 until, struct event *out)
{
    const struct event *first = c->heap_n ? &c->heap[0] : NULL;
    struct clock_queue *from = NULL;
    for (u32 i = 0; i < CLOCK_QUEUES; i++) {
        struct clock_queue *q = &c->queue[i];
        if (q->n && (!first || before(queue_head(q), first))) {
            first = queue_head(q);
            from = q;
        }
    }
    if (!first || first->at > until)
        return false;
    if (from) {
        *out = *first;
        from->head = (from->head + 1) % CLOCK_QUEUE_ROOM;
        from->n--;
    } else {
        heap_take(c, out);
    }
    c->now = out->at;
    return true;
}

u64 clock_waiting(const struct clock *c)
{
    u64 n = c->heap_n;
    for (u32 i = 0; i < CLOCK_QUEUES; i++)
        n += c->queue[i].n;
    return n;
}
