/* The blocks of kernels/weights/weights.h, V_WIDTH values at a time.  Included
 * by c.c, avx2.c and avx512.c after their kernels/simd header.
 *
 * A scale times a small integer has at most 24 bits, so that v_muladd() rounds
 * once at every level: the same bits. */
#include "kernels/simd/prefetch.h"
#include "kernels/weights/grids.h"
#include "kernels/weights/impl.h"
#include "lib/base/half.h"

#include <stdbool.h>

/* Before a loop over a group's values; plain C does not unroll it. */
#if V_WIDTH > 1
#define VALUES UNROLL
#else
#define VALUES
#endif

ALWAYS_INLINE vf32 load_head(const uint8_t *p)
{
    uint16_t h;

    memcpy(&h, p, sizeof(h));
    return v_set1_f16(h);
}

ALWAYS_INLINE uint32_t load_u32(const uint8_t *p)
{
    uint32_t x;

    memcpy(&x, p, sizeof(x));
    return x;
}

ALWAYS_INLINE vi32 bits_of(vi32 x, unsigned shift, int mask)
{
    return v_and(v_shr_i32(x, shift), v_set1_i32(mask));
}

ALWAYS_INLINE vf32 centered(vi32 code, int zero)
{
    return v_from_i32(v_sub_i32(code, v_set1_i32(zero)));
}

/* ---- where values go ----------------------------------------------------- */

/* Writes values to `to`; or multiplies them by each of n_x arrays `by` and adds
 * every 32nd product to one sum, each rounded once with its sum.  n_x is a
 * constant. */
#if V_REGISTERS >= 32
#define MAX_X 8
#else
#define MAX_X 1
#endif
enum { SUMS = 32 / V_WIDTH };

struct sink {
    size_t n_x; /* 0: writes */
    float *to;
    const float *by[MAX_X];
    vf32 sum[MAX_X][SUMS];
};

ALWAYS_INLINE void put(struct sink *s, size_t at, vf32 w)
{
    const size_t j = at % 32 / V_WIDTH;

    if (!s->n_x)
        v_store(s->to + at, w);
    UNROLL
    for (size_t c = 0; c < s->n_x; c++)
        s->sum[c][j] = v_fmadd(w, v_load(s->by[c] + at), s->sum[c][j]);
}

/* ---- floats of 8 bits ---------------------------------------------------- */

/* 2^-8 times the value, computed as a half; NaN stays NaN. */
ALWAYS_INLINE vf32 e4m3(const uint8_t *p)
{
    const vh16 code = v_load_h16_u8(p);
    const vh16 rest = v_and_h16(code, 0x7f);
    const vh16 sign = v_shl_h16(v_and_h16(code, 0x80), 8);
    const vh16 nan = v_and_h16(v_add_h16(rest, v_set1_h16(1)), 0x80);
    const vh16 half = v_or_h16(sign, v_shl_h16(v_or_h16(rest, nan), 7));

    return v_mul(v_from_f16(half), v_set1(0x1p8f));
}

ALWAYS_INLINE vf32 e5m2(const uint8_t *p)
{
    return v_from_f16(v_shl_h16(v_load_h16_u8(p), 8));
}

/* ---- codes of four bits -------------------------------------------------- */

/* d (code - zero), or d code + m where there is a minimum.  A register of 16
 * floats holds the values of all codes; codes look them up. */
#if V_WIDTH == 16
struct nibbles {
    vf32 value;
};

ALWAYS_INLINE struct nibbles with_zero(vf32 d, int zero)
{
    const vf32 code = v_load(kv_weights_codes);

    return (struct nibbles){v_mul(v_sub(code, v_set1((float)zero)), d)};
}

ALWAYS_INLINE struct nibbles with_min(vf32 d, vf32 m)
{
    return (struct nibbles){v_muladd(v_load(kv_weights_codes), d, m)};
}

ALWAYS_INLINE vf32 value_of(const struct nibbles *n, vi32 both, unsigned shift)
{
    return v_lookup16(n->value, v_shr_i32(both, shift));
}
#else
struct nibbles {
    vf32 d, m;
    int zero;
    bool has_min;
};

ALWAYS_INLINE struct nibbles with_zero(vf32 d, int zero)
{
    return (struct nibbles){d, d, zero, false};
}

ALWAYS_INLINE struct nibbles with_min(vf32 d, vf32 m)
{
    return (struct nibbles){d, m, 0, true};
}

ALWAYS_INLINE vf32 value_of(const struct nibbles *n, vi32 both, unsigned shift)
{
    const vi32 code = bits_of(both, shift, 15);

    return n->has_min ? v_muladd(v_from_i32(code), n->d, n->m)
                      : v_mul(centered(code, n->zero), n->d);
}
#endif

/* ---- blocks of 32 -------------------------------------------------------- */

ALWAYS_INLINE void q8_0(const uint8_t *b, struct sink *s)
{
    const vf32 d = load_head(b);

    VALUES
    for (size_t j = 0; j < 32; j += V_WIDTH)
        put(s, j, v_mul(v_from_i32(v_load_i32_i8(b + 2 + j)), d));
}

/* Puts the values of 16 bytes, each with codes j and 16 + j. */
ALWAYS_INLINE void put_nibbles(const uint8_t *b, struct nibbles n,
                               struct sink *s)
{
    VALUES
    for (size_t j = 0; j < 16; j += V_WIDTH) {
        const vi32 both = v_load_i32_u8(b + j);

        put(s, j, value_of(&n, both, 0));
        put(s, 16 + j, value_of(&n, both, 4));
    }
}

ALWAYS_INLINE void q4_0(const uint8_t *b, struct sink *s)
{
    put_nibbles(b + 2, with_zero(load_head(b), 8), s);
}

ALWAYS_INLINE void q4_1(const uint8_t *b, struct sink *s)
{
    put_nibbles(b + 4, with_min(load_head(b), load_head(b + 2)), s);
}

/* Sets code to the five-bit codes from j on and those from 16 + j on. */
ALWAYS_INLINE void five_bits(const uint8_t *nibble, uint32_t fifth, size_t j,
                             vi32 code[2])
{
    const vi32 both = v_load_i32_u8(nibble + j);

    code[0] = v_or(bits_of(both, 0, 15), v_spread_i32(fifth >> j, 16));
    code[1] = v_or(bits_of(both, 4, 15), v_spread_i32(fifth >> (16 + j), 16));
}

ALWAYS_INLINE void q5_0(const uint8_t *b, struct sink *s)
{
    const vf32 d = load_head(b);

    VALUES
    for (size_t j = 0; j < 16; j += V_WIDTH) {
        vi32 code[2];

        five_bits(b + 6, load_u32(b + 2), j, code);
        put(s, j, v_mul(centered(code[0], 16), d));
        put(s, 16 + j, v_mul(centered(code[1], 16), d));
    }
}

ALWAYS_INLINE void q5_1(const uint8_t *b, struct sink *s)
{
    const vf32 d = load_head(b), m = load_head(b + 2);

    VALUES
    for (size_t j = 0; j < 16; j += V_WIDTH) {
        vi32 code[2];

        five_bits(b + 8, load_u32(b + 4), j, code);
        put(s, j, v_muladd(v_from_i32(code[0]), d, m));
        put(s, 16 + j, v_muladd(v_from_i32(code[1]), d, m));
    }
}

/* 16 bytes of two codes each, d times their levels. */
ALWAYS_INLINE void by_levels(const uint8_t *nibble, const float *level, vf32 d,
                             struct sink *s, size_t at)
{
    const vtable16 t = v_scale16(v_load16(level), d);

    VALUES
    for (size_t j = 0; j < 16; j += V_WIDTH) {
        const vi32 both = v_load_i32_u8(nibble + j);

        put(s, at + j, v_lookup16(t, bits_of(both, 0, 15)));
        put(s, at + 16 + j, v_lookup16(t, bits_of(both, 4, 15)));
    }
}

ALWAYS_INLINE void iq4_nl(const uint8_t *b, struct sink *s)
{
    by_levels(b + 2, kv_stored_iq4, load_head(b), s, 0);
}

/* 2^(e - 128), the levels being doubled; denormal where e < 2. */
ALWAYS_INLINE void mxfp4(const uint8_t *b, struct sink *s)
{
    const uint32_t e = b[0];
    const uint32_t d = e < 2 ? 0x200000u << e : (e - 1) << 23;

    by_levels(b + 1, kv_weights_e2m1, v_set1(kv_bits_f32(d)), s, 0);
}

#include "kernels/weights/blocks_256.h"

/* ---- blocks of entries of grids, as kernels/weights/grid_blocks.c has them */

#define BY_GRID(type, values)                                 \
    ALWAYS_INLINE void type(const uint8_t *b, struct sink *s) \
    {                                                         \
        float x[values];                                      \
                                                              \
        kv_block_##type(b, x);                                \
        for (size_t j = 0; j < (values); j += 32)             \
            VALUES                                            \
        for (size_t i = 0; i < 32; i += V_WIDTH)              \
            put(s, j + i, v_load(x + j + i));                 \
    }

BY_GRID(tq1_0, 256)
BY_GRID(tq2_0, 256)
BY_GRID(iq1_s, 256)
BY_GRID(iq1_m, 256)
BY_GRID(iq2_xxs, 256)
BY_GRID(iq2_xs, 256)
BY_GRID(iq2_s, 256)
BY_GRID(iq3_xxs, 256)
BY_GRID(iq3_s, 256)
BY_GRID(nvfp4, 64)

/* ---- plain floats, of which 32 make a block ------------------------------ */

#define FLOATS(type, bytes, load)                             \
    ALWAYS_INLINE void type(const uint8_t *b, struct sink *s) \
    {                                                         \
        VALUES                                                \
        for (size_t j = 0; j < 32; j += V_WIDTH)              \
            put(s, j, load(b + (bytes)*j));                   \
    }

#define load_f32(p) v_bits_f32(v_load_i32(p))

FLOATS(f32, 4, load_f32)
FLOATS(f16, 2, v_load_f16)
FLOATS(bf16, 2, v_load_bf16)
FLOATS(f8_e4m3, 1, e4m3)
FLOATS(f8_e5m2, 1, e5m2)

/* ---- the table ----------------------------------------------------------- */

typedef void read_block(const uint8_t *b, struct sink *s);

/* A row of plain floats may end in part of a block; the rest is 0. */
#define IS_FLOATS(values, bytes) ((bytes) % (values) == 0)

ALWAYS_INLINE void decode(read_block *read, size_t values, size_t bytes,
                          const uint8_t *b, size_t n, float *x)
{
    const size_t rest = n % values, whole = n - rest;
    struct sink s = {.n_x = 0};

    for (size_t i = 0; i < whole; i += values, b += bytes) {
        s.to = x + i;
        read(b, &s);
    }
    if (IS_FLOATS(values, bytes) && rest) {
        uint8_t last[32 * 4] = {0};
        float out[32];

        memcpy(last, b, bytes / values * rest);
        s.to = out;
        read(last, &s);
        memcpy(x + whole, out, rest * sizeof(*x));
    }
}

/* Rows are interleaved, so that the sums of one row need not wait for each
 * other. */
enum { TURNS = 2 };

/* Adds sum j + 16 to sum j, then j + 8; v_sum4() continues. */
ALWAYS_INLINE vf32 fold(vf32 *sum)
{
    VALUES
    for (size_t half = 16 / V_WIDTH; half; half /= 2)
        for (size_t j = 0; j < half; j++)
            sum[j] = v_add(sum[j], sum[j + half]);
    return sum[0];
}

/* Reads the end of a row of plain floats, n values, as a block. */
ALWAYS_INLINE void times_rest(read_block *read, const uint8_t *b, size_t bytes,
                              size_t n, const float *x, struct sink *s)
{
    uint8_t last[32 * 4] = {0};
    float by[32] = {0};

    memcpy(last, b, bytes);
    memcpy(by, x, n * sizeof(*by));
    s->by[0] = by;
    read(last, s);
}

/* Computes `turns` rows of the product; turns is a constant. */
ALWAYS_INLINE void times_rows(read_block *read, size_t values, size_t bytes,
                              size_t turns, const uint8_t *b, size_t row,
                              size_t n, const float *x, vf32 *out)
{
    const size_t rest = n % values, whole = n - rest;
    struct sink s[TURNS];

    UNROLL
    for (size_t r = 0; r < turns; r++) {
        s[r].n_x = 1;
        VALUES
        for (size_t j = 0; j < SUMS; j++)
            s[r].sum[0][j] = v_set1(0);
    }
    for (size_t i = 0; i < whole; i += values, b += bytes)
        UNROLL
    for (size_t r = 0; r < turns; r++) {
        s[r].by[0] = x + i;
        kv_prefetch(b + r * row, bytes);
        read(b + r * row, &s[r]);
    }
    for (size_t r = 0; r < turns; r++) {
        if (IS_FLOATS(values, bytes) && rest)
            times_rest(read, b + r * row, bytes / values * rest, rest,
                       x + whole, &s[r]);
        out[r] = fold(s[r].sum[0]);
    }
}

ALWAYS_INLINE void times(read_block *read, size_t values, size_t bytes,
                         const uint8_t *b, size_t rows, size_t n,
                         const float *x, float *y)
{
    const size_t row = n * bytes / values;

    for (size_t r = 0; r < rows; r += 4) {
        const size_t some = rows - r < 4 ? rows - r : 4;
        vf32 sum[4] = {v_set1(0), v_set1(0), v_set1(0), v_set1(0)};
        float four[4];
        size_t i = 0;

        for (; i + TURNS <= some; i += TURNS)
            times_rows(read, values, bytes, TURNS, b + (r + i) * row, row, n, x,
                       sum + i);
        if (i < some)
            times_rows(read, values, bytes, 1, b + (r + i) * row, row, n, x,
                       sum + i);
        v_sum4(sum, four);
        memcpy(y + r, four, some * sizeof(*y));
    }
}

#define TIMES(type, values, bytes)                                    \
    static void times_##type(const uint8_t *b, size_t rows, size_t n, \
                             const float *x, float *y)                \
    {                                                                 \
        times(type, values, bytes, b, rows, n, x, y);                 \
    }
#define VERSIONS(type, values, bytes)                               \
    static void decode_##type(const uint8_t *b, size_t n, float *x) \
    {                                                               \
        decode(type, values, bytes, b, n, x);                       \
    }                                                               \
    TIMES(type, values, bytes)

TIMES(f32, 32, 128)
TIMES(f16, 32, 64)
TIMES(bf16, 32, 64)
VERSIONS(f8_e4m3, 32, 32)
VERSIONS(f8_e5m2, 32, 32)
VERSIONS(q8_0, 32, 34)
VERSIONS(q5_1, 32, 24)
VERSIONS(q5_0, 32, 22)
VERSIONS(q4_1, 32, 20)
VERSIONS(q4_0, 32, 18)
VERSIONS(q2_k, 256, 84)
VERSIONS(q3_k, 256, 110)
VERSIONS(q4_k, 256, 144)
VERSIONS(q5_k, 256, 176)
VERSIONS(q6_k, 256, 210)
VERSIONS(iq4_nl, 32, 18)
VERSIONS(iq4_xs, 256, 136)
VERSIONS(mxfp4, 32, 17)
VERSIONS(tq1_0, 256, 54)
VERSIONS(tq2_0, 256, 66)
VERSIONS(iq1_s, 256, 50)
VERSIONS(iq1_m, 256, 56)
VERSIONS(iq2_xxs, 256, 66)
VERSIONS(iq2_xs, 256, 74)
VERSIONS(iq2_s, 256, 82)
VERSIONS(iq3_xxs, 256, 98)
VERSIONS(iq3_s, 256, 110)
VERSIONS(nvfp4, 64, 36)

#if MAX_X > 1
#include "kernels/weights/many.h"
#else
#include "kernels/weights/panel.h"
#endif

#define TABLE(f)                                                          \
    [KV_STORED_F8_E4M3] = f##_f8_e4m3, [KV_STORED_F8_E5M2] = f##_f8_e5m2, \
    [KV_STORED_Q8_0] = f##_q8_0, [KV_STORED_Q5_1] = f##_q5_1,             \
    [KV_STORED_Q5_0] = f##_q5_0, [KV_STORED_Q4_1] = f##_q4_1,             \
    [KV_STORED_Q4_0] = f##_q4_0, [KV_STORED_Q2_K] = f##_q2_k,             \
    [KV_STORED_Q3_K] = f##_q3_k, [KV_STORED_Q4_K] = f##_q4_k,             \
    [KV_STORED_Q5_K] = f##_q5_k, [KV_STORED_Q6_K] = f##_q6_k,             \
    [KV_STORED_IQ4_NL] = f##_iq4_nl, [KV_STORED_IQ4_XS] = f##_iq4_xs,     \
    [KV_STORED_MXFP4] = f##_mxfp4, [KV_STORED_TQ1_0] = f##_tq1_0,         \
    [KV_STORED_TQ2_0] = f##_tq2_0, [KV_STORED_IQ1_S] = f##_iq1_s,         \
    [KV_STORED_IQ1_M] = f##_iq1_m, [KV_STORED_IQ2_XXS] = f##_iq2_xxs,     \
    [KV_STORED_IQ2_XS] = f##_iq2_xs, [KV_STORED_IQ2_S] = f##_iq2_s,       \
    [KV_STORED_IQ3_XXS] = f##_iq3_xxs, [KV_STORED_IQ3_S] = f##_iq3_s,     \
    [KV_STORED_NVFP4] = f##_nvfp4

const struct kv_weights_loops NAME(kv_weights) = {
    .decode = {TABLE(decode)},
    .times = {TABLE(times), [KV_STORED_F32] = times_f32,
              [KV_STORED_F16] = times_f16, [KV_STORED_BF16] = times_bf16},
    .many = many,
};
