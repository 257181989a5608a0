#include "lib/model/config_rope.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

/* An object that describes RoPE: rope_parameters, that of a layer type in it,
 * or rope_scaling.  label: its name, a dot after it. */
struct block {
    char label[64];
    struct kv_fields fields;
};

/* A number and the field that has it; "": none has. */
struct given {
    double is;
    char in[80];
};

struct rope {
    const struct kv_arch *arch;
    const struct kv_fields *top;
    struct block block[2];
    size_t n_blocks;
    double theta;
    size_t head_dim, n_ctx; /* head_dim: the channels that turn */
    bool partial;           /* may be fewer than all */
};

static int add_block(struct rope *r, const char *label, const json_t *json,
                     struct kv_err *e)
{
    struct block *b = &r->block[r->n_blocks];

    if (!json_is_object(json))
        return kv_fail(e, "%s: field %s is not an object", r->top->path, label);
    snprintf(b->label, sizeof(b->label), "%s.", label);
    b->fields =
        (struct kv_fields){.path = r->top->path, .in = b->label, .json = json};
    r->n_blocks++;
    return 0;
}

/* The object of this name; or, type not NULL, that of this type of layers in
 * it, if there is one. */
static int add_blocks(struct rope *r, const char *name, const char *type,
                      struct kv_err *e)
{
    static const struct kv_field by_type[] = {
        {"full_attention", NULL}, {"sliding_attention", NULL}, {0}};
    const json_t *json = kv_fields_get(r->top, name), *of_type;
    const bool typed = json_object_get(json, by_type[0].name) ||
                       json_object_get(json, by_type[1].name);
    char label[48];

    if (!json || (json_is_object(json) && !json_object_size(json)))
        return 0;
    if (typed && !type)
        return kv_fail(e,
                       "%s: field %s is by type of layers, which a %s does not "
                       "read",
                       r->top->path, name, r->arch->name);
    if (!typed && type)
        return kv_fail(e,
                       "%s: field %s is not by type of layers, as a %s has it",
                       r->top->path, name, r->arch->name);
    if (!type)
        return add_block(r, name, json, e);
    snprintf(label, sizeof(label), "%s.", name);

    const struct kv_fields nested = {
        .path = r->top->path, .in = label, .json = json};

    if (kv_fields_check(&nested, by_type, e))
        return -1;
    of_type = kv_fields_get(&nested, type);
    snprintf(label, sizeof(label), "%s.%s", name, type);
    return of_type ? add_block(r, label, of_type, e) : 0;
}

/* The one value of all places that have it. */
static int read_given(const struct kv_fields *f, const char *name,
                      struct given *given, struct kv_err *e)
{
    const char *called = kv_fields_name(f, name);
    double x = 0;

    if (!kv_fields_get(f, name))
        return 0;
    if (kv_fields_real(f, name, &x, e))
        return -1;
    if (*given->in && x != given->is)
        return kv_fail(e,
                       "%s: field %s%s is %g, but %s is %g: they contradict "
                       "each other",
                       f->path, f->in, called, x, given->in, given->is);
    given->is = x;
    snprintf(given->in, sizeof(given->in), "%s%s", f->in, called);
    return 0;
}

/* At the top and in all blocks; otherwise: without it. */
static int read_everywhere(const struct rope *r, const char *name,
                           double otherwise, double *out, struct kv_err *e)
{
    struct given given = {.is = otherwise};

    if (read_given(r->top, name, &given, e))
        return -1;
    for (size_t i = 0; i < r->n_blocks; i++)
        if (read_given(&r->block[i].fields, name, &given, e))
            return -1;
    *out = given.is;
    return 0;
}

static int scale_none(const struct rope *r, const struct kv_fields *f,
                      double *inv_freq, struct kv_rope_kind *kind,
                      struct kv_err *e)
{
    (void)r, (void)f, (void)inv_freq, (void)kind, (void)e;
    return 0;
}

static int scale_linear(const struct rope *r, const struct kv_fields *f,
                        double *inv_freq, struct kv_rope_kind *kind,
                        struct kv_err *e)
{
    double factor = 0;

    (void)kind;
    if (kv_fields_real(f, "factor", &factor, e))
        return -1;
    for (size_t i = 0; i < r->head_dim / 2; i++)
        inv_freq[i] /= factor;
    return 0;
}

/* original_max_position_embeddings of the block, or of the top level, whichever
 * the class goes by; the other may repeat it.  In a block it may be absent: all
 * positions then. */
static int read_old_ctx(const struct rope *r, const struct kv_fields *f,
                        bool may_be_absent, double *old_ctx, struct kv_err *e)
{
    static const char name[] = "original_max_position_embeddings";
    const bool by_top = r->arch->rope.old_ctx;
    const struct kv_fields *used = by_top ? r->top : f;
    const struct kv_fields *other = by_top ? f : r->top;
    double repeated;

    *old_ctx = (double)(by_top ? r->arch->rope.old_ctx : r->n_ctx);
    if ((kv_fields_get(used, name) || !(by_top || may_be_absent)) &&
        kv_fields_real(used, name, old_ctx, e))
        return -1;
    repeated = *old_ctx;
    if (kv_fields_get(other, name) && kv_fields_real(other, name, &repeated, e))
        return -1;
    return repeated == *old_ctx
               ? 0
               : kv_fail(e,
                         "%s: field %s%s is %g, but a %s goes by %s%s, which "
                         "is %g",
                         f->path, other->in, name, repeated, r->arch->name,
                         used->in, name, *old_ctx);
}

/* Llama 3.1: long wavelengths are divided by the factor, short ones are
 * kept, those between are blended. */
static int scale_llama3(const struct rope *r, const struct kv_fields *f,
                        double *inv_freq, struct kv_rope_kind *kind,
                        struct kv_err *e)
{
    double factor = 0, low = 0, high = 0, old_ctx = 0;

    (void)kind;
    if (kv_fields_real(f, "factor", &factor, e) ||
        kv_fields_real(f, "low_freq_factor", &low, e) ||
        kv_fields_real(f, "high_freq_factor", &high, e) ||
        read_old_ctx(r, f, false, &old_ctx, e))
        return -1;
    if (high <= low)
        return kv_fail(e,
                       "%s: field %shigh_freq_factor is not above "
                       "low_freq_factor",
                       f->path, f->in);
    for (size_t i = 0; i < r->head_dim / 2; i++) {
        const double turns = old_ctx * inv_freq[i] / (2 * M_PI);
        const double keep = (turns - low) / (high - low);

        if (turns < low)
            inv_freq[i] /= factor;
        else if (turns <= high)
            inv_freq[i] *= (1 - keep) / factor + keep;
    }
    return 0;
}

static int read_real_if(const struct kv_fields *f, const char *name, double *x,
                        struct kv_err *e)
{
    return kv_fields_get(f, name) ? kv_fields_real(f, name, x, e) : 0;
}

/* x as floats. */
static int put(const struct rope *r, const double *x, const char *type,
               float *inv_freq, struct kv_err *e)
{
    for (size_t i = 0; i < r->head_dim / 2; i++) {
        if (!(x[i] >= (double)FLT_MIN &&
              x[i] * (double)r->n_ctx <= (double)FLT_MAX))
            return kv_fail(e,
                           "%s: rope_theta %g and RoPE scaling %s give a "
                           "frequency of %g, with which f32 cannot count to "
                           "position %zu",
                           r->top->path, r->theta, type, x[i], r->n_ctx);
        inv_freq[i] = (float)x[i];
    }
    return 0;
}

/* Longer windows than n_ctx have a larger theta; or all have, by alpha. */
static int scale_dynamic(const struct rope *r, const struct kv_fields *f,
                         double *inv_freq, struct kv_rope_kind *kind,
                         struct kv_err *e)
{
    double alpha = 0;

    if (r->arch->rope.alpha && read_real_if(f, "alpha", &alpha, e))
        return -1;
    if (alpha > 0) {
        const double d = (double)r->head_dim;
        const double theta = r->theta * pow(alpha, d / (d - 2));

        for (size_t i = 0; i < r->head_dim / 2; i++)
            inv_freq[i] = pow(theta, -2 * (double)i / d);
        return 0;
    }
    if (kv_fields_real(f, "factor", &kind->growth, e))
        return -1;
    if (kind->growth < 1 || r->head_dim < 4)
        return kv_fail(e,
                       "%s: field %sfactor: dynamic RoPE wants a factor from 1 "
                       "on, and 4 channels that turn",
                       f->path, f->in);
    kind->near = r->n_ctx;
    kind->theta = r->theta;
    return 0;
}

static double mscale(double factor, double by)
{
    return factor > 1 ? 0.1 * by * log(factor) + 1 : 1;
}

/* YaRN's scale of q and k, unless it is given. */
static int read_yarn_scale(const struct kv_fields *f, double factor,
                           struct kv_rope_kind *kind, struct kv_err *e)
{
    double mine = 0, all = 0, x;

    if (read_real_if(f, "mscale", &mine, e) ||
        read_real_if(f, "mscale_all_dim", &all, e))
        return -1;
    x = mine > 0 && all > 0 ? mscale(factor, mine) / mscale(factor, all)
                            : mscale(factor, 1);
    if (read_real_if(f, "attention_factor", &x, e))
        return -1;
    kind->scale = (float)x;
    if (all > 0)
        kind->all_scale = (float)mscale(factor, all);
    return 0;
}

/* The pair that turns so many times in old_ctx tokens. */
static double yarn_pair(const struct rope *r, double old_ctx, double turns)
{
    return (double)r->head_dim * log(old_ctx / (turns * 2 * M_PI)) /
           (2 * log(r->theta));
}

/* Pairs up to one that turns often keep their frequency, those from one on that
 * turns seldom are divided by the factor, between them is a ramp. */
static int scale_yarn(const struct rope *r, const struct kv_fields *f,
                      double *inv_freq, struct kv_rope_kind *kind,
                      struct kv_err *e)
{
    double factor = 0, fast = 32, slow = 1, old_ctx = 0, low, high;
    bool truncate = true;

    if (kv_fields_real(f, "factor", &factor, e) ||
        read_real_if(f, "beta_fast", &fast, e) ||
        read_real_if(f, "beta_slow", &slow, e) ||
        kv_fields_flag_if(f, "truncate", &truncate, e) ||
        read_old_ctx(r, f, true, &old_ctx, e) ||
        read_yarn_scale(f, factor, kind, e))
        return -1;
    if (r->theta <= 1)
        return kv_fail(e,
                       "%s: RoPE scaling yarn with rope_theta %g: not above "
                       "1",
                       f->path, r->theta);
    low = yarn_pair(r, old_ctx, fast);
    high = yarn_pair(r, old_ctx, slow);
    low = fmax(truncate ? floor(low) : low, 0);
    high = fmin(truncate ? ceil(high) : high, (double)r->head_dim - 1);
    high += low == high ? 0.001 : 0;
    for (size_t i = 0; i < r->head_dim / 2; i++) {
        const double ramp = ((double)i - low) / (high - low);
        const double divided = fmin(fmax(ramp, 0), 1);

        inv_freq[i] *= divided / factor + 1 - divided;
    }
    return 0;
}

/* A number above 0 for each pair, by which its frequency is divided. */
static int divide(const struct rope *r, const struct kv_fields *f,
                  const char *name, const double *inv_freq, double *out,
                  struct kv_err *e)
{
    const json_t *list = kv_fields_get(f, name);
    const size_t n = r->head_dim / 2;

    if (json_array_size(list) != n)
        return kv_fail(e,
                       "%s: field %s%s is not a list of %zu numbers, one for "
                       "each pair that turns",
                       f->path, f->in, name, n);
    for (size_t i = 0; i < n; i++) {
        const double by = json_number_value(json_array_get(list, i));

        if (!(by >= (double)FLT_MIN && by <= (double)FLT_MAX))
            return kv_fail(e,
                           "%s: field %s%s: number %zu is not above 0, or not "
                           "what f32 holds",
                           f->path, f->in, name, i);
        out[i] = inv_freq[i] / by;
    }
    return 0;
}

/* Phi-MoE's scale, by the length of the text. */
static int read_mscales(const struct kv_fields *f, double *scale,
                        struct kv_err *e)
{
    double far = 0;

    if (kv_fields_real(f, "short_mscale", scale, e) ||
        kv_fields_real(f, "long_mscale", &far, e))
        return -1;
    return far == *scale
               ? 0
               : kv_fail(e,
                         "%s: field %slong_mscale is %g, and short_mscale %g: "
                         "that they differ is not implemented",
                         f->path, f->in, far, *scale);
}

/* Phi 3: windows up to old_ctx by one list, longer ones by another. */
static int scale_longrope(const struct rope *r, const struct kv_fields *f,
                          double *inv_freq, struct kv_rope_kind *kind,
                          struct kv_err *e)
{
    double factor, old_ctx = 0, scale = 1, far[KV_MAX_HEAD_DIM / 2];

    if (read_old_ctx(r, f, true, &old_ctx, e))
        return -1;
    factor = (double)r->n_ctx / old_ctx;
    if (read_real_if(f, "factor", &factor, e))
        return -1;
    if (factor > 1)
        scale = sqrt(1 + log(factor) / log(old_ctx));
    if (read_real_if(f, "attention_factor", &scale, e) ||
        divide(r, f, "long_factor", inv_freq, far, e) ||
        divide(r, f, "short_factor", inv_freq, inv_freq, e))
        return -1;
    if (!(old_ctx >= 2 && old_ctx < 1 << 28))
        return kv_fail(e,
                       "%s: RoPE scaling longrope: "
                       "original_max_position_embeddings is %g",
                       f->path, old_ctx);
    if (r->arch->rope.mscales && read_mscales(f, &scale, e))
        return -1;
    kind->scale = (float)scale;
    kind->near = r->arch->rope.mscales ? 0 : (size_t)old_ctx;
    return put(r, far, "longrope", kind->far_freq, e);
}

#define EVERY_TYPE                                             \
    {"rope_type", NULL}, {"type", NULL}, {"rope_theta", NULL}, \
        {"partial_rotary_factor", "1"}, {"finetuned", NULL},   \
    {                                                          \
        "original_max_position_embeddings", NULL               \
    }
#define NO_SCALE                \
    {                           \
        "attention_factor", "1" \
    }

static const struct rope_type {
    const char *name;
    struct kv_field known[17];
    int (*scale)(const struct rope *r, const struct kv_fields *f,
                 double *inv_freq, struct kv_rope_kind *kind, struct kv_err *e);
} types[] = {
    {"default", {EVERY_TYPE, NO_SCALE, {"factor", "1"}}, scale_none},
    {"linear", {EVERY_TYPE, NO_SCALE, {"factor", NULL}}, scale_linear},
    {"dynamic", {EVERY_TYPE, NO_SCALE, {"factor", NULL}}, scale_dynamic},
    {"llama3",
     {EVERY_TYPE,
      NO_SCALE,
      {"factor", NULL},
      {"low_freq_factor", NULL},
      {"high_freq_factor", NULL}},
     scale_llama3},
    {"yarn",
     {EVERY_TYPE,
      {"factor", NULL},
      {"attention_factor", NULL},
      {"beta_fast", NULL},
      {"beta_slow", NULL},
      {"mscale", NULL},
      {"mscale_all_dim", NULL},
      {"truncate", NULL},
      {"attn_factor", NULL}, /* of the first YaRN models' own code */
      {"extrapolation_factor", NULL}},
     scale_yarn},
    {"longrope",
     {EVERY_TYPE,
      {"factor", NULL},
      {"attention_factor", NULL},
      {"short_factor", NULL},
      {"long_factor", NULL}},
     scale_longrope},
};

/* The type's name: rope_type, or type as older files have it. */
static int read_type(const struct rope *r, const struct kv_fields *f,
                     const struct rope_type **type, struct kv_err *e)
{
    const json_t *now = kv_fields_get(f, "rope_type");
    const json_t *old = kv_fields_get(f, "type");
    const json_t *given = now ? now : old;
    const char *name = given ? json_string_value(given) : types[0].name;
    const bool only_long = r->arch->rope.old_ctx;
    char known[128] = "";

    if (now && old && !json_equal(now, old))
        return kv_fail(e,
                       "%s: fields %srope_type and %stype contradict each "
                       "other",
                       f->path, f->in, f->in);
    if (old && !now && r->arch->rope.slide_theta > 0 &&
        !strcmp(f->in, "rope_scaling."))
        return kv_fail(e,
                       "%s: field %stype: a %s goes by %srope_type, which is "
                       "missing",
                       f->path, f->in, r->arch->name, f->in);
    if (name && r->top->wrapped && !strcmp(name, "mrope"))
        name = types[0].name; /* of text, whose three positions are equal */
    if (name && (!strcmp(name, "su") || /* as it was first called */
                 (only_long && !strcmp(name, "yarn"))))
        name = "longrope";
    for (size_t i = 0; i < sizeof(types) / sizeof(*types); i++) {
        const size_t n = strlen(known);

        *type = &types[i];
        if ((only_long || r->arch->rope.mscales) && i &&
            strcmp(types[i].name, "longrope") != 0)
            continue;
        if (name && !strcmp(types[i].name, name))
            return 0;
        snprintf(known + n, sizeof(known) - n, "%s%s", i ? ", " : "",
                 types[i].name);
    }
    return kv_fail(e,
                   "%s: field %s%s: RoPE scaling %s is not implemented (known: "
                   "%s)",
                   f->path, f->in, now ? "rope_type" : "type",
                   name ? name : "without a name", known);
}

static int read_channels(struct rope *r, struct kv_err *e)
{
    size_t n = 0;

    if (kv_fields_size(r->top, "rotary_dim", 2, r->head_dim, &n, e))
        return -1;
    if (n % 2)
        return kv_fail(e, "%s: field rotary_dim is %zu, an odd number",
                       r->top->path, n);
    r->head_dim = n;
    return 0;
}

/* Where the class turns a part of a head's channels: which part. */
static int read_partial(struct rope *r, struct kv_err *e)
{
    double part;

    if (r->arch->rope.channels &&
        (!(r->arch->rope.partial > 0) || kv_fields_get(r->top, "rotary_dim")))
        return read_channels(r, e);
    r->partial = r->arch->rope.partial > 0;
    if (!r->partial)
        return 0;
    if (read_everywhere(r, "partial_rotary_factor", r->arch->rope.partial,
                        &part, e))
        return -1;
    if (part > 1 || (size_t)(part * (double)r->head_dim) % 2 ||
        part * (double)r->head_dim < 2)
        return kv_fail(e,
                       "%s: RoPE turns a part of %g of %zu channels, which is "
                       "no even number of them",
                       r->top->path, part, r->head_dim);
    r->head_dim = (size_t)(part * (double)r->head_dim);
    return 0;
}

/* known, but that a part may turn. */
static int check_block(const struct rope *r, const struct kv_fields *f,
                       const struct rope_type *type, struct kv_err *e)
{
    enum { N = sizeof(type->known) / sizeof(*type->known) };
    static const struct kv_field of_three[] = {{"mrope_section", NULL},
                                               {"mrope_interleaved", NULL}};
    static const struct kv_field with_alpha[] = {{"alpha", NULL},
                                                 {"beta_fast", NULL},
                                                 {"beta_slow", NULL},
                                                 {"mscale", NULL},
                                                 {"mscale_all_dim", NULL}};
    static const struct kv_field mscales[] = {{"short_mscale", NULL},
                                              {"long_mscale", NULL}};
    struct kv_field known[N + 6] = {0};
    size_t n = 0;

    for (; n < N && type->known[n].name; n++) {
        known[n] = type->known[n];
        if (r->partial && !strcmp(known[n].name, "partial_rotary_factor"))
            known[n].only = NULL;
    }
    if (r->top->wrapped)
        memcpy(known + n, of_three, sizeof(of_three));
    else if (r->arch->rope.alpha && type->scale == scale_dynamic)
        memcpy(known + n, with_alpha, sizeof(with_alpha)); /* alpha is read */
    else if (r->arch->rope.mscales)
        memcpy(known + n, mscales, sizeof(mscales));
    return kv_fields_check(f, known, e);
}

/* RoPE of a block; NULL: of theta alone. */
static int compute(const struct rope *r, const struct kv_fields *f,
                   struct kv_rope_kind *kind, struct kv_err *e)
{
    const struct rope_type *type = &types[0];
    double x[KV_MAX_HEAD_DIM / 2];

    *kind = (struct kv_rope_kind){.scale = 1, .all_scale = 1};
    for (size_t i = 0; i < r->head_dim / 2; i++)
        x[i] = pow(r->theta, -2 * (double)i / (double)r->head_dim);
    if (f && (read_type(r, f, &type, e) || check_block(r, f, type, e) ||
              type->scale(r, f, x, kind, e)))
        return -1;
    return put(r, x, type->name, kind->inv_freq, e);
}

static const char LOCAL[] = "rope_local_base_freq";

/* Of the layers that slide, where they have frequencies of their own: scaling
 * is that of rope_parameters, which is by type then. */
static int read_slide(const struct kv_fields *f, struct kv_config *c,
                      struct kv_err *e)
{
    struct rope r = {.arch = c->arch,
                     .top = f,
                     .head_dim = c->shape.head_dim,
                     .n_ctx = c->n_ctx};
    struct given theta = {.is = c->arch->rope.slide_theta};
    struct kv_rope_kind kind;

    if (add_blocks(&r, "rope_parameters", "sliding_attention", e) ||
        (r.n_blocks && read_given(&r.block[0].fields, "rope_theta", &theta, e)))
        return -1;
    if (!c->arch->rope.slide_theta_read && !*theta.in)
        snprintf(theta.in, sizeof(theta.in), "that of layers that slide");
    if (read_given(f, LOCAL, &theta, e))
        return -1;
    r.theta = theta.is;
    if (compute(&r, r.n_blocks ? &r.block[0].fields : NULL, &kind, e))
        return -1;
    if (kind.near)
        return kv_fail(e,
                       "%s: RoPE of layers that slide goes by the length of "
                       "the text, which is not implemented",
                       f->path);
    c->slide_scale = kind.scale;
    memcpy(c->shape.slide_freq, kind.inv_freq, sizeof(kind.inv_freq));
    return 0;
}

static bool is_same(const struct kv_rope_kind *a, const struct kv_rope_kind *b)
{
    return a->scale == b->scale && a->all_scale == b->all_scale &&
           a->near == b->near && a->theta == b->theta &&
           a->growth == b->growth &&
           !memcmp(a->inv_freq, b->inv_freq, sizeof(a->inv_freq)) &&
           !memcmp(a->far_freq, b->far_freq, sizeof(a->far_freq));
}

/* Of all blocks, which must agree. */
static int read_blocks(struct rope *r, struct kv_config *c, struct kv_err *e)
{
    struct kv_rope_kind other;

    if (compute(r, r->n_blocks ? &r->block[0].fields : NULL, &c->rope, e))
        return -1;
    for (size_t i = 1; i < r->n_blocks; i++) {
        if (compute(r, &r->block[i].fields, &other, e))
            return -1;
        if (!is_same(&other, &c->rope))
            return kv_fail(e, "%s: fields %.*s and %.*s contradict each other",
                           r->top->path, (int)strlen(r->block[0].label) - 1,
                           r->block[0].label,
                           (int)strlen(r->block[i].label) - 1,
                           r->block[i].label);
    }
    return 0;
}

static int check_given(const struct rope *r, struct kv_err *e)
{
    return r->arch->rope.given && !r->n_blocks
               ? kv_fail(e,
                         "%s: field rope_scaling is missing: a %s then has a "
                         "YaRN of its class's own, which it must write out",
                         r->top->path, r->arch->name)
               : 0;
}

int kv_config_rope(const struct kv_fields *f, struct kv_config *c,
                   struct kv_err *e)
{
    const bool apart = c->arch->rope.slide_theta > 0; /* frequencies by type */
    struct rope r = {.arch = c->arch,
                     .top = f,
                     .head_dim = c->shape.head_dim - c->shape.latent,
                     .n_ctx = c->n_ctx};

    if (!apart && kv_fields_get(f, LOCAL))
        return kv_fail(e, "%s: field %s is not null, but a %s has none",
                       f->path, LOCAL, c->arch->name);
    if (add_blocks(&r, "rope_parameters", apart ? "full_attention" : NULL, e) ||
        add_blocks(&r, "rope_scaling", NULL, e) || check_given(&r, e) ||
        read_everywhere(&r, "rope_theta", c->arch->rope.theta, &r.theta, e) ||
        read_partial(&r, e) || read_blocks(&r, c, e))
        return -1;
    c->shape.n_rot = r.head_dim / 2;
    c->slide_scale = c->rope.scale;
    kv_config_set_window(c, 0);
    return apart ? read_slide(f, c, e) : 0;
}
