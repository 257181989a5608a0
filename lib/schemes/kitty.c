/* Kitty (arXiv 2511.18643): KIVI's integers, with more bits for some channels
 * of keys; each head of each page of g tokens chooses its channels.
 *
 * A share of the head's channels, those with the largest mean magnitude over
 * the page (sel=variance: with the largest variance), have h bits a code, the
 * others b bits.  A block of keys is, head by head,
 *
 *   | which channels have h bits: head_dim bits, padded to a byte |
 *   | codes of h bits: channel by channel, token by token, padded |
 *   | codes of b bits: likewise |
 *   | scale: f16, minimum: f16, a channel |
 *
 * Values are as in KIVI: per token, b bits in groups of g channels.  As in the
 * published code: pages of 128 tokens, groups of 128, 2 bits, 4 for an eighth
 * of the channels (Kitty) or a quarter (Kitty-Pro: boost=0.25), 32 sinks in
 * fp16, keys encoded 128 tokens at a time, values beyond the newest 128.  On
 * ties the first channels are chosen. */
#include "kernels/bitpack.h"
#include "lib/base/alloc.h"
#include "lib/schemes/integers.h"
#include "lib/schemes/schemes.h"

#include <stdlib.h>

static const struct kv_param params[] = {
    {"b", NULL, 2, 1, 8, false, "bits per code"},
    {"h", NULL, 4, 1, 8, false, "keys: bits of boosted channels"},
    {"g", NULL, 128, 1, 4096, false,
     "keys: tokens of a page; values: channels of a group"},
    {"boost", NULL, 0.125, 0.001, 1, false,
     "keys: share of boosted channels (Kitty-Pro: 0.25)"},
    {"sel", "magnitude|variance", 0, 0, 0, false,
     "keys: boosted channels have the largest mean magnitude, or variance"},
    {0},
};

struct kitty {
    size_t d, n, n_boosted; /* channels; tokens of a page */
    unsigned low, high;     /* bits */
    bool variance;
    size_t mask_bytes, high_bytes, low_bytes, head_bytes;
};

static int kitty_check(struct kv_spec *s, const struct kv_shape *shape,
                       struct kv_err *e)
{
    static const char *const of_keys[] = {"h", "boost", "sel"};
    const size_t g = kv_spec_size(s, KV_K, "g"), r = kv_spec_size(s, KV_K, "r");

    for (size_t i = 0; i < sizeof(of_keys) / sizeof(*of_keys); i++)
        if (kv_spec_one_side(s, KV_K, of_keys[i], e))
            return -1;
    if (r % g)
        return kv_fail(
            e, "g=%zu must divide r=%zu: keys are quantized r at a time", g, r);
    return kv_integers_fit(s, KV_V, shape, e);
}

static size_t boosted_of(const struct kv_spec *s, size_t d)
{
    return (size_t)(kv_spec_get(s, KV_K, "boost") * (double)d + 1e-6);
}

static double kitty_nominal(const struct kv_spec *s, enum kv_side side,
                            const struct kv_shape *shape)
{
    const double b = kv_spec_get(s, side, "b"), g = kv_spec_get(s, side, "g");
    const double more = kv_spec_get(s, KV_K, "h") - b;
    const double d = (double)shape->head_dim;

    if (side == KV_V)
        return b + 32 / g;
    return b + more * (double)boosted_of(s, shape->head_dim) / d + 33 / g;
}

/* ---- keys ---------------------------------------------------------------- */

struct channel {
    double score;
    size_t at;
};

static int by_score(const void *a, const void *b)
{
    const struct channel *x = a, *y = b;

    if (x->score != y->score)
        return x->score > y->score ? -1 : 1;
    return x->at < y->at ? -1 : 1;
}

static double score_of(const float *x, size_t n, bool variance)
{
    double sum = 0, squares = 0, sizes = 0;

    for (size_t i = 0; i < n; i++) {
        sum += (double)x[i];
        squares += (double)x[i] * (double)x[i];
        sizes += fabs((double)x[i]);
    }
    return variance ? squares - sum * sum / (double)n : sizes;
}

/* Chooses a head's channels with h bits.  x: [d][n]; mask [d]: 1 for such a
 * channel. */
static void choose(const struct kitty *k, const float *x, uint16_t *mask)
{
    struct channel *c = kv_alloc(k->d, sizeof(*c));

    for (size_t i = 0; i < k->d; i++)
        c[i] = (struct channel){score_of(x + i * k->n, k->n, k->variance), i};
    qsort(c, k->d, sizeof(*c), by_score);
    memset(mask, 0, k->d * sizeof(*mask));
    for (size_t i = 0; i < k->n_boosted; i++)
        mask[c[i].at] = 1;
    free(c);
}

/* Encodes a head x [d][n]; code: workspace for [d][n]. */
static void encode_head(const struct kitty *k, const float *x, uint16_t *code,
                        uint16_t *mask, uint8_t *to)
{
    uint8_t *high = to + k->mask_bytes, *low = high + k->high_bytes;
    uint8_t *heads = low + k->low_bytes;
    uint16_t *next[2] = {code + k->n_boosted * k->n, code};

    choose(k, x, mask);
    kv_pack(mask, k->d, 1, to);
    for (size_t i = 0; i < k->d; i++) {
        kv_kivi_quantizer.encode(x + i * k->n, k->n, mask[i] ? k->high : k->low,
                                 heads + 4 * i, next[mask[i]]);
        next[mask[i]] += k->n;
    }
    kv_pack(code, k->n_boosted * k->n, k->high, high);
    kv_pack(code + k->n_boosted * k->n, (k->d - k->n_boosted) * k->n, k->low,
            low);
}

static void decode_head(const struct kitty *k, const uint8_t *from,
                        uint16_t *code, uint16_t *mask, float *x)
{
    const uint8_t *high = from + k->mask_bytes, *low = high + k->high_bytes;
    const uint8_t *heads = low + k->low_bytes;
    const uint16_t *next[2] = {code + k->n_boosted * k->n, code};

    kv_unpack(from, k->d, 1, mask);
    kv_unpack(high, k->n_boosted * k->n, k->high, code);
    kv_unpack(low, (k->d - k->n_boosted) * k->n, k->low,
              code + k->n_boosted * k->n);
    for (size_t i = 0; i < k->d; i++) {
        kv_kivi_quantizer.decode(next[mask[i]], k->n,
                                 mask[i] ? k->high : k->low, heads + 4 * i,
                                 x + i * k->n);
        next[mask[i]] += k->n;
    }
}

/* The index of channel i's token t in x [n][n_kv_heads][d]. */
static size_t kitty_place(const struct kv_codec *c, size_t head, size_t i,
                          size_t t)
{
    return (t * c->shape.n_kv_heads + head) * c->shape.head_dim + i;
}

static void kitty_encode(const struct kv_codec *c, struct kv_where w,
                         const float *x, size_t n_blocks, uint8_t *bytes)
{
    const struct kitty *k = c->state;
    float *of = kv_alloc(k->d * k->n, sizeof(*of));
    uint16_t *code = kv_alloc(k->d * (k->n + 1), sizeof(*code));
    uint16_t *mask = code + k->d * k->n;

    (void)w;
    for (size_t b = 0; b < n_blocks; b++, x += kv_codec_block_values(c))
        for (size_t h = 0; h < c->shape.n_kv_heads; h++) {
            for (size_t i = 0; i < k->d * k->n; i++)
                of[i] = x[kitty_place(c, h, i / k->n, i % k->n)];
            encode_head(k, of, code, mask, bytes);
            bytes += k->head_bytes;
        }
    free(code);
    free(of);
}

static void kitty_decode(const struct kv_codec *c, const uint8_t *bytes,
                         size_t n_blocks, float *x)
{
    const struct kitty *k = c->state;
    float *of = kv_alloc(k->d * k->n, sizeof(*of));
    uint16_t *code = kv_alloc(k->d * (k->n + 1), sizeof(*code));
    uint16_t *mask = code + k->d * k->n;

    for (size_t b = 0; b < n_blocks; b++, x += kv_codec_block_values(c))
        for (size_t h = 0; h < c->shape.n_kv_heads; h++) {
            decode_head(k, bytes, code, mask, of);
            for (size_t i = 0; i < k->d * k->n; i++)
                x[kitty_place(c, h, i / k->n, i % k->n)] = of[i];
            bytes += k->head_bytes;
        }
    free(code);
    free(of);
}

/* ---- the scheme ---------------------------------------------------------- */

static int open_values(struct kv_codec *c)
{
    static const struct kv_scheme values = {
        .name = "kitty",
        .encode = kv_integers_encode,
        .decode = kv_integers_decode,
        .device = kv_integers_device,
        .store = kv_integers_store,
        .tile = kv_integers_tile,
    };

    c->scheme = &values;
    return kv_integers_open(c, &kv_kivi_quantizer, KV_AXIS_TOKEN,
                            kv_spec_size(&c->spec, KV_V, "g"), false,
                            (unsigned)kv_spec_size(&c->spec, KV_V, "b"));
}

static int open_kitty(struct kv_codec *c, const struct kv_calib *calib,
                      struct kv_err *e)
{
    const size_t d = c->shape.head_dim;
    struct kitty *k;

    (void)calib;
    (void)e;
    if (c->side == KV_V)
        return open_values(c);
    c->state = k = kv_alloc(1, sizeof(*k));
    *k = (struct kitty){
        .d = d,
        .n = kv_spec_size(&c->spec, KV_K, "g"),
        .n_boosted = boosted_of(&c->spec, d),
        .low = (unsigned)kv_spec_size(&c->spec, KV_K, "b"),
        .high = (unsigned)kv_spec_size(&c->spec, KV_K, "h"),
        .variance = kv_spec_is(&c->spec, KV_K, "sel", "variance"),
    };
    k->mask_bytes = kv_pack_bytes(d, 1);
    k->high_bytes = kv_pack_bytes(k->n_boosted * k->n, k->high);
    k->low_bytes = kv_pack_bytes((d - k->n_boosted) * k->n, k->low);
    k->head_bytes = k->mask_bytes + k->high_bytes + k->low_bytes + 4 * d;
    c->block = k->n;
    c->block_bytes = c->shape.n_kv_heads * k->head_bytes;
    return 0;
}

const struct kv_scheme kv_scheme_kitty = {
    .name = "kitty",
    .brief = "Kitty: KIVI with more bits for channels that matter in a page",
    .params = params,
    .sinks = 32,
    .residual = 128,
    .residual_rule = {KV_BATCHED, KV_SLIDING},
    .check = kitty_check,
    .nominal = kitty_nominal,
    .open = open_kitty,
    .encode = kitty_encode,
    .decode = kitty_decode,
};
