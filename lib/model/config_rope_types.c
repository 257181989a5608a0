#include "lib/model/config_rope_types.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

static int scale_none(const struct kv_rope_reading *r,
                      const struct kv_fields *f, double *inv_freq,
                      struct kv_rope_kind *kind, struct kv_err *e)
{
    (void)r, (void)f, (void)inv_freq, (void)kind, (void)e;
    return 0;
}

static int scale_linear(const struct kv_rope_reading *r,
                        const struct kv_fields *f, double *inv_freq,
                        struct kv_rope_kind *kind, struct kv_err *e)
{
    double factor = 0;

    (void)kind;
    if (kv_fields_real(f, "factor", &factor, e))
        return -1;
    for (size_t i = 0; i < r->head_dim / 2; i++)
        inv_freq[i] /= factor;
    return 0;
}

/* Reads original_max_position_embeddings from the block or from the top level,
 * whichever the class uses; the other place may repeat it.  The default in a
 * block is max_position_embeddings. */
static int read_old_ctx(const struct kv_rope_reading *r,
                        const struct kv_fields *f, bool may_be_absent,
                        double *old_ctx, struct kv_err *e)
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

/* Llama 3.1: frequencies of long wavelengths are divided by the factor, those
 * of short wavelengths are kept, those between are blended. */
static int scale_llama3(const struct kv_rope_reading *r,
                        const struct kv_fields *f, double *inv_freq,
                        struct kv_rope_kind *kind, struct kv_err *e)
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

int kv_rope_put(const struct kv_rope_reading *r, const double *x,
                const char *type, float *inv_freq, struct kv_err *e)
{
    for (size_t i = 0; i < r->head_dim / 2; i++) {
        /* 0: a channel that proportional RoPE leaves alone */
        if (x[i] != 0 && !(x[i] >= (double)FLT_MIN &&
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

/* The rotated channels have the first frequencies of the whole head, not the
 * frequencies of a smaller head; the other channels stay. */
static int scale_proportional(const struct kv_rope_reading *r,
                              const struct kv_fields *f, double *inv_freq,
                              struct kv_rope_kind *kind, struct kv_err *e)
{
    const size_t half = r->head_dim / 2;
    double part = 1, factor = 1;

    (void)kind;
    if (read_real_if(f, "partial_rotary_factor", &part, e) ||
        read_real_if(f, "factor", &factor, e))
        return -1;
    if (part > 1)
        return kv_fail(e, "%s: field %spartial_rotary_factor is %g, above 1",
                       f->path, f->in, part);
    for (size_t i = 0; i < half; i++)
        inv_freq[i] = i < (size_t)(part * (double)r->head_dim) / 2
                          ? inv_freq[i] / factor
                          : 0;
    return 0;
}

/* Windows longer than n_ctx have a larger theta; with alpha, all windows
 * have. */
static int scale_dynamic(const struct kv_rope_reading *r,
                         const struct kv_fields *f, double *inv_freq,
                         struct kv_rope_kind *kind, struct kv_err *e)
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

/* Reads YaRN's scale of q and k, which follows from the factor unless it is
 * given. */
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

/* The pair that makes this many turns in old_ctx tokens. */
static double yarn_pair(const struct kv_rope_reading *r, double old_ctx,
                        double turns)
{
    return (double)r->head_dim * log(old_ctx / (turns * 2 * M_PI)) /
           (2 * log(r->theta));
}

/* Limits windows to old_ctx tokens if queries have a growing factor from there
 * on, which is not implemented. */
static int read_growth(const struct kv_rope_reading *r,
                       const struct kv_fields *f, double old_ctx,
                       struct kv_rope_kind *kind, struct kv_err *e)
{
    static const char name[] = "llama_4_scaling_beta";
    const json_t *beta = kv_fields_get(f, name);

    if (!r->arch->rope.grows ||
        (json_is_number(beta) && json_number_value(beta) == 0))
        return 0;
    if (!json_is_number(beta) || json_number_value(beta) < 0)
        return kv_fail(e, "%s: field %s%s is not a number from 0 on", f->path,
                       f->in, name);
    kind->limit = (size_t)old_ctx;
    return 0;
}

/* Pairs that make `fast` or more turns in old_ctx tokens keep their frequency,
 * pairs that make `slow` or fewer have it divided by the factor; a linear ramp
 * lies between. */
static int scale_yarn(const struct kv_rope_reading *r,
                      const struct kv_fields *f, double *inv_freq,
                      struct kv_rope_kind *kind, struct kv_err *e)
{
    double factor = 0, fast = 32, slow = 1, old_ctx = 0, low, high;
    bool truncate = true;

    if (kv_fields_real(f, "factor", &factor, e) ||
        read_real_if(f, "beta_fast", &fast, e) ||
        read_real_if(f, "beta_slow", &slow, e) ||
        kv_fields_flag_if(f, "truncate", &truncate, e) ||
        read_old_ctx(r, f, true, &old_ctx, e) ||
        read_growth(r, f, old_ctx, kind, e) ||
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

/* A positive number for each pair, which divides the pair's frequency. */
static int divide(const struct kv_rope_reading *r, const struct kv_fields *f,
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

/* Reads Phi-MoE's scale, which must be equal for short and long texts. */
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

/* Phi 3: windows of up to old_ctx tokens use one list, longer windows use
 * another. */
static int scale_longrope(const struct kv_rope_reading *r,
                          const struct kv_fields *f, double *inv_freq,
                          struct kv_rope_kind *kind, struct kv_err *e)
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
    if (r->arch->rope.unstretched && old_ctx != (double)r->n_ctx)
        return kv_fail(e,
                       "%s: RoPE scaling longrope of a %s: "
                       "original_max_position_embeddings is %g; only %zu, its "
                       "max_position_embeddings, is implemented",
                       f->path, r->arch->name, old_ctx, r->n_ctx);
    kind->scale = (float)scale;
    kind->near = r->arch->rope.mscales ? 0 : (size_t)old_ctx;
    return kv_rope_put(r, far, "longrope", kind->far_freq, e);
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

const struct kv_rope_type kv_rope_types[] = {
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
      {"attn_factor", NULL}, /* the name in the first YaRN models */
      {"extrapolation_factor", NULL}},
     scale_yarn},
    {"longrope",
     {EVERY_TYPE,
      {"factor", NULL},
      {"attention_factor", NULL},
      {"short_factor", NULL},
      {"long_factor", NULL}},
     scale_longrope},
    {"proportional", /* only Gemma 4 */
     {{"rope_type", NULL},
      {"rope_theta", NULL},
      {"partial_rotary_factor", NULL},
      {"factor", NULL}},
     scale_proportional},
};

enum { TYPES = sizeof(kv_rope_types) / sizeof(*kv_rope_types) };

int kv_rope_type(const struct kv_rope_reading *r, const struct kv_fields *f,
                 const struct kv_rope_type **type, struct kv_err *e)
{
    const json_t *now = kv_fields_get(f, "rope_type");
    const json_t *old = kv_fields_get(f, "type");
    const json_t *given = now ? now : old;
    const char *name = given ? json_string_value(given) : kv_rope_types[0].name;
    const bool by_top = r->arch->rope.old_ctx;
    const bool only_long =
        by_top || r->arch->rope.mscales || r->arch->rope.unstretched;
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
        name = kv_rope_types[0]
                   .name; /* for text, whose three positions are equal */
    if (name && (!strcmp(name, "su") || /* longrope's first name */
                 (by_top && !strcmp(name, "yarn"))))
        name = "longrope";
    for (size_t i = 0; i < TYPES; i++) {
        const size_t n = strlen(known);

        *type = &kv_rope_types[i];
        if (only_long && i && strcmp(kv_rope_types[i].name, "longrope") != 0)
            continue;
        if ((!r->arch->by_kind || r->arch->altup) &&
            !strcmp(kv_rope_types[i].name, "proportional"))
            continue;
        if (name && !strcmp(kv_rope_types[i].name, name))
            return 0;
        snprintf(known + n, sizeof(known) - n, "%s%s", i ? ", " : "",
                 kv_rope_types[i].name);
    }
    return kv_fail(e,
                   "%s: field %s%s: RoPE scaling %s is not implemented (known: "
                   "%s)",
                   f->path, f->in, now ? "rope_type" : "type",
                   name ? name : "without a name", known);
}
