/* A range coder: symbols to bytes, at the cost that their tables define, and
 * back.
 *
 * A table is cum [n_symbols + 1], the cumulative counts: cum[0] = 0 < cum[1] <
 * ... < cum[n_symbols] = 65536, 1 <= n_symbols <= 65536.  A symbol s costs
 * log2(65536 / (cum[s + 1] - cum[s])) bits, plus a small loss by rounding in a
 * 32-bit range (at most 2^-24 of the range).  Every symbol may have a table of
 * its own; the decoder needs the same tables in the same order.  It computes in
 * integers only and gives the same bytes everywhere.
 *
 * The interval is low + [0, range), of which 32 bits are held at a time.  When
 * range falls below 2^24, the leading byte is written; a carry is added to the
 * bytes already written.  One last byte picks a number in the interval; past
 * the end a decoder reads zeros. */
#ifndef KV_RANGE_CODER_H
#define KV_RANGE_CODER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { KV_RANGE_TOTAL = 65536 };

/* The table of n_symbols counts, so that the i-th entry is round(before_i /
 * total * (65536 - n_symbols)) + i: proportional to the counts, and at least 1
 * for each symbol.  If all counts are 0, all symbols are equally likely.  The
 * sum of the counts must be below 2^47.  cum: [n_symbols + 1]. */
void kv_range_table(const uint32_t *count, size_t n_symbols, uint32_t *cum);

/* The maximum number of bytes that n symbols take. */
static inline size_t kv_range_max_bytes(size_t n)
{
    return 2 * n + 1;
}

struct kv_range_encoder {
    uint8_t *out; /* memory for kv_range_max_bytes() of the symbols to come */
    size_t n;     /* bytes written */
    uint32_t low, range;
};

void kv_range_encode_start(struct kv_range_encoder *e, uint8_t *out);
void kv_range_encode(struct kv_range_encoder *e, const uint32_t *cum,
                     size_t n_symbols, size_t symbol);
/* To be called once, after the last symbol; returns the total number of bytes
 * written. */
size_t kv_range_encode_end(struct kv_range_encoder *e);

/* Reads no byte outside in [n]; decodes any bytes to some symbols. */
struct kv_range_decoder {
    const uint8_t *in;
    size_t n, at; /* at may pass n: zeros */
    uint32_t code, range;
};

void kv_range_decode_start(struct kv_range_decoder *d, const uint8_t *in,
                           size_t n);
/* Returns a symbol below n_symbols. */
size_t kv_range_decode(struct kv_range_decoder *d, const uint32_t *cum,
                       size_t n_symbols);
/* Whether decoding has consumed exactly all bytes. */
bool kv_range_decode_ended(const struct kv_range_decoder *d);

#endif
