#include "tools/kvdump_from.h"
#include "lib/base/alloc.h"
#include "lib/base/hash.h"
#include "lib/base/progress.h"
#include "lib/base/rng.h"
#include "lib/model/config.h"
#include "lib/model/model.h"
#include "lib/rope_table.h"
#include "tools/kvdump_arrays.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct job {
    const struct kvdump_from *f;
    struct kvdump_arrays arrays;
    struct kv_config config; /* set if f->config is given */
    struct kv_dump_info info;
    struct kv_dump_writer *writer;
};

/* ---- what is missing ----------------------------------------------------- */

__attribute__((format(printf, 3, 4))) static void
miss(char *text, size_t capacity, const char *format, ...)
{
    const size_t at = strlen(text);
    va_list args;

    snprintf(text + at, capacity - at, "%s", at ? "; " : "");
    va_start(args, format);
    vsnprintf(text + strlen(text), capacity - strlen(text), format, args);
    va_end(args);
}

/* Fails with everything that is missing.  unknown: kvdump_arrays_fit()'s
 * result, the question that the shapes leave open. */
static int check_missing(const struct job *j, int unknown, struct kv_err *e)
{
    const struct kvdump_arrays *a = &j->arrays;
    char text[700] = "", shape[128];
    const bool keys = a->of[KV_T_K].have || a->of[KV_T_K_PRE].have;

    if (!keys)
        miss(text, sizeof(text), "keys (arrays layers.0.keys, ...)");
    if (!a->of[KV_T_V].have)
        miss(text, sizeof(text), "values (arrays layers.0.values, ...)");
    if (unknown) {
        kvdump_arrays_shape(
            kvdump_arrays_first(a, a->of[KV_T_K].have ? KV_T_K : KV_T_K_PRE),
            shape);
        miss(text, sizeof(text),
             unknown == KVDUMP_NO_ORDER
                 ? "the order of %s (--layout htd or thd: heads, tokens, "
                   "channels)"
                 : "the KV heads of %s (--config config.json)",
             shape);
    }
    if (!j->f->config && !j->f->theta)
        miss(text, sizeof(text),
             "RoPE (--config config.json, or --rope-theta BASE, 0 for none)");
    if (!j->f->output)
        miss(text, sizeof(text), "the file to write (-o dump.h5)");
    return *text ? kv_fail(e, "%s: still wanted: %s", j->f->path, text) : 0;
}

/* ---- the shape ----------------------------------------------------------- */

static int own_shape(struct job *j, struct kv_err *e)
{
    struct kv_shape *s = &j->info.shape;
    const double theta = *j->f->theta;

    if (theta < 0 || (theta > 0 && theta < 1))
        return kv_fail(e, "--rope-theta %g: expected 0, or 1 and more", theta);
    if (j->arrays.dim % 2 || j->arrays.dim > KV_MAX_HEAD_DIM)
        return kv_fail(e,
                       "%s: heads of %zu channels: expected an even number up "
                       "to %d",
                       j->f->path, j->arrays.dim, KV_MAX_HEAD_DIM);
    s->n_layers = j->arrays.last_layer + 1;
    s->n_kv_heads = j->arrays.of[KV_T_V].heads;
    s->n_heads =
        j->arrays.of[KV_T_Q].have ? j->arrays.of[KV_T_Q].heads : s->n_kv_heads;
    s->head_dim = j->arrays.dim;
    s->attn_scale = (float)(1 / sqrt((double)s->head_dim));
    s->n_rot = theta > 0 ? s->head_dim / 2 : 0;
    for (size_t i = 0; i < s->n_rot; i++)
        s->inv_freq[i] =
            (float)pow(theta, -2 * (double)i / (double)s->head_dim);
    if (s->n_layers > KV_MAX_LAYERS || s->n_heads % s->n_kv_heads)
        return kv_fail(e,
                       "%s: %zu query heads, %zu KV heads, %zu layers: "
                       "expected a multiple, and up to %d layers",
                       j->f->path, s->n_heads, s->n_kv_heads, s->n_layers,
                       KV_MAX_LAYERS);
    return 0;
}

/* Refuses models whose attention stores other arrays, or more of them. */
static int check_attention(const struct job *j, struct kv_err *e)
{
    const struct kv_config *c = &j->config;
    const struct kvdump_layers *of = j->arrays.of;
    const bool scales =
        c->rope.scale != 1 || (c->shape.slide_window && c->slide_scale != 1);

    if (of[KV_T_K_PRE].have && (scales || c->arch->qk_norm_late))
        return kv_fail(e,
                       "%s: keys before RoPE, which %s them in %s: expected "
                       "keys after RoPE alone",
                       j->f->path, scales ? "scales" : "comes before a norm of",
                       j->f->config);
    return of[KV_T_Q].have && c->arch->sinks
               ? kv_fail(e,
                         "%s: queries, whose attention in %s has sink logits, "
                         "which the arrays do not hold: expected keys and "
                         "values alone",
                         j->f->path, j->f->config)
               : 0;
}

/* Checks the arrays against the model's config, and takes its shape. */
static int config_shape(struct job *j, struct kv_err *e)
{
    const struct kvdump_arrays *a = &j->arrays;
    const struct kv_shape *s;
    const struct kvdump_layers *q = &a->of[KV_T_Q];

    kv_config_set_window(&j->config, a->ctx);
    s = &j->config.shape;
    if (s->latent || kv_shape_by_kind(s))
        return kv_fail(e,
                       "%s: arrays of %s, which a %s has, are not implemented",
                       j->f->config,
                       s->latent ? "latent attention"
                                 : "layers that differ in their heads or share "
                                   "keys and values",
                       j->config.arch->name);
    if (a->of[KV_T_V].heads != s->n_kv_heads || a->dim != s->head_dim ||
        (q->have && q->heads != s->n_heads) || a->last_layer >= s->n_layers)
        return kv_fail(e,
                       "%s has %zu KV heads of %zu channels, %zu query heads, "
                       "layers up to %zu: %s has %zu of %zu, %zu, up to %zu",
                       j->f->path, a->of[KV_T_V].heads, a->dim,
                       q->have ? q->heads : s->n_heads, a->last_layer,
                       j->f->config, s->n_kv_heads, s->head_dim, s->n_heads,
                       s->n_layers - 1);
    if (check_attention(j, e))
        return -1;
    j->info.shape = *s;
    snprintf(j->info.arch, sizeof(j->info.arch), "%s", j->config.arch->name);
    return 0;
}

/* The name after the last '/', without its suffix. */
static void stem(const char *path, char *name, size_t capacity)
{
    const char *slash = strrchr(path, '/');
    const char *start = slash && slash[1] ? slash + 1 : path;
    const char *dot = strrchr(start, '.');

    snprintf(name, capacity, "%.*s",
             (int)(dot && dot > start ? dot - start : (long)strlen(start)),
             start);
}

/* The model's name: from the folder of its config.json, else from the file's
 * own path. */
static void name_model(const struct job *j, char *name, size_t capacity)
{
    static const char file[] = "/config.json";
    const char *config = j->f->config;
    const size_t n = config ? strlen(config) : 0, m = sizeof(file) - 1;
    char *folder;

    if (j->f->name) {
        snprintf(name, capacity, "%s", j->f->name);
        return;
    }
    folder = kv_strdup(config ? config : j->f->path);
    if (n > m && !strcmp(config + n - m, file))
        folder[n - m] = 0;
    stem(folder, name, capacity);
    free(folder);
}

static void describe(struct job *j)
{
    struct kv_dump_info *i = &j->info;
    const struct kvdump_layers *of = j->arrays.of;
    const bool key = of[KV_T_K].have, turns = i->shape.n_rot;

    name_model(j, i->model, sizeof(i->model));
    kv_hash_bytes(i->model, strlen(i->model), i->model_hash);
    stem(j->f->path, i->text, sizeof(i->text));
    i->n_windows = j->arrays.n_windows;
    i->ctx = j->arrays.ctx;
    i->first_layer = j->arrays.first_layer;
    i->last_layer = j->arrays.last_layer;
    i->dtype = j->f->type;
    i->have[KV_T_Q] = of[KV_T_Q].have && j->f->have[KV_T_Q];
    i->have[KV_T_V] = j->f->have[KV_T_V];
    i->have[KV_T_K] = j->f->have[KV_T_K];
    i->have[KV_T_K_PRE] =
        j->f->have[KV_T_K_PRE] && (turns || of[KV_T_K_PRE].have || key);
}

/* ---- values -------------------------------------------------------------- */

/* The array from which a tensor is made: its own, or the keys before or after
 * RoPE. */
static enum kv_tensor source(const struct job *j, enum kv_tensor t)
{
    if (j->arrays.of[t].have)
        return t;
    return t == KV_T_K ? KV_T_K_PRE : KV_T_K;
}

static int put_window(struct job *j, enum kv_tensor t, size_t layer,
                      size_t window, float *x, struct kv_err *e)
{
    const struct kv_shape shape = kv_shape_layer(&j->info.shape, layer);
    const enum kv_tensor from = source(j, t);
    const size_t heads = j->arrays.of[from].heads;

    if (kvdump_arrays_read(&j->arrays, from, layer, window, x, e))
        return -1;
    if (from != t && t == KV_T_K)
        kv_rope(&shape, x, j->info.ctx, heads, 0);
    else if (from != t)
        kv_rope_back(&shape, x, j->info.ctx, heads, 0);
    return kv_dump_put(j->writer, layer, t, window, 1, x, e);
}

/* Makes ids for a file without ids, from each token's values in the first
 * layer.  With them kvtools can notice a calibration on the evaluated
 * tokens. */
static void make_ids(const struct job *j, const float *v, int32_t *ids)
{
    const size_t row = j->info.shape.n_kv_heads * j->info.shape.head_dim;

    for (size_t t = 0; t < j->info.ctx; t++) {
        uint64_t h = 0;

        for (size_t i = 0; i < row; i++) {
            uint32_t bits;

            memcpy(&bits, &v[t * row + i], sizeof(bits));
            h = kv_mix(h, bits);
        }
        ids[t] = (int32_t)(h >> 33);
    }
}

/* Checks the file's ids if the config gives the vocabulary. */
static int check_ids(const struct job *j, const int32_t *ids, size_t n,
                     struct kv_err *e)
{
    const size_t n_vocab = j->config.n_vocab;

    for (size_t i = 0; i < n && j->f->config; i++)
        if ((size_t)ids[i] >= n_vocab)
            return kv_fail(e,
                           "%s: token %zu of window %zu has id %d: %s has a "
                           "vocabulary of %zu",
                           j->f->path, i % j->info.ctx, i / j->info.ctx,
                           (int)ids[i], j->f->config, n_vocab);
    return 0;
}

/* Reads or makes the ids before the dump is created, since its head has their
 * hash. */
static int read_ids(struct job *j, int32_t *ids, float *x, struct kv_err *e)
{
    const size_t n = j->info.n_windows * j->info.ctx;
    const bool own = j->arrays.of[KVDUMP_IDS].have;

    for (size_t w = 0; w < j->info.n_windows; w++) {
        int32_t *id = ids + w * j->info.ctx;

        if (own ? kvdump_arrays_ids(&j->arrays, w, id, e)
                : kvdump_arrays_read(&j->arrays, KV_T_V, j->info.first_layer, w,
                                     x, e))
            return -1;
        if (!own)
            make_ids(j, x, id);
    }
    if (own && check_ids(j, ids, n, e))
        return -1;
    kv_hash_bytes(ids, n * sizeof(*ids), j->info.text_hash);
    return 0;
}

static int put_all(struct job *j, float *x, struct kv_err *e)
{
    const size_t n_layers = j->info.last_layer - j->info.first_layer + 1;
    struct kv_progress bar;
    int rc = 0;

    kv_progress_init(&bar, "windows x layers", n_layers * j->info.n_windows);
    for (enum kv_tensor t = 0; t <= KV_T_K_PRE; t++)
        for (size_t i = 0;
             j->info.have[t] && i < n_layers * j->info.n_windows && !rc; i++) {
            rc = put_window(j, t, j->info.first_layer + i / j->info.n_windows,
                            i % j->info.n_windows, x, e);
            if (t == KV_T_V)
                kv_progress_step(&bar, 1);
        }
    kv_progress_clear(&bar);
    return rc;
}

static int write_dump(struct job *j, struct kv_err *e)
{
    const size_t n = j->info.n_windows * j->info.ctx;
    const size_t row = j->info.shape.n_heads * j->info.shape.head_dim;
    int32_t *ids = kv_alloc(n, sizeof(*ids));
    float *x = kv_alloc(j->info.ctx, row * sizeof(*x));
    int rc = read_ids(j, ids, x, e);

    if (!rc)
        rc = kv_dump_create(&j->writer, j->f->output, &j->info, e);
    if (!rc && (kv_dump_put_tokens(j->writer, 0, j->info.n_windows, ids, e) ||
                put_all(j, x, e))) {
        kv_dump_discard(j->writer);
        rc = -1;
    } else if (!rc) {
        rc = kv_dump_commit(j->writer, e);
    }
    free(ids);
    free(x);
    return rc;
}

/* ---- the job ------------------------------------------------------------- */

static int run(struct job *j, struct kv_err *e)
{
    const struct kvdump_arrays *a = &j->arrays;
    int unknown = 0;

    if (j->f->layout && strcmp(j->f->layout, "htd") != 0 &&
        strcmp(j->f->layout, "thd") != 0)
        return kv_fail(e, "--layout %s: expected htd or thd", j->f->layout);
    if (kvdump_arrays_open(&j->arrays, j->f->path, e) ||
        (j->f->config && kv_model_config(&j->config, j->f->config, e)))
        return -1;
    if (a->of[KV_T_V].have && (a->of[KV_T_K].have || a->of[KV_T_K_PRE].have))
        unknown =
            kvdump_arrays_fit(&j->arrays, j->f->layout,
                              j->f->config ? j->config.shape.n_kv_heads : 0, e);
    if (unknown < 0 || check_missing(j, unknown, e) ||
        (j->f->config ? config_shape(j, e) : own_shape(j, e)))
        return -1;
    describe(j);
    if (write_dump(j, e))
        return -1;
    kv_note("%s: %zu window%s of %zu tokens, %zu KV heads of %zu channels, "
            "layers %zu to %zu, model %s",
            j->f->output, a->n_windows, a->n_windows == 1 ? "" : "s", a->ctx,
            a->of[KV_T_V].heads, a->dim, a->first_layer, a->last_layer,
            j->info.model);
    return 0;
}

int kvdump_from(const struct kvdump_from *f, struct kv_err *e)
{
    struct job *j = kv_alloc(1, sizeof(*j));
    int rc;

    j->f = f;
    rc = run(j, e);

    kvdump_arrays_clear(&j->arrays);
    free(j);
    return rc;
}
