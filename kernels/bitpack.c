#include "kernels/bitpack.h"
#include "kernels/simd/common.h"

#include <string.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__,
               "words are stored as they are");

/* The low b bits of each 32-bit half, shifted up by s. */
ALWAYS_INLINE uint64_t both(unsigned b, unsigned s)
{
    const uint64_t low = (1ull << b) - 1;

    return low << s | low << (32 + s);
}

/* Pack four codes in 16-bit lanes to 4 b bits, and back.  The gaps close first
 * within each pair of lanes, then between the pairs. */
ALWAYS_INLINE uint64_t squeeze(uint64_t lanes, unsigned b)
{
    const uint64_t pairs =
        (lanes & both(b, 0)) | (lanes & both(b, 16)) >> (16 - b);

    return (pairs & 0xffffffff) | pairs >> 32 << 2 * b;
}

ALWAYS_INLINE uint64_t spread(uint64_t packed, unsigned b)
{
    const uint64_t low = (1ull << 2 * b) - 1;
    const uint64_t pairs = (packed & low) | (packed >> 2 * b & low) << 32;

    return (pairs & both(b, 0)) | (pairs & both(b, b)) << (16 - b);
}

ALWAYS_INLINE uint64_t load8(const void *p)
{
    uint64_t word;

    memcpy(&word, p, 8);
    return word;
}

/* Eight codes take exactly b bytes: one word when b < 8, else two words that
 * overlap in the middle. */
ALWAYS_INLINE void pack8(const uint16_t *codes, unsigned b, uint8_t *out)
{
    const uint64_t low = squeeze(load8(codes), b);
    const uint64_t high = squeeze(load8(codes + 4), b);
    const uint64_t first = low | high << 4 * b;

    if (b < 8) {
        memcpy(out, &first, b);
    } else {
        const uint64_t last = high << (64 - 4 * b) | low >> (8 * b - 64);

        memcpy(out, &first, 8);
        memcpy(out + b - 8, &last, 8);
    }
}

ALWAYS_INLINE void unpack8(const uint8_t *in, unsigned b, uint16_t *codes)
{
    uint64_t low = 0, high;

    if (b < 8) {
        for (unsigned i = 0; i < b; i++)
            low |= (uint64_t)in[i] << 8 * i;
        high = low >> 4 * b;
    } else {
        low = load8(in);
        high = load8(in + b - 8) >> (64 - 4 * b);
    }
    low = spread(low, b);
    high = spread(high, b);
    memcpy(codes, &low, 8);
    memcpy(codes + 4, &high, 8);
}

ALWAYS_INLINE void pack_n(const uint16_t *codes, size_t n, unsigned b,
                          uint8_t *out)
{
    const size_t whole = n / 8, rest = n % 8;

    for (size_t i = 0; i < whole; i++)
        pack8(codes + i * 8, b, out + i * b);
    if (rest) {
        uint16_t last[8] = {0};
        uint8_t bytes[16];

        memcpy(last, codes + whole * 8, rest * sizeof(*last));
        pack8(last, b, bytes);
        memcpy(out + whole * b, bytes, kv_pack_bytes(rest, b));
    }
}

ALWAYS_INLINE void unpack_n(const uint8_t *in, size_t n, unsigned b,
                            uint16_t *codes)
{
    const size_t whole = n / 8, rest = n % 8;

    for (size_t i = 0; i < whole; i++)
        unpack8(in + i * b, b, codes + i * 8);
    if (rest) {
        uint8_t bytes[16] = {0};
        uint16_t last[8];

        memcpy(bytes, in + whole * b, kv_pack_bytes(rest, b));
        unpack8(bytes, b, last);
        memcpy(codes + whole * 8, last, rest * sizeof(*last));
    }
}

size_t kv_pack_bytes(size_t n, unsigned bits)
{
    return n / 8 * bits + (n % 8 * bits + 7) / 8;
}

/* Every width but the whole bytes gets its own loop, its shifts constant. */
#define WIDTHS(X) \
    X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(9) X(10) X(11) X(12) X(13) X(14) X(15)

void kv_pack(const uint16_t *codes, size_t n, unsigned bits, uint8_t *out)
{
    switch (bits) {
#define CASE(B)                   \
    case B:                       \
        pack_n(codes, n, B, out); \
        break;
        WIDTHS(CASE)
#undef CASE
    case 8:
        for (size_t i = 0; i < n; i++)
            out[i] = (uint8_t)codes[i];
        break;
    case 16:
        memcpy(out, codes, n * 2);
        break;
    }
}

void kv_unpack(const uint8_t *in, size_t n, unsigned bits, uint16_t *codes)
{
    switch (bits) {
#define CASE(B)                    \
    case B:                        \
        unpack_n(in, n, B, codes); \
        break;
        WIDTHS(CASE)
#undef CASE
    case 8:
        for (size_t i = 0; i < n; i++)
            codes[i] = in[i];
        break;
    case 16:
        memcpy(codes, in, n * 2);
        break;
    }
}
