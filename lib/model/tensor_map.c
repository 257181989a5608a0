#include "lib/model/tensor_map.h"
#include "lib/base/alloc.h"
#include "lib/model/tensor_gguf.h"
#include "lib/model/tensor_joined.h"
#include "lib/model/tensor_parts.h"
#include "lib/model/tensor_project.h"
#include "lib/model/tensor_spares.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The tensor, which must be [rows][cols], or [rows] when cols is 0. */
static int bind(const struct kv_weight **out, const struct kv_weights *w,
                const char *name, size_t rows, size_t cols, const char *dir,
                struct kv_err *e)
{
    const size_t shape[3] = {rows, cols};

    return kv_tensor_bind(out, w, name, shape, dir, e);
}

/* The name of a weight, or of the bias beside it. */
static void name_of(char *name, size_t bytes, const char *weight, bool bias)
{
    snprintf(name, bytes, "%.*s%s",
             (int)(strlen(weight) - (bias ? strlen("weight") : 0)), weight,
             bias ? "bias" : "");
}

/* The other arguments of kv_tensor_map(), for its functions. */
struct binding {
    struct kv_model_weights *m;
    const struct kv_config *c;
    const struct kv_weights *w;
    const char *dir;
    const char *prefix;     /* the prefix of all names, or "" */
    size_t layer;           /* the layer being bound */
    struct kv_weight *made; /* the next free tensor */
};

/* Whether each expert of the layer has its own part p. */
static bool is_expert(const struct binding *b, size_t p)
{
    const enum kv_part of = kv_part_of(p);

    return kv_config_has_experts(b->c, b->layer) && of >= KV_P_GATE &&
           of <= KV_P_DOWN;
}

/* The position of a part in a tensor that holds several. */
struct place {
    size_t first, rows, all; /* all: of the tensor */
};

static struct place place_of(const struct binding *b, size_t p, bool qkv)
{
    const struct kv_config *c = b->c;
    const char *const *name = c->arch->names->part;
    const size_t rows = kv_part_rows(c, b->layer, p);
    struct place at = {.rows = rows};

    if (kv_part_of(p) >
        KV_P_DOWN) /* a norm: one tensor, perhaps with several uses */
        return (struct place){.rows = rows, .all = rows};
    for (size_t i = 0; i < KV_P_ATTN_NORM; i++) {
        const bool bias = kv_part_of(i) != i;

        if (!kv_part_is(c, b->layer, i) || is_expert(b, i) ||
            bias != (kv_part_of(p) != p) ||
            (qkv ? kv_part_of(i) > KV_P_V
                 : strcmp(name[kv_part_of(i)], name[kv_part_of(p)]) != 0))
            continue;
        at.first += i < p ? kv_part_rows(c, b->layer, i) : 0;
        at.all += kv_part_rows(c, b->layer, i);
    }
    return at;
}

/* *out: some rows of a tensor, as a tensor of their own. */
static int cut(struct binding *b, const struct kv_weight *t, size_t p,
               struct place at, const struct kv_weight **out, struct kv_err *e)
{
    const size_t cols = kv_part_cols(b->c, b->layer, p);
    const size_t row = cols ? cols : 1;
    const size_t d = b->c->shape.head_dim;
    const bool by_head =
        b->c->arch->qkv_by_head && at.all > at.rows && !b->w->gguf.n_parts;
    const bool turned = cols && b->c->arch->transposed && !b->w->gguf.n_parts;
    const size_t group = b->c->shape.n_heads / b->c->shape.n_kv_heads;
    const bool is_q = kv_part_of(p) == KV_P_Q, is_v = kv_part_of(p) == KV_P_V;
    const bool is_gate = p == KV_P_OUT_GATE;
    const bool gated = (is_q || is_gate) && b->c->arch->out_gate;
    const size_t first = gated      ? (is_gate ? d : 0)
                         : !by_head ? at.first
                         : is_q     ? 0
                                    : (is_v ? group + 1 : group) * d;
    struct kv_weight *mine = b->made++;

    if (t->packed)
        return kv_fail(e,
                       "%s: tensor %s is of several parts, of which none "
                       "may be quantized so",
                       t->path, t->name);
    if (turned && kv_stored_values(t->type) > 1)
        return kv_fail(e,
                       "%s: tensor %s of type %s is transposed, which is "
                       "not implemented",
                       t->path, t->name, t->dtype);
    *mine = *t;
    mine->n_dims = cols ? 2 : 1;
    mine->dims[0] = at.rows;
    mine->dims[1] = cols;
    mine->n = at.rows * row;
    if (by_head) {
        mine->run = is_q ? group * d : d;
        mine->step = (group + 2) * d;
    }
    if (gated) {
        mine->run = d;
        mine->step = 2 * d;
    }
    if (turned)
        mine->turned = at.all;
    if (is_v)
        mine->head = 0; /* only for q and k */

    const size_t skip = first * (turned ? 1 : row) / kv_stored_values(t->type) *
                        kv_stored_bytes(t->type);

    mine->data += skip;
    mine->bytes = by_head || gated || turned ? t->bytes - skip
                                             : t->bytes / at.all * at.rows;
    *out = mine;
    return 0;
}

static void name_part(const struct binding *b, const char *weight, bool bias,
                      char *name, size_t bytes)
{
    char part[80];

    name_of(part, sizeof(part), weight, bias);
    snprintf(name, bytes, "%s%s%zu.%s", b->prefix, b->c->arch->names->layers,
             b->layer, part);
}

/* The name of a part's weight, after the layer's. */
static void name_weight(const struct binding *b, size_t p, char *name,
                        size_t bytes)
{
    const struct kv_arch *a = b->c->arch;
    const bool shares =
        kv_part_of(p) == KV_P_MLP_NORM && a->one_norm && b->c->parallel;
    const bool keys = kv_part_of(p) == KV_P_V && b->c->values_are_keys &&
                      !kv_shape_slides(&b->c->shape, b->layer);
    const bool dense =
        a->experts && kv_part_of(p) >= KV_P_GATE && kv_part_of(p) <= KV_P_DOWN;

    snprintf(name, bytes, "%s%s", dense ? a->names->dense : "",
             a->names->part[shares ? KV_P_ATTN_NORM
                            : keys ? KV_P_K
                                   : kv_part_of(p)]);
}

/* Whether the part is in a GGUF file's one tensor of q, k and v. */
static bool has_qkv(const struct binding *b, size_t p)
{
    char name[160];

    name_part(b, KV_GGUF_QKV, false, name, sizeof(name));
    return kv_part_of(p) <= KV_P_V && b->w->gguf.n_parts &&
           kv_weights_find(b->w, name);
}

/* Whether the bias may be absent: in a GGUF file, if the config decides about
 * biases. */
static bool may_be_absent(const struct binding *b, size_t p)
{
    const struct kv_arch *a = b->c->arch;

    return b->w->gguf.n_parts && !b->c->biases && !a->qkv_bias &&
           p >= KV_P_Q_BIAS && p <= KV_P_DOWN_BIAS;
}

/* Makes a vector of n values, for a tensor that the file lacks. */
static const struct kv_weight *fill(struct binding *b, const char *name,
                                    const float *values, size_t n)
{
    struct kv_weight *mine = b->made++;

    *mine = (struct kv_weight){.name = name,
                               .path = b->dir,
                               .dtype = "F32",
                               .type = KV_STORED_F32,
                               .n_dims = 1,
                               .dims = {n},
                               .n = n,
                               .data = (const uint8_t *)values,
                               .bytes = n * sizeof(float)};
    return mine;
}

/* Binds one tensor for each head; all their names begin with `begin`. */
static int bind_heads(struct binding *b, size_t p, const char *begin,
                      const struct kv_weight **out, struct kv_err *e)
{
    const size_t d = b->c->shape.head_dim;
    const struct place at = {.rows = d, .all = d};
    const size_t n = kv_part_rows(b->c, b->layer, p) / d;
    const struct kv_weight *t, *one;
    struct kv_weight *before = NULL;
    char name[160];

    for (size_t i = 0; i < n; i++) {
        snprintf(name, sizeof(name), "%s%zu.weight", begin, i);
        if (bind(&t, b->w, name, d, 0, b->dir, e) || cut(b, t, p, at, &one, e))
            return -1;
        if (before)
            before->next = one;
        else
            *out = one;
        before = b->made - 1;
    }
    return 0;
}

/* Binds the layer's rows of a tensor that holds all layers, or the tensor that
 * all layers share. */
static int bind_of_all(struct binding *b, size_t p,
                       const struct kv_weight **out, struct kv_err *e)
{
    const struct kv_tensor_names *names = b->c->arch->names;
    const bool rows = p == KV_P_LAYER_IN;
    const size_t n = kv_part_rows(b->c, b->layer, p);
    const struct place at = {b->layer * n, n,
                             rows ? kv_config_layers_of(b->c) * n : n};
    const struct kv_weight *t;
    char name[160];

    snprintf(name, sizeof(name), "%s%s", b->prefix,
             rows ? names->layer_in : names->layer_in_norm);
    if (bind(&t, b->w, name, at.all, kv_part_cols(b->c, b->layer, p), b->dir,
             e))
        return -1;
    *out = t;
    return rows ? cut(b, t, p, at, out, e) : 0;
}

static int bind_part(struct binding *b, size_t p, const struct kv_weight **out,
                     struct kv_err *e)
{
    const struct kv_config *c = b->c;
    const size_t cols = kv_part_cols(c, b->layer, p);
    const size_t d = c->shape.head_dim;
    const bool turned = cols && c->arch->transposed && !b->w->gguf.n_parts;
    const bool qkv = has_qkv(b, p), bias = kv_part_of(p) != p;
    const bool own =
        c->qk_norm == KV_QK_HEADS && (p == KV_P_Q_NORM || p == KV_P_K_NORM);
    const struct place at = place_of(b, p, qkv);
    const struct kv_weight *t;
    char weight[80], name[160];
    bool row;
    int rc;

    if (p == KV_P_LAYER_IN || p == KV_P_LAYER_IN_NORM)
        return bind_of_all(b, p, out, e);
    if (c->norm_plain && (p == KV_P_ATTN_NORM || p == KV_P_MLP_NORM)) {
        *out = fill(b, "ones", b->m->ones, at.rows);
        return 0;
    }
    name_weight(b, p, weight, sizeof(weight));
    name_part(b, qkv ? KV_GGUF_QKV : weight, bias, name, sizeof(name));
    if (name[strlen(name) - 1] == '.')
        return bind_heads(b, p, name, out, e);
    if (may_be_absent(b, p) && !kv_weights_find(b->w, name)) {
        *out = fill(b, "zeros", b->m->zeros, at.rows);
        return 0;
    }
    t = kv_weights_find(b->w, name);
    row = t && t->n_dims == 2 && p == KV_P_CHOICE_BIAS; /* ERNIE's shape */
    if (row)
        rc = bind(&t, b->w, name, 1, at.rows, b->dir, e);
    else if (p == KV_P_MIX_CONV)
        rc = kv_tensor_bind(
            &t, b->w, name,
            b->w->gguf.n_parts
                ? (const size_t[3]){c->mixer.conv, c->mixer.kernel}
                : (const size_t[3]){c->mixer.conv, 1, c->mixer.kernel},
            b->dir, e);
    else if (own)
        rc = bind(&t, b->w, name, at.rows / d, d, b->dir, e);
    else
        rc = bind(&t, b->w, name, turned ? cols : at.all,
                  turned ? at.all : cols, b->dir, e);
    if (rc)
        return -1;
    if (turned || own || row || at.rows < at.all)
        return cut(b, t, p, at, out, e);
    *out = t;
    return 0;
}

/* Binds a part of all experts: from one tensor, as in most GGUF files, or from
 * one for each expert. */
static int bind_experts(struct binding *b, size_t p,
                        const struct kv_weight **out, struct kv_err *e)
{
    const struct kv_tensor_names *names = b->c->arch->names;
    const char *stacked = names->stacked[kv_part_of(p) == KV_P_DOWN];
    const size_t layer = b->layer, n = b->c->n_experts;
    const bool bias = kv_part_of(p) != p;
    const size_t rows = kv_part_rows(b->c, layer, p);
    const size_t cols = kv_part_cols(b->c, layer, p);
    const size_t shape[3] = {n, rows, cols};
    const struct kv_weight *t;
    char part[80], name[160];

    if (stacked) {
        snprintf(name, sizeof(name), "%s%s%zu.%s", b->prefix, names->layers,
                 layer, stacked);
        if (!names->experts || kv_weights_find(b->w, name))
            return kv_tensor_stacked(
                &(struct kv_joined){b->w, b->c, b->dir, name, &b->made}, p, out,
                e);
    }
    name_of(part, sizeof(part), names->part[kv_part_of(p)], bias);
    snprintf(name, sizeof(name), "%s%s%zu.%s%s", b->prefix, names->layers,
             layer, names->experts, part);
    if (b->w->gguf.n_parts && (bias || kv_weights_find(b->w, name)))
        return kv_tensor_bind(out, b->w, name, shape, b->dir, e);
    *out = b->made;
    for (size_t i = 0; i < n; i++) {
        snprintf(name, sizeof(name), "%s%s%zu.%s%zu.%s", b->prefix,
                 names->layers, layer, names->experts, i, names->part[p]);
        if (bind(&t, b->w, name, rows, cols, b->dir, e))
            return -1;
        *b->made = *t;
        b->made->next = i + 1 < n ? b->made + 1 : NULL;
        b->made++;
    }
    return 0;
}

/* Binds a part of all experts in a folder that holds them in two tensors. */
static int bind_joined(struct binding *b, size_t p,
                       const struct kv_weight **out, struct kv_err *e)
{
    const struct kv_tensor_names *names = b->c->arch->names;
    const bool down = kv_part_of(p) == KV_P_DOWN;
    const struct kv_weight *t;
    char before[120], name[160];

    snprintf(before, sizeof(before), "%s%s%zu.%s", b->prefix, names->layers,
             b->layer, names->experts);
    snprintf(name, sizeof(name), "%s%s", before,
             down ? names->down : names->gate_up);
    t = kv_weights_find(b->w, name);
    if (names->stacked[0] && t && t->n_dims == 3 &&
        t->dims[1] == kv_part_rows(b->c, b->layer, p) * (down ? 1 : 2) &&
        t->dims[2] == kv_part_cols(b->c, b->layer, p))
        return bind_experts(b, p, out, e);
    return kv_tensor_joined(
        &(struct kv_joined){b->w, b->c, b->dir, before, &b->made}, p, out, e);
}

static int bind_one(struct binding *b, size_t p, const struct kv_weight **out,
                    struct kv_err *e)
{
    const bool gguf = b->w->gguf.n_parts;

    if (gguf &&
        kv_tensor_gguf(&(struct kv_gguf_layer){b->w, b->c, b->dir, b->prefix,
                                               b->layer, &b->made},
                       p, out, e))
        return -1;
    if (*out)
        return 0;
    return !is_expert(b, p)                      ? bind_part(b, p, out, e)
           : b->c->arch->names->gate_up && !gguf ? bind_joined(b, p, out, e)
                                                 : bind_experts(b, p, out, e);
}

static int bind_layer(struct binding *b, struct kv_err *e)
{
    struct kv_layer_weights *l = &b->m->layer[b->layer];

    for (size_t p = 0; p < KV_PARTS; p++)
        if (kv_part_is(b->c, b->layer, p) && bind_one(b, p, &l->part[p], e))
            return -1;
    return 0;
}

/* A head beside tied embeddings must be a copy of them. */
static int check_tied(const struct kv_weight *embed, const struct kv_weights *w,
                      const char *name, struct kv_err *e)
{
    const struct kv_weight *head = kv_weights_find(w, name);

    if (!head)
        return 0;
    if (head->type != embed->type || head->bytes != embed->bytes ||
        memcmp(head->data, embed->data, embed->bytes) != 0)
        return kv_fail(e,
                       "%s: tensor %s differs from %s, but "
                       "tie_word_embeddings is true: which is meant is not "
                       "known",
                       head->path, head->name, embed->name);
    kv_weight_release(head);
    kv_weight_release(embed);
    return 0;
}

/* A tensor outside of layers, if the model has it (name NULL: it does not), and
 * its bias. */
static int bind_top(const struct binding *b, const char *weight, size_t rows,
                    size_t cols, const struct kv_weight **out,
                    const struct kv_weight **bias, struct kv_err *e)
{
    char part[80], name[160];

    for (size_t i = 0; weight && i < (bias ? 2 : 1); i++) {
        name_of(part, sizeof(part), weight, i);
        snprintf(name, sizeof(name), "%s%s", b->prefix, part);
        if (bind(i ? bias : out, b->w, name, rows, cols, b->dir, e))
            return -1;
    }
    return 0;
}

static size_t n_embed(const struct kv_config *c)
{
    return c->n_embed ? c->n_embed : c->hidden;
}

/* Binds the head, which is the embedding when tied, and its bias. */
static int bind_head(const struct binding *b, struct kv_err *e)
{
    const struct kv_config *c = b->c;
    const char *name = c->arch->names->head;
    struct kv_model_weights *m = b->m;
    static const char part[] = "language_model.lm_head.weight";
    bool tied = c->tied;
    char bias[80];

    if (c->wrapped && kv_weights_find(b->w, part))
        name = part;
    if (c->tied_unless)
        tied = !kv_weights_find(b->w, name);
    m->head = m->embed;
    name_of(bias, sizeof(bias), name, true);
    if (tied ? check_tied(m->embed, b->w, name, e)
             : bind(&m->head, b->w, name, c->n_vocab, n_embed(c), b->dir, e))
        return -1;
    return c->head_bias
               ? bind(&m->head_bias, b->w, bias, c->n_vocab, 0, b->dir, e)
               : 0;
}

static int bind_all(struct binding *b, struct kv_err *e)
{
    const struct kv_config *c = b->c;
    const struct kv_tensor_names *names = c->arch->names;
    struct kv_model_weights *m = b->m;
    const bool bias = c->arch->norm_bias && !c->norm_plain;

    if (bind_top(b, names->embed, c->n_vocab, n_embed(c), &m->embed, NULL, e) ||
        bind_top(b, names->positions, c->n_places + c->arch->skip_positions,
                 c->hidden, &m->positions, NULL, e) ||
        bind_top(b, names->embed_norm, c->hidden, 0, &m->embed_norm,
                 bias ? &m->embed_norm_bias : NULL, e) ||
        (!c->norm_plain && !c->no_last_norm &&
         bind_top(b, names->norm, c->hidden, 0, &m->norm,
                  bias ? &m->norm_bias : NULL, e)) ||
        bind_head(b, e) ||
        kv_tensor_streams(m, c, b->w, b->prefix, b->dir, &b->made, e) ||
        (c->layer_embed && bind_top(b, names->layer_embed, c->layer_vocab,
                                    kv_config_layers_of(c) * c->layer_embed,
                                    &m->layer_embed, NULL, e)) ||
        (c->n_embed && (bind_top(b, names->project_in, c->hidden, c->n_embed,
                                 &m->project_in, NULL, e) ||
                        bind_top(b, names->project_out, c->n_embed, c->hidden,
                                 &m->project_out, NULL, e))))
        return -1;
    if (c->n_embed) {
        kv_tensor_project(m, c, b->made);
        b->made += 2;
    }
    if (c->norm_plain && !c->no_last_norm)
        m->norm = fill(b, "ones", m->ones, c->hidden);
    for (; b->layer < kv_config_layers_of(c); b->layer++)
        if (bind_layer(b, e))
            return -1;
    return kv_tensor_spares(m, c, b->w, e);
}

int kv_tensor_map(struct kv_model_weights *m, const struct kv_config *c,
                  const struct kv_weights *w, const char *dir, struct kv_err *e)
{
    const size_t n_layers = kv_config_layers_of(c), d = c->shape.head_dim;
    const size_t n_ones = d > c->hidden ? d : c->hidden;
    struct binding b = {.m = m, .c = c, .w = w, .dir = dir};

    *m = (struct kv_model_weights){
        .norm_add = c->arch->gemma || c->arch->norm_plus_one ? 1 : 0,
        .rates = w->gguf.n_parts,
        .tiled = w->gguf.n_parts && !c->arch->mix_by_head};
    b.prefix = kv_tensor_prefix(w, c->arch->names, c->wrapped);
    m->layer = kv_alloc(n_layers, sizeof(*m->layer));
    m->zeros =
        kv_alloc(kv_part_rows(c, 0, KV_P_Q) + c->hidden + kv_config_widest(c),
                 sizeof(*m->zeros));
    m->ones = kv_alloc(n_ones, sizeof(*m->ones));
    for (size_t i = 0; i < n_ones; i++)
        m->ones[i] = 1;
    /* At most one tensor for each part, and more for experts, for latent
     * attention's heads and for streams. */
    m->made = b.made =
        kv_alloc(3 + 2 * KV_MAX_STREAMS + w->n_weights +
                     n_layers * (KV_PARTS + 3 * c->n_experts +
                                 (c->shape.latent ? 2 * c->shape.n_heads : 0)),
                 sizeof(*m->made));
    if (!bind_all(&b, e))
        return 0;
    kv_tensor_unmap(m);
    return -1;
}

void kv_tensor_unmap(struct kv_model_weights *m)
{
    free(m->layer);
    free(m->made);
    free(m->pooled);
    free(m->zeros);
    free(m->ones);
    free(m->projected);
    *m = (struct kv_model_weights){0};
}
