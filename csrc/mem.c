/* mem.c: search of the address map (the slow half of mem.h). */
#include "mem.h"

const struct region *map_find(const struct map *map, u64 addr, u32 perm)
{
    for (u32 i = 0; i < map->n; i++) {
        const struct region *r = &map->r[i];
        if (addr - r->base < r->size)
            return (r->perm & perm) == perm ? r : NULL;
    }
    return NULL;
}

u8 *map_bytes(const struct map *map, u64 addr, u64 n, u32 perm, u64 *bad)
{
    const struct region *r = map_find(map, addr, perm);
    if (!r) {
        *bad = addr;
        return NULL;
    }
    u64 off = addr - r->base;
    if (n > r->size - off) {
        *bad = r->base + r->size;
        return NULL;
    }
    return r->host + off;
}

void span_fill(struct span *cache, const struct region *r, u64 addr)
{
    cache[span_slot(addr)] = (struct span){r->base, r->size - 7, r->size, r->host};
}
