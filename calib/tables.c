#include "calib/tables.h"
#include "calib/calibrate_impl.h"
#include "lib/base/alloc.h"
#include "lib/base/half.h"
#include "lib/scheme.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The table that an array's name denotes; KV_ALL if the name leaves a part
 * out. */
struct place {
    char table[32];
    int side, layer, head;
};

static bool takes(const struct kv_spec *s)
{
    static const char *const schemes[] = {
        "vecinfer", "cq", "pq", "million", "kvquant", "oscar", "rotatekv"};

    for (size_t i = 0; i < sizeof(schemes) / sizeof(*schemes); i++)
        if (!strcmp(s->scheme->name, schemes[i]))
            return !s->mixed && !s->policy.policy;
    return false;
}

/* Reads a word between '.', '/' or '-'; false if it adds no information. */
static bool take_word(struct place *p, const char *word)
{
    const bool number = isdigit((unsigned char)*word) && strlen(word) < 6;

    if (!strcmp(word, "layer") || !strcmp(word, "layers") ||
        !strcmp(word, "head") || !strcmp(word, "heads"))
        return true;
    if (number && strspn(word, "0123456789") == strlen(word)) {
        int *to = p->layer == KV_ALL ? &p->layer : &p->head;

        if (*to != KV_ALL)
            return false;
        *to = atoi(word);
        return true;
    }
    if (!strcmp(word, "k") || !strcmp(word, "v")) {
        if (p->side != KV_ALL)
            return false;
        p->side = *word == 'k' ? KV_K : KV_V;
        return true;
    }
    if (*p->table || strlen(word) >= sizeof(p->table))
        return false;
    snprintf(p->table, sizeof(p->table), "%s", word);
    return true;
}

static int read_place(struct place *p, const char *path, const char *name,
                      struct kv_err *e)
{
    char words[KV_ARRAY_NAME], *rest = NULL;
    bool good = true;

    *p = (struct place){.side = KV_ALL, .layer = KV_ALL, .head = KV_ALL};
    snprintf(words, sizeof(words), "%s", name);
    for (char *w = strtok_r(words, "./-", &rest); w && good;
         w = strtok_r(NULL, "./-", &rest))
        good = take_word(p, w);
    if (good && *p->table)
        return 0;
    return kv_fail(e,
                   "%s: %s: expected the name of a table with k or v and a "
                   "layer, as in layers.0.k.codebook",
                   path, name);
}

/* The set of tables that is made from a file's arrays. */
struct taken {
    struct kv_arrays *file;
    struct kv_calib_set *set;
    const char **array; /* for each table of the set, the name of its array */
};

/* Adds an array as a table.  Codebooks of all heads in one array, with [heads]
 * as first dimension, become a table for each head. */
static int add_table(struct taken *to, size_t i, const struct kv_array *a,
                     struct kv_err *e)
{
    struct kv_arrays *file = to->file;
    struct kv_calib_set *set = to->set;
    const char *path = kv_arrays_path(file);
    struct place p;

    if (read_place(&p, path, a->name, e))
        return -1;

    const bool half = !strcmp(p.table, "codebook");
    const size_t heads = half && a->n_dims == 4 ? a->dims[0] : 1;
    const size_t skip = heads > 1 || (half && a->n_dims == 4);
    const size_t n_dims = a->n_dims - skip, n = heads ? a->n / heads : 0;

    if (n_dims < 1 || n_dims > 4 || !n || (skip && p.head != KV_ALL))
        return kv_fail(e, "%s: %s has %zu dimensions%s", path, a->name,
                       a->n_dims, n ? "" : ", and no values");
    for (size_t h = 0; h < heads; h++) {
        struct kv_table *t =
            kv_calib_add(set, p.table, p.side, p.layer,
                         heads > 1 ? (int)h : p.head, n_dims, a->dims + skip);

        t->type = half ? KV_TABLE_F16 : KV_TABLE_F32;
        to->array = kv_realloc(to->array, set->n_tables, sizeof(*to->array));
        to->array[set->n_tables - 1] = a->name;
        if (kv_arrays_read(file, i, h * n, n, t->data, e))
            return -1;
        for (size_t j = 0; half && j < n; j++) {
            if (fabsf(t->data[j]) > 65504)
                return kv_fail(e, "%s: %s has a value of %g, beyond fp16", path,
                               a->name, (double)t->data[j]);
            t->data[j] = kv_f16_to_f32(kv_f16_clamp(t->data[j]));
        }
    }
    return 0;
}

static int open_all(const struct kv_calib *c, const struct kv_spec *spec,
                    const struct kv_shape *shape, struct kv_err *e)
{
    struct kv_codecs *cs;

    if (kv_codecs_new(&cs, spec, shape, 0, shape->n_layers, c, e))
        return -1;
    kv_codecs_free(cs);
    return 0;
}

/* Opens, and closes, a codec that reads a table of this place. */
static int open_at(const struct kv_calib *c, const struct kv_spec *spec,
                   const struct kv_shape *shape, const struct kv_table *t,
                   struct kv_err *e)
{
    struct kv_codec *codec;

    if (kv_codec_new(&codec, spec, shape, t->layer < 0 ? 0 : (size_t)t->layer,
                     t->side == KV_V ? KV_V : KV_K, c, e))
        return -1;
    kv_codec_free(codec);
    return 0;
}

static int fail_unused(const char *path, const char *array,
                       const struct kv_table *t, const struct kv_spec *spec,
                       struct kv_err *e)
{
    char at[64] = "";
    size_t n = 0;

    if (t->layer >= 0)
        n = (size_t)snprintf(at, sizeof(at), " of layer %d", t->layer);
    if (t->side >= 0)
        n += (size_t)snprintf(at + n, sizeof(at) - n, ", %c",
                              kv_side_name((enum kv_side)t->side));
    if (t->head >= 0)
        snprintf(at + n, sizeof(at) - n, ", head %d", t->head);
    return kv_fail(e,
                   "%s: %s: %s does not read a table '%s'%s, or the file has "
                   "it twice",
                   path, array, spec->text, t->name, at);
}

/* Whether the codec that should read the table opens without it. */
static bool opens_without(const struct kv_calib *c, const struct kv_spec *spec,
                          const struct kv_shape *shape, struct kv_table *t,
                          struct kv_err *e)
{
    char name[sizeof(t->name)];
    bool opens;

    memcpy(name, t->name, sizeof(name));
    snprintf(t->name, sizeof(t->name), "-");
    opens = !open_at(c, spec, shape, t, e);
    memcpy(t->name, name, sizeof(name));
    return opens;
}

/* Adds the name of the wrong array to the sentence that says why codecs do not
 * open.  If no array is wrong, a table is missing and only the file is
 * named. */
static int fail_array(const struct taken *to, const struct kv_calib *c,
                      const struct kv_spec *spec, const struct kv_shape *shape,
                      struct kv_err *e)
{
    static const char hint[] = ": kvcalib makes it anew";
    const char *path = kv_arrays_path(to->file), *array = NULL;
    struct kv_err with, without;
    char *at = strstr(e->msg, hint);

    for (size_t i = 0; i < to->set->n_tables && !array; i++) {
        struct kv_table *t = &to->set->table[i];

        if (open_at(c, spec, shape, t, &with) &&
            (opens_without(c, spec, shape, t, &without) ||
             strcmp(with.msg, without.msg) != 0))
            array = to->array[i];
    }
    if (at)
        *at = 0;
    return array ? kv_fail_in(e, "%s: %s", path, array)
                 : kv_fail_in(e, "%s", path);
}

/* Checks that every table is read: its codec must not open without the
 * table. */
static int check_used(const struct taken *to, const struct kv_calib *c,
                      const struct kv_spec *spec, const struct kv_shape *shape,
                      struct kv_err *e)
{
    const char *path = kv_arrays_path(to->file);
    struct kv_err ignored;

    for (size_t i = 0; i < to->set->n_tables; i++) {
        struct kv_table *t = &to->set->table[i];

        if (t->layer >= (int)shape->n_layers)
            return kv_fail(e,
                           "%s: %s: a table '%s' of layer %d: the dump has "
                           "layers 0 to %zu",
                           path, to->array[i], t->name, t->layer,
                           shape->n_layers - 1);
        if (opens_without(c, spec, shape, t, &ignored))
            return fail_unused(path, to->array[i], t, spec, e);
    }
    return 0;
}

static int fill(struct kv_calib *c, const struct kv_spec *spec,
                const struct kv_shape *shape, struct kv_arrays *file,
                struct kv_err *e)
{
    struct kv_calib_set *set = &c->set[0];
    struct taken to = {.file = file, .set = set};
    const struct kv_array *list;
    const size_t n = kv_arrays_list(file, &list);
    int rc = 0;

    c->n_sets = 1;
    kv_spec_calib_key(spec, set->key);
    snprintf(set->spec, sizeof(set->spec), "%s", spec->text);
    for (size_t i = 0; i < n && !rc; i++)
        rc = add_table(&to, i, &list[i], e);
    if (!rc)
        rc = open_all(c, spec, shape, e) ? fail_array(&to, c, spec, shape, e)
                                         : check_used(&to, c, spec, shape, e);
    free(to.array);
    return rc;
}

int kv_calib_take_tables(struct kv_calib **out, struct kv_dump *dump,
                         const struct kv_spec *spec, struct kv_arrays *tables,
                         uint64_t seed, struct kv_err *e)
{
    const struct kv_dump_info *info = kv_dump_info(dump);
    struct kv_calib *c;
    bool *counts = NULL;
    size_t used;
    int rc;

    if (!takes(spec))
        return kv_fail(e,
                       "%s: --tables is for vecinfer, cq, pq, million, "
                       "kvquant, oscar and rotatekv",
                       spec->text);
    c = kv_calib_start(dump, 1);
    used = strlen(c->text);
    snprintf(c->text + used, sizeof(c->text) - used, "+tables");
    c->set[0].seed = seed;
    rc = fill(c, spec, &info->shape, tables, e) ||
         kv_sketch_dump(&c->sketch, dump, e) ||
         kv_calib_massive(c, dump, &counts, e);
    free(counts);
    if (rc) {
        kv_calib_free(c);
        return -1;
    }
    *out = c;
    return 0;
}
