/* VecInfer: keys smoothed and Hadamard-transformed, one codebook for keys and
 * one for values of a layer; the newest 128 tokens stay fp16. */
#include "lib/schemes/codebook.h"
#include "lib/schemes/schemes.h"

static const struct kv_param params[] = {
    KV_CODEBOOK_PARAMS("d", 4, 8, KV_CODEBOOK_LAYER, KV_CODEBOOK_SHARED,
                       KV_CODEBOOK_T_SH, KV_CODEBOOK_POST, KV_CODEBOOK_W_NONE,
                       30, KV_CODEBOOK_INIT_PP, KV_CODEBOOK_SLIDING),
    {0}};

const struct kv_scheme kv_scheme_vecinfer = {
    .name = "vecinfer",
    .brief =
        "VecInfer: smoothed, Hadamard-transformed keys; a codebook per layer",
    .params = params,
    .residual = 128,
    KV_CODEBOOK_SCHEME,
};
