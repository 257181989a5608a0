#include "lib/model/tensor_map.h"
#include "lib/base/alloc.h"
#include "lib/base/rng.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Sizes of a part, named; NONE as columns: the part is a vector. */
enum dim { NONE, HIDDEN, INTER, Q_DIM, KV_DIM, HEAD_DIM };

/* When a layer has a part. */
enum when { ALWAYS, QKV_BIAS, O_BIAS, MLP_BIAS, QK_NORM, SANDWICH };

static const struct {
    const char *name; /* after "model.layers.N." */
    enum dim rows, cols;
    enum when when;
} parts[KV_PARTS] = {
    [KV_P_Q] = {"self_attn.q_proj.weight", Q_DIM, HIDDEN, ALWAYS},
    [KV_P_K] = {"self_attn.k_proj.weight", KV_DIM, HIDDEN, ALWAYS},
    [KV_P_V] = {"self_attn.v_proj.weight", KV_DIM, HIDDEN, ALWAYS},
    [KV_P_O] = {"self_attn.o_proj.weight", HIDDEN, Q_DIM, ALWAYS},
    [KV_P_GATE] = {"mlp.gate_proj.weight", INTER, HIDDEN, ALWAYS},
    [KV_P_UP] = {"mlp.up_proj.weight", INTER, HIDDEN, ALWAYS},
    [KV_P_DOWN] = {"mlp.down_proj.weight", HIDDEN, INTER, ALWAYS},
    [KV_P_Q_BIAS] = {"self_attn.q_proj.bias", Q_DIM, NONE, QKV_BIAS},
    [KV_P_K_BIAS] = {"self_attn.k_proj.bias", KV_DIM, NONE, QKV_BIAS},
    [KV_P_V_BIAS] = {"self_attn.v_proj.bias", KV_DIM, NONE, QKV_BIAS},
    [KV_P_O_BIAS] = {"self_attn.o_proj.bias", HIDDEN, NONE, O_BIAS},
    [KV_P_GATE_BIAS] = {"mlp.gate_proj.bias", INTER, NONE, MLP_BIAS},
    [KV_P_UP_BIAS] = {"mlp.up_proj.bias", INTER, NONE, MLP_BIAS},
    [KV_P_DOWN_BIAS] = {"mlp.down_proj.bias", HIDDEN, NONE, MLP_BIAS},
    [KV_P_ATTN_NORM] = {"input_layernorm.weight", HIDDEN, NONE, ALWAYS},
    [KV_P_MLP_NORM] = {"post_attention_layernorm.weight", HIDDEN, NONE, ALWAYS},
    [KV_P_Q_NORM] = {"self_attn.q_norm.weight", HEAD_DIM, NONE, QK_NORM},
    [KV_P_K_NORM] = {"self_attn.k_norm.weight", HEAD_DIM, NONE, QK_NORM},
    [KV_P_ATTN_OUT_NORM] = {"post_attention_layernorm.weight", HIDDEN, NONE,
                            SANDWICH},
    [KV_P_MLP_OUT_NORM] = {"post_feedforward_layernorm.weight", HIDDEN, NONE,
                           SANDWICH},
};

static size_t size_of(enum dim d, const struct kv_config *c)
{
    const struct kv_shape *s = &c->shape;

    switch (d) {
    case HIDDEN:
        return c->hidden;
    case INTER:
        return c->inter;
    case Q_DIM:
        return s->n_heads * s->head_dim;
    case KV_DIM:
        return s->n_kv_heads * s->head_dim;
    case HEAD_DIM:
        return s->head_dim;
    case NONE:
        break;
    }
    return 0;
}

static bool has(const struct kv_config *c, enum when when)
{
    switch (when) {
    case QKV_BIAS:
        return c->qkv_bias;
    case O_BIAS:
        return c->o_bias;
    case MLP_BIAS:
        return c->mlp_bias;
    case QK_NORM:
        return c->arch->qk_norm;
    case SANDWICH:
        return c->arch->sandwich;
    case ALWAYS:
        break;
    }
    return true;
}

/* The tensor, which must be [rows][cols], or [rows] when cols is 0. */
static int bind(const struct kv_weight **out, const struct kv_weights *w,
                const char *name, size_t rows, size_t cols, const char *dir,
                struct kv_err *e)
{
    const struct kv_weight *t = kv_weights_find(w, name);
    const size_t n_dims = cols ? 2 : 1;

    if (!t)
        return kv_fail(e, "%s: tensor %s is missing", dir, name);
    if (t->type == KV_STORED_OTHER)
        return kv_fail(e, "%s: tensor %s has type %s, which is not implemented",
                       t->path, name, t->dtype);
    if (t->n_dims != n_dims || t->dims[0] != rows ||
        (n_dims == 2 && t->dims[1] != cols)) {
        char is[128] = "", should[64];

        for (size_t i = 0; i < t->n_dims; i++)
            snprintf(is + strlen(is), sizeof(is) - strlen(is), "%s%zu",
                     i ? ", " : "", t->dims[i]);
        snprintf(should, sizeof(should), n_dims == 2 ? "%zu, %zu" : "%zu", rows,
                 cols);
        return kv_fail(e, "%s: tensor %s has shape [%s]; config.json says [%s]",
                       t->path, name, is, should);
    }
    if (kv_interrupted(e) || kv_weight_check(t, e))
        return -1;
    kv_weight_release(t);
    *out = t;
    return 0;
}

/* The MLP's norm has another name where the usual one is of attention's end. */
static const char *part_name(const struct kv_config *c, size_t p)
{
    return p == KV_P_MLP_NORM && c->arch->sandwich
               ? "pre_feedforward_layernorm.weight"
               : parts[p].name;
}

static int bind_layer(struct kv_layer_weights *l, size_t layer,
                      const struct kv_config *c, const struct kv_weights *w,
                      const char *dir, struct kv_err *e)
{
    char name[96];

    for (size_t p = 0; p < KV_PARTS; p++) {
        if (!has(c, parts[p].when))
            continue;
        snprintf(name, sizeof(name), "model.layers.%zu.%s", layer,
                 part_name(c, p));
        if (bind(&l->part[p], w, name, size_of(parts[p].rows, c),
                 size_of(parts[p].cols, c), dir, e))
            return -1;
    }
    return 0;
}

/* A head beside tied embeddings must be a copy of them. */
static int check_tied(const struct kv_weight *embed, const struct kv_weights *w,
                      struct kv_err *e)
{
    const struct kv_weight *head = kv_weights_find(w, "lm_head.weight");

    if (!head)
        return 0;
    if (head->type != embed->type || head->bytes != embed->bytes ||
        memcmp(head->data, embed->data, embed->bytes) != 0)
        return kv_fail(e,
                       "%s: tensor %s differs from %s, but config.json has "
                       "tie_word_embeddings true: which is meant is not known",
                       head->path, head->name, embed->name);
    kv_weight_release(head);
    kv_weight_release(embed);
    return 0;
}

/* Tensors that are stored and rightly not used. */
static bool is_spare(const char *name, const struct kv_config *c)
{
    static const char freq[] = ".rotary_emb.inv_freq";
    const size_t n = strlen(name), n_freq = sizeof(freq) - 1;

    if (c->tied && !strcmp(name, "lm_head.weight"))
        return true;
    return n > n_freq && !strcmp(name + n - n_freq, freq);
}

/* A bias of zeros, which some quantizers add, changes nothing. */
static bool is_zero_bias(const struct kv_weight *t)
{
    const size_t n = strlen(t->name);

    return n > 5 && !strcmp(t->name + n - 5, ".bias") && t->bytes &&
           !t->data[0] && !memcmp(t->data, t->data + 1, t->bytes - 1);
}

static bool is_bound(const struct kv_model_weights *m, size_t n_layers,
                     const struct kv_weight *t)
{
    if (t == m->embed || t == m->norm || t == m->head)
        return true;
    for (size_t l = 0; l < n_layers; l++)
        for (size_t p = 0; p < KV_PARTS; p++)
            if (m->layer[l].part[p] == t)
                return true;
    return false;
}

static int check_spares(const struct kv_model_weights *m,
                        const struct kv_config *c, const struct kv_weights *w,
                        struct kv_err *e)
{
    for (size_t i = 0; i < w->n_weights; i++) {
        const struct kv_weight *t = w->weight[i];

        if (!is_bound(m, c->shape.n_layers, t) && !is_spare(t->name, c) &&
            !kv_weights_is_part(w, t) && !(w->unpacked && is_zero_bias(t)))
            return kv_fail(e,
                           "%s: tensor %s has no place in a %s of this "
                           "config.json",
                           t->path, t->name, c->arch->name);
    }
    return 0;
}

int kv_tensor_map(struct kv_model_weights *m, const struct kv_config *c,
                  const struct kv_weights *w, const char *dir, struct kv_err *e)
{
    const size_t n_layers = c->shape.n_layers;

    *m = (struct kv_model_weights){.norm_add = c->arch->gemma ? 1 : 0};
    m->layer = kv_alloc(n_layers, sizeof(*m->layer));
    if (bind(&m->embed, w, "model.embed_tokens.weight", c->n_vocab, c->hidden,
             dir, e) ||
        bind(&m->norm, w, "model.norm.weight", c->hidden, 0, dir, e))
        goto fail;
    m->head = m->embed;
    if (c->tied ? check_tied(m->embed, w, e)
                : bind(&m->head, w, "lm_head.weight", c->n_vocab, c->hidden,
                       dir, e))
        goto fail;
    for (size_t l = 0; l < n_layers; l++)
        if (bind_layer(&m->layer[l], l, c, w, dir, e))
            goto fail;
    if (!check_spares(m, c, w, e))
        return 0;
fail:
    kv_tensor_unmap(m);
    return -1;
}

static const struct kv_weight *make(struct kv_weight *w, size_t rows,
                                    size_t cols)
{
    *w = (struct kv_weight){.name = "random",
                            .dtype = "F16",
                            .type = KV_STORED_F16,
                            .n_dims = cols ? 2 : 1,
                            .dims = {rows, cols},
                            .n = rows * (cols ? cols : 1)};
    w->bytes = 2 * w->n;
    return w;
}

void kv_tensor_map_random(struct kv_model_weights *m, const struct kv_config *c,
                          uint64_t seed)
{
    const size_t n_layers = c->shape.n_layers;
    struct kv_weight *w = kv_alloc(n_layers * KV_PARTS + 2, sizeof(*w));

    *m = (struct kv_model_weights){.made = w, .seed = seed};
    m->layer = kv_alloc(n_layers, sizeof(*m->layer));
    m->norm = make(w++, c->hidden, 0);
    m->head = m->embed = make(w++, c->n_vocab, c->hidden);
    for (size_t i = 0; i < n_layers * KV_PARTS; i++) {
        const size_t p = i % KV_PARTS;

        if (has(c, parts[p].when))
            m->layer[i / KV_PARTS].part[p] =
                make(w++, size_of(parts[p].rows, c), size_of(parts[p].cols, c));
    }
}

uint64_t kv_tensor_seed(const struct kv_model_weights *m, size_t layer,
                        size_t part)
{
    return kv_mix(m->seed, layer * KV_PARTS + part);
}

void kv_tensor_unmap(struct kv_model_weights *m)
{
    free(m->layer);
    free(m->made);
    *m = (struct kv_model_weights){0};
}
