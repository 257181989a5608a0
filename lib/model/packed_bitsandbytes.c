#include "lib/model/packed_impl.h"

#include <stdio.h>
#include <string.h>

/* ---- 4 bits -------------------------------------------------------------- */

/* *data: the data of the tensor named t's name + last, which must have this
 * type and n values. */
static int read_part(const void **data, const struct kv_weights *w,
                     const struct kv_weight *t, const char *last,
                     const char *dtype, size_t n, struct kv_err *e)
{
    const struct kv_weight *part =
        kv_packed_part(w, t->name, strlen(t->name), last);

    if (!part)
        return kv_fail(e, "%s: tensor %s has no %s%s beside it", t->path,
                       t->name, t->name, last);
    if (kv_packed_type(part, dtype, e))
        return -1;
    *data = part->data;
    return part->n == n ? 0
                        : kv_fail(e,
                                  "%s: tensor %s has %zu values; by tensor %s "
                                  "and its quant_state it has %zu",
                                  t->path, part->name, part->n, t->name, n);
}

/* Reads the rows and columns of the matrix whose codes t holds. */
static int read_shape(struct kv_packed *p, const struct kv_fields *f,
                      const struct kv_weight *t, struct kv_err *e)
{
    const json_t *shape = kv_fields_get(f, "shape");
    const json_int_t rows = json_integer_value(json_array_get(shape, 0));
    const json_int_t columns = json_integer_value(json_array_get(shape, 1));

    if (json_array_size(shape) != 2 || rows < 1 || columns < 1 || rows >> 31 ||
        columns >> 31 || ((size_t)rows * (size_t)columns + 1) / 2 != t->n)
        return kv_fail(e,
                       "%s: field %sshape is not the two sizes of %zu bytes of "
                       "codes of 4 bits",
                       f->path, f->in, t->n);
    p->rows = (size_t)rows;
    p->columns = (size_t)columns;
    return 0;
}

/* Reads the scales of blocks: floats, or bytes that have scales of their
 * own. */
static int read_scales(struct kv_packed *p, const struct kv_fields *f,
                       const struct kv_weights *w, const struct kv_weight *t,
                       struct kv_err *e)
{
    const size_t n = (p->rows * p->columns - 1) / p->block_columns + 1;
    const json_t *offset = kv_fields_get(f, "nested_offset");
    const struct kv_field floats = {"nested_dtype", "\"float32\""};

    if (!kv_fields_get(f, "nested_blocksize"))
        return read_part(&p->scale, w, t, ".absmax", "F32", n, e);
    if (kv_fields_size(f, "nested_blocksize", 1, 1 << 20, &p->nest, e) ||
        kv_fields_only(f, &floats, e))
        return -1;
    if (!json_is_number(offset))
        return kv_fail(e, "%s: field %snested_offset is no number", f->path,
                       f->in);
    p->nest_offset = (float)json_number_value(offset);
    return read_part(&p->scale, w, t, ".absmax", "U8", n, e) ||
           read_part(&p->nest_level, w, t, ".nested_quant_map", "F32", 256,
                     e) ||
           read_part(&p->nest_scale, w, t, ".nested_absmax", "F32",
                     (n - 1) / p->nest + 1, e);
}

static int read_levels(struct kv_packed *p, const struct kv_fields *f,
                       const char *kind, const struct kv_weights *w,
                       const struct kv_weight *t, struct kv_err *e)
{
    char text[8];
    const struct kv_field type = {"quant_type", text};

    snprintf(text, sizeof(text), "\"%s\"", kind);
    *p = (struct kv_packed){.packing = KV_PACKED_LEVELS, .code = t->data};
    return kv_fields_only(f, &type, e) || read_shape(p, f, t, e) ||
           kv_fields_size(f, "blocksize", 1, 1 << 20, &p->block_columns, e) ||
           read_part(&p->level, w, t, ".quant_map", "F32", 16, e) ||
           read_scales(p, f, w, t, e);
}

/* Reads the quant_state: JSON in a tensor whose name ends with the kind of
 * levels. */
static int read_state(struct kv_packed *p, const struct kv_weights *w,
                      const struct kv_weight *t, struct kv_err *e)
{
    static const char *const kinds[] = {"nf4", "fp4"};
    const struct kv_weight *state = NULL;
    char last[64], in[300];
    json_error_t wrong;
    size_t kind = 0;
    json_t *json;
    int rc;

    for (; kind < 2 && !state; kind++) {
        snprintf(last, sizeof(last), ".quant_state.bitsandbytes__%s",
                 kinds[kind]);
        state = kv_packed_part(w, t->name, strlen(t->name), last);
    }
    if (!state)
        return kv_fail(e,
                       "%s: tensor %s has no quant_state beside it, %s."
                       "quant_state.bitsandbytes__nf4 or bitsandbytes__fp4",
                       t->path, t->name, t->name);
    if (kv_packed_type(state, "U8", e))
        return -1;
    json = json_loadb((const char *)state->data, state->bytes,
                      JSON_REJECT_DUPLICATES, &wrong);
    if (!json_is_object(json)) {
        json_decref(json);
        return kv_fail(e, "%s: tensor %s holds no JSON object", t->path,
                       state->name);
    }
    snprintf(in, sizeof(in), "%s.", t->name);

    const struct kv_fields f = {.path = t->path, .in = in, .json = json};

    rc = read_levels(p, &f, kinds[kind - 1], w, t, e) ? -1 : 0;
    json_decref(json);
    return rc;
}

/* ---- int8 -----------------------------------------------------------------
 */

/* Reads an int8 matrix.  SCB has each row's largest magnitude, whose code is
 * 127. */
static int read_int8(struct kv_packed *p, const struct kv_weights *w,
                     const struct kv_weight *t, size_t n, struct kv_err *e)
{
    const struct kv_weight *scale = kv_packed_part(w, t->name, n, "SCB");
    const struct kv_weight *format =
        kv_packed_part(w, t->name, n, "weight_format");

    if (!scale)
        return kv_fail(e, "%s: tensor %s has no SCB beside it", t->path,
                       t->name);
    if (format &&
        (kv_packed_type(format, "U8", e) || format->n != 1 || format->data[0]))
        return kv_fail(e,
                       "%s: tensor %s is not 0, the order of rows: others are "
                       "not implemented",
                       t->path, format->name);
    if (kv_packed_type(scale, "F32", e))
        return -1;
    if (t->n_dims != 2 || !t->n || scale->n != t->dims[0])
        return kv_fail(e,
                       "%s: tensor %s has %zu values; a matrix %s of so many "
                       "rows was expected",
                       t->path, scale->name, scale->n, t->name);
    *p = (struct kv_packed){.packing = KV_PACKED_SCALED,
                            .rows = t->dims[0],
                            .columns = t->dims[1],
                            .block_rows = 1,
                            .block_columns = t->dims[1],
                            .code_type = KV_STORED_OTHER,
                            .scale_type = KV_TYPE_F32,
                            .times = 7.874015718698502e-3f, /* 1 / 127 */
                            .code = t->data,
                            .scale = scale->data};
    return 0;
}

int kv_packed_bitsandbytes(struct kv_packed *p,
                           const struct kv_packed_header *h,
                           const struct kv_weights *w,
                           const struct kv_weight *t, size_t n,
                           struct kv_err *e)
{
    return h->int8 ? read_int8(p, w, t, n, e) : read_state(p, w, t, e);
}
