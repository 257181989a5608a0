/* The operations of hack.h with the same source at every level: floats go
 * element by element, or in a number of lanes that does not depend on the
 * register.  Included by c.c and, compiled for wider registers, by avx2.c and
 * avx512.c.  Those files define the other operations; TABLE() lists all. */
#include "kernels/hack/hack.h"
#include "kernels/simd/common.h"
#include "lib/base/rng.h"

#include <math.h>
#include <string.h>

ALWAYS_INLINE float top_code(unsigned bits)
{
    return (float)((1u << bits) - 1);
}

/* y, clamped to the range of codes. */
ALWAYS_INLINE float clamped(float x, struct kv_hack_range r, float top)
{
    const float y = (x - r.min) / r.scale, low = y > 0 ? y : 0;

    return low < top ? low : top;
}

static int32_t round_codes(const float *x, size_t n, struct kv_hack_range r,
                           unsigned bits, const float *u, uint8_t *code)
{
    const float top = top_code(bits);
    int32_t sum = 0;

    if (!(r.scale > 0))
        memset(code, 0, n);
    else if (u)
        for (size_t i = 0; i < n; i++) {
            const float in = clamped(x[i], r, top);
            const int32_t down = (int32_t)in;
            const int32_t c = down + (u[i] < in - (float)down);

            code[i] = (uint8_t)c;
            sum += c;
        }
    else
        for (size_t i = 0; i < n; i++) {
            /* adding 1.5 * 2^23 leaves no room for a fraction */
            const int32_t c =
                (int32_t)(clamped(x[i], r, top) + 12582912.0f - 12582912.0f);

            code[i] = (uint8_t)c;
            sum += c;
        }
    return sum;
}

static struct kv_hack_range range(const float *x, size_t n, unsigned bits);

static void quantize(const float *x, size_t x_stride, size_t n_rows, size_t n,
                     unsigned bits, const float *u, size_t u_stride,
                     uint8_t *code, size_t code_stride, struct kv_hack_row *row)
{
    for (size_t i = 0; i < n_rows; i++) {
        const float *from = x + i * x_stride;
        const struct kv_hack_range r = range(from, n, bits);
        uint8_t *to = code + i * code_stride;
        const int32_t sum =
            round_codes(from, n, r, bits, u ? u + i * u_stride : NULL, to);

        row[i] = (struct kv_hack_row){to, n, r, sum};
    }
}

/* kv_random_unit(): its 24 bits fit an int32_t, which vectors can convert.  The
 * counter advances by adding to the key, without a multiplication. */
static void uniform(uint64_t key, uint64_t first, uint64_t step, size_t n,
                    float *u)
{
    step *= KV_MIX_STEP;
    for (size_t i = 0; i < n; i++, key += step)
        u[i] = (float)(int32_t)(kv_random(key, first) >> 40) * 0x1p-24f;
}

static void weight_uniform(uint64_t key, uint64_t counter, size_t n, float *u)
{
    for (size_t i = 0; i < n; i += 32) {
        uint64_t word[8];
        float all[32];

        for (size_t j = 0; j < 8; j++)
            word[j] = kv_hack_weight_word(key, counter, i + j);
        for (size_t k = 0; k < 32; k += 8)
            for (size_t j = 0; j < 8; j++)
                all[k + j] = kv_hack_weight_unit(word[j], k);
        memcpy(u + i, all, (n - i < 32 ? n - i : 32) * sizeof(*u));
    }
}

static void scale(const float *x, size_t x_stride, size_t n_rows, size_t n,
                  const float *by, float *out, size_t out_stride)
{
    for (size_t i = 0; i < n_rows; i++, x += x_stride, out += out_stride)
        for (size_t c = 0; c < n; c++)
            out[c] = x[c] * by[c];
}

static void narrow(const double *x, size_t n, double by, float *out)
{
    for (size_t i = 0; i < n; i++)
        out[i] = (float)(x[i] * by);
}

#define TABLE(level)                                     \
    const struct kv_hack_table kv_hack_table_##level = { \
        .range = range,                                  \
        .round = round_codes,                            \
        .uniform = uniform,                              \
        .weight_uniform = weight_uniform,                \
        .quantize = quantize,                            \
        .arrange = arrange,                              \
        .sums = sums,                                    \
        .multiply = multiply,                            \
        .transpose = transpose,                          \
        .dots = dots,                                    \
        .add = add,                                      \
        .scale = scale,                                  \
        .narrow = narrow,                                \
    }
