/* One KV head of a job over its tokens.  This is the unit of work that jobs.c
 * assigns to threads and allocates memory for.  attend_head.c has the head's
 * queries and outputs, attend_chunk.c a chunk of its tokens.
 *
 * A head's queries are prepared once, in groups of the maximum number of rows
 * that its operations take.  Chunks of its tokens are separate units of work
 * for any thread, with partial results.  The results are merged in the order of
 * the chunks and become outputs once. */
#ifndef KV_TILES_ATTEND_HEAD_H
#define KV_TILES_ATTEND_HEAD_H

#include "kernels/tiles/impl.h"
#include "kernels/tiles/jobs.h"

enum { KV_TILE_LINE = 64 }; /* bytes */

/* Memory in cache lines, allocated from the front. */
struct kv_arena {
    char *at, *end;
};

/* Takes n * size bytes, not zeroed, from the front; the caller ensures that
 * they fit. */
void *kv_arena_take(struct kv_arena *a, size_t n, size_t size);

/* The bytes of an arena that n * size bytes take. */
static inline size_t kv_arena_bytes(size_t n, size_t size)
{
    return (n * size + 63) / 64 * 64;
}

/* The operations of every run with tokens, the number of rows that they take,
 * and the number of tokens in a step. */
struct kv_tile_choice {
    const struct kv_tile_ops *k[KV_MAX_RUNS], *v[KV_MAX_RUNS];
    size_t max_rows, step;
};

/* A group of a KV head's queries, at most the rows that its operations take,
 * prepared for each run. */
struct kv_tile_group {
    size_t first, rows; /* range of the KV head's rows */
    void *query[KV_MAX_RUNS];
};

/* A chunk's partial result for a group of queries: per row the maximum and the
 * sum of weights, and for each run with tokens in the chunk the weighted sum of
 * values (struct kv_tile_ops). */
struct kv_tile_partial {
    float *max, *sum, *acc[KV_MAX_RUNS];
};

/* One KV head of a job. */
struct kv_tile_head {
    const struct kv_tiles_job *job;
    size_t head, n_groups, n_chunks;
    struct kv_tile_choice ops;
    struct kv_tile_group *group;
    struct kv_tile_partial *partial; /* [n_chunks][n_groups] */
};

/* A thread's workspace; rows: max rows of a group. */
struct kv_tile_workspace {
    float *score;         /* kv_tile_score_floats() */
    float *part;          /* [rows][64], for a tile that is not whole */
    float *row;           /* [rows][head_dim] */
    struct kv_arena rest; /* for a chunk's part */
};

/* Rows (query token, query head) of a KV head. */
size_t kv_tile_row_count(const struct kv_tiles_job *j);
size_t kv_tile_groups(const struct kv_tiles_job *j);
/* Chunk i is [kv_tile_chunk_begin(i), kv_tile_chunk_begin(i + 1)); some may be
 * empty. */
size_t kv_tile_chunk_count(const struct kv_tiles_job *j);
size_t kv_tile_chunk_begin(const struct kv_tiles_job *j, size_t i);

static inline size_t kv_tile_per_head(const struct kv_tiles_job *j)
{
    return j->view.n_heads / j->view.n_kv_heads;
}

/* The query head of row r of a KV head, whose query token is r /
 * kv_tile_per_head(). */
static inline size_t kv_tile_query_head(const struct kv_tiles_job *j,
                                        size_t head, size_t r)
{
    return head * kv_tile_per_head(j) + r % kv_tile_per_head(j);
}

/* The end of the tokens that row r sees; not before the previous row's end. */
static inline size_t kv_tile_end(const struct kv_tiles_job *j, size_t r)
{
    return kv_attend_end(&j->view, r / kv_tile_per_head(j));
}

static inline bool kv_tile_has_tokens(const struct kv_store *s, size_t begin,
                                      size_t end)
{
    return s->n && begin < end && s->first < end && begin < s->first + s->n;
}

/* The distance from a row's scores to the next row's, chosen so that rows do
 * not all begin at the same offset of a page and evict each other from the
 * cache. */
static inline size_t kv_tile_score_stride(const struct kv_tile_choice *o)
{
    return o->step + KV_TILE_LINE / sizeof(float);
}

/* Multiplies row r of every sum of values by `by`. */
void kv_tile_rescale(const struct kv_tile_head *h, struct kv_tile_partial *p,
                     size_t r, float by);

/* The number of floats in the scores of one group of the job. */
size_t kv_tile_score_floats(const struct kv_tiles_job *j);

/* The bytes of the job's heads and of all memory that they point to. */
size_t kv_tile_heads_bytes(const struct kv_tiles_job *j);
/* Returns the job's heads [n_kv_heads], allocated from `from`. */
struct kv_tile_head *kv_tile_heads(const struct kv_tiles_job *j,
                                   struct kv_arena *from);

/* The bytes of a chunk's copies of a head's queries. */
size_t kv_tile_copy_bytes(const struct kv_tiles_job *j);
/* The bytes of the rest of the workspace for `heads` heads of the job at a
 * time. */
size_t kv_tile_part_bytes(const struct kv_tiles_job *j, size_t heads);

/* First step, for each head: prepares its queries. */
void kv_tile_prepare(struct kv_tile_head *h,
                     const struct kv_tile_workspace *workspace);
/* Second step, for each chunk: attends over its tokens with n heads of one
 * job. */
void kv_tile_run(const struct kv_tile_head *heads, size_t n, size_t chunk,
                 const struct kv_tile_workspace *workspace);
/* Last step, for each head: writes the job's outputs. */
void kv_tile_finish(struct kv_tile_head *h,
                    const struct kv_tile_workspace *workspace);

#endif
