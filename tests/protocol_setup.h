/* Windows of made-up queries, keys and values, and the attention that a
 * protocol gives them. */
#ifndef PROTOCOL_SETUP_H
#define PROTOCOL_SETUP_H

#include "eval/loop.h"
#include "lib/base/alloc.h"
#include "lib/policy.h"
#include "lib/rope_table.h"
#include "tests/every_scheme.h"
#include "tests/synthetic.h"
#include "tests/test.h"

#include <math.h>

enum { WINDOWS = 2, LENGTH = 100 };

struct windows {
    struct kv_qkv x;
    struct kv_backend *cpu;
    float *q, *k, *k_pre, *v, *out, *rope;
};

static inline void make_windows(const struct ready *r, struct windows *w)
{
    const size_t n = WINDOWS * LENGTH, row = row_values(r);
    const size_t q_row = r->shape.n_heads * r->shape.head_dim;

    w->q = kv_alloc(n, q_row * sizeof(float));
    w->out = kv_alloc(n, q_row * sizeof(float));
    w->k = kv_alloc(n, row * sizeof(float));
    w->k_pre = kv_alloc(n, row * sizeof(float));
    w->v = kv_alloc(n, row * sizeof(float));
    synthetic_rows(&r->shape, r->shape.n_heads, 51, n, w->q);
    for (size_t i = 0; i < n * q_row; i++)
        w->q[i] *= 0.3f;
    synthetic_rows(&r->shape, r->shape.n_kv_heads, 52, n, w->k_pre);
    synthetic_rows(&r->shape, r->shape.n_kv_heads, 53, n, w->v);
    for (size_t t = 0; t < n; t += 31) /* massive tokens */
        for (size_t i = 0; i < row; i++)
            w->v[t * row + i] *= 0.02f;
    memcpy(w->k, w->k_pre, n * row * sizeof(float));
    for (size_t i = 0; i < WINDOWS; i++)
        kv_rope(&r->shape, w->k + i * LENGTH * row, LENGTH, r->shape.n_kv_heads,
                0);
    w->cpu = kv_backend_cpu(KV_TYPE_F32);
    w->rope = kv_alloc(LENGTH, 2 * r->shape.n_rot * sizeof(float));
    kv_rope_table(&r->shape, LENGTH, 0, w->rope);
    w->x = (struct kv_qkv){.shape = &r->shape,
                           .backend = w->cpu,
                           .rope = w->rope,
                           .layer = r->layer,
                           .n_windows = WINDOWS,
                           .n = LENGTH,
                           .q = w->q,
                           .k = w->k,
                           .k_pre = w->k_pre,
                           .v = w->v,
                           .out = w->out};
}

static inline void free_windows(struct windows *w)
{
    free(w->q);
    free(w->k);
    free(w->k_pre);
    free(w->v);
    free(w->out);
    free(w->rope);
    kv_backend_free(w->cpu);
}

/* Returns f32 on the synthetic model, with the same sink logits in all
 * layers. */
static inline struct ready f32_ready(void)
{
    static const float sink_logit[] = {0, 1, 2, -1, 0, 1, 2, -1};
    struct ready r = {.shape = synthetic_shape(32), .layer = 1};
    struct kv_err e;

    r.shape.sink_logit = sink_logit;
    assert_int_equal(kv_spec_parse(&r.spec, "f32", &e), 0);
    assert_int_equal(kv_spec_fit(&r.spec, &r.shape, &e), 0);
    return r;
}

/* Returns r with a policy before its spec. */
static inline struct ready with_policy(const struct ready *r,
                                       const char *policy)
{
    struct ready p = *r;
    struct kv_err e = {""};

    if (!kv_policy_parse(&p.spec.policy, policy, &e))
        fail_msg("%s", e.msg);
    kv_spec_print(&p.spec);
    return p;
}

/* Whether the loop takes r's spec under a protocol; if not, e says why. */
static inline bool takes(const struct ready *r, const char *protocol,
                         struct kv_err *e)
{
    struct kv_protocol p;
    struct kv_loop *l;
    bool takes;

    assert_int_equal(kv_protocol_parse(&p, protocol, false, e), 0);
    if (kv_loop_new(&l, &r->spec, &r->shape, r->calib, &p, EVERY_SCHEME_SEED,
                    NULL, e))
        fail_msg("%s", e->msg);
    takes = !kv_loop_takes(l, LENGTH, e);
    kv_loop_free(l);
    return takes;
}

/* Returns the attention outputs under a protocol, [WINDOWS *
 * LENGTH][n_heads][head_dim]. */
static inline float *by_protocol(const struct ready *r, struct windows *w,
                                 const char *protocol, struct kv_bits *bits)
{
    const size_t n = WINDOWS * LENGTH * r->shape.n_heads * r->shape.head_dim;
    struct kv_protocol p;
    struct kv_loop *l;
    struct kv_err e = {""};
    float *out = kv_alloc(n, sizeof(*out));

    assert_int_equal(kv_protocol_parse(&p, protocol, false, &e), 0);
    if (kv_loop_new(&l, &r->spec, &r->shape, r->calib, &p, EVERY_SCHEME_SEED,
                    NULL, &e))
        fail_msg("%s", e.msg);

    const struct kv_attention a = kv_loop_attention(l, 0, LENGTH);

    w->x.out = out;
    for (w->x.layer = r->lower ? 0 : r->layer; w->x.layer <= r->layer;
         w->x.layer++) /* all layers get the same tokens */
        if (a.run(a.arg, &w->x, &e))
            fail_msg("%s", e.msg);
    if (bits)
        *bits = kv_loop_bits(l);
    kv_loop_free(l);
    return out;
}

static inline void assert_close(const struct ready *r, const char *what,
                                const float *a, const float *b)
{
    const size_t n = WINDOWS * LENGTH * r->shape.n_heads * r->shape.head_dim;
    double diff = 0, size = 0;

    for (size_t i = 0; i < n; i++) {
        diff += pow((double)a[i] - (double)b[i], 2);
        size += pow((double)b[i], 2);
    }
    if (!(sqrt(diff / size) < 2e-6))
        fail_msg("%s: %s: relative difference %g", r->spec.text, what,
                 sqrt(diff / size));
}

#endif
