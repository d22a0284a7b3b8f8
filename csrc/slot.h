/* slot.h: the slot protocol of one lane of one group at one device: who has arrived, in which
 * round, and what an arrival means. Owns: the two versions of a slot and every transition between
 * their states.  Frames belong to device.c, payloads and handlers to chunk.c; what a frame says, to
 * packet.c.
 *
 *   IDLE --first arrival--> GATHERING --all merged--> SENT (partial up) --result--> RESULT
 *                               |                       (the root goes to RESULT at once)
 *                               +--handler failed--> FAILED
 *
 * A version is used again, by the round after next, only from RESULT and only once the round
 * between has its result too: then every participant is known to have the earlier one. */
#ifndef NICEMU_SLOT_H
#define NICEMU_SLOT_H

#include "packet.h"

enum slot_state { SLOT_IDLE, SLOT_GATHERING, SLOT_SENT, SLOT_RESULT, SLOT_FAILED };

/* Which chunk of which collective. */
struct slot_key {
    u32 seq, chunk;
};

struct slot_version {
    u32 round; /* the full number; its parity says which version */
    enum slot_state state;
    struct slot_key key;
    /* bit c: child c; parked: its payload is in the scratchpad.  merged is part of parked, parked
     * of arrived, arrived of those expected. */
    u64 arrived, parked, merged;
};

struct slot {
    u64 expected; /* children that take part */
    u32 first; /* the first round of this slot's life */
    struct slot_version version[2];
};

/* What to do with an arrival. */
enum slot_answer {
    SLOT_REFUSE, /* drop it; the verdict says why */
    SLOT_TAKE, /* new: slot_take, and slot_park once its payload is in the scratchpad */
    SLOT_REPEAT_PARTIAL, /* counted before: send the partial sum again */
    SLOT_REPEAT_RESULT /* counted before: send this child the result again */
};

void slot_open(struct slot *s, u64 expected, u32 first);

static inline struct slot_version *slot_version(struct slot *s, u32 round)
{
    return &s->version[round & 1];
}

/* What an arrival from a child means.  Nothing changes. */
enum slot_answer slot_judge(const struct slot *s, u32 round, struct slot_key key, u32 child,
                            enum verdict *why);
/* Enter an arrival that slot_judge said to take. */
struct slot_version *slot_take(struct slot *s, u32 round, struct slot_key key, u32 child);
/* The payload of a child that has arrived is in the scratchpad: it may be merged. */
void slot_park(struct slot_version *v, u32 child);
/* Children that may be merged next, in child order and without a gap, as bits. */
u64 slot_ready(const struct slot *s, const struct slot_version *v);
/* The partial sum is on its way up. */
static inline void slot_send(struct slot_version *v)
{
    v->state = SLOT_SENT;
}
/* The result is there: a root's own, or from above. */
static inline void slot_end(struct slot_version *v)
{
    v->state = SLOT_RESULT;
}
/* A handler has failed. */
static inline void slot_fail(struct slot_version *v)
{
    v->state = SLOT_FAILED;
}
/* Have all been merged? */
static inline bool slot_complete(const struct slot *s, const struct slot_version *v)
{
    return v->merged == s->expected;
}
/* What a result from above means: ACCEPTED, or why it is dropped.  Nothing changes. */
enum verdict slot_judge_result(const struct slot *s, u32 round, struct slot_key key);

#endif
