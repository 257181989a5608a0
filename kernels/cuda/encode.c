#include "kernels/cuda/encode.h"
#include "lib/base/alloc.h"

#include <stdlib.h>

struct kv_gpu_encoder {
    struct kv_gpu_code code;
};

static int check(const struct kv_gpu_code *c, const struct kv_device *device,
                 struct kv_err *e)
{
    const size_t shared = kv_gpu_groups_shared(c);

    if (c->head_dim % 2)
        return kv_fail(e, "no CUDA kernel for heads of %zu values",
                       c->head_dim);
    if (shared > device->shared)
        return kv_fail(e,
                       "groups of %zu values in units of %zu take %zu bytes of "
                       "shared memory, a block of %s has %zu",
                       c->groups.len, c->groups.unit, shared, device->name,
                       device->shared);
    return 0;
}

int kv_gpu_encoder_new(struct kv_gpu_encoder **out,
                       const struct kv_gpu_code *code,
                       const struct kv_device *device, struct kv_err *e)
{
    struct kv_gpu_encoder *c;

    if (check(code, device, e))
        return -1;
    c = kv_alloc(1, sizeof(*c));
    c->code = *code;
    *out = c;
    return 0;
}

void kv_gpu_encoder_free(struct kv_gpu_encoder *c)
{
    free(c);
}

int kv_gpu_encode(struct kv_gpu_encoder *c, const struct kv_gpu_blocks *b,
                  struct kv_err *e)
{
    if (!b->n)
        return 0;
    return kv_gpu_encode_groups(&c->code, b, e);
}
