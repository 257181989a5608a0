/* Caches of every_scheme.h filled with synthetic rows, and compared. */
#ifndef CACHE_ROWS_H
#define CACHE_ROWS_H

#include "lib/base/alloc.h"
#include "lib/seq/cache_bytes.h"
#include "tests/every_scheme.h"
#include "tests/synthetic.h"
#include "tests/test.h"

/* q: [n][heads][head_dim]; k, v: [n][kv_heads][head_dim]. */
struct rows {
    float *q, *k, *v;
};

static inline struct rows rows(const struct ready *r, size_t n)
{
    const struct rows x = {.q = kv_alloc(n, query_values(r) * sizeof(*x.q)),
                           .k = kv_alloc(n, row_values(r) * sizeof(*x.k)),
                           .v = kv_alloc(n, row_values(r) * sizeof(*x.v))};

    synthetic_rows(&r->shape, r->shape.n_heads, 40, n, x.q);
    synthetic_rows(&r->shape, r->shape.n_kv_heads, 41, n, x.k);
    synthetic_rows(&r->shape, r->shape.n_kv_heads, 42, n, x.v);
    for (size_t t = 0; t < n; t += 29) /* massive tokens */
        for (size_t i = 0; i < row_values(r); i++)
            x.v[t * row_values(r) + i] *= 0.02f;
    return x;
}

/* Returns the rows from token t on. */
static inline struct rows rows_from(const struct ready *r, struct rows x,
                                    size_t t)
{
    return (struct rows){.q = x.q + t * query_values(r),
                         .k = x.k + t * row_values(r),
                         .v = x.v + t * row_values(r)};
}

static inline void free_rows(struct rows x)
{
    free(x.q);
    free(x.k);
    free(x.v);
}

static inline int append(struct kv_cache *c, struct rows x, size_t n,
                         struct kv_err *e)
{
    return append_all(c, x.q, x.k, x.v, n, e);
}

/* Returns a cache of n tokens, appended `step` at a time. */
static inline struct kv_cache *filled(const struct ready *r, struct rows x,
                                      size_t n, size_t step)
{
    struct kv_cache *c = new_cache(r);
    struct kv_err e;

    for (size_t t = 0; t < n; t += step) {
        const size_t m = n - t < step ? n - t : step;

        if (append(c, rows_from(r, x, t), m, &e))
            fail_msg("%s", e.msg);
    }
    return c;
}

static inline void assert_same(const struct kv_cache *a,
                               const struct kv_cache *b, const char *spec,
                               const char *what, size_t n)
{
    assert_int_equal(kv_cache_tokens(a), kv_cache_tokens(b));
    for (int side = 0; side < KV_SIDES; side++) {
        const struct kv_reader ra = kv_cache_reader(a, (enum kv_side)side);
        const struct kv_reader rb = kv_cache_reader(b, (enum kv_side)side);
        uint8_t *x, *y;
        const size_t nx = kv_codes_of(&ra, &x), ny = kv_codes_of(&rb, &y);

        if (nx != ny || memcmp(x, y, nx) != 0)
            fail_msg("%s: %s gives other bytes at %zu tokens", spec, what, n);
        assert_int_equal(kv_cache_clipped(a, (enum kv_side)side),
                         kv_cache_clipped(b, (enum kv_side)side));
        free(x);
        free(y);
    }
}

#endif
