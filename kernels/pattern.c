#include "kernels/pattern.h"
#include "kernels/gemm.h"
#include "kernels/topk.h"
#include "kernels/vecops/vecops.h"
#include "lib/base/alloc.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { BLOCK = KV_PATTERN_BLOCK, LAST = 64 /* queries that rank lines */ };

const char *kv_pattern_name(enum kv_pattern_kind kind)
{
    static const char *const name[] = {"a-shape", "vertical-slash",
                                       "block-sparse"};

    return name[kind];
}

bool kv_pattern_takes(const struct kv_attend_view *v)
{
    return !v->first && !v->window && !v->slope && !v->alive && !v->shift &&
           !v->mass;
}

size_t kv_pattern_all_pairs(const struct kv_attend_view *v)
{
    return v->n_seqs * v->n_heads * (v->nq * (v->nq + 1) / 2);
}

/* ---- one query head of a sequence ---------------------------------------- */

/* A sequence's queries, n_heads * head_dim apart, and its keys or values,
 * n_kv_heads * head_dim apart. */
static size_t query_at(const struct kv_attend_job *a, size_t seq, size_t head)
{
    const struct kv_attend_view *v = &a->view;

    return (seq * a->q_rows * v->n_heads + head) * v->head_dim;
}

static const float *rows_of(const struct kv_attend_job *a,
                            const struct kv_attend_side *s, size_t seq,
                            size_t head)
{
    const struct kv_attend_view *v = &a->view;
    const size_t kv_head = head / (v->n_heads / v->n_kv_heads);
    const float *form = s->quantized ? s->quantized : s->unquantized;

    assert(!s->quantized || !s->unquantized);
    return form + (seq * v->n * v->n_kv_heads + kv_head) * v->head_dim;
}

/* Arrays that the kind does not need are NULL. */
struct kv_pattern_index {
    enum kv_pattern_kind kind;
    size_t n, head_dim;
    uint32_t *vertical, *slash; /* [n] tokens; distances; best first */
    float *mean_q, *mean_k;     /* [blocks][head_dim] */
};

static size_t blocks_of(size_t n)
{
    return (n + BLOCK - 1) / BLOCK;
}

static int descending(const void *a, const void *b)
{
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

    return x < y ? 1 : x > y ? -1 : 0;
}

/* Sets index [n] to the indices of keys from kv_topk_key(), the largest key
 * first. */
static void sort_keys(uint64_t *key, size_t n, uint32_t *index)
{
    qsort(key, n, sizeof(*key), descending);
    for (size_t i = 0; i < n; i++)
        index[i] = kv_topk_index(key[i]);
}

/* Sets index [n] in the order of sums, but with 0 to forced - 1 before all
 * others. */
static void rank(const double *sum, size_t n, size_t forced, uint32_t *index)
{
    uint64_t *key = kv_alloc(n, sizeof(*key));

    for (size_t i = 0; i < n; i++)
        key[i] =
            kv_topk_key(i < forced ? INFINITY : (float)sum[i], (uint32_t)i);
    sort_keys(key, n, index);
    free(key);
}

/* The weights of the last queries [rows][n], rows in order. */
static float *last_weights(const struct kv_attend_job *a, size_t seq,
                           size_t head, size_t rows)
{
    const struct kv_attend_view *v = &a->view;
    const size_t n = v->nq, d = v->head_dim, q_row = v->n_heads * d;
    float *w = kv_alloc(rows, n * sizeof(*w));

    kv_gemm(true, rows, n, d, v->scale,
            a->q + query_at(a, seq, head) + (n - rows) * q_row, q_row,
            rows_of(a, &a->k, seq, head), v->n_kv_heads * d, 0, w, n);
    for (size_t r = 0; r < rows; r++) {
        kv_attend_logits(v, seq, head, n - rows + r, 0, n, w + r * n);
        kv_attend_weights(v, head, n, w + r * n);
    }
    return w;
}

static void rank_lines(struct kv_pattern_index *x,
                       const struct kv_attend_job *a, size_t seq, size_t head)
{
    const size_t n = x->n, rows = n < LAST ? n : LAST;
    float *w = last_weights(a, seq, head, rows);
    double *vertical = kv_alloc(n, sizeof(*vertical));
    double *slash = kv_alloc(n, sizeof(*slash));

    for (size_t r = 0; r < rows; r++) {
        const size_t position = n - rows + r;

        for (size_t j = 0; j <= position; j++) {
            vertical[j] += (double)w[r * n + j];
            slash[position - j] += (double)w[r * n + j];
        }
    }
    x->vertical = kv_alloc(n, sizeof(*x->vertical));
    x->slash = kv_alloc(n, sizeof(*x->slash));
    rank(vertical, n, KV_PATTERN_FIRST, x->vertical);
    rank(slash, n, KV_PATTERN_NEAREST, x->slash);
    free(slash);
    free(vertical);
    free(w);
}

/* Computes [blocks][d], the mean rows of blocks, from rows [n][d] that are
 * `row` apart. */
static float *means(const float *rows, size_t row, size_t n, size_t d)
{
    float *mean = kv_alloc(blocks_of(n), d * sizeof(*mean));

    for (size_t b = 0; b < blocks_of(n); b++) {
        const size_t end = n - b * BLOCK < BLOCK ? n : (b + 1) * BLOCK;

        for (size_t c = 0; c < d; c++) {
            double sum = 0;

            for (size_t i = b * BLOCK; i < end; i++)
                sum += (double)rows[i * row + c];
            mean[b * d + c] = (float)(sum / (double)(end - b * BLOCK));
        }
    }
    return mean;
}

struct kv_pattern_index *kv_pattern_index_new(const struct kv_attend_job *a,
                                              size_t seq, size_t head,
                                              enum kv_pattern_kind kind)
{
    const struct kv_attend_view *v = &a->view;
    const size_t n = v->nq, d = v->head_dim;
    struct kv_pattern_index *x = kv_alloc(1, sizeof(*x));

    *x = (struct kv_pattern_index){.kind = kind, .n = n, .head_dim = d};
    if (kind == KV_VERTICAL_SLASH)
        rank_lines(x, a, seq, head);
    if (kind == KV_BLOCK_SPARSE) {
        x->mean_q = means(a->q + query_at(a, seq, head), v->n_heads * d, n, d);
        x->mean_k =
            means(rows_of(a, &a->k, seq, head), v->n_kv_heads * d, n, d);
    }
    return x;
}

void kv_pattern_index_free(struct kv_pattern_index *x)
{
    free(x->vertical);
    free(x->slash);
    free(x->mean_q);
    free(x->mean_k);
    free(x);
}

/* ---- what a block sees --------------------------------------------------- */

/* Queries [m0, m1) are a block; seen [n]: a thread's workspace, all false. */
struct block {
    size_t m0, m1;
    bool *seen;
};

/* Marks tokens [from, to) as seen; from may be below 0. */
static void see(const struct block *b, ptrdiff_t from, ptrdiff_t to)
{
    const ptrdiff_t begin = from < 0 ? 0 : from;
    const ptrdiff_t end = to < (ptrdiff_t)b->m1 ? to : (ptrdiff_t)b->m1;

    if (begin < end)
        memset(b->seen + begin, true, (size_t)(end - begin));
}

static void see_a_shape(const struct kv_pattern *p, const struct block *b)
{
    see(b, 0, (ptrdiff_t)(p->first < b->m1 ? p->first : b->m1));
    see(b, p->second > b->m0 ? 0 : (ptrdiff_t)(b->m0 + 1 - p->second),
        (ptrdiff_t)b->m1);
}

static void see_lines(const struct kv_pattern_index *x,
                      const struct kv_pattern *p, const struct block *b)
{
    for (size_t i = 0; i < p->first && i < x->n; i++)
        if (x->vertical[i] < b->m1)
            b->seen[x->vertical[i]] = true;
    for (size_t i = 0; i < p->second && i < x->n; i++) {
        const ptrdiff_t s = (ptrdiff_t)x->slash[i];

        see(b, (ptrdiff_t)b->m0 - s, (ptrdiff_t)b->m1 - s);
    }
}

static void see_blocks(const struct kv_pattern_index *x,
                       const struct kv_pattern *p, const struct block *b)
{
    const size_t own = b->m0 / BLOCK, d = x->head_dim;
    uint64_t *key = kv_alloc(own + 1, sizeof(*key));
    uint32_t *best = kv_alloc(own + 1, sizeof(*best));

    for (size_t i = 0; i <= own; i++) {
        double s = 0;

        for (size_t c = 0; c < d; c++)
            s += (double)x->mean_q[own * d + c] * (double)x->mean_k[i * d + c];
        key[i] = kv_topk_key(i == own ? INFINITY : (float)s, (uint32_t)i);
    }
    sort_keys(key, own + 1, best);
    for (size_t i = 0; i < p->first && i <= own; i++)
        see(b, (ptrdiff_t)best[i] * BLOCK, ((ptrdiff_t)best[i] + 1) * BLOCK);
    free(best);
    free(key);
}

/* Sets token [n] to the tokens that block m sees, ascending; returns their
 * number.  seen [n]: scratch memory. */
static size_t tokens_of(const struct kv_pattern_index *x,
                        const struct kv_pattern *p, size_t m, bool *seen,
                        uint32_t *token)
{
    const size_t m0 = m * BLOCK, m1 = x->n - m0 < BLOCK ? x->n : m0 + BLOCK;
    const struct block b = {m0, m1, seen};
    size_t n = 0;

    assert(x->kind == p->kind);
    memset(seen, 0, m1);
    if (p->kind == KV_A_SHAPE)
        see_a_shape(p, &b);
    else if (p->kind == KV_VERTICAL_SLASH)
        see_lines(x, p, &b);
    else
        see_blocks(x, p, &b);
    for (size_t j = 0; j < m1; j++)
        if (seen[j])
            token[n++] = (uint32_t)j;
    assert(n >= m1 - m0 && token[n - (m1 - m0)] == m0);
    return n;
}

/* The number of pairs (query, token) in a block of nq queries that sees n
 * tokens, the last nq of which are its own. */
static size_t pairs_of(size_t n, size_t nq)
{
    return (n - nq) * nq + nq * (nq + 1) / 2;
}

static size_t queries_of(size_t n, size_t m)
{
    return n - m * BLOCK < BLOCK ? n - m * BLOCK : BLOCK;
}

size_t kv_pattern_pairs(const struct kv_pattern_index *x,
                        const struct kv_pattern *p)
{
    bool *seen = kv_alloc(x->n, sizeof(*seen));
    uint32_t *token = kv_alloc(x->n, sizeof(*token));
    size_t pairs = 0;

    for (size_t m = 0; m < blocks_of(x->n); m++)
        pairs += pairs_of(tokens_of(x, p, m, seen, token), queries_of(x->n, m));
    free(token);
    free(seen);
    return pairs;
}

/* ---- attention ----------------------------------------------------------- */

/* A thread's memory.  q, out: [BLOCK][head_dim]; all else: for all tokens. */
struct workspace {
    bool *seen;
    uint32_t *token;
    float *q, *out, *k, *v;
};

static void gather(const float *rows, size_t row, const uint32_t *token,
                   size_t n, size_t d, float *to)
{
    for (size_t i = 0; i < n; i++)
        memcpy(to + i * d, rows + token[i] * row, d * sizeof(*to));
}

/* Attends with the queries of block m; returns the number of its pairs. */
static size_t attend_block(const struct kv_attend_job *a, size_t seq,
                           size_t head, const struct kv_pattern_index *x,
                           const struct kv_pattern *p, size_t m,
                           const struct workspace *w)
{
    const struct kv_attend_view *v = &a->view;
    const size_t d = v->head_dim, nq = queries_of(x->n, m);
    const size_t q_row = v->n_heads * d, kv_row = v->n_kv_heads * d;
    const size_t at = query_at(a, seq, head) + m * BLOCK * q_row;
    const size_t n = tokens_of(x, p, m, w->seen, w->token);
    const float *sink = v->sink_logit ? v->sink_logit + head : NULL;
    const struct kv_attend_job job = {.view = {.n_seqs = 1,
                                               .n_heads = 1,
                                               .n_kv_heads = 1,
                                               .head_dim = d,
                                               .n = n,
                                               .nq = nq,
                                               .first = n - nq,
                                               .scale = v->scale,
                                               .cap = v->cap,
                                               .sink_logit = sink},
                                      .q = w->q,
                                      .out = w->out,
                                      .q_rows = nq,
                                      .k = {.quantized = w->k},
                                      .v = {.quantized = w->v}};

    gather(rows_of(a, &a->k, seq, head), kv_row, w->token, n, d, w->k);
    gather(rows_of(a, &a->v, seq, head), kv_row, w->token, n, d, w->v);
    for (size_t i = 0; i < nq; i++)
        memcpy(w->q + i * d, a->q + at + i * q_row, d * sizeof(*w->q));
    kv_attend(&job);
    for (size_t i = 0; i < nq; i++)
        memcpy(a->out + at + i * q_row, w->out + i * d, d * sizeof(*w->out));
    return pairs_of(n, nq);
}

/* Makes an index for every head, to be freed by free_indexes(). */
static struct kv_pattern_index **index_heads(const struct kv_attend_job *a,
                                             const struct kv_pattern *head)
{
    const size_t n_heads = a->view.n_heads, all = a->view.n_seqs * n_heads;
    struct kv_pattern_index **x =
        kv_alloc(all, sizeof(struct kv_pattern_index *));

#pragma omp parallel for schedule(dynamic)
    for (size_t i = 0; i < all; i++)
        x[i] = kv_pattern_index_new(a, i / n_heads, i % n_heads,
                                    head[i % n_heads].kind);
    return x;
}

size_t kv_pattern_attend(const struct kv_attend_job *a,
                         const struct kv_pattern *head)
{
    const struct kv_attend_view *v = &a->view;
    const size_t n = v->nq, d = v->head_dim, n_blocks = blocks_of(n);
    const size_t all = v->n_seqs * v->n_heads;
    struct kv_pattern_index **x;
    size_t pairs = 0;

    assert(kv_pattern_takes(v));
    x = index_heads(a, head);
#pragma omp parallel
    {
        const struct workspace w = {.seen = kv_alloc(n, sizeof(bool)),
                                    .token = kv_alloc(n, sizeof(uint32_t)),
                                    .q = kv_alloc(BLOCK, d * sizeof(float)),
                                    .out = kv_alloc(BLOCK, d * sizeof(float)),
                                    .k = kv_alloc(n, d * sizeof(float)),
                                    .v = kv_alloc(n, d * sizeof(float))};

        /* The last blocks see the most: they come first. */
#pragma omp for schedule(dynamic) reduction(+ : pairs)
        for (size_t i = 0; i < n_blocks * all; i++) {
            const size_t m = n_blocks - 1 - i / all, h = i % all;

            pairs += attend_block(a, h / v->n_heads, h % v->n_heads, x[h],
                                  &head[h % v->n_heads], m, &w);
        }
        free(w.seen);
        free(w.token);
        free(w.q);
        free(w.out);
        free(w.k);
        free(w.v);
    }
    for (size_t i = 0; i < all; i++)
        kv_pattern_index_free(x[i]);
    free(x);
    return pairs;
}
