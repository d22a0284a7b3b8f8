/* mem.c: search of the address map (the slow half of mem.h). */
#include "mem.h"

static const struct region *holder(const struct region *r, u32 n, u64 addr)
{
    for (u32 i = 0; i < n; i++)
        if (addr - r[i].base < r[i].size)
            return &r[i];
    return NULL;
}

static const struct region *visible(const struct map *map, u64 addr)
{
    const struct region *r = holder(map->r, map->n, addr);
    bool covered = map->windows && r == &map->r[map->covered];
    return covered ? holder(map->window, map->windows, addr) : r;
}

const struct region *map_find(const struct map *map, u64 addr, u32 perm)
{
    const struct region *r = visible(map, addr);
    return r && (r->perm & perm) == perm ? r : NULL;
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
