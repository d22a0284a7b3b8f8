/* chunk.h: a chunk at work in a lane of a device, from the first child's payload to the frames that
 * leave. Owns: which entry is called with which payloads, on which core and when; what is kept of a
 * version of a slot; partial sums' records. Which frame is taken, and when its payload is moved in,
 * is device.c's affair, which adds to what is kept a result from above, until when what is passed
 * on is moved, and who is missing in a partial sum that it enters for a child; what is owed to whom
 * is slot.c's; the arithmetic, the image's alone: nothing is added here. */
#ifndef NICEMU_CHUNK_H
#define NICEMU_CHUNK_H

#include "device.h"

struct work {
    struct device *device;
    struct member *member;
    struct lane *lane;
    struct slot_version *version;
    struct kept *kept;
    struct turn *turn;
    struct piece piece;
    u64 now;
};

/* The chunk of a turn at a member. */
struct work chunk_at(struct member *m, struct turn *t, u64 now);
/* Nothing is kept or parked in a lane any more. */
void chunk_forget(struct member *m, struct lane *l);

/* Enter an arrival in the slot; the first of a round ends what was kept of the one before last. */
void chunk_take(struct work *w, u32 child);
/* Where a child's payload goes in the scratchpad. */
u64 chunk_place(const struct work *w, u32 child);
/* It is there. */
void chunk_park(struct work *w, u32 child, const struct parked *in);
/* Do what can be done now with what is there. */
void chunk_advance(struct work *w);
/* Merge what may be merged now: in order of arrival at once; in child order when all are there or
 * one call can take no more.  How many a call takes changes no bit.  False when a handler fails. */
bool chunk_merge(struct work *w);

/* Send what is kept, once more or for the first time. */
void chunk_send_up(const struct member *m, struct kept *k, u64 now);
void chunk_send_down(const struct member *m, struct kept *k, u32 child, u64 now);
void chunk_send_down_all(const struct work *w, u64 now);

/* Merge what is parked, in order, as if no more could come, emit it and record it, with the workers
 * that it is of.  False when a handler fails. */
bool chunk_cut_short(struct work *w);
/* Record the partial sum that is kept. */
void chunk_record(const struct work *w);

#endif
