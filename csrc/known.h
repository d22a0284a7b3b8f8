/* known.h: handler calls that have been recorded: their cycles, and what they ask of the banks of a
 * scratchpad, by entry, count of elements and where the call's memory lies.
 * Owns: the table, and the memory that a call is recorded in.  When a recorded call stands for
 * others, device.c decides. */
#ifndef NICEMU_KNOWN_H
#define NICEMU_KNOWN_H

#include "banks.h"

enum {
    KNOWN_ROOM = 4096,
    RECORDED = 1 << 20, /* accesses of a call; those after them wait for no bank */
    KEPT = 1 << 16 /* beats: a call that has more is recorded each time */
};

struct call_key {
    u64 pc, count; /* pc 0: nothing is here */
    u32 slot; /* payload slot of its lane in which its first payload lies */
    u32 phase; /* bank of its accumulator */
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
    nicemu_access *accesses; /* room for RECORDED of them */
    nicemu_beat *beats; /* of the call that was recorded last, where that is not kept */
    bool starved; /* the host had no memory for one of these */
};

/* Where a call is, or would be; NULL: it is not there, and the table is full. */
struct known_call *known_find(struct known *k, const struct call_key *key);
/* Memory to record a call in; NULL: the host has none. */
nicemu_access *known_record(struct known *k);
/* n accesses have been recorded, of a call of so many cycles: what it asks, which is there until
 * the next is recorded.  `into`: where it is kept, too; NULL: nowhere. */
struct known_call known_recorded(struct known *k, struct known_call *into,
                                 const struct call_key *key, const nicemu_bank_shape *shape, u64 n,
                                 u64 cycles);
void known_close(struct known *k);

#endif
