/* bench.h: what the start files know of the kernels. */
#ifndef BENCH_H
#define BENCH_H

#include <stddef.h>
#include <stdint.h>

enum { N = 512, REPORT_TEXT = 80 };

struct report {
    uint64_t instructions; /* retired by the kernel and the loop around it */
    uint64_t checksum;     /* FNV-1a of all accumulators */
};

void bench_main(struct report *report);
size_t report_text(const struct report *report, char buf[REPORT_TEXT]);

#endif
