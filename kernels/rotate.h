/* Rotary position embedding of rows of heads, rotate-half order: channels i
 * and i + head_dim / 2 turn together, i < n_rot. */
#ifndef KV_ROTATE_H
#define KV_ROTATE_H

#include <stddef.h>

/* x: [rows][heads][head_dim], in place; table: [rows][2][n_rot], cosines and
 * sines of each row's position. */
void kv_rotate_heads(const float *table, size_t n_rot, float *x, size_t rows,
                     size_t heads, size_t head_dim);

#endif
