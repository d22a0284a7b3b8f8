/* nicemu.h: the only door into the C core.  It is also, line for line, the cffi cdef
 * (the builder drops the lines that begin with '#').
 * Owns: opaque types, error codes, plain result structs, the functions Python may call.
 * Every object is created and freed by its caller; nothing here keeps global state. */
#ifndef NICEMU_H
#define NICEMU_H

#include <stddef.h>
#include <stdint.h>

/* ---- results ---------------------------------------------------------------------------- */
/* What a call returns: 0, or one of these.  Python turns each into one exception type. */
enum {
    NICEMU_OK = 0,
    NICEMU_ENOMEM = -1, /* the host has no memory left */
    NICEMU_EINVAL = -2, /* an argument is outside its documented range */
    NICEMU_EFAULT = -3, /* the address range is not mapped for that hart */
    NICEMU_EOVERLAP = -4, /* the region overlaps one that is mapped already */
    NICEMU_ENOCSR = -5 /* no such CSR */
};

/* Permissions of a region; HTIF marks the host's tohost/fromhost words. */
enum { NICEMU_R = 1, NICEMU_W = 2, NICEMU_X = 4, NICEMU_HTIF = 8 };

/* Why a run ended. */
enum {
    NICEMU_STOP_BUDGET = 0, /* the budget is used up; the hart can go on */
    NICEMU_STOP_RETURN = 1, /* a called handler returned to its caller */
    NICEMU_STOP_FAULT = 2, /* a trap that nothing in the guest handles */
    NICEMU_STOP_HTIF = 3, /* a store to the HTIF region was completed */
    NICEMU_STOP_LOG = 4 /* the log is full: take what is in it and go on */
};

/* How the host computes: the best this CPU has, or the portable C path. */
enum {
    NICEMU_SIMD_AUTO = 0,
    NICEMU_SIMD_PORTABLE = 1,
    NICEMU_SIMD_AVX2 = 2,
    NICEMU_SIMD_AVX512 = 3 /* F, BW, DQ and VL */
};

typedef struct nicemu_cores nicemu_cores;

typedef struct {
    uint32_t harts; /* 1..64 */
    uint32_t vlen; /* bits: 128, 256, 512 or 1024 */
    uint32_t simd; /* NICEMU_SIMD_* */
    uint32_t trap_to_guest; /* 1: traps enter mtvec, as on bare metal; 0: a trap ends the run */
    uint64_t extensions; /* bit i = row i of ext.def; 0 = all */
} nicemu_config;

typedef struct {
    uint32_t reason; /* NICEMU_STOP_* */
    uint32_t cause; /* FAULT: the exception code of the privileged manual (mcause) */
    uint64_t addr; /* FAULT: what mtval would hold; HTIF: the address stored to */
    uint64_t pc; /* where the hart stands: the faulting instruction, or the next one */
    uint64_t instructions; /* retired in this run */
    uint64_t elements; /* active vector elements processed in this run */
} nicemu_stop;

/* What a hart has done since it was made or since the counters were cleared. */
typedef struct {
    uint64_t instructions;
    uint64_t elements;
    uint64_t cost; /* sum of the static costs of the rows' classes (unit costs: = instructions) */
    uint64_t loads, stores, atomics; /* scalar accesses */
    uint64_t load_bytes, store_bytes; /* scalar and atomic accesses */
    uint64_t vector_load_bytes, vector_store_bytes;
    uint64_t classes[64]; /* retired instructions per row of class.def */
} nicemu_counters;

/* One row of insn.def. */
typedef struct {
    const char *name; /* mnemonic, e.g. "fadd.h" */
    const char *format; /* row of format.def */
    const char *operands; /* operand pattern of the format */
    const char *extension; /* row of ext.def */
    const char *cls; /* row of class.def */
    const char *exec; /* body that executes it */
    uint32_t match, mask;
    uint32_t bytes; /* 2 or 4 */
} nicemu_insn;

/* ---- tables ----------------------------------------------------------------------------- */
uint32_t nicemu_insn_count(void);
int nicemu_insn_row(uint32_t i, nicemu_insn *out);
const char *nicemu_extension_name(uint32_t i); /* NULL past the last row */
const char *nicemu_class_name(uint32_t i); /* NULL past the last row */
const char *nicemu_term_name(uint32_t i); /* NULL past the last row */
/* Row of csr.def by position: its number, or -1 past the last; *name is set. */
int nicemu_csr_row(uint32_t i, const char **name);

/* ---- harts and their memory ------------------------------------------------------------- */
int nicemu_open(const nicemu_config *config, nicemu_cores **out);
void nicemu_close(nicemu_cores *cores);
/* "avx512", "avx2" or "portable": the path that this object uses. */
const char *nicemu_simd_name(const nicemu_cores *cores);

/* Map the `size` bytes at `host`, which the caller keeps as long as the cores run, at `base` for
 * the harts of `hart_mask`.  size >= 64.  Regions of one hart may not overlap; at most 16. */
int nicemu_map(nicemu_cores *cores, uint64_t hart_mask, uint64_t base, uint64_t size, uint32_t perm,
               void *host);
/* Host access through hart `hart`'s map, ignoring permissions; all or nothing. */
int nicemu_read(const nicemu_cores *cores, uint32_t hart, uint64_t addr, void *out, size_t n);
int nicemu_write(nicemu_cores *cores, uint32_t hart, uint64_t addr, const void *in, size_t n);

/* ---- architectural state ---------------------------------------------------------------- */
/* Pointers stay valid until close: 32 x registers (x0 must stay 0), 32 f registers
 * (NaN-boxed), 32 x vlen/8 bytes of v registers. */
uint64_t *nicemu_x(nicemu_cores *cores, uint32_t hart);
uint64_t *nicemu_f(nicemu_cores *cores, uint32_t hart);
uint8_t *nicemu_v(nicemu_cores *cores, uint32_t hart);
uint64_t nicemu_get_pc(const nicemu_cores *cores, uint32_t hart);
int nicemu_set_pc(nicemu_cores *cores, uint32_t hart, uint64_t pc);
/* 0 = U, 3 = M. */
uint32_t nicemu_get_mode(const nicemu_cores *cores, uint32_t hart);
int nicemu_set_mode(nicemu_cores *cores, uint32_t hart, uint32_t mode);
/* CSR access with M-mode rights. */
int nicemu_csr_get(nicemu_cores *cores, uint32_t hart, uint32_t csr, uint64_t *value);
int nicemu_csr_set(nicemu_cores *cores, uint32_t hart, uint32_t csr, uint64_t value);
/* Power-on state of one hart: registers 0, M-mode, FP and V units off, pc = `pc`. */
int nicemu_reset(nicemu_cores *cores, uint32_t hart, uint64_t pc);

/* ---- execution -------------------------------------------------------------------------- */
/* Run one hart.  An instruction begins only while retired instructions + active vector
 * elements + traps taken of this run are below `budget`.  One call at a time: this, round_robin and
 * call look at all harts' reservations. */
int nicemu_run(nicemu_cores *cores, uint32_t hart, uint64_t budget, nicemu_stop *out);
/* Run the harts of `hart_mask` in turn, `quantum` instructions + elements each, in hart order,
 * until one stops for another reason than its quantum, or each has used `budget`.
 * *which is the hart that `out` speaks of. */
int nicemu_run_round_robin(nicemu_cores *cores, uint64_t hart_mask, uint64_t quantum,
                           uint64_t budget, uint32_t *which, nicemu_stop *out);
/* Call `pc` in U-mode with a0..a3, sp; ends with STOP_RETURN when it returns to its caller. */
int nicemu_call(nicemu_cores *cores, uint32_t hart, uint64_t pc, uint64_t sp,
                const uint64_t args[4], uint64_t budget, nicemu_stop *out);
int nicemu_counters_get(nicemu_cores *cores, uint32_t hart, nicemu_counters *out);
int nicemu_counters_clear(nicemu_cores *cores, uint32_t hart);

/* Log what every instruction of every hart commits, a line of text each, in the form of Spike's
 * --log-commits, into the `size` bytes at `text`, which the caller keeps until the log is ended
 * with NULL.  The harts then go one instruction at a time, to the same end.  size >=
 * NICEMU_LOG_LINE, the longest line. */
enum { NICEMU_LOG_LINE = 65536 };
int nicemu_log(nicemu_cores *cores, char *text, size_t size);
/* Bytes logged since the last call; what follows begins at `text` again. */
size_t nicemu_log_take(nicemu_cores *cores);

/* ---- time ------------------------------------------------------------------------------- */
/* A machine as the cycle count sees it: cycles unless something else is said.  An instruction
 * takes one to issue; what is here comes on top.  All below 4096. */
typedef struct {
    /* the scalar pipeline */
    uint32_t taken_branch, jump;
    uint32_t misaligned_target; /* of a transfer to a 4-byte instruction at 2 mod 4 */
    uint32_t load_use; /* from a load to what may read its register, beyond the next cycle */
    uint32_t jump_register; /* jalr reads its register so much later than others do */
    uint32_t mulh;
    uint32_t div; /* and one for each leading zero of the low 32 bits of |divisor| */
    uint32_t csr, fence;
    uint32_t port; /* bytes of a word of the data port: 4 or 8 */
    uint32_t crossing; /* for each further word that an access touches */
    uint32_t fp_latency; /* of FP instructions; above 1 the FPU takes one at a time */
    uint32_t fdiv_latency; /* of FP division and square root, during which it takes no other */
    /* the instruction cache */
    uint32_t line; /* bytes, a power of two; 0: every fetch hits */
    uint32_t miss; /* first use of a line */
    /* the vector unit */
    uint32_t word; /* bits of a register group read a cycle, multiple of 64; 0: there is none */
    uint32_t in_flight; /* vector instructions at a time, 1..4 */
    uint32_t strided; /* elements a cycle of accesses that are not unit-stride, at least 1 */
    uint32_t memory_latency;
    uint32_t load_latency; /* from an access to a use of its word, beyond memory_latency */
    uint32_t load_load, load_store, store_store, store_load; /* from the end of one access's words
        to the beginning of the other's; load_store is beyond memory_latency */
    uint32_t vfp_latency, vfmisc_latency; /* from a word to a use of its result */
    uint32_t vfdiv; /* for each word, at least 1 */
    uint32_t vint, vint_latency; /* cycles for each word, at least 1 */
    uint32_t vdiv; /* for each word, at least 1 */
    uint32_t slide, slide_latency; /* between two of them */
    uint32_t fp_reduction, fp_merge; /* beyond the words; and for each halving of the (at most
        vfp_latency) partial sums in the pipeline */
    uint32_t int_reduction;
} nicemu_timing;

enum { NICEMU_TERMS = 8 }; /* rows of term.def */

/* What a hart's clock says since it was made, or since the counters were cleared. */
typedef struct {
    uint64_t cycles; /* sum of the terms */
    uint64_t terms[8]; /* by row of term.def */
} nicemu_cycles;

/* Count cycles from now on, as on that machine; NULL: no more. */
int nicemu_time(nicemu_cores *cores, const nicemu_timing *timing);
int nicemu_cycles_get(nicemu_cores *cores, uint32_t hart, nicemu_cycles *out);

/* What an instruction asks of memory: `beat` bytes a cycle, which begin at multiples of it, from
 * `cycle` on. */
typedef struct {
    uint64_t cycle; /* of the hart's clock, since the record began */
    uint64_t address;
    uint32_t bytes;
    uint16_t beat;
    uint16_t atomic; /* 1: an AMO, LR or SC */
} nicemu_access;

/* Record a hart's accesses, whose clock runs, in `room` for so many; it executes instruction by
 * instruction then.  NULL: no more. */
int nicemu_accesses(nicemu_cores *cores, uint32_t hart, nicemu_access *room, uint64_t size);
/* How many there have been since; more than `size`: those beyond are lost. */
int nicemu_accesses_count(nicemu_cores *cores, uint32_t hart, uint64_t *count);

/* A scratchpad: each bank has every banks-th word. */
typedef struct {
    uint32_t banks; /* 1..64, a power of two; 0, in nicemu_costs: nobody waits for one */
    uint32_t bytes; /* of a word, 1..64, a power of two */
    uint32_t hold; /* cycles for which an atomic keeps a bank beyond its own */
    uint32_t dma; /* bytes that the DMA engine moves in a cycle */
} nicemu_bank_shape;
/* The banks of the bytes begins[i]..ends[i]-1, at least one, as bits. */
int nicemu_bank_masks(const nicemu_bank_shape *shape, const uint64_t *begins, const uint64_t *ends,
                      uint64_t n, uint64_t *masks);

/* What one hart, or the DMA engine, wants in a cycle: banks of the scratchpad. */
typedef struct {
    uint64_t cycle;
    uint64_t banks;
    uint64_t held; /* of these, for atomics */
} nicemu_beat;
/* The beats of n accesses, by ascending cycle, one in each; *count is how many.  beats NULL: how
 * much room they may need. */
int nicemu_beats(const nicemu_bank_shape *shape, const nicemu_access *accesses, uint64_t n,
                 nicemu_beat *beats, uint64_t *count);

/* How many cycles each of at most 64 harts waits for banks, when all begin in cycle 0 and a hart
 * that waits does what it does later by as much.  Per hart its beats by ascending cycle, one at
 * most in each; `hold`: cycles for which an atomic keeps a bank beyond its own; the DMA engine's
 * beats are never late. */
int nicemu_banks(const nicemu_beat *const *beats, const uint64_t *counts, uint32_t harts,
                 const nicemu_beat *dma, uint64_t dma_count, uint32_t hold, uint64_t *waits);

/* What is handed to a cluster in a cycle: a call of so many cycles, when it is alone; or `bytes`
 * for its DMA engine, from or to `address`. */
typedef struct {
    uint64_t start, cycles;
    const nicemu_beat *beats; /* of the call, ascending in cycle, which count from `start` */
    uint64_t n_beats;
    uint64_t address, bytes; /* 0: it is a call */
} nicemu_handed;
/* How many cycles each of n waits for banks when what was handed out before has its banks already,
 * as it is in a fabric; the DMA engine none. */
int nicemu_booked(const nicemu_bank_shape *shape, const nicemu_handed *handed, uint64_t n,
                  uint64_t *waits);

/* ---- the device ------------------------------------------------------------------------- */
/* Handler entries by fan-in: [k] takes k payloads in one call, 0 where the image has none. */
enum { NICEMU_MAX_FAN_IN = 8 };

/* What a payload holds, and who takes it: elements of a worker go to first and acc, partial sums
 * of a device to load and merge. */
enum { NICEMU_ELEMENTS = 0, NICEMU_PARTIALS = 1, NICEMU_KINDS = 2 };
/* What an accumulator leaves as: a partial sum, or the result. */
enum { NICEMU_EMIT = 0, NICEMU_FINISH = 1, NICEMU_LEAVINGS = 2 };
typedef struct {
    uint64_t fresh[9]; /* pcs of the entries that begin an accumulator; [1] must exist */
    uint64_t more[9]; /* pcs of those that go on with it; [1] must exist */
    uint64_t whole[NICEMU_LEAVINGS][9]; /* pcs of those that begin and leave: the destination is
                                           behind the payloads in the table */
    uint32_t bytes; /* of one element or partial sum */
} nicemu_kind;

/* One child's stream. */
typedef struct {
    const void *data;
    uint32_t kind; /* NICEMU_ELEMENTS or NICEMU_PARTIALS */
    uint32_t rank; /* of its worker, of a device's first worker */
    uint32_t contributors; /* workers in it */
} nicemu_input;

/* Streams to be reduced in order into one, chunk by chunk.  Chunk c belongs to hart c mod harts.
 * Addresses are the harts' own: `stride` apart from hart to hart. */
typedef struct {
    nicemu_kind kinds[NICEMU_KINDS];
    uint64_t leave[NICEMU_LEAVINGS]; /* pcs of emit and finish */
    uint64_t accumulator, payloads, destination; /* in the scratchpad of hart 0; payload i at
                                                    payloads + i * payload_room */
    uint64_t arguments; /* of hart 0: 64 bytes of context block, then the pointer table */
    uint64_t stack_top; /* of hart 0 */
    uint64_t scratch_stride, arguments_stride, stack_stride;
    uint64_t payload_room; /* bytes between payload slots */
    uint64_t budget; /* per handler call */
    uint8_t context[64]; /* of the first element of child 0: from there child and element are
                            counted on; rank, contributors and chunk are put in here */
    uint32_t leaving; /* which of leave */
    uint32_t leaving_bytes; /* of one element of the output */
    uint32_t streams;
    uint64_t count; /* elements per stream */
    uint64_t chunk; /* elements per packet */
    const nicemu_input *inputs; /* one per stream */
    void *output;
    uint64_t *statuses; /* per chunk, zeros: what a handler of it returned, which then ends nothing;
                           NULL: it ends its core's part */
    uint64_t *cycles; /* per chunk: of its handlers, where clocks run; NULL: not wanted */
} nicemu_reduction;

/* The first chunk that failed. */
typedef struct {
    nicemu_stop stop; /* reason RETURN: every call returned */
    uint64_t status; /* nonzero a0 of the handler that ended it */
    uint64_t chunk; /* its number */
} nicemu_reduction_end;

/* Reduce the chunks from..to-1 that belong to the harts of `hart_mask`, in order.  A hart stops at
 * its first chunk that fails; the others go on.  Harts may not share writable memory: calls with
 * disjoint masks may run at the same time on different host threads. */
int nicemu_reduce(nicemu_cores *cores, const nicemu_reduction *job, uint64_t hart_mask,
                  uint64_t from, uint64_t to, nicemu_reduction_end *out);

/* ---- the wire --------------------------------------------------------------------------- */
/* A frame is NICEMU_HEAD_BYTES of headers, the payload, 0..3 pad bytes and the ICRC. */
enum { NICEMU_HEAD_BYTES = 86, NICEMU_MAX_PAYLOAD = 4096, NICEMU_MAX_FRAME = 86 + 4096 + 4 };

enum { NICEMU_UP = 1, NICEMU_DOWN = 2 }; /* kinds: a contribution, a result */
enum {
    NICEMU_PARTIAL = 1, /* the payload is an unfinished accumulator */
    NICEMU_EMPTY = 2, /* an arrival without data: count is 0 */
    NICEMU_MOVED = 4 /* the payload is copied, not added */
};
/* Types from here on: records of 1, 2, ... 127 bytes, whose fields are the image's affair. */
enum { NICEMU_RECORD = 128 };

/* What a frame says; guide/wire.md has the meaning of each field. */
typedef struct packet {
    uint8_t kind, type, flags; /* type: row of number.def from 1; 0: bytes; NICEMU_RECORD + n */
    uint16_t job, lane, child, contributors, count;
    uint32_t group, seq, chunk, round;
    uint32_t psn; /* 24 bits */
    uint32_t src, dst; /* node numbers, 24 bits */
} nicemu_packet;

/* Verdicts: 0 = accepted, else the row of drop.def from 1.  The name of one, where it is given
 * (*station) and why (*text); NULL past the last. */
const char *nicemu_drop_name(uint32_t verdict, const char **station, const char **text);
/* The name of an element type that is no record, and its bytes; NULL past the last. */
const char *nicemu_element_name(uint32_t type, uint32_t *bytes);

/* A whole frame with its ICRC in out (NICEMU_MAX_FRAME bytes of room); its length, or EINVAL
 * where a receiver would drop it or the fields do not fit. */
int nicemu_packet_build(const nicemu_packet *packet, const uint8_t *payload, uint32_t payload_bytes,
                        uint8_t *out);
/* The verdict on the n bytes of a frame.  Where it is accepted, *out is what it says and
 * *payload_bytes follow its head. */
uint32_t nicemu_packet_parse(const uint8_t *bytes, size_t n, int check_icrc, nicemu_packet *out,
                             uint32_t *payload_bytes);

/* ---- the fabric: hosts and devices in a tree, links, virtual time ------------------------- */
/* Times are picoseconds of virtual time, delays and the timeout up to 2^52 of them; probabilities
 * are fractions of 2^32. */
typedef struct nicemu_fabric nicemu_fabric;

enum {
    NICEMU_MAX_CHILDREN = 64, /* of a device */
    NICEMU_MAX_WORKERS = 1024, /* of a group */
    NICEMU_MAX_WINDOW = 4096,
    NICEMU_MIN_MTU = 256, /* bytes of payload; the most is NICEMU_MAX_PAYLOAD */
    NICEMU_MAX_GROUPS = 256, /* open at a time */
    NICEMU_MAX_EXCHANGES = 64 /* of a group in flight at a time */
};

/* What a frame costs in a NIC, in virtual time. */
typedef struct {
    uint64_t cycle; /* of a core, whose clock runs; 0: none does */
    uint64_t parse, dispatch, egress; /* of a frame that comes in; of a call; of one that leaves */
    uint64_t dma_byte; /* femtoseconds for each byte of a payload, one after the other */
    uint32_t cluster; /* cores, in a row, that share a DMA engine and a scratchpad; 0: all */
    nicemu_bank_shape banks; /* of a scratchpad */
} nicemu_costs;

typedef struct {
    uint64_t seed;
    uint32_t planes; /* 1 or 2 */
    uint32_t mtu; /* most bytes of a payload */
    uint32_t icrc; /* 1: every frame carries and is checked by its ICRC */
    uint32_t max_resends; /* of one chunk by one worker, before its collective fails */
    uint64_t timeout; /* until a worker's first resend; doubled up to 8 times that */
    uint64_t detection; /* from a link's going down to its ends' seeing that */
    uint32_t timed; /* 1: what the time of a collective was spent on is noted */
    uint64_t software; /* of a host, until a message is on its way, and until an end is known */
    nicemu_costs hosts; /* of their own NICs */
    uint32_t host_cores;
    uint32_t reuse; /* 1: where clocks run, a call takes the cycles of the first one of its entry,
                       its count and its place in the scratchpad, and computes nothing: no value
                       means anything */
} nicemu_fabric_config;

/* A device: cores, which must outlive it, and their memory as in nicemu_reduction. */
typedef struct {
    nicemu_cores *cores;
    uint32_t plane;
    uint32_t record; /* its number, the same on both planes: index of nicemu_exchange.records */
    uint32_t max_fan_in;
    uint64_t scratch, scratch_stride, scratch_bytes;
    uint64_t arguments, arguments_stride;
    uint64_t stack_top, stack_stride, stack_bytes;
    uint64_t budget; /* per handler call */
    uint64_t instruction_time; /* of one retired instruction, where no clock runs */
    nicemu_costs costs;
    uint32_t any_core; /* 1: a call takes the time of the first idle core of its lane's cluster;
                          0: of the lane's core */
} nicemu_device_config;

/* One link, both directions alike. */
typedef struct {
    uint64_t delay;
    uint64_t jitter; /* more delay: 0..jitter-1, of every frame */
    uint64_t span; /* of a reordered frame: 1..span more delay */
    uint64_t loss, duplicate, reorder, corrupt; /* probabilities */
    uint64_t byte_time; /* femtoseconds for each byte of a frame, one frame after the other; 0: none
                           waits for another */
    uint64_t overhead; /* bytes that a frame takes beyond its own */
    uint64_t pcie; /* 1: between a card and a NIC */
} nicemu_link_config;

/* Of one direction.  sent + duplicated = delivered + lost + cut + under way. */
typedef struct {
    uint64_t sent; /* frames offered */
    uint64_t duplicated; /* second copies made */
    uint64_t lost; /* by chance */
    uint64_t cut; /* because the link was or went down */
    uint64_t delivered; /* copies that reached the end */
    uint64_t reordered, corrupted; /* copies held back, copies with a flipped bit */
} nicemu_link_counters;

/* Of a host or a device.  received = accepted + the sum of drops. */
typedef struct {
    uint64_t received, accepted;
    uint64_t drops[64]; /* by verdict: row of drop.def from 1 */
    uint64_t damaged; /* of the accepted: corrupted where nothing depends on it */
    uint64_t resent; /* host: arrivals sent again by timer */
    uint64_t repeated; /* device: partial sums and results sent again on a duplicate */
    uint64_t calls; /* device: handler calls */
    uint64_t merged[64]; /* device: payloads that each core has merged */
} nicemu_node_counters;

/* Where the partial sums of a device go. */
typedef struct {
    void *values; /* count elements of the partial type; NULL: not wanted */
    uint64_t *times; /* per chunk: when it was there; 0 = not yet */
    uint64_t *members; /* per chunk (workers + 63) / 64 words: bit w = worker w is in it */
} nicemu_record;

/* A collective of a group.  Everything pointed to must stay until it is done or has failed. */
typedef struct {
    nicemu_kind kinds[NICEMU_KINDS];
    uint64_t leave[NICEMU_LEAVINGS]; /* pcs of emit and finish */
    uint8_t types[NICEMU_KINDS], result_type; /* on the wire */
    uint8_t moved; /* 1: payloads are copied; all types 0, everything counted in bytes */
    uint32_t accumulator_bytes, result_bytes; /* of one element */
    uint32_t workers;
    uint32_t chunk; /* elements */
    uint64_t count; /* elements */
    const uint64_t *blocks; /* moved: worker w owns elements blocks[w]..blocks[w+1]-1, and its input
                               begins with them; NULL: nobody does, and count is 0 */
    const void *const *inputs; /* per worker */
    void *const *outputs; /* per worker: elements from[w]..to[w]-1 of the result; or NULL */
    const uint64_t *from, *to;
    const nicemu_record *records; /* per record number, or NULL */
    uint8_t context[64]; /* element and seed count; the rest is filled in here */
} nicemu_exchange;

enum {
    NICEMU_IDLE = 0, /* nothing waits any more, or nothing up to the given time */
    NICEMU_SLICE = 1, /* max_events have passed, or handlers have done much */
    NICEMU_LEVEL = 2, /* a device has all partial sums of a collective */
    NICEMU_DONE = 3, /* a collective is done */
    NICEMU_FAILED = 4, /* a collective, and with it its group, has failed */
    NICEMU_CAPTURED = 5 /* much has been captured: take it */
};

enum { NICEMU_STAGES = 10 }; /* rows of stage.def */

typedef struct {
    uint32_t kind; /* NICEMU_IDLE... */
    uint32_t group, seq; /* which collective; group 0: which relay */
    uint32_t record; /* LEVEL: which device */
    uint32_t node; /* FAILED by a handler: the device; of a relay: the host whose frame a link that
                      is down has cut off; else 0 */
    uint32_t core, cause, chunk; /* FAILED by a handler: of the collective with the seq `cause`,
                                    which all in flight end with */
    uint32_t missing; /* FAILED: workers whose elements did not reach the root */
    uint32_t waiting; /* FAILED: workers that did not get a result which is there */
    uint64_t status; /* FAILED by a handler that returned it */
    nicemu_stop stop; /* FAILED by a handler: how it ended */
    uint64_t at; /* virtual time */
    uint64_t spent[NICEMU_STAGES]; /* DONE: on the longest way to its end, by row of stage.def */
    uint64_t via; /* DONE: the last record on that way, see nicemu_span; 0: none */
    uint64_t workers[16]; /* FAILED: bit w = worker w is missing, or (where none is) waiting */
} nicemu_event;

/* The name of a row of stage.def; NULL past the last. */
const char *nicemu_stage_name(uint32_t i);

/* A plane that died and what was done about it, times of virtual time. */
typedef struct {
    uint32_t group, plane, chunks; /* chunks: begun again on the other plane */
    uint64_t down, detected; /* when the link went down (0: it did not), and when that was seen */
    uint64_t replayed; /* when the last of the chunks was done; 0 = not yet */
} nicemu_replay;

int nicemu_fabric_open(const nicemu_fabric_config *config, nicemu_fabric **out);
void nicemu_fabric_close(nicemu_fabric *fabric);
/* The new node's number: 1, 2, ... */
int nicemu_fabric_add_host(nicemu_fabric *fabric);
int nicemu_fabric_add_device(nicemu_fabric *fabric, const nicemu_device_config *config);
/* Link a child to its parent, a device: the number of the link.  A device's children are merged in
 * the order in which they were linked; a host has one parent on each plane. */
int nicemu_fabric_connect(nicemu_fabric *fabric, uint32_t child, uint32_t parent,
                          const nicemu_link_config *config);
/* Take a link down or up at a virtual time that is not past. */
int nicemu_fabric_schedule(nicemu_fabric *fabric, uint32_t link, int down, uint64_t at);

/* Open a group of hosts, in the order of their ranks, with lanes at every device of its tree.
 * *window is what is wished for, then what is granted; 0 and ENOMEM: *device has no room, of *free
 * bytes per scratchpad it would take *needed.  Returns the group's number. */
int nicemu_group_open(nicemu_fabric *fabric, uint32_t job, const uint32_t *hosts, uint32_t workers,
                      int arrival, uint32_t *window, uint32_t *device, uint64_t *needed,
                      uint64_t *free);
int nicemu_group_close(nicemu_fabric *fabric, uint32_t group);
/* Start a collective: its seq in the group. */
int nicemu_exchange_start(nicemu_fabric *fabric, uint32_t group, const nicemu_exchange *exchange);
/* Of a reduction that has failed: the partial sums that devices have, or can make of what has
 * arrived, of the chunks in flight; records of all devices between its workers and the root. */
int nicemu_exchange_salvage(nicemu_fabric *fabric, uint32_t group, uint32_t seq,
                            const nicemu_record *records);

/* ---- collectives by hosts: time alone; bits are made and moved by the caller ---------------- */
/* Elements that a host sends to another, in frames, over the links between them.  There they are
 * merged with what that host has, by the cores of its own NIC, or stored. */
typedef struct {
    uint32_t from, to; /* nodes of hosts; the same: nothing travels */
    uint64_t element, count; /* which elements of the whole array; at least one */
    uint32_t chunk; /* elements of a full frame */
    uint32_t bytes; /* of an element in a frame */
    uint32_t taken; /* bytes, for each element, that the NIC takes in to merge; 0: it is stored */
    uint32_t given; /* bytes, for each element, that merging gives */
    uint32_t asked; /* merged: index in nicemu_relay.asked of what a full frame's handlers ask of
                       the banks; the last frame's are at the next index */
    uint64_t cycles; /* merged: index in nicemu_relay.cycles of its first frame's */
} nicemu_relayed;

/* Frames of a message wait until those of another with the same elements are merged or stored:
 * before they leave its host, or, once they are there, before they are merged or stored.  The host
 * posts a message when all those that frames of it wait for before they leave have brought one. */
typedef struct {
    uint32_t before, after; /* which messages; the first ends at the host where the other waits */
    uint32_t there; /* 1: the other waits at its end */
} nicemu_wait;

typedef struct {
    const nicemu_relayed *messages;
    uint32_t n_messages;
    const nicemu_wait *waits;
    uint64_t n_waits;
    const uint64_t *cycles; /* of the handlers that merge each frame */
    uint64_t n_cycles;
    const uint64_t *asked; /* where the beats of each kind of merge end in `beats` */
    uint64_t n_asked;
    const nicemu_beat *beats; /* ascending in cycle, of frames at the beginning of a scratchpad */
    uint64_t n_beats;
} nicemu_relay;

/* Start it, on a timed fabric whose links lose, repeat and change nothing: its number. */
int nicemu_relay_start(nicemu_fabric *fabric, const nicemu_relay *relay);

/* Of all collectives in flight: their chunks, and how many some worker still waits for; of relays
 * their frames, and how many are not merged or stored. */
void nicemu_fabric_progress(const nicemu_fabric *fabric, uint64_t *chunks, uint64_t *left);
/* Let virtual time go on until something is to be reported: at most max_events events, fewer where
 * handlers do much, and none after `until`. */
int nicemu_fabric_run(nicemu_fabric *fabric, uint64_t max_events, uint64_t until,
                      nicemu_event *out);
uint64_t nicemu_fabric_now(const nicemu_fabric *fabric);
uint64_t nicemu_fabric_events(const nicemu_fabric *fabric); /* events that have passed */
uint64_t nicemu_fabric_under_way(const nicemu_fabric *fabric); /* frames on links */

/* The n bytes of a frame arrive at a node: the verdict on them. */
int nicemu_fabric_receive(nicemu_fabric *fabric, uint32_t node, const uint8_t *bytes, size_t n);
/* A hash of the state of all slots, lanes and scratchpads that belong to groups. */
uint64_t nicemu_fabric_digest(const nicemu_fabric *fabric);
/* Record every frame that is sent, or (0) no more. */
void nicemu_fabric_capture(nicemu_fabric *fabric, int on);
/* What was recorded since the last call: *n bytes of pcap records with nanoseconds, there until the
 * next call of any function but this object's getters. */
const uint8_t *nicemu_fabric_captured(nicemu_fabric *fabric, size_t *n);

/* One thing that happened, in the order in which it was put down. */
enum {
    NICEMU_SPAN_SENT = 0, /* a frame is there to be sent; what the link does not lose follows */
    NICEMU_SPAN_LINK = 1, /* the bits of a copy of it on the link */
    NICEMU_SPAN_DMA = 2, /* a payload on its way to a scratchpad */
    NICEMU_SPAN_CORE = 3, /* a handler */
    NICEMU_SPAN_TAKEN = 4, /* a handler, or a slot that copies, has taken a payload */
    NICEMU_SPAN_OPEN = 5, /* a turn of a lane begins: a device's slot, a worker's chunk */
    NICEMU_SPAN_CLOSE = 6 /* ... and ends: its result leaves, or is stored */
};
/* Records have numbers from 1 on; 0 is none. */
typedef struct {
    uint64_t begin, end; /* virtual time */
    uint64_t from; /* SENT: the record of what made the frame; LINK: its SENT; DMA, TAKEN, CLOSE:
                      the LINK by which it came */
    uint64_t by; /* TAKEN: the CORE or OPEN that took it */
    uint64_t via; /* LINK, DMA, CORE: which of these is before it on the longest way to its end; 0:
                     none */
    uint64_t pc; /* CORE: of the entry; 0: all handlers of a relay's frame */
    uint64_t cycles, conflicts, instructions; /* CORE: alone; of waits for banks */
    uint32_t kind; /* NICEMU_SPAN_* */
    uint32_t where; /* SENT, LINK: 2 * link, + 1 where it goes down; others: node */
    uint32_t core; /* CORE; DMA: the engine */
    /* of all but LINK, DMA and TAKEN; of a relay: seq is its number, lane the message, chunk the
     * frame of it */
    uint32_t plane, group, lane, round, seq, chunk;
    uint32_t child; /* SENT; CORE: the first whose payload it takes */
    uint32_t bytes; /* SENT: of the frame; DMA: of the payload */
    uint32_t payloads; /* CORE: how many it takes */
    uint32_t frame; /* SENT: NICEMU_UP or NICEMU_DOWN, and 256 times its flags; 0: of a relay */
    uint32_t copies; /* SENT: 0: lost; 2: duplicated */
} nicemu_span;
/* Put down what happens from now on, or (0) nothing more, and forget all; EINVAL where the fabric
 * is not timed, or has had a group or a relay already. */
int nicemu_fabric_trace(nicemu_fabric *fabric, int on);
/* The *n records until now, there until the next call of any function but this object's getters;
 * ENOMEM: the host had no memory for all of them. */
int nicemu_fabric_traced(const nicemu_fabric *fabric, const nicemu_span **spans, uint64_t *n);

/* Direction 0 is up. */
int nicemu_link_counters_get(const nicemu_fabric *fabric, uint32_t link, uint32_t direction,
                             nicemu_link_counters *out);
/* The sums of all nodes' counters, and of all links' in both directions. */
void nicemu_fabric_totals(const nicemu_fabric *fabric, nicemu_node_counters *nodes,
                          nicemu_link_counters *links);
/* Row i, or EINVAL past the last. */
int nicemu_replay_get(const nicemu_fabric *fabric, uint32_t i, nicemu_replay *out);

/* ---- instructions as text --------------------------------------------------------------- */
/* Row of the instruction in each of n words, or -1 where there is none. */
void nicemu_decode(const nicemu_cores *cores, const uint32_t *words, size_t n, int16_t *rows);
/* Text of `word` at `pc` into buf (at most n bytes with the final 0); its length in bytes (2 or 4).
 */
int nicemu_disasm(const nicemu_cores *cores, uint32_t word, uint64_t pc, char *buf, size_t n);

#endif
