/* crc.c: CRC-32 by tables, sixteen bytes at a time; where the host multiplies polynomials, long
 * stretches by that. */
#include "crc.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

/* ---- by tables -------------------------------------------------------------------------- */

/* Entry b of a table whose entries of the single bits of b, the highest first, are given: a CRC
 * without its inversions is linear. */
#define CRC_ENTRY(b, c7, c6, c5, c4, c3, c2, c1, c0)                                               \
    (0u ^ ((b) >> 7 & 1 ? c7 : 0) ^ ((b) >> 6 & 1 ? c6 : 0) ^ ((b) >> 5 & 1 ? c5 : 0) ^            \
     ((b) >> 4 & 1 ? c4 : 0) ^ ((b) >> 3 & 1 ? c3 : 0) ^ ((b) >> 2 & 1 ? c2 : 0) ^                 \
     ((b) >> 1 & 1 ? c1 : 0) ^ ((b)&1 ? c0 : 0))
#define CRC_4(b, ...)                                                                              \
    CRC_ENTRY(b, __VA_ARGS__), CRC_ENTRY(b + 1, __VA_ARGS__), CRC_ENTRY(b + 2, __VA_ARGS__),       \
        CRC_ENTRY(b + 3, __VA_ARGS__)
#define CRC_16(b, ...)                                                                             \
    CRC_4(b, __VA_ARGS__), CRC_4(b + 4, __VA_ARGS__), CRC_4(b + 8, __VA_ARGS__),                   \
        CRC_4(b + 12, __VA_ARGS__)
#define CRC_64(b, ...)                                                                             \
    CRC_16(b, __VA_ARGS__), CRC_16(b + 16, __VA_ARGS__), CRC_16(b + 32, __VA_ARGS__),              \
        CRC_16(b + 48, __VA_ARGS__)
#define CRC_TABLE(...)                                                                             \
    {                                                                                              \
        CRC_64(0, __VA_ARGS__), CRC_64(64, __VA_ARGS__), CRC_64(128, __VA_ARGS__),                 \
            CRC_64(192, __VA_ARGS__)                                                               \
    }

/* Table k: what a byte adds to the CRC once k more bytes have followed it.  The constants, read on
 * from row to row, are x^32, x^33, ... modulo the polynomial, lowest power in the highest bit. */
static const u32 crc_tables[16][256] = {
    CRC_TABLE(0xedb88320, 0x76dc4190, 0x3b6e20c8, 0x1db71064, 0x0edb8832, 0x076dc419, 0xee0e612c,
              0x77073096),
    CRC_TABLE(0x3b83984b, 0xf0794f05, 0x958424a2, 0x4ac21251, 0xc8d98a08, 0x646cc504, 0x32366282,
              0x191b3141),
    CRC_TABLE(0xe1351b80, 0x709a8dc0, 0x384d46e0, 0x1c26a370, 0x0e1351b8, 0x0709a8dc, 0x0384d46e,
              0x01c26a37),
    CRC_TABLE(0xed59b63b, 0x9b14583d, 0xa032af3e, 0x5019579f, 0xc5b428ef, 0x8f629757, 0xaa09c88b,
              0xb8bc6765),
    CRC_TABLE(0xb1e6b092, 0x58f35849, 0xc1c12f04, 0x60e09782, 0x30704bc1, 0xf580a6c0, 0x7ac05360,
              0x3d6029b0),
    CRC_TABLE(0x1eb014d8, 0x0f580a6c, 0x07ac0536, 0x03d6029b, 0xec53826d, 0x9b914216, 0x4dc8a10b,
              0xcb5cd3a5),
    CRC_TABLE(0x8816eaf2, 0x440b7579, 0xcfbd399c, 0x67de9cce, 0x33ef4e67, 0xf44f2413, 0x979f1129,
              0xa6770bb4),
    CRC_TABLE(0x533b85da, 0x299dc2ed, 0xf9766256, 0x7cbb312b, 0xd3e51bb5, 0x844a0efa, 0x4225077d,
              0xccaa009e),
    CRC_TABLE(0x6655004f, 0xde920307, 0x82f182a3, 0xacc04271, 0xbbd8a218, 0x5dec510c, 0x2ef62886,
              0x177b1443),
    CRC_TABLE(0xe6050901, 0x9eba07a0, 0x4f5d03d0, 0x27ae81e8, 0x13d740f4, 0x09eba07a, 0x04f5d03d,
              0xefc26b3e),
    CRC_TABLE(0x77e1359f, 0xd64819ef, 0x869c8fd7, 0xaef6c4cb, 0xbac3e145, 0xb0d97382, 0x586cb9c1,
              0xc18edfc0),
    CRC_TABLE(0x60c76fe0, 0x3063b7f0, 0x1831dbf8, 0x0c18edfc, 0x060c76fe, 0x03063b7f, 0xec3b9e9f,
              0x9ba54c6f),
    CRC_TABLE(0xa06a2517, 0xbd8d91ab, 0xb37e4bf5, 0xb407a6da, 0x5a03d36d, 0xc0b96a96, 0x605cb54b,
              0xdd96d985),
    CRC_TABLE(0x8373efe2, 0x41b9f7f1, 0xcd6478d8, 0x66b23c6c, 0x33591e36, 0x19ac8f1b, 0xe16ec4ad,
              0x9d0fe176),
    CRC_TABLE(0x4e87f0bb, 0xcafb7b7d, 0x88c53e9e, 0x44629f4f, 0xcf89cc87, 0x8a7c6563, 0xa886b191,
              0xb9fbdbe8),
    CRC_TABLE(0x5cfdedf4, 0x2e7ef6fa, 0x173f7b7d, 0xe6273e9e, 0x73139f4f, 0xd4314c87, 0x87a02563,
              0xae689191),
};

/* What the eight bytes of v add once `after` more have followed them. */
static inline u32 crc_eight(u64 v, u32 after)
{
    const u32(*t)[256] = crc_tables + after;
    return t[7][v & 255] ^ t[6][v >> 8 & 255] ^ t[5][v >> 16 & 255] ^ t[4][v >> 24 & 255] ^
           t[3][v >> 32 & 255] ^ t[2][v >> 40 & 255] ^ t[1][v >> 48 & 255] ^ t[0][v >> 56];
}

static u32 by_tables(u32 crc, const u8 *p, size_t n)
{
    u64 v[2];
    for (; n >= 16; p += 16, n -= 16) {
        memcpy(v, p, 16);
        crc = crc_eight(v[0] ^ crc, 8) ^ crc_eight(v[1], 0);
    }
    if (n >= 8) {
        memcpy(v, p, 8);
        crc = crc_eight(v[0] ^ crc, 0);
        p += 8;
        n -= 8;
    }
    for (; n; p++, n--)
        crc = crc >> 8 ^ crc_tables[0][(crc ^ *p) & 255];
    return crc;
}

/* ---- by multiplication ------------------------------------------------------------------ */

#if defined(__x86_64__)

/* The constants for moving 16 bytes to where `bytes` more have followed them: x^(8 bytes + 63) for
 * the first eight and x^(8 bytes - 1) for the last, modulo the polynomial, lowest power in the
 * highest bit.  (One power less than the distance: the product of two numbers that are stored so
 * stands one bit too low.) */
#define OVER_64 0xcad38e8f00000000ull, 0x653d982200000000ull
#define OVER_16 0x9ba54c6f00000000ull, 0x65673b4600000000ull

__attribute__((target("pclmul"))) static inline __m128i move(__m128i x, __m128i over)
{
    return _mm_xor_si128(_mm_clmulepi64_si128(x, over, 0x00), _mm_clmulepi64_si128(x, over, 0x11));
}

/* 64 bytes or more; the 16 to 79 last are summed by tables. */
__attribute__((target("pclmul"))) static u32 by_products(u32 crc, const u8 *p, size_t n)
{
    const __m128i over_64 = _mm_set_epi64x(OVER_64), over_16 = _mm_set_epi64x(OVER_16);
    __m128i x[4];
    u8 last[16];
    memcpy(x, p, sizeof x);
    x[0] = _mm_xor_si128(x[0], _mm_cvtsi32_si128((int)crc));
    for (p += 64, n -= 64; n >= 64; p += 64, n -= 64)
        for (u32 i = 0; i < 4; i++)
            x[i] = _mm_xor_si128(move(x[i], over_64), _mm_loadu_si128((const __m128i *)p + i));
    for (u32 i = 1; i < 4; i++)
        x[i] = _mm_xor_si128(move(x[i - 1], over_16), x[i]);
    memcpy(last, &x[3], sizeof last);
    return by_tables(by_tables(0, last, sizeof last), p, n);
}

u32 crc_update(u32 crc, const u8 *p, size_t n)
{
    bool products = n >= 64 && __builtin_cpu_supports("pclmul");
    return products ? by_products(crc, p, n) : by_tables(crc, p, n);
}

#else

u32 crc_update(u32 crc, const u8 *p, size_t n)
{
    return by_tables(crc, p, n);
}

#endif
