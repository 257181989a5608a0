/* config.json: the facts about a model that a forward pass needs. */
#ifndef KV_MODEL_CONFIG_H
#define KV_MODEL_CONFIG_H

#include "lib/base/err.h"
#include "lib/model/arch.h"
#include "lib/shape.h"

#include <jansson.h>
#include <stdbool.h>

enum { KV_MAX_STREAMS = 8 };

/* RoPE of all layers, or of the layers with full attention.  RoPE that depends
 * on the length of the text uses the window's length for all of its tokens, as
 * in transformers. */
struct kv_rope_kind {
    float inv_freq[KV_MAX_HEAD_DIM / 2];
    float scale;  /* multiplies the rotated channels of q and k, before RoPE */
    size_t limit; /* longer windows are not implemented; 0: no limit */
    size_t near;  /* longer windows have other frequencies, given by the next
                   * three; 0: all windows have the same frequencies */
    double theta; /* dynamic: base of the frequencies; for n tokens it is
                   * multiplied by a power of growth n / near - (growth - 1) */
    double growth;
    float far_freq[KV_MAX_HEAD_DIM / 2]; /* if growth is 0, the frequencies of
                                          * longer windows */
    float all_scale; /* multiplies all channels of q and k, by mscale_all_dim;
                      * only for latent attention */
};

/* Latent attention, if shape.latent is not 0: a head's keys are `nope` channels
 * computed from the latent and the `rope` channels that all heads share. */
struct kv_latent {
    size_t q_rank; /* size of the queries' latent; 0: no such latent */
    size_t nope, rope, value;
    bool interleaved; /* RoPE rotates neighbouring channels as a pair */
};

/* Sizes of the mixer of layers without attention, in floats per token except
 * kernel and heads (mixer.h). */
struct kv_mixer_sizes {
    size_t kernel; /* the convolution's width, in tokens */
    size_t conv;   /* channels that pass the convolution */
    /* The number of key heads divides the number of value heads; for Mamba-2,
     * k_heads is the number of groups, k_dim the size of a state, and v_dim the
     * size of a head. */
    size_t k_heads, v_heads;
    size_t k_dim, v_dim;
    size_t in, out; /* sizes of the mixer's input and output */
};

struct kv_config {
    const struct kv_arch *arch;
    size_t hidden, inter, n_vocab, n_ctx;
    float norm_eps;
    bool tied;        /* the head is the embedding ... */
    bool tied_unless; /* ... unless the files have a head */
    bool wrapped;     /* the files also have tensors of a vision or audio
                       * tower */
    bool qkv_bias, o_bias, mlp_bias;
    bool biases; /* all matrices have biases */
    bool head_bias;
    bool parallel;    /* the MLP adds to the stream beside attention */
    bool norm_plain;  /* norms have neither weight nor bias */
    bool norm_stream; /* the stream is normalised after each addition to it */
    bool no_last_norm;
    size_t n_embed; /* columns of the embedding; one matrix projects them to
                     * hidden columns, another projects back; 0: the embedding
                     * has hidden columns, and there is no projection */
    enum kv_qk_norm qk_norm;
    float clip; /* q, k and v are clamped to [-clip, clip]; 0: no clamp */
    enum kv_positions positions;
    float embed_scale; /* multiplies the embeddings */
    float logit_cap;   /* logits are cap * tanh(logit / cap); 0: none */
    enum kv_act act;
    float logit_scale; /* multiplies the logits, before the cap */
    size_t n_places;   /* learned positions; 0: none */
    struct kv_mixer_sizes mixer;
    bool mix_by_head;  /* the mixer's inputs are grouped by key head */
    bool mixer_bias;   /* the mixer's convolution has a bias */
    float mixer_eps;   /* epsilon of the mixer's norm */
    float mixer_floor; /* lower bound of Mamba-2's time step dt */
    /* Set where arch->halves is: layers that consist only of an MLP or of
     * experts, bit layer % 64 of word layer / 64.  All other layers have
     * neither. */
    uint64_t bare[KV_MAX_LAYERS / 64];
    /* Set where arch->by_kind is: */
    size_t layer_embed;   /* size of a layer's own embedding; 0: layers have
                           * none */
    size_t layer_vocab;   /* tokens with such an embedding; further tokens use
                           * token 0's */
    bool values_are_keys; /* in layers without a sliding window, values come
                           * from the keys' matrix, before the keys' norm */
    size_t shared_times;  /* multiplies inter in the shape's n_shared layers */
    /* Set where arch->altup is: */
    size_t n_streams, laurel_rank;
    uint64_t sparse[KV_MAX_LAYERS / 64]; /* layers with sparse MLPs: bit layer %
                                          * 64 of word layer / 64 ... */
    float sparse_cut;             /* ... where gates are 0 up to this many
                                   * standard deviations above their mean */
    size_t n_experts, n_used;     /* n_experts > 0: inter is the size of one
                                   * expert; 0: no experts */
    size_t shared_inter;          /* size of the expert that all tokens use; 0:
                                   * none */
    size_t n_groups, used_groups; /* the number of groups of experts; 0: one
                                   * group */
    bool group_pairs;  /* groups are ranked by their two best experts, else by
                        * the best one */
    bool norm_shares;  /* the used experts' shares sum to 1 ... */
    float share_scale; /* ... and are then multiplied by this */
    float jitter;      /* for the sparse mixer */
    float act_limit, act_alpha; /* struct kv_activation's */
    /* Layers with an MLP instead of experts: bit layer % 64 of word layer / 64;
     * dense_inter is the size of that MLP. */
    uint64_t dense[KV_MAX_LAYERS / 64];
    size_t dense_inter;
    struct kv_rope_kind rope;
    float slide_scale; /* rope.scale of sliding layers */
    struct kv_latent latent;
    struct kv_shape shape; /* for windows no longer than rope.near */
};

/* A field that config.json, or an object in it, may have.  only: the one value,
 * as JSON, that changes no number and is accepted; NULL: any value, since the
 * field is read or changes no number. */
struct kv_field {
    const char *name, *only;
};

/* All fields that config.json may have; the last name is NULL. */
extern const struct kv_field kv_config_known[];

/* Every field that changes numbers is honoured as transformers 5 does, or
 * refused by name: fails on a field that is not known, missing, out of range
 * or of a value that is not implemented (an unknown activation or RoPE
 * scaling), and on two fields that contradict each other. */
int kv_config_read(struct kv_config *c, const char *path, struct kv_err *e);

/* Reads config.json from JSON that is already parsed; path: for error
 * sentences. */
int kv_config_parse(struct kv_config *c, const json_t *json, const char *path,
                    struct kv_err *e);

/* The number of the model's layers, including layers without attention and
 * layers that share keys and values.  `layer` counts these here and in all of
 * lib/model, except in struct kv_qkv and struct kv_shape. */
static inline size_t kv_config_layers_of(const struct kv_config *c)
{
    const struct kv_shape *s = &c->shape;

    return s->n_layers + s->n_states + s->n_bare + s->n_shared;
}

/* Whether the layer consists only of an MLP or of experts; whether the layer
 * has an MLP or experts. */
static inline bool kv_config_is_bare(const struct kv_config *c, size_t layer)
{
    return kv_layer_bit(c->bare, layer);
}

static inline bool kv_config_has_mlp(const struct kv_config *c, size_t layer)
{
    return !c->arch->halves || kv_config_is_bare(c, layer);
}

/* Whether the layer attends with another's keys and values.  (No model has both
 * such layers and layers without attention.) */
static inline bool kv_config_shares(const struct kv_config *c, size_t layer)
{
    return c->shape.n_shared && layer >= c->shape.n_layers;
}

/* Whether the layer has experts; the intermediate size of its MLP or of each
 * expert. */
static inline bool kv_config_has_experts(const struct kv_config *c,
                                         size_t layer)
{
    return c->n_experts && !kv_layer_bit(c->dense, layer);
}

static inline size_t kv_config_inter(const struct kv_config *c, size_t layer)
{
    if (kv_config_shares(c, layer))
        return c->shared_times * c->inter;
    return c->n_experts && !kv_config_has_experts(c, layer) ? c->dense_inter
                                                            : c->inter;
}

/* The largest inter of all layers. */
static inline size_t kv_config_widest(const struct kv_config *c)
{
    const size_t own =
        c->shape.n_shared ? c->shared_times * c->inter : c->inter;
    const size_t n = own > c->shared_inter ? own : c->shared_inter;

    return n > c->dense_inter ? n : c->dense_inter;
}

/* Sets the shape for windows of n tokens. */
void kv_config_set_window(struct kv_config *c, size_t n);

/* A check for code that computes only Llama's layers, or with gemma also
 * Gemma's: fails on other layers, naming the difference.  what: the name of
 * that code, such as "CUDA". */
int kv_config_is_llama(const struct kv_config *c, const char *what, bool gemma,
                       struct kv_err *e);
/* Fails on layers that the forward pass computes on the CPU alone: experts,
 * layers without attention, latent attention, the layers of Gemma 3n and 4. */
int kv_config_on_device(const struct kv_config *c, struct kv_err *e);

#endif
