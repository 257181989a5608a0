#include "kernels/level.h"
#include "kernels/tiles_impl.h"
#include "lib/base/alloc.h"

#include <math.h>
#include <omp.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

const struct kv_tile_loops *kv_tile_loops(void)
{
#ifdef __x86_64__
    switch (kv_level_get()) {
    case KV_LEVEL_AVX512:
        return &kv_tile_loops_avx512;
    case KV_LEVEL_AVX2:
        return &kv_tile_loops_avx2;
    case KV_LEVEL_C:
        break;
    }
#endif
    return &kv_tile_loops_c;
}

/* ---- stores -------------------------------------------------------------- */

void kv_store_resize(struct kv_store *s, size_t n)
{
    const size_t tiles = (n + KV_TILE_TOKENS - 1) / KV_TILE_TOKENS;

    if (tiles > s->room) {
        const struct kv_store old = *s;

        s->room = old.room ? tiles + tiles / 2 : tiles;
        s->tiles = kv_lines(kv_store_heads(s) * s->room, s->tile_bytes);
        for (size_t h = 0; h < kv_store_heads(s) && old.tiles; h++)
            memcpy(kv_store_tile(s, h, 0), kv_store_tile(&old, h, 0),
                   kv_store_tiles(&old) * s->tile_bytes);
        free(old.tiles);
    }
    s->n = n;
}

void kv_store_clear(struct kv_store *s, size_t head, size_t i)
{
    uint8_t *tile = kv_store_tile(s, head, i);

    if (s->family->release)
        s->family->release(s, tile);
    memset(tile, 0, s->tile_bytes);
}

void kv_store_free(struct kv_store *s)
{
    for (size_t h = 0; s->tiles && h < kv_store_heads(s); h++)
        for (size_t i = 0; s->family->release && i < s->room; i++)
            s->family->release(s, kv_store_tile(s, h, i));
    free(s->tiles);
    s->tiles = NULL;
    s->n = s->room = 0;
}

size_t kv_store_bytes(const struct kv_store *s)
{
    size_t bytes = kv_store_heads(s) * kv_store_tiles(s) * s->tile_bytes;

    for (size_t h = 0; s->family->owned && h < kv_store_heads(s); h++)
        for (size_t i = 0; i < kv_store_tiles(s); i++)
            bytes += s->family->owned(s, kv_store_tile(s, h, i));
    return bytes;
}

int kv_store_has(const struct kv_store *s, enum kv_path path)
{
    return s->family->ops(s, path) != NULL;
}

static bool is_int8(const struct kv_store *s, enum kv_path path)
{
    return path == KV_PATH_INT8 && kv_store_has(s, path);
}

static const struct kv_tile_ops *ops_of(const struct kv_store *s,
                                        enum kv_path path)
{
    const struct kv_tile_ops *ops = s->family->ops(s, path);

    return ops ? ops : s->family->ops(s, KV_PATH_EXACT);
}

/* ---- attention ------------------------------------------------------------
 */

enum { CHUNK = 4096, STEP = 256 };

/* What one (KV head, chunk) gives: per query row the running maximum, the sum
 * of weights and the weighted sum of values. */
struct partial {
    float *max, *sum, *out; /* [rows], [rows], [rows][head_dim] */
};

/* What a thread works in, for as many rows as a group has at most. */
struct room {
    float *score; /* [rows][STEP] */
    float *whole; /* [rows][64], of a tile that is not whole */
    float *row;   /* [rows][head_dim] */
};

/* One (KV head, chunk) at work on so many queries as its operations take; STEP
 * tokens are done for all groups of queries before the next. */
struct group {
    size_t first, rows; /* of the KV head's rows */
    float *max, *sum;   /* [rows], the partial's own */
    void *query[KV_MAX_RUNS];
    float *acc[KV_MAX_RUNS];
};

struct item {
    const struct kv_tiles_job *job;
    const struct room *room;
    size_t head, begin, end; /* tokens */
    const struct kv_tile_ops *k[KV_MAX_RUNS], *v[KV_MAX_RUNS];
    size_t n_rows, n_groups;
    struct group *group;
    struct partial *out;
};

static size_t row_count(const struct kv_tiles_job *j)
{
    return j->nq * (j->n_heads / j->n_kv_heads);
}

/* Row r of a KV head is query token r / per_head, query head r % per_head. */
static size_t row_at(const struct kv_tiles_job *j, size_t head, size_t r)
{
    const size_t per_head = j->n_heads / j->n_kv_heads;

    return (r / per_head * j->n_heads + head * per_head + r % per_head) *
           j->head_dim;
}

/* Tokens that row r sees. */
static size_t visible(const struct kv_tiles_job *j, size_t r)
{
    return j->n - j->nq + r / (j->n_heads / j->n_kv_heads) + 1;
}

/* Steps and chunks begin at whole tiles of the longest run of keys. */
static size_t offset_of(const struct kv_tiles_job *j)
{
    const struct kv_store *most = j->k;

    for (size_t i = 1; i < KV_MAX_RUNS; i++)
        if (j->k[i].n > most->n)
            most = &j->k[i];
    return most->first % KV_TILE_TOKENS;
}

static size_t chunk_count(const struct kv_tiles_job *j)
{
    return (offset_of(j) ? 1 : 0) + (j->n - 1) / CHUNK + 1;
}

/* Chunk i is [chunk_begin(i), chunk_begin(i + 1)); some may be empty. */
static size_t chunk_begin(const struct kv_tiles_job *j, size_t i)
{
    const size_t offset = offset_of(j);
    const size_t at = offset ? (i ? offset + (i - 1) * CHUNK : 0) : i * CHUNK;

    return at < j->n ? at : j->n;
}

static void prepare_group(const struct item *w, struct group *g)
{
    const struct kv_tiles_job *j = w->job;
    const size_t d = j->head_dim;
    float *q = w->room->row;

    for (size_t i = 0; i < KV_MAX_RUNS; i++) {
        const struct kv_store *k = &j->k[i], *v = &j->v[i];

        if (k->n) {
            for (size_t r = 0; r < g->rows; r++)
                for (size_t c = 0; c < d; c++)
                    q[r * d + c] =
                        j->scale * j->q[row_at(j, w->head, g->first + r) + c];
            if (k->enter)
                k->enter(k->space, w->head, q, g->rows);
            g->query[i] = kv_lines(w->k[i]->query_bytes(k), 1);
            w->k[i]->prepare(k, w->head, q, g->rows, g->query[i]);
        }
        if (v->n)
            g->acc[i] =
                kv_lines(g->rows * w->v[i]->acc_floats(v), sizeof(float));
    }
}

/* From so many rows on, expanding a tile once for all of them and multiplying
 * matrices takes less time than a family's own operations, 8 rows at a time. */
enum { MANY_FROM = 48 };

/* Operations of every run with tokens, and how many rows they take. */
static size_t choose_ops(struct item *w)
{
    const struct kv_tiles_job *j = w->job;
    bool many = w->n_rows >= MANY_FROM;

    for (size_t i = 0; i < KV_MAX_RUNS; i++) {
        w->k[i] = j->k[i].n ? ops_of(&j->k[i], j->path) : NULL;
        w->v[i] = j->v[i].n ? ops_of(&j->v[i], j->path) : NULL;
        many &= !(w->k[i] && is_int8(&j->k[i], j->path));
        many &= !(w->v[i] && is_int8(&j->v[i], j->path));
    }
    for (size_t i = 0; i < KV_MAX_RUNS && many; i++) {
        w->k[i] = w->k[i] ? &kv_tiles_many : NULL;
        w->v[i] = w->v[i] ? &kv_tiles_many : NULL;
    }
    return many ? KV_TILE_MANY : KV_TILE_ROWS;
}

static void start(struct item *w)
{
    size_t most;

    w->n_rows = row_count(w->job);
    most = choose_ops(w);
    w->n_groups = (w->n_rows + most - 1) / most;
    w->group = kv_alloc(w->n_groups, sizeof(*w->group));
    for (size_t i = 0; i < w->n_groups; i++) {
        struct group *g = &w->group[i];

        g->first = i * most;
        g->rows = w->n_rows - g->first < most ? w->n_rows - g->first : most;
        g->max = w->out->max + g->first;
        g->sum = w->out->sum + g->first;
        prepare_group(w, g);
    }
}

/* The tiles of a run that hold tokens of [begin, end). */
struct span {
    size_t tile, tile_end;
};

static struct span tiles_of(const struct kv_store *s, size_t begin, size_t end)
{
    const size_t b = begin > s->first ? begin - s->first : 0;
    const size_t e = end > s->first ? end - s->first : 0;
    const size_t e_run = e < s->n ? e : s->n;

    if (b >= e_run)
        return (struct span){0, 0};
    return (struct span){b / KV_TILE_TOKENS, (e_run - 1) / KV_TILE_TOKENS + 1};
}

/* What of tile i is in [begin, end): its tokens [from, to). */
static void part_of(const struct kv_store *s, size_t i, size_t begin,
                    size_t end, size_t *from, size_t *to)
{
    const size_t at = s->first + i * KV_TILE_TOKENS;
    const size_t run_end = s->first + s->n;
    const size_t last = end < run_end ? end : run_end;

    *from = begin > at ? begin - at : 0;
    *to = last < at + KV_TILE_TOKENS ? last - at : KV_TILE_TOKENS;
}

/* The scores of tokens [begin, end). */
static void step_scores(const struct item *w, const struct group *g,
                        size_t begin, size_t end)
{
    float *const whole = w->room->whole;

    for (size_t i = 0; i < KV_MAX_RUNS; i++) {
        const struct kv_store *s = &w->job->k[i];
        const struct span span = tiles_of(s, begin, end);

        for (size_t t = span.tile; t < span.tile_end; t++) {
            const uint8_t *tile = kv_store_tile(s, w->head, t);
            size_t from, to;

            part_of(s, t, begin, end, &from, &to);

            float *at = w->room->score + s->first + t * KV_TILE_TOKENS + from -
                        begin;

            if (to - from == KV_TILE_TOKENS) {
                w->k[i]->scores(s, w->head, tile, g->query[i], g->rows, at,
                                STEP);
                continue;
            }
            w->k[i]->scores(s, w->head, tile, g->query[i], g->rows, whole,
                            KV_TILE_TOKENS);
            for (size_t r = 0; r < g->rows; r++)
                memcpy(at + r * STEP, whole + r * KV_TILE_TOKENS + from,
                       (to - from) * sizeof(*at));
        }
    }
}

static void step_gather(const struct item *w, const struct group *g,
                        size_t begin, size_t end)
{
    float *const whole = w->room->whole;

    for (size_t i = 0; i < KV_MAX_RUNS; i++) {
        const struct kv_store *s = &w->job->v[i];
        const struct span span = tiles_of(s, begin, end);

        for (size_t t = span.tile; t < span.tile_end; t++) {
            const uint8_t *tile = kv_store_tile(s, w->head, t);
            size_t from, to;

            part_of(s, t, begin, end, &from, &to);

            const float *at = w->room->score + s->first + t * KV_TILE_TOKENS +
                              from - begin;

            if (to - from == KV_TILE_TOKENS) {
                w->v[i]->gather(s, w->head, tile, at, STEP, g->rows, g->acc[i]);
                continue;
            }
            memset(whole, 0, g->rows * KV_TILE_TOKENS * sizeof(*whole));
            for (size_t r = 0; r < g->rows; r++)
                memcpy(whole + r * KV_TILE_TOKENS + from, at + r * STEP,
                       (to - from) * sizeof(*at));
            w->v[i]->gather(s, w->head, tile, whole, KV_TILE_TOKENS, g->rows,
                            g->acc[i]);
        }
    }
}

static void rescale(const struct item *w, struct group *g, size_t r, float by)
{
    g->sum[r] *= by;
    for (size_t i = 0; i < KV_MAX_RUNS; i++) {
        if (!g->acc[i])
            continue;

        const size_t n = w->v[i]->acc_floats(&w->job->v[i]);

        for (size_t c = 0; c < n; c++)
            g->acc[i][r * n + c] *= by;
    }
}

/* Scores become weights, relative to the maximum so far. */
static void step_weights(const struct item *w, struct group *g, size_t begin,
                         size_t end)
{
    float *const x = w->room->score;
    const size_t n = end - begin, whole = (n + 15) / 16 * 16;
    float max[KV_TILE_MANY], sum[KV_TILE_MANY];

    for (size_t r = 0; r < g->rows; r++) {
        const size_t sees = visible(w->job, g->first + r);
        const size_t seen = sees < end ? (sees > begin ? sees - begin : 0) : n;

        for (size_t t = seen; t < whole; t++)
            x[r * STEP + t] = -INFINITY;
    }
    kv_tile_loops()->max(x, STEP, g->rows, whole, max);
    for (size_t r = 0; r < g->rows; r++)
        if (max[r] > g->max[r]) {
            rescale(w, g, r, expf(g->max[r] - max[r]));
            g->max[r] = max[r];
        }
    kv_tile_loops()->exp(x, STEP, g->rows, whole, g->max, sum);
    for (size_t r = 0; r < g->rows; r++)
        if (max[r] == -INFINITY)
            memset(x + r * STEP, 0, whole * sizeof(*x));
        else
            g->sum[r] += sum[r];
}

static void finish_group(const struct item *w, struct group *g)
{
    const struct kv_tiles_job *j = w->job;
    const size_t d = j->head_dim;
    float *part = w->room->row;

    for (size_t i = 0; i < KV_MAX_RUNS; i++) {
        const struct kv_store *v = &j->v[i];

        if (!v->n)
            continue;
        w->v[i]->finish(v, w->head, g->acc[i], g->rows, part);
        if (v->leave)
            v->leave(v->space, w->head, part, g->rows);
        for (size_t c = 0; c < g->rows * d; c++)
            w->out->out[g->first * d + c] += part[c];
    }
    for (size_t i = 0; i < KV_MAX_RUNS; i++) {
        free(g->query[i]);
        free(g->acc[i]);
    }
}

/* Items of one chunk, step by step: what they read together stays near. */
static void run_items(struct item *w, size_t n)
{
    for (size_t i = 0; i < n; i++)
        start(&w[i]);
    for (size_t begin = w->begin, end; begin < w->end; begin = end) {
        end = begin + STEP < w->end ? begin + STEP : w->end;
        for (size_t i = 0; i < n; i++)
            for (size_t j = 0; j < w[i].n_groups; j++) {
                struct group *g = &w[i].group[j];

                step_scores(&w[i], g, begin, end);
                step_weights(&w[i], g, begin, end);
                step_gather(&w[i], g, begin, end);
            }
    }
    for (size_t i = 0; i < n; i++) {
        for (size_t j = 0; j < w[i].n_groups; j++)
            finish_group(&w[i], &w[i].group[j]);
        free(w[i].group);
    }
}

/* The chunks of one KV head, first to last. */
static void combine(const struct kv_tiles_job *j, size_t head,
                    const struct partial *p, size_t n)
{
    const size_t d = j->head_dim;

    for (size_t r = 0; r < row_count(j); r++) {
        float *out = j->out + row_at(j, head, r);
        float max = -INFINITY;
        double sum = 0;

        for (size_t i = 0; i < n; i++)
            max = p[i].max[r] > max ? p[i].max[r] : max;
        memset(out, 0, d * sizeof(*out));
        for (size_t i = 0; i < n; i++) {
            const float by = expf(p[i].max[r] - max);

            sum += (double)by * (double)p[i].sum[r];
            for (size_t c = 0; c < d; c++)
                out[c] += by * p[i].out[r * d + c];
        }
        for (size_t c = 0; c < d; c++)
            out[c] = (float)((double)out[c] * (1 / sum));
    }
}

static struct partial *partials_new(const struct kv_tiles_job *j, size_t n)
{
    const size_t rows = row_count(j);
    struct partial *p = kv_alloc(n, sizeof(*p));
    float *max = kv_alloc(n, rows * sizeof(*max));
    float *sum = kv_alloc(n, rows * sizeof(*sum));
    float *out = kv_alloc(n, rows * j->head_dim * sizeof(*out));

    for (size_t i = 0; i < n; i++)
        p[i] = (struct partial){.max = max + i * rows,
                                .sum = sum + i * rows,
                                .out = out + i * rows * j->head_dim};
    for (size_t i = 0; i < n * rows; i++)
        max[i] = -INFINITY;
    return p;
}

static void partials_free(struct partial *p)
{
    free(p->max); /* of all */
    free(p->sum);
    free(p->out);
    free(p);
}

static size_t partial_bytes(const struct kv_tiles_job *j)
{
    return chunk_count(j) * j->n_kv_heads * row_count(j) * j->head_dim *
           sizeof(float);
}

/* Into how many parts the KV heads of a chunk are cut: each head for itself,
 * but where heads read the same tiles so few that threads have work. */
static size_t part_count(const struct kv_tiles_job *j, size_t threads)
{
    const size_t n = chunk_count(j), parts = (threads + n - 1) / n;
    bool together = false;

    for (size_t i = 0; i < KV_MAX_RUNS; i++)
        together |= j->k[i].together || j->v[i].together;
    return together && parts < j->n_kv_heads ? parts : j->n_kv_heads;
}

/* Part `part` of `parts` of the heads of a chunk.  p: [head][chunk]. */
static void run_part(const struct kv_tiles_job *j, const struct room *room,
                     size_t chunk, size_t part, size_t parts, struct partial *p)
{
    const size_t first = j->n_kv_heads * part / parts;
    const size_t n = j->n_kv_heads * (part + 1) / parts - first;
    struct item *w = kv_alloc(n, sizeof(*w));

    for (size_t i = 0; i < n; i++)
        w[i] = (struct item){.job = j,
                             .room = room,
                             .head = first + i,
                             .begin = chunk_begin(j, chunk),
                             .end = chunk_begin(j, chunk + 1),
                             .out = &p[(first + i) * chunk_count(j) + chunk]};
    run_items(w, n);
    free(w);
}

static struct room room_new(const struct kv_tiles_job *jobs, size_t n)
{
    size_t rows = 0, row = 0;

    for (size_t i = 0; i < n; i++) {
        const size_t all = row_count(&jobs[i]);
        const size_t most = all < KV_TILE_MANY ? all : KV_TILE_MANY;

        rows = most > rows ? most : rows;
        row = most * jobs[i].head_dim > row ? most * jobs[i].head_dim : row;
    }
    return (struct room){.score = kv_lines(rows * STEP, sizeof(float)),
                         .whole =
                             kv_lines(rows * KV_TILE_TOKENS, sizeof(float)),
                         .row = kv_lines(row, sizeof(float))};
}

static void room_free(struct room *r)
{
    free(r->score);
    free(r->whole);
    free(r->row);
}

static void attend(const struct kv_tiles_job *jobs, size_t n_jobs,
                   size_t threads)
{
    size_t *at = kv_alloc(n_jobs + 1, sizeof(*at)); /* a job's first part */
    struct partial **p = kv_alloc(n_jobs, sizeof(*p));

    for (size_t i = 0; i < n_jobs; i++) {
        const size_t n = chunk_count(&jobs[i]);

        at[i + 1] = at[i] + part_count(&jobs[i], threads) * n;
        p[i] = partials_new(&jobs[i], jobs[i].n_kv_heads * n);
    }
#pragma omp parallel num_threads((int)threads)
    {
        struct room room = room_new(jobs, n_jobs);

#pragma omp for schedule(dynamic)
        for (size_t i = 0; i < at[n_jobs]; i++) {
            size_t job = 0;

            while (i >= at[job + 1])
                job++;

            const size_t n = chunk_count(&jobs[job]);

            run_part(&jobs[job], &room, (i - at[job]) % n, (i - at[job]) / n,
                     part_count(&jobs[job], threads), p[job]);
        }
        room_free(&room);
    }
    for (size_t i = 0; i < n_jobs; i++) {
        const size_t n = chunk_count(&jobs[i]);

        for (size_t h = 0; h < jobs[i].n_kv_heads; h++)
            combine(&jobs[i], h, p[i] + h * n, n);
        partials_free(p[i]);
    }
    free(at);
    free(p);
}

/* Query tokens that are attended to at a time: those of one call of operations
 * that take many rows. */
static size_t block_of(const struct kv_tiles_job *j)
{
    const size_t per_head = j->n_heads / j->n_kv_heads;

    return per_head < KV_TILE_MANY ? KV_TILE_MANY / per_head : 1;
}

static size_t block_count(const struct kv_tiles_job *j)
{
    return (j->nq + block_of(j) - 1) / block_of(j);
}

/* Block i of the job's query tokens, as a job that ends with the last of them.
 */
static struct kv_tiles_job block_at(const struct kv_tiles_job *j, size_t i)
{
    const size_t first = i * block_of(j), rest = j->nq - first;
    const size_t at = first * j->n_heads * j->head_dim;
    struct kv_tiles_job b = *j;

    b.nq = rest < block_of(j) ? rest : block_of(j);
    b.n = j->n - rest + b.nq;
    b.q = j->q + at;
    b.out = j->out + at;
    return b;
}

void kv_tiles_attend(const struct kv_tiles_job *jobs, size_t n_jobs,
                     size_t threads)
{
    const size_t most = (size_t)64 << 20; /* bytes of partials at a time */
    struct kv_tiles_job *block;
    size_t n = 0;

    for (size_t i = 0; i < n_jobs; i++)
        n += block_count(&jobs[i]);
    block = kv_alloc(n, sizeof(*block));
    n = 0;
    for (size_t i = 0; i < n_jobs; i++)
        for (size_t b = 0; b < block_count(&jobs[i]); b++)
            block[n++] = block_at(&jobs[i], b);
    for (size_t first = 0, end; first < n; first = end) {
        size_t bytes = 0;

        for (end = first; end < n && (end == first || bytes < most); end++)
            bytes += partial_bytes(&block[end]);
        attend(block + first, end - first, threads);
    }
    free(block);
}
