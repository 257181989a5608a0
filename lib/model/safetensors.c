#include "lib/model/safetensors.h"
#include "lib/base/alloc.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__,
               "tensors are used as they lie in the file: little endian");

static const struct {
    const char *name;
    size_t bytes;
    enum kv_stored type;
} dtypes[] = {
    {"F32", 4, KV_STORED_F32},         {"F16", 2, KV_STORED_F16},
    {"BF16", 2, KV_STORED_BF16},       {"F64", 8, KV_STORED_OTHER},
    {"I64", 8, KV_STORED_OTHER},       {"I32", 4, KV_STORED_OTHER},
    {"I16", 2, KV_STORED_OTHER},       {"I8", 1, KV_STORED_OTHER},
    {"U64", 8, KV_STORED_OTHER},       {"U32", 4, KV_STORED_OTHER},
    {"U16", 2, KV_STORED_OTHER},       {"U8", 1, KV_STORED_OTHER},
    {"BOOL", 1, KV_STORED_OTHER},      {"F8_E4M3", 1, KV_STORED_F8_E4M3},
    {"F8_E5M2", 1, KV_STORED_F8_E5M2},
};

/* Reads an integer >= 0. */
static int read_size(const json_t *j, size_t *out)
{
    if (!json_is_integer(j) || json_integer_value(j) < 0)
        return -1;
    *out = (size_t)json_integer_value(j);
    return 0;
}

static int read_shape(struct kv_weight *w, const json_t *shape,
                      struct kv_err *e)
{
    w->n = 1;
    w->n_dims = json_array_size(shape);
    if (!json_is_array(shape) || w->n_dims > KV_WEIGHT_DIMS)
        return kv_fail(e, "%s: tensor %s: no shape of at most %d sizes",
                       w->path, w->name, KV_WEIGHT_DIMS);
    for (size_t i = 0; i < w->n_dims; i++)
        if (read_size(json_array_get(shape, i), &w->dims[i]) ||
            __builtin_mul_overflow(w->n, w->dims[i], &w->n))
            return kv_fail(e, "%s: tensor %s: dimension %zu is not a size",
                           w->path, w->name, i);
    return 0;
}

/* data: the data_bytes bytes after the header. */
static int read_weight(struct kv_weight *w, const json_t *entry,
                       const uint8_t *data, size_t data_bytes, struct kv_err *e)
{
    const char *dtype = json_string_value(json_object_get(entry, "dtype"));
    const json_t *offsets = json_object_get(entry, "data_offsets");
    size_t kind = 0, begin, end, need;

    while (dtype && kind < sizeof(dtypes) / sizeof(*dtypes) &&
           strcmp(dtype, dtypes[kind].name))
        kind++;
    if (!dtype || kind == sizeof(dtypes) / sizeof(*dtypes))
        return kv_fail(e, "%s: tensor %s: unknown dtype %s", w->path, w->name,
                       dtype ? dtype : "(none)");
    w->dtype = dtypes[kind].name;
    w->type = dtypes[kind].type;
    if (read_shape(w, json_object_get(entry, "shape"), e))
        return -1;
    if (json_array_size(offsets) != 2 ||
        read_size(json_array_get(offsets, 0), &begin) ||
        read_size(json_array_get(offsets, 1), &end) || begin > end)
        return kv_fail(e, "%s: tensor %s: data_offsets are not [begin, end]",
                       w->path, w->name);
    if (end > data_bytes)
        return kv_fail(e,
                       "%s: tensor %s ends at byte %zu of %zu bytes of data: "
                       "the file is truncated or its header is wrong",
                       w->path, w->name, end, data_bytes);
    if (__builtin_mul_overflow(w->n, dtypes[kind].bytes, &need) ||
        need != end - begin)
        return kv_fail(e,
                       "%s: tensor %s: its shape needs %zu values of %zu "
                       "bytes, but data_offsets span %zu bytes",
                       w->path, w->name, w->n, dtypes[kind].bytes, end - begin);
    w->data = data + begin;
    w->bytes = end - begin;
    return 0;
}

static int by_place(const void *a, const void *b)
{
    const struct kv_weight *x = a, *y = b;

    if (x->data != y->data)
        return x->data < y->data ? -1 : 1;
    return (x->bytes > y->bytes) - (x->bytes < y->bytes);
}

/* Sorts the tensors by place; they must fill data without overlap. */
static int check_places(struct kv_safetensors *f, const uint8_t *data,
                        size_t data_bytes, struct kv_err *e)
{
    size_t at = 0; /* bytes of data that tensors cover */

    if (f->n_weights)
        qsort(f->weight, f->n_weights, sizeof(*f->weight), by_place);
    for (size_t i = 0; i < f->n_weights; i++) {
        const struct kv_weight *w = &f->weight[i];
        const size_t begin = (size_t)(w->data - data);

        if (begin < at)
            return kv_fail(e, "%s: tensors %s and %s overlap", f->path,
                           f->weight[i - 1].name, w->name);
        if (begin > at)
            return kv_fail(e,
                           "%s: bytes %zu to %zu of the data, before %s, "
                           "belong to no tensor",
                           f->path, at, begin, w->name);
        at += w->bytes;
    }
    if (at != data_bytes)
        return kv_fail(e, "%s: %zu bytes after the last tensor", f->path,
                       data_bytes - at);
    return 0;
}

static int read_header(struct kv_safetensors *f, const json_t *header,
                       struct kv_err *e)
{
    const uint8_t *data = f->map.data + 8 + f->header_bytes;
    const size_t data_bytes = f->map.bytes - 8 - f->header_bytes;
    const char *name;
    json_t *entry;

    f->weight = kv_alloc(json_object_size(header), sizeof(*f->weight));
    json_object_foreach((json_t *)(uintptr_t)header, name, entry)
    {
        struct kv_weight *w = &f->weight[f->n_weights];

        if (!strcmp(name, "__metadata__"))
            continue;
        *w = (struct kv_weight){.name = kv_strdup(name), .path = f->path};
        f->n_weights++;
        if (read_weight(w, entry, data, data_bytes, e))
            return -1;
    }
    return check_places(f, data, data_bytes, e);
}

int kv_safetensors_open(struct kv_safetensors *f, const char *path,
                        struct kv_err *e)
{
    json_error_t why;
    json_t *header = NULL;
    uint64_t n = 0;
    int rc = -1;

    *f = (struct kv_safetensors){.path = kv_strdup(path)};
    if (kv_map_open(&f->map, path, e) ||
        kv_lfs_check(path, f->map.data, f->map.bytes, e))
        goto out;
    if (f->map.bytes >= 8)
        memcpy(&n, f->map.data, 8);
    if (f->map.bytes < 8 || n > f->map.bytes - 8) {
        kv_fail(e,
                "%s: not a whole safetensors file: %zu bytes, of which the "
                "header alone would be %llu: the file is truncated or it is "
                "another kind",
                path, f->map.bytes, (unsigned long long)n);
        goto out;
    }
    f->header_bytes = (size_t)n;
    header = json_loadb((const char *)f->map.data + 8, f->header_bytes,
                        JSON_REJECT_DUPLICATES, &why);
    if (!json_is_object(header)) {
        kv_fail(e, "%s: the header is not a JSON object: %s", path,
                header ? "it is something else" : why.text);
        goto out;
    }
    rc = read_header(f, header, e);
out:
    json_decref(header);
    if (rc)
        kv_safetensors_clear(f);
    return rc;
}

void kv_safetensors_clear(struct kv_safetensors *f)
{
    for (size_t i = 0; i < f->n_weights; i++)
        free((void *)(uintptr_t)f->weight[i].name);
    free(f->weight);
    free(f->path);
    kv_map_close(&f->map);
    *f = (struct kv_safetensors){0};
}
