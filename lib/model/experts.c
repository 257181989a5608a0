#include "lib/base/alloc.h"
#include "lib/model/pass.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Workspace for n tokens of a tile.  mid has room for the widest expert or
 * MLP. */
struct work {
    const struct kv_pass *p;
    float *in, *mid; /* [n][hidden], [n][2 inter] */
    float *out;      /* [n][hidden]: the expert's output */
    float *bias;     /* [2 inter]: biases of the expert's gate and up */
};

static struct work new_work(const struct kv_pass *p, size_t n)
{
    const struct kv_config *c = &p->m->config;

    return (struct work){
        .p = p,
        .in = kv_alloc(n * c->hidden, sizeof(float)),
        .mid = kv_alloc(n * 2 * kv_config_widest(c), sizeof(float)),
        .out = kv_alloc(n * c->hidden, sizeof(float)),
        .bias = kv_alloc(2 * c->inter, sizeof(float)),
    };
}

static void free_work(struct work *w)
{
    free(w->in);
    free(w->mid);
    free(w->out);
    free(w->bias);
}

/* Sets c [rows][outputs], whose rows are c_row apart, to a times the matrix: an
 * expert's widened matrix, or, if that is NULL, the stored one. */
static int multiply(const struct kv_pass *p, enum kv_part part, size_t expert,
                    const void *matrix, const float *a, size_t rows,
                    size_t inputs, float *c, size_t outputs, size_t c_row,
                    struct kv_err *e)
{
    struct kv_stored_part stored;
    struct kv_product product = {.rows = rows,
                                 .outputs = outputs,
                                 .inputs = inputs,
                                 .a = a,
                                 .w = matrix,
                                 .c = c,
                                 .c_row = c_row};

    if (!matrix) {
        stored = kv_layers_stored_rows(p->m->layers, part, expert * outputs,
                                       outputs);
        product.stored = &stored;
        product.n_stored = 1;
    }
    return p->b->multiply(p->b, &product, e);
}

/* The widened matrix of a part that all tokens use; NULL: products use the
 * stored matrix. */
static const void *matrix_of(const struct kv_pass *p, enum kv_part part)
{
    return p->few ? NULL : kv_layers_matrix(p->m->layers, part);
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

/* Excludes experts outside the best groups: sets their rank to -infinity. */
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

/* Phi-MoE's shares, from a token's logits.  The largest logit becomes its
 * softmax among the logits near it: those whose distance from it is at most
 * 2 * jitter times the larger of it and their magnitude.  The next largest
 * follows, without the first. */
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

/* Turns a token's logits into the shares of the chosen experts: those with the
 * largest shares after the bias (NULL: none) is added; among equals the
 * first. */
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

/* The parts of an MLP, its intermediate size, and its widened matrices; NULL:
 * products use the stored matrices. */
struct mlp {
    enum kv_part gate, up, down;
    size_t expert, inter;
    const void *of_gate, *of_up, *of_down;
};

static const float *vector(const struct kv_pass *p, enum kv_part part)
{
    return kv_layers_vector(p->m->layers, part);
}

/* The biases of an expert's gate and up, adjacent; NULL: there are none. */
static const float *gate_up_bias(const struct work *w, const struct mlp *mlp)
{
    const float *gate = vector(w->p, KV_P_GATE_BIAS);
    const size_t n = mlp->inter, at = mlp->expert * n;

    if (mlp->gate != KV_P_GATE || !gate)
        return NULL;
    memcpy(w->bias, gate + at, n * sizeof(*gate));
    memcpy(w->bias + n, vector(w->p, KV_P_UP_BIAS) + at, n * sizeof(*gate));
    return w->bias;
}

/* Adds the MLP's bias, if it has one, to the rows of its output. */
static int add_down_bias(const struct work *w, const struct mlp *mlp, size_t n,
                         struct kv_err *e)
{
    const size_t h = w->p->m->config.hidden;
    const float *bias = vector(w->p, KV_P_DOWN_BIAS);

    return mlp->down == KV_P_DOWN && bias
               ? w->p->b->add(w->out, bias + mlp->expert * h, n, h, e)
               : 0;
}

/* out = the MLP of n rows of in. */
static int run_mlp(const struct work *w, const struct mlp *mlp, const float *in,
                   size_t n, struct kv_err *e)
{
    const struct kv_pass *p = w->p;
    const struct kv_config *c = &p->m->config;
    const size_t h = c->hidden, m = mlp->inter;
    const bool gated = !c->arch->plain_mlp;
    const size_t wide = gated ? 2 * m : m;
    const struct kv_activation act = {.act = c->act,
                                      .gated = gated,
                                      .bias = gate_up_bias(w, mlp),
                                      .n = m,
                                      .limit = c->act_limit,
                                      .alpha = c->act_alpha};

    return (gated && multiply(p, mlp->gate, mlp->expert, mlp->of_gate, in, n, h,
                              w->mid, m, wide, e)) ||
                   multiply(p, mlp->up, mlp->expert, mlp->of_up, in, n, h,
                            w->mid + (wide - m), m, wide, e) ||
                   p->b->activate(&act, w->mid, n, KV_TYPE_F32, w->mid, e) ||
                   multiply(p, mlp->down, mlp->expert, mlp->of_down, w->mid, n,
                            m, w->out, h, h, e) ||
                   add_down_bias(w, mlp, n, e)
               ? -1
               : 0;
}

/* to = the tile's rows of x after this norm. */
static int norm_x(const struct kv_pass *p, const struct kv_tile *t,
                  enum kv_part norm, float *to, struct kv_err *e)
{
    return kv_pass_norm(p, vector(p, norm), NULL, p->x + t->at * p->hidden,
                        t->rows, KV_TYPE_F32, to, e);
}

/* ---- the experts that a tile's tokens choose ----------------------------- */

int kv_pass_route(const struct kv_pass *p, const struct kv_tile *t,
                  const float *a, struct kv_err *e)
{
    const struct kv_config *c = &p->m->config;
    const float *bias = vector(p, KV_P_ROUTER_BIAS);
    const size_t h = c->hidden, n = c->n_experts;
    float *share = p->experts.share + t->at * n;
    float *in = p->experts.in + t->at * h;

    if (c->arch->moe_beside) { /* router and experts have their own norms */
        if (norm_x(p, t, KV_P_EXPERTS_NORM, in, e) ||
            norm_x(p, t, KV_P_ROUTER_NORM, t->wide, e))
            return -1;
        kv_row_scale(t->wide, t->rows * h, 1 / sqrtf((float)h));
        a = t->wide;
    } else {
        memcpy(in, a, t->rows * h * sizeof(*a));
    }
    memset(p->experts.sum + t->at * h, 0, t->rows * h * sizeof(*a));
    if (multiply(p, KV_P_ROUTER, 0, matrix_of(p, KV_P_ROUTER), a, t->rows, h,
                 share, n, n, e) ||
        (bias && p->b->add(share, bias, t->rows, n, e)))
        return -1;
    for (size_t i = 0; i < t->rows; i++)
        if (c->arch->sparse_mixer)
            mix_sparsely(c, share + i * n);
        else
            choose(c, vector(p, KV_P_CHOICE_BIAS), share + i * n);
    return 0;
}

/* ---- experts, one after the other -----------------------------------------
 */

struct run {
    const struct kv_pass *p;
    struct mlp mlp;
};

/* sum += share * the expert's output, for the tokens of a tile that chose it.
 */
static int run_tile(const void *arg, size_t i, size_t thread, struct kv_err *e)
{
    const struct run *r = arg;
    const struct kv_pass *p = r->p;
    const struct kv_tile t = kv_pass_tile(p, i, thread);
    const size_t h = p->hidden, n_experts = p->m->config.n_experts;
    const float *share = p->experts.share + t.at * n_experts + r->mlp.expert;
    const float *scale = vector(p, KV_P_EXPERT_SCALE);
    struct work w;
    size_t n = 0;
    int rc;

    for (size_t row = 0; row < t.rows; row++)
        n += share[row * n_experts] > 0;
    if (!n)
        return 0;
    w = new_work(p, n);
    n = 0;
    for (size_t row = 0; row < t.rows; row++)
        if (share[row * n_experts] > 0)
            memcpy(w.in + n++ * h, p->experts.in + (t.at + row) * h,
                   h * sizeof(*w.in));
    rc = run_mlp(&w, &r->mlp, w.in, n, e);
    n = 0;
    for (size_t row = 0; row < t.rows && !rc; row++) {
        const float part = share[row * n_experts];
        const float by = scale ? part * scale[r->mlp.expert] : part;
        float *sum = p->experts.sum + (t.at + row) * h;

        if (!(part > 0))
            continue;
        for (size_t j = 0; j < h; j++)
            sum[j] += by * w.out[n * h + j];
        n++;
    }
    free_work(&w);
    return rc;
}

static bool is_chosen(const struct kv_pass *p, size_t expert)
{
    const size_t n = p->n_windows * p->n, n_experts = p->m->config.n_experts;

    for (size_t i = 0; i < n; i++)
        if (p->experts.share[i * n_experts + expert] > 0)
            return true;
    return false;
}

/* Widens the expert's matrices, one after the other, into `wide`. */
static int widen(const struct kv_pass *p, struct mlp *mlp, uint8_t *wide,
                 struct kv_err *e)
{
    const struct kv_layers *l = p->m->layers;
    const size_t m = mlp->inter, h = p->hidden, x = mlp->expert;
    const size_t bytes = m * h * kv_type_bytes(p->b->weight_type);

    mlp->of_gate = wide;
    mlp->of_up = wide + bytes;
    mlp->of_down = wide + 2 * bytes;
    return (!p->m->config.arch->plain_mlp &&
            kv_layers_widen(l, mlp->gate, x * m, m, wide, e)) ||
           kv_layers_widen(l, mlp->up, x * m, m, wide + bytes, e) ||
           kv_layers_widen(l, mlp->down, x * h, h, wide + 2 * bytes, e);
}

int kv_pass_experts(const struct kv_pass *p, struct kv_err *e)
{
    const struct kv_config *c = &p->m->config;
    const size_t bytes =
        3 * c->inter * c->hidden * kv_type_bytes(p->b->weight_type);
    uint8_t *wide = p->few ? NULL : kv_alloc(bytes, 1);
    int rc = 0;

    for (size_t expert = 0; expert < c->n_experts && !rc; expert++) {
        struct run r = {p,
                        {.gate = KV_P_GATE,
                         .up = KV_P_UP,
                         .down = KV_P_DOWN,
                         .expert = expert,
                         .inter = c->inter}};

        if (is_chosen(p, expert))
            rc = (wide && widen(p, &r.mlp, wide, e)) ||
                 kv_pass_each(p, run_tile, &r, e);
    }
    for (enum kv_part part = KV_P_GATE; wide && part <= KV_P_DOWN; part++)
        kv_layers_release(p->m->layers, part);
    free(wide);
    return rc ? -1 : 0;
}

/* ---- what all tokens have --------------------------------------------------
 */

/* Adds to sum the output of the expert that all tokens use, times each token's
 * sigmoid if the layer has one. */
static int run_shared(const struct work *w, const struct kv_tile *t,
                      struct kv_err *e)
{
    const struct kv_pass *p = w->p;
    const struct kv_config *c = &p->m->config;
    const size_t h = c->hidden, n = t->rows;
    const bool beside = c->arch->moe_beside;
    const float *a = beside ? w->in : p->experts.in + t->at * h;
    float *sum = p->experts.sum + t->at * h;
    float *mix = w->in; /* [n] */
    const struct mlp mlp = {.gate = KV_P_SHARED_GATE,
                            .up = KV_P_SHARED_UP,
                            .down = KV_P_SHARED_DOWN,
                            .inter = c->shared_inter,
                            .of_gate = matrix_of(p, KV_P_SHARED_GATE),
                            .of_up = matrix_of(p, KV_P_SHARED_UP),
                            .of_down = matrix_of(p, KV_P_SHARED_DOWN)};

    if ((beside && (norm_x(p, t, KV_P_MLP_NORM, w->in, e) ||
                    kv_pass_norm(p, vector(p, KV_P_EXPERTS_OUT_NORM), NULL, sum,
                                 n, KV_TYPE_F32, sum, e))) ||
        (c->arch->shared &&
         multiply(p, KV_P_SHARED_MIX, 0, matrix_of(p, KV_P_SHARED_MIX), a, n, h,
                  mix, 1, 1, e)) ||
        run_mlp(w, &mlp, a, n, e) ||
        (beside && kv_pass_norm(p, vector(p, KV_P_SHARED_OUT_NORM), NULL,
                                w->out, n, KV_TYPE_F32, w->out, e)))
        return -1;
    for (size_t i = 0; i < n; i++) {
        const float by = c->arch->shared ? 1 / (1 + expf(-mix[i])) : 1;

        for (size_t j = 0; j < h; j++)
            sum[i * h + j] += by * w->out[i * h + j];
    }
    return 0;
}

int kv_pass_add_experts(const struct kv_pass *p, const struct kv_tile *t,
                        struct kv_err *e)
{
    const size_t at = t->at * p->hidden;
    float *sum = p->experts.sum + at;
    int rc = 0;

    if (p->m->config.shared_inter) {
        struct work w = new_work(p, t->rows);

        rc = run_shared(&w, t, e);
        free_work(&w);
    }
    if (!rc && p->m->config.arch->moe_beside)
        rc = kv_pass_norm(p, vector(p, KV_P_MLP_OUT_NORM), NULL, sum, t->rows,
                          KV_TYPE_F32, sum, e);
    return rc ? -1 : p->b->add(p->x + at, sum, 1, t->rows * p->hidden, e);
}
