/* slot.c: see slot.h. */
#include "slot.h"

void slot_open(struct slot *s, u64 expected, u32 first)
{
    *s = (struct slot){.expected = expected, .first = first};
}

/* May this round begin?  Only right after a round whose result has passed here: a child that sends
 * it has that result, which it could not have before every child had the one before. */
static bool may_begin(const struct slot *s, u32 round)
{
    const struct slot_version *v = &s->version[round & 1], *last = &s->version[~round & 1];
    if (v->state != SLOT_IDLE && v->state != SLOT_RESULT)
        return false;
    if (last->state == SLOT_IDLE)
        return v->state == SLOT_IDLE && round == s->first;
    return last->state == SLOT_RESULT && round == last->round + 1;
}

static bool is_earlier(const struct slot *s, const struct slot_version *v, u32 round)
{
    return round < (v->state == SLOT_IDLE ? s->first : v->round);
}

/* A round that has not begun. */
static bool is_later(const struct slot_version *v, u32 round)
{
    return v->state == SLOT_IDLE || round > v->round;
}

static bool same(struct slot_key a, struct slot_key b)
{
    return a.seq == b.seq && a.chunk == b.chunk;
}

enum slot_answer slot_judge(const struct slot *s, u32 round, struct slot_key key, u32 child,
                            enum verdict *why)
{
    const struct slot_version *v = &s->version[round & 1];
    *why = DROP_CHILD;
    if (child >= 64 || !(s->expected >> child & 1))
        return SLOT_REFUSE;
    *why = DROP_STALE;
    if (is_earlier(s, v, round))
        return SLOT_REFUSE;
    if (is_later(v, round)) {
        *why = DROP_FUTURE;
        return may_begin(s, round) ? SLOT_TAKE : SLOT_REFUSE;
    }
    *why = DROP_KEY;
    if (!same(v->key, key))
        return SLOT_REFUSE;
    *why = DROP_FAILED;
    if (v->state == SLOT_FAILED)
        return SLOT_REFUSE;
    if (!(v->arrived >> child & 1))
        return SLOT_TAKE;
    *why = DROP_DUPLICATE;
    if (v->state == SLOT_SENT)
        return SLOT_REPEAT_PARTIAL;
    return v->state == SLOT_RESULT ? SLOT_REPEAT_RESULT : SLOT_REFUSE;
}

struct slot_version *slot_take(struct slot *s, u32 round, struct slot_key key, u32 child)
{
    struct slot_version *v = slot_version(s, round);
    if (v->state == SLOT_IDLE || v->round != round)
        *v = (struct slot_version){.round = round, .state = SLOT_GATHERING, .key = key};
    v->arrived |= 1ull << child;
    return v;
}

void slot_park(struct slot_version *v, u32 child)
{
    v->parked |= 1ull << child;
}

u64 slot_ready(const struct slot *s, const struct slot_version *v)
{
    u64 waiting = v->parked & ~v->merged, missing = s->expected & ~v->parked;
    u64 before_gap = missing ? (missing & -missing) - 1 : ~0ull;
    return waiting & before_gap;
}

enum verdict slot_judge_result(const struct slot *s, u32 round, struct slot_key key)
{
    const struct slot_version *v = &s->version[round & 1];
    if (is_earlier(s, v, round))
        return DROP_STALE;
    if (is_later(v, round))
        return DROP_FUTURE;
    if (!same(v->key, key))
        return DROP_KEY;
    if (v->state == SLOT_FAILED)
        return DROP_FAILED;
    if (v->state == SLOT_RESULT)
        return DROP_DUPLICATE;
    return v->state == SLOT_SENT ? ACCEPTED : DROP_FUTURE;
}
