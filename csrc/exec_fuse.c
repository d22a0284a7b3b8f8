/* exec_fuse.c: pairs of integer instructions that run as one body: the same effect on the same
 * registers with one dispatch less, and the value in between need not travel through memory.
 * Neither of a pair can trap but the last may branch, so counters and traps see no difference.
 * A pair is a row here; what each instruction does is in exec_i.c. */
#include "hart.h"

/* rd = v = first; the second's rd = expression of v and w, its other operand (register rs3). */
#define FORWARD(first, expr1, second, expr2)                                                       \
    static BODY(first##_##second)                                                                  \
    {                                                                                              \
        u64 a = RS1, b = IMM, w = h->x[o->rs3];                                                    \
        u64 v = (expr1);                                                                           \
        RD = v;                                                                                    \
        h->x[o[1].rd] = (expr2);                                                                   \
        return o[2].fn(h, o + 2);                                                                  \
    }
/* Both in turn, the second reading whatever registers it names. */
#define IN_TURN(first, expr1, second, effect2)                                                     \
    static BODY(first##_##second)                                                                  \
    {                                                                                              \
        u64 a = RS1, b = IMM;                                                                      \
        RD = (expr1);                                                                              \
        o++;                                                                                       \
        effect2                                                                                    \
    }
#define THEN_IMM(expr)                                                                             \
    {                                                                                              \
        u64 c = RS1, d = IMM;                                                                      \
        RD = (expr);                                                                               \
        return NEXT;                                                                               \
    }
#define THEN_BRANCH(cond)                                                                          \
    {                                                                                              \
        u64 c = RS1, d = RS2;                                                                      \
        return (cond) ? NX_TAKEN : NX_FALL;                                                        \
    }

FORWARD(slli, a << b, xor, v ^ w)
FORWARD(srli, a >> b, xor, v ^ w)
FORWARD(slli, a << b, add, v + w)
FORWARD(slli, a << b, or, v | w)
FORWARD(srli, a >> b, or, v | w)
IN_TURN(addi, a + b, addi, THEN_IMM(c + d))
IN_TURN(addi, a + b, bne, THEN_BRANCH(c != d))
IN_TURN(addi, a + b, beq, THEN_BRANCH(c == d))
IN_TURN(addi, a + b, blt, THEN_BRANCH((i64)c < (i64)d))
IN_TURN(addi, a + b, bltu, THEN_BRANCH(c < d))

static const struct {
    op_fn first, second, both;
    bool forwards;
} pairs[] = {
    {x_slli, x_xor, x_slli_xor, true},     {x_srli, x_xor, x_srli_xor, true},
    {x_slli, x_add, x_slli_add, true},     {x_slli, x_or, x_slli_or, true},
    {x_srli, x_or, x_srli_or, true},       {x_addi, x_addi, x_addi_addi, false},
    {x_addi, x_bne, x_addi_bne, false},    {x_addi, x_beq, x_addi_beq, false},
    {x_addi, x_blt, x_addi_blt, false},    {x_addi, x_bltu, x_addi_bltu, false},
};

void fuse_pairs(struct block *b)
{
    for (u32 i = 0; i + 1 < b->n; i++) {
        struct op *first = &b->ops[i], *second = &b->ops[i + 1];
        for (unsigned k = 0; k < COUNT_OF(pairs); k++) {
            if (first->fn != pairs[k].first || second->fn != pairs[k].second)
                continue;
            bool by_rs1 = second->rs1 == first->rd, by_rs2 = second->rs2 == first->rd;
            if (pairs[k].forwards) {
                if (by_rs1 == by_rs2) /* not forwarded, or both operands are */
                    break;
                first->rs3 = by_rs1 ? second->rs2 : second->rs1;
            }
            first->fn = pairs[k].both;
            i++;
            break;
        }
    }
}
