#include "lib/h5_stored.h"
#include "lib/h5.h"

#include <stdio.h>
#include <string.h>

/* Links */

enum way { MISSING, ELSEWHERE, HERE };

/* Follows the path link by link, to the first link that is missing or not a
 * hard link, else to the last link.  kind: the kind of that link. */
struct follow {
    char name[2 * KV_H5_NAME_CHARS];
    enum way way;
    H5L_type_t kind;
};

static void follow(hid_t file, const char *name, struct follow *f)
{
    const size_t n = strlen(name);

    *f = (struct follow){.way = n < sizeof(f->name) ? HERE : MISSING};
    for (size_t i = 1; i <= n && f->way == HERE; i++) {
        H5L_info_t info;

        if (n == 1 || (name[i] && name[i] != '/'))
            continue; /* "/" itself, or "/" within a name */
        memcpy(f->name, name, i);
        f->name[i] = 0;
        if (H5Lexists(file, f->name, H5P_DEFAULT) <= 0 ||
            H5Lget_info(file, f->name, &info, H5P_DEFAULT) < 0) {
            f->way = MISSING;
        } else if (info.type != H5L_TYPE_HARD) {
            f->way = ELSEWHERE;
            f->kind = info.type;
        }
    }
}

bool kv_h5_linked(hid_t file, const char *name)
{
    struct follow f;

    follow(file, name, &f);
    return f.way != MISSING;
}

int kv_h5_check_links(hid_t file, const char *path, const char *name,
                      struct kv_err *e)
{
    struct follow f;

    follow(file, name, &f);
    if (f.way == MISSING)
        return kv_fail(e, "%s has no %s", path, name);
    if (f.way == ELSEWHERE)
        return kv_fail(e, "%s: %s is %s link, expected what it points at", path,
                       f.name,
                       f.kind == H5L_TYPE_SOFT       ? "a soft"
                       : f.kind == H5L_TYPE_EXTERNAL ? "an external"
                                                     : "an unknown kind of");
    return 0;
}

/* Storage */

enum { MAX_CHUNK = 1 << 20, DEFLATED = 64 };

/* A dataset's storage in numbers. */
struct stored {
    hsize_t dims[H5S_MAX_RANK], chunk[H5S_MAX_RANK];
    int n_dims;
    uint64_t value_bytes, bytes; /* bytes of one value, of all values */
    hsize_t allocated;           /* bytes in the file */
    bool checked, deflated;
};

/* a * b, or UINT64_MAX if that overflows. */
static uint64_t times(uint64_t a, uint64_t b)
{
    uint64_t r;

    return __builtin_mul_overflow(a, b, &r) ? UINT64_MAX : r;
}

static int get_shape(hid_t set, struct stored *s)
{
    const hid_t space = H5Dget_space(set), type = H5Dget_type(set);

    s->n_dims = H5Sget_simple_extent_dims(space, s->dims, NULL);
    s->value_bytes = H5Tget_size(type);
    s->bytes = s->value_bytes;
    for (int i = 0; i < s->n_dims; i++)
        s->bytes = times(s->bytes, s->dims[i]);
    H5Tclose(type);
    H5Sclose(space);
    return s->n_dims < 0 || !s->value_bytes ? -1 : 0;
}

static int check_filters(hid_t create, struct stored *s, const char *path,
                         const char *name, struct kv_err *e)
{
    const int n = H5Pget_nfilters(create);

    for (int i = 0; i < n; i++) {
        char called[64] = "";
        size_t n_values = 0;
        unsigned flags, config;
        const H5Z_filter_t f =
            H5Pget_filter2(create, (unsigned)i, &flags, &n_values, NULL,
                           sizeof(called), called, &config);

        s->checked |= f == H5Z_FILTER_FLETCHER32;
        s->deflated |= f == H5Z_FILTER_DEFLATE;
        if (f != H5Z_FILTER_FLETCHER32 && f != H5Z_FILTER_SHUFFLE &&
            f != H5Z_FILTER_DEFLATE)
            return kv_fail(e,
                           "%s: %s is stored by filter %d (%s), which kvtools "
                           "does not read: h5repack -f NONE takes it off",
                           path, name, (int)f, *called ? called : "no name");
        if (H5Zfilter_avail(f) <= 0)
            return kv_fail(e,
                           "%s: %s is stored by filter %d (%s), which this "
                           "HDF5 library lacks",
                           path, name, (int)f, called);
    }
    return 0;
}

static int check_contiguous(hid_t set, const struct stored *s, const char *path,
                            const char *name, uint64_t file_bytes,
                            struct kv_err *e)
{
    const haddr_t at = H5Dget_offset(set);

    if (at == HADDR_UNDEF || s->allocated != s->bytes)
        return kv_fail(e,
                       "%s: %s is not allocated: its values were never "
                       "written",
                       path, name);
    if (at > file_bytes || s->bytes > file_bytes - at)
        return kv_fail(e, "%s: %s goes on past the end of the file", path,
                       name);
    return 0;
}

/* Checks that every chunk exists and, without compression, has its full size,
 * since HDF5 returns fill values for a missing chunk. */
static int check_chunks(hid_t set, const struct stored *s, const char *path,
                        const char *name, struct kv_err *e)
{
    const uint64_t checksum = s->checked ? 4 : 0;
    uint64_t bytes = s->value_bytes, n = 1;
    hsize_t have = 0;

    for (int i = 0; i < s->n_dims; i++) {
        bytes = times(bytes, s->chunk[i]);
        n = times(n, (s->dims[i] + s->chunk[i] - 1) / s->chunk[i]);
    }
    if (bytes > MAX_CHUNK)
        return kv_fail(e,
                       "%s: %s has chunks of %llu bytes, expected at most "
                       "%d",
                       path, name, (unsigned long long)bytes, MAX_CHUNK);

    const hid_t space = H5Dget_space(set);
    const herr_t counted = H5Dget_num_chunks(set, space, &have);

    H5Sclose(space);
    if (counted < 0 || have != n)
        return kv_fail(e,
                       "%s: %s has %llu of its %llu chunks: the others were "
                       "never written",
                       path, name, (unsigned long long)have,
                       (unsigned long long)n);
    if (!s->deflated && s->allocated != times(n, bytes + checksum))
        return kv_fail(e, "%s: %s takes %llu bytes, expected %llu", path, name,
                       (unsigned long long)s->allocated,
                       (unsigned long long)times(n, bytes + checksum));
    return 0;
}

int kv_h5_check_stored(hid_t set, const char *path, const char *name,
                       uint64_t file_bytes, struct kv_err *e)
{
    const hid_t create = H5Dget_create_plist(set);
    const H5D_layout_t layout = H5Pget_layout(create);
    struct stored s = {0};
    uint64_t max = file_bytes;
    int rc = -1;

    if (get_shape(set, &s)) {
        kv_fail(e, "%s: %s has no simple shape", path, name);
        goto out;
    }
    if (!s.bytes) { /* no values, no storage */
        rc = 0;
        goto out;
    }
    if ((layout != H5D_CONTIGUOUS && layout != H5D_CHUNKED) ||
        H5Pget_external_count(create) > 0) {
        kv_fail(e,
                "%s: %s is %s, expected contiguous or chunked values in the "
                "file itself",
                path, name,
                layout == H5D_COMPACT ? "compact" : "stored in other files");
        goto out;
    }
    if (check_filters(create, &s, path, name, e))
        goto out;
    s.allocated = H5Dget_storage_size(set);
    if (s.deflated && times(s.allocated, DEFLATED) > max)
        max = times(s.allocated, DEFLATED);
    if (s.bytes > max) {
        kv_fail(e,
                "%s: %s would hold %llu bytes, more than a file of %llu "
                "can",
                path, name, (unsigned long long)s.bytes,
                (unsigned long long)file_bytes);
        goto out;
    }
    if (layout == H5D_CONTIGUOUS)
        rc = check_contiguous(set, &s, path, name, file_bytes, e);
    else if (H5Pget_chunk(create, H5S_MAX_RANK, s.chunk) != s.n_dims)
        kv_fail(e, "%s: %s has chunks of another shape", path, name);
    else
        rc = check_chunks(set, &s, path, name, e);
out:
    H5Pclose(create);
    return rc;
}
