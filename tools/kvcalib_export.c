/* kvcalib --export: the scales of an fp8 cache, for engines, or the tables of
 * another scheme, rotations and codebooks; or the options of llama.cpp.
 *
 * Tables have the names that --tables reads (calib/tables.h):
 * layers.0.k.rotation in f32, only for layers with attention.  Names of scales
 * are ModelOpt's, model.layers.N.self_attn.k_proj.k_scale and .v_proj.
 * v_scale, which vLLM and SGLang load as .self_attn.attn.k_scale and v_scale of
 * the layer: one f32 each, value = scale * code. */
#include "lib/arrays/arrays.h"
#include "lib/base/alloc.h"
#include "lib/base/progress.h"
#include "lib/calib.h"
#include "lib/scheme.h"
#include "lib/spec_engines.h"
#include "tools/kvcalib.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool is_fp8(const struct kv_spec *s)
{
    return !strcmp(s->scheme->name, "modelopt") &&
           kv_spec_is(s, KV_K, "type", "fp8");
}

static bool is_plain(const struct kv_spec *s)
{
    return !strcmp(s->scheme->name, "f16") || !strcmp(s->scheme->name, "bf16");
}

/* Whether the layer's scales are exported: 1; 0: it is skipped. */
static int is_exported(const struct kv_spec *s, size_t layer, struct kv_err *e)
{
    const struct kv_spec *k = kv_spec_at(s, layer, KV_K);
    const struct kv_spec *v = kv_spec_at(s, layer, KV_V);

    if (is_fp8(k) && is_fp8(v))
        return 1;
    if ((is_plain(k) || is_fp8(k)) && (is_plain(v) || is_fp8(v))) {
        if (is_fp8(k) || is_fp8(v))
            kv_note("layer %zu keeps its %s in 16 bits: skipped as a whole, "
                    "since an engine has one type for a layer",
                    layer, is_fp8(k) ? "values" : "keys");
        return 0;
    }
    return kv_fail(e,
                   "layer %zu: keys are %s, values %s: --export expects "
                   "modelopt:fp8, or f16 or bf16, which skips the layer",
                   layer, k->text, v->text);
}

static int put_scale(struct kv_arrays_out *out, size_t i,
                     const struct kv_calib *c, const struct kv_spec *s,
                     size_t layer, enum kv_side side, struct kv_err *e)
{
    const struct kv_calib_set *set;
    const struct kv_table *t;

    if (kv_calib_want_set(&set, c, kv_spec_at(s, layer, side), e))
        return kv_fail_in(e, "%s", c->path);
    t = kv_calib_table(set, "scale", side, layer, 0);
    if (!t || kv_table_values(t) != 1)
        return kv_fail(e, "%s has no scale of layer %zu, %c", c->path, layer,
                       kv_side_name(side));
    return kv_arrays_put(out, i, 0, 1, t->data, e);
}

/* Lists the names of the scales, K and V of each exported layer in turn; at:
 * their layers.  skipped: the numbers of the layers without scales, "0 3". */
static int list_layers(const struct kv_spec *s, const struct kv_shape *shape,
                       struct kv_array *list, size_t *at, size_t *n,
                       char *skipped, size_t capacity, struct kv_err *e)
{
    size_t used = 0;

    *n = 0;
    for (size_t l = 0; l < shape->n_layers; l++) {
        const size_t own = kv_shape_own(shape, l);
        const int exported = is_exported(s, l, e);

        if (exported < 0)
            return -1;
        if (!exported)
            used += (size_t)snprintf(skipped + used, capacity - used, "%s%zu",
                                     used ? " " : "", own);
        for (int side = 0; side < KV_SIDES && exported; side++) {
            const char name = side == KV_K ? 'k' : 'v';

            at[*n] = l;
            snprintf(list[*n].name, sizeof(list[*n].name),
                     "model.layers.%zu.self_attn.%c_proj.%c_scale", own, name,
                     name);
            ++*n;
        }
    }
    return *n ? 0
              : kv_fail(e, "%s has no layer of modelopt:fp8: nothing to export",
                        s->text);
}

static int write_scales(const struct kvcalib_args *a, const struct kv_calib *c,
                        const struct kv_spec *s, struct kv_err *e)
{
    enum { LAYER_CHARS = 5 };
    const size_t n_layers = c->shape.n_layers;
    const size_t room = n_layers * LAYER_CHARS + 1;
    struct kv_array *list = kv_alloc(2 * n_layers, sizeof(*list));
    size_t *at = kv_alloc(2 * n_layers, sizeof(*at)), n;
    char *skipped = kv_alloc(room, 1);
    struct kv_arrays_out *out = NULL;
    int rc = list_layers(s, &c->shape, list, at, &n, skipped, room, e);

    if (!rc) {
        const char *const about[][2] = {{"kv_cache_dtype", "fp8"},
                                        {"kv_cache_dtype_skip_layers", skipped},
                                        {"model", c->model},
                                        {"text", c->text},
                                        {NULL, NULL}};

        rc = kv_arrays_create(&out, a->export, list, n, about, e);
    }
    for (size_t i = 0; i < n && !rc; i++)
        rc = put_scale(out, i, c, s, at[i], (enum kv_side)(i % KV_SIDES), e);
    if (rc)
        kv_arrays_discard(out);
    else
        rc = kv_arrays_commit(out, e);
    if (!rc)
        printf("--kv-cache-dtype fp8%s%s\n",
               *skipped ? " --kv-cache-dtype-skip-layers " : "", skipped);
    free(skipped);
    free(at);
    free(list);
    return rc;
}

/* ---- tables -------------------------------------------------------------- */

/* Makes a name such as "layers.3.heads.1.k.codebook"; leaves out the layer,
 * head or side if the table is for all of them. */
static void name_table(const struct kv_table *t, char name[KV_ARRAY_NAME])
{
    size_t n = 0;

    if (t->layer != KV_ALL)
        n += (size_t)snprintf(name, KV_ARRAY_NAME, "layers.%d.", t->layer);
    if (t->head != KV_ALL)
        n +=
            (size_t)snprintf(name + n, KV_ARRAY_NAME - n, "heads.%d.", t->head);
    if (t->side != KV_ALL)
        n += (size_t)snprintf(name + n, KV_ARRAY_NAME - n, "%c.",
                              t->side == KV_K ? 'k' : 'v');
    snprintf(name + n, KV_ARRAY_NAME - n, "%s", t->name);
}

static int write_set(const struct kvcalib_args *a, const struct kv_calib *c,
                     const struct kv_calib_set *set, struct kv_err *e)
{
    const char *const about[][2] = {{"spec", set->spec},
                                    {"model", c->model},
                                    {"text", c->text},
                                    {NULL, NULL}};
    struct kv_array *list = kv_alloc(set->n_tables, sizeof(*list));
    struct kv_arrays_out *out = NULL;
    int rc;

    for (size_t i = 0; i < set->n_tables; i++) {
        const struct kv_table *t = &set->table[i];

        name_table(t, list[i].name);
        list[i].n_dims = t->n_dims;
        memcpy(list[i].dims, t->dims, t->n_dims * sizeof(*t->dims));
    }
    rc = kv_arrays_create(&out, a->export, list, set->n_tables, about, e);
    for (size_t i = 0; i < set->n_tables && !rc; i++)
        rc = kv_arrays_put(out, i, 0, kv_table_values(&set->table[i]),
                           set->table[i].data, e);
    if (rc)
        kv_arrays_discard(out);
    else
        rc = kv_arrays_commit(out, e);
    if (!rc)
        kv_note("%s: %zu tables of %s", a->export, set->n_tables, set->spec);
    free(list);
    return rc;
}

/* Whether the spec has tables that are not an engine's scales. */
static bool has_tables(const struct kv_spec *s)
{
    return !s->mixed && strcmp(s->scheme->name, "modelopt") != 0 &&
           kv_spec_calibrated(s);
}

static int write_tables(const struct kvcalib_args *a, const struct kv_calib *c,
                        const struct kv_spec *s, struct kv_err *e)
{
    const struct kv_calib_set *set;

    return kv_calib_want_set(&set, c, s, e) ? kv_fail_in(e, "%s", c->path)
                                            : write_set(a, c, set, e);
}

/* ---- llama.cpp's options ------------------------------------------------- */

/* *type: llama.cpp's name of a side's type, which all layers must share. */
static int llama_type(const char **type, const struct kv_spec *s,
                      enum kv_side side, struct kv_err *e)
{
    const size_t n = s->mixed && s->mixed->n_layers ? s->mixed->n_layers : 1;
    const char *first = NULL;

    for (size_t l = 0; l < n; l++) {
        if (kv_spec_engine_type(type, KVCALIB_LLAMA_CPP, kv_spec_at(s, l, side),
                                side, e))
            return -1;
        first = first ? first : *type;
        if (strcmp(*type, first) != 0)
            return kv_fail(e,
                           "%s: layer 0 has %s in %s, layer %zu in %s: "
                           "llama.cpp has one type for all layers",
                           s->text, side == KV_K ? "keys" : "values", first, l,
                           *type);
    }
    return 0;
}

/* Whether a layer's type is quantized and has no rot. */
static bool is_unrotated(const struct kv_spec *s, enum kv_side side)
{
    const size_t n = s->mixed && s->mixed->n_layers ? s->mixed->n_layers : 1;

    for (size_t l = 0; l < n; l++) {
        const struct kv_spec *at = kv_spec_at(s, l, side);

        if (!is_plain(at) && strcmp(at->scheme->name, "f32") != 0 &&
            kv_spec_is(at, side, "rot", "no"))
            return true;
    }
    return false;
}

static int print_options(const struct kv_spec *s, struct kv_err *e)
{
    const char *k, *v;

    if (s->mixed &&
        (kv_spec_get(s, KV_K, "r") > 0 || kv_spec_get(s, KV_K, "s") > 0))
        return kv_fail(e, "%s: llama.cpp keeps no tokens in f16: expected r0s0",
                       s->text);
    if (llama_type(&k, s, KV_K, e) || llama_type(&v, s, KV_V, e))
        return -1;
    if (is_unrotated(s, KV_K) || is_unrotated(s, KV_V))
        kv_note("since April 2026 llama.cpp rotates heads before it quantizes "
                "them, as rot does; with LLAMA_ATTN_ROT_DISABLE=1 it does not");
    printf("-ctk %s -ctv %s\n", k, v);
    return 0;
}

/* ---- all ----------------------------------------------------------------- */

/* Reads the spec: exactly one, without a policy. */
static int read_spec(const struct kvcalib_args *a, struct kv_spec **s,
                     struct kv_err *e)
{
    static const char *const fp8[] = {"modelopt:fp8"};
    const char *const *texts = a->specs.n ? a->specs.item : fp8;
    size_t n;

    if (kv_spec_expand(texts, a->specs.n ? a->specs.n : 1, s, &n, e))
        return -1;
    return n == 1 && !(*s)->policy.policy
               ? 0
               : kv_fail(e, "--export %s: expected one spec without a policy",
                         a->export);
}

static int write_file(const struct kvcalib_args *a, struct kv_spec *s,
                      struct kv_err *e)
{
    struct kv_calib *c = NULL;
    enum kv_arrays_kind kind;
    struct kv_err ignored;
    int rc = -1;

    if (kv_arrays_kind(&kind, a->export, &ignored) || kind != KV_SAFETENSORS)
        return kv_fail(e,
                       "--export %s: expected a name in .safetensors, "
                       "or " KVCALIB_LLAMA_CPP,
                       a->export);
    if (kv_calib_load(&c, a->calib, e))
        return -1;
    if (c->shape.latent)
        kv_fail(e,
                "--export %s: %s is of latent attention, which has no k_proj "
                "and v_proj",
                a->export, c->path);
    else if (!kv_spec_fit(s, &c->shape, e) && !kv_calib_adopt(c, s, 1, e))
        rc =
            has_tables(s) ? write_tables(a, c, s, e) : write_scales(a, c, s, e);
    kv_calib_free(c);
    return rc;
}

int kvcalib_export(const struct kvcalib_args *a, struct kv_err *e)
{
    struct kv_spec *s = NULL;
    int rc = read_spec(a, &s, e);

    if (!rc)
        rc = strcmp(a->export, KVCALIB_LLAMA_CPP) ? write_file(a, s, e)
                                                  : print_options(s, e);
    free(s);
    return rc;
}
