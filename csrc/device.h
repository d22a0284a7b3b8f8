/* device.h: a NIC or a switch: what happens to a frame from its receiving to the frames that leave.
 * Owns: the slots of each group with their places in the scratchpads, which frame is taken, what
 * waits for a DMA engine.  What is done with what is there is chunk.c's; the slot's protocol is
 * slot.c's, the links fabric.c's. */
#ifndef NICEMU_DEVICE_H
#define NICEMU_DEVICE_H

#include "outlet.h"
#include "schedule.h"
#include "slot.h"
#include "station.h"

enum { MAX_CHILDREN = NICEMU_MAX_CHILDREN };

/* A child of a device in one group; children are numbered in the order of the device's links. */
struct child {
    u32 node;
    u32 direction; /* towards it */
    u32 workers; /* that send through it */
    u32 first; /* the lowest of them */
    struct member *member; /* the child device's; NULL: a host */
    struct inbound *waiting; /* what it has sent, for a DMA engine */
};

/* What is kept of one version of a slot. */
struct kept {
    struct message up, down; /* the partial sum that was sent, the result; bytes held by owner */
    struct buffer *moved; /* while gathering: what the owner sent */
    u32 moved_bytes;
    u32 merged; /* workers whose elements are in the accumulator */
    u32 core; /* that had the last handler call */
    u64 ready; /* virtual time at which it is over; where payloads are moved on, the DMA */
    u64 record; /* number in the trace of the turn's beginning, then of the last handler call */
};

/* A child's payload that waits to be merged. */
struct parked {
    struct payload payload;
    struct buffer *owner; /* NULL: memory that stays as it is */
    u64 record; /* number in the trace of the frame that brought it */
};

/* One that waits to be moved to where it is parked. */
struct queued {
    struct inbound inbound;
    struct queued *next; /* while free */
    struct member *member;
    struct place place;
    u32 child;
    struct parked in;
    struct path path; /* the way to its being parsed */
};
_Static_assert(offsetof(struct queued, inbound) == 0, "it is found by what waits");

static inline struct queued *queued_of(const struct inbound *i)
{
    return (struct queued *)i;
}

/* Those that are free; there is one for each frame that comes. */
struct queued_pool {
    struct queued *free;
};

static inline void queued_give(struct queued_pool *pool, struct queued *q)
{
    q->next = pool->free;
    pool->free = q;
}

static inline struct queued *queued_take(struct queued_pool *pool)
{
    struct queued *q = pool->free;
    pool->free = q->next;
    return q;
}

struct lane {
    struct slot slot;
    struct station station;
    struct kept kept[2];
    struct parked *parked; /* one for each payload slot */
};

/* A group at a device. */
struct member {
    struct device *device;
    struct group *group;
    u32 plane;
    bool root;
    u32 workers; /* below the device */
    u32 first; /* the lowest of them */
    u32 parent; /* node */
    u32 up; /* direction towards it */
    u32 as_child; /* which child of the parent this device is */
    u32 children;
    u64 devices; /* bit c: child c is a device, and sends partial sums */
    struct child child[MAX_CHILDREN];
    u8 *child_of; /* worker -> the child it is behind, or NO_CHILD */
    u64 offset, lane_bytes, end; /* place of the lanes in every core's scratchpad */
    u32 slots; /* payload slots of a lane */
    struct lane *lane; /* window of them; lane i belongs to core i mod cores */
    struct parked *parked; /* of all lanes */
};
enum { NO_CHILD = 255 };

/* A core as jobs share it. */
struct shared_core {
    u8 *stack;
    u32 job; /* that used it last, or NO_JOB */
};

struct device {
    u32 node;
    nicemu_device_config config;
    struct outlet *outlet;
    struct buffers *buffers;
    struct queued_pool *queued;
    struct member *member[MAX_GROUPS];
    struct shared_core core[MAX_HARTS];
    struct sched sched;
    nicemu_node_counters counters;
};

/* Find the memory of the cores; false when it is not as the configuration says. */
bool device_open(struct device *d);
/* Bytes of scratchpad that a lane with that many payload slots takes. */
u64 device_lane_bytes(const struct device *d, u32 slots);
/* The largest number of lanes of that size that the device has room for, and where in every
 * scratchpad they would begin. */
u32 device_lanes(const struct device *d, u64 lane_bytes, u64 *offset);
/* The largest free part of every scratchpad, in bytes. */
u64 device_room(const struct device *d, u64 *offset);
/* Lay out the lanes of a member whose tree and offset are set; false when they are not in the
 * cores' memory. */
bool device_join(struct member *m);
void device_leave(struct member *m);
/* Forget every slot and begin again with that round. */
void device_restart(struct member *m, u32 first);

/* A frame that has passed the wire's checks: what was done with it. */
enum verdict device_receive(struct device *d, const struct packet *p, const struct frame *f,
                            u64 now);

/* The DMA engine may be idle: see what waits for it. */
void device_dma_idle(struct device *d, u32 cluster, u64 now);

/* Is the device at work on what it has of a turn, or will it be? */
bool device_at_work(const struct member *m, const struct turn *t, u64 now);

/* ---- when a worker is gone -------------------------------------------------------------- */
/* Children whose arrivals a turn's slot has, as bits. */
u64 device_arrived(const struct member *m, const struct turn *t);
/* Enter a partial sum of a child device that could not send it. */
void device_enter(struct member *m, struct turn *t, u32 child, const struct message *partial,
                  u64 now);
/* Merge what is parked, in order, as if no more could come, emit it and record it; the partial sum,
 * or NULL where there is nothing, or a handler fails. */
const struct message *device_salvage(struct member *m, struct turn *t, u64 now);

#endif
