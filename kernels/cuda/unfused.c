#include "kernels/cuda/unfused.h"
#include "kernels/cuda/families.h"
#include "kernels/cuda/gemm.h"
#include "kernels/cuda/layer.h"
#include "kernels/cuda/runtime.h"
#include "kernels/cuda/step.h"
#include "kernels/cuda/views.h"
#include "lib/base/alloc.h"
#include "lib/base/half.h"
#include "lib/base/rng.h"

#include <stdlib.h>

struct kv_unfused {
    struct kv_attend_view view;
    size_t n_layers;
    void **kv;        /* [n_layers]: keys, then values, each
                       * [n_seqs][n_kv_heads][n][head_dim] halves */
    void *q, *scores; /* halves */
};

static size_t side_values(const struct kv_unfused *u)
{
    const struct kv_attend_view *v = &u->view;

    return v->n_seqs * v->n_kv_heads * v->n * v->head_dim;
}

size_t kv_unfused_bytes(const struct kv_unfused *u)
{
    return u->n_layers * 2 * side_values(u) * sizeof(uint16_t);
}

static int open_layers(struct kv_unfused **out, const struct kv_attend_view *v,
                       size_t n_layers, struct kv_err *e)
{
    struct kv_unfused *u = kv_alloc(1, sizeof(*u));
    const size_t rows = v->n_seqs * v->n_heads * sizeof(uint16_t);
    int rc;

    *u = (struct kv_unfused){.view = *v, .n_layers = n_layers};
    u->kv = kv_alloc(n_layers, sizeof(*u->kv));
    *out = u;
    rc = kv_device_alloc(&u->q, rows * v->head_dim, e) ||
         kv_device_alloc(&u->scores, rows * v->n, e);
    for (size_t i = 0; i < n_layers && !rc; i++)
        rc = kv_device_alloc(&u->kv[i], 2 * side_values(u) * sizeof(uint16_t),
                             e);
    return rc;
}

void kv_unfused_free(struct kv_unfused *u)
{
    if (!u)
        return;
    for (size_t i = 0; i < u->n_layers; i++)
        kv_device_free(u->kv[i]);
    free(u->kv);
    kv_device_free(u->q);
    kv_device_free(u->scores);
    free(u);
}

int kv_unfused_random(struct kv_unfused **out, const struct kv_attend_view *v,
                      size_t n_layers, uint64_t seed, struct kv_err *e)
{
    struct kv_unfused *u;
    int rc = open_layers(&u, v, n_layers, e);

    for (size_t i = 0; i < n_layers && !rc; i++)
        rc = kv_gpu_random(u->kv[i], 2 * side_values(u), KV_TYPE_F16,
                           kv_mix(seed, i), 1, e);
    if (rc) {
        kv_unfused_free(u);
        return -1;
    }
    *out = u;
    return 0;
}

/* Writes one head of a side, all runs, to `to` [n][head_dim]. */
static int put_halves(const struct kv_store *s, size_t head, uint16_t *to,
                      struct kv_err *e)
{
    for (size_t r = 0; r < KV_MAX_RUNS; r++, s++) {
        const size_t values = s->n * s->head_dim;
        float *x = kv_alloc(values, sizeof(*x));

        if (s->family != &kv_family_float ||
            *(const enum kv_float *)s->params != KV_FLOAT_16) {
            free(x);
            return kv_fail(e, "unfused attention is of f16 alone");
        }
        kv_gpu_rows(s, head, 0, s->n, x);
        for (size_t i = 0; i < values; i++)
            to[s->first * s->head_dim + i] = kv_f32_to_f16(x[i]);
        free(x);
    }
    return 0;
}

/* Sends all heads of a side to the device. */
static int send_side(const struct kv_tiles_job *j, const struct kv_store *s,
                     uint8_t *to, struct kv_err *e)
{
    const size_t head = j->view.n * j->view.head_dim;
    uint16_t *half = kv_alloc(head, sizeof(*half));
    int rc = 0;

    for (size_t h = 0; h < j->view.n_kv_heads && !rc; h++)
        rc = put_halves(s, h, half, e) ||
             kv_device_upload(to + h * head * sizeof(*half), half,
                              head * sizeof(*half), e);
    free(half);
    return rc;
}

/* Sends keys of every job, then values; data shared with the job before is
 * copied within the device. */
static int send_halves(struct kv_unfused *u, const struct kv_tiles_job *jobs,
                       size_t n_jobs, struct kv_err *e)
{
    const size_t bytes = jobs->view.n_kv_heads * jobs->view.n *
                         jobs->view.head_dim * sizeof(uint16_t);
    const struct kv_store *before = NULL;
    uint8_t *to = u->kv[0];

    for (size_t i = 0; i < 2 * n_jobs; i++, to += bytes) {
        const struct kv_tiles_job *j = &jobs[i % n_jobs];
        const struct kv_store *s = i < n_jobs ? j->k : j->v;

        if (s == before ? kv_device_copy(to, to - bytes, bytes, e)
                        : send_side(j, s, to, e))
            return -1;
        before = s;
    }
    return 0;
}

int kv_unfused_new(struct kv_unfused **out, const struct kv_tiles_job *jobs,
                   size_t n_jobs, struct kv_err *e)
{
    struct kv_attend_view v = jobs->view;
    struct kv_unfused *u = NULL;

    if (jobs->view.nq != 1)
        return kv_fail(e, "unfused attention is of 1 query token, not of %zu",
                       jobs->view.nq);
    if (!kv_gpu_plain_takes(&jobs->view))
        return kv_gpu_plain_fail(e);
    v.n_seqs = n_jobs;
    if (open_layers(&u, &v, 1, e) || send_halves(u, jobs, n_jobs, e)) {
        kv_unfused_free(u);
        return -1;
    }
    *out = u;
    return 0;
}

int kv_unfused_attend(const struct kv_unfused *u, size_t layer, const float *q,
                      enum kv_type type, void *out, struct kv_err *e)
{
    const struct kv_attend_view *v = &u->view;
    const size_t d = v->head_dim, group = v->n_heads / v->n_kv_heads;
    const uint16_t *keys = u->kv[layer];
    const struct kv_gpu_product qk = {.m = group,
                                      .n = v->n,
                                      .k = d,
                                      .a = u->q,
                                      .b = keys,
                                      .c = u->scores,
                                      .a_row = d,
                                      .b_row = d,
                                      .c_row = v->n,
                                      .batch = v->n_seqs * v->n_kv_heads,
                                      .a_next = group * d,
                                      .b_next = v->n * d,
                                      .c_next = group * v->n};
    const struct kv_gpu_product pv = {.c_type = type,
                                      .m = group,
                                      .n = d,
                                      .k = v->n,
                                      .a = u->scores,
                                      .b = keys + side_values(u),
                                      .c = out,
                                      .a_row = v->n,
                                      .b_row = d,
                                      .c_row = d,
                                      .batch = v->n_seqs * v->n_kv_heads,
                                      .a_next = group * v->n,
                                      .b_next = v->n * d,
                                      .c_next = group * d,
                                      .transposed = 1};

    return kv_gpu_round(q, v->n_seqs * v->n_heads * d, KV_TYPE_F16, u->q, e) ||
           kv_gpu_multiply(&qk, e) ||
           kv_gpu_softmax(u->scores, v->n_seqs * v->n_heads, v->n, v->scale,
                          e) ||
           kv_gpu_multiply(&pv, e);
}
