/* packet.c: frames to and from bytes, and the ICRC.  Each check stands before the arithmetic that
 * relies on it, in the order of drop.def. */
#include "packet.h"
#include "crc.h"

/* Where the fields are: Ethernet, IPv4, UDP, BTH, reduction header. */
enum {
    MAC_DST = 0,
    MAC_SRC = 6,
    ETHERTYPE = 12,
    IP_VERSION = 14,
    IP_TOS = 15,
    IP_LENGTH = 16,
    IP_ID = 18,
    IP_FRAGMENT = 20,
    IP_TTL = 22,
    IP_PROTOCOL = 23,
    IP_CHECKSUM = 24,
    IP_SRC = 26,
    IP_DST = 30,
    UDP_SRC = 34,
    UDP_DST = 36,
    UDP_LENGTH = 38,
    UDP_CHECKSUM = 40,
    BTH_OPCODE = 42,
    BTH_FLAGS = 43, /* solicited, migration state, PadCnt (2), transport version (4) */
    BTH_PKEY = 44,
    BTH_CONGESTION = 46, /* FECN, BECN, 6 reserved bits */
    BTH_QP = 47,
    BTH_ACK = 50,
    BTH_PSN = 51,
    VERSION = 54,
    KIND = 55,
    JOB = 56,
    GROUP = 58,
    SEQ = 62,
    CHUNK = 66,
    ROUND = 70,
    LANE = 74,
    CHILD = 76,
    CONTRIBUTORS = 78,
    COUNT = 80,
    TYPE = 82,
    FLAGS = 83,
    RESERVED = 84
};

enum {
    WIRE_VERSION = 1,
    TYPE_IPV4 = 0x0800,
    IPV4_NO_OPTIONS = 0x45,
    DONT_FRAGMENT = 0x4000,
    TTL = 64,
    PROTOCOL_UDP = 17,
    NETWORK = 10, /* nodes are 10.0.0.0 + their number */
    MAC_PREFIX = 0x0200, /* locally administered; the IP address follows */
    SENDER_PORT = 49152, /* the first of the dynamic ones */
    ROCE_PORT = 4791,
    UC_SEND_ONLY = 0x24,
    BTH_MIGRATED = 0x40, /* the usual migration state */
    PAD_SHIFT = 4,
    PKEY_DEFAULT = 0xffff,
    QP_LOW = 2, /* with job 0 too no QP is 0 or 1, which are the management's */
    KNOWN_FLAGS = FLAG_PARTIAL | FLAG_EMPTY | FLAG_MOVED
};

/* Network byte order; the host is little-endian. */
static u32 get16(const u8 *p)
{
    u16 v;
    memcpy(&v, p, sizeof v);
    return __builtin_bswap16(v);
}
static u32 get32(const u8 *p)
{
    u32 v;
    memcpy(&v, p, sizeof v);
    return __builtin_bswap32(v);
}
static u32 get24(const u8 *p)
{
    return (u32)p[0] << 16 | get16(p + 1);
}
static void put16(u8 *p, u32 v)
{
    u16 w = __builtin_bswap16((u16)v);
    memcpy(p, &w, sizeof w);
}
static void put32(u8 *p, u32 v)
{
    u32 w = __builtin_bswap32(v);
    memcpy(p, &w, sizeof w);
}
static void put24(u8 *p, u32 v)
{
    p[0] = (u8)(v >> 16);
    put16(p + 1, v);
}

static u32 address_of(u32 node)
{
    return (u32)NETWORK << 24 | (node & 0xffffff);
}

/* The sum of a header's 32-bit words as the one's complement sum of its 16-bit words (RFC 791, RFC
 * 1071): ffff when its checksum is right. */
static u32 fold(u64 sum)
{
    sum = (sum & 0xffff) + (sum >> 16 & 0xffff) + (sum >> 32);
    sum = (sum & 0xffff) + (sum >> 16);
    sum = (sum & 0xffff) + (sum >> 16);
    return (u32)sum;
}

/* ---- element types ---------------------------------------------------------------------- */

static const struct {
    const char *name;
    u32 bytes;
} elements[] = {
    {"bytes", 1},
#define NUMBER(name, width, ...) {#name, width / 8},
#define PAYLOAD NUMBER
#include "number.def"
#undef NUMBER
};

u32 packet_element_bytes(u8 type)
{
    if (type >= NICEMU_RECORD)
        return (u32)type - NICEMU_RECORD;
    return type < COUNT_OF(elements) ? elements[type].bytes : 0;
}

const char *nicemu_element_name(uint32_t type, uint32_t *bytes)
{
    if (type >= COUNT_OF(elements))
        return NULL;
    *bytes = elements[type].bytes;
    return elements[type].name;
}

/* ---- verdicts --------------------------------------------------------------------------- */

static const struct {
    const char *name, *station, *text;
} verdicts[] = {
    {"accepted", "", ""},
#define DROP(id, name, station, text) {name, station, text},
#include "drop.def"
#undef DROP
};

const char *nicemu_drop_name(uint32_t verdict, const char **station, const char **text)
{
    if (verdict >= COUNT_OF(verdicts))
        return NULL;
    *station = verdicts[verdict].station;
    *text = verdicts[verdict].text;
    return verdicts[verdict].name;
}

/* ---- ICRC ------------------------------------------------------------------------------- */

/* What routers may change counts as ff, and so do eight bytes before the IP header, which stand
 * for InfiniBand's local route header: crc begins behind these. */
u32 packet_icrc(const struct frame *f)
{
    static const u8 pad[3];
    u8 head[HEAD_BYTES - IP_VERSION];
    u32 crc = 0xdebb20e3;
    memcpy(head, f->head + IP_VERSION, sizeof head);
    head[IP_TOS - IP_VERSION] = 0xff;
    head[IP_TTL - IP_VERSION] = 0xff;
    put16(head + IP_CHECKSUM - IP_VERSION, 0xffff);
    put16(head + UDP_CHECKSUM - IP_VERSION, 0xffff);
    head[BTH_CONGESTION - IP_VERSION] = 0xff;
    crc = crc_update(crc, head, sizeof head);
    crc = crc_update(crc, f->payload, f->payload_bytes);
    crc = crc_update(crc, pad, pad_bytes(f->payload_bytes));
    return ~crc;
}

/* ---- build ------------------------------------------------------------------------------ */

void packet_number(struct frame *f, u32 psn)
{
    put24(f->head + BTH_PSN, psn);
}

void packet_build(struct frame *f, const struct packet *p, const u8 *payload, u32 payload_bytes)
{
    u8 *h = f->head;
    f->payload = payload;
    f->payload_bytes = payload_bytes;
    f->owner = NULL;
    f->has_icrc = false;
    f->icrc = 0;
    u32 src = address_of(p->src), dst = address_of(p->dst), length = frame_bytes(f);

    put16(h + MAC_DST, MAC_PREFIX);
    put32(h + MAC_DST + 2, dst);
    put16(h + MAC_SRC, MAC_PREFIX);
    put32(h + MAC_SRC + 2, src);
    put16(h + ETHERTYPE, TYPE_IPV4);

    /* words, not an array: reading back what was just stored would stall */
    u32 ip0 = (u32)IPV4_NO_OPTIONS << 24 | (length - IP_VERSION), ip1 = DONT_FRAGMENT;
    u32 ip2 = TTL << 24 | PROTOCOL_UDP << 16;
    ip2 |= ~fold((u64)ip0 + ip1 + ip2 + src + dst) & 0xffff;
    put32(h + IP_VERSION, ip0);
    put32(h + IP_ID, ip1);
    put32(h + IP_TTL, ip2);
    put32(h + IP_SRC, src);
    put32(h + IP_DST, dst);

    put16(h + UDP_SRC, SENDER_PORT);
    put16(h + UDP_DST, ROCE_PORT);
    put16(h + UDP_LENGTH, length - UDP_SRC);
    put16(h + UDP_CHECKSUM, 0);

    h[BTH_OPCODE] = UC_SEND_ONLY;
    h[BTH_FLAGS] = (u8)(BTH_MIGRATED | pad_bytes(payload_bytes) << PAD_SHIFT);
    put16(h + BTH_PKEY, PKEY_DEFAULT);
    h[BTH_CONGESTION] = 0;
    put24(h + BTH_QP, (u32)p->job << 8 | QP_LOW);
    h[BTH_ACK] = 0;
    packet_number(f, p->psn);

    h[VERSION] = WIRE_VERSION;
    h[KIND] = p->kind;
    put16(h + JOB, p->job);
    put32(h + GROUP, p->group);
    put32(h + SEQ, p->seq);
    put32(h + CHUNK, p->chunk);
    put32(h + ROUND, p->round);
    put16(h + LANE, p->lane);
    put16(h + CHILD, p->child);
    put16(h + CONTRIBUTORS, p->contributors);
    put16(h + COUNT, p->count);
    h[TYPE] = p->type;
    h[FLAGS] = p->flags;
    put16(h + RESERVED, 0);
}

/* ---- parse ------------------------------------------------------------------------------ */

static bool mac_follows(const u8 *mac, const u8 *ip)
{
    return get16(mac) == MAC_PREFIX && get32(mac + 2) == get32(ip) && ip[0] == NETWORK;
}

/* The headers down to the BTH of a frame of n bytes in all, HEAD_BYTES + ICRC_BYTES at least. */
static enum verdict check_transport(const u8 *h, size_t n)
{
    if (get16(h + ETHERTYPE) != TYPE_IPV4)
        return DROP_ETHERTYPE;
    if (h[IP_VERSION] != IPV4_NO_OPTIONS)
        return DROP_IP;
    if (h[IP_PROTOCOL] != PROTOCOL_UDP)
        return DROP_PROTOCOL;
    if (get16(h + IP_FRAGMENT) & ~(u32)DONT_FRAGMENT)
        return DROP_FRAGMENT;
    if (get16(h + UDP_DST) != ROCE_PORT)
        return DROP_PORT;
    if (h[BTH_OPCODE] != UC_SEND_ONLY)
        return DROP_OPCODE;
    if (get16(h + IP_LENGTH) != n - IP_VERSION || get16(h + UDP_LENGTH) != n - UDP_SRC)
        return DROP_LENGTH;
    if (fold((u64)get32(h + IP_VERSION) + get32(h + IP_ID) + get32(h + IP_TTL) + get32(h + IP_SRC) +
             get32(h + IP_DST)) != 0xffff)
        return DROP_CHECKSUM;
    if (!mac_follows(h + MAC_DST, h + IP_DST) || !mac_follows(h + MAC_SRC, h + IP_SRC))
        return DROP_ADDRESS;
    if ((h[BTH_FLAGS] & ~(3u << PAD_SHIFT)) != BTH_MIGRATED || h[BTH_ACK])
        return DROP_BTH;
    if (get16(h + BTH_PKEY) != PKEY_DEFAULT)
        return DROP_PKEY;
    return ACCEPTED;
}

static enum verdict check_reduction(const u8 *h, u32 payload_bytes)
{
    if (h[VERSION] != WIRE_VERSION)
        return DROP_VERSION;
    if (h[KIND] != KIND_UP && h[KIND] != KIND_DOWN)
        return DROP_KIND;
    if (get24(h + BTH_QP) != (get16(h + JOB) << 8 | QP_LOW))
        return DROP_QP;
    if (h[FLAGS] & ~KNOWN_FLAGS)
        return DROP_FLAGS;
    if (get16(h + RESERVED))
        return DROP_RESERVED;
    u32 count = get16(h + COUNT), size = packet_element_bytes(h[TYPE]);
    if (!size)
        return DROP_TYPE;
    if (count * size != payload_bytes)
        return DROP_COUNT;
    if (!count != !!(h[FLAGS] & FLAG_EMPTY))
        return DROP_EMPTY;
    return ACCEPTED;
}

enum verdict packet_parse(const struct frame *f, bool check_icrc, struct packet *out)
{
    const u8 *h = f->head;
    enum verdict v = check_transport(h, frame_bytes(f));
    if (v)
        return v;
    if ((h[BTH_FLAGS] >> PAD_SHIFT & 3) != pad_bytes(f->payload_bytes))
        return DROP_PAD;
    if (check_icrc && !(f->has_icrc && f->icrc == packet_icrc(f)))
        return DROP_ICRC;
    v = check_reduction(h, f->payload_bytes);
    if (v)
        return v;
    *out = (struct packet){
        .kind = h[KIND],
        .type = h[TYPE],
        .flags = h[FLAGS],
        .job = (u16)get16(h + JOB),
        .lane = (u16)get16(h + LANE),
        .child = (u16)get16(h + CHILD),
        .contributors = (u16)get16(h + CONTRIBUTORS),
        .count = (u16)get16(h + COUNT),
        .group = get32(h + GROUP),
        .seq = get32(h + SEQ),
        .chunk = get32(h + CHUNK),
        .round = get32(h + ROUND),
        .psn = get24(h + BTH_PSN),
        .src = get24(h + IP_SRC + 1),
        .dst = get24(h + IP_DST + 1),
    };
    return ACCEPTED;
}

/* ---- bytes ------------------------------------------------------------------------------ */

enum verdict frame_from_bytes(const u8 *bytes, size_t n, struct frame *out)
{
    if (n < HEAD_BYTES + ICRC_BYTES)
        return DROP_SHORT;
    if (n > HEAD_BYTES + MAX_MTU + ICRC_BYTES)
        return DROP_LONG;
    enum verdict v = check_transport(bytes, n);
    if (v)
        return v;
    u32 padded = (u32)n - HEAD_BYTES - ICRC_BYTES, pad = bytes[BTH_FLAGS] >> PAD_SHIFT & 3;
    if (padded % 4 || pad > padded)
        return DROP_PAD;
    const u8 *end = bytes + HEAD_BYTES + padded; /* of the pad, where the ICRC begins */
    for (u32 i = 1; i <= pad; i++)
        if (end[-(ptrdiff_t)i])
            return DROP_PAD;
    memcpy(out->head, bytes, HEAD_BYTES);
    out->payload = bytes + HEAD_BYTES;
    out->payload_bytes = padded - pad;
    out->owner = NULL;
    out->has_icrc = true;
    memcpy(&out->icrc, end, ICRC_BYTES); /* little-endian, unlike all else */
    return ACCEPTED;
}

void frame_to_bytes(const struct frame *f, u8 *out)
{
    u32 icrc = f->has_icrc ? f->icrc : packet_icrc(f), pad = pad_bytes(f->payload_bytes);
    memcpy(out, f->head, HEAD_BYTES);
    if (f->payload_bytes) /* else there may be no payload to point to */
        memcpy(out + HEAD_BYTES, f->payload, f->payload_bytes);
    memset(out + HEAD_BYTES + f->payload_bytes, 0, pad);
    memcpy(out + HEAD_BYTES + f->payload_bytes + pad, &icrc, ICRC_BYTES);
}

/* ---- for Python ------------------------------------------------------------------------- */

int nicemu_packet_build(const nicemu_packet *packet, const uint8_t *payload, uint32_t payload_bytes,
                        uint8_t *out)
{
    struct frame f;
    struct packet read;
    if (payload_bytes > MAX_MTU || (packet->psn | packet->src | packet->dst) >> 24)
        return NICEMU_EINVAL;
    packet_build(&f, packet, payload, payload_bytes);
    if (packet_parse(&f, false, &read))
        return NICEMU_EINVAL;
    frame_to_bytes(&f, out);
    return (int)frame_bytes(&f);
}

uint32_t nicemu_packet_parse(const uint8_t *bytes, size_t n, int check_icrc, nicemu_packet *out,
                             uint32_t *payload_bytes)
{
    struct frame f;
    enum verdict v = frame_from_bytes(bytes, n, &f);
    if (!v)
        v = packet_parse(&f, check_icrc, out);
    if (!v)
        *payload_bytes = f.payload_bytes;
    return v;
}
