#include "lib/model/mixer.h"
#include "kernels/vecops/vecops.h"
#include "lib/base/alloc.h"

#include <stdlib.h>
#include <string.h>

/* A layer's work after its first product, for all sequences of the pass. */
struct work {
    const struct kv_pass *p;
    struct kv_mixer_run *run;
    size_t n_heads;
};

void kv_mixer_convolve(const struct kv_pass *p, bool silu, float *state,
                       float *x)
{
    const struct kv_mixer_sizes *m = &p->m->config.mixer;
    const float *w = kv_layers_vector(p->m->layers, KV_P_MIX_CONV);
    const float *bias = kv_layers_vector(p->m->layers, KV_P_MIX_CONV_BIAS);
    const size_t past = m->kernel - 1;

    for (size_t i = 0; i < m->conv; i++, w += m->kernel) {
        float sum = bias ? bias[i] : 0;

        for (size_t j = 0; j < past; j++)
            sum += w[j] * state[j * m->conv + i];
        sum += w[past] * x[i];
        for (size_t j = 0; j + 1 < past; j++)
            state[j * m->conv + i] = state[(j + 1) * m->conv + i];
        if (past)
            state[(past - 1) * m->conv + i] = x[i];
        x[i] = sum;
    }
    if (silu)
        kv_activate(KV_ACT_SILU, x, m->conv, x);
}

void kv_mixer_put(const struct kv_mixer_sizes *m, float *state,
                  const float *key, const float *value)
{
    kv_vecops_times(key, 1, m->k_dim, value, 1, m->v_dim, m->v_dim, state,
                    m->v_dim);
}

void kv_mixer_read(const struct kv_mixer_sizes *m, const float *state,
                   const float *query, float *out)
{
    memset(out, 0, m->v_dim * sizeof(*out));
    kv_vecops_times(query, m->k_dim, 1, state, m->k_dim, m->v_dim, m->v_dim,
                    out, m->v_dim);
}

/* LFM2: a row of r->x holds B, C and x; out = C * conv(B * x). */
static void enter_conv(const struct kv_pass *p, const struct kv_mixer_run *r)
{
    const struct kv_mixer_sizes *m = &p->m->config.mixer;

    for (size_t t = 0; t < r->n; t++) {
        float *b = r->x + t * m->in, *c = b + m->conv, *x = c + m->conv;
        float *out = r->out + t * m->out;

        for (size_t i = 0; i < m->conv; i++)
            x[i] *= b[i];
        kv_mixer_convolve(p, false, r->state, x);
        for (size_t i = 0; i < m->conv; i++)
            out[i] = c[i] * x[i];
    }
}

static const struct kv_mixer_steps conv = {.enter = enter_conv};

static const struct kv_mixer_steps *steps_of(const struct kv_pass *p)
{
    switch (p->m->config.arch->mixer) {
    case KV_MIXER_DELTA:
        return &kv_mixer_delta;
    case KV_MIXER_MAMBA:
        return &kv_mixer_mamba;
    case KV_MIXER_CONV:
    case KV_MIXER_NONE:
        break;
    }
    return &conv;
}

static int enter_run(const void *arg, size_t i, size_t thread, struct kv_err *e)
{
    const struct work *w = arg;

    (void)thread;
    (void)e;
    steps_of(w->p)->enter(w->p, &w->run[i]);
    return 0;
}

static int run_head(const void *arg, size_t i, size_t thread, struct kv_err *e)
{
    const struct work *w = arg;

    (void)thread;
    (void)e;
    steps_of(w->p)->head(w->p, &w->run[i / w->n_heads], i % w->n_heads);
    return 0;
}

static int leave_run(const void *arg, size_t i, size_t thread, struct kv_err *e)
{
    const struct work *w = arg;

    (void)thread;
    (void)e;
    steps_of(w->p)->leave(w->p, &w->run[i]);
    return 0;
}

static int enter_tile(const void *arg, size_t i, size_t thread,
                      struct kv_err *e)
{
    const struct kv_pass *p = arg;
    const struct kv_tile t = kv_pass_tile(p, i, thread);
    const size_t in = p->m->config.mixer.in;
    const void *a;

    return kv_pass_enter(p, &t, KV_P_ATTN_NORM, KV_P_ATTN_NORM_BIAS, &a, e) ||
                   kv_pass_multiply(p, &t, KV_P_MIX, a, p->hidden,
                                    p->mixer + t.at * in, in, false, e)
               ? -1
               : 0;
}

/* Lists the sequences of the pass with their states; without kept states, the
 * states are zeros [n_runs][state_floats]. */
static void list_runs(const struct kv_pass *p, const struct kv_attention *a,
                      size_t n_runs, float *zeros, struct kv_mixer_run *run)
{
    const struct kv_mixer_sizes *m = &p->m->config.mixer;
    const size_t floats = p->m->config.shape.state_floats;
    size_t layer = p->loaded - p->attended, at = 0;

    for (size_t i = 0; i < p->loaded; i++)
        layer -= kv_config_is_bare(&p->m->config, i);

    for (size_t i = 0; i < n_runs; at += run[i++].n) {
        const struct kv_span *span = p->batch ? &p->batch->span[i] : NULL;

        run[i] = (struct kv_mixer_run){
            .n = span ? span->n : p->n,
            .x = p->mixer + at * m->in,
            .out = p->out + at * m->out,
            .state = zeros ? zeros + i * floats
                           : a->state(a->arg, span ? span->sequence
                                                   : p->first_window + i) +
                                 layer * floats};
    }
}

/* Fails unless tokens begin at position 0, as they must without a kept
 * state. */
static int check_first(const struct kv_pass *p, struct kv_err *e)
{
    bool later = p->first > 0;

    for (size_t i = 0; p->batch && i < p->batch->n_spans; i++)
        later = later || p->batch->span[i].first;
    return later ? kv_fail(e,
                           "%s has layers without attention: tokens from "
                           "another position than 0 on want the state of those "
                           "before them, which is not kept here",
                           p->m->info.name)
                 : 0;
}

int kv_pass_mix(struct kv_pass *p, const struct kv_attention *a,
                struct kv_err *e)
{
    const size_t floats = p->m->config.shape.state_floats;
    const size_t n = p->batch ? p->batch->n_spans : p->n_windows;
    const struct kv_mixer_steps *steps = steps_of(p);
    struct work w = {.p = p, .n_heads = p->m->config.mixer.v_heads};
    float *zeros = NULL;
    int rc;

    if (!a->state && check_first(p, e))
        return -1;
    if (!a->state)
        zeros = kv_alloc(n, floats * sizeof(*zeros));
    w.run = kv_alloc(n, sizeof(*w.run));
    list_runs(p, a, n, zeros, w.run);
    rc = kv_pass_each(p, enter_tile, p, e) || p->b->each(n, enter_run, &w, e) ||
         (steps->head && p->b->each(n * w.n_heads, run_head, &w, e)) ||
         (steps->leave && p->b->each(n, leave_run, &w, e));
    free(w.run);
    free(zeros);
    return rc ? -1 : 0;
}
