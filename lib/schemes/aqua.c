#include "lib/schemes/aqua.h"
#include "kernels/vecops/vecops.h"
#include "lib/base/alloc.h"
#include "lib/calib.h"
#include "lib/schemes/schemes.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const struct kv_param params[] = {
    {"d", NULL, 2, 1, 8, true, "values of a code"},
    {"n", NULL, 16, 2, 4096, true, "points, a power of two: log2(n) / d bits"},
    {"g", NULL, 1024, 1, 4096, true, "values rotated together, of a token"},
    {0},
};

struct aqua {
    struct kv_higgs higgs;
    size_t n_features;
    float *weight; /* [n_features][row], then the bias; NULL: the lowest */
};

unsigned kv_aqua_bits(size_t n)
{
    unsigned bits = 0;

    while (n > 1 && n % 2 == 0) {
        n /= 2;
        bits++;
    }
    return n == 1 ? bits : 0;
}

static int aqua_check(struct kv_spec *s, const struct kv_shape *shape,
                      struct kv_err *e)
{
    static const char *const shared[] = {"d", "n", "g"};
    const size_t row = shape->n_kv_heads * shape->head_dim;

    for (size_t i = 0; i < sizeof(shared) / sizeof(*shared); i++)
        if (kv_spec_get(s, KV_K, shared[i]) != kv_spec_get(s, KV_V, shared[i]))
            return kv_fail(e,
                           "%s is one for K and V, which have one set of "
                           "points",
                           shared[i]);
    for (int side = 0; side < KV_SIDES; side++)
        kv_spec_set(s, (enum kv_side)side, "g",
                    (double)kv_higgs_run(
                        row, kv_spec_size(s, (enum kv_side)side, "g")));

    const size_t run = kv_spec_size(s, KV_K, "g");

    if (!kv_aqua_bits(kv_spec_size(s, KV_K, "n")))
        return kv_fail(e, "n=%zu: expected a power of two",
                       kv_spec_size(s, KV_K, "n"));
    if (run % kv_spec_size(s, KV_K, "d") || run % KV_AQUA_LOW_D)
        return kv_fail(e,
                       "d=%zu, and %d of the lowest layer, must divide the run "
                       "of %zu values",
                       kv_spec_size(s, KV_K, "d"), KV_AQUA_LOW_D, run);
    return 0;
}

static double aqua_nominal(const struct kv_spec *s, enum kv_side side,
                           const struct kv_shape *shape)
{
    const double bits =
        kv_aqua_bits(kv_spec_size(s, side, "n")) / kv_spec_get(s, side, "d");
    const double low = (double)kv_aqua_bits(KV_AQUA_LOW_N) / KV_AQUA_LOW_D;

    return bits + (low - bits) / (double)shape->n_layers +
           16 / kv_spec_get(s, side, "g");
}

/* x [n][row] gets the prediction of the first n tokens of at; zeros in the
 * lowest layer. */
static void aqua_predict(const struct kv_codec *c,
                         const struct kv_neighbours *at, size_t n, float *x)
{
    const struct aqua *a = c->state;
    const size_t row = kv_codec_row(c);
    const float *source[2] = {at->below[0][KV_K], at->below[0][KV_V]};

    if (c->side == KV_V)
        source[0] = at->own_k;
    memset(x, 0, n * row * sizeof(*x));
    if (!a->weight)
        return;
    for (size_t t = 0; t < n; t++)
        memcpy(x + t * row, a->weight + a->n_features * row, row * sizeof(*x));
    for (size_t i = 0; i * row < a->n_features; i++)
        kv_vecops_times(source[i], row, n, a->weight + i * row * row, row, row,
                        row, x, row);
}

static void encode_near(const struct kv_codec *c, struct kv_where w,
                        const struct kv_neighbours *at, const float *x,
                        size_t n, uint8_t *bytes)
{
    const struct aqua *a = c->state;
    const size_t row = kv_codec_row(c);
    float *rest = kv_alloc(n, row * sizeof(*rest));

    (void)w;
    aqua_predict(c, at, n, rest);
    for (size_t i = 0; i < n * row; i++)
        rest[i] = x[i] - rest[i];
    for (size_t t = 0; t < n; t++)
        kv_higgs_encode(&a->higgs, rest + t * row, bytes + t * c->block_bytes);
    free(rest);
}

static void decode_near(const struct kv_codec *c,
                        const struct kv_neighbours *at, const uint8_t *bytes,
                        size_t n, float *x)
{
    const struct aqua *a = c->state;
    const size_t row = kv_codec_row(c);
    float *rest = kv_alloc(row, sizeof(*rest));

    aqua_predict(c, at, n, x);
    for (size_t t = 0; t < n; t++, x += row) {
        kv_higgs_decode(&a->higgs, bytes + t * c->block_bytes, rest);
        for (size_t i = 0; i < row; i++) /* no infinity for upper layers */
            x[i] = fminf(fmaxf(x[i] + rest[i], -65504), 65504);
    }
    free(rest);
}

static const struct kv_layered *aqua_layered(const struct kv_spec *s,
                                             size_t layer)
{
    static const struct kv_layered one = {
        .n_below = 1, .encode = encode_near, .decode = decode_near};

    (void)s;
    (void)layer;
    return &one;
}

/* Loads the predictor, in layers above the lowest. */
static int load_weight(struct aqua *a, const struct kv_codec *c,
                       const struct kv_calib_set *set, struct kv_err *e)
{
    const size_t row = kv_codec_row(c);
    const size_t dims[] = {(c->side == KV_V ? 2 : 1) * row + 1, row};
    const struct kv_table *t;

    if (!c->layer)
        return 0;
    if (!(t = kv_calib_want(c, set, "predictor", 0, 2, dims, e)))
        return -1;
    a->n_features = dims[0] - 1;
    a->weight = kv_lines(dims[0], row * sizeof(*a->weight));
    memcpy(a->weight, t->data, dims[0] * row * sizeof(*a->weight));
    return 0;
}

static int open_aqua(struct kv_codec *c, const struct kv_calib *calib,
                     struct kv_err *e)
{
    const size_t n = kv_spec_size(&c->spec, c->side, "n");
    const size_t d = kv_spec_size(&c->spec, c->side, "d");
    const size_t dims[] = {c->layer ? n : KV_AQUA_LOW_N,
                           c->layer ? d : KV_AQUA_LOW_D};
    const struct kv_calib_set *set;
    const struct kv_table *points;
    struct aqua *a = kv_alloc(1, sizeof(*a));

    c->state = a;
    if (kv_calib_want_set(&set, calib, &c->spec, e) ||
        !(points = kv_calib_want(c, set, c->layer ? "points" : "points_low", 0,
                                 2, dims, e)) ||
        load_weight(a, c, set, e))
        return -1;
    kv_higgs_init(&a->higgs, kv_codec_row(c),
                  kv_spec_size(&c->spec, c->side, "g"), dims[1],
                  kv_aqua_bits(dims[0]), points->data);
    c->pre_rope = c->side == KV_K;
    c->block = 1;
    c->block_bytes = a->higgs.bytes;
    return 0;
}

static void close_aqua(struct kv_codec *c)
{
    struct aqua *a = c->state;

    if (!a)
        return;
    kv_higgs_clear(&a->higgs);
    free(a->weight);
    free(a);
}

const struct kv_scheme kv_scheme_aqua = {
    .name = "aqua",
    .brief = "AQUA-KV: predicted from the layer below, the rest by HIGGS",
    .params = params,
    .sinks = 4,
    .residual = 128,
    .residual_rule = {KV_BATCHED, KV_BATCHED},
    .check = aqua_check,
    .nominal = aqua_nominal,
    .training = &kv_aqua_training,
    .layered = aqua_layered,
    .open = open_aqua,
    .close = close_aqua,
};
