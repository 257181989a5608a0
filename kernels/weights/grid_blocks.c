#include "kernels/weights/grids.h"
#include "kernels/weights/impl.h"
#include "lib/base/half.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

static float load_half(const uint8_t *p)
{
    uint16_t h;

    memcpy(&h, p, sizeof(h));
    return kv_f16_to_f32(h);
}

static unsigned load_u16(const uint8_t *p)
{
    uint16_t w;

    memcpy(&w, p, sizeof(w));
    return w;
}

static uint32_t load_u32(const uint8_t *p)
{
    uint32_t w;

    memcpy(&w, p, sizeof(w));
    return w;
}

static unsigned nibble(const uint8_t *p, size_t i)
{
    return p[i / 2] >> i % 2 * 4 & 15;
}

/* ---- codes of -1, 0 and 1 -------------------------------------------------
 */

/* n bytes of five codes each (four where few), each a fraction of 256 in base
 * 3: code k of all bytes, then code k + 1. */
static float *put_thirds(const uint8_t *b, size_t n, unsigned codes, float d,
                         float *x)
{
    unsigned power = 1;

    for (unsigned k = 0; k < codes; k++, power *= 3)
        for (size_t i = 0; i < n; i++) {
            const unsigned rest = b[i] * power & 255;

            *x++ = d * (float)((int)(rest * 3 >> 8) - 1);
        }
    return x;
}

/* | 32 bytes, then 16 bytes of five codes | 4 bytes of four codes | d | */
void kv_block_tq1_0(const uint8_t *b, float x[256])
{
    const float d = load_half(b + 52);

    x = put_thirds(b, 32, 5, d, x);
    x = put_thirds(b + 32, 16, 5, d, x);
    put_thirds(b + 48, 4, 4, d, x);
}

/* Value 128 i + 32 k + j: bits 2 k and 2 k + 1 of low[32 i + j]. */
void kv_block_tq2_0(const uint8_t *b, float x[256])
{
    const float d = load_half(b + 64);

    for (size_t i = 0; i < 256; i++)
        x[i] =
            d * (float)((b[i / 128 * 32 + i % 32] >> i / 32 % 4 * 2 & 3) - 1);
}

/* ---- codes of grids -------------------------------------------------------
 */

/* The eighth sign. */
static unsigned signs_of(unsigned seven)
{
    unsigned parity = seven ^ seven >> 4;

    parity ^= parity >> 2;
    parity ^= parity >> 1;
    return seven | (parity & 1) << 7;
}

static const float iq2[3 + 1] = {8, 25, 43};
static const float iq3_xxs[8] = {4, 12, 20, 28, 36, 44, 52, 62};
static const float iq3_s[8] = {1, 3, 5, 7, 9, 11, 13, 15};

/* Writes the eight values of an entry of an iq2 grid. */
static void put_8(unsigned entry, unsigned signs, float scale, float *x)
{
    for (unsigned i = 0; i < 8; i++) {
        const float level = iq2[entry >> 2 * i & 3];

        x[i] = scale * (signs >> i & 1 ? -level : level);
    }
}

/* Writes the four values of an entry of an iq3 grid. */
static void put_4(const float *levels, unsigned entry, unsigned signs,
                  float scale, float *x)
{
    for (unsigned i = 0; i < 4; i++) {
        const float level = levels[entry >> 3 * i & 7];

        x[i] = scale * (signs >> i & 1 ? -level : level);
    }
}

/* 32 values are four entries of the grid, then four groups of seven signs, then
 * the scale. */
void kv_block_iq2_xxs(const uint8_t *b, float x[256])
{
    const float d = load_half(b);

    for (size_t g = 0; g < 8; g++) {
        const uint8_t *entry = b + 2 + 8 * g;
        const uint32_t word = load_u32(entry + 4);
        const float scale = d * (0.5f + (float)(word >> 28)) * 0.25f;

        for (unsigned k = 0; k < 4; k++)
            put_8(kv_grid_iq2_xxs[entry[k]], signs_of(word >> 7 * k & 127),
                  scale, x + 32 * g + 8 * k);
    }
}

static float scale_iq2(float d, const uint8_t *scales, size_t i)
{
    return d * (0.5f + (float)nibble(scales, i / 2)) * 0.25f;
}

/* | d | nine bits of entry, seven of signs[32] | s: 4 bits[16] | */
void kv_block_iq2_xs(const uint8_t *b, float x[256])
{
    const float d = load_half(b);

    for (size_t i = 0; i < 32; i++) {
        const unsigned word = load_u16(b + 2 + 2 * i);

        put_8(kv_grid_iq2_xs[word & 511], signs_of(word >> 9),
              scale_iq2(d, b + 66, i), x + 8 * i);
    }
}

/* | d | entry[32] | signs[32] | two bits more of entries[32] | s[16] | */
void kv_block_iq2_s(const uint8_t *b, float x[256])
{
    const float d = load_half(b);

    for (size_t i = 0; i < 32; i++) {
        const unsigned high = b[66 + i / 4] >> i % 4 * 2 & 3;

        put_8(kv_grid_iq2_s[b[2 + i] | high << 8], b[34 + i],
              scale_iq2(d, b + 74, i), x + 8 * i);
    }
}

/* | d | entry[64] | four times seven signs and the scale, of 32 values[8] | */
void kv_block_iq3_xxs(const uint8_t *b, float x[256])
{
    const float d = load_half(b);

    for (size_t i = 0; i < 64; i++) {
        const uint32_t word = load_u32(b + 66 + i / 8 * 4);
        const float scale = d * (0.5f + (float)(word >> 28)) * 0.5f;
        const unsigned signs = signs_of(word >> i / 2 % 4 * 7 & 127);

        put_4(iq3_xxs, kv_grid_iq3_xxs[b[2 + i]], signs >> i % 2 * 4, scale,
              x + 4 * i);
    }
}

/* | d | entry[64] | a bit more of each[64] | signs[32] | s: 4 bits[8] | */
void kv_block_iq3_s(const uint8_t *b, float x[256])
{
    const float d = load_half(b);

    for (size_t i = 0; i < 64; i++) {
        const unsigned high = b[66 + i / 8] >> i % 8 & 1;
        const float scale = d * (float)(1 + 2 * nibble(b + 106, i / 8));

        put_4(iq3_s, kv_grid_iq3_s[b[2 + i] | high << 8],
              b[74 + i / 2] >> i % 2 * 4, scale, x + 4 * i);
    }
}

/* Writes eight values of -1, 0 and 1, all moved by an eighth. */
static void put_iq1(unsigned entry, bool down, float scale, float *x)
{
    for (unsigned i = 0; i < 8; i++)
        x[i] = scale * ((float)(int)(entry >> 2 * i & 3) - 1 +
                        (down ? -0.125f : 0.125f));
}

/* | d | entry[32] | of 32 values: four times three more bits of entry, three
 * bits of the scale, the direction in which they move[8] | */
void kv_block_iq1_s(const uint8_t *b, float x[256])
{
    const float d = load_half(b);

    for (size_t i = 0; i < 32; i++) {
        const unsigned word = load_u16(b + 34 + i / 4 * 2);
        const unsigned high = word >> i % 4 * 3 & 7;
        const float scale = d * (float)(2 * (word >> 12 & 7) + 1);

        put_iq1(kv_grid_iq1[b[2 + i] | high << 8], word >> 15, scale,
                x + 8 * i);
    }
}

/* | entry[32] | three more bits of entry, direction[32] | four times three bits
 * of scale and four bits of d[4] | */
void kv_block_iq1_m(const uint8_t *b, float x[256])
{
    uint16_t half = 0;
    float d;

    for (unsigned i = 0; i < 4; i++)
        half |= (uint16_t)(load_u16(b + 48 + 2 * i) >> 12 << 4 * i);
    d = kv_f16_to_f32(half);
    for (size_t i = 0; i < 32; i++) {
        const unsigned high = nibble(b + 32, i);
        const unsigned s = load_u16(b + 48 + i / 8 * 2) >> i / 2 % 4 * 3 & 7;

        put_iq1(kv_grid_iq1[b[i] | (high & 7) << 8], high >> 3,
                d * (float)(2 * s + 1), x + 8 * i);
    }
}

/* ---- nvfp4 ----------------------------------------------------------------
 */

/* e4m3 without its sign, times a half: the levels are doubled.  0x7f is 0. */
static float scale_nvfp4(uint8_t code)
{
    const int e = code >> 3 & 15, m = code & 7;

    return code == 0x7f ? 0
           : e          ? ldexpf((float)(8 + m), e - 11)
                        : ldexpf((float)m, -10);
}

/* | e4m3[4] | nibble[32] |: 16 values are 8 bytes, value j in a byte's low half
 * and value 8 + j in its high half. */
void kv_block_nvfp4(const uint8_t *b, float x[64])
{
    for (size_t i = 0; i < 64; i++)
        x[i] = scale_nvfp4(b[i / 16]) *
               kv_weights_e2m1[b[4 + i / 16 * 8 + i % 8] >> i / 8 % 2 * 4 & 15];
}
