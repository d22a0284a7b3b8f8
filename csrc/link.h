/* link.h: one direction of a link and what it does to the frames that pass.
 * Owns: delay, loss, duplication, reordering, corruption, being down; counters of frames.  A fate
 * depends on the seed, the direction's number and the frame's number on it, and on nothing else:
 * no generator is shared, so that other links' traffic changes nothing here.  Frames themselves,
 * and when they arrive, belong to fabric.c. */
#ifndef NICEMU_LINK_H
#define NICEMU_LINK_H

#include "base.h"
#include "nicemu.h"

struct link {
    nicemu_link_config config;
    bool clean; /* nothing here ever changes, delays or repeats a frame */
    u64 key; /* of the seed and the direction */
    u64 frames; /* offered so far; the low 24 bits are the next PSN */
    u64 free_at; /* virtual time at which the last frame is out */
    u32 downs; /* odd: the link is down.  A frame whose number differs at its end was cut off */
    nicemu_link_counters counters;
};

/* What becomes of one frame. */
struct fate {
    u32 copies; /* 0: lost; 2: duplicated */
    u64 delay[2]; /* picoseconds, of each copy */
    bool corrupt[2];
    u64 flip[2]; /* a random number: which bit */
};

void link_open(struct link *l, const nicemu_link_config *config, u64 seed, u32 direction);
/* The fate of the next frame; counted. */
struct fate link_send(struct link *l);
/* A frame of so many bytes leaves, after those before it: when its first and last bit are out. */
struct departure {
    u64 start, end;
};
struct departure link_depart(struct link *l, u64 bytes, u64 now);
/* A copy has reached the end: true when the link did not go down under way; counted. */
bool link_arrives(struct link *l, u32 downs);
void link_set_down(struct link *l, bool down);

#endif
