// Measures the bandwidth of the device's memory.
#include "kernels/cuda/read_all.cuh"
#include "kernels/cuda/runtime.h"

#include <stdlib.h>

namespace
{

enum { THREADS = KV_READ_THREADS, REPS = 11 };

struct buffers {
    uint4 *from, *to;
    size_t words; // 16-byte words
    unsigned blocks;
};

// Fills memory with words other than zeros, which can move faster than real
// data.
__global__ void __launch_bounds__(THREADS) fill(uint4 *to, size_t words)
{
    const size_t step = (size_t)gridDim.x * THREADS;

    for (size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x; i < words;
         i += step) {
        const uint32_t x = (uint32_t)i * 2654435761u;

        to[i] = make_uint4(x, x ^ 0x9e3779b9u, x * 3, ~x);
    }
}

int launch_fill(const buffers *b, struct kv_err *e)
{
    const char *wrong = kv_launch(fill, dim3(b->blocks), dim3(THREADS), 0, 0,
                                  b->from, b->words);

    return wrong ? kv_fail(e, "filling device memory: %s", wrong) : 0;
}

int launch_read(void *arg, struct kv_err *e)
{
    const buffers *b = static_cast<const buffers *>(arg);
    const char *wrong =
        kv_launch(kv_read_all, dim3(b->blocks), dim3(THREADS), 0, 0,
                  const_cast<const uint4 *>(b->from), b->words, b->to);

    return wrong ? kv_fail(e, "reading device memory: %s", wrong) : 0;
}

int launch_copy(void *arg, struct kv_err *e)
{
    const buffers *b = static_cast<const buffers *>(arg);

    return kv_device_copy(b->to, b->from, b->words * sizeof(uint4), e);
}

int compare(const void *a, const void *b)
{
    const double x = *static_cast<const double *>(a);
    const double y = *static_cast<const double *>(b);

    return (x > y) - (x < y);
}

int median(int (*once)(void *, struct kv_err *), buffers *b, double *seconds,
           struct kv_err *e)
{
    double s[REPS];

    if (kv_device_time(once, b, 2, REPS, s, e))
        return -1;
    qsort(s, REPS, sizeof(*s), compare);
    *seconds = s[REPS / 2];
    return 0;
}

} // namespace

extern "C" int kv_device_bandwidth(const struct kv_device *d, double *read,
                                   double *copy, struct kv_err *e)
{
    const size_t quarter = d->free / 4, max = (size_t)8 << 30;
    const size_t bytes = quarter < max ? quarter : max;
    buffers b = {NULL, NULL, 0, 0};
    double reading, copying;
    int rc = -1;

    b.words = bytes / sizeof(uint4);
    b.blocks = (unsigned)d->multiprocessors * KV_READ_BLOCKS;
    if (kv_device_alloc((void **)&b.from, bytes, e) ||
        kv_device_alloc((void **)&b.to, bytes, e) || launch_fill(&b, e) ||
        median(launch_read, &b, &reading, e) ||
        median(launch_copy, &b, &copying, e))
        goto out;
    *read = (double)bytes / reading;
    *copy = 2 * (double)bytes / copying;
    rc = 0;
out:
    kv_device_free(b.from);
    kv_device_free(b.to);
    return rc;
}
