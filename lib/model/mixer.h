/* Mixers, which replace attention in layers without it.  A mixer works token by
 * token on a state of the sequence (shape.h) that does not grow.
 *
 * Products with matrices work on tiles, as everywhere (pass.h).  Between them
 * each sequence's tokens are processed in order, so that one pass and many
 * passes give the same bits. */
#ifndef KV_MODEL_MIXER_H
#define KV_MODEL_MIXER_H

#include "lib/model/pass.h"

#include <math.h>

/* Consecutive tokens of a sequence: x [n][mixer.in], out [n][mixer.out].
 * state: this layer's state.  First come the convolution's last kernel - 1
 * input rows, the oldest first, [kernel - 1][conv]; the rest belongs to the
 * mixer. */
struct kv_mixer_run {
    size_t n;
    float *x, *out, *state;
};

/* Replaces x [conv] by its convolution with the kernel - 1 earlier rows in the
 * state, followed by silu if asked, with the loaded layer's weights and bias.
 * The old x joins the state's rows. */
void kv_mixer_convolve(const struct kv_pass *p, bool silu, float *state,
                       float *x);

/* The steps of a mixer, each over the whole run.  `enter` works in the order of
 * the tokens, then `head` on each value head separately, then `leave`.  NULL:
 * no such step. */
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

/* exp(decay) of this head in the loaded layer. */
static inline float kv_mixer_rate(const struct kv_pass *p, size_t head)
{
    const float decay = kv_layers_vector(p->m->layers, KV_P_MIX_DECAY)[head];

    return p->m->weights.rates ? -decay : expf(decay);
}

/* put: a head's state [k_dim][v_dim] += key^T value.  read: out [v_dim] = query
 * state. */
void kv_mixer_put(const struct kv_mixer_sizes *m, float *state,
                  const float *key, const float *value);
void kv_mixer_read(const struct kv_mixer_sizes *m, const float *state,
                   const float *query, float *out);

#endif
