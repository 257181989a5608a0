/* Codes of HACK of any sizes, as hack_steps.cuh multiplies with them: for the
 * generic kernel (generic_hack.cu) and for many queries (hack_forms.h).
 *
 * A step is so many tokens of a KV head, a multiple of 16, as lines of codes,
 * along which products run (lib/schemes/hack.h): of keys a line is a token, its
 * codes are channels; of values a line is a channel, its codes are tokens.
 *
 *   | codes [lines][line] | scales f16, minima f16, sums u16:
 *                          [parts][lines] each |
 *
 * lines, and the codes of a line, are filled up to multiples of 16: lines with
 * anything, codes with zeros.  16 bytes have 16 codes, code i in byte i, or 16
 * of each of 2, 4 or 8 such runs, where codes are of at most 4, 2 or 1 bits: of
 * the first run in a byte's low bits. */
#ifndef KV_HACK_CUDA_STEPS_H
#define KV_HACK_CUDA_STEPS_H

#include "kernels/hack/layout.h"
#include "lib/base/rng.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { KV_HACK_STEP_PART = 256 /* values of a partition, at most */ };

/* One side. */
struct kv_hack_steps {
    bool values, stochastic;
    unsigned head_dim, tokens; /* of a step */
    unsigned part, parts;      /* values of a partition; partitions of a line */
    unsigned lines, codes;     /* codes of a line */
    unsigned runs;             /* log2 of the runs that share 16 bytes */
    float top;                 /* 2^q_bits - 1 */
    uint64_t key;              /* seed, stream and layer, mixed */
};

/* Values of a partition: keys' last one may have fewer. */
KV_HOST_DEVICE static inline unsigned
kv_hack_part_values(const struct kv_hack_steps *h, unsigned part)
{
    const unsigned along = h->values ? h->tokens : h->head_dim;
    const unsigned left = along - part * h->part;

    return left < h->part ? left : h->part;
}

/* Bytes of a line. */
KV_HOST_DEVICE static inline unsigned
kv_hack_line_bytes(const struct kv_hack_steps *h)
{
    return (h->codes / 16 + (1u << h->runs) - 1) >> h->runs << 4;
}

KV_HOST_DEVICE static inline size_t
kv_hack_step_bytes(const struct kv_hack_steps *h)
{
    return (size_t)h->lines * kv_hack_line_bytes(h) +
           (size_t)6 * h->parts * h->lines;
}

#ifdef __cplusplus
extern "C" {
#endif

/* Of steps of `tokens` tokens, which values' partitions divide.  seed: of the
 * queries' and weights' random numbers. */
struct kv_hack_steps kv_hack_steps_of(const struct kv_tile_hack *h, bool values,
                                      size_t head_dim, size_t tokens,
                                      uint64_t seed);

#ifdef __cplusplus
}
#endif

#endif
