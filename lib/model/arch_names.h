/* Names of tensors and fields, for the rows of arch.c that have names of their
 * own. */
#ifndef KV_MODEL_ARCH_NAMES_H
#define KV_MODEL_ARCH_NAMES_H

#include "lib/model/arch.h"

extern const struct kv_tensor_names kv_names_llama, kv_names_sandwich,
    kv_names_gpt2, kv_names_opt, kv_names_bloom, kv_names_mpt,
    kv_names_starcoder2, kv_names_phi3, kv_names_gpt_neox, kv_names_cohere,
    kv_names_phi, kv_names_mixtral, kv_names_qwen3_moe, kv_names_falcon,
    kv_names_falcon_new, kv_names_glm4, kv_names_glm, kv_names_gptj,
    kv_names_stablelm, kv_names_qwen2_moe, kv_names_glm4_moe,
    kv_names_minimax_m2, kv_names_ernie4_5_moe, kv_names_gpt_oss,
    kv_names_deepseek, kv_names_lfm2, kv_names_qwen3_next, kv_names_qwen3_5,
    kv_names_granite_hybrid, kv_names_lfm2_moe, kv_names_qwen3_5_moe,
    kv_names_hunyuan, kv_names_gemma4, kv_names_nemotron_h, kv_names_gemma3n,
    kv_names_internlm2, kv_names_qwen3_vl_moe, kv_names_granite_moe,
    kv_names_hunyuan_moe;

extern const struct kv_own_field kv_fields_of_gemma2[], kv_fields_of_gpt2[],
    kv_fields_of_opt[], kv_fields_of_bloom[], kv_fields_of_mpt[],
    kv_fields_of_starcoder2[], kv_fields_of_gpt_neox[], kv_fields_of_stablelm[],
    kv_fields_of_granite[], kv_fields_of_cohere[], kv_fields_of_cohere2[],
    kv_fields_of_phi3[], kv_fields_of_phi[], kv_fields_of_smollm3[],
    kv_fields_of_mixtral[], kv_fields_of_qwen3_moe[], kv_fields_of_falcon[],
    kv_fields_of_falcon_new[], kv_fields_of_falcon_one_norm[],
    kv_fields_of_glm4[], kv_fields_of_nemotron[], kv_fields_of_olmo[],
    kv_fields_of_olmoe[], kv_fields_of_ernie4_5[], kv_fields_of_seed_oss[],
    kv_fields_of_gpt_bigcode[], kv_fields_of_gptj[], kv_fields_of_qwen2_moe[],
    kv_fields_of_wrapped[], kv_fields_of_glm4_moe[], kv_fields_of_minimax_m2[],
    kv_fields_of_ernie4_5_moe[], kv_fields_of_gpt_oss[],
    kv_fields_of_deepseek_v2[], kv_fields_of_deepseek_v3[],
    kv_fields_of_glm4_moe_lite[], kv_fields_of_lfm2[],
    kv_fields_of_qwen3_next[], kv_fields_of_qwen3_5[],
    kv_fields_of_granite_hybrid[], kv_fields_of_lfm2_moe[],
    kv_fields_of_qwen3_5_moe[], kv_fields_of_hunyuan[], kv_fields_of_phimoe[],
    kv_fields_of_gemma4[], kv_fields_of_nemotron_h[], kv_fields_of_gemma3n[],
    kv_fields_of_minicpm[], kv_fields_of_granite_moe[], kv_fields_of_dots1[],
    kv_fields_of_hunyuan_moe[], kv_fields_of_mimo[], kv_fields_of_glm4v[];

#endif
