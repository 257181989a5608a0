#include "kernels/nearest/cuda.h"

#include "kernels/cuda/runtime.h"
#include "kernels/nearest/cuda.cuh"

#include <stdlib.h>

enum { TILE = 64, THREADS = 256, EACH = 2, SHARED = 32 << 10 };

struct kv_gpu_nearest_centroid {
    size_t n_tiles, d;
    float *tile;    // the device's copy
    float *centers; // [n_centers][d]
    uint16_t *code;
    float *dist;
    size_t n_centers; // capacity
};

// A thread has EACH points, one tile-wide step apart; centers pass through
// shared memory, `chunk` at a time, and every thread reads the same one.
template <int D>
__global__ void __launch_bounds__(THREADS)
    kv_nearest_centroid_kernel(const float *tile, size_t n_tiles,
                               const float *centers, unsigned k, unsigned chunk,
                               uint16_t *code, float *dist)
{
    float *const near = reinterpret_cast<float *>(kv_shared());
    const size_t first =
        (size_t)blockIdx.x * (THREADS / TILE * EACH) + threadIdx.x / TILE;
    const unsigned lane = threadIdx.x % TILE;
    constexpr int apart = THREADS / TILE; // tiles between a thread's points
    kv_nearer<D, EACH> p;

    p.start();
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        const size_t t = first + i * apart;

#pragma unroll
        for (int j = 0; j < D; j++)
            p.x[i][j] = t < n_tiles ? tile[(t * D + j) * TILE + lane] : 0;
    }
    for (unsigned from = 0; from < k; from += chunk) {
        const unsigned n = k - from < chunk ? k - from : chunk;

        kv_sync_block(); // all are done with the last chunk
        for (unsigned i = threadIdx.x; i < n * D; i += THREADS)
            near[i] = centers[(size_t)from * D + i];
        kv_sync_block();
        for (unsigned c = 0; c < n; c++)
            p.see(near + c * D, from + c);
    }
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        const size_t t = first + i * apart;

        if (t < n_tiles) {
            code[t * TILE + lane] = (uint16_t)p.best[i];
            dist[t * TILE + lane] = p.min[i];
        }
    }
}

// The block's tiles start at a multiple of EACH * THREADS / TILE.
static_assert(THREADS % TILE == 0, "a block is whole tiles");

extern "C" int kv_gpu_nearest_centroid_new(struct kv_gpu_nearest_centroid **out,
                                           const float *tile, size_t n_tiles,
                                           size_t d, struct kv_err *e)
{
    const size_t n = n_tiles * TILE;
    struct kv_gpu_nearest_centroid *p =
        static_cast<struct kv_gpu_nearest_centroid *>(calloc(1, sizeof(*p)));

    if (!p)
        return kv_fail(e, "out of memory");
    p->n_tiles = n_tiles;
    p->d = d;
    if (kv_device_alloc((void **)&p->tile, n * d * sizeof(*tile), e) ||
        kv_device_upload(p->tile, tile, n * d * sizeof(*tile), e) ||
        kv_device_alloc((void **)&p->code, n * sizeof(*p->code), e) ||
        kv_device_alloc((void **)&p->dist, n * sizeof(*p->dist), e)) {
        kv_gpu_nearest_centroid_free(p);
        return -1;
    }
    *out = p;
    return 0;
}

extern "C" void kv_gpu_nearest_centroid_free(struct kv_gpu_nearest_centroid *p)
{
    if (!p)
        return;
    kv_device_free(p->tile);
    kv_device_free(p->centers);
    kv_device_free(p->code);
    kv_device_free(p->dist);
    free(p);
}

static int put_centers(struct kv_gpu_nearest_centroid *p, const float *centers,
                       size_t k, struct kv_err *e)
{
    const size_t bytes = k * p->d * sizeof(*centers);

    if (k > p->n_centers) {
        kv_device_free(p->centers);
        p->centers = NULL;
        p->n_centers = 0;
        if (kv_device_alloc((void **)&p->centers, bytes, e))
            return -1;
        p->n_centers = k;
    }
    return kv_device_upload(p->centers, centers, bytes, e);
}

static const char *launch(const struct kv_gpu_nearest_centroid *p, unsigned k)
{
    const size_t each = THREADS / TILE * EACH;
    const dim3 grid((unsigned)((p->n_tiles + each - 1) / each));
    const unsigned chunk = SHARED / (unsigned)(p->d * sizeof(float));

    switch (p->d) {
#define KV_CASE(D)                                                           \
    case D:                                                                  \
        return kv_launch(kv_nearest_centroid_kernel<D>, grid, dim3(THREADS), \
                         (size_t)SHARED, 0, (const float *)p->tile,          \
                         p->n_tiles, (const float *)p->centers, k, chunk,    \
                         p->code, p->dist);
        KV_NEAREST_DIMS(KV_CASE)
#undef KV_CASE
    }
    return "no kernel for so many dimensions";
}

extern "C" int kv_gpu_nearest_centroid_run(struct kv_gpu_nearest_centroid *p,
                                           const float *centers, size_t k,
                                           uint16_t *code, float *dist,
                                           struct kv_err *e)
{
    const size_t n = p->n_tiles * TILE;
    const char *wrong;

    if (put_centers(p, centers, k, e))
        return -1;
    wrong = launch(p, (unsigned)k);
    if (wrong)
        return kv_fail(e, "nearest centers: %s", wrong);
    return kv_device_download(code, p->code, n * sizeof(*code), e) ||
                   kv_device_download(dist, p->dist, n * sizeof(*dist), e)
               ? -1
               : 0;
}
