/* Rotary position embedding, rotate-half order (shape.h). */
#ifndef KV_ROPE_TABLE_H
#define KV_ROPE_TABLE_H

#include "lib/shape.h"

/* x: [n][heads][head_dim], token t at position first + t; in place.  Angles in
 * double, reduced exactly; the products in float. */
void kv_rope(const struct kv_shape *shape, float *x, size_t n, size_t heads,
             size_t first);

/* Undoes kv_rope(), except for rounding. */
void kv_rope_back(const struct kv_shape *shape, float *x, size_t n,
                  size_t heads, size_t first);

/* kv_rope() in two steps, for positions that are used more than once.
 * table: [n][2][n_rot], cosines and sines of positions first + t. */
void kv_rope_table(const struct kv_shape *shape, size_t n, size_t first,
                   float *table);
void kv_rope_rotate(const struct kv_shape *shape, const float *table, float *x,
                    size_t n, size_t heads);

#endif
