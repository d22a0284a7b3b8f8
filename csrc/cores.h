/* cores.h: a set of harts and the memory they share.
 * Owns: creation and destruction, who maps what, whose turn it is, reservations between harts.
 * How one hart executes is in run.c. */
#ifndef NICEMU_CORES_H
#define NICEMU_CORES_H

#include "hart.h"

enum { MAX_HARTS = 64 };

/* Text of the commit log (log.c); text is NULL while nothing is logged. */
struct log {
    char *text;
    size_t size, used;
};

struct nicemu_cores {
    u32 n;
    struct log log;
    const struct simd *simd;
    struct isa *isa;
    struct vtype vtypes[256];
    struct hart *harts[MAX_HARTS];
};

/* A store by hart `writer` (cores->n: the host) to n bytes at addr ends every other hart's
 * reservation there. */
void cores_break_reservations(struct nicemu_cores *cores, u32 writer, u64 addr, u64 n);

/* Let a hart see n windows inside region `covered` of its map, and nothing else of it; n = 0: the
 * region itself, as before. */
void cores_show(struct hart *h, u32 covered, const struct region windows[], u32 n);

/* What its clock has counted. */
u64 hart_cycles(const struct hart *h);

size_t hart_arena_bytes(void);
size_t hart_step_bytes(void);

#endif
