#include "lib/dump.h"
#include "lib/codec.h"
#include "lib/dump_layout.h"

#include <math.h>
#include <stdio.h>

const char *kv_tensor_name(enum kv_tensor t)
{
    static const char *const names[KV_TENSORS] = {
        "q", "k", "v", "k_pre", "k_gradient", "v_gradient"};

    return names[t];
}

enum kv_tensor kv_dump_tensor(const struct kv_codec *c)
{
    if (c->side == KV_V)
        return KV_T_V;
    return c->pre_rope ? KV_T_K_PRE : KV_T_K;
}

const char *kv_dump_option(enum kv_tensor t)
{
    if (t == KV_T_K_GRADIENT || t == KV_T_V_GRADIENT)
        return "--fisher";
    return t == KV_T_Q || t == KV_T_V ? "--what q,k,v"
                                      : "--what q,k,v --rope pre,post";
}

const char *kv_dtype_name(enum kv_dtype t)
{
    static const char *const names[] = {"f32", "f16", "bf16"};

    return names[t];
}

struct kv_dump_name kv_dump_group(size_t layer)
{
    struct kv_dump_name n;

    snprintf(n.text, sizeof(n.text), "/layer_%03zu", layer);
    return n;
}

struct kv_dump_name kv_dump_set(size_t layer, enum kv_tensor t)
{
    struct kv_dump_name n;

    snprintf(n.text, sizeof(n.text), "/layer_%03zu/%s", layer,
             kv_tensor_name(t));
    return n;
}

struct kv_dump_name kv_dump_gram_set(size_t layer)
{
    struct kv_dump_name n;

    snprintf(n.text, sizeof(n.text), "/layer_%03zu/wo_gram", layer);
    return n;
}

size_t kv_dump_heads(const struct kv_dump_info *info, size_t layer,
                     enum kv_tensor t)
{
    return t == KV_T_Q ? info->shape.n_heads
                       : kv_shape_kv_heads(&info->shape, layer);
}

enum kv_dtype kv_dump_dtype(const struct kv_dump_info *info, enum kv_tensor t)
{
    return t == KV_T_K_GRADIENT || t == KV_T_V_GRADIENT ? KV_F32 : info->dtype;
}

enum kv_h5_type kv_dump_type(const struct kv_dump_info *info, enum kv_tensor t)
{
    const enum kv_dtype d = kv_dump_dtype(info, t);

    return d == KV_F16 ? KV_H5_F16 : d == KV_BF16 ? KV_H5_BF16 : KV_H5_F32;
}

size_t kv_dump_bad_value(const float *x, size_t n, float max)
{
    size_t i = 0;

    while (i < n && fabsf(x[i]) <= max)
        i++;
    return i;
}
