/* fabric.c: memory, nodes, links, and the loop of events.  Groups are in party.c,
 * their collectives in exchange.c; collectives by hosts in relay.c. */
#include "fabric.h"
#include "stream.h"

#include <stdlib.h>

/* ---- memory ----------------------------------------------------------------------------- */

enum { PIECES = 64 }; /* buffers or transits that are made at once */

bool fabric_grow(void **array, u32 *room, u32 need, size_t size)
{
    if (need <= *room)
        return true;
    u32 more = need < 16 ? 16 : need + need / 2;
    void *p = realloc(*array, more * size);
    if (!p)
        return false;
    *array = p;
    *room = more;
    return true;
}

void *fabric_slab(struct nicemu_fabric *f, size_t size)
{
    size_t head = 64; /* keeps the alignment of what follows */
    u8 *raw = aligned_alloc(64, (head + size + 63) / 64 * 64);
    if (!raw)
        return NULL;
    struct slab *slab = (struct slab *)raw;
    slab->next = f->slabs;
    f->slabs = slab;
    return raw + head;
}

static bool more_buffers(struct nicemu_fabric *f)
{
    size_t size = (sizeof(struct buffer) + f->buffers.size + 63) / 64 * 64;
    u8 *p = fabric_slab(f, PIECES * size);
    for (u32 i = 0; p && i < PIECES; i++) {
        struct buffer *b = (struct buffer *)(p + i * size);
        b->job = NO_JOB;
        buffer_give(&f->buffers, b);
    }
    return p;
}

bool fabric_reserve_buffers(struct nicemu_fabric *f, u64 n)
{
    while (f->buffers.n_free < n)
        if (!more_buffers(f))
            return false;
    return true;
}

static void transit_free(struct nicemu_fabric *f, struct transit *t)
{
    t->next = f->free;
    f->free = t;
    f->n_free++;
}

static struct transit *transit_take(struct nicemu_fabric *f)
{
    struct transit *t = f->free;
    f->free = t->next;
    f->n_free--;
    return t;
}

static bool more_transits(struct nicemu_fabric *f)
{
    struct transit *t = fabric_slab(f, PIECES * sizeof *t);
    for (u32 i = 0; t && i < PIECES; i++)
        transit_free(f, &t[i]);
    return t;
}

static bool more_queued(struct nicemu_fabric *f)
{
    struct queued *p = fabric_slab(f, PIECES * sizeof *p);
    for (u32 i = 0; p && i < PIECES; i++)
        queued_give(&f->queued, &p[i]);
    return p;
}

enum { PCAP_RECORD = 16, RECORD_MOST = PCAP_RECORD + HEAD_BYTES + MAX_MTU + 3 + ICRC_BYTES };

/* Events that one brings about beside frames: of a timer, a suspected plane, an end, a queue; and
 * both of a link's going down. */
enum { EVENT_ADDS = 6 };

bool fabric_reserve(struct nicemu_fabric *f, u64 sends)
{
    u64 most = 2 * sends + EVENT_ADDS; /* a frame may be duplicated, and each copy corrupted */
    if (!fabric_reserve_buffers(f, most + sends) || (!f->queued.free && !more_queued(f)))
        return false;
    while (f->n_free < most)
        if (!more_transits(f))
            return false;
    if (f->capturing && f->captured_room - f->captured_n < sends * RECORD_MOST) {
        size_t room = 2 * (f->captured_n + sends * RECORD_MOST);
        u8 *p = realloc(f->captured, room);
        if (!p)
            return false;
        f->captured = p;
        f->captured_room = room;
    }
    struct clock *c = &f->clock;
    return fabric_grow((void **)&c->heap, &c->heap_room, c->heap_n + (u32)most, sizeof *c->heap) &&
           fabric_grow((void **)&f->news, &f->news_room, f->news_n + MAX_EXCHANGES + 4,
                       sizeof *f->news);
}

void nicemu_fabric_close(nicemu_fabric *f)
{
    if (!f)
        return;
    for (u32 i = 0; i < MAX_GROUPS; i++)
        if (f->party[i])
            party_close(f, f->party[i]);
    while (f->relay)
        relay_free(f, f->relay);
    for (u32 i = 1; i <= f->nodes; i++) {
        free(f->node[i]->host);
        if (f->node[i]->device)
            sched_close(&f->node[i]->device->sched);
        free(f->node[i]->device);
        free(f->node[i]);
    }
    for (u32 i = 0; i < f->own_n; i++)
        sched_close(&f->own[i]);
    known_close(&f->known);
    for (u32 i = 0; i < f->cables; i++)
        free(f->cable[i]);
    while (f->slabs) {
        struct slab *next = f->slabs->next;
        free(f->slabs);
        f->slabs = next;
    }
    free(f->node);
    free(f->cable);
    free(f->clock.heap);
    free(f->news);
    free(f->replay);
    free(f->own);
    free(f->captured);
    trace_close(&f->outlet.trace);
    free(f);
}

/* ---- frames ----------------------------------------------------------------------------- */

static void put_record(struct nicemu_fabric *f, const struct frame *frame, u64 at)
{
    enum { PICOSECONDS = 1000, NANOSECONDS = 1000000000 };
    u32 bytes = frame_bytes(frame);
    u32 head[4] = {(u32)(at / PICOSECONDS / NANOSECONDS), (u32)(at / PICOSECONDS % NANOSECONDS),
                   bytes, bytes};
    memcpy(f->captured + f->captured_n, head, sizeof head);
    frame_to_bytes(frame, f->captured + f->captured_n + sizeof head);
    f->captured_n += sizeof head + bytes;
}

/* Flip one bit of a frame, in its head, its payload or its ICRC. */
static void corrupt(struct nicemu_fabric *f, struct transit *t, u64 random)
{
    struct frame *frame = &t->frame;
    u64 bit = random % (8 * (HEAD_BYTES + frame->payload_bytes + ICRC_BYTES));
    u64 byte = bit / 8;
    u8 mask = (u8)(1u << bit % 8);
    t->corrupted = true;
    if (byte < HEAD_BYTES) {
        frame->head[byte] ^= mask;
    } else if (byte < HEAD_BYTES + frame->payload_bytes) {
        struct buffer *b = buffer_take(&f->buffers, NO_JOB);
        memcpy(b->bytes, frame->payload, frame->payload_bytes);
        b->bytes[byte - HEAD_BYTES] ^= mask;
        buffer_replace(&frame->owner, b);
        frame->payload = b->bytes;
    } else {
        frame->icrc ^= (u32)mask << 8 * (byte - HEAD_BYTES - frame->payload_bytes);
    }
}

/* A frame's turn on its link, which takes time. */
static void depart(struct nicemu_fabric *f, struct transit *t)
{
    struct link *l = &f->cable[t->direction / 2]->direction[t->direction & 1];
    struct departure d = link_depart(l, frame_bytes(&t->frame), f->clock.now);
    u64 arrival = d.end + t->delay;
    if (f->outlet.timed) {
        path_until(&t->path, STAGE_QUEUE, d.start);
        path_until(&t->path, l->config.pcie ? STAGE_PCIE : STAGE_WIRE, d.end);
        path_until(&t->path, l->config.pcie ? STAGE_PCIE : STAGE_HOP, arrival);
    }
    t->record =
        TRACE_STEP(&f->outlet.trace, &t->path, .kind = NICEMU_SPAN_LINK, .where = t->direction,
                   .begin = d.start, .end = d.end, .from = t->record);
    clock_add(&f->clock, arrival, EVENT_FRAME, 0, t);
}

static u32 plane_above(const struct nicemu_fabric *f, u32 direction)
{
    return f->node[f->cable[direction / 2]->parent]->device->config.plane;
}

/* Put down that a frame leaves. */
static u64 put_sent(struct nicemu_fabric *f, const struct transit *t, u32 copies, u64 at)
{
    if (!f->outlet.trace.on)
        return 0;
    struct packet p;
    packet_parse(&t->frame, false, &p); /* it is our own, and sound */
    return TRACE(&f->outlet.trace, .kind = NICEMU_SPAN_SENT, .where = t->direction, .begin = at,
                 .end = at, .from = t->record, .plane = plane_above(f, t->direction),
                 .group = p.group, .lane = p.lane, .round = p.round, .seq = p.seq, .chunk = p.chunk,
                 .child = p.child, .bytes = frame_bytes(&t->frame),
                 .frame = p.kind | (u32)p.flags << 8, .copies = copies);
}

/* A frame that leaves at `at`: what becomes of it on its link is decided, and is under way. */
static void launch(struct nicemu_fabric *f, struct transit *t, u64 at)
{
    struct link *l = &f->cable[t->direction / 2]->direction[t->direction & 1];
    packet_number(&t->frame, (u32)l->frames);
    if (f->config.icrc || l->config.corrupt) {
        t->frame.icrc = packet_icrc(&t->frame);
        t->frame.has_icrc = true;
    }
    if (f->capturing)
        put_record(f, &t->frame, at);
    t->downs = l->downs;
    struct fate fate = link_send(l);
    t->record = put_sent(f, t, fate.copies, at);
    struct transit *copies[2] = {t};
    if (fate.copies == 2) {
        copies[1] = transit_take(f);
        *copies[1] = *t;
        buffer_hold(t->frame.owner);
    }
    f->under_way += fate.copies;
    for (u32 i = 0; i < fate.copies; i++) {
        struct transit *copy = copies[i];
        if (fate.corrupt[i])
            corrupt(f, copy, fate.flip[i]);
        copy->delay = fate.delay[i];
        if (l->config.byte_time)
            depart(f, copy);
        else
            clock_add(&f->clock, at + copy->delay, EVENT_FRAME, 0, copy);
    }
    if (!fate.copies) {
        buffer_release(t->frame.owner);
        transit_free(f, t);
    }
}

static void send(void *fabric, u32 direction, struct message *m, u64 at)
{
    struct nicemu_fabric *f = fabric;
    struct cable *cable = f->cable[direction / 2];
    bool down = direction & 1;
    m->packet.src = down ? cable->parent : cable->child;
    m->packet.dst = down ? cable->child : cable->parent;
    struct transit *t = transit_take(f);
    packet_build(&t->frame, &m->packet, m->payload, m->bytes);
    t->frame.owner = buffer_hold(m->owner);
    t->direction = direction;
    t->record = m->source;
    t->corrupted = false;
    if (f->outlet.timed) {
        t->path = f->outlet.path;
        path_until(&t->path, STAGE_SOFTWARE, at); /* devices have accounted for theirs */
    }
    /* a link on which nothing takes time has a frame from here on, whenever it leaves */
    if (at > f->clock.now && cable->direction[down].config.byte_time)
        clock_add(&f->clock, at, EVENT_DEPART, 0, t);
    else
        launch(f, t, at);
}

static void wake(void *fabric, struct device *d, u32 cluster, u64 at)
{
    struct nicemu_fabric *f = fabric;
    clock_add(&f->clock, at, EVENT_DMA_IDLE, cluster, d);
}

/* A frame reaches a node: everything that becomes of it. */
static enum verdict receive(struct nicemu_fabric *f, struct node *node, const struct frame *frame,
                            bool corrupted)
{
    struct packet p;
    nicemu_node_counters *counters = node->host ? &node->host->counters : &node->device->counters;
    counters->received++;
    enum verdict v = packet_parse(frame, frame->has_icrc, &p);
    if (!v)
        v = node->host ? host_receive(node->host, &p, frame, f->clock.now)
                       : device_receive(node->device, &p, frame, f->clock.now);
    if (v) {
        counters->drops[v]++;
        return v;
    }
    counters->accepted++;
    counters->damaged += corrupted;
    if (node->host) {
        struct worker *w = node->host->worker[p.group % MAX_GROUPS];
        if (w->waiting && !w->timed)
            fabric_pump(f, w);
    }
    return v;
}

static void arrive(struct nicemu_fabric *f, struct transit *t)
{
    struct cable *cable = f->cable[t->direction / 2];
    if (f->outlet.timed) {
        f->outlet.path = t->path;
        path_until(&f->outlet.path, STAGE_HOP, f->clock.now);
    }
    f->outlet.trace.frame = t->record;
    f->under_way--;
    if (link_arrives(&cable->direction[t->direction & 1], t->downs))
        receive(f, f->node[t->direction & 1 ? cable->child : cable->parent], &t->frame,
                t->corrupted);
    buffer_release(t->frame.owner);
    transit_free(f, t);
}

int nicemu_fabric_receive(nicemu_fabric *f, uint32_t node, const uint8_t *bytes, size_t n)
{
    struct frame frame;
    if (!node || node > f->nodes)
        return NICEMU_EINVAL;
    if (!fabric_reserve(f, f->most_sends))
        return NICEMU_ENOMEM;
    struct node *to = f->node[node];
    enum verdict v = frame_from_bytes(bytes, n, &frame);
    if (!v) {
        if (frame.payload_bytes <= f->buffers.size) { /* longer ones fit no turn and are not kept */
            frame.owner = buffer_take(&f->buffers, NO_JOB);
            frame.payload = memcpy(frame.owner->bytes, frame.payload, frame.payload_bytes);
        }
        f->outlet.trace.frame = 0;
        v = receive(f, to, &frame, false);
        buffer_release(frame.owner);
        return v;
    }
    nicemu_node_counters *counters = to->host ? &to->host->counters : &to->device->counters;
    counters->received++;
    counters->drops[v]++;
    return v;
}

static bool at_work(const struct nicemu_fabric *f)
{
    bool work = f->relay;
    for (u32 i = 0; i < MAX_GROUPS; i++)
        work |= f->party[i] && group_oldest(&f->party[i]->group);
    return work;
}

void fabric_begin(struct nicemu_fabric *f)
{
    if (at_work(f))
        return;
    for (u32 i = 1; i <= f->nodes; i++)
        if (f->node[i]->device)
            sched_begin(&f->node[i]->device->sched, f->clock.now);
    for (u32 i = 0; i < f->own_n; i++)
        sched_begin(&f->own[i], f->clock.now);
}

/* ---- building --------------------------------------------------------------------------- */

/* Of a delay or timeout: many of them in a row are far from the end of virtual time. */
#define LONGEST (1ull << 52)
/* Of a byte, in femtoseconds, at 1 Mbit/s; and the bytes around a frame: times that cannot
 * overflow. */
#define SLOWEST (1ull << 33)
#define MOST_OVERHEAD (1u << 16)

/* Where a clock runs, there are banks. */
static bool banked(const nicemu_costs *c)
{
    return c->cycle ? banks_sound(&c->banks) && c->banks.dma : !c->banks.banks;
}

static bool costs_sound(const nicemu_costs *c)
{
    return c->parse <= LONGEST && c->dispatch <= LONGEST && c->egress <= LONGEST &&
           c->dma_byte <= SLOWEST && c->cycle <= SLOWEST && banked(c);
}

int nicemu_fabric_open(const nicemu_fabric_config *config, nicemu_fabric **out)
{
    *out = NULL;
    if (config->planes < 1 || config->planes > PLANES || config->mtu < NICEMU_MIN_MTU ||
        config->mtu > MAX_MTU || !config->timeout || config->timeout > LONGEST ||
        config->max_resends < 2 || config->software > LONGEST || !costs_sound(&config->hosts) ||
        config->host_cores > MAX_HARTS ||
        (config->hosts.cluster && config->host_cores % config->hosts.cluster))
        return NICEMU_EINVAL;
    struct nicemu_fabric *f = calloc(1, sizeof *f);
    if (!f)
        return NICEMU_ENOMEM;
    f->config = *config;
    f->buffers.size = config->mtu;
    f->most_sends = ARRIVAL_SENDS;
    f->outlet = (struct outlet){.fabric = f,
                                .send = send,
                                .wake = wake,
                                .stored = exchange_stored,
                                .waits = party_waits,
                                .emitted = exchange_emitted,
                                .broke = party_broke,
                                .timed = config->timed,
                                .known = &f->known,
                                .reuse = config->reuse};
    *out = f;
    return NICEMU_OK;
}

static struct node *node_new(struct nicemu_fabric *f)
{
    if (!fabric_grow((void **)&f->node, &f->node_room, f->nodes + 2, sizeof *f->node))
        return NULL;
    struct node *node = calloc(1, sizeof *node);
    for (u32 plane = 0; node && plane < PLANES; plane++)
        node->parent[plane] = node->up[plane] = NOWHERE;
    return node;
}

int nicemu_fabric_add_host(nicemu_fabric *f)
{
    struct node *node = node_new(f);
    struct host *host = calloc(1, sizeof *host);
    if (!node || !host) {
        free(node);
        free(host);
        return NICEMU_ENOMEM;
    }
    node->host = host;
    f->node[++f->nodes] = node;
    host->node = f->nodes;
    for (u32 plane = 0; plane < PLANES; plane++)
        host->parent[plane] = host->up[plane] = NOWHERE;
    return (int)f->nodes;
}

int nicemu_fabric_add_device(nicemu_fabric *f, const nicemu_device_config *config)
{
    if (config->plane >= f->config.planes || config->max_fan_in < 1 ||
        config->max_fan_in > NICEMU_MAX_FAN_IN || !costs_sound(&config->costs))
        return NICEMU_EINVAL;
    struct node *node = node_new(f);
    struct device *device = calloc(1, sizeof *device);
    if (device) {
        device->node = f->nodes + 1;
        device->config = *config;
        device->outlet = &f->outlet;
        device->buffers = &f->buffers;
        device->queued = &f->queued;
    }
    if (!node || !device || !device_open(device)) {
        int code = node && device ? NICEMU_EFAULT : NICEMU_ENOMEM;
        free(node);
        free(device);
        return code;
    }
    node->device = device;
    f->node[++f->nodes] = node;
    return (int)f->nodes;
}

int nicemu_fabric_connect(nicemu_fabric *f, uint32_t child, uint32_t parent,
                          const nicemu_link_config *config)
{
    u64 most = 1ull << 32;
    if (!child || child > f->nodes || !parent || parent > f->nodes || child == parent ||
        config->loss > most || config->duplicate > most || config->reorder > most ||
        config->corrupt > most || config->delay > LONGEST || config->jitter > LONGEST ||
        config->span > LONGEST || config->byte_time > SLOWEST || config->overhead > MOST_OVERHEAD)
        return NICEMU_EINVAL;
    struct node *low = f->node[child], *high = f->node[parent];
    u32 plane = high->device ? high->device->config.plane : 0;
    if (!high->device || high->children == MAX_CHILDREN || low->parent[plane] != NOWHERE ||
        (low->device && low->device->config.plane != plane))
        return NICEMU_EINVAL;
    if (!fabric_grow((void **)&f->cable, &f->cable_room, f->cables + 1, sizeof *f->cable))
        return NICEMU_ENOMEM;
    struct cable *cable = calloc(1, sizeof *cable);
    if (!cable)
        return NICEMU_ENOMEM;
    u32 number = f->cables++;
    f->cable[number] = cable;
    cable->child = child;
    cable->parent = parent;
    for (u32 i = 0; i < 2; i++)
        link_open(&cable->direction[i], config, f->config.seed, 2 * number + i);
    low->parent[plane] = parent;
    low->up[plane] = 2 * number;
    if (low->host) {
        low->host->parent[plane] = parent;
        low->host->up[plane] = 2 * number;
    }
    high->child[high->children] = child;
    high->down[high->children++] = 2 * number + 1;
    return (int)number;
}

int nicemu_fabric_schedule(nicemu_fabric *f, uint32_t link, int down, uint64_t at)
{
    if (link >= f->cables || at < f->clock.now)
        return NICEMU_EINVAL;
    if (!fabric_reserve(f, 1))
        return NICEMU_ENOMEM;
    clock_add(&f->clock, at, down ? EVENT_DOWN : EVENT_UP, link, NULL);
    clock_add(&f->clock, at + f->config.detection, down ? EVENT_SEEN_DOWN : EVENT_SEEN_UP, link,
              NULL);
    return NICEMU_OK;
}

/* ---- the loop --------------------------------------------------------------------------- */

void fabric_report(struct nicemu_fabric *f, const nicemu_event *news)
{
    nicemu_event *n = &f->news[f->news_n++];
    *n = *news;
    n->at = f->clock.now;
}

static void set_down(struct nicemu_fabric *f, u32 which, bool down)
{
    struct cable *cable = f->cable[which];
    if (down)
        cable->down_at = f->clock.now;
    link_set_down(&cable->direction[0], down);
    link_set_down(&cable->direction[1], down);
}

void fabric_pump(struct nicemu_fabric *f, struct worker *w)
{
    worker_send(w, f->clock.now);
    if (!w->waiting || w->timed)
        return;
    w->timed = true;
    clock_add(&f->clock, f->clock.now + w->timeout, EVENT_TIMER, w->group->number, w);
}

/* A worker's timer; its group may be gone. */
static void tick(struct nicemu_fabric *f, u32 group, struct worker *w)
{
    if (!party_of(f, group))
        return;
    u64 next = worker_tick(w, f->clock.now);
    w->timed = next != 0;
    if (next)
        clock_add(&f->clock, next, EVENT_TIMER, group, w);
}

/* False when the host has no memory left. */
static bool seen(struct nicemu_fabric *f, u32 which, bool down)
{
    bool good = true;
    if ((f->cable[which]->direction[0].downs & 1) != down) /* no more */
        return true;
    for (u32 i = 0; good && i < MAX_GROUPS; i++)
        if (f->party[i])
            good = party_seen(f, f->party[i], which, down);
    return good;
}

static bool handle(struct nicemu_fabric *f, const struct event *e)
{
    switch ((enum event_kind)e->kind) {
    case EVENT_FRAME:
        arrive(f, e->what);
        return true;
    case EVENT_DEPART:
        launch(f, e->what, f->clock.now);
        return true;
    case EVENT_DMA_IDLE:
        device_dma_idle(e->what, e->which, f->clock.now);
        return true;
    case EVENT_OWN_DMA_IDLE:
        return relay_dma_idle(f, e->which);
    case EVENT_LEAVES:
    case EVENT_ARRIVES:
    case EVENT_TAKEN:
    case EVENT_MERGED:
        return relay_go_on(f, e->kind, e->what);
    case EVENT_RELAYED:
        relay_end(f, e->what);
        return true;
    case EVENT_ENDED:
        exchange_end(f, e->which, e->what);
        return true;
    case EVENT_TIMER:
        tick(f, e->which, e->what);
        return true;
    case EVENT_DOWN:
    case EVENT_UP:
        set_down(f, e->which, e->kind == EVENT_DOWN);
        return true;
    case EVENT_SEEN_DOWN:
    case EVENT_SEEN_UP:
        return seen(f, e->which, e->kind == EVENT_SEEN_DOWN);
    case EVENT_SUSPECT: {
        struct party *p = party_of(f, e->which);
        return !p || party_leave_suspects(f, p);
    }
    }
    return true;
}

enum {
    CAPTURE_BATCH = 4 << 20,
    WORK_BATCH = 16 << 20 /* instructions and elements: about a tenth of a second of scalar code */
};

static int run(struct nicemu_fabric *f, u64 max_events, u64 until, nicemu_event *out)
{
    const u64 work = f->outlet.work;
    *out = (nicemu_event){.kind = NICEMU_SLICE};
    for (u64 i = 0;; i++) {
        if (f->news_first < f->news_n) {
            *out = f->news[f->news_first++];
            return NICEMU_OK;
        }
        f->news_first = f->news_n = 0;
        out->at = f->clock.now;
        if (f->captured_n >= CAPTURE_BATCH) {
            out->kind = NICEMU_CAPTURED;
            return NICEMU_OK;
        }
        if (i == max_events || f->outlet.work - work > WORK_BATCH)
            return NICEMU_OK;
        if (!fabric_reserve(f, f->most_sends))
            return NICEMU_ENOMEM;
        struct event e;
        if (!clock_next(&f->clock, until, &e)) {
            out->kind = NICEMU_IDLE;
            return NICEMU_OK;
        }
        f->events++;
        if (!handle(f, &e) || f->outlet.starved)
            return NICEMU_ENOMEM;
    }
}

int nicemu_fabric_run(nicemu_fabric *f, uint64_t max_events, uint64_t until, nicemu_event *out)
{
    int code = run(f, max_events, until, out);
    stream_end();
    return code;
}

const char *nicemu_stage_name(uint32_t i)
{
    static const char *const names[STAGES] = {
#define STAGE(id, name) name,
#include "stage.def"
#undef STAGE
    };
    return i < STAGES ? names[i] : NULL;
}

/* ---- looking on ------------------------------------------------------------------------- */

uint64_t nicemu_fabric_now(const nicemu_fabric *f)
{
    return f->clock.now;
}

uint64_t nicemu_fabric_events(const nicemu_fabric *f)
{
    return f->events;
}

uint64_t nicemu_fabric_under_way(const nicemu_fabric *f)
{
    return f->under_way;
}

void nicemu_fabric_capture(nicemu_fabric *f, int on)
{
    f->capturing = on;
}

const uint8_t *nicemu_fabric_captured(nicemu_fabric *f, size_t *n)
{
    *n = f->captured_n;
    f->captured_n = 0;
    return f->captured;
}

int nicemu_fabric_trace(nicemu_fabric *f, int on)
{
    if (on && (!f->outlet.timed || f->parties || f->relays))
        return NICEMU_EINVAL;
    trace_close(&f->outlet.trace);
    f->outlet.trace.on = on;
    return NICEMU_OK;
}

int nicemu_fabric_traced(const nicemu_fabric *f, const nicemu_span **spans, uint64_t *n)
{
    *spans = f->outlet.trace.spans;
    *n = f->outlet.trace.n;
    return f->outlet.trace.cut ? NICEMU_ENOMEM : NICEMU_OK;
}

int nicemu_link_counters_get(const nicemu_fabric *f, uint32_t link, uint32_t direction,
                             nicemu_link_counters *out)
{
    if (link >= f->cables || direction > 1)
        return NICEMU_EINVAL;
    *out = f->cable[link]->direction[direction].counters;
    return NICEMU_OK;
}

/* Counters are structs of u64 only. */
static void add_counters(void *sum, const void *one, size_t bytes)
{
    u64 *to = sum;
    const u64 *from = one;
    for (size_t i = 0; i < bytes / sizeof *to; i++)
        to[i] += from[i];
}

void nicemu_fabric_totals(const nicemu_fabric *f, nicemu_node_counters *nodes,
                          nicemu_link_counters *links)
{
    *nodes = (nicemu_node_counters){0};
    *links = (nicemu_link_counters){0};
    for (u32 i = 1; i <= f->nodes; i++) {
        const struct node *n = f->node[i];
        const nicemu_node_counters *one = n->host ? &n->host->counters : &n->device->counters;
        add_counters(nodes, one, sizeof *one);
    }
    for (u32 i = 0; i < 2 * f->cables; i++) {
        const nicemu_link_counters *one = &f->cable[i / 2]->direction[i % 2].counters;
        add_counters(links, one, sizeof *one);
    }
}

int nicemu_replay_get(const nicemu_fabric *f, uint32_t i, nicemu_replay *out)
{
    if (i >= f->replays)
        return NICEMU_EINVAL;
    *out = f->replay[i];
    return NICEMU_OK;
}
