/* AVX-512 for processors without it.  SIMDe emulates the kernels' instructions
 * in AVX2 and plain C; this file emulates those that SIMDe lacks.  It is
 * included (-include) before the kernels' .c files, which are then compiled
 * unchanged, and before kernels/level.c, which then reports all of AVX-512 on
 * processors with AVX2.
 *
 * Only results can be tested with it, not times: the compiler chooses other
 * instructions around the emulated ones. */
#ifndef KV_AVX512_TWIN_H
#define KV_AVX512_TWIN_H

#define SIMDE_ENABLE_NATIVE_ALIASES
#include <simde/x86/avx512.h>
#include <simde/x86/gfni.h>

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

/* These intrinsics are macros in clang, and in gcc without optimization. */
#undef _mm512_cmplt_epi32_mask
#undef _mm512_permute_ps
#undef _mm512_reduce_ps
#undef _mm512_shuffle_epi32
#undef _mm512_shuffle_f32x4
#undef _mm512_srai_epi32
#undef _mm512_srli_epi16
#undef _mm512_testn_epi32_mask

static inline bool twin_supports(const char *name)
{
    if (!strncmp(name, "avx512", 6) || !strcmp(name, "gfni"))
        name = "avx2";
    return !strcmp(name, "avx2")   ? __builtin_cpu_supports("avx2")
           : !strcmp(name, "fma")  ? __builtin_cpu_supports("fma")
           : !strcmp(name, "bmi")  ? __builtin_cpu_supports("bmi")
           : !strcmp(name, "bmi2") ? __builtin_cpu_supports("bmi2")
                                   : false;
}
#define __builtin_cpu_supports twin_supports

/* Defines twin_NAME(): lane i of the result is EACH(lane i of from). */
#define TWIN_MAP(NAME, TO, TO_TYPE, FROM, FROM_TYPE, N, EACH) \
    static inline TO twin_##NAME(FROM from)                   \
    {                                                         \
        FROM_TYPE x[N];                                       \
        TO_TYPE y[N];                                         \
        TO to;                                                \
                                                              \
        memcpy(x, &from, sizeof(x));                          \
        for (size_t i = 0; i < (N); i++)                      \
            y[i] = (TO_TYPE)(EACH);                           \
        memcpy(&to, y, sizeof(to));                           \
        return to;                                            \
    }

static inline float twin_half(uint16_t x)
{
    return _mm_cvtss_f32(_mm_cvtph_ps(_mm_set1_epi16((short)x)));
}

TWIN_MAP(cvtepi32_pd, simde__m512d, double, simde__m256i, int32_t, 8, x[i])
TWIN_MAP(cvtps_pd, simde__m512d, double, simde__m256, float, 8, x[i])
TWIN_MAP(cvtepi32_ps, simde__m512, float, simde__m512i, int32_t, 16, x[i])
TWIN_MAP(cvtepu32_ps, simde__m512, float, simde__m512i, uint32_t, 16, x[i])
TWIN_MAP(cvtepi32_epi16, simde__m256i, int16_t, simde__m512i, int32_t, 16, x[i])
TWIN_MAP(cvtepi32_epi8, simde__m128i, int8_t, simde__m512i, int32_t, 16, x[i])
TWIN_MAP(cvtepu16_epi32, simde__m512i, int32_t, simde__m256i, uint16_t, 16,
         x[i])
TWIN_MAP(cvtepi8_epi32, simde__m512i, int32_t, simde__m128i, int8_t, 16, x[i])
TWIN_MAP(cvtepu8_epi32, simde__m512i, int32_t, simde__m128i, uint8_t, 16, x[i])
TWIN_MAP(cvtepu8_epi16, simde__m512i, int16_t, simde__m256i, uint8_t, 32, x[i])
TWIN_MAP(cvtph_ps, simde__m512, float, simde__m256i, uint16_t, 16,
         twin_half(x[i]))
TWIN_MAP(cvtps_epi32, simde__m512i, int32_t, simde__m512, float, 16,
         fabsf(x[i]) < 0x1p31f ? (int32_t)rintf(x[i]) : INT32_MIN)
TWIN_MAP(cvtps_epu32, simde__m512i, uint32_t, simde__m512, float, 16,
         x[i] > -1 && x[i] < 0x1p32f ? (uint32_t)rintf(x[i]) : UINT32_MAX)
TWIN_MAP(floor_part, simde__m512, float, simde__m512, float, 16,
         x[i] - floorf(x[i]))
TWIN_MAP(rsqrt14, simde__m512, float, simde__m512, float, 16, 1 / sqrtf(x[i]))
#define _mm512_cvtepi32_pd twin_cvtepi32_pd
#define _mm512_cvtps_pd twin_cvtps_pd
#define _mm512_cvtepi32_ps twin_cvtepi32_ps
#define _mm512_cvtepu32_ps twin_cvtepu32_ps
#define _mm512_cvtepi32_epi16 twin_cvtepi32_epi16
#define _mm512_cvtepi32_epi8 twin_cvtepi32_epi8
#define _mm512_cvtepu16_epi32 twin_cvtepu16_epi32
#define _mm512_cvtepi8_epi32 twin_cvtepi8_epi32
#define _mm512_cvtepu8_epi32 twin_cvtepu8_epi32
#define _mm512_cvtepu8_epi16 twin_cvtepu8_epi16
#define _mm512_cvtph_ps twin_cvtph_ps
#define _mm512_cvtps_epi32 twin_cvtps_epi32
#define _mm512_cvtps_epu32 twin_cvtps_epu32
#define _mm512_reduce_ps(a, to) \
    ((void)sizeof(char[(to) == _MM_FROUND_TO_NEG_INF]), twin_floor_part(a))
#define _mm512_rsqrt14_ps twin_rsqrt14

/* Defines twin_reduce_NAME(): combines the upper half of the lanes with the
 * lower half until one number is left. */
#define TWIN_REDUCE(NAME, BOTH)                           \
    static inline float twin_reduce_##NAME(simde__m512 x) \
    {                                                     \
        float y[16];                                      \
                                                          \
        memcpy(y, &x, sizeof(y));                         \
        for (size_t n = 8; n; n /= 2)                     \
            for (size_t i = 0; i < n; i++) {              \
                const float a = y[i], b = y[i + n];       \
                                                          \
                y[i] = BOTH;                              \
            }                                             \
        return y[0];                                      \
    }
TWIN_REDUCE(add, a + b)
TWIN_REDUCE(min, a < b ? a : b)
TWIN_REDUCE(max, a > b ? a : b)
#define _mm512_reduce_add_ps twin_reduce_add
#define _mm512_reduce_min_ps twin_reduce_min
#define _mm512_reduce_max_ps twin_reduce_max

static inline simde__mmask16 twin_testn(simde__m512i a, simde__m512i b)
{
    return (simde__mmask16)~_mm512_test_epi32_mask(a, b);
}

static inline simde__m512 twin_maskz_loadu_ps(simde__mmask16 there,
                                              const void *p)
{
    float x[16] = {0};
    simde__m512 to;

    for (size_t i = 0; i < 16; i++)
        if (there >> i & 1)
            memcpy(&x[i], (const char *)p + i * sizeof(*x), sizeof(*x));
    memcpy(&to, x, sizeof(to));
    return to;
}

static inline simde__m128i twin_maskz_loadu_epi8(simde__mmask16 there,
                                                 const void *p)
{
    uint8_t x[16] = {0};
    simde__m128i to;

    for (size_t i = 0; i < 16; i++)
        if (there >> i & 1)
            x[i] = ((const uint8_t *)p)[i];
    memcpy(&to, x, sizeof(to));
    return to;
}

/* Shuffles within groups of four lanes: lane i takes lane (order >> 2 i) % 4 of
 * its group. */
static inline simde__m512i twin_shuffle_epi32(simde__m512i from, unsigned order)
{
    uint32_t x[16], y[16];

    memcpy(x, &from, sizeof(x));
    for (size_t i = 0; i < 16; i++)
        y[i] = x[i / 4 * 4 + (order >> i % 4 * 2) % 4];
    memcpy(&from, y, sizeof(y));
    return from;
}

static inline simde__m512i twin_srai_epi32(simde__m512i from, unsigned by)
{
    int32_t x[16];

    memcpy(x, &from, sizeof(x));
    for (size_t i = 0; i < 16; i++)
        x[i] >>= by;
    memcpy(&from, x, sizeof(x));
    return from;
}

static inline simde__m512 twin_widened(const void *from, size_t bytes)
{
    simde__m512 to;

    memset(&to, 0, sizeof(to));
    memcpy(&to, from, bytes);
    return to;
}

static inline simde__m512 twin_zext128(simde__m128 x)
{
    return twin_widened(&x, sizeof(x));
}

static inline simde__m512 twin_zext256(simde__m256 x)
{
    return twin_widened(&x, sizeof(x));
}

#define _kand_mask64(a, b) ((simde__mmask64)((a) & (b)))
#define _mm512_cmplt_epi32_mask(a, b) _mm512_cmpgt_epi32_mask(b, a)
#define _mm512_testn_epi32_mask twin_testn
#define _mm512_maskz_loadu_ps twin_maskz_loadu_ps
#define _mm_maskz_loadu_epi8 twin_maskz_loadu_epi8
#define _mm512_shuffle_epi32 twin_shuffle_epi32
#define _mm512_permute_ps(a, order) \
    _mm512_castsi512_ps(twin_shuffle_epi32(_mm512_castps_si512(a), order))
#define _mm512_srai_epi32 twin_srai_epi32
#define _mm512_srli_epi16(a, by) /* clang needs a constant for SIMDe's */ \
    _mm512_srl_epi16(a, _mm_cvtsi32_si128((int)(by)))
#define _mm512_zextps128_ps512 twin_zext128
#define _mm512_zextps256_ps512 twin_zext256

/* Shuffles quarters of registers: the first two come from a, the other two from
 * b. */
static inline simde__m512 twin_shuffle_quarters(simde__m512 a, simde__m512 b,
                                                unsigned order)
{
    float x[2][16], y[16];

    memcpy(x[0], &a, sizeof(a));
    memcpy(x[1], &b, sizeof(b));
    for (size_t i = 0; i < 4; i++)
        memcpy(y + 4 * i, x[i / 2] + 4 * (order >> 2 * i & 3), 4 * sizeof(*y));
    memcpy(&a, y, sizeof(a));
    return a;
}
#define _mm512_shuffle_f32x4 twin_shuffle_quarters

/* ---- kernels/simd/common.h: no loop is unrolled, or files take minutes to
 * compile ---- */
#define KV_SIMD_TWIN
#define ALWAYS_INLINE static inline
#define UNROLL

/* ---- kernels/simd/instructions_avx512.h
 * ---------------------------------------
 */
#define KV_SIMD_INSTRUCTIONS_AVX512_H

static inline simde__m512i twin_four(const void *p)
{
    int32_t x;

    memcpy(&x, p, sizeof(x));
    return _mm512_set1_epi32(x);
}

#define KV_STAYS(X) ((void)(X))
#define KV_DPWSSD_HERE(SUM, A, B) ((SUM) = _mm512_dpwssd_epi32(SUM, A, B))
#define KV_DPWSSD_AT(SUM, A, P) KV_DPWSSD_HERE(SUM, A, _mm512_loadu_si512(P))
#define KV_DPBUSD(SUM, U, V) ((SUM) = _mm512_dpbusd_epi32(SUM, U, V))
#define KV_DPBUSD_HERE KV_DPBUSD
#define KV_DPBUSD_ALL4_HERE(SUM, U, P) KV_DPBUSD(SUM, U, twin_four(P))
#define KV_PERMB_HERE(X, CODE, TABLE) \
    ((X) = _mm512_permutexvar_epi8(CODE, TABLE))
#define KV_PERMB_WHERE_HERE(X, WHERE, CODE, TABLE) \
    ((X) = _mm512_mask_permutexvar_epi8(X, WHERE, CODE, TABLE))
#define KV_PERMB_WHERE_AT_HERE(X, WHERE, CODE, P) \
    KV_PERMB_WHERE_HERE(X, WHERE, CODE, _mm512_loadu_si512(P))
#define KV_PERMI2B_WHERE_HERE(X, WHERE, FIRST, SECOND) \
    ((X) = _mm512_mask2_permutex2var_epi8(FIRST, X, WHERE, SECOND))

#endif
