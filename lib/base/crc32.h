/* CRC-32 (IEEE 802.3, reflected; as in zlib and PNG): 0xcbf43926 for the nine
 * bytes "123456789".  Finds every change that lies within 32 bits. */
#ifndef KV_BASE_CRC32_H
#define KV_BASE_CRC32_H

#include "lib/base/err.h"

#include <stddef.h>
#include <stdint.h>

uint32_t kv_crc32(const void *data, size_t n);

/* Checks n bytes; the first four are the checksum of the others.  Fails when
 * bytes are missing or altered. */
int kv_crc32_check(const uint8_t *bytes, size_t n, struct kv_err *e);

#endif
