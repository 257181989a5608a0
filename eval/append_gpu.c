#include "eval/append_gpu.h"
#include "eval/attn_gpu.h"
#include "eval/timing.h"
#include "kernels/device_code.h"
#include "lib/base/alloc.h"
#include "lib/base/half.h"
#include "lib/codec_place.h"
#include "lib/scheme.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Blocks of one side of each sequence, on the device. */
struct blocks {
    struct kv_gpu_code code;
    struct kv_gpu_coder *coder;
    struct kv_gpu_blocks b;
    void *x, *bytes, *workspace;
    float *back; /* the decoded blocks */
};

struct append {
    const struct kv_append_gpu *plan;
    struct blocks side[KV_SIDES], tile[KV_SIDES];
};

static size_t row_values(const struct kv_append_gpu *a)
{
    const struct kv_shape *s = &a->codec[KV_K]->shape;

    return s->n_kv_heads * s->head_dim;
}

static bool gpu_can(const struct kv_append_gpu *a)
{
    for (int side = 0; side < KV_SIDES; side++) {
        struct kv_gpu_code code;

        if (!kv_codec_code(a->codec[side], &code) ||
            a->n < a->codec[side]->block)
            return false;
    }
    return true;
}

/* The first token of a sequence's newest tile, the same in all sequences; if
 * the cache repeats its tokens, the token's first occurrence.  SIZE_MAX: no
 * tile. */
static size_t newest(const struct kv_append_gpu *a)
{
    const struct kv_gpu_attend *attend = kv_attn_gpu_attend(a->attend);
    const size_t first = attend ? kv_gpu_attend_newest(attend, 0) : SIZE_MAX;

    return first == SIZE_MAX ? SIZE_MAX : first % a->n;
}

/* Whether the codes have tiles, and whole blocks fill a tile. */
static bool has_tiles(const struct kv_append_gpu *a)
{
    return newest(a) != SIZE_MAX && KV_GPU_TILE % a->codec[KV_K]->block == 0 &&
           KV_GPU_TILE % a->codec[KV_V]->block == 0;
}

/* Writes n tokens of sequence b from `first` on to x, as they enter a cache. */
static void input(const struct kv_append_gpu *a, int side, size_t b,
                  size_t first, size_t n, float *x)
{
    const struct kv_codec *c = a->codec[side];

    kv_codec_input(c, a->x[side] + (b * a->n + first) * row_values(a), n, x);
}

/* Sends the first block of each sequence, or its newest tile, to the device. */
static int send(const struct kv_append_gpu *a, int side, bool tile,
                struct blocks *to, struct kv_err *e)
{
    const struct kv_codec *c = a->codec[side];
    const size_t first = tile ? newest(a) : 0;
    const size_t tokens = tile ? KV_GPU_TILE : c->block,
                 n = a->n_batch * a->copies;
    const size_t values = tokens * row_values(a),
                 blocks = n * (tokens / c->block);
    float *x = kv_alloc(values, sizeof(*x));
    uint16_t *half = kv_alloc(n * values, sizeof(*half));
    int rc;

    kv_codec_code(c, &to->code);
    for (size_t i = 0; i < n; i++) {
        input(a, side, i % a->n_batch, first, tokens, x);
        for (size_t j = 0; j < values; j++)
            half[i * values + j] = kv_f32_to_f16(x[j]);
    }
    rc = kv_gpu_coder_new(&to->coder, &to->code, a->device, e) ||
         kv_device_alloc(&to->workspace,
                         kv_gpu_encode_workspace(to->coder, blocks), e) ||
         kv_device_alloc(&to->x, n * values * sizeof(*half), e) ||
         kv_device_upload(to->x, half, n * values * sizeof(*half), e) ||
         kv_device_alloc(&to->bytes, blocks * c->block_bytes, e) ||
         (tile &&
          kv_device_alloc((void **)&to->back, n * values * sizeof(float), e));
    to->b = (struct kv_gpu_blocks){.x = to->x,
                                   .bytes = to->bytes,
                                   .n = blocks,
                                   .first = first,
                                   .each = tokens / c->block,
                                   .seed = a->seed,
                                   .workspace = to->workspace};
    free(half);
    free(x);
    return rc;
}

static void gpu_clear(struct blocks *b)
{
    kv_gpu_coder_free(b->coder);
    kv_device_free(b->x);
    kv_device_free(b->bytes);
    kv_device_free(b->workspace);
    kv_device_free(b->back);
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

static int gpu_encode(void *arg, struct kv_err *e)
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

static int encode_tiles(struct append *a, struct kv_err *e)
{
    return kv_gpu_encode(a->tile[KV_K].coder, &a->tile[KV_K].b, e) ||
           kv_gpu_encode(a->tile[KV_V].coder, &a->tile[KV_V].b, e);
}

static int gpu_quantize(void *arg, struct kv_err *e)
{
    struct append *a = arg;
    struct kv_gpu_attend *attend = kv_attn_gpu_attend(a->plan->attend);

    if (encode_tiles(a, e))
        return -1;
    for (int side = 0; side < KV_SIDES; side++)
        if (kv_gpu_attend_append(attend, side, &a->tile[side].code,
                                 a->tile[side].bytes, e))
            return -1;
    return 0;
}

static int gpu_decode(void *arg, struct kv_err *e)
{
    const struct append *a = arg;

    for (int side = 0; side < KV_SIDES; side++) {
        const struct blocks *t = &a->tile[side];

        if (kv_gpu_decode(t->coder, t->bytes, t->b.n, t->back, e))
            return -1;
    }
    return 0;
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

/* Compares the bytes of the first sequence's block with the CPU's. */
static int gpu_check(const struct append *a, int side, struct kv_err *e)
{
    const struct kv_codec *c = a->plan->codec[side];
    float *x = kv_alloc(kv_codec_block_values(c), sizeof(*x));
    uint8_t *want = kv_alloc(c->block_bytes, 1);
    uint8_t *got = kv_alloc(c->block_bytes, 1);
    int rc;

    input(a->plan, side, 0, 0, c->block, x);
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

/* Compares the decoded values of the first sequence's tile with the CPU's. */
static int check_values(const struct append *a, int side, struct kv_err *e)
{
    const struct kv_codec *c = a->plan->codec[side];
    const size_t n = KV_GPU_TILE / c->block,
                 values = KV_GPU_TILE * row_values(a->plan);
    uint8_t *bytes = kv_alloc(n, c->block_bytes);
    float *want = kv_alloc(values, sizeof(*want));
    float *got = kv_alloc(values, sizeof(*got));
    int rc =
        kv_device_download(bytes, a->tile[side].bytes, n * c->block_bytes, e) ||
        kv_device_download(got, a->tile[side].back, values * sizeof(*got), e);

    c->scheme->decode(c, bytes, n, want);
    if (!rc && memcmp(want, got, values * sizeof(*got)))
        rc = kv_fail(e, "%s %c: the device decodes other values than the CPU",
                     c->spec.text, kv_side_name(c->side));
    free(got);
    free(want);
    free(bytes);
    return rc;
}

static int time_tiles(struct append *a, struct kv_append_times *t,
                      struct kv_err *e)
{
    const struct kv_append_gpu *plan = a->plan;
    const struct kv_gpu_code code[] = {a->side[KV_K].code, a->side[KV_V].code};
    const bool quantizes =
        kv_gpu_attend_can_append(kv_attn_gpu_attend(plan->attend), code);

    return send(plan, KV_K, true, &a->tile[KV_K], e) ||
           send(plan, KV_V, true, &a->tile[KV_V], e) || encode_tiles(a, e) ||
           (quantizes && (time_one(a, gpu_quantize, &t->quantize, e) ||
                          kv_attn_gpu_again(plan->attend, plan->out, e))) ||
           time_one(a, gpu_decode, &t->decode, e) || check_values(a, KV_K, e) ||
           check_values(a, KV_V, e);
}

int kv_append_gpu_time(const struct kv_append_gpu *plan,
                       struct kv_append_times *t, struct kv_err *e)
{
    struct append a = {.plan = plan};
    int rc;

    *t = (struct kv_append_times){NAN, NAN, NAN, NAN, NAN};
    if (!gpu_can(plan))
        return 0;
    rc = send(plan, KV_K, false, &a.side[KV_K], e) ||
         send(plan, KV_V, false, &a.side[KV_V], e) ||
         time_one(&a, gpu_encode, &t->encode, e) ||
         time_one(&a, encode_in_line, &t->in_line, e) ||
         time_one(&a, encode_aside, &t->aside, e) || gpu_check(&a, KV_K, e) ||
         gpu_check(&a, KV_V, e) || (has_tiles(plan) && time_tiles(&a, t, e));
    for (int side = 0; side < KV_SIDES; side++) {
        gpu_clear(&a.side[side]);
        gpu_clear(&a.tile[side]);
    }
    return rc ? -1 : 0;
}
