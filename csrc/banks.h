/* banks.h: the banks of a scratchpad that several harts share, and who waits for whom.
 * Owns: the arbitration, cycle by cycle.  What a hart wants, and when it would if nobody were in
 * its way, comes from its accesses (access.h); it knows neither harts nor addresses. */
#ifndef NICEMU_BANKS_H
#define NICEMU_BANKS_H

#include "base.h"
#include "nicemu.h"

enum { MAX_BANKS = 64, MAX_SHARERS = 64 };

#endif
