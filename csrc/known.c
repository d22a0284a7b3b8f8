/* known.c: see known.h. */
#include "known.h"

#include <stdlib.h>

static bool same(const struct call_key *a, const struct call_key *b)
{
    return a->pc == b->pc && a->count == b->count && a->slot == b->slot && a->phase == b->phase &&
           a->leaves == b->leaves;
}

/* Where a call is, or would be. */
static struct known_call *place_of(struct known *k, const struct call_key *key)
{
    u64 apart = 0x9e3779b97f4a7c15ull; /* neighbours do not meet */
    u64 place = (u64)key->slot << 16 | key->phase << 8 | key->leaves;
    u64 hash = ((key->pc ^ key->count * apart) + place) * apart;
    for (u64 at = hash >> 32;; at++) {
        struct known_call *c = &k->call[at % KNOWN_ROOM];
        if (!c->key.pc || same(&c->key, key))
            return c;
    }
}

struct known_call *known_find(struct known *k, const struct call_key *key)
{
    struct known_call *c = place_of(k, key);
    return c->key.pc ? c : NULL;
}

nicemu_access *known_record(struct known *k)
{
    if (!k->accesses)
        k->accesses = malloc(RECORDED * sizeof *k->accesses);
    k->starved |= !k->accesses;
    return k->accesses;
}

static void forget(struct known *k)
{
    for (u32 i = 0; i < KNOWN_ROOM; i++)
        free(k->call[i].beats);
    memset(k->call, 0, sizeof k->call);
    k->used = 0;
    k->kept = 0;
}

const struct known_call *known_recorded(struct known *k, const struct call_key *key,
                                        const nicemu_bank_shape *shape, u64 n, u64 cycles)
{
    u64 room = 1;
    n = n < RECORDED ? n : RECORDED;
    for (u64 i = 0; i < n; i++)
        room += banks_beats(&k->accesses[i]);
    if (k->used > KNOWN_ROOM / 4 * 3 || k->kept + room > KEPT)
        forget(k);
    struct known_call *c = place_of(k, key);
    k->used += !c->key.pc;
    k->kept -= c->n;
    free(c->beats);
    *c = (struct known_call){
        .key = *key, .cycles = cycles, .beats = malloc(room * sizeof *c->beats)};
    k->starved |= !c->beats;
    c->n = c->beats ? banks_asked(shape, k->accesses, n, c->beats) : 0;
    k->kept += c->n;
    return c;
}

void known_close(struct known *k)
{
    forget(k);
    free(k->accesses);
    k->accesses = NULL;
}
