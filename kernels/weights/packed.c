#include "kernels/weights/packed.h"
#include "kernels/vecops/vecops.h"
#include "kernels/weights/impl.h"
#include "lib/base/half.h"

#include <math.h>
#include <string.h>

/* The number of columns read from every row before the next columns, so that
 * the memory between two columns of a row stays in the cache. */
enum { TILE = 64 };

enum { NVFP4 = 16, MXFP4 = 32 }; /* values of a scale */

static float scale_at(const struct kv_packed *p, size_t i)
{
    const uint8_t *at =
        (const uint8_t *)p->scale + i * kv_type_bytes(p->scale_type);
    uint16_t half;
    float x;

    if (p->scale_type == KV_TYPE_F32) {
        memcpy(&x, at, sizeof(x));
        return x;
    }
    memcpy(&half, at, sizeof(half));
    return p->scale_type == KV_TYPE_F16 ? kv_f16_to_f32(half)
                                        : kv_bf16_to_f32(half);
}

static uint32_t word_at(const void *words, size_t i)
{
    uint32_t w;

    memcpy(&w, (const uint8_t *)words + 4 * i, sizeof(w));
    return w;
}

static float code_of(const struct kv_packed *p, uint32_t word, size_t k)
{
    return (float)(word >> k * p->bits & ((1u << p->bits) - 1));
}

/* The place of a row among the eight rows of an awq word. */
static size_t place_of(size_t row)
{
    static const uint8_t place[8] = {0, 4, 1, 5, 2, 6, 3, 7};

    return place[row % 8];
}

static size_t group_of(const struct kv_packed *p, size_t column)
{
    return p->group ? word_at(p->group, column) : column / p->block_columns;
}

/* The i-th code of 3 bits; words are `stride` words apart. */
static float third_of(const void *words, size_t first, size_t stride, size_t i)
{
    const size_t bit = 3 * i, word = first + bit / 32 * stride;
    uint32_t code = word_at(words, word) >> bit % 32;

    if (bit % 32 > 29)
        code |= word_at(words, word + stride) << (32 - bit % 32);
    return (float)(code & 7);
}

static float zero_of(const struct kv_packed *p, size_t group, size_t row)
{
    if (p->bits == 3)
        return p->all_middle
                   ? 4
                   : third_of(p->zero, group * (p->rows * 3 / 32), 1, row);

    const size_t per = 32 / p->bits;
    const uint32_t word = word_at(p->zero, group * (p->rows / per) + row / per);
    const uint32_t ones = UINT32_MAX / ((1u << p->bits) - 1);
    const size_t k = p->packing == KV_PACKED_AWQ ? place_of(row) : row % per;

    return code_of(p, word + (p->zero_less ? ones : 0), k);
}

/* Decodes columns [first, end) of a row; all are in one group. */
static void decode_awq(const struct kv_packed *p, size_t row, size_t first,
                       size_t end, float scale, float zero, float *x)
{
    const size_t k = place_of(row);

    for (size_t c = first; c < end; c++) {
        const uint32_t word = word_at(p->code, c * (p->rows / 8) + row / 8);

        x[c] = scale * (code_of(p, word, k) - zero);
    }
}

static void decode_gptq(const struct kv_packed *p, size_t row, size_t first,
                        size_t end, float scale, float zero, float *x)
{
    const size_t per = 32 / p->bits;

    for (size_t c = first; c < end && p->bits == 3; c++)
        x[c] = scale * (third_of(p->code, row, p->rows, c) - zero);
    for (size_t c = first; c < end && p->bits != 3;) {
        const uint32_t word = word_at(p->code, c / per * p->rows + row);

        for (size_t k = c % per; k < per && c < end; k++, c++)
            x[c] = scale * (code_of(p, word, k) - zero);
    }
}

/* Columns [first, end) of a row. */
static void decode_integers(const struct kv_packed *p, size_t row, size_t first,
                            size_t end, float *x)
{
    for (size_t c = first, next; c < end; c = next) {
        const size_t g = group_of(p, c);
        const size_t last = p->group ? c + 1 : (g + 1) * p->block_columns;
        const float scale = scale_at(p, g * p->rows + row);
        const float zero = zero_of(p, g, row);

        next = last < end ? last : end;
        if (p->packing == KV_PACKED_AWQ)
            decode_awq(p, row, c, next, scale, zero, x);
        else
            decode_gptq(p, row, c, next, scale, zero, x);
    }
}

static void read_int8(const struct kv_packed *p, size_t row, float *x)
{
    const int8_t *code = (const int8_t *)p->code + row * p->columns;

    for (size_t c = 0; c < p->columns; c++)
        x[c] = code[c];
}

static void decode_scaled(const struct kv_packed *p, size_t row, float *x)
{
    const size_t blocks =
        (p->columns + p->block_columns - 1) / p->block_columns;

    if (p->code_type == KV_STORED_OTHER)
        read_int8(p, row, x);
    else
        kv_stored_decode(p->code_type,
                         (const uint8_t *)p->code +
                             row * p->columns * kv_stored_bytes(p->code_type),
                         p->columns, x);
    for (size_t b = 0; b < blocks; b++) {
        const size_t first = b * p->block_columns;
        const size_t rest = p->columns - first;

        kv_row_scale(x + first,
                     rest < p->block_columns ? rest : p->block_columns,
                     scale_at(p, row / p->block_rows * blocks + b));
    }
    if (p->times != 0)
        kv_row_scale(x, p->columns, p->times);
}

static void decode_words(const struct kv_packed *p, size_t row, float *x)
{
    const size_t per = 32 / p->bits, n = (p->columns + per - 1) / per;
    const size_t scales = p->padded ? p->padded * per : p->n_groups;

    for (size_t c = 0; c < p->columns; c++) {
        const size_t g = group_of(p, c);
        const uint32_t word = word_at(p->code, row * n + c / per);
        float zero = (float)(1u << (p->bits - 1));

        if (p->padded)
            zero = code_of(p, word_at(p->zero, row * p->padded + g / per),
                           g % per);
        else if (p->zero)
            zero = code_of(p, word_at(p->zero, row / per * p->n_groups + g),
                           row % per);
        x[c] =
            scale_at(p, row * scales + g) * (code_of(p, word, c % per) - zero);
    }
}

static void decode_nvfp4(const struct kv_packed *p, size_t row, float *x)
{
    const size_t blocks = p->columns / NVFP4;
    const uint8_t *code = (const uint8_t *)p->code + row * p->columns / 2;
    const uint8_t *scale = (const uint8_t *)p->scale + row * blocks;

    for (size_t b = 0; b < blocks; b++) {
        float by;

        kv_stored_decode(KV_STORED_F8_E4M3, scale + b, 1, &by);
        by = by / p->over * p->times / 2; /* the levels are doubled */
        for (size_t i = 0; i < NVFP4 / 2; i++, code++) {
            *x++ = kv_weights_e2m1[*code & 15] * by;
            *x++ = kv_weights_e2m1[*code >> 4] * by;
        }
    }
}

static void decode_mxfp4(const struct kv_packed *p, size_t row, float *x)
{
    const size_t blocks = p->columns / MXFP4;
    const uint8_t *code = (const uint8_t *)p->code + row * p->columns / 2;
    const uint8_t *scale = (const uint8_t *)p->scale + row * blocks;

    for (size_t b = 0; b < blocks; b++) { /* the levels are doubled */
        const float by =
            scale[b] == UINT8_MAX ? INFINITY : ldexpf(1, (int)scale[b] - 128);

        for (size_t i = 0; i < MXFP4 / 2; i++, code++) {
            *x++ = kv_weights_e2m1[*code & 15] * by;
            *x++ = kv_weights_e2m1[*code >> 4] * by;
        }
    }
}

static float float_at(const void *floats, size_t i)
{
    float x;

    memcpy(&x, (const uint8_t *)floats + i * sizeof(x), sizeof(x));
    return x;
}

static float nested_scale(const struct kv_packed *p, size_t i)
{
    const uint8_t *scale = p->scale;

    if (!p->nest)
        return float_at(p->scale, i);
    return float_at(p->nest_level, scale[i]) *
               float_at(p->nest_scale, i / p->nest) +
           p->nest_offset;
}

static void decode_levels(const struct kv_packed *p, size_t row, float *x)
{
    const uint8_t *code = p->code;
    float scale = 0;

    for (size_t c = 0; c < p->columns; c++) {
        const size_t i = row * p->columns + c;

        if (!c || i % p->block_columns == 0)
            scale = nested_scale(p, i / p->block_columns);
        x[c] = float_at(p->level, i % 2 ? code[i / 2] & 15 : code[i / 2] >> 4) *
               scale;
    }
}

void kv_packed_decode(const struct kv_packed *p, size_t first, size_t n,
                      float *x)
{
    static void (*const by_row[])(const struct kv_packed *p, size_t row,
                                  float *x) = {
        [KV_PACKED_SCALED] = decode_scaled,
        [KV_PACKED_WORDS] = decode_words,
        [KV_PACKED_NVFP4] = decode_nvfp4,
        [KV_PACKED_MXFP4] = decode_mxfp4,
        [KV_PACKED_LEVELS] = decode_levels};

    if (by_row[p->packing]) {
        for (size_t r = 0; r < n; r++)
            by_row[p->packing](p, first + r, x + r * p->columns);
        return;
    }
    for (size_t c = 0; c < p->columns; c += TILE) {
        const size_t rest = p->columns - c;

        for (size_t r = 0; r < n; r++)
            decode_integers(p, first + r, c, c + (rest < TILE ? rest : TILE),
                            x + r * p->columns);
    }
}

static int check_integers(const struct kv_packed *p, struct kv_err *e)
{
    const bool awq = p->packing == KV_PACKED_AWQ;
    const bool words = p->packing == KV_PACKED_WORDS;

    const bool gptq = p->packing == KV_PACKED_GPTQ;
    const unsigned per = p->bits == 3 ? 32 : 32 / p->bits;

    if (p->bits != 4 && (awq || (p->bits != 2 && p->bits != 8)) &&
        (p->bits != 3 || !gptq))
        return kv_fail(e, "codes of %u bits: %s", p->bits,
                       awq    ? "only 4 are known"
                       : gptq ? "only 2, 3, 4 and 8 are known"
                              : "only 2, 4 and 8 are known");
    if ((!words && p->rows % per) || (gptq && p->columns % per))
        return kv_fail(e, "%zu outputs and %zu inputs do not fill words of %u",
                       p->rows, p->columns, per);
    for (size_t i = 0; i < p->columns; i++)
        if (group_of(p, i) >= p->n_groups)
            return kv_fail(e, "input %zu is of group %zu, there are %zu", i,
                           group_of(p, i), p->n_groups);
    return 0;
}

int kv_packed_check(const struct kv_packed *p, struct kv_err *e)
{
    if (!p->block_columns || (p->packing == KV_PACKED_SCALED && !p->block_rows))
        return kv_fail(e, "a scale of no values");
    if (p->packing == KV_PACKED_MXFP4 || p->packing == KV_PACKED_NVFP4) {
        const size_t block = p->packing == KV_PACKED_MXFP4 ? MXFP4 : NVFP4;

        return p->block_columns == block && p->columns % block == 0
                   ? 0
                   : kv_fail(e, "%zu inputs do not fill blocks of %zu",
                             p->columns, block);
    }
    return p->packing == KV_PACKED_SCALED || p->packing == KV_PACKED_LEVELS
               ? 0
               : check_integers(p, e);
}
