/* Packs a part of a calibration into bytes, for another rank of the same
 * program on the same kind of machine. */
#include "calib/calibrate.h"
#include "lib/base/alloc.h"
#include "lib/base/progress.h"

#include <stdlib.h>
#include <string.h>

/* The head of a set: its warning and the number of its tables; the tables
 * follow. */
struct set_head {
    char warning[sizeof(((struct kv_calib_set *)0)->warning)];
    uint64_t n_tables;
};

/* The head of a table; its values follow. */
struct table_head {
    char name[sizeof(((struct kv_table *)0)->name)];
    int32_t side, layer, head;
    int32_t type;
    uint64_t n_dims, dims[4];
    double error;
};

static size_t value_bytes(const struct kv_table *t)
{
    return kv_table_values(t) * sizeof(*t->data);
}

static uint8_t *put(uint8_t *at, const void *from, size_t n)
{
    memcpy(at, from, n);
    return at + n;
}

static uint8_t *put_table(uint8_t *at, const struct kv_table *t)
{
    struct table_head h = {.side = t->side,
                           .layer = t->layer,
                           .head = t->head,
                           .type = (int32_t)t->type,
                           .n_dims = t->n_dims,
                           .error = t->error};

    memcpy(h.name, t->name, sizeof(h.name));
    for (size_t i = 0; i < t->n_dims; i++)
        h.dims[i] = t->dims[i];
    return put(put(at, &h, sizeof(h)), t->data, value_bytes(t));
}

size_t kv_calib_pack(const struct kv_calib *part, uint8_t **bytes)
{
    size_t n = part->n_sets * sizeof(struct set_head);
    uint8_t *at;

    for (size_t i = 0; i < part->n_sets; i++)
        for (size_t j = 0; j < part->set[i].n_tables; j++)
            n +=
                sizeof(struct table_head) + value_bytes(&part->set[i].table[j]);
    at = *bytes = kv_alloc(n, 1);
    for (size_t i = 0; i < part->n_sets; i++) {
        const struct kv_calib_set *s = &part->set[i];
        struct set_head h = {.n_tables = s->n_tables};

        memcpy(h.warning, s->warning, sizeof(h.warning));
        at = put(at, &h, sizeof(h));
        for (size_t j = 0; j < s->n_tables; j++)
            at = put_table(at, &s->table[j]);
    }
    return n;
}

struct rest {
    const uint8_t *at;
    size_t n;
};

static bool take(struct rest *r, void *to, size_t n)
{
    if (n > r->n)
        return false;
    memcpy(to, r->at, n);
    r->at += n;
    r->n -= n;
    return true;
}

static bool take_table(struct rest *r, struct kv_calib_set *set)
{
    struct table_head h;
    size_t dims[4], n = 1;
    struct kv_table *t;

    if (!take(r, &h, sizeof(h)) || h.n_dims > 4 || h.type < 0 ||
        h.type > KV_TABLE_U8)
        return false;
    for (size_t i = 0; i < h.n_dims; i++) {
        if (!h.dims[i] || h.dims[i] > r->n / sizeof(*t->data) / n)
            return false;
        n *= dims[i] = h.dims[i];
    }
    h.name[sizeof(h.name) - 1] = 0;
    t = kv_calib_add(set, h.name, h.side, h.layer, h.head, h.n_dims, dims);
    t->type = (enum kv_table_type)h.type;
    t->error = h.error;
    return take(r, t->data, value_bytes(t));
}

static bool take_set(struct rest *r, struct kv_calib_set *set)
{
    struct set_head h;

    if (!take(r, &h, sizeof(h)))
        return false;
    if (h.warning[0] && !set->warning[0]) {
        memcpy(set->warning, h.warning, sizeof(set->warning));
        kv_note("%s", set->warning);
    }
    for (size_t i = 0; i < h.n_tables; i++)
        if (!take_table(r, set))
            return false;
    return true;
}

int kv_calib_unpack(struct kv_calib *c, const uint8_t *bytes, size_t n,
                    struct kv_err *e)
{
    struct rest r = {bytes, n};

    for (size_t i = 0; i < c->n_sets; i++)
        if (!take_set(&r, &c->set[i]))
            return kv_fail(e, "a part of a calibration ends in %s",
                           c->set[i].spec);
    return r.n ? kv_fail(e, "a part of a calibration has %zu bytes too many",
                         r.n)
               : 0;
}
