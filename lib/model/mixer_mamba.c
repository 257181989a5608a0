/* Mamba-2 (Dao and Gu 2024), as Granite 4 has it.  A token's row:
 *
 *   | gate [v_heads][v_dim] | x, as gate | B [k_heads][k_dim] | C, as B |
 *   | dt [v_heads] |
 *
 * The convolution runs over x, B and C, then silu.  Each head has a state S
 * [v_dim][k_dim]; v_heads / k_heads of them share B and C:
 *
 *   dt = softplus(dt + step)
 *   S = exp(-exp(decay) dt) S + dt x B
 *   y = S C + skip x
 *
 * and out is the RMSNorm of y silu(gate), of the heads that share B alone. */
#include "lib/model/mixer.h"

static void enter(const struct kv_pass *p, const struct kv_mixer_run *r)
{
    const struct kv_mixer_sizes *m = &p->m->config.mixer;

    for (size_t t = 0; t < r->n; t++)
        kv_mixer_convolve(p, true, r->state, r->x + t * m->in + m->out);
}

/* One token of a head: state [v_dim][k_dim], out [v_dim]. */
static void step(const struct kv_mixer_sizes *m, const float *x, const float *b,
                 const float *c, float dt, float decay, float skip,
                 float *state, float *out)
{
    for (size_t i = 0; i < m->v_dim; i++) {
        float *s = state + i * m->k_dim, y = 0;

        for (size_t j = 0; j < m->k_dim; j++) {
            s[j] = s[j] * decay + dt * b[j] * x[i];
            y += s[j] * c[j];
        }
        out[i] = y + skip * x[i];
    }
}

static void run_head(const struct kv_pass *p, const struct kv_mixer_run *r,
                     size_t head)
{
    const struct kv_mixer_sizes *m = &p->m->config.mixer;
    const struct kv_layers *l = p->m->layers;
    const float rate = expf(kv_layers_vector(l, KV_P_MIX_DECAY)[head]);
    const float shift = kv_layers_vector(l, KV_P_MIX_STEP)[head];
    const float skip = kv_layers_vector(l, KV_P_MIX_SKIP)[head];
    const size_t group = head / (m->v_heads / m->k_heads) * m->k_dim;
    float *state =
        r->state + (m->kernel - 1) * m->conv + head * m->v_dim * m->k_dim;

    for (size_t t = 0; t < r->n; t++) {
        const float *row = r->x + t * m->in;
        const float *x = row + m->out + head * m->v_dim;
        const float *b = row + 2 * m->out + group;
        const float *c = b + m->k_heads * m->k_dim;
        const float dt =
            kv_mixer_softplus(row[m->out + m->conv + head] + shift);

        step(m, x, b, c, dt, expf(-rate * dt), skip, state,
             r->out + t * m->out + head * m->v_dim);
    }
}

static void leave(const struct kv_pass *p, const struct kv_mixer_run *r)
{
    const struct kv_mixer_sizes *m = &p->m->config.mixer;
    const float *w = kv_layers_vector(p->m->layers, KV_P_MIX_NORM);
    const size_t n = m->out / m->k_heads;

    for (size_t t = 0; t < r->n; t++) {
        const float *gate = r->x + t * m->in;
        float *out = r->out + t * m->out;

        for (size_t i = 0; i < m->out; i++)
            out[i] *= gate[i] * kv_mixer_sigmoid(gate[i]);
        for (size_t i = 0; i < m->out; i += n)
            kv_mixer_norm(w + i, n, p->m->config.mixer_eps, out + i);
    }
}

const struct kv_mixer_steps kv_mixer_mamba = {
    .enter = enter, .head = run_head, .leave = leave};
