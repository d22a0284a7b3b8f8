/* hart.h: one hart: its architectural state, its decoded instructions, and the small vocabulary in
 * which the instruction bodies (exec_*.c) are written.
 * Owns: struct hart, struct op, struct block, traps.  Machine-wide things (who maps what, which
 * hart runs next) belong in cores.c.
 *
 * An instruction body is a function `int x_NAME(struct hart *h, const struct op *o, u64 last)`.  It
 * ends in `return NEXT;`, a tail call of the next instruction of its block, or returns one of enum
 * next. Without tail-call optimisation the host stack grows by one small frame an instruction, up
 * to the next visit of the run loop (TURN in run.c), so nothing depends on the optimiser. */
#ifndef NICEMU_HART_H
#define NICEMU_HART_H

#include "base.h"
#include "fp.h"
#include "mem.h"
#include "nicemu.h"

/* ---- rows of the tables, as numbers ----------------------------------------------------- */
#define EXT(id, name) EXT_##id,
enum ext {
#include "ext.def"
    EXT_COUNT
};
#undef EXT
#define CLASS(id, name) CLASS_##id,
enum insn_class {
#include "class.def"
    CLASS_COUNT
};
#undef CLASS
#define FORMAT(id, pattern) FORMAT_##id,
enum format {
#include "format.def"
    FORMAT_COUNT
};
#undef FORMAT
#define INSN(id, fmt, match, mask, ext, cls, exec, arg) I_##id,
enum insn {
#include "insn.def"
    INSN_COUNT
};
#undef INSN

enum { GRANULE = 64 }; /* bytes that LR reserves */

enum mode { MODE_U = 0, MODE_M = 3 };

/* Exception codes of the privileged manual. */
enum cause {
    CAUSE_MISALIGNED = 0, /* a jump to no multiple of 4, without C */
    CAUSE_FETCH = 1,
    CAUSE_ILLEGAL = 2,
    CAUSE_BREAK = 3,
    CAUSE_LOAD = 5,
    CAUSE_STORE = 7,
    CAUSE_ECALL_U = 8,
    CAUSE_ECALL_M = 11
};

/* mstatus fields */
#define MSTATUS_MIE (1ull << 3)
#define MSTATUS_MPIE (1ull << 7)
#define MSTATUS_VS (3ull << 9)
#define MSTATUS_MPP (3ull << 11)
#define MSTATUS_FS (3ull << 13)
#define MSTATUS_MPRV (1ull << 17)
#define MSTATUS_TW (1ull << 21)
#define MSTATUS_UXL64 (2ull << 32)
#define MSTATUS_SD (1ull << 63)

/* ---- decoded code ----------------------------------------------------------------------- */
struct hart;
struct op;
typedef int (*op_fn)(struct hart *h, const struct op *o, u64 last);

struct op {
    op_fn fn;
    i64 imm; /* immediate; jumps and branches: the target address; lui, auipc: the value */
    u8 rd; /* x register, 32 = discard; or f or v register */
    u8 rs1, rs2, rs3;
    u8 rm; /* FP rounding mode field */
    u8 vm; /* vector: 1 = not masked */
    u8 len; /* bytes of the encoding */
    u8 needs; /* enum need */
    u16 id; /* enum insn */
    u16 arg; /* last column of the row */
    u16 pcoff; /* distance from the block's pc */
    u8 proved; /* vector: vtype.key under which the operands were found legal, or 0 */
};

/* What must be switched on for an instruction to be legal. */
enum need { NEED_F = 1, NEED_V = 2, NEED_FRM = 4 /* a valid frm */ };

enum { MAX_BLOCK = 64 };

/* Straight-line code: n instructions, the last of which may branch, then an `end` op.  What it
 * costs is static: `runs` times the sum over its instructions' classes. */
struct block {
    u64 pc, end_pc, taken_pc;
    struct block *succ[2]; /* blocks at end_pc and taken_pc, once known */
    struct block *chain; /* next in the hash bucket */
    u32 n;
    u32 bound; /* the most that one run can add to the budget used */
    u32 needs;
    u64 runs; /* completed runs, not yet counted per class */
    struct cost *cost[2]; /* timing.h: what a run takes that ends in NX_FALL, or goes elsewhere: the
                             case met last, and others behind it */
    u32 way[2]; /* timing.h: enum way of leaving it for end_pc and for taken_pc */
    bool fixed; /* timing.h: its instructions, but for vl, give the vector configuration at its end
                 */
    struct op ops[];
};

/* What the run loop does after a block. */
enum next {
    NX_FALL, /* go on at end_pc */
    NX_TAKEN, /* go on at taken_pc */
    NX_JUMP, /* go on at h->pc */
    NX_FLUSH, /* the same, with all decoded code forgotten */
    NX_TRAP, /* h->trap says why; the instruction at h->trap.op did not retire */
    NX_STOP /* the instruction at h->trap.op retired; leave the run loop */
};

struct trap {
    const struct op *op;
    u64 tval;
    u32 cause; /* NX_TRAP: enum cause; NX_STOP: NICEMU_STOP_* */
};

/* ---- the hart --------------------------------------------------------------------------- */
enum { BUCKETS = 1024, MAX_VLENB = 128 };

/* What a value of vtype means, worked out once for each (exec_v.c). */
struct vtype {
    u64 vlmax;
    u8 align[8]; /* see vec_align */
    u8 sew; /* log2 of SEW in bytes, 0..3 */
    i8 lmul; /* log2 of LMUL, -3..3 */
    u8 ill;
    u8 code; /* low byte of the CSR: the index in hart.vtypes */
    u8 key; /* of SEW and LMUL, for op.proved; never 0 */
};
enum { VTYPE_ILL = 4, KEY_ILL = 255 }; /* LMUL code 4 is reserved */

struct vec_loops; /* vloops.h: the host loops of vector instructions */
struct isa; /* decode.h */
struct simd; /* simd.h */

struct hart {
    u64 x[33]; /* x[0] stays 0; x[32] takes the writes to x0 */
    u64 f[32]; /* NaN-boxed */
    u64 pc; /* up to date only between blocks */

    /* floating point: see fp_env.h */
    u32 fflags; /* raised by integer code; the host's own sticky flags are added when asked for */
    u8 frm; /* as written, 5..7 included */
    u8 host_rm; /* bit i: rm field i may be computed by the host's FP unit; 0: never */
    bool running; /* the host's FP environment is this hart's */
    u32 host_saved; /* the caller's FP environment */

    /* vector configuration */
    struct vtype vt;
    const struct vtype *vtypes; /* all there are, by the low byte of vtype */
    u8 vxrm, vxsat;
    bool zvfh;
    u32 vlenb;
    u64 vl, vstart;
    u8 *vreg[32]; /* where the registers are in v */
    const struct vec_loops *loops; /* for this host and the current frm */

    /* budget and counters */
    u64 steps; /* retired instructions + traps taken */
    u64 elements; /* active vector elements; with the steps what the budget is charged */
    u64 traps; /* part of the steps */
    u64 limit; /* an instruction begins only while hart_used() < limit */
    u64 turn_end[2]; /* at most limit: how far blocks may follow one another outside the run loop,
                        by the way to them: enum next */
    u64 vector_load_bytes, vector_store_bytes;

    /* memory */
    struct span rspan[SPANS], wspan[SPANS];
    struct map map;
    u64 reserved; /* address of the granule that LR reserved */
    bool has_reservation;
    u64 port_word; /* timing.h: the bits of an address that tell words of the data port apart */
    u64 clock_end; /* timing.h: as turn_end, for blocks whose cycles are counted */
    struct cost *cost; /* timing.h: of the block before */
    struct cost *loop; /* timing.h: of the running block, which follows itself uncounted; or NULL */
    u64 loop_runs; /* its runs that had begun before that */
    u64 vconf; /* timing.h: vl and vtype at the beginning of the running block */
    u32 score; /* timing.h: state of the pipeline, by number */
    bool watched; /* another hart holds a reservation: stores take the slow path */

    /* control */
    struct block *block; /* being run */
    struct trap trap;
    u32 missing; /* enum need that is off at present */
    u32 step_needs; /* the same, and what is on but not yet marked dirty in mstatus */
    u8 mode;
    bool trap_to_guest;
    bool calling; /* inside nicemu_call: RETURN_PC ends the run */

    /* machine-mode CSRs */
    u64 mstatus, mtvec, mepc, mcause, mtval, mscratch, mie, mcounteren, menvcfg;
    u64 instret_base, cycle_base; /* subtracted where minstret and mcycle are read */
    u32 id;

    /* decoded code and counts of what was dropped from it */
    const struct isa *isa;
    const struct simd *simd;
    struct timing *timing; /* timing.h; NULL: cycles are not counted */
    struct nicemu_cores *cores;
    struct block *bucket[BUCKETS];
    struct block *step; /* room for one instruction, outside the cache */
    u8 *arena;
    size_t arena_used;
    nicemu_counters done;

    _Alignas(64) u8 v[32 * MAX_VLENB + 64]; /* register r at v + r * vlenb; slack for wide reads */
    _Alignas(64) u8 vtmp[3][8 * MAX_VLENB]; /* register groups of one instruction's making */
};

/* Where a called handler returns to.  No region may hold this page. */
#define RETURN_PC 0xfffffffffffff000ull

/* ---- vocabulary of the bodies ----------------------------------------------------------- */
#define BODY(name)                                                                                 \
    int x_##name(struct hart *h, const struct op *o, __attribute__((unused)) u64 last)
#define NEXT o[1].fn(h, o + 1, 0)
/* The same after writing v to rd: a body chosen by exec_fuse.c may take v from there instead of
 * reading it back from memory.  No other body looks at `last`. */
#define NEXT_VALUE(v) o[1].fn(h, o + 1, v)
#define RD h->x[o->rd]
#define RS1 h->x[o->rs1]
#define RS2 h->x[o->rs2]
#define IMM ((u64)o->imm)

/* pc of the instruction o of the running block, and of the one after it. */
static inline u64 op_pc(const struct hart *h, const struct op *o)
{
    return h->block->pc + o->pcoff;
}
static inline u64 op_next_pc(const struct hart *h, const struct op *o)
{
    return op_pc(h, o) + o->len;
}

static inline int trap(struct hart *h, const struct op *o, u32 cause, u64 tval)
{
    h->trap = (struct trap){o, tval, cause};
    return NX_TRAP;
}
/* Illegal-instruction trap; mtval holds the encoding. */
int trap_illegal(struct hart *h, const struct op *o);

/* ---- memory as the bodies see it (exec_mem.c) ------------------------------------------- */
/* Host address of n bytes, or NULL after which the body returns trap(..., h->trap.tval). */
u8 *load_slow(struct hart *h, u64 addr, u64 n);
/* Host address of n bytes to be stored, or NULL with h->trap.tval set.  Breaks reservations. */
u8 *store_slow(struct hart *h, u64 addr, u64 n);
/* True when a completed store went to an HTIF region: the body then returns stop_htif(). */
bool store_hit_htif(const struct hart *h, u64 addr);
int stop_htif(struct hart *h, const struct op *o, u64 addr);

/* Retired instructions, those of the running block included. */
static inline u64 hart_instret(const struct hart *h)
{
    return h->steps - h->traps;
}
/* What counts against the budget. */
static inline u64 hart_used(const struct hart *h)
{
    return h->steps + h->elements;
}
/* Begin block b, charging it in full. */
static inline int enter_block(struct hart *h, struct block *b)
{
    h->steps += b->n;
    b->runs++;
    h->block = b;
    return b->ops[0].fn(h, b->ops, 0);
}
/* The same for blocks whose cycles are counted; `which` where none can follow. */
int follow_on_clock(struct hart *h, enum next which);
/* The end of a block that branches: go on with the next one, or leave that to the run loop, which
 * knows all cases and keeps the host stack short where tail calls are not made. */
static inline int follow(struct hart *h, enum next which)
{
    struct block *to = h->block->succ[which];
    if (likely(to && (i64)to->bound <= (i64)(h->turn_end[which] - hart_used(h)) &&
               !(to->needs & h->step_needs)))
        return enter_block(h, to);
    return follow_on_clock(h, which);
}
/* Every vector instruction calls this with the number of its active body elements. */
static inline void count_elements(struct hart *h, u64 n)
{
    h->elements += n;
}

/* ---- the other files of a hart ---------------------------------------------------------- */
#define INSN(id, fmt, match, mask, ext, cls, exec, arg)                                            \
    int x_##exec(struct hart *, const struct op *, u64);
#include "insn.def"
#undef INSN
int x_end(struct hart *h, const struct op *o, u64 last); /* end of a block that does not branch */
int x_illegal(struct hart *h, const struct op *o, u64 last); /* no such instruction */
int x_fetch_fault(struct hart *h, const struct op *o,
                  u64 last); /* imm = the address out of reach */

/* exec_i.c: without C, the body in place of `plain` that traps where a jump or branch would go to
 * no multiple of 4 (IALIGN = 32); `target` is that of a direct one */
op_fn jump_to_word(op_fn plain, u64 target);

/* exec_mem.c: the body in place of `plain`, of a load or store, that tells the clock of its address
 */
op_fn meter_access(op_fn plain);

/* timing.c: vl is another one, in a loop whose runs are not counted one by one */
void loop_changes(struct hart *h);

/* exec_fuse.c */
void fuse(struct block *b); /* pick faster forms of the integer instructions of a new block */

/* run.c */
/* Up to four bytes at pc into *word; on failure the address that cannot be fetched. */
bool hart_fetch(const struct hart *h, u64 pc, u32 *word, u64 *bad);
void hart_run(struct hart *h, u64 budget, nicemu_stop *out);
void hart_forget_code(struct hart *h); /* drop every decoded block, keep its counts */
void hart_forget_costs(struct hart *h); /* drop what blocks know of their cycles */
void hart_counters(const struct hart *h, nicemu_counters *out);
void hart_clear_counters(struct hart *h);
/* nicemu_call: a U-mode call that starts from known x and f registers and CSRs; vector registers
 * keep what the last call left, as memory does. */
void hart_call(struct hart *h, u64 pc, u64 sp, const u64 args[4], u64 budget, nicemu_stop *out);

/* csr.c */
const char *csr_name(u32 number); /* NULL when there is none */
bool csr_is_zero(u32 number); /* it exists, reads 0 and ignores writes */
bool csr_exists(const struct hart *h, u32 number);
u32 csr_needs(u32 number); /* enum need: the unit that must be on, or 0 */
/* `retired` = instructions retired before the one that reads. */
u64 csr_read(struct hart *h, u32 number, u64 retired);
void csr_write(struct hart *h, u32 number, u64 value);
void hart_refresh(struct hart *h); /* recompute what depends on mstatus, frm and the host */
void hart_mark_dirty(struct hart *h, u32 needs); /* mstatus.FS, VS after their state changed */

/* exec_v.c */
void vtype_table(struct vtype table[256], u32 vlenb);

#endif
