#include "tests/stacked.h"
#include "lib/base/half.h"
#include "lib/scheme.h"

#include <math.h>
#include <string.h>

/* The prediction of value i from a token's neighbours. */
static float predicted(const struct kv_neighbours *at, enum kv_side side,
                       size_t i)
{
    const float *near = at->below[0][side], *far = at->below[1][KV_V];

    return (at->own_k ? 0.25f * at->own_k[i] : 0) +
           (near ? 0.5f * near[i] : 0) + (far ? 0.125f * far[i] : 0);
}

/* One token: | scale: f16 | 8 bits a value |. */
static void encode(const struct kv_codec *c, struct kv_where w,
                   const struct kv_neighbours *at, const float *x, size_t n,
                   uint8_t *bytes)
{
    const size_t row = kv_codec_row(c);

    (void)w;
    for (size_t t = 0; t < n; t++, bytes += c->block_bytes) {
        float max = 0, scale;

        for (size_t i = t * row; i < (t + 1) * row; i++)
            max = fmaxf(max, fabsf(x[i] - predicted(at, c->side, i)));
        scale = kv_f16_put(bytes, max / 127);
        for (size_t i = t * row; i < (t + 1) * row; i++) {
            const float y = x[i] - predicted(at, c->side, i);
            const float q = scale > 0 ? roundf(y / scale) : 0;

            bytes[2 + i - t * row] =
                (uint8_t)(int8_t)fmaxf(fminf(q, 127), -127);
        }
    }
}

static void decode(const struct kv_codec *c, const struct kv_neighbours *at,
                   const uint8_t *bytes, size_t n, float *x)
{
    const size_t row = kv_codec_row(c);

    for (size_t t = 0; t < n; t++, bytes += c->block_bytes) {
        uint16_t half;

        memcpy(&half, bytes, sizeof(half));
        for (size_t i = t * row; i < (t + 1) * row; i++)
            x[i] = predicted(at, c->side, i) +
                   kv_f16_to_f32(half) * (float)(int8_t)bytes[2 + i - t * row];
    }
}

static const struct kv_layered *layered(const struct kv_spec *s, size_t layer)
{
    static const struct kv_layered of[KV_MAX_BELOW] = {
        {.n_below = 1, .encode = encode, .decode = decode},
        {.n_below = 2, .encode = encode, .decode = decode}};

    (void)layer;
    return &of[kv_spec_size(s, KV_K, "n") - 1];
}

static int open_stacked(struct kv_codec *c, const struct kv_calib *calib,
                        struct kv_err *e)
{
    (void)calib, (void)e;
    c->block = 1;
    c->block_bytes = 2 + kv_codec_row(c);
    c->pre_rope = c->side == KV_K;
    return 0;
}

static const struct kv_param params[] = {
    {"n", NULL, 1, 1, KV_MAX_BELOW, false, "layers below"}, {0}};

static const struct kv_scheme scheme = {
    .name = "stacked",
    .brief = "a layered scheme for tests",
    .params = params,
    .residual_rule = {KV_SLIDING, KV_SLIDING},
    .coarse = true,
    .open = open_stacked,
    .layered = layered,
};

struct kv_spec stacked_spec(size_t n_below, size_t s, size_t r)
{
    struct kv_spec spec = {.scheme = &scheme};

    for (enum kv_side side = KV_K; side < KV_SIDES; side++) {
        kv_spec_set(&spec, side, "n", (double)n_below);
        kv_spec_set(&spec, side, "s", (double)s);
        kv_spec_set(&spec, side, "r", (double)r);
        kv_spec_set(&spec, side, "k_bias", 1);
    }
    kv_spec_print(&spec);
    return spec;
}
