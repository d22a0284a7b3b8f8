/* vloops_table.h: included last by vloops_*.c, when every family is defined: the loops of
 * vloops.def as functions, and the table of them, which the includer has named VEC_LOOPS. */
#define LOOP(family, name, ...) DEF_##family(name, __VA_ARGS__)
#include "vloops.def"
#undef LOOP

#define LOOP(family, name, ...) [L_##name] = ROW_##family(name),
const struct vec_loops VEC_LOOPS = {
    .loop =
        {
#include "vloops.def"
        },
    .merge = {merge_8, merge_16, merge_32, merge_64},
    .splat = {splat_8, splat_16, splat_32, splat_64},
    .copy = copy,
    .pack = pack,
};
#undef LOOP
