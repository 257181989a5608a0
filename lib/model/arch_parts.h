/* Names of tensors that many architectures share. */
#ifndef KV_MODEL_ARCH_PARTS_H
#define KV_MODEL_ARCH_PARTS_H

#define KV_ARCH_FRAME                                                          \
    .prefix = "model.", .embed = "embed_tokens.weight", .norm = "norm.weight", \
    .head = "lm_head.weight", .layers = "layers."
#define KV_ARCH_Q_K_V_O                   \
    [KV_P_Q] = "self_attn.q_proj.weight", \
    [KV_P_K] = "self_attn.k_proj.weight", \
    [KV_P_V] = "self_attn.v_proj.weight", [KV_P_O] = "self_attn.o_proj.weight"
#define KV_ARCH_GATE_UP_DOWN                                                \
    [KV_P_GATE] = "mlp.gate_proj.weight", [KV_P_UP] = "mlp.up_proj.weight", \
    [KV_P_DOWN] = "mlp.down_proj.weight"

#endif
