#include "eval/append_gpu.h"
#include "eval/attn_gpu.h"
#include "eval/timing.h"
#include "kernels/cuda/coder.h"
#include "lib/base/alloc.h"
#include "lib/base/half.h"
#include "lib/codec_gpu.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* One side's blocks on the device. */
struct blocks {
    struct kv_gpu_coder *coder;
    struct kv_gpu_blocks b;
    void *x, *bytes, *room;
};

struct append {
    const struct kv_append_gpu *plan;
    struct blocks side[KV_SIDES];
};

static size_t sequence_values(const struct kv_append_gpu *a)
{
    const struct kv_shape *s = &a->codec[KV_K]->shape;

    return a->n * s->n_kv_heads * s->head_dim;
}

static bool can(const struct kv_append_gpu *a)
{
    for (int side = 0; side < KV_SIDES; side++) {
        struct kv_gpu_code code;

        if (!kv_codec_gpu_code(a->codec[side], &code) ||
            a->n < a->codec[side]->block)
            return false;
    }
    return true;
}

/* The first block of sequence b, as it enters a cache. */
static void input(const struct kv_append_gpu *a, int side, size_t b, float *x)
{
    const struct kv_codec *c = a->codec[side];

    kv_codec_input(c, a->x[side] + b * sequence_values(a), c->block, x);
}

static int send(const struct kv_append_gpu *a, int side, struct blocks *to,
                struct kv_err *e)
{
    const struct kv_codec *c = a->codec[side];
    const size_t values = kv_codec_block_values(c), n = a->n_batch * a->copies;
    float *x = kv_alloc(values, sizeof(*x));
    uint16_t *half = kv_alloc(n * values, sizeof(*half));
    struct kv_gpu_code code;
    int rc;

    kv_codec_gpu_code(c, &code);
    for (size_t i = 0; i < n; i++) {
        input(a, side, i % a->n_batch, x);
        for (size_t j = 0; j < values; j++)
            half[i * values + j] = kv_f32_to_f16(x[j]);
    }
    rc = kv_gpu_coder_new(&to->coder, &code, a->device, e) ||
         kv_device_alloc(&to->room, kv_gpu_encode_room(to->coder, n), e) ||
         kv_device_alloc(&to->x, n * values * sizeof(*half), e) ||
         kv_device_upload(to->x, half, n * values * sizeof(*half), e) ||
         kv_device_alloc(&to->bytes, n * c->block_bytes, e);
    to->b = (struct kv_gpu_blocks){.x = to->x,
                                   .bytes = to->bytes,
                                   .n = n,
                                   .seed = a->seed,
                                   .room = to->room};
    free(half);
    free(x);
    return rc;
}

static int encode_in(struct append *a, void *stream, struct kv_err *e)
{
    for (int side = 0; side < KV_SIDES; side++) {
        a->side[side].b.stream = stream;
        if (kv_gpu_encode(a->side[side].coder, &a->side[side].b, e))
            return -1;
    }
    return 0;
}

static int encode(void *arg, struct kv_err *e)
{
    return encode_in(arg, NULL, e);
}

static int encode_in_line(void *arg, struct kv_err *e)
{
    const struct append *a = arg;

    return encode_in(arg, NULL, e) || kv_attn_gpu_launch(a->plan->attend, e);
}

static int encode_aside(void *arg, struct kv_err *e)
{
    const struct append *a = arg;
    void *stream;

    return kv_device_fork(&stream, e) || encode_in(arg, stream, e) ||
           kv_attn_gpu_launch(a->plan->attend, e) || kv_device_join(stream, e);
}

static int time_one(struct append *a, int (*once)(void *, struct kv_err *),
                    double *median, struct kv_err *e)
{
    const size_t reps = a->plan->reps;
    double *s = kv_alloc(reps, sizeof(*s));
    const int rc = kv_device_time(once, a, a->plan->warmup, reps, s, e);

    *median = rc ? NAN : kv_quantile(s, reps, 0.5);
    free(s);
    return rc;
}

/* Of the first sequence; random numbers go by the token, which is the first
 * block's alone to have. */
static int check(const struct append *a, int side, struct kv_err *e)
{
    const struct kv_codec *c = a->plan->codec[side];
    float *x = kv_alloc(kv_codec_block_values(c), sizeof(*x));
    uint8_t *want = kv_alloc(c->block_bytes, 1);
    uint8_t *got = kv_alloc(c->block_bytes, 1);
    int rc;

    input(a->plan, side, 0, x);
    c->scheme->encode(c, (struct kv_where){.seed = a->plan->seed}, x, 1, want);
    rc = kv_device_download(got, a->side[side].bytes, c->block_bytes, e);
    if (!rc && memcmp(want, got, c->block_bytes))
        rc = kv_fail(e, "%s %c: the device encodes other bytes than the CPU",
                     c->spec.text, kv_side_name(c->side));
    free(got);
    free(want);
    free(x);
    return rc;
}

int kv_append_gpu_time(const struct kv_append_gpu *plan,
                       struct kv_append_times *t, struct kv_err *e)
{
    struct append a = {.plan = plan};
    int rc;

    *t = (struct kv_append_times){NAN, NAN, NAN};
    if (!can(plan))
        return 0;
    rc = send(plan, KV_K, &a.side[KV_K], e) ||
         send(plan, KV_V, &a.side[KV_V], e) ||
         time_one(&a, encode, &t->encode, e) ||
         time_one(&a, encode_in_line, &t->in_line, e) ||
         time_one(&a, encode_aside, &t->aside, e) || check(&a, KV_K, e) ||
         check(&a, KV_V, e);
    for (int side = 0; side < KV_SIDES; side++) {
        kv_gpu_coder_free(a.side[side].coder);
        kv_device_free(a.side[side].x);
        kv_device_free(a.side[side].bytes);
        kv_device_free(a.side[side].room);
    }
    return rc ? -1 : 0;
}
