#include "kernels/cuda/gpu_attend.h"
#include "kernels/cuda/families.h"
#include "kernels/cuda/step.h"
#include "kernels/cuda/widen.h"
#include "lib/base/alloc.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { GPU_TILE = 128, LEAST_TILES = 8, DECODE_QUERIES = 8 };
enum { SINKS, CODES, TAIL };

/* What is on the device for one sequence. */
struct sequence {
    uint8_t *tiles[2][KV_GPU_RUNS]; /* K, V */
    uint8_t *halves[2];             /* of codes, written at each launch */
};

struct kv_gpu_attend {
    struct kv_device device;
    const struct kv_gpu_family *family;
    struct kv_gpu_side side[2]; /* K, V */
    struct kv_store store[2];   /* as the caller's were, without tiles: they
                                 * say what is launched after those are gone */
    size_t n_jobs, n_heads, n_kv_heads, head_dim, nq;
    size_t owned[2];              /* by a tile of codes, at most */
    struct kv_gpu_sequence *plan; /* [n_jobs] */
    struct sequence *sequence;    /* [n_jobs] */
    struct kv_gpu_launch launch;
    size_t bytes;
    void *device_plan, *device_work;
    void *q, *out, *parts, *counters, *slots;
    void *space[2]; /* matrices into (K) and out of (V) the codes' space */
    bool copied;    /* tables and space are another's */
    void *coded;    /* the plan with codes as they are, where a launch begins
                     * with writing them as halves; else NULL */
};

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

/* [n_heads][d][d]: what enter() or leave() multiplies a row by; NULL without.
 */
static float *space_matrix(const struct kv_store *s)
{
    void (*turn)(const void *, size_t, float *, size_t) =
        s->values ? s->leave : s->enter;
    const size_t d = s->head_dim;
    float *m;

    if (!turn)
        return NULL;
    m = kv_alloc(s->n_heads * d, d * sizeof(*m));
    for (size_t h = 0; h < s->n_heads; h++)
        for (size_t i = 0; i < d; i++) {
            float *row = m + (h * d + i) * d;

            memset(row, 0, d * sizeof(*row));
            row[i] = 1;
            turn(s->space, h, row, 1);
        }
    return m;
}

/* n rows of codes of one head as the model's: keys k' with q . k' = (q m) . k,
 * values v m.  m NULL: as they are. */
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

/* ---- what goes where ------------------------------------------------------
 */

static size_t up_to(size_t n, size_t whole)
{
    return (n + whole - 1) / whole * whole;
}

static const struct kv_store *store_of(const struct kv_tiles_job *j, int side,
                                       int run)
{
    return (side ? j->v : j->k) + run;
}

/* A tile of halves, in the order of float.cuh. */
static size_t halves_bytes(const struct kv_gpu_attend *a)
{
    return GPU_TILE * kv_padded(a->head_dim) * sizeof(uint16_t);
}

/* Runs of a job: codes are tokens that fill tiles on both sides. */
static void split(const struct kv_tiles_job *j, struct kv_gpu_sequence *p)
{
    const size_t sinks = store_of(j, 0, SINKS)->n;
    const size_t k = store_of(j, 0, CODES)->n, v = store_of(j, 1, CODES)->n;
    const size_t coded = (k < v ? k : v) / GPU_TILE * GPU_TILE;
    const size_t n[KV_GPU_RUNS] = {sinks, coded, j->n - sinks - coded};

    assert(store_of(j, 1, SINKS)->n == sinks);
    for (size_t r = 0, first = 0; r < KV_GPU_RUNS; first += n[r++]) {
        p->run[r].first = (unsigned)first;
        p->run[r].n = (unsigned)n[r];
    }
    p->n = (unsigned)j->n;
}

/* Tokens [first, first + n) of one side and head of a job, as the model's
 * values. */
static void read_rows(const struct kv_gpu_attend *a,
                      const struct kv_tiles_job *j, int side, const float *m,
                      size_t head, size_t first, size_t n, float *x)
{
    const size_t d = a->head_dim;
    size_t at = 0;
    float part[KV_TILE_PART * KV_GPU_MAX_DIM];

    for (int r = SINKS; r <= TAIL && n; r++) {
        const struct kv_store *s = store_of(j, side, r);
        const float *turn = r == CODES && m ? m + head * d * d : NULL;

        for (size_t t = first > at ? first - at : 0; t < s->n && n;) {
            const size_t skip = t % KV_TILE_PART;
            const size_t left =
                KV_TILE_PART - skip < s->n - t ? KV_TILE_PART - skip : s->n - t;
            const size_t take = left < n ? left : n;

            kv_gpu_rows(s, head, t - skip, KV_TILE_PART, part);
            leave_space(turn, side, d, part + skip * d, take);
            memcpy(x, part + skip * d, take * d * sizeof(*x));
            x += take * d;
            t += take;
            first += take;
            n -= take;
        }
        at += s->n;
    }
}

/* One head's tiles of one run. */
static void pack_head(const struct kv_gpu_attend *a,
                      const struct kv_tiles_job *j,
                      const struct kv_gpu_run *run, bool coded, int side,
                      const float *m, size_t head, uint8_t *tiles)
{
    const size_t d = a->head_dim;
    const size_t n_tiles = up_to(run->n, GPU_TILE) / GPU_TILE;
    float *x = coded ? NULL : kv_alloc(GPU_TILE * d, sizeof(*x));

    if (coded) {
        struct kv_gpu_side s = a->side[side];

        s.store = store_of(j, side, CODES);
#pragma omp parallel for schedule(static)
        for (size_t i = 0; i < n_tiles; i++)
            s.pack(&s, head, i, tiles + i * s.tile_bytes);
    }
    for (size_t i = 0; x && i < n_tiles; i++) {
        const size_t left = run->n - i * GPU_TILE;
        const size_t n = left < GPU_TILE ? left : GPU_TILE;

        read_rows(a, j, side, m, head, run->first + i * GPU_TILE, n, x);
        kv_gpu_float_pack(side, d, x, n, tiles + i * halves_bytes(a));
    }
    free(x);
}

static int send_run(struct kv_gpu_attend *a, const struct kv_tiles_job *j,
                    size_t job, int r, int side, const float *m,
                    struct kv_err *e)
{
    struct kv_gpu_run *run = &a->plan[job].run[r];
    const size_t tile =
        r == KV_RUN_CODES ? a->side[side].tile_bytes : halves_bytes(a);
    const size_t head_bytes = up_to(run->n, GPU_TILE) / GPU_TILE * tile;
    uint8_t *host;
    void *to;
    int rc = 0;

    if (kv_device_alloc(&to, head_bytes * a->n_kv_heads, e))
        return -1;
    a->sequence[job].tiles[side][r] = to;
    a->bytes += head_bytes * a->n_kv_heads;
    *(side ? &run->v : &run->k) = to;
    *(side ? &run->v_head : &run->k_head) = head_bytes;
    if (!head_bytes)
        return 0;
    if (job && j->k == j[-1].k && j->v == j[-1].v) /* a copy */
        return kv_device_copy(to, a->sequence[job - 1].tiles[side][r],
                              head_bytes * a->n_kv_heads, e);
    host = kv_alloc(head_bytes, 1);
    for (size_t h = 0; h < a->n_kv_heads && !rc; h++) {
        memset(host, 0, head_bytes);
        pack_head(a, j, run, r == KV_RUN_CODES, side, m, h, host);
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

static int send(struct kv_gpu_attend *a, const struct kv_tiles_job *jobs,
                struct kv_err *e)
{
    const size_t d = a->head_dim;

    for (int side = 0; side < 2; side++) {
        float *m = space_matrix(store_of(jobs, side, CODES));
        int rc = send_table(&a->side[side], e);

        for (size_t j = 0; j < a->n_jobs && !rc; j++)
            for (int r = 0; r < KV_GPU_RUNS && !rc; r++)
                rc = send_run(a, &jobs[j], j, r, side, m, e);
        if (m && !rc) {
            const size_t bytes = a->n_kv_heads * d * d * sizeof(*m);

            rc = kv_device_alloc(&a->space[side], bytes, e) ||
                 kv_device_upload(a->space[side], m, bytes, e);
        }
        free(m);
        if (rc)
            return -1;
    }
    return 0;
}

/* ---- who does what --------------------------------------------------------
 */

static size_t run_tiles(const struct kv_gpu_run *r)
{
    return up_to(r->n, GPU_TILE) / GPU_TILE;
}

/* Tiles of a piece of codes: pieces of one length that, with those of halves
 * beside them, fill the device once; but no shorter than a tile for each warp
 * of a block. */
static size_t piece_tiles(const struct kv_gpu_attend *a, size_t groups)
{
    const size_t blocks_each = a->launch.shared * 2 <= a->device.shared ? 2 : 1;
    const size_t blocks = a->device.multiprocessors * blocks_each;
    size_t tiles = 0, beside = 0;

    for (size_t j = 0; j < a->n_jobs; j++)
        for (int r = 0; r < KV_GPU_RUNS; r++)
            if (r == KV_RUN_CODES)
                tiles += run_tiles(&a->plan[j].run[r]);
            else
                beside += a->plan[j].run[r].n > 0;

    const size_t room = blocks / (a->n_kv_heads * groups);
    const size_t pieces = room > beside ? room - beside : 1;
    const size_t each = (tiles + pieces - 1) / pieces;

    return each > LEAST_TILES ? each : LEAST_TILES;
}

/* A list of work under way. */
struct cutting {
    struct kv_gpu_work *work;
    size_t n_work, n_splits, most; /* most: tiles of a piece */
};

/* The pieces of one run, the sequence's parts from `split` on. */
static void cut(struct cutting *c, const struct kv_gpu_sequence *p,
                unsigned run, size_t split)
{
    const size_t tiles = run_tiles(&p->run[run]);
    const size_t n = (tiles + c->most - 1) / c->most;

    for (size_t i = 0; i < n; i++) {
        const size_t from = tiles * i / n, to = tiles * (i + 1) / n;

        c->work[c->n_work++] =
            (struct kv_gpu_work){p->index, run, (unsigned)from,
                                 (unsigned)(to - from), (unsigned)(split + i)};
    }
}

/* Splits of a sequence: those of codes, then those of halves. */
static void number_splits(struct kv_gpu_attend *a, struct cutting *c)
{
    for (size_t j = 0; j < a->n_jobs; j++) {
        struct kv_gpu_sequence *p = &a->plan[j];
        size_t n[KV_GPU_RUNS];

        for (int r = 0; r < KV_GPU_RUNS; r++)
            n[r] = (run_tiles(&p->run[r]) + c->most - 1) / c->most;
        p->index = (unsigned)j;
        p->first_split = (unsigned)c->n_splits;
        p->n_coded = (unsigned)n[KV_RUN_CODES];
        p->n_splits =
            (unsigned)(n[KV_RUN_CODES] + n[KV_RUN_SINKS] + n[KV_RUN_REST]);
        c->n_splits += p->n_splits;
    }
}

/* Work in the order it starts: halves, whose steps are the longest, before
 * codes. */
static void make_work(struct kv_gpu_attend *a, struct cutting *c)
{
    static const unsigned order[] = {KV_RUN_REST, KV_RUN_SINKS, KV_RUN_CODES};

    number_splits(a, c);
    c->work = kv_alloc(c->n_splits, sizeof(*c->work));
    for (size_t o = 0; o < KV_GPU_RUNS; o++)
        for (size_t j = 0; j < a->n_jobs; j++) {
            const struct kv_gpu_sequence *p = &a->plan[j];
            const size_t sinks =
                (run_tiles(&p->run[KV_RUN_SINKS]) + c->most - 1) / c->most;
            const size_t split = p->first_split + (order[o] == KV_RUN_CODES ? 0
                                                   : order[o] == KV_RUN_SINKS
                                                       ? p->n_coded
                                                       : p->n_coded + sinks);

            cut(c, p, order[o], split);
        }
}

/* The plan becomes one of halves alone: codes keep theirs. */
static int make_halves(struct kv_gpu_attend *a, struct kv_err *e)
{
    const size_t bytes = a->n_jobs * sizeof(*a->plan);

    if (kv_device_alloc(&a->coded, bytes, e) ||
        kv_device_upload(a->coded, a->plan, bytes, e))
        return -1;
    for (size_t j = 0; j < a->n_jobs; j++)
        for (int side = 0; side < 2; side++) {
            struct kv_gpu_run *run = &a->plan[j].run[KV_RUN_CODES];
            const size_t head = run_tiles(run) * halves_bytes(a);
            void *to;

            if (kv_device_alloc(&to, head * a->n_kv_heads, e))
                return -1;
            a->sequence[j].halves[side] = to;
            a->bytes += head * a->n_kv_heads;
            *(side ? &run->v : &run->k) = to;
            *(side ? &run->v_head : &run->k_head) = head;
        }
    return 0;
}

/* Newest tokens, which are halves unless they fill a tile with codes. */
static int send_slots(struct kv_gpu_attend *a, struct kv_err *e)
{
    struct kv_gpu_slot *slots = kv_alloc(a->n_jobs, sizeof(*slots));
    int rc;

    for (size_t j = 0; j < a->n_jobs; j++) {
        const struct kv_gpu_run *r = &a->plan[j].run[KV_RUN_REST];

        slots[j] = (struct kv_gpu_slot){
            .k = r->n ? a->sequence[j].tiles[0][KV_RUN_REST] : NULL,
            .v = a->sequence[j].tiles[1][KV_RUN_REST],
            .head_bytes = r->k_head,
            .token = r->n ? r->n - 1 : 0,
            .position = a->plan[j].n - 1};
    }
    rc = kv_device_alloc(&a->slots, a->n_jobs * sizeof(*slots), e) ||
         kv_device_upload(a->slots, slots, a->n_jobs * sizeof(*slots), e);
    free(slots);
    return rc;
}

static int plan(struct kv_gpu_attend *a, struct kv_err *e)
{
    const size_t rows = a->n_heads / a->n_kv_heads * a->nq;
    const size_t groups = (rows + 7) / 8;
    struct cutting c = {.most = piece_tiles(a, groups)};
    int rc;

    make_work(a, &c);

    const size_t in_out =
        a->n_jobs * a->nq * a->n_heads * a->head_dim * sizeof(float);
    /* Rows are padded to whole N-tiles, two where a block takes two. */
    const size_t part =
        a->launch.prefill
            ? 0
            : (groups + 1) * 8 * (a->head_dim + 2) * sizeof(float);
    const size_t n_counters = a->n_jobs * a->n_kv_heads * groups;

    rc = kv_device_alloc(&a->device_plan, a->n_jobs * sizeof(*a->plan), e) ||
         kv_device_upload(a->device_plan, a->plan, a->n_jobs * sizeof(*a->plan),
                          e) ||
         kv_device_alloc(&a->device_work, c.n_work * sizeof(*c.work), e) ||
         kv_device_upload(a->device_work, c.work, c.n_work * sizeof(*c.work),
                          e) ||
         kv_device_alloc(&a->q, in_out, e) ||
         kv_device_alloc(&a->out, in_out, e) ||
         kv_device_alloc(&a->parts, c.n_work * a->n_kv_heads * part, e) ||
         kv_device_alloc(&a->counters, n_counters * sizeof(unsigned), e) ||
         kv_device_zero(a->counters, n_counters * sizeof(unsigned), e) ||
         send_slots(a, e);
    free(c.work);
    a->launch.n_work = c.n_work;
    return rc ? -1 : 0;
}

static void keep_stores(struct kv_gpu_attend *a)
{
    for (int side = 0; side < 2; side++) {
        a->store[side] = *a->side[side].store;
        a->store[side].tiles = NULL;
        a->side[side].store = &a->store[side];
    }
}

/* ---- the object -----------------------------------------------------------
 */

static struct kv_gpu_launch launch_of(const struct kv_gpu_attend *a,
                                      const struct kv_tiles_job *j)
{
    return (struct kv_gpu_launch){
        .p = {.group = (unsigned)(a->n_heads / a->n_kv_heads),
              .nq = (unsigned)a->nq,
              .scale = j->scale * (float)M_LOG2E},
        .prefill = a->nq > DECODE_QUERIES,
        .n_sequences = a->n_jobs,
        .n_kv_heads = a->n_kv_heads,
        .head_dim = a->head_dim,
        .seed = j->seed,
        .k = &a->side[0],
        .v = &a->side[1],
    };
}

/* Whether the family has both sides. */
static bool open_both(struct kv_gpu_attend *a, const struct kv_tiles_job *j,
                      const struct kv_gpu_family *family, enum kv_path path)
{
    bool has = true;

    for (int side = 0; side < 2; side++)
        a->side[side] = (struct kv_gpu_side){.store = store_of(j, side, CODES),
                                             .path = path,
                                             .owned = a->owned[side]};
    for (int side = 0; side < 2 && has; side++)
        has = family->open(&a->side[side]);
    return has;
}

static void close_both(struct kv_gpu_attend *a)
{
    for (int side = 0; side < 2; side++) {
        free(a->side[side].table);
        a->side[side].table = NULL;
    }
}

/* What a launch takes; fails with what the family has no kernel for. */
static int measure(struct kv_gpu_attend *a, const struct kv_tiles_job *j,
                   const struct kv_gpu_family *family, struct kv_err *e)
{
    int rc;

    a->launch = launch_of(a, j);
    a->launch.measure = true;
    rc = family->launch(&a->launch, e);
    a->launch.measure = false;
    if (!rc && a->launch.shared > a->device.shared)
        rc = kv_fail(e,
                     "attention on codes of family %s takes %zu bytes of "
                     "shared memory, a block of %s has %zu",
                     family->name, a->launch.shared, a->device.name,
                     a->device.shared);
    return rc;
}

static int fail_both(const struct kv_tiles_job *j, struct kv_err *e)
{
    return kv_fail(e,
                   "no CUDA kernel for keys of family %s and values of family "
                   "%s with these parameters",
                   store_of(j, 0, CODES)->family->name,
                   store_of(j, 1, CODES)->family->name);
}

/* The first family that has both sides and a kernel for them.  Fails with what
 * the first that knows these codes has no kernel for. */
static int find_family(struct kv_gpu_attend *a, const struct kv_tiles_job *j,
                       enum kv_path path, struct kv_err *e)
{
    struct kv_err first = {""};

    for (size_t f = 0; kv_gpu_families[f]; f++) {
        struct kv_err its = {""};

        if (open_both(a, j, kv_gpu_families[f], path) &&
            !measure(a, j, kv_gpu_families[f], &its)) {
            a->family = kv_gpu_families[f];
            keep_stores(a);
            return 0;
        }
        close_both(a);
        if (!first.msg[0])
            first = its;
    }
    return first.msg[0] ? kv_fail(e, "%s", first.msg) : fail_both(j, e);
}

/* Tiles of the generic kernel, and this family's launch. */
static int find_generic(struct kv_gpu_attend *a, const struct kv_tiles_job *j,
                        const struct kv_gpu_family *family, struct kv_err *e)
{
    if (!open_both(a, j, &kv_gpu_generic_tiles, KV_PATH_EXACT))
        return fail_both(j, e);
    a->family = family;
    keep_stores(a);
    return measure(a, j, family, e);
}

static void point(struct kv_gpu_attend *a)
{
    struct kv_decode *p = &a->launch.p;

    p->sequences = a->device_plan;
    p->work = a->device_work;
    p->q = a->q;
    p->out = a->out;
    p->enter = a->space[0];
    p->leave = a->space[1];
    p->parts = a->parts;
    p->counters = a->counters;
}

/* Bytes that a tile of codes of these jobs owns, at most. */
static size_t most_owned(const struct kv_tiles_job *jobs, size_t n_jobs,
                         int side)
{
    size_t most = 0;

    for (size_t j = 0; j < n_jobs; j++) {
        const struct kv_store *s = store_of(&jobs[j], side, CODES);

        if (!s->family->owned ||
            (j && s == store_of(&jobs[j - 1], side, CODES)))
            continue;
        for (size_t h = 0; h < kv_store_heads(s); h++)
            for (size_t i = 0; i < kv_store_tiles(s); i++) {
                const size_t owned =
                    s->family->owned(s, kv_store_tile(s, h, i));

                most = owned > most ? owned : most;
            }
    }
    return most;
}

/* Caches of these jobs that are still nowhere. */
static struct kv_gpu_attend *begin(const struct kv_device *device,
                                   const struct kv_tiles_job *jobs,
                                   size_t n_jobs)
{
    struct kv_gpu_attend *a = kv_alloc(1, sizeof(*a));

    *a = (struct kv_gpu_attend){
        .device = *device,
        .n_jobs = n_jobs,
        .n_heads = jobs->n_heads,
        .n_kv_heads = jobs->n_kv_heads,
        .head_dim = jobs->head_dim,
        .nq = jobs->nq,
        .owned = {most_owned(jobs, n_jobs, 0), most_owned(jobs, n_jobs, 1)}};
    a->plan = kv_alloc(n_jobs, sizeof(*a->plan));
    a->sequence = kv_alloc(n_jobs, sizeof(*a->sequence));
    memset(a->plan, 0, n_jobs * sizeof(*a->plan));
    memset(a->sequence, 0, n_jobs * sizeof(*a->sequence));
    return a;
}

/* The rest, once the family is found. */
static int finish(struct kv_gpu_attend *a, const struct kv_tiles_job *jobs,
                  bool dequant, struct kv_err *e)
{
    for (size_t j = 0; j < a->n_jobs; j++)
        split(&jobs[j], &a->plan[j]);
    if (send(a, jobs, e) || (dequant && make_halves(a, e)) || plan(a, e))
        return -1;
    point(a);
    return 0;
}

/* rc: of what was to happen before. */
static int end(struct kv_gpu_attend *a, int rc, const struct kv_tiles_job *jobs,
               bool dequant, struct kv_gpu_attend **out, struct kv_err *e)
{
    if (rc || finish(a, jobs, dequant, e)) {
        kv_gpu_attend_free(a);
        return -1;
    }
    *out = a;
    return 0;
}

int kv_gpu_attend_new(struct kv_gpu_attend **out,
                      const struct kv_device *device,
                      const struct kv_tiles_job *jobs, size_t n_jobs,
                      enum kv_path path, struct kv_err *e)
{
    struct kv_gpu_attend *a = begin(device, jobs, n_jobs);

    return end(a, find_family(a, jobs, path, e), jobs, false, out, e);
}

int kv_gpu_attend_new_generic(struct kv_gpu_attend **out,
                              const struct kv_device *device,
                              const struct kv_tiles_job *jobs, size_t n_jobs,
                              struct kv_err *e)
{
    struct kv_gpu_attend *a = begin(device, jobs, n_jobs);

    return end(a, find_generic(a, jobs, &kv_gpu_generic_tiles, e), jobs, false,
               out, e);
}

int kv_gpu_attend_new_dequant(struct kv_gpu_attend **out,
                              const struct kv_device *device,
                              const struct kv_tiles_job *jobs, size_t n_jobs,
                              struct kv_err *e)
{
    struct kv_gpu_attend *a = begin(device, jobs, n_jobs);

    return end(a, find_generic(a, jobs, &kv_gpu_float, e), jobs, true, out, e);
}

static int copy_run(struct kv_gpu_attend *to, const struct kv_gpu_attend *from,
                    size_t job, int r, int side, struct kv_err *e)
{
    struct kv_gpu_run *run = &to->plan[job].run[r];
    const size_t bytes = (side ? run->v_head : run->k_head) * to->n_kv_heads;
    void *tiles;

    if (kv_device_alloc(&tiles, bytes, e))
        return -1;
    to->sequence[job].tiles[side][r] = tiles;
    to->bytes += bytes;
    *(side ? &run->v : &run->k) = tiles;
    return bytes ? kv_device_copy(tiles, from->sequence[job].tiles[side][r],
                                  bytes, e)
                 : 0;
}

int kv_gpu_attend_copy(struct kv_gpu_attend **out,
                       const struct kv_gpu_attend *from, struct kv_err *e)
{
    struct kv_gpu_attend *a = kv_alloc(1, sizeof(*a));
    int rc = 0;

    assert(!from->coded);
    *a = *from;
    a->copied = true;
    a->bytes = 0;
    a->device_plan = a->device_work = a->slots = NULL;
    a->q = a->out = a->parts = a->counters = NULL;
    keep_stores(a);
    a->launch.k = &a->side[0];
    a->launch.v = &a->side[1];
    a->plan = kv_alloc(a->n_jobs, sizeof(*a->plan));
    memcpy(a->plan, from->plan, a->n_jobs * sizeof(*a->plan));
    a->sequence = kv_alloc(a->n_jobs, sizeof(*a->sequence));
    for (size_t j = 0; j < a->n_jobs && !rc; j++)
        for (int r = 0; r < KV_GPU_RUNS && !rc; r++)
            rc = copy_run(a, from, j, r, 0, e) || copy_run(a, from, j, r, 1, e);
    if (rc || plan(a, e)) {
        kv_gpu_attend_free(a);
        return -1;
    }
    point(a);
    *out = a;
    return 0;
}

void kv_gpu_attend_free(struct kv_gpu_attend *a)
{
    if (!a)
        return;
    for (size_t j = 0; j < a->n_jobs; j++)
        for (int side = 0; side < 2; side++)
            for (int r = 0; r < KV_GPU_RUNS; r++)
                kv_device_free(a->sequence[j].tiles[side][r]);
    for (size_t j = 0; j < a->n_jobs; j++)
        for (int side = 0; side < 2; side++)
            kv_device_free(a->sequence[j].halves[side]);
    for (int side = 0; side < 2 && !a->copied; side++) {
        free(a->side[side].table);
        kv_device_free(a->side[side].device_table);
        kv_device_free(a->space[side]);
    }
    kv_device_free(a->slots);
    kv_device_free(a->coded);
    kv_device_free(a->device_plan);
    kv_device_free(a->device_work);
    kv_device_free(a->q);
    kv_device_free(a->out);
    kv_device_free(a->parts);
    kv_device_free(a->counters);
    free(a->plan);
    free(a->sequence);
    free(a);
}

enum kv_path kv_gpu_attend_path(const struct kv_gpu_attend *a)
{
    return a->side[0].path == KV_PATH_INT8 || a->side[1].path == KV_PATH_INT8
               ? KV_PATH_INT8
               : KV_PATH_EXACT;
}

const char *kv_gpu_attend_name(const struct kv_gpu_attend *a)
{
    if (a->coded)
        return "dequant";
    if (a->family == &kv_gpu_generic_tiles)
        return "generic";
    return kv_gpu_attend_path(a) == KV_PATH_INT8 ? "int8" : "exact";
}

size_t kv_gpu_attend_bytes(const struct kv_gpu_attend *a)
{
    return a->bytes;
}

static size_t rows_bytes(const struct kv_gpu_attend *a)
{
    return a->n_jobs * a->nq * a->n_heads * a->head_dim * sizeof(float);
}

int kv_gpu_attend_ask(struct kv_gpu_attend *a, const float *q, struct kv_err *e)
{
    return kv_device_upload(a->q, q, rows_bytes(a), e);
}

int kv_gpu_attend_answer(struct kv_gpu_attend *a, float *out, struct kv_err *e)
{
    return kv_device_download(out, a->out, rows_bytes(a), e);
}

float *kv_gpu_attend_q(const struct kv_gpu_attend *a)
{
    return a->q;
}

const float *kv_gpu_attend_out(const struct kv_gpu_attend *a)
{
    return a->out;
}

const struct kv_gpu_slot *kv_gpu_attend_slots(const struct kv_gpu_attend *a)
{
    return a->slots;
}

static int widen(struct kv_gpu_attend *a, struct kv_err *e)
{
    size_t most = 0;

    for (size_t j = 0; j < a->n_jobs; j++) {
        const size_t tiles = run_tiles(&a->plan[j].run[KV_RUN_CODES]);

        most = tiles > most ? tiles : most;
    }
    return kv_gpu_widen(&a->side[0], &a->side[1], a->coded, a->device_plan,
                        a->n_jobs, a->n_kv_heads, most, e);
}

int kv_gpu_attend_launch(struct kv_gpu_attend *a, struct kv_err *e)
{
    if (a->coded && widen(a, e))
        return -1;
    return a->family->launch(&a->launch, e);
}

bool kv_gpu_attend_has_parts(const struct kv_gpu_attend *a)
{
    struct kv_gpu_launch l = a->launch;
    struct kv_err e = {""};

    l.measure = true;
    return !a->coded && !kv_gpu_launch_part(a->family, &l, KV_LOADS, &e);
}

int kv_gpu_attend_launch_part(struct kv_gpu_attend *a, enum kv_gpu_part part,
                              struct kv_err *e)
{
    return kv_gpu_launch_part(a->family, &a->launch, part, e);
}
