/* Codes of 1 to 16 bits, packed without gaps, little-endian bit order: code i
 * is bits [i * bits, (i + 1) * bits) of the string in which bit j of byte p is
 * bit 8 p + j.  Three-bit codes:
 *
 *   byte 0            byte 1            byte 2
 *   | 0 0 0 1 1 1 2 2 | 2 3 3 3 4 4 4 5 | 5 5 6 6 6 7 7 7 |    low bit first
 *
 * The last byte is filled up with zero bits. */
#ifndef KV_BITPACK_H
#define KV_BITPACK_H

#include <stddef.h>
#include <stdint.h>

/* The bytes that n codes take: ceil(n * bits / 8). */
size_t kv_pack_bytes(size_t n, unsigned bits);

/* codes: [n], only the low `bits` bits of each are used; out: [kv_pack_bytes(n,
 * bits)], written in full.  1 <= bits <= 16. */
void kv_pack(const uint16_t *codes, size_t n, unsigned bits, uint8_t *out);

/* Undoes kv_pack(); reads no byte past kv_pack_bytes(n, bits). */
void kv_unpack(const uint8_t *in, size_t n, unsigned bits, uint16_t *codes);

#endif
