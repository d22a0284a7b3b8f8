#include "vloops.h"
const struct vec_loops vec_loops_portable;
