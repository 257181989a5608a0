#include "kernels/device_code.h"
#include "lib/base/alloc.h"

#include <stdlib.h>

enum { OWN = 7 };

struct kv_gpu_coder {
    struct kv_gpu_code code; /* its arrays are in device memory */
    size_t multiprocessors;
    void *own[OWN]; /* the device memory of these arrays */
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

/* Copies `from` to the device, as the coder's i-th array. */
static int send(struct kv_gpu_coder *c, size_t i, const void *from,
                size_t bytes, struct kv_err *e)
{
    return bytes && (kv_device_alloc(&c->own[i], bytes, e) ||
                     kv_device_upload(c->own[i], from, bytes, e));
}

static int send_tables(struct kv_gpu_coder *c, struct kv_err *e)
{
    struct kv_gpu_centroids *v = &c->code.codebook;
    const size_t centers = v->head_books * v->sub_books * v->k * v->d;
    const size_t row = c->code.n_heads * c->code.head_dim;

    if (send(c, 0, v->centers, centers * sizeof(float), e) ||
        (v->smooth && send(c, 1, v->smooth, row * sizeof(float), e)))
        return -1;
    v->centers = c->own[0];
    v->smooth = c->own[1];
    return 0;
}

static int check_transitions(const struct kv_gpu_transitions *s,
                             struct kv_err *e)
{
#define SAME(BITS, VALUES)                      \
    if (s->bits == BITS && s->values == VALUES) \
        return 0;
    KV_GPU_TRANSITIONS(SAME)
#undef SAME
    return kv_fail(e, "no CUDA kernel for steps of %u bits for %u values",
                   s->bits, s->values);
}

static int send_bitstreams(struct kv_gpu_coder *c, struct kv_err *e)
{
    struct kv_gpu_bitstreams *s = &c->code.bitstreams;
    const size_t row = c->code.n_heads * c->code.head_dim;

    for (size_t i = 0; i < s->n_runs; i++)
        if (check_transitions(&s->transitions[i], e))
            return -1;
    if (send(c, 0, s->coef, s->n_coefs * sizeof(*s->coef), e) ||
        send(c, 1, s->tables, s->n_tables * sizeof(float), e) ||
        send(c, 2, s->mean, row * sizeof(float), e) ||
        send(c, 3, s->inverse, row * row * sizeof(float), e) ||
        send(c, 4, s->forward, row * row * sizeof(float), e) ||
        send(c, 5, s->transitions, s->n_runs * sizeof(*s->transitions), e) ||
        send(c, 6, s->whole, s->n_coefs * sizeof(*s->whole), e))
        return -1;
    s->coef = c->own[0];
    s->tables = c->own[1];
    s->mean = c->own[2];
    s->inverse = c->own[3];
    s->forward = c->own[4];
    s->transitions = c->own[5];
    s->whole = c->own[6];
    return 0;
}

static int prepare(struct kv_gpu_coder *c, const struct kv_device *device,
                   struct kv_err *e)
{
    switch (c->code.coding) {
    case KV_GPU_GROUPS:
        return check_groups(&c->code, device, e);
    case KV_GPU_CODEBOOK:
        return send_tables(c, e);
    case KV_GPU_BITSTREAMS:
        break;
    }
    return send_bitstreams(c, e);
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
    if (prepare(c, device, e)) {
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
    for (size_t i = 0; i < OWN; i++)
        kv_device_free(c->own[i]);
    free(c);
}

/* The bytes of transformed values: a float each, if the code has a
 * transform. */
static size_t rotated_bytes(const struct kv_gpu_code *c, size_t n)
{
    const struct kv_gpu_centroids *v = &c->codebook;

    return v->smooth || v->hadamard
               ? n * c->block * c->n_heads * c->head_dim * sizeof(float)
               : 0;
}

static size_t vectors_workspace(const struct kv_gpu_code *c, size_t n)
{
    const struct kv_gpu_centroids *v = &c->codebook;
    const size_t codes = n * c->block * c->n_heads * v->n_sub;

    return rotated_bytes(c, n) + (v->bits == 8 ? 0 : codes * 2);
}

static int encode_vectors(const struct kv_gpu_coder *c,
                          const struct kv_gpu_blocks *b, struct kv_err *e)
{
    const size_t rotated = rotated_bytes(&c->code, b->n);
    struct kv_gpu_workspace workspace = {NULL, NULL};

    if (rotated)
        workspace.x = b->workspace;
    if (c->code.codebook.bits != 8)
        workspace.code = (uint16_t *)((uint8_t *)b->workspace + rotated);
    return kv_gpu_encode_codebook(&c->code, b, &workspace, c->multiprocessors,
                                  e);
}

/* How many of n bitstreams are searched at once. */
static size_t searches(const struct kv_gpu_coder *c, size_t n)
{
    const size_t max = c->multiprocessors * KV_GPU_SEARCHES;

    return n < max ? n : max;
}

static size_t coefficient_bytes(const struct kv_gpu_coder *c, size_t n)
{
    return n * c->code.bitstreams.n_coefs * sizeof(float);
}

static size_t bitstreams_workspace(const struct kv_gpu_coder *c, size_t n)
{
    return coefficient_bytes(c, n) +
           searches(c, n) * c->code.bitstreams.n_transitions * KV_GPU_NOTE;
}

size_t kv_gpu_encode_workspace(const struct kv_gpu_coder *c, size_t n)
{
    switch (c->code.coding) {
    case KV_GPU_GROUPS:
        return 0;
    case KV_GPU_CODEBOOK:
        return vectors_workspace(&c->code, n);
    case KV_GPU_BITSTREAMS:
        break;
    }
    return bitstreams_workspace(c, n);
}

int kv_gpu_encode(const struct kv_gpu_coder *c, const struct kv_gpu_blocks *b,
                  struct kv_err *e)
{
    if (!b->n)
        return 0;
    switch (c->code.coding) {
    case KV_GPU_GROUPS:
        return kv_gpu_encode_groups(&c->code, b, e);
    case KV_GPU_CODEBOOK:
        return encode_vectors(c, b, e);
    case KV_GPU_BITSTREAMS:
        break;
    }
    return kv_gpu_encode_bitstreams(&c->code, b, b->workspace,
                                    (uint8_t *)b->workspace +
                                        coefficient_bytes(c, b->n),
                                    searches(c, b->n), e);
}

int kv_gpu_decode(const struct kv_gpu_coder *c, const uint8_t *bytes, size_t n,
                  float *x, struct kv_err *e)
{
    if (!n)
        return 0;
    switch (c->code.coding) {
    case KV_GPU_GROUPS:
        return kv_gpu_decode_groups(&c->code, bytes, n, x, e);
    case KV_GPU_CODEBOOK:
        return kv_gpu_decode_codebook(&c->code, bytes, n, x, e);
    case KV_GPU_BITSTREAMS:
        break;
    }
    return kv_gpu_decode_bitstreams(&c->code, bytes, n, x, e);
}
