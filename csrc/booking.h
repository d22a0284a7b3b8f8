/* booking.h: the banks of a cluster's scratchpad over virtual time: which are taken in which cycle.
 * Owns: who waits how long for a bank, in the order in which handlers and payloads are handed out:
 * what was handed out before has its banks already.  What each asks comes from its beats
 * (banks.h); cores that begin together, and are served in turns, are banks.c's.
 *
 * The DMA engine is never late: where it takes a bank from a handler that has its cycles already,
 * that bank is taken in its next free cycle as well, from who comes after. */
#ifndef NICEMU_BOOKING_H
#define NICEMU_BOOKING_H

#include "banks.h"

/* Cycles that are kept at once: nothing is found to be taken so far behind the present. */
enum { MOST_BOOKED = 1 << 22 };

struct booking {
    u64 from; /* cycles before that are past */
    u64 size; /* that are kept from there on, a power of two; 0: none yet */
    u64 *taken; /* of each cycle, modulo size: banks, as bits */
    bool starved; /* the host had no memory for a cycle */
};

/* Cycles before that will not be asked for any more. */
void booking_forget(struct booking *b, u64 cycle);
/* Beats that count from cycle `start`, up to the one before `end` of them: cycles that they wait in
 * all, each before those behind it. */
u64 booking_run(struct booking *b, const nicemu_bank_shape *shape, u64 start, u64 end,
                const nicemu_beat *beats, u64 n);
/* The DMA engine moves so many bytes from or to that address, from cycle `start` on. */
void booking_move(struct booking *b, const nicemu_bank_shape *shape, u64 start, u64 address,
                  u64 bytes);
void booking_close(struct booking *b);

#endif
