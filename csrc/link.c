/* link.c: see link.h. */
#include "link.h"
#include "path.h"

/* splitmix64's output function: neighbouring inputs give unrelated outputs. */
static u64 mix(u64 x)
{
    x += 0x9e3779b97f4a7c15ull;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ x >> 27) * 0x94d049bb133111ebull;
    return x ^ x >> 31;
}

/* One random number for each question about a frame, and for each about a copy of it. */
enum { LOST, DUPLICATED, OF_COPIES };
enum { REORDERED, SPAN, JITTER, CORRUPTED, FLIP, PER_COPY };
enum { QUESTIONS = OF_COPIES + 2 * PER_COPY };

static u64 draw(const struct link *l, u64 frame, u32 question)
{
    return mix(l->key + mix(frame * QUESTIONS + question));
}

/* An event of probability p / 2^32. */
static bool chance(const struct link *l, u64 frame, u32 question, u64 p)
{
    return p && (draw(l, frame, question) >> 32) < p;
}

/* A number below n. */
static u64 below(const struct link *l, u64 frame, u32 question, u64 n)
{
    return (u64)((u128)draw(l, frame, question) * n >> 64);
}

void link_open(struct link *l, const nicemu_link_config *config, u64 seed, u32 direction)
{
    const nicemu_link_config *c = config;
    *l = (struct link){
        .config = *c,
        .clean = !(c->loss | c->duplicate | c->reorder | c->corrupt | c->jitter),
        .key = mix(mix(seed) + direction),
    };
}

static void add_copy(struct link *l, u64 frame, struct fate *f)
{
    const nicemu_link_config *c = &l->config;
    u32 i = f->copies++, of_copy = OF_COPIES + i * PER_COPY;
    f->delay[i] = c->delay + below(l, frame, of_copy + JITTER, c->jitter);
    if (chance(l, frame, of_copy + REORDERED, c->reorder)) {
        f->delay[i] += 1 + below(l, frame, of_copy + SPAN, c->span);
        l->counters.reordered++;
    }
    f->corrupt[i] = chance(l, frame, of_copy + CORRUPTED, c->corrupt);
    f->flip[i] = draw(l, frame, of_copy + FLIP);
    l->counters.corrupted += f->corrupt[i];
}

struct fate link_send(struct link *l)
{
    struct fate f = {.copies = 0};
    u64 frame = l->frames++;
    l->counters.sent++;
    if (l->downs & 1) {
        l->counters.cut++;
        return f;
    }
    if (l->clean) {
        f.copies = 1;
        f.delay[0] = l->config.delay;
        return f;
    }
    if (chance(l, frame, LOST, l->config.loss)) {
        l->counters.lost++;
        return f;
    }
    add_copy(l, frame, &f);
    if (chance(l, frame, DUPLICATED, l->config.duplicate)) {
        l->counters.duplicated++;
        add_copy(l, frame, &f);
    }
    return f;
}

struct departure link_depart(struct link *l, u64 bytes, u64 now)
{
    u64 start = l->free_at > now ? l->free_at : now;
    l->free_at = start + (bytes + l->config.overhead) * l->config.byte_time / FEMTOSECONDS;
    return (struct departure){start, l->free_at};
}

bool link_arrives(struct link *l, u32 downs)
{
    bool whole = downs == l->downs;
    l->counters.delivered += whole;
    l->counters.cut += !whole;
    return whole;
}

void link_set_down(struct link *l, bool down)
{
    if ((l->downs & 1) != down)
        l->downs++;
}
