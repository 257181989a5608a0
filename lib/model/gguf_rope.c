#include "lib/model/gguf_maker.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- tensors that divide frequencies ------------------------------------- */

/* Sets the field to the tensor's values, a number above 0 for each rotated
 * pair.  *there: whether the file has the tensor. */
static int set_factors(const struct kv_gguf_maker *k, json_t *to,
                       const char *field, const char *name, bool *there,
                       struct kv_err *e)
{
    const struct kv_weight *w = kv_gguf_tensor(k->m, name);
    int64_t turning = kv_gguf_maker_int(k, "head_dim");
    const struct kv_gguf_value *v;
    json_t *list;

    *there = w;
    if (!w)
        return 0;
    if (kv_gguf_maker_get(k, "rope.dimension_count", KV_GGUF_COUNT, &v, e))
        return -1;
    turning = v ? kv_gguf_int(v, 0) : turning;
    if (w->type == KV_STORED_OTHER)
        return kv_fail(e, "%s: tensor %s has type %s, which is not implemented",
                       k->g->path, name, w->dtype);
    if (w->n != (size_t)turning / 2)
        return kv_fail(e,
                       "%s: tensor %s has %zu values, but RoPE turns %lld "
                       "pairs",
                       k->g->path, name, w->n, (long long)turning / 2);
    list = json_array();
    json_object_set_new(to, field, list);
    for (size_t i = 0; i < w->n; i++) {
        float x;

        kv_weight_dequantize(w, i, 1, &x);
        if (!(isfinite(x) && x > 0))
            return kv_fail(e, "%s: tensor %s: value %zu is %g, not above 0",
                           k->g->path, name, i, (double)x);
        json_array_append_new(list, json_real((double)x));
    }
    return 0;
}

/* Expresses a list that divides the frequencies, as Llama 3's files have, as
 * longrope with the same list for short and long texts. */
static int set_freqs(const struct kv_gguf_maker *k, json_t *scaling,
                     bool *there, struct kv_err *e)
{
    static const char name[] = "rope_freqs.weight";

    if (set_factors(k, scaling, "short_factor", name, there, e) ||
        set_factors(k, scaling, "long_factor", name, there, e))
        return -1;
    if (!*there)
        return 0;
    json_object_set_new(scaling, "rope_type", json_string("longrope"));
    kv_gguf_set_real(scaling, "attention_factor", 1);
    kv_gguf_set_int(scaling, "original_max_position_embeddings",
                    kv_gguf_maker_int(k, "max_position_embeddings"));
    return 0;
}

static int set_longrope(const struct kv_gguf_maker *k, json_t *scaling,
                        struct kv_err *e)
{
    bool near, far;
    double factor = 1;

    if (set_factors(k, scaling, "short_factor", "rope_factors_short.weight",
                    &near, e) ||
        set_factors(k, scaling, "long_factor", "rope_factors_long.weight", &far,
                    e))
        return -1;
    if (!near || !far)
        return kv_fail(e,
                       "%s: RoPE scaling longrope, but no tensors "
                       "rope_factors_short.weight and rope_factors_long.weight",
                       k->g->path);
    if (kv_gguf_maker_real(k, "rope.scaling.attn_factor", &factor, e))
        return -1;
    kv_gguf_set_real(scaling, "attention_factor", factor);
    return 0;
}

/* ---- factors of RoPE's result -------------------------------------------- */

/* Checks that a key, if present, has the value `only`, to f32's precision. */
static int check_real(const struct kv_gguf_maker *k, const char *key,
                      double only, const char *why, struct kv_err *e)
{
    double x = only;

    if (kv_gguf_maker_real(k, key, &x, e))
        return -1;
    return fabs(x - only) <= 1e-6 * only
               ? 0
               : kv_fail(e, "%s: key %s.%s is %g; only %g is implemented%s",
                         k->g->path, k->f->name, key, x, only, why);
}

/* Checks yarn_ext_factor, the share of YaRN that llama.cpp applies: it must be
 * 1 with yarn, else 0; below 0 it means just that. */
static int check_share(const struct kv_gguf_maker *k, bool yarn,
                       struct kv_err *e)
{
    const struct kv_gguf_value *v;
    double x;

    if (kv_gguf_maker_get(k, "rope.scaling.yarn_ext_factor", KV_GGUF_REAL, &v,
                          e))
        return -1;
    x = v ? kv_gguf_real(v, 0) : -1;
    return x < 0 || x == (yarn ? 1 : 0)
               ? 0
               : kv_fail(e, "%s: key %s is %g; only %d is implemented",
                         k->g->path, v->key, x, yarn);
}

/* Checks the attention factor of a scaling other than longrope.  With yarn
 * llama.cpp multiplies by 1 + 0.1 ln factor and ignores yarn_attn_factor;
 * otherwise it multiplies by that key, to which converters write transformers'
 * attention_factor. */
static int check_multiplier(const struct kv_gguf_maker *k, bool yarn,
                            double factor, struct kv_err *e)
{
    const double own = yarn && factor > 1 ? 1 + 0.1 * log(factor) : 1;

    return check_share(k, yarn, e) ||
                   check_real(k, "rope.scaling.attn_factor", 1,
                              " with this RoPE scaling", e) ||
                   check_real(k, "rope.scaling.yarn_attn_factor", own,
                              yarn ? " (1 + 0.1 ln factor, by which llama.cpp "
                                     "multiplies whatever the key says)"
                                   : " without yarn",
                              e)
               ? -1
               : 0;
}

/* ---- all ----------------------------------------------------------------- */

static int set_yarn(const struct kv_gguf_maker *k, json_t *scaling,
                    struct kv_err *e)
{
    double fast = 32, slow = 1, all = 0;

    if (kv_gguf_maker_real(k, "rope.scaling.yarn_beta_fast", &fast, e) ||
        kv_gguf_maker_real(k, "rope.scaling.yarn_beta_slow", &slow, e))
        return -1;
    if (kv_gguf_maker_real(k, "rope.scaling.yarn_log_multiplier", &all, e))
        return -1;
    if (all > 0) { /* the key is mscale_all_dim / 10, and mscale equals
                    * mscale_all_dim */
        kv_gguf_set_real(scaling, "mscale", 10 * all);
        kv_gguf_set_real(scaling, "mscale_all_dim", 10 * all);
    }
    kv_gguf_set_real(scaling, "beta_fast", fast);
    kv_gguf_set_real(scaling, "beta_slow", slow);
    return 0;
}

/* name: rope.scaling.type, or llama.cpp's default. */
static int read_type(const struct kv_gguf_maker *k, char name[16],
                     struct kv_err *e)
{
    const struct kv_gguf_value *type;
    const char *text = "linear";
    size_t n = strlen(text);

    if (kv_gguf_maker_get(k, "rope.scaling.type", KV_GGUF_TEXT, &type, e))
        return -1;
    if (type)
        text = kv_gguf_text(type, 0, &n);
    snprintf(name, 16, "%.*s", (int)(n < 15 ? n : 15), text);
    if (kv_gguf_tensor(k->m, "rope_factors_long.weight"))
        snprintf(name, 16, "longrope");
    return 0;
}

/* Fills the object rope_scaling; it stays empty without scaling. */
static int set_scaling(const struct kv_gguf_maker *k, json_t *scaling,
                       struct kv_err *e)
{
    const struct kv_gguf_value *old;
    double factor = 1;
    char name[16];

    if (read_type(k, name, e) ||
        kv_gguf_maker_real(k, "rope.scale_linear", &factor, e) ||
        kv_gguf_maker_real(k, "rope.scaling.factor", &factor, e) ||
        kv_gguf_maker_get(k, "rope.scaling.original_context_length",
                          KV_GGUF_COUNT, &old, e))
        return -1;
    factor = factor == 0 ? 1 : factor;
    if (strcmp(name, "longrope") &&
        check_multiplier(k, !strcmp(name, "yarn"), factor, e))
        return -1;
    if (!strcmp(name, "none") || (!strcmp(name, "linear") && factor == 1))
        return 0;
    json_object_set_new(scaling, "rope_type",
                        json_sprintf("%s", name)); /* NULL if name is not
                                                    * UTF-8 */
    if (old || k->arch->rope.old_ctx)
        kv_gguf_set_int(k->arch->rope.old_ctx ? k->config : scaling,
                        "original_max_position_embeddings",
                        old ? kv_gguf_int(old, 0)
                            : kv_gguf_maker_int(k, "max_position_embeddings"));
    if (!strcmp(name, "longrope"))
        return set_longrope(k, scaling, e);
    kv_gguf_set_real(scaling, "factor", factor);
    return strcmp(name, "yarn") ? 0 : set_yarn(k, scaling, e);
}

/* Sets the fraction of a head's channels that RoPE rotates: all, or the first
 * ones. */
static int set_part(const struct kv_gguf_maker *k, struct kv_err *e)
{
    const int64_t d = kv_gguf_maker_int(k, "head_dim");
    const struct kv_gguf_value *v;
    int64_t n;

    if (kv_gguf_maker_get(k, "rope.dimension_count", KV_GGUF_COUNT, &v, e))
        return -1;
    n = v ? kv_gguf_int(v, 0) : d;
    if (v && (n < 2 || n % 2 || n > d))
        return kv_fail(e,
                       "%s: key %s is %lld; an even number from 2 to the %lld "
                       "channels of a head was expected",
                       k->g->path, v->key, (long long)n, (long long)d);
    if (n != d || (k->arch->rope.partial > 0 && k->arch->rope.partial < 1))
        kv_gguf_set_real(k->config, "partial_rotary_factor",
                         (double)n / (double)d);
    return 0;
}

int kv_gguf_rope(const struct kv_gguf_maker *k, struct kv_err *e)
{
    json_t *scaling = json_object(), *freqs = json_object();
    bool there = false;
    int rc = -1;

    if (!json_object_get(k->config, "rope_theta"))
        kv_gguf_set_real(k->config, "rope_theta", 10000);
    if (set_part(k, e) || set_scaling(k, scaling, e) ||
        set_freqs(k, freqs, &there, e))
        goto out;
    if (there && json_object_size(scaling)) {
        kv_fail(e,
                "%s: both tensor rope_freqs.weight and a RoPE scaling: not "
                "implemented",
                k->g->path);
        goto out;
    }
    if (!there && !json_object_size(scaling) && k->arch->rope.given)
        json_object_set_new(scaling, "rope_type", json_string("default"));
    if (there || json_object_size(scaling))
        json_object_set(k->config, "rope_scaling", there ? freqs : scaling);
    rc = 0;
out:
    json_decref(freqs);
    json_decref(scaling);
    return rc;
}
