/* fabric.h: hosts, devices, links and the clock put together.
 * Owns: all memory of a fabric, which node is where, the loop of events.  What a station does with
 * a frame belongs to host.c and device.c; what is done when a plane dies or a collective fails, to
 * failure.c. */
#ifndef NICEMU_FABRIC_H
#define NICEMU_FABRIC_H

#include "clock.h"
#include "device.h"
#include "host.h"
#include "link.h"

/* A frame under way. */
struct transit {
    struct transit *next; /* while free */
    struct frame frame;
    u32 direction;
    u64 delay; /* between its last bit's leaving and arriving, where links take time */
    struct path path; /* the way to here */
    u64 record; /* number in the trace: of its sending, then of its way over the link */
    u32 downs; /* of the direction, when it was sent */
    bool corrupted;
};

/* A host or a device and its place in the tree.  Directions: 2 * link is up, 2 * link + 1 down. */
struct node {
    struct host *host; /* or ... */
    struct device *device;
    u32 parent[PLANES], up[PLANES]; /* nodes and directions; NOWHERE */
    u32 children, child[MAX_CHILDREN], down[MAX_CHILDREN];
};
enum { NOWHERE = 0xffffffff };
/* Frames that a device sends on the arrival of one, at most: a result to each child. */
enum { ARRIVAL_SENDS = MAX_CHILDREN };

struct cable {
    u32 child, parent;
    struct link direction[2];
    u64 down_at; /* when it went down last */
};

/* A group with its stations. */
struct party {
    struct group group;
    struct worker *worker;
    struct member **member; /* on all planes; children before their parents */
    u32 members;
    struct member *root[PLANES];
    bool suspect[PLANES]; /* resends on this plane stay without an answer: it is to be left */
};

struct relay; /* a collective by hosts, and ... */
struct trip; /* a frame of one: relay.c's */

/* Memory in pieces that are freed together. */
struct slab {
    struct slab *next;
};

struct nicemu_fabric {
    nicemu_fabric_config config;
    struct outlet outlet;
    struct known known; /* calls that have been recorded, where clocks run */
    struct clock clock;
    u64 events, under_way;
    struct buffers buffers;
    struct queued_pool queued;
    struct transit *free;
    u32 n_free;
    struct slab *slabs;
    u32 nodes, cables, node_room, cable_room;
    struct node **node; /* from 1 on */
    struct cable **cable;
    struct party *party[MAX_GROUPS];
    u32 parties; /* ever opened */
    struct relay *relay; /* in flight */
    u32 relays; /* ever started */
    struct trip *trips; /* free ones */
    struct sched *own; /* hosts' own NICs, by node, own_n of them */
    u32 own_n, own_room;
    u32 most_sends; /* frames that one event may send */
    nicemu_event *news; /* to be reported: news_n of them from news_first on */
    u32 news_first, news_n, news_room;
    nicemu_replay *replay;
    u32 replays, replay_room;
    bool capturing;
    u8 *captured;
    size_t captured_n, captured_room;
};

/* ---- fabric.c --------------------------------------------------------------------------- */
enum event_kind {
    EVENT_FRAME,
    EVENT_DEPART,
    EVENT_DMA_IDLE, /* a device's engine, and a payload waits */
    EVENT_TIMER,
    EVENT_DOWN,
    EVENT_UP,
    EVENT_SEEN_DOWN,
    EVENT_SEEN_UP,
    EVENT_SUSPECT,
    EVENT_ENDED, /* the hosts know that a collective is done */
    EVENT_LEAVES, /* of a relay's frame, see relay.c ... */
    EVENT_ARRIVES,
    EVENT_TAKEN,
    EVENT_MERGED,
    EVENT_OWN_DMA_IDLE, /* of a host's own NIC, likewise */
    EVENT_RELAYED /* the hosts know that a relay is done */
};

/* Memory for that many sends and for what they bring about; false when the host has none left. */
bool fabric_reserve(struct nicemu_fabric *f, u64 sends);
/* Only so many free buffers. */
bool fabric_reserve_buffers(struct nicemu_fabric *f, u64 n);
/* Aligned memory that lives as long as the fabric, or NULL. */
void *fabric_slab(struct nicemu_fabric *f, size_t size);
/* More room in an array of `size`-byte items. */
bool fabric_grow(void **array, u32 *room, u32 need, size_t size);
void fabric_report(struct nicemu_fabric *f, const nicemu_event *news);
/* A collective begins now. */
void fabric_begin(struct nicemu_fabric *f);
/* Let a worker send, and see to it that it looks at its lanes again. */
void fabric_pump(struct nicemu_fabric *f, struct worker *w);

/* ---- party.c ---------------------------------------------------------------------------- */
struct party *party_of(const struct nicemu_fabric *f, u32 group);
void party_close(struct nicemu_fabric *f, struct party *p);
/* Is no link of the group's tree on that plane down? */
bool party_plane_is_whole(const struct nicemu_fabric *f, const struct party *p, u32 plane);

/* ---- exchange.c ------------------------------------------------------------------------- */
void exchange_free(struct exchange *e);
/* Memory for all workers' sending what their windows have room for, with so many chunks more; false
 * when the host has none left. */
bool exchange_reserve(struct nicemu_fabric *f, const struct group *g, u64 more);
/* What the stations report: see outlet.h. */
void exchange_stored(void *fabric, struct worker *w, struct turn *t, struct buffer *result);
void exchange_emitted(void *fabric, struct device *d, struct exchange *e);

/* Its results are stored, and that is known. */
void exchange_end(struct nicemu_fabric *f, u32 group, struct exchange *e);

/* ---- relay.c ---------------------------------------------------------------------------- */
void relay_free(struct nicemu_fabric *f, struct relay *r);
/* An event of one of its frames; false when the host has no memory left. */
bool relay_go_on(struct nicemu_fabric *f, enum event_kind kind, struct trip *t);
/* It is time to see what waits for the DMA engines of a host's own NIC; false likewise. */
bool relay_dma_idle(struct nicemu_fabric *f, u32 host);
/* Add the frames of all relays, and those that are not merged or stored yet. */
void relay_progress(const struct nicemu_fabric *f, u64 *frames, u64 *left);
/* All is merged and stored, and that is known. */
void relay_end(struct nicemu_fabric *f, struct relay *r);

/* ---- failure.c -------------------------------------------------------------------------- */
bool party_waits(void *fabric, struct worker *w, u32 plane, struct turn *t, u32 resends);
void party_broke(void *fabric, struct device *d, struct group *g, struct turn *t, u32 core,
                 const struct call_end *end);
/* The ends of a cable have seen that it is down, or up again; false when the host has no memory. */
bool party_seen(struct nicemu_fabric *f, struct party *p, u32 cable, bool down);
/* Leave the plane that does not answer, if the other one is there. */
bool party_leave_suspects(struct nicemu_fabric *f, struct party *p);

#endif
