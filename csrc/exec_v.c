/* exec_v.c: vector configuration, and the shapes of vector computation: what is legal, where the
 * operands are, which elements are active.  What is done to an element is in vloops.def; loads and
 * stores are in exec_vmem.c.
 *
 * Masked-off and tail elements stay undisturbed.  A computation that does not cover every element
 * below vl goes through vtmp: computed for all, with numbers in the inactive elements that raise no
 * flag, and the active ones copied. */
#include "exec_v.h"

#include "decode.h"

/* ---- configuration ------------------------------------------------------------------------ */

/* See vec_align. */
static u8 align_of(int lmul, int sew, int k)
{
    if (sew + k < 0 || sew + k > 3 || lmul + k < -3 || lmul + k > 3)
        return ILLEGAL_OPERAND;
    return lmul + k > 0 ? (u8)((1 << (lmul + k)) - 1) : 0;
}

static struct vtype vtype_of(u32 vtype, u32 vlenb)
{
    int lmul = (int)sign_extend(vtype, 3), sew = vtype >> 3 & 7;
    struct vtype t = {.ill = lmul == -4 || sew > 3 || lmul < sew - 3, .key = KEY_ILL};
    t.code = (u8)vtype;
    if (t.ill) { /* reserved, or SEW > LMUL * ELEN */
        memset(t.align, ILLEGAL_OPERAND, sizeof t.align);
        return t;
    }
    t.vlmax = (u64)vlenb << (lmul + 3) >> (sew + 3);
    t.sew = (u8)sew;
    t.lmul = (i8)lmul;
    t.key = (u8)(1 + (vtype & 63));
    for (int k = -3; k <= 3; k++)
        t.align[3 + k] = align_of(lmul, sew, k);
    return t;
}

void vtype_table(struct vtype table[256], u32 vlenb)
{
    for (u32 vtype = 0; vtype < 256; vtype++)
        table[vtype] = vtype_of(vtype, vlenb);
}

/* rd = vl = min(avl, VLMAX) under a new vtype */
static inline int configure(struct hart *h, const struct op *o, u64 avl, u64 vtype)
{
    u64 code = likely(vtype < 256) ? vtype : VTYPE_ILL;
    if (code != h->vt.code) /* loops ask for the same again and again */
        h->vt = h->vtypes[code];
    u64 vl = avl < h->vt.vlmax ? avl : h->vt.vlmax;
    if (unlikely(h->loop != NULL) && vl != h->vl)
        loop_changes(h);
    h->vl = vl;
    h->vstart = 0;
    RD = h->vl;
    return NEXT_VALUE(h->vl);
}

/* The AVL of vsetvli and vsetvl: x0 asks for VLMAX, or with rd = x0 for the same vl. */
static inline u64 avl_of(const struct hart *h, const struct op *o)
{
    return o->rs1 ? RS1 : o->rd != 32 ? UINT64_MAX : h->vl;
}
BODY(vsetvli)
{
    return configure(h, o, avl_of(h, o), IMM);
}
BODY(vsetivli)
{
    return configure(h, o, o->rs1, IMM);
}
BODY(vsetvl)
{
    return configure(h, o, avl_of(h, o), RS2);
}

/* ---- which elements ----------------------------------------------------------------------- */

/* In registers; the builtin is a call where the target may lack the instruction. */
static inline u64 popcount(u64 v)
{
    v -= v >> 1 & 0x5555555555555555;
    v = (v & 0x3333333333333333) + (v >> 2 & 0x3333333333333333);
    v = (v + (v >> 4)) & 0x0f0f0f0f0f0f0f0f;
    return v * 0x0101010101010101 >> 56;
}

u64 vec_active(const struct hart *h, bool unmasked, u64 n, u8 active[MAX_VLENB])
{
    u64 count = 0, from = h->vstart;
    for (u64 i = 0; i < n; i += 64) {
        u64 bits = ~0ull;
        if (!unmasked)
            memcpy(&bits, h->v + i / 8, 8);
        if (from > i)
            bits = from - i < 64 ? bits & ~0ull << (from - i) : 0;
        if (n - i < 64)
            bits &= ~(~0ull << (n - i));
        memcpy(active + i / 8, &bits, 8);
        count += popcount(bits);
    }
    return count;
}

static void merge_bits(u8 *d, const u8 *from, const u8 *active, u64 n)
{
    for (u64 i = 0; i < (n + 7) / 8; i++)
        d[i] = (u8)((d[i] & ~active[i]) | (from[i] & active[i]));
}

/* ---- shapes ------------------------------------------------------------------------------- */

/* FP families: at which SEW (bit 0: 8, bit 1: 16) they have f16 operands, which need Zvfh. */
enum {
    F16_INT = 0,
    F16_CMP = 0,
    F16_SAT = 0,
    F16_SAT_N = 0,
    F16_RED = 0,
    F16_RED_W = 0,
    F16_WIDE = 0,
    F16_WIDE_A = 0,
    F16_NARROW = 0,
    F16_EXTEND2 = 0,
    F16_EXTEND4 = 0,
    F16_EXTEND8 = 0,
    F16_FBITS = 2,
    F16_FSELECT = 2,
    F16_FCMP = 2,
    F16_ESTIMATE = 2,
    F16_FRED = 2,
    F16_FRED_W = 2,
    F16_FP1 = 2,
    F16_FP2 = 2,
    F16_FP3 = 2,
    F16_FP1_W = 2,
    F16_FP2_W = 2,
    F16_FP3_W = 2,
    F16_FP2_WA = 2,
    F16_FP1_N = 2,
    F16_FP_ROUND_N = 2,
    F16_BF1_W = 0,
    F16_BF3_W = 0,
    F16_BF1_N = 0,
    F16_INT_TO_FP = 2,
    F16_INT_TO_FP_W = 1,
    F16_INT_TO_FP_N = 2,
    F16_FP_TO_INT = 2,
    F16_FP_TO_INT_W = 2,
    F16_FP_TO_INT_N = 1
};

enum { NONE = -128 };

/* What stands in the place of vs1, always of SEW. */
enum source { VECTOR, X, IMMEDIATE, F, BF16, NOTHING };

struct shape {
    i8 d, a; /* log2 of EEW / SEW of vd and vs2; NONE: no vs2 */
    u8 b; /* enum source */
    bool mask; /* vd is a mask register */
    bool accumulates; /* vd is read too */
    bool fp;
    bool zero_raises; /* with b NOTHING: what it does to 0 raises a flag, to 1 it does not */
    bool saturates;
    bool carries; /* v0 is an operand and masks nothing */
};

static inline bool mask_overlap_ok(const struct hart *h, u32 vd, u32 vs, int ks)
{
    return (vd & ~vec_align(h, ks)) != vs || vd == vs;
}

static inline bool registers_legal(const struct hart *h, const struct op *o, struct shape s)
{
    bool a = s.a != NONE, b = s.b == VECTOR;
    u32 d = s.mask ? 0 : o->rd;
    u32 bad = (d | ILLEGAL_OPERAND) & vec_align(h, s.d);
    bad |= a ? (o->rs2 | ILLEGAL_OPERAND) & vec_align(h, s.a) : 0;
    bad |= b ? (o->rs1 | ILLEGAL_OPERAND) & vec_align(h, 0) : 0;
    if (bad)
        return false;
    if (s.mask)
        return mask_overlap_ok(h, o->rd, o->rs2, s.a) &&
               (!b || mask_overlap_ok(h, o->rd, o->rs1, 0));
    return (!a || vec_overlap_ok(h, o->rd, s.d, o->rs2, s.a)) &&
           (!b || vec_overlap_ok(h, o->rd, s.d, o->rs1, 0));
}

/* Without Zvfh: does this loop of an FP instruction have f16 operands, at the current SEW? */
static __attribute__((noinline)) bool works_on_f16(const struct hart *h, const struct op *o)
{
#define LOOP(family, name, ...) [L_##name] = F16_##family,
    static const u8 sews[L_COUNT] = {
#include "vloops.def"
    };
#undef LOOP
    return sews[o->arg] >> h->vt.sew & 1;
}

bool vec_loop_exists(const struct hart *h, const struct op *o)
{
    return !h->vt.ill && h->loops->loop[o->arg].fn[h->vt.sew] && (h->zvfh || !works_on_f16(h, o));
}

/* May the instruction have these operands under this vtype?  The answer is kept in the op. */
static __attribute__((noinline)) bool prove(const struct hart *h, const struct op *o,
                                            const struct shape *s)
{
    if (!vec_loop_exists(h, o) || !registers_legal(h, o, *s) ||
        (!s->mask && !o->vm && o->rd == 0)) /* would overwrite the mask */
        return false;
    ((struct op *)o)->proved = h->vt.key;
    return true;
}
static inline bool legal(const struct hart *h, const struct op *o, const struct shape *s)
{
    return likely(o->proved == h->vt.key) || prove(h, o, s);
}

static inline u64 scalar(const struct hart *h, const struct op *o, u8 source)
{
    switch ((enum source)source) {
    case X:
        return RS1;
    case IMMEDIATE:
        return IMM;
    case F:
        return unbox(h, o->rs1, false);
    case BF16:
        return unbox(h, o->rs1, true);
    default:
        return 0;
    }
}

static inline const void *operand_b(struct hart *h, const struct op *o, struct shape s)
{
    if (s.b == VECTOR)
        return VREG(o->rs1);
    if (s.b == NOTHING) /* something to point at */
        return VREG(s.a == NONE ? o->rd : o->rs2);
    h->loops->splat[h->vt.sew](h->vtmp[1], scalar(h, o, s.b), h->vl);
    return h->vtmp[1];
}

/* A copy of a source with numbers that raise no flag in the inactive elements: FP 1, for which
 * every sum, product, quotient and comparison is exact, or 0, for which every conversion is, and
 * which saturates nothing. */
static const void *quiet_copy(struct hart *h, void *copy, const void *from, int width, bool zero,
                              const u8 *active)
{
    static const u64 one[4] = {1, 0x3c00, 0x3f800000, 0x3ff0000000000000};
    u8 *filled = h->vtmp[2];
    h->loops->splat[width](filled, zero ? 0 : one[width], h->vl);
    h->loops->merge[width](copy, filled, from, active, h->vl);
    return copy;
}

/* Masked, or begun at vstart. */
static void compute_partial(struct hart *h, const struct op *o, const struct shape *shape,
                            vloop_fn loop, const void *b)
{
    const struct shape s = *shape;
    u8 active[MAX_VLENB], bits[MAX_VLENB];
    u64 n = h->vl, count = vec_active(h, o->vm || s.carries, n, active);
    u8 *d = VREG(o->rd), *out = h->vtmp[2];
    const void *a = s.a == NONE ? d : VREG(o->rs2);
    int width = h->vt.sew + s.d;
    if (count) {
        if ((s.fp || s.saturates) && s.a != NONE)
            a = quiet_copy(h, h->vtmp[0], a, h->vt.sew + s.a,
                           !s.fp || (s.b == NOTHING && !s.zero_raises), active);
        if ((s.fp || s.saturates) && s.b != NOTHING)
            b = quiet_copy(h, h->vtmp[1], b, h->vt.sew, !s.fp, active);
        if (s.accumulates)
            quiet_copy(h, out, d, width, false, active);
        loop(h, out, a, b, n);
        if (s.mask) {
            h->loops->pack(bits, out, n);
            merge_bits(d, bits, active, n);
        } else {
            h->loops->merge[width](d, d, out, active, n);
        }
        count_elements(h, count);
    }
    h->vstart = 0;
}

/* Every element below vl. */
static inline __attribute__((always_inline)) void compute_all(struct hart *h, const struct op *o,
                                                              struct shape s)
{
    const struct vec_loop *row = &h->loops->loop[o->arg];
    vloop_fn loop = row->fn[h->vt.sew], with_scalar = row->fn_scalar[h->vt.sew];
    const void *b;
    if ((s.b == F || s.b == BF16) && with_scalar) {
        u64 number = scalar(h, o, s.b);
        b = memcpy(h->vtmp[1], &number, sizeof number);
        loop = with_scalar;
    } else {
        b = operand_b(h, o, s);
    }
    count_elements(h, h->vl);
    u8 *d = VREG(o->rd);
    if (s.mask) {
        loop(h, h->vtmp[2], VREG(o->rs2), b, h->vl);
        h->loops->pack(d, h->vtmp[2], h->vl);
    } else {
        loop(h, d, s.a == NONE ? d : VREG(o->rs2), b, h->vl);
    }
}

/* Not proved, masked or begun at vstart. */
static __attribute__((noinline)) int compute_slowly(struct hart *h, const struct op *o,
                                                    const struct shape *shape)
{
    const struct shape s = *shape;
    if (!legal(h, o, shape))
        return trap_illegal(h, o);
    if (s.carries ? h->vstart != 0 : vec_partial(h, o))
        compute_partial(h, o, shape, h->loops->loop[o->arg].fn[h->vt.sew], operand_b(h, o, s));
    else
        compute_all(h, o, s);
    return NEXT;
}

static inline __attribute__((always_inline)) int compute(struct hart *h, const struct op *o,
                                                         const struct shape *shape)
{
    if (unlikely(o->proved != h->vt.key || h->vstart || !(shape->carries || o->vm)))
        return compute_slowly(h, o, shape);
    compute_all(h, o, *shape);
    return NEXT;
}

#define SHAPE(name, ...)                                                                           \
    BODY(name)                                                                                     \
    {                                                                                              \
        static const struct shape shape = {__VA_ARGS__};                                           \
        return compute(h, o, &shape);                                                              \
    }

/* Named by the operands: v vector, x, i, f scalar, w of twice SEW; by the result: w of twice SEW,
 * m a mask, a accumulated, s saturated, c with carries from v0. */
SHAPE(v_vv, .b = VECTOR)
SHAPE(v_vx, .b = X)
SHAPE(v_vi, .b = IMMEDIATE)
SHAPE(v_0, .a = NONE, .b = NOTHING)
SHAPE(v_m_vv, .b = VECTOR, .mask = true)
SHAPE(v_m_vx, .b = X, .mask = true)
SHAPE(v_m_vi, .b = IMMEDIATE, .mask = true)
SHAPE(v_w_vv, .d = 1, .b = VECTOR)
SHAPE(v_w_vx, .d = 1, .b = X)
SHAPE(v_w_wv, .d = 1, .a = 1, .b = VECTOR)
SHAPE(v_w_wx, .d = 1, .a = 1, .b = X)
SHAPE(v_n_wv, .a = 1, .b = VECTOR)
SHAPE(v_n_wx, .a = 1, .b = X)
SHAPE(v_n_wi, .a = 1, .b = IMMEDIATE)
SHAPE(v_vf2, .a = -1, .b = NOTHING)
SHAPE(v_vf4, .a = -2, .b = NOTHING)
SHAPE(v_vf8, .a = -3, .b = NOTHING)
SHAPE(v_a_vv, .b = VECTOR, .accumulates = true)
SHAPE(v_a_vx, .b = X, .accumulates = true)
SHAPE(v_wa_vv, .d = 1, .b = VECTOR, .accumulates = true)
SHAPE(v_wa_vx, .d = 1, .b = X, .accumulates = true)
SHAPE(v_s_vv, .b = VECTOR, .saturates = true)
SHAPE(v_s_vx, .b = X, .saturates = true)
SHAPE(v_s_vi, .b = IMMEDIATE, .saturates = true)
SHAPE(v_s_wv, .a = 1, .b = VECTOR, .saturates = true)
SHAPE(v_s_wx, .a = 1, .b = X, .saturates = true)
SHAPE(v_s_wi, .a = 1, .b = IMMEDIATE, .saturates = true)
SHAPE(v_c_vv, .b = VECTOR, .carries = true)
SHAPE(v_c_vx, .b = X, .carries = true)
SHAPE(v_c_vi, .b = IMMEDIATE, .carries = true)
SHAPE(v_mc_vv, .b = VECTOR, .mask = true, .carries = true)
SHAPE(v_mc_vx, .b = X, .mask = true, .carries = true)
SHAPE(v_mc_vi, .b = IMMEDIATE, .mask = true, .carries = true)

SHAPE(vf_vv, .b = VECTOR, .fp = true)
SHAPE(vf_vf, .b = F, .fp = true)
SHAPE(vf_v, .b = NOTHING, .fp = true)
SHAPE(vf_estimate, .b = NOTHING, .zero_raises = true, .fp = true)
SHAPE(vf_m_vv, .b = VECTOR, .mask = true, .fp = true)
SHAPE(vf_m_vf, .b = F, .mask = true, .fp = true)
SHAPE(vf_a_vv, .b = VECTOR, .accumulates = true, .fp = true)
SHAPE(vf_a_vf, .b = F, .accumulates = true, .fp = true)
SHAPE(vf_w_v, .d = 1, .b = NOTHING, .fp = true)
SHAPE(vf_w_vv, .d = 1, .b = VECTOR, .fp = true)
SHAPE(vf_w_vf, .d = 1, .b = F, .fp = true)
SHAPE(vf_w_wv, .d = 1, .a = 1, .b = VECTOR, .fp = true)
SHAPE(vf_w_wf, .d = 1, .a = 1, .b = F, .fp = true)
SHAPE(vf_wa_vv, .d = 1, .b = VECTOR, .accumulates = true, .fp = true)
SHAPE(vf_wa_vf, .d = 1, .b = F, .accumulates = true, .fp = true)
SHAPE(vf_wa_vbf, .d = 1, .b = BF16, .accumulates = true, .fp = true)
SHAPE(vf_n_w, .a = 1, .b = NOTHING, .fp = true)

/* ---- masks -------------------------------------------------------------------------------- */

/* vm??.mm: bits of whole registers, whatever LMUL */
BODY(v_mm)
{
    if (unlikely(h->vt.ill))
        return trap_illegal(h, o);
    u8 active[MAX_VLENB], *bits = h->vtmp[2];
    count_elements(h, vec_active(h, true, h->vl, active));
    h->loops->loop[o->arg].fn[0](h, bits, VREG(o->rs2), VREG(o->rs1), (h->vl + 7) / 8);
    merge_bits(VREG(o->rd), bits, active, h->vl);
    h->vstart = 0;
    return NEXT;
}

/* The set bits among the active elements of vs2, 64 at a time and 0 from vl on. */
static void active_bits(struct hart *h, const struct op *o, u64 set[MAX_VLENB / 8])
{
    u8 active[MAX_VLENB];
    count_elements(h, vec_active(h, o->vm, h->vl, active));
    for (u64 i = 0; i < h->vl; i += 64) {
        u64 bits, of_vs2;
        memcpy(&bits, active + i / 8, 8);
        memcpy(&of_vs2, VREG(o->rs2) + i / 8, 8);
        set[i / 64] = bits & of_vs2;
    }
}

BODY(vcpop_m)
{
    u64 set[MAX_VLENB / 8], n = 0;
    if (unlikely(h->vt.ill || h->vstart))
        return trap_illegal(h, o);
    active_bits(h, o, set);
    for (u64 i = 0; i < h->vl; i += 64)
        n += popcount(set[i / 64]);
    RD = n;
    return NEXT;
}

BODY(vfirst_m)
{
    u64 set[MAX_VLENB / 8], first = UINT64_MAX;
    if (unlikely(h->vt.ill || h->vstart))
        return trap_illegal(h, o);
    active_bits(h, o, set);
    for (u64 i = 0; i < h->vl && first == UINT64_MAX; i += 64)
        if (set[i / 64])
            first = i + (u64)__builtin_ctzll(set[i / 64]);
    RD = first;
    return NEXT;
}

/* ---- merge and moves ---------------------------------------------------------------------- */

/* v?merge: vd[i] = v0.mask[i] ? b[i] : vs2[i]; every body element is written */
static inline __attribute__((always_inline)) int merge(struct hart *h, const struct op *o,
                                                       const struct shape *shape)
{
    if (unlikely(!legal(h, o, shape)))
        return trap_illegal(h, o);
    const void *b = operand_b(h, o, *shape);
    u8 *d = VREG(o->rd), active[MAX_VLENB];
    const u8 *a = VREG(o->rs2);
    if (likely(!h->vstart)) {
        h->loops->merge[h->vt.sew](d, a, b, h->v, h->vl);
        count_elements(h, h->vl);
    } else {
        count_elements(h, vec_active(h, true, h->vl, active));
        h->loops->merge[h->vt.sew](h->vtmp[2], a, b, h->v, h->vl);
        h->loops->merge[h->vt.sew](d, d, h->vtmp[2], active, h->vl);
        h->vstart = 0;
    }
    return NEXT;
}
#define MERGE(name, ...)                                                                           \
    BODY(name)                                                                                     \
    {                                                                                              \
        static const struct shape shape = {__VA_ARGS__};                                           \
        return merge(h, o, &shape);                                                                \
    }
MERGE(vmerge_vvm, .b = VECTOR)
MERGE(vmerge_vxm, .b = X)
MERGE(vmerge_vim, .b = IMMEDIATE)
MERGE(vfmerge_vfm, .b = F, .fp = true)

/* Element 0 of a register as a number, sign-extended. */
BODY(vmv_x_s)
{
    u64 v;
    if (unlikely(h->vt.ill))
        return trap_illegal(h, o);
    memcpy(&v, VREG(o->rs2), sizeof v);
    RD = (u64)sign_extend(v, 8u << h->vt.sew);
    count_elements(h, 1);
    h->vstart = 0;
    return NEXT;
}

static void set_element_0(struct hart *h, const struct op *o, u64 v)
{
    if (h->vstart < h->vl) {
        memcpy(VREG(o->rd), &v, 1u << h->vt.sew); /* little-endian hosts only, as everywhere */
        count_elements(h, 1);
    }
    h->vstart = 0;
}
BODY(vmv_s_x)
{
    if (unlikely(h->vt.ill))
        return trap_illegal(h, o);
    set_element_0(h, o, RS1);
    return NEXT;
}

BODY(vfmv_f_s)
{
    u64 v;
    if (unlikely(!vec_loop_exists(h, o)))
        return trap_illegal(h, o);
    memcpy(&v, VREG(o->rs2), sizeof v);
    h->f[o->rd] = h->vt.sew == 3 ? v : v | UINT64_MAX << (8u << h->vt.sew); /* NaN-boxed */
    count_elements(h, 1);
    h->vstart = 0;
    return NEXT;
}
BODY(vfmv_s_f)
{
    if (unlikely(!vec_loop_exists(h, o)))
        return trap_illegal(h, o);
    set_element_0(h, o, unbox(h, o->rs1, false));
    return NEXT;
}

/* vmv<n>r.v: whole registers, whatever vl; vstart counts elements of SEW */
BODY(vmvr)
{
    u32 n = o->arg;
    if (unlikely(h->vt.ill || (o->rd | o->rs2) & (n - 1)))
        return trap_illegal(h, o);
    u64 total = (u64)n * h->vlenb, from = h->vstart << h->vt.sew;
    if (from < total) {
        memmove(VREG(o->rd) + from, VREG(o->rs2) + from, total - from);
        count_elements(h, (total - from) >> h->vt.sew);
    }
    h->vstart = 0;
    return NEXT;
}
