/* fp_env.h: the floating-point environment while a hart runs.
 * Between enter and leave the host's FP unit works in the guest's rounding mode, with subnormals
 * kept and its sticky flags collecting the guest's; the caller's environment is put back by leave.
 * All code that runs in between is either integer code or means the guest's arithmetic. */
#ifndef NICEMU_FP_ENV_H
#define NICEMU_FP_ENV_H

#include "simd.h"
#include "vloops.h"

#if defined(__x86_64__)
#include <xmmintrin.h>

enum { MXCSR_DEFAULT = 0x1f80, MXCSR_FLAGS = 0x3f };

static inline u32 flags_of_mxcsr(u32 m)
{
    return (m & 1 ? NV : 0) | (m & 4 ? DZ : 0) | (m & 8 ? OF : 0) | (m & 16 ? UF : 0) |
           (m & 32 ? NX : 0);
}

/* Move the host's sticky flags into h->fflags. */
static inline void fp_env_collect(struct hart *h)
{
    if (!h->running)
        return;
    u32 m = _mm_getcsr();
    h->fflags |= flags_of_mxcsr(m);
    _mm_setcsr(m & ~(u32)MXCSR_FLAGS);
}

static inline void fp_env_apply(const struct hart *h)
{
    static const u8 rc[] = {[RNE] = 0, [RTZ] = 3, [RDN] = 1, [RUP] = 2};
    if (h->running)
        _mm_setcsr(MXCSR_DEFAULT | (u32)(h->frm <= RUP ? rc[h->frm] : 0) << 13);
}

static inline void fp_env_enter(struct hart *h)
{
    h->host_saved = _mm_getcsr();
    h->running = true;
    fp_env_apply(h);
}

static inline void fp_env_leave(struct hart *h)
{
    h->fflags |= flags_of_mxcsr(_mm_getcsr());
    h->running = false;
    _mm_setcsr(h->host_saved);
}
#else
static inline void fp_env_collect(struct hart *h)
{
    (void)h;
}
static inline void fp_env_apply(const struct hart *h)
{
    (void)h;
}
static inline void fp_env_enter(struct hart *h)
{
    h->running = true;
}
static inline void fp_env_leave(struct hart *h)
{
    h->running = false;
}
#endif

/* After a change of frm: which rounding modes the host may compute, and which vector loops serve.
 * The host has no RMM; with that mode, and with an invalid one, it stays in RNE for instructions
 * that name RNE themselves. */
static inline void fp_env_select(struct hart *h)
{
    fp_env_collect(h);
    bool host = h->simd->host_fp, mode = h->frm <= RUP;
    h->host_rm = (u8)(!host ? 0 : mode ? 1u << h->frm | 1u << RM_DYNAMIC : 1u << RNE);
    h->loops = mode ? h->simd->loops : &vec_loops_portable;
    fp_env_apply(h);
}

#endif
