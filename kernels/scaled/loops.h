/* The loops of tiles_scaled.h for one instruction set.  Included by
 * tiles_scaled_c.c, _avx2.c and _avx512.c, which name the registers of 16
 * lanes:
 *
 *   vd            integers of 32 bits: d_load d_shr d_shl
 *   vw            of 16 bits: w_load w_shr w_shl w_and; w_bytes: from bytes;
 *                 w_sar: shifts the sign in
 *   d_pick w_pick(bits, x, y)   these bits of x, the others of y
 *   vf            floats: f_load f_all f_mul f_div f_fma f_store, and f_add
 *                 where PIECES is not named
 *   f_half f_e8m0 of vw, fp16; a power p of two for 2^(p - 127)
 *   table         16 floats, t_load; t_look(t, d) by the low four bits of lanes
 *   f_store_some(p, x, n)   the first n of x, then zeros
 *   HALVES(rows)            halves of a part that are scored together, 1 or 2
 *   PIECES                  of a vf, 1 if not named: two sums of each of four
 *                           rows fit the registers by pieces.  vp: p_of(x, i)
 *                           p_load p_all p_add p_fma p_store
 *   FOUR_ROWS               no more than four pass together
 *   PLAIN, ROLLED           nothing is inlined for a constant; loops over a
 *                           batch stay loops */
#include "kernels/scaled/impl.h"
#include "kernels/simd/prefetch.h"

#ifdef PLAIN
#undef ALWAYS_INLINE
#undef UNROLL
#define ALWAYS_INLINE static
#define UNROLL
#endif

#ifndef PIECES
#define PIECES 1
#define p_of(x, i) (x)
#define p_load f_load
#define p_all f_all
#define p_add f_add
#define p_fma f_fma
#define p_store f_store
typedef vf vp;
#endif

#ifdef FOUR_ROWS
#define EVERY_ROWS(X) X(1) X(2) X(3) X(4)
enum { MOST_ROWS = 4 };
#else
#define EVERY_ROWS(X) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8)
enum { MOST_ROWS = 8 };
#endif

#ifdef ROLLED
#define UNROLL_BATCH
#else
#define UNROLL_BATCH UNROLL
#endif

/* Vectors that are worked on together: a unit of the plane with most of them.
 * bits, of the code, are a constant here and below. */
ALWAYS_INLINE unsigned batch(unsigned bits)
{
    return bits == 8 ? 2 : bits == 6 || bits == 4 ? 8 : bits == 2 ? 16 : 32;
}

/* A batch as loaded. */
struct raw {
    vd low[2], high; /* 1 to 4 bits */
    vw low16[2], high16;
};

ALWAYS_INLINE struct raw load(const uint8_t *low, const uint8_t *high,
                              unsigned bits, size_t v)
{
    const unsigned w = kv_scaled_width(bits, 0), rest = bits - w;
    const unsigned unit = bits <= 4 ? 64 : 32, per = unit / 2 / w;
    struct raw r;

    low += v / per * unit;
    high += rest ? v / (unit / 2 / rest) * unit : 0;
    kv_prefetch(low, batch(bits) / per * unit);
    if (rest)
        kv_prefetch(high, unit);
    UNROLL
    for (unsigned i = 0; i < batch(bits) / per; i++) {
        if (bits <= 4)
            r.low[i] = d_load(low + i * unit);
        else
            r.low16[i] = w_load(low + i * unit);
    }
    if (rest && bits <= 4)
        r.high = d_load(high);
    else if (rest)
        r.high16 = w_load(high);
    return r;
}

/* Bit `from` of lanes moved to bit `to`. */
ALWAYS_INLINE vd d_move(vd x, unsigned from, unsigned to)
{
    return from < to ? d_shl(x, to - from) : d_shr(x, from - to);
}

ALWAYS_INLINE vw w_move(vw x, unsigned from, unsigned to)
{
    return from < to ? w_shl(x, to - from) : w_shr(x, from - to);
}

/* Codes of a small float are fp16 of another exponent.  x: codes at the top of
 * lanes, anything below them. */
ALWAYS_INLINE vw as_half(unsigned bits, unsigned m, vw x)
{
    const unsigned less = 5 - (bits - 1 - m); /* bits of exponent */
    const unsigned low = (1u << (10 - m)) - 1;

    return w_and(w_sar(x, less), 0x8000 | (0x7fff >> less & ~low));
}

/* Vector k of a batch, without its scale.  m: of a format. */
ALWAYS_INLINE vf value(const struct raw *r, unsigned bits, unsigned m, table t,
                       unsigned k)
{
    const unsigned w = kv_scaled_width(bits, 0), rest = bits - w;
    const unsigned per = (bits <= 4 ? 32 : 16) / w, at = w * (k % per);

    if (bits == 3) /* the table repeats itself: whatever bit 3 is */
        return t_look(
            t, d_pick(3, d_shr(r->low[k / per], at), d_move(r->high, k, 2)));
    if (bits <= 4)
        return t_look(t, d_shr(r->low[0], at));

    const vw low = w_move(r->low16[k / per], at, 16 - bits);

    if (!rest)
        return f_half(as_half(bits, m, low));
    return f_half(
        as_half(bits, m, w_pick(0xc000, w_move(r->high16, rest * k, 14), low)));
}

/* ---- scales -------------------------------------------------------------- */

/* to: [groups][32].  Products by a power of two are exact: scales of halves
 * are far from the end of floats. */
ALWAYS_INLINE void scales_of(const struct kv_store *s, const uint8_t *tile,
                             size_t part, float *to)
{
    const struct kv_scaled *c = kv_scaled_of(s);
    const size_t bytes = kv_scaled_scale_bytes(c);
    const uint8_t *from = tile + KV_SCALED_PARTS * kv_scaled_part_bytes(s) +
                          part * KV_TILE_PART * bytes;
    const float rebias = kv_scaled_rebias(c);
    const vf by = f_all(rebias), divisor = f_all(c->divisor);
    const bool divided = c->divisor != 1;  /* slow */
    const vf by8 = f_all(0x1p8f * rebias); /* e4m3 too is another fp16 */

    for (size_t i = 0; i < s->head_dim / c->group; i++)
        for (size_t t = 0; t < KV_TILE_PART; t += 16, to += 16) {
            const uint8_t *at = from + (i * KV_TILE_TOKENS + t) * bytes;
            vf x;

            switch (c->scale) {
            case KV_SCALE_NONE:
                f_store(to, by);
                break;
            case KV_SCALE_F16:
                x = f_half(w_load(at));
                f_store(to, f_mul(divided ? f_div(x, divisor) : x, by));
                break;
            case KV_SCALE_E8M0:
                f_store(to, f_mul(f_e8m0(w_bytes(at)), by));
                break;
            case KV_SCALE_E4M3:
                x = f_half(as_half(8, 3, w_shl(w_bytes(at), 8)));
                f_store(to, f_mul(x, by8));
                break;
            }
        }
}

/* ---- expand -------------------------------------------------------------- */

struct work {
    const struct kv_store *s;
    const uint8_t *low, *high; /* planes of the part */
    const float *scale;        /* [groups][32] */
    size_t group;
};

/* Vectors [v, v + n) of a batch to x, as kv_family's expand() has it. */
ALWAYS_INLINE void expand_some(const struct work *k, bool values, unsigned bits,
                               unsigned m, table t, size_t v, size_t n,
                               float *x)
{
    const size_t d = k->s->head_dim, padded = kv_padded(d);
    const size_t channel = values ? v / KV_TILE_PART * 16 : v / 2;
    const float *scale = k->scale + channel / k->group * KV_TILE_PART +
                         (values ? v % KV_TILE_PART : 0);
    const size_t left = values ? d - channel : 16;
    const struct raw r = load(k->low, k->high, bits, v);

    x += values ? v % KV_TILE_PART * padded + channel : v * 16;
    UNROLL_BATCH
    for (unsigned i = 0; i < batch(bits); i++) {
        const vf by = values ? f_all(scale[i]) : f_load(scale + i % 2 * 16);
        const vf y = f_mul(value(&r, bits, m, t, i), by);

        if (i >= n)
            return;
        if (left < 16)
            f_store_some(x, y, left);
        else
            f_store(x, y);
        x += values ? padded : 16;
    }
}

ALWAYS_INLINE void expand_bits(const struct work *k, bool values, unsigned bits,
                               unsigned m, float *x)
{
    const size_t n = kv_scaled_vectors(k->s);
    const table t = t_load(kv_scaled_of(k->s)->table);

    for (size_t v = 0; v < n; v += batch(bits))
        expand_some(k, values, bits, m, t, v, n - v, x);
}

/* ---- qk -------------------------------------------------------------- */

/* Channels [c, c + n) of a batch, halves [h, h + wide), into sum. */
ALWAYS_INLINE void dot_batch(const struct work *k, unsigned bits, unsigned m,
                             table t, size_t c, size_t n, const float *q,
                             size_t q_row, size_t rows, size_t h, size_t wide,
                             vf sum[MOST_ROWS][2])
{
    const struct raw r = load(k->low, k->high, bits, c * 2);

    UNROLL_BATCH
    for (unsigned i = 0; i < batch(bits) / 2; i++) {
        if (i >= n)
            return;
        UNROLL
        for (unsigned j = 0; j < wide; j++) {
            const vf x = value(&r, bits, m, t, 2 * i + (unsigned)h + j);

            UNROLL
            for (size_t row = 0; row < rows; row++)
                sum[row][j] =
                    f_fma(f_all(q[(c + i) * q_row + row]), x, sum[row][j]);
        }
    }
}

/* Halves [h, h + wide) of a part; a group is whole batches, or the head. */
ALWAYS_INLINE void dot_halves(const struct work *k, unsigned bits, unsigned m,
                              const float *q, size_t q_row, size_t rows,
                              size_t h, size_t wide, float *score,
                              size_t stride)
{
    const size_t d = k->s->head_dim;
    const table t = t_load(kv_scaled_of(k->s)->table);
    vf all[MOST_ROWS][2];

    UNROLL
    for (size_t r = 0; r < rows; r++)
        UNROLL
    for (size_t j = 0; j < wide; j++)
        all[r][j] = f_all(0);
    for (size_t g = 0; g < d; g += k->group) {
        const float *scale = k->scale + g / k->group * KV_TILE_PART + h * 16;
        vf sum[MOST_ROWS][2];

        UNROLL
        for (size_t r = 0; r < rows; r++)
            UNROLL
        for (size_t j = 0; j < wide; j++)
            sum[r][j] = f_all(0);
        for (size_t c = g; c < g + k->group; c += batch(bits) / 2)
            dot_batch(k, bits, m, t, c, g + k->group - c, q, q_row, rows, h,
                      wide, sum);
        UNROLL
        for (size_t r = 0; r < rows; r++)
            UNROLL
        for (size_t j = 0; j < wide; j++)
            all[r][j] = f_fma(f_load(scale + j * 16), sum[r][j], all[r][j]);
    }
    UNROLL
    for (size_t r = 0; r < rows; r++)
        UNROLL
    for (size_t j = 0; j < wide; j++)
        f_store(score + r * stride + (h + j) * 16, all[r][j]);
}

ALWAYS_INLINE void dot_rows(const struct work *k, unsigned bits, unsigned m,
                            const float *q, size_t q_row, size_t rows,
                            float *score, size_t stride)
{
    const size_t wide = HALVES(rows);

    for (size_t h = 0; h < 2; h += wide)
        dot_halves(k, bits, m, q, q_row, rows, h, wide, score, stride);
}

/* ---- pv -------------------------------------------------------------- */

/* A piece of a block of 16 channels of a part; p: [rows][32], times the scales.
 * Two sums a row, or the chain of additions would be waited for. */
ALWAYS_INLINE void add_piece(const struct work *k, unsigned bits, unsigned m,
                             table t, size_t block, unsigned piece,
                             const float *p, size_t rows, float *acc,
                             size_t padded)
{
    vp sum[MOST_ROWS][2];

    acc += block * 16 + piece * (16 / PIECES);
    UNROLL
    for (size_t r = 0; r < rows; r++) {
        sum[r][0] = p_load(acc + r * padded);
        sum[r][1] = p_all(0);
    }
    for (size_t v = 0; v < KV_TILE_PART; v += batch(bits)) {
        const struct raw raw =
            load(k->low, k->high, bits, block * KV_TILE_PART + v);

        UNROLL_BATCH
        for (unsigned i = 0; i < batch(bits); i += 2)
            UNROLL
        for (unsigned j = 0; j < 2; j++) {
            const vp x = p_of(value(&raw, bits, m, t, i + j), piece);

            UNROLL
            for (size_t r = 0; r < rows; r++)
                sum[r][j] =
                    p_fma(p_all(p[r * KV_TILE_PART + v + i + j]), x, sum[r][j]);
        }
    }
    UNROLL
    for (size_t r = 0; r < rows; r++)
        p_store(acc + r * padded, p_add(sum[r][0], sum[r][1]));
}

ALWAYS_INLINE void add_rows(const struct work *k, unsigned bits, unsigned m,
                            const float *p, size_t stride, size_t rows,
                            float *acc)
{
    const size_t padded = kv_padded(k->s->head_dim);
    const table t = t_load(kv_scaled_of(k->s)->table);
    float w[KV_SCALED_SCALES * MOST_ROWS]; /* [groups][rows][32] */

    for (size_t g = 0; g * k->group < k->s->head_dim; g++)
        for (size_t r = 0; r < rows; r++)
            for (size_t i = 0; i < KV_TILE_PART; i += 16)
                f_store(w + (g * rows + r) * KV_TILE_PART + i,
                        f_mul(f_load(p + r * stride + i),
                              f_load(k->scale + g * KV_TILE_PART + i)));
    for (size_t block = 0; block < padded / 16; block++)
        UNROLL
    for (unsigned piece = 0; piece < PIECES; piece++)
        add_piece(k, bits, m, t, block, piece,
                  w + block * 16 / k->group * rows * KV_TILE_PART, rows, acc,
                  padded);
}

/* ---- every constant there is --------------------------------------------- */

/* X(bits, m): tables, and e4m3 and e5m2, e2m3 and e3m2. */
#define EVERY_CODE(X, ...) \
    X(1, 0, __VA_ARGS__)   \
    X(2, 0, __VA_ARGS__)   \
    X(3, 0, __VA_ARGS__)   \
    X(4, 0, __VA_ARGS__)   \
    X(6, 2, __VA_ARGS__)   \
    X(6, 3, __VA_ARGS__) X(8, 2, __VA_ARGS__) X(8, 3, __VA_ARGS__)

static unsigned code_number(const struct kv_scaled *c)
{
    return c->bits * 4 + (c->format && c->bits > 4 ? c->format->m : 0);
}

static struct work work_of(const struct kv_store *s, const uint8_t *tile,
                           size_t part, float *scale)
{
    const uint8_t *low = tile + part * kv_scaled_part_bytes(s);

    scales_of(s, tile, part, scale);
    return (struct work){.s = s,
                         .low = low,
                         .high = low + kv_scaled_plane_bytes(s, 0),
                         .scale = scale,
                         .group = kv_scaled_of(s)->group};
}

static void expand(const struct kv_store *s, const uint8_t *tile, size_t part,
                   float *x)
{
    float scale[KV_SCALED_SCALES];
    const struct work k = work_of(s, tile, part, scale);

    switch (code_number(kv_scaled_of(s)) * 2 + (s->values != 0)) {
#define CASE(BITS, M, VALUES)                \
    case (BITS * 4 + M) * 2 + VALUES:        \
        expand_bits(&k, VALUES, BITS, M, x); \
        break;
        EVERY_CODE(CASE, 0)
        EVERY_CODE(CASE, 1)
#undef CASE
    }
}

/* q: [channels][q_row], of which the first `rows` <= MOST_ROWS. */
static void score_rows(const struct work *k, const float *q, size_t q_row,
                       size_t rows, float *score, size_t stride)
{
    switch (code_number(kv_scaled_of(k->s)) * 16 + rows) {
#define CASE(BITS, M, ROWS)                                  \
    case (BITS * 4 + M) * 16 + ROWS:                         \
        dot_rows(k, BITS, M, q, q_row, ROWS, score, stride); \
        break;
#define CASES(ROWS) EVERY_CODE(CASE, ROWS)
        EVERY_ROWS(CASES)
#undef CASES
#undef CASE
    }
}

static void pv_rows(const struct work *k, const float *p, size_t stride,
                    size_t rows, float *acc)
{
    switch (code_number(kv_scaled_of(k->s)) * 16 + rows) {
#define CASE(BITS, M, ROWS)                         \
    case (BITS * 4 + M) * 16 + ROWS:                \
        add_rows(k, BITS, M, p, stride, ROWS, acc); \
        break;
#define CASES(ROWS) EVERY_CODE(CASE, ROWS)
        EVERY_ROWS(CASES)
#undef CASES
#undef CASE
    }
}

static void qk(const struct kv_store *s, size_t head, const uint8_t *tile,
               const void *query, size_t rows, float *score, size_t stride)
{
    float scale[KV_SCALED_SCALES];

    (void)head;
    for (size_t i = 0; i < KV_SCALED_PARTS; i++, score += KV_TILE_PART) {
        const struct work k = work_of(s, tile, i, scale);

        for (size_t r = 0; r < rows; r += MOST_ROWS)
            score_rows(&k, (const float *)query + r, rows,
                       kv_min(rows - r, MOST_ROWS), score + r * stride, stride);
    }
}

static void pv(const struct kv_store *s, size_t head, const uint8_t *tile,
               const float *p, size_t stride, size_t rows, float *acc)
{
    float scale[KV_SCALED_SCALES];

    (void)head;
    for (size_t i = 0; i < KV_SCALED_PARTS; i++, p += KV_TILE_PART) {
        const struct work k = work_of(s, tile, i, scale);

        for (size_t r = 0; r < rows; r += MOST_ROWS)
            pv_rows(&k, p + r * stride, stride, kv_min(rows - r, MOST_ROWS),
                    acc + r * kv_padded(s->head_dim));
    }
}

static void scales(const struct kv_store *s, const uint8_t *tile, size_t part,
                   float *to)
{
    scales_of(s, tile, part, to);
}

const struct kv_scaled_loops NAME(kv_scaled_loops) = {
    .scales = scales, .expand = expand, .qk = qk, .pv = pv};
