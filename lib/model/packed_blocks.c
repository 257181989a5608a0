#include "lib/model/packed_impl.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- for all readers of packed matrices ---------------------------------- */

void kv_packed_dims(char text[KV_PACKED_SHAPE], const size_t *dims, size_t n)
{
    *text = 0;
    for (size_t i = 0; i < n; i++)
        snprintf(text + strlen(text), KV_PACKED_SHAPE - strlen(text), "%s%zu",
                 i ? ", " : "", dims[i]);
}

const struct kv_weight *kv_packed_part(const struct kv_weights *w,
                                       const char *base, size_t n,
                                       const char *last)
{
    char name[KV_UNPACKED_NAME + 32];

    snprintf(name, sizeof(name), "%.*s%s", (int)n, base, last);
    return kv_weights_find(w, name);
}

int kv_packed_type(const struct kv_weight *t, const char *dtype,
                   struct kv_err *e)
{
    return strcmp(t->dtype, dtype)
               ? kv_fail(e, "%s: tensor %s has type %s; %s expected", t->path,
                         t->name, t->dtype, dtype)
               : 0;
}

/* Writes the header's fields that determine shapes to text. */
static void say_header(const struct kv_packed_header *h, char *text,
                       size_t bytes)
{
    if (h->packing == KV_PACKED_SCALED)
        snprintf(text, bytes, "%s [%zu, %zu]",
                 h->compressed ? "block_structure" : "weight_block_size",
                 h->block_rows, h->block_columns);
    else
        snprintf(text, bytes, "%s %u and group_size %zd",
                 h->compressed ? "num_bits" : "bits", h->bits,
                 h->group ? (ssize_t)h->group : -1);
}

int kv_packed_shape(const struct kv_packed_header *h, const struct kv_weight *t,
                    const struct kv_weight *of, const size_t *want, size_t n,
                    struct kv_err *e)
{
    char is[KV_PACKED_SHAPE], should[KV_PACKED_SHAPE], by[128] = "";

    if (t->n_dims == n && !memcmp(t->dims, want, n * sizeof(*want)))
        return 0;
    kv_packed_dims(is, t->dims, t->n_dims);
    kv_packed_dims(should, want, n);
    if (h->packing != KV_PACKED_NVFP4 && h->packing != KV_PACKED_MXFP4)
        say_header(h, by, sizeof(by));
    return kv_fail(e,
                   "%s: tensor %s has shape [%s]; by %s%s%s%stensor %s it is "
                   "[%s]",
                   t->path, t->name, is, by, *by ? " in " : "",
                   *by ? h->path : "", *by ? " and " : "", of->name, should);
}

int kv_packed_scales(struct kv_packed *p, const struct kv_weight *scale,
                     struct kv_err *e)
{
    if (scale->type > KV_STORED_BF16)
        return kv_fail(e,
                       "%s: tensor %s has type %s; F32, F16 or BF16 expected",
                       scale->path, scale->name, scale->dtype);
    p->scale = scale->data;
    p->scale_type = scale->type == KV_STORED_F32   ? KV_TYPE_F32
                    : scale->type == KV_STORED_F16 ? KV_TYPE_F16
                                                   : KV_TYPE_BF16;
    return 0;
}

static int missing(const struct kv_weight *t, const char *last,
                   struct kv_err *e)
{
    return kv_fail(e, "%s: tensor %s has no %s beside it", t->path, t->name,
                   last);
}

/* ---- words --------------------------------------------------------------- */

/* Reads rows and columns from weight_shape; the shape of the codes must fit. */
static int read_sizes(struct kv_packed *p, const struct kv_packed_header *h,
                      const struct kv_weight *t, const struct kv_weight *shape,
                      struct kv_err *e)
{
    const size_t per = 32 / p->bits, two[] = {2};
    int64_t size[2];

    if (kv_packed_type(t, "I32", e) || kv_packed_type(shape, "I64", e) ||
        kv_packed_shape(h, shape, t, two, 1, e))
        return -1;
    memcpy(size, shape->data, sizeof(size));
    p->rows = (size_t)size[0];
    p->columns = (size_t)size[1];
    return t->n_dims == 2 && size[0] > 0 && size[1] > 0 &&
                   p->rows == t->dims[0] &&
                   (p->columns - 1) / per + 1 == t->dims[1]
               ? 0
               : kv_fail(e,
                         "%s: tensor %s says [%lld, %lld], which the words of "
                         "tensor %s do not hold by num_bits %u in %s",
                         t->path, shape->name, (long long)size[0],
                         (long long)size[1], t->name, p->bits, h->path);
}

/* Reads zeros and the groups of inputs, if the header says that there are
 * any. */
static int read_zeros(struct kv_packed *p, const struct kv_packed_header *h,
                      const struct kv_weights *w, const struct kv_weight *t,
                      size_t n, struct kv_err *e)
{
    const struct kv_weight *zero =
        h->symmetric ? NULL
                     : kv_packed_part(w, t->name, n, "weight_zero_point");
    const struct kv_weight *group =
        h->ordered ? kv_packed_part(w, t->name, n, "weight_g_idx") : NULL;
    const size_t zeros[] = {(p->rows - 1) / (32 / p->bits) + 1, p->n_groups};
    const size_t groups[] = {p->columns};

    if (!zero != h->symmetric)
        return missing(t, "weight_zero_point", e);
    if (!group == h->ordered)
        return missing(t, "weight_g_idx", e);
    if ((zero && (kv_packed_type(zero, "I32", e) ||
                  kv_packed_shape(h, zero, t, zeros, 2, e))) ||
        (group && (kv_packed_type(group, "I32", e) ||
                   kv_packed_shape(h, group, t, groups, 1, e))))
        return -1;
    p->zero = zero ? zero->data : NULL;
    p->group = group ? group->data : NULL;
    return 0;
}

static int read_words(struct kv_packed *p, const struct kv_packed_header *h,
                      const struct kv_weights *w, const struct kv_weight *t,
                      size_t n, struct kv_err *e)
{
    const struct kv_weight *shape =
        kv_packed_part(w, t->name, n, "weight_shape");
    const struct kv_weight *scale =
        kv_packed_part(w, t->name, n, "weight_scale");

    if (!shape || !scale)
        return missing(t, shape ? "weight_scale" : "weight_shape", e);
    *p = (struct kv_packed){
        .packing = KV_PACKED_WORDS, .bits = h->bits, .code = t->data};
    if (read_sizes(p, h, t, shape, e))
        return -1;
    p->block_columns = h->group ? h->group : p->columns;
    p->n_groups = (p->columns - 1) / p->block_columns + 1;
    if (p->columns % p->block_columns)
        return kv_fail(e,
                       "%s: tensor %s: group_size %zu in %s does not divide "
                       "its %zu inputs",
                       t->path, t->name, p->block_columns, h->path, p->columns);

    const size_t scales[] = {p->rows, p->n_groups};

    return kv_packed_shape(h, scale, t, scales, 2, e) ||
                   kv_packed_scales(p, scale, e) || read_zeros(p, h, w, t, n, e)
               ? -1
               : 0;
}

/* ---- nvfp4 and mxfp4 ----------------------------------------------------- */

/* Reads the scale of the scales: compressed-tensors divides by it, ModelOpt
 * multiplies by it. */
static int read_over(struct kv_packed *p, const struct kv_packed_header *h,
                     const struct kv_weights *w, const struct kv_weight *t,
                     size_t n, struct kv_err *e)
{
    const char *last = h->compressed ? "weight_global_scale" : "weight_scale_2";
    const struct kv_weight *all = kv_packed_part(w, t->name, n, last);
    float x = 0;

    if (!all)
        return missing(t, last, e);
    if (kv_packed_type(all, "F32", e))
        return -1;
    if (all->n == 1)
        memcpy(&x, all->data, sizeof(x));
    p->over = h->compressed ? x : 1;
    p->times = h->compressed ? 1 : x;
    return x > 0 && isfinite(x)
               ? 0
               : kv_fail(e, "%s: tensor %s is not one number above 0",
                         all->path, all->name);
}

/* Reads codes of two columns a byte: [matrix][row][block][16] in gpt-oss, else
 * [row][columns / 2]. */
static int read_floats(struct kv_packed *p, const struct kv_packed_header *h,
                       const struct kv_weights *w, const struct kv_weight *t,
                       size_t n, struct kv_err *e)
{
    const bool nv = h->packing == KV_PACKED_NVFP4;
    const bool several = !nv && !h->compressed;
    const char *last = several ? "_scales" : "weight_scale";
    const struct kv_weight *scale = kv_packed_part(w, t->name, n, last);
    const size_t dims = several ? 4 : 2, block = nv ? 16 : 32;
    char is[KV_PACKED_SHAPE];

    if (!scale)
        return missing(t, last, e);
    if (kv_packed_type(t, "U8", e) ||
        kv_packed_type(scale, nv ? "F8_E4M3" : "U8", e))
        return -1;
    kv_packed_dims(is, t->dims, t->n_dims);
    if (t->n_dims != dims || !t->n ||
        t->dims[dims - 1] % (several ? 16 : block / 2) ||
        (several && t->dims[dims - 1] != 16))
        return kv_fail(e,
                       "%s: tensor %s has shape [%s]; %s were expected of %s",
                       t->path, t->name, is,
                       several ? "four dimensions, the last of 16 bytes"
                               : "rows of whole blocks",
                       nv ? "nvfp4" : "mxfp4");
    *p = (struct kv_packed){
        .packing = h->packing,
        .rows = several ? t->dims[0] * t->dims[1] : t->dims[0],
        .columns = (several ? t->dims[2] * 16 : t->dims[1]) * 2,
        .block_columns = block,
        .code = t->data,
        .scale = scale->data,
        .over = 1,
        .times = 1};

    const size_t two[] = {p->rows, p->columns / block};

    return kv_packed_shape(h, scale, t, several ? t->dims : two,
                           several ? 3 : 2, e) ||
                   (nv && read_over(p, h, w, t, n, e))
               ? -1
               : 0;
}

int kv_packed_blocks(struct kv_packed *p, const struct kv_packed_header *h,
                     const struct kv_weights *w, const struct kv_weight *t,
                     size_t n, struct kv_err *e)
{
    return h->packing == KV_PACKED_WORDS ? read_words(p, h, w, t, n, e)
                                         : read_floats(p, h, w, t, n, e);
}
