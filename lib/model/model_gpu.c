#include "lib/model/model_gpu.h"
#include "kernels/cuda/layer.h"
#include "kernels/cuda/loss.h"
#include "kernels/cuda/views.h"
#include "kernels/device_workspace.h"
#include "kernels/hack/cuda_views.h"
#include "lib/base/alloc.h"
#include "lib/base/file.h"
#include "lib/model/weights_gpu.h"
#include "lib/rope.h"

#include <stdlib.h>
#include <string.h>

/* Tokens that pass through a layer's products at once, and rows of logits (or
 * fewer, where the vocabulary is large). */
enum { ROWS = 2048, LOGIT_BYTES = 128 << 20 };

/* What cuBLAS, the driver and the notes of klt's searches
 * (kernels/cuda/coder.h) take, about. */
static const size_t slack = (size_t)256 << 20;

/* Device memory that is made when it is wanted, and kept. */
enum room {
    X, /* [tokens][hidden]: the residual stream */
    Q, /* [tokens][q_dim], as struct kv_qkv; K, K_PRE, V, OUT too */
    K,
    K_PRE,
    V,
    OUT,
    TURNS, /* kv_rope_table() */
    INPUT, /* of a product, in the weights' type */
    GATE,  /* [ROWS][inter] f32, UP too */
    UP,
    FORMS, /* kv_attend_forms(): a place for each of its tensors */
    UNTIL = FORMS + 2 * KV_SIDES,
    LOGITS = UNTIL + KV_SIDES,
    BASE_LOGITS,
    TARGETS,
    LOSSES,
    ROOMS
};

struct kv_model_gpu {
    const struct kv_model *m;
    struct kv_device device;
    struct kv_weights_gpu *weights;
    enum kv_gpu_type type; /* of their matrices */
    struct kv_device_workspace room[ROOMS];
    uint32_t *until[KV_SIDES]; /* what the rooms hold; NULL: nothing */
    size_t n_until[KV_SIDES];
    bool attended; /* OUT holds the layer's attention */
};

static size_t q_dim(const struct kv_model_gpu *g)
{
    return g->m->config.shape.n_heads * g->m->config.shape.head_dim;
}

static size_t kv_dim(const struct kv_model_gpu *g)
{
    return g->m->config.shape.n_kv_heads * g->m->config.shape.head_dim;
}

static int want(struct kv_model_gpu *g, enum room r, size_t bytes,
                struct kv_err *e)
{
    return kv_device_workspace_want(&g->room[r], bytes, e);
}

/* Bytes that a pass takes, and what uses the model. */
static size_t beside_weights(const struct kv_model_gpu *g, size_t memory)
{
    const struct kv_config *c = &g->m->config;
    const size_t widest = c->inter > q_dim(g) ? c->inter : q_dim(g);
    const size_t rows =
        ROWS * (3 * c->inter + widest + c->hidden) * sizeof(float);

    return rows + 2 * LOGIT_BYTES + 2 * memory + slack;
}

int kv_model_gpu_new(struct kv_model_gpu **out, const struct kv_model *m,
                     const struct kv_device *d, size_t memory, struct kv_err *e)
{
    struct kv_model_gpu *g = kv_alloc(1, sizeof(*g));

    g->m = m;
    g->device = *d;
    if (kv_weights_gpu_new(&g->weights, m, d->free, beside_weights(g, memory),
                           e)) {
        kv_model_gpu_free(g);
        return kv_fail_in(e, "%s", m->info.name);
    }
    g->type = kv_weights_gpu_type(g->weights);
    *out = g;
    return 0;
}

void kv_model_gpu_free(struct kv_model_gpu *g)
{
    if (!g)
        return;
    for (enum room r = 0; r < ROOMS; r++)
        kv_device_workspace_clear(&g->room[r]);
    for (int side = 0; side < KV_SIDES; side++)
        free(g->until[side]);
    kv_weights_gpu_free(g->weights);
    free(g);
}

const struct kv_device *kv_model_gpu_device(const struct kv_model_gpu *g)
{
    return &g->device;
}

/* ---- a pass -------------------------------------------------------------- */

/* Tokens [at, at + rows) of all windows, in a layer. */
struct piece {
    struct kv_model_gpu *g;
    size_t layer, n, at, rows;
};

/* NULL when the layer has no such part. */
static const float *vector(const struct piece *p, enum kv_part part)
{
    return kv_weights_gpu_part(p->g->weights, p->layer, part);
}

/* The piece's row of a room of f32. */
static float *row_of(const struct piece *p, enum room r, size_t values)
{
    return (float *)p->g->room[r].p + p->at * values;
}

/* to [rows][outputs] (+)= INPUT times the matrix. */
static int multiply(const struct piece *p, enum kv_part part, float *to,
                    int add, struct kv_err *e)
{
    const struct kv_weight *w = p->g->m->weights.layer[p->layer].part[part];
    const size_t n = w->dims[0], k = w->dims[1];

    return kv_gpu_multiply(
        &(struct kv_gpu_product){
            .type = p->g->type,
            .c_type = KV_GPU_F32,
            .m = p->rows,
            .n = n,
            .k = k,
            .a = p->g->room[INPUT].p,
            .b = kv_weights_gpu_part(p->g->weights, p->layer, part),
            .c = to,
            .a_row = k,
            .b_row = k,
            .c_row = n,
            .add = add},
        e);
}

static int norm(const struct piece *p, enum kv_part part, struct kv_err *e)
{
    const struct kv_config *c = &p->g->m->config;

    return kv_gpu_rms_norm(row_of(p, X, c->hidden), vector(p, part), p->rows,
                           c->hidden, c->norm_eps, p->g->type,
                           p->g->room[INPUT].p, e);
}

/* x += the product of INPUT and a matrix, and its bias. */
static int add_to_stream(const struct piece *p, enum kv_part matrix,
                         enum kv_part bias, struct kv_err *e)
{
    const size_t hidden = p->g->m->config.hidden;
    float *x = row_of(p, X, hidden);

    if (multiply(p, matrix, x, 1, e))
        return -1;
    return vector(p, bias)
               ? kv_gpu_add_bias(x, vector(p, bias), p->rows, hidden, e)
               : 0;
}

static int before_attention(const struct piece *p, struct kv_err *e)
{
    const struct kv_model_gpu *g = p->g;
    const struct kv_shape *s = &g->m->config.shape;
    struct kv_gpu_heads q = {.rows = p->rows,
                             .first = p->at % p->n,
                             .n = p->n,
                             .heads = s->n_heads,
                             .head_dim = s->head_dim,
                             .n_rot = s->n_rot,
                             .x = row_of(p, Q, q_dim(g)),
                             .bias = vector(p, KV_P_Q_BIAS),
                             .norm = vector(p, KV_P_Q_NORM),
                             .eps = g->m->config.norm_eps,
                             .turns = g->room[TURNS].p,
                             .turned = row_of(p, Q, q_dim(g))};
    struct kv_gpu_heads k = q, v = q;

    k.heads = v.heads = s->n_kv_heads;
    k.x = row_of(p, K_PRE, kv_dim(g));
    k.bias = vector(p, KV_P_K_BIAS);
    k.norm = vector(p, KV_P_K_NORM);
    k.turned = row_of(p, K, kv_dim(g));
    v.x = row_of(p, V, kv_dim(g));
    v.bias = vector(p, KV_P_V_BIAS);
    v.norm = v.turned = NULL;
    return norm(p, KV_P_ATTN_NORM, e) || multiply(p, KV_P_Q, q.x, 0, e) ||
           multiply(p, KV_P_K, k.x, 0, e) || multiply(p, KV_P_V, v.x, 0, e) ||
           kv_gpu_rotate_heads(&q, e) || kv_gpu_rotate_heads(&k, e) ||
           kv_gpu_rotate_heads(&v, e);
}

static int after_attention(const struct piece *p, struct kv_err *e)
{
    const struct kv_model_gpu *g = p->g;
    const size_t inter = g->m->config.inter;
    float *gate = g->room[GATE].p, *up = g->room[UP].p;

    return kv_gpu_round(row_of(p, OUT, q_dim(g)), p->rows * q_dim(g), g->type,
                        g->room[INPUT].p, e) ||
           add_to_stream(p, KV_P_O, KV_P_O_BIAS, e) ||
           norm(p, KV_P_MLP_NORM, e) || multiply(p, KV_P_GATE, gate, 0, e) ||
           multiply(p, KV_P_UP, up, 0, e) ||
           kv_gpu_swiglu(gate, vector(p, KV_P_GATE_BIAS), up,
                         vector(p, KV_P_UP_BIAS), p->rows, inter, g->type,
                         g->room[INPUT].p, e) ||
           add_to_stream(p, KV_P_DOWN, KV_P_DOWN_BIAS, e);
}

/* Room for a pass over so many windows, and its table of angles. */
static int prepare(struct kv_model_gpu *g, size_t n_windows, size_t n,
                   size_t first, struct kv_err *e)
{
    const struct kv_config *c = &g->m->config;
    const size_t token = n_windows * n * sizeof(float);
    const size_t rows = ROWS < n_windows * n ? ROWS : n_windows * n;
    const size_t inter = rows * c->inter * sizeof(float);
    const size_t turns = 2 * c->shape.n_rot * sizeof(float);
    const size_t widest = c->inter > q_dim(g) ? c->inter : q_dim(g);
    const size_t input = widest > c->hidden ? widest : c->hidden;
    float *table;
    int rc;

    if (want(g, X, token * c->hidden, e) || want(g, Q, token * q_dim(g), e) ||
        want(g, K, token * kv_dim(g), e) ||
        want(g, K_PRE, token * kv_dim(g), e) ||
        want(g, V, token * kv_dim(g), e) || want(g, OUT, token * q_dim(g), e) ||
        want(g, TURNS, n * turns, e) || want(g, GATE, inter, e) ||
        want(g, UP, inter, e) ||
        want(g, INPUT, rows * input * kv_gpu_type_bytes(g->type), e))
        return -1;
    table = kv_alloc(n, turns);
    kv_rope_table(&c->shape, n, first, table);
    rc = kv_device_upload(g->room[TURNS].p, table, n * turns, e);
    free(table);
    return rc;
}

static int each_piece(struct kv_model_gpu *g, size_t layer, size_t n_windows,
                      size_t n,
                      int (*work)(const struct piece *, struct kv_err *),
                      struct kv_err *e)
{
    const size_t all = n_windows * n;
    struct piece p = {.g = g, .layer = layer, .n = n};

    for (; p.at < all; p.at += p.rows) {
        p.rows = all - p.at < ROWS ? all - p.at : ROWS;
        if (work(&p, e))
            return -1;
    }
    return 0;
}

/* Where attention on the host finds a layer. */
struct host {
    float *q, *k, *k_pre, *v, *out;
};

static int bring(const struct kv_model_gpu *g, const struct host *h,
                 struct kv_qkv *x, struct kv_err *e)
{
    const size_t tokens = x->n_windows * x->n * sizeof(float);
    const size_t q = tokens * q_dim(g), kv = tokens * kv_dim(g);

    x->q = h->q;
    x->k = h->k;
    x->k_pre = h->k_pre;
    x->v = h->v;
    x->out = h->out;
    return kv_device_download(h->q, g->room[Q].p, q, e) ||
           kv_device_download(h->k, g->room[K].p, kv, e) ||
           kv_device_download(h->k_pre, g->room[K_PRE].p, kv, e) ||
           kv_device_download(h->v, g->room[V].p, kv, e);
}

static int attend(struct kv_model_gpu *g, const struct host *h,
                  struct kv_qkv *x, const struct kv_attention *a,
                  struct kv_err *e)
{
    const size_t tokens = x->n_windows * x->n * sizeof(float);

    if (!a)
        return kv_model_gpu_attend(x, NULL, e);
    if (!(a->there && a->there(a->arg, x->layer)) && bring(g, h, x, e))
        return -1;
    g->attended = false;
    if (a->run(a->arg, x, e))
        return -1;
    return g->attended
               ? 0
               : kv_device_upload(g->room[OUT].p, h->out, tokens * q_dim(g), e);
}

static int run_layers(struct kv_model_gpu *g, const struct host *h,
                      size_t n_windows, size_t n, size_t first,
                      const struct kv_attention *attention, struct kv_err *e)
{
    for (size_t l = 0; l < g->m->config.shape.n_layers; l++) {
        struct kv_qkv x = {.shape = &g->m->config.shape,
                           .layer = l,
                           .n_windows = n_windows,
                           .n = n,
                           .first = first,
                           .gpu = g,
                           .gpu_k = g->room[K].p,
                           .gpu_k_pre = g->room[K_PRE].p,
                           .gpu_v = g->room[V].p};

        if (kv_weights_gpu_load(g->weights, l, e) ||
            each_piece(g, l, n_windows, n, before_attention, e) ||
            attend(g, h, &x, attention, e) ||
            each_piece(g, l, n_windows, n, after_attention, e) ||
            kv_interrupted(e))
            return -1;
    }
    return 0;
}

int kv_model_gpu_forward(struct kv_model_gpu *g, size_t n_windows, size_t n,
                         size_t first, const struct kv_attention *attention,
                         float *hidden, struct kv_err *e)
{
    const struct kv_config *c = &g->m->config;
    const size_t tokens = n_windows * n;
    const size_t bytes = tokens * c->hidden * sizeof(*hidden);
    const size_t on_host = attention ? tokens : 0;
    const struct host h = {
        .q = kv_alloc(on_host, q_dim(g) * sizeof(float)),
        .k = kv_alloc(on_host, kv_dim(g) * sizeof(float)),
        .k_pre = kv_alloc(on_host, kv_dim(g) * sizeof(float)),
        .v = kv_alloc(on_host, kv_dim(g) * sizeof(float)),
        .out = kv_alloc(on_host, q_dim(g) * sizeof(float)),
    };
    int rc = -1;

    if (prepare(g, n_windows, n, first, e) ||
        kv_device_upload(g->room[X].p, hidden, bytes, e) ||
        run_layers(g, &h, n_windows, n, first, attention, e) ||
        kv_gpu_rms_norm(g->room[X].p, kv_weights_gpu_norm(g->weights), tokens,
                        c->hidden, c->norm_eps, KV_GPU_F32, g->room[X].p, e) ||
        kv_device_download(hidden, g->room[X].p, bytes, e))
        goto out;
    rc = 0;
out:
    free(h.q);
    free(h.k);
    free(h.k_pre);
    free(h.v);
    free(h.out);
    return rc;
}

/* ---- attention ----------------------------------------------------------- */

static enum room form_room(enum kv_side side, bool quantized)
{
    return (enum room)(FORMS + 2 * side + quantized);
}

static size_t form_bytes(const struct kv_qkv *x)
{
    return x->n_windows * x->n * kv_dim(x->gpu) * sizeof(float);
}

int kv_model_gpu_room(const struct kv_qkv *x, enum kv_side side, bool quantized,
                      float **room, struct kv_err *e)
{
    const enum room r = form_room(side, quantized);

    if (want(x->gpu, r, form_bytes(x), e))
        return -1;
    *room = x->gpu->room[r].p;
    return 0;
}

int kv_model_gpu_turn(const struct kv_qkv *x, float *k, struct kv_err *e)
{
    return kv_gpu_rotate_heads(
        &(struct kv_gpu_heads){.rows = x->n_windows * x->n,
                               .n = x->n,
                               .heads = x->shape->n_kv_heads,
                               .head_dim = x->shape->head_dim,
                               .n_rot = x->shape->n_rot,
                               .x = k,
                               .turns = x->gpu->room[TURNS].p,
                               .turned = k},
        e);
}

/* A form of all windows' keys or values; NULL stays NULL. */
static int put_form(const struct kv_qkv *x, enum kv_side side, bool quantized,
                    const float *from, bool there, const float **to,
                    struct kv_err *e)
{
    float *room;

    *to = from;
    if (!from || there)
        return 0;
    if (kv_model_gpu_room(x, side, quantized, &room, e) ||
        kv_device_upload(room, from, form_bytes(x), e))
        return -1;
    *to = room;
    return 0;
}

/* What is there already, as for most layers, is not sent again. */
static int put_until(const struct kv_qkv *x, enum kv_side side,
                     const uint32_t *from, const uint32_t **to,
                     struct kv_err *e)
{
    struct kv_model_gpu *g = x->gpu;
    const enum room r = (enum room)(UNTIL + side);
    const size_t bytes = x->n * sizeof(*from);

    if (!from)
        return 0;
    if (g->n_until[side] != x->n || memcmp(g->until[side], from, bytes)) {
        g->n_until[side] = 0;
        if (want(g, r, bytes, e) ||
            kv_device_upload(g->room[r].p, from, bytes, e))
            return -1;
        g->until[side] = kv_realloc(g->until[side], x->n, sizeof(*from));
        memcpy(g->until[side], from, bytes);
        g->n_until[side] = x->n;
    }
    *to = g->room[r].p;
    return 0;
}

static int put_side(const struct kv_qkv *x, const struct kv_forms *f,
                    enum kv_side side, struct kv_attend_side *to,
                    struct kv_err *e)
{
    *to = (struct kv_attend_side){.sinks = f->sinks[side]};
    if (put_form(x, side, false, f->unquantized[side], f->there,
                 &to->unquantized, e) ||
        put_form(x, side, true, f->quantized[side], f->there, &to->quantized,
                 e) ||
        put_until(x, side, f->until[side], &to->until, e))
        return -1;
    to->until = to->until ? to->until + f->exact : NULL;
    return 0;
}

int kv_model_gpu_attend(const struct kv_qkv *x, const struct kv_forms *f,
                        struct kv_err *e)
{
    struct kv_model_gpu *g = x->gpu;
    const struct kv_shape *s = x->shape;
    const size_t exact = f ? f->exact : x->n;
    struct kv_attend_job a = {.view = kv_shape_view(s, x->n, 0, exact),
                              .q = g->room[Q].p,
                              .out = g->room[OUT].p,
                              .q_rows = x->n,
                              .k = {.unquantized = g->room[K].p},
                              .v = {.unquantized = g->room[V].p}};

    a.view.n_seqs = x->n_windows;
    if (exact && kv_gpu_attend_views(&a, e))
        return -1;
    a.view.first = exact;
    a.view.nq = x->n - exact;
    a.q += exact * s->n_heads * s->head_dim;
    a.out += exact * s->n_heads * s->head_dim;
    if (a.view.nq &&
        (put_side(x, f, KV_K, &a.k, e) || put_side(x, f, KV_V, &a.v, e) ||
         (f->codes ? kv_gpu_attend_hack(&a, f->codes, e)
                   : kv_gpu_attend_views(&a, e))))
        return -1;
    g->attended = true;
    return 0;
}

/* ---- logits -------------------------------------------------------------- */

/* Rows of logits that are held at once. */
static size_t logit_rows(const struct kv_model_gpu *g)
{
    const size_t rows = LOGIT_BYTES / (g->m->config.n_vocab * sizeof(float));

    return rows < 1 ? 1 : rows < ROWS ? rows : ROWS;
}

/* Of n rows, at most logit_rows(), to the room. */
static int make_logits(struct kv_model_gpu *g, const float *hidden, size_t n,
                       enum room to, struct kv_err *e)
{
    const size_t h = g->m->config.hidden, n_vocab = g->m->config.n_vocab;

    if (want(g, X, n * h * sizeof(*hidden), e) ||
        want(g, INPUT, n * h * kv_gpu_type_bytes(g->type), e) ||
        want(g, to, n * n_vocab * sizeof(float), e) ||
        kv_device_upload(g->room[X].p, hidden, n * h * sizeof(*hidden), e) ||
        kv_gpu_round(g->room[X].p, n * h, g->type, g->room[INPUT].p, e))
        return -1;
    return kv_gpu_multiply(
        &(struct kv_gpu_product){.type = g->type,
                                 .c_type = KV_GPU_F32,
                                 .m = n,
                                 .n = n_vocab,
                                 .k = h,
                                 .a = g->room[INPUT].p,
                                 .b = kv_weights_gpu_head(g->weights),
                                 .c = g->room[to].p,
                                 .a_row = h,
                                 .b_row = h,
                                 .c_row = n_vocab},
        e);
}

int kv_model_gpu_logits(struct kv_model_gpu *g, const float *hidden, size_t n,
                        float *logits, struct kv_err *e)
{
    const size_t h = g->m->config.hidden, n_vocab = g->m->config.n_vocab;
    const size_t most = logit_rows(g);

    for (size_t t = 0; t < n; t += most) {
        const size_t rows = n - t < most ? n - t : most;

        if (make_logits(g, hidden + t * h, rows, LOGITS, e) ||
            kv_device_download(logits + t * n_vocab, g->room[LOGITS].p,
                               rows * n_vocab * sizeof(*logits), e))
            return -1;
    }
    return kv_interrupted(e);
}

int kv_model_gpu_losses(struct kv_model_gpu *g, const float *hidden,
                        const float *base, size_t n, const int32_t *target,
                        struct kv_gpu_loss *loss, struct kv_err *e)
{
    const size_t h = g->m->config.hidden, n_vocab = g->m->config.n_vocab;
    const size_t most = logit_rows(g);

    for (size_t t = 0; t < n; t += most) {
        const size_t rows = n - t < most ? n - t : most;

        if (make_logits(g, hidden + t * h, rows, LOGITS, e) ||
            (base && make_logits(g, base + t * h, rows, BASE_LOGITS, e)) ||
            want(g, TARGETS, rows * sizeof(*target), e) ||
            want(g, LOSSES, rows * sizeof(*loss), e) ||
            kv_device_upload(g->room[TARGETS].p, target + t,
                             rows * sizeof(*target), e) ||
            kv_gpu_score(
                g->room[LOGITS].p, base ? g->room[BASE_LOGITS].p : NULL,
                g->room[TARGETS].p, rows, n_vocab, g->room[LOSSES].p, e) ||
            kv_device_download(loss + t, g->room[LOSSES].p,
                               rows * sizeof(*loss), e))
            return -1;
    }
    return kv_interrupted(e);
}
