/* Layers without attention: what stands in its place, token by token from a
 * state of the sequence (shape.h) that does not grow.
 *
 * The products with matrices are of tiles, as everywhere (pass.h).  Between
 * them each sequence's tokens come in their order, so that one pass and many
 * give the same bits. */
#ifndef KV_MODEL_MIXER_H
#define KV_MODEL_MIXER_H

#include "lib/model/pass.h"

/* Consecutive tokens of a sequence: x [n][mixer.in], out [n][mixer.out].
 * state: of this layer; its convolution has kernel - 1 rows of inputs, the
 * oldest first: [kernel - 1][conv], and the rest is the mixer's. */
struct kv_mixer_run {
    size_t n;
    float *x, *out, *state;
};

/* x [conv] becomes its convolution, by w [conv][kernel], with the kernel - 1
 * rows before it in the state, which x joins. */
void kv_mixer_convolve(const struct kv_mixer_sizes *m, const float *w,
                       float *state, float *x);

/* The gated delta rule, for one head of values, of a run that
 * kv_mixer_delta_enter() has been through. */
void kv_mixer_delta_enter(const struct kv_pass *p,
                          const struct kv_mixer_run *r);
void kv_mixer_delta(const struct kv_pass *p, const struct kv_mixer_run *r,
                    size_t head);

#endif
