/* Rotary position embedding of rows of heads. */
#ifndef KV_ROPE_H
#define KV_ROPE_H

#include <stddef.h>

/* Of a head the first 2 n channels turn: pair i < n is channels i * step and
 * i * step + apart.  step 1, apart n: the two halves of these channels (all of
 * Llama's head); step 2, apart 1: neighbours. */
struct kv_rope_pairs {
    size_t n, step, apart;
};

/* x: [rows][heads][head_dim], in place; table: [rows][2][n], cosines and sines
 * of each row's position. */
void kv_rotate_heads(const float *table, struct kv_rope_pairs pairs, float *x,
                     size_t rows, size_t heads, size_t head_dim);

#endif
