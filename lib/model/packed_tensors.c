#include "lib/model/packed_tensors.h"
#include "lib/base/alloc.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

struct format {
    const char *path; /* of config.json */
    enum kv_packing packing;
    unsigned bits;
    bool zero_less;
    size_t group;                     /* columns; 0: all */
    size_t block_rows, block_columns; /* of fp8; 0: by the scales' shape */
};

static const char *text_of(const json_t *q, const char *name,
                           const char *missing)
{
    const char *text = json_string_value(json_object_get(q, name));

    return text ? text : missing;
}

/* A count under either name; -1 is all. */
static int read_count(const json_t *q, const char *name, const char *other,
                      const char *path, size_t *n, struct kv_err *e)
{
    const json_t *j = json_object_get(q, name);

    j = j ? j : json_object_get(q, other);
    if (!json_is_integer(j) || json_integer_value(j) < -1 ||
        json_integer_value(j) == 0)
        return kv_fail(e, "%s: quantization_config has no %s from 1 on", path,
                       name);
    *n = json_integer_value(j) < 0 ? 0 : (size_t)json_integer_value(j);
    return 0;
}

static int read_integers(struct format *f, const json_t *q, struct kv_err *e)
{
    const json_t *dynamic = json_object_get(q, "dynamic");
    const char *format =
        text_of(q, "checkpoint_format", text_of(q, "format", "gptq"));
    const char *version = text_of(q, "version", "gemm");
    size_t bits;

    if (read_count(q, "bits", "w_bit", f->path, &bits, e) ||
        read_count(q, "group_size", "q_group_size", f->path, &f->group, e))
        return -1;
    if (bits != 4 && (f->packing == KV_PACKED_AWQ || (bits != 2 && bits != 8)))
        return kv_fail(e, "%s: %s of %zu bits is not implemented", f->path,
                       f->packing == KV_PACKED_AWQ ? "awq" : "gptq", bits);
    f->bits = (unsigned)bits;
    if (f->packing == KV_PACKED_AWQ) {
        if (strcasecmp(version, "gemm"))
            return kv_fail(e,
                           "%s: awq of version %s is not implemented, only "
                           "gemm",
                           f->path, version);
        if (json_is_false(json_object_get(q, "zero_point")))
            return kv_fail(e, "%s: awq without zero_point is not implemented",
                           f->path);
        return 0;
    }
    if (strcmp(format, "gptq") && strcmp(format, "gptq_v2"))
        return kv_fail(e,
                       "%s: checkpoint_format %s is not implemented, only "
                       "gptq and gptq_v2",
                       f->path, format);
    if (json_object_size(dynamic))
        return kv_fail(e,
                       "%s: quantization_config with dynamic is not "
                       "implemented",
                       f->path);
    f->zero_less = !strcmp(format, "gptq");
    return 0;
}

static int read_fp8(struct format *f, const json_t *q, struct kv_err *e)
{
    const json_t *size = json_object_get(q, "weight_block_size");
    const json_int_t rows = json_integer_value(json_array_get(size, 0));
    const json_int_t columns = json_integer_value(json_array_get(size, 1));

    if (!size || json_is_null(size))
        return 0;
    if (json_array_size(size) != 2 || rows < 1 || columns < 1)
        return kv_fail(e, "%s: weight_block_size is not two sizes", f->path);
    f->block_rows = (size_t)rows;
    f->block_columns = (size_t)columns;
    return 0;
}

static int read_format(struct format *f, const json_t *q, struct kv_err *e)
{
    const char *method = text_of(q, "quant_method", "(none)");

    if (!strcmp(method, "fp8")) {
        f->packing = KV_PACKED_SCALED;
        return read_fp8(f, q, e);
    }
    f->packing = strcmp(method, "awq") ? KV_PACKED_GPTQ : KV_PACKED_AWQ;
    if (strcmp(method, "awq") && strcmp(method, "gptq"))
        return kv_fail(e,
                       "%s: quantization_config has quant_method %s; fp8, gptq "
                       "and awq are implemented",
                       f->path, method);
    return read_integers(f, q, e);
}

/* The tensor that is called so, after the first n letters of base. */
static const struct kv_weight *part_of(const struct kv_weights *w,
                                       const char *base, size_t n,
                                       const char *last)
{
    char name[256];

    snprintf(name, sizeof(name), "%.*s%s", (int)n, base, last);
    return kv_weights_find(w, name);
}

static int read_scales(struct kv_packed *p, const struct kv_weight *scale,
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

static int wrong_shape(const struct kv_weight *t, const char *of,
                       struct kv_err *e)
{
    return kv_fail(e,
                   "%s: tensor %s is not of the type and shape that go with "
                   "%s",
                   t->path, t->name, of);
}

static int read_scaled(struct kv_packed *p, const struct format *f,
                       const struct kv_weight *t, const struct kv_weight *scale,
                       struct kv_err *e)
{
    if (t->n_dims != 2 || !t->n ||
        (t->type != KV_STORED_F8_E4M3 && t->type != KV_STORED_F8_E5M2))
        return wrong_shape(t, scale->name, e);
    *p = (struct kv_packed){.packing = KV_PACKED_SCALED,
                            .rows = t->dims[0],
                            .columns = t->dims[1],
                            .block_rows = f->block_rows,
                            .block_columns = f->block_columns,
                            .code_type = t->type,
                            .code = t->data};
    if (read_scales(p, scale, e))
        return -1;
    if (scale->n == 1 && !f->block_rows) {
        p->block_rows = p->rows;
        p->block_columns = p->columns;
    } else if (!f->block_rows) { /* one a row */
        p->block_rows = 1;
        p->block_columns = p->columns;
    }

    const size_t down = (p->rows - 1) / p->block_rows + 1;
    const size_t across = (p->columns - 1) / p->block_columns + 1;

    return scale->n == down * across ? 0 : wrong_shape(scale, t->name, e);
}

static bool is_words(const struct kv_weight *t, size_t rows, size_t columns)
{
    return t && !strcmp(t->dtype, "I32") && t->n_dims == 2 &&
           t->dims[0] == rows && t->dims[1] == columns;
}

/* t: X.qweight, n letters of X and its dot. */
static int read_words(struct kv_packed *p, const struct format *f,
                      const struct kv_weights *w, const struct kv_weight *t,
                      size_t n, struct kv_err *e)
{
    const struct kv_weight *scale = part_of(w, t->name, n, "scales");
    const struct kv_weight *zero = part_of(w, t->name, n, "qzeros");
    const struct kv_weight *group = part_of(w, t->name, n, "g_idx");
    const size_t per = 32 / f->bits;
    const bool awq = f->packing == KV_PACKED_AWQ;

    if (!scale || !zero)
        return kv_fail(e, "%s: tensor %s has no %s beside it", t->path, t->name,
                       scale ? "qzeros" : "scales");
    if (t->n_dims != 2 || !is_words(t, t->dims[0], t->dims[1]))
        return wrong_shape(t, scale->name, e);
    *p = (struct kv_packed){.packing = f->packing,
                            .rows = t->dims[1] * (awq ? per : 1),
                            .columns = t->dims[0] * (awq ? 1 : per),
                            .bits = f->bits,
                            .zero_less = f->zero_less,
                            .n_groups = scale->dims[0],
                            .code = t->data,
                            .zero = zero->data,
                            .group = group ? group->data : NULL};
    p->block_columns = f->group ? f->group : p->columns;
    if (read_scales(p, scale, e))
        return -1;
    if (scale->n_dims != 2 || scale->dims[1] != p->rows)
        return wrong_shape(scale, t->name, e);
    if (!is_words(zero, p->n_groups, p->rows / per))
        return wrong_shape(zero, t->name, e);
    if (group && (strcmp(group->dtype, "I32") || group->n != p->columns))
        return wrong_shape(group, t->name, e);
    return 0;
}

/* Will be in place of w->weight[i], which holds its codes. */
static void add(struct kv_weights *w, size_t i, const struct kv_packed *p,
                size_t n)
{
    const struct kv_weight *t = w->weight[i];
    struct kv_unpacked *u = kv_alloc(1, sizeof(*u));

    u->packed = *p;
    u->weight = *t;
    snprintf(u->name, sizeof(u->name), "%.*sweight", (int)n, t->name);
    u->weight.name = u->name;
    u->weight.type = p->packing == KV_PACKED_SCALED ? t->type : KV_STORED_F32;
    u->weight.packed = &u->packed;
    u->weight.n_dims = 2;
    u->weight.dims[0] = p->rows;
    u->weight.dims[1] = p->columns;
    u->weight.n = p->rows * p->columns;
    u->next = w->unpacked;
    u->at = i;
    w->unpacked = u;
}

/* Letters of `name` before `last`, which ends it; 0: it does not. */
static size_t before(const char *name, const char *last)
{
    const size_t n = strlen(name), n_last = strlen(last);

    return n > n_last && n < KV_UNPACKED_NAME &&
                   !strcmp(name + n - n_last, last)
               ? n - n_last
               : 0;
}

static int unpack(struct kv_weights *w, size_t i, const struct format *f,
                  struct kv_err *e)
{
    const struct kv_weight *t = w->weight[i];
    const bool scaled = f->packing == KV_PACKED_SCALED;
    const size_t n = before(t->name, scaled ? "weight" : "qweight");
    const struct kv_weight *scale = NULL;
    struct kv_packed p;

    if (n && scaled) {
        scale = part_of(w, t->name, n, "weight_scale_inv");
        scale = scale ? scale : part_of(w, t->name, n, "weight_scale");
    }
    if (!n || (scaled && !scale))
        return 0;
    if (scaled ? read_scaled(&p, f, t, scale, e)
               : read_words(&p, f, w, t, n, e))
        return -1;
    if (kv_packed_check(&p, e))
        return kv_fail_in(e, "%s: tensor %s", t->path, t->name);
    add(w, i, &p, n);
    return 0;
}

int kv_weights_unpack(struct kv_weights *w, const json_t *quantization,
                      const char *path, struct kv_err *e)
{
    struct format f = {.path = path};

    if (!quantization || json_is_null(quantization))
        return 0;
    if (read_format(&f, quantization, e))
        return -1;
    for (size_t i = 0; i < w->n_weights; i++)
        if (unpack(w, i, &f, e))
            return -1;
    for (struct kv_unpacked *u = w->unpacked; u; u = u->next)
        w->weight[u->at] = &u->weight;
    return kv_weights_sort(w, e);
}
