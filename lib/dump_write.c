#include "lib/base/alloc.h"
#include "lib/base/half.h"
#include "lib/dump.h"
#include "lib/dump_layout.h"
#include "lib/h5_head.h"

#include <float.h>
#include <stdio.h>
#include <stdlib.h>

struct kv_dump_writer {
    struct kv_h5 *h5;
    struct kv_dump_info info;
    bool index;  /* tensors are in other files */
    size_t *put; /* [layers][KV_TENSORS] windows put so far */
    size_t put_tokens;
    uint16_t *narrow; /* one window in 16 bits; NULL for f32 */
};

static size_t n_layers(const struct kv_dump_info *info)
{
    return info->last_layer - info->first_layer + 1;
}

/* The lowest format that can describe the shape. */
static int format_of(const struct kv_shape *s)
{
    return kv_h5_has_pairs(s)           ? KV_DUMP_FORMAT
           : s->sink_logit || s->latent ? KV_DUMP_LATENTS
                                        : kv_h5_format(s, KV_DUMP_SHAPES);
}

static void put_info(struct kv_h5 *h, const struct kv_dump_info *info)
{
    kv_h5_put_kind(h, KV_DUMP_KIND, format_of(&info->shape));
    kv_h5_put_text(h, "/", "model", info->model);
    kv_h5_put_text(h, "/", "arch", info->arch);
    kv_h5_put_text(h, "/", "weights", info->weights);
    kv_h5_put_text(h, "/", "model_hash", info->model_hash);
    kv_h5_put_text(h, "/", "text", info->text);
    kv_h5_put_text(h, "/", "text_hash", info->text_hash);
    if (info->reading.known) {
        kv_h5_put_int(h, "/", "bos", (int)info->reading.bos);
        kv_h5_put_int(h, "/", "special", info->reading.special);
    }
    kv_h5_put_text(h, "/", "device", info->device);
    kv_h5_put_text(h, "/", "gemm", info->gemm);
    kv_h5_put_text(h, "/", "channel_order", "model");
    kv_h5_put_text(h, "/", "dtype", kv_dtype_name(info->dtype));
    kv_h5_put_int(h, "/", "n_windows", (int64_t)info->n_windows);
    kv_h5_put_int(h, "/", "ctx", (int64_t)info->ctx);
    kv_h5_put_int(h, "/", "first_layer", (int64_t)info->first_layer);
    kv_h5_put_int(h, "/", "last_layer", (int64_t)info->last_layer);
}

/* Makes the dataset of a layer's tensor: over these parts, or in this file if
 * n_parts is 0. */
static void make_set(struct kv_h5 *h, const struct kv_dump_info *info,
                     size_t layer, enum kv_tensor t,
                     const struct kv_dump_part *part, size_t n_parts)
{
    const size_t dims[] = {info->n_windows, info->ctx,
                           kv_dump_heads(info, layer, t),
                           kv_shape_dim(&info->shape, layer)};
    const struct kv_dump_name name = kv_dump_set(layer, t);
    const enum kv_h5_type type = kv_dump_type(info, t);
    struct kv_h5_part *have;
    size_t n = 0;

    if (!n_parts) {
        kv_h5_dataset(h, name.text, type, 4, dims);
        return;
    }
    have = kv_alloc(n_parts, sizeof(*have));
    for (size_t i = 0; i < n_parts; i++)
        if (part[i].first_layer <= layer && layer <= part[i].last_layer)
            have[n++] = (struct kv_h5_part){part[i].file, part[i].n_windows};
    kv_h5_virtual(h, name.text, type, 4, dims, have, n);
    free(have);
}

static void make_sets(struct kv_h5 *h, const struct kv_dump_info *info,
                      const struct kv_dump_part *part, size_t n_parts)
{
    const size_t places[] = {info->n_windows, info->ctx};

    kv_h5_dataset(h, "/tokens", KV_H5_I32, 2, places);
    kv_h5_dataset(h, "/positions", KV_H5_I32, 2, places);
    for (size_t l = info->first_layer; l <= info->last_layer; l++) {
        kv_h5_group(h, kv_dump_group(l).text);
        if (info->shape.n_states + info->shape.n_bare)
            kv_h5_put_int(h, kv_dump_group(l).text, "model_layer",
                          (int64_t)kv_shape_own(&info->shape, l));
        for (enum kv_tensor t = 0; t < KV_TENSORS; t++)
            if (info->have[t])
                make_set(h, info, l, t, part, n_parts);
    }
}

/* Writes an array; x NULL: the model has none, so nothing is written. */
static int put_floats(struct kv_h5 *h, const char *name, size_t n_dims,
                      const size_t *dims, const float *x, struct kv_err *e)
{
    if (!x)
        return 0;
    kv_h5_dataset(h, name, KV_H5_F32, n_dims, dims);
    return kv_h5_write(h, name, KV_H5_F32, NULL, NULL, x, e);
}

/* Writes the arrays that the shape points to. */
static int put_vectors(struct kv_h5 *h, const struct kv_dump_info *info,
                       struct kv_err *e)
{
    const struct kv_shape *s = &info->shape;
    const size_t biases[] = {s->n_layers, s->n_kv_heads, s->head_dim};
    const size_t sinks[] = {s->n_layers, s->n_heads};
    const size_t scales[] = {s->n_layers, KV_SIDES};

    return put_floats(h, KV_DUMP_K_BIAS, 3, biases, s->k_bias, e) ||
                   put_floats(h, KV_DUMP_SINKS, 2, sinks, s->sink_logit, e) ||
                   put_floats(h, KV_DUMP_CACHE_SCALE, 2, scales, s->cache_scale,
                              e)
               ? -1
               : 0;
}

int kv_dump_create(struct kv_dump_writer **out, const char *path,
                   const struct kv_dump_info *info, struct kv_err *e)
{
    return kv_dump_create_index(out, path, info, NULL, 0, e);
}

int kv_dump_create_index(struct kv_dump_writer **out, const char *path,
                         const struct kv_dump_info *info,
                         const struct kv_dump_part *part, size_t n_parts,
                         struct kv_err *e)
{
    struct kv_h5 *h;

    if (kv_h5_create(&h, path, e))
        return -1;
    put_info(h, info);
    make_sets(h, info, part, n_parts);
    if (kv_h5_put_shape(h, &info->shape, e) || put_vectors(h, info, e)) {
        kv_h5_close(h);
        return -1;
    }

    struct kv_dump_writer *w = kv_alloc(1, sizeof(*w));

    w->h5 = h;
    w->info = *info;
    w->index = n_parts > 0;
    w->put = kv_alloc(n_layers(info) * KV_TENSORS, sizeof(*w->put));
    if (info->dtype != KV_F32)
        w->narrow = kv_alloc(info->ctx * kv_shape_q_most(&info->shape),
                             sizeof(*w->narrow));
    *out = w;
    return 0;
}

int kv_dump_put_tokens(struct kv_dump_writer *w, size_t first_window,
                       size_t n_windows, const int32_t *tokens,
                       struct kv_err *e)
{
    const size_t ctx = w->info.ctx, first[] = {first_window, 0};
    const size_t count[] = {n_windows, ctx};
    int32_t *position = kv_alloc(n_windows * ctx, sizeof(*position));
    int rc = 0;

    for (size_t i = 0; i < n_windows * ctx; i++)
        position[i] = (int32_t)(i % ctx);
    if (kv_h5_write(w->h5, "/tokens", KV_H5_I32, first, count, tokens, e) ||
        kv_h5_write(w->h5, "/positions", KV_H5_I32, first, count, position, e))
        rc = -1;
    w->put_tokens += n_windows;
    free(position);
    return rc;
}

static int fail_at(const struct kv_dump_writer *w, size_t layer,
                   enum kv_tensor t, size_t window, size_t i, const char *what,
                   struct kv_err *e)
{
    const size_t dim = kv_shape_dim(&w->info.shape, layer);
    const size_t row = kv_dump_heads(&w->info, layer, t) * dim;

    return kv_fail(e, "layer %zu, %s, token %zu, head %zu, channel %zu: %s",
                   layer, kv_tensor_name(t), window * w->info.ctx + i / row,
                   i % row / dim, i % dim, what);
}

/* Converts one window to w->narrow.  Returns the index of the first value that
 * does not fit, or n.  (In bf16 only the last half ulp of finite floats does
 * not fit.) */
static size_t to_16_bits(struct kv_dump_writer *w, const float *x, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const bool f16 = w->info.dtype == KV_F16;
        const uint16_t u = f16 ? kv_f32_to_f16(x[i]) : kv_f32_to_bf16(x[i]);
        const uint16_t infinity = f16 ? 0x7c00 : 0x7f80;

        if ((u & 0x7fff) >= infinity)
            return i;
        w->narrow[i] = u;
    }
    return n;
}

int kv_dump_put(struct kv_dump_writer *w, size_t layer, enum kv_tensor t,
                size_t first_window, size_t n_windows, const float *x,
                struct kv_err *e)
{
    const struct kv_dump_info *info = &w->info;
    const size_t heads = kv_dump_heads(info, layer, t);
    const size_t d = kv_shape_dim(&info->shape, layer);
    const size_t n = info->ctx * heads * d;
    const struct kv_dump_name name = kv_dump_set(layer, t);

    for (size_t i = 0; i < n_windows; i++, x += n) {
        const size_t window = first_window + i, first[] = {window, 0, 0, 0};
        const size_t count[] = {1, info->ctx, heads, d};
        const void *as = x;
        size_t bad = kv_dump_bad_value(x, n, FLT_MAX);

        if (bad < n)
            return fail_at(w, layer, t, window, bad,
                           "the model computed a value that is not finite", e);
        if (kv_dump_dtype(info, t) != KV_F32) {
            as = w->narrow;
            bad = to_16_bits(w, x, n);
        }
        if (bad < n) {
            char what[96];

            snprintf(what, sizeof(what),
                     "%g does not fit in %s (try --dtype f32)", (double)x[bad],
                     kv_dtype_name(info->dtype));
            return fail_at(w, layer, t, window, bad, what, e);
        }
        if (kv_h5_write(w->h5, name.text, kv_dump_type(info, t), first, count,
                        as, e))
            return -1;
    }
    w->put[(layer - info->first_layer) * KV_TENSORS + t] += n_windows;
    return 0;
}

int kv_dump_put_gram(struct kv_dump_writer *w, size_t layer, const float *gram,
                     struct kv_err *e)
{
    const size_t d = kv_shape_dim(&w->info.shape, layer);
    const size_t dims[] = {kv_shape_kv_heads(&w->info.shape, layer), d, d};
    const struct kv_dump_name name = kv_dump_gram_set(layer);

    kv_h5_dataset(w->h5, name.text, KV_H5_F32, 3, dims);
    return kv_h5_write(w->h5, name.text, KV_H5_F32, NULL, NULL, gram, e);
}

/* Fails unless every window was put. */
static int check_whole(const struct kv_dump_writer *w, struct kv_err *e)
{
    const struct kv_dump_info *info = &w->info;
    const char *path = kv_h5_path(w->h5);

    if (w->put_tokens != info->n_windows)
        return kv_fail(e, "%s: tokens of %zu windows of %zu were put", path,
                       w->put_tokens, info->n_windows);
    for (size_t i = 0; i < n_layers(info) * KV_TENSORS && !w->index; i++) {
        const enum kv_tensor t = (enum kv_tensor)(i % KV_TENSORS);

        if (info->have[t] && w->put[i] != info->n_windows)
            return kv_fail(e, "%s: layer %zu, %s: %zu windows of %zu were put",
                           path, info->first_layer + i / KV_TENSORS,
                           kv_tensor_name(t), w->put[i], info->n_windows);
    }
    return 0;
}

int kv_dump_commit(struct kv_dump_writer *w, struct kv_err *e)
{
    int rc = check_whole(w, e);

    if (!rc) {
        rc = kv_h5_commit(w->h5, e);
        w->h5 = NULL;
    }
    kv_dump_discard(w);
    return rc;
}

void kv_dump_discard(struct kv_dump_writer *w)
{
    if (!w)
        return;
    kv_h5_close(w->h5);
    free(w->narrow);
    free(w->put);
    free(w);
}
