/* inbound.c: see inbound.h. */
#include "inbound.h"

/* A message waits for its turn, behind those that are ready no later: few of those that wait are
 * ready later than a message that has just become so. */
static void line_up(struct inbound_queue *q, struct inbound *first)
{
    struct inbound *before = q->last;
    while (before && before->ready > first->ready)
        before = before->before;
    first->before = before;
    first->after = before ? before->after : q->first;
    *(before ? &before->after : &q->first) = first;
    *(first->after ? &first->after->before : &q->last) = first;
}

static void step_out(struct inbound_queue *q, struct inbound *first)
{
    *(first->before ? &first->before->after : &q->first) = first->after;
    *(first->after ? &first->after->before : &q->last) = first->before;
}

/* Where a sender's list has a message. */
static struct inbound **entry_of(struct inbound *first)
{
    struct inbound **at = first->sender;
    while (*at != first)
        at = &(*at)->sibling;
    return at;
}

struct inbound *inbound_find(const struct inbound_queue *q, struct inbound *const *sender,
                             u32 message)
{
    struct inbound *first = *sender;
    while (first && (first->message != message || first->queue != q))
        first = first->sibling;
    return first;
}

void inbound_add(struct inbound_queue *q, struct inbound *i)
{
    struct inbound *first = inbound_find(q, i->sender, i->message);
    i->queue = q;
    i->behind = NULL;
    if (first) {
        first->last->behind = i;
        first->last = i;
        return;
    }
    i->last = i;
    i->sibling = *i->sender;
    *i->sender = i;
    line_up(q, i);
}

/* The first of a message waits no longer: the next one, ready no earlier than `from`, stands for
 * it. */
static void advance(struct inbound *first, u64 from)
{
    struct inbound *next = first->behind, **entry = entry_of(first);
    step_out(first->queue, first);
    if (!next) {
        *entry = first->sibling;
        return;
    }
    next->last = first->last;
    next->sibling = first->sibling;
    next->ready = next->ready > from ? next->ready : from;
    *entry = next;
    line_up(next->queue, next);
}

struct inbound *inbound_next(struct inbound_queue *q, u64 now)
{
    struct inbound *first = q->first;
    if (!first || first->ready > now)
        return NULL;
    advance(first, now);
    return first;
}

void inbound_hold(struct inbound_queue *q, u64 until)
{
    struct inbound *first = q->first;
    step_out(q, first);
    first->ready = until;
    line_up(q, first);
}

struct inbound *inbound_withdraw(struct inbound **sender,
                                 bool (*fits)(const struct inbound *i, const void *what),
                                 const void *what)
{
    struct inbound *out = NULL, **end = &out, *first, *sibling;
    for (first = *sender; first; first = sibling) {
        sibling = first->sibling;
        for (struct inbound *i = first->behind, *before = first, *behind; i; i = behind) {
            behind = i->behind;
            if (!fits(i, what)) {
                before = i;
                continue;
            }
            before->behind = behind;
            first->last = behind ? first->last : before;
            *end = i;
            end = &i->behind;
        }
        if (fits(first, what)) {
            advance(first, first->ready);
            *end = first;
            end = &first->behind;
        }
    }
    *end = NULL;
    return out;
}
