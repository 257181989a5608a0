/* QJL (arXiv 2406.03482): a key k is stored as |k| and the signs of S k, where
 * S is a random matrix [m][head_dim].  The paper's estimator of q . k
 * (definition 3.1),
 *
 *   sqrt(pi / 2) / m |k| <S q, sign(S k)>,
 *
 * is linear in q: decode() returns sqrt(pi / 2) / m |k| S^T sign(S k), whose
 * product with q is this estimate.
 *
 * The o channels of a head with the largest sums of squares over t tokens are
 * sketched separately, by the first m / 2 rows of S (section 4.1; choosing
 * channels by blocks of t tokens, and m / 2, follow its code).  A block is t
 * tokens, head by head:
 *
 *   | outlier channels: o x ceil(log2 head_dim) bits, ascending |   o > 0
 *   t times
 *   | signs: m bits | rms: f16 |
 *   | outliers' signs: m / 2 bits | rms: f16 |                      o > 0
 *
 * each run of bits padded to whole bytes (1: negative).  rms = |k| / sqrt(d),
 * of the sketched part of k; fp16 can hold rms whenever it can hold k.
 *
 * S is not stored: it is kv_random_orthogonal() of kv_mix(kv_mix(seed, layer),
 * side), where seed is the parameter of this name.  Every head_dim rows, from
 * the first on, are orthogonal, as in every script of the published code; this
 * costs a bias of 1 / (4 head_dim) and lowers the variance.  rows=gaussian
 * leaves rows independent, as in the paper's theorem.
 *
 * Values: asymmetric integers per token in groups of g channels, as in KIVI
 * (integers.h).  Our reading: the newest r values stay fp16, keys are quantized
 * r at a time, both as in KIVI; m is 2 head_dim by default. */
#include "kernels/bitpack.h"
#include "kernels/random_matrix.h"
#include "lib/base/alloc.h"
#include "lib/base/half.h"
#include "lib/base/rng.h"
#include "lib/schemes/integers.h"
#include "lib/schemes/schemes.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const struct kv_param params[] = {
    {"m", NULL, 0, 0, 8192, false,
     "keys: rows of the sketch, 1 bit each; 0: 2 head_dim"},
    {"o", NULL, 8, 0, 512, false, "keys: outlier channels of a head"},
    {"t", NULL, 32, 1, 4096, false, "keys: tokens that share outlier channels"},
    {"b", NULL, 2, 1, 8, false, "values: bits per code"},
    {"g", NULL, 32, 1, 4096, false, "values: group of channels"},
    {"rows", "orthogonal|gaussian", 0, 0, 0, false,
     "keys: the sketch's rows as the code runs, or as the theorem has them"},
    {"seed", NULL, 0, 0, 1 << 30, false, "keys: of the sketch"},
    {0},
};

/* Clamps a parameter on both sides, so that the sides stay equal. */
static void clamp_to(struct kv_spec *s, const char *name, size_t max)
{
    for (int i = 0; i < KV_SIDES; i++)
        if (kv_spec_size(s, (enum kv_side)i, name) > max)
            kv_spec_set(s, (enum kv_side)i, name, (double)max);
}

static int qjl_check(struct kv_spec *s, const struct kv_shape *shape,
                     struct kv_err *e)
{
    static const char *const of_keys[] = {"m", "o", "t", "rows", "seed"};
    const size_t d = shape->head_dim;
    const size_t t = kv_spec_size(s, KV_K, "t"), r = kv_spec_size(s, KV_K, "r");

    if (!kv_spec_size(s, KV_K, "m"))
        kv_spec_set(s, KV_K, "m", 2 * (double)d);
    clamp_to(s, "o", d);
    clamp_to(s, "g", d);
    for (size_t i = 0; i < sizeof(of_keys) / sizeof(*of_keys); i++)
        if (kv_spec_one_side(s, KV_K, of_keys[i], e))
            return -1;
    if (kv_spec_one_side(s, KV_V, "b", e) || kv_spec_one_side(s, KV_V, "g", e))
        return -1;
    if (d % kv_spec_size(s, KV_V, "g"))
        return kv_fail(e, "g=%zu must divide head_dim %zu",
                       kv_spec_size(s, KV_V, "g"), d);
    if (kv_spec_size(s, KV_K, "m") < 2)
        return kv_fail(e, "m=1 is out of range: expected 0 or at least 2");
    if (r % t)
        return kv_fail(
            e, "t=%zu must divide r=%zu: keys are quantized r at a time", t, r);
    return 0;
}

static double qjl_nominal(const struct kv_spec *s, enum kv_side side,
                          const struct kv_shape *shape)
{
    if (side == KV_V)
        return kv_spec_get(s, KV_V, "b");
    return kv_spec_get(s, KV_K, "m") / (double)shape->head_dim;
}

/* ---- keys -------------------------------------------------------------- */

/* The sizes of the sketch of one part of a key. */
struct part {
    size_t m, sign_bytes; /* rows; bytes of their signs */
    float scale;          /* sqrt(pi / 2) sqrt(d) / m, which multiplies rms */
};

struct qjl {
    size_t d, m, o, t;
    unsigned index_bits;         /* bits of an outlier channel */
    size_t index_bytes;          /* bytes of a head */
    size_t token_bytes;          /* bytes of one token in a head */
    struct part inlier, outlier; /* outlier: o > 0 */
    float *s, *st;               /* S [m][d] and its transpose */
};

/* Workspace for one token. */
struct work {
    uint16_t *code; /* [m] */
    float *sketch;  /* [m] */
    float *x;       /* [d] */
    bool *out;      /* which channels are outliers; has room for any stored
                     * index */
};

static struct work work_new(const struct qjl *j)
{
    const size_t n = j->m > j->d ? j->m : j->d;

    return (struct work){.code = kv_alloc(n, sizeof(uint16_t)),
                         .sketch = kv_alloc(n, sizeof(float)),
                         .x = kv_alloc(j->d, sizeof(float)),
                         .out = kv_alloc(KV_MAX_HEAD_DIM, sizeof(bool))};
}

static void work_free(struct work *w)
{
    free(w->code);
    free(w->sketch);
    free(w->x);
    free(w->out);
}

static struct part part_of(size_t m, size_t d)
{
    const double scale = sqrt(acos(-1) / 2 * (double)d) / (double)m;

    return (struct part){m, kv_pack_bytes(m, 1), (float)scale};
}

static void close_qjl(struct kv_codec *c)
{
    struct qjl *j = c->state;

    free(j->s);
    free(j);
}

static void make_sketch(const struct kv_codec *c, struct qjl *j)
{
    const uint64_t seed = kv_spec_size(&c->spec, KV_K, "seed");
    const uint64_t key = kv_mix(kv_mix(seed, c->layer), c->side);

    j->s = kv_alloc(2 * j->m, j->d * sizeof(*j->s));
    j->st = j->s + j->m * j->d;
    if (kv_spec_is(&c->spec, KV_K, "rows", "gaussian"))
        kv_random_gaussian(key, j->m, j->d, j->s);
    else
        kv_random_orthogonal(key, j->m, j->d, j->s);
    kv_transpose(j->s, j->m, j->d, j->st);
}

static void open_keys(struct kv_codec *c)
{
    struct qjl *j = kv_alloc(1, sizeof(*j));

    j->d = c->shape.head_dim;
    j->m = kv_spec_size(&c->spec, KV_K, "m");
    j->o = kv_spec_size(&c->spec, KV_K, "o");
    j->t = kv_spec_size(&c->spec, KV_K, "t");
    j->inlier = part_of(j->m, j->d);
    j->outlier = part_of(j->m / 2, j->d);
    j->token_bytes = j->inlier.sign_bytes + 2;
    if (j->o) {
        while ((size_t)1 << j->index_bits < j->d)
            j->index_bits++;
        j->index_bytes = kv_pack_bytes(j->o, j->index_bits);
        j->token_bytes += j->outlier.sign_bytes + 2;
    }
    make_sketch(c, j);
    c->state = j;
    c->block = j->t;
    c->block_bytes =
        c->shape.n_kv_heads * (j->index_bytes + j->t * j->token_bytes);
}

/* Marks the o channels with the largest sum of squares over the block, on ties
 * the lowest; x: one head's first token, the next token `row` later. */
static void qjl_find_outliers(const struct qjl *j, const float *x, size_t row,
                              bool *out)
{
    double *sum = kv_alloc(j->d, sizeof(*sum));

    for (size_t i = 0; i < j->t; i++)
        for (size_t k = 0; k < j->d; k++)
            sum[k] += (double)x[i * row + k] * (double)x[i * row + k];
    memset(out, 0, j->d * sizeof(*out));
    for (size_t i = 0; i < j->o; i++) {
        size_t best = 0;

        while (out[best])
            best++;
        for (size_t k = best; k < j->d; k++)
            if (!out[k] && sum[k] > sum[best])
                best = k;
        out[best] = true;
    }
    free(sum);
}

static void qjl_put_outliers(const struct qjl *j, struct work *w,
                             uint8_t *bytes)
{
    size_t n = 0;

    for (size_t k = 0; k < j->d; k++)
        if (w->out[k])
            w->code[n++] = (uint16_t)k;
    if (j->o)
        kv_pack(w->code, j->o, j->index_bits, bytes);
}

static void get_outliers(const struct qjl *j, const uint8_t *bytes,
                         struct work *w)
{
    memset(w->out, 0, j->d * sizeof(*w->out));
    if (j->o)
        kv_unpack(bytes, j->o, j->index_bits, w->code);
    for (size_t i = 0; i < j->o; i++)
        w->out[w->code[i]] = true;
}

/* Encodes the channels of x [d] that are outliers, or those that are not. */
static void encode_part(const struct qjl *j, const struct part *p,
                        const float *x, bool outliers, struct work *w,
                        uint8_t *bytes)
{
    double sum = 0;

    for (size_t k = 0; k < j->d; k++) {
        w->x[k] = w->out[k] == outliers ? x[k] : 0;
        sum += (double)w->x[k] * (double)w->x[k];
    }
    kv_combine_rows(w->x, j->st, j->d, j->m, w->sketch);
    for (size_t i = 0; i < p->m; i++)
        w->code[i] = w->sketch[i] < 0;
    kv_pack(w->code, p->m, 1, bytes);
    kv_f16_put(bytes + p->sign_bytes, (float)sqrt(sum / (double)j->d));
}

static void decode_part(const struct qjl *j, const struct part *p,
                        const uint8_t *bytes, bool outliers, struct work *w,
                        float *x)
{
    const float rms = kv_f16_get(bytes + p->sign_bytes);

    kv_unpack(bytes, p->m, 1, w->code);
    for (size_t i = 0; i < p->m; i++)
        w->sketch[i] = w->code[i] ? -1 : 1;
    kv_combine_rows(w->sketch, j->s, p->m, j->d, w->x);
    for (size_t k = 0; k < j->d; k++)
        if (w->out[k] == outliers)
            x[k] = p->scale * rms * w->x[k];
}

/* Encodes one head of one block, whose tokens are `row` apart. */
static void encode_head(const struct qjl *j, const float *x, size_t row,
                        struct work *w, uint8_t *bytes)
{
    qjl_find_outliers(j, x, row, w->out);
    qjl_put_outliers(j, w, bytes);
    bytes += j->index_bytes;
    for (size_t i = 0; i < j->t; i++, bytes += j->token_bytes) {
        encode_part(j, &j->inlier, x + i * row, false, w, bytes);
        if (j->o)
            encode_part(j, &j->outlier, x + i * row, true, w,
                        bytes + j->inlier.sign_bytes + 2);
    }
}

static void decode_head(const struct qjl *j, const uint8_t *bytes, size_t row,
                        struct work *w, float *x)
{
    get_outliers(j, bytes, w);
    bytes += j->index_bytes;
    for (size_t i = 0; i < j->t; i++, bytes += j->token_bytes) {
        decode_part(j, &j->inlier, bytes, false, w, x + i * row);
        if (j->o)
            decode_part(j, &j->outlier, bytes + j->inlier.sign_bytes + 2, true,
                        w, x + i * row);
    }
}

/* Encodes x [n_blocks][t][n_kv_heads][head_dim]. */
static void qjl_encode(const struct kv_codec *c, struct kv_where at,
                       const float *x, size_t n_blocks, uint8_t *bytes)
{
    const struct qjl *j = c->state;
    const size_t n_heads = c->shape.n_kv_heads, row = n_heads * j->d;
    struct work w = work_new(j);

    (void)at;
    for (size_t i = 0; i < n_blocks * n_heads; i++)
        encode_head(j, x + i / n_heads * j->t * row + i % n_heads * j->d, row,
                    &w, bytes + i * (c->block_bytes / n_heads));
    work_free(&w);
}

static void qjl_decode(const struct kv_codec *c, const uint8_t *bytes,
                       size_t n_blocks, float *x)
{
    const struct qjl *j = c->state;
    const size_t n_heads = c->shape.n_kv_heads, row = n_heads * j->d;
    struct work w = work_new(j);

    for (size_t i = 0; i < n_blocks * n_heads; i++)
        decode_head(j, bytes + i * (c->block_bytes / n_heads), row, &w,
                    x + i / n_heads * j->t * row + i % n_heads * j->d);
    work_free(&w);
}

static int open_qjl(struct kv_codec *c, const struct kv_calib *calib,
                    struct kv_err *e)
{
    static const struct kv_scheme of_values = {
        .name = "qjl",
        .encode = kv_integers_encode,
        .decode = kv_integers_decode,
    };

    (void)calib;
    (void)e;
    if (c->side == KV_K) {
        open_keys(c);
        return 0;
    }
    c->scheme = &of_values;
    return kv_integers_open(c, &kv_kivi_quantizer, KV_AXIS_TOKEN,
                            kv_spec_size(&c->spec, KV_V, "g"), false,
                            (unsigned)kv_spec_size(&c->spec, KV_V, "b"));
}

const struct kv_scheme kv_scheme_qjl = {
    .name = "qjl",
    .brief = "QJL: keys as signs of a random projection; integers for values",
    .params = params,
    .coarse = true,
    .residual = 128,
    .residual_rule = {KV_BATCHED, KV_SLIDING},
    .check = qjl_check,
    .nominal = qjl_nominal,
    .open = open_qjl,
    .close = close_qjl,
    .encode = qjl_encode,
    .decode = qjl_decode,
};
