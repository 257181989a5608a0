/* Policies of decode.cuh for unquantized fp16 and bf16.
 *
 * A tile of 128 tokens is 8 steps of 16; a step is fragments a of gpu.cuh, in
 * the order lanes read them, 16 bytes each:
 *
 *   keys    [head_dim / 16][lane][8 halves]: tokens are rows
 *   values  [head_dim / 16][lane][8 halves]: channels are rows
 *
 * Policies exist for multiples of 16; another head_dim is padded with zeros. */
#ifndef KV_FLOAT_CUDA_CUH
#define KV_FLOAT_CUDA_CUH

#include "kernels/cuda/decode.cuh"

/* Instances for decoding: head dimension, N-tiles of 8 rows, stages of the
 * ring; the first that fits is used. */
#define KV_FLOAT_KERNELS(X) \
    X(64, 2, 3)             \
    X(64, 1, 3) X(96, 2, 3) X(96, 1, 3) X(128, 2, 3) X(128, 1, 3) X(256, 1, 1)

struct kv_no_params {
};

/* The index of the half at row r, column k of 16, in a fragment a whose lanes'
 * 8 halves are together. */
KV_DEVICE size_t kv_fragment_place(unsigned r, unsigned k)
{
    return (r % 8 * 4 + k % 8 / 2) * 8 + k / 8 * 4 + r / 8 * 2 + k % 2;
}

/* The index of the half of token t, channel c. */
KV_DEVICE size_t kv_tile_place(bool values, unsigned t, unsigned c,
                               unsigned head_dim)
{
    const size_t block = (size_t)(t / 16) * ((head_dim + 15) / 16) + c / 16;

    return block * 256 + (values ? kv_fragment_place(c % 16, t % 16)
                                 : kv_fragment_place(t % 16, c % 16));
}

/* Formats of halves. */
struct kv_fp16 {
    static __device__ uint32_t pack(float low, float high)
    {
        return kv_pack_f16(low, high);
    }
    static __device__ void mma(float *c, const uint32_t *a, const uint32_t *b)
    {
        kv_mma_f16(c, a, b);
    }
};

struct kv_bfloat16 {
    static __device__ uint32_t pack(float low, float high)
    {
        return kv_pack_bf16(low, high);
    }
    static __device__ void mma(float *c, const uint32_t *a, const uint32_t *b)
    {
        kv_mma_bf16(c, a, b);
    }
};

/* Weights of 16 tokens, fragment c, as fragment b of the next product. */
template <class HALF = kv_fp16>
KV_DEVICE void kv_weights_f16(const float *weight, uint32_t *b)
{
    b[0] = kv_transpose(HALF::pack(weight[0], weight[1]));
    b[1] = kv_transpose(HALF::pack(weight[2], weight[3]));
}

KV_DEVICE void kv_unpack16(const uint8_t *at, uint32_t *w)
{
    const uint4 x = kv_load16(at);

    w[0] = x.x;
    w[1] = x.y;
    w[2] = x.z;
    w[3] = x.w;
}

/* Queries as fragments b, halves. */
template <int D, int NT> struct kv_queries_f16 {
    uint32_t b[NT][D / 16][2];
};

/* Rounds q [8 NT][D], multiplied by `times`, to halves. */
template <int D, int NT, class HALF = kv_fp16>
KV_DEVICE void kv_queries_to_f16(const float *q, kv_queries_f16<D, NT> &x,
                                 float times = 1)
{
    const unsigned r = kv_lane() / 4, c = kv_lane() % 4;

#pragma unroll
    for (int i = 0; i < NT; i++)
#pragma unroll
        for (int k = 0; k < D / 16; k++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const float *at =
                    q + (i * 8 + r) * D + k * 16 + half * 8 + 2 * c;

                x.b[i][k][half] = HALF::pack(at[0] * times, at[1] * times);
            }
}

/* O^T as fragments c. */
template <int D, int NT> struct kv_sums_f32 {
    float o[D / 16][NT][4];
};

template <int D, int NT> KV_DEVICE void kv_sums_clear(kv_sums_f32<D, NT> &x)
{
#pragma unroll
    for (int k = 0; k < D / 16; k++)
#pragma unroll
        for (int i = 0; i < NT; i++)
#pragma unroll
            for (int j = 0; j < 4; j++)
                x.o[k][i][j] = 0;
}

template <int D, int NT>
KV_DEVICE void kv_sums_scale(kv_sums_f32<D, NT> &x, const float factor[NT][2])
{
    bool changes = false;

#pragma unroll
    for (int i = 0; i < NT; i++)
        changes = changes || factor[i][0] != 1 || factor[i][1] != 1;
    if (!kv_any(changes)) /* true after the largest score was met */
        return;
#pragma unroll
    for (int k = 0; k < D / 16; k++)
#pragma unroll
        for (int i = 0; i < NT; i++)
#pragma unroll
            for (int j = 0; j < 4; j++)
                x.o[k][i][j] *= factor[i][j % 2];
}

template <int D, int NT>
KV_DEVICE void kv_sums_store(const kv_sums_f32<D, NT> &x, float *o)
{
    const unsigned r = kv_lane() / 4, c = kv_lane() % 4;

#pragma unroll
    for (int k = 0; k < D / 16; k++)
#pragma unroll
        for (int i = 0; i < NT; i++)
#pragma unroll
            for (int j = 0; j < 4; j++)
                o[(i * 8 + 2 * c + j % 2) * D + k * 16 + j / 2 * 8 + r] =
                    x.o[k][i][j];
}

template <int D, class HALF = kv_fp16> struct kv_float_keys {
    using params = kv_no_params;
    template <int NT> using query = kv_queries_f16<D, NT>;
    static constexpr int T = 16, TILE = 16, TABLE = 0, BLOCKS = 2;
    static constexpr unsigned WARPS = KV_WARPS;
    static constexpr bool WRITES = false;

    static __host__ __device__ size_t head_bytes(const params &)
    {
        return 0;
    }
    static __host__ __device__ size_t step_bytes(const params &)
    {
        return T * D * 2;
    }
    static __device__ void load(const params &, unsigned, uint8_t *)
    {
    }
    template <int NT>
    static __device__ void prepare(const params &, const uint8_t *,
                                   const float *q, const kv_rows &,
                                   query<NT> &x)
    {
        kv_queries_to_f16<D, NT, HALF>(q, x);
    }
    template <int NT>
    static __device__ void
    scores(const params &, const uint8_t *, const uint8_t *, unsigned,
           const uint8_t *codes, const query<NT> &q, float s[1][NT][4])
    {
#pragma unroll
        for (int i = 0; i < NT; i++)
#pragma unroll
            for (int j = 0; j < 4; j++)
                s[0][i][j] = 0;
#pragma unroll
        for (int k = 0; k < D / 16; k++) {
            uint32_t a[4];

            kv_unpack16(codes + (k * 32 + kv_lane()) * 16, a);
#pragma unroll
            for (int i = 0; i < NT; i++)
                HALF::mma(s[0][i], a, q.b[i][k]);
        }
    }
};

template <int D, class HALF = kv_fp16> struct kv_float_values {
    using params = kv_no_params;
    template <int NT> using sums = kv_sums_f32<D, NT>;
    static constexpr int T = 16, TILE = 16, TABLE = 0, BLOCKS = 2;
    static constexpr unsigned WARPS = KV_WARPS;
    static constexpr bool WRITES = false;

    static __host__ __device__ size_t head_bytes(const params &)
    {
        return 0;
    }
    static __host__ __device__ size_t step_bytes(const params &)
    {
        return T * D * 2;
    }
    static __device__ void load(const params &, unsigned, uint8_t *)
    {
    }
    template <int NT> static __device__ void clear(sums<NT> &x)
    {
        kv_sums_clear<D, NT>(x);
    }
    template <int NT>
    static __device__ void
    gather(const params &, const uint8_t *, const uint8_t *, unsigned,
           const uint8_t *codes, const kv_rows &, unsigned,
           const float weight[1][NT][4], const float factor[NT][2], sums<NT> &x)
    {
        uint32_t b[NT][2];

#pragma unroll
        for (int i = 0; i < NT; i++)
            kv_weights_f16<HALF>(weight[0][i], b[i]);
        kv_sums_scale<D, NT>(x, factor);
#pragma unroll
        for (int k = 0; k < D / 16; k++) {
            uint32_t a[4];

            kv_unpack16(codes + (k * 32 + kv_lane()) * 16, a);
#pragma unroll
            for (int i = 0; i < NT; i++)
                HALF::mma(x.o[k][i], a, b[i]);
        }
    }
    template <int NT>
    static __device__ void finish(const params &, const sums<NT> &x, float *o)
    {
        kv_sums_store<D, NT>(x, o);
    }
};

#endif
