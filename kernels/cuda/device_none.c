/* A build without CUDA has no device. */
#include "kernels/cuda/runtime.h"
#include "kernels/nearest/cuda.h"

#include <stdlib.h>

/* Defines a function that fails for this reason; its parameters only match the
 * header. */
#define NONE(...)                                                        \
    int __VA_ARGS__                                                      \
    {                                                                    \
        return kv_fail(e, "this build has no CUDA (meson option cuda)"); \
    }

#pragma GCC diagnostic ignored "-Wunused-parameter"

NONE(kv_device_cuda(size_t index, struct kv_device *d, struct kv_err *e))

void kv_device_offload(int on)
{
}

int kv_device_offloads(void)
{
    return 0;
}

NONE(kv_device_alloc(void **p, size_t bytes, struct kv_err *e))

void kv_device_free(void *p)
{
}

NONE(kv_device_upload(void *to, const void *from, size_t bytes,
                      struct kv_err *e))

NONE(kv_device_upload_rows(void *to, size_t to_row, const void *from, size_t n,
                           size_t rows, struct kv_err *e))

NONE(kv_device_download(void *to, const void *from, size_t bytes,
                        struct kv_err *e))

NONE(kv_device_zero(void *p, size_t bytes, struct kv_err *e))

NONE(kv_device_copy(void *to, const void *from, size_t bytes, struct kv_err *e))

NONE(kv_device_fork(void **stream, struct kv_err *e))

NONE(kv_device_join(void *stream, struct kv_err *e))

NONE(kv_device_time(int (*once)(void *, struct kv_err *), void *arg,
                    size_t warmup, size_t reps, double *seconds,
                    struct kv_err *e))

NONE(kv_device_bandwidth(const struct kv_device *d, double *read, double *copy,
                         struct kv_err *e))

NONE(kv_gpu_nearest_centroid_new(struct kv_gpu_nearest_centroid **p,
                                 const float *tile, size_t n_tiles, size_t d,
                                 struct kv_err *e))

void kv_gpu_nearest_centroid_free(struct kv_gpu_nearest_centroid *p)
{
}

NONE(kv_gpu_nearest_centroid_run(struct kv_gpu_nearest_centroid *p,
                                 const float *centers, size_t k, uint16_t *code,
                                 float *dist, struct kv_err *e))

/* Functions that need a device are linked but never called: kv_device_cuda()
 * fails first.  This file includes no header that declares them. */
#define STUB(name)             \
    _Noreturn void name(void); \
    _Noreturn void name(void)  \
    {                          \
        abort();               \
    }

STUB(kv_gpu_activate)
STUB(kv_gpu_add_bias)
STUB(kv_gpu_append_groups)
STUB(kv_gpu_append_hack)
STUB(kv_gpu_append_codebook)
STUB(kv_gpu_attend_hack)
STUB(kv_gpu_attend_views)
STUB(kv_gpu_cap)
STUB(kv_gpu_codebook)
STUB(kv_gpu_decode_bitstreams)
STUB(kv_gpu_decode_groups)
STUB(kv_gpu_decode_codebook)
STUB(kv_gpu_dequantize)
STUB(kv_gpu_encode_bitstreams)
STUB(kv_gpu_encode_groups)
STUB(kv_gpu_encode_codebook)
STUB(kv_gpu_families)
STUB(kv_gpu_few_rows)
STUB(kv_gpu_float)
STUB(kv_gpu_generic_tiles)
STUB(kv_gpu_groups_shared)
STUB(kv_gpu_hack_arrange)
STUB(kv_gpu_hack_views_open)
STUB(kv_gpu_hack)
STUB(kv_gpu_heads)
STUB(kv_gpu_integers)
STUB(kv_gpu_integers_int8)
STUB(kv_gpu_layer_norm)
STUB(kv_gpu_multiply)
STUB(kv_gpu_multiply_few)
STUB(kv_gpu_put_newest)
STUB(kv_gpu_random)
STUB(kv_gpu_rms_norm)
STUB(kv_gpu_round)
STUB(kv_gpu_round_f16)
STUB(kv_gpu_scale)
STUB(kv_gpu_score)
STUB(kv_gpu_softmax)
