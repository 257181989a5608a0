/* Shared by tests of attention: tensors, attention in double, errors. */
#ifndef KV_ATTENTION_SETUP_H
#define KV_ATTENTION_SETUP_H

#include "kernels/attend.h"
#include "lib/base/alloc.h"
#include "lib/base/rng.h"
#include "lib/shape.h"
#include "tests/synthetic.h"
#include "tests/test.h"

#include <math.h>

/* The inputs of attention in a test: q, and the output, are
 * [nq][n_heads][head_dim]. */
struct attention {
    struct kv_shape shape;
    size_t n, nq;
    const float *q, *k, *v; /* k, v: [n][n_kv_heads][head_dim] */
};

static inline size_t out_values(const struct attention *a)
{
    return a->nq * a->shape.n_heads * a->shape.head_dim;
}

/* Computes attention in double. */
static inline void attend_exact(const struct attention *a, float *exact)
{
    kv_attend_c(&(struct kv_attend_job){
        .view = kv_shape_view(&a->shape, a->n, a->n - a->nq, a->nq),
        .q = a->q,
        .out = exact,
        .q_rows = a->nq,
        .k = {.unquantized = a->k},
        .v = {.unquantized = a->v},
    });
}

/* Attends for one query: q, out [d]; k, v: [n] rows, stride apart. */
typedef void attend_one_fn(const float *q, const float *k, const float *v,
                           size_t n, size_t stride, size_t d, float scale,
                           float *out);

/* Computes attention by calling `one` for each query and head. */
static inline void attend_by(attend_one_fn *one, const struct attention *a,
                             float *out)
{
    const struct kv_shape *s = &a->shape;
    const size_t d = s->head_dim, group = s->n_heads / s->n_kv_heads;
    const size_t row = s->n_kv_heads * d;

    for (size_t i = 0; i < a->nq * s->n_heads; i++) {
        const size_t at = i % s->n_heads / group * d;

        one(a->q + i * d, a->k + at, a->v + at,
            a->n - a->nq + i / s->n_heads + 1, row, d, s->attn_scale,
            out + i * d);
    }
}

static inline double rel_err(const float *x, const float *exact, size_t n)
{
    double e2 = 0, x2 = 0;

    for (size_t i = 0; i < n; i++) {
        e2 += pow((double)x[i] - (double)exact[i], 2);
        x2 += pow((double)exact[i], 2);
    }
    return sqrt(e2 / x2);
}

struct tensors {
    float *q, *k, *v;
};

static inline struct tensors tensors(const struct kv_shape *s, size_t n)
{
    enum { NORMALS = 1 << 14 }; /* queries reuse these normals to save time */
    float *normal = kv_alloc(NORMALS, sizeof(*normal));
    const size_t row = s->n_kv_heads * s->head_dim;
    const struct tensors x = {
        .q = kv_alloc(n, s->n_heads * s->head_dim * sizeof(float)),
        .k = kv_alloc(n, row * sizeof(float)),
        .v = kv_alloc(n, row * sizeof(float))};

    for (size_t i = 0; i < NORMALS; i++)
        normal[i] = (float)kv_random_normal(3, i);
    for (size_t i = 0; i < n * s->n_heads * s->head_dim; i++)
        x.q[i] = normal[kv_random(4, i) % NORMALS];
    free(normal);
    synthetic_rows(s, s->n_kv_heads, 41, n, x.k);
    synthetic_rows(s, s->n_kv_heads, 42, n, x.v);
    return x;
}

static inline void free_tensors(struct tensors x)
{
    free(x.q);
    free(x.k);
    free(x.v);
}

#endif
