#include "lib/model/config_rope.h"
#include "lib/model/config_rope_types.h"
#include "lib/model/gguf_model.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* A number and the field that it comes from; "": no field. */
struct given {
    double is;
    char in[80];
};

static int add_block(struct kv_rope_reading *r, const char *label,
                     const json_t *json, struct kv_err *e)
{
    struct kv_rope_block *b = &r->block[r->n_blocks];

    if (!json_is_object(json))
        return kv_fail(e, "%s: field %s is not an object", r->top->path, label);
    snprintf(b->label, sizeof(b->label), "%s.", label);
    b->fields =
        (struct kv_fields){.path = r->top->path, .in = b->label, .json = json};
    r->n_blocks++;
    return 0;
}

/* Adds the object of this name, if there is one; if type is not NULL, adds the
 * object inside it for this type of layers. */
static int add_blocks(struct kv_rope_reading *r, const char *name,
                      const char *type, struct kv_err *e)
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

/* Reads a value that several places may give; all places must agree. */
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

/* Reads a field at the top level and in all blocks; otherwise: its default. */
static int read_everywhere(const struct kv_rope_reading *r, const char *name,
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

static int read_channels(struct kv_rope_reading *r, struct kv_err *e)
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

/* Reads how many of a head's channels are rotated, for a class that rotates
 * only some. */
static int read_partial(struct kv_rope_reading *r, struct kv_err *e)
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

/* Fails on fields that this type of scaling does not know; some classes know
 * more. */
static int check_block(const struct kv_rope_reading *r,
                       const struct kv_fields *f,
                       const struct kv_rope_type *type, struct kv_err *e)
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
    static const struct kv_field grows[] = {{"llama_4_scaling_beta", NULL},
                                            {"max_position_embeddings", NULL}};
    struct kv_field known[N + 10] = {0};
    size_t n = 0;

    for (; n < N && type->known[n].name; n++) {
        known[n] = type->known[n];
        if (r->partial && !strcmp(known[n].name, "partial_rotary_factor"))
            known[n].only = NULL;
    }
    if (r->arch->rope.alpha && !strcmp(type->name, "dynamic"))
        memcpy(known + n, with_alpha, sizeof(with_alpha)); /* alpha is read */
    else if (r->arch->rope.mscales)
        memcpy(known + n, mscales, sizeof(mscales));
    else if (r->arch->rope.grows && !strcmp(type->name, "yarn"))
        memcpy(known + n, grows, sizeof(grows));
    for (; known[n].name;)
        n++;
    if (r->top->wrapped)
        memcpy(known + n, of_three, sizeof(of_three));
    return kv_fields_check(f, known, e);
}

/* Computes RoPE from a block f; NULL: from theta alone. */
static int compute(const struct kv_rope_reading *r, const struct kv_fields *f,
                   struct kv_rope_kind *kind, struct kv_err *e)
{
    const struct kv_rope_type *type = &kv_rope_types[0];
    double x[KV_MAX_HEAD_DIM / 2];

    *kind = (struct kv_rope_kind){.scale = 1, .all_scale = 1};
    for (size_t i = 0; i < r->head_dim / 2; i++)
        x[i] = pow(r->theta, -2 * (double)i / (double)r->head_dim);
    if (f && (kv_rope_type(r, f, &type, e) || check_block(r, f, type, e) ||
              type->scale(r, f, x, kind, e)))
        return -1;
    return kv_rope_put(r, x, type->name, kind->inv_freq, e);
}

static const char LOCAL[] = "rope_local_base_freq";

/* Reads RoPE of sliding layers that have their own frequencies.  Its scaling is
 * in rope_parameters, which then has an object for each type of layers. */
static int read_slide(const struct kv_fields *f, struct kv_config *c,
                      struct kv_err *e)
{
    struct kv_rope_reading r = {
        .arch = c->arch,
        .top = f,
        .head_dim = c->shape.slide_dim ? c->shape.slide_dim : c->shape.head_dim,
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

/* Computes RoPE from each block; all blocks must agree. */
static int read_blocks(struct kv_rope_reading *r, struct kv_config *c,
                       struct kv_err *e)
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

static int check_given(const struct kv_rope_reading *r, struct kv_err *e)
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
    const bool apart = c->arch->rope.slide_theta > 0; /* each type of layers has
                                                       * its own frequencies */
    struct kv_rope_reading r = {.arch = c->arch,
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
    c->shape.neighbours =
        c->shape.latent ? c->latent.interleaved : c->arch->rope.interleaved;
    c->shape.ggml_neighbours = kv_gguf_interleaves(c->arch->name);
    c->slide_scale = c->rope.scale;
    kv_config_set_window(c, 0);
    return apart ? read_slide(f, c, e) : 0;
}
