/* banks.h: the banks of a scratchpad that several harts share: which bytes are in which, and who
 * waits for whom.
 * Owns: the beats of accesses; the arbitration, cycle by cycle, between harts that begin together.
 * What a hart asks, and when it would if nobody were in its way, comes from its accesses
 * (access.h); the banks of a device, whose harts begin at any time, are booking.h's. */
#ifndef NICEMU_BANKS_H
#define NICEMU_BANKS_H

#include "base.h"
#include "nicemu.h"

enum { MAX_BANKS = 64, MAX_BANK_BYTES = 64, MAX_SHARERS = 64 };

bool banks_sound(const nicemu_bank_shape *shape);

/* The banks of the bytes begin..end-1, as bits.  Numbers of a sound shape are powers of two. */
static inline u64 banks_of(const nicemu_bank_shape *s, u64 begin, u64 end)
{
    u32 word = (u32)__builtin_ctz(s->bytes);
    u64 first = begin >> word, words = ((end - 1) >> word) - first + 1;
    u64 every = ~0ull >> (MAX_BANKS - s->banks);
    u32 shift = (u32)first & (s->banks - 1);
    if (words >= s->banks)
        return every;
    u64 low = (1ull << words) - 1;
    return (low << shift | (shift ? low >> (s->banks - shift) : 0)) & every;
}

/* The words that an access asks for, one a cycle. */
static inline u64 banks_beats(const nicemu_access *a)
{
    return (a->address + a->bytes - 1) / a->beat - a->address / a->beat + 1;
}

/* The beats of n accesses, by ascending cycle, one in each: how many there are.  Room for the
 * banks_beats of all accesses. */
u64 banks_asked(const nicemu_bank_shape *shape, const nicemu_access *accesses, u64 n,
                nicemu_beat *beats);

#endif
