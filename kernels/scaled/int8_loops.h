/* Path int8 of tiles_scaled_int8.h with registers of WIDTH lanes of 32 bits.
 * Included by tiles_scaled_int8_avx2.c and _vnni.c, which name them:
 *
 *   vi, vf, table         integers, floats; 16 bytes
 *   FOUR_ROWS             no more than four pass together
 *   i_load i_shr i_and(x, bits)     the same bits of every lane
 *   i_join(two, one)      bits 0, 1 of each byte of two, bit 2 of one
 *   i_nibbles(x, at)      bits [at + 4 j, at + 4 j + 4) of a lane at the bottom
 *                         of its byte j, anything above them; at: 0 or 16
 *   t_load(near)          a table, t_look(t, x) by the low four bits of bytes,
 *                         the others of which are 0
 *   i_start(bias), i_dot(sum, looked, four)   sums of products of four bytes
 *   i_bias(w)             what i_start() wants beside w [64]; 0 if nothing
 *   i_order(w, order, quads)        quads[i] = w[order[i]], 64 of them, each of
 *                         the same half
 *   f_of(x) f_all f_load f_store f_mul f_fma */
#include "kernels/scaled/int8.h"
#include "kernels/simd/prefetch.h"
#include "kernels/tiles/impl.h"

enum {
    LANES = KV_SCALED_LANES,
    UNIT = 64, /* bytes of a unit of a plane */
    PARTS = KV_SCALED_PARTS,
    MOST_FIELDS = 8
};

#define EVERY_BITS(X, ROWS) X(1, ROWS) X(2, ROWS) X(3, ROWS) X(4, ROWS)
#define FOUR(X) \
    EVERY_BITS(X, 1) EVERY_BITS(X, 2) EVERY_BITS(X, 3) EVERY_BITS(X, 4)
#ifdef FOUR_ROWS
#define EVERY_CASE(X) FOUR(X)
enum { MOST_ROWS = 4 };
#else
#define EVERY_CASE(X) \
    FOUR(X) EVERY_BITS(X, 5) EVERY_BITS(X, 6) EVERY_BITS(X, 7) EVERY_BITS(X, 8)
enum { MOST_ROWS = 8 };
#endif

/* The planes of a part. */
struct planes {
    const uint8_t *low, *high;
};

static void find_planes(const struct kv_store *s, const uint8_t *tile,
                        struct planes of[PARTS])
{
    const size_t low = kv_scaled_plane_bytes(s, 0);
    const size_t both = kv_scaled_part_bytes(s);

    for (size_t i = 0; i < PARTS; i++, tile += both)
        of[i] = (struct planes){tile, tile + low};
}

/* Lanes of unit u of the low plane, and of what the high one has for them. */
struct raw {
    vi low, high;
};

ALWAYS_INLINE struct raw load(struct planes p, unsigned bits, size_t u,
                              size_t lane)
{
    const uint8_t *low = p.low + u * UNIT, *high = p.high + u / 2 * UNIT;
    struct raw r;

    r.low = i_load(low + 4 * lane);
    if (bits != 3)
        return r;
    r.high = i_load(high + 4 * lane);
    r.high = u % 2 ? i_nibbles(r.high, 16) : i_nibbles(r.high, 0);
    return r;
}

/* What field f of each byte stands for. */
ALWAYS_INLINE vi value(struct raw r, unsigned bits, table t, unsigned f)
{
    const vi low = i_shr(r.low, f * kv_scaled_width(bits, 0));

    if (bits == 3)
        return t_look(t, i_join(low, i_shr(r.high, f)));
    return t_look(t, i_and(low, 0x0f0f0f0f)); /* tables repeat themselves */
}

/* Rows' quads, `apart` bytes from one to the next, meet x: every by-th sum. */
ALWAYS_INLINE void meet(vi x, const int8_t *quad, size_t apart, size_t rows,
                        vi *sum, size_t by)
{
    UNROLL
    for (size_t i = 0; i < rows; i++) {
        int32_t four;

        memcpy(&four, quad + i * apart, sizeof(four));
        sum[i * by] = i_dot(sum[i * by], x, four);
    }
}

/* ---- keys ---------------------------------------------------------------- */

/* Lanes [lane, lane + WIDTH) of a part's halves, of one group; code: [quads]
 * [all][4].  bits, rows: constants. */
ALWAYS_INLINE void score_lanes(const struct kv_store *s, struct planes p,
                               size_t group, const int8_t *code, size_t all,
                               unsigned bits, size_t rows, size_t lane, table t,
                               vi sum[MOST_ROWS][2])
{
    const unsigned fields = (unsigned)kv_scaled_fields(bits);
    const size_t channels = 2 * fields, n = kv_scaled_of(s)->group;
    const size_t first = group * n / channels;

    code += group * n * all;
    for (size_t u = 0; u * channels < n; u++) {
        const struct raw r = load(p, bits, first + u, lane);

        if (!lane)
            kv_prefetch(p.low + (first + u) * UNIT, UNIT);
        if (!lane && bits == 3 && u % 2 == 0)
            kv_prefetch(p.high + (first + u) / 2 * UNIT, UNIT);
        UNROLL
        for (unsigned f = 0; f < MOST_FIELDS; f++)
            if (f < fields)
                meet(value(r, bits, t, f), code + f / 2 * all * 4, 4, rows,
                     &sum[0][f % 2], 2);
        code += channels * all;
    }
}

ALWAYS_INLINE void qk_some(const struct kv_store *s,
                           const struct planes planes[PARTS],
                           struct kv_scaled_query q, size_t all,
                           const float *scale, unsigned bits, size_t rows,
                           float *score, size_t stride)
{
    const table t = t_load(kv_scaled_of(s)->near);

    for (size_t part = 0; part < PARTS; part++)
        for (size_t g = 0; g < kv_scaled_groups(s); g++)
            for (size_t lane = 0; lane < LANES; lane += WIDTH) {
                vi sum[MOST_ROWS][2];

                UNROLL
                for (size_t i = 0; i < 2 * rows; i++)
                    sum[i / 2][i % 2] =
                        i_start(q.bias[g * KV_TILE_ROWS + i / 2]);
                score_lanes(s, planes[part], g, q.code, all, bits, rows, lane,
                            t, sum);
                UNROLL
                for (size_t i = 0; i < 2 * rows; i++) {
                    const size_t at =
                        part * KV_TILE_PART + i % 2 * LANES + lane;
                    const vf by = f_load(scale + g * KV_TILE_TOKENS + at);
                    const vf x =
                        f_mul(f_all(q.factor[g * KV_TILE_ROWS + i / 2]),
                              f_of(sum[i / 2][i % 2]));
                    float *to = score + i / 2 * stride + at;

                    f_store(to, g ? f_fma(by, x, f_load(to)) : f_mul(by, x));
                }
            }
}

static void qk(const struct kv_store *s, const uint8_t *tile,
               struct kv_scaled_query q, const float *scale, size_t rows,
               float *score, size_t stride)
{
    const size_t all = rows;
    struct planes planes[PARTS];

    find_planes(s, tile, planes);
    for (size_t some; rows; rows -= some) {
        some = kv_min(rows, MOST_ROWS);
        switch (kv_scaled_of(s)->bits * 16 + some) {
#define CASE(BITS, R)                                              \
    case BITS * 16 + R:                                            \
        qk_some(s, planes, q, all, scale, BITS, R, score, stride); \
        break;
            EVERY_CASE(CASE)
#undef CASE
        }
        q.factor += some;
        q.bias += some;
        q.code += 4 * some;
        score += some * stride;
    }
}

/* ---- values -------------------------------------------------------------- */

/* Weights of a group as they are met. */
struct weights {
    int8_t quad[KV_TILE_ROWS][KV_TILE_TOKENS];
    float factor[KV_TILE_ROWS];
    int32_t bias[KV_TILE_ROWS];
};

static void weigh(const struct kv_scaled *c, const float *scale, const float *p,
                  size_t stride, size_t rows, struct weights *w)
{
    float x[KV_TILE_ROWS][KV_TILE_TOKENS];
    int8_t code[KV_TILE_ROWS][KV_TILE_TOKENS];

    for (size_t t = 0; t < KV_TILE_TOKENS; t += WIDTH)
        for (size_t r = 0; r < rows; r++)
            f_store(x[r] + t,
                    f_mul(f_load(p + r * stride + t), f_load(scale + t)));
    kv_tile_loops()->round8(x[0], KV_TILE_TOKENS, rows, KV_TILE_TOKENS, code[0],
                            KV_TILE_TOKENS, w->factor);
    for (size_t r = 0; r < rows; r++) {
        w->factor[r] *= c->unit;
        w->bias[r] = i_bias(code[r]);
        i_order(code[r], c->order, w->quad[r]);
    }
}

/* 16 channels, the block-th; lanes [lane, lane + WIDTH) of them; rows from
 * `row` on. */
ALWAYS_INLINE void pv_lanes(const struct kv_store *s,
                            const struct planes planes[PARTS], size_t block,
                            const struct weights *w, unsigned bits, size_t row,
                            size_t rows, size_t lane, float *acc)
{
    const unsigned fields = (unsigned)kv_scaled_fields(bits);
    const size_t units = MOST_FIELDS / fields, padded = kv_padded(s->head_dim);
    const table t = t_load(kv_scaled_of(s)->near);
    /* both parts are read by turns: an even pace over the tile */
    const uint8_t *ahead = planes[0].low + block * PARTS * bits * UNIT;
    vi sum[MOST_ROWS];

    UNROLL
    for (size_t i = 0; i < rows; i++)
        sum[i] = i_start(w->bias[row + i]);
    for (size_t part = 0; part < PARTS; part++)
        UNROLL
    for (size_t u = 0; u < units; u++) {
        const int8_t *quad =
            w->quad[row] + part * KV_TILE_PART + u * fields * 4;
        const struct raw r = load(planes[part], bits, block * units + u, lane);

        if (!lane)
            kv_prefetch(ahead + (part * bits + u) * UNIT, UNIT);
        if (!lane && bits == 3 && u == 0)
            kv_prefetch(ahead + (part * bits + 2) * UNIT, UNIT);
        UNROLL
        for (unsigned f = 0; f < MOST_FIELDS; f++)
            if (f < fields)
                meet(value(r, bits, t, f), quad + f * 4, KV_TILE_TOKENS, rows,
                     sum, 1);
    }
    acc += row * padded + block * LANES + lane;
    UNROLL
    for (size_t i = 0; i < rows; i++, acc += padded)
        f_store(acc,
                f_fma(f_all(w->factor[row + i]), f_of(sum[i]), f_load(acc)));
}

/* Channels [c, end), of one group. */
ALWAYS_INLINE void pv_some(const struct kv_store *s,
                           const struct planes planes[PARTS],
                           const struct weights *w, size_t c, size_t end,
                           unsigned bits, size_t row, size_t rows, float *acc)
{
    for (; c < end; c += LANES)
        for (size_t lane = 0; lane < LANES; lane += WIDTH)
            pv_lanes(s, planes, c / LANES, w, bits, row, rows, lane, acc);
}

static void pv(const struct kv_store *s, const uint8_t *tile,
               const float *scale, const float *p, size_t stride, size_t rows,
               float *acc)
{
    const size_t group = kv_scaled_of(s)->group;
    struct planes planes[PARTS];
    struct weights w;

    find_planes(s, tile, planes);
    for (size_t c = 0; c < s->head_dim; c += group, scale += KV_TILE_TOKENS) {
        weigh(kv_scaled_of(s), scale, p, stride, rows, &w);
        for (size_t row = 0, some; row < rows; row += some) {
            some = kv_min(rows - row, MOST_ROWS);
            switch (kv_scaled_of(s)->bits * 16 + some) {
#define CASE(BITS, R)                                            \
    case BITS * 16 + R:                                          \
        pv_some(s, planes, &w, c, c + group, BITS, row, R, acc); \
        break;
                EVERY_CASE(CASE)
#undef CASE
            }
        }
    }
}

const struct kv_scaled_int8 NAME(kv_scaled_int8) = {qk, pv};
