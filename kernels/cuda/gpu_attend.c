#include "kernels/cuda/dequantize.h"
#include "kernels/cuda/gpu_attend_impl.h"
#include "kernels/cuda/views.h"
#include "kernels/hack/layout.h"
#include "lib/base/alloc.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { DECODE_QUERIES = 8 };

static void keep_stores(struct kv_gpu_attend *a)
{
    for (int side = 0; side < 2; side++) {
        a->store[side] = *a->side[side].store;
        a->store[side].tiles = NULL;
        a->side[side].store = &a->store[side];
    }
}

static struct kv_gpu_launch launch_of(const struct kv_gpu_attend *a,
                                      const struct kv_tiles_job *j)
{
    return (struct kv_gpu_launch){
        .p = {.group = (unsigned)(a->n_heads / a->n_kv_heads),
              .nq = (unsigned)a->nq,
              .scale = j->view.scale * (float)M_LOG2E},
        .prefill = a->nq > DECODE_QUERIES,
        .n_sequences = a->n_jobs,
        .n_kv_heads = a->n_kv_heads,
        .head_dim = a->head_dim,
        .seed = j->seed,
        .k = &a->side[0],
        .v = &a->side[1],
        .max_shared = a->device.shared,
    };
}

/* Whether the family supports both sides. */
static bool open_both(struct kv_gpu_attend *a, const struct kv_tiles_job *j,
                      const struct kv_gpu_family *family, enum kv_path path)
{
    bool has = true;

    for (int side = 0; side < 2; side++)
        a->side[side] = (struct kv_gpu_side){
            .store = kv_gpu_job_store(j, side, KV_JOB_CODES),
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

/* Measures a launch's shared memory; fails naming the shape that the family has
 * no kernel for. */
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
                   kv_gpu_job_store(j, 0, KV_JOB_CODES)->family->name,
                   kv_gpu_job_store(j, 1, KV_JOB_CODES)->family->name);
}

/* Finds the first family that supports both sides and has a kernel for them.
 * Fails with the message of the first family that knows these codes. */
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

/* Whether values can be read from the codes; HACK's codes are only
 * multiplied. */
static bool has_values(const struct kv_tiles_job *j)
{
    return kv_gpu_job_store(j, 0, KV_JOB_CODES)->family != &kv_family_hack;
}

/* Picks tiles of the generic kernel, with this family's launch. */
static int find_generic(struct kv_gpu_attend *a, const struct kv_tiles_job *j,
                        const struct kv_gpu_family *family, struct kv_err *e)
{
    if ((family != &kv_gpu_generic_tiles && !has_values(j)) ||
        !open_both(a, j, &kv_gpu_generic_tiles, KV_PATH_EXACT))
        return fail_both(j, e);
    a->family = family;
    keep_stores(a);
    return measure(a, j, family, e);
}

/* Bytes that a tile of codes of these jobs owns, at most. */
static size_t max_owned(const struct kv_tiles_job *jobs, size_t n_jobs,
                        int side)
{
    size_t max = 0;

    for (size_t j = 0; j < n_jobs; j++) {
        const struct kv_store *s =
            kv_gpu_job_store(&jobs[j], side, KV_JOB_CODES);

        if (!s->family->owned ||
            (j && s == kv_gpu_job_store(&jobs[j - 1], side, KV_JOB_CODES)))
            continue;
        for (size_t h = 0; h < kv_store_heads(s); h++)
            for (size_t i = 0; i < kv_store_tiles(s); i++) {
                const size_t owned =
                    s->family->owned(s, kv_store_tile(s, h, i));

                max = owned > max ? owned : max;
            }
    }
    return max;
}

int kv_gpu_attend_reopen(struct kv_gpu_attend *a,
                         const struct kv_tiles_job *jobs, size_t n_jobs,
                         struct kv_err *e)
{
    kv_gpu_attend_free_tables(a);
    for (int side = 0; side < 2; side++) {
        const size_t more = a->owned[side] + a->owned[side] / 4;

        a->owned[side] = kv_max(max_owned(jobs, n_jobs, side), more);
    }
    return find_family(a, jobs, a->asked, e) ||
                   kv_gpu_attend_send_tables(a, jobs, e)
               ? -1
               : 0;
}

/* Makes an object for the caches of these jobs, which are not yet on the
 * device. */
static struct kv_gpu_attend *begin(const struct kv_device *device,
                                   const struct kv_tiles_job *jobs,
                                   size_t n_jobs)
{
    struct kv_gpu_attend *a = kv_alloc(1, sizeof(*a));

    *a = (struct kv_gpu_attend){
        .device = *device,
        .n_jobs = n_jobs,
        .n_heads = jobs->view.n_heads,
        .n_kv_heads = jobs->view.n_kv_heads,
        .head_dim = jobs->view.head_dim,
        .nq = jobs->view.nq,
        .owned = {max_owned(jobs, n_jobs, 0), max_owned(jobs, n_jobs, 1)}};
    a->plan = kv_alloc(n_jobs, sizeof(*a->plan));
    a->held = kv_alloc(n_jobs, sizeof(*a->held));
    memset(a->plan, 0, n_jobs * sizeof(*a->plan));
    memset(a->held, 0, n_jobs * sizeof(*a->held));
    return a;
}

int kv_gpu_attend_takes(const struct kv_tiles_job *j, struct kv_err *e)
{
    const size_t k = kv_gpu_job_store(j, 0, KV_JOB_SINKS)->n;
    const size_t v = kv_gpu_job_store(j, 1, KV_JOB_SINKS)->n;

    if (!kv_gpu_plain_takes(&j->view))
        return kv_gpu_plain_fail(e);
    return k == v ? 0
                  : kv_fail(e,
                            "no CUDA kernel where keys have %zu sinks and "
                            "values %zu",
                            k, v);
}

/* The remaining setup, after the family is found. */
static int finish(struct kv_gpu_attend *a, const struct kv_tiles_job *jobs,
                  bool dequant, struct kv_err *e)
{
    if (kv_gpu_attend_takes(jobs, e))
        return -1;
    for (size_t j = 0; j < a->n_jobs; j++) {
        if (kv_gpu_attend_takes(&jobs[j], e))
            return -1;
        kv_gpu_attend_split(a, &jobs[j], &a->plan[j]);
    }
    return kv_gpu_attend_send_tables(a, jobs, e) ||
                   kv_gpu_attend_send(a, jobs, e) ||
                   (dequant && kv_gpu_attend_halves(a, e)) ||
                   (a->n_jobs && kv_gpu_attend_plan(a, e))
               ? -1
               : 0;
}

/* Finishes a, or frees it if a step failed; rc: the result of the step
 * before. */
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

    a->asked = path;
    a->grows = !n_jobs;
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

/* Copies a run, with its tiles repeated `times` times. */
static int copy_run(struct kv_gpu_attend *to, const struct kv_gpu_attend *from,
                    size_t job, int r, int side, size_t times, struct kv_err *e)
{
    struct kv_gpu_run *run = &to->plan[job].run[r];
    size_t *const apart = side ? &run->v_head : &run->k_head;
    const uint8_t *const tiles = from->held[job].tiles[side][r];
    const size_t bytes = *apart, heads = kv_gpu_run_heads(from, r, side);
    void *copy;

    *apart *= times;
    if (kv_device_alloc(&copy, *apart * heads, e))
        return -1;
    to->held[job].tiles[side][r] = copy;
    to->bytes += *apart * heads;
    *(side ? &run->v : &run->k) = copy;
    for (size_t i = 0; bytes && i < heads * times; i++)
        if (kv_device_copy((uint8_t *)copy + i * bytes,
                           tiles + i / times * bytes, bytes, e))
            return -1;
    return 0;
}

/* Fails unless all sequences are codes in whole tiles, which can be repeated,
 * with one query each. */
static int check_repeats(const struct kv_gpu_attend *a, size_t times,
                         struct kv_err *e)
{
    if (a->nq != 1)
        return kv_fail(e,
                       "%zu queries of a sequence, and only for one tokens "
                       "are repeated",
                       a->nq);
    for (size_t j = 0; j < a->n_jobs; j++) {
        if (a->plan[j].n % KV_GPU_TILE || a->plan[j].n > UINT32_MAX / times)
            return kv_fail(e,
                           "%u tokens are repeated %zu times: expected a "
                           "multiple of %d, and fewer than 2^32 in all",
                           a->plan[j].n, times, KV_GPU_TILE);
        if (a->plan[j].run[KV_RUN_CODES].n != a->plan[j].n)
            return kv_fail(e,
                           "%zu of %u tokens are not codes, and only codes are "
                           "repeated",
                           (size_t)a->plan[j].n -
                               a->plan[j].run[KV_RUN_CODES].n,
                           a->plan[j].n);
    }
    return a->side[0].behind || a->side[1].behind
               ? kv_fail(e,
                         "codes of family %s have data behind their tiles, "
                         "which is not repeated",
                         a->family->name)
               : 0;
}

static int copy_sequences(struct kv_gpu_attend *to,
                          const struct kv_gpu_attend *from, size_t times,
                          struct kv_err *e)
{
    for (size_t j = 0; j < to->n_jobs; j++) {
        struct kv_gpu_sequence *p = &to->plan[j];

        for (int r = 0; r < KV_GPU_RUNS; r++)
            if (copy_run(to, from, j, r, 0, times, e) ||
                copy_run(to, from, j, r, 1, times, e))
                return -1;
        p->n *= (unsigned)times;
        p->run[KV_RUN_CODES].n *= (unsigned)times;
    }
    return 0;
}

int kv_gpu_attend_copy(struct kv_gpu_attend **out,
                       const struct kv_gpu_attend *from, size_t times,
                       struct kv_err *e)
{
    struct kv_gpu_attend *a;

    assert(!from->coded && !from->grows);
    if (times > 1 && check_repeats(from, times, e))
        return -1;
    a = kv_alloc(1, sizeof(*a));
    *a = *from;
    a->copied = true;
    a->bytes = 0;
    a->device_plan = a->device_work = a->slots = (struct kv_gpu_room){0};
    a->q = a->out = a->parts = a->counters = (struct kv_gpu_room){0};
    keep_stores(a);
    a->launch.k = &a->side[0];
    a->launch.v = &a->side[1];
    a->plan = kv_alloc(a->n_jobs, sizeof(*a->plan));
    memcpy(a->plan, from->plan, a->n_jobs * sizeof(*a->plan));
    a->held = kv_alloc(a->n_jobs, sizeof(*a->held));
    memset(a->held, 0, a->n_jobs * sizeof(*a->held));
    if (copy_sequences(a, from, times, e) || kv_gpu_attend_plan(a, e)) {
        kv_gpu_attend_free(a);
        return -1;
    }
    *out = a;
    return 0;
}

void kv_gpu_attend_free(struct kv_gpu_attend *a)
{
    if (!a)
        return;
    for (size_t j = 0; j < a->n_jobs; j++)
        kv_gpu_held_free(&a->held[j]);
    if (!a->copied)
        kv_gpu_attend_free_tables(a);
    kv_device_free(a->slots.p);
    kv_device_free(a->coded);
    kv_device_free(a->device_plan.p);
    kv_device_free(a->device_work.p);
    kv_device_free(a->q.p);
    kv_device_free(a->out.p);
    kv_device_free(a->parts.p);
    kv_device_free(a->counters.p);
    free(a->plan);
    free(a->held);
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
    return kv_device_upload(a->q.p, q, rows_bytes(a), e);
}

int kv_gpu_attend_answer(struct kv_gpu_attend *a, float *out, struct kv_err *e)
{
    return kv_device_download(out, a->out.p, rows_bytes(a), e);
}

void kv_gpu_attend_use(struct kv_gpu_attend *a, const float *q, float *out)
{
    a->launch.p.q = q;
    a->launch.p.out = out;
}

const struct kv_gpu_slot *kv_gpu_attend_slots(const struct kv_gpu_attend *a)
{
    return a->slots.p;
}

static int widen(struct kv_gpu_attend *a, struct kv_err *e)
{
    size_t max = 0;

    for (size_t j = 0; j < a->n_jobs; j++) {
        const size_t tiles = kv_gpu_run_tiles(&a->plan[j].run[KV_RUN_CODES]);

        max = tiles > max ? tiles : max;
    }
    return kv_gpu_dequantize(&a->side[0], &a->side[1], a->coded,
                             a->device_plan.p, a->n_jobs, a->n_kv_heads, max,
                             e);
}

int kv_gpu_attend_launch(struct kv_gpu_attend *a, struct kv_err *e)
{
    if (a->coded && widen(a, e))
        return -1;
    return a->family->launch(&a->launch, e);
}
