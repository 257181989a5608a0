/* The architectures that the forward pass computes, as a table.
 *
 * All are one decoder: RMSNorm, attention with RoPE over grouped heads, a gated
 * MLP.  A new one that differs only in what the members say is one line in
 * arch.c.  Fields that config.json leaves out mean what they do in the class
 * of transformers. */
#ifndef KV_MODEL_ARCH_H
#define KV_MODEL_ARCH_H

#include "lib/base/err.h"

#include <stdbool.h>
#include <stddef.h>

struct kv_arch {
    const char *name, *model_type; /* as in config.json */
    size_t n_kv_heads;   /* without num_key_value_heads; 0: all heads */
    size_t head_dim;     /* without head_dim; 0: hidden_size / heads */
    bool qkv_bias;       /* q, k and v have biases, whatever the config says */
    bool attention_bias; /* this field counts: q, k, v and o */
    bool mlp_bias;       /* this one too: gate, up and down */
    bool qk_norm;        /* RMSNorm over each head of q and k, before RoPE */
    size_t window;       /* without sliding_window; 0: layers never slide */
    bool window_opted;   /* they do only with use_sliding_window, and those
                          * alone that layer_types or max_window_layers names */
    size_t pattern;      /* every so many-th layer does not slide; 0: all do */
    /* Norms times 1 + their weight, embeddings times the root of hidden_size,
     * the gate through GELU (its form with tanh), tied. */
    bool gemma;
    bool sandwich; /* norms of what joins the residual stream; the scale of
                    * query_pre_attn_scalar, and soft caps */
    double attn_cap, logit_cap; /* without their fields; 0: none */
    double theta;               /* without rope_theta */
    double slide_theta;         /* of layers that slide, without
                                 * rope_local_base_freq; 0: theta */
};

/* Fails when the name is unknown, naming those that are known. */
int kv_arch_find(const struct kv_arch **arch, const char *name,
                 struct kv_err *e);

#endif
