/* exec_fuse.c: faster forms of integer instructions, chosen when a block is decoded.  Same effect
 * on the same registers; none can trap, so counters and faults see no difference.
 *   - A form that takes an operand from `last`, the value that the instruction before it wrote,
 *     saves the trip through memory that dependent instructions would wait for.
 *   - A pair in one body saves a dispatch.
 * What each instruction computes is in alu.def. */
#include "alu.h"
#include "decode.h"

/* ---- one instruction, an operand from `last` -------------------------------------------- */

#define FORM(name, form, A, B)                                                                     \
    static BODY(name##form)                                                                        \
    {                                                                                              \
        u64 v = alu_##name(A, B);                                                                  \
        RD = v;                                                                                    \
        return NEXT_VALUE(v);                                                                      \
    }
#define FORMS_REG(name)                                                                            \
    FORM(name, _a, last, RS2)                                                                      \
    FORM(name, _b, RS1, last)
#define FORMS_IMM(name) FORM(name, _a, last, IMM)
#define FORMS_ONE(name) FORM(name, _a, last, 0)
#define ALU(name, operands, value) FORMS_##operands(name)
#include "alu.def"
#undef ALU

static const struct alu_forms {
    op_fn plain, a, b; /* operands from registers; a from `last`; b from `last` */
} alu_forms[] = {
#define ROW_REG(name) {x_##name, x_##name##_a, x_##name##_b},
#define ROW_IMM(name) {x_##name, x_##name##_a, NULL},
#define ROW_ONE(name) {x_##name, x_##name##_a, NULL},
#define ALU(name, operands, value) ROW_##operands(name)
#include "alu.def"
#undef ALU
};

/* ---- pairs ------------------------------------------------------------------------------ */

/* second(v, w) of v = first(a, imm): v is one operand of a commutative second instruction, w is its
 * other register, whose number decode puts into rs3.  When w is the register that a comes from,
 * both are read once. */
#define PAIR(first, second, form, A, W)                                                            \
    static BODY(first##_##second##form)                                                            \
    {                                                                                              \
        u64 a = A, v = alu_##first(a, IMM), r = alu_##second(v, W);                                \
        RD = v;                                                                                    \
        h->x[o[1].rd] = r;                                                                         \
        return o[2].fn(h, o + 2, r);                                                               \
    }
#define PAIR_FORMS(first, second)                                                                  \
    PAIR(first, second, _, RS1, h->x[o->rs3])                                                      \
    PAIR(first, second, _a, last, h->x[o->rs3])                                                    \
    PAIR(first, second, _same, RS1, a)                                                             \
    PAIR(first, second, _a_same, last, a)

#define PAIRS(P)                                                                                   \
    P(slli, xor)                                                                                   \
    P(slli, add) P(slli, or) P(srli, xor) P(srli, add) P(srli, or) P(srli, and) P(addi, and)
PAIRS(PAIR_FORMS)

static const struct pair {
    op_fn first, second, forms[4];
} pairs[] = {
#define PAIR_ROW(first, second)                                                                    \
    {x_##first,                                                                                    \
     x_##second,                                                                                   \
     {x_##first##_##second##_, x_##first##_##second##_a, x_##first##_##second##_same,              \
      x_##first##_##second##_a_same}},
    PAIRS(PAIR_ROW)};

/* Two that have nothing to hand over: the second reads whatever registers it names. */
#define TWO(first, second, operands)                                                               \
    static BODY(first##_then_##second)                                                             \
    {                                                                                              \
        RD = alu_##first(RS1, IMM);                                                                \
        o++;                                                                                       \
        u64 v = alu_##second(RS1, ALU_B_##operands);                                               \
        RD = v;                                                                                    \
        return NEXT_VALUE(v);                                                                      \
    }
#define BRANCH_AFTER(first, operands, second, cond)                                                \
    static BODY(first##_then_##second)                                                             \
    {                                                                                              \
        RD = alu_##first(RS1, ALU_B_##operands);                                                   \
        o++;                                                                                       \
        u64 a = RS1, b = RS2;                                                                      \
        if (cond)                                                                                  \
            return follow(h, NX_TAKEN);                                                            \
        return follow(h, NX_FALL);                                                                 \
    }
TWO(addi, addi, IMM)
TWO(addi, add, REG)
BRANCH_AFTER(addi, IMM, bne, a != b)
BRANCH_AFTER(addi, IMM, beq, a == b)
BRANCH_AFTER(addi, IMM, bltu, a < b)
BRANCH_AFTER(add, REG, bne, a != b)
BRANCH_AFTER(add, REG, beq, a == b)
BRANCH_AFTER(add, REG, bltu, a < b)

static const struct {
    op_fn first, second, both;
} in_turn[] = {
    {x_addi, x_addi, x_addi_then_addi}, {x_addi, x_add, x_addi_then_add},
    {x_addi, x_bne, x_addi_then_bne},   {x_addi, x_beq, x_addi_then_beq},
    {x_addi, x_bltu, x_addi_then_bltu}, {x_add, x_bne, x_add_then_bne},
    {x_add, x_beq, x_add_then_beq},     {x_add, x_bltu, x_add_then_bltu},
};

/* ---- the choice ------------------------------------------------------------------------- */

static const struct alu_forms *forms_of(op_fn plain)
{
    for (unsigned k = 0; k < COUNT_OF(alu_forms); k++)
        if (alu_forms[k].plain == plain)
            return &alu_forms[k];
    return NULL;
}

/* `held` is the register whose value is in `last`, or NO_REG. */
enum { NO_REG = 255 };

static bool fuse_pair(struct op *first, struct op *second, u8 held)
{
    for (unsigned k = 0; k < COUNT_OF(pairs); k++) {
        if (first->fn != pairs[k].first || second->fn != pairs[k].second)
            continue;
        bool by_rs1 = second->rs1 == first->rd, by_rs2 = second->rs2 == first->rd;
        if (by_rs1 == by_rs2) /* nothing is handed over, or both operands are */
            return false;
        first->rs3 = by_rs1 ? second->rs2 : second->rs1;
        first->fn = pairs[k].forms[(first->rs1 == held) + 2 * (first->rs3 == first->rs1)];
        return true;
    }
    return false;
}

static bool fuse_in_turn(struct op *first, const struct op *second)
{
    for (unsigned k = 0; k < COUNT_OF(in_turn); k++)
        if (first->fn == in_turn[k].first && second->fn == in_turn[k].second) {
            first->fn = in_turn[k].both;
            return true;
        }
    return false;
}

void fuse(struct block *b)
{
    u8 held = NO_REG;
    for (u32 i = 0; i < b->n; i++) {
        struct op *o = &b->ops[i];
        const struct alu_forms *forms = forms_of(o->fn);
        bool more = i + 1 < b->n;
        if (more && (fuse_pair(o, o + 1, held) || fuse_in_turn(o, o + 1)))
            o = &b->ops[++i];
        else if (forms && o->rs1 == held)
            o->fn = forms->a;
        else if (forms && forms->b && o->rs2 == held)
            o->fn = forms->b;
        op_fn plain = o->id < INSN_COUNT ? insn_rows[o->id].fn : NULL;
        held = forms_of(plain) || plain == x_li ? o->rd : NO_REG;
    }
}
