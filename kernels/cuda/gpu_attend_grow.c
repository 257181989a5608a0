/* Caches that grow.  Codes in whole tiles of 128 tokens stay as they are, and
 * only new tiles are packed and uploaded.  The rest is halves: its decoded rows
 * are kept in host memory, and the tiles with new rows are packed again. */
#include "kernels/cuda/gpu_attend_impl.h"
#include "lib/base/alloc.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

enum { ALIGNED = 256 /* bytes */ };

void kv_gpu_held_free(struct kv_gpu_held *h)
{
    for (int side = 0; side < 2; side++) {
        for (int r = 0; r < KV_GPU_RUNS; r++)
            kv_device_free(h->tiles[side][r]);
        kv_device_free(h->halves[side]);
        free(h->rows[side]);
    }
    *h = (struct kv_gpu_held){0};
}

/* Bytes that a sequence takes on the device. */
static size_t held_bytes(const struct kv_gpu_attend *a,
                         const struct kv_gpu_held *h)
{
    size_t bytes = 0;

    for (int side = 0; side < 2; side++)
        for (int r = 0; r < KV_GPU_RUNS; r++)
            bytes += h->room[side][r] * kv_gpu_run_heads(a, r, side);
    return bytes;
}

static void drop(struct kv_gpu_attend *a, size_t job)
{
    a->bytes -= held_bytes(a, &a->held[job]);
    kv_gpu_held_free(&a->held[job]);
    a->plan[job] = (struct kv_gpu_sequence){0};
}

/* Moves the sequences into the order of id [n], with new ones empty, and frees
 * the others. */
static void match(struct kv_gpu_attend *a, const uint64_t *id, size_t n)
{
    struct kv_gpu_sequence *plan = kv_alloc(n, sizeof(*plan));
    struct kv_gpu_held *held = kv_alloc(n, sizeof(*held));

    for (size_t j = 0; j < n; j++) {
        size_t k = 0;

        while (k < a->n_jobs && !(a->plan[k].n && a->held[k].id == id[j]))
            k++;
        if (k < a->n_jobs) {
            plan[j] = a->plan[k];
            held[j] = a->held[k];
            a->plan[k] = (struct kv_gpu_sequence){0};
            a->held[k] = (struct kv_gpu_held){0};
        }
        held[j].id = id[j];
    }
    for (size_t k = 0; k < a->n_jobs; k++)
        drop(a, k);
    free(a->plan);
    free(a->held);
    a->plan = plan;
    a->held = held;
    a->n_jobs = n;
}

void kv_gpu_attend_drop(struct kv_gpu_attend *a, uint64_t id)
{
    for (size_t j = 0; j < a->n_jobs; j++)
        if (a->held[j].id == id)
            drop(a, j);
}

/* Whether one of a job's new tiles of codes owns more bytes than tiles on the
 * device have room for. */
static bool outgrown(const struct kv_gpu_attend *a,
                     const struct kv_tiles_job *j, size_t job)
{
    const struct kv_gpu_run *was = &a->plan[job].run[KV_RUN_CODES];
    struct kv_gpu_sequence now = {0};

    kv_gpu_attend_split(a, j, &now);
    for (int side = 0; side < 2; side++) {
        const struct kv_store *s = kv_gpu_job_store(j, side, KV_JOB_CODES);
        const size_t end = now.run[KV_RUN_CODES].n / KV_TILE_TOKENS;

        for (size_t h = 0; s->family->owned && h < kv_store_heads(s); h++)
            for (size_t i = was->n / KV_TILE_TOKENS; i < end; i++)
                if (s->family->owned(s, kv_store_tile(s, h, i)) >
                    a->owned[side])
                    return true;
    }
    return false;
}

/* Makes room for a run's tiles; the first `keep` bytes of each head stay. */
static int make_room(struct kv_gpu_attend *a, size_t job, int r, int side,
                     size_t head_bytes, size_t keep, struct kv_err *e)
{
    struct kv_gpu_held *h = &a->held[job];
    const size_t heads = kv_gpu_run_heads(a, r, side);
    const size_t old = h->room[side][r];
    const size_t room = kv_max(head_bytes, kv_round_up(old + old / 4, ALIGNED));
    void *to;

    if (head_bytes <= old)
        return 0;
    if (kv_device_alloc(&to, room * heads, e))
        return -1;
    for (size_t i = 0; keep && i < heads; i++)
        if (kv_device_copy((uint8_t *)to + i * room,
                           h->tiles[side][r] + i * old, keep, e)) {
            kv_device_free(to);
            return -1;
        }
    kv_device_free(h->tiles[side][r]);
    h->tiles[side][r] = to;
    h->room[side][r] = room;
    a->bytes += (room - old) * heads;
    return 0;
}

/* Uploads host [heads][n], bytes [from, from + n) of each head. */
static int upload(const struct kv_gpu_attend *a, size_t job, int r, int side,
                  size_t from, const uint8_t *host, size_t n, struct kv_err *e)
{
    const struct kv_gpu_held *h = &a->held[job];

    return n ? kv_device_upload_rows(h->tiles[side][r] + from, h->room[side][r],
                                     host, n, kv_gpu_run_heads(a, r, side), e)
             : 0;
}

/* Uploads the run's tiles of codes beyond the first `have`; all of them if data
 * is behind them. */
static int send_codes(struct kv_gpu_attend *a, const struct kv_tiles_job *j,
                      size_t job, int side, const struct kv_gpu_run *run,
                      size_t have, struct kv_err *e)
{
    const struct kv_gpu_side s = kv_gpu_side_of(a, j, side);
    const size_t heads = kv_gpu_run_heads(a, KV_RUN_CODES, side);
    const size_t n_tiles = kv_gpu_run_tiles(run), from = s.behind ? 0 : have;
    const size_t kept = from * s.tile_bytes, fresh = n_tiles - from;
    const size_t n = kv_gpu_coded_bytes(a, j, run, side) - kept;
    uint8_t *host;
    int rc;

    if (n_tiles == have)
        return 0;
    if (make_room(a, job, KV_RUN_CODES, side, kept + n, kept, e))
        return -1;
    host = kv_alloc(heads, n);
#pragma omp parallel for schedule(static)
    for (size_t i = 0; i < heads * fresh; i++)
        s.pack(&s, i / fresh, from + i % fresh,
               host + i / fresh * n + i % fresh * s.tile_bytes);
    for (size_t h = 0; s.behind && h < heads; h++)
        s.behind(&s, h, n_tiles, host + h * n);
    rc = upload(a, job, KV_RUN_CODES, side, kept, host, n, e);
    free(host);
    return rc;
}

/* Sets *rows [n_kv_heads][*room][head_dim] to have room for n tokens; the first
 * `keep` of them stay. */
static void want_rows(const struct kv_gpu_attend *a, float **rows, size_t *room,
                      size_t keep, size_t n)
{
    const size_t d = a->head_dim, more = n > 2 * *room ? n : 2 * *room;
    float *to;

    if (n <= *room)
        return;
    to = kv_alloc(a->n_kv_heads * more, d * sizeof(*to));
    for (size_t h = 0; keep && h < a->n_kv_heads; h++)
        memcpy(to + h * more * d, *rows + h * *room * d,
               keep * d * sizeof(*to));
    free(*rows);
    *rows = to;
    *room = more;
}

/* Uploads the tiles of halves of a run whose tokens from `keep` on are new. */
static int send_halves(struct kv_gpu_attend *a, const struct kv_tiles_job *j,
                       size_t job, int r, int side,
                       const struct kv_gpu_run *run, size_t keep,
                       struct kv_err *e)
{
    struct kv_gpu_held *held = &a->held[job];
    const size_t d = a->head_dim, heads = a->n_kv_heads;
    const size_t from = keep / KV_GPU_TILE,
                 fresh = kv_gpu_run_tiles(run) - from;
    const size_t tile = kv_gpu_halves_bytes(a), n = fresh * tile;
    uint8_t *host;
    int rc;

    if (run->n == keep)
        return 0;
    if (make_room(a, job, r, side, from * tile + n, from * tile, e))
        return -1;
    want_rows(a, &held->rows[side], &held->row_room[side], keep, run->n);

    const size_t room = held->row_room[side];
    float *rows = held->rows[side];

#pragma omp parallel for schedule(static)
    for (size_t h = 0; h < heads; h++)
        kv_gpu_read_rows(a, j, side, h, run->first + keep, run->n - keep,
                         rows + (h * room + keep) * d);
    host = kv_alloc(heads, n);
#pragma omp parallel for schedule(static)
    for (size_t i = 0; i < heads * fresh; i++) {
        const size_t at = (from + i % fresh) * KV_GPU_TILE;

        kv_gpu_float_pack(side, d, rows + (i / fresh * room + at) * d,
                          kv_min(run->n - at, KV_GPU_TILE), host + i * tile);
    }
    rc = upload(a, job, r, side, from * tile, host, n, e);
    free(host);
    return rc;
}

/* The tokens of the rest whose halves are still valid: not tokens that became
 * codes since. */
static size_t valid(const struct kv_gpu_sequence *was,
                    const struct kv_gpu_sequence *now, size_t was_coded,
                    size_t coded)
{
    const struct kv_gpu_run *rest = &was->run[KV_RUN_REST];
    const size_t sinks = was->run[KV_RUN_SINKS].n;
    const size_t end = coded == was_coded ? was->n : sinks + was_coded;

    if (!was->n || rest->first != now->run[KV_RUN_REST].first)
        return 0;
    return end > rest->first ? kv_min(end - rest->first, rest->n) : 0;
}

static int send_side(struct kv_gpu_attend *a, const struct kv_tiles_job *j,
                     size_t job, int side, const struct kv_gpu_sequence *now,
                     struct kv_err *e)
{
    const struct kv_gpu_sequence *was = &a->plan[job];
    struct kv_gpu_held *h = &a->held[job];
    const size_t coded = kv_gpu_job_store(j, side, KV_JOB_CODES)->n;
    const size_t keep = valid(was, now, h->coded[side], coded);

    /* Sinks first: their rows and the rest's share memory. */
    if ((was->run[KV_RUN_SINKS].n != now->run[KV_RUN_SINKS].n &&
         send_halves(a, j, job, KV_RUN_SINKS, side, &now->run[KV_RUN_SINKS], 0,
                     e)) ||
        send_codes(a, j, job, side, &now->run[KV_RUN_CODES],
                   kv_gpu_run_tiles(&was->run[KV_RUN_CODES]), e) ||
        send_halves(a, j, job, KV_RUN_REST, side, &now->run[KV_RUN_REST], keep,
                    e))
        return -1;
    h->coded[side] = coded;
    return 0;
}

/* Brings a sequence up to its job. */
static int bring(struct kv_gpu_attend *a, const struct kv_tiles_job *j,
                 size_t job, struct kv_err *e)
{
    const struct kv_gpu_held *h = &a->held[job];
    struct kv_gpu_sequence now = {0};

    kv_gpu_attend_split(a, j, &now);
    for (int side = 0; side < 2; side++)
        if (send_side(a, j, job, side, &now, e))
            return -1;
    for (int r = 0; r < KV_GPU_RUNS; r++) {
        now.run[r].k = h->tiles[0][r];
        now.run[r].v = h->tiles[1][r];
        now.run[r].k_head = h->room[0][r];
        now.run[r].v_head = h->room[1][r];
    }
    a->plan[job] = now;
    return 0;
}

int kv_gpu_attend_update(struct kv_gpu_attend *a,
                         const struct kv_tiles_job *jobs, const uint64_t *id,
                         size_t n_jobs, struct kv_err *e)
{
    bool larger = false;

    assert(a->grows);
    for (size_t j = 0; j < n_jobs; j++)
        if (kv_gpu_attend_takes(&jobs[j], e))
            return -1;
    match(a, id, n_jobs);
    for (size_t j = 0; j < n_jobs && !larger; j++)
        larger = outgrown(a, &jobs[j], j);
    for (size_t j = 0; j < n_jobs && larger; j++) {
        drop(a, j);
        a->held[j].id = id[j];
    }
    if (larger && kv_gpu_attend_reopen(a, jobs, n_jobs, e))
        return -1;
    for (size_t j = 0; j < n_jobs; j++)
        if (bring(a, &jobs[j], j, e))
            return -1;
    return kv_gpu_attend_plan(a, e);
}
