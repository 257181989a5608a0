/* AnTKV (arXiv 2506.19505): vector quantization in which the anchors, the
 * tokens whose errors change attention most, stay fp16.
 *
 * A block of n tokens is scored by its own queries over its own keys and values
 * (lib/anchor_score.h, keys).  The `anchor` per cent of its tokens, rounded up,
 * with the highest scores over all KV heads are kept in fp16 beside their
 * codes.  Codebooks are as in codebook.h; k-means weighs a token by its score
 * in the calibration's text: keys by the score of keys, values by the score of
 * values (w=anchor).
 *
 * A re-implementation from the paper's theorem and abstract; its code was not
 * available.  Our readings: codebooks are CQ's, keys before RoPE, at 1 bit
 * d8b8; a block as long as the prompt (n) has the prompt's scores, and tokens
 * after it are scored in blocks of n again; K and V keep the same tokens; a
 * score is the sum over heads.
 *
 *   | codes of n tokens (codebook.h) | anchors: index u16 each, ascending |
 *   | their values, row x f16 each | */
#include "kernels/topk.h"
#include "lib/base/alloc.h"
#include "lib/base/half.h"
#include "lib/schemes/codebook.h"
#include "lib/schemes/schemes.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const struct kv_param params[] = {
    KV_CODEBOOK_PARAMS_OF("none|fisher|anchor", "d", 8, 8, KV_CODEBOOK_HEAD,
                          KV_CODEBOOK_OWN, KV_CODEBOOK_T_NONE, KV_CODEBOOK_PRE,
                          KV_CODEBOOK_W_ANCHOR, 100, KV_CODEBOOK_INIT_PP,
                          KV_CODEBOOK_SLIDING),
    {"n", NULL, 256, 1, 65536, false, "tokens of a block, scored together"},
    {"anchor", NULL, 1, 0, 99.9, false, "anchor tokens in fp16, per cent"},
    {0}};

struct antkv {
    struct kv_codec codes; /* the same codec, with a state of codebook.h */
    size_t n_anchors;
};

static size_t n_anchors(const struct kv_spec *s, enum kv_side side)
{
    /* - 1e-9: rounding puts a product such as 1000 x 16.1 / 100 a little above
     * its true value. */
    return (size_t)ceil(kv_spec_get(s, side, "n") *
                            kv_spec_get(s, side, "anchor") / 100 -
                        1e-9);
}

static int antkv_check(struct kv_spec *s, const struct kv_shape *shape,
                       struct kv_err *e)
{
    static const char *const same[] = {"n", "anchor", "s", "r", "residual"};

    for (size_t i = 0; i < sizeof(same) / sizeof(*same); i++)
        if (kv_spec_get(s, KV_K, same[i]) != kv_spec_get(s, KV_V, same[i]))
            return kv_fail(e,
                           "%s must be the same for K and V: they keep the "
                           "same anchors",
                           same[i]);
    return kv_codebook_check(s, shape, e);
}

static double antkv_nominal(const struct kv_spec *s, enum kv_side side,
                            const struct kv_shape *shape)
{
    return kv_codebook_nominal(s, side, shape) +
           16 * kv_spec_get(s, side, "anchor") / 100;
}

static bool antkv_probe(const struct kv_codec *c, struct kv_where w, size_t i)
{
    (void)c;
    (void)w;
    (void)i;
    return true;
}

static int by_index(const void *a, const void *b)
{
    const uint16_t x = *(const uint16_t *)a, y = *(const uint16_t *)b;

    return x < y ? -1 : x > y;
}

/* at [n_anchors]: the block's tokens with the highest scores; on ties the first
 * tokens.  saliency: [n_kv_heads][block]. */
static void find_anchors(const struct kv_codec *c, const float *saliency,
                         uint16_t *at)
{
    const struct antkv *a = c->state;
    uint64_t *key = kv_alloc(a->n_anchors, sizeof(*key));
    struct kv_topk top = {.key = key, .capacity = a->n_anchors};

    for (size_t t = 0; t < c->block; t++) {
        float sum = 0;

        for (size_t h = 0; h < c->shape.n_kv_heads; h++)
            sum += saliency[h * c->block + t];
        kv_topk_push(&top, kv_topk_key(sum, (uint32_t)t));
    }
    for (size_t i = 0; i < a->n_anchors; i++)
        at[i] = (uint16_t)kv_topk_index(key[i]);
    qsort(at, a->n_anchors, sizeof(*at), by_index);
    free(key);
}

static size_t codes_bytes(const struct kv_codec *c)
{
    const struct antkv *a = c->state;

    return c->block * a->codes.block_bytes;
}

static void antkv_encode(const struct kv_codec *c, struct kv_where w,
                         const float *x, size_t n_blocks, uint8_t *bytes)
{
    const struct antkv *a = c->state;
    const size_t row = kv_codec_row(c);
    uint16_t *at = kv_alloc(a->n_anchors, sizeof(*at));

    for (size_t b = 0; b < n_blocks; b++) {
        uint8_t *to = bytes + codes_bytes(c);

        kv_codebook_encode(&a->codes, w, x, c->block, bytes);
        find_anchors(c, w.saliency + b * c->shape.n_kv_heads * c->block, at);
        memcpy(to, at, a->n_anchors * sizeof(*at));
        to += a->n_anchors * sizeof(*at);
        for (size_t i = 0; i < a->n_anchors * row; i++)
            kv_f16_put(to + 2 * i, x[at[i / row] * row + i % row]);
        bytes += c->block_bytes;
        x += c->block * row;
    }
    free(at);
}

static void antkv_decode(const struct kv_codec *c, const uint8_t *bytes,
                         size_t n_blocks, float *x)
{
    const struct antkv *a = c->state;
    const size_t row = kv_codec_row(c);

    for (size_t b = 0; b < n_blocks; b++) {
        const uint8_t *at = bytes + codes_bytes(c);
        const uint8_t *from = at + a->n_anchors * sizeof(uint16_t);

        kv_codebook_decode(&a->codes, bytes, c->block, x);
        for (size_t i = 0; i < a->n_anchors * row; i++) {
            uint16_t t;

            memcpy(&t, at + i / row * sizeof(t), sizeof(t));
            if (t < c->block) /* bytes from outside may be invalid */
                x[t * row + i % row] = kv_f16_get(from + 2 * i);
        }
        bytes += c->block_bytes;
        x += c->block * row;
    }
}

static int open_antkv(struct kv_codec *c, const struct kv_calib *calib,
                      struct kv_err *e)
{
    struct antkv *a = kv_alloc(1, sizeof(*a));

    c->state = a;
    a->codes = *c;
    a->codes.state = NULL;
    a->n_anchors = n_anchors(&c->spec, c->side);
    if (kv_codebook_open(&a->codes, calib, e))
        return -1;
    c->pre_rope = a->codes.pre_rope;
    c->residual_rule = a->codes.residual_rule;
    c->block = kv_spec_size(&c->spec, c->side, "n");
    c->block_bytes = codes_bytes(c) +
                     a->n_anchors * sizeof(uint16_t) * (1 + kv_codec_row(c));
    return 0;
}

static void close_antkv(struct kv_codec *c)
{
    struct antkv *a = c->state;

    if (a)
        kv_codebook_close(&a->codes);
    free(a);
}

const struct kv_scheme kv_scheme_antkv = {
    .name = "antkv",
    .brief =
        "AnTKV: codebooks, and in fp16 the tokens that attention minds most",
    .params = params,
    .residual_rule = {KV_SLIDING, KV_SLIDING},
    .check = antkv_check,
    .nominal = antkv_nominal,
    .hadamard = kv_codebook_hadamard,
    .training = &(const struct kv_training){.check_dump = kv_codebook_trainable,
                                            .calibrate = kv_codebook_calibrate,
                                            .together = kv_codebook_together},
    .open = open_antkv,
    .close = close_antkv,
    .probe = antkv_probe,
    .anchors = true,
    .encode = antkv_encode,
    .decode = antkv_decode,
};
