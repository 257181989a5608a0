#include "lib/k_bias.h"
#include "kernels/gemm.h"
#include "lib/base/alloc.h"
#include "lib/rope_table.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* Computes the bias of a key at this position, [n_kv_heads][head_dim], rotated
 * like the key. */
static void bias_at(const struct kv_shape *shape, bool pre_rope, size_t at,
                    float *bias)
{
    const size_t row = shape->n_kv_heads * shape->head_dim;

    memcpy(bias, shape->k_bias, row * sizeof(*bias));
    if (!pre_rope)
        kv_rope(shape, bias, 1, shape->n_kv_heads, at);
}

static void add(const struct kv_shape *shape, bool pre_rope, size_t first,
                float sign, const float *x, size_t n, float *out)
{
    const size_t row = shape->n_kv_heads * shape->head_dim;
    float *bias = kv_alloc(row, sizeof(*bias));

    assert(shape->k_bias);
    for (size_t t = 0; t < n; t++) {
        if (!t || !pre_rope)
            bias_at(shape, pre_rope, first + t, bias);
        for (size_t i = 0; i < row; i++)
            out[t * row + i] = x[t * row + i] + sign * bias[i];
    }
    free(bias);
}

void kv_k_bias_take(const struct kv_shape *shape, bool pre_rope, size_t first,
                    const float *x, size_t n, float *out)
{
    add(shape, pre_rope, first, -1, x, n, out);
}

void kv_k_bias_add(const struct kv_shape *shape, bool pre_rope, size_t first,
                   float *x, size_t n)
{
    add(shape, pre_rope, first, 1, x, n, x);
}

void kv_k_bias_scores(const struct kv_shape *shape,
                      const struct kv_attend_view *view, const float *q,
                      float *shift)
{
    const size_t d = view->head_dim, group = view->n_heads / view->n_kv_heads;
    const size_t row = view->n_kv_heads * d, q_row = view->n_heads * d;
    float *bias = kv_alloc(view->n, row * sizeof(*bias));

    for (size_t j = 0; j < view->n; j++)
        bias_at(shape, false, j, bias + j * row);
#pragma omp parallel for schedule(static)
    for (size_t h = 0; h < view->n_heads; h++)
        kv_gemm(true, view->nq, view->n, d, view->scale, q + h * d, q_row,
                bias + h / group * d, row, 0, shift + h * view->nq * view->n,
                view->n);
    free(bias);
}
