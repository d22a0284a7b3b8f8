/* station.h: one core as the DMA engine sees it: where its accumulator, payloads and arguments
 * lie, in its own addresses and in the host's.
 * Owns: moving bytes into and out of a core's scratchpad, the context block, one handler call.
 * Which chunk is at work, and what is called when, belongs to nic.c and device.c. */
#ifndef NICEMU_STATION_H
#define NICEMU_STATION_H

#include "hart.h"

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
    ARGUMENT_BYTES = CONTEXT_BYTES + 8 * NICEMU_MAX_FAN_IN
};

struct station {
    struct hart *hart;
    u64 accumulator, payloads, destination, arguments, stack_top;
    u64 room; /* bytes from one payload slot to the next */
    u8 *host_payloads, *host_destination, *host_arguments;
};

/* How a handler call ended. */
struct call_end {
    nicemu_stop stop;
    u64 status; /* what it returned; 0 = all is well */
};

/* Find the host addresses of `payloads` payload slots, `leaving` bytes of destination and the
 * arguments; the guest's are set already.  False when they are not all the core's own. */
bool station_open(struct station *s, u64 payloads, u64 leaving);

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

/* DMA a payload into slot i. */
static inline void station_park(const struct station *s, u32 i, const void *from, u64 bytes)
{
    memcpy(s->host_payloads + i * s->room, from, bytes);
}

/* The widest of an entry's fan-in variants that takes no more than `payloads`. */
u32 widest(const u64 entries[NICEMU_MAX_FAN_IN + 1], u32 payloads);

/* Have the handler at pc merge the k payloads from slot i on, or (k = 0) fill the destination;
 * true when it returned 0.  The context block is in place. */
bool station_call(const struct station *s, u64 pc, u32 i, u32 k, u64 count, u64 budget,
                  struct call_end *end);

#endif
