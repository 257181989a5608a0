/* Mamba-2 (Dao and Gu 2024), as Granite 4 and Nemotron-H have it.  A token's
 * row:
 *
 *   | gate [v_heads][v_dim] | x, as gate | B [k_heads][k_dim] | C, as B |
 *   | dt [v_heads] |
 *
 * A convolution, then silu, runs over x, B and C.  Each head has a state S
 * [k_dim][v_dim]; v_heads / k_heads heads share B and C:
 *
 *   dt = softplus(dt + step), at least the config's floor
 *   S = exp(-exp(decay) dt) S + B (dt x)
 *   y = C S + skip x
 *
 * out is the RMSNorm of y silu(gate), taken over the heads that share B. */
#include "kernels/vecops/vecops.h"
#include "lib/base/alloc.h"
#include "lib/model/mixer.h"

#include <stdlib.h>

static void enter(const struct kv_pass *p, const struct kv_mixer_run *r)
{
    const struct kv_mixer_sizes *m = &p->m->config.mixer;

    for (size_t t = 0; t < r->n; t++)
        kv_mixer_convolve(p, true, r->state, r->x + t * m->in + m->out);
}

static void run_head(const struct kv_pass *p, const struct kv_mixer_run *r,
                     size_t head)
{
    const struct kv_mixer_sizes *m = &p->m->config.mixer;
    const struct kv_layers *l = p->m->layers;
    const float rate = kv_mixer_rate(p, head);
    const float shift = kv_layers_vector(l, KV_P_MIX_STEP)[head];
    const float skip = kv_layers_vector(l, KV_P_MIX_SKIP)[head];
    const size_t group = head / (m->v_heads / m->k_heads) * m->k_dim;
    float *state =
        r->state + (m->kernel - 1) * m->conv + head * m->k_dim * m->v_dim;
    float *value = kv_alloc(m->v_dim, sizeof(*value));

    for (size_t t = 0; t < r->n; t++) {
        const float *row = r->x + t * m->in;
        const float *x = row + m->out + head * m->v_dim;
        const float *b = row + 2 * m->out + group;
        const float *c = b + m->k_heads * m->k_dim;
        const float dt =
            fmaxf(kv_mixer_softplus(row[m->out + m->conv + head] + shift),
                  p->m->config.mixer_floor);

        float *out = r->out + t * m->out + head * m->v_dim;

        for (size_t i = 0; i < m->v_dim; i++)
            value[i] = dt * x[i];
        kv_row_scale(state, m->k_dim * m->v_dim, expf(-rate * dt));
        kv_mixer_put(m, state, b, value);
        kv_mixer_read(m, state, c, out);
        for (size_t i = 0; i < m->v_dim; i++)
            out[i] += skip * x[i];
    }
    free(value);
}

static void leave(const struct kv_pass *p, const struct kv_mixer_run *r)
{
    const struct kv_mixer_sizes *m = &p->m->config.mixer;
    const float *w = kv_layers_vector(p->m->layers, KV_P_MIX_NORM);
    const size_t n = m->out / m->k_heads;

    for (size_t t = 0; t < r->n; t++) {
        const float *gate = r->x + t * m->in;
        float *out = r->out + t * m->out;

        kv_silu_mul(gate, out, m->out, out);
        for (size_t i = 0; i < m->out; i += n)
            kv_rms_norm(out + i, w + i, n, p->m->config.mixer_eps, out + i);
    }
}

const struct kv_mixer_steps kv_mixer_mamba = {
    .enter = enter, .head = run_head, .leave = leave};
