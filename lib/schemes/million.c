/* MILLION (Wang et al. 2025): one codebook per sub-space, shared by all layers
 * and heads as in its code; the newest 128 tokens stay fp16. */
#include "lib/schemes/schemes.h"
#include "lib/schemes/vq.h"

static const struct kv_param params[] = {
    KV_VQ_PARAMS("d", 4, 8, KV_VQ_MODEL, KV_VQ_OWN, KV_VQ_T_NONE, KV_VQ_POST,
                 KV_VQ_W_NONE, 25)};

const struct kv_scheme kv_scheme_million = {
    .name = "million",
    .brief = "MILLION: a codebook per sub-space for the whole model",
    .params = params,
    .residual = 128,
    KV_VQ_SCHEME,
};
