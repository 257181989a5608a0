/* CQ, coupled quantization ("KV Cache is 1 Bit Per Channel", arXiv 2405.03917):
 * c adjacent channels of keys before RoPE, and of values, share a code of b
 * bits.  Each layer, KV head and group of channels has a codebook, trained with
 * weights from Fisher information: a group weighs g^T g, the sum of its
 * channels' squared gradients.  2c8b is c2b8.  The limit of 100 rounds of
 * k-means is our reading. */
#include "lib/schemes/codebook.h"
#include "lib/schemes/schemes.h"

static const struct kv_param params[] = {
    KV_CODEBOOK_PARAMS("c", 4, 8, KV_CODEBOOK_HEAD, KV_CODEBOOK_OWN,
                       KV_CODEBOOK_T_NONE, KV_CODEBOOK_PRE,
                       KV_CODEBOOK_W_FISHER, 100, KV_CODEBOOK_INIT_PP,
                       KV_CODEBOOK_SLIDING),
    {0}};

const struct kv_scheme kv_scheme_cq = {
    .name = "cq",
    .brief =
        "CQ: coupled channels, a Fisher-weighted codebook per head and group",
    .params = params,
    .residual = 0,
    KV_CODEBOOK_SCHEME,
};
