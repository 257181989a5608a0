#include "lib/schemes/klt.h"
#include "kernels/device_code.h"
#include "kernels/tiles/rope.h"
#include "kernels/vecops/vecops.h"
#include "lib/base/alloc.h"
#include "lib/calib.h"
#include "lib/schemes/klt_impl.h"
#include "lib/schemes/klt_short.h"
#include "lib/schemes/schemes.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const struct kv_param params[] = {
    {"b", NULL, 2, 0.0625, 8, false, "bits per value, fractions too"},
    {"share", "auto|layer|side|all", 0, 0, 0, false,
     "budget of a layer's side, of a side, of K and V of all layers; auto: "
     "all with metric=fisher, else layer"},
    {"metric", "attention|fisher|none", 1, 0, 0, true,
     "error counts by queries and Wo, by the loss's gradient, or as it is"},
    {"rope", "pre|post", 0, 0, 0, true, "keys are stored before or after RoPE"},
    {"pred", "0|1|2|vk|pair", 0, 0, 0, true,
     "what a token is predicted from: the layers below (1, 2; then none is "
     "read in place), values from the layer's own keys (vk), and odd layers "
     "from the even one below (pair)"},
    {"heads", "joint|own", 0, 0, 0, true,
     "a layer's heads are transformed together, or each by itself: attention "
     "is faster, errors are larger"},
    {"tables", "half|short", 0, 0, 0, true,
     "tables in fp16, or short ones, made for b: a few bits a number, of coded "
     "coefficients alone"},
    {"code", "trellis|scalar", 0, 0, 0, false,
     "coefficients on a trellis, or by Lloyd-Max levels"},
    {0},
};

static int klt_check(struct kv_spec *s, const struct kv_shape *shape,
                     struct kv_err *e)
{
    static const char *const both[] = {"share", "metric", "rope",  "heads",
                                       "code",  "pred",   "tables"};
    const bool fisher = kv_spec_is(s, KV_K, "metric", "fisher");

    (void)shape;
    for (size_t i = 0; i < sizeof(both) / sizeof(*both); i++)
        if (kv_spec_get(s, KV_V, both[i]) != kv_spec_get(s, KV_K, both[i]))
            return kv_fail(e, "%s is one for K and V", both[i]);
    for (int side = 0; side < KV_SIDES; side++)
        if (kv_spec_is(s, (enum kv_side)side, "share", "auto"))
            kv_spec_set(s, (enum kv_side)side, "share", fisher ? 3 : 1);
    if (!kv_spec_is(s, KV_K, "pred", "0") &&
        (!fisher || !kv_spec_is(s, KV_K, "share", "all")))
        return kv_fail(e, "pred wants metric=fisher and share=all: its layers "
                          "are fitted to one water level");
    if (!fisher && !kv_spec_is(s, KV_K, "share", "layer"))
        return kv_fail(e,
                       "share=%s weighs layers against each other, which "
                       "only metric=fisher can",
                       kv_spec_is(s, KV_K, "share", "all") ? "all" : "side");
    return 0;
}

static double klt_nominal(const struct kv_spec *s, enum kv_side side,
                          const struct kv_shape *shape)
{
    (void)shape;
    return kv_spec_get(s, side, "b");
}

size_t kv_klt_part(const struct kv_spec *s, const struct kv_shape *shape)
{
    return kv_spec_is(s, KV_K, "heads", "own")
               ? shape->head_dim
               : shape->n_kv_heads * shape->head_dim;
}

/* ---- the codec --------------------------------------------------------- */

/* Copies a table [row]; returns NULL and fails if there is none. */
static float *load_row(const struct kv_codec *c, const struct kv_calib_set *set,
                       const char *name, struct kv_err *e)
{
    const size_t row = kv_codec_row(c);
    const struct kv_table *t = kv_calib_want(c, set, name, 0, 1, &row, e);
    float *x = NULL;

    if (t) {
        x = kv_alloc(row, sizeof(*x));
        memcpy(x, t->data, row * sizeof(*x));
    }
    return x;
}

/* Makes a matrix [row][row] from a table that holds only the matrix's parts;
 * returns NULL and fails if there is none. */
static float *load_square(const struct klt *k, const struct kv_codec *c,
                          const struct kv_calib_set *set, const char *name,
                          struct kv_err *e)
{
    const size_t row = k->row, part = k->part;
    const size_t dims[] = {row / part, part, part};
    const bool all = part == row;
    const struct kv_table *t =
        kv_calib_want(c, set, name, 0, all ? 2 : 3, dims + all, e);
    float *x = NULL;

    if (t) {
        x = kv_alloc(row, row * sizeof(*x));
        for (size_t i = 0; i < row * part; i++)
            x[i / part * row + i / part / part * part + i % part] = t->data[i];
    }
    return x;
}

/* forward: whether the codec encodes. */
static int load_transform(struct klt *k, const struct kv_codec *c,
                          const struct kv_calib_set *set, bool forward,
                          struct kv_err *e)
{
    const size_t row = k->row;
    const struct kv_table *unit;

    if (kv_klt_is_short(&c->spec)) {
        k->forward = forward ? kv_alloc(row, row * sizeof(float)) : NULL;
        k->inverse = kv_alloc(row, row * sizeof(float));
        return kv_klt_short_load(c, set, &k->coding, k->part, k->forward,
                                 k->inverse, e);
    }
    if (!(unit = kv_calib_want(c, set, "unit", 0, 1, &row, e)) ||
        (forward && !(k->forward = load_square(k, c, set, "forward", e))) ||
        !(k->inverse = load_square(k, c, set, "inverse", e)))
        return -1;
    for (size_t i = 0; i < row * row; i++) {
        if (forward)
            k->forward[i] *= unit->data[i % row];
        k->inverse[i] /= unit->data[i / row];
    }
    return 0;
}

/* Loads the tables of a codec's layer and side, without neighbours. */
static int load_place(struct klt *k, const struct kv_codec *c,
                      const struct kv_calib_set *set,
                      const struct kv_klt_numbers *numbers, bool forward,
                      struct kv_err *e)
{
    k->d = c->shape.head_dim;
    k->n_heads = c->shape.n_kv_heads;
    k->row = kv_codec_row(c);
    k->part = kv_klt_part(&c->spec, &c->shape);
    if (!kv_calib_want(c, set, "sigma", 0, 1, &k->row, e) ||
        !(k->mean = load_row(c, set, "mean", e)))
        return -1;
    kv_klt_coding_init(&k->coding, c, set, numbers);
    if (load_transform(k, c, set, forward, e) ||
        (c->layered && kv_klt_pred_load(&k->pred, c, set, e)))
        return -1;
    for (size_t i = 0; i < k->coding.n_coded; i++)
        k->used = kv_max(k->used, k->coding.place[i] % k->part + 1);
    return 0;
}

static void encode_near(const struct kv_codec *c, struct kv_where w,
                        const struct kv_neighbours *at, const float *x,
                        size_t n_blocks, uint8_t *bytes);
static void decode_near(const struct kv_codec *c,
                        const struct kv_neighbours *at, const uint8_t *bytes,
                        size_t n_blocks, float *x);

#define NEAR .encode = encode_near, .decode = decode_near
static const struct kv_layered *layered(const struct kv_spec *s, size_t layer)
{
    static const struct kv_layered below[] = {{.n_below = 1, NEAR},
                                              {.n_below = 2, NEAR}};
    static const struct kv_layered in_place[] = {
        {.n_below = 0, .in_place = true, NEAR, .tile = kv_klt_tile_near},
        {.n_below = 1, .in_place = true, NEAR, .tile = kv_klt_tile_near}};

    if (kv_spec_is(s, KV_K, "pred", "0"))
        return NULL;
    if (kv_spec_is(s, KV_K, "pred", "vk"))
        return &in_place[0];
    if (kv_spec_is(s, KV_K, "pred", "pair"))
        return &in_place[layer % 2];
    return &below[kv_spec_is(s, KV_K, "pred", "2")];
}
#undef NEAR

/* Loads the neighbours that attention in place reads. */
static int load_near(struct klt *k, const struct kv_codec *c,
                     const struct kv_calib_set *set, struct kv_err *e)
{
    for (size_t i = 0; i < k->pred.n_sources; i++) {
        const bool own = i == KV_SIDES * c->layered->n_below;
        struct kv_codec near = *c;

        near.side = own ? KV_K : (enum kv_side)(i % KV_SIDES);
        near.layer -= own ? 0 : 1 + i / KV_SIDES;
        near.layered = layered(&c->spec, near.layer);
        k->near[i] = kv_alloc(1, sizeof(*k->near[i]));
        if (load_place(k->near[i], &near, set, &k->numbers, false, e))
            return -1;
    }
    return 0;
}

static int open_klt(struct kv_codec *c, const struct kv_calib *calib,
                    struct kv_err *e)
{
    const struct kv_calib_set *set;
    struct klt *k = kv_alloc(1, sizeof(*k));

    c->state = k;
    c->block = 1;
    if (kv_calib_want_set(&set, calib, &c->spec, e) ||
        kv_klt_numbers_load(&k->numbers, c, set, e) ||
        load_place(k, c, set, &k->numbers, true, e) ||
        (c->layered && c->layered->in_place && load_near(k, c, set, e)))
        return -1;
    c->block_bytes = k->coding.bytes;
    c->partial = kv_klt_is_short(&c->spec);
    c->pre_rope = c->side == KV_K && kv_spec_is(&c->spec, KV_K, "rope", "pre");
    return 0;
}

static void free_place(struct klt *k)
{
    if (!k)
        return;
    for (size_t i = 0; i < KV_KLT_SOURCES; i++)
        free_place(k->near[i]);
    kv_klt_numbers_clear(&k->numbers);
    kv_klt_coding_clear(&k->coding);
    kv_klt_pred_clear(&k->pred);
    free(k->mean);
    free(k->forward);
    free(k->inverse);
    kv_transform_free(k->transform);
    kv_tiles_rope_free(k->rope);
    free(k);
}

static void close_klt(struct kv_codec *c)
{
    free_place(c->state);
}

enum { TOGETHER = 16 }; /* tokens */

/* Computes the prediction x [n][row] that is subtracted from tokens before
 * coding: the mean plus the prediction from neighbours at (NULL: none), from
 * token `first` on. */
static void predict(const struct klt *k, const struct kv_neighbours *at,
                    size_t first, size_t n, float *x)
{
    for (size_t i = 0; i < n; i++)
        memcpy(x + i * k->row, k->mean, k->row * sizeof(*x));
    if (at)
        kv_klt_pred_add(&k->pred, at, first, n, x);
}

/* Computes the coefficients y [n][row] of the residual x - from of n tokens:
 * all of them, or those in use, rounded up to whole vectors, and zeros for the
 * others.  from becomes the residual. */
static void transform(const struct klt *k, bool all, size_t n, const float *x,
                      float *from, float *y)
{
    const size_t row = k->row;
    const size_t used =
        all ? k->part : kv_min(kv_round_up(k->used, 16), k->part);

    memset(y, 0, n * row * sizeof(*y));
    for (size_t i = 0; i < n * row; i++)
        from[i] = x[i] - from[i];
    for (size_t i = 0; i < row; i += k->part)
        kv_vecops_times(from + i, row, n, k->forward + i * row + i, k->part,
                        row, used, y + i, row);
}

static void coefficients(const struct kv_codec *c, const float *x, size_t n,
                         float *y)
{
    const size_t values = n * kv_codec_block_values(c);
    float *from = kv_alloc(values, sizeof(*from));

    predict(c->state, NULL, 0, n, from);
    transform(c->state, true, n, x, from, y);
    free(from);
}

/* Adds the inverse transform of y to x. */
static void transform_back(const struct klt *k, const float *y, size_t n,
                           float *x)
{
    const size_t row = k->row;

    for (size_t i = 0; i < row; i += k->part)
        kv_vecops_times(y + i, row, n, k->inverse + i * row + i, k->used, row,
                        k->part, x + i, row);
}

static void encode_near(const struct kv_codec *c, struct kv_where w,
                        const struct kv_neighbours *at, const float *x,
                        size_t n_blocks, uint8_t *bytes)
{
    const struct klt *k = c->state;
    const struct kv_klt_coding *g = &k->coding;
    const size_t row = kv_codec_block_values(c);
    const size_t max = kv_min(n_blocks, TOGETHER);
    float *from = kv_alloc(max, row * sizeof(*from));
    float *y = kv_alloc(max, row * sizeof(*y));
    void *workspace = kv_lines_unset(
        kv_trellis_workspace(g->transition, g->n_transitions, n_blocks), 1);

    (void)w;
    if (!g->n_coded)
        memset(bytes, 0, n_blocks * c->block_bytes);
    for (size_t t = 0; t < n_blocks; t += TOGETHER) {
        const size_t n = kv_min(n_blocks - t, max);

        predict(k, at, t, n, from);
        transform(k, false, n, x + t * row, from, y);
        kv_trellis_encode(g->transition, g->n_transitions, y, row, g->place,
                          g->whole, n, workspace, bytes + t * c->block_bytes,
                          c->block_bytes);
    }
    free(workspace);
    free(y);
    free(from);
}

static void klt_encode(const struct kv_codec *c, struct kv_where w,
                       const float *x, size_t n_blocks, uint8_t *bytes)
{
    encode_near(c, w, NULL, x, n_blocks, bytes);
}

static void decode_near(const struct kv_codec *c,
                        const struct kv_neighbours *at, const uint8_t *bytes,
                        size_t n_blocks, float *x)
{
    const struct klt *k = c->state;
    const struct kv_klt_coding *g = &k->coding;
    const size_t row = kv_codec_block_values(c);
    const size_t max = kv_min(n_blocks, TOGETHER);
    const bool upward = at && c->layered->n_below;
    float *y = kv_alloc(max, row * sizeof(*y));

    for (size_t t = 0; t < n_blocks; t += TOGETHER) {
        const size_t n = kv_min(n_blocks - t, max);

        kv_trellis_decode(g->transition, g->n_transitions,
                          bytes + t * c->block_bytes, c->block_bytes, g->sigma,
                          n, y, row, g->place);
        predict(k, at, t, n, x + t * row);
        transform_back(k, y, n, x + t * row);
        for (size_t i = t * row; upward && i < (t + n) * row; i++)
            x[i] = fminf(fmaxf(x[i], -65504), 65504); /* no infinity for upper
                                                       * layers */
    }
    free(y);
}

static void klt_decode(const struct kv_codec *c, const uint8_t *bytes,
                       size_t n_blocks, float *x)
{
    decode_near(c, NULL, bytes, n_blocks, x);
}

/* Whether a parameter is in the calibration's key: predictions are fitted on
 * features decoded at these bits, and short tables hold only coefficients that
 * are coded. */
static bool in_key(const struct kv_spec *s, const struct kv_param *p)
{
    const bool is_short = kv_klt_is_short(s);

    if (!strcmp(p->name, "b"))
        return is_short || layered(s, 0);
    return is_short && (!strcmp(p->name, "share") || !strcmp(p->name, "code"));
}

static bool klt_device(const struct kv_codec *c, struct kv_gpu_code *to)
{
    const struct klt *k = c->state;
    const struct kv_klt_coding *g = &k->coding;

    to->coding = KV_GPU_BITSTREAMS;
    to->bitstreams = (struct kv_gpu_bitstreams){
        .coef = g->listed,
        .transitions = g->runs,
        .whole = g->whole,
        .tables = k->numbers.table,
        .mean = k->mean,
        .forward = k->forward,
        .inverse = k->inverse,
        .n_used = g->n_used,
        .n_coefs = (unsigned)g->n_coded,
        .n_runs = g->n_runs,
        .n_transitions = (unsigned)g->n_transitions,
        .n_bits = g->n_bits,
        .n_tables = (size_t)2 * KV_KLT_KINDS * KV_TRELLIS_MAX_VALUES *
                    KV_TRELLIS_STATES};
    return k->row <= KV_GPU_MAX_ROW;
}

/* All layers are trained together: the trellis is trained on coefficients of
 * all layers. */
static bool klt_together(const struct kv_spec *s)
{
    (void)s;
    return true;
}

const struct kv_scheme kv_scheme_klt = {
    .name = "klt",
    .newer = "heads|tables",
    .brief = "transform coding in the metric of attention, on a trellis",
    .params = params,
    .residual_rule = {KV_SLIDING, KV_SLIDING},
    .check = klt_check,
    .nominal = klt_nominal,
    .training = &(const struct kv_training){.check_dump = kv_klt_trainable,
                                            .calibrate = kv_klt_calibrate,
                                            .together = klt_together},
    .in_key = in_key,
    .layered = layered,
    .open = open_klt,
    .close = close_klt,
    .encode = klt_encode,
    .decode = klt_decode,
    .coefficients = coefficients,
    .device = klt_device,
    .store = kv_klt_store,
    .tile = kv_klt_tile,
};
