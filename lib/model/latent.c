/* Multi-head latent attention in its absorbed form: the matrix from latents to
 * keys multiplies the queries, and the matrix from latents to values multiplies
 * attention's output.  So the cached latent and rotated channels of a token
 * serve all heads as their key. */
#include "kernels/gemm.h"
#include "lib/base/alloc.h"
#include "lib/model/pass.h"
#include "lib/rope_table.h"

#include <stdlib.h>
#include <string.h>

/* epsilon in transformers' class, whatever rms_norm_eps is */
static const float norm_eps = 1e-6F;

static int norm(const struct kv_pass *p, enum kv_part part, size_t n,
                const float *x, size_t rows, enum kv_type type, void *out,
                struct kv_err *e)
{
    const struct kv_norm norm = {.weight = kv_layers_vector(p->m->layers, part),
                                 .n = n,
                                 .eps = norm_eps};

    return p->b->norm(&norm, x, rows, type, out, e);
}

/* c [m][n] = a [m][k] times b, or its transpose.  With p->few, rows are
 * multiplied one by one, so that m does not change their bits. */
static void multiply(const struct kv_pass *p, bool b_trans, size_t m, size_t n,
                     size_t k, const float *a, size_t a_row, const float *b,
                     float *c, size_t c_row)
{
    const size_t step = p->few ? 1 : m, b_row = b_trans ? k : n;

    for (size_t i = 0; i < m; i += step)
        kv_gemm(b_trans, step, n, k, 1, a + i * a_row, a_row, b, b_row, 0,
                c + i * c_row, c_row);
}

/* Rows [first, first + n), in f32, of the matrix from latents; they are written
 * to `space` if they are not widened already. */
static const float *up_rows(const struct kv_pass *p, size_t first, size_t n,
                            float *space)
{
    const size_t rank = p->shape.latent;
    const struct kv_layers *layers = p->m->layers;
    struct kv_stored_part part;

    if (!p->few && p->b->weight_type == KV_TYPE_F32)
        return (const float *)kv_layers_matrix(layers, KV_P_KV_UP) +
               first * rank;
    part = kv_layers_stored_rows(layers, KV_P_KV_UP, first, n);
    kv_stored_read(&part.rows, part.first * rank, n * rank, KV_TYPE_F32, space);
    return space;
}

/* Writes the channels that RoPE will rotate, scaled, to `to`. */
static void put_turning(const struct kv_pass *p, const float *x, float *to)
{
    const struct kv_latent *l = &p->m->config.latent;
    const float scale = p->m->config.rope.scale;

    for (size_t i = 0; i < l->rope; i++)
        to[i] = x[i] * scale;
}

/* q, absorbed, from the query heads [rows][n_heads][nope + rope]. */
static void absorb(const struct kv_pass *p, const struct kv_tile *t,
                   const float *heads)
{
    const struct kv_latent *l = &p->m->config.latent;
    const struct kv_shape *s = &p->shape;
    const size_t d = l->nope + l->rope, row = s->n_heads * d;
    float *space = kv_alloc(l->nope * s->latent, sizeof(*space));
    float *q = p->q + t->at * p->q_dim;

    for (size_t h = 0; h < s->n_heads; h++) {
        const float *up = up_rows(p, h * (l->nope + l->value), l->nope, space);

        multiply(p, false, t->rows, s->latent, l->nope, heads + h * d, row, up,
                 q + h * s->head_dim, p->q_dim);
        for (size_t i = 0; i < t->rows; i++)
            put_turning(p, heads + i * row + h * d + l->nope,
                        q + i * p->q_dim + h * s->head_dim + s->latent);
    }
    free(space);
}

static int queries(const struct kv_pass *p, const struct kv_tile *t,
                   const void *a, struct kv_err *e)
{
    const struct kv_latent *l = &p->m->config.latent;
    const size_t row = p->shape.n_heads * (l->nope + l->rope);
    float *heads = kv_alloc(t->rows * row, sizeof(*heads));
    float *down = kv_alloc(t->rows * l->q_rank, sizeof(*down));
    void *in = kv_alloc(t->rows * l->q_rank, sizeof(float));
    const int rc = l->q_rank
                       ? kv_pass_multiply(p, t, KV_P_Q_DOWN, a, p->hidden, down,
                                          l->q_rank, false, e) ||
                             norm(p, KV_P_Q_DOWN_NORM, l->q_rank, down, t->rows,
                                  p->b->input_type, in, e) ||
                             kv_pass_multiply(p, t, KV_P_Q_UP, in, l->q_rank,
                                              heads, row, false, e)
                       : kv_pass_multiply(p, t, KV_P_Q, a, p->hidden, heads,
                                          row, false, e);

    if (!rc)
        absorb(p, t, heads);
    free(in);
    free(down);
    free(heads);
    return rc ? -1 : 0;
}

/* Computes k_pre: the normalised latent and the rotated channels. */
static int keys(const struct kv_pass *p, const struct kv_tile *t, const void *a,
                struct kv_err *e)
{
    const size_t rank = p->shape.latent;
    float *down = kv_alloc(t->rows * p->kv_dim, sizeof(*down));
    int rc = kv_pass_multiply(p, t, KV_P_KV_DOWN, a, p->hidden, down, p->kv_dim,
                              false, e);

    for (size_t i = 0; i < t->rows && !rc; i++) {
        const float *x = down + i * p->kv_dim;
        float *k = p->k_pre + (t->at + i) * p->kv_dim;

        rc = norm(p, KV_P_KV_DOWN_NORM, rank, x, 1, KV_TYPE_F32, k, e);
        put_turning(p, x + rank, k + rank);
    }
    free(down);
    return rc ? -1 : 0;
}

int kv_pass_latent(const struct kv_pass *p, const struct kv_tile *t,
                   const void *a, struct kv_err *e)
{
    const size_t turning = 2 * p->shape.n_rot;
    float *k = p->k + t->at * p->kv_dim, *q = p->q + t->at * p->q_dim;

    if (queries(p, t, a, e) || keys(p, t, a, e))
        return -1;
    memcpy(k, p->k_pre + t->at * p->kv_dim, t->rows * p->kv_dim * sizeof(*k));
    for (size_t i = 0; i < t->rows; i++) {
        const float *rope = p->rope + (t->token + i) % p->n * turning;

        kv_rope_rotate(&p->shape, rope, q + i * p->q_dim, 1, p->shape.n_heads);
        kv_rope_rotate(&p->shape, rope, k + i * p->kv_dim, 1, 1);
    }
    return 0;
}

void kv_pass_latent_values(const struct kv_pass *p, const struct kv_tile *t,
                           float *values)
{
    const struct kv_latent *l = &p->m->config.latent;
    const struct kv_shape *s = &p->shape;
    const float *out = p->out + t->at * p->q_dim;
    float *space = kv_alloc(l->value * s->latent, sizeof(*space));

    for (size_t h = 0; h < s->n_heads; h++) {
        const float *up =
            up_rows(p, h * (l->nope + l->value) + l->nope, l->value, space);

        multiply(p, true, t->rows, l->value, s->latent, out + h * s->head_dim,
                 p->q_dim, up, values + h * l->value, s->n_heads * l->value);
    }
    free(space);
}
