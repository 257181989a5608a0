/* Linear attention by the gated delta rule (Yang et al. 2024), as Qwen3-Next
 * has it.  A token's row, in the order
 *
 *   | q [k_heads][k_dim] | k, as q | v [v_heads][v_dim] |
 *   | b [v_heads] | a [v_heads] | z, as v |
 *
 * A convolution, then silu, runs over q, k and v; q and k are normalised to
 * length 1.  Each value head has a state S [k_dim][v_dim].  A key head serves
 * v_heads / k_heads consecutive value heads, or in llama.cpp's files (tiled)
 * every k_heads-th value head:
 *
 *   S = exp(-exp(decay) softplus(a + step)) S
 *   S = S + k (sigmoid(b) (v - k S))
 *   out = norm(q S / sqrt(k_dim)) silu(z) */
#include "kernels/vecops/vecops.h"
#include "lib/base/alloc.h"
#include "lib/model/mixer.h"

#include <stdlib.h>
#include <string.h>

/* Reorders a row of Qwen3-Next, which has q, k, v and z of each key head, then
 * b and a of each key head, to the order above. */
static void order(const struct kv_mixer_sizes *m, const float *row, float *to)
{
    const size_t group = m->v_heads / m->k_heads, d = group * m->v_dim;
    const float *ba = row + m->conv + m->out;
    float *q = to, *k = q + m->k_heads * m->k_dim;
    float *v = k + m->k_heads * m->k_dim, *b = v + m->out, *a = b + m->v_heads;
    float *z = a + m->v_heads;

    for (size_t h = 0; h < m->k_heads; h++) {
        memcpy(q + h * m->k_dim, row, m->k_dim * sizeof(*q));
        row += m->k_dim;
        memcpy(k + h * m->k_dim, row, m->k_dim * sizeof(*k));
        row += m->k_dim;
        memcpy(v + h * d, row, d * sizeof(*v));
        row += d;
        memcpy(z + h * d, row, d * sizeof(*z));
        row += d;
        memcpy(b + h * group, ba, group * sizeof(*b));
        ba += group;
        memcpy(a + h * group, ba, group * sizeof(*a));
        ba += group;
    }
}

/* Scales x to length `scale`. */
static void norm_length(float *x, size_t n, float scale)
{
    double sum = 1e-6;

    for (size_t i = 0; i < n; i++)
        sum += (double)x[i] * (double)x[i];
    scale = (float)((double)scale / sqrt(sum));
    for (size_t i = 0; i < n; i++)
        x[i] *= scale;
}

static void enter(const struct kv_pass *p, const struct kv_mixer_run *r)
{
    const struct kv_mixer_sizes *m = &p->m->config.mixer;
    const float scale = 1 / sqrtf((float)m->k_dim);
    float *row = kv_alloc(m->in, sizeof(*row));

    for (size_t t = 0; t < r->n; t++) {
        float *x = r->x + t * m->in;

        if (p->m->config.mix_by_head) {
            memcpy(row, x, m->in * sizeof(*row));
            order(m, row, x);
        }
        kv_mixer_convolve(p, true, r->state, x);
        for (size_t h = 0; h < 2 * m->k_heads; h++)
            norm_length(x + h * m->k_dim, m->k_dim, h < m->k_heads ? scale : 1);
    }
    free(row);
}

/* One token of a head: state [k_dim][v_dim], out [v_dim]; decay multiplies the
 * state, beta the correction; correction [v_dim] is workspace. */
static void step(const struct kv_mixer_sizes *m, const float *q, const float *k,
                 const float *v, float decay, float beta, float *state,
                 float *correction, float *out)
{
    kv_row_scale(state, m->k_dim * m->v_dim, decay);
    kv_mixer_read(m, state, k, correction);
    for (size_t i = 0; i < m->v_dim; i++)
        correction[i] = (v[i] - correction[i]) * beta;
    kv_mixer_put(m, state, k, correction);
    kv_mixer_read(m, state, q, out);
}

static void run_head(const struct kv_pass *p, const struct kv_mixer_run *r,
                     size_t head)
{
    const struct kv_mixer_sizes *m = &p->m->config.mixer;
    const struct kv_layers *l = p->m->layers;
    const float rate = kv_mixer_rate(p, head);
    const float shift = kv_layers_vector(l, KV_P_MIX_STEP)[head];
    const float *w = kv_layers_vector(l, KV_P_MIX_NORM);
    const size_t key =
        (p->m->weights.tiled ? head % m->k_heads
                             : head / (m->v_heads / m->k_heads)) *
        m->k_dim;
    float *state =
        r->state + (m->kernel - 1) * m->conv + head * m->k_dim * m->v_dim;
    float *correction = kv_alloc(m->v_dim, sizeof(*correction));

    for (size_t t = 0; t < r->n; t++) {
        const float *q = r->x + t * m->in + key;
        const float *k = q + m->k_heads * m->k_dim;
        const float *v = r->x + t * m->in + m->conv - m->out + head * m->v_dim;
        const float *b = r->x + t * m->in + m->conv + head;
        const float *z =
            r->x + t * m->in + m->conv + 2 * m->v_heads + head * m->v_dim;
        const float a = kv_mixer_softplus(b[m->v_heads] + shift);
        float *out = r->out + t * m->out + head * m->v_dim;

        step(m, q, k, v, expf(-rate * a), kv_mixer_sigmoid(*b), state,
             correction, out);
        kv_rms_norm(out, w, m->v_dim, p->m->config.mixer_eps, out);
        kv_silu_mul(z, out, m->v_dim, out);
    }
    free(correction);
}

const struct kv_mixer_steps kv_mixer_delta = {.enter = enter, .head = run_head};
