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
    struct cost *other; /* of the same block, in another case */
    u32 key; /* number of the score in which the block begins + enum way */
    u32 after; /* number of the score in which it ends */
    u64 vconf; /* vconf_pair of its ends, if it has vector instructions */
    u64 runs;
    u32 terms[TERMS];
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
    u64 lines[LINES]; /* of the instruction cache, plus 1: hash table; 0: empty */
};

/* Added to hart.score while there are extras. */
#define SCORE_EXTRA (1u << 31)

void timing_open(struct hart *h, const nicemu_timing *machine);
bool timing_valid(const nicemu_timing *machine);

/* For code that is being decoded: what operands of the instruction add is counted. */
void timing_meter(struct op *o);
/* Does it change vl or vtype?  A block has one such instruction at most, and its costs depend on
 * the configuration at both ends. */
bool timing_configures(const struct insn_row *row);

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
    if (c->key != (h->score | way))
        return false;
    return likely(!(b->needs & NEED_V)) || c->vconf == vconf_pair(h->vconf, timing_vconf(h));
}
/* Count a run of b if its cost is at hand. */
static inline bool timing_known(struct hart *h, const struct block *b, enum way way)
{
    struct cost *c = b->cost[way != WAY_FALL];
    if (unlikely(!c || !cost_fits(h, b, c, way)))
        return false;
    c->runs++;
    h->score = c->after;
    return true;
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
