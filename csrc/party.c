/* party.c: a group of hosts with its stations: the tree of devices between them, opening, closing.
 */
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
        m->child[c] = (struct child){.node = below,
                                     .direction = here->down[i],
                                     .workers = at[below].workers,
                                     .first = at[below].first};
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
    m->slots = p->group.arrival ? 1 : m->children;
    m->lane_bytes = device_lane_bytes(m->device, m->slots);
    return m;
}

/* ---- opening and closing ---------------------------------------------------------------- */

void party_close(struct nicemu_fabric *f, struct party *p)
{
    struct group *g = &p->group;
    for (u32 i = 0; i < p->members; i++) {
        struct member *m = p->member[i];
        if (m->lane && m->parked)
            device_leave(m);
        free(m->lane);
        free(m->parked);
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

bool party_plane_is_whole(const struct nicemu_fabric *f, const struct party *p, u32 plane)
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
        g->plan[plane].up = party_plane_is_whole(f, p, plane);
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
        m->parked = calloc((size_t)g->window * m->slots, sizeof *m->parked);
        good = m->lane && m->parked && device_join(m);
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
    u32 sends = p->group.planes * p->group.window + ARRIVAL_SENDS;
    f->most_sends = sends > f->most_sends ? sends : f->most_sends;
    return (int)p->group.number;
}
