/* group.c: see group.h. */
#include "group.h"

static u32 block_of(const struct exchange *e, u32 chunk)
{
    u32 low = 0, high = e->what.workers;
    while (high - low > 1) {
        u32 mid = low + (high - low) / 2;
        if (e->block_chunk[mid] <= chunk)
            low = mid;
        else
            high = mid;
    }
    return low;
}

struct piece exchange_piece(const struct exchange *e, u32 chunk)
{
    u64 begin = 0, end = e->what.count;
    i32 owner = NO_OWNER;
    if (e->what.blocks) {
        owner = (i32)block_of(e, chunk);
        begin = e->what.blocks[owner];
        end = e->what.blocks[owner + 1];
        chunk -= e->block_chunk[owner];
    }
    u64 element = begin + (u64)chunk * e->what.chunk, left = end - element;
    return (struct piece){element, left < e->what.chunk ? (u32)left : e->what.chunk, owner};
}

static struct turn *at_place(struct group *g, u32 plane, struct place place)
{
    return &g->plan[plane].ring[(place.round & 1) * g->window + place.lane];
}

struct turn *group_find(struct group *g, u32 plane, struct place place)
{
    struct turn *t = at_place(g, plane, place);
    return t->waiting && place_same(t->place, place) ? t : NULL;
}

/* Even chunks are plane 0's, odd ones plane 1's; a plane that is alone takes all, in order. */
static bool next_chunk(struct group *g, u32 plane, struct turn *out)
{
    bool alone = g->planes == 1 || !g->plan[1 - plane].up;
    for (struct exchange *e = g->first; e; e = e->after) {
        u32 of = alone ? e->next[1] < e->next[0] : plane;
        if (e->next[of] >= e->chunks)
            continue;
        *out = (struct turn){.exchange = e, .chunk = e->next[of], .moved = e->what.moved};
        out->owner = e->what.moved ? exchange_piece(e, out->chunk).owner : NO_OWNER;
        e->next[of] += 2;
        return true;
    }
    return false;
}

struct turn *group_turn(struct group *g, u32 plane, struct place place)
{
    struct plan *plan = &g->plan[plane];
    struct turn *t = group_find(g, plane, place);
    if (t || !place_same(place, plan->next) || !plan->up || g->failed)
        return t;
    t = at_place(g, plane, place);
    if (t->waiting) /* a worker is two rounds behind */
        return NULL;
    if (g->again_next < g->again_n)
        *t = g->again[g->again_next++];
    else if (!next_chunk(g, plane, t))
        return NULL;
    t->place = place;
    plan->next = place_after(place, g->window);
    t->waiting = g->workers;
    return t;
}

bool turn_result_fits(const struct group *g, const struct turn *t, const struct packet *p)
{
    u32 count = t->moved && t->owner == NO_OWNER ? 0 : exchange_piece(t->exchange, t->chunk).count;
    u8 flags = !count ? FLAG_EMPTY : t->moved ? FLAG_MOVED : 0;
    return p->count == count && p->flags == flags && p->type == t->exchange->what.result_type &&
           p->contributors == g->workers;
}

bool turn_done(struct turn *t, u32 worker, struct buffer *result)
{
    if (!t->result && result) {
        t->result = buffer_hold(result);
        t->holder = worker;
    }
    if (--t->waiting)
        return false;
    buffer_replace(&t->result, NULL);
    return true;
}

u32 group_leave_plane(struct group *g, u32 plane)
{
    struct plan *plan = &g->plan[plane];
    u32 n = 0;
    struct place oldest = {plan->next.round - 2, plan->next.lane}; /* the ring from its oldest on */
    plan->up = false;
    g->again_n -= g->again_next;
    memmove(g->again, g->again + g->again_next, g->again_n * sizeof *g->again);
    g->again_next = 0;
    for (struct place p = oldest; !place_same(p, plan->next); p = place_after(p, g->window)) {
        struct turn *t = group_find(g, plane, p);
        if (!t)
            continue;
        struct turn *again = &g->again[g->again_n++];
        *again = *t;
        g->again_left += !t->again;
        again->again = true;
        if (t->result) {
            again->moved = true;
            again->owner = (i32)t->holder;
        }
        t->waiting = 0;
        t->result = NULL; /* it is again's now */
        n++;
    }
    return n;
}

u32 group_use_plane(struct group *g, u32 plane)
{
    struct plan *plan = &g->plan[plane];
    plan->next = (struct place){plan->next.round + 2, 0};
    plan->up = true;
    return plan->next.round;
}
