"""The small models that scripts/make-goldens.py makes: a class of transformers and
its config each, under the name of its folder in tests/golden."""

N = 24  # tokens of a golden file

SMALL = dict(
    vocab_size=53, hidden_size=18, num_hidden_layers=2, num_attention_heads=3,
    num_key_value_heads=1, head_dim=10, intermediate_size=27,
    max_position_embeddings=64)

# Fields of a config with linear attention.
DELTA = dict(
    linear_conv_kernel_dim=4, linear_key_head_dim=6, linear_value_head_dim=5,
    linear_num_key_heads=2, linear_num_value_heads=4)

LATENT = dict(
    vocab_size=53, hidden_size=18, num_hidden_layers=2, num_attention_heads=3,
    num_key_value_heads=3, intermediate_size=27, moe_intermediate_size=5,
    max_position_embeddings=64, kv_lora_rank=8, q_lora_rank=7,
    qk_nope_head_dim=6, qk_rope_head_dim=4, v_head_dim=5)

# Fields of Nemotron-H's config.
MAMBA = dict(
    vocab_size=53, hidden_size=18, num_attention_heads=3,
    num_key_value_heads=1, head_dim=10, intermediate_size=27,
    max_position_embeddings=64, mamba_num_heads=4, mamba_head_dim=5,
    n_groups=2, ssm_state_size=7)

# Fields of Gemma 4's config: head sizes differ by kind of layer.
GEMMA4 = dict(
    vocab_size=53, hidden_size=18, num_attention_heads=4,
    num_key_value_heads=2, head_dim=6, global_head_dim=8,
    intermediate_size=27, sliding_window=8, max_position_embeddings=64,
    rms_norm_eps=0.02)

# name: (class, config)
MODELS = {
    "mistral": ("MistralForCausalLM", dict(SMALL, sliding_window=8)),
    "qwen2": ("Qwen2ForCausalLM", SMALL),
    "qwen3": ("Qwen3ForCausalLM", SMALL),
    "gemma": ("GemmaForCausalLM", dict(SMALL, hidden_act="gelu_pytorch_tanh")),
    "gemma2": ("Gemma2ForCausalLM", dict(
        SMALL, sliding_window=8, query_pre_attn_scalar=10,
        attn_logit_softcapping=3.0, final_logit_softcapping=4.0)),
    "gemma3": ("Gemma3ForCausalLM", dict(
        SMALL, layer_types=["sliding_attention", "full_attention",
                            "sliding_attention"],
        num_hidden_layers=3, sliding_window=8, query_pre_attn_scalar=14,
        rope_parameters=dict(
            sliding_attention=dict(rope_type="default", rope_theta=100.0),
            full_attention=dict(rope_type="linear", factor=2.0,
                                rope_theta=1000.0)))),
    "gemma4": ("Gemma4ForCausalLM", dict(
        GEMMA4, num_hidden_layers=5, num_kv_shared_layers=2,
        use_double_wide_mlp=True, hidden_size_per_layer_input=5,
        vocab_size_per_layer_input=53, final_logit_softcapping=4.0,
        layer_types=["sliding_attention", "full_attention", "full_attention",
                     "sliding_attention", "full_attention"])),
    "gemma4_moe": ("Gemma4ForCausalLM", dict(
        GEMMA4, num_hidden_layers=3, hidden_size_per_layer_input=5,
        vocab_size_per_layer_input=53, enable_moe_block=True, num_experts=4,
        top_k_experts=2, moe_intermediate_size=7, num_kv_shared_layers=1,
        layer_types=["sliding_attention", "full_attention",
                     "full_attention"])),
    "gemma4_keys": ("Gemma4ForCausalLM", dict(
        GEMMA4, num_hidden_layers=3, hidden_size_per_layer_input=0,
        attention_k_eq_v=True, num_global_key_value_heads=1,
        layer_types=["sliding_attention", "sliding_attention",
                     "full_attention"])),
    "gemma3n": ("Gemma3nForCausalLM", dict(
        vocab_size=57, vocab_size_per_layer_input=52, hidden_size=18,
        num_hidden_layers=5, num_attention_heads=3, num_key_value_heads=1,
        head_dim=10, intermediate_size=27, max_position_embeddings=64,
        sliding_window=8, num_kv_shared_layers=2, altup_num_inputs=3,
        laurel_rank=5, hidden_size_per_layer_input=4, rms_norm_eps=0.02,
        activation_sparsity_pattern=[0.75, 0.75, 0.0, 0.75, 0.0],
        layer_types=["sliding_attention", "full_attention", "full_attention",
                     "sliding_attention", "full_attention"])),
    "gpt2": ("GPT2LMHeadModel", dict(
        vocab_size=53, n_positions=N, n_embd=18, n_layer=2, n_head=3)),
    "opt": ("OPTForCausalLM", dict(
        vocab_size=53, max_position_embeddings=N, hidden_size=18,
        num_hidden_layers=2, num_attention_heads=3, ffn_dim=27,
        word_embed_proj_dim=18, pad_token_id=1)),
    "bloom": ("BloomForCausalLM", dict(
        vocab_size=53, hidden_size=18, n_layer=2, n_head=3)),
    "mpt": ("MptForCausalLM", dict(
        vocab_size=53, d_model=18, n_layers=2, n_heads=3, expansion_ratio=4,
        max_seq_len=N)),
    "gpt_neox": ("GPTNeoXForCausalLM", dict(
        vocab_size=53, hidden_size=24, num_hidden_layers=2,
        num_attention_heads=3, intermediate_size=27,
        max_position_embeddings=64,
        rope_parameters=dict(rope_type="default", rope_theta=10000.0,
                             partial_rotary_factor=0.5))),
    "gpt_neox_sequential": ("GPTNeoXForCausalLM", dict(
        vocab_size=53, hidden_size=24, num_hidden_layers=2,
        num_attention_heads=3, intermediate_size=27,
        max_position_embeddings=64, use_parallel_residual=False,
        rope_parameters=dict(rope_type="default", rope_theta=10000.0,
                             partial_rotary_factor=0.5))),
    "phi": ("PhiForCausalLM", dict(
        vocab_size=53, hidden_size=24, num_hidden_layers=2,
        num_attention_heads=3, intermediate_size=96,
        max_position_embeddings=64,
        rope_parameters=dict(rope_type="default", rope_theta=10000.0,
                             partial_rotary_factor=0.5))),
    "starcoder2": ("Starcoder2ForCausalLM", dict(
        vocab_size=53, hidden_size=18, num_hidden_layers=2,
        num_attention_heads=3, num_key_value_heads=1, intermediate_size=27,
        max_position_embeddings=64, sliding_window=None)),
    "stablelm": ("StableLmForCausalLM", dict(
        vocab_size=53, hidden_size=24, num_hidden_layers=2,
        num_attention_heads=3, num_key_value_heads=3, intermediate_size=17,
        max_position_embeddings=64, use_qkv_bias=True,
        rope_parameters=dict(rope_type="default", rope_theta=10000.0,
                             partial_rotary_factor=0.25))),
    "phi3": ("Phi3ForCausalLM", dict(
        vocab_size=53, hidden_size=18, num_hidden_layers=2,
        num_attention_heads=3, num_key_value_heads=1, intermediate_size=27,
        max_position_embeddings=64, original_max_position_embeddings=64)),
    "smollm3": ("SmolLM3ForCausalLM", dict(
        vocab_size=53, hidden_size=18, num_hidden_layers=4,
        num_attention_heads=3, num_key_value_heads=1, intermediate_size=27,
        max_position_embeddings=64)),
    "smollm3_sliding": ("SmolLM3ForCausalLM", dict(
        vocab_size=53, hidden_size=18, num_hidden_layers=4,
        num_attention_heads=3, num_key_value_heads=1, intermediate_size=27,
        max_position_embeddings=64, no_rope_layer_interval=2,
        use_sliding_window=True, sliding_window=8)),
    "granite": ("GraniteForCausalLM", dict(
        vocab_size=53, hidden_size=18, num_hidden_layers=2,
        num_attention_heads=3, num_key_value_heads=1, intermediate_size=27,
        max_position_embeddings=64, embedding_multiplier=12.0,
        logits_scaling=8.0, residual_multiplier=0.22,
        attention_multiplier=0.3)),
    "cohere": ("CohereForCausalLM", dict(
        vocab_size=53, hidden_size=18, num_hidden_layers=2,
        num_attention_heads=3, num_key_value_heads=1, intermediate_size=27,
        max_position_embeddings=64, logit_scale=0.25)),
    "llama3": ("LlamaForCausalLM", dict(SMALL, rope_parameters=dict(
        rope_type="llama3", rope_theta=10000.0, factor=8.0,
        low_freq_factor=1.0, high_freq_factor=4.0,
        original_max_position_embeddings=16))),
    "yarn": ("LlamaForCausalLM", dict(SMALL, rope_parameters=dict(
        rope_type="yarn", rope_theta=100.0, factor=4.0,
        original_max_position_embeddings=16))),
    "dynamic": ("LlamaForCausalLM", dict(
        SMALL, max_position_embeddings=16, rope_parameters=dict(
            rope_type="dynamic", rope_theta=100.0, factor=2.0))),
    "longrope": ("Phi3ForCausalLM", dict(
        vocab_size=53, hidden_size=24, num_hidden_layers=2,
        num_attention_heads=3, num_key_value_heads=1, intermediate_size=27,
        max_position_embeddings=64, original_max_position_embeddings=16,
        tie_word_embeddings=True, rope_parameters=dict(
            rope_type="longrope", rope_theta=100.0,
            partial_rotary_factor=0.75, short_factor=[1.0, 1.25, 1.5],
            long_factor=[1.5, 2.0, 3.0]))),
    "mixtral": ("MixtralForCausalLM", dict(
        SMALL, intermediate_size=11, num_local_experts=4,
        num_experts_per_tok=2)),
    "qwen3_moe": ("Qwen3MoeForCausalLM", dict(
        SMALL, moe_intermediate_size=11, num_experts=5,
        num_experts_per_tok=3, norm_topk_prob=True)),
    "qwen3_moe_raw": ("Qwen3MoeForCausalLM", dict(
        SMALL, num_hidden_layers=1, moe_intermediate_size=11, num_experts=5,
        num_experts_per_tok=3, norm_topk_prob=False)),
    "falcon": ("FalconForCausalLM", dict(
        vocab_size=53, hidden_size=18, num_hidden_layers=2,
        num_attention_heads=3)),
    "falcon40b": ("FalconForCausalLM", dict(
        vocab_size=53, hidden_size=16, num_hidden_layers=2,
        num_attention_heads=4, num_kv_heads=2,
        new_decoder_architecture=True)),
    "falcon11b": ("FalconForCausalLM", dict(
        vocab_size=53, hidden_size=16, num_hidden_layers=2,
        num_attention_heads=4, num_kv_heads=2,
        new_decoder_architecture=True, num_ln_in_parallel_attn=1)),
    "glm4": ("Glm4ForCausalLM", dict(
        vocab_size=53, hidden_size=18, num_hidden_layers=2,
        num_attention_heads=3, num_key_value_heads=1, head_dim=8,
        intermediate_size=27, max_position_embeddings=64)),
    "exaone4": ("Exaone4ForCausalLM", dict(
        SMALL, num_hidden_layers=4, sliding_window=8,
        sliding_window_pattern=2)),
    "nemotron": ("NemotronForCausalLM", dict(
        vocab_size=53, hidden_size=24, num_hidden_layers=2,
        num_attention_heads=3, num_key_value_heads=1, intermediate_size=27,
        max_position_embeddings=64)),
    "ministral": ("MinistralForCausalLM", dict(
        SMALL, sliding_window=8,
        layer_types=["sliding_attention", "full_attention"])),
    "cohere2": ("Cohere2ForCausalLM", dict(
        vocab_size=53, hidden_size=18, num_hidden_layers=4,
        num_attention_heads=3, num_key_value_heads=1, intermediate_size=27,
        max_position_embeddings=64, logit_scale=0.25, sliding_window=8)),
    "olmo3": ("Olmo3ForCausalLM", dict(
        vocab_size=53, hidden_size=18, num_hidden_layers=2,
        num_attention_heads=3, num_key_value_heads=3, intermediate_size=27,
        max_position_embeddings=64, sliding_window=8,
        layer_types=["sliding_attention", "full_attention"],
        rope_parameters=dict(
            sliding_attention=dict(rope_type="default", rope_theta=500000.0),
            full_attention=dict(rope_type="yarn", factor=4.0,
                                rope_theta=500000.0,
                                original_max_position_embeddings=16)))),
    "olmo2": ("Olmo2ForCausalLM", dict(
        vocab_size=53, hidden_size=18, num_hidden_layers=2,
        num_attention_heads=3, num_key_value_heads=3, intermediate_size=27,
        max_position_embeddings=64)),
    "stablelm_qk": ("StableLmForCausalLM", dict(
        vocab_size=53, hidden_size=24, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, intermediate_size=17,
        max_position_embeddings=64, qk_layernorm=True,
        use_parallel_residual=True,
        rope_parameters=dict(rope_type="default", rope_theta=10000.0,
                             partial_rotary_factor=0.34))),
    "phi_qk": ("PhiForCausalLM", dict(
        vocab_size=53, hidden_size=24, num_hidden_layers=2,
        num_attention_heads=3, intermediate_size=27, qk_layernorm=True,
        max_position_embeddings=64)),
    "cohere_qk": ("CohereForCausalLM", dict(
        vocab_size=53, hidden_size=16, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, intermediate_size=27,
        max_position_embeddings=64, logit_scale=0.25, use_qk_norm=True)),
    "falcon_rw": ("FalconForCausalLM", dict(
        vocab_size=53, hidden_size=18, num_hidden_layers=2,
        num_attention_heads=3, alibi=True, bias=True, multi_query=False,
        parallel_attn=False)),
    "falcon_sequential": ("FalconForCausalLM", dict(
        vocab_size=53, hidden_size=18, num_hidden_layers=1,
        num_attention_heads=3, bias=True, parallel_attn=False)),
    "starcoder2_plain": ("Starcoder2ForCausalLM", dict(
        vocab_size=53, hidden_size=18, num_hidden_layers=1,
        num_attention_heads=3, num_key_value_heads=1, intermediate_size=27,
        max_position_embeddings=64, sliding_window=8, use_bias=False)),
    "opt_plain": ("OPTForCausalLM", dict(
        vocab_size=53, max_position_embeddings=N, hidden_size=18,
        num_hidden_layers=1, num_attention_heads=3, ffn_dim=27,
        word_embed_proj_dim=18, pad_token_id=1, enable_bias=False,
        layer_norm_elementwise_affine=False, activation_function="gelu")),
    "opt_350m": ("OPTForCausalLM", dict(
        vocab_size=53, max_position_embeddings=N, hidden_size=18,
        num_hidden_layers=2, num_attention_heads=3, ffn_dim=27,
        word_embed_proj_dim=12, pad_token_id=1, do_layer_norm_before=False)),
    "mpt_clip": ("MptForCausalLM", dict(
        vocab_size=53, d_model=18, n_layers=1, n_heads=3, expansion_ratio=4,
        max_seq_len=N, attn_config=dict(clip_qkv=0.5))),
    "qwen3_moe_mixed": ("Qwen3MoeForCausalLM", dict(
        SMALL, num_hidden_layers=4, moe_intermediate_size=5, num_experts=3,
        num_experts_per_tok=2, norm_topk_prob=True, mlp_only_layers=[1],
        decoder_sparse_step=2)),
    "qwen2_moe": ("Qwen2MoeForCausalLM", dict(
        vocab_size=53, hidden_size=18, num_hidden_layers=2,
        num_attention_heads=3, num_key_value_heads=1, intermediate_size=27,
        max_position_embeddings=64, moe_intermediate_size=7, num_experts=3,
        num_experts_per_tok=2, shared_expert_intermediate_size=11,
        mlp_only_layers=[1])),
    "glm": ("GlmForCausalLM", dict(
        vocab_size=53, hidden_size=18, num_hidden_layers=2,
        num_attention_heads=3, num_key_value_heads=1, head_dim=8,
        intermediate_size=27, max_position_embeddings=64)),
    "arcee": ("ArceeForCausalLM", SMALL),
    "olmo": ("OlmoForCausalLM", dict(
        vocab_size=53, hidden_size=18, num_hidden_layers=2,
        num_attention_heads=3, num_key_value_heads=1, intermediate_size=27,
        max_position_embeddings=64, clip_qkv=0.5)),
    "olmoe": ("OlmoeForCausalLM", dict(
        vocab_size=53, hidden_size=18, num_hidden_layers=2,
        num_attention_heads=3, num_key_value_heads=3, intermediate_size=7,
        max_position_embeddings=64, num_experts=4, num_experts_per_tok=2)),
    "ernie4_5": ("Ernie4_5ForCausalLM", SMALL),
    "helium": ("HeliumForCausalLM", dict(SMALL, hidden_size=24, head_dim=8)),
    "seed_oss": ("SeedOssForCausalLM", SMALL),
    "gpt_bigcode": ("GPTBigCodeForCausalLM", dict(
        vocab_size=53, n_positions=N, n_embd=18, n_layer=2, n_head=3,
        n_inner=27)),
    "gpt_bigcode_mha": ("GPTBigCodeForCausalLM", dict(
        vocab_size=53, n_positions=N, n_embd=18, n_layer=1, n_head=3,
        multi_query=False)),
    "glm4_moe": ("Glm4MoeForCausalLM", dict(
        vocab_size=53, hidden_size=18, num_hidden_layers=2,
        num_attention_heads=3, num_key_value_heads=1, head_dim=8,
        intermediate_size=27, moe_intermediate_size=5, n_routed_experts=4,
        num_experts_per_tok=2, n_shared_experts=2, routed_scaling_factor=1.5,
        max_position_embeddings=64, use_qk_norm=True, attention_bias=True)),
    "minimax_m2": ("MiniMaxM2ForCausalLM", dict(
        SMALL, num_hidden_layers=1, intermediate_size=7, num_local_experts=4,
        num_experts_per_tok=2, rope_parameters=dict(
            rope_type="default", rope_theta=1e4, partial_rotary_factor=0.4))),
    "ernie4_5_moe": ("Ernie4_5_MoeForCausalLM", dict(
        vocab_size=53, hidden_size=24, num_hidden_layers=3,
        num_attention_heads=3, num_key_value_heads=1, head_dim=8,
        intermediate_size=13, moe_intermediate_size=5, moe_num_experts=4,
        moe_k=2, moe_num_shared_experts=2, max_position_embeddings=64,
        moe_layer_end_index=1)),
    "mistral3": ("Mistral3ForConditionalGeneration", dict(
        text_config=dict(SMALL, model_type="mistral", num_hidden_layers=1),
        image_token_index=52, vision_config=dict(
            model_type="pixtral", hidden_size=8, intermediate_size=4,
            num_hidden_layers=1, num_attention_heads=1, image_size=4,
            patch_size=2, head_dim=8))),
    "qwen2_5_vl": ("Qwen2_5_VLForConditionalGeneration", dict(
        text_config=dict(
            SMALL, num_hidden_layers=1, hidden_size=24, head_dim=8,
            rope_parameters=dict(rope_type="default", rope_theta=1e4,
                                 mrope_section=[1, 1, 2])),
        vision_config=dict(
            depth=1, hidden_size=8, intermediate_size=4, num_heads=1,
            out_hidden_size=24, patch_size=2, spatial_merge_size=1,
            window_size=4, fullatt_block_indexes=[0]))),
    "gpt_oss_bf16": ("GptOssForCausalLM", dict(
        SMALL, intermediate_size=7, num_local_experts=4,
        num_experts_per_tok=2, sliding_window=8, swiglu_limit=0.3,
        swiglu_alpha=2.5, rope_parameters=dict(
            rope_type="yarn", rope_theta=100.0, factor=4.0, truncate=False,
            original_max_position_embeddings=16))),
    "gpt_oss_mxfp4": ("GptOssForCausalLM", dict(
        SMALL, hidden_size=32, head_dim=12, intermediate_size=32,
        num_local_experts=3, num_experts_per_tok=2, sliding_window=8,
        rope_parameters=dict(
            rope_type="yarn", rope_theta=100.0, factor=4.0,
            original_max_position_embeddings=16))),
    "deepseek_v2": ("DeepseekV2ForCausalLM", dict(
        LATENT, q_lora_rank=None, norm_topk_prob=False, n_routed_experts=4,
        num_experts_per_tok=2, first_k_dense_replace=1,
        rope_parameters=dict(
            rope_type="yarn", rope_theta=1e4, factor=4.0,
            original_max_position_embeddings=16, mscale=0.707,
            mscale_all_dim=0.9))),
    "deepseek_v2_groups": ("DeepseekV2ForCausalLM", dict(
        LATENT, num_hidden_layers=1, topk_method="group_limited_greedy",
        n_routed_experts=6, num_experts_per_tok=3, n_group=3, topk_group=2,
        routed_scaling_factor=1.5, n_shared_experts=1)),
    "deepseek_v3": ("DeepseekV3ForCausalLM", dict(
        LATENT, n_routed_experts=6, num_experts_per_tok=3, n_group=3,
        topk_group=2, first_k_dense_replace=1, routed_scaling_factor=1.5,
        num_nextn_predict_layers=1,
        rope_parameters=dict(
            rope_type="yarn", rope_theta=1e4, factor=4.0,
            original_max_position_embeddings=16, mscale=1.0,
            mscale_all_dim=1.0))),
    "deepseek_v3_halves": ("DeepseekV3ForCausalLM", dict(
        LATENT, num_hidden_layers=1, n_routed_experts=4, num_experts_per_tok=2,
        n_group=1, topk_group=1, first_k_dense_replace=0, norm_topk_prob=False,
        rope_interleave=False)),
    "glm4_moe_lite": ("Glm4MoeLiteForCausalLM", dict(
        LATENT, n_routed_experts=4, num_experts_per_tok=2, v_head_dim=9,
        rms_norm_eps=1e-3)),
    "lfm2": ("Lfm2ForCausalLM", dict(
        vocab_size=53, hidden_size=18, num_hidden_layers=4,
        num_attention_heads=3, num_key_value_heads=1, intermediate_size=27,
        max_position_embeddings=64, block_multiple_of=5,
        block_ffn_dim_multiplier=1.5, full_attn_idxs=[1, 3])),
    "qwen3_next": ("Qwen3NextForCausalLM", dict(
        SMALL, **DELTA, num_hidden_layers=3, full_attention_interval=2,
        head_dim=8, moe_intermediate_size=7, num_experts=3,
        num_experts_per_tok=2, shared_expert_intermediate_size=11,
        mlp_only_layers=[0], rope_parameters=dict(
            rope_type="default", rope_theta=1e4, partial_rotary_factor=0.5))),
    "qwen3_5": ("Qwen3_5ForCausalLM", dict(
        SMALL, **DELTA, num_hidden_layers=3, full_attention_interval=3,
        head_dim=8, rms_norm_eps=0.02)),
    "qwen3_5_wrapped": ("Qwen3_5ForConditionalGeneration", dict(
        text_config=dict(
            SMALL, **DELTA, num_hidden_layers=2, full_attention_interval=2,
            head_dim=8, tie_word_embeddings=True, rope_parameters=dict(
                rope_type="default", rope_theta=1e4, mrope_section=[1, 0, 0],
                mrope_interleaved=True, partial_rotary_factor=0.25)),
        vision_config=dict(
            depth=1, hidden_size=8, intermediate_size=4, num_heads=1,
            out_hidden_size=18, patch_size=2, spatial_merge_size=1,
            num_position_embeddings=4, deepstack_visual_indexes=[0]))),
    "granite_hybrid": ("GraniteMoeHybridForCausalLM", dict(
        vocab_size=53, hidden_size=18, num_hidden_layers=4,
        num_attention_heads=3, num_key_value_heads=1, num_local_experts=0,
        shared_intermediate_size=23, max_position_embeddings=64,
        layer_types=["mamba", "attention", "mamba", "attention"],
        mamba_n_heads=6, mamba_d_state=7, mamba_n_groups=2,
        embedding_multiplier=12.0, logits_scaling=8.0,
        residual_multiplier=0.22, attention_multiplier=0.3)),
    "granite_hybrid_moe": ("GraniteMoeHybridForCausalLM", dict(
        vocab_size=53, hidden_size=18, num_hidden_layers=2,
        num_attention_heads=3, num_key_value_heads=1, num_local_experts=4,
        num_experts_per_tok=2, intermediate_size=7,
        shared_intermediate_size=13, max_position_embeddings=64,
        layer_types=["mamba", "attention"], mamba_n_heads=3, mamba_d_state=8,
        attention_multiplier=0.3)),
    "lfm2_moe": ("Lfm2MoeForCausalLM", dict(
        vocab_size=53, hidden_size=18, num_hidden_layers=3,
        num_attention_heads=3, num_key_value_heads=1, intermediate_size=27,
        moe_intermediate_size=7, num_experts=4, num_experts_per_tok=2,
        num_dense_layers=1, routed_scaling_factor=1.5,
        max_position_embeddings=64,
        layer_types=["conv", "full_attention", "conv"])),
    "qwen3_5_moe": ("Qwen3_5MoeForCausalLM", dict(
        DELTA, vocab_size=53, hidden_size=18, num_hidden_layers=2,
        num_attention_heads=3, num_key_value_heads=1, head_dim=8,
        full_attention_interval=2, moe_intermediate_size=7, num_experts=3,
        num_experts_per_tok=2, shared_expert_intermediate_size=11,
        max_position_embeddings=64, rms_norm_eps=0.02)),
    "granite_hybrid_rope": ("GraniteMoeHybridForCausalLM", dict(
        vocab_size=53, hidden_size=18, num_hidden_layers=2,
        num_attention_heads=3, num_key_value_heads=1, num_local_experts=0,
        shared_intermediate_size=23, max_position_embeddings=64,
        layer_types=["mamba", "attention"], mamba_n_heads=3, mamba_d_state=8,
        mamba_conv_bias=False, position_embedding_type="rope",
        residual_multiplier=0.5)),
    "nemotron_h": ("NemotronHForCausalLM", dict(
        MAMBA, layers_block_type=["linear_attention", "mlp", "full_attention",
                                  "mlp", "full_attention"])),
    "nemotron_h_moe": ("NemotronHForCausalLM", dict(
        MAMBA, moe_intermediate_size=7, n_routed_experts=4, n_group=2,
        moe_shared_expert_intermediate_size=11, routed_scaling_factor=1.5,
        use_conv_bias=False, time_step_min=0.4,
        layers_block_type=["linear_attention", "moe", "full_attention",
                           "linear_attention", "mlp"])),
    # Variants that llama.cpp can represent: experts in all layers, no scale of
    # the experts' shares, four streams, no MLP beside experts.
    "qwen3_next_experts": ("Qwen3NextForCausalLM", dict(
        SMALL, **DELTA, num_hidden_layers=2, full_attention_interval=2,
        head_dim=8, moe_intermediate_size=7, num_experts=3,
        num_experts_per_tok=2, shared_expert_intermediate_size=11,
        rms_norm_eps=0.02, rope_parameters=dict(
            rope_type="default", rope_theta=1e4,
            partial_rotary_factor=0.5))),
    "lfm2_moe_unscaled": ("Lfm2MoeForCausalLM", dict(
        vocab_size=53, hidden_size=18, num_hidden_layers=2,
        num_attention_heads=3, num_key_value_heads=1, intermediate_size=27,
        moe_intermediate_size=7, num_experts=4, num_experts_per_tok=2,
        num_dense_layers=1, max_position_embeddings=64,
        layer_types=["conv", "full_attention"])),
    "gemma3n_four": ("Gemma3nForCausalLM", dict(
        vocab_size=53, vocab_size_per_layer_input=53, hidden_size=18,
        num_hidden_layers=3, num_attention_heads=3, num_key_value_heads=1,
        head_dim=10, intermediate_size=27, max_position_embeddings=64,
        sliding_window=8, num_kv_shared_layers=1, altup_num_inputs=4,
        laurel_rank=5, hidden_size_per_layer_input=4, rms_norm_eps=0.02,
        activation_sparsity_pattern=[0.75, 0.0, 0.75],
        layer_types=["sliding_attention", "full_attention",
                     "full_attention"])),
    "nemotron_h_experts": ("NemotronHForCausalLM", dict(
        MAMBA, moe_intermediate_size=7, n_routed_experts=4, n_group=2,
        moe_shared_expert_intermediate_size=11, routed_scaling_factor=1.5,
        use_conv_bias=False,
        layers_block_type=["linear_attention", "moe", "full_attention"])),
    "phimoe": ("PhimoeForCausalLM", dict(
        vocab_size=53, hidden_size=24, num_hidden_layers=2,
        num_attention_heads=3, num_key_value_heads=1, intermediate_size=11,
        max_position_embeddings=64, num_local_experts=4, lm_head_bias=True,
        attention_bias=True, router_jitter_noise=0.4, rope_parameters=dict(
            rope_type="longrope", rope_theta=100.0, short_mscale=1.25,
            long_mscale=1.25, attention_factor=1.25,
            original_max_position_embeddings=16,
            short_factor=[1.0, 1.25, 1.5, 1.75],
            long_factor=[1.5, 2.0, 3.0, 3.5]))),
    "hunyuan": ("HunYuanDenseV1ForCausalLM", dict(
        SMALL, max_position_embeddings=32768, attention_bias=True,
        rope_parameters=dict(
            rope_type="dynamic", rope_theta=10000.0, factor=1.0,
            alpha=1000.0))),
    "hunyuan_moe": ("HunYuanMoEV1ForCausalLM", dict(
        SMALL, hidden_size=24, head_dim=6, num_attention_heads=4,
        num_key_value_heads=2, intermediate_size=7, num_experts=4,
        moe_topk=[2, 2], max_position_embeddings=32768, rope_parameters=dict(
            rope_type="dynamic", rope_theta=10000.0, factor=1.0,
            alpha=1000.0))),
    "granite_moe": ("GraniteMoeForCausalLM", dict(
        vocab_size=53, hidden_size=18, num_hidden_layers=2,
        num_attention_heads=3, num_key_value_heads=1, intermediate_size=7,
        max_position_embeddings=64, num_local_experts=4, num_experts_per_tok=2,
        embedding_multiplier=12.0, logits_scaling=8.0,
        residual_multiplier=0.22, attention_multiplier=0.3)),
    "dots1": ("Dots1ForCausalLM", dict(
        SMALL, num_hidden_layers=3, head_dim=6, num_attention_heads=3,
        num_key_value_heads=1, intermediate_size=13, moe_intermediate_size=5,
        n_routed_experts=4, num_experts_per_tok=2, n_shared_experts=2,
        n_group=2, topk_group=1, first_k_dense_replace=1, sliding_window=None,
        routed_scaling_factor=1.5, attention_bias=True)),
    "qwen3_vl_moe": ("Qwen3VLMoeForConditionalGeneration", dict(
        text_config=dict(
            SMALL, hidden_size=24, head_dim=8, intermediate_size=13,
            moe_intermediate_size=5, num_experts=4, num_experts_per_tok=2,
            rope_parameters=dict(
                rope_type="default", rope_theta=1e4, mrope_section=[2, 1, 1],
                mrope_interleaved=True)),
        vision_config=dict(
            depth=1, hidden_size=8, intermediate_size=4, num_heads=1,
            out_hidden_size=24, patch_size=2, spatial_merge_size=1,
            num_position_embeddings=4, deepstack_visual_indexes=[0]))),
    "minicpm": ("LlamaForCausalLM", dict(SMALL, head_dim=6)),
    "minicpm_long": ("LlamaForCausalLM", dict(
        SMALL, num_hidden_layers=1, head_dim=6, rope_parameters=dict(
            rope_type="longrope", rope_theta=10000.0,
            original_max_position_embeddings=64, short_factor=[1.5, 2.0, 3.0],
            long_factor=[9.0, 9.0, 9.0]))),
    "mimo": ("Qwen2ForCausalLM", dict(SMALL, num_hidden_layers=1)),
    "ministral3": ("Ministral3ForCausalLM", dict(
        SMALL, head_dim=6, rope_parameters=dict(
            rope_type="yarn", rope_theta=10000.0, factor=4.0, beta_fast=8.0,
            beta_slow=1.0, mscale=1.0, mscale_all_dim=1.0,
            llama_4_scaling_beta=0.5, original_max_position_embeddings=24))),
    "internlm2": ("LlamaForCausalLM", dict(
        SMALL, hidden_size=24, num_attention_heads=4, num_key_value_heads=2,
        head_dim=6)),
    "gptj": ("GPTJForCausalLM", dict(
        vocab_size=53, n_positions=64, n_embd=24, n_layer=2, n_head=3,
        n_inner=27, rotary_dim=4, tie_word_embeddings=False)),
}


# Models whose code is not in transformers: made from a Llama or Qwen 2 with the
# same values, as their conversion scripts do.  The fields that their
# config.json has in addition, or lacks (None).
OWN_CODE = dict(
    minicpm=dict(architectures=["MiniCPMForCausalLM"], model_type="minicpm",
                 scale_emb=12, scale_depth=1.4, dim_model_base=4,
                 rope_theta=10000.0, rope_parameters=None,
                 tie_word_embeddings=None, mlp_bias=None, head_dim=None),
    minicpm_long=dict(architectures=["MiniCPMForCausalLM"],
                      model_type="minicpm", scale_emb=12, scale_depth=1.4,
                      dim_model_base=4, mup_denominator=32, rope_theta=10000.0,
                      rope_scaling=dict(
                          rope_type="longrope", short_factor=[1.5, 2.0, 3.0],
                          long_factor=[9.0, 9.0, 9.0],
                          original_max_position_embeddings=64),
                      rope_parameters=None, tie_word_embeddings=None,
                      mlp_bias=None, head_dim=None),
    mimo=dict(architectures=["MiMoForCausalLM"], model_type="mimo",
              attention_bias=True, num_nextn_predict_layers=1, use_mrope=False,
              layer_types=None),
    internlm2=dict(architectures=["InternLM2ForCausalLM"],
                   model_type="internlm2", bias=False, rope_theta=10000.0,
                   rope_scaling=dict(type="dynamic", factor=2.0),
                   rope_parameters=None, attention_bias=None, mlp_bias=None,
                   head_dim=None))


MODELS["opt_decoder"] = MODELS["opt"]
MODELS["llama_headless"] = ("LlamaForCausalLM",
                            dict(SMALL, tie_word_embeddings=True))


# In these models' files tensors are named as in the model without its head.
HEADLESS = ("opt_decoder", "llama_headless")


# Models without a GGUF file: llama.cpp lacks them, or its converter does not
# write them without a tokenizer.  Its files of latent attention have one mscale
# for all dimensions.  In hybrids it lacks layers without experts, Granite's
# RoPE, a scale of LFM2's expert shares and a floor of Mamba's steps; in Gemma
# 3n, three streams.
NO_GGUF = ("hunyuan_moe", "minicpm", "minicpm_long", "mimo", "ministral3",
           "internlm2", "dynamic", "phimoe", "ministral", "opt", "mistral",
           "qwen3_moe_raw", "gemma3", "gemma3n", "smollm3_sliding",
           "qwen3_next", "qwen3_5_wrapped", "lfm2_moe", "nemotron_h_moe",
           "granite_hybrid_rope", "deepseek_v2",
           "deepseek_v3_halves", "glm4_moe_lite") + HEADLESS


# Models that are also written with bf16 weights; transformers computes them in
# f32.
BF16 = ("llama3", "qwen2", "gemma2", "gpt2", "mixtral")
MODELS.update({f"{name}_bf16": MODELS[name] for name in BF16})


# These models' files have q, k and v in one tensor, as some GGUF files do.
FUSED = ("phi", "llama3")


# These models' files have all experts in one tensor, as some released files do.
STACKED = ("qwen3_5_moe",)


# These models' files have experts transposed, as released files do, except in
# layer 1.
TURNED = ("qwen3_vl_moe",)


# These models' files have a tensor for each expert.
SPLIT = ("mixtral_bf16",)
