/* The encoder of trellis.h: one step in plain C, all steps, the way back. */
#include "kernels/level.h"
#include "kernels/trellis_impl.h"

#include <math.h>
#include <string.h>

enum { STATES = KV_TRELLIS_STATES, AT_ONCE = KV_TRELLIS_AT_ONCE };

/* The cost of string i's best path to this state. */
static float cost(const struct kv_trellis_job *job, size_t i, size_t state)
{
    const struct kv_trellis_step *step = job->step;
    const float *x = job->x + i * job->x_stride;
    float c =
        job->least[i * kv_trellis_row(step->bits) + (state >> step->bits)];

    for (size_t v = 0; v < step->values; v++) {
        const float d = fmaf(-job->scale[v], step->table[v * STATES + state],
                             x[job->place[v]]);

        c = fmaf(d, d, c);
    }
    return c;
}

static void advance(const struct kv_trellis_job *job)
{
    const size_t groups = STATES >> job->next;
    float *to = job->to;

    for (size_t i = 0; i < job->n; i++, to += kv_trellis_row(job->next))
        for (size_t s = 0; s < STATES; s++) {
            const float c = cost(job, i, s);

            if (s < groups || c < to[s % groups])
                to[s % groups] = c;
        }
}

static void go_back(const struct kv_trellis_job *job, const uint16_t *after,
                    uint16_t *state)
{
    const size_t groups = STATES >> job->next;

    for (size_t i = 0; i < job->n; i++) {
        const size_t r = (size_t)after[i] >> job->next;
        const float least = job->to[i * kv_trellis_row(job->next) + r];
        size_t s = r;

        while (cost(job, i, s) != least && s + groups < STATES)
            s += groups;
        state[i] = (uint16_t)s;
    }
}

const struct kv_trellis_search kv_trellis_search_c = {advance, go_back};

static const struct kv_trellis_search *best_level(void)
{
#ifdef __x86_64__
    if (kv_level_get() >= KV_LEVEL_AVX512)
        return &kv_trellis_search_avx512;
    if (kv_level_get() >= KV_LEVEL_AVX2)
        return &kv_trellis_search_avx2;
#endif
    return &kv_trellis_search_c;
}

/* Floats of costs of a string: a row before the first step, one after each. */
static size_t all_rows(const struct kv_trellis_step *step, size_t n_steps)
{
    size_t n = kv_trellis_row(KV_TRELLIS_BITS);

    for (size_t k = 0; k < n_steps; k++)
        n += kv_trellis_row(step[k].bits);
    return n;
}

size_t kv_trellis_scratch(const struct kv_trellis_step *step, size_t n_steps,
                          size_t n)
{
    return (n < AT_ONCE ? n : AT_ONCE) * all_rows(step, n_steps) *
               sizeof(float) +
           AT_ONCE * ((n_steps + 1) * sizeof(uint16_t) +
                      kv_trellis_bytes(step, n_steps));
}

/* The best paths of the job's strings, from step 0 on.  rows: [all_rows()][n];
 * state: [n_steps + 1][AT_ONCE], of which those after the end are 0. */
static void find_paths(struct kv_trellis_job job, size_t n_steps, float *rows,
                       uint16_t *state)
{
    const struct kv_trellis_search *const search = best_level();
    const struct kv_trellis_step *const step = job.step;

    for (size_t i = 0; i < job.n; i++)
        for (size_t r = 0; r < (size_t)STATES >> step->bits; r++)
            rows[i * kv_trellis_row(step->bits) + r] = r ? INFINITY : 0;
    for (size_t k = 0; k < n_steps; k++, job.step++) {
        job.next = k + 1 < n_steps ? step[k + 1].bits : KV_TRELLIS_BITS;
        job.least = rows;
        rows += job.n * kv_trellis_row(step[k].bits);
        job.to = rows;
        search->advance(&job);
        job.place += step[k].values;
        job.scale += step[k].values;
    }
    job.next = KV_TRELLIS_BITS;
    for (size_t k = n_steps; k-- > 0;) {
        job.step--;
        job.to = rows;
        rows -= job.n * kv_trellis_row(step[k].bits);
        job.least = rows;
        job.place -= step[k].values;
        job.scale -= step[k].values;
        search->go_back(&job, state + (k + 1) * AT_ONCE, state + k * AT_ONCE);
        job.next = step[k].bits;
    }
}

/* The strings of paths, state [n_steps][AT_ONCE], byte after byte: bytes [size]
 * [AT_ONCE].  A byte has the last bits of one state and, where those are not
 * all, of the one before; what both have is the same. */
static void make_bytes(const struct kv_trellis_step *step, size_t n_steps,
                       const uint16_t *state, size_t size, uint8_t *bytes)
{
    const struct kv_trellis_step *const last = step + n_steps - 1;
    size_t end = step->bits, before = 0; /* bits up to a step and to its last */
    const uint16_t *s = state, *t = state;

    for (size_t want = 8; want <= 8 * size; want += 8, bytes += AT_ONCE) {
        for (; end < want && step < last; s += AT_ONCE) {
            before = end;
            end += (++step)->bits;
            t = s;
        }
        for (size_t i = 0; i < AT_ONCE; i++)
            bytes[i] =
                end < want
                    ? (uint8_t)(s[i] << (want - end))
                    : (uint8_t)(s[i] >> (end - want) | t[i] << (want - before));
    }
}

void kv_trellis_encode(const struct kv_trellis_step *step, size_t n_steps,
                       const float *x, size_t x_stride, const uint32_t *place,
                       const float *scale, size_t n, void *scratch,
                       uint8_t *bytes, size_t stride)
{
    const size_t size = kv_trellis_bytes(step, n_steps);
    const size_t room = all_rows(step, n_steps);

    for (size_t i = 0; n_steps && i < n; i += AT_ONCE) {
        const size_t m = n - i < AT_ONCE ? n - i : AT_ONCE;
        float *const rows = scratch;
        uint16_t *const state = (void *)(rows + m * room);
        uint8_t *const made = (void *)(state + (n_steps + 1) * AT_ONCE);

        memset(state, 0, (n_steps + 1) * AT_ONCE * sizeof(*state));
        find_paths((struct kv_trellis_job){.step = step,
                                           .n = m,
                                           .x = x + i * x_stride,
                                           .x_stride = x_stride,
                                           .place = place,
                                           .scale = scale},
                   n_steps, rows, state);
        make_bytes(step, n_steps, state, size, made);
        for (size_t j = 0; j < m; j++)
            for (size_t b = 0; b < size; b++)
                bytes[(i + j) * stride + b] = made[b * AT_ONCE + j];
    }
}
