/* GGUF keys of models with latent attention. */
#include "lib/model/gguf_maker.h"

#include <string.h>

/* Whether any layer chooses its experts with a bias. */
static bool has_choice_bias(const struct kv_gguf_model *m)
{
    for (size_t p = 0; p < m->n_parts; p++)
        for (size_t i = 0; i < m->part[p].n_tensors; i++)
            if (strstr(m->part[p].tensor[i].name, ".exp_probs_b."))
                return true;
    return false;
}

/* Files of GLM-4.7-Flash lack the key expert_gating_func; they are known by the
 * bias, which files of the other class do not have. */
int kv_gguf_deepseek(const struct kv_gguf_maker *k, const char *names[2],
                     struct kv_err *e)
{
    enum { SOFTMAX = 1, SIGMOID = 2 };
    static const char key[] = "expert_gating_func";
    const struct kv_gguf_value *v;
    int64_t kind;

    if (kv_gguf_maker_get(k, key, KV_GGUF_COUNT, &v, e))
        return -1;
    kind = v ? kv_gguf_int(v, 0) : has_choice_bias(k->m) ? SIGMOID : SOFTMAX;
    if (kind != SOFTMAX && kind != SIGMOID)
        return kv_fail(e, "key %s.%s is %lld; 1 or 2 was expected", k->f->name,
                       key, (long long)kind);
    if (kind == SIGMOID) {
        names[0] = "DeepseekV3ForCausalLM";
        names[1] = "deepseek_v3";
    }
    return 0;
}

/* llama.cpp's defaults for absent keys that differ from the class's
 * defaults. */
static void set_choice(const struct kv_gguf_maker *k)
{
    static const char *const groups[] = {"n_group", "topk_group"};

    if (!json_object_get(k->config, "routed_scaling_factor"))
        kv_gguf_set_real(k->config, "routed_scaling_factor", 1);
    if (!json_object_get(k->config, "n_shared_experts"))
        kv_gguf_set_int(k->config, "n_shared_experts", 0);
    if (!k->arch->sigmoid) {
        json_object_set_new(k->config, "topk_method",
                            json_string(kv_gguf_maker_int(k, "n_group") > 1
                                            ? "group_limited_greedy"
                                            : "greedy"));
        return;
    }
    if (!json_object_get(k->config, "norm_topk_prob"))
        json_object_set_new(k->config, "norm_topk_prob", json_false());
    for (size_t i = 0; i < 2; i++)
        if (kv_gguf_maker_int(k, groups[i]) < 1)
            kv_gguf_set_int(k->config, groups[i], 1);
}

/* Files from before 2025 have the heads' sizes under other keys. */
int kv_gguf_latent(const struct kv_gguf_maker *k, struct kv_err *e)
{
    const struct kv_gguf_value *mla;
    int64_t turning, key, value;

    if (kv_gguf_maker_get(k, "attention.key_length_mla", KV_GGUF_COUNT, &mla,
                          e) ||
        kv_gguf_maker_size(k, "rope.dimension_count", &turning, e) ||
        kv_gguf_maker_size(
            k, mla ? "attention.key_length_mla" : "attention.key_length", &key,
            e) ||
        kv_gguf_maker_size(
            k, mla ? "attention.value_length_mla" : "attention.value_length",
            &value, e))
        return -1;
    if (turning >= key)
        return kv_fail(e,
                       "%s: key %s.rope.dimension_count is %lld; fewer than "
                       "the %lld channels of a head were expected",
                       k->g->path, k->f->name, (long long)turning,
                       (long long)key);
    kv_gguf_set_int(k->config, "qk_nope_head_dim", key - turning);
    kv_gguf_set_int(k->config, "qk_rope_head_dim", turning);
    kv_gguf_set_int(k->config, "v_head_dim", value);
    kv_gguf_set_int(k->config, "head_dim", turning);
    kv_gguf_set_int(k->config, "num_key_value_heads",
                    kv_gguf_maker_int(k, "num_attention_heads"));
    if (!json_object_get(k->config, "q_lora_rank"))
        json_object_set_new(k->config, "q_lora_rank", json_null());
    set_choice(k);
    return 0;
}
