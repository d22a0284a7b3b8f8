/* csr.c: what each CSR holds.  Who may touch one is decided in exec_sys.c. */
#include "decode.h"
#include "fp_env.h"

#define CSR(id, number, ext, kind) CSR_##id = number,
enum csr {
#include "csr.def"
};
#undef CSR

enum csr_kind { KEPT, ZERO };
struct csr_row {
    const char *name;
    u16 number;
    u8 ext, kind;
};
#define CSR(id, number, ext, kind) {#id, number, EXT_##ext, kind},
static const struct csr_row csr_rows[] = {
#include "csr.def"
};
#undef CSR

static const struct csr_row *find(u32 number)
{
    for (unsigned i = 0; i < COUNT_OF(csr_rows); i++)
        if (csr_rows[i].number == number)
            return &csr_rows[i];
    return NULL;
}

int nicemu_csr_row(uint32_t i, const char **name)
{
    if (i >= COUNT_OF(csr_rows))
        return -1;
    *name = csr_rows[i].name;
    return csr_rows[i].number;
}

const char *csr_name(u32 number)
{
    const struct csr_row *row = find(number);
    return row ? row->name : NULL;
}

bool csr_is_zero(u32 number)
{
    const struct csr_row *row = find(number);
    return row && row->kind == ZERO;
}

bool csr_exists(const struct hart *h, u32 number)
{
    const struct csr_row *row = find(number);
    return row && h->isa->extensions >> row->ext & 1;
}

u32 csr_needs(u32 number)
{
    const struct csr_row *row = find(number);
    return !row ? 0 : row->ext == EXT_F ? NEED_F : row->ext == EXT_V ? NEED_V : 0;
}

/* The switches below have no default, so that the compiler names a row without a case. */
#define CASE_ZERO(id) case CSR_##id:
#define CASE_KEPT(id)
#define CSR(id, number, ext, kind) CASE_##kind(id)

static u64 read_misa(const struct hart *h)
{
    static const struct {
        u8 ext;
        char letter;
    } letters[] = {{EXT_I, 'i'}, {EXT_M, 'm'}, {EXT_A, 'a'}, {EXT_F, 'f'},
                   {EXT_D, 'd'}, {EXT_C, 'c'}, {EXT_V, 'v'}};
    const u64 b = 1ull << EXT_ZBA | 1ull << EXT_ZBB | 1ull << EXT_ZBS;
    u64 misa = 2ull << 62 | 1ull << ('u' - 'a'); /* MXL = 64; U-mode is there */
    if ((h->isa->extensions & b) == b)
        misa |= 1ull << ('b' - 'a');
    for (unsigned i = 0; i < COUNT_OF(letters); i++)
        if (h->isa->extensions >> letters[i].ext & 1)
            misa |= 1ull << (letters[i].letter - 'a');
    return misa;
}

/* SD sums up whether FS or VS is dirty (3). */
static u64 read_mstatus(const struct hart *h)
{
    bool dirty = (h->mstatus & MSTATUS_FS) == MSTATUS_FS || (h->mstatus & MSTATUS_VS) == MSTATUS_VS;
    return h->mstatus | MSTATUS_UXL64 | (dirty ? MSTATUS_SD : 0);
}

static void write_mstatus(struct hart *h, u64 v)
{
    u64 writable = MSTATUS_MIE | MSTATUS_MPIE | MSTATUS_MPRV | MSTATUS_TW;
    if (h->isa->extensions >> EXT_F & 1)
        writable |= MSTATUS_FS;
    if (h->isa->extensions >> EXT_V & 1)
        writable |= MSTATUS_VS;
    u64 mpp = (v & MSTATUS_MPP) == MSTATUS_MPP ? MSTATUS_MPP : 0; /* S and H do not exist: U */
    h->mstatus = (v & writable) | mpp;
}

static u64 fflags_now(struct hart *h)
{
    fp_env_collect(h);
    return h->fflags;
}

u64 csr_read(struct hart *h, u32 number, u64 retired)
{
    switch ((enum csr)number) {
    case CSR_fflags:
        return fflags_now(h);
    case CSR_frm:
        return h->frm;
    case CSR_fcsr:
        return (u64)h->frm << 5 | fflags_now(h);
    case CSR_vstart:
        return h->vstart;
    case CSR_vxsat:
        return h->vxsat;
    case CSR_vxrm:
        return h->vxrm;
    case CSR_vcsr:
        return (u64)h->vxrm << 1 | h->vxsat;
    case CSR_vl:
        return h->vl;
    case CSR_vtype:
        return h->vt.ill ? 1ull << 63 : h->vt.code;
    case CSR_vlenb:
        return h->vlenb;
    case CSR_cycle:
    case CSR_mcycle:
        return retired - h->cycle_base; /* unit costs: one cycle an instruction */
    case CSR_time: /* one tick a cycle: there is no platform timer to read */
        return retired;
    case CSR_instret:
    case CSR_minstret:
        return retired - h->instret_base;
    case CSR_mhartid:
        return h->id;
    case CSR_mstatus:
        return read_mstatus(h);
    case CSR_misa:
        return read_misa(h);
    case CSR_mie:
        return h->mie;
    case CSR_mtvec:
        return h->mtvec;
    case CSR_mcounteren:
        return h->mcounteren;
    case CSR_menvcfg:
        return h->menvcfg;
    case CSR_mscratch:
        return h->mscratch;
    case CSR_mepc:
        return h->mepc;
    case CSR_mcause:
        return h->mcause;
    case CSR_mtval:
        return h->mtval;
#include "csr.def"
        return 0;
    }
    return 0; /* csr_exists has been asked: never here */
}

static void refresh_units(struct hart *h)
{
    u64 fs = h->mstatus & MSTATUS_FS, vs = h->mstatus & MSTATUS_VS;
    h->missing = (fs ? 0 : NEED_F) | (vs ? 0 : NEED_V) | (h->frm <= RMM ? 0 : NEED_FRM);
    h->step_needs = h->missing | (fs == MSTATUS_FS ? 0 : NEED_F) | (vs == MSTATUS_VS ? 0 : NEED_V);
}

void hart_refresh(struct hart *h)
{
    refresh_units(h);
    fp_env_select(h);
}

void hart_mark_dirty(struct hart *h, u32 needs)
{
    h->mstatus |= (needs & NEED_F ? MSTATUS_FS : 0) | (needs & NEED_V ? MSTATUS_VS : 0);
    refresh_units(h);
}

void csr_write(struct hart *h, u32 number, u64 v)
{
    switch ((enum csr)number) {
    case CSR_fflags:
        fp_env_collect(h);
        h->fflags = v & 31;
        break;
    case CSR_frm:
        h->frm = v & 7;
        break;
    case CSR_fcsr:
        fp_env_collect(h);
        h->fflags = v & 31;
        h->frm = v >> 5 & 7;
        break;
    case CSR_vstart: /* as many bits as the largest element index needs */
        h->vstart = v & (h->vlenb * 8 - 1);
        break;
    case CSR_vxsat:
        h->vxsat = v & 1;
        break;
    case CSR_vxrm:
        h->vxrm = v & 3;
        break;
    case CSR_vcsr:
        h->vxsat = v & 1;
        h->vxrm = v >> 1 & 3;
        break;
    case CSR_mcycle: /* the next instruction reads v, as for minstret */
        h->cycle_base = hart_instret(h) - v;
        break;
    case CSR_minstret:
        h->instret_base = hart_instret(h) - v;
        break;
    case CSR_mstatus:
        write_mstatus(h, v);
        break;
    case CSR_mie:
        h->mie = v & 0x888; /* machine software, timer and external interrupts */
        break;
    case CSR_mtvec:
        h->mtvec = v & ~2ull;
        break;
    case CSR_mcounteren:
        h->mcounteren = v & 7; /* cycle, time, instret */
        break;
    case CSR_menvcfg:
        h->menvcfg = v & 1; /* FIOM */
        break;
    case CSR_mscratch:
        h->mscratch = v;
        break;
    case CSR_mepc:
        h->mepc = v & -isa_ialign(h->isa);
        break;
    case CSR_mcause:
        h->mcause = v;
        break;
    case CSR_mtval:
        h->mtval = v;
        break;
    /* read-only by their number (the host may try), or fixed */
    case CSR_vl:
    case CSR_vtype:
    case CSR_vlenb:
    case CSR_cycle:
    case CSR_time:
    case CSR_instret:
    case CSR_mhartid:
    case CSR_misa:
#include "csr.def"
        return;
    }
    hart_mark_dirty(h, csr_needs(number));
    hart_refresh(h);
}
#undef CSR
