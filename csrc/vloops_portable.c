/* vloops_portable.c: the table of loops for any host: integer code only, every rounding mode. */
#include "vloops_int.h"

#define VEC_LOOPS vec_loops_portable
#include "vloops_table.h"
