/* The internals of klt's codec, for klt.c and klt_attend.c. */
#ifndef KV_KLT_IMPL_H
#define KV_KLT_IMPL_H

#include "kernels/transform/transform.h"
#include "lib/schemes/klt_coding.h"
#include "lib/schemes/klt_pred.h"

struct klt {
    size_t d, n_heads, row, part;
    size_t used; /* a part's coefficients from this index on have no codes */
    struct kv_klt_numbers numbers;
    struct kv_klt_coding coding;
    struct kv_klt_pred pred; /* no prediction if there are no neighbours */
    float *mean;             /* [row] */
    /* [row][row], 0 between parts; the first coding.n_used columns of forward,
     * and rows of inverse, are used */
    float *forward, *inverse;
    /* The neighbours that attention in place reads, in the order of the
     * prediction's sources; a neighbour's own neighbours come before it.  These
     * entries have no numbers, no forward and no neighbours. */
    struct klt *near[KV_KLT_SOURCES];
    /* For attention on the codes, made at its first use. */
    struct kv_transform *transform;
    struct kv_tiles_rope *rope; /* NULL unless keys are before RoPE */
};

/* Functions of struct kv_scheme and struct kv_layered (lib/scheme.h). */
bool kv_klt_store(const struct kv_codec *c, struct kv_store *s);
void kv_klt_tile(const struct kv_codec *c, const struct kv_store *s,
                 const uint8_t *blocks, size_t first, size_t n, size_t head,
                 uint8_t *tile);
void kv_klt_tile_near(const struct kv_codec *c, const struct kv_store *s,
                      const struct kv_near_codes *at, const uint8_t *blocks,
                      size_t first, size_t n, uint8_t *tile);

#endif
