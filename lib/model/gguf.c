#include "lib/model/gguf.h"
#include "lib/base/alloc.h"

#include <stdlib.h>
#include <string.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__,
               "tensors are used as they lie in the file: little endian");

enum { U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, ARRAY, U64, I64, F64 };

/* The types of a value, with their size; bytes 0: the value contains its
 * length. */
static const struct {
    enum kv_gguf_kind kind;
    size_t bytes;
} value_types[] = {
    [U8] = {KV_GGUF_INT, 1},      [I8] = {KV_GGUF_INT, 1},
    [U16] = {KV_GGUF_INT, 2},     [I16] = {KV_GGUF_INT, 2},
    [U32] = {KV_GGUF_INT, 4},     [I32] = {KV_GGUF_INT, 4},
    [F32] = {KV_GGUF_REAL, 4},    [BOOL] = {KV_GGUF_BOOL, 1},
    [STRING] = {KV_GGUF_TEXT, 0}, [ARRAY] = {KV_GGUF_TEXT, 0},
    [U64] = {KV_GGUF_INT, 8},     [I64] = {KV_GGUF_INT, 8},
    [F64] = {KV_GGUF_REAL, 8},
};

enum { N_VALUE_TYPES = sizeof(value_types) / sizeof(*value_types) };

/* The types of a tensor, with the values and bytes of a block. */
static const struct tensor_type {
    const char *name;
    size_t values, bytes;
    enum kv_stored type;
} tensor_types[] = {
    [0] = {"F32", 1, 4, KV_STORED_F32},
    [1] = {"F16", 1, 2, KV_STORED_F16},
    [2] = {"Q4_0", 32, 18, KV_STORED_Q4_0},
    [3] = {"Q4_1", 32, 20, KV_STORED_Q4_1},
    [6] = {"Q5_0", 32, 22, KV_STORED_Q5_0},
    [7] = {"Q5_1", 32, 24, KV_STORED_Q5_1},
    [8] = {"Q8_0", 32, 34, KV_STORED_Q8_0},
    [9] = {"Q8_1", 32, 36, KV_STORED_OTHER},
    [10] = {"Q2_K", 256, 84, KV_STORED_Q2_K},
    [11] = {"Q3_K", 256, 110, KV_STORED_Q3_K},
    [12] = {"Q4_K", 256, 144, KV_STORED_Q4_K},
    [13] = {"Q5_K", 256, 176, KV_STORED_Q5_K},
    [14] = {"Q6_K", 256, 210, KV_STORED_Q6_K},
    [15] = {"Q8_K", 256, 292, KV_STORED_OTHER},
    [16] = {"IQ2_XXS", 256, 66, KV_STORED_IQ2_XXS},
    [17] = {"IQ2_XS", 256, 74, KV_STORED_IQ2_XS},
    [18] = {"IQ3_XXS", 256, 98, KV_STORED_IQ3_XXS},
    [19] = {"IQ1_S", 256, 50, KV_STORED_IQ1_S},
    [20] = {"IQ4_NL", 32, 18, KV_STORED_IQ4_NL},
    [21] = {"IQ3_S", 256, 110, KV_STORED_IQ3_S},
    [22] = {"IQ2_S", 256, 82, KV_STORED_IQ2_S},
    [23] = {"IQ4_XS", 256, 136, KV_STORED_IQ4_XS},
    [24] = {"I8", 1, 1, KV_STORED_OTHER},
    [25] = {"I16", 1, 2, KV_STORED_OTHER},
    [26] = {"I32", 1, 4, KV_STORED_OTHER},
    [27] = {"I64", 1, 8, KV_STORED_OTHER},
    [28] = {"F64", 1, 8, KV_STORED_OTHER},
    [29] = {"IQ1_M", 256, 56, KV_STORED_IQ1_M},
    [30] = {"BF16", 1, 2, KV_STORED_BF16},
    [34] = {"TQ1_0", 256, 54, KV_STORED_TQ1_0},
    [35] = {"TQ2_0", 256, 66, KV_STORED_TQ2_0},
    [39] = {"MXFP4", 32, 17, KV_STORED_MXFP4},
    [40] = {"NVFP4", 64, 36, KV_STORED_NVFP4},
    [41] = {"Q1_0", 128, 18, KV_STORED_OTHER},
    [42] = {"Q2_0", 64, 18, KV_STORED_OTHER},
};

enum { N_TENSOR_TYPES = sizeof(tensor_types) / sizeof(*tensor_types) };

/* The least bytes of a key and of a tensor in the header, summed over their
 * fields. */
enum { KEY_BYTES = 8 + 4 + 1, TENSOR_BYTES = 8 + 4 + 4 + 8 };
enum { MAX_DIMS = 4, MAX_NAME = 65535 };

/* The unread rest of the file. */
struct reader {
    const uint8_t *data;
    size_t bytes, at;
};

static int read_bytes(struct reader *r, void *out, size_t n, struct kv_err *e)
{
    if (n > r->bytes - r->at)
        return kv_fail(e,
                       "the file is truncated: it ends inside its header, at "
                       "byte %zu",
                       r->bytes);
    memcpy(out, r->data + r->at, n);
    r->at += n;
    return 0;
}

/* Fails unless n items of at least `each` bytes still fit in the file. */
static int check_count(const struct reader *r, const char *what, uint64_t n,
                       size_t each, struct kv_err *e)
{
    if (n > (r->bytes - r->at) / each)
        return kv_fail(e,
                       "%llu %s are to follow at byte %zu of %zu: the file is "
                       "truncated or its header is wrong",
                       (unsigned long long)n, what, r->at, r->bytes);
    return 0;
}

/* Skips a string; *at and *n: the place and number of its bytes. */
static int read_string(struct reader *r, size_t *at, size_t *n,
                       struct kv_err *e)
{
    uint64_t bytes = 0;

    if (read_bytes(r, &bytes, sizeof(bytes), e) ||
        check_count(r, "bytes of a string", bytes, 1, e))
        return -1;
    *at = r->at;
    *n = (size_t)bytes;
    r->at += *n;
    return 0;
}

/* The name of a key or a tensor, the caller's to free. */
static int read_name(struct reader *r, char **name, struct kv_err *e)
{
    size_t at = 0, n = 0;

    if (read_string(r, &at, &n, e))
        return -1;
    if (n > MAX_NAME)
        return kv_fail(e, "a name of %zu bytes at byte %zu", n, at);
    for (size_t i = at; i < at + n; i++)
        if (r->data[i] < ' ' || r->data[i] == 127)
            return kv_fail(e, "the name at byte %zu has a byte %u", at,
                           r->data[i]);
    *name = kv_strndup((const char *)r->data + at, n);
    return 0;
}

/* Reads v's elements, of type v->type, from the reader's place on. */
static int read_elements(struct reader *r, struct kv_gguf_value *v,
                         struct kv_err *e)
{
    const size_t each = value_types[v->type].bytes;
    size_t unused;

    v->data = r->data + r->at;
    if (each) {
        if (check_count(r, "elements", v->n, each, e))
            return -1;
        r->at += v->n * each;
    } else {
        if (check_count(r, "strings", v->n, sizeof(uint64_t), e))
            return -1;
        v->at = kv_alloc(v->n, sizeof(*v->at));
        for (size_t i = 0; i < v->n; i++) {
            v->at[i] = r->at - (size_t)(v->data - r->data);
            if (read_string(r, &unused, &unused, e))
                return -1;
        }
    }
    for (size_t i = 0; v->type == BOOL && i < v->n; i++)
        if (v->data[i] > 1)
            return kv_fail(e, "a truth value of %u", v->data[i]);
    return 0;
}

static int read_value(struct reader *r, struct kv_gguf_value *v,
                      struct kv_err *e)
{
    uint32_t type = 0;
    uint64_t n = 1;

    if (read_bytes(r, &type, sizeof(type), e))
        return -1;
    v->array = type == ARRAY;
    if (v->array && (read_bytes(r, &type, sizeof(type), e) ||
                     read_bytes(r, &n, sizeof(n), e)))
        return -1;
    if (v->array && type == ARRAY)
        return kv_fail(e, "an array of arrays");
    if (type >= N_VALUE_TYPES)
        return kv_fail(e, "type %u of a value is not known", type);
    v->type = type;
    v->kind = value_types[type].kind;
    v->n = (size_t)n;
    return read_elements(r, v, e);
}

static int by_key(const void *a, const void *b)
{
    const struct kv_gguf_value *x = a, *y = b;

    return strcmp(x->key, y->key);
}

static int read_values(struct kv_gguf *g, struct reader *r, uint64_t n,
                       struct kv_err *e)
{
    if (check_count(r, "keys", n, KEY_BYTES, e))
        return -1;
    g->value = kv_alloc((size_t)n, sizeof(*g->value));
    while (g->n_values < n) {
        struct kv_gguf_value *v = &g->value[g->n_values];
        char *key;

        if (read_name(r, &key, e))
            return -1;
        v->key = key;
        g->n_values++;
        if (read_value(r, v, e))
            return kv_fail_in(e, "key %s", key);
    }
    if (n)
        qsort(g->value, g->n_values, sizeof(*g->value), by_key);
    for (size_t i = 1; i < n; i++)
        if (!strcmp(g->value[i - 1].key, g->value[i].key))
            return kv_fail(e, "key %s is there twice", g->value[i].key);
    return 0;
}

static int read_type(struct kv_weight *w, uint32_t type, struct kv_err *e)
{
    const struct tensor_type *t =
        type < N_TENSOR_TYPES ? &tensor_types[type] : NULL;
    const size_t row = w->n_dims ? w->dims[w->n_dims - 1] : 1;

    if (!t || !t->name)
        return kv_fail(e, "tensor %s: type %u is not known", w->name, type);
    w->dtype = t->name;
    w->type = t->type;
    if (row % t->values)
        return kv_fail(e,
                       "tensor %s: rows of %zu values are no whole blocks "
                       "of %s, which has %zu",
                       w->name, row, t->name, t->values);
    if (__builtin_mul_overflow(w->n / t->values, t->bytes, &w->bytes))
        return kv_fail(e, "tensor %s: %zu values of %s are no size", w->name,
                       w->n, t->name);
    return 0;
}

/* *offset: the offset of the tensor's data. */
static int read_tensor(struct reader *r, struct kv_weight *w, uint64_t *offset,
                       struct kv_err *e)
{
    uint32_t n_dims = 0, type = 0;
    uint64_t dim = 0;

    if (read_bytes(r, &n_dims, sizeof(n_dims), e))
        return -1;
    if (n_dims > MAX_DIMS)
        return kv_fail(e, "tensor %s has %u dimensions; at most %d are",
                       w->name, n_dims, MAX_DIMS);
    w->n = 1;
    w->n_dims = n_dims;
    for (size_t i = n_dims; i-- > 0;) {
        if (read_bytes(r, &dim, sizeof(dim), e))
            return -1;
        w->dims[i] = (size_t)dim;
        if (__builtin_mul_overflow(w->n, w->dims[i], &w->n))
            return kv_fail(e, "tensor %s: dimension %zu is no size", w->name,
                           i);
    }
    return read_bytes(r, &type, sizeof(type), e) || read_type(w, type, e) ||
                   read_bytes(r, offset, sizeof(*offset), e)
               ? -1
               : 0;
}

/* offset: [n], the offset of each tensor's data. */
static int read_tensors(struct kv_gguf *g, struct reader *r, uint64_t n,
                        uint64_t *offset, struct kv_err *e)
{
    while (g->n_tensors < n) {
        struct kv_weight *w = &g->tensor[g->n_tensors];
        char *name;

        if (read_name(r, &name, e))
            return -1;
        w->name = name;
        w->path = g->path;
        if (read_tensor(r, w, &offset[g->n_tensors++], e))
            return -1;
    }
    return 0;
}

static size_t round_up(size_t n, size_t to)
{
    return (n + to - 1) & ~(to - 1);
}

/* Reads the alignment: a power of two, so small that rounding up to it cannot
 * overflow. */
static int read_alignment(const struct kv_gguf *g, size_t *alignment,
                          struct kv_err *e)
{
    const struct kv_gguf_value *v = kv_gguf_find(g, "general.alignment");
    int64_t x = 32;

    if (v)
        x = v->kind == KV_GGUF_INT && !v->array ? kv_gguf_int(v, 0) : 0;
    if (x < 1 || x > 1 << 30 || (x & (x - 1)))
        return kv_fail(e, "key general.alignment is no power of two");
    *alignment = (size_t)x;
    return 0;
}

/* Sets the address of every tensor's data. */
static int place(struct kv_gguf *g, const uint64_t *offset, size_t alignment,
                 struct kv_err *e)
{
    const size_t bytes = g->map.bytes - g->header_bytes;

    for (size_t i = 0; i < g->n_tensors; i++) {
        struct kv_weight *w = &g->tensor[i];

        if (offset[i] % alignment)
            return kv_fail(e,
                           "tensor %s is at byte %llu of the data, no "
                           "multiple of the alignment, %zu",
                           w->name, (unsigned long long)offset[i], alignment);
        if (offset[i] > bytes || w->bytes > bytes - offset[i])
            return kv_fail(e,
                           "tensor %s takes %zu bytes from byte %llu of "
                           "%zu bytes of data: the file is truncated or its "
                           "header is wrong",
                           w->name, w->bytes, (unsigned long long)offset[i],
                           bytes);
        w->data = g->map.data + g->header_bytes + offset[i];
    }
    return 0;
}

static int by_place(const void *a, const void *b)
{
    const struct kv_weight *x = a, *y = b;

    if (x->data != y->data)
        return x->data < y->data ? -1 : 1;
    return (x->bytes > y->bytes) - (x->bytes < y->bytes);
}

/* Checks that tensors fill the data, except for the padding that aligns the
 * next tensor. */
static int check_places(struct kv_gguf *g, size_t alignment, struct kv_err *e)
{
    const size_t bytes = g->map.bytes - g->header_bytes;
    size_t at = 0;

    if (g->n_tensors)
        qsort(g->tensor, g->n_tensors, sizeof(*g->tensor), by_place);
    for (size_t i = 0; i < g->n_tensors; i++) {
        const struct kv_weight *w = &g->tensor[i];
        const size_t begin = (size_t)(w->data - g->map.data) - g->header_bytes;

        if (begin < at)
            return kv_fail(e, "tensors %s and %s overlap",
                           g->tensor[i - 1].name, w->name);
        if (begin > round_up(at, alignment))
            return kv_fail(e,
                           "bytes %zu to %zu of the data, before %s, "
                           "belong to no tensor",
                           at, begin, w->name);
        at = begin + w->bytes;
    }
    if (bytes > round_up(at, alignment))
        return kv_fail(e, "%zu bytes after the last tensor", bytes - at);
    return 0;
}

static int by_name(const void *a, const void *b)
{
    const struct kv_weight *x = a, *y = b;

    return strcmp(x->name, y->name);
}

static int sort_tensors(struct kv_gguf *g, struct kv_err *e)
{
    if (g->n_tensors)
        qsort(g->tensor, g->n_tensors, sizeof(*g->tensor), by_name);
    for (size_t i = 1; i < g->n_tensors; i++)
        if (!strcmp(g->tensor[i - 1].name, g->tensor[i].name))
            return kv_fail(e, "tensor %s is there twice", g->tensor[i].name);
    return 0;
}

/* counts: the number of tensors, then of keys. */
static int read_head(struct reader *r, uint64_t counts[2], struct kv_err *e)
{
    char magic[4] = "";
    uint32_t version = 0;

    if (read_bytes(r, magic, 4, e) || memcmp(magic, "GGUF", 4) != 0)
        return kv_fail(e, "not a GGUF file");
    if (read_bytes(r, &version, sizeof(version), e))
        return -1;
    if (version && !(version & 0xffff))
        return kv_fail(e, "big endian: only little endian is read");
    if (version != 2 && version != 3)
        return kv_fail(e, "GGUF version %u: only 2 and 3 are read", version);
    return read_bytes(r, counts, 2 * sizeof(*counts), e);
}

static int read_all(struct kv_gguf *g, struct kv_err *e)
{
    struct reader r = {g->map.data, g->map.bytes, 0};
    uint64_t counts[2] = {0}, *offset;
    size_t alignment = 0;
    int rc = -1;

    if (read_head(&r, counts, e) || read_values(g, &r, counts[1], e) ||
        read_alignment(g, &alignment, e) ||
        check_count(&r, "tensors", counts[0], TENSOR_BYTES, e))
        return -1;
    g->tensor = kv_alloc((size_t)counts[0], sizeof(*g->tensor));
    offset = kv_alloc((size_t)counts[0], sizeof(*offset));
    if (read_tensors(g, &r, counts[0], offset, e))
        goto out;
    g->header_bytes = round_up(r.at, alignment);
    if (g->header_bytes > r.bytes) /* a file without data may end early */
        g->header_bytes = r.bytes;
    if (!place(g, offset, alignment, e) && !check_places(g, alignment, e))
        rc = sort_tensors(g, e);
out:
    free(offset);
    return rc;
}

bool kv_gguf_is(const char *path)
{
    char magic[4];

    return kv_file_head(path, magic, 4) == 4 && !memcmp(magic, "GGUF", 4);
}

int kv_gguf_open(struct kv_gguf *g, const char *path, struct kv_err *e)
{
    int rc = -1;

    *g = (struct kv_gguf){.path = kv_strdup(path)};
    if (!kv_map_open(&g->map, path, e) &&
        !kv_lfs_check(path, g->map.data, g->map.bytes, e))
        rc = read_all(g, e) ? kv_fail_in(e, "%s", path) : 0;
    if (rc)
        kv_gguf_clear(g);
    return rc;
}

void kv_gguf_clear(struct kv_gguf *g)
{
    for (size_t i = 0; i < g->n_values; i++) {
        free((void *)(uintptr_t)g->value[i].key);
        free(g->value[i].at);
    }
    for (size_t i = 0; i < g->n_tensors; i++)
        free((void *)(uintptr_t)g->tensor[i].name);
    free(g->value);
    free(g->tensor);
    free(g->path);
    kv_map_close(&g->map);
    *g = (struct kv_gguf){0};
}

static int key_is(const void *key, const void *element)
{
    return strcmp(key, ((const struct kv_gguf_value *)element)->key);
}

const struct kv_gguf_value *kv_gguf_find(const struct kv_gguf *g,
                                         const char *key)
{
    return g->n_values
               ? bsearch(key, g->value, g->n_values, sizeof(*g->value), key_is)
               : NULL;
}

/* Fails unless each element is a count, from 0 to UINT32_MAX. */
static int check_counts(const struct kv_gguf *g, const struct kv_gguf_value *v,
                        struct kv_err *e)
{
    for (size_t i = 0; i < v->n; i++) {
        const int64_t x = kv_gguf_int(v, i);

        if (x < 0 || x > UINT32_MAX)
            return kv_fail(e,
                           "%s: key %s is %lld; a count from 0 to %u was "
                           "expected",
                           g->path, v->key, (long long)x, UINT32_MAX);
    }
    return 0;
}

int kv_gguf_get(const struct kv_gguf *g, const char *key,
                enum kv_gguf_kind kind, bool array,
                const struct kv_gguf_value **v, struct kv_err *e)
{
    static const char *const names[] = {
        [KV_GGUF_INT] = "whole number",
        [KV_GGUF_REAL] = "number",
        [KV_GGUF_BOOL] = "truth value",
        [KV_GGUF_TEXT] = "string",
    };
    const struct kv_gguf_value *found = kv_gguf_find(g, key);
    const bool count = kind == KV_GGUF_COUNT;

    kind = count ? KV_GGUF_INT : kind;
    if (found && (found->array != array ||
                  (found->kind != kind &&
                   !(kind == KV_GGUF_REAL && found->kind == KV_GGUF_INT))))
        return kv_fail(e, "%s: key %s is %s %s%s; %s %s%s was expected",
                       g->path, key, found->array ? "an array of" : "a",
                       names[found->kind], found->array ? "s" : "",
                       array ? "an array of" : "a", names[kind],
                       array ? "s" : "");
    *v = found;
    return found && count ? check_counts(g, found, e) : 0;
}

int64_t kv_gguf_int(const struct kv_gguf_value *v, size_t i)
{
    const size_t bytes = value_types[v->type].bytes;
    const bool is_signed = v->type == I8 || v->type == I16 || v->type == I32;
    const unsigned unused = 64 - 8 * (unsigned)bytes;
    uint64_t x = 0;

    memcpy(&x, v->data + i * bytes, bytes);
    if (v->type == U64)
        return x > INT64_MAX ? INT64_MAX : (int64_t)x;
    return is_signed ? (int64_t)(x << unused) >> unused : (int64_t)x;
}

double kv_gguf_real(const struct kv_gguf_value *v, size_t i)
{
    float single;
    double x;

    if (v->kind == KV_GGUF_INT)
        return (double)kv_gguf_int(v, i);
    if (v->type == F32) {
        memcpy(&single, v->data + i * sizeof(single), sizeof(single));
        return (double)single;
    }
    memcpy(&x, v->data + i * sizeof(x), sizeof(x));
    return x;
}

bool kv_gguf_bool(const struct kv_gguf_value *v, size_t i)
{
    return v->data[i];
}

const char *kv_gguf_text(const struct kv_gguf_value *v, size_t i, size_t *bytes)
{
    const uint8_t *at = v->data + v->at[i];
    uint64_t n;

    memcpy(&n, at, sizeof(n));
    *bytes = (size_t)n;
    return (const char *)at + sizeof(n);
}
