/* kernels.c: the nine kernels of benches/isa.py, freestanding; one per program (-DK=1..9).
 * All work on one 1 KiB packet of 512 elements, `repetitions` times.
 *   k1 integer xorshift loop      k2 f16 += f16, scalar (Zfh)      k3 f16 += f16, vector (Zvfh)
 *   k4 f32 += bf16, vector        k5 f32 sum, one dependent chain  k6 f32 += f32, vector
 *   k7 bf16 += bf16, vector,      k8 f32 += f32, scalar            k9 f16 += f16, vector, LMUL 8,
 *      rounded at every step                                          by hand
 * The start files (bare_metal.c, linux.c) print what bench_main leaves in `report`. */
#include "bench.h"

typedef _Float16 f16;
typedef __bf16 bf16;

/* Written into the program file by isa.py, so that one build serves every length of run. */
volatile uint64_t repetitions = 1;

static _Alignas(64) f16 f16_in[N], f16_acc[N];
static _Alignas(64) bf16 bf16_in[N], bf16_acc[N];
static _Alignas(64) float f32_in[N], f32_acc[N];

#define KERNEL __attribute__((noinline, unused)) static
#define SCALAR _Pragma("clang loop vectorize(disable) interleave(disable) unroll(disable)")

KERNEL uint64_t k1(uint64_t n, uint64_t s)
{
    uint64_t sum = 0;
    for (uint64_t i = 0; i < n; i++) {
        s ^= s << 13;
        s ^= s >> 7;
        s ^= s << 17;
        sum += s;
    }
    return sum;
}

KERNEL void k2(f16 *restrict acc, const f16 *restrict in, size_t n)
{
    SCALAR for (size_t i = 0; i < n; i++) acc[i] += in[i];
}

KERNEL void k3(f16 *restrict acc, const f16 *restrict in, size_t n)
{
    for (size_t i = 0; i < n; i++)
        acc[i] += in[i];
}

KERNEL void k4(float *restrict acc, const bf16 *restrict in, size_t n)
{
    for (size_t i = 0; i < n; i++)
        acc[i] += (float)in[i];
}

KERNEL float k5(const float *in, size_t n)
{
    float sum = 0;
    SCALAR for (size_t i = 0; i < n; i++) sum += in[i];
    return sum;
}

KERNEL void k6(float *restrict acc, const float *restrict in, size_t n)
{
    for (size_t i = 0; i < n; i++)
        acc[i] += in[i];
}

KERNEL void k7(bf16 *restrict acc, const bf16 *restrict in, size_t n)
{
    for (size_t i = 0; i < n; i++)
        acc[i] = (bf16)((float)acc[i] + (float)in[i]);
}

KERNEL void k8(float *restrict acc, const float *restrict in, size_t n)
{
    SCALAR for (size_t i = 0; i < n; i++) acc[i] += in[i];
}

KERNEL void k9(f16 *restrict acc, const f16 *restrict in, size_t n)
{
    size_t vl, bytes;
    __asm__ volatile(
        "1: vsetvli %[vl], %[n], e16, m8, ta, ma\n"
        "vle16.v v8, (%[acc])\n"
        "vle16.v v16, (%[in])\n"
        "sub %[n], %[n], %[vl]\n"
        "slli %[bytes], %[vl], 1\n"
        "add %[in], %[in], %[bytes]\n"
        "vfadd.vv v8, v8, v16\n"
        "vse16.v v8, (%[acc])\n"
        "add %[acc], %[acc], %[bytes]\n"
        "bnez %[n], 1b\n"
        : [acc] "+r"(acc), [in] "+r"(in), [n] "+r"(n), [vl] "=&r"(vl), [bytes] "=&r"(bytes)
        :
        : "memory", "v8", "v9", "v10", "v11", "v12", "v13", "v14", "v15", "v16", "v17", "v18",
          "v19", "v20", "v21", "v22", "v23");
}

/* Ordinary numbers of mixed signs; volatile keeps the compiler from vectorising the set-up. */
static void fill(volatile void *in, unsigned bytes, uint32_t base, uint32_t step, uint32_t mask)
{
    SCALAR for (uint32_t i = 0; i < N; i++)
    {
        uint32_t v = (base + (i * step & mask)) | (i & 1) << (8 * bytes - 1);
        if (bytes == 2)
            ((volatile uint16_t *)in)[i] = (uint16_t)v;
        else
            ((volatile uint32_t *)in)[i] = v;
    }
}

static uint64_t fnv(const void *data, size_t n, uint64_t hash)
{
    const volatile uint8_t *p = data;
    SCALAR for (size_t i = 0; i < n; i++)
    {
        hash ^= p[i];
        hash *= 1099511628211u;
    }
    return hash;
}

static uint64_t retired(void)
{
#ifdef NO_COUNTERS
    return 0;
#else
    uint64_t v;
    __asm__ volatile("csrr %0, instret" : "=r"(v));
    return v;
#endif
}

void bench_main(struct report *report)
{
    fill(f16_in, 2, 0x1000, 37, 0x7ff);
    fill(bf16_in, 2, 0x3e00, 37, 0x7f);
    fill(f32_in, 4, 0x3e000000, 3700, 0xfffff);
    uint64_t reps = repetitions, value = 0;
    uint64_t before = retired();
#if K == 1
    value = k1(N * reps, 88172645463325252u);
#else
    for (uint64_t r = 0; r < reps; r++) {
#if K == 5
        const float *in = f32_in;
        __asm__ volatile("" : "+r"(in)::"memory");
        union {
            float f;
            uint32_t bits;
        } sum = {k5(in, N)};
        value += sum.bits;
#elif K == 4
        k4(f32_acc, bf16_in, N);
#elif K == 6
        k6(f32_acc, f32_in, N);
#elif K == 7
        k7(bf16_acc, bf16_in, N);
#elif K == 8
        k8(f32_acc, f32_in, N);
#elif K == 2
        k2(f16_acc, f16_in, N);
#elif K == 3
        k3(f16_acc, f16_in, N);
#elif K == 9
        k9(f16_acc, f16_in, N);
#endif
    }
#endif
    report->instructions = retired() - before;
    uint64_t hash = fnv(&value, sizeof value, 14695981039346656037u);
    hash = fnv(f16_acc, sizeof f16_acc, hash);
    hash = fnv(bf16_acc, sizeof bf16_acc, hash);
    report->checksum = fnv(f32_acc, sizeof f32_acc, hash);
}

/* "instructions N checksum N\n" into buf; returns its length. */
size_t report_text(const struct report *report, char buf[REPORT_TEXT])
{
    const char *words[] = {"instructions ", " checksum "};
    uint64_t values[] = {report->instructions, report->checksum};
    size_t n = 0;
    for (int i = 0; i < 2; i++) {
        for (const char *p = words[i]; *p; p++)
            buf[n++] = *p;
        char digits[20];
        int count = 0;
        do
            digits[count++] = (char)('0' + values[i] % 10);
        while (values[i] /= 10);
        while (count)
            buf[n++] = digits[--count];
    }
    buf[n++] = '\n';
    return n;
}

/* The compiler may call these, whatever it is told. */
void *memset(void *to, int value, size_t n)
{
    volatile uint8_t *p = to;
    while (n--)
        *p++ = (uint8_t)value;
    return to;
}

void *memcpy(void *restrict to, const void *restrict from, size_t n)
{
    volatile uint8_t *p = to;
    for (const uint8_t *q = from; n--; q++)
        *p++ = *q;
    return to;
}
