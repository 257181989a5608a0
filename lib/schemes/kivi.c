/* KIVI (arXiv 2402.02750): asymmetric integers, keys per channel in groups of
 * g tokens, values per token in groups of g channels.
 *
 * A group's head: | scale: f16 | minimum: f16 |, 32/g bits a value.
 *
 * The word axis swaps the axis of a side.  transformers' QuantizedCache (by
 * quanto: these integers, a float minimum) has one axis for both sides:
 *
 *   axis_key = axis_value = 0, its default   kivi:b4g64,axis=token
 *   axis_key = axis_value = -1               kivi:b4g64,axis=channel
 *
 * (0 cuts the tensor, whose channels come last, into runs of g.)  It keeps at
 * most 128 tokens at full precision, and whenever 128 are full it encodes the
 * whole cache again; here quantized tokens are never encoded again.  Its other
 * back end, HQQ, optimises the minimum, which kvtools does not. */
#include "lib/schemes/integers.h"
#include "lib/schemes/schemes.h"

static void kivi_encode_group(const float *x, size_t n, unsigned bits,
                              uint8_t *head, uint16_t *code)
{
    const float top = (float)((1u << bits) - 1);
    float min, max;

    kv_group_ends(x, n, &min, &max);

    const float scale = kv_group_put_scale(head, max - min, top);
    const float low = kv_f16_put(head + 2, min + 0.0f); /* no -0 */

    for (size_t i = 0; i < n; i++) /* a flat group is its minimum */
        code[i] = scale > 0 ? kv_code((x[i] - low) / scale, top) : 0;
}

static void kivi_decode_group(const uint16_t *code, size_t n, unsigned bits,
                              const uint8_t *head, float *x)
{
    const float scale = kv_f16_get(head), low = kv_f16_get(head + 2);

    (void)bits;
    for (size_t i = 0; i < n; i++)
        x[i] = low + scale * (float)code[i];
}

static void affine(const uint8_t *head, unsigned bits, uint16_t *scale,
                   float *low)
{
    (void)bits;
    memcpy(scale, head, sizeof(*scale));
    *low = kv_f16_get(head + 2);
}

const struct kv_group_quantizer kv_kivi_quantizer = {
    .head_bytes = 4,
    .encode = kivi_encode_group,
    .decode = kivi_decode_group,
    .affine = affine,
    .offset = KV_OFFSET_LOW,
    .device = KV_GPU_KIVI,
};

enum { PAPER, TOKEN, CHANNEL };

static const struct kv_param params[] = {
    {"b", NULL, 2, 1, 8, false, "bits per code"},
    {"g", NULL, 32, 1, 4096, false,
     "group: tokens of a channel (keys), channels of a token (values)"},
    {"axis", "paper|token|channel", PAPER, 0, 0, false,
     "paper: K-axis=channel,V-axis=token; QuantizedCache of transformers: "
     "axis=token for its axis 0, axis=channel for -1"},
    {0},
};

static bool of_tokens(const struct kv_spec *s, enum kv_side side)
{
    return kv_spec_is(s, side, "axis", "channel") ||
           (kv_spec_is(s, side, "axis", "paper") && side == KV_K);
}

/* Each pair of axes has one name: the paper's is axis=paper. */
static void name_axes(struct kv_spec *s)
{
    const bool k = of_tokens(s, KV_K), v = of_tokens(s, KV_V);
    const bool paper = k && !v;

    kv_spec_set(s, KV_K, "axis", paper ? PAPER : k ? CHANNEL : TOKEN);
    kv_spec_set(s, KV_V, "axis", paper ? PAPER : v ? CHANNEL : TOKEN);
}

static int kivi_check(struct kv_spec *s, const struct kv_shape *shape,
                      struct kv_err *e)
{
    const size_t g = kv_spec_size(s, KV_K, "g"), r = kv_spec_size(s, KV_K, "r");

    name_axes(s);
    for (int side = 0; side < KV_SIDES; side++)
        if (!of_tokens(s, (enum kv_side)side) &&
            kv_integers_fit(s, (enum kv_side)side, shape, e))
            return -1;
    if (of_tokens(s, KV_K) && r % g)
        return kv_fail(
            e, "g=%zu must divide r=%zu: keys are quantized r at a time", g, r);
    return 0;
}

static double kivi_nominal(const struct kv_spec *s, enum kv_side side,
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
    return kv_integers_open(c, &kv_kivi_quantizer,
                            of_tokens(&c->spec, c->side) ? KV_AXIS_CHANNEL
                                                         : KV_AXIS_TOKEN,
                            kv_spec_size(&c->spec, c->side, "g"), false,
                            (unsigned)kv_spec_size(&c->spec, c->side, "b"));
}

const struct kv_scheme kv_scheme_kivi = {
    .name = "kivi",
    .brief = "KIVI: keys per channel, values per token, min/max integers",
    .params = params,
    .residual = 128,
    .residual_rule = {KV_BATCHED, KV_SLIDING},
    .check = kivi_check,
    .nominal = kivi_nominal,
    .open = open_kivi,
    .encode = kv_integers_encode,
    .decode = kv_integers_decode,
    .device = kv_integers_device,
    .store = kv_integers_store,
    .tile = kv_integers_tile,
};
