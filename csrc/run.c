/* run.c: the run loop: blocks of decoded code, their accounting, traps, the budget.
 * Owns: decoding into blocks and the order in which they run.  What an instruction does is in
 * exec_*.c; what traps and CSRs hold is in csr.c. */
#include "cores.h"
#include "decode.h"
#include "fp_env.h"
#include "log.h"
#include "timing.h"

/* ---- decoded code ----------------------------------------------------------------------- */

enum { ARENA_BYTES = 1 << 20 };

BODY(end)
{
    (void)o;
    (void)last;
    return follow(h, NX_FALL);
}

BODY(illegal)
{
    return trap_illegal(h, o);
}

BODY(fetch_fault)
{
    return trap(h, o, CAUSE_FETCH, IMM);
}

bool hart_fetch(const struct hart *h, u64 pc, u32 *word, u64 *bad)
{
    u16 half;
    const u8 *p = map_bytes(&h->map, pc, 2, NICEMU_X, bad);
    if (!p)
        return false;
    memcpy(&half, p, 2);
    *word = half;
    if (insn_len(half) == 2)
        return true;
    p = map_bytes(&h->map, pc + 2, 2, NICEMU_X, bad);
    if (!p)
        return false;
    memcpy(&half, p, 2);
    *word |= (u32)half << 16;
    return true;
}

int trap_illegal(struct hart *h, const struct op *o)
{
    u32 word = 0;
    u64 bad;
    hart_fetch(h, op_pc(h, o), &word, &bad);
    return trap(h, o, CAUSE_ILLEGAL, word);
}

/* Does the instruction end its block?  Branches and jumps do, and all that may change what the
 * following instructions are allowed to do. */
static bool ends_block(const struct insn_row *row)
{
    switch ((enum insn_class)row->cls) {
    case CLASS_BRANCH:
    case CLASS_JUMP:
    case CLASS_CSR:
    case CLASS_SYSTEM:
        return true;
    case CLASS_FENCE:
        return row->ext == EXT_ZIFENCEI;
    default:
        return false;
    }
}

/* How the block that transfers control to pc is left. */
static enum way way_to(const struct hart *h, u64 pc)
{
    u32 word;
    u64 bad;
    bool misaligned = pc % 4 && hart_fetch(h, pc, &word, &bad) && insn_len(word) == 4;
    return misaligned ? WAY_MISALIGNED : WAY_TRANSFER;
}

/* Decode up to `max` instructions at pc into b.  An undecodable or unfetchable instruction becomes
 * an op that traps. */
static void decode_block(const struct hart *h, struct block *b, u64 pc, u32 max)
{
    *b = (struct block){.pc = pc, .taken_pc = pc, .fixed = true};
    u64 at = pc, bad = 0;
    bool open = true;
    u64 vlmax = 0;
    while (open && b->n < max) {
        struct op *o = &b->ops[b->n];
        u32 word;
        *o = (struct op){.pcoff = (u16)(at - pc), .id = INSN_COUNT};
        if (!hart_fetch(h, at, &word, &bad)) {
            if (b->n) /* let the block before it run first */
                break;
            o->fn = x_fetch_fault;
            o->imm = (i64)bad;
            open = false;
        } else if (!isa_decode(h->isa, word, at, o)) {
            o->fn = x_illegal;
            o->len = (u8)insn_len(word);
            open = false;
        } else {
            const struct insn_row *row = &insn_rows[o->id];
            if (h->timing) {
                if (!timing_admits(h, b, o, &vlmax))
                    break;
                timing_meter(o);
            }
            b->needs |= o->needs;
            if (row->cls == CLASS_BRANCH || row->cls == CLASS_JUMP)
                b->taken_pc = (u64)o->imm;
            if (row->cls >= CLASS_VSET) /* at most VLMAX elements, at SEW 8 and LMUL 8 */
                b->bound += h->vlenb * 8;
            open = !ends_block(row);
        }
        b->n++;
        at += o->len;
    }
    b->bound += b->n;
    b->end_pc = at;
    b->ops[b->n] = (struct op){.fn = x_end, .id = INSN_COUNT};
    if (h->timing)
        b->way[NX_TAKEN] = way_to(h, b->taken_pc);
    fuse(b);
}

/* Add `runs` executions of the first n instructions. */
static void count_ops(nicemu_counters *c, const struct op *ops, u32 n, u64 runs)
{
    for (u32 i = 0; i < n; i++) {
        if (ops[i].id >= INSN_COUNT)
            continue;
        const struct insn_row *row = &insn_rows[ops[i].id];
        c->classes[row->cls] += runs;
        c->cost += runs; /* unit costs: the timing layer's machine data replaces the 1 */
        switch ((enum insn_class)row->cls) {
        case CLASS_LOAD:
            c->loads += runs;
            c->load_bytes += runs * row->arg;
            break;
        case CLASS_STORE:
            c->stores += runs;
            c->store_bytes += runs * row->arg;
            break;
        case CLASS_AMO:
            c->atomics += runs;
            c->load_bytes += ops[i].id == I_sc_w || ops[i].id == I_sc_d ? 0 : runs * row->arg;
            c->store_bytes += row->format == FORMAT_LR ? 0 : runs * row->arg;
            break;
        default:
            break;
        }
    }
}

void hart_forget_code(struct hart *h)
{
    for (unsigned i = 0; i < BUCKETS; i++) {
        for (struct block *b = h->bucket[i]; b; b = b->chain)
            count_ops(&h->done, b->ops, b->n, b->runs);
        h->bucket[i] = NULL;
    }
    h->arena_used = 0;
    if (h->timing)
        timing_forget(h);
}

void hart_forget_costs(struct hart *h)
{
    for (unsigned i = 0; i < BUCKETS; i++)
        for (struct block *b = h->bucket[i]; b; b = b->chain)
            b->cost[0] = b->cost[1] = NULL;
    h->step->cost[0] = h->step->cost[1] = NULL;
    timing_forget(h);
}

void hart_counters(const struct hart *h, nicemu_counters *out)
{
    *out = h->done;
    for (unsigned i = 0; i < BUCKETS; i++)
        for (const struct block *b = h->bucket[i]; b; b = b->chain)
            count_ops(out, b->ops, b->n, b->runs);
    out->instructions += hart_instret(h);
    out->elements += h->elements;
    out->vector_load_bytes += h->vector_load_bytes;
    out->vector_store_bytes += h->vector_store_bytes;
}

void hart_clear_counters(struct hart *h)
{
    hart_forget_code(h);
    h->done =
        (nicemu_counters){.instructions = -hart_instret(h), /* what hart_counters adds again */
                          .elements = -h->elements,
                          .vector_load_bytes = -h->vector_load_bytes,
                          .vector_store_bytes = -h->vector_store_bytes};
    if (h->timing)
        timing_clear(h->timing);
}

static struct block *block_at(struct hart *h, u64 pc)
{
    struct block **bucket = &h->bucket[(pc >> 1) % BUCKETS];
    for (struct block *b = *bucket; b; b = b->chain)
        if (b->pc == pc)
            return b;
    size_t most = sizeof(struct block) + (MAX_BLOCK + 1) * sizeof(struct op);
    if (h->arena_used + most > ARENA_BYTES)
        hart_forget_code(h);
    struct block *b = (struct block *)(h->arena + h->arena_used);
    decode_block(h, b, pc, MAX_BLOCK);
    h->arena_used += sizeof(struct block) + (b->n + 1) * sizeof(struct op);
    b->chain = *bucket;
    *bucket = b;
    return b;
}

size_t hart_arena_bytes(void)
{
    return ARENA_BYTES;
}
size_t hart_step_bytes(void)
{
    return sizeof(struct block) + 2 * sizeof(struct op);
}

/* ---- traps ------------------------------------------------------------------------------ */

/* Enter the guest's trap handler; false when it has none that could run. */
static bool enter_handler(struct hart *h, u64 pc)
{
    u64 handler = h->mtvec & ~3ull, bad;
    if (!h->trap_to_guest || !map_bytes(&h->map, handler, 2, NICEMU_X, &bad))
        return false;
    h->mepc = pc;
    h->mcause = h->trap.cause;
    h->mtval = h->trap.tval;
    u64 mie = h->mstatus & MSTATUS_MIE ? MSTATUS_MPIE : 0;
    h->mstatus = (h->mstatus & ~(MSTATUS_MIE | MSTATUS_MPIE | MSTATUS_MPP)) | mie |
                 (h->mode == MODE_M ? MSTATUS_MPP : 0);
    h->mode = MODE_M;
    h->pc = handler;
    return true;
}

/* ---- the loop --------------------------------------------------------------------------- */

/* The block was charged in full when it began; take back all but its first k instructions. */
static void charge_only(struct hart *h, struct block *b, u32 k)
{
    h->steps -= b->n - k;
    b->runs--;
    count_ops(&h->done, b->ops, k, 1);
}

/* After a block that ended in NX_JUMP or above: false when the run is over and *out says why. */
static bool leave(struct hart *h, struct block *b, int next, nicemu_stop *out)
{
    if (next == NX_JUMP)
        return true;
    if (next == NX_FLUSH) {
        hart_forget_code(h);
        return true;
    }
    u32 k = (u32)(h->trap.op - b->ops);
    u64 pc = op_pc(h, h->trap.op);
    if (next == NX_STOP) {
        charge_only(h, b, k + 1);
        h->pc = pc + h->trap.op->len;
        *out = (nicemu_stop){.reason = h->trap.cause, .addr = h->trap.tval};
        return false;
    }
    charge_only(h, b, k);
    h->steps++; /* a trap costs budget, or a handler that traps at once would never end */
    h->traps++;
    if (enter_handler(h, pc))
        return true;
    h->pc = pc;
    *out = (nicemu_stop){.reason = NICEMU_STOP_FAULT, .cause = h->trap.cause, .addr = h->trap.tval};
    return false;
}

/* The same, as time: before leave, which may forget the block. */
static void pass_time(struct hart *h, struct block *b, int next)
{
    u32 done = (u32)(h->trap.op - b->ops);
    timing_leave_loop(h);
    switch ((enum next)next) {
    case NX_FALL:
    case NX_TAKEN:
        timing_block(h, b, b->way[next]);
        break;
    case NX_JUMP:
        timing_block(h, b, way_to(h, h->pc));
        break;
    case NX_FLUSH:
        timing_block(h, b, WAY_FALL);
        break;
    case NX_STOP:
        timing_part(h, b, done + 1);
        break;
    case NX_TRAP:
        timing_part(h, b, done);
        break;
    }
}

/* Blocks may follow one another up to `end`; by the clock, if there is one. */
static void begin_turn(struct hart *h, u64 end)
{
    h->turn_end[NX_FALL] = h->turn_end[NX_TAKEN] = h->timing ? 0 : end;
    h->clock_end = end;
    h->vconf = timing_vconf(h);
}

/* Does this instruction change FP or vector state?  All that need a unit do, but stores. */
static bool writes_unit_state(const struct op *o)
{
    enum insn_class cls = insn_rows[o->id].cls;
    return o->needs && cls != CLASS_STORE && cls != CLASS_VSTORE;
}

/* One instruction at h->pc, for what whole blocks cannot do: the last instructions of a budget, the
 * instruction that meets a unit which is off, the first to make a unit's state dirty, the log. */
static struct block *next_step(struct hart *h)
{
    struct block *b = h->step;
    decode_block(h, b, h->pc, 1);
    if (b->needs & h->missing)
        b->ops[0].fn = x_illegal;
    return b;
}
static bool run_step(struct hart *h, struct block *b, nicemu_stop *out)
{
    begin_turn(h, hart_used(h)); /* the step block has no successors, but be plain about it */
    int next = enter_block(h, b);
    if (h->timing) {
        timing_break(h); /* the same block is decoded anew each time */
        pass_time(h, b, next);
        timing_break(h);
    }
    if (next <= NX_TAKEN)
        h->pc = next == NX_TAKEN ? b->taken_pc : b->end_pc;
    if (next <= NX_FLUSH) {
        count_ops(&h->done, b->ops, b->n, 1);
        if (writes_unit_state(&b->ops[0]))
            hart_mark_dirty(h, b->needs);
    }
    return next <= NX_TAKEN || leave(h, b, next, out);
}

static bool single_step(struct hart *h, nicemu_stop *out)
{
    return run_step(h, next_step(h), out);
}

/* The block after b; NULL: look at h->pc. */
static struct block *successor(struct hart *h, struct block *b, int which)
{
    u64 pc = which == NX_TAKEN ? b->taken_pc : b->end_pc;
    if (unlikely(pc == RETURN_PC)) { /* not code: the run loop knows what is meant */
        h->pc = pc;
        return NULL;
    }
    size_t before = h->arena_used;
    struct block *next = block_at(h, pc);
    if (h->arena_used >= before) /* b is still there: nothing was forgotten */
        b->succ[which] = next;
    return next;
}

/* Most instructions + elements between two visits of the run loop. */
enum { TURN = 8192 };

static void run_blocks(struct hart *h, nicemu_stop *out)
{
    struct block *b = NULL; /* NULL: find the block at h->pc */
    for (;;) {
        if (!b) {
            if (unlikely(h->pc == RETURN_PC && h->calling)) {
                out->reason = NICEMU_STOP_RETURN;
                return;
            }
            b = block_at(h, h->pc);
        }
        u64 used = hart_used(h);
        u64 room = used < h->limit ? h->limit - used : 0; /* elements may have overdrawn it */
        if (unlikely(room < b->bound || b->needs & h->step_needs)) {
            h->pc = b->pc;
            if (room == 0 || !single_step(h, out))
                return;
            b = NULL;
            continue;
        }
        begin_turn(h, room < TURN ? h->limit : used + TURN);
        int next = enter_block(h, b);
        b = h->block; /* the last of those that followed */
        if (unlikely(h->timing != NULL))
            pass_time(h, b, next);
        if (likely(next <= NX_TAKEN)) {
            struct block *to = b->succ[next];
            b = likely(to != NULL) ? to : successor(h, b, next);
            continue;
        }
        if (!leave(h, b, next, out))
            return;
        b = NULL;
    }
}

int follow_on_clock(struct hart *h, enum next which)
{
    struct block *b = h->block, *to = b->succ[which];
    timing_leave_loop(h);
    if (!h->timing || !to || (i64)to->bound > (i64)(h->clock_end - hart_used(h)) ||
        to->needs & h->step_needs || !timing_known(h, b, b->way[which]))
        return (int)which;
    if (to->needs & NEED_V)
        h->vconf = timing_vconf(h);
    if (to == b)
        timing_loop(h, b);
    return enter_block(h, to);
}

/* The same, one instruction and one line of the log at a time. */
static __attribute__((noinline)) void run_logged(struct hart *h, nicemu_stop *out)
{
    const struct log *log = &h->cores->log;
    struct log_entry entry;
    bool more = true;
    while (more && hart_used(h) < h->limit) {
        if (h->pc == RETURN_PC && h->calling) {
            out->reason = NICEMU_STOP_RETURN;
            return;
        }
        if (log->size - log->used < NICEMU_LOG_LINE) {
            out->reason = NICEMU_STOP_LOG;
            return;
        }
        struct block *b = next_step(h);
        log_begin(h, &b->ops[0], &entry);
        more = run_step(h, b, out);
        log_end(h, &entry);
    }
}

/* The same, with a record of the accesses. */
static __attribute__((noinline)) void run_recorded(struct hart *h, nicemu_stop *out)
{
    bool more = true;
    while (more && hart_used(h) < h->limit) {
        if (h->pc == RETURN_PC && h->calling) {
            out->reason = NICEMU_STOP_RETURN;
            return;
        }
        struct block *b = next_step(h);
        timing_record(h, &b->ops[0]);
        more = run_step(h, b, out);
    }
}

void hart_run(struct hart *h, u64 budget, nicemu_stop *out)
{
    u64 instret = hart_instret(h), elements = h->elements;
    u64 used = hart_used(h), room = UINT64_MAX - used;
    h->limit = used + (budget < room ? budget : room);
    *out = (nicemu_stop){.reason = NICEMU_STOP_BUDGET};
    fp_env_enter(h);
    if (unlikely(h->cores->log.text != NULL))
        run_logged(h, out);
    else if (unlikely(h->timing && h->timing->record.room))
        run_recorded(h, out);
    else
        run_blocks(h, out);
    if (h->timing && out->reason != NICEMU_STOP_BUDGET && out->reason != NICEMU_STOP_LOG)
        timing_drain(h);
    fp_env_leave(h);
    out->pc = h->pc;
    out->instructions = hart_instret(h) - instret;
    out->elements = h->elements - elements;
}

enum { REG_RA = 1, REG_SP = 2, REG_A0 = 10 };

void hart_call(struct hart *h, u64 pc, u64 sp, const u64 args[4], u64 budget, nicemu_stop *out)
{
    /* compilers replace a memset of this size by a string instruction, which is slow to start */
    h->loops->splat[3](h->x, 0, COUNT_OF(h->x));
    h->loops->splat[3](h->f, 0, COUNT_OF(h->f));
    h->x[REG_RA] = RETURN_PC;
    h->x[REG_SP] = sp;
    for (unsigned i = 0; i < 4; i++)
        h->x[REG_A0 + i] = args[i];
    h->mode = MODE_U;
    h->mstatus = MSTATUS_FS | MSTATUS_VS;
    h->mcounteren = 0; /* handlers see no clock */
    h->fflags = h->frm = h->vxrm = h->vxsat = 0;
    h->vl = h->vstart = 0;
    h->vt = h->vtypes[VTYPE_ILL];
    h->has_reservation = false;
    hart_refresh(h);
    h->pc = pc;
    h->calling = true;
    hart_run(h, budget, out);
    h->calling = false;
}
