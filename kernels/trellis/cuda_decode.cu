#include "kernels/cuda/coder.h"
#include "kernels/cuda/gpu.cuh"
#include "kernels/trellis/trellis.h"

enum { THREADS = 128, TOKENS = 16 };

// The state that ends with bit `end` of a bitstream, zeros before its
// beginning.
KV_DEVICE unsigned kv_state_at(const uint8_t *bitstream, unsigned end)
{
    const unsigned last = (end - 1) / 8;
    const unsigned high = last ? bitstream[last - 1] : 0;

    return (high << 8 | bitstream[last]) >> (8 * last + 8 - end) &
           (KV_TRELLIS_STATES - 1);
}

// A block: one head of 16 tokens; coefficients, y [head_dim][16], then a thread
// a channel.  A product and its sum are rounded once, in the order of
// kv_vecops_times().
__global__ void __launch_bounds__(THREADS)
    kv_decode_bitstreams_kernel(struct kv_gpu_bitstreams s, unsigned n_heads,
                                unsigned d, size_t token_bytes,
                                const uint8_t *bytes, size_t n, float *x)
{
    const size_t first = (size_t)blockIdx.x * TOKENS;
    const unsigned tokens = (unsigned)min(n - first, (size_t)TOKENS);
    const unsigned head = blockIdx.y, begin = s.first[head];
    const unsigned n_coefs = s.first[head + 1] - begin, n_used = s.used[head];
    const float *const inverse = s.inverse + (size_t)head * d * d;
    float *const y = reinterpret_cast<float *>(kv_shared());

    for (unsigned i = threadIdx.x; i < n_used * TOKENS; i += THREADS)
        y[i] = 0;
    kv_sync_block();
    for (unsigned i = threadIdx.x; i < n_coefs * tokens; i += THREADS) {
        const struct kv_gpu_coefficient c = s.coef[begin + i / tokens];
        const unsigned t = i % tokens;

        y[c.index * TOKENS + t] =
            c.scale *
            s.tables[c.table +
                     kv_state_at(bytes + (first + t) * token_bytes, c.end)];
    }
    kv_sync_block();
    for (unsigned i = threadIdx.x; i < d; i += THREADS) {
        float sum[TOKENS];

#pragma unroll
        for (unsigned t = 0; t < TOKENS; t++)
            sum[t] = s.mean[head * d + i];
        for (unsigned j = 0; j < n_used; j++) {
            const float g = inverse[(size_t)j * d + i];

#pragma unroll
            for (unsigned t = 0; t < TOKENS; t++)
                sum[t] = fmaf(y[j * TOKENS + t], g, sum[t]);
        }
#pragma unroll
        for (unsigned t = 0; t < TOKENS; t++)
            if (t < tokens)
                x[((first + t) * n_heads + head) * d + i] = sum[t];
    }
}

extern "C" int kv_gpu_decode_bitstreams(const struct kv_gpu_code *c,
                                        const uint8_t *bytes, size_t n,
                                        float *x, struct kv_err *e)
{
    const dim3 grid((unsigned)((n + TOKENS - 1) / TOKENS),
                    (unsigned)c->n_heads);
    const char *wrong =
        kv_launch(kv_decode_bitstreams_kernel, grid, dim3(THREADS),
                  c->head_dim * TOKENS * sizeof(float), (cudaStream_t)0,
                  c->bitstreams, (unsigned)c->n_heads, (unsigned)c->head_dim,
                  c->block_bytes, bytes, n, x);

    return wrong ? kv_fail(e, "decoding strings: %s", wrong) : 0;
}
