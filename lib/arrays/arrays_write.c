#include "lib/arrays/arrays.h"
#include "lib/arrays/npz.h"
#include "lib/base/alloc.h"
#include "lib/base/file.h"

#include <jansson.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct kv_arrays_out {
    enum kv_arrays_kind kind;
    struct kv_out out;
    struct kv_array *list;
    size_t n;
    json_t *about; /* NULL: none */
    FILE *data;    /* the data of all arrays, one after the other */
};

int kv_arrays_create(struct kv_arrays_out **result, const char *path,
                     const struct kv_array *list, size_t n,
                     const char *const (*about)[2], struct kv_err *e)
{
    struct kv_arrays_out *a;
    enum kv_arrays_kind kind;

    if (kv_arrays_kind(&kind, path, e))
        return -1;
    if (kind == KV_HDF5)
        return kv_fail(e, "%s: expected a name in .npz or .safetensors", path);
    a = kv_alloc(1, sizeof(*a));
    a->kind = kind;
    a->n = n;
    a->list = kv_alloc(n, sizeof(*list));
    memcpy(a->list, list, n * sizeof(*list));
    for (size_t i = 0; i < n; i++) {
        a->list[i].n = 1;
        for (size_t j = 0; j < list[i].n_dims; j++)
            a->list[i].n *= list[i].dims[j];
    }
    for (; about && (*about)[0]; about++) {
        if (!a->about)
            a->about = json_object();
        json_object_set_new(a->about, (*about)[0], json_string((*about)[1]));
    }
    if (kv_out_open(&a->out, path, kind == KV_SAFETENSORS, e) ||
        !(a->data = kv_scratch_open(e))) {
        kv_arrays_discard(a);
        return -1;
    }
    *result = a;
    return 0;
}

/* The offset of an array's values in a->data. */
static size_t place(const struct kv_arrays_out *a, size_t i)
{
    size_t at = 0;

    while (i--)
        at += a->list[i].n * sizeof(float);
    return at;
}

int kv_arrays_put(struct kv_arrays_out *a, size_t i, size_t first, size_t n,
                  const float *x, struct kv_err *e)
{
    return kv_scratch_write(a->data, place(a, i) + first * sizeof(*x), x,
                            n * sizeof(*x), e);
}

static char *make_header(const struct kv_arrays_out *a)
{
    json_t *header = json_object();
    size_t at = 0;
    char *text;

    if (a->about)
        json_object_set(header, "__metadata__", a->about);
    for (size_t i = 0; i < a->n; i++) {
        const struct kv_array *x = &a->list[i];
        const size_t end = at + x->n * sizeof(float);
        json_t *shape = json_array();

        for (size_t j = 0; j < x->n_dims; j++)
            json_array_append_new(shape, json_integer((json_int_t)x->dims[j]));
        json_object_set_new(header, x->name,
                            json_pack("{s:s, s:o, s:[I, I]}", "dtype", "F32",
                                      "shape", shape, "data_offsets",
                                      (json_int_t)at, (json_int_t)end));
        at = end;
    }
    text = json_dumps(header, JSON_COMPACT);
    json_decref(header);
    return text;
}

/* Writes | n: u64 | header, padded with spaces to a multiple of 8 bytes | data
 * | */
static int write_safetensors(struct kv_arrays_out *a, struct kv_err *e)
{
    enum { PIECE = 1 << 20 };
    char *header = make_header(a);
    const size_t length = strlen(header), padded = (length + 7) / 8 * 8;
    const uint64_t n = padded;
    size_t left = place(a, a->n);
    uint8_t *piece = kv_alloc(PIECE, 1);
    int rc = 0;

    fwrite(&n, sizeof(n), 1, a->out.file);
    fprintf(a->out.file, "%-*s", (int)padded, header);
    for (size_t at = 0; left && !rc;) {
        const size_t m = left < PIECE ? left : PIECE;

        rc = kv_scratch_read(a->data, at, piece, m, e);
        fwrite(piece, 1, m, a->out.file);
        at += m;
        left -= m;
    }
    free(piece);
    free(header);
    return rc;
}

/* Extends the data to its full size; elements that were never put are 0. */
static int fill_up(struct kv_arrays_out *a, struct kv_err *e)
{
    const size_t bytes = place(a, a->n);

    if (bytes && ftruncate(fileno(a->data), (off_t)bytes))
        return kv_fail(e, "cannot write %s: the disk is full", a->out.path);
    return 0;
}

int kv_arrays_commit(struct kv_arrays_out *a, struct kv_err *e)
{
    int rc = fill_up(a, e);

    if (!rc && a->kind == KV_NPZ)
        rc = kv_npz_write(a->out.temp, a->out.path, a->list, a->n, a->data, e);
    else if (!rc)
        rc = write_safetensors(a, e);
    if (!rc)
        rc = kv_out_commit(&a->out, e);
    kv_arrays_discard(a);
    return rc;
}

void kv_arrays_discard(struct kv_arrays_out *a)
{
    if (!a)
        return;
    kv_out_discard(&a->out);
    if (a->data)
        fclose(a->data);
    json_decref(a->about);
    free(a->list);
    free(a);
}
