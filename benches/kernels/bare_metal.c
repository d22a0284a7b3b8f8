/* bare_metal.c: start in M-mode at 0x80000000 and report over HTIF, as Spike and nicemu offer it.
 */
#include "bench.h"

#define HTIF __attribute__((section(".tohost"), aligned(64)))
enum { HTIF_PUTCHAR = 0x0101, HTIF_EXIT_OK = 1 };

HTIF volatile uint64_t tohost;
HTIF volatile uint64_t fromhost;
__attribute__((aligned(16))) char stack[16384];

__attribute__((used)) static void c_main(void)
{
    struct report report;
    char text[REPORT_TEXT];
    bench_main(&report);
    size_t n = report_text(&report, text);
    for (size_t i = 0; i < n; i++) {
        while (tohost)
            ;
        tohost = (uint64_t)HTIF_PUTCHAR << 48 | (uint8_t)text[i];
    }
    while (tohost)
        ;
    tohost = HTIF_EXIT_OK;
    for (;;)
        ;
}

/* mstatus: FS and VS dirty, so that marking them costs nothing while the kernel runs. */
__attribute__((naked, section(".text.start"))) void _start(void)
{
    __asm__ volatile(".option push\n"
                     ".option norelax\n"
                     "la gp, __global_pointer$\n"
                     ".option pop\n"
                     "li t0, 0x6600\n"
                     "csrs mstatus, t0\n"
                     "csrwi fcsr, 0\n"
                     "la sp, stack + 16384\n"
                     "j c_main\n");
}
