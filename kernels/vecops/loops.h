/* The operations of kernels/vecops/vecops.h over vectors of V_WIDTH floats, 8
 * or 16, in the notation that gcc and clang share.  Included by c.c, avx2.c and
 * avx512.c after their kernels/simd header.  Sums have eight lanes for any
 * V_WIDTH, so every level gives the same bits. */
#include "kernels/vecops/impl.h"
#include "lib/base/half.h"

#include <math.h>

/* The lanes' bits as integers; masks have this form. */
typedef int32_t lanes __attribute__((vector_size(4 * V_WIDTH)));
typedef uint32_t bits __attribute__((vector_size(4 * V_WIDTH)));
#if V_WIDTH == 8
typedef float half_reg __attribute__((vector_size(16)));
typedef double doubles __attribute__((vector_size(32)));
#define LANE_NUMBERS 0, 1, 2, 3, 4, 5, 6, 7
#define LOW_HALF 0, 1, 2, 3
#define HIGH_HALF 4, 5, 6, 7
#else
typedef float half_reg __attribute__((vector_size(32)));
typedef double doubles __attribute__((vector_size(64)));
#define LANE_NUMBERS 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15
#define LOW_HALF 0, 1, 2, 3, 4, 5, 6, 7
#define HIGH_HALF 8, 9, 10, 11, 12, 13, 14, 15
#endif

/* Loads the last n < V_WIDTH values of a row; the other lanes are `rest`. */
ALWAYS_INLINE vf32 load_last(const float *x, size_t n, float rest)
{
    float part[V_WIDTH];

    for (size_t j = 0; j < V_WIDTH; j++)
        part[j] = j < n ? x[j] : rest;
    return v_load(part);
}

ALWAYS_INLINE void store_last(float *x, size_t n, vf32 v)
{
    memcpy(x, &v, n * sizeof(*x));
}

ALWAYS_INLINE vf32 choose(lanes mask, vf32 yes, vf32 no)
{
    return (vf32)((mask & (lanes)yes) | (~mask & (lanes)no));
}

/* A sum in double, with eight lanes at every level. */
struct sum {
    doubles part[8 / (V_WIDTH / 2)];
};

ALWAYS_INLINE void sum_add(struct sum *s, vf32 v)
{
    const half_reg low = __builtin_shufflevector(v, v, LOW_HALF);
    const half_reg high = __builtin_shufflevector(v, v, HIGH_HALF);

    s->part[0] += __builtin_convertvector(low, doubles);
    s->part[V_WIDTH == 8] += __builtin_convertvector(high, doubles);
}

ALWAYS_INLINE double sum_total(const struct sum *s)
{
    double lane[8];

    memcpy(lane, s, sizeof(lane));
    return ((lane[0] + lane[4]) + (lane[2] + lane[6])) +
           ((lane[1] + lane[5]) + (lane[3] + lane[7]));
}

/* exp(x) = 2^n exp(r), n = round(x / ln 2), |r| <= ln 2 / 2; the polynomial
 * is Cephes' expf.  ln 2 is split so that n * LN2_HIGH is exact. */
ALWAYS_INLINE vf32 exp_of(vf32 x)
{
    const float LN2_HIGH = 0.693359375f, LN2_LOW = -2.12194440e-4f;
    const float ROUND = 0x1.8p23f; /* adding it rounds to an integer */
    const lanes under = x<-87.33654f, over = x> 88.37626f;
    const vf32 t = x * 1.44269504f + ROUND;
    const vf32 n = t - ROUND;
    const vf32 r = x - n * LN2_HIGH - n * LN2_LOW;
    vf32 p = v_set1(1.9875691500e-4f);

    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * (r * r) + r + 1.0f;
    /* n stands in the low bits of t: move it to the exponent */
    p = p * (vf32)(((bits)t + 127u) << 23);
    p = choose(under, v_set1(0), p);
    return choose(over, v_set1(INFINITY), p);
}

static void rms_norm(const float *x, const float *w, size_t n, float eps,
                     float *out)
{
    const size_t whole = n - n % V_WIDTH, rest = n - whole;
    const vf32 last = load_last(x + whole, rest, 0);
    struct sum squares = {0};

    for (size_t i = 0; i < whole; i += V_WIDTH)
        sum_add(&squares, v_load(x + i) * v_load(x + i));
    sum_add(&squares, last * last);

    const double mean = sum_total(&squares) / (double)n;
    const float by = (float)(1 / sqrt(mean + (double)eps));

    for (size_t i = 0; i < whole; i += V_WIDTH)
        v_store(out + i, v_load(x + i) * by * v_load(w + i));
    store_last(out + whole, rest, last * by * load_last(w + whole, rest, 0));
}

ALWAYS_INLINE vf32 silu_mul_of(vf32 gate, vf32 up)
{
    return gate / (exp_of(-gate) + 1.0f) * up;
}

static void silu_mul(const float *gate, const float *up, size_t n, float *out)
{
    const size_t whole = n - n % V_WIDTH, rest = n - whole;

    for (size_t i = 0; i < whole; i += V_WIDTH)
        v_store(out + i, silu_mul_of(v_load(gate + i), v_load(up + i)));
    store_last(out + whole, rest,
               silu_mul_of(load_last(gate + whole, rest, 0),
                           load_last(up + whole, rest, 0)));
}

/* y = x b w with b = (mean(x^2) + eps)^-1/2:
 * dx = b (w g - x b^2 mean(x w g)). */
static void rms_norm_grad(const float *x, const float *w, const float *g,
                          size_t n, float eps, float *out)
{
    const size_t whole = n - n % V_WIDTH, rest = n - whole;
    const vf32 last = load_last(x + whole, rest, 0);
    const vf32 last_wg =
        load_last(w + whole, rest, 0) * load_last(g + whole, rest, 0);
    struct sum squares = {0}, product = {0};

    for (size_t i = 0; i < whole; i += V_WIDTH) {
        sum_add(&squares, v_load(x + i) * v_load(x + i));
        sum_add(&product, v_load(x + i) * (v_load(w + i) * v_load(g + i)));
    }
    sum_add(&squares, last * last);
    sum_add(&product, last * last_wg);

    const double b = 1 / sqrt(sum_total(&squares) / (double)n + (double)eps);
    const float by = (float)b;
    const float back = (float)(b * b * b * (sum_total(&product) / (double)n));

    for (size_t i = 0; i < whole; i += V_WIDTH)
        v_store(out + i,
                v_load(w + i) * v_load(g + i) * by - v_load(x + i) * back);
    store_last(out + whole, rest, last_wg * by - last * back);
}

/* silu' = s (1 + gate (1 - s)), s = 1 / (1 + exp(-gate)). */
ALWAYS_INLINE void silu_mul_grad_of(vf32 gate, vf32 up, vf32 g, vf32 *gate_grad,
                                    vf32 *up_grad)
{
    const vf32 s = 1.0f / (exp_of(-gate) + 1.0f);

    *gate_grad = g * up * (s * (gate * (1.0f - s) + 1.0f));
    *up_grad = g * (gate * s);
}

static void silu_mul_grad(const float *gate, const float *up, const float *g,
                          size_t n, float *gate_grad, float *up_grad)
{
    const size_t whole = n - n % V_WIDTH, rest = n - whole;
    vf32 a, b;

    for (size_t i = 0; i < whole; i += V_WIDTH) {
        silu_mul_grad_of(v_load(gate + i), v_load(up + i), v_load(g + i), &a,
                         &b);
        v_store(gate_grad + i, a);
        v_store(up_grad + i, b);
    }
    silu_mul_grad_of(load_last(gate + whole, rest, 0),
                     load_last(up + whole, rest, 0),
                     load_last(g + whole, rest, 0), &a, &b);
    store_last(gate_grad + whole, rest, a);
    store_last(up_grad + whole, rest, b);
}

/* dx = p (g - sum(p g)). */
static void softmax_grad(const float *p, const float *g, size_t n, float *out)
{
    const size_t whole = n - n % V_WIDTH, rest = n - whole;
    const vf32 last_p = load_last(p + whole, rest, 0);
    const vf32 last_g = load_last(g + whole, rest, 0);
    struct sum s = {0};

    for (size_t i = 0; i < whole; i += V_WIDTH)
        sum_add(&s, v_load(p + i) * v_load(g + i));
    sum_add(&s, last_p * last_g);

    const float mean = (float)sum_total(&s);

    for (size_t i = 0; i < whole; i += V_WIDTH)
        v_store(out + i, v_load(p + i) * (v_load(g + i) - mean));
    store_last(out + whole, rest, last_p * (last_g - mean));
}

static float max(const float *x, size_t n)
{
    vf32 m[4] = {v_set1(-INFINITY), v_set1(-INFINITY), v_set1(-INFINITY),
                 v_set1(-INFINITY)};
    float top = -INFINITY;
    size_t i = 0;

    for (; i + 4 * V_WIDTH <= n; i += 4 * V_WIDTH) /* four, which run in
                                                    * parallel */
        for (size_t j = 0; j < 4; j++)
            m[j] = v_max(v_load(x + i + j * V_WIDTH), m[j]);
    m[0] = v_max(v_max(m[0], m[1]), v_max(m[2], m[3]));
    for (size_t j = 0; j < V_WIDTH; j++)
        top = m[0][j] > top ? m[0][j] : top;
    for (; i < n; i++)
        top = x[i] > top ? x[i] : top;
    return top;
}

static double exp_row(float *x, size_t n, float shift)
{
    const size_t whole = n - n % V_WIDTH, rest = n - whole;
    struct sum s = {0};
    vf32 e;

    for (size_t i = 0; i < whole; i += V_WIDTH) {
        e = exp_of(v_load(x + i) - shift);
        v_store(x + i, e);
        sum_add(&s, e);
    }
    e = exp_of(load_last(x + whole, rest, -INFINITY) - shift);
    store_last(x + whole, rest, e);
    sum_add(&s, e);
    return sum_total(&s);
}

static void add(float *x, const float *b, size_t n)
{
    for (size_t i = 0; i < n; i++)
        x[i] += b[i];
}

static void scale(float *x, size_t n, float by)
{
    for (size_t i = 0; i < n; i++)
        x[i] *= by;
}

static void softmax(float *x, size_t n)
{
    scale(x, n, (float)(1 / exp_row(x, n, max(x, n))));
}

/* A product of kv_vecops_times. */
struct product {
    const float *a, *m;
    size_t a_stride, m_stride, n;
    float *y;
    size_t y_stride;
};

/* Computes rows x wide * V_WIDTH sums from row r and column j on, all in
 * registers; rows and wide are constants. */
ALWAYS_INLINE void add_products(const struct product *p, size_t r, size_t j,
                                size_t rows, size_t wide)
{
    const float *a = p->a + r * p->a_stride, *m = p->m + j;
    float *y = p->y + r * p->y_stride + j;
    vf32 sum[16];

    for (size_t i = 0; i < rows; i++)
        for (size_t k = 0; k < wide; k++)
            sum[i * wide + k] = v_load(y + i * p->y_stride + k * V_WIDTH);
    for (size_t t = 0; t < p->n; t++, m += p->m_stride)
        for (size_t k = 0; k < wide; k++) {
            const vf32 x = v_load(m + k * V_WIDTH);

            for (size_t i = 0; i < rows; i++)
                sum[i * wide + k] = v_fmadd(v_set1(a[i * p->a_stride + t]), x,
                                            sum[i * wide + k]);
        }
    for (size_t i = 0; i < rows; i++)
        for (size_t k = 0; k < wide; k++)
            v_store(y + i * p->y_stride + k * V_WIDTH, sum[i * wide + k]);
}

/* Processes four rows at a time, in blocks of columns small enough for m's
 * columns to stay in the cache. */
static void add_fours(const struct product *p, size_t rows, size_t d)
{
    enum { WIDE = V_WIDTH / 4 };

    for (size_t j = 0, wide; d - j >= V_WIDTH; j += wide * V_WIDTH) {
        const size_t left = (d - j) / V_WIDTH;

        /* no single register at the end: it would have too few sums in
         * parallel */
        wide = left == WIDE + 1 ? WIDE - 1 : left < WIDE ? left : WIDE;
        switch (wide) {
#define CASE(N)                              \
    case N:                                  \
        for (size_t r = 0; r < rows; r += 4) \
            add_products(p, r, j, 4, N);     \
        break;
            CASE(1)
            CASE(2)
            CASE(3)
            CASE(4)
#undef CASE
        }
    }
}

static void add_one(const struct product *p, size_t row, size_t d)
{
    enum { WIDE = 8 };

    for (size_t j = 0, wide; d - j >= V_WIDTH; j += wide * V_WIDTH) {
        const size_t left = (d - j) / V_WIDTH;

        wide = left < WIDE ? left : WIDE;
        switch (wide) {
#define CASE(N)                        \
    case N:                            \
        add_products(p, row, j, 1, N); \
        break;
            CASE(1)
            CASE(2)
            CASE(3)
            CASE(4)
            CASE(5)
            CASE(6)
            CASE(7)
            CASE(8)
#undef CASE
        }
    }
}

static void rows_times(const float *a, size_t a_stride, size_t rows,
                       const float *m, size_t n, size_t m_stride, size_t d,
                       float *y, size_t y_stride)
{
    const struct product p = {a, m, a_stride, m_stride, n, y, y_stride};
    const size_t fours = rows / 4 * 4, whole = d / V_WIDTH * V_WIDTH;

    add_fours(&p, fours, d);
    for (size_t r = fours; r < rows; r++)
        add_one(&p, r, d);
    for (size_t r = 0; r < rows; r++)
        for (size_t j = whole; j < d; j++)
            for (size_t t = 0; t < n; t++)
                y[r * y_stride + j] =
                    fmaf(a[r * a_stride + t], m[t * m_stride + j],
                         y[r * y_stride + j]);
}

static double log_sum_exp(const float *x, size_t n)
{
    const size_t whole = n - n % V_WIDTH, rest = n - whole;
    const float top = max(x, n), shift = isinf(top) ? 0 : top;
    struct sum s = {0};

    for (size_t i = 0; i < whole; i += V_WIDTH)
        sum_add(&s, exp_of(v_load(x + i) - shift));
    sum_add(&s, exp_of(load_last(x + whole, rest, -INFINITY) - shift));
    return (double)shift + log(sum_total(&s));
}

static void widen_f16(const void *from, size_t n, float *to)
{
    const unsigned char *p = from;

    for (size_t i = 0; i < n; i++) {
        uint16_t h;

        memcpy(&h, p + 2 * i, sizeof(h));

        const uint32_t sign = (uint32_t)(h & 0x8000) << 16;
        const uint32_t special = (h & 0x7c00) == 0x7c00 ? 0x7f800000 : 0;
        /* the half's bits as a float are 2^112 too small, denormals too */
        const float f = kv_bits_f32((uint32_t)(h & 0x7fff) << 13) * 0x1p112f;

        to[i] = kv_bits_f32(kv_f32_bits(f) | special | sign);
    }
}

/* kv_f16_to_f32(kv_f16_clamp(x)) without a branch. */
static void round_f16(const float *x, size_t n, float *out)
{
    for (size_t i = 0; i < n; i++) {
        const uint32_t u = kv_f32_bits(x[i]), a = u & 0x7fffffff;
        const uint32_t normal = (a + 0xfff + (a >> 13 & 1)) & ~(uint32_t)0x1fff;
        /* for subnormal halves: adding 0.5 rounds to a multiple of 2^-24 */
        const uint32_t small = kv_f32_bits(kv_bits_f32(a) + 0.5f - 0.5f);
        const uint32_t finite = a < 0x38800000 ? small : normal;
        const uint32_t top = 0x477fe000; /* 65504 */
        const uint32_t clamped = finite < top ? finite : top;
        const uint32_t r = a > 0x7f800000 ? 0x7fc00000 : clamped;

        out[i] = kv_bits_f32(r | (u & 0x80000000));
    }
}

static bool is_finite(const float *x, size_t n)
{
    uint32_t top = 0;

    for (size_t i = 0; i < n; i++) {
        const uint32_t a = kv_f32_bits(x[i]) & 0x7fffffff;

        top = a > top ? a : top;
    }
    return top < 0x7f800000;
}

static void widen_bf16(const void *from, size_t n, float *to)
{
    const unsigned char *p = from;

    for (size_t i = 0; i < n; i++) {
        uint16_t h;

        memcpy(&h, p + 2 * i, sizeof(h));
        to[i] = kv_bf16_to_f32(h);
    }
}

/* ---- Hadamard ------------------------------------------------------------ */

/* A pass within a register: lane j and lane j ^ BY. */
#if V_WIDTH == 8
#define OTHER(x, BY)                                                      \
    __builtin_shufflevector(x, x, 0 ^ BY, 1 ^ BY, 2 ^ BY, 3 ^ BY, 4 ^ BY, \
                            5 ^ BY, 6 ^ BY, 7 ^ BY)
#else
#define OTHER(x, BY)                                                         \
    __builtin_shufflevector(x, x, 0 ^ BY, 1 ^ BY, 2 ^ BY, 3 ^ BY, 4 ^ BY,    \
                            5 ^ BY, 6 ^ BY, 7 ^ BY, 8 ^ BY, 9 ^ BY, 10 ^ BY, \
                            11 ^ BY, 12 ^ BY, 13 ^ BY, 14 ^ BY, 15 ^ BY)
#endif
#define PASS(x, BY) sums_and_differences(x, OTHER(x, BY), BY)

ALWAYS_INLINE vf32 sums_and_differences(vf32 x, vf32 other, int by)
{
    const lanes upper = ((lanes){LANE_NUMBERS} & by) != 0;

    return other + (vf32)((lanes)x ^ (upper & INT32_MIN));
}

ALWAYS_INLINE vf32 hadamard_lanes(vf32 x)
{
#if V_WIDTH == 16
    x = PASS(x, 8);
#endif
    x = PASS(x, 4);
    x = PASS(x, 2);
    return PASS(x, 1);
}

/* Computes sums and differences of rows of n floats at x and x + by. */
ALWAYS_INLINE void add_and_subtract(float *x, size_t by, size_t n, float scale)
{
    for (size_t i = 0; i < n; i += V_WIDTH) {
        const vf32 a = v_load(x + i), b = v_load(x + by + i);

        v_store(x + i, (a + b) * scale);
        v_store(x + by + i, (a - b) * scale);
    }
}

/* add_and_subtract() twice for four rows, first 2 by apart, then by apart. */
ALWAYS_INLINE void add_and_subtract_twice(float *x, size_t by, size_t n,
                                          float scale)
{
    for (size_t i = 0; i < n; i += V_WIDTH) {
        const vf32 a = v_load(x + i), b = v_load(x + by + i);
        const vf32 c = v_load(x + 2 * by + i), d = v_load(x + 3 * by + i);
        const vf32 e = a + c, f = b + d, g = a - c, h = b - d;

        v_store(x + i, (e + f) * scale);
        v_store(x + by + i, (e - f) * scale);
        v_store(x + 2 * by + i, (g + h) * scale);
        v_store(x + 3 * by + i, (g - h) * scale);
    }
}

/* Does two passes at a time, so that a row is read half as often; an odd last
 * pass is done alone. */
ALWAYS_INLINE void all_passes(float *x, size_t m, size_t n, float scale)
{
    size_t half = m / 2;

    for (; half > 1; half /= 4)
        for (size_t i = 0; i < m; i += 2 * half)
            for (size_t j = i; j < i + half / 2; j++)
                add_and_subtract_twice(x + j * n, half / 2 * n, n,
                                       half > 3 ? 1 : scale);
    for (size_t i = 0; half && i < m; i += 2)
        add_and_subtract(x + i * n, n, n, scale);
    for (size_t i = 0; m == 1 && i < n; i += V_WIDTH)
        v_store(x + i, v_load(x + i) * scale);
}

/* A pass makes two halves; it makes only one while only that one is wanted. */
static float *rows_hadamard(float *x, size_t m, size_t n, size_t first,
                            size_t wanted, float scale)
{
    for (size_t half = m / 2;
         half && first / half == (first + wanted - 1) / half;
         m = half, first %= half, half /= 2) {
        const bool upper = first >= half;

        for (size_t i = 0; i < half * n; i += V_WIDTH) {
            const vf32 a = v_load(x + i), b = v_load(x + half * n + i);

            v_store(x + i, upper ? a - b : a + b);
        }
    }
    all_passes(x, m, n, scale);
    return x + first * n;
}

static void hadamard(float *x, size_t m, float scale)
{
    if (m >= V_WIDTH) {
        all_passes(x, m / V_WIDTH, V_WIDTH, 1);
        for (size_t i = 0; i < m; i += V_WIDTH)
            v_store(x + i, hadamard_lanes(v_load(x + i)) * scale);
        return;
    }
    for (size_t half = m / 2; half > 0; half /= 2)
        for (size_t i = 0; i < m; i += 2 * half)
            for (size_t j = i; j < i + half; j++) {
                const float a = x[j], b = x[j + half];

                x[j] = a + b;
                x[j + half] = a - b;
            }
    for (size_t i = 0; i < m; i++)
        x[i] *= scale;
}

const struct kv_vecops NAME(kv_vecops) = {
    .rms_norm = rms_norm,
    .silu_mul = silu_mul,
    .rms_norm_grad = rms_norm_grad,
    .silu_mul_grad = silu_mul_grad,
    .softmax_grad = softmax_grad,
    .add = add,
    .scale = scale,
    .max = max,
    .exp = exp_row,
    .softmax = softmax,
    .log_sum_exp = log_sum_exp,
    .times = rows_times,
    .round_f16 = round_f16,
    .hadamard = hadamard,
    .rows_hadamard = rows_hadamard,
    .is_finite = is_finite,
    .widen_f16 = widen_f16,
    .widen_bf16 = widen_bf16,
};
