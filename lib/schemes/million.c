/* MILLION (Wang et al. 2025): one codebook per sub-space, shared by all layers
 * and heads.  So does its code, which trains them by faiss, starting from
 * points drawn evenly.  Such a start rarely draws an outlier, and where a few
 * channels are large, outliers make most of the error; init=kmeans++ draws
 * outliers first.
 *
 * Its code encodes the whole prompt, then keeps new tokens in fp16 and encodes
 * 128 at a time.  We do so too, except for the tokens after the prompt's last
 * whole block of 128: they are quantized with the tokens that complete their
 * block, since stored bytes depend only on the tokens (lib/codec.h), not on the
 * prompt's end.  residual=sliding keeps the newest 128 tokens in fp16. */
#include "lib/schemes/codebook.h"
#include "lib/schemes/schemes.h"

static const struct kv_param params[] = {
    KV_CODEBOOK_PARAMS("d", 4, 8, KV_CODEBOOK_MODEL, KV_CODEBOOK_OWN,
                       KV_CODEBOOK_T_NONE, KV_CODEBOOK_POST, KV_CODEBOOK_W_NONE,
                       25, KV_CODEBOOK_INIT_RANDOM, KV_CODEBOOK_BATCHED),
    {0}};

const struct kv_scheme kv_scheme_million = {
    .name = "million",
    .brief = "MILLION: a codebook per sub-space for the whole model",
    .params = params,
    .residual = 128,
    KV_CODEBOOK_SCHEME,
};
