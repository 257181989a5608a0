/* Runs a codec's encode() and decode() on a backend; the arrays are in host
 * memory. */
#include "lib/codec_place.h"
#include "kernels/backend.h"
#include "kernels/device_code.h"
#include "lib/base/alloc.h"
#include "lib/codec_impl.h"
#include "lib/scheme.h"

#include <stdlib.h>

/* The maximum number of values on the backend at a time, but at least one
 * block. */
enum { MAX_VALUES = 1 << 20 };

struct kv_codec_place {
    const struct kv_backend *b;
    struct kv_coder *coder;
    size_t max_blocks; /* at a time */
    struct kv_workspace x, bytes;
};

bool kv_codec_code(const struct kv_codec *c, struct kv_gpu_code *code)
{
    *code = (struct kv_gpu_code){.n_heads = c->shape.n_kv_heads,
                                 .head_dim = c->shape.head_dim,
                                 .block = c->block,
                                 .block_bytes = c->block_bytes};
    return !c->layered && kv_codec_codes_alone(c) && c->scheme->device &&
           c->scheme->device(c, code);
}

int kv_codec_place(struct kv_codec *c, const struct kv_backend *b,
                   struct kv_err *e)
{
    const size_t values = kv_codec_block_values(c), fit = MAX_VALUES / values;
    struct kv_codec_place *p;
    struct kv_gpu_code code;

    if (!kv_codec_code(c, &code))
        return kv_fail(e, "%s: no CUDA kernel that encodes %c", c->spec.text,
                       kv_side_name(c->side));
    p = kv_alloc(1, sizeof(*p));
    p->b = b;
    p->max_blocks = fit ? fit : 1;
    if (b->coder_new(b, &p->coder, &code, e) ||
        kv_workspace_want(b, &p->x, p->max_blocks * values * sizeof(float),
                          e) ||
        kv_workspace_want(b, &p->bytes, p->max_blocks * c->block_bytes, e)) {
        kv_codec_place_free(p);
        return kv_fail_in(e, "%s", c->spec.text);
    }
    c->place = p;
    return 0;
}

void kv_codec_place_free(struct kv_codec_place *p)
{
    if (!p)
        return;
    p->b->coder_free(p->coder);
    kv_workspace_clear(p->b, &p->x);
    kv_workspace_clear(p->b, &p->bytes);
    free(p);
}

int kv_codec_place_encode(const struct kv_codec *c, struct kv_where w,
                          const float *x, size_t n, uint8_t *bytes,
                          struct kv_err *e)
{
    struct kv_codec_place *p = c->place;
    const size_t values = kv_codec_block_values(c);
    int rc = 0;

    for (size_t i = 0, take; i < n && !rc; i += take) {
        take = n - i < p->max_blocks ? n - i : p->max_blocks;

        const struct kv_encode job = {.x = p->x.p,
                                      .at = w.first + i * c->block,
                                      .n = take * c->block,
                                      .n_blocks = take,
                                      .seed = w.seed,
                                      .bytes = p->bytes.p};

#pragma omp critical(kv_codec_place)
        rc = p->b->upload(p->x.p, x + i * values, take * values * sizeof(*x),
                          e) ||
             p->b->encode(p->b, p->coder, &job, e) ||
             p->b->download(bytes + i * c->block_bytes, p->bytes.p,
                            take * c->block_bytes, e);
    }
    return rc ? -1 : 0;
}

int kv_codec_place_decode(const struct kv_codec *c, const uint8_t *bytes,
                          size_t n, float *x, struct kv_err *e)
{
    struct kv_codec_place *p = c->place;
    const size_t values = kv_codec_block_values(c);
    int rc = 0;

    for (size_t i = 0, take; i < n && !rc; i += take) {
        take = n - i < p->max_blocks ? n - i : p->max_blocks;
#pragma omp critical(kv_codec_place)
        rc = p->b->upload(p->bytes.p, bytes + i * c->block_bytes,
                          take * c->block_bytes, e) ||
             p->b->decode(p->coder, p->bytes.p, take, p->x.p, e) ||
             p->b->download(x + i * values, p->x.p, take * values * sizeof(*x),
                            e);
    }
    return rc ? -1 : 0;
}
