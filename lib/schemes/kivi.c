/* KIVI (arXiv 2402.02750): asymmetric integers, keys per channel in groups of
 * g tokens, values per token in groups of g channels.
 *
 * A group's head: | scale: f16 | minimum: f16 |, 32/g bits a value.
 *
 * The parameter axis swaps the axis of a side.  transformers' QuantizedCache
 * (by quanto: these integers, a float minimum) has one axis for both sides:
 *
 *   axis_key = axis_value = 0, its default   kivi:b4g64,axis=token
 *   axis_key = axis_value = -1               kivi:b4g64,axis=channel
 *
 * (Axis 0 cuts the tensor, whose channels come last, into runs of g.)  It keeps
 * at most 128 tokens at full precision, and whenever 128 are full it encodes
 * the whole cache again; here quantized tokens are never encoded again.  Its
 * other back end, HQQ, optimises the minimum, which kvtools does not.
 *
 * ott=N is Outlier Tokens Tracing (OTT, arXiv 2505.10938): a pool of the N
 * tokens with the smallest keys (3 in the paper, with g = 128 and r = 32).
 * When a group of tokens is coded, its tokens compete with the pool's tokens.
 * A token that enters the pool keeps its key and value in fp16, and the mean of
 * its group is coded in its place.  A token that leaves the pool stays fp16
 * too; after 32 of them no token enters any more.  Values are coded in groups
 * of as many tokens as keys; the newest r values stay fp16.  A
 * re-implementation from the paper.  Our readings: a key's magnitude is summed
 * over all KV heads, and the heads keep the same tokens; all layers trace (the
 * paper leaves out the first two; `mixed` can). */
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
    {"ott", NULL, 0, 0, 64, false,
     "tokens of the smallest keys in a pool, in fp16 (OTT: 3)"},
    {0},
};

static size_t n_traced(const struct kv_spec *s)
{
    return kv_spec_size(s, KV_K, "ott");
}

static bool of_tokens(const struct kv_spec *s, enum kv_side side)
{
    return kv_spec_is(s, side, "axis", "channel") ||
           (kv_spec_is(s, side, "axis", "paper") && side == KV_K);
}

/* Gives each pair of axes one name; the paper's pair is axis=paper. */
static void name_axes(struct kv_spec *s)
{
    const bool k = of_tokens(s, KV_K), v = of_tokens(s, KV_V);
    const bool paper = k && !v;

    kv_spec_set(s, KV_K, "axis", paper ? PAPER : k ? CHANNEL : TOKEN);
    kv_spec_set(s, KV_V, "axis", paper ? PAPER : v ? CHANNEL : TOKEN);
}

/* Fails unless K and V code the same groups of tokens. */
static int check_traced(const struct kv_spec *s, const struct kv_shape *shape,
                        struct kv_err *e)
{
    if (!of_tokens(s, KV_K) || of_tokens(s, KV_V))
        return kv_fail(e, "ott=%zu: expected axis=paper", n_traced(s));
    for (int side = 0; side < KV_SIDES; side++)
        if (kv_spec_is(s, (enum kv_side)side, "massive", "yes"))
            return kv_fail(e,
                           "ott=%zu keeps tokens by a rule of its own: "
                           "expected a spec without massive",
                           n_traced(s));
    for (const char *name = "sr"; *name; name++)
        if (kv_spec_get(s, KV_K, (char[]){*name, 0}) !=
            kv_spec_get(s, KV_V, (char[]){*name, 0}))
            return kv_fail(e, "ott=%zu: expected one %c for K and V",
                           n_traced(s), *name);
    for (size_t i = 0; i < shape->n_layers; i++)
        if (kv_shape_slides(shape, i))
            return kv_fail(e,
                           "layer %zu slides: it drops tokens of the pool "
                           "of ott=%zu",
                           i, n_traced(s));
    return 0;
}

static int kivi_check(struct kv_spec *s, const struct kv_shape *shape,
                      struct kv_err *e)
{
    const size_t g = kv_spec_size(s, KV_K, "g"), r = kv_spec_size(s, KV_K, "r");

    name_axes(s);
    if (kv_spec_one_side(s, KV_K, "ott", e) ||
        (n_traced(s) && check_traced(s, shape, e)))
        return -1;
    for (int side = 0; side < KV_SIDES; side++)
        if (!of_tokens(s, (enum kv_side)side) &&
            kv_integers_fit(s, (enum kv_side)side, shape, e))
            return -1;
    if (of_tokens(s, KV_K) && !n_traced(s) && r % g)
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

/* ---- values of a group of tokens, for ott -------------------------------- */

static void kivi_encode_traced(const struct kv_codec *c, struct kv_where w,
                               const float *x, size_t n_blocks, uint8_t *bytes)
{
    struct kv_codec one = *c;

    one.block = 1;
    kv_integers_encode(&one, w, x, n_blocks * c->block, bytes);
}

static void kivi_decode_traced(const struct kv_codec *c, const uint8_t *bytes,
                               size_t n_blocks, float *x)
{
    struct kv_codec one = *c;

    one.block = 1;
    kv_integers_decode(&one, bytes, n_blocks * c->block, x);
}

static void open_traced(struct kv_codec *c)
{
    static const struct kv_scheme values = {
        .name = "kivi",
        .encode = kivi_encode_traced,
        .decode = kivi_decode_traced,
    };

    c->n_traced = n_traced(&c->spec);
    c->residual_rule = KV_SLIDING;
    if (c->side == KV_K)
        return;
    c->scheme = &values;
    c->block = kv_spec_size(&c->spec, KV_K, "g");
    c->block_bytes *= c->block;
}

/* ---- the scheme ---------------------------------------------------------- */

static int open_kivi(struct kv_codec *c, const struct kv_calib *calib,
                     struct kv_err *e)
{
    int rc;

    (void)calib;
    (void)e;
    rc = kv_integers_open(c, &kv_kivi_quantizer,
                          of_tokens(&c->spec, c->side) ? KV_AXIS_CHANNEL
                                                       : KV_AXIS_TOKEN,
                          kv_spec_size(&c->spec, c->side, "g"), false,
                          (unsigned)kv_spec_size(&c->spec, c->side, "b"));
    if (!rc && n_traced(&c->spec))
        open_traced(c);
    return rc;
}

const struct kv_scheme kv_scheme_kivi = {
    .name = "kivi",
    .brief = "KIVI: keys per channel, values per token, min/max integers",
    .params = params,
    .residual = 128,
    .newer = "ott",
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
