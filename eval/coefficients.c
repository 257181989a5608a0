#include "eval/coefficients.h"
#include "lib/base/alloc.h"
#include "lib/k_bias.h"
#include "lib/scheme.h"

#include <stdlib.h>

/* n tokens from first on, as the codec has them. */
static void coefficients_of(const struct kv_codec *c, size_t first,
                            const float *x, size_t n, float *y)
{
    const size_t row = c->shape.n_kv_heads * c->shape.head_dim;
    float *less = NULL;

    x += first * row;
    if (c->less_bias) {
        less = kv_alloc(n, row * sizeof(*less));
        kv_k_bias_take(&c->shape, c->pre_rope, first, x, n, less);
        x = less;
    }
    c->scheme->coefficients(c, x, n, y);
    free(less);
}

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

    coefficients_of(c, r.sinks, x, n, a);
    coefficients_of(c, r.sinks, stored, n, b);
    for (size_t i = 0; i < n * row; i++) {
        const double y = a[i], e = b[i] - y;

        power[i % row] += y * y;
        error += e * e;
    }
    free(a);
    free(b);
    return error;
}
