/* Attention over the tokens that a cache holds. */
#include "lib/base/alloc.h"
#include "lib/k_bias.h"
#include "lib/scheme.h"
#include "lib/seq/cache.h"
#include "lib/seq/decoded.h"

#include <assert.h>
#include <stdlib.h>

static const struct kv_codec *codec_of(const struct kv_cache *c)
{
    return kv_cache_reader(c, KV_K).codec;
}

struct kv_attend_view kv_cache_view(const struct kv_cache *c, size_t nq)
{
    const size_t n = kv_cache_tokens(c);

    assert(nq <= n);
    return kv_shape_view(&codec_of(c)->shape, n, n - nq, nq);
}

/* Runs the scheme's attend().  If keys are held without the bias, the bias's
 * product with the queries is added to the scores. */
static void attend_on_codes(const struct kv_cache *c,
                            struct kv_attend_view view, const float *q,
                            float *out, struct kv_attend_ops *ops)
{
    const struct kv_codec *kc = codec_of(c);
    const struct kv_reader k = kv_cache_reader(c, KV_K);
    const struct kv_reader v = kv_cache_reader(c, KV_V);
    float *shift = NULL;

    if (kc->less_bias) {
        shift = kv_alloc(view.n_heads * view.nq, view.n * sizeof(*shift));
        kv_k_bias_scores(&kc->shape, &view, q, shift);
        view.shift = shift;
    }
    kc->scheme->attend(&k, &v, &view, q, kv_cache_seed(c), out, ops);
    free(shift);
}

void kv_cache_attend(const struct kv_cache *c, struct kv_attend_view view,
                     const float *q, float *out)
{
    struct kv_decoded d = {0};

    assert(view.n == kv_cache_tokens(c) && view.n_seqs == 1);
    if (kv_codec_attends(codec_of(c))) {
        attend_on_codes(c, view, q, out, NULL);
        return;
    }

    kv_decoded_attend(&d, c, view, q, out);
    kv_decoded_clear(&d);
}

void kv_cache_count_ops(const struct kv_cache *c, size_t nq, const float *q,
                        struct kv_attend_ops *ops)
{
    const struct kv_shape *s = &codec_of(c)->shape;
    float *out = kv_alloc(nq * s->n_heads, s->head_dim * sizeof(*out));

    attend_on_codes(c, kv_cache_view(c, nq), q, out, ops);
    free(out);
}
