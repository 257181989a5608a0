/* Policies for kvquant's codes (layout: kernels/levels/cuda_codes.h).  Keys are
 * rotated by RoPE when they are read; values and weights are halves.
 *
 * A key k at position P + t, where P is the first position of its tile, has the
 * product q . R(P + t) k = (R(-P) q) . R(t) k with a query q.  So queries are
 * rotated once for a tile, and keys by the same angles in every tile.  The keys
 * are pairs of halves from a table in shared memory, where each lane has its
 * own pairs.
 *
 * Outliers take separate products, 8 at a time.  For keys, rows are tokens and
 * a column is an outlier's channel.  The entry of the outlier's token has its
 * addend, all other entries are 0; the queries' pair of channels multiplies it.
 * For values, rows are channels and two columns are a pair of tokens; the
 * tokens' weights multiply them. */
#ifndef KV_LEVELS_CUDA_CUH
#define KV_LEVELS_CUDA_CUH

#include "kernels/levels/cuda_codes.h"
#include "kernels/scaled/cuda.cuh"

template <int D, int BITS>
using kv_levels_codes = kv_scaled_codes<D, BITS, D, 2, KV_LEVELS_STEP>;

/* Members that both sides share. */
template <class B> struct kv_levels_side {
    using params = kv_gpu_levels_params;
    static constexpr int D = B::D, T = B::T, M = B::M, TILE = KV_LEVELS_TILE;
    static constexpr int CODES = 32 * B::BYTES;
    static constexpr bool WRITES = true;
    static constexpr int LEVELS = B::K * B::ROW; /* in shared memory */
    /* With 4 bits, two blocks' tables would leave no room for their rings. */
    static constexpr int BLOCKS = B::BITS < 4 ? 2 : 1;
    static constexpr unsigned WARPS = KV_WARPS;
};

/* Lists are padded to eights. */
KV_DEVICE unsigned kv_levels_eights(unsigned n)
{
    return (n + 7) / 8 * 8;
}

/* Starts to copy outliers [first, first + n) of a list, SIZE bytes each, to
 * shared memory, with zeros behind them; n is a multiple of 8. */
template <int SIZE>
KV_DEVICE void kv_levels_fetch(uint8_t *to, const uint8_t *list, unsigned first,
                               unsigned n)
{
    kv_fetch<false>(to, list + (size_t)first * SIZE, n * SIZE);
    if (kv_lane() < KV_LEVELS_PAD * SIZE / 4)
        reinterpret_cast<uint32_t *>(to + n * SIZE)[kv_lane()] = 0;
}

/* ---- keys ---------------------------------------------------------------- */

/* plain: queries before the rotation, pairs of channels [NT][D /
 * 16][2][lane][2] f32 in shared memory; group g of 8 pairs has pairs 8 g + 2 c
 * and 8 g + 2 c + 1 of row r.  rotated: queries rotated to a tile's first
 * token.  tiles: the keys' tiles. */
template <int D, int NT> struct kv_levels_queries {
    const float *plain;
    const uint8_t *tiles;
    mutable kv_queries_f16<D, NT> rotated;
};

template <class B> struct kv_levels_keys : kv_levels_side<B> {
    using side = kv_levels_side<B>;
    using params = kv_gpu_levels_params;
    static constexpr int D = B::D, M = B::M, GROUPS = D / 16, HALF = D / 32;
    static constexpr int STEPS = KV_LEVELS_TILE / B::T,
                         BLOCKS_OF_16 = STEPS * M;
    /* The bytes of a KV head's table after the levels. */
    static constexpr int RANGES = D * 4;
    static constexpr int TURNS = BLOCKS_OF_16 * GROUPS * 32 * 16;
    static constexpr int SHARES = D / 2 * 4, MORE = RANGES + TURNS + SHARES;
    static constexpr int TABLE = side::LEVELS + MORE;
    /* Bytes of the arrays in a tile. */
    static constexpr int ANGLES = D / 2 * 4, ENDS = 16;
    static constexpr int REST = BLOCKS_OF_16 * 2; /* behind the ends */
    static constexpr unsigned BATCH = side::CODES / 48 * 8 - KV_LEVELS_PAD;
    template <int NT> using query = kv_levels_queries<D, NT>;

    static __host__ __device__ size_t head_bytes(const params &p)
    {
        return ANGLES + ENDS + (size_t)(p.capacity + KV_LEVELS_PAD) * 6;
    }
    static __host__ __device__ size_t step_bytes(const params &)
    {
        return side::CODES;
    }
    static __device__ void load(const params &p, unsigned head, uint8_t *table)
    {
        const uint8_t *const from = p.scaled.table + head * p.apart;

        for (unsigned i = threadIdx.x * 16; i < MORE; i += blockDim.x * 16)
            kv_copy_async(kv_place_of(table) + side::LEVELS + i,
                          from + B::K * B::ENTRY + i);
        kv_copy_commit();
        kv_codebook_spread<B>(from, table);
        kv_copy_wait<0>();
    }
    /* Turns q into query.plain, in place. */
    template <int NT>
    static __device__ void prepare(const params &, const uint8_t *table,
                                   float *q, const kv_rows &rows, query<NT> &x)
    {
        const uint8_t *const shares = table + side::LEVELS + RANGES + TURNS;
        constexpr int each = NT * D * 4 / (32 * KV_WARPS);
        float two[each][2];

#pragma unroll
        for (int j = 0; j < each; j++) {
            const unsigned i = threadIdx.x + j * 32 * KV_WARPS;
            const unsigned row = i / (GROUPS * 64) * 8 + i % 32 / 4;
            const unsigned c = i / 64 % GROUPS * 8 + i % 4 * 2 + i / 32 % 2;

            two[j][0] = q[row * D + c] * kv_float_at(shares, c);
            two[j][1] = q[row * D + c + D / 2] * kv_float_at(shares, c);
        }
        kv_sync_block();
#pragma unroll
        for (int j = 0; j < each; j++)
#pragma unroll
            for (int k = 0; k < 2; k++)
                q[(threadIdx.x + j * 32 * KV_WARPS) * 2 + k] = two[j][k];
        kv_sync_block();
        x.plain = q;
        x.tiles = rows.k;
    }
    /* The queries' unrotated pair of channels at byte offset `place`, for
     * N-tile i, row r. */
    template <int NT>
    static __device__ uint2 plain(const query<NT> &q, int i, unsigned place)
    {
        return kv_load8(reinterpret_cast<const uint8_t *>(q.plain) + place +
                        i * (GROUPS * 512) + kv_lane() / 4 * 32);
    }
    template <int NT>
    static __device__ void rotate(const uint8_t *head, const query<NT> &q)
    {
        const unsigned c = kv_lane() % 4;

#pragma unroll
        for (int g = 0; g < GROUPS; g++) {
            const uint2 angle = kv_load8(head + (8 * g + 2 * c) * 4);
            float cosine[2], sine[2];

#pragma unroll
            for (int j = 0; j < 2; j++) {
                cosine[j] = kv_cos(kv_from_bits(j ? angle.y : angle.x));
                sine[j] = kv_sin(kv_from_bits(j ? angle.y : angle.x));
            }
#pragma unroll
            for (int i = 0; i < NT; i++) {
                float low[2], high[2];

#pragma unroll
                for (int j = 0; j < 2; j++) {
                    const uint2 pair =
                        plain<NT>(q, i, (2 * g + j) * 256 + c * 8);
                    const float x = kv_from_bits(pair.x);
                    const float y = kv_from_bits(pair.y);

                    low[j] = fmaf(y, sine[j], x * cosine[j]);
                    high[j] = fmaf(-x, sine[j], y * cosine[j]);
                }
                q.rotated.b[i][g / 2][g % 2] = kv_pack_f16(low[0], low[1]);
                q.rotated.b[i][HALF + g / 2][g % 2] =
                    kv_pack_f16(high[0], high[1]);
            }
        }
    }
    /* Channels 16 k + [0, 16) and their partners of 16 tokens as fragments. */
    static __device__ void expand(const uint8_t *place, const uint8_t *turns,
                                  const uint32_t *string, int m, int k,
                                  const uint32_t range[2][4], uint32_t *low,
                                  uint32_t *high)
    {
#pragma unroll
        for (int h = 0; h < 2; h++) {
            uint32_t angle[4];

            kv_unpack16(turns + (2 * k + h) * 512, angle);
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const int at = (m * GROUPS + k) * 4 + 2 * h + i;
                const uint32_t cosine = angle[2 * i], sine = angle[2 * i + 1];
                const uint32_t x =
                    kv_fma_f16x2(kv_scaled_pair<B>(place, string, at),
                                 range[h][0], range[h][1]);
                const uint32_t y = kv_fma_f16x2(
                    kv_scaled_pair<B>(place, string, at + HALF * 4),
                    range[h][2], range[h][3]);

                low[2 * h + i] = kv_fma_f16x2(kv_minus_f16x2(y), sine,
                                              kv_mul_f16x2(x, cosine));
                high[2 * h + i] =
                    kv_fma_f16x2(x, sine, kv_mul_f16x2(y, cosine));
            }
        }
    }
    /* Adds the outliers [j, end) of block m of the step's tokens to s, from
     * lists that begin with outlier `first`.  The rest of the last 8 belong to
     * other tokens, or are 0. */
    template <int NT>
    static __device__ void add_listed(const uint8_t *pairs,
                                      const uint8_t *places, unsigned first,
                                      unsigned j, unsigned end, unsigned step,
                                      int m, const query<NT> &q, float s[NT][4])
    {
        const unsigned mine = KV_LEVELS_TOKEN(step * B::T + kv_lane() / 4);

#pragma unroll 1
        for (; j < end; j += 8) {
            const unsigned at = j - first + kv_lane() % 4;
            uint32_t a[4], b[NT][2];

#pragma unroll
            for (int e = 0; e < 2; e++) {
                const uint32_t pair = kv_load4(pairs + (at + 4 * e) * 4);
                const unsigned place = kv_load2(places + (at + 4 * e) * 2);
                const unsigned row = (place & KV_LEVELS_TOKENS) ^ mine;

                a[2 * e] = row == KV_LEVELS_TOKEN(16u * m) ? pair : 0;
                a[2 * e + 1] = row == KV_LEVELS_TOKEN(16u * m + 8) ? pair : 0;
#pragma unroll
                for (int i = 0; i < NT; i++) {
                    const uint2 two = plain<NT>(q, i, place & KV_LEVELS_PLACE);

                    b[i][e] =
                        kv_pack_f16(kv_from_bits(two.x), kv_from_bits(two.y));
                }
            }
#pragma unroll
            for (int i = 0; i < NT; i++)
                kv_mma_f16(s[i], a, b[i]);
        }
    }
    /* add_listed() for outliers that are not in the tile: loads BATCH at a time
     * into the memory of the step's codes. */
    template <int NT>
    static __device__ void add_rest(const params &p, const uint8_t *ends,
                                    unsigned j, unsigned end, unsigned step,
                                    int m, uint8_t *codes, const query<NT> &q,
                                    float s[NT][4])
    {
        const uint8_t *const pairs =
            q.tiles + (size_t)kv_load4(ends + REST) * 16;
        const unsigned n = kv_load2(ends + REST - 2) - p.capacity;
        const uint8_t *const places = pairs + kv_levels_eights(n) * 4;
        uint8_t *const behind = codes + (BATCH + KV_LEVELS_PAD) * 4;

        for (unsigned at = j / 8 * 8; at < end; at += BATCH) {
            const unsigned some = min(kv_levels_eights(end - at), BATCH);

            kv_sync_warp(); /* all threads are done with the codes' memory */
            kv_levels_fetch<4>(codes, pairs, at - p.capacity, some);
            kv_levels_fetch<2>(behind, places, at - p.capacity, some);
            kv_copy_commit();
            kv_copy_wait<0>();
            kv_sync_warp();
            add_listed<NT>(codes, behind, at, max(at, j), min(at + BATCH, end),
                           step, m, q, s);
        }
    }
    /* Adds the outliers of block m of the step's tokens to s. */
    template <int NT>
    static __device__ void add_outliers(const params &p, const uint8_t *head,
                                        unsigned step, int m, uint8_t *codes,
                                        const query<NT> &q, float s[NT][4])
    {
        const unsigned block = step * M + m;
        const uint8_t *const ends = head + ANGLES;
        const uint8_t *const pairs = ends + ENDS;
        const unsigned end = kv_load2(ends + block * 2);
        const unsigned start = block ? kv_load2(ends + block * 2 - 2) : 0;

        add_listed<NT>(pairs, pairs + (p.capacity + KV_LEVELS_PAD) * 4, 0,
                       start, min(end, p.capacity), step, m, q, s);
        if (end > p.capacity)
            add_rest<NT>(p, ends, max(start, p.capacity), end, step, m, codes,
                         q, s);
    }
    template <int NT>
    static __device__ void
    scores(const params &p, const uint8_t *table, const uint8_t *head,
           unsigned step, uint8_t *codes, const query<NT> &q, float s[M][NT][4])
    {
        const uint8_t *const place =
            kv_shared_place(table + kv_lane() * B::ENTRY);
        const uint8_t *const ranges = table + side::LEVELS + kv_lane() % 4 * 16;
        const uint8_t *const turns = table + side::LEVELS + RANGES +
                                     step * (M * GROUPS * 512) + kv_lane() * 16;
        uint32_t string[B::BYTES / 4];

        kv_codebook_bitstream<B>(codes, string);
        if (step == 0)
            rotate<NT>(head, q);
#pragma unroll
        for (int m = 0; m < M; m++)
#pragma unroll
            for (int i = 0; i < NT; i++)
#pragma unroll
                for (int j = 0; j < 4; j++)
                    s[m][i][j] = 0;
#pragma unroll
        for (int k = 0; k < HALF; k++) {
            uint32_t range[2][4];

            kv_unpack16(ranges + 2 * k * 64, range[0]);
            kv_unpack16(ranges + (2 * k + 1) * 64, range[1]);
#pragma unroll
            for (int m = 0; m < M; m++) {
                uint32_t low[4], high[4];

                expand(place, turns + m * (GROUPS * 512), string, m, k, range,
                       low, high);
#pragma unroll
                for (int i = 0; i < NT; i++) {
                    kv_mma_f16(s[m][i], low, q.rotated.b[i][k]);
                    kv_mma_f16(s[m][i], high, q.rotated.b[i][HALF + k]);
                }
            }
        }
#pragma unroll
        for (int m = 0; m < M; m++)
            add_outliers<NT>(p, head, step, m, codes, q, s[m]);
    }
};

/* ---- values -------------------------------------------------------------- */

template <class B> struct kv_levels_values : kv_levels_side<B> {
    using side = kv_levels_side<B>;
    using params = kv_gpu_levels_params;
    static constexpr int D = B::D, M = B::M, T = B::T, BLOCKS_OF_16 = D / 16;
    static constexpr int TABLE = side::LEVELS, SCALES = T * 2;
    static constexpr int UNIT = 16, REST = 8; /* places in the unit's line */
    static constexpr unsigned BATCH = side::CODES / 4 - KV_LEVELS_PAD;
    static constexpr int ENDS = KV_LEVELS_TILE / T * BLOCKS_OF_16 * 2;

    /* o: in the last tile's unit; `inverse` is 1 / unit.  plus: the offsets'
     * sum over this lane's tokens. */
    template <int NT> struct sums {
        kv_sums_f32<D, NT> o;
        float inverse, plus[NT][2];
    };

    static __host__ __device__ size_t head_bytes(const params &p)
    {
        return UNIT + ENDS + (size_t)(p.capacity + KV_LEVELS_PAD) * 4;
    }
    static __host__ __device__ size_t step_bytes(const params &)
    {
        return side::CODES + 2 * SCALES;
    }
    static __device__ void load(const params &p, unsigned, uint8_t *table)
    {
        kv_codebook_spread<B>(p.scaled.table, table);
    }
    template <int NT> static __device__ void clear(sums<NT> &x)
    {
        kv_sums_clear<D, NT>(x.o);
        x.inverse = 1;
        for (int i = 0; i < NT; i++)
            x.plus[i][0] = x.plus[i][1] = 0;
    }
    /* Converts the sums to this tile's unit. */
    template <int NT>
    static __device__ void rescale(const uint8_t *head,
                                   const float factor[NT][2], sums<NT> &x)
    {
        float scaled[NT][2];

        kv_sums_rescale<D, NT>(x.o, &x.inverse, head, factor, scaled);
#pragma unroll
        for (int i = 0; i < NT; i++)
#pragma unroll
            for (int j = 0; j < 2; j++)
                x.plus[i][j] *= factor[i][j];
    }
    /* Multiplies weights by offsets, and by scales as fragments b. */
    template <int NT>
    static __device__ void fold(const uint8_t *scales,
                                const float weight[M][NT][4], float plus[NT][2],
                                uint32_t b[M][NT][2])
    {
        const uint8_t *const mine = scales + kv_lane() / 4 * (M * 4);

#pragma unroll
        for (int m = 0; m < M; m++) {
            const uint32_t scale = kv_load4(mine + m * 4);
            const uint32_t offset = kv_load4(mine + SCALES + m * 4);

#pragma unroll
            for (int i = 0; i < NT; i++) {
                float scaled[4];

#pragma unroll
                for (int j = 0; j < 4; j++) {
                    const float w = weight[m][i][j];

                    scaled[j] =
                        w * (j < 2 ? kv_low_f16(scale) : kv_high_f16(scale));
                    plus[i][j % 2] = fmaf(
                        w, j < 2 ? kv_low_f16(offset) : kv_high_f16(offset),
                        plus[i][j % 2]);
                }
                kv_weights_f16(scaled, b[m][i]);
            }
        }
    }
    /* Writes weights as fragments b to `capacity`: [T / 2][8 NT] pairs of
     * tokens. */
    template <int NT>
    static __device__ void spread(const float weight[M][NT][4],
                                  uint32_t *capacity)
    {
#pragma unroll
        for (int m = 0; m < M; m++)
#pragma unroll
            for (int i = 0; i < NT; i++) {
                uint32_t b[2];

                kv_weights_f16(weight[m][i], b);
#pragma unroll
                for (int j = 0; j < 2; j++)
                    capacity[((m * 2 + j) * 4 + kv_lane() % 4) * (8 * NT) +
                             8 * i + kv_lane() / 4] = b[j];
            }
    }
    /* Adds the outliers [j, end) of channels 16 k + [0, 16) to o, from a list
     * that begins with outlier `first`.  The rest of the last 8 belong to other
     * channels or another step, or are 0.  weights: row r's, NT apart. */
    template <int NT>
    static __device__ void add_listed(const uint8_t *outliers, unsigned first,
                                      unsigned j, unsigned end, unsigned step,
                                      int k, const uint8_t *weights,
                                      float o[NT][4])
    {
        const unsigned mine = KV_LEVELS_CHANNEL(kv_lane() / 4) | step;

#pragma unroll 1
        for (; j < end; j += 8) {
            const unsigned at = j - first + kv_lane() % 4;
            uint32_t a[4], b[NT][2];

#pragma unroll
            for (int e = 0; e < 2; e++) {
                const uint32_t x = kv_load4(outliers + (at + 4 * e) * 4);
                const uint32_t more = (x & 0xffff0000) >> (x & KV_LEVELS_EVEN);
                const unsigned row = (x & KV_LEVELS_ROWS) ^ mine;

                a[2 * e] = row == KV_LEVELS_CHANNEL(16u * k) ? more : 0;
                a[2 * e + 1] = row == KV_LEVELS_CHANNEL(16u * k + 8) ? more : 0;
#pragma unroll
                for (int i = 0; i < NT; i++)
                    b[i][e] =
                        kv_load4(weights + (x & KV_LEVELS_TWO) * NT + i * 32);
            }
#pragma unroll
            for (int i = 0; i < NT; i++)
                kv_mma_f16(o[i], a, b[i]);
        }
    }
    /* Adds the step's outliers before `end` from a list that begins with
     * outlier `first`; ends: the ends of the step's blocks of channels; the
     * first block starts at `start`. */
    template <int NT>
    static __device__ void add_blocks(const uint8_t *outliers, unsigned first,
                                      unsigned end, unsigned step,
                                      const uint8_t *ends, unsigned start,
                                      const uint8_t *weights, sums<NT> &x)
    {
#pragma unroll
        for (int k = 0; k < BLOCKS_OF_16; k++)
            add_listed<NT>(outliers, first,
                           max(k ? kv_load2(ends + k * 2 - 2) : start, first),
                           min(kv_load2(ends + k * 2), end), step, k, weights,
                           x.o.o[k]);
    }
    /* Adds outliers [j, end) of the step, which are not in the tile: loads
     * BATCH at a time over the step's codes. */
    template <int NT>
    static __device__ void
    add_rest(const params &p, const uint8_t *rest, unsigned j, unsigned end,
             unsigned step, const uint8_t *ends, unsigned start, uint8_t *codes,
             const uint8_t *weights, sums<NT> &x)
    {
        for (unsigned at = j / 8 * 8; at < end; at += BATCH) {
            const unsigned some = min(kv_levels_eights(end - at), BATCH);

            kv_sync_warp(); /* all threads are done with the codes' memory */
            kv_levels_fetch<4>(codes, rest, at - p.capacity, some);
            kv_copy_commit();
            kv_copy_wait<0>();
            kv_sync_warp();
            add_blocks<NT>(codes, at, min(at + BATCH, end), step, ends, start,
                           weights, x);
        }
    }
    /* The weights overwrite the step's keys. */
    template <int NT>
    static __device__ void
    gather(const params &p, const uint8_t *table, const uint8_t *head,
           unsigned step, uint8_t *codes, const kv_rows &rows, unsigned,
           const float weight[M][NT][4], const float factor[NT][2], sums<NT> &x)
    {
        static_assert(T / 2 * 8 * NT * 4 <= side::CODES,
                      "weights take the place of keys");
        const uint8_t *const ends = head + UNIT + step * (BLOCKS_OF_16 * 2);
        uint8_t *const weights = codes - side::CODES;
        const uint8_t *const mine = weights + kv_lane() / 4 * 4;
        const unsigned start = step ? kv_load2(ends - 2) : 0;
        const unsigned end = kv_load2(ends + (BLOCKS_OF_16 - 1) * 2);
        const uint8_t *const place =
            kv_shared_place(table + kv_lane() * B::ENTRY);
        uint32_t string[B::BYTES / 4], b[M][NT][2];

        kv_codebook_bitstream<B>(codes, string);
        rescale<NT>(head, factor, x);
        fold<NT>(codes + side::CODES, weight, x.plus, b);
#pragma unroll
        for (int k = 0; k < BLOCKS_OF_16; k++)
#pragma unroll
            for (int m = 0; m < M; m++) {
                uint32_t a[4];

                kv_scaled_fragment<B>(p.scaled, place, string, (k * M + m) * 4,
                                      a);
#pragma unroll
                for (int i = 0; i < NT; i++)
                    kv_mma_f16(x.o.o[k][i], a, b[m][i]);
            }
        if (start == end)
            return;
        kv_sync_warp();
        spread<NT>(weight, reinterpret_cast<uint32_t *>(weights));
        kv_sync_warp();
        add_blocks<NT>(head + UNIT + ENDS, 0, min(end, p.capacity), step, ends,
                       start, mine, x);
        if (end > p.capacity)
            add_rest<NT>(p, rows.v + (size_t)kv_load4(head + REST) * 16,
                         max(start, p.capacity), end, step, ends, start, codes,
                         mine, x);
    }
    template <int NT>
    static __device__ void finish(const params &p, const sums<NT> &x, float *o)
    {
        const float times = p.scaled.times * x.inverse;
        kv_sums_f32<D, NT> y = x.o;
        float plus[NT][2];

#pragma unroll
        for (int i = 0; i < NT; i++)
#pragma unroll
            for (int j = 0; j < 2; j++)
                plus[i][j] = kv_column_sum(x.plus[i][j]);
#pragma unroll
        for (int k = 0; k < D / 16; k++)
#pragma unroll
            for (int i = 0; i < NT; i++)
#pragma unroll
                for (int j = 0; j < 4; j++)
                    y.o[k][i][j] = fmaf(y.o[k][i][j], times, plus[i][j % 2]);
        kv_sums_store<D, NT>(y, o);
    }
};

#endif
