/* buffer.h: reference-counted memory for payloads: results and partial sums that are kept to be
 * sent again, and what is under way. Owns: the count, the list of free ones, and that none carries
 * a job's bytes to another.  All buffers of a pool are of one size; the memory is the owner's, who
 * puts it into the pool with buffer_give. */
#ifndef NICEMU_BUFFER_H
#define NICEMU_BUFFER_H

#include "base.h"

struct buffer {
    struct buffers *pool;
    struct buffer *next; /* while free */
    u32 references;
    u32 job; /* whose bytes are in it */
    _Alignas(64) u8 bytes[];
};

struct buffers {
    struct buffer *free;
    u32 n_free;
    u32 size; /* bytes of each */
};

static inline void buffer_give(struct buffers *pool, struct buffer *b)
{
    b->pool = pool;
    b->next = pool->free;
    pool->free = b;
    pool->n_free++;
}

enum { NO_JOB = 0xffffffff };

/* One with a single reference, for bytes of that job.  The pool may not be empty. */
static inline struct buffer *buffer_take(struct buffers *pool, u32 job)
{
    struct buffer *b = pool->free;
    pool->free = b->next;
    pool->n_free--;
    b->references = 1;
    if (b->job != job)
        memset(b->bytes, 0, pool->size);
    b->job = job;
    return b;
}

static inline struct buffer *buffer_hold(struct buffer *b)
{
    if (b)
        b->references++;
    return b;
}

static inline void buffer_release(struct buffer *b)
{
    if (b && !--b->references)
        buffer_give(b->pool, b);
}

/* Give up what *kept refers to, for another or none. */
static inline void buffer_replace(struct buffer **kept, struct buffer *by)
{
    buffer_release(*kept);
    *kept = by;
}

#endif
