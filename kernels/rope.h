/* Rotary position embedding of rows of heads, rotate-half order: channels i
 * and i + head_dim / 2 are rotated together, i < n_rot. */
#ifndef KV_ROPE_H
#define KV_ROPE_H

#include <stddef.h>

/* x: [rows][heads][head_dim], in place; table: [rows][2][n_rot], cosines and
 * sines of each row's position. */
void kv_rotate_heads(const float *table, size_t n_rot, float *x, size_t rows,
                     size_t heads, size_t head_dim);

#endif
