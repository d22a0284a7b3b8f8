/* inbound.h: parsed payloads that wait for a DMA engine to move them into the scratchpad.
 * Owns: whose turn it is.  Messages take turns in the order in which they became ready, and each is
 * ready again, behind the others, when it has had its turn and its next payload is there: round
 * robin, as the published RISC-V NIC has it (mpq_engine.sv).  Payloads of one message follow one
 * another as they came.  When an engine is idle is schedule.c's affair; what a payload is, its
 * callers', who keep a struct inbound in it. */
#ifndef NICEMU_INBOUND_H
#define NICEMU_INBOUND_H

#include "base.h"

/* A payload that waits. */
struct inbound {
    u64 sender; /* which message: of what sender, and ... */
    u32 message; /* ... which of it */
    u64 ready; /* virtual time from which it may be moved */
    struct inbound *behind; /* it, of the same message */
    struct inbound *last, *after; /* of a message's first: its last; the first of the message whose
                                     turn is next */
};

struct inbounds {
    struct inbound *first, *last; /* of the messages, in the order of their turns */
    bool woken; /* somebody will look whose turn it is, at a time that is known */
};

/* It waits, behind the others of its message: sender, message and ready are set. */
void inbound_add(struct inbounds *q, struct inbound *i);
/* Whose turn it is, which waits no longer; NULL: nobody is ready. */
struct inbound *inbound_next(struct inbounds *q, u64 now);
/* All that fit wait no longer; one is behind the other. */
struct inbound *inbound_withdraw(struct inbounds *q,
                                 bool (*fits)(const struct inbound *i, const void *what),
                                 const void *what);

#endif
