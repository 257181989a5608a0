#include "kernels/tiles/attend_head.h"
#include "kernels/vecops/vecops.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

enum {
    LINE = 64, /* bytes */
    CHUNK = KV_TILE_CHUNK,
    STEP = 256 /* tokens at a time, where no operation goes by chunks */
};

void *kv_arena_take(struct kv_arena *a, size_t n, size_t size)
{
    char *const p = a->at;

    if (kv_arena_bytes(n, size) > (size_t)(a->end - p))
        abort();
    a->at += kv_arena_bytes(n, size);
    return p;
}

/* ---- rows and chunks of a job -------------------------------------------- */

size_t kv_tile_row_count(const struct kv_tiles_job *j)
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

size_t kv_tile_chunk_count(const struct kv_tiles_job *j)
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

/* ---- operations ---------------------------------------------------------- */

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

/* From so many rows on, expanding a tile once for all of them and multiplying
 * matrices takes less time than a family's own operations on 8 rows at a time.
 */
enum { MANY_FROM = 48 };

static struct kv_tile_choice choose_ops(const struct kv_tiles_job *j)
{
    bool many = kv_tile_row_count(j) >= MANY_FROM, k = false, v = false;
    struct kv_tile_choice o;

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
    for (size_t i = 0; i < KV_MAX_RUNS; i++) {
        k |= o.k[i] && o.k[i]->by_chunks;
        v |= o.v[i] && o.v[i]->by_chunks;
    }
    o.most_rows = many ? KV_TILE_MANY : k && v ? KV_TILE_FEW : KV_TILE_ROWS;
    o.step = k || v ? CHUNK : STEP;
    return o;
}

/* From a row's qk to the next one's; rows that all begin at the same place
 * of a page would drive each other out of the cache. */
static size_t score_stride(const struct kv_tile_choice *o)
{
    return o->step + LINE / sizeof(float);
}

static size_t group_count(const struct kv_tiles_job *j,
                          const struct kv_tile_choice *o)
{
    return (kv_tile_row_count(j) + o->most_rows - 1) / o->most_rows;
}

/* ---- memory -------------------------------------------------------------- */

size_t kv_tile_score_floats(const struct kv_tiles_job *j)
{
    const struct kv_tile_choice ops = choose_ops(j);

    return kv_min(kv_tile_row_count(j), ops.most_rows) * score_stride(&ops);
}

static bool has_tokens(const struct kv_store *s, size_t begin, size_t end)
{
    return s->n && begin < end && s->first < end && begin < s->first + s->n;
}

/* Of one query, ready for each run, or for those that are written into. */
static size_t query_bytes(const struct kv_tiles_job *j,
                          const struct kv_tile_choice *ops, bool notes)
{
    size_t bytes = 0;

    for (size_t i = 0; i < KV_MAX_RUNS; i++)
        if (ops->k[i] && (ops->k[i]->notes || !notes))
            bytes += kv_arena_bytes(ops->k[i]->query_bytes(&j->k[i]), 1);
    return bytes;
}

/* Of what chunks give for the groups of a head. */
static size_t partial_bytes(const struct kv_tiles_job *j,
                            const struct kv_tile_choice *ops)
{
    const size_t groups = group_count(j, ops), rows = kv_tile_row_count(j);
    size_t bytes = 0;

    for (size_t c = 0; c < kv_tile_chunk_count(j); c++) {
        size_t row = 2 * sizeof(float), arrays = 2;

        for (size_t i = 0; i < KV_MAX_RUNS; i++)
            if (has_tokens(&j->v[i], chunk_begin(j, c),
                           chunk_begin(j, c + 1))) {
                row += ops->v[i]->acc_floats(&j->v[i]) * sizeof(float);
                arrays++;
            }
        bytes += rows * row + groups * arrays * 64;
    }
    return bytes;
}

size_t kv_tile_heads_bytes(const struct kv_tiles_job *j)
{
    const struct kv_tile_choice ops = choose_ops(j);
    const size_t groups = group_count(j, &ops);
    const size_t partials = groups * kv_tile_chunk_count(j);
    const size_t head =
        kv_arena_bytes(groups, sizeof(struct kv_tile_group)) +
        kv_arena_bytes(partials, sizeof(struct kv_tile_partial)) +
        groups * query_bytes(j, &ops, false) + partial_bytes(j, &ops);

    return kv_arena_bytes(j->n_kv_heads, sizeof(struct kv_tile_head)) +
           j->n_kv_heads * head;
}

static struct kv_tile_partial partial_in(const struct kv_tile_head *h,
                                         size_t chunk, size_t rows,
                                         struct kv_arena *from)
{
    const struct kv_tiles_job *j = h->job;
    const size_t begin = chunk_begin(j, chunk), end = chunk_begin(j, chunk + 1);
    struct kv_tile_partial p = {
        .max = kv_arena_take(from, rows, sizeof(*p.max)),
        .sum = kv_arena_take(from, rows, sizeof(*p.sum)),
    };

    for (size_t i = 0; i < KV_MAX_RUNS; i++)
        if (has_tokens(&j->v[i], begin, end))
            p.acc[i] = kv_arena_take(
                from, rows * h->ops.v[i]->acc_floats(&j->v[i]), sizeof(float));
    return p;
}

static void lay_out(struct kv_tile_head *h, struct kv_arena *from)
{
    const struct kv_tiles_job *j = h->job;
    const size_t n_rows = kv_tile_row_count(j), most = h->ops.most_rows;

    h->group = kv_arena_take(from, h->n_groups, sizeof(*h->group));
    h->partial =
        kv_arena_take(from, h->n_chunks * h->n_groups, sizeof(*h->partial));
    for (size_t i = 0; i < h->n_groups; i++) {
        struct kv_tile_group *g = &h->group[i];

        *g = (struct kv_tile_group){.first = i * most};
        g->rows = n_rows - g->first < most ? n_rows - g->first : most;
        for (size_t r = 0; r < KV_MAX_RUNS; r++)
            if (h->ops.k[r])
                g->query[r] =
                    kv_arena_take(from, h->ops.k[r]->query_bytes(&j->k[r]), 1);
    }
    for (size_t c = 0; c < h->n_chunks; c++)
        for (size_t i = 0; i < h->n_groups; i++)
            h->partial[c * h->n_groups + i] =
                partial_in(h, c, h->group[i].rows, from);
}

struct kv_tile_head *kv_tile_heads(const struct kv_tiles_job *j,
                                   struct kv_arena *from)
{
    const struct kv_tile_choice ops = choose_ops(j);
    struct kv_tile_head *h =
        kv_arena_take(from, j->n_kv_heads, sizeof(struct kv_tile_head));

    for (size_t i = 0; i < j->n_kv_heads; i++) {
        h[i] = (struct kv_tile_head){.job = j,
                                     .head = i,
                                     .n_groups = group_count(j, &ops),
                                     .n_chunks = kv_tile_chunk_count(j),
                                     .ops = ops};
        lay_out(&h[i], from);
    }
    return h;
}

/* ---- queries ------------------------------------------------------------- */

void kv_tile_prepare(struct kv_tile_head *h, const struct kv_tile_room *room)
{
    const struct kv_tiles_job *j = h->job;
    const size_t d = j->head_dim;
    float *const q = room->row;

    for (size_t n = 0; n < h->n_groups; n++)
        for (size_t i = 0; i < KV_MAX_RUNS; i++) {
            const struct kv_tile_group *g = &h->group[n];
            const struct kv_store *k = &j->k[i];

            if (!k->n)
                continue;
            for (size_t r = 0; r < g->rows; r++)
                memcpy(q + r * d, j->q + row_at(j, h->head, g->first + r),
                       d * sizeof(*q));
            kv_row_scale(q, g->rows * d, j->scale);
            if (k->enter)
                k->enter(k->space, h->head, q, g->rows);
            h->ops.k[i]->prepare(k, h->head, q, g->rows, g->query[i]);
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

/* What of a tile is in a step: its tokens [from, from + n), the first of which
 * is the step's token `at`; n_whole tiles from it on are there as a whole. */
struct piece {
    const uint8_t *tile;
    size_t from, n, at, n_whole;
};

static struct piece piece_of(const struct kv_store *s, size_t head, size_t i,
                             size_t begin, size_t end)
{
    const size_t tile_at = s->first + i * KV_TILE_TOKENS;
    const size_t last = kv_min(end, s->first + s->n);
    const size_t from = begin > tile_at ? begin - tile_at : 0;
    const size_t to = kv_min(last - tile_at, KV_TILE_TOKENS);

    return (struct piece){
        .tile = kv_store_tile(s, head, i),
        .from = from,
        .n = to - from,
        .at = tile_at + from - begin,
        .n_whole = from ? 0 : (last - tile_at) / KV_TILE_TOKENS,
    };
}

/* A group at work on a chunk.  Where there are several chunks it has copies of
 * the queries that are written into. */
struct work {
    const struct kv_tile_group *of;
    void *query[KV_MAX_RUNS];
    struct kv_tile_partial *out;
};

/* One (KV head, chunk); a step is done for all groups before the next. */
struct item {
    const struct kv_tile_head *of;
    const struct kv_tile_room *room;
    size_t begin, end; /* tokens */
    struct work *work; /* [of->n_groups] */
};

size_t kv_tile_part_bytes(const struct kv_tiles_job *j, size_t heads)
{
    const struct kv_tile_choice ops = choose_ops(j);
    const size_t groups = group_count(j, &ops);
    const size_t copies = kv_tile_chunk_count(j) > 1 ? groups : 0;

    return kv_arena_bytes(heads, sizeof(struct item)) +
           heads * (kv_arena_bytes(groups, sizeof(struct work)) +
                    copies * query_bytes(j, &ops, true));
}

static void start_group(const struct item *w, const struct kv_tile_group *g,
                        struct kv_tile_partial *out, struct work *to,
                        struct kv_arena *room)
{
    const struct kv_tiles_job *j = w->of->job;
    const struct kv_tile_choice *ops = &w->of->ops;

    *to = (struct work){.of = g, .out = out};
    for (size_t r = 0; r < g->rows; r++) {
        out->max[r] = -INFINITY;
        out->sum[r] = 0;
    }
    for (size_t i = 0; i < KV_MAX_RUNS; i++) {
        const struct kv_store *k = &j->k[i], *v = &j->v[i];

        to->query[i] = g->query[i];
        if (w->of->n_chunks > 1 && has_tokens(k, w->begin, w->end) &&
            ops->k[i]->notes) {
            const size_t bytes = ops->k[i]->query_bytes(k);

            to->query[i] = kv_arena_take(room, bytes, 1);
            memcpy(to->query[i], g->query[i], bytes);
        }
        if (out->acc[i])
            memset(out->acc[i], 0,
                   g->rows * ops->v[i]->acc_floats(v) * sizeof(float));
    }
}

static void start(struct item *w, size_t chunk, struct kv_arena *room)
{
    const struct kv_tile_head *h = w->of;

    w->begin = chunk_begin(h->job, chunk);
    w->end = chunk_begin(h->job, chunk + 1);
    w->work = kv_arena_take(room, h->n_groups, sizeof(*w->work));
    for (size_t i = 0; i < h->n_groups; i++)
        start_group(w, &h->group[i], &h->partial[chunk * h->n_groups + i],
                    &w->work[i], room);
}

/* The qk of tokens [begin, end). */
static void step_qk(const struct item *w, const struct work *g, size_t begin,
                    size_t end)
{
    const struct kv_tile_head *h = w->of;
    const size_t stride = score_stride(&h->ops), rows = g->of->rows;
    float *const part = w->room->part;

    for (size_t i = 0; i < KV_MAX_RUNS; i++) {
        const struct kv_store *s = &h->job->k[i];
        const struct kv_tile_ops *ops = h->ops.k[i];
        const struct span span = tiles_of(s, begin, end);

        for (size_t t = span.tile, n; t < span.tile_end; t += n) {
            const struct piece p = piece_of(s, h->head, t, begin, end);
            float *const at = w->room->score + p.at;

            n = p.n_whole && ops->qk_tiles ? p.n_whole : 1;
            if (p.n_whole) {
                if (ops->qk_tiles)
                    ops->qk_tiles(s, h->head, p.tile, n, g->query[i], rows, at,
                                  stride);
                else
                    ops->qk(s, h->head, p.tile, g->query[i], rows, at, stride);
                continue;
            }
            ops->qk(s, h->head, p.tile, g->query[i], rows, part,
                    KV_TILE_TOKENS);
            for (size_t r = 0; r < rows; r++)
                memcpy(at + r * stride, part + r * KV_TILE_TOKENS + p.from,
                       p.n * sizeof(*at));
        }
    }
}

static void step_pv(const struct item *w, const struct work *g, size_t begin,
                    size_t end)
{
    const struct kv_tile_head *h = w->of;
    const size_t stride = score_stride(&h->ops), rows = g->of->rows;
    float *const part = w->room->part;

    for (size_t i = 0; i < KV_MAX_RUNS; i++) {
        const struct kv_store *s = &h->job->v[i];
        const struct kv_tile_ops *ops = h->ops.v[i];
        const struct span span = tiles_of(s, begin, end);
        float *acc = g->out->acc[i];

        for (size_t t = span.tile, n; t < span.tile_end; t += n) {
            const struct piece p = piece_of(s, h->head, t, begin, end);
            const float *const at = w->room->score + p.at;

            n = p.n_whole && ops->pv_tiles ? p.n_whole : 1;
            if (p.n_whole) {
                if (ops->pv_tiles)
                    ops->pv_tiles(s, h->head, p.tile, n, at, stride, rows, acc);
                else
                    ops->pv(s, h->head, p.tile, at, stride, rows, acc);
                continue;
            }
            memset(part, 0, rows * KV_TILE_TOKENS * sizeof(*part));
            for (size_t r = 0; r < rows; r++)
                memcpy(part + r * KV_TILE_TOKENS + p.from, at + r * stride,
                       p.n * sizeof(*at));
            ops->pv(s, h->head, p.tile, part, KV_TILE_TOKENS, rows, acc);
        }
    }
}

/* Row r of every sum of values times `by`. */
static void rescale(const struct kv_tile_head *h, struct kv_tile_partial *p,
                    size_t r, float by)
{
    for (size_t i = 0; i < KV_MAX_RUNS; i++) {
        if (!p->acc[i])
            continue;

        const size_t n = h->ops.v[i]->acc_floats(&h->job->v[i]);

        kv_row_scale(p->acc[i] + r * n, n, by);
    }
}

/* What a row does not see of [begin, end), and what fills it up, has no weight:
 * exp(-87) beside 1. */
static void hide(const struct item *w, const struct work *g, size_t begin,
                 size_t end, size_t whole)
{
    const size_t stride = score_stride(&w->of->ops);

    for (size_t r = 0; r < g->of->rows; r++) {
        const size_t sees = visible(w->of->job, g->of->first + r);
        const size_t last = sees < end ? sees : end;

        for (size_t t = last > begin ? last - begin : 0; t < whole; t++)
            w->room->score[r * stride + t] = -INFINITY;
    }
}

/* Scores become weights, relative to the maximum so far. */
static void step_weights(const struct item *w, struct work *g, size_t begin,
                         size_t end)
{
    float *const x = w->room->score;
    const size_t stride = score_stride(&w->of->ops);
    const size_t n = end - begin, whole = kv_round_up(n, 16);
    struct kv_tile_partial *out = g->out;
    float max[KV_TILE_MANY], sum[KV_TILE_MANY];

    if (whole > n || visible(w->of->job, g->of->first) < end)
        hide(w, g, begin, end, whole);
    kv_tile_loops()->max(x, stride, g->of->rows, whole, max);
    for (size_t r = 0; r < g->of->rows; r++)
        if (max[r] > out->max[r]) {
            if (out->max[r] > -INFINITY) { /* else all is zero */
                const float by = expf(out->max[r] - max[r]);

                rescale(w->of, out, r, by);
                out->sum[r] *= by;
            }
            out->max[r] = max[r];
        }
    kv_tile_loops()->exp(x, stride, g->of->rows, whole, out->max, sum);
    for (size_t r = 0; r < g->of->rows; r++)
        if (max[r] == -INFINITY &&
            visible(w->of->job, g->of->first + r) <= begin)
            memset(x + r * stride, 0, whole * sizeof(*x)); /* it sees nothing */
        else
            out->sum[r] += sum[r];
}

/* Items of one chunk, step by step: what they read together stays near. */
static void run_items(struct item *w, size_t n)
{
    for (size_t begin = w->begin, end; begin < w->end; begin = end) {
        end = kv_min(begin + w->of->ops.step, w->end);
        for (size_t i = 0; i < n; i++)
            for (size_t j = 0; j < w[i].of->n_groups; j++) {
                struct work *g = &w[i].work[j];

                step_qk(&w[i], g, begin, end);
                step_weights(&w[i], g, begin, end);
                step_pv(&w[i], g, begin, end);
            }
    }
}

void kv_tile_run(const struct kv_tile_head *heads, size_t n, size_t chunk,
                 const struct kv_tile_room *room)
{
    struct kv_arena rest = room->rest;
    struct item *w = kv_arena_take(&rest, n, sizeof(*w));

    for (size_t i = 0; i < n; i++) {
        w[i] = (struct item){.of = &heads[i], .room = room};
        start(&w[i], chunk, &rest);
    }
    run_items(w, n);
}

/* ---- chunks together ----------------------------------------------------- */

/* What chunk 0 has becomes the sums of all, relative to the largest maximum;
 * total: of the weights. */
static void combine(const struct kv_tile_head *h, size_t group, double *total)
{
    const size_t rows = h->group[group].rows;
    struct kv_tile_partial *all = &h->partial[group];

    for (size_t r = 0; r < rows; r++) {
        float max = -INFINITY;

        total[r] = 0;
        for (size_t i = 0; i < h->n_chunks; i++)
            max = fmaxf(max, all[i * h->n_groups].max[r]);
        for (size_t i = 0; i < h->n_chunks; i++) {
            struct kv_tile_partial *p = &all[i * h->n_groups];
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

            kv_row_add(all->acc[run], acc, n);
        }
}

static void finish_group(const struct kv_tile_head *h, size_t group,
                         float *part)
{
    const struct kv_tiles_job *j = h->job;
    const struct kv_tile_group *g = &h->group[group];
    const struct kv_tile_partial *all = &h->partial[group];
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

            kv_row_add(out, part + r * d, d);
        }
    }
    for (size_t r = 0; r < g->rows; r++) {
        float *out = j->out + row_at(j, h->head, g->first + r);

        kv_row_scale(out, d, (float)(1 / total[r]));
    }
}

void kv_tile_finish(struct kv_tile_head *h, const struct kv_tile_room *room)
{
    for (size_t i = 0; i < h->n_groups; i++)
        finish_group(h, i, room->row);
}
