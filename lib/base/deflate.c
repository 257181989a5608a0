#include "lib/base/deflate.h"
#include "lib/base/alloc.h"

#include <assert.h>
#include <zlib.h>

/* A window of 32 KiB; negative: no header and no checksum. */
enum { WINDOW_BITS = -15, MEMORY = 8, STATE_BYTES = 1 << 18 };

size_t kv_deflate_max_bytes(size_t n)
{
    assert(n < (size_t)1 << 31);
    return compressBound(n);
}

size_t kv_deflate(const uint8_t *in, size_t n, uint8_t *out)
{
    z_stream z = {.next_in = (Bytef *)in,
                  .avail_in = (uInt)n,
                  .next_out = out,
                  .avail_out = (uInt)kv_deflate_max_bytes(n)};
    int rc;

    if (deflateInit2(&z, Z_DEFAULT_COMPRESSION, Z_DEFLATED, WINDOW_BITS, MEMORY,
                     Z_DEFAULT_STRATEGY) != Z_OK)
        kv_memory_end(1, STATE_BYTES);
    rc = deflate(&z, Z_FINISH);
    assert(rc == Z_STREAM_END);
    deflateEnd(&z);
    return z.total_out;
}

int kv_inflate(const uint8_t *in, size_t n, uint8_t *out, size_t out_bytes)
{
    uint8_t none; /* zlib needs a pointer even for no bytes */
    z_stream z = {.next_in = (Bytef *)in,
                  .avail_in = (uInt)n,
                  .next_out = out_bytes ? out : &none,
                  .avail_out = (uInt)out_bytes};
    int rc;

    if (n != z.avail_in || out_bytes != z.avail_out)
        return -1;
    if (inflateInit2(&z, WINDOW_BITS) != Z_OK)
        kv_memory_end(1, STATE_BYTES);
    rc = inflate(&z, Z_FINISH);
    inflateEnd(&z);
    return rc == Z_STREAM_END && !z.avail_in && !z.avail_out ? 0 : -1;
}
