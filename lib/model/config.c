#include "lib/json_file.h"
#include "lib/model/arch_names.h"
#include "lib/model/config_layers.h"
#include "lib/model/config_rope.h"

#include <math.h>
#include <stdint.h>
#include <string.h>

static int check_type(const struct kv_fields *f, const char *name,
                      const char *should, struct kv_err *e)
{
    const json_t *type = kv_fields_get(f, "model_type");
    const char *is = type ? json_string_value(type) : NULL;

    return !type || (is && !strcmp(is, should))
               ? 0
               : kv_fail(e,
                         "%s: field %smodel_type is %s, but architectures is "
                         "%s, whose model_type is %s",
                         f->path, f->in, is ? is : "no name", name, should);
}

/* f becomes the fields of the language model, which are all that is read: the
 * other parts see no text.  Whether the head is tied is said beside them. */
static int unwrap(struct kv_fields *f, const struct kv_wrapper *w,
                  struct kv_config *c, struct kv_err *e)
{
    static const char tied[] = "tie_word_embeddings";
    const json_t *text = kv_fields_get(f, "text_config");
    struct kv_fields part = *f;

    if (check_type(f, w->name, w->model_type, e) ||
        kv_fields_flag_if(f, tied, &c->tied, e))
        return -1;
    c->wrapped = true;
    c->tied_unless = !kv_fields_get(f, tied);
    if (!text && !w->flat)
        return kv_fail(e, "%s: field text_config is missing", f->path);
    if (text) {
        part.in = "text_config.";
        part.json = text;
        if (!json_is_object(text))
            return kv_fail(e, "%s: field text_config is not an object",
                           f->path);
        if (check_type(&part, w->name, w->text, e))
            return -1;
    }
    part.own = kv_fields_of_wrapped;
    part.wrapped = true;
    *f = part;
    return kv_arch_find(&c->arch, w->arch, f->json, e);
}

/* model_type, which transformers goes by, must say the same. */
static int read_arch(struct kv_fields *f, struct kv_config *c, struct kv_err *e)
{
    const json_t *list = kv_fields_get(f, "architectures");
    const char *name = json_string_value(json_array_get(list, 0));
    const struct kv_wrapper *wrapper;

    if (!list)
        return kv_fail(e, "%s: field architectures is missing", f->path);
    if (!name || json_array_size(list) != 1)
        return kv_fail(e, "%s: field architectures is not a list of one name",
                       f->path);
    wrapper = kv_arch_wrapper(name);
    if (wrapper)
        return unwrap(f, wrapper, c, e);
    if (kv_arch_find(&c->arch, name, f->json, e))
        return kv_fail_in(e, "%s", f->path);
    f->own = c->arch->fields;
    return check_type(f, name, c->arch->model_type, e);
}

/* Absent, it is what the class says; null means all heads. */
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

/* otherwise: without the field; 0: it must be there. */
static int read_size(const struct kv_fields *f, const char *name, size_t max,
                     size_t otherwise, size_t *out, struct kv_err *e)
{
    *out = otherwise;
    return otherwise ? kv_fields_size_if(f, name, 1, max, out, e)
                     : kv_fields_size(f, name, 1, max, out, e);
}

/* Sizes large enough for any model, small enough that no product of a few of
 * them overflows. */
static int read_sizes(const struct kv_fields *f, struct kv_config *c,
                      struct kv_err *e)
{
    struct kv_shape *s = &c->shape;

    return kv_fields_size(f, "hidden_size", 1, 1 << 20, &c->hidden, e) ||
                   read_size(f, "intermediate_size", 1 << 22,
                             c->arch->inter_times * c->hidden, &c->inter, e) ||
                   kv_fields_size(f, "num_hidden_layers", 1, KV_MAX_LAYERS,
                                  &s->n_layers, e) ||
                   read_size(f, "num_attention_heads", 1 << 12,
                             c->arch->n_heads, &s->n_heads, e) ||
                   read_size(f, "vocab_size", 1 << 24, c->arch->n_vocab,
                             &c->n_vocab, e) ||
                   read_size(f, "max_position_embeddings", 1 << 28,
                             c->arch->n_ctx, &c->n_ctx, e) ||
                   read_kv_heads(f, c, e) || read_head_dim(f, c, e)
               ? -1
               : 0;
}

/* A flag that the architecture may not know: then it must not be set. */
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

static int read_flags(const struct kv_fields *f, struct kv_config *c,
                      struct kv_err *e)
{
    const struct kv_arch *a = c->arch;
    bool affine = !a->norm_plain, qk_norm = !a->qk_norm_read, tied = a->tied;

    c->o_bias = a->biased;
    c->parallel = a->parallel;
    c->biases = a->biases;
    if (kv_fields_flag_if(f, "tie_word_embeddings", &tied, e) ||
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

/* NULL: it is not known. */
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

/* The gate's activation is the class's.  old_gelu: by "gelu" this field means
 * its approximation. */
static int check_act(const struct kv_fields *f, const struct kv_arch *a,
                     const char *name, bool old_gelu, struct kv_err *e)
{
    const struct kv_field only = {name, a->gemma ? "\"gelu_pytorch_tanh\""
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

/* Layers with an MLP of intermediate_size in place of experts: those that
 * mlp_only_layers lists, and those whose number decoder_sparse_step does not
 * divide. */
static int read_dense(const struct kv_fields *f, struct kv_config *c,
                      struct kv_err *e)
{
    static const char name[] = "mlp_only_layers";
    const struct kv_fields plain = {
        .path = f->path, .in = f->in, .json = f->json};
    const json_t *list = kv_fields_get(f, name);
    const size_t n = c->shape.n_layers;
    size_t step = 1;

    if (kv_fields_size_if(f, "decoder_sparse_step", 1, KV_MAX_LAYERS, &step, e))
        return -1;
    if (list && !json_is_array(list))
        return kv_fail(e, "%s: field %s is not a list of layers", f->path,
                       name);
    for (size_t i = 0; i < n; i++)
        if ((i + 1) % step)
            c->dense[i / 64] |= (uint64_t)1 << i % 64;
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *layer = json_array_get(list, i);
        const json_int_t at = json_integer_value(layer);

        if (!json_is_integer(layer) || at < 0 || at >= (json_int_t)n)
            return kv_fail(e, "%s: field %s: entry %zu is no layer below %zu",
                           f->path, name, i, n);
        c->dense[at / 64] |= (uint64_t)1 << at % 64;
    }
    if (step == 1 && !json_array_size(list))
        return 0;
    return kv_fields_size(&plain, "intermediate_size", 1, 1 << 22,
                          &c->dense_inter, e);
}

/* How many experts there are, and how many a token has. */
static int read_experts(const struct kv_fields *f, struct kv_config *c,
                        struct kv_err *e)
{
    enum { MAX_EXPERTS = 1 << 12 };

    if (!c->arch->experts)
        return 0;
    c->norm_shares = c->arch->norm_shares;
    if ((c->arch->mixed && read_dense(f, c, e)) ||
        (c->arch->shared && kv_fields_size(f, "shared_expert_intermediate_size",
                                           1, 1 << 22, &c->shared_inter, e)))
        return -1;
    return kv_fields_size(f, "num_experts", 1, MAX_EXPERTS, &c->n_experts, e) ||
                   kv_fields_size(f, "num_experts_per_tok", 1, c->n_experts,
                                  &c->n_used, e) ||
                   kv_fields_flag_if(f, "norm_topk_prob", &c->norm_shares, e)
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
    return 0;
}

/* null, unlike a field that is absent, is no cap. */
static int read_cap(const struct kv_fields *f, const char *name,
                    double otherwise, float *cap, struct kv_err *e)
{
    double x = kv_fields_has(f, name) ? 0 : otherwise;

    if (kv_fields_get(f, name) && kv_fields_real(f, name, &x, e))
        return -1;
    *cap = (float)x;
    return 0;
}

/* What Gemma's classes have; in others the fields must be absent. */
static int read_gemma(const struct kv_fields *f, struct kv_config *c,
                      struct kv_err *e)
{
    static const char *const own[] = {"query_pre_attn_scalar",
                                      "attn_logit_softcapping",
                                      "final_logit_softcapping"};
    double scalar = 256;

    c->embed_scale = c->arch->gemma ? sqrtf((float)c->hidden) : 1;
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
    for (size_t i = 0; i < sizeof(own) / sizeof(*own); i++)
        if (kv_fields_get(f, own[i]))
            return kv_fail(e, "%s: field %s is not null, but a %s has none",
                           f->path, own[i], c->arch->name);
    return 0;
}

/* Powers of 2^(-8 / n), n a power of two, times scale; heads past n take the
 * odd powers of its root. */
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

/* Granite adds r y to the stream x: x / r is kept instead, to which y is added.
 * Its norms are those of x with eps / r^2. */
static int read_scales(const struct kv_fields *f, struct kv_config *c,
                       struct kv_err *e)
{
    double embed, residual, attention, logits = c->arch->logit_scale;

    c->logit_scale = 1;
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
    c->embed_scale = (float)(embed / residual);
    c->norm_eps = (float)((double)c->norm_eps / (residual * residual));
    c->shape.attn_scale = (float)attention;
    c->logit_scale = (float)(1 / logits);
    return 0;
}

/* clip_qkv, which MPT has in its object attn_config. */
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
        return kv_config_rope(f, c, e);
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
    if (read_arch(f, c, e))
        return -1;
    return kv_fields_check(f, kv_config_known, e) ||
                   kv_fields_check_aliases(f, e) || read_sizes(f, c, e) ||
                   read_eps(f, c, e) || read_flags(f, c, e) ||
                   read_act(f, c, e) || kv_config_layers(f, c, e) ||
                   read_experts(f, c, e) || read_gemma(f, c, e) ||
                   read_scales(f, c, e) || read_positions(f, c, e)
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

int kv_config_is_llama(const struct kv_config *c, const char *what, bool gemma,
                       struct kv_err *e)
{
    static const char *const positions[] = {
        [KV_LEARNED] = "learned positions", [KV_ALIBI] = "ALiBi"};
    const struct kv_arch *a = c->arch;
    const char *differs =
        a->gemma && !gemma         ? "what a Gemma has"
        : c->n_experts             ? "an MLP of experts"
        : c->clip > 0              ? "clipped projections"
        : a->layer_norm            ? "LayerNorm"
        : c->logit_scale != 1      ? "scaled logits"
        : c->parallel              ? "an MLP beside attention"
        : c->positions != KV_ROPE  ? positions[c->positions]
        : a->sandwich && !a->gemma ? "norms after attention"
        : a->layers.still_every || a->layers.still_full ? "layers without RoPE"
        : c->rope.scale != 1                            ? "RoPE with a scale"
        : 2 * c->shape.n_rot < c->shape.head_dim        ? "RoPE of a part"
        : a->plain_mlp                                  ? "an MLP without gate"
        : c->act != KV_ACT_SILU && !a->gemma            ? "an MLP without silu"
                                                        : NULL;

    return differs ? kv_fail(e, "%s: %s, which a %s has, is not implemented",
                             what, differs, a->name)
                   : 0;
}
