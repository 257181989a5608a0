/* The internals of a model, only for model.c and the passes. */
#ifndef KV_MODEL_IMPL_H
#define KV_MODEL_IMPL_H

#include "lib/model/layers.h"
#include "lib/model/model.h"
#include "lib/model/relay.h"

/* The workspaces of a pass; f32 unless said otherwise. */
enum kv_work {
    KV_WORK_X, /* [tokens][hidden]: the residual stream */
    KV_WORK_Q, /* see struct kv_qkv */
    KV_WORK_K,
    KV_WORK_K_PRE,
    KV_WORK_V,
    KV_WORK_OUT,
    KV_WORK_OUT_GATE,
    KV_WORK_MIXER,
    KV_WORK_EXPERTS_IN, /* see struct kv_pass */
    KV_WORK_EXPERTS_SUM,
    KV_WORK_EXPERTS_SHARE,
    KV_WORK_EMBEDDED,
    KV_WORK_STREAMS,
    KV_WORK_ROPE,
    KV_WORK_INPUT, /* inputs of tiles' products, in the products' type */
    KV_WORK_WIDE,  /* outputs of tiles' products */
    KV_WORK_LOGITS,
    KV_WORK_BASE_LOGITS,
    KV_WORKSPACES
};

struct kv_model {
    struct kv_model_info info;
    struct kv_config config;
    struct kv_weights files;
    struct kv_model_weights weights;
    struct kv_backend *backend;
    struct kv_layers *layers;
    struct kv_workspace workspace[KV_WORKSPACES];
    struct kv_relay relay;                    /* end 0: all layers run here */
    float *k_bias, *sink_logit, *cache_scale; /* the arrays that the shape
                                               * points to, or NULL */
};

#endif
