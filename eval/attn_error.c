#include "eval/attn_error.h"
#include "kernels/gemm.h"
#include "kernels/vecops/vecops.h"
#include "lib/base/alloc.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Query positions that one matrix product takes together. */
enum { TILE = 16 };

/* The queries of a tile that share a KV head.  Row a * group + g: position
 * at[a], query head g of the group. */
struct tile {
    const size_t *at;
    size_t n_at, group, kv_head;
    size_t n_keys;                 /* tokens that the last query sees */
    float *q;                      /* [rows][head_dim] */
    float *exact, *stored;         /* [rows][n_keys]: logits, then weights */
    float *out[1 + KV_ATTN_CASES]; /* [rows][head_dim]: exact, then by case */
};

static double log_normaliser(const float *logit, size_t n, double sink)
{
    const double max = fmax((double)kv_row_max(logit, n), sink);
    double sum = exp(sink - max);

    for (size_t j = 0; j < n; j++)
        sum += exp((double)logit[j] - max);
    return max + log(sum);
}

/* A row's sink logit; -infinity: none. */
static double sink_of(const struct kv_attn_window *w, const struct tile *t,
                      size_t r)
{
    const float *sink = w->view.sink_logit;

    return sink ? (double)sink[t->kv_head * t->group + r % t->group]
                : -HUGE_VAL;
}

/* Turns row r of the exact and of the stored logits into attention weights, 0
 * for tokens that the row's query does not see; adds the logit error and the
 * divergence. */
static void compare_weights(struct kv_attn_error *sum,
                            const struct kv_attn_window *w,
                            const struct tile *t, size_t r, float *exact,
                            float *stored)
{
    const size_t visible = t->at[r / t->group] + 1, n_keys = t->n_keys;
    const bool simple = kv_attend_simple(&w->view);

    if (!simple) {
        struct kv_attend_view v = w->view;
        const size_t head = t->kv_head * t->group + r % t->group;

        v.first = visible - 1;
        kv_attend_logits(&v, 0, head, 0, 0, visible, exact);
        kv_attend_logits(&v, 0, head, 0, 0, visible, stored);
    }

    const double sink = sink_of(w, t, r);
    const double z_exact = log_normaliser(exact, visible, sink);
    const double z_stored = log_normaliser(stored, visible, sink);
    double e2 = 0, n = 0, kl = exp(sink - z_exact) * (z_stored - z_exact);

    for (size_t j = 0; j < visible; j++) {
        if (!simple && exact[j] == -INFINITY) { /* not seen */
            exact[j] = stored[j] = 0;
            continue;
        }

        const double e = (double)stored[j] - (double)exact[j];
        const double log_p = (double)exact[j] - z_exact;
        const double log_q = (double)stored[j] - z_stored;
        const double p = exp(log_p);

        n++;
        e2 += e * e;
        kl += p * (log_p - log_q);
        exact[j] = (float)p;
        stored[j] = (float)exp(log_q);
    }
    memset(exact + visible, 0, (n_keys - visible) * sizeof(*exact));
    memset(stored + visible, 0, (n_keys - visible) * sizeof(*stored));
    sum->logit_e2 += e2;
    sum->n_logits += n;
    sum->kl += kl < 0 ? 0 : kl; /* rounding may leave a hair below */
    sum->n_rows++;
}

/* x: [token][n_heads][head_dim]; g counts query heads within the tile's group.
 */
static const float *window_row(const struct kv_attn_window *w,
                               const struct tile *t, const float *x,
                               size_t token, size_t g)
{
    const size_t head = t->kv_head * t->group + g;

    return x + (token * w->view.n_heads + head) * w->view.head_dim;
}

static void take_queries(const struct kv_attn_window *w, const struct tile *t)
{
    const size_t d = w->view.head_dim;

    for (size_t a = 0; a < t->n_at; a++)
        for (size_t g = 0; g < t->group; g++)
            memcpy(t->q + (a * t->group + g) * d,
                   window_row(w, t, w->q, t->at[a], g), d * sizeof(*t->q));
}

/* Takes the scheme's outputs from w->own, whose row a is position at[a]. */
static void take_own(const struct kv_attn_window *w, const struct tile *t,
                     size_t first)
{
    const size_t d = w->view.head_dim;

    for (size_t a = 0; a < t->n_at; a++)
        for (size_t g = 0; g < t->group; g++)
            memcpy(t->out[1 + KV_ATTN_BOTH] + (a * t->group + g) * d,
                   window_row(w, t, w->own, first + a, g), d * sizeof(*t->q));
}

static void add_tile(struct kv_attn_error *sum, const struct kv_attn_window *w,
                     struct tile *t, size_t first)
{
    const size_t d = w->view.head_dim, rows = t->n_at * t->group;
    const size_t stride = w->view.n_kv_heads * d, n = t->n_keys;
    const size_t skip = t->kv_head * d;
    const size_t values_dim = w->value_dim ? w->value_dim : d;
    const float scale = w->view.scale;

    take_queries(w, t);
    kv_gemm(true, rows, n, d, scale, t->q, d, w->k + skip, stride, 0, t->exact,
            n);
    kv_gemm(true, rows, n, d, scale, t->q, d, w->k_stored + skip, stride, 0,
            t->stored, n);
    for (size_t r = 0; r < rows; r++)
        compare_weights(sum, w, t, r, t->exact + r * n, t->stored + r * n);

    /* out[0] exact, then the cases in their order */
    const float *weights[] = {t->exact, t->stored, t->exact, t->stored};
    const float *values[] = {w->v, w->v, w->v_stored, w->v_stored};

    for (size_t c = 0; c <= KV_ATTN_CASES; c++)
        if (c != 1 + KV_ATTN_BOTH || !w->own)
            kv_gemm(false, rows, values_dim, n, 1, weights[c], n,
                    values[c] + skip, stride, 0, t->out[c], d);
    if (w->own)
        take_own(w, t, first);
    for (size_t i = 0; i < rows * d; i++) {
        const double o = t->out[0][i];

        if (i % d >= values_dim)
            continue;
        sum->out_x2 += o * o;
        for (size_t c = 0; c < KV_ATTN_CASES; c++) {
            const double e = (double)t->out[1 + c][i] - o;

            sum->out_e2[c] += e * e;
        }
    }
}

void kv_attn_error_add(struct kv_attn_error *sum,
                       const struct kv_attn_window *w)
{
    const size_t group = w->view.n_heads / w->view.n_kv_heads;
    const size_t d = w->view.head_dim, rows = TILE * group;
    float *outs = kv_alloc((1 + KV_ATTN_CASES) * rows, d * sizeof(*outs));
    struct tile t = {.group = group,
                     .q = kv_alloc(rows, d * sizeof(float)),
                     .exact = kv_alloc(rows, w->view.n * sizeof(float)),
                     .stored = kv_alloc(rows, w->view.n * sizeof(float))};

    for (size_t c = 0; c <= KV_ATTN_CASES; c++)
        t.out[c] = outs + c * rows * d;
    for (size_t a = 0; a < w->n_at; a += TILE) {
        t.at = w->at + a;
        t.n_at = w->n_at - a < TILE ? w->n_at - a : TILE;
        t.n_keys = t.at[t.n_at - 1] + 1;
        for (t.kv_head = 0; t.kv_head < w->view.n_kv_heads; t.kv_head++)
            add_tile(sum, w, &t, a);
    }
    free(t.stored);
    free(t.exact);
    free(t.q);
    free(outs);
}

void kv_attn_error_merge(struct kv_attn_error *into,
                         const struct kv_attn_error *part)
{
    into->logit_e2 += part->logit_e2;
    into->n_logits += part->n_logits;
    into->kl += part->kl;
    into->n_rows += part->n_rows;
    into->out_x2 += part->out_x2;
    for (size_t c = 0; c < KV_ATTN_CASES; c++)
        into->out_e2[c] += part->out_e2[c];
}

bool kv_attn_error_finite(const struct kv_attn_error *s)
{
    bool finite = isfinite(s->logit_e2) && isfinite(s->kl);

    for (size_t c = 0; c < KV_ATTN_CASES; c++)
        finite &= isfinite(s->out_e2[c]) != 0;
    return finite && isfinite(s->out_x2);
}

double kv_attn_error_logit(const struct kv_attn_error *s)
{
    return s->n_logits > 0 ? s->logit_e2 / s->n_logits : NAN;
}

double kv_attn_error_kl(const struct kv_attn_error *s)
{
    return s->n_rows > 0 ? s->kl / s->n_rows : NAN;
}

double kv_attn_error_out(const struct kv_attn_error *s, enum kv_attn_case c)
{
    return s->n_rows > 0 ? sqrt(s->out_e2[c] / s->out_x2) : NAN;
}

size_t kv_attn_positions(size_t n, size_t n_at, size_t *at)
{
    const size_t m = n_at < n ? n_at : n;

    for (size_t i = 0; i < m; i++)
        at[i] = (i + 1) * n / m - 1;
    return m;
}
