/* Policies for codes of tables and small floats with scales (cuda.h has the
 * layout); values and weights are halves.  For keys, the sum over a group's
 * channels is multiplied by its scale.  For values, weights times scales
 * multiply the codes.
 *
 * A table has all pairs of entries, in 32 copies in shared memory; each lane
 * reads its own copy, so no two lanes read the same bank.  Keys and values
 * share one table. */
#ifndef KV_SCALED_CUDA_CUH
#define KV_SCALED_CUDA_CUH

#include "kernels/codebook/cuda.cuh"
#include "kernels/integers/cuda.cuh"
#include "kernels/scaled/cuda.h"

/* Two blocks of 8 warps, each one step ahead, keep the memory busy. */
enum { KV_SCALED_STAGES = 2 };

/* The compile-time constants of a side. */
template <int HEAD_DIM, int BITS_, int PER_, int SCALE_,
          int STEP = KV_SCALED_STEP(BITS_)>
struct kv_scaled_codes {
    static constexpr int D = HEAD_DIM, BITS = BITS_, PER = PER_;
    static constexpr int SCALE = SCALE_; /* bytes; 0: there are none */
    static constexpr int T = STEP, M = T / 16;
    static constexpr int BYTES = T * D * BITS / 8 / 32; /* a lane's bytes */
    static constexpr int PIECE = BYTES % 16 ? 8 : 16;
    static constexpr int K = BITS <= 4 ? 1 << 2 * BITS : 0;
    static constexpr int ENTRY = 4, ROW = 128; /* a pair and its copies */

    static_assert(BYTES % 8 == 0, "a lane's codes are whole pieces");
};

/* Extracts pair i of a bit string of table codes of up to 4 bits. */
template <class B>
KV_DEVICE uint32_t kv_scaled_pair(const uint8_t *place, const uint32_t *string,
                                  int i)
{
    return kv_load4(place + kv_codebook_code<2 * B::BITS>(string, i) * B::ROW);
}

/* Looks up the four pairs from pair i on, as fragment a. */
template <class B>
KV_DEVICE void kv_scaled_fragment(const kv_gpu_scaled &p, const uint8_t *place,
                                  const uint32_t *string, int i, uint32_t *a)
{
    constexpr uint32_t sign = 0x80008000;

    if constexpr (B::K > 0) {
#pragma unroll
        for (int j = 0; j < 4; j++)
            a[j] = kv_scaled_pair<B>(place, string, i + j);
    } else {
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const uint32_t w = string[(i + j) / 2] << (j % 2 ? 0 : 8);

            a[j] = (w >> p.right & p.mask) | (w & sign);
        }
    }
}

/* N pairs of scales as halves. */
template <int BYTES, int N>
KV_DEVICE void kv_scaled_pairs(const uint8_t *at, uint32_t *x)
{
    if constexpr (BYTES == 2) {
        if constexpr (N == 1) {
            x[0] = kv_load4(at);
        } else if constexpr (N == 2) {
            const uint2 two = kv_load8(at);

            x[0] = two.x;
            x[1] = two.y;
        } else {
#pragma unroll
            for (int i = 0; i < N / 4; i++)
                kv_unpack16(at + i * 16, x + i * 4);
        }
    } else {
#pragma unroll
        for (int i = 0; i < N; i += 2) {
            const uint32_t w = N == 1 ? kv_load2(at) : kv_load4(at + i * 2);

            x[i] = kv_bytes(w, 0, 0x4140) << 7;
            if (N > 1)
                x[i + 1] = kv_bytes(w, 0, 0x4342) << 7;
        }
    }
}

/* Members that both sides share. */
template <class B> struct kv_scaled_side {
    using params = kv_gpu_scaled;
    static constexpr int T = B::T, TILE = KV_GPU_TILE, BLOCKS = 2;
    static constexpr unsigned WARPS = KV_WARPS;
    static constexpr int CODES = 32 * B::BYTES;
    static constexpr bool WRITES = false;
    static constexpr unsigned HEAD = B::SCALE ? 16 : 0;

    static __host__ __device__ size_t head_bytes(const params &)
    {
        return HEAD;
    }
    static __host__ __device__ size_t step_bytes(const params &p)
    {
        return p.step_bytes;
    }
    /* A row's scales for the group of channel c. */
    static __device__ const uint8_t *scales(const params &p,
                                            const uint8_t *codes, int c)
    {
        return codes + CODES + (c >> p.shift) * (T * B::SCALE);
    }
    /* The address at which this lane looks pairs up. */
    static __device__ const uint8_t *place(const uint8_t *table)
    {
        return B::K ? kv_shared_place(table + kv_lane() * B::ENTRY) : table;
    }
};

template <class B> struct kv_scaled_keys : kv_scaled_side<B> {
    using side = kv_scaled_side<B>;
    using params = kv_gpu_scaled;
    static constexpr int D = B::D, M = B::M, TABLE = B::K * B::ROW;
    template <int NT> using query = kv_queries_f16<D, NT>;

    static __device__ void load(const params &p, unsigned, uint8_t *table)
    {
        if constexpr (B::K > 0)
            kv_codebook_spread<B>(p.table, table);
    }
    template <int NT>
    static __device__ void prepare(const params &, const uint8_t *,
                                   const float *q, const kv_rows &,
                                   query<NT> &x)
    {
        kv_queries_to_f16<D, NT>(q, x);
    }
    /* Adds the sum over a group's channels, from c on, times the group's scale
     * to s. */
    template <int NT>
    static __device__ void add_group(const params &p, const uint8_t *place,
                                     const uint8_t *codes,
                                     const uint32_t *string, int m, int c,
                                     const query<NT> &q, float s[NT][4])
    {
        const unsigned r = kv_lane() / 4;
        float sum[NT][4];
        uint32_t scale;

        kv_scaled_pairs<B::SCALE, 1>(
            side::scales(p, codes, c) + (r * M + m) * 2 * B::SCALE, &scale);
#pragma unroll
        for (int i = 0; i < NT; i++)
#pragma unroll
            for (int j = 0; j < 4; j++)
                sum[i][j] = 0;
#pragma unroll
        for (int k = c / 16; k < (c + B::PER) / 16; k++) {
            uint32_t a[4];

            kv_scaled_fragment<B>(p, place, string, (m * (D / 16) + k) * 4, a);
#pragma unroll
            for (int i = 0; i < NT; i++)
                kv_mma_f16(sum[i], a, q.b[i][k]);
        }
#pragma unroll
        for (int i = 0; i < NT; i++)
#pragma unroll
            for (int j = 0; j < 4; j++)
                s[i][j] = fmaf(j < 2 ? kv_low_f16(scale) : kv_high_f16(scale),
                               sum[i][j], s[i][j]);
    }
    template <int NT>
    static __device__ void
    scores(const params &p, const uint8_t *table, const uint8_t *head, unsigned,
           const uint8_t *codes, const query<NT> &q, float s[M][NT][4])
    {
        const uint8_t *const place = side::place(table);
        const float times = B::SCALE ? p.times * kv_float_at(head, 1) : p.times;
        uint32_t string[B::BYTES / 4];

        kv_codebook_bitstream<B>(codes, string);
#pragma unroll
        for (int m = 0; m < M; m++) {
#pragma unroll
            for (int i = 0; i < NT; i++)
#pragma unroll
                for (int j = 0; j < 4; j++)
                    s[m][i][j] = 0;
            if constexpr (B::SCALE > 0) {
#pragma unroll
                for (int c = 0; c < D; c += B::PER)
                    add_group<NT>(p, place, codes, string, m, c, q, s[m]);
            } else {
#pragma unroll
                for (int k = 0; k < D / 16; k++) {
                    uint32_t a[4];

                    kv_scaled_fragment<B>(p, place, string,
                                          (m * (D / 16) + k) * 4, a);
#pragma unroll
                    for (int i = 0; i < NT; i++)
                        kv_mma_f16(s[m][i], a, q.b[i][k]);
                }
            }
#pragma unroll
            for (int i = 0; i < NT; i++)
#pragma unroll
                for (int j = 0; j < 4; j++)
                    s[m][i][j] *= times;
        }
    }
};

template <class B> struct kv_scaled_values : kv_scaled_side<B> {
    using side = kv_scaled_side<B>;
    using params = kv_gpu_scaled;
    static constexpr int D = B::D, M = B::M, TABLE = 0;

    /* o: in the last tile's unit; `inverse` is 1 / unit. */
    template <int NT> struct sums {
        kv_sums_f32<D, NT> o;
        float inverse;
    };

    static __device__ void load(const params &, unsigned, uint8_t *)
    {
    }
    template <int NT> static __device__ void clear(sums<NT> &x)
    {
        kv_sums_clear<D, NT>(x.o);
        x.inverse = 1;
    }
    /* Converts the sums to this tile's unit. */
    template <int NT>
    static __device__ void rescale(const uint8_t *head,
                                   const float factor[NT][2], sums<NT> &x)
    {
        float scaled[NT][2];

        if (B::SCALE)
            kv_sums_rescale<D, NT>(x.o, &x.inverse, head, factor, scaled);
        else
            kv_sums_scale<D, NT>(x.o, factor);
    }
    /* Weights times the scales, if there are any, of the group of channel c. */
    template <int NT>
    static __device__ void fold(const params &p, const uint8_t *codes, int c,
                                const uint32_t b[M][NT][2],
                                uint32_t folded[M][NT][2])
    {
        uint32_t scale[2 * M];

        if constexpr (B::SCALE > 0)
            kv_scaled_pairs<B::SCALE, 2 * M>(
                side::scales(p, codes, c) + kv_lane() % 4 * (4 * M * B::SCALE),
                scale);
#pragma unroll
        for (int m = 0; m < M; m++)
#pragma unroll
            for (int i = 0; i < NT; i++)
#pragma unroll
                for (int j = 0; j < 2; j++)
                    folded[m][i][j] =
                        B::SCALE ? kv_mul_f16x2(b[m][i][j], scale[2 * m + j])
                                 : b[m][i][j];
    }
    template <int NT>
    static __device__ void
    gather(const params &p, const uint8_t *table, const uint8_t *head, unsigned,
           const uint8_t *codes, const kv_rows &, unsigned,
           const float weight[M][NT][4], const float factor[NT][2], sums<NT> &x)
    {
        const uint8_t *const place = side::place(table);
        uint32_t string[B::BYTES / 4], b[M][NT][2];

        kv_codebook_bitstream<B>(codes, string);
#pragma unroll
        for (int m = 0; m < M; m++)
#pragma unroll
            for (int i = 0; i < NT; i++)
                kv_weights_f16(weight[m][i], b[m][i]);
        rescale<NT>(head, factor, x);
#pragma unroll
        for (int c = 0; c < D; c += B::PER) {
            uint32_t folded[M][NT][2];

            fold<NT>(p, codes, c, b, folded);
#pragma unroll
            for (int k = c / 16; k < (c + B::PER) / 16; k++)
#pragma unroll
                for (int m = 0; m < M; m++) {
                    uint32_t a[4];

                    kv_scaled_fragment<B>(p, place, string, (k * M + m) * 4, a);
#pragma unroll
                    for (int i = 0; i < NT; i++)
                        kv_mma_f16(x.o.o[k][i], a, folded[m][i]);
                }
        }
    }
    template <int NT>
    static __device__ void finish(const params &p, const sums<NT> &x, float *o)
    {
        const float times = p.times * x.inverse;
        kv_sums_f32<D, NT> y = x.o;
        float all[NT][2];

#pragma unroll
        for (int i = 0; i < NT; i++)
            all[i][0] = all[i][1] = times;
        kv_sums_scale<D, NT>(y, all);
        kv_sums_store<D, NT>(y, o);
    }
};

#endif
