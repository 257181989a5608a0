#include "lib/arrays/arrays.h"
#include "lib/arrays/npz.h"
#include "lib/base/alloc.h"
#include "lib/base/file.h"
#include "lib/base/half.h"
#include "lib/h5.h"
#include "lib/model/safetensors.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

struct kv_arrays {
    enum kv_arrays_kind kind;
    char *path;
    struct kv_array *list;
    size_t n;
    struct kv_npz *npz;
    struct kv_safetensors st;
    struct kv_h5 *h5;
};

static bool ends_in(const char *path, const char *suffix)
{
    const size_t n = strlen(path), m = strlen(suffix);

    return n > m && !strcmp(path + n - m, suffix);
}

int kv_arrays_kind(enum kv_arrays_kind *kind, const char *path,
                   struct kv_err *e)
{
    static const struct {
        const char *suffix;
        enum kv_arrays_kind kind;
    } kinds[] = {{".npz", KV_NPZ},
                 {".safetensors", KV_SAFETENSORS},
                 {".h5", KV_HDF5},
                 {".hdf5", KV_HDF5}};

    for (size_t i = 0; i < sizeof(kinds) / sizeof(*kinds); i++)
        if (ends_in(path, kinds[i].suffix)) {
            *kind = kinds[i].kind;
            return 0;
        }
    return kv_fail(e, "%s: expected a name in .npz, .safetensors or .h5", path);
}

/* Whether a file begins as torch.save() writes it, a zip or a bare pickle. */
static bool is_pickle(const char *path)
{
    uint8_t start[2];

    return kv_file_head(path, start, sizeof(start)) == sizeof(start) &&
           (!memcmp(start, "PK", 2) || (start[0] == 0x80 && start[1] < 6));
}

/* Fails on a pickle, which can run code when it is read, and on a file of raw
 * bytes without a type or a shape. */
static int refuse_others(const char *path, struct kv_err *e)
{
    if (!ends_in(path, ".pt") && !ends_in(path, ".pth") &&
        !ends_in(path, ".bin"))
        return 0;
    if (!kv_file_exists(path))
        return kv_fail(e, "cannot open %s: No such file or directory", path);
    if (!is_pickle(path))
        return kv_fail(e,
                       "%s is no pickle: bytes alone, as SGLang's and "
                       "LMCache's stores on a disk keep pages, say no type, "
                       "shape or order: docs/measuring.md (Files) has the "
                       "lines of Python that convert them",
                       path);
    return kv_fail(e,
                   "%s is a pickle, which kvtools does not run: convert a "
                   "dict of tensors with python3 -c \"import torch, "
                   "safetensors.torch as s; s.save_file({k: x.contiguous() "
                   "for k, x in torch.load('%s', weights_only=True).items()}, "
                   "'own.safetensors')\"",
                   path, path);
}

/* ---- values -------------------------------------------------------------- */

enum values { F16, BF16, F32, F64, I32, U32, I64, U64, OTHER };

static size_t bytes_of(enum values v)
{
    static const size_t n[] = {2, 2, 4, 8, 4, 4, 8, 8, 0};

    return n[v];
}

static enum values values_of(const struct kv_array *a)
{
    static const struct {
        const char *type;
        enum values v;
    } types[] = {{"<f2", F16},   {"<f4", F32}, {"<f8", F64}, {"F16", F16},
                 {"BF16", BF16}, {"F32", F32}, {"F64", F64}, {"f16", F16},
                 {"bf16", BF16}, {"f32", F32}, {"f64", F64}, {"<i4", I32},
                 {"<u4", U32},   {"<i8", I64}, {"<u8", U64}, {"I32", I32},
                 {"U32", U32},   {"I64", I64}, {"U64", U64}, {"i32", I32},
                 {"i64", I64},   {"u64", U64}};

    for (size_t i = 0; i < sizeof(types) / sizeof(*types); i++)
        if (!strcmp(a->type, types[i].type))
            return types[i].v;
    return OTHER;
}

static void say_kind(struct kv_array *a)
{
    const enum values v = values_of(a);

    a->floats = v <= F64;
    a->wholes = v >= I32 && v <= U64;
}

static void to_floats(enum values v, const uint8_t *from, size_t n, float *x)
{
    for (size_t i = 0; i < n; i++) {
        uint16_t half;
        double wide;

        if (v == F32) {
            memcpy(&x[i], from + 4 * i, 4);
        } else if (v == F64) {
            memcpy(&wide, from + 8 * i, 8);
            x[i] = (float)wide;
        } else {
            memcpy(&half, from + 2 * i, 2);
            x[i] = v == F16 ? kv_f16_to_f32(half) : kv_bf16_to_f32(half);
        }
    }
}

/* Reads a whole number of type v; INT64_MAX if it is larger than that. */
static int64_t whole(enum values v, const uint8_t *from)
{
    int64_t wide;
    int32_t low;

    if (v == I64 || v == U64) {
        memcpy(&wide, from, 8);
        return v == U64 && wide < 0 ? INT64_MAX : wide;
    }
    memcpy(&low, from, 4);
    return v == I32 ? low : (int64_t)(uint32_t)low;
}

/* ---- HDF5 ---------------------------------------------------------------- */

static const struct {
    const char *name;
    enum kv_h5_type type;
} h5_types[] = {
    {"f32", KV_H5_F32}, {"f16", KV_H5_F16}, {"bf16", KV_H5_BF16},
    {"f64", KV_H5_F64}, {"i32", KV_H5_I32}, {"i64", KV_H5_I64},
    {"u64", KV_H5_U64}, {"u8", KV_H5_U8},
};
enum { H5_TYPES = sizeof(h5_types) / sizeof(*h5_types) };

static int add_dataset(struct kv_arrays *a, const char *name, struct kv_err *e)
{
    struct kv_array *x;
    struct kv_err ignored;

    a->list = kv_realloc(a->list, a->n + 1, sizeof(*a->list));
    x = &a->list[a->n++];
    *x = (struct kv_array){.n = 1, .type = "?"};
    snprintf(x->name, sizeof(x->name), "%s", name + 1);
    if (kv_h5_dims(a->h5, name, &x->n_dims, x->dims, e))
        return -1;
    for (size_t i = 0; i < x->n_dims; i++)
        x->n *= x->dims[i];
    for (size_t i = 0; i < H5_TYPES; i++)
        if (!kv_h5_check(a->h5, name, h5_types[i].type, x->n_dims, x->dims,
                         &ignored))
            snprintf(x->type, sizeof(x->type), "%s", h5_types[i].name);
    return 0;
}

/* Adds every dataset below the group.  depth: the number of '/' in the group's
 * name. */
static int add_group(struct kv_arrays *a, const char *group, int depth,
                     struct kv_err *e)
{
    char(*child)[KV_H5_NAME_CHARS], name[KV_H5_NAME_CHARS];
    struct kv_err ignored;
    size_t n;
    int rc = 0;

    if (kv_h5_children(a->h5, group, &child, &n, e))
        return -1;
    for (size_t i = 0; i < n && !rc; i++) {
        char(*inner)[KV_H5_NAME_CHARS];
        size_t n_inner;

        if (snprintf(name, sizeof(name), "%s/%s", depth ? group : "",
                     child[i]) >= (int)sizeof(name)) {
            rc = kv_fail(e, "%s: a name in %s is too long", a->path, group);
        } else if (kv_h5_children(a->h5, name, &inner, &n_inner, &ignored)) {
            rc = add_dataset(a, name, e);
        } else {
            free(inner);
            rc = depth < 3
                     ? add_group(a, name, depth + 1, e)
                     : kv_fail(e, "%s: %s: a group too deep", a->path, name);
        }
    }
    free(child);
    return rc;
}

static int read_h5(struct kv_arrays *a, const struct kv_array *x, size_t first,
                   size_t n, size_t value, uint8_t *to, struct kv_err *e)
{
    size_t from[KV_ARRAY_DIMS] = {0}, count[KV_ARRAY_DIMS], row = x->n;
    char name[KV_ARRAY_NAME + 1];
    enum kv_h5_type type = KV_H5_F32;
    uint8_t *bytes;
    int rc;

    snprintf(name, sizeof(name), "/%s", x->name);
    for (size_t i = 0; i < H5_TYPES; i++)
        if (!strcmp(x->type, h5_types[i].name))
            type = h5_types[i].type;
    memcpy(count, x->dims, sizeof(count));
    row = x->dims[0] ? x->n / x->dims[0] : 0;
    if (!row)
        return 0;
    /* Reads whole rows of the first dimension that contain the requested
     * part. */
    from[0] = first / row;
    count[0] = (first + n + row - 1) / row - from[0];
    bytes = kv_alloc(count[0] * row, value);
    rc = kv_h5_read(a->h5, name, type, from, count, bytes, e);
    if (!rc)
        memcpy(to, bytes + (first - from[0] * row) * value, n * value);
    free(bytes);
    return rc;
}

/* ---- all ----------------------------------------------------------------- */

static int open_safetensors(struct kv_arrays *a, struct kv_err *e)
{
    if (kv_safetensors_open(&a->st, a->path, e))
        return -1;
    a->list = kv_alloc(a->st.n_weights, sizeof(*a->list));
    for (; a->n < a->st.n_weights; a->n++) {
        const struct kv_weight *w = &a->st.weight[a->n];
        struct kv_array *x = &a->list[a->n];

        if (w->n_dims > KV_ARRAY_DIMS || strlen(w->name) >= sizeof(x->name))
            return kv_fail(e,
                           "%s: %s: expected at most %d dimensions and %d "
                           "characters",
                           a->path, w->name, KV_ARRAY_DIMS, KV_ARRAY_NAME - 1);
        snprintf(x->name, sizeof(x->name), "%s", w->name);
        snprintf(x->type, sizeof(x->type), "%s", w->dtype);
        x->n_dims = w->n_dims;
        memcpy(x->dims, w->dims, w->n_dims * sizeof(*w->dims));
        x->n = w->n;
    }
    return 0;
}

int kv_arrays_open(struct kv_arrays **out, const char *path, struct kv_err *e)
{
    struct kv_arrays *a;
    enum kv_arrays_kind kind = KV_NPZ;
    int rc;

    if (refuse_others(path, e) || kv_arrays_kind(&kind, path, e))
        return -1;
    a = kv_alloc(1, sizeof(*a));
    a->kind = kind;
    a->path = kv_strdup(path);
    if (kind == KV_NPZ)
        rc = kv_npz_open(&a->npz, path, &a->list, &a->n, e);
    else if (kind == KV_SAFETENSORS)
        rc = open_safetensors(a, e);
    else
        rc = kv_h5_open(&a->h5, path, e) || add_group(a, "/", 0, e) ? -1 : 0;
    if (rc) {
        kv_arrays_close(a);
        return -1;
    }
    for (size_t i = 0; i < a->n; i++)
        say_kind(&a->list[i]);
    *out = a;
    return 0;
}

void kv_arrays_close(struct kv_arrays *a)
{
    if (!a)
        return;
    kv_npz_close(a->npz);
    if (a->st.path)
        kv_safetensors_clear(&a->st);
    kv_h5_close(a->h5);
    free(a->list);
    free(a->path);
    free(a);
}

const char *kv_arrays_path(const struct kv_arrays *a)
{
    return a->path;
}

size_t kv_arrays_list(const struct kv_arrays *a, const struct kv_array **list)
{
    *list = a->list;
    return a->n;
}

/* Reads elements in the file's own value type. */
static int read_stored(struct kv_arrays *a, size_t i, size_t first, size_t n,
                       uint8_t *to, struct kv_err *e)
{
    const size_t value = bytes_of(values_of(&a->list[i]));

    if (a->kind == KV_NPZ)
        return kv_npz_read(a->npz, i, a->list[i].name, first * value, n * value,
                           to, e);
    if (a->kind == KV_HDF5)
        return read_h5(a, &a->list[i], first, n, value, to, e);
    memcpy(to, a->st.weight[i].data + first * value, n * value);
    return 0;
}

/* Writes the name of an element: "layers.0.keys[1][0][3]". */
static void name_element(const struct kv_array *a, size_t at, char text[256])
{
    size_t n = (size_t)snprintf(text, 256, "%s", a->name), rest = a->n;

    for (size_t i = 0; i < a->n_dims; i++) {
        rest /= a->dims[i];
        n += (size_t)snprintf(text + n, 256 - n, "[%zu]", at / rest);
        at %= rest;
    }
}

int kv_arrays_read(struct kv_arrays *a, size_t i, size_t first, size_t n,
                   float *x, struct kv_err *e)
{
    const struct kv_array *is = &a->list[i];
    const enum values v = values_of(is);
    char name[256];
    uint8_t *stored;
    int rc;

    if (!is->floats)
        return kv_fail(e,
                       "%s: %s is of type %s: expected floats of 16, 32 or "
                       "64 bits",
                       a->path, is->name, is->type);
    stored = kv_alloc(n, bytes_of(v));
    rc = read_stored(a, i, first, n, stored, e);
    if (!rc)
        to_floats(v, stored, n, x);
    free(stored);
    for (size_t j = 0; j < n && !rc; j++)
        if (!isfinite(x[j])) {
            name_element(is, first + j, name);
            rc = kv_fail(e, "%s: %s is %s", a->path, name,
                         isnan(x[j]) ? "NaN" : "beyond f32");
        }
    return rc;
}

int kv_arrays_read_ids(struct kv_arrays *a, size_t i, size_t first, size_t n,
                       int32_t *id, struct kv_err *e)
{
    const struct kv_array *is = &a->list[i];
    const enum values v = values_of(is);
    char name[256];
    uint8_t *stored;
    int rc;

    if (!is->wholes)
        return kv_fail(e,
                       "%s: %s is of type %s: expected ids of tokens, whole "
                       "numbers of 32 or 64 bits",
                       a->path, is->name, is->type);
    stored = kv_alloc(n, bytes_of(v));
    rc = read_stored(a, i, first, n, stored, e);
    for (size_t j = 0; j < n && !rc; j++) {
        const int64_t one = whole(v, stored + j * bytes_of(v));

        if (one < 0 || one > INT32_MAX) {
            name_element(is, first + j, name);
            rc = kv_fail(e, "%s: %s is %lld: expected the id of a token",
                         a->path, name, (long long)one);
        }
        id[j] = (int32_t)one;
    }
    free(stored);
    return rc;
}
