/* MInference's search (section 3.3, algorithm 1): of patterns of an equal share
 * of pairs, the one that changes a head's output least.
 *
 * In each window of the dump every candidate takes the largest size whose pairs
 * fit the budget: what is computed is counted, not estimated.  Sizes are then
 * the windows' mean. */
#include "lib/base/alloc.h"
#include "lib/base/file.h"
#include "lib/base/progress.h"
#include "lib/calib.h"
#include "lib/dump.h"
#include "lib/policies/minference.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { A_SHAPE_FIRST = 64 };

/* Candidates: a kind, and for vertical-slash the share of the budget that its
 * vertical lines have; the rest is its slash lines'. */
static const struct {
    enum kv_pattern_kind kind;
    double vertical;
} candidates[] = {{KV_A_SHAPE, 0},
                  {KV_VERTICAL_SLASH, 0.25},
                  {KV_VERTICAL_SLASH, 0.5},
                  {KV_VERTICAL_SLASH, 0.75},
                  {KV_BLOCK_SPARSE, 0}};
enum { CANDIDATES = sizeof(candidates) / sizeof(*candidates) };

/* Sums over windows, of a query head. */
struct found {
    double first, second, wrong, norm;
};

/* A layer, window by window. */
struct search {
    struct kv_dump *dump;
    double budget;
    size_t layer;
    struct kv_shape shape; /* the layer's */
    size_t n;
    float *q, *k, *v, *out, *exact;
    struct found (*found)[CANDIDATES]; /* [n_heads] */
};

int kv_minference_check_dump(struct kv_dump *dump, struct kv_err *e)
{
    const enum kv_tensor wanted[] = {KV_T_Q, KV_T_K, KV_T_V};

    for (size_t i = 0; i < sizeof(wanted) / sizeof(*wanted); i++)
        if (kv_dump_want(dump, wanted[i], e))
            return -1;
    if (kv_dump_info(dump)->shape.alibi)
        return kv_fail(e, "the model has ALiBi, which no pattern has");
    return 0;
}

static struct kv_attend_job job_of(const struct search *s, float *out)
{
    return (struct kv_attend_job){.view =
                                      kv_shape_view(&s->shape, s->n, 0, s->n),
                                  .q = s->q,
                                  .out = out,
                                  .q_rows = s->n,
                                  .k = {.quantized = s->k},
                                  .v = {.quantized = s->v}};
}

/* Candidate c at this size. */
static struct kv_pattern sized(const struct search *s, size_t c, size_t size)
{
    const enum kv_pattern_kind kind = candidates[c].kind;
    const double lines = candidates[c].vertical * s->budget * (double)s->n / 2;

    if (kind == KV_BLOCK_SPARSE)
        return (struct kv_pattern){kind, size, 0};
    return (struct kv_pattern){
        kind, kind == KV_A_SHAPE ? A_SHAPE_FIRST : (size_t)ceil(lines), size};
}

/* Candidate c at the largest size within the budget, at least 1. */
static struct kv_pattern fit(const struct search *s,
                             const struct kv_pattern_index *x, size_t c)
{
    const double pairs = (double)s->n * (double)(s->n + 1) / 2;
    size_t low = 1, high = kv_minference_whole(candidates[c].kind, s->n);

    while (low < high) {
        const size_t mid = low + (high - low + 1) / 2;
        const struct kv_pattern p = sized(s, c, mid);

        if ((double)kv_pattern_pairs(x, &p) <= s->budget * pairs)
            low = mid;
        else
            high = mid - 1;
    }
    return sized(s, c, low);
}

/* fitted: [n_heads][CANDIDATES], to this window. */
static void fit_all(const struct search *s, struct kv_pattern *fitted)
{
    const struct kv_attend_job job = job_of(s, NULL);

#pragma omp parallel for schedule(dynamic)
    for (size_t i = 0; i < s->shape.n_heads * CANDIDATES; i++) {
        const size_t head = i / CANDIDATES, c = i % CANDIDATES;
        struct kv_pattern_index *x =
            kv_pattern_index_new(&job, 0, head, candidates[c].kind);

        fitted[i] = fit(s, x, c);
        kv_pattern_index_free(x);
    }
}

static void add_window(struct search *s, size_t head, size_t c,
                       const struct kv_pattern *p)
{
    const size_t d = s->shape.head_dim, row = s->shape.n_heads * d;
    const size_t whole = kv_minference_whole(p->kind, s->n);
    struct found *f = &s->found[head][c];

    f->first += p->kind == KV_A_SHAPE
                    ? (double)p->first
                    : fmin(1, (double)p->first / (double)whole);
    f->second += (double)p->second / (double)s->n;
    for (size_t t = 0; t < s->n; t++)
        for (size_t i = t * row + head * d; i < t * row + (head + 1) * d; i++) {
            f->wrong += pow((double)s->out[i] - (double)s->exact[i], 2);
            f->norm += pow((double)s->exact[i], 2);
        }
}

static int search_window(struct search *s, size_t window, struct kv_err *e)
{
    const size_t n_heads = s->shape.n_heads, first = window * s->n;
    const struct kv_attend_job exact = job_of(s, s->exact);
    const struct kv_attend_job job = job_of(s, s->out);
    struct kv_pattern *fitted, *head;

    if (kv_interrupted(e) ||
        kv_dump_read(s->dump, s->layer, KV_T_Q, first, s->n, s->q, e) ||
        kv_dump_read(s->dump, s->layer, KV_T_K, first, s->n, s->k, e) ||
        kv_dump_read(s->dump, s->layer, KV_T_V, first, s->n, s->v, e))
        return -1;
    fitted = kv_alloc(n_heads * CANDIDATES, sizeof(*fitted));
    head = kv_alloc(n_heads, sizeof(*head));
    kv_attend(&exact);
    fit_all(s, fitted);
    for (size_t c = 0; c < CANDIDATES; c++) {
        for (size_t h = 0; h < n_heads; h++)
            head[h] = fitted[h * CANDIDATES + c];
        kv_pattern_attend(&job, head);
        for (size_t h = 0; h < n_heads; h++)
            add_window(s, h, c, &head[h]);
    }
    free(head);
    free(fitted);
    return 0;
}

static double error_of(const struct found *f)
{
    return f->norm > 0 ? sqrt(f->wrong / f->norm) : 0;
}

/* The best candidate of each head; returns the mean of their errors. */
static double choose(const struct search *s, size_t windows, float *row)
{
    double sum = 0;

    for (size_t h = 0; h < s->shape.n_heads;
         h++, row += KV_MINFERENCE_COLUMNS) {
        const struct found *f = s->found[h];
        size_t best = 0;

        for (size_t c = 1; c < CANDIDATES; c++)
            if (error_of(&f[c]) < error_of(&f[best]))
                best = c;
        row[KV_MINFERENCE_KIND] = (float)candidates[best].kind;
        row[KV_MINFERENCE_FIRST] = (float)(f[best].first / (double)windows);
        row[KV_MINFERENCE_SECOND] = (float)(f[best].second / (double)windows);
        row[KV_MINFERENCE_ERROR] = (float)error_of(&f[best]);
        sum += error_of(&f[best]);
    }
    return sum / (double)s->shape.n_heads;
}

static int search_layer(struct search *s, size_t windows,
                        struct kv_calib_set *out, struct kv_err *e)
{
    const size_t n_heads = s->shape.n_heads, d = s->shape.head_dim;
    const size_t q_values = n_heads * d, values = s->shape.n_kv_heads * d;
    int rc = 0;

    s->q = kv_alloc(s->n, q_values * sizeof(*s->q));
    s->out = kv_alloc(s->n, q_values * sizeof(*s->out));
    s->exact = kv_alloc(s->n, q_values * sizeof(*s->exact));
    s->k = kv_alloc(s->n, values * sizeof(*s->k));
    s->v = kv_alloc(s->n, values * sizeof(*s->v));
    s->found = kv_alloc(n_heads, sizeof(*s->found));
    for (size_t w = 0; w < windows && !rc; w++)
        rc = search_window(s, w, e);
    if (!rc) {
        struct kv_table *t =
            kv_calib_add(out, "patterns", KV_ALL, (int)s->layer, KV_ALL, 2,
                         (const size_t[]){n_heads, KV_MINFERENCE_COLUMNS});

        t->error = choose(s, windows, t->data);
    }
    free(s->q);
    free(s->out);
    free(s->exact);
    free(s->k);
    free(s->v);
    free(s->found);
    return rc;
}

static void say_chosen(const struct kv_calib_set *set, const char *key)
{
    size_t n[KV_PATTERN_KINDS] = {0};

    for (size_t i = 0; i < set->n_tables; i++)
        for (size_t h = 0; h < set->table[i].dims[0]; h++)
            n[(size_t)set->table[i]
                  .data[h * KV_MINFERENCE_COLUMNS + KV_MINFERENCE_KIND]]++;
    kv_note("%s: %zu heads a-shape, %zu vertical-slash, %zu block-sparse", key,
            n[KV_A_SHAPE], n[KV_VERTICAL_SLASH], n[KV_BLOCK_SPARSE]);
}

int kv_minference_search(const struct kv_policy_spec *p, struct kv_dump *dump,
                         struct kv_calib_set *out, struct kv_err *e)
{
    const struct kv_dump_info *info = kv_dump_info(dump);
    struct search s = {
        .dump = dump, .budget = kv_policy_get(p, "b"), .n = info->ctx};

    if (out->progress)
        out->progress->total += info->last_layer - info->first_layer + 1;
    for (size_t l = info->first_layer; l <= info->last_layer; l++) {
        s.layer = l;
        s.shape = kv_shape_layer(&info->shape, l);
        if (!kv_shape_slides(&info->shape, l) &&
            search_layer(&s, info->n_windows, out, e))
            return -1;
        if (out->progress)
            kv_progress_step(out->progress, 1);
    }
    if (!out->n_tables)
        return kv_fail(e, "every layer of the dump slides: none has a pattern");
    say_chosen(out, out->key);
    return 0;
}
