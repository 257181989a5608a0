#include "kernels/cuda/gemm.h"
#include "kernels/cuda/gpu.cuh"

// A warp takes OUTPUTS rows of b, and all rows of a; a block has WARPS warps.
enum { WARPS = 8, AT_ONCE = 8 /* loads of 16 bytes under way in a thread */ };

struct kv_gemv {
    const uint8_t *a, *b;
    float *c;
    unsigned k, n, rows;
    size_t a_row, b_row; // bytes
    size_t c_row;
    bool add;
};

// The values of 16 bytes.
template <int TYPE> KV_DEVICE void kv_widen(const uint4 &from, float *to)
{
    const uint32_t w[4] = {from.x, from.y, from.z, from.w};

#pragma unroll
    for (int i = 0; i < 4; i++)
        if (TYPE == KV_TYPE_F32) {
            to[i] = kv_from_bits(w[i]);
        } else if (TYPE == KV_TYPE_F16) {
            to[2 * i] = kv_low_f16(w[i]);
            to[2 * i + 1] = kv_high_f16(w[i]);
        } else {
            to[2 * i] = kv_from_bits(w[i] << 16);
            to[2 * i + 1] = kv_from_bits(w[i] & 0xffff0000);
        }
}

// Up to ROWS rows of a.  Sums are in a fixed order, which does not depend on
// ROWS.
template <int TYPE, int ROWS>
__global__ void __launch_bounds__(32 * WARPS) kv_gemv_kernel(const kv_gemv g)
{
    constexpr unsigned OUTPUTS = ROWS > 2 ? 4 : 2, DEEP = AT_ONCE / OUTPUTS;
    constexpr int N = TYPE == KV_TYPE_F32 ? 4 : 8; // values of 16 bytes
    const unsigned first = (blockIdx.x * WARPS + kv_warp()) * OUTPUTS;
    const size_t bytes = (size_t)g.k * 16 / N;
    const uint8_t *b[OUTPUTS];
    float sum[ROWS][OUTPUTS] = {};

#pragma unroll
    for (unsigned o = 0; o < OUTPUTS; o++) { // beyond the last: the last again
        const unsigned row = first + o < g.n ? first + o : g.n - 1;

        b[o] = g.b + row * g.b_row;
        if (kv_lane() * 16 < bytes)
            kv_prefetch(b[o] + kv_lane() * 16);
    }
    kv_wait_for_earlier();
    for (size_t at = kv_lane() * 16; at < bytes; at += 512 * DEEP) {
        uint4 w[DEEP][OUTPUTS];

#pragma unroll
        for (unsigned i = 0; i < DEEP; i++)
#pragma unroll
            for (unsigned o = 0; o < OUTPUTS; o++)
                w[i][o] = at + 512 * i < bytes ? kv_load16(b[o] + at + 512 * i)
                                               : uint4{0, 0, 0, 0};
#pragma unroll
        for (unsigned i = 0; i < DEEP; i++) {
            float y[OUTPUTS][N];

            if (at + 512 * i >= bytes)
                break;
#pragma unroll
            for (unsigned o = 0; o < OUTPUTS; o++)
                kv_widen<TYPE>(w[i][o], y[o]);
#pragma unroll
            for (unsigned r = 0; r < ROWS; r++) {
                const uint8_t *const a =
                    g.a + (r < g.rows ? r : g.rows - 1) * g.a_row;
                float x[N];

                kv_widen<TYPE>(kv_load16(a + at + 512 * i), x);
#pragma unroll
                for (unsigned o = 0; o < OUTPUTS; o++)
#pragma unroll
                    for (int j = 0; j < N; j++)
                        sum[r][o] = fmaf(x[j], y[o][j], sum[r][o]);
            }
        }
    }
#pragma unroll
    for (unsigned r = 0; r < ROWS; r++)
#pragma unroll
        for (unsigned o = 0; o < OUTPUTS; o++) {
            float s = sum[r][o];

#pragma unroll
            for (unsigned mask = 1; mask < 32; mask *= 2)
                s += kv_shuffle_xor(s, mask);
            if (kv_lane() == 0 && first + o < g.n && r < g.rows) {
                float *const c = g.c + r * g.c_row + first + o;

                *c = g.add ? *c + s : s;
            }
        }
}

template <int TYPE, int ROWS> static const char *launch(const kv_gemv &g)
{
    constexpr unsigned outputs = WARPS * (ROWS > 2 ? 4 : 2);

    return kv_launch_early(kv_gemv_kernel<TYPE, ROWS>,
                           dim3((g.n + outputs - 1) / outputs),
                           dim3(32 * WARPS), g);
}

template <int TYPE> static const char *launch_rows(const kv_gemv &g)
{
    return g.rows == 1   ? launch<TYPE, 1>(g)
           : g.rows == 2 ? launch<TYPE, 2>(g)
           : g.rows <= 4 ? launch<TYPE, 4>(g)
                         : launch<TYPE, 8>(g);
}

extern "C" int kv_gpu_few_rows(const struct kv_gpu_product *p)
{
    const size_t bytes = kv_type_bytes(p->type);

    return p->m && p->m <= KV_GPU_FEW_ROWS && p->n && p->batch <= 1 &&
           !p->transposed && p->c_type == KV_TYPE_F32 &&
           p->k * bytes % 16 == 0 && p->a_row * bytes % 16 == 0 &&
           p->b_row * bytes % 16 == 0 &&
           reinterpret_cast<uintptr_t>(p->a) % 16 == 0 &&
           reinterpret_cast<uintptr_t>(p->b) % 16 == 0;
}

extern "C" int kv_gpu_multiply_few(const struct kv_gpu_product *p,
                                   struct kv_err *e)
{
    const size_t bytes = kv_type_bytes(p->type);
    const kv_gemv g = {static_cast<const uint8_t *>(p->a),
                       static_cast<const uint8_t *>(p->b),
                       static_cast<float *>(p->c),
                       (unsigned)p->k,
                       (unsigned)p->n,
                       (unsigned)p->m,
                       p->a_row * bytes,
                       p->b_row * bytes,
                       p->c_row,
                       p->add != 0};
    const char *const wrong =
        p->type == KV_TYPE_F16    ? launch_rows<KV_TYPE_F16>(g)
        : p->type == KV_TYPE_BF16 ? launch_rows<KV_TYPE_BF16>(g)
                                  : launch_rows<KV_TYPE_F32>(g);

    return wrong ? kv_fail(e, "a product of %zu x %zu x %zu: %s", p->m, p->n,
                           p->k, wrong)
                 : 0;
}
