#include "lib/base/crc32.h"

#include <string.h>
#include <zlib.h>

uint32_t kv_crc32(const void *data, size_t n)
{
    return (uint32_t)crc32_z(0, data, n);
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
