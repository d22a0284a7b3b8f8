/* booking.c: see booking.h. */
#include "booking.h"

#include <stdlib.h>

enum { FIRST_BOOKED = 1 << 10 };

static u64 *at(const struct booking *b, u64 cycle)
{
    return &b->taken[cycle & (b->size - 1)];
}

void booking_forget(struct booking *b, u64 cycle)
{
    u64 past = cycle > b->from ? cycle - b->from : 0;
    for (u64 i = 0; i < past && i < b->size; i++)
        *at(b, b->from + i) = 0;
    b->from += past;
}

/* Keep that cycle as well. */
static bool grow(struct booking *b, u64 cycle)
{
    u64 size = b->size ? b->size : FIRST_BOOKED;
    while (size <= cycle - b->from)
        size *= 2;
    u64 *taken = calloc(size, sizeof *taken);
    if (!taken) {
        b->starved = true;
        return false;
    }
    for (u64 i = 0; i < b->size; i++)
        taken[(b->from + i) & (size - 1)] = *at(b, b->from + i);
    free(b->taken);
    b->taken = taken;
    b->size = size;
    return true;
}

/* The banks that are taken in a cycle; NULL: it is too far ahead, or the host has no memory. */
static inline u64 *taken_in(struct booking *b, u64 cycle)
{
    u64 ahead = cycle - b->from;
    if (likely(ahead < b->size) || (ahead < MOST_BOOKED && grow(b, cycle)))
        return at(b, cycle);
    return NULL;
}

/* Take those of the banks that are free in a cycle: which they are. */
static u64 take(struct booking *b, u64 cycle, u64 banks)
{
    u64 *taken = taken_in(b, cycle), got = taken ? banks & ~*taken : banks;
    if (taken)
        *taken |= got;
    return got;
}

u64 booking_run(struct booking *b, const nicemu_bank_shape *shape, u64 start, u64 end,
                const nicemu_beat *beats, u64 n)
{
    u64 waits = 0;
    for (u64 i = 0; i < n && beats[i].cycle < end; i++) {
        u64 left = beats[i].banks;
        for (;; waits++) {
            u64 cycle = start + beats[i].cycle + waits, got = take(b, cycle, left);
            u64 held = got & beats[i].held;
            for (u32 k = 1; held && k <= shape->hold; k++)
                take(b, cycle + k, held);
            left &= ~got;
            if (!left)
                break;
        }
    }
    return waits;
}

/* Each of these banks is taken in its next free cycle, too. */
static void displace(struct booking *b, u64 cycle, u64 banks)
{
    while (banks)
        banks &= ~take(b, ++cycle, banks);
}

void booking_move(struct booking *b, const nicemu_bank_shape *shape, u64 start, u64 address,
                  u64 bytes)
{
    for (u64 done = 0, cycle = start; done < bytes; done += shape->dma, cycle++) {
        u64 *taken = taken_in(b, cycle), n = bytes - done < shape->dma ? bytes - done : shape->dma;
        if (!taken)
            return;
        u64 banks = banks_of(shape, address + done, address + done + n), both = *taken & banks;
        *taken |= banks;
        displace(b, cycle, both);
    }
}

void booking_close(struct booking *b)
{
    free(b->taken);
    *b = (struct booking){0};
}

int nicemu_booked(const nicemu_bank_shape *shape, const nicemu_handed *handed, uint64_t n,
                  uint64_t *waits)
{
    struct booking b = {.from = 0};
    if (!banks_sound(shape) || !shape->dma)
        return NICEMU_EINVAL;
    for (u64 i = 0; i < n; i++)
        b.from = i && b.from < handed[i].start ? b.from : handed[i].start;
    for (u64 i = 0; i < n; i++) {
        const nicemu_handed *h = &handed[i];
        waits[i] = 0;
        if (h->bytes)
            booking_move(&b, shape, h->start, h->address, h->bytes);
        else
            waits[i] = booking_run(&b, shape, h->start, h->cycles, h->beats, h->n_beats);
    }
    int code = b.starved ? NICEMU_ENOMEM : NICEMU_OK;
    booking_close(&b);
    return code;
}
