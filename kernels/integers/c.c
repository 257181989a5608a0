#include "kernels/simd/unroll.h"
#include "lib/base/half.h"

#include <math.h>
#include <stddef.h>
#include <stdint.h>

#define NAME(f) f##_c
#define WIDTH 1
#define GROUPS(rows) 1
#define FLOAT_GROUPS(rows) 1

typedef float vf;
typedef int32_t vi;

#define v_load(p) (*(p))
#define v_store(p, x) (*(p) = (x))
#define v_all(x) ((float)(x))
#define v_add(a, b) ((a) + (b))
#define v_sub(a, b) ((a) - (b))
#define v_mul(a, b) ((a) * (b))
#define v_fma(a, b, c) ((a) * (b) + (c)) /* two roundings: fmaf() is slow */
#define v_most(m, x) ((m) > fabsf(x) ? (m) : fabsf(x))
#define v_half(p) kv_f16_to_f32(*(p))
#define vi_store(p, x) (*(p) = (x))
#define vi_all(x) ((int32_t)(x))
#define vi_add(a, b) ((a) + (b))
#define vi_and(a, b) ((a) & (b))
#define vi_or(a, b) ((a) | (b))
#define vi_shl(x, n) ((int32_t)((uint32_t)(x) << (n)))
#define vi_shr(x, n) ((int32_t)((uint32_t)(x) >> (n)))
#define vi_near(x) ((int32_t)((x) + 0x1.8p23f - 0x1.8p23f))
#define vi_float(x) ((float)(x))
#define vi_store8(p, x) (*(p) = (uint8_t)(x))

static inline vi vi_byte(vi x, unsigned j)
{
    return vi_and(vi_shr(x, 8 * j), 255);
}

static inline vi vi_load(const void *p)
{
    vi x;

    memcpy(&x, p, sizeof(x));
    return x;
}

static inline void vi_dot(vi *s, const vi *part, vi x, vi w, unsigned bits,
                          int positive, unsigned e)
{
    (void)part;
    (void)bits;
    (void)e;
    for (int j = 0; j < 4; j++) {
        const int by = positive ? (uint8_t)(w >> 8 * j) : (int8_t)(w >> 8 * j);

        *s += (uint8_t)(x >> 8 * j) * by;
    }
}

static inline float sum_of(const vf *x)
{
    float y[16];

    memcpy(y, x, sizeof(y));
    for (int half = 8; half; half /= 2)
        for (int i = 0; i < half; i++)
            y[i] += y[i + half];
    return y[0];
}

static inline float most_of(const vf *x)
{
    float most = x[0];

    for (int i = 1; i < 16; i++)
        most = x[i] > most ? x[i] : most;
    return most;
}

static inline void v_sums(const vf x[4][16], float out[4])
{
    for (int i = 0; i < 4; i++)
        out[i] = sum_of(x[i]);
}

static inline void v_mosts(const vf x[4][16], float out[4])
{
    for (int i = 0; i < 4; i++)
        out[i] = most_of(x[i]);
}

static inline void vi_store64(uint8_t *p, const vi x[64], int positive,
                              vi codes[16])
{
    (void)positive;
    for (int i = 0; i < 64; i++) {
        codes[i % 16] += x[i];
        vi_store8(p + i, x[i]);
    }
}

#define SHIFTS() 1

#include "kernels/integers/loops.h"
