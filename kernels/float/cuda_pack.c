/* Halves in the order of float/cuda.cuh. */
#include "kernels/cuda/families.h"
#include "lib/base/half.h"

enum { STEP = 16 };

/* The position of row r and column k of a 16 x 16 matrix in fragments a
 * (gpu.cuh): the index among a lane's 8 halves, and the lane. */
static size_t place(size_t r, size_t k)
{
    const size_t lane = r % 8 * 4 + k % 8 / 2;
    const size_t half = k / 8 * 4 + r / 8 * 2 + k % 2;

    return lane * 8 + half;
}

static void put(bool values, bool bf16, size_t head_dim, const float *x,
                size_t n, uint8_t *to)
{
    uint16_t *half = (uint16_t *)(void *)to;

    for (size_t t = 0; t < n; t++)
        for (size_t c = 0; c < head_dim; c++) {
            const float value = x[t * head_dim + c];
            const size_t block = t / STEP * (kv_padded(head_dim) / 16) + c / 16;
            const size_t at =
                values ? place(c % 16, t % STEP) : place(t % STEP, c % 16);

            half[block * 256 + at] =
                bf16 ? kv_f32_to_bf16(value) : kv_f16_clamp(value);
        }
}

void kv_gpu_float_pack(bool values, size_t head_dim, const float *x, size_t n,
                       uint8_t *to)
{
    put(values, false, head_dim, x, n, to);
}

static void pack(const struct kv_gpu_side *side, size_t head, size_t i,
                 uint8_t *to)
{
    const struct kv_store *s = side->store;
    float x[KV_GPU_TILE * KV_GPU_MAX_DIM];

    kv_gpu_rows(s, head, i * KV_GPU_TILE, KV_GPU_TILE, x);
    put(s->values, side->bf16, s->head_dim, x, KV_GPU_TILE, to);
}

bool kv_gpu_float_open(struct kv_gpu_side *side)
{
    const struct kv_store *s = side->store;

    if (s->family != &kv_family_float ||
        *(const enum kv_float *)s->params == KV_FLOAT_32 || s->head_dim % 16 ||
        s->head_dim > KV_GPU_MAX_DIM)
        return false;
    side->path = KV_PATH_EXACT;
    side->bf16 = *(const enum kv_float *)s->params == KV_FLOAT_BF16;
    side->tile_bytes = KV_GPU_TILE * s->head_dim * sizeof(uint16_t);
    side->pack = pack;
    return true;
}
