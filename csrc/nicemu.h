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

/* ---- the device ------------------------------------------------------------------------- */
/* Handler entries by fan-in: [k] takes k payloads in one call, 0 where the image has none. */
enum { NICEMU_MAX_FAN_IN = 8 };

/* What a payload holds, and who takes it: elements of a worker go to first and acc, partial sums
 * of a device to load and merge. */
enum { NICEMU_ELEMENTS = 0, NICEMU_PARTIALS = 1, NICEMU_KINDS = 2 };
typedef struct {
    uint64_t fresh[9]; /* pcs of the entries that begin an accumulator; [1] must exist */
    uint64_t more[9]; /* pcs of those that go on with it; [1] must exist */
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
    uint64_t leave; /* pc of finish or emit */
    uint64_t accumulator, payloads, destination; /* in the scratchpad of hart 0; payload i at
                                                    payloads + i * payload_room */
    uint64_t arguments; /* of hart 0: 64 bytes of context block, then the pointer table */
    uint64_t stack_top; /* of hart 0 */
    uint64_t scratch_stride, arguments_stride, stack_stride;
    uint64_t payload_room; /* bytes between payload slots */
    uint64_t budget; /* per handler call */
    uint8_t context[64]; /* of the first element of child 0: from there child and element are
                            counted on; rank, contributors and chunk are put in here */
    uint32_t leaving_bytes; /* of one element of the output */
    uint32_t streams;
    uint64_t count; /* elements per stream */
    uint64_t chunk; /* elements per packet */
    const nicemu_input *inputs; /* one per stream */
    void *output;
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

/* What a frame says; guide/wire.md has the meaning of each field. */
typedef struct packet {
    uint8_t kind, type, flags; /* type: row of number.def from 1; 0: bytes */
    uint16_t job, lane, child, contributors, count;
    uint32_t group, seq, chunk, round;
    uint32_t psn; /* 24 bits */
    uint32_t src, dst; /* node numbers, 24 bits */
} nicemu_packet;

/* Verdicts: 0 = accepted, else the row of drop.def from 1.  The name of one, where it is given
 * (*station) and why (*text); NULL past the last. */
const char *nicemu_drop_name(uint32_t verdict, const char **station, const char **text);
/* The name of an element type and its bytes; NULL past the last. */
const char *nicemu_element_name(uint32_t type, uint32_t *bytes);

/* A whole frame with its ICRC in out (NICEMU_MAX_FRAME bytes of room); its length, or EINVAL
 * where a receiver would drop it or the fields do not fit. */
int nicemu_packet_build(const nicemu_packet *packet, const uint8_t *payload, uint32_t payload_bytes,
                        uint8_t *out);
/* The verdict on the n bytes of a frame.  Where it is accepted, *out is what it says and
 * *payload_bytes follow its head. */
uint32_t nicemu_packet_parse(const uint8_t *bytes, size_t n, int check_icrc, nicemu_packet *out,
                             uint32_t *payload_bytes);

/* ---- instructions as text --------------------------------------------------------------- */
/* Row of the instruction in each of n words, or -1 where there is none. */
void nicemu_decode(const nicemu_cores *cores, const uint32_t *words, size_t n, int16_t *rows);
/* Text of `word` at `pc` into buf (at most n bytes with the final 0); its length in bytes (2 or 4).
 */
int nicemu_disasm(const nicemu_cores *cores, uint32_t word, uint64_t pc, char *buf, size_t n);

#endif
