/* Reads values of any kind of tile of 64 tokens from shared memory.
 *
 * A reader returns four values at a time: channels `inner` to inner + 3 of a
 * token, for keys, or tokens inner to inner + 3 of a channel, for values.
 * inner is a multiple of 4; lane is the token or the channel.  A warp's lanes
 * read neighbours in the tile.  Channels past the last read as an arbitrary
 * finite number. */
#ifndef KV_CUDA_GENERIC_TILES_CUH
#define KV_CUDA_GENERIC_TILES_CUH

#include "kernels/float/cuda.cuh"

#include "kernels/cuda/generic.h"
#include "kernels/levels/levels.h"

/* ---- into shared memory ---------------------------------------------------
 */

/* The bytes of a tile in shared memory, including the whole table of heads that
 * it shares.
 */
static __host__ __device__ size_t kv_generic_bytes(const kv_gpu_generic &g)
{
    return (size_t)g.tile_bytes + (g.span - 1) * g.head_bytes + g.workspace;
}

/* The tiles of this block's KV head in a run. */
KV_DEVICE const uint8_t *kv_generic_head(const kv_gpu_generic &g,
                                         const uint8_t *tiles,
                                         size_t head_bytes)
{
    return g.together ? tiles : tiles + blockIdx.y * head_bytes;
}

/* Starts the copy of tile i of a KV head. */
KV_DEVICE void kv_generic_fetch(const kv_gpu_generic &g, uint8_t *to,
                                const uint8_t *tiles, unsigned i)
{
    const uint8_t *tile = tiles + (size_t)i * g.tile_bytes;
    const uint8_t *first = tile - (size_t)(i % g.span) * g.tile_bytes;

    for (unsigned j = 0; j < g.span; j++)
        kv_fetch<true>(to + j * g.head_bytes, first + j * (size_t)g.tile_bytes,
                       g.head_bytes);
    kv_fetch<true>(to + g.span * g.head_bytes, tile + g.head_bytes,
                   g.tile_bytes - g.head_bytes);
}

/* Byte i of four as a float: 2^23 + byte is exact. */
KV_DEVICE float kv_byte_float(uint32_t bytes, unsigned i)
{
    return kv_from_bits(kv_bytes(bytes, 0x4b000000, 0x7650 + i)) - 8388608;
}

KV_DEVICE float kv_bf16(uint32_t half)
{
    return kv_from_bits(half << 16);
}

/* ---- floats -------------------------------------------------------------- */

template <int KIND> struct kv_read_floats {
    const kv_gpu_generic &g;

    __device__ float at(const uint8_t *tile, unsigned i) const
    {
        if (KIND == KV_GENERIC_F32)
            return kv_from_bits(kv_load4(tile + i * 4));

        const uint32_t half = kv_load2(tile + i * 2);

        return KIND == KV_GENERIC_BF16 ? kv_bf16(half) : kv_low_f16(half);
    }
    template <bool VALUES>
    __device__ void four(const uint8_t *tile, unsigned inner, unsigned lane,
                         float *x) const
    {
        const unsigned padded = (g.head_dim + 15) / 16 * 16;

#pragma unroll
        for (unsigned j = 0; j < 4; j++) {
            const unsigned c = min(inner + j, g.head_dim - 1);

            x[j] = at(tile,
                      VALUES ? (inner + j) * padded + lane
                             : (lane / 32 * g.head_dim + c) * 32 + lane % 32);
        }
    }
};

template <> struct kv_read_floats<KV_GENERIC_HALVES> {
    const kv_gpu_generic &g;

    template <bool VALUES>
    __device__ void four(const uint8_t *tile, unsigned inner, unsigned lane,
                         float *x) const
    {
#pragma unroll
        for (unsigned j = 0; j < 4; j++) {
            const unsigned t = VALUES ? inner + j : lane;
            const unsigned c = VALUES ? lane : inner + j;

            x[j] = kv_low_f16(
                kv_load2(tile + kv_tile_place(VALUES, t, c, g.head_dim) * 2));
        }
    }
};

/* ---- integers in groups (kernels/integers/layout.c) -------------------------
 */

struct kv_read_integers {
    const kv_gpu_generic &g;

    __device__ uint32_t codes(const uint8_t *tile, unsigned inner,
                              unsigned lane) const
    {
        const unsigned bits = g.of.integers.bits, e = inner % 32 / 4;
        const unsigned block = (unsigned)g.of.integers.inner / 32 * bits * 64;
        const uint8_t *plane = tile + g.span * g.head_bytes +
                               lane / 16 * block + inner / 32 * bits * 64 +
                               lane % 16 * 4;
        uint32_t x = 0;
        unsigned shift = 0;

#pragma unroll
        for (unsigned width = 8; width; width /= 2) {
            const unsigned each = 8 / width;
            const uint32_t mask = ((1u << width) - 1) * 0x01010101u;

            if (bits & width) {
                x |=
                    (kv_load4(plane + e / each * 64) >> e % each * width & mask)
                    << shift;
                shift += width;
                plane += width * 64;
            }
        }
        return x;
    }
    template <bool VALUES>
    __device__ void four(const uint8_t *tile, unsigned inner, unsigned lane,
                         float *x) const
    {
        const kv_integers &p = g.of.integers;
        const bool folded = p.folded;
        const unsigned width = (unsigned)(folded ? p.inner : p.lanes);
        const unsigned run = (unsigned)p.run;
        const unsigned at =
            folded ? lane / run * width + inner : inner / run * width + lane;
        const uint8_t *offsets = tile + p.n_runs * width * 2;
        const uint32_t code = codes(tile, inner, lane);

#pragma unroll
        for (unsigned j = 0; j < 4; j++) {
            const unsigned i = folded ? at + j : at;
            const float step = kv_low_f16(kv_load2(tile + i * 2));
            const float y = kv_byte_float(code, j);

            if (p.offset == KV_OFFSET_LOW)
                x[j] = kv_low_f16(kv_load2(offsets + i * 2)) + step * y;
            else if (p.offset == KV_OFFSET_ZERO)
                x[j] = step * (y - kv_from_bits(kv_load4(offsets + i * 4)));
            else
                x[j] = step * (y - p.zero);
        }
    }
};

/* ---- tables and small floats (kernels/scaled/scaled.h) ---------------------
 */

/* A float of e and m bits, | sign | exponent | mantissa |. */
KV_DEVICE float kv_small_float(unsigned code, unsigned e, unsigned m)
{
    const unsigned size = code & ((1u << (e + m)) - 1);
    const uint32_t rebias = (127u + 128 - (1u << (e - 1))) << 23;

    return kv_from_bits((code >> (e + m) & 1) << 31 | size << (23 - m)) *
           kv_from_bits(rebias);
}

struct kv_read_scaled {
    const kv_gpu_generic &g;

    __device__ unsigned field(const uint8_t *plane, unsigned vector,
                              unsigned lane, unsigned width,
                              unsigned vectors) const
    {
        const unsigned bytes = g.of.scaled.lane_bytes;
        const uint8_t *at = plane + (vector / vectors * 16 + lane) * bytes;
        const uint32_t unit = bytes == 4 ? kv_load4(at) : kv_load2(at);

        return unit >> vector % vectors * width & ((1u << width) - 1);
    }
    __device__ float scale(const uint8_t *scales, unsigned t, unsigned c) const
    {
        const kv_generic_scaled &p = g.of.scaled;
        const unsigned i = min(c / p.group, p.n_groups - 1) * 64 + t;

        switch (p.scale) {
        case KV_SCALE_F16:
            return kv_low_f16(kv_load2(scales + i * 2)) / p.divisor;
        case KV_SCALE_E8M0:
            return kv_from_bits(scales[i] ? (uint32_t)scales[i] << 23
                                          : 1u << 22);
        case KV_SCALE_E4M3:
            return kv_small_float(scales[i], 4, 3);
        case KV_SCALE_NONE:
            break;
        }
        return 1;
    }
    template <bool VALUES>
    __device__ void four(const uint8_t *tile, unsigned inner, unsigned lane,
                         float *x) const
    {
        const kv_generic_scaled &p = g.of.scaled;

#pragma unroll
        for (unsigned j = 0; j < 4; j++) {
            const unsigned t = VALUES ? inner + j : lane;
            const unsigned c = VALUES ? lane : inner + j;
            const uint8_t *part = tile + t / 32 * p.part_bytes;
            const unsigned vector =
                VALUES ? c / 16 * 32 + t % 32 : c * 2 + t % 32 / 16;
            const unsigned in = lane % 16;
            unsigned code = field(part, vector, in, p.low, p.low_vectors);

            if (p.high)
                code |= field(part + p.plane_bytes, vector, in, p.high,
                              p.high_vectors)
                        << p.low;

            const float value = p.e ? kv_small_float(code, p.e, p.m)
                                    : kv_from_bits(kv_load4(g.table + code));

            x[j] = value * scale(tile + 2 * p.part_bytes, t, c);
        }
    }
};

/* ---- levels and outliers (kernels/levels/levels.h)
 * ----------------------------
 */

struct kv_read_levels {
    const kv_gpu_generic &g;

    /* Where a token's outliers start. */
    __device__ unsigned start(const uint8_t *ends, unsigned t) const
    {
        return t ? kv_load2(ends + (t - 1) * 2) : 0;
    }
    template <bool VALUES>
    __device__ void four(const uint8_t *tile, unsigned inner, unsigned lane,
                         float *x) const
    {
        const uint8_t *ends = tile + g.levels.outliers;
        const uint8_t *outliers = ends + KV_TILE_TOKENS * 2;
        unsigned i = start(ends, VALUES ? inner : lane);

        kv_read_scaled{g}.four<VALUES>(tile, inner, lane, x);
        if (VALUES) {
#pragma unroll
            for (unsigned j = 0; j < 4; j++) {
                const unsigned t = inner + j, end = kv_load2(ends + t * 2);

                x[j] += kv_low_f16(kv_load2(tile + g.levels.offsets + t * 2));
                for (; i < end; i++) {
                    const uint32_t outlier = kv_load4(outliers + i * 4);

                    if (outlier % KV_LEVELS_CHANNELS == lane)
                        x[j] = kv_high_f16(outlier);
                }
            }
            return;
        }

        const float *offset =
            g.levels.channels + (size_t)blockIdx.y * 2 * g.head_dim + inner;
        const float *half = offset + g.head_dim;
        const unsigned end = kv_load2(ends + lane * 2);

#pragma unroll
        for (unsigned j = 0; j < 4; j++)
            x[j] = fmaf(half[j], x[j], offset[j]);
        for (; i < end; i++) {
            const uint32_t outlier = kv_load4(outliers + i * 4);
            const unsigned c = outlier % KV_LEVELS_CHANNELS;

#pragma unroll
            for (unsigned j = 0; j < 4; j++)
                if (c == inner + j)
                    x[j] = kv_high_f16(outlier);
        }
    }
};

/* ---- codebook indices (kernels/codebook/codebook.h)
 * --------------------------
 */

struct kv_read_codes {
    const kv_gpu_generic &g;

    template <bool VALUES>
    __device__ unsigned code(const uint8_t *tile, unsigned t,
                             unsigned sub) const
    {
        const kv_generic_codes &p = g.of.codes;
        const bool half = p.bits <= 4;
        const unsigned tokens = half ? 32 : 64, in = t % tokens;

        if (p.order == KV_GENERIC_SHARED) {
            const uint8_t byte =
                tile[VALUES ? (sub / 16 * tokens + in / 4 * 4) * 16 +
                                  sub % 16 * 4 + in % 4
                            : (sub / 4 * tokens + in) * 4 + sub % 4];

            return half ? byte >> t / 32 * 4 & 15 : byte;
        }
        if (half)
            return tile[sub / 2 * 64 + t] >> sub % 2 * 4 & 15;

        const uint8_t *bits = tile + p.n_sub * 64 + t / 8;
        unsigned x = tile[sub * 64 + t];

        for (unsigned bit = 8; bit < p.bits; bit++)
            x |= (bits[(sub * (p.bits - 8) + bit - 8) * 8] >> t % 8 & 1u)
                 << bit;
        return x;
    }
    __device__ const float *entry(unsigned sub, unsigned code) const
    {
        const kv_generic_codes &p = g.of.codes;

        return g.table + (size_t)blockIdx.y * p.books + (size_t)sub * p.book +
               (size_t)code * p.d;
    }
    template <bool VALUES>
    __device__ void four(const uint8_t *tile, unsigned inner, unsigned lane,
                         float *x) const
    {
        const unsigned d = g.of.codes.d, c = VALUES ? lane : inner;
        unsigned sub = c / d, in = c % d;
        const float *from = NULL;

#pragma unroll
        for (unsigned j = 0; j < 4; j++) {
            if (VALUES || j == 0 || in == d) {
                if (!VALUES && in == d) {
                    sub = min(sub + 1, g.of.codes.n_sub - 1);
                    in = 0;
                }
                from = entry(
                    sub, code<VALUES>(tile, VALUES ? inner + j : lane, sub));
            }
            x[j] = kv_from_bits(kv_load4(from + in));
            in += !VALUES;
        }
    }
};

/* ---- rotated rows (generic_rotated.cuh) ------------------------------------
 */

struct kv_read_rotated {
    const kv_gpu_generic &g;

    template <bool VALUES>
    __device__ void four(const uint8_t *tile, unsigned inner, unsigned lane,
                         float *x) const
    {
        const float *channels =
            reinterpret_cast<const float *>(tile + g.tile_bytes);

#pragma unroll
        for (unsigned j = 0; j < 4; j++)
            x[j] = channels[(inner + j) * KV_TILE_TOKENS + lane];
    }
};

/* ---- keys before RoPE -----------------------------------------------------
 */

/* Values read by R, after RoPE: reads each channel together with its
 * partner. */
template <class R> struct kv_read_with_rope {
    const kv_gpu_generic &g;

    template <bool VALUES>
    __device__ void four(const uint8_t *tile, unsigned inner, unsigned lane,
                         float *x) const
    {
        static_assert(!VALUES, "keys turn");
        const unsigned half = g.head_dim / 2;
        const bool high = inner >= half;
        const unsigned pair = high ? inner - half : inner;
        float partner[4];

        R{g}.template four<false>(tile, inner, lane, x);
        R{g}.template four<false>(tile, high ? pair : pair + half, lane,
                                  partner);
#pragma unroll
        for (unsigned j = 0; j < 4; j++) {
            const uint2 a = kv_load8(tile + g.rotate.angles + (pair + j) * 8);
            const uint2 b = kv_load8(g.rotate.within +
                                     ((pair + j) * KV_TILE_TOKENS + lane) * 2);
            const float ac = kv_from_bits(a.x), as = kv_from_bits(a.y);
            const float bc = kv_from_bits(b.x), bs = kv_from_bits(b.y);
            const float cosine = fmaf(ac, bc, -(as * bs));
            const float sine = fmaf(as, bc, ac * bs);

            x[j] = fmaf(partner[j], high ? sine : -sine, x[j] * cosine);
        }
    }
};

/* ---- the reader of a side ------------------------------------------------ */

/* Calls f with the reader for keys or values stored as codes. */
template <bool VALUES, class F>
KV_DEVICE void kv_with_reader(const kv_gpu_generic &g, const F &f)
{
    switch (g.kind) {
    case KV_GENERIC_F32:
        f(kv_read_floats<KV_GENERIC_F32>{g});
        break;
    case KV_GENERIC_F16:
        f(kv_read_floats<KV_GENERIC_F16>{g});
        break;
    case KV_GENERIC_BF16:
        f(kv_read_floats<KV_GENERIC_BF16>{g});
        break;
    case KV_GENERIC_INTEGERS:
        f(kv_read_integers{g});
        break;
    case KV_GENERIC_SCALED:
        f(kv_read_scaled{g});
        break;
    case KV_GENERIC_LEVELS:
        if constexpr (VALUES)
            f(kv_read_levels{g});
        else
            f(kv_read_with_rope<kv_read_levels>{g});
        break;
    case KV_GENERIC_CODES:
        if constexpr (!VALUES)
            if (g.rotate.within) {
                f(kv_read_with_rope<kv_read_codes>{g});
                break;
            }
        f(kv_read_codes{g});
        break;
    case KV_GENERIC_ROTATED:
        if constexpr (!VALUES)
            f(kv_read_with_rope<kv_read_rotated>{g});
        break;
    case KV_GENERIC_HALVES:
        f(kv_read_floats<KV_GENERIC_HALVES>{g});
        break;
    case KV_GENERIC_HACK:
        break;
    }
}

#endif
