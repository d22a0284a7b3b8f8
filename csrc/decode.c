/* decode.c: the row table and how a word finds its row and its operands. */
#include "decode.h"

#include "vloops.h"

/* Mnemonics are the row ids with '_' written as '.'; nicemu_insn_row and disasm do that. */
#define INSN(id, fmt, match, mask, ext, cls, exec, arg)                                            \
    {#id, x_##exec, match, mask, FORMAT_##fmt, EXT_##ext, CLASS_##cls, arg},
const struct insn_row insn_rows[INSN_COUNT] = {
#include "insn.def"
};
#undef INSN
#define FORMAT(id, pattern) pattern,
const char *const format_patterns[FORMAT_COUNT] = {
#include "format.def"
};
#undef FORMAT
#define EXT(id, name) name,
const char *const ext_names[EXT_COUNT] = {
#include "ext.def"
};
#undef EXT
#define CLASS(id, name) name,
const char *const class_names[CLASS_COUNT] = {
#include "class.def"
};
#undef CLASS

#define BIT(e) (1ull << EXT_##e)

u64 isa_extensions(u64 requested)
{
    u64 on = requested ? requested : (1ull << EXT_COUNT) - 1;
    u64 derived = BIT(H16) | BIT(CD);
    on = (on & ~derived) | BIT(I) | BIT(PRIV);
    if (on & (BIT(ZFH) | BIT(ZFBFMIN)))
        on |= BIT(H16);
    if ((on & BIT(C)) && (on & BIT(D)))
        on |= BIT(CD);
    return on;
}

/* ---- index ------------------------------------------------------------------------------ */

static unsigned bucket_of(u32 word)
{
    if (insn_len(word) == 2)
        return bits(word, 15, 13) << 2 | bits(word, 1, 0);
    return 32 + (bits(word, 6, 2) << 3 | bits(word, 14, 12));
}

/* Does the row apply to some word of the bucket? */
static bool row_meets_bucket(const struct insn_row *row, unsigned bucket)
{
    u32 word, care;
    if (bucket < 32) {
        word = (bucket & 3) | (bucket >> 2) << 13;
        care = 0xe003;
    } else {
        word = 3 | ((bucket - 32) >> 3) << 2 | ((bucket - 32) & 7) << 12;
        care = 0x707f;
    }
    return insn_len(row->match) == insn_len(word) && ((row->match ^ word) & row->mask & care) == 0;
}

void isa_build(struct isa *isa, u64 extensions)
{
    isa->extensions = extensions;
    for (unsigned i = 0; i < INSN_COUNT; i++)
        isa->fn[i] = insn_rows[i].fn;
    u16 n = 0;
    for (unsigned b = 0; b < 32 + 256; b++) {
        isa->start[b] = n;
        for (u16 i = 0; i < INSN_COUNT; i++) {
            const struct insn_row *row = &insn_rows[i];
            if (!(extensions >> row->ext & 1) || !row_meets_bucket(row, b))
                continue;
            u16 at = n++;
            int weight = __builtin_popcount(row->mask);
            while (at > isa->start[b] &&
                   __builtin_popcount(insn_rows[isa->rows[at - 1]].mask) < weight) {
                isa->rows[at] = isa->rows[at - 1];
                at--;
            }
            isa->rows[at] = i;
        }
    }
    isa->start[32 + 256] = n;
}

/* ---- operands --------------------------------------------------------------------------- */

static i64 imm_i(u32 w)
{
    return sign_extend(w >> 20, 12);
}
static i64 imm_s(u32 w)
{
    return sign_extend(bits(w, 31, 25) << 5 | bits(w, 11, 7), 12);
}
static i64 imm_b(u32 w)
{
    return sign_extend(bits(w, 31, 31) << 12 | bits(w, 7, 7) << 11 | bits(w, 30, 25) << 5 |
                           bits(w, 11, 8) << 1,
                       13);
}
static i64 imm_j(u32 w)
{
    return sign_extend(bits(w, 31, 31) << 20 | bits(w, 19, 12) << 12 | bits(w, 20, 20) << 11 |
                           bits(w, 30, 21) << 1,
                       21);
}
static i64 imm_ci(u32 w)
{
    return sign_extend(bits(w, 12, 12) << 5 | bits(w, 6, 2), 6);
}
static i64 imm_cw(u32 w) /* offset of c.lw, c.sw */
{
    return bits(w, 12, 10) << 3 | bits(w, 6, 6) << 2 | bits(w, 5, 5) << 6;
}
static i64 imm_cd(u32 w) /* offset of c.ld, c.sd */
{
    return bits(w, 12, 10) << 3 | bits(w, 6, 5) << 6;
}
static i64 imm_cj(u32 w)
{
    return sign_extend(bits(w, 12, 12) << 11 | bits(w, 8, 8) << 10 | bits(w, 10, 9) << 8 |
                           bits(w, 6, 6) << 7 | bits(w, 7, 7) << 6 | bits(w, 2, 2) << 5 |
                           bits(w, 11, 11) << 4 | bits(w, 5, 3) << 1,
                       12);
}
static i64 imm_cb(u32 w)
{
    return sign_extend(bits(w, 12, 12) << 8 | bits(w, 6, 5) << 6 | bits(w, 2, 2) << 5 |
                           bits(w, 11, 10) << 3 | bits(w, 4, 3) << 1,
                       9);
}

enum { SP = 2, RA = 1 };

/* Operands only, for a row that is known to match: false when the format forbids them. */
static bool decode_operands(u32 format, u32 w, u64 pc, struct op *o)
{
    u8 crd = (u8)(8 + bits(w, 4, 2)), crs1 = (u8)(8 + bits(w, 9, 7)); /* x8..x15 */
    o->rd = (u8)bits(w, 11, 7);
    o->rs1 = (u8)bits(w, 19, 15);
    o->rs2 = (u8)bits(w, 24, 20);
    o->rs3 = (u8)bits(w, 31, 27);
    o->rm = (u8)bits(w, 14, 12);
    o->vm = (u8)bits(w, 25, 25);
    o->imm = 0;
    bool writes_x = false; /* rd is an x register: x0 is redirected at the end */
    bool has_rm = false;

    switch ((enum format)format) {
    case FORMAT_N:
    case FORMAT_CN:
    case FORMAT_FENCE:
        break;
    case FORMAT_R:
    case FORMAT_R1:
    case FORMAT_LR:
    case FORMAT_AMO:
    case FORMAT_FCMP:
    case FORMAT_FXN:
    case FORMAT_VSETVL:
    case FORMAT_XV:
    case FORMAT_XVN:
        writes_x = true;
        break;
    case FORMAT_I:
    case FORMAT_LD:
        writes_x = true;
        o->imm = imm_i(w);
        break;
    case FORMAT_FLD:
        o->imm = imm_i(w);
        break;
    case FORMAT_SH6:
        writes_x = true;
        o->imm = bits(w, 25, 20);
        break;
    case FORMAT_SH5:
        writes_x = true;
        o->imm = bits(w, 24, 20);
        break;
    case FORMAT_ST:
    case FORMAT_FST:
        o->imm = imm_s(w);
        break;
    case FORMAT_B:
        o->imm = (i64)(pc + (u64)imm_b(w));
        break;
    case FORMAT_U:
        writes_x = true;
        o->imm = (i32)(w & 0xfffff000);
        break;
    case FORMAT_UPC:
        writes_x = true;
        o->imm = (i64)(pc + (u64)(i64)(i32)(w & 0xfffff000));
        break;
    case FORMAT_J:
        writes_x = true;
        o->imm = (i64)(pc + (u64)imm_j(w));
        break;
    case FORMAT_CSR:
    case FORMAT_CSRI: /* rs1 is the number itself */
        writes_x = true;
        o->imm = bits(w, 31, 20);
        break;
    case FORMAT_FR:
    case FORMAT_F1:
    case FORMAT_F4:
    case FORMAT_XF:
        has_rm = true;
        break;
    case FORMAT_FX:
        writes_x = true;
        has_rm = true;
        break;
    case FORMAT_FRN:
    case FORMAT_XFN:
        break;

    case FORMAT_CNOP:
        o->rd = o->rs1 = 0;
        writes_x = true;
        break;
    case FORMAT_CIW:
        o->rd = crd;
        o->rs1 = SP;
        o->imm =
            bits(w, 12, 11) << 4 | bits(w, 10, 7) << 6 | bits(w, 6, 6) << 2 | bits(w, 5, 5) << 3;
        if (o->imm == 0)
            return false;
        break;
    case FORMAT_CLW:
    case FORMAT_CSW:
        o->rd = o->rs2 = crd;
        o->rs1 = crs1;
        o->imm = imm_cw(w);
        break;
    case FORMAT_CLD:
    case FORMAT_CSD:
    case FORMAT_CFLD:
    case FORMAT_CFSD:
        o->rd = o->rs2 = crd;
        o->rs1 = crs1;
        o->imm = imm_cd(w);
        break;
    case FORMAT_CI:
        o->rs1 = o->rd;
        o->imm = imm_ci(w);
        writes_x = true;
        break;
    case FORMAT_CIW0:
        if (o->rd == 0)
            return false;
        o->rs1 = o->rd;
        o->imm = imm_ci(w);
        break;
    case FORMAT_CLI:
        o->imm = imm_ci(w);
        writes_x = true;
        break;
    case FORMAT_CI16:
        o->rs1 = o->rd = SP;
        o->imm = sign_extend(bits(w, 12, 12) << 9 | bits(w, 4, 3) << 7 | bits(w, 5, 5) << 6 |
                                 bits(w, 2, 2) << 5 | bits(w, 6, 6) << 4,
                             10);
        if (o->imm == 0)
            return false;
        break;
    case FORMAT_CLUI:
        o->imm = imm_ci(w) * 4096;
        if (o->imm == 0)
            return false;
        writes_x = true;
        break;
    case FORMAT_CSH:
        o->rs1 = o->rd;
        o->imm = bits(w, 12, 12) << 5 | bits(w, 6, 2);
        writes_x = true;
        break;
    case FORMAT_CSHP:
        o->rd = o->rs1 = crs1;
        o->imm = bits(w, 12, 12) << 5 | bits(w, 6, 2);
        break;
    case FORMAT_CANDI:
        o->rd = o->rs1 = crs1;
        o->imm = imm_ci(w);
        break;
    case FORMAT_CA:
        o->rd = o->rs1 = crs1;
        o->rs2 = crd;
        break;
    case FORMAT_CJ:
        o->rd = 0;
        o->imm = (i64)(pc + (u64)imm_cj(w));
        writes_x = true;
        break;
    case FORMAT_CB:
        o->rs1 = crs1;
        o->rs2 = 0;
        o->imm = (i64)(pc + (u64)imm_cb(w));
        break;
    case FORMAT_CLWSP:
        if (o->rd == 0)
            return false;
        o->rs1 = SP;
        o->imm = bits(w, 12, 12) << 5 | bits(w, 6, 4) << 2 | bits(w, 3, 2) << 6;
        break;
    case FORMAT_CLDSP:
        if (o->rd == 0)
            return false;
        /* fall through */
    case FORMAT_CFLDSP:
        o->rs1 = SP;
        o->imm = bits(w, 12, 12) << 5 | bits(w, 6, 5) << 3 | bits(w, 4, 2) << 6;
        break;
    case FORMAT_CSWSP:
        o->rs1 = SP;
        o->rs2 = (u8)bits(w, 6, 2);
        o->imm = bits(w, 12, 9) << 2 | bits(w, 8, 7) << 6;
        break;
    case FORMAT_CSDSP:
    case FORMAT_CFSDSP:
        o->rs1 = SP;
        o->rs2 = (u8)bits(w, 6, 2);
        o->imm = bits(w, 12, 10) << 3 | bits(w, 9, 7) << 6;
        break;
    case FORMAT_CJR:
    case FORMAT_CJALR:
        if (o->rd == 0)
            return false;
        o->rs1 = o->rd;
        o->rd = format == FORMAT_CJR ? 0 : RA;
        writes_x = true;
        break;
    case FORMAT_CMV:
        o->rs1 = 0;
        o->rs2 = (u8)bits(w, 6, 2);
        writes_x = true;
        break;
    case FORMAT_CADD:
        o->rs1 = o->rd;
        o->rs2 = (u8)bits(w, 6, 2);
        writes_x = true;
        break;

    case FORMAT_VSETVLI:
        writes_x = true;
        o->imm = bits(w, 30, 20);
        break;
    case FORMAT_VSETIVLI: /* rs1 is the vector length itself */
        writes_x = true;
        o->imm = bits(w, 29, 20);
        break;
    case FORMAT_VI:
    case FORMAT_VIM:
    case FORMAT_VI0:
    case FORMAT_VIN:
        o->imm = sign_extend(o->rs1, 5);
        break;
    case FORMAT_VU:
        o->imm = o->rs1;
        break;
    case FORMAT_VL:
    case FORMAT_VS:
    case FORMAT_VLS:
    case FORMAT_VSS:
    case FORMAT_VLX:
    case FORMAT_VSX:
    case FORMAT_VLN:
    case FORMAT_VSN:
    case FORMAT_VV:
    case FORMAT_VX:
    case FORMAT_VF:
    case FORMAT_VVM:
    case FORMAT_VXM:
    case FORMAT_VFM:
    case FORMAT_VVA:
    case FORMAT_VXA:
    case FORMAT_VFA:
    case FORMAT_V2:
    case FORMAT_V2N:
    case FORMAT_VV0:
    case FORMAT_VX0:
    case FORMAT_VF0:
    case FORMAT_VMM:
    case FORMAT_VXN:
    case FORMAT_VD:
    case FORMAT_FVN:
        break;
    case FORMAT_COUNT:
        return false;
    }
    if (has_rm && (o->rm == 5 || o->rm == 6)) /* reserved rounding modes */
        return false;
    if (writes_x && o->rd == 0)
        o->rd = 32;
    return true;
}

int isa_find(const struct isa *isa, u32 word)
{
    struct op scratch;
    if (insn_len(word) == 2)
        word &= 0xffff;
    unsigned b = bucket_of(word);
    for (unsigned k = isa->start[b]; k < isa->start[b + 1]; k++) {
        const struct insn_row *row = &insn_rows[isa->rows[k]];
        if ((word & row->mask) == row->match)
            return decode_operands(row->format, word, 0, &scratch) ? isa->rows[k] : -1;
    }
    return -1;
}

/* FP rows need the F unit on; those that round by frm need a valid one (Zfinx does not exist here).
 */
static u8 needs_of(const struct insn_row *row, const struct op *o)
{
    bool vector = row->cls >= CLASS_VSET;
    bool scalar_fp = row->ext == EXT_F || row->ext == EXT_D || row->ext == EXT_ZFH ||
                     row->ext == EXT_ZFBFMIN || row->ext == EXT_H16 || row->ext == EXT_CD;
    bool vector_fp = row->cls >= CLASS_VFADD && row->cls <= CLASS_VFRED;
    u8 needs = 0;
    if (scalar_fp || vector_fp)
        needs |= NEED_F;
    if (vector)
        needs |= NEED_V;
    if (vector_fp)
        needs |= NEED_FRM;
    if (row->format == FORMAT_FR || row->format == FORMAT_F1 || row->format == FORMAT_F4 ||
        row->format == FORMAT_FX || row->format == FORMAT_XF)
        needs |= o->rm == RM_DYNAMIC ? NEED_FRM : 0;
    return needs;
}

bool isa_decode(const struct isa *isa, u32 word, u64 pc, struct op *o)
{
    int i = isa_find(isa, word);
    o->len = (u8)insn_len(word);
    if (i < 0)
        return false;
    const struct insn_row *row = &insn_rows[i];
    decode_operands(row->format, o->len == 2 ? word & 0xffff : word, pc, o);
    o->fn = isa->fn[i];
    if (isa_ialign(isa) == 4 && (row->cls == CLASS_BRANCH || row->cls == CLASS_JUMP))
        o->fn = jump_to_word(o->fn, (u64)o->imm);
    o->id = (u16)i;
    o->arg = row->arg;
    o->needs = needs_of(row, o);
    return true;
}
