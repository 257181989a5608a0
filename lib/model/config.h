/* config.json: what a forward pass must know of a model. */
#ifndef KV_MODEL_CONFIG_H
#define KV_MODEL_CONFIG_H

#include "lib/base/err.h"
#include "lib/model/arch.h"
#include "lib/shape.h"

#include <jansson.h>
#include <stdbool.h>

/* RoPE of all layers, or of the layers with full attention.  RoPE that depends
 * on the length of the text is as in transformers for a whole window at
 * once. */
struct kv_rope_kind {
    float inv_freq[KV_MAX_HEAD_DIM / 2];
    float scale;  /* of q and k, in the channels that turn, before they do */
    size_t near;  /* longer windows have other frequencies; 0: none have */
    double theta; /* theirs, by dynamic, of n tokens: growth n / near -
                   * (growth - 1), to a power, times this */
    double growth;
    float far_freq[KV_MAX_HEAD_DIM / 2]; /* or, growth 0, these */
};

struct kv_config {
    const struct kv_arch *arch;
    size_t hidden, inter, n_vocab, n_ctx;
    float norm_eps;
    bool tied; /* the head is the embedding */
    bool qkv_bias, o_bias, mlp_bias;
    bool parallel;     /* the MLP adds to the stream beside attention */
    float embed_scale; /* embeddings are multiplied by it */
    float logit_cap;   /* logits are cap * tanh(logit / cap); 0: none */
    enum kv_act act;
    float logit_scale;        /* of logits, before the cap */
    size_t n_places;          /* learned positions; 0: none */
    size_t n_experts, n_used; /* inter is of one; 0: none */
    bool norm_shares;         /* those of the used ones sum to 1 */
    struct kv_rope_kind rope;
    float slide_scale;     /* rope.scale of layers that slide */
    struct kv_shape shape; /* of windows that are not longer than rope.near */
};

/* A field that config.json, or an object in it, may have.  only: the one value,
 * as JSON, that changes no number and may be given; NULL: any, since it is read
 * or changes none. */
struct kv_field {
    const char *name, *only;
};

/* All of config.json; ends with name NULL. */
extern const struct kv_field kv_config_known[];

/* Every field that changes numbers is honoured as transformers 5 does, or
 * refused by name: fails on a field that is not known, missing, out of range
 * or of a value that is not implemented (an unknown activation or RoPE
 * scaling), and on two fields that contradict each other. */
int kv_config_read(struct kv_config *c, const char *path, struct kv_err *e);

/* The same for JSON that is already read; path: for sentences. */
int kv_config_parse(struct kv_config *c, const json_t *json, const char *path,
                    struct kv_err *e);

/* Sets the shape for windows of n tokens. */
void kv_config_set_window(struct kv_config *c, size_t n);

/* For code that computes Llama's layers alone, or with gemma also Gemma's.
 * Fails on other layers, naming the difference.  what: the code, as "CUDA". */
int kv_config_is_llama(const struct kv_config *c, const char *what, bool gemma,
                       struct kv_err *e);

#endif
