/* host.c: see host.h. */
#include "host.h"
#include "stream.h"

static struct message contribution(const struct worker *w, u32 plane, const struct turn *t)
{
    const struct group *g = w->group;
    const nicemu_exchange *e = &t->exchange->what;
    struct piece piece = exchange_piece(t->exchange, t->chunk);
    bool gives = piece.count && (!t->moved || t->owner == (i32)w->index);
    u8 flags = !gives ? FLAG_EMPTY : t->moved ? FLAG_MOVED : 0;
    struct message m = {.packet = {
                            .kind = KIND_UP,
                            .type = (u8)(t->moved ? e->result_type : e->types[NICEMU_ELEMENTS]),
                            .flags = flags,
                            .job = g->job,
                            .group = g->number,
                            .seq = t->exchange->seq,
                            .chunk = t->chunk,
                            .round = t->place.round,
                            .lane = (u16)t->place.lane,
                            .child = (u16)w->as_child[plane],
                            .contributors = 1,
                            .count = gives ? (u16)piece.count : 0,
                        }};
    if (!gives)
        return m;
    if (t->moved && t->result) {
        m.owner = t->result;
        m.payload = t->result->bytes;
        m.bytes = piece.count * e->result_bytes;
        return m;
    }
    u64 from = piece.element - (e->blocks ? e->blocks[w->index] : 0);
    m.payload = (const u8 *)e->inputs[w->index] + from * e->kinds[NICEMU_ELEMENTS].bytes;
    m.bytes = piece.count * e->kinds[NICEMU_ELEMENTS].bytes;
    return m;
}

/* Put down that a turn begins, or ends with a frame. */
static u64 put_turn(const struct worker *w, u32 kind, u32 plane, const struct turn *t, u64 from,
                    u64 now)
{
    return TRACE(&w->outlet->trace, .kind = kind, .where = w->host->node, .begin = now, .end = now,
                 .from = from, .plane = plane, .group = w->group->number, .lane = t->place.lane,
                 .round = t->place.round, .seq = t->exchange->seq, .chunk = t->chunk);
}

static void send(const struct worker *w, u32 plane, const struct turn *t, u64 now)
{
    struct message m = contribution(w, plane, t);
    m.source = w->wait[plane][t->place.lane].record;
    struct buffer *copy = NULL;
    if (w->copies && m.bytes && !m.owner) {
        copy = buffer_take(w->buffers, w->group->job);
        memcpy(copy->bytes, m.payload, m.bytes);
        m.owner = copy;
        m.payload = copy->bytes;
    }
    w->outlet->send(w->outlet->fabric, w->host->up[plane], &m, later(now, t->exchange->posted));
    buffer_release(copy);
}

/* Send what no frame has brought about: the way to it is the time since its collective began. */
static void send_unasked(const struct worker *w, u32 plane, const struct turn *t, u64 now)
{
    outlet_since(w->outlet, t->exchange->started, STAGE_TIMER, now);
    send(w, plane, t, now);
}

/* The next turn on a plane, if the window has room for it: it is to be sent. */
static struct turn *open_turn(struct worker *w, u32 plane, u64 now)
{
    struct place place = w->next[plane];
    struct wait *wait = &w->wait[plane][place.lane];
    struct turn *t = wait->busy ? NULL : group_turn(w->group, plane, place);
    if (!t)
        return NULL;
    *wait = (struct wait){
        .busy = true, .place = place, .deadline = now + w->timeout, .patience = w->timeout};
    wait->record = put_turn(w, NICEMU_SPAN_OPEN, plane, t, 0, now);
    w->next[plane] = place_after(place, w->group->window);
    w->waiting++;
    return t;
}

void worker_send(struct worker *w, u64 now)
{
    for (u32 plane = 0; plane < w->group->planes; plane++)
        for (const struct turn *t; (t = open_turn(w, plane, now));)
            send_unasked(w, plane, t, now);
}

/* A result has made room in the window.  The way to it is that of the collectives which began when
 * its own did; the others have waited for the window since they began. */
static void go_on(struct worker *w, u64 now)
{
    struct outlet *o = w->outlet;
    if (!o->timed) { /* nobody asks for the way */
        worker_send(w, now);
        return;
    }
    const struct path way = o->path;
    for (u32 plane = 0; plane < w->group->planes; plane++)
        for (const struct turn *t; (t = open_turn(w, plane, now));) {
            if (way.begin == t->exchange->started)
                o->path = way;
            else
                outlet_since(o, t->exchange->started, STAGE_QUEUE, now);
            send(w, plane, t, now);
        }
}

u64 worker_tick(struct worker *w, u64 now)
{
    u64 next = 0;
    for (u32 plane = 0; plane < w->group->planes; plane++) {
        for (u32 lane = 0; lane < w->group->window; lane++) {
            struct wait *wait = &w->wait[plane][lane];
            if (wait->busy && wait->deadline <= now) {
                struct turn *t = group_find(w->group, plane, wait->place);
                bool counts = w->outlet->waits(w->outlet->fabric, w, plane, t, wait->resends);
                if (!wait->busy) /* given up */
                    continue;
                wait->resends += counts;
                wait->patience *= wait->patience < LONGEST_PATIENCE * w->timeout ? 2 : 1;
                wait->deadline = now + wait->patience;
                w->host->counters.resent++;
                send_unasked(w, plane, t, now);
            }
            if (wait->busy && (!next || wait->deadline < next))
                next = wait->deadline;
        }
    }
    return next;
}

void worker_leave_plane(struct worker *w, u32 plane, struct place next)
{
    for (u32 lane = 0; lane < w->group->window; lane++) {
        w->waiting -= w->wait[plane][lane].busy;
        w->wait[plane][lane].busy = false;
    }
    w->next[plane] = next;
}

/* A result of so many bytes pushes its own beginning out of the host's cache. */
enum { PAST_CACHE = 8 << 20 };

/* The part of the payload that this worker keeps. */
static void store(const struct worker *w, const struct turn *t, const u8 *payload)
{
    const nicemu_exchange *e = &t->exchange->what;
    struct piece piece = exchange_piece(t->exchange, t->chunk);
    u64 from = e->from[w->index], to = e->to[w->index], end = piece.element + piece.count;
    u64 first = piece.element > from ? piece.element : from, last = end < to ? end : to;
    if (first >= last || !e->outputs[w->index])
        return;
    u8 *d = (u8 *)e->outputs[w->index] + (first - from) * e->result_bytes;
    const u8 *s = payload + (first - piece.element) * e->result_bytes;
    u64 n = (last - first) * e->result_bytes;
    if ((to - from) * e->result_bytes >= PAST_CACHE)
        stream_copy(d, s, n);
    else
        memcpy(d, s, n);
}

static enum verdict accept(struct worker *w, u32 plane, const struct packet *p,
                           const struct frame *f, u64 now)
{
    struct wait *wait = &w->wait[plane][p->lane];
    struct place place = {p->round, p->lane};
    if (!wait->busy || !place_same(wait->place, place))
        return place_before(place, w->next[plane]) ? DROP_STALE : DROP_UNWANTED;
    struct turn *t = group_find(w->group, plane, place);
    if (!t || p->seq != t->exchange->seq || p->chunk != t->chunk)
        return DROP_KEY;
    if (!turn_result_fits(w->group, t, p))
        return DROP_SHAPE;
    store(w, t, f->payload);
    wait->busy = false;
    w->waiting--;
    put_turn(w, NICEMU_SPAN_CLOSE, plane, t, w->outlet->trace.frame, now);
    w->outlet->stored(w->outlet->fabric, w, t, f->owner);
    return ACCEPTED;
}

enum verdict host_receive(struct host *h, const struct packet *p, const struct frame *f, u64 now)
{
    struct worker *w = h->worker[p->group % MAX_GROUPS];
    u32 plane = 0;
    while (plane < PLANES && h->parent[plane] != p->src)
        plane++;
    if (p->dst != h->node || plane == PLANES)
        return DROP_NODE;
    if (!w || w->group->number != p->group || w->group->job != p->job || plane >= w->group->planes)
        return DROP_GROUP;
    if (w->group->failed)
        return DROP_FAILED;
    if (p->lane >= w->group->window)
        return DROP_LANE;
    if (p->child != w->as_child[plane])
        return DROP_CHILD;
    if (p->kind != KIND_DOWN)
        return DROP_KIND;
    enum verdict v = accept(w, plane, p, f, now);
    if (!v)
        go_on(w, now);
    return v;
}
