#include "lib/base/alloc.h"
#include "lib/base/half.h"
#include "lib/dump.h"
#include "lib/dump_layout.h"
#include "lib/h5_head.h"
#include "lib/k_bias.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Sums of squares of larger values may overflow f32. */
static const float MAX_VALUE = 1e18f;

/* Describes a bad value. */
static const char *badness(float x)
{
    return isfinite(x) ? "beyond 1e18" : "not finite";
}

struct kv_dump {
    struct kv_h5 *h5;
    struct kv_dump_info info;
    float *k_bias, *sink_logit, *cache_scale; /* of the shape; NULL: none */
    bool less_bias;
};

static int get_dtype(struct kv_h5 *h, enum kv_dtype *t, struct kv_err *e)
{
    char name[16];

    if (kv_h5_get_text(h, "/", "dtype", name, sizeof(name), e))
        return -1;
    for (*t = KV_F32; *t <= KV_BF16; ++*t)
        if (!strcmp(name, kv_dtype_name(*t)))
            return 0;
    return kv_fail(e, "%s: dtype is \"%s\", expected f32, f16 or bf16",
                   kv_h5_path(h), name);
}

/* Dumps of older versions do not record how the text was read. */
static int get_reading(struct kv_h5 *h, struct kv_reading *r, struct kv_err *e)
{
    size_t bos, special;

    *r = (struct kv_reading){.known = kv_h5_has_attr(h, "/", "bos")};
    if (!r->known)
        return 0;
    if (kv_h5_get_size(h, "/", "bos", 0, KV_BOS_WINDOWS, &bos, e) ||
        kv_h5_get_size(h, "/", "special", 0, 1, &special, e))
        return -1;
    r->bos = (enum kv_bos)bos;
    r->special = special;
    return 0;
}

static int get_info(struct kv_h5 *h, struct kv_dump_info *info,
                    struct kv_err *e)
{
    enum { MANY = INT32_MAX };
    const struct {
        const char *name;
        char *to;
        size_t capacity;
    } texts[] = {
        {"model", info->model, sizeof(info->model)},
        {"arch", info->arch, sizeof(info->arch)},
        {"weights", info->weights, sizeof(info->weights)},
        {"model_hash", info->model_hash, sizeof(info->model_hash)},
        {"text", info->text, sizeof(info->text)},
        {"text_hash", info->text_hash, sizeof(info->text_hash)},
    };

    if (kv_h5_check_kind(h, KV_DUMP_KIND, KV_DUMP_FORMAT, e))
        return -1;
    for (size_t i = 0; i < sizeof(texts) / sizeof(*texts); i++)
        if (kv_h5_get_text(h, "/", texts[i].name, texts[i].to,
                           texts[i].capacity, e))
            return -1;
    if (get_reading(h, &info->reading, e) ||
        kv_h5_get_shape(h, &info->shape, e) || get_dtype(h, &info->dtype, e) ||
        kv_h5_get_size(h, "/", "n_windows", 1, MANY, &info->n_windows, e) ||
        kv_h5_get_size(h, "/", "ctx", 1, MANY, &info->ctx, e) ||
        kv_h5_get_size(h, "/", "last_layer", 0, info->shape.n_layers - 1,
                       &info->last_layer, e) ||
        kv_h5_get_size(h, "/", "first_layer", 0, info->last_layer,
                       &info->first_layer, e))
        return -1;
    return 0;
}

/* Fails on a layer outside first_layer .. last_layer, which would be ignored
 * silently. */
static int check_layers(struct kv_h5 *h, const struct kv_dump_info *info,
                        struct kv_err *e)
{
    for (size_t l = 0; l < info->shape.n_layers; l++)
        if ((l < info->first_layer || l > info->last_layer) &&
            kv_h5_has(h, kv_dump_group(l).text))
            return kv_fail(e,
                           "%s has %s, but its first_layer is %zu and its "
                           "last_layer %zu",
                           kv_h5_path(h), kv_dump_group(l).text,
                           info->first_layer, info->last_layer);
    return 0;
}

/* The parts of a layer: the tensors, then the Gram matrix. */
enum { PARTS = KV_TENSORS + 1 };

static struct kv_dump_name part(size_t layer, size_t i)
{
    return i < KV_TENSORS ? kv_dump_set(layer, (enum kv_tensor)i)
                          : kv_dump_gram_set(layer);
}

/* The name may be a link that leads out of the file: kv_h5_dims() then fails,
 * naming the link. */
static int fail_uneven(struct kv_h5 *h, const char *has, const char *lacks,
                       struct kv_err *e)
{
    size_t n, dims[KV_H5_MAX_DIMS];

    if (kv_h5_dims(h, has, &n, dims, e))
        return -1;
    return kv_fail(e, "%s has %s, but no %s", kv_h5_path(h), has, lacks);
}

/* have: which parts the layers have; fails unless all layers have the same. */
static int get_parts(struct kv_h5 *h, const struct kv_dump_info *info,
                     bool have[PARTS], struct kv_err *e)
{
    const size_t first = info->first_layer;

    for (size_t i = 0; i < PARTS; i++) {
        have[i] = kv_h5_has(h, part(first, i).text);
        for (size_t l = first + 1; l <= info->last_layer; l++)
            if (kv_h5_has(h, part(l, i).text) != have[i])
                return fail_uneven(h, part(have[i] ? first : l, i).text,
                                   part(have[i] ? l : first, i).text, e);
    }
    return 0;
}

/* Finds the tensors and checks that each is complete in every layer. */
static int check_sets(struct kv_h5 *h, struct kv_dump_info *info,
                      struct kv_err *e)
{
    const size_t places[] = {info->n_windows, info->ctx};
    bool have[PARTS];

    if (kv_h5_check(h, "/tokens", KV_H5_I32, 2, places, e) ||
        kv_h5_check(h, "/positions", KV_H5_I32, 2, places, e) ||
        check_layers(h, info, e) || get_parts(h, info, have, e))
        return -1;
    memcpy(info->have, have, sizeof(info->have));
    if (info->shape.latent) /* values are keys */
        info->have[KV_T_V] = have[KV_T_K];
    for (size_t l = info->first_layer; l <= info->last_layer; l++) {
        const size_t d = kv_shape_dim(&info->shape, l);
        const size_t gram[] = {kv_shape_kv_heads(&info->shape, l), d, d};

        for (enum kv_tensor t = 0; t < KV_TENSORS; t++) {
            const size_t dims[] = {info->n_windows, info->ctx,
                                   kv_dump_heads(info, l, t), d};

            if (have[t] && kv_h5_check(h, kv_dump_set(l, t).text,
                                       kv_dump_type(info, t), 4, dims, e))
                return -1;
        }
        if (have[KV_TENSORS] &&
            kv_h5_check(h, kv_dump_gram_set(l).text, KV_H5_F32, 3, gram, e))
            return -1;
    }
    return 0;
}

/* Checks windows [first, first + n) of /tokens and /positions.  ids, at:
 * [n][ctx], room for both. */
static int check_windows(struct kv_h5 *h, size_t ctx, size_t first, size_t n,
                         int32_t *ids, int32_t *at, struct kv_err *e)
{
    const size_t from[] = {first, 0}, count[] = {n, ctx};

    if (kv_h5_read(h, "/tokens", KV_H5_I32, from, count, ids, e) ||
        kv_h5_read(h, "/positions", KV_H5_I32, from, count, at, e))
        return -1;
    for (size_t i = 0; i < n * ctx; i++) {
        if (ids[i] < 0)
            return kv_fail(e,
                           "%s: /tokens: token %zu is %d, expected 0 or more",
                           kv_h5_path(h), first * ctx + i, (int)ids[i]);
        if (at[i] != (int32_t)(i % ctx))
            return kv_fail(e,
                           "%s: /positions: token %zu is at %d, expected %zu, "
                           "its place in the window",
                           kv_h5_path(h), first * ctx + i, (int)at[i], i % ctx);
    }
    return 0;
}

/* Checks all token ids and positions.  A position must be the token's place in
 * its window, by which kvdump's keys are rotated. */
static int check_tokens(struct kv_h5 *h, const struct kv_dump_info *info,
                        struct kv_err *e)
{
    enum { PIECE = 1 << 16 };
    const size_t max = info->ctx < PIECE ? PIECE / info->ctx : 1;
    int32_t *ids = kv_alloc(max * info->ctx, sizeof(*ids));
    int32_t *at = kv_alloc(max * info->ctx, sizeof(*at));
    int rc = 0;

    for (size_t w = 0, n; w < info->n_windows && !rc; w += n) {
        n = info->n_windows - w < max ? info->n_windows - w : max;
        rc = check_windows(h, info->ctx, w, n, ids, at, e);
    }
    free(ids);
    free(at);
    return rc;
}

/* Reads a whole dataset of finite numbers to *x, which stays NULL if there is
 * none. */
static int get_floats(struct kv_dump *d, const char *name, size_t n_dims,
                      const size_t *dims, float **x, struct kv_err *e)
{
    size_t n = 1, bad;

    if (!kv_h5_has(d->h5, name))
        return 0;
    if (kv_h5_check(d->h5, name, KV_H5_F32, n_dims, dims, e))
        return -1;
    for (size_t i = 0; i < n_dims; i++)
        n *= dims[i];
    *x = kv_alloc(n, sizeof(**x));
    if (kv_h5_read(d->h5, name, KV_H5_F32, NULL, NULL, *x, e))
        return -1;
    bad = kv_dump_bad_value(*x, n, MAX_VALUE);
    return bad < n ? kv_fail(e, "%s: %s holds a value that is %s",
                             kv_h5_path(d->h5), name, badness((*x)[bad]))
                   : 0;
}

/* Reads the arrays that the shape points to.  Dumps of older versions do not
 * hold biases. */
static int get_vectors(struct kv_dump *d, struct kv_err *e)
{
    struct kv_shape *s = &d->info.shape;
    const size_t biases[] = {s->n_layers, s->n_kv_heads, s->head_dim};
    const size_t sinks[] = {s->n_layers, s->n_heads};
    const size_t scales[] = {s->n_layers, KV_SIDES};

    if (get_floats(d, KV_DUMP_K_BIAS, 3, biases, &d->k_bias, e) ||
        get_floats(d, KV_DUMP_SINKS, 2, sinks, &d->sink_logit, e) ||
        get_floats(d, KV_DUMP_CACHE_SCALE, 2, scales, &d->cache_scale, e))
        return -1;
    s->k_bias = d->k_bias;
    s->sink_logit = d->sink_logit;
    s->cache_scale = d->cache_scale;
    return 0;
}

/* Older versions stored the channels of some models in another order. */
static int check_order(struct kv_h5 *h, struct kv_err *e)
{
    static const char name[] = "channel_order";
    char is[16] = "model";

    if (kv_h5_has_attr(h, "/", name) &&
        kv_h5_get_text(h, "/", name, is, sizeof(is), e))
        return -1;
    return strcmp(is, "model")
               ? kv_fail(e,
                         "%s: %s is %s, expected model: a file of an older "
                         "version, which kvdump writes anew",
                         kv_h5_path(h), name, is)
               : 0;
}

/* A part must not have parts, so files cannot refer to each other in a
 * circle. */
static int check_parts(struct kv_dump *d, bool is_part, struct kv_err *e)
{
    if (is_part && kv_h5_n_parts(d->h5))
        return kv_fail(e, "%s has parts, and is a part", kv_dump_path(d));
    return kv_dump_check_parts(d, d->h5, e);
}

static int open_dump(struct kv_dump **out, const char *path, bool is_part,
                     struct kv_err *e)
{
    struct kv_dump *d = kv_alloc(1, sizeof(*d));

    if (kv_h5_open(&d->h5, path, e) || get_info(d->h5, &d->info, e) ||
        check_sets(d->h5, &d->info, e) || check_tokens(d->h5, &d->info, e) ||
        check_parts(d, is_part, e) || check_order(d->h5, e) || get_vectors(d, e)) {
        kv_dump_close(d);
        return -1;
    }
    *out = d;
    return 0;
}

int kv_dump_open(struct kv_dump **out, const char *path, struct kv_err *e)
{
    return open_dump(out, path, false, e);
}

int kv_dump_open_part(struct kv_dump **out, const char *path, struct kv_err *e)
{
    return open_dump(out, path, true, e);
}

void kv_dump_close(struct kv_dump *d)
{
    if (!d)
        return;
    kv_h5_close(d->h5);
    free(d->k_bias);
    free(d->sink_logit);
    free(d->cache_scale);
    free(d);
}

const struct kv_dump_info *kv_dump_info(const struct kv_dump *d)
{
    return &d->info;
}

const char *kv_dump_path(const struct kv_dump *d)
{
    return kv_h5_path(d->h5);
}

void kv_dump_narrow(struct kv_dump *d, size_t first_layer, size_t last_layer)
{
    assert(d->info.first_layer <= first_layer && first_layer <= last_layer &&
           last_layer <= d->info.last_layer);
    d->info.first_layer = first_layer;
    d->info.last_layer = last_layer;
}

static int check_range(const struct kv_dump *d, size_t first, size_t n,
                       struct kv_err *e)
{
    const size_t have = d->info.n_windows * d->info.ctx;

    if (first > have || n > have - first)
        return kv_fail(e, "%s has %zu tokens, %zu to %zu were asked for",
                       kv_dump_path(d), have, first, first + n);
    return 0;
}

static int check_layer(const struct kv_dump *d, size_t layer, struct kv_err *e)
{
    const struct kv_dump_info *i = &d->info;

    if (layer < i->first_layer || layer > i->last_layer)
        return kv_fail(e, "%s has layers %zu to %zu, not %zu", kv_dump_path(d),
                       i->first_layer, i->last_layer, layer);
    return 0;
}

/* n 16-bit values are at the end of x's memory; widens them in place, front
 * first, so that no value is overwritten before it is read. */
static void widen(enum kv_dtype dtype, float *x, size_t n)
{
    const unsigned char *narrow = (const unsigned char *)x + 2 * n;

    for (size_t i = 0; i < n; i++) {
        uint16_t u;

        memcpy(&u, narrow + 2 * i, sizeof(u));
        x[i] = dtype == KV_F16 ? kv_f16_to_f32(u) : kv_bf16_to_f32(u);
    }
}

int kv_dump_want(const struct kv_dump *d, enum kv_tensor t, struct kv_err *e)
{
    return d->info.have[t]
               ? 0
               : kv_fail(e, "%s has no %s (kvdump %s writes it)",
                         kv_dump_path(d), kv_tensor_name(t), kv_dump_option(t));
}

void kv_dump_take_k_bias(struct kv_dump *d, bool take)
{
    d->less_bias = take;
}

int kv_dump_read(struct kv_dump *d, size_t layer, enum kv_tensor t,
                 size_t first_token, size_t n, float *out, struct kv_err *e)
{
    const struct kv_dump_info *info = &d->info;
    const size_t heads = kv_dump_heads(info, layer, t);
    const size_t dim = kv_shape_dim(&info->shape, layer);
    const size_t row = heads * dim;
    const enum kv_dtype dtype = kv_dump_dtype(info, t);
    const bool latent = info->shape.latent && t == KV_T_V;
    const struct kv_dump_name name = kv_dump_set(layer, latent ? KV_T_K : t);
    const bool less = d->less_bias && (t == KV_T_K || t == KV_T_K_PRE);
    const struct kv_shape shape = kv_shape_layer(&info->shape, layer);

    if (check_layer(d, layer, e) || check_range(d, first_token, n, e) ||
        kv_dump_want(d, t, e))
        return -1;
    while (n) {
        const size_t window = first_token / info->ctx;
        const size_t at = first_token % info->ctx, left = info->ctx - at;
        const size_t take = n < left ? n : left, values = take * row;
        const size_t first[] = {window, at, 0, 0};
        const size_t count[] = {1, take, heads, dim};
        void *to = out;

        if (dtype != KV_F32)
            to = (unsigned char *)out + 2 * values;
        if (kv_h5_read(d->h5, name.text, kv_dump_type(info, t), first, count,
                       to, e))
            return -1;
        if (dtype != KV_F32)
            widen(dtype, out, values);

        const size_t bad = kv_dump_bad_value(out, values, MAX_VALUE);

        if (bad < values)
            return kv_fail(e,
                           "%s: layer %zu, %s, token %zu, head %zu, channel "
                           "%zu is %s",
                           kv_dump_path(d), layer, kv_tensor_name(t),
                           first_token + bad / row, bad % row / dim, bad % dim,
                           badness(out[bad]));
        if (less)
            kv_k_bias_take(&shape, t == KV_T_K_PRE, at, out, take, out);
        first_token += take;
        n -= take;
        out += values;
    }
    return 0;
}

int kv_dump_fisher(struct kv_dump *d, size_t layer, enum kv_tensor t,
                   size_t first_token, size_t n, float *out, struct kv_err *e)
{
    const struct kv_shape *s = &d->info.shape;
    const size_t row = kv_shape_kv_heads(s, layer) * kv_shape_dim(s, layer);

    if (kv_dump_read(d, layer, t, first_token, n, out, e))
        return -1;
    for (size_t i = 0; i < n * row; i++)
        out[i] *= out[i];
    return 0;
}

int kv_dump_tokens(struct kv_dump *d, size_t first_token, size_t n,
                   int32_t *out, struct kv_err *e)
{
    const size_t ctx = d->info.ctx;

    if (check_range(d, first_token, n, e))
        return -1;
    while (n) {
        const size_t at = first_token % ctx, left = ctx - at;
        const size_t take = n < left ? n : left;
        const size_t first[] = {first_token / ctx, at};
        const size_t count[] = {1, take};

        if (kv_h5_read(d->h5, "/tokens", KV_H5_I32, first, count, out, e))
            return -1;
        first_token += take;
        n -= take;
        out += take;
    }
    return 0;
}

int kv_dump_gram(struct kv_dump *d, size_t layer, float *gram, struct kv_err *e)
{
    const size_t dim = kv_shape_dim(&d->info.shape, layer);
    const size_t n = kv_shape_kv_heads(&d->info.shape, layer) * dim * dim;
    const struct kv_dump_name name = kv_dump_gram_set(layer);
    size_t bad;

    if (check_layer(d, layer, e) ||
        kv_h5_read(d->h5, name.text, KV_H5_F32, NULL, NULL, gram, e))
        return -1;
    bad = kv_dump_bad_value(gram, n, MAX_VALUE);
    if (bad < n)
        return kv_fail(e, "%s: %s is %s", kv_dump_path(d), name.text,
                       badness(gram[bad]));
    for (size_t i = 0; i < n; i++)
        if (i / dim % dim == i % dim && gram[i] < 0)
            return kv_fail(e,
                           "%s: %s has %g on its diagonal, which is a mean of "
                           "squares",
                           kv_dump_path(d), name.text, (double)gram[i]);
    return 0;
}
