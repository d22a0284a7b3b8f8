/* failure.c: what is done about a plane that dies or is back, and about a collective that cannot
 * end: who is missing, and the survivors' partial sums. */
#include "fabric.h"

/* ---- a plane dies, a plane is back ------------------------------------------------------- */

static bool leave_plane(struct nicemu_fabric *f, struct party *p, u32 plane, u64 down_at)
{
    struct group *g = &p->group;
    memset(p->suspect, 0, sizeof p->suspect); /* nor the other: it is alone now */
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
    if (!exchange_reserve(f, g, 0))
        return false;
    u32 first = group_use_plane(g, plane);
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
    if (g->plan[plane].up || !party_plane_is_whole(f, p, plane))
        return true;
    /* the other plane may have died meanwhile, when there was none to go to */
    return use_plane(f, p, plane) &&
           (party_plane_is_whole(f, p, other) || !g->plan[other].up || leave_plane(f, p, other, 0));
}

bool party_leave_suspects(struct nicemu_fabric *f, struct party *p)
{
    struct group *g = &p->group;
    for (u32 plane = 0; plane < g->planes; plane++)
        if (p->suspect[plane] && !g->failed)
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

/* The survivors' partial sum of a turn at a device, and at each device below it: everything that a
 * link leads to is merged first, in order.
 * Bits of `workers`: who is in it.  NULL where nobody is. */
static const struct message *salvage(struct nicemu_fabric *f, struct member *m, struct turn *t,
                                     u64 *workers)
{
    u64 now = f->clock.now, arrived = device_arrived(m, t);
    for (u32 c = 0; c < m->children; c++) {
        struct member *low = m->child[c].member;
        u64 below[WORDS] = {0};
        const struct message *partial = low ? salvage(f, low, t, below) : NULL;
        if (arrived >> c & 1) {
            mark_behind(m, c, workers);
        } else if (partial && !is_down(f, low)) {
            device_enter(m, t, c, partial, now);
            for (u32 i = 0; i < WORDS; i++)
                workers[i] |= below[i];
        }
    }
    const struct message *partial = device_salvage(m, t, now);
    if (partial) {
        const nicemu_record *r = &t->exchange->what.records[m->device->config.record];
        u32 words = (m->group->workers + 63) / 64;
        memcpy(r->members + (u64)t->chunk * words, workers, words * sizeof *workers);
    }
    return partial;
}

int nicemu_exchange_salvage(nicemu_fabric *f, uint32_t group, uint32_t seq,
                            const nicemu_record *records)
{
    struct party *p = party_of(f, group);
    struct group *g = p && p->group.failed ? &p->group : NULL;
    struct exchange *e = g ? g->first : NULL;
    while (e && e->seq != seq)
        e = e->after;
    if (!e || e->what.moved)
        return NICEMU_EINVAL;
    if (e->salvaged) /* who is in them is known from the first time alone */
        return NICEMU_OK;
    e->salvaged = true;
    e->what.records = records;
    for (u32 plane = 0; plane < g->planes; plane++)
        for (u32 i = 0; i < 2 * g->window; i++) {
            u64 workers[WORDS] = {0};
            struct turn *t = &g->plan[plane].ring[i];
            if (!t->waiting || t->moved || t->exchange != e)
                continue;
            if (!fabric_reserve_buffers(f, p->members)) /* a device may keep one more partial sum */
                return NICEMU_ENOMEM;
            salvage(f, p->root[plane], t, workers);
        }
    return NICEMU_OK;
}

/* The collectives in flight end with that error, and the group takes no more. */
static void fail(struct nicemu_fabric *f, struct party *p, nicemu_event *news)
{
    struct group *g = &p->group;
    if (g->failed)
        return;
    g->failed = true;
    for (u32 i = 0; i < g->workers; i++)
        for (u32 plane = 0; plane < g->planes; plane++)
            worker_leave_plane(&p->worker[i], plane, g->plan[plane].next);
    news->kind = NICEMU_FAILED;
    news->group = g->number;
    for (struct exchange *e = g->first; e; e = e->after) {
        news->seq = e->seq;
        if (e->left) /* else its results are there */
            fabric_report(f, news);
    }
}

static bool at_work(const struct party *p, u32 plane, const struct turn *t, u64 now)
{
    for (u32 i = 0; i < p->members; i++)
        if (p->member[i]->plane == plane && device_at_work(p->member[i], t, now))
            return true;
    return false;
}

bool party_waits(void *fabric, struct worker *w, u32 plane, struct turn *t, u32 resends)
{
    struct nicemu_fabric *f = fabric;
    struct group *g = w->group;
    struct party *p = f->party[g->index];
    if (at_work(p, plane, t, f->clock.now)) /* handlers take as long as they take */
        return false;
    bool elsewhere = g->planes > 1 && g->plan[1 - plane].up && g->plan[plane].up;
    if (elsewhere && resends >= f->config.max_resends / 2 && !p->suspect[plane]) {
        p->suspect[plane] = true;
        clock_add(&f->clock, f->clock.now, EVENT_SUSPECT, g->number, NULL);
        return true;
    }
    if (elsewhere || resends < f->config.max_resends)
        return true;
    nicemu_event news = {.chunk = t->chunk};
    mark_missing(f, p->root[plane], t, news.workers);
    news.missing = count_bits(news.workers);
    if (!news.missing)
        mark_waiting(p, plane, t, news.workers);
    news.waiting = news.missing ? 0 : count_bits(news.workers);
    fail(f, p, &news);
    return true;
}

void party_broke(void *fabric, struct device *d, struct group *g, struct turn *t, u32 core,
                 const struct call_end *end)
{
    struct nicemu_fabric *f = fabric;
    nicemu_event news = {.node = d->node,
                         .core = core,
                         .cause = t->exchange->seq,
                         .chunk = t->chunk,
                         .stop = end->stop,
                         .status = end->status};
    fail(f, f->party[g->index], &news);
}
