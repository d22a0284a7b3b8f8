/* relay.c: a collective by hosts, as virtual time sees it: messages whose frames cross the tree,
 * are merged or stored at their end, and let others go. Owns: which frame waits for which, their
 * way from host to host, the hosts' own NICs.  Frames carry no bytes here: what is merged, and the
 * cycles of that, the caller knows. */
#include "fabric.h"

#include <stdlib.h>

/* What waits for the frames of a message. */
struct follower {
    u32 message;
    bool there; /* at its end */
};

struct message_state {
    nicemu_relayed what;
    u32 first, frames; /* numbers of its frames in the relay */
    u32 followers; /* index of the first */
    u32 awaits; /* messages with frames that it waits for before it leaves, that brought none yet */
    bool begun; /* a frame is merged or stored */
    struct inbound *waiting; /* its frames, for a DMA engine at its end */
    u64 posted; /* virtual time from which its frames may leave, once it awaits none */
};

/* Frames that a frame waits for before it leaves, and the posting of its message; and frames,
 * itself among them, at its end. */
struct waiting {
    u32 before, there;
    u32 engine; /* that has moved it */
    u64 record; /* number in the trace of its last link */
};

struct relay {
    struct relay *next;
    u32 number;
    u32 messages, frames;
    u32 left; /* frames that are not merged or stored */
    u64 trips; /* of it, under way */
    bool failed;
    struct message_state *message; /* one more, for where the last one's followers end */
    struct follower *follower;
    struct waiting *waiting;
    u64 *cycles, *asked;
    nicemu_beat *beats;
    struct path path; /* the longest way to the end */
};

/* A frame under way, or in a NIC. */
struct trip {
    struct inbound inbound; /* while it waits for a DMA engine */
    struct trip *next; /* while free */
    struct relay *relay;
    u32 message, frame; /* frame of the message */
    u32 at; /* node */
    u32 engine; /* that moves it at its end */
    u32 direction, downs; /* of the link that it is on */
    struct path path;
    u64 record; /* number in the trace of what made it, of its last link, or of its handlers */
};

_Static_assert(offsetof(struct trip, inbound) == 0, "a trip is found by what waits");

static struct trip *trip_of(struct inbound *i)
{
    return (struct trip *)i;
}

/* ---- memory ----------------------------------------------------------------------------- */

enum { TRIPS = 64 }; /* that are made at once */

static void trip_free(struct nicemu_fabric *f, struct trip *t)
{
    t->relay->trips--;
    t->next = f->trips;
    f->trips = t;
}

/* NULL when the host has no memory left. */
static struct trip *trip_new(struct nicemu_fabric *f, struct relay *r, u32 message, u32 frame)
{
    if (!f->trips) {
        struct trip *more = fabric_slab(f, TRIPS * sizeof *more);
        for (u32 i = 0; more && i < TRIPS; i++) {
            more[i].next = f->trips;
            f->trips = &more[i];
        }
    }
    struct trip *t = f->trips;
    if (!t)
        return NULL;
    f->trips = t->next;
    r->trips++;
    *t = (struct trip){.relay = r, .message = message, .frame = frame, .direction = NOWHERE};
    return t;
}

void relay_free(struct nicemu_fabric *f, struct relay *r)
{
    struct relay **at = &f->relay;
    while (*at && *at != r)
        at = &(*at)->next;
    if (*at)
        *at = r->next;
    free(r->message);
    free(r->follower);
    free(r->waiting);
    free(r->cycles);
    free(r->asked);
    free(r->beats);
    free(r);
}

static bool add_for(struct nicemu_fabric *f, u64 at, enum event_kind kind, u32 which, void *what)
{
    struct clock *c = &f->clock;
    if (!fabric_grow((void **)&c->heap, &c->heap_room, c->heap_n + 1, sizeof *c->heap))
        return false;
    clock_add(c, at, kind, which, what);
    return true;
}

static bool add(struct nicemu_fabric *f, u64 at, enum event_kind kind, struct trip *t)
{
    return add_for(f, at, kind, 0, t);
}

/* ---- the way of a frame ----------------------------------------------------------------- */

static struct message_state *message_of(const struct trip *t)
{
    return &t->relay->message[t->message];
}

static u32 count_of(const struct message_state *m, u32 frame)
{
    u64 left = m->what.count - (u64)frame * m->what.chunk;
    return left < m->what.chunk ? (u32)left : m->what.chunk;
}

static u32 plane_of(const struct nicemu_fabric *f, u32 frame)
{
    return frame % f->config.planes;
}

/* The direction from a node towards a host in the tree. */
static u32 towards(const struct nicemu_fabric *f, u32 at, u32 host, u32 plane)
{
    for (u32 node = host; node != NOWHERE; node = f->node[node]->parent[plane])
        if (f->node[node]->parent[plane] == at)
            return f->node[node]->up[plane] + 1;
    return f->node[at]->up[plane];
}

/* The relay cannot end: a link is down. */
static void cut_off(struct nicemu_fabric *f, struct relay *r, u32 host)
{
    if (!r->failed)
        fabric_report(f, &(nicemu_event){.kind = NICEMU_FAILED, .seq = r->number, .node = host});
    r->failed = true;
}

/* ---- the trace -------------------------------------------------------------------------- */

/* What a record says of a frame of a relay. */
static nicemu_span span_of(const struct nicemu_fabric *f, u32 kind, const struct trip *t, u64 begin,
                           u64 end)
{
    return (nicemu_span){.kind = kind,
                         .begin = begin,
                         .end = end,
                         .from = t->record,
                         .plane = plane_of(f, t->frame),
                         .seq = t->relay->number,
                         .lane = t->message,
                         .chunk = t->frame};
}

static void put_sent(struct nicemu_fabric *f, struct trip *t, u32 bytes, u32 copies)
{
    if (!f->outlet.trace.on)
        return;
    nicemu_span span = span_of(f, NICEMU_SPAN_SENT, t, f->clock.now, f->clock.now);
    span.where = t->direction;
    span.bytes = bytes;
    span.copies = copies;
    t->record = trace_add(&f->outlet.trace, &span);
}

static void put_link(struct nicemu_fabric *f, struct trip *t, struct departure d)
{
    if (!f->outlet.trace.on)
        return;
    nicemu_span span = span_of(f, NICEMU_SPAN_LINK, t, d.start, d.end);
    span.where = t->direction;
    t->record = trace_step(&f->outlet.trace, &t->path, &span);
}

/* The link that a frame has come over, or 0. */
static u64 came_by(const struct trip *t)
{
    return t->direction == NOWHERE ? 0 : t->record;
}

static void put_dma(struct nicemu_fabric *f, struct trip *t, struct period when, u64 bytes)
{
    if (!f->outlet.trace.on)
        return;
    nicemu_span span = span_of(f, NICEMU_SPAN_DMA, t, when.start, when.end);
    span.where = message_of(t)->what.to;
    span.from = came_by(t);
    span.core = t->engine;
    span.bytes = (u32)bytes;
    trace_step(&f->outlet.trace, &t->path, &span);
}

/* Its handlers, which take it as it came by that link. */
static void put_core(struct nicemu_fabric *f, struct trip *t, u32 core, struct period when,
                     u64 link)
{
    if (!f->outlet.trace.on)
        return;
    nicemu_span span = span_of(f, NICEMU_SPAN_CORE, t, when.start, when.end);
    span.where = message_of(t)->what.to;
    span.core = core;
    span.cycles = t->relay->cycles[message_of(t)->what.cycles + t->frame];
    span.conflicts = (when.end - when.start) / f->config.hosts.cycle - span.cycles;
    t->record = trace_step(&f->outlet.trace, &t->path, &span);
    TRACE(&f->outlet.trace, .kind = NICEMU_SPAN_TAKEN, .where = span.where, .begin = when.start,
          .end = when.start, .from = link, .by = t->record);
}

/* ---- over the links --------------------------------------------------------------------- */

/* Over the next link. */
static bool depart(struct nicemu_fabric *f, struct trip *t)
{
    const struct message_state *m = message_of(t);
    t->direction = towards(f, t->at, m->what.to, plane_of(f, t->frame));
    struct link *l = &f->cable[t->direction / 2]->direction[t->direction & 1];
    struct fate fate = link_send(l);
    t->downs = l->downs;
    struct frame frame = {.payload_bytes = count_of(m, t->frame) * m->what.bytes};
    put_sent(f, t, frame_bytes(&frame), fate.copies);
    if (!fate.copies) {
        cut_off(f, t->relay, m->what.from);
        trip_free(f, t);
        return true;
    }
    struct departure d = link_depart(l, frame_bytes(&frame), f->clock.now);
    u64 arrival = d.end + fate.delay[0];
    path_until(&t->path, STAGE_QUEUE, d.start);
    path_until(&t->path, l->config.pcie ? STAGE_PCIE : STAGE_WIRE, d.end);
    path_until(&t->path, l->config.pcie ? STAGE_PCIE : STAGE_HOP, arrival);
    put_link(f, t, d);
    f->under_way++;
    return add(f, arrival, EVENT_ARRIVES, t);
}

static bool depart_at(struct nicemu_fabric *f, struct trip *t, u64 at)
{
    return at > f->clock.now ? add(f, at, EVENT_LEAVES, t) : depart(f, t);
}

/* A host hands a frame to its link, or to its own NIC; `egress` after now, and not before the
 * message is posted.  `record`: of what made it. */
static bool leave(struct nicemu_fabric *f, struct relay *r, u32 message, u32 frame, u64 egress,
                  const struct path *way, u64 record)
{
    const struct message_state *m = &r->message[message];
    struct trip *t = trip_new(f, r, message, frame);
    if (!t)
        return false;
    u64 ready = f->clock.now + egress;
    t->path = *way;
    t->record = record;
    t->at = m->what.from;
    path_until(&t->path, STAGE_DEVICE, ready);
    path_until(&t->path, STAGE_SOFTWARE, m->posted);
    if (m->what.from == m->what.to)
        return add(f, later(ready, m->posted), EVENT_ARRIVES, t);
    return depart_at(f, t, later(ready, m->posted));
}

/* One of the messages that it waits for has brought something: the last of them lets the host post
 * it, frames that wait for nothing else leave. */
static bool brought(struct nicemu_fabric *f, struct relay *r, u32 message, u64 egress,
                    const struct path *way, u64 record)
{
    struct message_state *m = &r->message[message];
    if (--m->awaits)
        return true;
    m->posted = f->clock.now + egress + f->config.software;
    for (u32 k = 0; k < m->frames; k++)
        if (!--r->waiting[m->first + k].before && !leave(f, r, message, k, egress, way, record))
            return false;
    return true;
}

/* ---- at its end ------------------------------------------------------------------------- */

static bool settle(struct nicemu_fabric *f, struct relay *r, u32 message, u32 frame,
                   const struct path *way);

/* The frames of a message that have elements in common with those from `begin` to before `end`. */
struct overlap {
    u32 first, last; /* last: one behind */
};

static struct overlap overlap_of(const struct message_state *m, u64 begin, u64 end)
{
    u64 own = m->what.element, behind = own + m->what.count;
    if (begin >= behind || end <= own || begin >= end)
        return (struct overlap){0, 0};
    u64 first = begin > own ? (begin - own) / m->what.chunk : 0;
    u64 last = (end < behind ? end : behind) - own;
    return (struct overlap){(u32)first, (u32)((last + m->what.chunk - 1) / m->what.chunk)};
}

static bool finished(struct nicemu_fabric *f, struct relay *r, const struct path *way)
{
    u64 at = f->clock.now + f->config.software;
    r->path = *way;
    path_until(&r->path, STAGE_SOFTWARE, at);
    return add_for(f, at, EVENT_RELAYED, 0, r);
}

/* A frame is merged or stored: what waits for it may be able to go on.  `record`: of its handlers,
 * or of its last link. */
static bool done(struct nicemu_fabric *f, struct relay *r, u32 message, u32 frame,
                 const struct path *way, u64 record)
{
    struct message_state *m = &r->message[message];
    u64 begin = m->what.element + (u64)frame * m->what.chunk, end = begin + count_of(m, frame);
    bool first = !m->begun;
    m->begun = true;
    const nicemu_costs *c = &f->config.hosts;
    u64 egress = m->what.taken ? c->egress : c->parse + c->egress; /* merged, or passed on */
    for (u32 i = m->followers; i < m[1].followers; i++) {
        const struct follower *next = &r->follower[i];
        struct overlap o = overlap_of(&r->message[next->message], begin, end);
        if (first && !next->there && !brought(f, r, next->message, egress, way, record))
            return false;
        for (u32 k = o.first; k < o.last; k++) {
            struct waiting *w = &r->waiting[r->message[next->message].first + k];
            bool good = next->there
                            ? --w->there || settle(f, r, next->message, k, way)
                            : --w->before || leave(f, r, next->message, k, egress, way, record);
            if (!good)
                return false;
        }
    }
    return --r->left || finished(f, r, way);
}

/* A frame and all that is merged with it are in the scratchpad; or it is stored. */
static bool settle(struct nicemu_fabric *f, struct relay *r, u32 message, u32 frame,
                   const struct path *way)
{
    const struct message_state *m = &r->message[message];
    const struct waiting *w = &r->waiting[m->first + frame];
    const nicemu_costs *c = &f->config.hosts;
    if (!m->what.taken)
        return done(f, r, message, frame, way, w->record);
    struct trip *t = trip_new(f, r, message, frame);
    if (!t)
        return false;
    struct sched *own = &f->own[m->what.to];
    u64 given = f->clock.now + c->dispatch;
    u64 alone = r->cycles[m->what.cycles + frame] * c->cycle;
    u32 core = sched_core(own, w->engine, given), kind = m->what.asked + (frame + 1 == m->frames);
    u64 first = kind ? r->asked[kind - 1] : 0;
    struct period ran =
        sched_run(own, core, given, alone, r->beats + first, r->asked[kind] - first);
    sched_move_out(own, w->engine, 0, (u64)count_of(m, frame) * m->what.given, ran.end);
    f->outlet.starved |= own->starved;
    t->path = *way;
    path_until(&t->path, STAGE_DEVICE, given);
    path_until(&t->path, STAGE_QUEUE, ran.start);
    path_until(&t->path, STAGE_CORE, ran.start + alone);
    path_until(&t->path, STAGE_BANKS, ran.end);
    put_core(f, t, core, ran, w->record);
    return add(f, ran.end, EVENT_MERGED, t);
}

/* It is in the scratchpad, or there is nothing to do to it. */
static bool taken(struct nicemu_fabric *f, struct trip *t)
{
    struct relay *r = t->relay;
    const struct path way = t->path;
    u32 message = t->message, frame = t->frame;
    struct waiting *w = &r->waiting[r->message[message].first + frame];
    w->record = came_by(t);
    w->engine = t->engine;
    trip_free(f, t);
    return --w->there || settle(f, r, message, frame, &way);
}

/* Its handlers are over. */
static bool merged(struct nicemu_fabric *f, struct trip *t)
{
    struct relay *r = t->relay;
    const struct path way = t->path;
    u32 message = t->message, frame = t->frame;
    u64 record = t->record;
    trip_free(f, t);
    return done(f, r, message, frame, &way, record);
}

/* A DMA engine of the host's own NIC takes the frame in from `start` on, with what that is to be
 * merged with. */
static bool move_in(struct nicemu_fabric *f, struct trip *t, u32 engine, u64 start)
{
    const struct message_state *m = message_of(t);
    /* frames have no place: each is taken to lie where the calls that `beats` are of had theirs, at
     * the beginning of a scratchpad */
    u64 bytes = (u64)count_of(m, t->frame) * m->what.taken;
    struct period dma = sched_move_in(&f->own[t->at], engine, 0, bytes, start, f->clock.now);
    t->engine = engine;
    path_until(&t->path, STAGE_QUEUE, dma.start);
    path_until(&t->path, STAGE_DMA, dma.end);
    put_dma(f, t, dma, bytes);
    return add(f, dma.end, EVENT_TAKEN, t);
}

/* See to it that what waits there goes on. */
static bool wake(struct nicemu_fabric *f, u32 host)
{
    u64 at = sched_wake(&f->own[host], 0, f->clock.now);
    return at == NEVER || add_for(f, at, EVENT_OWN_DMA_IDLE, host, NULL);
}

/* A host has it. */
static bool reached(struct nicemu_fabric *f, struct trip *t)
{
    if (!message_of(t)->what.taken)
        return taken(f, t);
    struct sched *own = &f->own[t->at];
    u64 parsed = f->clock.now + f->config.hosts.parse;
    path_until(&t->path, STAGE_DEVICE, parsed);
    u32 engine = sched_engine(own, 0, parsed);
    if (engine != NO_ENGINE)
        return move_in(f, t, engine, parsed);
    t->inbound =
        (struct inbound){.sender = &message_of(t)->waiting, .message = t->message, .ready = parsed};
    inbound_add(&own->inbound[0], &t->inbound);
    return wake(f, t->at);
}

/* It is at the end of a link, if it was on one and that did not go down. */
static void land(struct nicemu_fabric *f, struct trip *t)
{
    if (t->direction == NOWHERE)
        return;
    struct cable *cable = f->cable[t->direction / 2];
    f->under_way--;
    if (!link_arrives(&cable->direction[t->direction & 1], t->downs)) {
        cut_off(f, t->relay, message_of(t)->what.from);
        return;
    }
    t->at = t->direction & 1 ? cable->child : cable->parent;
    struct node *node = f->node[t->at];
    nicemu_node_counters *counters = node->host ? &node->host->counters : &node->device->counters;
    counters->received++;
    counters->accepted++;
}

/* From there it goes on. */
static bool go_on(struct nicemu_fabric *f, struct trip *t)
{
    const struct node *node = f->node[t->at];
    if (node->host)
        return reached(f, t);
    u64 at = f->clock.now + node->device->config.costs.parse + node->device->config.costs.egress;
    path_until(&t->path, STAGE_DEVICE, at);
    return depart_at(f, t, at);
}

/* One that has failed is there until none of its frames will come back. */
static void free_failed(struct nicemu_fabric *f, struct relay *r)
{
    if (r->failed && !r->trips)
        relay_free(f, r);
}

/* A frame of one that has failed is not wanted any more. */
static void drop(struct nicemu_fabric *f, struct trip *t)
{
    struct relay *r = t->relay;
    trip_free(f, t);
    free_failed(f, r);
}

bool relay_go_on(struct nicemu_fabric *f, enum event_kind kind, struct trip *t)
{
    struct relay *r = t->relay;
    if (kind == EVENT_ARRIVES)
        land(f, t);
    if (r->failed) {
        drop(f, t);
        return true;
    }
    bool good = kind == EVENT_ARRIVES  ? go_on(f, t)
                : kind == EVENT_LEAVES ? depart(f, t)
                : kind == EVENT_TAKEN  ? taken(f, t)
                                       : merged(f, t);
    free_failed(f, r);
    return good;
}

bool relay_dma_idle(struct nicemu_fabric *f, u32 host)
{
    u32 engine;
    struct sched *own = &f->own[host];
    bool awake = sched_awake(own, 0, f->clock.now, &engine);
    struct inbound *next = awake ? inbound_next(&own->inbound[0], f->clock.now) : NULL;
    struct trip *t = next ? trip_of(next) : NULL;
    if (t && t->relay->failed)
        drop(f, t);
    else if (t && !move_in(f, t, engine, f->clock.now))
        return false;
    return wake(f, host);
}

void relay_end(struct nicemu_fabric *f, struct relay *r)
{
    nicemu_event event = {.kind = NICEMU_DONE, .seq = r->number};
    memcpy(event.spent, r->path.spent, sizeof event.spent);
    event.via = r->path.via;
    fabric_report(f, &event);
    relay_free(f, r);
}

void relay_progress(const struct nicemu_fabric *f, u64 *frames, u64 *left)
{
    for (const struct relay *r = f->relay; r; r = r->next) {
        *frames += r->frames;
        *left += r->left;
    }
}

/* ---- the start -------------------------------------------------------------------------- */

static bool is_host(const struct nicemu_fabric *f, u32 node)
{
    return node && node <= f->nodes && f->node[node]->host;
}

static u32 root_of(const struct nicemu_fabric *f, u32 node, u32 plane)
{
    while (f->node[node]->parent[plane] != NOWHERE)
        node = f->node[node]->parent[plane];
    return node;
}

/* Is there a way from host to host, on every plane? */
static bool connected(const struct nicemu_fabric *f, u32 from, u32 to)
{
    for (u32 plane = 0; plane < f->config.planes; plane++)
        if (root_of(f, from, plane) != root_of(f, to, plane))
            return false;
    return true;
}

static bool sound(const struct nicemu_fabric *f, const nicemu_relay *what)
{
    for (u32 i = 0; i < f->cables; i++) {
        const nicemu_link_config *c = &f->cable[i]->direction[0].config;
        if (c->loss | c->duplicate | c->corrupt)
            return false;
    }
    u64 frames = 0;
    for (u32 i = 0; i < what->n_messages; i++) {
        const nicemu_relayed *m = &what->messages[i];
        if (!is_host(f, m->from) || !is_host(f, m->to) || !connected(f, m->from, m->to) ||
            !m->count || !m->chunk || m->chunk > MAX_MTU || m->taken > 2 * MAX_MTU ||
            m->given > 2 * MAX_MTU || m->count > 1ull << 48 || m->element > 1ull << 48 ||
            (u64)m->chunk * m->bytes > f->config.mtu)
            return false;
        u64 n = (m->count + m->chunk - 1) / m->chunk;
        frames += n;
        if (frames > INT32_MAX ||
            (m->taken && (m->cycles > what->n_cycles || n > what->n_cycles - m->cycles ||
                          what->n_asked < 2 || m->asked > what->n_asked - 2)))
            return false;
    }
    for (u64 i = 0; i < what->n_asked; i++)
        if (what->asked[i] > what->n_beats || (i && what->asked[i] < what->asked[i - 1]))
            return false;
    for (u64 i = 0; i < what->n_waits; i++) {
        const nicemu_wait *w = &what->waits[i];
        if (w->before >= what->n_messages || w->after >= what->n_messages)
            return false;
        const nicemu_relayed *after = &what->messages[w->after];
        if (what->messages[w->before].to != (w->there ? after->to : after->from))
            return false;
    }
    return f->config.timed && f->config.host_cores && what->n_messages < UINT32_MAX &&
           what->n_waits < UINT32_MAX;
}

/* Who follows whom, and how many frames each frame waits for. */
static void put_waits(struct relay *r, const nicemu_relay *what)
{
    for (u64 i = 0; i < what->n_waits; i++)
        r->message[what->waits[i].before].followers++;
    for (u32 i = 0, sum = 0; i <= r->messages; i++) { /* the end of each one's for now */
        sum += r->message[i].followers;
        r->message[i].followers = sum;
    }
    for (u64 i = what->n_waits; i--;) {
        const nicemu_wait *w = &what->waits[i];
        const struct message_state *before = &r->message[w->before], *m = &r->message[w->after];
        r->follower[--r->message[w->before].followers] = (struct follower){w->after, w->there != 0};
        for (u32 k = 0; k < m->frames; k++) {
            u64 begin = m->what.element + (u64)k * m->what.chunk;
            struct overlap o = overlap_of(before, begin, begin + count_of(m, k));
            struct waiting *waiting = &r->waiting[m->first + k];
            *(w->there ? &waiting->there : &waiting->before) += o.last - o.first;
            waiting->before += !w->there && !m->awaits; /* for its posting, once */
        }
        r->message[w->after].awaits += !w->there;
    }
}

/* n of the caller's items, and one more place; NULL when the host has no memory left. */
static void *copy_of(const void *items, u64 n, size_t size)
{
    void *copy = malloc((n + 1) * size);
    if (copy && n)
        memcpy(copy, items, n * size);
    return copy;
}

static struct relay *relay_new(struct nicemu_fabric *f, const nicemu_relay *what)
{
    struct relay *r = calloc(1, sizeof *r);
    if (!r)
        return NULL;
    r->messages = what->n_messages;
    r->message = calloc(what->n_messages + 1ull, sizeof *r->message);
    for (u32 i = 0; r->message && i < what->n_messages; i++) {
        const nicemu_relayed *m = &what->messages[i];
        u32 n = (u32)((m->count + m->chunk - 1) / m->chunk);
        r->message[i] = (struct message_state){.what = *m, .first = r->frames, .frames = n};
        r->frames += n;
    }
    r->left = r->frames;
    r->follower = malloc((what->n_waits + 1) * sizeof *r->follower);
    r->waiting = malloc((r->frames + 1ull) * sizeof *r->waiting);
    r->cycles = copy_of(what->cycles, what->n_cycles, sizeof *r->cycles);
    r->asked = copy_of(what->asked, what->n_asked, sizeof *r->asked);
    r->beats = copy_of(what->beats, what->n_beats, sizeof *r->beats);
    if (!r->message || !r->follower || !r->waiting || !r->cycles || !r->asked || !r->beats) {
        relay_free(f, r);
        return NULL;
    }
    for (u32 i = 0; i < r->frames; i++)
        r->waiting[i] = (struct waiting){.there = 1};
    put_waits(r, what);
    return r;
}

static struct sched own_nic(const struct nicemu_fabric *f)
{
    struct sched s = {.costs = f->config.hosts, .cores = f->config.host_cores};
    s.engines = sched_cluster(&s, s.cores - 1) + 1;
    return s;
}

static bool grow_own(struct nicemu_fabric *f)
{
    u32 need = f->nodes + 1;
    if (!fabric_grow((void **)&f->own, &f->own_room, need, sizeof *f->own))
        return false;
    for (; f->own_n < need; f->own_n++)
        f->own[f->own_n] = own_nic(f);
    return true;
}

int nicemu_relay_start(nicemu_fabric *f, const nicemu_relay *what)
{
    if (!sound(f, what))
        return NICEMU_EINVAL;
    struct relay *r = grow_own(f) && fabric_reserve(f, f->most_sends) ? relay_new(f, what) : NULL;
    if (!r)
        return NICEMU_ENOMEM;
    fabric_begin(f);
    r->number = f->relays++ & INT32_MAX;
    r->next = f->relay;
    f->relay = r;
    const struct path start = path_from(f->clock.now);
    int number = (int)r->number;
    if (!r->left) {
        relay_end(f, r);
        return number;
    }
    for (u32 i = 0; i < what->n_messages; i++)
        r->message[i].posted = f->clock.now + f->config.software; /* what awaits none */
    for (u32 i = 0; i < what->n_messages; i++)
        for (u32 k = 0; k < r->message[i].frames; k++)
            if (!r->waiting[r->message[i].first + k].before && !leave(f, r, i, k, 0, &start, 0)) {
                r->failed = true; /* its frames go when their time comes */
                free_failed(f, r);
                return NICEMU_ENOMEM;
            }
    free_failed(f, r);
    return number;
}
