#include "lib/schemes/kvtc.h"
#include "kernels/bitpack.h"
#include "kernels/vecops/vecops.h"
#include "lib/base/alloc.h"
#include "lib/base/crc32.h"
#include "lib/base/deflate.h"
#include "lib/calib.h"
#include "lib/schemes/chunk.h"
#include "lib/schemes/schemes.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const struct kv_param params[] = {
    {"b", NULL, 2, 0.0625, 8, false,
     "bits per value before DEFLATE, fractions too"},
    {"n", NULL, 128, 1, 16384, false, "tokens of a chunk"},
    {"span", "layer|all", 0, 0, 0, true,
     "the transform and the budget span a layer, or all layers together: then "
     "none is decoded alone"},
    {"entropy", "deflate|none", 0, 0, 0, false, "coding of a chunk's bytes"},
    {0},
};

static double kvtc_nominal(const struct kv_spec *s, enum kv_side side,
                           const struct kv_shape *shape)
{
    (void)shape;
    return kv_spec_get(s, side, "b");
}

bool kv_kvtc_spans(const struct kv_spec *s)
{
    return kv_spec_is(s, KV_K, "span", "all");
}

static int kvtc_check(struct kv_spec *s, const struct kv_shape *shape,
                      struct kv_err *e)
{
    (void)shape;
    return kv_spec_get(s, KV_K, "span") == kv_spec_get(s, KV_V, "span")
               ? 0
               : kv_fail(e, "span is one for K and V");
}

struct kvtc {
    size_t row, used; /* components after the last coded one are left out */
    float *mean;      /* [row] */
    float *forward;   /* [row][used] */
    float *inverse;   /* [used][row] */
    struct kv_kvtc_group *group; /* [n_groups] */
    size_t n_groups;
};

/* ---- a chunk before DEFLATE -------------------------------------------- */

static size_t group_bytes(const struct kv_kvtc_group *g, size_t n)
{
    return n * (KV_KVTC_HEAD_BITS / 8) +
           kv_pack_bytes(n * g->size, kv_kvtc_types[g->type].bits);
}

static size_t plain_bytes(const struct kvtc *k, size_t n)
{
    size_t bytes = 0;

    for (size_t i = 0; i < k->n_groups; i++)
        bytes += group_bytes(&k->group[i], n);
    return bytes;
}

/* Writes a group's components of every token, from y [n][used]. */
static void put_group(const struct kvtc *k, const struct kv_kvtc_group *g,
                      const float *y, size_t n, uint8_t *bytes)
{
    const struct kv_kvtc_type *type = &kv_kvtc_types[g->type];
    uint16_t *code = kv_alloc(n * g->size, sizeof(*code));
    uint8_t head[KV_KVTC_HEAD_BITS / 8];

    for (size_t t = 0; t < n; t++) {
        type->quantizer->encode(y + t * k->used + g->first, g->size, type->bits,
                                head, code + t * g->size);
        memcpy(bytes + 2 * t, head, 2);
        memcpy(bytes + 2 * (n + t), head + 2, 2);
    }
    kv_pack(code, n * g->size, type->bits, bytes + n * sizeof(head));
    free(code);
}

static void take_group(const struct kvtc *k, const struct kv_kvtc_group *g,
                       const uint8_t *bytes, size_t n, float *y)
{
    const struct kv_kvtc_type *type = &kv_kvtc_types[g->type];
    uint16_t *code = kv_alloc(n * g->size, sizeof(*code));
    uint8_t head[KV_KVTC_HEAD_BITS / 8];

    kv_unpack(bytes + n * sizeof(head), n * g->size, type->bits, code);
    for (size_t t = 0; t < n; t++) {
        memcpy(head, bytes + 2 * t, 2);
        memcpy(head + 2, bytes + 2 * (n + t), 2);
        type->quantizer->decode(code + t * g->size, g->size, type->bits, head,
                                y + t * k->used + g->first);
    }
    free(code);
}

/* Write x [n][row] as a chunk before DEFLATE, and read it back. */
static void put_plain(const struct kvtc *k, const float *x, size_t n,
                      uint8_t *bytes)
{
    float *centred = kv_alloc(n, k->row * sizeof(*centred));
    float *y = kv_alloc(n, k->used * sizeof(*y));

    for (size_t i = 0; i < n * k->row; i++)
        centred[i] = x[i] - k->mean[i % k->row];
    kv_vecops_times(centred, k->row, n, k->forward, k->row, k->used, k->used, y,
                    k->used);
    for (size_t i = 0; i < k->n_groups; i++) {
        put_group(k, &k->group[i], y, n, bytes);
        bytes += group_bytes(&k->group[i], n);
    }
    free(y);
    free(centred);
}

static void take_plain(const struct kvtc *k, const uint8_t *bytes, size_t n,
                       float *x)
{
    float *y = kv_alloc(n, k->used * sizeof(*y));

    for (size_t i = 0; i < k->n_groups; i++) {
        take_group(k, &k->group[i], bytes, n, y);
        bytes += group_bytes(&k->group[i], n);
    }
    for (size_t t = 0; t < n; t++)
        memcpy(x + t * k->row, k->mean, k->row * sizeof(*x));
    kv_vecops_times(y, k->used, n, k->inverse, k->used, k->row, k->row, x,
                    k->row);
    free(y);
}

/* ---- entropy=deflate --------------------------------------------------- */

static size_t kvtc_encode_block(const struct kv_codec *c, struct kv_where w,
                                const float *x, uint8_t *bytes)
{
    const struct kvtc *k = c->state;
    const size_t plain = plain_bytes(k, c->block);
    uint8_t *from = kv_alloc(plain, 1);
    uint32_t crc;
    size_t n;

    (void)w;
    put_plain(k, x, c->block, from);
    n = kv_deflate(from, plain, bytes + sizeof(crc));
    crc = kv_crc32(bytes + sizeof(crc), n);
    memcpy(bytes, &crc, sizeof(crc));
    free(from);
    return sizeof(crc) + n;
}

/* Fails on invalid scales and shifts, which forged bytes with a correct
 * checksum may have. */
static int check_heads(const struct kvtc *k, const uint8_t *bytes, size_t n,
                       struct kv_err *e)
{
    for (size_t i = 0; i < k->n_groups; i++) {
        for (size_t t = 0; t < n; t++) {
            const float scale = kv_f16_get(bytes + 2 * t);
            const float shift = kv_f16_get(bytes + 2 * (n + t));

            if (!(scale >= 0) || !isfinite(scale) || !isfinite(shift))
                return kv_fail(e, "token %zu, group %zu: scale %g, shift %g", t,
                               i, (double)scale, (double)shift);
        }
        bytes += group_bytes(&k->group[i], n);
    }
    return 0;
}

static int kvtc_decode_block(const struct kv_codec *c, const uint8_t *bytes,
                             size_t n, float *x, struct kv_err *e)
{
    const struct kvtc *k = c->state;
    const size_t plain = plain_bytes(k, c->block);
    uint8_t *to = kv_alloc(plain, 1);
    int rc = kv_crc32_check(bytes, n, e);

    if (!rc && (rc = kv_inflate(bytes + sizeof(uint32_t), n - sizeof(uint32_t),
                                to, plain)))
        kv_fail(e, "its %zu bytes are no DEFLATE stream of %zu", n, plain);
    if (!rc)
        rc = check_heads(k, to, c->block, e);
    if (!rc)
        take_plain(k, to, c->block, x);
    free(to);
    return rc ? kv_fail_in(e, "kvtc chunk") : 0;
}

static const struct kv_variable deflated = {kvtc_encode_block,
                                            kvtc_decode_block};

/* ---- entropy=none ------------------------------------------------------ */

static void kvtc_encode(const struct kv_codec *c, struct kv_where w,
                        const float *x, size_t n_blocks, uint8_t *bytes)
{
    const struct kvtc *k = c->state;

    (void)w;
    memset(bytes, 0, n_blocks * c->block_bytes);
    for (size_t i = 0; i < n_blocks; i++)
        put_plain(k, x + i * kv_codec_block_values(c), c->block,
                  bytes + i * c->block_bytes);
}

static void kvtc_decode(const struct kv_codec *c, const uint8_t *bytes,
                        size_t n_blocks, float *x)
{
    for (size_t i = 0; i < n_blocks; i++)
        take_plain(c->state, bytes + i * c->block_bytes, c->block,
                   x + i * kv_codec_block_values(c));
}

/* ---- a codec ----------------------------------------------------------- */

/* Fills forward and inverse with the coded components' columns of V. */
static void load_basis(struct kvtc *k, const float *basis)
{
    k->forward = kv_alloc(k->row * k->used, sizeof(*k->forward));
    k->inverse = kv_alloc(k->row * k->used, sizeof(*k->inverse));
    for (size_t i = 0; i < k->row; i++)
        for (size_t j = 0; j < k->used; j++)
            k->forward[i * k->used + j] = k->inverse[j * k->row + i] =
                basis[i * k->row + j];
}

static int open_kvtc(struct kv_codec *c, const struct kv_calib *calib,
                     struct kv_err *e)
{
    const size_t row = c->shape.n_kv_heads * c->shape.head_dim;
    const size_t dims[] = {KV_KVTC_TYPES, KV_KVTC_SIZES, row, row};
    const double b = kv_spec_get(&c->spec, c->side, "b");
    struct kvtc *k = kv_alloc(1, sizeof(*k));
    const struct kv_calib_set *set;
    const struct kv_table *mean, *basis, *none, *coded;

    c->state = k;
    k->row = row;
    if (kv_kvtc_spans(&c->spec) && c->shape.n_layers > 1)
        return kv_fail(e, "span=all decodes all layers of a token together, "
                          "which kvppl and kvquant alone do");
    if (kv_calib_want_set(&set, calib, &c->spec, e) ||
        !(mean = kv_calib_want(c, set, "mean", 0, 1, dims + 2, e)) ||
        !(basis = kv_calib_want(c, set, "basis", 0, 2, dims + 2, e)) ||
        !(none = kv_calib_want(c, set, "none", 0, 1, dims + 2, e)) ||
        !(coded = kv_calib_want(c, set, "coded", 0, 3, dims, e)))
        return -1;
    k->mean = kv_alloc(row, sizeof(*k->mean));
    memcpy(k->mean, mean->data, row * sizeof(*k->mean));
    k->group = kv_alloc(row, sizeof(*k->group));
    k->n_groups =
        kv_kvtc_plan(&(struct kv_kvtc_errors){row, kv_kvtc_step(&c->spec, row),
                                              none->data, coded->data},
                     (size_t)floor(b * (double)row), k->group);
    if (k->n_groups) {
        const struct kv_kvtc_group *last = &k->group[k->n_groups - 1];

        k->used = last->first + last->size;
    }
    load_basis(k, basis->data);
    c->pre_rope = c->side == KV_K;
    c->block = kv_chunk(c, kv_spec_size(&c->spec, c->side, "n"), 1);
    c->block_bytes = plain_bytes(k, c->block);
    c->block_bytes += !c->block_bytes;
    if (kv_spec_is(&c->spec, c->side, "entropy", "deflate")) {
        c->variable = &deflated;
        c->block_bytes =
            sizeof(uint32_t) + kv_deflate_max_bytes(c->block_bytes);
    }
    return 0;
}

static void close_kvtc(struct kv_codec *c)
{
    struct kvtc *k = c->state;

    if (!k)
        return;
    free(k->mean);
    free(k->forward);
    free(k->inverse);
    free(k->group);
    free(k);
}

const struct kv_scheme kv_scheme_kvtc = {
    .name = "kvtc",
    .newer = "span",
    .brief = "KVTC: PCA, bits by dynamic programming, DEFLATE",
    .params = params,
    .sinks = KV_KVTC_SINKS,
    .residual = 128,
    .residual_rule = {KV_SLIDING, KV_SLIDING},
    .check = kvtc_check,
    .nominal = kvtc_nominal,
    .spans = kv_kvtc_spans,
    .training = &kv_kvtc_training,
    .open = open_kvtc,
    .close = close_kvtc,
    .encode = kvtc_encode,
    .decode = kvtc_decode,
};
