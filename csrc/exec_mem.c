/* exec_mem.c: scalar loads and stores, LR/SC and AMOs, and the slow path behind every access.
 * Harts never run at the same time when they share writable memory (cores.c), so a plain
 * read-modify-write is atomic. */
#include "cores.h"
#include "timing.h"

/* ---- slow path: out of line, so that the bodies below stay small leaf functions --------- */

#define SLOW __attribute__((noinline, cold))

SLOW u8 *load_slow(struct hart *h, u64 addr, u64 n)
{
    u8 *p = map_bytes(&h->map, addr, n, NICEMU_R, &h->trap.tval);
    if (p)
        span_fill(h->rspan, map_find(&h->map, addr, NICEMU_R), addr);
    return p;
}

SLOW u8 *store_slow(struct hart *h, u64 addr, u64 n)
{
    u8 *p = map_bytes(&h->map, addr, n, NICEMU_W, &h->trap.tval);
    if (!p)
        return NULL;
    if (h->watched)
        cores_break_reservations(h->cores, h->id, addr, n);
    const struct region *r = map_find(&h->map, addr, NICEMU_W);
    if (!h->watched && !(r->perm & NICEMU_HTIF)) /* these must be seen here every time */
        span_fill(h->wspan, r, addr);
    return p;
}

bool store_hit_htif(const struct hart *h, u64 addr)
{
    return map_find(&h->map, addr, NICEMU_W | NICEMU_HTIF) != NULL;
}

int stop_htif(struct hart *h, const struct op *o, u64 addr)
{
    h->trap = (struct trap){o, addr, NICEMU_STOP_HTIF};
    return NX_STOP;
}

/* ---- loads and stores ------------------------------------------------------------------- */

/* With a clock, the body name_metered: name_across tells it that the access touches more than one
 * word of the data port. */
#define METER(name, size)                                                                          \
    if (unlikely((((RS1 + IMM) + (size)-1) ^ (RS1 + IMM)) & h->port_word))                         \
    return x_##name##_across(h, o, last)
#define ACROSS(name, size)                                                                         \
    SLOW static BODY(name##_across)                                                                \
    {                                                                                              \
        timing_access(h, o, RS1 + IMM, size);                                                      \
        return x_##name(h, o, last);                                                               \
    }

/* dst = the value of type T at rs1 + imm, widened by `wide`; name_away is what the fast path could
 * not prove */
#define LOAD_BODY(body, name, meter, T, dst, wide)                                                 \
    BODY(body)                                                                                     \
    {                                                                                              \
        T v;                                                                                       \
        meter;                                                                                     \
        const u8 *p = span_scalar(h->rspan, RS1 + IMM);                                            \
        if (unlikely(!p))                                                                          \
            return x_##name##_away(h, o, last);                                                    \
        memcpy(&v, p, sizeof v);                                                                   \
        dst = (u64)(wide);                                                                         \
        return NEXT;                                                                               \
    }
#define LOAD(name, T, dst, wide)                                                                   \
    SLOW static BODY(name##_away)                                                                  \
    {                                                                                              \
        T v;                                                                                       \
        const u8 *p = load_slow(h, RS1 + IMM, sizeof v);                                           \
        if (!p)                                                                                    \
            return trap(h, o, CAUSE_LOAD, h->trap.tval);                                           \
        memcpy(&v, p, sizeof v);                                                                   \
        dst = (u64)(wide);                                                                         \
        return NEXT;                                                                               \
    }                                                                                              \
    LOAD_BODY(name, name, , T, dst, wide)                                                          \
    ACROSS(name, sizeof(T))                                                                        \
    static LOAD_BODY(name##_metered, name, METER(name, sizeof v), T, dst, wide)
/* The store that the fast path could not prove: same effect, then perhaps the host is told.  The
 * value comes in a register: a local whose address is taken would forbid the tail call. */
SLOW static int store_away(struct hart *h, const struct op *o, u64 addr, u64 v, u64 n)
{
    u8 *p = store_slow(h, addr, n);
    if (!p)
        return trap(h, o, CAUSE_STORE, h->trap.tval);
    memcpy(p, &v, n);
    if (store_hit_htif(h, addr))
        return stop_htif(h, o, addr);
    return NEXT;
}
#define STORE_BODY(body, meter, T, src)                                                            \
    BODY(body)                                                                                     \
    {                                                                                              \
        T v = (T)(src);                                                                            \
        u64 addr = RS1 + IMM;                                                                      \
        meter;                                                                                     \
        u8 *p = span_scalar(h->wspan, addr);                                                       \
        if (unlikely(!p))                                                                          \
            return store_away(h, o, addr, v, sizeof v);                                            \
        memcpy(p, &v, sizeof v);                                                                   \
        return NEXT;                                                                               \
    }
#define STORE(name, T, src)                                                                        \
    STORE_BODY(name, , T, src)                                                                     \
    ACROSS(name, sizeof(T))                                                                        \
    static STORE_BODY(name##_metered, METER(name, sizeof v), T, src)

#define BOX16 0xffffffffffff0000ull
#define BOX32 0xffffffff00000000ull

#define LOADS(L)                                                                                   \
    L(lb, i8, RD, (i64)v)                                                                          \
    L(lh, i16, RD, (i64)v)                                                                         \
    L(lw, i32, RD, (i64)v)                                                                         \
    L(ld, u64, RD, v)                                                                              \
    L(lbu, u8, RD, v)                                                                              \
    L(lhu, u16, RD, v)                                                                             \
    L(lwu, u32, RD, v)                                                                             \
    L(flh, u16, h->f[o->rd], BOX16 | v)                                                            \
    L(flw, u32, h->f[o->rd], BOX32 | v)                                                            \
    L(fld, u64, h->f[o->rd], v)
#define STORES(S)                                                                                  \
    S(sb, u8, RS2)                                                                                 \
    S(sh, u16, RS2)                                                                                \
    S(sw, u32, RS2)                                                                                \
    S(sd, u64, RS2)                                                                                \
    S(fsh, u16, h->f[o->rs2])                                                                      \
    S(fsw, u32, h->f[o->rs2])                                                                      \
    S(fsd, u64, h->f[o->rs2])
LOADS(LOAD)
STORES(STORE)

op_fn meter_access(op_fn plain)
{
    static const struct {
        op_fn plain, metered;
    } rows[] = {
#define ROW(name, ...) {x_##name, x_##name##_metered},
        LOADS(ROW) STORES(ROW)
#undef ROW
    };
    for (unsigned i = 0; i < COUNT_OF(rows); i++)
        if (rows[i].plain == plain)
            return rows[i].metered;
    return plain;
}

/* ---- A ---------------------------------------------------------------------------------- */

/* Atomics must be naturally aligned (the manual lets an implementation trap otherwise). */
enum { CAUSE_LOAD_MISALIGNED = 4, CAUSE_STORE_MISALIGNED = 6 };

static inline const u8 *load_at(struct hart *h, u64 addr, u64 n)
{
    const u8 *p = span_scalar(h->rspan, addr);
    return likely(p != NULL) ? p : load_slow(h, addr, n);
}
static inline u8 *store_at(struct hart *h, u64 addr, u64 n)
{
    u8 *p = span_scalar(h->wspan, addr);
    return likely(p != NULL) ? p : store_slow(h, addr, n);
}

#define LOAD_RESERVED(name, T)                                                                     \
    BODY(name)                                                                                     \
    {                                                                                              \
        T v;                                                                                       \
        u64 addr = RS1;                                                                            \
        if (addr % sizeof v)                                                                       \
            return trap(h, o, CAUSE_LOAD_MISALIGNED, addr);                                        \
        const u8 *p = load_at(h, addr, sizeof v);                                                  \
        if (unlikely(!p))                                                                          \
            return trap(h, o, CAUSE_LOAD, h->trap.tval);                                           \
        memcpy(&v, p, sizeof v);                                                                   \
        h->reserved = addr - addr % GRANULE;                                                       \
        h->has_reservation = true;                                                                 \
        RD = (u64)(i64)v;                                                                          \
        return NEXT;                                                                               \
    }
LOAD_RESERVED(lr_w, i32)
LOAD_RESERVED(lr_d, i64)

#define STORE_CONDITIONAL(name, T)                                                                 \
    BODY(name)                                                                                     \
    {                                                                                              \
        T v = (T)RS2;                                                                              \
        u64 addr = RS1;                                                                            \
        if (addr % sizeof v)                                                                       \
            return trap(h, o, CAUSE_STORE_MISALIGNED, addr);                                       \
        bool held = h->has_reservation && addr - h->reserved < GRANULE;                            \
        /* one that fails stores nothing, so others' reservations stay: else two could starve */   \
        u8 *p = held ? store_at(h, addr, sizeof v)                                                 \
                     : map_bytes(&h->map, addr, sizeof v, NICEMU_W, &h->trap.tval);                \
        if (unlikely(!p))                                                                          \
            return trap(h, o, CAUSE_STORE, h->trap.tval);                                          \
        h->has_reservation = false;                                                                \
        if (held)                                                                                  \
            memcpy(p, &v, sizeof v);                                                               \
        RD = !held;                                                                                \
        if (held && store_hit_htif(h, addr))                                                       \
            return stop_htif(h, o, addr);                                                          \
        return NEXT;                                                                               \
    }
STORE_CONDITIONAL(sc_w, u32)
STORE_CONDITIONAL(sc_d, u64)

/* rd = old value a; memory = expr of a and b (rs2), in type T */
#define AMO(name, T, expr)                                                                         \
    BODY(name)                                                                                     \
    {                                                                                              \
        T a, b = (T)RS2, r;                                                                        \
        u64 addr = RS1;                                                                            \
        if (addr % sizeof a)                                                                       \
            return trap(h, o, CAUSE_STORE_MISALIGNED, addr);                                       \
        if (unlikely(!map_find(&h->map, addr, NICEMU_R | NICEMU_W)))                               \
            return trap(h, o, CAUSE_STORE, addr);                                                  \
        u8 *p = store_at(h, addr, sizeof a);                                                       \
        if (unlikely(!p))                                                                          \
            return trap(h, o, CAUSE_STORE, h->trap.tval);                                          \
        memcpy(&a, p, sizeof a);                                                                   \
        r = (T)(expr);                                                                             \
        memcpy(p, &r, sizeof r);                                                                   \
        RD = sizeof a == 4 ? (u64)(i64)(i32)a : (u64)a;                                            \
        if (store_hit_htif(h, addr))                                                               \
            return stop_htif(h, o, addr);                                                          \
        return NEXT;                                                                               \
    }
#define AMO_BOTH(name, U, S)                                                                       \
    AMO(amoswap_##name, U, b)                                                                      \
    AMO(amoadd_##name, U, a + b)                                                                   \
    AMO(amoxor_##name, U, a ^ b)                                                                   \
    AMO(amoand_##name, U, a &b)                                                                    \
    AMO(amoor_##name, U, a | b)                                                                    \
    AMO(amomin_##name, S, a < b ? a : b)                                                           \
    AMO(amomax_##name, S, a > b ? a : b)                                                           \
    AMO(amominu_##name, U, a < b ? a : b)                                                          \
    AMO(amomaxu_##name, U, a > b ? a : b)
AMO_BOTH(w, u32, i32)
AMO_BOTH(d, u64, i64)
