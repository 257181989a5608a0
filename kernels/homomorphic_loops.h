/* The loops of homomorphic.h that every level has alike: floats go element by
 * element, or in lanes that do not follow the register.  Included by
 * homomorphic.c and, compiled for wider registers, by homomorphic_avx2.c and
 * homomorphic_vnni.c. */
#include "kernels/homomorphic_impl.h"
#include "lib/base/rng.h"

#include <math.h>
#include <string.h>

#define ALWAYS_INLINE static inline __attribute__((always_inline))

/* Before a loop whose count is a constant, at most 16: no loop is left. */
#ifdef __clang__
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif

/* y, within the codes. */
ALWAYS_INLINE float clamped(float x, struct kv_hack_range r, float top)
{
    const float y = (x - r.min) / r.scale, low = y > 0 ? y : 0;

    return low < top ? low : top;
}

static int32_t round_codes(const float *x, size_t n, struct kv_hack_range r,
                           float top, const float *u, uint8_t *code)
{
    int32_t sum = 0;

    if (u)
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

/* kv_random_unit(): its 24 bits fit an int32_t, which vectors convert. */
static void uniform(uint64_t key, uint64_t first, uint64_t step, size_t n,
                    float *u)
{
    for (size_t i = 0; i < n; i++)
        u[i] =
            (float)(int32_t)(kv_random(key, first + i * step) >> 40) * 0x1p-24f;
}

static void add(const float *x, const float *m, size_t stride, size_t n_rows,
                size_t n, double *out)
{
    for (size_t i = 0; i < n_rows; i++)
        for (size_t c = 0; c < n; c++)
            out[c] += (double)x[i] * (double)m[i * stride + c];
}

static void narrow(const double *x, size_t n, double by, float *out)
{
    for (size_t i = 0; i < n; i++)
        out[i] = (float)(x[i] * by);
}
