/* known.h: handler calls that have been recorded: their cycles, and what they ask of the banks of a
 * scratchpad, by entry, count of elements and where the call's memory lies.
 * Owns: the table, and the memory that a call is recorded in.  When a recorded call stands for
 * others, chunk.c decides. */
#ifndef NICEMU_KNOWN_H
#define NICEMU_KNOWN_H

#include "banks.h"

enum {
    KNOWN_ROOM = 4096, /* places, of which some stay empty */
    RECORDED = 1 << 20, /* accesses of a call; those after them wait for no bank */
    KEPT = 1 << 22 /* beats, of all calls */
};

struct call_key {
    u64 pc, count; /* pc 0: nothing is here */
    u32 slot; /* payload slot of its lane in which its first payload lies */
    u32 phase; /* bank in which its accumulator begins, ... */
    u32 leaves; /* ... and what leaves, which groups of more children have further behind; or 0 */
};

struct known_call {
    struct call_key key;
    u64 cycles;
    nicemu_beat *beats;
    u64 n;
    bool stale; /* a later call took other cycles: record the next one */
};

struct known {
    struct known_call call[KNOWN_ROOM];
    u32 used;
    u64 kept; /* beats of all of them */
    nicemu_access *accesses; /* room for RECORDED of them */
    bool starved; /* the host had no memory for what was recorded */
};

/* A call of that key; NULL: none is known. */
struct known_call *known_find(struct known *k, const struct call_key *key);
/* Memory to record a call in; NULL: the host has none. */
nicemu_access *known_record(struct known *k);
/* n accesses have been recorded, of a call of so many cycles, which is known from now on, in place
 * of what was of that key; all else is forgotten where there is no room. */
const struct known_call *known_recorded(struct known *k, const struct call_key *key,
                                        const nicemu_bank_shape *shape, u64 n, u64 cycles);
void known_close(struct known *k);

#endif
