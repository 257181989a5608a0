#include "lib/json_file.h"
#include "lib/model/config_layers.h"
#include "lib/model/config_parts.h"
#include "lib/model/config_rope.h"

#include <math.h>
#include <stdint.h>
#include <string.h>

/* If the field is absent, the class's default applies; null means all heads. */
static int read_kv_heads(const struct kv_fields *f, struct kv_config *c,
                         struct kv_err *e)
{
    static const char name[] = "num_key_value_heads";
    struct kv_shape *s = &c->shape;

    s->n_kv_heads = s->n_heads;
    if (c->arch->multi_query) {
        bool one = true;

        if (kv_fields_flag_if(f, "multi_query", &one, e))
            return -1;
        s->n_kv_heads = one ? 1 : s->n_heads;
        return 0;
    }
    if (!kv_fields_has(f, name) && c->arch->n_kv_heads)
        s->n_kv_heads = c->arch->n_kv_heads;
    if (kv_fields_size_if(f, name, 1, 1 << 12, &s->n_kv_heads, e))
        return -1;
    if (s->n_heads % s->n_kv_heads)
        return kv_fail(e,
                       "%s: %zu attention heads are no multiple of %zu "
                       "key-value heads (num_key_value_heads)",
                       f->path, s->n_heads, s->n_kv_heads);
    return 0;
}

static int read_head_dim(const struct kv_fields *f, struct kv_config *c,
                         struct kv_err *e)
{
    struct kv_shape *s = &c->shape;

    s->head_dim = c->arch->head_dim;
    if (!s->head_dim && !kv_fields_get(f, "head_dim") && c->hidden % s->n_heads)
        return kv_fail(e,
                       "%s: no head_dim, and hidden_size %zu is no "
                       "multiple of %zu heads",
                       f->path, c->hidden, s->n_heads);
    if (!s->head_dim)
        s->head_dim = c->hidden / s->n_heads;
    if (kv_fields_size_if(f, "head_dim", 1, KV_MAX_HEAD_DIM, &s->head_dim, e))
        return -1;
    if (s->head_dim % 2 || !s->head_dim || s->head_dim > KV_MAX_HEAD_DIM)
        return kv_fail(e, "%s: head_dim %zu is not an even number up to %d",
                       f->path, s->head_dim, KV_MAX_HEAD_DIM);
    s->attn_scale = (float)(1 / sqrt((double)s->head_dim));
    return 0;
}

/* otherwise: the default; 0: the field must be there. */
static int read_size(const struct kv_fields *f, const char *name, size_t max,
                     size_t otherwise, size_t *out, struct kv_err *e)
{
    *out = otherwise;
    return otherwise ? kv_fields_size_if(f, name, 1, max, out, e)
                     : kv_fields_size(f, name, 1, max, out, e);
}

/* The limits allow any model, and are so small that no product of a few sizes
 * overflows. */
static int read_sizes(const struct kv_fields *f, struct kv_config *c,
                      struct kv_err *e)
{
    struct kv_shape *s = &c->shape;

    if (c->arch->halves ? kv_config_halves(f, c, e)
                        : kv_fields_size(f, "num_hidden_layers", 1,
                                         KV_MAX_LAYERS, &s->n_layers, e))
        return -1;
    return kv_fields_size(f, "hidden_size", 1, 1 << 20, &c->hidden, e) ||
                   (c->arch->altup ? kv_config_width(f, c, &c->inter, e)
                                   : read_size(f, "intermediate_size", 1 << 22,
                                               c->arch->inter_times * c->hidden,
                                               &c->inter, e)) ||
                   read_size(f, "num_attention_heads", 1 << 12,
                             c->arch->n_heads, &s->n_heads, e) ||
                   read_size(f, "vocab_size", 1 << 24, c->arch->n_vocab,
                             &c->n_vocab, e) ||
                   read_size(f, "max_position_embeddings", 1 << 28,
                             c->arch->n_ctx, &c->n_ctx, e) ||
                   (c->arch->latent.rank
                        ? kv_config_latent(f, c, e)
                        : read_kv_heads(f, c, e) || read_head_dim(f, c, e))
               ? -1
               : 0;
}

/* Reads a flag; an architecture that does not know the flag must not have it
 * set. */
static int read_own_flag(const struct kv_fields *f, const struct kv_config *c,
                         const char *name, bool counts, bool *out,
                         struct kv_err *e)
{
    if (kv_fields_flag_if(f, name, out, e))
        return -1;
    if (*out && !counts)
        return kv_fail(e, "%s: field %s is true, but a %s has none", f->path,
                       name, c->arch->name);
    return 0;
}

static int read_norms(const struct kv_fields *f, struct kv_config *c,
                      struct kv_err *e)
{
    bool before = true, removed = false;

    if (!c->arch->norms_read)
        return 0;
    if (kv_fields_flag_if(f, "do_layer_norm_before", &before, e) ||
        kv_fields_flag_if(f, "_remove_final_layer_norm", &removed, e) ||
        kv_fields_size_if(f, "word_embed_proj_dim", 1, 1 << 20, &c->n_embed, e))
        return -1;
    c->norm_stream = !before;
    c->no_last_norm = !before || removed;
    if (c->n_embed == c->hidden)
        c->n_embed = 0;
    return 0;
}

static int read_flags(const struct kv_fields *f, struct kv_config *c,
                      struct kv_err *e)
{
    const struct kv_arch *a = c->arch;
    bool affine = !a->norm_plain, qk_norm = !a->qk_norm_read, tied = a->tied;

    c->o_bias = a->biased;
    c->parallel = a->parallel;
    c->biases = a->biases;
    c->head_bias = a->head_bias;
    if (kv_fields_flag_if(f, "lm_head_bias", &c->head_bias, e) ||
        kv_fields_flag_if(f, "tie_word_embeddings", &tied, e) ||
        kv_fields_flag_if(f, "enable_bias", &c->biases, e) ||
        kv_fields_flag_if(f, "layer_norm_elementwise_affine", &affine, e) ||
        (a->qk_norm_read && kv_fields_flag_if(f, "use_qk_norm", &qk_norm, e)) ||
        read_own_flag(f, c, "attention_bias", a->attention_bias, &c->o_bias,
                      e) ||
        read_own_flag(f, c, "mlp_bias", a->mlp_bias, &c->mlp_bias, e))
        return -1;
    if (!c->wrapped)
        c->tied = tied;
    else if (tied && !c->tied && kv_fields_get(f, "tie_word_embeddings"))
        c->tied_unless = true;
    c->norm_plain = !affine;
    c->qk_norm = qk_norm ? a->qk_norm : KV_QK_NONE;
    c->o_bias = c->o_bias || c->biases;
    c->mlp_bias = c->mlp_bias || c->biases || a->mlp_biases;
    c->qkv_bias = c->o_bias || a->qkv_bias;
    c->o_bias = c->o_bias && !a->no_o_bias;
    return kv_fields_flag_if(f, "qkv_bias", &c->qkv_bias, e) ||
                   kv_fields_flag_if(f, "use_parallel_residual", &c->parallel,
                                     e)
               ? -1
               : 0;
}

static const struct act {
    const char *name;
    enum kv_act act;
} acts[] = {
    {"silu", KV_ACT_SILU},           {"swish", KV_ACT_SILU},
    {"gelu", KV_ACT_GELU},           {"gelu_new", KV_ACT_GELU_TANH},
    {"gelu_fast", KV_ACT_GELU_TANH}, {"gelu_pytorch_tanh", KV_ACT_GELU_TANH},
    {"relu", KV_ACT_RELU},           {"relu2", KV_ACT_RELU2}};

/* NULL: the name is not known. */
static const struct act *find_act(const char *name)
{
    for (size_t i = 0; name && i < sizeof(acts) / sizeof(*acts); i++)
        if (!strcmp(acts[i].name, name))
            return &acts[i];
    return NULL;
}

static int read_plain_act(const struct kv_fields *f, enum kv_act *act,
                          struct kv_err *e)
{
    const json_t *j = kv_fields_get(f, "hidden_act");
    const char *name = json_string_value(j);
    const struct act *is = find_act(name);

    if (is)
        *act = is->act;
    return !j || is
               ? 0
               : kv_fail(e,
                         "%s: field %s is %s; only silu, gelu, gelu_new, relu "
                         "and relu2 are implemented",
                         f->path, kv_fields_name(f, "hidden_act"),
                         name ? name : "no name");
}

/* Checks that the field has the class's activation.  old_gelu: this field says
 * "gelu" and means the tanh approximation. */
static int check_act(const struct kv_fields *f, const struct kv_arch *a,
                     const char *name, bool old_gelu, struct kv_err *e)
{
    const struct kv_field only = {name, a->act == KV_ACT_GELU_TANH
                                            ? "\"gelu_pytorch_tanh\""
                                            : "\"silu\""};
    const json_t *j = kv_fields_get(f, name);
    const struct act *is = find_act(json_string_value(j));

    if (!j || (is && is->act == a->act) ||
        (is && old_gelu && is->act == KV_ACT_GELU))
        return 0;
    return kv_fields_only(f, &only, e);
}

static int read_act(const struct kv_fields *f, struct kv_config *c,
                    struct kv_err *e)
{
    const struct kv_arch *a = c->arch;

    c->act = a->act;
    if (a->plain_mlp)
        return read_plain_act(f, &c->act, e);
    return check_act(f, a, "hidden_act", a->old_gelu, e) ||
                   check_act(f, a, "hidden_activation", false, e)
               ? -1
               : 0;
}

static int read_eps(const struct kv_fields *f, struct kv_config *c,
                    struct kv_err *e)
{
    double eps = (double)c->arch->norm_eps;

    if ((eps == 0 || kv_fields_get(f, "rms_norm_eps")) &&
        kv_fields_real(f, "rms_norm_eps", &eps, e))
        return -1;
    c->norm_eps = (float)eps;
    c->mixer_eps = c->norm_eps; /* set_scales() does not change this one */
    return 0;
}

/* null means no cap; an absent field means the default. */
static int read_cap(const struct kv_fields *f, const char *name,
                    double otherwise, float *cap, struct kv_err *e)
{
    double x = kv_fields_has(f, name) ? 0 : otherwise;

    if (kv_fields_get(f, name) && kv_fields_real(f, name, &x, e))
        return -1;
    *cap = (float)x;
    return 0;
}

/* Fields of Gemma's classes; in other classes they must be absent. */
static int read_gemma(const struct kv_fields *f, struct kv_config *c,
                      struct kv_err *e)
{
    static const char *const own[] = {"query_pre_attn_scalar",
                                      "attn_logit_softcapping",
                                      "final_logit_softcapping"};
    double scalar = 256;

    const bool gemma4 = c->arch->by_kind;

    c->embed_scale = c->arch->gemma || gemma4 ? sqrtf((float)c->hidden) : 1;
    if (c->arch->sandwich && c->arch->gemma) {
        if ((kv_fields_get(f, own[0]) &&
             kv_fields_real(f, own[0], &scalar, e)) ||
            (c->arch->attn_cap > 0 &&
             read_cap(f, own[1], c->arch->attn_cap, &c->shape.cap, e)) ||
            read_cap(f, own[2], c->arch->logit_cap, &c->logit_cap, e))
            return -1;
        c->shape.attn_scale = (float)(1 / sqrt(scalar));
        return 0;
    }
    if (gemma4 && read_cap(f, own[2], c->arch->logit_cap, &c->logit_cap, e))
        return -1;
    for (size_t i = 0; i < (gemma4 ? 2 : sizeof(own) / sizeof(*own)); i++)
        if (kv_fields_get(f, own[i]))
            return kv_fail(e, "%s: field %s is not null, but a %s has none",
                           f->path, own[i], c->arch->name);
    return 0;
}

/* Slopes are scale times powers of r = 2^(-8 / n), where n is the largest power
 * of two up to n_heads; heads from n on take the odd powers of sqrt(r). */
static int fill_slopes(const struct kv_fields *f, double scale,
                       struct kv_shape *s, struct kv_err *e)
{
    size_t n = 1;

    if (s->n_heads > KV_MAX_SLOPES)
        return kv_fail(e, "%s: %zu heads with ALiBi; up to %d are implemented",
                       f->path, s->n_heads, KV_MAX_SLOPES);
    while (2 * n <= s->n_heads)
        n *= 2;
    for (size_t i = 0; i < s->n_heads; i++) {
        const double power = i < n ? (double)(i + 1) : (double)(i - n) + 0.5;

        s->slope[i] = (float)(scale * exp2(-8 * power / (double)n));
    }
    s->alibi = true;
    return 0;
}

static int read_scale(const struct kv_fields *f, const char *name,
                      double otherwise, double *x, struct kv_err *e)
{
    *x = otherwise;
    return kv_fields_get(f, name) ? kv_fields_real(f, name, x, e) : 0;
}

/* The pass stores the stream x as x / residual.  So it adds y where the model
 * adds residual * y to x, and norms use eps / residual^2. */
static void set_scales(struct kv_config *c, double embed, double residual,
                       double logits)
{
    c->embed_scale = (float)(embed / residual);
    c->norm_eps = (float)((double)c->norm_eps / (residual * residual));
    c->logit_scale = (float)logits;
}

static int read_depth_scales(const struct kv_fields *f, struct kv_config *c,
                             struct kv_err *e)
{
    double embed, depth, base;

    if (read_scale(f, "scale_emb", 1, &embed, e) ||
        read_scale(f, "scale_depth", 1, &depth, e) ||
        read_scale(f, "dim_model_base", 1, &base, e))
        return -1;
    set_scales(c, embed, depth / sqrt((double)c->shape.n_layers),
               base / (double)c->hidden);
    return 0;
}

/* Granite's multipliers, or the scale of logits alone. */
static int read_scales(const struct kv_fields *f, struct kv_config *c,
                       struct kv_err *e)
{
    double embed, residual, attention, logits = c->arch->logit_scale;

    c->logit_scale = 1;
    if (c->arch->scaled_by_depth)
        return read_depth_scales(f, c, e);
    if (logits > 0) {
        if (read_scale(f, "logit_scale", logits, &logits, e))
            return -1;
        c->logit_scale = (float)logits;
    }
    if (!c->arch->scaled)
        return 0;
    if (read_scale(f, "embedding_multiplier", 1, &embed, e) ||
        read_scale(f, "residual_multiplier", 1, &residual, e) ||
        read_scale(f, "attention_multiplier", 1, &attention, e) ||
        read_scale(f, "logits_scaling", 1, &logits, e))
        return -1;
    set_scales(c, embed, residual, 1 / logits);
    c->shape.attn_scale = (float)attention;
    return 0;
}

/* Reads clip_qkv, which MPT has in the object attn_config. */
static int read_clip(const struct kv_fields *f, struct kv_config *c,
                     struct kv_err *e)
{
    const json_t *json = kv_fields_get(f, "attn_config");
    const struct kv_fields in = {
        .path = f->path, .in = "attn_config.", .json = json};
    double clip = 0;

    if (!c->arch->clips)
        return 0;
    if (read_scale(json ? &in : f, "clip_qkv", 0, &clip, e))
        return -1;
    c->clip = (float)clip;
    return 0;
}

static int read_positions(const struct kv_fields *f, struct kv_config *c,
                          struct kv_err *e)
{
    const bool read = c->arch->alibi_read;
    bool alibi = false;

    c->positions = c->arch->positions;
    if ((read && kv_fields_flag_if(f, "alibi", &alibi, e)) ||
        read_clip(f, c, e))
        return -1;
    if (alibi)
        c->positions = KV_ALIBI;
    switch (c->positions) {
    case KV_ROPE:
        if (kv_config_rope(f, c, e))
            return -1;
        if (c->shape.latent)
            c->shape.attn_scale *= c->rope.all_scale * c->rope.all_scale;
        return 0;
    case KV_LEARNED:
        c->n_places = c->n_ctx;
        break;
    case KV_ALIBI:
        return fill_slopes(f, read ? (double)c->shape.attn_scale : 1, &c->shape,
                           e);
    }
    return 0;
}

static int read_all(struct kv_fields *f, struct kv_config *c, struct kv_err *e)
{
    if (kv_config_arch(f, c, e))
        return -1;
    return kv_fields_check(f, kv_config_known, e) ||
                   kv_fields_check_aliases(f, e) || read_sizes(f, c, e) ||
                   read_eps(f, c, e) || read_flags(f, c, e) ||
                   read_norms(f, c, e) || read_act(f, c, e) ||
                   kv_config_layers(f, c, e) || kv_config_experts(f, c, e) ||
                   read_gemma(f, c, e) || kv_config_kind(f, c, e) ||
                   kv_config_altup(f, c, e) || read_scales(f, c, e) ||
                   read_positions(f, c, e) || kv_config_mixer(f, c, e)
               ? -1
               : 0;
}

int kv_config_parse(struct kv_config *c, const json_t *json, const char *path,
                    struct kv_err *e)
{
    struct kv_fields f = {.path = path, .in = "", .json = json};

    *c = (struct kv_config){0};
    return json_is_object(json) ? read_all(&f, c, e)
                                : kv_fail(e, "%s: not a JSON object", path);
}

int kv_config_read(struct kv_config *c, const char *path, struct kv_err *e)
{
    json_t *json = kv_json_read(path, e);
    const int rc = json ? kv_config_parse(c, json, path, e) : -1;

    json_decref(json);
    return rc;
}

void kv_config_set_window(struct kv_config *c, size_t n)
{
    const struct kv_rope_kind *r = &c->rope;
    const double d = 2 * (double)c->shape.n_rot;
    const bool far = r->near && n > r->near;
    struct kv_shape *s = &c->shape;

    memcpy(s->inv_freq, far && r->growth == 0 ? r->far_freq : r->inv_freq,
           sizeof(s->inv_freq));
    if (far && r->growth > 0) {
        const double times = r->growth * (double)n / (double)r->near;
        const double theta =
            r->theta * pow(times - (r->growth - 1), d / (d - 2));

        for (size_t i = 0; i < s->n_rot; i++)
            s->inv_freq[i] = (float)pow(theta, -2 * (double)i / d);
    }
    if (!(c->arch->rope.slide_theta > 0))
        memcpy(s->slide_freq, s->inv_freq, sizeof(s->slide_freq));
}

/* Names a feature of c's layers that code for plain attention and MLPs lacks;
 * NULL: there is none.
 */
static const char *beyond_layers(const struct kv_config *c)
{
    return c->arch->altup      ? "what a Gemma 3n has"
           : c->arch->by_kind  ? "what a Gemma 4 has"
           : c->shape.latent   ? "latent attention"
           : c->arch->halves   ? "layers of one half"
           : c->shape.n_states ? "layers without attention"
           : c->arch->out_gate ? "a gate of attention's output"
           : c->n_experts      ? "an MLP of experts"
                               : NULL;
}

static int refuse(const struct kv_config *c, const char *what,
                  const char *differs, struct kv_err *e)
{
    return differs ? kv_fail(e, "%s: %s, which a %s has, is not implemented",
                             what, differs, c->arch->name)
                   : 0;
}

int kv_config_on_device(const struct kv_config *c, struct kv_err *e)
{
    return refuse(c, "CUDA", beyond_layers(c), e);
}

int kv_config_is_llama(const struct kv_config *c, const char *what, bool gemma,
                       struct kv_err *e)
{
    static const char *const positions[] = {
        [KV_LEARNED] = "learned positions", [KV_ALIBI] = "ALiBi"};
    const struct kv_arch *a = c->arch;
    const char *differs =
        a->gemma && !gemma         ? "what a Gemma has"
        : beyond_layers(c)         ? beyond_layers(c)
        : c->clip > 0              ? "clipped projections"
        : a->layer_norm            ? "LayerNorm"
        : c->logit_scale != 1      ? "scaled logits"
        : c->parallel              ? "an MLP beside attention"
        : c->positions != KV_ROPE  ? positions[c->positions]
        : a->sandwich && !a->gemma ? "norms after attention"
        : a->layers.still_every || a->layers.still_full ||
                a->layers.still_unless
            ? "layers without RoPE"
        : c->rope.scale != 1                     ? "RoPE with a scale"
        : a->qk_norm_late                        ? "norms after RoPE"
        : 2 * c->shape.n_rot < c->shape.head_dim ? "RoPE of a part"
        : a->plain_mlp                           ? "an MLP without gate"
        : c->act != KV_ACT_SILU && !a->gemma     ? "an MLP without silu"
                                                 : NULL;

    return refuse(c, what, differs, e);
}
