/* exec_i.c: integer computation and control flow: RV64I, M, Zba, Zbb, Zbs, Zicond.
 * Memory is in exec_mem.c, CSRs and traps in exec_sys.c. */
#include "alu.h"
#include "hart.h"

BODY(li)
{
    RD = IMM;
    return NEXT_VALUE(IMM);
}

#define ALU(name, operands, value)                                                                 \
    BODY(name)                                                                                     \
    {                                                                                              \
        u64 v = alu_##name(RS1, ALU_B_##operands);                                                 \
        RD = v;                                                                                    \
        return NEXT_VALUE(v);                                                                      \
    }
#include "alu.def"
#undef ALU

/* ---- control flow: targets are absolute, computed when decoded -------------------------- */

/* name_astray: its target is no multiple of 4, and there is no C */
#define BRANCH(name, cond)                                                                         \
    BODY(name)                                                                                     \
    {                                                                                              \
        u64 a = RS1, b = RS2;                                                                      \
        if (cond)                                                                                  \
            return follow(h, NX_TAKEN);                                                            \
        return follow(h, NX_FALL);                                                                 \
    }                                                                                              \
    static BODY(name##_astray)                                                                     \
    {                                                                                              \
        u64 a = RS1, b = RS2;                                                                      \
        if (cond)                                                                                  \
            return trap(h, o, CAUSE_MISALIGNED, IMM);                                              \
        return follow(h, NX_FALL);                                                                 \
    }
#define BRANCHES(B)                                                                                \
    B(beq, a == b)                                                                                 \
    B(bne, a != b)                                                                                 \
    B(blt, (i64)a < (i64)b)                                                                        \
    B(bge, (i64)a >= (i64)b)                                                                       \
    B(bltu, a < b)                                                                                 \
    B(bgeu, a >= b)
BRANCHES(BRANCH)

BODY(jal)
{
    RD = op_next_pc(h, o);
    return follow(h, NX_TAKEN);
}

static BODY(jal_astray)
{
    return trap(h, o, CAUSE_MISALIGNED, IMM);
}

BODY(jalr)
{
    u64 target = (RS1 + IMM) & ~1ull;
    RD = op_next_pc(h, o);
    h->pc = target;
    return NX_JUMP;
}

static BODY(jalr_to_word)
{
    u64 target = (RS1 + IMM) & ~1ull;
    if (target & 2)
        return trap(h, o, CAUSE_MISALIGNED, target);
    return x_jalr(h, o, last);
}

op_fn jump_to_word(op_fn plain, u64 target)
{
    static const struct {
        op_fn plain, astray;
    } rows[] = {
#define ROW(name, cond) {x_##name, x_##name##_astray},
        BRANCHES(ROW) ROW(jal, true)
#undef ROW
    };
    if (plain == x_jalr)
        return x_jalr_to_word;
    for (unsigned i = 0; target & 2 && i < COUNT_OF(rows); i++)
        if (rows[i].plain == plain)
            return rows[i].astray;
    return plain;
}
