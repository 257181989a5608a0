#include "kernels/attend.h"
#include "kernels/gemm.h"
#include "kernels/vecops/vecops.h"
#include "lib/base/alloc.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

static bool is_quantized(const struct kv_attend_side *s, size_t i, size_t j)
{
    if (!s->quantized || !s->unquantized)
        return s->quantized != NULL;
    return j >= s->sinks && j < s->until[i];
}

static bool is_alive(const uint64_t *alive, size_t j)
{
    return !alive || alive[j / 64] >> j % 64 & 1;
}

static const uint64_t *alive_of(const struct kv_attend_view *v, size_t seq,
                                size_t kv_head)
{
    const size_t head = seq * v->n_kv_heads + kv_head;

    return v->alive ? v->alive + head * kv_attend_words(v->n) : NULL;
}

/* Of all tokens of a query, or NULL. */
static const float *shift_of(const struct kv_attend_view *v, size_t seq,
                             size_t head, size_t i)
{
    const size_t row = (seq * v->n_heads + head) * v->nq + i;

    return v->shift ? v->shift + row * v->n : NULL;
}

/* ---- the definition ------------------------------------------------------ */

/* A query head of a query, and the KV head that it reads. */
struct query {
    size_t seq, kv_head, head, i;
};

/* Token j as the query sees it. */
static const float *row_of(const struct kv_attend_job *a,
                           const struct kv_attend_side *s,
                           const struct query *x, size_t j)
{
    const struct kv_attend_view *v = &a->view;
    const float *form =
        is_quantized(s, x->i, j) ? s->quantized : s->unquantized;

    return form +
           ((x->seq * v->n + j) * v->n_kv_heads + x->kv_head) * v->head_dim;
}

static double logit(const struct kv_attend_job *a, const struct query *x,
                    const float *q, size_t j)
{
    const struct kv_attend_view *v = &a->view;
    const float *k = row_of(a, &a->k, x, j);
    double s = 0;

    for (size_t c = 0; c < v->head_dim; c++)
        s += (double)q[c] * (double)k[c];
    s *= (double)v->scale;
    if (v->shift)
        s += (double)shift_of(v, x->seq, x->head, x->i)[j];
    if (v->cap != 0)
        s = (double)v->cap * tanh(s / (double)v->cap);
    if (v->slope)
        s +=
            (double)v->slope[x->head] * ((double)j - (double)(v->first + x->i));
    return s;
}

/* w: [n], room for weights; acc: [head_dim]. */
static void attend_one(const struct kv_attend_job *a, const struct query *x,
                       double *w, double *acc)
{
    const struct kv_attend_view *v = &a->view;
    const size_t end = kv_attend_end(v, x->i), d = v->head_dim;
    const size_t at = ((x->seq * a->q_rows + x->i) * v->n_heads + x->head) * d;
    const uint64_t *alive = alive_of(v, x->seq, x->kv_head);
    double max = -HUGE_VAL, sum = 0;

    for (size_t j = kv_attend_begin(v, x->i); j < end; j++)
        if (is_alive(alive, j)) {
            w[j] = logit(a, x, a->q + at, j);
            max = fmax(max, w[j]);
        }
    memset(acc, 0, d * sizeof(*acc));
    for (size_t j = kv_attend_begin(v, x->i); j < end; j++)
        if (is_alive(alive, j)) {
            w[j] = exp(w[j] - max);
            sum += w[j];
            if (!a->out)
                continue;

            const float *value = row_of(a, &a->v, x, j);

            for (size_t c = 0; c < d; c++)
                acc[c] += w[j] * (double)value[c];
        }
    for (size_t j = kv_attend_begin(v, x->i); v->mass && j < end; j++)
        if (is_alive(alive, j))
            v->mass[(x->seq * v->n_kv_heads + x->kv_head) * v->n + j] +=
                w[j] / sum;
    for (size_t c = 0; a->out && c < d; c++)
        a->out[at + c] = sum == 0 ? 0 : (float)(acc[c] / sum);
}

void kv_attend_c(const struct kv_attend_job *a)
{
    const struct kv_attend_view *v = &a->view;
    const size_t group = v->n_heads / v->n_kv_heads;

#pragma omp parallel for schedule(dynamic)
    for (size_t pair = 0; pair < v->n_seqs * v->n_kv_heads; pair++) {
        double *w = kv_alloc(v->n, sizeof(*w));
        double *acc = kv_alloc(v->head_dim, sizeof(*acc));

        for (size_t i = 0; i < v->nq; i++)
            for (size_t h = 0; h < group; h++) {
                const size_t kv_head = pair % v->n_kv_heads;
                const struct query x = {.seq = pair / v->n_kv_heads,
                                        .kv_head = kv_head,
                                        .head = kv_head * group + h,
                                        .i = i};

                attend_one(a, &x, w, acc);
            }
        free(acc);
        free(w);
    }
}

/* ---- scores to logits ---------------------------------------------------- */

void kv_attend_logits(const struct kv_attend_view *v, size_t seq, size_t head,
                      size_t i, size_t from, size_t to, float *s)
{
    const size_t begin = kv_attend_begin(v, i), end = kv_attend_end(v, i);
    const uint64_t *alive =
        alive_of(v, seq, head / (v->n_heads / v->n_kv_heads));
    const float position = (float)(v->first + i);
    const float *shift = shift_of(v, seq, head, i);

    for (size_t j = from; j < to; j++) {
        float *x = s + (j - from);

        if (shift)
            *x += shift[j];
        if (v->cap != 0)
            *x = v->cap * tanhf(*x / v->cap);
        if (v->slope)
            *x += v->slope[head] * ((float)j - position);
        if (j < begin || j >= end || !is_alive(alive, j))
            *x = -INFINITY;
    }
}

/* ---- by matrix products -------------------------------------------------- */

/* Queries pass in tiles of TILE rows, keys in runs of whole TILEs that all
 * queries of the tile see in the same form; fixed, so that the split never
 * follows the machine. */
enum { TILE = 64 };

enum form { UNQUANTIZED, QUANTIZED, MIXED };

/* The form in which queries [i0, i1) see tokens [j0, j1). */
static enum form form_of(const struct kv_attend_side *s, size_t i0, size_t i1,
                         size_t j0, size_t j1)
{
    size_t min, max;

    if (!s->quantized || !s->unquantized)
        return s->quantized ? QUANTIZED : UNQUANTIZED;
    min = max = s->until[i0];
    for (size_t i = i0 + 1; i < i1; i++) {
        min = s->until[i] < min ? s->until[i] : min;
        max = s->until[i] > max ? s->until[i] : max;
    }
    if (j0 >= max || j1 <= s->sinks)
        return UNQUANTIZED;
    return j0 >= s->sinks && j1 <= min ? QUANTIZED : MIXED;
}

/* The end of the run of tiles of tokens from j0 on that share a form. */
static size_t run_end(const struct kv_attend_side *s, size_t i0, size_t i1,
                      size_t j0, size_t n, enum form *form)
{
    size_t j = j0 + TILE < n ? j0 + TILE : n;

    *form = form_of(s, i0, i1, j0, j);
    while (j < n) {
        const size_t next = j + TILE < n ? j + TILE : n;

        if (form_of(s, i0, i1, j, next) != *form)
            break;
        j = next;
    }
    return j;
}

/* Queries [i0, i1) of one query head: q and out are rows, q_row apart; keys
 * and values begin at `kv` of their sides, rows kv_row apart.  They see tokens
 * of [from, n). */
struct tile {
    const struct kv_attend_job *job;
    size_t seq, head, i0, i1, from, n;
    const float *q;
    float *out;
    size_t kv, q_row, kv_row;
};

/* w [rows][n] = scale q k'; other [rows][n]: workspace for a second form. */
static void qk(const struct tile *t, float *w, float *other)
{
    const struct kv_attend_side *k = &t->job->k;
    const size_t rows = t->i1 - t->i0, d = t->job->view.head_dim, n = t->n;
    const float scale = t->job->view.scale;
    enum form form;

    for (size_t j0 = t->from, j1; j0 < n; j0 = j1) {
        const size_t at = t->kv + j0 * t->kv_row;

        j1 = run_end(k, t->i0, t->i1, j0, n, &form);
        kv_gemm(true, rows, j1 - j0, d, scale, t->q, t->q_row,
                (form == UNQUANTIZED ? k->unquantized : k->quantized) + at,
                t->kv_row, 0, w + j0, n);
        if (form != MIXED)
            continue;
        kv_gemm(true, rows, j1 - j0, d, scale, t->q, t->q_row,
                k->unquantized + at, t->kv_row, 0, other + j0, n);
        for (size_t i = 0; i < rows; i++)
            for (size_t j = j0; j < j1; j++)
                if (!is_quantized(k, t->i0 + i, j))
                    w[i * n + j] = other[i * n + j];
    }
}

/* Turns scores into weights; the weight of a token that the query does not see
 * is 0. */
static void softmax(const struct tile *t, float *w)
{
    const struct kv_attend_view *v = &t->job->view;

    for (size_t i = t->i0; i < t->i1; i++) {
        const size_t begin = kv_attend_begin(v, i), end = kv_attend_end(v, i);
        float *row = w + (i - t->i0) * t->n;
        bool any = true;

        if (!kv_attend_simple(v)) {
            kv_attend_logits(v, t->seq, t->head, i, begin, end, row + begin);
            any = kv_row_max(row + begin, end - begin) != -INFINITY;
        }
        if (any)
            kv_softmax(row + begin, end - begin);
        for (size_t j = t->from; j < (any ? begin : end); j++)
            row[j] = 0;
        memset(row + end, 0, (t->n - end) * sizeof(*row));
    }
}

/* out = w v. */
static void pv(const struct tile *t, float *w, float *other)
{
    const struct kv_attend_side *v = &t->job->v;
    const size_t rows = t->i1 - t->i0, d = t->job->view.head_dim, n = t->n;
    enum form form;

    for (size_t j0 = t->from, j1; j0 < n; j0 = j1) {
        const size_t at = t->kv + j0 * t->kv_row;
        const float more = j0 > t->from ? 1 : 0;

        j1 = run_end(v, t->i0, t->i1, j0, n, &form);
        if (form == MIXED) { /* unquantized tokens: own matrix */
            for (size_t i = 0; i < rows; i++)
                for (size_t j = j0; j < j1; j++) {
                    const bool old = is_quantized(v, t->i0 + i, j);

                    other[i * n + j] = old ? 0 : w[i * n + j];
                    w[i * n + j] = old ? w[i * n + j] : 0;
                }
            kv_gemm(false, rows, d, j1 - j0, 1, other + j0, n,
                    v->unquantized + at, t->kv_row, more, t->out, t->q_row);
        }
        kv_gemm(false, rows, d, j1 - j0, 1, w + j0, n,
                (form == UNQUANTIZED ? v->unquantized : v->quantized) + at,
                t->kv_row, form == MIXED ? 1 : more, t->out, t->q_row);
    }
}

/* The i-th of (sequence, query head, tile of queries). */
static struct tile tile_at(const struct kv_attend_job *a, size_t i)
{
    const struct kv_attend_view *v = &a->view;
    const size_t d = v->head_dim, n_tiles = (v->nq + TILE - 1) / TILE;
    const size_t seq = i / n_tiles / v->n_heads;
    const size_t head = i / n_tiles % v->n_heads, i0 = i % n_tiles * TILE;
    const size_t i1 = i0 + TILE < v->nq ? i0 + TILE : v->nq;
    const size_t at = ((seq * a->q_rows + i0) * v->n_heads + head) * d;
    const size_t kv_head = head / (v->n_heads / v->n_kv_heads);

    return (struct tile){.job = a,
                         .seq = seq,
                         .head = head,
                         .i0 = i0,
                         .i1 = i1,
                         .from = kv_attend_begin(v, i0) / TILE * TILE,
                         .n = kv_attend_end(v, i1 - 1),
                         .q = a->q + at,
                         .out = a->out + at,
                         .kv = (seq * v->n * v->n_kv_heads + kv_head) * d,
                         .q_row = v->n_heads * d,
                         .kv_row = v->n_kv_heads * d};
}

bool kv_attend_takes(const struct kv_attend_view *v)
{
    return !v->mass;
}

void kv_attend(const struct kv_attend_job *a)
{
    const struct kv_attend_view *v = &a->view;
    const size_t n_tiles = v->n_seqs * v->n_heads * ((v->nq + TILE - 1) / TILE);

    if (!kv_attend_takes(v)) {
        kv_attend_c(a);
        return;
    }
#pragma omp parallel if (v->nq > 1)
    {
        float *w = kv_alloc(2 * TILE, v->n * sizeof(*w));

#pragma omp for schedule(dynamic)
        for (size_t i = 0; i < n_tiles; i++) {
            const struct tile t = tile_at(a, i);
            float *const other = w + TILE * t.n;

            qk(&t, w, other);
            softmax(&t, w);
            pv(&t, w, other);
        }
        free(w);
    }
}
