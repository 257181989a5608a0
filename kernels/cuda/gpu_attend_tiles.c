#include "kernels/cuda/gpu_attend_impl.h"
#include "kernels/hadamard.h"
#include "lib/base/alloc.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- rows of a store ----------------------------------------------------- */

void kv_gpu_rows(const struct kv_store *s, size_t head, size_t first, size_t n,
                 float *x)
{
    const size_t d = s->head_dim, padded = kv_padded(d);
    float *part = kv_alloc(KV_TILE_PART * padded, sizeof(*part));

    assert(first % KV_TILE_PART == 0);
    for (size_t t = first; t < first + n; t += KV_TILE_PART) {
        const size_t end =
            first + n - t < KV_TILE_PART ? first + n - t : KV_TILE_PART;

        s->family->expand(s, head, kv_store_tile(s, head, t / KV_TILE_TOKENS),
                          t % KV_TILE_TOKENS / KV_TILE_PART, part);
        for (size_t i = 0; i < end; i++)
            for (size_t c = 0; c < d; c++)
                x[(t - first + i) * d + c] = s->values
                                                 ? part[i * padded + c]
                                                 : part[c * KV_TILE_PART + i];
    }
    free(part);
}

/* ---- the codes' space ---------------------------------------------------- */

/* Returns the matrix [n_heads][d][d] of enter() or leave(); NULL without a
 * space. */
static float *space_matrix(const struct kv_store *s)
{
    void (*rotate)(const void *, size_t, float *, size_t) =
        s->values ? s->leave : s->enter;
    const size_t d = s->head_dim;
    float *m;

    if (!rotate)
        return NULL;
    m = kv_alloc(s->n_heads * d, d * sizeof(*m));
    for (size_t h = 0; h < s->n_heads; h++)
        for (size_t i = 0; i < d; i++) {
            float *row = m + (h * d + i) * d;

            memset(row, 0, d * sizeof(*row));
            row[i] = 1;
            rotate(s->space, h, row, 1);
        }
    return m;
}

/* Transforms n decoded rows of one head into the model's space: keys k' with q
 * . k' = (q m) . k, values v m.  m NULL: unchanged. */
static void leave_space(const float *m, bool values, size_t d, float *x,
                        size_t n)
{
    float row[KV_GPU_MAX_DIM];

    for (size_t t = 0; m && t < n; t++, x += d) {
        for (size_t i = 0; i < d; i++) {
            double sum = 0;

            for (size_t j = 0; j < d; j++)
                sum += (double)x[j] *
                       (double)(values ? m[j * d + i] : m[i * d + j]);
            row[i] = (float)sum;
        }
        memcpy(x, row, d * sizeof(*x));
    }
}

/* ---- layout -------------------------------------------------------------- */

void kv_gpu_read_rows(const struct kv_gpu_attend *a,
                      const struct kv_tiles_job *j, int side, size_t head,
                      size_t first, size_t n, float *x)
{
    const float *m = a->matrix[side];
    const size_t d = a->head_dim;
    size_t at = 0;
    float part[KV_TILE_PART * KV_GPU_MAX_DIM];

    for (int r = KV_JOB_SINKS; r <= KV_JOB_TAIL && n; r++) {
        const struct kv_store *s = kv_gpu_job_store(j, side, r);
        const float *rotate = r == KV_JOB_CODES && m ? m + head * d * d : NULL;

        for (size_t t = first > at ? first - at : 0; t < s->n && n;) {
            const size_t skip = t % KV_TILE_PART;
            const size_t left =
                KV_TILE_PART - skip < s->n - t ? KV_TILE_PART - skip : s->n - t;
            const size_t take = left < n ? left : n;

            kv_gpu_rows(s, head, t - skip, KV_TILE_PART, part);
            leave_space(rotate, side, d, part + skip * d, take);
            memcpy(x, part + skip * d, take * d * sizeof(*x));
            x += take * d;
            t += take;
            first += take;
            n -= take;
        }
        at += s->n;
    }
}

struct kv_gpu_side kv_gpu_side_of(const struct kv_gpu_attend *a,
                                  const struct kv_tiles_job *j, int side)
{
    struct kv_gpu_side s = a->side[side];

    s.store = kv_gpu_job_store(j, side, KV_JOB_CODES);
    return s;
}

size_t kv_gpu_run_heads(const struct kv_gpu_attend *a, int r, int side)
{
    return r == KV_RUN_CODES && a->side[side].together ? 1 : a->n_kv_heads;
}

size_t kv_gpu_coded_bytes(const struct kv_gpu_attend *a,
                          const struct kv_tiles_job *j,
                          const struct kv_gpu_run *run, int side)
{
    const struct kv_gpu_side s = kv_gpu_side_of(a, j, side);
    const size_t n_tiles = kv_gpu_run_tiles(run);
    size_t max = 0;

    for (size_t h = 0; s.behind && h < a->n_kv_heads; h++) {
        const size_t behind = s.behind(&s, h, n_tiles, NULL);

        max = behind > max ? behind : max;
    }
    return n_tiles * s.tile_bytes + max;
}

/* Packs one head's tiles of one run. */
static void pack_head(const struct kv_gpu_attend *a,
                      const struct kv_tiles_job *j,
                      const struct kv_gpu_run *run, bool coded, int side,
                      size_t head, uint8_t *tiles)
{
    const size_t d = a->head_dim;
    const size_t n_tiles = kv_gpu_run_tiles(run);
    float *x = coded ? NULL : kv_alloc(KV_GPU_TILE * d, sizeof(*x));

    if (coded) {
        const struct kv_gpu_side s = kv_gpu_side_of(a, j, side);

#pragma omp parallel for schedule(static)
        for (size_t i = 0; i < n_tiles; i++)
            s.pack(&s, head, i, tiles + i * s.tile_bytes);
        if (s.behind)
            s.behind(&s, head, n_tiles, tiles);
    }
    for (size_t i = 0; x && i < n_tiles; i++) {
        const size_t left = run->n - i * KV_GPU_TILE;
        const size_t n = left < KV_GPU_TILE ? left : KV_GPU_TILE;

        kv_gpu_read_rows(a, j, side, head, run->first + i * KV_GPU_TILE, n, x);
        kv_gpu_float_pack(side, d, x, n, tiles + i * kv_gpu_halves_bytes(a));
    }
    free(x);
}

static int send_run(struct kv_gpu_attend *a, const struct kv_tiles_job *j,
                    size_t job, int r, int side, struct kv_err *e)
{
    struct kv_gpu_run *run = &a->plan[job].run[r];
    const size_t head_bytes =
        r == KV_RUN_CODES ? kv_gpu_coded_bytes(a, j, run, side)
                          : kv_gpu_run_tiles(run) * kv_gpu_halves_bytes(a);
    const size_t heads = kv_gpu_run_heads(a, r, side);
    uint8_t *host;
    void *to;
    int rc = 0;

    if (kv_device_alloc(&to, head_bytes * heads, e))
        return -1;
    a->held[job].tiles[side][r] = to;
    a->bytes += head_bytes * heads;
    *(side ? &run->v : &run->k) = to;
    *(side ? &run->v_head : &run->k_head) = head_bytes;
    if (!head_bytes)
        return 0;
    if (job && j->k == j[-1].k && j->v == j[-1].v) /* the same stores: a copy */
        return kv_device_copy(to, a->held[job - 1].tiles[side][r],
                              head_bytes * heads, e);
    host = kv_alloc(head_bytes, 1);
    for (size_t h = 0; h < heads && !rc; h++) {
        memset(host, 0, head_bytes);
        pack_head(a, j, run, r == KV_RUN_CODES, side, h, host);
        rc = kv_device_upload((uint8_t *)to + h * head_bytes, host, head_bytes,
                              e);
    }
    free(host);
    return rc;
}

static int send_table(struct kv_gpu_side *s, struct kv_err *e)
{
    const size_t bytes = s->n_tables * s->table_bytes;

    if (!s->table)
        return 0;
    return kv_device_alloc(&s->device_table, bytes, e) ||
           kv_device_upload(s->device_table, s->table, bytes, e);
}

static int send_floats(const float **to, const float *x, size_t n,
                       struct kv_err *e)
{
    void *p;

    if (!x)
        return 0;
    if (kv_device_alloc(&p, n * sizeof(*x), e))
        return -1;
    *to = p;
    return kv_device_upload(p, x, n * sizeof(*x), e);
}

/* Sends the transform of a store, as a butterfly if it has one, else as m. */
static int send_space(struct kv_gpu_space *to, const struct kv_store *s,
                      const float *m, struct kv_err *e)
{
    const size_t n = s->n_heads * s->head_dim;
    const struct kv_butterfly *b = &s->butterfly;

    to->kind = b->has ? KV_SPACE_HADAMARD : KV_SPACE_MATRIX;
    if (!b->has)
        return send_floats(&to->matrix, m, n * s->head_dim, e);
    to->hadamard = b->hadamard ? (unsigned)kv_hadamard_size(s->head_dim) : 1;
    to->scale = (float)(1 / sqrt((double)to->hadamard));
    return send_floats(&to->before, b->before, n, e) ||
           send_floats(&to->after, b->after, n, e);
}

int kv_gpu_attend_send_tables(struct kv_gpu_attend *a,
                              const struct kv_tiles_job *job, struct kv_err *e)
{
    for (int side = 0; side < 2; side++) {
        const struct kv_store *s = kv_gpu_job_store(job, side, KV_JOB_CODES);

        a->matrix[side] = space_matrix(s);
        if (send_table(&a->side[side], e) ||
            (a->matrix[side] &&
             send_space(&a->space[side], s, a->matrix[side], e)))
            return -1;
    }
    return 0;
}

void kv_gpu_attend_free_tables(struct kv_gpu_attend *a)
{
    for (int side = 0; side < 2; side++) {
        struct kv_gpu_space *s = &a->space[side];

        kv_device_free((void *)s->matrix);
        kv_device_free((void *)s->before);
        kv_device_free((void *)s->after);
        *s = (struct kv_gpu_space){0};
        kv_device_free(a->side[side].device_table);
        free(a->side[side].table);
        free(a->matrix[side]);
        a->side[side].device_table = a->side[side].table = NULL;
        a->matrix[side] = NULL;
    }
}

int kv_gpu_attend_send(struct kv_gpu_attend *a, const struct kv_tiles_job *jobs,
                       struct kv_err *e)
{
    for (size_t j = 0; j < a->n_jobs; j++)
        for (int side = 0; side < 2; side++)
            for (int r = 0; r < KV_GPU_RUNS; r++)
                if (send_run(a, &jobs[j], j, r, side, e))
                    return -1;
    return 0;
}
