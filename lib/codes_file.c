#include "lib/codes_file.h"
#include "lib/base/alloc.h"
#include "lib/h5.h"
#include "lib/h5_head.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define KIND "kvtools-codes"
enum { FORMAT = 1 };

static uint8_t *put(uint8_t *at, const void *from, size_t n)
{
    if (n)
        memcpy(at, from, n);
    return at + n;
}

static size_t blocks_bytes(const struct kv_reader *r)
{
    size_t n = 0;

    if (!r->size)
        return r->n_blocks * r->codec->block_bytes;
    for (size_t i = 0; i < r->n_blocks; i++)
        n += r->size[i];
    return n;
}

size_t kv_codes_of(const struct kv_reader *r, uint8_t **bytes)
{
    const struct kv_codec *c = r->codec;
    const size_t row =
        c->shape.n_kv_heads * c->shape.head_dim * sizeof(uint16_t);
    const size_t rest = r->n - r->sinks - r->n_blocks * c->block;
    const size_t sink_bytes = r->sinks * row;
    const size_t size_bytes = r->size ? r->n_blocks * sizeof(*r->size) : 0;
    const size_t block_bytes = blocks_bytes(r);
    const size_t open_bytes =
        r->open && rest ? c->history->open_bytes(c, rest) : 0;
    const size_t tail_bytes = r->open ? 0 : rest * row;
    const size_t query_bytes =
        r->n_queries * c->shape.n_heads * c->shape.head_dim * sizeof(*r->query);
    const size_t kept_bytes = r->kept.n * kv_kept_token_bytes(&r->kept);
    const size_t n = sink_bytes + size_bytes + block_bytes + open_bytes +
                     tail_bytes + query_bytes + kept_bytes;
    uint8_t *at = *bytes = kv_alloc(n, 1);

    at = put(at, r->sink, sink_bytes);
    at = put(at, r->size, size_bytes);
    at = put(at, r->blocks, block_bytes);
    at = put(at, r->open, open_bytes);
    at = put(at, r->tail, tail_bytes);
    at = put(at, r->query, query_bytes);
    at = put(at, r->kept.at, r->kept.n * sizeof(*r->kept.at));
    put(at, r->kept.x, r->kept.n * row);
    return n;
}

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
