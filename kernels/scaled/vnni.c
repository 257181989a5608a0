#define V_VNNI
#include "kernels/simd/avx512.h"

ALWAYS_INLINE vi32 nibbles(vi32 x, unsigned at)
{
    const uint64_t low = 0x0c080400u + at * 0x01010101u;

    return _mm512_multishift_epi64_epi8(
        _mm512_set1_epi64((long long)(low | (low + 0x20202020u) << 32)), x);
}

/* Adds 128, since these bytes must be unsigned: the bytes that they are
 * multiplied with are signed. */
ALWAYS_INLINE vi32 near_table(const int8_t near[16])
{
    return v_xor(v_load_t16i8(near), v_set1_i8((char)128));
}

ALWAYS_INLINE vi32 dot(vi32 sum, vi32 x, int32_t four)
{
    return v_dot_i8(sum, x, v_set1_i32(four));
}

ALWAYS_INLINE int32_t query_bias(int32_t bias)
{
    return bias;
}

static inline int32_t weight_bias(const int8_t w[64])
{
    int32_t lane[V_WIDTH], sum = 0;

    v_store_i32(lane,
                v_dot_i8(v_zero_i32(), v_set1_i8((char)128), v_load_i32(w)));
    for (size_t i = 0; i < V_WIDTH; i++)
        sum -= lane[i];
    return sum;
}

ALWAYS_INLINE void order_quads(const int8_t *w, const uint8_t *order,
                               int8_t *quads)
{
    v_store_i32(quads,
                _mm512_permutexvar_epi8(v_load_i32(order), v_load_i32(w)));
}

#include "kernels/scaled/int8_loops.h"
