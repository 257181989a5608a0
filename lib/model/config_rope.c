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

struct rope {
    const struct kv_fields *top;
    struct block block[4]; /* two fields, each by two types of layers */
    size_t n_blocks;
    double theta;
    char theta_in[80];      /* the field that has it */
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

/* The object of this name, or its objects by layer type, of the types that the
 * model has. */
static int add_blocks(struct rope *r, const char *name, bool full, bool slides,
                      struct kv_err *e)
{
    static const struct kv_field by_type[] = {
        {"full_attention", NULL}, {"sliding_attention", NULL}, {0}};
    const bool used[] = {full, slides};
    const json_t *json = kv_fields_get(r->top, name);
    char label[48];

    if (!json || (json_is_object(json) && !json_object_size(json)))
        return 0;
    if (!json_object_get(json, by_type[0].name) &&
        !json_object_get(json, by_type[1].name))
        return add_block(r, name, json, e);
    snprintf(label, sizeof(label), "%s.", name);

    const struct kv_fields nested = {
        .path = r->top->path, .in = label, .json = json};

    if (kv_fields_check(&nested, by_type, e))
        return -1;
    for (size_t i = 0; i < 2; i++) {
        snprintf(label, sizeof(label), "%s.%s", name, by_type[i].name);
        if (used[i] &&
            add_block(r, label, json_object_get(json, by_type[i].name), e))
            return -1;
    }
    return 0;
}

/* The one theta of all places that have it. */
static int read_theta(struct rope *r, const struct kv_fields *f,
                      struct kv_err *e)
{
    double theta = 0;

    if (!kv_fields_get(f, "rope_theta"))
        return 0;
    if (kv_fields_real(f, "rope_theta", &theta, e))
        return -1;
    if (*r->theta_in && theta != r->theta)
        return kv_fail(e,
                       "%s: field %srope_theta is %g, but %s is %g: they "
                       "contradict each other",
                       f->path, f->in, theta, r->theta_in, r->theta);
    r->theta = theta;
    snprintf(r->theta_in, sizeof(r->theta_in), "%srope_theta", f->in);
    return 0;
}

static int scale_none(const struct rope *r, const struct kv_fields *f,
                      double *inv_freq, size_t n, struct kv_err *e)
{
    (void)r, (void)f, (void)inv_freq, (void)n, (void)e;
    return 0;
}

static int scale_linear(const struct rope *r, const struct kv_fields *f,
                        double *inv_freq, size_t n, struct kv_err *e)
{
    double factor = 0;

    (void)r;
    if (kv_fields_real(f, "factor", &factor, e))
        return -1;
    for (size_t i = 0; i < n; i++)
        inv_freq[i] /= factor;
    return 0;
}

/* original_max_position_embeddings stands in the block, or at the top. */
static int read_old_ctx(const struct rope *r, const struct kv_fields *f,
                        double *old_ctx, struct kv_err *e)
{
    static const char name[] = "original_max_position_embeddings";
    const bool at_top = kv_fields_get(r->top, name);
    double top = 0;

    if (at_top && kv_fields_real(r->top, name, &top, e))
        return -1;
    *old_ctx = top;
    if ((!at_top || kv_fields_get(f, name)) &&
        kv_fields_real(f, name, old_ctx, e))
        return -1;
    if (at_top && *old_ctx != top)
        return kv_fail(e,
                       "%s: field %s%s is %g, but %s is %g: they contradict "
                       "each other",
                       f->path, f->in, name, *old_ctx, name, top);
    return 0;
}

/* Llama 3.1: long wavelengths are divided by the factor, short ones are
 * kept, those between are blended. */
static int scale_llama3(const struct rope *r, const struct kv_fields *f,
                        double *inv_freq, size_t n, struct kv_err *e)
{
    double factor = 0, low = 0, high = 0, old_ctx = 0;

    if (kv_fields_real(f, "factor", &factor, e) ||
        kv_fields_real(f, "low_freq_factor", &low, e) ||
        kv_fields_real(f, "high_freq_factor", &high, e) ||
        read_old_ctx(r, f, &old_ctx, e))
        return -1;
    if (high <= low)
        return kv_fail(e,
                       "%s: field %shigh_freq_factor is not above "
                       "low_freq_factor",
                       f->path, f->in);
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

#define EVERY_TYPE                                                 \
    {"rope_type", NULL}, {"type", NULL}, {"rope_theta", NULL},     \
        {"partial_rotary_factor", "1"}, {"attention_factor", "1"}, \
    {                                                              \
        "original_max_position_embeddings", NULL                   \
    }

static const struct rope_type {
    const char *name;
    struct kv_field known[10];
    int (*scale)(const struct rope *r, const struct kv_fields *f,
                 double *inv_freq, size_t n, struct kv_err *e);
} types[] = {
    {"default", {EVERY_TYPE, {"factor", "1"}}, scale_none},
    {"linear", {EVERY_TYPE, {"factor", NULL}}, scale_linear},
    {"llama3",
     {EVERY_TYPE,
      {"factor", NULL},
      {"low_freq_factor", NULL},
      {"high_freq_factor", NULL}},
     scale_llama3},
};

/* The type's name: rope_type, or type as older files have it. */
static int read_type(const struct kv_fields *f, const struct rope_type **type,
                     struct kv_err *e)
{
    const json_t *now = kv_fields_get(f, "rope_type");
    const json_t *old = kv_fields_get(f, "type");
    const json_t *given = now ? now : old;
    const char *name = given ? json_string_value(given) : types[0].name;

    if (now && old && !json_equal(now, old))
        return kv_fail(e,
                       "%s: fields %srope_type and %stype contradict each "
                       "other",
                       f->path, f->in, f->in);
    for (size_t i = 0; name && i < sizeof(types) / sizeof(*types); i++)
        if (!strcmp(types[i].name, name)) {
            *type = &types[i];
            return 0;
        }
    return kv_fail(e,
                   "%s: field %s%s: RoPE scaling %s is not implemented "
                   "(default, linear and llama3 are)",
                   f->path, f->in, now ? "rope_type" : "type",
                   name ? name : "without a name");
}

/* Frequencies of a block; NULL: of theta alone. */
/* Where the class turns a part of a head's channels: which part. */
static int read_partial(struct rope *r, const struct kv_arch *a,
                        struct kv_err *e)
{
    static const char name[] = "partial_rotary_factor";
    double part = a->partial;

    r->partial = a->partial > 0;
    if (!r->partial)
        return 0;
    if (kv_fields_get(r->top, name) && kv_fields_real(r->top, name, &part, e))
        return -1;
    for (size_t i = 0; i < r->n_blocks; i++)
        if (kv_fields_get(&r->block[i].fields, name) &&
            kv_fields_real(&r->block[i].fields, name, &part, e))
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
    struct kv_field known[N];

    memcpy(known, type->known, sizeof(known));
    for (size_t i = 0; i < N && known[i].name; i++)
        if (r->partial && !strcmp(known[i].name, "partial_rotary_factor"))
            known[i].only = NULL;
    return kv_fields_check(f, known, e);
}

static int compute(const struct rope *r, const struct kv_fields *f,
                   float *inv_freq, struct kv_err *e)
{
    const struct rope_type *type = &types[0];
    const size_t n = r->head_dim / 2;
    double x[KV_MAX_HEAD_DIM / 2];

    for (size_t i = 0; i < n; i++)
        x[i] = pow(r->theta, -2 * (double)i / (double)r->head_dim);
    if (f && (read_type(f, &type, e) || check_block(r, f, type, e) ||
              type->scale(r, f, x, n, e)))
        return -1;
    for (size_t i = 0; i < n; i++) {
        if (!(x[i] >= (double)FLT_MIN &&
              x[i] * (double)r->n_ctx <= (double)FLT_MAX))
            return kv_fail(e,
                           "%s: rope_theta %g and RoPE scaling %s give a "
                           "frequency of %g, with which f32 cannot count to "
                           "position %zu",
                           r->top->path, r->theta, type->name, x[i], r->n_ctx);
        inv_freq[i] = (float)x[i];
    }
    return 0;
}

/* Of the layers that slide, where they have frequencies of their own: scaling
 * is that of rope_parameters, which is by type then. */
static int read_slide(const struct kv_fields *f, const struct kv_arch *a,
                      size_t n_ctx, struct kv_shape *shape, struct kv_err *e)
{
    static const char name[] = "rope_local_base_freq";
    struct rope r = {.top = f,
                     .theta = a->slide_theta,
                     .head_dim = shape->head_dim,
                     .n_ctx = n_ctx};

    if (kv_fields_get(f, name)) {
        if (kv_fields_real(f, name, &r.theta, e))
            return -1;
        snprintf(r.theta_in, sizeof(r.theta_in), "%s", name);
    }
    if (add_blocks(&r, "rope_parameters", false, true, e))
        return -1;
    if (r.n_blocks &&
        strchr(r.block[0].label, '.') == strrchr(r.block[0].label, '.'))
        return kv_fail(e,
                       "%s: field rope_parameters is not by type of layers, "
                       "as a %s has it",
                       f->path, a->name);
    return (r.n_blocks && read_theta(&r, &r.block[0].fields, e)) ||
                   compute(&r, r.n_blocks ? &r.block[0].fields : NULL,
                           shape->slide_freq, e)
               ? -1
               : 0;
}

int kv_config_rope(const struct kv_fields *f, const struct kv_arch *a,
                   bool full, bool slides, size_t n_ctx, struct kv_shape *shape,
                   struct kv_err *e)
{
    const bool apart = a->slide_theta > 0; /* frequencies by type */
    struct rope r = {.top = f,
                     .theta = a->theta,
                     .head_dim = shape->head_dim,
                     .n_ctx = n_ctx};
    size_t n;
    float other[KV_MAX_HEAD_DIM / 2];

    if (!apart && kv_fields_get(f, "rope_local_base_freq"))
        return kv_fail(e,
                       "%s: field rope_local_base_freq is not null, but a %s "
                       "has none",
                       f->path, a->name);
    if (add_blocks(&r, "rope_parameters", full, slides && !apart, e) ||
        add_blocks(&r, "rope_scaling", full, slides && !apart, e) ||
        read_theta(&r, f, e))
        return -1;
    for (size_t i = 0; i < r.n_blocks; i++)
        if (read_theta(&r, &r.block[i].fields, e))
            return -1;
    if (read_partial(&r, a, e))
        return -1;
    n = shape->n_rot = r.head_dim / 2;
    if (compute(&r, r.n_blocks ? &r.block[0].fields : NULL, shape->inv_freq, e))
        return -1;
    for (size_t i = 1; i < r.n_blocks; i++) {
        if (compute(&r, &r.block[i].fields, other, e))
            return -1;
        if (memcmp(other, shape->inv_freq, n * sizeof(*other)) != 0)
            return kv_fail(e, "%s: fields %.*s and %.*s contradict each other",
                           f->path, (int)strlen(r.block[0].label) - 1,
                           r.block[0].label, (int)strlen(r.block[i].label) - 1,
                           r.block[i].label);
    }
    memcpy(shape->slide_freq, shape->inv_freq, sizeof(shape->slide_freq));
    return apart ? read_slide(f, a, n_ctx, shape, e) : 0;
}
