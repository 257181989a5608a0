/* VecInfer: keys smoothed and Hadamard-transformed, one codebook for keys and
 * one for values of a layer; the newest 128 tokens stay fp16. */
#include "lib/schemes/schemes.h"
#include "lib/schemes/vq.h"

static const struct kv_param params[] = {
    KV_VQ_PARAMS("d", 4, 8, KV_VQ_LAYER, KV_VQ_SHARED, KV_VQ_T_SH, KV_VQ_POST,
                 KV_VQ_W_NONE, 30, KV_VQ_INIT_PP, KV_VQ_SLIDING)};

const struct kv_scheme kv_scheme_vecinfer = {
    .name = "vecinfer",
    .brief =
        "VecInfer: smoothed, Hadamard-transformed keys; a codebook per layer",
    .params = params,
    .residual = 128,
    KV_VQ_SCHEME,
};
