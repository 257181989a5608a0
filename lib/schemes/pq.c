/* Product quantization (Jegou, Douze, Schmid 2011), the base line of the
 * others: a codebook per layer and sub-space. */
#include "lib/schemes/schemes.h"
#include "lib/schemes/vq.h"

static const struct kv_param params[] = {
    KV_VQ_PARAMS("d", 4, 8, KV_VQ_LAYER, KV_VQ_OWN, KV_VQ_T_NONE, KV_VQ_POST,
                 KV_VQ_W_NONE, 25, KV_VQ_INIT_PP, KV_VQ_SLIDING)};

const struct kv_scheme kv_scheme_pq = {
    .name = "pq",
    .brief = "product quantization: a codebook per layer and sub-space",
    .params = params,
    .residual = 0,
    KV_VQ_SCHEME,
};
