/* outlet.h: how a node hands frames to its links, and news to whoever runs the fabric.
 * Owns: the message, and what device.c, chunk.c and host.c call without knowing who does it: send
 * and wake are fabric.c's, stored and emitted exchange.c's, waits and broke failure.c's. */
#ifndef NICEMU_OUTLET_H
#define NICEMU_OUTLET_H

#include "buffer.h"
#include "group.h"
#include "known.h"
#include "packet.h"
#include "path.h"
#include "trace.h"

struct device;
struct worker;
struct call_end;

/* A payload and what is said about it. */
struct message {
    struct packet packet; /* src and dst are filled in by send, psn when it leaves */
    const u8 *payload;
    u32 bytes;
    struct buffer *owner; /* holds the payload, or NULL: memory that stays as it is */
    u64 source; /* number in the trace of what made it */
};

struct outlet {
    void *fabric;
    bool timed; /* is the way to each event noted? */
    struct path path; /* the way to what is done now */
    struct known *known; /* what calls take */
    bool reuse; /* a call that is known need not run */
    u64 work; /* instructions and elements of all handlers, ever */
    bool starved; /* the host had no memory for what takes time */
    struct trace trace;
    /* Send over a direction of a link, not before virtual time `at`. */
    void (*send)(void *fabric, u32 direction, struct message *m, u64 at);
    /* Call device_dma_idle at virtual time `at`. */
    void (*wake)(void *fabric, struct device *d, u32 cluster, u64 at);
    /* A worker has stored the result of its turn. */
    void (*stored)(void *fabric, struct worker *w, struct turn *t, struct buffer *result);
    /* A worker has sent its arrival for the turn that often without an answer; false when that is
     * not to be counted: a device is at work on it. */
    bool (*waits)(void *fabric, struct worker *w, u32 plane, struct turn *t, u32 resends);
    /* The device has the partial sum of a chunk. */
    void (*emitted)(void *fabric, struct device *d, struct exchange *e);
    /* A handler of the device ended otherwise than by returning 0. */
    void (*broke)(void *fabric, struct device *d, struct group *g, struct turn *t, u32 core,
                  const struct call_end *end);
};

/* What is done now goes on until `at`. */
static inline void outlet_until(struct outlet *o, enum stage stage, u64 at)
{
    if (o->timed)
        path_until(&o->path, stage, at);
}

/* What is done now goes back to `begin`, and has waited since then. */
static inline void outlet_since(struct outlet *o, u64 begin, enum stage stage, u64 now)
{
    if (!o->timed)
        return;
    o->path = path_from(begin);
    path_until(&o->path, stage, now);
}

#endif
