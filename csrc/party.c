/* party.c: a group of hosts with its stations: opening and closing, collectives, what happens when
 * a plane dies or a collective fails. */
#include "fabric.h"

#include <stdlib.h>

struct party *party_of(const struct nicemu_fabric *f, u32 group)
{
    struct party *p = f->party[group % MAX_GROUPS];
    return p && p->group.number == group ? p : NULL;
}

/* ---- the tree of a group ---------------------------------------------------------------- */

/* Workers behind each node on a plane, and the lowest of them. */
struct census {
    u32 workers, first;
};

static void count_workers(const struct nicemu_fabric *f, const u32 *hosts, u32 n, u32 plane,
                          struct census *at)
{
    memset(at, 0, (f->nodes + 1) * sizeof *at);
    for (u32 i = n; i--;)
        for (u32 node = hosts[i]; node != NOWHERE; node = f->node[node]->parent[plane]) {
            at[node].workers++;
            at[node].first = i;
        }
}

/* The uppermost device, or 0 where not all workers are behind one. */
static u32 root_of(const struct nicemu_fabric *f, const u32 *hosts, u32 n, u32 plane,
                   const struct census *at)
{
    u32 node = f->node[hosts[0]]->parent[plane];
    while (node != NOWHERE && f->node[node]->parent[plane] != NOWHERE)
        node = f->node[node]->parent[plane];
    return node != NOWHERE && at[node].workers == n ? node : 0;
}

static struct member *member_new(struct party *p, struct device *d, u32 plane)
{
    struct member *m = calloc(1, sizeof *m);
    if (!m)
        return NULL;
    m->device = d;
    m->group = &p->group;
    m->plane = plane;
    m->child_of = malloc(p->group.workers);
    p->member[p->members++] = m; /* freed with the party, whatever follows */
    if (!m->child_of)
        return NULL;
    memset(m->child_of, NO_CHILD, p->group.workers);
    return m;
}

/* The member at a device and all below it; NULL when the host has no memory left. */
static struct member *grow_tree(struct nicemu_fabric *f, struct party *p, u32 node, u32 plane,
                                const struct census *at)
{
    const struct node *here = f->node[node];
    struct member *m = member_new(p, here->device, plane);
    if (!m)
        return NULL;
    m->workers = at[node].workers;
    m->first = at[node].first;
    m->up = here->up[plane];
    m->parent = here->parent[plane];
    for (u32 i = 0; i < here->children; i++) {
        u32 below = here->child[i];
        if (!at[below].workers)
            continue;
        u32 c = m->children++;
        m->child[c] =
            (struct child){below, here->down[i], at[below].workers, at[below].first, NULL};
        if (f->node[below]->host) {
            struct worker *w = &p->worker[at[below].first];
            w->as_child[plane] = c;
            m->child_of[w->index] = (u8)c;
            continue;
        }
        struct member *low = m->child[c].member = grow_tree(f, p, below, plane, at);
        if (!low)
            return NULL;
        low->as_child = c;
        m->devices |= 1ull << c;
        for (u32 w = 0; w < p->group.workers; w++)
            if (low->child_of[w] != NO_CHILD)
                m->child_of[w] = (u8)c;
    }
    m->lane_bytes = device_lane_bytes(m->device, m->children, p->group.arrival);
    return m;
}

/* ---- opening and closing ---------------------------------------------------------------- */

static void exchange_free(struct exchange *e)
{
    free(e->block_chunk);
    free(e->emitted);
    free(e);
}

void party_close(struct nicemu_fabric *f, struct party *p)
{
    struct group *g = &p->group;
    for (u32 i = 0; i < p->members; i++) {
        struct member *m = p->member[i];
        if (m->lane)
            device_leave(m);
        free(m->lane);
        free(m->child_of);
        free(m);
    }
    for (u32 plane = 0; plane < PLANES; plane++) {
        for (u32 i = 0; g->plan[plane].ring && i < 2 * g->window; i++)
            buffer_release(g->plan[plane].ring[i].result);
        free(g->plan[plane].ring);
    }
    for (u32 i = g->again_next; i < g->again_n; i++)
        buffer_release(g->again[i].result);
    free(g->again);
    for (u32 i = 0; p->worker && i < g->workers; i++) {
        struct worker *w = &p->worker[i];
        if (w->host && w->host->worker[g->index] == w)
            w->host->worker[g->index] = NULL;
        for (u32 plane = 0; plane < PLANES; plane++)
            free(w->wait[plane]);
    }
    while (g->first) {
        struct exchange *after = g->first->after;
        exchange_free(g->first);
        g->first = after;
    }
    if (f->party[g->index] == p)
        f->party[g->index] = NULL;
    free(p->worker);
    free(p->member);
    free(p);
}

int nicemu_group_close(nicemu_fabric *f, uint32_t group)
{
    struct party *p = party_of(f, group);
    if (!p)
        return NICEMU_EINVAL;
    party_close(f, p);
    return NICEMU_OK;
}

static bool sound(const struct nicemu_fabric *f, const u32 *hosts, u32 n)
{
    if (n < 1 || n > NICEMU_MAX_WORKERS)
        return false;
    for (u32 i = 0; i < n; i++) {
        if (!hosts[i] || hosts[i] > f->nodes || !f->node[hosts[i]]->host)
            return false;
        for (u32 j = 0; j < i; j++)
            if (hosts[i] == hosts[j])
                return false;
    }
    return true;
}

static struct party *party_new(struct nicemu_fabric *f, u32 index, u32 job, const u32 *hosts,
                               u32 workers, bool arrival)
{
    struct party *p = calloc(1, sizeof *p);
    if (!p)
        return NULL;
    struct group *g = &p->group;
    g->index = index;
    g->number = ++f->parties * MAX_GROUPS + index;
    g->job = (u16)job;
    g->arrival = arrival;
    g->planes = f->config.planes;
    g->workers = workers;
    g->last = &g->first;
    p->worker = calloc(workers, sizeof *p->worker);
    p->member = calloc(f->nodes, sizeof *p->member);
    for (u32 i = 0; p->worker && i < workers; i++)
        p->worker[i] = (struct worker){.host = f->node[hosts[i]]->host,
                                       .group = g,
                                       .outlet = &f->outlet,
                                       .buffers = &f->buffers,
                                       .index = i,
                                       .timeout = f->config.timeout};
    return p;
}

/* The trees of all planes; EINVAL where the hosts have no device in common. */
static int find_trees(struct nicemu_fabric *f, struct party *p, const u32 *hosts)
{
    struct census *at = malloc((f->nodes + 1) * sizeof *at);
    int code = at && p->worker && p->member ? NICEMU_OK : NICEMU_ENOMEM;
    for (u32 plane = 0; code == NICEMU_OK && plane < p->group.planes; plane++) {
        count_workers(f, hosts, p->group.workers, plane, at);
        u32 root = root_of(f, hosts, p->group.workers, plane, at);
        if (!root)
            code = NICEMU_EINVAL;
        else if (!(p->root[plane] = grow_tree(f, p, root, plane, at)))
            code = NICEMU_ENOMEM;
        else
            p->root[plane]->root = true;
    }
    free(at);
    return code;
}

/* Lanes are what all devices of the tree have room for. */
static u32 fit_window(struct party *p, u32 window, u32 *device, u64 *needed, u64 *room)
{
    for (u32 i = 0; i < p->members; i++) {
        struct member *m = p->member[i];
        u32 lanes = device_lanes(m->device, m->lane_bytes, &m->offset);
        if (lanes < window)
            window = lanes;
        if (!lanes) {
            *device = m->device->node;
            *needed = m->lane_bytes;
            *room = device_room(m->device, &m->offset);
            return 0;
        }
    }
    return window;
}

static bool plane_is_whole(const struct nicemu_fabric *f, const struct party *p, u32 plane)
{
    for (u32 i = 0; i < p->members; i++) {
        const struct member *m = p->member[i];
        for (u32 c = 0; m->plane == plane && c < m->children; c++)
            if (f->cable[m->child[c].direction / 2]->direction[0].downs & 1)
                return false;
    }
    return true;
}

static bool make_lanes(struct nicemu_fabric *f, struct party *p)
{
    struct group *g = &p->group;
    g->again = calloc(4ull * g->window, sizeof *g->again);
    bool good = g->again;
    for (u32 plane = 0; plane < g->planes; plane++) {
        g->plan[plane].up = plane_is_whole(f, p, plane);
        g->plan[plane].ring = calloc(2ull * g->window, sizeof *g->plan[plane].ring);
        good = good && g->plan[plane].ring;
        for (u32 i = 0; i < g->workers; i++) {
            p->worker[i].wait[plane] = calloc(g->window, sizeof *p->worker[i].wait[plane]);
            good = good && p->worker[i].wait[plane];
        }
    }
    if (!g->plan[0].up && (g->planes == 1 || !g->plan[1].up))
        g->plan[0].up = true; /* no plane is whole: resends find out */
    for (u32 i = 0; good && i < p->members; i++) {
        struct member *m = p->member[i];
        m->lane = calloc(g->window, sizeof *m->lane);
        good = m->lane && device_join(m);
    }
    return good;
}

int nicemu_group_open(nicemu_fabric *f, uint32_t job, const uint32_t *hosts, uint32_t workers,
                      int arrival, uint32_t *window, uint32_t *device, uint64_t *needed,
                      uint64_t *room)
{
    u32 index = 0;
    *device = 0;
    if (!sound(f, hosts, workers) || job > UINT16_MAX || !*window || *window > NICEMU_MAX_WINDOW)
        return NICEMU_EINVAL;
    while (index < MAX_GROUPS && f->party[index])
        index++;
    if (index == MAX_GROUPS)
        return NICEMU_ENOMEM;
    struct party *p = party_new(f, index, job, hosts, workers, arrival);
    if (!p)
        return NICEMU_ENOMEM;
    int code = find_trees(f, p, hosts);
    if (code == NICEMU_OK) {
        *window = p->group.window = fit_window(p, *window, device, needed, room);
        code = p->group.window && make_lanes(f, p) ? NICEMU_OK : NICEMU_ENOMEM;
    }
    if (code != NICEMU_OK) {
        party_close(f, p);
        return code;
    }
    f->party[index] = p;
    for (u32 i = 0; i < workers; i++)
        p->worker[i].host->worker[index] = &p->worker[i];
    u32 sends = p->group.planes * p->group.window + MAX_CHILDREN + 4;
    f->most_sends = sends > f->most_sends ? sends : f->most_sends;
    return (int)p->group.number;
}

/* ---- collectives ------------------------------------------------------------------------ */

static bool kind_sound(const nicemu_kind *kind, u8 type, u64 most)
{
    return kind->fresh[1] && kind->more[1] && kind->bytes && kind->bytes <= most &&
           kind->bytes == packet_element_bytes(type);
}

/* Does every size fit its type, the links and the lanes? */
static bool exchange_sound(const struct nicemu_fabric *f, const struct party *p,
                           const nicemu_exchange *e)
{
    u64 mtu = f->config.mtu, chunk = e->chunk;
    if (e->workers != p->group.workers || !chunk || chunk > MAX_MTU ||
        e->count > (1ull << 62) / chunk)
        return false;
    if (!e->moved) {
        const nicemu_kind *elements = &e->kinds[NICEMU_ELEMENTS];
        const nicemu_kind *partials = &e->kinds[NICEMU_PARTIALS];
        bool partials_travel = p->members > p->group.planes;
        return kind_sound(elements, e->types[NICEMU_ELEMENTS], mtu / chunk) &&
               kind_sound(partials, e->types[NICEMU_PARTIALS],
                          (partials_travel ? mtu : 2 * mtu) / chunk) &&
               e->emit && e->finish && e->result_bytes &&
               e->result_bytes == packet_element_bytes(e->result_type) &&
               chunk * e->result_bytes <= mtu && chunk * e->accumulator_bytes <= 2 * mtu;
    }
    return !e->types[NICEMU_ELEMENTS] && !e->result_type && chunk <= mtu &&
           e->kinds[NICEMU_ELEMENTS].bytes == 1 && e->result_bytes == 1 && (e->blocks || !e->count);
}

static u64 chunks_of(const nicemu_exchange *e, u64 elements)
{
    return elements / e->chunk + (elements % e->chunk != 0);
}

/* Memory for all workers' sending what their windows have room for, with so many chunks more. */
static bool reserve_burst(struct nicemu_fabric *f, const struct group *g, u64 more)
{
    u64 most = (u64)g->planes * g->window, chunks = more;
    for (const struct exchange *e = g->first; e; e = e->after)
        chunks += e->chunks;
    return fabric_reserve(f, g->workers * (chunks < most ? chunks : most) + f->most_sends);
}

/* The number of chunks, and of moved elements whose they are; false when they cannot be counted. */
static bool cut(struct exchange *e)
{
    u64 chunks = 0;
    if (!e->what.moved) {
        chunks = chunks_of(&e->what, e->what.count);
    } else if (!e->what.blocks) {
        chunks = 1;
    } else {
        for (u32 w = 0; w < e->what.workers; w++) {
            e->block_chunk[w] = (u32)chunks;
            if (e->what.blocks[w] > e->what.blocks[w + 1] || e->what.blocks[w + 1] > e->what.count)
                return false;
            chunks += chunks_of(&e->what, e->what.blocks[w + 1] - e->what.blocks[w]);
        }
        e->block_chunk[e->what.workers] = (u32)chunks;
    }
    e->chunks = e->left = (u32)chunks;
    e->next[1] = 1;
    return chunks <= UINT32_MAX - 2;
}

static void finish(struct nicemu_fabric *f, struct group *g, struct exchange *done)
{
    struct exchange **at = &g->first;
    while (*at != done)
        at = &(*at)->after;
    *at = done->after;
    if (!*at)
        g->last = at;
    g->in_flight--;
    fabric_report(f, &(nicemu_event){.kind = NICEMU_DONE, .group = g->number, .seq = done->seq});
    exchange_free(done);
}

static bool may_change(const struct nicemu_fabric *f)
{
    bool may = f->config.icrc;
    for (u32 i = 0; i < f->cables; i++)
        may |= !f->cable[i]->direction[0].clean;
    return may;
}

int nicemu_exchange_start(nicemu_fabric *f, uint32_t group, const nicemu_exchange *what)
{
    struct party *p = party_of(f, group);
    if (!p || p->group.failed || !exchange_sound(f, p, what))
        return NICEMU_EINVAL;
    struct group *g = &p->group;
    struct exchange *e = calloc(1, sizeof *e);
    u32 records = f->nodes;
    if (!e || g->in_flight == MAX_EXCHANGES ||
        !reserve_burst(f, g, chunks_of(what, what->count) + what->workers)) {
        free(e);
        return NICEMU_ENOMEM;
    }
    e->what = *what;
    e->group = g->number;
    e->block_chunk = calloc(what->workers + 1, sizeof *e->block_chunk);
    e->emitted = calloc(records, sizeof *e->emitted);
    bool whole = e->block_chunk && e->emitted;
    if (!whole || !cut(e)) {
        exchange_free(e);
        return whole ? NICEMU_EINVAL : NICEMU_ENOMEM;
    }
    u32 seq = e->seq = g->next_seq++;
    *g->last = e;
    g->last = &e->after;
    g->in_flight++;
    if (!e->chunks)
        finish(f, g, e);
    bool copies = may_change(f);
    for (u32 i = 0; i < g->workers; i++) {
        p->worker[i].copies = copies;
        fabric_pump(f, &p->worker[i]);
    }
    return (int)(seq & INT32_MAX);
}

void party_stored(void *fabric, struct worker *w, struct turn *t, struct buffer *result)
{
    struct nicemu_fabric *f = fabric;
    struct group *g = w->group;
    struct exchange *e = t->exchange;
    bool again = t->again;
    if (!turn_done(t, w->index, result))
        return;
    if (again && !--g->again_left)
        for (u32 i = f->replays; i--;)
            if (f->replay[i].group == g->number && !f->replay[i].replayed)
                f->replay[i].replayed = f->clock.now;
    if (!--e->left)
        finish(f, g, e);
}

void nicemu_fabric_progress(const nicemu_fabric *f, uint64_t *chunks, uint64_t *left)
{
    *chunks = *left = 0;
    for (u32 i = 0; i < MAX_GROUPS; i++) {
        const struct exchange *e = f->party[i] ? f->party[i]->group.first : NULL;
        for (; e; e = e->after) {
            *chunks += e->chunks;
            *left += e->left;
        }
    }
}

void party_emitted(void *fabric, struct device *d, struct exchange *e)
{
    struct nicemu_fabric *f = fabric;
    if (e->emitted[d->config.record] == e->chunks)
        fabric_report(f, &(nicemu_event){.kind = NICEMU_LEVEL,
                                         .group = e->group,
                                         .seq = e->seq,
                                         .record = d->config.record});
}

/* ---- a plane dies, a plane is back ------------------------------------------------------- */

static bool leave_plane(struct nicemu_fabric *f, struct party *p, u32 plane, u64 down_at)
{
    struct group *g = &p->group;
    u64 sends = (u64)g->workers * g->planes * g->window + f->most_sends;
    if (!fabric_reserve(f, sends) ||
        !fabric_grow((void **)&f->replay, &f->replay_room, f->replays + 1, sizeof *f->replay))
        return false;
    u32 chunks = group_leave_plane(g, plane);
    f->replay[f->replays++] = (nicemu_replay){.group = g->number,
                                              .plane = plane,
                                              .chunks = chunks,
                                              .down = down_at,
                                              .detected = f->clock.now,
                                              .replayed = chunks ? 0 : f->clock.now};
    for (u32 i = 0; i < g->workers; i++)
        worker_leave_plane(&p->worker[i], plane, g->plan[plane].next);
    for (u32 i = 0; i < g->workers; i++)
        fabric_pump(f, &p->worker[i]);
    return true;
}

static bool use_plane(struct nicemu_fabric *f, struct party *p, u32 plane)
{
    struct group *g = &p->group;
    if (!reserve_burst(f, g, 0))
        return false;
    u32 first = group_use_plane(g, plane);
    p->suspect[plane] = false;
    for (u32 i = 0; i < p->members; i++)
        if (p->member[i]->plane == plane)
            device_restart(p->member[i], first);
    for (u32 i = 0; i < g->workers; i++)
        worker_leave_plane(&p->worker[i], plane, g->plan[plane].next);
    for (u32 i = 0; i < g->workers; i++)
        fabric_pump(f, &p->worker[i]);
    return true;
}

static bool uses(const struct party *p, u32 cable, u32 *plane)
{
    for (u32 i = 0; i < p->members; i++)
        for (u32 c = 0; c < p->member[i]->children; c++)
            if (p->member[i]->child[c].direction / 2 == cable) {
                *plane = p->member[i]->plane;
                return true;
            }
    return false;
}

bool party_seen(struct nicemu_fabric *f, struct party *p, u32 cable, bool down)
{
    struct group *g = &p->group;
    u32 plane;
    if (g->planes == 1 || g->failed || !uses(p, cable, &plane))
        return true;
    u32 other = 1 - plane;
    if (down)
        return !g->plan[plane].up || !g->plan[other].up ||
               leave_plane(f, p, plane, f->cable[cable]->down_at);
    if (g->plan[plane].up || !plane_is_whole(f, p, plane))
        return true;
    /* the other plane may have died meanwhile, when there was none to go to */
    return use_plane(f, p, plane) &&
           (plane_is_whole(f, p, other) || !g->plan[other].up || leave_plane(f, p, other, 0));
}

bool party_leave_suspects(struct nicemu_fabric *f, struct party *p)
{
    struct group *g = &p->group;
    for (u32 plane = 0; plane < g->planes; plane++)
        if (p->suspect[plane] && g->plan[plane].up && g->plan[1 - plane].up && !g->failed)
            return leave_plane(f, p, plane, 0);
    return true;
}

/* ---- failure ---------------------------------------------------------------------------- */

enum { WORDS = NICEMU_MAX_WORKERS / 64 }; /* of a set of workers */

static void mark(u64 *workers, u32 w)
{
    workers[w / 64] |= 1ull << w % 64;
}

static void mark_behind(const struct member *m, u32 child, u64 *workers)
{
    for (u32 w = 0; w < m->group->workers; w++)
        if (m->child_of[w] == child)
            mark(workers, w);
}

static bool all_arrived(const struct member *m, const struct turn *t)
{
    return device_arrived(m, t) == ~0ull >> (MAX_CHILDREN - m->children);
}

static bool is_down(const struct nicemu_fabric *f, const struct member *m)
{
    return f->cable[m->up / 2]->direction[0].downs & 1;
}

/* Workers whose elements have not reached the device. */
static void mark_missing(const struct nicemu_fabric *f, const struct member *m,
                         const struct turn *t, u64 *workers)
{
    u64 arrived = device_arrived(m, t);
    for (u32 c = 0; c < m->children; c++) {
        const struct member *low = m->child[c].member;
        if (arrived >> c & 1)
            continue;
        if (!low || is_down(f, low) || all_arrived(low, t))
            mark_behind(m, c, workers);
        else
            mark_missing(f, low, t, workers);
    }
}

static void mark_waiting(const struct party *p, u32 plane, const struct turn *t, u64 *workers)
{
    for (u32 i = 0; i < p->group.workers; i++) {
        const struct wait *wait = &p->worker[i].wait[plane][t->place.lane];
        if (wait->busy && place_same(wait->place, t->place))
            mark(workers, i);
    }
}

static u32 count_bits(const u64 *workers)
{
    u32 n = 0;
    for (u32 i = 0; i < WORDS; i++)
        n += (u32)__builtin_popcountll(workers[i]);
    return n;
}

/* The survivors' partial sum of a turn at a device: everything below it that a link leads to is
 * merged first, in order.
 * Bits of `workers`: who is in it.  NULL where nobody is. */
static const struct message *salvage(struct nicemu_fabric *f, struct member *m, struct turn *t,
                                     u64 *workers)
{
    u64 now = f->clock.now, arrived = device_arrived(m, t);
    for (u32 c = 0; c < m->children; c++) {
        struct member *low = m->child[c].member;
        if (arrived >> c & 1) {
            mark_behind(m, c, workers);
        } else if (low && !is_down(f, low)) {
            u64 below[WORDS] = {0};
            const struct message *partial = salvage(f, low, t, below);
            if (!partial)
                continue;
            device_enter(m, t, c, partial, now);
            for (u32 i = 0; i < WORDS; i++)
                workers[i] |= below[i];
        }
    }
    const struct message *partial = device_salvage(m, t, now);
    const nicemu_record *records = t->exchange->what.records;
    const nicemu_record *r = records ? &records[m->device->config.record] : NULL;
    if (partial && r && r->values) {
        u32 words = (m->group->workers + 63) / 64;
        memcpy(r->members + (u64)t->chunk * words, workers, words * sizeof *workers);
    }
    return partial;
}

static void salvage_all(struct nicemu_fabric *f, struct party *p)
{
    struct group *g = &p->group;
    for (u32 plane = 0; plane < g->planes; plane++)
        for (u32 i = 0; i < 2 * g->window; i++) {
            u64 workers[WORDS] = {0};
            struct turn *t = &g->plan[plane].ring[i];
            if (t->waiting && !t->moved && t->exchange->what.records)
                salvage(f, p->root[plane], t, workers);
        }
}

/* The collectives in flight end with that error, and the group takes no more. */
static void fail(struct nicemu_fabric *f, struct party *p, nicemu_event *news)
{
    struct group *g = &p->group;
    if (g->failed)
        return;
    g->failed = true;
    salvage_all(f, p);
    for (u32 i = 0; i < g->workers; i++)
        for (u32 plane = 0; plane < g->planes; plane++)
            worker_leave_plane(&p->worker[i], plane, g->plan[plane].next);
    news->kind = NICEMU_FAILED;
    news->group = g->number;
    for (struct exchange *e = g->first; e; e = e->after) {
        news->seq = e->seq;
        fabric_report(f, news);
    }
}

void party_waits(void *fabric, struct worker *w, u32 plane, struct turn *t, u32 resends)
{
    struct nicemu_fabric *f = fabric;
    struct group *g = w->group;
    struct party *p = f->party[g->index];
    bool elsewhere = g->planes > 1 && g->plan[1 - plane].up && g->plan[plane].up;
    if (elsewhere && resends >= f->config.max_resends / 2 && !p->suspect[plane]) {
        p->suspect[plane] = true;
        clock_add(&f->clock, f->clock.now, EVENT_SUSPECT, g->number, NULL);
        return;
    }
    if (elsewhere || resends < f->config.max_resends)
        return;
    nicemu_event news = {.chunk = t->chunk};
    mark_missing(f, p->root[plane], t, news.workers);
    news.missing = count_bits(news.workers);
    if (!news.missing)
        mark_waiting(p, plane, t, news.workers);
    news.waiting = news.missing ? 0 : count_bits(news.workers);
    fail(f, p, &news);
}

void party_broke(void *fabric, struct device *d, struct group *g, struct turn *t, u32 core,
                 const struct call_end *end)
{
    struct nicemu_fabric *f = fabric;
    nicemu_event news = {
        .node = d->node, .core = core, .chunk = t->chunk, .stop = end->stop, .status = end->status};
    fail(f, f->party[g->index], &news);
}

/* ---- looking on ------------------------------------------------------------------------- */

static u64 hash(u64 h, const void *bytes, size_t n)
{
    const u8 *p = bytes;
    for (size_t i = 0; i < n; i++)
        h = (h ^ p[i]) * 0x100000001b3ull; /* FNV-1a */
    return h;
}

static u64 hash_message(u64 h, const struct message *m)
{
    h = hash(h, &m->packet.contributors, sizeof m->packet.contributors);
    return m->bytes ? hash(h, m->payload, m->bytes) : h;
}

static u64 hash_lane(u64 h, const struct lane *lane, u64 bytes)
{
    h = hash(h, &lane->slot.first, sizeof lane->slot.first);
    for (u32 i = 0; i < 2; i++) {
        const struct slot_version *v = &lane->slot.version[i];
        const struct kept *k = &lane->kept[i];
        u64 fields[] = {v->round,   v->state,  v->key.seq, v->key.chunk,
                        v->arrived, v->merged, k->merged};
        h = hash_message(hash_message(hash(h, fields, sizeof fields), &k->up), &k->down);
        h = k->moved ? hash(h, k->moved->bytes, k->moved_bytes) : h;
    }
    return hash(h, lane_memory(lane), bytes);
}

static u64 hash_worker(u64 h, const struct worker *w)
{
    for (u32 plane = 0; plane < w->group->planes; plane++) {
        h = hash(h, &w->next[plane], sizeof w->next[plane]);
        for (u32 i = 0; i < w->group->window; i++) {
            const struct wait *wait = &w->wait[plane][i];
            u64 fields[] = {wait->busy, wait->place.round, wait->place.lane, wait->resends};
            h = hash(h, fields, sizeof fields);
        }
    }
    return h;
}

uint64_t nicemu_fabric_digest(const nicemu_fabric *f)
{
    u64 h = 0xcbf29ce484222325ull;
    for (u32 i = 0; i < MAX_GROUPS; i++) {
        const struct party *p = f->party[i];
        if (!p)
            continue;
        h = hash(h, &p->group.failed, sizeof p->group.failed);
        for (u32 j = 0; j < p->members; j++)
            for (u32 lane = 0; lane < p->group.window; lane++)
                h = hash_lane(h, &p->member[j]->lane[lane], p->member[j]->lane_bytes);
        for (u32 j = 0; j < p->group.workers; j++)
            h = hash_worker(h, &p->worker[j]);
    }
    return h;
}
