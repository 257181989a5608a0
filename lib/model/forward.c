#include "kernels/vecops/vecops.h"
#include "lib/base/alloc.h"
#include "lib/base/file.h"
#include "lib/model/pass.h"
#include "lib/rope_table.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

size_t kv_pass_stretch(const struct kv_pass *p)
{
    return p->b->windows && !p->few ? p->n : p->n_windows * p->n;
}

static size_t tiles_of(const struct kv_pass *p, size_t n)
{
    return (n + p->b->tile - 1) / p->b->tile;
}

/* Whether each span of tokens has its own tiles. */
static bool by_span(const struct kv_pass *p)
{
    return p->batch && p->b->windows && !p->few;
}

int kv_pass_each(const struct kv_pass *p, kv_tile_work *work, const void *arg,
                 struct kv_err *e)
{
    const size_t stretches = p->n_windows * p->n / kv_pass_stretch(p);
    size_t n = stretches * tiles_of(p, kv_pass_stretch(p));

    if (by_span(p)) {
        n = 0;
        for (size_t s = 0; s < p->batch->n_spans; s++)
            n += tiles_of(p, p->batch->span[s].n);
    }
    return p->b->each(n, work, arg, e);
}

struct kv_tile kv_pass_tile(const struct kv_pass *p, size_t i, size_t thread)
{
    size_t length = kv_pass_stretch(p),
           start = i / tiles_of(p, length) * length;

    if (by_span(p)) {
        const struct kv_span *span = p->batch->span;

        for (start = 0; i >= tiles_of(p, span->n); start += span++->n)
            i -= tiles_of(p, span->n);
        length = span->n;
    }

    const size_t token = i % tiles_of(p, length) * p->b->tile;
    const size_t rest = length - token, at = start + token;

    return (struct kv_tile){
        .rows = rest < p->b->tile ? rest : p->b->tile,
        .token = at % p->n,
        .at = at,
        .input = p->input + thread * p->input_bytes,
        .wide = p->wide + thread * p->wide_floats,
    };
}

/* ---- a layer ------------------------------------------------------------- */

static bool runs(const struct kv_pass *p, enum kv_step_part part)
{
    return !(p->skip >> part & 1);
}

static const float *vector(const struct kv_pass *p, enum kv_part part)
{
    return kv_layers_vector(p->m->layers, part);
}

/* Points a layer that shares keys and values to the place where the last layer
 * of its kind left them. */
static void turn_to_attended(struct kv_pass *p)
{
    const struct kv_shape *s = &p->m->config.shape;
    const size_t most = s->n_shared && kv_shape_slides(s, p->attended)
                            ? p->n_windows * p->n * kv_shape_kv_most(s)
                            : 0;

    p->shape = kv_shape_layer(s, p->attended);
    p->q_dim = p->shape.n_heads * p->shape.head_dim;
    p->kv_dim = p->shape.n_kv_heads * p->shape.head_dim;
    p->k = p->ks + most;
    p->k_pre = p->ks_pre + most;
    p->v = p->vs + most;
}

int kv_pass_load(struct kv_pass *p, size_t layer, size_t next, struct kv_err *e)
{
    const struct kv_shape *s = &p->m->config.shape;

    p->loaded = layer;
    p->inter = kv_config_inter(&p->m->config, layer);
    p->shares = kv_config_shares(&p->m->config, layer);
    p->attended = layer - kv_shape_states(s, layer);
    p->mixes = kv_shape_stateful(s, layer);
    p->bare = kv_config_is_bare(&p->m->config, layer);
    if (!p->mixes) {
        p->attended = kv_shape_owner(s, p->attended);
        turn_to_attended(p);
    }
    p->rope = p->ropes + (p->shape.window ? p->n * 2 * s->n_rot : 0);
    if (p->few) {
        kv_layers_turn_to(p->m->layers, layer);
        return 0;
    }
    return kv_layers_load(p->m->layers, layer, next, e);
}

int kv_pass_norm(const struct kv_pass *p, const float *w, const float *bias,
                 const float *x, size_t rows, enum kv_type type, void *out,
                 struct kv_err *e)
{
    const struct kv_norm norm = {.weight = w,
                                 .bias = bias,
                                 .n = p->hidden,
                                 .eps = p->m->config.norm_eps,
                                 .centers = p->m->config.arch->layer_norm};

    return runs(p, KV_STEP_NORM) ? p->b->norm(&norm, x, rows, type, out, e) : 0;
}

int kv_pass_multiply(const struct kv_pass *p, const struct kv_tile *t,
                     enum kv_part part, const void *a, size_t inputs, float *c,
                     size_t outputs, bool add, struct kv_err *e)
{
    struct kv_stored_part stored[KV_LAYERS_STORED];
    struct kv_product product = {.rows = t->rows,
                                 .outputs = outputs,
                                 .inputs = inputs,
                                 .a = a,
                                 .c = c,
                                 .c_row = outputs,
                                 .add = add};

    if (p->few) {
        product.stored = stored;
        product.n_stored = kv_layers_stored(p->m->layers, part, stored);
    } else {
        product.w = kv_layers_matrix(p->m->layers, part);
    }
    return p->b->multiply(p->b, &product, e);
}

int kv_pass_enter(const struct kv_pass *p, const struct kv_tile *t,
                  enum kv_part norm, enum kv_part bias, const void **a,
                  struct kv_err *e)
{
    const float *x = p->x + t->at * p->hidden;

    *a = t->input;
    return vector(p, norm) && !p->m->config.norm_stream
               ? kv_pass_norm(p, vector(p, norm), vector(p, bias), x, t->rows,
                              p->b->input_type, t->input, e)
               : p->b->to_input(p->b, x, t->rows * p->hidden, t->input, a, e);
}

int kv_pass_qkv(const struct kv_pass *p, const struct kv_tile *t,
                struct kv_err *e)
{
    static const enum kv_norm_of norms[] = {
        [KV_QK_HEADS] = KV_NORM_OF_OWN_HEAD, [KV_QK_WHOLE] = KV_NORM_OF_TOKEN};
    const struct kv_shape *s = &p->shape;
    const struct kv_heads heads = {
        .rows = t->rows,
        .first = t->token,
        .n = p->n,
        .n_heads = s->n_heads,
        .n_kv_heads = p->shares ? 0 : s->n_kv_heads,
        .head_dim = s->head_dim,
        .pairs = kv_shape_pairs(s),
        .qkv = t->wide,
        .bias = vector(p, KV_P_Q_BIAS),
        .q_norm = vector(p, KV_P_Q_NORM),
        .k_norm = vector(p, KV_P_K_NORM),
        .q_norm_bias = vector(p, KV_P_Q_NORM_BIAS),
        .k_norm_bias = vector(p, KV_P_K_NORM_BIAS),
        .v_norm = p->m->config.arch->by_kind ? p->m->weights.ones : NULL,
        .norm_of = norms[p->m->config.qk_norm],
        .norm_centers = p->m->config.arch->layer_norm,
        .norm_late = p->m->config.arch->qk_norm_late,
        .clip = p->m->config.clip,
        .eps = p->m->config.norm_eps,
        .rope_scale = p->shape.window ? p->m->config.slide_scale
                                      : p->m->config.rope.scale,
        .rope = p->rope,
        .q = p->q + t->at * p->q_dim,
        .k = p->k + t->at * p->kv_dim,
        .k_pre = p->k_pre + t->at * p->kv_dim,
        .v = p->v + t->at * p->kv_dim,
    };
    const void *a;

    if (kv_pass_enter(p, t, KV_P_ATTN_NORM, KV_P_ATTN_NORM_BIAS, &a, e))
        return -1;
    if (s->latent)
        return kv_pass_latent(p, t, a, e);
    if (runs(p, KV_STEP_QKV) &&
        kv_pass_multiply(p, t, KV_P_Q, a, p->hidden, t->wide,
                         p->q_dim + (p->shares ? 0 : 2 * p->kv_dim), false, e))
        return -1;
    if (p->m->config.arch->out_gate &&
        kv_pass_multiply(p, t, KV_P_OUT_GATE, a, p->hidden,
                         p->out_gate + t->at * p->q_dim, p->q_dim, false, e))
        return -1;
    return runs(p, KV_STEP_ROPE) ? p->b->heads(&heads, e) : 0;
}

/* Stores the tile's x if the caller needs it later. */
static void keep(const struct kv_pass *p, const struct kv_tile *t, float *all)
{
    const size_t at = t->at * p->hidden;

    if (all && p->loaded >= p->kept_from)
        memcpy(kv_pass_kept(p, all) + at, p->x + at,
               t->rows * p->hidden * sizeof(*all));
}

static int before_attention(const void *arg, size_t i, size_t thread,
                            struct kv_err *e)
{
    const struct kv_pass *p = arg;
    const struct kv_tile t = kv_pass_tile(p, i, thread);

    keep(p, &t, p->kept_in);
    return (p->streams && kv_pass_predict(p, &t, e)) || kv_pass_qkv(p, &t, e);
}

/* A product, its bias and its norm. */
struct end {
    enum kv_part part, bias, norm;
};

/* x += the product that ends a half of the layer, with its bias and norm. */
static int add_to_stream(const struct kv_pass *p, const struct kv_tile *t,
                         struct end end, const void *a, size_t inputs,
                         struct kv_err *e)
{
    const float *bias = vector(p, end.bias), *norm = vector(p, end.norm);
    float *x = p->x + t->at * p->hidden;
    float *y = norm ? t->wide : x;

    if (kv_pass_multiply(p, t, end.part, a, inputs, y, p->hidden, !norm, e) ||
        (bias && p->b->add(y, bias, t->rows, p->hidden, e)))
        return -1;
    return norm ? kv_pass_norm(p, norm, NULL, y, t->rows, KV_TYPE_F32, y, e) ||
                      p->b->add(x, y, 1, t->rows * p->hidden, e)
                : 0;
}

/* Normalises the stream after an addition, if the model does so. */
static int norm_stream(const struct kv_pass *p, const struct kv_tile *t,
                       enum kv_part norm, enum kv_part bias, struct kv_err *e)
{
    float *x = p->x + t->at * p->hidden;

    return p->m->config.norm_stream
               ? kv_pass_norm(p, vector(p, norm), vector(p, bias), x, t->rows,
                              KV_TYPE_F32, x, e)
               : 0;
}

/* Adds Wo out to x, or the mixer's output in a layer without attention. */
static int out_product(const struct kv_pass *p, const struct kv_tile *t,
                       struct kv_err *e)
{
    const struct end end = {p->mixes ? KV_P_MIX_OUT : KV_P_O, KV_P_O_BIAS,
                            KV_P_ATTN_OUT_NORM};
    size_t row = p->mixes ? p->m->config.mixer.out : p->q_dim;
    const float *out = p->out + t->at * row;
    const void *a;

    if (!p->mixes && p->m->config.arch->out_gate)
        kv_pass_gate_out(p, t);
    if (p->shape.latent) {
        kv_pass_latent_values(p, t, t->wide);
        out = t->wide;
        row = p->shape.n_heads * p->m->config.latent.value;
    }
    return p->b->to_input(p->b, out, t->rows * row, t->input, &a, e) ||
           add_to_stream(p, t, end, a, row, e);
}

/* x += down(act(gate a) * up a), or down(act(up a)). */
static int mlp(const struct kv_pass *p, const struct kv_tile *t, const void *a,
               struct kv_err *e)
{
    const struct end end = {KV_P_DOWN, KV_P_DOWN_BIAS, KV_P_MLP_OUT_NORM};
    const bool gated = !p->m->config.arch->plain_mlp;
    const struct kv_activation act = {
        .act = p->m->config.act,
        .gated = gated,
        .bias = vector(p, gated ? KV_P_GATE_BIAS : KV_P_UP_BIAS),
        .n = p->inter};

    if (kv_pass_multiply(p, t, gated ? KV_P_GATE : KV_P_UP, a, p->hidden,
                         t->wide, gated ? 2 * p->inter : p->inter, false, e))
        return -1;
    if (p->streams)
        kv_pass_cut_gates(p, t->rows, t->wide);
    return p->b->activate(&act, t->wide, t->rows, p->b->input_type, t->input,
                          e) ||
           add_to_stream(p, t, end, t->input, p->inter, e);
}

static bool has_experts(const struct kv_pass *p)
{
    return kv_config_has_experts(&p->m->config, p->loaded);
}

/* The MLP half; in layers with experts, it only chooses each token's
 * experts. */
static int mlp_half(const struct kv_pass *p, const struct kv_tile *t,
                    struct kv_err *e)
{
    const void *a;

    if (kv_pass_enter(p, t, KV_P_MLP_NORM, KV_P_MLP_NORM_BIAS, &a, e))
        return -1;
    if (!runs(p, KV_STEP_MLP))
        return 0;
    return has_experts(p) ? kv_pass_route(p, t, a, e) : mlp(p, t, a, e);
}

static int out_half(const struct kv_pass *p, const struct kv_tile *t,
                    struct kv_err *e)
{
    if ((runs(p, KV_STEP_OUT) && out_product(p, t, e)) ||
        norm_stream(p, t, KV_P_ATTN_NORM, KV_P_ATTN_NORM_BIAS, e))
        return -1;
    if (p->streams)
        kv_pass_add_laurel(p, t);
    keep(p, t, p->kept_mid);
    return 0;
}

static bool has_mlp(const struct kv_pass *p)
{
    return kv_config_has_mlp(&p->m->config, p->loaded);
}

/* Runs the steps after the MLP.  In parallel layers the MLP comes first: x is
 * still the input of attention. */
static int after_mlp(const struct kv_pass *p, const struct kv_tile *t,
                     struct kv_err *e)
{
    if (p->m->config.parallel)
        return out_half(p, t, e);
    return norm_stream(p, t, KV_P_MLP_NORM, KV_P_MLP_NORM_BIAS, e) ||
                   (p->m->config.arch->by_kind && kv_pass_per_layer(p, t, e))
               ? -1
               : 0;
}

static int after_attention(const void *arg, size_t i, size_t thread,
                           struct kv_err *e)
{
    const struct kv_pass *p = arg;
    const struct kv_tile t = kv_pass_tile(p, i, thread);

    return (!p->m->config.parallel && !p->bare && out_half(p, &t, e)) ||
                   (has_mlp(p) && mlp_half(p, &t, e)) ||
                   (!has_experts(p) && after_mlp(p, &t, e))
               ? -1
               : 0;
}

static int after_experts(const void *arg, size_t i, size_t thread,
                         struct kv_err *e)
{
    const struct kv_pass *p = arg;
    const struct kv_tile t = kv_pass_tile(p, i, thread);

    return kv_pass_add_experts(p, &t, e) || after_mlp(p, &t, e) ? -1 : 0;
}

/* Runs the experts, each on the tokens of all tiles. */
static int experts(const struct kv_pass *p, struct kv_err *e)
{
    return has_experts(p) && (kv_pass_experts(p, e) ||
                              kv_pass_each(p, after_experts, p, e))
               ? -1
               : 0;
}

static int final_norm(const void *arg, size_t i, size_t thread,
                      struct kv_err *e)
{
    const struct kv_pass *p = arg;
    const struct kv_tile t = kv_pass_tile(p, i, thread);
    float *x = p->x + t.at * p->hidden;

    if (p->streams && kv_pass_gather(p, &t, e))
        return -1;
    if (!p->m->config.no_last_norm &&
        kv_pass_norm(p, kv_layers_norm(p->m->layers),
                     kv_layers_norm_bias(p->m->layers), x, t.rows, KV_TYPE_F32,
                     x, e))
        return -1;
    return p->m->config.logit_scale != 1
               ? p->b->scale(x, t.rows * p->hidden, p->m->config.logit_scale, e)
               : 0;
}

int kv_pass_norm_all(struct kv_pass *p, struct kv_err *e)
{
    return kv_pass_is_last(p->m) ? kv_pass_each(p, final_norm, p, e) : 0;
}

/* ---- a pass -------------------------------------------------------------- */

int kv_pass_check(const struct kv_model *m, const int32_t *tokens,
                  size_t n_windows, size_t n, size_t first, struct kv_err *e)
{
    for (size_t i = 0; i < n_windows * n; i++)
        if (tokens[i] < 0 || (size_t)tokens[i] >= m->config.n_vocab)
            return kv_fail(e,
                           "token id %d at %zu is outside the vocabulary "
                           "of %zu of %s",
                           (int)tokens[i], i, m->config.n_vocab, m->info.name);
    if (m->config.n_places && first + n > m->config.n_places)
        return kv_fail(e,
                       "%s has learned positions of %zu tokens: %zu are too "
                       "many",
                       m->info.name, m->config.n_places, first + n);
    if (m->config.rope.limit && first + n > m->config.rope.limit)
        return kv_fail(e,
                       "%s scales queries after %zu tokens, which is not "
                       "implemented: %zu are too many",
                       m->info.name, m->config.rope.limit, first + n);
    return 0;
}

/* Runs attention or, in layers without attention, the mixer. */
static int attend(struct kv_pass *p, const struct kv_attention *a,
                  const struct kv_qkv *x, struct kv_err *e)
{
    if (p->bare)
        return 0;
    if (p->mixes)
        return kv_pass_mix(p, a, e);
    return kv_pass_each(p, before_attention, p, e) || a->run(a->arg, x, e);
}

int kv_pass_layer(struct kv_pass *p, const struct kv_attention *attention,
                  struct kv_err *e)
{
    const struct kv_attention exact = {.run = kv_attend_exact};
    const struct kv_attention *a = attention ? attention : &exact;
    const struct kv_qkv x = {
        .shape = &p->shape,
        .backend = p->b,
        .layer = p->attended,
        .first_layer = p->m->relay.first -
                       kv_shape_states(&p->m->config.shape, p->m->relay.first),
        .shared = p->shares,
        .first_window = p->first_window,
        .n_windows = p->n_windows,
        .n = p->n,
        .first = p->first,
        .q = p->q,
        .k = p->k,
        .k_pre = p->k_pre,
        .v = p->v,
        .out = p->out,
        .rope = p->rope,
        .host = &p->host,
        .batch = p->batch,
    };

    return attend(p, a, &x, e) || kv_pass_each(p, after_attention, p, e) ||
                   experts(p, e) || kv_interrupted(e)
               ? -1
               : 0;
}

int kv_pass_layers(struct kv_pass *p, const struct kv_attention *attention,
                   struct kv_err *e)
{
    const size_t end = kv_pass_end(p->m);

    for (size_t l = p->m->relay.first; l < end; l++)
        if (kv_pass_load(p, l, l + 1 < end ? l + 1 : l, e) ||
            kv_pass_layer(p, attention, e))
            return -1;
    return 0;
}

/* hidden: the tokens' embeddings at first, the result at the end. */
static int forward(struct kv_pass *p, const struct kv_attention *attention,
                   float *hidden, struct kv_err *e)
{
    struct kv_model *m = p->m;
    const size_t bytes =
        p->n_windows * p->n * m->config.hidden * sizeof(*hidden);
    const void *x;
    int rc;

    if (kv_backend_take(m->backend, &m->workspace[KV_WORK_X], hidden, bytes, &x,
                        e))
        return -1;
    p->x = m->backend->on_host ? hidden : m->workspace[KV_WORK_X].p;
    rc = kv_pass_init(p, e) || kv_pass_layers(p, attention, e) ||
         kv_pass_norm_all(p, e) ||
         kv_backend_give(m->backend, hidden, p->x, bytes, e) ||
         kv_pass_give(m, hidden, bytes / sizeof(*hidden), e);
    kv_pass_clear(p);
    return rc ? -1 : 0;
}

int kv_model_forward(struct kv_model *m, const int32_t *tokens,
                     size_t n_windows, size_t n, size_t first,
                     const struct kv_attention *attention, float *hidden,
                     struct kv_err *e)
{
    struct kv_pass p = {.m = m,
                        .n_windows = n_windows,
                        .n = n,
                        .first = first,
                        .tokens = tokens,
                        .few = m->backend->on_host && n <= KV_FEW_ROWS};

    if (n_windows == 0 || n == 0)
        return 0;
    if (kv_pass_check(m, tokens, n_windows, n, first, e))
        return -1;
    if (kv_pass_begin(m, tokens, n_windows, n, first, hidden, e))
        return -1;
    return forward(&p, attention, hidden, e);
}

int kv_model_forward_batch(struct kv_model *m, const struct kv_batch *b,
                           const struct kv_attention *attention, float *hidden,
                           struct kv_err *e)
{
    struct kv_pass p = {.m = m,
                        .n_windows = 1,
                        .n = kv_batch_tokens(b),
                        .few = m->backend->on_host,
                        .tokens = b->token,
                        .batch = b};

    assert(b->n_spans && attention && !m->relay.end);
    for (size_t i = 0, at = 0; i < b->n_spans; at += b->span[i++].n) {
        const struct kv_span *s = &b->span[i];

        if (kv_pass_check(m, b->token + at, 1, s->n, s->first, e))
            return -1;
        kv_pass_embed(m, b->token + at, 1, s->n, s->first,
                      hidden + at * m->config.hidden);
        p.few = p.few && s->n <= KV_FEW_ROWS;
    }
    return forward(&p, attention, hidden, e);
}
