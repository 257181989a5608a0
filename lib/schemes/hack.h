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
 * The bytes of a block are its KV heads in order; those of a head are planes,
 *
 *   | codes: lines x values x b bits, packed, filled up to a byte |
 *   | scales: n_ranges x f16 | minima: n_ranges x f16             | or bf16
 *   | sums of codes: lines x parts, 1, 2 or 4 bytes each          | se=yes
 *
 * all of them little-endian.  Ranges are bf16 with meta=bf16 alone, the
 * artifact's default: a flat group then comes back to bf16's precision.  One
 * token of keys of "hack:b2p64" at head_dim
 * 128 takes 32 + 4 + 4 + 2 = 42 bytes a head, 2.625 bits a value.
 *
 * A range covers, with axes=paper, one part of one line: range
 * line * n_parts + part.  With axes=artifact it covers `group` lines at one
 * place z in them, so that it can be folded into the left side of the product
 * (for keys p tokens of channel z, for values a part of token z's channels):
 * range z * n_groups + line / group. */
#ifndef KV_HACK_H
#define KV_HACK_H

#include "kernels/hack/hack.h"
#include "kernels/hack/layout.h"
#include "lib/codec.h"

struct kv_hack {
    enum kv_side side;
    bool artifact, stochastic, sums, bf16;
    unsigned bits, q_bits;
    size_t n_lines, len;    /* of one KV head of a block */
    size_t part, n_parts;   /* of a line */
    size_t group, n_groups; /* axes=artifact: lines of a range */
    size_t n_ranges, sum_bytes;
    size_t code_bytes, head_bytes;
    struct kv_tile_hack tile; /* axes=paper, where they are `tiled` */
    bool tiled;
};

/* Values of a part. */
static inline size_t kv_hack_part_len(const struct kv_hack *h, size_t part)
{
    return kv_min(h->part, h->len - part * h->part);
}

/* struct kv_scheme's attend(). */
void kv_hack_attend(const struct kv_reader *k, const struct kv_reader *v,
                    const struct kv_attend_view *view, const float *q,
                    uint64_t seed, float *out, struct kv_attend_ops *ops);

#endif
