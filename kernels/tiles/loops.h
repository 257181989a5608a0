/* The loops of kernels/tiles/impl.h, V_WIDTH channels or tokens side by side.
 * Included by c.c, avx2.c and avx512.c after their kernels/simd header. */
#include "kernels/simd/prefetch.h"
#include "kernels/tiles/impl.h"

#include <string.h>

#if V_WIDTH == 1
#undef UNROLL
#define UNROLL
#endif

/* Registers per iteration for `rows` rows, 1, 2 or 4: as many as fit beside
 * their sums. */
ALWAYS_INLINE size_t groups(size_t rows)
{
    const size_t fit = V_REGISTERS / (2 * rows);

    return fit >= 4 ? 4 : fit >= 2 ? 2 : 1;
}

ALWAYS_INLINE vf32 load(enum kv_float kind, const void *x, size_t i)
{
    switch (kind) {
    case KV_FLOAT_32:
        return v_load((const float *)x + i);
    case KV_FLOAT_16:
        return v_load_f16((const uint16_t *)x + i);
    case KV_FLOAT_BF16:
        break;
    }
    return v_load_bf16((const uint16_t *)x + i);
}

ALWAYS_INLINE size_t value_bytes(enum kv_float kind)
{
    return kind == KV_FLOAT_32 ? 4 : 2;
}

/* dot() for tokens [at, at + g * V_WIDTH) of parts.  kind, ahead, rows and g
 * are constants: a branch around the prefetches would cost a tenth of the
 * memory bandwidth. */
ALWAYS_INLINE void dot_some(enum kv_float kind, bool ahead, const void *k,
                            size_t head_dim, const float *q, size_t rows,
                            size_t at, size_t g, float *score, size_t stride)
{
    const size_t size = value_bytes(kind), row = KV_TILE_PART * size;
    const char *far = (const char *)k + at * head_dim * size;
    const char *from[4];
    vf32 sum[KV_TILE_ROWS][4];

    UNROLL
    for (size_t j = 0; j < g; j++) {
        const size_t t = at + j * V_WIDTH;

        from[j] = (const char *)k + t / KV_TILE_PART * head_dim * row +
                  t % KV_TILE_PART * size;
    }
    UNROLL
    for (size_t r = 0; r < rows; r++)
        UNROLL
    for (size_t j = 0; j < g; j++)
        sum[r][j] = v_set1(0);
    for (size_t c = 0; c < head_dim; c++) {
        vf32 x[4];

        if (ahead)
            kv_prefetch_far(far + c * g * V_WIDTH * size, KV_FAR,
                            g * V_WIDTH * size);
        UNROLL
        for (size_t j = 0; j < g; j++) {
            if (ahead && j * V_WIDTH * size % KV_LINE == 0)
                kv_prefetch_near(from[j] + c * row, KV_NEAR, KV_LINE);
            x[j] = load(kind, from[j] + c * row, 0);
        }
        UNROLL
        for (size_t r = 0; r < rows; r++)
            UNROLL
        for (size_t j = 0; j < g; j++)
            sum[r][j] = v_muladd(v_set1(q[c * rows + r]), x[j], sum[r][j]);
    }
    UNROLL
    for (size_t r = 0; r < rows; r++)
        UNROLL
    for (size_t j = 0; j < g; j++)
        v_store(score + r * stride + at + j * V_WIDTH, sum[r][j]);
}

ALWAYS_INLINE void dot_rows(enum kv_float kind, bool ahead, const void *k,
                            size_t parts, size_t head_dim, const float *q,
                            size_t rows, float *score, size_t stride)
{
    enum { OF_PART = KV_TILE_PART / V_WIDTH };
    const size_t g = groups(rows), n = parts * KV_TILE_PART;
    size_t at = 0;

    for (; at + g * V_WIDTH <= n; at += g * V_WIDTH)
        dot_some(kind, ahead, k, head_dim, q, rows, at, g, score, stride);
    if (g > OF_PART && at < n)
        dot_some(kind, ahead, k, head_dim, q, rows, at, OF_PART, score, stride);
}

/* add() for channels [c, c + g * V_WIDTH). */
ALWAYS_INLINE void add_some(enum kv_float kind, bool ahead, const void *v,
                            size_t n, size_t padded, const float *p,
                            size_t stride, size_t rows, size_t c, size_t g,
                            float *acc)
{
    const size_t size = value_bytes(kind), bytes = g * V_WIDTH * size;
    const char *far = (const char *)v + c * n * size;
    vf32 sum[KV_TILE_ROWS][4];

    UNROLL
    for (size_t r = 0; r < rows; r++)
        UNROLL
    for (size_t j = 0; j < g; j++)
        sum[r][j] = v_load(acc + r * padded + c + j * V_WIDTH);
    for (size_t t = 0; t < n; t++) {
        const size_t i = t * padded + c;
        vf32 x[4];

        if (ahead) {
            kv_prefetch_far(far + t * bytes, KV_FAR, bytes);
            kv_prefetch_near((const char *)v + i * size, KV_NEAR, bytes);
        }
        UNROLL
        for (size_t j = 0; j < g; j++)
            x[j] = load(kind, v, i + j * V_WIDTH);
        UNROLL
        for (size_t r = 0; r < rows; r++)
            UNROLL
        for (size_t j = 0; j < g; j++)
            sum[r][j] = v_muladd(v_set1(p[r * stride + t]), x[j], sum[r][j]);
    }
    UNROLL
    for (size_t r = 0; r < rows; r++)
        UNROLL
    for (size_t j = 0; j < g; j++)
        v_store(acc + r * padded + c + j * V_WIDTH, sum[r][j]);
}

ALWAYS_INLINE void add_rows(enum kv_float kind, bool ahead, const void *v,
                            size_t n, size_t padded, const float *p,
                            size_t stride, size_t rows, float *acc)
{
    size_t c = 0;

    if (groups(rows) == 4)
        for (; c + 4 * V_WIDTH <= padded; c += 4 * V_WIDTH)
            add_some(kind, ahead, v, n, padded, p, stride, rows, c, 4, acc);
    if (groups(rows) >= 2)
        for (; c + 2 * V_WIDTH <= padded; c += 2 * V_WIDTH)
            add_some(kind, ahead, v, n, padded, p, stride, rows, c, 2, acc);
    if (groups(rows) == 1 || kv_padded(1) % (2 * V_WIDTH))
        for (; c < padded; c += V_WIDTH)
            add_some(kind, ahead, v, n, padded, p, stride, rows, c, 1, acc);
}

#if V_WIDTH == 1 /* nothing is a constant: loops stay loops */

static void dot(enum kv_float kind, bool ahead, const void *k, size_t parts,
                size_t head_dim, const float *q, size_t rows, float *score,
                size_t stride)
{
    dot_rows(kind, ahead, k, parts, head_dim, q, rows, score, stride);
}

static void add(enum kv_float kind, bool ahead, const void *v, size_t n,
                size_t padded, const float *p, size_t stride, size_t rows,
                float *acc)
{
    add_rows(kind, ahead, v, n, padded, p, stride, rows, acc);
}

#else

#define EVERY_ROWS(X) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8)
#define EVERY_AHEAD(X, K, R) X(K, true, R) X(K, false, R)
#define EVERY_KIND(X, R)           \
    EVERY_AHEAD(X, KV_FLOAT_32, R) \
    EVERY_AHEAD(X, KV_FLOAT_16, R) \
    EVERY_AHEAD(X, KV_FLOAT_BF16, R)
_Static_assert(KV_TILE_ROWS == 8, "EVERY_ROWS and the unrolling");

static void dot(enum kv_float kind, bool ahead, const void *k, size_t parts,
                size_t head_dim, const float *q, size_t rows, float *score,
                size_t stride)
{
    switch (kind * 32 + ahead * 16 + rows) {
#define CASE(K, A, R)                                            \
    case K * 32 + A * 16 + R:                                    \
        dot_rows(K, A, k, parts, head_dim, q, R, score, stride); \
        break;
#define CASES(R) EVERY_KIND(CASE, R)
        EVERY_ROWS(CASES)
#undef CASES
#undef CASE
    }
}

static void add(enum kv_float kind, bool ahead, const void *v, size_t n,
                size_t padded, const float *p, size_t stride, size_t rows,
                float *acc)
{
    switch (kind * 32 + ahead * 16 + rows) {
#define CASE(K, A, R)                                    \
    case K * 32 + A * 16 + R:                            \
        add_rows(K, A, v, n, padded, p, stride, R, acc); \
        break;
#define CASES(R) EVERY_KIND(CASE, R)
        EVERY_ROWS(CASES)
#undef CASES
#undef CASE
    }
}

#endif

/* exp(x) = 2^y = 2^floor(y) 2^f.  The polynomial for 2^f, f below 1, has the
 * least relative error, 1.5e-7, and is 1 at 0. */
ALWAYS_INLINE vf32 exp_one(vf32 x)
{
    /* v_max() gives its second argument where one is NaN: y stays NaN */
    const vf32 y = v_max(v_set1(-125.514465f), v_mul(x, v_set1(1.44269504f)));
    const vf32 f = v_fraction(y);
    const vf32 a = v_muladd(v_set1(0x1.e974fap-10f), f, v_set1(0x1.277856p-7f));
    const vf32 b = v_muladd(v_muladd(a, f, v_set1(0x1.c91ce6p-5f)), f,
                            v_set1(0x1.ebdb56p-3f));
    const vf32 p =
        v_muladd(v_muladd(b, f, v_set1(0x1.62e4bap-1f)), f, v_set1(1));

    return v_ldexp(p, y);
}

/* Rows per iteration: long instructions of one row overlap with the others'. */
enum { FEW = 4 };
_Static_assert(FEW == 4, "kv_units_of_four()");

/* exp() for rows <= FEW, a constant. */
ALWAYS_INLINE void exp_few(float *x, size_t stride, size_t rows, size_t n,
                           const float *shift, float *sum)
{
    vf32 all[FEW], by[FEW];
    float each[FEW];

    UNROLL
    for (size_t r = 0; r < FEW; r++)
        all[r] = v_set1(0);
    UNROLL
    for (size_t r = 0; r < rows; r++)
        by[r] = v_set1(shift[r]);
    for (size_t i = 0; i < n; i += V_WIDTH)
        UNROLL
    for (size_t r = 0; r < rows; r++) {
        float *at = x + r * stride + i;
        const vf32 y = exp_one(v_sub(v_load(at), by[r]));

        v_store(at, y);
        all[r] = v_add(all[r], y);
    }
    v_sum4(all, each);
    memcpy(sum, each, rows * sizeof(*sum));
}

ALWAYS_INLINE void max_few(const float *x, size_t stride, size_t rows, size_t n,
                           float *max)
{
    vf32 best[FEW];
    float each[FEW];

    UNROLL
    for (size_t r = 0; r < FEW; r++)
        best[r] = v_load(x + (r < rows ? r : 0) * stride);
    for (size_t i = V_WIDTH; i < n; i += V_WIDTH)
        UNROLL
    for (size_t r = 0; r < rows; r++)
        best[r] = v_max(best[r], v_load(x + r * stride + i));
    v_max4(best, each);
    memcpy(max, each, rows * sizeof(*max));
}

ALWAYS_INLINE void round8_few(const float *x, size_t stride, size_t rows,
                              size_t n, int8_t *code, size_t code_stride,
                              float *scale)
{
    vf32 best[FEW];
    float each[FEW], inverse[FEW];

    UNROLL
    for (size_t r = 0; r < FEW; r++)
        best[r] = v_set1(0);
    for (size_t i = 0; i < n; i += V_WIDTH)
        UNROLL
    for (size_t r = 0; r < rows; r++)
        best[r] = v_max(best[r], v_abs(v_load(x + r * stride + i)));
    v_max4(best, each);
    kv_units8_of_four(each, inverse);
    memcpy(scale, each, rows * sizeof(*scale));
    UNROLL
    for (size_t r = 0; r < rows; r++) {
        const float *from = x + r * stride;
        const vf32 times = v_set1(inverse[r]);
        int8_t *to = code + r * code_stride;
        size_t i = 0;

        for (; i + 4 * V_WIDTH <= n; i += 4 * V_WIDTH) {
            vf32 y[4];

            UNROLL
            for (size_t k = 0; k < 4; k++)
                y[k] = v_mul(v_load(from + i + k * V_WIDTH), times);
            v_store_i8x4(to + i, y);
        }
        for (; i < n; i += V_WIDTH)
            v_store_i8(to + i, v_mul(v_load(from + i), times));
    }
}

static void exp_rows(float *x, size_t stride, size_t rows, size_t n,
                     const float *shift, float *sum)
{
    size_t r = 0;

    for (; r + FEW <= rows; r += FEW)
        exp_few(x + r * stride, stride, FEW, n, shift + r, sum + r);
    for (; r < rows; r++)
        exp_few(x + r * stride, stride, 1, n, shift + r, sum + r);
}

static void max_rows(const float *x, size_t stride, size_t rows, size_t n,
                     float *max)
{
    size_t r = 0;

    for (; r + FEW <= rows; r += FEW)
        max_few(x + r * stride, stride, FEW, n, max + r);
    for (; r < rows; r++)
        max_few(x + r * stride, stride, 1, n, max + r);
}

static void round8(const float *x, size_t stride, size_t rows, size_t n,
                   int8_t *code, size_t code_stride, float *scale)
{
    size_t r = 0;

    for (; r + FEW <= rows; r += FEW)
        round8_few(x + r * stride, stride, FEW, n, code + r * code_stride,
                   code_stride, scale + r);
    for (; r < rows; r++)
        round8_few(x + r * stride, stride, 1, n, code + r * code_stride,
                   code_stride, scale + r);
}

static void mul(const float *x, size_t stride, size_t rows, size_t n,
                const float *by, float *out)
{
    for (size_t i = 0; i < n; i += V_WIDTH)
        for (size_t r = 0; r < rows; r++)
            v_store(out + r * n + i,
                    v_mul(v_load(x + r * stride + i), v_load(by + i)));
}

/* ---- RoPE: plain C, which the compiler makes wide -------------------------
 */

static void rope_first(const double *const digit[KV_ROPE_DIGITS], size_t n_rot,
                       float *restrict cosine, float *restrict sine)
{
    const double *const zero = digit[0], *const one = digit[1];
    const double *const two = digit[2], *const three = digit[3];

    for (size_t i = 0; i < n_rot; i++) {
        const double *const by[] = {one + i, two + i, three + i};
        double c = zero[i], s = zero[n_rot + i];

        for (size_t d = 0; d < KV_ROPE_DIGITS - 1; d++) {
            const double was = c, by_c = by[d][0], by_s = by[d][n_rot];

            c = was * by_c - s * by_s;
            s = s * by_c + was * by_s;
        }
        cosine[i] = (float)c;
        sine[i] = (float)s;
    }
}

static void rotate_pair(float c, float s, const float *restrict within,
                        float *restrict low, float *restrict high)
{
    for (size_t t = 0; t < KV_TILE_PART; t++) {
        const float ct = within[t], st = within[KV_TILE_PART + t];
        const float cosine = c * ct - s * st, sine = s * ct + c * st;
        const float a = low[t], b = high[t];

        low[t] = a * cosine - b * sine;
        high[t] = b * cosine + a * sine;
    }
}

static void rope_rotate(const float *cosine, const float *sine,
                        const float *within, struct kv_rope_pairs pairs,
                        float *x)
{
    for (size_t i = 0; i < pairs.n; i++) {
        float *low = x + i * pairs.step * KV_TILE_PART;

        rotate_pair(cosine[i], sine[i], within + i * 2 * KV_TILE_PART, low,
                    low + pairs.apart * KV_TILE_PART);
    }
}

const struct kv_tile_loops NAME(kv_tile_loops) = {
    .dot = dot,
    .add = add,
    .exp = exp_rows,
    .max = max_rows,
    .round8 = round8,
    .mul = mul,
    .rope_first = rope_first,
    .rope_rotate = rope_rotate,
};
