/* cost.c: the rules of the pipeline.  Sources: the user manual and RTL of CV32E40P (scalar side,
 * FPU), the RTL of Spatz (vector unit), and cycles counted on both. */
#include "cost.h"

const struct score score_idle = {.fpu_rd = NO_REGISTER};

static u32 later(u32 a, u32 b)
{
    return a > b ? a : b;
}

/* ---- operands ---------------------------------------------------------------------------- */

/* What a format's fields of struct op are. */
enum role {
    X1 = 1, /* rs1 is an x register that is read */
    X2 = 2,
    F1 = 4,
    F2 = 8,
    F3 = 16,
    V1 = 32,
    V2 = 64,
    V3 = 128, /* rd is a v register that is read */
    TO_X = 256, /* rd is an x register that is written */
    TO_F = 512,
    TO_V = 1024
};

static const u16 roles[FORMAT_COUNT] = {
    [FORMAT_R] = X1 | X2 | TO_X,
    [FORMAT_R1] = X1 | TO_X,
    [FORMAT_I] = X1 | TO_X,
    [FORMAT_SH6] = X1 | TO_X,
    [FORMAT_SH5] = X1 | TO_X,
    [FORMAT_LD] = X1 | TO_X,
    [FORMAT_ST] = X1 | X2,
    [FORMAT_B] = X1 | X2,
    [FORMAT_U] = TO_X,
    [FORMAT_UPC] = TO_X,
    [FORMAT_J] = TO_X,
    [FORMAT_CSR] = X1 | TO_X,
    [FORMAT_CSRI] = TO_X,
    [FORMAT_LR] = X1 | TO_X,
    [FORMAT_AMO] = X1 | X2 | TO_X,
    [FORMAT_FLD] = X1 | TO_F,
    [FORMAT_FST] = X1 | F2,
    [FORMAT_FR] = F1 | F2 | TO_F,
    [FORMAT_FRN] = F1 | F2 | TO_F,
    [FORMAT_F1] = F1 | TO_F,
    [FORMAT_F4] = F1 | F2 | F3 | TO_F,
    [FORMAT_FCMP] = F1 | F2 | TO_X,
    [FORMAT_FX] = F1 | TO_X,
    [FORMAT_FXN] = F1 | TO_X,
    [FORMAT_XF] = X1 | TO_F,
    [FORMAT_XFN] = X1 | TO_F,
    [FORMAT_CNOP] = TO_X,
    [FORMAT_CIW] = X1 | TO_X,
    [FORMAT_CLW] = X1 | TO_X,
    [FORMAT_CLD] = X1 | TO_X,
    [FORMAT_CSW] = X1 | X2,
    [FORMAT_CSD] = X1 | X2,
    [FORMAT_CFLD] = X1 | TO_F,
    [FORMAT_CFSD] = X1 | F2,
    [FORMAT_CI] = X1 | TO_X,
    [FORMAT_CIW0] = X1 | TO_X,
    [FORMAT_CLI] = TO_X,
    [FORMAT_CI16] = X1 | TO_X,
    [FORMAT_CLUI] = TO_X,
    [FORMAT_CSH] = X1 | TO_X,
    [FORMAT_CSHP] = X1 | TO_X,
    [FORMAT_CANDI] = X1 | TO_X,
    [FORMAT_CA] = X1 | X2 | TO_X,
    [FORMAT_CJ] = TO_X,
    [FORMAT_CB] = X1,
    [FORMAT_CLWSP] = X1 | TO_X,
    [FORMAT_CLDSP] = X1 | TO_X,
    [FORMAT_CSWSP] = X1 | X2,
    [FORMAT_CSDSP] = X1 | X2,
    [FORMAT_CFLDSP] = X1 | TO_F,
    [FORMAT_CFSDSP] = X1 | F2,
    [FORMAT_CJR] = X1 | TO_X,
    [FORMAT_CJALR] = X1 | TO_X,
    [FORMAT_CMV] = X2 | TO_X,
    [FORMAT_CADD] = X1 | X2 | TO_X,
    [FORMAT_VSETVLI] = X1 | TO_X,
    [FORMAT_VSETIVLI] = TO_X,
    [FORMAT_VSETVL] = X1 | X2 | TO_X,
    [FORMAT_VL] = X1 | TO_V,
    [FORMAT_VS] = X1 | V3,
    [FORMAT_VLS] = X1 | X2 | TO_V,
    [FORMAT_VSS] = X1 | X2 | V3,
    [FORMAT_VLX] = X1 | V2 | TO_V,
    [FORMAT_VSX] = X1 | V2 | V3,
    [FORMAT_VLN] = X1 | TO_V,
    [FORMAT_VSN] = X1 | V3,
    [FORMAT_VV] = V1 | V2 | TO_V,
    [FORMAT_VX] = X1 | V2 | TO_V,
    [FORMAT_VI] = V2 | TO_V,
    [FORMAT_VU] = V2 | TO_V,
    [FORMAT_VF] = F1 | V2 | TO_V,
    [FORMAT_VVM] = V1 | V2 | TO_V,
    [FORMAT_VXM] = X1 | V2 | TO_V,
    [FORMAT_VIM] = V2 | TO_V,
    [FORMAT_VFM] = F1 | V2 | TO_V,
    [FORMAT_VVA] = V1 | V2 | V3 | TO_V,
    [FORMAT_VXA] = X1 | V2 | V3 | TO_V,
    [FORMAT_VFA] = F1 | V2 | V3 | TO_V,
    [FORMAT_V2] = V2 | TO_V,
    [FORMAT_V2N] = V2 | TO_V,
    [FORMAT_VV0] = V1 | TO_V,
    [FORMAT_VX0] = X1 | TO_V,
    [FORMAT_VI0] = TO_V,
    [FORMAT_VF0] = F1 | TO_V,
    [FORMAT_VMM] = V1 | V2 | TO_V,
    [FORMAT_VXN] = X1 | V2 | TO_V,
    [FORMAT_VIN] = V2 | TO_V,
    [FORMAT_VD] = TO_V,
    [FORMAT_XV] = V2 | TO_X,
    [FORMAT_XVN] = V2 | TO_X,
    [FORMAT_FVN] = V2 | TO_F,
};

/* From when on the scalar registers that it reads let the instruction execute. */
static u32 operands_ready(const struct score *s, const struct op *o, u32 role, bool jumps)
{
    u32 at = 0;
    if (role & X1)
        at = jumps ? s->jump[o->rs1] : s->x[o->rs1];
    if (role & X2)
        at = later(at, s->x[o->rs2]);
    if (role & F1)
        at = later(at, s->f[o->rs1]);
    if (role & F2)
        at = later(at, s->f[o->rs2]);
    if (role & F3)
        at = later(at, s->f[o->rs3]);
    return at;
}

static void write_x(struct course *w, u32 rd, u32 ready)
{
    w->score.x[rd] = ready;
    w->score.jump[rd] = ready + w->timing->jump_register;
}

/* ---- the FPU ----------------------------------------------------------------------------- */

/* Operations of up to one cycle are pipelined; longer ones, divisions above all, are alone.  The
 * result of a long one goes through the port of the ALU's results, at the end of its last cycle. */

static bool is_fp(enum insn_class cls)
{
    return cls >= CLASS_FADD && cls <= CLASS_FMISC;
}

static u32 fpu_latency(const nicemu_timing *m, enum insn_class cls)
{
    return cls == CLASS_FDIV || cls == CLASS_FSQRT ? m->fdiv_latency : m->fp_latency;
}

/* From when on the FPU lets the instruction execute. */
static u32 fpu_ready(const struct course *w, enum insn_class cls, u32 rd)
{
    const struct score *s = &w->score;
    if (cls == CLASS_CSR)
        return s->fpu_quiet;
    if (is_fp(cls))
        return s->fpu_quiet && (s->fpu_alone || fpu_latency(w->timing, cls) > 1) ? s->fpu_quiet - 1
                                                                                 : 0;
    if (rd != NO_REGISTER && rd == s->fpu_rd && w->now < s->fpu_quiet) /* it may not be overtaken */
        return rd < 32 ? s->f[rd] : s->x[rd - 32];
    return 0;
}

static void fpu_issue(struct course *w, enum insn_class cls, u32 rd, u32 at)
{
    struct score *s = &w->score;
    u32 latency = fpu_latency(w->timing, cls);
    if (latency == 0)
        return;
    s->fpu_rd = rd;
    s->fpu_quiet = at + latency + 2;
    s->fpu_alone = latency > 1;
    s->fpu_write = latency > 1 ? at + latency + 1 : 0;
}

static void fpu_defer(struct score *s, u32 cycles)
{
    s->fpu_write += cycles;
    s->fpu_quiet += cycles;
    if (s->fpu_rd < 32)
        s->f[s->fpu_rd] += cycles;
    else
        s->x[s->fpu_rd - 32] += cycles;
}

/* An instruction executes from `at` on for `busy` cycles: how much longer it takes because the
 * FPU's result has the port.  It wins over results of the ALU, except that it waits for the end of
 * a multi-cycle multiplication, and while memory answers. */
static u32 port_wait(struct score *s, u32 at, u32 busy, bool writes)
{
    if (!s->fpu_write || s->fpu_write > at + busy)
        return 0;
    u32 written = s->fpu_write - 1;
    if (written < at || !writes) {
        s->fpu_write = 0;
        return 0;
    }
    if (busy > 1)
        fpu_defer(s, at + busy - written);
    else if (s->memory == s->fpu_write)
        fpu_defer(s, 1);
    else {
        s->fpu_write = 0;
        return 1;
    }
    return 0;
}

/* ---- vector instructions ----------------------------------------------------------------- */

/* Words go through a unit one after the other and can be used, by an instruction of another unit
 * or the same, `latency` after they were read: chaining. */

/* An instruction on its way through a unit. */
struct passage {
    u32 start;
    u32 cycles; /* in which its words enter */
    u32 rate; /* cycles a word */
    u32 latency;
};

/* A register group as the unit sees it: when each of its registers enters. */
struct slice {
    u32 reg, from, to; /* first and last cycle, from the start on */
};
static u32 registers(const struct course *w, u32 bytes)
{
    return bytes > w->vlenb ? (bytes + w->vlenb - 1) / w->vlenb : 1;
}
static struct slice slice(const struct passage *p, u32 base, u32 n, u32 i)
{
    return (struct slice){(base + i) % 32, p->cycles * i / n,
                          (p->cycles * (i + 1) + n - 1) / n - 1};
}

/* The passage begins no earlier than a use of the group, `lag` cycles after that, allows. */
static void wait_for(const struct course *w, struct passage *p, u32 base, u32 bytes, u32 lag,
                     bool chained)
{
    u32 n = registers(w, bytes);
    for (u32 i = 0; i < n; i++) {
        struct slice r = slice(p, base, n, i);
        u32 first = w->score.first[r.reg], last = w->score.last[r.reg];
        u32 from = lag + (chained ? r.from : 0), to = lag + (chained ? r.to : 0);
        p->start = later(p->start, first > from ? first - from : 0);
        p->start = later(p->start, last > to ? last - to : 0);
    }
}

/* It writes no register before that has been read. */
static void wait_for_readers(const struct course *w, struct passage *p, u32 base, u32 bytes)
{
    u32 n = registers(w, bytes);
    for (u32 i = 0; i < n; i++) {
        struct slice r = slice(p, base, n, i);
        u32 read = w->score.read[r.reg];
        p->start = later(p->start, read > r.to + p->latency ? read - r.to - p->latency : 0);
    }
}

static void note_read(struct course *w, const struct passage *p, u32 base, u32 bytes)
{
    u32 n = registers(w, bytes);
    for (u32 i = 0; i < n; i++) {
        struct slice r = slice(p, base, n, i);
        w->score.read[r.reg] = later(w->score.read[r.reg], p->start + r.to);
    }
}

static void note_write(struct course *w, const struct passage *p, u32 base, u32 bytes, bool chained)
{
    u32 n = registers(w, bytes), end = p->start + p->cycles - 1 + p->latency;
    for (u32 i = 0; i < n; i++) {
        struct slice r = slice(p, base, n, i);
        w->score.first[r.reg] = chained ? p->start + r.from + p->rate - 1 + p->latency : end;
        w->score.last[r.reg] = chained ? p->start + r.to + p->latency : end;
    }
}

/* Bytes of the operands; the unit works through those of the widest. */
struct extent {
    u32 vd, vs1, vs2, most;
};

static struct extent alike(u32 bytes)
{
    return (struct extent){bytes, bytes, bytes, bytes};
}

static u32 fields_of(const struct insn_row *row)
{
    return 1 + (row->arg >> 4);
}

bool unit_stride(const struct insn_row *row)
{
    return row->format == FORMAT_VLN || row->format == FORMAT_VSN ||
           ((row->format == FORMAT_VL || row->format == FORMAT_VS) && fields_of(row) == 1);
}

static struct extent extent_of_access(const struct course *w, const struct insn_row *row)
{
    bool indexed = row->fn == x_vlx || row->fn == x_vsx;
    u32 elements = w->conf.vl, data;
    if (row->fn == x_vlr || row->fn == x_vsr)
        data = (row->arg >> 4) * w->vlenb;
    else if (row->fn == x_vlm_v || row->fn == x_vsm_v)
        data = (elements + 7) / 8;
    else if (indexed)
        data = (elements << w->conf.vt->sew) * fields_of(row);
    else
        data = (elements << (row->arg & 15)) * fields_of(row);
    return (struct extent){data, data, indexed ? elements << (row->arg & 15) : data, data};
}

/* The manual's names tell that the result is a mask (vms, vmf, vmadc) or of twice SEW (vw, vfw),
 * and that vs2 is of twice SEW (the last part begins with w). */
static struct extent extent_of(const struct course *w, const struct insn_row *row)
{
    u32 narrow = w->conf.vl << w->conf.vt->sew, mask = (w->conf.vl + 7) / 8;
    if (row->cls == CLASS_VLOAD || row->cls == CLASS_VSTORE)
        return extent_of_access(w, row);
    if (row->fn == x_vmvr)
        return alike(row->arg * w->vlenb);
    if (row->cls == CLASS_VMASK && row->fn != x_viota_m && row->format != FORMAT_VD)
        return alike(mask);
    if (row->format == FORMAT_XVN || row->format == FORMAT_FVN || row->fn == x_vmv_s_x ||
        row->fn == x_vfmv_s_f)
        return alike(1);
    if (row->cls == CLASS_VRED || row->cls == CLASS_VFRED)
        return (struct extent){1, 1, narrow, narrow};
    if (!strncmp(row->name, "vms", 3) || !strncmp(row->name, "vmf", 3) ||
        !strncmp(row->name, "vmadc", 5))
        return (struct extent){mask, narrow, narrow, narrow};
    bool wide_vd = !strncmp(row->name, "vw", 2) || !strncmp(row->name, "vfw", 3);
    bool wide_vs2 = strstr(row->name, "_w");
    struct extent e = {narrow << wide_vd, narrow, narrow << wide_vs2, 0};
    e.most = later(e.vd, e.vs2);
    return e;
}

/* Halvings that bring the partial sums of a pipeline to one. */
static u32 merges(u32 words, u32 latency)
{
    u32 sums = words < latency ? words : latency, n = 0;
    while (1u << n < sums)
        n++;
    return n;
}

enum unit { UNIT_LOAD, UNIT_STORE, UNIT_FP, UNIT_INT, UNIT_SLIDE };

/* The unit of a class of instructions, and how its words pass through it. */
static enum unit unit_of(const struct course *w, const struct insn_row *row, u32 bytes,
                         struct passage *p)
{
    const nicemu_timing *m = w->timing;
    u32 word = m->word / 8, words = (bytes + word - 1) / word;
    enum unit unit = UNIT_INT;
    p->rate = 1;
    switch ((enum insn_class)row->cls) {
    case CLASS_VLOAD:
    case CLASS_VSTORE:
        unit = row->cls == CLASS_VLOAD ? UNIT_LOAD : UNIT_STORE;
        p->latency = unit == UNIT_LOAD ? m->load_latency + m->memory_latency : m->store_store + 1;
        if (!unit_stride(row))
            words = (w->conf.vl * fields_of(row) + m->strided - 1) / m->strided;
        break;
    case CLASS_VFADD:
    case CLASS_VFMUL:
    case CLASS_VFMA:
    case CLASS_VFCVT:
        unit = UNIT_FP;
        p->latency = m->vfp_latency;
        break;
    case CLASS_VFMISC:
        unit = UNIT_FP;
        p->latency = m->vfmisc_latency;
        break;
    case CLASS_VFDIV:
    case CLASS_VFSQRT:
        unit = UNIT_FP;
        p->latency = m->vfp_latency;
        p->rate = m->vfdiv;
        break;
    case CLASS_VFRED:
        unit = UNIT_FP;
        p->latency = 0;
        words += m->fp_reduction + m->fp_merge * merges(words, m->vfp_latency);
        break;
    case CLASS_VPERM:
        unit = UNIT_SLIDE;
        p->latency = m->slide_latency;
        break;
    case CLASS_VRED:
        p->latency = 0;
        words = words * m->vint + m->int_reduction;
        break;
    case CLASS_VDIV:
        p->latency = m->vint_latency;
        p->rate = m->vdiv;
        break;
    default:
        p->latency = m->vint_latency;
        p->rate = m->vint;
        break;
    }
    p->cycles = words * p->rate;
    return unit;
}

/* From when on the unit itself lets the passage begin, and what the passage does to that. */
static u32 *unit_ready(struct score *s, enum unit unit)
{
    u32 *const ready[] = {&s->load, &s->store, &s->fp, &s->integer, &s->slide};
    return ready[unit];
}
static void occupy(struct course *w, enum unit unit, const struct passage *p)
{
    const nicemu_timing *m = w->timing;
    struct score *s = &w->score;
    u32 end = p->start + p->cycles;
    switch (unit) {
    case UNIT_LOAD: /* loads and stores share one unit */
        s->load = end + m->load_load;
        s->store = end + m->load_store + m->memory_latency;
        break;
    case UNIT_STORE:
        s->load = end + m->store_load;
        s->store = end + m->store_store;
        break;
    case UNIT_FP: /* integer and FP lanes share operands and results: the other drains first */
        s->fp = end;
        s->integer = end + p->latency;
        break;
    case UNIT_INT:
        s->integer = end;
        s->fp = end + p->latency;
        break;
    case UNIT_SLIDE:
        s->slide = end + m->slide;
        break;
    }
}

/* The core hands over the instruction at `at`. */
static void vector(struct course *w, const struct op *o, u32 at)
{
    const struct insn_row *row = &insn_rows[o->id];
    struct score *s = &w->score;
    u32 role = roles[row->format], last = w->timing->in_flight - 1;
    struct extent e = extent_of(w, row);
    struct passage p;
    enum unit unit = unit_of(w, row, e.most, &p);
    s->accept = p.start = later(at, s->retire[0]);
    if (!p.cycles)
        return;
    p.start = later(p.start, *unit_ready(s, unit));
    bool reduction = row->cls == CLASS_VRED || row->cls == CLASS_VFRED;
    bool spread = (unit == UNIT_LOAD || unit == UNIT_STORE) && !unit_stride(row);
    bool chained = !reduction && !spread;
    if (role & V1)
        wait_for(w, &p, o->rs1, e.vs1, 0, chained);
    if (role & V2)
        wait_for(w, &p, o->rs2, e.vs2, 0, chained);
    if (role & (V3 | TO_V))
        /* a load's words wait for their register when they arrive, others' operands at once */
        wait_for(w, &p, o->rd, e.vd, unit == UNIT_LOAD ? p.latency : 0, chained);
    if (!o->vm)
        wait_for(w, &p, 0, 1, 0, chained);
    if (role & TO_V)
        wait_for_readers(w, &p, o->rd, e.vd);
    if (unit == UNIT_LOAD || unit == UNIT_STORE)
        w->asked = (struct asked){p.start, e.vd, false};
    if (role & V1)
        note_read(w, &p, o->rs1, e.vs1);
    if (role & V2)
        note_read(w, &p, o->rs2, e.vs2);
    if (role & V3)
        note_read(w, &p, o->rd, e.vd);
    /* a wide operand enters or leaves by halves, which nothing is chained to */
    if (role & TO_V)
        note_write(w, &p, o->rd, e.vd, chained && e.vd == e.vs2 && e.vd == e.vs1);
    occupy(w, unit, &p);
    u32 done = p.start + p.cycles + p.latency + (unit != UNIT_FP);
    memmove(s->retire, s->retire + 1, last * sizeof s->retire[0]);
    s->retire[last] = last ? later(done, s->retire[last - 1]) : done;
    if (role & TO_X)
        write_x(w, o->rd, done + 1);
    if (role & TO_F)
        s->f[o->rd] = done + 1;
}

/* ---- one instruction --------------------------------------------------------------------- */

/* CSRs whose access flushes the pipeline: counters and those that change what the next instructions
 * mean (csr_status in the decoder of CV32E40P). */
static bool flushes(const struct op *o, bool writes)
{
    u32 number = (u32)o->imm;
    switch (number) {
    case 0x002: /* frm */
    case 0x003: /* fcsr */
        return writes;
    case 0x300: /* mstatus */
    case 0x305: /* mtvec */
    case 0x306: /* mcounteren */
    case 0x341: /* mepc */
    case 0x342: /* mcause */
        return true;
    default: /* mcountinhibit, mhpmevent3..31; mcycle...; cycle... */
        return (number & ~31u) == 0x320 || (number & ~31u) == 0xb00 || (number & ~31u) == 0xc00;
    }
}

static bool csr_writes(const struct op *o)
{
    return o->id == I_csrrw || o->id == I_csrrwi || o->rs1 != 0;
}

/* Cycles in which nothing follows it into the stage, beyond the first; *term says what for. */
static u32 busy_cycles(const nicemu_timing *m, const struct op *o, enum term *term)
{
    *term = TERM_EXECUTE;
    switch ((enum insn_class)insn_rows[o->id].cls) {
    case CLASS_MULH:
        return m->mulh;
    case CLASS_DIV:
        return m->div;
    case CLASS_CSR:
        return flushes(o, csr_writes(o)) ? m->csr : 0;
    case CLASS_FENCE: /* a jump to what follows it, when all before it is done */
    case CLASS_SYSTEM:
        return m->fence;
    case CLASS_JUMP:
        *term = TERM_BRANCH;
        return m->jump;
    default:
        return 0;
    }
}

static void spend(struct course *w, enum term term, u32 cycles)
{
    w->now += cycles;
    w->terms[term] += cycles;
}

/* After a vset instruction.  One that keeps vl may come behind another one that sets it. */
static void configure(struct course *w, const struct op *o)
{
    w->conf.vt = o->id == I_vsetvl ? w->next.vt : vtype_set(w->vtypes, o);
    if (!keeps_vl(o))
        w->conf.vl = w->next.vl;
    else if (w->conf.vl > w->conf.vt->vlmax)
        w->conf.vl = (u32)w->conf.vt->vlmax;
}

void cost_fetch(struct course *w, u32 lines)
{
    spend(w, TERM_FETCH, lines * w->timing->miss);
}

void cost_op(struct course *w, const struct op *o, u32 extra)
{
    const nicemu_timing *m = w->timing;
    const struct insn_row *row = &insn_rows[o->id];
    struct score *s = &w->score;
    enum insn_class cls = row->cls;
    u32 role = roles[row->format];
    u32 rd = role & TO_X ? 32u + o->rd : role & TO_F ? o->rd : NO_REGISTER;
    bool handed_over = cls > CLASS_VSET;
    bool memory = cls == CLASS_LOAD || cls == CLASS_STORE || cls == CLASS_AMO;

    u32 ready = later(operands_ready(s, o, role, cls == CLASS_JUMP), fpu_ready(w, cls, rd));
    spend(w, TERM_HAZARD, later(ready, w->now) - w->now);
    if (handed_over)
        spend(w, TERM_VECTOR, later(s->accept, w->now) - w->now);
    /* a division is longer in the stage than the result could be in its way */
    bool by_port = role & TO_X && !memory && !is_fp(cls) && cls < CLASS_VSET && cls != CLASS_DIV;
    u32 multiply = cls == CLASS_MULH ? m->mulh : 0;
    spend(w, TERM_HAZARD, port_wait(s, w->now, 1 + multiply, by_port));
    w->now += extra;

    u32 at = w->now;
    enum term term;
    spend(w, TERM_ISSUE, 1);
    u32 busy = busy_cycles(m, o, &term);
    spend(w, term, busy);
    if (memory)
        w->asked = (struct asked){at, row->arg, true};
    if (memory && s->fpu_write)
        s->memory = at + 2;
    if (handed_over) {
        vector(w, o, at);
        if (row->fn == x_vlff)
            w->conf.vl = w->next.vl;
        return;
    }
    if (cls == CLASS_VSET)
        configure(w, o);
    u32 done = at + 1 + (cls == CLASS_LOAD || cls == CLASS_AMO ? m->load_use : multiply);
    if (is_fp(cls)) {
        done += fpu_latency(m, cls);
        fpu_issue(w, cls, rd, at);
    }
    if (role & TO_X)
        write_x(w, o->rd, done);
    if (role & TO_F)
        s->f[o->rd] = done;
}

/* ---- the course ------------------------------------------------------------------------------ */

void cost_begin(struct course *w, const nicemu_timing *timing, u32 vlenb, const struct score *score)
{
    memset(w, 0, sizeof *w);
    w->timing = timing;
    w->vlenb = vlenb;
    w->score = *score;
}

void cost_transfer(struct course *w, bool branch, bool misaligned)
{
    spend(w, TERM_BRANCH, branch ? w->timing->taken_branch : 0);
    spend(w, TERM_BRANCH, misaligned ? w->timing->misaligned_target : 0);
}

void cost_drain(struct course *w)
{
    u32 done = 0;
    for (u32 i = 0; i < w->timing->in_flight; i++)
        done = later(done, w->score.retire[i]);
    if (done)
        spend(w, TERM_VECTOR, later(done + 1, w->now) - w->now);
}

/* `cycles` pass. */
static void score_age(struct score *s, u32 cycles)
{
    u32 *times = (u32 *)s;
    for (u32 i = 0; i < offsetof(struct score, fpu_rd) / sizeof *times; i++)
        times[i] = times[i] > cycles ? times[i] - cycles : 0;
    if (!s->fpu_quiet) {
        s->fpu_rd = NO_REGISTER;
        s->fpu_alone = 0;
    }
    if (!s->fpu_write)
        s->memory = 0;
}

void cost_end(struct course *w)
{
    score_age(&w->score, w->now);
}
