#include "lib/base/alloc.h"
#include "lib/dump_layout.h"
#include "lib/h5_head.h"

#include <stdlib.h>
#include <string.h>

/* Checks that the dump's windows from `first` on have the part's tokens. */
static int check_tokens(struct kv_dump *d, struct kv_dump *part, size_t first,
                        struct kv_err *e)
{
    const struct kv_dump_info *info = kv_dump_info(part);
    const size_t n = info->n_windows * info->ctx;
    int32_t *want = kv_alloc(2 * n, sizeof(*want)), *have = want + n;
    int rc = kv_dump_tokens(d, first * info->ctx, n, want, e) ||
             kv_dump_tokens(part, 0, n, have, e);

    if (!rc && memcmp(want, have, n * sizeof(*want)) != 0)
        rc = kv_fail(e,
                     "%s, a part of %s, has other tokens than windows %zu to "
                     "%zu",
                     kv_dump_path(part), kv_dump_path(d), first,
                     first + info->n_windows - 1);
    free(want);
    return rc ? -1 : 0;
}

static int check_part(struct kv_dump *d, struct kv_dump *part, size_t first,
                      struct kv_err *e)
{
    const struct kv_dump_info *all = kv_dump_info(d), *i = kv_dump_info(part);

    if (strcmp(i->model_hash, all->model_hash) != 0 ||
        strcmp(i->text_hash, all->text_hash) != 0)
        return kv_fail(e, "%s, a part of %s, is of another model or text",
                       kv_dump_path(part), kv_dump_path(d));
    if (kv_shape_same(&i->shape, &all->shape, e))
        return kv_fail_in(e, "%s, a part of %s", kv_dump_path(part),
                          kv_dump_path(d));
    return check_tokens(d, part, first, e);
}

int kv_dump_check_parts(struct kv_dump *d, const struct kv_h5 *h,
                        struct kv_err *e)
{
    int rc = 0;

    for (size_t i = 0; i < kv_h5_n_parts(h) && !rc; i++) {
        struct kv_dump *part;
        size_t first;

        if (kv_dump_open_part(&part, kv_h5_part_path(h, i, &first), e))
            return -1;
        rc = check_part(d, part, first, e);
        kv_dump_close(part);
    }
    return rc;
}
