#include "kernels/cuda/gpu_attend_impl.h"
#include "kernels/cuda/gpu_pieces.h"
#include "kernels/cuda/step.h"
#include "lib/base/alloc.h"

#include <assert.h>
#include <stdlib.h>

/* Whether a side can have codes of exactly its first n tokens. */
static bool are_whole(const struct kv_gpu_side *s, size_t n)
{
    return !s->whole || n % s->whole == 0;
}

/* Codes are tokens that fill tiles, and groups, on both sides. */
void kv_gpu_attend_split(const struct kv_gpu_attend *a,
                         const struct kv_tiles_job *j,
                         struct kv_gpu_sequence *p)
{
    const size_t sinks = kv_gpu_job_store(j, 0, KV_JOB_SINKS)->n;
    const size_t k = kv_gpu_job_store(j, 0, KV_JOB_CODES)->n,
                 v = kv_gpu_job_store(j, 1, KV_JOB_CODES)->n;
    size_t coded = (k < v ? k : v) / KV_GPU_TILE * KV_GPU_TILE;

    while (!are_whole(&a->side[0], coded) || !are_whole(&a->side[1], coded))
        coded -= KV_GPU_TILE;

    const size_t n[KV_GPU_RUNS] = {sinks, coded, j->view.n - sinks - coded};

    for (size_t r = 0, first = 0; r < KV_GPU_RUNS; first += n[r++]) {
        p->run[r].first = (unsigned)first;
        p->run[r].n = (unsigned)n[r];
    }
    p->n = (unsigned)j->view.n;
}

/* The largest number of tiles of a piece. */
static size_t piece_tiles(const struct kv_gpu_attend *a)
{
    const struct kv_gpu_places p = {
        .places = a->device.multiprocessors * a->launch.blocks,
        .heads = a->n_kv_heads * a->launch.row_groups,
        .min_tiles = a->launch.min_tiles};
    size_t *tiles = kv_alloc(a->n_jobs * KV_GPU_RUNS, sizeof(*tiles));
    size_t max;

    for (size_t j = 0; j < a->n_jobs; j++)
        for (size_t r = 0; r < KV_GPU_RUNS; r++)
            tiles[j * KV_GPU_RUNS + r] = kv_gpu_run_tiles(&a->plan[j].run[r]);
    max = kv_gpu_piece_tiles(&p, tiles, a->n_jobs * KV_GPU_RUNS);
    free(tiles);
    return max;
}

/* A list of work while it is cut into pieces. */
struct cutting {
    struct kv_gpu_work *work;
    size_t n_work, n_splits, max; /* max: tiles of a piece */
};

/* Cuts one run into pieces, which become the sequence's parts from `split`
 * on. */
static void cut(struct cutting *c, const struct kv_gpu_sequence *p,
                unsigned run, size_t split)
{
    const size_t tiles = kv_gpu_run_tiles(&p->run[run]);
    const size_t n = kv_gpu_n_pieces(tiles, c->max);

    for (size_t i = 0; i < n; i++) {
        const size_t from = tiles * i / n, to = tiles * (i + 1) / n;

        c->work[c->n_work++] =
            (struct kv_gpu_work){.run = p->run[run],
                                 .coded = run == KV_RUN_CODES,
                                 .first_tile = (unsigned)from,
                                 .n_tiles = (unsigned)(to - from),
                                 .sequence = p->index,
                                 .n = p->n,
                                 .first_split = p->first_split,
                                 .n_splits = p->n_splits,
                                 .n_coded = p->n_coded,
                                 .split = (unsigned)(split + i)};
    }
}

/* Numbers the splits of every sequence: splits of codes, then splits of
 * halves. */
static void number_splits(struct kv_gpu_attend *a, struct cutting *c)
{
    for (size_t j = 0; j < a->n_jobs; j++) {
        struct kv_gpu_sequence *p = &a->plan[j];
        size_t n[KV_GPU_RUNS];

        for (int r = 0; r < KV_GPU_RUNS; r++)
            n[r] = kv_gpu_n_pieces(kv_gpu_run_tiles(&p->run[r]), c->max);
        p->index = (unsigned)j;
        p->first_split = (unsigned)c->n_splits;
        p->n_coded = (unsigned)n[KV_RUN_CODES];
        p->n_splits =
            (unsigned)(n[KV_RUN_CODES] + n[KV_RUN_SINKS] + n[KV_RUN_REST]);
        c->n_splits += p->n_splits;
    }
}

/* Lists the work in the order in which it starts: halves, whose steps are the
 * longest, before codes. */
static void make_work(struct kv_gpu_attend *a, struct cutting *c)
{
    static const unsigned order[] = {KV_RUN_REST, KV_RUN_SINKS, KV_RUN_CODES};

    number_splits(a, c);
    c->work = kv_alloc(c->n_splits, sizeof(*c->work));
    for (size_t o = 0; o < KV_GPU_RUNS; o++)
        for (size_t j = 0; j < a->n_jobs; j++) {
            const struct kv_gpu_sequence *p = &a->plan[j];
            const size_t sinks = kv_gpu_n_pieces(
                kv_gpu_run_tiles(&p->run[KV_RUN_SINKS]), c->max);
            const size_t split = p->first_split + (order[o] == KV_RUN_CODES ? 0
                                                   : order[o] == KV_RUN_SINKS
                                                       ? p->n_coded
                                                       : p->n_coded + sinks);

            cut(c, p, order[o], split);
        }
}

int kv_gpu_attend_halves(struct kv_gpu_attend *a, struct kv_err *e)
{
    const size_t bytes = a->n_jobs * sizeof(*a->plan);

    if (kv_device_alloc(&a->coded, bytes, e) ||
        kv_device_upload(a->coded, a->plan, bytes, e))
        return -1;
    for (size_t j = 0; j < a->n_jobs; j++)
        for (int side = 0; side < 2; side++) {
            struct kv_gpu_run *run = &a->plan[j].run[KV_RUN_CODES];
            const size_t head = kv_gpu_run_tiles(run) * kv_gpu_halves_bytes(a);
            void *to;

            if (kv_device_alloc(&to, head * a->n_kv_heads, e))
                return -1;
            a->held[j].halves[side] = to;
            a->bytes += head * a->n_kv_heads;
            *(side ? &run->v : &run->k) = to;
            *(side ? &run->v_head : &run->k_head) = head;
        }
    return 0;
}

/* Uploads the slots of the newest tokens, which are halves unless they fill a
 * tile of codes. */
static int send_slots(struct kv_gpu_attend *a, struct kv_err *e)
{
    struct kv_gpu_slot *slots = kv_alloc(a->n_jobs, sizeof(*slots));
    int rc;

    for (size_t j = 0; j < a->n_jobs; j++) {
        const struct kv_gpu_run *r = &a->plan[j].run[KV_RUN_REST];

        slots[j] = (struct kv_gpu_slot){
            .k = r->n ? a->held[j].tiles[0][KV_RUN_REST] : NULL,
            .v = a->held[j].tiles[1][KV_RUN_REST],
            .head_bytes = r->k_head,
            .token = r->n ? r->n - 1 : 0,
            .position = a->plan[j].n - 1};
    }
    rc = kv_gpu_room_want(&a->slots, a->n_jobs * sizeof(*slots), e) ||
         kv_device_upload(a->slots.p, slots, a->n_jobs * sizeof(*slots), e);
    free(slots);
    return rc;
}

int kv_gpu_room_want(struct kv_gpu_room *r, size_t bytes, struct kv_err *e)
{
    const size_t twice = 2 * r->bytes, want = bytes > twice ? bytes : twice;

    if (bytes <= r->bytes)
        return 0;
    kv_device_free(r->p);
    *r = (struct kv_gpu_room){0};
    if (kv_device_alloc(&r->p, want, e))
        return -1;
    r->bytes = want;
    return 0;
}

/* A launch leaves its counters at zero. */
static int want_counters(struct kv_gpu_attend *a, size_t bytes,
                         struct kv_err *e)
{
    if (bytes <= a->counters.bytes)
        return 0;
    return kv_gpu_room_want(&a->counters, bytes, e) ||
           kv_device_zero(a->counters.p, a->counters.bytes, e);
}

static void point(struct kv_gpu_attend *a, size_t n_work)
{
    struct kv_decode *p = &a->launch.p;

    a->launch.n_work = n_work;
    a->launch.n_sequences = a->n_jobs;
    p->sequences = a->device_plan.p;
    p->work = a->device_work.p;
    p->q = a->q.p;
    p->out = a->out.p;
    p->enter = a->space[0];
    p->leave = a->space[1];
    p->parts = a->parts.p;
    p->counters = a->counters.p;
}

int kv_gpu_attend_plan(struct kv_gpu_attend *a, struct kv_err *e)
{
    const size_t rows = a->n_heads / a->n_kv_heads * a->nq;
    const size_t groups = (rows + 7) / 8;
    struct cutting c = {.max = piece_tiles(a)};
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

    rc = kv_gpu_room_want(&a->device_plan, a->n_jobs * sizeof(*a->plan), e) ||
         kv_device_upload(a->device_plan.p, a->plan,
                          a->n_jobs * sizeof(*a->plan), e) ||
         kv_gpu_room_want(&a->device_work, c.n_work * sizeof(*c.work), e) ||
         kv_device_upload(a->device_work.p, c.work, c.n_work * sizeof(*c.work),
                          e) ||
         kv_gpu_room_want(&a->q, in_out, e) ||
         kv_gpu_room_want(&a->out, in_out, e) ||
         kv_gpu_room_want(&a->parts, c.n_work * a->n_kv_heads * part, e) ||
         want_counters(a, n_counters * sizeof(unsigned), e) || send_slots(a, e);
    free(c.work);
    point(a, c.n_work);
    return rc ? -1 : 0;
}
