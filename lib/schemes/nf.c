/* NormalFloat (QLoRA, arXiv 2305.14314, section 3 and appendix E) of b bits:
 * 2^b levels that a normal distribution fills equally, with an exact zero,
 * times the largest magnitude of g channels of a token; groups stay within a
 * head or run through all heads.
 *
 * A group's head: | max|x|: f16 |, 16/g bits a value.  A code is the index of
 * the level nearest to x / max|x|, the lower of two.  For weights the paper
 * quantizes these maxima once more; here they stay f16. */
#include "lib/schemes/integers.h"
#include "lib/schemes/schemes.h"

/* Levels of 4 bits as appendix E prints them; levels of 2 and 3 bits by the
 * same construction (kv_kvquant_nf_levels()), as in KVQuant's code. */
static const float levels2[] = {-1.0f, 0.0f, 0.33791513671312795f, 1.0f};
static const float levels3[] = {
    -1.0f,
    -0.4786290853100967f,
    -0.21714178000118023f,
    0.0f,
    0.16093014438029077f,
    0.33791513671312795f,
    0.562616887969985f,
    1.0f,
};
static const float levels4[] = {
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
static const float *const levels_of[] = {
    [2] = levels2, [3] = levels3, [4] = levels4};

static uint16_t nearest_level(float x, unsigned bits)
{
    const float *level = levels_of[bits];
    uint16_t best = 0;

    for (uint16_t i = 1; i < 1u << bits; i++)
        if (fabsf(x - level[i]) < fabsf(x - level[best]))
            best = i;
    return best;
}

static void nf_encode_group(const float *x, size_t n, unsigned bits,
                            uint8_t *head, uint16_t *code)
{
    const float scale = kv_f16_put(head, kv_group_max_abs(x, n));

    for (size_t i = 0; i < n; i++)
        code[i] = nearest_level(scale > 0 ? x[i] / scale : 0, bits);
}

static void nf_decode_group(const uint16_t *code, size_t n, unsigned bits,
                            const uint8_t *head, float *x)
{
    for (size_t i = 0; i < n; i++)
        x[i] = levels_of[bits][code[i]] * kv_f16_get(head);
}

static bool scaled(struct kv_scaled *to, unsigned bits, size_t head_dim,
                   size_t group)
{
    return kv_scaled_init(to, bits, levels_of[bits], NULL, KV_SCALE_F16, 1,
                          head_dim, group);
}

static const struct kv_group_quantizer quantizer = {
    .head_bytes = 2,
    .encode = nf_encode_group,
    .decode = nf_decode_group,
    .scaled = scaled,
};

static const struct kv_param params[] = {
    {"g", NULL, 64, 0, 4096, false,
     "channels that share a scale; 0: the whole row"},
    {"heads", "one|all", 0, 0, 0, false,
     "a row is one KV head, or all of them"},
    {0},
};

static unsigned nf_bits_of(const struct kv_scheme *s)
{
    return s == &kv_scheme_nf2 ? 2 : s == &kv_scheme_nf3 ? 3 : 4;
}

static int nf_check(struct kv_spec *s, const struct kv_shape *shape,
                    struct kv_err *e)
{
    for (int i = 0; i < KV_SIDES; i++) {
        const enum kv_side side = (enum kv_side)i;
        const bool all = kv_spec_is(s, side, "heads", "all");

        if (kv_integers_fit_row(
                s, side, shape->head_dim * (all ? shape->n_kv_heads : 1), e))
            return -1;
    }
    return 0;
}

static double nf_nominal(const struct kv_spec *s, enum kv_side side,
                         const struct kv_shape *shape)
{
    (void)shape;
    return nf_bits_of(s->scheme) + 16 / kv_spec_get(s, side, "g");
}

static int open_nf(struct kv_codec *c, const struct kv_calib *calib,
                   struct kv_err *e)
{
    (void)calib;
    (void)e;
    return kv_integers_open(
        c, &quantizer, KV_AXIS_TOKEN, kv_spec_size(&c->spec, c->side, "g"),
        kv_spec_is(&c->spec, c->side, "heads", "all"), nf_bits_of(c->scheme));
}

#define SCHEME(BITS)                                                           \
    const struct kv_scheme kv_scheme_nf##BITS = {                              \
        .name = "nf" #BITS,                                                    \
        .brief =                                                               \
            #BITS "-bit NormalFloat (QLoRA): levels of a normal distribution", \
        .params = params,                                                      \
        .check = nf_check,                                                     \
        .nominal = nf_nominal,                                                 \
        .open = open_nf,                                                       \
        .encode = kv_integers_encode,                                          \
        .decode = kv_integers_decode,                                          \
        .store = kv_integers_store,                                            \
        .tile = kv_integers_tile,                                              \
    }

SCHEME(4);
SCHEME(3);
SCHEME(2);
