#include "kernels/vecops/vecops.h"
#include "lib/base/alloc.h"
#include "lib/model/pass.h"

#include <stdlib.h>

/* Adds the learned vector of this position to the token's embedding x. */
static void add_position(const struct kv_model *m, size_t position, float *x)
{
    const size_t n = m->config.hidden;
    float *row = kv_alloc(n, sizeof(*row));

    kv_weight_dequantize(m->weights.positions,
                         (m->config.arch->skip_positions + position) * n, n,
                         row);
    kv_row_add(x, row, n);
    free(row);
}

static void norm_embedding(const struct kv_model *m, float *x)
{
    const size_t n = m->config.hidden;
    const struct kv_weight *bias = m->weights.embed_norm_bias;
    float *w = kv_alloc(2 * n, sizeof(*w));

    kv_weight_dequantize(m->weights.embed_norm, 0, n, w);
    if (bias)
        kv_weight_dequantize(bias, 0, n, w + n);
    kv_layer_norm(x, w, bias ? w + n : NULL, n, m->config.norm_eps, x);
    free(w);
}

static void embed_one(const struct kv_model *m, size_t token, size_t position,
                      float *x)
{
    const size_t hidden = m->config.hidden;

    kv_weight_dequantize(m->weights.embed, token * hidden, hidden, x);
    for (size_t i = 0; i < hidden && m->config.embed_scale != 1; i++)
        x[i] *= m->config.embed_scale;
    if (m->weights.positions)
        add_position(m, position, x);
    if (m->weights.embed_norm)
        norm_embedding(m, x);
}

void kv_pass_embed(const struct kv_model *m, const int32_t *tokens,
                   size_t n_windows, size_t n, size_t first, float *x)
{
    const size_t hidden = m->config.hidden;

#pragma omp parallel for schedule(static) if (n_windows * n > 128)
    for (size_t i = 0; i < n_windows * n; i++)
        embed_one(m, (size_t)tokens[i], first + i % n, x + i * hidden);
}
