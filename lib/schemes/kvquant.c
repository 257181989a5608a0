#include "lib/schemes/kvquant.h"
#include "kernels/bitpack.h"
#include "kernels/levels/levels.h"
#include "kernels/topk.h"
#include "lib/base/alloc.h"
#include "lib/base/half.h"
#include "lib/calib.h"
#include "lib/schemes/integers.h"
#include "lib/schemes/schemes.h"
#include "lib/schemes/sparse.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_LEVELS = 1 << KV_KVQUANT_MAX_BITS };

/* ---- parameters -------------------------------------------------------- */

static const struct kv_param params[] = {
    {"b", NULL, 3, 2, KV_KVQUANT_MAX_BITS, true, "bits of a code: 2^b levels"},
    {"o", NULL, 1, 0, 49.9, true, "percent of outliers, kept in fp16; 0: none"},
    {"cap", NULL, 100, 0.01, 100, false,
     "keys: percent of a token's values that are outliers at most"},
    {"first", NULL, 1, 0, 1 << 20, true,
     "tokens of each calibration window that k-means leaves out"},
    {"type", "nuq|int|nf", 0, 0, 0, true,
     "levels: k-means, evenly spaced, NormalFloat"},
    {"w", "none|fisher|fisher-s2", 1, 0, 0, true,
     "weights of the k-means: none, F (code), F s^2 (paper's equation)"},
    {"qnorm", "no|yes", 0, 0, 0, true,
     "levels decode to the mean and deviation of the originals (2 bits)"},
    {0},
};

static int kvquant_check(struct kv_spec *s, const struct kv_shape *shape,
                         struct kv_err *e)
{
    const size_t row = shape->n_kv_heads * shape->head_dim;

    for (int i = 0; i < KV_SIDES; i++)
        if (!kv_spec_is(s, (enum kv_side)i, "type", "nuq")) {
            kv_spec_set(s, (enum kv_side)i, "w", 0); /* nothing to weigh */
            kv_spec_set(s, (enum kv_side)i, "first",
                        0); /* .. or to leave out */
        }
    if (kv_spec_one_side(s, KV_K, "cap", e))
        return -1;
    for (int i = 0; i < KV_SIDES && kv_spec_get(s, KV_K, "o") <= 0; i++)
        kv_spec_set(s, (enum kv_side)i, "cap", 100); /* nothing to cap */
    if (row > UINT16_MAX)
        return kv_fail(e,
                       "kvquant numbers the values of a token in 16 bits: "
                       "n_kv_heads x head_dim is %zu, more than %d",
                       row, UINT16_MAX);
    return 0;
}

static double kvquant_nominal(const struct kv_spec *s, enum kv_side side,
                              const struct kv_shape *shape)
{
    const double o = kv_spec_get(s, side, "o");

    (void)shape;
    return kv_spec_get(s, side, "b") +
           32 * (side == KV_K ? fmin(o, kv_spec_get(s, side, "cap")) : o) / 100;
}

size_t kv_kvquant_each_side(const struct kv_spec *s, enum kv_side side,
                            size_t n)
{
    const double share = kv_spec_get(s, side, "o") / 200;
    const size_t max = n ? (n - 1) / 2 : 0;
    const size_t want = (size_t)ceil(share * (double)n);

    return want < max ? want : max;
}

size_t kv_kvquant_cap(const struct kv_spec *s, size_t row)
{
    return (size_t)round(kv_spec_get(s, KV_K, "cap") * (double)row / 100);
}

/* ---- levels ------------------------------------------------------------ */

void kv_kvquant_midpoints(const float *level, unsigned bits, float *mid)
{
    for (size_t i = 0; i + 1 < (size_t)1 << bits; i++)
        mid[i] = (level[i] + level[i + 1]) / 2;
}

/* ---- outliers ---------------------------------------------------------- */

struct kv_kvquant_range kv_kvquant_row_range(const float *x, size_t row,
                                             size_t n_side, bool *outlier,
                                             uint8_t head[4])
{
    uint64_t *key = kv_alloc(2 * n_side, sizeof(*key));
    struct kv_topk high = {.key = key, .capacity = n_side};
    struct kv_topk low = {.key = key + n_side, .capacity = n_side};
    float min = INFINITY, max = -INFINITY;

    for (size_t i = 0; i < row; i++) {
        const uint64_t k = kv_topk_key(x[i], (uint32_t)i);

        kv_topk_push(&high, k);
        kv_topk_push(&low, ~k);
    }
    memset(outlier, 0, row * sizeof(*outlier));
    for (size_t i = 0; i < n_side; i++) {
        outlier[kv_topk_index(high.key[i])] = true;
        outlier[kv_topk_index(~low.key[i])] = true;
    }
    for (size_t i = 0; i < row; i++) {
        if (outlier[i])
            continue;
        min = x[i] < min ? x[i] : min;
        max = x[i] > max ? x[i] : max;
    }
    free(key);
    return (struct kv_kvquant_range){
        kv_f16_put(head, min / 2 + max / 2),
        kv_group_put_scale(head + 2, max - min, 2)};
}

/* ---- the codec --------------------------------------------------------- */

struct nuq {
    unsigned bits;
    size_t row, code_bytes;
    size_t n_side;       /* outliers on each side: values only */
    size_t max_outliers; /* per token, for keys only */
    float *threshold;    /* keys only: [row][2] */
    float mid[MAX_LEVELS - 1], level[MAX_LEVELS];

    bool tiled;
    struct kv_levels_tiles tiles;
    struct kv_tiles_rope *rope; /* keys only .. */
    float *offset, *half;       /* .. as are these: [row] */
};

static int load_range(struct kv_codec *c, const struct kv_calib_set *set,
                      struct kv_err *e)
{
    struct nuq *q = c->state;
    const size_t dims[] = {c->shape.n_kv_heads, c->shape.head_dim, 2};
    const struct kv_table *t = kv_calib_want(c, set, "range", 0, 3, dims, e);

    if (!t)
        return -1;
    for (size_t i = 0; i < q->row; i++)
        if (t->data[2 * i] > t->data[2 * i + 1])
            return kv_fail(e,
                           "the calibration's thresholds of layer %zu, channel "
                           "%zu are the wrong way round",
                           c->layer, i);
    q->threshold = kv_alloc(2 * q->row, sizeof(*q->threshold));
    memcpy(q->threshold, t->data, 2 * q->row * sizeof(*q->threshold));
    return 0;
}

static int load_levels(struct kv_codec *c, const struct kv_calib_set *set,
                       struct kv_err *e)
{
    struct nuq *q = c->state;
    const size_t n = (size_t)1 << q->bits, dims[] = {2, n};
    const struct kv_table *t = kv_calib_want(c, set, "levels", 0, 2, dims, e);

    if (!t)
        return -1;
    for (size_t i = 1; i < n; i++)
        if (t->data[i] < t->data[i - 1])
            return kv_fail(e,
                           "the calibration's levels of layer %zu, %c do not "
                           "ascend",
                           c->layer, kv_side_name(c->side));
    kv_kvquant_midpoints(t->data, q->bits, q->mid);
    memcpy(q->level, t->data + n, n * sizeof(*q->level));
    return 0;
}

static struct kv_kvquant_range channel(const struct nuq *q, size_t i)
{
    return kv_kvquant_between(q->threshold[2 * i], q->threshold[2 * i + 1]);
}

/* Prepares the keys' channels for attention on the codes. */
static void open_channels(const struct kv_codec *c)
{
    struct nuq *q = c->state;

    q->rope = kv_tiles_rope_new(c->shape.head_dim, kv_shape_pairs(&c->shape),
                                c->shape.inv_freq);
    q->offset = kv_alloc(q->row, sizeof(*q->offset));
    q->half = kv_alloc(q->row, sizeof(*q->half));
    for (size_t i = 0; i < q->row; i++) {
        q->offset[i] = channel(q, i).offset;
        q->half[i] = channel(q, i).half;
    }
    q->tiles.rope = q->rope;
    q->tiles.offset = q->offset;
    q->tiles.half = q->half;
}

static void open_tiles(const struct kv_codec *c)
{
    struct nuq *q = c->state;

    q->tiled = kv_levels_tiles_init(&q->tiles, c->side == KV_V, q->bits,
                                    q->level, c->shape.head_dim);
    if (q->tiled && c->side == KV_K)
        open_channels(c);
}

/* Bytes of a token with n outliers; no other function adds them up. */
static size_t token_bytes(const struct kv_codec *c, size_t n)
{
    const struct nuq *q = c->state;
    const size_t head = c->variable ? 2 : c->side == KV_V ? 4 : 0;

    return head + q->code_bytes + kv_sparse_bytes(n);
}

static void close_kvquant(struct kv_codec *c)
{
    struct nuq *q = c->state;

    kv_tiles_rope_free(q->rope);
    free(q->offset);
    free(q->half);
    free(q->threshold);
    free(q);
}

/* Codes one inlier. */
static uint16_t code_of(const struct nuq *q, struct kv_kvquant_range r, float x)
{
    return r.half > 0
               ? kv_kvquant_code(q->mid, q->bits, (x - r.offset) / r.half)
               : 0;
}

static float value_of(const struct nuq *q, struct kv_kvquant_range r,
                      uint16_t code)
{
    return r.half > 0 ? r.offset + r.half * q->level[code] : r.offset;
}

static bool beyond(const struct nuq *q, size_t i, float x)
{
    return x < q->threshold[2 * i] || x > q->threshold[2 * i + 1];
}

/* Finds a token's outlier keys: those beyond their thresholds or, if there are
 * more than the cap, the furthest.  Returns their number. */
static uint16_t kvquant_find_outliers(const struct nuq *q, const float *x,
                                      bool *outlier)
{
    uint64_t *key = kv_alloc(q->max_outliers, sizeof(*key));
    struct kv_topk top = {.key = key, .capacity = q->max_outliers};

    for (size_t i = 0; i < q->row; i++) {
        const struct kv_kvquant_range r = channel(q, i);

        if (beyond(q, i, x[i])) /* infinitely far from a flat range */
            kv_topk_push(&top, kv_topk_key(fabsf((x[i] - r.offset) / r.half),
                                           (uint32_t)i));
    }
    memset(outlier, 0, q->row * sizeof(*outlier));
    for (size_t i = 0; i < top.n; i++)
        outlier[kv_topk_index(key[i])] = true;
    free(key);
    return (uint16_t)top.n;
}

/* Encodes keys with outliers. */
static size_t kvquant_encode_block(const struct kv_codec *c, struct kv_where w,
                                   const float *x, uint8_t *bytes)
{
    const struct nuq *q = c->state;
    uint8_t *sparse = bytes + token_bytes(c, 0);
    uint16_t *code = kv_alloc(q->row, sizeof(*code));
    bool *outlier = kv_alloc(q->row, sizeof(*outlier));
    const uint16_t n = kvquant_find_outliers(q, x, outlier);
    size_t at = 0;

    (void)w;
    memcpy(bytes, &n, 2);
    for (size_t i = 0; i < q->row; i++) {
        code[i] = outlier[i] ? 0 : code_of(q, channel(q, i), x[i]);
        if (outlier[i])
            kv_sparse_put(sparse, n, at++, i, x[i]);
    }
    kv_pack(code, q->row, q->bits, bytes + 2);
    free(outlier);
    free(code);
    return token_bytes(c, n);
}

/* Accepts only bytes that encode_block can have written: thresholds decide
 * which values are outliers. */
static int kvquant_decode_block(const struct kv_codec *c, const uint8_t *bytes,
                                size_t size, float *x, struct kv_err *e)
{
    const struct nuq *q = c->state;
    const uint8_t *sparse = bytes + token_bytes(c, 0);
    uint16_t *code = NULL, n;
    size_t next = 0;
    int rc = -1;

    if (size < token_bytes(c, 0))
        return kv_fail(e, "kvquant: %zu bytes are fewer than a token's %zu",
                       size, token_bytes(c, 0));
    memcpy(&n, bytes, 2);
    if (size != token_bytes(c, n))
        return kv_fail(e, "kvquant: %zu bytes, but %u outliers make %zu", size,
                       n, token_bytes(c, n));
    if (n > q->max_outliers)
        return kv_fail(e, "kvquant: %u outliers, expected %zu at most", n,
                       q->max_outliers);
    code = kv_alloc(q->row, sizeof(*code));
    kv_unpack(bytes + 2, q->row, q->bits, code);
    for (size_t i = 0; i < q->row; i++)
        x[i] = value_of(q, channel(q, i), code[i]);
    for (size_t at = 0; at < n; at++) {
        float y;
        const size_t i = kv_sparse_get(sparse, n, at, &y);

        if (i < next || i >= q->row) {
            kv_fail(e, "kvquant: outlier %zu is at %zu, expected %zu to %zu",
                    at, i, next, q->row - 1);
            goto out;
        }
        if (!isfinite(y) || !beyond(q, i, y) || code[i]) {
            kv_fail(e, "kvquant: channel %zu has no outlier %g", i, (double)y);
            goto out;
        }
        x[i] = y;
        next = i + 1;
    }
    rc = 0;
out:
    free(code);
    return rc;
}

/* Encodes keys without outliers. */
static void encode_keys(const struct nuq *q, const float *x, uint16_t *code,
                        uint8_t *bytes)
{
    for (size_t i = 0; i < q->row; i++)
        code[i] = code_of(q, channel(q, i), x[i]);
    kv_pack(code, q->row, q->bits, bytes);
}

static void encode_values(const struct nuq *q, const float *x, uint16_t *code,
                          uint8_t *bytes)
{
    bool *outlier = kv_alloc(q->row, sizeof(*outlier));
    uint8_t *head = bytes + q->code_bytes, *sparse = head + 4;
    const struct kv_kvquant_range r =
        kv_kvquant_row_range(x, q->row, q->n_side, outlier, head);
    size_t at = 0;

    for (size_t i = 0; i < q->row; i++) {
        code[i] = outlier[i] ? 0 : code_of(q, r, x[i]);
        if (outlier[i])
            kv_sparse_put(sparse, 2 * q->n_side, at++, i, x[i]);
    }
    kv_pack(code, q->row, q->bits, bytes);
    free(outlier);
}

static void kvquant_encode(const struct kv_codec *c, struct kv_where w,
                           const float *x, size_t n_blocks, uint8_t *bytes)
{
    const struct nuq *q = c->state;
    uint16_t *code = kv_alloc(q->row, sizeof(*code));

    (void)w;
    for (size_t t = 0; t < n_blocks; t++)
        (c->side == KV_K ? encode_keys : encode_values)(
            q, x + t * q->row, code, bytes + t * c->block_bytes);
    free(code);
}

static void decode_values(const struct nuq *q, const uint16_t *code,
                          const uint8_t *head, float *x)
{
    const size_t n = 2 * q->n_side;
    const struct kv_kvquant_range r = {kv_f16_get(head), kv_f16_get(head + 2)};

    for (size_t i = 0; i < q->row; i++)
        x[i] = value_of(q, r, code[i]);
    for (size_t at = 0; at < n; at++) {
        float y;
        const size_t i = kv_sparse_get(head + 4, n, at, &y);

        if (i < q->row) /* bytes from outside may be invalid: nothing is written
                         * beyond x */
            x[i] = y;
    }
}

static void kvquant_decode(const struct kv_codec *c, const uint8_t *bytes,
                           size_t n_blocks, float *x)
{
    const struct nuq *q = c->state;
    uint16_t *code = kv_alloc(q->row, sizeof(*code));

    for (size_t t = 0; t < n_blocks; t++, x += q->row) {
        const uint8_t *token = bytes + t * c->block_bytes;

        kv_unpack(token, q->row, q->bits, code);
        if (c->side == KV_V)
            decode_values(q, code, token + q->code_bytes, x);
        else
            for (size_t i = 0; i < q->row; i++)
                x[i] = value_of(q, channel(q, i), code[i]);
    }
    free(code);
}

/* ---- attention on the codes ---------------------------------------------- */

static bool kvquant_store(const struct kv_codec *c, struct kv_store *s)
{
    const struct nuq *q = c->state;

    if (q->tiled)
        kv_store_levels(s, &q->tiles);
    return q->tiled;
}

/* Returns a token's outliers (sparse.h); *n: their number. */
static const uint8_t *sparse_of(const struct kv_codec *c, const uint8_t *token,
                                uint16_t *n)
{
    const struct nuq *q = c->state;

    *n = (uint16_t)(2 * q->n_side);
    if (c->variable)
        memcpy(n, token, sizeof(*n));
    return token + token_bytes(c, 0);
}

/* Writes one head's outliers of the tile's token t to x; returns their
 * number. */
static size_t outliers_of(const struct kv_codec *c, const uint8_t *token,
                          size_t t, size_t head, struct kv_levels_outlier *x)
{
    const size_t d = c->shape.head_dim;
    uint16_t n;
    const uint8_t *sparse = sparse_of(c, token, &n);
    size_t found = 0;

    for (size_t at = 0; at < n; at++) {
        uint16_t i;

        memcpy(&i, sparse + 2 * at, sizeof(i));
        if (i / d != head)
            continue;
        x[found].place = (uint16_t)(t * KV_LEVELS_CHANNELS + i % d);
        memcpy(&x[found++].value, sparse + 2 * (n + at), 2);
    }
    return found;
}

static void kvquant_tile(const struct kv_codec *c, const struct kv_store *s,
                         const uint8_t *blocks, size_t first, size_t n,
                         size_t head, uint8_t *tile)
{
    const struct nuq *q = c->state;
    const uint8_t *at = c->variable ? blocks : blocks + first * c->block_bytes;
    uint16_t *code = kv_alloc(q->row, sizeof(*code));
    struct kv_levels_outlier *x = kv_alloc(n * q->row, sizeof(*x));
    size_t found = 0;

    for (size_t t = 0; t < n; t++) {
        const uint8_t *codes = at + (c->variable ? 2 : 0);
        uint16_t range[2], sparse;

        kv_unpack(codes, q->row, q->bits, code);
        if (s->values)
            memcpy(range, codes + q->code_bytes, sizeof(range));
        kv_store_put_levels(s, t, code + head * s->head_dim,
                            s->values ? range : NULL, tile);
        found += outliers_of(c, at, t, head, x + found);
        sparse_of(c, at, &sparse);
        at += token_bytes(c, sparse);
    }
    kv_store_put_outliers(s, x, found, tile);
    free(x);
    free(code);
}

static const struct kv_variable sparse = {kvquant_encode_block,
                                          kvquant_decode_block};

static int open_kvquant(struct kv_codec *c, const struct kv_calib *calib,
                        struct kv_err *e)
{
    const struct kv_calib_set *set;
    struct nuq *q = kv_alloc(1, sizeof(*q));

    c->state = q;
    if (kv_calib_want_set(&set, calib, &c->spec, e))
        return -1;
    q->bits = (unsigned)kv_spec_size(&c->spec, c->side, "b");
    q->row = c->shape.n_kv_heads * c->shape.head_dim;
    q->code_bytes = kv_pack_bytes(q->row, q->bits);
    c->block = 1;
    c->pre_rope = c->side == KV_K;
    if (c->side == KV_K && kv_spec_get(&c->spec, KV_K, "o") > 0)
        c->variable = &sparse;
    if (c->side == KV_V)
        q->n_side = kv_kvquant_each_side(&c->spec, KV_V, q->row);
    q->max_outliers = kv_kvquant_cap(&c->spec, q->row);
    c->block_bytes =
        token_bytes(c, c->variable ? q->max_outliers : 2 * q->n_side);
    if ((c->side == KV_K && load_range(c, set, e)) || load_levels(c, set, e))
        return -1;
    open_tiles(c);
    return 0;
}

const struct kv_scheme kv_scheme_kvquant = {
    .name = "kvquant",
    .brief = "KVQuant: k-means levels, keys per channel before RoPE, values "
             "per token, outliers in fp16",
    .params = params,
    .sinks = 1,
    .residual_rule = {KV_SLIDING, KV_SLIDING},
    .check = kvquant_check,
    .nominal = kvquant_nominal,
    .training = &kv_kvquant_training,
    .open = open_kvquant,
    .close = close_kvquant,
    .encode = kvquant_encode,
    .decode = kvquant_decode,
    .store = kvquant_store,
    .tile = kvquant_tile,
};
