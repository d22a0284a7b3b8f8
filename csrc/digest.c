/* digest.c: a hash of what stations know, for tests: has a frame changed anything? */
#include "fabric.h"

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

static u64 hash_lane(u64 h, const struct lane *lane, u32 slots)
{
    const struct region *accumulator = &lane->station.below;
    h = hash(h, &lane->slot.first, sizeof lane->slot.first);
    for (u32 i = 0; i < 2; i++) {
        const struct slot_version *v = &lane->slot.version[i];
        const struct kept *k = &lane->kept[i];
        u64 fields[] = {v->round,   v->state,  v->key.seq, v->key.chunk,
                        v->arrived, v->parked, v->merged,  k->merged};
        h = hash_message(hash_message(hash(h, fields, sizeof fields), &k->up), &k->down);
        h = k->moved ? hash(h, k->moved->bytes, k->moved_bytes) : h;
    }
    for (u32 i = 0; i < slots; i++) {
        const struct parked *parked = &lane->parked[i];
        h = hash(h, &parked->payload.n, sizeof parked->payload.n);
        if (parked->owner) /* others are a caller's, who may have let go of a failed collective */
            h = hash(h, parked->payload.bytes, parked->payload.n);
    }
    return hash(h, accumulator->host, accumulator->size);
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
                h = hash_lane(h, &p->member[j]->lane[lane], p->member[j]->slots);
        for (u32 j = 0; j < p->group.workers; j++)
            h = hash_worker(h, &p->worker[j]);
    }
    return h;
}
