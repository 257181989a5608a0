#include "kernels/cuda/encode.h"
#include "lib/base/alloc.h"

#include <stdlib.h>

struct kv_gpu_encoder {
    struct kv_gpu_code code; /* its arrays are the device's */
    size_t multiprocessors;
    struct kv_gpu_room room;
    void *centers, *smooth;
};

static int check_groups(const struct kv_gpu_code *c,
                        const struct kv_device *device, struct kv_err *e)
{
    const size_t shared = kv_gpu_groups_shared(c);

    if (shared <= device->shared)
        return 0;
    return kv_fail(e,
                   "groups of %zu values in units of %zu take %zu bytes of "
                   "shared memory, a block of %s has %zu",
                   c->groups.len, c->groups.unit, shared, device->name,
                   device->shared);
}

static int send(void **to, const float *from, size_t n, struct kv_err *e)
{
    return kv_device_alloc(to, n * sizeof(*from), e) ||
           kv_device_upload(*to, from, n * sizeof(*from), e);
}

/* A float a value where there is a transform, a code where it is no byte. */
static int make_room(struct kv_gpu_encoder *c, size_t tokens, struct kv_err *e)
{
    const struct kv_gpu_vectors *v = &c->code.vectors;
    const size_t values = tokens * c->code.n_heads * c->code.head_dim;

    return ((v->smooth || v->hadamard) &&
            kv_device_alloc((void **)&c->room.x, values * sizeof(float), e)) ||
           (v->bits != 8 &&
            kv_device_alloc((void **)&c->room.code,
                            values / v->d * sizeof(uint16_t), e));
}

static int open_vectors(struct kv_gpu_encoder *c, size_t most, struct kv_err *e)
{
    struct kv_gpu_vectors *v = &c->code.vectors;

    if (send(&c->centers, v->centers,
             v->head_books * v->sub_books * v->k * v->d, e) ||
        (v->smooth &&
         send(&c->smooth, v->smooth, c->code.n_heads * c->code.head_dim, e)) ||
        make_room(c, most * c->code.block, e))
        return -1;
    v->centers = c->centers;
    v->smooth = c->smooth;
    return 0;
}

int kv_gpu_encoder_new(struct kv_gpu_encoder **out,
                       const struct kv_gpu_code *code, size_t most,
                       const struct kv_device *device, struct kv_err *e)
{
    struct kv_gpu_encoder *c;

    if (code->head_dim % 2)
        return kv_fail(e, "no CUDA kernel for heads of %zu values",
                       code->head_dim);
    c = kv_alloc(1, sizeof(*c));
    c->code = *code;
    c->multiprocessors = device->multiprocessors;
    if (code->coding == KV_GPU_GROUPS ? check_groups(code, device, e)
                                      : open_vectors(c, most, e)) {
        kv_gpu_encoder_free(c);
        return -1;
    }
    *out = c;
    return 0;
}

void kv_gpu_encoder_free(struct kv_gpu_encoder *c)
{
    if (!c)
        return;
    kv_device_free(c->room.x);
    kv_device_free(c->room.code);
    kv_device_free(c->centers);
    kv_device_free(c->smooth);
    free(c);
}

int kv_gpu_encode(struct kv_gpu_encoder *c, const struct kv_gpu_blocks *b,
                  struct kv_err *e)
{
    if (!b->n)
        return 0;
    if (c->code.coding == KV_GPU_GROUPS)
        return kv_gpu_encode_groups(&c->code, b, e);
    return kv_gpu_encode_vectors(&c->code, b, &c->room, c->multiprocessors, e);
}
