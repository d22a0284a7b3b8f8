/* crc.h: CRC-32 as zlib and the ICRC have it.
 * Owns: the sum over bytes, without the inversions before and after.  Which bytes of a frame count
 * belongs to packet.c. */
#ifndef NICEMU_CRC_H
#define NICEMU_CRC_H

#include "base.h"

u32 crc_update(u32 crc, const u8 *p, size_t n);

#endif
