/* access.h: what a hart's instructions ask of memory, and when: the summary that conflicts between
 * harts are found from.
 * Owns: the addresses of an instruction's accesses, the record.  When an instruction asks is
 * cost.c's; who waits for whom is banks.c's. */
#ifndef NICEMU_ACCESS_H
#define NICEMU_ACCESS_H

#include "cost.h"

/* The record of a hart: memory of the caller's. */
struct record {
    nicemu_access *room; /* NULL: nothing is recorded */
    u64 size, used; /* used > size: so many would have been needed */
    u64 pending; /* behind these: of the instruction under way */
    bool spread; /* which goes element by element */
};

/* Instruction o is about to execute. */
void access_begin(struct record *r, const struct hart *h, const struct op *o,
                  const nicemu_timing *m);
/* It has, in a course that began in cycle `start`. */
void access_end(struct record *r, const nicemu_timing *m, const struct asked *asked, u64 start);

#endif
