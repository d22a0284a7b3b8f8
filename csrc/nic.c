/* nic.c: the device: what happens to the packets of a chunk between the wire and the wire.
 * Owns: the order of the stations (DMA in, handlers in child order, DMA out).  What a handler
 * computes is machine code in the image; nothing is added here. */
#include "cores.h"

/* Fields of the context block that differ from call to call (guide/images.md). */
enum {
    CONTEXT_CONTRIBUTORS = 4,
    CONTEXT_RANK = 8,
    CONTEXT_CHILD = 16,
    CONTEXT_CHUNK = 24,
    CONTEXT_ELEMENT = 32,
    CONTEXT_BYTES = 64
};

/* One core as the DMA engine sees it: host addresses of its memory, guest addresses for its
 * handlers. */
struct station {
    struct hart *hart;
    u64 accumulator, payloads, destination, arguments, stack_top;
    u8 *host_payloads, *host_destination, *host_arguments;
};

static u8 *reach(const struct hart *h, u64 addr, u64 n)
{
    u64 bad;
    return map_bytes(&h->map, addr, n, NICEMU_R, &bad);
}

/* How many payloads one call can take of the streams from `stream` on that are of one kind. */
static u32 fan_in(const nicemu_reduction *job, const u64 entries[9], u32 stream)
{
    u32 kind = job->inputs[stream].kind, k = 1;
    while (k < NICEMU_MAX_FAN_IN && stream + k < job->streams &&
           job->inputs[stream + k].kind == kind)
        k++;
    while (!entries[k])
        k--;
    return k;
}

/* The entries that take the payload of a stream: of its kind, fresh for the first of all. */
static const u64 *entries_of(const nicemu_reduction *job, u32 stream)
{
    const nicemu_kind *kind = &job->kinds[job->inputs[stream].kind];
    return stream ? kind->more : kind->fresh;
}

/* Payloads that are in the scratchpad at the same time. */
static u32 payload_slots(const nicemu_reduction *job)
{
    u32 most = 0;
    for (u32 stream = 0, k; stream < job->streams; stream += k) {
        k = fan_in(job, entries_of(job, stream), stream);
        most = k > most ? k : most;
    }
    return most;
}

/* False when the job's addresses are not all inside the core's own regions. */
static bool station_open(struct station *s, struct hart *h, const nicemu_reduction *job)
{
    u64 scratch = h->id * job->scratch_stride;
    s->hart = h;
    h->watched = false; /* cores share no memory that one of them may write */
    s->accumulator = job->accumulator + scratch;
    s->payloads = job->payloads + scratch;
    s->destination = job->destination + scratch;
    s->arguments = job->arguments + h->id * job->arguments_stride;
    s->stack_top = job->stack_top + h->id * job->stack_stride;
    s->host_payloads = reach(h, s->payloads, job->payload_room * payload_slots(job));
    s->host_destination = reach(h, s->destination, job->chunk * job->leaving_bytes);
    s->host_arguments = reach(h, s->arguments, CONTEXT_BYTES + 8 * NICEMU_MAX_FAN_IN);
    return s->host_payloads && s->host_destination && s->host_arguments;
}

static void put_u32(u8 *p, u32 v)
{
    memcpy(p, &v, sizeof v);
}
static void put_u64(u8 *p, u64 v)
{
    memcpy(p, &v, sizeof v);
}

/* The job's context, as far as it differs from chunk to chunk. */
static void put_chunk(const struct station *s, const nicemu_reduction *job, u64 chunk)
{
    u64 origin;
    memcpy(&origin, job->context + CONTEXT_ELEMENT, sizeof origin);
    memcpy(s->host_arguments, job->context, CONTEXT_BYTES);
    put_u32(s->host_arguments + CONTEXT_CHUNK, (u32)chunk);
    put_u64(s->host_arguments + CONTEXT_ELEMENT, origin + chunk * job->chunk);
}

/* ... and from call to call: the first payload's stream, how many workers have been merged. */
static void put_call(const struct station *s, const nicemu_reduction *job, u32 stream, u32 merged)
{
    u32 child;
    memcpy(&child, job->context + CONTEXT_CHILD, sizeof child);
    put_u32(s->host_arguments + CONTEXT_RANK, job->inputs[stream].rank);
    put_u32(s->host_arguments + CONTEXT_CHILD, child + stream);
    put_u32(s->host_arguments + CONTEXT_CONTRIBUTORS, merged);
}

/* Run one handler to its end; true when it returned 0. */
static bool handle(const struct station *s, const nicemu_reduction *job, u64 pc, u64 count,
                   nicemu_reduction_end *out)
{
    u64 args[4] = {s->accumulator, s->arguments + CONTEXT_BYTES, count, s->arguments};
    hart_call(s->hart, pc, s->stack_top, args, job->budget, &out->stop);
    if (out->stop.reason != NICEMU_STOP_RETURN)
        return false;
    out->status = s->hart->x[10];
    return out->status == 0;
}

/* DMA `k` payloads of a chunk into the scratchpad and have the entry merge them. */
static bool merge_payloads(const struct station *s, const nicemu_reduction *job, u64 pc, u32 stream,
                           u32 k, u64 element, u64 count, nicemu_reduction_end *out)
{
    u8 *table = s->host_arguments + CONTEXT_BYTES;
    u64 bytes = job->kinds[job->inputs[stream].kind].bytes;
    for (u32 i = 0; i < k; i++) {
        const u8 *from = (const u8 *)job->inputs[stream + i].data + element * bytes;
        memcpy(s->host_payloads + i * job->payload_room, from, count * bytes);
        put_u64(table + 8 * i, s->payloads + i * job->payload_room);
    }
    return handle(s, job, pc, count, out);
}

static bool reduce_chunk(const struct station *s, const nicemu_reduction *job, u64 chunk,
                         nicemu_reduction_end *out)
{
    u64 element = chunk * job->chunk, left = job->count - element;
    u64 count = left < job->chunk ? left : job->chunk;
    u32 merged = 0;
    put_chunk(s, job, chunk);
    for (u32 stream = 0, k; stream < job->streams; stream += k) {
        const u64 *entries = entries_of(job, stream);
        k = fan_in(job, entries, stream);
        for (u32 i = 0; i < k; i++)
            merged += job->inputs[stream + i].contributors;
        put_call(s, job, stream, merged);
        if (!merge_payloads(s, job, entries[k], stream, k, element, count, out))
            return false;
    }
    put_u64(s->host_arguments + CONTEXT_BYTES, s->destination);
    put_call(s, job, 0, merged);
    if (!handle(s, job, job->leave, count, out))
        return false;
    memcpy((u8 *)job->output + element * job->leaving_bytes, s->host_destination,
           count * job->leaving_bytes);
    return true;
}

/* Is the description sound?  Its sizes, so bounded, cannot overflow a sum or product of them. */
static bool whole(const nicemu_reduction *job)
{
    for (u32 i = 0; i < job->streams; i++) {
        u32 kind = job->inputs[i].kind;
        const nicemu_kind *row = &job->kinds[kind < NICEMU_KINDS ? kind : 0];
        if (kind >= NICEMU_KINDS || !row->bytes || !row->fresh[1] || !row->more[1] ||
            job->chunk > job->payload_room / row->bytes)
            return false;
    }
    return job->streams && job->chunk && job->payload_room <= UINT32_MAX;
}

int nicemu_reduce(nicemu_cores *cores, const nicemu_reduction *job, uint64_t hart_mask,
                  uint64_t from, uint64_t to, nicemu_reduction_end *out)
{
    struct station stations[MAX_HARTS];
    *out = (nicemu_reduction_end){.stop.reason = NICEMU_STOP_RETURN};
    if (!whole(job) || to > job->count / job->chunk + (job->count % job->chunk != 0))
        return NICEMU_EINVAL;
    for (u32 i = 0; i < cores->n; i++)
        if (hart_mask >> i & 1 && !station_open(&stations[i], cores->harts[i], job))
            return NICEMU_EFAULT;
    /* A core that fails stops; the others go on, so that what each has done does not depend on
     * which of them share a call. */
    bool failed = false;
    for (u64 chunk = from; chunk < to && hart_mask; chunk++) {
        u64 core = chunk % cores->n;
        nicemu_reduction_end end = {.stop.reason = NICEMU_STOP_RETURN, .chunk = chunk};
        if (!(hart_mask >> core & 1) || reduce_chunk(&stations[core], job, chunk, &end))
            continue;
        hart_mask &= ~(1ull << core);
        if (!failed)
            *out = end;
        failed = true;
    }
    return NICEMU_OK;
}
