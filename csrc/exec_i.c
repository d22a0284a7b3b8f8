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

#define BRANCH(name, cond)                                                                         \
    BODY(name)                                                                                     \
    {                                                                                              \
        u64 a = RS1, b = RS2;                                                                      \
        if (cond)                                                                                  \
            return follow(h, NX_TAKEN);                                                            \
        return follow(h, NX_FALL);                                                                 \
    }
BRANCH(beq, a == b)
BRANCH(bne, a != b)
BRANCH(blt, (i64)a < (i64)b)
BRANCH(bge, (i64)a >= (i64)b)
BRANCH(bltu, a < b)
BRANCH(bgeu, a >= b)

BODY(jal)
{
    RD = op_next_pc(h, o);
    return follow(h, NX_TAKEN);
}

BODY(jalr)
{
    u64 target = (RS1 + IMM) & ~1ull;
    RD = op_next_pc(h, o);
    h->pc = target;
    return NX_JUMP;
}
