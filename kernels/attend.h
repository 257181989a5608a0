/* Attention in f32 over keys and values that exist in two forms.
 *
 * A token's stored form changes once in its life: from unquantized (fp16 or
 * exact) to quantized (decoded codes).  A query sees key j quantized when sinks
 * <= j < k_quantized(query), else unquantized; likewise values.  This one
 * function therefore covers every cache that obeys the law of codec.h, at
 * every moment of its life, and plain exact attention too. */
#ifndef KV_ATTEND_H
#define KV_ATTEND_H

#include <stddef.h>

struct kv_attend_side {
    const float *unquantized; /* [n][stride]; NULL: none is ever unquantized */
    const float *quantized;   /* [n][stride]; NULL: none is ever quantized */
    size_t stride;            /* floats from token to token */
    size_t sinks;        /* tokens that are never quantized, at the start */
    const size_t *until; /* [nq]: the query sees [sinks, until[i]) quantized;
                          * NULL when one of the forms is NULL */
};

/* One query head of one KV head.
 * q, out: rows of head_dim floats, q_stride apart; query i stands at token
 * first + i and sees tokens [0, visible) where visible = first + i + 1, or
 * n when causal is 0.  scratch: kv_attend_scratch() floats, per thread.
 * Softmax in f32, fixed order: the same bits for any number of threads. */
struct kv_attend_job {
    const float *q;
    float *out;
    size_t q_stride, nq, first, n, head_dim;
    float scale;
    int causal;
    struct kv_attend_side k, v;
};

size_t kv_attend_scratch(size_t n, size_t head_dim);
void kv_attend(const struct kv_attend_job *job, float *scratch);

/* The definition, in double: out = softmax(scale * q K') V for one query.
 * q, out: [head_dim]; k, v: [n] rows, stride floats apart; n >= 1.
 * weights: [n] or NULL, the softmax. */
void kv_attend_c(const float *q, const float *k, const float *v, size_t n,
                 size_t stride, size_t head_dim, float scale, float *out,
                 double *weights);

#endif
