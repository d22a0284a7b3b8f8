/* linux.c: start as a Linux user program without a C library, for QEMU's user mode. */
#include "bench.h"

enum { SYS_WRITE = 64, SYS_EXIT_GROUP = 94 };

static long call(long number, long a, long b, long c)
{
    register long a7 __asm__("a7") = number, a0 __asm__("a0") = a, a1 __asm__("a1") = b,
                     a2 __asm__("a2") = c;
    __asm__ volatile("ecall" : "+r"(a0) : "r"(a1), "r"(a2), "r"(a7) : "memory");
    return a0;
}

__attribute__((used)) static void c_main(void)
{
    struct report report;
    char text[REPORT_TEXT];
    bench_main(&report);
    size_t n = report_text(&report, text);
    call(SYS_WRITE, 1, (long)text, (long)n);
    call(SYS_EXIT_GROUP, 0, 0, 0);
    for (;;)
        ;
}

__attribute__((naked)) void _start(void)
{
    __asm__ volatile(".option push\n"
                     ".option norelax\n"
                     "la gp, __global_pointer$\n"
                     ".option pop\n"
                     "andi sp, sp, -16\n"
                     "j c_main\n");
}
