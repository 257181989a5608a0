/* Attention of jobs over stores (tiles.h): their blocks of queries, their
 * memory, and the split of work over threads. */
#include "kernels/tiles/attend_head.h"

#include <stdbool.h>
#include <stdlib.h>

/* Into how many parts the KV heads of a chunk are cut: one per head; if heads
 * share tiles, just enough to occupy all threads. */
static size_t part_count(const struct kv_tiles_job *j, size_t threads)
{
    const size_t n = kv_tile_chunk_count(j), parts = (threads + n - 1) / n;
    bool together = false;

    for (size_t i = 0; i < KV_MAX_RUNS; i++)
        together |= j->k[i].together || j->v[i].together;
    return together && parts < j->view.n_kv_heads ? parts : j->view.n_kv_heads;
}

/* The first head of part `part` of `parts`. */
static size_t part_begin(const struct kv_tiles_job *j, size_t part,
                         size_t parts)
{
    return j->view.n_kv_heads * part / parts;
}

/* ---- a thread's room ----------------------------------------------------- */

/* Makes a workspace that suffices for each of the jobs; release with
 * free(r.score). */
static struct kv_tile_workspace workspace_new(const struct kv_tiles_job *jobs,
                                              size_t n, size_t threads)
{
    size_t score = 0, rows = 0, row = 0, rest = 0;

    for (size_t i = 0; i < n; i++) {
        const struct kv_tiles_job *j = &jobs[i];
        const size_t all = kv_tile_row_count(j);
        const size_t some = all < KV_TILE_MANY ? all : KV_TILE_MANY;
        const size_t parts = part_count(j, threads);

        score = kv_max(score, kv_tile_score_floats(j));
        rows = kv_max(rows, some);
        row = kv_max(row, some * j->view.head_dim);
        rest = kv_max(rest, kv_tile_part_bytes(
                                j, (j->view.n_kv_heads + parts - 1) / parts));
    }

    const size_t bytes = kv_arena_bytes(score, sizeof(float)) +
                         kv_arena_bytes(rows * KV_TILE_TOKENS, sizeof(float)) +
                         kv_arena_bytes(row, sizeof(float)) +
                         kv_arena_bytes(rest, 1);
    char *at = kv_lines_unset(bytes, 1);
    struct kv_arena a = {at, at + bytes};
    struct kv_tile_workspace r;

    r.score = kv_arena_take(&a, score, sizeof(float));
    r.part = kv_arena_take(&a, rows * KV_TILE_TOKENS, sizeof(float));
    r.row = kv_arena_take(&a, row, sizeof(float));
    r.rest = a;
    return r;
}

/* ---- jobs ---------------------------------------------------------------- */

/* A job at work: its heads, and how many heads and (part, chunk)s those before
 * it have. */
struct at_work {
    const struct kv_tiles_job *job;
    struct kv_tile_head *heads;
    size_t n_parts, heads_before, parts_before;
};

/* The job of the i-th of all heads, or of the i-th of all pairs of part and
 * chunk. */
static const struct at_work *with_head(const struct at_work *w, size_t i)
{
    while (i >= w[1].heads_before)
        w++;
    return w;
}

static const struct at_work *with_part(const struct at_work *w, size_t i)
{
    while (i >= w[1].parts_before)
        w++;
    return w;
}

/* Runs the i-th of all pairs of part and chunk. */
static void run_part(const struct at_work *all, size_t i,
                     const struct kv_tile_workspace *workspace)
{
    const struct at_work *w = with_part(all, i);
    const size_t at = i - w->parts_before;
    const size_t n = kv_tile_chunk_count(w->job), part = at / n;
    const size_t begin = part_begin(w->job, part, w->n_parts);
    const size_t end = part_begin(w->job, part + 1, w->n_parts);

    kv_tile_run(w->heads + begin, end - begin, at % n, workspace);
}

/* How many of n pairs (part, chunk) a thread takes at a time.  The pairs are
 * neighbours, as the end of one prefetches the beginning of the next.  They are
 * an eighth of a thread's share, so that a slow thread is not waited for.  Near
 * the end runs have length 1, so that threads do not wait for the last run. */
static int run_length(size_t n, size_t threads)
{
    const size_t run = n / threads / 8;

    return run ? (int)run : 1;
}

static void attend(const struct kv_tiles_job *jobs, size_t n_jobs, size_t bytes,
                   size_t threads)
{
    struct at_work *w = kv_alloc(n_jobs + 1, sizeof(*w));
    char *memory = kv_lines_unset(bytes, 1);
    struct kv_arena a = {memory, memory + bytes};

    for (size_t i = 0; i < n_jobs; i++) {
        const struct kv_tiles_job *j = w[i].job = &jobs[i];

        w[i].heads = kv_tile_heads(j, &a);
        w[i].n_parts = part_count(j, threads);
        w[i + 1].heads_before = w[i].heads_before + j->view.n_kv_heads;
        w[i + 1].parts_before =
            w[i].parts_before + w[i].n_parts * kv_tile_chunk_count(j);
    }

    const size_t n_parts = w[n_jobs].parts_before;
    const int run = run_length(n_parts, threads);
    const size_t last = kv_min((size_t)run * (threads - 1), n_parts);

#pragma omp parallel num_threads((int)threads)
    {
        const struct kv_tile_workspace workspace =
            workspace_new(jobs, n_jobs, threads);

#pragma omp for schedule(dynamic)
        for (size_t i = 0; i < w[n_jobs].heads_before; i++) {
            const struct at_work *of = with_head(w, i);

            kv_tile_prepare(of->heads + i - of->heads_before, &workspace);
        }
#pragma omp for schedule(dynamic, run) nowait
        for (size_t i = 0; i < n_parts - last; i++)
            run_part(w, i, &workspace);
#pragma omp for schedule(dynamic)
        for (size_t i = n_parts - last; i < n_parts; i++)
            run_part(w, i, &workspace);
#pragma omp for schedule(dynamic)
        for (size_t i = 0; i < w[n_jobs].heads_before; i++) {
            const struct at_work *of = with_head(w, i);

            kv_tile_finish(of->heads + i - of->heads_before, &workspace);
        }
        free(workspace.score);
    }
    free(memory);
    free(w);
}

/* Query tokens in one call of operations that take many rows. */
static size_t block_of(const struct kv_tiles_job *j)
{
    const size_t per_head = j->view.n_heads / j->view.n_kv_heads;

    return per_head < KV_TILE_MANY ? KV_TILE_MANY / per_head : 1;
}

static size_t block_count(const struct kv_tiles_job *j)
{
    return (j->view.nq + block_of(j) - 1) / block_of(j);
}

/* Block i of the job's query tokens. */
static struct kv_tiles_job block_at(const struct kv_tiles_job *j, size_t i)
{
    const size_t first = i * block_of(j), rest = j->view.nq - first;
    const size_t at = first * j->view.n_heads * j->view.head_dim;
    struct kv_tiles_job b = *j;

    b.view.first += first;
    b.view.nq = rest < block_of(j) ? rest : block_of(j);
    b.q = j->q + at;
    b.out = j->out + at;
    return b;
}

bool kv_tiles_takes(const struct kv_attend_view *v)
{
    return !v->mass;
}

void kv_tiles_attend(const struct kv_tiles_job *jobs, size_t n_jobs,
                     size_t threads)
{
    const size_t at_a_time = (size_t)64 << 20; /* bytes */
    struct kv_tiles_job *block;
    size_t n = 0;

    for (size_t i = 0; i < n_jobs; i++) {
        if (!kv_tiles_takes(&jobs[i].view))
            abort();
        n += block_count(&jobs[i]);
    }
    block = kv_alloc(n, sizeof(*block));
    n = 0;
    for (size_t i = 0; i < n_jobs; i++)
        for (size_t b = 0; b < block_count(&jobs[i]); b++)
            block[n++] = block_at(&jobs[i], b);
    for (size_t first = 0, end; first < n; first = end) {
        size_t bytes = 0;

        for (end = first; end < n && (end == first || bytes < at_a_time); end++)
            bytes += kv_tile_heads_bytes(&block[end]);
        attend(block + first, end - first, bytes, threads);
    }
    free(block);
}
