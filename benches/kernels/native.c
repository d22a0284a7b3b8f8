/* native.c: the kernels as code of the host, compiled with -O3 -march=native: native K REPETITIONS
 * prints the CPU seconds of the loop.  k9 is k3: the host's compiler chooses the vector length. */
#define _POSIX_C_SOURCE 200809L
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#if defined(__F16C__) && !defined(__AVX512FP16__)
#include <immintrin.h>
#endif

enum { N = 512 };
#define ALIGNED _Alignas(64) static
#define KERNEL __attribute__((noinline)) static
#define SCALAR __attribute__((noinline, optimize("no-tree-vectorize"))) static

typedef _Float16 f16;
ALIGNED f16 f16_in[N], f16_acc[N];
ALIGNED uint16_t bf16_in[N], bf16_acc[N];
ALIGNED float f32_in[N], f32_acc[N];
static volatile uint64_t sink;

SCALAR uint64_t k1(uint64_t n, uint64_t s)
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

SCALAR void k2(void)
{
    for (int i = 0; i < N; i++)
        f16_acc[i] += f16_in[i];
}

/* With F16C alone, compilers convert one element at a time: say it with intrinsics. */
KERNEL void k3(void)
{
#if defined(__F16C__) && !defined(__AVX512FP16__)
    for (int i = 0; i < N; i += 8) {
        __m256 a = _mm256_cvtph_ps(_mm_load_si128((void *)(f16_acc + i)));
        __m256 b = _mm256_cvtph_ps(_mm_load_si128((void *)(f16_in + i)));
        _mm_store_si128((void *)(f16_acc + i), _mm256_cvtps_ph(_mm256_add_ps(a, b), 0));
    }
#else
    for (int i = 0; i < N; i++)
        f16_acc[i] += f16_in[i];
#endif
}

static float widen(uint16_t b)
{
    uint32_t bits = (uint32_t)b << 16;
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

/* To nearest, ties to even; NaN becomes the quiet one. */
static uint16_t narrow(float f)
{
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
    return f == f ? (uint16_t)rounded : 0x7fc0;
}

KERNEL void k4(void)
{
    for (int i = 0; i < N; i++)
        f32_acc[i] += widen(bf16_in[i]);
}

SCALAR float k5(void)
{
    float sum = 0;
    for (int i = 0; i < N; i++)
        sum += f32_in[i];
    return sum;
}

KERNEL void k6(void)
{
    for (int i = 0; i < N; i++)
        f32_acc[i] += f32_in[i];
}

KERNEL void k7(void)
{
    for (int i = 0; i < N; i++)
        bf16_acc[i] = narrow(widen(bf16_acc[i]) + widen(bf16_in[i]));
}

SCALAR void k8(void)
{
    for (int i = 0; i < N; i++)
        f32_acc[i] += f32_in[i];
}

static void sum_chain(void)
{
    sink += (uint64_t)k5();
}

static double cpu_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

int main(int argc, char **argv)
{
    void (*const kernels[10])(void) = {
        [2] = k2, [3] = k3, [4] = k4, [5] = sum_chain, [6] = k6, [7] = k7, [8] = k8, [9] = k3};
    if (argc != 3)
        return 2;
    int k = atoi(argv[1]);
    uint64_t repetitions = strtoull(argv[2], NULL, 10);
    if (k < 1 || k > 9)
        return 2;
    for (int i = 0; i < N; i++) {
        float sign = i & 1 ? -1 : 1;
        f16_in[i] = (f16)(sign * (0.01f + (float)i * 1e-5f));
        f32_in[i] = sign * (0.125f + (float)i * 1e-4f);
        bf16_in[i] = (uint16_t)((0x3e00 + (i * 37 & 0x7f)) | (i & 1) << 15);
    }
    double start = cpu_seconds();
    if (k == 1)
        sink = k1(N * repetitions, 88172645463325252u);
    else
        for (uint64_t r = 0; r < repetitions; r++) {
            kernels[k]();
            __asm__ volatile("" ::: "memory");
        }
    printf("%.9f\n", cpu_seconds() - start);
    return 0;
}
