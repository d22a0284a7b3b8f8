/* stream.h: copies into memory that nobody reads soon, past the host's caches where it can do so.
 * Owns: the choice of the host's way.  When that pays is the caller's to know. */
#ifndef NICEMU_STREAM_H
#define NICEMU_STREAM_H

#include "base.h"

#if defined(__SSE2__)
#include <emmintrin.h>
/* The stores are seen by other host threads after stream_end. */
static inline void stream_copy(u8 *restrict d, const u8 *restrict s, u64 n)
{
    for (; n && (uintptr_t)d % 16; n--)
        *d++ = *s++;
    for (; n >= 16; n -= 16, d += 16, s += 16)
        _mm_stream_si128((__m128i *)d, _mm_loadu_si128((const __m128i *)s));
    for (; n; n--)
        *d++ = *s++;
}
static inline void stream_end(void)
{
    _mm_sfence();
}
#else
static inline void stream_copy(u8 *restrict d, const u8 *restrict s, u64 n)
{
    memcpy(d, s, n);
}
static inline void stream_end(void)
{
}
#endif

#endif
