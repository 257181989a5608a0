/* Blocks of 256 values, which contain scales.  Included by loops.h after its
 * blocks of 32. */

/* out[i] = head * (small[i] - zero), i < 16. */
ALWAYS_INLINE void scale_16(const uint8_t *small, int zero, vf32 head,
                            float *out)
{
    VALUES
    for (size_t j = 0; j < 16; j += V_WIDTH)
        v_store(out + j, v_mul(head, centered(v_load_i32_u8(small + j), zero)));
}

/* Value 128 i + 32 k + j: bits 2 k and 2 k + 1 of low[32 i + j]. */
ALWAYS_INLINE void q2_k(const uint8_t *b, struct sink *s)
{
    const vf32 d = load_head(b + 80);
    const vf32 m = v_mul(load_head(b + 82), v_set1(-1));
    float scale[16], min[16];

    VALUES
    for (size_t j = 0; j < 16; j += V_WIDTH) {
        const vi32 both = v_load_i32_u8(b + j);

        v_store(scale + j, v_mul(d, v_from_i32(bits_of(both, 0, 15))));
        v_store(min + j, v_mul(m, v_from_i32(bits_of(both, 4, 15))));
    }
    VALUES
    for (unsigned g = 0; g < 16; g++) {
        const uint8_t *low = b + 16 + g / 8 * 32 + g % 2 * 16;

        VALUES
        for (size_t j = 0; j < 16; j += V_WIDTH) {
            const vi32 code = bits_of(v_load_i32_u8(low + j), g / 2 % 4 * 2, 3);

            put(s, 16 * g + j,
                v_muladd(v_from_i32(code), v_set1(scale[g]), v_set1(min[g])));
        }
    }
}

/* Codes as in q2_k; the third bit of value 32 k + j is bit k of high[j], and 4
 * is subtracted.  Scales: byte i of low[8] has four bits of scales i and 8 + i,
 * byte i of high[4] two of i, 4 + i, 8 + i and 12 + i; 32 is subtracted. */
ALWAYS_INLINE void q3_k(const uint8_t *b, struct sink *s)
{
    const uint32_t low = 0x0f0f0f0f, high = 0x30303030;
    const uint32_t w[3] = {load_u32(b + 96), load_u32(b + 100),
                           load_u32(b + 104)};
    const uint32_t small[4] = {(w[0] & low) | (w[2] << 4 & high),
                               (w[1] & low) | (w[2] << 2 & high),
                               (w[0] >> 4 & low) | (w[2] & high),
                               (w[1] >> 4 & low) | (w[2] >> 2 & high)};
    float scale[16];

    scale_16((const uint8_t *)small, 32, load_head(b + 108), scale);
    VALUES
    for (unsigned g = 0; g < 16; g++) {
        const uint8_t *at = b + 32 + g / 8 * 32 + g % 2 * 16;

        VALUES
        for (size_t j = 0; j < 16; j += V_WIDTH) {
            const vi32 third = v_load_i32_u8(b + g % 2 * 16 + j);
            const vi32 code =
                v_or(bits_of(v_load_i32_u8(at + j), g / 2 % 4 * 2, 3),
                     v_shl_i32(bits_of(third, g / 2, 1), 2));

            put(s, 16 * g + j, v_mul(centered(code, 4), v_set1(scale[g])));
        }
    }
}

/* Unpacks scales 0 to 7, then the minima, negated here.  The first four of each
 * are six bits of a byte; each of the others is four bits of the last bytes and
 * two bits that the first bytes have left. */
ALWAYS_INLINE void six_bits(const uint8_t *b, float scale[16], float min[16])
{
    const uint32_t six = 0x3f3f3f3f, low = 0x0f0f0f0f, high = 0x30303030;
    const uint32_t w[3] = {load_u32(b + 4), load_u32(b + 8), load_u32(b + 12)};
    const uint32_t small[4] = {w[0] & six, (w[2] & low) | (w[0] >> 2 & high),
                               w[1] & six,
                               (w[2] >> 4 & low) | (w[1] >> 2 & high)};

    scale_16((const uint8_t *)small, 0, load_head(b), scale);
    scale_16((const uint8_t *)small, 0, v_mul(load_head(b + 2), v_set1(-1)),
             min);
}

/* Value 64 i + j and 64 i + 32 + j, j < 32: halves of low[32 i + j]. */
ALWAYS_INLINE void q4_k(const uint8_t *b, struct sink *s)
{
    float scale[16], min[16];

    six_bits(b, scale, min);
    VALUES
    for (unsigned g = 0; g < 8; g++) {
        const struct nibbles n = with_min(v_set1(scale[g]), v_set1(min[8 + g]));
        const uint8_t *low = b + 16 + g / 2 * 32;

        VALUES
        for (size_t j = 0; j < 32; j += V_WIDTH)
            put(s, 32 * g + j, value_of(&n, v_load_i32_u8(low + j), g % 2 * 4));
    }
}

/* As q4_k; bits 2 i and 2 i + 1 of high[j] are the values' fifth bits. */
ALWAYS_INLINE void q5_k(const uint8_t *b, struct sink *s)
{
    float scale[16], min[16];

    six_bits(b, scale, min);
    VALUES
    for (unsigned g = 0; g < 8; g++) {
        const vf32 d = v_set1(scale[g]), m = v_set1(min[8 + g]);
        const uint8_t *low = b + 48 + g / 2 * 32, *high = b + 16;

        VALUES
        for (size_t j = 0; j < 32; j += V_WIDTH) {
            const vi32 code =
                v_or(bits_of(v_load_i32_u8(low + j), g % 2 * 4, 15),
                     v_shl_i32(bits_of(v_load_i32_u8(high + j), g, 1), 4));

            put(s, 32 * g + j, v_muladd(v_from_i32(code), d, m));
        }
    }
}

/* Value 128 i + 32 k + j, j < 32: half k / 2 of low[64 i + k % 2 * 32 + j] and
 * bits 2 k and 2 k + 1 of high[32 i + j]; 32 is subtracted. */
ALWAYS_INLINE void q6_k(const uint8_t *b, struct sink *s)
{
    const vf32 d = load_head(b + 208);
    float scale[16];

    VALUES
    for (size_t j = 0; j < 16; j += V_WIDTH)
        v_store(scale + j, v_mul(d, v_from_i32(v_load_i32_i8(b + 192 + j))));
    VALUES
    for (unsigned g = 0; g < 16; g++) {
        const unsigned i = g / 8, k = g / 2 % 4, first = g % 2 * 16;
        const uint8_t *low = b + 64 * i + k % 2 * 32 + first;
        const uint8_t *high = b + 128 + 32 * i + first;

        VALUES
        for (size_t j = 0; j < 16; j += V_WIDTH) {
            const vi32 code =
                v_or(bits_of(v_load_i32_u8(low + j), k / 2 * 4, 15),
                     v_shl_i32(bits_of(v_load_i32_u8(high + j), 2 * k, 3), 4));

            put(s, 16 * g + j, v_mul(centered(code, 32), v_set1(scale[g])));
        }
    }
}

/* Eight blocks as iq4_nl's; the scale of block g: half g % 2 of low[g / 2] and
 * bits 2 g and 2 g + 1 of high; 32 is subtracted. */
ALWAYS_INLINE void iq4_xs(const uint8_t *b, struct sink *s)
{
    const uint32_t high = load_u32(b) >> 16, low = load_u32(b + 4);
    const vf32 d = load_head(b);

    VALUES
    for (unsigned g = 0; g < 8; g++) {
        const int scale =
            (int)((low >> 4 * g & 15) | (high >> 2 * g & 3) << 4) - 32;

        by_levels(b + 8 + 16 * g, kv_stored_iq4, v_mul(d, v_set1((float)scale)),
                  s, 32 * g);
    }
}
