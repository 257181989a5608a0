/* A chunk of a KV head's tokens: scores, weights and sums of values of all its
 * queries, step by step. */
#include "kernels/tiles/attend_head.h"
#include "kernels/vecops/vecops.h"

#include <math.h>
#include <string.h>

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

/* The part of a tile in a step: its tokens [from, from + n), which are the
 * step's tokens from `at` on; n_whole: whole tiles from it on. */
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

/* A group at work on a chunk.  With several chunks, each has its own copies of
 * queries with notes. */
struct work {
    const struct kv_tile_group *of;
    void *query[KV_MAX_RUNS];
    struct kv_tile_partial *out;
};

/* One (KV head, chunk); a step is done for all groups before the next. */
struct item {
    const struct kv_tile_head *of;
    const struct kv_tile_workspace *workspace;
    size_t begin, end; /* tokens */
    struct work *work; /* [of->n_groups] */
};

size_t kv_tile_part_bytes(const struct kv_tiles_job *j, size_t heads)
{
    const size_t groups = kv_tile_groups(j);

    return kv_arena_bytes(heads, sizeof(struct item)) +
           heads * (kv_arena_bytes(groups, sizeof(struct work)) +
                    kv_tile_copy_bytes(j));
}

static void start_group(const struct item *w, const struct kv_tile_group *g,
                        struct kv_tile_partial *out, struct work *to,
                        struct kv_arena *workspace)
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
        if (w->of->n_chunks > 1 && kv_tile_has_tokens(k, w->begin, w->end) &&
            ops->k[i]->notes) {
            const size_t bytes = ops->k[i]->query_bytes(k);

            to->query[i] = kv_arena_take(workspace, bytes, 1);
            memcpy(to->query[i], g->query[i], bytes);
        }
        if (out->acc[i])
            memset(out->acc[i], 0,
                   g->rows * ops->v[i]->acc_floats(v) * sizeof(float));
    }
}

static void start(struct item *w, size_t chunk, struct kv_arena *workspace)
{
    const struct kv_tile_head *h = w->of;

    w->begin = kv_tile_chunk_begin(h->job, chunk);
    w->end = kv_tile_chunk_begin(h->job, chunk + 1);
    w->work = kv_arena_take(workspace, h->n_groups, sizeof(*w->work));
    for (size_t i = 0; i < h->n_groups; i++)
        start_group(w, &h->group[i], &h->partial[chunk * h->n_groups + i],
                    &w->work[i], workspace);
}

/* Computes the scores of tokens [begin, end). */
static void step_qk(const struct item *w, const struct work *g, size_t begin,
                    size_t end)
{
    const struct kv_tile_head *h = w->of;
    const size_t stride = kv_tile_score_stride(&h->ops), rows = g->of->rows;
    float *const part = w->workspace->part;

    for (size_t i = 0; i < KV_MAX_RUNS; i++) {
        const struct kv_store *s = &h->job->k[i];
        const struct kv_tile_ops *ops = h->ops.k[i];
        const struct span span = tiles_of(s, begin, end);

        for (size_t t = span.tile, n; t < span.tile_end; t += n) {
            const struct piece p = piece_of(s, h->head, t, begin, end);
            float *const at = w->workspace->score + p.at;

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
    const size_t stride = kv_tile_score_stride(&h->ops), rows = g->of->rows;
    float *const part = w->workspace->part;

    for (size_t i = 0; i < KV_MAX_RUNS; i++) {
        const struct kv_store *s = &h->job->v[i];
        const struct kv_tile_ops *ops = h->ops.v[i];
        const struct span span = tiles_of(s, begin, end);
        float *acc = g->out->acc[i];

        for (size_t t = span.tile, n; t < span.tile_end; t += n) {
            const struct piece p = piece_of(s, h->head, t, begin, end);
            const float *const at = w->workspace->score + p.at;

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

/* Turns scores into logits.  Tokens of [begin, end) that a row does not see,
 * and padding, get weight 0: exp(-87) compared with 1. */
static void hide(const struct item *w, const struct work *g, size_t begin,
                 size_t end, size_t whole)
{
    const struct kv_tiles_job *j = w->of->job;
    const size_t stride = kv_tile_score_stride(&w->of->ops);

    for (size_t r = 0; r < g->of->rows; r++) {
        const size_t row = g->of->first + r,
                     last = kv_min(kv_tile_end(j, row), end);
        float *const s = w->workspace->score + r * stride;

        if (!kv_attend_simple(&j->view))
            kv_attend_logits(&j->view, 0,
                             kv_tile_query_head(j, w->of->head, row),
                             row / kv_tile_per_head(j), begin, end, s);
        for (size_t t = last > begin ? last - begin : 0; t < whole; t++)
            s[t] = -INFINITY;
    }
}

/* Whether a row of the group may see one of the tokens [begin, end). */
static bool sees_some(const struct item *w, const struct work *g, size_t begin,
                      size_t end)
{
    const struct kv_attend_view *v = &w->of->job->view;
    const size_t words = kv_attend_words(v->n);
    bool alive = !v->alive;

    for (size_t i = begin / 64; !alive && i < kv_attend_words(end); i++)
        alive = v->alive[w->of->head * words + i] != 0;
    return alive && end > kv_attend_begin(v, g->of->first /
                                                 kv_tile_per_head(w->of->job));
}

/* Scores become weights, relative to the maximum so far. */
static void step_weights(const struct item *w, struct work *g, size_t begin,
                         size_t end)
{
    float *const x = w->workspace->score;
    const size_t stride = kv_tile_score_stride(&w->of->ops);
    const size_t n = end - begin, whole = kv_round_up(n, 16);
    struct kv_tile_partial *out = g->out;
    const struct kv_tiles_job *j = w->of->job;
    const bool simple = kv_attend_simple(&j->view);
    float max[KV_TILE_MANY], sum[KV_TILE_MANY];

    if (!simple || whole > n || kv_tile_end(j, g->of->first) < end)
        hide(w, g, begin, end, whole);
    kv_tile_loops()->max(x, stride, g->of->rows, whole, max);
    for (size_t r = 0; r < g->of->rows; r++)
        if (max[r] > out->max[r]) {
            if (out->max[r] > -INFINITY) { /* else all is zero */
                const float by = expf(out->max[r] - max[r]);

                kv_tile_rescale(w->of, out, r, by);
                out->sum[r] *= by;
            }
            out->max[r] = max[r];
        }
    kv_tile_loops()->exp(x, stride, g->of->rows, whole, out->max, sum);
    for (size_t r = 0; r < g->of->rows; r++)
        if (max[r] == -INFINITY &&
            (!simple || kv_tile_end(j, g->of->first + r) <= begin))
            memset(x + r * stride, 0, whole * sizeof(*x)); /* it sees nothing */
        else
            out->sum[r] += sum[r];
}

/* Runs the items of one chunk, step by step, so that data they share stays in
 * the cache. */
static void run_items(struct item *w, size_t n)
{
    for (size_t begin = w->begin, end; begin < w->end; begin = end) {
        end = kv_min(begin + w->of->ops.step, w->end);
        for (size_t i = 0; i < n; i++)
            for (size_t j = 0; j < w[i].of->n_groups; j++) {
                struct work *g = &w[i].work[j];

                if (!sees_some(&w[i], g, begin, end))
                    continue;
                step_qk(&w[i], g, begin, end);
                step_weights(&w[i], g, begin, end);
                step_pv(&w[i], g, begin, end);
            }
    }
}

void kv_tile_run(const struct kv_tile_head *heads, size_t n, size_t chunk,
                 const struct kv_tile_workspace *workspace)
{
    struct kv_arena rest = workspace->rest;
    struct item *w = kv_arena_take(&rest, n, sizeof(*w));

    for (size_t i = 0; i < n; i++) {
        w[i] = (struct item){.of = &heads[i], .workspace = workspace};
        start(&w[i], chunk, &rest);
    }
    run_items(w, n);
}
