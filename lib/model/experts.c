#include "lib/base/alloc.h"
#include "lib/model/pass.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* What a tile's experts work in.  mid is as wide as the widest. */
struct work {
    const struct kv_pass *p;
    float *share;    /* [rows][n_experts]; 0: the token has not this one */
    size_t *row;     /* [rows]: those that have the expert at hand */
    float *in, *mid; /* [rows][hidden], [rows][2 inter] */
    float *out;      /* [rows][hidden], of the expert */
    float *bias;     /* [2 inter], of the expert's gate and up */
    float *mix;      /* [rows], of the shared expert */
    float *sum;      /* the same, of all */
};

/* c [rows][outputs], its rows c_row apart, = a times the expert's matrix. */
static int multiply(const struct work *w, enum kv_part part, size_t expert,
                    const float *a, size_t rows, size_t inputs, float *c,
                    size_t outputs, size_t c_row, struct kv_err *e)
{
    const struct kv_backend *b = w->p->b;
    const struct kv_layers *layers = w->p->m->layers;
    const size_t bytes = outputs * inputs * kv_type_bytes(b->weight_type);
    struct kv_stored_part stored;
    struct kv_product product = {.rows = rows,
                                 .outputs = outputs,
                                 .inputs = inputs,
                                 .a = a,
                                 .c = c,
                                 .c_row = c_row};

    if (w->p->few) {
        stored = kv_layers_stored_rows(layers, part, expert * outputs, outputs);
        product.stored = &stored;
        product.n_stored = 1;
    } else {
        product.w =
            (const uint8_t *)kv_layers_matrix(layers, part) + expert * bytes;
    }
    return b->multiply(b, &product, e);
}

/* The best rank of a group's n experts, or the sum of its two best. */
static float rank_of_group(const struct kv_config *c, const float *rank,
                           size_t n)
{
    float best = -INFINITY, second = -INFINITY;

    for (size_t i = 0; i < n; i++) {
        second = fmaxf(second, fminf(best, rank[i]));
        best = fmaxf(best, rank[i]);
    }
    return c->group_pairs ? best + second : best;
}

/* Experts outside the best groups are not chosen. */
static void choose_groups(const struct kv_config *c, float *rank)
{
    const size_t size = c->n_groups ? c->n_experts / c->n_groups : 0;
    float *group = kv_alloc(c->n_groups, sizeof(*group));

    for (size_t i = 0; i < c->n_groups; i++)
        group[i] = rank_of_group(c, rank + i * size, size);
    for (size_t i = 0; i < c->used_groups; i++)
        group[kv_row_argmax(group, c->n_groups)] = -INFINITY;
    for (size_t i = 0; i < c->n_groups * size; i++)
        if (group[i / size] > -INFINITY)
            rank[i] = -INFINITY;
    free(group);
}

/* Phi-MoE's shares: logits of a token become, of the largest, its share among
 * those near it (less than twice the jitter below, as a part of the larger of
 * it and of their size); then likewise without it. */
static void mix_sparsely(const struct kv_config *c, float *share)
{
    const size_t n = c->n_experts;
    float *logit = kv_alloc(2 * n, sizeof(*logit)), *left = logit + n;

    memcpy(logit, share, n * sizeof(*logit));
    memcpy(left, share, n * sizeof(*left));
    memset(share, 0, n * sizeof(*share));
    for (size_t k = 0; k < c->n_used; k++) {
        const size_t best = kv_row_argmax(left, n);
        const float top = left[best];
        float sum = 0;

        for (size_t i = 0; i < n; i++) {
            const float size = fmaxf(fabsf(logit[i]), top);

            if (left[i] > -INFINITY &&
                !((top - logit[i]) / size > 2 * c->jitter))
                sum += expf(logit[i] - top);
        }
        share[best] = 1 / sum;
        left[best] = -INFINITY;
    }
    free(logit);
}

/* Logits of a token become the shares of the chosen experts: of the largest
 * ones, the bias (NULL: none) added; of equal ones, of the first. */
static void choose(const struct kv_config *c, const float *bias, float *share)
{
    const size_t n = c->n_experts;
    float *all = kv_alloc(2 * n, sizeof(*all)), *rank = all + n;
    float sum = 0, scale;

    if (c->arch->sigmoid)
        for (size_t i = 0; i < n; i++)
            share[i] = 1 / (1 + expf(-share[i]));
    else
        kv_softmax(share, n);
    memcpy(all, share, n * sizeof(*all));
    memcpy(rank, share, n * sizeof(*rank));
    if (bias)
        kv_row_add(rank, bias, n);
    choose_groups(c, rank);
    memset(share, 0, n * sizeof(*share));
    for (size_t k = 0; k < c->n_used; k++) {
        const size_t best = kv_row_argmax(rank, n);

        share[best] = all[best];
        sum += all[best];
        rank[best] = -INFINITY;
    }
    scale = c->share_scale / (c->norm_shares ? sum + c->arch->share_floor : 1);
    for (size_t i = 0; i < n && scale != 1; i++)
        share[i] *= scale;
    free(all);
}

/* The parts of a gated MLP, and how wide it is. */
struct mlp {
    enum kv_part gate, up, down;
    size_t expert, inter;
};

static const float *vector(const struct work *w, enum kv_part part)
{
    return kv_layers_vector(w->p->m->layers, part);
}

/* The biases of an expert's gate and up, side by side; NULL: it has none. */
static const float *gate_up_bias(const struct work *w, struct mlp mlp)
{
    const float *gate = vector(w, KV_P_GATE_BIAS);
    const size_t n = mlp.inter, at = mlp.expert * n;

    if (mlp.gate != KV_P_GATE || !gate)
        return NULL;
    memcpy(w->bias, gate + at, n * sizeof(*gate));
    memcpy(w->bias + n, vector(w, KV_P_UP_BIAS) + at, n * sizeof(*gate));
    return w->bias;
}

/* The rows of the MLP's output get its bias, where it has one. */
static int add_down_bias(const struct work *w, struct mlp mlp, size_t n,
                         struct kv_err *e)
{
    const size_t h = w->p->m->config.hidden;
    const float *bias = vector(w, KV_P_DOWN_BIAS);

    return mlp.down == KV_P_DOWN && bias
               ? w->p->b->add(w->out, bias + mlp.expert * h, n, h, e)
               : 0;
}

/* out = the MLP of n rows of in. */
static int run_mlp(const struct work *w, struct mlp mlp, const float *in,
                   size_t n, struct kv_err *e)
{
    const struct kv_config *c = &w->p->m->config;
    const size_t h = c->hidden, m = mlp.inter;
    const struct kv_activation act = {.act = c->act,
                                      .gated = true,
                                      .bias = gate_up_bias(w, mlp),
                                      .n = m,
                                      .limit = c->act_limit,
                                      .alpha = c->act_alpha};

    return multiply(w, mlp.gate, mlp.expert, in, n, h, w->mid, m, 2 * m, e) ||
                   multiply(w, mlp.up, mlp.expert, in, n, h, w->mid + m, m,
                            2 * m, e) ||
                   w->p->b->activate(&act, w->mid, n, KV_TYPE_F32, w->mid, e) ||
                   multiply(w, mlp.down, mlp.expert, w->mid, n, m, w->out, h, h,
                            e) ||
                   add_down_bias(w, mlp, n, e)
               ? -1
               : 0;
}

/* sum += shares of the expert's output for the n tokens of w->row. */
static int run_expert(const struct work *w, size_t expert, const float *a,
                      size_t n, struct kv_err *e)
{
    const struct kv_config *c = &w->p->m->config;
    const size_t h = c->hidden;
    const struct mlp mlp = {KV_P_GATE, KV_P_UP, KV_P_DOWN, expert, c->inter};

    for (size_t i = 0; i < n; i++)
        memcpy(w->in + i * h, a + w->row[i] * h, h * sizeof(*a));
    if (run_mlp(w, mlp, w->in, n, e))
        return -1;
    for (size_t i = 0; i < n; i++) {
        const float share = w->share[w->row[i] * c->n_experts + expert];

        for (size_t j = 0; j < h; j++)
            w->sum[w->row[i] * h + j] += share * w->out[i * h + j];
    }
    return 0;
}

/* sum += the expert that all tokens have, times a sigmoid of each where there
 * is one. */
static int run_shared(const struct work *w, const float *a, size_t n,
                      struct kv_err *e)
{
    const struct kv_config *c = &w->p->m->config;
    const size_t h = c->hidden;
    const struct mlp mlp = {KV_P_SHARED_GATE, KV_P_SHARED_UP, KV_P_SHARED_DOWN,
                            0, c->shared_inter};

    if ((c->arch->shared &&
         multiply(w, KV_P_SHARED_MIX, 0, a, n, h, w->mix, 1, 1, e)) ||
        run_mlp(w, mlp, a, n, e))
        return -1;
    for (size_t i = 0; i < n; i++) {
        const float mix = c->arch->shared ? 1 / (1 + expf(-w->mix[i])) : 1;

        for (size_t j = 0; j < h; j++)
            w->sum[i * h + j] += mix * w->out[i * h + j];
    }
    return 0;
}

static int run_all(const struct work *w, const struct kv_tile *t,
                   const float *a, struct kv_err *e)
{
    const struct kv_config *c = &w->p->m->config;
    const float *bias = vector(w, KV_P_ROUTER_BIAS);

    if (multiply(w, KV_P_ROUTER, 0, a, t->rows, c->hidden, w->share,
                 c->n_experts, c->n_experts, e) ||
        (bias && w->p->b->add(w->share, bias, t->rows, c->n_experts, e)))
        return -1;
    for (size_t i = 0; i < t->rows; i++)
        if (c->arch->sparse_mixer)
            mix_sparsely(c, w->share + i * c->n_experts);
        else
            choose(c, vector(w, KV_P_CHOICE_BIAS), w->share + i * c->n_experts);
    for (size_t expert = 0; expert < c->n_experts; expert++) {
        size_t n = 0;

        for (size_t i = 0; i < t->rows; i++)
            if (w->share[i * c->n_experts + expert] > 0)
                w->row[n++] = i;
        if (n && run_expert(w, expert, a, n, e))
            return -1;
    }
    if (c->shared_inter && run_shared(w, a, t->rows, e))
        return -1;
    return w->p->b->add(w->p->x + t->at * c->hidden, w->sum, 1,
                        t->rows * c->hidden, e);
}

int kv_pass_experts(const struct kv_pass *p, const struct kv_tile *t,
                    const float *a, struct kv_err *e)
{
    const struct kv_config *c = &p->m->config;
    const size_t n = t->rows, h = c->hidden;
    const struct work w = {
        .p = p,
        .share = kv_alloc(n * c->n_experts, sizeof(float)),
        .row = kv_alloc(n, sizeof(size_t)),
        .in = kv_alloc(n * h, sizeof(float)),
        .mid = kv_alloc(n * 2 * kv_config_widest(c), sizeof(float)),
        .out = kv_alloc(n * h, sizeof(float)),
        .bias = kv_alloc(2 * c->inter, sizeof(float)),
        .mix = kv_alloc(n, sizeof(float)),
        .sum = kv_alloc(n * h, sizeof(float)),
    };
    const int rc = run_all(&w, t, a, e);

    free(w.share);
    free(w.row);
    free(w.in);
    free(w.mid);
    free(w.out);
    free(w.bias);
    free(w.mix);
    free(w.sum);
    return rc;
}
