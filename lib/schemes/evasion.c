/* EVASION (Wang et al. 2025): a codebook per layer and sub-space.  The
 * four-page paper leaves the sizes open; in our reading its 4 bits are d2b8,
 * its 3 bits d4b12, and by default there are no outliers.
 *
 * o: per cent of a token's values kept in fp16 as outliers (our reading of its
 * "sparse computation"): the values with the largest coding errors, on ties
 * those with the lowest index:
 *
 *   | codes (codebook.h) | outliers (sparse.h) | */
#include "kernels/topk.h"
#include "lib/base/alloc.h"
#include "lib/schemes/codebook.h"
#include "lib/schemes/schemes.h"
#include "lib/schemes/sparse.h"

#include <math.h>
#include <stdlib.h>

static const struct kv_param params[] = {
    KV_CODEBOOK_PARAMS("d", 2, 8, KV_CODEBOOK_LAYER, KV_CODEBOOK_OWN,
                       KV_CODEBOOK_T_NONE, KV_CODEBOOK_POST, KV_CODEBOOK_W_NONE,
                       25, KV_CODEBOOK_INIT_PP, KV_CODEBOOK_SLIDING),
    {"o", NULL, 0, 0, 49.9, false, "percent of outliers, kept in fp16"},
    {0}};

static size_t evasion_row_of(const struct kv_shape *s)
{
    return s->n_kv_heads * s->head_dim;
}

/* The number of outliers of a token. */
static size_t n_outliers(const struct kv_codec *c)
{
    return (size_t)ceil(kv_spec_get(&c->spec, c->side, "o") *
                        (double)evasion_row_of(&c->shape) / 100);
}

static int evasion_check(struct kv_spec *s, const struct kv_shape *shape,
                         struct kv_err *e)
{
    if (kv_codebook_check(s, shape, e))
        return -1;
    for (int i = 0; i < KV_SIDES; i++)
        if (kv_spec_get(s, (enum kv_side)i, "o") > 0 &&
            evasion_row_of(shape) > UINT16_MAX)
            return kv_fail(e,
                           "evasion numbers outliers in 16 bits: n_kv_heads x "
                           "head_dim is %zu, more than %d",
                           evasion_row_of(shape), UINT16_MAX);
    return 0;
}

static double evasion_nominal(const struct kv_spec *s, enum kv_side side,
                              const struct kv_shape *shape)
{
    return kv_codebook_nominal(s, side, shape) +
           32 * kv_spec_get(s, side, "o") / 100;
}

static int open_evasion(struct kv_codec *c, const struct kv_calib *calib,
                        struct kv_err *e)
{
    if (kv_codebook_open(c, calib, e))
        return -1;
    c->block_bytes += kv_sparse_bytes(n_outliers(c));
    return 0;
}

/* Marks the values of a token's x with the largest error in y. */
static void evasion_find_outliers(const float *x, const float *y, size_t row,
                                  struct kv_topk top, bool *outlier)
{
    for (size_t i = 0; i < row; i++)
        kv_topk_push(&top, kv_topk_key(fabsf(x[i] - y[i]), (uint32_t)i));
    memset(outlier, 0, row * sizeof(*outlier));
    for (size_t i = 0; i < top.n; i++)
        outlier[kv_topk_index(top.key[i])] = true;
}

static void evasion_encode(const struct kv_codec *c, struct kv_where w,
                           const float *x, size_t n_blocks, uint8_t *bytes)
{
    const size_t n = n_outliers(c), row = evasion_row_of(&c->shape);
    const size_t code_bytes = c->block_bytes - kv_sparse_bytes(n);
    uint64_t *key = kv_alloc(n, sizeof(*key));
    float *y = kv_alloc(n ? row : 0, sizeof(*y));
    bool *outlier = kv_alloc(n ? row : 0, sizeof(*outlier));

    kv_codebook_encode(c, w, x, n_blocks, bytes);
    for (size_t t = 0; n && t < n_blocks; t++, x += row) {
        uint8_t *block = bytes + t * c->block_bytes;
        const struct kv_topk top = {.key = key, .capacity = n};
        size_t at = 0;

        kv_codebook_decode(c, block, 1, y);
        evasion_find_outliers(x, y, row, top, outlier);
        for (size_t i = 0; i < row; i++)
            if (outlier[i])
                kv_sparse_put(block + code_bytes, n, at++, i, x[i]);
    }
    free(outlier);
    free(y);
    free(key);
}

static void evasion_decode(const struct kv_codec *c, const uint8_t *bytes,
                           size_t n_blocks, float *x)
{
    const size_t n = n_outliers(c), row = evasion_row_of(&c->shape);
    const size_t code_bytes = c->block_bytes - kv_sparse_bytes(n);

    kv_codebook_decode(c, bytes, n_blocks, x);
    for (size_t t = 0; t < n_blocks; t++, x += row, bytes += c->block_bytes)
        for (size_t at = 0; at < n; at++) {
            float y;
            const size_t i = kv_sparse_get(bytes + code_bytes, n, at, &y);

            if (i < row) /* bytes from outside: nothing is written beyond x */
                x[i] = y;
        }
}

/* Tiles and devices hold only codes. */
static bool evasion_store(const struct kv_codec *c, struct kv_store *s)
{
    return !n_outliers(c) && kv_codebook_store(c, s);
}

static bool evasion_device(const struct kv_codec *c, struct kv_gpu_code *to)
{
    return !n_outliers(c) && kv_codebook_device(c, to);
}

const struct kv_scheme kv_scheme_evasion = {
    .name = "evasion",
    .brief = "EVASION: a codebook per layer and sub-space; with o, outliers "
             "in fp16",
    .params = params,
    .residual = 0,
    .residual_rule = {KV_SLIDING, KV_SLIDING},
    .check = evasion_check,
    .nominal = evasion_nominal,
    .hadamard = kv_codebook_hadamard,
    .training = &(const struct kv_training){.check_dump = kv_codebook_trainable,
                                            .calibrate = kv_codebook_calibrate,
                                            .together = kv_codebook_together},
    .open = open_evasion,
    .close = kv_codebook_close,
    .encode = evasion_encode,
    .decode = evasion_decode,
    .device = evasion_device,
    .store = evasion_store,
    .tile = kv_codebook_tile,
};
