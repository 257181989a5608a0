/* The architectures that the forward pass computes, as a table.
 *
 * All share one decoder: a norm, attention over grouped heads, a norm, an MLP.
 * A row of arch.c says which norm, which MLP, how positions enter, and the
 * names of tensors and fields.  A new architecture that differs only in these
 * members is one more row.  A field that config.json omits has the default of
 * transformers' class. */
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
    KV_P_Q_DOWN, /* latent attention: queries from their own latent */
    KV_P_Q_UP,
    KV_P_KV_DOWN, /* projects x to the latent of keys and values and to the
                   * rotated channels */
    KV_P_KV_UP,   /* per head: the rows of its keys, then the rows of its
                   * values */
    KV_P_O,
    KV_P_OUT_GATE, /* the gate whose sigmoid multiplies attention's output */
    KV_P_MIX,      /* layers without attention: the mixer's input (mixer.h) */
    KV_P_MIX_B,
    KV_P_MIX_A,
    KV_P_MIX_Z,
    KV_P_MIX_OUT,
    KV_P_LAYER_IN, /* the layer's own embedding (per_layer.c): projection of the
                    * first stream, the gate, and the projection back */
    KV_P_LAYER_GATE,
    KV_P_LAYER_OUT,
    KV_P_LAUREL_DOWN, /* this and the next four: parts of models with several
                       * streams (altup.c) */
    KV_P_LAUREL_UP,
    KV_P_ALTUP_ROUTER,
    KV_P_ALTUP_PREDICT,
    KV_P_ALTUP_CORRECT,
    KV_P_ROUTER,     /* a row for each expert */
    KV_P_SHARED_MIX, /* one row: its product with a token is the logit of the
                      * shared expert's weight */
    KV_P_SHARED_GATE,
    KV_P_SHARED_UP,
    KV_P_SHARED_DOWN,
    KV_P_GATE, /* in layers with experts, these three hold one expert after the
                * other */
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
    KV_P_EXPERT_SCALE, /* factor of each expert's output */
    KV_P_CHOICE_BIAS,  /* added to the experts' shares before the choice */
    KV_P_SINKS,        /* a logit for each head (kernels/attend.h) */
    KV_P_MIX_CONV,     /* [channels][1][kernel] */
    KV_P_MIX_CONV_BIAS,
    KV_P_MIX_DECAY,
    KV_P_MIX_STEP,
    KV_P_MIX_SKIP,
    KV_P_MIX_NORM,
    KV_P_LAYER_SCALE, /* one number that multiplies the stream at the layer's
                       * end */
    KV_P_ALTUP_SCALE,
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
    KV_P_ATTN_OUT_NORM, /* norm of attention's output before it is added to the
                         * stream */
    KV_P_MLP_OUT_NORM,
    KV_P_LAYER_IN_NORM,
    KV_P_LAYER_OUT_NORM,
    KV_P_ROUTER_NORM, /* norms of experts beside an MLP: of the router's input,
                       * of the experts' input, and of both outputs */
    KV_P_EXPERTS_NORM,
    KV_P_SHARED_OUT_NORM,
    KV_P_EXPERTS_OUT_NORM,
    KV_P_LAUREL_NORM,
    KV_P_ALTUP_NORM,
    KV_PARTS
};

/* Names of tensors.  A bias has the name of its weight with another ending.
 * Parts with the same name are consecutive in one tensor.  If a part's name
 * ends with a dot, there is a tensor for each head: N and ".weight" follow. */
struct kv_tensor_names {
    const char *prefix; /* of all names except head; some files omit it */
    const char *embed, *positions, *embed_norm, *norm, *head;
    const char *project_in, *project_out; /* projections: embeddings to hidden
                                           * values, and back */
    /* Tensors that hold all layers, one layer after the other: each layer's
     * embeddings, and the projection of hidden values that is added to these
     * embeddings.  All layers share the norm of the projection. */
    const char *layer_embed, *layer_in, *layer_in_norm;
    /* Models with several streams: matrices from the first stream to stream N,
     * and back; N and ".weight" follow the name. */
    const char *spread, *gather;
    const char *layers; /* names of layer N's tensors begin with this, N and a
                         * dot */
    const char *part[KV_PARTS];
    const char *experts; /* names of expert N's gate, up and down begin with
                          * this, N and a dot */
    const char *dense;   /* in a layer without experts names begin with this */
    /* Names, after `experts`, of two tensors in a folder: one holds the gates
     * and ups of all experts, interleaved, the other holds the downs.  Matrices
     * are [expert][input][output], or packed [expert][output][input]; biases
     * have these names and "_bias".  NULL: a tensor for each expert. */
    const char *gate_up, *down;
    bool gates_first; /* all gates come before all ups, instead of
                       * interleaved */
    /* Names of two tensors: all experts' gates and ups, [expert][gates,
     * ups][input], and all experts' downs.  A file may have these two instead
     * of a tensor for each expert; if `experts` is NULL, it must.  If gate_up
     * is set too, the tensor's shape says which layout the file has. */
    const char *stacked[2];
};

/* A field that only this architecture has, or the architecture's own name for a
 * common field ("a.b": b in the object a).  means: the field's usual name;
 * NULL: there is none; "": transformers' class does not read this name, so it
 * is ignored here too.  only: as in struct kv_field; or kv_unread:
 * transformers' class does not read this name, so its value must repeat the
 * value of a name that the class reads. */
struct kv_own_field {
    const char *name, *means, *only;
};

extern const char kv_unread[];

enum kv_positions { KV_ROPE, KV_LEARNED, KV_ALIBI };

/* Norms of q and k, before RoPE. */
enum kv_qk_norm {
    KV_QK_NONE,
    KV_QK_HEAD,  /* a norm of each head; all heads share the weights */
    KV_QK_HEADS, /* a norm of each head with its own weights */
    KV_QK_WHOLE  /* one norm over all heads of a token */
};

/* The mixer of layers without attention. */
enum kv_mixer {
    KV_MIXER_NONE,  /* all layers have attention */
    KV_MIXER_CONV,  /* a short convolution between two gates (LFM2) */
    KV_MIXER_DELTA, /* linear attention by the gated delta rule, after a short
                     * convolution (Qwen3-Next) */
    KV_MIXER_MAMBA, /* Mamba-2 (Granite 4) */
};

/* Which layers slide and which have no RoPE. */
struct kv_arch_layers {
    size_t window;      /* default of sliding_window; 0: no layer slides */
    bool opted;         /* layers slide only with use_sliding_window */
    bool given;         /* layers slide only if the config has sliding_window */
    size_t from;        /* the first sliding layer; default of
                         * max_window_layers */
    bool mixed;         /* layer_types may mix sliding and other layers */
    bool slides_still;  /* without layer_types the layers without RoPE slide */
    size_t pattern;     /* layer i slides unless this divides i + 1; 0: all
                         * layers slide */
    bool still_unless;  /* no layer has RoPE unless position_embedding_type is
                         * rope */
    bool pattern_read;  /* the field sliding_window_pattern is read */
    bool still_full;    /* layers that do not slide have no RoPE ... */
    bool turns_alone;   /* ... unless sliding_window is null */
    size_t still_every; /* layer i has no RoPE if this divides i + 1; default
                         * for no_rope_layers and no_rope_layer_interval; 0:
                         * every layer has RoPE */
};

struct kv_arch_rope {
    double theta;          /* default of rope_theta */
    double slide_theta;    /* theta of sliding layers; 0: theta of the other
                            * layers */
    bool slide_theta_read; /* rope_local_base_freq replaces slide_theta */
    size_t old_ctx;        /* default of original_max_position_embeddings, for
                            * classes that read this field at the top level
                            * and know no RoPE scaling but longrope; 0: the
                            * field is in the scaling's object */
    bool interleaved;      /* RoPE rotates channels 2 i and 2 i + 1 as a pair */
    double partial;   /* the fraction of a head's channels that RoPE rotates; 0:
                       * all */
    bool channels;    /* rotary_dim is the number of rotated channels */
    bool mscales;     /* only longrope, with short_factor at any length;
                       * short_mscale and long_mscale are its scale */
    bool alpha;       /* dynamic with alpha: theta is multiplied by a power of
                       * alpha */
    bool unstretched; /* only longrope, with original_max_position_embeddings
                       * as max_position_embeddings */
    bool grows;       /* queries have a factor that grows from position
                       * original_max_position_embeddings on, by
                       * llama_4_scaling_beta; only shorter texts are
                       * implemented */
    bool given;       /* the config must describe RoPE scaling, since the
                       * class's default is YaRN */
};

/* Multi-head latent attention, and the defaults of its sizes. */
struct kv_arch_latent {
    size_t rank; /* kv_lora_rank; 0: the class has no such attention */
    size_t q_rank, nope, rope, value; /* q_lora_rank, qk_nope_head_dim,
                                       * qk_rope_head_dim, v_head_dim */
    bool interleave_read; /* rope_interleave is read, else it is true */
};

struct kv_arch {
    const char *name, *model_type; /* as in config.json */
    const char *other_type;        /* the class's second model_type, or NULL */
    const struct kv_tensor_names *names;
    const struct kv_own_field *fields; /* ends with name NULL; or NULL */
    const char *variant; /* if this field is true, or 1, the next row applies */

    size_t n_heads, n_vocab; /* defaults of their fields; 0: the fields are
                              * required */
    size_t n_kv_heads;       /* default of num_key_value_heads; 0: all heads */
    bool multi_query;        /* one KV head, unless this field is false */
    size_t head_dim;         /* default of head_dim; 0: hidden_size / heads */
    size_t inter_times;      /* intermediate_size defaults to this times
                              * hidden_size; 0: no default */
    size_t n_ctx;            /* default of max_position_embeddings; 0: none */
    float norm_eps;          /* default of rms_norm_eps; 0: none */
    bool tied;               /* default of tie_word_embeddings */
    bool biases;             /* all matrices have biases; default of use_bias */
    bool mlp_biases;         /* up and down have biases */
    bool qkv_bias;           /* q, k and v have biases */
    bool attention_bias;     /* attention_bias is read, for q, k, v and o */
    bool biased;             /* default of attention_bias */
    bool no_o_bias;          /* o has no bias, whatever attention_bias says */
    bool mlp_bias;           /* mlp_bias is read, for gate, up and down */
    enum kv_qk_norm qk_norm; /* LayerNorm where layer_norm ... */
    bool qk_norm_read;       /* ... and only where use_qk_norm is true */
    bool qk_norm_bias;
    bool qk_norm_late; /* after RoPE */
    bool clips;        /* clip_qkv is read: q, k and v are clamped to it */
    bool sinks;        /* attention has a sink logit for each head */
    struct kv_arch_layers layers;
    enum kv_mixer mixer;   /* some layers have a mixer, by layer_types ... */
    size_t attended_every; /* ... or by default all except layers attended_every
                            * - 1, 2 attended_every - 1, ... */
    bool mixer_listed;     /* the config must list the layers' types */
    bool halves; /* a layer is attention, a mixer or an MLP, behind one norm
                  * (config_halves.c) */
    bool mix_by_head; /* the mixer's inputs are grouped by key head, except in
                       * GGUF files that store the inputs apart */
    bool out_gate;    /* each head's query rows are followed by the rows of its
                       * gate */
    /* Norms multiply by 1 + weight, embeddings by the root of hidden_size.
     */
    bool gemma;
    bool sandwich;    /* norms after attention and MLP too; Gemma then has the
                       * scale of query_pre_attn_scalar, and soft caps */
    bool norm_after;  /* norms only after attention and MLP */
    bool by_kind;     /* Gemma 4: head sizes depend on the kind of layer, layers
                       * share keys and values, each layer has embeddings,
                       * values have norms (config_kind.c) */
    bool altup;       /* Gemma 3n, with by_kind: several streams (altup.c), all
                       * heads of one size, no layer scale */
    double attn_cap;  /* default of attn_logit_softcapping; 0: no cap, and the
                       * field is ignored, as in transformers */
    double logit_cap; /* default of final_logit_softcapping; 0: no cap */
    struct kv_arch_rope rope;
    struct kv_arch_latent latent;

    bool layer_norm;    /* norms are LayerNorm; else RMSNorm */
    bool norm_bias;     /* LayerNorm has a bias */
    bool norm_plus_one; /* norms multiply by 1 + weight */
    bool norm_plain;    /* norms have neither weight nor bias; default of
                         * norm_affine */
    bool norms_read;    /* do_layer_norm_before and _remove_final_layer_norm are
                         * read; without the former, norms apply to the stream
                         * after each addition, and there is no final norm */
    bool head_bias;     /* the head has a bias; default of lm_head_bias */
    bool plain_mlp;     /* the MLP is down(act(up)); else down(act(gate) *
                         * up) */
    enum kv_act act;    /* default of hidden_act */
    bool old_gelu;      /* gelu of hidden_act is gelu_pytorch_tanh */
    bool experts;       /* experts: gated MLPs, some of which a router
                         * chooses */
    bool sigmoid;       /* experts' shares are sigmoids; else a softmax */
    bool choice_bias;   /* a bias is added before experts are chosen */
    bool used_listed;   /* num_experts_per_tok may be a list with one number for
                         * each layer; all must be equal */
    bool router_bias;   /* the router has a bias */
    bool sparse_mixer;  /* Phi-MoE's expert shares (experts.c); a token uses two
                         * experts */
    bool clamped;       /* gate and up are clamped to swiglu_limit; alpha is
                         * read */
    bool moe_beside;    /* with enable_moe_block, experts run beside the MLP;
                         * both have norms of their own */
    bool shared;        /* all tokens use one more expert, the shared one; its
                         * output is multiplied by a sigmoid ... */
    bool shared_alone;  /* ... or by 1; if num_experts is 0, the shared expert
                         * is the layer's MLP */
    bool shared_whole;  /* ... or by 1; n_shared_experts form one expert */
    size_t n_shared;    /* default of n_shared_experts */
    bool mixed;         /* some layers have an MLP instead, by mlp_only_layers
                         * and decoder_sparse_step ... */
    size_t first_dense; /* ... or the first layers do, this many; default of
                         * first_k_dense_replace; 0: first_k_dense_replace is
                         * not read ... */
    bool first_read;    /* ... unless first_read is true */
    bool mlp_types;     /* ... or by mlp_layer_types; without that field, only
                         * the first layer */
    bool moe_layers; /* ... or the layers that moe_layer_start_index, _end_index
                      * and _interval leave out */
    size_t n_groups, used_groups; /* experts come from the best groups; defaults
                                   * of n_group and topk_group; 0: from all */
    bool topk_method;             /* ... or from all groups, if this field is
                                   * greedy */
    double share_scale;           /* default of routed_scaling_factor; 0: 1 */
    bool more_layers;  /* files may have layers that predict further tokens */
    float share_floor; /* added to the sum of shares before they are
                        * normalised */
    bool norm_shares;  /* experts' shares sum to 1; default of norm_topk_prob */
    bool parallel;     /* MLP and attention add to the same stream; default of
                        * use_parallel_residual, if that field is read */
    bool one_norm;     /* in parallel layers the MLP shares attention's norm */
    bool scaled;       /* Granite's multipliers are read */
    bool scaled_by_depth; /* MiniCPM's multipliers: scale_emb, scale_depth over
                           * the root of the number of layers, dim_model_base
                           * over hidden_size */
    double logit_scale;   /* default of its field; 0: the class has no such
                           * field */
    bool transposed;      /* matrices are stored [input][output] */
    bool qkv_by_head;     /* q, k and v are grouped by key head */
    enum kv_positions positions;
    bool alibi_read; /* ALiBi instead of RoPE if the field alibi is true; the
                      * scale of attention then also multiplies the slopes */
    size_t skip_positions; /* rows of learned positions before the row of
                            * position 0 */
};

/* Both end with name NULL. */
extern const struct kv_arch kv_archs[], kv_archs_later[];

/* A model that has a language model among its parts. */
struct kv_wrapper {
    const char *name, *model_type; /* as in config.json */
    const char *text;              /* model_type of the part in text_config */
    const char *arch;              /* the row of the part */
    const struct kv_own_field *fields; /* the part's names; NULL: the usual
                                        * ones */
    bool flat; /* the part's fields may be at the top level instead */
};

/* The wrapper whose part has the model_type text; if none has it, or text is
 * NULL, the first wrapper of this name.  NULL: no wrapper has this name. */
const struct kv_wrapper *kv_arch_wrapper(const char *name, const char *text);

/* *arch: the row of this name.  For a class from the model's own code
 * (...ForCausalLM), the row of config's model_type, as in transformers.  Fails
 * if there is no such row, listing the known names.  config: the object of
 * config.json, which may have the field that selects a variant. */
int kv_arch_find(const struct kv_arch **arch, const char *name,
                 const json_t *config, struct kv_err *e);

#endif
