/* Layers without attention: what stands in its place, token by token from a
 * state of the sequence (shape.h) that does not grow.
 *
 * The products with matrices are of tiles, as everywhere (pass.h).  Between
 * them each sequence's tokens come in their order, so that one pass and many
 * give the same bits. */
#ifndef KV_MODEL_MIXER_H
#define KV_MODEL_MIXER_H

#include "lib/model/pass.h"

#include <math.h>

/* Consecutive tokens of a sequence: x [n][mixer.in], out [n][mixer.out].
 * state: of this layer; its convolution has kernel - 1 rows of inputs, the
 * oldest first: [kernel - 1][conv], and the rest is the mixer's. */
struct kv_mixer_run {
    size_t n;
    float *x, *out, *state;
};

/* x [conv] becomes silu of its convolution, or the convolution alone, by the
 * loaded layer's weights and bias, with the kernel - 1 rows before it in the
 * state, which x joins. */
void kv_mixer_convolve(const struct kv_pass *p, bool silu, float *state,
                       float *x);

/* The steps of a kind, each of the whole run: `enter` in the order of the
 * tokens, `head` for each head of values, apart from the others, then `leave`.
 * NULL: there is none. */
struct kv_mixer_steps {
    void (*enter)(const struct kv_pass *p, const struct kv_mixer_run *r);
    void (*head)(const struct kv_pass *p, const struct kv_mixer_run *r,
                 size_t head);
    void (*leave)(const struct kv_pass *p, const struct kv_mixer_run *r);
};

extern const struct kv_mixer_steps kv_mixer_delta, kv_mixer_mamba;

static inline float kv_mixer_sigmoid(float x)
{
    return 1 / (1 + expf(-x));
}

/* log(1 + exp(x)), as torch has it. */
static inline float kv_mixer_softplus(float x)
{
    return x > 20 ? x : log1pf(expf(x));
}

/* A head's state [k_dim][v_dim] += key^T value; out [v_dim] = query state. */
void kv_mixer_put(const struct kv_mixer_sizes *m, float *state,
                  const float *key, const float *value);
void kv_mixer_read(const struct kv_mixer_sizes *m, const float *state,
                   const float *query, float *out);

#endif
