/* Path int8 of kernels/scaled/impl.h.  Included by avx2.c and vnni.c, which
 * define:
 *
 *   nibbles(x, at)        bits [at + 4 j, at + 4 j + 4) of a lane at the bottom
 *                         of its byte j, anything above them; at: 0 or 16
 *   near_table(near)      a table for v_lookup_i8()
 *   query_bias(bias)      the start of sums of keys
 *   weight_bias(w)        the start of sums of values
 *   dot(sum, looked, four)          sums of products of four bytes
 *   order_quads(w, order, quads)    quads[i] = w[order[i]], i < 64; i and
 *                         order[i] are in the same half */
#include "kernels/scaled/impl.h"
#include "kernels/simd/prefetch.h"

enum {
    INT8_LANES = KV_SCALED_LANES,
    UNIT = 64, /* bytes of a unit of a plane */
    PARTS = KV_SCALED_PARTS,
    MAX_FIELDS = 8
};

#define EVERY_BITS(X, ROWS) X(1, ROWS) X(2, ROWS) X(3, ROWS) X(4, ROWS)
#define EVERY_INT8(X) \
    EVERY_BITS(X, 1) EVERY_BITS(X, 2) EVERY_BITS(X, 3) EVERY_BITS(X, 4)
enum { INT8_ROWS = 4 };

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

/* Lanes of unit u of the low plane, and the bits of the high plane for them. */
struct raw8 {
    vi32 low, high;
};

ALWAYS_INLINE struct raw8 load8(struct planes p, unsigned bits, size_t u,
                                size_t lane)
{
    const uint8_t *low = p.low + u * UNIT, *high = p.high + u / 2 * UNIT;
    struct raw8 r;

    r.low = v_load_i32(low + 4 * lane);
    if (bits != 3)
        return r;
    r.high = v_load_i32(high + 4 * lane);
    r.high = u % 2 ? nibbles(r.high, 16) : nibbles(r.high, 0);
    return r;
}

/* The table's number for field f of each byte. */
ALWAYS_INLINE vi32 value8(struct raw8 r, unsigned bits, vi32 t, unsigned f)
{
    const vi32 low = v_shr_i32(r.low, f * kv_scaled_width(bits, 0));
    vi32 third;

    if (bits != 3) /* tables repeat themselves */
        return v_lookup_i8(t, v_and(low, v_set1_i32(0x0f0f0f0f)));
    third = v_shl_i32(v_shr_i32(r.high, f), 2);
    return v_lookup_i8(t, v_or(v_and(low, v_set1_i32(0x03030303)),
                               v_and(third, v_set1_i32(0x04040404))));
}

/* Multiplies rows' quads, `apart` bytes apart, with x and adds to every by-th
 * sum. */
ALWAYS_INLINE void meet(vi32 x, const int8_t *quad, size_t apart, size_t rows,
                        vi32 *sum, size_t by)
{
    UNROLL
    for (size_t i = 0; i < rows; i++) {
        int32_t four;

        memcpy(&four, quad + i * apart, sizeof(four));
        sum[i * by] = dot(sum[i * by], x, four);
    }
}

/* ---- keys ---------------------------------------------------------------- */

/* Scores lanes [lane, lane + V_WIDTH) of a part's halves over one group; code:
 * [quads][all][4].  bits, rows: constants. */
ALWAYS_INLINE void score_lanes(const struct kv_store *s, struct planes p,
                               size_t group, const int8_t *code, size_t all,
                               unsigned bits, size_t rows, size_t lane, vi32 t,
                               vi32 sum[INT8_ROWS][2])
{
    const unsigned fields = (unsigned)kv_scaled_fields(bits);
    const size_t channels = 2 * fields, n = kv_scaled_of(s)->group;
    const size_t first = group * n / channels;

    code += group * n * all;
    for (size_t u = 0; u * channels < n; u++) {
        const struct raw8 r = load8(p, bits, first + u, lane);

        if (!lane)
            kv_prefetch(p.low + (first + u) * UNIT, UNIT);
        if (!lane && bits == 3 && u % 2 == 0)
            kv_prefetch(p.high + (first + u) / 2 * UNIT, UNIT);
        UNROLL
        for (unsigned f = 0; f < MAX_FIELDS; f++)
            if (f < fields)
                meet(value8(r, bits, t, f), code + f / 2 * all * 4, 4, rows,
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
    const vi32 t = near_table(kv_scaled_of(s)->near);

    for (size_t part = 0; part < PARTS; part++)
        for (size_t g = 0; g < kv_scaled_groups(s); g++)
            for (size_t lane = 0; lane < INT8_LANES; lane += V_WIDTH) {
                vi32 sum[INT8_ROWS][2];

                UNROLL
                for (size_t i = 0; i < 2 * rows; i++)
                    sum[i / 2][i % 2] = v_set1_i32(
                        query_bias(q.bias[g * KV_TILE_ROWS + i / 2]));
                score_lanes(s, planes[part], g, q.code, all, bits, rows, lane,
                            t, sum);
                UNROLL
                for (size_t i = 0; i < 2 * rows; i++) {
                    const size_t at =
                        part * KV_TILE_PART + i % 2 * INT8_LANES + lane;
                    const vf32 by = v_load(scale + g * KV_TILE_TOKENS + at);
                    const vf32 x =
                        v_mul(v_set1(q.factor[g * KV_TILE_ROWS + i / 2]),
                              v_from_i32(sum[i / 2][i % 2]));
                    float *to = score + i / 2 * stride + at;

                    v_store(to, g ? v_fmadd(by, x, v_load(to)) : v_mul(by, x));
                }
            }
}

static void qk8(const struct kv_store *s, const uint8_t *tile,
                struct kv_scaled_query q, const float *scale, size_t rows,
                float *score, size_t stride)
{
    const size_t all = rows;
    struct planes planes[PARTS];

    find_planes(s, tile, planes);
    for (size_t some; rows; rows -= some) {
        some = kv_min(rows, INT8_ROWS);
        switch (kv_scaled_of(s)->bits * 16 + some) {
#define CASE(BITS, R)                                              \
    case BITS * 16 + R:                                            \
        qk_some(s, planes, q, all, scale, BITS, R, score, stride); \
        break;
            EVERY_INT8(CASE)
#undef CASE
        }
        q.factor += some;
        q.bias += some;
        q.code += 4 * some;
        score += some * stride;
    }
}

/* ---- values -------------------------------------------------------------- */

/* A group's weights, in the order of the products. */
struct weights {
    int8_t quad[KV_TILE_ROWS][KV_TILE_TOKENS];
    int32_t bias[KV_TILE_ROWS];
    const float *factor;
};

static void order_weights(const struct kv_scaled *c,
                          const struct kv_scaled_weights *from, size_t rows,
                          struct weights *w)
{
    w->factor = from->factor;
    for (size_t r = 0; r < rows; r++) {
        w->bias[r] = weight_bias(from->code[r]);
        order_quads(from->code[r], c->order, w->quad[r]);
    }
}

/* Adds weights times values of lanes [lane, lane + V_WIDTH) of block `block` of
 * 16 channels to acc, for rows from `row` on. */
ALWAYS_INLINE void pv_lanes(const struct kv_store *s,
                            const struct planes planes[PARTS], size_t block,
                            const struct weights *w, unsigned bits, size_t row,
                            size_t rows, size_t lane, float *acc)
{
    const unsigned fields = (unsigned)kv_scaled_fields(bits);
    const size_t units = MAX_FIELDS / fields, padded = kv_padded(s->head_dim);
    const vi32 t = near_table(kv_scaled_of(s)->near);
    /* parts alternate: an even pace over the tile */
    const uint8_t *ahead = planes[0].low + block * PARTS * bits * UNIT;
    vi32 sum[INT8_ROWS];

    UNROLL
    for (size_t i = 0; i < rows; i++)
        sum[i] = v_set1_i32(w->bias[row + i]);
    for (size_t part = 0; part < PARTS; part++)
        UNROLL
    for (size_t u = 0; u < units; u++) {
        const int8_t *quad =
            w->quad[row] + part * KV_TILE_PART + u * fields * 4;
        const struct raw8 r =
            load8(planes[part], bits, block * units + u, lane);

        if (!lane)
            kv_prefetch(ahead + (part * bits + u) * UNIT, UNIT);
        if (!lane && bits == 3 && u == 0)
            kv_prefetch(ahead + (part * bits + 2) * UNIT, UNIT);
        UNROLL
        for (unsigned f = 0; f < MAX_FIELDS; f++)
            if (f < fields)
                meet(value8(r, bits, t, f), quad + f * 4, KV_TILE_TOKENS, rows,
                     sum, 1);
    }
    acc += row * padded + block * INT8_LANES + lane;
    UNROLL
    for (size_t i = 0; i < rows; i++, acc += padded)
        v_store(acc, v_fmadd(v_set1(w->factor[row + i]), v_from_i32(sum[i]),
                             v_load(acc)));
}

/* Adds weights times values of channels [c, end), of one group. */
ALWAYS_INLINE void pv_some(const struct kv_store *s,
                           const struct planes planes[PARTS],
                           const struct weights *w, size_t c, size_t end,
                           unsigned bits, size_t row, size_t rows, float *acc)
{
    for (; c < end; c += INT8_LANES)
        for (size_t lane = 0; lane < INT8_LANES; lane += V_WIDTH)
            pv_lanes(s, planes, c / INT8_LANES, w, bits, row, rows, lane, acc);
}

static void pv8(const struct kv_store *s, const uint8_t *tile,
                const struct kv_scaled_weights *w, size_t rows, float *acc)
{
    const struct kv_scaled *k = kv_scaled_of(s);
    struct planes planes[PARTS];
    struct weights met;

    find_planes(s, tile, planes);
    for (size_t c = 0; c < s->head_dim; c += k->group, w++) {
        order_weights(k, w, rows, &met);
        for (size_t row = 0, some; row < rows; row += some) {
            some = kv_min(rows - row, INT8_ROWS);
            switch (k->bits * 16 + some) {
#define CASE(BITS, R)                                                 \
    case BITS * 16 + R:                                               \
        pv_some(s, planes, &met, c, c + k->group, BITS, row, R, acc); \
        break;
                EVERY_INT8(CASE)
#undef CASE
            }
        }
    }
}

const struct kv_scaled_int8 NAME(kv_scaled_int8) = {qk8, pv8};
