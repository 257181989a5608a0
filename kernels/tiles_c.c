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
#define v_sum(x) (x)
#define v_round(x) ((x) + 0x1.8p23f - 0x1.8p23f)
#define v_half(p) kv_f16_to_f32(*(p))
#define v_bf16(p) kv_bf16_to_f32(*(p))
#define v_exp2i(n) kv_bits_f32((uint32_t)((int32_t)(n) + 127) << 23)
#define v_abs(x) fabsf(x)
#define v_most(x) (x)
#define v_store8(p, x) (*(p) = (int8_t)v_round(x))
#define v_from(x, low, y) ((x) >= (low) ? (y) : 0)

#include "kernels/tiles_loops.h"
