/* group.h: what all stations of a group agree upon before a frame is sent: who takes part, which
 * collectives are in flight, which chunk has which turn.
 * Owns: the cut of a collective into chunks, the turns (plane, lane, round) of chunks, what is to
 * be done again after a plane has died.  What a station does in a turn belongs to host.c,
 * device.c and chunk.c.
 *
 * The turns of a plane follow one another through the lanes, and when these have all been used,
 * through the lanes in the next round. */
#ifndef NICEMU_GROUP_H
#define NICEMU_GROUP_H

#include "buffer.h"
#include "nicemu.h"
#include "packet.h"
#include "path.h"

_Static_assert((int)NICEMU_STAGES == (int)STAGES, "rows of stage.def");

enum {
    PLANES = 2,
    MAX_GROUPS = NICEMU_MAX_GROUPS,
    MAX_EXCHANGES = NICEMU_MAX_EXCHANGES,
    NO_OWNER = -1
};

/* A collective in flight. */
struct exchange {
    nicemu_exchange what;
    u32 group, seq; /* numbers */
    u64 started, posted; /* virtual times: of the call, and from which frames may leave */
    struct path way; /* the longest, to the end, once there is one */
    u32 chunks;
    u32 left; /* chunks whose result some worker still waits for */
    u32 next[PLANES]; /* even and odd chunks: the next that has no turn yet */
    u32 *block_chunk; /* moved: the first chunk of each worker's block, and the end */
    u32 *emitted; /* per record: chunks whose partial sum is there */
    bool salvaged; /* so are the survivors' of a collective that has failed */
    struct exchange *after;
};

/* Part of the elements of a collective. */
struct piece {
    u64 element;
    u32 count;
    i32 owner; /* the worker whose elements are moved, or NO_OWNER */
};

/* Which turn of a plane. */
struct place {
    u32 round, lane;
};

static inline bool place_same(struct place a, struct place b)
{
    return a.round == b.round && a.lane == b.lane;
}
static inline bool place_before(struct place a, struct place b)
{
    return a.round < b.round || (a.round == b.round && a.lane < b.lane);
}
static inline struct place place_after(struct place p, u32 window)
{
    return p.lane + 1 < window ? (struct place){p.round, p.lane + 1}
                               : (struct place){p.round + 1, 0};
}

struct turn {
    struct place place;
    struct exchange *exchange;
    u32 chunk;
    u32 waiting; /* workers that do not have its result yet; 0: the turn is over */
    i32 owner; /* what is moved is this worker's; NO_OWNER where nothing is */
    bool moved; /* payloads are copied, not added */
    bool again; /* it was begun on a plane that died */
    u32 holder; /* a worker that has the result, once there is one */
    struct buffer *result;
};

/* The turns of one plane. */
struct plan {
    bool up;
    struct place next; /* of the next turn to be given */
    struct turn *ring; /* 2 * window: workers are less than two rounds apart */
};

struct group {
    u32 number, index;
    u16 job;
    bool arrival; /* order of additions */
    bool failed;
    u32 planes, window, workers;
    u32 next_seq;
    struct plan plan[PLANES];
    struct exchange *first, **last; /* in flight, oldest first */
    u32 in_flight;
    struct turn *again; /* turns of a dead plane, to be given anew; room for 4 * window */
    u32 again_n, again_next;
    u64 again_left; /* of those given anew, not yet over */
};

/* The oldest collective in flight, or NULL.  Those of a group that has failed are over: they are
 * kept for what was merged. */
static inline const struct exchange *group_oldest(const struct group *g)
{
    return g->failed ? NULL : g->first;
}
struct piece exchange_piece(const struct exchange *e, u32 chunk);
/* The turn at that place; NULL when it is over or not given yet. */
struct turn *group_find(struct group *g, u32 plane, struct place place);
/* The turn at that place, given now if it is the next one; NULL when there is nothing to do. */
struct turn *group_turn(struct group *g, u32 plane, struct place place);
/* Does a frame say of its payload what the result of that turn must be? */
bool turn_result_fits(const struct group *g, const struct turn *t, const struct packet *p);
/* A worker has the result; true when it was the last. */
bool turn_done(struct turn *t, u32 worker, struct buffer *result);
/* The plane is dead: collect its open turns, which group_turn gives anew on the other; how many.
 * Where a worker has the result already, that is moved to the others: a sum that is added again
 * could differ where the order of additions is that of arrival, and an input may be overwritten. */
u32 group_leave_plane(struct group *g, u32 plane);
/* The plane is back: its turns go on in a round that nobody has seen; that round. */
u32 group_use_plane(struct group *g, u32 plane);

#endif
