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
    u64 key = pc ^ count * 0x9e3779b97f4a7c15ull; /* neighbours lie apart */
    for (u32 i = 0; i < KNOWN_ROOM; i++) {
        struct known_call *c = &k->call[(key + i) % KNOWN_ROOM];
        if (!c->pc || (c->pc == pc && c->count == count))
            return c;
    }
    return NULL;
}

#endif
