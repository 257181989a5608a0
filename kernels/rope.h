/* Rotary position embedding for rows of heads. */
#ifndef KV_ROPE_H
#define KV_ROPE_H

#include <stddef.h>

/* The channels of a head that RoPE turns together: pair i < n is channels
 * i * step and i * step + apart; channels from 2 n on stay.  step 1, apart n:
 * the two halves of the first 2 n channels (all of Llama's head); step 2, apart
 * 1: neighbours. */
struct kv_rope_pairs {
    size_t n, step, apart;
};

/* x: [rows][heads][head_dim], in place; table: [rows][2][n], cosines and sines
 * of each row's position. */
void kv_rotate_heads(const float *table, struct kv_rope_pairs pairs, float *x,
                     size_t rows, size_t heads, size_t head_dim);

#endif
