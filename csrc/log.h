/* log.h: the commit log: a line of text for every instruction, in the form of Spike's
 * --log-commits. Owns: what an instruction changes, found from its operands before and the hart's
 * state after it, and how that is written.  Who steps, and where the text goes, is decided in run.c
 * and outside. */
#ifndef NICEMU_LOG_H
#define NICEMU_LOG_H

#include "hart.h"

/* One element moved between a register and memory. */
struct log_access {
    u64 addr, value; /* value: of a store */
    u8 size, v; /* bytes; the vector register, if any */
    bool store;
};

enum { LOG_ACCESSES = 8 * MAX_VLENB }; /* eight registers of bytes */

/* An instruction that is about to be executed, and what must be known from before. */
struct log_entry {
    const struct op *op;
    u64 pc, mstatus, vtype, vl, elements, traps;
    u32 word;
    u32 v; /* bit r: vector register r gets an element; loads: see accesses */
    u32 n;
    u8 mode, fflags, vxsat;
    struct log_access accesses[LOG_ACCESSES]; /* in order, as far as no fault cuts them short */
};

/* The flags of the hart are cleared in between, to see which of them this instruction raises. */
void log_begin(struct hart *h, const struct op *o, struct log_entry *e);
/* The line goes to h->cores->log, which must have room for it. */
void log_end(struct hart *h, const struct log_entry *e);

#endif
