#include "lib/base/alloc.h"
#include "lib/base/half.h"
#include "lib/base/hash.h"
#include "lib/calib.h"
#include "lib/h5_head.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define KIND "kvtools-calib"
/* The first format with a seal, with all shapes, with norms, with latents, with
 * the channels that RoPE turns together, and with u8 tables (FORMAT). */
enum { SEALED = 2, SHAPES = 3, NORMS = 4, LATENTS = 5, PAIRS = 6, FORMAT = 7 };

static const char *const side_names[] = {"K", "V", "all"};

/* /set_000/codebook_K_l003_h01.  The name leaves out the side, layer or head if
 * the table is shared by all of them. */

struct path {
    char text[KV_H5_NAME_CHARS];
};

static struct path table_name(const struct kv_table *t)
{
    struct path p;
    char side[4] = "", layer[16] = "", head[16] = "";

    if (t->side != KV_ALL)
        snprintf(side, sizeof(side), "_%s", side_names[t->side]);
    if (t->layer != KV_ALL)
        snprintf(layer, sizeof(layer), "_l%03d", t->layer);
    if (t->head != KV_ALL)
        snprintf(head, sizeof(head), "_h%02d", t->head);
    snprintf(p.text, sizeof(p.text), "%s%s%s%s", t->name, side, layer, head);
    return p;
}

static struct path set_path(size_t i)
{
    struct path p;

    snprintf(p.text, sizeof(p.text), "/set_%03zu", i);
    return p;
}

static struct path table_path(size_t i, const char *name)
{
    struct path p;

    snprintf(p.text, sizeof(p.text), "/set_%03zu/%.100s", i, name);
    return p;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(table_name(a).text, table_name(b).text);
}

static void add_text(struct kv_hash *h, const char *text)
{
    kv_hash_add(h, text, strlen(text) + 1);
}

static void add_number(struct kv_hash *h, uint64_t x)
{
    kv_hash_add(h, &x, sizeof(x));
}

/* Hashes everything that codes depend on: keys, seeds, tables with their names,
 * in the order of the file. */
static void hash_tables(const struct kv_calib *c, char hex[KV_HASH_CHARS])
{
    struct kv_hash *h = kv_hash_new();

    for (size_t i = 0; i < c->n_sets; i++) {
        const struct kv_calib_set *s = &c->set[i];

        add_text(h, s->key);
        add_number(h, s->seed);
        for (size_t j = 0; j < s->n_tables; j++) {
            const struct kv_table *t = &s->table[j];

            add_text(h, table_name(t).text);
            for (size_t k = 0; k < t->n_dims; k++)
                add_number(h, t->dims[k]);
            kv_hash_add(h, t->data, kv_table_values(t) * sizeof(*t->data));
        }
    }
    if (c->norms) {
        add_number(h, c->has_k_bias);
        kv_hash_add(h, c->norms,
                    c->shape.n_layers * KV_SIDES * sizeof(*c->norms));
    }
    kv_hash_end(h, hex);
}

/* Hashes the fields that the hash of the tables omits: the source, the sketch,
 * the specs, the errors of training (by which klt allocates bits).  The model's
 * shape is omitted, as it is compared with the model in use. */
static void hash_rest(const struct kv_calib *c, char hex[KV_HASH_CHARS])
{
    struct kv_hash *h = kv_hash_new();

    add_text(h, c->hash);
    add_text(h, c->model);
    add_text(h, c->model_hash);
    add_text(h, c->text);
    add_text(h, c->text_hash);
    add_number(h, c->n_windows);
    add_number(h, c->ctx);
    kv_hash_add(h, c->sketch.hash, c->sketch.n * sizeof(*c->sketch.hash));
    for (size_t i = 0; i < c->n_sets; i++) {
        add_text(h, c->set[i].spec);
        for (size_t j = 0; j < c->set[i].n_tables; j++) {
            const double error = c->set[i].table[j].error;

            add_number(h, isnan(error));
            kv_hash_add(h, &error, isnan(error) ? 0 : sizeof(error));
        }
    }
    kv_hash_end(h, hex);
}

static const enum kv_h5_type stored_type[] = {[KV_TABLE_F32] = KV_H5_F32,
                                              [KV_TABLE_F16] = KV_H5_F16,
                                              [KV_TABLE_U8] = KV_H5_U8};

static int write_values(struct kv_h5 *h, const char *object,
                        const struct kv_table *t, struct kv_err *e)
{
    const size_t n = kv_table_values(t);
    uint8_t *bytes = NULL;
    uint16_t *half = NULL;
    const void *data = t->data;
    int rc;

    if (t->type == KV_TABLE_F16)
        data = half = kv_alloc(n, sizeof(*half));
    else if (t->type == KV_TABLE_U8)
        data = bytes = kv_alloc(n, sizeof(*bytes));
    for (size_t i = 0; i < n && half; i++)
        half[i] = kv_f32_to_f16(t->data[i]);
    for (size_t i = 0; i < n && bytes; i++)
        bytes[i] = (uint8_t)t->data[i];
    rc = kv_h5_write(h, object, stored_type[t->type], NULL, NULL, data, e);
    free(half);
    free(bytes);
    return rc;
}

static int read_values(struct kv_h5 *h, const char *object, struct kv_table *t,
                       struct kv_err *e)
{
    const size_t n = kv_table_values(t);
    uint8_t *bytes = NULL;
    uint16_t *half = NULL;
    void *data = t->data;
    int rc;

    if (t->type == KV_TABLE_F16)
        data = half = kv_alloc(n, sizeof(*half));
    else if (t->type == KV_TABLE_U8)
        data = bytes = kv_alloc(n, sizeof(*bytes));
    rc = kv_h5_read(h, object, stored_type[t->type], NULL, NULL, data, e);
    for (size_t i = 0; i < n && half; i++)
        t->data[i] = kv_f16_to_f32(half[i]);
    for (size_t i = 0; i < n && bytes; i++)
        t->data[i] = (float)bytes[i];
    free(half);
    free(bytes);
    return rc;
}

static int save_set(struct kv_h5 *h, const struct kv_calib_set *s, size_t i,
                    struct kv_err *e)
{
    const struct path group = set_path(i);

    kv_h5_group(h, group.text);
    kv_h5_put_text(h, group.text, "spec", s->spec);
    kv_h5_put_text(h, group.text, "key", s->key);
    kv_h5_put_u64(h, group.text, "seed", s->seed);
    for (size_t j = 0; j < s->n_tables; j++) {
        const struct kv_table *t = &s->table[j];
        const struct path p = table_path(i, table_name(t).text);

        kv_h5_dataset(h, p.text, stored_type[t->type], t->n_dims, t->dims);
        kv_h5_put_text(h, p.text, "name", t->name);
        kv_h5_put_text(h, p.text, "side",
                       side_names[t->side == KV_ALL ? KV_SIDES : t->side]);
        kv_h5_put_int(h, p.text, "layer", t->layer);
        kv_h5_put_int(h, p.text, "head", t->head);
        kv_h5_put_real(h, p.text, "error", t->error);
        if (write_values(h, p.text, t, e))
            return -1;
    }
    return 0;
}

/* Orders the tables as HDF5 will list them, and refuses two tables with the
 * same name. */
static int sort_tables(struct kv_calib_set *s, const char *path,
                       struct kv_err *e)
{
    if (s->n_tables)
        qsort(s->table, s->n_tables, sizeof(*s->table), by_name);
    for (size_t j = 1; j < s->n_tables; j++)
        if (!by_name(&s->table[j - 1], &s->table[j]))
            return kv_fail(e, "cannot write %s: %s has two tables %s", path,
                           s->spec, table_name(&s->table[j]).text);
    return 0;
}

/* Writes /norms f32 [n_layers][KV_SIDES][low, high]. */
static int save_norms(struct kv_h5 *h, const struct kv_calib *c,
                      struct kv_err *e)
{
    const size_t dims[] = {c->shape.n_layers, KV_SIDES, 2};

    if (!c->norms)
        return 0;
    kv_h5_dataset(h, "/norms", KV_H5_F32, 3, dims);
    kv_h5_put_text(h, "/norms", "rule", kv_massive_rule);
    kv_h5_put_int(h, "/norms", "k_bias", c->has_k_bias);
    return kv_h5_write(h, "/norms", KV_H5_F32, NULL, NULL, c->norms, e);
}

/* Files of formats before NORMS have no norms. */
static int load_norms(struct kv_h5 *h, struct kv_calib *c, struct kv_err *e)
{
    const size_t n = c->shape.n_layers * KV_SIDES;
    const size_t dims[] = {c->shape.n_layers, KV_SIDES, 2};
    int64_t format, k_bias;

    if (kv_h5_get_int(h, "/", "format", 1, FORMAT, &format, e))
        return -1;
    if (format < NORMS)
        return 0;
    if (kv_h5_check(h, "/norms", KV_H5_F32, 3, dims, e) ||
        kv_h5_get_int(h, "/norms", "k_bias", 0, 1, &k_bias, e))
        return -1;
    c->has_k_bias = k_bias;
    c->norms = kv_alloc(n, sizeof(*c->norms));
    if (kv_h5_read(h, "/norms", KV_H5_F32, NULL, NULL, c->norms, e))
        return -1;
    for (size_t i = 0; i < n; i++)
        if (!(c->norms[i].low >= 0 && c->norms[i].high >= c->norms[i].low))
            return kv_fail(e, "%s: /norms holds a range from %g to %g",
                           kv_h5_path(h), (double)c->norms[i].low,
                           (double)c->norms[i].high);
    return 0;
}

static bool has_bytes(const struct kv_calib *c)
{
    for (size_t i = 0; i < c->n_sets; i++)
        for (size_t j = 0; j < c->set[i].n_tables; j++)
            if (c->set[i].table[j].type == KV_TABLE_U8)
                return true;
    return false;
}

int kv_calib_save(struct kv_calib *c, const char *path, struct kv_err *e)
{
    char seal[KV_HASH_CHARS];
    struct kv_h5 *h;

    for (size_t i = 0; i < c->n_sets; i++)
        if (sort_tables(&c->set[i], path, e))
            return -1;
    hash_tables(c, c->hash);
    if (kv_h5_create(&h, path, e))
        return -1;
    kv_h5_put_kind(h, KIND,
                   has_bytes(c)                 ? FORMAT
                   : kv_h5_has_pairs(&c->shape) ? PAIRS
                   : c->shape.latent            ? LATENTS
                   : c->norms                   ? NORMS
                              : kv_h5_format(&c->shape, SHAPES));
    kv_h5_put_text(h, "/", "model", c->model);
    kv_h5_put_text(h, "/", "model_hash", c->model_hash);
    kv_h5_put_text(h, "/", "text", c->text);
    kv_h5_put_text(h, "/", "text_hash", c->text_hash);
    kv_h5_put_int(h, "/", "n_windows", (int64_t)c->n_windows);
    kv_h5_put_int(h, "/", "ctx", (int64_t)c->ctx);
    kv_h5_put_text(h, "/", "hash", c->hash);
    hash_rest(c, seal);
    kv_h5_put_text(h, "/", "seal", seal);
    kv_h5_dataset(h, "/sketch", KV_H5_U64, 1, &c->sketch.n);
    if (kv_h5_put_shape(h, &c->shape, e) || save_norms(h, c, e) ||
        kv_h5_write(h, "/sketch", KV_H5_U64, NULL, NULL, c->sketch.hash, e))
        goto fail;
    for (size_t i = 0; i < c->n_sets; i++)
        if (save_set(h, &c->set[i], i, e))
            goto fail;
    return kv_h5_commit(h, e);
fail:
    kv_h5_close(h);
    return -1;
}

static int load_side(struct kv_h5 *h, const char *object, int *side,
                     struct kv_err *e)
{
    char text[8];

    if (kv_h5_get_text(h, object, "side", text, sizeof(text), e))
        return -1;
    for (int i = 0; i <= KV_SIDES; i++)
        if (!strcmp(text, side_names[i])) {
            *side = i == KV_SIDES ? KV_ALL : i;
            return 0;
        }
    return kv_fail(e, "%s: side of %s is \"%s\", expected K, V or all",
                   kv_h5_path(h), object, text);
}

/* budget: the number of bytes of memory that tables may still take. */
static int load_table(struct kv_h5 *h, const char *object,
                      const struct kv_shape *shape, struct kv_calib_set *set,
                      size_t *budget, struct kv_err *e)
{
    enum { MAX = 1 << 30 }; /* values in a table */
    char name[sizeof(((struct kv_table *)0)->name)];
    const int64_t layers = (int64_t)shape->n_layers;
    const int64_t heads = (int64_t)(shape->n_kv_heads > shape->slide_kv_heads
                                        ? shape->n_kv_heads
                                        : shape->slide_kv_heads);
    size_t n_dims, dims[KV_H5_MAX_DIMS], n = 1;
    int64_t layer, head;
    double error;
    int side = KV_ALL;
    struct kv_err other;

    if (kv_h5_get_text(h, object, "name", name, sizeof(name), e) ||
        load_side(h, object, &side, e) ||
        kv_h5_get_int(h, object, "layer", KV_ALL, layers - 1, &layer, e) ||
        kv_h5_get_int(h, object, "head", KV_ALL, heads - 1, &head, e) ||
        kv_h5_get_real(h, object, "error", &error, e) ||
        kv_h5_dims(h, object, &n_dims, dims, e))
        return -1;
    for (size_t i = 0; i < n_dims; i++) {
        if (!dims[i] || dims[i] > MAX / n)
            return kv_fail(e, "%s: %s is empty or too large", kv_h5_path(h),
                           object);
        n *= dims[i];
    }

    if (n * sizeof(float) > *budget)
        return kv_fail(e,
                       "%s: with %s its tables are larger than such a file "
                       "can hold",
                       kv_h5_path(h), object);
    *budget -= n * sizeof(float);

    struct kv_table *t =
        kv_calib_add(set, name, side, (int)layer, (int)head, n_dims, dims);

    t->error = error;
    if (strcmp(table_name(t).text, strrchr(object, '/') + 1))
        return kv_fail(e, "%s: %s says that it is %s", kv_h5_path(h), object,
                       table_name(t).text);
    for (int as = KV_TABLE_F16; as <= KV_TABLE_U8; as++)
        if (!kv_h5_check(h, object, stored_type[as], n_dims, dims, &other))
            t->type = (enum kv_table_type)as;
    if (read_values(h, object, t, e))
        return -1;
    for (size_t i = 0; i < n; i++)
        if (!isfinite(t->data[i]))
            return kv_fail(e, "%s: %s holds a value that is not finite",
                           kv_h5_path(h), object);
    return 0;
}

static int load_set(struct kv_h5 *h, size_t i, const struct kv_shape *shape,
                    struct kv_calib_set *set, size_t *budget, struct kv_err *e)
{
    const struct path group = set_path(i);
    char(*names)[KV_H5_NAME_CHARS];
    size_t n;
    int rc = 0;

    if (kv_h5_get_text(h, group.text, "spec", set->spec, sizeof(set->spec),
                       e) ||
        kv_h5_get_text(h, group.text, "key", set->key, sizeof(set->key), e) ||
        kv_h5_get_u64(h, group.text, "seed", &set->seed, e) ||
        kv_h5_children(h, group.text, &names, &n, e))
        return -1;
    for (size_t j = 0; j < n && !rc; j++)
        rc = load_table(h, table_path(i, names[j]).text, shape, set, budget, e);
    free(names);
    return rc;
}

static int load_sketch(struct kv_h5 *h, struct kv_sketch *s, struct kv_err *e)
{
    enum { MAX = 1 << 30 };
    size_t n_dims, dims[KV_H5_MAX_DIMS];

    if (kv_h5_dims(h, "/sketch", &n_dims, dims, e))
        return -1;
    if (n_dims != 1 || dims[0] > MAX)
        return kv_fail(e, "%s: /sketch is not a list of hashes", kv_h5_path(h));
    s->n = dims[0];
    s->hash = kv_alloc(s->n, sizeof(*s->hash));
    if (kv_h5_read(h, "/sketch", KV_H5_U64, NULL, NULL, s->hash, e))
        return -1;
    for (size_t i = 1; i < s->n; i++)
        if (s->hash[i] <= s->hash[i - 1])
            return kv_fail(e, "%s: /sketch is not sorted", kv_h5_path(h));
    if (s->n && !kv_sketch_sampled(s->hash[s->n - 1]))
        return kv_fail(e, "%s: /sketch holds %llx, which is not sampled",
                       kv_h5_path(h), (unsigned long long)s->hash[s->n - 1]);
    return 0;
}

/* Checks that the i-th set is for other specs than earlier sets, so that no set
 * is hidden. */
static int check_key(struct kv_h5 *h, const struct kv_calib *c, size_t i,
                     struct kv_err *e)
{
    for (size_t j = 0; j < i; j++)
        if (!strcmp(c->set[j].key, c->set[i].key))
            return kv_fail(e, "%s: %s and %s are both for %s", kv_h5_path(h),
                           set_path(j).text, set_path(i).text, c->set[i].key);
    return 0;
}

/* Files of formats before SEALED have no seal. */
static int check_seal(struct kv_h5 *h, const struct kv_calib *c,
                      struct kv_err *e)
{
    char is[KV_HASH_CHARS], says[KV_HASH_CHARS];
    int64_t format;

    if (kv_h5_get_int(h, "/", "format", 1, FORMAT, &format, e))
        return -1;
    if (format < SEALED)
        return 0;
    if (kv_h5_get_text(h, "/", "seal", says, sizeof(says), e))
        return -1;
    hash_rest(c, is);
    return strcmp(is, says) ? kv_fail(e,
                                      "%s: its model, text, sketch, specs or "
                                      "training errors are not those it was "
                                      "written with (seal %s, it says %s)",
                                      kv_h5_path(h), is, says)
                            : 0;
}

static int load(struct kv_h5 *h, struct kv_calib *c, struct kv_err *e)
{
    enum { MANY = INT32_MAX, DEFLATED = 4 }; /* numbers compress no better */
    size_t budget = DEFLATED * kv_h5_bytes(h);
    char hash[KV_HASH_CHARS];

    if (kv_h5_check_kind(h, KIND, FORMAT, e) ||
        kv_h5_get_text(h, "/", "model", c->model, sizeof(c->model), e) ||
        kv_h5_get_text(h, "/", "model_hash", c->model_hash,
                       sizeof(c->model_hash), e) ||
        kv_h5_get_text(h, "/", "text", c->text, sizeof(c->text), e) ||
        kv_h5_get_text(h, "/", "text_hash", c->text_hash, sizeof(c->text_hash),
                       e) ||
        kv_h5_get_size(h, "/", "n_windows", 0, MANY, &c->n_windows, e) ||
        kv_h5_get_size(h, "/", "ctx", 0, MANY, &c->ctx, e) ||
        kv_h5_get_text(h, "/", "hash", c->hash, sizeof(c->hash), e) ||
        kv_h5_get_shape(h, &c->shape, e) || load_norms(h, c, e) ||
        load_sketch(h, &c->sketch, e))
        return -1;
    for (size_t i = 0; kv_h5_has(h, set_path(i).text); i++) {
        c->set = kv_realloc(c->set, i + 1, sizeof(*c->set));
        c->set[i] = (struct kv_calib_set){0};
        c->n_sets = i + 1;
        if (load_set(h, i, &c->shape, &c->set[i], &budget, e) ||
            check_key(h, c, i, e))
            return -1;
    }
    hash_tables(c, hash);
    if (strcmp(hash, c->hash))
        return kv_fail(e,
                       "%s: its tables are not those it was written with "
                       "(hash %s, it says %s)",
                       kv_h5_path(h), hash, c->hash);
    return check_seal(h, c, e);
}

int kv_calib_load(struct kv_calib **out, const char *path, struct kv_err *e)
{
    struct kv_calib *c;
    struct kv_h5 *h;
    int rc;

    if (kv_h5_open(&h, path, e))
        return -1;
    c = kv_alloc(1, sizeof(*c));
    c->path = kv_strdup(path);
    rc = load(h, c, e);
    kv_h5_close(h);
    if (rc)
        kv_calib_free(c);
    else
        *out = c;
    return rc;
}
