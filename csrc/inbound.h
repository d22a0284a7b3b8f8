/* inbound.h: parsed payloads that wait for a DMA engine to move them into the scratchpad.
 * Owns: which of them is moved next.  Messages take turns in the order in which they became ready,
 * and each is ready again, behind the others, when it has had its turn and its next payload is
 * there: round robin, as the published RISC-V NIC's scheduler (mpq_engine.sv) has it.  Payloads of
 * one message follow one another as they came.  When an engine is idle is schedule.c's affair; what
 * a payload is, its owner's, who keeps a struct inbound in it.
 *
 * A message is known by its sender, who keeps a list of those of his that wait, and its number. */
#ifndef NICEMU_INBOUND_H
#define NICEMU_INBOUND_H

#include "base.h"

/* A payload that waits.  The first of a message stands for it. */
struct inbound {
    struct inbound **sender; /* the firsts of his messages ... */
    u32 message; /* ... of which it is of that number */
    u64 ready; /* virtual time: it is parsed; of a first: its message's turn may come */
    struct inbound_queue *queue; /* in which it waits */
    struct inbound *behind; /* it, of the same message */
    /* of a first: the last of its message, the first of another one of its sender, and those of the
     * messages whose turns are before and after */
    struct inbound *last, *sibling, *before, *after;
};

struct inbound_queue {
    struct inbound *first, *last; /* of the messages, in the order of their turns */
    u64 wake; /* virtual time at which somebody will see whose turn it is; 0: nobody will */
};

/* The first payload of a sender's message that waits there; NULL: none does. */
struct inbound *inbound_find(const struct inbound_queue *q, struct inbound *const *sender,
                             u32 message);
/* It waits, behind the others of its message; sender, message and ready are set. */
void inbound_add(struct inbound_queue *q, struct inbound *i);
/* Whose turn it is, which waits no longer; NULL: nobody is ready. */
struct inbound *inbound_next(struct inbound_queue *q, u64 now);
/* The message whose turn it would be is not ready before that time. */
void inbound_hold(struct inbound_queue *q, u64 until);
/* All of a sender's that fit wait no longer, in whichever queue; one is behind the other. */
struct inbound *inbound_withdraw(struct inbound **sender,
                                 bool (*fits)(const struct inbound *i, const void *what),
                                 const void *what);

#endif
