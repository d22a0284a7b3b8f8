/* mem.h: what one hart can see: up to 16 regions with byte-exact bounds and permissions.  For a
 * handler call, windows stand in the place of one of them: parts of it, and payloads where these
 * lie in the host's memory.
 * Owns: the address map and the bounds check of every access.  Knows nothing of harts or traps.
 *
 * Fast path: a span cache per kind of access, indexed by page number, whose entries hold a whole
 * region's bounds.  A hit proves the access; a miss searches the map and refills. */
#ifndef NICEMU_MEM_H
#define NICEMU_MEM_H

#include "base.h"
#include "nicemu.h"

enum {
    MAX_REGIONS = 16,
    MAX_WINDOWS = NICEMU_MAX_FAN_IN + 3,
    SPANS = 16,
    SPAN_BYTES = 4096,
    MIN_REGION = 64
};

struct region {
    u64 base, size;
    u8 *host;
    u32 perm;
};

struct map {
    u32 n, windows;
    u32 covered; /* with windows > 0: the region that they stand for */
    struct region r[MAX_REGIONS], window[MAX_WINDOWS];
};

/* A region as the fast path wants it.  `scalar` is size - 7: an offset below it leaves room for
 * eight bytes; 0, which never hits, in an empty entry and in that of a region without that room. */
struct span {
    u64 base, scalar, size;
    u8 *host;
};

static inline unsigned span_slot(u64 addr)
{
    return addr / SPAN_BYTES % SPANS;
}

/* A hit is never NULL; said so that callers test once. */
static inline u8 *within(const struct span *s, u64 off)
{
    u8 *p = s->host + off;
    if (!p)
        __builtin_unreachable();
    return p;
}

/* Host address of the n <= 8 bytes at addr, or NULL when this cache cannot prove them. */
static inline u8 *span_scalar(const struct span *cache, u64 addr)
{
    const struct span *s = &cache[span_slot(addr)];
    u64 off = addr - s->base;
    return likely(off < s->scalar) ? within(s, off) : NULL;
}

/* The same for n bytes of any number. */
static inline u8 *span_bytes(const struct span *cache, u64 addr, u64 n)
{
    const struct span *s = &cache[span_slot(addr)];
    u64 off = addr - s->base;
    return likely(off < s->scalar && n <= s->size - off) ? within(s, off) : NULL;
}

/* The region that holds addr and grants all of perm, or NULL. */
const struct region *map_find(const struct map *map, u64 addr, u32 perm);
/* Host address of n bytes at addr inside one region that grants perm.  Otherwise NULL and
 * *bad = the first byte that is out of reach. */
u8 *map_bytes(const struct map *map, u64 addr, u64 n, u32 perm, u64 *bad);
/* Remember region r in the cache for accesses near addr. */
static inline void span_fill(struct span *cache, const struct region *r, u64 addr)
{
    u64 scalar = r->size > 7 ? r->size - 7 : 0;
    cache[span_slot(addr)] = (struct span){r->base, scalar, r->size, r->host};
}

#endif
