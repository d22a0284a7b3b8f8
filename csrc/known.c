/* known.c: see known.h. */
#include "known.h"

#include <stdlib.h>

static bool same(const struct call_key *a, const struct call_key *b)
{
    return a->pc == b->pc && a->count == b->count && a->slot == b->slot && a->phase == b->phase;
}

struct known_call *known_find(struct known *k, const struct call_key *key)
{
    u64 apart = 0x9e3779b97f4a7c15ull; /* neighbours do not meet */
    u64 hash = ((key->pc ^ key->count * apart) + key->slot) * apart + key->phase;
    for (u32 i = 0; i < KNOWN_ROOM; i++) {
        struct known_call *c = &k->call[((hash >> 32) + i) % KNOWN_ROOM];
        if (!c->key.pc || same(&c->key, key))
            return c;
    }
    return NULL;
}

nicemu_access *known_record(struct known *k)
{
    if (!k->accesses)
        k->accesses = malloc(RECORDED * sizeof *k->accesses);
    k->starved |= !k->accesses;
    return k->accesses;
}

struct known_call known_recorded(struct known *k, struct known_call *into,
                                 const struct call_key *key, const nicemu_bank_shape *shape, u64 n,
                                 u64 cycles)
{
    u64 room = 0;
    n = n < RECORDED ? n : RECORDED;
    for (u64 i = 0; i < n; i++)
        room += banks_beats(&k->accesses[i]);
    bool keep = into && room <= KEPT;
    nicemu_beat **beats = keep ? &into->beats : &k->beats;
    free(*beats);
    *beats = malloc((room + 1) * sizeof **beats);
    k->starved |= !*beats;
    struct known_call call = {.key = *key, .cycles = cycles, .beats = *beats};
    call.n = *beats ? banks_asked(shape, k->accesses, n, *beats) : 0;
    if (keep)
        *into = call;
    return call;
}

void known_close(struct known *k)
{
    for (u32 i = 0; i < KNOWN_ROOM; i++)
        free(k->call[i].beats);
    free(k->accesses);
    free(k->beats);
    *k = (struct known){0};
}
