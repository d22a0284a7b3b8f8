/* chunk.c: see chunk.h. */
#include "chunk.h"

/* ---- what is kept ------------------------------------------------------------------------ */

static void park(struct parked *p, const struct parked *in)
{
    buffer_hold(in->owner);
    buffer_release(p->owner);
    *p = *in;
}

static void empty(struct parked *p)
{
    park(p, &(struct parked){.owner = NULL});
}

static void forget(struct kept *k)
{
    buffer_replace(&k->up.owner, NULL);
    buffer_replace(&k->down.owner, NULL);
    buffer_replace(&k->moved, NULL);
    k->up.bytes = k->down.bytes = k->moved_bytes = 0;
    k->up.packet.contributors = k->down.packet.contributors = 0;
    k->merged = 0;
    k->ready = 0;
}

void chunk_forget(struct member *m, struct lane *l)
{
    forget(&l->kept[0]);
    forget(&l->kept[1]);
    for (u32 slot = 0; slot < m->slots; slot++)
        empty(&l->parked[slot]);
}

struct work chunk_at(struct member *m, struct turn *t, u64 now)
{
    u32 round = t->place.round;
    struct lane *l = &m->lane[t->place.lane];
    return (struct work){.device = m->device,
                         .member = m,
                         .lane = l,
                         .version = slot_version(&l->slot, round),
                         .kept = &l->kept[round & 1],
                         .turn = t,
                         .piece = exchange_piece(t->exchange, t->chunk),
                         .now = now};
}

static void put_context(const struct work *w, u32 rank, u32 child, u32 merged)
{
    const nicemu_exchange *e = &w->turn->exchange->what;
    u8 *context = w->lane->station.host_arguments;
    memcpy(context, e->context, CONTEXT_BYTES);
    put32(context + CONTEXT_CONTRIBUTORS, merged);
    put32(context + CONTEXT_RANK, rank);
    put32(context + CONTEXT_DEVICE, w->device->config.record);
    put32(context + CONTEXT_CHILD, child);
    put32(context + CONTEXT_SEQ, w->turn->exchange->seq);
    put32(context + CONTEXT_CHUNK, w->turn->chunk);
    put32(context + CONTEXT_GROUP, w->member->group->workers);
    put64(context + CONTEXT_ELEMENT, get64(e->context + CONTEXT_ELEMENT) + w->piece.element);
}

/* ---- the trace -------------------------------------------------------------------------- */

/* What a record says of the turn at work. */
static nicemu_span span_of(const struct work *w, u32 kind, u64 begin, u64 end)
{
    return (nicemu_span){.kind = kind,
                         .where = w->device->node,
                         .begin = begin,
                         .end = end,
                         .plane = w->member->plane,
                         .group = w->member->group->number,
                         .lane = w->turn->place.lane,
                         .round = w->turn->place.round,
                         .seq = w->turn->exchange->seq,
                         .chunk = w->turn->chunk};
}

static void put_call(const struct work *w, const struct call *call, const nicemu_stop *stop,
                     struct period when, u64 alone)
{
    u64 cycle = w->device->config.costs.cycle;
    nicemu_span span = span_of(w, NICEMU_SPAN_CORE, when.start, when.end);
    span.core = w->kept->core;
    span.pc = call->pc;
    span.cycles = alone / cycle;
    span.conflicts = (when.end - when.start - alone) / cycle;
    span.instructions = stop->instructions;
    span.child = get32(w->lane->station.host_arguments + CONTEXT_CHILD);
    span.payloads = call->k;
    struct outlet *o = w->device->outlet;
    w->kept->record = trace_step(&o->trace, &o->path, &span);
}

/* A frame's payload, or its being there, was what the last record of the turn is about. */
static void put_taken(const struct work *w, u64 frame)
{
    TRACE(&w->device->outlet->trace, .kind = NICEMU_SPAN_TAKEN, .where = w->device->node,
          .begin = w->now, .end = w->now, .from = frame, .by = w->kept->record);
}

/* ---- calls ------------------------------------------------------------------------------ */

/* Before a handler call: the core sees nothing that another job has left. */
static void clear_core(struct device *d, const struct member *m, const struct station *s)
{
    struct shared_core *core = &d->core[s->hart->id];
    if (core->job == m->group->job)
        return;
    memset(s->hart->v, 0, sizeof s->hart->v);
    memset(core->stack, 0, d->config.stack_bytes);
    /* the context is this call's already */
    memset(s->host_arguments + CONTEXT_BYTES, 0, ARGUMENT_BYTES - CONTEXT_BYTES);
    core->job = m->group->job;
}

/* Where a place begins: other calls with the same ask for the same banks. */
static u32 phase_of(const struct work *w, u64 address)
{
    const nicemu_bank_shape *banks = &w->device->config.costs.banks;
    return (u32)(address / banks->bytes % banks->banks);
}

static struct call_key key_of(const struct work *w, const struct call *call)
{
    const struct station *s = &w->lane->station;
    return (struct call_key){.pc = call->pc,
                             .count = call->count,
                             .slot = call->slot,
                             .phase = phase_of(w, s->accumulator),
                             .leaves = call->destination.bytes ? phase_of(w, s->destination) : 0};
}

/* A handler runs: true when it returned 0.  If its clock runs, too, what it asks of the banks is
 * that of the call like it which was recorded last: the first, or one after a call that took other
 * cycles than that. */
static bool handled(const struct work *w, const struct call *call, struct call_end *end,
                    struct known_call *took)
{
    struct device *d = w->device;
    const struct station *s = &w->lane->station;
    clear_core(d, w->member, s);
    if (!d->config.costs.cycle)
        return station_call(s, call, end);
    struct known *known = d->outlet->known;
    struct call_key key = key_of(w, call);
    struct known_call *found = known_find(known, &key);
    bool look = !found || found->stale;
    nicemu_access *record = look ? known_record(known) : NULL;
    u64 before = hart_cycles(s->hart);
    if (record)
        nicemu_accesses(d->config.cores, s->hart->id, record, RECORDED);
    bool good = station_call(s, call, end);
    u64 cycles = hart_cycles(s->hart) - before, n = 0;
    if (record) {
        nicemu_accesses_count(d->config.cores, s->hart->id, &n);
        nicemu_accesses(d->config.cores, s->hart->id, NULL, 0);
    }
    if (record && good) {
        *took = *known_recorded(known, &key, &d->config.costs.banks, n, cycles);
    } else if (found) {
        found->stale |= found->cycles != cycles;
        *took = *found;
    }
    took->cycles = cycles;
    d->outlet->starved |= known->starved;
    return good;
}

/* Is it known what a handler takes that need not run? */
static bool reused(const struct work *w, const struct call *call, struct known_call *took)
{
    const struct outlet *o = w->device->outlet;
    if (!o->reuse || !w->device->config.costs.cycle)
        return false;
    struct call_key key = key_of(w, call);
    const struct known_call *found = known_find(o->known, &key);
    if (!found)
        return false;
    *took = *found;
    return true;
}

/* The core whose time a call takes from then on: the lane's; or, of its cluster, the one that is at
 * work on the slot, else the first that is idle. */
static u32 core_for(const struct work *w, u64 given)
{
    const struct device *d = w->device;
    u32 own = w->lane->station.hart->id;
    if (!d->config.any_core)
        return own;
    if (w->kept->ready > given)
        return w->kept->core;
    return sched_core(&d->sched, sched_cluster(&d->sched, own), given);
}

/* Run an entry, after what its core is doing. */
static bool invoke(struct work *w, struct call *call)
{
    struct device *d = w->device;
    struct call_end end = {.status = 0};
    struct known_call took = {.n = 0};
    const nicemu_device_config *c = &d->config;
    u64 given = w->now + c->costs.dispatch;
    call->count = w->piece.count;
    call->budget = c->budget;
    bool good = reused(w, call, &took) || handled(w, call, &end, &took);
    u64 alone =
        c->costs.cycle ? took.cycles * c->costs.cycle : end.stop.instructions * c->instruction_time;
    w->kept->core = core_for(w, given);
    struct period ran = sched_run(&d->sched, w->kept->core, given, alone, took.beats, took.n);
    w->kept->ready = ran.end;
    outlet_until(d->outlet, STAGE_DEVICE, given);
    outlet_until(d->outlet, STAGE_QUEUE, ran.start);
    outlet_until(d->outlet, STAGE_CORE, ran.start + alone);
    outlet_until(d->outlet, STAGE_BANKS, ran.end);
    d->outlet->starved |= d->sched.starved;
    d->counters.calls++;
    d->outlet->work += end.stop.instructions + end.stop.elements;
    if (d->outlet->trace.on)
        put_call(w, call, &end.stop, ran, alone);
    if (!good) {
        slot_fail(w->version);
        d->outlet->broke(d->outlet->fabric, d, w->member->group, w->turn, w->kept->core, &end);
    }
    return good;
}

static u32 trailing_ones(u64 bits)
{
    return ~bits ? (u32)__builtin_ctzll(~bits) : 64;
}

/* k children from `child` on, whose payloads are parked. */
struct gathering {
    u32 child, k;
    struct payload payloads[NICEMU_MAX_FAN_IN];
};

static const nicemu_kind *kind_of(const struct work *w, u32 child)
{
    bool partials = w->member->devices >> child & 1;
    return &w->turn->exchange->what.kinds[partials ? NICEMU_PARTIALS : NICEMU_ELEMENTS];
}

static u32 park_slot(const struct member *m, u32 child)
{
    return m->group->arrival ? 0 : child;
}

/* The call of an entry that takes their payloads. */
static struct call gather(struct work *w, u64 pc, struct gathering *g)
{
    const struct member *m = w->member;
    u32 slot = park_slot(m, g->child), merged = w->kept->merged;
    for (u32 i = 0; i < g->k; i++) {
        merged += m->child[g->child + i].workers;
        g->payloads[i] = w->lane->parked[slot + i].payload;
    }
    put_context(w, m->child[g->child].first, g->child, merged);
    return (struct call){.pc = pc, .slot = slot, .k = g->k, .payloads = g->payloads};
}

/* The call has been made. */
static void gathered(struct work *w, const struct gathering *g)
{
    const struct member *m = w->member;
    u32 slot = park_slot(m, g->child);
    for (u32 i = 0; i < g->k; i++) {
        put_taken(w, w->lane->parked[slot + i].record);
        empty(&w->lane->parked[slot + i]);
        w->kept->merged += m->child[g->child + i].workers;
    }
    m->device->counters.merged[w->lane->station.hart->id] += g->k;
    w->version->merged |= ((1ull << g->k) - 1) << g->child;
}

/* Merge the first of the children in `ready` and those after it that one call can take. */
static bool merge_next(struct work *w, u64 ready, u32 most)
{
    const struct member *m = w->member;
    struct gathering g = {.child = (u32)__builtin_ctzll(ready)};
    const nicemu_kind *kind = kind_of(w, g.child);
    const u64 *entries = w->version->merged ? kind->more : kind->fresh;
    u64 alike = m->devices >> g.child & 1 ? m->devices : ~m->devices;
    u32 run = trailing_ones((ready & alike) >> g.child);
    g.k = widest(entries, run < most ? run : most);
    struct call call = gather(w, entries[g.k], &g);
    if (!invoke(w, &call))
        return false;
    gathered(w, &g);
    return true;
}

bool chunk_merge(struct work *w)
{
    const struct slot *s = &w->lane->slot;
    u32 most = w->device->config.max_fan_in;
    if (w->member->group->arrival)
        return merge_next(w, w->version->parked & ~w->version->merged, 1);
    for (;;) {
        u64 ready = slot_ready(s, w->version);
        if (!ready)
            return true;
        u32 run = trailing_ones(ready >> __builtin_ctzll(ready));
        if (run < most && w->version->parked != s->expected)
            return true;
        if (!merge_next(w, ready, most))
            return false;
    }
}

/* The call of emit or finish; its destination is to be set. */
static struct call leaving(struct work *w, u32 which)
{
    put_context(w, w->member->first, 0, w->kept->merged);
    return (struct call){.pc = w->turn->exchange->what.leave[which]};
}

static struct buffer *take_buffer(const struct work *w)
{
    return buffer_take(w->device->buffers, w->member->group->job);
}

static struct buffer *copy_of(const struct work *w, const u8 *bytes, u32 n)
{
    struct buffer *b = take_buffer(w);
    memcpy(b->bytes, bytes, n);
    return b;
}

/* ---- records of partial sums ------------------------------------------------------------ */

static const nicemu_record *record_of(const struct work *w)
{
    const nicemu_record *records = w->turn->exchange->what.records;
    const nicemu_record *r = records ? &records[w->device->config.record] : NULL;
    return r && r->values && !w->turn->moved ? r : NULL;
}

static u8 *recorded(const struct work *w, const nicemu_record *r)
{
    u32 size = w->turn->exchange->what.kinds[NICEMU_PARTIALS].bytes;
    return (u8 *)r->values + w->piece.element * size;
}

/* The record's values of this chunk are there. */
static void note_record(const struct work *w, const nicemu_record *r)
{
    struct exchange *e = w->turn->exchange;
    u32 words = (w->member->group->workers + 63) / 64;
    for (u32 i = 0; i < w->member->group->workers; i++) {
        u32 child = w->member->child_of[i];
        if (child != NO_CHILD && w->version->merged >> child & 1)
            r->members[(u64)w->turn->chunk * words + i / 64] |= 1ull << i % 64;
    }
    if (!r->times[w->turn->chunk]) {
        e->emitted[w->device->config.record]++;
        r->times[w->turn->chunk] = w->kept->ready;
        w->device->outlet->emitted(w->device->outlet->fabric, w->device, e);
    }
}

static void record(const struct work *w, const nicemu_record *r, const struct message *partial)
{
    if (!r)
        return;
    memcpy(recorded(w, r), partial->payload, partial->bytes);
    note_record(w, r);
}

/* ---- frames out ------------------------------------------------------------------------- */

/* What a chunk gives to be sent: the kept message of that kind, whose bytes are the owner's now. */
static void keep_message(struct work *w, u8 kind, u8 type, u8 flags, struct buffer *owner,
                         u32 bytes)
{
    const struct group *g = w->member->group;
    struct message *m = kind == KIND_UP ? &w->kept->up : &w->kept->down;
    struct packet *p = &m->packet;
    p->kind = kind;
    p->type = type;
    p->flags = flags | (w->piece.count && !(w->turn->moved && !owner) ? 0 : FLAG_EMPTY);
    p->job = g->job;
    p->group = g->number;
    p->seq = w->turn->exchange->seq;
    p->chunk = w->turn->chunk;
    p->round = w->version->round;
    p->lane = (u16)w->turn->place.lane;
    p->contributors = (u16)w->member->workers;
    p->count = bytes ? (u16)w->piece.count : 0;
    m->payload = owner ? owner->bytes : NULL;
    m->bytes = bytes;
    m->owner = owner;
    m->source = w->kept->record;
}

/* When a kept message can leave the device. */
static u64 way_out(const struct device *d, const struct kept *k, u64 now)
{
    u64 at = later(now, k->ready) + d->config.costs.egress;
    outlet_until(d->outlet, STAGE_DEVICE, at);
    return at;
}

void chunk_send_up(const struct member *m, struct kept *k, u64 now)
{
    const struct device *d = m->device;
    d->outlet->send(d->outlet->fabric, m->up, &k->up, way_out(d, k, now));
}

void chunk_send_down(const struct member *m, struct kept *k, u32 child, u64 now)
{
    const struct device *d = m->device;
    k->down.packet.child = (u16)child;
    d->outlet->send(d->outlet->fabric, m->child[child].direction, &k->down, way_out(d, k, now));
}

void chunk_send_down_all(const struct work *w, u64 now)
{
    const struct device *d = w->device;
    if (d->outlet->trace.on) {
        u64 at = way_out(d, w->kept, now);
        nicemu_span span = span_of(w, NICEMU_SPAN_CLOSE, at, at);
        span.from = w->member->root ? 0 : d->outlet->trace.frame;
        trace_add(&d->outlet->trace, &span);
    }
    for (u32 c = 0; c < w->member->children; c++)
        chunk_send_down(w->member, w->kept, c, now);
}

/* Have a call write the bytes of a kept message, which hold nothing of another's. */
static bool write_message(struct work *w, u32 which, struct call *call)
{
    const nicemu_exchange *e = &w->turn->exchange->what;
    bool partial = which == NICEMU_EMIT;
    u32 bytes = w->piece.count * (partial ? e->kinds[NICEMU_PARTIALS].bytes : e->result_bytes);
    struct buffer *b = take_buffer(w);
    call->destination = (struct leaving){b->bytes, bytes};
    if (!invoke(w, call)) {
        buffer_release(b);
        return false;
    }
    const struct station *s = &w->lane->station;
    struct sched *sched = &w->device->sched;
    sched_move_out(sched, sched_cluster(sched, s->hart->id), s->destination, bytes, w->kept->ready);
    if (partial)
        keep_message(w, KIND_UP, e->types[NICEMU_PARTIALS], FLAG_PARTIAL, b, bytes);
    else
        keep_message(w, KIND_DOWN, e->result_type, 0, b, bytes);
    return true;
}

/* The partial sum: into the record, and of all but a root into a message to the parent. */
static bool emit(struct work *w)
{
    const nicemu_record *r = record_of(w);
    if (w->member->root && !r)
        return true;
    struct call call = leaving(w, NICEMU_EMIT);
    if (!w->member->root) {
        if (!write_message(w, NICEMU_EMIT, &call))
            return false;
        record(w, r, &w->kept->up);
        return true;
    }
    u32 bytes = w->turn->exchange->what.kinds[NICEMU_PARTIALS].bytes;
    call.destination = (struct leaving){recorded(w, r), (u64)w->piece.count * bytes};
    if (!invoke(w, &call)) {
        memset(call.destination.bytes, 0, call.destination.n); /* no chunk says that it is there */
        return false;
    }
    note_record(w, r);
    return true;
}

static bool finish(struct work *w)
{
    struct call call = leaving(w, NICEMU_FINISH);
    return write_message(w, NICEMU_FINISH, &call);
}

/* The entry that merges all children and leaves, in one pass; 0 where there is none, or another
 * entry wants the accumulator.  Where there is one, `merge` would not have begun before: a call
 * takes as many. */
static u64 whole_entry(const struct work *w)
{
    const struct member *m = w->member;
    u64 all = w->lane->slot.expected;
    if (m->group->arrival || w->turn->moved || m->children > NICEMU_MAX_FAN_IN ||
        w->version->parked != all || (m->devices && m->devices != all) || (m->root && record_of(w)))
        return 0;
    return kind_of(w, 0)->whole[m->root ? NICEMU_FINISH : NICEMU_EMIT][m->children];
}

static bool merge_whole(struct work *w, u64 pc)
{
    struct gathering g = {.k = w->member->children};
    struct call call = gather(w, pc, &g);
    if (!write_message(w, w->member->root ? NICEMU_FINISH : NICEMU_EMIT, &call))
        return false;
    gathered(w, &g);
    if (!w->member->root)
        chunk_record(w);
    return true;
}

/* What the owner sent goes on as it is. */
static void move(struct work *w)
{
    u8 kind = w->member->root ? KIND_DOWN : KIND_UP, flags = w->kept->moved ? FLAG_MOVED : 0;
    keep_message(w, kind, w->turn->exchange->what.result_type, flags, w->kept->moved,
                 w->kept->moved_bytes);
    w->kept->moved = NULL;
}

/* What leaves goes out. */
static void pass_on(struct work *w)
{
    struct member *m = w->member;
    if (m->root) {
        slot_end(w->version);
        chunk_send_down_all(w, w->now);
    } else {
        slot_send(w->version);
        w->kept->up.packet.child = (u16)m->as_child;
        chunk_send_up(m, w->kept, w->now);
    }
}

void chunk_advance(struct work *w)
{
    u64 whole = whole_entry(w);
    if (w->turn->moved)
        w->version->merged = w->version->parked;
    else if (!(whole ? merge_whole(w, whole) : chunk_merge(w)))
        return;
    if (!slot_complete(&w->lane->slot, w->version))
        return;
    if (w->turn->moved)
        move(w);
    else if (!whole && (!emit(w) || (w->member->root && !finish(w))))
        return;
    pass_on(w);
}

bool chunk_cut_short(struct work *w)
{
    u64 waiting;
    while ((waiting = w->version->parked & ~w->version->merged))
        if (!merge_next(w, waiting, w->device->config.max_fan_in))
            return false;
    if (!emit(w))
        return false;
    w->kept->up.packet.contributors = (u16)w->kept->merged;
    return true;
}

void chunk_record(const struct work *w)
{
    record(w, record_of(w), &w->kept->up);
}

/* ---- what comes -------------------------------------------------------------------------- */

u64 chunk_place(const struct work *w, u32 child)
{
    const struct station *s = &w->lane->station;
    return s->payloads + park_slot(w->member, child) * s->room;
}

void chunk_take(struct work *w, u32 child)
{
    struct slot_key key = {w->turn->exchange->seq, w->turn->chunk};
    w->version = slot_take(&w->lane->slot, w->turn->place.round, key, child);
    if (w->version->arrived != 1ull << child)
        return;
    forget(w->kept);
    if (w->device->outlet->trace.on) {
        nicemu_span span = span_of(w, NICEMU_SPAN_OPEN, w->now, w->now);
        w->kept->record = trace_add(&w->device->outlet->trace, &span);
    }
}

void chunk_park(struct work *w, u32 child, const struct parked *in)
{
    slot_park(w->version, child);
    if (!w->turn->moved) {
        park(&w->lane->parked[park_slot(w->member, child)], in);
        return;
    }
    put_taken(w, in->record);
    if (in->payload.n) {
        w->kept->moved = copy_of(w, in->payload.bytes, (u32)in->payload.n);
        w->kept->moved_bytes = (u32)in->payload.n;
    }
}
