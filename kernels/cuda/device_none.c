/* A build without CUDA: no device, no family. */
#include "kernels/cuda/append.h"
#include "kernels/cuda/coder.h"
#include "kernels/cuda/dequantize.h"
#include "kernels/cuda/families.h"
#include "kernels/cuda/layer.h"
#include "kernels/cuda/loss.h"
#include "kernels/cuda/product.h"
#include "kernels/cuda/round_f16.h"
#include "kernels/cuda/step.h"
#include "kernels/cuda/views.h"
#include "kernels/device.h"
#include "kernels/hack/cuda_views.h"
#include "kernels/nearest/cuda_nearest_centroid.h"

/* A function that fails so; its parameters are for the headers' sake. */
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

size_t kv_gpu_groups_shared(const struct kv_gpu_code *code)
{
    return 0;
}

NONE(kv_gpu_encode_groups(const struct kv_gpu_code *code,
                          const struct kv_gpu_blocks *b, struct kv_err *e))

NONE(kv_gpu_encode_vectors(const struct kv_gpu_code *code,
                           const struct kv_gpu_blocks *b,
                           const struct kv_gpu_room *room,
                           size_t multiprocessors, struct kv_err *e))

NONE(kv_gpu_encode_bitstreams(const struct kv_gpu_code *code,
                              const struct kv_gpu_blocks *b, float *y,
                              uint8_t *notes, size_t searches,
                              struct kv_err *e))

NONE(kv_gpu_decode_groups(const struct kv_gpu_code *code, const uint8_t *bytes,
                          size_t n, float *x, struct kv_err *e))

NONE(kv_gpu_decode_vectors(const struct kv_gpu_code *code, const uint8_t *bytes,
                           size_t n, float *x, struct kv_err *e))

NONE(kv_gpu_decode_bitstreams(const struct kv_gpu_code *code,
                              const uint8_t *bytes, size_t n, float *x,
                              struct kv_err *e))

NONE(kv_gpu_append_groups(const struct kv_gpu_append *s, struct kv_err *e))

NONE(kv_gpu_append_groups_int8(const struct kv_gpu_append *s, struct kv_err *e))

NONE(kv_gpu_append_hack(const struct kv_gpu_append *s, struct kv_err *e))

NONE(kv_gpu_append_vectors(const struct kv_gpu_append *s, struct kv_err *e))

NONE(kv_gpu_round_f16(const float *x, size_t n, uint16_t *half, float *wide,
                      float *again, unsigned *strange, struct kv_err *e))

NONE(kv_gpu_multiply(const struct kv_gpu_product *p, struct kv_err *e))

NONE(kv_gpu_random(void *x, size_t n, uint64_t seed, float scale,
                   struct kv_err *e))

NONE(kv_gpu_norm(const void *x, const void *weight, size_t rows, size_t n,
                 float eps, void *out, struct kv_err *e))

NONE(kv_gpu_rope(const void *qkv, const struct kv_gpu_slot *slot,
                 const float *inv_freq, size_t rows, size_t n_heads,
                 size_t n_kv_heads, size_t head_dim, float *q,
                 struct kv_err *e))

NONE(kv_gpu_gate(const void *x, size_t rows, size_t n, void *out,
                 struct kv_err *e))

NONE(kv_gpu_softmax(void *x, size_t rows, size_t n, float scale,
                    struct kv_err *e))

NONE(kv_gpu_narrow(const float *x, size_t n, void *out, struct kv_err *e))

NONE(kv_gpu_dequantize(const struct kv_gpu_side *k, const struct kv_gpu_side *v,
                       const struct kv_gpu_sequence *from,
                       const struct kv_gpu_sequence *to, size_t n_sequences,
                       size_t n_kv_heads, size_t n_tiles, struct kv_err *e))

NONE(kv_gpu_launch_part(const struct kv_gpu_family *family,
                        struct kv_gpu_launch *l, enum kv_gpu_part part,
                        struct kv_err *e))

NONE(kv_gpu_rms_norm(const float *x, const float *weight, size_t rows, size_t n,
                     float eps, enum kv_gpu_type type, void *out,
                     struct kv_err *e))

NONE(kv_gpu_rotate_heads(const struct kv_gpu_heads *h, struct kv_err *e))

NONE(kv_gpu_add_bias(float *x, const float *bias, size_t rows, size_t n,
                     struct kv_err *e))

NONE(kv_gpu_swiglu(const float *gate, const float *gate_bias, const float *up,
                   const float *up_bias, size_t rows, size_t n,
                   enum kv_gpu_type type, void *out, struct kv_err *e))

NONE(kv_gpu_round(const float *x, size_t n, enum kv_gpu_type type, void *out,
                  struct kv_err *e))

NONE(kv_gpu_attend_views(const struct kv_attend_job *job, struct kv_err *e))

bool kv_gpu_hack_forms_open(const struct kv_gpu_code *k,
                            const struct kv_gpu_code *v, uint64_t seed,
                            const struct kv_device *device,
                            struct kv_gpu_hack_forms *h)
{
    return false;
}

NONE(kv_gpu_hack_arrange(const struct kv_gpu_code *code,
                         const struct kv_hack_steps *h, const uint8_t *bytes,
                         size_t n, size_t n_steps, uint8_t *steps,
                         struct kv_err *e))

NONE(kv_gpu_attend_hack(const struct kv_attend_job *job,
                        const struct kv_gpu_hack_forms *h, struct kv_err *e))

NONE(kv_gpu_score(const float *logits, const float *base, const int32_t *target,
                  size_t rows, size_t n_vocab, struct kv_gpu_loss *out,
                  struct kv_err *e))

const struct kv_gpu_family kv_gpu_codebook = {NULL, NULL, NULL};
const struct kv_gpu_family kv_gpu_float = {NULL, NULL, NULL};
const struct kv_gpu_family kv_gpu_homomorphic = {NULL, NULL, NULL};
const struct kv_gpu_family kv_gpu_integers = {NULL, NULL, NULL};
const struct kv_gpu_family kv_gpu_integers_int8 = {NULL, NULL, NULL};
const struct kv_gpu_family kv_gpu_generic_tiles = {NULL, NULL, NULL};
const struct kv_gpu_family *const kv_gpu_families[] = {NULL};
