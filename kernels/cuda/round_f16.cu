#include "kernels/cuda/gpu.cuh"
#include "kernels/cuda/round_f16.h"
#include "kernels/integers/cuda_quantizers.cuh"

enum { THREADS = 256 };

// Loads N words, in fours as far as possible.
template <int N> KV_DEVICE void kv_get_words(const float *from, uint32_t *x)
{
#pragma unroll
    for (int i = 0; i < N; i += N < 4 ? 1 : 4)
        if constexpr (N < 4) {
            x[i] = kv_bits(from[i]);
        } else {
            const uint4 w = kv_load16(from + i);

            x[i] = w.x;
            x[i + 1] = w.y;
            x[i + 2] = w.z;
            x[i + 3] = w.w;
        }
}

template <int N> KV_DEVICE void kv_put_words(void *to, const uint32_t *x)
{
    uint32_t *const word = static_cast<uint32_t *>(to);

#pragma unroll
    for (int i = 0; i < N; i += N < 4 ? 1 : 4)
        if constexpr (N < 4)
            word[i] = x[i];
        else
            kv_store16(word + i, x + i);
}

// A thread takes EACH values.  All threads that find a nonfinite value write
// the same number.
template <int EACH>
__global__ void __launch_bounds__(THREADS)
    kv_round_f16_kernel(const float *x, size_t n, uint16_t *half, float *wide,
                        float *again, unsigned *nonfinite, unsigned *clipped)
{
    const size_t i = ((size_t)blockIdx.x * THREADS + threadIdx.x) * EACH;
    uint32_t in[EACH], out[EACH], words[EACH / 2];
    unsigned beyond = 0;
    bool met = false;

    if (i >= n)
        return;
    kv_get_words<EACH>(x + i, in);
#pragma unroll
    for (int j = 0; j < EACH; j++) {
        const uint32_t h = kv_clamp_f16(kv_from_bits(in[j]));

        met |= (in[j] & 0x7f800000) == 0x7f800000;
        beyond += (in[j] & 0x7fffffff) >= 0x477ff000; // 65520
        words[j / 2] = j % 2 ? words[j / 2] | h << 16 : h;
        out[j] = kv_bits(kv_low_f16(h));
    }
    if (met && nonfinite)
        *nonfinite = 1;
    if (beyond && clipped)
        kv_add_to(clipped, beyond);
    kv_put_words<EACH / 2>(half + i, words);
    if (wide)
        kv_put_words<EACH>(wide + i, out);
    if (again)
        kv_put_words<EACH>(again + i, out);
}

extern "C" int kv_gpu_round_f16(const float *x, size_t n, uint16_t *half,
                                float *wide, float *again, unsigned *nonfinite,
                                unsigned *clipped, struct kv_err *e)
{
    const size_t each = n % 8 ? 2 : 8;
    const size_t threads = (n + each - 1) / each;
    const dim3 grid((unsigned)((threads + THREADS - 1) / THREADS));
    const char *wrong =
        kv_launch(each == 8 ? kv_round_f16_kernel<8> : kv_round_f16_kernel<2>,
                  grid, dim3(THREADS), (size_t)0, (cudaStream_t)0, x, n, half,
                  wide, again, nonfinite, clipped);

    return wrong ? kv_fail(e, "rounding to halves: %s", wrong) : 0;
}
