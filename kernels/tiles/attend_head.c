#include "kernels/tiles/attend_head.h"
#include "kernels/vecops/vecops.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

enum {
    CHUNK = KV_TILE_CHUNK,
    STEP = 256 /* tokens at a time if no operation works by chunks */
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
    return j->view.nq * kv_tile_per_head(j);
}

static size_t row_at(const struct kv_tiles_job *j, size_t head, size_t r)
{
    return (r / kv_tile_per_head(j) * j->view.n_heads +
            kv_tile_query_head(j, head, r)) *
           j->view.head_dim;
}

/* The end of the tokens that any row sees. */
static size_t end_of_all(const struct kv_tiles_job *j)
{
    return j->view.first + j->view.nq;
}

/* Steps and chunks begin at whole tiles of the longest run of keys. */
static size_t offset_of(const struct kv_tiles_job *j)
{
    const struct kv_store *max = j->k;

    for (size_t i = 1; i < KV_MAX_RUNS; i++)
        if (j->k[i].n > max->n)
            max = &j->k[i];
    return max->first % KV_TILE_TOKENS;
}

size_t kv_tile_chunk_count(const struct kv_tiles_job *j)
{
    return (offset_of(j) ? 1 : 0) + (end_of_all(j) - 1) / CHUNK + 1;
}

size_t kv_tile_chunk_begin(const struct kv_tiles_job *j, size_t i)
{
    const size_t offset = offset_of(j);
    const size_t at = offset ? (i ? offset + (i - 1) * CHUNK : 0) : i * CHUNK;

    return kv_min(at, end_of_all(j));
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

/* From MANY_FROM rows on it is faster to dequantize a tile once for all rows
 * and multiply matrices than to use a family's own operations on 8 rows at a
 * time. */
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
    o.max_rows = many ? KV_TILE_MANY : k && v ? KV_TILE_FEW : KV_TILE_ROWS;
    o.step = k || v ? CHUNK : STEP;
    return o;
}

static size_t group_count(const struct kv_tiles_job *j,
                          const struct kv_tile_choice *o)
{
    return (kv_tile_row_count(j) + o->max_rows - 1) / o->max_rows;
}

size_t kv_tile_groups(const struct kv_tiles_job *j)
{
    const struct kv_tile_choice ops = choose_ops(j);

    return group_count(j, &ops);
}

/* ---- memory -------------------------------------------------------------- */

size_t kv_tile_score_floats(const struct kv_tiles_job *j)
{
    const struct kv_tile_choice ops = choose_ops(j);

    return kv_min(kv_tile_row_count(j), ops.max_rows) *
           kv_tile_score_stride(&ops);
}

/* Bytes of one query prepared for each run; notes: only for runs whose qk
 * writes notes into it. */
static size_t query_bytes(const struct kv_tiles_job *j,
                          const struct kv_tile_choice *ops, bool notes)
{
    size_t bytes = 0;

    for (size_t i = 0; i < KV_MAX_RUNS; i++)
        if (ops->k[i] && (ops->k[i]->notes || !notes))
            bytes += kv_arena_bytes(ops->k[i]->query_bytes(&j->k[i]), 1);
    return bytes;
}

/* Bytes of the chunks' partial results for a head's groups. */
static size_t partial_bytes(const struct kv_tiles_job *j,
                            const struct kv_tile_choice *ops)
{
    const size_t groups = group_count(j, ops), rows = kv_tile_row_count(j);
    size_t bytes = 0;

    for (size_t c = 0; c < kv_tile_chunk_count(j); c++) {
        size_t row = 2 * sizeof(float), arrays = 2;

        for (size_t i = 0; i < KV_MAX_RUNS; i++)
            if (kv_tile_has_tokens(&j->v[i], kv_tile_chunk_begin(j, c),
                                   kv_tile_chunk_begin(j, c + 1))) {
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

    return kv_arena_bytes(j->view.n_kv_heads, sizeof(struct kv_tile_head)) +
           j->view.n_kv_heads * head;
}

static struct kv_tile_partial partial_in(const struct kv_tile_head *h,
                                         size_t chunk, size_t rows,
                                         struct kv_arena *from)
{
    const struct kv_tiles_job *j = h->job;
    const size_t begin = kv_tile_chunk_begin(j, chunk),
                 end = kv_tile_chunk_begin(j, chunk + 1);
    struct kv_tile_partial p = {
        .max = kv_arena_take(from, rows, sizeof(*p.max)),
        .sum = kv_arena_take(from, rows, sizeof(*p.sum)),
    };

    for (size_t i = 0; i < KV_MAX_RUNS; i++)
        if (kv_tile_has_tokens(&j->v[i], begin, end))
            p.acc[i] = kv_arena_take(
                from, rows * h->ops.v[i]->acc_floats(&j->v[i]), sizeof(float));
    return p;
}

static void lay_out(struct kv_tile_head *h, struct kv_arena *from)
{
    const struct kv_tiles_job *j = h->job;
    const size_t n_rows = kv_tile_row_count(j), max = h->ops.max_rows;

    h->group = kv_arena_take(from, h->n_groups, sizeof(*h->group));
    h->partial =
        kv_arena_take(from, h->n_chunks * h->n_groups, sizeof(*h->partial));
    for (size_t i = 0; i < h->n_groups; i++) {
        struct kv_tile_group *g = &h->group[i];

        *g = (struct kv_tile_group){.first = i * max};
        g->rows = n_rows - g->first < max ? n_rows - g->first : max;
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
        kv_arena_take(from, j->view.n_kv_heads, sizeof(struct kv_tile_head));

    for (size_t i = 0; i < j->view.n_kv_heads; i++) {
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

void kv_tile_prepare(struct kv_tile_head *h,
                     const struct kv_tile_workspace *workspace)
{
    const struct kv_tiles_job *j = h->job;
    const size_t d = j->view.head_dim;
    float *const q = workspace->row;

    for (size_t n = 0; n < h->n_groups; n++)
        for (size_t i = 0; i < KV_MAX_RUNS; i++) {
            const struct kv_tile_group *g = &h->group[n];
            const struct kv_store *k = &j->k[i];

            if (!k->n)
                continue;
            for (size_t r = 0; r < g->rows; r++)
                memcpy(q + r * d, j->q + row_at(j, h->head, g->first + r),
                       d * sizeof(*q));
            kv_row_scale(q, g->rows * d, j->view.scale);
            if (k->enter)
                k->enter(k->space, h->head, q, g->rows);
            h->ops.k[i]->prepare(k, h->head, q, g->rows, g->query[i]);
        }
}

size_t kv_tile_copy_bytes(const struct kv_tiles_job *j)
{
    const struct kv_tile_choice ops = choose_ops(j);

    return kv_tile_chunk_count(j) > 1
               ? group_count(j, &ops) * query_bytes(j, &ops, true)
               : 0;
}

void kv_tile_rescale(const struct kv_tile_head *h, struct kv_tile_partial *p,
                     size_t r, float by)
{
    for (size_t i = 0; i < KV_MAX_RUNS; i++) {
        if (!p->acc[i])
            continue;

        const size_t n = h->ops.v[i]->acc_floats(&h->job->v[i]);

        kv_row_scale(p->acc[i] + r * n, n, by);
    }
}

/* ---- chunks together ----------------------------------------------------- */

/* A row's sink logit; -infinity: none. */
static float sink_of(const struct kv_tile_head *h, size_t row)
{
    const float *sink = h->job->view.sink_logit;

    return sink ? sink[kv_tile_query_head(h->job, h->head, row)] : -INFINITY;
}

/* Adds the chunks' sums up in chunk 0, relative to the largest maximum.
 * total: each row's sum of weights, with the weight of a sink logit. */
static void combine(const struct kv_tile_head *h, size_t group, double *total)
{
    const size_t rows = h->group[group].rows;
    struct kv_tile_partial *all = &h->partial[group];

    for (size_t r = 0; r < rows; r++) {
        const float sink = sink_of(h, h->group[group].first + r);
        float max = sink;

        for (size_t i = 0; i < h->n_chunks; i++)
            max = fmaxf(max, all[i * h->n_groups].max[r]);
        total[r] = sink > -INFINITY ? (double)expf(sink - max) : 0;
        for (size_t i = 0; i < h->n_chunks; i++) {
            struct kv_tile_partial *p = &all[i * h->n_groups];
            /* 1 where no token was seen, or sums are 0 or NaN */
            const float by = max == -INFINITY ? 1 : expf(p->max[r] - max);

            total[r] += (double)by * (double)p->sum[r];
            if (by != 1)
                kv_tile_rescale(h, p, r, by);
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
    const size_t d = j->view.head_dim;
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

        kv_row_scale(out, d, total[r] == 0 ? 0 : (float)(1 / total[r]));
    }
}

void kv_tile_finish(struct kv_tile_head *h,
                    const struct kv_tile_workspace *workspace)
{
    for (size_t i = 0; i < h->n_groups; i++)
        finish_group(h, i, workspace->row);
}
