/* station.h: one core as the DMA engine sees it: where its accumulator, payloads and arguments
 * lie, in its own addresses and in the host's.
 * Owns: what a core sees of memory during a handler call, the call's arguments, the call.  Which
 * chunk is at work, and what is called when, belongs to nic.c and chunk.c.
 *
 * Payloads are not copied into the scratchpad: during a call, their slots there are windows on
 * where they are, of exactly their bytes, and the destination is one on where its bytes are to go.
 */
#ifndef NICEMU_STATION_H
#define NICEMU_STATION_H

#include "cores.h"

/* Fields of the context block that differ from call to call (guide/images.md). */
enum {
    CONTEXT_CONTRIBUTORS = 4,
    CONTEXT_RANK = 8,
    CONTEXT_DEVICE = 12,
    CONTEXT_CHILD = 16,
    CONTEXT_SEQ = 20,
    CONTEXT_CHUNK = 24,
    CONTEXT_GROUP = 28,
    CONTEXT_ELEMENT = 32,
    CONTEXT_BYTES = 64,
    ARGUMENT_BYTES = CONTEXT_BYTES + 8 * (NICEMU_MAX_FAN_IN + 1)
};

struct station {
    struct hart *hart;
    u64 accumulator, payloads, destination, end; /* in the core's scratchpad */
    u64 arguments, stack_top;
    u64 room; /* bytes from one payload slot to the next */
    u32 scratch; /* which region of the hart's map that is */
    struct region below, above; /* payloads and destination: what handlers may use as they like */
    u8 *host_arguments;
};

/* Bytes that a handler reads or writes. */
struct payload {
    const u8 *bytes;
    u64 n;
};
struct leaving {
    u8 *bytes;
    u64 n;
};

/* What a handler is called with. */
struct call {
    u64 pc;
    u32 slot, k; /* the k payloads lie in the slots from that one on */
    const struct payload *payloads;
    struct leaving destination; /* of what leaves; bytes NULL: nothing does */
    u64 count, budget; /* elements; see nicemu_call */
};

/* How a handler call ended. */
struct call_end {
    nicemu_stop stop;
    u64 status; /* what it returned; 0 = all is well */
};

/* Find the host's side of a station whose guest addresses are set, with room for `slots` payloads
 * and `leaving` bytes at the destination.  False when these are not in order and inside one region
 * of the core's own, or the arguments in another. */
bool station_open(struct station *s, u64 slots, u64 leaving);
/* Show the core its whole scratchpad. */
void station_close(const struct station *s);

/* Little-endian fields of the context block and the payload table; the host is little-endian. */
static inline void put32(u8 *p, u32 v)
{
    memcpy(p, &v, sizeof v);
}
static inline void put64(u8 *p, u64 v)
{
    memcpy(p, &v, sizeof v);
}
static inline u32 get32(const u8 *p)
{
    u32 v;
    memcpy(&v, p, sizeof v);
    return v;
}
static inline u64 get64(const u8 *p)
{
    u64 v;
    memcpy(&v, p, sizeof v);
    return v;
}

/* The widest of an entry's fan-in variants that takes no more than `payloads`. */
u32 widest(const u64 entries[NICEMU_MAX_FAN_IN + 1], u32 payloads);

/* Have a handler run; true when it returned 0.  The context block is in place. */
bool station_call(const struct station *s, const struct call *call, struct call_end *end);

#endif
