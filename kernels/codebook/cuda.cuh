/* Codes of sub-vectors and tables of centroids, for both sides and paths.
 *
 * A lane (r = lane / 4, c = lane % 4) looks up 8 channels of a token at a time,
 * which is one code (d = 8), two (d = 4) or four (d = 2), next to each other:
 *
 *   keys    channels 32 k + 8 c + [0, 8) of tokens r and r + 8 of each 16, for
 *           k = 0, 1, ..
 *   values  channels 64 u + 8 r + [0, 8) of tokens 2c, 2c + 8, 2c + 1, 2c + 9
 *           of each 16, for u = 0, 1, ..
 *
 * The codes that a lane looks up in a step are a string of bits without gaps,
 *
 *   keys    [T / 16][k][two tokens][8 / d]
 *   values  [u][T / 16][four tokens][8 / d]
 *
 * and a step is the lanes' strings in pieces of 16 (8) bytes:
 * [pieces][lane][16].
 *
 * A table in shared memory.  Shared by the sub-spaces, of 8 bits: a centroid
 * and its copies fill a row of 128 bytes,
 *
 *   | centroid 0 | centroid 0 | .. | centroid 1 | centroid 1 | ..
 *
 * and a lane reads its own copy: no two lanes that are served together read the
 * same bank.  Tables of 12 bits, [4096], and own tables, [sub-space][256], have
 * no copies: lanes conflict in banks depending on their codes. */
#ifndef KV_CODEBOOK_CUDA_CUH
#define KV_CODEBOOK_CUDA_CUH

#include "kernels/codebook/cuda.h"
#include "kernels/cuda/decode.cuh"
#include "kernels/float/cuda.cuh"

/* table: [KV heads, or 1][apart bytes]: entries of all tables of a head, and on
 * path int8 the scales of its channels, f32 [D]. */
struct kv_codebook_params {
    const uint8_t *table;
    size_t apart; /* bytes from one head's table to the next's; 0: all share
                   * one */
};

static inline kv_codebook_params
kv_codebook_params_of(const struct kv_gpu_side *side)
{
    return {static_cast<const uint8_t *>(side->device_table),
            side->n_tables > 1 ? side->table_bytes : 0};
}

/* One side's codes, as known at compile time. */
template <int HEAD_DIM, int DIMS_, int BITS_, bool OWN_, int STEP,
          unsigned WARPS_, bool INT8_>
struct kv_codebook_of {
    static constexpr int D = HEAD_DIM, DIMS = DIMS_, BITS = BITS_, T = STEP;
    static constexpr unsigned WARPS = WARPS_;
    static constexpr bool OWN = OWN_, INT8 = INT8_;
    static constexpr int PER = 8 / DIMS; /* codes for 8 channels */
    static constexpr int WORDS = INT8 ? 2 : 4;
    static constexpr int BYTES = T * D / DIMS * BITS / 8 / 32; /* a lane's */
    static constexpr int PIECE = BYTES % 16 ? 8 : 16;
    static constexpr int ENTRY = KV_CODEBOOK_ENTRY(INT8, OWN, DIMS);
    static constexpr int TABLES = OWN ? D / DIMS : 1, K = 1 << BITS;
    static constexpr int COPIES = !OWN && BITS <= 8 ? 128 / ENTRY : 1;
    static constexpr int TABLE = TABLES * K * COPIES * ENTRY;

    static_assert(DIMS == 2 || DIMS == 4 || DIMS == 8, "8 channels are codes");
    static_assert(BYTES % 8 == 0, "a lane's codes are whole pieces");
};

/* Copies a table that has a single copy (COPIES 1) to shared memory. */
template <class B>
KV_DEVICE void kv_codebook_copy(const uint8_t *from, uint8_t *table)
{
    for (unsigned i = threadIdx.x * 16; i < B::TABLE; i += blockDim.x * 16)
        kv_copy_async(kv_place_of(table) + i, from + i);
    kv_copy_commit();
    kv_copy_wait<0>();
}

/* Writes each row COPIES times, at different banks. */
template <class B>
KV_DEVICE void kv_codebook_spread(const uint8_t *from, uint8_t *table)
{
    for (unsigned code = threadIdx.x; code < B::K; code += blockDim.x) {
        uint32_t x[4]; /* any 16 bytes of the row */

#pragma unroll
        for (int i = 0; i < 4; i++)
            x[i] = kv_load4(from + code * B::ENTRY + i * 4 % B::ENTRY);
#pragma unroll
        for (unsigned i = 0; i < 8; i++) /* each lane at other banks */
            kv_store16(table + code * 128 + (i + kv_lane()) % 8 * 16, x);
    }
}

/* The scales of a head's channels on path int8. */
template <class B>
KV_DEVICE const float *kv_codebook_scales(const kv_codebook_params &p,
                                          unsigned head)
{
    return reinterpret_cast<const float *>(p.table + head * p.apart +
                                           B::TABLES * B::K * B::ENTRY);
}

/* Loads this lane's codes of a step into string. */
template <class B>
KV_DEVICE void kv_codebook_bitstream(const uint8_t *codes, uint32_t *string)
{
#pragma unroll
    for (int i = 0; i < B::BYTES / B::PIECE; i++) {
        const uint8_t *const at = codes + (i * 32 + kv_lane()) * B::PIECE;

        if (B::PIECE == 16) {
            kv_unpack16(at, string + i * 4);
        } else {
            const uint2 x = kv_load8(at);

            string[i * 2] = x.x;
            string[i * 2 + 1] = x.y;
        }
    }
}

/* Code i of a string; i is a compile-time constant. */
template <int BITS>
KV_DEVICE uint32_t kv_codebook_code(const uint32_t *string, int i)
{
    const int word = i * BITS / 32, shift = i * BITS % 32;

    if (BITS == 8)
        return kv_bytes(string[word], 0, 0x4440 + shift / 8);

    uint32_t x = string[word] >> shift;

    if (shift + BITS > 32)
        x |= string[word + 1] << (32 - shift);
    return x & ((1u << BITS) - 1);
}

/* Where in a table this lane looks up its codes.  group: the index of the
 * lane's 8 neighbouring channels. */
template <class B>
KV_DEVICE const uint8_t *kv_codebook_place(const uint8_t *table, unsigned group)
{
    if (B::COPIES > 1)
        table += kv_lane() % B::COPIES * B::ENTRY;
    else if (B::OWN)
        table += group * (B::PER * B::K * B::ENTRY);
    return kv_shared_place(table);
}

/* Looks up channels [first, first + 8), counted from the lane's place, of one
 * token; its codes begin at code i of the string.  x: bytes or halves [8]. */
template <class B>
KV_DEVICE void kv_codebook_eight(const uint8_t *place, int first,
                                 const uint32_t *string, int i, uint32_t *x)
{
    const uint8_t *at[B::PER];

#pragma unroll
    for (int j = 0; j < B::PER; j++)
        at[j] =
            place +
            kv_codebook_code<B::BITS>(string, i + j) * (B::COPIES * B::ENTRY) +
            (B::OWN ? (first / B::DIMS + j) * (B::K * B::ENTRY) : 0);
#pragma unroll
    for (int j = 0; j < B::PER; j++)
        if constexpr (B::ENTRY == 16) {
            kv_unpack16(at[j], x);
        } else if constexpr (B::ENTRY == 8) {
            const uint2 two = kv_load8(at[j]);

            x[2 * j] = two.x;
            x[2 * j + 1] = two.y;
        } else if constexpr (B::INT8 && B::DIMS == 2) {
            const uint32_t one =
                B::ENTRY == 2 ? kv_load2(at[j]) : kv_load4(at[j]);

            x[j / 2] = j % 2 ? kv_bytes(x[j / 2], one, 0x5410) : one;
        } else {
            x[j] = kv_load4(at[j]);
        }
}

/* The channel of row r + j / 2 * 8 of the k-th sums of 16 channels. */
KV_DEVICE unsigned kv_codebook_channel(int k, int j)
{
    return k / 4 * 64 + kv_lane() / 4 * 8 + k % 4 * 2 + j / 2;
}

/* Members that the policies of both paths share. */
template <class B> struct kv_codebook_side {
    using params = kv_codebook_params;
    static constexpr int T = B::T, TILE = T, TABLE = B::TABLE;
    /* On path int8 with 128 channels, registers spill where two blocks share a
     * multiprocessor, unless a code covers four channels or its centroids have
     * copies. */
    static constexpr bool SPILLS =
        B::INT8 && B::D == 128 && B::DIMS != 4 && B::COPIES == 1;
    static constexpr int BLOCKS = TABLE <= 48 << 10 && !SPILLS ? 2 : 1;
    static constexpr unsigned WARPS = B::WARPS;
    static constexpr bool WRITES = false;

    static __host__ __device__ size_t head_bytes(const params &)
    {
        return 0;
    }
    static __host__ __device__ size_t step_bytes(const params &)
    {
        return 32 * B::BYTES;
    }
    static __device__ void load(const params &p, unsigned head, uint8_t *table)
    {
        const uint8_t *const from = p.table + head * p.apart;

        if constexpr (B::COPIES > 1)
            kv_codebook_spread<B>(from, table);
        else
            kv_codebook_copy<B>(from, table);
    }
};

/* ---- path exact: centroids, queries and weights as halves ---------------- */

template <class B> struct kv_codebook_keys_f16 : kv_codebook_side<B> {
    static constexpr int D = B::D;
    using params = kv_codebook_params;
    template <int NT> using query = kv_queries_f16<D, NT>;

    /* A lane's 8 channels of a token are 4 words, two for each product of
     * 16 channels. */
    template <int NT>
    static __device__ void prepare(const params &, const uint8_t *,
                                   const float *q, const kv_rows &,
                                   query<NT> &x)
    {
        const unsigned r = kv_lane() / 4, c = kv_lane() % 4;

#pragma unroll
        for (int i = 0; i < NT; i++)
#pragma unroll
            for (int k = 0; k < D / 16; k++)
#pragma unroll
                for (int half = 0; half < 2; half++) {
                    const float *at = q + (i * 8 + r) * D + k / 2 * 32 + 8 * c +
                                      k % 2 * 4 + half * 2;

                    x.b[i][k][half] = kv_pack_f16(at[0], at[1]);
                }
    }
    template <int NT>
    static __device__ void
    scores(const params &, const uint8_t *table, const uint8_t *, unsigned,
           const uint8_t *codes, const query<NT> &q, float s[B::T / 16][NT][4])
    {
        const uint8_t *const place = kv_codebook_place<B>(table, kv_lane() % 4);
        uint32_t string[B::BYTES / 4];

        kv_codebook_bitstream<B>(codes, string);
#pragma unroll
        for (int m = 0; m < B::T / 16; m++) {
#pragma unroll
            for (int i = 0; i < NT; i++)
#pragma unroll
                for (int j = 0; j < 4; j++)
                    s[m][i][j] = 0;
#pragma unroll
            for (int k = 0; k < D / 32; k++) {
                const int at = (m * (D / 32) + k) * 2 * B::PER;
                uint32_t x[2][4];

                kv_codebook_eight<B>(place, 32 * k, string, at, x[0]);
                kv_codebook_eight<B>(place, 32 * k, string, at + B::PER, x[1]);
#pragma unroll
                for (int j = 0; j < 2; j++) {
                    const uint32_t a[4] = {x[0][2 * j], x[1][2 * j],
                                           x[0][2 * j + 1], x[1][2 * j + 1]};

#pragma unroll
                    for (int i = 0; i < NT; i++)
                        kv_mma_f16(s[m][i], a, q.b[i][2 * k + j]);
                }
            }
        }
    }
};

template <class B> struct kv_codebook_values_f16 : kv_codebook_side<B> {
    static constexpr int D = B::D;
    using params = kv_codebook_params;
    template <int NT> using sums = kv_sums_f32<D, NT>;

    template <int NT> static __device__ void clear(sums<NT> &x)
    {
        kv_sums_clear<D, NT>(x);
    }
    /* Word w of a token's 8 channels holds channels 2 w and 2 w + 1, which are
     * rows r and r + 8 of the w-th product. */
    template <int NT>
    static __device__ void
    gather(const params &, const uint8_t *table, const uint8_t *, unsigned,
           const uint8_t *codes, const kv_rows &, unsigned,
           const float weight[B::T / 16][NT][4], const float factor[NT][2],
           sums<NT> &x)
    {
        const uint8_t *const place = kv_codebook_place<B>(table, kv_lane() / 4);
        uint32_t string[B::BYTES / 4], b[B::T / 16][NT][2];

        kv_codebook_bitstream<B>(codes, string);
#pragma unroll
        for (int m = 0; m < B::T / 16; m++)
#pragma unroll
            for (int i = 0; i < NT; i++)
                kv_weights_f16(weight[m][i], b[m][i]);
        kv_sums_scale<D, NT>(x, factor);
#pragma unroll
        for (int u = 0; u < D / 64; u++)
#pragma unroll
            for (int m = 0; m < B::T / 16; m++) {
                uint32_t t[4][4]; /* tokens 2c, 2c + 8, 2c + 1, 2c + 9 */

#pragma unroll
                for (int j = 0; j < 4; j++)
                    kv_codebook_eight<B>(
                        place, 64 * u, string,
                        ((u * (B::T / 16) + m) * 4 + j) * B::PER, t[j]);
#pragma unroll
                for (int w = 0; w < 4; w++) {
                    const uint32_t a[4] = {kv_bytes(t[0][w], t[2][w], 0x5410),
                                           kv_bytes(t[0][w], t[2][w], 0x7632),
                                           kv_bytes(t[1][w], t[3][w], 0x5410),
                                           kv_bytes(t[1][w], t[3][w], 0x7632)};

#pragma unroll
                    for (int i = 0; i < NT; i++)
                        kv_mma_f16(x.o[4 * u + w][i], a, b[m][i]);
                }
            }
    }
    template <int NT>
    static __device__ void finish(const params &, const sums<NT> &x, float *o)
    {
        const unsigned c = kv_lane() % 4;

#pragma unroll
        for (int k = 0; k < D / 16; k++)
#pragma unroll
            for (int i = 0; i < NT; i++)
#pragma unroll
                for (int j = 0; j < 4; j++)
                    o[(i * 8 + 2 * c + j % 2) * D + kv_codebook_channel(k, j)] =
                        x.o[k][i][j];
    }
};

#endif
