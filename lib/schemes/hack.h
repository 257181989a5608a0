/* Shared by the files of the hack scheme: the bytes of a block and the keys of
 * its random numbers.  See hack.c for the scheme.
 *
 * A line is the vector of one inner product: a token's channels for keys, a
 * channel's tokens for values.  A line is cut into parts of p values (the last
 * may be shorter), which are equation 4's partitions; with axes=artifact parts
 * of keys divide the head.  A block holds
 *
 *                            lines               values of a line
 *   keys, axes=paper         1 (token)           head_dim
 *   keys, axes=artifact      p (tokens)          head_dim
 *   values, both             head_dim (channels) p: one part
 *
 * The bytes of a block are its KV heads in order.  The bytes of a head are
 * planes,
 *
 *   | codes: lines x values x b bits, packed, filled up to a byte |
 *   | scales: n_ranges x f16 | minima: n_ranges x f16             | or bf16
 *   | sums of codes: lines x parts, 1, 2 or 4 bytes each          | se=yes
 *
 * all of them little-endian.  Ranges are bf16 only with meta=bf16, the
 * artifact's default; a flat group then decodes to bf16's precision.  One token
 * of keys of "hack:b2p64" at head_dim 128 takes 32 + 4 + 4 + 2 = 42 bytes a
 * head, 2.625 bits a value.
 *
 * A range covers, with axes=paper, one part of one line: range
 * line * n_parts + part.  With axes=artifact it covers `group` lines at one
 * index z (for keys p tokens of channel z, for values a part of token z's
 * channels), so that its scale can be folded into the left side of the product.
 * Its number is z * n_groups + line / group. */
#ifndef KV_HACK_H
#define KV_HACK_H

#include "kernels/hack/hack.h"
#include "kernels/hack/layout.h"
#include "lib/scheme.h"

struct kv_hack {
    enum kv_side side;
    bool artifact, stochastic, sums, bf16;
    unsigned bits, q_bits;
    size_t n_lines, len;    /* lines of one KV head of a block */
    size_t part, n_parts;   /* parts of a line */
    size_t group, n_groups; /* axes=artifact: lines of a range */
    size_t n_ranges, sum_bytes;
    size_t code_bytes, head_bytes;
    struct kv_tile_hack tile; /* for attention in tiles, with axes=paper, if
                               * `tiled` */
    bool tiled;
};

/* The number of values in a part. */
static inline size_t kv_hack_part_len(const struct kv_hack *h, size_t part)
{
    return kv_min(h->part, h->len - part * h->part);
}

/* The place of range i: n values, `step` apart, from index `at` in
 * [n_lines][len] on, with the counters of their random numbers.  first: the
 * block's first token. */
struct kv_hack_span {
    size_t at, step, n;
    uint64_t counter, next;
};

struct kv_hack_span kv_hack_span_of(const struct kv_hack *h, size_t i,
                                    size_t first);

/* The index of token t, channel c in [n_lines][len]. */
static inline size_t kv_hack_place(const struct kv_hack *h, size_t t, size_t c)
{
    return h->side == KV_K ? t * h->len + c : c * h->len + t;
}

/* Reads a stored range; stores a range and returns its rounded values.  bytes:
 * the bytes of one head. */
struct kv_hack_range kv_hack_get_range(const struct kv_hack *h,
                                       const uint8_t *bytes, size_t i);
struct kv_hack_range kv_hack_put_range(const struct kv_hack *h, uint8_t *bytes,
                                       size_t i, struct kv_hack_range r);
/* Packs code [n_lines][len] and adds the sums of its parts. */
void kv_hack_put_codes(const struct kv_hack *h, const uint16_t *code,
                       uint8_t *bytes);

uint64_t kv_hack_stored_key(const struct kv_codec *c, uint64_t seed,
                            size_t head, size_t step);
/* Quantizes range i of one KV head; x, code: [n_lines][len]. */
void kv_hack_encode_range(const struct kv_hack *h, uint64_t key, size_t first,
                          size_t i, const float *x, uint16_t *code,
                          uint8_t *bytes);
/* Decodes a block's first m tokens to x [m][n_kv_heads][head_dim]. */
void kv_hack_decode_block(const struct kv_codec *c, const uint8_t *bytes,
                          size_t m, float *x);

extern const struct kv_history kv_hack_open_block; /* the open block of rqe=no
                                                    * (hack_open.c) */

/* struct kv_scheme's attend(). */
void kv_hack_attend(const struct kv_reader *k, const struct kv_reader *v,
                    const struct kv_attend_view *view, const float *q,
                    uint64_t seed, float *out, struct kv_attend_ops *ops);

#endif
