#include "lib/base/crc32.h"

#include <string.h>

/* Remainders of four bits by the polynomial 0xedb88320. */
static const uint32_t table[16] = {
    0x00000000, 0x1db71064, 0x3b6e20c8, 0x26d930ac, 0x76dc4190, 0x6b6b51f4,
    0x4db26158, 0x5005713c, 0xedb88320, 0xf00f9344, 0xd6d6a3e8, 0xcb61b38c,
    0x9b64c2b0, 0x86d3d2d4, 0xa00ae278, 0xbdbdf21c,
};

uint32_t kv_crc32(const void *data, size_t n)
{
    const uint8_t *at = data;
    uint32_t crc = 0xffffffff;

    for (size_t i = 0; i < n; i++) {
        crc ^= at[i];
        crc = crc >> 4 ^ table[crc & 15];
        crc = crc >> 4 ^ table[crc & 15];
    }
    return ~crc;
}

int kv_crc32_check(const uint8_t *bytes, size_t n, struct kv_err *e)
{
    uint32_t crc, found;

    if (n <= sizeof(crc))
        return kv_fail(e, "cut to %zu bytes", n);
    memcpy(&crc, bytes, sizeof(crc));
    found = kv_crc32(bytes + sizeof(crc), n - sizeof(crc));
    if (crc != found)
        return kv_fail(e,
                       "cut or altered: the checksum says %08x, these %zu "
                       "bytes have %08x",
                       crc, n, found);
    return 0;
}
