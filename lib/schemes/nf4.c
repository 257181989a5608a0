/* 4-bit NormalFloat (QLoRA, arXiv 2305.14314, section 3 and appendix E): 16
 * levels that a normal distribution fills equally, with an exact zero, times
 * the largest magnitude of g channels of a token.
 *
 * A group's head: | max|x|: f16 |, 16/g bits a value.  A code is the index of
 * the level nearest to x / max|x|, the lower of two.  The paper quantizes the
 * heads once more for weights; here they stay f16. */
#include "lib/schemes/integers.h"
#include "lib/schemes/schemes.h"

/* Appendix E. */
static const float levels[16] = {
    -1.0f,
    -0.6961928009986877f,
    -0.5250730514526367f,
    -0.39491748809814453f,
    -0.28444138169288635f,
    -0.18477343022823334f,
    -0.09105003625154495f,
    0.0f,
    0.07958029955625534f,
    0.16093020141124725f,
    0.24611230194568634f,
    0.33791524171829224f,
    0.44070982933044434f,
    0.5626170039176941f,
    0.7229568362236023f,
    1.0f,
};

static uint16_t nearest_level(float x)
{
    uint16_t best = 0;

    for (uint16_t i = 1; i < 16; i++)
        if (fabsf(x - levels[i]) < fabsf(x - levels[best]))
            best = i;
    return best;
}

static void encode_group(const float *x, size_t n, unsigned bits, uint8_t *head,
                         uint16_t *code)
{
    const float scale = kv_f16_put(head, kv_group_max_abs(x, n));

    (void)bits;
    for (size_t i = 0; i < n; i++)
        code[i] = nearest_level(scale > 0 ? x[i] / scale : 0);
}

static void decode_group(const uint16_t *code, size_t n, unsigned bits,
                         const uint8_t *head, float *x)
{
    (void)bits;
    for (size_t i = 0; i < n; i++)
        x[i] = levels[code[i]] * kv_f16_get(head);
}

static bool scaled(struct kv_scaled *to, unsigned bits, size_t head_dim,
                   size_t group)
{
    return kv_scaled_init(to, bits, levels, NULL, KV_SCALE_F16, 1, head_dim,
                          group);
}

static const struct kv_group_quantizer quantizer = {
    .head_bytes = 2,
    .encode = encode_group,
    .decode = decode_group,
    .scaled = scaled,
};

static const struct kv_param params[] = {
    {"g", NULL, 64, 1, 4096, false, "channels that share a scale"},
    {0},
};

static int check(struct kv_spec *s, const struct kv_shape *shape,
                 struct kv_err *e)
{
    return kv_integers_fit(s, KV_K, shape, e) ||
                   kv_integers_fit(s, KV_V, shape, e)
               ? -1
               : 0;
}

static double nominal(const struct kv_spec *s, enum kv_side side,
                      const struct kv_shape *shape)
{
    (void)shape;
    return 4 + 16 / kv_spec_get(s, side, "g");
}

static int open_nf4(struct kv_codec *c, const struct kv_calib *calib,
                    struct kv_err *e)
{
    (void)calib;
    (void)e;
    return kv_integers_open(c, &quantizer, KV_AXIS_TOKEN,
                            kv_spec_size(&c->spec, c->side, "g"), false, 4);
}

const struct kv_scheme kv_scheme_nf4 = {
    .name = "nf4",
    .brief = "4-bit NormalFloat (QLoRA): levels of a normal distribution",
    .params = params,
    .check = check,
    .nominal = nominal,
    .open = open_nf4,
    .encode = kv_integers_encode,
    .decode = kv_integers_decode,
    .store = kv_integers_store,
    .tile = kv_integers_tile,
};
