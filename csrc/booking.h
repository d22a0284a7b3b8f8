/* booking.h: the banks of a cluster's scratchpad over virtual time: which are taken in which cycle.
 * Owns: how long a handler waits for banks when it is handed to a core: handlers and payloads that
 * were handed out before keep the cycles that they have.  What each asks comes from its beats
 * (banks.h); cores that begin together, and are served in turns, are banks.c's.
 *
 * The DMA engine never waits.  Where it takes a bank in a cycle that a handler has, that handler
 * is not made later: instead the bank's next free cycle is taken, too, so that who comes after
 * waits for both. */
#ifndef NICEMU_BOOKING_H
#define NICEMU_BOOKING_H

#include "banks.h"

/* Cycles that are kept at once: in one so far ahead every bank is free. */
enum { MOST_BOOKED = 1 << 22 };

struct booking {
    u64 from; /* cycles before that are past */
    u64 size; /* that are kept from there on, a power of two; 0: none yet */
    u64 *taken; /* of each cycle, modulo size: banks, as bits */
    bool starved; /* the host had no memory for a cycle */
};

/* Cycles before this one will not be asked for any more. */
void booking_forget(struct booking *b, u64 cycle);
/* A handler begins in cycle `start`: how many cycles it waits for banks in all.  Its beats count
 * from there, and those from its `end` on are left out; where one waits, those behind it are as
 * much later. */
u64 booking_run(struct booking *b, const nicemu_bank_shape *shape, u64 start, u64 end,
                const nicemu_beat *beats, u64 n);
/* The DMA engine moves so many bytes from or to that address, from cycle `start` on. */
void booking_move(struct booking *b, const nicemu_bank_shape *shape, u64 start, u64 address,
                  u64 bytes);
void booking_close(struct booking *b);

#endif
