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

/* The shifts of all tokens of a query, or NULL. */
static const float *shift_of(const struct kv_attend_view *v, size_t seq,
                             size_t head, size_t i)
{
    const size_t row = (seq * v->n_heads + head) * v->nq + i;

    return v->shift ? v->shift + row * v->n : NULL;
}

/* The head's sink logit; -infinity if there is none. */
static float sink_of(const struct kv_attend_view *v, size_t head)
{
    return v->sink_logit ? v->sink_logit[head] : -INFINITY;
}

/* ---- the definition ------------------------------------------------------ */

/* A query head of a query, and the KV head that it reads. */
struct query {
    size_t seq, kv_head, head, i;
};

/* The row of token j in the form in which the query sees the token. */
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

/* Attends with one query.  w [n] and acc [head_dim] are scratch memory. */
static void attend_one(const struct kv_attend_job *a, const struct query *x,
                       double *w, double *acc)
{
    const struct kv_attend_view *v = &a->view;
    const size_t end = kv_attend_end(v, x->i), d = v->head_dim;
    const size_t at = ((x->seq * a->q_rows + x->i) * v->n_heads + x->head) * d;
    const uint64_t *alive = alive_of(v, x->seq, x->kv_head);
    const double sink = sink_of(v, x->head);
    double max = sink, sum;

    for (size_t j = kv_attend_begin(v, x->i); j < end; j++)
        if (is_alive(alive, j)) {
            w[j] = logit(a, x, a->q + at, j);
            max = fmax(max, w[j]);
        }
    sum = v->sink_logit ? exp(sink - max) : 0;
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

void kv_attend_weights(const struct kv_attend_view *v, size_t head, size_t n,
                       float *s)
{
    float sink = sink_of(v, head), top;
    double sum;

    if (!v->sink_logit) {
        kv_softmax(s, n);
        return;
    }
    top = fmaxf(sink, kv_row_max(s, n));
    sum = kv_row_exp(&sink, 1, top);
    sum += kv_row_exp(s, n, top);
    kv_row_scale(s, n, (float)(1 / sum));
}

/* ---- by matrix products -------------------------------------------------- */

/* Queries are processed in tiles of at most ROWS rows, or of one query.  A row
 * is a query of one of a KV head's query heads, which share its packed keys and
 * values.  Tokens are processed in blocks of BLOCK, whose scores stay in the
 * cache from one product to the next, and within a block in runs of whole RUNs
 * that all queries of the tile see in the same form.  These sizes are fixed, so
 * that the split does not depend on the machine. */
enum { ROWS = 192, BLOCK = 512, RUN = 64 };

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

/* The end of the RUNs of tokens from j0 on that have the same form. */
static size_t run_end(const struct kv_attend_side *s, size_t i0, size_t i1,
                      size_t j0, size_t n, enum form *form)
{
    size_t j = j0 + RUN < n ? j0 + RUN : n;

    *form = form_of(s, i0, i1, j0, j);
    while (j < n) {
        const size_t next = j + RUN < n ? j + RUN : n;

        if (form_of(s, i0, i1, j, next) != *form)
            break;
        j = next;
    }
    return j;
}

/* A row's statistics over earlier blocks: its largest logit, and the sum of
 * exp(logit - largest). */
struct seen {
    float max;
    double sum;
};

/* Queries [i0, i1) of the `group` query heads from `head` on; they see tokens
 * of [from, n).  In the job, their q and out begin at `at`, a query `row`
 * apart; keys and values begin at `kv` of their sides, rows kv_row apart. */
struct tile {
    const struct kv_attend_job *job;
    size_t seq, head, group, i0, i1, from, n;
    size_t at, row, kv, kv_row;
};

/* A thread's memory.  q, out: [ROWS][head_dim], rows by query and then by head;
 * w, other: [ROWS][BLOCK], scores or weights in one form and in a second
 * form. */
struct workspace {
    float *q, *out, *w, *other;
    struct seen *seen;
};

/* Tokens [from, to) of a tile. */
struct block {
    size_t from, to;
};

static size_t rows_of(const struct tile *t)
{
    return (t->i1 - t->i0) * t->group;
}

/* w = scale q k'. */
static void qk(const struct tile *t, const struct block *b,
               const struct workspace *x)
{
    const struct kv_attend_side *k = &t->job->k;
    const size_t rows = rows_of(t), d = t->job->view.head_dim;
    const float scale = t->job->view.scale;
    enum form form;

    for (size_t j0 = b->from, j1; j0 < b->to; j0 = j1) {
        const size_t at = t->kv + j0 * t->kv_row;
        float *const w = x->w + (j0 - b->from);
        float *const other = x->other + (j0 - b->from);

        j1 = run_end(k, t->i0, t->i1, j0, b->to, &form);
        kv_gemm(true, rows, j1 - j0, d, scale, x->q, d,
                (form == UNQUANTIZED ? k->unquantized : k->quantized) + at,
                t->kv_row, 0, w, BLOCK);
        if (form != MIXED)
            continue;
        kv_gemm(true, rows, j1 - j0, d, scale, x->q, d, k->unquantized + at,
                t->kv_row, 0, other, BLOCK);
        for (size_t r = 0; r < rows; r++)
            for (size_t j = 0; j < j1 - j0; j++)
                if (!is_quantized(k, t->i0 + r / t->group, j0 + j))
                    w[r * BLOCK + j] = other[r * BLOCK + j];
    }
}

/* Turns the scores of row r into exp(logit - largest), 0 for tokens that the
 * query does not see, and rescales the results of earlier blocks to the new
 * largest logit. */
static void weigh(const struct tile *t, const struct block *b, size_t r,
                  const struct workspace *x)
{
    const struct kv_attend_view *v = &t->job->view;
    const size_t i = t->i0 + r / t->group, n = b->to - b->from;
    const size_t first = kv_attend_begin(v, i), last = kv_attend_end(v, i);
    const size_t begin = first > b->from ? first - b->from : 0;
    const size_t end = last < b->to ? last - b->from : n;
    float *const w = x->w + r * BLOCK;
    struct seen *seen = &x->seen[r];
    float top, by;

    if (first >= b->to || last <= b->from) {
        memset(w, 0, n * sizeof(*w));
        return;
    }
    if (!kv_attend_simple(v))
        kv_attend_logits(v, t->seq, t->head + r % t->group, i, b->from + begin,
                         b->from + end, w + begin);
    top = fmaxf(seen->max, kv_row_max(w + begin, end - begin));
    if (top == -INFINITY) {
        memset(w, 0, n * sizeof(*w));
        return;
    }
    by = seen->max - top;
    by = (float)kv_row_exp(&by, 1, 0);
    if (b->from > t->from && by != 1)
        kv_row_scale(x->out + r * v->head_dim, v->head_dim, by);
    memset(w, 0, begin * sizeof(*w));
    seen->sum =
        seen->sum * (double)by + kv_row_exp(w + begin, end - begin, top);
    seen->max = top;
    memset(w + end, 0, (n - end) * sizeof(*w));
}

/* Sets out to w v in the tile's first block; adds w v in later blocks. */
static void pv(const struct tile *t, const struct block *b,
               const struct workspace *x)
{
    const struct kv_attend_side *v = &t->job->v;
    const size_t rows = rows_of(t), d = t->job->view.head_dim;
    enum form form;

    for (size_t j0 = b->from, j1; j0 < b->to; j0 = j1) {
        const size_t at = t->kv + j0 * t->kv_row;
        const float more = j0 > t->from ? 1 : 0;
        float *const w = x->w + (j0 - b->from);
        float *const other = x->other + (j0 - b->from);

        j1 = run_end(v, t->i0, t->i1, j0, b->to, &form);
        if (form == MIXED) { /* the weights of unquantized tokens go to
                              * `other` */
            for (size_t r = 0; r < rows; r++)
                for (size_t j = 0; j < j1 - j0; j++) {
                    const bool old =
                        is_quantized(v, t->i0 + r / t->group, j0 + j);

                    other[r * BLOCK + j] = old ? 0 : w[r * BLOCK + j];
                    w[r * BLOCK + j] = old ? w[r * BLOCK + j] : 0;
                }
            kv_gemm(false, rows, d, j1 - j0, 1, other, BLOCK,
                    v->unquantized + at, t->kv_row, more, x->out, d);
        }
        kv_gemm(false, rows, d, j1 - j0, 1, w, BLOCK,
                (form == UNQUANTIZED ? v->unquantized : v->quantized) + at,
                t->kv_row, form == MIXED ? 1 : more, x->out, d);
    }
}

static void attend_tile(const struct tile *t, const struct workspace *x)
{
    const size_t rows = rows_of(t), d = t->job->view.head_dim;
    const size_t query = t->group * d;

    for (size_t i = 0; i < t->i1 - t->i0; i++)
        memcpy(x->q + i * query, t->job->q + t->at + i * t->row,
               query * sizeof(*x->q));
    for (size_t r = 0; r < rows; r++) {
        const float sink = sink_of(&t->job->view, t->head + r % t->group);

        x->seen[r] = (struct seen){sink, sink > -INFINITY ? 1 : 0};
    }
    for (size_t j = t->from; j < t->n; j += BLOCK) {
        const struct block b = {j, t->n - j < BLOCK ? t->n : j + BLOCK};

        qk(t, &b, x);
        for (size_t r = 0; r < rows; r++)
            weigh(t, &b, r, x);
        pv(t, &b, x);
    }
    for (size_t r = 0; r < rows; r++)
        if (x->seen[r].sum != 0)
            kv_row_scale(x->out + r * d, d, (float)(1 / x->seen[r].sum));
    for (size_t i = 0; i < t->i1 - t->i0; i++)
        memcpy(t->job->out + t->at + i * t->row, x->out + i * query,
               query * sizeof(*x->out));
}

/* The number of queries in a tile. */
static size_t tile_queries(const struct kv_attend_view *v)
{
    const size_t group = v->n_heads / v->n_kv_heads;
    const size_t fit = group < ROWS ? ROWS / group : 1;

    return fit < v->nq ? fit : v->nq;
}

static size_t tiles_of(const struct kv_attend_view *v)
{
    return (v->nq + tile_queries(v) - 1) / tile_queries(v);
}

/* Tile i, counted by sequence, then KV head, then tile of queries. */
static struct tile tile_at(const struct kv_attend_job *a, size_t i)
{
    const struct kv_attend_view *v = &a->view;
    const size_t d = v->head_dim, group = v->n_heads / v->n_kv_heads;
    const size_t seq = i / tiles_of(v) / v->n_kv_heads;
    const size_t kv_head = i / tiles_of(v) % v->n_kv_heads;
    const size_t most = tile_queries(v), i0 = i % tiles_of(v) * most;
    const size_t i1 = most < v->nq - i0 ? i0 + most : v->nq;

    return (struct tile){
        .job = a,
        .seq = seq,
        .head = kv_head * group,
        .group = group,
        .i0 = i0,
        .i1 = i1,
        .from = kv_attend_begin(v, i0) / RUN * RUN,
        .n = kv_attend_end(v, i1 - 1),
        .at = ((seq * a->q_rows + i0) * v->n_heads + kv_head * group) * d,
        .row = v->n_heads * d,
        .kv = (seq * v->n * v->n_kv_heads + kv_head) * d,
        .kv_row = v->n_kv_heads * d};
}

bool kv_attend_takes(const struct kv_attend_view *v)
{
    return !v->mass;
}

void kv_attend(const struct kv_attend_job *a)
{
    const struct kv_attend_view *v = &a->view;
    const size_t n_tiles = v->nq ? v->n_seqs * v->n_kv_heads * tiles_of(v) : 0;
    const size_t rows = tile_queries(v) * (v->n_heads / v->n_kv_heads);

    if (!kv_attend_takes(v)) {
        kv_attend_c(a);
        return;
    }
#pragma omp parallel if (v->nq > 1)
    {
        struct workspace x = {.q = kv_alloc(rows, v->head_dim * sizeof(*x.q)),
                              .out =
                                  kv_alloc(rows, v->head_dim * sizeof(*x.out)),
                              .w = kv_alloc(rows, BLOCK * sizeof(*x.w)),
                              .other = kv_alloc(rows, BLOCK * sizeof(*x.other)),
                              .seen = kv_alloc(rows, sizeof(*x.seen))};

#pragma omp for schedule(dynamic)
        for (size_t i = 0; i < n_tiles; i++) {
            const struct tile t = tile_at(a, i);

            attend_tile(&t, &x);
        }
        free(x.q);
        free(x.out);
        free(x.w);
        free(x.other);
        free(x.seen);
    }
}
