#include "lib/arrays/npz.h"
#include "lib/base/alloc.h"
#include "lib/base/file.h"

#include <minizip/unzip.h>
#include <minizip/zip.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* MOST: the maximum number of bytes that one byte of DEFLATE expands to.
 * ENTRY: the minimum size of a member's entry in the zip's directory. */
enum { MAX_HEAD = 1 << 16, PIECE = 1 << 20, MOST = 1040, ENTRY = 46 };

/* Data of a member. */
struct member {
    unz64_file_pos at;
    size_t head; /* bytes before the data */
    size_t bytes;
};

struct kv_npz {
    char *path;
    struct kv_input *input;
    unzFile zip;
    struct member *member;
    size_t n;
    size_t open, done; /* the open member, n for none, and the number of its
                        * bytes read */
};

/* ---- .npy ---------------------------------------------------------------- */

/* The text after 'key': in the head; NULL if the key is missing. */
static const char *field(const char *head, const char *key)
{
    char quoted[32];
    const char *at;

    snprintf(quoted, sizeof(quoted), "'%s':", key);
    at = strstr(head, quoted);
    if (!at)
        return NULL;
    at += strlen(quoted);
    return at + strspn(at, " ");
}

/* Parses "(2, 3)", "(7,)" or "()"; the last is a single number. */
static int parse_shape(struct kv_array *a, const char *at)
{
    if (*at++ != '(')
        return -1;
    for (a->n = 1;;) {
        unsigned long long x;
        char *end;

        at += strspn(at, " ,");
        if (*at == ')')
            return 0;
        if (*at < '0' || *at > '9' || a->n_dims == KV_ARRAY_DIMS)
            return -1;
        x = strtoull(at, &end, 10);
        a->dims[a->n_dims++] = (size_t)x;
        if (x > SIZE_MAX / 8 || __builtin_mul_overflow(a->n, x, &a->n) ||
            a->n > SIZE_MAX / 8)
            return -1;
        at = end;
    }
}

/* The bytes of a value of a type such as "<f4"; 0 for an unknown type. */
static size_t value_bytes(const char *type)
{
    const size_t n = strlen(type) > 2 ? strtoull(type + 2, NULL, 10) : 0;

    return n <= 1024 ? n : 0;
}

static int parse_head(struct kv_array *a, const char *head, const char *path,
                      struct kv_err *e)
{
    const char *type = field(head, "descr"), *shape = field(head, "shape");
    const char *order = field(head, "fortran_order");
    size_t n;

    if (!type || !shape || !order || *type != '\'')
        return kv_fail(e, "%s: %s: its head is no .npy of numbers", path,
                       a->name);
    n = strcspn(++type, "'");
    snprintf(a->type, sizeof(a->type), "%.*s", (int)(n < 15 ? n : 15), type);
    if (parse_shape(a, shape))
        return kv_fail(e, "%s: %s: expected a shape of at most %d sizes", path,
                       a->name, KV_ARRAY_DIMS);
    if (strncmp(order, "False", 5) != 0 && a->n_dims > 1)
        return kv_fail(e,
                       "%s: %s is in Fortran's order: expected C order "
                       "(numpy.ascontiguousarray)",
                       path, a->name);
    return 0;
}

/* ---- read ---------------------------------------------------------------- */

static int fail_damaged(const struct kv_npz *z, const char *name,
                        struct kv_err *e)
{
    return kv_fail(e, "%s: %s: the file is truncated or damaged", z->path,
                   name);
}

static int read_bytes(struct kv_npz *z, void *to, size_t n)
{
    for (uint8_t *at = to; n;) {
        const unsigned piece = n < PIECE ? (unsigned)n : PIECE;

        if (unzReadCurrentFile(z->zip, at, piece) != (int)piece)
            return -1;
        at += piece;
        n -= piece;
    }
    return 0;
}

/* Reads the head of the open member; *head_bytes: the size of the head. */
static int read_head(struct kv_npz *z, struct kv_array *a, size_t *head_bytes,
                     struct kv_err *e)
{
    uint8_t start[12];
    char *text;
    size_t n;
    int rc = -1;

    if (read_bytes(z, start, 10) || memcmp(start, "\x93NUMPY", 6) != 0)
        return kv_fail(e, "%s: %s is no .npy", z->path, a->name);
    if (start[6] > 1 && read_bytes(z, start + 10, 2))
        return fail_damaged(z, a->name, e);
    n = start[8] | (size_t)start[9] << 8;
    if (start[6] > 1)
        n |= (size_t)start[10] << 16 | (size_t)start[11] << 24;
    if (n > MAX_HEAD)
        return kv_fail(e, "%s: %s: a head of %zu bytes", z->path, a->name, n);
    *head_bytes = n + (start[6] > 1 ? 12 : 10);
    text = kv_alloc(n + 1, 1);
    if (read_bytes(z, text, n))
        fail_damaged(z, a->name, e);
    else
        rc = parse_head(a, text, z->path, e);
    free(text);
    return rc;
}

/* Adds the member at the zip's current position. */
static int add_member(struct kv_npz *z, struct kv_array *a, struct kv_err *e)
{
    struct member *m = &z->member[z->n];
    unz_file_info64 info;
    size_t end, bytes;
    int rc;

    if (unzGetCurrentFileInfo64(z->zip, &info, a->name, sizeof(a->name), NULL,
                                0, NULL, 0) != UNZ_OK ||
        unzGetFilePos64(z->zip, &m->at) != UNZ_OK)
        return kv_fail(e, "%s: its directory is damaged", z->path);
    end = strlen(a->name);
    if (info.size_filename >= sizeof(a->name) || end < 5 ||
        strcmp(a->name + end - 4, ".npy") != 0)
        return kv_fail(e, "%s: %s: expected NAME.npy of up to %zu characters",
                       z->path, a->name, sizeof(a->name) - 5);
    a->name[end - 4] = 0;
    if (info.compressed_size > kv_input_size(z->input) ||
        info.uncompressed_size > MOST * (uint64_t)info.compressed_size + 4096 ||
        unzOpenCurrentFile(z->zip) != UNZ_OK)
        return fail_damaged(z, a->name, e);
    rc = read_head(z, a, &m->head, e);
    unzCloseCurrentFile(z->zip);
    if (rc)
        return -1;
    bytes = value_bytes(a->type);
    m->bytes = a->n * bytes;
    if (bytes && info.uncompressed_size != m->head + m->bytes)
        return kv_fail(
            e, "%s: %s: %llu bytes, expected %zu of its shape and type",
            z->path, a->name, (unsigned long long)info.uncompressed_size,
            m->head + m->bytes);
    z->n++;
    return 0;
}

static int list_members(struct kv_npz *z, struct kv_array **list,
                        struct kv_err *e)
{
    unz_global_info64 all;
    int rc = unzGetGlobalInfo64(z->zip, &all);

    if (rc != UNZ_OK || all.number_entry > kv_input_size(z->input) / ENTRY)
        return kv_fail(e, "%s: its directory is damaged", z->path);
    z->member = kv_alloc((size_t)all.number_entry, sizeof(*z->member));
    *list = kv_alloc((size_t)all.number_entry, sizeof(**list));
    for (size_t i = 0; i < all.number_entry; i++) {
        rc = i ? unzGoToNextFile(z->zip) : unzGoToFirstFile(z->zip);
        if (rc != UNZ_OK)
            return kv_fail(e, "%s: its directory is damaged", z->path);
        if (add_member(z, &(*list)[i], e))
            return -1;
    }
    return 0;
}

int kv_npz_open(struct kv_npz **out, const char *path, struct kv_array **list,
                size_t *n, struct kv_err *e)
{
    struct kv_npz *z = kv_alloc(1, sizeof(*z));

    *list = NULL;
    z->path = kv_strdup(path);
    if (kv_input_open(&z->input, path, e))
        goto fail;
    z->zip = unzOpen64(path);
    if (!z->zip) {
        kv_fail(e, "%s is no zip: the file is truncated or another kind", path);
        goto fail;
    }
    if (list_members(z, list, e))
        goto fail;
    z->open = *n = z->n;
    *out = z;
    return 0;
fail:
    free(*list);
    *list = NULL;
    kv_npz_close(z);
    return -1;
}

void kv_npz_close(struct kv_npz *z)
{
    if (!z)
        return;
    if (z->zip)
        unzClose(z->zip);
    kv_input_close(z->input);
    free(z->member);
    free(z->path);
    free(z);
}

static int skip(struct kv_npz *z, size_t n)
{
    uint8_t *waste = kv_alloc(n < PIECE ? n : PIECE, 1);
    int rc = 0;

    for (size_t piece; n && !rc; n -= piece) {
        piece = n < PIECE ? n : PIECE;
        rc = read_bytes(z, waste, piece);
    }
    free(waste);
    return rc;
}

/* Closes the open member, which checks its checksum if all of it was read, and
 * opens member i at its first byte of data. */
static int open_member(struct kv_npz *z, size_t i)
{
    struct member *m = &z->member[i];

    if (z->open < z->n)
        unzCloseCurrentFile(z->zip);
    z->open = z->n;
    if (unzGoToFilePos64(z->zip, &m->at) != UNZ_OK ||
        unzOpenCurrentFile(z->zip) != UNZ_OK)
        return -1;
    z->open = i;
    z->done = 0;
    return skip(z, m->head);
}

int kv_npz_read(struct kv_npz *z, size_t i, const char *name, size_t first,
                size_t n, void *to, struct kv_err *e)
{
    struct member *m = &z->member[i];

    if (((z->open != i || first < z->done) && open_member(z, i)) ||
        skip(z, first - z->done) || read_bytes(z, to, n))
        return fail_damaged(z, name, e);
    z->done = first + n;
    if (z->done < m->bytes)
        return 0;
    z->open = z->n;
    return unzCloseCurrentFile(z->zip) == UNZ_OK ? 0 : fail_damaged(z, name, e);
}

/* ---- write --------------------------------------------------------------- */

/* Writes the head and returns its number of bytes, a multiple of 64. */
static size_t make_head(const struct kv_array *a, char head[512])
{
    int n = snprintf(head + 10, 400,
                     "{'descr': '<f4', 'fortran_order': False, 'shape': (");

    for (size_t i = 0; i < a->n_dims; i++)
        n += snprintf(head + 10 + n, 64, "%zu,%s", a->dims[i],
                      i + 1 < a->n_dims ? " " : "");
    n += snprintf(head + 10 + n, 8, "), }");
    while ((10 + n + 1) % 64)
        head[10 + n++] = ' ';
    head[10 + n++] = '\n';
    memcpy(head, "\x93NUMPY\x01\x00", 8);
    head[8] = (char)(n & 0xff);
    head[9] = (char)(n >> 8);
    return 10 + (size_t)n;
}

static int write_data(zipFile zip, size_t bytes, size_t at, FILE *data,
                      struct kv_err *e)
{
    uint8_t *piece = kv_alloc(PIECE, 1);
    int rc = 0;

    for (size_t n; bytes && !rc; bytes -= n, at += n) {
        n = bytes < PIECE ? bytes : PIECE;
        rc = kv_scratch_read(data, at, piece, n, e);
        if (!rc && zipWriteInFileInZip(zip, piece, (unsigned)n) != ZIP_OK)
            rc = kv_fail(e, "the disk is full");
    }
    free(piece);
    return rc;
}

static int write_array(zipFile zip, const struct kv_array *a, size_t at,
                       FILE *data, struct kv_err *e)
{
    enum { JANUARY_1980 = 1 << 21 | 1 << 16 };
    const zip_fileinfo info = {.dosDate = JANUARY_1980};
    char head[512], name[KV_ARRAY_NAME + 8];
    const size_t n = make_head(a, head);

    snprintf(name, sizeof(name), "%s.npy", a->name);
    if (zipOpenNewFileInZip64(zip, name, &info, NULL, 0, NULL, 0, NULL, 0, 0,
                              1) != ZIP_OK ||
        zipWriteInFileInZip(zip, head, (unsigned)n) != ZIP_OK)
        return kv_fail(e, "the disk is full");
    if (write_data(zip, a->n * sizeof(float), at, data, e))
        return -1;
    return zipCloseFileInZip(zip) == ZIP_OK ? 0
                                            : kv_fail(e, "the disk is full");
}

int kv_npz_write(const char *temp, const char *path,
                 const struct kv_array *list, size_t n, FILE *data,
                 struct kv_err *e)
{
    zipFile zip = zipOpen64(temp, APPEND_STATUS_CREATE);
    size_t at = 0;
    int rc = zip ? 0 : kv_fail(e, "it cannot be opened");

    for (size_t i = 0; i < n && !rc; i++) {
        rc = write_array(zip, &list[i], at, data, e);
        at += list[i].n * sizeof(float);
    }
    if (zip && zipClose(zip, NULL) != ZIP_OK && !rc)
        rc = kv_fail(e, "the disk is full");
    return rc ? kv_fail_in(e, "cannot write %s", path) : 0;
}
