/* device.c: a group's place in a device, and a frame's way to its chunk: slot, parsing, DMA engine.
 */
#include "chunk.h"

/* ---- the scratchpads -------------------------------------------------------------------- */

enum { LINE = 64 };

static u64 room_of(const struct device *d)
{
    return (d->buffers->size + LINE - 1) / LINE * LINE;
}

/* Accumulator and destination may be of twice the payload's width: partial sums of a root, which
 * cross no link, are as wide as the accumulator. */
u64 device_lane_bytes(const struct device *d, u32 slots)
{
    return room_of(d) * (2 + slots + 2);
}

/* Bytes from `offset` up to the next lanes that are taken, or to the end. */
static u64 gap_at(const struct device *d, u64 offset)
{
    u64 end = d->config.scratch_bytes;
    for (u32 i = 0; i < MAX_GROUPS; i++) {
        const struct member *m = d->member[i];
        if (!m)
            continue;
        if (m->offset <= offset && offset < m->end)
            return 0;
        if (m->offset >= offset && m->offset < end)
            end = m->offset;
    }
    return end - offset;
}

u64 device_room(const struct device *d, u64 *offset)
{
    u64 best = gap_at(d, 0);
    *offset = 0;
    for (u32 i = 0; i < MAX_GROUPS; i++) {
        u64 end = d->member[i] ? d->member[i]->end : 0, gap = end ? gap_at(d, end) : 0;
        if (gap > best) {
            best = gap;
            *offset = end;
        }
    }
    return best;
}

u32 device_lanes(const struct device *d, u64 lane_bytes, u64 *offset)
{
    u64 lanes = device_room(d, offset) / lane_bytes * d->config.cores->n;
    return lanes < UINT16_MAX ? (u32)lanes : UINT16_MAX;
}

static bool place_lane(struct member *m, u32 i)
{
    const struct device *d = m->device;
    const nicemu_device_config *c = &d->config;
    u64 room = room_of(d), core = i % c->cores->n;
    u64 base = c->scratch + core * c->scratch_stride + m->offset + i / c->cores->n * m->lane_bytes;
    struct station *s = &m->lane[i].station;
    *s = (struct station){
        .hart = c->cores->harts[core],
        .accumulator = base,
        .payloads = base + 2 * room,
        .destination = base + (2 + m->slots) * room,
        .end = base + m->lane_bytes,
        .arguments = c->arguments + core * c->arguments_stride,
        .stack_top = c->stack_top + core * c->stack_stride,
        .room = room,
    };
    return station_open(s, m->slots, 2 * room);
}

bool device_open(struct device *d)
{
    const nicemu_device_config *c = &d->config;
    u64 bad;
    for (u32 i = 0; i < c->cores->n; i++) {
        struct shared_core *core = &d->core[i];
        const struct map *map = &c->cores->harts[i]->map;
        u64 scratch = c->scratch + i * c->scratch_stride;
        u64 stack = c->stack_top + i * c->stack_stride - c->stack_bytes;
        core->stack = map_bytes(map, stack, c->stack_bytes, NICEMU_W, &bad);
        if (!core->stack || !map_bytes(map, scratch, c->scratch_bytes, NICEMU_W, &bad))
            return false;
        core->job = NO_JOB;
    }
    d->sched.costs = c->costs;
    d->sched.cores = c->cores->n;
    d->sched.engines = 1;
    return true;
}

bool device_join(struct member *m)
{
    struct device *d = m->device;
    u32 window = m->group->window, cores = d->config.cores->n;
    m->end = m->offset + (window + cores - 1) / cores * m->lane_bytes;
    for (u32 i = 0; i < window; i++)
        m->lane[i].parked = m->parked + (u64)i * m->slots;
    for (u32 i = 0; i < window; i++) {
        struct station *s = &m->lane[i].station;
        if (!place_lane(m, i))
            return false;
        memset(s->below.host, 0, s->below.size);
    }
    device_restart(m, 0);
    d->member[m->group->index] = m;
    return true;
}

static void queued_free(struct device *d, struct queued *q)
{
    buffer_release(q->in.owner);
    queued_give(d->queued, q);
}

static bool any(const struct inbound *i, const void *what)
{
    (void)i, (void)what;
    return true;
}

/* What waits to be moved in for a member is no longer wanted. */
static void turn_away(struct device *d, struct member *m)
{
    for (u32 c = 0; c < m->children; c++) {
        struct inbound *i = inbound_withdraw(&m->child[c].waiting, any, NULL), *behind;
        for (; i; i = behind) {
            behind = i->behind;
            queued_free(d, queued_of(i));
        }
    }
}

void device_restart(struct member *m, u32 first)
{
    u64 expected = ~0ull >> (MAX_CHILDREN - m->children);
    turn_away(m->device, m);
    for (u32 i = 0; i < m->group->window; i++) {
        chunk_forget(m, &m->lane[i]);
        slot_open(&m->lane[i].slot, expected, first);
    }
}

void device_leave(struct member *m)
{
    struct device *d = m->device;
    device_restart(m, 0);
    if (d->member[m->group->index] == m)
        d->member[m->group->index] = NULL;
}

/* ---- frames in -------------------------------------------------------------------------- */

/* Is it what that child sends for that chunk? */
static bool fits(const struct work *w, const struct packet *p)
{
    const struct member *m = w->member;
    const nicemu_exchange *e = &w->turn->exchange->what;
    u32 count = w->piece.count;
    u8 type, flags;
    if (w->turn->moved) {
        i32 owner = w->turn->owner;
        bool owners = count && owner != NO_OWNER && m->child_of[owner] == p->child;
        count = owners ? count : 0;
        type = e->result_type;
        flags = owners ? FLAG_MOVED : FLAG_EMPTY;
    } else {
        bool partial = m->devices >> p->child & 1;
        type = partial ? e->types[NICEMU_PARTIALS] : e->types[NICEMU_ELEMENTS];
        flags = partial ? FLAG_PARTIAL : 0;
    }
    return p->type == type && p->flags == flags && p->count == count &&
           p->contributors == m->child[p->child].workers;
}

/* A frame is parsed: when. */
static u64 parsed(const struct device *d, u64 now)
{
    outlet_until(d->outlet, STAGE_DEVICE, now + d->config.costs.parse);
    return now + d->config.costs.parse;
}

static u32 cluster_of(const struct work *w)
{
    return sched_cluster(&w->device->sched, w->lane->station.hart->id);
}

/* From when on the place of a payload in the scratchpad is free: where the order is that of arrival
 * a lane has one for all of them. */
static u64 place_free(const struct member *m, struct place p)
{
    return m->group->arrival ? m->lane[p.lane].kept[p.round & 1].ready : 0;
}

/* Is it a payload's turn when it has been parsed, at `at`?  Nobody waits where moving takes no
 * time. */
static bool has_turn(const struct work *w, u32 child, u64 at)
{
    const struct sched *s = &w->device->sched;
    if (!s->costs.dma_byte)
        return true;
    u32 cluster = cluster_of(w);
    return sched_engine(s, cluster, at) != NO_ENGINE &&
           place_free(w->member, w->turn->place) <= at &&
           !inbound_find(&s->inbound[cluster], &w->member->child[child].waiting,
                         w->turn->exchange->seq);
}

/* The DMA engine moves a child's payload to the scratchpad of the lane's core from `start` on, and
 * what can be done then is done. */
static void move_in(struct work *w, u32 child, const struct parked *in, u64 start)
{
    struct device *d = w->device;
    u32 cluster = cluster_of(w);
    u64 address = chunk_place(w, child);
    struct period dma = sched_move_in(&d->sched, cluster, address, in->payload.n, start, w->now);
    outlet_until(d->outlet, STAGE_QUEUE, dma.start);
    outlet_until(d->outlet, STAGE_DMA, dma.end);
    if (dma.end > dma.start)
        TRACE_STEP(&d->outlet->trace, &d->outlet->path, .kind = NICEMU_SPAN_DMA, .where = d->node,
                   .begin = dma.start, .end = dma.end, .core = cluster, .from = in->record,
                   .bytes = (u32)in->payload.n);
    w->now = dma.end;
    if (w->turn->moved)
        w->kept->ready = later(w->kept->ready, dma.end);
    chunk_park(w, child, in);
    chunk_advance(w);
}

/* See to it that what waits for an engine goes on. */
static void wake(struct device *d, u32 cluster, u64 now)
{
    u64 at = sched_wake(&d->sched, cluster, now);
    if (at != NEVER)
        d->outlet->wake(d->outlet->fabric, d, cluster, at);
}

/* A child's payload waits for the DMA engine, or for its place, behind those of its message: what
 * the child sends of one collective. */
static void queue_up(struct work *w, u32 child, const struct parked *in, u64 at)
{
    struct device *d = w->device;
    struct queued *q = queued_take(d->queued);
    *q = (struct queued){
        .inbound = {.sender = &w->member->child[child].waiting,
                    .message = w->turn->exchange->seq,
                    .ready = at},
        .member = w->member,
        .place = w->turn->place,
        .child = child,
        .in = *in,
        .path = d->outlet->path,
    };
    buffer_hold(in->owner);
    inbound_add(&d->sched.inbound[cluster_of(w)], &q->inbound);
    wake(d, cluster_of(w), w->now);
}

/* Whose turn it is; messages for whose payload there is no place yet wait for that. */
static struct queued *next_queued(struct inbound_queue *queue, u64 now)
{
    for (const struct inbound *i; (i = queue->first) && i->ready <= now;) {
        u64 free = place_free(queued_of(i)->member, queued_of(i)->place);
        if (free <= now)
            return queued_of(inbound_next(queue, now));
        inbound_hold(queue, free);
    }
    return NULL;
}

void device_dma_idle(struct device *d, u32 cluster, u64 now)
{
    u32 engine;
    bool awake = sched_awake(&d->sched, cluster, now, &engine);
    struct queued *q = awake ? next_queued(&d->sched.inbound[cluster], now) : NULL;
    if (q) {
        struct group *g = q->member->group;
        struct turn *t = group_find(g, q->member->plane, q->place);
        if (t && !g->failed) { /* else its plane has died, or its collective ended */
            struct work w = chunk_at(q->member, t, now);
            d->outlet->path = q->path;
            move_in(&w, q->child, &q->in, now);
        }
        queued_free(d, q);
    }
    wake(d, cluster, now);
}

static enum verdict receive_up(struct device *d, struct member *m, const struct packet *p,
                               const struct frame *f, u64 now)
{
    struct lane *lane = &m->lane[p->lane];
    struct slot_key key = {p->seq, p->chunk};
    struct kept *kept = &lane->kept[p->round & 1];
    enum verdict why;
    if (p->child >= m->children || p->src != m->child[p->child].node)
        return DROP_CHILD;
    switch (slot_judge(&lane->slot, p->round, key, p->child, &why)) {
    case SLOT_REFUSE:
        return why;
    case SLOT_REPEAT_PARTIAL:
        d->counters.repeated++;
        chunk_send_up(m, kept, parsed(d, now));
        return ACCEPTED;
    case SLOT_REPEAT_RESULT:
        d->counters.repeated++;
        chunk_send_down(m, kept, p->child, parsed(d, now));
        return ACCEPTED;
    case SLOT_TAKE:
        break;
    }
    struct turn *t = group_find(m->group, m->plane, (struct place){p->round, p->lane});
    if (!t || t->exchange->seq != p->seq || t->chunk != p->chunk)
        return DROP_KEY;
    struct work w = chunk_at(m, t, now);
    if (!fits(&w, p))
        return DROP_SHAPE;
    chunk_take(&w, p->child);
    struct parked in = {{f->payload, f->payload_bytes}, f->owner, d->outlet->trace.frame};
    u64 at = parsed(d, now);
    if (has_turn(&w, p->child, at))
        move_in(&w, p->child, &in, at);
    else
        queue_up(&w, p->child, &in, at);
    return ACCEPTED;
}

static enum verdict receive_down(struct device *d, struct member *m, const struct packet *p,
                                 const struct frame *f, u64 now)
{
    struct lane *lane = &m->lane[p->lane];
    struct slot_key key = {p->seq, p->chunk};
    enum verdict why = m->root ? DROP_KIND : slot_judge_result(&lane->slot, p->round, key);
    if (!m->root && p->src != m->parent)
        return DROP_NODE;
    if (why)
        return why;
    struct turn *t = group_find(m->group, m->plane, (struct place){p->round, p->lane});
    if (!t)
        return DROP_KEY;
    if (p->child != m->as_child || !turn_result_fits(m->group, t, p))
        return DROP_SHAPE;
    struct work w = chunk_at(m, t, now);
    w.kept->down = (struct message){.packet = *p, .payload = f->payload, .bytes = f->payload_bytes};
    w.kept->down.owner = buffer_hold(f->owner);
    w.kept->down.source = d->outlet->trace.frame;
    slot_end(w.version);
    chunk_send_down_all(&w, parsed(d, now));
    return ACCEPTED;
}

enum verdict device_receive(struct device *d, const struct packet *p, const struct frame *f,
                            u64 now)
{
    struct member *m = d->member[p->group % MAX_GROUPS];
    if (p->dst != d->node)
        return DROP_NODE;
    if (!m || m->group->number != p->group || m->group->job != p->job)
        return DROP_GROUP;
    if (m->group->failed)
        return DROP_FAILED;
    if (p->lane >= m->group->window)
        return DROP_LANE;
    return p->kind == KIND_UP ? receive_up(d, m, p, f, now) : receive_down(d, m, p, f, now);
}

/* ---- when a worker is gone -------------------------------------------------------------- */

u64 device_arrived(const struct member *m, const struct turn *t)
{
    u32 round = t->place.round;
    const struct slot_version *v = &m->lane[t->place.lane].slot.version[round & 1];
    bool same = v->state != SLOT_IDLE && v->round == round && v->key.chunk == t->chunk &&
                v->key.seq == t->exchange->seq;
    return same ? v->arrived : 0;
}

bool device_at_work(const struct member *m, const struct turn *t, u64 now)
{
    const struct lane *l = &m->lane[t->place.lane];
    u32 which = t->place.round & 1;
    u64 arrived = device_arrived(m, t);
    return arrived && (l->slot.version[which].parked != arrived || l->kept[which].ready > now);
}

/* Something more comes to a turn that has no end.  False when a handler fails. */
static bool enter(struct work *w, u32 child, const struct parked *in)
{
    chunk_park(w, child, in);
    return !w->member->group->arrival || chunk_merge(w); /* there is room for one */
}

void device_enter(struct member *m, struct turn *t, u32 child, const struct message *partial,
                  u64 now)
{
    struct work w = chunk_at(m, t, now);
    chunk_take(&w, child);
    /* merging adds all who are behind the child */
    w.kept->merged -= m->child[child].workers - partial->packet.contributors;
    enter(&w, child, &(struct parked){{partial->payload, partial->bytes}, partial->owner, 0});
}

static bool of_turn(const struct inbound *i, const void *work)
{
    const struct work *w = work;
    return place_same(queued_of(i)->place, w->turn->place);
}

/* What waits to be moved in for a turn is there.  False when a handler fails. */
static bool enter_all(struct work *w)
{
    bool good = true;
    for (u32 c = 0; c < w->member->children; c++) {
        struct inbound *i = inbound_withdraw(&w->member->child[c].waiting, of_turn, w);
        if (!i)
            continue;
        good = good && enter(w, c, &queued_of(i)->in);
        queued_free(w->device, queued_of(i));
    }
    return good;
}

const struct message *device_salvage(struct member *m, struct turn *t, u64 now)
{
    struct work w = chunk_at(m, t, now);
    if (!device_arrived(m, t) || w.version->state == SLOT_FAILED)
        return NULL;
    if (w.version->state != SLOT_GATHERING) {
        if (!w.kept->up.bytes)
            return NULL;
        chunk_record(&w);
        return &w.kept->up;
    }
    return enter_all(&w) && chunk_cut_short(&w) ? &w.kept->up : NULL;
}
