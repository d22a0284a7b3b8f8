/* exchange.c: collectives of a group from their start to their end: are they sound, their cut into
 * chunks, what the stations report of them. */
#include "fabric.h"

#include <stdlib.h>

void exchange_free(struct exchange *e)
{
    free(e->block_chunk);
    free(e->emitted);
    free(e);
}

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
               e->leave[NICEMU_EMIT] && e->leave[NICEMU_FINISH] && e->result_bytes &&
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

bool exchange_reserve(struct nicemu_fabric *f, const struct group *g, u64 more)
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
    nicemu_event event = {.kind = NICEMU_DONE, .group = g->number, .seq = done->seq};
    memcpy(event.spent, done->way.spent, sizeof event.spent);
    event.via = done->way.via;
    fabric_report(f, &event);
    exchange_free(done);
}

/* The last result is stored: the hosts know in a while. */
static void end(struct nicemu_fabric *f, struct group *g, struct exchange *e)
{
    u64 at = f->clock.now + f->config.software;
    outlet_until(&f->outlet, STAGE_SOFTWARE, at);
    e->way = f->outlet.path;
    if (f->config.software)
        clock_add(&f->clock, at, EVENT_ENDED, g->number, e);
    else
        finish(f, g, e);
}

void exchange_end(struct nicemu_fabric *f, u32 group, struct exchange *e)
{
    struct party *p = party_of(f, group); /* e is its as long as it is there */
    if (p)
        finish(f, &p->group, e);
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
        !exchange_reserve(f, g, chunks_of(what, what->count) + what->workers)) {
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
    fabric_begin(f);
    u32 seq = e->seq = g->next_seq++;
    *g->last = e;
    g->last = &e->after;
    g->in_flight++;
    e->started = f->clock.now;
    e->posted = e->started + f->config.software;
    if (!e->chunks)
        finish(f, g, e);
    bool copies = may_change(f);
    for (u32 i = 0; i < g->workers; i++) {
        p->worker[i].copies = copies;
        fabric_pump(f, &p->worker[i]);
    }
    return (int)(seq & INT32_MAX);
}

void exchange_stored(void *fabric, struct worker *w, struct turn *t, struct buffer *result)
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
        end(f, g, e);
}

void nicemu_fabric_progress(const nicemu_fabric *f, uint64_t *chunks, uint64_t *left)
{
    *chunks = *left = 0;
    for (u32 i = 0; i < MAX_GROUPS; i++) {
        const struct exchange *e = f->party[i] ? group_oldest(&f->party[i]->group) : NULL;
        for (; e; e = e->after) {
            *chunks += e->chunks;
            *left += e->left;
        }
    }
    relay_progress(f, chunks, left);
}

void exchange_emitted(void *fabric, struct device *d, struct exchange *e)
{
    struct nicemu_fabric *f = fabric;
    if (e->emitted[d->config.record] == e->chunks && !party_of(f, e->group)->group.failed)
        fabric_report(f, &(nicemu_event){.kind = NICEMU_LEVEL,
                                         .group = e->group,
                                         .seq = e->seq,
                                         .record = d->config.record});
}
