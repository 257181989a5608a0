#include "lib/calib.h"
#include "lib/base/alloc.h"
#include "lib/dump.h"
#include "lib/h5_head.h"
#include "lib/spec_impl.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

size_t kv_table_values(const struct kv_table *t)
{
    size_t n = 1;

    for (size_t i = 0; i < t->n_dims; i++)
        n *= t->dims[i];
    return n;
}

struct kv_table *kv_calib_add(struct kv_calib_set *set, const char *name,
                              int side, int layer, int head, size_t n_dims,
                              const size_t *dims)
{
    struct kv_table *t;

    assert(strlen(name) < sizeof(t->name) && n_dims >= 1 && n_dims <= 4);
    set->table = kv_realloc(set->table, set->n_tables + 1, sizeof(*set->table));
    t = &set->table[set->n_tables++];
    *t = (struct kv_table){.side = side,
                           .layer = layer,
                           .head = head,
                           .n_dims = n_dims,
                           .error = NAN};
    snprintf(t->name, sizeof(t->name), "%s", name);
    memcpy(t->dims, dims, n_dims * sizeof(*dims));
    t->data = kv_alloc(kv_table_values(t), sizeof(*t->data));
    return t;
}

void kv_calib_move(struct kv_calib_set *from, struct kv_calib_set *to)
{
    to->table = kv_realloc(to->table, to->n_tables + from->n_tables,
                           sizeof(*to->table));
    if (from->n_tables)
        memcpy(to->table + to->n_tables, from->table,
               from->n_tables * sizeof(*to->table));
    to->n_tables += from->n_tables;
    free(from->table);
    from->table = NULL;
    from->n_tables = 0;
}

const struct kv_calib_set *kv_calib_find(const struct kv_calib *c,
                                         const struct kv_spec *spec)
{
    char key[KV_SPEC_CHARS];

    kv_spec_calib_key(spec, key);
    for (size_t i = 0; i < c->n_sets; i++)
        if (!strcmp(c->set[i].key, key))
            return &c->set[i];
    return NULL;
}

/* Gives s the iters of a set's spec; returns whether s then has the set's
 * key. */
static bool with_iters_of(const struct kv_calib_set *set, struct kv_spec *s)
{
    struct kv_spec made;
    char key[KV_SPEC_CHARS];

    if (kv_spec_parse(&made, set->spec, NULL) || made.scheme != s->scheme)
        return false;
    for (int side = 0; side < KV_SIDES; side++)
        kv_spec_set(s, (enum kv_side)side, "iters",
                    kv_spec_get(&made, (enum kv_side)side, "iters"));
    kv_spec_calib_key(s, key);
    return !strcmp(key, set->key);
}

static bool has_iters(const struct kv_scheme *k)
{
    const struct kv_param *p;

    for (size_t i = 0; (p = kv_spec_param(k, i)); i++)
        if (!strcmp(p->name, "iters"))
            return true;
    return false;
}

static int adopt_one(const struct kv_calib *c, struct kv_spec *spec,
                     struct kv_err *e)
{
    const struct kv_calib_set *found = NULL;
    const struct kv_spec asked = *spec;

    for (size_t i = 0; i < c->n_sets; i++) {
        struct kv_spec s = asked;

        if (!with_iters_of(&c->set[i], &s))
            continue;
        if (found)
            return kv_fail(e,
                           "%s has tables for %s and for %s: say which by "
                           "iters=",
                           c->path ? c->path : "the calibration", found->key,
                           c->set[i].key);
        found = &c->set[i];
        *spec = s;
    }
    kv_spec_print(spec);
    return 0;
}

int kv_calib_adopt(const struct kv_calib *c, struct kv_spec *specs, size_t n,
                   struct kv_err *e)
{
    for (size_t i = 0; c && i < n; i++)
        if (!specs[i].mixed && has_iters(specs[i].scheme) &&
            !strstr(specs[i].given, "iters=") && !kv_calib_find(c, &specs[i]) &&
            adopt_one(c, &specs[i], e))
            return -1;
    return 0;
}

static bool covers(int scope, size_t index)
{
    return scope == KV_ALL || (scope >= 0 && (size_t)scope == index);
}

const struct kv_table *kv_calib_table(const struct kv_calib_set *set,
                                      const char *name, enum kv_side side,
                                      size_t layer, size_t head)
{
    for (size_t i = 0; i < set->n_tables; i++) {
        const struct kv_table *t = &set->table[i];

        if (!strcmp(t->name, name) && covers(t->side, side) &&
            covers(t->layer, layer) && covers(t->head, head))
            return t;
    }
    return NULL;
}

/* Fails, naming the missing spec and the sets that are present: the sets of its
 * scheme, or all sets if there are none. */
static int no_set(const struct kv_calib *calib, const struct kv_spec *spec,
                  struct kv_err *e)
{
    char key[KV_SPEC_CHARS], has[512] = "";
    size_t n = 0, scheme, alike = 0;

    kv_spec_calib_key(spec, key);
    scheme = strcspn(key, ":");
    for (size_t i = 0; i < calib->n_sets; i++)
        alike += !strncmp(calib->set[i].key, key, scheme + 1);
    for (size_t i = 0; i < calib->n_sets && n < sizeof(has); i++)
        if (!alike || !strncmp(calib->set[i].key, key, scheme + 1))
            n += (size_t)snprintf(has + n, sizeof(has) - n, "%s%s",
                                  n ? " " : "", calib->set[i].key);
    return kv_fail(e,
                   "%s has no tables for %s; it has %s%s (kvcalib makes them)",
                   calib->path ? calib->path : "the calibration", key,
                   n ? has : "none", n < sizeof(has) ? "" : " ...");
}

/* Whether a word of the spec is "fisher" or "fisher-s2": training then needs
 * gradients. */
static bool wants_gradients(const struct kv_spec *s)
{
    static const char *const words[] = {"fisher", "fisher-s2"};

    for (size_t i = 0; i < kv_spec_n_params(s->scheme) * KV_SIDES; i++) {
        const size_t p = i / KV_SIDES;
        const char *choices = kv_spec_param(s->scheme, p)->choices;

        for (size_t w = 0; choices && w < 2; w++) {
            const int at = kv_choice_find(choices, words[w], strlen(words[w]));

            if (at >= 0 && s->value[i % KV_SIDES][p] == at)
                return true;
        }
    }
    return false;
}

int kv_calib_want_set(const struct kv_calib_set **set,
                      const struct kv_calib *calib, const struct kv_spec *spec,
                      struct kv_err *e)
{
    if (!calib)
        return kv_fail(
            e, "needs a calibration made for it (%skvcalib, then -C FILE)",
            wants_gradients(spec) ? "kvdump --fisher, " : "");
    *set = kv_calib_find(calib, spec);
    return *set ? 0 : no_set(calib, spec, e);
}

/* Writes dimensions as "4 x 512". */
static void shape_text(size_t n, const size_t *dims, char text[96])
{
    size_t at = 0;

    text[0] = 0;
    for (size_t i = 0; i < n && at < 96; i++)
        at += (size_t)snprintf(text + at, 96 - at, "%s%zu", i ? " x " : "",
                               dims[i]);
}

const struct kv_table *kv_calib_want(const struct kv_codec *c,
                                     const struct kv_calib_set *set,
                                     const char *name, size_t head,
                                     size_t n_dims, const size_t *dims,
                                     struct kv_err *e)
{
    const struct kv_table *t =
        kv_calib_table(set, name, c->side, c->layer, head);
    bool same = t && t->n_dims == n_dims;

    for (size_t i = 0; same && i < n_dims; i++)
        same = t->dims[i] == dims[i];
    if (same)
        return t;

    char has[96], want[96], why[256] = "is missing";

    if (t) {
        shape_text(t->n_dims, t->dims, has);
        shape_text(n_dims, dims, want);
        snprintf(why, sizeof(why), "is %s, expected %s: kvcalib makes it anew",
                 has, want);
    }
    kv_fail(e, "the calibration's table '%s' for layer %zu, %c, head %zu %s",
            name, c->layer, kv_side_name(c->side), head, why);
    return NULL;
}

size_t kv_table_bytes(const struct kv_table *t)
{
    static const size_t size[] = {[KV_TABLE_F32] = sizeof(float),
                                  [KV_TABLE_F16] = sizeof(uint16_t),
                                  [KV_TABLE_U8] = sizeof(uint8_t)};

    return kv_table_values(t) * size[t->type];
}

size_t kv_calib_set_bytes(const struct kv_calib_set *set)
{
    size_t n = 0;

    for (size_t i = 0; i < set->n_tables; i++)
        n += kv_table_bytes(&set->table[i]);
    return n;
}

const bool *kv_calib_counts(const struct kv_calib_set *set,
                            const struct kv_dump_info *info, size_t layer)
{
    return set->counts ? set->counts + (layer - info->first_layer) *
                                           info->n_windows * info->ctx
                       : NULL;
}

void kv_calib_set_clear(struct kv_calib_set *set)
{
    for (size_t i = 0; i < set->n_tables; i++)
        free(set->table[i].data);
    free(set->table);
    *set = (struct kv_calib_set){0};
}

void kv_calib_free(struct kv_calib *c)
{
    if (!c)
        return;
    for (size_t i = 0; i < c->n_sets; i++)
        kv_calib_set_clear(&c->set[i]);
    free(c->set);
    kv_sketch_clear(&c->sketch);
    free(c->norms);
    free(c->path);
    free(c);
}

int kv_calib_check_model(const struct kv_calib *c, const char *path,
                         const char *model_hash, const struct kv_shape *shape,
                         struct kv_err *e)
{
    if (model_hash && strcmp(c->model_hash, model_hash))
        return kv_fail(e,
                       "%s was made for another model (%s, hash %s; this one "
                       "has hash %s), or by a version that hashed models in "
                       "another way",
                       path, c->model, c->model_hash, model_hash);
    if (kv_shape_same(&c->shape, shape, e))
        return kv_fail_in(e, "%s was made for another model", path);
    return 0;
}
