/* cost.h: what instructions cost: an in-order pipeline with an FPU beside it and a vector unit
 * behind it, described by nicemu_timing. Owns: the scoreboard of a hart, and how one instruction
 * after the other moves it on.  Knows no memory contents and takes no decisions; whose cycles these
 * are and how they are counted is in timing.c. */
#ifndef NICEMU_COST_H
#define NICEMU_COST_H

#include "decode.h"

#define TERM(id, name) TERM_##id,
enum term {
#include "term.def"
    TERMS
};
#undef TERM

enum { MAX_IN_FLIGHT = 4, NO_REGISTER = 255 };

/* When things will be there or free, in cycles from now; 0: they are. */
struct score {
    u32 x[33], f[32]; /* an instruction that reads the register may execute */
    u32 jump[33]; /* the same for jalr, which reads it a stage earlier */
    u32 fpu_quiet; /* the FPU's status may be read; a cycle before, it takes any operation */
    u32 fpu_write; /* its result has the register file's port, plus 1; 0: it wants none */
    u32 memory; /* memory answers, plus 1; kept only while fpu_write is set */

    u32 accept; /* the core may hand over a vector instruction */
    u32 load, store, fp, integer, slide; /* the unit may begin such an instruction */
    u32 retire[MAX_IN_FLIGHT]; /* those under way, oldest first */
    u32 first[32], last[32]; /* a use of the first and of the last word of a register may begin */
    u32 read[32]; /* the last word of a register has been read */

    /* no times */
    u32 fpu_rd; /* f register, or 32 + x register, that the FPU will write, or NO_REGISTER */
    u32 fpu_alone; /* the FPU is inside an operation that admits no other */
};

/* The vector configuration that instructions run under. */
struct vconf {
    u32 vl;
    const struct vtype *vt;
};

/* The vtype that vsetvli and vsetivli set. */
static inline const struct vtype *vtype_set(const struct vtype *vtypes, const struct op *o)
{
    return &vtypes[o->imm < 256 ? o->imm : VTYPE_ILL];
}
/* Does it set vtype alone: vsetvli x0, x0, ...? */
static inline bool keeps_vl(const struct op *o)
{
    return o->id == I_vsetvli && o->rs1 == 0 && o->rd == 32;
}

/* Of a vector load or store: are its elements one after the other? */
bool unit_stride(const struct insn_row *row);

/* What the last memory instruction of a course has asked for. */
struct asked {
    u32 at; /* cycle of the first request */
    u32 bytes;
    bool scalar;
};

/* The course of instructions through the pipeline, from `now` = 0 on.  On the way the times in
 * `score` count from there. */
struct course {
    const nicemu_timing *timing;
    u32 vlenb;
    struct score score;
    u32 now;
    u32 terms[TERMS];
    struct asked asked;
    const struct vtype *vtypes; /* by the low byte of vtype */
    struct vconf conf, next; /* now, and at the end */
};

void cost_begin(struct course *w, const nicemu_timing *timing, u32 vlenb,
                const struct score *score);
/* The next instruction waits for lines of code. */
void cost_fetch(struct course *w, u32 lines);
/* `extra`: cycles that its operands add, once it has them. */
void cost_op(struct course *w, const struct op *o, u32 extra);
/* The last instruction transferred control: `branch` is a taken branch; `misaligned`: to a 4-byte
 * instruction at 2 mod 4. */
void cost_transfer(struct course *w, bool branch, bool misaligned);
/* Until all vector instructions have retired. */
void cost_drain(struct course *w);
/* Let score begin at `now`. */
void cost_end(struct course *w);

extern const struct score score_idle;

#endif
