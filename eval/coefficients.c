#include "eval/coefficients.h"
#include "lib/base/alloc.h"

#include <stdlib.h>

double kv_coefficients_error(const struct kv_cache *cache, enum kv_side side,
                             const float *x, const float *stored, double *power)
{
    const struct kv_reader r = kv_cache_reader(cache, side);
    const struct kv_codec *c = r.codec;
    const size_t row = c->shape.n_kv_heads * c->shape.head_dim;
    const size_t n = r.n_blocks * c->block;
    float *a = kv_alloc(n, row * sizeof(*a));
    float *b = kv_alloc(n, row * sizeof(*b));
    double error = 0;

    kv_codec_coefficients(c, r.sinks, x + r.sinks * row, n, a);
    kv_codec_coefficients(c, r.sinks, stored + r.sinks * row, n, b);
    for (size_t i = 0; i < n * row; i++) {
        const double y = a[i], e = b[i] - y;

        power[i % row] += y * y;
        error += e * e;
    }
    free(a);
    free(b);
    return error;
}
