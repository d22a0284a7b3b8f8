/* timing.c: the clock of one hart: which cycles are known, which are worked out, their sum. */
#include "timing.h"

/* ---- the machine ------------------------------------------------------------------------- */

bool timing_valid(const nicemu_timing *m)
{
    u32 fields[sizeof *m / sizeof(u32)];
    memcpy(fields, m, sizeof *m);
    for (unsigned i = 0; i < COUNT_OF(fields); i++)
        if (fields[i] >= 4096)
            return false;
    bool vector = m->word % 64 == 0 && m->in_flight >= 1 && m->in_flight <= MAX_IN_FLIGHT &&
                  m->strided && m->vint && m->vdiv && m->vfdiv;
    return (m->port == 4 || m->port == 8) && !(m->line & (m->line - 1)) && (!m->word || vector);
}

void timing_open(struct hart *h, const nicemu_timing *machine)
{
    h->timing->machine = *machine;
    h->port_word = ~(u64)(machine->port - 1);
    h->score = 0;
    timing_forget(h);
}

/* ---- what operands add ------------------------------------------------------------------- */

static void add(struct hart *h, const struct op *o, enum term term, u32 cycles)
{
    struct timing *t = h->timing;
    if (!cycles)
        return;
    timing_leave_loop(h);
    t->extras[t->extras_used++] = (struct extra){(u32)(o - h->block->ops), cycles};
    t->terms[term] += cycles;
    h->score |= SCORE_EXTRA;
}

void timing_access(struct hart *h, const struct op *o, u64 addr, u64 bytes)
{
    const nicemu_timing *m = &h->timing->machine;
    u64 further = (addr % m->port + bytes - 1) / m->port;
    add(h, o, TERM_MEMORY, (u32)further * m->crossing);
}

/* Leading zeros of the low half of |divisor|: a bit of the quotient a cycle. */
static u32 quotient_bits(const struct op *o, u64 divisor)
{
    bool is_signed = o->id == I_div || o->id == I_rem || o->id == I_divw || o->id == I_remw;
    bool is_word = o->id == I_divw || o->id == I_remw;
    i64 value = is_word ? (i32)divisor : (i64)divisor;
    u32 low = (u32)(is_signed && value < 0 ? 0 - (u64)value : divisor);
    return low ? (u32)__builtin_clz(low) : 32;
}
static BODY(meter_div)
{
    add(h, o, TERM_EXECUTE, quotient_bits(o, RS2));
    return h->isa->fn[o->id](h, o, last);
}

void timing_meter(struct op *o)
{
    switch ((enum insn_class)insn_rows[o->id].cls) {
    case CLASS_LOAD:
    case CLASS_STORE:
        if (o->arg > 1)
            o->fn = meter_access(o->fn);
        break;
    case CLASS_DIV:
        o->fn = x_meter_div;
        break;
    default:
        break;
    }
}

bool timing_admits(const struct hart *h, struct block *b, const struct op *o, u64 *most)
{
    const struct insn_row *row = &insn_rows[o->id];
    bool cuts = row->fn == x_vlff, sets = row->cls == CLASS_VSET && !keeps_vl(o);
    if (*most && (cuts || sets))
        return false;
    if (keeps_vl(o)) /* it must not cut vl, or what vl was between would be forgotten */
        return *most <= vtype_set(h->vtypes, o)->vlmax;
    if (!cuts && !sets)
        return true;
    bool known = sets && o->id != I_vsetvl;
    *most = known ? vtype_set(h->vtypes, o)->vlmax : UINT64_MAX;
    *most += !*most; /* of an illegal vtype: as good as 1 */
    b->fixed &= known;
    return true;
}

void loop_changes(struct hart *h)
{
    timing_leave_loop(h);
}

/* ---- scores by number -------------------------------------------------------------------- */

static u32 hash_of(const struct score *s)
{
    u32 words[sizeof *s / sizeof(u32)], h = 0;
    memcpy(words, s, sizeof *s);
    for (unsigned i = 0; i < COUNT_OF(words); i++)
        h = (h ^ words[i]) * 0x01000193u;
    return h ^ h >> 15;
}

static u32 score_number(struct timing *t, const struct score *s)
{
    if (!memcmp(s, &score_idle, sizeof *s))
        return 0;
    u32 at = hash_of(s) % COUNT_OF(t->score_at);
    for (; t->score_at[at]; at = (at + 1) % COUNT_OF(t->score_at))
        if (!memcmp(s, &t->scores[t->score_at[at]], sizeof *s))
            return t->score_at[at];
    t->scores[t->scores_used] = *s;
    t->score_at[at] = (u16)t->scores_used;
    return t->scores_used++;
}

/* Is there no room for what one block may need: a cost and two scores? */
static bool full(const struct timing *t)
{
    return t->costs_used == COSTS || t->scores_used + 2 > SCORES;
}

void timing_forget(struct hart *h)
{
    struct timing *t = h->timing;
    u32 extra = h->score & SCORE_EXTRA;
    struct score now = t->scores_used ? t->scores[h->score & ~SCORE_EXTRA] : score_idle;
    nicemu_cycles sum;
    timing_read(t, &sum);
    memcpy(t->terms, sum.terms, sizeof t->terms);
    t->costs_used = 0;
    memset(t->score_at, 0, sizeof t->score_at);
    t->scores[0] = score_idle;
    t->scores_used = 1;
    h->score = score_number(t, &now) | extra;
    timing_break(h);
}

/* ---- the instruction cache --------------------------------------------------------------- */

/* Where the line is in the table, or the empty place for it. */
static u64 *find_line(struct timing *t, u64 line)
{
    u32 at = (u32)line % LINES;
    while (t->lines[at] && t->lines[at] != line + 1)
        at = (at + 1) % LINES;
    return &t->lines[at];
}

/* How many lines of pc..end-1 are used for the first time; they are from now on, if `use`. */
static u32 misses(struct timing *t, u64 pc, u64 end, bool use)
{
    u32 missed = 0;
    if (!t->machine.line)
        return 0;
    for (u64 line = pc / t->machine.line; line <= (end - 1) / t->machine.line; line++) {
        if (t->lines_used + 1 == LINES) /* more than any instruction cache holds */
            break;
        u64 *place = find_line(t, line);
        if (*place)
            continue;
        if (use) {
            *place = line + 1;
            t->lines_used++;
        }
        missed++;
    }
    return missed;
}

/* ---- blocks ------------------------------------------------------------------------------ */

static struct vconf vconf_of(const struct hart *h, u64 vconf)
{
    return (struct vconf){(u32)(vconf >> 8), &h->vtypes[vconf & 255]};
}

/* The course of the first n instructions of b, with what their operands add; `fetches`: and with
 * what is not in the instruction cache yet. */
static void run_course(struct course *w, struct hart *h, const struct block *b, u32 n, enum way way,
                       bool fetches)
{
    struct timing *t = h->timing;
    cost_begin(w, &t->machine, h->vlenb, &t->scores[h->score]);
    w->vtypes = h->vtypes;
    w->conf = vconf_of(h, h->vconf);
    w->next = vconf_of(h, timing_vconf(h));
    const struct extra *extra = t->extras, *end = extra + t->extras_used;
    for (u32 i = 0; i < n; i++) {
        u32 cycles = 0;
        for (; extra < end && extra->op == i; extra++)
            cycles += extra->cycles;
        const struct op *o = &b->ops[i];
        u64 pc = b->pc + o->pcoff;
        if (fetches)
            cost_fetch(w, misses(t, pc, pc + o->len, true));
        cost_op(w, o, cycles);
    }
    t->extras_used = 0;
    if (way != WAY_FALL)
        cost_transfer(w, insn_rows[b->ops[n - 1].id].cls == CLASS_BRANCH, way == WAY_MISALIGNED);
    cost_end(w);
}

enum { MOST_CASES = 64 }; /* looked at before a cost is worked out again */

/* The cost of b in this case, if it was worked out before, comes to the front. */
static bool find(const struct hart *h, struct block *b, enum way way)
{
    struct cost **front = &b->cost[way != WAY_FALL], **link = front;
    for (u32 i = 0; i < MOST_CASES && *link; i++, link = &(*link)->other) {
        struct cost *c = *link;
        if (!cost_fits(h, b, c, way))
            continue;
        *link = c->other;
        c->other = *front;
        *front = c;
        return true;
    }
    return false;
}

static void work_out(struct hart *h, struct block *b, enum way way)
{
    struct timing *t = h->timing;
    struct cost *c = &t->costs[t->costs_used++], **front = &b->cost[way != WAY_FALL];
    struct course w;
    run_course(&w, h, b, b->n, way, false);
    *c = (struct cost){.block = b,
                       .other = *front,
                       .key = h->score | way,
                       .after = score_number(t, &w.score),
                       .vconf = vconf_pair(h->vconf, timing_vconf(h))};
    memcpy(c->terms, w.terms, sizeof c->terms);
    for (u32 k = 0; k < TERMS; k++)
        c->cycles += c->terms[k];
    *front = c;
}

/* A course that is counted once. */
static void count_course(struct hart *h, const struct course *w)
{
    for (u32 k = 0; k < TERMS; k++)
        h->timing->terms[k] += w->terms[k];
    h->score = score_number(h->timing, &w->score);
}

/* Does it not matter when extra cycles pass, because nothing goes on beside the instructions? */
static bool alone(const struct hart *h, const struct block *b)
{
    return !h->score && !(b->needs & (NEED_F | NEED_V));
}

/* Before a course or the search for a cost; true: operands have added cycles. */
static bool prepare(struct hart *h)
{
    bool extra = h->score & SCORE_EXTRA;
    h->score &= ~SCORE_EXTRA;
    if (full(h->timing))
        hart_forget_costs(h);
    return extra;
}

/* ---- the record -------------------------------------------------------------------------- */

/* Cycles of what is not counted in costs[]: of everything that is recorded. */
static u64 passed(const struct timing *t)
{
    u64 sum = 0;
    for (u32 k = 0; k < TERMS; k++)
        sum += t->terms[k];
    return sum;
}

void timing_start_record(struct timing *t, nicemu_access *room, u64 size)
{
    t->record = (struct record){.room = room, .size = size};
    t->recorded_from = passed(t);
}

void timing_record(struct hart *h, const struct op *o)
{
    h->timing->started = passed(h->timing);
    access_begin(&h->timing->record, h, o, &h->timing->machine);
}

static void end_record(struct timing *t, const struct course *w)
{
    access_end(&t->record, &t->machine, &w->asked, t->started - t->recorded_from);
}

/* ---- blocks again ------------------------------------------------------------------------ */

void timing_block(struct hart *h, struct block *b, enum way way)
{
    if (!h->timing->record.room && timing_known(h, b, way))
        return;
    bool extra = prepare(h), first = !b->cost[0] && !b->cost[1];
    bool cold = first && misses(h->timing, b->pc, b->end_pc, false);
    if (h->timing->record.room || cold || (extra && !alone(h, b))) {
        struct course w;
        run_course(&w, h, b, b->n, way, first);
        if (h->timing->record.room)
            end_record(h->timing, &w);
        count_course(h, &w);
        timing_break(h);
    } else {
        h->timing->extras_used = 0;
        if (!find(h, b, way))
            work_out(h, b, way);
        h->cost->then[way != WAY_FALL] = b->cost[way != WAY_FALL];
        timing_known(h, b, way);
    }
}

void timing_part(struct hart *h, const struct block *b, u32 n)
{
    struct course w;
    prepare(h);
    run_course(&w, h, b, n, WAY_FALL, true);
    count_course(h, &w);
}

void timing_drain(struct hart *h)
{
    struct course w;
    prepare(h);
    cost_begin(&w, &h->timing->machine, h->vlenb, &h->timing->scores[h->score]);
    cost_drain(&w);
    cost_end(&w);
    count_course(h, &w);
}

/* ---- the sum ----------------------------------------------------------------------------- */

void timing_read(const struct timing *t, nicemu_cycles *out)
{
    *out = (nicemu_cycles){.cycles = 0};
    for (u32 k = 0; k < TERMS; k++) {
        out->terms[k] = t->terms[k];
        for (u32 i = 0; i < t->costs_used; i++)
            out->terms[k] += t->costs[i].runs * t->costs[i].terms[k];
        out->cycles += out->terms[k];
    }
}

u64 hart_cycles(const struct hart *h)
{
    const struct timing *t = h->timing;
    u64 sum = passed(t);
    for (u32 i = 0; i < t->costs_used; i++)
        sum += t->costs[i].runs * t->costs[i].cycles;
    return sum;
}

void timing_clear(struct timing *t)
{
    for (u32 i = 0; i < t->costs_used; i++)
        t->costs[i].runs = 0;
    memset(t->terms, 0, sizeof t->terms);
}

const char *nicemu_term_name(uint32_t i)
{
    static const char *const names[TERMS] = {
#define TERM(id, name) name,
#include "term.def"
#undef TERM
    };
    return i < TERMS ? names[i] : NULL;
}
