/* KIVI (arXiv 2402.02750): asymmetric integers, keys per channel in groups of
 * g tokens, values per token in groups of g channels.
 *
 * A group's head: | step: f16 | minimum: f16 |, 32/g bits a value. */
#include "lib/schemes/minmax.h"
#include "lib/schemes/schemes.h"

static const struct kv_param params[] = {
    {"b", NULL, 2, 1, 8, false, "bits per code"},
    {"g", NULL, 32, 1, 4096, false,
     "group: tokens for keys, channels for values"},
    {0},
};

static int check(struct kv_spec *s, const struct kv_shape *shape,
                 struct kv_err *e)
{
    const size_t d = shape->head_dim;
    const size_t g = kv_spec_size(s, KV_K, "g"), r = kv_spec_size(s, KV_K, "r");

    if (kv_spec_size(s, KV_V, "g") > d)
        kv_spec_set(s, KV_V, "g", (double)d);
    if (d % kv_spec_size(s, KV_V, "g"))
        return kv_fail(e, "g=%zu must divide head_dim %zu",
                       kv_spec_size(s, KV_V, "g"), d);
    if (r % g)
        return kv_fail(e, "g=%zu must divide r=%zu: keys settle r at a time", g,
                       r);
    return 0;
}

static double nominal(const struct kv_spec *s, enum kv_side side,
                      const struct kv_shape *shape)
{
    (void)shape;
    return kv_spec_get(s, side, "b") + 32 / kv_spec_get(s, side, "g");
}

static int open_kivi(struct kv_codec *c, const struct kv_calib *calib,
                     struct kv_err *e)
{
    (void)calib;
    (void)e;
    return kv_grouped_open(c, &kv_minmax_quantizer,
                           c->side == KV_K ? KV_AXIS_CHANNEL : KV_AXIS_TOKEN,
                           kv_spec_size(&c->spec, c->side, "g"), false,
                           (unsigned)kv_spec_size(&c->spec, c->side, "b"));
}

const struct kv_scheme kv_scheme_kivi = {
    .name = "kivi",
    .brief = "KIVI: keys per channel, values per token, min/max integers",
    .params = params,
    .residual = 128,
    .settle = {KV_FLUSH, KV_LAG},
    .check = check,
    .nominal = nominal,
    .open = open_kivi,
    .encode = kv_grouped_encode,
    .decode = kv_grouped_decode,
};
