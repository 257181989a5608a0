/* The architectures that the forward pass computes, as a table.
 *
 * All are one decoder: a norm, attention over grouped heads, a norm, an MLP; a
 * row of arch.c says which norm, which MLP, how positions come in, and how
 * tensors and fields are called.  A new one that differs only in what the
 * members say is one row there.  Fields that config.json leaves out mean what
 * they do in the class of transformers. */
#ifndef KV_MODEL_ARCH_H
#define KV_MODEL_ARCH_H

#include "kernels/vecops/vecops.h"
#include "lib/base/err.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

/* Parts of a layer, in the order of the widened weights in memory.  Parts that
 * form one matrix (q, k, v; gate, up) are adjacent. */
enum kv_part {
    KV_P_Q,
    KV_P_K,
    KV_P_V,
    KV_P_Q_DOWN, /* of latent attention: queries by way of a latent of theirs */
    KV_P_Q_UP,
    KV_P_KV_DOWN, /* to the latent of keys and values, and what RoPE turns */
    KV_P_KV_UP,   /* of a head: rows of its keys, then of its values */
    KV_P_O,
    KV_P_OUT_GATE, /* attention's output is times a sigmoid of it */
    KV_P_MIX,      /* of layers without attention: what enters (mixer.h) */
    KV_P_MIX_B,
    KV_P_MIX_A,
    KV_P_MIX_Z,
    KV_P_MIX_OUT,
    KV_P_LAYER_IN, /* of the layer's own embedding (per_layer.c): the stream's
                    * first values to it, its gate, and back */
    KV_P_LAYER_GATE,
    KV_P_LAYER_OUT,
    KV_P_ROUTER,     /* a row for each expert */
    KV_P_SHARED_MIX, /* a row: how much a token has of the shared expert */
    KV_P_SHARED_GATE,
    KV_P_SHARED_UP,
    KV_P_SHARED_DOWN,
    KV_P_GATE, /* with experts: from here on one expert after the other */
    KV_P_UP,
    KV_P_DOWN,
    KV_P_Q_BIAS,
    KV_P_K_BIAS,
    KV_P_V_BIAS,
    KV_P_O_BIAS,
    KV_P_GATE_BIAS,
    KV_P_UP_BIAS,
    KV_P_DOWN_BIAS,
    KV_P_ROUTER_BIAS,
    KV_P_CHOICE_BIAS, /* of the experts' shares, where they are chosen */
    KV_P_SINKS,       /* a logit for each head (kernels/attend.h) */
    KV_P_MIX_CONV,    /* [channels][1][kernel] */
    KV_P_MIX_CONV_BIAS,
    KV_P_MIX_DECAY,
    KV_P_MIX_STEP,
    KV_P_MIX_SKIP,
    KV_P_MIX_NORM,
    KV_P_LAYER_SCALE, /* one number, of the stream as it leaves */
    KV_P_ATTN_NORM,
    KV_P_ATTN_NORM_BIAS,
    KV_P_MLP_NORM,
    KV_P_MLP_NORM_BIAS,
    KV_P_Q_NORM,
    KV_P_Q_NORM_BIAS,
    KV_P_K_NORM,
    KV_P_K_NORM_BIAS,
    KV_P_Q_DOWN_NORM,
    KV_P_KV_DOWN_NORM,
    KV_P_ATTN_OUT_NORM, /* norm of attention's addition to the stream */
    KV_P_MLP_OUT_NORM,
    KV_P_LAYER_IN_NORM,
    KV_P_LAYER_OUT_NORM,
    KV_PARTS
};

/* Names of tensors.  A bias has the name of its weight with another ending.
 * Parts of the same name follow each other in one tensor.  A part whose name
 * ends with a dot is a tensor for each head: N and ".weight" follow. */
struct kv_tensor_names {
    const char *prefix; /* of all names but head; some files omit it */
    const char *embed, *positions, *embed_norm, *norm, *head;
    const char *project_in, *project_out; /* of embeddings to hidden values, of
                                           * these back */
    /* Tensors that hold all layers, one behind the other: each layer's
     * embeddings, and its projection of hidden values that is added to them;
     * and the norm of that projection, one for all layers. */
    const char *layer_embed, *layer_in, *layer_in_norm;
    const char *layers; /* names of layer N begin with it, N and a dot */
    const char *part[KV_PARTS];
    const char *experts; /* names of expert N's gate, up and down begin with
                          * it, N and a dot */
    const char *dense;   /* in a layer without experts with this */
    /* In a folder one tensor of all experts, behind `experts`: of gates and ups
     * in turn; of downs.  Matrices are [expert][input][output], or packed
     * [expert][output][input]; biases have these names and "_bias".  NULL: a
     * tensor for each. */
    const char *gate_up, *down;
    /* One tensor of all experts' gates and ups, [expert][gates, ups][input],
     * and one of their downs.  A file may have them in place of a tensor for
     * each expert; without `experts` it must. */
    const char *stacked[2];
};

/* A field of this architecture alone, or a field that has another name in it
 * ("a.b": b in the object a).  means: the field's usual name; NULL: it has
 * none;
 * "": transformers' class does not read this name, so it is not read here
 * either.  only: as in struct kv_field; or kv_unread: transformers' class does
 * not read this name, so it may only repeat a name that the class reads. */
struct kv_own_field {
    const char *name, *means, *only;
};

extern const char kv_unread[];

enum kv_positions { KV_ROPE, KV_LEARNED, KV_ALIBI };

/* Norms of q and k, before RoPE. */
enum kv_qk_norm {
    KV_QK_NONE,
    KV_QK_HEAD,  /* of each head, all with the same weights */
    KV_QK_HEADS, /* of each head with its own weights */
    KV_QK_WHOLE  /* of all heads of a token at once */
};

/* What layers without attention have. */
enum kv_mixer {
    KV_MIXER_NONE,  /* all have attention */
    KV_MIXER_CONV,  /* a short convolution between two gates (LFM2) */
    KV_MIXER_DELTA, /* linear attention by the gated delta rule, behind a
                     * short convolution (Qwen3-Next) */
    KV_MIXER_MAMBA, /* Mamba-2 (Granite 4) */
};

/* Which layers slide and which have no RoPE. */
struct kv_arch_layers {
    size_t window;     /* without sliding_window; 0: no layer slides */
    bool opted;        /* layers slide only with use_sliding_window */
    bool given;        /* layers slide only where sliding_window is given */
    size_t from;       /* the first that slides, without max_window_layers */
    bool mixed;        /* layer_types may mix layers that slide and others */
    bool slides_still; /* without it the layers without RoPE slide */
    size_t pattern;    /* layer i slides unless this divides i + 1; 0: all do */
    bool
        still_unless; /* none has RoPE unless position_embedding_type is rope */
    bool pattern_read;  /* the field sliding_window_pattern counts */
    bool still_full;    /* layers that do not slide have no RoPE ... */
    bool turns_alone;   /* ... but where sliding_window is null */
    size_t still_every; /* layer i has no RoPE where this divides i + 1, without
                         * no_rope_layers and no_rope_layer_interval; 0: every
                         * layer has it */
};

struct kv_arch_rope {
    double theta;          /* without rope_theta */
    double slide_theta;    /* of layers that slide; 0: the same as of the
                            * others */
    bool slide_theta_read; /* rope_local_base_freq counts instead */
    size_t old_ctx; /* original_max_position_embeddings of the top level counts,
                     * and is this without; longrope is the one RoPE scaling;
                     * 0: the block counts give it */
    bool interleaved; /* it turns channels 2 i and 2 i + 1 */
    double partial;   /* of a head's channels it turns; 0: all */
    bool channels;    /* rotary_dim says how many it turns */
    bool mscales;     /* longrope alone, which goes by short_factor whatever the
                       * length; short_mscale and long_mscale are its scale */
    bool alpha;       /* dynamic with alpha is theta times a power of it */
    bool given;       /* the config must describe it: it would be YaRN */
};

/* Multi-head latent attention, and its sizes without their fields. */
struct kv_arch_latent {
    size_t rank; /* kv_lora_rank; 0: the class has no such attention */
    size_t q_rank, nope, rope, value; /* q_lora_rank, qk_nope_head_dim,
                                       * qk_rope_head_dim, v_head_dim */
    bool interleave_read; /* rope_interleave counts, else it is true */
};

struct kv_arch {
    const char *name, *model_type; /* as in config.json */
    const char *other_type; /* a second model_type of the class, or NULL */
    const struct kv_tensor_names *names;
    const struct kv_own_field *fields; /* NULL, or up to name NULL */
    const char *variant; /* with this field true, or 1, the row after this */

    size_t n_heads, n_vocab; /* without their fields; 0: they must be there */
    size_t n_kv_heads;       /* without num_key_value_heads; 0: all heads */
    bool multi_query;        /* one KV head, unless this field is false */
    size_t head_dim;         /* without head_dim; 0: hidden_size / heads */
    size_t inter_times;  /* of hidden_size without intermediate_size; 0: none */
    size_t n_ctx;        /* without max_position_embeddings; 0: none */
    float norm_eps;      /* without rms_norm_eps; 0: none */
    bool tied;           /* without tie_word_embeddings */
    bool biases;         /* matrices have biases, without use_bias */
    bool mlp_biases;     /* up and down do */
    bool qkv_bias;       /* q, k and v do */
    bool attention_bias; /* this field counts: q, k, v and o */
    bool biased;         /* without it */
    bool no_o_bias;      /* o has none, whatever it says */
    bool mlp_bias;       /* this one too: gate, up and down */
    enum kv_qk_norm qk_norm; /* LayerNorm where layer_norm ... */
    bool qk_norm_read;       /* ... and only where use_qk_norm is true */
    bool qk_norm_bias;
    bool qk_norm_late; /* after RoPE */
    bool clips;        /* clip_qkv counts: q, k and v end at it */
    bool sinks;        /* attention has a sink logit for each head */
    struct kv_arch_layers layers;
    enum kv_mixer mixer;   /* of some layers, by layer_types ... */
    size_t attended_every; /* ... or without it of all but every so many-th */
    bool mixer_listed;     /* it must be there */
    bool mix_by_head; /* what enters it lies together for each key's head */
    bool out_gate;    /* rows of a gate follow each head's queries */
    /* Norms times 1 + their weight, embeddings times the root of hidden_size.
     */
    bool gemma;
    bool sandwich;    /* norms after attention and MLP too; Gemma then has the
                       * scale of query_pre_attn_scalar, and soft caps */
    bool norm_after;  /* norms after attention and MLP alone */
    bool by_kind;     /* Gemma 4: sizes of heads by kind of layer, layers that
                       * share keys and values, embeddings of each layer's own,
                       * norms of values (config_kind.c) */
    double attn_cap;  /* without attn_logit_softcapping; 0: none, and the field
                       * is ignored, as in transformers */
    double logit_cap; /* without final_logit_softcapping; 0: none */
    struct kv_arch_rope rope;
    struct kv_arch_latent latent;

    bool layer_norm;    /* LayerNorm; else RMSNorm */
    bool norm_bias;     /* and it has a bias */
    bool norm_plus_one; /* norms times 1 + their weight */
    bool norm_plain;    /* norms have neither weight nor bias, without
                         * norm_affine */
    bool norms_read;    /* do_layer_norm_before: else norms are of the stream,
                         * after each addition to it, none at the end; and
                         * _remove_final_layer_norm */
    bool head_bias;     /* the head has one, without lm_head_bias */
    bool plain_mlp;     /* down(act(up)); else down(act(gate) * up) */
    enum kv_act act;    /* without hidden_act */
    bool old_gelu;      /* gelu of hidden_act is gelu_pytorch_tanh */
    bool experts;       /* gated MLPs; a router chooses some of them */
    bool sigmoid;       /* shares are sigmoids; else a softmax */
    bool choice_bias;   /* a bias is added where experts are chosen */
    bool router_bias;   /* the router has a bias */
    bool sparse_mixer;  /* Phi-MoE's shares (experts.c), of two experts */
    bool clamped;       /* gate and up end at swiglu_limit, alpha counts */
    bool shared;        /* all tokens have one more, times a sigmoid ... */
    bool shared_alone;  /* ... or once, and without experts (num_experts 0) it
                         * is the MLP */
    bool shared_whole;  /* ... or once, of n_shared_experts together */
    size_t n_shared;    /* without that field */
    bool mixed;         /* layers may have an MLP instead, by mlp_only_layers
                         * and decoder_sparse_step ... */
    size_t first_dense; /* ... or so many first ones, without
                         * first_k_dense_replace; 0: it does not count ... */
    bool first_read;    /* ... unless this is true */
    bool mlp_types;     /* ... or as mlp_layer_types says, else the first */
    bool moe_layers; /* ... or those that moe_layer_start_index, _end_index and
                      * _interval leave out */
    size_t n_groups, used_groups; /* experts are of the best groups, without
                                   * n_group and topk_group; 0: of all */
    bool topk_method;             /* ... or, by this field, greedy: of all */
    double share_scale;           /* without routed_scaling_factor; 0: 1 */
    bool more_layers;   /* files may have layers that predict further tokens */
    float share_floor;  /* added to that sum of shares */
    bool norm_shares;   /* experts' shares sum to 1, without norm_topk_prob */
    bool parallel;      /* the MLP adds to the stream beside attention; without
                         * use_parallel_residual, where that counts */
    bool one_norm;      /* it has attention's norm then */
    bool scaled;        /* Granite's multipliers count */
    double logit_scale; /* without its field; 0: it has none */
    bool transposed;    /* matrices are stored [input][output] */
    bool qkv_by_head;   /* q, k and v of a key's head lie together */
    enum kv_positions positions;
    bool alibi_read; /* ALiBi in place of RoPE where the field alibi is true;
                      * then the scale of attention is also the slopes' */
    size_t skip_positions; /* rows of learned ones before position 0's */
};

/* Both end with name NULL. */
extern const struct kv_arch kv_archs[], kv_archs_later[];

/* A model that has a language model among its parts. */
struct kv_wrapper {
    const char *name, *model_type; /* as in config.json */
    const char *text;              /* model_type of the part in text_config */
    const char *arch;              /* the row of the part */
    const struct kv_own_field *fields; /* of the part; NULL: the usual ones */
    bool flat; /* the part's fields may stand beside the others instead */
};

/* NULL: it is no such model. */
const struct kv_wrapper *kv_arch_wrapper(const char *name);

/* The row of this name.  For a ...ForCausalLM of the model's own code it is the
 * row of config's model_type, as in transformers.  Fails when there is none,
 * listing the known names.  config: the object of config.json, which may have
 * the field of a variant. */
int kv_arch_find(const struct kv_arch **arch, const char *name,
                 const json_t *config, struct kv_err *e);

#endif
