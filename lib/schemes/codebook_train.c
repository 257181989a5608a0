/* Training of codebooks: one pass over the dump for each layer and side finds
 * the smoothing factors and samples tokens; k-means makes the codebooks. */
#include "kernels/hadamard.h"
#include "kernels/nearest/kmeans.h"
#include "kernels/nearest/nearest.h"
#include "lib/anchor_score.h"
#include "lib/base/alloc.h"
#include "lib/base/file.h"
#include "lib/base/half.h"
#include "lib/base/progress.h"
#include "lib/base/rng.h"
#include "lib/calib.h"
#include "lib/dump.h"
#include "lib/schemes/codebook.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    MAX_POINTS = 256, /* per centroid; more do not move the centers */
    FEW_POINTS = 39,  /* per centroid; fewer overfit the sample */
    CHUNK = 512       /* tokens read at a time */
};

/* One side of a spec, and the layers [first, end) that share codebooks. */
struct job {
    const struct kv_spec *spec;
    struct kv_dump *dump;
    const struct kv_dump_info *info;
    struct kv_calib_set *out;
    uint64_t seed;
    enum kv_side side;
    struct kv_codebook_layout layout;
    size_t first, end;
    size_t n_tokens; /* sampled from each layer */
    float *sample;   /* [end - first][n_tokens][n_heads][head_dim] */
    float *weight;   /* each value's weight, in the same layout; NULL: none */
};

static size_t codebook_row_of(const struct job *j)
{
    return j->info->shape.n_kv_heads * j->info->shape.head_dim;
}

static size_t dump_tokens(const struct job *j)
{
    return j->info->n_windows * j->info->ctx;
}

static size_t sampled_tokens(const struct job *j)
{
    return (j->end - j->first) * j->n_tokens;
}

/* The number of points per codebook from one token of one layer. */
static size_t points_per_token(const struct job *j)
{
    const struct kv_codebook_layout *l = &j->layout;

    return l->n_heads / l->head_books * (l->n_sub / l->sub_books);
}

/* The beginning of a layer in sample and weight. */
static size_t layer_at(const struct job *j, size_t layer)
{
    return (layer - j->first) * j->n_tokens * codebook_row_of(j);
}

/* Adds the place to an error sentence: "all layers, K" or "layer 3, V". */
static int fail_at(const struct job *j, struct kv_err *e)
{
    if (kv_spec_is(j->spec, j->side, "books", "model"))
        return kv_fail_in(e, "all layers, %c", kv_side_name(j->side));
    return kv_fail_in(e, "layer %zu, %c", j->first, kv_side_name(j->side));
}

static enum kv_tensor values_of(const struct kv_spec *s, enum kv_side side)
{
    return side == KV_V                         ? KV_T_V
           : kv_spec_is(s, side, "rope", "pre") ? KV_T_K_PRE
                                                : KV_T_K;
}

static enum kv_tensor codebook_gradient_of(enum kv_side side)
{
    return side == KV_V ? KV_T_V_GRADIENT : KV_T_K_GRADIENT;
}

static bool is_weighted(const struct kv_spec *s, enum kv_side side)
{
    return !kv_spec_is(s, side, "w", "none");
}

static bool by_anchors(const struct kv_spec *s, enum kv_side side)
{
    return s->scheme->anchors && kv_spec_is(s, side, "w", "anchor");
}

static int plan_sample(struct job *j, struct kv_err *e)
{
    const size_t k = j->layout.k, tokens = dump_tokens(j);
    const size_t each = (j->end - j->first) * points_per_token(j);
    const size_t max = MAX_POINTS * k / each;

    j->n_tokens = max < 1 ? 1 : max < tokens ? max : tokens;

    const size_t n = sampled_tokens(j) * points_per_token(j);

    if (n < k)
        return kv_fail(e,
                       "the dump has %zu points for the %zu centroids of a "
                       "codebook: calibrate on more text",
                       n, k);
    if (n < FEW_POINTS * k && j->out && !j->out->warning[0])
        snprintf(j->out->warning, sizeof(j->out->warning),
                 "%c: %.1f points per centroid, fewer than %d: the codebooks "
                 "fit this text better than any other",
                 kv_side_name(j->side), (double)n / (double)k, FEW_POINTS);
    return 0;
}

/* Copies the sampled ones among the n tokens at x, which begin at token
 * `first`: sampled token i is token floor(i * tokens / n_tokens).  The sample
 * includes massive tokens, as in the papers: without a center near an attention
 * sink, a cache that keeps no token in fp16 loses the sink (CQ at 2 bits on
 * Qwen2.5-Coder: KL 1.37 without massive tokens, .415 with them). */
static void codebook_pick(const struct job *j, size_t first, const float *x,
                          size_t n, float *sample, size_t *taken)
{
    const size_t row = codebook_row_of(j);

    for (; *taken < j->n_tokens; ++*taken) {
        const size_t at = *taken * dump_tokens(j) / j->n_tokens;

        if (at >= first + n)
            break;
        memcpy(sample + *taken * row, x + (at - first) * row, row * sizeof(*x));
    }
}

/* Computes score [tokens][n_kv_heads] of a layer's tokens, window by window. */
static int read_scores(const struct job *j, size_t layer, float *score,
                       struct kv_err *e)
{
    const struct kv_shape s = kv_shape_layer(&j->info->shape, layer);
    const size_t ctx = j->info->ctx, row = codebook_row_of(j);
    const size_t q_row = s.n_heads * s.head_dim;
    float *q = kv_alloc(ctx, q_row * sizeof(*q));
    float *k = kv_alloc(2 * ctx, row * sizeof(*k)), *v = k + ctx * row;
    float *of = kv_alloc(ctx, s.n_kv_heads * sizeof(*of));
    int rc = 0;

    for (size_t w = 0; w < j->info->n_windows && !rc; w++) {
        rc = kv_interrupted(e) ||
             kv_dump_read(j->dump, layer, KV_T_Q, w * ctx, ctx, q, e) ||
             kv_dump_read(j->dump, layer, KV_T_K, w * ctx, ctx, k, e) ||
             kv_dump_read(j->dump, layer, KV_T_V, w * ctx, ctx, v, e);
        if (rc)
            break;
        kv_anchor_score(&s, q, k, v, ctx, j->side == KV_K ? of : NULL,
                        j->side == KV_K ? NULL : of);
        for (size_t i = 0; i < ctx * s.n_kv_heads; i++)
            score[w * ctx * s.n_kv_heads + i] =
                of[i % s.n_kv_heads * ctx + i / s.n_kv_heads];
    }
    free(of);
    free(k);
    free(q);
    return rc ? -1 : 0;
}

/* Sets a layer's j->weight: a token's values weigh as much as their head. */
static int weigh_by_anchors(const struct job *j, size_t layer, struct kv_err *e)
{
    const size_t heads = j->info->shape.n_kv_heads, row = codebook_row_of(j);
    const size_t d = j->info->shape.head_dim, tokens = dump_tokens(j);
    float *score = kv_alloc(tokens, heads * sizeof(*score));
    float *x = kv_alloc(CHUNK, row * sizeof(*x));
    const int rc = read_scores(j, layer, score, e);
    size_t taken = 0;

    for (size_t first = 0; first < tokens && !rc; first += CHUNK) {
        const size_t n = tokens - first < CHUNK ? tokens - first : CHUNK;

        for (size_t i = 0; i < n * row; i++)
            x[i] = score[(first + i / row) * heads + i % row / d];
        codebook_pick(j, first, x, n, j->weight + layer_at(j, layer), &taken);
    }
    free(x);
    free(score);
    return rc;
}

/* counts [n]: which tokens count; NULL: all. */
static void raise_max(const float *x, const bool *counts, size_t n, size_t row,
                      float *max)
{
    for (size_t t = 0; t < n; t++)
        for (size_t i = 0; i < row && (!counts || counts[t]); i++) {
            const float a = fabsf(x[t * row + i]);

            max[i] = a > max[i] ? a : max[i];
        }
}

/* One pass over a layer: reads sample and weights [n_tokens][row], and finds
 * max [row], the largest |x| of every channel, after the Hadamard transform if
 * t puts it first. */
static int read_layer(const struct job *j, size_t layer,
                      const struct kv_codebook_transform *t, float *max,
                      struct kv_err *e)
{
    const enum kv_tensor by = codebook_gradient_of(j->side);
    const enum kv_tensor tensor = values_of(j->spec, j->side);
    const size_t tokens = dump_tokens(j);
    const size_t at = layer_at(j, layer);
    float *x = kv_alloc(CHUNK, codebook_row_of(j) * sizeof(*x));
    const bool *counts = kv_calib_counts(j->out, j->info, layer);
    const bool fisher = j->weight && !by_anchors(j->spec, j->side);
    size_t taken = 0, weighed = 0;
    int rc = -1;

    for (size_t first = 0; first < tokens; first += CHUNK) {
        const size_t n = tokens - first < CHUNK ? tokens - first : CHUNK;

        if (kv_interrupted(e))
            goto out;
        if (fisher) {
            if (kv_dump_fisher(j->dump, layer, by, first, n, x, e))
                goto out;
            codebook_pick(j, first, x, n, j->weight + at, &weighed);
        }
        if (kv_dump_read(j->dump, layer, tensor, first, n, x, e))
            goto out;
        codebook_pick(j, first, x, n, j->sample + at, &taken);
        if (t->hadamard && t->hadamard_first)
            kv_hadamard(x, n * t->n_heads, t->head_dim);
        raise_max(x, counts ? counts + first : NULL, n, codebook_row_of(j),
                  max);
    }
    rc = 0;
out:
    free(x);
    return rc;
}

static bool has_factors(const struct kv_calib_set *set, const struct kv_spec *s)
{
    struct kv_spec other;
    struct kv_err e;

    return !kv_spec_parse(&other, set->spec, &e) && other.scheme->training &&
           other.scheme->training->calibrate == kv_codebook_calibrate &&
           kv_spec_get(&other, KV_K, "t") == kv_spec_get(s, KV_K, "t") &&
           kv_spec_get(&other, KV_K, "rope") == kv_spec_get(s, KV_K, "rope");
}

int kv_codebook_factors(const struct kv_calib_set **set,
                        const struct kv_calib *c, const struct kv_spec *s,
                        const struct kv_dump_info *info, struct kv_err *e)
{
    *set = NULL;
    if (!s->scheme->training ||
        s->scheme->training->calibrate != kv_codebook_calibrate ||
        !kv_codebook_smooths(s, KV_K))
        return kv_fail(e, "%s has no smoothing factors", s->text);
    for (size_t i = 0; i < c->n_sets && !*set; i++)
        if (has_factors(&c->set[i], s))
            *set = &c->set[i];
    if (!*set)
        return kv_fail(e,
                       "%s has no smoothing factors for %s: no set of the same "
                       "t and rope",
                       c->path, s->text);
    for (size_t l = info->first_layer; l <= info->last_layer; l++) {
        const struct kv_table *t = kv_calib_table(*set, "smooth", KV_K, l, 0);

        if (!t ||
            kv_table_values(t) != info->shape.n_kv_heads * info->shape.head_dim)
            return kv_fail(e, "%s has no smoothing factors of layer %zu",
                           c->path, l);
    }
    return 0;
}

/* Adds the smoothing factors: another calibration's, or by VecInfer's eq. 4
 * sqrt(max_t |K_ti|), and 1 for a channel of zeros. */
static float *add_smooth(struct job *j, size_t layer, const float *max)
{
    const size_t dims[] = {j->info->shape.n_kv_heads, j->info->shape.head_dim};
    float *factor =
        kv_calib_add(j->out, "smooth", KV_K, (int)layer, KV_ALL, 2, dims)->data;

    if (j->out->factors) {
        memcpy(factor,
               kv_calib_table(j->out->factors, "smooth", KV_K, layer, 0)->data,
               codebook_row_of(j) * sizeof(*factor));
        return factor;
    }
    for (size_t i = 0; i < codebook_row_of(j); i++)
        factor[i] = max[i] > 0 ? sqrtf(max[i]) : 1;
    return factor;
}

/* Samples one layer and transforms the sample; *t becomes its transform. */
static int take_sample(struct job *j, size_t layer,
                       struct kv_codebook_transform *t, struct kv_err *e)
{
    float *max = kv_alloc(codebook_row_of(j), sizeof(*max));
    int rc;

    *t = kv_codebook_transform_of(j->spec, j->side, &j->info->shape);
    rc = read_layer(j, layer, t, max, e) ||
         (by_anchors(j->spec, j->side) && weigh_by_anchors(j, layer, e));
    if (!rc) {
        if (kv_codebook_smooths(j->spec, j->side))
            t->smooth = add_smooth(j, layer, max);
        kv_codebook_forward(t, j->sample + layer_at(j, layer), j->n_tokens);
    }
    free(max);
    return rc;
}

/* The weight [n] of each of the book's points: the sum of its values' weights.
 * NULL if all points weigh the same, and also if fewer than k points have a
 * weight above 0, as for channels that a norm sets to 0. */
static float *point_weights(const struct job *j, size_t head, size_t sub,
                            size_t n)
{
    const struct kv_codebook_layout *l = &j->layout;
    float *part, *weight;
    size_t weighed = 0;

    if (!j->weight)
        return NULL;
    part = kv_alloc(n, l->d * sizeof(*part));
    weight = kv_alloc(n, sizeof(*weight));
    kv_codebook_gather(l, head, sub, j->weight, sampled_tokens(j), part);
    for (size_t i = 0; i < n * l->d; i++)
        weight[i / l->d] += part[i];
    free(part);
    for (size_t i = 0; i < n; i++)
        weighed += weight[i] > 0;
    if (weighed < l->k) {
        free(weight);
        return NULL;
    }
    return weight;
}

/* Rounds centers as the calibration stores them; encoding uses the rounded
 * ones. */
static void round_centers(float *centers, size_t n)
{
    for (size_t i = 0; i < n; i++)
        centers[i] = kv_f16_to_f32(kv_f16_clamp(centers[i]));
}

/* Trains the book of (head, sub), [k][d]; replaces its sub-vectors of the
 * sample by their quantization errors. */
static int train_book(const struct job *j, size_t head, size_t sub,
                      float *centers, struct kv_err *e)
{
    enum { PART = 4096 };
    const struct kv_codebook_layout *l = &j->layout;
    const struct kv_codebook_users u = kv_codebook_users(l, head, sub);
    const size_t tokens = sampled_tokens(j), n = tokens * points_per_token(j);
    const size_t iters = kv_spec_size(j->spec, j->side, "iters");
    const enum kv_kmeans_start start =
        kv_spec_is(j->spec, j->side, "init", "random") ? KV_KMEANS_RANDOM
                                                       : KV_KMEANS_PP;
    const uint64_t key =
        kv_mix(kv_mix(kv_mix(kv_mix(j->seed, j->side), j->first), head), sub);
    float *point = kv_alloc(n, l->d * sizeof(*point));
    float *weight = point_weights(j, head, sub, n);
    uint16_t *code = kv_alloc(n, sizeof(*code)), *next = code;
    struct kv_centroids book;
    int rc;

    kv_codebook_gather(l, head, sub, j->sample, tokens, point);
    rc = kv_kmeans(point, n, l->d, weight, l->k, start, iters, key, centers,
                   NULL, e);
    if (rc)
        goto out;
    round_centers(centers, l->k * l->d);
    kv_centroids_init(&book, centers, l->k, l->d);
#pragma omp parallel for schedule(static)
    for (size_t i = 0; i < n; i += PART)
        kv_nearest(&book, point + i * l->d, n - i < PART ? n - i : PART,
                   code + i);
    kv_centroids_clear(&book);
    for (size_t t = 0; t < tokens; t++)
        for (size_t h = u.h; h < u.h_end; h++)
            for (size_t s = u.j; s < u.j_end; s++, next++)
                for (size_t i = 0; i < l->d; i++)
                    j->sample[((t * l->n_heads + h) * l->n_sub + s) * l->d +
                              i] -= centers[*next * l->d + i];
out:
    free(code);
    free(weight);
    free(point);
    return rc;
}

/* Reports progress: a layer was sampled or a codebook trained. */
static void codebook_step(const struct job *j)
{
#pragma omp critical(kv_codebook_step)
    if (j->out->progress)
        kv_progress_step(j->out->progress, 1);
}

/* Trains all books of the job, several in parallel; centers: [head_books], each
 * [sub_books][k][d]. */
static int train_books(const struct job *j, float *const *centers,
                       struct kv_err *e)
{
    const struct kv_codebook_layout *l = &j->layout;
    const size_t n_books = l->head_books * l->sub_books;
    int rc = 0;

#pragma omp parallel for schedule(dynamic) if (n_books > 1)
    for (size_t b = 0; b < n_books; b++) {
        const size_t h = b / l->sub_books, s = b % l->sub_books;
        struct kv_err mine = {""};

        if (train_book(j, h, s, centers[h] + s * l->k * l->d, &mine)) {
#pragma omp critical
            {
                rc = -1;
                *e = mine;
            }
        }
        codebook_step(j);
    }
    return rc;
}

/* The mean of the sample's squared quantization errors, over the heads of a
 * table. */
static double mean_left(const struct job *j, size_t head)
{
    const struct kv_codebook_users u = kv_codebook_users(&j->layout, head, 0);
    const size_t dim = j->info->shape.head_dim, tokens = sampled_tokens(j);
    double sum = 0;

    for (size_t t = 0; t < tokens; t++)
        for (size_t i = u.h * dim; i < u.h_end * dim; i++) {
            const double left = (double)j->sample[t * codebook_row_of(j) + i];

            sum += left * left;
        }
    return sum / (double)(tokens * (u.h_end - u.h) * dim);
}

/* Adds the job's codebooks, empty for now; data: [head_books]. */
static void add_books(const struct job *j, float **data)
{
    const struct kv_codebook_layout *l = &j->layout;
    const size_t dims[] = {l->sub_books, l->k, l->d};
    const bool by_model = kv_spec_is(j->spec, j->side, "books", "model");
    const bool by_head = kv_spec_is(j->spec, j->side, "books", "head");

    for (size_t h = 0; h < l->head_books; h++) {
        struct kv_table *t = kv_calib_add(j->out, "codebook", (int)j->side,
                                          by_model ? KV_ALL : (int)j->first,
                                          by_head ? (int)h : KV_ALL, 3, dims);

        t->type = KV_TABLE_F16;
        data[h] = t->data;
    }
}

/* Samples the job's layers, trains their codebooks, adds the tables. */
static int codebook_train(struct job *j, struct kv_err *e)
{
    const size_t n_layers = j->end - j->first, n_tables = j->layout.head_books;
    struct kv_codebook_transform *t = NULL;
    float **centers = NULL;
    int rc = -1;

    if (plan_sample(j, e))
        return -1;
    j->sample =
        kv_alloc(sampled_tokens(j), codebook_row_of(j) * sizeof(*j->sample));
    if (is_weighted(j->spec, j->side))
        j->weight = kv_alloc(sampled_tokens(j),
                             codebook_row_of(j) * sizeof(*j->weight));
    t = kv_alloc(n_layers, sizeof(*t));
    centers = kv_alloc(n_tables, sizeof(*centers));
    for (size_t i = 0; i < n_layers; i++) {
        if (take_sample(j, j->first + i, &t[i], e))
            goto out;
        codebook_step(j);
    }
    add_books(j, centers);
    if (train_books(j, centers, e))
        goto out;
    for (size_t i = 0; i < n_layers; i++)
        kv_codebook_inverse(&t[i], j->sample + layer_at(j, j->first + i),
                            j->n_tokens);
    for (size_t h = 0; h < n_tables; h++)
        j->out->table[j->out->n_tables - n_tables + h].error = mean_left(j, h);
    rc = 0;
out:
    free(centers);
    free(t);
    free(j->weight);
    free(j->sample);
    return rc;
}

static void expect_steps(const struct kv_spec *s,
                         const struct kv_dump_info *info,
                         struct kv_progress *progress)
{
    const size_t n_layers = info->last_layer - info->first_layer + 1;

    for (int i = 0; progress && i < kv_shape_sides(&info->shape); i++) {
        const enum kv_side side = (enum kv_side)i;
        const struct kv_codebook_layout l =
            kv_codebook_layout(s, side, &info->shape);
        const bool by_model = kv_spec_is(s, side, "books", "model");

        progress->total +=
            n_layers + (by_model ? 1 : n_layers) * l.head_books * l.sub_books;
    }
}

/* The job of the layers, from `first` on, that share codebooks.  out NULL: only
 * to check the dump. */
static struct job make_job(const struct kv_spec *s, enum kv_side side,
                           size_t first, struct kv_dump *dump, uint64_t seed,
                           struct kv_calib_set *out)
{
    const struct kv_dump_info *info = kv_dump_info(dump);
    const bool by_model = kv_spec_is(s, side, "books", "model");

    return (struct job){.spec = s,
                        .dump = dump,
                        .info = info,
                        .out = out,
                        .seed = seed,
                        .side = side,
                        .layout = kv_codebook_layout(s, side, &info->shape),
                        .first = first,
                        .end = by_model ? info->last_layer + 1 : first + 1};
}

static int want_weights(const struct kv_spec *s, enum kv_side side,
                        struct kv_dump *dump, struct kv_err *e)
{
    if (by_anchors(s, side))
        return kv_dump_want(dump, KV_T_Q, e) || kv_dump_want(dump, KV_T_K, e) ||
               kv_dump_want(dump, KV_T_V, e);
    return is_weighted(s, side) &&
           kv_dump_want(dump, codebook_gradient_of(side), e);
}

int kv_codebook_trainable(const struct kv_spec *s, struct kv_dump *dump,
                          struct kv_err *e)
{
    for (int i = 0; i < KV_SIDES; i++) {
        const enum kv_side side = (enum kv_side)i;
        struct job j =
            make_job(s, side, kv_dump_info(dump)->first_layer, dump, 0, NULL);

        if (plan_sample(&j, e) || want_weights(s, side, dump, e) ||
            kv_dump_want(dump, values_of(s, side), e))
            return kv_fail_in(e, "%c", kv_side_name(side));
    }
    return 0;
}

int kv_codebook_calibrate(const struct kv_spec *s, struct kv_dump *dump,
                          uint64_t seed, struct kv_calib_set *out,
                          struct kv_err *e)
{
    const struct kv_dump_info *info = kv_dump_info(dump);

    expect_steps(s, info, out->progress);
    for (int side = 0; side < kv_shape_sides(&info->shape); side++)
        for (size_t first = info->first_layer; first <= info->last_layer;) {
            struct job j =
                make_job(s, (enum kv_side)side, first, dump, seed, out);

            if (codebook_train(&j, e))
                return fail_at(&j, e);
            first = j.end;
        }
    return 0;
}

bool kv_codebook_together(const struct kv_spec *s)
{
    return kv_spec_is(s, KV_K, "books", "model") ||
           kv_spec_is(s, KV_V, "books", "model");
}
