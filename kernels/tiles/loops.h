/* The loops of tiles_impl.h, WIDTH channels or tokens side by side.  Included
 * by tiles_c.c, tiles_avx2.c and tiles_avx512.c, which name the registers:
 *
 *   vf                  WIDTH floats
 *   v_load v_store v_all v_add v_sub v_mul v_fma v_max   as they say
 *   v_half v_bf16       from WIDTH 16-bit floats at any address
 *   v_fraction(x)       x - floor(x)
 *   v_times2(x, n)      x 2^floor(n), n from -126 to below 128
 *   v_abs               |x|
 *   v_store8 v_store8x4 a register, or 4, as signed bytes, to nearest, half to
 *                       even
 *   v_sums v_mosts      per register x[0] to x[3]: of its lanes, to out[4]
 *   GROUPS(rows)        registers worked on together for so many queries, 1,
 *                       2 or 4: as many as fit beside their sums */
#include "kernels/simd/prefetch.h"
#include "kernels/tiles/impl.h"

#include <string.h>

ALWAYS_INLINE vf load(enum kv_float kind, const void *x, size_t i)
{
    switch (kind) {
    case KV_FLOAT_32:
        return v_load((const float *)x + i);
    case KV_FLOAT_16:
        return v_half((const uint16_t *)x + i);
    case KV_FLOAT_BF16:
        break;
    }
    return v_bf16((const uint16_t *)x + i);
}

ALWAYS_INLINE size_t value_bytes(enum kv_float kind)
{
    return kind == KV_FLOAT_32 ? 4 : 2;
}

/* Tokens [at, at + g * WIDTH) of parts.  kind, ahead, rows and g are constants:
 * a branch around the prefetches takes a tenth of memory's speed. */
ALWAYS_INLINE void dot_some(enum kv_float kind, bool ahead, const void *k,
                            size_t head_dim, const float *q, size_t rows,
                            size_t at, size_t g, float *score, size_t stride)
{
    const size_t size = value_bytes(kind), row = KV_TILE_PART * size;
    const char *far = (const char *)k + at * head_dim * size;
    const char *from[4];
    vf sum[KV_TILE_ROWS][4];

    UNROLL
    for (size_t j = 0; j < g; j++) {
        const size_t t = at + j * WIDTH;

        from[j] = (const char *)k + t / KV_TILE_PART * head_dim * row +
                  t % KV_TILE_PART * size;
    }
    UNROLL
    for (size_t r = 0; r < rows; r++)
        UNROLL
    for (size_t j = 0; j < g; j++)
        sum[r][j] = v_all(0);
    for (size_t c = 0; c < head_dim; c++) {
        vf x[4];

        if (ahead)
            kv_prefetch_far(far + c * g * WIDTH * size, KV_FAR,
                            g * WIDTH * size);
        UNROLL
        for (size_t j = 0; j < g; j++) {
            if (ahead && j * WIDTH * size % KV_LINE == 0)
                kv_prefetch_near(from[j] + c * row, KV_NEAR, KV_LINE);
            x[j] = load(kind, from[j] + c * row, 0);
        }
        UNROLL
        for (size_t r = 0; r < rows; r++)
            UNROLL
        for (size_t j = 0; j < g; j++)
            sum[r][j] = v_fma(v_all(q[c * rows + r]), x[j], sum[r][j]);
    }
    UNROLL
    for (size_t r = 0; r < rows; r++)
        UNROLL
    for (size_t j = 0; j < g; j++)
        v_store(score + r * stride + at + j * WIDTH, sum[r][j]);
}

/* parts, 1 or 2, is a constant. */
ALWAYS_INLINE void dot_rows(enum kv_float kind, bool ahead, const void *k,
                            size_t parts, size_t head_dim, const float *q,
                            size_t rows, float *score, size_t stride)
{
    const size_t n = parts * KV_TILE_PART, most = n / WIDTH;
    const size_t g = GROUPS(rows) < most ? GROUPS(rows) : most;

    for (size_t at = 0; at < n; at += g * WIDTH)
        dot_some(kind, ahead, k, head_dim, q, rows, at, g, score, stride);
}

/* Channels [c, c + g * WIDTH). */
ALWAYS_INLINE void add_some(enum kv_float kind, bool ahead, const void *v,
                            size_t n, size_t padded, const float *p,
                            size_t stride, size_t rows, size_t c, size_t g,
                            float *acc)
{
    const size_t size = value_bytes(kind), bytes = g * WIDTH * size;
    const char *far = (const char *)v + c * n * size;
    vf sum[KV_TILE_ROWS][4];

    UNROLL
    for (size_t r = 0; r < rows; r++)
        UNROLL
    for (size_t j = 0; j < g; j++)
        sum[r][j] = v_load(acc + r * padded + c + j * WIDTH);
    for (size_t t = 0; t < n; t++) {
        const size_t i = t * padded + c;
        vf x[4];

        if (ahead) {
            kv_prefetch_far(far + t * bytes, KV_FAR, bytes);
            kv_prefetch_near((const char *)v + i * size, KV_NEAR, bytes);
        }
        UNROLL
        for (size_t j = 0; j < g; j++)
            x[j] = load(kind, v, i + j * WIDTH);
        UNROLL
        for (size_t r = 0; r < rows; r++)
            UNROLL
        for (size_t j = 0; j < g; j++)
            sum[r][j] = v_fma(v_all(p[r * stride + t]), x[j], sum[r][j]);
    }
    UNROLL
    for (size_t r = 0; r < rows; r++)
        UNROLL
    for (size_t j = 0; j < g; j++)
        v_store(acc + r * padded + c + j * WIDTH, sum[r][j]);
}

ALWAYS_INLINE void add_rows(enum kv_float kind, bool ahead, const void *v,
                            size_t n, size_t padded, const float *p,
                            size_t stride, size_t rows, float *acc)
{
    size_t c = 0;

    if (GROUPS(rows) == 4)
        for (; c + 4 * WIDTH <= padded; c += 4 * WIDTH)
            add_some(kind, ahead, v, n, padded, p, stride, rows, c, 4, acc);
    if (GROUPS(rows) >= 2)
        for (; c + 2 * WIDTH <= padded; c += 2 * WIDTH)
            add_some(kind, ahead, v, n, padded, p, stride, rows, c, 2, acc);
    for (; c < padded; c += WIDTH)
        add_some(kind, ahead, v, n, padded, p, stride, rows, c, 1, acc);
}

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
        if (parts == 1)                                          \
            dot_rows(K, A, k, 1, head_dim, q, R, score, stride); \
        else                                                     \
            dot_rows(K, A, k, 2, head_dim, q, R, score, stride); \
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

/* exp(x) = 2^y = 2^floor(y) 2^f: of 2^f, f below 1, the polynomial is the least
 * relative error's, 1.5e-7, and 1 at 0. */
ALWAYS_INLINE vf exp_one(vf x)
{
    /* v_max() gives the second of two where one is no number: y stays so */
    const vf y = v_max(v_all(-125.514465f), v_mul(x, v_all(1.44269504f)));
    const vf f = v_fraction(y);
    const vf a = v_fma(v_all(0x1.e974fap-10f), f, v_all(0x1.277856p-7f));
    const vf b =
        v_fma(v_fma(a, f, v_all(0x1.c91ce6p-5f)), f, v_all(0x1.ebdb56p-3f));
    const vf p = v_fma(v_fma(b, f, v_all(0x1.62e4bap-1f)), f, v_all(1));

    return v_times2(p, y);
}

/* Rows worked on together: what takes long for one goes on beside others. */
enum { FEW = 4 };
_Static_assert(FEW == 4, "kv_units_of_four()");

/* rows <= FEW is a constant. */
ALWAYS_INLINE void exp_few(float *x, size_t stride, size_t rows, size_t n,
                           const float *shift, float *sum)
{
    vf all[FEW], by[FEW];
    float each[FEW];

    UNROLL
    for (size_t r = 0; r < FEW; r++)
        all[r] = v_all(0);
    UNROLL
    for (size_t r = 0; r < rows; r++)
        by[r] = v_all(shift[r]);
    for (size_t i = 0; i < n; i += WIDTH)
        UNROLL
    for (size_t r = 0; r < rows; r++) {
        float *at = x + r * stride + i;
        const vf y = exp_one(v_sub(v_load(at), by[r]));

        v_store(at, y);
        all[r] = v_add(all[r], y);
    }
    v_sums(all, each);
    memcpy(sum, each, rows * sizeof(*sum));
}

ALWAYS_INLINE void max_few(const float *x, size_t stride, size_t rows, size_t n,
                           float *max)
{
    vf most[FEW];
    float each[FEW];

    UNROLL
    for (size_t r = 0; r < FEW; r++)
        most[r] = v_load(x + (r < rows ? r : 0) * stride);
    for (size_t i = WIDTH; i < n; i += WIDTH)
        UNROLL
    for (size_t r = 0; r < rows; r++)
        most[r] = v_max(most[r], v_load(x + r * stride + i));
    v_mosts(most, each);
    memcpy(max, each, rows * sizeof(*max));
}

ALWAYS_INLINE void round8_few(const float *x, size_t stride, size_t rows,
                              size_t n, int8_t *code, size_t code_stride,
                              float *scale)
{
    vf most[FEW];
    float each[FEW], by[FEW];

    UNROLL
    for (size_t r = 0; r < FEW; r++)
        most[r] = v_all(0);
    for (size_t i = 0; i < n; i += WIDTH)
        UNROLL
    for (size_t r = 0; r < rows; r++)
        most[r] = v_max(most[r], v_abs(v_load(x + r * stride + i)));
    v_mosts(most, each);
    kv_units8_of_four(each, by);
    memcpy(scale, each, rows * sizeof(*scale));
    UNROLL
    for (size_t r = 0; r < rows; r++) {
        size_t i = 0;

        for (; i + 4 * WIDTH <= n; i += 4 * WIDTH) {
            vf y[4];

            UNROLL
            for (size_t k = 0; k < 4; k++)
                y[k] =
                    v_mul(v_load(x + r * stride + i + k * WIDTH), v_all(by[r]));
            v_store8x4(code + r * code_stride + i, y);
        }
        for (; i < n; i += WIDTH)
            v_store8(code + r * code_stride + i,
                     v_mul(v_load(x + r * stride + i), v_all(by[r])));
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

const struct kv_tile_loops NAME(kv_tile_loops) = {
    .dot = dot,
    .add = add,
    .exp = exp_rows,
    .max = max_rows,
    .round8 = round8,
};
