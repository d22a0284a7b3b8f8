/* exec_sys.c: CSR instructions, environment calls, fences, return from traps. */
#include "hart.h"

/* May the hart touch this CSR now?  Privilege and read-only bits are in the number itself. */
static bool csr_allowed(const struct hart *h, u32 number, bool write)
{
    if (!csr_exists(h, number) || (number >> 8 & 3) > h->mode || (write && number >> 10 == 3))
        return false;
    bool counter = number >= 0xc00 && number <= 0xc1f;
    if (csr_needs(number) & h->missing)
        return false;
    return !counter || h->mode == MODE_M || h->mcounteren >> (number & 31) & 1;
}

enum csr_change { CSR_WRITE, CSR_SET, CSR_CLEAR };

static int csr_op(struct hart *h, const struct op *o, enum csr_change change, u64 operand)
{
    u32 number = (u32)o->imm;
    bool write = change == CSR_WRITE || o->rs1 != 0;
    if (!csr_allowed(h, number, write))
        return trap_illegal(h, o);
    u64 old = csr_read(h, number, hart_instret(h) - 1);
    if (write)
        csr_write(h, number,
                  change == CSR_WRITE ? operand
                  : change == CSR_SET ? old | operand
                                      : old & ~operand);
    RD = old;
    return NEXT;
}

#define CSR_BODY(name, change, operand)                                                            \
    BODY(name)                                                                                     \
    {                                                                                              \
        return csr_op(h, o, change, operand);                                                      \
    }
CSR_BODY(csrrw, CSR_WRITE, RS1)
CSR_BODY(csrrs, CSR_SET, RS1)
CSR_BODY(csrrc, CSR_CLEAR, RS1)
CSR_BODY(csrrwi, CSR_WRITE, o->rs1)
CSR_BODY(csrrsi, CSR_SET, o->rs1)
CSR_BODY(csrrci, CSR_CLEAR, o->rs1)

BODY(fence)
{
    return NEXT; /* memory is sequentially consistent already */
}

BODY(fence_i)
{
    h->pc = op_next_pc(h, o);
    return NX_FLUSH;
}

BODY(ecall)
{
    return trap(h, o, h->mode == MODE_M ? CAUSE_ECALL_M : CAUSE_ECALL_U, 0);
}

BODY(ebreak)
{
    return trap(h, o, CAUSE_BREAK, op_pc(h, o));
}

BODY(mret)
{
    if (h->mode != MODE_M)
        return trap_illegal(h, o);
    h->mode = h->mstatus & MSTATUS_MPP ? MODE_M : MODE_U;
    u64 mie = h->mstatus & MSTATUS_MPIE ? MSTATUS_MIE : 0;
    u64 keep = ~(MSTATUS_MIE | MSTATUS_MPP | (h->mode == MODE_M ? 0 : MSTATUS_MPRV));
    h->mstatus = (h->mstatus & keep) | mie | MSTATUS_MPIE;
    h->pc = h->mepc;
    return NX_JUMP;
}

/* No interrupt can arrive, so waiting for one is a no-operation. */
BODY(wfi)
{
    if (h->mode == MODE_U && h->mstatus & MSTATUS_TW)
        return trap_illegal(h, o);
    return NEXT;
}
