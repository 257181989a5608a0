#include "lib/h5_trial.h"
#include "lib/base/trial.h"
#include "lib/h5_parts.h"
#include "lib/h5_stored.h"

#include <stdio.h>
#include <stdlib.h>

enum { MAX_ATTRIBUTE = 1 << 20 };

/* Reads the attribute in its own type. */
static herr_t see_attribute(hid_t object, const char *name,
                            const H5A_info_t *info, void *unused)
{
    const hid_t attr = H5Aopen(object, name, H5P_DEFAULT);
    const hid_t type = H5Aget_type(attr), space = H5Aget_space(attr);
    const hssize_t n = H5Sget_simple_extent_npoints(space);
    const size_t bytes = H5Tget_size(type);
    void *data = NULL;

    (void)info, (void)unused;
    if (bytes && n > 0 && (uint64_t)n <= MAX_ATTRIBUTE / bytes)
        data = calloc((size_t)n, bytes);
    if (data && H5Aread(attr, type, data) >= 0 && H5Tis_variable_str(type) > 0)
        H5Dvlen_reclaim(type, space, H5P_DEFAULT, data);
    free(data);
    H5Sclose(space);
    H5Tclose(type);
    H5Aclose(attr);
    return 0;
}

struct trial {
    const char *path;
    uint64_t bytes;
};

static herr_t see_object(hid_t file, const char *name, const H5O_info_t *info,
                         void *trial)
{
    const struct trial *t = trial;
    const hid_t object = H5Oopen(file, name, H5P_DEFAULT);
    struct kv_err e;

    H5Aiterate2(object, H5_INDEX_NAME, H5_ITER_NATIVE, NULL, see_attribute,
                NULL);
    if (info->type == H5O_TYPE_DATASET && kv_h5_is_virtual(object)) {
        char full[KV_H5_NAME_CHARS];
        struct kv_h5_source *s;
        size_t n;

        snprintf(full, sizeof(full), "/%s", name);
        kv_h5_sources(object, t->path, full, &s, &n, &e);
        free(s);
    } else if (info->type == H5O_TYPE_DATASET) {
        kv_h5_check_stored(object, t->path, name, t->bytes, &e);
    }
    H5Oclose(object);
    return 0;
}

static void see_file(const void *arg)
{
    struct trial t = *(const struct trial *)arg;
    const hid_t file = H5Fopen(t.path, H5F_ACC_RDONLY, H5P_DEFAULT);

    if (file >= 0)
        H5Ovisit2(file, H5_INDEX_NAME, H5_ITER_NATIVE, see_object, &t,
                  H5O_INFO_BASIC);
}

int kv_h5_try(const char *path, uint64_t file_bytes, struct kv_err *e)
{
    const struct trial t = {path, file_bytes};
    const size_t ms = 2000 + (size_t)(file_bytes >> 20) * 10;

    return kv_trial(see_file, &t, ms, (size_t)100 << 20, e)
               ? kv_fail_in(e, "%s: HDF5 cannot go through it", path)
               : 0;
}
