#include "lib/model/config.h"
#include "lib/model/json_file.h"

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A JSON object and the file it stands in, for sentences. */
struct source {
    const char *path;
    const json_t *json;
};

/* NULL when the field is absent or null. */
static const json_t *field(const struct source *s, const char *name)
{
    const json_t *j = json_object_get(s->json, name);

    return json_is_null(j) ? NULL : j;
}

/* Sizes large enough for any model, small enough that no product of a few of
 * them overflows. */
static int read_size(const struct source *s, const char *name, size_t max,
                     size_t *out, struct kv_err *e)
{
    const json_t *j = field(s, name);

    if (!j)
        return kv_fail(e, "%s: field %s is missing", s->path, name);
    if (!json_is_integer(j) || json_integer_value(j) < 1 ||
        (size_t)json_integer_value(j) > max)
        return kv_fail(e, "%s: field %s is not a whole number from 1 to %zu",
                       s->path, name, max);
    *out = (size_t)json_integer_value(j);
    return 0;
}

/* *out is left alone when the field is absent. */
static int read_size_if(const struct source *s, const char *name, size_t max,
                        size_t *out, struct kv_err *e)
{
    return field(s, name) ? read_size(s, name, max, out, e) : 0;
}

static int read_real(const struct source *s, const char *name, double *out,
                     struct kv_err *e)
{
    const json_t *j = field(s, name);

    if (!j)
        return kv_fail(e, "%s: field %s is missing", s->path, name);
    *out = json_number_value(j);
    if (!json_is_number(j) || !(*out > 0))
        return kv_fail(e, "%s: field %s is not a number above 0", s->path,
                       name);
    return 0;
}

static int read_bool_if(const struct source *s, const char *name, bool *out,
                        struct kv_err *e)
{
    const json_t *j = field(s, name);

    if (j && !json_is_boolean(j))
        return kv_fail(e, "%s: field %s is neither true nor false", s->path,
                       name);
    if (j)
        *out = json_is_true(j);
    return 0;
}

static int read_arch(const struct source *s, struct kv_config *c,
                     struct kv_err *e)
{
    const json_t *list = field(s, "architectures");
    const char *name = json_string_value(json_array_get(list, 0));

    if (!name)
        return kv_fail(e, "%s: field architectures is missing", s->path);
    if (kv_arch_find(&c->arch, name, e))
        return kv_fail_in(e, "%s", s->path);
    return 0;
}

static int read_sizes(const struct source *s, struct kv_config *c,
                      struct kv_err *e)
{
    struct kv_shape *shape = &c->shape;

    if (read_size(s, "hidden_size", 1 << 20, &c->hidden, e) ||
        read_size(s, "intermediate_size", 1 << 22, &c->inter, e) ||
        read_size(s, "num_hidden_layers", 1 << 12, &shape->n_layers, e) ||
        read_size(s, "num_attention_heads", 1 << 12, &shape->n_heads, e) ||
        read_size(s, "vocab_size", 1 << 24, &c->n_vocab, e) ||
        read_size(s, "max_position_embeddings", 1 << 28, &c->n_ctx, e))
        return -1;
    shape->n_kv_heads = shape->n_heads;
    if (read_size_if(s, "num_key_value_heads", 1 << 12, &shape->n_kv_heads, e))
        return -1;
    if (shape->n_heads % shape->n_kv_heads)
        return kv_fail(e,
                       "%s: %zu attention heads are no multiple of %zu "
                       "key-value heads",
                       s->path, shape->n_heads, shape->n_kv_heads);
    if (!field(s, "head_dim") && c->hidden % shape->n_heads)
        return kv_fail(e,
                       "%s: no head_dim, and hidden_size %zu is no "
                       "multiple of %zu heads",
                       s->path, c->hidden, shape->n_heads);
    shape->head_dim = c->hidden / shape->n_heads;
    if (read_size_if(s, "head_dim", KV_MAX_HEAD_DIM, &shape->head_dim, e))
        return -1;
    if (shape->head_dim % 2 || shape->head_dim > KV_MAX_HEAD_DIM)
        return kv_fail(e, "%s: head_dim %zu is not an even number up to %d",
                       s->path, shape->head_dim, KV_MAX_HEAD_DIM);
    shape->attn_scale = (float)(1 / sqrt((double)shape->head_dim));
    return 0;
}

/* What the config asks for and the architecture knows. */
static int read_flags(const struct source *s, struct kv_config *c,
                      struct kv_err *e)
{
    bool attention_bias = false, mlp_bias = false, use_window = false;

    c->window = SIZE_MAX;
    if (read_bool_if(s, "tie_word_embeddings", &c->tied, e) ||
        read_bool_if(s, "attention_bias", &attention_bias, e) ||
        read_bool_if(s, "mlp_bias", &mlp_bias, e) ||
        read_bool_if(s, "use_sliding_window", &use_window, e) ||
        (c->arch->window && (use_window || !c->arch->window_opted) &&
         read_size_if(s, "sliding_window", 1 << 28, &c->window, e)))
        return -1;
    c->o_bias = c->arch->config_bias && attention_bias;
    c->qkv_bias = c->o_bias || c->arch->qkv_bias;
    c->mlp_bias = c->arch->config_bias && mlp_bias;
    return 0;
}

/* What the numbers depend on and must be as expected. */
static int check_rest(const struct source *s, struct kv_err *e)
{
    const json_t *act = field(s, "hidden_act");
    const json_t *partial = field(s, "partial_rotary_factor");
    const char *name = act ? json_string_value(act) : "silu";

    if (!name || strcmp(name, "silu"))
        return kv_fail(e, "%s: activation %s is not implemented (silu is)",
                       s->path, name ? name : "without a name");
    if (partial && json_number_value(partial) != 1)
        return kv_fail(e,
                       "%s: partial_rotary_factor other than 1 is not "
                       "implemented",
                       s->path);
    if (field(s, "quantization_config"))
        return kv_fail(e,
                       "%s: quantization_config: quantized weights are "
                       "not implemented",
                       s->path);
    return 0;
}

/* Llama 3.1: long wavelengths are divided by the factor, short ones are
 * kept, those between are blended. */
static int scale_llama3(const struct source *s, double *inv_freq, size_t n,
                        struct kv_err *e)
{
    double factor = 0, low = 0, high = 0, old_ctx = 0;

    if (read_real(s, "factor", &factor, e) ||
        read_real(s, "low_freq_factor", &low, e) ||
        read_real(s, "high_freq_factor", &high, e) ||
        read_real(s, "original_max_position_embeddings", &old_ctx, e))
        return kv_fail_in(e, "llama3 RoPE scaling");
    if (high <= low)
        return kv_fail(e,
                       "%s: llama3 RoPE scaling: high_freq_factor is not "
                       "above low_freq_factor",
                       s->path);
    for (size_t i = 0; i < n; i++) {
        const double turns = old_ctx * inv_freq[i] / (2 * M_PI);
        const double keep = (turns - low) / (high - low);

        if (turns < low)
            inv_freq[i] /= factor;
        else if (turns <= high)
            inv_freq[i] *= (1 - keep) / factor + keep;
    }
    return 0;
}

static int scale_linear(const struct source *s, double *inv_freq, size_t n,
                        struct kv_err *e)
{
    double factor = 0;

    if (read_real(s, "factor", &factor, e))
        return kv_fail_in(e, "linear RoPE scaling");
    for (size_t i = 0; i < n; i++)
        inv_freq[i] /= factor;
    return 0;
}

/* Frequencies from rope_theta and rope_scaling, or, as newer files have it,
 * from rope_parameters alone. */
static int read_rope(const struct source *s, struct kv_shape *shape,
                     struct kv_err *e)
{
    const json_t *joint = field(s, "rope_parameters");
    const struct source p = {
        .path = s->path,
        .json = joint ? joint : field(s, "rope_scaling"),
    };
    const struct source *theta_in = joint ? &p : s;
    const json_t *type = field(&p, "rope_type");
    double theta = 10000, inv_freq[KV_MAX_HEAD_DIM / 2];
    const size_t n = shape->head_dim / 2;
    const char *name;
    int rc = 0;

    type = type ? type : field(&p, "type");
    name = type ? json_string_value(type) : "default";
    if (!type && !joint && p.json)
        name = NULL; /* scaling of a kind that it does not tell */
    if ((joint || field(s, "rope_theta")) &&
        read_real(theta_in, "rope_theta", &theta, e))
        return -1;
    for (size_t i = 0; i < n; i++)
        inv_freq[i] = pow(theta, -2 * (double)i / (double)shape->head_dim);
    if (name && !strcmp(name, "llama3"))
        rc = scale_llama3(&p, inv_freq, n, e);
    else if (name && !strcmp(name, "linear"))
        rc = scale_linear(&p, inv_freq, n, e);
    else if (!name || strcmp(name, "default"))
        rc = kv_fail(e,
                     "%s: RoPE scaling %s is not implemented (default, "
                     "linear and llama3 are)",
                     s->path, name ? name : "without a name");
    shape->n_rot = n;
    for (size_t i = 0; i < n; i++)
        shape->inv_freq[i] = (float)inv_freq[i];
    return rc;
}

static int read_all(const struct source *s, struct kv_config *c,
                    struct kv_err *e)
{
    double eps = 0;

    if (read_arch(s, c, e) || read_sizes(s, c, e) ||
        read_real(s, "rms_norm_eps", &eps, e) || read_flags(s, c, e) ||
        check_rest(s, e) || read_rope(s, &c->shape, e))
        return -1;
    c->norm_eps = (float)eps;
    return 0;
}

int kv_config_read(struct kv_config *c, const char *path, struct kv_err *e)
{
    json_t *json = kv_json_read(path, e);
    const struct source s = {.path = path, .json = json};
    int rc = -1;

    *c = (struct kv_config){0};
    if (json && !json_is_object(json))
        kv_fail(e, "%s: not a JSON object", path);
    else if (json)
        rc = read_all(&s, c, e);
    json_decref(json);
    return rc;
}
