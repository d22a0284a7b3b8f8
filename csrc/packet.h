/* packet.h: the wire: what the bytes of a frame say (guide/wire.md), and the verdict on them.
 * Owns: header layout, build, parse, ICRC, the split of a frame into its head and its payload.
 * Everything about a frame that any receiver can check is here; what depends on who receives it,
 * and what happens then, belongs in device.c and host.c. */
#ifndef NICEMU_PACKET_H
#define NICEMU_PACKET_H

#include "base.h"
#include "nicemu.h"

enum { HEAD_BYTES = NICEMU_HEAD_BYTES, ICRC_BYTES = 4, MAX_MTU = NICEMU_MAX_PAYLOAD };

enum packet_kind { KIND_UP = NICEMU_UP, KIND_DOWN = NICEMU_DOWN };
enum packet_flag {
    FLAG_PARTIAL = NICEMU_PARTIAL,
    FLAG_EMPTY = NICEMU_EMPTY,
    FLAG_MOVED = NICEMU_MOVED
};

enum verdict {
    ACCEPTED,
#define DROP(id, ...) DROP_##id,
#include "drop.def"
#undef DROP
    VERDICT_COUNT
};

/* Reference-counted payload memory; whoever makes it says where (fabric). */
struct buffer;

/* A frame in memory.  Payload and, where there is one, its owner belong to who passes the frame
 * on: nothing in packet.c counts references.  payload_bytes is at most MAX_MTU, whatever the head
 * says.  Pad bytes are 0 and not stored. */
struct frame {
    u8 head[HEAD_BYTES];
    u32 payload_bytes;
    bool has_icrc; /* else nobody has computed it */
    u32 icrc;
    const u8 *payload;
    struct buffer *owner;
};

static inline u32 pad_bytes(u32 payload_bytes)
{
    return -payload_bytes & 3;
}

/* Its length on the wire, from the Ethernet header to the ICRC. */
static inline u32 frame_bytes(const struct frame *f)
{
    return HEAD_BYTES + f->payload_bytes + pad_bytes(f->payload_bytes) + ICRC_BYTES;
}

/* Bytes of one element of a wire type, or 0 where there is no such type. */
u32 packet_element_bytes(u8 type);

/* Head and payload of *f, without owner or ICRC.  Fields are not checked; psn and node numbers
 * are taken modulo 2^24. */
void packet_build(struct frame *f, const struct packet *p, const u8 *payload, u32 payload_bytes);
/* The PSN of a frame that is built, modulo 2^24: it is counted where the frame leaves. */
void packet_number(struct frame *f, u32 psn);
/* The ICRC over head, payload and pad. */
u32 packet_icrc(const struct frame *f);
/* Every check of the station "wire", in the order of drop.def.  *out is set only when accepted. */
enum verdict packet_parse(const struct frame *f, bool check_icrc, struct packet *out);

/* Split the n bytes of a frame: *out points into them, without owner.  All checks up to PadCnt,
 * which is what the split needs; *out is set only when accepted. */
enum verdict frame_from_bytes(const u8 *bytes, size_t n, struct frame *out);
/* Write all frame_bytes(f) of a frame; an ICRC that nobody has computed is computed. */
void frame_to_bytes(const struct frame *f, u8 *out);

#endif
