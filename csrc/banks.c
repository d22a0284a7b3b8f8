/* banks.c: see banks.h. */
#include "banks.h"

#include <stdlib.h>

/* ---- beats ------------------------------------------------------------------------------ */

static bool power_of_two(u32 n)
{
    return n && !(n & (n - 1));
}

bool banks_sound(const nicemu_bank_shape *s)
{
    return power_of_two(s->banks) && s->banks <= MAX_BANKS && power_of_two(s->bytes) &&
           s->bytes <= MAX_BANK_BYTES;
}

static int by_cycle(const void *a, const void *b)
{
    u64 x = ((const nicemu_beat *)a)->cycle, y = ((const nicemu_beat *)b)->cycle;
    return (x > y) - (x < y);
}

static u64 put_beats(const nicemu_bank_shape *s, const nicemu_access *a, nicemu_beat *beats)
{
    u64 n = banks_beats(a), word = a->address / a->beat, end = a->address + a->bytes;
    for (u64 i = 0; i < n; i++, word++) {
        u64 from = word * a->beat, to = from + a->beat;
        u64 banks = banks_of(s, from > a->address ? from : a->address, to < end ? to : end);
        beats[i] = (nicemu_beat){a->cycle + i, banks, a->atomic ? banks : 0};
    }
    return n;
}

u64 banks_asked(const nicemu_bank_shape *shape, const nicemu_access *accesses, u64 n,
                nicemu_beat *beats)
{
    u64 all = 0, used = 0;
    for (u64 i = 0; i < n; i++)
        all += put_beats(shape, &accesses[i], beats + all);
    if (all)
        qsort(beats, all, sizeof *beats, by_cycle);
    for (u64 i = 0; i < all; i++) {
        if (used && beats[used - 1].cycle == beats[i].cycle) {
            beats[used - 1].banks |= beats[i].banks;
            beats[used - 1].held |= beats[i].held;
        } else {
            beats[used++] = beats[i];
        }
    }
    return used;
}

int nicemu_beats(const nicemu_bank_shape *shape, const nicemu_access *accesses, uint64_t n,
                 nicemu_beat *beats, uint64_t *count)
{
    *count = 0;
    if (!banks_sound(shape))
        return NICEMU_EINVAL;
    for (u64 i = 0; i < n; i++) {
        const nicemu_access *a = &accesses[i];
        if (!a->bytes || !a->beat || a->bytes > UINT64_MAX - a->address)
            return NICEMU_EINVAL;
        *count += banks_beats(&accesses[i]);
    }
    if (beats)
        *count = banks_asked(shape, accesses, n, beats);
    return NICEMU_OK;
}

int nicemu_bank_masks(const nicemu_bank_shape *shape, const uint64_t *begins, const uint64_t *ends,
                      uint64_t n, uint64_t *masks)
{
    if (!banks_sound(shape))
        return NICEMU_EINVAL;
    for (u64 i = 0; i < n; i++) {
        if (begins[i] >= ends[i])
            return NICEMU_EINVAL;
        masks[i] = banks_of(shape, begins[i], ends[i]);
    }
    return NICEMU_OK;
}

/* ---- arbitration ------------------------------------------------------------------------ */

/* A bank serves one hart a cycle.  Its arbiter has a pointer: the first hart from there on that
 * asks is served, and the pointer moves to the next after it that asks in that cycle (rr_arb_tree
 * of PULP's common_cells, FairArb). */
struct bank {
    u64 free_at; /* an atomic keeps it longer */
    u64 asking; /* in this cycle, by hart */
    u32 pointer;
};

/* A hart's course through its beats. */
struct sharer {
    const nicemu_beat *next, *end;
    u64 waits; /* cycles lost so far: it is so much later than alone */
    u64 left; /* banks of the next beat that have not served it yet */
};

static u64 due(const struct sharer *s)
{
    return s->next->cycle + s->waits;
}

static u32 first_from(u64 asking, u32 at)
{
    u64 from = asking >> at << at;
    return (u32)__builtin_ctzll(from ? from : asking);
}

/* The hart that the bank serves. */
static u32 arbitrate(struct bank *b)
{
    u32 winner = first_from(b->asking, b->pointer);
    u64 above = b->pointer < 63 ? b->asking >> (b->pointer + 1) << (b->pointer + 1) : 0;
    b->pointer = (u32)__builtin_ctzll(above ? above : b->asking);
    return winner;
}

/* The banks in `busy` are taken by the DMA engine; those in `asked` have somebody asking. */
static void serve(struct bank banks[MAX_BANKS], u64 asked, u64 busy, u64 now, u32 hold,
                  struct sharer *sharers)
{
    for (; asked; asked &= asked - 1) {
        u32 i = (u32)__builtin_ctzll(asked);
        struct bank *b = &banks[i];
        if (!(busy >> i & 1) && b->free_at <= now) {
            struct sharer *s = &sharers[arbitrate(b)];
            s->left &= ~(1ull << i);
            b->free_at = now + 1 + (s->next->held >> i & 1 ? hold : 0);
        }
        b->asking = 0;
    }
}

int nicemu_banks(const nicemu_beat *const *beats, const uint64_t *counts, uint32_t harts,
                 const nicemu_beat *dma, uint64_t dma_count, uint32_t hold, uint64_t *waits)
{
    struct sharer sharers[MAX_SHARERS];
    struct bank banks[MAX_BANKS] = {{.pointer = 0}};
    const nicemu_beat *dma_end = dma + dma_count;
    if (!harts || harts > MAX_SHARERS)
        return NICEMU_EINVAL;
    for (u32 i = 0; i < harts; i++)
        sharers[i] = (struct sharer){beats[i], beats[i] + counts[i], 0, 0};
    for (;;) {
        u64 now = UINT64_MAX, asked = 0, busy = 0;
        for (u32 i = 0; i < harts; i++)
            if (sharers[i].next < sharers[i].end && due(&sharers[i]) < now)
                now = due(&sharers[i]);
        if (now == UINT64_MAX)
            break;
        for (; dma < dma_end && dma->cycle <= now; dma++)
            if (dma->cycle == now)
                busy |= dma->banks;
        for (u32 i = 0; i < harts; i++) {
            struct sharer *s = &sharers[i];
            if (s->next == s->end || due(s) != now)
                continue;
            s->left = s->left ? s->left : s->next->banks;
            asked |= s->left;
            for (u64 left = s->left; left; left &= left - 1)
                banks[__builtin_ctzll(left)].asking |= 1ull << i;
        }
        serve(banks, asked, busy, now, hold, sharers);
        for (u32 i = 0; i < harts; i++) {
            struct sharer *s = &sharers[i];
            if (s->next == s->end || due(s) != now)
                continue;
            if (s->left)
                s->waits++;
            else
                s->next++;
        }
    }
    for (u32 i = 0; i < harts; i++)
        waits[i] = sharers[i].waits;
    return NICEMU_OK;
}
