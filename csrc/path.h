/* path.h: the longest way to where an event is: what its time was spent on, from the start of the
 * collective that it goes back to.
 * Owns: the sum; each station adds its own spans. */
#ifndef NICEMU_PATH_H
#define NICEMU_PATH_H

#include "base.h"

#define STAGE(id, name) STAGE_##id,
enum stage {
#include "stage.def"
    STAGES
};
#undef STAGE

enum { FEMTOSECONDS = 1000 }; /* of a picosecond */

static inline u64 later(u64 a, u64 b)
{
    return a > b ? a : b;
}

struct path {
    u64 begin, end; /* picoseconds of virtual time; the spans add up from one to the other */
    u64 spent[STAGES];
    u64 via; /* number in the trace of the last step on it; 0: none */
};

static inline struct path path_from(u64 begin)
{
    return (struct path){.begin = begin, .end = begin};
}

/* The way goes on until `at`, if it is not there already. */
static inline void path_until(struct path *p, enum stage stage, u64 at)
{
    if (at <= p->end)
        return;
    p->spent[stage] += at - p->end;
    p->end = at;
}

#endif
