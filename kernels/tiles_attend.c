/* Attention of jobs over stores (tiles.h): queries are made ready once for each
 * KV head, chunks of its tokens are gone over apart, and their sums brought
 * together and turned into outputs once. */
#include "kernels/tiles_impl.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

enum { CHUNK = 4096, STEP = 256 };

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

/* ---- rows and chunks of a job -------------------------------------------- */

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

/* Tokens that row r sees: as many as the rows before it, or more. */
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

/* From so many rows on, expanding a tile once for all of them and multiplying
 * matrices takes less time than a family's own operations, 8 rows at a time. */
enum { MANY_FROM = 48 };

/* Operations of every run with tokens, and how many rows they take. */
struct chosen {
    const struct kv_tile_ops *k[KV_MAX_RUNS], *v[KV_MAX_RUNS];
    size_t most_rows;
};

static struct chosen choose_ops(const struct kv_tiles_job *j)
{
    bool many = row_count(j) >= MANY_FROM;
    struct chosen o;

    for (size_t i = 0; i < KV_MAX_RUNS; i++) {
        o.k[i] = j->k[i].n ? ops_of(&j->k[i], j->path) : NULL;
        o.v[i] = j->v[i].n ? ops_of(&j->v[i], j->path) : NULL;
        many &= !(o.k[i] && is_int8(&j->k[i], j->path));
        many &= !(o.v[i] && is_int8(&j->v[i], j->path));
    }
    for (size_t i = 0; i < KV_MAX_RUNS && many; i++) {
        o.k[i] = o.k[i] ? &kv_tiles_many : NULL;
        o.v[i] = o.v[i] ? &kv_tiles_many : NULL;
    }
    o.most_rows = many ? KV_TILE_MANY : KV_TILE_ROWS;
    return o;
}

static size_t group_count(const struct kv_tiles_job *j, const struct chosen *o)
{
    return (row_count(j) + o->most_rows - 1) / o->most_rows;
}

/* ---- queries ------------------------------------------------------------- */

/* What a thread works in, for as many rows as a group has at most. */
struct room {
    float *score; /* [rows][STEP] */
    float *whole; /* [rows][64], of a tile that is not whole */
    float *row;   /* [rows][head_dim] */
};

/* So many queries of a KV head as its operations take, ready for each run. */
struct group {
    size_t first, rows; /* of the KV head's rows */
    void *query[KV_MAX_RUNS];
};

/* What a chunk gives for a group of queries: per row the maximum, the sum of
 * weights, and of each run that the chunk has tokens of the weighted sum of
 * values (struct kv_tile_ops). */
struct partial {
    float *max, *sum, *acc[KV_MAX_RUNS];
};

/* One KV head of a job. */
struct head {
    const struct kv_tiles_job *job;
    size_t head, n_groups, n_chunks;
    struct chosen ops;
    struct group *group;
    struct partial *partial; /* [n_chunks][n_groups] */
};

static void prepare_group(const struct head *h, struct group *g, float *q)
{
    const struct kv_tiles_job *j = h->job;
    const size_t d = j->head_dim;

    for (size_t i = 0; i < KV_MAX_RUNS; i++) {
        const struct kv_store *k = &j->k[i];

        if (!k->n)
            continue;
        for (size_t r = 0; r < g->rows; r++)
            for (size_t c = 0; c < d; c++)
                q[r * d + c] =
                    j->scale * j->q[row_at(j, h->head, g->first + r) + c];
        if (k->enter)
            k->enter(k->space, h->head, q, g->rows);
        g->query[i] = kv_lines(h->ops.k[i]->query_bytes(k), 1);
        h->ops.k[i]->prepare(k, h->head, q, g->rows, g->query[i]);
    }
}

static void prepare(struct head *h, const struct room *room)
{
    const size_t n_rows = row_count(h->job), most = h->ops.most_rows;

    for (size_t i = 0; i < h->n_groups; i++) {
        struct group *g = &h->group[i];

        g->first = i * most;
        g->rows = n_rows - g->first < most ? n_rows - g->first : most;
        prepare_group(h, g, room->row);
    }
}

/* ---- chunks -------------------------------------------------------------- */

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

/* A group at work on a chunk.  Where there are several chunks it has copies of
 * the queries: operations may keep in them what they found out about tiles. */
struct work {
    const struct group *of;
    void *query[KV_MAX_RUNS];
    struct partial *out;
};

/* One (KV head, chunk); STEP tokens are done for all groups before the next. */
struct item {
    const struct head *of;
    const struct room *room;
    size_t begin, end; /* tokens */
    struct work *work; /* [of->n_groups] */
};

static bool has_tokens(const struct kv_store *s, const struct item *w)
{
    const struct span span = tiles_of(s, w->begin, w->end);

    return span.tile < span.tile_end;
}

static void start_group(const struct item *w, const struct group *g,
                        struct work *to, struct partial *out)
{
    const struct kv_tiles_job *j = w->of->job;
    const struct chosen *ops = &w->of->ops;

    *to = (struct work){.of = g, .out = out};
    for (size_t r = 0; r < g->rows; r++)
        out->max[r] = -INFINITY;
    for (size_t i = 0; i < KV_MAX_RUNS; i++) {
        const struct kv_store *k = &j->k[i], *v = &j->v[i];

        if (w->of->n_chunks == 1) {
            to->query[i] = g->query[i];
        } else if (has_tokens(k, w)) {
            const size_t bytes = ops->k[i]->query_bytes(k);

            to->query[i] = kv_lines_unset(bytes, 1);
            memcpy(to->query[i], g->query[i], bytes);
        }
        if (has_tokens(v, w))
            out->acc[i] =
                kv_lines(g->rows * ops->v[i]->acc_floats(v), sizeof(float));
    }
}

static void start(struct item *w, size_t chunk)
{
    const struct head *h = w->of;

    w->begin = chunk_begin(h->job, chunk);
    w->end = chunk_begin(h->job, chunk + 1);
    w->work = kv_alloc(h->n_groups, sizeof(*w->work));
    for (size_t i = 0; i < h->n_groups; i++)
        start_group(w, &h->group[i], &w->work[i],
                    &h->partial[chunk * h->n_groups + i]);
}

static void stop(struct item *w)
{
    if (w->of->n_chunks > 1)
        for (size_t i = 0; i < w->of->n_groups; i++)
            for (size_t r = 0; r < KV_MAX_RUNS; r++)
                free(w->work[i].query[r]);
    free(w->work);
}

/* The scores of tokens [begin, end). */
static void step_scores(const struct item *w, const struct work *g,
                        size_t begin, size_t end)
{
    const struct head *h = w->of;
    float *const whole = w->room->whole;

    for (size_t i = 0; i < KV_MAX_RUNS; i++) {
        const struct kv_store *s = &h->job->k[i];
        const struct span span = tiles_of(s, begin, end);

        for (size_t t = span.tile; t < span.tile_end; t++) {
            const uint8_t *tile = kv_store_tile(s, h->head, t);
            size_t from, to;

            part_of(s, t, begin, end, &from, &to);

            float *at =
                w->room->score + s->first + t * KV_TILE_TOKENS + from - begin;

            if (to - from == KV_TILE_TOKENS) {
                h->ops.k[i]->scores(s, h->head, tile, g->query[i], g->of->rows,
                                    at, STEP);
                continue;
            }
            h->ops.k[i]->scores(s, h->head, tile, g->query[i], g->of->rows,
                                whole, KV_TILE_TOKENS);
            for (size_t r = 0; r < g->of->rows; r++)
                memcpy(at + r * STEP, whole + r * KV_TILE_TOKENS + from,
                       (to - from) * sizeof(*at));
        }
    }
}

static void step_gather(const struct item *w, const struct work *g,
                        size_t begin, size_t end)
{
    const struct head *h = w->of;
    float *const whole = w->room->whole;

    for (size_t i = 0; i < KV_MAX_RUNS; i++) {
        const struct kv_store *s = &h->job->v[i];
        const struct span span = tiles_of(s, begin, end);
        float *acc = g->out->acc[i];

        for (size_t t = span.tile; t < span.tile_end; t++) {
            const uint8_t *tile = kv_store_tile(s, h->head, t);
            size_t from, to;

            part_of(s, t, begin, end, &from, &to);

            const float *at =
                w->room->score + s->first + t * KV_TILE_TOKENS + from - begin;

            if (to - from == KV_TILE_TOKENS) {
                h->ops.v[i]->gather(s, h->head, tile, at, STEP, g->of->rows,
                                    acc);
                continue;
            }
            memset(whole, 0, g->of->rows * KV_TILE_TOKENS * sizeof(*whole));
            for (size_t r = 0; r < g->of->rows; r++)
                memcpy(whole + r * KV_TILE_TOKENS + from, at + r * STEP,
                       (to - from) * sizeof(*at));
            h->ops.v[i]->gather(s, h->head, tile, whole, KV_TILE_TOKENS,
                                g->of->rows, acc);
        }
    }
}

/* Row r of every sum of values times `by`. */
static void rescale(const struct head *h, struct partial *p, size_t r, float by)
{
    for (size_t i = 0; i < KV_MAX_RUNS; i++) {
        if (!p->acc[i])
            continue;

        const size_t n = h->ops.v[i]->acc_floats(&h->job->v[i]);

        for (size_t c = 0; c < n; c++)
            p->acc[i][r * n + c] *= by;
    }
}

/* What a row does not see of [begin, end), and what fills it up, has the weight
 * 0. */
static void hide(const struct item *w, const struct work *g, size_t begin,
                 size_t end, size_t whole)
{
    for (size_t r = 0; r < g->of->rows; r++) {
        const size_t sees = visible(w->of->job, g->of->first + r);
        const size_t last = sees < end ? sees : end;

        for (size_t t = last > begin ? last - begin : 0; t < whole; t++)
            w->room->score[r * STEP + t] = -INFINITY;
    }
}

/* Scores become weights, relative to the maximum so far. */
static void step_weights(const struct item *w, struct work *g, size_t begin,
                         size_t end)
{
    float *const x = w->room->score;
    const size_t n = end - begin, whole = (n + 15) / 16 * 16;
    struct partial *out = g->out;
    float max[KV_TILE_MANY], sum[KV_TILE_MANY];

    if (whole > n || visible(w->of->job, g->of->first) < end)
        hide(w, g, begin, end, whole);
    kv_tile_loops()->max(x, STEP, g->of->rows, whole, max);
    for (size_t r = 0; r < g->of->rows; r++)
        if (max[r] > out->max[r]) {
            const float by = expf(out->max[r] - max[r]);

            rescale(w->of, out, r, by);
            out->sum[r] *= by;
            out->max[r] = max[r];
        }
    kv_tile_loops()->exp(x, STEP, g->of->rows, whole, out->max, sum);
    for (size_t r = 0; r < g->of->rows; r++)
        if (max[r] == -INFINITY &&
            visible(w->of->job, g->of->first + r) <= begin)
            memset(x + r * STEP, 0, whole * sizeof(*x)); /* it sees nothing */
        else
            out->sum[r] += sum[r];
}

/* Items of one chunk, step by step: what they read together stays near. */
static void run_items(struct item *w, size_t n)
{
    for (size_t begin = w->begin, end; begin < w->end; begin = end) {
        end = begin + STEP < w->end ? begin + STEP : w->end;
        for (size_t i = 0; i < n; i++)
            for (size_t j = 0; j < w[i].of->n_groups; j++) {
                struct work *g = &w[i].work[j];

                step_scores(&w[i], g, begin, end);
                step_weights(&w[i], g, begin, end);
                step_gather(&w[i], g, begin, end);
            }
    }
}

/* Part `part` of `parts` of a job's KV heads [n_kv_heads], over one chunk. */
static void run_part(const struct head *heads, const struct room *room,
                     size_t chunk, size_t part, size_t parts)
{
    const size_t all = heads->job->n_kv_heads;
    const size_t first = all * part / parts;
    const size_t n = all * (part + 1) / parts - first;
    struct item *w = kv_alloc(n, sizeof(*w));

    for (size_t i = 0; i < n; i++) {
        w[i] = (struct item){.of = &heads[first + i], .room = room};
        start(&w[i], chunk);
    }
    run_items(w, n);
    for (size_t i = 0; i < n; i++)
        stop(&w[i]);
    free(w);
}

/* ---- chunks together ----------------------------------------------------- */

/* What chunk 0 has becomes the sums of all, relative to the largest maximum;
 * total: of the weights. */
static void combine(const struct head *h, size_t group, double *total)
{
    const size_t rows = h->group[group].rows;
    struct partial *all = &h->partial[group];

    for (size_t r = 0; r < rows; r++) {
        float max = -INFINITY;

        total[r] = 0;
        for (size_t i = 0; i < h->n_chunks; i++)
            max = fmaxf(max, all[i * h->n_groups].max[r]);
        for (size_t i = 0; i < h->n_chunks; i++) {
            struct partial *p = &all[i * h->n_groups];
            const float by = expf(p->max[r] - max);

            total[r] += (double)by * (double)p->sum[r];
            if (by != 1)
                rescale(h, p, r, by);
        }
    }
    for (size_t run = 0; run < KV_MAX_RUNS; run++)
        for (size_t i = 1; i < h->n_chunks; i++) {
            float *acc = all[i * h->n_groups].acc[run];

            if (!acc)
                continue;
            if (!all->acc[run]) {
                all->acc[run] = acc;
                all[i * h->n_groups].acc[run] = NULL;
                continue;
            }

            const size_t n = rows * h->ops.v[run]->acc_floats(&h->job->v[run]);

            for (size_t c = 0; c < n; c++)
                all->acc[run][c] += acc[c];
        }
}

static void finish_group(const struct head *h, size_t group, float *part)
{
    const struct kv_tiles_job *j = h->job;
    const struct group *g = &h->group[group];
    const struct partial *all = &h->partial[group];
    const size_t d = j->head_dim;
    double total[KV_TILE_MANY];

    combine(h, group, total);
    for (size_t r = 0; r < g->rows; r++)
        memset(j->out + row_at(j, h->head, g->first + r), 0,
               d * sizeof(*j->out));
    for (size_t i = 0; i < KV_MAX_RUNS; i++) {
        const struct kv_store *v = &j->v[i];

        if (!all->acc[i])
            continue;
        h->ops.v[i]->finish(v, h->head, all->acc[i], g->rows, part);
        if (v->leave)
            v->leave(v->space, h->head, part, g->rows);
        for (size_t r = 0; r < g->rows; r++) {
            float *out = j->out + row_at(j, h->head, g->first + r);

            for (size_t c = 0; c < d; c++)
                out[c] += part[r * d + c];
        }
    }
    for (size_t r = 0; r < g->rows; r++) {
        float *out = j->out + row_at(j, h->head, g->first + r);
        const float by = (float)(1 / total[r]);

        for (size_t c = 0; c < d; c++)
            out[c] *= by;
    }
}

static void finish(struct head *h, const struct room *room)
{
    for (size_t i = 0; i < h->n_groups; i++) {
        finish_group(h, i, room->row);
        for (size_t r = 0; r < KV_MAX_RUNS; r++)
            free(h->group[i].query[r]);
    }
    for (size_t i = 0; i < h->n_chunks * h->n_groups; i++)
        for (size_t r = 0; r < KV_MAX_RUNS; r++)
            free(h->partial[i].acc[r]);
}

/* ---- jobs ---------------------------------------------------------------- */

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

/* What all jobs need, in one allocation each; and where a job's own begins. */
struct places {
    size_t head, part, group, partial, row;
};

static struct places after(struct places p, const struct kv_tiles_job *j,
                           size_t threads)
{
    const struct chosen ops = choose_ops(j);
    const size_t chunks = chunk_count(j), heads = j->n_kv_heads;
    const size_t groups = group_count(j, &ops);

    p.head += heads;
    p.part += part_count(j, threads) * chunks;
    p.group += heads * groups;
    p.partial += heads * groups * chunks;
    p.row += heads * row_count(j) * chunks;
    return p;
}

struct heads {
    struct head *head;
    struct group *group;
    struct partial *partial;
    float *max, *sum; /* of partials */
};

static struct heads heads_new(struct places all)
{
    return (struct heads){
        .head = kv_alloc(all.head, sizeof(struct head)),
        .group = kv_alloc(all.group, sizeof(struct group)),
        .partial = kv_alloc(all.partial, sizeof(struct partial)),
        .max = kv_alloc(all.row, sizeof(float)),
        .sum = kv_alloc(all.row, sizeof(float)),
    };
}

static void heads_free(struct heads *h)
{
    free(h->head);
    free(h->group);
    free(h->partial);
    free(h->max);
    free(h->sum);
}

/* The heads of a job, whose own begin at p. */
static void set_heads(const struct heads *all, struct places p,
                      const struct kv_tiles_job *j)
{
    const struct chosen ops = choose_ops(j);
    const size_t groups = group_count(j, &ops), chunks = chunk_count(j);

    for (size_t i = 0; i < j->n_kv_heads; i++) {
        all->head[p.head + i] = (struct head){
            .job = j,
            .head = i,
            .n_groups = groups,
            .n_chunks = chunks,
            .ops = ops,
            .group = all->group + p.group + i * groups,
            .partial = all->partial + p.partial + i * groups * chunks};
    }
    for (size_t i = 0; i < j->n_kv_heads * chunks * groups; i++) {
        const size_t row =
            p.row + i / groups * row_count(j) + i % groups * ops.most_rows;

        all->partial[p.partial + i].max = all->max + row;
        all->partial[p.partial + i].sum = all->sum + row;
    }
}

static void attend(const struct kv_tiles_job *jobs, size_t n_jobs,
                   size_t threads)
{
    struct places *at = kv_alloc(n_jobs + 1, sizeof(*at));
    struct heads all;

    for (size_t i = 0; i < n_jobs; i++)
        at[i + 1] = after(at[i], &jobs[i], threads);
    all = heads_new(at[n_jobs]);
    for (size_t i = 0; i < n_jobs; i++)
        set_heads(&all, at[i], &jobs[i]);
#pragma omp parallel num_threads((int)threads)
    {
        struct room room = room_new(jobs, n_jobs);

#pragma omp for schedule(dynamic)
        for (size_t i = 0; i < at[n_jobs].head; i++)
            prepare(&all.head[i], &room);
#pragma omp for schedule(dynamic)
        for (size_t i = 0; i < at[n_jobs].part; i++) {
            size_t job = 0;

            while (i >= at[job + 1].part)
                job++;

            const size_t n = chunk_count(&jobs[job]);

            run_part(all.head + at[job].head, &room, (i - at[job].part) % n,
                     (i - at[job].part) / n, part_count(&jobs[job], threads));
        }
#pragma omp for schedule(dynamic)
        for (size_t i = 0; i < at[n_jobs].head; i++)
            finish(&all.head[i], &room);
        room_free(&room);
    }
    heads_free(&all);
    free(at);
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

/* Bytes that a job's queries and partial results take. */
static size_t job_bytes(const struct kv_tiles_job *j)
{
    const struct chosen ops = choose_ops(j);
    size_t floats = 2, query = 0;

    for (size_t i = 0; i < KV_MAX_RUNS; i++) {
        floats += ops.v[i] ? ops.v[i]->acc_floats(&j->v[i]) : 0;
        query += ops.k[i] ? ops.k[i]->query_bytes(&j->k[i]) : 0;
    }
    return j->n_kv_heads *
           (chunk_count(j) * row_count(j) * floats * sizeof(float) +
            group_count(j, &ops) * query);
}

void kv_tiles_attend(const struct kv_tiles_job *jobs, size_t n_jobs,
                     size_t threads)
{
    const size_t most = (size_t)64 << 20; /* bytes at a time */
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
            bytes += job_bytes(&block[end]);
        attend(block + first, end - first, threads);
    }
    free(block);
}
