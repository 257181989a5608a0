/* MInference's search (section 3.3, algorithm 1).  It first sizes the
 * candidates, the same for all heads.  Each candidate gets the largest size at
 * which its mean number of pairs, over the dump's heads, layers and windows,
 * fits the budget.  Then it takes for each head the candidate that changes the
 * head's output least. */
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

/* Each candidate has a kind.  For vertical-slash, `vertical` is the share of
 * the budget for vertical lines; slash lines get the rest. */
static const struct {
    enum kv_pattern_kind kind;
    double vertical;
} candidates[] = {{KV_A_SHAPE, 0},
                  {KV_VERTICAL_SLASH, 0.25},
                  {KV_VERTICAL_SLASH, 0.5},
                  {KV_VERTICAL_SLASH, 0.75},
                  {KV_BLOCK_SPARSE, 0}};
enum { CANDIDATES = sizeof(candidates) / sizeof(*candidates) };

/* Sizes at which pairs are counted: the largest, and powers of 2^(1/4) below
 * it. */
enum { SIZES = 128 };

struct search {
    struct kv_dump *dump;
    struct kv_calib_set *out;
    double budget;
    size_t n; /* tokens of a window */
    size_t n_sizes[CANDIDATES], size[CANDIDATES][SIZES]; /* ascending */
    size_t pairs[CANDIDATES][SIZES], all_pairs;          /* over all heads */
    struct kv_pattern fitted[CANDIDATES];
};

/* A layer and buffers for one window of it. */
struct layer {
    const struct search *s;
    size_t layer;
    struct kv_shape shape; /* of this layer */
    float *q, *k, *v, *out, *exact;
    double (*wrong)[CANDIDATES], *norm; /* [n_heads], squared sums */
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

static struct kv_attend_job job_of(const struct layer *l, float *out)
{
    const size_t n = l->s->n;

    return (struct kv_attend_job){.view = kv_shape_view(&l->shape, n, 0, n),
                                  .q = l->q,
                                  .out = out,
                                  .q_rows = n,
                                  .k = {.quantized = l->k},
                                  .v = {.quantized = l->v}};
}

/* ---- candidates ---------------------------------------------------------- */

/* Returns candidate c at this size. */
static struct kv_pattern sized(const struct search *s, size_t c, size_t size)
{
    const enum kv_pattern_kind kind = candidates[c].kind;
    const double lines = candidates[c].vertical * s->budget * (double)s->n / 2;

    if (kind == KV_BLOCK_SPARSE)
        return (struct kv_pattern){kind, size, 0};
    return (struct kv_pattern){
        kind, kind == KV_A_SHAPE ? A_SHAPE_FIRST : (size_t)ceil(lines), size};
}

static void list_sizes(struct search *s, size_t c)
{
    const size_t whole = kv_minference_whole(candidates[c].kind, s->n);
    size_t n = 0;

    for (double x = 1; x < (double)whole && n < SIZES - 1; x *= sqrt(sqrt(2)))
        if (!n || (size_t)x > s->size[c][n - 1])
            s->size[c][n++] = (size_t)x;
    s->size[c][n++] = whole;
    s->n_sizes[c] = n;
}

/* Adds the pairs that each candidate computes in one window of a layer. */
static void count_pairs(struct search *s, const struct layer *l)
{
    const struct kv_attend_job job = job_of(l, NULL);
    const size_t n_heads = l->shape.n_heads;

    s->all_pairs += kv_pattern_all_pairs(&job.view);
#pragma omp parallel for schedule(dynamic)
    for (size_t i = 0; i < n_heads * CANDIDATES; i++) {
        const size_t c = i % CANDIDATES;
        struct kv_pattern_index *x =
            kv_pattern_index_new(&job, 0, i / CANDIDATES, candidates[c].kind);

        for (size_t j = 0; j < s->n_sizes[c]; j++) {
            const struct kv_pattern p = sized(s, c, s->size[c][j]);
            const size_t pairs = kv_pattern_pairs(x, &p);

#pragma omp atomic
            s->pairs[c][j] += pairs;
        }
        kv_pattern_index_free(x);
    }
}

/* Fits candidate c to the budget, with at least size 1; the number of pairs is
 * interpolated linearly between two sizes. */
static struct kv_pattern fit(const struct search *s, size_t c)
{
    const size_t *size = s->size[c], *pairs = s->pairs[c];
    const double budget = s->budget * (double)s->all_pairs;
    size_t i = 0;
    double at;

    while (i + 1 < s->n_sizes[c] && (double)pairs[i + 1] <= budget)
        i++;
    if (i + 1 == s->n_sizes[c] || (double)pairs[i] > budget)
        return sized(s, c, size[i]);
    at = (budget - (double)pairs[i]) / (double)(pairs[i + 1] - pairs[i]);
    return sized(s, c,
                 size[i] + (size_t)(at * (double)(size[i + 1] - size[i])));
}

/* ---- heads --------------------------------------------------------------- */

static void add_errors(struct layer *l, size_t c)
{
    const size_t d = l->shape.head_dim, n_heads = l->shape.n_heads;

#pragma omp parallel for
    for (size_t h = 0; h < n_heads; h++)
        for (size_t t = 0; t < l->s->n; t++)
            for (size_t i = 0; i < d; i++) {
                const size_t at = (t * n_heads + h) * d + i;
                const double x = (double)l->exact[at];

                l->wrong[h][c] += pow((double)l->out[at] - x, 2);
                l->norm[h] += c ? 0 : x * x;
            }
}

static void try_candidates(struct layer *l)
{
    const struct kv_attend_job exact = job_of(l, l->exact);
    const struct kv_attend_job job = job_of(l, l->out);
    struct kv_pattern *head = kv_alloc(l->shape.n_heads, sizeof(*head));

    kv_attend(&exact);
    for (size_t c = 0; c < CANDIDATES; c++) {
        for (size_t h = 0; h < l->shape.n_heads; h++)
            head[h] = l->s->fitted[c];
        kv_pattern_attend(&job, head);
        add_errors(l, c);
    }
    free(head);
}

static double error_of(const struct layer *l, size_t head, size_t c)
{
    return l->norm[head] > 0 ? sqrt(l->wrong[head][c] / l->norm[head]) : 0;
}

static void minference_put_head(const struct layer *l, size_t head, float *row)
{
    const struct kv_pattern *p;
    size_t best = 0, whole;

    for (size_t c = 1; c < CANDIDATES; c++)
        if (error_of(l, head, c) < error_of(l, head, best))
            best = c;
    p = &l->s->fitted[best];
    whole = kv_minference_whole(p->kind, l->s->n);
    row[KV_MINFERENCE_KIND] = (float)p->kind;
    row[KV_MINFERENCE_FIRST] =
        p->kind == KV_A_SHAPE
            ? (float)p->first
            : (float)fmin(1, (double)p->first / (double)whole);
    row[KV_MINFERENCE_SECOND] = (float)((double)p->second / (double)l->s->n);
    row[KV_MINFERENCE_ERROR] = (float)error_of(l, head, best);
}

static void minference_put_layer(const struct layer *l)
{
    const size_t n_heads = l->shape.n_heads;
    const size_t dims[] = {n_heads, KV_MINFERENCE_COLUMNS};
    struct kv_table *t = kv_calib_add(l->s->out, "patterns", KV_ALL,
                                      (int)l->layer, KV_ALL, 2, dims);

    t->error = 0;
    for (size_t h = 0; h < n_heads; h++) {
        float *row = t->data + h * KV_MINFERENCE_COLUMNS;

        minference_put_head(l, h, row);
        t->error += (double)row[KV_MINFERENCE_ERROR] / (double)n_heads;
    }
}

/* ---- the dump ------------------------------------------------------------ */

static int read_window(struct layer *l, size_t window, bool values,
                       struct kv_err *e)
{
    const struct search *s = l->s;
    const size_t at = window * s->n;

    return kv_interrupted(e) ||
           kv_dump_read(s->dump, l->layer, KV_T_Q, at, s->n, l->q, e) ||
           kv_dump_read(s->dump, l->layer, KV_T_K, at, s->n, l->k, e) ||
           (values &&
            kv_dump_read(s->dump, l->layer, KV_T_V, at, s->n, l->v, e));
}

/* Counts the pairs of a layer or, if fitted, finds and stores the layer's
 * patterns. */
static int pass_layer(struct search *s, struct layer *l, bool fitted,
                      struct kv_err *e)
{
    const size_t n_heads = l->shape.n_heads, d = l->shape.head_dim;
    const size_t row = n_heads * d * sizeof(float);
    const size_t kv_row = l->shape.n_kv_heads * d * sizeof(float);
    int rc = 0;

    l->q = kv_alloc(s->n, row);
    l->out = kv_alloc(s->n, row);
    l->exact = kv_alloc(s->n, row);
    l->k = kv_alloc(s->n, kv_row);
    l->v = kv_alloc(s->n, kv_row);
    l->wrong = kv_alloc(n_heads, sizeof(*l->wrong));
    l->norm = kv_alloc(n_heads, sizeof(*l->norm));
    for (size_t w = 0; w < kv_dump_info(s->dump)->n_windows && !rc; w++) {
        rc = read_window(l, w, fitted, e);
        if (!rc && fitted)
            try_candidates(l);
        else if (!rc)
            count_pairs(s, l);
    }
    if (!rc && fitted)
        minference_put_layer(l);
    free(l->q);
    free(l->out);
    free(l->exact);
    free(l->k);
    free(l->v);
    free(l->wrong);
    free(l->norm);
    return rc ? -1 : 0;
}

static int pass(struct search *s, bool fitted, struct kv_err *e)
{
    const struct kv_dump_info *info = kv_dump_info(s->dump);

    for (size_t i = info->first_layer; i <= info->last_layer; i++) {
        struct layer l = {
            .s = s, .layer = i, .shape = kv_shape_layer(&info->shape, i)};

        if (!kv_shape_slides(&info->shape, i) && pass_layer(s, &l, fitted, e))
            return -1;
        if (s->out->progress)
            kv_progress_step(s->out->progress, 1);
    }
    return 0;
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
    struct search s = {.dump = dump,
                       .out = out,
                       .budget = kv_policy_get(p, "b"),
                       .n = info->ctx};

    if (out->progress)
        out->progress->total += 2 * (info->last_layer - info->first_layer + 1);
    for (size_t c = 0; c < CANDIDATES; c++)
        list_sizes(&s, c);
    if (pass(&s, false, e))
        return -1;
    if (!s.all_pairs)
        return kv_fail(e, "every layer of the dump slides: none has a pattern");
    for (size_t c = 0; c < CANDIDATES; c++)
        s.fitted[c] = fit(&s, c);
    if (pass(&s, true, e))
        return -1;
    say_chosen(out, out->key);
    return 0;
}
