/* nic.c: the device: what happens to the packets of a chunk between the wire and the wire.
 * Owns: the order of the stations (DMA in, handlers in child order, DMA out).  What a handler
 * computes is machine code in the image; nothing is added here. */
#include "station.h"

/* How many payloads one call can take of the streams from `stream` on that are of one kind. */
static u32 fan_in(const nicemu_reduction *job, const u64 entries[9], u32 stream)
{
    u32 kind = job->inputs[stream].kind, k = 1;
    while (k < NICEMU_MAX_FAN_IN && stream + k < job->streams &&
           job->inputs[stream + k].kind == kind)
        k++;
    return widest(entries, k);
}

/* The entries that take the payload of a stream: of its kind, fresh for the first of all. */
static const u64 *entries_of(const nicemu_reduction *job, u32 stream)
{
    const nicemu_kind *kind = &job->kinds[job->inputs[stream].kind];
    return stream ? kind->more : kind->fresh;
}

/* The entry that takes all streams and leaves, or 0.  Its destination may be no payload. */
static u64 whole_entry(const nicemu_reduction *job)
{
    u32 n = job->streams, kind = job->inputs[0].kind;
    if (n > NICEMU_MAX_FAN_IN)
        return 0;
    for (u32 i = 0; i < n; i++)
        if (job->inputs[i].kind != kind || job->inputs[i].data == job->output)
            return 0;
    return job->kinds[kind].whole[job->leaving][n];
}

/* Payloads that are in the scratchpad at the same time. */
static u32 payload_slots(const nicemu_reduction *job, u64 whole)
{
    u32 most = whole ? job->streams : 0;
    for (u32 stream = 0, k; stream < job->streams; stream += k) {
        k = fan_in(job, entries_of(job, stream), stream);
        most = k > most ? k : most;
    }
    return most;
}

/* The core's station; false when the job's addresses are not all inside its own regions. */
static bool place(struct station *s, struct hart *h, const nicemu_reduction *job, u64 whole)
{
    u64 scratch = h->id * job->scratch_stride;
    *s = (struct station){
        .hart = h,
        .accumulator = job->accumulator + scratch,
        .payloads = job->payloads + scratch,
        .destination = job->destination + scratch,
        .end = job->accumulator + scratch + job->scratch_stride,
        .arguments = job->arguments + h->id * job->arguments_stride,
        .stack_top = job->stack_top + h->id * job->stack_stride,
        .room = job->payload_room,
    };
    return station_open(s, payload_slots(job, whole), job->chunk * job->leaving_bytes);
}

/* The job's context, as far as it differs from chunk to chunk. */
static void put_chunk(const struct station *s, const nicemu_reduction *job, u64 chunk)
{
    u64 origin = get64(job->context + CONTEXT_ELEMENT);
    memcpy(s->host_arguments, job->context, CONTEXT_BYTES);
    put32(s->host_arguments + CONTEXT_CHUNK, (u32)chunk);
    put64(s->host_arguments + CONTEXT_ELEMENT, origin + chunk * job->chunk);
}

/* ... and from call to call: the first payload's stream, how many workers have been merged. */
static void put_call(const struct station *s, const nicemu_reduction *job, u32 stream, u32 merged)
{
    put32(s->host_arguments + CONTEXT_RANK, job->inputs[stream].rank);
    put32(s->host_arguments + CONTEXT_CHILD, get32(job->context + CONTEXT_CHILD) + stream);
    put32(s->host_arguments + CONTEXT_CONTRIBUTORS, merged);
}

static bool reduce_chunk(const struct station *s, const nicemu_reduction *job, u64 whole, u64 chunk,
                         struct call_end *end)
{
    u64 element = chunk * job->chunk, left = job->count - element;
    u64 count = left < job->chunk ? left : job->chunk;
    struct call call = {.count = count, .budget = job->budget};
    struct leaving destination = {(u8 *)job->output + element * job->leaving_bytes,
                                  count * job->leaving_bytes};
    u32 merged = 0;
    u64 before = job->cycles ? hart_cycles(s->hart) : 0;
    put_chunk(s, job, chunk);
    for (u32 stream = 0, k; stream < job->streams; stream += k) {
        const u64 *entries = entries_of(job, stream);
        u64 bytes = job->kinds[job->inputs[stream].kind].bytes;
        struct payload payloads[NICEMU_MAX_FAN_IN];
        k = whole ? job->streams : fan_in(job, entries, stream);
        for (u32 i = 0; i < k; i++) {
            const nicemu_input *input = &job->inputs[stream + i];
            payloads[i] =
                (struct payload){(const u8 *)input->data + element * bytes, count * bytes};
            merged += input->contributors;
        }
        put_call(s, job, stream, merged);
        call.pc = whole ? whole : entries[k];
        call.k = k;
        call.payloads = payloads;
        if (whole)
            call.destination = destination;
        if (!station_call(s, &call, end))
            return false;
    }
    put_call(s, job, 0, merged);
    call.pc = job->leave[job->leaving];
    call.k = 0;
    call.destination = destination;
    if (!whole && !station_call(s, &call, end))
        return false;
    if (job->cycles)
        job->cycles[chunk] = hart_cycles(s->hart) - before;
    return true;
}

/* Is the description sound?  Its sizes, so bounded, cannot overflow a sum or product of them. */
static bool sound(const nicemu_reduction *job)
{
    for (u32 i = 0; i < job->streams; i++) {
        u32 kind = job->inputs[i].kind;
        const nicemu_kind *row = &job->kinds[kind < NICEMU_KINDS ? kind : 0];
        if (kind >= NICEMU_KINDS || !row->bytes || !row->fresh[1] || !row->more[1] ||
            job->chunk > job->payload_room / row->bytes)
            return false;
    }
    return job->streams && job->chunk && job->payload_room <= UINT32_MAX &&
           job->leaving < NICEMU_LEAVINGS;
}

int nicemu_reduce(nicemu_cores *cores, const nicemu_reduction *job, uint64_t hart_mask,
                  uint64_t from, uint64_t to, nicemu_reduction_end *out)
{
    struct station stations[MAX_HARTS];
    *out = (nicemu_reduction_end){.stop.reason = NICEMU_STOP_RETURN};
    if (!sound(job) || to > job->count / job->chunk + (job->count % job->chunk != 0))
        return NICEMU_EINVAL;
    u64 whole = whole_entry(job);
    for (u32 i = 0; i < cores->n; i++)
        if (hart_mask >> i & 1 && !place(&stations[i], cores->harts[i], job, whole))
            return NICEMU_EFAULT;
    /* A core that fails stops; the others go on, so that what each has done does not depend on
     * which of them share a call. */
    bool failed = false;
    u64 running = hart_mask;
    for (u64 chunk = from; chunk < to && running; chunk++) {
        u64 core = chunk % cores->n;
        struct call_end end = {.stop.reason = NICEMU_STOP_RETURN};
        if (!(running >> core & 1) || reduce_chunk(&stations[core], job, whole, chunk, &end))
            continue;
        if (job->statuses && end.stop.reason == NICEMU_STOP_RETURN) {
            job->statuses[chunk] = end.status;
            continue;
        }
        running &= ~(1ull << core);
        if (!failed)
            *out = (nicemu_reduction_end){end.stop, end.status, chunk};
        failed = true;
    }
    for (u32 i = 0; i < cores->n; i++)
        if (hart_mask >> i & 1)
            station_close(&stations[i]);
    return NICEMU_OK;
}
