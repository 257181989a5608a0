#include "lib/base/half.h"

#include <math.h>
#include <stddef.h>

#define NAME(f) f##_c
#define WIDTH 1
#define GROUPS(rows) 1

typedef float vf;

#define v_load(p) (*(p))
#define v_store(p, x) (*(p) = (x))
#define v_all(x) ((float)(x))
#define v_add(a, b) ((a) + (b))
#define v_sub(a, b) ((a) - (b))
#define v_mul(a, b) ((a) * (b))
#define v_fma(a, b, c) ((a) * (b) + (c)) /* two roundings: fmaf() is slow */
#define v_max(a, b) ((a) > (b) ? (a) : (b))
#define v_half(p) kv_f16_to_f32(*(p))
#define v_bf16(p) kv_bf16_to_f32(*(p))
#define v_fraction(x) ((x)-whole(x))
#define v_times2 times2
#define v_abs(x) fabsf(x)
#define v_sums(x, out) memcpy(out, x, 4 * sizeof(float))
#define v_mosts v_sums
#define v_store8(p, x) (*(p) = (int8_t)((x) + 0x1.8p23f - 0x1.8p23f))

/* floorf(), which is slow, of |x| below 2^22. */
static inline float whole(float x)
{
    const float near = x + 0x1.8p23f - 0x1.8p23f;

    return near > x ? near - 1 : near;
}

static inline float times2(float x, float n)
{
    if (!(n < 128)) /* no number */
        return n;
    return x * kv_bits_f32((uint32_t)((int32_t)whole(n) + 127) << 23);
}

static inline void v_store8x4(int8_t *p, const float x[4])
{
    for (int i = 0; i < 4; i++)
        v_store8(p + i, x[i]);
}

#include "kernels/tiles/loops.h"
