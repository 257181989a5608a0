#include "kernels/cuda/gpu.cuh"
#include "kernels/cuda/hold.h"
#include "kernels/cuda/quantizers.cuh"

enum { THREADS = 256 };

// Two values a thread.  All that find a strange one write the same.
__global__ void __launch_bounds__(THREADS)
    kv_hold_kernel(const float *x, size_t pairs, uint32_t *half, float *wide,
                   float *again, unsigned *strange)
{
    const size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x;

    if (i >= pairs)
        return;

    const uint2 w = kv_load8(x + 2 * i);
    const uint32_t low = kv_clamp_f16(kv_from_bits(w.x));
    const uint32_t word = low | (uint32_t)kv_clamp_f16(kv_from_bits(w.y)) << 16;
    const float a = kv_low_f16(word), b = kv_high_f16(word);

    if ((w.x & 0x7f800000) == 0x7f800000 || (w.y & 0x7f800000) == 0x7f800000)
        *strange = 1;
    half[i] = word;
    wide[2 * i] = a;
    wide[2 * i + 1] = b;
    if (again) {
        again[2 * i] = a;
        again[2 * i + 1] = b;
    }
}

extern "C" int kv_gpu_hold(const float *x, size_t n, uint16_t *half,
                           float *wide, float *again, unsigned *strange,
                           struct kv_err *e)
{
    const size_t pairs = n / 2;
    const dim3 grid((unsigned)((pairs + THREADS - 1) / THREADS));
    const char *wrong = kv_launch(
        kv_hold_kernel, grid, dim3(THREADS), (size_t)0, (cudaStream_t)0, x,
        pairs, reinterpret_cast<uint32_t *>(half), wide, again, strange);

    return wrong ? kv_fail(e, "rounding to halves: %s", wrong) : 0;
}
