#include "eval/unfused.h"
#include "kernels/cuda/product.h"
#include "kernels/cuda/step.h"
#include "kernels/device.h"
#include "lib/base/alloc.h"

#include <stdlib.h>

struct kv_unfused {
    struct kv_shape shape;
    size_t batch, n;
    void *q, *scores; /* halves */
};

int kv_unfused_new(struct kv_unfused **out, const struct kv_shape *shape,
                   size_t batch, size_t n, struct kv_err *e)
{
    struct kv_unfused *u = kv_alloc(1, sizeof(*u));
    const size_t rows = batch * shape->n_heads;

    *u = (struct kv_unfused){.shape = *shape, .batch = batch, .n = n};
    if (kv_device_alloc(&u->q, rows * shape->head_dim * 2, e) ||
        kv_device_alloc(&u->scores, rows * n * 2, e)) {
        kv_unfused_free(u);
        return -1;
    }
    *out = u;
    return 0;
}

void kv_unfused_free(struct kv_unfused *u)
{
    if (!u)
        return;
    kv_device_free(u->q);
    kv_device_free(u->scores);
    free(u);
}

static size_t side_values(const struct kv_unfused *u)
{
    return u->batch * u->shape.n_kv_heads * u->n * u->shape.head_dim;
}

size_t kv_unfused_bytes(const struct kv_unfused *u)
{
    return 2 * side_values(u) * sizeof(uint16_t);
}

int kv_unfused_attend(const struct kv_unfused *u, const void *kv,
                      const float *q, void *out, struct kv_err *e)
{
    const struct kv_shape *s = &u->shape;
    const size_t d = s->head_dim, group = s->n_heads / s->n_kv_heads;
    const uint16_t *keys = kv;
    const struct kv_gpu_product scores = {.m = group,
                                          .n = u->n,
                                          .k = d,
                                          .a = u->q,
                                          .b = keys,
                                          .c = u->scores,
                                          .a_row = d,
                                          .b_row = d,
                                          .c_row = u->n,
                                          .batch = u->batch * s->n_kv_heads,
                                          .a_next = group * d,
                                          .b_next = u->n * d,
                                          .c_next = group * u->n};
    const struct kv_gpu_product gather = {.m = group,
                                          .n = d,
                                          .k = u->n,
                                          .a = u->scores,
                                          .b = keys + side_values(u),
                                          .c = out,
                                          .a_row = u->n,
                                          .b_row = d,
                                          .c_row = d,
                                          .batch = u->batch * s->n_kv_heads,
                                          .a_next = group * u->n,
                                          .b_next = u->n * d,
                                          .c_next = group * d,
                                          .turned = 1};

    return kv_gpu_narrow(q, u->batch * s->n_heads * d, u->q, e) ||
           kv_gpu_multiply(&scores, e) ||
           kv_gpu_softmax(u->scores, u->batch * s->n_heads, u->n, s->attn_scale,
                          e) ||
           kv_gpu_multiply(&gather, e);
}
