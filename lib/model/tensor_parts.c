#include "lib/model/tensor_parts.h"

/* The sizes that a part's rows and columns can have; NONE as columns: the part
 * is a vector. */
enum dim {
    NONE,
    HIDDEN,
    INTER,
    SHARED_INTER,
    ONE,
    N_EXPERTS,
    N_HEADS,
    Q_DIM,
    KV_DIM,
    O_DIM,
    Q_RANK,
    LATENT,
    LATENT_KEY,
    LATENT_HEADS,
    Q_NORM_DIM,
    K_NORM_DIM,
    MIX_DIM,
    MIX_Z_DIM,
    MIX_HEADS,
    MIX_B_DIM,
    MIX_OUT_DIM,
    MIX_CHANNELS,
    MIX_CONV_DIM,
    MIX_NORM_DIM,
    LAYER_EMBED,
    STREAMS,
    STREAMS_SQUARE,
    LAUREL_RANK
};

/* The conditions under which a layer has a part. */
enum when {
    MLP,
    Q_WHOLE,
    KV_HEADS,
    Q_LATENT,
    KV_LATENT,
    ATTENDS,
    OUT_GATE,
    MIXES,
    MIXES_DELTA,
    MIXES_APART,
    MIXES_BIAS,
    MIXES_SSM,
    MIXES_MAMBA,
    EXPERTS,
    SHARED,
    SHARED_GATED,
    SHARED_MIX,
    MOE_BESIDE,
    CHOICE_BIAS,
    ROUTER_BIAS,
    SINKS,
    GATED,
    QKV_BIAS,
    O_BIAS,
    MLP_BIAS,
    GATE_BIAS,
    ATTN_NORM,
    MLP_NORM,
    NORM_BIAS,
    QK_NORM,
    QK_NORM_BIAS,
    K_NORM,
    SANDWICH,
    BY_KIND,
    LAYER_EMBEDS,
    ALTUP
};

static const struct {
    enum kv_part of;
    enum dim rows, cols;
    enum when when;
} parts[KV_PARTS] = {
    [KV_P_Q] = {KV_P_Q, Q_DIM, HIDDEN, Q_WHOLE},
    [KV_P_K] = {KV_P_K, KV_DIM, HIDDEN, KV_HEADS},
    [KV_P_V] = {KV_P_V, KV_DIM, HIDDEN, KV_HEADS},
    [KV_P_Q_DOWN] = {KV_P_Q_DOWN, Q_RANK, HIDDEN, Q_LATENT},
    [KV_P_Q_UP] = {KV_P_Q_UP, Q_DIM, Q_RANK, Q_LATENT},
    [KV_P_KV_DOWN] = {KV_P_KV_DOWN, LATENT_KEY, HIDDEN, KV_LATENT},
    [KV_P_KV_UP] = {KV_P_KV_UP, LATENT_HEADS, LATENT, KV_LATENT},
    [KV_P_O] = {KV_P_O, HIDDEN, O_DIM, ATTENDS},
    [KV_P_OUT_GATE] = {KV_P_OUT_GATE, Q_DIM, HIDDEN, OUT_GATE},
    [KV_P_MIX] = {KV_P_MIX, MIX_DIM, HIDDEN, MIXES},
    [KV_P_MIX_B] = {KV_P_MIX_B, MIX_B_DIM, HIDDEN, MIXES_DELTA},
    [KV_P_MIX_A] = {KV_P_MIX_A, MIX_HEADS, HIDDEN, MIXES_APART},
    [KV_P_MIX_Z] = {KV_P_MIX_Z, MIX_Z_DIM, HIDDEN, MIXES_APART},
    [KV_P_MIX_OUT] = {KV_P_MIX_OUT, HIDDEN, MIX_OUT_DIM, MIXES},
    [KV_P_LAYER_IN] = {KV_P_LAYER_IN, LAYER_EMBED, HIDDEN, LAYER_EMBEDS},
    [KV_P_LAYER_GATE] = {KV_P_LAYER_GATE, LAYER_EMBED, HIDDEN, LAYER_EMBEDS},
    [KV_P_LAYER_OUT] = {KV_P_LAYER_OUT, HIDDEN, LAYER_EMBED, LAYER_EMBEDS},
    [KV_P_LAUREL_DOWN] = {KV_P_LAUREL_DOWN, LAUREL_RANK, HIDDEN, ALTUP},
    [KV_P_LAUREL_UP] = {KV_P_LAUREL_UP, HIDDEN, LAUREL_RANK, ALTUP},
    [KV_P_ALTUP_ROUTER] = {KV_P_ALTUP_ROUTER, STREAMS, HIDDEN, ALTUP},
    [KV_P_ALTUP_PREDICT] = {KV_P_ALTUP_PREDICT, STREAMS_SQUARE, STREAMS, ALTUP},
    [KV_P_ALTUP_CORRECT] = {KV_P_ALTUP_CORRECT, STREAMS, STREAMS, ALTUP},
    [KV_P_ROUTER] = {KV_P_ROUTER, N_EXPERTS, HIDDEN, EXPERTS},
    [KV_P_SHARED_MIX] = {KV_P_SHARED_MIX, ONE, HIDDEN, SHARED_MIX},
    [KV_P_SHARED_GATE] = {KV_P_SHARED_GATE, SHARED_INTER, HIDDEN, SHARED_GATED},
    [KV_P_SHARED_UP] = {KV_P_SHARED_UP, SHARED_INTER, HIDDEN, SHARED},
    [KV_P_SHARED_DOWN] = {KV_P_SHARED_DOWN, HIDDEN, SHARED_INTER, SHARED},
    [KV_P_GATE] = {KV_P_GATE, INTER, HIDDEN, GATED},
    [KV_P_UP] = {KV_P_UP, INTER, HIDDEN, MLP},
    [KV_P_DOWN] = {KV_P_DOWN, HIDDEN, INTER, MLP},
    [KV_P_Q_BIAS] = {KV_P_Q, Q_DIM, NONE, QKV_BIAS},
    [KV_P_K_BIAS] = {KV_P_K, KV_DIM, NONE, QKV_BIAS},
    [KV_P_V_BIAS] = {KV_P_V, KV_DIM, NONE, QKV_BIAS},
    [KV_P_O_BIAS] = {KV_P_O, HIDDEN, NONE, O_BIAS},
    [KV_P_GATE_BIAS] = {KV_P_GATE, INTER, NONE, GATE_BIAS},
    [KV_P_UP_BIAS] = {KV_P_UP, INTER, NONE, MLP_BIAS},
    [KV_P_DOWN_BIAS] = {KV_P_DOWN, HIDDEN, NONE, MLP_BIAS},
    [KV_P_ROUTER_BIAS] = {KV_P_ROUTER, N_EXPERTS, NONE, ROUTER_BIAS},
    [KV_P_SINKS] = {KV_P_SINKS, N_HEADS, NONE, SINKS},
    [KV_P_EXPERT_SCALE] = {KV_P_EXPERT_SCALE, N_EXPERTS, NONE, MOE_BESIDE},
    [KV_P_CHOICE_BIAS] = {KV_P_CHOICE_BIAS, N_EXPERTS, NONE, CHOICE_BIAS},
    [KV_P_MIX_CONV] = {KV_P_MIX_CONV, MIX_CONV_DIM, NONE, MIXES},
    [KV_P_MIX_CONV_BIAS] = {KV_P_MIX_CONV, MIX_CHANNELS, NONE, MIXES_BIAS},
    [KV_P_MIX_DECAY] = {KV_P_MIX_DECAY, MIX_HEADS, NONE, MIXES_SSM},
    [KV_P_MIX_STEP] = {KV_P_MIX_STEP, MIX_HEADS, NONE, MIXES_SSM},
    [KV_P_MIX_SKIP] = {KV_P_MIX_SKIP, MIX_HEADS, NONE, MIXES_MAMBA},
    [KV_P_MIX_NORM] = {KV_P_MIX_NORM, MIX_NORM_DIM, NONE, MIXES_SSM},
    [KV_P_LAYER_SCALE] = {KV_P_LAYER_SCALE, ONE, NONE, BY_KIND},
    [KV_P_ALTUP_SCALE] = {KV_P_ALTUP_SCALE, HIDDEN, NONE, ALTUP},
    [KV_P_ATTN_NORM] = {KV_P_ATTN_NORM, HIDDEN, NONE, ATTN_NORM},
    [KV_P_ATTN_NORM_BIAS] = {KV_P_ATTN_NORM, HIDDEN, NONE, NORM_BIAS},
    [KV_P_MLP_NORM] = {KV_P_MLP_NORM, HIDDEN, NONE, MLP_NORM},
    [KV_P_MLP_NORM_BIAS] = {KV_P_MLP_NORM, HIDDEN, NONE, NORM_BIAS},
    [KV_P_Q_NORM] = {KV_P_Q_NORM, Q_NORM_DIM, NONE, QK_NORM},
    [KV_P_Q_NORM_BIAS] = {KV_P_Q_NORM, Q_NORM_DIM, NONE, QK_NORM_BIAS},
    [KV_P_K_NORM] = {KV_P_K_NORM, K_NORM_DIM, NONE, K_NORM},
    [KV_P_K_NORM_BIAS] = {KV_P_K_NORM, K_NORM_DIM, NONE, QK_NORM_BIAS},
    [KV_P_Q_DOWN_NORM] = {KV_P_Q_DOWN_NORM, Q_RANK, NONE, Q_LATENT},
    [KV_P_KV_DOWN_NORM] = {KV_P_KV_DOWN_NORM, LATENT, NONE, KV_LATENT},
    [KV_P_ATTN_OUT_NORM] = {KV_P_ATTN_OUT_NORM, HIDDEN, NONE, SANDWICH},
    [KV_P_MLP_OUT_NORM] = {KV_P_MLP_OUT_NORM, HIDDEN, NONE, SANDWICH},
    [KV_P_LAYER_IN_NORM] = {KV_P_LAYER_IN_NORM, LAYER_EMBED, NONE,
                            LAYER_EMBEDS},
    [KV_P_LAYER_OUT_NORM] = {KV_P_LAYER_OUT_NORM, HIDDEN, NONE, LAYER_EMBEDS},
    [KV_P_ROUTER_NORM] = {KV_P_ROUTER_NORM, HIDDEN, NONE, MOE_BESIDE},
    [KV_P_EXPERTS_NORM] = {KV_P_EXPERTS_NORM, HIDDEN, NONE, MOE_BESIDE},
    [KV_P_SHARED_OUT_NORM] = {KV_P_SHARED_OUT_NORM, HIDDEN, NONE, MOE_BESIDE},
    [KV_P_EXPERTS_OUT_NORM] = {KV_P_EXPERTS_OUT_NORM, HIDDEN, NONE, MOE_BESIDE},
    [KV_P_LAUREL_NORM] = {KV_P_LAUREL_NORM, HIDDEN, NONE, ALTUP},
    [KV_P_ALTUP_NORM] = {KV_P_ALTUP_NORM, HIDDEN, NONE, ALTUP},
};

static size_t size_of(enum dim d, const struct kv_config *c, size_t layer)
{
    const struct kv_shape *s = &c->shape;
    const struct kv_latent *l = &c->latent;
    const struct kv_mixer_sizes *m = &c->mixer;
    const bool alike = c->qk_norm == KV_QK_HEAD;
    const size_t head_dim = kv_shape_dim(s, layer);
    const bool delta = c->arch->mixer == KV_MIXER_DELTA;

    switch (d) {
    case HIDDEN:
        return c->hidden;
    case INTER:
        return kv_config_inter(c, layer);
    case SHARED_INTER:
        return c->shared_inter;
    case ONE:
        return 1;
    case N_EXPERTS:
        return c->n_experts;
    case N_HEADS:
        return s->n_heads;
    case Q_DIM:
        return s->n_heads * (s->latent ? l->nope + l->rope : head_dim);
    case O_DIM:
        return s->n_heads * (s->latent ? l->value : head_dim);
    case Q_RANK:
        return l->q_rank;
    case LATENT:
        return s->latent;
    case LATENT_KEY:
        return s->latent + l->rope;
    case LATENT_HEADS:
        return s->n_heads * (l->nope + l->value);
    case KV_DIM:
        return kv_shape_kv_heads(s, layer) * head_dim;
    case Q_NORM_DIM:
        return (alike ? 1 : s->n_heads) * head_dim;
    case K_NORM_DIM:
        return (alike ? 1 : s->n_kv_heads) * head_dim;
    case MIX_DIM:
        return !delta           ? m->in
               : c->mix_by_head ? m->in - 2 * m->v_heads
                                : m->conv;
    case MIX_B_DIM:
        return (c->mix_by_head ? 2 : 1) * m->v_heads;
    case MIX_HEADS:
        return m->v_heads;
    case MIX_Z_DIM:
    case MIX_OUT_DIM:
        return m->out;
    case MIX_CHANNELS:
        return m->conv;
    case MIX_CONV_DIM:
        return m->conv * m->kernel;
    case MIX_NORM_DIM:
        return delta ? m->v_dim : m->out;
    case LAYER_EMBED:
        return c->layer_embed;
    case STREAMS:
        return c->n_streams;
    case STREAMS_SQUARE:
        return c->n_streams * c->n_streams;
    case LAUREL_RANK:
        return c->laurel_rank;
    case NONE:
        break;
    }
    return 0;
}

static bool has(const struct kv_config *c, size_t layer, enum when when)
{
    const bool attends = !kv_shape_stateful(&c->shape, layer);
    const bool bare = kv_config_is_bare(c, layer), mixes = !attends && !bare;
    const bool mlp = kv_config_has_mlp(c, layer);

    switch (when) {
    case Q_WHOLE:
        return attends && !c->latent.q_rank;
    case KV_HEADS:
        return attends && !c->shape.latent && !kv_config_shares(c, layer);
    case Q_LATENT:
        return c->latent.q_rank;
    case KV_LATENT:
        return c->shape.latent;
    case ATTENDS:
        return attends;
    case OUT_GATE:
        return attends && c->arch->out_gate;
    case MIXES:
        return mixes;
    case MIXES_DELTA:
        return mixes && c->arch->mixer == KV_MIXER_DELTA;
    case MIXES_APART:
        return has(c, layer, MIXES_DELTA) && !c->mix_by_head;
    case MIXES_BIAS:
        return mixes && c->mixer_bias;
    case MIXES_SSM: /* a state that decays */
        return mixes && c->arch->mixer != KV_MIXER_CONV;
    case MIXES_MAMBA:
        return mixes && c->arch->mixer == KV_MIXER_MAMBA;
    case EXPERTS:
        return kv_config_has_experts(c, layer);
    case SHARED:
        return kv_config_has_experts(c, layer) && c->shared_inter;
    case SHARED_GATED:
        return has(c, layer, SHARED) && !c->arch->plain_mlp;
    case SHARED_MIX:
        return has(c, layer, SHARED) && c->arch->shared;
    case MOE_BESIDE:
        return kv_config_has_experts(c, layer) && c->arch->moe_beside;
    case CHOICE_BIAS:
        return kv_config_has_experts(c, layer) && c->arch->choice_bias;
    case ROUTER_BIAS:
        return kv_config_has_experts(c, layer) && c->arch->router_bias;
    case SINKS:
        return c->arch->sinks;
    case GATED:
        return mlp && !c->arch->plain_mlp;
    case GATE_BIAS:
        return has(c, layer, GATED) && c->mlp_bias;
    case ATTN_NORM:
        return !bare && !c->arch->norm_after;
    case MLP_NORM:
        return mlp && !c->arch->norm_after;
    case NORM_BIAS:
        return c->arch->norm_bias && !c->norm_plain;
    case QKV_BIAS:
        return attends && c->qkv_bias;
    case O_BIAS:
        return attends && c->o_bias;
    case MLP_BIAS:
        return mlp && c->mlp_bias;
    case QK_NORM:
        return attends && c->qk_norm != KV_QK_NONE;
    case QK_NORM_BIAS:
        return has(c, layer, QK_NORM) && c->arch->qk_norm_bias;
    case K_NORM:
        return has(c, layer, QK_NORM) && !kv_config_shares(c, layer);
    case SANDWICH:
        return c->arch->sandwich;
    case BY_KIND:
        return c->arch->by_kind && !c->arch->altup;
    case ALTUP:
        return c->arch->altup;
    case LAYER_EMBEDS:
        return c->layer_embed;
    case MLP:
        break;
    }
    return mlp;
}

enum kv_part kv_part_of(enum kv_part p)
{
    return parts[p].of;
}

bool kv_part_is(const struct kv_config *c, size_t layer, enum kv_part p)
{
    return has(c, layer, parts[p].when);
}

size_t kv_part_rows(const struct kv_config *c, size_t layer, enum kv_part p)
{
    return size_of(parts[p].rows, c, layer);
}

size_t kv_part_cols(const struct kv_config *c, size_t layer, enum kv_part p)
{
    return size_of(parts[p].cols, c, layer);
}
