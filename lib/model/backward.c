/* The forward pass keeps each layer's x before its attention and before its
 * MLP; the backward pass recomputes everything else from these.  Gradients of
 * weights are not needed, so every product uses a matrix in its stored form: dy
 * [rows][output] times w [output][input]. */
#include "lib/model/backward.h"
#include "kernels/attend_grad.h"
#include "kernels/gemm.h"
#include "kernels/vecops/vecops.h"
#include "lib/base/alloc.h"
#include "lib/base/file.h"
#include "lib/model/pass.h"
#include "lib/rope_table.h"

#include <assert.h>
#include <omp.h>
#include <stdlib.h>
#include <string.h>

struct back {
    struct kv_pass p;
    const int32_t *tokens;
    struct kv_model *m;
    float *dx;             /* [n_windows][n][hidden]: p.x in the forward pass */
    float *dq, *dk, *dout; /* stored over p.q, p.k_pre, p.out */
    float *dv;
    float *unrotate; /* p.ropes with the sines negated */
    bool lowest;     /* nothing below this layer needs a gradient */
};

/* One step of the way back on every tile. */
struct work {
    const struct back *b;
    void (*run)(const struct back *b, const struct kv_tile *t);
};

static int run_tile(const void *arg, size_t i, size_t thread, struct kv_err *e)
{
    const struct work *w = arg;
    const struct kv_tile t = kv_pass_tile(&w->b->p, i, thread);

    (void)e;
    w->run(w->b, &t);
    return 0;
}

static void each_tile(const struct back *b,
                      void (*run)(const struct back *b,
                                  const struct kv_tile *t))
{
    const struct work w = {b, run};

    kv_pass_each(&b->p, run_tile, &w, NULL);
}

static const float *part(const struct kv_pass *p, enum kv_part which)
{
    return which <= KV_P_DOWN ? kv_layers_matrix(p->m->layers, which)
                              : kv_layers_vector(p->m->layers, which);
}

static void add_bias(float *x, size_t rows, size_t n, const float *bias)
{
    for (size_t t = 0; bias && t < rows; t++)
        kv_row_add(x + t * n, bias, n);
}

static void norm(const struct kv_pass *p, const float *w, const float *x,
                 size_t rows, float *out)
{
    kv_pass_norm(p, w, NULL, x, rows, KV_TYPE_F32, out, NULL);
}

/* dx [rows][hidden] += the gradient of x; dh is the gradient of RMSNorm(x). */
static void norm_back(const struct kv_pass *p, const float *w, const float *x,
                      float *dh, size_t rows, float *dx)
{
    const size_t n = p->hidden;

    for (size_t t = 0; t < rows; t++, x += n, dh += n, dx += n) {
        kv_rms_norm_grad(x, w, dh, n, p->m->config.norm_eps, dh);
        kv_row_add(dx, dh, n);
    }
}

/* Applies the derivative of the model's cap on logits to their gradient. */
static void cap_back(float *grad, const float *logit, size_t n, float cap)
{
    for (size_t i = 0; i < n; i++)
        grad[i] *= 1 - logit[i] / cap * (logit[i] / cap);
}

/* Turns logits [rows][n_vocab] into the gradient with respect to them: p - 1
 * for the target, p for the others, 0 if there is no target. */
static void logits_back(const struct back *b, const struct kv_tile *t,
                        float *logits)
{
    const size_t n_vocab = b->p.m->config.n_vocab;
    const float cap = b->p.m->config.logit_cap;
    float *capped = cap > 0 ? kv_alloc(n_vocab, sizeof(*capped)) : NULL;

    for (size_t i = 0; i < t->rows; i++) {
        float *row = logits + i * n_vocab;

        if (t->token + i + 1 < b->p.n) {
            if (capped)
                memcpy(capped, row, n_vocab * sizeof(*row));
            kv_softmax(row, n_vocab);
            row[b->tokens[t->at + i + 1]] -= 1;
            if (capped)
                cap_back(row, capped, n_vocab, cap);
        } else {
            memset(row, 0, n_vocab * sizeof(*row));
        }
    }
    free(capped);
}

/* dh [rows][hidden] = dlogits times the head. */
static void head_back(const struct kv_pass *p, const float *dlogits,
                      size_t rows, float *dh)
{
    const size_t h = p->hidden, n_vocab = p->m->config.n_vocab;
    const size_t max = kv_layers_panel(p->m->layers);
    struct kv_workspace panel = {NULL, 0};
    const void *head;

    for (size_t v = 0; v < n_vocab; v += max) {
        const size_t cols = n_vocab - v < max ? n_vocab - v : max;

        kv_layers_head(p->m->layers, v, cols, &panel, &head, NULL);
        kv_gemm(false, rows, h, cols, 1, dlogits + v, n_vocab, head, h,
                v ? 1 : 0, dh, h);
    }
    kv_workspace_clear(p->b, &panel);
}

/* Replaces x after the last layer by its gradient dx, through the loss, the
 * head and the final norm. */
static void loss_back(const struct back *b, const struct kv_tile *t)
{
    const struct kv_pass *p = &b->p;
    const size_t n = p->hidden;
    float *h = t->input, *logits = t->wide;
    float *x = b->dx + t->at * n;
    struct kv_err interrupted; /* dropped: the interruption is seen again after
                                * the layer */

    norm(p, kv_layers_norm(p->m->layers), x, t->rows, h);
    kv_model_logits(b->m, h, t->rows, logits, &interrupted);
    logits_back(b, t, logits);
    head_back(p, logits, t->rows, h);
    for (size_t i = 0; i < t->rows; i++)
        kv_rms_norm_grad(x + i * n, kv_layers_norm(p->m->layers), h + i * n, n,
                         p->m->config.norm_eps, x + i * n);
}

/* Backward through the norm that y = a w' + bias passes before y is added to
 * the residual stream: y becomes its own gradient.  Without such a norm the
 * gradient is dx. */
static const float *end_back(const struct kv_pass *p, enum kv_part w,
                             enum kv_part bias, enum kv_part norm,
                             const float *a, size_t inputs, size_t rows,
                             const float *dx, float *y)
{
    const size_t n = p->hidden;

    if (!part(p, norm))
        return dx;
    kv_gemm(true, rows, n, inputs, 1, a, inputs, part(p, w), inputs, 0, y, n);
    add_bias(y, rows, n, part(p, bias));
    for (size_t t = 0; t < rows; t++)
        kv_rms_norm_grad(y + t * n, part(p, norm), dx + t * n, n,
                         p->m->config.norm_eps, y + t * n);
    return y;
}

/* a [rows][inter] = act(gate) up. */
static void activate(const struct kv_pass *p, const float *gate, size_t rows,
                     float *a)
{
    const size_t n = p->inter;

    for (size_t i = 0; i < rows; i++, gate += 2 * n, a += n) {
        kv_activate(p->m->config.act, gate, n, a);
        for (size_t j = 0; j < n; j++)
            a[j] *= gate[n + j];
    }
}

/* dx after the layer -> dx after its attention. */
static void mlp_back(const struct back *b, const struct kv_tile *t)
{
    const struct kv_pass *p = &b->p;
    const size_t hidden = p->hidden, inter = p->inter, rows = t->rows;
    const float *x = kv_pass_kept(p, p->kept_mid) + t->at * hidden, *dy;
    float *h = t->input, *gate = t->wide; /* [rows][2][inter] */
    float *da = gate + rows * 2 * inter, *y = da + rows * inter;
    float *dx = b->dx + t->at * hidden;

    norm(p, part(p, KV_P_MLP_NORM), x, rows, h);
    kv_gemm(true, rows, 2 * inter, hidden, 1, h, hidden, part(p, KV_P_GATE),
            hidden, 0, gate, 2 * inter);
    add_bias(gate, rows, 2 * inter, part(p, KV_P_GATE_BIAS));
    if (part(p, KV_P_MLP_OUT_NORM))
        activate(p, gate, rows, da);
    dy = end_back(p, KV_P_DOWN, KV_P_DOWN_BIAS, KV_P_MLP_OUT_NORM, da, inter,
                  rows, dx, y);
    kv_gemm(false, rows, inter, hidden, 1, dy, hidden, part(p, KV_P_DOWN),
            inter, 0, da, inter);
    for (size_t i = 0; i < rows; i++) {
        float *row = gate + i * 2 * inter;

        if (p->m->config.act == KV_ACT_SILU)
            kv_silu_mul_grad(row, row + inter, da + i * inter, inter, row,
                             row + inter);
        else
            kv_activate_mul_grad(p->m->config.act, row, row + inter,
                                 da + i * inter, inter, row, row + inter);
    }
    kv_gemm(false, rows, hidden, 2 * inter, 1, gate, 2 * inter,
            part(p, KV_P_GATE), hidden, 0, h, hidden);
    norm_back(p, part(p, KV_P_MLP_NORM), x, h, rows, dx);
}

/* Computes dout from dx and stores it over out; a norm after Wo reads out
 * before that. */
static void out_back(const struct back *b, const struct kv_tile *t)
{
    const struct kv_pass *p = &b->p;
    float *out = b->dout + t->at * p->q_dim;
    const float *dy =
        end_back(p, KV_P_O, KV_P_O_BIAS, KV_P_ATTN_OUT_NORM, out, p->q_dim,
                 t->rows, b->dx + t->at * p->hidden, t->wide);

    kv_gemm(false, t->rows, p->q_dim, p->hidden, 1, dy, p->hidden,
            part(p, KV_P_O), p->q_dim, 0, out, p->q_dim);
}

static void qkv_again(const struct back *b, const struct kv_tile *t)
{
    kv_pass_qkv(&b->p, t, NULL);
}

static int attention_again(const struct back *b, struct kv_err *e)
{
    const struct kv_pass *p = &b->p;

    return kv_attend_exact(NULL,
                           &(struct kv_qkv){.shape = &p->shape,
                                            .backend = p->b,
                                            .n_windows = p->n_windows,
                                            .n = p->n,
                                            .q = p->q,
                                            .k = p->k,
                                            .v = p->v,
                                            .out = p->out},
                           e);
}

/* q, k, v, dout -> dq (unless lowest), dk, dv; q and k after RoPE. */
static void attention_back(const struct back *b)
{
    const struct kv_pass *p = &b->p;
    const struct kv_shape *s = &p->shape;
    const size_t d = s->head_dim, group = s->n_heads / s->n_kv_heads;
    const size_t n_jobs = p->n_windows * s->n_kv_heads;
    const size_t floats = kv_attend_grad_scratch(p->n);
    float *scratch =
        kv_alloc((size_t)omp_get_max_threads(), floats * sizeof(*scratch));

#pragma omp parallel for schedule(dynamic) if (n_jobs > 1)
    for (size_t i = 0; i < n_jobs; i++) {
        const size_t at = i / s->n_kv_heads * p->n, h = i % s->n_kv_heads;
        const size_t q = at * p->q_dim + h * group * d;
        const size_t kv = at * p->kv_dim + h * d;
        const struct kv_attend_grad_job job = {
            .q = p->q + q,
            .out_grad = b->dout + q,
            .k = p->k + kv,
            .v = p->v + kv,
            .q_grad = b->lowest ? NULL : b->dq + q,
            .k_grad = b->dk + kv,
            .v_grad = b->dv + kv,
            .q_stride = p->q_dim,
            .k_stride = p->kv_dim,
            .n = p->n,
            .group = group,
            .head_dim = d,
            .scale = s->attn_scale,
            .cap = s->cap,
            .window = s->window,
        };

        kv_attend_grad(&job, scratch + (size_t)omp_get_thread_num() * floats);
    }
    free(scratch);
}

/* Takes dy, rows `stride` apart, back through the norm of each of the row's
 * heads; raw: the values before the norm, in the same layout. */
static void heads_back(const struct kv_pass *p, const float *w,
                       const float *raw, size_t rows, size_t heads,
                       size_t stride, float *dy)
{
    const size_t d = p->m->config.shape.head_dim;

    for (size_t i = 0; i < rows; i++)
        for (size_t h = 0; h < heads; h++) {
            float *to = dy + i * stride + h * d;

            kv_rms_norm_grad(raw + i * stride + h * d, w, to, d,
                             p->m->config.norm_eps, to);
        }
}

/* Takes dqkv [rows][q, k, v] back through the norms of q and k, whose inputs
 * are recomputed.  h: workspace for [rows][hidden], raw for [rows][q, k, v]. */
static void qk_norm_back(const struct kv_pass *p, const float *x, size_t rows,
                         float *h, float *raw, float *dqkv)
{
    const struct kv_shape *s = &p->m->config.shape;
    const size_t qk = p->q_dim + p->kv_dim, all = qk + p->kv_dim;

    norm(p, part(p, KV_P_ATTN_NORM), x, rows, h);
    kv_gemm(true, rows, all, p->hidden, 1, h, p->hidden, part(p, KV_P_Q),
            p->hidden, 0, raw, all);
    add_bias(raw, rows, all, part(p, KV_P_Q_BIAS));
    heads_back(p, part(p, KV_P_Q_NORM), raw, rows, s->n_heads, all, dqkv);
    heads_back(p, part(p, KV_P_K_NORM), raw + p->q_dim, rows, s->n_kv_heads,
               all, dqkv + p->q_dim);
}

/* Takes dk back through RoPE.  Unless this is the lowest layer, also takes dq
 * back through RoPE, and dq, dk and dv to dx before the layer. */
static void qkv_back(const struct back *b, const struct kv_tile *t)
{
    const struct kv_pass *p = &b->p;
    const struct kv_shape *s = &p->m->config.shape;
    const size_t q_dim = p->q_dim, kv_dim = p->kv_dim, rows = t->rows;
    const size_t all = q_dim + 2 * kv_dim, hidden = p->hidden;
    const float *unrotate =
        b->unrotate + (p->rope - p->ropes) + t->token * 2 * s->n_rot;
    const float *x = kv_pass_kept(p, p->kept_in) + t->at * hidden;
    float *h = t->input, *dqkv = t->wide;
    float *dq = b->dq + t->at * q_dim, *dk = b->dk + t->at * kv_dim;
    const float *dv = b->dv + t->at * kv_dim;

    kv_rope_rotate(s, unrotate, dk, rows, s->n_kv_heads);
    if (b->lowest)
        return;
    kv_rope_rotate(s, unrotate, dq, rows, s->n_heads);
    for (size_t i = 0; i < rows; i++) {
        float *row = dqkv + i * all;

        memcpy(row, dq + i * q_dim, q_dim * sizeof(*row));
        memcpy(row + q_dim, dk + i * kv_dim, kv_dim * sizeof(*row));
        memcpy(row + q_dim + kv_dim, dv + i * kv_dim, kv_dim * sizeof(*row));
    }
    if (part(p, KV_P_Q_NORM))
        qk_norm_back(p, x, rows, h, dqkv + rows * all, dqkv);
    kv_gemm(false, rows, hidden, all, 1, dqkv, all, part(p, KV_P_Q), hidden, 0,
            h, hidden);
    norm_back(p, part(p, KV_P_ATTN_NORM), x, h, rows, b->dx + t->at * hidden);
}

static int layer_back(struct back *b, size_t layer,
                      const struct kv_gradient_sink *sink, struct kv_err *e)
{
    struct kv_pass *p = &b->p;
    const struct kv_gradient g = {
        .shape = &p->shape,
        .layer = layer,
        .n_windows = p->n_windows,
        .n = p->n,
        .k_pre = b->dk,
        .v = b->dv,
    };

    b->lowest = layer == p->kept_from;
    if (kv_pass_load(p, layer, b->lowest ? layer : layer - 1, e))
        return -1;
    p->x = kv_pass_kept(p, p->kept_in);
    each_tile(b, mlp_back);
    each_tile(b, qkv_again);
    if (part(p, KV_P_ATTN_OUT_NORM) && attention_again(b, e))
        return -1;
    each_tile(b, out_back);
    attention_back(b);
    each_tile(b, qkv_back);
    if (sink->run(sink->arg, &g, e))
        return -1;
    return kv_interrupted(e);
}

/* Floats of a token in a tile's workspace. */
static size_t row_wide(const struct kv_config *c)
{
    const struct kv_shape *s = &c->shape;
    const size_t mlp = 3 * c->inter + (c->arch->sandwich ? c->hidden : 0);
    const size_t qkv = 2 * (s->n_heads + 2 * s->n_kv_heads) * s->head_dim;
    const size_t max = mlp > qkv ? mlp : qkv;

    return max > c->n_vocab ? max : c->n_vocab;
}

static void back_init(struct back *b)
{
    struct kv_pass *p = &b->p;
    const struct kv_shape *s = &p->m->config.shape;
    const size_t n_rot = s->n_rot, tables = s->slide_window ? 2 : 1;
    const size_t n = tables * p->n * 2 * n_rot;

    b->dx = p->x;
    b->dq = p->q;
    b->dk = p->k_pre;
    b->dout = p->out;
    b->dv = kv_alloc(p->n_windows * p->n, p->kv_dim * sizeof(*b->dv));
    b->unrotate = kv_alloc(n, sizeof(*b->unrotate));
    for (size_t i = 0; i < n; i++)
        b->unrotate[i] = i / n_rot % 2 ? -p->ropes[i] : p->ropes[i];
}

int kv_model_backward(struct kv_model *m, const int32_t *tokens,
                      size_t n_windows, size_t n, size_t first_layer,
                      const struct kv_attention *attention,
                      const struct kv_gradient_sink *sink, struct kv_err *e)
{
    const size_t n_layers = m->config.shape.n_layers, rows = n_windows * n;
    const size_t bytes = m->config.hidden * sizeof(float);
    struct back b = {.tokens = tokens, .m = m};
    int rc = -1;

    assert(m->backend->on_host && m->backend->weight_type == KV_TYPE_F32);
    if (kv_config_is_llama(&m->config, "the way back", true, e))
        return -1;
    if (first_layer >= n_layers)
        return kv_fail(e, "layer %zu: the model has %zu", first_layer,
                       n_layers);
    if (n_windows == 0 || n == 0)
        return 0;
    b.p = (struct kv_pass){
        .m = m,
        .n_windows = n_windows,
        .n = n,
        .x = kv_alloc(rows, bytes),
        .row_wide = row_wide(&m->config),
        .kept_in = kv_alloc((n_layers - first_layer) * rows, bytes),
        .kept_mid = kv_alloc((n_layers - first_layer) * rows, bytes),
        .kept_from = first_layer,
    };
    b.dx = b.p.x;
    if (kv_pass_check(m, tokens, n_windows, n, 0, e))
        goto out;
    kv_pass_embed(m, tokens, n_windows, n, 0, b.p.x);
    kv_pass_init(&b.p, e);
    back_init(&b);
    rc = kv_pass_layers(&b.p, attention, e);
    if (!rc)
        each_tile(&b, loss_back);
    for (size_t l = n_layers; l-- > first_layer && !rc;)
        rc = layer_back(&b, l, sink, e);
    kv_pass_clear(&b.p);
    free(b.unrotate);
    free(b.dv);
out:
    free(b.p.kept_mid);
    free(b.p.kept_in);
    free(b.dx);
    return rc;
}

size_t kv_backward_windows(const struct kv_model *m, size_t n,
                           size_t first_layer, size_t memory)
{
    const struct kv_config *c = &m->config;
    const struct kv_shape *s = &c->shape;
    const size_t q = s->n_heads * s->head_dim;
    const size_t kv = s->n_kv_heads * s->head_dim;
    const size_t kept = 2 * (s->n_layers - first_layer);
    /* hidden, which dx replaces; q and out; k, k_pre, v and dv */
    const size_t token =
        ((1 + kept) * c->hidden + 2 * q + 4 * kv) * sizeof(float);

    return kv_memory_fit(memory, token * n, SIZE_MAX, "a window");
}
