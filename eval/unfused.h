/* Attention of halves on a GPU by two batched products of cuBLAS and a softmax
 * in between: what a framework does without a fused kernel; but query heads
 * share the keys of their KV head. */
#ifndef KV_UNFUSED_H
#define KV_UNFUSED_H

#include "lib/base/err.h"
#include "lib/shape.h"

#include <stddef.h>

struct kv_unfused;

/* Of the newest token of each of `batch` sequences of n tokens.  Fails without
 * room. */
int kv_unfused_new(struct kv_unfused **u, const struct kv_shape *shape,
                   size_t batch, size_t n, struct kv_err *e);
void kv_unfused_free(struct kv_unfused *u); /* NULL is fine */

/* Bytes of keys and values. */
size_t kv_unfused_bytes(const struct kv_unfused *u);

/* Launches.  kv: keys, then values, each [batch][n_kv_heads][n][head_dim], and
 * out [batch][n_heads][head_dim]: halves; q, as out: f32.  All on the device.
 */
int kv_unfused_attend(const struct kv_unfused *u, const void *kv,
                      const float *q, void *out, struct kv_err *e);

#endif
