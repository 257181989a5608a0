/* EVASION (Wang et al. 2025): a codebook per layer and sub-space, everything
 * quantized.  The four-page paper leaves the sizes open; in our reading its 4
 * bits are d2b8, its 3 bits d4b12, and no outliers are kept apart. */
#include "lib/schemes/codebook.h"
#include "lib/schemes/schemes.h"

static const struct kv_param params[] = {
    KV_CODEBOOK_PARAMS("d", 2, 8, KV_CODEBOOK_LAYER, KV_CODEBOOK_OWN,
                       KV_CODEBOOK_T_NONE, KV_CODEBOOK_POST, KV_CODEBOOK_W_NONE,
                       25, KV_CODEBOOK_INIT_PP, KV_CODEBOOK_SLIDING)};

const struct kv_scheme kv_scheme_evasion = {
    .name = "evasion",
    .brief = "EVASION: a codebook per layer and sub-space, nothing in fp16",
    .params = params,
    .residual = 0,
    KV_CODEBOOK_SCHEME,
};
