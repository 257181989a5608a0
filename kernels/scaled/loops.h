/* The exact operations of family "scaled", V_WIDTH of the 16 lanes of a vector
 * (kernels/scaled/scaled.h) at a time.  Included by c.c, avx2.c and avx512.c
 * after their kernels/simd header. */
#include "kernels/scaled/impl.h"
#include "kernels/simd/prefetch.h"

enum { VECTOR = KV_SCALED_LANES };

/* The number of rows processed together, so that their sums fit the registers.
 * Loops over a batch are not unrolled if registers are few; plain C unrolls no
 * loops. */
#if V_REGISTERS > 0
#define EVERY_ROWS(X) X(1) X(2) X(3) X(4)
enum { MAX_ROWS = 4 };
#else
#define EVERY_ROWS(X) X(1)
enum { MAX_ROWS = 1 };
#undef UNROLL
#define UNROLL
#endif
#if V_REGISTERS >= 32
#define UNROLL_BATCH UNROLL
#else
#define UNROLL_BATCH
#endif

/* How many registers of half a part's tokens, and how many halves, are scored
 * together. */
enum { TOGETHER = V_WIDTH == 8 ? 2 : 1, HALVES = V_WIDTH == VECTOR ? 2 : 1 };

/* The number of vectors processed together: a unit of the plane with the most
 * vectors.  bits, of the code, are a constant here and below. */
ALWAYS_INLINE unsigned batch(unsigned bits)
{
    return bits == 8 ? 2 : bits == 6 || bits == 4 ? 8 : bits == 2 ? 16 : 32;
}

/* 16-bit codes of V_WIDTH lanes, or of all 16 lanes if one register holds
 * them. */
#if V_WIDTH == 8
typedef vi32 codes16;
#define c16_load(p, lane) v_load_i32(p)
#define c16_shl v_shl_i16
#define c16_shr v_shr_i16
#define c16_sar v_sar_i16
#define c16_and(x, bits) v_and(x, v_set1_i16((short)(bits)))
#define c16_pick(bits, a, b) v_or(c16_and(a, bits), c16_and(b, ~(bits)))
#define c16_lanes(x, lane) \
    ((lane) ? _mm256_extracti128_si256(x, 1) : _mm256_castsi256_si128(x))
#else
typedef vh16 codes16;
#define c16_load(p, lane) v_load_h16((p) + 2 * (lane))
#define c16_shl v_shl_h16
#define c16_shr v_shr_h16
#define c16_sar v_sar_h16
#define c16_and v_and_h16
#define c16_pick v_pick_h16
#define c16_lanes(x, lane) ((void)(lane), (x))
#endif

/* Lanes [lane, lane + V_WIDTH) of a batch as loaded. */
struct raw {
    vi32 low[2], high; /* 1 to 4 bits */
    codes16 low16[2], high16;
};

/* Loads the batch from vector v on. */
ALWAYS_INLINE struct raw load(const uint8_t *low, const uint8_t *high,
                              unsigned bits, size_t v, size_t lane)
{
    const unsigned w = kv_scaled_width(bits, 0), rest = bits - w;
    const unsigned unit = bits <= 4 ? 64 : 32, per = unit / 2 / w;
    struct raw r;

    low += v / per * unit;
    high += rest ? v / (unit / 2 / rest) * unit : 0;
    if (!lane)
        kv_prefetch(low, batch(bits) / per * unit);
    if (!lane && rest)
        kv_prefetch(high, unit);
    UNROLL
    for (unsigned i = 0; i < batch(bits) / per; i++) {
        if (bits <= 4)
            r.low[i] = v_load_i32(low + i * unit + 4 * lane);
        else
            r.low16[i] = c16_load(low + i * unit, lane);
    }
    if (rest && bits <= 4)
        r.high = v_load_i32(high + 4 * lane);
    else if (rest)
        r.high16 = c16_load(high, lane);
    return r;
}

/* Moves bit `from` of each lane to bit `to`. */
ALWAYS_INLINE vi32 move_i32(vi32 x, unsigned from, unsigned to)
{
    return from < to ? v_shl_i32(x, to - from) : v_shr_i32(x, from - to);
}

ALWAYS_INLINE codes16 move_c16(codes16 x, unsigned from, unsigned to)
{
    return from < to ? c16_shl(x, to - from) : c16_shr(x, from - to);
}

/* Codes of a small float are fp16 of another exponent.  x: codes at the top of
 * lanes, anything below them. */
ALWAYS_INLINE codes16 as_half(unsigned bits, unsigned m, codes16 x)
{
    const unsigned less = 5 - (bits - 1 - m); /* bits of exponent */
    const unsigned low = (1u << (10 - m)) - 1;

    return c16_and(c16_sar(x, less), 0x8000 | (0x7fff >> less & ~low));
}

/* Vector k of a batch, without its scale.  m: the format's mantissa bits. */
ALWAYS_INLINE vf32 value(const struct raw *r, unsigned bits, unsigned m,
                         vtable16 t, unsigned k, size_t lane)
{
    const unsigned w = kv_scaled_width(bits, 0), rest = bits - w;
    const unsigned per = (bits <= 4 ? 32 : 16) / w, at = w * (k % per);

    if (bits == 3) /* the table repeats itself, so bit 3 does not matter */
        return v_lookup16(t, v_pick_i32(3, v_shr_i32(r->low[k / per], at),
                                        move_i32(r->high, k, 2)));
    if (bits <= 4)
        return v_lookup16(t, v_shr_i32(r->low[0], at));

    const codes16 low = move_c16(r->low16[k / per], at, 16 - bits);

    if (!rest)
        return v_from_f16(c16_lanes(as_half(bits, m, low), lane));
    return v_from_f16(c16_lanes(
        as_half(bits, m,
                c16_pick(0xc000, move_c16(r->high16, rest * k, 14), low)),
        lane));
}

/* ---- scales -------------------------------------------------------------- */

/* e4m3 codes as fp16: the value times 2^-8. */
ALWAYS_INLINE vh16 e4m3(vh16 p)
{
    return v_and_h16(v_sar_h16(v_shl_h16(p, 8), 1), 0xbf80);
}

/* 2^(p - 127). */
ALWAYS_INLINE vf32 e8m0(vh16 p)
{
    const vi32 exponent = v_shl_i32(v_widen_u16(p), 23);

    return v_bits_f32(v_max_i32(exponent, v_set1_i32(1 << 22)));
}

/* Computes a part's scales, to [groups][32].  Products by a power of two are
 * exact, since scales in halves are far from float's limits. */
ALWAYS_INLINE void scales_of(const struct kv_store *s, const uint8_t *tile,
                             size_t part, float *to)
{
    const struct kv_scaled *c = kv_scaled_of(s);
    const size_t bytes = kv_scaled_scale_bytes(c);
    const uint8_t *from = tile + KV_SCALED_PARTS * kv_scaled_part_bytes(s) +
                          part * KV_TILE_PART * bytes;
    const float rebias = kv_scaled_rebias(c);
    const vf32 by = v_set1(rebias), divisor = v_set1(c->divisor);
    const bool divided = c->divisor != 1;     /* slow */
    const vf32 by8 = v_set1(0x1p8f * rebias); /* e4m3 too is fp16 with another
                                               * exponent */

    for (size_t i = 0; i < s->head_dim / c->group; i++)
        for (size_t t = 0; t < KV_TILE_PART; t += V_WIDTH, to += V_WIDTH) {
            const uint8_t *at = from + (i * KV_TILE_TOKENS + t) * bytes;
            vf32 x;

            switch (c->scale) {
            case KV_SCALE_NONE:
                v_store(to, by);
                break;
            case KV_SCALE_F16:
                x = v_from_f16(v_load_h16(at));
                v_store(to, v_mul(divided ? v_div(x, divisor) : x, by));
                break;
            case KV_SCALE_E8M0:
                v_store(to, v_mul(e8m0(v_load_h16_u8(at)), by));
                break;
            case KV_SCALE_E4M3:
                x = v_from_f16(e4m3(v_load_h16_u8(at)));
                v_store(to, v_mul(x, by8));
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
    unsigned m; /* bits of a small float's mantissa */
};

/* Sets x to the first n values of y, then zeros. */
ALWAYS_INLINE void store_some(float *x, vf32 y, size_t n)
{
    float all[V_WIDTH];

    v_store(all, y);
    for (size_t i = 0; i < V_WIDTH; i++)
        x[i] = i < n ? all[i] : 0;
}

/* Writes the lanes from `lane` on of vectors [v, v + n) of a batch to x, in the
 * layout of kv_family's expand(). */
ALWAYS_INLINE void expand_some(const struct work *k, bool values, unsigned bits,
                               vtable16 t, size_t v, size_t n, size_t lane,
                               float *x)
{
    const size_t d = k->s->head_dim, padded = kv_padded(d);
    const size_t channel = values ? v / KV_TILE_PART * VECTOR : v / 2;
    const float *scale = k->scale + channel / k->group * KV_TILE_PART +
                         (values ? v % KV_TILE_PART : lane);
    const size_t left = d > channel + lane ? d - channel - lane : 0;
    const struct raw r = load(k->low, k->high, bits, v, lane);

    x += (values ? v % KV_TILE_PART * padded + channel : v * VECTOR) + lane;
    UNROLL_BATCH
    for (unsigned i = 0; i < batch(bits); i++) {
        const vf32 by =
            values ? v_set1(scale[i]) : v_load(scale + i % 2 * VECTOR);
        const vf32 y = v_mul(value(&r, bits, k->m, t, i, lane), by);

        if (i >= n)
            return;
        if (values && left < V_WIDTH)
            store_some(x, y, left);
        else
            v_store(x, y);
        x += values ? padded : VECTOR;
    }
}

ALWAYS_INLINE void expand_bits(const struct work *k, bool values, unsigned bits,
                               float *x)
{
    const size_t n = kv_scaled_vectors(k->s);
    const vtable16 t = v_load16(kv_scaled_of(k->s)->table);

    for (size_t v = 0; v < n; v += batch(bits))
        UNROLL
    for (size_t lane = 0; lane < VECTOR; lane += V_WIDTH)
        expand_some(k, values, bits, t, v, n - v, lane, x);
}

/* ---- qk ------------------------------------------------------------------ */

/* The tokens of a part that are scored together: HALVES halves from `half` on,
 * with TOGETHER registers each from `lane` on. */
struct some {
    size_t half, lane;
};

/* The first token of register j. */
ALWAYS_INLINE size_t token(struct some at, size_t j)
{
    return (at.half + j / TOGETHER) * VECTOR + at.lane + j % TOGETHER * V_WIDTH;
}

/* Adds channels [c, c + n) of a batch to sum. */
ALWAYS_INLINE void dot_batch(const struct work *k, unsigned bits, vtable16 t,
                             size_t c, size_t n, const float *q, size_t q_row,
                             size_t rows, struct some at, vf32 sum[MAX_ROWS][2])
{
    struct raw raw[TOGETHER];

    UNROLL
    for (size_t j = 0; j < TOGETHER; j++)
        raw[j] = load(k->low, k->high, bits, c * 2, at.lane + j * V_WIDTH);
    UNROLL
    for (unsigned i = 0; i < batch(bits) / 2; i++) {
        vf32 x[2];

        if (i >= n)
            return;
        UNROLL
        for (size_t j = 0; j < HALVES * TOGETHER; j++) {
            const size_t half = at.half + j / TOGETHER;

            x[j] =
                value(&raw[j % TOGETHER], bits, k->m, t, 2 * i + (unsigned)half,
                      at.lane + j % TOGETHER * V_WIDTH);
        }
        UNROLL
        for (size_t row = 0; row < rows; row++) {
            const vf32 by = v_set1(q[(c + i) * q_row + row]);

            UNROLL
            for (size_t j = 0; j < HALVES * TOGETHER; j++)
                sum[row][j] = v_muladd(by, x[j], sum[row][j]);
        }
    }
}

/* Scores tokens group by group.  A group is whole batches, or the head. */
ALWAYS_INLINE void dot_some(const struct work *k, unsigned bits, const float *q,
                            size_t q_row, size_t rows, struct some at,
                            float *score, size_t stride)
{
    const size_t d = k->s->head_dim, wide = HALVES * TOGETHER;
    const vtable16 t = v_load16(kv_scaled_of(k->s)->table);
    vf32 all[MAX_ROWS][2];

    UNROLL
    for (size_t i = 0; i < rows * wide; i++)
        all[i / wide][i % wide] = v_set1(0);
    for (size_t g = 0; g < d; g += k->group) {
        const float *scale = k->scale + g / k->group * KV_TILE_PART;
        vf32 sum[MAX_ROWS][2];

        UNROLL
        for (size_t i = 0; i < rows * wide; i++)
            sum[i / wide][i % wide] = v_set1(0);
        for (size_t c = g; c < g + k->group; c += batch(bits) / 2)
            dot_batch(k, bits, t, c, g + k->group - c, q, q_row, rows, at, sum);
        UNROLL
        for (size_t r = 0; r < rows; r++)
            UNROLL
        for (size_t j = 0; j < wide; j++)
            all[r][j] =
                v_muladd(v_load(scale + token(at, j)), sum[r][j], all[r][j]);
    }
    UNROLL
    for (size_t r = 0; r < rows; r++)
        UNROLL
    for (size_t j = 0; j < wide; j++)
        v_store(score + r * stride + token(at, j), all[r][j]);
}

ALWAYS_INLINE void dot_rows(const struct work *k, unsigned bits, const float *q,
                            size_t q_row, size_t rows, float *score,
                            size_t stride)
{
    for (size_t half = 0; half < 2; half += HALVES)
        for (size_t lane = 0; lane < VECTOR; lane += TOGETHER * V_WIDTH)
            dot_some(k, bits, q, q_row, rows, (struct some){half, lane}, score,
                     stride);
}

/* ---- pv -------------------------------------------------------------- */

/* Handles the lanes from `lane` on in a block of 16 channels of a part; p:
 * [rows][32], times the scales.  Each row has two sums, to shorten the chain of
 * additions. */
ALWAYS_INLINE void add_lanes(const struct work *k, unsigned bits, vtable16 t,
                             size_t block, size_t lane, const float *p,
                             size_t rows, float *acc, size_t padded)
{
    vf32 sum[MAX_ROWS][2];

    acc += block * VECTOR + lane;
    UNROLL
    for (size_t r = 0; r < rows; r++) {
        sum[r][0] = v_load(acc + r * padded);
        sum[r][1] = v_set1(0);
    }
    for (size_t v = 0; v < KV_TILE_PART; v += batch(bits)) {
        const struct raw raw =
            load(k->low, k->high, bits, block * KV_TILE_PART + v, lane);

        UNROLL_BATCH
        for (unsigned i = 0; i < batch(bits); i += 2)
            UNROLL
        for (unsigned j = 0; j < 2; j++) {
            const vf32 x = value(&raw, bits, k->m, t, i + j, lane);

            UNROLL
            for (size_t r = 0; r < rows; r++)
                sum[r][j] = v_muladd(v_set1(p[r * KV_TILE_PART + v + i + j]), x,
                                     sum[r][j]);
        }
    }
    UNROLL
    for (size_t r = 0; r < rows; r++)
        v_store(acc + r * padded, v_add(sum[r][0], sum[r][1]));
}

ALWAYS_INLINE void add_rows(const struct work *k, unsigned bits, const float *p,
                            size_t stride, size_t rows, float *acc)
{
    const size_t padded = kv_padded(k->s->head_dim);
    const vtable16 t = v_load16(kv_scaled_of(k->s)->table);
    float w[KV_SCALED_SCALES * MAX_ROWS]; /* [groups][rows][32] */

    for (size_t g = 0; g * k->group < k->s->head_dim; g++)
        for (size_t r = 0; r < rows; r++)
            for (size_t i = 0; i < KV_TILE_PART; i += V_WIDTH)
                v_store(w + (g * rows + r) * KV_TILE_PART + i,
                        v_mul(v_load(p + r * stride + i),
                              v_load(k->scale + g * KV_TILE_PART + i)));
    for (size_t block = 0; block < padded / VECTOR; block++)
        UNROLL
    for (size_t lane = 0; lane < VECTOR; lane += V_WIDTH)
        add_lanes(k, bits, t, block, lane,
                  w + block * VECTOR / k->group * rows * KV_TILE_PART, rows,
                  acc, padded);
}

/* ---- every constant there is --------------------------------------------- */

/* X(bits): tables up to 4, small floats above. */
#define EVERY_CODE(X, ...) \
    X(1, __VA_ARGS__)      \
    X(2, __VA_ARGS__)      \
    X(3, __VA_ARGS__)      \
    X(4, __VA_ARGS__)      \
    X(6, __VA_ARGS__)      \
    X(8, __VA_ARGS__)

static struct work work_of(const struct kv_store *s, const uint8_t *tile,
                           size_t part, float *scale)
{
    const uint8_t *low = tile + part * kv_scaled_part_bytes(s);

    const struct kv_scaled *c = kv_scaled_of(s);

    scales_of(s, tile, part, scale);
    return (struct work){.s = s,
                         .low = low,
                         .high = low + kv_scaled_plane_bytes(s, 0),
                         .scale = scale,
                         .group = c->group,
                         .m = c->format ? c->format->m : 0};
}

static void expand(const struct kv_store *s, const uint8_t *tile, size_t part,
                   float *x)
{
    float scale[KV_SCALED_SCALES];
    const struct work k = work_of(s, tile, part, scale);

    switch (kv_scaled_of(s)->bits * 2 + (s->values != 0)) {
#define CASE(BITS, VALUES)                \
    case BITS * 2 + VALUES:               \
        expand_bits(&k, VALUES, BITS, x); \
        break;
        EVERY_CODE(CASE, 0)
        EVERY_CODE(CASE, 1)
#undef CASE
    }
}

/* q: [channels][q_row]; the first `rows` <= MAX_ROWS are used. */
static void score_rows(const struct work *k, const float *q, size_t q_row,
                       size_t rows, float *score, size_t stride)
{
    switch (kv_scaled_of(k->s)->bits * 16 + rows) {
#define CASE(BITS, ROWS)                                  \
    case BITS * 16 + ROWS:                                \
        dot_rows(k, BITS, q, q_row, ROWS, score, stride); \
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
    switch (kv_scaled_of(k->s)->bits * 16 + rows) {
#define CASE(BITS, ROWS)                         \
    case BITS * 16 + ROWS:                       \
        add_rows(k, BITS, p, stride, ROWS, acc); \
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

        for (size_t r = 0; r < rows; r += MAX_ROWS)
            score_rows(&k, (const float *)query + r, rows,
                       kv_min(rows - r, MAX_ROWS), score + r * stride, stride);
    }
}

static void pv(const struct kv_store *s, size_t head, const uint8_t *tile,
               const float *p, size_t stride, size_t rows, float *acc)
{
    float scale[KV_SCALED_SCALES];

    (void)head;
    for (size_t i = 0; i < KV_SCALED_PARTS; i++, p += KV_TILE_PART) {
        const struct work k = work_of(s, tile, i, scale);

        for (size_t r = 0; r < rows; r += MAX_ROWS)
            pv_rows(&k, p + r * stride, stride, kv_min(rows - r, MAX_ROWS),
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
