/* Finds a file's tensor by its name and the shape that config.json requires. */
#include "lib/model/tensor_map.h"

#include <stdio.h>
#include <string.h>

static void list_dims(char *text, size_t bytes, const size_t *dims, size_t n)
{
    *text = 0;
    for (size_t i = 0; i < n; i++)
        snprintf(text + strlen(text), bytes - strlen(text), "%s%zu",
                 i ? ", " : "", dims[i]);
}

/* want: [3]; a shape with fewer dimensions ends in 0. */
static int check_shape(const struct kv_weight *t, const size_t *want,
                       struct kv_err *e)
{
    const size_t n_dims = !want[1] ? 1 : !want[2] ? 2 : 3;
    char is[128], should[64];

    if (t->n_dims == n_dims && !memcmp(t->dims, want, n_dims * sizeof(*want)))
        return 0;
    list_dims(is, sizeof(is), t->dims, t->n_dims);
    list_dims(should, sizeof(should), want, n_dims);
    return kv_fail(e, "%s: tensor %s%s has shape [%s]; config.json says [%s]",
                   t->path, t->name, t->packed ? ", unpacked," : "", is,
                   should);
}

int kv_tensor_bind(const struct kv_weight **out, const struct kv_weights *w,
                   const char *name, const size_t shape[3], const char *dir,
                   struct kv_err *e)
{
    const struct kv_weight *t = kv_weights_find(w, name);

    if (!t)
        return kv_fail(e, "%s: tensor %s is missing", dir, name);
    if (t->type == KV_STORED_OTHER)
        return kv_fail(e, "%s: tensor %s has type %s, which is not implemented",
                       t->path, name, t->dtype);
    if (check_shape(t, shape, e) || kv_interrupted(e) || kv_weight_check(t, e))
        return -1;
    kv_weight_release(t);
    *out = t;
    return 0;
}
