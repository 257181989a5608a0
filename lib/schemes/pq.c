/* Product quantization (Jegou, Douze, Schmid 2011), the baseline of the
 * codebook schemes: one codebook for each layer and sub-space. */
#include "lib/schemes/codebook.h"
#include "lib/schemes/schemes.h"

static const struct kv_param params[] = {
    KV_CODEBOOK_PARAMS("d", 4, 8, KV_CODEBOOK_LAYER, KV_CODEBOOK_OWN,
                       KV_CODEBOOK_T_NONE, KV_CODEBOOK_POST, KV_CODEBOOK_W_NONE,
                       25, KV_CODEBOOK_INIT_PP, KV_CODEBOOK_SLIDING),
    {0}};

const struct kv_scheme kv_scheme_pq = {
    .name = "pq",
    .brief = "product quantization: a codebook per layer and sub-space",
    .params = params,
    .residual = 0,
    KV_CODEBOOK_SCHEME,
};
