/* log.c: see log.h.  The order within a line is Spike's: registers by number, at one number x, f, v
 * and CSR; then what was loaded, then what was stored. */
#include "log.h"

#include "cores.h"
#include "decode.h"
#include "exec_v.h"
#include "fp_env.h"

/* ---- what an instruction writes --------------------------------------------------------- */

static const char *pattern_of(const struct op *o)
{
    return format_patterns[insn_rows[o->id].format];
}
static bool writes_x(const struct op *o)
{
    enum format f = insn_rows[o->id].format;
    return o->rd != 32 &&
           (!strncmp(pattern_of(o), "rd", 2) || f == FORMAT_CI16 || f == FORMAT_CJALR);
}
static bool writes_f(const struct op *o)
{
    return !strncmp(pattern_of(o), "frd", 3);
}
static bool is_vector_memory(const struct op *o)
{
    enum insn_class cls = insn_rows[o->id].cls;
    return cls == CLASS_VLOAD || cls == CLASS_VSTORE;
}

/* What vd is: elements of SEW or of twice SEW, bits, or element 0 alone. */
enum dest { SAME, WIDE, BITS, ONE };

/* By family of vloops.def. */
enum {
    DEST_INT = SAME,
    DEST_CMP = BITS,
    DEST_SAT = SAME,
    DEST_SAT_N = SAME,
    DEST_RED = ONE,
    DEST_RED_W = ONE,
    DEST_WIDE = WIDE,
    DEST_WIDE_A = WIDE,
    DEST_NARROW = SAME,
    DEST_EXTEND2 = SAME,
    DEST_EXTEND4 = SAME,
    DEST_EXTEND8 = SAME,
    DEST_FBITS = SAME,
    DEST_FSELECT = SAME,
    DEST_FCMP = BITS,
    DEST_ESTIMATE = SAME,
    DEST_FRED = ONE,
    DEST_FRED_W = ONE,
    DEST_FP1 = SAME,
    DEST_FP2 = SAME,
    DEST_FP3 = SAME,
    DEST_FP1_W = WIDE,
    DEST_FP2_W = WIDE,
    DEST_FP3_W = WIDE,
    DEST_FP2_WA = WIDE,
    DEST_FP1_N = SAME,
    DEST_FP_ROUND_N = SAME,
    DEST_BF1_W = WIDE,
    DEST_BF3_W = WIDE,
    DEST_BF1_N = SAME,
    DEST_INT_TO_FP = SAME,
    DEST_INT_TO_FP_W = WIDE,
    DEST_INT_TO_FP_N = SAME,
    DEST_FP_TO_INT = SAME,
    DEST_FP_TO_INT_W = WIDE,
    DEST_FP_TO_INT_N = SAME
};
#define LOOP(family, name, ...) DEST_##family,
static const u8 loop_dests[L_COUNT] = {
#include "vloops.def"
};
#undef LOOP

static enum dest dest_of(const struct op *o)
{
    const struct insn_row *row = &insn_rows[o->id];
    switch (o->id) {
    case I_vmv_s_x:
    case I_vfmv_s_f:
        return ONE;
    case I_viota_m:
        return SAME;
    }
    if (row->cls == CLASS_VPERM || row->cls == CLASS_VMOVE) /* their arg is no loop */
        return SAME;
    if (row->cls == CLASS_VMASK && o->id != I_vid_v)
        return BITS;
    return loop_dests[row->arg];
}

/* Is v0 an operand, and no mask? */
static bool is_unmasked(const struct op *o)
{
    switch ((enum format)insn_rows[o->id].format) {
    case FORMAT_VVM:
    case FORMAT_VXM:
    case FORMAT_VIM:
    case FORMAT_VFM:
        return true;
    default:
        return o->vm;
    }
}
static bool is_active(const struct hart *h, bool unmasked, u64 i)
{
    return unmasked || (h->v[i / 8] >> i % 8 & 1);
}

static u64 set_bits(const struct hart *h, u32 r, u64 n)
{
    u64 count = 0;
    for (u64 i = 0; i < n; i++)
        count += VREG(r)[i / 8] >> i % 8 & 1;
    return count;
}

/* The vector registers that a computation writes, as bits. */
static u32 computed(const struct hart *h, const struct op *o)
{
    const struct insn_row *row = &insn_rows[o->id];
    if (row->cls <= CLASS_VSET || strncmp(pattern_of(o), "vd", 2))
        return 0;
    u64 from = h->vstart, to = h->vl;
    bool unmasked = is_unmasked(o);
    u32 size = 3u + h->vt.sew; /* log2 of bits */
    if (row->format == FORMAT_V2N) { /* vmv<n>r.v; Spike does nothing where it changes nothing */
        unmasked = true;
        to = o->rd == o->rs2 ? 0 : (u64)row->arg * h->vlenb * 8 >> size;
    } else {
        enum dest dest = dest_of(o);
        size = dest == WIDE ? size + 1 : dest == BITS ? 0 : size;
        to = dest == ONE && to ? 1 : to;
        unmasked |= dest == ONE;
    }
    if (o->id == I_vcompress_vm)
        to = set_bits(h, o->rs1, to);
    if (o->id == I_vslideup_vx && h->x[o->rs1] > from)
        from = h->x[o->rs1];
    if (o->id == I_vslideup_vi && (u64)o->imm > from)
        from = (u64)o->imm;
    /* Of widening integer instructions Spike also names the registers where the same elements would
     * be if they had SEW; masked, those may be others. */
    bool both = row->cls < CLASS_VFADD && dest_of(o) == WIDE;
    u32 written = 0;
    for (u64 i = from; i < to; i++) {
        if (!is_active(h, unmasked, i))
            continue;
        written |= 1u << ((o->rd + (i << size >> 3) / h->vlenb) & 31);
        if (both)
            written |= 1u << ((o->rd + (i << (size - 1) >> 3) / h->vlenb) & 31);
    }
    return written;
}

/* ---- memory ----------------------------------------------------------------------------- */

static void add(struct log_entry *e, u64 addr, u32 size, bool store, u64 value, u32 v)
{
    e->accesses[e->n++] = (struct log_access){addr, value, (u8)size, (u8)v, store};
}

static void add_scalar(const struct hart *h, const struct op *o, struct log_entry *e)
{
    const struct insn_row *row = &insn_rows[o->id];
    u64 addr = h->x[o->rs1] + (u64)o->imm;
    bool f = pattern_of(o)[0] == 'f';
    if (row->cls != CLASS_STORE)
        add(e, addr, row->arg, false, 0, 0);
    if (row->cls != CLASS_LOAD && row->format != FORMAT_LR)
        add(e, addr, row->arg, true, f ? h->f[o->rs2] : h->x[o->rs2], 0);
}

/* The elements of a vector load or store; none where the registers would be illegal. */
static void add_vector(const struct hart *h, const struct op *o, struct log_entry *e)
{
    const struct insn_row *row = &insn_rows[o->id];
    bool store = row->cls == CLASS_VSTORE, unmasked = o->vm;
    bool strided = row->format == FORMAT_VLS || row->format == FORMAT_VSS;
    bool indexed = row->format == FORMAT_VLX || row->format == FORMAT_VSX;
    bool plain = row->format == FORMAT_VLN || row->format == FORMAT_VSN; /* masks, registers */
    u32 eew = row->arg & 15, fields = 1 + (row->arg >> 4), spread, registers;
    u64 n = h->vl;
    if (plain) {
        unmasked = true;
        registers = spread = row->arg >> 4 ? row->arg >> 4 : 1;
        fields = 1;
        n = row->arg >> 4 ? (u64)registers * h->vlenb >> eew : (n + 7) / 8;
    } else {
        int k = indexed ? 0 : (int)eew - h->vt.sew;
        spread = vec_align(h, k) + 1;
        registers = fields * spread;
    }
    if (registers > 8 || o->rd + registers > 32 || (h->vt.ill && !plain) ||
        (indexed && vec_misaligned(h, o->rs2, (int)eew - h->vt.sew)))
        return;
    u32 lg = indexed ? h->vt.sew : eew, size = 1u << lg;
    u64 stride = strided ? h->x[o->rs2] : (u64)size * fields;
    for (u64 i = h->vstart; i < n; i++) {
        u64 at = i * stride;
        if (!is_active(h, unmasked, i))
            continue;
        if (indexed) {
            at = 0;
            memcpy(&at, VREG(o->rs2) + (i << eew), 1u << eew);
        }
        for (u32 f = 0; f < fields; f++) {
            u32 v = o->rd + f * spread;
            u64 value = 0;
            memcpy(&value, VREG(v) + (i << lg), size);
            add(e, h->x[o->rs1] + at + f * size, size, store, value,
                v + (u32)((i << lg) / h->vlenb));
        }
    }
}

/* ---- text ------------------------------------------------------------------------------- */

static void put(struct log *t, const char *s)
{
    size_t n = strlen(s);
    memcpy(t->text + t->used, s, n);
    t->used += n;
}

static void put_digits(struct log *t, u64 v, u32 bytes)
{
    for (int shift = (int)bytes * 8 - 4; shift >= 0; shift -= 4)
        t->text[t->used++] = "0123456789abcdef"[v >> shift & 15];
}
static void put_hex(struct log *t, u64 v, u32 bytes)
{
    put(t, "0x");
    put_digits(t, v, bytes);
}

/* Right-aligned in `width`; left-aligned when that is negative. */
static void put_decimal(struct log *t, u64 v, int width)
{
    char digits[24];
    int n = 0;
    do
        digits[n++] = (char)('0' + v % 10);
    while (v /= 10);
    for (int i = n; i < width; i++)
        put(t, " ");
    for (int i = n; i > 0; i--)
        t->text[t->used++] = digits[i - 1];
    for (int i = n; i < -width; i++)
        put(t, " ");
}

static void put_vtype(struct log *t, const struct hart *h)
{
    put(t, " e");
    put_decimal(t, 8u << h->vt.sew, 0);
    put(t, h->vt.lmul < 0 ? " mf" : " m");
    put_decimal(t, 1u << (h->vt.lmul < 0 ? -h->vt.lmul : h->vt.lmul), 0);
    put(t, " l");
    put_decimal(t, h->vl, 0);
}

/* ---- a line ----------------------------------------------------------------------------- */

enum kind { KIND_X, KIND_F, KIND_V, KIND_VTYPE, KIND_CSR };

/* What is written, in the order of (number, kind). */
struct written {
    u32 n;
    u32 key[48];
};
static void note(struct written *w, u32 number, enum kind kind)
{
    u32 key = number << 4 | kind, i = w->n++;
    for (; i && w->key[i - 1] > key; i--)
        w->key[i] = w->key[i - 1];
    w->key[i] = key;
}

enum { FFLAGS = 1, FRM = 2, FCSR = 3, VSTART = 8, VXSAT = 9, VXRM = 10, VCSR = 15 };
enum { VL = 0xc20, VTYPE = 0xc21, MSTATUS = 0x300 };

static void note_csr_write(struct written *w, const struct op *o)
{
    u32 number = (u32)o->imm;
    bool write = o->id == I_csrrw || o->id == I_csrrwi || o->rs1;
    if (!write || csr_is_zero(number))
        return;
    if (number == FCSR) {
        note(w, FFLAGS, KIND_CSR);
        note(w, FRM, KIND_CSR);
    } else if (number == VCSR) {
        note(w, VXSAT, KIND_CSR);
        note(w, VXRM, KIND_CSR);
    } else {
        note(w, number, KIND_CSR);
    }
}

static void note_registers(const struct hart *h, const struct log_entry *e, u32 done,
                           struct written *w)
{
    const struct op *o = e->op;
    u32 v = e->v;
    bool vector = insn_rows[o->id].cls >= CLASS_VSET;
    if (insn_rows[o->id].cls == CLASS_VLOAD)
        for (u32 i = 0; i < done; i++)
            v |= 1u << e->accesses[i].v;
    if (h->traps == e->traps && writes_x(o))
        note(w, o->rd, KIND_X);
    if (h->traps == e->traps && writes_f(o))
        note(w, o->rd, KIND_F);
    for (u32 r = 0; r < 32; r++)
        if (v >> r & 1)
            note(w, r, KIND_V);
    if (vector) {
        note(w, VSTART, KIND_CSR);
        if (insn_rows[o->id].cls != CLASS_VSET)
            note(w, 0, KIND_VTYPE);
    }
}

static void note_csrs(struct hart *h, const struct log_entry *e, struct written *w)
{
    const struct op *o = e->op;
    enum insn_class cls = insn_rows[o->id].cls;
    if (cls == CLASS_CSR)
        note_csr_write(w, o);
    else if (o->needs & NEED_F && h->fflags)
        note(w, FFLAGS, KIND_CSR);
    if (cls != CLASS_CSR && o->needs & NEED_V && h->vxsat)
        note(w, VXSAT, KIND_CSR);
    if (cls == CLASS_VSET) {
        if (csr_read(h, VTYPE, 0) != e->vtype)
            note(w, VTYPE, KIND_CSR);
        if (o->rd != 32 || o->rs1 || o->id == I_vsetivli || h->vt.ill)
            note(w, VL, KIND_CSR);
    }
    if (cls == CLASS_VLOAD && h->vl != e->vl) /* fault-only-first */
        note(w, VL, KIND_CSR);
    bool changed = h->mstatus != e->mstatus && h->traps == e->traps;
    bool own = cls == CLASS_CSR && (u32)o->imm == MSTATUS;
    if ((changed && !own) || o->id == I_mret)
        note(w, MSTATUS, KIND_CSR);
}

static void put_written(struct log *t, struct hart *h, const struct written *w)
{
    u32 flen = h->isa->extensions >> EXT_D & 1 ? 8 : 4;
    bool vector = false;
    for (u32 i = 0; i < w->n; i++) {
        u32 number = w->key[i] >> 4;
        enum kind kind = w->key[i] & 15;
        if ((kind == KIND_V || kind == KIND_VTYPE) && !vector) {
            put_vtype(t, h);
            vector = true;
        }
        if (kind == KIND_VTYPE)
            continue;
        put(t, (const char *[]){" x", " f", " v", "", " c"}[kind]);
        put_decimal(t, number, kind == KIND_CSR ? 0 : -2);
        put(t, kind == KIND_CSR ? "_" : " ");
        if (kind == KIND_CSR) {
            put(t, csr_name(number));
            put(t, " ");
            put_hex(t, csr_read(h, number, hart_instret(h)), 8);
        } else if (kind == KIND_V) {
            put(t, "0x");
            for (u32 at = h->vlenb; at > 0; at -= 8) {
                u64 v;
                memcpy(&v, VREG(number) + at - 8, 8);
                put_digits(t, v, 8);
            }
        } else {
            put_hex(t, kind == KIND_X ? h->x[number] : h->f[number], kind == KIND_X ? 8 : flen);
        }
    }
}

void log_begin(struct hart *h, const struct op *o, struct log_entry *e)
{
    u64 bad;
    e->op = o;
    e->pc = h->pc;
    e->word = 0;
    hart_fetch(h, h->pc, &e->word, &bad);
    e->mstatus = h->mstatus;
    e->vtype = csr_read(h, VTYPE, 0);
    e->vl = h->vl;
    e->elements = h->elements;
    e->traps = h->traps;
    e->mode = h->mode;
    e->n = 0;
    e->v = 0;
    if (o->id >= INSN_COUNT) /* it traps */
        return;
    switch ((enum insn_class)insn_rows[o->id].cls) {
    case CLASS_LOAD:
    case CLASS_STORE:
    case CLASS_AMO:
        add_scalar(h, o, e);
        break;
    case CLASS_VLOAD:
    case CLASS_VSTORE:
        add_vector(h, o, e);
        break;
    default:
        e->v = computed(h, o);
    }
    if (insn_rows[o->id].cls == CLASS_CSR)
        return;
    fp_env_collect(h);
    e->fflags = (u8)h->fflags;
    e->vxsat = h->vxsat;
    h->fflags = h->vxsat = 0;
}

void log_end(struct hart *h, const struct log_entry *e)
{
    const struct op *o = e->op;
    struct log *t = &h->cores->log;
    struct written w = {0};
    bool trapped = h->traps != e->traps;
    if (o->id >= INSN_COUNT)
        return;
    enum insn_class cls = insn_rows[o->id].cls;
    u32 done = is_vector_memory(o) ? (u32)(h->elements - e->elements) : e->n;
    bool begun = is_vector_memory(o) && h->trap.cause != CAUSE_ILLEGAL;
    bool shown = !trapped || begun; /* a fault in the middle: what was done before it */
    if (shown)
        note_registers(h, e, done, &w);
    if (cls != CLASS_CSR) {
        fp_env_collect(h);
        if (shown)
            note_csrs(h, e, &w);
        h->fflags |= e->fflags;
        h->vxsat |= e->vxsat;
    } else if (shown) {
        note_csrs(h, e, &w);
    }
    if (!shown)
        return;
    put(t, "core");
    put_decimal(t, h->id, 4);
    put(t, ": ");
    put_decimal(t, e->mode, 0);
    put(t, " ");
    put_hex(t, e->pc, 8);
    put(t, " (");
    put_hex(t, e->word, o->len);
    put(t, ")");
    put_written(t, h, &w);
    for (u32 i = 0; i < done; i++) {
        const struct log_access *a = &e->accesses[i];
        if ((o->id == I_sc_w || o->id == I_sc_d) && (!a->store || h->x[o->rd]))
            continue; /* a store that may not happen, and no load */
        put(t, " mem ");
        put_hex(t, a->addr, 8);
        if (!a->store)
            continue;
        u64 value = a->value, bad;
        if (cls == CLASS_AMO)
            memcpy(&value, map_bytes(&h->map, a->addr, a->size, 0, &bad), a->size);
        put(t, " ");
        put_hex(t, value, a->size);
    }
    put(t, "\n");
}

/* ---- where the text goes ---------------------------------------------------------------- */

int nicemu_log(nicemu_cores *cores, char *text, size_t size)
{
    if (text && size < NICEMU_LOG_LINE)
        return NICEMU_EINVAL;
    cores->log = (struct log){text, size, 0};
    return NICEMU_OK;
}

size_t nicemu_log_take(nicemu_cores *cores)
{
    size_t used = cores->log.used;
    cores->log.used = 0;
    return used;
}
