/* Groups of an HDF5 file and their members. */
#include "lib/base/alloc.h"
#include "lib/h5_impl.h"
#include "lib/h5_stored.h"
#include "lib/h5_trial.h"

#include <stdlib.h>
#include <string.h>

void kv_h5_group(struct kv_h5 *h, const char *name)
{
    const hid_t create = H5Pcreate(H5P_GROUP_CREATE);

    H5Pset_obj_track_times(create, false);

    const hid_t g = H5Gcreate2(h->file, name, H5P_DEFAULT, create, H5P_DEFAULT);

    if (g < 0 || H5Gclose(g) < 0)
        kv_h5_keep(h, "make", name);
    H5Pclose(create);
}

bool kv_h5_has(struct kv_h5 *h, const char *name)
{
    return kv_h5_linked(h->file, name);
}

struct children {
    char (*name)[KV_H5_NAME_CHARS];
    size_t n, capacity;
    bool too_long;
};

static herr_t add_child(hid_t group, const char *name, const H5L_info_t *info,
                        void *arg)
{
    struct children *c = arg;
    const size_t n = strlen(name);

    (void)group;
    (void)info;
    if (n >= sizeof(*c->name)) {
        c->too_long = true;
        return 1; /* stop */
    }
    if (c->n == c->capacity) {
        c->capacity = c->capacity ? 2 * c->capacity : 16;
        c->name = kv_realloc(c->name, c->capacity, sizeof(*c->name));
    }
    memcpy(c->name[c->n++], name, n + 1);
    return 0;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(a, b);
}

/* Lists the names in any order, then sorts them.  To list in order, HDF5 1.10
 * builds a table, and it crashes if a damaged file does not fill the table. */
int kv_h5_children(struct kv_h5 *h, const char *group,
                   char (**names)[KV_H5_NAME_CHARS], size_t *n,
                   struct kv_err *e)
{
    struct children c = {NULL, 0, 0, false};
    herr_t rc;

    *names = NULL;
    *n = 0;
    if (kv_h5_check_links(h->file, h->path, group, e))
        return -1;
    rc = H5Literate_by_name(h->file, group, H5_INDEX_NAME, H5_ITER_NATIVE, NULL,
                            add_child, &c, H5P_DEFAULT);
    if (rc) {
        free(c.name);
        if (c.too_long)
            return kv_fail(e, "%s: a name in %s is too long", h->path, group);
        return kv_h5_fail(h, "read group", group, e);
    }
    if (c.n)
        qsort(c.name, c.n, sizeof(*c.name), by_name);
    *names = c.name;
    *n = c.n;
    return 0;
}
