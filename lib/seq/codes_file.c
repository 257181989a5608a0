#include "lib/seq/codes_file.h"
#include "lib/base/alloc.h"
#include "lib/h5.h"
#include "lib/h5_head.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define KIND "kvtools-codes"
enum { FORMAT = 1 };

struct kv_codes {
    struct kv_h5 *h;
};

int kv_codes_create(struct kv_codes **out, const char *path, struct kv_err *e)
{
    struct kv_codes *c = kv_alloc(1, sizeof(*c));

    if (kv_h5_create(&c->h, path, e)) {
        free(c);
        return -1;
    }
    kv_h5_put_kind(c->h, KIND, FORMAT);
    *out = c;
    return 0;
}

static void make_group(struct kv_h5 *h, const char *name)
{
    if (!kv_h5_has(h, name))
        kv_h5_group(h, name);
}

/* The groups of a place on their first use; name: its dataset, or its group
 * where it is variable. */
static void make_place(struct kv_h5 *h, const struct kv_codes_place *p,
                       char name[KV_H5_NAME_CHARS])
{
    snprintf(name, KV_H5_NAME_CHARS, "/spec_%03zu", p->spec);
    if (!kv_h5_has(h, name)) {
        kv_h5_group(h, name);
        kv_h5_put_text(h, name, "spec", p->text);
    }
    snprintf(name, KV_H5_NAME_CHARS, "/spec_%03zu/layer_%03zu", p->spec,
             p->layer);
    make_group(h, name);
    snprintf(name, KV_H5_NAME_CHARS, "/spec_%03zu/layer_%03zu/%c", p->spec,
             p->layer, p->side == KV_K ? 'k' : 'v');
    if (p->variable)
        make_group(h, name);
}

int kv_codes_put(struct kv_codes *c, const struct kv_codes_place *p,
                 size_t window, const uint8_t *bytes, size_t n,
                 struct kv_err *e)
{
    const size_t n_dims = p->variable ? 1 : 2, skip = p->variable;
    const size_t dims[] = {p->n_windows, n};
    const size_t first[] = {window, 0}, count[] = {1, n};
    char name[KV_H5_NAME_CHARS];

    make_place(c->h, p, name);
    if (p->variable) {
        const size_t end = strlen(name);

        snprintf(name + end, sizeof(name) - end, "/window_%03zu", window);
    }
    if (!kv_h5_has(c->h, name))
        kv_h5_dataset(c->h, name, KV_H5_U8, n_dims, dims + skip);
    if (kv_h5_check(c->h, name, KV_H5_U8, n_dims, dims + skip, e))
        return -1;
    return kv_h5_write(c->h, name, KV_H5_U8, first + skip, count + skip, bytes,
                       e);
}

int kv_codes_commit(struct kv_codes *c, struct kv_err *e)
{
    const int rc = kv_h5_commit(c->h, e);

    free(c);
    return rc;
}

void kv_codes_discard(struct kv_codes *c)
{
    if (!c)
        return;
    kv_h5_close(c->h);
    free(c);
}
