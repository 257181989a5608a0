#include "lib/codec_gpu.h"
#include "kernels/cuda/coder.h"
#include "lib/base/alloc.h"
#include "lib/base/half.h"

#include <stdlib.h>

/* Values on the device at a time, but one block at least. */
enum { MAX_VALUES = 1 << 20 };

struct kv_codec_gpu {
    const struct kv_codec *codec;
    struct kv_gpu_coder *coder;
    size_t max_blocks; /* at a time */
    void *x;           /* halves to encode, or floats that were decoded */
    void *bytes, *workspace;
};

bool kv_codec_gpu_code(const struct kv_codec *c, struct kv_gpu_code *code)
{
    *code = (struct kv_gpu_code){.n_heads = c->shape.n_kv_heads,
                                 .head_dim = c->shape.head_dim,
                                 .block = c->block,
                                 .block_bytes = c->block_bytes};
    return c->scheme->device && c->scheme->device(c, code);
}

int kv_codec_gpu_new(struct kv_codec_gpu **out, const struct kv_codec *c,
                     const struct kv_device *device, struct kv_err *e)
{
    const size_t fit = MAX_VALUES / kv_codec_block_values(c);
    struct kv_codec_gpu *g;
    struct kv_gpu_code code;

    if (!kv_codec_gpu_code(c, &code))
        return kv_fail(e, "%s: no CUDA kernel that encodes %c", c->spec.text,
                       kv_side_name(c->side));
    g = kv_alloc(1, sizeof(*g));
    g->codec = c;
    g->max_blocks = fit ? fit : 1;
    if (kv_gpu_coder_new(&g->coder, &code, device, e) ||
        kv_device_alloc(
            &g->x, g->max_blocks * kv_codec_block_values(c) * sizeof(float),
            e) ||
        kv_device_alloc(&g->bytes, g->max_blocks * c->block_bytes, e) ||
        kv_device_alloc(&g->workspace,
                        kv_gpu_encode_workspace(g->coder, g->max_blocks), e)) {
        kv_codec_gpu_free(g);
        return kv_fail_in(e, "%s", c->spec.text);
    }
    *out = g;
    return 0;
}

void kv_codec_gpu_free(struct kv_codec_gpu *g)
{
    if (!g)
        return;
    kv_gpu_coder_free(g->coder);
    kv_device_free(g->x);
    kv_device_free(g->bytes);
    kv_device_free(g->workspace);
    free(g);
}

static int encode(struct kv_codec_gpu *g, struct kv_where w, const uint16_t *x,
                  size_t n, uint8_t *bytes, struct kv_err *e)
{
    const size_t values = n * kv_codec_block_values(g->codec);
    const struct kv_gpu_blocks b = {.x = g->x,
                                    .bytes = g->bytes,
                                    .n = n,
                                    .first = w.first,
                                    .seed = w.seed,
                                    .room = g->workspace};

    return kv_device_upload(g->x, x, values * sizeof(*x), e) ||
           kv_gpu_encode(g->coder, &b, e) ||
           kv_device_download(bytes, g->bytes, n * g->codec->block_bytes, e);
}

int kv_codec_gpu_encode(struct kv_codec_gpu *g, struct kv_where w,
                        const float *x, size_t n_blocks, uint8_t *bytes,
                        struct kv_err *e)
{
    const size_t values = kv_codec_block_values(g->codec);
    const size_t n = n_blocks < g->max_blocks ? n_blocks : g->max_blocks;
    uint16_t *half = kv_alloc(n * values, sizeof(*half));
    int rc = 0;

    for (size_t i = 0; i < n_blocks && !rc; i += g->max_blocks) {
        const size_t left = n_blocks - i,
                     take = left < g->max_blocks ? left : g->max_blocks;

        for (size_t j = 0; j < take * values; j++)
            half[j] = kv_f32_to_f16(x[i * values + j]);
#pragma omp critical(kv_codec_gpu)
        rc = encode(g, w, half, take, bytes + i * g->codec->block_bytes, e);
        w.first += take * g->codec->block;
    }
    free(half);
    return rc ? -1 : 0;
}

static int decode(struct kv_codec_gpu *g, const uint8_t *bytes, size_t n,
                  float *x, struct kv_err *e)
{
    const size_t values = n * kv_codec_block_values(g->codec);

    return kv_device_upload(g->bytes, bytes, n * g->codec->block_bytes, e) ||
           kv_gpu_decode(g->coder, g->bytes, n, g->x, e) ||
           kv_device_download(x, g->x, values * sizeof(*x), e);
}

int kv_codec_gpu_decode(struct kv_codec_gpu *g, const uint8_t *bytes,
                        size_t n_blocks, float *x, struct kv_err *e)
{
    int rc = 0;

    for (size_t i = 0; i < n_blocks && !rc; i += g->max_blocks) {
        const size_t left = n_blocks - i,
                     take = left < g->max_blocks ? left : g->max_blocks;

#pragma omp critical(kv_codec_gpu)
        rc = decode(g, bytes + i * g->codec->block_bytes, take,
                    x + i * kv_codec_block_values(g->codec), e);
    }
    return rc ? -1 : 0;
}
