#include "kernels/attend.h"
#include "kernels/gemm.h"
#include "kernels/vecops/vecops.h"
#include "lib/base/alloc.h"
#include "lib/base/file.h"
#include "lib/model/model_gpu.h"
#include "lib/model/pass.h"
#include "lib/rope.h"

#include <omp.h>
#include <stdlib.h>
#include <string.h>

enum { TILE = KV_PASS_TILE };

/* Models above this size read ahead and let go layer by layer. */
static const size_t large_model = (size_t)1 << 30;

size_t kv_pass_tiles(const struct kv_pass *p)
{
    return p->n_windows * ((p->n + TILE - 1) / TILE);
}

struct kv_tile kv_pass_tile(const struct kv_pass *p, size_t i)
{
    const size_t per_window = (p->n + TILE - 1) / TILE;
    const size_t token = i % per_window * TILE, rest = p->n - token;

    return (struct kv_tile){
        .rows = rest < TILE ? rest : TILE,
        .token = token,
        .at = i / per_window * p->n + token,
        .scratch =
            p->scratch + (size_t)omp_get_thread_num() * p->scratch_floats,
    };
}

static size_t layer_floats(const struct kv_layer_weights *l)
{
    size_t n = 0;

    for (size_t i = 0; i < KV_PARTS; i++)
        n += l->part[i] ? l->part[i]->n : 0;
    return n;
}

/* Widens in one parallel region, or none: on a busy machine its barrier costs
 * more than a small layer. */
static void widen_layer(struct kv_pass_layer *to,
                        const struct kv_layer_weights *l)
{
    const size_t piece = 1 << 16, small = 1 << 20;
    float *at = to->block;

    for (size_t i = 0; i < KV_PARTS; i++)
        if (l->part[i]) {
            to->part[i] = at;
            at += l->part[i]->n;
        }
#pragma omp parallel if ((size_t)(at - to->block) > small)
    for (size_t i = 0; i < KV_PARTS; i++) {
        const struct kv_weight *w = l->part[i];
        const size_t n = w ? w->n : 0;

#pragma omp for schedule(static) nowait
        for (size_t j = 0; j < n; j += piece)
            kv_weight_dequantize(w, j, n - j < piece ? n - j : piece,
                                 to->part[i] + j);
    }
}

void kv_pass_load(struct kv_pass *p, size_t layer, size_t next)
{
    const struct kv_layer_weights *l = &p->m->weights.layer[layer];

    p->loaded = layer;
    widen_layer(&p->layer, l);
    if (p->m->files.bytes <= large_model)
        return;
    for (size_t i = 0; i < KV_PARTS; i++) {
        if (l->part[i])
            kv_weight_release(l->part[i]);
        if (l->part[i] && next != layer)
            kv_weight_will_need(p->m->weights.layer[next].part[i]);
    }
}

void kv_pass_bias(float *x, size_t rows, size_t n, const float *bias)
{
    for (size_t t = 0; bias && t < rows; t++)
        kv_row_add(x + t * n, bias, n);
}

/* Each of `heads` vectors of x by itself; w NULL: nothing. */
static void norm_heads(const struct kv_pass *p, const float *w, float *x,
                       size_t heads)
{
    const size_t d = p->m->config.shape.head_dim;

    for (size_t h = 0; w && h < heads; h++)
        kv_rms_norm(x + h * d, w, d, p->m->config.norm_eps, x + h * d);
}

void kv_pass_norm(const struct kv_pass *p, const float *w, const float *x,
                  size_t rows, float *out)
{
    const size_t hidden = p->hidden;

    for (size_t t = 0; t < rows; t++)
        kv_rms_norm(x + t * hidden, w, hidden, p->m->config.norm_eps,
                    out + t * hidden);
}

void kv_pass_qkv(const struct kv_pass *p, const struct kv_tile *t)
{
    const struct kv_shape *s = &p->m->config.shape;
    float *const *part = p->layer.part;
    const size_t q_dim = p->q_dim, kv_dim = p->kv_dim;
    const size_t all = q_dim + 2 * kv_dim;
    float *h = t->scratch, *qkv = h + t->rows * p->hidden;
    float *q = p->q + t->at * q_dim, *k = p->k + t->at * kv_dim;
    float *k_pre = p->k_pre + t->at * kv_dim, *v = p->v + t->at * kv_dim;
    const float *turns = p->rope + t->token * 2 * s->n_rot;

    kv_pass_norm(p, part[KV_P_ATTN_NORM], p->x + t->at * p->hidden, t->rows, h);
    kv_gemm(true, t->rows, all, p->hidden, 1, h, p->hidden, part[KV_P_Q],
            p->hidden, 0, qkv, all);
    kv_pass_bias(qkv, t->rows, all, part[KV_P_Q_BIAS]);
    for (size_t i = 0; i < t->rows; i++) {
        const float *row = qkv + i * all;

        memcpy(q + i * q_dim, row, q_dim * sizeof(*q));
        memcpy(k_pre + i * kv_dim, row + q_dim, kv_dim * sizeof(*k));
        memcpy(v + i * kv_dim, row + q_dim + kv_dim, kv_dim * sizeof(*v));
    }
    norm_heads(p, part[KV_P_Q_NORM], q, t->rows * s->n_heads);
    norm_heads(p, part[KV_P_K_NORM], k_pre, t->rows * s->n_kv_heads);
    memcpy(k, k_pre, t->rows * kv_dim * sizeof(*k));
    kv_rope_rotate(s, turns, q, t->rows, s->n_heads);
    kv_rope_rotate(s, turns, k, t->rows, s->n_kv_heads);
}

/* x of the tile, where the caller wants it kept. */
static void keep(const struct kv_pass *p, const struct kv_tile *t, float *all)
{
    const size_t at = t->at * p->hidden;

    if (all && p->loaded >= p->kept_from)
        memcpy(kv_pass_kept(p, all) + at, p->x + at,
               t->rows * p->hidden * sizeof(*all));
}

static void before_attention(const struct kv_pass *p, const struct kv_tile *t)
{
    keep(p, t, p->kept_in);
    kv_pass_qkv(p, t);
}

/* x += Wo out; x += down(silu(gate(norm x)) * up(norm x)). */
static void after_attention(const struct kv_pass *p, const struct kv_tile *t)
{
    float *const *part = p->layer.part;
    const size_t hidden = p->hidden, inter = p->inter;
    float *x = p->x + t->at * hidden;
    float *h = t->scratch, *gate = h + t->rows * hidden; /* [rows][2][inter] */

    kv_gemm(true, t->rows, hidden, p->q_dim, 1, p->out + t->at * p->q_dim,
            p->q_dim, part[KV_P_O], p->q_dim, 1, x, hidden);
    kv_pass_bias(x, t->rows, hidden, part[KV_P_O_BIAS]);
    keep(p, t, p->kept_mid);
    kv_pass_norm(p, part[KV_P_MLP_NORM], x, t->rows, h);
    kv_gemm(true, t->rows, 2 * inter, hidden, 1, h, hidden, part[KV_P_GATE],
            hidden, 0, gate, 2 * inter);
    kv_pass_bias(gate, t->rows, 2 * inter, part[KV_P_GATE_BIAS]);
    for (size_t i = 0; i < t->rows; i++) {
        float *row = gate + i * 2 * inter;

        kv_silu_mul(row, row + inter, inter, row);
    }
    kv_gemm(true, t->rows, hidden, inter, 1, gate, 2 * inter, part[KV_P_DOWN],
            inter, 1, x, hidden);
    kv_pass_bias(x, t->rows, hidden, part[KV_P_DOWN_BIAS]);
}

static void final_norm(const struct kv_pass *p, const struct kv_tile *t)
{
    float *x = p->x + t->at * p->hidden;

    kv_pass_norm(p, p->m->norm, x, t->rows, x);
}

static void each_tile(const struct kv_pass *p,
                      void (*work)(const struct kv_pass *p,
                                   const struct kv_tile *t))
{
    const size_t n = kv_pass_tiles(p);

#pragma omp parallel for schedule(dynamic) if (n > 1)
    for (size_t i = 0; i < n; i++) {
        const struct kv_tile t = kv_pass_tile(p, i);

        work(p, &t);
    }
}

static int check_tokens(const struct kv_model *m, const int32_t *tokens,
                        size_t n_tokens, struct kv_err *e)
{
    for (size_t i = 0; i < n_tokens; i++)
        if (tokens[i] < 0 || (size_t)tokens[i] >= m->config.n_vocab)
            return kv_fail(e,
                           "token id %d at %zu is outside the vocabulary "
                           "of %zu of %s",
                           (int)tokens[i], i, m->config.n_vocab, m->info.name);
    return 0;
}

int kv_pass_embed(const struct kv_model *m, const int32_t *tokens,
                  size_t n_windows, size_t n, size_t first, float *x,
                  struct kv_err *e)
{
    const size_t hidden = m->config.hidden, window = m->config.window;
    const size_t all = n_windows * n;

    if (check_tokens(m, tokens, all, e))
        return -1;
    if (first + n > window)
        return kv_fail(e,
                       "%s attends over a sliding window of %zu tokens, "
                       "which is not implemented: %zu tokens are too many",
                       m->info.name, window, first + n);
#pragma omp parallel for schedule(static) if (all > TILE)
    for (size_t i = 0; i < all; i++)
        kv_weight_dequantize(m->weights.embed, (size_t)tokens[i] * hidden,
                             hidden, x + i * hidden);
    return 0;
}

int kv_pass_init(struct kv_pass *p, const int32_t *tokens, struct kv_err *e)
{
    const struct kv_config *c = &p->m->config;
    const struct kv_shape *s = &c->shape;
    const size_t n = p->n_windows * p->n;
    const size_t rows = p->n < TILE ? p->n : TILE;
    size_t widest, block = 0;

    if (kv_pass_embed(p->m, tokens, p->n_windows, p->n, p->first, p->x, e))
        return -1;
    p->hidden = c->hidden;
    p->inter = c->inter;
    p->q_dim = s->n_heads * s->head_dim;
    p->kv_dim = s->n_kv_heads * s->head_dim;
    p->q = kv_alloc(n, p->q_dim * sizeof(float));
    p->out = kv_alloc(n, p->q_dim * sizeof(float));
    p->k = kv_alloc(n, p->kv_dim * sizeof(float));
    p->k_pre = kv_alloc(n, p->kv_dim * sizeof(float));
    p->v = kv_alloc(n, p->kv_dim * sizeof(float));
    p->rope = kv_alloc(p->n, 2 * s->n_rot * sizeof(float));
    kv_rope_table(s, p->n, p->first, p->rope);
    widest = p->q_dim + 2 * p->kv_dim;
    widest = widest > 2 * p->inter ? widest : 2 * p->inter;
    widest = widest > p->row_floats ? widest : p->row_floats;
    p->scratch_floats = rows * (p->hidden + widest);
    p->scratch = kv_alloc((size_t)omp_get_max_threads(),
                          p->scratch_floats * sizeof(float));
    for (size_t l = 0; l < s->n_layers; l++) {
        const size_t floats = layer_floats(&p->m->weights.layer[l]);

        block = floats > block ? floats : block;
    }
    p->layer.block = kv_alloc(block, sizeof(float));
    return 0;
}

void kv_pass_clear(struct kv_pass *p)
{
    free(p->q);
    free(p->out);
    free(p->k);
    free(p->k_pre);
    free(p->v);
    free(p->rope);
    free(p->scratch);
    free(p->layer.block);
}

int kv_pass_layers(struct kv_pass *p, const struct kv_attention *attention,
                   struct kv_err *e)
{
    const struct kv_attention exact = {.run = kv_attend_exact};
    const struct kv_attention *a = attention ? attention : &exact;
    const size_t n_layers = p->m->config.shape.n_layers;
    int rc = 0;

    for (size_t l = 0; l < n_layers && !rc; l++) {
        const struct kv_qkv x = {
            .shape = &p->m->config.shape,
            .layer = l,
            .n_windows = p->n_windows,
            .n = p->n,
            .first = p->first,
            .q = p->q,
            .k = p->k,
            .k_pre = p->k_pre,
            .v = p->v,
            .out = p->out,
        };

        kv_pass_load(p, l, l + 1 < n_layers ? l + 1 : l);
        each_tile(p, before_attention);
        rc = a->run(a->arg, &x, e);
        if (!rc)
            each_tile(p, after_attention);
        if (!rc)
            rc = kv_interrupted(e);
    }
    return rc;
}

int kv_model_forward(struct kv_model *m, const int32_t *tokens,
                     size_t n_windows, size_t n, size_t first,
                     const struct kv_attention *attention, float *hidden,
                     struct kv_err *e)
{
    struct kv_pass p = {
        .m = m, .n_windows = n_windows, .n = n, .first = first, .x = hidden};
    int rc;

    if (n_windows == 0 || n == 0)
        return 0;
    if (m->gpu)
        return kv_pass_embed(m, tokens, n_windows, n, first, hidden, e) ||
                       kv_model_gpu_forward(m->gpu, n_windows, n, first,
                                            attention, hidden, e)
                   ? -1
                   : 0;
    if (kv_pass_init(&p, tokens, e))
        return -1;
    rc = kv_pass_layers(&p, attention, e);
    if (!rc)
        each_tile(&p, final_norm);
    kv_pass_clear(&p);
    return rc;
}

int kv_attend_exact(void *arg, const struct kv_qkv *x, struct kv_err *e)
{
    struct kv_attend_job job = {
        .view = kv_shape_view(x->shape, x->n, 0, x->n),
        .q = x->q,
        .out = x->out,
        .q_rows = x->n,
        .k = {.unquantized = x->k},
        .v = {.unquantized = x->v},
    };

    (void)arg;
    if (x->gpu)
        return kv_model_gpu_attend(x, NULL, e);
    job.view.n_seqs = x->n_windows;
    kv_attend(&job);
    return 0;
}

int kv_attend_forms(const struct kv_qkv *x, const struct kv_forms *f,
                    struct kv_err *e)
{
    return kv_model_gpu_attend(x, f, e);
}

int kv_forms_room(const struct kv_qkv *x, enum kv_side side, bool quantized,
                  float **room, struct kv_err *e)
{
    return kv_model_gpu_room(x, side, quantized, room, e);
}

int kv_forms_turn(const struct kv_qkv *x, float *k, struct kv_err *e)
{
    return kv_model_gpu_turn(x, k, e);
}

const float *kv_model_head(const struct kv_model *m, size_t first, size_t n,
                           float *panel)
{
    const size_t h = m->config.hidden;

    if (m->head)
        return m->head + first * h;
    kv_model_dequantize(m->weights.head, first * h, n * h, panel);
    return panel;
}

int kv_model_logits(struct kv_model *m, const float *hidden, size_t n,
                    float *logits, struct kv_err *e)
{
    const size_t h = m->config.hidden, n_vocab = m->config.n_vocab;
    float *panel;

    if (m->gpu)
        return kv_model_gpu_logits(m->gpu, hidden, n, logits, e);
    panel = m->head ? NULL : kv_alloc(KV_HEAD_PANEL, h * sizeof(*panel));
    for (size_t v = 0; v < n_vocab; v += KV_HEAD_PANEL) {
        const size_t cols =
            n_vocab - v < KV_HEAD_PANEL ? n_vocab - v : KV_HEAD_PANEL;
        const float *head = kv_model_head(m, v, cols, panel);

#pragma omp parallel for schedule(dynamic) if (n > KV_LOGIT_ROWS && \
                                               !omp_in_parallel())
        for (size_t t = 0; t < n; t += KV_LOGIT_ROWS) {
            const size_t rows = n - t < KV_LOGIT_ROWS ? n - t : KV_LOGIT_ROWS;

            kv_gemm(true, rows, cols, h, 1, hidden + t * h, h, head, h, 0,
                    logits + t * n_vocab + v, n_vocab);
        }
    }
    free(panel);
    return kv_interrupted(e);
}
