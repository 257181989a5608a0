#include "kernels/weights/weights.h"
#include "kernels/level.h"
#include "kernels/vecops/vecops.h"
#include "kernels/weights/impl.h"
#include "lib/base/alloc.h"

#include <stdlib.h>
#include <string.h>

static const struct {
    const char *name;
    size_t values, bytes;
} types[KV_STORED_OTHER] = {
    [KV_STORED_F32] = {"f32", 1, 4},
    [KV_STORED_F16] = {"f16", 1, 2},
    [KV_STORED_BF16] = {"bf16", 1, 2},
    [KV_STORED_Q4_0] = {"q4_0", 32, 18},
    [KV_STORED_Q4_1] = {"q4_1", 32, 20},
    [KV_STORED_Q5_0] = {"q5_0", 32, 22},
    [KV_STORED_Q5_1] = {"q5_1", 32, 24},
    [KV_STORED_Q8_0] = {"q8_0", 32, 34},
    [KV_STORED_Q2_K] = {"q2_k", 256, 84},
    [KV_STORED_Q3_K] = {"q3_k", 256, 110},
    [KV_STORED_Q4_K] = {"q4_k", 256, 144},
    [KV_STORED_Q5_K] = {"q5_k", 256, 176},
    [KV_STORED_Q6_K] = {"q6_k", 256, 210},
    [KV_STORED_IQ4_NL] = {"iq4_nl", 32, 18},
    [KV_STORED_IQ4_XS] = {"iq4_xs", 256, 136},
    [KV_STORED_MXFP4] = {"mxfp4", 32, 17},
    [KV_STORED_TQ1_0] = {"tq1_0", 256, 54},
    [KV_STORED_TQ2_0] = {"tq2_0", 256, 66},
    [KV_STORED_IQ1_S] = {"iq1_s", 256, 50},
    [KV_STORED_IQ1_M] = {"iq1_m", 256, 56},
    [KV_STORED_IQ2_XXS] = {"iq2_xxs", 256, 66},
    [KV_STORED_IQ2_XS] = {"iq2_xs", 256, 74},
    [KV_STORED_IQ2_S] = {"iq2_s", 256, 82},
    [KV_STORED_IQ3_XXS] = {"iq3_xxs", 256, 98},
    [KV_STORED_IQ3_S] = {"iq3_s", 256, 110},
    [KV_STORED_NVFP4] = {"nvfp4", 64, 36},
    [KV_STORED_F8_E4M3] = {"f8_e4m3", 1, 1},
    [KV_STORED_F8_E5M2] = {"f8_e5m2", 1, 1},
};

const float kv_weights_codes[16] = {0, 1, 2,  3,  4,  5,  6,  7,
                                    8, 9, 10, 11, 12, 13, 14, 15};
const float kv_weights_e2m1[16] = {0, 1,  2,  3,  4,  6,  8,  12,
                                   0, -1, -2, -3, -4, -6, -8, -12};
const float kv_stored_iq4[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                 1,    13,   25,  38,  53,  69,  89,  113};

const char *kv_stored_name(enum kv_stored type)
{
    return types[type].name;
}

size_t kv_stored_values(enum kv_stored type)
{
    return types[type].values;
}

size_t kv_stored_bytes(enum kv_stored type)
{
    return types[type].bytes;
}

static const struct kv_weights_loops *best(void)
{
    static const struct kv_weights_loops *const versions[] =
        KV_VERSIONS(&kv_weights_c, &kv_weights_avx2, &kv_weights_avx512,
                    &kv_weights_avx512);

    return versions[kv_level_version()];
}

void kv_stored_decode(enum kv_stored type, const void *blocks, size_t n,
                      float *x)
{
    if (type == KV_STORED_F32)
        memcpy(x, blocks, n * sizeof(*x));
    else if (type == KV_STORED_F16)
        kv_dequantize_f16(blocks, n, x);
    else if (type == KV_STORED_BF16)
        kv_dequantize_bf16(blocks, n, x);
    else
        best()->decode[type](blocks, n, x);
}

/* Decodes some rows at a time, then multiplies them. */
static void times_decoded(const struct kv_weights_loops *l, enum kv_stored type,
                          const uint8_t *w, size_t rows, size_t n,
                          const float *x, size_t m, float *y, size_t y_row)
{
    enum { ROWS = 16 };
    const size_t row = n / types[type].values * types[type].bytes;
    float *decoded =
        kv_alloc(rows < ROWS ? rows * n : ROWS * n, sizeof(*decoded));

    for (size_t r = 0, some; r < rows; r += some) {
        some = rows - r < ROWS ? rows - r : ROWS;
        kv_stored_decode(type, w + r * row, some * n, decoded);
        l->many(KV_STORED_F32, (const uint8_t *)decoded, some, n, x, m, y + r,
                y_row);
    }
    free(decoded);
}

void kv_stored_times(enum kv_stored type, const void *w, size_t rows, size_t n,
                     const float *x, size_t m, float *y, size_t y_row)
{
    const struct kv_weights_loops *l = best();
    const bool is_unaligned =
        type == KV_STORED_F32 && (uintptr_t)w % sizeof(float);

    if (m == 1)
        l->times[type](w, rows, n, x, y);
    else if (is_unaligned || !l->many(type, w, rows, n, x, m, y, y_row))
        times_decoded(l, type, w, rows, n, x, m, y, y_row);
}
