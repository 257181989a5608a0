#include "lib/h5_head.h"
#include "lib/base/opt.h"

#include <math.h>
#include <string.h>

/* A faster rotation is another, slower one, and its angles lose their digits.
 */
static const float MAX_TURN = 6.2831853f;

void kv_h5_put_kind(struct kv_h5 *h, const char *kind, int format)
{
    kv_h5_put_text(h, "/", "kind", kind);
    kv_h5_put_int(h, "/", "format", format);
    kv_h5_put_text(h, "/", "tool_version", kv_version());
}

int kv_h5_check_kind(struct kv_h5 *h, const char *kind, int format,
                     struct kv_err *e)
{
    const char *path = kv_h5_path(h);
    char is[64];
    int64_t version;

    if (!kv_h5_has_attr(h, "/", "kind"))
        return kv_fail(e, "%s is not a file of kvtools (no attribute kind)",
                       path);
    if (kv_h5_get_text(h, "/", "kind", is, sizeof(is), e))
        return -1;
    if (strcmp(is, kind))
        return kv_fail(e, "%s is a %s file, expected a %s", path, is, kind);
    if (kv_h5_get_int(h, "/", "format", 1, INT64_MAX, &version, e))
        return -1;
    if (version > format)
        return kv_fail(e,
                       "%s has format %lld, this version of kvtools (%s) "
                       "reads formats up to %d",
                       path, (long long)version, kv_version(), format);
    return 0;
}

int kv_h5_put_shape(struct kv_h5 *h, const struct kv_shape *s, struct kv_err *e)
{
    if (s->alibi)
        return kv_fail(e, "%s: files for models with ALiBi are not implemented",
                       kv_h5_path(h));
    kv_h5_put_int(h, "/", "n_layers", (int64_t)s->n_layers);
    kv_h5_put_int(h, "/", "n_heads", (int64_t)s->n_heads);
    kv_h5_put_int(h, "/", "n_kv_heads", (int64_t)s->n_kv_heads);
    kv_h5_put_int(h, "/", "head_dim", (int64_t)s->head_dim);
    kv_h5_put_real(h, "/", "attn_scale", (double)s->attn_scale);
    kv_h5_dataset(h, "/inv_freq", KV_H5_F32, 1, &s->n_rot);
    return kv_h5_write(h, "/inv_freq", KV_H5_F32, NULL, NULL, s->inv_freq, e);
}

int kv_h5_get_shape(struct kv_h5 *h, struct kv_shape *s, struct kv_err *e)
{
    enum { MANY = 1 << 16 };
    const char *path = kv_h5_path(h);
    size_t n_dims, dims[KV_H5_MAX_DIMS];
    double scale;

    memset(s, 0, sizeof(*s));
    if (kv_h5_get_size(h, "/", "n_layers", 1, MANY, &s->n_layers, e) ||
        kv_h5_get_size(h, "/", "n_heads", 1, MANY, &s->n_heads, e) ||
        kv_h5_get_size(h, "/", "n_kv_heads", 1, s->n_heads, &s->n_kv_heads,
                       e) ||
        kv_h5_get_size(h, "/", "head_dim", 2, KV_MAX_HEAD_DIM, &s->head_dim,
                       e) ||
        kv_h5_get_real(h, "/", "attn_scale", &scale, e) ||
        kv_h5_dims(h, "/inv_freq", &n_dims, dims, e))
        return -1;
    if (s->n_heads % s->n_kv_heads)
        return kv_fail(e,
                       "%s: %zu query heads do not divide among %zu KV heads",
                       path, s->n_heads, s->n_kv_heads);
    if (s->head_dim % 2)
        return kv_fail(e, "%s: head_dim is %zu, expected an even number", path,
                       s->head_dim);
    s->attn_scale = (float)scale;
    if (!isfinite(s->attn_scale) || !(s->attn_scale > 0))
        return kv_fail(e, "%s: attn_scale is %g, expected a finite f32 above 0",
                       path, scale);
    if (n_dims != 1)
        return kv_fail(e, "%s: /inv_freq has %zu dimensions, expected 1", path,
                       n_dims);
    if (dims[0] > s->head_dim / 2)
        return kv_fail(e, "%s: /inv_freq has %zu entries, expected at most %zu",
                       path, dims[0], s->head_dim / 2);
    s->n_rot = dims[0];
    if (kv_h5_read(h, "/inv_freq", KV_H5_F32, NULL, NULL, s->inv_freq, e))
        return -1;
    for (size_t i = 0; i < s->n_rot; i++)
        if (!(s->inv_freq[i] >= 0 && s->inv_freq[i] <= MAX_TURN))
            return kv_fail(e,
                           "%s: /inv_freq holds %g, expected 0 to %g, a turn a "
                           "token",
                           path, (double)s->inv_freq[i], (double)MAX_TURN);
    return 0;
}

int kv_shape_same(const struct kv_shape *is, const struct kv_shape *want,
                  struct kv_err *e)
{
    const struct {
        const char *what;
        size_t is, want;
    } counts[] = {
        {"layers", is->n_layers, want->n_layers},
        {"query heads", is->n_heads, want->n_heads},
        {"KV heads", is->n_kv_heads, want->n_kv_heads},
        {"channels per head", is->head_dim, want->head_dim},
        {"rotary pairs", is->n_rot, want->n_rot},
    };

    for (size_t i = 0; i < sizeof(counts) / sizeof(*counts); i++)
        if (counts[i].is != counts[i].want)
            return kv_fail(e, "it has %zu %s, expected %zu", counts[i].is,
                           counts[i].what, counts[i].want);
    if (memcmp(is->inv_freq, want->inv_freq,
               is->n_rot * sizeof(*is->inv_freq)) != 0)
        return kv_fail(e, "its rotary frequencies are others");
    if (is->attn_scale != want->attn_scale)
        return kv_fail(e, "its attention scale is %g, expected %g",
                       (double)is->attn_scale, (double)want->attn_scale);
    return 0;
}
