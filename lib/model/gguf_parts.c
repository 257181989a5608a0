#include "lib/base/alloc.h"
#include "lib/model/gguf_model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_PARTS = 99999 };

/* Reads a key of split files, a count; 0 if it is absent. */
static int get_count(const struct kv_gguf *g, const char *key, size_t *out,
                     struct kv_err *e)
{
    const struct kv_gguf_value *v;

    *out = 0;
    if (kv_gguf_get(g, key, KV_GGUF_COUNT, false, &v, e))
        return -1;
    if (v)
        *out = (size_t)kv_gguf_int(v, 0);
    return 0;
}

/* Opens part i of n as m->part[i]: its name is the first `first` bytes of path,
 * then number and count. */
static int open_part(struct kv_gguf_model *m, const char *path, size_t first,
                     size_t i, size_t n, struct kv_err *e)
{
    const size_t capacity = first + sizeof("-00001-of-00001.gguf");
    char *name = kv_alloc(capacity, 1);
    size_t no, count;
    int rc;

    snprintf(name, capacity, "%.*s-%05zu-of-%05zu.gguf", (int)first, path,
             i + 1, n);
    rc = kv_gguf_open(&m->part[i], name, e);
    if (rc)
        kv_fail_in(e, "part %zu of %zu of the model", i + 1, n);
    else
        m->n_parts++;
    if (!rc && (get_count(&m->part[i], "split.no", &no, e) ||
                get_count(&m->part[i], "split.count", &count, e)))
        rc = -1;
    else if (!rc && (no != i || count != n))
        rc = kv_fail(e,
                     "%s: by its keys split.no and split.count it is part %zu "
                     "of %zu, by its name part %zu of %zu",
                     name, no + 1, count, i + 1, n);
    free(name);
    return rc;
}

/* Opens all n parts of a model; m->part[0] is one of them so far. */
static int open_parts(struct kv_gguf_model *m, const char *path, size_t n,
                      struct kv_err *e)
{
    const size_t ending = sizeof("-00001-of-00001.gguf") - 1;
    const size_t length = strlen(path);
    size_t no, of, tensors, found = 0;
    int end = 0;

    if (length < ending || n > MAX_PARTS ||
        sscanf(path + length - ending, "-%5zu-of-%5zu.gguf%n", &no, &of,
               &end) != 2 ||
        (size_t)end != ending)
        return kv_fail(e,
                       "%s is one of %zu parts; the name of a part ends in "
                       "-00001-of-%05zu.gguf",
                       path, n, n);
    kv_gguf_model_clear(m);
    m->part = kv_alloc(n, sizeof(*m->part));
    for (size_t i = 0; i < n; i++)
        if (open_part(m, path, length - ending, i, n, e))
            return -1;
    for (size_t i = 0; i < n; i++)
        found += m->part[i].n_tensors;
    if (get_count(&m->part[0], "split.tensors.count", &tensors, e))
        return -1;
    if (found != tensors)
        return kv_fail(e,
                       "%s: key split.tensors.count is %zu, but the %zu parts "
                       "hold %zu tensors",
                       m->part[0].path, tensors, n, found);
    return 0;
}

int kv_gguf_model_open(struct kv_gguf_model *m, const char *path,
                       struct kv_err *e)
{
    size_t n;

    *m = (struct kv_gguf_model){.part = kv_alloc(1, sizeof(*m->part))};
    if (kv_gguf_open(&m->part[0], path, e))
        goto fail;
    m->n_parts = 1;
    if (get_count(&m->part[0], "split.count", &n, e) ||
        (n > 1 && open_parts(m, path, n, e)))
        goto fail;
    return 0;
fail:
    kv_gguf_model_clear(m);
    return -1;
}

void kv_gguf_model_clear(struct kv_gguf_model *m)
{
    for (size_t i = 0; i < m->n_parts; i++)
        kv_gguf_clear(&m->part[i]);
    free(m->part);
    *m = (struct kv_gguf_model){0};
}

static int name_is(const void *name, const void *element)
{
    return strcmp(name, ((const struct kv_weight *)element)->name);
}

const struct kv_weight *kv_gguf_tensor(const struct kv_gguf_model *m,
                                       const char *name)
{
    const struct kv_weight *found = NULL;

    for (size_t i = 0; i < m->n_parts && !found; i++)
        if (m->part[i].n_tensors)
            found = bsearch(name, m->part[i].tensor, m->part[i].n_tensors,
                            sizeof(*found), name_is);
    return found;
}
