/* kvattn's --shape B,HQ,HKV,D,N[,NQ]: batch, query heads, KV heads, head
 * dimension, tokens, and queries of the step (1 unless given). */
#ifndef KV_SHAPE_OPTION_H
#define KV_SHAPE_OPTION_H

#include "eval/attn_bench.h"

/* Fills in n, nq and shape (one layer, RoPE of base 10000), and batch.  Fails
 * on a text that is no shape, and on sizes that no cache has. */
int kv_shape_option(const char *text, struct kv_attn_inputs *in, size_t *batch,
                    struct kv_err *e);

#endif
