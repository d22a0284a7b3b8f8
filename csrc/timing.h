/* timing.h: the clock of one hart: cycles of the blocks that it runs.
 * Owns: when a cost is worked out and when it is known from before, what instructions add that
 * depends on their operands, the terms of the sum.  The rules are cost.c's.
 *
 * What a block costs depends on the score in which it begins, on how it is left and, if it has
 * vector instructions, on the configuration at its ends: so this much is worked out once and then
 * counted. */
#ifndef NICEMU_TIMING_H
#define NICEMU_TIMING_H

#include "access.h"

enum { SCORES = 2048, COSTS = 8192, LINES = 8192 };

/* How a block was left. */
enum way { WAY_FALL = 0, WAY_TRANSFER = 1 << 16, WAY_MISALIGNED = 2 << 16 };

struct cost {
    const struct block *block;
    struct cost *other; /* of the same block, in another case */
    struct cost *then[2]; /* of the block after it, the case met last: as block.cost */
    u32 key; /* number of the score in which the block begins + enum way */
    u32 after; /* number of the score in which it ends */
    u64 vconf; /* vconf_pair of its ends, if it has vector instructions */
    u64 runs;
    u32 terms[TERMS], cycles; /* and their sum */
};

/* Cycles that the operands of an instruction add. */
struct extra {
    u32 op, cycles;
};

struct timing {
    nicemu_timing machine;
    struct record record;
    u64 recorded_from, started; /* sum of the terms below when the record, the instruction began */
    u32 extras_used;
    struct extra extras[MAX_BLOCK]; /* of the running block, in order */
    u64 terms[TERMS]; /* without those of costs[] */
    u32 scores_used, costs_used, lines_used;
    struct score scores[SCORES]; /* number 0 is score_idle */
    u16 score_at[2 * SCORES]; /* hash table of score numbers; 0: empty */
    struct cost costs[COSTS];
    struct cost
        nothing; /* before the first block, and behind one that none of these is the cost of */
    u64 lines[LINES]; /* of the instruction cache, plus 1: hash table; 0: empty */
};

/* Added to hart.score while there are extras. */
#define SCORE_EXTRA (1u << 31)

void timing_open(struct hart *h, const nicemu_timing *machine);
bool timing_valid(const nicemu_timing *machine);

/* For code that is being decoded: what operands of the instruction add is counted. */
void timing_meter(struct op *o);
/* A block's costs depend on the vector configuration at both ends, so one instruction at most may
 * set vl in it; behind that, such as leave vl alone.  May o be in a block, after others for which
 * this was asked?  *most is 0 for the first; b->fixed is kept. */
bool timing_admits(const struct hart *h, struct block *b, const struct op *o, u64 *most);

/* A metered access has touched several words of the data port. */
void timing_access(struct hart *h, const struct op *o, u64 addr, u64 bytes);

/* The vector configuration. */
static inline u64 timing_vconf(const struct hart *h)
{
    return h->vl << 8 | h->vt.code;
}
static inline u64 vconf_pair(u64 before, u64 after)
{
    return before << 32 | after;
}

/* Is c the cost of b, which has just run and is left that way? */
static inline bool cost_fits(const struct hart *h, const struct block *b, const struct cost *c,
                             enum way way)
{
    if (c->key != (h->score | way) || c->block != b)
        return false;
    return likely(!(b->needs & NEED_V)) || c->vconf == vconf_pair(h->vconf, timing_vconf(h));
}
/* Count a run of b if its cost is at hand. */
static inline bool timing_known(struct hart *h, const struct block *b, enum way way)
{
    struct cost *c = h->cost->then[way != WAY_FALL];
    if (unlikely(!c || !cost_fits(h, b, c, way)))
        return false;
    c->runs++;
    h->cost = c;
    h->score = c->after;
    return true;
}

/* A loop of one block that comes back to the score and the vector configuration in which it began
 * costs the same each time: its runs are counted when it is left, or vl changes. */
static inline void timing_loop(struct hart *h, const struct block *b)
{
    const struct cost *c = h->cost;
    if (c->key != (c->after | b->way[NX_TAKEN]))
        return;
    if (b->needs & NEED_V && (!b->fixed || c->vconf != vconf_pair(h->vconf, h->vconf)))
        return;
    h->loop = h->cost;
    h->loop_runs = b->runs + 1;
    h->turn_end[NX_TAKEN] = h->clock_end;
}
/* Count them, but for the one that is under way. */
static inline void timing_leave_loop(struct hart *h)
{
    if (likely(!h->loop))
        return;
    h->loop->runs += h->block->runs - h->loop_runs;
    h->loop = NULL;
    h->turn_end[NX_TAKEN] = 0;
}
/* What runs next has nothing to do with what ran before. */
static inline void timing_break(struct hart *h)
{
    h->cost = &h->timing->nothing;
    h->cost->then[0] = h->cost->then[1] = NULL;
}
/* Block b has run; hart.vconf is timing_vconf from before. */
void timing_block(struct hart *h, struct block *b, enum way way);
/* The first n instructions of a block have run, and that was all of it. */
void timing_part(struct hart *h, const struct block *b, u32 n);
/* The accesses of the instruction that runs next, by itself, are recorded. */
void timing_record(struct hart *h, const struct op *o);
void timing_start_record(struct timing *t, nicemu_access *room, u64 size);

/* Wait for what is under way. */
void timing_drain(struct hart *h);
/* Forget all costs, which their blocks must not keep either. */
void timing_forget(struct hart *h);

void timing_read(const struct timing *t, nicemu_cycles *out);
void timing_clear(struct timing *t);

#endif
