/* known.h: cycles of handler calls that have been counted once, by entry and count of elements.
 * Owns: the table.  When they may be taken for those of other calls, whoever runs the fabric
 * knows. */
#ifndef NICEMU_KNOWN_H
#define NICEMU_KNOWN_H

#include "base.h"

enum { KNOWN_ROOM = 4096 };

struct known_call {
    u64 pc, count, cycles; /* pc 0: nothing is here */
};

struct known {
    struct known_call call[KNOWN_ROOM];
};

/* Where a call is, or would be; NULL: it is not there, and the table is full. */
static inline struct known_call *known_find(struct known *k, u64 pc, u64 count)
{
    u64 i = (pc ^ count * 0x9e3779b97f4a7c15ull) % KNOWN_ROOM;
    for (u32 tries = 0; tries < KNOWN_ROOM; tries++, i = (i + 1) % KNOWN_ROOM) {
        struct known_call *c = &k->call[i];
        if (!c->pc || (c->pc == pc && c->count == count))
            return c;
    }
    return NULL;
}

#endif
