/* cores.c: the functions of nicemu.h over harts and their memory. */
#define _DEFAULT_SOURCE /* MAP_ANONYMOUS */
#include "cores.h"
#include "decode.h"
#include "simd.h"
#include "timing.h"

#include <sys/mman.h>

/* ---- life ------------------------------------------------------------------------------- */

enum { HEAD = 64 }; /* in front of what is handed out: its size */

/* Zeroed, 64-byte aligned; NULL when there is none.  Straight from the system, which has no memory
 * for pages that nobody touches, and takes back what is freed: most of a hart's tables stay empty,
 * and calloc clears again what it hands out again. */
static void *alloc_aligned(u64 size)
{
    if (size > SIZE_MAX - HEAD)
        return NULL;
    u8 *p = mmap(NULL, size + HEAD, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
        return NULL;
    memcpy(p, &size, sizeof size);
    return p + HEAD;
}

static void free_aligned(void *p)
{
    if (!p)
        return;
    u8 *start = (u8 *)p - HEAD;
    u64 size;
    memcpy(&size, start, sizeof size);
    munmap(start, size + HEAD);
}

static bool vlen_ok(u32 vlen)
{
    return vlen == 128 || vlen == 256 || vlen == 512 || vlen == 1024;
}

static struct hart *hart_new(struct nicemu_cores *cores, u32 id, const nicemu_config *config)
{
    struct hart *h = alloc_aligned(sizeof *h);
    if (!h)
        return NULL;
    h->id = id;
    h->cores = cores;
    h->isa = cores->isa;
    h->simd = cores->simd;
    h->vlenb = config->vlen / 8;
    for (u32 r = 0; r < 32; r++)
        h->vreg[r] = h->v + (size_t)r * h->vlenb;
    h->vtypes = cores->vtypes;
    h->zvfh = cores->isa->extensions >> EXT_ZVFH & 1;
    h->trap_to_guest = config->trap_to_guest;
    h->arena = alloc_aligned(hart_arena_bytes());
    h->step = alloc_aligned(hart_step_bytes());
    return h;
}

void nicemu_close(nicemu_cores *cores)
{
    if (!cores)
        return;
    for (u32 i = 0; i < cores->n; i++) {
        struct hart *h = cores->harts[i];
        if (!h)
            continue;
        free_aligned(h->arena);
        free_aligned(h->step);
        free_aligned(h->timing);
        free_aligned(h);
    }
    free_aligned(cores->isa);
    free_aligned(cores);
}

int nicemu_open(const nicemu_config *config, nicemu_cores **out)
{
    const struct simd *simd = simd_choose(config->simd);
    *out = NULL;
    if (config->harts < 1 || config->harts > MAX_HARTS || !vlen_ok(config->vlen) || !simd)
        return NICEMU_EINVAL;
    struct nicemu_cores *cores = alloc_aligned(sizeof *cores);
    if (!cores)
        return NICEMU_ENOMEM;
    cores->simd = simd;
    cores->isa = alloc_aligned(sizeof *cores->isa);
    if (!cores->isa) {
        nicemu_close(cores);
        return NICEMU_ENOMEM;
    }
    isa_build(cores->isa, isa_extensions(config->extensions));
    if (simd->replace)
        simd->replace(cores->isa->fn);
    vtype_table(cores->vtypes, config->vlen / 8);
    cores->n = config->harts;
    for (u32 i = 0; i < cores->n; i++) {
        struct hart *h = cores->harts[i] = hart_new(cores, i, config);
        if (!h || !h->arena || !h->step) {
            nicemu_close(cores);
            return NICEMU_ENOMEM;
        }
        nicemu_reset(cores, i, 0);
    }
    *out = cores;
    return NICEMU_OK;
}

const char *nicemu_simd_name(const nicemu_cores *cores)
{
    return cores->simd->name;
}

static struct hart *hart_of(const struct nicemu_cores *cores, u32 i)
{
    return i < cores->n ? cores->harts[i] : NULL;
}

/* ---- memory ----------------------------------------------------------------------------- */

static u64 all_harts(const struct nicemu_cores *cores)
{
    return ~0ull >> (64 - cores->n);
}

static bool overlaps(const struct map *map, u64 base, u64 size)
{
    for (u32 i = 0; i < map->n; i++) {
        const struct region *r = &map->r[i];
        if (base - r->base < r->size || r->base - base < size)
            return true;
    }
    return false;
}

static void forget_spans(struct hart *h)
{
    memset(h->rspan, 0, sizeof h->rspan);
    memset(h->wspan, 0, sizeof h->wspan);
}

/* A window is soon asked for; one of many pages is not asked for all of them. */
static void expect(struct hart *h, const struct region *r)
{
    u64 end = r->base + r->size;
    if (r->size > 2 * SPAN_BYTES)
        return;
    for (u64 at = r->base; at < end; at += SPAN_BYTES) {
        if (r->perm & NICEMU_R)
            span_fill(h->rspan, r, at);
        if (r->perm & NICEMU_W && !h->watched)
            span_fill(h->wspan, r, at);
    }
}

void cores_show(struct hart *h, u32 covered, const struct region windows[], u32 n)
{
    h->map.windows = n;
    h->map.covered = covered;
    forget_spans(h);
    for (u32 i = 0; i < n; i++) {
        h->map.window[i] = windows[i];
        expect(h, &windows[i]);
    }
}

int nicemu_map(nicemu_cores *cores, uint64_t hart_mask, uint64_t base, uint64_t size, uint32_t perm,
               void *host)
{
    u64 all = all_harts(cores);
    if (!host || !(hart_mask & all) || (hart_mask & ~all) || size < MIN_REGION ||
        size > RETURN_PC || base > RETURN_PC - size || (perm & ~15u))
        return NICEMU_EINVAL;
    for (u32 i = 0; i < cores->n; i++) {
        if (!(hart_mask >> i & 1))
            continue;
        if (overlaps(&cores->harts[i]->map, base, size))
            return NICEMU_EOVERLAP;
        if (cores->harts[i]->map.n == MAX_REGIONS)
            return NICEMU_ENOMEM;
    }
    for (u32 i = 0; i < cores->n; i++) {
        struct hart *h = cores->harts[i];
        if (!(hart_mask >> i & 1))
            continue;
        h->map.r[h->map.n++] = (struct region){base, size, host, perm};
        forget_spans(h);
        hart_forget_code(h);
    }
    return NICEMU_OK;
}

int nicemu_read(const nicemu_cores *cores, uint32_t hart, uint64_t addr, void *out, size_t n)
{
    const struct hart *h = hart_of(cores, hart);
    u64 bad;
    if (!h)
        return NICEMU_EINVAL;
    const u8 *p = map_bytes(&h->map, addr, n, 0, &bad);
    if (!p)
        return NICEMU_EFAULT;
    memcpy(out, p, n);
    return NICEMU_OK;
}

int nicemu_write(nicemu_cores *cores, uint32_t hart, uint64_t addr, const void *in, size_t n)
{
    struct hart *h = hart_of(cores, hart);
    u64 bad;
    if (!h)
        return NICEMU_EINVAL;
    u8 *p = map_bytes(&h->map, addr, n, 0, &bad);
    if (!p)
        return NICEMU_EFAULT;
    memcpy(p, in, n);
    cores_break_reservations(cores, cores->n, addr, n);
    /* another hart may have decoded the same bytes */
    for (u32 i = 0; i < cores->n; i++)
        if (map_find(&cores->harts[i]->map, addr, NICEMU_X))
            hart_forget_code(cores->harts[i]);
    return NICEMU_OK;
}

/* ---- state ------------------------------------------------------------------------------ */

uint64_t *nicemu_x(nicemu_cores *cores, uint32_t hart)
{
    struct hart *h = hart_of(cores, hart);
    return h ? h->x : NULL;
}

uint64_t *nicemu_f(nicemu_cores *cores, uint32_t hart)
{
    struct hart *h = hart_of(cores, hart);
    return h ? h->f : NULL;
}

uint8_t *nicemu_v(nicemu_cores *cores, uint32_t hart)
{
    struct hart *h = hart_of(cores, hart);
    return h ? h->v : NULL;
}

uint64_t nicemu_get_pc(const nicemu_cores *cores, uint32_t hart)
{
    const struct hart *h = hart_of(cores, hart);
    return h ? h->pc : 0;
}

int nicemu_set_pc(nicemu_cores *cores, uint32_t hart, uint64_t pc)
{
    struct hart *h = hart_of(cores, hart);
    if (!h || pc % isa_ialign(h->isa))
        return NICEMU_EINVAL;
    h->pc = pc;
    return NICEMU_OK;
}

uint32_t nicemu_get_mode(const nicemu_cores *cores, uint32_t hart)
{
    const struct hart *h = hart_of(cores, hart);
    return h ? h->mode : 0;
}

int nicemu_set_mode(nicemu_cores *cores, uint32_t hart, uint32_t mode)
{
    struct hart *h = hart_of(cores, hart);
    if (!h || (mode != MODE_U && mode != MODE_M))
        return NICEMU_EINVAL;
    h->mode = (u8)mode;
    return NICEMU_OK;
}

int nicemu_csr_get(nicemu_cores *cores, uint32_t hart, uint32_t csr, uint64_t *value)
{
    struct hart *h = hart_of(cores, hart);
    if (!h)
        return NICEMU_EINVAL;
    if (!csr_exists(h, csr))
        return NICEMU_ENOCSR;
    *value = csr_read(h, csr, hart_instret(h));
    return NICEMU_OK;
}

int nicemu_csr_set(nicemu_cores *cores, uint32_t hart, uint32_t csr, uint64_t value)
{
    struct hart *h = hart_of(cores, hart);
    if (!h)
        return NICEMU_EINVAL;
    if (!csr_exists(h, csr))
        return NICEMU_ENOCSR;
    csr_write(h, csr, value);
    return NICEMU_OK;
}

int nicemu_reset(nicemu_cores *cores, uint32_t hart, uint64_t pc)
{
    struct hart *h = hart_of(cores, hart);
    if (!h || pc % isa_ialign(h->isa))
        return NICEMU_EINVAL;
    memset(h->x, 0, sizeof h->x);
    memset(h->f, 0, sizeof h->f);
    memset(h->v, 0, sizeof h->v);
    h->fflags = h->frm = 0;
    h->vl = h->vstart = 0;
    h->vxrm = h->vxsat = 0;
    h->vt = h->vtypes[VTYPE_ILL];
    h->has_reservation = false;
    h->mode = MODE_M;
    h->mstatus = h->mtvec = h->mepc = h->mcause = h->mtval = 0;
    h->mscratch = h->mie = h->mcounteren = h->menvcfg = 0;
    h->pc = pc;
    hart_refresh(h);
    return NICEMU_OK;
}

/* ---- execution -------------------------------------------------------------------------- */

void cores_break_reservations(struct nicemu_cores *cores, u32 writer, u64 addr, u64 n)
{
    for (u32 i = 0; i < cores->n; i++) {
        struct hart *h = cores->harts[i];
        if (i != writer && h->has_reservation &&
            (addr - h->reserved < GRANULE || h->reserved - addr < n))
            h->has_reservation = false;
    }
}

/* Before h runs: its stores take the slow path while another hart holds a reservation. */
static void watch(const struct nicemu_cores *cores, struct hart *h)
{
    bool held = false;
    for (u32 i = 0; i < cores->n; i++)
        held |= cores->harts[i] != h && cores->harts[i]->has_reservation;
    if (held && !h->watched)
        memset(h->wspan, 0, sizeof h->wspan);
    h->watched = held;
}

int nicemu_run(nicemu_cores *cores, uint32_t hart, uint64_t budget, nicemu_stop *out)
{
    struct hart *h = hart_of(cores, hart);
    if (!h)
        return NICEMU_EINVAL;
    watch(cores, h);
    hart_run(h, budget, out);
    return NICEMU_OK;
}

int nicemu_run_round_robin(nicemu_cores *cores, uint64_t hart_mask, uint64_t quantum,
                           uint64_t budget, uint32_t *which, nicemu_stop *out)
{
    if (quantum == 0 || !(hart_mask & all_harts(cores)))
        return NICEMU_EINVAL;
    *out = (nicemu_stop){.reason = NICEMU_STOP_BUDGET};
    *which = 0;
    for (u64 spent = 0; spent < budget; spent += quantum) {
        u64 turn = budget - spent < quantum ? budget - spent : quantum;
        for (u32 i = 0; i < cores->n; i++) {
            struct hart *h = cores->harts[i];
            if (!(hart_mask >> i & 1))
                continue;
            watch(cores, h);
            hart_run(h, turn, out);
            *which = i;
            if (out->reason != NICEMU_STOP_BUDGET)
                return NICEMU_OK;
        }
        if (UINT64_MAX - spent < quantum)
            break;
    }
    return NICEMU_OK;
}

int nicemu_call(nicemu_cores *cores, uint32_t hart, uint64_t pc, uint64_t sp,
                const uint64_t args[4], uint64_t budget, nicemu_stop *out)
{
    struct hart *h = hart_of(cores, hart);
    if (!h || pc % isa_ialign(h->isa))
        return NICEMU_EINVAL;
    watch(cores, h);
    hart_call(h, pc, sp, args, budget, out);
    return NICEMU_OK;
}

int nicemu_counters_get(nicemu_cores *cores, uint32_t hart, nicemu_counters *out)
{
    struct hart *h = hart_of(cores, hart);
    if (!h)
        return NICEMU_EINVAL;
    hart_counters(h, out);
    return NICEMU_OK;
}

int nicemu_counters_clear(nicemu_cores *cores, uint32_t hart)
{
    struct hart *h = hart_of(cores, hart);
    if (!h)
        return NICEMU_EINVAL;
    hart_clear_counters(h);
    return NICEMU_OK;
}

/* ---- time ------------------------------------------------------------------------------- */

static void end_time(struct hart *h)
{
    hart_forget_code(h); /* decoded for the other way of running */
    free_aligned(h->timing);
    h->timing = NULL;
}

int nicemu_time(nicemu_cores *cores, const nicemu_timing *timing)
{
    bool vector = cores->isa->extensions >> EXT_V & 1;
    if (timing && (!timing_valid(timing) || (vector && !timing->word)))
        return NICEMU_EINVAL;
    for (u32 i = 0; i < cores->n; i++)
        end_time(cores->harts[i]);
    for (u32 i = 0; timing && i < cores->n; i++) {
        struct hart *h = cores->harts[i];
        h->timing = alloc_aligned(sizeof *h->timing);
        if (!h->timing) {
            nicemu_time(cores, NULL);
            return NICEMU_ENOMEM;
        }
        timing_open(h, timing);
    }
    return NICEMU_OK;
}

int nicemu_cycles_get(nicemu_cores *cores, uint32_t hart, nicemu_cycles *out)
{
    struct hart *h = hart_of(cores, hart);
    *out = (nicemu_cycles){.cycles = 0};
    if (!h)
        return NICEMU_EINVAL;
    if (h->timing)
        timing_read(h->timing, out);
    return NICEMU_OK;
}

int nicemu_accesses(nicemu_cores *cores, uint32_t hart, nicemu_access *room, uint64_t size)
{
    struct hart *h = hart_of(cores, hart);
    if (!h || !h->timing)
        return NICEMU_EINVAL;
    timing_start_record(h->timing, room, size);
    return NICEMU_OK;
}

int nicemu_accesses_count(nicemu_cores *cores, uint32_t hart, uint64_t *count)
{
    struct hart *h = hart_of(cores, hart);
    if (!h || !h->timing)
        return NICEMU_EINVAL;
    *count = h->timing->record.used;
    return NICEMU_OK;
}
