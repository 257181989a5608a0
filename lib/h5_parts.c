#include "lib/h5_parts.h"
#include "lib/base/alloc.h"
#include "lib/h5_impl.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_PARTS = 1 << 16 };

bool kv_h5_is_virtual(hid_t set)
{
    const hid_t create = H5Dget_create_plist(set);
    const bool is = H5Pget_layout(create) == H5D_VIRTUAL;

    H5Pclose(create);
    return is;
}

/* ---- where the values are ------------------------------------------------ */

/* Sets the box that a selection covers; false if it is no box. */
static bool get_box(hid_t space, int n_dims, hsize_t first[H5S_MAX_RANK],
                    hsize_t count[H5S_MAX_RANK])
{
    hsize_t end[H5S_MAX_RANK], n = 1;

    if (H5Sget_simple_extent_ndims(space) != n_dims ||
        H5Sget_select_bounds(space, first, end) < 0)
        return false;
    for (int i = 0; i < n_dims; i++) {
        count[i] = end[i] - first[i] + 1;
        n *= count[i];
    }
    return H5Sget_select_npoints(space) == (hssize_t)n;
}

/* Gets the range of the i-th mapping.  Returns whether the mapping takes whole
 * entries of the first dimension from a whole source, whose extent is known
 * only when it is opened. */
static bool get_range(hid_t create, size_t i, int n_dims, const hsize_t *dims,
                      struct kv_h5_source *s)
{
    const hid_t here = H5Pget_virtual_vspace(create, i);
    const hid_t there = H5Pget_virtual_srcspace(create, i);
    hsize_t to[H5S_MAX_RANK], n[H5S_MAX_RANK];
    bool good = get_box(here, n_dims, to, n) &&
                H5Sget_select_type(there) == H5S_SEL_ALL;

    for (int j = 1; j < n_dims && good; j++)
        good = to[j] == 0 && n[j] == dims[j];
    if (good) {
        s->first = (size_t)to[0];
        s->n = (size_t)n[0];
    }
    H5Sclose(there);
    H5Sclose(here);
    return good;
}

/* Whether a text of this size fits in its room; HDF5 adds a zero. */
static bool fits(ssize_t size, size_t room)
{
    return size > 0 && (size_t)size < room;
}

static bool get_source(hid_t create, size_t i, const char *name, int n_dims,
                       const hsize_t *dims, struct kv_h5_source *s)
{
    char set[KV_H5_NAME_CHARS];

    if (!fits(H5Pget_virtual_filename(create, i, s->name, sizeof(s->name)),
              sizeof(s->name)) ||
        !fits(H5Pget_virtual_dsetname(create, i, set, sizeof(set)),
              sizeof(set)))
        return false;
    return !strchr(s->name, '/') && s->name[0] != '.' && !strcmp(set, name) &&
           get_range(create, i, n_dims, dims, s);
}

static int fail_form(const char *path, const char *name, struct kv_err *e)
{
    return kv_fail(e,
                   "%s: %s is a virtual dataset, but not of whole datasets of "
                   "its name that follow each other in files beside it",
                   path, name);
}

int kv_h5_sources(hid_t set, const char *path, const char *name,
                  struct kv_h5_source **s, size_t *n, struct kv_err *e)
{
    const hid_t create = H5Dget_create_plist(set), space = H5Dget_space(set);
    hsize_t dims[H5S_MAX_RANK];
    const int n_dims = H5Sget_simple_extent_dims(space, dims, NULL);
    size_t end = 0;
    bool good;

    *n = 0;
    *s = NULL;
    good = n_dims > 0 && H5Pget_virtual_count(create, n) >= 0 && *n &&
           *n <= MAX_PARTS;
    if (good)
        *s = kv_alloc(*n, sizeof(**s));
    for (size_t i = 0; i < *n && good; i++) {
        good = get_source(create, i, name, n_dims, dims, *s + i) &&
               (*s)[i].first == end;
        end += (*s)[i].n;
    }
    good = good && end == dims[0];
    H5Sclose(space);
    H5Pclose(create);
    if (good)
        return 0;
    free(*s);
    *s = NULL;
    *n = 0;
    return fail_form(path, name, e);
}

/* ---- the parts ----------------------------------------------------------- */

/* Opens the file of s and adds it to the parts. */
static int open_part(struct kv_h5 *h, struct kv_h5_source *s, struct kv_err *e)
{
    const char *unused;
    char *folder = kv_path_folder(h->path, &unused);
    char *path = kv_path_join(folder, s->name);
    const int rc = kv_h5_open(&s->file, path, e);

    if (rc) {
        kv_fail_in(e, "%s wants its parts", h->path);
    } else {
        s->file->is_part = true;
        h->part = kv_realloc(h->part, h->n_parts + 1, sizeof(*h->part));
        h->part[h->n_parts++] = *s;
    }
    free(path);
    free(folder);
    return rc;
}

/* Sets s->file; the file may already be open for another dataset. */
static int find_part(struct kv_h5 *h, struct kv_h5_source *s, struct kv_err *e)
{
    for (size_t i = 0; i < h->n_parts; i++) {
        const struct kv_h5_source *p = &h->part[i];

        if (strcmp(p->name, s->name) != 0)
            continue;
        s->file = p->file;
        return p->first == s->first && p->n == s->n
                   ? 0
                   : kv_fail(e, "%s: its part %s has several places", h->path,
                             s->name);
    }
    return open_part(h, s, e);
}

int kv_h5_parts_use(struct kv_h5 *h, const char *name, struct kv_err *e)
{
    if (!kv_h5_is_virtual(h->set))
        return 0;
    if (h->is_part)
        return kv_fail(e, "%s: %s is a virtual dataset in a part of a file",
                       h->path, name);
    if (kv_h5_sources(h->set, h->path, name, &h->source, &h->n_sources, e))
        return -1;
    for (size_t i = 0; i < h->n_sources; i++)
        if (find_part(h, &h->source[i], e))
            return -1;
    return 0;
}

void kv_h5_parts_leave(struct kv_h5 *h)
{
    free(h->source);
    h->source = NULL;
    h->n_sources = 0;
}

void kv_h5_parts_close(struct kv_h5 *h)
{
    for (size_t i = 0; i < h->n_parts; i++)
        kv_h5_close(h->part[i].file);
    free(h->part);
}

size_t kv_h5_n_parts(const struct kv_h5 *h)
{
    return h->n_parts;
}

const char *kv_h5_part_path(const struct kv_h5 *h, size_t i, size_t *first)
{
    *first = h->part[i].first;
    return h->part[i].file->path;
}

/* ---- values -------------------------------------------------------------- */

static bool same_type(hid_t a, hid_t b)
{
    const hid_t s = H5Dget_type(a), t = H5Dget_type(b);
    const bool same = H5Tequal(s, t) > 0;

    H5Tclose(t);
    H5Tclose(s);
    return same;
}

static int get_dims(hid_t set, hsize_t dims[H5S_MAX_RANK])
{
    const hid_t space = H5Dget_space(set);
    const int n = H5Sget_simple_extent_dims(space, dims, NULL);

    H5Sclose(space);
    return n;
}

static int check_part(struct kv_h5 *h, const struct kv_h5_source *s,
                      const char *name, struct kv_err *e)
{
    size_t n, have[KV_H5_MAX_DIMS];
    hsize_t dims[H5S_MAX_RANK];
    bool same;

    if (kv_h5_dims(s->file, name, &n, have, e))
        return kv_fail_in(e, "%s wants its parts", h->path);
    same = (int)n == get_dims(h->set, dims) && have[0] == s->n;
    for (size_t i = 1; i < n && same; i++)
        same = have[i] == dims[i];
    if (!same || !same_type(h->set, s->file->set))
        return kv_fail(e, "%s: %s has another shape or type than %s wants",
                       s->file->path, name, h->path);
    return 0;
}

int kv_h5_parts_check(struct kv_h5 *h, const char *name, struct kv_err *e)
{
    for (size_t i = 0; i < h->n_sources; i++)
        if (check_part(h, &h->source[i], name, e))
            return -1;
    return 0;
}

int kv_h5_parts_read(struct kv_h5 *h, const char *name, enum kv_h5_type type,
                     const size_t *first, const size_t *count, void *x,
                     struct kv_err *e)
{
    hsize_t dims[H5S_MAX_RANK];
    const int n_dims = get_dims(h->set, dims);
    size_t from[KV_H5_MAX_DIMS], n[KV_H5_MAX_DIMS];
    size_t entry = kv_h5_type_bytes(type), begin, end;
    uint8_t *to = x;

    for (int i = 0; i < n_dims; i++) {
        from[i] = first ? first[i] : 0;
        n[i] = count ? count[i] : (size_t)dims[i];
        entry *= i ? n[i] : 1;
    }
    begin = from[0];
    end = begin + n[0];
    if (begin > dims[0] || n[0] > dims[0] - begin)
        return kv_fail(e, "%s: %s has %zu entries, %zu to %zu were asked for",
                       h->path, name, (size_t)dims[0], begin, end);
    for (size_t i = 0; i < h->n_sources; i++) {
        const struct kv_h5_source *s = &h->source[i];
        const size_t a = begin > s->first ? begin : s->first;
        const size_t b = end < s->first + s->n ? end : s->first + s->n;

        if (a >= b)
            continue;
        from[0] = a - s->first;
        n[0] = b - a;
        if (kv_h5_read(s->file, name, type, from, n, to, e))
            return -1;
        to += n[0] * entry;
    }
    return 0;
}
