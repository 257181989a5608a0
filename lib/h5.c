#include "lib/base/alloc.h"
#include "lib/h5_impl.h"
#include "lib/h5_stored.h"
#include "lib/h5_trial.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__,
               "buffers go to the file as they are");

/* Errors */

/* Keeps the innermost description of HDF5's error stack, or only the system's
 * own words if the description quotes them. */
static herr_t keep_first(unsigned n, const H5E_error2_t *err, void *arg)
{
    static const char mark[] = "error message = '";
    struct kv_err *r = arg;
    const char *from = err->desc ? err->desc : "unknown error";
    const char *quoted = strstr(from, mark);

    if (n)
        return 0;
    if (quoted)
        from = quoted + strlen(mark);
    snprintf(r->msg, sizeof(r->msg), "%.*s",
             (int)strcspn(from, quoted ? "'" : "\n"), from);
    return 0;
}

static struct kv_err why(void)
{
    struct kv_err r = {"unknown HDF5 error"};

    H5Ewalk2(H5E_DEFAULT, H5E_WALK_UPWARD, keep_first, &r);
    return r;
}

int kv_h5_fail(const struct kv_h5 *h, const char *verb, const char *name,
               struct kv_err *e)
{
    return kv_fail(e, "%s: cannot %s %s: %s", h->path, verb, name, why().msg);
}

void kv_h5_keep(struct kv_h5 *h, const char *verb, const char *name)
{
    if (!h->failed)
        kv_h5_fail(h, verb, name, &h->error);
    h->failed = true;
}

/* Stops HDF5 from printing messages, and from trying a failed write again when
 * the program ends.  H5dont_atexit() must come before the library starts. */
static void quiet(void)
{
    enum { CAPACITY = 8 << 20 };

    kv_memory_probe(CAPACITY, "HDF5"); /* HDF5 crashes without it */
    H5dont_atexit();
    H5Eset_auto2(H5E_DEFAULT, NULL, NULL);
}

/* Types */

static const struct {
    const char *name;
    size_t bytes;
} types[] = {
    [KV_H5_U8] = {"u8", 1},   [KV_H5_I32] = {"i32", 4},
    [KV_H5_I64] = {"i64", 8}, [KV_H5_U64] = {"u64", 8},
    [KV_H5_F16] = {"f16", 2}, [KV_H5_BF16] = {"bf16", 2},
    [KV_H5_F32] = {"f32", 4}, [KV_H5_F64] = {"f64", 8},
};

size_t kv_h5_type_bytes(enum kv_h5_type t)
{
    return types[t].bytes;
}

/* A float type of two bytes: | sign | exponent | mantissa | */
static hid_t small_float(size_t exponent, size_t mantissa, size_t bias)
{
    const hid_t t = H5Tcopy(H5T_IEEE_F32LE);

    H5Tset_fields(t, 15, mantissa, exponent, 0, mantissa);
    H5Tset_precision(t, 16);
    H5Tset_size(t, 2);
    H5Tset_ebias(t, bias);
    return t;
}

static hid_t type_new(enum kv_h5_type t)
{
    switch (t) {
    case KV_H5_U8:
        return H5Tcopy(H5T_STD_U8LE);
    case KV_H5_I32:
        return H5Tcopy(H5T_STD_I32LE);
    case KV_H5_I64:
        return H5Tcopy(H5T_STD_I64LE);
    case KV_H5_U64:
        return H5Tcopy(H5T_STD_U64LE);
    case KV_H5_F16:
        return small_float(5, 10, 15);
    case KV_H5_BF16:
        return small_float(8, 7, 127);
    case KV_H5_F32:
        return H5Tcopy(H5T_IEEE_F32LE);
    case KV_H5_F64:
        break;
    }
    return H5Tcopy(H5T_IEEE_F64LE);
}

/* Files */

static hid_t access_plist(void)
{
    const hid_t p = H5Pcreate(H5P_FILE_ACCESS);

    H5Pset_libver_bounds(p, H5F_LIBVER_V110, H5F_LIBVER_V110);
    H5Pset_fclose_degree(p, H5F_CLOSE_STRONG);
    return p;
}

static struct kv_h5 *handle_new(const char *path)
{
    struct kv_h5 *h = kv_alloc(1, sizeof(*h));

    quiet();
    h->path = kv_strdup(path);
    h->file = h->set = H5I_INVALID_HID;
    return h;
}

int kv_h5_create(struct kv_h5 **out, const char *path, struct kv_err *e)
{
    struct kv_h5 *h = handle_new(path);

    if (kv_out_open(&h->out, path, false, e)) {
        kv_h5_close(h);
        return -1;
    }

    const hid_t access = access_plist(), create = H5Pcreate(H5P_FILE_CREATE);

    H5Pset_obj_track_times(create, false);
    H5Pset_file_locking(access, false, true); /* h->out locks the file */
    kv_temporaries_hold();
    h->file = H5Fcreate(h->out.temp, H5F_ACC_TRUNC, create, access);
    kv_temporaries_release();
    if (h->file < 0)
        kv_fail(e, "cannot write %s: %s", path, why().msg);
    H5Pclose(create);
    H5Pclose(access);
    if (h->file < 0) {
        kv_h5_close(h);
        return -1;
    }
    *out = h;
    return 0;
}

/* For a file without HDF5's signature. */
static void fail_kind(const char *path, struct kv_err *e)
{
    struct kv_map map;

    if (kv_map_open(&map, path, e))
        return;
    if (!kv_lfs_check(path, map.data, map.bytes, e))
        kv_fail(e, "%s is not an HDF5 file", path);
    kv_map_close(&map);
}

static void fail_open(const char *path, struct kv_err *e)
{
    const struct kv_err r = why();
    enum { MIN = 48 }; /* bytes of a superblock */
    unsigned long long have, want;
    struct stat st;

    if (strstr(r.msg, "signature"))
        fail_kind(path, e);
    else if (!strcmp(r.msg, strerror(EAGAIN))) /* the file is locked */
        kv_fail(e, "%s is being written by another process", path);
    else if (strstr(r.msg, "already open for"))
        kv_fail(e,
                "%s is being written by another process, or was not closed by "
                "its writer (then h5clear -s helps)",
                path);
    else if (sscanf(r.msg,
                    "truncated file: eof = %llu, sblock->base_addr = %*u, "
                    "stored_eof = %llu",
                    &have, &want) == 2)
        kv_fail(e, "%s is cut short: %llu of %llu bytes", path, have, want);
    else if (!stat(path, &st) && st.st_size < MIN)
        kv_fail(e, "%s is cut short: %llu bytes, of a beginning of %d", path,
                (unsigned long long)st.st_size, MIN);
    else
        kv_fail(e, "cannot open %s: %s", path, r.msg);
}

int kv_h5_open(struct kv_h5 **out, const char *path, struct kv_err *e)
{
    struct kv_h5 *h;
    struct stat st;

    if (stat(path, &st))
        return kv_fail(e, "cannot open %s: %s", path, strerror(errno));
    if (!S_ISREG(st.st_mode))
        return kv_fail(e, "cannot open %s: it is %s", path,
                       S_ISDIR(st.st_mode) ? "a folder" : "not a regular file");
    h = handle_new(path);
    if (kv_input_open(&h->input, path, e)) {
        kv_h5_close(h);
        return -1;
    }
    h->bytes = (uint64_t)st.st_size;
    if (kv_h5_try(path, h->bytes, e)) {
        kv_h5_close(h);
        return -1;
    }

    const hid_t access = access_plist();

    h->file = H5Fopen(path, H5F_ACC_RDONLY, access);
    if (h->file < 0)
        fail_open(path, e);
    H5Pclose(access);
    if (h->file < 0) {
        kv_h5_close(h);
        return -1;
    }
    *out = h;
    return 0;
}

static int close_set(struct kv_h5 *h)
{
    const hid_t set = h->set;

    h->set = H5I_INVALID_HID;
    kv_h5_parts_leave(h);
    return set >= 0 && H5Dclose(set) < 0 ? -1 : 0;
}

int kv_h5_commit(struct kv_h5 *h, struct kv_err *e)
{
    int rc = -1;

    if (close_set(h))
        kv_h5_keep(h, "write", h->set_name);
    if (!h->failed && H5Fflush(h->file, H5F_SCOPE_GLOBAL) < 0)
        kv_h5_keep(h, "write", "it");
    if (!h->failed) {
        if (H5Fclose(h->file) < 0)
            kv_h5_keep(h, "write", "it");
        h->file = H5I_INVALID_HID;
    }
    if (h->failed)
        kv_fail(e, "%s", h->error.msg);
    else
        rc = kv_out_commit(&h->out, e);
    kv_h5_close(h);
    return rc;
}

void kv_h5_close(struct kv_h5 *h)
{
    if (!h)
        return;
    close_set(h);
    if (h->file >= 0)
        H5Fclose(h->file);
    kv_h5_parts_close(h);
    kv_input_close(h->input);
    kv_out_discard(&h->out);
    free(h->path);
    free(h);
}

const char *kv_h5_path(const struct kv_h5 *h)
{
    return h->path;
}

uint64_t kv_h5_bytes(const struct kv_h5 *h)
{
    return h->bytes;
}

/* Datasets */

/* Chunks of at most 256 KiB: whole trailing dimensions, then as many entries of
 * the previous dimension as fit, so that a run of tokens is contiguous.  Chunks
 * have equal lengths, since the last is stored whole: 1,024 tokens make 4
 * chunks of 256, not of 341.  With 4 dimensions no chunk spans two entries of
 * the first: windows are written one by one. */
static void chunk_dims(size_t n_dims, const hsize_t *dims, size_t value_bytes,
                       hsize_t *chunk)
{
    hsize_t capacity = (256u << 10) / value_bytes;

    for (size_t i = n_dims; i-- > 0;) {
        const hsize_t n_chunks = (dims[i] + capacity - 1) / capacity;

        chunk[i] = n_chunks ? (dims[i] + n_chunks - 1) / n_chunks : 0;
        capacity = chunk[i] ? capacity / chunk[i] : capacity;
        capacity = capacity && !(n_dims == 4 && i == 1) ? capacity : 1;
    }
}

/* Makes a dataset; closes t and create. */
static void make_set(struct kv_h5 *h, const char *name, hid_t t, size_t n_dims,
                     const hsize_t *size, hid_t create)
{
    const hid_t space = H5Screate_simple((int)n_dims, size, NULL);
    const hid_t set =
        H5Dcreate2(h->file, name, t, space, H5P_DEFAULT, create, H5P_DEFAULT);

    if (set < 0 || H5Dclose(set) < 0)
        kv_h5_keep(h, "make", name);
    H5Sclose(space);
    H5Tclose(t);
    H5Pclose(create);
}

void kv_h5_dataset(struct kv_h5 *h, const char *name, enum kv_h5_type type,
                   size_t n_dims, const size_t *dims)
{
    hsize_t size[KV_H5_MAX_DIMS], chunk[KV_H5_MAX_DIMS];
    const hid_t create = H5Pcreate(H5P_DATASET_CREATE), t = type_new(type);
    bool empty = false;

    for (size_t i = 0; i < n_dims; i++) {
        size[i] = dims[i];
        empty |= dims[i] == 0;
    }
    chunk_dims(n_dims, size, kv_h5_type_bytes(type), chunk);
    H5Pset_obj_track_times(create, false);
    if (!empty) {
        H5Pset_chunk(create, (int)n_dims, chunk);
        H5Pset_fletcher32(create);
    }

    make_set(h, name, t, n_dims, size, create);
}

void kv_h5_virtual(struct kv_h5 *h, const char *name, enum kv_h5_type type,
                   size_t n_dims, const size_t *dims,
                   const struct kv_h5_part *part, size_t n_parts)
{
    static const uint8_t missing[] = {255, 255, 255, 255, 255, 255, 255, 255};
    const hid_t create = H5Pcreate(H5P_DATASET_CREATE), t = type_new(type);
    hsize_t size[KV_H5_MAX_DIMS], from[KV_H5_MAX_DIMS] = {0};
    hsize_t n[KV_H5_MAX_DIMS];

    for (size_t i = 0; i < n_dims; i++)
        size[i] = n[i] = dims[i];
    H5Pset_obj_track_times(create, false);
    H5Pset_fill_value(create, t, missing);
    for (size_t i = 0; i < n_parts; i++) {
        const hid_t here = H5Screate_simple((int)n_dims, size, NULL);
        hid_t there;

        n[0] = part[i].n;
        there = H5Screate_simple((int)n_dims, n, NULL);
        H5Sselect_hyperslab(here, H5S_SELECT_SET, from, NULL, n, NULL);
        if (H5Pset_virtual(create, here, part[i].file, name, there) < 0)
            kv_h5_keep(h, "make", name);
        from[0] += n[0];
        H5Sclose(there);
        H5Sclose(here);
    }
    make_set(h, name, t, n_dims, size, create);
}

/* Opens the dataset `name` unless it is open already. */
static int use_set(struct kv_h5 *h, const char *name, struct kv_err *e)
{
    if (h->set >= 0 && !strcmp(h->set_name, name))
        return 0;
    if (close_set(h))
        return kv_h5_fail(h, "write", h->set_name, e);
    if (kv_h5_check_links(h->file, h->path, name, e))
        return -1;
    h->set = H5Dopen2(h->file, name, H5P_DEFAULT);
    if (h->set < 0)
        return kv_h5_fail(h, "open", name, e);
    snprintf(h->set_name, sizeof(h->set_name), "%s", name);
    if (!h->out.path && kv_h5_parts_use(h, name, e)) {
        close_set(h);
        return -1;
    }
    return 0;
}

static int get_dims(struct kv_h5 *h, const char *name, size_t *n_dims,
                    size_t dims[KV_H5_MAX_DIMS], struct kv_err *e)
{
    hsize_t size[H5S_MAX_RANK];
    int n;

    if (use_set(h, name, e))
        return -1;

    const hid_t space = H5Dget_space(h->set);

    n = H5Sget_simple_extent_dims(space, size, NULL);
    H5Sclose(space);
    if (n < 1 || n > KV_H5_MAX_DIMS)
        return kv_fail(e, "%s: %s has %d dimensions, expected 1 to %d", h->path,
                       name, n, KV_H5_MAX_DIMS);
    for (int i = 0; i < n; i++)
        dims[i] = (size_t)size[i];
    *n_dims = (size_t)n;
    return 0;
}

/* Checks the storage of a file that is read; a file being written may be
 * incomplete. */
static int check_stored(struct kv_h5 *h, const char *name, struct kv_err *e)
{
    if (h->out.path)
        return 0;
    return h->source ? kv_h5_parts_check(h, name, e)
                     : kv_h5_check_stored(h->set, h->path, name, h->bytes, e);
}

int kv_h5_dims(struct kv_h5 *h, const char *name, size_t *n_dims,
               size_t dims[KV_H5_MAX_DIMS], struct kv_err *e)
{
    return get_dims(h, name, n_dims, dims, e) || check_stored(h, name, e) ? -1
                                                                          : 0;
}

static int check_type(struct kv_h5 *h, const char *name, enum kv_h5_type type,
                      struct kv_err *e)
{
    const hid_t want = type_new(type), have = H5Dget_type(h->set);
    const bool same = H5Tequal(want, have) > 0;

    H5Tclose(have);
    H5Tclose(want);
    return same ? 0
                : kv_fail(e, "%s: %s does not hold %s values", h->path, name,
                          types[type].name);
}

static void shape_text(size_t n_dims, const size_t *dims, char text[128])
{
    size_t w = 0;

    for (size_t i = 0; i < n_dims; i++)
        w += (size_t)snprintf(text + w, 128 - w, "[%zu]", dims[i]);
}

int kv_h5_check(struct kv_h5 *h, const char *name, enum kv_h5_type type,
                size_t n_dims, const size_t *dims, struct kv_err *e)
{
    size_t have[KV_H5_MAX_DIMS], n;
    char is[128], want[128];

    if (get_dims(h, name, &n, have, e) || check_type(h, name, type, e))
        return -1;
    if (n == n_dims && !memcmp(have, dims, n * sizeof(*dims)))
        return check_stored(h, name, e);
    shape_text(n, have, is);
    shape_text(n_dims, dims, want);
    return kv_fail(e, "%s: %s is %s, expected %s", h->path, name, is, want);
}

/* Selects the box in the file's space.  *memory: a space of the box's shape. */
static int select_box(struct kv_h5 *h, const char *name, const size_t *first,
                      const size_t *count, hid_t space, hid_t *memory,
                      struct kv_err *e)
{
    size_t dims[KV_H5_MAX_DIMS], n = 0;
    hsize_t from[KV_H5_MAX_DIMS], size[KV_H5_MAX_DIMS];

    if (get_dims(h, name, &n, dims, e))
        return -1;
    for (size_t i = 0; i < n; i++) {
        from[i] = first ? first[i] : 0;
        size[i] = count ? count[i] : dims[i];
        if (from[i] > dims[i] || size[i] > dims[i] - from[i])
            return kv_fail(e,
                           "%s: %s has %zu entries in dimension %zu, %zu to "
                           "%zu were asked for",
                           h->path, name, dims[i], i, (size_t)from[i],
                           (size_t)(from[i] + size[i]));
    }
    H5Sselect_hyperslab(space, H5S_SELECT_SET, from, NULL, size, NULL);
    *memory = H5Screate_simple((int)n, size, NULL);
    return 0;
}

/* Writes from `from`, or reads to `to`; the other pointer is NULL. */
static int transfer(struct kv_h5 *h, const char *name, enum kv_h5_type type,
                    const size_t *first, const size_t *count, const void *from,
                    void *to, struct kv_err *e)
{
    hid_t memory = H5I_INVALID_HID;

    if (use_set(h, name, e) || check_type(h, name, type, e))
        return -1;

    const hid_t space = H5Dget_space(h->set), t = type_new(type);
    int rc = select_box(h, name, first, count, space, &memory, e);

    if (!rc && H5Sget_simple_extent_npoints(memory)) {
        const herr_t done =
            from ? H5Dwrite(h->set, t, memory, space, H5P_DEFAULT, from)
                 : H5Dread(h->set, t, memory, space, H5P_DEFAULT, to);

        if (done < 0)
            rc = kv_h5_fail(h, from ? "write" : "read", name, e);
    }
    if (memory >= 0)
        H5Sclose(memory);
    H5Tclose(t);
    H5Sclose(space);
    return rc;
}

int kv_h5_write(struct kv_h5 *h, const char *name, enum kv_h5_type type,
                const size_t *first, const size_t *count, const void *x,
                struct kv_err *e)
{
    if (!h->failed)
        h->failed =
            transfer(h, name, type, first, count, x, NULL, &h->error) != 0;
    return h->failed ? kv_fail(e, "%s", h->error.msg) : 0;
}

int kv_h5_read(struct kv_h5 *h, const char *name, enum kv_h5_type type,
               const size_t *first, const size_t *count, void *x,
               struct kv_err *e)
{
    if (use_set(h, name, e))
        return -1;
    return h->source ? kv_h5_parts_read(h, name, type, first, count, x, e)
                     : transfer(h, name, type, first, count, NULL, x, e);
}
