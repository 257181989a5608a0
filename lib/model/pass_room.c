/* The memory of a pass: arrays on the backend, and RoPE's tables for its
 * positions. */
#include "lib/base/alloc.h"
#include "lib/model/pass.h"
#include "lib/rope_table.h"

#include <stdlib.h>
#include <string.h>

static int want(struct kv_pass *p, enum kv_work which, size_t n, size_t bytes,
                void *to, struct kv_err *e)
{
    struct kv_workspace *w = &p->m->workspace[which];

    if (kv_workspace_want(p->b, w, n * bytes, e))
        return -1;
    memcpy(to, &w->p, sizeof(w->p));
    return 0;
}

static size_t max(size_t a, size_t b)
{
    return a > b ? a : b;
}

/* Fills RoPE's table for the positions of the pass. */
static void fill_rope(const struct kv_pass *p, const struct kv_shape *s,
                      float *table)
{
    if (!p->batch) {
        kv_rope_table(s, p->n, p->first, table);
        return;
    }
    for (size_t i = 0; i < p->batch->n_spans; i++) {
        const struct kv_span *span = &p->batch->span[i];

        kv_rope_table(s, span->n, span->first, table);
        table += span->n * 2 * s->n_rot;
    }
}

/* Makes RoPE's tables in the backend's memory. */
static int make_rope(struct kv_pass *p, struct kv_err *e)
{
    struct kv_shape s = p->m->config.shape;
    const size_t most = s.slide_dim / 2 > s.n_rot ? s.slide_dim / 2 : s.n_rot;
    const size_t n = p->n * 2 * s.n_rot, tables = s.slide_window ? 2 : 1;
    const size_t bytes = tables * p->n * 2 * most * sizeof(float);
    float *table = kv_alloc(bytes, 1);
    int rc;

    fill_rope(p, &s, table);
    memcpy(s.inv_freq, s.slide_freq, sizeof(s.inv_freq));
    if (s.slide_dim) {
        s.head_dim = s.slide_dim;
        s.n_rot = s.slide_dim / 2;
    }
    if (s.slide_window)
        fill_rope(p, &s, table + n);
    rc = want(p, KV_WORK_ROPE, bytes + 1, 1, &p->ropes, e) || /* + 1: never
                                                               * NULL */
         p->b->upload(p->ropes, table, bytes, e);
    p->rope = p->ropes;
    free(table);
    return rc;
}

/* The host's workspace is not kept from pass to pass, since other code needs
 * the memory. */
static void release(struct kv_model *m)
{
    for (enum kv_work r = 0; r < KV_WORKSPACES && m->backend->on_host; r++)
        kv_workspace_clear(m->backend, &m->workspace[r]);
}

static int want_experts(struct kv_pass *p, size_t n, struct kv_err *e)
{
    const size_t row = p->hidden * sizeof(float);
    const size_t shares = p->m->config.n_experts * sizeof(float);

    return shares &&
           (want(p, KV_WORK_EXPERTS_IN, n, row, &p->experts.in, e) ||
            want(p, KV_WORK_EXPERTS_SUM, n, row, &p->experts.sum, e) ||
            want(p, KV_WORK_EXPERTS_SHARE, n, shares, &p->experts.share, e));
}

/* Wants memory for values; with a latent, values are the keys. */
static int want_values(struct kv_pass *p, size_t bytes, struct kv_err *e)
{
    p->vs = p->ks;
    return p->m->config.shape.latent ? 0
                                     : want(p, KV_WORK_V, bytes, 1, &p->vs, e);
}

int kv_pass_init(struct kv_pass *p, struct kv_err *e)
{
    const struct kv_config *c = &p->m->config;
    const struct kv_shape *s = &c->shape;
    const size_t n = p->n_windows * p->n, word = sizeof(float);
    const size_t inter = kv_config_widest(c);
    const size_t q_dim = kv_shape_q_most(s), kv_dim = kv_shape_kv_most(s);
    const size_t kinds = s->n_shared ? 2 : 1; /* turn_to_attended() */
    const size_t streams = c->n_streams       /* altup.c */
                               ? c->hidden + c->n_streams * (c->n_streams + 1)
                               : 0;
    size_t rows, threads, out;

    release(p->m);
    p->b = p->m->backend;
    p->hidden = c->hidden;
    out = max(q_dim, c->mixer.out);
    rows = kv_pass_stretch(p) < p->b->tile ? kv_pass_stretch(p) : p->b->tile;
    threads = p->b->threads();
    p->input_bytes =
        rows *
        max(max(max(p->hidden, out), max(c->layer_embed, c->laurel_rank)),
            max(inter, s->n_heads * c->latent.value)) *
        kv_type_bytes(p->b->input_type);
    p->wide_floats =
        rows *
        max(max(max(q_dim + 2 * kv_dim, 2 * inter),
                max(p->row_wide, p->hidden + 3 * c->layer_embed + streams)),
            s->n_heads * c->latent.value);
    if (want(p, KV_WORK_Q, n, q_dim * word, &p->q, e) ||
        want(p, KV_WORK_OUT, n, out * word, &p->out, e) ||
        (c->arch->out_gate &&
         want(p, KV_WORK_OUT_GATE, n, q_dim * word, &p->out_gate, e)) ||
        (s->n_states &&
         want(p, KV_WORK_MIXER, n, c->mixer.in * word, &p->mixer, e)) ||
        want(p, KV_WORK_K, kinds * n, kv_dim * word, &p->ks, e) ||
        want(p, KV_WORK_K_PRE, kinds * n, kv_dim * word, &p->ks_pre, e) ||
        want_values(p, kinds * n * kv_dim * word, e) || want_experts(p, n, e) ||
        want(p, KV_WORK_INPUT, threads, p->input_bytes, &p->input, e) ||
        want(p, KV_WORK_WIDE, threads, p->wide_floats * word, &p->wide, e) ||
        (c->layer_embed && kv_pass_keep_embedded(p, e)))
        return -1;
    p->k = p->ks;
    p->k_pre = p->ks_pre;
    p->v = p->vs;
    p->q_dim = q_dim;
    p->kv_dim = kv_dim;
    return make_rope(p, e);
}

void kv_pass_clear(struct kv_pass *p)
{
    struct kv_host_layer *h = p->host;

    if (h) {
        kv_backend_free(h->cpu);
        free(h->q);
        free(h->k);
        free(h->k_pre);
        free(h->v);
        free(h->out);
        free(h->rope);
        free(h);
    }
    release(p->m);
}
