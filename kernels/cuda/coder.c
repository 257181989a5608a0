#include "kernels/cuda/coder.h"
#include "lib/base/alloc.h"

#include <stdlib.h>

struct kv_gpu_coder {
    struct kv_gpu_code code; /* its arrays are the device's */
    size_t multiprocessors;
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

static int send_tables(struct kv_gpu_coder *c, struct kv_err *e)
{
    struct kv_gpu_vectors *v = &c->code.vectors;

    if (send(&c->centers, v->centers,
             v->head_books * v->sub_books * v->k * v->d, e) ||
        (v->smooth &&
         send(&c->smooth, v->smooth, c->code.n_heads * c->code.head_dim, e)))
        return -1;
    v->centers = c->centers;
    v->smooth = c->smooth;
    return 0;
}

int kv_gpu_coder_new(struct kv_gpu_coder **out, const struct kv_gpu_code *code,
                     const struct kv_device *device, struct kv_err *e)
{
    struct kv_gpu_coder *c;

    if (code->head_dim % 2)
        return kv_fail(e, "no CUDA kernel for heads of %zu values",
                       code->head_dim);
    c = kv_alloc(1, sizeof(*c));
    c->code = *code;
    c->multiprocessors = device->multiprocessors;
    if (code->coding == KV_GPU_GROUPS ? check_groups(code, device, e)
                                      : send_tables(c, e)) {
        kv_gpu_coder_free(c);
        return -1;
    }
    *out = c;
    return 0;
}

void kv_gpu_coder_free(struct kv_gpu_coder *c)
{
    if (!c)
        return;
    kv_device_free(c->centers);
    kv_device_free(c->smooth);
    free(c);
}

/* A float a value where there is a transform. */
static size_t turned_bytes(const struct kv_gpu_code *c, size_t n)
{
    const struct kv_gpu_vectors *v = &c->vectors;

    return v->smooth || v->hadamard
               ? n * c->block * c->n_heads * c->head_dim * sizeof(float)
               : 0;
}

size_t kv_gpu_encode_room(const struct kv_gpu_coder *c, size_t n)
{
    const struct kv_gpu_code *code = &c->code;

    if (code->coding == KV_GPU_GROUPS)
        return 0;

    const struct kv_gpu_vectors *v = &code->vectors;
    const size_t codes = n * code->block * code->n_heads * v->n_sub;

    return turned_bytes(code, n) + (v->bits == 8 ? 0 : codes * 2);
}

int kv_gpu_encode(const struct kv_gpu_coder *c, const struct kv_gpu_blocks *b,
                  struct kv_err *e)
{
    if (!b->n)
        return 0;
    if (c->code.coding == KV_GPU_GROUPS)
        return kv_gpu_encode_groups(&c->code, b, e);

    const size_t turned = turned_bytes(&c->code, b->n);
    struct kv_gpu_room room = {NULL, NULL};

    if (turned)
        room.x = b->room;
    if (c->code.vectors.bits != 8)
        room.code = (uint16_t *)((uint8_t *)b->room + turned);
    return kv_gpu_encode_vectors(&c->code, b, &room, c->multiprocessors, e);
}

int kv_gpu_decode(const struct kv_gpu_coder *c, const uint8_t *bytes, size_t n,
                  float *x, struct kv_err *e)
{
    if (!n)
        return 0;
    return c->code.coding == KV_GPU_GROUPS
               ? kv_gpu_decode_groups(&c->code, bytes, n, x, e)
               : kv_gpu_decode_vectors(&c->code, bytes, n, x, e);
}
